//! Trajectory groups: episodes of one scenario that are compared with each other, and why a group isn't trained on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::episode::Split;
use crate::export::ExportedEpisode;
use crate::id::{EpisodeId, GroupId, PolicyVersion, ScenarioId};
use crate::names::named_enum;
use crate::trajectory::Trajectory;

named_enum! {
    /// The one reason for which a group, or a trajectory of a ready group, is left out.
    pub enum LeftOut {
        /// Group: trained on already. Counted only for groups that were asked for by name.
        Acknowledged = "acknowledged",
        /// Group: not trained on yet, where it was asked for by name to be trained on again.
        Untrained = "untrained",
        /// Group: an episode is still open.
        Open = "open_episode",
        /// Group: fewer episodes are recorded than a group must have.
        Incomplete = "incomplete",
        /// Group: more episodes failed than allowed, or all did.
        TooManyFailed = "too_many_failed",
        /// Group: the record of an episode that didn't fail has a hole.
        Tainted = "tainted",
        /// Group: an episode that didn't fail has no reward.
        NoReward = "no_reward",
        /// Group: no call has token ids.
        NoTokenIds = "no_token_ids",
        /// Group: a token was sampled by a version older than the staleness limit allows, or by an unknown one.
        Stale = "stale",
        /// Trajectory: sampled tokens have no behaviour logprobs, so there is no importance ratio.
        NoLogprobs = "no_behaviour_logprobs",
        /// Episode: it belongs to no group (offline files only).
        Ungrouped = "ungrouped",
    }
}

/// Which groups are asked for.
#[derive(Clone, Debug, Default)]
pub struct ReadyFilter {
    /// Only groups of this split; `None`: of any.
    pub split: Option<Split>,
    /// Only these groups; `None`: all.
    pub group_ids: Option<Vec<GroupId>>,
    /// False: groups that no step has trained on yet. True: those that one has, to be trained on again. A file that
    /// episodes were exported to doesn't know, so it makes no difference there.
    pub trained: bool,
    /// Staleness is counted from this version.
    pub current_version: PolicyVersion,
    /// Most versions that a sampled token may lie behind; `None`: any number.
    pub max_staleness: Option<u64>,
    /// Most failed episodes of a group.
    pub max_failed: usize,
    /// Episodes that a group must have, failed ones included. Guards against taking a group that is still being opened.
    pub min_episodes: usize,
    /// Most groups returned, oldest first; `None`: all.
    pub limit: Option<usize>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReadyGroups {
    /// Groups to train on, oldest first.
    pub groups: Vec<TrajectoryGroup>,
    /// How many were left out, by reason ([`LeftOut`]).
    pub left_out: BTreeMap<String, usize>,
}

impl ReadyGroups {
    pub(crate) fn leave_out(&mut self, reason: LeftOut, n: usize) {
        if n > 0 {
            *self.left_out.entry(reason.as_str().to_owned()).or_default() += n;
        }
    }
}

/// One episode of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupEpisode {
    /// The episode.
    pub episode_id: EpisodeId,
    /// Raw reward; all branches of the episode share it.
    pub reward: f64,
    /// Metrics.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Token views of its branches; may be empty where the policy said nothing.
    pub trajectories: Vec<Trajectory>,
}

/// Episodes of one scenario, compared with each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryGroup {
    /// Name.
    pub group_id: GroupId,
    /// The scenario; `None` for traffic without one.
    pub scenario_id: Option<ScenarioId>,
    /// Episodes that didn't fail, in the order they were opened.
    pub episodes: Vec<GroupEpisode>,
    /// How many failed and are left out.
    pub n_failed: usize,
}

impl TrajectoryGroup {
    /// Rewards, one an episode.
    pub fn rewards(&self) -> Vec<f64> {
        self.episodes.iter().map(|episode| episode.reward).collect()
    }

    /// Whether all rewards are equal, so that no episode is better than another.
    pub fn zero_variance(&self) -> bool {
        self.episodes.windows(2).all(|pair| pair[0].reward == pair[1].reward)
    }

    /// Number of sampled tokens.
    pub fn n_sampled(&self) -> usize {
        self.episodes
            .iter()
            .flat_map(|episode| &episode.trajectories)
            .map(Trajectory::n_sampled)
            .sum()
    }
}

/// What is known of an episode of a group before its calls are read.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) episode_id: EpisodeId,
    pub(crate) scenario_id: Option<ScenarioId>,
    pub(crate) open: bool,
    pub(crate) failed: bool,
    pub(crate) tainted: bool,
    pub(crate) reward: Option<f64>,
    pub(crate) metrics: Map<String, Value>,
}

