//! Which scenarios the next step plays.
//!
//! A group whose episodes are all right or all wrong gives no gradient. A scenario that the policy answers with chance p
//! gives one in proportion to the variance p(1−p), so scenarios are drawn with that weight. A floor under the weight keeps
//! the always right and the always wrong in the game: the policy changes, and what was hopeless may have come within reach.
//!
//! A step's scenarios are of as many kinds as there are, for what a step learns is applied to every kind: one whose
//! scenarios are mostly of one kind teaches that kind's habits to all the others.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use trajectory::{PassRate, ScenarioId};

use crate::scenario::Scenario;

/// The pass rate of a kind that nobody has tried.
const UNKNOWN: f64 = 0.5;

/// Attempts that the kind's pass rate counts for beside a scenario's own. Small, so that one group of eight, all right,
/// is believed; not zero, so that a scenario tried once is not written off.
const KIND_ATTEMPTS: f64 = 1.0;

/// Attempts of one scenario that count towards its kind at most, so that a favourite does not speak for all.
const MAX_ATTEMPTS: u64 = 8;

/// How scenarios are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum Selection {
    /// Each with the same chance.
    Uniform,
    /// With weight p(1−p) + `floor`, p being the recent pass rate. The weight without the floor is at most 0.25.
    PassRate {
        /// Added to every weight; with 0.02 an always right scenario comes about once for thirteen uncertain ones.
        floor: f64,
    },
}

impl Default for Selection {
    fn default() -> Self {
        Self::PassRate { floor: 0.02 }
    }
}

/// Chooses `n` different scenarios (all, if there are no more) and returns their places in `scenarios`, in the order drawn.
/// Kinds get even shares of them, within one, as long as they last; where there are more kinds than `n`, the weights decide
/// which ones come.
///
/// The same arguments give the same choice; `seed` is the run's, `step` the training step's.
pub fn select(
    scenarios: &[Scenario],
    pass_rates: &HashMap<ScenarioId, PassRate>,
    selection: Selection,
    n: usize,
    seed: u64,
    step: u64,
) -> Vec<usize> {
    let weights = weights(scenarios, pass_rates, selection);
    let mut random = StdRng::seed_from_u64(mix(seed, step));
    // Efraimidis and Spirakis: the n largest of ln(u)/w are a weighted draw without replacement.
    let mut keys: Vec<(f64, usize)> = weights
        .iter()
        .enumerate()
        .map(|(position, weight)| (random.random::<f64>().max(f64::MIN_POSITIVE).ln() / weight, position))
        .collect();
    keys.sort_by(|(left, left_position), (right, right_position)| {
        right.total_cmp(left).then(left_position.cmp(right_position))
    });
    // The first of each kind in order of their keys, then the second of each, and so on.
    let mut taken: HashMap<&str, usize> = HashMap::new();
    let mut rounds: Vec<(usize, usize)> = keys
        .into_iter()
        .map(|(_, position)| {
            let of_kind = taken.entry(&scenarios[position].kind).or_default();
            *of_kind += 1;
            (*of_kind, position)
        })
        .collect();
    rounds.sort_by_key(|&(round, _)| round);
    rounds.into_iter().take(n).map(|(_, position)| position).collect()
}

/// The weight of each scenario in a draw; all greater than zero.
pub fn weights(scenarios: &[Scenario], pass_rates: &HashMap<ScenarioId, PassRate>, selection: Selection) -> Vec<f64> {
    let Selection::PassRate { floor } = selection else {
        return vec![1.0; scenarios.len()];
    };
    let rate_of = |scenario: &Scenario| {
        pass_rates
            .get(&ScenarioId::from(scenario.id.clone()))
            .filter(|rate| rate.attempts > 0)
    };
    let kinds = kind_rates(scenarios, rate_of);
    let weight = |scenario: &Scenario| {
        let kind = kinds.get(scenario.kind.as_str()).copied().unwrap_or(UNKNOWN);
        let p = match rate_of(scenario) {
            Some(rate) => {
                let attempts = rate.attempts.min(MAX_ATTEMPTS) as f64;
                (rate.recent * attempts + kind * KIND_ATTEMPTS) / (attempts + KIND_ATTEMPTS)
            }
            None => kind,
        };
        (p * (1.0 - p)).max(0.0) + floor.max(1e-6)
    };
    scenarios.iter().map(weight).collect()
}

/// The recent pass rate of each kind over the scenarios that were tried.
fn kind_rates<'a>(
    scenarios: &'a [Scenario],
    rate_of: impl Fn(&Scenario) -> Option<&'a PassRate>,
) -> HashMap<&'a str, f64> {
    let mut sums: HashMap<&str, (f64, f64)> = HashMap::new();
    for scenario in scenarios {
        let (successes, attempts) = sums.entry(&scenario.kind).or_insert((UNKNOWN, 1.0));
        if let Some(rate) = rate_of(scenario) {
            let n = rate.attempts.min(MAX_ATTEMPTS) as f64;
            *successes += rate.recent * n;
            *attempts += n;
        }
    }
    sums.into_iter()
        .map(|(kind, (successes, attempts))| (kind, successes / attempts))
        .collect()
}

