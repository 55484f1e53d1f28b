//! `trainyard proxy`

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use proxy::config::{RawMcpServer, RawUpstream};
use proxy::{ProxyConfig, ProxyError, RawProxyConfig};
use trajectory::Store;

use super::{demand_token, listen};
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
    mcp_servers: Vec<McpArgument>,
    /// Token of the control routes; demanded beyond loopback
    #[arg(long, env = "TRAINYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// A tool server as an argument names it.
#[derive(Clone, Debug)]
struct McpArgument {
    name: String,
    command: Vec<String>,
}

fn mcp_server(text: &str) -> Result<McpArgument, String> {
    let (name, command) = text.split_once('=').ok_or("give NAME=COMMAND")?;
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if name.is_empty() || command.is_empty() {
        return Err("give NAME=COMMAND".into());
    }
    Ok(McpArgument {
        name: name.to_owned(),
        command,
    })
}

impl From<McpArgument> for RawMcpServer {
    fn from(McpArgument { name, command }: McpArgument) -> Self {
        Self {
            name,
            command,
            env: BTreeMap::new(),
            start_timeout_seconds: None,
            call_timeout_seconds: None,
            close_timeout_seconds: None,
        }
    }
}

/// Records until a signal; the first line on standard output is the address.
pub(crate) async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let (address, path) = (args.listen.clone(), args.store.clone());
    let config = proxy_config(args)?;
    let listener = listen(&address).await?;
    let address = listener.local_addr()?;
    demand_token(address, config.token.as_deref())?;
    // The store comes last, so that nothing is written where the rest is wrong.
    let store = Store::open_to_record(&path).map_err(|error| UsageError::new(chain(&error)))?;
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
    let mut raw = RawProxyConfig::default();
    if let Some(path) = &args.config {
        raw = toml_file::parse(path, &toml_file::read(path)?)?;
        expand(&mut raw.mcp_servers, &toml_file::folder(path)?.to_string_lossy())?;
    }
    if let Some(url) = args.upstream {
        raw.upstreams.insert(
            0,
            RawUpstream {
                name: "policy".to_owned(),
                url,
                api_key: args.upstream_key,
                policy: true,
                base_model: args.base_model,
                timeout_seconds: None,
            },
        );
    }
    raw.mcp_servers
        .extend(args.mcp_servers.into_iter().map(RawMcpServer::from));
    raw.token = args.token.or(raw.token);
    let config = ProxyConfig::try_from(raw).map_err(|error| {
        let error = UsageError::new(chain(&error));
        match &args.config {
            Some(path) => error.context(format!("in {}", path.display())),
            None => error,
        }
    })?;
    for upstream in &config.upstreams {
        let url = reqwest::Url::parse(&upstream.url).ok();
        if url.is_none_or(|url| !matches!(url.scheme(), "http" | "https") || url.host_str().is_none()) {
            return Err(
                UsageError::new(format!("upstream {}: '{}' is not a URL", upstream.name, upstream.url))
                    .hint("give it like http://127.0.0.1:8000")
                    .into(),
            );
        }
    }
    Ok(config)
}

/// Puts what `{trainyard}` (the running executable) and `{config_dir}` stand for into the servers' commands.
fn expand(servers: &mut [RawMcpServer], config_dir: &str) -> anyhow::Result<()> {
    let executable = std::env::current_exe().context("the path of the running executable")?;
    let executable = executable.to_string_lossy();
    for server in servers {
        for text in server.command.iter_mut().chain(server.env.values_mut()) {
            *text = text
                .replace("{trainyard}", &executable)
                .replace("{config_dir}", config_dir);
        }
    }
    Ok(())
}
