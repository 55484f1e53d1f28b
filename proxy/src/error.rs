//! Errors: [`ProxyError`] ends `serve`, [`ApiError`] is one answer in OpenAI's form.

use std::net::SocketAddr;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use trajectory::StoreError;

use crate::config::ConfigError;

/// Why the proxy could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Bound where other machines can reach it, without a token.
    #[error("{address} can be reached by other machines: set a token, or listen on 127.0.0.1")]
    TokenRequired {
        /// The address that was bound.
        address: SocketAddr,
    },
    /// The store can't be read at the start.
    #[error("the trajectory store can't be read")]
    Store(#[from] StoreError),
    /// The listener failed.
    #[error("the proxy's listener failed")]
    Listen(#[source] std::io::Error),
}

/// An answer `{"error":{"message","type","code"}}`, the form that OpenAI's clients read.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code,
            message: message.into(),
        }
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, message)
    }

    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", code, message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "invalid_api_key",
            message,
        )
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", code, message)
    }

    pub(crate) fn episode_closed(id: &str) -> Self {
        let message = format!("episode {id} is closed: open another with POST /api/episodes");
        // Not 409, which OpenAI's clients try again.
        Self::new(StatusCode::GONE, "invalid_request_error", "episode_closed", message)
    }

    pub(crate) fn unknown_episode(id: &str) -> Self {
        Self::not_found(
            "episode_not_found",
            format!("there is no episode {id}: open one with POST /api/episodes"),
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            "request_too_large",
            message,
        )
    }

    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            "too_many_requests",
            message,
        )
    }

    pub(crate) fn upstream(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "upstream_error",
            "upstream_unavailable",
            message,
        )
    }

    pub(crate) fn shutting_down() -> Self {
        let message = "the proxy is shutting down";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            "shutting_down",
            message,
        )
    }

    /// What a caller did wrong is told; what is wrong with the store is for the log.
    pub(crate) fn store(error: &StoreError) -> Self {
        match error {
            StoreError::UnknownEpisode(id) => Self::unknown_episode(id.as_str()),
            StoreError::AlreadyClosed(id) => Self::episode_closed(id.as_str()),
            StoreError::InvalidReward(_) => Self::bad_request("invalid_reward", error.to_string()),
            error => {
                tracing::error!(error = error as &dyn std::error::Error, "the trajectory store failed");
                let message = "the trajectory store failed: the proxy's log says why";
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "server_error",
                    "store_error",
                    message,
                )
            }
        }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "internal_error",
            message,
        )
    }

    /// The JSON body.
    pub(crate) fn body(&self) -> serde_json::Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": null, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
