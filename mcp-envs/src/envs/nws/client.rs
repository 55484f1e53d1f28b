//! A client of the weather service, at any base URL.
//!
//! - [`answers`]: what the service's GeoJSON becomes here
//! - [`error`]: what can go wrong, in words that a model can act on
//!
//! It names itself (the service answers 403 otherwise), rounds coordinates to the four decimals that the service takes,
//! retries what the service itself calls temporary (5xx) with a bounded backoff, and nothing else.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::EnvironmentError;

pub mod answers;
pub mod error;

pub use answers::{Alert, ForecastPeriod, Observation, PointInfo, StationInfo};
use answers::{AlertCollection, ForecastAnswer, ObservationAnswer, PointAnswer, StationCollection};
pub use error::WeatherError;

/// The real service.
pub const DEFAULT_URL: &str = "https://api.weather.gov";
const USER_AGENT: &str = concat!(
    "trainyard-nws/",
    env!("CARGO_PKG_VERSION"),
    " (weather tools for agents)"
);
const MAX_BODY_BYTES: usize = 8 << 20;

/// How to reach the service.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Where it is, without a path.
    pub base_url: String,
    /// What to call ourselves.
    pub user_agent: String,
    /// Limit of one attempt.
    pub timeout: Duration,
    /// Attempts in all, at least one.
    pub attempts: u32,
    /// Wait before the second attempt; doubled before each later one.
    pub backoff: Duration,
}

impl ClientConfig {
    /// Defaults for a base URL.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            user_agent: USER_AGENT.to_owned(),
            timeout: Duration::from_secs(10),
            attempts: 3,
            backoff: Duration::from_millis(250),
        }
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self::new(DEFAULT_URL)
    }
}

/// A latitude and a longitude that are possible, rounded to four decimals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coordinates {
    latitude: f64,
    longitude: f64,
}

impl Coordinates {
    /// `None` unless the latitude is in -90..=90 and the longitude in -180..=180 degrees.
    pub fn new(latitude: f64, longitude: f64) -> Option<Self> {
        let possible = (-90.0..=90.0).contains(&latitude) && (-180.0..=180.0).contains(&longitude);
        // Adding zero turns -0.0 into 0.0, which the service would not accept written as "-0".
        let round = |degrees: f64| (degrees * 1e4).round() / 1e4 + 0.0;
        possible.then(|| Self {
            latitude: round(latitude),
            longitude: round(longitude),
        })
    }

    /// Degrees north.
    pub fn latitude(self) -> f64 {
        self.latitude
    }

    /// Degrees east.
    pub fn longitude(self) -> f64 {
        self.longitude
    }
}

impl std::fmt::Display for Coordinates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{},{}", self.latitude, self.longitude)
    }
}

/// Whose alerts to list.
#[derive(Debug, Clone, PartialEq)]
pub enum AlertArea {
    /// A state, territory or marine area: two letters.
    Area(String),
    /// A point.
    Point(Coordinates),
}

/// The client; clones share connections.
#[derive(Debug, Clone)]
pub struct NwsClient {
    http: reqwest::Client,
    base: Url,
    attempts: u32,
    backoff: Duration,
}

/// The members of `application/problem+json` that say something.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProblemBody {
    #[serde(rename = "type")]
    kind: String,
    title: String,
    detail: String,
}

