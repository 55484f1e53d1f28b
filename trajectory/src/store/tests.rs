use std::process::Command;
use std::sync::Barrier;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;
use crate::call::{CallStatus, CallTimings, Endpoint, ModelCall, SampledChoice, ToolCall, Usage};
use crate::episode::{CloseEpisode, Failure, FailureCause, NewEpisode};
use crate::id::{CallId, EpisodeId, ToolCallId};

struct World {
    store: Store,
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("trajectories.db")).unwrap();
        Self { store, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trajectories.db")
    }

    fn reopen(self) -> Self {
        let Self { store, folder } = self;
        drop(store);
        let store = Store::open(&folder.path().join("trajectories.db")).unwrap();
        Self { store, folder }
    }

    /// Opens an episode of a group.
    fn open(&self, group: &str) -> EpisodeId {
        let new = NewEpisode {
            scenario_id: Some("rain".into()),
            group_id: Some(group.into()),
            split: Some(Split::Train),
            ..NewEpisode::default()
        };
        self.store.open_episode(new).unwrap().id
    }

    /// Plays an episode of a group to its end with one call of policy version 1.
    fn play(&self, group: &str, reward: f64) -> EpisodeId {
        let id = self.open(group);
        self.store.append_call(call(&id)).unwrap();
        self.close(
            &id,
            CloseEpisode {
                reward: Some(reward),
                ..CloseEpisode::default()
            },
        );
        id
    }

    fn close(&self, id: &EpisodeId, close: CloseEpisode) {
        self.store.close_episode(id, close).unwrap();
    }

    /// Groups that are ready, and what was left out.
    fn ready(&self, filter: &ReadyFilter) -> (Vec<String>, Vec<(String, usize)>) {
        let ready = self.store.ready_groups(filter).unwrap();
        (
            ready.groups.iter().map(|group| group.group_id.to_string()).collect(),
            ready.left_out.into_iter().collect(),
        )
    }

    fn check_ready(&self, filter: &ReadyFilter, groups: &[&str], left_out: &[(&str, usize)]) {
        let left_out: Vec<(String, usize)> = left_out.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect();
        assert_eq!(
            self.ready(filter),
            (groups.iter().map(|id| (*id).to_owned()).collect(), left_out)
        );
    }
}

fn call(episode_id: &EpisodeId) -> ModelCall {
    ModelCall {
        id: CallId::new(),
        episode_id: episode_id.clone(),
        sequence: 0,
        endpoint: Endpoint::ChatCompletions,
        model: "gpt-4o".into(),
        upstream_model: "policy@1".into(),
        request: json!({"zebra": 1, "messages": [{"role": "user", "content": "ü"}], "apple": 0.1}),
        response: Some(json!({"choices": [{"message": {"content": "it rains"}}]})),
        prompt_token_ids: Some(vec![0, 1, u32::MAX]),
        choices: vec![SampledChoice {
            index: 0,
            token_ids: vec![7, 8],
            behaviour_logprobs: vec![-0.1, f32::MIN_POSITIVE],
            finish_reason: Some("stop".into()),
        }],
        policy_version: Some(PolicyVersion(1)),
        sampling: json!({"temperature": 1.0}),
        grammar_constrained: true,
        status: CallStatus::Complete,
        upstream_status: Some(200),
        error: None,
        usage: Some(Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
        }),
        timings: CallTimings {
            received_at_ms: 12,
            first_token_ms: Some(3),
            total_ms: 40,
        },
    }
}

