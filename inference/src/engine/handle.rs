//! The engine's outside: a cloneable sender to its thread.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::kv_cache::KvCache;
use super::worker::WorkerSeed;
use super::{EngineConfig, EngineError, GenerateEvent, GenerateRequest};
use crate::model::{FusedLora, LoraAdapter, Model, ModelConfig};

/// An adapter that requests can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// The name, such as `policy@3`.
    pub name: String,
    /// The directory that it was read from.
    pub path: PathBuf,
}

/// Counters since the start, and the present load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Tokens sampled.
    pub tokens_sampled: u64,
    /// Prompt tokens that went through the model.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens found in the KV cache instead.
    pub prompt_tokens_cached: u64,
    /// Forward passes.
    pub steps: u64,
    /// Times that a running sequence gave its cache blocks up for another and was computed again later.
    pub preemptions: u64,
    /// Sequences in the batch now.
    pub running: usize,
    /// Requests that wait for their turn now.
    pub waiting: usize,
}

/// What handle and thread both see. Nothing here is a tensor.
#[derive(Default)]
pub(super) struct Shared {
    /// In the order loaded.
    pub(super) adapters: Mutex<Vec<LoadedAdapter>>,
    pub(super) tokens_sampled: AtomicU64,
    pub(super) prompt_tokens_computed: AtomicU64,
    pub(super) prompt_tokens_cached: AtomicU64,
    pub(super) steps: AtomicU64,
    pub(super) preemptions: AtomicU64,
    pub(super) running: AtomicUsize,
    /// Requests in the scheduler's queue.
    pub(super) waiting: AtomicUsize,
    /// Requests sent that the thread has not read yet.
    pub(super) unread: AtomicUsize,
}

