//! Stream deltas, or a whole answer, become one completed response with the token ids that the upstream sampled.
//!
//! The response is for the record only: what the agent receives is forwarded, never made from this. Fields that are
//! not known here are kept: text is concatenated, anything else is taken as last sent. Token ids and logprobs are
//! collected from every chunk, also from those that carry neither text nor a tool call (a server holds text back
//! while a parser looks at it).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use trajectory::{SampledChoice, Usage};

/// What one answer came to.
#[derive(Debug, Clone, Default)]
pub struct Assembled {
    /// The answer in the form of a `chat.completion`; `None` where nothing came.
    pub response: Option<Value>,
    /// Ids of the prompt as the upstream saw it; `None` where it did not say.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Per choice, in the order of `index`, what was sampled. Choices without token ids are left out.
    pub choices: Vec<SampledChoice>,
    /// The upstream's count, else what the ids come to.
    pub usage: Option<Usage>,
    /// Every choice that began has a finish reason.
    pub finished: bool,
    /// Why the sampled tokens can't be relied upon; `None` where they can.
    pub defect: Option<String>,
}

/// Which of the fields that travel beside the text belong to the recorded response, since the agent asked for them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keep {
    /// `logprobs` of the choices.
    pub logprobs: bool,
    /// `prompt_token_ids` and `token_ids`.
    pub token_ids: bool,
}

/// Collects the chunks of one stream.
#[derive(Debug, Default)]
pub struct Assembler {
    keep: Keep,
    head: Map<String, Value>,
    choices: BTreeMap<u32, Choice>,
    prompt_token_ids: Option<Vec<u32>>,
    usage: Option<Value>,
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Choice {
    message: Map<String, Value>,
    tool_calls: Vec<ToolCall>,
    rest: Map<String, Value>,
    finish_reason: Option<String>,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    logprob_entries: Vec<Value>,
}

#[derive(Debug, Default)]
struct ToolCall {
    index: u64,
    fields: Map<String, Value>,
}

impl Assembler {
    /// An assembler whose response keeps the fields named by `keep`.
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            ..Self::default()
        }
    }

    /// The upstream reported an error inside the stream.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Whether a choice has begun and every one that has is finished.
    pub fn finished(&self) -> bool {
        !self.choices.is_empty() && self.choices.values().all(|choice| choice.finish_reason.is_some())
    }

    /// Takes the data of one event. What is not an object is passed over.
    pub fn push(&mut self, chunk: Value) {
        let Value::Object(fields) = chunk else { return };
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("choices", Value::Array(choices)) => choices.into_iter().for_each(|choice| self.push_choice(choice)),
                ("prompt_token_ids", value) => {
                    if let Some(ids) = token_ids(&value) {
                        self.prompt_token_ids = Some(ids);
                    }
                }
                ("prompt_text", _) => {}
                ("usage", Value::Null) => {}
                ("usage", value) => self.usage = Some(value),
                ("error", Value::Null) => {}
                ("error", value) => {
                    let message = value.get("message").and_then(Value::as_str).map(str::to_owned);
                    self.error = Some(message.unwrap_or_else(|| value.to_string()));
                }
                (_, value) => {
                    self.head.entry(key).or_insert(value);
                }
            }
        }
    }

    fn push_choice(&mut self, choice: Value) {
        let Value::Object(mut fields) = choice else { return };
        let index = fields
            .shift_remove("index")
            .and_then(|index| index.as_u64())
            .unwrap_or(0);
        let choice = self.choices.entry(index.try_into().unwrap_or(u32::MAX)).or_default();
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("delta", Value::Object(delta)) => choice.push_delta(delta),
                ("finish_reason", Value::String(reason)) => choice.finish_reason = Some(reason),
                ("finish_reason", _) => {}
                ("token_ids", value) => choice.token_ids.extend(token_ids(&value).into_iter().flatten()),
                ("logprobs", value) => choice.push_logprobs(value, self.keep.logprobs),
                ("prompt_token_ids", value) => {
                    if let Some(ids) = token_ids(&value) {
                        self.prompt_token_ids = Some(ids);
                    }
                }
                (_, Value::Null) => {}
                (_, value) => {
                    choice.rest.insert(key, value);
                }
            }
        }
    }

    /// The completed answer.
    pub fn finish(self) -> Assembled {
        let finished = self.finished();
        let mut sampled = Vec::new();
        let mut defect = None;
        let mut choices = Vec::with_capacity(self.choices.len());
        for (index, mut choice) in self.choices {
            let message = choice.take_message();
            let mut fields = Map::new();
            fields.insert("index".into(), index.into());
            fields.insert("message".into(), message);
            fields.insert("finish_reason".into(), choice.finish_reason.clone().into());
            fields.append(&mut choice.rest);
            if self.keep.logprobs {
                fields.insert("logprobs".into(), json!({"content": choice.logprob_entries}));
            }
            if self.keep.token_ids {
                fields.insert("token_ids".into(), json!(choice.token_ids));
            }
            choices.push(Value::Object(fields));
            sampled.extend(sampled_choice(
                index,
                choice.token_ids,
                choice.logprobs,
                choice.finish_reason,
                &mut defect,
            ));
        }
        let usage = read_usage(self.usage.as_ref(), self.prompt_token_ids.as_deref(), &sampled);
        let began = !self.head.is_empty() || !choices.is_empty();
        let response = began.then(|| {
            let mut response = self.head;
            response.insert("object".into(), "chat.completion".into());
            response.insert("choices".into(), choices.into());
            if let Some(usage) = self.usage {
                response.insert("usage".into(), usage);
            }
            if self.keep.token_ids {
                response.insert("prompt_token_ids".into(), json!(self.prompt_token_ids));
            }
            Value::Object(response)
        });
        Assembled {
            response,
            prompt_token_ids: self.prompt_token_ids,
            choices: sampled,
            usage,
            finished,
            defect,
        }
    }
}

