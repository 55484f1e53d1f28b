//! What is taken out of an answer before the agent gets it: only what we alone asked for.

use std::borrow::Cow;

use crate::json_edit::{Edits, elements, members};

/// The edit of one call's answer; the same for a whole body and for each event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerEdit {
    /// Remove `logprobs` from the choices.
    pub strip_logprobs: bool,
    /// Remove `prompt_token_ids`, `prompt_text` and `token_ids`.
    pub strip_token_ids: bool,
    /// Put this in the place of `model`: the name that the agent used.
    pub model: Option<String>,
}

impl AnswerEdit {
    /// True where the answer passes as it is.
    pub fn is_identity(&self) -> bool {
        *self == Self::default()
    }

    /// Edits one answer or stream chunk. Text that is not a JSON object passes as it is.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_identity() {
            return Cow::Borrowed(text);
        }
        match self.edits(text) {
            Some(edits) => edits.apply(text),
            None => Cow::Borrowed(text),
        }
    }

    fn edits(&self, text: &str) -> Option<Edits<'static>> {
        let mut edits = Edits::default();
        let top = members(text, 0)?;
        let mut kept_before = false;
        for (index, member) in top.iter().enumerate() {
            let name = member.name(text);
            if self.strip_token_ids && matches!(&*name, "prompt_token_ids" | "prompt_text" | "token_ids") {
                edits.remove_member(&top, index, kept_before);
                continue;
            }
            kept_before = true;
            match (&*name, &self.model) {
                ("model", Some(model)) => {
                    edits.replace(
                        member.value.clone(),
                        serde_json::Value::from(model.as_str()).to_string(),
                    );
                }
                ("choices", _) if text[member.value.clone()].starts_with('[') => {
                    for choice in elements(text, member.value.start)? {
                        self.edit_choice(text, choice.start, &mut edits);
                    }
                }
                _ => {}
            }
        }
        Some(edits)
    }

    fn edit_choice(&self, text: &str, start: usize, edits: &mut Edits<'static>) {
        let Some(choice) = members(text, start) else { return };
        let mut kept_before = false;
        for (index, member) in choice.iter().enumerate() {
            let ours = match &*member.name(text) {
                "logprobs" => self.strip_logprobs,
                "token_ids" | "prompt_token_ids" | "prompt_text" => self.strip_token_ids,
                _ => false,
            };
            if ours {
                edits.remove_member(&choice, index, kept_before);
            } else {
                kept_before = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn only_our_fields_go() {
        let edit = AnswerEdit {
            strip_logprobs: true,
            strip_token_ids: true,
            model: Some("gpt-\"x\"".into()),
        };
        let text = r#"{"id":"1", "model":"policy@3","prompt_token_ids": [1,2],"choices":[{"token_ids":[5],"index":0, "delta":{"content":"token_ids \u00e9","logprobs":1},"logprobs":{"content":[{"a":"}"}]}},{"index":1,"logprobs":null}],"prompt_text":null}"#;
        let want = r#"{"id":"1", "model":"gpt-\"x\"","choices":[{"index":0, "delta":{"content":"token_ids \u00e9","logprobs":1}},{"index":1}]}"#;
        assert_eq!(edit.apply(text), want);
    }

    #[test]
    fn what_the_agent_asked_for_stays() {
        let text = r#"{"choices":[{"index":0,"logprobs":{"content":[]},"token_ids":[1]}],"prompt_token_ids":[1]}"#;
        let edit = AnswerEdit {
            strip_token_ids: true,
            ..AnswerEdit::default()
        };
        assert_eq!(
            edit.apply(text),
            r#"{"choices":[{"index":0,"logprobs":{"content":[]}}]}"#
        );
        assert_eq!(AnswerEdit::default().apply(text), text);
        assert_eq!(edit.apply("[DONE]"), "[DONE]");
    }

    proptest! {
        /// Forwarded bytes = upstream bytes less our fields: building the answer without them gives the same text.
        #[test]
        fn equals_the_answer_without_our_fields(
            fields in prop::collection::vec((0usize..7, ".{0,8}"), 0..7),
            choice_fields in prop::collection::vec(prop::collection::vec((0usize..6, ".{0,8}"), 0..6), 0..4),
        ) {
            const TOP: [&str; 7] = ["id", "prompt_token_ids", "x", "prompt_text", "usage", "token_ids", "é\""];
            const CHOICE: [&str; 6] = ["index", "token_ids", "delta", "logprobs", "finish_reason", "stop"];
            let build = |ours: bool| {
                let choices: Vec<Value> = choice_fields.iter().map(|fields| {
                    Value::Object(fields.iter()
                        .filter(|(field, _)| ours || !matches!(field, 1 | 3))
                        .map(|(field, text)| (CHOICE[*field].to_owned(), json!({"text": text})))
                        .collect())
                }).collect();
                let mut object: serde_json::Map<String, Value> = fields.iter()
                    .filter(|(field, _)| ours || !matches!(field, 1 | 3 | 5))
                    .map(|(field, text)| (TOP[*field].to_owned(), json!([text])))
                    .collect();
                object.insert("choices".into(), choices.into());
                Value::Object(object).to_string()
            };
            let edit = AnswerEdit { strip_logprobs: true, strip_token_ids: true, model: None };
            let sent = build(true);
            prop_assert_eq!(edit.apply(&sent), build(false));
        }
    }
}
