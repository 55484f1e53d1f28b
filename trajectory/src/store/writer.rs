//! The one thread that writes, with group commit.
//!
//! Callers hand over closures and wait. The thread takes everything that is queued, runs it in one transaction, each
//! closure in a savepoint of its own so that one that fails undoes only itself, commits, and only then answers. So the
//! cost of a commit is shared by all who wait, and whoever has an answer has it on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::sqlite::Fault;

/// Bounds the time that the first caller of a group waits for the rest of it.
const MAX_GROUP: usize = 256;

/// Counters of the writer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) commits: AtomicU64,
}

/// Handle of the writer thread. Dropping it ends the thread after what is queued.
pub(crate) struct Writer {
    queue: Option<Sender<Box<dyn Write>>>,
    thread: Option<JoinHandle<()>>,
    pub(crate) counters: Arc<Counters>,
}

impl Writer {
    /// Starts the thread, which owns the connection from now on.
    pub(crate) fn start(connection: Connection) -> std::io::Result<Self> {
        let (queue, waiting) = channel();
        let counters = Arc::new(Counters::default());
        let counted = Arc::clone(&counters);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || run(&connection, &waiting, &counted))?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            counters,
        })
    }

    /// Runs `work` in the next group and returns its result once the group is committed.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (reply, answer) = sync_channel(1);
        let write = Pending {
            work: Some(work),
            outcome: None,
            reply,
        };
        let queue = self.queue.as_ref().ok_or(Fault::WriterGone)?;
        queue.send(Box::new(write)).map_err(|_| Fault::WriterGone)?;
        answer.recv().map_err(|_| Fault::WriterGone)?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

fn run(connection: &Connection, waiting: &Receiver<Box<dyn Write>>, counters: &Counters) {
    while let Ok(first) = waiting.recv() {
        let mut group = vec![first];
        while group.len() < MAX_GROUP
            && let Ok(write) = waiting.try_recv()
        {
            group.push(write);
        }
        let committed = commit(connection, &mut group).map_err(Arc::new);
        if let Err(error) = &committed {
            tracing::error!(%error, writes = group.len(), "the store could not commit");
        }
        counters.writes.fetch_add(group.len() as u64, Ordering::Relaxed);
        counters.commits.fetch_add(1, Ordering::Relaxed);
        for write in group {
            write.answer(&committed);
        }
    }
}

fn commit(connection: &Connection, group: &mut [Box<dyn Write>]) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = apply(connection, group).and_then(|()| connection.execute_batch("COMMIT"));
    // Some errors end the transaction by themselves.
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    done
}

fn apply(connection: &Connection, group: &mut [Box<dyn Write>]) -> rusqlite::Result<()> {
    for write in group {
        connection.execute_batch("SAVEPOINT one")?;
        if !write.apply(connection) {
            connection.execute_batch("ROLLBACK TO one")?;
        }
        connection.execute_batch("RELEASE one")?;
    }
    Ok(())
}

/// A write whose result type is hidden.
trait Write: Send {
    /// Does it; false to undo it.
    fn apply(&mut self, connection: &Connection) -> bool;

    /// Answers the caller, who may have gone.
    fn answer(self: Box<Self>, committed: &Result<(), Arc<rusqlite::Error>>);
}

struct Pending<T, F> {
    work: Option<F>,
    outcome: Option<Result<T, Fault>>,
    reply: SyncSender<Result<T, Fault>>,
}

impl<T: Send, F: FnOnce(&Connection) -> Result<T, Fault> + Send> Write for Pending<T, F> {
    fn apply(&mut self, connection: &Connection) -> bool {
        let outcome = self.work.take().map(|work| work(connection));
        let keep = matches!(outcome, Some(Ok(_)));
        self.outcome = outcome;
        keep
    }

    fn answer(self: Box<Self>, committed: &Result<(), Arc<rusqlite::Error>>) {
        let outcome = match (self.outcome, committed) {
            (Some(Err(fault)), _) => Err(fault),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (_, Err(error)) => Err(Fault::Commit(Arc::clone(error))),
            (None, Ok(())) => Err(Fault::WriterGone),
        };
        let _ = self.reply.send(outcome);
    }
}
