//! The fork launcher's server process and the connection to it.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::process_group::ProcessGroup;
use super::{Exit, LaunchBase, LaunchError, LaunchRequest};

/// The program that the interpreter runs.
const SERVER: &str = include_str!("fork_server.py");

/// Imports of large packages on a busy machine take their time; an interpreter that says nothing for so long never will.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Options of the Python interpreter that are followed by a value of their own.
const FLAGS_WITH_VALUE: [&str; 2] = ["-W", "-X"];

#[derive(Serialize)]
struct Request<'a> {
    id: u64,
    argv: &'a [String],
    env: &'a BTreeMap<String, String>,
    cwd: &'a Path,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    ready: bool,
    modules: Vec<String>,
    seconds: f64,
    id: u64,
    pid: Option<u32>,
    code: Option<i32>,
    signal: Option<i32>,
    failed: Option<String>,
}

/// An interpreter that has the agent's modules loaded. Dropping it ends it, and with it every agent it has forked.
pub(super) struct ForkServer {
    connection: Connection,
    reader: AbortHandle,
    // Both end the process: the group by signal, the child by being reaped in the background.
    _group: ProcessGroup,
    _child: Child,
}

impl ForkServer {
    /// Starts the interpreter that `command` names with the same flags, and waits until its imports are done.
    pub(super) async fn start(
        command: &[String],
        preload: &[String],
        base: &LaunchBase,
    ) -> Result<Self, LaunchError> {
        let n_interpreter = script_position(command).ok_or_else(|| LaunchError::NotAScript { command: command.join(" ") })?;
        let program = &command[0];
        let failed = |reason: std::io::Error| LaunchError::ForkServer { reason: reason.to_string() };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let options = json!({"preload": preload, "episode_variables": base.episode_variables}).to_string();
        let mut child = Command::new(program)
            .args(&command[1..n_interpreter])
            .args(["-c", SERVER, &command[n_interpreter], &options])
            .env_clear()
            .envs(&base.environment)
            .current_dir(&base.directory)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| LaunchError::Start { program: program.clone(), source })?;
        let group = child.id().and_then(ProcessGroup::new).ok_or_else(|| LaunchError::ForkServer { reason: "it has no process id".into() })?;
        let (read_half, write_half) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        let mut lines = BufReader::new(read_half);
        let ready = match tokio::time::timeout(START_LIMIT, read_reply(&mut lines)).await {
            Ok(reply) => reply,
            Err(_) => return Err(LaunchError::ForkServer { reason: format!("its imports took longer than {} s", START_LIMIT.as_secs()) }),
        };
        match ready {
            Some(Reply { failed: Some(reason), .. }) => return Err(LaunchError::ForkServer { reason }),
            Some(Reply { ready: true, modules, seconds, .. }) => {
                tracing::info!(seconds, modules = modules.join(" "), "agent modules preloaded");
            }
            _ => return Err(LaunchError::ForkServer { reason: last_words(&mut child).await }),
        }
        drain_stderr(&mut child);
        let pending = Arc::new(Mutex::new(Pending::default()));
        let reader = tokio::spawn(deliver_replies(lines, Arc::clone(&pending))).abort_handle();
        let connection = Connection { stream: Arc::new(tokio::sync::Mutex::new(write_half)), pending };
        Ok(Self { connection, reader, _group: group, _child: child })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.connection.lock().closed
    }

    pub(super) fn connection(&self) -> Connection {
        self.connection.clone()
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Where the script stands in `python [flags] script.py …`; `None` if the command is something else.
fn script_position(command: &[String]) -> Option<usize> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    if !program.starts_with("python") {
        return None;
    }
    let mut position = 1;
    while let Some(flag) = command.get(position).filter(|word| word.starts_with('-')) {
        if flag == "-" || flag.starts_with("-c") || flag.starts_with("-m") {
            return None;
        }
        position += if FLAGS_WITH_VALUE.contains(&flag.as_str()) { 2 } else { 1 };
    }
    (position < command.len()).then_some(position)
}

async fn read_reply(lines: &mut BufReader<OwnedReadHalf>) -> Option<Reply> {
    let mut line = String::new();
    match lines.read_line(&mut line).await {
        Ok(n_bytes) if n_bytes > 0 => serde_json::from_str(&line).ok(),
        _ => None,
    }
}

/// The end of what an interpreter that has ended wrote to standard error.
async fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let read = stderr.take(64 * 1024);
        tokio::pin!(read);
        let _ = tokio::time::timeout(Duration::from_secs(1), read.read_to_string(&mut text)).await;
    }
    text.lines().rev().find(|line| !line.trim().is_empty()).map_or_else(|| "the interpreter ended without a word".into(), str::to_owned)
}

/// Keeps the server's own standard error from filling up; what it says goes to the log.
fn drain_stderr(child: &mut Child) {
    if let Some(stderr) = child.stderr.take() {
        // Ends by itself when the server does.
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                tracing::warn!(line, "fork server");
            }
        });
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
            Reply { id, failed: Some(reason), .. } => {
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
pub(super) struct Connection {
    stream: Arc<tokio::sync::Mutex<tokio::net::unix::OwnedWriteHalf>>,
    pending: Arc<Mutex<Pending>>,
}

impl Connection {
    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks one agent. The first words of the request's command are the interpreter's, which the child shares.
    pub(super) async fn fork(&self, request: LaunchRequest) -> Result<(ProcessGroup, ForkedExit), LaunchError> {
        let connection = self.clone();
        // In a task of its own: half a request must not stay in the socket, nor a child unknown, when the caller gives up.
        let fork = tokio::spawn(async move { connection.fork_uncancelled(request).await });
        fork.await.unwrap_or_else(|error| Err(LaunchError::ForkServer { reason: error.to_string() }))
    }

    async fn fork_uncancelled(&self, request: LaunchRequest) -> Result<(ProcessGroup, ForkedExit), LaunchError> {
        let failed = |reason: String| LaunchError::ForkServer { reason };
        let n_interpreter =
            script_position(&request.command).ok_or_else(|| LaunchError::NotAScript { command: request.command.join(" ") })?;
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
        let message = Request { id, argv: &request.command[n_interpreter..], env: &request.environment, cwd: &request.directory };
        let body = serde_json::to_vec(&message).map_err(|error| failed(error.to_string()))?;
        let descriptors = [request.stdin.as_fd(), request.stdout.as_fd(), request.stderr.as_fd()];
        self.send(&body, &descriptors).await.map_err(|error| failed(error.to_string()))?;
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
                Ok(rustix::net::sendmsg(socket, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?)
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
pub(super) struct ForkedExit {
    exited: oneshot::Receiver<Exit>,
}

impl ForkedExit {
    pub(super) async fn wait(&mut self) -> Result<Exit, LaunchError> {
        (&mut self.exited).await.map_err(|_| LaunchError::ForkServer { reason: "its server ended while the agent ran".into() })
    }
}
