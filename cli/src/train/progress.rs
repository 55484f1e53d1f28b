//! What a person sees while a run goes on: a bar on a terminal, nothing but the line of each step otherwise.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcp_envs::rollout::EpisodeOutcome;

/// A bar over episodes, with running success.
pub(crate) struct Progress {
    bar: ProgressBar,
    successes: AtomicUsize,
    failures: AtomicUsize,
}

impl Progress {
    /// A bar over `total` episodes on standard error; hidden where that is no terminal.
    pub(crate) fn start(label: &str, total: usize) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total as u64), target);
        let style = ProgressStyle::with_template("  {prefix:28} {bar:24} {pos}/{len}  {elapsed} ETA {eta}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        Self {
            bar,
            successes: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
        }
    }

    /// Counts an episode that has ended.
    pub(crate) fn episode(&self, outcome: &EpisodeOutcome) {
        let count = |counter: &AtomicUsize, yes: bool| {
            counter.fetch_add(usize::from(yes), Ordering::Relaxed) + usize::from(yes)
        };
        let successes = count(&self.successes, outcome.success());
        let failures = count(&self.failures, outcome.failure.is_some());
        self.bar.inc(1);
        let done = self.bar.position().max(1) as f64;
        let failed = if failures > 0 {
            format!(", {failures} failed")
        } else {
            String::new()
        };
        self.bar
            .set_message(format!("success {:.0} %{failed}", 100.0 * successes as f64 / done));
    }

    /// Counts something that is no episode.
    pub(crate) fn advance(&self, message: String) {
        self.bar.inc(1);
        self.bar.set_message(message);
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Seconds as a person says them.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.1} min", seconds / 60.0)
    }
}

pub(crate) use crate::telemetry::print_error as line;
