//! One training step: groups or demonstrations in, an updated adapter and a report out.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use inference::model::{LoraAdapter, Model};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use trajectory::{PolicyVersion, Trajectory, TrajectoryGroup};

use crate::batch::{MiniBatch, Selection, Weighted};
use crate::config::TrainerConfig;
use crate::error::TrainError;
use crate::loss::{Aggregation, LossKind};
use crate::metrics::{StepReport, TermSums};
use crate::optimizer::{AdamW, Schedule, clip_gradient_norm, zero_gradients};
use crate::pass::{self, PassOutput, PassSettings};

/// Base model, adapter and optimiser. It owns tensors, so it lives on one thread at a time.
#[derive(Debug)]
pub struct Trainer {
    pub(crate) model: Model,
    pub(crate) config: TrainerConfig,
    pub(crate) adapter: LoraAdapter,
    pub(crate) optimizer: AdamW,
    /// Steps done, supervised and GRPO alike.
    pub(crate) step: u64,
    /// GRPO steps done: the warm-up counts these.
    pub(crate) grpo_steps: u64,
    /// All randomness of the trainer comes from this and the step's number.
    pub(crate) seed: u64,
    pub(crate) interrupt: Arc<AtomicBool>,
}

impl Trainer {
    /// A trainer with a new adapter, which leaves the model as it is until the first step.
    ///
    /// # Errors
    /// An adapter configuration that the model can't have.
    pub fn new(model: Model, config: TrainerConfig, seed: u64) -> Result<Self, TrainError> {
        config.lora.check().map_err(|source| TrainError::Adapter {
            action: "make",
            path: config.base_model.clone().into(),
            source: Box::new(source),
        })?;
        let mut adapter = LoraAdapter::new(&config.lora, model.config(), seed, model.device());
        adapter.set_requires_grad(true);
        let optimizer = AdamW::new(config.adam);
        Ok(Self {
            model,
            config,
            adapter,
            optimizer,
            step: 0,
            grpo_steps: 0,
            seed,
            interrupt: Arc::default(),
        })
    }

