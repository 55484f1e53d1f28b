//! Which episode a call belongs to, and who may make it.

use http::StatusCode;
use serde_json::{Value, json};
use trajectory::{EpisodeFilter, EpisodeState};

use super::world::{World, eventually, question};

#[tokio::test]
async fn by_path_and_by_key() {
    let world = World::start().await;
    let episode = world
        .open(json!({"scenario": "s", "group": "g", "split": "train"}))
        .await;
    let base = format!("http://{}/e/{}", world.address, episode.id);
    assert_eq!(episode.answer["base_url"], format!("{base}/v1"));
    let bearer = format!("Bearer {}", episode.key);
    assert_eq!(world.chat(&episode, &question()).await.status, StatusCode::OK);
    let by_bearer = world
        .post_with("/v1/chat/completions", &[("authorization", &bearer)], &question())
        .await;
    let by_header = world
        .post_with("/v1/chat/completions", &[("x-api-key", &episode.key)], &question())
        .await;
    assert_eq!((by_bearer.status, by_header.status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(world.record(&episode.id).calls.len(), 3);
    // The key is nobody's business: neither the upstream's nor the store's.
    assert!(
        world
            .upstream
            .asked()
            .iter()
            .all(|asked| !asked.headers.contains_key("authorization"))
    );
    let shown = world.get(&format!("/api/episodes/{}", episode.id)).await;
    assert_eq!(shown.json()["calls"].as_array().map(Vec::len), Some(3));
    let secret = episode.key.rsplit('-').next().unwrap();
    assert!(!shown.text.contains(secret));
    world.stop().await;
}

#[tokio::test]
async fn wrong_keys_and_closed_episodes() {
    let world = World::start().await;
    let (one, other) = (world.open(json!({})).await, world.open(json!({})).await);
    let check = async |path: &str, key: &str, status: StatusCode, code: &str| {
        let answer = world
            .post_with(path, &[("authorization", &format!("Bearer {key}"))], &question())
            .await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (status, &Value::from(code)),
            "{path} {key}"
        );
    };
    let path = format!("/e/{}/v1/chat/completions", one.id);
    let forged = format!("ty-{}-0000", one.id);
    check(
        "/v1/chat/completions",
        &forged,
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
    )
    .await;
    check(
        "/v1/chat/completions",
        "ty-nothere-0000",
        StatusCode::UNAUTHORIZED,
        "invalid_api_key",
    )
    .await;
    check(&path, &other.key, StatusCode::UNAUTHORIZED, "invalid_api_key").await;
    check(&path, &forged, StatusCode::UNAUTHORIZED, "invalid_api_key").await;
    check(
        "/e/nothere/v1/chat/completions",
        "any",
        StatusCode::NOT_FOUND,
        "episode_not_found",
    )
    .await;
    world.post(&format!("/api/episodes/{}/close", one.id), &json!({})).await;
    check(&path, "any", StatusCode::GONE, "episode_closed").await;
    check("/v1/chat/completions", &one.key, StatusCode::GONE, "episode_closed").await;
    assert!(world.upstream.asked().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn plain_calls_are_threaded() {
    let world = World::with(|config| config.limits.implicit_idle = std::time::Duration::from_millis(300)).await;
    let key = [("authorization", "Bearer sk-mine")];
    let first = world.post_with("/v1/chat/completions", &key, &question()).await.json();
    let mut longer = question();
    let messages = longer["messages"].as_array_mut().unwrap();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "more"}));
    world.post_with("/v1/chat/completions", &key, &longer).await;
    world.post_with("/v1/chat/completions", &key, &question()).await;
    for _ in 0..2 {
        let named = [("authorization", "Bearer sk-mine"), ("x-trainyard-episode", "job 1")];
        world.post_with("/v1/chat/completions", &named, &question()).await;
    }
    let episodes = world.store.episodes(&EpisodeFilter::default()).unwrap();
    assert!(episodes.iter().all(|episode| episode.implicit));
    let mut n_calls: Vec<_> = episodes
        .iter()
        .map(|episode| world.record(&episode.id).calls.len())
        .collect();
    n_calls.sort_unstable();
    assert_eq!(n_calls, [1, 2, 2]);
    let asked = world.upstream.asked();
    assert_eq!(
        asked[0].headers["authorization"], "Bearer sk-mine",
        "somebody's own key is passed on"
    );
    assert!(!asked[4].headers.contains_key("x-trainyard-episode"));
    eventually("idle episodes close", || {
        let open = EpisodeFilter {
            state: Some(EpisodeState::Open),
            ..EpisodeFilter::default()
        };
        world.store.episodes(&open).unwrap().is_empty().then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_token_closes_what_is_open_without_one() {
    let world = World::with(|config| config.token = Some("t0ken".into())).await;
    let token = [("authorization", "Bearer t0ken")];
    let refused = world.post("/api/episodes", &json!({})).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let opened = world.post_with("/api/episodes", &token, &json!({})).await.json();
    let path = format!("/e/{}/v1/chat/completions", opened["id"].as_str().unwrap());
    assert_eq!(world.post(&path, &question()).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        world.post("/v1/chat/completions", &question()).await.status,
        StatusCode::UNAUTHORIZED
    );
    let key = format!("Bearer {}", opened["api_key"].as_str().unwrap());
    assert_eq!(
        world
            .post_with(&path, &[("authorization", &key)], &question())
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(world.get("/health").await.status, StatusCode::OK);
    world.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let world = World::start().await;
    let answer = world
        .post_with("/api/episodes", &[("host", "evil.example")], &json!({}))
        .await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (StatusCode::FORBIDDEN, &json!("host_not_allowed"))
    );
    let answer = world
        .post_with(
            "/api/policy",
            &[("origin", "https://evil.example")],
            &json!({"version": 3}),
        )
        .await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    world.stop().await;
}

#[tokio::test]
async fn agents_change_no_adapters() {
    let world = World::start().await;
    let episode = world.open(json!({})).await;
    let bearer = format!("Bearer {}", episode.key);
    let body = json!({"lora_name": "policy@1", "lora_path": "/tmp/mine"});
    for route in [
        "load_lora_adapter",
        "unload_lora_adapter",
        "Load_%6Cora_adapter",
        "x/../load_lora_adapter",
    ] {
        let by_path = world.post(&format!("/e/{}/v1/{route}", episode.id), &body).await;
        let by_key = world
            .post_with(&format!("/v1/{route}"), &[("authorization", &bearer)], &body)
            .await;
        for answer in [by_path, by_key] {
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{route}: {}", answer.text);
            assert_eq!(answer.json()["error"]["code"], "adapter_change_refused", "{route}");
        }
    }
    assert!(world.upstream.asked().is_empty());
    world.stop().await;
}
