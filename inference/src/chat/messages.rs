//! OpenAI chat messages, checked and brought into the one form that templates read.

use serde_json::{Map, Value, json};

use super::ChatError;

/// Checks `messages` and returns them with `content` as one string (text parts joined by a line break; null only where an assistant
/// called tools and said nothing), `developer` as `system`, and tool calls that have a name and arguments. Unknown fields stay.
///
/// # Errors
/// [`ChatError::Message`] names the first message that can't be used and what to send instead.
pub fn normalise(messages: &[Value]) -> Result<Vec<Value>, ChatError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            normalise_one(message)
                .map(Value::Object)
                .map_err(|reason| ChatError::Message { index, reason })
        })
        .collect()
}

fn normalise_one(message: &Value) -> Result<Map<String, Value>, String> {
    let mut message = message
        .as_object()
        .cloned()
        .ok_or("must be an object with `role` and `content`")?;
    let role = match message.get("role").and_then(Value::as_str) {
        Some("developer") => "system".to_owned(),
        Some(role) if !role.is_empty() => role.to_owned(),
        _ => return Err("has no `role`; send `system`, `user`, `assistant` or `tool`".into()),
    };
    message.insert("role".into(), Value::String(role.clone()));
    let has_calls = role == "assistant" && has_tool_calls(&message)?;
    if !has_calls {
        message.remove("tool_calls");
    }
    let content = match message.get("content") {
        None | Some(Value::Null) if has_calls => Value::Null,
        None | Some(Value::Null) if role == "assistant" => Value::String(String::new()),
        None | Some(Value::Null) => return Err(format!("a `{role}` message needs `content`")),
        Some(Value::String(text)) => Value::String(text.clone()),
        Some(Value::Array(parts)) => Value::String(join_parts(parts)?),
        Some(_) => return Err("`content` must be a string or a list of text parts".into()),
    };
    message.insert("content".into(), content);
    Ok(message)
}

fn has_tool_calls(message: &Map<String, Value>) -> Result<bool, String> {
    let calls = match message.get("tool_calls") {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err("`tool_calls` must be a list".into()),
    };
    for (position, call) in calls.iter().enumerate() {
        let function = &call["function"];
        if function["name"].as_str().is_none_or(str::is_empty) {
            return Err(format!("`tool_calls[{position}].function.name` is missing"));
        }
        if !(function["arguments"].is_string() || function["arguments"].is_object()) {
            return Err(format!(
                "`tool_calls[{position}].function.arguments` must be a string of JSON"
            ));
        }
    }
    Ok(!calls.is_empty())
}

fn join_parts(parts: &[Value]) -> Result<String, String> {
    let texts: Vec<&str> = parts
        .iter()
        .map(|part| match part {
            Value::String(text) => Ok(text.as_str()),
            Value::Object(fields) => {
                let kind = fields.get("type").and_then(Value::as_str).unwrap_or("text");
                let text = fields
                    .get("text")
                    .or_else(|| fields.get("refusal"))
                    .and_then(Value::as_str);
                text.ok_or_else(|| {
                    format!("a content part of type `{kind}` can't be read; this model takes text parts")
                })
            }
            _ => Err("a content part must be an object with `type` and `text`".to_owned()),
        })
        .collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

/// Turns each tool call's `arguments` from a string of JSON into the object that templates with tools expect; a string that isn't
/// JSON stays a string.
pub fn parse_arguments(messages: &mut [Value]) {
    for_each_call(messages, |call| {
        if let Some(text) = call["function"]["arguments"].as_str()
            && let Ok(arguments) = serde_json::from_str::<Value>(text)
        {
            call["function"]["arguments"] = arguments;
        }
    });
}

/// Calls `visit` on every tool call of every message.
pub fn for_each_call(messages: &mut [Value], mut visit: impl FnMut(&mut Value)) {
    for message in messages {
        if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            calls
                .iter_mut()
                .filter(|call| call["function"].is_object())
                .for_each(&mut visit);
        }
    }
}

/// Checks OpenAI tool definitions.
///
/// # Errors
/// [`ChatError::Tool`] names the first that isn't a function with a name.
pub fn check_tools(tools: &[Value]) -> Result<(), ChatError> {
    for (index, tool) in tools.iter().enumerate() {
        let fail = |reason: &str| {
            Err(ChatError::Tool {
                index,
                reason: reason.into(),
            })
        };
        if tool["type"].as_str().is_some_and(|kind| kind != "function") {
            return fail("only tools of type `function` can be called");
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return fail("`function.name` is missing");
        }
    }
    Ok(())
}

/// The message that an answer becomes in the next request's history.
pub fn assistant_message(content: Option<&str>, calls: &[super::ToolCall]) -> Value {
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = calls.iter().map(super::ToolCall::to_json).collect();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(message: Value) -> String {
        normalise(&[json!({"role": "user", "content": "a"}), message])
            .err()
            .unwrap()
            .to_string()
    }

    #[test]
    fn content_becomes_one_string() {
        let normal = normalise(&[
            json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [], "name": "x"}),
        ])
        .unwrap();
        assert_eq!(normal[0], json!({"role": "system", "content": "a\nb"}));
        assert_eq!(normal[1]["content"], Value::Null);
        assert_eq!(normal[2], json!({"role": "assistant", "content": "", "name": "x"}));
    }

    #[test]
    fn refusals_name_the_message_and_the_remedy() {
        assert_eq!(
            reason(json!({"role": "user"})),
            "messages[1]: a `user` message needs `content`"
        );
        assert!(reason(json!("hi")).starts_with("messages[1]: must be an object"));
        assert!(
            reason(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})).contains("text parts")
        );
        assert!(
            reason(json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})).contains("arguments")
        );
    }
}
