//! Open episodes, in memory: what a call needs to know without asking the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trajectory::{CloseEpisode, Episode, EpisodeId, EpisodeState, Failure, NewEpisode};

use crate::address::secrets_equal;
use crate::error::ApiError;
use crate::mcp::Sessions;
use crate::recorder::Recorder;

/// How long a close waits for the episode's calls to be recorded after they were cancelled.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// One open episode.
pub(crate) struct LiveEpisode {
    pub(crate) id: EpisodeId,
    pub(crate) secret: String,
    /// Fields set on every policy request.
    pub(crate) overrides: Map<String, Value>,
    /// Upstream that wins over the routes.
    pub(crate) upstream: Option<String>,
    pub(crate) implicit: bool,
    /// Cancelled when the episode closes: calls in flight end and are recorded as aborted.
    pub(crate) closing: CancellationToken,
    /// The calls in flight, with the writing of their records.
    pub(crate) calls: TaskTracker,
    /// The episode's sessions with tool servers.
    pub(crate) sessions: Sessions,
    marks: Mutex<Marks>,
    began: Instant,
    /// Milliseconds from `began` to the last call.
    last_call: AtomicU64,
}

#[derive(Default)]
struct Marks {
    taint: Option<String>,
    taint_stored: bool,
    failure: Option<Failure>,
}

impl LiveEpisode {
    fn new(episode: &Episode) -> Self {
        Self {
            id: episode.id.clone(),
            secret: episode.secret.clone(),
            overrides: episode.overrides.clone(),
            upstream: episode.upstream.clone(),
            implicit: episode.implicit,
            closing: CancellationToken::new(),
            calls: TaskTracker::new(),
            sessions: Sessions::default(),
            marks: Mutex::new(Marks {
                taint: episode.tainted.clone(),
                taint_stored: episode.tainted.is_some(),
                failure: None,
            }),
            began: Instant::now(),
            last_call: AtomicU64::new(0),
        }
    }

    /// Notes a taint; false where there already is one.
    pub(crate) fn taint(&self, reason: &str) -> bool {
        let mut marks = self.marks();
        let is_first = marks.taint.is_none();
        marks.taint.get_or_insert_with(|| reason.to_owned());
        is_first
    }

    pub(crate) fn taint_stored(&self, stored: bool) {
        self.marks().taint_stored = stored;
    }

    pub(crate) fn unstored_taint(&self) -> Option<String> {
        let marks = self.marks();
        if marks.taint_stored { None } else { marks.taint.clone() }
    }

    /// Notes what went wrong outside the agent; the first cause counts, where whoever closes the episode gives none.
    pub(crate) fn note_failure(&self, failure: Failure) {
        self.marks().failure.get_or_insert(failure);
    }

    /// What went wrong outside the agent so far.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.marks().failure.clone()
    }

    /// Notes that a call came now.
    pub(crate) fn touch(&self) {
        self.last_call
            .store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        self.began
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last_call.load(Ordering::Relaxed)))
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All open episodes.
pub(crate) struct Episodes {
    recorder: Recorder,
    live: RwLock<HashMap<EpisodeId, Arc<LiveEpisode>>>,
    max_open: usize,
}

impl Episodes {
    pub(crate) fn new(recorder: Recorder, max_open: usize) -> Self {
        Self {
            recorder,
            live: RwLock::default(),
            max_open,
        }
    }