impl Shared {
    pub(super) fn with_adapters<T>(&self, use_adapters: impl FnOnce(&mut Vec<LoadedAdapter>) -> T) -> T {
        use_adapters(&mut self.adapters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the thread is told.
pub(super) enum Message {
    Generate {
        request: GenerateRequest,
        events: async_mpsc::UnboundedSender<GenerateEvent>,
    },
    InstallAdapter {
        adapter: LoadedAdapter,
        weights: FusedLora,
        in_place: bool,
        reply: Reply,
    },
    UnloadAdapter {
        name: String,
        reply: Reply,
    },
    Shutdown,
}

pub(super) type Reply = oneshot::Sender<Result<(), EngineError>>;

/// A running engine. Clones speak to the same one; it ends when all of them are gone and its last request is done, or by
/// [`EngineHandle::shutdown`].
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) messages: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    config: Arc<EngineConfig>,
    /// What adapters are read and token ids are checked against.
    model: Arc<ModelFacts>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

struct ModelFacts {
    config: ModelConfig,
    device: tch::Device,
    kind: tch::Kind,
}

impl EngineHandle {
    /// Sets the KV cache aside and starts the thread.
    pub fn start(model: Model, config: EngineConfig) -> Result<Self, EngineError> {
        let config = config.resolve(model.config().max_position as usize)?;
        let facts = ModelFacts {
            config: model.config().clone(),
            device: model.device(),
            kind: model.kind(),
        };
        let cache = KvCache::new(&facts.config, config.kv_cache_tokens, facts.device, facts.kind)?;
        let shared = Arc::new(Shared::default());
        let (messages, receiver) = mpsc::channel();
        let worker = WorkerSeed {
            model,
            cache,
            config: config.clone(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || worker.run(&receiver))
            .map_err(EngineError::Spawn)?;
        Ok(Self {
            messages,
            shared,
            config: Arc::new(config),
            model: Arc::new(facts),
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// The limits in force: as given, with `max_model_len` lowered to what model and cache can hold.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues a request and returns its events. Dropping the receiver takes the request out of the batch at the next step.
    pub fn generate(
        &self,
        request: GenerateRequest,
    ) -> Result<async_mpsc::UnboundedReceiver<GenerateEvent>, EngineError> {
        self.validate(&request)?;
        let (events, receiver) = async_mpsc::unbounded_channel();
        self.shared.unread.fetch_add(1, Relaxed);
        self.messages
            .send(Message::Generate { request, events })
            .map_err(|_| EngineError::Stopped)?;
        Ok(receiver)
    }

    fn validate(&self, request: &GenerateRequest) -> Result<(), EngineError> {
        request.sampling.validate()?;
        let n_tokens = request.prompt_token_ids.len();
        if n_tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if n_tokens >= self.config.max_model_len {
            return Err(EngineError::PromptTooLong {
                n_tokens,
                max_model_len: self.config.max_model_len,
            });
        }
        let vocab_size = self.model.config.vocab_size as usize;
        if let Some(&token_id) = request.prompt_token_ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(EngineError::UnknownToken { token_id, vocab_size });
        }
        if let Some(name) = &request.adapter
            && !self.is_loaded(name)
        {
            return Err(EngineError::UnknownAdapter { name: name.clone() });
        }
        let n_waiting = self.shared.waiting.load(Relaxed) + self.shared.unread.load(Relaxed);
        if n_waiting >= self.config.max_waiting {
            return Err(EngineError::QueueFull { n_waiting });
        }
        Ok(())
    }

    /// Reads an adapter directory and makes it available under a name; the batch goes on meanwhile. A taken name is refused,
    /// or with `in_place` its weights are replaced for the requests that come after; running ones keep theirs.
    ///
    /// Needs a tokio runtime.
    pub async fn load_adapter(&self, name: impl Into<String>, path: &Path, in_place: bool) -> Result<(), EngineError> {
        let name = name.into();
        if !in_place && self.is_loaded(&name) {
            return Err(EngineError::AdapterAlreadyLoaded { name });
        }
        let (facts, directory) = (Arc::clone(&self.model), path.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let _no_grad = tch::no_grad_guard();
            LoraAdapter::load(&directory, &facts.config, facts.device).map(|adapter| adapter.fuse(facts.kind))
        });
        let weights = read
            .await
            .map_err(|_| EngineError::Stopped)?
            .map_err(|source| EngineError::InvalidAdapter {
                path: path.to_owned(),
                source,
            })?;
        let adapter = LoadedAdapter {
            name,
            path: path.to_owned(),
        };
        self.ask(|reply| Message::InstallAdapter {
            adapter,
            weights,
            in_place,
            reply,
        })
        .await
    }

    /// Takes an adapter's name away. Requests that run or wait under it end with the weights they began with.
    pub async fn unload_adapter(&self, name: impl Into<String>) -> Result<(), EngineError> {
        let name = name.into();
        self.ask(|reply| Message::UnloadAdapter { name, reply }).await
    }

    /// The adapters that requests can name, in the order loaded.
    pub fn adapters(&self) -> Vec<LoadedAdapter> {
        self.shared.with_adapters(|adapters| adapters.clone())
    }

    /// Counters and present load.
    pub fn stats(&self) -> EngineStats {
        let shared = &self.shared;
        EngineStats {
            tokens_sampled: shared.tokens_sampled.load(Relaxed),
            prompt_tokens_computed: shared.prompt_tokens_computed.load(Relaxed),
            prompt_tokens_cached: shared.prompt_tokens_cached.load(Relaxed),
            steps: shared.steps.load(Relaxed),
            preemptions: shared.preemptions.load(Relaxed),
            running: shared.running.load(Relaxed),
            waiting: shared.waiting.load(Relaxed) + shared.unread.load(Relaxed),
        }
    }

    /// Ends every request with [`super::FinishReason::Abort`] and waits for the thread, at most one step.
    pub fn shutdown(&self) {
        // An error means that the thread is gone already.
        let _ = self.messages.send(Message::Shutdown);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches its panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }

    fn is_loaded(&self, name: &str) -> bool {
        self.shared
            .with_adapters(|adapters| adapters.iter().any(|adapter| adapter.name == name))
    }

    async fn ask(&self, message: impl FnOnce(Reply) -> Message) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.messages.send(message(reply)).map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)?
    }
}
