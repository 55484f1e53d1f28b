//! The `trainyard` command from outside: exit codes, messages, what is written and what isn't.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use trajectory::{CloseEpisode, ModelCall, NewEpisode, Store};

const LIMIT: Duration = Duration::from_secs(10);

fn trainyard(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("trainyard"));
    command
        .current_dir(folder)
        .env_remove("TRAINYARD_TOKEN")
        .env_remove("TRAINYARD_LOG");
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    trainyard(folder).args(arguments).output().unwrap()
}

/// The command refuses with exit code 2, says these words, and leaves the folder as it was.
fn check_refused(folder: &Path, arguments: &[&str], words: &[&str]) {
    let files = |folder: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = files(folder);
    let output = run(folder, arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(message.starts_with("error: "), "{message}");
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
    assert!(output.stdout.is_empty());
    assert_eq!(files(folder), before, "{arguments:?} left something behind");
}

/// A command that serves, and is ended with the test.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = trainyard(folder)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The exit code, once the process has ended by itself.
    fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn terminate(&self) {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a store of one closed and one open episode.
fn store() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("trajectories.db")).unwrap();
    let new = || NewEpisode {
        scenario_id: Some("rain-1".into()),
        group_id: Some("g".into()),
        ..NewEpisode::default()
    };
    let id = store.open_episode(new()).unwrap().id;
    let call = json!({"id": "c1", "episode_id": id, "endpoint": "chat_completions", "status": "complete",
        "upstream_model": "policy@1", "policy_version": 1, "prompt_token_ids": [1, 2],
        "request": {"messages": [{"role": "user", "content": "Will it rain?"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "It rains."}}]},
        "choices": [{"index": 0, "token_ids": [3], "behaviour_logprobs": [-0.5], "finish_reason": "stop"}]});
    store
        .append_call(serde_json::from_value::<ModelCall>(call).unwrap())
        .unwrap();
    store
        .close_episode(
            &id,
            CloseEpisode {
                reward: Some(0.5),
                ..CloseEpisode::default()
            },
        )
        .unwrap();
    store.open_episode(new()).unwrap();
    (folder, id.to_string())
}

#[test]
fn help_is_no_error_and_wrong_arguments_are() {
    let folder = tempfile::tempdir().unwrap();
    let help = run(folder.path(), &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("proxy"));
    check_refused(folder.path(), &["prxoy"], &["proxy"]);
    check_refused(folder.path(), &["proxy"], &["--upstream"]);
}

#[test]
fn a_port_in_use_is_named_and_no_store_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let words = ["can't listen on", address.as_str(), "hint: "];
    check_refused(
        folder.path(),
        &["proxy", "--upstream", "http://127.0.0.1:1", "--listen", &address],
        &words,
    );
    check_refused(
        folder.path(),
        &["env", "nws", "--stand-in", "1", "--listen", &address],
        &words,
    );
}

#[test]
fn servers_beyond_loopback_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    for command in [
        &["proxy", "--upstream", "http://127.0.0.1:1"][..],
        &["env", "nws", "--stand-in", "1"],
    ] {
        check_refused(
            folder.path(),
            &[command, &["--listen", "0.0.0.0:0"]].concat(),
            &["reachable from other machines", "TRAINYARD_TOKEN"],
        );
    }
}

#[test]
fn a_key_that_no_header_can_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = ["proxy", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    check_refused(
        folder.path(),
        &[&upstream[..], &["--upstream-key", "two\nlines"]].concat(),
        &["policy", "key"],
    );
}

#[test]
fn a_wrong_proxy_configuration_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str, words: &[&str]| {
        std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
        check_refused(
            folder.path(),
            &["proxy", "-c", "proxy.toml", "--listen", "127.0.0.1:0"],
            words,
        );
    };
    check(
        "[[upstreams]]\nname = \"a\"\nulr = \"http://a\"\n",
        &["proxy.toml", "line 3", "ulr", "did you mean `url`?"],
    );
    check(
        "[[upstreams]]\nname = \"a\"\nurl = \"a\"\n",
        &["proxy.toml", "upstream `a`", "`a` is not an http or https URL"],
    );
    check("[limits]\n", &["no upstream is configured"]);
}

