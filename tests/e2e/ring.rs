//! The whole ring: agent process, proxy, MCP server, engine, trainer step, hot swap, rollouts on the new version.

use std::collections::{BTreeMap, BTreeSet};

use harness::binary::trainyard;
use harness::small_run::SmallRun;
use serde_json::Value;
use trajectory::{EpisodeFilter, PolicyVersion, ReadyFilter, Split, Store, TrajectoryGroup};

#[test]
fn a_run_closes_the_loop() {
    let run = SmallRun::new(&[]);
    // A seed with which the random model's rewards differ within a group in both steps; without a difference there is no gradient.
    let output = trainyard()
        .args(["train", "--seed", "3", "-c"])
        .arg(run.config())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let folder = run.run_folder();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        printed.trim().lines().last().unwrap(),
        folder.to_str().unwrap(),
        "the last line is the run's path"
    );

    let summary: Value = serde_json::from_slice(&std::fs::read(folder.join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["steps"], 2, "{summary}");
    assert_eq!(summary["held_out"]["grpo"]["n"], 4);
    assert_eq!(summary["episodes"]["tainted"], 0);
    assert_eq!(summary["episodes"]["failed"], 0, "{log}");
    let difference = summary["engine_trainer_max_abs_diff"].as_f64().unwrap();
    assert!(
        difference > 0.0 && difference < 1e-4,
        "engine and trainer differ by {difference}"
    );
    assert!(summary["peak_rss_bytes"].as_u64().unwrap() > 10 << 20);
    for file in [
        "config.toml",
        "metrics.jsonl",
        "reward.svg",
        "transcripts.md",
        "results.md",
        "checkpoint",
    ] {
        assert!(folder.join(file).try_exists().unwrap(), "{file} is missing");
    }
    for version in [1, 2] {
        let adapter = folder.join(format!("adapters/policy@{version}/adapter_model.safetensors"));
        assert!(adapter.is_file(), "{} is missing", adapter.display());
    }

    let rows = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    let trained: u64 = rows.iter().map(|row| row["groups"].as_u64().unwrap()).sum();
    assert!(trained > 0, "no group had a gradient: {rows:?}");

    let store = Store::open(&folder.join("trajectories.db")).unwrap();
    let episodes = store
        .episodes(&EpisodeFilter {
            split: Some(Split::Train),
            ..EpisodeFilter::default()
        })
        .unwrap();
    assert_eq!(episodes.len(), 16);
    let mut versions = BTreeSet::new();
    for episode in &episodes {
        let record = store.record(&episode.id).unwrap().unwrap();
        assert!(!record.calls.is_empty());
        for call in &record.calls {
            assert!(call.prompt_token_ids.as_ref().is_some_and(|ids| !ids.is_empty()));
            assert_eq!(
                call.choices[0].token_ids.len(),
                call.choices[0].behaviour_logprobs.len()
            );
            versions.extend(call.policy_version);
        }
    }
    assert_eq!(
        versions,
        BTreeSet::from([PolicyVersion(0), PolicyVersion(1)]),
        "step 2 ran on policy@1"
    );
    assert_ne!(
        std::fs::read(folder.join("adapters/policy@1/adapter_model.safetensors")).unwrap(),
        std::fs::read(folder.join("adapters/policy@2/adapter_model.safetensors")).unwrap(),
        "the second step changed nothing"
    );

    // The same training, from the record alone.
    let out = run.path().join("offline");
    let offline = || {
        let mut command = trainyard();
        command.args(["train", "--set", "run.seed=3", "-c"]).arg(run.config());
        command.arg("--offline").arg(&folder).arg("--out").arg(&out);
        command.output().unwrap()
    };
    let output = offline();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("4 groups, 2 steps of 2"), "{log}");
    let weights = |folder: &std::path::Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    assert!(
        weights(&out) == weights(&folder.join("adapters/policy@2")),
        "offline training gave other weights"
    );
    let again = offline();
    assert_eq!(again.status.code(), Some(2), "an adapter's folder never changes");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));

    // The last evaluation and the first step's rollouts, each by a command of its own.
    let played = run.path().join("played.db");
    let command = |name: &str, arguments: &[&str]| {
        let mut command = trainyard();
        command.arg(name).args(arguments).arg("--store").arg(&played);
        let output = command.arg("-c").arg(run.config()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        String::from_utf8(output.stdout).unwrap()
    };
    let adapter = folder.join("adapters/policy@2");
    let printed = command("eval", &["--json", "--adapter", adapter.to_str().unwrap()]);
    let evaluated: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(evaluated["held_out"], summary["held_out"]["grpo"]);
    let printed = command("rollout", &["--seed", "3"]);
    assert_eq!(printed.trim(), played.to_str().unwrap());
    let again = Store::open(&played).unwrap();
    let sampled = |store: &Store| {
        let ready = store.ready_groups(&ReadyFilter {
            split: Some(Split::Train),
            trained: store.path() != played,
            limit: Some(2),
            ..ReadyFilter::default()
        });
        let groups = ready.unwrap().groups;
        let tokens = |group: &TrajectoryGroup| {
            let mut tokens: Vec<_> = group
                .episodes
                .iter()
                .map(|episode| episode.trajectories[0].token_ids.clone())
                .collect();
            tokens.sort();
            (group.scenario_id.clone(), tokens)
        };
        groups.iter().map(tokens).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(sampled(&again), sampled(&store), "step 1's rollouts, repeated");
}

#[test]
fn offline_training_says_why_there_is_nothing_to_train_on() {
    let run = SmallRun::new(&[]);
    let (episodes, out) = (run.path().join("episodes.jsonl"), run.path().join("out"));
    let offline = |text: &str| {
        std::fs::write(&episodes, text).unwrap();
        let mut command = trainyard();
        command.args(["train", "--model"]).arg(run.path().join("model"));
        command.arg("--offline").arg(&episodes).arg("--out").arg(&out);
        let output = command.output().unwrap();
        assert!(!out.try_exists().unwrap(), "nothing is written");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let episode = |id: &str, reward: f64| {
        serde_json::json!({
            "schema": "trainyard.episode/1", "episode_id": id, "group_id": "g", "reward": reward,
            "trajectories": [{"token_ids": [5, 6, 7], "sampled_mask": [0, 1, 1],
                "behaviour_logprobs": [null, -1.0, -1.0], "policy_versions": [null, 1, 1]}],
        })
        .to_string()
    };
    let (code, message) = offline(&format!("{}\n{}\n", episode("a", 1.0), episode("b", 1.0)));
    assert_eq!(code, Some(1), "{message}");
    assert!(
        message.contains("1 for zero_variance") && message.contains("no group had a gradient"),
        "{message}"
    );
    let (code, message) = offline("");
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("has no group to train on"), "{message}");
    let (code, message) = offline(&format!("{}\n{{\"schema\":1}}\n", episode("a", 1.0)));
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("line 2"), "{message}");
}

