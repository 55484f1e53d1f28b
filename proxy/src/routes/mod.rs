//! The route table.

mod chat_completions;
mod episodes;
mod forward;
mod groups;
mod health;
mod mcp;
mod policy;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;
use crate::state::App;

/// All routes of the proxy.
pub(crate) fn router(app: App) -> Router {
    let control = Router::new()
        .route("/api/episodes", post(episodes::open).get(episodes::list))
        .route("/api/episodes/{id}", get(episodes::show))
        .route("/api/episodes/{id}/close", post(episodes::close))
        .route("/api/episodes/{id}/reward", post(episodes::reward))
        .route("/api/feedback", post(episodes::feedback))
        .route("/api/groups", get(groups::ready))
        .route("/api/policy", get(policy::show).post(policy::publish))
        .route("/metrics", get(health::metrics))
        .route_layer(middleware::from_fn_with_state(app.clone(), control_only));
    Router::new()
        .merge(control)
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/v1/chat/completions", post(chat_completions::by_key))
        .route("/e/{episode}/v1/chat/completions", post(chat_completions::by_path))
        .route("/v1/{*rest}", any(forward::by_key))
        .route("/e/{episode}/v1/{*rest}", any(forward::by_path))
        .route("/e/{episode}/mcp.json", get(mcp::configuration))
        .route(
            "/e/{episode}/mcp/{server}",
            post(mcp::message).get(mcp::no_stream).delete(mcp::end),
        )
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .with_state(app)
}

async fn control_only(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.guard.check_control(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::not_found(
        "unknown_route",
        format!("there is nothing at {path}: the API is under /v1, control under /api"),
    )
}

async fn unknown_method(request: Request) -> ApiError {
    let (method, path) = (request.method(), request.uri().path());
    let mut error = ApiError::bad_request("method_not_allowed", format!("{path} does not take {method}"));
    error.status = http::StatusCode::METHOD_NOT_ALLOWED;
    error
}

/// The body as `T`; an empty one counts as `{}`.
async fn read_json<T: DeserializeOwned>(app: &App, request: Request) -> Result<T, ApiError> {
    let body = app.read_body(request).await?;
    let text: &[u8] = if body.trim_ascii().is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| ApiError::bad_request("invalid_body", format!("in the body: {error}")))
}

/// A query string as `T`.
fn read_query<T: DeserializeOwned>(request: &Request) -> Result<T, ApiError> {
    axum::extract::Query::try_from_uri(request.uri())
        .map(|axum::extract::Query(query)| query)
        .map_err(|error| ApiError::bad_request("invalid_query", format!("in the query: {}", error.body_text())))
}

/// A value that serialises, as a JSON answer.
fn json_answer<T: serde::Serialize>(value: T) -> Result<Json<Value>, ApiError> {
    serde_json::to_value(value)
        .map(Json)
        .map_err(|error| ApiError::internal(format!("the answer can't be written as JSON: {error}")))
}
