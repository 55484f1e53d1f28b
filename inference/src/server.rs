//! The client of an inference server: the embedded engine's API or vLLM, which speak the same protocol. It needs no libtorch.
//!
//! Adapters go over our own calls, since vllm-client has none for them; the probe is an ordinary chat call and goes through vllm-client.

use std::path::Path;
use std::time::Duration;

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Loading an adapter reads it from disk and may wait for a step of the engine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_POLL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_secs(1);
/// Of a body in an error message.
const MAX_BODY_CHARS: usize = 500;

/// Why a server didn't do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The HTTP client can't be set up.
    #[error("can't set up an HTTP client")]
    Client(#[source] reqwest::Error),
    /// The server can't be reached, or broke off.
    #[error("no answer from {url}; is the inference server running there?")]
    Unreachable {
        /// The address called.
        url: String,
        /// What the connection said.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused.
    #[error("{url} answered {status}: {body}")]
    Refused {
        /// The address called.
        url: String,
        /// The status.
        status: u16,
        /// What the server said, shortened.
        body: String,
    },
    /// The answer isn't what the protocol says.
    #[error("{url} answered something else than expected: {reason}")]
    UnexpectedAnswer {
        /// The address called.
        url: String,
        /// What is missing.
        reason: String,
    },
    /// The server didn't get ready in time.
    #[error("{url} isn't ready after {seconds} s: {last}; look at the server's log")]
    NotReady {
        /// The address polled.
        url: String,
        /// How long was waited.
        seconds: u64,
        /// What the last attempt gave.
        last: String,
    },
    /// The probe call failed.
    #[error("the probe of model {model} at {url} failed: {reason}")]
    Probe {
        /// The server.
        url: String,
        /// The model asked for.
        model: String,
        /// What came back.
        reason: String,
    },
}

/// A model that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// Its name in requests.
    pub id: String,
    /// Its base model's name, for an adapter.
    pub parent: Option<String>,
    /// Where it was loaded from.
    pub root: Option<String>,
    /// Most tokens of prompt and answer together, where the server says so.
    pub max_model_len: Option<u64>,
}

/// A server at an address; cheap to clone.
#[derive(Debug, Clone)]
pub struct InferenceServer {
    http: reqwest::Client,
    root: String,
    api_key: Option<String>,
}

impl InferenceServer {
    /// The server at `base_url`, with or without a closing `/v1`.
    ///
    /// # Errors
    /// [`ServerError::Client`] where the system allows no HTTP client.
    pub fn new(base_url: &str, api_key: Option<String>) -> Result<Self, ServerError> {
        // Someone else may have installed a provider already; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .no_proxy();
        let root = base_url.trim_end_matches('/');
        let root = root
            .strip_suffix("/v1")
            .unwrap_or(root)
            .trim_end_matches('/')
            .to_owned();
        Ok(Self {
            http: client.build().map_err(ServerError::Client)?,
            root,
            api_key,
        })
    }

    /// The address, without `/v1`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Loads the adapter in the directory `path` (absolute, on the server's file system) under `name`.
    ///
    /// # Errors
    /// [`ServerError::Refused`] if the name is taken or the directory holds no adapter for this model.
    pub async fn load_adapter(&self, name: &str, path: &Path) -> Result<(), ServerError> {
        let url = self.url("/v1/load_lora_adapter");
        let body = json!({"lora_name": name, "lora_path": path});
        self.send(&url, self.http.post(&url).json(&body)).await.map(drop)
    }

    /// Takes an adapter's name away; calls under way end with the weights they began with.
    ///
    /// # Errors
    /// [`ServerError::Refused`] if there is no such name.
    pub async fn unload_adapter(&self, name: &str) -> Result<(), ServerError> {
        let url = self.url("/v1/unload_lora_adapter");
        self.send(&url, self.http.post(&url).json(&json!({"lora_name": name})))
            .await
            .map(drop)
    }

    /// What the server offers: the base model first, then adapters.
    ///
    /// # Errors
    /// [`ServerError`] for an unreachable server or an answer without a list.
    pub async fn models(&self) -> Result<Vec<ServedModel>, ServerError> {
        let url = self.url("/v1/models");
        let text = self.send(&url, self.http.get(&url)).await?;
        let unexpected = |reason: String| ServerError::UnexpectedAnswer {
            url: url.clone(),
            reason,
        };
        let answer: Value = serde_json::from_str(&text).map_err(|error| unexpected(error.to_string()))?;
        let data = answer["data"]
            .as_array()
            .ok_or_else(|| unexpected("`data` is missing".into()))?;
        let text_of = |model: &Value, field: &str| model[field].as_str().map(str::to_owned);
        data.iter()
            .map(|model| {
                Ok(ServedModel {
                    id: text_of(model, "id").ok_or_else(|| unexpected("a model has no `id`".into()))?,
                    parent: text_of(model, "parent"),
                    root: text_of(model, "root"),
                    max_model_len: model["max_model_len"].as_u64(),
                })
            })
            .collect()
    }

    /// Whether the server says that it is well.
    ///
    /// # Errors
    /// [`ServerError`] if it doesn't.
    pub async fn health(&self) -> Result<(), ServerError> {
        let url = self.url("/health");
        self.send(&url, self.http.get(&url).timeout(HEALTH_TIMEOUT))
            .await
            .map(drop)
    }

