//! What the program says: logs on standard error, results on standard output.

use std::io::{ErrorKind, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

/// Environment variable with the log filter, such as `debug` or `proxy=debug,warn`.
const LOG_VARIABLE: &str = "TRAINYARD_LOG";

/// Starts logging to standard error: warnings unless `TRAINYARD_LOG` says otherwise.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("warn"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let subscriber = subscriber.with_ansi(std::io::stderr().is_terminal());
    // A second subscriber can only be there in tests.
    let _ = subscriber.try_init();
}

/// A result, on standard output. Whoever closed it doesn't want to know.
pub(crate) fn print(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Whether an error only says that the reader of standard output has gone, as `head` does.
pub(crate) fn stdout_closed(error: &anyhow::Error) -> bool {
    let is_closed = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(is_closed)
}

/// Words for people, on standard error.
pub(crate) fn print_error(text: impl std::fmt::Display) {
    eprintln!("{text}");
}
