//! An MCP server over stdio, or over Streamable HTTP.

use std::sync::Arc;

use axum::Router;
use rmcp::service::ServerInitializeError;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::EnvironmentError;

/// The path of the Streamable HTTP endpoint.
pub const MCP_PATH: &str = "/mcp";

/// Serves one client on stdin and stdout, until it hangs up or `shutdown`.
pub async fn serve_stdio<S: ServerHandler>(handler: S, shutdown: CancellationToken) -> Result<(), EnvironmentError> {
    let ended = |error: &dyn std::fmt::Display| EnvironmentError::McpSession {
        problem: error.to_string(),
    };
    let session = match handler.serve_with_ct(rmcp::transport::stdio(), shutdown).await {
        Ok(session) => session,
        // A client that goes away before it says hello wanted nothing.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(ended(&error)),
    };
    session.waiting().await.map(|_| ()).map_err(|error| ended(&error))
}

/// Serves any number of clients at `/mcp`, each in a session of its own, until `shutdown`.
///
/// Only loopback names are accepted as `Host`, against DNS rebinding, unless `allowed_hosts` names others.
pub async fn serve_http<S, F>(
    listener: TcpListener,
    factory: F,
    allowed_hosts: &[String],
    shutdown: CancellationToken,
) -> Result<(), EnvironmentError>
where
    S: ServerHandler,
    F: Fn() -> S + Send + Sync + 'static,
{
    let mut config = StreamableHttpServerConfig::default().enforce_origin_validation();
    config.cancellation_token = shutdown.child_token();
    config.allowed_hosts.extend(allowed_hosts.iter().cloned());
    let service = StreamableHttpService::new(move || Ok(factory()), Arc::new(LocalSessionManager::default()), config);
    axum::serve(listener, Router::new().nest_service(MCP_PATH, service))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(|source| EnvironmentError::Serve { server: "MCP", source })
}
