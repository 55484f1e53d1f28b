//! Signals: the first asks for an orderly end; one that comes after this took too long ends at once.

#[cfg(feature = "torch")]
use std::sync::Arc;
#[cfg(feature = "torch")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// An orderly end takes at most 5 seconds. Whoever presses Ctrl-C twice before that must not leave agents behind.
const ORDERLY_END: Duration = Duration::from_secs(6);

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
        let mut first = None;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
            cancelled.cancel();
            if first.get_or_insert_with(Instant::now).elapsed() > ORDERLY_END {
                // What is durable is on disk already.
                std::process::abort();
            }
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