impl NwsClient {
    /// Sets up a client; nothing is sent yet.
    pub fn new(config: ClientConfig) -> Result<Self, EnvironmentError> {
        let bad = |problem: String| EnvironmentError::BadUrl {
            url: config.base_url.clone(),
            problem,
        };
        let base = Url::parse(&config.base_url).map_err(|error| bad(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad(
                "it has to begin with http:// or https:// and name a host".to_owned()
            ));
        }
        // The process may have chosen a provider already; then this changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(&config.user_agent)
            .timeout(config.timeout)
            .connect_timeout(config.timeout);
        if matches!(base.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
            // A stand-in on this machine is not reached through anybody's proxy.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(EnvironmentError::HttpClient)?;
        Ok(Self {
            http,
            base,
            attempts: config.attempts.max(1),
            backoff: config.backoff,
        })
    }

    /// The grid, office and links of a point.
    pub async fn point(&self, coordinates: Coordinates) -> Result<PointInfo, WeatherError> {
        let answer: PointAnswer = self.get(&format!("/points/{coordinates}"), &[]).await?;
        Ok(answer.properties)
    }

    /// The half days of a point.
    pub async fn forecast(&self, coordinates: Coordinates) -> Result<Vec<ForecastPeriod>, WeatherError> {
        let point = self.point(coordinates).await?;
        self.periods(point.forecast.as_deref(), "forecast").await
    }

    /// The hours of a point.
    pub async fn hourly_forecast(&self, coordinates: Coordinates) -> Result<Vec<ForecastPeriod>, WeatherError> {
        let point = self.point(coordinates).await?;
        self.periods(point.forecast_hourly.as_deref(), "hourly forecast").await
    }

    /// The stations of a point's grid cell, in the service's order (nearest first).
    pub async fn stations(&self, coordinates: Coordinates) -> Result<Vec<StationInfo>, WeatherError> {
        let point = self.point(coordinates).await?;
        let link = point
            .observation_stations
            .ok_or(WeatherError::Incomplete { what: "station list" })?;
        let answer: StationCollection = self.get(&path_of(&link), &[]).await?;
        Ok(answer.features.into_iter().map(StationInfo::from).collect())
    }

    /// The latest report of a station.
    pub async fn observation(&self, station: &str) -> Result<Observation, WeatherError> {
        let answer: ObservationAnswer = self
            .get(&format!("/stations/{station}/observations/latest"), &[])
            .await?;
        Ok(answer.properties)
    }

    /// The active alerts of an area.
    pub async fn alerts(&self, area: &AlertArea, severity: Option<&str>) -> Result<Vec<Alert>, WeatherError> {
        let mut query = match area {
            AlertArea::Area(code) => vec![("area", code.clone())],
            AlertArea::Point(coordinates) => vec![("point", coordinates.to_string())],
        };
        query.extend(severity.map(|severity| ("severity", severity.to_owned())));
        let answer: AlertCollection = self.get("/alerts/active", &query).await?;
        Ok(answer.features.into_iter().map(|feature| feature.properties).collect())
    }

    async fn periods(&self, link: Option<&str>, what: &'static str) -> Result<Vec<ForecastPeriod>, WeatherError> {
        let link = link.ok_or(WeatherError::Incomplete { what })?;
        let answer: ForecastAnswer = self.get(&path_of(link), &[]).await?;
        Ok(answer.properties.periods)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, WeatherError> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut attempt = 1;
        loop {
            let failure = match self.get_once(url.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if attempt >= self.attempts || !failure.is_temporary() {
                return Err(failure);
            }
            let wait = self.backoff * 2_u32.saturating_pow(attempt - 1);
            tracing::debug!(%url, attempt, ?wait, error = %failure, "asking the weather service again");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn get_once<T: DeserializeOwned>(&self, url: Url) -> Result<T, WeatherError> {
        let request = self.http.get(url).header(ACCEPT, "application/geo+json");
        let mut response = request.send().await.map_err(WeatherError::from_transport)?;
        let status = response.status();
        let is_problem = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json"));
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(WeatherError::from_transport)? {
            if body.len() + chunk.len() > MAX_BODY_BYTES {
                return Err(WeatherError::NotUnderstood {
                    problem: "the answer is too large".to_owned(),
                });
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| WeatherError::NotUnderstood {
                problem: error.to_string(),
            });
        }
        Err(read_problem(status, is_problem, &body))
    }
}

fn read_problem(status: StatusCode, is_problem: bool, body: &[u8]) -> WeatherError {
    let problem: ProblemBody = if is_problem {
        serde_json::from_slice(body).unwrap_or_default()
    } else {
        ProblemBody::default()
    };
    let title = if problem.title.is_empty() {
        status.canonical_reason().unwrap_or("Error").to_owned()
    } else {
        problem.title
    };
    let kind = problem.kind.rsplit('/').next().unwrap_or_default().to_owned();
    WeatherError::Problem {
        status: status.as_u16(),
        kind,
        title,
        detail: problem.detail,
    }
}

/// Links name the real host; only their path counts, so that any base URL works.
fn path_of(link: &str) -> String {
    match Url::parse(link) {
        Ok(url) => url.path().to_owned(),
        Err(_) => link.to_owned(),
    }
}

#[cfg(test)]
mod tests;
