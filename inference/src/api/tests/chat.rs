//! Chat completions: shapes, streams, tool calls, append-only prompts, what the engine is asked for.

use super::*;

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
