//! The store: one SQLite file that keeps every episode.
//!
//! One thread writes and commits in groups ([`writer`]); a write has returned when it is durable. Reads run on
//! connections of their own and never wait for writes. Several processes may use one file at a time.

mod reading;
mod rows;
mod schema;
mod sqlite;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rand::Rng;
use rusqlite::{Connection, OptionalExtension, named_params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::rows::{get, json, optional_unsigned, parse_json, to_integer};
use self::schema::{ACKNOWLEDGEMENTS, POLICIES, REWARDS};
use self::sqlite::Fault;
use self::writer::Writer;
use crate::call::{ModelCall, ToolCall};
use crate::clock::now_ms;
use crate::episode::{CloseEpisode, Episode, EpisodeRecord, EpisodeState, NewEpisode, Split};
use crate::error::StoreError;
pub use crate::group::{ReadyFilter, ReadyGroups};
use crate::id::{CallId, EpisodeId, GroupId, PolicyVersion, ScenarioId};

/// Weight of the newest outcome in a recent pass rate. With 0.2 a group of eight moves the rate five sixths of the way
/// to its own, so the rate follows a policy that learns and one lucky episode doesn't decide.
const RECENT_WEIGHT: f64 = 0.2;

/// The recent pass rate before any outcome: nothing is known, and such a scenario is worth trying.
const RECENT_START: f64 = 0.5;

/// Readers kept for reuse; more may be open at a time.
const MAX_IDLE_READERS: usize = 8;

/// What a committed write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// The end of this process at any instant, also by `kill -9`.
    #[default]
    Process,
    /// A power cut too: one fsync a group commit.
    Power,
}

/// Which episodes are listed. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct EpisodeFilter {
    /// Of this group.
    pub group: Option<GroupId>,
    /// In this state.
    pub state: Option<EpisodeState>,
    /// Of this split.
    pub split: Option<Split>,
    /// Of this scenario.
    pub scenario: Option<ScenarioId>,
    /// Most episodes returned, newest first; `None`: all.
    pub limit: Option<usize>,
}

/// One write of an episode's reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardRevision {
    /// 1 for the reward as first given.
    pub revision: u64,
    /// Raw reward.
    pub reward: f64,
    /// Metrics given with it.
    pub metrics: Map<String, Value>,
    /// Who gave it, in the caller's words.
    pub source: Option<String>,
    /// When, in milliseconds since 1970 UTC.
    pub recorded_at_ms: i64,
}

/// The current policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Its version.
    pub version: PolicyVersion,
    /// Its adapter's directory; `None` for the base model.
    #[serde(default)]
    pub adapter: Option<String>,
}

/// How often a scenario was solved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRate {
    /// Episodes with an outcome.
    pub attempts: u64,
    /// Of these, solved.
    pub successes: u64,
    /// Exponential moving average of the outcomes, from 0 to 1; begins at 0.5.
    pub recent: f64,
}

/// What the writer has done since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Writes.
    pub writes: u64,
    /// Transactions that they shared.
    pub commits: u64,
}

