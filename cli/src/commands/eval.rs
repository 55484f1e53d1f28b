//! `trainyard eval`: how often a policy is right on held-out scenarios.

use std::path::PathBuf;

use clap::Args;
use mcp_envs::statistics::{Column, text_table};
use serde_json::json;
use trajectory::Split;

use crate::config::RunConfig;
use crate::shutdown;
use crate::telemetry::{print, print_error};
use crate::train::evaluation::{evaluate, held_out};
use crate::train::session::{default_store, with_policy};

/// Arguments of `trainyard eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Configuration of model, agent, tools and scenarios: that of a training run
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Adapter to evaluate (PEFT folder); the base model if absent
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// A scenario file (JSON lines) in place of the configuration's; its held-out scenarios count
    #[arg(long, value_name = "FILE")]
    scenarios: Option<PathBuf>,
    /// Store that receives the episodes; a new one below the configuration's output folder if absent
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Print the results as JSON in place of the table
    #[arg(long)]
    json: bool,
    /// Another setting: SECTION.KEY=VALUE, as in the configuration file
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    settings: Vec<String>,
}

/// Runs each held-out scenario once, greedily, and prints success by kind.
pub(crate) async fn run(args: EvalArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let mut config = RunConfig::load_with(&args.config, &args.settings)?;
    if let Some(path) = &args.scenarios {
        config.environment.scenarios = Some(std::path::absolute(path)?);
    }
    let store = args.store.unwrap_or_else(|| default_store(&config, "eval"));
    let label = match &args.adapter {
        Some(adapter) => adapter.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        None => "base".to_owned(),
    };
    let evaluation = with_policy(
        config,
        args.adapter.as_deref(),
        Split::HeldOut,
        &store,
        &shutdown,
        async |world| {
            let scenarios = held_out(&world.scenarios, world.config.evaluation.scenarios);
            Ok(evaluate(world, &label, &scenarios, &shutdown).await?.0)
        },
    );
    let results = evaluation.await?.results;
    if args.json {
        let adapter = args.adapter.as_ref();
        print(json!({"adapter": adapter, "held_out": results, "store": store}));
    } else {
        let column = Column {
            label: &label,
            results: Some(&results),
        };
        print(text_table(&[column]));
        print_error(format!("episodes     {}", store.display()));
    }
    Ok(())
}
