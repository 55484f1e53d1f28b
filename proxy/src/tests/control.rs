//! Control routes: episodes, rewards, groups, policy, health.

use http::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use trajectory::{EpisodeState, FailureCause, PolicyVersion, Store};

use super::world::{World, question};
use crate::{ProxyConfig, ProxyError, UpstreamConfig};

#[tokio::test]
async fn from_open_to_a_ready_group() {
    let world = World::start().await;
    for reward in [0.0, 1.0] {
        let episode = world
            .open(json!({"scenario": "s1", "group": "g1", "split": "train"}))
            .await;
        world.chat(&episode, &question()).await;
        let close = json!({"stop_reason": "done", "reward": reward, "metrics": {"success": reward}});
        let closed = world.post(&format!("/api/episodes/{}/close", episode.id), &close).await;
        assert_eq!(closed.status, StatusCode::OK, "{}", closed.text);
        assert_eq!(closed.json()["episode"]["state"], "closed");
        let again = world.post(&format!("/api/episodes/{}/close", episode.id), &close).await;
        assert_eq!(again.status, StatusCode::GONE);
    }
    let groups = world.get("/api/groups?state=ready").await.json();
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1), "{groups}");
    assert_eq!(groups["groups"][0]["episodes"].as_array().map(Vec::len), Some(2));
    let listed = world.get("/api/episodes?group=g1&state=closed&limit=1").await.json();
    assert_eq!(listed["episodes"].as_array().map(Vec::len), Some(1));
    world.stop().await;
}

#[tokio::test]
async fn rewards_come_late_and_by_call() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let answer = world.chat(&episode, &question()).await;
    let call = answer.headers["x-trainyard-call"].to_str().unwrap();
    world
        .post(&format!("/api/episodes/{}/close", episode.id), &json!({}))
        .await;
    let path = format!("/api/episodes/{}/reward", episode.id);
    assert_eq!(
        world.post(&path, &json!({"reward": 0.5, "source": "me"})).await.status,
        StatusCode::OK
    );
    assert_eq!(world.record(&episode.id).episode.reward, Some(0.5));
    let fed = world
        .post("/api/feedback", &json!({"response_id": call, "reward": -1}))
        .await;
    assert_eq!(fed.json(), json!({"id": episode.id, "reward": -1.0}));
    assert_eq!(world.record(&episode.id).episode.reward, Some(-1.0));
    let unknown = world
        .post("/api/feedback", &json!({"response_id": "nothing", "reward": 1}))
        .await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    world.stop().await;
}

#[tokio::test]
async fn mistakes_are_explained() {
    let world = World::start().await;
    for (path, body, code) in [
        ("/api/episodes", json!({"secnario": "s"}), "invalid_body"),
        (
            "/api/episodes",
            json!({"overrides": {"model": "x"}}),
            "reserved_override",
        ),
        ("/api/episodes", json!({"upstream": "nobody"}), "unknown_upstream"),
        ("/api/episodes/nothere/close", json!({}), "episode_not_found"),
        (
            "/api/episodes/nothere/reward",
            json!({"reward": 1}),
            "episode_not_found",
        ),
        ("/api/policy", json!({"version": -1}), "invalid_body"),
        ("/nothing", json!({}), "unknown_route"),
        ("/health", json!({}), "method_not_allowed"),
        ("/v1/chat/completions", json!([]), "invalid_json"),
    ] {
        let answer = world.post(path, &body).await;
        assert_eq!(answer.json()["error"]["code"], code, "{path}: {}", answer.text);
        assert!(answer.status.is_client_error());
    }
    world.stop().await;
}

#[tokio::test]
async fn a_failure_given_on_closing_is_kept() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let close = json!({"failure": {"cause": "timeout", "message": "60 s"}});
    world.post(&format!("/api/episodes/{}/close", episode.id), &close).await;
    let episode = world.record(&episode.id).episode;
    assert_eq!(
        episode.failure.map(|failure| failure.cause),
        Some(FailureCause::Timeout)
    );
    world.stop().await;
}

#[tokio::test]
async fn health_readiness_and_metrics() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    world.chat(&episode, &question()).await;
    assert_eq!(world.get("/health").await.json()["status"], "ok");
    assert_eq!(world.get("/ready").await.status, StatusCode::OK);
    let metrics = world.get("/metrics").await.text;
    for line in [
        "trainyard_calls_total{status=\"complete\"} 1",
        "trainyard_completion_tokens_total 2",
        "trainyard_episodes_open 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    world.stop().await;
}

#[tokio::test]
async fn what_a_restart_finds() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("t.db")).unwrap();
    let config = ProxyConfig::new(vec![UpstreamConfig::new("u", "http://127.0.0.1:9")]);
    let serve = async |shutdown: tokio_util::sync::CancellationToken| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        crate::serve(listener, config.clone(), store.clone(), shutdown).await
    };
    // In good order: what is open stays as it is, and the version is remembered.
    let episode = store.open_episode(Default::default()).unwrap();
    store
        .set_policy(&trajectory::Policy {
            version: PolicyVersion(4),
            adapter: None,
        })
        .unwrap();
    let shutdown = tokio_util::sync::CancellationToken::new();
    shutdown.cancel();
    serve(shutdown.clone()).await.unwrap();
    assert_eq!(store.episode(&episode.id).unwrap().unwrap().tainted, None);
    // Killed: what was open has a hole.
    let is_up = super::world::eventually("it is up", || {
        (store.meta_get(crate::ENDED_IN_ORDER).unwrap() == Some(false.into())).then_some(())
    });
    tokio::select! {
        ended = serve(Default::default()) => panic!("{ended:?}"),
        () = is_up => {}
    }
    serve(shutdown).await.unwrap();
    let episode = store.episode(&episode.id).unwrap().unwrap();
    assert_eq!(episode.state, EpisodeState::Open);
    assert!(episode.tainted.unwrap().contains("killed"));
}

#[tokio::test]
async fn other_machines_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("t.db")).unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let config = ProxyConfig::new(vec![UpstreamConfig::new("u", "http://127.0.0.1:9")]);
    let error = crate::serve(listener, config, store, Default::default())
        .await
        .unwrap_err();
    assert!(matches!(error, ProxyError::TokenRequired { .. }), "{error}");
}