#[test]
fn a_proxy_prints_its_address_first_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["proxy", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let mut proxy = Server::start(folder.path(), &arguments);
    let address = proxy.line();
    let mut connection = std::net::TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    connection
        .write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut status = String::new();
    BufReader::new(connection).read_line(&mut status).unwrap();
    assert!(status.contains("200"), "{status}");
    proxy.terminate();
    assert_eq!(proxy.ended(), Some(0));
    assert!(folder.path().join("trajectories.db").is_file());
}

#[test]
fn the_weather_tools_are_served_over_stdio_until_the_client_hangs_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &["env", "nws", "--stand-in", "1"]);
    let mut input = server.child.stdin.take().unwrap();
    writeln!(input, "{}", initialize()).unwrap();
    let answer: Value = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(answer["id"], 1, "standard output holds the protocol and nothing else");
    writeln!(
        input,
        "{}",
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
    )
    .unwrap();
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})).unwrap();
    let tools: Value = serde_json::from_str(&server.line()).unwrap();
    assert!(tools["result"]["tools"].as_array().unwrap().len() >= 6, "{tools}");
    drop(input);
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn the_weather_tools_are_served_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(
        folder.path(),
        &["env", "nws", "--stand-in", "1", "--listen", "127.0.0.1:0"],
    );
    let address = server.line();
    let host = address
        .strip_prefix("http://")
        .and_then(|rest| rest.strip_suffix("/mcp"))
        .unwrap_or_else(|| panic!("{address}"));
    let (head, hello) = post(host, host, "", &initialize());
    assert_eq!(hello["id"], 1, "{head}");
    let session = head
        .lines()
        .find_map(|line| line.strip_prefix("mcp-session-id: "))
        .unwrap_or_else(|| panic!("{head}"));
    let session = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-06-18\r\n");
    let (head, _) = post(
        host,
        host,
        &session,
        &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    );
    assert!(head.starts_with("HTTP/1.1 202"), "{head}");
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "get_forecast", "arguments": {"latitude": 42.36, "longitude": -71.06, "period": "Today"}}});
    let (head, answer) = post(host, host, &session, &call);
    let text = answer["result"]["content"][0]["text"].as_str();
    assert!(text.is_some_and(|text| text.starts_with("Today: ")), "{head} {answer}");
    assert!(answer["result"]["structuredContent"].is_object(), "{answer}");

    // Nobody gets in by a name that resolves to loopback, and nobody into a session that doesn't exist.
    let (head, _) = post(host, "evil.example", "", &initialize());
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let (head, _) = post(host, host, "mcp-session-id: none\r\n", &call);
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    server.terminate();
    assert_eq!(server.ended(), Some(0), "an open session doesn't keep it");
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
}

/// Sends an MCP message; the response's head, and the last message of its event stream (null without one).
fn post(address: &str, host: &str, headers: &str, message: &Value) -> (String, Value) {
    let body = message.to_string();
    let mut connection = std::net::TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST /mcp HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len(),
    )
    .unwrap();
    let response = std::io::read_to_string(connection).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let last = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .next_back()
        .map(|rest| serde_json::from_str(&format!("{{{}", rest.trim())).unwrap());
    (head.to_owned(), last.unwrap_or_default())
}

