//! An inference server that answers by a script and remembers what it was asked.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// One answer.
pub(super) enum Script {
    /// A whole body.
    Json(StatusCode, String),
    /// A body that is no JSON.
    Html(StatusCode, &'static str),
    /// An event stream.
    Stream(Vec<Step>),
    /// No answer at all until the connection closes.
    Silence,
}

/// A part of an event stream.
pub(super) enum Step {
    Send(Bytes),
    /// Goes on when the semaphore has a permit.
    Wait(Arc<Semaphore>),
    /// Breaks the connection off.
    Break,
}

/// A request as it came.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Asked {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Clone)]
pub(super) struct FakeUpstream {
    pub(super) address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    script: Mutex<VecDeque<Script>>,
    asked: Mutex<Vec<Asked>>,
    /// Streams whose reader went away before their end.
    cancelled: Mutex<usize>,
}

impl FakeUpstream {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            address: listener.local_addr().unwrap(),
            inner: Arc::default(),
        };
        let router = Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/models", get(|| async { "{ \"data\" : [] }" }))
            .route("/health", get(|| async { "" }))
            .fallback(any(echo))
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        fake
    }

    pub(super) fn will(&self, script: Script) {
        self.inner.script.lock().unwrap().push_back(script);
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().unwrap().clone()
    }

    pub(super) fn n_cancelled(&self) -> usize {
        *self.inner.cancelled.lock().unwrap()
    }
}

async fn chat(State(fake): State<FakeUpstream>, request: Request) -> Response {
    let headers = request.headers().clone();
    let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    fake.inner.asked.lock().unwrap().push(Asked {
        headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let script = fake.inner.script.lock().unwrap().pop_front();
    match script {
        None => json_response(StatusCode::OK, completion("ok").to_string()),
        Some(Script::Json(status, body)) => json_response(status, body),
        Some(Script::Html(status, body)) => Response::builder()
            .status(status)
            .header("content-type", "text/html")
            .body(Body::from(body))
            .unwrap(),
        Some(Script::Silence) => std::future::pending().await,
        Some(Script::Stream(steps)) => {
            let (parts, receiver) = mpsc::channel(1);
            tokio::spawn(play(steps, parts, fake));
            Response::builder()
                .header("content-type", "text/event-stream; charset=utf-8")
                .header("x-request-id", "r1")
                .body(Body::from_stream(ReceiverStream::new(receiver)))
                .unwrap()
        }
    }
}

async fn play(steps: Vec<Step>, parts: mpsc::Sender<Result<Bytes, std::io::Error>>, fake: FakeUpstream) {
    for step in steps {
        let sent = match step {
            Step::Send(bytes) => parts.send(Ok(bytes)).await.is_ok(),
            Step::Wait(gate) => tokio::select! {
                permit = gate.acquire() => { permit.unwrap().forget(); true }
                () = parts.closed() => false,
            },
            Step::Break => parts.send(Err(std::io::Error::other("broken by script"))).await.is_ok(),
        };
        if !sent {
            *fake.inner.cancelled.lock().unwrap() += 1;
            return;
        }
    }
}

/// Other routes answer with what they were asked.
async fn echo(request: Request) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let echoed = json!({"method": head.method.as_str(), "path": head.uri.to_string(),
        "body": String::from_utf8_lossy(&body)});
    Ok(json_response(StatusCode::OK, echoed.to_string()))
}

fn json_response(status: StatusCode, body: String) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("x-upstream", "fake")
        .body(Body::from(body))
        .unwrap()
}

/// A completion as vLLM sends it when asked for ids and logprobs.
pub(super) fn completion(text: &str) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy@7",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text, "refusal": null, "tool_calls": []},
            "logprobs": {"content": [{"token": "o", "logprob": -0.25, "bytes": [111], "top_logprobs": []},
                                     {"token": "", "logprob": -0.5, "bytes": [], "top_logprobs": []}]},
            "finish_reason": "stop", "stop_reason": null, "token_ids": [41, 2]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}, "prompt_logprobs": null,
        "prompt_token_ids": [1, 5, 6]})
}

/// A chunk with one token, as vLLM streams it.
pub(super) fn chunk(index: u32, delta: Value, token: u32, finish: Option<&str>) -> String {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy@7",
        "choices": [{"index": index, "delta": delta, "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
            "finish_reason": finish, "token_ids": [token]}]})
    .to_string()
}

/// The first chunk, with the role and the prompt's ids.
pub(super) fn first_chunk(index: u32) -> String {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy@7",
        "choices": [{"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
            "finish_reason": null}],
        "prompt_token_ids": [1, 5, 6], "prompt_text": null})
    .to_string()
}

pub(super) fn event(data: &str) -> Step {
    Step::Send(format!("data: {data}\n\n").into())
}
