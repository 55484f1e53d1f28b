//! The MCP endpoints of an episode: Streamable HTTP in its plain form, one JSON answer for each request.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};

use crate::address::format_key;
use crate::config::McpServerConfig;
use crate::error::ApiError;
use crate::routes::episodes::origin;
use crate::state::App;

/// The address of a server under `base`, the episode's own address.
pub(super) fn server_url(base: &str, server: &McpServerConfig) -> String {
    format!("{base}/mcp/{}", server.name)
}

/// `GET /e/{episode}/mcp.json`: a client's configuration. Whoever reads it is about to connect, so the servers start.
pub(super) async fn configuration(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    app.guard.check_origin(request.headers())?;
    let episode = app.episode_by_path(&id, request.headers()).await?;
    let base = format!("{}/e/{}", origin(request.headers()), episode.id);
    let mut servers = Map::new();
    for config in &app.mcp_servers {
        let mut entry = json!({"type": "http", "url": server_url(&base, config)});
        if !app.guard.is_open() {
            let key = format_key(episode.id.as_str(), &episode.secret);
            entry["headers"] = json!({"Authorization": format!("Bearer {key}")});
        }
        servers.insert(config.name.clone(), entry);
        if let Some(session) = episode.sessions.get(config).await {
            app.background.spawn(async move { session.warm().await });
        }
    }
    Ok(Json(json!({"mcpServers": servers})))
}

/// `POST /e/{episode}/mcp/{server}`: one JSON-RPC message, or several in an array.
pub(super) async fn message(
    State(app): State<App>,
    Path((id, server)): Path<(String, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    app.guard.check_origin(request.headers())?;
    let episode = app.episode_by_path(&id, request.headers()).await?;
    let config = server_config(&app, &server)?;
    let session = episode
        .sessions
        .get(config)
        .await
        .ok_or_else(|| ApiError::episode_closed(&id))?;
    let body = app.read_body(request).await?;
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        let answer =
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "the body is not JSON"}});
        return Ok((StatusCode::BAD_REQUEST, Json(answer)).into_response());
    };
    // In a task of its own: a client that hangs up does not cancel the record of a tool call.
    let (calls, recorder) = (episode.calls.clone(), app.recorder.clone());
    let answered = calls.spawn(async move {
        match message {
            Value::Array(messages) => {
                let mut answers = Vec::new();
                for message in messages {
                    answers.extend(session.handle(message, &episode, &recorder).await);
                }
                (!answers.is_empty()).then_some(Value::Array(answers))
            }
            message => session.handle(message, &episode, &recorder).await,
        }
    });
    match answered.await {
        Ok(Some(answer)) => Ok(Json(answer).into_response()),
        Ok(None) => Ok(StatusCode::ACCEPTED.into_response()),
        Err(error) => Err(ApiError::internal(format!("the message was not handled: {error}"))),
    }
}

/// `GET`: there is no stream of messages that a server sends by itself.
pub(super) async fn no_stream() -> Response {
    let error = ApiError::bad_request(
        "method_not_allowed",
        "this MCP endpoint has no stream: send messages by POST",
    );
    let mut response = error.into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
        .headers_mut()
        .insert(header::ALLOW, http::HeaderValue::from_static("POST, DELETE"));
    response
}

/// `DELETE`: the client is done. The server's process lives on until the episode closes, for other clients of it.
pub(super) async fn end(
    State(app): State<App>,
    Path((id, server)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    app.guard.check_origin(request.headers())?;
    app.episode_by_path(&id, request.headers()).await?;
    server_config(&app, &server)?;
    Ok(StatusCode::NO_CONTENT)
}

fn server_config<'a>(app: &'a App, name: &str) -> Result<&'a Arc<McpServerConfig>, ApiError> {
    let found = app.mcp_servers.iter().find(|server| server.name == name);
    found.ok_or_else(|| ApiError::not_found("unknown_mcp_server", format!("no tool server is named `{name}`")))
}
