//! The other routes, and refusals.

use super::*;

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
