//! The whole step on a tiny model: equal to plain training of each trajectory, true to finite differences, and learning.

use inference::model::{AdapterRows, CausalAttention};
use tch::{Kind, Tensor};

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::testing::{
    fill_randomly, gradients, group, random_tree, raw_config, relative_difference, tiny_trainer, trajectory, weights,
};

const GRPO: LossKind = LossKind::Grpo {
    clip_low: 0.2,
    clip_high: 0.28,
};
const CISPO: LossKind = LossKind::Cispo {
    clip_low: 0.2,
    clip_high: 4.0,
};

fn mini_batch(trajectories: &[Trajectory]) -> MiniBatch {
    let weighted = trajectories.iter().enumerate().map(|(index, trajectory)| Weighted {
        trajectory,
        advantage: (0.3 * index as f64 - 0.85).into(),
    });
    MiniBatch::new(weighted, Aggregation::SequenceMean, Some(PolicyVersion(1)))
}

fn forest_pass(trainer: &Trainer, batch: &MiniBatch, loss: LossKind, micro_batch_tokens: usize) -> PassOutput {
    zero_gradients(&mut trainer.adapter.parameters());
    let settings = PassSettings {
        interrupt: &AtomicBool::new(false),
        loss,
        micro_batch_tokens,
        logits_chunk: 5,
        with_gradient: true,
    };
    pass::run(&trainer.model, Some(&trainer.adapter), batch, settings).unwrap()
}

/// The plainest way: each trajectory through the model by itself, all its logits at once, the loss written out.
fn alone(trainer: &Trainer, batch: &MiniBatch, loss: LossKind) -> f64 {
    zero_gradients(&mut trainer.adapter.parameters());
    let mut total = 0.0;
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let ids: Vec<i64> = sequence.iter().map(|&id| i64::from(id)).collect();
        let positions = Tensor::arange(ids.len() as i64, (Kind::Int64, tch::Device::Cpu));
        let fused = trainer.adapter.fuse(Kind::Float);
        let hidden = trainer.model.forward(
            &Tensor::from_slice(&ids),
            &positions,
            &AdapterRows::All(&fused),
            &mut CausalAttention,
        );
        let logprobs = trainer.model.logits(&hidden).log_softmax(-1, None::<Kind>);
        let mut losses = Vec::new();
        for term in batch.terms.iter().filter(|term| term.sequence == index) {
            let policy = logprobs.get(term.position as i64 - 1).get(i64::from(term.token_id));
            let ratio = (&policy - term.behaviour_logprob).exp();
            let (advantage, weight) = (term.advantage, term.weight);
            losses.push(match loss {
                LossKind::Grpo { clip_low, clip_high } => {
                    let clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage;
                    -(&ratio * advantage).minimum(&clipped) * weight
                }
                LossKind::Cispo { clip_low, clip_high } => {
                    -ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high) * advantage * policy * weight
                }
                LossKind::Sft => -policy * advantage * weight,
            });
        }
        let loss = Tensor::stack(&losses, 0).sum(Kind::Float);
        loss.backward();
        total += loss.double_value(&[]);
    }
    total
}

fn check_against_alone(seed: u64, loss: LossKind) {
    let trainer = tiny_trainer(raw_config());
    fill_randomly(&trainer.adapter, seed);
    let batch = mini_batch(&random_tree(seed, 9));
    let expected_loss = alone(&trainer, &batch, loss);
    let expected = gradients(&trainer.adapter);
    let distinct: std::collections::BTreeSet<&[u32]> = batch
        .sequences
        .iter()
        .flat_map(|sequence| (1..=sequence.len()).map(|end| &sequence[..end]))
        .collect();
    for micro_batch_tokens in [1, 6, 20, 10_000] {
        let output = forest_pass(&trainer, &batch, loss, micro_batch_tokens);
        assert_eq!(output.tokens_distinct, distinct.len());
        let difference = (output.loss - expected_loss).abs() / expected_loss.abs().max(1e-2);
        assert!(
            difference < 1e-5,
            "seed {seed}, {micro_batch_tokens} tokens: loss off by {difference}"
        );
        for ((name, got), (_, want)) in gradients(&trainer.adapter).iter().zip(&expected) {
            let difference = relative_difference(got, want);
            assert!(
                difference < 1e-5,
                "seed {seed}, {micro_batch_tokens} tokens, {name}: off by {difference}"
            );
        }
    }
}