    /// What went wrong outside the agent so far, in an episode that is open.
    pub(crate) fn failure(&self, id: &EpisodeId) -> Option<Failure> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.get(id).and_then(|episode| episode.failure())
    }

    pub(crate) fn n_open(&self) -> usize {
        self.live.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Opens an episode in the store and here.
    pub(crate) async fn open(&self, new: NewEpisode) -> Result<Arc<LiveEpisode>, ApiError> {
        if self.n_open() >= self.max_open {
            return Err(ApiError::too_many(format!(
                "{} episodes are open: close some first",
                self.max_open
            )));
        }
        let opened = self.recorder.run(move |store| store.open_episode(new)).await;
        let episode = opened.map_err(|error| ApiError::store(&error))?;
        let live = Arc::new(LiveEpisode::new(&episode));
        Ok(self.insert(live))
    }

    /// The open episode of that id, also one that an earlier process opened.
    pub(crate) async fn get(&self, id: &EpisodeId) -> Result<Arc<LiveEpisode>, ApiError> {
        if let Some(live) = self.cached(id) {
            return if live.closing.is_cancelled() {
                Err(ApiError::episode_closed(id.as_str()))
            } else {
                Ok(live)
            };
        }
        let wanted = id.clone();
        let found = self.recorder.run(move |store| store.episode(&wanted)).await;
        match found.map_err(|error| ApiError::store(&error))? {
            None => Err(ApiError::unknown_episode(id.as_str())),
            Some(Episode {
                state: EpisodeState::Closed,
                ..
            }) => Err(ApiError::episode_closed(id.as_str())),
            Some(episode) => Ok(self.insert(Arc::new(LiveEpisode::new(&episode)))),
        }
    }

    /// As [`Self::get`], for the holder of the episode's secret.
    pub(crate) async fn unlock(&self, id: &EpisodeId, secret: &str) -> Result<Arc<LiveEpisode>, ApiError> {
        let wrong = || ApiError::unauthorized("the API key does not open this episode");
        // An id that does not exist is not told from a wrong secret.
        let live = self.get(id).await.map_err(|error| {
            if error.code == "episode_not_found" {
                wrong()
            } else {
                error
            }
        })?;
        if secrets_equal(&live.secret, secret) {
            Ok(live)
        } else {
            Err(wrong())
        }
    }

    /// Ends the episode's calls and tool servers, then closes it in the store, with the noted failure where `close`
    /// has none.
    pub(crate) async fn close(&self, id: &EpisodeId, mut close: CloseEpisode) -> Result<Episode, ApiError> {
        if let Some(live) = self.cached(id) {
            self.wind_down(&live).await;
            if close.failure.is_none() {
                close.failure = live.failure();
            }
        }
        let closed = id.clone();
        let episode = self
            .recorder
            .run(move |store| store.close_episode(&closed, close))
            .await;
        self.live.write().unwrap_or_else(PoisonError::into_inner).remove(id);
        episode.map_err(|error| ApiError::store(&error))
    }

    /// Closes episodes that plain calls opened and that have been idle for long. Returns how many.
    pub(crate) async fn close_idle(&self, idle: Duration) -> usize {
        let quiet: Vec<EpisodeId> = {
            let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
            let quiet = live
                .values()
                .filter(|episode| episode.implicit && episode.calls.is_empty() && episode.idle() >= idle);
            quiet.map(|episode| episode.id.clone()).collect()
        };
        for id in &quiet {
            let close = CloseEpisode {
                stop_reason: Some("idle".into()),
                ..CloseEpisode::default()
            };
            if let Err(error) = self.close(id, close).await {
                tracing::warn!(episode = %id, error = error.message, "an idle episode could not be closed");
            }
        }
        quiet.len()
    }

    /// At the end of the process: ends all calls and tool servers; the episodes stay open in the store.
    pub(crate) async fn wind_down_all(&self) {
        let all: Vec<_> = self
            .live
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        for live in &all {
            live.closing.cancel();
        }
        futures_util::future::join_all(all.iter().map(|live| self.wind_down(live))).await;
    }

    async fn wind_down(&self, live: &LiveEpisode) {
        live.closing.cancel();
        live.calls.close();
        let calls_recorded = tokio::time::timeout(CLOSE_PATIENCE, live.calls.wait());
        let (calls_recorded, ()) = tokio::join!(calls_recorded, live.sessions.shut_down());
        if calls_recorded.is_err() {
            self.recorder
                .taint(live, "the episode closed before all its calls were recorded")
                .await;
        }
        self.recorder.retry_taint(live).await;
    }

    fn cached(&self, id: &EpisodeId) -> Option<Arc<LiveEpisode>> {
        self.live
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    fn insert(&self, episode: Arc<LiveEpisode>) -> Arc<LiveEpisode> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.entry(episode.id.clone()).or_insert(episode).clone()
    }
}
