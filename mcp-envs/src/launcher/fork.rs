//! The fork launcher's server process.

mod connection;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use connection::{Reply, read_reply};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::AbortHandle;

pub(super) use connection::{Connection, ForkedExit};

use super::process_group::ProcessGroup;
use super::{LaunchBase, LaunchError};

/// The program that the interpreter runs.
const SERVER: &str = include_str!("fork_server.py");

/// Imports of large packages on a busy machine take their time; an interpreter that says nothing for so long never will.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Options of the Python interpreter that are followed by a value of their own.
const FLAGS_WITH_VALUE: [&str; 2] = ["-W", "-X"];

/// An interpreter that has the agent's modules loaded. Dropping it ends it; the agents that it has forked end with their
/// owners.
pub(super) struct ForkServer {
    connection: Connection,
    reader: AbortHandle,
    // Both end the process: the group by signal, the child by being reaped in the background.
    _group: ProcessGroup,
    _child: Child,
}

impl ForkServer {
    /// Starts the interpreter that `command` names with the same flags, and waits until its imports are done.
    pub(super) async fn start(command: &[String], preload: &[String], base: &LaunchBase) -> Result<Self, LaunchError> {
        let n_interpreter = script_position(command).ok_or_else(|| LaunchError::NotAScript {
            command: command.join(" "),
        })?;
        let program = &command[0];
        let failed = |reason: std::io::Error| LaunchError::ForkServer {
            reason: reason.to_string(),
        };
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
            .map_err(|source| LaunchError::Start {
                program: program.clone(),
                source,
            })?;
        let group = child
            .id()
            .and_then(ProcessGroup::new)
            .ok_or_else(|| LaunchError::ForkServer {
                reason: "it has no process id".into(),
            })?;
        let (read_half, write_half) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        let mut lines = BufReader::new(read_half);
        let ready = match tokio::time::timeout(START_LIMIT, read_reply(&mut lines)).await {
            Ok(reply) => reply,
            Err(_) => {
                return Err(LaunchError::ForkServer {
                    reason: format!("its imports took longer than {} s", START_LIMIT.as_secs()),
                });
            }
        };
        match ready {
            Some(Reply {
                failed: Some(reason), ..
            }) => return Err(LaunchError::ForkServer { reason }),
            Some(Reply {
                ready: true,
                modules,
                seconds,
                ..
            }) => {
                tracing::info!(seconds, modules = modules.join(" "), "agent modules preloaded");
            }
            _ => {
                return Err(LaunchError::ForkServer {
                    reason: last_words(&mut child).await,
                });
            }
        }
        drain_stderr(&mut child);
        let (connection, reader) = Connection::new(lines, write_half);
        Ok(Self {
            connection,
            reader,
            _group: group,
            _child: child,
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.connection.is_closed()
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
        position += if FLAGS_WITH_VALUE.contains(&flag.as_str()) {
            2
        } else {
            1
        };
    }
    (position < command.len()).then_some(position)
}

/// The end of what an interpreter that has ended wrote to standard error.
async fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let read = stderr.take(64 * 1024);
        tokio::pin!(read);
        let _ = tokio::time::timeout(Duration::from_secs(1), read.read_to_string(&mut text)).await;
    }
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map_or_else(|| "the interpreter ended without a word".into(), str::to_owned)
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
