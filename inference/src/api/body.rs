//! JSON bodies.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::ApiError;

/// A JSON body as `T`, whatever content type the client claims (as vLLM); a refusal names the field.
pub(super) struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error: BytesRejection| ApiError::body(error.status(), error.body_text()))?;
        parse(&bytes).map(JsonBody)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            "." => ApiError::bad_request(format!("the body isn't what this route takes: {}", error.inner())),
            field => ApiError::bad_request(format!("`{field}`: {}", error.inner())),
        }
    })
}
