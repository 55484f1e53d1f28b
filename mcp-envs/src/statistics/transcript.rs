//! The same question before and after, to be read by people.

use serde_json::Value;
use trajectory::{EpisodeRecord, ToolCall};

use crate::scenario::Scenario;

/// Longest result or answer that a transcript repeats, in characters.
const SHOWN: usize = 1200;

/// One policy's episode on a question.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Which policy, such as "base" or "GRPO".
    pub label: &'a str,
    /// What was recorded.
    pub record: &'a EpisodeRecord,
}

/// Markdown with a chapter for each scenario and a section for each attempt: tool calls with arguments and results, what
/// the model said in between, the answer, the reward.
pub fn render_transcripts(title: &str, scenarios: &[(&Scenario, Vec<Attempt<'_>>)]) -> String {
    let mut text = format!("# {title}\n");
    for (scenario, attempts) in scenarios {
        text.push_str(&format!(
            "\n## {}\n\n{}, `{}`\n",
            one_line(&scenario.prompt),
            scenario.kind.replace('_', " "),
            scenario.id
        ));
        for attempt in attempts {
            text.push_str(&format!("\n### {}\n\n{}\n", attempt.label, verdict(attempt.record)));
            render_episode(attempt.record, &mut text);
        }
    }
    text
}

fn verdict(record: &EpisodeRecord) -> String {
    let episode = &record.episode;
    if let Some(failure) = &episode.failure {
        return format!("Failed: {}.", failure.message);
    }
    let right = match episode.metrics.get("success").and_then(Value::as_f64) {
        Some(success) if success >= 1.0 => "right, ",
        Some(_) => "wrong, ",
        None => "",
    };
    episode.reward.map_or_else(
        || "Not rewarded.".to_owned(),
        |reward| format!("Answer {right}reward {reward:.2}."),
    )
}

fn render_episode(record: &EpisodeRecord, text: &mut String) {
    let mut executed: Vec<&ToolCall> = record.tool_calls.iter().collect();
    let last = record.calls.len().saturating_sub(1);
    for (position, call) in record.calls.iter().enumerate() {
        let message = call
            .response
            .as_ref()
            .map(|response| &response["choices"][0]["message"])
            .unwrap_or(&Value::Null);
        if let Some(error) = &call.error {
            text.push_str(&format!("\nThe model call failed: {}\n", one_line(error)));
        }
        let requested = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let said = message["content"]
            .as_str()
            .map(str::trim)
            .filter(|said| !said.is_empty());
        if let Some(said) = said {
            let heading = if position == last && requested.is_empty() {
                "**Answer:**"
            } else {
                "**Model:**"
            };
            text.push_str(&format!("\n{heading}\n{}", quote(said)));
        }
        for request in requested {
            let name = request["function"]["name"].as_str().unwrap_or("?");
            let arguments = request["function"]["arguments"].as_str().unwrap_or("");
            text.push_str(&format!("\n**Tool call:** `{name}({})`\n", one_line(arguments)));
            match executed.iter().position(|call| call.tool == name) {
                Some(found) => text.push_str(&result_text(executed.remove(found))),
                None => text.push_str("\nNot run: no tool server was asked.\n"),
            }
        }
    }
    for call in executed {
        text.push_str(&format!(
            "\n**Tool call of the agent's own:** `{}({})`\n{}",
            call.tool,
            call.arguments,
            result_text(call)
        ));
    }
}

/// The text of an MCP tool result, fenced.
fn result_text(call: &ToolCall) -> String {
    if let Some(error) = &call.error {
        return format!("\nThe tool server failed: {}\n", one_line(error));
    }
    let content = call.result.as_ref().and_then(|result| result["content"].as_array());
    let parts = content.map(Vec::as_slice).unwrap_or_default();
    let text: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    // A fence longer than any inside it.
    let body = shorten(&text.join("\n"));
    let fence = if body.contains("```") { "~~~~" } else { "```" };
    let heading = if call.is_error { "\nError:\n" } else { "" };
    format!("{heading}\n{fence}\n{}\n{fence}\n", body.trim_end())
}

fn quote(text: &str) -> String {
    shorten(text).lines().map(|line| format!("> {line}\n")).collect()
}

fn one_line(text: &str) -> String {
    shorten(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn shorten(text: &str) -> String {
    let n_characters = text.chars().count();
    if n_characters <= SHOWN {
        return text.to_owned();
    }
    let kept: String = text.chars().take(SHOWN).collect();
    format!("{kept} […{} more characters]", n_characters - SHOWN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trajectory::Split;

    use super::*;

    fn record() -> EpisodeRecord {
        let call = |sequence: u32, message: Value| {
            json!({
                "id": format!("c{sequence}"), "episode_id": "e", "sequence": sequence, "endpoint": "chat_completions", "model": "m",
                "upstream_model": "policy@1", "request": {}, "response": {"choices": [{"message": message}]}, "prompt_token_ids": null,
                "choices": [], "policy_version": 1, "sampling": {}, "grammar_constrained": false, "status": "complete",
                "upstream_status": 200, "error": null, "usage": null,
                "timings": {"received_at_ms": 0, "first_token_ms": null, "total_ms": 1},
            })
        };
        let asks = json!({"content": null, "tool_calls": [
            {"function": {"name": "forecast", "arguments": "{\"place\": \"Boise, ID\"}"}},
            {"function": {"name": "horoscope", "arguments": "{}"}},
        ]});
        let value = json!({
            "episode": {
                "id": "e", "scenario_id": "s", "group_id": null, "split": "held_out", "metadata": {}, "overrides": {}, "upstream": null,
                "agent_command": null, "implicit": false, "state": "closed", "reward": 0.9, "metrics": {"success": 1},
                "stop_reason": null, "failure": null, "tainted": null, "opened_at_ms": 0, "closed_at_ms": 1,
            },
            "calls": [call(1, asks), call(2, json!({"content": "51 °F"}))],
            "tool_calls": [{
                "id": "t", "episode_id": "e", "sequence": 1, "server": "nws", "tool": "forecast", "arguments": {"place": "Boise, ID"},
                "result": {"content": [{"type": "text", "text": "Tonight: 51 °F"}]}, "is_error": false, "error": null,
                "started_at_ms": 0, "duration_ms": 1,
            }],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_transcript_reads_from_question_to_reward() {
        let record = record();
        let scenario = Scenario {
            id: "s".into(),
            kind: "temperature".into(),
            prompt: "How cold is it tonight in Boise?".into(),
            data: json!({"answer": "hidden"}),
            split: Split::HeldOut,
        };
        let text = render_transcripts(
            "Before and after",
            &[(
                &scenario,
                vec![Attempt {
                    label: "GRPO",
                    record: &record,
                }],
            )],
        );
        let order = [
            "How cold is it tonight in Boise?",
            "### GRPO",
            "right, reward 0.90",
            "forecast({\"place\": \"Boise, ID\"})",
            "Tonight: 51 °F",
            "horoscope({})",
            "Not run",
            "**Answer:**\n> 51 °F",
        ];
        let mut from = 0;
        for part in order {
            from += text[from..]
                .find(part)
                .unwrap_or_else(|| panic!("no `{part}` after place {from} of:\n{text}"));
        }
        assert!(!text.contains("hidden"));
    }
}
