//! What the agent gets is what was sent, and what is recorded is all of it.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use trajectory::{CallStatus, PolicyVersion};

use super::fake_upstream::{Script, Step, chunk, completion, event, first_chunk};
use super::world::{World, next_part, question, streamed_question};
use crate::answer_edit::AnswerEdit;

#[tokio::test]
async fn an_answer_loses_only_what_we_asked_for() {
    let world = World::start().await;
    let episode = world
        .open(json!({"overrides": {"temperature": 0, "max_tokens": 5}}))
        .await;
    let sent = serde_json::to_string_pretty(&completion("ok")).unwrap();
    world.upstream.will(Script::Json(StatusCode::OK, sent.clone()));
    let answer = world.chat(&episode, &question()).await;
    let edit = AnswerEdit {
        strip_logprobs: true,
        strip_token_ids: true,
        model: Some("gpt-any".into()),
    };
    assert_eq!(answer.text, edit.apply(&sent));
    assert_eq!(answer.json()["model"], "gpt-any");
    assert!(!answer.text.contains("token_ids\"") && !answer.text.contains("\"logprobs"));
    assert_eq!(answer.headers["x-upstream"], "fake");

    let asked = world.upstream.asked()[0].json();
    assert_eq!(
        asked,
        json!({"model": "base", "messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 0,
            "return_token_ids": true, "temperature": 0, "max_tokens": 5})
    );
    let call = &world.record(&episode.id).calls[0];
    assert_eq!(answer.headers["x-trainyard-call"], call.id.as_str());
    assert_eq!(call.request, question());
    assert_eq!((call.model.as_str(), call.upstream_model.as_str()), ("gpt-any", "base"));
    assert_eq!(call.prompt_token_ids, Some(vec![1, 5, 6]));
    assert_eq!(call.choices[0].token_ids, [41, 2]);
    assert_eq!(call.choices[0].behaviour_logprobs, [-0.25, -0.5]);
    assert_eq!(call.response, Some(answer.json()));
    assert_eq!(
        (call.policy_version, call.status),
        (Some(PolicyVersion(0)), CallStatus::Complete)
    );
    assert_eq!(call.sampling, json!({"temperature": 0, "max_tokens": 5}));
    assert_eq!(call.sequence, 1);
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_asks_for_ids_gets_them() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let sent = completion("ok").to_string();
    world.upstream.will(Script::Json(StatusCode::OK, sent.clone()));
    let mut body = question();
    (body["logprobs"], body["return_token_ids"], body["top_logprobs"]) = (true.into(), true.into(), 2.into());
    let answer = world.chat(&episode, &body).await;
    assert_eq!(answer.text, sent.replace("policy@7", "gpt-any"));
    assert_eq!(world.upstream.asked()[0].json()["top_logprobs"], 2);
    world.stop().await;
}

/// P5: each event is here before the next is sent; only the end waits for the record.
#[tokio::test]
async fn events_pass_at_their_time() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let gate = Arc::new(Semaphore::new(0));
    let usage =
        r#"{"id":"chatcmpl-1","model":"policy@7","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let steps = vec![
        event(&first_chunk(0)),
        Step::Wait(gate.clone()),
        Step::Send(": keep-alive\n\n".into()),
        Step::Wait(gate.clone()),
        event(&chunk(0, json!({"content": "ö"}), 41, None)),
        Step::Wait(gate.clone()),
        event(&chunk(0, json!({}), 42, Some("stop"))),
        event(usage),
        event("[DONE]"),
    ];
    world.upstream.will(Script::Stream(steps));
    let path = format!("/e/{}/v1/chat/completions", episode.id);
    let response = world
        .send(http::Method::POST, &path, &[], streamed_question().to_string())
        .await;
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(response.headers()["x-request-id"], "r1");
    let mut body = response.into_body();
    let edit = AnswerEdit {
        strip_logprobs: true,
        strip_token_ids: true,
        model: Some("gpt-any".into()),
    };
    let as_forwarded = |data: &str| format!("data: {}\n\n", edit.apply(data));
    assert_eq!(next_part(&mut body).await, as_forwarded(&first_chunk(0)));
    gate.add_permits(1);
    let mut comment = next_part(&mut body).await;
    while !comment.ends_with("\n\n") {
        comment.push_str(&next_part(&mut body).await);
    }
    assert_eq!(comment, ": keep-alive\n\n");
    gate.add_permits(1);
    assert_eq!(
        next_part(&mut body).await,
        as_forwarded(&chunk(0, json!({"content": "ö"}), 41, None))
    );
    gate.add_permits(1);
    let mut rest = String::new();
    while !rest.ends_with("[DONE]\n\n") {
        rest.push_str(&next_part(&mut body).await);
    }
    let last = as_forwarded(&chunk(0, json!({}), 42, Some("stop"))) + &as_forwarded(usage) + "data: [DONE]\n\n";
    assert_eq!(rest, last);
    // The record was there before `[DONE]` was.
    let record = world.record(&episode.id);
    let call = &record.calls[0];
    assert_eq!(call.choices[0].token_ids, [41, 42]);
    assert_eq!(call.choices[0].behaviour_logprobs, [-0.5, -0.5]);
    assert_eq!(call.prompt_token_ids, Some(vec![1, 5, 6]));
    assert_eq!(call.usage.map(|usage| usage.completion_tokens), Some(2));
    assert_eq!(call.response.as_ref().unwrap()["choices"][0]["message"]["content"], "ö");
    assert_eq!(call.response.as_ref().unwrap()["model"], "gpt-any");
    assert!(record.episode.tainted.is_none() && call.timings.first_token_ms.is_some());
    world.stop().await;
}

