//! The HTTP side of the teacher: OpenAI's chat completions, streamed and not.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::lesson::Move;
use super::{MODEL, Teacher};

pub(super) fn router(teacher: Teacher) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .with_state(Arc::new(teacher))
}

/// What the teacher reads of a request; everything else may be there and changes nothing.
#[derive(Debug, Deserialize)]
struct ChatRequest {
    #[serde(default)]
    model: Option<String>,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    stream: Option<bool>,
}

async fn models() -> Json<Value> {
    Json(
        json!({ "object": "list", "data": [{ "id": MODEL, "object": "model", "created": 0, "owned_by": "trainyard" }] }),
    )
}

async fn chat_completions(State(teacher): State<Arc<Teacher>>, body: String) -> Response {
    let request: ChatRequest = match serde_json::from_str(&body) {
        Ok(request) => request,
        Err(error) => return refuse(&format!("the request is not a chat completion: {error}")),
    };
    let next = match teacher.next(&request.messages, request.tools.as_deref().unwrap_or_default()) {
        Ok(next) => next,
        Err(error) => return refuse(&error.to_string()),
    };
    let answer = ChatAnswer::new(request.model.unwrap_or_else(|| MODEL.to_owned()), next);
    if request.stream.unwrap_or(false) {
        answer.streamed()
    } else {
        Json(answer.whole()).into_response()
    }
}

fn refuse(message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": "invalid_request_error", "param": null, "code": null } });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

/// One answer, ready to be sent in either form.
struct ChatAnswer {
    id: String,
    model: String,
    content: Option<String>,
    tool_call: Option<Value>,
}

impl ChatAnswer {
    fn new(model: String, next: Move) -> Self {
        let id = format!("chatcmpl-{}", Uuid::now_v7().simple());
        match next {
            Move::Answer(text) => Self {
                id,
                model,
                content: Some(text),
                tool_call: None,
            },
            Move::Call { tool, arguments } => {
                let call = json!({
                    "id": format!("call_{}", Uuid::now_v7().simple()),
                    "type": "function",
                    "function": { "name": tool, "arguments": spaced(&arguments) },
                });
                Self {
                    id,
                    model,
                    content: None,
                    tool_call: Some(call),
                }
            }
        }
    }

    fn finish_reason(&self) -> &'static str {
        if self.tool_call.is_some() { "tool_calls" } else { "stop" }
    }

    fn whole(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.content });
        if let Some(call) = &self.tool_call {
            message["tool_calls"] = json!([call]);
        }
        let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": self.finish_reason() });
        json!({ "id": self.id, "object": "chat.completion", "created": 0, "model": self.model, "choices": [choice] })
    }

    fn streamed(&self) -> Response {
        let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
        deltas.extend(self.content.as_ref().map(|text| json!({ "content": text })));
        if let Some(call) = &self.tool_call {
            let mut call = call.clone();
            call["index"] = json!(0);
            deltas.push(json!({ "tool_calls": [call] }));
        }
        let mut events: Vec<Event> = deltas.into_iter().map(|delta| self.event(&delta, None)).collect();
        events.push(self.event(&json!({}), Some(self.finish_reason())));
        events.push(Event::default().data("[DONE]"));
        Sse::new(stream::iter(events.into_iter().map(Ok::<Event, Infallible>))).into_response()
    }

    fn event(&self, delta: &Value, finish_reason: Option<&str>) -> Event {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        let chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": 0, "model": self.model, "choices": [choice],
        });
        Event::default().data(chunk.to_string())
    }
}

/// JSON with a space after colons and commas, as Python's `json.dumps` and most models write it.
fn spaced(arguments: &Value) -> String {
    let Value::Object(arguments) = arguments else {
        return arguments.to_string();
    };
    let members: Vec<String> = arguments
        .iter()
        .map(|(name, value)| format!("{}: {value}", Value::from(name.as_str())))
        .collect();
    format!("{{{}}}", members.join(", "))
}
