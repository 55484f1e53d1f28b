//! Held-out evaluation: the same scenarios, greedily, for each policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use mcp_envs::rollout::{EpisodeOutcome, EpisodePlan};
use mcp_envs::scenario::Scenario;
use mcp_envs::statistics::Results;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;
use trajectory::{EpisodeId, Split};

use super::progress::Progress;
use super::world::World;

/// One policy's held-out results.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Evaluation {
    /// Success by kind and in all.
    pub(crate) results: Results,
    /// The episode of each scenario.
    pub(crate) episodes: BTreeMap<String, EpisodeId>,
    /// Seconds that it took.
    pub(crate) seconds: f64,
}

/// Runs every scenario once, greedily, with the policy that is current.
///
/// # Errors
/// If the run was cancelled, or not one episode could be run.
pub(crate) async fn evaluate(
    world: &World,
    label: &str,
    scenarios: &[Scenario],
    cancel: &CancellationToken,
) -> anyhow::Result<(Evaluation, Vec<EpisodeOutcome>)> {
    let started = std::time::Instant::now();
    let overrides = Map::from_iter([
        ("temperature".to_owned(), json!(0)),
        ("max_tokens".to_owned(), json!(world.config.rollout.max_tokens)),
    ]);
    let plans = scenarios.iter().map(|scenario| EpisodePlan {
        scenario: scenario.clone(),
        group: None,
        split: Split::HeldOut,
        overrides: overrides.clone(),
        upstream: None,
    });
    let progress = Progress::start(&format!("evaluating {label}"), scenarios.len());
    let outcomes = world
        .driver
        .run(
            plans.collect(),
            Arc::clone(&world.environment),
            |outcome| progress.episode(outcome),
            cancel.clone(),
        )
        .await;
    progress.finish();
    super::check_outcomes(&outcomes, cancel).with_context(|| format!("the evaluation of {label} did not run"))?;
    let episodes = outcomes
        .iter()
        .filter_map(|outcome| Some((outcome.scenario_id.clone(), outcome.episode_id.clone()?)))
        .collect();
    let results = Results::from_outcomes(&outcomes);
    Ok((
        Evaluation {
            results,
            episodes,
            seconds: started.elapsed().as_secs_f64(),
        },
        outcomes,
    ))
}

/// The held-out scenarios of an evaluation: `n` of them (0: all), evenly over the kinds, in a fixed order.
pub(crate) fn held_out(scenarios: &[Scenario], n: usize) -> Vec<Scenario> {
    let mut kinds: BTreeMap<&str, Vec<&Scenario>> = BTreeMap::new();
    for scenario in scenarios.iter().filter(|scenario| scenario.split == Split::HeldOut) {
        kinds.entry(&scenario.kind).or_default().push(scenario);
    }
    let available = kinds.values().map(Vec::len).sum::<usize>();
    let wanted = if n == 0 { available } else { n.min(available) };
    let mut chosen = Vec::with_capacity(wanted);
    let mut round = 0;
    while chosen.len() < wanted {
        let row = kinds.values().filter_map(|of_kind| of_kind.get(round));
        chosen.extend(row.take(wanted - chosen.len()).map(|scenario| (*scenario).clone()));
        round += 1;
    }
    chosen
}