    /// A flag that ends a step under way with [`TrainError::Interrupted`], within a forward or a backward pass over
    /// `micro_batch_tokens`: a step takes minutes, and whoever stops a program doesn't want to wait for them.
    pub fn interrupt_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupt)
    }

    /// The adapter in training.
    pub fn adapter(&self) -> &LoraAdapter {
        &self.adapter
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Replaces the adapter, keeping rank, alpha and targets, and forgets the optimiser's state: for a warm start.
    ///
    /// # Errors
    /// The directory is no PEFT adapter of this model, or has another form than the configuration says.
    pub fn load_adapter(&mut self, directory: &std::path::Path) -> Result<(), TrainError> {
        let mut adapter = LoraAdapter::load(directory, self.model.config(), self.model.device()).map_err(|source| {
            TrainError::Adapter {
                action: "load",
                path: directory.to_owned(),
                source: Box::new(source),
            }
        })?;
        let difference = crate::checkpoint::adapter_difference(&self.config.lora, adapter.config());
        if let Some(difference) = difference {
            return Err(TrainError::OtherAdapter {
                path: directory.to_owned(),
                difference,
            });
        }
        adapter.set_requires_grad(true);
        self.adapter = adapter;
        self.reset_optimizer();
        Ok(())
    }

    /// Counts GRPO steps from 1 again, for a training that goes on from another one's checkpoint: the learning rate's
    /// schedule begins anew.
    pub fn restart_schedule(&mut self) {
        self.grpo_steps = 0;
    }

    /// Lets a learning rate that falls over the run reach 0 at the end of GRPO step `n_steps`, counted as the schedule counts; for a run
    /// that learns on the way how many steps its time allows. A constant rate stays constant.
    pub fn plan_steps(&mut self, n_steps: u64) {
        if self.config.schedule.decay_steps > 0 {
            self.config.schedule.decay_steps = n_steps.max(1);
        }
    }

    /// Forgets the optimiser's state, which belongs to another adapter.
    fn reset_optimizer(&mut self) {
        self.optimizer = AdamW::new(self.config.adam);
    }

    /// One supervised step on demonstrations: raises the likelihood of their sampled tokens, each token alike.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, or a failure of the tensor library.
    pub fn sft_step(&mut self, demonstrations: &[Trajectory], learning_rate: f64) -> Result<StepReport, TrainError> {
        let selection = Selection::of_demonstrations(demonstrations, self.config.max_trajectory_tokens);
        let run = StepRun {
            loss: LossKind::Sft,
            aggregation: Aggregation::TokenMean,
            learning_rate,
            schedule: None,
            mini_batches: 1,
            epochs: 1,
            current: None,
        };
        self.run_step(&selection, run)
    }

    /// One GRPO step on ready groups; `current` is the version that this trainer's adapter was published as. Groups and
    /// trajectories without a gradient are left out and counted; the step advances even if nothing remains.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, or a failure of the tensor library.
    pub fn grpo_step(&mut self, groups: &[TrajectoryGroup], current: PolicyVersion) -> Result<StepReport, TrainError> {
        self.grpo_steps += 1;
        let selection = Selection::of_groups(groups, self.config.advantage, self.config.max_trajectory_tokens);
        let run = StepRun {
            loss: self.config.loss,
            aggregation: self.config.aggregation,
            learning_rate: self.config.learning_rate,
            schedule: Some((self.config.schedule, self.grpo_steps)),
            mini_batches: self.config.updates_per_batch,
            epochs: self.config.epochs_per_batch,
            current: Some(current),
        };
        self.run_step(&selection, run)
    }

    fn run_step(&mut self, selection: &Selection, run: StepRun) -> Result<StepReport, TrainError> {
        let started = Instant::now();
        self.step += 1;
        let mut report = StepReport {
            step: self.step,
            learning_rate: run.rate(0.0),
            groups: selection.groups.len(),
            groups_left_out: selection.groups_left_out.clone(),
            trajectories: selection.groups.iter().map(Vec::len).sum(),
            trajectories_left_out: selection.trajectories_left_out.clone(),
            ..StepReport::default()
        };
        let mut sums = TermSums::default();
        let mut random = StdRng::seed_from_u64(self.seed ^ self.step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut order: Vec<usize> = (0..selection.groups.len()).collect();
        let n_updates = run.epochs * run.mini_batches.clamp(1, report.trajectories.max(1));
        let mut done = 0;
        for _ in 0..run.epochs {
            if run.mini_batches > 1 {
                order.shuffle(&mut random);
            }
            let trajectories = order.iter().flat_map(|&group| &selection.groups[group]);
            for trajectories in deal(trajectories.cloned(), run.mini_batches) {
                let batch = MiniBatch::new(trajectories, run.aggregation, run.current);
                let rate = run.rate(done as f64 / n_updates as f64);
                let output = self.update(&batch, &run, rate, &mut report)?;
                done += 1;
                if report.updates + report.updates_non_finite == 1 {
                    compare_with_engine(&batch, &output, &mut report);
                }
                add_outcomes(&batch, &output, &mut sums);
            }
        }
        sums.write(&mut report);
        if report.updates > 0 {
            report.loss /= report.updates as f64;
            report.grad_norm /= report.updates as f64;
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// One optimiser update on one mini-batch.
    fn update(
        &mut self,
        batch: &MiniBatch,
        run: &StepRun,
        learning_rate: f64,
        report: &mut StepReport,
    ) -> Result<PassOutput, TrainError> {
        let mut parameters = self.adapter.parameters();
        zero_gradients(&mut parameters);
        let output = pass::run(
            &self.model,
            Some(&self.adapter),
            batch,
            self.pass_settings(run.loss, true),
        )?;
        report.tokens_total += batch.n_tokens();
        report.tokens_distinct += output.tokens_distinct;
        let grad_norm = clip_gradient_norm(&parameters, self.config.max_grad_norm);
        if output.loss.is_finite() && grad_norm.is_finite() {
            self.optimizer.update(&mut parameters, learning_rate);
            report.updates += 1;
            report.loss += output.loss;
            report.grad_norm += grad_norm;
        } else {
            tracing::warn!(
                step = self.step,
                loss = output.loss,
                grad_norm,
                "gradient is not finite, update dropped"
            );
            report.updates_non_finite += 1;
        }
        Ok(output)
    }

    fn pass_settings(&self, loss: LossKind, with_gradient: bool) -> PassSettings<'_> {
        PassSettings {
            loss,
            micro_batch_tokens: self.config.micro_batch_tokens,
            logits_chunk: self.config.logits_chunk,
            with_gradient,
            interrupt: &self.interrupt,
        }
    }

    /// log p of each token of each sequence given those before it, `None` for the first one. `with_adapter` off scores
    /// the base model. Prefixes that sequences share are computed once.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, or a failure of the tensor library.
    pub fn score(&self, sequences: &[Vec<u32>], with_adapter: bool) -> Result<Vec<Vec<Option<f64>>>, TrainError> {
        let demonstrations: Vec<Trajectory> = sequences
            .iter()
            .map(|token_ids| Trajectory {
                token_ids: token_ids.clone(),
                sampled_mask: vec![true; token_ids.len()],
                behaviour_logprobs: vec![None; token_ids.len()],
                policy_versions: vec![None; token_ids.len()],
            })
            .collect();
        let mut scores: Vec<Vec<Option<f64>>> = sequences.iter().map(|ids| vec![None; ids.len()]).collect();
        // Single tokens have nothing to score; the others keep their place in `scores`.
        let scored: Vec<usize> = (0..sequences.len())
            .filter(|&index| sequences[index].len() > 1)
            .collect();
        let weighted = scored.iter().map(|&index| Weighted {
            trajectory: &demonstrations[index],
            advantage: 1.0.into(),
        });
        let batch = MiniBatch::new(weighted, Aggregation::Constant(1.0), None);
        let adapter = with_adapter.then_some(&self.adapter);
        let output = pass::run(&self.model, adapter, &batch, self.pass_settings(LossKind::Sft, false))?;
        for (term, outcome) in batch.terms.iter().zip(output.outcomes) {
            scores[scored[term.sequence]][term.position] = Some(outcome.policy_logprob);
        }
        Ok(scores)
    }
}

/// How a step goes through what was selected.
#[derive(Clone, Copy, Debug)]
struct StepRun {
    loss: LossKind,
    aggregation: Aggregation,
    learning_rate: f64,
    /// With the number of the GRPO step, from 1.
    schedule: Option<(Schedule, u64)>,
    mini_batches: usize,
    epochs: usize,
    current: Option<PolicyVersion>,
}

impl StepRun {
    /// The learning rate after `share_done` of the step's updates.
    fn rate(&self, share_done: f64) -> f64 {
        let factor = |(schedule, step): (Schedule, u64)| schedule.factor(step, share_done);
        self.learning_rate * self.schedule.map_or(1.0, factor)
    }
}

/// Deals a step's trajectories to at most `n` mini-batches, none of them empty, one after the other: every mini-batch gets
/// its share of each group, so that no update is about a few of the step's questions only and undoes what the others
/// taught.
fn deal<'a>(trajectories: impl Iterator<Item = Weighted<'a>>, n: usize) -> Vec<Vec<Weighted<'a>>> {
    let mut mini_batches: Vec<Vec<Weighted>> = vec![Vec::new(); n.max(1)];
    for (place, trajectory) in trajectories.enumerate() {
        mini_batches[place % n.max(1)].push(trajectory);
    }
    mini_batches.retain(|mini_batch| !mini_batch.is_empty());
    mini_batches
}

