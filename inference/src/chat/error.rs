//! What can go wrong between messages and token ids.

use std::path::PathBuf;

/// A failure in the tokenizer, the chat template or the messages.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A file of the model can't be read.
    #[error("can't read {path}; a model folder needs tokenizer.json beside its weights")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file of the model is malformed.
    #[error("{path} isn't valid JSON; fetch the model again")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The model's file can't be opened.
    #[error(transparent)]
    Model(#[from] crate::InferenceError),
    /// The tokenizer's data can't be used.
    #[error("can't build a tokenizer from {path}: {reason}")]
    Tokenizer {
        /// The file it came from.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A text that the tokenizer refuses.
    #[error("can't tokenise: {0}")]
    Encode(String),
    /// Chat was asked of a model that has no chat template.
    #[error("the model has no chat template; use /v1/completions, or a model with chat_template.jinja")]
    NoTemplate,
    /// The template refused the messages, or has an error of its own.
    #[error("the chat template can't render these messages: {0}")]
    Template(String),
    /// A message without the fields that its role needs.
    #[error("messages[{index}]: {reason}")]
    Message {
        /// Position in the request.
        index: usize,
        /// What is wrong and what to send.
        reason: String,
    },
    /// A tool definition that isn't an OpenAI function.
    #[error("tools[{index}]: {reason}")]
    Tool {
        /// Position in the request.
        index: usize,
        /// What is wrong and what to send.
        reason: String,
    },
    /// A recorded call that can't be turned into a prompt and an answer.
    #[error("can't tokenise the recorded call: {0}")]
    Recorded(String),
}
