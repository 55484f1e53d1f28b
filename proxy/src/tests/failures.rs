//! What breaks: the agent, the upstream, the stream.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use trajectory::{CallStatus, FailureCause};

use super::fake_upstream::{Script, Step, chunk, event, first_chunk};
use super::world::{World, eventually, next_part, question, streamed_question};

#[tokio::test]
async fn an_upstream_that_is_down() {
    let world = World::with(|config| config.upstreams[0].url = "http://127.0.0.1:9".into()).await;
    let episode = world.open(json!({})).await;
    let answer = world.chat(&episode, &question()).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("upstream_error"), &json!("upstream_unavailable"))
    );
    assert!(error["message"].as_str().unwrap().contains("can't be reached"));
    let record = world.record(&episode.id);
    assert_eq!(record.calls[0].status, CallStatus::Failed);
    assert!(record.episode.tainted.is_some());
    world
        .post(&format!("/api/episodes/{}/close", episode.id), &json!({}))
        .await;
    let failure = world.record(&episode.id).episode.failure.unwrap();
    assert_eq!(failure.cause, FailureCause::Upstream);
    assert_eq!(world.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    world.stop().await;
}

#[tokio::test]
async fn errors_of_the_upstream() {
    let world = World::start().await;
    let theirs = r#"{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}"#;
    let check = async |script: Script, status: StatusCode, tainted: bool| {
        let episode = world.open(json!({})).await;
        world.upstream.will(script);
        let answer = world.chat(&episode, &question()).await;
        assert_eq!(answer.status, status);
        let record = world.record(&episode.id);
        assert_eq!(record.calls[0].status, CallStatus::Failed);
        assert_eq!(record.episode.tainted.is_some(), tainted, "{}", answer.text);
        answer.text
    };
    // Their words pass; a refusal is an answer like any other and no hole.
    assert_eq!(
        check(
            Script::Json(StatusCode::BAD_REQUEST, theirs.into()),
            StatusCode::BAD_REQUEST,
            false
        )
        .await,
        theirs
    );
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    assert_eq!(check(Script::Json(status, theirs.into()), status, true).await, theirs);
    // What no client could read is put into the form that they read.
    let text = check(
        Script::Html(StatusCode::SERVICE_UNAVAILABLE, "<p>"),
        StatusCode::BAD_GATEWAY,
        true,
    )
    .await;
    assert!(text.contains("upstream_error"));
    check(Script::Html(StatusCode::OK, "<p>"), StatusCode::BAD_GATEWAY, true).await;
    world.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off() {
    let world = World::start().await;
    let tail: [Vec<Step>; 3] = [
        vec![Step::Break],
        vec![],
        vec![
            event(r#"{"error":{"message":"engine died","code":500}}"#),
            event("[DONE]"),
        ],
    ];
    for (steps, words) in tail
        .into_iter()
        .zip(["broke off", "ended its answer early", "engine died"])
    {
        let episode = world.open(json!({})).await;
        let mut script = vec![
            event(&first_chunk(0)),
            event(&chunk(0, json!({"content": "a"}), 7, None)),
        ];
        script.extend(steps);
        world.upstream.will(Script::Stream(script));
        let answer = world.chat(&episode, &streamed_question()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(
            answer.text.contains("\"error\"") && answer.text.contains(words),
            "{}",
            answer.text
        );
        let record = world.record(&episode.id);
        assert_eq!(record.calls[0].status, CallStatus::Failed);
        assert_eq!(record.calls[0].choices[0].token_ids, [7], "what came is kept");
        assert!(record.episode.tainted.unwrap().contains(words));
    }
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_hangs_up() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let never = Arc::new(Semaphore::new(0));
    let steps = vec![
        event(&first_chunk(0)),
        event(&chunk(0, json!({"content": "a"}), 7, None)),
        Step::Wait(never),
    ];
    world.upstream.will(Script::Stream(steps));
    let path = format!("/e/{}/v1/chat/completions", episode.id);
    let mut body = world
        .send(Method::POST, &path, &[], streamed_question().to_string())
        .await
        .into_body();
    let mut text = String::new();
    while !text.contains("\"a\"") {
        text.push_str(&next_part(&mut body).await);
    }
    drop(body);
    let record = world.record_with(&episode.id, 1).await;
    assert_eq!(record.calls[0].status, CallStatus::Aborted);
    assert_eq!(record.calls[0].choices[0].token_ids, [7]);
    assert!(record.episode.tainted.is_none());
    eventually("the upstream is told", || {
        (world.upstream.n_cancelled() == 1).then_some(())
    })
    .await;

    // The same while nothing has been answered.
    world.upstream.will(Script::Silence);
    let question = question();
    let asked = world.chat(&episode, &question);
    assert!(tokio::time::timeout(Duration::from_millis(100), asked).await.is_err());
    assert_eq!(
        world.record_with(&episode.id, 2).await.calls[1].status,
        CallStatus::Aborted
    );
    world.stop().await;
}

#[tokio::test]
async fn closing_ends_calls_in_flight() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let never = Arc::new(Semaphore::new(0));
    let steps = vec![
        event(&first_chunk(0)),
        event(&chunk(0, json!({"content": "a"}), 7, None)),
        Step::Wait(never),
    ];
    world.upstream.will(Script::Stream(steps));
    let path = format!("/e/{}/v1/chat/completions", episode.id);
    let mut body = world
        .send(Method::POST, &path, &[], streamed_question().to_string())
        .await
        .into_body();
    next_part(&mut body).await;
    let closed = world
        .post(&format!("/api/episodes/{}/close", episode.id), &json!({}))
        .await;
    assert_eq!(closed.status, StatusCode::OK);
    let record = world.record(&episode.id);
    assert_eq!(record.calls.len(), 1, "the close waited for the record");
    assert_eq!(record.calls[0].status, CallStatus::Aborted);
    assert!(record.episode.tainted.is_none());
    world.stop().await;
}

/// The agent is served although nothing can be recorded, and the episode is known to have a hole.
#[tokio::test]
async fn a_store_that_fails() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let breaker = rusqlite::Connection::open(world.store.path()).unwrap();
    breaker.execute_batch("ALTER TABLE calls RENAME TO elsewhere").unwrap();
    assert_eq!(world.chat(&episode, &question()).await.status, StatusCode::OK);
    let stream = vec![
        event(&first_chunk(0)),
        event(&chunk(0, json!({}), 7, Some("stop"))),
        event("[DONE]"),
    ];
    world.upstream.will(Script::Stream(stream));
    assert!(
        world
            .chat(&episode, &streamed_question())
            .await
            .text
            .ends_with("data: [DONE]\n\n")
    );
    let tainted = world.store.episode(&episode.id).unwrap().unwrap().tainted.unwrap();
    assert!(tainted.contains("could not be stored"), "{tainted}");
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains("trainyard_store_errors_total 2") && metrics.contains("episodes_tainted_total 1"));
    world.stop().await;
}

