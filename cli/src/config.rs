//! The configuration file of a training run: every section, every default with its reason.
//!
//! A file is read as it is written ([`RunConfig::load`]), unknown keys are refused with their line, and
//! [`RunConfig::validate`] checks what types can't say. Paths and commands may use `{config_dir}`, the
//! folder of the file; commands also `{trainyard}` (the running executable), and an MCP server's command
//! `{weather_url}` (the weather service that the run uses).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::UsageError;

/// Everything that a run is made of.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunConfig {
    /// Where results go, and the seed.
    #[serde(default)]
    pub(crate) run: RunSection,
    /// The policy's base model.
    pub(crate) model: ModelSection,
    /// The embedded engine.
    #[serde(default)]
    pub(crate) engine: EngineSection,
    /// The recording gateway.
    #[serde(default)]
    pub(crate) proxy: ProxySection,
    /// Tool servers, one isolated process an episode.
    #[serde(default)]
    pub(crate) mcp_servers: Vec<McpServerSection>,
    /// Scenarios and reward.
    pub(crate) environment: EnvironmentSection,
    /// The agent's command.
    pub(crate) agent: AgentSection,
    /// How episodes are run.
    #[serde(default)]
    pub(crate) rollout: RolloutSection,
    /// Supervised steps on a teacher's episodes before GRPO.
    #[serde(default)]
    pub(crate) warm_start: WarmStartSection,
    /// GRPO.
    #[serde(default)]
    pub(crate) trainer: TrainerSection,
    /// Which scenarios a step rolls out.
    #[serde(default)]
    pub(crate) selection: SelectionSection,
    /// Held-out evaluation.
    #[serde(default)]
    pub(crate) evaluation: EvaluationSection,
}

/// `[run]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunSection {
    /// Folder that receives one folder a run.
    pub(crate) output: PathBuf,
    /// First part of the run folder's name.
    pub(crate) name: String,
    /// Seed of adapter initialisation, scenario choice and sampling.
    pub(crate) seed: u64,
    /// Wall-clock limit of the whole run in minutes; GRPO ends early enough for the last evaluation. 0: none.
    pub(crate) time_limit_minutes: f64,
}

impl Default for RunSection {
    fn default() -> Self {
        Self { output: "runs".into(), name: "run".into(), seed: 1, time_limit_minutes: 0.0 }
    }
}

/// `[model]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelSection {
    /// A Hugging Face folder or a GGUF file.
    pub(crate) path: PathBuf,
    /// `cpu` or `cuda:N`.
    #[serde(default = "default_device")]
    pub(crate) device: String,
    /// `float32` or `bfloat16`.
    #[serde(default = "default_dtype")]
    pub(crate) dtype: String,
}

fn default_device() -> String {
    "cpu".into()
}

fn default_dtype() -> String {
    "float32".into()
}

/// `[engine]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EngineSection {
    /// Most tokens (decoded and prompt) that one forward pass computes: bounds the delay of a decode step.
    pub(crate) max_batch_tokens: usize,
    /// Most sequences decoded together.
    pub(crate) max_sequences: usize,
    /// Tokens that the KV cache holds, shared prefixes counted once (SmolLM2-135M: 46 KB a token in float32).
    pub(crate) kv_cache_tokens: usize,
    /// Longest prompt and answer together.
    pub(crate) max_model_len: usize,
}

impl Default for EngineSection {
    fn default() -> Self {
        Self { max_batch_tokens: 512, max_sequences: 32, kv_cache_tokens: 24_576, max_model_len: 2048 }
    }
}

/// `[proxy]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProxySection {
    /// Address that agents use; port 0 picks a free one.
    pub(crate) listen: String,
}

impl Default for ProxySection {
    fn default() -> Self {
        Self { listen: "127.0.0.1:0".into() }
    }
}

/// `[[mcp_servers]]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpServerSection {
    /// Name in the agent's MCP configuration.
    pub(crate) name: String,
    /// A stdio MCP server.
    pub(crate) command: Vec<String>,
    /// Environment added to the server's allow-listed one.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
}

/// `[environment]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnvironmentSection {
    /// Built-in environment; `nws` is the one there is.
    pub(crate) name: String,
    /// Seed of the stand-in's weather and of the scenarios' wording. It isn't the run's seed, so that runs compare.
    #[serde(default = "default_environment_seed")]
    pub(crate) seed: u64,
    /// A scenario file (JSON lines) in place of the built-in scenarios.
    #[serde(default)]
    pub(crate) scenarios: Option<PathBuf>,
}

fn default_environment_seed() -> u64 {
    7
}

/// `[agent]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentSection {
    /// The agent's command; `{mcp_config}` stands for the file with its MCP servers.
    pub(crate) command: Vec<String>,
    /// Environment added to the allow-listed one.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// An episode that takes longer fails with cause `timeout`.
    #[serde(default = "default_time_limit")]
    pub(crate) time_limit_seconds: f64,
    /// `plain`: start the command for each episode. `fork`: a Python script's modules are loaded once and each
    /// episode is a fork of that process, which saves the start of the interpreter.
    #[serde(default)]
    pub(crate) launcher: Launcher,
    /// Modules that the fork launcher loads beside those that the script imports.
    #[serde(default)]
    pub(crate) preload: Vec<String>,
}

