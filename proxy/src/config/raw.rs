//! The form that a configuration file has, and its conversion.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{
    ConfigError, DEFAULT_CALL_TIMEOUT, DEFAULT_CLOSE_TIMEOUT, DEFAULT_START_TIMEOUT, DEFAULT_UPSTREAM_TIMEOUT, Limits,
    McpServerConfig, ProxyConfig, Route, UpstreamConfig,
};

/// The proxy's section of a configuration file. Times are in seconds.
#[derive(Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawProxyConfig {
    /// See [`ProxyConfig::token`].
    pub token: Option<String>,
    /// See [`UpstreamConfig`].
    pub upstreams: Vec<RawUpstream>,
    /// See [`Route`].
    pub routes: Vec<Route>,
    /// See [`McpServerConfig`].
    pub mcp_servers: Vec<RawMcpServer>,
    /// See [`Limits`].
    pub limits: RawLimits,
}

/// An `[[upstreams]]` entry.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawUpstream {
    /// See [`UpstreamConfig::name`].
    pub name: String,
    /// See [`UpstreamConfig::url`].
    pub url: String,
    /// See [`UpstreamConfig::api_key`].
    pub api_key: Option<String>,
    /// See [`UpstreamConfig::policy`].
    #[serde(default)]
    pub policy: bool,
    /// See [`UpstreamConfig::base_model`].
    pub base_model: Option<String>,
    /// See [`UpstreamConfig::timeout`].
    pub timeout_seconds: Option<f64>,
}

/// An `[[mcp_servers]]` entry.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMcpServer {
    /// See [`McpServerConfig::name`].
    pub name: String,
    /// See [`McpServerConfig::command`].
    pub command: Vec<String>,
    /// See [`McpServerConfig::env`].
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// See [`McpServerConfig::start_timeout`].
    pub start_timeout_seconds: Option<f64>,
    /// See [`McpServerConfig::call_timeout`].
    pub call_timeout_seconds: Option<f64>,
    /// See [`McpServerConfig::close_timeout`].
    pub close_timeout_seconds: Option<f64>,
}

/// The `[limits]` table.
#[derive(Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimits {
    /// See [`Limits::max_body_bytes`].
    pub max_body_bytes: Option<usize>,
    /// See [`Limits::max_concurrent_calls`].
    pub max_concurrent_calls: Option<usize>,
    /// See [`Limits::max_open_episodes`].
    pub max_open_episodes: Option<usize>,
    /// See [`Limits::implicit_idle`].
    pub implicit_idle_seconds: Option<f64>,
    /// See [`Limits::drain`].
    pub drain_seconds: Option<f64>,
}

impl TryFrom<RawProxyConfig> for ProxyConfig {
    type Error = ConfigError;

    fn try_from(raw: RawProxyConfig) -> Result<Self, ConfigError> {
        let mut upstreams = Vec::with_capacity(raw.upstreams.len());
        for upstream in raw.upstreams {
            upstreams.push(UpstreamConfig {
                timeout: seconds("timeout_seconds", upstream.timeout_seconds, DEFAULT_UPSTREAM_TIMEOUT)?,
                name: upstream.name,
                url: upstream.url,
                api_key: upstream.api_key,
                policy: upstream.policy,
                base_model: upstream.base_model,
            });
        }
        let mut mcp_servers = Vec::with_capacity(raw.mcp_servers.len());
        for server in raw.mcp_servers {
            mcp_servers.push(McpServerConfig {
                start_timeout: seconds(
                    "start_timeout_seconds",
                    server.start_timeout_seconds,
                    DEFAULT_START_TIMEOUT,
                )?,
                call_timeout: seconds(
                    "call_timeout_seconds",
                    server.call_timeout_seconds,
                    DEFAULT_CALL_TIMEOUT,
                )?,
                close_timeout: seconds(
                    "close_timeout_seconds",
                    server.close_timeout_seconds,
                    DEFAULT_CLOSE_TIMEOUT,
                )?,
                name: server.name,
                command: server.command,
                env: server.env,
            });
        }
        let defaults = Limits::default();
        let limits = Limits {
            max_body_bytes: raw.limits.max_body_bytes.unwrap_or(defaults.max_body_bytes),
            max_concurrent_calls: raw.limits.max_concurrent_calls.unwrap_or(defaults.max_concurrent_calls),
            max_open_episodes: raw.limits.max_open_episodes.unwrap_or(defaults.max_open_episodes),
            implicit_idle: seconds(
                "implicit_idle_seconds",
                raw.limits.implicit_idle_seconds,
                defaults.implicit_idle,
            )?,
            drain: seconds("drain_seconds", raw.limits.drain_seconds, defaults.drain)?,
        };
        let config = Self {
            token: raw.token,
            upstreams,
            routes: raw.routes,
            mcp_servers,
            limits,
        };
        config.validate()?;
        Ok(config)
    }
}

fn seconds(name: &'static str, given: Option<f64>, default: Duration) -> Result<Duration, ConfigError> {
    match given.map(Duration::try_from_secs_f64) {
        None => Ok(default),
        Some(Ok(duration)) if !duration.is_zero() => Ok(duration),
        Some(_) => Err(ConfigError::Zero { name }),
    }
}
