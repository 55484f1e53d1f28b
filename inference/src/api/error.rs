//! Errors as OpenAI and vLLM shape them: `{"error":{"message","type","param","code"}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::chat::ChatError;
use crate::engine::EngineError;

/// An answer that isn't 200; the message tells the caller what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            param: None,
            message: message.into(),
        }
    }

    /// 400: the request can't be served as it is.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// 400 because of the field `param`.
    pub fn bad_parameter(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::bad_request(message)
        }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    /// 404 for a model that is neither the base nor a loaded adapter.
    pub fn model_not_found(name: &str) -> Self {
        let message = format!("The model `{name}` does not exist. See /v1/models for those that do.");
        Self {
            param: Some("model"),
            ..Self::not_found(message)
        }
    }

    /// 400 for an adapter name that is taken, as vLLM types it.
    pub fn invalid_user_input(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidUserInput", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message = "Unauthorized; send the server's key as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "AuthenticationError", message)
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let message = "this route takes another method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowedError", message)
    }

    /// 413 or whatever else the body couldn't be read for.
    pub fn body(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "BadRequestError", message)
    }

    /// 500: our fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    /// 503: another time.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16(),
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(status = self.status.as_u16(), message = self.message, "request failed");
        }
        (self.status, Json(self.to_json())).into_response()
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Message { .. } => Self::bad_parameter("messages", error.to_string()),
            ChatError::Tool { .. } => Self::bad_parameter("tools", error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt | EngineError::PromptTooLong { .. } | EngineError::UnknownToken { .. } => {
                Self::bad_request(message)
            }
            EngineError::InvalidSampling { parameter, .. } => Self::bad_parameter(parameter, message),
            EngineError::UnknownAdapter { name } => Self::model_not_found(&name),
            EngineError::AdapterAlreadyLoaded { name } => Self::invalid_user_input(format!(
                "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
            )),
            EngineError::InvalidAdapter { source, .. } => Self::bad_request(with_causes(&source)),
            EngineError::QueueFull { .. } | EngineError::Stopped => Self::unavailable(message),
            _ => Self::internal(message),
        }
    }
}

/// An error and its causes in one line, for a caller who sees nothing else.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    message
}