fn default_time_limit() -> f64 {
    180.0
}

/// How an agent's process is started.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Launcher {
    /// One start of the command an episode.
    #[default]
    Plain,
    /// Fork of a process that has the agent's modules loaded.
    Fork,
}

/// `[rollout]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RolloutSection {
    /// Episodes that run at the same time.
    pub(crate) concurrency: usize,
    /// Most tokens of one answer of the policy: an untrained policy may not end by itself.
    pub(crate) max_tokens: u32,
    /// Sampling temperature of training episodes. 1 is the policy itself, which GRPO's formulas assume.
    pub(crate) temperature: f64,
}

impl Default for RolloutSection {
    fn default() -> Self {
        Self { concurrency: 32, max_tokens: 96, temperature: 1.0 }
    }
}

/// `[warm_start]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WarmStartSection {
    /// Supervised steps; 0 turns the warm start off.
    pub(crate) steps: usize,
    /// Teacher episodes that one step trains on.
    pub(crate) demonstrations_per_step: usize,
    /// AdamW's learning rate in the warm start.
    pub(crate) learning_rate: f64,
}

impl Default for WarmStartSection {
    fn default() -> Self {
        Self { steps: 12, demonstrations_per_step: 8, learning_rate: 1e-3 }
    }
}

/// The kind of policy loss.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LossName {
    /// Token ratio with two clip bounds.
    #[default]
    Grpo,
    /// Clipped ratio as a constant weight of the log-likelihood.
    Cispo,
}

/// `[trainer]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrainerSection {
    /// GRPO steps: each rolls out, trains and publishes one adapter.
    pub(crate) steps: usize,
    /// Scenarios a step.
    pub(crate) groups_per_step: usize,
    /// Episodes of one scenario that are compared with each other.
    pub(crate) group_size: usize,
    /// AdamW's learning rate.
    pub(crate) learning_rate: f64,
    /// Steps over which the learning rate rises from 0.
    pub(crate) warmup_steps: usize,
    /// Policy loss.
    pub(crate) loss: LossName,
    /// Lower bound of the importance ratio is 1 − clip_low.
    pub(crate) clip_low: f64,
    /// Upper bound is 1 + clip_high.
    pub(crate) clip_high: f64,
    /// Divide a group's advantages by their standard deviation.
    pub(crate) scale_rewards: bool,
    /// Optimiser updates made with one step's groups.
    pub(crate) updates_per_batch: usize,
    /// LoRA rank.
    pub(crate) rank: i64,
    /// LoRA alpha; the update is scaled by alpha / rank.
    pub(crate) alpha: f64,
    /// Bound of the gradient's global norm.
    pub(crate) max_grad_norm: f64,
    /// AdamW's weight decay.
    pub(crate) weight_decay: f64,
    /// Distinct tokens of one forward and backward pass: bounds memory.
    pub(crate) micro_batch_tokens: usize,
    /// Groups with more failed episodes are left out.
    pub(crate) max_failed: usize,
}

impl Default for TrainerSection {
    fn default() -> Self {
        Self {
            steps: 24,
            groups_per_step: 8,
            group_size: 8,
            learning_rate: 2e-4,
            warmup_steps: 0,
            loss: LossName::Grpo,
            clip_low: 0.2,
            clip_high: 0.28,
            scale_rewards: true,
            updates_per_batch: 1,
            rank: 16,
            alpha: 32.0,
            max_grad_norm: 1.0,
            weight_decay: 0.0,
            micro_batch_tokens: 1536,
            max_failed: 4,
        }
    }
}

/// How a step's scenarios are drawn.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SelectionBy {
    /// Weight p(1 − p) of the recent pass rate p, plus a floor.
    #[default]
    PassRate,
    /// Every scenario alike.
    Uniform,
}

/// `[selection]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SelectionSection {
    /// Rule.
    pub(crate) by: SelectionBy,
    /// Weight that every scenario keeps, so that the always right and the always wrong come back.
    pub(crate) floor: f64,
}

impl Default for SelectionSection {
    fn default() -> Self {
        Self { by: SelectionBy::PassRate, floor: 0.02 }
    }
}

/// `[evaluation]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EvaluationSection {
    /// Held-out scenarios, taken evenly over the kinds; 0: all.
    pub(crate) scenarios: usize,
    /// Evaluate the untrained base model too.
    pub(crate) base: bool,
    /// Evaluate each N steps while training; 0: only before and after.
    pub(crate) every: usize,
}

impl Default for EvaluationSection {
    fn default() -> Self {
        Self { scenarios: 88, base: true, every: 0 }
    }
}

