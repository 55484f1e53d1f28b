//! One step: a forward pass over what the scheduler planned, and a token for each sequence that is ready for one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::attention::{Heads, Segment, StepAttention};
use super::sampler::{NotFinite, Sampler};
use super::scheduler::{SequenceId, StepItem};
use super::worker::{ActiveRequest, Worker};
use super::{FinishReason, GenerateEvent, SampledToken};
use crate::kernels::team::{Team, with_pool};
use crate::kernels::tensor_view::Rows;
use crate::model::{AdapterRows, FusedLora};

impl Worker {
    /// One forward pass, and a token for each sequence that has all its tokens computed.
    pub(super) fn step(&mut self) {
        let items = self.scheduler.schedule();
        match &self.pool {
            _ if items.is_empty() => {}
            Some(pool) => {
                let pool = Arc::clone(pool);
                with_pool(&pool, || self.compute(&items));
            }
            None => self.compute(&items),
        }
    }

    fn compute(&mut self, items: &[StepItem]) {
        let started = Instant::now();
        let logits = self.forward(items);
        tracing::trace!(
            rows = items.iter().map(|item| item.n_tokens).sum::<usize>(),
            sequences = items.len(),
            milliseconds = started.elapsed().as_secs_f64() * 1e3,
            "forward pass"
        );
        self.scheduler.complete(items);
        self.shared.steps.fetch_add(1, Relaxed);
        // Before the first receiver hears of this step.
        self.publish_load();
        if let Some(logits) = logits {
            let sampling: Vec<SequenceId> = items
                .iter()
                .filter(|item| item.samples)
                .map(|item| item.sequence)
                .collect();
            for (id, token) in self.sample(&sampling, &logits) {
                self.deliver(id, token);
            }
        }
    }

    /// Logits `[n, vocab]` of the items that sample, in their order.
    fn forward(&mut self, items: &[StepItem]) -> Option<Tensor> {
        let mut token_ids: Vec<i64> = Vec::with_capacity(self.config.max_batch_tokens);
        let mut positions: Vec<i64> = Vec::with_capacity(self.config.max_batch_tokens);
        let mut segments = Vec::with_capacity(items.len());
        let mut sampled_rows: Vec<i64> = Vec::with_capacity(items.len());
        for item in items {
            let Some(sequence) = self.scheduler.sequence(item.sequence) else {
                continue;
            };
            let (first_row, range) = (token_ids.len(), item.start..item.start + item.n_tokens);
            token_ids.extend(sequence.tokens()[range.clone()].iter().map(|&id| i64::from(id)));
            positions.extend(range.map(|position| position as i64));
            segments.push(Segment {
                rows: first_row..token_ids.len(),
                start: item.start,
                blocks: sequence.blocks(),
            });
            if item.samples {
                sampled_rows.push(token_ids.len() as i64 - 1);
            }
        }
        let (kind, device) = (self.model.kind(), self.model.device());
        let on_device = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let adapter_segments = adapter_segments(items, &self.requests);
        let adapters = match adapter_segments.as_slice() {
            [(_, None)] => AdapterRows::Base,
            [(_, Some(weights))] => AdapterRows::All(weights),
            segments => AdapterRows::Segments(segments),
        };
        let heads = Heads::of(self.model.config());
        let mut attention = StepAttention::new(heads, &mut self.cache, &segments, (kind, device));
        let hidden = self.model.forward(
            &on_device(&token_ids),
            &on_device(&positions),
            &adapters,
            &mut attention,
        );
        if sampled_rows.is_empty() {
            return None;
        }
        let all_sample = sampled_rows.len() == token_ids.len();
        let hidden = if all_sample {
            hidden
        } else {
            hidden.index_select(0, &on_device(&sampled_rows))
        };
        Some(
            self.model
                .logits(&hidden)
                .to_device(Device::Cpu)
                .to_kind(Kind::Float)
                .contiguous(),
        )
    }

    /// Draws a token for each row of `logits`, several at a time.
    fn sample(
        &mut self,
        sampling: &[SequenceId],
        logits: &Tensor,
    ) -> Vec<(SequenceId, Result<SampledToken, NotFinite>)> {
        struct Draw<'a> {
            sampler: &'a mut Sampler,
            logits: &'a [f32],
            token: Result<SampledToken, NotFinite>,
        }
        let Some(rows) = Rows::of(logits) else {
            return Vec::new();
        };
        let row_of: HashMap<SequenceId, usize> = sampling.iter().enumerate().map(|(row, &id)| (id, row)).collect();
        let mut ids = Vec::with_capacity(sampling.len());
        let mut draws = Vec::with_capacity(sampling.len());
        for (&id, request) in &mut self.requests {
            if let Some(&row) = row_of.get(&id) {
                ids.push(id);
                draws.push(Draw {
                    sampler: &mut request.sampler,
                    logits: rows.row(row),
                    token: Err(NotFinite),
                });
            }
        }
        Team::current().run(&mut draws, |draw| draw.token = draw.sampler.sample(draw.logits));
        ids.into_iter().zip(draws.into_iter().map(|draw| draw.token)).collect()
    }

    /// Reports a token and ends the request where it is the last.
    fn deliver(&mut self, id: SequenceId, token: Result<SampledToken, NotFinite>) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let token = match token {
            Ok(token) => token,
            Err(error) => {
                let _ = request.events.send(GenerateEvent::Error(error.to_string()));
                self.remove(id);
                return;
            }
        };
        self.shared.tokens_sampled.fetch_add(1, Relaxed);
        let token_id = token.token_id;
        request.n_left -= 1;
        let finished = if request.stop_token_ids.contains(&token_id) {
            Some(FinishReason::Stop)
        } else {
            (request.n_left == 0).then_some(FinishReason::Length)
        };
        if request.events.send(GenerateEvent::Token(token)).is_err() {
            self.remove(id);
            return;
        }
        match finished {
            Some(reason) => {
                if let Some(request) = self.remove(id) {
                    let _ = request.events.send(GenerateEvent::Finished(reason));
                }
            }
            None => self.scheduler.push_token(id, token_id),
        }
    }
}

/// Rows of each adapter, in order; the scheduler has put those of one adapter together.
fn adapter_segments<'a>(
    items: &[StepItem],
    requests: &'a HashMap<SequenceId, ActiveRequest>,
) -> Vec<(i64, Option<&'a FusedLora>)> {
    items
        .chunk_by(|a, b| a.adapter_load_id == b.adapter_load_id)
        .map(|items| {
            let adapter = requests
                .get(&items[0].sequence)
                .and_then(|request| request.adapter.as_ref());
            (
                items.iter().map(|item| item.n_tokens as i64).sum(),
                adapter.map(|adapter| &*adapter.weights),
            )
        })
        .collect()
}