impl Choice {
    fn push_delta(&mut self, delta: Map<String, Value>) {
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("tool_calls", Value::Array(deltas)) => {
                    deltas.into_iter().for_each(|delta| self.push_tool_call(delta));
                }
                ("tool_calls", _) => {}
                (_, value) => merge(&mut self.message, key, value),
            }
        }
    }

    /// A delta without `index` belongs to the call with its id, or opens one for a new id, else continues the last.
    fn push_tool_call(&mut self, delta: Value) {
        let Value::Object(mut fields) = delta else { return };
        let id = fields.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        let place = match (fields.get("index").and_then(Value::as_u64), id) {
            (Some(index), _) => self.tool_calls.iter().position(|call| call.index == index),
            (None, Some(id)) => {
                let known = |call: &ToolCall| call.fields.get("id").and_then(Value::as_str) == Some(id);
                self.tool_calls.iter().position(known)
            }
            (None, None) => self.tool_calls.len().checked_sub(1),
        };
        let place = place.unwrap_or_else(|| {
            let after_last = self.tool_calls.iter().map(|call| call.index + 1).max().unwrap_or(0);
            let index = fields.get("index").and_then(Value::as_u64).unwrap_or(after_last);
            self.tool_calls.push(ToolCall {
                index,
                fields: Map::new(),
            });
            self.tool_calls.len() - 1
        });
        fields.shift_remove("index");
        let call = &mut self.tool_calls[place].fields;
        for (key, value) in fields {
            merge_tool_call(call, key, value);
        }
    }

    fn push_logprobs(&mut self, logprobs: Value, keep: bool) {
        let Value::Object(mut logprobs) = logprobs else { return };
        let Some(Value::Array(entries)) = logprobs.remove("content") else {
            return;
        };
        self.logprobs.extend(entries.iter().filter_map(logprob));
        if keep {
            self.logprob_entries.extend(entries);
        }
    }

    fn take_message(&mut self) -> Value {
        let mut message = Map::new();
        let mut parts = std::mem::take(&mut self.message);
        message.insert(
            "role".into(),
            parts.shift_remove("role").unwrap_or_else(|| "assistant".into()),
        );
        message.insert("content".into(), parts.shift_remove("content").unwrap_or(Value::Null));
        message.append(&mut parts);
        if !self.tool_calls.is_empty() {
            self.tool_calls.sort_by_key(|call| call.index);
            let calls = std::mem::take(&mut self.tool_calls)
                .into_iter()
                .map(|call| Value::Object(call.fields));
            message.insert("tool_calls".into(), calls.collect());
        }
        Value::Object(message)
    }
}

