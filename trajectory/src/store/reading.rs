//! Queries that read episodes, calls and ready groups.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension, named_params};

use super::EpisodeFilter;
use super::rows::{
    get, optional_ids, optional_unsigned, read_call, read_choice, read_episode, read_tool_call, select_episodes,
};
use super::schema::{CALLS, CHOICES, TOOL_CALLS};
use super::sqlite::Fault;
use crate::call::{CallStatus, SampledChoice};
use crate::episode::{Episode, EpisodeRecord, EpisodeState};
use crate::group::{LeftOut, Member, ReadyFilter, ReadyGroups, assemble};
use crate::id::{EpisodeId, GroupId, PolicyVersion};
use crate::stitch::{CallTokens, stitch_tokens};
use crate::trajectory::Trajectory;

/// One episode.
pub(crate) fn episode(connection: &Connection, id: &EpisodeId) -> Result<Option<Episode>, Fault> {
    let mut statement = connection.prepare(&format!("{} WHERE id = ?1", select_episodes()))?;
    let mut rows = statement.query([id.as_str()])?;
    rows.next()?.map(read_episode).transpose()
}

/// Episodes, newest first.
pub(crate) fn episodes(connection: &Connection, filter: &EpisodeFilter) -> Result<Vec<Episode>, Fault> {
    let sql = format!(
        "{} WHERE (:group IS NULL OR group_id = :group) AND (:state IS NULL OR state = :state) \
         AND (:split IS NULL OR split = :split) AND (:scenario IS NULL OR scenario_id = :scenario) \
         ORDER BY opened_at_ms DESC, rowid DESC LIMIT :limit",
        select_episodes()
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(named_params! {
        ":group": filter.group.as_ref().map(|id| id.as_str()),
        ":state": filter.state.map(|state| state.as_str()),
        ":split": filter.split.map(|split| split.as_str()),
        ":scenario": filter.scenario.as_ref().map(|id| id.as_str()),
        ":limit": filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(-1)),
    })?;
    let mut episodes = Vec::new();
    while let Some(row) = rows.next()? {
        episodes.push(read_episode(row)?);
    }
    Ok(episodes)
}

/// One episode with its calls, as of one moment.
pub(crate) fn record(connection: &Connection, id: &EpisodeId) -> Result<Option<EpisodeRecord>, Fault> {
    let snapshot = connection.unchecked_transaction()?;
    let Some(episode) = episode(&snapshot, id)? else {
        return Ok(None);
    };
    let mut choices = choices(&snapshot, id)?;
    let mut calls = Vec::new();
    let sql = format!(
        "SELECT {} FROM calls WHERE episode_id = ?1 ORDER BY sequence",
        CALLS.column_list_qualified()
    );
    let mut statement = snapshot.prepare(&sql)?;
    let mut rows = statement.query([id.as_str()])?;
    while let Some(row) = rows.next()? {
        let mut call = read_call(row)?;
        call.choices = choices.remove(call.id.as_str()).unwrap_or_default();
        calls.push(call);
    }
    let mut tool_calls = Vec::new();
    let columns = TOOL_CALLS.column_list_qualified();
    let sql = format!("SELECT {columns} FROM tool_calls WHERE episode_id = ?1 ORDER BY sequence");
    let mut statement = snapshot.prepare(&sql)?;
    let mut rows = statement.query([id.as_str()])?;
    while let Some(row) = rows.next()? {
        tool_calls.push(read_tool_call(row)?);
    }
    Ok(Some(EpisodeRecord {
        episode,
        calls,
        tool_calls,
    }))
}

