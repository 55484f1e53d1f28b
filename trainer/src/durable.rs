//! Directories that appear whole or not at all: written under another name, flushed, then renamed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::TrainError;

/// Writes a file and flushes it to the disk.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    fs::write(path, bytes).map_err(TrainError::io("write", path))?;
    flush(path)
}

/// Flushes a file or a directory's entries to the disk.
pub(crate) fn flush(path: &Path) -> Result<(), TrainError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(TrainError::io("flush", path))
}

/// Flushes everything below a directory, and then itself.
pub(crate) fn flush_tree(directory: &Path) -> Result<(), TrainError> {
    for entry in fs::read_dir(directory).map_err(TrainError::io("read", directory))? {
        let path = entry.map_err(TrainError::io("read", directory))?.path();
        if path.is_dir() {
            flush_tree(&path)?
        } else {
            flush(&path)?
        }
    }
    flush(directory)
}

/// Makes an empty directory beside `target` to prepare its content in. Left-overs of a killed process are removed.
pub(crate) fn prepare(target: &Path) -> Result<PathBuf, TrainError> {
    let directory = beside(target, "incomplete");
    remove(&directory)?;
    fs::create_dir_all(&directory).map_err(TrainError::io("create", &directory))?;
    Ok(directory)
}

/// `target` with a suffix to its name, in the same folder so that a rename can't cross file systems.
pub(crate) fn beside(target: &Path, suffix: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{suffix}"));
    target.with_file_name(name)
}

/// Renames and flushes the folder that holds both names.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), TrainError> {
    fs::rename(from, to).map_err(TrainError::io("rename", from))?;
    match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => flush(parent),
        _ => flush(Path::new(".")),
    }
}

/// Removes a directory if it is there.
pub(crate) fn remove(directory: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(TrainError::io("remove", directory)(error)),
        _ => Ok(()),
    }
}

/// Whether something lies at `path`.
pub(crate) fn exists(path: &Path) -> Result<bool, TrainError> {
    path.try_exists().map_err(TrainError::io("look for", path))
}
