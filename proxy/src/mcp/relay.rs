//! Passes JSON-RPC messages from an agent's MCP client to the episode's server, and records tool calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use trajectory::{Failure, FailureCause, ToolCall, ToolCallId};

use crate::call::draft::unix_ms;
use crate::config::McpServerConfig;
use crate::episodes::LiveEpisode;
use crate::mcp::process::{Process, ToolServerError};
use crate::recorder::Recorder;

/// For the question whether a server knows the stateless protocol, which older ones may not answer at all.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(5);

const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
/// The server failed: in the range that JSON-RPC leaves to implementations.
const SERVER_FAILED: i64 = -32000;

/// An episode's session with one server. The process starts with the first message.
pub(crate) struct Session {
    config: Arc<McpServerConfig>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    process: Option<Arc<Process>>,
    /// What the running process answered to `initialize`.
    initialized: Option<Map<String, Value>>,
    /// The client's confirmation has been passed on.
    confirmed: bool,
    closed: bool,
}

impl Session {
    pub(crate) fn new(config: Arc<McpServerConfig>) -> Self {
        Self {
            config,
            state: Mutex::default(),
        }
    }

    /// Starts the process now, so that it is up when the agent's first message comes. Failures show then.
    pub(crate) async fn warm(&self) {
        let _ = self.running(&mut *self.state.lock().await);
    }

    /// Takes one message of the client; `None` where it needs no answer.
    pub(crate) async fn handle(&self, message: Value, episode: &LiveEpisode, recorder: &Recorder) -> Option<Value> {
        let Value::Object(message) = message else {
            return Some(error_answer(
                Value::Null,
                INVALID_REQUEST,
                "a JSON-RPC message is an object",
            ));
        };
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let id = message.get("id").filter(|id| !id.is_null()).cloned();
        match (method.as_deref(), id) {
            // An answer to a request that the gateway never made.
            (None, _) => None,
            (Some(method), None) => {
                self.notify(method, message).await;
                None
            }
            (Some("initialize"), Some(id)) => Some(self.initialize(message, id, episode).await),
            (Some("server/discover"), Some(id)) => Some(self.discover(message, id, episode).await),
            (Some("tools/call"), Some(id)) => Some(self.call_tool(message, id, episode, recorder).await),
            (Some(_), Some(id)) => {
                let answer = self.ask(message, episode).await.map(Value::Object);
                Some(answer.unwrap_or_else(|error| self.failed(id, &error, episode)))
            }
        }
    }

    pub(crate) async fn shut_down(&self) {
        let process = {
            let mut state = self.state.lock().await;
            state.closed = true;
            state.process.take()
        };
        if let Some(process) = process {
            process.shut_down().await;
        }
    }

    async fn notify(&self, method: &str, message: Map<String, Value>) {
        let mut state = self.state.lock().await;
        if method == "notifications/initialized" && std::mem::replace(&mut state.confirmed, true) {
            return;
        }
        // A client that gives up probing for a newer protocol says so; servers of the older one end the session on
        // any notification that comes before `initialize`.
        if method == "notifications/cancelled" && state.initialized.is_none() {
            return;
        }
        if let Some(process) = &state.process {
            process.notify(message);
        }
    }

    /// The first client's handshake is the session's; later ones get the same answer.
    async fn initialize(&self, message: Map<String, Value>, id: Value, episode: &LiveEpisode) -> Value {
        let mut state = self.state.lock().await;
        let process = match self.running(&mut state) {
            Ok(process) => process,
            Err(error) => return self.failed(id, &error, episode),
        };
        if let Some(known) = &state.initialized {
            let mut answer = known.clone();
            answer.insert("id".into(), id);
            return Value::Object(answer);
        }
        match process
            .request(message, self.config.start_timeout, &episode.closing)
            .await
        {
            Ok(answer) => {
                if answer.contains_key("result") {
                    state.initialized = Some(answer.clone());
                }
                Value::Object(answer)
            }
            Err(error) => {
                // Nothing is to be had from this process; the next `initialize` starts another.
                state.process = None;
                drop(state);
                process.shut_down().await;
                self.failed(id, &error, episode)
            }
        }
    }

