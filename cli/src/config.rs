//! The configuration file of a training run: every section, every default with its reason.
//!
//! A file is read as it is written ([`RunConfig::load`] in `load.rs`), unknown keys are refused with their line, and
//! [`RunConfig::validate`] checks what types can't say. Paths and commands may use `{config_dir}`, the
//! folder of the file; commands also `{trainyard}` (the running executable), and an MCP server's command
//! `{weather_url}` (the weather service that the run uses).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

mod load;
mod trainer_settings;

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
    /// Wall-clock limit of the whole run in minutes; GRPO ends early enough for the last evaluation, with a step of fewer groups if
    /// a whole one would not fit. 0: none.
    pub(crate) time_limit_minutes: f64,
}

/// `runs/` below the working directory, which git ignores; seed 1 and no limit, since both are a person's choice.
impl Default for RunSection {
    fn default() -> Self {
        Self {
            output: "runs".into(),
            name: "run".into(),
            seed: 1,
            time_limit_minutes: 0.0,
        }
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

/// What every machine has.
fn default_device() -> String {
    "cpu".into()
}

/// Engine and trainer agree to 1e-4 in it; CPUs gain nothing from bfloat16.
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

/// For some hundred million parameters on a few cores. 512 tokens a pass read a whole prompt of the demo (tools and
/// question, about 400 tokens) in one step without holding up running answers for longer; 32 sequences are the default
/// rollout concurrency, and more gain nothing where cores and not memory bound the speed; 24 576 tokens hold these 32 at
/// 768 tokens each (1.1 GB); 2048 tokens are four times an episode of the demo.
impl Default for EngineSection {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_sequences: 32,
            kv_cache_tokens: 24_576,
            max_model_len: 2048,
        }
    }
}

/// `[proxy]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProxySection {
    /// Address that agents use; port 0 picks a free one.
    pub(crate) listen: String,
}

/// Loopback, since agents run on this machine; a free port, so that runs don't collide.
impl Default for ProxySection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".into(),
        }
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

/// Any number; fixed, so that held-out results of different runs are of the same questions.
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

/// Thirty times an ordinary episode on 2 busy cores: catches what hangs, and never what is slow.
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
    /// Temperature of the last episode of each group; those before it are spread evenly between `temperature` and this. A group of a
    /// policy that is sure of a wrong answer then still tries others. Without it all have `temperature`.
    pub(crate) exploration_temperature: Option<f64>,
}

impl RolloutSection {
    /// The sampling temperature of a group's episode `member`, from 0.
    pub(crate) fn temperature_of(&self, member: usize, group_size: usize) -> f64 {
        let share = member as f64 / group_size.saturating_sub(1).max(1) as f64;
        let highest = self.exploration_temperature.unwrap_or(self.temperature);
        self.temperature + share * (highest - self.temperature)
    }
}

