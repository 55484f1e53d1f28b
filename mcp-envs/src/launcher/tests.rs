use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::test_support::{Script, assert_ended};
use super::*;
use crate::agent::{AgentConfig, AgentEnd, AgentInput, AgentReport, AgentRunner};

fn forked(script: &Script) -> AgentConfig {
    AgentConfig {
        launcher: LauncherKind::Fork { preload: Vec::new() },
        time_limit: Duration::from_secs(20),
        env: BTreeMap::from([("PYTHONPATH".to_owned(), script.packages().display().to_string())]),
        ..AgentConfig::new(script.command())
    }
}

fn input(base_url: &str) -> AgentInput {
    AgentInput {
        base_url: base_url.into(),
        api_key: "k".into(),
        mcp_config: "{}".into(),
        prompt: "q".into(),
        scenario: "{}".into(),
    }
}

async fn run(runner: &AgentRunner, base_url: &str) -> AgentReport {
    runner.run(&input(base_url), &CancellationToken::new()).await.unwrap()
}

#[tokio::test]
async fn modules_are_imported_once_unless_an_episode_could_tell() {
    let script = Script::new(
        "import os, shared, reads, threads, beside\n\
         print(shared.PID != os.getpid(), reads.URL, beside.URL, threads.PID == os.getpid())\n\
         import late\n\
         print(late.PID != os.getpid())\n",
    );
    script.package("shared", "import os\nPID = os.getpid()\n");
    script.package("reads", "import os\nURL = os.getenv('OPENAI_BASE_URL')\n");
    script.package("threads", "import os, threading, time\nPID = os.getpid()\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n");
    script.beside("beside", "import os\nURL = os.environ['OPENAI_BASE_URL']\n");
    script.package("late", "import os\nPID = os.getpid()\n");
    let runner = AgentRunner::new(forked(&script)).unwrap();
    runner.prepare().await.unwrap();
    for base_url in ["http://one", "http://two"] {
        let report = run(&runner, base_url).await;
        assert_eq!(
            report.stdout.lines().next(),
            Some(&*format!("True {base_url} {base_url} True")),
            "{report:?}"
        );
    }
}

#[tokio::test]
async fn late_imports_are_learnt_from_earlier_runs() {
    let script = Script::new("import os\ndef main():\n    import late\n    print(late.PID != os.getpid())\nmain()\n");
    script.package("late", "import os\nPID = os.getpid()\n");
    let runner = AgentRunner::new(forked(&script)).unwrap();
    assert_eq!(run(&runner, "http://one").await.stdout, "False\n");
    // The server learns in its own time.
    for _ in 0..50 {
        if run(&runner, "http://two").await.stdout == "True\n" {
            return;
        }
    }
    panic!("`late` is still imported by each run");
}

#[tokio::test]
async fn forked_agents_end_as_plain_ones_do() {
    for (body, end, stderr) in [
        ("raise ValueError('wrong')", Exit::Code(1), "ValueError: wrong"),
        ("sys.exit('no answer')", Exit::Code(1), "no answer"),
        ("os.kill(os.getpid(), 9)", Exit::Signal(9), ""),
        (
            "import atexit; atexit.register(print, 'bye', file=sys.stderr)",
            Exit::Code(0),
            "bye",
        ),
        ("this is no python", Exit::Code(1), "SyntaxError: invalid syntax"),
    ] {
        let script = Script::new(&format!("import os, sys\n{body}\n"));
        let report = AgentRunner::new(forked(&script))
            .unwrap()
            .run(&input("u"), &CancellationToken::new())
            .await;
        match report {
            Ok(report) => {
                assert_eq!(report.end, AgentEnd::Exited(end), "{body}: {report:?}");
                assert!(report.stderr.trim_end().ends_with(stderr), "{body}: {report:?}");
                assert!(
                    !report.stderr.contains("runpy"),
                    "the launcher does not show: {report:?}"
                );
            }
            // A script that can't be parsed can't be prepared.
            Err(error) => assert!(
                stderr.starts_with("SyntaxError") && error.to_string().contains("invalid syntax"),
                "{error}"
            ),
        }
    }
}

#[tokio::test]
async fn a_forked_agent_that_hangs_ends_with_all_it_started() {
    let script = Script::new(
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)\n",
    );
    let mut config = forked(&script);
    config.time_limit = Duration::from_secs(1);
    let runner = AgentRunner::new(config).unwrap();
    runner.prepare().await.unwrap();
    let report = run(&runner, "u").await;
    assert_eq!(report.end, AgentEnd::TimedOut);
    assert_ended(report.stdout.trim().parse().unwrap());
    // The server is still good for the next.
    assert_eq!(run(&runner, "u").await.end, AgentEnd::TimedOut);
}

#[tokio::test]
async fn many_forked_agents_run_at_once() {
    let script = Script::new("import os, sys\nprint(os.environ['OPENAI_BASE_URL'] * 1000)\n");
    let runner = AgentRunner::new(forked(&script)).unwrap();
    let urls: Vec<String> = (0..16).map(|i| format!("http://{i}/")).collect();
    let reports = futures_util::future::join_all(urls.iter().map(|url| run(&runner, url))).await;
    for (url, report) in urls.iter().zip(reports) {
        assert_eq!(report.end, AgentEnd::Exited(Exit::Code(0)));
        assert_eq!(report.stdout.trim_end(), url.repeat(1000));
    }
}

#[tokio::test]
async fn what_cannot_be_forked_is_refused_with_a_way_out() {
    for command in [
        &["sh", "-c", "true"][..],
        &["python3", "-m", "agent"],
        &["python3"],
        &["python3", "-c", "pass"],
    ] {
        let mut config = AgentConfig::new(command.iter().map(|word| (*word).to_owned()).collect());
        config.launcher = LauncherKind::Fork { preload: Vec::new() };
        let error = AgentRunner::new(config).unwrap().prepare().await.unwrap_err();
        assert!(error.to_string().contains("plain launcher"), "{error}");
    }
    let script = Script::new("pass\n");
    let mut config = forked(&script);
    config.launcher = LauncherKind::Fork {
        preload: vec!["no_such_module".into()],
    };
    let error = AgentRunner::new(config).unwrap().prepare().await.unwrap_err();
    assert!(error.to_string().contains("no_such_module"), "{error}");
}