    /// A server of an older protocol may take this question badly, and then is not to blame: the client goes on with
    /// `initialize`.
    async fn discover(&self, message: Map<String, Value>, id: Value, episode: &LiveEpisode) -> Value {
        let process = self.running(&mut *self.state.lock().await);
        let process = match process {
            Ok(process) => process,
            Err(error) => return self.failed(id, &error, episode),
        };
        let timeout = DISCOVER_TIMEOUT.min(self.config.start_timeout);
        match process.request(message, timeout, &episode.closing).await {
            Ok(answer) => Value::Object(answer),
            Err(error) => {
                tracing::debug!(%error, "server/discover was not answered");
                error_answer(id, METHOD_NOT_FOUND, "the tool server does not know server/discover")
            }
        }
    }

    /// The result is recorded before the agent has it. A server that does not answer gives an error result, which is
    /// for the model, and not a protocol error, which would end many agents.
    async fn call_tool(
        &self,
        message: Map<String, Value>,
        id: Value,
        episode: &LiveEpisode,
        recorder: &Recorder,
    ) -> Value {
        let params = message.get("params");
        let tool = params
            .and_then(|params| params.get("name"))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let arguments = params.and_then(|params| params.get("arguments")).cloned();
        let (started_at_ms, began) = (unix_ms(), Instant::now());
        let answered = self.ask(message, episode).await;
        let (answer, result, error) = match answered {
            Ok(answer) => {
                let error = answer.get("error").map(|error| {
                    error
                        .get("message")
                        .and_then(Value::as_str)
                        .map_or_else(|| error.to_string(), str::to_owned)
                });
                let result = answer.get("result").cloned();
                (Value::Object(answer), result, error)
            }
            Err(error) => {
                note(&error, episode);
                let text = error.to_string();
                let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
                (json!({"jsonrpc": "2.0", "id": id, "result": result}), None, Some(text))
            }
        };
        let told = result
            .as_ref()
            .and_then(|result| result.get("isError"))
            .and_then(Value::as_bool);
        let call = ToolCall {
            id: ToolCallId::new(),
            episode_id: episode.id.clone(),
            sequence: 0,
            server: self.config.name.clone(),
            tool,
            arguments: arguments.unwrap_or_else(|| json!({})),
            is_error: error.is_some() || told.unwrap_or(false),
            result,
            error,
            started_at_ms,
            duration_ms: began.elapsed().as_millis() as u64,
        };
        recorder.append_tool_call(episode, call).await;
        answer
    }

    async fn ask(
        &self,
        message: Map<String, Value>,
        episode: &LiveEpisode,
    ) -> Result<Map<String, Value>, ToolServerError> {
        let process = {
            let mut state = self.state.lock().await;
            match &state.process {
                // A session's state died with its process: another one must not take its place unnoticed.
                Some(process) if state.initialized.is_some() => process.clone(),
                _ => self.running(&mut state)?,
            }
        };
        process
            .request(message, self.config.call_timeout, &episode.closing)
            .await
    }

    /// The process, started where there is none or it has ended.
    fn running(&self, state: &mut State) -> Result<Arc<Process>, ToolServerError> {
        if state.closed {
            return Err(ToolServerError::Closed {
                server: self.config.name.clone(),
            });
        }
        if let Some(process) = state.process.as_ref().filter(|process| process.is_running()) {
            return Ok(process.clone());
        }
        (state.initialized, state.confirmed) = (None, false);
        let process = Process::start(&self.config)?;
        state.process = Some(process.clone());
        Ok(process)
    }

    fn failed(&self, id: Value, error: &ToolServerError, episode: &LiveEpisode) -> Value {
        note(error, episode);
        error_answer(id, SERVER_FAILED, &error.to_string())
    }
}

/// The server's failure is the episode's, unless the episode has ended anyway.
fn note(error: &ToolServerError, episode: &LiveEpisode) {
    if !matches!(error, ToolServerError::Closed { .. }) {
        tracing::warn!(episode = %episode.id, %error, "tool server failed");
        episode.note_failure(Failure {
            cause: FailureCause::ToolServer,
            message: error.to_string(),
        });
    }
}

fn error_answer(id: Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
