//! Counters of the proxy, in Prometheus' text form.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, or that counts what is there now.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters; one field, one metric.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) calls_complete: Counter,
    pub(crate) calls_aborted: Counter,
    pub(crate) calls_failed: Counter,
    pub(crate) requests_forwarded: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) completion_tokens: Counter,
    pub(crate) tool_calls: Counter,
    pub(crate) tool_calls_failed: Counter,
    pub(crate) episodes_opened: Counter,
    pub(crate) episodes_closed: Counter,
    pub(crate) episodes_tainted: Counter,
    pub(crate) store_errors: Counter,
}

impl Metrics {
    /// The text form; `gauges` are the values of the moment.
    pub(crate) fn render(&self, gauges: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        let calls = "trainyard_calls_total";
        metric(&mut text, calls, "counter", "Model calls recorded, by status.");
        for (status, counter) in [
            ("complete", &self.calls_complete),
            ("aborted", &self.calls_aborted),
            ("failed", &self.calls_failed),
        ] {
            let _ = writeln!(text, "{calls}{{status=\"{status}\"}} {}", counter.get());
        }
        for (name, help, counter) in [
            (
                "requests_forwarded",
                "Requests passed on without a record.",
                &self.requests_forwarded,
            ),
            ("prompt_tokens", "Prompt tokens of recorded calls.", &self.prompt_tokens),
            (
                "completion_tokens",
                "Sampled tokens of recorded calls.",
                &self.completion_tokens,
            ),
            ("tool_calls", "Tool calls recorded.", &self.tool_calls),
            (
                "tool_calls_failed",
                "Tool calls that a tool server did not answer.",
                &self.tool_calls_failed,
            ),
            ("episodes_opened", "Episodes opened.", &self.episodes_opened),
            ("episodes_closed", "Episodes closed.", &self.episodes_closed),
            (
                "episodes_tainted",
                "Episodes recorded with a hole.",
                &self.episodes_tainted,
            ),
            (
                "store_errors",
                "Writes that the trajectory store refused.",
                &self.store_errors,
            ),
        ] {
            let name = format!("trainyard_{name}_total");
            metric(&mut text, &name, "counter", help);
            let _ = writeln!(text, "{name} {}", counter.get());
        }
        for (name, help, value) in gauges {
            let name = format!("trainyard_{name}");
            metric(&mut text, &name, "gauge", help);
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
