//! `trainyard train`: one process tree that trains an agent and reports.
//!
//! 1. `world.rs` starts every part.
//! 2. `evaluation.rs` measures the base model on held-out scenarios.
//! 3. `warm_start.rs` learns from a teacher's episodes.
//! 4. `grpo.rs` rolls out and trains, step by step (`balance.rs` evens out the kinds); `publish.rs` swaps each new
//!    adapter in.
//! 5. `report.rs` writes what people and machines read.
//!
//! `folder.rs` holds the names and the resumable state. `session.rs` starts the same parts around one policy, for
//! `trainyard eval` and `trainyard rollout`.

mod balance;
pub(crate) mod evaluation;
mod folder;
pub(crate) mod grpo;
mod memory;
pub(crate) mod progress;
mod publish;
mod report;
pub(crate) mod session;
mod time_plan;
mod warm_start;
mod world;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use mcp_envs::rollout::EpisodeOutcome;
use mcp_envs::scenario::Scenario;
use tokio_util::sync::CancellationToken;
use trainer::Trainer;
use trajectory::{PolicyVersion, Split, Store};

use self::evaluation::{evaluate, held_out};
use self::folder::{RunFolder, RunState, Unsettled};
use self::grpo::StepSize;
use self::memory::PeakMemory;
use self::progress::line;
use self::publish::Publisher;
use self::time_plan::TimePlan;
use self::world::{Loaded, World, open_store};
use crate::config::RunConfig;

/// The run was told to stop; what is done is kept.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Where a run comes from.
pub(crate) enum Start {
    /// A configuration, the command line's settings in place.
    New {
        /// The file.
        config: Box<RunConfig>,
    },
    /// An interrupted run's folder; `None`: the newest.
    Resume(Option<PathBuf>),
}

/// Trains, and returns the run's folder.
pub(crate) async fn train(start: Start, shutdown: CancellationToken) -> anyhow::Result<PathBuf> {
    let (folder, config, resumed) = match start {
        Start::New { config } => (None, *config, false),
        Start::Resume(path) => {
            let path = match path {
                Some(path) => path,
                None => RunFolder::newest_unfinished(std::path::Path::new("runs"))?,
            };
            let (folder, config) = RunFolder::open(&path)?;
            (Some(folder), config, true)
        }
    };
    line(format!("loading      {}", config.model.path.display()));
    // Everything that can be wrong in the configuration is found before the folder is made.
    let loaded = Loaded::load(&config)?;
    loaded.check_split(Split::Train)?;
    loaded.check_split(Split::HeldOut)?;
    let open = |config: &RunConfig| {
        let folder = match folder {
            Some(folder) => folder,
            None => RunFolder::create(config)?,
        };
        Ok((open_store(&folder.store())?, folder))
    };
    let (world, folder) = unless_interrupted(&shutdown, World::start(config, loaded, open)).await?;
    line(format!("run folder   {}", folder.root().display()));
    let stop = CancellationToken::new();
    let result = async {
        let run = Run::restore(&world, &folder, stop.clone(), resumed)?;
        crate::shutdown::raise(run.trainer.interrupt_flag(), shutdown.clone());
        run.finish(shutdown.clone()).await
    };
    let result = result.await;
    stop.cancel();
    world.stop().await;
    if shutdown.is_cancelled() {
        line(format!(
            "interrupted; go on with: trainyard train --resume {}",
            folder.root().display()
        ));
        return Err(Interrupted.into());
    }
    result.map(|()| folder.root().to_owned())
}

/// Does `work`, but for an interruption: then it is dropped where it stands.
pub(crate) async fn unless_interrupted<T>(
    shutdown: &CancellationToken,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        () = shutdown.cancelled() => Err(Interrupted.into()),
    }
}

/// A run in progress.
struct Run<'a> {
    world: &'a World,
    folder: &'a RunFolder,
    trainer: Trainer,
    publisher: Publisher,
    state: RunState,
    memory: PeakMemory,
    started: Instant,
    earlier_seconds: f64,
}

