//! `trainyard rollout`: groups of episodes of one policy, recorded and rewarded, for training or for a look at them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use mcp_envs::statistics::{Column, Results, text_table};
use trajectory::Split;

use crate::config::RunConfig;
use crate::shutdown;
use crate::telemetry::{print, print_error};
use crate::train::progress::Progress;
use crate::train::session::{default_store, with_policy};
use crate::train::{check_outcomes, grpo};

/// Arguments of `trainyard rollout`.
#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    /// Configuration of model, agent, tools and scenarios: that of a training run
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Adapter that plays (PEFT folder); the base model if absent
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// Groups in place of the configuration's `trainer.groups_per_step`
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    groups: Option<u32>,
    /// Seed in place of the configuration's: of the choice of scenarios, and of sampling
    #[arg(long)]
    seed: Option<u64>,
    /// Store that receives the episodes; a new one below the configuration's output folder if absent
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Another setting: SECTION.KEY=VALUE, as in the configuration file
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
}

/// Plays `groups` training scenarios, `trainer.group_size` times each; the store's path is the last line on standard output.
pub(crate) async fn run(args: RolloutArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let mut config = RunConfig::load_with(&args.config, &args.settings)?;
    if let Some(groups) = args.groups {
        config.trainer.groups_per_step = groups as usize;
    }
    if let Some(seed) = args.seed {
        config.run.seed = seed;
    }
    let store = args.store.unwrap_or_else(|| default_store(&config, "rollout"));
    let outcomes = with_policy(
        config,
        args.adapter.as_deref(),
        Split::Train,
        &store,
        &shutdown,
        async |world| {
            let plans = grpo::plan(
                world,
                &world.training_scenarios(),
                grpo::StepSize { step: 1, share: 1.0 },
            )?;
            let progress = Progress::start("rollouts", plans.len());
            let on_done = |outcome: &_| progress.episode(outcome);
            let environment = Arc::clone(&world.environment);
            let outcomes = world.driver.run(plans, environment, on_done, shutdown.clone()).await;
            progress.finish();
            check_outcomes(&outcomes, &shutdown).context("the rollouts did not run")?;
            Ok(outcomes)
        },
    );
    let outcomes = outcomes.await?;
    let results = Results::from_outcomes(&outcomes);
    let column = Column {
        label: "rollouts",
        results: Some(&results),
    };
    print_error(text_table(&[column]));
    print(store.display());
    Ok(())
}