/// 32 episodes at a time fill the engine's batch while some of them wait for tools; 96 tokens are twice the longest
/// right answer or tool call of the demo; at temperature 1 the tokens come from the policy that the loss speaks of.
impl Default for RolloutSection {
    fn default() -> Self {
        Self {
            concurrency: 32,
            max_tokens: 96,
            temperature: 1.0,
            exploration_temperature: None,
        }
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
    /// AdamW's learning rate in the first step of the warm start; it falls linearly towards 0.
    pub(crate) learning_rate: f64,
}

/// 128 demonstrations in 16 steps: nearly half of the weather questions are right after them. The rate is ten times
/// GRPO's, since every token of a demonstration is right, and falls to 0, so that the last steps settle.
impl Default for WarmStartSection {
    fn default() -> Self {
        Self {
            steps: 16,
            demonstrations_per_step: 8,
            learning_rate: 2e-3,
        }
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

/// Which tokens a reward is credited to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CreditName {
    /// All of an episode's, as in GRPO.
    #[default]
    Episode,
    /// Those at which a group's episodes part.
    Branch,
}

/// How token losses are averaged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AggregationName {
    /// Every sampled token alike: long episodes weigh more.
    #[default]
    TokenMean,
    /// Every episode alike.
    SequenceMean,
}

/// What the learning rate does after the warm-up.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScheduleName {
    /// It stays.
    #[default]
    Constant,
    /// It falls linearly from the first step, to reach 0 after the last of `steps`, or after the last that the run's time limit allows.
    Linear,
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
    /// What the learning rate does then.
    pub(crate) schedule: ScheduleName,
    /// Policy loss.
    pub(crate) loss: LossName,
    /// Lower bound of the importance ratio is 1 − clip_low.
    pub(crate) clip_low: f64,
    /// Upper bound is 1 + clip_high.
    pub(crate) clip_high: f64,
    /// Divide a group's advantages by their standard deviation.
    pub(crate) scale_rewards: bool,
    /// Which tokens a reward is credited to.
    pub(crate) credit: CreditName,
    /// Factor of advantages below zero: 1 is GRPO, 0 learns from the better episodes of each group only.
    pub(crate) negative_weight: f64,
    /// Added to the advantage of right episodes (reward 1), so that what the policy knows is held on to.
    pub(crate) success_weight: f64,
    /// Trajectories whose advantage is nearer to 0 are left out: they cost as much as others and say little.
    pub(crate) min_advantage: f64,
    /// Right episodes (reward 1) of each kind of scenario that a step trains on: what goes beyond is set aside, what is
    /// lacking comes from earlier steps. 0: the step's groups as they are.
    pub(crate) right_per_kind: usize,
    /// How token losses are averaged.
    pub(crate) aggregation: AggregationName,
    /// Optimiser updates made with one step's groups.
    pub(crate) updates_per_batch: usize,
    /// How often a step goes through its groups.
    pub(crate) epochs_per_batch: usize,
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

/// - 8 groups of 8: half of the groups give no gradient (all right or all wrong), and the rest must still outvote noise.
/// - Learning rate 2e-4: 8e-4 unlearnt within 10 steps on a 135M model. Two steps of warm-up: AdamW's first update moves
///   every parameter by the full rate, however noisy its gradient.
/// - `clip_low` 0.2, `clip_high` 0.28: the asymmetric bounds of DAPO, which leave rare right tokens room to grow.
/// - One update a batch: rollouts are cheap beside what a second, off-policy update risks.
/// - Rank 16, alpha 32: enough for a narrow task (rank 16 learnt it in a probe), at PEFT's usual scale of 2.
/// - Norm 1: bounds the step that a single odd group makes. No weight decay: adapters of a short run stay small.
/// - 1024 distinct tokens a pass: less than 1 GB of activations for 135M parameters in float32.
/// - Half of a group may fail before the comparison says too little.
impl Default for TrainerSection {
    fn default() -> Self {
        Self {
            steps: 24,
            groups_per_step: 8,
            group_size: 8,
            learning_rate: 2e-4,
            warmup_steps: 2,
            schedule: ScheduleName::Constant,
            loss: LossName::Grpo,
            clip_low: 0.2,
            clip_high: 0.28,
            scale_rewards: true,
            credit: CreditName::Episode,
            negative_weight: 1.0,
            success_weight: 0.0,
            min_advantage: 0.0,
            right_per_kind: 0,
            aggregation: AggregationName::TokenMean,
            updates_per_batch: 1,
            epochs_per_batch: 1,
            rank: 16,
            alpha: 32.0,
            max_grad_norm: 1.0,
            weight_decay: 0.0,
            micro_batch_tokens: 1024,
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

/// A floor of 0.02 is a twelfth of the most that p(1 − p) gives: solved and hopeless scenarios come back now and then.
impl Default for SelectionSection {
    fn default() -> Self {
        Self {
            by: SelectionBy::PassRate,
            floor: 0.02,
        }
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

/// 88 scenarios give a success rate to ±10 points (95 %) in about a minute; none in between, since each costs the time of
/// several steps.
impl Default for EvaluationSection {
    fn default() -> Self {
        Self {
            scenarios: 88,
            base: true,
            every: 0,
        }
    }
}