/// P1 to P4, P9 and P10 in one stream of three choices, whatever way its bytes are cut.
#[tokio::test]
async fn tool_calls_and_choices_of_a_stream() {
    let mut events = vec![first_chunk(0)];
    let mut id = 100;
    let mut add = |index: u32, delta: Value, finish: Option<&str>| {
        id += 1;
        events.push(chunk(index, delta, id, finish));
    };
    add(
        0,
        json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        None,
    );
    for c in r#"{"x":1}"#.chars() {
        add(
            0,
            json!({"tool_calls": [{"index": 0, "function": {"arguments": c.to_string()}}]}),
            None,
        );
    }
    add(
        1,
        json!({"tool_calls": [{"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
        None,
    );
    add(1, json!({"tool_calls": [{"function": {"arguments": ""}}]}), None);
    add(2, json!({}), None);
    add(2, json!({"content": "late"}), Some("length"));
    add(0, json!({}), Some("tool_calls"));
    add(1, json!({}), Some("tool_calls"));
    events.push("[DONE]".into());
    let stream: Vec<u8> = events
        .iter()
        .flat_map(|data| format!("data: {data}\r\n\r\n").into_bytes())
        .collect();
    let edit = AnswerEdit {
        strip_logprobs: true,
        strip_token_ids: true,
        model: Some("gpt-any".into()),
    };
    let want: String = events
        .iter()
        .map(|data| format!("data: {}\r\n\r\n", edit.apply(data)))
        .collect();

    let world = World::start().await;
    for size in [1, 7, 1000, stream.len()] {
        let episode = world.open(json!({})).await;
        let steps = stream.chunks(size).map(|bytes| Step::Send(bytes.to_vec().into()));
        world.upstream.will(Script::Stream(steps.collect()));
        let answer = world.chat(&episode, &streamed_question()).await;
        assert_eq!(answer.text, want, "in parts of {size} bytes");
        let record = world.record(&episode.id);
        let call = &record.calls[0];
        let message = |index: usize| &call.response.as_ref().unwrap()["choices"][index]["message"];
        assert_eq!(
            message(0)["tool_calls"][0]["function"],
            json!({"name": "f", "arguments": "{\"x\":1}"})
        );
        assert_eq!(
            message(1)["tool_calls"][0]["function"],
            json!({"name": "g", "arguments": "{}"})
        );
        assert_eq!(message(2)["content"], "late");
        let lengths: Vec<usize> = call.choices.iter().map(|choice| choice.token_ids.len()).collect();
        assert_eq!(lengths, [9, 3, 2]);
        assert_eq!(record.trajectories().len(), 3);
    }
    world.stop().await;
}

#[tokio::test]
async fn other_routes_pass_as_they_are() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    assert_eq!(
        world.get(&format!("/e/{}/v1/models", episode.id)).await.text,
        "{ \"data\" : [] }"
    );
    let answer = world.get("/v1/some%20thing?a=%2F").await.json();
    assert_eq!(answer["path"], "/v1/some%20thing?a=%2F");
    let answer = world
        .post(&format!("/e/{}/v1/embeddings", episode.id), &json!({"input": "x"}))
        .await
        .json();
    assert_eq!(
        answer,
        json!({"method": "POST", "path": "/v1/embeddings", "body": "{\"input\":\"x\"}"})
    );
    assert!(world.record(&episode.id).episode.tainted.is_none());
    world
        .post(
            &format!("/e/{}/v1/completions", episode.id),
            &json!({"model": "m", "prompt": "x"}),
        )
        .await;
    assert!(
        world
            .record(&episode.id)
            .episode
            .tainted
            .unwrap()
            .contains("/v1/completions")
    );
    world.stop().await;
}

/// The version is read once a call, and a teacher's calls are left alone.
#[tokio::test]
async fn versions_and_other_upstreams() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let switched = world
        .post("/api/policy", &json!({"version": 7, "adapter": "/a/policy@7"}))
        .await;
    assert_eq!(
        switched.json(),
        json!({"version": 7, "adapter": "/a/policy@7", "in_flight": {}})
    );
    world.chat(&episode, &question()).await;
    let teacher = world
        .open(json!({"upstream": "teacher", "overrides": {"temperature": 0}}))
        .await;
    world.chat(&teacher, &question()).await;
    let asked = world.upstream.asked();
    assert_eq!(asked[0].json()["model"], "policy@7");
    assert_eq!(asked[1].body, question().to_string());
    assert_eq!(asked[1].headers["authorization"], "Bearer sk-teacher");
    assert_eq!(
        world.record(&episode.id).calls[0].policy_version,
        Some(PolicyVersion(7))
    );
    let record = world.record(&teacher.id);
    assert_eq!(
        (record.calls[0].policy_version, &record.calls[0].model),
        (None, &"gpt-any".to_owned())
    );
    world.stop().await;
}
