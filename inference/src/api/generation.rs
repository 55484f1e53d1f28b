//! The sequences of one request, running side by side.

use std::future::poll_fn;
use std::task::Poll;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::choice::{Choice, Step};
use super::request::Sampling;
use super::{ApiError, ApiState};
use crate::engine::{GenerateEvent, GenerateRequest};

/// Prompts × `n` sequences. Dropping it abandons those that still run.
pub(super) struct Generation {
    state: ApiState,
    prompts: Vec<Vec<u32>>,
    choices: Vec<(Choice, Option<UnboundedReceiver<GenerateEvent>>)>,
    n: usize,
}

impl Generation {
    /// Starts `n` sequences for each prompt; choice `i` continues prompt `i / n`.
    pub(super) fn start(
        state: ApiState,
        adapter: Option<String>,
        prompts: Vec<Vec<u32>>,
        sampling: &Sampling,
        parses_tool_calls: bool,
    ) -> Result<Self, ApiError> {
        let mut choices = Vec::with_capacity(prompts.len() * sampling.n);
        for prompt in &prompts {
            for repetition in 0..sampling.n {
                let mut params = sampling.params.clone();
                // One seed for all would give `n` times the same answer.
                params.seed = params.seed.map(|seed| seed.wrapping_add(repetition as u64));
                let request = GenerateRequest {
                    prompt_token_ids: prompt.clone(),
                    adapter: adapter.clone(),
                    sampling: params,
                };
                let events = state.generator().generate(request)?;
                choices.push((Choice::new(sampling, parses_tool_calls), Some(events)));
            }
        }
        Ok(Self {
            state,
            prompts,
            choices,
            n: sampling.n,
        })
    }

    /// The next step of any choice, with its index; `None` once all have ended.
    ///
    /// # Errors
    /// The engine's words, or that it stopped.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Step)>, ApiError> {
        let Some((index, event)) = self.next_event().await else {
            return Ok(None);
        };
        let event = event.ok_or_else(|| ApiError::unavailable("the engine has been shut down"))?;
        let (choice, events) = &mut self.choices[index];
        let step = choice.take(self.state.tokenizer(), event).map_err(ApiError::internal)?;
        if step.finish.is_some() {
            // After a stop string the engine would go on: dropping the receiver takes the sequence out of the batch.
            *events = None;
        }
        Ok(Some((index, step)))
    }

    async fn next_event(&mut self) -> Option<(usize, Option<GenerateEvent>)> {
        poll_fn(|context| {
            let mut is_running = false;
            for (index, (_, events)) in self.choices.iter_mut().enumerate() {
                let Some(receiver) = events else { continue };
                is_running = true;
                if let Poll::Ready(event) = receiver.poll_recv(context) {
                    return Poll::Ready(Some((index, event)));
                }
            }
            if is_running { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// As [`Generation::next`].
    pub(super) async fn finish(&mut self) -> Result<(), ApiError> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    pub(super) fn state(&self) -> &ApiState {
        &self.state
    }

    pub(super) fn n_choices(&self) -> usize {
        self.choices.len()
    }

    pub(super) fn choice(&self, index: usize) -> &Choice {
        &self.choices[index].0
    }

    pub(super) fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().map(|(choice, _)| choice)
    }

    /// Ids of the prompt that choice `index` continues.
    pub(super) fn prompt_of(&self, index: usize) -> &[u32] {
        &self.prompts[index / self.n]
    }

    /// OpenAI's `usage`.
    pub(super) fn usage(&self) -> Value {
        let prompt_tokens: usize = self.prompts.iter().map(Vec::len).sum();
        let completion_tokens: usize = self.choices().map(|choice| choice.token_ids().len()).sum();
        json!({
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": null,
        })
    }
}
