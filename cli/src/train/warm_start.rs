//! Warm start: a teacher answers some training scenarios through the same proxy and the same agent, and the policy
//! learns from the recorded episodes by supervised fine-tuning.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use mcp_envs::rollout::EpisodePlan;
use mcp_envs::scenario::Scenario;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::Map;
use tokio_util::sync::CancellationToken;
use trainer::Trainer;
use trajectory::{EpisodeId, Split, Trajectory};

use super::progress::{Progress, duration, line};
use super::world::{TEACHER, World};

/// Rolls the teacher out and trains; returns the trainer and the number of episodes.
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
            examples.extend(demonstration(world, id)?);
        }
    }
    anyhow::ensure!(
        !examples.is_empty(),
        "the teacher gave no right answer, so there is nothing to learn from"
    );
    let progress = Progress::start("warm start", examples.len().div_ceil(config.demonstrations_per_step));
    let mut last = 0.0;
    for batch in examples.chunks(config.demonstrations_per_step) {
        anyhow::ensure!(!cancel.is_cancelled(), super::Interrupted);
        let report = tokio::task::block_in_place(|| trainer.sft_step(batch, config.learning_rate))?;
        last = report.loss;
        progress.advance(format!("loss {last:.3}"));
    }
    progress.finish();
    line(format!(
        "warm start   {} demonstrations in {}, {} steps in {}, last loss {last:.3}",
        examples.len(),
        duration((demonstrated - started).as_secs_f64()),
        examples.len().div_ceil(config.demonstrations_per_step),
        duration(demonstrated.elapsed().as_secs_f64()),
    ));
    Ok(outcomes)
}

/// A teacher's calls have no token ids of the policy: they are tokenised by the policy's own template.
fn demonstration(world: &World, id: &EpisodeId) -> anyhow::Result<Vec<Trajectory>> {
    let record = world
        .store
        .record(id)?
        .with_context(|| format!("episode {id} is not in the store"))?;
    let mut calls = record.calls;
    for call in &mut calls {
        let Some(response) = &call.response else { continue };
        if call.choices.iter().any(|choice| !choice.token_ids.is_empty()) {
            continue;
        }
        let (prompt, sampled) = world.tokenizer.tokenize_call(&call.request, response)?;
        call.prompt_token_ids = Some(prompt);
        let behaviour_logprobs = vec![0.0; sampled.len()];
        call.choices = vec![trajectory::SampledChoice {
            index: 0,
            token_ids: sampled,
            behaviour_logprobs,
            finish_reason: None,
        }];
    }
    Ok(trajectory::stitch(&calls))
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
