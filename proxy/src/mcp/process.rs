//! One process of a tool server, spoken to over its standard input and output.

use std::collections::{HashMap, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::config::McpServerConfig;

/// Variables of the proxy that a tool server inherits.
const INHERITED: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
];
/// How much of a server's standard error is kept for messages, in bytes.
const STDERR_TAIL: usize = 4096;
/// Longest message that a server may send, in bytes.
const MAX_MESSAGE: u64 = 32 << 20;
/// From the end of its input until a server is asked to terminate.
const GRACE: Duration = Duration::from_millis(300);

/// Why a tool server gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ToolServerError {
    #[error("tool server `{server}` can't be started: {reason}")]
    Spawn { server: String, reason: String },
    #[error("tool server `{server}` did not answer `{method}` within {seconds} s{stderr}")]
    Timeout {
        server: String,
        method: String,
        seconds: f64,
        stderr: StderrTail,
    },
    #[error("tool server `{server}` ended before it answered `{method}`{stderr}")]
    Ended {
        server: String,
        method: String,
        stderr: StderrTail,
    },
    #[error("the episode closed while tool server `{server}` was asked")]
    Closed { server: String },
}

/// The last that a server wrote to its standard error, for a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct StderrTail(String);

impl std::fmt::Display for StderrTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.trim() {
            "" => Ok(()),
            text => write!(f, "; its standard error ends with: {text}"),
        }
    }
}

/// A running server. Dropping it does not end it; [`Process::shut_down`] does.
pub(crate) struct Process {
    server: String,
    /// Lines for the server; `None` once its input is closed.
    input: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    waiting: Mutex<Waiting>,
    stderr: Mutex<VecDeque<u8>>,
    /// The server no longer answers.
    ended: CancellationToken,
    /// Its standard error has been read to the end.
    stderr_read: CancellationToken,
    stop: CancellationToken,
    /// The process group is gone.
    gone: CancellationToken,
}

/// Requests that the server has not answered.
#[derive(Default)]
struct Waiting {
    last_id: u64,
    requests: HashMap<u64, Request>,
}

struct Request {
    /// The id that the client used.
    client_id: Value,
    reply: oneshot::Sender<Map<String, Value>>,
}

