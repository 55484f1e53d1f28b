//! The contract between recording and training: record types of an agent's episodes, and the store that keeps them.
//!
//! Facts are stored, views are computed. The facts: what a model call asked and what came back, the token ids that the
//! server read and sampled with their logprobs, what tools were called, the raw reward, and what went wrong. Views such
//! as [`Trajectory`] and [`TrajectoryGroup`] are made from them on reading and never stored.
//!
//! Reading order, as data flows:
//! 1. [`id`]: names of things, and the policy version
//! 2. [`call`]: a model call and a tool call
//! 3. [`episode`]: the record of one rollout, from open to close
//! 4. [`trajectory`](Trajectory) and [`stitch`](fn@stitch): the token view of an episode
//! 5. [`group`]: episodes that are compared with each other, and why a group isn't trained on
//! 6. [`store`]: SQLite, one writer thread, durable when a write returns
//! 7. [`export`]: the same record as JSON lines
//!
//! This crate knows neither HTTP nor tensors, and its calls block.
#![forbid(unsafe_code)]

mod answer;
pub mod call;
mod clock;
pub mod episode;
mod error;
pub mod export;
pub mod group;
pub mod id;
mod names;
mod stitch;
pub mod store;
mod trajectory;

pub use call::{CallStatus, CallTimings, Endpoint, ModelCall, SampledChoice, ToolCall, Usage};
pub use clock::now_ms;
pub use episode::{CloseEpisode, Episode, EpisodeRecord, EpisodeState, Failure, FailureCause, NewEpisode, Split};
pub use error::{ExportError, StoreError};
pub use export::{EXPORT_SCHEMA, ExportedEpisode, export_line, parse_export_line, read_export};
pub use group::{GroupEpisode, LeftOut, TrajectoryGroup, ready_exported};
pub use id::{CallId, EpisodeId, GroupId, PolicyVersion, ScenarioId, ToolCallId};
pub use names::UnknownName;
pub use stitch::stitch;
pub use store::{EpisodeFilter, PassRate, Policy, ReadyFilter, ReadyGroups, RewardRevision, Store, StoreStats, Sync};
pub use trajectory::Trajectory;
