//! What every route shares.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trajectory::{EpisodeId, NewEpisode};

use crate::address::{EpisodeKey, api_key};
use crate::config::{Limits, McpServerConfig};
use crate::episodes::{Episodes, LiveEpisode};
use crate::error::ApiError;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::policy::CurrentPolicy;
use crate::recorder::Recorder;
use crate::threads::{self, Threads};
use crate::upstream::{HttpClient, Upstreams};

/// Handles, cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

/// What [`App`] points to.
pub(crate) struct Shared {
    pub(crate) client: HttpClient,
    pub(crate) upstreams: Upstreams,
    pub(crate) mcp_servers: Vec<Arc<McpServerConfig>>,
    pub(crate) limits: Limits,
    pub(crate) guard: Guard,
    pub(crate) recorder: Recorder,
    pub(crate) episodes: Episodes,
    pub(crate) threads: Threads,
    pub(crate) policy: Arc<CurrentPolicy>,
    pub(crate) metrics: Arc<Metrics>,
    /// One permit for each model call in flight.
    pub(crate) permits: Arc<Semaphore>,
    /// Work that outlives the request that began it.
    pub(crate) background: TaskTracker,
    /// A stop was asked for.
    pub(crate) stopping: CancellationToken,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub(crate) fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// The episode of a call to `/e/{episode}/…`. An episode's key, where one is presented, must be this episode's; on
    /// a proxy with a token some key that opens the episode is demanded.
    pub(crate) async fn episode_by_path(&self, id: &str, headers: &HeaderMap) -> Result<Arc<LiveEpisode>, ApiError> {
        let id = EpisodeId::from(id);
        let key = api_key(headers).and_then(EpisodeKey::parse);
        match key {
            Some(key) if key.episode != id.as_str() => Err(ApiError::unauthorized(
                "the API key belongs to another episode than the path names",
            )),
            Some(key) => self.episodes.unlock(&id, key.secret).await,
            None if self.guard.is_open() || self.guard.has_token(headers) => self.episodes.get(&id).await,
            None => Err(ApiError::unauthorized("this address needs the episode's key")),
        }
    }

    /// The episode whose key a plain call presents; `None` for a call that has to be threaded into an implicit one.
    pub(crate) async fn episode_by_key(&self, headers: &HeaderMap) -> Result<Option<Arc<LiveEpisode>>, ApiError> {
        match api_key(headers).and_then(EpisodeKey::parse) {
            Some(key) => self
                .episodes
                .unlock(&EpisodeId::from(key.episode), key.secret)
                .await
                .map(Some),
            None if self.guard.is_open() || self.guard.has_token(headers) => Ok(None),
            None => Err(ApiError::unauthorized("the API key opens no episode of this proxy")),
        }
    }

    /// The implicit episode of a plain call: the one that its hint names or that its messages continue, else a new one.
    pub(crate) async fn implicit_episode(
        &self,
        headers: &HeaderMap,
        request: &Value,
    ) -> Result<Arc<LiveEpisode>, ApiError> {
        let caller = api_key(headers).unwrap_or_default();
        let hint = headers.get("x-trainyard-episode").and_then(|hint| hint.to_str().ok());
        let hint = hint.or_else(|| request.pointer("/metadata/episode")?.as_str());
        let hashes = match hint {
            Some(name) => vec![threads::named(caller, name)],
            None => threads::prefix_hashes(caller, messages(request)),
        };
        if let Some(id) = self.threads.find(&hashes)
            && let Ok(episode) = self.episodes.get(&id).await
        {
            if hint.is_some() {
                self.threads.remember(hashes[0], &episode.id);
            }
            return Ok(episode);
        }
        let episode = self
            .episodes
            .open(NewEpisode {
                implicit: true,
                ..NewEpisode::default()
            })
            .await?;
        self.metrics.episodes_opened.add(1);
        if hint.is_some() {
            self.threads.remember(hashes[0], &episode.id);
        }
        Ok(episode)
    }

    /// The whole body, or 413.
    pub(crate) async fn read_body(&self, request: Request) -> Result<Bytes, ApiError> {
        let limit = self.limits.max_body_bytes;
        let declared = request.headers().get(http::header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|length| length > limit) {
            return Err(ApiError::too_large(limit));
        }
        axum::body::to_bytes(request.into_body(), limit).await.map_err(|error| {
            let too_large = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
                .any(|error| error.is::<http_body_util::LengthLimitError>());
            if too_large {
                ApiError::too_large(limit)
            } else {
                ApiError::bad_request("incomplete_body", "the request body ended early")
            }
        })
    }

    /// Closes idle implicit episodes until a stop is asked for.
    pub(crate) async fn sweep(self) {
        let idle = self.limits.implicit_idle;
        let pause = (idle / 4).clamp(Duration::from_millis(50), Duration::from_secs(30));
        while self
            .stopping
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .is_some()
        {
            let closed = self.episodes.close_idle(idle).await;
            self.metrics.episodes_closed.add(closed as u64);
            self.threads.forget_idle(idle);
        }
    }
}

/// The messages of a chat request; empty where there are none.
pub(crate) fn messages(request: &Value) -> &[Value] {
    request
        .get("messages")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}
