//! `[trainer]` in the trainer's own terms.

use std::path::Path;

use trainer::{RawTrainerConfig, TrainerConfig};

use super::{AggregationName, CreditName, LossName, ScheduleName, TrainerSection};
use crate::failure::{UsageError, chain};

impl TrainerSection {
    /// The trainer's settings; `model` is written into the adapter's files.
    ///
    /// # Errors
    /// A value is out of its range.
    pub(crate) fn settings(&self, model: &Path) -> Result<TrainerConfig, UsageError> {
        let raw = RawTrainerConfig {
            base_model: model.to_string_lossy().into_owned(),
            rank: self.rank,
            alpha: self.alpha,
            learning_rate: self.learning_rate,
            warmup_steps: self.warmup_steps as u64,
            decay_steps: match self.schedule {
                ScheduleName::Constant => 0,
                ScheduleName::Linear => self.steps as u64,
            },
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
            loss: match self.loss {
                LossName::Grpo => trainer::config::LossName::Grpo,
                LossName::Cispo => trainer::config::LossName::Cispo,
            },
            clip_low: self.clip_low,
            clip_high: self.clip_high,
            scale_rewards: self.scale_rewards,
            credit: match self.credit {
                CreditName::Episode => trainer::advantage::Credit::Episode,
                CreditName::Branch => trainer::advantage::Credit::Branch,
            },
            negative_weight: self.negative_weight,
            success_weight: self.success_weight,
            min_advantage: self.min_advantage,
            aggregation: match self.aggregation {
                AggregationName::TokenMean => trainer::config::AggregationName::TokenMean,
                AggregationName::SequenceMean => trainer::config::AggregationName::SequenceMean,
            },
            updates_per_batch: self.updates_per_batch,
            epochs_per_batch: self.epochs_per_batch,
            micro_batch_tokens: self.micro_batch_tokens,
            ..RawTrainerConfig::default()
        };
        TrainerConfig::try_from(raw).map_err(|error| UsageError::new(chain(&error)))
    }
}