#[test]
fn a_forest_trains_like_each_trajectory_alone() {
    for seed in 0..3 {
        check_against_alone(seed, GRPO);
        check_against_alone(100 + seed, CISPO);
        check_against_alone(200 + seed, LossKind::Sft);
    }
}

#[test]
fn prefixes_and_single_tokens_train_like_alone() {
    let trainer = tiny_trainer(raw_config());
    fill_randomly(&trainer.adapter, 3);
    let batch = mini_batch(&[
        trajectory(&[1, 2, 3, 4, 5, 6], &[4, 5], &[-3.0, -3.5]),
        trajectory(&[1, 2, 3, 4], &[2, 3], &[-3.0, -4.0]),
        trajectory(&[1, 2, 3, 4], &[3], &[-3.0]),
        trajectory(&[1, 2, 3, 9, 9], &[3, 4], &[-3.1, -3.2]),
        trajectory(&[1, 2, 3, 8, 9], &[3, 4], &[-3.1, -3.2]),
        trajectory(&[1, 2, 3, 7, 1, 1], &[3, 4], &[-3.1, -3.2]),
        trajectory(&[30, 2], &[1], &[-3.6]),
    ]);
    let expected_loss = alone(&trainer, &batch, GRPO);
    let expected = gradients(&trainer.adapter);
    for micro_batch_tokens in [1, 4, 100] {
        let output = forest_pass(&trainer, &batch, GRPO, micro_batch_tokens);
        assert!((output.loss - expected_loss).abs() < 1e-6);
        for ((name, got), (_, want)) in gradients(&trainer.adapter).iter().zip(&expected) {
            assert!(relative_difference(got, want) < 1e-5, "{name}");
        }
    }
}

/// Along a random direction through all LoRA weights, and along single weights.
#[test]
fn gradients_equal_finite_differences() {
    let trainer = tiny_trainer(raw_config());
    fill_randomly(&trainer.adapter, 5);
    let batch = mini_batch(&random_tree(42, 8));
    // Wide bounds: a finite difference across a kink is no derivative.
    let loss = LossKind::Grpo {
        clip_low: 1.0,
        clip_high: 1e6,
    };
    forest_pass(&trainer, &batch, loss, 10);
    let gradients = gradients(&trainer.adapter);
    let shifted = |direction: &dyn Fn(usize) -> Tensor, size: f64| {
        let shift = |factor: f64| {
            tch::no_grad(|| {
                for (index, (_, mut parameter)) in trainer.adapter.parameters().into_iter().enumerate() {
                    let _ = parameter.g_add_(&(direction(index) * (factor * size)));
                }
            });
        };
        let mut losses = [0.0; 2];
        for (loss_at, factor) in losses.iter_mut().zip([1.0, -1.0]) {
            shift(factor);
            let settings = PassSettings {
                interrupt: &AtomicBool::new(false),
                loss,
                micro_batch_tokens: 10,
                logits_chunk: 5,
                with_gradient: false,
            };
            *loss_at = pass::run(&trainer.model, Some(&trainer.adapter), &batch, settings)
                .unwrap()
                .loss;
            shift(-factor);
        }
        (losses[0] - losses[1]) / (2.0 * size)
    };
    let unit = |index: usize| gradients[index].1.sign();
    let slope = shifted(&unit, 1e-3);
    let expected: f64 = gradients
        .iter()
        .map(|(_, gradient)| gradient.abs().sum(Kind::Double).double_value(&[]))
        .sum();
    assert!((slope - expected).abs() < 5e-3 * expected, "{slope} {expected}");
    for parameter in [0, 5, 13, 27, gradients.len() - 1] {
        let gradient = &gradients[parameter].1;
        let largest = gradient.abs().argmax(None, false).int64_value(&[]);
        let single = |index: usize| {
            let direction = gradients[index].1.zeros_like();
            if index == parameter {
                let _ = direction.view(-1).narrow(0, largest, 1).fill_(1.0);
            }
            direction
        };
        let slope = shifted(&single, 2e-2);
        let expected = gradient.view(-1).double_value(&[largest]);
        assert!(
            (slope - expected).abs() < 2e-2 * expected.abs() + 1e-5,
            "{}: {slope} {expected}",
            gradients[parameter].0
        );
    }
}

