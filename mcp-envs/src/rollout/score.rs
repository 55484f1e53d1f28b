//! Asking the environment for the reward, whatever its verifier does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use trajectory::{CallStatus, EpisodeRecord, Failure, FailureCause};

use crate::environment::{Environment, EpisodeView};
use crate::reward::Reward;
use crate::scenario::Scenario;

/// Scores on a thread that may block; a verifier that panics fails this episode alone.
pub(super) async fn score(
    environment: Arc<dyn Environment>,
    scenario: Scenario,
    record: EpisodeRecord,
    stdout: String,
) -> Result<Reward, Failure> {
    let failed = |message: String| Failure {
        cause: FailureCause::Reward,
        message,
    };
    let scored = tokio::task::spawn_blocking(move || {
        let printed = stdout.trim();
        let answer = record
            .answer()
            .or_else(|| (!printed.is_empty()).then(|| printed.to_owned()));
        let view = EpisodeView {
            answer: answer.as_deref(),
            tool_calls: &record.tool_calls,
            n_model_calls: record
                .calls
                .iter()
                .filter(|call| call.status == CallStatus::Complete)
                .count(),
        };
        std::panic::catch_unwind(AssertUnwindSafe(|| environment.score(&scenario, &view)))
    });
    match scored.await {
        Ok(Ok(reward)) if reward.reward.is_finite() => Ok(reward),
        Ok(Ok(reward)) => Err(failed(format!("the verifier gave {} as reward", reward.reward))),
        Ok(Err(panic)) => Err(failed(format!("the verifier panicked: {}", panic_message(&*panic)))),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
