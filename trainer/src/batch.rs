//! From trajectories to a mini-batch: which of them are trained on, and the terms of the loss.

use std::collections::BTreeMap;
use std::sync::Arc;

use trajectory::{PolicyVersion, Trajectory, TrajectoryGroup};

use crate::advantage::{AdvantageSettings, Credit, branch_advantages, group_advantages};
use crate::loss::Aggregation;
use crate::metrics::LeftOut;

/// A trajectory with its advantages.
#[derive(Clone, Debug)]
pub(crate) struct Weighted<'a> {
    pub(crate) trajectory: &'a Trajectory,
    pub(crate) advantage: Advantages,
}

/// The advantage of each token of a trajectory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Advantages {
    /// All alike.
    Same(f64),
    /// By position.
    Each(Arc<[f64]>),
}

impl From<f64> for Advantages {
    fn from(advantage: f64) -> Self {
        Self::Same(advantage)
    }
}

impl Weighted<'_> {
    fn advantage_at(&self, position: usize) -> f64 {
        match &self.advantage {
            Advantages::Same(advantage) => *advantage,
            Advantages::Each(advantages) => advantages[position],
        }
    }

    /// Positions of the tokens that the loss is about. What has no advantage has no gradient, and what follows the last
    /// one with a gradient need not run through the model.
    fn trained_positions(&self) -> impl Iterator<Item = usize> {
        sampled_positions(self.trajectory).filter(|&position| self.advantage_at(position) != 0.0)
    }
}

/// What is trained on of a step's groups, and how often what was left out for which reason.
#[derive(Debug, Default)]
pub(crate) struct Selection<'a> {
    /// The trajectories of each group, none of them empty.
    pub(crate) groups: Vec<Vec<Weighted<'a>>>,
    pub(crate) groups_left_out: BTreeMap<String, usize>,
    pub(crate) trajectories_left_out: BTreeMap<String, usize>,
}

fn count(counts: &mut BTreeMap<String, usize>, reason: LeftOut) {
    *counts.entry(reason.name().to_owned()).or_default() += 1;
}

impl<'a> Selection<'a> {
    /// Assigns advantages within each group and leaves out what can't be trained on.
    pub(crate) fn of_groups(groups: &'a [TrajectoryGroup], advantage: AdvantageSettings, max_tokens: usize) -> Self {
        let mut selection = Self::default();
        for group in groups {
            if let Err(reason) = selection.add_group(group, advantage, max_tokens) {
                count(&mut selection.groups_left_out, reason);
            }
        }
        selection
    }

    fn add_group(
        &mut self,
        group: &'a TrajectoryGroup,
        advantage: AdvantageSettings,
        max_tokens: usize,
    ) -> Result<(), LeftOut> {
        let rewards: Vec<f64> = group.episodes.iter().map(|episode| episode.reward).collect();
        if rewards.len() < 2 {
            return Err(LeftOut::FewerThanTwoEpisodes);
        }
        if rewards.iter().any(|reward| !reward.is_finite()) {
            return Err(LeftOut::NonFiniteReward);
        }
        // A trajectory that can't be trained on is counted for what is wrong with it, even where the group's rewards
        // are equal: a recording without logprobs must never look like a group without a signal.
        let mut usable = Vec::new();
        for (index, episode) in group.episodes.iter().enumerate() {
            for trajectory in &episode.trajectories {
                match check(trajectory, max_tokens, true) {
                    Ok(()) => usable.push((index, trajectory)),
                    Err(reason) => count(&mut self.trajectories_left_out, reason),
                }
            }
        }
        if usable.is_empty() {
            return Err(LeftOut::NoTrainableTrajectory);
        }
        let Some(advantages) = group_advantages(&rewards, advantage) else {
            return Err(LeftOut::ZeroVariance);
        };
        let advantages: Vec<Advantages> = match advantage.credit {
            Credit::Episode => usable.iter().map(|&(index, _)| advantages[index].into()).collect(),
            Credit::Branch => {
                let sequences: Vec<&[u32]> = usable.iter().map(|(_, trajectory)| &trajectory.token_ids[..]).collect();
                let rewards: Vec<f64> = usable.iter().map(|&(index, _)| rewards[index]).collect();
                let of_tokens = branch_advantages(&sequences, &rewards, advantage);
                of_tokens
                    .into_iter()
                    .map(|tokens| Advantages::Each(tokens.into()))
                    .collect()
            }
        };
        let mut trained = Vec::new();
        for ((_, trajectory), advantage) in usable.into_iter().zip(advantages) {
            let weighted = Weighted { trajectory, advantage };
            if weighted.trained_positions().next().is_some() {
                trained.push(weighted);
            } else {
                count(&mut self.trajectories_left_out, LeftOut::ZeroAdvantage);
            }
        }
        if trained.is_empty() {
            return Err(LeftOut::NoTrainableTrajectory);
        }
        self.groups.push(trained);
        Ok(())
    }

