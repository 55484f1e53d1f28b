//! From a group's rewards to its advantages: plain numbers, no tensors.
//!
//! A_i = r_i − mean(r), divided by the population standard deviation + 1e-6 where `scale_rewards` is on (GRPO,
//! arXiv 2402.03300; off is Dr. GRPO's choice, arXiv 2503.20783). Always within one group, never over a batch.

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

/// The advantage of each episode of one group, in the order of `rewards`; `None` for a zero-variance group.
pub fn group_advantages(rewards: &[f64], scale_rewards: bool) -> Option<Vec<f64>> {
    if is_zero_variance(rewards) {
        return None;
    }
    let count = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / count;
    let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / count;
    let scale = if scale_rewards {
        variance.sqrt() + STANDARD_DEVIATION_FLOOR
    } else {
        1.0
    };
    Some(rewards.iter().map(|reward| (reward - mean) / scale).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(rewards: &[f64], scale_rewards: bool, expected: &[f64]) {
        let advantages = group_advantages(rewards, scale_rewards).unwrap();
        assert_eq!(advantages.len(), expected.len());
        for (got, want) in advantages.iter().zip(expected) {
            assert!((got - want).abs() < 5e-10, "{advantages:?} is not {expected:?}");
        }
    }

    #[test]
    fn known_vectors() {
        check(&[0.0, 0.25, 1.0], true, &[-0.980578368, -0.392231347, 1.372809715]);
        check(&[0.0, 0.25, 1.0], false, &[-0.416666667, -0.166666667, 0.583333333]);
    }

    #[test]
    fn equal_rewards_give_no_advantage() {
        assert_eq!(group_advantages(&[], true), None);
        assert_eq!(group_advantages(&[0.7], true), None);
        assert_eq!(group_advantages(&[0.1 + 0.2, 0.3, 0.3], true), None);
        assert!(group_advantages(&[0.3, 0.3 + 1e-9], true).is_some());
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
            let advantages = group_advantages(&rewards, scale).unwrap();
            prop_assert!(advantages.iter().sum::<f64>().abs() < 1e-6);
            let reversed: Vec<f64> = rewards.iter().rev().copied().collect();
            let shifted: Vec<f64> = rewards.iter().map(|reward| reward + shift).collect();
            let of_reversed = group_advantages(&reversed, scale).unwrap();
            let of_shifted = group_advantages(&shifted, scale).unwrap();
            for (index, advantage) in advantages.iter().enumerate() {
                prop_assert!((advantage - of_reversed[rewards.len() - 1 - index]).abs() < 1e-6);
                prop_assert!((advantage - of_shifted[index]).abs() < 1e-4);
            }
        }
    }
}
