//! The proxy's routes as far as the driver and a small agent use them, with the record in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use trajectory::{CloseEpisode, EpisodeId, Failure, FailureCause};

#[derive(Default)]
struct Records {
    /// Bodies of the requests that opened episodes.
    opened: Vec<Value>,
    /// Calls and tool calls of each episode.
    episodes: HashMap<String, (Vec<Value>, Vec<Value>)>,
    closed: HashMap<String, CloseEpisode>,
    /// What the proxy itself saw go wrong.
    noted: HashMap<String, Failure>,
    pids: Vec<u32>,
    address: String,
}

type Shared = Arc<Mutex<Records>>;

/// A fake on a port of its own; it ends with the test's runtime.
pub(super) struct FakeProxy {
    records: Shared,
}

impl FakeProxy {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let records = Shared::default();
        records.lock().unwrap().address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/api/episodes", post(open))
            .route("/api/episodes/{id}", get(read))
            .route("/api/episodes/{id}/close", post(close))
            .route("/e/{id}/mcp.json", get(mcp_config))
            .route("/e/{id}/v1/chat/completions", post(chat))
            .route("/e/{id}/v1/broken_tool", post(broken_tool))
            .route("/e/{id}/v1/no_tools", post(no_tools))
            .route("/e/{id}/v1/pid/{pid}", post(pid))
            .with_state(Arc::clone(&records));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { records }
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    pub(super) fn url(&self) -> String {
        self.lock().address.clone()
    }

    pub(super) fn opened(&self) -> Vec<Value> {
        self.lock().opened.clone()
    }

    pub(super) fn close_of(&self, id: &EpisodeId) -> CloseEpisode {
        self.lock()
            .closed
            .get(id.as_str())
            .cloned()
            .unwrap_or_else(|| panic!("episode {id} is still open"))
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.lock().pids.clone()
    }

    /// Waits until so many agents have said that they hang.
    pub(super) async fn wait_for_pids(&self, n: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.pids().len() < n {
            assert!(Instant::now() < deadline, "only {:?} came", self.pids());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn is_authorised(headers: &HeaderMap) -> bool {
    headers
        .get("authorization")
        .is_some_and(|value| value == "Bearer control")
}

async fn open(State(records): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    if !is_authorised(&headers) {
        return (
            StatusCode::UNAUTHORIZED,
            Json(json!({"error": {"message": "no token"}})),
        );
    }
    let mut records = records.lock().unwrap();
    let id = format!("e{}", records.opened.len());
    records.opened.push(body);
    records.episodes.insert(id.clone(), Default::default());
    let base = &records.address;
    let answer = json!({"base_url": format!("{base}/e/{id}/v1"), "api_key": format!("ty-{id}-s"), "mcp": {}, "id": id});
    (StatusCode::CREATED, Json(answer))
}

async fn mcp_config() -> Json<Value> {
    Json(json!({"mcpServers": {}}))
}

fn episode(id: &str, state: &str, reward: Option<f64>, failure: Option<&Failure>) -> Value {
    json!({
        "id": id, "scenario_id": null, "group_id": null, "split": "train", "state": state, "reward": reward, "stop_reason": null,
        "failure": failure, "tainted": null, "opened_at_ms": 0, "closed_at_ms": null,
    })
}

async fn read(State(records): State<Shared>, Path(id): Path<String>) -> Json<Value> {
    let records = records.lock().unwrap();
    let (calls, tool_calls) = &records.episodes[&id];
    let episode = episode(&id, "open", None, records.noted.get(&id));
    Json(json!({"episode": episode, "calls": calls, "tool_calls": tool_calls}))
}

async fn close(State(records): State<Shared>, Path(id): Path<String>, Json(body): Json<CloseEpisode>) -> Json<Value> {
    let mut records = records.lock().unwrap();
    let failure = body.failure.as_ref().or(records.noted.get(&id));
    let episode = episode(&id, "closed", body.reward, failure);
    records.closed.insert(id, body);
    Json(json!({"episode": episode}))
}

/// Answers 42; the query asks for a failure, or for an answer without text.
async fn chat(
    State(records): State<Shared>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> (StatusCode, Json<Value>) {
    let (status, error) = match query.as_deref() {
        Some("upstream") => (StatusCode::SERVICE_UNAVAILABLE, Some("engine is gone")),
        Some("refused") => (StatusCode::BAD_REQUEST, Some("too long")),
        _ => (StatusCode::OK, None),
    };
    let content = if query.as_deref() == Some("silent") {
        json!(null)
    } else {
        json!("42")
    };
    let response = match error {
        Some(message) => json!({"error": {"message": message}}),
        None => json!({"choices": [{"message": {"role": "assistant", "content": content}}]}),
    };
    let call = json!({
        "id": "c", "episode_id": id, "endpoint": "chat_completions", "upstream_model": "policy@1", "response": response,
        "status": if error.is_some() { "failed" } else { "complete" }, "upstream_status": status.as_u16(), "error": error,
    });
    records.lock().unwrap().episodes.get_mut(&id).unwrap().0.push(call);
    (status, Json(response))
}

async fn broken_tool(State(records): State<Shared>, Path(id): Path<String>) {
    let call = json!({
        "id": "t", "episode_id": id, "server": "nws", "tool": "forecast", "arguments": {}, "result": null, "is_error": true,
        "error": "timed out", "started_at_ms": 0, "duration_ms": 1,
    });
    records.lock().unwrap().episodes.get_mut(&id).unwrap().1.push(call);
}

async fn no_tools(State(records): State<Shared>, Path(id): Path<String>) {
    let failure = Failure {
        cause: FailureCause::ToolServer,
        message: "server `nws` did not start".into(),
    };
    records.lock().unwrap().noted.insert(id, failure);
}

async fn pid(State(records): State<Shared>, Path((_, pid)): Path<(String, u32)>) {
    records.lock().unwrap().pids.push(pid);
}
