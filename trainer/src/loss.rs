//! Policy losses: [`LossInputs`] → [`LossOutputs`], one function a kind.
//!
//! Deviations from GRPO as published (arXiv 2402.03300), and where they come from:
//! - the bounds of the ratio are two numbers, so that the upper one can be wider ("clip-higher", DAPO, arXiv 2503.14476);
//! - no KL term in the loss; how far the policy has moved is a metric;
//! - how token losses are averaged is a weight of each token ([`Aggregation`]), known before the loss is computed, so
//!   that micro-batches add up to the mini-batch exactly;
//! - `cispo` (MiniMax-M1, arXiv 2506.13585) clips the ratio as a constant weight of the log-likelihood, so that no
//!   token loses its gradient.
//!
//! All tensors are `[terms]`: one term for each (trajectory, sampled token). A token of the forest that several
//! trajectories sampled has a term for each, as their advantages and behaviour logprobs differ.

use tch::Tensor;

/// What a loss is computed from.
#[derive(Debug)]
pub struct LossInputs<'a> {
    /// log p of the sampled token under the policy, with gradient. `[terms]`
    pub policy_logprobs: &'a Tensor,
    /// log p under the policy that sampled it, as recorded. NaN where unknown: the ratio is 1 then. `[terms]`
    pub behaviour_logprobs: &'a Tensor,
    /// Advantage of the term's episode. `[terms]`
    pub advantages: &'a Tensor,
    /// Share of the term in the mini-batch's mean. `[terms]`
    pub weights: &'a Tensor,
}

/// What a loss gives.
#[derive(Debug)]
pub struct LossOutputs {
    /// Weighted sum of the terms' losses, with gradient. `[]`
    pub loss: Tensor,
    /// Importance ratio policy / behaviour before clipping, without gradient. `[terms]`
    pub ratio: Tensor,
    /// 1 where the bound was in force, else 0. `[terms]`
    pub clipped: Tensor,
}

/// Which loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossKind {
    /// −min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high)·A), token ratio ρ.
    Grpo {
        /// Lower bound of the ratio is 1 − clip_low.
        clip_low: f64,
        /// Upper bound of the ratio is 1 + clip_high.
        clip_high: f64,
    },
    /// −clip(ρ, 1 − clip_low, 1 + clip_high)·A·log p, where the clipped ratio has no gradient.
    Cispo {
        /// Lower bound of the ratio is 1 − clip_low.
        clip_low: f64,
        /// Upper bound of the ratio is 1 + clip_high.
        clip_high: f64,
    },
    /// −A·log p: supervised, with A = 1.
    Sft,
}

impl LossKind {
    /// Computes the loss of some terms. Losses of disjoint sets of terms add up.
    pub fn compute(&self, inputs: &LossInputs) -> LossOutputs {
        match *self {
            Self::Grpo { clip_low, clip_high } => grpo(inputs, clip_low, clip_high),
            Self::Cispo { clip_low, clip_high } => cispo(inputs, clip_low, clip_high),
            Self::Sft => sft(inputs),
        }
    }
}

/// log ρ with gradient; 0 in value (and the policy's gradient) where no behaviour logprob is known.
fn log_ratio(inputs: &LossInputs) -> Tensor {
    let detached = inputs.policy_logprobs.detach();
    let behaviour = detached.where_self(&inputs.behaviour_logprobs.isnan(), inputs.behaviour_logprobs);
    inputs.policy_logprobs - behaviour
}

fn grpo(inputs: &LossInputs, clip_low: f64, clip_high: f64) -> LossOutputs {
    let ratio = log_ratio(inputs).exp();
    let unclipped = &ratio * inputs.advantages;
    let clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * inputs.advantages;
    let loss = -(unclipped.minimum(&clipped) * inputs.weights).sum(None);
    let in_force = clipped.detach().lt_tensor(&unclipped.detach()).to_kind(ratio.kind());
    LossOutputs {
        loss,
        ratio: ratio.detach(),
        clipped: in_force,
    }
}

fn cispo(inputs: &LossInputs, clip_low: f64, clip_high: f64) -> LossOutputs {
    let ratio = log_ratio(inputs).detach().exp();
    let clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high);
    let loss = -(&clipped * inputs.advantages * inputs.policy_logprobs * inputs.weights).sum(None);
    let in_force = clipped.ne_tensor(&ratio).to_kind(ratio.kind());
    LossOutputs {
        loss,
        ratio,
        clipped: in_force,
    }
}

fn sft(inputs: &LossInputs) -> LossOutputs {
    let ratio = log_ratio(inputs).detach().exp();
    let loss = -(inputs.advantages * inputs.policy_logprobs * inputs.weights).sum(None);
    LossOutputs {
        loss,
        clipped: ratio.zeros_like(),
        ratio,
    }
}

/// How token losses are averaged over a mini-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// Every sampled token alike (DAPO): long trajectories weigh more.
    TokenMean,
    /// Every trajectory alike, its tokens share its weight: neutral to length between trajectories (GRPO).
    SequenceMean,
    /// Every token weighs 1 / (trajectories × this number): neutral to length within them (Dr. GRPO).
    Constant(f64),
}

impl Aggregation {
    /// Weight of each token of each trajectory, given the trajectories' numbers of sampled tokens (at least 1 each).
    pub fn token_weights(&self, n_sampled: &[usize]) -> Vec<f64> {
        let n_tokens: usize = n_sampled.iter().sum();
        let n_trajectories = n_sampled.len() as f64;
        n_sampled
            .iter()
            .map(|&count| match *self {
                Self::TokenMean => 1.0 / n_tokens as f64,
                Self::SequenceMean => 1.0 / (n_trajectories * count as f64),
                Self::Constant(constant) => 1.0 / (n_trajectories * constant),
            })
            .collect()
    }
}

#[cfg(test)]
#[path = "loss/tests.rs"]
mod tests;
