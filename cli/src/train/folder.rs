//! The folder of a run: its names, and the state that a later start goes on from.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trajectory::{GroupId, ScenarioId};

use super::evaluation::Evaluation;
use crate::config::RunConfig;
use crate::failure::UsageError;

/// Names inside a run's folder (DESIGN: what a run leaves for machines to read).
#[derive(Clone, Debug)]
pub(crate) struct RunFolder {
    root: PathBuf,
}

impl RunFolder {
    /// Makes the folder of a new run, named after the time; nothing is written before the configuration is valid.
    pub(crate) fn create(config: &RunConfig) -> anyhow::Result<Self> {
        let stamp = jiff::ZonedDateTime::now().strftime("%Y%m%d-%H%M%S").to_string();
        let name = format!("{}-{stamp}-seed{}", config.run.name, config.run.seed);
        let output = std::path::absolute(&config.run.output).context("the output folder's path")?;
        let root = output.join(name);
        std::fs::create_dir_all(&output).with_context(|| format!("can't create {}", output.display()))?;
        std::fs::create_dir(&root).with_context(|| format!("can't create {}", root.display()))?;
        std::fs::create_dir(root.join("adapters"))?;
        std::fs::write(root.join("config.toml"), toml::to_string(config)?)?;
        Ok(Self { root })
    }

    /// Opens the folder of an interrupted run, with its configuration.
    pub(crate) fn open(root: &Path) -> Result<(Self, RunConfig), UsageError> {
        let root =
            std::path::absolute(root).map_err(|error| UsageError::new(format!("{}: {error}", root.display())))?;
        let config = RunConfig::load(&root.join("config.toml"))
            .map_err(|error| error.context(format!("{} is not the folder of a run", root.display())))?;
        Ok((Self { root }, config))
    }

    /// The newest run below `output` that has no `summary.json` yet.
    pub(crate) fn newest_unfinished(output: &Path) -> Result<PathBuf, UsageError> {
        let entries = std::fs::read_dir(output)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        entries
            .filter(|path| path.join("config.toml").is_file() && !path.join("summary.json").is_file())
            .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
            .ok_or_else(|| {
                UsageError::new(format!("there is no interrupted run in {}", output.display())).hint(
                    "start one with `trainyard train -c FILE`, or name its folder: `trainyard train --resume FOLDER`",
                )
            })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("trajectories.db")
    }

    pub(crate) fn adapters(&self) -> PathBuf {
        self.root.join("adapters")
    }

    pub(crate) fn adapter(&self, version: u64) -> PathBuf {
        self.adapters().join(format!("policy@{version}"))
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    pub(crate) fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Removes adapters that were published after the checkpoint: the steps that made them are repeated.
    pub(crate) fn drop_adapters_after(&self, version: u64) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.adapters())?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let newer = name
                .strip_prefix("policy@")
                .map(|number| number.parse().is_ok_and(|number: u64| number > version));
            if newer.unwrap_or(true) {
                std::fs::remove_dir_all(entry.path())
                    .with_context(|| format!("can't remove {}", entry.path().display()))?;
            }
        }
        Ok(())
    }
}

/// How far a run is: kept in the trainer's checkpoint, so that it can never disagree with the weights.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct RunState {
    /// Version of the policy that is published.
    pub(crate) version: u64,
    /// GRPO steps done.
    pub(crate) step: usize,
    /// Held-out results of the base model.
    pub(crate) base: Option<Evaluation>,
    /// Held-out results after the warm start.
    pub(crate) warm_start: Option<Evaluation>,
    /// Held-out results after GRPO.
    pub(crate) grpo: Option<Evaluation>,
    /// Seconds of work of the earlier parts of this run.
    pub(crate) seconds: f64,
    /// Seconds that the GRPO steps so far took: what the time limit plans the next ones by.
    #[serde(default)]
    pub(crate) grpo_seconds: f64,
    /// The time limit made the last step the final one: the learning rate has come to its end.
    #[serde(default)]
    pub(crate) grpo_ended: bool,
    /// Largest |trainer − engine| log-probability difference of a sampled token.
    pub(crate) engine_trainer_max_abs_diff: f64,
    /// Peak memory of the process tree, bytes.
    pub(crate) peak_rss_bytes: u64,
    /// Episodes run so far.
    pub(crate) episodes: EpisodeCounts,
    /// What the last step still owes to store and metrics, or did owe when the checkpoint was written.
    #[serde(default)]
    pub(crate) unsettled: Option<Unsettled>,
}

/// A step that is in the checkpoint: from here on its groups count as trained. Told to the store and the metrics after the
/// checkpoint, and once more by a run that resumes from it, since a crash may have come in between.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Unsettled {
    /// Number of the step.
    pub(crate) step: u64,
    /// Its groups.
    pub(crate) group_ids: Vec<GroupId>,
    /// Its episodes: scenario, and whether it was solved.
    pub(crate) outcomes: Vec<(ScenarioId, bool)>,
    /// Its row of `metrics.jsonl`.
    pub(crate) metrics: Value,
}

/// Episodes of a run.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct EpisodeCounts {
    /// All.
    pub(crate) total: usize,
    /// With a failure cause.
    pub(crate) failed: usize,
    /// Recorded with a hole.
    pub(crate) tainted: usize,
}
