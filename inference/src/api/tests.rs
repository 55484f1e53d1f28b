//! The routes over a scripted engine: shapes, errors, streams, and what the engine is asked for.

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

#[tokio::test]
async fn a_whole_chat_answer_has_vllms_shape() {
    let world = World::new();
    let sampled = world.script("hello");
    let answer = world
        .chat(
            json!({"model": "base", "messages": hi(), "logprobs": true, "top_logprobs": 0, "return_token_ids": true,
            "seed": 5, "temperature": 0.7, "unknown_field": 1, "frequency_penalty": 0, "stop": null}),
        )
        .await;
    let choice = &answer["choices"][0];
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(choice["message"]["content"], "hello");
    assert_eq!(choice["message"]["tool_calls"], json!([]));
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("stop"), &Value::Null)
    );
    assert_eq!(choice["token_ids"], json!(sampled));
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), sampled.len());
    assert_eq!(
        choice["logprobs"]["content"][1]["bytes"],
        json!("<|im_end|>".as_bytes())
    );
    let prompt = world
        .tokenizer
        .render(hi().as_array().unwrap(), None, true)
        .unwrap()
        .token_ids;
    assert_eq!(answer["prompt_token_ids"], json!(prompt));
    let usage = &answer["usage"];
    assert_eq!(usage["total_tokens"], prompt.len() + sampled.len());
    let request = world.engine.requests.lock().unwrap().remove(0);
    assert_eq!(request.prompt_token_ids, prompt);
    assert_eq!(request.sampling.max_tokens, 2000 - prompt.len());
    assert_eq!((request.sampling.seed, request.sampling.temperature), (Some(5), 0.7));
    assert_eq!(request.sampling.stop_token_ids, [TURN_END, END_OF_TEXT]);
}

#[tokio::test]
async fn what_was_not_asked_for_is_not_there() {
    let world = World::new();
    world.script("hello");
    let answer = world.chat(json!({"messages": hi()})).await;
    assert!(answer["prompt_token_ids"].is_null() && answer["choices"][0]["token_ids"].is_null());
    assert!(answer["choices"][0]["logprobs"].is_null());
    assert_eq!(answer["model"], "base");
}

#[tokio::test]
async fn a_stream_has_every_token_in_order() {
    let world = World::new();
    let sampled = world.script("é hello");
    let body = json!({"messages": hi(), "stream": true, "stream_options": {"include_usage": true}, "logprobs": true,
        "return_token_ids": true});
    let chunks = world.stream("/v1/chat/completions", body).await;
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert!(chunks[0]["prompt_token_ids"].as_array().unwrap().len() > 10);
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({}), "half a character");
    let (usage, answer) = chunks[1..].split_last().unwrap();
    let ids: Vec<Value> = answer
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(ids, sampled.iter().map(|id| json!(id)).collect::<Vec<_>>());
    let n_logprobs = answer
        .iter()
        .filter(|chunk| chunk["choices"][0]["logprobs"]["content"][0].is_object())
        .count();
    assert_eq!(n_logprobs, sampled.len());
    let text: String = answer
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "é hello");
    assert_eq!(answer.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], sampled.len());
}

const CALL: &str = "Look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\":\"Rome\"}}\n</tool_call>";

#[tokio::test]
async fn tool_calls_come_whole_and_streamed() {
    let world = World::new();
    world.script(CALL);
    let body = json!({"messages": hi(), "tools": [look_tool()], "return_token_ids": true});
    let answer = world.chat(body.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Look.");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"],
        json!({"name": "look", "arguments": "{\"place\":\"Rome\"}"})
    );

    let sampled = world.script(CALL);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = world.stream("/v1/chat/completions", streamed).await;
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let calls: Vec<&Value> = deltas
        .iter()
        .map(|delta| &delta["tool_calls"][0])
        .filter(|call| call.is_object())
        .collect();
    assert_eq!(calls.len(), 2);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0]["index"] == 0);
    assert_eq!(calls[0]["function"], json!({"name": "look", "arguments": ""}));
    assert_eq!(
        calls[1],
        &json!({"index": 0, "function": {"arguments": "{\"place\":\"Rome\"}"}})
    );
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, "Look.");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    let n_ids: usize = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(n_ids, sampled.len(), "ids of held-back text too");

    world.script(CALL);
    let none = json!({"messages": hi(), "tools": [look_tool()], "tool_choice": "none"});
    assert_eq!(world.chat(none).await["choices"][0]["message"]["content"], CALL);
}

