//! Recorded calls without ids (a teacher's), tokenised by the policy's own template for supervised fine-tuning.

use serde_json::Value;

use super::json_text::python_json;
use super::messages::for_each_call;
use super::prompt::PieceKind;
use super::{ChatError, ChatTokenizer, Prompt};

impl ChatTokenizer {
    /// Prompt ids and answer ids of a recorded chat completion. The answer ends with the end-of-turn token, unless it was cut off by
    /// length. Arguments of tool calls are written as the policy is to write them (`{"name": "x", "arguments": {…}}` with Python's
    /// separators), in history and answer alike, and each assistant turn is encoded apart from its opening, as sampling has it. So the
    /// next call's prompt extends this prompt and answer.
    ///
    /// # Errors
    /// [`ChatError::Recorded`] where request or response isn't a chat completion's, or the template doesn't keep the answer.
    pub fn tokenize_call(&self, request: &Value, response: &Value) -> Result<(Vec<u32>, Vec<u32>), ChatError> {
        let fail = |reason: &str| ChatError::Recorded(reason.to_owned());
        let messages = request["messages"]
            .as_array()
            .ok_or_else(|| fail("the request has no `messages`"))?;
        let choice = &response["choices"][0];
        let answer = choice.get("message").filter(|message| message.is_object());
        let answer = answer.ok_or_else(|| fail("the response has no `choices[0].message`"))?;
        let mut history = messages.clone();
        history.push(answer.clone());
        for_each_call(&mut history, |call| {
            if let Some(text) = call["function"]["arguments"].as_str()
                && let Ok(arguments) = serde_json::from_str::<Value>(text)
            {
                call["function"]["arguments"] = Value::String(python_json(&arguments));
            }
        });
        let tools = request["tools"].as_array().map(Vec::as_slice);
        let mask = self.choose_mask(&history, tools)?;
        let (_, messages) = history
            .split_last()
            .ok_or_else(|| fail("the request has no `messages`"))?;
        let prompt = self.prompt_with_mask(messages, tools, true, mask)?;
        let whole = self.prompt_with_mask(&history, tools, false, mask)?;
        if !whole.masked().starts_with(prompt.masked()) {
            return Err(fail(
                "the model's template renders the answer in another way than it opens the turn",
            ));
        }

        let mut breaks = vec![0];
        for index in (0..messages.len()).filter(|index| messages[*index]["role"] == "assistant") {
            let opening = self.prompt_with_mask(&messages[..index], tools, true, mask)?;
            if prompt.masked().starts_with(opening.masked()) {
                breaks.push(opening.masked().len());
            }
        }
        breaks.push(prompt.masked().len());
        let mut prompt_ids = Vec::new();
        for stretch in breaks.windows(2) {
            self.encode_part(&prompt, &prompt.masked()[stretch[0]..stretch[1]], &mut prompt_ids)?;
        }

        let turn = &whole.masked()[prompt.masked().len()..];
        let pieces = self.split(turn);
        let end = pieces
            .iter()
            .rev()
            .find(|piece| matches!(piece.kind, PieceKind::Control(id) if self.stop_token_ids().contains(&id)));
        let cut_off = choice["finish_reason"] == "length";
        let length = end.map_or(turn.len(), |piece| if cut_off { piece.start } else { piece.end });
        let mut answer_ids = Vec::new();
        self.encode_pieces(
            &pieces[..pieces.partition_point(|piece| piece.start < length)],
            Some(&whole),
            false,
            &mut answer_ids,
        )?;
        Ok((prompt_ids, answer_ids))
    }

    fn encode_part(&self, prompt: &Prompt, part: &str, token_ids: &mut Vec<u32>) -> Result<(), ChatError> {
        let at_beginning = token_ids.is_empty();
        self.encode_pieces(&self.split(part), Some(prompt), at_beginning, token_ids)
    }
}
