//! `trainyard train`

use std::path::PathBuf;

use clap::Args;

use super::offline::{self, OfflineArgs};
use crate::config::RunConfig;
use crate::failure::UsageError;
use crate::shutdown;
use crate::telemetry::print;
use crate::train::{Start, train};

/// Arguments of `trainyard train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Configuration of a new run
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_unless_present_any = ["resume", "offline"],
        conflicts_with = "resume"
    )]
    config: Option<PathBuf>,
    /// Go on with an interrupted run: its folder, or the newest one below runs/
    #[arg(long, value_name = "FOLDER", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,
    /// Seed in place of the configuration's
    #[arg(long, conflicts_with = "resume")]
    seed: Option<u64>,
    /// GRPO steps in place of the configuration's (with --offline: of once through the groups)
    #[arg(long, conflicts_with = "resume")]
    steps: Option<usize>,
    /// Another setting: SECTION.KEY=VALUE, as in the configuration file
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", conflicts_with = "resume")]
    settings: Vec<String>,
    #[command(flatten)]
    offline: OfflineArgs,
}

/// Trains; the run's folder is the last line on standard output.
pub(crate) async fn run(args: TrainArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    if args.offline.offline.is_some() {
        return offline::run(
            &args.offline,
            args.config.as_deref(),
            &args.settings,
            args.steps,
            &shutdown,
        );
    }
    let start = match (args.config, args.resume) {
        (Some(path), _) => {
            let mut config = RunConfig::load_with(&path, &args.settings)?;
            if let Some(seed) = args.seed {
                config.run.seed = seed;
            }
            if let Some(steps) = args.steps {
                config.trainer.steps = steps;
            }
            Start::New {
                config: Box::new(config),
            }
        }
        (None, Some(folder)) => Start::Resume(folder),
        (None, None) => return Err(UsageError::new("give a configuration with -c, or --resume").into()),
    };
    let folder = train(start, shutdown).await?;
    print(folder.display());
    Ok(())
}
