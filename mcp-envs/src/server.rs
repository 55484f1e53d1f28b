//! An MCP server over stdio, or over Streamable HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use rmcp::service::ServerInitializeError;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use subtle::ConstantTimeEq;
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

/// Who may use an MCP server over HTTP.
#[derive(Clone, Default)]
pub struct HttpAccess {
    /// Names accepted as `Host` beside those of loopback; against DNS rebinding.
    pub allowed_hosts: Vec<String>,
    /// Demanded as the bearer token of every request; `None`: nothing is.
    pub token: Option<String>,
}

/// Serves any number of clients at `/mcp`, each in a session of its own, until `shutdown`.
pub async fn serve_http<S, F>(
    listener: TcpListener,
    factory: F,
    access: HttpAccess,
    shutdown: CancellationToken,
) -> Result<(), EnvironmentError>
where
    S: ServerHandler,
    F: Fn() -> S + Send + Sync + 'static,
{
    let mut config = StreamableHttpServerConfig::default().enforce_origin_validation();
    config.cancellation_token = shutdown.child_token();
    config.allowed_hosts.extend(access.allowed_hosts);
    let service = StreamableHttpService::new(move || Ok(factory()), Arc::new(LocalSessionManager::default()), config);
    let mut router = Router::new().nest_service(MCP_PATH, service);
    if let Some(token) = access.token {
        let expected: Arc<str> = format!("Bearer {token}").into();
        router = router.layer(from_fn(move |request, next| {
            demand(Arc::clone(&expected), request, next)
        }));
    }
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(|source| EnvironmentError::Serve { server: "MCP", source })
}

/// Passes on what carries the expected `Authorization`.
async fn demand(expected: Arc<str>, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .map_or(&b""[..], |value| value.as_bytes());
    // In a time that doesn't tell where they differ.
    if bool::from(given.ct_eq(expected.as_bytes())) {
        return next.run(request).await;
    }
    let message = "this server needs `Authorization: Bearer` with its token\n";
    (StatusCode::UNAUTHORIZED, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Nothing;

    impl ServerHandler for Nothing {}

    #[tokio::test]
    async fn a_token_is_demanded_where_there_is_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{MCP_PATH}", listener.local_addr().unwrap());
        let access = HttpAccess {
            token: Some("t0ken".into()),
            ..HttpAccess::default()
        };
        tokio::spawn(serve_http(listener, || Nothing, access, CancellationToken::new()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let status = async |authorization: &str| {
            let request = client.post(&url).header("authorization", authorization).body("{}");
            request.send().await.unwrap().status()
        };
        for refused in ["", "t0ken", "Bearer t0ke", "Bearer t0ken2"] {
            assert_eq!(status(refused).await, StatusCode::UNAUTHORIZED, "{refused}");
        }
        assert_ne!(status("Bearer t0ken").await, StatusCode::UNAUTHORIZED);
    }
}
