//! `GET /v1/models` and `/v1/models/{id}`: the base model, and each loaded adapter as a child of it.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{ApiError, ApiState};

pub(super) async fn list(State(state): State<ApiState>) -> Json<Value> {
    Json(json!({"object": "list", "data": models(&state)}))
}

pub(super) async fn show(State(state): State<ApiState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let found = models(&state).into_iter().find(|model| model["id"] == *id);
    found.map(Json).ok_or_else(|| ApiError::model_not_found(&id))
}

fn models(state: &ApiState) -> Vec<Value> {
    let config = state.config();
    let model = |id: &str, root: String, parent: Option<&str>, max_model_len: Option<usize>| {
        json!({
            "id": id,
            "object": "model",
            "created": state.inner.started_at,
            "owned_by": "trainyard",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [],
        })
    };
    let base_root = config.model_path.display().to_string();
    let base = model(&config.model_name, base_root, None, Some(config.max_model_len));
    let adapters = state.generator().adapters();
    let adapters = adapters.iter().map(|adapter| {
        model(
            &adapter.name,
            adapter.path.display().to_string(),
            Some(&config.model_name),
            None,
        )
    });
    std::iter::once(base).chain(adapters).collect()
}
