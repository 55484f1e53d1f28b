//! Signals: the first asks for an orderly end, the second ends at once.

#[cfg(feature = "torch")]
use std::sync::Arc;
#[cfg(feature = "torch")]
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancelled by SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// If the system refuses signal handlers.
pub(crate) fn on_signal() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // A terminal that is closed must not leave agents and tool servers behind.
    let mut hang_up = signal(SignalKind::hangup())?;
    let cancelled = token.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
            if cancelled.is_cancelled() {
                // Whoever signals twice doesn't want to wait; what is durable is on disk already.
                std::process::abort();
            }
            cancelled.cancel();
        }
    });
    Ok(token)
}

/// Raises `flag` as soon as `token` is cancelled, for work that knows nothing of tokens.
#[cfg(feature = "torch")]
pub(crate) fn raise(flag: Arc<AtomicBool>, token: CancellationToken) {
    tokio::spawn(async move {
        token.cancelled().await;
        flag.store(true, Ordering::Relaxed);
    });
}
