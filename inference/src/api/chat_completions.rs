//! `POST /v1/chat/completions`.

use std::collections::VecDeque;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body::JsonBodyViews;
use super::choice::{Step, chat_logprob};
use super::generation::Generation;
use super::request::{ChatRequest, CommonFields, Sampling};
use super::sse::{self, Chunks};
use super::{ApiError, ApiState, unix_seconds};
use crate::chat::prompt_memory::FinishedAnswer;
use crate::chat::{ParserEvent, Prompt};

pub(super) async fn create(
    State(state): State<ApiState>,
    JsonBodyViews(common, request): JsonBodyViews<CommonFields, ChatRequest>,
) -> Result<Response, ApiError> {
    let adapter = state.resolve_model(common.model.as_deref())?;
    let parses_tool_calls = request.parses_tool_calls()?;
    let mut messages = request.messages.clone();
    if messages.is_empty() {
        return Err(ApiError::bad_parameter(
            "messages",
            "`messages` is empty; send at least one",
        ));
    }
    state.memory().restore_arguments(&mut messages);
    let prompt = state.tokenizer().prompt(
        &messages,
        request.tools.as_deref(),
        request.add_generation_prompt.unwrap_or(true),
    )?;
    let prompt_ids = state.memory().resolve(state.tokenizer(), &prompt, &messages)?;
    let sampling = request.sampling(&common, &state, prompt_ids.len())?;
    let model = common
        .model
        .clone()
        .unwrap_or_else(|| state.config().model_name.clone());
    let generation = Generation::start(state, adapter, vec![prompt_ids], &sampling, parses_tool_calls)?;
    let id = format!("chatcmpl-{}", uuid::Uuid::now_v7().simple());
    let mut chat = Chat {
        generation,
        conversation: Conversation {
            messages,
            tools: request.tools,
            prompt,
        },
        sampling,
        id,
        model,
        created: unix_seconds(),
    };
    if chat.sampling.stream {
        return Ok(sse::response(ChatChunks::new(chat)));
    }
    chat.generation.finish().await?;
    chat.remember_all();
    Ok(Json(chat.whole_answer()).into_response())
}

/// What was said before.
struct Conversation {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    prompt: Prompt,
}

/// A request that is being answered.
struct Chat {
    generation: Generation,
    conversation: Conversation,
    sampling: Sampling,
    id: String,
    model: String,
    created: i64,
}

impl Chat {
    fn remember_all(&self) {
        for index in 0..self.generation.n_choices() {
            self.remember(index);
        }
    }

    /// Keeps the ids behind an answer before the agent sees its end, so that its next request finds them.
    fn remember(&self, index: usize) {
        let choice = self.generation.choice(index);
        if choice.finish().is_none_or(|finish| finish.reason == "abort") {
            return;
        }
        let state = self.generation.state();
        state.memory().remember(
            state.tokenizer(),
            FinishedAnswer {
                messages: &self.conversation.messages,
                tools: self.conversation.tools.as_deref(),
                prompt: &self.conversation.prompt,
                prompt_ids: self.generation.prompt_of(index),
                sampled_ids: choice.token_ids(),
                answer: choice.answer(),
            },
        );
    }

