//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use std::path::PathBuf;

use axum::extract::State;
use serde::Deserialize;

use super::body::JsonBody;
use super::{ApiError, ApiState};
use crate::adapter::CONFIG_FILE;
use crate::engine::EngineError;

#[derive(Deserialize)]
pub(super) struct LoadRequest {
    lora_name: String,
    lora_path: PathBuf,
    #[serde(default)]
    load_inplace: bool,
}

#[derive(Deserialize)]
pub(super) struct UnloadRequest {
    lora_name: String,
}

pub(super) async fn load(
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<LoadRequest>,
) -> Result<String, ApiError> {
    let LoadRequest {
        lora_name,
        lora_path,
        load_inplace,
    } = request;
    if lora_name.is_empty() {
        return Err(ApiError::invalid_user_input("`lora_name` is empty; name the adapter"));
    }
    if lora_name == state.config().model_name {
        return Err(ApiError::invalid_user_input(format!(
            "'{lora_name}' is the base model's name; choose another"
        )));
    }
    let config_file = lora_path.join(CONFIG_FILE);
    if !tokio::fs::try_exists(&config_file).await.unwrap_or(false) {
        return Err(ApiError::not_found(format!(
            "Loading lora {lora_name} failed: No adapter found for {}; it needs {CONFIG_FILE}",
            lora_path.display()
        )));
    }
    state
        .generator()
        .load_adapter(&lora_name, &lora_path, load_inplace)
        .await?;
    tracing::info!(name = lora_name, path = %lora_path.display(), "adapter loaded");
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

pub(super) async fn unload(
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<UnloadRequest>,
) -> Result<String, ApiError> {
    let name = request.lora_name;
    match state.generator().unload_adapter(&name).await {
        Ok(()) => {
            tracing::info!(name, "adapter unloaded");
            Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
        }
        Err(EngineError::UnknownAdapter { name }) => Err(ApiError::not_found(format!(
            "The lora adapter '{name}' cannot be found."
        ))),
        Err(error) => Err(error.into()),
    }
}
