//! The MCP gateway, with small servers written in shell and Python.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use trajectory::FailureCause;

use super::world::{Opened, World, eventually};
use crate::{McpServerConfig, ProxyConfig};

/// Answers `initialize`, `tools/list` and calls of `echo`; `fail` is an error of the tool, `hang` never returns,
/// `exit` ends the server, `fork` leaves a child behind and names its process group.
const SERVER: &str = r#"
import json, os, subprocess, sys, time
count = 0
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": params.get("protocolVersion"), "capabilities": {"tools": {}},
                  "serverInfo": {"name": "t", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        name = params["name"]
        if name == "hang":
            time.sleep(600)
        if name == "exit":
            print("out of tea", file=sys.stderr, flush=True)
            os._exit(3)
        if name == "fork":
            subprocess.Popen(["sleep", "600"])
        count += 1
        text = {"echo": json.dumps(params.get("arguments")), "fail": "429 slow down",
                "fork": str(os.getpgid(0)), "count": str(count), "env": json.dumps(dict(os.environ))}[name]
        result = {"content": [{"type": "text", "text": text}], "isError": name == "fail"}
    else:
        reply = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no " + method}}
        print(json.dumps(reply), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

fn python(config: &mut ProxyConfig) {
    let command = ["python3", "-c", SERVER].map(str::to_owned).to_vec();
    config.mcp_servers.push(McpServerConfig {
        call_timeout: Duration::from_secs(5),
        ..McpServerConfig::new("t", command)
    });
}

async fn ask(world: &World, episode: &Opened, id: impl Into<Value>, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params});
    let answer = world.post(&format!("/e/{}/mcp/t", episode.id), &message).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}

async fn call(world: &World, episode: &Opened, tool: &str, arguments: Value) -> Value {
    ask(
        world,
        episode,
        "c",
        "tools/call",
        json!({"name": tool, "arguments": arguments}),
    )
    .await
}

async fn initialize(world: &World, episode: &Opened) -> Value {
    ask(
        world,
        episode,
        0,
        "initialize",
        json!({"protocolVersion": "2025-06-18", "capabilities": {}}),
    )
    .await
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no text in {answer}"))
}

