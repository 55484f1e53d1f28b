//! The routes over a scripted engine: shapes, errors, streams, and what the engine is asked for.

mod chat;
mod routes;

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;

use super::*;
use crate::chat::fixture::{self, END_OF_TEXT, TURN_END, look_tool};
use crate::engine::{
    EngineError, EngineStats, FinishReason, GenerateEvent, GenerateRequest, LoadedAdapter, SampledToken,
};

/// An engine that answers each request with the next script, or keeps it open.
#[derive(Clone, Default)]
struct ScriptedEngine {
    scripts: Arc<Mutex<Vec<Vec<GenerateEvent>>>>,
    requests: Arc<Mutex<Vec<GenerateRequest>>>,
    adapters: Arc<Mutex<Vec<LoadedAdapter>>>,
    open: Arc<Mutex<Vec<mpsc::UnboundedSender<GenerateEvent>>>>,
}

impl Generator for ScriptedEngine {
    fn generate(&self, request: GenerateRequest) -> Result<mpsc::UnboundedReceiver<GenerateEvent>, EngineError> {
        self.requests.lock().unwrap().push(request);
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut scripts = self.scripts.lock().unwrap();
        if scripts.is_empty() {
            self.open.lock().unwrap().push(sender);
        } else {
            scripts
                .remove(0)
                .into_iter()
                .for_each(|event| sender.send(event).unwrap());
        }
        Ok(receiver)
    }

    fn load_adapter<'a>(
        &'a self,
        name: &'a str,
        path: &'a Path,
        in_place: bool,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        let mut adapters = self.adapters.lock().unwrap();
        let taken = adapters.iter().any(|adapter| adapter.name == name);
        let result = match taken && !in_place {
            true => Err(EngineError::AdapterAlreadyLoaded { name: name.into() }),
            false => Ok(()),
        };
        if !taken {
            adapters.push(LoadedAdapter {
                name: name.into(),
                path: path.to_owned(),
            });
        }
        Box::pin(async { result })
    }

    fn unload_adapter<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        let mut adapters = self.adapters.lock().unwrap();
        let before = adapters.len();
        adapters.retain(|adapter| adapter.name != name);
        let found = adapters.len() < before;
        Box::pin(async move {
            if found {
                Ok(())
            } else {
                Err(EngineError::UnknownAdapter { name: name.into() })
            }
        })
    }

    fn adapters(&self) -> Vec<LoadedAdapter> {
        self.adapters.lock().unwrap().clone()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            tokens_sampled: 7,
            prompt_tokens_computed: 3,
            prompt_tokens_cached: 2,
            ..EngineStats::default()
        }
    }
}

struct World {
    engine: ScriptedEngine,
    tokenizer: Arc<ChatTokenizer>,
    router: axum::Router,
}

impl World {
    fn new() -> Self {
        Self::with_key(None)
    }

    fn with_key(api_key: Option<&str>) -> Self {
        let engine = ScriptedEngine::default();
        let tokenizer = Arc::new(fixture::tokenizer(fixture::TEMPLATE));
        let config = ApiConfig {
            model_name: "base".into(),
            model_path: "/models/base".into(),
            max_model_len: 2000,
            api_key: api_key.map(str::to_owned),
        };
        let router = router(ApiState::new(config, engine.clone(), Arc::clone(&tokenizer)));
        Self {
            engine,
            tokenizer,
            router,
        }
    }

    /// The next answer: `text`, then the end of the turn.
    fn script(&self, text: &str) -> Vec<u32> {
        let ids = [self.tokenizer.encode_text(text), vec![TURN_END]].concat();
        self.script_ids(&ids, FinishReason::Stop);
        ids
    }

    fn script_ids(&self, ids: &[u32], reason: FinishReason) {
        let tokens = ids.iter().map(|id| token(*id));
        self.engine
            .scripts
            .lock()
            .unwrap()
            .push(tokens.chain([GenerateEvent::Finished(reason)]).collect());
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, text) = self.send("POST", path, &body.to_string()).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn chat(&self, body: Value) -> Value {
        let (status, answer) = self.post("/v1/chat/completions", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    /// The chunks of a stream, less `[DONE]`.
    async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let (status, text) = self.send("POST", path, &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let events: Vec<&str> = text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect();
        let (done, chunks) = events.split_last().unwrap();
        assert_eq!(*done, "[DONE]");
        chunks
            .iter()
            .map(|chunk| serde_json::from_str(chunk).unwrap())
            .collect()
    }

    async fn refusal(&self, path: &str, body: Value) -> (u16, String, String) {
        let (status, answer) = self.post(path, body).await;
        let error = &answer["error"];
        assert_eq!(error["code"], status.as_u16(), "{answer}");
        (
            status.as_u16(),
            error["type"].as_str().unwrap().into(),
            error["message"].as_str().unwrap().into(),
        )
    }
}

fn token(token_id: u32) -> GenerateEvent {
    let top_logprobs = vec![(token_id, -0.5), (3, f32::NEG_INFINITY)];
    GenerateEvent::Token(SampledToken {
        token_id,
        logprob: -0.5,
        top_logprobs,
    })
}

fn hi() -> Value {
    json!([{"role": "user", "content": "hi"}])
}