fn tool_call(episode_id: &EpisodeId) -> ToolCall {
    ToolCall {
        id: ToolCallId::new(),
        episode_id: episode_id.clone(),
        sequence: 0,
        server: "nws".into(),
        tool: "forecast".into(),
        arguments: json!({"latitude": 39.7}),
        result: Some(json!({"content": []})),
        is_error: false,
        error: None,
        started_at_ms: 13,
        duration_ms: 5,
    }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// The message and those of its causes.
fn say(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[test]
fn everything_comes_back_as_it_went_in() {
    let world = World::new();
    let new = NewEpisode {
        scenario_id: Some("rain".into()),
        group_id: Some("g".into()),
        split: Some(Split::HeldOut),
        metadata: object(json!({"z": 1, "a": [null]})),
        overrides: object(json!({"temperature": 0})),
        upstream: Some("teacher".into()),
        agent_command: Some("python agent.py".into()),
        implicit: true,
    };
    let opened = world.store.open_episode(new).unwrap();
    assert_eq!(opened.secret.len(), 32);
    assert_eq!(world.store.episode(&opened.id).unwrap().unwrap(), opened);

    let mut several = call(&opened.id);
    several.choices.push(SampledChoice {
        index: 1,
        token_ids: vec![9],
        ..SampledChoice::default()
    });
    let mut bare = call(&opened.id);
    bare.prompt_token_ids = None;
    bare.choices.clear();
    (bare.response, bare.usage, bare.policy_version, bare.upstream_status) = (None, None, None, None);
    bare.timings.first_token_ms = None;
    (bare.status, bare.error) = (CallStatus::Failed, Some("no route".into()));
    let tool = tool_call(&opened.id);
    assert_eq!(world.store.append_call(several.clone()).unwrap(), 1);
    assert_eq!(world.store.append_call(bare.clone()).unwrap(), 2);
    assert_eq!(world.store.append_tool_call(tool.clone()).unwrap(), 1);
    assert_eq!(world.store.episode_of_call(&bare.id).unwrap(), Some(opened.id.clone()));
    assert_eq!(world.store.episode_of_call(&CallId::new()).unwrap(), None);
    let close = CloseEpisode {
        stop_reason: Some("answered".into()),
        failure: Some(Failure {
            cause: FailureCause::ToolServer,
            message: "gone".into(),
        }),
        reward: Some(0.1 + 0.2),
        metrics: object(json!({"success": 1})),
    };
    let closed = world.store.close_episode(&opened.id, close).unwrap();

    let world = world.reopen();
    let record = world.store.record(&opened.id).unwrap().unwrap();
    assert_eq!(record.episode, closed);
    assert_eq!(record.episode.reward, Some(0.1 + 0.2));
    assert_eq!(record.episode.failure.as_ref().unwrap().cause, FailureCause::ToolServer);
    (several.sequence, bare.sequence) = (1, 2);
    assert_eq!(record.calls, vec![several, bare]);
    assert_eq!(
        record.calls[0].request.to_string(),
        call(&opened.id).request.to_string(),
        "key order is kept"
    );
    assert_eq!(record.tool_calls, vec![ToolCall { sequence: 1, ..tool }]);
    assert_eq!(record.answer().as_deref(), Some("it rains"));
    assert_eq!(world.store.record(&EpisodeId::new()).unwrap(), None);
}

#[test]
fn a_record_survives_its_json_form() {
    let world = World::new();
    let id = world.play("g", 1.0);
    world.store.append_tool_call(tool_call(&id)).unwrap();
    let mut record = world.store.record(&id).unwrap().unwrap();
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains(&record.episode.secret));
    record.episode.secret.clear();
    assert_eq!(serde_json::from_str::<crate::EpisodeRecord>(&text).unwrap(), record);
}

#[test]
fn episodes_are_listed_newest_first_and_filtered() {
    let world = World::new();
    let first = world.play("a", 1.0);
    let second = world.open("a");
    let third = world.open("b");
    let list = |filter: EpisodeFilter| -> Vec<EpisodeId> {
        world
            .store
            .episodes(&filter)
            .unwrap()
            .into_iter()
            .map(|episode| episode.id)
            .collect()
    };
    assert_eq!(
        list(EpisodeFilter::default()),
        [&third, &second, &first].map(Clone::clone)
    );
    assert_eq!(
        list(EpisodeFilter {
            group: Some("a".into()),
            ..Default::default()
        }),
        [second.clone(), first.clone()]
    );
    let open = EpisodeFilter {
        state: Some(EpisodeState::Open),
        limit: Some(1),
        ..Default::default()
    };
    assert_eq!(list(open), [third]);
    assert!(
        list(EpisodeFilter {
            split: Some(Split::HeldOut),
            ..Default::default()
        })
        .is_empty()
    );
    assert_eq!(
        list(EpisodeFilter {
            scenario: Some("rain".into()),
            ..Default::default()
        })
        .len(),
        3
    );
}

#[test]
fn a_reward_is_amended_by_revisions() {
    let world = World::new();
    let id = world.open("g");
    world.close(
        &id,
        CloseEpisode {
            reward: Some(0.5),
            metrics: object(json!({"a": 1})),
            ..Default::default()
        },
    );
    world
        .store
        .set_reward(&id, 0.75, object(json!({"a": 2, "b": 3})), Some("person"))
        .unwrap();
    let episode = world.store.episode(&id).unwrap().unwrap();
    assert_eq!(
        (episode.reward, Value::Object(episode.metrics)),
        (Some(0.75), json!({"a": 2, "b": 3}))
    );
    let revisions = world.store.reward_revisions(&id).unwrap();
    let seen: Vec<_> = revisions
        .iter()
        .map(|one| (one.revision, one.reward, one.source.as_deref()))
        .collect();
    assert_eq!(seen, [(1, 0.5, None), (2, 0.75, Some("person"))]);
    assert!(matches!(
        world.store.set_reward(&id, f64::NAN, Map::new(), None),
        Err(StoreError::InvalidReward(_))
    ));
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let world = World::new();
    let id = world.open("g");
    let bad = CloseEpisode {
        reward: Some(f64::INFINITY),
        ..Default::default()
    };
    assert!(matches!(
        world.store.close_episode(&id, bad),
        Err(StoreError::InvalidReward(_))
    ));
    assert_eq!(
        world.store.episode(&id).unwrap().unwrap().state,
        EpisodeState::Open,
        "the whole write is undone"
    );
    world.close(&id, CloseEpisode::default());
    let again = world.store.close_episode(&id, CloseEpisode::default());
    assert!(matches!(again, Err(StoreError::AlreadyClosed(_))));
    let nobody = EpisodeId::new();
    assert!(matches!(
        world.store.append_call(call(&nobody)),
        Err(StoreError::UnknownEpisode(_))
    ));
    assert!(matches!(
        world.store.taint(&nobody, "x"),
        Err(StoreError::UnknownEpisode(_))
    ));
}

#[test]
fn the_first_taint_stays() {
    let world = World::new();
    let id = world.open("g");
    world.store.taint(&id, "first").unwrap();
    world.store.taint(&id, "second").unwrap();
    assert_eq!(
        world.store.episode(&id).unwrap().unwrap().tainted.as_deref(),
        Some("first")
    );
}

#[test]
fn ready_groups_are_complete_and_each_left_out_one_has_a_reason() {
    let world = World::new();
    let failed = || CloseEpisode {
        failure: Some(Failure {
            cause: FailureCause::Timeout,
            message: "too long".into(),
        }),
        ..Default::default()
    };
    let rewarded = || CloseEpisode {
        reward: Some(1.0),
        ..Default::default()
    };
    world.play("ready", 1.0);
    world.play("ready", 0.0);
    world.play("open", 1.0);
    world.open("open");
    world.play("unrewarded", 1.0);
    world.close(&world.open("unrewarded"), CloseEpisode::default());
    world.store.taint(&world.play("tainted", 1.0), "hole").unwrap();
    world.play("one failed", 1.0);
    let broken = world.open("one failed");
    world.store.taint(&broken, "upstream down").unwrap();
    world.close(&broken, failed());
    world.close(&world.open("all failed"), failed());
    world.close(&world.open("no ids"), rewarded());
    let left_out = [
        ("no_reward", 1),
        ("no_token_ids", 1),
        ("open_episode", 1),
        ("tainted", 1),
        ("too_many_failed", 2),
    ];
    world.check_ready(&ReadyFilter::default(), &["ready"], &left_out);

    let lenient = ReadyFilter {
        max_failed: 1,
        split: Some(Split::Train),
        ..Default::default()
    };
    let ready = world.store.ready_groups(&lenient).unwrap();
    let group = ready
        .groups
        .iter()
        .find(|group| group.group_id.as_str() == "one failed")
        .unwrap();
    assert_eq!((group.n_failed, group.rewards()), (1, vec![1.0]));
    assert_eq!(
        ready.left_out["too_many_failed"], 1,
        "a group without a sound episode is never ready"
    );
    let group = &ready.groups[0];
    assert_eq!(group.rewards(), [1.0, 0.0]);
    assert!(!group.zero_variance());
    assert_eq!(group.scenario_id.as_ref().unwrap().as_str(), "rain");
    assert_eq!(group.episodes[0].trajectories[0].token_ids, [0, 1, u32::MAX, 7, 8]);

    world.check_ready(
        &ReadyFilter {
            split: Some(Split::HeldOut),
            ..Default::default()
        },
        &[],
        &[],
    );
    let named = ReadyFilter {
        group_ids: Some(vec!["open".into(), "ready".into()]),
        ..Default::default()
    };
    world.check_ready(&named, &["ready"], &[("open_episode", 1)]);
    let large = ReadyFilter {
        group_ids: Some(vec!["ready".into()]),
        min_episodes: 3,
        ..Default::default()
    };
    world.check_ready(&large, &[], &[("incomplete", 1)]);
}

#[test]
fn stale_groups_and_trajectories_without_logprobs_are_left_out() {
    let world = World::new();
    world.play("g", 1.0);
    let at = |version: u64| ReadyFilter {
        current_version: PolicyVersion(version),
        max_staleness: Some(2),
        ..Default::default()
    };
    world.check_ready(&at(3), &["g"], &[]);
    world.check_ready(&at(4), &[], &[("stale", 1)]);
    let id = world.open("g");
    let mut blind = call(&id);
    blind.choices[0].behaviour_logprobs.clear();
    world.store.append_call(blind).unwrap();
    world.close(
        &id,
        CloseEpisode {
            reward: Some(0.0),
            ..Default::default()
        },
    );
    world.check_ready(&at(3), &["g"], &[("no_behaviour_logprobs", 1)]);
    let mut unversioned = call(&world.open("h"));
    unversioned.policy_version = None;
    let id = unversioned.episode_id.clone();
    world.store.append_call(unversioned).unwrap();
    world.close(
        &id,
        CloseEpisode {
            reward: Some(0.0),
            ..Default::default()
        },
    );
    world.check_ready(&at(3), &["g"], &[("no_behaviour_logprobs", 1), ("stale", 1)]);
}

#[test]
fn a_group_is_trained_on_once() {
    let world = World::new();
    for group in ["a", "b", "c"] {
        world.play(group, 1.0);
    }
    world.check_ready(
        &ReadyFilter {
            limit: Some(2),
            ..Default::default()
        },
        &["a", "b"],
        &[],
    );
    world.store.acknowledge(&["a".into(), "b".into()], 1).unwrap();
    world.store.acknowledge(&["b".into()], 2).unwrap();
    let world = world.reopen();
    world.check_ready(&ReadyFilter::default(), &["c"], &[]);
    let named = ReadyFilter {
        group_ids: Some(vec!["c".into(), "a".into(), "none".into()]),
        ..Default::default()
    };
    world.check_ready(&named, &["c"], &[("acknowledged", 1)]);
}

#[test]
fn policy_pass_rates_and_values_are_kept() {
    let world = World::new();
    assert_eq!(world.store.policy().unwrap(), Policy::default());
    let policy = Policy {
        version: PolicyVersion(2),
        adapter: Some("adapters/policy@2".into()),
    };
    world
        .store
        .set_policy(&Policy {
            version: PolicyVersion(3),
            adapter: None,
        })
        .unwrap();
    world.store.set_policy(&policy).unwrap();
    let scenario = ScenarioId::from("rain");
    for success in [true, true, false] {
        world.store.record_outcome(&scenario, success).unwrap();
    }
    assert_eq!(world.store.meta_get("cursor").unwrap(), None);
    world.store.meta_set("cursor", &json!(1)).unwrap();
    world.store.meta_set("cursor", &json!({"step": 2})).unwrap();
    let world = world.reopen();
    assert_eq!(
        world.store.policy().unwrap(),
        policy,
        "the last one set is current, also after going back"
    );
    let rate = world.store.pass_rates().unwrap()[&scenario];
    assert_eq!((rate.attempts, rate.successes), (3, 2));
    assert!((rate.recent - 0.8 * (0.8 * 0.6 + 0.2)).abs() < 1e-12, "{}", rate.recent);
    assert_eq!(world.store.meta_get("cursor").unwrap(), Some(json!({"step": 2})));
}

#[test]
fn writers_share_commits_and_get_a_sequence_without_gaps() {
    const WRITERS: usize = 8;
    const CALLS: usize = 25;
    let world = World::new();
    let id = world.open("g");
    let before = world.store.stats();
    let start = Barrier::new(WRITERS);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..CALLS {
                    let call = call(&id);
                    let name = call.id.clone();
                    let sequence = world.store.append_call(call).unwrap();
                    let record = world.store.record(&id).unwrap().unwrap();
                    assert_eq!(
                        record.calls[sequence as usize - 1].id,
                        name,
                        "a write that returned is there"
                    );
                }
            });
        }
    });
    let after = world.store.stats();
    assert_eq!(after.writes - before.writes, (WRITERS * CALLS) as u64);
    assert!(after.commits - before.commits < (WRITERS * CALLS) as u64, "{after:?}");
    let world = world.reopen();
    let calls = world.store.record(&id).unwrap().unwrap().calls;
    assert!(calls.iter().map(|call| call.sequence as usize).eq(1..=WRITERS * CALLS));
}