    fn whole_answer(&self) -> Value {
        let tokenizer = self.generation.state().tokenizer();
        let choices: Vec<Value> = (0..self.generation.n_choices())
            .map(|index| {
                let choice = self.generation.choice(index);
                let finish = choice.finish();
                let logprobs = self.sampling.logprobs.map(|_| {
                    let content = choice.tokens().iter().map(|token| chat_logprob(tokenizer, token));
                    json!({"content": content.collect::<Vec<_>>()})
                });
                let calls: Vec<Value> = choice.answer().tool_calls.iter().map(|call| call.to_json()).collect();
                json!({
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": choice.answer().content_json(),
                        "refusal": null,
                        "annotations": null,
                        "audio": null,
                        "function_call": null,
                        "tool_calls": calls,
                        "reasoning": null,
                    },
                    "logprobs": logprobs,
                    "finish_reason": finish.map(|finish| finish.reason),
                    "stop_reason": finish.map(|finish| &finish.stop_reason),
                    "token_ids": self.sampling.return_token_ids.then(|| choice.token_ids()),
                })
            })
            .collect();
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": null,
            "usage": self.generation.usage(),
            "prompt_logprobs": null,
            "prompt_token_ids": self.sampling.return_token_ids.then(|| self.generation.prompt_of(0)),
            "kv_transfer_params": null,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// The answer as a stream of chunks.
struct ChatChunks {
    chat: Chat,
    /// Calls that each choice has handed on.
    n_calls: Vec<usize>,
    phase: Phase,
}

enum Phase {
    Opening,
    Answering,
    Ended,
}

impl Chunks for ChatChunks {
    async fn next(&mut self) -> Result<Option<Vec<Value>>, ApiError> {
        match self.phase {
            Phase::Opening => {
                self.phase = Phase::Answering;
                Ok(Some(
                    (0..self.chat.generation.n_choices())
                        .map(|index| self.opening(index))
                        .collect(),
                ))
            }
            Phase::Answering => match self.chat.generation.next().await? {
                Some((index, step)) => {
                    if step.finish.is_some() {
                        self.chat.remember(index);
                    }
                    Ok(Some(self.chunks(index, step)))
                }
                None => {
                    self.phase = Phase::Ended;
                    Ok(Some(self.usage().into_iter().collect()))
                }
            },
            Phase::Ended => Ok(None),
        }
    }
}

impl ChatChunks {
    fn new(chat: Chat) -> Self {
        let n_calls = vec![0; chat.generation.n_choices()];
        Self {
            chat,
            n_calls,
            phase: Phase::Opening,
        }
    }

    fn opening(&self, index: usize) -> Value {
        let delta = json!({"role": "assistant", "content": ""});
        let mut chunk = self.chat.chunk(json!([
            {"index": index, "delta": delta, "logprobs": null, "finish_reason": null}
        ]));
        if self.chat.sampling.return_token_ids {
            chunk["prompt_token_ids"] = json!(self.chat.generation.prompt_of(index));
        }
        chunk
    }

    fn usage(&self) -> Option<Value> {
        self.chat.sampling.include_usage.then(|| {
            let mut chunk = self.chat.chunk(json!([]));
            chunk["usage"] = self.chat.generation.usage();
            chunk
        })
    }

    /// The chunks of one step: ids and logprobs ride on the first, the finish reason on the last.
    fn chunks(&mut self, index: usize, step: Step) -> Vec<Value> {
        let sampling = &self.chat.sampling;
        let mut deltas: VecDeque<Value> = VecDeque::new();
        for event in step.events {
            match event {
                ParserEvent::Content(text) => deltas.push_back(json!({"content": text})),
                ParserEvent::Call(call) => {
                    let position = self.n_calls[index];
                    self.n_calls[index] += 1;
                    let function = json!({"name": call.name, "arguments": ""});
                    let opening = json!({"index": position, "id": call.id, "type": "function", "function": function});
                    deltas.push_back(json!({"tool_calls": [opening]}));
                    let arguments = json!({"index": position, "function": {"arguments": call.arguments}});
                    deltas.push_back(json!({"tool_calls": [arguments]}));
                }
            }
        }
        let reports_tokens = sampling.return_token_ids || sampling.logprobs.is_some();
        if deltas.is_empty() && (step.finish.is_some() || (step.token.is_some() && reports_tokens)) {
            deltas.push_back(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        let tokenizer = self.chat.generation.state().tokenizer();
        let choice_of = |(position, delta): (usize, Value)| {
            let mut choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
            let token = step.token.as_ref().filter(|_| position == 0);
            if sampling.logprobs.is_some() {
                choice["logprobs"] = json!(token.map(|token| json!({"content": [chat_logprob(tokenizer, token)]})));
            }
            if sampling.return_token_ids {
                choice["token_ids"] = json!(token.map(|token| [token.token_id]));
            }
            if let Some(finish) = step.finish.as_ref().filter(|_| position == last) {
                choice["finish_reason"] = json!(finish.reason);
                choice["stop_reason"] = finish.stop_reason.clone();
            }
            self.chat.chunk(json!([choice]))
        };
        deltas.into_iter().enumerate().map(choice_of).collect()
    }
}