#[tokio::test]
async fn limits() {
    let world = World::with(|config| {
        (config.limits.max_body_bytes, config.limits.max_concurrent_calls) = (200, 1);
        config.limits.max_open_episodes = 1;
    })
    .await;
    let episode = world.open(json!({})).await;
    let mut large = question();
    large["messages"][0]["content"] = "x".repeat(300).into();
    let answer = world.chat(&episode, &large).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json()["error"]["code"], "request_too_large");
    assert_eq!(
        world.post("/api/episodes", &json!({})).await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
    let gate = Arc::new(Semaphore::new(0));
    world.upstream.will(Script::Stream(vec![
        event(&first_chunk(0)),
        Step::Wait(gate.clone()),
        event("[DONE]"),
    ]));
    let path = format!("/e/{}/v1/chat/completions", episode.id);
    let mut first = world
        .send(Method::POST, &path, &[], streamed_question().to_string())
        .await
        .into_body();
    next_part(&mut first).await;
    let second = world.chat(&episode, &question()).await;
    assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(second.headers["retry-after"], "1");
    gate.add_permits(1);
    assert_eq!(next_part(&mut first).await, "data: [DONE]\n\n");
    world.stop().await;
}

#[tokio::test]
async fn a_silent_upstream_times_out() {
    let world = World::with(|config| config.upstreams[0].timeout = Duration::from_millis(50)).await;
    let episode = world.open(json!({})).await;
    world.upstream.will(Script::Silence);
    let answer = world.chat(&episode, &question()).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (StatusCode::GATEWAY_TIMEOUT, &json!("upstream_timeout"))
    );
    let gate = Arc::new(Semaphore::new(0));
    world.upstream.will(Script::Stream(vec![Step::Wait(gate)]));
    let mut streamed = question();
    streamed["stream"] = json!(true);
    let answer = world.chat(&episode, &streamed).await;
    assert!(
        answer.text.contains("upstream `policy` was silent"),
        "in the middle of a stream too: {}",
        answer.text
    );
    world.stop().await;
}
