//! Why the engine refuses.

use std::path::PathBuf;

use crate::InferenceError;

/// A refusal of the engine. All but [`EngineError::Stopped`] leave it running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration cannot work.
    #[error("engine setting {setting} {message}")]
    InvalidConfig {
        /// Name of the [`super::EngineConfig`] field.
        setting: &'static str,
        /// What is wrong and which values work.
        message: String,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty, send at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {n_tokens} tokens and this model's limit is {max_model_len} with the answer, shorten the prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// The most tokens that a sequence can have, prompt and answer together.
        max_model_len: usize,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {token_id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The id.
        token_id: u32,
        /// Ids below this exist.
        vocab_size: usize,
    },
    /// A sampling parameter is out of range.
    #[error("{parameter} {message}")]
    InvalidSampling {
        /// Name of the parameter.
        parameter: &'static str,
        /// The range that it has.
        message: &'static str,
    },
    /// No adapter of this name is loaded.
    #[error("no adapter named `{name}` is loaded")]
    UnknownAdapter {
        /// The name asked for.
        name: String,
    },
    /// The name is taken.
    #[error("the adapter `{name}` has already been loaded, unload it first or load it in place")]
    AdapterAlreadyLoaded {
        /// The name asked for.
        name: String,
    },
    /// The adapter's files do not hold an adapter for this model.
    #[error("the adapter in {} cannot be loaded", path.display())]
    InvalidAdapter {
        /// Its directory.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InferenceError,
    },
    /// Too many requests wait already.
    #[error("{n_waiting} requests are waiting already, try again later")]
    QueueFull {
        /// How many wait.
        n_waiting: usize,
    },
    /// The engine's thread is gone.
    #[error("the engine has been shut down")]
    Stopped,
    /// The thread could not be started.
    #[error("the engine's thread could not be started")]
    Spawn(#[source] std::io::Error),
}
