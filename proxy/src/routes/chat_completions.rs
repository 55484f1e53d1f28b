//! `POST …/v1/chat/completions`: the recorded endpoint.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::address::api_key;
use crate::call::draft::Draft;
use crate::call::plan::Plan;
use crate::call::run::Call;
use crate::episodes::LiveEpisode;
use crate::error::ApiError;
use crate::state::App;

/// The episode is in the path.
pub(super) async fn by_path(State(app): State<App>, Path(id): Path<String>, request: Request) -> Response {
    match app.episode_by_path(&id, request.headers()).await {
        Ok(episode) => answer(app, Some(episode), request).await,
        Err(error) => error.into_response(),
    }
}

/// The episode is in the key, or has to be found by the messages.
pub(super) async fn by_key(State(app): State<App>, request: Request) -> Response {
    match app.episode_by_key(request.headers()).await {
        Ok(episode) => answer(app, episode, request).await,
        Err(error) => error.into_response(),
    }
}

async fn answer(app: App, episode: Option<Arc<LiveEpisode>>, request: Request) -> Response {
    let headers = request.headers().clone();
    match plan(app, episode, request).await {
        Ok(call) => call.run(headers).await,
        Err(error) => error.into_response(),
    }
}

async fn plan(app: App, episode: Option<Arc<LiveEpisode>>, request: Request) -> Result<Call, ApiError> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::shutting_down());
    }
    let permit = app.permits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::too_many("too many model calls are in flight: try again shortly"))?;
    let headers = request.headers().clone();
    let body = app.read_body(request).await?;
    let parsed: Value = serde_json::from_slice(&body).map_err(|error| {
        ApiError::bad_request("invalid_json", format!("the request body is not valid JSON: {error}"))
    })?;
    if !parsed.is_object() {
        return Err(ApiError::bad_request(
            "invalid_json",
            "the request body is not a JSON object",
        ));
    }
    let (episode, thread) = match episode {
        Some(episode) => (episode, None),
        None => {
            let caller = api_key(&headers).unwrap_or_default().to_owned();
            (app.implicit_episode(&headers, &parsed).await?, Some(caller))
        }
    };
    let model = parsed.get("model").and_then(Value::as_str);
    let upstream = app.upstreams.choose(episode.upstream.as_deref(), model)?;
    let plan = Plan::chat(&body, &parsed, upstream, &app.policy, &episode.overrides)?;
    episode.touch();
    let draft = Draft::new(episode.id.clone(), parsed);
    Ok(Call {
        app,
        episode,
        plan,
        draft,
        thread,
        permit,
    })
}
