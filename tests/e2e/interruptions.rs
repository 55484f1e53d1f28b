//! What ends a run from outside: Ctrl-C, `kill -9`, another start. Nothing is left behind, and what is on disk goes on.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::binary::trainyard;
use harness::small_run::SmallRun;
use rusqlite::Connection;
use serde_json::Value;

use crate::failures::usage_error;

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
    // Agents end when the proxy is gone, and tool servers when their input is.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !processes_of(run.path()).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", processes_of(run.path()));
        std::thread::park_timeout(Duration::from_millis(50));
    }
    resume_and_check(&run);
}

#[test]
fn a_run_killed_right_after_its_checkpoint_settles_the_step() {
    let run = long_run();
    let mut child = start_until(&run, &["train", "-c", "run.toml"], "step   1/3");
    signal(&child, "-KILL");
    child.wait().unwrap();
    // As if it had died a moment earlier: between the checkpoint's renames, and before store and metrics heard of the step.
    let folder = run.run_folder();
    std::fs::rename(folder.join("checkpoint"), folder.join("checkpoint.previous")).unwrap();
    std::fs::remove_file(folder.join("metrics.jsonl")).unwrap();
    let store = Connection::open(folder.join("trajectories.db")).unwrap();
    let taken = store.execute("DELETE FROM acknowledgements", []).unwrap();
    assert_eq!(taken, 2, "the groups of a step");
    store.execute("DELETE FROM pass_rates", []).unwrap();
    drop(store);
    resume_and_check(&run);
    let store = Connection::open(folder.join("trajectories.db")).unwrap();
    let count = |sql: &str| store.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM acknowledgements"), 3 * 2);
    assert_eq!(count("SELECT sum(attempts) FROM pass_rates"), 3 * 2 * 4);
}

#[test]
fn a_run_that_is_going_on_is_not_resumed_beside_itself() {
    let run = long_run();
    let mut child = start_until(&run, &["train", "-c", "run.toml"], "step   1/3");
    let output = trainyard()
        .args(["train", "--resume"])
        .current_dir(run.path())
        .output()
        .unwrap();
    usage_error(&output, &["another trainyard records to", "trajectories.db"]);
    let listed = trainyard()
        .args(["log", "ls", "--store"])
        .arg(run.run_folder().join("trajectories.db"))
        .output()
        .unwrap();
    assert!(listed.status.success(), "reading is allowed");
    signal(&child, "-INT");
    assert_eq!(gone_within(&mut child, Duration::from_secs(5)), Some(1));
}

#[test]
fn an_interrupt_during_the_start_ends_it() {
    let run = long_run();
    let mut child = start_until(&run, &["train", "-c", "run.toml"], "loading");
    signal(&child, "-INT");
    signal(&child, "-INT");
    assert_eq!(gone_within(&mut child, Duration::from_secs(5)), Some(1));
    assert_eq!(processes_of(run.path()), Vec::<String>::new());
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
