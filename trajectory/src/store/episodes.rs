//! Episodes in the store: opening, appending, closing, rewarding, reading.

use rand::Rng;
use rusqlite::{Connection, OptionalExtension, named_params};
use serde_json::{Map, Value};

use super::rows::{self, get, json, optional_unsigned, parse_json};
use super::schema::REWARDS;
use super::sqlite::Fault;
use super::{EpisodeFilter, RewardRevision, Store, reading};
use crate::call::{ModelCall, ToolCall};
use crate::clock::now_ms;
use crate::episode::{CloseEpisode, Episode, EpisodeRecord, EpisodeState, NewEpisode};
use crate::error::StoreError;
use crate::id::{CallId, EpisodeId};

impl Store {
    /// Opens an episode: gives it an id and a secret.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn open_episode(&self, new: NewEpisode) -> Result<Episode, StoreError> {
        let episode = Episode {
            id: EpisodeId::new(),
            secret: format!("{:032x}", rand::rng().random::<u128>()),
            scenario_id: new.scenario_id,
            group_id: new.group_id,
            split: new.split,
            metadata: new.metadata,
            overrides: new.overrides,
            upstream: new.upstream,
            agent_command: new.agent_command,
            implicit: new.implicit,
            state: EpisodeState::Open,
            reward: None,
            metrics: Map::new(),
            stop_reason: None,
            failure: None,
            tainted: None,
            opened_at_ms: now_ms(),
            closed_at_ms: None,
        };
        self.write("open an episode", move |connection| {
            rows::insert_episode(connection, &episode)?;
            Ok(episode)
        })
    }

    /// One episode; `None` where there is no such.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn episode(&self, id: &EpisodeId) -> Result<Option<Episode>, StoreError> {
        self.read("read an episode", |connection| reading::episode(connection, id))
    }

    /// One episode with its calls and tool calls, as of one moment; `None` where there is no such.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn record(&self, id: &EpisodeId) -> Result<Option<EpisodeRecord>, StoreError> {
        self.read("read an episode", |connection| reading::record(connection, id))
    }

    /// Episodes, newest first.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn episodes(&self, filter: &EpisodeFilter) -> Result<Vec<Episode>, StoreError> {
        self.read("list episodes", |connection| reading::episodes(connection, filter))
    }

    /// Appends a call to its episode and returns the sequence number that it got; the one in `call` is passed over.
    /// A call that ends after its episode was closed is recorded too.
    ///
    /// # Errors
    /// No such episode, or the store can't be written.
    pub fn append_call(&self, mut call: ModelCall) -> Result<u32, StoreError> {
        self.write("record a model call", move |connection| {
            call.sequence = next_sequence(connection, "calls", &call.episode_id)?;
            rows::insert_call(connection, &call)?;
            Ok(call.sequence)
        })
    }

    /// Appends a tool call to its episode and returns the sequence number that it got.
    ///
    /// # Errors
    /// No such episode, or the store can't be written.
    pub fn append_tool_call(&self, mut call: ToolCall) -> Result<u32, StoreError> {
        self.write("record a tool call", move |connection| {
            call.sequence = next_sequence(connection, "tool_calls", &call.episode_id)?;
            rows::insert_tool_call(connection, &call)?;
            Ok(call.sequence)
        })
    }

    /// Closes an episode, and records the reward where there is one.
    ///
    /// # Errors
    /// No such episode, closed already, a reward that isn't finite, or the store can't be written.
    pub fn close_episode(&self, id: &EpisodeId, close: CloseEpisode) -> Result<Episode, StoreError> {
        let id = id.clone();
        self.write("close an episode", move |connection| {
            match state(connection, &id)? {
                EpisodeState::Open => {}
                EpisodeState::Closed => return Err(StoreError::AlreadyClosed(id).into()),
            }
            let sql = "UPDATE episodes SET state = :state, stop_reason = :stop_reason, failure_cause = :failure_cause, \
                       failure_message = :failure_message, metrics = :metrics, closed_at_ms = :closed_at_ms \
                       WHERE id = :id";
            connection.prepare(sql)?.execute(named_params! {
                ":id": id.as_str(),
                ":state": EpisodeState::Closed.as_str(),
                ":stop_reason": close.stop_reason,
                ":failure_cause": close.failure.as_ref().map(|failure| failure.cause.as_str()),
                ":failure_message": close.failure.as_ref().map(|failure| failure.message.as_str()),
                ":metrics": json(&close.metrics),
                ":closed_at_ms": now_ms(),
            })?;
            if let Some(reward) = close.reward {
                append_reward(connection, &id, reward, &Map::new(), None)?;
            }
            reading::episode(connection, &id)?.ok_or_else(|| StoreError::UnknownEpisode(id).into())
        })
    }

    /// Sets an episode's reward, or amends it: the first write stays in the record and this one becomes a revision.
    ///
    /// # Errors
    /// No such episode, a reward that isn't finite, or the store can't be written.
    pub fn set_reward(
        &self,
        id: &EpisodeId,
        reward: f64,
        metrics: Map<String, Value>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        let (id, source) = (id.clone(), source.map(str::to_owned));
        self.write("record a reward", move |connection| {
            state(connection, &id)?;
            append_reward(connection, &id, reward, &metrics, source.as_deref())
        })
    }

    /// Every write of an episode's reward, the first one first.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn reward_revisions(&self, id: &EpisodeId) -> Result<Vec<RewardRevision>, StoreError> {
        self.read("read rewards", |connection| {
            let sql = format!(
                "SELECT {} FROM rewards WHERE episode_id = ?1 ORDER BY revision",
                REWARDS.column_list_qualified()
            );
            let mut statement = connection.prepare(&sql)?;
            let mut rows = statement.query([id.as_str()])?;
            let mut revisions = Vec::new();
            while let Some(row) = rows.next()? {
                revisions.push(RewardRevision {
                    revision: optional_unsigned(row, "revision")?.unwrap_or(0),
                    reward: get(row, "reward")?,
                    metrics: parse_json("metrics", &get::<String>(row, "metrics")?)?,
                    source: get(row, "source")?,
                    recorded_at_ms: get(row, "recorded_at_ms")?,
                });
            }
            Ok(revisions)
        })
    }

    /// Marks that an episode's record has a hole. The first reason stays.
    ///
    /// # Errors
    /// No such episode, or the store can't be written.
    pub fn taint(&self, id: &EpisodeId, reason: &str) -> Result<(), StoreError> {
        let (id, reason) = (id.clone(), reason.to_owned());
        self.write("taint an episode", move |connection| {
            state(connection, &id)?;
            let sql = "UPDATE episodes SET tainted = coalesce(tainted, ?2) WHERE id = ?1";
            connection.prepare(sql)?.execute((id.as_str(), reason))?;
            Ok(())
        })
    }

    /// The episode that a call belongs to; `None` where there is no such call.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn episode_of_call(&self, id: &CallId) -> Result<Option<EpisodeId>, StoreError> {
        self.read("find a call", |connection| {
            let mut statement = connection.prepare("SELECT episode_id FROM calls WHERE id = ?1")?;
            let found = statement
                .query_row([id.as_str()], |row| row.get::<_, String>(0))
                .optional()?;
            Ok(found.map(EpisodeId::from))
        })
    }
}

