//! What a run leaves behind: lines for people, `summary.json` and `metrics.jsonl` for machines, a plot, transcripts.

use anyhow::Context;
use mcp_envs::scenario::Scenario;
use mcp_envs::statistics::{Attempt, Column, markdown_table, render_transcripts, text_table};
use serde_json::{Value, json};
use trainer::PlotRow;
use trajectory::EpisodeRecord;

use super::evaluation::Evaluation;
use super::folder::{RunFolder, RunState};
use super::grpo::StepMetrics;
use super::progress::{duration, line};
use super::world::World;

/// Scenarios that the transcripts show.
const TRANSCRIPTS: usize = 12;

/// A line for people after an evaluation.
pub(crate) fn evaluation_line(label: &str, evaluation: &Evaluation) {
    let all = &evaluation.results.all;
    line(format!(
        "{label:<12} {:.1} % of {} held-out scenarios (95 %: {:.0} to {:.0}), mean reward {:.2}, {}",
        100.0 * all.success,
        all.n,
        100.0 * all.low,
        100.0 * all.high,
        all.mean_reward,
        duration(evaluation.seconds),
    ));
}

/// A line for people after a step.
pub(crate) fn step_line(metrics: &StepMetrics, steps: usize, left: f64) {
    let trainer = &metrics.trainer;
    let failed = if metrics.failed > 0 {
        format!(", {} episodes failed", metrics.failed)
    } else {
        String::new()
    };
    line(format!(
        "step {:>3}/{steps}  reward {:.3}  success {:>3.0} %  groups {}/{}  rollouts {:>4.1} s  training {:>4.1} s  ETA {}{failed}",
        metrics.step,
        metrics.reward,
        100.0 * metrics.success,
        trainer.groups,
        trainer.groups
            + trainer.groups_left_out.values().sum::<usize>()
            + metrics.groups_not_ready.values().sum::<usize>(),
        metrics.rollout_seconds,
        metrics.train_seconds,
        duration(left),
    ));
}

/// Adds a step's row to `metrics.jsonl`, and drops what is there of later steps: they are repeated. A row that is there
/// already stays, where the time of its publishing is no longer known.
pub(crate) fn append_metrics(folder: &RunFolder, row: &Value, publish_seconds: Option<f64>) -> anyhow::Result<()> {
    let mut rows = read_metrics(folder)?;
    let is_there = rows.iter().any(|earlier| earlier["step"] == row["step"]);
    rows.retain(|earlier| earlier["step"].as_u64() <= row["step"].as_u64());
    if publish_seconds.is_some() || !is_there {
        rows.retain(|earlier| earlier["step"] != row["step"]);
        let mut row = row.clone();
        row["publish_seconds"] = json!(publish_seconds);
        rows.push(row);
    }
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    // A reader, or a crash, finds the old rows or the new ones.
    let path = folder.metrics();
    let written = path.with_extension("jsonl.incomplete");
    std::fs::write(&written, lines)
        .and_then(|()| std::fs::rename(&written, &path))
        .with_context(|| format!("can't write {}", path.display()))
}

fn read_metrics(folder: &RunFolder) -> anyhow::Result<Vec<Value>> {
    match std::fs::read_to_string(folder.metrics()) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context("metrics.jsonl"),
    }
}