#[test]
fn a_teacher_warms_the_policy_up() {
    let run = SmallRun::new(&[
        ("warm_start.steps", 1.into()),
        ("warm_start.demonstrations_per_step", 4.into()),
        ("trainer.steps", 0.into()),
        ("evaluation.base", false.into()),
    ]);
    let output = trainyard().args(["train", "-c"]).arg(run.config()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let store = Store::open(&run.run_folder().join("trajectories.db")).unwrap();
    let episodes = store
        .episodes(&EpisodeFilter {
            split: Some(Split::Train),
            ..EpisodeFilter::default()
        })
        .unwrap();
    assert_eq!(episodes.len(), 4);
    for episode in episodes {
        assert_eq!(episode.reward, Some(1.0), "the teacher is right: {episode:?}");
        let record = store.record(&episode.id).unwrap().unwrap();
        assert!(!record.tool_calls.is_empty(), "the teacher used the tools");
    }
    let held_out = store
        .episodes(&EpisodeFilter {
            split: Some(Split::HeldOut),
            ..EpisodeFilter::default()
        })
        .unwrap();
    let record = store.record(&held_out[0].id).unwrap().unwrap();
    assert_eq!(record.calls[0].policy_version, Some(PolicyVersion(1)));

    // The same episodes, from the run's folder and as an export, make the same adapter.
    let (model, folder) = (run.path().join("model"), run.run_folder());
    let export = folder.join("episodes.jsonl");
    let exported = trainyard()
        .args(["log", "--store"])
        .arg(&folder)
        .args(["export", "-o"])
        .arg(&export)
        .output();
    assert!(exported.unwrap().status.success());
    let sft = |episodes: &std::path::Path, out: &std::path::Path| {
        let mut command = trainyard();
        command
            .arg("sft")
            .arg("--model")
            .arg(&model)
            .arg("--episodes")
            .arg(episodes);
        command
            .args(["--min-reward", "1", "--batch-size", "2", "--out"])
            .arg(out)
            .output()
            .unwrap()
    };
    let outs = [folder.join("from-store"), folder.join("from-export")];
    for (episodes, out) in [(&folder, &outs[0]), (&export, &outs[1])] {
        let output = sft(episodes, out);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.contains("4 trajectories of 4 episodes, 2 steps"), "{stderr}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            out.display().to_string()
        );
    }
    let weights = outs
        .each_ref()
        .map(|out| std::fs::read(out.join("adapter_model.safetensors")).unwrap());
    assert!(weights[0] == weights[1]);
    let again = sft(&folder, &outs[0]);
    assert_eq!(again.status.code(), Some(2), "an adapter's folder never changes");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
}
