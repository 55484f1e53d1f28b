//! What a set of episodes says about a policy: success with its uncertainty, by kind of question.

mod table;
mod transcript;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use table::{Column, markdown_table, text_table};
pub use transcript::{Attempt, render_transcripts};

use crate::rollout::EpisodeOutcome;

/// The standard normal quantile of a two-sided 95 % interval.
const Z_95: f64 = 1.959_963_984_540_054;

/// Success of a number of episodes. A failed episode counts as not successful, with reward 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuccessRate {
    /// Share of successful episodes, 0 to 1.
    pub success: f64,
    /// Lower end of the 95 % Wilson interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Episodes.
    pub n: usize,
    /// Mean reward.
    pub mean_reward: f64,
}

/// Success of one policy on a set of scenarios.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// All episodes together.
    #[serde(flatten)]
    pub all: SuccessRate,
    /// Episodes that failed (crash, time limit, …); they are among `n`.
    pub n_failed: usize,
    /// By kind of question.
    pub by_kind: BTreeMap<String, SuccessRate>,
}

impl Results {
    /// Counts outcomes; those of a cancelled run are left out.
    pub fn from_outcomes<'a>(outcomes: impl IntoIterator<Item = &'a EpisodeOutcome>) -> Self {
        let mut all = Tally::default();
        let mut kinds: BTreeMap<String, Tally> = BTreeMap::new();
        let mut n_failed = 0;
        for outcome in outcomes.into_iter().filter(|outcome| !outcome.cancelled) {
            n_failed += usize::from(outcome.failure.is_some());
            all.add(outcome);
            kinds.entry(outcome.kind.clone()).or_default().add(outcome);
        }
        Self {
            all: all.rate(),
            n_failed,
            by_kind: kinds.into_iter().map(|(kind, tally)| (kind, tally.rate())).collect(),
        }
    }
}

#[derive(Default)]
struct Tally {
    n: usize,
    successes: usize,
    reward: f64,
}

impl Tally {
    fn add(&mut self, outcome: &EpisodeOutcome) {
        self.n += 1;
        self.successes += usize::from(outcome.success());
        self.reward += outcome.reward.unwrap_or_default();
    }

    fn rate(&self) -> SuccessRate {
        let n = self.n.max(1) as f64;
        let (low, high) = wilson_interval(self.successes, self.n);
        SuccessRate {
            success: self.successes as f64 / n,
            low,
            high,
            n: self.n,
            mean_reward: self.reward / n,
        }
    }
}

/// The 95 % Wilson score interval of a share (Wilson 1927); (0, 1) if there was nothing to count.
pub fn wilson_interval(successes: usize, n: usize) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (p, n) = (successes as f64 / n as f64, n as f64);
    let z2 = Z_95 * Z_95;
    let centre = p + z2 / (2.0 * n);
    let half = Z_95 * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    (((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use trajectory::{Failure, FailureCause};

    use super::*;

    fn outcome(kind: &str, reward: Option<f64>, success: bool) -> EpisodeOutcome {
        let failure = reward.is_none().then(|| Failure {
            cause: FailureCause::Agent,
            message: "crashed".into(),
        });
        EpisodeOutcome {
            plan: 0,
            scenario_id: "s".into(),
            kind: kind.into(),
            episode_id: None,
            reward,
            metrics: Map::from_iter([("success".to_owned(), json!(u8::from(success)))]),
            failure,
            cancelled: false,
        }
    }

    #[test]
    fn wilson_interval_equals_published_values() {
        // Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
        for (successes, n, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let (computed_low, computed_high) = wilson_interval(successes, n);
            let distance = (computed_low - low).abs().max((computed_high - high).abs());
            assert!(
                distance < 5.1e-5,
                "{successes} of {n}: {computed_low} to {computed_high}"
            );
        }
        assert_eq!(wilson_interval(0, 0), (0.0, 1.0));
    }

    #[test]
    fn failed_episodes_count_as_wrong_and_cancelled_ones_not_at_all() {
        let cancelled = EpisodeOutcome {
            cancelled: true,
            ..outcome("wind", None, false)
        };
        let outcomes = [
            outcome("wind", Some(1.0), true),
            outcome("wind", None, true),
            outcome("rain", Some(0.2), false),
            cancelled,
        ];
        let results = Results::from_outcomes(&outcomes);
        assert_eq!((results.all.n, results.n_failed), (3, 1));
        assert!((results.all.success - 1.0 / 3.0).abs() < 1e-12 && (results.all.mean_reward - 0.4).abs() < 1e-12);
        assert_eq!(results.by_kind["wind"].success, 0.5);
        let summary = serde_json::to_value(&results).unwrap();
        for key in ["success", "low", "high", "n", "mean_reward"] {
            assert!(summary[key].is_number(), "{key} is at the top of {summary}");
        }
    }
}