#[tokio::test]
async fn the_next_request_extends_the_answer() {
    let world = World::new();
    // Bytewise, so that encoding its text again gives other ids.
    let bytewise = |text: &str| -> Vec<u32> {
        text.chars()
            .flat_map(|character| world.tokenizer.encode_text(&character.to_string()))
            .collect()
    };
    let sampled = [bytewise(&CALL.replace("Rome", "hello")), vec![TURN_END]].concat();
    world.script_ids(&sampled, FinishReason::Stop);
    let mut messages = hi();
    let body = json!({"messages": messages, "tools": [look_tool()], "return_token_ids": true});
    let first = world.chat(body).await;
    let mut answer = first["choices"][0]["message"].clone();
    answer["tool_calls"][0]["function"]["arguments"] = json!("{ \"place\": \"hello\" }");
    let tool = json!({"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "sun"});
    messages.as_array_mut().unwrap().extend([answer, tool]);
    world.script("sun");
    let second = world
        .chat(json!({"messages": messages, "tools": [look_tool()], "return_token_ids": true}))
        .await;
    let ids = |value: &Value| -> Vec<u64> { value.as_array().unwrap().iter().filter_map(Value::as_u64).collect() };
    let extended = [ids(&first["prompt_token_ids"]), ids(&first["choices"][0]["token_ids"])].concat();
    assert!(ids(&second["prompt_token_ids"]).starts_with(&extended));
}

#[tokio::test]
async fn several_choices_have_their_own_seeds_and_indices() {
    let world = World::new();
    world.script("a");
    world.script_ids(&world.tokenizer.encode_text("bc"), FinishReason::Length);
    let answer = world
        .chat(json!({"messages": hi(), "n": 2, "seed": 1, "max_completion_tokens": 2}))
        .await;
    assert_eq!(answer["choices"][1]["message"]["content"], "bc");
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
    let seeds: Vec<_> = world
        .engine
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|request| request.sampling.seed)
        .collect();
    assert_eq!(seeds, [Some(1), Some(2)]);
}

#[tokio::test]
async fn stop_strings_end_the_text_and_the_sequence() {
    let world = World::new();
    let ids = world.tokenizer.encode_text("abXYcd");
    world.script_ids(&ids, FinishReason::Length);
    let answer = world
        .chat(json!({"messages": hi(), "stop": ["XY", "zz"], "return_token_ids": true}))
        .await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["stop_reason"]),
        (&json!("ab"), &json!("XY"))
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(
        choice["token_ids"],
        json!(ids[..4]),
        "up to the token that completed the stop string"
    );

    world.script_ids(&[3, END_OF_TEXT], FinishReason::Stop);
    let other = world.chat(json!({"messages": hi()})).await;
    assert_eq!(other["choices"][0]["stop_reason"], END_OF_TEXT);
}

#[tokio::test]
async fn an_abandoned_request_leaves_the_engine() {
    let world = World::new();
    for stream in [false, true] {
        let body = json!({"messages": hi(), "stream": stream}).to_string();
        let request = Request::post("/v1/chat/completions").body(Body::from(body)).unwrap();
        let mut answer = Box::pin(world.router.clone().oneshot(request));
        // Poll until the engine has it, then hang up.
        let response = tokio::select! {
            biased;
            response = &mut answer => Some(response.unwrap()),
            () = tokio::task::yield_now() => None,
        };
        let sender = world.engine.open.lock().unwrap().pop().unwrap();
        assert!(!sender.is_closed());
        drop((answer, response));
        assert!(sender.is_closed(), "stream: {stream}");
    }
}