/// A group whose behaviour logprobs are those of the trainer itself.
fn on_policy_group(trainer: &Trainer, episodes: &[(f64, &[u32])]) -> TrajectoryGroup {
    let sequences: Vec<Vec<u32>> = episodes.iter().map(|(_, ids)| ids.to_vec()).collect();
    let scores = trainer.score(&sequences, true).unwrap();
    group(episodes.iter().zip(scores).map(|((reward, ids), scores)| {
        let sampled: Vec<usize> = (2..ids.len()).collect();
        let logprobs: Vec<f32> = sampled
            .iter()
            .map(|&position| scores[position].unwrap() as f32)
            .collect();
        (*reward, trajectory(ids, &sampled, &logprobs))
    }))
}

const GOOD: &[u32] = &[1, 2, 3, 4, 5];
const BAD: &[u32] = &[1, 2, 3, 9, 9];
const OTHER: &[u32] = &[1, 2, 8];

#[test]
fn an_on_policy_step_has_ratio_one_and_raises_what_was_rewarded() {
    let mut trainer = tiny_trainer(crate::RawTrainerConfig {
        learning_rate: 1e-2,
        ..raw_config()
    });
    let likelihood = |trainer: &Trainer, ids: &[u32]| -> f64 {
        trainer.score(&[ids.to_vec()], true).unwrap()[0][2..]
            .iter()
            .flatten()
            .sum()
    };
    let before = (likelihood(&trainer, GOOD), likelihood(&trainer, BAD));
    for step in 1..=3 {
        let groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD), (0.2, OTHER)])];
        let report = trainer.grpo_step(&groups, PolicyVersion(1)).unwrap();
        assert_eq!(
            (report.step, report.updates, report.groups, report.trajectories),
            (step, 1, 1, 3)
        );
        assert_eq!((report.tokens_sampled, report.engine_trainer_tokens), (7, 7));
        assert_eq!((report.tokens_total, report.tokens_distinct), (10, 5));
        assert!(report.engine_trainer_max_abs_diff.unwrap() < 1e-5, "{report:?}");
        assert!((report.ratio_mean.unwrap() - 1.0).abs() < 1e-5 && report.kl.unwrap().abs() < 1e-6);
        assert_eq!(report.clip_fraction, 0.0);
        assert!(report.entropy > 0.0 && report.grad_norm > 0.0);
    }
    assert!(likelihood(&trainer, GOOD) > before.0 + 0.05);
    assert!(likelihood(&trainer, BAD) < before.1 - 0.05);
}

#[test]
fn only_tokens_of_the_current_version_are_compared_with_the_engine() {
    let mut trainer = tiny_trainer(raw_config());
    let mut groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])];
    for version in groups[0].episodes[0].trajectories[0]
        .policy_versions
        .iter_mut()
        .flatten()
    {
        *version = PolicyVersion(0);
    }
    groups[0].episodes[0].trajectories[0].behaviour_logprobs[3] = Some(-0.5);
    let report = trainer.grpo_step(&groups, PolicyVersion(1)).unwrap();
    assert_eq!(report.engine_trainer_tokens, 3);
    assert!(report.engine_trainer_max_abs_diff.unwrap() < 1e-5);
    assert!(report.clip_fraction == 0.0 && report.kl.unwrap() > 1e-3, "{report:?}");
}

