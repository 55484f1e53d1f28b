//! One GRPO step of a run: choose scenarios, roll out, train on the recorded groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use mcp_envs::rollout::{EpisodeOutcome, EpisodePlan};
use mcp_envs::scenario::Scenario;
use mcp_envs::selection::{Selection, select};
use serde::Serialize;
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;
use trainer::{StepReport, Trainer};
use trajectory::{GroupId, PolicyVersion, ReadyFilter, ScenarioId, Split};

use super::balance::{Balance, balance};
use super::progress::Progress;
use super::world::World;
use crate::config::SelectionBy;

/// A row of `metrics.jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct StepMetrics {
    /// What the trainer says. First, since it counts supervised steps in its `step` and the run's own count wins.
    #[serde(flatten)]
    pub(crate) trainer: StepReport,
    /// Number of the step, from 1.
    pub(crate) step: usize,
    /// Version that sampled the episodes.
    pub(crate) behaviour_version: u64,
    /// Mean reward of the step's episodes.
    pub(crate) reward: f64,
    /// Share of successful episodes.
    pub(crate) success: f64,
    /// Success by kind of question.
    pub(crate) success_by_kind: BTreeMap<String, f64>,
    /// Episodes, and how many of them failed.
    pub(crate) episodes: usize,
    /// See `episodes`.
    pub(crate) failed: usize,
    /// Seconds of rollouts.
    pub(crate) rollout_seconds: f64,
    /// Seconds of training.
    pub(crate) train_seconds: f64,
    /// Groups that never got to the trainer, by reason.
    pub(crate) groups_not_ready: BTreeMap<String, usize>,
    /// How the kinds were evened out.
    #[serde(flatten)]
    pub(crate) balance: Balance,
}

/// What a step did.
pub(crate) struct Step {
    pub(crate) outcomes: Vec<EpisodeOutcome>,
    pub(crate) group_ids: Vec<GroupId>,
    pub(crate) metrics: StepMetrics,
}

/// Which step, and how much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSize {
    /// Its number, from 1.
    pub(crate) step: usize,
    /// Share of the configured groups and right episodes that it has; below 1 where the run's time allows no whole step.
    pub(crate) share: f64,
}

impl StepSize {
    /// That share of `whole`, at least one.
    fn of(self, whole: usize) -> usize {
        ((whole as f64 * self.share).round() as usize).clamp(1, whole.max(1))
    }
}

/// Rolls out and trains; the caller publishes.
pub(crate) async fn grpo_step(
    world: &World,
    trainer: &mut Trainer,
    scenarios: &[Scenario],
    size: StepSize,
    version: u64,
    cancel: &CancellationToken,
) -> anyhow::Result<Step> {
    let started = Instant::now();
    let step = size.step;
    let plans = plan(world, scenarios, size)?;
    let group_ids: Vec<GroupId> = plans
        .iter()
        .step_by(world.config.trainer.group_size)
        .filter_map(|plan| plan.group.clone())
        .collect();
    let progress = Progress::start(&format!("step {step} rollouts"), plans.len());
    let outcomes = world
        .driver
        .run(
            plans,
            Arc::clone(&world.environment),
            |outcome| progress.episode(outcome),
            cancel.clone(),
        )
        .await;
    progress.finish();
    super::check_outcomes(&outcomes, cancel).with_context(|| format!("the rollouts of step {step} did not run"))?;
    let rolled_out = Instant::now();

    let current = PolicyVersion(version);
    let ready = world.store.ready_groups(&ReadyFilter {
        split: Some(Split::Train),
        group_ids: Some(group_ids.clone()),
        current_version: current,
        max_staleness: Some(0),
        max_failed: world.config.trainer.max_failed,
        ..ReadyFilter::default()
    })?;
    let settings = &world.config.trainer;
    let (groups, balance) = match settings.right_per_kind {
        0 => (ready.groups, Balance::default()),
        wanted => {
            let kinds = scenarios
                .iter()
                .map(|scenario| (ScenarioId::from(scenario.id.as_str()), scenario.kind.clone()))
                .collect();
            balance(&world.store, &kinds, ready.groups, size.of(wanted), settings.max_failed)?
        }
    };
    let report = tokio::task::block_in_place(|| trainer.grpo_step(&groups, current))?;
    let metrics = StepMetrics {
        step,
        behaviour_version: version,
        reward: mean(outcomes.iter().map(|outcome| outcome.reward.unwrap_or_default())),
        success: mean(outcomes.iter().map(|outcome| f64::from(u8::from(outcome.success())))),
        success_by_kind: by_kind(&outcomes),
        episodes: outcomes.len(),
        failed: outcomes.iter().filter(|outcome| outcome.failure.is_some()).count(),
        rollout_seconds: (rolled_out - started).as_secs_f64(),
        train_seconds: rolled_out.elapsed().as_secs_f64(),
        groups_not_ready: ready
            .left_out
            .into_iter()
            .map(|(reason, n)| (reason.to_string(), n))
            .collect(),
        balance,
        trainer: report,
    };
    Ok(Step {
        outcomes,
        group_ids,
        metrics,
    })
}

