//! What a rollout is asked to do, and what came of it.

use serde_json::{Map, Value};
use trajectory::{EpisodeId, Failure, GroupId, Split};

use crate::scenario::Scenario;

/// One episode to run.
#[derive(Clone, Debug)]
pub struct EpisodePlan {
    /// What is asked.
    pub scenario: Scenario,
    /// The group it is compared within.
    pub group: Option<GroupId>,
    /// What the episode counts for.
    pub split: Split,
    /// Request fields that the proxy sets on each call to the policy, such as `temperature`.
    pub overrides: Map<String, Value>,
    /// The upstream for this episode's calls, if not the routed one (a teacher).
    pub upstream: Option<String>,
}

/// How one planned episode went.
#[derive(Clone, Debug)]
pub struct EpisodeOutcome {
    /// Its place in the plans.
    pub plan: usize,
    /// Its scenario, and that scenario's kind.
    pub scenario_id: String,
    /// See `scenario_id`.
    pub kind: String,
    /// The record; `None` if not even that could be opened.
    pub episode_id: Option<EpisodeId>,
    /// What the environment gave; `None` if the episode failed or was cancelled.
    pub reward: Option<f64>,
    /// The reward's metrics, and `seconds`, `n_model_calls`, `n_tool_calls`.
    pub metrics: Map<String, Value>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// True if the run was cancelled before this episode had ended.
    pub cancelled: bool,
}

impl EpisodeOutcome {
    /// The environment's own word on whether the answer was right: its metric `success` is 1.
    pub fn success(&self) -> bool {
        self.reward.is_some()
            && self
                .metrics
                .get("success")
                .and_then(Value::as_f64)
                .is_some_and(|success| success >= 1.0)
    }
}
