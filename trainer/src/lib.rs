//! The trainer: ready groups in, an adapter out.
//!
//! A run's loop around it, in ten lines:
//! ```text
//! let mut trainer = Trainer::new(model, config, seed)?;          // or load_checkpoint(dir)
//! trainer.fine_tune(&demonstrations, plan, |report| …)?;          // a warm start
//! loop {
//!     publish_directory(trainer.adapter(), base_model, folder, version)?;   // the server loads it, the proxy switches
//!     let groups = …;                                            // roll out, then store.ready_groups(…)
//!     let report = trainer.grpo_step(&groups, version)?;
//!     trainer.save_checkpoint(dir, &extra)?;                     // then the groups are acknowledged
//! }
//! ```
//! In the order data meets them:
//! - [`config`]: settings as written → valid settings;
//! - [`advantage`]: a group's rewards → advantages;
//! - `batch`: groups → the trajectories that are trained on, and the terms of the loss;
//! - [`forest`]: trajectories → prefix tries, each distinct token once; [`pieces`]: how they are cut to bound memory;
//! - `attention`, `pass`: forward and backward over the pieces; `logprobs`: hidden rows → logprobs, in chunks;
//! - [`loss`]: logprobs → loss;
//! - [`optimizer`]: gradients → new weights;
//! - [`step`]: all of it, once; [`supervised`]: a warm start's steps; [`metrics`]: what they report;
//! - [`checkpoint`], [`publish`]: weights → disk; [`plot`]: reports → picture.
//!
//! Axes: `rows` are the flat tokens of a piece, `terms` the (trajectory, sampled token) pairs of the loss; `hidden`,
//! `n_heads`, `n_kv_heads`, `head_dim` and `vocab` are the model's.
//!
//! This crate knows nothing of HTTP, of agents and of environments.

#![forbid(unsafe_code)]

pub mod advantage;
mod attention;
mod batch;
pub mod checkpoint;
pub mod config;
mod durable;
pub mod error;
pub mod forest;
mod logprobs;
pub mod loss;
pub mod metrics;
pub mod optimizer;
mod pass;
pub mod pieces;
pub mod plot;
pub mod publish;
pub mod step;
pub mod supervised;
#[cfg(test)]
mod testing;

pub use config::{RawTrainerConfig, TrainerConfig};
pub use error::TrainError;
pub use metrics::StepReport;
pub use plot::{PlotRow, reward_svg};
pub use publish::{publish_directory, save_adapter};
pub use step::Trainer;
pub use supervised::SupervisedPlan;
