//! What a user can get wrong: one clear message, exit code 2, nothing written.

use std::path::Path;
use std::process::Output;

use harness::binary::trainyard;
use harness::small_run::SmallRun;
use mcp_envs::environment::Environment;
use mcp_envs::envs::nws::NwsEnvironment;
use trajectory::Split;

/// Runs to the end and checks that it is a usage error: exit code 2, the words, and no run folder.
fn refused(run: &SmallRun, words: &[&str]) -> String {
    let output = trainyard().args(["train", "-c"]).arg(run.config()).output().unwrap();
    let message = usage_error(&output, words);
    assert!(!run.runs().try_exists().unwrap(), "something was written: {message}");
    message
}

pub(crate) fn usage_error(output: &Output, words: &[&str]) -> String {
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
    let no_facts = r#"{"id":"a","kind":"k","prompt":"p","data":{},"split":"train"}"#;
    std::fs::write(run.path().join("scenarios.jsonl"), "\n{\"id\":\n").unwrap();
    refused(&run, &["scenarios.jsonl:2", "EOF"]);
    std::fs::write(run.path().join("scenarios.jsonl"), format!("\n\n{no_facts}\n")).unwrap();
    refused(&run, &["scenarios.jsonl:3", "`a`", "data"]);
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
    let run = SmallRun::new(&[("proxy.listen", address.as_str().into())]);
    refused(&run, &[&address, "hint:"]);
}

#[test]
fn a_setting_that_makes_no_sense_is_named() {
    let server: toml::Value = toml::from_str::<toml::Table>("name = \"a/b\"\ncommand = [\"true\"]")
        .unwrap()
        .into();
    for (key, value, words) in [
        ("trainer.clip_high", (-1.0).into(), ["clip_high", "-1"]),
        ("engine.max_batch_tokens", 3.into(), ["max_batch_tokens", "at least"]),
        (
            "agent.command",
            vec!["no-such-agent"].into(),
            ["no-such-agent", "installed"],
        ),
        ("mcp_servers", toml::Value::Array(vec![server]), ["a/b", "name"]),
    ] {
        let run = SmallRun::new(&[(key, value)]);
        refused(&run, &words);
    }
}

#[test]
fn scenarios_of_one_split_alone_are_refused() {
    let run = SmallRun::new(&[("environment.scenarios", "scenarios.jsonl".into())]);
    let all = NwsEnvironment::new(7).scenarios().unwrap();
    for (split, missing) in [(Split::Train, "held_out"), (Split::HeldOut, "train")] {
        let one = all.iter().find(|scenario| scenario.split == split).unwrap();
        std::fs::write(run.path().join("scenarios.jsonl"), serde_json::to_string(one).unwrap()).unwrap();
        refused(&run, &[&format!("\"{missing}\""), "hint:"]);
    }
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