    /// Waits until the server is well and lists its models.
    ///
    /// # Errors
    /// [`ServerError::NotReady`] with the last attempt's failure.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<Vec<ServedModel>, ServerError> {
        let deadline = Instant::now() + timeout;
        let mut pause = FIRST_POLL;
        loop {
            let attempt = match self.health().await {
                Ok(()) => self.models().await,
                Err(error) => Err(error),
            };
            match attempt {
                Ok(models) => return Ok(models),
                Err(error) if Instant::now() + pause >= deadline => {
                    let (url, seconds) = (self.root.clone(), timeout.as_secs());
                    return Err(ServerError::NotReady {
                        url,
                        seconds,
                        last: error.to_string(),
                    });
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_POLL);
        }
    }

    /// One short chat call under `model`, to see that it answers.
    ///
    /// # Errors
    /// [`ServerError::Probe`] with what came back instead of an answer.
    pub async fn probe(&self, model: &str) -> Result<(), ServerError> {
        let fail = |reason: String| ServerError::Probe {
            url: self.root.clone(),
            model: model.to_owned(),
            reason,
        };
        let mut client = vllm_client::VllmClient::builder()
            .base_url(self.url("/v1"))
            .timeout_secs(REQUEST_TIMEOUT.as_secs());
        if let Some(key) = &self.api_key {
            client = client.api_key(key);
        }
        let client = client.build();
        let call = client.chat.completions().create();
        let call = call
            .model(model)
            .messages(json!([{"role": "user", "content": "Hi"}]))
            .max_tokens(1)
            .temperature(0.0);
        let answer = call.send().await.map_err(|error| fail(error.to_string()))?;
        match answer.finish_reason {
            Some(_) => Ok(()),
            None => Err(fail(format!(
                "no finish reason in {}",
                shortened(&answer.raw.to_string())
            ))),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// Sends, and gives the body of a successful answer.
    async fn send(&self, url: &str, mut request: RequestBuilder) -> Result<String, ServerError> {
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        let unreachable = |source| ServerError::Unreachable {
            url: url.to_owned(),
            source,
        };
        let response = request.send().await.map_err(unreachable)?;
        let status: StatusCode = response.status();
        let body = response.text().await.map_err(unreachable)?;
        if !status.is_success() {
            let body = shortened(&body);
            return Err(ServerError::Refused {
                url: url.to_owned(),
                status: status.as_u16(),
                body,
            });
        }
        Ok(body)
    }
}

fn shortened(body: &str) -> String {
    match body.char_indices().nth(MAX_BODY_CHARS) {
        Some((end, _)) => format!("{}…", &body[..end]),
        None => body.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;
    use axum::routing::{get, post};
    use axum::{Json, Router};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    async fn listen(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/v1/")
    }

    #[tokio::test]
    async fn adapters_models_and_probe_speak_the_protocol() {
        let chat = async |headers: HeaderMap, Json(body): Json<Value>| {
            assert_eq!(headers["authorization"], "Bearer key");
            assert_eq!(body["model"], "policy@1");
            Json(json!({"id": "x", "choices": [{"message": {"content": "y"}, "finish_reason": "length"}]}))
        };
        let load = async |Json(body): Json<Value>| {
            assert_eq!(body, json!({"lora_name": "policy@1", "lora_path": "/a/b"}));
            "Success"
        };
        let models = json!({"data": [{"id": "base", "max_model_len": 8}, {"id": "policy@1", "parent": "base"}]});
        let router = Router::new()
            .route("/v1/load_lora_adapter", post(load))
            .route("/v1/models", get(async || Json(models)))
            .route("/v1/chat/completions", post(chat));
        let server = InferenceServer::new(&listen(router).await, Some("key".into())).unwrap();
        server.load_adapter("policy@1", Path::new("/a/b")).await.unwrap();
        let models = server.models().await.unwrap();
        assert_eq!(
            (models[0].max_model_len, models[1].parent.as_deref()),
            (Some(8), Some("base"))
        );
        server.probe("policy@1").await.unwrap();
        let refusal = server.unload_adapter("policy@1").await.err().unwrap().to_string();
        assert!(
            refusal.starts_with(&format!("{}/v1/unload_lora_adapter answered 404", server.root())),
            "{refusal}"
        );
    }

    #[tokio::test]
    async fn readiness_waits_for_health_and_says_what_was_wrong() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let health = async move || match counted.fetch_add(1, Ordering::Relaxed) {
            0..2 => Err((StatusCode::SERVICE_UNAVAILABLE, "loading")),
            _ => Ok(()),
        };
        let router = Router::new()
            .route("/health", get(health))
            .route("/v1/models", get(async || Json(json!({"data": []}))));
        let server = InferenceServer::new(&listen(router).await, None).unwrap();
        server.wait_ready(Duration::from_secs(10)).await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 3);

        let nobody = InferenceServer::new("http://127.0.0.1:1", None).unwrap();
        let error = nobody.wait_ready(Duration::ZERO).await.err().unwrap().to_string();
        assert!(
            error.contains("isn't ready after 0 s: no answer from http://127.0.0.1:1/health"),
            "{error}"
        );
    }
}
