//! One named cause for an episode that failed.

use trajectory::{CallStatus, EpisodeRecord, Failure, FailureCause, ModelCall};

use crate::agent::{AgentConfig, AgentEnd, AgentReport, Exit};

/// Most characters of an agent's last words that a message repeats.
const LAST_WORDS: usize = 300;

/// Why the episode failed; `None` if the agent came to its end and what it asked for last was answered.
///
/// What the proxy saw go wrong comes before what the agent made of it: an agent that crashes because a tool server did
/// not start has not failed by itself. Of a call that failed and was then repeated with success nothing is made here.
pub(super) fn failure(report: &AgentReport, record: &EpisodeRecord, config: &AgentConfig) -> Option<Failure> {
    let failure = own_failure(report, record, config)?;
    Some(record.episode.failure.clone().unwrap_or(failure))
}

fn own_failure(report: &AgentReport, record: &EpisodeRecord, config: &AgentConfig) -> Option<Failure> {
    let cause = |cause, message| Some(Failure { cause, message });
    match report.end {
        AgentEnd::TimedOut => {
            let limit = config.time_limit.as_secs_f64();
            return cause(
                FailureCause::Timeout,
                format!("the agent ran longer than its limit of {limit} s"),
            );
        }
        AgentEnd::TooMuchOutput => {
            return cause(
                FailureCause::Agent,
                format!("the agent printed more than its limit of {} bytes", config.output_limit),
            );
        }
        AgentEnd::Exited(_) | AgentEnd::Cancelled => {}
    }
    let crashed = report.end != AgentEnd::Exited(Exit::Code(0));
    let unanswered = record.calls.last().filter(|call| call.status == CallStatus::Failed);
    if let Some(failure) = unanswered.and_then(upstream_failure) {
        return Some(failure);
    }
    if crashed {
        let broken_tool = record
            .tool_calls
            .last()
            .and_then(|call| Some((call, call.error.as_deref()?)));
        if let Some((call, error)) = broken_tool {
            return cause(
                FailureCause::ToolServer,
                format!("tool `{}` of server `{}`: {error}", call.tool, call.server),
            );
        }
        return cause(
            FailureCause::Agent,
            format!("{}{}", ending(&report.end), last_words(&report.stderr)),
        );
    }
    if record.calls.is_empty() {
        let message = "the agent never called the model; does it read OPENAI_BASE_URL?";
        return cause(FailureCause::Agent, format!("{message}{}", last_words(&report.stderr)));
    }
    unanswered.map(refused)
}

/// The failure of an upstream that could not be reached or broke; `None` where it refused what was asked.
fn upstream_failure(call: &ModelCall) -> Option<Failure> {
    let refused = call
        .upstream_status
        .is_some_and(|status| (400..500).contains(&status) && status != 429);
    let error = call.error.as_deref().unwrap_or("no answer");
    let message = match call.upstream_status {
        Some(status) => format!(
            "upstream answered `{}` with status {status}: {error}",
            call.upstream_model
        ),
        None => format!("upstream did not answer `{}`: {error}", call.upstream_model),
    };
    (!refused).then_some(Failure {
        cause: FailureCause::Upstream,
        message,
    })
}

/// The failure of an agent whose last request was refused, such as one that outgrew the model's context.
fn refused(call: &ModelCall) -> Failure {
    let status = call.upstream_status.unwrap_or_default();
    let error = call.error.as_deref().unwrap_or("no reason given");
    Failure {
        cause: FailureCause::Agent,
        message: format!("the agent's last request was refused with status {status}: {error}"),
    }
}

fn ending(end: &AgentEnd) -> String {
    match end {
        AgentEnd::Exited(Exit::Code(code)) => format!("the agent exited with code {code}"),
        AgentEnd::Exited(Exit::Signal(signal)) => format!("the agent was ended by signal {signal}"),
        _ => "the agent was ended".to_owned(),
    }
}

/// The last line that an agent wrote to standard error, shortened, with a colon before it.
fn last_words(stderr: &str) -> String {
    let line = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.map(|line| format!(": {}", line.chars().take(LAST_WORDS).collect::<String>()))
        .unwrap_or_default()
}
