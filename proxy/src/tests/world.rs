//! A proxy of its own for each test: port 0, a temporary store, a fake upstream.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trajectory::{EpisodeId, EpisodeRecord, Store};

use super::fake_upstream::FakeUpstream;
use crate::upstream::{HttpClient, http_client};
use crate::{ProxyConfig, ProxyError, UpstreamConfig};

pub(super) struct World {
    pub(super) upstream: FakeUpstream,
    pub(super) store: Store,
    pub(super) address: SocketAddr,
    pub(super) client: HttpClient,
    pub(super) shutdown: CancellationToken,
    pub(super) serving: JoinHandle<Result<(), ProxyError>>,
    _folder: TempDir,
}

/// An episode as its opener sees it.
pub(super) struct Opened {
    pub(super) id: EpisodeId,
    pub(super) key: String,
    pub(super) answer: Value,
}

/// An answer read to its end.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

impl World {
    pub(super) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(configure: impl FnOnce(&mut ProxyConfig)) -> Self {
        let upstream = FakeUpstream::start().await;
        let url = format!("http://{}/v1", upstream.address);
        let mut config = ProxyConfig::new(vec![
            UpstreamConfig {
                policy: true,
                base_model: Some("base".into()),
                ..UpstreamConfig::new("policy", &url)
            },
            UpstreamConfig {
                api_key: Some("sk-teacher".into()),
                ..UpstreamConfig::new("teacher", &url)
            },
        ]);
        configure(&mut config);
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("trajectories.db")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(crate::serve(listener, config, store.clone(), shutdown.clone()));
        Self {
            upstream,
            store,
            address,
            client: http_client(),
            shutdown,
            serving,
            _folder: folder,
        }
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client
            .request(request.body(Full::new(body.into())).unwrap())
            .await
            .unwrap()
    }

    pub(super) async fn post_with(&self, path: &str, headers: &[(&'static str, &str)], body: &Value) -> Answer {
        read(self.send(Method::POST, path, headers, body.to_string()).await).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        read(self.send(Method::GET, path, &[], "").await).await
    }

    pub(super) async fn open(&self, body: Value) -> Opened {
        let answer = self.post("/api/episodes", &body).await.json();
        Opened {
            id: EpisodeId::from(answer["id"].as_str().unwrap()),
            key: answer["api_key"].as_str().unwrap().to_owned(),
            answer,
        }
    }

    /// Chats in an episode by its path.
    pub(super) async fn chat(&self, episode: &Opened, body: &Value) -> Answer {
        self.post(&format!("/e/{}/v1/chat/completions", episode.id), body).await
    }

    pub(super) fn record(&self, id: &EpisodeId) -> EpisodeRecord {
        self.store.record(id).unwrap().unwrap()
    }

    /// The record, once it has as many calls.
    pub(super) async fn record_with(&self, id: &EpisodeId, n_calls: usize) -> EpisodeRecord {
        eventually("the calls are recorded", || {
            let record = self.record(id);
            (record.calls.len() == n_calls).then_some(record)
        })
        .await
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

/// Polls until there is a value, for ten seconds at most.
pub(super) async fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn read(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer {
        status: head.status,
        headers: head.headers,
        text,
    }
}

/// The next bytes of a body that is still coming.
pub(super) async fn next_part(body: &mut Incoming) -> String {
    let frame = tokio::time::timeout(Duration::from_secs(10), body.frame())
        .await
        .expect("a part in time");
    String::from_utf8(frame.unwrap().unwrap().into_data().unwrap().to_vec()).unwrap()
}

pub(super) fn question() -> Value {
    json!({"model": "gpt-any", "messages": [{"role": "user", "content": "hi"}]})
}

pub(super) fn streamed_question() -> Value {
    json!({"model": "gpt-any", "messages": [{"role": "user", "content": "hi"}], "stream": true})
}