#[test]
fn a_store_is_listed_shown_and_exported() {
    let (folder, id) = store();
    let text = |arguments: &[&str]| {
        let output = run(folder.path(), arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let list = text(&["log", "ls"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        list.contains(&id) && list.contains("0.500") && list.contains("open"),
        "{list}"
    );
    assert_eq!(text(&["log", "ls", "--state", "closed", "--json"]).lines().count(), 1);

    let shown = text(&["log", "show", &id]);
    assert!(
        shown.contains("Will it rain?") && shown.contains("It rains."),
        "{shown}"
    );
    assert!(shown.contains("3 tokens, 1 sampled by policy@1"), "{shown}");
    let record: Value = serde_json::from_str(&text(&["log", "show", &id, "--json"])).unwrap();
    assert_eq!(record["calls"][0]["id"], "c1");

    let exported = text(&["log", "export"]);
    let episodes = trajectory::read_export(exported.as_bytes()).unwrap();
    assert_eq!(episodes.len(), 1, "open episodes are left out");
    assert_eq!(episodes[0].trajectories[0].token_ids, [1, 2, 3]);
    text(&[
        "log",
        "export",
        "--include-open",
        "--output",
        "episodes.jsonl",
        "--store",
        ".",
    ]);
    let file = std::fs::read(folder.path().join("episodes.jsonl")).unwrap();
    assert_eq!(trajectory::read_export(file.as_slice()).unwrap().len(), 2);

    check_refused(
        folder.path(),
        &["log", "show", "nothing"],
        &["no episode has an id", "log ls"],
    );
    check_refused(folder.path(), &["log", "show", "0"], &["several episodes have"]);
}

#[test]
fn a_missing_store_is_named_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    check_refused(
        folder.path(),
        &["log", "ls"],
        &["there is no trajectory store at trajectories.db", "--store"],
    );
    std::fs::write(folder.path().join("notes"), "no database".repeat(200)).unwrap();
    check_refused(
        folder.path(),
        &["log", "ls", "--store", "notes"],
        &["notes is not a trajectory store"],
    );
}

#[test]
fn an_adapter_that_is_not_there_is_not_published() {
    let folder = tempfile::tempdir().unwrap();
    let server = ["--server", "http://127.0.0.1:1", "--proxy", "http://127.0.0.1:1"];
    check_refused(
        folder.path(),
        &[&["publish", "--adapter", "none"], &server[..]].concat(),
        &["there is no adapter at none"],
    );
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    check_refused(
        folder.path(),
        &[&["publish", "--adapter", "empty"], &server[..]].concat(),
        &["has no adapter_config.json"],
    );
}

#[cfg(feature = "torch")]
#[test]
fn a_missing_model_is_named_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[model]\npath = \"none\"\n[environment]\nname = \"nws\"\n[agent]\ncommand = [\"agent\"]\n";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    std::fs::write(folder.path().join("tokens.jsonl"), "{\"token_ids\":[1]}\n").unwrap();
    check_refused(
        folder.path(),
        &["train", "-c", "run.toml"],
        &["no model at", "none", "run.toml"],
    );
    check_refused(
        folder.path(),
        &["serve", "--model", "none", "--listen", "127.0.0.1:0"],
        &["none"],
    );
    check_refused(
        folder.path(),
        &["score", "--model", "none", "--tokens", "tokens.jsonl"],
        &["no model at none"],
    );
}

#[cfg(feature = "torch")]
#[test]
fn an_unknown_key_is_named_with_file_line_and_the_nearest_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[model]\npath = \".\"\n[environment]\nname = \"nws\"\n[agent]\ncomand = [\"agent\"]\n";
    std::fs::write(folder.path().join("run.toml"), config).unwrap();
    let words = ["run.toml", "line 6", "comand", "hint: did you mean `command`?"];
    check_refused(folder.path(), &["train", "-c", "run.toml"], &words);
}

#[cfg(feature = "torch")]
#[test]
fn a_bad_line_of_tokens_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("tokens.jsonl"),
        "{\"token_ids\":[1]}\n\n{\"tokens\":[1]}\n",
    )
    .unwrap();
    check_refused(
        folder.path(),
        &["score", "--model", "none", "--tokens", "tokens.jsonl"],
        &["tokens.jsonl:3:", "token_ids"],
    );
}
