//! Groups that the trainer could take.

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Value, json};
use trajectory::{ReadyFilter, Split};

use crate::error::ApiError;
use crate::routes::{json_answer, read_query};
use crate::state::App;

const DEFAULT_LIMIT: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    state: Option<String>,
    split: Option<Split>,
    max_staleness: Option<u64>,
    #[serde(default)]
    max_failed: usize,
    #[serde(default = "one")]
    min_episodes: usize,
    limit: Option<usize>,
}

fn one() -> usize {
    1
}

/// `GET /api/groups?state=ready`
pub(super) async fn ready(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let query: Query = read_query(&request)?;
    if query.state.as_deref().is_some_and(|state| state != "ready") {
        return Err(ApiError::bad_request("invalid_query", "`state` can only be `ready`"));
    }
    let filter = ReadyFilter {
        split: query.split,
        trained: false,
        group_ids: None,
        current_version: app.policy.current().version,
        max_staleness: query.max_staleness,
        max_failed: query.max_failed,
        min_episodes: query.min_episodes,
        limit: Some(query.limit.unwrap_or(DEFAULT_LIMIT)),
    };
    let ready = app.recorder.run(move |store| store.ready_groups(&filter)).await;
    let ready = ready.map_err(|error| ApiError::store(&error))?;
    json_answer(json!({"groups": ready.groups, "left_out": ready.left_out}))
}