/// Handle of an open store. Clones share the file's connections; when the last is dropped, the writer ends.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    writer: Writer,
    idle_readers: Mutex<Vec<Connection>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store at `path`, or makes it; its folder must exist. Writes survive the end of the process.
    ///
    /// # Errors
    /// The file can't be opened, isn't a store, is damaged, or was made by a newer Trainyard.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, Sync::Process)
    }

    /// Opens a store that must be there, for a command that reads.
    ///
    /// # Errors
    /// As [`Store::open`], and where there is no file.
    pub fn open_existing(path: &Path) -> Result<Self, StoreError> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => Self::open(path),
            _ => Err(StoreError::Missing { path: path.to_owned() }),
        }
    }

    /// [`Store::open`] with a choice of what writes survive.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(path: &Path, sync: Sync) -> Result<Self, StoreError> {
        let connection = sqlite::open_writer(path, sync).map_err(|fault| fault.at(path, "be opened"))?;
        let writer = Writer::start(connection).map_err(|error| {
            tracing::error!(%error, "can't start the store's writer thread");
            StoreError::WriterGone { path: path.to_owned() }
        })?;
        Ok(Self { inner: Arc::new(Inner { path: path.to_owned(), writer, idle_readers: Mutex::default() }) })
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What the writer has done.
    pub fn stats(&self) -> StoreStats {
        let counters = &self.inner.writer.counters;
        StoreStats {
            writes: counters.writes.load(Ordering::Relaxed),
            commits: counters.commits.load(Ordering::Relaxed),
        }
    }

    fn write<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.inner.writer.submit(work).map_err(|fault| fault.at(&self.inner.path, action))
    }

    fn read<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let idle = &self.inner.idle_readers;
        let reader = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let done = reader.map_or_else(|| sqlite::open_reader(&self.inner.path), Ok).and_then(|connection| {
            let value = work(&connection)?;
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MAX_IDLE_READERS {
                idle.push(connection);
            }
            Ok(value)
        });
        done.map_err(|fault| fault.at(&self.inner.path, action))
    }

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
            let found = statement.query_row([id.as_str()], |row| row.get::<_, String>(0)).optional()?;
            Ok(found.map(EpisodeId::from))
        })
    }

    /// Groups to train on, oldest first, and how many were left out for which reason.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn ready_groups(&self, filter: &ReadyFilter) -> Result<ReadyGroups, StoreError> {
        self.read("find ready groups", |connection| reading::ready_groups(connection, filter))
    }

    /// Marks groups as trained on in `step`; they are never ready again. Doing it twice changes nothing.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn acknowledge(&self, groups: &[GroupId], step: u64) -> Result<(), StoreError> {
        let groups = groups.to_vec();
        self.write("acknowledge groups", move |connection| {
            let sql = format!("{} ON CONFLICT DO NOTHING", ACKNOWLEDGEMENTS.insert());
            let mut insert = connection.prepare(&sql)?;
            for group in groups {
                insert.execute(named_params! {
                    ":group_id": group.as_str(),
                    ":step": to_integer(step),
                    ":acknowledged_at_ms": now_ms(),
                })?;
            }
            Ok(())
        })
    }

    /// The current policy: the base model until one is set.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn policy(&self) -> Result<Policy, StoreError> {
        self.read("read the policy", |connection| {
            let mut statement = connection.prepare("SELECT version, adapter FROM policies ORDER BY rowid DESC LIMIT 1")?;
            let mut rows = statement.query([])?;
            let Some(row) = rows.next()? else { return Ok(Policy::default()) };
            let version = PolicyVersion(optional_unsigned(row, "version")?.unwrap_or(0));
            Ok(Policy { version, adapter: get(row, "adapter")? })
        })
    }

    /// Makes a policy current. Earlier ones stay in the record.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn set_policy(&self, policy: &Policy) -> Result<(), StoreError> {
        let policy = policy.clone();
        self.write("set the policy", move |connection| {
            connection.prepare(&POLICIES.insert())?.execute(named_params! {
                ":version": to_integer(policy.version.0),
                ":adapter": policy.adapter,
                ":switched_at_ms": now_ms(),
            })?;
            Ok(())
        })
    }

    /// Counts an outcome of a scenario.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn record_outcome(&self, scenario: &ScenarioId, success: bool) -> Result<(), StoreError> {
        let scenario = scenario.clone();
        self.write("record an outcome", move |connection| {
            let outcome = f64::from(u8::from(success));
            let sql = "INSERT INTO pass_rates (scenario_id, attempts, successes, recent) \
                       VALUES (:scenario_id, 1, :success, :start + :weight * (:outcome - :start)) \
                       ON CONFLICT (scenario_id) DO UPDATE SET attempts = attempts + 1, \
                       successes = successes + :success, recent = recent + :weight * (:outcome - recent)";
            connection.prepare(sql)?.execute(named_params! {
                ":scenario_id": scenario.as_str(),
                ":success": success,
                ":outcome": outcome,
                ":weight": RECENT_WEIGHT,
                ":start": RECENT_START,
            })?;
            Ok(())
        })
    }

    /// Pass rates of every scenario that has an outcome.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn pass_rates(&self) -> Result<HashMap<ScenarioId, PassRate>, StoreError> {
        self.read("read pass rates", |connection| {
            let mut statement = connection.prepare("SELECT scenario_id, attempts, successes, recent FROM pass_rates")?;
            let mut rows = statement.query([])?;
            let mut rates = HashMap::new();
            while let Some(row) = rows.next()? {
                let rate = PassRate {
                    attempts: optional_unsigned(row, "attempts")?.unwrap_or(0),
                    successes: optional_unsigned(row, "successes")?.unwrap_or(0),
                    recent: get(row, "recent")?,
                };
                rates.insert(get::<String>(row, "scenario_id")?.into(), rate);
            }
            Ok(rates)
        })
    }

    /// A small value kept by `key`; `None` where there is none.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn meta_get(&self, key: &str) -> Result<Option<Value>, StoreError> {
        self.read("read a value", |connection| {
            let mut statement = connection.prepare("SELECT value FROM meta WHERE key = ?1")?;
            let text = statement.query_row([key], |row| row.get::<_, String>(0)).optional()?;
            text.map(|text| parse_json("meta.value", &text)).transpose()
        })
    }

    /// Keeps a small value by `key`, in place of the one before.
    ///
    /// # Errors
    /// The store can't be written.
    pub fn meta_set(&self, key: &str, value: &Value) -> Result<(), StoreError> {
        let (key, value) = (key.to_owned(), json(value));
        self.write("keep a value", move |connection| {
            let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
            connection.prepare(sql)?.execute((key, value))?;
            Ok(())
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

#[cfg(test)]
mod tests;
