//! Resuming gives the same weights; what can't be resumed says why.

use serde_json::json;
use tempfile::TempDir;
use trajectory::{PolicyVersion, TrajectoryGroup};

use super::*;
use crate::RawTrainerConfig;
use crate::testing::{group, raw_config, tiny_trainer, trajectory, weights};

/// The groups of a step, the same whoever asks.
fn groups(step: u64) -> Vec<TrajectoryGroup> {
    (0..4u32)
        .map(|scenario| {
            group((0..3u32).map(|episode| {
                let ids = [1, 2, scenario, 10 + episode + step as u32, 20 + scenario];
                (
                    f64::from((episode * 7 + scenario) % 3),
                    trajectory(&ids, &[3, 4], &[-3.5, -3.6]),
                )
            }))
        })
        .collect()
}

fn raw() -> RawTrainerConfig {
    RawTrainerConfig {
        updates_per_batch: 2,
        warmup_steps: 3,
        weight_decay: 0.01,
        ..raw_config()
    }
}

fn saved(folder: &TempDir) -> std::path::PathBuf {
    let directory = folder.path().join("checkpoint");
    let mut trainer = tiny_trainer(raw());
    trainer.grpo_step(&groups(1), PolicyVersion(0)).unwrap();
    trainer.save_checkpoint(&directory, &json!({"cursor": 7})).unwrap();
    directory
}

#[test]
fn a_resumed_trainer_ends_at_the_same_weights_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("checkpoint");
    let mut straight = tiny_trainer(raw());
    for step in 1..=4 {
        straight.grpo_step(&groups(step), PolicyVersion(step)).unwrap();
        if step == 2 {
            straight.save_checkpoint(&directory, &json!({"step": step})).unwrap();
        }
    }
    // Another seed: the checkpoint's wins.
    let config = crate::TrainerConfig::try_from(raw()).unwrap();
    let mut resumed = Trainer::new(crate::testing::tiny_model(), config, 99).unwrap();
    assert_eq!(resumed.load_checkpoint(&directory).unwrap(), json!({"step": 2}));
    assert_eq!(resumed.step(), 2);
    for step in 3..=4 {
        resumed.grpo_step(&groups(step), PolicyVersion(step)).unwrap();
    }
    assert_eq!(weights(&resumed), weights(&straight));
    assert_eq!(resumed.optimizer.state(), straight.optimizer.state());
}

#[test]
fn a_checkpoint_is_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let directory = saved(&folder);
    let mut trainer = tiny_trainer(raw());
    trainer.load_checkpoint(&directory).unwrap();
    trainer.save_checkpoint(&directory, &json!({"cursor": 8})).unwrap();
    assert_eq!(trainer.load_checkpoint(&directory).unwrap(), json!({"cursor": 8}));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // Killed between the two renames: the old one lies beside, and a new one may lie there unfinished.
    fs::rename(&directory, beside(&directory, PREVIOUS)).unwrap();
    fs::create_dir(beside(&directory, "incomplete")).unwrap();
    assert!(Trainer::has_checkpoint(&directory).unwrap());
    assert!(!Trainer::has_checkpoint(&folder.path().join("other")).unwrap());
    assert_eq!(trainer.load_checkpoint(&directory).unwrap(), json!({"cursor": 8}));
    trainer.save_checkpoint(&directory, &json!({"cursor": 9})).unwrap();
    assert_eq!(trainer.load_checkpoint(&directory).unwrap(), json!({"cursor": 9}));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[track_caller]
fn check_refused(raw: RawTrainerConfig, directory: &Path, parts: &[&str]) {
    let mut trainer = tiny_trainer(raw);
    let before = weights(&trainer);
    let error = trainer.load_checkpoint(directory).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(weights(&trainer), before);
    assert_eq!(trainer.step(), 0);
}

#[test]
fn another_form_is_refused_with_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    let directory = saved(&folder);
    check_refused(
        RawTrainerConfig { rank: 8, ..raw() },
        &directory,
        &["rank is 8 here and 4 there"],
    );
    check_refused(
        RawTrainerConfig { alpha: 1.0, ..raw() },
        &directory,
        &["alpha is 1.0 here and 8.0 there; use the model and adapter settings"],
    );
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    check_refused(raw(), folder.path(), &["is not a checkpoint", "trainer.json"]);
    for name in [
        "optimizer.safetensors",
        "adapter/adapter_model.safetensors",
        "trainer.json",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(&folder).join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        check_refused(
            raw(),
            path.ancestors().find(|path| path.ends_with("checkpoint")).unwrap(),
            &[name, "is damaged"],
        );
    }
}
