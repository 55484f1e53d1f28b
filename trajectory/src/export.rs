//! Episodes as JSON lines, the form that offline training and other programs read.
//!
//! ```json
//! {"schema":"trainyard.episode/1","episode_id":"…","group_id":"…","scenario_id":"…","split":"train","reward":1.0,
//!  "metrics":{},"stop_reason":"answered","failure":null,"tainted":false,
//!  "trajectories":[{"token_ids":[5,9],"sampled_mask":[0,1],"behaviour_logprobs":[null,-0.12],"policy_versions":[null,3]}],
//!  "calls":[],"tool_calls":[]}
//! ```
//! The four arrays of a trajectory have equal length; the last three are null or 0 where the policy did not sample the
//! token. Unknown fields are passed over on reading.

use std::io::BufRead;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::{ModelCall, ToolCall};
use crate::episode::{EpisodeRecord, EpisodeState, Failure, Split};
use crate::error::ExportError;
use crate::group::Member;
use crate::id::{EpisodeId, GroupId, ScenarioId};
use crate::trajectory::Trajectory;

/// The form's name and version.
pub const EXPORT_SCHEMA: &str = "trainyard.episode/1";

/// One line of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedEpisode {
    /// [`EXPORT_SCHEMA`]
    pub schema: String,
    /// The episode.
    pub episode_id: EpisodeId,
    /// Its group.
    #[serde(default)]
    pub group_id: Option<GroupId>,
    /// Its scenario.
    #[serde(default)]
    pub scenario_id: Option<ScenarioId>,
    /// The scenario's split.
    #[serde(default)]
    pub split: Option<Split>,
    /// Raw reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// Metrics.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Open or closed. An export holds closed episodes unless open ones were asked for.
    #[serde(default = "closed")]
    pub state: EpisodeState,
    /// Why the rollout ended.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// Set where it failed.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// The record has a hole.
    #[serde(default)]
    pub tainted: bool,
    /// Which.
    #[serde(default)]
    pub taint_reason: Option<String>,
    /// The agent's command.
    #[serde(default)]
    pub agent_command: Option<String>,
    /// Metadata given on opening.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Opening, in milliseconds since 1970 UTC.
    #[serde(default)]
    pub opened_at_ms: i64,
    /// Closing, in milliseconds since 1970 UTC.
    #[serde(default)]
    pub closed_at_ms: Option<i64>,
    /// Token views of the branches.
    #[serde(default)]
    pub trajectories: Vec<Trajectory>,
    /// Model calls.
    #[serde(default)]
    pub calls: Vec<ModelCall>,
    /// Tool calls.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
}

fn closed() -> EpisodeState {
    EpisodeState::Closed
}

impl From<EpisodeRecord> for ExportedEpisode {
    fn from(record: EpisodeRecord) -> Self {
        let trajectories = record.trajectories();
        let EpisodeRecord {
            episode,
            calls,
            tool_calls,
        } = record;
        Self {
            schema: EXPORT_SCHEMA.to_owned(),
            episode_id: episode.id,
            group_id: episode.group_id,
            scenario_id: episode.scenario_id,
            split: episode.split,
            reward: episode.reward,
            metrics: episode.metrics,
            state: episode.state,
            stop_reason: episode.stop_reason,
            failure: episode.failure,
            tainted: episode.tainted.is_some(),
            taint_reason: episode.tainted,
            agent_command: episode.agent_command,
            metadata: episode.metadata,
            opened_at_ms: episode.opened_at_ms,
            closed_at_ms: episode.closed_at_ms,
            trajectories,
            calls,
            tool_calls,
        }
    }
}

impl ExportedEpisode {
    pub(crate) fn member(&self) -> Member {
        Member {
            episode_id: self.episode_id.clone(),
            scenario_id: self.scenario_id.clone(),
            open: self.state == EpisodeState::Open,
            failed: self.failure.is_some(),
            tainted: self.tainted,
            reward: self.reward,
            metrics: self.metrics.clone(),
        }
    }

    /// The line, without the line end.
    pub fn to_line(&self) -> String {
        // Maps have string keys and numbers that aren't finite become null, so this can't fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A record in the form of a line. To write many, [`ExportedEpisode::to_line`] saves building a tree of values.
pub fn export_line(record: &EpisodeRecord) -> Value {
    serde_json::to_value(ExportedEpisode::from(record.clone())).unwrap_or_default()
}

/// Reads one line and checks it.
///
/// # Errors
/// Another form or schema, or a trajectory whose arrays contradict each other.
pub fn parse_export_line(line: &str) -> Result<ExportedEpisode, ExportError> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    // The schema first: a line of a later version may lack what this one needs.
    let head: Head = serde_json::from_str(line).map_err(ExportError::Form)?;
    if head.schema != EXPORT_SCHEMA {
        return Err(ExportError::Schema(head.schema));
    }
    let episode: ExportedEpisode = serde_json::from_str(line).map_err(ExportError::Form)?;
    for (trajectory, view) in episode.trajectories.iter().enumerate() {
        if let Some(problem) = view.defect() {
            return Err(ExportError::Trajectory { trajectory, problem });
        }
    }
    Ok(episode)
}

/// Reads every line of a file; empty lines are passed over.
///
/// # Errors
/// The first bad line, by its number.
pub fn read_export(reader: impl BufRead) -> Result<Vec<ExportedEpisode>, ExportError> {
    let mut episodes = Vec::new();
    for (text, line) in reader.lines().zip(1..) {
        let text = text.map_err(|source| ExportError::Read { line, source })?;
        if !text.trim().is_empty() {
            let episode = parse_export_line(&text);
            episodes.push(episode.map_err(|source| ExportError::Line {
                line,
                source: Box::new(source),
            })?);
        }
    }
    Ok(episodes)
}

#[cfg(test)]
mod tests;