impl<'a> Run<'a> {
    /// A new run, or the one that the folder's checkpoint holds.
    fn restore(
        world: &'a World,
        folder: &'a RunFolder,
        stop: CancellationToken,
        resumed: bool,
    ) -> anyhow::Result<Self> {
        let mut trainer = Trainer::new(
            world.model.shallow_clone(),
            world.config.trainer.settings(&world.config.model.path)?,
            world.config.run.seed,
        )?;
        let mut state = RunState::default();
        if resumed && Trainer::has_checkpoint(&folder.checkpoint())? {
            let extra = trainer.load_checkpoint(&folder.checkpoint())?;
            state = serde_json::from_value(extra).context("the state in the checkpoint")?;
        }
        folder.drop_adapters_after(state.version)?;
        if let Some(unsettled) = &state.unsettled {
            settle(&world.store, folder, unsettled, None)?;
        }
        let publisher = Publisher::new(world.inference.clone(), &world.proxy_url)?;
        let memory = PeakMemory::watch(state.peak_rss_bytes, stop);
        let earlier_seconds = state.seconds;
        Ok(Self {
            world,
            folder,
            trainer,
            publisher,
            state,
            memory,
            started: Instant::now(),
            earlier_seconds,
        })
    }

    async fn finish(mut self, cancel: CancellationToken) -> anyhow::Result<()> {
        let config = &self.world.config;
        if self.state.version > 0 {
            line(format!(
                "resuming     at step {} with policy@{}",
                self.state.step, self.state.version
            ));
            self.publisher
                .publish(self.state.version, &self.folder.adapter(self.state.version))
                .await?;
        }
        let scenarios = held_out(&self.world.scenarios, config.evaluation.scenarios);
        let training = self.world.training_scenarios();
        line(format!(
            "scenarios    {} for training, {} held out (other places)",
            training.len(),
            scenarios.len()
        ));

        if config.evaluation.base && self.state.base.is_none() && self.state.version == 0 {
            let (evaluation, outcomes) = evaluate(self.world, "base", &scenarios, &cancel).await?;
            report::evaluation_line("base", &evaluation);
            self.state.base = Some(evaluation);
            self.count(&outcomes);
            self.checkpoint()?;
        }
        if config.warm_start.steps > 0 && self.state.version == 0 {
            let outcomes = warm_start::warm_start(self.world, &mut self.trainer, &training, &cancel).await?;
            self.count(&outcomes);
            self.publish().await?;
        }
        if self.state.warm_start.is_none() && self.state.step == 0 {
            let (evaluation, outcomes) = evaluate(self.world, "warm start", &scenarios, &cancel).await?;
            report::evaluation_line("warm start", &evaluation);
            self.state.warm_start = Some(evaluation);
            self.count(&outcomes);
            self.checkpoint()?;
        }
        self.grpo(&training, &scenarios, &cancel).await?;
        if self.state.grpo.is_none() {
            let (evaluation, outcomes) = evaluate(self.world, "GRPO", &scenarios, &cancel).await?;
            report::evaluation_line("GRPO", &evaluation);
            self.state.grpo = Some(evaluation);
            self.count(&outcomes);
            self.checkpoint()?;
        }
        report::write(self.world, self.folder, &self.state, &scenarios)
    }

    async fn grpo(
        &mut self,
        training: &[Scenario],
        held_out: &[Scenario],
        cancel: &CancellationToken,
    ) -> anyhow::Result<()> {
        let config = &self.world.config;
        let begun = Instant::now();
        let earlier_seconds = self.state.grpo_seconds;
        let seconds = || earlier_seconds + begun.elapsed().as_secs_f64();
        while self.state.step < config.trainer.steps && !self.state.grpo_ended {
            let step = self.state.step + 1;
            let planned = self.time_plan(seconds());
            if planned.last_step < step {
                line(format!(
                    "time limit   GRPO ends after {} of {} steps",
                    self.state.step, config.trainer.steps
                ));
                break;
            }
            self.trainer.plan_steps(planned.last_step as u64);
            let share = planned.share(step);
            if share < 1.0 {
                line(format!(
                    "time limit   step {step} is the last, with {:.0} % of its groups",
                    100.0 * share
                ));
            }
            let done = grpo::grpo_step(
                self.world,
                &mut self.trainer,
                training,
                StepSize { step, share },
                self.state.version,
                cancel,
            )
            .await?;
            self.count(&done.outcomes);
            let difference = done.metrics.trainer.engine_trainer_max_abs_diff.unwrap_or_default();
            self.state.engine_trainer_max_abs_diff = self.state.engine_trainer_max_abs_diff.max(difference);
            self.state.step = step;
            self.state.grpo_seconds = seconds();
            self.state.grpo_ended = share < 1.0;
            let unsettled = Unsettled {
                step: step as u64,
                outcomes: grpo::rewarded(&done.outcomes),
                group_ids: done.group_ids,
                metrics: serde_json::to_value(&done.metrics)?,
            };
            self.state.unsettled = Some(unsettled.clone());
            let swapped = Instant::now();
            self.publish().await?;
            settle(
                &self.world.store,
                self.folder,
                &unsettled,
                Some(swapped.elapsed().as_secs_f64()),
            )?;
            let each = seconds() / step as f64;
            report::step_line(
                &done.metrics,
                config.trainer.steps,
                each * (config.trainer.steps - step) as f64,
            );
            if step.is_multiple_of(config.evaluation.every) && step < config.trainer.steps {
                let (evaluation, outcomes) = evaluate(self.world, &format!("step {step}"), held_out, cancel).await?;
                self.count(&outcomes);
                report::evaluation_line(&format!("step {step}"), &evaluation);
            }
        }
        Ok(())
    }