/// `groups_per_step` scenarios (the step's share of them), `group_size` episodes each. Every episode has its own sampling seed, so that a run can
/// be repeated.
pub(crate) fn plan(world: &World, scenarios: &[Scenario], size: StepSize) -> anyhow::Result<Vec<EpisodePlan>> {
    let step = size.step;
    let config = &world.config;
    let selection = match config.selection.by {
        SelectionBy::Uniform => Selection::Uniform,
        SelectionBy::PassRate => Selection::PassRate {
            floor: config.selection.floor,
        },
    };
    let rates = world.store.pass_rates()?;
    let chosen = select(
        scenarios,
        &rates,
        selection,
        size.of(config.trainer.groups_per_step),
        config.run.seed,
        step as u64,
    );
    let mut plans = Vec::with_capacity(chosen.len() * config.trainer.group_size);
    for (position, scenario) in chosen.into_iter().enumerate() {
        let group = GroupId::new();
        for member in 0..config.trainer.group_size {
            let overrides = Map::from_iter([
                (
                    "temperature".to_owned(),
                    json!(config.rollout.temperature_of(member, config.trainer.group_size)),
                ),
                ("max_tokens".to_owned(), json!(config.rollout.max_tokens)),
                (
                    "seed".to_owned(),
                    json!(episode_seed(
                        config.run.seed,
                        step,
                        position * config.trainer.group_size + member
                    )),
                ),
            ]);
            plans.push(EpisodePlan {
                scenario: scenarios[scenario].clone(),
                group: Some(group.clone()),
                split: Split::Train,
                overrides,
                upstream: None,
            });
        }
    }
    Ok(plans)
}

/// A 32-bit seed: OpenAI's schema has an integer, and clients may read it as a float.
fn episode_seed(seed: u64, step: usize, episode: usize) -> u32 {
    use rand::{Rng, SeedableRng};
    let stream = seed
        .wrapping_mul(1_000_003)
        .wrapping_add(step as u64)
        .wrapping_mul(1_000_003)
        .wrapping_add(episode as u64);
    rand::rngs::StdRng::seed_from_u64(stream).random()
}

/// What the store is told of a step: for each episode with a reward its scenario and whether it succeeded.
pub(crate) fn rewarded(outcomes: &[EpisodeOutcome]) -> Vec<(ScenarioId, bool)> {
    let rewarded = outcomes.iter().filter(|outcome| outcome.reward.is_some());
    rewarded
        .map(|outcome| (outcome.scenario_id.as_str().into(), outcome.success()))
        .collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0usize), |(sum, n), value| (sum + value, n + 1));
    sum / n.max(1) as f64
}

fn by_kind(outcomes: &[EpisodeOutcome]) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for outcome in outcomes {
        kinds
            .entry(outcome.kind.clone())
            .or_default()
            .push(f64::from(u8::from(outcome.success())));
    }
    kinds
        .into_iter()
        .map(|(kind, values)| (kind, mean(values.into_iter())))
        .collect()
}
