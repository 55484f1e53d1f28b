//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::JsonBody;
use super::{ApiError, ApiState};

#[derive(Deserialize)]
pub(super) struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    add_special_tokens: Option<bool>,
    #[serde(default)]
    return_token_strs: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The ids of a text, or of messages as a chat completion would read them.
pub(super) async fn tokenize(
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<TokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    state.resolve_model(request.model.as_deref())?;
    let tokenizer = state.tokenizer();
    let tokens = match (&request.prompt, &request.messages) {
        (Some(text), None) => tokenizer.encode_raw(text, request.add_special_tokens.unwrap_or(true))?,
        (None, Some(messages)) => {
            let mut messages = messages.clone();
            state.memory().restore_arguments(&mut messages);
            let tools = request.tools.as_deref();
            let prompt = tokenizer.prompt(&messages, tools, request.add_generation_prompt.unwrap_or(true))?;
            state.memory().resolve(tokenizer, &prompt, &messages)?
        }
        _ => return Err(ApiError::bad_request("send either `prompt` or `messages`")),
    };
    let texts = request.return_token_strs.unwrap_or(false).then(|| {
        let texts = tokens.iter().map(|token_id| tokenizer.token_text(*token_id));
        texts.collect::<Vec<_>>()
    });
    let max_model_len = state.config().max_model_len;
    Ok(Json(json!({
        "count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens, "token_strs": texts,
    })))
}

/// The text of ids, control tokens included.
pub(super) async fn detokenize(
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<DetokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    state.resolve_model(request.model.as_deref())?;
    Ok(Json(
        json!({"prompt": state.tokenizer().decode(&request.tokens, false)}),
    ))
}
