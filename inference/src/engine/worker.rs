//! The one thread that owns tensors: reads messages, plans a step, runs it, samples, reports, and again.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError};

use tch::{Device, Kind, Tensor};
use tokio::sync::mpsc::UnboundedSender;

use super::attention::{Heads, Segment, StepAttention};
use super::block_pool::BLOCK_SIZE;
use super::handle::{LoadedAdapter, Message, Shared};
use super::kv_cache::KvCache;
use super::openmp::Team;
use super::sampler::{NotFinite, Sampler};
use super::scheduler::{PromptCounts, Scheduler, SchedulerLimits, SequenceId, StepItem};
use super::tensor_view::Rows;
use super::{EngineConfig, EngineError, FinishReason, GenerateEvent, GenerateRequest, SampledToken};
use crate::model::{AdapterRows, FusedLora, Model};

/// The thread's state.
struct Worker {
    model: Model,
    cache: KvCache,
    config: EngineConfig,
    shared: Arc<Shared>,
    scheduler: Scheduler,
    /// What the scheduler has counted before it was last replaced.
    earlier_counts: PromptCounts,
    requests: HashMap<SequenceId, ActiveRequest>,
    adapters: HashMap<String, NamedAdapter>,
    last_id: u64,
    team: Team,
}

/// Weights under a name. Requests share them, so they outlive the name while one runs.
#[derive(Clone)]
struct NamedAdapter {
    /// Unique to this load.
    load_id: u64,
    weights: Rc<FusedLora>,
}

/// A request that waits or runs.
struct ActiveRequest {
    events: UnboundedSender<GenerateEvent>,
    sampler: Sampler,
    stop_token_ids: Vec<u32>,
    /// Tokens that it may still sample.
    n_left: usize,
    adapter: Option<NamedAdapter>,
}

