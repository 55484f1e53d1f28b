//! Configuration: [`RawProxyConfig`] is what a file says, [`ProxyConfig`] what [`crate::serve`] takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Deserialize;

mod raw;

pub use raw::{RawLimits, RawMcpServer, RawProxyConfig, RawUpstream};

/// A configuration that can't be used, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No upstream at all.
    #[error("no upstream is configured: add an `[[upstreams]]` entry with `name` and `url`")]
    NoUpstream,
    /// Two upstreams or two tool servers share a name.
    #[error("{what} `{name}` is configured twice: give each a name of its own")]
    Duplicate {
        /// `upstream` or `mcp server`.
        what: &'static str,
        /// The name in question.
        name: String,
    },
    /// More than one upstream serves the policy.
    #[error("upstreams `{first}` and `{second}` both have `policy = true`: only one can serve the policy")]
    TwoPolicies {
        /// The one that came first.
        first: String,
        /// The one that came second.
        second: String,
    },
    /// The address of an upstream is not a usable URL.
    #[error("upstream `{name}`: `{url}` is not an http or https URL such as http://127.0.0.1:8000")]
    Url {
        /// The upstream.
        name: String,
        /// What was given.
        url: String,
    },
    /// A key that can't be sent as an HTTP header.
    #[error("upstream `{name}`: `api_key` has characters that an HTTP header can't carry")]
    ApiKey {
        /// The upstream.
        name: String,
    },
    /// A route names an upstream that is not there.
    #[error("route for model `{model}` names upstream `{upstream}`, which is not configured")]
    UnknownUpstream {
        /// The route's pattern.
        model: String,
        /// The name that is missing.
        upstream: String,
    },
    /// A tool server's name can't be part of a path.
    #[error("mcp server `{name}`: use letters, digits, `-`, `_` and `.` only, since the name is part of a URL")]
    ServerName {
        /// The name in question.
        name: String,
    },
    /// A tool server without a program.
    #[error("mcp server `{name}`: `command` is empty, give the program and its arguments")]
    EmptyCommand {
        /// The server.
        name: String,
    },
    /// A limit or time that must be positive is zero.
    #[error("`{name}` must be more than zero")]
    Zero {
        /// The field.
        name: &'static str,
    },
}

/// What the proxy is run with. Durations and sizes are limits, not estimates.
#[derive(Clone)]
pub struct ProxyConfig {
    /// Demanded as `Authorization: Bearer` on control routes; without one only loopback may be bound.
    pub token: Option<String>,
    /// Inference servers; the first serves what no route names where none has `policy`.
    pub upstreams: Vec<UpstreamConfig>,
    /// Which upstream serves which model name; the first match wins, the policy serves the rest.
    pub routes: Vec<Route>,
    /// Tool servers that every episode gets a session of.
    pub mcp_servers: Vec<McpServerConfig>,
    /// Bounds on what agents and servers can take up.
    pub limits: Limits,
}

impl ProxyConfig {
    /// A proxy in front of these upstreams, without token, routes or tool servers.
    pub fn new(upstreams: Vec<UpstreamConfig>) -> Self {
        Self {
            token: None,
            upstreams,
            routes: Vec::new(),
            mcp_servers: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// Checks what the types can't say.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.upstreams.is_empty() {
            return Err(ConfigError::NoUpstream);
        }
        let mut names = BTreeSet::new();
        let mut policy: Option<&str> = None;
        for upstream in &self.upstreams {
            let name = upstream.name.as_str();
            if !names.insert(name) {
                return Err(ConfigError::Duplicate {
                    what: "upstream",
                    name: name.into(),
                });
            }
            crate::upstream::Upstream::new(upstream)?;
            if upstream.timeout.is_zero() {
                return Err(ConfigError::Zero { name: "timeout" });
            }
            if upstream.policy
                && let Some(first) = policy.replace(name)
            {
                return Err(ConfigError::TwoPolicies {
                    first: first.into(),
                    second: name.into(),
                });
            }
        }
        for route in &self.routes {
            if !names.contains(route.upstream.as_str()) {
                return Err(ConfigError::UnknownUpstream {
                    model: route.model.clone(),
                    upstream: route.upstream.clone(),
                });
            }
        }
        let mut servers = BTreeSet::new();
        for McpServerConfig { name, command, .. } in &self.mcp_servers {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || !name.chars().all(allowed) {
                return Err(ConfigError::ServerName { name: name.clone() });
            }
            if !servers.insert(name) {
                return Err(ConfigError::Duplicate {
                    what: "mcp server",
                    name: name.clone(),
                });
            }
            if command.first().is_none_or(String::is_empty) {
                return Err(ConfigError::EmptyCommand { name: name.clone() });
            }
        }
        let Limits {
            max_body_bytes,
            max_concurrent_calls,
            max_open_episodes,
            ..
        } = self.limits;
        for (name, value) in [
            ("max_body_bytes", max_body_bytes),
            ("max_concurrent_calls", max_concurrent_calls),
            ("max_open_episodes", max_open_episodes),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { name });
            }
        }
        Ok(())
    }
}

