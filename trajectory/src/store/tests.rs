mod durability;
mod groups;

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