impl Worker {
    fn run(mut self, messages: &Receiver<Message>) {
        let _no_grad = tch::no_grad_guard();
        loop {
            if self.scheduler.is_idle() {
                match messages.recv() {
                    Ok(Message::Shutdown) | Err(_) => return,
                    Ok(message) => self.receive(message),
                }
            }
            loop {
                match messages.try_recv() {
                    Ok(Message::Shutdown) => return self.abort_all(),
                    Ok(message) => self.receive(message),
                    // Without handles the last requests still run to their end.
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            self.drop_abandoned();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.step())) {
                self.fail_all(&panic_message(&*panic));
            }
            self.publish_load();
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Generate { request, events } => {
                self.shared.unread.fetch_sub(1, Relaxed);
                self.add_request(request, events);
            }
            Message::InstallAdapter {
                adapter,
                weights,
                in_place,
                reply,
            } => {
                // A receiver that is gone has no use for the answer.
                let _ = reply.send(self.install_adapter(adapter, weights, in_place));
            }
            Message::UnloadAdapter { name, reply } => {
                let result = match self.adapters.remove(&name) {
                    Some(_) => {
                        self.shared
                            .with_adapters(|adapters| adapters.retain(|adapter| adapter.name != name));
                        Ok(())
                    }
                    None => Err(EngineError::UnknownAdapter { name }),
                };
                let _ = reply.send(result);
            }
            Message::Shutdown => {}
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn install_adapter(
        &mut self,
        loaded: LoadedAdapter,
        weights: FusedLora,
        in_place: bool,
    ) -> Result<(), EngineError> {
        if !in_place && self.adapters.contains_key(&loaded.name) {
            return Err(EngineError::AdapterAlreadyLoaded { name: loaded.name });
        }
        let adapter = NamedAdapter {
            load_id: self.next_id(),
            weights: Rc::new(weights),
        };
        self.adapters.insert(loaded.name.clone(), adapter);
        self.shared.with_adapters(
            |adapters| match adapters.iter_mut().find(|adapter| adapter.name == loaded.name) {
                Some(adapter) => *adapter = loaded,
                None => adapters.push(loaded),
            },
        );
        Ok(())
    }

    fn add_request(&mut self, request: GenerateRequest, events: UnboundedSender<GenerateEvent>) {
        let adapter = match &request.adapter {
            None => None,
            Some(name) => match self.adapters.get(name) {
                Some(adapter) => Some(adapter.clone()),
                // Unloaded between the handle's check and now.
                None => {
                    let error = EngineError::UnknownAdapter { name: name.clone() };
                    let _ = events.send(GenerateEvent::Error(error.to_string()));
                    return;
                }
            },
        };
        let sampling = request.sampling;
        let mut stop_token_ids = sampling.stop_token_ids.clone();
        if !sampling.ignore_eos {
            stop_token_ids.extend(&self.config.eos_token_ids);
        }
        let n_left = sampling
            .max_tokens
            .min(self.config.max_model_len - request.prompt_token_ids.len());
        let load_id = adapter.as_ref().map_or(0, |adapter| adapter.load_id);
        let id = self.next_id();
        self.requests.insert(
            id,
            ActiveRequest {
                events,
                sampler: Sampler::new(&sampling),
                stop_token_ids,
                n_left,
                adapter,
            },
        );
        self.scheduler.add(id, load_id, request.prompt_token_ids);
    }

    /// Takes requests whose receiver is gone out of the batch.
    fn drop_abandoned(&mut self) {
        let abandoned: Vec<SequenceId> = self
            .requests
            .iter()
            .filter(|(_, request)| request.events.is_closed())
            .map(|(&id, _)| id)
            .collect();
        for id in abandoned {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: SequenceId) -> Option<ActiveRequest> {
        self.scheduler.finish(id);
        self.requests.remove(&id)
    }

    fn abort_all(&mut self) {
        for (_, request) in self.requests.drain() {
            let _ = request.events.send(GenerateEvent::Finished(FinishReason::Abort));
        }
    }

    /// After a panic: what ran or waited fails, and the engine begins afresh with its weights and an empty cache.
    fn fail_all(&mut self, message: &str) {
        tracing::error!(
            message,
            n_requests = self.requests.len(),
            "a step of the engine panicked"
        );
        for (_, request) in self.requests.drain() {
            let _ = request
                .events
                .send(GenerateEvent::Error(format!("the engine failed in a step: {message}")));
        }
        self.earlier_counts = self.counts();
        self.scheduler = new_scheduler(&self.config);
    }

    fn counts(&self) -> PromptCounts {
        let (earlier, now) = (self.earlier_counts, self.scheduler.counts());
        PromptCounts {
            computed: earlier.computed + now.computed,
            cached: earlier.cached + now.cached,
            preemptions: earlier.preemptions + now.preemptions,
        }
    }

    fn publish_load(&self) {
        let (shared, counts) = (&self.shared, self.counts());
        shared.prompt_tokens_computed.store(counts.computed, Relaxed);
        shared.prompt_tokens_cached.store(counts.cached, Relaxed);
        shared.preemptions.store(counts.preemptions, Relaxed);
        shared.running.store(self.scheduler.n_running(), Relaxed);
        shared.waiting.store(self.scheduler.n_waiting(), Relaxed);
    }

    /// One forward pass, and a token for each sequence that has all its tokens computed.
    fn step(&mut self) {
        let items = self.scheduler.schedule();
        if items.is_empty() {
            return;
        }
        let logits = self.forward(&items);
        self.scheduler.complete(&items);
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
        let mut attention = StepAttention::new(heads, &mut self.cache, &segments, self.team, (kind, device));
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
        self.team
            .run(&mut draws, |draw| draw.token = draw.sampler.sample(draw.logits));
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

/// A worker on its way to its thread: what of it is `Send`.
pub(super) struct WorkerSeed {
    pub(super) model: Model,
    pub(super) cache: KvCache,
    pub(super) config: EngineConfig,
    pub(super) shared: Arc<Shared>,
}

impl WorkerSeed {
    /// Works until every handle is gone and the last request done, or until told to shut down.
    pub(super) fn run(self, messages: &Receiver<Message>) {
        let Self {
            model,
            cache,
            config,
            shared,
        } = self;
        let worker = Worker {
            model,
            cache,
            shared,
            scheduler: new_scheduler(&config),
            config,
            earlier_counts: PromptCounts::default(),
            requests: HashMap::new(),
            adapters: HashMap::new(),
            last_id: 0,
            team: Team::new(),
        };
        worker.run(messages);
    }
}

fn new_scheduler(config: &EngineConfig) -> Scheduler {
    let limits = SchedulerLimits {
        max_batch_tokens: config.max_batch_tokens,
        max_sequences: config.max_sequences,
    };
    Scheduler::new(limits, config.kv_cache_tokens / BLOCK_SIZE)
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

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    // libtorch appends its C++ stack to the first line.
    text.unwrap_or("panic without a message")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}