impl RunConfig {
    /// Reads and checks a file. `{config_dir}` is resolved here; relative paths are relative to the file's folder,
    /// but for `run.output`, which is relative to the working directory.
    ///
    /// # Errors
    /// A usage error that names the file, the line and the key.
    pub(crate) fn load(path: &Path) -> Result<Self, UsageError> {
        let text = std::fs::read_to_string(path).map_err(|source| {
            UsageError::new(format!("can't read the configuration {}: {source}", path.display()))
                .hint("pass a TOML file with -c; examples/nws/trainyard.toml is one")
        })?;
        let mut config: Self = toml::from_str(&text).map_err(|source| {
            UsageError::new(format!("{} is not a valid configuration\n{}", path.display(), source.to_string().trim_end()))
                .hint("correct the key or value at that line; every key is described in cli/src/config.rs")
        })?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = std::path::absolute(folder)
            .map_err(|source| UsageError::new(format!("can't resolve the folder of {}: {source}", path.display())))?;
        config.resolve(&folder);
        config.validate().map_err(|error| error.context(format!("in {}", path.display())))?;
        Ok(config)
    }

    fn resolve(&mut self, folder: &Path) {
        let text = folder.to_string_lossy().into_owned();
        let expand = |value: &mut String| *value = value.replace("{config_dir}", &text);
        self.agent.command.iter_mut().for_each(expand);
        self.agent.env.values_mut().for_each(expand);
        for server in &mut self.mcp_servers {
            server.command.iter_mut().for_each(expand);
            server.env.values_mut().for_each(expand);
        }
        let absolute = |path: &mut PathBuf| {
            *path = folder.join(path.to_string_lossy().replace("{config_dir}", &text));
        };
        absolute(&mut self.model.path);
        if let Some(path) = &mut self.environment.scenarios {
            absolute(path);
        }
    }

    fn validate(&self) -> Result<(), UsageError> {
        let positive = |name: &str, value: f64| {
            (value > 0.0 && value.is_finite())
                .then_some(())
                .ok_or_else(|| UsageError::new(format!("{name} is {value}; it must be above 0")))
        };
        positive("engine.max_batch_tokens", self.engine.max_batch_tokens as f64)?;
        positive("engine.max_sequences", self.engine.max_sequences as f64)?;
        positive("engine.kv_cache_tokens", self.engine.kv_cache_tokens as f64)?;
        positive("engine.max_model_len", self.engine.max_model_len as f64)?;
        positive("rollout.concurrency", self.rollout.concurrency as f64)?;
        positive("rollout.max_tokens", f64::from(self.rollout.max_tokens))?;
        positive("rollout.temperature", self.rollout.temperature)?;
        positive("agent.time_limit_seconds", self.agent.time_limit_seconds)?;
        positive("warm_start.learning_rate", self.warm_start.learning_rate)?;
        positive("warm_start.demonstrations_per_step", self.warm_start.demonstrations_per_step as f64)?;
        positive("trainer.learning_rate", self.trainer.learning_rate)?;
        positive("trainer.groups_per_step", self.trainer.groups_per_step as f64)?;
        positive("trainer.rank", self.trainer.rank as f64)?;
        positive("trainer.alpha", self.trainer.alpha)?;
        positive("trainer.updates_per_batch", self.trainer.updates_per_batch as f64)?;
        positive("trainer.micro_batch_tokens", self.trainer.micro_batch_tokens as f64)?;
        if self.trainer.group_size < 2 {
            return Err(UsageError::new(format!(
                "trainer.group_size is {}; episodes are compared within a group, so it must be at least 2",
                self.trainer.group_size
            )));
        }
        if self.agent.command.is_empty() {
            return Err(UsageError::new("agent.command is empty; give the command that starts your agent"));
        }
        if let Some(server) = self.mcp_servers.iter().find(|server| server.command.is_empty()) {
            return Err(UsageError::new(format!("the command of mcp server '{}' is empty", server.name)));
        }
        if self.environment.name != "nws" {
            return Err(UsageError::new(format!("there is no environment '{}'", self.environment.name))
                .hint("the built-in environment is 'nws'"));
        }
        if !matches!(self.model.dtype.as_str(), "float32" | "bfloat16") {
            return Err(UsageError::new(format!("model.dtype is '{}'; use float32 or bfloat16", self.model.dtype)));
        }
        if std::fs::metadata(&self.model.path).is_err() {
            return Err(UsageError::new(format!("there is no model at {}", self.model.path.display()))
                .hint("set model.path to a Hugging Face folder or a GGUF file; `make demo` fetches the demo's model"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> UsageError {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        RunConfig::load(&path).unwrap_err()
    }

    const REST: &str = "[model]\npath = \"nowhere\"\n[environment]\nname = \"nws\"\n[agent]\ncommand = [\"a\"]\n";

    #[test]
    fn unknown_key_is_named_with_its_line() {
        let message = check(&format!("{REST}[trainer]\nlerning_rate = 1\n")).to_string();
        assert!(message.contains("line 8") && message.contains("lerning_rate"), "{message}");
        assert!(message.contains("learning_rate"), "the known keys are listed: {message}");
    }

    #[test]
    fn a_missing_model_is_named() {
        let message = check(REST).to_string();
        assert!(message.contains("there is no model at") && message.contains("nowhere"), "{message}");
    }

    #[test]
    fn a_group_of_one_is_refused() {
        let message = check(&format!("{REST}[trainer]\ngroup_size = 1\n")).to_string();
        assert!(message.contains("group_size"), "{message}");
    }
}
