//! Why a model, an adapter or a server can't be used.

use std::path::PathBuf;

/// A failure of this crate. Every variant that concerns a file names it, and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferenceError {
    /// A file or folder can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file or folder can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file doesn't have the form that it should have.
    #[error("{} isn't what was expected", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_path_to_error::Error<serde_json::Error>,
    },
    /// A path where no model lies.
    #[error("no model at {}: {reason}", path.display())]
    NoModel {
        /// The path asked for.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A model that exists but isn't one that this crate can run.
    #[error("{}: {reason}", path.display())]
    UnsupportedModel {
        /// The file that says so.
        path: PathBuf,
        /// What isn't supported, and what is.
        reason: String,
    },
    /// A file of weights is damaged.
    #[error("{} is damaged: {reason}; fetch it again", path.display())]
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// What doesn't fit.
        reason: String,
    },
    /// A tensor is missing, superfluous or has the wrong shape or type.
    #[error("{}: tensor {tensor} {reason}", path.display())]
    Tensor {
        /// The file, or the folder when no file has the tensor.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// What is wrong, with the expected shape.
        reason: String,
    },
    /// An adapter that can't be used with this model.
    #[error("adapter {}: {reason}", path.display())]
    Adapter {
        /// Its directory.
        path: PathBuf,
        /// What is wrong and what is supported.
        reason: String,
    },
    /// A setting that can't be used.
    #[error("{setting} {reason}")]
    InvalidSetting {
        /// Name of the setting.
        setting: &'static str,
        /// What is wrong and which values work.
        reason: String,
    },
    /// libtorch refused an operation.
    #[cfg(feature = "torch")]
    #[error("libtorch failed")]
    Torch(#[from] tch::TchError),
}
