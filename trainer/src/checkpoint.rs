//! The full state of a trainer on disk: adapter, optimiser, counters, and whatever the caller adds.
//!
//! ```text
//! checkpoint/
//!   trainer.json            format, counters, seed, form of model and adapter, length of the other files, extra
//!   optimizer.safetensors   AdamW's moments
//!   adapter/                the adapter, as PEFT reads it
//! ```
//! The folder is replaced as a whole. A process killed in between leaves either the old or the new one; for the moment
//! between two renames the old one lies beside, and loading finds it there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use inference::model::{LoraAdapter, LoraConfig, ModelConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{Kind, Tensor};

use crate::durable::{beside, exists, flush_tree, prepare, remove, rename, write_file};
use crate::error::TrainError;
use crate::optimizer::AdamW;
use crate::step::Trainer;

const FORMAT: &str = "trainyard.checkpoint/1";
const STATE_FILE: &str = "trainer.json";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const ADAPTER_FOLDER: &str = "adapter";
/// Suffix of the old checkpoint while the new one takes its place.
const PREVIOUS: &str = "previous";

/// What must agree for a checkpoint to be continued.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Identity {
    vocab_size: i64,
    hidden_size: i64,
    intermediate_size: i64,
    n_layers: usize,
    n_heads: i64,
    n_kv_heads: i64,
    head_dim: i64,
    rank: i64,
    alpha: f64,
    target_modules: Vec<String>,
}

impl Identity {
    fn new(model: &ModelConfig, lora: &LoraConfig) -> Self {
        Self {
            vocab_size: model.vocab_size,
            hidden_size: model.hidden_size,
            intermediate_size: model.intermediate_size,
            n_layers: model.n_layers,
            n_heads: model.n_heads,
            n_kv_heads: model.n_kv_heads,
            head_dim: model.head_dim,
            rank: lora.rank,
            alpha: lora.alpha,
            target_modules: lora.target_modules.clone(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    format: String,
    identity: Identity,
    step: u64,
    grpo_steps: u64,
    seed: u64,
    optimizer_updates: i64,
    #[serde(default)]
    optimizer_changed_objective: bool,
    /// Length in bytes of every other file, by its path in the folder: tells a truncated one.
    files: BTreeMap<String, u64>,
    extra: Value,
}

impl Trainer {
    /// Whether [`load_checkpoint`](Self::load_checkpoint) would find one at `directory`, also when the process that saved
    /// the last one died between its renames.
    ///
    /// # Errors
    /// It can't be looked for.
    pub fn has_checkpoint(directory: &Path) -> Result<bool, TrainError> {
        Ok(exists(directory)? || exists(&beside(directory, PREVIOUS))?)
    }

    /// Writes a checkpoint to `directory`, replacing the one there. `extra` comes back from
    /// [`load_checkpoint`](Self::load_checkpoint): the store's cursor, the schedule, whatever belongs to the moment.
    ///
    /// # Errors
    /// Files can't be written; the old checkpoint is untouched then.
    pub fn save_checkpoint(&self, directory: &Path, extra: &Value) -> Result<(), TrainError> {
        let incomplete = prepare(directory)?;
        let adapter = incomplete.join(ADAPTER_FOLDER);
        self.adapter
            .save(&adapter, &self.config.base_model)
            .map_err(|source| TrainError::Adapter {
                action: "save",
                path: adapter.clone(),
                source: Box::new(source),
            })?;
        let moments: Vec<(String, Tensor)> = self
            .optimizer
            .state()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.to_device(tch::Device::Cpu).contiguous()))
            .collect();
        Tensor::write_safetensors(&moments, incomplete.join(OPTIMIZER_FILE))?;
        let mut files = BTreeMap::new();
        lengths(&incomplete, "", &mut files)?;
        let state = State {
            format: FORMAT.to_owned(),
            identity: Identity::new(self.model.config(), &self.config.lora),
            step: self.step,
            grpo_steps: self.grpo_steps,
            seed: self.seed,
            optimizer_updates: self.optimizer.updates(),
            optimizer_changed_objective: self.optimizer.has_changed_objective(),
            files,
            extra: extra.clone(),
        };
        let path = incomplete.join(STATE_FILE);
        let json = serde_json::to_vec_pretty(&state)
            .map_err(|error| TrainError::io("write", &path)(std::io::Error::other(error)))?;
        write_file(&path, &json)?;
        flush_tree(&incomplete)?;
        let previous = beside(directory, PREVIOUS);
        // A checkpoint in `previous` may be the only one, if the last save died between the renames.
        if exists(directory)? {
            remove(&previous)?;
            rename(directory, &previous)?;
        }
        rename(&incomplete, directory)?;
        remove(&previous)
    }

    /// Continues from a checkpoint of the same model and adapter form; returns its `extra`. On an error the trainer
    /// stays as it was.
    ///
    /// # Errors
    /// No checkpoint there, a damaged or truncated file, or a checkpoint of another model or adapter form, with the
    /// difference.
    pub fn load_checkpoint(&mut self, directory: &Path) -> Result<Value, TrainError> {
        let previous = beside(directory, PREVIOUS);
        let directory = if !exists(directory)? && exists(&previous)? {
            previous.as_path()
        } else {
            directory
        };
        let path = directory.join(STATE_FILE);
        let json = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => TrainError::NotACheckpoint {
                path: directory.to_owned(),
                reason: format!("it has no {STATE_FILE}"),
            },
            _ => TrainError::io("read", &path)(error),
        })?;
        let damaged = |path: &Path, reason: String| TrainError::DamagedCheckpoint {
            path: path.to_owned(),
            reason,
        };
        let state: State = serde_json::from_slice(&json).map_err(|error| damaged(&path, error.to_string()))?;
        if state.format != FORMAT {
            return Err(damaged(
                &path,
                format!("its format is {:?} instead of {FORMAT:?}", state.format),
            ));
        }
        let here = Identity::new(self.model.config(), &self.config.lora);
        if here != state.identity {
            return Err(TrainError::OtherCheckpoint {
                path: directory.to_owned(),
                difference: difference(&here, &state.identity),
            });
        }
        for (name, &expected) in &state.files {
            let path = directory.join(name);
            let length = fs::metadata(&path).map_err(TrainError::io("read", &path))?.len();
            if length != expected {
                return Err(damaged(&path, format!("it has {length} bytes instead of {expected}")));
            }
        }
        let folder = directory.join(ADAPTER_FOLDER);
        let mut adapter = LoraAdapter::load(&folder, self.model.config(), self.model.device()).map_err(|source| {
            TrainError::Adapter {
                action: "load",
                path: folder,
                source: Box::new(source),
            }
        })?;
        adapter.set_requires_grad(true);
        let path = directory.join(OPTIMIZER_FILE);
        let moments = Tensor::read_safetensors(&path).map_err(|error| damaged(&path, error.to_string()))?;
        let moments = moments
            .into_iter()
            .map(|(name, tensor)| (name, tensor.to_kind(Kind::Float)))
            .collect();
        let mut optimizer = AdamW::new(self.config.adam);
        optimizer
            .restore(
                state.optimizer_updates,
                state.optimizer_changed_objective,
                moments,
                &adapter.parameters(),
            )
            .map_err(|reason| damaged(&path, reason))?;
        self.adapter = adapter;
        self.optimizer = optimizer;
        self.step = state.step;
        self.grpo_steps = state.grpo_steps;
        self.seed = state.seed;
        Ok(state.extra)
    }
}

