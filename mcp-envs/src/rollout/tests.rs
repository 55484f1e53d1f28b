//! The driver against a fake of the proxy's routes, with real processes.

use std::sync::Mutex;

use trajectory::{GroupId, Split};

use super::*;
use crate::agent::LauncherKind;
use crate::environment::EpisodeView;
use crate::error::EnvironmentError;
use crate::launcher::test_support::{Script, assert_ended};

mod fake_proxy;
use fake_proxy::FakeProxy;

/// Does what its question says.
const AGENT: &str = r#"
import http.client, os, subprocess, sys, time, urllib.parse

def post(path):
    url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(url.hostname, url.port)
    connection.request("POST", url.path + path, "{}", {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read().decode()

question = sys.stdin.read()
if question in ("answer", "panic", "nan"):
    print(post("/chat/completions"))
elif question == "print":
    post("/chat/completions?silent")
    print("42")
elif question == "crash":
    post("/chat/completions")
    raise RuntimeError("agent bug")
elif question == "hang":
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
    post("/pid/%d" % os.getpid())
    time.sleep(600)
elif question == "garbage":
    sys.stdout.buffer.write(os.urandom(5000))
elif question == "flood":
    while True:
        print("x" * 1000)
elif question in ("upstream", "refused"):
    status, body = post("/chat/completions?" + question)
    assert status == 200, body
elif question in ("no_tools", "no_tools_but_answer"):
    post("/no_tools")
    post("/chat/completions")
    assert question == "no_tools_but_answer"
elif question == "tool":
    post("/chat/completions")
    post("/broken_tool")
    raise RuntimeError("no tools")
"#;

/// Right if the answer is 42; the scenario's kind makes the verifier misbehave.
struct FortyTwo;

impl Environment for FortyTwo {
    fn name(&self) -> &str {
        "forty_two"
    }

    fn scenarios(&self) -> Result<Vec<Scenario>, EnvironmentError> {
        Ok(Vec::new())
    }

    fn score(&self, scenario: &Scenario, episode: &EpisodeView<'_>) -> Reward {
        assert!(scenario.prompt != "panic", "bad verifier");
        let success = u8::from(episode.answer == Some("42") && episode.n_model_calls > 0);
        let reward = if scenario.prompt == "nan" {
            f64::NAN
        } else {
            f64::from(success)
        };
        Reward {
            reward,
            metrics: Map::from_iter([("success".to_owned(), json!(success))]),
        }
    }
}

fn plans(questions: &[&str]) -> Vec<EpisodePlan> {
    let plan = |question: &&str| EpisodePlan {
        scenario: Scenario {
            id: format!("scenario-{question}"),
            kind: "test".into(),
            prompt: (*question).into(),
            data: json!({"answer": "hidden"}),
            split: Split::Train,
        },
        group: Some(GroupId::from("g1")),
        split: Split::Train,
        overrides: Map::from_iter([("temperature".to_owned(), json!(1.0))]),
        upstream: None,
    };
    questions.iter().map(plan).collect()
}

fn driver(proxy: &FakeProxy, script: &Script, launcher: LauncherKind, time_limit: Duration) -> RolloutDriver {
    let agent = AgentConfig {
        launcher,
        time_limit,
        output_limit: 100_000,
        ..AgentConfig::new(script.command())
    };
    RolloutDriver::new(RolloutConfig {
        proxy_url: proxy.url(),
        token: Some("control".into()),
        agent,
        concurrency: 4,
    })
    .unwrap()
}

async fn check_failures(launcher: LauncherKind) {
    let proxy = FakeProxy::start().await;
    let script = Script::new(AGENT);
    let patient = driver(&proxy, &script, launcher.clone(), Duration::from_secs(60));
    let strict = driver(&proxy, &script, launcher, Duration::from_secs(1));
    let expected: [(&str, Option<(FailureCause, &str)>); 14] = [
        ("answer", None),
        (
            "crash",
            Some((FailureCause::Agent, "exited with code 1: RuntimeError: agent bug")),
        ),
        ("garbage", Some((FailureCause::Agent, "never called the model"))),
        (
            "flood",
            Some((FailureCause::Agent, "more than its limit of 100000 bytes")),
        ),
        ("silent", Some((FailureCause::Agent, "never called the model"))),
        ("upstream", Some((FailureCause::Upstream, "status 503: engine is gone"))),
        (
            "refused",
            Some((FailureCause::Agent, "exited with code 1: AssertionError")),
        ),
        (
            "tool",
            Some((FailureCause::ToolServer, "tool `forecast` of server `nws`: timed out")),
        ),
        (
            "no_tools",
            Some((FailureCause::ToolServer, "server `nws` did not start")),
        ),
        (
            "no_tools_but_answer",
            Some((FailureCause::ToolServer, "server `nws` did not start")),
        ),
        ("panic", Some((FailureCause::Reward, "bad verifier"))),
        ("nan", Some((FailureCause::Reward, "NaN"))),
        ("print", None),
        ("hang", Some((FailureCause::Timeout, "longer than its limit of 1 s"))),
    ];
    let questions: Vec<&str> = expected.iter().map(|(question, _)| *question).collect();
    let heard = Mutex::new(Vec::new());
    let on_done = |outcome: &EpisodeOutcome| heard.lock().unwrap().push(outcome.plan);
    let (hanging, others) = (plans(&["hang"]), plans(&questions[..13]));
    // One group, two drivers: the one that hangs must not make the others hurry on a busy machine.
    let (mut outcomes, hung) = tokio::join!(
        patient.run(others, Arc::new(FortyTwo), on_done, CancellationToken::new()),
        strict.run(hanging, Arc::new(FortyTwo), |_| (), CancellationToken::new()),
    );
    outcomes.extend(hung);

    let mut heard = heard.into_inner().unwrap();
    heard.sort_unstable();
    assert_eq!(heard, (0..13).collect::<Vec<_>>());
    for (outcome, (question, failure)) in outcomes.iter().zip(&expected) {
        let closed = proxy.close_of(outcome.episode_id.as_ref().unwrap());
        match failure {
            None => {
                assert_eq!(
                    (outcome.reward, outcome.success(), &outcome.failure),
                    (Some(1.0), true, &None),
                    "{question}: {outcome:?}"
                );
                assert_eq!(
                    (closed.reward, closed.metrics["success"].as_u64()),
                    (Some(1.0), Some(1)),
                    "{question}"
                );
                assert_eq!(closed.metrics["n_model_calls"], 1);
            }
            Some((cause, message)) => {
                let found = outcome
                    .failure
                    .as_ref()
                    .unwrap_or_else(|| panic!("{question} did not fail: {outcome:?}"));
                assert_eq!(found.cause, *cause, "{question}: {found:?}");
                assert!(found.message.contains(message), "{question}: {found:?}");
                // Where the agent came through, the driver leaves it to the proxy to name what it saw.
                let closed_failure = (*question != "no_tools_but_answer").then_some(found);
                assert_eq!(closed.failure.as_ref(), closed_failure, "{question}");
                assert_eq!(outcome.reward, None, "{question}");
                assert!(!outcome.success());
            }
        }
    }
    let opened = proxy.opened();
    assert!(
        opened
            .iter()
            .all(|body| body["group"] == "g1" && body["split"] == "train" && body["overrides"]["temperature"] == 1.0)
    );
    assert!(
        opened.iter().all(|body| !body.to_string().contains("hidden")),
        "{opened:?}"
    );
    proxy.pids().into_iter().for_each(assert_ended);
}

#[tokio::test]
async fn an_episode_that_fails_has_one_named_cause_and_the_others_go_on() {
    check_failures(LauncherKind::Plain).await;
}

#[tokio::test]
async fn the_same_with_forked_agents() {
    check_failures(LauncherKind::Fork { preload: Vec::new() }).await;
}

#[tokio::test]
async fn cancelling_ends_everything_within_seconds() {
    for launcher in [LauncherKind::Plain, LauncherKind::Fork { preload: Vec::new() }] {
        let proxy = FakeProxy::start().await;
        let script = Script::new(AGENT);
        let driver = driver(&proxy, &script, launcher, Duration::from_secs(600));
        let cancel = CancellationToken::new();
        let run = driver.run(plans(&["hang"; 6]), Arc::new(FortyTwo), |_| (), cancel.clone());
        let (outcomes, cancelled_at) = tokio::join!(run, async {
            proxy.wait_for_pids(4).await;
            cancel.cancel();
            Instant::now()
        });
        assert!(cancelled_at.elapsed() < Duration::from_secs(3));
        assert!(
            outcomes
                .iter()
                .all(|outcome| outcome.cancelled && outcome.reward.is_none() && outcome.failure.is_none())
        );
        let opened: Vec<_> = outcomes
            .iter()
            .filter_map(|outcome| outcome.episode_id.as_ref())
            .collect();
        assert_eq!(opened.len(), 4, "two were never started");
        for id in opened {
            assert_eq!(proxy.close_of(id).stop_reason.as_deref(), Some("cancelled"));
        }
        proxy.pids().into_iter().for_each(assert_ended);
    }
}

#[tokio::test]
async fn a_proxy_that_is_gone_fails_the_episode_with_its_name() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let agent = AgentConfig::new(vec!["true".into()]);
    let driver = RolloutDriver::new(RolloutConfig {
        proxy_url,
        token: None,
        agent,
        concurrency: 1,
    })
    .unwrap();
    let outcomes = driver
        .run(plans(&["answer"]), Arc::new(FortyTwo), |_| (), CancellationToken::new())
        .await;
    let failure = outcomes[0].failure.as_ref().unwrap();
    assert_eq!(
        (failure.cause, outcomes[0].episode_id.is_none()),
        (FailureCause::Proxy, true)
    );
    assert!(failure.message.contains("/api/episodes"), "{failure:?}");
}
