//! Warm start: a teacher answers some training scenarios through the same proxy and the same agent, and the policy
//! learns from the recorded episodes by supervised fine-tuning.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Context;
use mcp_envs::rollout::EpisodePlan;
use mcp_envs::scenario::Scenario;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::Map;
use tokio_util::sync::CancellationToken;
use trainer::{SupervisedPlan, Trainer};
use trajectory::Split;

use super::progress::{Progress, duration, line};
use super::world::{TEACHER, World};
use crate::demonstration::demonstration;

/// Rolls the teacher out and trains on its right answers; returns what came of its episodes.
pub(crate) async fn warm_start(
    world: &World,
    trainer: &mut Trainer,
    scenarios: &[Scenario],
    cancel: &CancellationToken,
) -> anyhow::Result<Vec<mcp_envs::rollout::EpisodeOutcome>> {
    let config = &world.config.warm_start;
    let chosen = demonstrations(
        scenarios,
        config.steps * config.demonstrations_per_step,
        world.config.run.seed,
    );
    let started = std::time::Instant::now();
    let plans = chosen.into_iter().map(|scenario| EpisodePlan {
        scenario,
        group: None,
        split: Split::Train,
        overrides: Map::new(),
        upstream: Some(TEACHER.to_owned()),
    });
    let plans: Vec<_> = plans.collect();
    let progress = Progress::start("teacher's episodes", plans.len());
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
    super::check_outcomes(&outcomes, cancel).context("the teacher's episodes did not run")?;
    let demonstrated = std::time::Instant::now();

    let mut examples = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.success()) {
        if let Some(id) = &outcome.episode_id {
            let record = world.store.record(id)?;
            let record = record.with_context(|| format!("episode {id} is not in the store"))?;
            examples.extend(demonstration(&world.tokenizer, record.calls)?);
        }
    }
    anyhow::ensure!(
        !examples.is_empty(),
        "the teacher gave no right answer, so there is nothing to learn from"
    );
    let plan = SupervisedPlan {
        batch_size: config.demonstrations_per_step,
        epochs: 1,
        learning_rate: config.learning_rate,
    };
    let n_steps = plan.n_steps(examples.len());
    let progress = Progress::start("warm start", n_steps);
    let last = tokio::task::block_in_place(|| {
        trainer.fine_tune(&examples, plan, |report| {
            progress.advance(format!("loss {:.3}", report.loss));
            match cancel.is_cancelled() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    })?;
    progress.finish();
    anyhow::ensure!(!cancel.is_cancelled(), super::Interrupted);
    let last = last.map_or(f64::NAN, |report| report.loss);
    line(format!(
        "warm start   {} demonstrations in {}, {n_steps} steps in {}, last loss {last:.3}",
        examples.len(),
        duration((demonstrated - started).as_secs_f64()),
        duration(demonstrated.elapsed().as_secs_f64()),
    ));
    Ok(outcomes)
}

/// `n` training scenarios, evenly over the kinds, in an order that mixes the kinds.
fn demonstrations(scenarios: &[Scenario], n: usize, seed: u64) -> Vec<Scenario> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut kinds: BTreeMap<&str, Vec<&Scenario>> = BTreeMap::new();
    for scenario in scenarios.iter().filter(|scenario| scenario.split == Split::Train) {
        kinds.entry(&scenario.kind).or_default().push(scenario);
    }
    kinds.values_mut().for_each(|of_kind| of_kind.shuffle(&mut random));
    let mut chosen: Vec<Scenario> = Vec::with_capacity(n);
    let mut round = 0;
    while chosen.len() < n && !kinds.is_empty() {
        let mut row: Vec<&Scenario> = kinds
            .values()
            .filter(|of_kind| !of_kind.is_empty())
            .map(|of_kind| of_kind[round % of_kind.len()])
            .collect();
        row.shuffle(&mut random);
        chosen.extend(row.into_iter().take(n - chosen.len()).cloned());
        round += 1;
    }
    chosen
}