#[tokio::test]
async fn completions_take_text_and_ids() {
    let world = World::new();
    world.script("hello");
    let body = json!({"model": "base", "prompt": "<|im_start|>hello", "logprobs": 1, "return_token_ids": true});
    let (status, answer) = world.post("/v1/completions", body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(
        (&answer["object"], &choice["text"]),
        (&json!("text_completion"), &json!("hello"))
    );
    assert_eq!(choice["prompt_token_ids"][0], 1);
    assert_eq!(choice["logprobs"]["tokens"], json!(["hello", "<|im_end|>"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 5]));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([-0.5, -0.5]));
    assert_eq!(
        choice["logprobs"]["top_logprobs"][0][world.tokenizer.token_text(3)],
        -9999.0
    );
    assert_eq!(world.engine.requests.lock().unwrap()[0].sampling.max_tokens, 16);

    for (index, text) in ["a", "b"].into_iter().enumerate() {
        world.script_ids(&world.tokenizer.encode_text(text), FinishReason::Length);
        assert_eq!(index, world.engine.scripts.lock().unwrap().len() - 1);
    }
    let body = json!({"prompt": [[5, 6], [7]], "stream": true, "max_tokens": 1, "return_token_ids": true});
    let chunks = world.stream("/v1/completions", body).await;
    let texts: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(texts.concat(), "ab");
    assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], json!([5, 6]));
}

