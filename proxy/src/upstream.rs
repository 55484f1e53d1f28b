//! The inference servers: which one serves a model name, and how a request is passed on to it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::{ConfigError, ProxyConfig, UpstreamConfig};
use crate::error::ApiError;
use crate::guard::Guard;

/// Connections are pooled and kept alive; shared by all upstreams.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_CONNECTION: Duration = Duration::from_secs(60);

/// A client with TLS by rustls and the usual public certificate authorities.
pub(crate) fn http_client() -> HttpClient {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new();
    // The provider is named here, since a process-wide default may not be installed.
    let builder = match builder.with_provider_and_webpki_roots(rustls::crypto::ring::default_provider()) {
        Ok(builder) => builder,
        Err(error) => {
            tracing::error!(%error, "rustls offers no protocol version: https upstreams will fail");
            HttpsConnectorBuilder::new().with_tls_config(empty_tls())
        }
    };
    let https = builder.https_or_http().enable_http1().wrap_connector(connector);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_CONNECTION)
        .build(https)
}

/// One server, ready to be asked.
pub(crate) struct Upstream {
    pub(crate) name: String,
    scheme: Scheme,
    authority: Authority,
    /// Path before `/v1`, without a slash at its end.
    prefix: String,
    authorization: Option<HeaderValue>,
    pub(crate) policy: bool,
    pub(crate) base_model: Option<String>,
    pub(crate) timeout: Duration,
}

impl Upstream {
    pub(crate) fn new(config: &UpstreamConfig) -> Result<Self, ConfigError> {
        let bad_url = || ConfigError::Url {
            name: config.name.clone(),
            url: config.url.clone(),
        };
        let uri: Uri = config.url.parse().map_err(|_| bad_url())?;
        let parts = uri.into_parts();
        let scheme = parts
            .scheme
            .filter(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
        let path = parts
            .path_and_query
            .as_ref()
            .map_or("", PathAndQuery::path)
            .trim_end_matches('/');
        let authorization = match &config.api_key {
            None => None,
            Some(key) => {
                let value = HeaderValue::try_from(format!("Bearer {key}"));
                let mut value = value.map_err(|_| ConfigError::ApiKey {
                    name: config.name.clone(),
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self {
            name: config.name.clone(),
            scheme: scheme.ok_or_else(bad_url)?,
            authority: parts.authority.ok_or_else(bad_url)?,
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            authorization,
            policy: config.policy,
            base_model: config.base_model.clone(),
            timeout: config.timeout,
        })
    }

    /// The address of `path` (which begins with `/`), such as `/v1/models?limit=1`.
    pub(crate) fn uri(&self, path: &str) -> Result<Uri, ApiError> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build()
            .map_err(|_| ApiError::bad_request("invalid_path", "the request's path can't be passed on"))
    }

    /// The agent's headers, less what concerns its connection to us and every key of ours, with this server's key.
    pub(crate) fn request_headers(&self, from_agent: &HeaderMap, guard: &Guard) -> HeaderMap {
        let mut headers = end_to_end(from_agent);
        for ours in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
            headers.remove(ours);
        }
        let ours: Vec<HeaderName> = headers
            .iter()
            .filter(|(name, value)| name.as_str().starts_with("x-trainyard-") || guard.is_our_key(value))
            .map(|(name, _)| name.clone())
            .collect();
        for name in ours {
            headers.remove(name);
        }
        if let Some(authorization) = &self.authorization {
            headers.remove("x-api-key");
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        headers
    }
}

/// Headers that travel from end to end: all but those of one connection.
pub(crate) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in named {
        kept.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
    ] {
        kept.remove(name);
    }
    kept
}

/// All servers, and which one serves what.
pub(crate) struct Upstreams {
    list: Vec<Arc<Upstream>>,
    routes: Vec<(String, Arc<Upstream>)>,
    default: Arc<Upstream>,
}

impl Upstreams {
    pub(crate) fn new(config: &ProxyConfig) -> Result<Self, ConfigError> {
        let list = config
            .upstreams
            .iter()
            .map(|config| Upstream::new(config).map(Arc::new));
        let list = list.collect::<Result<Vec<_>, _>>()?;
        let policy = list.iter().find(|upstream| upstream.policy).or_else(|| list.first());
        let default = policy.cloned().ok_or(ConfigError::NoUpstream)?;
        let mut routes = Vec::with_capacity(config.routes.len());
        for route in &config.routes {
            let upstream = list.iter().find(|upstream| upstream.name == route.upstream).cloned();
            let upstream = upstream.ok_or_else(|| ConfigError::UnknownUpstream {
                model: route.model.clone(),
                upstream: route.upstream.clone(),
            })?;
            routes.push((route.model.clone(), upstream));
        }
        Ok(Self { list, routes, default })
    }

    /// The server of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.list.iter().find(|upstream| upstream.name == name)
    }

    /// The server for a call: the episode's own, else the first route that matches, else the policy's.
    pub(crate) fn choose(&self, pinned: Option<&str>, model: Option<&str>) -> Result<&Arc<Upstream>, ApiError> {
        if let Some(name) = pinned {
            let unknown = || ApiError::bad_request("unknown_upstream", format!("no upstream is named `{name}`"));
            return self.named(name).ok_or_else(unknown);
        }
        let routed = model.and_then(|model| {
            self.routes
                .iter()
                .find(|(pattern, _)| glob_matches(pattern.as_bytes(), model.as_bytes()))
        });
        Ok(routed.map_or(&self.default, |(_, upstream)| upstream))
    }

    /// The server that holds the policy, else the default.
    pub(crate) fn default(&self) -> &Arc<Upstream> {
        &self.default
    }
}

/// `*` matches any text, `?` one byte, anything else itself.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    // The last star, and the text position up to which it has been stretched.
    let mut star: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match pattern.get(at_pattern) {
            Some(b'*') => {
                star = Some((at_pattern, at_text));
                at_pattern += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[at_text] => {
                at_pattern += 1;
                at_text += 1;
            }
            _ => match &mut star {
                Some((at_star, stretched)) => {
                    *stretched += 1;
                    (at_pattern, at_text) = (*at_star + 1, *stretched);
                }
                None => return false,
            },
        }
    }
    pattern[at_pattern..].iter().all(|byte| *byte == b'*')
}

