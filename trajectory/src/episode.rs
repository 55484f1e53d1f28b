//! An episode: the record of one rollout of the agent, from open to close.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answer;
use crate::call::{CallStatus, ModelCall, ToolCall};
use crate::id::{EpisodeId, GroupId, ScenarioId};
use crate::names::named_enum;
use crate::stitch::stitch;
use crate::trajectory::Trajectory;

named_enum! {
    /// What a scenario is for.
    pub enum Split {
        /// The policy learns from it.
        Train = "train",
        /// The policy is measured on it and never learns from it.
        HeldOut = "held_out",
    }
}

named_enum! {
    /// Whether more can come.
    pub enum EpisodeState {
        /// The agent may still call.
        Open = "open",
        /// The rollout has ended.
        Closed = "closed",
    }
}

named_enum! {
    /// The one boundary at which an episode failed.
    pub enum FailureCause {
        /// The agent's own process.
        Agent = "agent",
        /// An MCP server.
        ToolServer = "tool_server",
        /// Trainyard's proxy.
        Proxy = "proxy",
        /// The inference server or another model's server.
        Upstream = "upstream",
        /// The reward could not be computed.
        Reward = "reward",
        /// The time limit.
        Timeout = "timeout",
    }
}

/// Why an episode failed. A failed episode is data: it stays in the store and is not trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Where.
    pub cause: FailureCause,
    /// What, for people.
    pub message: String,
}

/// What is known of an episode when it opens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewEpisode {
    /// The scenario that it plays; `None` for traffic without one.
    pub scenario_id: Option<ScenarioId>,
    /// The group whose episodes are compared with each other.
    pub group_id: Option<GroupId>,
    /// The scenario's split.
    pub split: Option<Split>,
    /// Anything of the caller's, kept as it is.
    pub metadata: Map<String, Value>,
    /// Request fields that the proxy sets on every call to the policy, such as `temperature`.
    pub overrides: Map<String, Value>,
    /// Sends the episode's calls to this upstream in place of the routed one.
    pub upstream: Option<String>,
    /// The agent's command, for the record.
    pub agent_command: Option<String>,
    /// Opened by a plain call and not by a caller of the control routes.
    pub implicit: bool,
}

/// The record of one rollout, without its calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Name.
    pub id: EpisodeId,
    /// The capability in the agent's key. Never serialised; empty after reading from JSON.
    #[serde(skip)]
    pub secret: String,
    /// See [`NewEpisode::scenario_id`].
    pub scenario_id: Option<ScenarioId>,
    /// See [`NewEpisode::group_id`].
    pub group_id: Option<GroupId>,
    /// See [`NewEpisode::split`].
    pub split: Option<Split>,
    /// See [`NewEpisode::metadata`].
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// See [`NewEpisode::overrides`].
    #[serde(default)]
    pub overrides: Map<String, Value>,
    /// See [`NewEpisode::upstream`].
    #[serde(default)]
    pub upstream: Option<String>,
    /// See [`NewEpisode::agent_command`].
    #[serde(default)]
    pub agent_command: Option<String>,
    /// See [`NewEpisode::implicit`].
    #[serde(default)]
    pub implicit: bool,
    /// Open or closed.
    pub state: EpisodeState,
    /// Raw reward by its newest revision; `None` while there is none.
    pub reward: Option<f64>,
    /// Metrics given on closing, then those of each reward revision; a later value of a key wins.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Why the rollout ended, in the caller's words.
    pub stop_reason: Option<String>,
    /// Set where the rollout failed.
    pub failure: Option<Failure>,
    /// Why the record has a hole; such an episode is never trained on.
    pub tainted: Option<String>,
    /// Opening, in milliseconds since 1970 UTC.
    pub opened_at_ms: i64,
    /// Closing, in milliseconds since 1970 UTC; `None` while open.
    pub closed_at_ms: Option<i64>,
}

/// What is known of an episode when it closes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloseEpisode {
    /// Why the rollout ended.
    pub stop_reason: Option<String>,
    /// Set where it failed.
    pub failure: Option<Failure>,
    /// Raw reward, where it is known by now.
    pub reward: Option<f64>,
    /// Metrics.
    pub metrics: Map<String, Value>,
}

/// An episode with everything recorded in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// The episode.
    pub episode: Episode,
    /// Model calls by sequence.
    pub calls: Vec<ModelCall>,
    /// Tool calls by sequence.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
}

impl EpisodeRecord {
    /// The token view of the calls.
    pub fn trajectories(&self) -> Vec<Trajectory> {
        stitch(&self.calls)
    }

    /// The assistant's text in the last complete call; `None` where there is no such call or it has no text (it
    /// called a tool).
    pub fn answer(&self) -> Option<String> {
        let call = self
            .calls
            .iter()
            .rev()
            .find(|call| call.status == CallStatus::Complete)?;
        answer::text(call.endpoint, call.response.as_ref()?)
    }
}