#[test]
fn demonstrations_become_likely() {
    let mut trainer = tiny_trainer(raw_config());
    let mut demonstrations = [GOOD, OTHER].map(|ids| trajectory(ids, &[], &[]));
    for demonstration in &mut demonstrations {
        demonstration.sampled_mask[2..].fill(true);
    }
    let losses: Vec<f64> = (0..10)
        .map(|_| trainer.sft_step(&demonstrations, 1e-2).unwrap().loss)
        .collect();
    assert!(losses[9] < 0.8 * losses[0], "{losses:?}");
    let report = trainer.sft_step(&demonstrations, 1e-2).unwrap();
    assert_eq!(
        (report.kl, report.ratio_mean, report.engine_trainer_max_abs_diff),
        (None, None, None)
    );
    assert_eq!(report.tokens_sampled, 4);
}

/// N1: the step advances, nothing else changes.
#[test]
fn a_step_without_a_gradient_changes_nothing() {
    let mut trainer = tiny_trainer(raw_config());
    trainer
        .grpo_step(
            &[on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])],
            PolicyVersion(1),
        )
        .unwrap();
    let before = weights(&trainer);
    let updates = trainer.optimizer.updates();
    let report = trainer
        .grpo_step(
            &[on_policy_group(&trainer, &[(0.1 + 0.2, GOOD), (0.3, BAD)])],
            PolicyVersion(1),
        )
        .unwrap();
    assert_eq!((report.step, report.updates, report.groups), (2, 0, 0));
    assert_eq!(report.groups_left_out.get("zero_variance"), Some(&1));
    assert_eq!(weights(&trainer), before);
    assert_eq!(trainer.optimizer.updates(), updates);
}

/// N2.
#[test]
fn a_dead_group_adds_nothing() {
    for aggregation in [
        crate::config::AggregationName::TokenMean,
        crate::config::AggregationName::SequenceMean,
    ] {
        let raw = crate::RawTrainerConfig {
            aggregation,
            ..raw_config()
        };
        let (mut with, mut without) = (tiny_trainer(raw.clone()), tiny_trainer(raw));
        let live = on_policy_group(&with, &[(1.0, GOOD), (0.0, BAD)]);
        let dead = on_policy_group(&with, &[(0.5, OTHER), (0.5, BAD)]);
        let with_report = with.grpo_step(&[dead, live.clone()], PolicyVersion(1)).unwrap();
        let without_report = without.grpo_step(&[live], PolicyVersion(1)).unwrap();
        assert_eq!(weights(&with), weights(&without));
        assert_eq!(
            (
                with_report.loss,
                with_report.kl,
                with_report.tokens_total,
                with_report.entropy
            ),
            (
                without_report.loss,
                without_report.kl,
                without_report.tokens_total,
                without_report.entropy
            )
        );
    }
}

#[test]
fn several_updates_use_each_group_once_an_epoch() {
    let raw = crate::RawTrainerConfig {
        updates_per_batch: 2,
        epochs_per_batch: 3,
        learning_rate: 1e-2,
        ..raw_config()
    };
    let mut trainer = tiny_trainer(raw);
    let groups: Vec<TrajectoryGroup> = (0..3)
        .map(|_| on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)]))
        .collect();
    let report = trainer.grpo_step(&groups, PolicyVersion(1)).unwrap();
    assert_eq!((report.updates, trainer.optimizer.updates()), (6, 6));
    assert_eq!(report.tokens_sampled, 3 * 3 * 6);
    // Before the first update only.
    assert!(report.engine_trainer_max_abs_diff.unwrap() < 1e-5);
    assert!(report.kl.unwrap() > 1e-5 && report.clip_fraction > 0.0, "{report:?}");
}

#[test]
fn the_learning_rate_warms_up() {
    let mut trainer = tiny_trainer(crate::RawTrainerConfig {
        learning_rate: 1e-3,
        warmup_steps: 2,
        ..raw_config()
    });
    let mut rates = Vec::new();
    for _ in 0..3 {
        let groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])];
        rates.push(trainer.grpo_step(&groups, PolicyVersion(1)).unwrap().learning_rate);
    }
    assert_eq!(rates, [5e-4, 1e-3, 1e-3]);
}

#[test]
fn the_learning_rate_falls_and_its_schedule_can_begin_anew() {
    let raw = crate::RawTrainerConfig {
        learning_rate: 1e-3,
        decay_steps: 2,
        ..raw_config()
    };
    let mut trainer = tiny_trainer(raw);
    let mut rate = |restart: bool| {
        if restart {
            trainer.restart_schedule();
        }
        let groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])];
        trainer.grpo_step(&groups, PolicyVersion(1)).unwrap().learning_rate
    };
    assert_eq!(
        [rate(false), rate(false), rate(false), rate(true)],
        [1e-3, 5e-4, 0.0, 1e-3]
    );
}

