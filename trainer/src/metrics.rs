//! What a step reports. The fields' names are the metrics' names in files and on the terminal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Why a group or a trajectory was not trained on. Each one that is left out counts under exactly one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeftOut {
    /// Group: all rewards are equal, so nothing tells a better episode from a worse one.
    ZeroVariance,
    /// Group: fewer than two episodes, so there is nothing to compare.
    FewerThanTwoEpisodes,
    /// Group: a reward is NaN or infinite.
    NonFiniteReward,
    /// Group: it has different rewards, but none of its trajectories can be trained on (they are counted by their own
    /// reasons) or only those whose reward is the mean.
    NoTrainableTrajectory,
    /// Trajectory: the policy sampled none of its tokens.
    NoSampledToken,
    /// Trajectory: a sampled token has no usable behaviour logprob.
    MissingBehaviourLogprobs,
    /// Trajectory: longer than the limit.
    TooLong,
    /// Trajectory: its advantage is 0, since its reward is the group's mean or too near to it, or below it where worse
    /// episodes have no weight.
    ZeroAdvantage,
}

impl LeftOut {
    /// The reason's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroVariance => "zero_variance",
            Self::FewerThanTwoEpisodes => "fewer_than_two_episodes",
            Self::NonFiniteReward => "non_finite_reward",
            Self::NoTrainableTrajectory => "no_trainable_trajectory",
            Self::NoSampledToken => "no_sampled_token",
            Self::MissingBehaviourLogprobs => "missing_behaviour_logprobs",
            Self::TooLong => "too_long",
            Self::ZeroAdvantage => "zero_advantage",
        }
    }
}

/// Report of one step. Means are over (trajectory, sampled token) pairs unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Number of this step, counted from 1.
    pub step: u64,
    /// Optimiser updates made; 0 when nothing could be trained on.
    pub updates: usize,
    /// Updates dropped because the gradient was NaN or infinite; the weights stayed as they were.
    pub updates_non_finite: usize,
    /// Mean loss of the updates.
    pub loss: f64,
    /// Mean global gradient norm of the updates, before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step's first update.
    pub learning_rate: f64,
    /// Groups trained on.
    pub groups: usize,
    /// Groups left out, by reason.
    pub groups_left_out: BTreeMap<String, usize>,
    /// Trajectories trained on.
    pub trajectories: usize,
    /// Trajectories left out, by reason.
    pub trajectories_left_out: BTreeMap<String, usize>,
    /// (Trajectory, sampled token) pairs in the loss.
    pub tokens_sampled: usize,
    /// Tokens of all trajectories trained on, as far as the loss depends on them.
    pub tokens_total: usize,
    /// Tokens that ran through the model: each prefix shared within a mini-batch counts once.
    pub tokens_distinct: usize,
    /// Largest |policy logprob − behaviour logprob| over the tokens that the current version sampled, before the first
    /// update: how far engine and trainer disagree. `None` when there was no such token.
    pub engine_trainer_max_abs_diff: Option<f64>,
    /// Number of pairs behind `engine_trainer_max_abs_diff`.
    pub engine_trainer_tokens: usize,
    /// Mean importance ratio policy / behaviour.
    pub ratio_mean: Option<f64>,
    /// Share of pairs whose ratio was clipped.
    pub clip_fraction: f64,
    /// KL(behaviour ‖ policy), k3 estimate: mean of ρ − 1 − log ρ.
    pub kl: Option<f64>,
    /// Mean entropy of the policy at sampled tokens, in nats.
    pub entropy: f64,
    /// Mean log-likelihood of the sampled tokens.
    pub logprob_mean: f64,
    /// Wall-clock seconds of the step.
    pub seconds: f64,
}

/// Sums from which a step's means are made.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermSums {
    pub(crate) terms: usize,
    pub(crate) with_behaviour: usize,
    pub(crate) ratio: f64,
    pub(crate) kl: f64,
    pub(crate) clipped: f64,
    pub(crate) entropy: f64,
    pub(crate) logprob: f64,
}

impl TermSums {
    pub(crate) fn write(&self, report: &mut StepReport) {
        let mean = |sum: f64, count: usize| if count == 0 { 0.0 } else { sum / count as f64 };
        report.tokens_sampled = self.terms;
        report.clip_fraction = mean(self.clipped, self.terms);
        report.entropy = mean(self.entropy, self.terms);
        report.logprob_mean = mean(self.logprob, self.terms);
        report.ratio_mean = (self.with_behaviour > 0).then(|| mean(self.ratio, self.with_behaviour));
        report.kl = (self.with_behaviour > 0).then(|| mean(self.kl, self.with_behaviour));
    }
}
