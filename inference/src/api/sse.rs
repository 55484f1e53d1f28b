//! Server-sent events as OpenAI's clients read them.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

use super::ApiError;

/// A source of chunks.
pub(super) trait Chunks: Send + 'static {
    /// The next chunks, possibly none yet; `None` at the end of the stream.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Value>>, ApiError>> + Send;
}

/// Streams the chunks, then `[DONE]`; an error becomes the last event. The client's hang-up drops `chunks`.
pub(super) fn response(chunks: impl Chunks) -> Response {
    let events = stream::unfold(Some(chunks), |chunks| async move {
        let mut chunks = chunks?;
        loop {
            match chunks.next().await {
                Ok(Some(values)) if values.is_empty() => {}
                Ok(Some(values)) => {
                    let bytes = values.iter().map(event).collect::<String>();
                    return Some((Ok::<_, Infallible>(Bytes::from(bytes)), Some(chunks)));
                }
                Ok(None) => return Some((Ok(Bytes::from_static(b"data: [DONE]\n\n")), None)),
                Err(error) => {
                    tracing::error!(%error, "a stream broke off");
                    let bytes = format!("{}data: [DONE]\n\n", event(&error.to_json()));
                    return Some((Ok(Bytes::from(bytes)), None));
                }
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}
