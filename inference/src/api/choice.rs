//! One sampled sequence: tokens → text, tool calls, logprobs and a finish reason, the same way for streams and whole answers.

use serde_json::{Value, json};

use super::request::Sampling;
use super::stop_strings::StopStrings;
use crate::chat::{ChatTokenizer, Detokenizer, ParsedAnswer, ParserEvent, ToolCallParser};
use crate::engine::{FinishReason, GenerateEvent, SampledToken};

/// A sequence and what has become of it so far.
pub(super) struct Choice {
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    parser: Option<ToolCallParser>,
    stop_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
    tokens: Vec<SampledToken>,
    answer: ParsedAnswer,
    finish: Option<Finish>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finish {
    /// `stop`, `length`, `tool_calls` or `abort`.
    pub reason: &'static str,
    /// The stop string, or the id of a stop token other than the model's own end token; else null.
    pub stop_reason: Value,
}

/// What one event added.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub token: Option<SampledToken>,
    pub events: Vec<ParserEvent>,
    pub finish: Option<Finish>,
}

impl Choice {
    pub(super) fn new(sampling: &Sampling, parses_tool_calls: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(),
            stop_strings: StopStrings::new(sampling.stop_strings.clone(), sampling.keep_stop_string),
            parser: parses_tool_calls.then(ToolCallParser::new),
            stop_token_ids: sampling.params.stop_token_ids.clone(),
            token_ids: Vec::new(),
            tokens: Vec::new(),
            answer: ParsedAnswer::default(),
            finish: None,
        }
    }

    /// Takes the engine's next event.
    ///
    /// # Errors
    /// The engine's words, if the sequence failed.
    pub(super) fn take(&mut self, tokenizer: &ChatTokenizer, event: GenerateEvent) -> Result<Step, String> {
        let mut step = Step::default();
        match event {
            GenerateEvent::Token(token) => {
                self.token_ids.push(token.token_id);
                self.tokens.push(token.clone());
                // A stop token is sampled and recorded, but isn't part of the text.
                if !self.stop_token_ids.contains(&token.token_id) {
                    let text = self.detokenizer.push(tokenizer, token.token_id);
                    let watched = self.stop_strings.push(&text);
                    step.events = self.parse(&watched.text);
                    if let Some(string) = watched.stopped_by {
                        self.end(&mut step, "stop", json!(string));
                    }
                }
                step.token = Some(token);
            }
            GenerateEvent::Finished(FinishReason::Stop) => {
                let last = self.token_ids.last();
                let is_end_token = last.is_none() || last == tokenizer.stop_token_ids().first();
                let stop_reason = if is_end_token { Value::Null } else { json!(last) };
                self.end(&mut step, "stop", stop_reason);
            }
            GenerateEvent::Finished(FinishReason::Length) => self.end(&mut step, "length", Value::Null),
            GenerateEvent::Finished(FinishReason::Abort) => self.end(&mut step, "abort", Value::Null),
            GenerateEvent::Error(message) => return Err(message),
        }
        for event in &step.events {
            self.answer.add(event.clone());
        }
        Ok(step)
    }

    fn parse(&mut self, text: &str) -> Vec<ParserEvent> {
        match &mut self.parser {
            Some(parser) => parser.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![ParserEvent::Content(text.to_owned())],
        }
    }

    fn end(&mut self, step: &mut Step, reason: &'static str, stop_reason: Value) {
        let held = self.stop_strings.finish();
        step.events.extend(self.parse(&held));
        if let Some(parser) = &mut self.parser {
            step.events.extend(parser.finish());
        }
        let has_call = |events: &[ParserEvent]| events.iter().any(|event| matches!(event, ParserEvent::Call(_)));
        let called = !self.answer.tool_calls.is_empty() || has_call(&step.events);
        let reason = if called && reason == "stop" {
            "tool_calls"
        } else {
            reason
        };
        let finish = Finish { reason, stop_reason };
        self.finish = Some(finish.clone());
        step.finish = Some(finish);
    }

    /// Sampled ids, the one that ended the sequence included.
    pub(super) fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    pub(super) fn tokens(&self) -> &[SampledToken] {
        &self.tokens
    }

    pub(super) fn answer(&self) -> &ParsedAnswer {
        &self.answer
    }

    /// Set once the sequence has ended.
    pub(super) fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }
}

/// An entry of a chat answer's `logprobs.content`.
pub(super) fn chat_logprob(tokenizer: &ChatTokenizer, token: &SampledToken) -> Value {
    let entry = |token_id: u32, logprob: f32| {
        let text = tokenizer.token_text(token_id);
        json!({"token": text, "logprob": finite(logprob), "bytes": text.as_bytes()})
    };
    let mut value = entry(token.token_id, token.logprob);
    value["top_logprobs"] = token
        .top_logprobs
        .iter()
        .map(|(id, logprob)| entry(*id, *logprob))
        .collect();
    value
}

/// JSON has no infinity; −9999 stands for it, as in vLLM.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
