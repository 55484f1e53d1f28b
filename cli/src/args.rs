//! The command line.

use clap::{Parser, Subcommand};

use crate::commands;

/// On-the-job training for tool-using agents.
#[derive(Debug, Parser)]
#[command(name = "trainyard", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train an agent: rollouts, GRPO, hot swap, report
    #[cfg(feature = "torch")]
    Train(commands::train::TrainArgs),
    /// Measure a policy on held-out scenarios
    #[cfg(feature = "torch")]
    Eval(commands::eval::EvalArgs),
    /// Record groups of episodes of a policy, for `train --offline` or to look at
    #[cfg(feature = "torch")]
    Rollout(commands::rollout::RolloutArgs),
    /// Fine-tune an adapter on recorded episodes
    #[cfg(feature = "torch")]
    Sft(commands::sft::SftArgs),
    /// Serve a model with the embedded engine (OpenAI-compatible, with LoRA adapters)
    #[cfg(feature = "torch")]
    Serve(commands::serve::ServeArgs),
    /// Record an agent's calls in front of an OpenAI-compatible server
    Proxy(commands::proxy::ProxyArgs),
    /// Run an environment's tool server over stdio or HTTP
    Env(commands::env::EnvArgs),
    /// Load an adapter on the inference servers and make it the current policy
    Publish(commands::publish::PublishArgs),
    /// Read the recorded episodes
    Log(commands::log::LogArgs),
    /// Print the log-probability of each token of given sequences
    #[cfg(feature = "torch")]
    Score(commands::score::ScoreArgs),
}
