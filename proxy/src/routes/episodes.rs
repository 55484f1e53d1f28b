//! Opening, reading, rewarding and closing episodes.

use axum::Json;
use axum::extract::{Path, Request, State};
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use trajectory::{
    CallId, CloseEpisode, EpisodeFilter, EpisodeId, EpisodeState, GroupId, NewEpisode, ScenarioId, Split, StoreError,
};

use crate::address::format_key;
use crate::call::plan::RESERVED_FIELDS;
use crate::error::ApiError;
use crate::routes::{json_answer, mcp, read_json, read_query};
use crate::state::App;

/// Episodes listed where no limit is given.
const DEFAULT_LIMIT: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenBody {
    #[serde(alias = "scenario_id")]
    scenario: Option<ScenarioId>,
    #[serde(alias = "group_id")]
    group: Option<GroupId>,
    split: Option<Split>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    overrides: Option<Map<String, Value>>,
    upstream: Option<String>,
    agent_command: Option<String>,
}

/// `POST /api/episodes`
pub(super) async fn open(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let origin = origin(request.headers());
    let body: OpenBody = read_json(&app, request).await?;
    let overrides = body.overrides.unwrap_or_default();
    if let Some(field) = overrides.keys().find(|field| RESERVED_FIELDS.contains(&field.as_str())) {
        let message = format!("`overrides` can't set `{field}`: it is for sampling parameters such as `temperature`");
        return Err(ApiError::bad_request("reserved_override", message));
    }
    if let Some(name) = &body.upstream
        && app.upstreams.named(name).is_none()
    {
        return Err(ApiError::bad_request(
            "unknown_upstream",
            format!("no upstream is named `{name}`"),
        ));
    }
    let new = NewEpisode {
        scenario_id: body.scenario,
        group_id: body.group,
        split: body.split,
        metadata: body.metadata.unwrap_or_default(),
        overrides,
        upstream: body.upstream,
        agent_command: body.agent_command,
        implicit: false,
    };
    let episode = app.episodes.open(new).await?;
    app.metrics.episodes_opened.add(1);
    let base = format!("{origin}/e/{}", episode.id);
    let servers = app
        .mcp_servers
        .iter()
        .map(|server| (server.name.clone(), mcp::server_url(&base, server).into()));
    let servers: Map<String, Value> = servers.collect();
    Ok(Json(json!({
        "id": episode.id,
        "base_url": format!("{base}/v1"),
        "api_key": format_key(episode.id.as_str(), &episode.secret),
        "mcp": servers,
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    group: Option<GroupId>,
    state: Option<EpisodeState>,
    split: Option<Split>,
    scenario: Option<ScenarioId>,
    limit: Option<usize>,
}

/// `GET /api/episodes`
pub(super) async fn list(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let query: ListQuery = read_query(&request)?;
    let filter = EpisodeFilter {
        group: query.group,
        state: query.state,
        split: query.split,
        scenario: query.scenario,
        limit: Some(query.limit.unwrap_or(DEFAULT_LIMIT)),
    };
    let episodes = app.recorder.run(move |store| store.episodes(&filter)).await;
    json_answer(json!({"episodes": episodes.map_err(|error| ApiError::store(&error))?}))
}

/// `GET /api/episodes/{id}`: as recorded, and with what went wrong so far if the episode is open, since whoever closes it
/// wants to know.
pub(super) async fn show(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let wanted = EpisodeId::from(id.as_str());
    let noted = app.episodes.failure(&wanted);
    let record = app.recorder.run(move |store| store.record(&wanted)).await;
    let mut record = record
        .map_err(|error| ApiError::store(&error))?
        .ok_or_else(|| ApiError::unknown_episode(&id))?;
    record.episode.failure = record.episode.failure.or(noted);
    json_answer(record)
}

/// `POST /api/episodes/{id}/close`
pub(super) async fn close(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let close: CloseEpisode = read_json(&app, request).await?;
    check_finite(close.reward)?;
    let id = EpisodeId::from(id);
    // Of two closes the first counts, and an unknown episode is named as such.
    app.episodes.get(&id).await?;
    let episode = app.episodes.close(&id, close).await?;
    app.metrics.episodes_closed.add(1);
    json_answer(json!({"episode": episode}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RewardBody {
    reward: f64,
    #[serde(default)]
    metrics: Map<String, Value>,
    source: Option<String>,
}

/// `POST /api/episodes/{id}/reward`
pub(super) async fn reward(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body: RewardBody = read_json(&app, request).await?;
    set_reward(&app, EpisodeId::from(id), body.reward, body.metrics, body.source).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackBody {
    response_id: CallId,
    reward: f64,
    #[serde(default)]
    metrics: Map<String, Value>,
}

/// `POST /api/feedback`: a reward by the `x-trainyard-call` of any answer.
pub(super) async fn feedback(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body: FeedbackBody = read_json(&app, request).await?;
    let call = body.response_id.clone();
    let episode = app.recorder.run(move |store| store.episode_of_call(&call)).await;
    let episode = episode.map_err(|error| ApiError::store(&error))?.ok_or_else(|| {
        let message = format!(
            "no call {} is recorded: give the `x-trainyard-call` of an answer",
            body.response_id
        );
        ApiError::not_found("call_not_found", message)
    })?;
    set_reward(&app, episode, body.reward, body.metrics, Some("feedback".into())).await
}

async fn set_reward(
    app: &App,
    id: EpisodeId,
    reward: f64,
    metrics: Map<String, Value>,
    source: Option<String>,
) -> Result<Json<Value>, ApiError> {
    check_finite(Some(reward))?;
    let wanted = id.clone();
    let written = app.recorder.run(move |store| {
        if store.episode(&wanted)?.is_none() {
            return Ok(false);
        }
        store.set_reward(&wanted, reward, metrics, source.as_deref())?;
        Ok::<_, StoreError>(true)
    });
    match written.await {
        Ok(true) => Ok(Json(json!({"id": id, "reward": reward}))),
        Ok(false) => Err(ApiError::unknown_episode(id.as_str())),
        Err(error) => Err(ApiError::store(&error)),
    }
}

fn check_finite(reward: Option<f64>) -> Result<(), ApiError> {
    if reward.is_none_or(f64::is_finite) {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "invalid_reward",
        "`reward` must be a finite number",
    ))
}

/// Where the caller reached us, so that the addresses in an answer work for it.
pub(super) fn origin(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("127.0.0.1");
    format!("http://{host}")
}
