//! One file a command; each starts what another crate brings.

pub(crate) mod env;
#[cfg(feature = "torch")]
pub(crate) mod eval;
pub(crate) mod log;
#[cfg(feature = "torch")]
pub(crate) mod offline;
pub(crate) mod proxy;
pub(crate) mod publish;
#[cfg(feature = "torch")]
pub(crate) mod rollout;
#[cfg(feature = "torch")]
pub(crate) mod score;
#[cfg(feature = "torch")]
pub(crate) mod serve;
#[cfg(feature = "torch")]
pub(crate) mod sft;
#[cfg(feature = "torch")]
pub(crate) mod train;

use std::net::SocketAddr;
#[cfg(feature = "torch")]
use std::path::Path;

use tokio::net::TcpListener;

use crate::args::Command;
use crate::failure::UsageError;

/// Runs a command to its end.
pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        #[cfg(feature = "torch")]
        Command::Train(args) => train::run(args).await,
        #[cfg(feature = "torch")]
        Command::Eval(args) => eval::run(args).await,
        #[cfg(feature = "torch")]
        Command::Rollout(args) => rollout::run(args).await,
        #[cfg(feature = "torch")]
        Command::Sft(args) => sft::run(&args),
        #[cfg(feature = "torch")]
        Command::Serve(args) => serve::run(args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Env(args) => env::run(args).await,
        Command::Publish(args) => publish::run(args).await,
        Command::Log(args) => log::run(&args),
        #[cfg(feature = "torch")]
        Command::Score(args) => score::run(&args),
    }
}

/// Binds an address, or says what is wrong with it.
pub(crate) async fn listen(address: &str) -> Result<TcpListener, UsageError> {
    TcpListener::bind(address).await.map_err(|source| {
        UsageError::new(format!("can't listen on {address}: {source}"))
            .hint("give HOST:PORT; if another process uses that port, choose another one, or port 0 for a free one")
    })
}

/// Refuses to serve other machines without a token.
fn demand_token(address: SocketAddr, token: Option<&str>) -> Result<(), UsageError> {
    if address.ip().is_loopback() || token.is_some() {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "{address} is reachable from other machines, and there is no token"
    ))
    .hint("set --token or TRAINYARD_TOKEN, or listen on 127.0.0.1"))
}

/// Refuses to write an adapter where something is, or where one can't look.
#[cfg(feature = "torch")]
fn adapter_folder_is_new(out: &Path) -> Result<(), UsageError> {
    match out.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(UsageError::new(format!("{} exists already", out.display()))
            .hint("an adapter's folder never changes: name another one with --out")),
        Err(source) => Err(UsageError::new(format!("can't look at {}: {source}", out.display()))
            .hint("name a folder that you may write to with --out")),
    }
}
