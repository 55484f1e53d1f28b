//! Where the policy lives: the model, its adapters, its tokenizer and chat template, and the servers that sample from it.
//!
//! In the order data meets them:
//! - [`model`]: the weights and the forward pass, shared by engine and trainer so that their logprobs agree;
//! - `kernels`: the loops of a forward pass on the CPU in float32, where libtorch's are slow;
//! - [`adapter`]: the directory that an adapter is published in, PEFT's layout;
//! - [`chat`]: messages ↔ token ids;
//! - [`engine`]: continuous batching on one thread that owns every tensor;
//! - [`api`]: the engine over HTTP, in the protocol of vLLM;
//! - [`server`]: the client of any inference server that speaks that protocol, the embedded one or vLLM.
//!
//! With the cargo feature `torch` off, only [`server`] and [`error`] remain, and nothing links libtorch.
//!
//! This crate knows nothing of training and of the proxy.

#[cfg(feature = "torch")]
pub mod adapter;
#[cfg(feature = "torch")]
pub mod api;
#[cfg(feature = "torch")]
pub mod chat;
#[cfg(feature = "torch")]
pub mod engine;
pub mod error;
#[cfg(feature = "torch")]
mod kernels;
#[cfg(feature = "torch")]
pub mod model;
pub mod server;

pub use error::InferenceError;