/// Merges one field of a delta: text and arrays grow, objects merge, the rest is replaced; null changes nothing.
fn merge(into: &mut Map<String, Value>, key: String, value: Value) {
    if key == "role" {
        if value.is_string() {
            into.insert(key, value);
        }
        return;
    }
    match (into.get_mut(&key), value) {
        (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
        (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
        (Some(Value::Object(object)), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge(object, key, value));
        }
        (Some(_), Value::Null) => {}
        (_, value) => {
            into.insert(key, value);
        }
    }
}

/// As [`merge`], but what names a call (`id`, `type`, the function's `name`) may be repeated and then is not appended.
fn merge_tool_call(call: &mut Map<String, Value>, key: String, value: Value) {
    match (key.as_str(), call.get_mut(&key), value) {
        ("function", Some(Value::Object(function)), Value::Object(more)) => {
            for (key, value) in more {
                if key == "name" && function.get("name") == Some(&value) {
                    continue;
                }
                merge(function, key, value);
            }
        }
        ("id" | "type", Some(known), value) => {
            if value.as_str().is_some_and(|text| !text.is_empty()) {
                *known = value;
            }
        }
        (_, _, value) => merge(call, key, value),
    }
}

/// Reads an answer that was not streamed.
pub fn read_completion(answer: &Value, keep: Keep) -> Assembled {
    let mut prompt_token_ids = answer.get("prompt_token_ids").and_then(token_ids);
    let mut defect = None;
    let mut sampled = Vec::new();
    let mut finished = true;
    for (position, choice) in answer
        .get("choices")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(position as u64);
        let finish_reason = choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned);
        finished &= finish_reason.is_some();
        if prompt_token_ids.is_none() {
            prompt_token_ids = choice.get("prompt_token_ids").and_then(token_ids);
        }
        let ids = choice.get("token_ids").and_then(token_ids).unwrap_or_default();
        let entries = choice.pointer("/logprobs/content").and_then(Value::as_array);
        let logprobs = entries.into_iter().flatten().filter_map(logprob).collect();
        sampled.extend(sampled_choice(index as u32, ids, logprobs, finish_reason, &mut defect));
    }
    sampled.sort_by_key(|choice| choice.index);
    let usage = read_usage(answer.get("usage"), prompt_token_ids.as_deref(), &sampled);
    Assembled {
        response: Some(without_ours(answer.clone(), keep)),
        prompt_token_ids,
        choices: sampled,
        usage,
        finished,
        defect,
    }
}

/// The recorded form of an answer: ids and logprobs are kept in columns of their own.
fn without_ours(mut answer: Value, keep: Keep) -> Value {
    let remove = |object: &mut Map<String, Value>| {
        if !keep.token_ids {
            for key in ["prompt_token_ids", "prompt_text", "token_ids"] {
                object.shift_remove(key);
            }
        }
        if !keep.logprobs {
            object.shift_remove("logprobs");
        }
    };
    if let Some(object) = answer.as_object_mut() {
        remove(object);
    }
    if let Some(choices) = answer.get_mut("choices").and_then(Value::as_array_mut) {
        choices.iter_mut().filter_map(Value::as_object_mut).for_each(remove);
    }
    answer
}

fn sampled_choice(
    index: u32,
    token_ids: Vec<u32>,
    behaviour_logprobs: Vec<f32>,
    finish_reason: Option<String>,
    defect: &mut Option<String>,
) -> Option<SampledChoice> {
    if token_ids.is_empty() {
        return None;
    }
    let (n_ids, n_logprobs) = (token_ids.len(), behaviour_logprobs.len());
    if n_ids != n_logprobs {
        defect.get_or_insert(format!(
            "choice {index}: upstream sent {n_ids} token ids but {n_logprobs} logprobs"
        ));
    }
    Some(SampledChoice {
        index,
        token_ids,
        behaviour_logprobs: if n_ids == n_logprobs {
            behaviour_logprobs
        } else {
            Vec::new()
        },
        finish_reason,
    })
}

fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let ids = value.as_array()?;
    ids.iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}

fn logprob(entry: &Value) -> Option<f32> {
    entry
        .get("logprob")
        .and_then(Value::as_f64)
        .map(|logprob| logprob as f32)
}

fn read_usage(usage: Option<&Value>, prompt: Option<&[u32]>, choices: &[SampledChoice]) -> Option<Usage> {
    let sent = usage.and_then(|usage| {
        Some(Usage {
            prompt_tokens: usage.get("prompt_tokens")?.as_u64()?,
            completion_tokens: usage.get("completion_tokens").and_then(Value::as_u64).unwrap_or(0),
        })
    });
    sent.or_else(|| {
        Some(Usage {
            prompt_tokens: prompt?.len() as u64,
            completion_tokens: choices.iter().map(|choice| choice.token_ids.len() as u64).sum(),
        })
    })
}

#[cfg(test)]
mod tests;
