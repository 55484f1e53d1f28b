//! The facts of a call, collected while it runs.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use trajectory::{CallId, CallStatus, CallTimings, Endpoint, EpisodeId, ModelCall};

use crate::assemble::Assembled;
use crate::call::plan::Plan;

/// The start of the record; [`Draft::finish`] makes it whole.
pub(crate) struct Draft {
    pub(crate) id: CallId,
    episode_id: EpisodeId,
    request: Value,
    received_at_ms: i64,
    began: Instant,
    first_token_ms: Option<u64>,
    pub(crate) upstream_status: Option<u16>,
}

impl Draft {
    /// A call that arrives now.
    pub(crate) fn new(episode_id: EpisodeId, request: Value) -> Self {
        Self {
            id: CallId::new(),
            episode_id,
            request,
            received_at_ms: unix_ms(),
            began: Instant::now(),
            first_token_ms: None,
            upstream_status: None,
        }
    }

    /// The agent's request.
    pub(crate) fn request(&self) -> &Value {
        &self.request
    }

    /// The first part of the answer is here.
    pub(crate) fn answer_began(&mut self) {
        self.first_token_ms
            .get_or_insert(self.began.elapsed().as_millis() as u64);
    }

    /// The record. `error` says why a call is not complete.
    pub(crate) fn finish(self, plan: &Plan, status: CallStatus, answer: Assembled, error: Option<String>) -> ModelCall {
        ModelCall {
            id: self.id,
            episode_id: self.episode_id,
            sequence: 0,
            endpoint: Endpoint::ChatCompletions,
            model: plan.model.clone(),
            upstream_model: plan.upstream_model.clone(),
            request: self.request,
            response: answer.response.map(|response| agents_view(response, plan)),
            prompt_token_ids: answer.prompt_token_ids,
            choices: answer.choices,
            policy_version: plan.version(),
            sampling: plan.sampling.clone(),
            grammar_constrained: plan.grammar_constrained,
            status,
            upstream_status: self.upstream_status,
            error: error.or(answer.defect),
            usage: answer.usage,
            timings: CallTimings {
                received_at_ms: self.received_at_ms,
                first_token_ms: self.first_token_ms,
                total_ms: self.began.elapsed().as_millis() as u64,
            },
        }
    }
}

/// The model's name as the agent saw it.
fn agents_view(mut response: Value, plan: &Plan) -> Value {
    if let (Some(model), Some(name)) = (response.get_mut("model"), &plan.edit.model) {
        *model = name.as_str().into();
    }
    response
}

/// Milliseconds since 1970; zero on a clock before that.
pub(crate) fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}
