use serde_json::json;
use trajectory::{
    CallId, CallStatus, CallTimings, CloseEpisode, Endpoint, ModelCall, NewEpisode, PolicyVersion, SampledChoice,
};

use super::*;

struct World {
    store: Store,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("trajectories.db")).unwrap();
        Self { store, _folder: folder }
    }

    /// Plays a group of one scenario, whose kind is the part of its name before the dash.
    fn play(&self, group: &str, scenario: &str, rewards: &[f64]) {
        for &reward in rewards {
            let new = NewEpisode {
                scenario_id: Some(scenario.into()),
                group_id: Some(group.into()),
                split: Some(Split::Train),
                ..NewEpisode::default()
            };
            let id = self.store.open_episode(new).unwrap().id;
            self.store.append_call(call(&id)).unwrap();
            let close = CloseEpisode {
                reward: Some(reward),
                ..CloseEpisode::default()
            };
            self.store.close_episode(&id, close).unwrap();
        }
    }

    /// The groups that a step takes, out of those that no step has trained on yet.
    fn balanced(&self, wanted: usize) -> (Vec<String>, usize, usize) {
        let kinds = ["rain-1", "rain-2", "rain-3", "wind-1", "wind-2", "alerts-1"]
            .map(|id| (ScenarioId::from(id), id.split('-').next().unwrap().to_owned()));
        let ready = self.store.ready_groups(&ReadyFilter::default()).unwrap();
        let (groups, balance) = balance(&self.store, &HashMap::from(kinds), ready.groups, wanted, 0).unwrap();
        let names = groups.iter().map(|group| group.group_id.to_string()).collect();
        (names, balance.groups_replayed, balance.groups_set_aside)
    }
}

fn call(episode_id: &trajectory::EpisodeId) -> ModelCall {
    ModelCall {
        id: CallId::new(),
        episode_id: episode_id.clone(),
        sequence: 0,
        endpoint: Endpoint::ChatCompletions,
        model: "policy".into(),
        upstream_model: "policy@1".into(),
        request: json!({"messages": []}),
        response: None,
        prompt_token_ids: Some(vec![1, 2]),
        choices: vec![SampledChoice {
            index: 0,
            token_ids: vec![3],
            behaviour_logprobs: vec![-0.5],
            finish_reason: Some("stop".into()),
        }],
        policy_version: Some(PolicyVersion(1)),
        sampling: json!({}),
        grammar_constrained: false,
        status: CallStatus::Complete,
        upstream_status: Some(200),
        error: None,
        usage: None,
        timings: CallTimings::default(),
    }
}

#[test]
fn a_kind_with_many_right_episodes_gives_way_to_what_says_most() {
    let world = World::new();
    world.play("all right", "rain-1", &[1.0, 1.0, 1.0]);
    world.play("one right", "rain-2", &[0.0, 1.0, 0.0]);
    world.play("two right", "rain-3", &[1.0, 1.0, 0.0]);
    world.play("none right", "wind-1", &[0.2, 0.0, 0.0]);
    let (groups, replayed, set_aside) = world.balanced(3);
    assert_eq!(groups, ["one right", "two right", "none right"]);
    assert_eq!((replayed, set_aside), (0, 1));
    assert_eq!(world.balanced(4).0.len(), 4, "not enough without the last one");
}

#[test]
fn what_a_kind_lacks_comes_from_earlier_steps_the_newest_first() {
    let world = World::new();
    world.play("oldest", "wind-1", &[1.0, 0.0]);
    world.play("older", "wind-2", &[1.0, 1.0]);
    world.play("wrong", "wind-2", &[0.1, 0.0]);
    let earlier: Vec<GroupId> = ["oldest", "older", "wrong"].map(GroupId::from).into();
    world.store.acknowledge(&earlier, 1, &[]).unwrap();
    world.play("latest", "wind-1", &[1.0, 1.0]);
    world.store.acknowledge(&["latest".into()], 2, &[]).unwrap();
    world.play("now", "wind-1", &[0.0, 0.5]);
    world.play("new kind", "alerts-1", &[0.0, 0.0]);

    let (groups, replayed, set_aside) = world.balanced(2);
    assert_eq!(groups, ["now", "new kind", "latest"]);
    assert_eq!((replayed, set_aside), (1, 0));
    assert_eq!(world.balanced(3).0, ["now", "new kind", "older", "latest"]);
    assert_eq!(
        world.balanced(9).0,
        ["now", "new kind", "oldest", "older", "latest"],
        "all there is; groups without a right episode are of no use"
    );
}

#[test]
fn groups_that_no_step_has_trained_on_are_not_replayed() {
    let world = World::new();
    world.play("trained", "wind-1", &[1.0, 0.0]);
    world.store.acknowledge(&["trained".into()], 1, &[]).unwrap();
    world.play("abandoned", "wind-2", &[1.0, 1.0]);
    world.play("now", "wind-1", &[0.0, 0.5]);
    let kinds = HashMap::from(["wind-1", "wind-2"].map(|id| (ScenarioId::from(id), "wind".to_owned())));
    let now = ReadyFilter {
        group_ids: Some(vec!["now".into()]),
        ..ReadyFilter::default()
    };
    let ready = world.store.ready_groups(&now).unwrap();
    let (groups, balance) = balance(&world.store, &kinds, ready.groups, 1, 0).unwrap();
    let names: Vec<&str> = groups.iter().map(|group| group.group_id.as_str()).collect();
    assert_eq!(names, ["now", "trained"]);
    assert_eq!(balance.groups_replayed, 1);
}
