//! Environments: what an agent is asked, the tools it gets, and how its answer is rewarded.
//!
//! An environment is a set of [`Scenario`]s, an MCP tool server, and a reward computed from what the episode recorded.
//! Read in this order:
//! - [`scenario`]: one question with its hidden data; JSON lines files
//! - [`environment`]: the [`Environment`] trait, and the [`EpisodeView`] that a reward sees
//! - [`reward`]: the scalar and its metrics
//! - [`envs`]: the environments that ship with Trainyard (the National Weather Service first)
//! - [`server`]: an MCP server over stdio or Streamable HTTP
//! - [`agent`], [`launcher`]: one process of an unmodified agent, started plainly or forked from a preloaded interpreter
//! - [`control`]: the client of the proxy's control routes
//! - [`rollout`]: the driver that runs agents on scenarios through the proxy
//! - [`selection`]: which scenarios the next step should use
//! - [`statistics`]: success rates with confidence intervals, tables, transcripts
//!
//! This crate knows no tensors, and of the proxy only its HTTP routes.

#![forbid(unsafe_code)]

pub mod agent;
pub mod control;
pub mod environment;
pub mod envs;
pub mod error;
pub mod launcher;
pub mod reward;
pub mod rollout;
pub mod scenario;
pub mod selection;
pub mod server;
pub mod statistics;

pub use environment::{Environment, EpisodeView};
pub use envs::nws;
pub use error::EnvironmentError;
pub use reward::Reward;
pub use scenario::{Scenario, load_scenarios, save_scenarios};