    /// How far GRPO goes: the configured steps, or what leaves time for an evaluation, as far as can be told from the
    /// `grpo_seconds` that the steps so far took.
    fn time_plan(&self, grpo_seconds: f64) -> TimePlan {
        let configured = self.world.config.trainer.steps;
        let limit = 60.0 * self.world.config.run.time_limit_minutes;
        if limit <= 0.0 || self.state.step == 0 {
            return TimePlan::whole(configured);
        }
        let step = grpo_seconds / self.state.step as f64;
        let evaluation = self
            .state
            .warm_start
            .as_ref()
            .map_or(60.0, |evaluation| evaluation.seconds);
        let left = limit - self.seconds() - 1.2 * evaluation;
        TimePlan::within(configured, self.state.step, left, step)
    }

    /// Adapter directory → checkpoint → hot swap. After a crash in between, the checkpoint's version is published again.
    async fn publish(&mut self) -> anyhow::Result<()> {
        let version = self.state.version + 1;
        let base_model = self.world.config.model.path.to_string_lossy();
        let directory = trainer::publish_directory(
            self.trainer.adapter(),
            &base_model,
            &self.folder.adapters(),
            PolicyVersion(version),
        )?;
        self.state.version = version;
        self.checkpoint()?;
        self.publisher.publish(version, &directory).await?;
        Ok(())
    }

    fn checkpoint(&mut self) -> anyhow::Result<()> {
        self.state.seconds = self.seconds();
        self.state.peak_rss_bytes = self.memory.bytes();
        let state = serde_json::to_value(&self.state)?;
        tokio::task::block_in_place(|| self.trainer.save_checkpoint(&self.folder.checkpoint(), &state))?;
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.earlier_seconds + self.started.elapsed().as_secs_f64()
    }

    fn count(&mut self, outcomes: &[EpisodeOutcome]) {
        let counts = &mut self.state.episodes;
        counts.total += outcomes.len();
        counts.failed += outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
        let tainted = |outcome: &EpisodeOutcome| {
            let episode = outcome
                .episode_id
                .as_ref()
                .and_then(|id| self.world.store.episode(id).ok().flatten());
            episode.is_some_and(|episode| episode.tainted.is_some())
        };
        counts.tainted += outcomes.iter().filter(|outcome| tainted(outcome)).count();
    }
}

/// Tells store and metrics of a step that the checkpoint holds; again changes nothing.
fn settle(store: &Store, folder: &RunFolder, done: &Unsettled, publish_seconds: Option<f64>) -> anyhow::Result<()> {
    store.acknowledge(&done.group_ids, done.step, &done.outcomes)?;
    report::append_metrics(folder, &done.metrics, publish_seconds)
}

/// An evaluation or a step needs episodes that ran: all failing alike is a broken set-up, not a result.
pub(crate) fn check_outcomes(outcomes: &[EpisodeOutcome], cancel: &CancellationToken) -> anyhow::Result<()> {
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    let failures: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.failure.as_ref()).collect();
    match failures.first() {
        Some(first) if failures.len() == outcomes.len() => {
            anyhow::bail!(
                "every episode failed; the first one: {:?}: {}",
                first.cause,
                first.message
            )
        }
        _ => Ok(()),
    }
}