/// Writes all results and prints the table.
pub(crate) fn write(world: &World, folder: &RunFolder, state: &RunState, scenarios: &[Scenario]) -> anyhow::Result<()> {
    let evaluations = [
        ("base", &state.base),
        ("warm start", &state.warm_start),
        ("GRPO", &state.grpo),
    ];
    let columns: Vec<Column<'_>> = evaluations
        .iter()
        .filter_map(|(label, evaluation)| {
            Some(Column {
                label,
                results: Some(&evaluation.as_ref()?.results),
            })
        })
        .collect();
    std::fs::write(folder.path("results.md"), markdown_table(&columns))?;
    std::fs::write(
        folder.path("transcripts.md"),
        transcripts(world, &evaluations, scenarios)?,
    )?;
    let rows = read_metrics(folder)?;
    let rows: Vec<PlotRow> = rows.iter().filter_map(plot_row).collect();
    trainer::reward_svg(&rows, &folder.path("reward.svg"))?;
    let results = |evaluation: &Option<Evaluation>| evaluation.as_ref().map(|evaluation| json!(evaluation.results));
    let model = world
        .config
        .model
        .path
        .file_stem()
        .map(|name| name.to_string_lossy().into_owned());
    let summary = json!({
        "seed": world.config.run.seed,
        "model": model,
        "held_out": {"base": results(&state.base), "warm_start": results(&state.warm_start), "grpo": results(&state.grpo)},
        "engine_trainer_max_abs_diff": state.engine_trainer_max_abs_diff,
        "peak_rss_bytes": state.peak_rss_bytes,
        "seconds": state.seconds,
        "steps": state.step,
        "episodes": state.episodes,
    });
    // Last, since a folder with a summary is a finished run.
    std::fs::write(
        folder.path("summary.json"),
        format!("{}\n", serde_json::to_string_pretty(&summary)?),
    )?;

    line("");
    line(text_table(&columns));
    line(format!(
        "{} steps, {} episodes ({} failed, {} tainted) in {}; peak memory {:.1} GiB; engine and trainer differ by {:.1e} at most",
        state.step,
        state.episodes.total,
        state.episodes.failed,
        state.episodes.tainted,
        duration(state.seconds),
        state.peak_rss_bytes as f64 / (1u64 << 30) as f64,
        state.engine_trainer_max_abs_diff,
    ));
    let adapter = folder.adapter(state.version);
    line(format!("transcripts  {}", folder.path("transcripts.md").display()));
    line(format!("plot         {}", folder.path("reward.svg").display()));
    line(format!("adapter      {}", adapter.display()));
    line(format!(
        "serve it     trainyard serve --model {} --adapter policy={} --listen 127.0.0.1:8000",
        world.config.model.path.display(),
        adapter.display()
    ));
    Ok(())
}

fn plot_row(row: &Value) -> Option<PlotRow> {
    Some(PlotRow {
        step: row["step"].as_u64()?,
        reward: row["reward"].as_f64()?,
        success: row["success"].as_f64(),
    })
}

/// The same questions before and after: first those that GRPO made right, then others.
fn transcripts(
    world: &World,
    evaluations: &[(&str, &Option<Evaluation>)],
    scenarios: &[Scenario],
) -> anyhow::Result<String> {
    struct Shown<'a> {
        learnt: bool,
        scenario: &'a Scenario,
        records: Vec<(&'a str, EpisodeRecord)>,
    }
    let mut shown: Vec<Shown<'_>> = Vec::new();
    for scenario in scenarios {
        let mut records = Vec::new();
        for (label, evaluation) in evaluations {
            let id = evaluation
                .as_ref()
                .and_then(|evaluation| evaluation.episodes.get(&scenario.id));
            if let Some(record) = id.map(|id| world.store.record(id)).transpose()?.flatten() {
                records.push((*label, record));
            }
        }
        let success = |label: &str| {
            let record = records
                .iter()
                .find(|(name, _)| *name == label)
                .map(|(_, record)| record);
            record
                .and_then(|record| record.episode.metrics.get("success"))
                .and_then(Value::as_f64)
                .unwrap_or_default()
                >= 1.0
        };
        shown.push(Shown {
            learnt: success("GRPO") && !success("warm start"),
            scenario,
            records,
        });
    }
    shown.sort_by_key(|shown| !shown.learnt);
    let chapters: Vec<(&Scenario, Vec<Attempt<'_>>)> = shown
        .iter()
        .take(TRANSCRIPTS)
        .map(|shown| {
            (
                shown.scenario,
                shown
                    .records
                    .iter()
                    .map(|(label, record)| Attempt { label, record })
                    .collect(),
            )
        })
        .collect();
    Ok(render_transcripts("The same questions before and after", &chapters))
}