#[test]
fn a_falling_rate_reaches_0_at_the_planned_step_and_a_constant_one_stays() {
    for (decay_steps, expected) in [(4, [1e-3, 5e-4, 0.0]), (0, [1e-3; 3])] {
        let mut trainer = tiny_trainer(crate::RawTrainerConfig {
            learning_rate: 1e-3,
            decay_steps,
            ..raw_config()
        });
        let rates = [4, 2, 2].map(|n_steps| {
            trainer.plan_steps(n_steps);
            let groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])];
            trainer.grpo_step(&groups, PolicyVersion(1)).unwrap().learning_rate
        });
        assert_eq!(rates, expected);
    }
}

#[test]
fn an_interrupt_ends_a_step_before_its_update() {
    let mut trainer = tiny_trainer(raw_config());
    let groups = [on_policy_group(&trainer, &[(1.0, GOOD), (0.0, BAD)])];
    let before = trainer.adapter.parameters()[0].1.copy();
    trainer.interrupt_flag().store(true, Ordering::Relaxed);
    let error = trainer.grpo_step(&groups, PolicyVersion(1)).unwrap_err();
    assert!(matches!(error, crate::TrainError::Interrupted), "{error}");
    assert_eq!(trainer.optimizer.updates(), 0);
    assert_eq!(trainer.adapter.parameters()[0].1, before);
}

#[test]
fn scores_are_those_of_a_single_pass() {
    let trainer = tiny_trainer(raw_config());
    fill_randomly(&trainer.adapter, 1);
    let sequences = vec![GOOD.to_vec(), vec![4], BAD.to_vec(), Vec::new()];
    let scores = trainer.score(&sequences, false).unwrap();
    assert_eq!(scores[1], [None]);
    assert_eq!(scores[3], []);
    let ids: Vec<i64> = GOOD.iter().map(|&id| i64::from(id)).collect();
    let positions = Tensor::arange(5, (Kind::Int64, tch::Device::Cpu));
    let hidden = trainer.model.forward(
        &Tensor::from_slice(&ids),
        &positions,
        &AdapterRows::Base,
        &mut CausalAttention,
    );
    let logprobs = trainer.model.logits(&hidden).log_softmax(-1, None::<Kind>);
    for position in 1..5 {
        let expected = logprobs.double_value(&[position as i64 - 1, ids[position]]);
        assert!((scores[0][position].unwrap() - expected).abs() < 1e-5);
    }
    assert_ne!(trainer.score(&sequences, true).unwrap(), scores);
}

#[test]
fn an_unknown_token_is_named() {
    let trainer = tiny_trainer(raw_config());
    let error = trainer.score(&[vec![1, 37]], true).unwrap_err().to_string();
    assert!(
        error.starts_with("token id 37 is outside the model's vocabulary of 37"),
        "{error}"
    );
}

#[test]
fn every_mini_batch_has_its_share_of_every_group() {
    let trajectories: Vec<Trajectory> = (0..7).map(|at| trajectory(&[1, 2, 3 + at], &[2], &[0.0])).collect();
    // Two groups: the first four trajectories, and the other three.
    let dealt = |n: usize| -> Vec<Vec<u32>> {
        let weighted = trajectories.iter().map(|trajectory| Weighted {
            trajectory,
            advantage: 1.0.into(),
        });
        let last_token = |weighted: &Weighted| weighted.trajectory.token_ids[2] - 3;
        deal(weighted, n)
            .iter()
            .map(|mini_batch| mini_batch.iter().map(last_token).collect())
            .collect()
    };
    assert_eq!(dealt(1), [[0, 1, 2, 3, 4, 5, 6]]);
    assert_eq!(dealt(2), [vec![0, 2, 4, 6], vec![1, 3, 5]]);
    assert_eq!(dealt(9).len(), 7);
}
