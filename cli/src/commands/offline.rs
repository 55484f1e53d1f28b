//! `trainyard train --offline`: GRPO on recorded groups, with no server.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use inference::model::{LoadOptions, Model};
use tokio_util::sync::CancellationToken;
use trainer::Trainer;
use trajectory::{PolicyVersion, ReadyFilter, ReadyGroups, Split, TrajectoryGroup, ready_exported};

use crate::commands::adapter_folder_is_new;
use crate::config::{RunConfig, TrainerSection};
use crate::failure::{UsageError, chain};
use crate::recorded;
use crate::telemetry::{print, print_error};

/// What `trainyard train` is asked with `--offline`.
#[derive(Debug, Args)]
pub(crate) struct OfflineArgs {
    /// Train on recorded groups and start no server: a store, a run's folder, or a file that `trainyard log export` wrote
    #[arg(long, value_name = "PATH", requires = "out", conflicts_with_all = ["resume", "seed"])]
    pub(crate) offline: Option<PathBuf>,
    /// With --offline: Hugging Face folder or GGUF file; the configuration's if absent
    #[arg(long, value_name = "PATH", requires = "offline")]
    model: Option<PathBuf>,
    /// With --offline: adapter to go on from (PEFT folder); a new one if absent
    #[arg(long, value_name = "FOLDER", requires = "offline")]
    adapter: Option<PathBuf>,
    /// With --offline: checkpoint to go on from (a run's folder has one), with its optimiser's state
    #[arg(long, value_name = "FOLDER", requires = "offline", conflicts_with = "adapter")]
    from: Option<PathBuf>,
    /// With --offline: folder that receives the adapter (PEFT); it must not exist
    #[arg(long, value_name = "FOLDER", requires = "offline")]
    out: Option<PathBuf>,
}

/// Trains on the groups in their order, `groups_per_step` of them a step and from the first again after the last; once
/// through if `steps` is absent. The adapter's folder is the last line on standard output.
pub(crate) fn run(
    args: &OfflineArgs,
    config: Option<&Path>,
    settings: &[String],
    steps: Option<usize>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let (Some(path), Some(out)) = (&args.offline, &args.out) else {
        return Err(UsageError::new("give --offline and --out").into());
    };
    let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
    adapter_folder_is_new(out)?;
    let config = config.map(|path| RunConfig::load_with(path, settings)).transpose()?;
    let mut section = match &config {
        Some(config) => config.trainer.clone(),
        None => TrainerSection::from_settings(settings)?,
    };
    let (device, dtype) = match &config {
        Some(config) => (&config.model.device[..], &config.model.dtype[..]),
        None => ("cpu", "float32"),
    };
    let Some(model) = args.model.as_ref().or(config.as_ref().map(|config| &config.model.path)) else {
        return Err(UsageError::new("no model")
            .hint("give --model, or a configuration with -c")
            .into());
    };
    let seed = config.as_ref().map_or(1, |config| config.run.seed);

    let ReadyGroups { groups, left_out } = ready_exported(
        recorded::read(path, Split::Train)?,
        &ReadyFilter {
            split: Some(Split::Train),
            max_failed: section.max_failed,
            ..ReadyFilter::default()
        },
    );
    for (reason, n) in &left_out {
        print_error(format!("left out: {n} for {reason}"));
    }
    if groups.is_empty() {
        return Err(UsageError::new(format!("{} has no group to train on", path.display()))
            .hint("a group is two or more closed episodes of the training split with the same group id, rewards and token ids")
            .into());
    }
    section.groups_per_step = section.groups_per_step.clamp(1, groups.len());
    section.steps = steps.unwrap_or_else(|| groups.len().div_ceil(section.groups_per_step));

    let options = LoadOptions::parse(device, dtype).map_err(|error| usage(&error))?;
    let loaded = Model::load(model, &options).map_err(|error| usage(&error))?;
    let mut trainer = Trainer::new(loaded, section.settings(model)?, seed).map_err(|error| usage(&error))?;
    crate::shutdown::raise(trainer.interrupt_flag(), shutdown.clone());
    if let Some(adapter) = &args.adapter {
        trainer.load_adapter(adapter).map_err(|error| usage(&error))?;
    }
    if let Some(checkpoint) = &args.from {
        trainer.load_checkpoint(checkpoint).map_err(|error| usage(&error))?;
        trainer.restart_schedule();
    }
    print_error(format!(
        "{} groups, {} steps of {}",
        groups.len(),
        section.steps,
        section.groups_per_step
    ));
    let mut updates = 0;
    for step in 0..section.steps {
        anyhow::ensure!(!shutdown.is_cancelled(), "interrupted; no adapter was written");
        let batch = batch(&groups, step, section.groups_per_step);
        let version = sampled_by(&batch).unwrap_or_default();
        let report = trainer
            .grpo_step(&batch, version)
            .with_context(|| format!("step {}", step + 1))?;
        print_error(format!(
            "step {:>4}/{}  groups {}/{}  updates {}  loss {:.4}  kl {:.4}  {} distinct tokens  {:.1} s",
            step + 1,
            section.steps,
            report.groups,
            batch.len(),
            report.updates,
            report.loss,
            report.kl.unwrap_or_default(),
            report.tokens_distinct,
            report.seconds
        ));
        for (reason, n) in report.groups_left_out.iter().chain(&report.trajectories_left_out) {
            print_error(format!("           left out: {n} for {reason}"));
        }
        updates += report.updates;
    }
    anyhow::ensure!(
        updates > 0,
        "no group had a gradient (the reasons are above), so there is nothing to write"
    );
    trainer::save_adapter(trainer.adapter(), &model.to_string_lossy(), out)?;
    print(out.display());
    Ok(())
}

/// The groups of a step, counted from 0.
fn batch(groups: &[TrajectoryGroup], step: usize, groups_per_step: usize) -> Vec<TrajectoryGroup> {
    let first = step * groups_per_step;
    (first..first + groups_per_step)
        .map(|at| groups[at % groups.len()].clone())
        .collect()
}

/// The version that sampled last, for the comparison of its logprobs with the trainer's.
fn sampled_by(groups: &[TrajectoryGroup]) -> Option<PolicyVersion> {
    let episodes = groups.iter().flat_map(|group| &group.episodes);
    episodes
        .flat_map(|episode| &episode.trajectories)
        .flat_map(|trajectory| &trajectory.policy_versions)
        .flatten()
        .copied()
        .max()
}
