//! `POST /v1/completions`: raw prompts, as text or as token ids.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::body::JsonBodyViews;
use super::choice::{Step, finite};
use super::generation::Generation;
use super::request::{CommonFields, CompletionRequest, PromptField, Sampling};
use super::sse::{self, Chunks};
use super::{ApiError, ApiState, unix_seconds};
use crate::chat::{ChatTokenizer, ParserEvent};
use crate::engine::SampledToken;

pub(super) async fn create(
    State(state): State<ApiState>,
    JsonBodyViews(common, request): JsonBodyViews<CommonFields, CompletionRequest>,
) -> Result<Response, ApiError> {
    let adapter = state.resolve_model(common.model.as_deref())?;
    let prompts = prompt_ids(&state, &request)?;
    if prompts.iter().any(Vec::is_empty) || prompts.is_empty() {
        return Err(ApiError::bad_parameter(
            "prompt",
            "`prompt` is empty; send at least one token",
        ));
    }
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let sampling = request.sampling(&common, &state, longest)?;
    let model = common
        .model
        .clone()
        .unwrap_or_else(|| state.config().model_name.clone());
    let generation = Generation::start(state, adapter, prompts, &sampling, false)?;
    let id = format!("cmpl-{}", uuid::Uuid::now_v7().simple());
    let offsets = vec![0; generation.n_choices()];
    let mut completion = Completion {
        generation,
        sampling,
        id,
        model,
        created: unix_seconds(),
        offsets,
        ended: false,
    };
    if completion.sampling.stream {
        return Ok(sse::response(completion));
    }
    completion.generation.finish().await?;
    Ok(Json(completion.whole_answer()).into_response())
}

fn prompt_ids(state: &ApiState, request: &CompletionRequest) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |text: &String| {
        let token_ids = state
            .tokenizer()
            .encode_raw(text, request.add_special_tokens.unwrap_or(true));
        token_ids.map_err(ApiError::from)
    };
    match &request.prompt {
        PromptField::Text(text) => Ok(vec![encode(text)?]),
        PromptField::Texts(texts) => texts.iter().map(encode).collect(),
        PromptField::Ids(token_ids) => Ok(vec![token_ids.clone()]),
        PromptField::IdLists(lists) => Ok(lists.clone()),
    }
}

/// A request that is being answered.
struct Completion {
    generation: Generation,
    sampling: Sampling,
    id: String,
    model: String,
    created: i64,
    /// Characters of text that each choice has streamed.
    offsets: Vec<usize>,
    ended: bool,
}

impl Completion {
    fn whole_answer(&self) -> Value {
        let tokenizer = self.generation.state().tokenizer();
        let ids = self.sampling.return_token_ids;
        let choices: Vec<Value> = (0..self.generation.n_choices())
            .map(|index| {
                let choice = self.generation.choice(index);
                json!({
                    "index": index,
                    "text": choice.answer().content.as_deref().unwrap_or_default(),
                    "logprobs": self.sampling.logprobs.map(|_| logprobs(tokenizer, choice.tokens(), 0)),
                    "finish_reason": choice.finish().map(|finish| finish.reason),
                    "stop_reason": choice.finish().map(|finish| &finish.stop_reason),
                    "token_ids": ids.then(|| choice.token_ids()),
                    "prompt_logprobs": null,
                    "prompt_token_ids": ids.then(|| self.generation.prompt_of(index)),
                })
            })
            .collect();
        let mut answer = self.chunk(json!(choices));
        answer["service_tier"] = Value::Null;
        answer["system_fingerprint"] = Value::Null;
        answer["usage"] = self.generation.usage();
        answer["kv_transfer_params"] = Value::Null;
        answer
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn step_chunk(&mut self, index: usize, step: &Step) -> Option<Value> {
        let text: String = step
            .events
            .iter()
            .map(|event| match event {
                ParserEvent::Content(text) => text.as_str(),
                ParserEvent::Call(_) => "",
            })
            .collect();
        let reports_tokens = self.sampling.return_token_ids || self.sampling.logprobs.is_some();
        if text.is_empty() && step.finish.is_none() && !reports_tokens {
            return None;
        }
        let tokenizer = self.generation.state().tokenizer();
        let tokens = step.token.as_slice();
        let reported = self.sampling.logprobs.filter(|_| !tokens.is_empty());
        let reported = reported.map(|_| logprobs(tokenizer, tokens, self.offsets[index]));
        self.offsets[index] += text.chars().count();
        let mut choice = json!({
            "index": index,
            "text": text,
            "logprobs": reported,
            "finish_reason": step.finish.as_ref().map(|finish| finish.reason),
            "stop_reason": step.finish.as_ref().map(|finish| &finish.stop_reason),
        });
        if self.sampling.return_token_ids {
            choice["token_ids"] = tokens.iter().map(|token| json!(token.token_id)).collect();
            if self.generation.choice(index).token_ids().len() == 1 && !tokens.is_empty() {
                choice["prompt_token_ids"] = json!(self.generation.prompt_of(index));
            }
        }
        Some(self.chunk(json!([choice])))
    }
}

impl Chunks for Completion {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        if self.ended {
            return Ok(None);
        }
        match self.generation.next().await? {
            Some((index, step)) => Ok(Some(self.step_chunk(index, &step).into_iter().collect())),
            None => {
                self.ended = true;
                let usage = self.sampling.include_usage.then(|| {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = self.generation.usage();
                    chunk
                });
                Ok(Some(usage.into_iter().collect()))
            }
        }
    }
}

/// The old completions' form of logprobs: parallel lists. `offset` is where the first token's text begins, in characters.
fn logprobs(tokenizer: &ChatTokenizer, tokens: &[SampledToken], mut offset: usize) -> Value {
    let mut text_offset = Vec::with_capacity(tokens.len());
    let mut texts = Vec::with_capacity(tokens.len());
    let mut top_logprobs = Vec::with_capacity(tokens.len());
    for token in tokens {
        let text = tokenizer.token_text(token.token_id);
        text_offset.push(offset);
        offset += text.chars().count();
        let likeliest = token.top_logprobs.iter().map(|(id, logprob)| (*id, *logprob));
        let named = std::iter::once((token.token_id, token.logprob)).chain(likeliest);
        let named = named.map(|(id, logprob)| (tokenizer.token_text(id), json!(finite(logprob))));
        top_logprobs.push(Value::Object(named.collect::<Map<_, _>>()));
        texts.push(text);
    }
    let token_logprobs: Vec<f32> = tokens.iter().map(|token| finite(token.logprob)).collect();
    json!({
        "text_offset": text_offset, "token_logprobs": token_logprobs, "tokens": texts, "top_logprobs": top_logprobs,
    })
}
