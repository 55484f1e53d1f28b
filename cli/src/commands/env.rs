//! `trainyard env NAME`

use clap::{Args, Subcommand};
use mcp_envs::envs::nws::client::{ClientConfig, DEFAULT_URL, NwsClient};
use mcp_envs::envs::nws::server::NwsServer;
use mcp_envs::envs::nws::stand_in::{self, Faults, StandIn};
use mcp_envs::envs::nws::weather::Weather;
use mcp_envs::server::{HttpAccess, MCP_PATH, serve_http, serve_stdio};

use super::{demand_token, listen};
use crate::failure::{UsageError, chain};
use crate::shutdown;
use crate::telemetry::{print, print_error};

/// Arguments of `trainyard env`.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    name: EnvironmentName,
}

/// The environments that ship with Trainyard.
#[derive(Debug, Subcommand)]
enum EnvironmentName {
    /// Tools of the National Weather Service, over stdio unless --listen is given
    Nws(NwsArgs),
    /// The weather service's stand-in alone: the routes of api.weather.gov with made-up weather
    NwsStandIn(StandInArgs),
}

#[derive(Debug, Args)]
struct NwsArgs {
    /// Serve Streamable HTTP here instead of stdio; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Weather service to ask
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL, conflicts_with = "stand_in")]
    weather_url: String,
    /// Ask a stand-in of the weather service, started for this purpose, with weather from this seed
    #[arg(long, value_name = "SEED")]
    stand_in: Option<u64>,
    /// Another `Host` that HTTP requests may name, beside those of loopback; may be repeated
    #[arg(long = "allow-host", value_name = "HOST", requires = "listen")]
    allowed_hosts: Vec<String>,
    /// Token that HTTP requests must carry; demanded beyond loopback
    #[arg(long, env = "TRAINYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

#[derive(Debug, Args)]
struct StandInArgs {
    /// Address; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// The same seed gives the same weather
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Serves until a signal, or until the client on stdin hangs up. The first line printed is the address, on standard
/// error where standard output belongs to the protocol.
pub(crate) async fn run(args: EnvArgs) -> anyhow::Result<()> {
    match args.name {
        EnvironmentName::Nws(args) => nws(args).await,
        EnvironmentName::NwsStandIn(args) => nws_stand_in(&args).await,
    }
}

async fn nws(args: NwsArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let http = match &args.listen {
        Some(address) => {
            let listener = listen(address).await?;
            demand_token(listener.local_addr()?, args.token.as_deref())?;
            Some(listener)
        }
        None => None,
    };
    // Lives as long as the server that asks it.
    let stand_in = match args.stand_in {
        Some(seed) => Some(StandIn::start(listen("127.0.0.1:0").await?, seed, Faults::none())?),
        None => None,
    };
    let url = stand_in.as_ref().map_or(args.weather_url, StandIn::url);
    let client = NwsClient::new(ClientConfig::new(url)).map_err(|error| UsageError::new(chain(&error)))?;
    match http {
        Some(listener) => {
            print(format!("http://{}{MCP_PATH}", listener.local_addr()?));
            serve_http(
                listener,
                move || NwsServer::new(client.clone()),
                HttpAccess {
                    allowed_hosts: args.allowed_hosts,
                    token: args.token,
                },
                shutdown,
            )
            .await?;
        }
        None => {
            if let Some(stand_in) = &stand_in {
                print_error(stand_in.url());
            }
            serve_stdio(NwsServer::new(client), shutdown).await?;
        }
    }
    Ok(())
}

async fn nws_stand_in(args: &StandInArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let listener = listen(&args.listen).await?;
    print(format!("http://{}", listener.local_addr()?));
    stand_in::serve(listener, Weather::new(args.seed), Faults::none(), shutdown).await?;
    Ok(())
}
