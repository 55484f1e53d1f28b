//! A typed client of the proxy's control routes, as far as a rollout needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trajectory::{CloseEpisode, Episode, EpisodeId, EpisodeRecord, GroupId, ScenarioId, Split};

/// The control routes answer from memory or the store; a proxy that takes longer is not there.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Why a control route did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The HTTP client could not be made.
    #[error("cannot set up the HTTP client for the proxy's control routes")]
    Client(#[source] reqwest::Error),
    /// No answer.
    #[error("no answer from the proxy to {route}; is it running at this address?")]
    NoAnswer {
        /// Method and URL.
        route: String,
        /// What the HTTP client said.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that says no.
    #[error("the proxy refused {route} with status {status}: {message}")]
    Refused {
        /// Method and URL.
        route: String,
        /// HTTP status.
        status: StatusCode,
        /// Its own words.
        message: String,
    },
    /// An answer of another form.
    #[error("the proxy's answer to {route} has an unknown form; are both of the same version?")]
    Form {
        /// Method and URL.
        route: String,
        /// What could not be read.
        #[source]
        source: serde_json::Error,
    },
}

/// Body of `POST /api/episodes`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OpenEpisode {
    /// The scenario that the episode plays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<ScenarioId>,
    /// The group whose episodes are compared with each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Train or held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Kept with the episode as it is.
    pub metadata: Map<String, Value>,
    /// Request fields that the proxy sets on every call to the policy.
    pub overrides: Map<String, Value>,
    /// Sends the episode's calls to this upstream instead of the routed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// The agent's command, for the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_command: Option<String>,
}

/// An episode that was opened: how its agent reaches the model and its tools.
#[derive(Clone, Debug, Deserialize)]
pub struct OpenedEpisode {
    /// The episode.
    pub id: EpisodeId,
    /// Base URL for the agent's SDK.
    pub base_url: String,
    /// Key for the agent's SDK.
    pub api_key: String,
    /// URL of each MCP server by name.
    #[serde(default)]
    pub mcp: BTreeMap<String, String>,
}

/// Answer to `POST /api/episodes/{id}/close`.
#[derive(Deserialize)]
struct Closed {
    episode: Episode,
}

/// Client of one proxy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ControlClient {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl ControlClient {
    /// A client for the proxy at `base` (`http://host:port`), with the control token where the proxy demands one.
    pub fn new(base: &str, token: Option<String>) -> Result<Self, ControlError> {
        // The process may have chosen a provider already; then this changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(REQUEST_LIMIT)
            .connect_timeout(CONNECT_LIMIT)
            // The proxy in question is ours; one from the environment stands elsewhere.
            .no_proxy()
            .build()
            .map_err(ControlError::Client)?;
        Ok(Self {
            http,
            base: base.trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// Opens an episode.
    pub async fn open_episode(&self, episode: &OpenEpisode) -> Result<OpenedEpisode, ControlError> {
        self.json(Method::POST, "/api/episodes", |request| request.json(episode))
            .await
    }

    /// The MCP client configuration of an episode, as text in the `mcpServers` form.
    pub async fn mcp_config(&self, episode: &OpenedEpisode) -> Result<String, ControlError> {
        let path = format!("/e/{}/mcp.json", episode.id);
        let (_, text) = self
            .send(Method::GET, &path, |request| request.bearer_auth(&episode.api_key))
            .await?;
        Ok(text)
    }

    /// An episode with its model calls and tool calls.
    pub async fn episode(&self, id: &EpisodeId) -> Result<EpisodeRecord, ControlError> {
        self.json(Method::GET, &format!("/api/episodes/{id}"), |request| request)
            .await
    }

    /// Closes an episode. Returns it as it was closed: where `close` names no failure, the proxy may have seen one.
    pub async fn close_episode(&self, id: &EpisodeId, close: &CloseEpisode) -> Result<Episode, ControlError> {
        let closed: Closed = self
            .json(Method::POST, &format!("/api/episodes/{id}/close"), |request| {
                request.json(close)
            })
            .await?;
        Ok(closed.episode)
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        fill: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<T, ControlError> {
        let (route, text) = self.send(method, path, fill).await?;
        serde_json::from_str(&text).map_err(|source| ControlError::Form { route, source })
    }

    /// Sends one request; returns its route for messages, and the body of a successful answer.
    async fn send(
        &self,
        method: Method,
        path: &str,
        fill: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<(String, String), ControlError> {
        let url = format!("{}{path}", self.base);
        let route = format!("{method} {url}");
        let mut request = self.http.request(method, &url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let no_answer = |source| ControlError::NoAnswer {
            route: route.clone(),
            source,
        };
        let response = fill(request).send().await.map_err(no_answer)?;
        let status = response.status();
        let text = response.text().await.map_err(no_answer)?;
        if !status.is_success() {
            return Err(ControlError::Refused {
                message: error_message(&text),
                route,
                status,
            });
        }
        Ok((route, text))
    }
}

/// The message of an error body in the OpenAI form, or what there is of any other.
fn error_message(body: &str) -> String {
    let message = serde_json::from_str::<Value>(body)
        .ok()
        .and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()));
    message.unwrap_or_else(|| body.chars().take(200).collect())
}