/// Adds the group made of `members` to `ready`, or counts why it is left out. `load` reads an episode's trajectories
/// and is called only where nothing else speaks against the group.
pub(crate) fn assemble<E>(
    group_id: GroupId,
    members: Vec<Member>,
    filter: &ReadyFilter,
    ready: &mut ReadyGroups,
    mut load: impl FnMut(&EpisodeId) -> Result<Vec<Trajectory>, E>,
) -> Result<(), E> {
    if let Some(reason) = objection(&members, filter) {
        ready.leave_out(reason, 1);
        return Ok(());
    }
    let n_failed = members.iter().filter(|member| member.failed).count();
    let scenario_id = members.iter().find_map(|member| member.scenario_id.clone());
    let mut episodes = Vec::new();
    let (mut n_trajectories, mut n_without_logprobs) = (0, 0);
    for member in members.into_iter().filter(|member| !member.failed) {
        let Some(reward) = member.reward else { continue };
        let mut trajectories = load(&member.episode_id)?;
        let n_loaded = trajectories.len();
        if trajectories.iter().any(|trajectory| is_stale(trajectory, filter)) {
            ready.leave_out(LeftOut::Stale, 1);
            return Ok(());
        }
        trajectories.retain(Trajectory::has_behaviour_logprobs);
        n_trajectories += n_loaded;
        n_without_logprobs += n_loaded - trajectories.len();
        episodes.push(GroupEpisode {
            episode_id: member.episode_id,
            reward,
            metrics: member.metrics,
            trajectories,
        });
    }
    if n_trajectories == 0 {
        ready.leave_out(LeftOut::NoTokenIds, 1);
        return Ok(());
    }
    ready.leave_out(LeftOut::NoLogprobs, n_without_logprobs);
    ready.groups.push(TrajectoryGroup {
        group_id,
        scenario_id,
        episodes,
        n_failed,
    });
    Ok(())
}

/// What speaks against a group, by its episodes alone.
fn objection(members: &[Member], filter: &ReadyFilter) -> Option<LeftOut> {
    let n_failed = members.iter().filter(|member| member.failed).count();
    let mut sound = members.iter().filter(|member| !member.failed);
    if members.iter().any(|member| member.open) {
        Some(LeftOut::Open)
    } else if members.len() < filter.min_episodes {
        Some(LeftOut::Incomplete)
    } else if n_failed > filter.max_failed || n_failed == members.len() {
        Some(LeftOut::TooManyFailed)
    } else if sound.clone().any(|member| member.tainted) {
        Some(LeftOut::Tainted)
    } else if sound.any(|member| member.reward.is_none()) {
        Some(LeftOut::NoReward)
    } else {
        None
    }
}

fn is_stale(trajectory: &Trajectory, filter: &ReadyFilter) -> bool {
    let Some(max_staleness) = filter.max_staleness else {
        return false;
    };
    let sampled = trajectory
        .sampled_mask
        .iter()
        .zip(&trajectory.policy_versions)
        .filter(|(sampled, _)| **sampled);
    sampled.map(|(_, version)| version).any(|version| match version {
        Some(version) => filter.current_version.0.saturating_sub(version.0) > max_staleness,
        None => true,
    })
}

/// Groups of exported episodes, by the same rules as those of a store. Groups come in the order of their first episode.
pub fn ready_exported(episodes: Vec<ExportedEpisode>, filter: &ReadyFilter) -> ReadyGroups {
    let mut ready = ReadyGroups::default();
    let mut groups: Vec<(GroupId, Vec<ExportedEpisode>)> = Vec::new();
    for episode in episodes {
        let Some(group_id) = episode.group_id.clone() else {
            ready.leave_out(LeftOut::Ungrouped, 1);
            continue;
        };
        let wanted = filter.group_ids.as_ref().is_none_or(|ids| ids.contains(&group_id));
        if !wanted
            || filter
                .split
                .is_some_and(|split| episode.split.is_some_and(|other| other != split))
        {
            continue;
        }
        match groups.iter_mut().find(|(id, _)| *id == group_id) {
            Some((_, episodes)) => episodes.push(episode),
            None => groups.push((group_id, vec![episode])),
        }
    }
    for (group_id, episodes) in groups {
        if filter.limit.is_some_and(|limit| ready.groups.len() >= limit) {
            break;
        }
        let members = episodes.iter().map(ExportedEpisode::member).collect();
        let load = |id: &EpisodeId| {
            let episode = episodes.iter().find(|episode| episode.episode_id == *id);
            Ok::<_, std::convert::Infallible>(episode.map(|episode| episode.trajectories.clone()).unwrap_or_default())
        };
        let Ok(()) = assemble(group_id, members, filter, &mut ready, load);
    }
    ready
}
