//! Which policy version is current, and the switch to another.

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use trajectory::{Policy, PolicyVersion};

use crate::error::ApiError;
use crate::routes::read_json;
use crate::state::App;

/// `GET /api/policy`: the current version, and the calls in flight on each version that has some.
pub(super) async fn show(State(app): State<App>) -> Json<Value> {
    Json(describe(&app))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishBody {
    version: PolicyVersion,
    adapter: Option<String>,
}

/// `POST /api/policy`: calls that begin after the answer use this version.
pub(super) async fn publish(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let PublishBody { version, adapter } = read_json(&app, request).await?;
    let policy = Policy { version, adapter };
    let stored = policy.clone();
    let written = app.recorder.run(move |store| store.set_policy(&stored)).await;
    written.map_err(|error| ApiError::store(&error))?;
    app.policy.switch(policy);
    tracing::info!(version = version.0, "the current policy was switched");
    Ok(Json(describe(&app)))
}

fn describe(app: &App) -> Value {
    let Policy { version, adapter } = app.policy.current();
    let in_flight = app
        .policy
        .in_flight()
        .into_iter()
        .map(|(version, calls)| (version.to_string(), calls.into()));
    json!({"version": version, "adapter": adapter, "in_flight": in_flight.collect::<Map<_, _>>()})
}