/// Collects the lengths of all files below `directory`.
fn lengths(directory: &Path, prefix: &str, files: &mut BTreeMap<String, u64>) -> Result<(), TrainError> {
    for entry in fs::read_dir(directory).map_err(TrainError::io("read", directory))? {
        let entry = entry.map_err(TrainError::io("read", directory))?;
        let metadata = entry.metadata().map_err(TrainError::io("read", directory))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if metadata.is_dir() {
            lengths(&entry.path(), &format!("{name}/"), files)?;
        } else {
            files.insert(name, metadata.len());
        }
    }
    Ok(())
}

/// The fields that differ.
fn difference(here: &impl Serialize, there: &impl Serialize) -> String {
    let (here, there) = (to_json(here), to_json(there));
    let Some(fields) = here.as_object() else {
        return String::new();
    };
    let differing: Vec<String> = fields
        .iter()
        .filter(|(name, value)| there.get(name.as_str()) != Some(*value))
        .map(|(name, value)| {
            format!(
                "{name} is {value} here and {} there",
                there.get(name.as_str()).unwrap_or(&Value::Null)
            )
        })
        .collect();
    differing.join(", ")
}

fn to_json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// How an adapter's form differs from the configured one, if it does. The order of the target modules is no difference.
pub(crate) fn adapter_difference(here: &LoraConfig, there: &LoraConfig) -> Option<String> {
    #[derive(PartialEq, Serialize)]
    struct Form {
        rank: i64,
        alpha: f64,
        target_modules: Vec<String>,
    }
    let form = |config: &LoraConfig| {
        let mut target_modules = config.target_modules.clone();
        target_modules.sort_unstable();
        Form {
            rank: config.rank,
            alpha: config.alpha,
            target_modules,
        }
    };
    let (here, there) = (form(here), form(there));
    (here != there).then(|| difference(&here, &there))
}

#[cfg(test)]
#[path = "checkpoint/tests.rs"]
mod tests;
