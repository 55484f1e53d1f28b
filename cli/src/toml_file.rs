//! Configuration files as such: reading, and errors with file, line and the nearest known key.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::failure::UsageError;
use crate::suggestion::suggestion;

/// Reads a file's text.
///
/// # Errors
/// The file can't be read.
pub(crate) fn read(path: &Path) -> Result<String, UsageError> {
    std::fs::read_to_string(path).map_err(|source| {
        UsageError::new(format!("can't read the configuration {}: {source}", path.display()))
            .hint("pass a TOML file with -c; examples/nws/trainyard.toml is one")
    })
}

/// Parses the text of the file at `path`.
///
/// # Errors
/// The text is no TOML, a key is unknown, or a value has another type; with the line.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, UsageError> {
    toml::from_str(text).map_err(|source: toml::de::Error| {
        let advice = "correct the key or value at that line";
        UsageError::new(format!(
            "{} is not a valid configuration\n{}",
            path.display(),
            source.to_string().trim_end()
        ))
        .hint(suggestion(source.message()).unwrap_or_else(|| advice.to_owned()))
    })
}

/// The absolute folder of a file, which `{config_dir}` stands for.
///
/// # Errors
/// There is no working directory.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, UsageError> {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::path::absolute(folder)
        .map_err(|source| UsageError::new(format!("can't resolve the folder of {}: {source}", path.display())))
}
