//! Settings of the trainer: raw as written by the user, valid as used by the code.

use inference::model::LoraConfig;
use serde::{Deserialize, Serialize};

use crate::advantage::{AdvantageSettings, Credit};
use crate::error::TrainError;
use crate::loss::{Aggregation, LossKind};
use crate::optimizer::Schedule;

/// Name of a loss in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossName {
    /// Token ratio, clipped where it would move the policy further.
    #[default]
    Grpo,
    /// Clipped ratio as a constant weight.
    Cispo,
}

/// Name of an aggregation in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregationName {
    /// Every sampled token of a mini-batch alike.
    #[default]
    TokenMean,
    /// Every trajectory alike.
    SequenceMean,
    /// Every token weighs 1 / (trajectories × `aggregation_constant`).
    Constant,
}

/// The settings as written. Each has a default; unknown keys are refused.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawTrainerConfig {
    /// Name of the base model, written into the adapter's files.
    pub base_model: String,
    /// LoRA rank.
    pub rank: i64,
    /// LoRA alpha; the update is scaled by alpha / rank.
    pub alpha: f64,
    /// AdamW's learning rate in GRPO steps.
    pub learning_rate: f64,
    /// GRPO steps over which the learning rate rises to its full value.
    pub warmup_steps: u64,
    /// GRPO steps after which the learning rate has fallen linearly to 0; 0: it stays.
    pub decay_steps: u64,
    /// AdamW's decay rate of the gradient's mean.
    pub beta1: f64,
    /// AdamW's decay rate of the squared gradient's mean.
    pub beta2: f64,
    /// AdamW's constant in the denominator.
    pub epsilon: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Bound of the gradient's global norm.
    pub max_grad_norm: f64,
    /// Policy loss.
    pub loss: LossName,
    /// Lower bound of the importance ratio is 1 − clip_low.
    pub clip_low: f64,
    /// Upper bound of the importance ratio is 1 + clip_high.
    pub clip_high: f64,
    /// How token losses are averaged.
    pub aggregation: AggregationName,
    /// Divisor of the `constant` aggregation, in tokens.
    pub aggregation_constant: f64,
    /// Divide a group's advantages by their standard deviation.
    pub scale_rewards: bool,
    /// Which tokens a reward is credited to.
    pub credit: Credit,
    /// Factor of advantages below zero, 0 to 1.
    pub negative_weight: f64,
    /// Added to the advantage of episodes whose reward is at least `success_reward`; 0 or more.
    pub success_weight: f64,
    /// See `success_weight`.
    pub success_reward: f64,
    /// Trajectories whose advantage is nearer to 0 are left out; 0 or more.
    pub min_advantage: f64,
    /// Mini-batches that a step is dealt into, each with its share of every group; one optimiser update each.
    pub updates_per_batch: usize,
    /// How often a step goes through its groups.
    pub epochs_per_batch: usize,
    /// Distinct tokens that run forward and backward together: bounds memory (about 1.5 MB a token at 135M parameters, on
    /// top of the same for the prefix that all trajectories share).
    pub micro_batch_tokens: usize,
    /// Positions whose logits are held at once.
    pub logits_chunk: usize,
    /// Trajectories with more tokens are left out.
    pub max_trajectory_tokens: usize,
}

impl Default for RawTrainerConfig {
    fn default() -> Self {
        Self {
            base_model: String::new(),
            rank: 16,
            alpha: 32.0,
            learning_rate: 2e-4,
            warmup_steps: 0,
            decay_steps: 0,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            loss: LossName::Grpo,
            clip_low: 0.2,
            clip_high: 0.28,
            aggregation: AggregationName::TokenMean,
            aggregation_constant: 256.0,
            scale_rewards: true,
            credit: Credit::Episode,
            negative_weight: 1.0,
            success_weight: 0.0,
            success_reward: 1.0,
            min_advantage: 0.0,
            updates_per_batch: 1,
            epochs_per_batch: 1,
            micro_batch_tokens: 1024,
            logits_chunk: 128,
            max_trajectory_tokens: 32_768,
        }
    }
}

/// Valid settings.
#[derive(Clone, Debug)]
pub struct TrainerConfig {
    pub(crate) base_model: String,
    pub(crate) lora: LoraConfig,
    pub(crate) learning_rate: f64,
    pub(crate) schedule: Schedule,
    pub(crate) adam: crate::optimizer::AdamWConfig,
    pub(crate) max_grad_norm: f64,
    pub(crate) loss: LossKind,
    pub(crate) aggregation: Aggregation,
    pub(crate) advantage: AdvantageSettings,
    pub(crate) updates_per_batch: usize,
    pub(crate) epochs_per_batch: usize,
    pub(crate) micro_batch_tokens: usize,
    pub(crate) logits_chunk: i64,
    pub(crate) max_trajectory_tokens: usize,
}

impl TryFrom<RawTrainerConfig> for TrainerConfig {
    type Error = TrainError;

