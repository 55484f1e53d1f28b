use serde_json::json;

use super::*;
use crate::episode::{CloseEpisode, NewEpisode};
use crate::group::{ReadyFilter, ready_exported};
use crate::store::Store;

/// A line with one trajectory, and one change to it.
fn line(change: impl FnOnce(&mut Value)) -> String {
    let mut line = json!({
        "schema": "trainyard.episode/1", "episode_id": "e", "group_id": "g", "scenario_id": null, "split": "train",
        "reward": 1.0, "metrics": {}, "stop_reason": null, "failure": null, "tainted": false,
        "trajectories": [{"token_ids": [5, 9], "sampled_mask": [0, 1], "behaviour_logprobs": [null, -0.12],
            "policy_versions": [null, 3]}],
        "calls": [], "of a later version": 1,
    });
    change(&mut line);
    line.to_string()
}

fn check_refused(change: impl FnOnce(&mut Value), expected: &str) {
    let error = read_export(format!("\n{}\n", line(change)).as_bytes()).unwrap_err();
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    assert!(
        message.starts_with("line 2 is not an exported episode: ") && message.contains(expected),
        "{message}"
    );
}

#[test]
fn the_published_form_is_read() {
    let episode = parse_export_line(&line(|_| {})).unwrap();
    assert_eq!(episode.trajectories[0].sampled_mask, [false, true]);
    assert_eq!(episode.trajectories[0].behaviour_logprobs, [None, Some(-0.12)]);
    let booleans = line(|line| line["trajectories"][0]["sampled_mask"] = json!([false, true]));
    assert_eq!(parse_export_line(&booleans).unwrap(), episode);
    let again = parse_export_line(&episode.to_line()).unwrap();
    assert_eq!(again, episode);
}

#[test]
fn contradictions_are_named_with_their_line() {
    check_refused(
        |line| line["schema"] = json!("trainyard.episode/2"),
        "its schema is 'trainyard.episode/2'",
    );
    check_refused(|line| line["episode_id"] = json!(null), "not an episode in the form");
    let mask = |value: Value| move |line: &mut Value| line["trajectories"][0]["sampled_mask"] = value;
    check_refused(
        mask(json!([0])),
        "trajectory 0: token_ids has 2 entries and sampled_mask has 1",
    );
    check_refused(mask(json!([0, 2])), "sampled_mask holds 2");
    check_refused(mask(json!([0, 0])), "token 1 isn't sampled but has a behaviour logprob");
    check_refused(|line| line["reward"] = json!("high"), "not an episode in the form");
}

#[test]
fn exported_episodes_make_the_groups_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("a.db")).unwrap();
    let mut lines = String::new();
    for (group, reward) in [
        (Some("g"), Some(1.0)),
        (Some("h"), None),
        (Some("g"), Some(0.0)),
        (None, Some(1.0)),
    ] {
        let new = NewEpisode {
            group_id: group.map(Into::into),
            split: Some(Split::Train),
            ..Default::default()
        };
        let id = store.open_episode(new).unwrap().id;
        let call = json!({
            "id": crate::CallId::new(), "episode_id": id, "endpoint": "chat_completions", "status": "complete",
            "prompt_token_ids": [1, 2], "policy_version": 1, "request": {"b": 1, "a": 2},
            "choices": [{"index": 0, "token_ids": [3], "behaviour_logprobs": [-0.1], "finish_reason": "stop"}],
        });
        store.append_call(serde_json::from_value(call).unwrap()).unwrap();
        store
            .close_episode(
                &id,
                CloseEpisode {
                    reward,
                    ..Default::default()
                },
            )
            .unwrap();
        let record = store.record(&id).unwrap().unwrap();
        let exported = ExportedEpisode::from(record.clone());
        assert_eq!(serde_json::to_value(&exported).unwrap(), export_line(&record));
        lines.push_str(&exported.to_line());
        lines.push('\n');
    }
    let episodes = read_export(lines.as_bytes()).unwrap();
    let filter = ReadyFilter {
        split: Some(Split::Train),
        ..Default::default()
    };
    let mut offline = ready_exported(episodes, &filter);
    assert_eq!(offline.left_out.remove("ungrouped"), Some(1));
    assert_eq!(offline, store.ready_groups(&filter).unwrap());
    assert_eq!(offline.groups[0].rewards(), [1.0, 0.0]);
    assert_eq!(offline.left_out["no_reward"], 1);
}
