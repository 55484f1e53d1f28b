//! From a group's rewards to its advantages: plain numbers, no tensors.
//!
//! A_i = r_i − mean(r), divided by the population standard deviation + 1e-6 where `scale_rewards` is on (GRPO,
//! arXiv 2402.03300; off is Dr. GRPO's choice, arXiv 2503.20783). Always within one group, never over a batch.
//! Advantages below zero are then multiplied by `negative_weight`: 1 is GRPO, 0 learns from the better episodes only
//! (as RAFT does, arXiv 2504.11343), and what lies between weighs how fast the policy sharpens against how much it explores.
//! Successful episodes get `success_weight` on top, which adds their negative log-likelihood to the loss (VAPO,
//! arXiv 2504.05118). It counts in groups that are all right too, and so holds on to what the policy knows already while
//! it learns other kinds of scenario.
//! What then has an absolute value below `min_advantage` is set to 0 and not trained on: a long episode that was a little
//! better than the others costs as much as one that was right, and says little.

use serde::{Deserialize, Serialize};

/// Rewards within this distance of the first one count as equal: rounding in a reward is no signal.
const EQUAL_REWARDS: f64 = 1e-12;

/// Keeps the division finite for groups of nearly equal rewards.
const STANDARD_DEVIATION_FLOOR: f64 = 1e-6;

/// Whether all rewards are equal, so that no episode is better than another and the group holds no gradient.
pub fn is_zero_variance(rewards: &[f64]) -> bool {
    rewards
        .first()
        .is_none_or(|first| rewards.iter().all(|reward| (reward - first).abs() <= EQUAL_REWARDS))
}

/// Which tokens a reward is credited to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Credit {
    /// All of an episode's tokens alike, as in GRPO: [`group_advantages`].
    #[default]
    Episode,
    /// The tokens at which a group's episodes part: [`branch_advantages`].
    Branch,
}

/// How rewards become advantages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdvantageSettings {
    /// Which tokens a reward is credited to.
    pub credit: Credit,
    /// Divide by the group's standard deviation.
    pub scale_rewards: bool,
    /// Factor of advantages below zero, 0 to 1.
    pub negative_weight: f64,
    /// Added to the advantage of successful episodes, at least 0.
    pub success_weight: f64,
    /// An episode with at least this reward is successful.
    pub success_reward: f64,
    /// Advantages nearer to 0 than this are 0.
    pub min_advantage: f64,
}

impl Default for AdvantageSettings {
    /// GRPO's.
    fn default() -> Self {
        Self {
            credit: Credit::Episode,
            scale_rewards: true,
            negative_weight: 1.0,
            success_weight: 0.0,
            success_reward: 1.0,
            min_advantage: 0.0,
        }
    }
}

/// The advantage of each episode of one group, in the order of `rewards`; `None` where all are 0, as in a zero-variance
/// group unless its episodes are successful and that has a weight.
pub fn group_advantages(rewards: &[f64], settings: AdvantageSettings) -> Option<Vec<f64>> {
    let (mean, scale) = mean_and_scale(rewards, settings.scale_rewards);
    let advantage = |&reward: &f64| settings.finish((reward - mean) / scale, reward);
    let advantages: Vec<f64> = rewards.iter().map(advantage).collect();
    advantages
        .iter()
        .any(|&advantage| advantage != 0.0)
        .then_some(advantages)
}