/// How far engine and trainer disagree on the tokens that the engine sampled with this very adapter.
fn compare_with_engine(batch: &MiniBatch, output: &PassOutput, report: &mut StepReport) {
    let differences = batch
        .terms
        .iter()
        .zip(&output.outcomes)
        .filter(|(term, _)| term.current && !term.behaviour_logprob.is_nan())
        .map(|(term, outcome)| (outcome.policy_logprob - term.behaviour_logprob).abs());
    let (count, largest) = differences.fold((0, 0.0f64), |(count, largest), difference| {
        (count + 1, largest.max(difference))
    });
    report.engine_trainer_tokens = count;
    report.engine_trainer_max_abs_diff = (count > 0).then_some(largest);
}

fn add_outcomes(batch: &MiniBatch, output: &PassOutput, sums: &mut TermSums) {
    for (term, outcome) in batch.terms.iter().zip(&output.outcomes) {
        sums.terms += 1;
        sums.clipped += outcome.clipped;
        sums.entropy += outcome.entropy;
        sums.logprob += outcome.policy_logprob;
        if !term.behaviour_logprob.is_nan() {
            sums.with_behaviour += 1;
            sums.ratio += outcome.ratio;
            sums.kl += outcome.ratio - 1.0 - (outcome.policy_logprob - term.behaviour_logprob);
        }
    }
}

#[cfg(test)]
#[path = "step/tests.rs"]
mod tests;
