//! The one thread that owns tensors: reads messages, takes a step (`step`), and again.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError};

use tokio::sync::mpsc::UnboundedSender;

use super::block_pool::BLOCK_SIZE;
use super::handle::{LoadedAdapter, Message, Shared};
use super::kv_cache::KvCache;
use super::sampler::Sampler;
use super::scheduler::{PromptCounts, Scheduler, SchedulerLimits, SequenceId};
use super::{EngineConfig, EngineError, FinishReason, GenerateEvent, GenerateRequest};
use crate::kernels::pool::Pool;
use crate::model::{FusedLora, Model};

/// The thread's state.
pub(super) struct Worker {
    pub(super) model: Model,
    pub(super) cache: KvCache,
    pub(super) config: EngineConfig,
    pub(super) shared: Arc<Shared>,
    pub(super) scheduler: Scheduler,
    /// What the scheduler has counted before it was last replaced.
    earlier_counts: PromptCounts,
    pub(super) requests: HashMap<SequenceId, ActiveRequest>,
    adapters: HashMap<String, NamedAdapter>,
    last_id: u64,
    /// Helps in every step; None where libtorch has one thread.
    pub(super) pool: Option<Arc<Pool>>,
}

/// Weights under a name. Requests share them, so they outlive the name while one runs.
#[derive(Clone)]
pub(super) struct NamedAdapter {
    /// Unique to this load.
    load_id: u64,
    pub(super) weights: Rc<FusedLora>,
}

/// A request that waits or runs.
pub(super) struct ActiveRequest {
    pub(super) events: UnboundedSender<GenerateEvent>,
    pub(super) sampler: Sampler,
    pub(super) stop_token_ids: Vec<u32>,
    /// Tokens that it may still sample.
    pub(super) n_left: usize,
    pub(super) adapter: Option<NamedAdapter>,
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

    pub(super) fn remove(&mut self, id: SequenceId) -> Option<ActiveRequest> {
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

    pub(super) fn publish_load(&self) {
        let (shared, counts) = (&self.shared, self.counts());
        shared.prompt_tokens_computed.store(counts.computed, Relaxed);
        shared.prompt_tokens_cached.store(counts.cached, Relaxed);
        shared.preemptions.store(counts.preemptions, Relaxed);
        shared.running.store(self.scheduler.n_running(), Relaxed);
        shared.waiting.store(self.scheduler.n_waiting(), Relaxed);
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
        let n_helpers = usize::try_from(tch::get_num_threads()).unwrap_or(1).saturating_sub(1);
        // Without helpers the thread does the work alone.
        let pool = (n_helpers > 0)
            .then(|| Pool::new(n_helpers).ok().map(Arc::new))
            .flatten();
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
            pool,
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
