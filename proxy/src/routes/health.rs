//! Liveness, readiness and metrics.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};
use std::time::Duration;

use crate::state::App;

/// Longest wait for the inference server to say that it is there.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// `GET /health`: the process serves.
pub(super) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /ready`: the store can be read, and the policy's server answers.
pub(super) async fn ready(State(app): State<App>) -> Response {
    let store = app
        .recorder
        .run(|store| store.policy())
        .await
        .err()
        .map(|error| error.to_string());
    let upstream = upstream_problem(&app).await;
    let stopping = app.stopping.is_cancelled();
    let is_ready = store.is_none() && upstream.is_none() && !stopping;
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({"ready": is_ready, "store": store, "upstream": upstream, "stopping": stopping});
    (status, Json(body)).into_response()
}

async fn upstream_problem(app: &App) -> Option<String> {
    let upstream = app.upstreams.default();
    let uri = match upstream.uri("/health") {
        Ok(uri) => uri,
        Err(error) => return Some(error.message),
    };
    let mut request = http::Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = uri;
    match tokio::time::timeout(READY_TIMEOUT, app.client.request(request)).await {
        // A server without this route is there all the same.
        Ok(Ok(answer)) if !answer.status().is_server_error() => None,
        Ok(Ok(answer)) => Some(format!("`{}` answers {}", upstream.name, answer.status())),
        Ok(Err(error)) => Some(format!("`{}` can't be reached: {error}", upstream.name)),
        Err(_) => Some(format!("`{}` is silent", upstream.name)),
    }
}

/// `GET /metrics`, in Prometheus' text form.
pub(super) async fn metrics(State(app): State<App>) -> Response {
    let calls = app.limits.max_concurrent_calls - app.permits.available_permits();
    let text = app.metrics.render(&[
        ("calls_in_flight", "Model calls in flight.", calls as u64),
        (
            "episodes_open",
            "Episodes that were used since the start and are open.",
            app.episodes.n_open() as u64,
        ),
        (
            "policy_version",
            "The current policy version.",
            app.policy.current().version.0,
        ),
    ]);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
