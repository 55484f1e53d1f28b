//! The driver's end of the socket to the fork server: requests with descriptors out, JSON lines in.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::script_position;
use crate::launcher::process_group::ProcessGroup;
use crate::launcher::{Exit, LaunchError, LaunchRequest};

#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    argv: &'a [String],
    env: &'a BTreeMap<String, String>,
    cwd: &'a Path,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reply {
    pub(super) ready: bool,
    pub(super) modules: Vec<String>,
    pub(super) seconds: f64,
    id: u64,
    pid: Option<u32>,
    code: Option<i32>,
    signal: Option<i32>,
    pub(super) failed: Option<String>,
}

/// The next reply; `None` at the end, or where it is not one.
pub(super) async fn read_reply(lines: &mut BufReader<OwnedReadHalf>) -> Option<Reply> {
    let mut line = String::new();
    match lines.read_line(&mut line).await {
        Ok(n_bytes) if n_bytes > 0 => serde_json::from_str(&line).ok(),
        _ => None,
    }
}

#[derive(Default)]
struct Pending {
    next_id: u64,
    started: HashMap<u64, oneshot::Sender<Result<u32, String>>>,
    exited: HashMap<u64, oneshot::Sender<Exit>>,
    closed: bool,
}

/// Hands every reply to the launch that waits for it, until the server closes its end.
async fn deliver_replies(mut lines: BufReader<OwnedReadHalf>, pending: Arc<Mutex<Pending>>) {
    while let Some(reply) = read_reply(&mut lines).await {
        let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
        // A receiver that is gone belongs to a launch that was given up; its process group is killed by its guard.
        match reply {
            Reply { id, pid: Some(pid), .. } => {
                if let Some(started) = pending.started.remove(&id) {
                    let _ = started.send(Ok(pid));
                }
            }
            Reply {
                id,
                failed: Some(reason),
                ..
            } => {
                pending.exited.remove(&id);
                if let Some(started) = pending.started.remove(&id) {
                    let _ = started.send(Err(reason));
                }
            }
            Reply { id, code, signal, .. } => {
                if let Some(exited) = pending.exited.remove(&id) {
                    let _ = exited.send(signal.map_or_else(|| Exit::Code(code.unwrap_or_default()), Exit::Signal));
                }
            }
        }
    }
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    pending.closed = true;
    // Dropping the senders wakes everybody who waits.
    pending.started.clear();
    pending.exited.clear();
}

/// The driver's end of the socket.
#[derive(Clone)]
pub(in crate::launcher) struct Connection {
    stream: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    pending: Arc<Mutex<Pending>>,
}

impl Connection {
    /// A connection over both halves of the socket, and the task that reads.
    pub(super) fn new(lines: BufReader<OwnedReadHalf>, write_half: OwnedWriteHalf) -> (Self, AbortHandle) {
        let pending = Arc::new(Mutex::new(Pending::default()));
        let reader = tokio::spawn(deliver_replies(lines, Arc::clone(&pending))).abort_handle();
        let stream = Arc::new(tokio::sync::Mutex::new(write_half));
        (Self { stream, pending }, reader)
    }

    /// True when the server has gone.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks one agent. The first words of the request's command are the interpreter's, which the child shares.
    pub(in crate::launcher) async fn fork(
        &self,
        request: LaunchRequest,
    ) -> Result<(ProcessGroup, ForkedExit), LaunchError> {
        let connection = self.clone();
        // In a task of its own: half a request must not stay in the socket, nor a child unknown, when the caller gives up.
        let fork = tokio::spawn(async move { connection.fork_uncancelled(request).await });
        fork.await.unwrap_or_else(|error| {
            Err(LaunchError::ForkServer {
                reason: error.to_string(),
            })
        })
    }

    async fn fork_uncancelled(&self, request: LaunchRequest) -> Result<(ProcessGroup, ForkedExit), LaunchError> {
        let failed = |reason: String| LaunchError::ForkServer { reason };
        let n_interpreter = script_position(&request.command).ok_or_else(|| LaunchError::NotAScript {
            command: request.command.join(" "),
        })?;
        let (started_sender, started) = oneshot::channel();
        let (exited_sender, exited) = oneshot::channel();
        let id = {
            let mut pending = self.lock();
            if pending.closed {
                return Err(failed("its server has ended".into()));
            }
            pending.next_id += 1;
            let id = pending.next_id;
            pending.started.insert(id, started_sender);
            pending.exited.insert(id, exited_sender);
            id
        };
        let message = Request {
            id,
            argv: &request.command[n_interpreter..],
            env: &request.environment,
            cwd: &request.directory,
        };
        let body = serde_json::to_vec(&message).map_err(|error| failed(error.to_string()))?;
        let descriptors = [request.stdin.as_fd(), request.stdout.as_fd(), request.stderr.as_fd()];
        self.send(&body, &descriptors)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let pid = match started.await {
            Ok(Ok(pid)) => pid,
            Ok(Err(reason)) => return Err(failed(reason)),
            Err(_) => return Err(failed("its server has ended".into())),
        };
        let group = ProcessGroup::new(pid).ok_or_else(|| failed(format!("it reported process {pid}")))?;
        Ok((group, ForkedExit { exited }))
    }

    /// Sends length, descriptors and body, whole and in order.
    async fn send(&self, body: &[u8], descriptors: &[BorrowedFd<'_>; 3]) -> std::io::Result<()> {
        let length = u32::try_from(body.len()).map_err(std::io::Error::other)?.to_be_bytes();
        let stream = self.stream.lock().await;
        let socket: &UnixStream = stream.as_ref();
        // The four bytes that carry the descriptors fit into an empty or writable socket buffer at once.
        socket
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                control.push(SendAncillaryMessage::ScmRights(descriptors));
                Ok(rustix::net::sendmsg(
                    socket,
                    &[IoSlice::new(&length)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                )?)
            })
            .await?;
        let mut rest = body;
        while !rest.is_empty() {
            socket.writable().await?;
            match socket.try_write(rest) {
                Ok(n_bytes) => rest = &rest[n_bytes..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The end of a forked agent.
pub(in crate::launcher) struct ForkedExit {
    exited: oneshot::Receiver<Exit>,
}

impl ForkedExit {
    pub(in crate::launcher) async fn wait(&mut self) -> Result<Exit, LaunchError> {
        (&mut self.exited).await.map_err(|_| LaunchError::ForkServer {
            reason: "its server ended while the agent ran".into(),
        })
    }
}
