use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::launcher::test_support::{Script, assert_ended};

fn input() -> AgentInput {
    AgentInput {
        base_url: "http://127.0.0.1:9/e/abc/v1".into(),
        api_key: "ty-abc-secret".into(),
        mcp_config: r#"{"mcpServers":{}}"#.into(),
        prompt: "How warm is it?\n{api_key}".into(),
        scenario: r#"{"id":"s1"}"#.into(),
    }
}

fn shell(script: &str) -> AgentConfig {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    AgentConfig {
        time_limit: Duration::from_secs(20),
        ..AgentConfig::new(command)
    }
}

async fn run(config: AgentConfig) -> AgentReport {
    AgentRunner::new(config)
        .unwrap()
        .run(&input(), &CancellationToken::new())
        .await
        .unwrap()
}

/// The process number that an agent printed as its only word.
fn printed_pid(report: &AgentReport) -> u32 {
    report
        .stdout
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("no process number in {report:?}"))
}

#[tokio::test]
async fn the_agent_learns_of_its_episode_from_outside_only() {
    let mut config = shell(
        "printf '%s\\n' \"$OPENAI_BASE_URL\" \"$OPENAI_API_KEY\" \"$ANTHROPIC_BASE_URL\" \"$ANTHROPIC_API_KEY\" \
         \"$TRAINYARD_SCENARIO\" \"$KEY\" \"[$CARGO_MANIFEST_DIR]\"; cat \"$TRAINYARD_MCP_CONFIG\"; echo; ls; cat; pwd >&2",
    );
    config.env = BTreeMap::from([("KEY".to_owned(), "{api_key}!".to_owned())]);
    let report = run(config).await;
    assert_eq!(report.end, AgentEnd::Exited(Exit::Code(0)));
    let expected = "http://127.0.0.1:9/e/abc/v1\nty-abc-secret\nhttp://127.0.0.1:9/e/abc\nty-abc-secret\n{\"id\":\"s1\"}\n\
        ty-abc-secret!\n[]\n{\"mcpServers\":{}}\nmcp.json\nHow warm is it?\n{api_key}";
    assert_eq!(report.stdout, expected);
    let directory = report.stderr.trim();
    assert!(
        directory.starts_with('/') && !Path::new(directory).try_exists().unwrap(),
        "{directory} is gone"
    );
}

#[tokio::test]
async fn placeholders_are_filled_in_one_pass_and_relative_files_found() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("agent.sh"), "printf '%s|' \"$@\"").unwrap();
    let command = [
        "sh",
        "agent.sh",
        "{prompt}",
        "{scenario}",
        "{other}",
        "--mcp={mcp_config}",
    ]
    .map(str::to_owned)
    .to_vec();
    let report = run(AgentConfig {
        working_directory: Some(folder.path().into()),
        ..AgentConfig::new(command)
    })
    .await;
    assert!(
        report
            .stdout
            .starts_with("How warm is it?\n{api_key}|{\"id\":\"s1\"}|{other}|--mcp=/"),
        "{report:?}"
    );
    assert!(report.stdout.ends_with("/mcp.json|"), "{report:?}");
}

#[tokio::test]
async fn ends_are_told_apart() {
    assert_eq!(
        run(shell("echo oops >&2; exit 3")).await.end,
        AgentEnd::Exited(Exit::Code(3))
    );
    assert_eq!(run(shell("kill -9 $$")).await.end, AgentEnd::Exited(Exit::Signal(9)));
    let garbage = run(shell("printf '\\377\\000\\376'")).await;
    assert_eq!(
        (garbage.end, garbage.stdout.chars().count()),
        (AgentEnd::Exited(Exit::Code(0)), 3)
    );
}

#[tokio::test]
async fn a_hanging_agent_ends_with_all_it_started() {
    // Neither the agent nor its child minds being asked.
    let mut config = shell("trap '' TERM; sleep 600 & echo $!; wait; sleep 600");
    config.time_limit = Duration::from_secs(1);
    let report = run(config).await;
    assert_eq!(report.end, AgentEnd::TimedOut);
    assert!(report.duration < Duration::from_secs(4), "{report:?}");
    assert_ended(printed_pid(&report));
}

#[tokio::test]
async fn what_an_agent_leaves_behind_ends_with_it() {
    let started = Instant::now();
    let report = run(shell("sleep 600 & echo $!")).await;
    assert_eq!(report.end, AgentEnd::Exited(Exit::Code(0)));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_ended(printed_pid(&report));
}

#[tokio::test]
async fn output_is_bounded() {
    let mut config = shell("yes trainyard");
    config.output_limit = 10_000;
    let report = run(config).await;
    assert_eq!((report.end, report.stdout.len()), (AgentEnd::TooMuchOutput, 10_000));
}

#[tokio::test]
async fn cancelling_ends_the_agent() {
    let cancel = CancellationToken::new();
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let mut config = shell("sleep 600 & echo $!; touch \"$STARTED\"; wait");
    config.env = BTreeMap::from([("STARTED".to_owned(), started.display().to_string())]);
    let runner = AgentRunner::new(config).unwrap();
    let (report, cancelled_at) = tokio::join!(async { runner.run(&input(), &cancel).await.unwrap() }, async {
        while !started.try_exists().unwrap() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        Instant::now()
    });
    assert!(cancelled_at.elapsed() < Duration::from_secs(3), "{report:?}");
    assert_eq!(report.end, AgentEnd::Cancelled);
    assert_ended(printed_pid(&report));
}

#[tokio::test]
async fn a_command_that_cannot_start_is_named() {
    assert!(AgentRunner::new(AgentConfig::new(Vec::new())).is_err());
    let runner = AgentRunner::new(AgentConfig::new(vec!["no-such-agent".into()])).unwrap();
    let error = runner.run(&input(), &CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("`no-such-agent`"), "{error}");
}

#[tokio::test]
async fn a_forked_agent_sees_what_a_plain_one_sees() {
    let script = Script::new(
        "import os, sys, json\n\
         print(sys.argv[1:], os.environ['OPENAI_BASE_URL'], json.loads(os.environ['TRAINYARD_SCENARIO']), sorted(os.listdir()))\n\
         print(sys.stdin.read(), __name__, os.path.basename(__file__), sys.path[0] == os.path.dirname(__file__), os.getpgid(0) == os.getpid())\n\
         print('CARGO_MANIFEST_DIR' in os.environ, file=sys.stderr)\n\
         sys.exit(7)\n",
    );
    let mut reports = Vec::new();
    for launcher in [LauncherKind::Plain, LauncherKind::Fork { preload: Vec::new() }] {
        let mut config = AgentConfig::new(script.command());
        config.command.push("{prompt}".into());
        config.launcher = launcher;
        reports.push(run(config).await);
    }
    assert_eq!(reports[0].end, AgentEnd::Exited(Exit::Code(7)));
    assert_eq!(
        (&reports[0].end, &reports[0].stdout, &reports[0].stderr),
        (&reports[1].end, &reports[1].stdout, &reports[1].stderr)
    );
    assert!(reports[0].stderr.contains("False"), "{reports:?}");
}
