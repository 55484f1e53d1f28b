//! The embedded engine: continuous batching on one OS thread that owns every tensor.
//!
//! [`EngineHandle`] is a cloneable sender to that thread; nothing else crosses. Reading order, as data flows:
//! [`request`] (what goes in and comes out), [`handle`], `worker` (the thread's loop) and `step` (one turn of it), `scheduler` (which
//! sequence computes which tokens in a step; a pure state machine), `block_pool` (who holds which block of the
//! KV cache, and which blocks hold a known prefix), `kv_cache` (the tensors behind the blocks), `attention` (reads and
//! writes them in a forward pass) and `sampler` (logits to a token).
//!
//! Axes: `tokens` are the flat rows of a step, of all sequences together; `kv_len` counts the tokens that a row may attend to.

mod attention;
mod block_pool;
mod config;
mod decode_kernel;
mod direct_attention;
mod error;
mod gathered_attention;
mod handle;
mod kv_cache;
mod request;
mod sampler;
mod scheduler;
mod step;
mod worker;

#[cfg(test)]
mod tests;

pub use config::EngineConfig;
pub use error::EngineError;
pub use handle::{EngineHandle, EngineStats, LoadedAdapter};
pub use request::{FinishReason, GenerateEvent, GenerateRequest, SampledToken, SamplingParams};
