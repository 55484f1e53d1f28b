//! Ready groups, and what training keeps.

use super::*;

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
    world.store.acknowledge(&["a".into(), "b".into()], 1, &[]).unwrap();
    world.store.acknowledge(&["b".into()], 2, &[]).unwrap();
    let world = world.reopen();
    world.check_ready(&ReadyFilter::default(), &["c"], &[]);
    let named = ReadyFilter {
        group_ids: Some(vec!["c".into(), "a".into(), "none".into()]),
        ..Default::default()
    };
    world.check_ready(&named, &["c"], &[("acknowledged", 1)]);
    let again = ReadyFilter {
        trained: true,
        ..Default::default()
    };
    world.check_ready(&again, &["a", "b"], &[]);
    let named = ReadyFilter { trained: true, ..named };
    world.check_ready(&named, &["a"], &[("untrained", 2)]);
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
    world.play("a", 1.0);
    let outcomes = [true, true, false].map(|success| (scenario.clone(), success));
    for _ in 0..2 {
        world.store.acknowledge(&["a".into()], 1, &outcomes).unwrap();
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
fn one_process_records_and_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trajectories.db");
    let recorder = Store::open_to_record(&path).unwrap();
    let clone = recorder.clone();
    let refused = Store::open_to_record(&path).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
    assert!(say(&refused).contains("trajectories.db"), "{refused}");
    Store::open_existing(&path).unwrap();
    drop(recorder);
    assert!(Store::open_to_record(&path).is_err(), "a handle is still open");
    drop(clone);
    Store::open_to_record(&path).unwrap();
}
