//! Connections to the store's file, and what SQLite's errors mean to a reader.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Sync;
use super::schema::{APPLICATION_ID, INDEXES, MIGRATIONS, SCHEMA_VERSION, TABLES};
use crate::error::StoreError;

/// Another process may hold the write lock for the length of a group commit.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// An error before it is known which store it came from.
#[derive(Debug)]
pub(crate) enum Fault {
    /// SQLite refused.
    Sqlite(rusqlite::Error),
    /// A value has no meaning.
    Value {
        /// Its column.
        column: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The caller asked for something that can't be.
    Refused(StoreError),
    /// The commit of the whole group failed.
    Commit(Arc<rusqlite::Error>),
    /// The writer thread has ended.
    WriterGone,
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Fault {
    /// The error for the caller, who asked the store at `path` to do `action`.
    pub(crate) fn at(self, path: &Path, action: &'static str) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Sqlite(source) => match source.sqlite_error_code() {
                Some(ErrorCode::NotADatabase) => StoreError::NotAStore { path },
                Some(ErrorCode::DatabaseCorrupt) => StoreError::Corrupt { path, source },
                Some(ErrorCode::CannotOpen) => StoreError::Open { path, source },
                _ => StoreError::Sqlite { path, action, source },
            },
            Self::Value { column, problem } => StoreError::Value {
                path,
                column: column.to_owned(),
                problem,
            },
            Self::Refused(error) => error,
            Self::Commit(source) => StoreError::Commit { path, source },
            Self::WriterGone => StoreError::WriterGone { path },
        }
    }
}

/// The connection of the writer thread. Makes the store where the file is new or empty; a file that isn't a store, or
/// a newer one, is left as it is.
pub(crate) fn open_writer(path: &Path, sync: Sync) -> Result<Connection, Fault> {
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
    if version(&connection, path)? == Some(SCHEMA_VERSION) {
        verify(&connection)?;
    } else {
        migrate(&mut connection, path)?;
    }
    // Readers and the writer don't block each other in this mode, and a commit is one append to a log file.
    connection.pragma_update(None, "journal_mode", "wal")?;
    let level = match sync {
        Sync::Process => "normal",
        Sync::Power => "full",
    };
    connection.pragma_update(None, "synchronous", level)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    Ok(connection)
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, Fault> {
    let connection = connect(path, OpenFlags::empty())?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn connect(path: &Path, more: OpenFlags) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_LIMIT)?;
    Ok(connection)
}

/// The schema version of a store; `None` for an empty file.
fn version(connection: &Connection, path: &Path) -> Result<Option<i64>, Fault> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, found) = (number("application_id")?, number("user_version")?);
    let n_objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if (application, found, n_objects) == (0, 0, 0) {
        return Ok(None);
    }
    if application != APPLICATION_ID {
        return Err(StoreError::NotAStore { path: path.to_owned() }.into());
    }
    if found > SCHEMA_VERSION {
        return Err(StoreError::NewerSchema {
            path: path.to_owned(),
            found,
            supported: SCHEMA_VERSION,
        }
        .into());
    }
    Ok(Some(found))
}

/// Touches each table, so that a file cut short is found now and not in the middle of a run.
fn verify(connection: &Connection) -> Result<(), Fault> {
    for table in TABLES {
        let sql = format!("SELECT 1 FROM {} LIMIT 1", table.name);
        connection.prepare(&sql)?.exists([])?;
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), Fault> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    // Read again under the lock: another process may have done it meanwhile.
    let done = version(&transaction, path)?;
    match done {
        None => {
            for table in TABLES {
                transaction.execute_batch(&table.create())?;
            }
            for index in INDEXES {
                transaction.execute_batch(index)?;
            }
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        Some(from) => {
            let steps = usize::try_from(from).unwrap_or(1).max(1) - 1;
            for step in &MIGRATIONS[steps.min(MIGRATIONS.len())..] {
                transaction.execute_batch(step)?;
            }
        }
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()?;
    Ok(())
}
