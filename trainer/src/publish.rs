//! Publishing: an adapter becomes an immutable directory `policy@N`, which inference servers load by its path.

use std::fs;
use std::path::{Path, PathBuf};

use inference::model::LoraAdapter;
use trajectory::PolicyVersion;

use crate::durable::{beside, exists, flush_tree, prepare, remove, rename};
use crate::error::TrainError;

/// Writes `adapter` to `{adapters_folder}/policy@{version}` in PEFT's layout and returns the path. The directory appears
/// whole, flushed, and never changes afterwards.
///
/// A resumed run may publish a version again. The same content is left alone; another one takes over the name, and the
/// directory that had it is moved aside unchanged.
///
/// # Errors
/// Files can't be written.
pub fn publish_directory(
    adapter: &LoraAdapter,
    base_model: &str,
    adapters_folder: &Path,
    version: PolicyVersion,
) -> Result<PathBuf, TrainError> {
    fs::create_dir_all(adapters_folder).map_err(TrainError::io("create", adapters_folder))?;
    let target = adapters_folder.join(format!("policy@{}", version.0));
    let incomplete = write_beside(adapter, base_model, &target)?;
    if exists(&target)? {
        if same_content(&incomplete, &target)? {
            remove(&incomplete)?;
            return Ok(target);
        }
        let mut aside = beside(&target, "superseded-1");
        let mut number = 1;
        while exists(&aside)? {
            number += 1;
            aside = beside(&target, &format!("superseded-{number}"));
        }
        tracing::warn!(adapter = %target.display(), moved_to = %aside.display(), "the version was published before");
        rename(&target, &aside)?;
    }
    rename(&incomplete, &target)?;
    Ok(target)
}

/// Writes `adapter` to `directory`, which appears whole; a directory that is there already is an error.
///
/// # Errors
/// Files can't be written, or the directory exists.
pub fn save_adapter(adapter: &LoraAdapter, base_model: &str, directory: &Path) -> Result<(), TrainError> {
    if exists(directory)? {
        let taken = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(TrainError::io("create", directory)(taken));
    }
    let incomplete = write_beside(adapter, base_model, directory)?;
    rename(&incomplete, directory)
}

/// Writes `adapter` to a temporary name beside `target`, flushed, and returns it.
fn write_beside(adapter: &LoraAdapter, base_model: &str, target: &Path) -> Result<PathBuf, TrainError> {
    let incomplete = prepare(target)?;
    adapter
        .save(&incomplete, base_model)
        .map_err(|source| TrainError::Adapter {
            action: "save",
            path: incomplete.clone(),
            source: Box::new(source),
        })?;
    flush_tree(&incomplete)?;
    Ok(incomplete)
}

/// Whether two flat directories hold the same files.
fn same_content(left: &Path, right: &Path) -> Result<bool, TrainError> {
    let files = |directory: &Path| -> Result<Vec<(std::ffi::OsString, Vec<u8>)>, TrainError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(TrainError::io("read", directory))? {
            let entry = entry.map_err(TrainError::io("read", directory))?;
            let path = entry.path();
            files.push((
                entry.file_name(),
                fs::read(&path).map_err(TrainError::io("read", &path))?,
            ));
        }
        files.sort();
        Ok(files)
    };
    Ok(files(left)? == files(right)?)
}

#[cfg(test)]
mod tests {
    use inference::model::LoraConfig;
    use tch::Device;

    use super::*;
    use crate::testing::tiny_config;

    #[test]
    fn a_version_is_published_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let adapters = folder.path().join("adapters");
        let lora = LoraConfig {
            rank: 2,
            ..LoraConfig::default()
        };
        let adapter = |seed| LoraAdapter::new(&lora, &tiny_config(), seed, Device::Cpu);
        let publish = |seed| publish_directory(&adapter(seed), "base", &adapters, PolicyVersion(3)).unwrap();
        let names = || {
            let mut names: Vec<String> = fs::read_dir(&adapters)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(publish(1), adapters.join("policy@3"));
        publish(1);
        assert_eq!(names(), ["policy@3"]);
        publish(2);
        assert_eq!(names(), ["policy@3", "policy@3.superseded-1"]);
        let read = |name: &str| LoraAdapter::load(&adapters.join(name), &tiny_config(), Device::Cpu).unwrap();
        assert_eq!(read("policy@3").parameters()[0].1, adapter(2).parameters()[0].1);
        assert_eq!(
            read("policy@3.superseded-1").parameters()[0].1,
            adapter(1).parameters()[0].1
        );
    }
}