    /// Demonstrations: every trajectory with a sampled token, each with advantage 1.
    pub(crate) fn of_demonstrations(trajectories: &'a [Trajectory], max_tokens: usize) -> Self {
        let mut selection = Self::default();
        let mut trained = Vec::new();
        for trajectory in trajectories {
            match check(trajectory, max_tokens, false) {
                Ok(()) => trained.push(Weighted {
                    trajectory,
                    advantage: 1.0.into(),
                }),
                Err(reason) => count(&mut selection.trajectories_left_out, reason),
            }
        }
        if !trained.is_empty() {
            selection.groups.push(trained);
        }
        selection
    }
}

/// Positions of the tokens that the loss is about. The first token of a trajectory has nothing to be predicted from.
fn sampled_positions(trajectory: &Trajectory) -> impl Iterator<Item = usize> {
    trajectory
        .sampled_mask
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, sampled)| **sampled)
        .map(|(position, _)| position)
}

fn check(trajectory: &Trajectory, max_tokens: usize, with_behaviour: bool) -> Result<(), LeftOut> {
    if sampled_positions(trajectory).next().is_none() {
        return Err(LeftOut::NoSampledToken);
    }
    if trajectory.token_ids.len() > max_tokens {
        return Err(LeftOut::TooLong);
    }
    let usable = |position: usize| trajectory.behaviour_logprobs[position].is_some_and(f32::is_finite);
    if with_behaviour && !sampled_positions(trajectory).all(usable) {
        return Err(LeftOut::MissingBehaviourLogprobs);
    }
    Ok(())
}

/// One (trajectory, sampled token) pair of the loss.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossTerm {
    /// Index into [`MiniBatch::sequences`].
    pub(crate) sequence: usize,
    /// Position of the sampled token; the model predicts it at the position before.
    pub(crate) position: usize,
    pub(crate) token_id: u32,
    pub(crate) advantage: f64,
    pub(crate) weight: f64,
    /// NaN where unknown.
    pub(crate) behaviour_logprob: f64,
    /// Whether the policy version being trained sampled it.
    pub(crate) current: bool,
}

/// The sequences that run through the model and the terms of their loss.
#[derive(Debug, Default)]
pub(crate) struct MiniBatch {
    /// Token ids of each trajectory up to the last one that something is predicted from.
    pub(crate) sequences: Vec<Vec<u32>>,
    pub(crate) terms: Vec<LossTerm>,
}

impl MiniBatch {
    /// Puts trajectories together, each of which has a sampled token with an advantage.
    pub(crate) fn new<'a>(
        trajectories: impl IntoIterator<Item = Weighted<'a>>,
        aggregation: Aggregation,
        current: Option<PolicyVersion>,
    ) -> Self {
        let trajectories: Vec<Weighted> = trajectories.into_iter().collect();
        let n_sampled: Vec<usize> = trajectories
            .iter()
            .map(|weighted| weighted.trained_positions().count())
            .collect();
        let weights = aggregation.token_weights(&n_sampled);
        let mut batch = Self::default();
        for (sequence, (weighted, weight)) in trajectories.into_iter().zip(weights).enumerate() {
            let trajectory = weighted.trajectory;
            let mut last = 0;
            for position in weighted.trained_positions() {
                last = position;
                batch.terms.push(LossTerm {
                    sequence,
                    position,
                    token_id: trajectory.token_ids[position],
                    advantage: weighted.advantage_at(position),
                    weight,
                    behaviour_logprob: trajectory.behaviour_logprobs[position].map_or(f64::NAN, f64::from),
                    current: current.is_some() && trajectory.policy_versions[position] == current,
                });
            }
            batch.sequences.push(trajectory.token_ids[..last].to_vec());
        }
        batch
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.sequences.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
#[path = "batch/tests.rs"]
mod tests;
