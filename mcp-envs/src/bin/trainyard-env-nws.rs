//! The weather tools over stdio, and nothing else: what a run starts for each episode.
//!
//! `trainyard env nws` does the same, but it loads libtorch first, which costs 0.3 s of a core a start.
//!
//! Usage: `trainyard-env-nws [URL]`; URL is the weather service's, the real one if absent.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use mcp_envs::envs::nws::client::{ClientConfig, DEFAULT_URL, NwsClient};
use mcp_envs::envs::nws::server::NwsServer;
use mcp_envs::server::serve_stdio;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let url = std::env::args().nth(1).unwrap_or_else(|| DEFAULT_URL.to_owned());
    // reqwest leaves the choice of cryptography to the program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = match NwsClient::new(ClientConfig::new(url)) {
        Ok(client) => client,
        Err(error) => return fail(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let served = runtime.block_on(serve_stdio(NwsServer::new(client), CancellationToken::new()));
    // A thread may still wait for standard input.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