/// The state of an episode that must be there.
fn state(connection: &Connection, id: &EpisodeId) -> Result<EpisodeState, Fault> {
    let mut statement = connection.prepare("SELECT state FROM episodes WHERE id = ?1")?;
    let mut rows = statement.query([id.as_str()])?;
    match rows.next()? {
        Some(row) => rows::word(row, "state"),
        None => Err(StoreError::UnknownEpisode(id.clone()).into()),
    }
}

/// The number after the last one of an episode that must be there.
fn next_sequence(connection: &Connection, table: &str, id: &EpisodeId) -> Result<u32, Fault> {
    state(connection, id)?;
    let sql = format!("SELECT coalesce(max(sequence), 0) + 1 FROM {table} WHERE episode_id = ?1");
    Ok(connection.prepare(&sql)?.query_row([id.as_str()], |row| row.get(0))?)
}

fn append_reward(
    connection: &Connection,
    id: &EpisodeId,
    reward: f64,
    metrics: &Map<String, Value>,
    source: Option<&str>,
) -> Result<(), Fault> {
    if !reward.is_finite() {
        return Err(StoreError::InvalidReward(reward).into());
    }
    let sql = "SELECT coalesce(max(revision), 0) + 1 FROM rewards WHERE episode_id = ?1";
    let revision: i64 = connection.prepare(sql)?.query_row([id.as_str()], |row| row.get(0))?;
    connection.prepare(&REWARDS.insert())?.execute(named_params! {
        ":episode_id": id.as_str(),
        ":revision": revision,
        ":reward": reward,
        ":metrics": json(metrics),
        ":source": source,
        ":recorded_at_ms": now_ms(),
    })?;
    Ok(())
}