impl Process {
    /// Starts the server in a process group of its own.
    pub(crate) fn start(config: &McpServerConfig) -> Result<Arc<Self>, ToolServerError> {
        let server = config.name.clone();
        let failed = |reason: String| ToolServerError::Spawn {
            server: server.clone(),
            reason,
        };
        let (program, arguments) = config
            .command
            .split_first()
            .ok_or_else(|| failed("no command".into()))?;
        let inherited = INHERITED
            .iter()
            .filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(inherited)
            .envs(&config.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(format!("{program}: {error}")))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let (Some(stdin), Some(stdout), Some(stderr), Some(group)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), group)
        else {
            return Err(failed("it has no standard input or output".into()));
        };
        let (input, lines) = mpsc::unbounded_channel();
        let process = Arc::new(Self {
            server,
            input: Mutex::new(Some(input)),
            waiting: Mutex::default(),
            stderr: Mutex::default(),
            ended: CancellationToken::new(),
            stderr_read: CancellationToken::new(),
            stop: CancellationToken::new(),
            gone: CancellationToken::new(),
        });
        tokio::spawn(write_lines(stdin, lines));
        tokio::spawn(process.clone().read_messages(stdout));
        tokio::spawn(process.clone().read_stderr(stderr));
        tokio::spawn(process.clone().supervise(child, group, config.close_timeout));
        Ok(process)
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// Passes a request on and waits for its answer, which comes with the client's id.
    pub(crate) async fn request(
        &self,
        mut message: Map<String, Value>,
        timeout: Duration,
        closing: &CancellationToken,
    ) -> Result<Map<String, Value>, ToolServerError> {
        let method = message
            .get("method")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let client_id = message.get("id").cloned().unwrap_or_default();
        let (reply, answer) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting();
            waiting.last_id += 1;
            let id = waiting.last_id;
            waiting.requests.insert(
                id,
                Request {
                    client_id: client_id.clone(),
                    reply,
                },
            );
            id
        };
        message.insert("id".into(), id.into());
        self.send(&message);
        // Checked after the request is on the list: whoever ends the process empties the list first.
        if self.ended.is_cancelled() {
            self.waiting().requests.remove(&id);
        }
        let answered = tokio::select! {
            biased;
            answered = answer => answered.map_err(|_| None),
            () = tokio::time::sleep(timeout) => Err(Some(false)),
            () = closing.cancelled() => Err(Some(true)),
        };
        let server = self.server.clone();
        match answered {
            Ok(mut answer) => {
                answer.insert("id".into(), client_id);
                Ok(answer)
            }
            Err(None) => {
                // What it said last may still be on its way here.
                let _ = tokio::time::timeout(GRACE, self.stderr_read.cancelled()).await;
                Err(ToolServerError::Ended {
                    server,
                    method,
                    stderr: self.stderr_tail(),
                })
            }
            Err(Some(closed)) => {
                self.waiting().requests.remove(&id);
                let reason = if closed { "the episode closed" } else { "timeout" };
                self.send(
                    json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": id, "reason": reason}})
                    .as_object()
                    .unwrap_or(&Map::new()),
                );
                if closed {
                    return Err(ToolServerError::Closed { server });
                }
                let seconds = timeout.as_secs_f64();
                Err(ToolServerError::Timeout {
                    server,
                    method,
                    seconds,
                    stderr: self.stderr_tail(),
                })
            }
        }
    }

    /// Passes a notification on.
    pub(crate) fn notify(&self, mut message: Map<String, Value>) {
        if message
            .get("method")
            .is_some_and(|method| method == "notifications/cancelled")
        {
            let params = message.get_mut("params").and_then(Value::as_object_mut);
            let Some(request_id) = params.and_then(|params| params.get_mut("requestId")) else {
                return;
            };
            let id = {
                let waiting = self.waiting();
                let named = waiting
                    .requests
                    .iter()
                    .find(|(_, request)| request.client_id == *request_id);
                named.map(|(id, _)| *id)
            };
            // A request that has been answered needs no cancellation.
            let Some(id) = id else { return };
            *request_id = id.into();
        }
        self.send(&message);
    }

    /// Ends the server's input, then its process group; returns when the group is gone.
    pub(crate) async fn shut_down(&self) {
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.stop.cancel();
        self.gone.cancelled().await;
    }

    fn send(&self, message: &Map<String, Value>) {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(input), Ok(mut line)) = (input.as_ref(), serde_json::to_vec(message)) {
            line.push(b'\n');
            // A closed channel means that the server has ended, which whoever waits for an answer is told.
            let _ = input.send(line);
        }
    }

    async fn read_messages(self: Arc<Self>, stdout: impl AsyncRead + Unpin) {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(MAX_MESSAGE).read_until(b'\n', &mut line).await {
                Ok(n) if n > 0 && line.ends_with(b"\n") => {}
                Ok(n) if n as u64 == MAX_MESSAGE => {
                    tracing::warn!(
                        server = self.server,
                        "a tool server's message is too long: the server is ended"
                    );
                    break;
                }
                // A last line without its end is still a message.
                Ok(n) if n > 0 => {}
                _ => break,
            }
            match serde_json::from_slice::<Value>(&line) {
                Ok(Value::Object(message)) => self.dispatch(message),
                _ if line.trim_ascii().is_empty() => {}
                _ => tracing::debug!(
                    server = self.server,
                    "a tool server printed a line that is not a JSON-RPC message"
                ),
            }
        }
        self.ended.cancel();
        self.waiting().requests.clear();
        self.stop.cancel();
    }

    fn dispatch(&self, message: Map<String, Value>) {
        match (message.get("method"), message.get("id")) {
            (None, Some(id)) => {
                let request = id.as_u64().and_then(|id| self.waiting().requests.remove(&id));
                if let Some(request) = request {
                    let _ = request.reply.send(message);
                }
            }
            (Some(method), Some(id)) => {
                let answer = if method == "ping" {
                    json!({"jsonrpc": "2.0", "id": id, "result": {}})
                } else {
                    json!({"jsonrpc": "2.0", "id": id, "error":
                        {"code": -32601, "message": format!("the gateway does not pass {method} on to the client")}})
                };
                if let Value::Object(answer) = answer {
                    self.send(&answer);
                }
            }
            _ => {}
        }
    }

    async fn read_stderr(self: Arc<Self>, mut stderr: impl AsyncRead + Unpin) {
        let mut chunk = [0; 1024];
        while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
            let mut tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend(&chunk[..n]);
            let excess = tail.len().saturating_sub(STDERR_TAIL);
            tail.drain(..excess);
        }
        self.stderr_read.cancel();
    }

    /// Waits for the server to end, by itself or when told, and leaves nothing of its process group.
    async fn supervise(self: Arc<Self>, mut child: Child, group: Pid, patience: Duration) {
        let ended_by_itself = tokio::select! {
            _ = child.wait() => true,
            () = self.stop.cancelled() => false,
        };
        if !ended_by_itself {
            let grace = GRACE.min(patience);
            if tokio::time::timeout(grace, child.wait()).await.is_err() {
                // An error means that the group has ended meanwhile.
                let _ = kill_process_group(group, Signal::TERM);
                let _ = tokio::time::timeout(patience.saturating_sub(grace), child.wait()).await;
            }
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait().await;
        self.ended.cancel();
        self.waiting().requests.clear();
        self.gone.cancel();
    }

    fn stderr_tail(&self) -> StderrTail {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        StderrTail(String::from_utf8_lossy(&tail.iter().copied().collect::<Vec<u8>>()).into_owned())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes until the channel closes, which closes the server's input.
async fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}
