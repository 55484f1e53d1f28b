//! Everything else under `/v1`: passed on as it is, and not recorded.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use serde_json::Value;

use crate::call::plan::policy_name;
use crate::call::run::respond;
use crate::episodes::LiveEpisode;
use crate::error::ApiError;
use crate::json_edit::set_members;
use crate::state::App;
use crate::upstream::end_to_end;

/// Endpoints that sample from a model. A call to one of them is a hole in an episode's record.
const SAMPLING: [&str; 3] = ["completions", "responses", "messages"];

/// The episode is in the path.
pub(super) async fn by_path(
    State(app): State<App>,
    Path((id, rest)): Path<(String, String)>,
    request: Request,
) -> Response {
    match app.episode_by_path(&id, request.headers()).await {
        Ok(episode) => forward(app, Some(episode), &rest, request)
            .await
            .unwrap_or_else(IntoResponse::into_response),
        Err(error) => error.into_response(),
    }
}

/// The episode is in the key, if any.
pub(super) async fn by_key(State(app): State<App>, Path(rest): Path<String>, request: Request) -> Response {
    match app.episode_by_key(request.headers()).await {
        Ok(episode) => forward(app, episode, &rest, request)
            .await
            .unwrap_or_else(IntoResponse::into_response),
        Err(error) => error.into_response(),
    }
}

async fn forward(
    app: App,
    episode: Option<Arc<LiveEpisode>>,
    rest: &str,
    request: Request,
) -> Result<Response, ApiError> {
    if rest.split('/').any(changes_adapters) {
        let message =
            "adapters are changed by the trainer alone: publish one with POST /api/policy or `trainyard publish`";
        return Err(ApiError::forbidden("adapter_change_refused", message));
    }
    app.metrics.requests_forwarded.add(1);
    let (method, headers) = (request.method().clone(), request.headers().clone());
    // The path as sent, so that escapes in it survive.
    let sent = request
        .uri()
        .path_and_query()
        .map_or("", http::uri::PathAndQuery::as_str);
    let path = sent
        .find("/v1/")
        .map_or_else(|| format!("/v1/{rest}"), |at| sent[at..].to_owned());
    let body = app.read_body(request).await?;
    let parsed: Option<Value> = serde_json::from_slice(&body).ok();
    let model = parsed
        .as_ref()
        .and_then(|body| body.get("model"))
        .and_then(Value::as_str);
    let pinned = episode.as_ref().and_then(|episode| episode.upstream.as_deref());
    let upstream = app.upstreams.choose(pinned, model)?;
    if let Some(episode) = &episode
        && method == Method::POST
        && SAMPLING.contains(&rest)
    {
        app.recorder
            .taint(episode, &format!("a call to /v1/{rest} was passed on but not recorded"))
            .await;
    }
    let lease = upstream.policy.then(|| app.policy.lease());
    let body = match (&lease, model) {
        (Some(lease), Some(model)) => {
            rename_model(&body, &policy_name(lease.version(), upstream, model)).unwrap_or(body)
        }
        _ => body,
    };
    let mut outgoing = http::Request::new(Full::new(body));
    *outgoing.method_mut() = method;
    *outgoing.uri_mut() = upstream.uri(&path)?;
    *outgoing.headers_mut() = upstream.request_headers(&headers, &app.guard);
    let unreachable = |error: &dyn std::fmt::Display| {
        ApiError::upstream(format!("upstream `{}` can't be reached: {error}", upstream.name))
    };
    let answer = tokio::time::timeout(upstream.timeout, app.client.request(outgoing)).await;
    let answer = answer
        .map_err(|late| unreachable(&late))?
        .map_err(|error| unreachable(&error))?;
    let (head, body) = answer.into_parts();
    Ok(respond(head.status, end_to_end(&head.headers), Body::new(body)))
}

/// Whether a part of a path, decoded, names a route of vLLM that would put another policy in the place of the trained one.
fn changes_adapters(segment: &str) -> bool {
    ["load_lora_adapter", "unload_lora_adapter"]
        .iter()
        .any(|name| segment.eq_ignore_ascii_case(name))
}

fn rename_model(body: &Bytes, model: &str) -> Option<Bytes> {
    let text = std::str::from_utf8(body).ok()?;
    set_members(text, &[("model", Some(Value::from(model).to_string()))]).map(Bytes::from)
}
