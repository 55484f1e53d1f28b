//! `trainyard proxy`

use std::path::PathBuf;

use clap::Args;
use proxy::{McpServerConfig, ProxyConfig, ProxyError, RawProxyConfig, UpstreamConfig};
use trajectory::Store;

use super::listen;
use crate::failure::{UsageError, chain};
use crate::telemetry::print;
use crate::{shutdown, toml_file};

/// Arguments of `trainyard proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Inference server with the policy, such as http://127.0.0.1:8000
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    upstream: Option<String>,
    /// Key for that server; without one the agent's own key is passed on
    #[arg(
        long,
        value_name = "KEY",
        env = "TRAINYARD_UPSTREAM_KEY",
        hide_env_values = true,
        requires = "upstream"
    )]
    upstream_key: Option<String>,
    /// Name of the base model there, used until a policy is published; the agent's own name if absent
    #[arg(long, value_name = "NAME", requires = "upstream")]
    base_model: Option<String>,
    /// Further upstreams, routes, tool servers and limits (TOML: [[upstreams]], [[routes]], [[mcp_servers]], [limits])
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where episodes are kept
    #[arg(long, value_name = "FILE", default_value = "trajectories.db")]
    store: PathBuf,
    /// Address; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// A stdio MCP server for each episode: NAME=COMMAND (split at blanks); may be repeated
    #[arg(long = "mcp", value_name = "NAME=COMMAND", value_parser = mcp_server)]
    mcp_servers: Vec<McpServerConfig>,
    /// Token of the control routes; demanded beyond loopback
    #[arg(long, env = "TRAINYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

fn mcp_server(text: &str) -> Result<McpServerConfig, String> {
    let (name, command) = text.split_once('=').ok_or("give NAME=COMMAND")?;
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if name.is_empty() || command.is_empty() {
        return Err("give NAME=COMMAND".into());
    }
    Ok(McpServerConfig::new(name, command))
}

/// Records until a signal; the first line on standard output is the address.
pub(crate) async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let (address, path) = (args.listen.clone(), args.store.clone());
    let config = proxy_config(args)?;
    let listener = listen(&address).await?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && config.token.is_none() {
        return Err(UsageError::new(format!("{address} is reachable from other machines, and there is no token"))
            .hint("set --token or TRAINYARD_TOKEN, or listen on 127.0.0.1")
            .into());
    }
    // The store comes last, so that nothing is written where the rest is wrong.
    let store = Store::open(&path).map_err(|error| UsageError::new(chain(&error)))?;
    print(format!("http://{address}"));
    match proxy::serve(listener, config, store, shutdown).await {
        Err(error @ (ProxyError::Config(_) | ProxyError::TokenRequired { .. })) => {
            Err(UsageError::new(chain(&error)).into())
        }
        ended => Ok(ended?),
    }
}

/// The file's configuration with what the arguments add.
fn proxy_config(args: ProxyArgs) -> anyhow::Result<ProxyConfig> {
    let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
    let mut config = match &args.config {
        None => ProxyConfig::new(Vec::new()),
        Some(path) => {
            let raw: RawProxyConfig = toml_file::parse(path, &toml_file::read(path)?)?;
            let in_file = |error: UsageError| error.context(format!("in {}", path.display()));
            let mut config = if raw.upstreams.is_empty() && args.upstream.is_some() {
                // The only upstream is the argument's; it isn't there yet for the file's check.
                let mut with_upstream = raw;
                with_upstream.upstreams = Vec::new();
                partial(with_upstream, args.upstream.clone().unwrap_or_default())
            } else {
                ProxyConfig::try_from(raw)
            }
            .map_err(|error| in_file(usage(&error)))?;
            expand(&mut config, &toml_file::folder(path)?.to_string_lossy())?;
            config
        }
    };
    Ok(config)
}
