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
        parse(&read(request, state).await?).map(JsonBody)
    }
}

/// Two views of one JSON body; each ignores the other's fields.
pub(super) struct JsonBodyViews<A, B>(pub A, pub B);

impl<S: Send + Sync, A: DeserializeOwned, B: DeserializeOwned> FromRequest<S> for JsonBodyViews<A, B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        Ok(Self(parse(&bytes)?, parse(&bytes)?))
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    let bytes = Bytes::from_request(request, state).await;
    bytes.map_err(|error: BytesRejection| ApiError::body(error.status(), error.body_text()))
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
