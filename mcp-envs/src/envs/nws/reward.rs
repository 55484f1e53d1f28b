//! The reward of an episode, from facts: the weather's values, the recorded tool calls, and the final answer.
//!
//! - [`calls`]: which of the needed calls were made, with the right arguments, and gave the evidence
//! - [`answer`]: whether the answer says the right thing, and nothing else that would compete with it
//!
//! | earned | for |
//! | --- | --- |
//! | 1.0 | success: all needed calls, the right value, a clean answer, no more than [`SPARE_CALLS`] calls too many |
//! | up to 0.1 | the share of needed calls whose tool was called |
//! | up to 0.2 | the share of needed calls that were right in their arguments and gave the evidence |
//! | 0.15 | the right value from those calls, beside others that compete with it |
//! | 0 | everything else, above all an answer that no tool result backs |
//!
//! A copied tool result or question earns nothing for the value in it. Calling many tools in the hope that one fits
//! halves what is left of the partial credit.

use trajectory::ToolCall;

use super::scenarios::Facts;
use crate::environment::EpisodeView;
use crate::reward::Reward;

pub mod answer;
pub mod calls;

/// Calls beyond the needed ones that cost nothing: an agent may correct itself.
pub const SPARE_CALLS: usize = 2;
const TOOL_CREDIT: f64 = 0.1;
const ARGUMENT_CREDIT: f64 = 0.2;
const VALUE_CREDIT: f64 = 0.15;

/// Scores one episode. `prompt` is the question: numbers and names in it may be repeated in the answer.
pub fn score(prompt: &str, facts: &Facts, episode: &EpisodeView<'_>) -> Reward {
    let n_needed = facts.calls.len();
    let progress = calls::progress(&facts.calls, episode.tool_calls);
    let is_backed = progress.n_right == n_needed;
    let results = results(episode.tool_calls);
    let verdict = answer::judge(prompt, facts, episode.answer.unwrap_or_default(), &results);
    let right_value = is_backed && verdict.right_value;
    let within_calls = episode.tool_calls.len() <= n_needed + SPARE_CALLS;
    let success = right_value && verdict.clean && within_calls;

    let share = |count: usize| {
        if n_needed == 0 {
            0.0
        } else {
            count as f64 / n_needed as f64
        }
    };
    let reward = if success {
        1.0
    } else {
        let value = if right_value && verdict.own { VALUE_CREDIT } else { 0.0 };
        let partial = TOOL_CREDIT * share(progress.n_tools) + ARGUMENT_CREDIT * share(progress.n_right) + value;
        if within_calls { partial } else { partial / 2.0 }
    };
    Reward::new(reward, success)
        .with("right_tool", share(progress.n_tools))
        .with("right_arguments", share(progress.n_right))
        .with("right_value", u8::from(right_value))
        .with("clean_answer", u8::from(verdict.clean))
        .with("n_tool_calls", episode.tool_calls.len())
}

fn results(tool_calls: &[ToolCall]) -> Vec<String> {
    tool_calls.iter().map(calls::result_text).collect()
}

#[cfg(test)]
mod tests;
