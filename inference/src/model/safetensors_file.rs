//! Safetensors by memory map: one file, or the shards that an index names.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::Deserialize;
use tch::{Kind, Tensor};

use crate::InferenceError;

/// One mapped file with its parsed header.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Where the tensors' values begin.
    data_start: usize,
}

impl SafetensorsFile {
    /// Opens a file and checks that its header describes exactly the bytes that follow.
    pub(crate) fn open(path: &Path) -> Result<Self, InferenceError> {
        let read_error = |source| InferenceError::Read {
            path: path.to_owned(),
            source,
        };
        let damaged = |reason: String| InferenceError::DamagedFile {
            path: path.to_owned(),
            reason,
        };
        let file = File::open(path).map_err(read_error)?;
        if file.metadata().map_err(read_error)?.len() == 0 {
            return Err(damaged("it is empty".to_owned()));
        }
        #[expect(
            unsafe_code,
            reason = "a memory map of a file that nobody shortens while it is loaded"
        )]
        // SAFETY: the map is read-only; a process that truncates a model's file during loading would end this one
        // with SIGBUS, which is accepted as for every program that maps models.
        let map = unsafe { Mmap::map(&file) }.map_err(read_error)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            damaged(match error {
                safetensors::SafeTensorError::MetadataIncompleteBuffer => {
                    format!(
                        "its header doesn't describe its {} bytes (the end is missing)",
                        map.len()
                    )
                }
                other => format!("its header can't be read ({other})"),
            })
        })?;
        Ok(Self {
            path: path.to_owned(),
            map,
            metadata,
            data_start: header + 8,
        })
    }

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors' names, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = self.metadata.offset_keys();
        names.sort();
        names
    }

    /// Copies a tensor out of the file in the type that it has there; `None` if the file has none of this name.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Tensor>, InferenceError> {
        let Some(info) = self.metadata.info(name) else {
            return Ok(None);
        };
        let kind = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            Dtype::F64 => Kind::Double,
            other => {
                return Err(InferenceError::Tensor {
                    path: self.path.clone(),
                    tensor: name.to_owned(),
                    reason: format!("has type {other:?}, supported are F32, F16, BF16 and F64"),
                });
            }
        };
        let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
        let (start, end) = info.data_offsets;
        let bytes = &self.map[self.data_start + start..self.data_start + end];
        Ok(Some(Tensor::f_from_data_size(bytes, &shape, kind)?))
    }
}

/// The weights of a Hugging Face folder.
#[derive(Debug)]
pub(super) struct SafetensorsFolder {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Tensor name → index of its file.
    places: BTreeMap<String, usize>,
    taken: HashSet<String>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsFolder {
    pub(super) fn open(folder: &Path) -> Result<Self, InferenceError> {
        let index_path = folder.join("model.safetensors.index.json");
        let files = match std::fs::read_to_string(&index_path) {
            Ok(text) => {
                let index: ShardIndex = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(
                    &text,
                ))
                .map_err(|source| InferenceError::Json {
                    path: index_path.clone(),
                    source,
                })?;
                return Self::open_shards(folder, &index_path, &index);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                vec![SafetensorsFile::open(&folder.join("model.safetensors"))?]
            }
            Err(source) => {
                return Err(InferenceError::Read {
                    path: index_path,
                    source,
                });
            }
        };
        let places = files[0].names().into_iter().map(|name| (name, 0)).collect();
        Ok(Self {
            path: folder.to_owned(),
            files,
            places,
            taken: HashSet::new(),
        })
    }

    fn open_shards(folder: &Path, index_path: &Path, index: &ShardIndex) -> Result<Self, InferenceError> {
        let mut names: Vec<&String> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        let mut files = Vec::new();
        let mut places = BTreeMap::new();
        for name in names {
            if Path::new(name)
                .file_name()
                .is_none_or(|file_name| file_name != name.as_str())
            {
                return Err(InferenceError::DamagedFile {
                    path: index_path.to_owned(),
                    reason: format!("it names the shard `{name}`, which isn't a plain file name"),
                });
            }
            let file = SafetensorsFile::open(&folder.join(name))?;
            for tensor in file.names() {
                if index.weight_map.get(&tensor) != Some(name) {
                    return Err(InferenceError::Tensor {
                        path: file.path().to_owned(),
                        tensor,
                        reason: format!("isn't in this shard by {}", index_path.display()),
                    });
                }
                places.insert(tensor, files.len());
            }
            files.push(file);
        }
        if let Some((tensor, shard)) = index
            .weight_map
            .iter()
            .find(|(tensor, _)| !places.contains_key(*tensor))
        {
            return Err(InferenceError::Tensor {
                path: folder.join(shard),
                tensor: tensor.clone(),
                reason: format!("is missing, though {} places it here", index_path.display()),
            });
        }
        Ok(Self {
            path: folder.to_owned(),
            files,
            places,
            taken: HashSet::new(),
        })
    }

    /// Reads a tensor, which must have the expected shape, in the type that it has in the file.
    pub(super) fn take(&mut self, name: &str, shape: &[i64]) -> Result<Tensor, InferenceError> {
        let file = match self.places.get(name) {
            Some(&index) => &self.files[index],
            None => {
                let path = if let [file] = self.files.as_slice() {
                    file.path()
                } else {
                    &self.path
                };
                return Err(InferenceError::Tensor {
                    path: path.to_owned(),
                    tensor: name.to_owned(),
                    reason: format!("is missing, expected with shape {shape:?}"),
                });
            }
        };
        let tensor = file.read(name)?.filter(|tensor| tensor.size() == shape);
        let Some(tensor) = tensor else {
            let found = file
                .metadata
                .info(name)
                .map(|info| info.shape.clone())
                .unwrap_or_default();
            return Err(InferenceError::Tensor {
                path: file.path().to_owned(),
                tensor: name.to_owned(),
                reason: format!("has shape {found:?}, expected {shape:?}"),
            });
        };
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }

    /// The first tensor that nobody took and that isn't a buffer of old checkpoints or the copy of a tied head.
    pub(super) fn finish(&self, tie_word_embeddings: bool) -> Result<(), InferenceError> {
        let expected = |name: &str| {
            self.taken.contains(name)
                || name.ends_with(".rotary_emb.inv_freq")
                || (tie_word_embeddings && name == "lm_head.weight")
        };
        let superfluous = self.places.iter().find(|(name, _)| !expected(name));
        match superfluous {
            None => Ok(()),
            Some((name, &index)) => Err(InferenceError::Tensor {
                path: self.files[index].path().to_owned(),
                tensor: name.clone(),
                reason: "belongs to no part of the model that config.json describes".to_owned(),
            }),
        }
    }
}
