//! What a person sees while a run goes on: a bar on a terminal, nothing but the line of each step otherwise.

use std::cell::Cell;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcp_envs::rollout::EpisodeOutcome;

/// A bar over episodes, with running success.
pub(crate) struct Progress {
    bar: ProgressBar,
    successes: Cell<usize>,
    failures: Cell<usize>,
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
            successes: Cell::new(0),
            failures: Cell::new(0),
        }
    }

    /// Counts an episode that has ended.
    pub(crate) fn episode(&self, outcome: &EpisodeOutcome) {
        self.successes
            .set(self.successes.get() + usize::from(outcome.success()));
        self.failures
            .set(self.failures.get() + usize::from(outcome.failure.is_some()));
        self.bar.inc(1);
        let done = self.bar.position().max(1) as f64;
        let failed = if self.failures.get() > 0 {
            format!(", {} failed", self.failures.get())
        } else {
            String::new()
        };
        self.bar.set_message(format!(
            "success {:.0} %{failed}",
            100.0 * self.successes.get() as f64 / done
        ));
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
