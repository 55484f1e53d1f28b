//! What can go wrong in the trainer.

use std::path::PathBuf;

/// An error of the trainer. Messages say what to do where the user can do something.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The interrupt flag was raised during a step. The step is half done: go on from a checkpoint.
    #[error("interrupted during a training step; nothing of it is kept")]
    Interrupted,
    /// A setting outside its range.
    #[error("trainer.{field} is {value}; {expected}")]
    Config {
        /// Name of the setting.
        field: &'static str,
        /// Its value as written.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A file or folder could not be read or written.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The folder holds no checkpoint.
    #[error("{} is not a checkpoint: {reason}; give the folder that an earlier run wrote", path.display())]
    NotACheckpoint {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A file of the checkpoint is truncated or damaged.
    #[error("the checkpoint file {} is damaged: {reason}; start from another checkpoint", path.display())]
    DamagedCheckpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The checkpoint belongs to another model or another adapter shape.
    #[error("the checkpoint {} is of another run: {difference}; use the model and adapter settings it was made with", path.display())]
    OtherCheckpoint {
        /// The folder.
        path: PathBuf,
        /// Each differing setting: here and in the checkpoint.
        difference: String,
    },
    /// An adapter of another form than the configuration's.
    #[error("the adapter {} has another form: {difference}; change the trainer's settings to it", path.display())]
    OtherAdapter {
        /// Its directory.
        path: PathBuf,
        /// Each differing setting: here and in the adapter.
        difference: String,
    },
    /// A token id that the model doesn't know.
    #[error(
        "token id {token_id} is outside the model's vocabulary of {vocab_size}; was the trajectory recorded from another model?"
    )]
    TokenOutOfRange {
        /// The id.
        token_id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The plot could not be drawn.
    #[error("could not draw {}: {reason}", path.display())]
    Plot {
        /// Where it should go.
        path: PathBuf,
        /// The drawing library's words.
        reason: String,
    },
    /// The inference crate refused an adapter.
    #[error("could not {action} the adapter in {}", path.display())]
    Adapter {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Box<inference::InferenceError>,
    },
    /// libtorch refused an operation.
    #[error("the tensor library failed")]
    Tensor(#[from] tch::TchError),
}

impl TrainError {
    /// For `map_err` on file operations.
    pub(crate) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
