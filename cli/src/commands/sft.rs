//! `trainyard sft`: supervised fine-tuning of an adapter on recorded episodes, for instance a teacher's.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use inference::chat::ChatTokenizer;
use inference::model::{LoadOptions, Model};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use trainer::{RawTrainerConfig, SupervisedPlan, Trainer, TrainerConfig};
use trajectory::{EpisodeState, ExportedEpisode, Split, Trajectory};

use crate::commands::adapter_folder_is_new;
use crate::demonstration::demonstration;
use crate::failure::{UsageError, chain};
use crate::recorded;
use crate::shutdown;
use crate::telemetry::{print, print_error};

/// Arguments of `trainyard sft`.
#[derive(Debug, Args)]
pub(crate) struct SftArgs {
    /// Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// What to learn from: a store, a run's folder, or a file that `trainyard log export` wrote
    #[arg(long, value_name = "PATH")]
    episodes: PathBuf,
    /// Folder that receives the adapter (PEFT); it must not exist
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Adapter to go on from (PEFT folder); a new one if absent
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// Only episodes with at least this reward; all closed, undamaged ones if absent
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only of this split: train or held_out
    #[arg(long, default_value = "train")]
    split: Split,
    /// How often each episode is seen
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    epochs: u16,
    /// Episodes of one optimiser update
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,
    /// AdamW's rate in the first step; it falls linearly towards 0
    #[arg(long, default_value_t = 2e-3)]
    learning_rate: f64,
    /// Rank of a new adapter
    #[arg(long, default_value_t = 16)]
    rank: i64,
    /// Alpha of a new adapter; the update is scaled by alpha / rank
    #[arg(long, default_value_t = 32.0)]
    alpha: f64,
    /// Seed of the order and of a new adapter
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// cpu or cuda:N
    #[arg(long, default_value = "cpu")]
    device: String,
    /// float32 or bfloat16
    #[arg(long, default_value = "float32")]
    dtype: String,
}

/// Trains and writes the adapter; its folder is the last line on standard output.
pub(crate) fn run(args: &SftArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
    adapter_folder_is_new(&args.out)?;
    let options = LoadOptions::parse(&args.device, &args.dtype).map_err(|error| usage(&error))?;
    let config = TrainerConfig::try_from(RawTrainerConfig {
        base_model: args.model.to_string_lossy().into_owned(),
        rank: args.rank,
        alpha: args.alpha,
        learning_rate: args.learning_rate,
        ..RawTrainerConfig::default()
    })
    .map_err(|error| usage(&error))?;
    let episodes = read(args)?;
    let tokenizer = ChatTokenizer::load(&args.model).map_err(|error| usage(&error))?;
    let mut examples: Vec<Trajectory> = Vec::new();
    let n_episodes = episodes.len();
    for episode in episodes {
        let id = episode.episode_id;
        let trajectories =
            demonstration(&tokenizer, episode.calls).with_context(|| format!("episode {id} can't be tokenised"))?;
        examples.extend(trajectories);
    }
    if examples.is_empty() {
        return Err(
            UsageError::new(format!("{} has no episode to learn from", args.episodes.display()))
                .hint("closed episodes of the split with a model call count; --split and --min-reward narrow them down")
                .into(),
        );
    }
    let model = Model::load(&args.model, &options).map_err(|error| usage(&error))?;
    let mut trainer = Trainer::new(model, config, args.seed).map_err(|error| usage(&error))?;
    crate::shutdown::raise(trainer.interrupt_flag(), shutdown.clone());
    if let Some(adapter) = &args.adapter {
        trainer.load_adapter(adapter).map_err(|error| usage(&error))?;
    }
    examples.shuffle(&mut StdRng::seed_from_u64(args.seed));
    let plan = SupervisedPlan {
        batch_size: args.batch_size.into(),
        epochs: args.epochs.into(),
        learning_rate: args.learning_rate,
    };
    let n_steps = plan.n_steps(examples.len());
    print_error(format!(
        "{} trajectories of {n_episodes} episodes, {n_steps} steps",
        examples.len()
    ));
    let mut step = 0;
    trainer.fine_tune(&examples, plan, |report| {
        step += 1;
        print_error(format!(
            "step {step:>4}/{n_steps}  loss {:.3}  {:.1} s",
            report.loss, report.seconds
        ));
        match shutdown.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    anyhow::ensure!(!shutdown.is_cancelled(), "interrupted; no adapter was written");
    trainer::save_adapter(trainer.adapter(), &args.model.to_string_lossy(), &args.out)?;
    print(args.out.display());
    Ok(())
}

/// The closed, untainted, unfailed episodes that were asked for.
fn read(args: &SftArgs) -> Result<Vec<ExportedEpisode>, UsageError> {
    let wanted = |episode: &ExportedEpisode| {
        let good = args
            .min_reward
            .is_none_or(|least| episode.reward.is_some_and(|reward| reward >= least));
        let whole = episode.state == EpisodeState::Closed && episode.failure.is_none() && !episode.tainted;
        good && whole
    };
    let episodes = recorded::read(&args.episodes, args.split)?;
    Ok(episodes.into_iter().filter(wanted).collect())
}
