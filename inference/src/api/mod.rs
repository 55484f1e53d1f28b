//! The engine over HTTP, in the protocol of vLLM, so that a proxy, a trainer or any OpenAI client needs to know only one kind of server.
//!
//! In the order a request meets them: [`router`] and [`serve`] here, `body` (JSON in, or an error that says what to do),
//! `request` (what may be asked for, and what that means for the engine), the routes (`chat_completions`, `completions`,
//! `adapters`, `models`, `tokenize`, `health`), `generation` (the sampled sequences of one request), `choice` (one sequence's
//! tokens → text, tool calls, finish reason), `sse` (streams) and [`ApiError`]. [`Generator`] is the seam to the engine.

mod adapters;
mod body;
mod chat_completions;
mod choice;
mod completions;
mod error;
mod generation;
mod generator;
mod health;
mod models;
mod request;
mod sse;
mod stop_strings;
mod tokenize;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use error::ApiError;
pub use generator::Generator;

use crate::chat::prompt_memory::MemoryLimits;
use crate::chat::{ChatTokenizer, PromptMemory};

/// The version of the protocol that `/version` reports, beside the name of this server.
pub const PROTOCOL_VERSION: &str = "0.32.0";

/// How long answers may go on after a shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
const MAX_BODY_BYTES: usize = 64 << 20;

/// What the server is told.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Name of the base model in requests and in `/v1/models`.
    pub model_name: String,
    /// Where it was loaded from; the `root` of `/v1/models`.
    pub model_path: PathBuf,
    /// Most tokens of a sequence, prompt and answer together; the engine's limit.
    pub max_model_len: usize,
    /// Demanded as `Authorization: Bearer …` on everything but `/health`, if set.
    pub api_key: Option<String>,
}

/// What all routes share; cheap to clone.
#[derive(Clone)]
pub struct ApiState {
    inner: Arc<Inner>,
}

struct Inner {
    config: ApiConfig,
    generator: Box<dyn Generator>,
    tokenizer: Arc<ChatTokenizer>,
    memory: PromptMemory,
    /// Unix seconds of the start: `created` of the models.
    started_at: i64,
}

impl ApiState {
    /// A server of `generator` whose text goes through `tokenizer`.
    pub fn new(config: ApiConfig, generator: impl Generator, tokenizer: Arc<ChatTokenizer>) -> Self {
        let memory = PromptMemory::new(MemoryLimits::default());
        let started_at = unix_seconds();
        Self {
            inner: Arc::new(Inner {
                config,
                generator: Box::new(generator),
                tokenizer,
                memory,
                started_at,
            }),
        }
    }

    fn config(&self) -> &ApiConfig {
        &self.inner.config
    }

    fn generator(&self) -> &dyn Generator {
        &*self.inner.generator
    }

    fn tokenizer(&self) -> &ChatTokenizer {
        &self.inner.tokenizer
    }

    fn memory(&self) -> &PromptMemory {
        &self.inner.memory
    }

    /// The adapter that `model` names; `None` is the base model, which is also meant where no model is named.
    fn resolve_model(&self, model: Option<&str>) -> Result<Option<String>, ApiError> {
        match model {
            None => Ok(None),
            Some(name) if name == self.config().model_name => Ok(None),
            Some(name) if self.generator().adapters().iter().any(|adapter| adapter.name == name) => {
                Ok(Some(name.to_owned()))
            }
            Some(name) => Err(ApiError::model_not_found(name)),
        }
    }
}

/// The routes.
pub fn router(state: ApiState) -> axum::Router {
    axum::Router::new()
        .route("/v1/chat/completions", post(chat_completions::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/version", get(health::version))
        .route("/metrics", get(health::metrics))
        .layer(axum::middleware::from_fn_with_state(state.clone(), demand_key))
        .route("/health", get(health::health))
        .fallback(async || {
            ApiError::not_found("there is no such route; see /v1/models, /v1/chat/completions, /v1/completions")
        })
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(state)
}

/// Serves until `shutdown`; answers under way then have a short while to end.
///
/// # Errors
/// What the system says of the listener.
pub async fn serve(listener: TcpListener, state: ApiState, shutdown: CancellationToken) -> std::io::Result<()> {
    let server = axum::serve(listener, router(state)).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let too_late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        result = server.into_future() => result,
        () = too_late => Ok(()),
    }
}

async fn demand_key(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let Some(key) = &state.config().api_key else {
        return next.run(request).await;
    };
    let header = request.headers().get(axum::http::header::AUTHORIZATION);
    let sent = header
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    if sent.is_some_and(|sent| equal_in_constant_time(sent.as_bytes(), key.as_bytes())) {
        return next.run(request).await;
    }
    ApiError::unauthorized().into_response()
}

/// Takes as long for a nearly right key as for a wrong one.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .fold(0, |differences, (a, b)| differences | (a ^ b))
            == 0
}

fn unix_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}
