//! Which scenarios the next step plays.
//!
//! A group whose episodes are all right or all wrong gives no gradient. A scenario that the policy answers with chance p
//! gives one in proportion to the variance p(1−p), so scenarios are drawn with that weight. A floor under the weight keeps
//! the always right and the always wrong in the game: the policy changes, and what was hopeless may have come within reach.
//!
//! A step's scenarios are of as many kinds as there are, for what a step learns is applied to every kind: one whose
//! scenarios are mostly of one kind teaches that kind's habits to all the others. Between the kinds, too, those that the
//! policy answers with chance get more of them; the floor is larger there ([`KIND_FLOOR`]), since a kind that is given up
//! is unlearnt, and one that never succeeds needs tries until there is a right one to learn from.

use std::collections::{BTreeMap, HashMap};

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

/// A kind's share is at least two sevenths of another's.
const KIND_FLOOR: f64 = 0.1;

/// How scenarios are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum Selection {
    /// Each with the same chance.
    Uniform,
    /// Within a kind with weight p(1−p) + `floor`, p being the recent pass rate: at most 0.25 without the floor. A kind's
    /// number of scenarios is in proportion to p(1−p) + 0.1, p being its scenarios' recent pass rate.
    PassRate {
        /// With 0.02 an always right scenario comes about once for thirteen uncertain ones.
        floor: f64,
    },
}

impl Default for Selection {
    fn default() -> Self {
        Self::PassRate { floor: 0.02 }
    }
}

/// Chooses `n` different scenarios (all, if there are no more) and returns their places in `scenarios`, in the order drawn.
/// Kinds share them as [`Selection`] says as long as they last, rounded up or down at random.
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
    // The j-th of a kind waits until its kind's share has come to j, less a random part of one: shares hold on average.
    let mut kinds: HashMap<&str, (usize, f64, f64)> = HashMap::new();
    for (kind, share) in kind_shares(scenarios, pass_rates, selection) {
        kinds.insert(kind, (0, random.random::<f64>(), share));
    }
    let mut turns: Vec<(f64, usize)> = keys
        .into_iter()
        .filter_map(|(_, position)| {
            let (taken, part, share) = kinds.get_mut(scenarios[position].kind.as_str())?;
            *taken += 1;
            Some(((*taken as f64 - *part) / *share, position))
        })
        .collect();
    turns.sort_by(|(left, _), (right, _)| left.total_cmp(right));
    turns.into_iter().take(n).map(|(_, position)| position).collect()
}

/// What each kind's number of scenarios is in proportion to, by name; all greater than zero.
fn kind_shares<'a>(
    scenarios: &'a [Scenario],
    pass_rates: &'a HashMap<ScenarioId, PassRate>,
    selection: Selection,
) -> BTreeMap<&'a str, f64> {
    let rates = kind_rates(scenarios, |scenario| known_rate(scenario, pass_rates));
    let share = |rate: f64| match selection {
        Selection::Uniform => 1.0,
        Selection::PassRate { .. } => (rate * (1.0 - rate)).max(0.0) + KIND_FLOOR,
    };
    rates.into_iter().map(|(kind, rate)| (kind, share(rate))).collect()
}

/// The pass rate of a scenario that was tried.
fn known_rate<'a>(scenario: &Scenario, pass_rates: &'a HashMap<ScenarioId, PassRate>) -> Option<&'a PassRate> {
    pass_rates
        .get(&ScenarioId::from(scenario.id.clone()))
        .filter(|rate| rate.attempts > 0)
}

/// The weight of each scenario in a draw; all greater than zero.
pub fn weights(scenarios: &[Scenario], pass_rates: &HashMap<ScenarioId, PassRate>, selection: Selection) -> Vec<f64> {
    let Selection::PassRate { floor } = selection else {
        return vec![1.0; scenarios.len()];
    };
    let rate_of = |scenario: &Scenario| known_rate(scenario, pass_rates);
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
    fn a_step_is_of_many_kinds_and_more_of_the_uncertain_ones() {
        let kind_of = |at: usize| ["solved", "half", "half too", "hopeless"][at % 4];
        let scenarios: Vec<_> = (0..40).map(|i| scenario(&format!("s{i}"), kind_of(i))).collect();
        let even = |chosen: &[usize]| {
            (0..4).all(|kind| (1..=2).contains(&chosen.iter().filter(|&&at| at % 4 == kind).count()))
        };
        for step in 0..20 {
            for selection in [BY_PASS_RATE, Selection::Uniform] {
                let chosen = select(&scenarios, &HashMap::new(), selection, 6, 1, step);
                assert!(even(&chosen), "nothing is known of any kind: {chosen:?}");
            }
        }
        let names: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
        let rate = |at: usize| [1.0, 0.5, 0.5, 0.0][at % 4];
        let known: Vec<_> = (0..40).map(|i| (names[i].as_str(), 8, rate(i))).collect();
        let mut counts = [0; 4];
        for step in 0..200 {
            for at in select(&scenarios, &rates(&known), BY_PASS_RATE, 6, 1, step) {
                counts[at % 4] += 1;
            }
        }
        let of_all = counts.map(|count| f64::from(count) / 1200.0);
        // 0.1, 0.35, 0.35 and 0.1 in proportion, but for the prior of half an attempt.
        for (share, expected) in of_all.into_iter().zip([0.11, 0.39, 0.39, 0.11]) {
            assert!((share - expected).abs() < 0.03, "{of_all:?}");
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