/// One seed from two, so that neighbouring steps draw unrelated numbers (the finaliser of SplitMix64).
fn mix(seed: u64, step: u64) -> u64 {
    let mut mixed = seed ^ step.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use trajectory::Split;

    use super::*;

    const BY_PASS_RATE: Selection = Selection::PassRate { floor: 0.02 };

    fn scenario(id: &str, kind: &str) -> Scenario {
        Scenario {
            id: id.into(),
            kind: kind.into(),
            prompt: "?".into(),
            data: Value::Null,
            split: Split::Train,
        }
    }

    fn rates(known: &[(&str, u64, f64)]) -> HashMap<ScenarioId, PassRate> {
        let rate = |attempts: u64, recent: f64| PassRate {
            attempts,
            successes: (recent * attempts as f64) as u64,
            recent,
        };
        known
            .iter()
            .map(|(id, attempts, recent)| (ScenarioId::from(*id), rate(*attempts, *recent)))
            .collect()
    }

    /// How often each scenario is drawn in 4000 steps of one scenario.
    fn draws(scenarios: &[Scenario], pass_rates: &HashMap<ScenarioId, PassRate>) -> Vec<usize> {
        let mut counts = vec![0; scenarios.len()];
        for step in 0..4000 {
            for position in select(scenarios, pass_rates, BY_PASS_RATE, 1, 7, step) {
                counts[position] += 1;
            }
        }
        counts
    }

    #[test]
    fn same_seed_and_step_give_the_same_choice_and_others_do_not() {
        let scenarios: Vec<_> = (0..50).map(|i| scenario(&format!("s{i}"), "k")).collect();
        let draw = |seed, step| select(&scenarios, &HashMap::new(), BY_PASS_RATE, 10, seed, step);
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn nothing_is_drawn_twice_in_a_step() {
        let scenarios: Vec<_> = (0..20).map(|i| scenario(&format!("s{i}"), "k")).collect();
        let mut chosen = select(&scenarios, &HashMap::new(), BY_PASS_RATE, 100, 1, 1);
        chosen.sort_unstable();
        assert_eq!(chosen, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_step_is_of_many_kinds() {
        // One kind is much more uncertain than the others.
        let scenarios: Vec<_> = (0..40)
            .map(|i| scenario(&format!("s{i}"), ["a", "b", "c", "d"][i % 4]))
            .collect();
        let known: Vec<_> = (0..40)
            .map(|i| (format!("s{i}"), 8, if i % 4 == 0 { 0.5 } else { 1.0 }))
            .collect();
        let known: Vec<_> = known
            .iter()
            .map(|(id, attempts, recent)| (id.as_str(), *attempts, *recent))
            .collect();
        for step in 0..20 {
            let chosen = select(&scenarios, &rates(&known), BY_PASS_RATE, 6, 1, step);
            for kind in 0..4 {
                let of_kind = chosen.iter().filter(|&&at| at % 4 == kind).count();
                assert!(of_kind == 1 || of_kind == 2, "{chosen:?}");
            }
        }
        let all = select(&scenarios[..5], &HashMap::new(), BY_PASS_RATE, 5, 1, 1);
        assert_eq!(all.len(), 5, "more of a kind than its share where no others are left");
    }

    #[test]
    fn always_right_and_always_wrong_are_rare_but_come_back() {
        let scenarios = [scenario("right", "k"), scenario("wrong", "k"), scenario("even", "k")];
        let counts = draws(
            &scenarios,
            &rates(&[("right", 80, 1.0), ("wrong", 80, 0.0), ("even", 80, 0.5)]),
        );
        assert!(
            counts[2] > 5 * counts[0] / 2 && counts[2] > 5 * counts[1] / 2,
            "{counts:?}"
        );
        assert!(counts[0] > 100 && counts[1] > 100, "{counts:?}");
    }

    #[test]
    fn unknown_scenarios_follow_their_kind() {
        let mut scenarios = vec![scenario("new even", "even"), scenario("new hopeless", "hopeless")];
        scenarios.extend((0..8).flat_map(|i| {
            [
                scenario(&format!("e{i}"), "even"),
                scenario(&format!("h{i}"), "hopeless"),
            ]
        }));
        let known: Vec<_> = (0..8)
            .flat_map(|i| [(format!("e{i}"), 8, 0.5), (format!("h{i}"), 8, 0.0)])
            .collect();
        let known: Vec<_> = known
            .iter()
            .map(|(id, attempts, recent)| (id.as_str(), *attempts, *recent))
            .collect();
        let weights = weights(&scenarios, &rates(&known), BY_PASS_RATE);
        assert!(weights[0] > 0.26 && weights[1] < 0.04, "{weights:?}");
    }

    #[test]
    fn without_any_knowledge_all_weigh_the_same() {
        let scenarios = [scenario("a", "k"), scenario("b", "l")];
        assert_eq!(weights(&scenarios, &HashMap::new(), BY_PASS_RATE), [0.27, 0.27]);
        assert_eq!(
            weights(&scenarios, &rates(&[("a", 9, 1.0)]), Selection::Uniform),
            [1.0, 1.0]
        );
    }
}
