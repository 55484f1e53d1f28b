//! The recording gateway: an OpenAI-compatible proxy in front of inference servers, and the MCP gateway of an episode.
//!
//! An agent's base URL points here and nothing else about it changes. What it asks goes to the policy, or to another
//! upstream; what comes back reaches it as it was sent, less only the fields that we asked for; and every call is in the
//! trajectory store before its answer ends.
//!
//! Reading order, as a call travels:
//! 1. [`config`]: what the proxy is run with
//! 2. `routes`: the route table; `guard` and `address`: who may call, and for which episode
//! 3. `state`, `episodes`, `threads`, `policy`: what calls share
//! 4. `call`: one model call, from the request to its record; `upstream`: the servers behind
//! 5. [`sse`], [`assemble`], [`answer_edit`], `json_edit`: streams and JSON text, byte for byte
//! 6. `mcp`: tool servers, one process an episode
//! 7. `recorder`: the way to the store
//!
//! This crate never tokenises, never trains, and does not know libtorch.
#![forbid(unsafe_code)]

mod address;
pub mod answer_edit;
pub mod assemble;
mod call;
pub mod config;
mod episodes;
mod error;
mod guard;
mod json_edit;
mod mcp;
mod metrics;
mod policy;
mod recorder;
mod routes;
pub mod sse;
mod state;
#[cfg(test)]
mod tests;
mod threads;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trajectory::{EpisodeFilter, EpisodeState, Store};

pub use config::{ConfigError, Limits, McpServerConfig, ProxyConfig, RawProxyConfig, Route, UpstreamConfig};
pub use error::ProxyError;

use crate::episodes::Episodes;
use crate::guard::Guard;
use crate::metrics::Metrics;
use crate::policy::CurrentPolicy;
use crate::recorder::Recorder;
use crate::state::{App, Shared};
use crate::threads::Threads;
use crate::upstream::{Upstreams, http_client};

/// The store's note that the last proxy ended in good order, so that what was open then has no hole.
const ENDED_IN_ORDER: &str = "proxy.ended_in_order";

/// How long connections may take to pass on the errors of calls that were ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Serves on `listener` until `shutdown` is cancelled; then lets calls in flight go on for [`Limits::drain`], ends
/// the rest (recorded as aborted) and all tool servers, and returns.
pub async fn serve(
    listener: TcpListener,
    config: ProxyConfig,
    store: Store,
    shutdown: CancellationToken,
) -> Result<(), ProxyError> {
    let app = start(&listener, config, store).await?;
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection refuses TCP_NODELAY");
        }
    });
    let sweeper = tokio::spawn(app.clone().sweep());
    let stopping = app.stopping.clone();
    let server = axum::serve(listener, routes::router(app.clone()))
        .with_graceful_shutdown(async move { stopping.cancelled_owned().await });
    let mut server = std::pin::pin!(server.into_future());
    let mut is_serving = tokio::select! {
        ended = &mut server => { ended.map_err(ProxyError::Listen)?; false }
        () = shutdown.cancelled() => true,
    };
    app.stopping.cancel();
    // Whoever streams gets time to finish; then calls end with an error, and connections with them.
    if is_serving {
        is_serving = tokio::time::timeout(app.limits.drain, &mut server).await.is_err();
    }
    app.episodes.wind_down_all().await;
    if is_serving {
        let _ = tokio::time::timeout(LAST_WORDS, &mut server).await;
    }
    app.background.close();
    app.background.wait().await;
    let _ = sweeper.await;
    app.recorder
        .run(|store| store.meta_set(ENDED_IN_ORDER, &true.into()))
        .await?;
    Ok(())
}

async fn start(listener: &TcpListener, config: ProxyConfig, store: Store) -> Result<App, ProxyError> {
    config.validate()?;
    let upstreams = Upstreams::new(&config)?;
    let listening = listener.local_addr().map_err(ProxyError::Listen)?;
    if !listening.ip().is_loopback() && config.token.is_none() {
        return Err(ProxyError::TokenRequired { address: listening });
    }
    let metrics = Arc::new(Metrics::default());
    let recorder = Recorder::new(store, metrics.clone());
    let current = recorder.run(|store| store.policy()).await?;
    taint_interrupted(&recorder).await?;
    Ok(App::new(Shared {
        client: http_client(),
        upstreams,
        mcp_servers: config.mcp_servers.into_iter().map(Arc::new).collect(),
        limits: config.limits,
        guard: Guard::new(config.token, listening),
        episodes: Episodes::new(recorder.clone(), config.limits.max_open_episodes),
        recorder,
        threads: Threads::default(),
        policy: CurrentPolicy::new(current),
        metrics,
        permits: Arc::new(Semaphore::new(config.limits.max_concurrent_calls)),
        background: TaskTracker::new(),
        stopping: CancellationToken::new(),
    }))
}

/// A proxy that was killed may have had calls in flight that are recorded nowhere: what was open then has a hole.
async fn taint_interrupted(recorder: &Recorder) -> Result<(), ProxyError> {
    let tainted = recorder.run(|store| {
        let in_order = store.meta_get(ENDED_IN_ORDER)?.is_none_or(|value| value == true);
        store.meta_set(ENDED_IN_ORDER, &false.into())?;
        if in_order {
            return Ok(0);
        }
        let open = EpisodeFilter {
            state: Some(EpisodeState::Open),
            ..EpisodeFilter::default()
        };
        let open = store.episodes(&open)?;
        for episode in &open {
            store.taint(&episode.id, "the proxy was killed while the episode was open")?;
        }
        Ok(open.len())
    });
    let n_tainted = tainted.await?;
    if n_tainted > 0 {
        tracing::warn!(
            n_tainted,
            "the last proxy was killed: episodes that were open then are tainted"
        );
    }
    Ok(())
}
