//! What can go wrong with the service, in words that a model can act on.

/// A request that gave no weather.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeatherError {
    /// The service refused, mostly with `application/problem+json`.
    #[error("the weather service answered {status} {title}: {detail}")]
    Problem {
        /// HTTP status.
        status: u16,
        /// The end of the problem's type, `InvalidPoint`; may be empty.
        kind: String,
        /// Its title.
        title: String,
        /// Its detail; may be empty.
        detail: String,
    },
    /// The service answered without what was asked for.
    #[error("the weather service has no {what} here")]
    Incomplete {
        /// What is missing.
        what: &'static str,
    },
    /// The service did not answer in time.
    #[error("the weather service did not answer in time")]
    Timeout,
    /// The service could not be reached.
    #[error("the weather service could not be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The service answered something else than it promises.
    #[error("the weather service's answer was not understood")]
    NotUnderstood {
        /// Where the parser gave up.
        problem: String,
    },
}

impl WeatherError {
    pub(super) fn from_transport(error: reqwest::Error) -> Self {
        if error.is_timeout() {
            Self::Timeout
        } else {
            Self::Unreachable(error)
        }
    }

    /// Whether the same request may work a moment later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Problem { status, .. } => *status >= 500,
            Self::Timeout | Self::Unreachable(_) => true,
            Self::Incomplete { .. } | Self::NotUnderstood { .. } => false,
        }
    }

    /// One or two short sentences for the model: what is wrong, and what it can do.
    pub fn explain(&self) -> String {
        match self {
            Self::Problem { kind, .. } if kind == "InvalidPoint" => {
                "No data: this point is outside the area that the weather service covers (United States).".to_owned()
            }
            Self::Problem { kind, .. } if kind == "MarineForecastNotSupported" => {
                "No data: this point is at sea, and the weather service has no marine forecasts. Use a point on land."
                    .to_owned()
            }
            Self::Problem {
                status, title, detail, ..
            } if *status >= 500 => {
                format!("Weather service error: {}. Try again later.", join(title, detail))
            }
            Self::Problem {
                status: 404,
                title,
                detail,
                ..
            } => format!("Not found: {}.", join(title, detail)),
            Self::Problem { title, detail, .. } => format!("Request refused: {}.", join(title, detail)),
            Self::Incomplete { what } => format!("No data: the weather service has no {what} for this point."),
            Self::Timeout => "The weather service did not answer in time. Try again later.".to_owned(),
            Self::Unreachable(_) => "The weather service could not be reached. Try again later.".to_owned(),
            Self::NotUnderstood { .. } => {
                "The weather service gave an answer that could not be read. Try again later.".to_owned()
            }
        }
    }
}

fn join(title: &str, detail: &str) -> String {
    let detail = detail.trim().trim_end_matches('.');
    if detail.is_empty() {
        title.to_owned()
    } else {
        format!("{title}. {detail}")
    }
}