#[tokio::test]
async fn a_session_of_tools() {
    let world = World::with(python).await;
    let episode = world.open(json!({})).await;
    let url = format!("http://{}/e/{}/mcp/t", world.address, episode.id);
    assert_eq!(episode.answer["mcp"], json!({"t": url}));
    let configuration = world.get(&format!("/e/{}/mcp.json", episode.id)).await.json();
    assert_eq!(
        configuration,
        json!({"mcpServers": {"t": {"type": "http", "url": url}}})
    );
    let answer = initialize(&world, &episode).await;
    assert_eq!(
        (&answer["id"], &answer["result"]["protocolVersion"]),
        (&json!(0), &json!("2025-06-18"))
    );
    let path = format!("/e/{}/mcp/t", episode.id);
    let confirmed = world
        .post(&path, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    assert_eq!((confirmed.status, confirmed.text.as_str()), (StatusCode::ACCEPTED, ""));
    let tools = ask(&world, &episode, 1, "tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"][0]["name"], "echo");
    let answer = call(&world, &episode, "echo", json!({"b": 1, "a": "ü"})).await;
    assert_eq!(
        (&answer["id"], text(&answer)),
        (&json!("c"), r#"{"b": 1, "a": "\u00fc"}"#)
    );
    let unknown = ask(&world, &episode, 2, "no/such", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601);
    // A second client of the episode shares the process.
    assert!(initialize(&world, &episode).await["result"].is_object());
    assert_eq!(text(&call(&world, &episode, "count", json!({})).await), "2");
    assert_eq!(
        world.send(Method::GET, &path, &[], "").await.status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        world.send(Method::DELETE, &path, &[], "").await.status(),
        StatusCode::NO_CONTENT
    );
    let calls = world.record(&episode.id).tool_calls;
    assert_eq!(calls.len(), 2);
    assert_eq!(
        (calls[0].server.as_str(), calls[0].tool.as_str(), calls[0].is_error),
        ("t", "echo", false)
    );
    assert_eq!(calls[0].arguments, json!({"b": 1, "a": "ü"}));
    assert_eq!(calls[0].result, Some(answer["result"].clone()));
    world.stop().await;
}

#[tokio::test]
async fn episodes_do_not_share_a_process() {
    let world = World::with(python).await;
    let (one, other) = (world.open(json!({})).await, world.open(json!({})).await);
    for episode in [&one, &other] {
        initialize(&world, episode).await;
        assert_eq!(text(&call(&world, episode, "count", json!({})).await), "1");
    }
    world.stop().await;
}

#[tokio::test]
async fn the_environment_is_an_allow_list() {
    let world = World::with(|config| {
        python(config);
        config.mcp_servers[0].env.insert("MINE".into(), "1".into());
    })
    .await;
    let episode = world.open(json!({})).await;
    initialize(&world, &episode).await;
    let answer = call(&world, &episode, "env", json!({})).await;
    let environment: Value = serde_json::from_str(text(&answer)).unwrap();
    assert_eq!(environment["MINE"], "1");
    assert!(environment.get("PATH").is_some() && environment.get("CARGO_MANIFEST_DIR").is_none());
    world.stop().await;
}

/// M1: a server that exits at once, one that never answers, and one that is not there.
#[tokio::test]
async fn servers_that_do_not_start() {
    for (command, words) in [
        (vec!["sh", "-c", "echo no license >&2; exit 1"], "no license"),
        (
            vec!["sh", "-c", "echo thinking >&2; exec sleep 600"],
            "did not answer `initialize` within 0.3 s",
        ),
        (vec!["/no/such/program"], "can't be started"),
    ] {
        let world = World::with(|config| {
            let command = command.into_iter().map(str::to_owned).collect();
            let mut server = McpServerConfig::new("t", command);
            server.start_timeout = Duration::from_millis(300);
            config.mcp_servers.push(server);
        })
        .await;
        let episode = world.open(json!({})).await;
        let answer = initialize(&world, &episode).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        let open = world.get(&format!("/api/episodes/{}", episode.id)).await.json();
        assert_eq!(open["episode"]["state"], "open");
        assert_eq!(
            open["episode"]["failure"]["cause"], "tool_server",
            "known before the end"
        );
        world
            .post(&format!("/api/episodes/{}/close", episode.id), &json!({}))
            .await;
        let failure = world.record(&episode.id).episode.failure.unwrap();
        assert_eq!(failure.cause, FailureCause::ToolServer);
        assert!(failure.message.contains(words));
        world.stop().await;
    }
}

/// M2: a call that hangs is given up, and nothing is left of the process group when the episode closes.
#[tokio::test]
async fn a_call_that_hangs() {
    let world = World::with(|config| {
        python(config);
        config.mcp_servers[0].call_timeout = Duration::from_millis(300);
        config.mcp_servers[0].close_timeout = Duration::from_millis(400);
    })
    .await;
    let episode = world.open(json!({})).await;
    initialize(&world, &episode).await;
    let group: i32 = text(&call(&world, &episode, "fork", json!({})).await).parse().unwrap();
    assert!(group_exists(group));
    let answer = call(&world, &episode, "hang", json!({})).await;
    assert_eq!(answer["result"]["isError"], true);
    assert!(text(&answer).contains("did not answer `tools/call` within 0.3 s"));
    let began = Instant::now();
    world
        .post(&format!("/api/episodes/{}/close", episode.id), &json!({}))
        .await;
    assert!(began.elapsed() < Duration::from_secs(3));
    // Killed processes are gone once somebody has reaped them.
    eventually("the process group is gone", || (!group_exists(group)).then_some(())).await;
    let record = world.record(&episode.id);
    let hung = &record.tool_calls[1];
    assert!(hung.is_error && hung.result.is_none() && hung.error.as_ref().unwrap().contains("0.3 s"));
    assert_eq!(record.episode.failure.unwrap().cause, FailureCause::ToolServer);
    world.stop().await;
}

/// M4: an error of the tool is a result for the model and no failure of the episode; a server's death is one.
#[tokio::test]
async fn errors_of_tools_and_of_servers() {
    let world = World::with(python).await;
    let episode = world.open(json!({})).await;
    initialize(&world, &episode).await;
    let answer = call(&world, &episode, "fail", json!({})).await;
    assert_eq!(
        (&answer["result"]["isError"], text(&answer)),
        (&json!(true), "429 slow down")
    );
    let dead = call(&world, &episode, "exit", json!({})).await;
    assert!(
        text(&dead).contains("ended before it answered") && text(&dead).contains("out of tea"),
        "{dead}"
    );
    let still_dead = call(&world, &episode, "echo", json!({})).await;
    assert_eq!(
        still_dead["result"]["isError"], true,
        "lost state is not replaced unnoticed"
    );
    let calls = world.record(&episode.id).tool_calls;
    assert_eq!(
        calls.iter().map(|call| call.is_error).collect::<Vec<_>>(),
        [true, true, true]
    );
    assert!(calls[0].error.is_none() && calls[1].error.is_some());
    world.stop().await;
}

#[tokio::test]
async fn a_stop_leaves_no_process() {
    let world = World::with(python).await;
    let episode = world.open(json!({})).await;
    initialize(&world, &episode).await;
    let group: i32 = text(&call(&world, &episode, "fork", json!({})).await).parse().unwrap();
    world.stop().await;
    eventually("the process group is gone", || (!group_exists(group)).then_some(())).await;
}

/// Whether a process of the group is running (one that only waits to be reaped is not).
fn group_exists(group: i32) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        matches!(fields.as_slice(), [state, _, pgrp, ..] if *state != "Z" && pgrp.parse() == Ok(group))
    })
}
