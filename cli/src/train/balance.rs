//! Evens out what a step learns about the kinds of scenario.
//!
//! A policy that answers one kind nearly always and another hardly ever gets ten right episodes of the first for each of
//! the second, and learning from them as they come teaches it to treat every question like the first. So a step takes
//! about as many right episodes of each kind: of a kind with more, the groups in which few were right go first, since they
//! say most; of a kind with fewer, groups of earlier steps are played again, the newest first. Their importance ratios
//! are those of the policy that sampled them: where the policy has since unlearnt a token, the ratio is near 0 and takes the
//! token's gradient with it, so the loss `cispo` with `clip_low = 0`, a ratio of at least 1, is what brings a kind back.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use trajectory::{EpisodeFilter, GroupId, ReadyFilter, ScenarioId, Split, Store, StoreError, TrajectoryGroup};

/// An episode with at least this reward is right; rounding in a reward is no error.
const RIGHT: f64 = 1.0 - 1e-9;

/// What balancing did to a step's groups.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Balance {
    /// Groups of earlier steps that are trained on again.
    pub(crate) groups_replayed: usize,
    /// Groups of this step that are not trained on, since their kind has enough.
    pub(crate) groups_set_aside: usize,
}

/// `groups` with about `wanted` right episodes of each kind, from this step or earlier ones.
///
/// # Errors
/// The store can't be read.
pub(crate) fn balance(
    store: &Store,
    kinds: &HashMap<ScenarioId, String>,
    groups: Vec<TrajectoryGroup>,
    wanted: usize,
    max_failed: usize,
) -> Result<(Vec<TrajectoryGroup>, Balance), StoreError> {
    let kind_of = |scenario: Option<&ScenarioId>| scenario.and_then(|id| kinds.get(id)).map(String::as_str);
    let n_groups = groups.len();
    let (mut kept, mut right) = enough_of_each(groups, |group| kind_of(group.scenario_id.as_ref()), wanted);
    let groups_set_aside = n_groups - kept.len();

    let trained = store.trained_groups()?;
    let earlier = store.episodes(&EpisodeFilter {
        split: Some(Split::Train),
        ..EpisodeFilter::default()
    })?;
    let mut again: Vec<GroupId> = Vec::new();
    let mut counted: HashMap<GroupId, bool> = HashMap::new();
    for episode in earlier {
        let (Some(group), Some(kind)) = (episode.group_id, kind_of(episode.scenario_id.as_ref())) else {
            continue;
        };
        if !trained.contains(&group) || episode.reward.is_none_or(|reward| reward < RIGHT) {
            continue;
        }
        let n_right = right.entry(kind.to_owned()).or_default();
        let taken = *counted.entry(group.clone()).or_insert_with(|| {
            let lacks = *n_right < wanted;
            if lacks {
                again.push(group);
            }
            lacks
        });
        *n_right += usize::from(taken);
    }
    let replayed = store.ready_groups(&ReadyFilter {
        split: Some(Split::Train),
        group_ids: Some(again),
        trained: true,
        max_failed,
        ..ReadyFilter::default()
    })?;
    let balance = Balance {
        groups_replayed: replayed.groups.len(),
        groups_set_aside,
    };
    kept.extend(replayed.groups);
    Ok((kept, balance))
}

/// The groups without those that go beyond `wanted` right episodes of a kind, in their order, and how many right ones each
/// kind has. Groups in which nothing is right stay: they may still tell better from worse.
fn enough_of_each<'a>(
    groups: Vec<TrajectoryGroup>,
    kind_of: impl Fn(&TrajectoryGroup) -> Option<&'a str>,
    wanted: usize,
) -> (Vec<TrajectoryGroup>, BTreeMap<String, usize>) {
    let n_right = |group: &TrajectoryGroup| group.rewards().iter().filter(|&&reward| reward >= RIGHT).count();
    let mut rarest_first: Vec<usize> = (0..groups.len()).collect();
    rarest_first.sort_by_key(|&at| n_right(&groups[at]));
    let mut right: BTreeMap<String, usize> = BTreeMap::new();
    let mut keep = vec![true; groups.len()];
    for at in rarest_first {
        let Some(kind) = kind_of(&groups[at]) else { continue };
        let so_far = right.entry(kind.to_owned()).or_default();
        let more = n_right(&groups[at]);
        keep[at] = more == 0 || *so_far < wanted;
        *so_far += if keep[at] { more } else { 0 };
    }
    let kept = groups.into_iter().zip(keep).filter(|(_, keep)| *keep);
    (kept.map(|(group, _)| group).collect(), right)
}

#[cfg(test)]
#[path = "balance/tests.rs"]
mod tests;