#[tokio::test]
async fn adapters_follow_the_protocol() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
    let load = |path: &Path, in_place: bool| {
        let body = json!({"lora_name": "policy@1", "lora_path": path, "load_inplace": in_place});
        world.post("/v1/load_lora_adapter", body)
    };
    let (status, text) = load(folder.path(), false).await;
    assert_eq!(
        (status, text),
        (
            StatusCode::OK,
            json!("Success: LoRA adapter 'policy@1' added successfully.")
        )
    );
    assert_eq!(load(folder.path(), true).await.0, StatusCode::OK);
    let (status, taken) = load(folder.path(), false).await;
    assert_eq!(
        (status, &taken["error"]["type"]),
        (StatusCode::BAD_REQUEST, &json!("InvalidUserInput"))
    );
    assert!(
        taken["error"]["message"]
            .as_str()
            .unwrap()
            .contains("has already been loaded")
    );
    let (status, absent) = load(&folder.path().join("nowhere"), false).await;
    assert_eq!(
        (status, &absent["error"]["type"]),
        (StatusCode::NOT_FOUND, &json!("NotFoundError"))
    );

    let models: Value = serde_json::from_str(&world.send("GET", "/v1/models", "").await.1).unwrap();
    assert_eq!(models["data"][0]["max_model_len"], 2000);
    assert_eq!(models["data"][1]["parent"], "base");
    assert_eq!(models["data"][1]["root"], json!(folder.path()));
    assert_eq!(world.send("GET", "/v1/models/policy@1", "").await.0, StatusCode::OK);

    world.script("x");
    world.chat(json!({"model": "policy@1", "messages": hi()})).await;
    assert_eq!(
        world.engine.requests.lock().unwrap()[0].adapter.as_deref(),
        Some("policy@1")
    );

    let unload = || world.post("/v1/unload_lora_adapter", json!({"lora_name": "policy@1"}));
    assert_eq!(unload().await.0, StatusCode::OK);
    assert_eq!(unload().await.0, StatusCode::NOT_FOUND);
    let (status, kind, message) = world
        .refusal("/v1/chat/completions", json!({"model": "policy@1", "messages": hi()}))
        .await;
    assert_eq!((status, kind.as_str()), (404, "NotFoundError"));
    assert!(message.starts_with("The model `policy@1` does not exist."), "{message}");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let world = World::new();
    let chat = |extra: Value| {
        let mut body = json!({"messages": hi()});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        world.refusal("/v1/chat/completions", body)
    };
    for (extra, expected) in [
        (
            json!({"temperature": "hot"}),
            "`temperature`: invalid type: string \"hot\"",
        ),
        (json!({"temperature": -1}), "`temperature` must be 0"),
        (json!({"top_p": 0}), "`top_p` must be above 0"),
        (json!({"n": 0}), "`n` must be between 1 and 128"),
        (
            json!({"max_tokens": 5000}),
            "'max_tokens' or 'max_completion_tokens' is too large: 5000",
        ),
        (json!({"max_tokens": 0}), "`max_tokens` must be at least 1"),
        (json!({"top_logprobs": 2}), "needs `logprobs` to be true"),
        (json!({"logprobs": true, "top_logprobs": 21}), "between 0 and 20"),
        (
            json!({"tool_choice": "required", "tools": [look_tool()]}),
            "grammar-constrained",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "`response_format` isn't served",
        ),
        (json!({"presence_penalty": 1}), "`presence_penalty` isn't served"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0]: a `user` message needs `content`",
        ),
        (json!({"messages": []}), "`messages` is empty"),
        (json!({"messages": "hi"}), "`messages`: invalid type"),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0]: `function.name` is missing",
        ),
        (json!({"stop": ""}), "`stop` has an empty text"),
        (
            json!({"messages": [{"role": "user", "content": "a".repeat(2000)}]}),
            "maximum context length is 2000 tokens",
        ),
    ] {
        let (status, kind, message) = chat(extra.clone()).await;
        assert_eq!((status, kind.as_str()), (400, "BadRequestError"), "{extra}");
        assert!(message.contains(expected), "{extra}: {message}");
    }
    let (status, text) = world.send("POST", "/v1/chat/completions", "{").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
    assert_eq!(world.refusal("/v1/nothing", json!({})).await.0, 404);
    assert_eq!(world.refusal("/v1/models", json!({})).await.0, 405);
    assert!(world.engine.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_engine_that_fails_is_a_500_or_an_event() {
    let world = World::new();
    let fail = || {
        world
            .engine
            .scripts
            .lock()
            .unwrap()
            .push(vec![token(3), GenerateEvent::Error("no memory".into())])
    };
    fail();
    let (status, kind, message) = world.refusal("/v1/chat/completions", json!({"messages": hi()})).await;
    assert_eq!(
        (status, kind.as_str(), message.as_str()),
        (500, "InternalServerError", "no memory")
    );
    fail();
    let chunks = world
        .stream("/v1/chat/completions", json!({"messages": hi(), "stream": true}))
        .await;
    assert_eq!(chunks.last().unwrap()["error"]["message"], "no memory");
}

#[tokio::test]
async fn tokens_go_there_and_back() {
    let world = World::new();
    let (_, answer) = world.post("/tokenize", json!({"prompt": "<|im_end|>hello"})).await;
    assert_eq!(
        (&answer["count"], &answer["tokens"][0], &answer["max_model_len"]),
        (&json!(2), &json!(2), &json!(2000))
    );
    let (_, text) = world.post("/detokenize", json!({"tokens": answer["tokens"]})).await;
    assert_eq!(text, json!({"prompt": "<|im_end|>hello"}));
    let (_, chat) = world
        .post("/tokenize", json!({"messages": hi(), "add_generation_prompt": false}))
        .await;
    let rendered = world.tokenizer.render(hi().as_array().unwrap(), None, false).unwrap();
    assert_eq!(chat["tokens"], json!(rendered.token_ids));
}

#[tokio::test]
async fn keys_are_demanded_but_for_health() {
    let world = World::with_key(Some("secret"));
    assert_eq!(world.send("GET", "/v1/models", "").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(world.send("GET", "/health", "").await.0, StatusCode::OK);
    let request = Request::get("/metrics")
        .header("authorization", "Bearer secret")
        .body(Body::empty())
        .unwrap();
    let response = world.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(
        text.contains("vllm:generation_tokens_total{model_name=\"base\"} 7\n"),
        "{text}"
    );
    let open = World::new();
    assert!(open.send("GET", "/version", "").await.1.contains("\"version\""));
}
