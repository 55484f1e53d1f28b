//! The Hermes tool form, for models whose chat template knows no tools: definitions in `<tools>` in the system turn, calls in
//! `<tool_call>` in the assistant's turn, results in `<tool_response>` in a user turn. It rewrites messages into plain `role` and
//! `content`, which any chat template renders.

use serde_json::{Map, Value, json};

use super::json_text::python_json;

/// What opens a call in the assistant's text.
pub const CALL_OPEN: &str = "<tool_call>";
/// What closes it.
pub const CALL_CLOSE: &str = "</tool_call>";

// Short on purpose: a small model on a CPU reads these tokens in every request.
const BEFORE_TOOLS: &str = "# Tools\n\nYou may call these functions:\n<tools>\n";
const AFTER_TOOLS: &str = "\n</tools>\n\nTo call one, answer with\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/// Rewrites normalised `messages` and `tools` into messages of plain text.
pub fn to_plain_messages(messages: &[Value], tools: Option<&[Value]>) -> Vec<Value> {
    let mut plain: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    let mut previous_was_tool = false;
    for message in messages {
        let role = message["role"].as_str().unwrap_or_default();
        let content = message["content"].as_str().unwrap_or_default();
        let is_tool = role == "tool";
        match role {
            "tool" => {
                let response = format!("<tool_response>\n{content}\n</tool_response>");
                match plain.last_mut().filter(|_| previous_was_tool) {
                    // Results of one turn's calls share one user turn.
                    Some(last) => append_line(last, &response),
                    None => plain.push(json!({"role": "user", "content": response})),
                }
            }
            "assistant" => {
                let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
                plain.push(json!({"role": "assistant", "content": assistant_text(content, calls)}));
            }
            _ => plain.push(json!({"role": role, "content": content})),
        }
        previous_was_tool = is_tool;
    }
    if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
        let text = system_text(tools);
        match plain.first_mut().filter(|first| first["role"] == "system") {
            Some(system) => {
                let content = system["content"].as_str().unwrap_or_default();
                system["content"] = Value::String(format!("{content}\n\n{text}"));
            }
            None => plain.insert(0, json!({"role": "system", "content": text})),
        }
    }
    plain
}

/// The text of an assistant's turn: what it said, then its calls.
pub fn assistant_text(content: &str, calls: &[Value]) -> String {
    let mut text = content.to_owned();
    for call in calls {
        if !text.is_empty() {
            text.push('\n');
        }
        let function = &call["function"];
        let name = python_json(&function["name"]);
        let arguments = arguments_text(&function["arguments"]);
        text.push_str(&format!(
            "{CALL_OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CALL_CLOSE}"
        ));
    }
    text
}

/// Arguments as the agent sent them, if that is JSON; anything else as a JSON string.
fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::String(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => text.trim().to_owned(),
        other => python_json(other),
    }
}

fn append_line(message: &mut Value, line: &str) {
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = Value::String(format!("{content}\n{line}"));
}

fn system_text(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(|tool| python_json(&compact_tool(tool))).collect();
    format!("{BEFORE_TOOLS}{}{AFTER_TOOLS}", lines.join("\n"))
}

/// A tool as `{"name", "description", "parameters"}`, its schema without the keywords that tell a model nothing.
fn compact_tool(tool: &Value) -> Value {
    let function = &tool["function"];
    let mut compact = Map::new();
    for key in ["name", "description", "parameters"] {
        match &function[key] {
            Value::Null => {}
            schema if key == "parameters" => {
                compact.insert(key.into(), compact_schema(schema));
            }
            other => {
                compact.insert(key.into(), other.clone());
            }
        }
    }
    Value::Object(compact)
}

/// `schema` without `$schema`, `title` and `additionalProperties: false`, at every depth; names of properties are left alone.
fn compact_schema(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| match key.as_str() {
                "$schema" | "title" => !value.is_string(),
                "additionalProperties" => **value != Value::Bool(false),
                _ => true,
            });
            let compacted = kept.map(|(key, value)| match (key.as_str(), value) {
                ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                    let named = named
                        .iter()
                        .map(|(name, schema)| (name.clone(), compact_schema(schema)));
                    (key.clone(), Value::Object(named.collect()))
                }
                ("enum" | "const" | "default" | "examples", literal) => (key.clone(), literal.clone()),
                (_, nested) => (key.clone(), compact_schema(nested)),
            });
            Value::Object(compacted.collect())
        }
        Value::Array(items) => items.iter().map(compact_schema).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_becomes_plain_turns() {
        let call = |name: &str, arguments: &str| json!({"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}});
        let tools = [
            json!({"type": "function", "function": {"name": "look", "description": "Looks.", "strict": true,
            "parameters": {"$schema": "x", "title": "Look", "type": "object", "additionalProperties": false,
                "properties": {"title": {"title": "Title", "type": "string", "enum": ["a"]}}}}}),
        ];
        let messages = [
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": null, "tool_calls": [call("look", "{\"a\":1}"), call("see", "oops")]}),
            json!({"role": "tool", "tool_call_id": "c", "content": "1"}),
            json!({"role": "tool", "tool_call_id": "d", "content": "2"}),
            json!({"role": "assistant", "content": "done", "tool_calls": [call("end", "{}")]}),
        ];
        let plain = to_plain_messages(&messages, Some(&tools));
        let roles: Vec<_> = plain.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
        assert_eq!(
            plain[0]["content"],
            "# Tools\n\nYou may call these functions:\n<tools>\n{\"name\": \"look\", \"description\": \"Looks.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\", \"enum\": [\"a\"]}}}}\n</tools>\n\nTo call one, answer with\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
        );
        assert_eq!(
            plain[2]["content"],
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"a\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"see\", \"arguments\": \"oops\"}\n</tool_call>"
        );
        assert_eq!(
            plain[3]["content"],
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        );
        assert_eq!(
            plain[4]["content"],
            "done\n<tool_call>\n{\"name\": \"end\", \"arguments\": {}}\n</tool_call>"
        );
    }

    #[test]
    fn an_existing_system_turn_is_extended() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let plain = to_plain_messages(&[json!({"role": "system", "content": "Be brief."})], Some(&tools));
        assert_eq!(plain.len(), 1);
        assert!(
            plain[0]["content"]
                .as_str()
                .unwrap()
                .starts_with("Be brief.\n\n# Tools\n")
        );
    }
}