/// The choices of an episode's calls, by call.
fn choices(connection: &Connection, id: &EpisodeId) -> Result<HashMap<String, Vec<SampledChoice>>, Fault> {
    let sql = format!(
        "SELECT {} FROM choices JOIN calls ON calls.id = choices.call_id WHERE calls.episode_id = ?1 \
         ORDER BY choices.call_id, choices.choice",
        CHOICES.column_list_qualified()
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([id.as_str()])?;
    let mut choices: HashMap<String, Vec<SampledChoice>> = HashMap::new();
    while let Some(row) = rows.next()? {
        choices.entry(get(row, "call_id")?).or_default().push(read_choice(row)?);
    }
    Ok(choices)
}

/// The token view of an episode, without reading its texts.
fn trajectories(connection: &Connection, id: &EpisodeId) -> Result<Vec<Trajectory>, Fault> {
    let mut choices = choices(connection, id)?;
    let mut statement = connection.prepare(
        "SELECT id, prompt_token_ids, policy_version FROM calls \
         WHERE episode_id = ?1 AND status <> ?2 AND prompt_token_ids IS NOT NULL ORDER BY sequence",
    )?;
    let mut rows = statement.query([id.as_str(), CallStatus::Failed.as_str()])?;
    let mut calls = Vec::new();
    while let Some(row) = rows.next()? {
        let prompt_token_ids = optional_ids(row, "prompt_token_ids")?.unwrap_or_default();
        let choices = choices.remove(&get::<String>(row, "id")?).unwrap_or_default();
        calls.push((
            prompt_token_ids,
            choices,
            optional_unsigned(row, "policy_version")?.map(PolicyVersion),
        ));
    }
    Ok(stitch_tokens(calls.iter().map(
        |(prompt_token_ids, choices, policy_version)| CallTokens {
            prompt_token_ids,
            choices,
            policy_version: *policy_version,
        },
    )))
}

/// Groups to train on, as of one moment.
pub(crate) fn ready_groups(connection: &Connection, filter: &ReadyFilter) -> Result<ReadyGroups, Fault> {
    let snapshot = connection.unchecked_transaction()?;
    let mut ready = ReadyGroups::default();
    for group_id in candidates(&snapshot, filter, &mut ready)? {
        if filter.limit.is_some_and(|limit| ready.groups.len() >= limit) {
            break;
        }
        let members = members(&snapshot, &group_id)?;
        assemble(group_id, members, filter, &mut ready, |id| trajectories(&snapshot, id))?;
    }
    Ok(ready)
}

/// Groups of the wanted split and names that weren't trained on (or were, if `trained`), oldest first.
fn candidates(connection: &Connection, filter: &ReadyFilter, ready: &mut ReadyGroups) -> Result<Vec<GroupId>, Fault> {
    let select = "SELECT group_id FROM episodes WHERE group_id IS NOT NULL AND (?1 IS NULL OR split = ?1)";
    let split = filter.split.map(|split| split.as_str());
    let Some(wanted) = &filter.group_ids else {
        let not = if filter.trained { "" } else { "NOT" };
        let sql = format!(
            "{select} AND group_id {not} IN (SELECT group_id FROM acknowledgements) GROUP BY group_id ORDER BY min(rowid)"
        );
        let mut statement = connection.prepare(&sql)?;
        let ids = statement.query_map([split], |row| row.get::<_, String>(0))?;
        return ids.map(|id| Ok(id?.into())).collect();
    };
    let mut oldest = connection.prepare(
        &format!("{select} AND group_id = ?2 ORDER BY rowid LIMIT 1").replace("SELECT group_id", "SELECT rowid"),
    )?;
    let mut acknowledged = connection.prepare("SELECT 1 FROM acknowledgements WHERE group_id = ?1")?;
    let mut found = BTreeMap::new();
    for id in wanted {
        if acknowledged.exists([id.as_str()])? != filter.trained {
            let reason = if filter.trained {
                LeftOut::Untrained
            } else {
                LeftOut::Acknowledged
            };
            ready.leave_out(reason, 1);
        } else if let Some(place) = oldest
            .query_row((split, id.as_str()), |row| row.get::<_, i64>(0))
            .optional()?
        {
            found.insert(place, id.clone());
        }
    }
    Ok(found.into_values().collect())
}

fn members(connection: &Connection, group_id: &GroupId) -> Result<Vec<Member>, Fault> {
    let mut statement = connection.prepare(&format!("{} WHERE group_id = ?1 ORDER BY rowid", select_episodes()))?;
    let mut rows = statement.query([group_id.as_str()])?;
    let mut members = Vec::new();
    while let Some(row) = rows.next()? {
        let episode = read_episode(row)?;
        members.push(Member {
            open: episode.state == EpisodeState::Open,
            failed: episode.failure.is_some(),
            tainted: episode.tainted.is_some(),
            reward: episode.reward,
            episode_id: episode.id,
            scenario_id: episode.scenario_id,
            metrics: episode.metrics,
        });
    }
    Ok(members)
}
