//! The store: one SQLite file that keeps every episode.
//!
//! One thread writes and commits in groups ([`writer`]); a write has returned when it is durable. Reads run on
//! connections of their own and never wait for writes. Several processes may use one file at a time, but only one may
//! record episodes ([`Store::open_to_record`]).

mod episodes;
mod reading;
mod rows;
mod schema;
mod sqlite;
mod training;
mod writer;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::sqlite::Fault;
use self::writer::Writer;
use crate::episode::{EpisodeState, Split};
use crate::error::StoreError;
pub use crate::group::{ReadyFilter, ReadyGroups};
use crate::id::{GroupId, PolicyVersion, ScenarioId};

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
    /// Held by the one process that records; the system releases it however that process ends.
    _recording: Option<File>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
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

    /// Opens the store for the one process that records episodes in it, until the last handle is dropped: a recorder
    /// marks what its predecessor left open as tainted, and must not do that to one that lives. Readers are not kept out.
    ///
    /// # Errors
    /// As [`Store::open`], and where another process records there already.
    pub fn open_to_record(path: &Path) -> Result<Self, StoreError> {
        // Not on the store's own file: when a process closes one of its handles, SQLite's locks are lost with it.
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock_path = PathBuf::from(name);
        let lock = |source| StoreError::Lock {
            path: lock_path.clone(),
            source,
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let file = options.open(&lock_path).map_err(lock)?;
        match file.try_lock() {
            Ok(()) => Self::open_locked(path, Sync::Process, Some(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(lock(source)),
        }
    }

    /// [`Store::open`] with a choice of what writes survive.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(path: &Path, sync: Sync) -> Result<Self, StoreError> {
        Self::open_locked(path, sync, None)
    }

    fn open_locked(path: &Path, sync: Sync, recording: Option<File>) -> Result<Self, StoreError> {
        let connection = sqlite::open_writer(path, sync).map_err(|fault| fault.at(path, "be opened"))?;
        let writer = Writer::start(connection).map_err(|error| {
            tracing::error!(%error, "can't start the store's writer thread");
            StoreError::WriterGone { path: path.to_owned() }
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                writer,
                idle_readers: Mutex::default(),
                _recording: recording,
            }),
        })
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
        self.inner
            .writer
            .submit(work)
            .map_err(|fault| fault.at(&self.inner.path, action))
    }

    fn read<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let idle = &self.inner.idle_readers;
        let reader = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let done = reader
            .map_or_else(|| sqlite::open_reader(&self.inner.path), Ok)
            .and_then(|connection| {
                let value = work(&connection)?;
                let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
                if idle.len() < MAX_IDLE_READERS {
                    idle.push(connection);
                }
                Ok(value)
            });
        done.map_err(|fault| fault.at(&self.inner.path, action))
    }
}

#[cfg(test)]
mod tests;