/// The advantage of each token of each sequence of one group: how much better the episodes that go on with this token did
/// than all that came to the same prefix. `rewards` are the sequences' own.
///
/// Where no other sequence shares a prefix, its next token leads where the prefix did, and its advantage is 0. So what a
/// group learns is what to do where its episodes part, and not to say again whatever words a good one happened to
/// choose later on. The mean over the sequences below a prefix stands in for its value, as in tree-structured credit
/// (SPO, arXiv 2505.23564); with few sequences it is a rough one.
pub fn branch_advantages(sequences: &[&[u32]], rewards: &[f64], settings: AdvantageSettings) -> Vec<Vec<f64>> {
    let (_, scale) = mean_and_scale(rewards, settings.scale_rewards);
    let of_sequence = |(sequence, &reward): (&&[u32], &f64)| {
        let shared: Vec<usize> = sequences.iter().map(|other| common_prefix(sequence, other)).collect();
        let value = |length: usize| {
            let below = shared.iter().zip(rewards).filter(|(shared, _)| **shared >= length);
            let (sum, n) = below.fold((0.0, 0usize), |(sum, n), (_, reward)| (sum + reward, n + 1));
            sum / n as f64
        };
        let mut before = value(0);
        let mut advantages = Vec::with_capacity(sequence.len());
        for length in 1..=sequence.len() {
            let after = value(length);
            let gain = if (after - before).abs() <= EQUAL_REWARDS {
                0.0
            } else {
                (after - before) / scale
            };
            advantages.push(settings.finish(gain, reward));
            before = after;
        }
        advantages
    };
    sequences.iter().zip(rewards).map(of_sequence).collect()
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// Mean of the rewards, and what their differences are divided by.
fn mean_and_scale(rewards: &[f64], scale_rewards: bool) -> (f64, f64) {
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / count;
    let scale = match (is_zero_variance(rewards), scale_rewards) {
        (true, _) => f64::INFINITY,
        (false, true) => variance.sqrt() + STANDARD_DEVIATION_FLOOR,
        (false, false) => 1.0,
    };
    (mean, scale)
}

impl AdvantageSettings {
    /// The advantage that is trained with, from how much better than the others an episode did, and its reward.
    fn finish(self, better_by: f64, reward: f64) -> f64 {
        let weight = if better_by < 0.0 { self.negative_weight } else { 1.0 };
        let successful = reward >= self.success_reward - EQUAL_REWARDS;
        let advantage = weight * better_by + if successful { self.success_weight } else { 0.0 };
        if advantage.abs() < self.min_advantage {
            0.0
        } else {
            advantage
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grpo(scale_rewards: bool) -> AdvantageSettings {
        AdvantageSettings {
            scale_rewards,
            ..AdvantageSettings::default()
        }
    }

    fn check(rewards: &[f64], settings: AdvantageSettings, expected: &[f64]) {
        let advantages = group_advantages(rewards, settings).unwrap();
        assert_eq!(advantages.len(), expected.len());
        for (got, want) in advantages.iter().zip(expected) {
            assert!((got - want).abs() < 5e-10, "{advantages:?} is not {expected:?}");
        }
    }

    #[test]
    fn known_vectors() {
        check(
            &[0.0, 0.25, 1.0],
            grpo(true),
            &[-0.980578368, -0.392231347, 1.372809715],
        );
        check(
            &[0.0, 0.25, 1.0],
            grpo(false),
            &[-0.416666667, -0.166666667, 0.583333333],
        );
    }

    #[test]
    fn worse_episodes_can_weigh_less() {
        let weighing = |negative_weight| AdvantageSettings {
            scale_rewards: false,
            negative_weight,
            ..AdvantageSettings::default()
        };
        check(&[0.0, 0.0, 0.6, 0.2], weighing(0.5), &[-0.1, -0.1, 0.4, 0.0]);
        check(&[0.0, 0.0, 0.6, 0.2], weighing(0.0), &[0.0, 0.0, 0.4, 0.0]);
    }

    #[test]
    fn success_counts_in_itself() {
        let settings = AdvantageSettings {
            success_weight: 0.25,
            ..grpo(false)
        };
        check(&[0.0, 0.5, 1.0], settings, &[-0.5, 0.0, 0.75]);
        check(&[1.0, 1.0], settings, &[0.25, 0.25]);
        assert_eq!(group_advantages(&[0.5, 0.5], settings), None);
        let lower = AdvantageSettings {
            success_reward: 0.5,
            ..settings
        };
        check(&[0.5, 0.5], lower, &[0.25, 0.25]);
    }

    #[test]
    fn small_advantages_are_none() {
        let settings = AdvantageSettings {
            negative_weight: 0.0,
            success_weight: 0.25,
            min_advantage: 0.2,
            ..grpo(false)
        };
        check(&[0.0, 0.15, 0.15, 1.0], settings, &[0.0, 0.0, 0.0, 0.925]);
        assert_eq!(group_advantages(&[0.0, 0.15, 0.0], settings), None);
        let sequences: [&[u32]; 2] = [&[1, 2], &[1, 3]];
        let of_tokens = branch_advantages(&sequences, &[0.2, 0.0], settings);
        assert_eq!(of_tokens, [[0.0, 0.0], [0.0, 0.0]]);
    }

    #[test]
    fn branches_are_credited_where_they_part() {
        let sequences: [&[u32]; 4] = [&[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 6, 7], &[1, 6, 7]];
        let advantages = branch_advantages(&sequences, &[1.0, 0.0, 0.0, 0.0], grpo(false));
        let expected = [
            vec![0.0, 0.25, 0.0, 0.5],
            vec![0.0, 0.25, 0.0, -0.5],
            vec![0.0, -0.25, 0.0],
            vec![0.0, -0.25, 0.0],
        ];
        assert_eq!(advantages, expected);
        // Along each sequence they add up to the episode's advantage.
        let of_episodes = group_advantages(&[1.0, 0.0, 0.0, 0.0], grpo(false)).unwrap();
        for (tokens, episode) in advantages.iter().zip(of_episodes) {
            assert!((tokens.iter().sum::<f64>() - episode).abs() < 1e-12);
        }
    }

    #[test]
    fn equal_rewards_give_no_advantage() {
        assert_eq!(group_advantages(&[], grpo(true)), None);
        assert_eq!(group_advantages(&[0.7], grpo(true)), None);
        assert_eq!(group_advantages(&[0.1 + 0.2, 0.3, 0.3], grpo(true)), None);
        assert!(group_advantages(&[0.3, 0.3 + 1e-9], grpo(true)).is_some());
    }

    /// N1: two parts of a reward with opposite variance whose sum is constant.
    #[test]
    fn parts_that_cancel_are_zero_variance() {
        let parts = [(0.1, 0.9), (0.4, 0.6), (0.9, 0.1)];
        let rewards: Vec<f64> = parts.iter().map(|(format, value)| format + value).collect();
        assert!(is_zero_variance(&rewards));
    }

    proptest! {
        #[test]
        fn advantages_sum_to_zero_and_follow_a_permutation(
            rewards in prop::collection::vec(-10.0..10.0f64, 2..12), scale in any::<bool>(), shift in -5.0..5.0f64,
        ) {
            prop_assume!(!is_zero_variance(&rewards));
            let advantages = group_advantages(&rewards, grpo(scale)).unwrap();
            prop_assert!(advantages.iter().sum::<f64>().abs() < 1e-6);
            let reversed: Vec<f64> = rewards.iter().rev().copied().collect();
            let shifted: Vec<f64> = rewards.iter().map(|reward| reward + shift).collect();
            let of_reversed = group_advantages(&reversed, grpo(scale)).unwrap();
            let of_shifted = group_advantages(&shifted, grpo(scale)).unwrap();
            for (index, advantage) in advantages.iter().enumerate() {
                prop_assert!((advantage - of_reversed[rewards.len() - 1 - index]).abs() < 1e-6);
                prop_assert!((advantage - of_shifted[index]).abs() < 1e-4);
            }
        }
    }
}