const CHILD: &str = "TRAJECTORY_TEST_CHILD";

/// Runs only as a child of the test below.
#[test]
fn child_that_aborts_after_each_write_returned() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = Store::open(Path::new(&path)).unwrap();
    let id = store.open_episode(NewEpisode::default()).unwrap().id;
    for _ in 0..5 {
        store.append_call(call(&id)).unwrap();
    }
    std::process::abort();
}

#[test]
fn a_write_that_returned_survives_the_end_of_its_process() {
    let world = World::new();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::child_that_aborts_after_each_write_returned"])
        .env(CHILD, world.path())
        .output()
        .unwrap()
        .status;
    assert!(!status.success());
    let episodes = world.store.episodes(&EpisodeFilter::default()).unwrap();
    assert_eq!(world.store.record(&episodes[0].id).unwrap().unwrap().calls.len(), 5);
}

#[test]
fn power_means_a_sync_each_commit() {
    let folder = tempfile::tempdir().unwrap();
    let connection = sqlite::open_writer(&folder.path().join("a.db"), Sync::Power).unwrap();
    let level: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .unwrap();
    assert_eq!(level, 2);
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    let world = World::new();
    let path = world.path();
    drop(world.store);
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    let message = say(&Store::open(&path).unwrap_err());
    assert!(
        message.contains("schema 99") && message.contains("newer trainyard"),
        "{message}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn another_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(
        &text,
        "not a database at all, but long enough to be read as one\n".repeat(40),
    )
    .unwrap();
    let other = folder.path().join("other.db");
    Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE mine (x)")
        .unwrap();
    for path in [&text, &other] {
        let before = std::fs::read(path).unwrap();
        let message = say(&Store::open(path).unwrap_err());
        assert!(message.contains("is not a trajectory store"), "{message}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
}

#[test]
fn a_file_cut_short_is_named_as_damaged() {
    let world = World::new();
    for _ in 0..20 {
        world.play("g", 1.0);
    }
    let path = world.path();
    drop(world.store);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 8]).unwrap();
    let message = say(&Store::open(&path).unwrap_err());
    assert!(
        message.contains("is damaged") && message.contains("trajectories.db"),
        "{message}"
    );
}

#[test]
fn a_value_without_meaning_is_named() {
    let world = World::new();
    let id = world.play("g", 1.0);
    let connection = Connection::open(world.path()).unwrap();
    connection
        .execute("UPDATE calls SET prompt_token_ids = x'010203'", [])
        .unwrap();
    let message = say(&world.store.record(&id).unwrap_err());
    assert!(
        message.contains("prompt_token_ids") && message.contains("3 bytes"),
        "{message}"
    );
}

#[test]
fn missing_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    let message = say(&Store::open_existing(&path).unwrap_err());
    assert!(message.contains("there is no trajectory store at"), "{message}");
    assert!(!path.try_exists().unwrap());
    let message = say(&Store::open(&folder.path().join("no folder/a.db")).unwrap_err());
    assert!(message.contains("check that its folder exists"), "{message}");
}
