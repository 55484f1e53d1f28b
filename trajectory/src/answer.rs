//! The assistant's text in a response, for each API.

use serde_json::Value;

use crate::call::Endpoint;

/// The text of the first choice; `None` where it has none.
pub(crate) fn text(endpoint: Endpoint, response: &Value) -> Option<String> {
    let text = match endpoint {
        Endpoint::ChatCompletions => content(response.pointer("/choices/0/message/content")?),
        Endpoint::Completions => response.pointer("/choices/0/text")?.as_str()?.to_owned(),
        Endpoint::Messages => content(response.get("content")?),
        Endpoint::Responses => {
            let output = response.get("output")?.as_array()?;
            let messages = output
                .iter()
                .filter(|item| item.get("type").and_then(Value::as_str) == Some("message"));
            messages
                .filter_map(|message| message.get("content"))
                .map(content)
                .collect()
        }
    };
    (!text.is_empty()).then_some(text)
}

/// A string, or the texts of a list of parts.
fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_api_has_its_place_for_text() {
        let cases = [
            (
                Endpoint::ChatCompletions,
                json!({"choices": [{"message": {"content": "a b"}}]}),
            ),
            (
                Endpoint::ChatCompletions,
                json!({"choices": [{"message": {"content": [{"type": "text", "text": "a b"}]}}]}),
            ),
            (Endpoint::Completions, json!({"choices": [{"text": "a b"}]})),
            (
                Endpoint::Messages,
                json!({"content": [{"type": "thinking"}, {"type": "text", "text": "a b"}]}),
            ),
            (
                Endpoint::Responses,
                json!({"output": [{"type": "reasoning"},
                    {"type": "message", "content": [{"type": "output_text", "text": "a "}, {"text": "b"}]}]}),
            ),
        ];
        for (endpoint, response) in cases {
            assert_eq!(text(endpoint, &response).as_deref(), Some("a b"), "{endpoint}");
        }
    }

    #[test]
    fn a_tool_call_is_no_answer() {
        let response = json!({"choices": [{"message": {"content": null, "tool_calls": [{}]}}]});
        assert_eq!(text(Endpoint::ChatCompletions, &response), None);
    }
}