fn empty_tls() -> rustls::ClientConfig {
    rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Route;

    #[test]
    fn globs() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("gpt-*", "gpt-4.1", true),
            ("gpt-*", "agpt-4", false),
            ("*mini*", "gpt-4-mini-x", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b", "aab", true),
            ("*a*b", "aabc", false),
            ("judge", "judge", true),
        ] {
            assert_eq!(
                glob_matches(pattern.as_bytes(), text.as_bytes()),
                matches,
                "{pattern} on {text}"
            );
        }
    }

    #[test]
    fn both_forms_of_url_mean_the_same() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            let upstream = Upstream::new(&UpstreamConfig::new("u", url)).unwrap();
            assert_eq!(upstream.uri("/v1/models").unwrap(), "http://h:1/v1/models", "{url}");
        }
        let upstream = Upstream::new(&UpstreamConfig::new("u", "https://h/api/v1")).unwrap();
        assert_eq!(upstream.uri("/v1/models?a=b").unwrap(), "https://h/api/v1/models?a=b");
        assert!(Upstream::new(&UpstreamConfig::new("u", "h:1")).is_err());
    }

    #[test]
    fn the_episode_wins_over_routes() {
        let mut config = ProxyConfig::new(vec![
            UpstreamConfig::new("teacher", "http://t"),
            UpstreamConfig {
                policy: true,
                ..UpstreamConfig::new("policy", "http://p")
            },
        ]);
        config.routes.push(Route {
            model: "gpt-*".into(),
            upstream: "teacher".into(),
        });
        let upstreams = Upstreams::new(&config).unwrap();
        let choose = |pinned, model| {
            upstreams
                .choose(pinned, Some(model))
                .map(|upstream| upstream.name.clone())
        };
        assert_eq!(choose(None, "gpt-4").unwrap(), "teacher");
        assert_eq!(choose(None, "any").unwrap(), "policy");
        assert_eq!(choose(Some("policy"), "gpt-4").unwrap(), "policy");
        assert!(choose(Some("nobody"), "gpt-4").is_err());
    }

    #[test]
    fn keys_and_connection_headers_stay_here() {
        let mut agent = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer ty-a-b"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("x-trainyard-episode", "1"),
            ("host", "proxy"),
            ("user-agent", "agent"),
            ("api-key", "t0ken"),
            ("x-forwarded-key", "Bearer t0ken"),
        ] {
            agent.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let upstream = Upstream::new(&UpstreamConfig::new("u", "http://h")).unwrap();
        let guard = Guard::new(Some("t0ken".into()), "127.0.0.1:80".parse().unwrap());
        let sent = upstream.request_headers(&agent, &guard);
        assert_eq!(sent.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["user-agent"]);
        agent.insert("authorization", HeaderValue::from_static("Bearer sk-own"));
        assert_eq!(
            upstream.request_headers(&agent, &guard)["authorization"],
            "Bearer sk-own"
        );
        agent.insert("x-api-key", HeaderValue::from_static("ty-a-b"));
        agent.insert("authorization", HeaderValue::from_static("bearer  t0ken"));
        let sent = upstream.request_headers(&agent, &guard);
        assert_eq!(sent.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["user-agent"]);
        let config = UpstreamConfig {
            api_key: Some("sk-theirs".into()),
            ..UpstreamConfig::new("u", "http://h")
        };
        let upstream = Upstream::new(&config).unwrap();
        let sent = upstream.request_headers(&agent, &guard);
        assert_eq!(sent["authorization"], "Bearer sk-theirs");
        assert_eq!(sent.len(), 2, "{sent:?}");
    }
}
