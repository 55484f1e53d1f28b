//! What can go wrong with a store or an export file. Paths and names are fields of the messages, causes are sources.

use std::path::PathBuf;
use std::sync::Arc;

use crate::id::EpisodeId;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file isn't there, and was not to be made.
    #[error("there is no trajectory store at {path}; pass the trajectories.db of a run, or the proxy's --store file")]
    Missing {
        /// The store's file.
        path: PathBuf,
    },
    /// The file can't be opened or made.
    #[error("can't open the trajectory store {path}; check that its folder exists and may be written")]
    Open {
        /// The store's file.
        path: PathBuf,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// Another process records there.
    #[error("another trainyard records to {path}; let it end first, or name another file")]
    InUse {
        /// The store's file.
        path: PathBuf,
    },
    /// The lock beside the file can't be taken.
    #[error("can't lock {path}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{path} is not a trajectory store; nothing was changed, pass another file")]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// A later Trainyard made the file.
    #[error(
        "{path} has store schema {found} and this trainyard knows schemas up to {supported}; use the newer trainyard \
         that wrote it"
    )]
    NewerSchema {
        /// The store's file.
        path: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest one that is understood.
        supported: i64,
    },
    /// SQLite finds the file damaged.
    #[error("{path} is damaged; restore it from a copy, or save what is left with sqlite3's .recover")]
    Corrupt {
        /// The store's file.
        path: PathBuf,
        /// SQLite's finding.
        #[source]
        source: rusqlite::Error,
    },
    /// A stored value has no meaning.
    #[error("{path} holds an unreadable value in {column}: {problem}")]
    Value {
        /// The store's file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Any other refusal of SQLite.
    #[error("the trajectory store {path} could not {action}")]
    Sqlite {
        /// The store's file.
        path: PathBuf,
        /// What was asked.
        action: &'static str,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// A group commit failed; none of its writes took place.
    #[error("the trajectory store {path} could not commit; check for free space on its disk")]
    Commit {
        /// The store's file.
        path: PathBuf,
        /// SQLite's reason, shared by every write of the group.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The writer thread could not start or has ended.
    #[error("the writer of the trajectory store {path} is not running; restart trainyard")]
    WriterGone {
        /// The store's file.
        path: PathBuf,
    },
    /// No such episode.
    #[error("there is no episode {0}")]
    UnknownEpisode(EpisodeId),
    /// An episode closes once.
    #[error("episode {0} is closed already; amend its reward by another revision")]
    AlreadyClosed(EpisodeId),
    /// A reward that can't be compared.
    #[error("the reward {0} is not a finite number")]
    InvalidReward(f64),
}

/// Why exported episodes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The reader failed.
    #[error("line {line} can't be read")]
    Read {
        /// Line number from 1.
        line: usize,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line of a file, with what is wrong with it.
    #[error("line {line} is not an exported episode")]
    Line {
        /// Line number from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: Box<ExportError>,
    },
    /// Not JSON, or a field of another form.
    #[error("not an episode in the form 'trainyard.episode/1'")]
    Form(#[source] serde_json::Error),
    /// Another schema.
    #[error("its schema is '{0}' and this trainyard reads 'trainyard.episode/1'")]
    Schema(String),
    /// Arrays that contradict each other.
    #[error("trajectory {trajectory}: {problem}")]
    Trajectory {
        /// Place in the episode's list, from 0.
        trajectory: usize,
        /// What is wrong with it.
        problem: String,
    },
}