/// One OpenAI-compatible server.
#[derive(Clone)]
pub struct UpstreamConfig {
    /// The name that routes and episodes use.
    pub name: String,
    /// Root of the server; a trailing `/v1` is accepted and means the same.
    pub url: String,
    /// Sent as the bearer token in place of the agent's key; without one the agent's own key is passed on
    /// (never an episode's key).
    pub api_key: Option<String>,
    /// This server holds the model under training: calls go to `policy@{version}` and token ids are asked for.
    pub policy: bool,
    /// The base model's name there, for policy version 0; without one the agent's model name is used.
    pub base_model: Option<String>,
    /// Longest wait for the answer to begin, and between two parts of it.
    pub timeout: Duration,
}

impl UpstreamConfig {
    /// An upstream that is not the policy, with ten minutes of patience.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            api_key: None,
            policy: false,
            base_model: None,
            timeout: DEFAULT_UPSTREAM_TIMEOUT,
        }
    }
}

/// Sends the models that match to an upstream.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// A glob over the agent's model name: `*` is any text, `?` one character.
    pub model: String,
    /// Name of the upstream.
    pub upstream: String,
}

/// A tool server over stdio; each episode gets a process of its own.
#[derive(Clone)]
pub struct McpServerConfig {
    /// The last part of the server's path, `/e/{episode}/mcp/{name}`.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Added to the few variables that a server inherits (`PATH`, `HOME`, language, time zone, temporary folder).
    pub env: BTreeMap<String, String>,
    /// From the start of the process to its answer to `initialize`.
    pub start_timeout: Duration,
    /// For each later request.
    pub call_timeout: Duration,
    /// From the end of the episode until the process group is killed.
    pub close_timeout: Duration,
}

impl McpServerConfig {
    /// A server with the default time limits and no variables of its own.
    pub fn new(name: impl Into<String>, command: Vec<String>) -> Self {
        Self {
            name: name.into(),
            command,
            env: BTreeMap::new(),
            start_timeout: DEFAULT_START_TIMEOUT,
            call_timeout: DEFAULT_CALL_TIMEOUT,
            close_timeout: DEFAULT_CLOSE_TIMEOUT,
        }
    }
}

/// Bounds on what agents can take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body; beyond it the agent gets 413.
    pub max_body_bytes: usize,
    /// Model calls in flight at once; beyond it the agent gets 429.
    pub max_concurrent_calls: usize,
    /// Episodes open at once; beyond it opening answers 429.
    pub max_open_episodes: usize,
    /// An episode that plain calls opened closes after this long without one.
    pub implicit_idle: Duration,
    /// How long calls in flight may go on after a stop was asked for.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            max_concurrent_calls: 1024,
            max_open_episodes: 100_000,
            implicit_idle: Duration::from_secs(600),
            drain: Duration::from_secs(2),
        }
    }
}

const DEFAULT_UPSTREAM_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(60);
const DEFAULT_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

// Keys must not end up in a log by way of `{:?}`.
impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("policy", &self.policy)
            .field("base_model", &self.base_model)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for McpServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServerConfig")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ProxyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyConfig")
            .field("token", &self.token.is_some())
            .field("upstreams", &self.upstreams)
            .field("routes", &self.routes)
            .field("mcp_servers", &self.mcp_servers)
            .field("limits", &self.limits)
            .finish()
    }
}

#[cfg(test)]
mod tests;
