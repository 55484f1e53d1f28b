//! What a user can get wrong, and what can be killed: one clear message, nothing written, nothing left behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::binary::trainyard;
use harness::small_run::SmallRun;
use mcp_envs::environment::Environment;
use mcp_envs::envs::nws::NwsEnvironment;
use serde_json::Value;
use trajectory::Split;

/// Runs to the end and checks that it is a usage error: exit code 2, the words, and no run folder.
fn refused(run: &SmallRun, words: &[&str]) -> String {
    let output = trainyard().args(["train", "-c"]).arg(run.config()).output().unwrap();
    let message = usage_error(&output, words);
    assert!(!run.runs().try_exists().unwrap(), "something was written: {message}");
    message
}

fn usage_error(output: &Output, words: &[&str]) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
    message
}

#[test]
fn an_unknown_key_is_named_with_file_and_line() {
    let run = SmallRun::new(&[("trainer.lerning_rate", 0.1.into())]);
    refused(&run, &["run.toml", "lerning_rate", "line"]);
}

#[test]
fn a_missing_model_is_named() {
    let run = SmallRun::new(&[("model.path", "no-such-model".into())]);
    refused(&run, &["no-such-model", "hint:"]);
}

#[test]
fn a_truncated_model_file_is_named() {
    let run = SmallRun::new(&[]);
    let weights = run.path().join("model/model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&weights, &bytes[..length]).unwrap();
        refused(&run, &["model.safetensors"]);
    }
}

#[test]
fn a_damaged_gguf_file_is_named() {
    let run = SmallRun::new(&[("model.path", "broken.gguf".into())]);
    for bytes in [
        &b""[..],
        b"GGUF",
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\x01\0\0\0\0\0\0\0",
        b"not a model at all",
    ] {
        std::fs::write(run.path().join("broken.gguf"), bytes).unwrap();
        refused(&run, &["broken.gguf"]);
    }
}

#[test]
fn a_bad_scenario_line_is_named() {
    let run = SmallRun::new(&[("environment.scenarios", "scenarios.jsonl".into())]);
    let good = r#"{"id":"a","kind":"k","prompt":"p","data":{},"split":"train"}"#;
    std::fs::write(run.path().join("scenarios.jsonl"), format!("{good}\n{{\"id\":\n")).unwrap();
    refused(&run, &["scenarios.jsonl", "2"]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = SmallRun::new(&[]);
    let output = trainyard()
        .args(["serve", "--listen", &address, "--model"])
        .arg(run.path().join("model"))
        .output()
        .unwrap();
    usage_error(&output, &[&address, "hint:"]);
    let store = run.path().join("store.db");
    let output = trainyard()
        .args([
            "proxy",
            "--upstream",
            "http://127.0.0.1:9",
            "--listen",
            &address,
            "--store",
        ])
        .arg(&store)
        .output()
        .unwrap();
    usage_error(&output, &[&address, "hint:"]);
    assert!(!store.try_exists().unwrap(), "a store was written");
}

#[test]
fn a_wrong_adapter_or_scenario_file_is_named_before_anything_starts() {
    let run = SmallRun::new(&[]);
    let store = run.path().join("played.db");
    for command in ["eval", "rollout"] {
        let refused = |adapter: &Path, words: &[&str]| {
            let mut trainyard = trainyard();
            trainyard
                .arg(command)
                .arg("-c")
                .arg(run.config())
                .arg("--store")
                .arg(&store);
            usage_error(&trainyard.arg("--adapter").arg(adapter).output().unwrap(), words);
            assert!(!store.try_exists().unwrap(), "a store was written");
        };
        refused(&run.path().join("none"), &["none", "hint:"]);
        refused(&run.path().join("model"), &["adapter_config.json", "hint:"]);
    }
    let scenarios = run.path().join("scenarios.jsonl");
    let all = NwsEnvironment::new(7).scenarios().unwrap();
    let training = all.iter().find(|scenario| scenario.split == Split::Train).unwrap();
    std::fs::write(&scenarios, serde_json::to_string(training).unwrap()).unwrap();
    let mut eval = trainyard();
    eval.arg("eval").arg("-c").arg(run.config()).arg("--store").arg(&store);
    eval.arg("--scenarios").arg(&scenarios);
    usage_error(&eval.output().unwrap(), &["held_out", "hint:"]);
    assert!(!store.try_exists().unwrap(), "a store was written");
}

/// A run that was started and has said on standard error that it is past `word`.
fn start_until(run: &SmallRun, arguments: &[&str], word: &str) -> Child {
    let mut child = trainyard()
        .args(arguments)
        .current_dir(run.path())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut log = String::new();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(
            reader.read_line(&mut line).unwrap() > 0,
            "the run ended before '{word}': {log}"
        );
        log.push_str(&line);
        if line.contains(word) {
            break;
        }
    }
    // Keep reading, so that the run never blocks on a full pipe.
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    child
}

fn signal(child: &Child, name: &str) {
    assert!(
        Command::new("kill")
            .args([name, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Processes whose command line holds the run's folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let needle = folder.to_string_lossy().into_owned();
    let commands = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let text = format!(
            "{} {}",
            String::from_utf8_lossy(&command),
            String::from_utf8_lossy(&environment)
        );
        text.contains(&needle)
            .then(|| String::from_utf8_lossy(&command).replace('\0', " "))
    });
    commands.collect()
}

fn gone_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    None
}

fn long_run() -> SmallRun {
    SmallRun::new(&[("trainer.steps", 3.into()), ("evaluation.scenarios", 2.into())])
}

#[test]
fn an_interrupt_ends_everything_and_the_run_resumes() {
    let run = long_run();
    let mut child = start_until(&run, &["train", "-c", "run.toml"], "step   1/3");
    signal(&child, "-INT");
    assert_eq!(
        gone_within(&mut child, Duration::from_secs(5)),
        Some(1),
        "it did not end in 5 seconds"
    );
    assert_eq!(
        processes_of(run.path()),
        Vec::<String>::new(),
        "processes were left behind"
    );
    resume_and_check(&run);
}

#[test]
fn a_killed_run_resumes_at_the_step_it_lost() {
    let run = long_run();
    let mut child = start_until(&run, &["train", "-c", "run.toml"], "step   1/3");
    signal(&child, "-KILL");
    child.wait().unwrap();
    resume_and_check(&run);
}

fn resume_and_check(run: &SmallRun) {
    let output = trainyard()
        .args(["train", "--resume"])
        .current_dir(run.path())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    assert!(log.contains("resuming") && !log.contains("step   1/3"), "{log}");
    let rows = std::fs::read_to_string(run.run_folder().join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3]);
}

#[test]
fn a_server_that_is_told_to_stop_stops() {
    let run = SmallRun::new(&[]);
    let mut child = trainyard()
        .args(["serve", "--listen", "127.0.0.1:0", "--model"])
        .arg(run.path().join("model"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert!(
        first.starts_with("http://127.0.0.1:"),
        "the first line is the address: {first}"
    );
    signal(&child, "-TERM");
    assert_eq!(gone_within(&mut child, Duration::from_secs(5)), Some(0));
    std::io::stdout().flush().unwrap();
}
