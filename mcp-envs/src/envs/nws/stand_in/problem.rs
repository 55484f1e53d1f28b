//! Errors as the service words them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use uuid::Uuid;

/// An `application/problem+json` answer.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            title,
            detail: detail.into(),
        }
    }

    pub(super) fn invalid_point(point: &str) -> Self {
        let detail = format!("Unable to provide data for requested point {point}");
        Self::new(
            StatusCode::NOT_FOUND,
            "InvalidPoint",
            "Data Unavailable For Requested Point",
            detail,
        )
    }

    pub(super) fn invalid_parameter(name: &str, why: &str) -> Self {
        let detail = format!("Parameter \"{name}\" is invalid: {why}");
        Self::new(StatusCode::BAD_REQUEST, "InvalidParameter", "Invalid Parameter", detail)
    }

    pub(super) fn marine() -> Self {
        let detail = "Forecasts for marine areas are not yet supported by this API";
        Self::new(
            StatusCode::NOT_FOUND,
            "MarineForecastNotSupported",
            "Marine Forecast Not Supported",
            detail,
        )
    }

    pub(super) fn not_found(path: &str) -> Self {
        let detail = format!("'{path}' is not a valid resource path");
        Self::new(StatusCode::NOT_FOUND, "NotFound", "Not Found", detail)
    }

    pub(super) fn forbidden() -> Self {
        let detail = "A User-Agent header that identifies your application is required";
        Self::new(StatusCode::FORBIDDEN, "Forbidden", "Forbidden", detail)
    }

    pub(super) fn unexpected() -> Self {
        let detail = "An unexpected problem has occurred. If this error continues, please contact support";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "UnexpectedProblem",
            "Unexpected Problem",
            detail,
        )
    }

    pub(super) fn grid_expired() -> Self {
        let detail = "The requested forecast grid was issued too long ago and has expired";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ForecastGridExpired",
            "Forecast Grid Expired",
            detail,
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // The one thing here that is not from the seed: a correlation id is there to be unlike any other.
        let correlation = Uuid::now_v7().simple().to_string();
        let body = json!({
            "correlationId": correlation,
            "title": self.title,
            "type": format!("https://api.weather.gov/problems/{}", self.kind),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "instance": format!("https://api.weather.gov/requests/{correlation}"),
        });
        (
            self.status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            body.to_string(),
        )
            .into_response()
    }
}