    fn try_from(raw: RawTrainerConfig) -> Result<Self, TrainError> {
        require("rank", raw.rank, raw.rank > 0, "it must be at least 1")?;
        positive("alpha", raw.alpha)?;
        positive("learning_rate", raw.learning_rate)?;
        share("beta1", raw.beta1)?;
        share("beta2", raw.beta2)?;
        positive("epsilon", raw.epsilon)?;
        require(
            "weight_decay",
            raw.weight_decay,
            raw.weight_decay >= 0.0 && raw.weight_decay.is_finite(),
            "it must be 0 or more",
        )?;
        positive("max_grad_norm", raw.max_grad_norm)?;
        require(
            "clip_low",
            raw.clip_low,
            (0.0..=1.0).contains(&raw.clip_low),
            "it must lie between 0 and 1",
        )?;
        require(
            "clip_high",
            raw.clip_high,
            raw.clip_high >= 0.0 && raw.clip_high.is_finite(),
            "it must be 0 or more",
        )?;
        require(
            "negative_weight",
            raw.negative_weight,
            (0.0..=1.0).contains(&raw.negative_weight),
            "it must lie between 0 and 1",
        )?;
        require(
            "success_weight",
            raw.success_weight,
            raw.success_weight >= 0.0 && raw.success_weight.is_finite(),
            "it must be 0 or more",
        )?;
        require(
            "min_advantage",
            raw.min_advantage,
            raw.min_advantage >= 0.0 && raw.min_advantage.is_finite(),
            "it must be 0 or more",
        )?;
        positive("aggregation_constant", raw.aggregation_constant)?;
        at_least_one("updates_per_batch", raw.updates_per_batch)?;
        at_least_one("epochs_per_batch", raw.epochs_per_batch)?;
        at_least_one("micro_batch_tokens", raw.micro_batch_tokens)?;
        at_least_one("logits_chunk", raw.logits_chunk)?;
        at_least_one("max_trajectory_tokens", raw.max_trajectory_tokens)?;
        let RawTrainerConfig {
            clip_low, clip_high, ..
        } = raw;
        Ok(Self {
            lora: LoraConfig {
                rank: raw.rank,
                alpha: raw.alpha,
                ..LoraConfig::default()
            },
            base_model: raw.base_model,
            learning_rate: raw.learning_rate,
            schedule: Schedule {
                warmup_steps: raw.warmup_steps,
                decay_steps: raw.decay_steps,
            },
            adam: crate::optimizer::AdamWConfig {
                beta1: raw.beta1,
                beta2: raw.beta2,
                epsilon: raw.epsilon,
                weight_decay: raw.weight_decay,
            },
            max_grad_norm: raw.max_grad_norm,
            loss: match raw.loss {
                LossName::Grpo => LossKind::Grpo { clip_low, clip_high },
                LossName::Cispo => LossKind::Cispo { clip_low, clip_high },
            },
            aggregation: match raw.aggregation {
                AggregationName::TokenMean => Aggregation::TokenMean,
                AggregationName::SequenceMean => Aggregation::SequenceMean,
                AggregationName::Constant => Aggregation::Constant(raw.aggregation_constant),
            },
            advantage: AdvantageSettings {
                credit: raw.credit,
                scale_rewards: raw.scale_rewards,
                negative_weight: raw.negative_weight,
                success_weight: raw.success_weight,
                success_reward: raw.success_reward,
                min_advantage: raw.min_advantage,
            },
            updates_per_batch: raw.updates_per_batch,
            epochs_per_batch: raw.epochs_per_batch,
            micro_batch_tokens: raw.micro_batch_tokens,
            logits_chunk: i64::try_from(raw.logits_chunk).unwrap_or(i64::MAX),
            max_trajectory_tokens: raw.max_trajectory_tokens,
        })
    }
}

fn require(
    field: &'static str,
    value: impl std::fmt::Display,
    valid: bool,
    expected: &'static str,
) -> Result<(), TrainError> {
    if valid {
        Ok(())
    } else {
        Err(TrainError::Config {
            field,
            value: value.to_string(),
            expected,
        })
    }
}

fn positive(field: &'static str, value: f64) -> Result<(), TrainError> {
    require(
        field,
        value,
        value > 0.0 && value.is_finite(),
        "it must be a positive number",
    )
}

fn share(field: &'static str, value: f64) -> Result<(), TrainError> {
    require(
        field,
        value,
        (0.0..1.0).contains(&value),
        "it must be at least 0 and below 1",
    )
}

fn at_least_one(field: &'static str, value: usize) -> Result<(), TrainError> {
    require(field, value, value > 0, "it must be at least 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_bad_values_are_named() {
        TrainerConfig::try_from(RawTrainerConfig::default()).unwrap();
        let check = |raw: RawTrainerConfig, message: &str| {
            assert_eq!(TrainerConfig::try_from(raw).unwrap_err().to_string(), message);
        };
        check(
            RawTrainerConfig {
                rank: 0,
                ..Default::default()
            },
            "trainer.rank is 0; it must be at least 1",
        );
        check(
            RawTrainerConfig {
                beta2: 1.0,
                ..Default::default()
            },
            "trainer.beta2 is 1; it must be at least 0 and below 1",
        );
        check(
            RawTrainerConfig {
                learning_rate: f64::NAN,
                ..Default::default()
            },
            "trainer.learning_rate is NaN; it must be a positive number",
        );
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<RawTrainerConfig>(r#"{"lerning_rate": 1}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("lerning_rate"), "{error}");
    }
}
