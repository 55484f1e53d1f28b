//! One episode for people: what was said and called, in order.

use std::fmt::Write;

use serde_json::Value;
use trajectory::{EpisodeRecord, ModelCall, RewardRevision, ToolCall};

use super::list::clock;

/// Characters of a text that are shown unless all were asked for.
const SHORT: usize = 600;

/// Width of the names before texts.
const MARGIN: usize = 12;

/// The whole of it.
pub(super) fn transcript(record: &EpisodeRecord, revisions: &[RewardRevision], full: bool) -> String {
    let mut page = Page {
        text: String::new(),
        full,
    };
    header(&mut page, record, revisions);
    let mut events: Vec<(i64, Event<'_>)> = Vec::new();
    events.extend(
        record
            .calls
            .iter()
            .map(|call| (call.timings.received_at_ms, Event::Model(call))),
    );
    events.extend(
        record
            .tool_calls
            .iter()
            .map(|call| (call.started_at_ms, Event::Tool(call))),
    );
    events.sort_by_key(|(time, _)| *time);
    let mut seen: Vec<Said> = Vec::new();
    for (_, event) in events {
        match event {
            Event::Model(call) => model_call(&mut page, call, &mut seen),
            Event::Tool(call) => tool_call(&mut page, call),
        }
    }
    branches(&mut page, record);
    page.text
}

enum Event<'a> {
    Model(&'a ModelCall),
    Tool(&'a ToolCall),
}

/// One message: who, and what.
#[derive(Clone, PartialEq)]
struct Said {
    role: String,
    text: String,
}

struct Page {
    text: String,
    full: bool,
}

impl Page {
    /// A name and a text; further lines of the text are indented.
    fn line(&mut self, name: &str, text: &str) {
        let shortened = match text.char_indices().nth(SHORT) {
            Some((end, _)) if !self.full => {
                format!(
                    "{}… ({} characters; --full shows all)",
                    &text[..end],
                    text.chars().count()
                )
            }
            _ => text.to_owned(),
        };
        let mut name = name;
        for line in shortened.trim_end().lines() {
            self.push(format!("{name:MARGIN$}{line}").trim_end());
            name = "";
        }
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

fn header(page: &mut Page, record: &EpisodeRecord, revisions: &[RewardRevision]) {
    let episode = &record.episode;
    page.line("episode", episode.id.as_str());
    let mut about = vec![episode.state.to_string()];
    about.extend(episode.split.map(|split| split.to_string()));
    about.extend(episode.scenario_id.as_ref().map(|id| format!("scenario {id}")));
    about.extend(episode.group_id.as_ref().map(|id| format!("group {id}")));
    page.line("", &about.join(", "));
    let lasted = episode
        .closed_at_ms
        .map(|closed| format!(", {:.1} s", (closed - episode.opened_at_ms) as f64 / 1e3));
    page.line(
        "opened",
        &format!("{}{}", clock(episode.opened_at_ms), lasted.unwrap_or_default()),
    );
    if let Some(command) = &episode.agent_command {
        page.line("agent", command);
    }
    match revisions {
        [] => {}
        [only] => page.line("reward", &format!("{:.3}", only.reward)),
        several => {
            let rewards: Vec<String> = several.iter().map(|one| format!("{:.3}", one.reward)).collect();
            page.line("reward", &rewards.join(", amended to "));
        }
    }
    if !episode.metrics.is_empty() {
        let metrics: Vec<String> = episode
            .metrics
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        page.line("metrics", &metrics.join(", "));
    }
    if let Some(reason) = &episode.stop_reason {
        page.line("stopped", reason);
    }
    if let Some(failure) = &episode.failure {
        page.line("failed", &format!("{}: {}", failure.cause, failure.message));
    }
    if let Some(reason) = &episode.tainted {
        page.line("tainted", reason);
    }
}

fn model_call(page: &mut Page, call: &ModelCall, seen: &mut Vec<Said>) {
    let mut about = vec![format!("call {}", call.sequence), call.upstream_model.clone()];
    let n_sampled: usize = call.choices.iter().map(|choice| choice.token_ids.len()).sum();
    match (&call.prompt_token_ids, call.usage) {
        (Some(prompt), _) => about.push(format!("{} prompt and {n_sampled} sampled tokens", prompt.len())),
        (None, Some(usage)) => {
            about.push(format!(
                "{} and {} tokens, no ids",
                usage.prompt_tokens, usage.completion_tokens
            ));
        }
        (None, None) => about.push("no token ids".to_owned()),
    }
    about.push(format!("{:.2} s", call.timings.total_ms as f64 / 1e3));
    about.extend(call.choices.first().and_then(|choice| choice.finish_reason.clone()));
    page.push("");
    page.push(&format!("── {}", about.join(" · ")));
    let messages = prompt(&call.request);
    // Only what is new since the calls before; a history that was rewritten is shown from where it differs.
    let n_known = messages
        .iter()
        .zip(seen.iter())
        .take_while(|(message, known)| message == known)
        .count();
    for message in &messages[n_known..] {
        page.line(&message.role, &message.text);
    }
    *seen = messages;
    for answer in call.response.as_ref().map(answers).unwrap_or_default() {
        page.line(&answer.role, &answer.text);
        seen.push(answer);
    }
    if let Some(error) = &call.error {
        page.line(call.status.as_str(), error);
    }
}

fn tool_call(page: &mut Page, call: &ToolCall) {
    page.push("");
    page.push(&format!(
        "── tool {}/{} · {} ms",
        call.server, call.tool, call.duration_ms
    ));
    page.line("arguments", &call.arguments.to_string());
    if call.is_error {
        let texts = call
            .result
            .as_ref()
            .and_then(|result| result.get("content"))
            .map(content);
        page.line(
            "error",
            call.error
                .as_deref()
                .or(texts.as_deref())
                .unwrap_or("the tool said that it failed"),
        );
    }
}

fn branches(page: &mut Page, record: &EpisodeRecord) {
    let trajectories = record.trajectories();
    page.push("");
    page.push(&format!("── {} trajectories", trajectories.len()));
    for trajectory in &trajectories {
        let mut versions: Vec<u64> = trajectory
            .policy_versions
            .iter()
            .flatten()
            .map(|version| version.0)
            .collect();
        versions.sort_unstable();
        versions.dedup();
        let mut by = String::new();
        for version in versions {
            let _ = write!(by, " policy@{version}");
        }
        page.push(&format!(
            "{} tokens, {} sampled by{by}",
            trajectory.len(),
            trajectory.n_sampled()
        ));
    }
}

/// What a request says, in any of the four APIs.
fn prompt(request: &Value) -> Vec<Said> {
    let mut said = Vec::new();
    for (key, role) in [("instructions", "system"), ("system", "system"), ("prompt", "prompt")] {
        said.extend(request.get(key).map(|text| Said {
            role: role.to_owned(),
            text: content(text),
        }));
    }
    for key in ["messages", "input"] {
        match request.get(key) {
            Some(Value::Array(messages)) => said.extend(messages.iter().map(message)),
            Some(Value::String(text)) => said.push(Said {
                role: "user".to_owned(),
                text: text.clone(),
            }),
            _ => {}
        }
    }
    said.retain(|message| !message.text.is_empty());
    said
}

/// What a response says: one message for each choice that has one.
fn answers(response: &Value) -> Vec<Said> {
    let assistant = |text: String| Said {
        role: "assistant".to_owned(),
        text,
    };
    let mut said: Vec<Said> = match (response.get("choices"), response.get("output")) {
        (Some(Value::Array(choices)), _) => choices
            .iter()
            .map(|choice| match choice.get("message") {
                Some(answer) => message(answer),
                None => assistant(choice.get("text").map(content).unwrap_or_default()),
            })
            .collect(),
        (_, Some(Value::Array(items))) => items.iter().map(message).collect(),
        _ => vec![assistant(response.get("content").map(content).unwrap_or_default())],
    };
    said.retain(|message| !message.text.is_empty());
    said
}

fn message(message: &Value) -> Said {
    let word = |key: &str| message.get(key).and_then(Value::as_str);
    let mut text = message.get("content").map(content).unwrap_or_default();
    for call in message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let function = call.get("function").unwrap_or(call);
        push_call(&mut text, function.get("name"), function.get("arguments"));
    }
    if word("type") == Some("function_call") {
        push_call(&mut text, message.get("name"), message.get("arguments"));
    }
    text.push_str(word("output").unwrap_or_default());
    Said {
        role: word("role").or(word("type")).unwrap_or("message").to_owned(),
        text,
    }
}

/// Text, or the texts of a list of parts; calls and results inside parts are named.
fn content(content: &Value) -> String {
    let mut text = String::new();
    match content {
        Value::String(string) => text.push_str(string),
        Value::Array(parts) => {
            for part in parts {
                match (
                    part.get("type").and_then(Value::as_str),
                    part.get("text").and_then(Value::as_str),
                ) {
                    (_, Some(string)) => text.push_str(string),
                    (Some("tool_use"), None) => push_call(&mut text, part.get("name"), part.get("input")),
                    (Some("tool_result"), None) => {
                        text.push_str(&part.get("content").map(self::content).unwrap_or_default());
                    }
                    (Some(kind), None) => {
                        let _ = write!(text, "[{kind}]");
                    }
                    (None, None) => {}
                }
            }
        }
        _ => {}
    }
    text
}

fn push_call(text: &mut String, name: Option<&Value>, arguments: Option<&Value>) {
    let arguments = match arguments {
        Some(Value::String(string)) => string.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = write!(text, "→ {} {arguments}", name.and_then(Value::as_str).unwrap_or("?"));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> EpisodeRecord {
        let question = json!({"role": "user", "content": "Will it rain in Denver?"});
        let call = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_forecast", "arguments": "{\"days\":1}"}}]});
        let tool = json!({"role": "tool", "tool_call_id": "1", "content": "Today: rain"});
        let model_call = |sequence: u32, messages: Value, answer: &Value| {
            json!({"id": format!("c{sequence}"), "episode_id": "e1", "sequence": sequence, "status": "complete",
                "endpoint": "chat_completions", "upstream_model": "policy@2", "request": {"messages": messages},
                "response": {"choices": [{"message": answer}]}, "prompt_token_ids": [1, 2], "policy_version": 2,
                "choices": [{"index": 0, "token_ids": [3], "behaviour_logprobs": [-0.5], "finish_reason": "stop"}],
                "timings": {"received_at_ms": 1000 * sequence, "first_token_ms": 1, "total_ms": 250}})
        };
        let answer = json!({"role": "assistant", "content": "Yes, it rains."});
        let record = json!({
            "episode": {"id": "e1", "scenario_id": "rain-1", "group_id": "g", "split": "train", "state": "closed",
                "reward": 1.0, "metrics": {"success": 1}, "stop_reason": "answered", "failure": null, "tainted": null,
                "opened_at_ms": 500, "closed_at_ms": 4000},
            "calls": [model_call(1, json!([question]), &call), model_call(2, json!([question, call, tool]), &answer)],
            "tool_calls": [{"id": "t1", "episode_id": "e1", "sequence": 1, "server": "nws", "tool": "get_forecast",
                "arguments": {"days": 1}, "result": {"content": []}, "is_error": false, "error": null,
                "started_at_ms": 1500, "duration_ms": 7}],
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn each_message_is_shown_once_and_in_order() {
        let text = transcript(&record(), &[], false);
        let shown: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("──")).collect();
        let expected = [
            "── call 1 · policy@2 · 2 prompt and 1 sampled tokens · 0.25 s · stop",
            "user        Will it rain in Denver?",
            "assistant   → get_forecast {\"days\":1}",
            "",
            "── tool nws/get_forecast · 7 ms",
            "arguments   {\"days\":1}",
            "",
            "── call 2 · policy@2 · 2 prompt and 1 sampled tokens · 0.25 s · stop",
            "tool        Today: rain",
            "assistant   Yes, it rains.",
            "",
            "── 2 trajectories",
            "3 tokens, 1 sampled by policy@2",
            "3 tokens, 1 sampled by policy@2",
        ];
        assert_eq!(shown, expected, "{text}");
        assert!(text.contains("scenario rain-1") && text.contains("success 1"), "{text}");
    }

    #[test]
    fn long_texts_are_cut_unless_asked_for() {
        let mut record = record();
        record.calls[0].request["messages"][0]["content"] = json!("ü".repeat(1000));
        assert!(transcript(&record, &[], false).contains("… (1000 characters; --full shows all)"));
        assert!(transcript(&record, &[], true).contains(&"ü".repeat(1000)));
    }

    #[test]
    fn the_other_apis_are_read() {
        let said = |messages: Vec<Said>| -> Vec<String> {
            messages
                .into_iter()
                .map(|message| format!("{}: {}", message.role, message.text))
                .collect()
        };
        let responses = json!({"instructions": "be brief", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "output": "done"}]});
        let expected = [
            "system: be brief",
            "user: hi",
            "function_call: → f {}",
            "function_call_output: done",
        ];
        assert_eq!(said(prompt(&responses)), expected);
        let output = json!({"output": [{"type": "message", "role": "assistant", "content": [{"text": "ok"}]}]});
        assert_eq!(said(answers(&output)), ["assistant: ok"]);
        let anthropic = json!({"system": "s", "messages": [{"role": "user", "content": [
            {"type": "tool_result", "content": "42"}, {"type": "image"}]}]});
        assert_eq!(said(prompt(&anthropic)), ["system: s", "user: 42[image]"]);
        let answer =
            json!({"content": [{"type": "text", "text": "a"}, {"type": "tool_use", "name": "f", "input": {}}]});
        assert_eq!(said(answers(&answer)), ["assistant: a\n→ f {}"]);
    }
}
