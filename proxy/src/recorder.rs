//! The way to the store. Writing never breaks the agent's traffic: where the store refuses, the episode is tainted and
//! the operator told, and the answer goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trajectory::{CallStatus, EpisodeId, ModelCall, Store, StoreError, ToolCall};

use crate::episodes::LiveEpisode;
use crate::metrics::Metrics;

/// Cheap to clone; writes run on the blocking pool and are not cancelled by whoever waits for them.
#[derive(Clone)]
pub(crate) struct Recorder {
    store: Store,
    metrics: Arc<Metrics>,
    /// The operator has been told that the store fails; cleared by the next write that succeeds.
    told: Arc<AtomicBool>,
}

impl Recorder {
    pub(crate) fn new(store: Store, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            metrics,
            told: Arc::default(),
        }
    }

    /// Runs a store operation off the async threads.
    pub(crate) async fn run<T, F>(&self, operation: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    {
        let store = self.store.clone();
        match tokio::task::spawn_blocking(move || operation(&store)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being dropped, and whoever waits here with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Returns when the call is in the store, or the episode tainted.
    pub(crate) async fn append_call(&self, episode: &LiveEpisode, call: ModelCall) {
        match call.status {
            CallStatus::Complete => self.metrics.calls_complete.add(1),
            CallStatus::Aborted => self.metrics.calls_aborted.add(1),
            CallStatus::Failed => self.metrics.calls_failed.add(1),
        }
        if let Some(usage) = &call.usage {
            self.metrics.prompt_tokens.add(usage.prompt_tokens);
            self.metrics.completion_tokens.add(usage.completion_tokens);
        }
        let written = self.run(move |store| store.append_call(call)).await.map(drop);
        self.after_write(episode, "a model call", written).await;
    }

    /// As [`Self::append_call`], for a tool call.
    pub(crate) async fn append_tool_call(&self, episode: &LiveEpisode, call: ToolCall) {
        self.metrics.tool_calls.add(1);
        if call.error.is_some() {
            self.metrics.tool_calls_failed.add(1);
        }
        let written = self.run(move |store| store.append_tool_call(call)).await.map(drop);
        self.after_write(episode, "a tool call", written).await;
    }

    /// Marks the episode as recorded with a hole, in memory first.
    pub(crate) async fn taint(&self, episode: &LiveEpisode, reason: &str) {
        if episode.taint(reason) {
            self.metrics.episodes_tainted.add(1);
            tracing::warn!(episode = %episode.id, reason, "episode tainted");
            episode.taint_stored(self.store_taint(&episode.id, reason).await);
        }
    }

    /// Tries once more to store a taint that the store refused; done before an episode closes.
    pub(crate) async fn retry_taint(&self, episode: &LiveEpisode) {
        if let Some(reason) = episode.unstored_taint() {
            episode.taint_stored(self.store_taint(&episode.id, &reason).await);
        }
    }

    async fn store_taint(&self, episode: &EpisodeId, reason: &str) -> bool {
        let (id, reason) = (episode.clone(), reason.to_owned());
        match self.run(move |store| store.taint(&id, &reason)).await {
            Ok(()) => true,
            Err(error) => {
                self.tell(&error);
                false
            }
        }
    }

    async fn after_write(&self, episode: &LiveEpisode, what: &str, written: Result<(), StoreError>) {
        match written {
            Ok(()) => self.told.store(false, Ordering::Relaxed),
            Err(error) => {
                self.tell(&error);
                self.taint(episode, &format!("{what} could not be stored: {error}"))
                    .await;
            }
        }
    }

    fn tell(&self, error: &StoreError) {
        self.metrics.store_errors.add(1);
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::error!(
                error = error as &dyn std::error::Error,
                "the trajectory store refuses writes: agents are still served, but their episodes are tainted and won't \
                 be trained on; check the disk and the store's folder"
            );
        }
    }
}
