//! Paths and query parameters to answers.

use std::collections::HashMap;

use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;

use super::bodies::Bodies;
use super::faults::{Fault, FaultKind, Faults};
use super::problem::Problem;
use crate::nws::geography::{Coverage, GridCell, OTHER_AREAS, geography};
use crate::nws::weather::{Alert, SEVERITIES, Weather};

/// The control route; not part of the service.
const FAULTS_PATH: &str = "/stand-in/faults";
/// The service lists so many stations at a point.
const MAX_STATIONS: usize = 50;

#[derive(Debug, Clone)]
struct StandInState {
    weather: Weather,
    faults: Faults,
}

pub(super) fn router(weather: Weather, faults: Faults) -> Router {
    let state = StandInState { weather, faults };
    Router::new()
        .route("/points/{point}", get(point))
        .route("/points/{point}/stations", get(point_stations))
        .route("/gridpoints/{office}/{cell}", get(grid))
        .route("/gridpoints/{office}/{cell}/forecast", get(forecast))
        .route("/gridpoints/{office}/{cell}/forecast/hourly", get(hourly_forecast))
        .route("/gridpoints/{office}/{cell}/stations", get(grid_stations))
        .route("/stations/{id}", get(station))
        .route("/stations/{id}/observations/latest", get(observation))
        .route("/alerts/active", get(alerts))
        .route("/alerts/active/count", get(alert_count))
        .route("/alerts/active/area/{area}", get(alerts_of_area))
        .fallback(unknown_path)
        .layer(middleware::from_fn_with_state(state.clone(), behave_like_the_service))
        .route(FAULTS_PATH, get(read_faults).put(write_faults))
        .with_state(state)
}

/// The name that the service asks of its users, then the faults.
async fn behave_like_the_service(State(state): State<StandInState>, request: Request, next: Next) -> Response {
    let agent = request.headers().get(header::USER_AGENT);
    if agent.is_none_or(|agent| agent.as_bytes().trim_ascii().is_empty()) {
        return Problem::forbidden().into_response();
    }
    let fault = state.faults.strike(request.uri().path());
    if let Some(delay) = fault.and_then(FaultKind::delay) {
        tokio::time::sleep(delay).await;
    }
    match fault {
        Some(FaultKind::InternalError) => Problem::unexpected().into_response(),
        Some(FaultKind::Unavailable) => Problem::grid_expired().into_response(),
        Some(FaultKind::Garbage) => "<html>down for maintenance".into_response(),
        Some(FaultKind::NullLinks) => {
            let mut request = request;
            request.extensions_mut().insert(NullLinks);
            next.run(request).await
        }
        Some(FaultKind::Slow { .. }) | None => next.run(request).await,
    }
}

/// Marks a request whose answer lacks its links.
#[derive(Debug, Clone, Copy)]
struct NullLinks;

async fn read_faults(State(state): State<StandInState>) -> Json<Vec<Fault>> {
    Json(state.faults.get())
}

async fn write_faults(State(state): State<StandInState>, Json(faults): Json<Vec<Fault>>) -> StatusCode {
    state.faults.set(faults);
    StatusCode::NO_CONTENT
}

async fn unknown_path(request: Request) -> Problem {
    Problem::not_found(request.uri().path())
}

async fn point(
    State(state): State<StandInState>,
    Path(point): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (latitude, longitude) = match read_point("point", &point)? {
        Point::Precise(latitude, longitude) => (latitude, longitude),
        Point::TooPrecise(rounded) => return Ok(Redirect::permanent(&format!("/points/{rounded}")).into_response()),
    };
    if geography().coverage(latitude, longitude) == Coverage::Outside {
        return Err(Problem::invalid_point(&point));
    }
    let with_links = request.extensions().get::<NullLinks>().is_none();
    let body = Bodies::new(state.weather).point(latitude, longitude, with_links);
    body.map(geo_json).ok_or_else(|| Problem::invalid_point(&point))
}

async fn point_stations(State(state): State<StandInState>, Path(point): Path<String>) -> Result<Response, Problem> {
    let (latitude, longitude) = match read_point("point", &point)? {
        Point::Precise(latitude, longitude) => (latitude, longitude),
        Point::TooPrecise(rounded) => {
            return Ok(Redirect::permanent(&format!("/points/{rounded}/stations")).into_response());
        }
    };
    if geography().coverage(latitude, longitude) == Coverage::Outside {
        return Err(Problem::invalid_point(&point));
    }
    Ok(geo_json(Bodies::new(state.weather).stations(
        latitude,
        longitude,
        MAX_STATIONS,
    )))
}

async fn grid(
    State(state): State<StandInState>,
    Path((office, cell)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let (cell, latitude, longitude) = land_cell(&office, &cell)?;
    let body = Bodies::new(state.weather).grid(&cell, latitude, longitude);
    body.map(geo_json).ok_or_else(Problem::marine)
}

async fn forecast(
    State(state): State<StandInState>,
    Path((office, cell)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let (_, latitude, longitude) = land_cell(&office, &cell)?;
    let body = Bodies::new(state.weather).forecast(latitude, longitude);
    body.map(geo_json).ok_or_else(Problem::marine)
}

async fn hourly_forecast(
    State(state): State<StandInState>,
    Path((office, cell)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let (_, latitude, longitude) = land_cell(&office, &cell)?;
    let body = Bodies::new(state.weather).hourly_forecast(latitude, longitude);
    body.map(geo_json).ok_or_else(Problem::marine)
}

async fn grid_stations(
    State(state): State<StandInState>,
    Path((office, cell)): Path<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Problem> {
    let (_, latitude, longitude) = read_cell(&office, &cell)?;
    let limit = match query.get("limit") {
        None => MAX_STATIONS,
        Some(limit) => limit
            .parse()
            .ok()
            .filter(|limit| (1..=500).contains(limit))
            .ok_or_else(|| Problem::invalid_parameter("limit", "Must be an integer from 1 to 500"))?,
    };
    Ok(geo_json(
        Bodies::new(state.weather).stations(latitude, longitude, limit),
    ))
}

async fn station(State(state): State<StandInState>, Path(id): Path<String>) -> Result<Response, Problem> {
    let station = geography().station(&id.to_ascii_uppercase());
    let station = station.ok_or_else(|| Problem::not_found(&format!("/stations/{id}")))?;
    Ok(geo_json(Bodies::new(state.weather).station(station)))
}

async fn observation(State(state): State<StandInState>, Path(id): Path<String>) -> Result<Response, Problem> {
    let station = geography().station(&id.to_ascii_uppercase());
    let station = station.ok_or_else(|| Problem::not_found(&format!("/stations/{id}/observations/latest")))?;
    Ok(geo_json(Bodies::new(state.weather).observation(station)))
}

async fn alerts(
    State(state): State<StandInState>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, Problem> {
    let locations = ["area", "point", "zone", "region"]
        .iter()
        .filter(|name| query.contains_key(**name))
        .count();
    if locations > 1 {
        return Err(Problem::invalid_parameter(
            "area",
            "area, point, zone and region exclude each other",
        ));
    }
    let mut alerts: Vec<Alert> = if let Some(area) = query.get("area") {
        let mut alerts = Vec::new();
        for code in area.split(',') {
            alerts.extend(state.weather.alerts(known_area(code)?));
        }
        alerts
    } else if let Some(point) = query.get("point") {
        match read_point("point", point)? {
            Point::TooPrecise(_) => {
                return Err(Problem::invalid_parameter("point", "At most four decimals are allowed"));
            }
            Point::Precise(latitude, longitude) => state.weather.alerts_at(latitude, longitude).unwrap_or_default(),
        }
    } else {
        geography()
            .states
            .iter()
            .flat_map(|area| state.weather.alerts(&area.code))
            .collect()
    };
    if let Some(zone) = query.get("zone") {
        let zones: Vec<String> = zone.split(',').map(str::to_ascii_uppercase).collect();
        alerts.retain(|alert| Bodies::zones(alert).iter().any(|other| zones.contains(other)));
    }
    if let Some(severities) = query.get("severity") {
        let severities: Vec<&str> = severities.split(',').collect();
        if severities
            .iter()
            .any(|severity| *severity != "Unknown" && !SEVERITIES.contains(severity))
        {
            return Err(Problem::invalid_parameter(
                "severity",
                "Must be Extreme, Severe, Moderate, Minor or Unknown",
            ));
        }
        alerts.retain(|alert| severities.contains(&alert.severity));
    }
    for (name, value) in [
        ("event", (|alert: &Alert| alert.event) as fn(&Alert) -> &'static str),
        ("urgency", |alert| alert.urgency),
        ("certainty", |alert| alert.certainty),
    ] {
        if let Some(wanted) = query.get(name) {
            let wanted: Vec<&str> = wanted.split(',').collect();
            alerts.retain(|alert| wanted.contains(&value(alert)));
        }
    }
    Ok(geo_json(Bodies::new(state.weather).alerts(&alerts)))
}

async fn alerts_of_area(State(state): State<StandInState>, Path(area): Path<String>) -> Result<Response, Problem> {
    let alerts = state.weather.alerts(known_area(&area)?);
    Ok(geo_json(Bodies::new(state.weather).alerts(&alerts)))
}

async fn alert_count(State(state): State<StandInState>) -> Json<Value> {
    Json(Bodies::new(state.weather).alert_count())
}

fn geo_json(body: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/geo+json")], body.to_string()).into_response()
}

/// Territories and marine areas exist for the service; here they are always quiet.
fn known_area(code: &str) -> Result<&str, Problem> {
    let known = geography().state(code).is_some() || OTHER_AREAS.contains(&code);
    known
        .then_some(code)
        .ok_or_else(|| Problem::invalid_parameter("area", "Must be a state or marine area code"))
}

enum Point {
    Precise(f64, f64),
    TooPrecise(String),
}

fn read_point(name: &str, text: &str) -> Result<Point, Problem> {
    let bad = || Problem::invalid_parameter(name, "Must be latitude,longitude in decimal degrees");
    let (latitude_text, longitude_text) = text.split_once(',').ok_or_else(bad)?;
    let latitude: f64 = latitude_text.parse().map_err(|_| bad())?;
    let longitude: f64 = longitude_text.parse().map_err(|_| bad())?;
    if !(-90.0..=90.0).contains(&latitude) || !(-180.0..=180.0).contains(&longitude) {
        return Err(bad());
    }
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    if decimals(latitude_text) > 4 || decimals(longitude_text) > 4 {
        let round = |degrees: f64| (degrees * 1e4).round() / 1e4;
        return Ok(Point::TooPrecise(format!("{},{}", round(latitude), round(longitude))));
    }
    Ok(Point::Precise(latitude, longitude))
}

fn read_cell(office: &str, cell: &str) -> Result<(GridCell, f64, f64), Problem> {
    let path = format!("/gridpoints/{office}/{cell}");
    let (x, y) = cell.split_once(',').ok_or_else(|| Problem::not_found(&path))?;
    let (Ok(x), Ok(y)) = (x.parse(), y.parse()) else {
        return Err(Problem::not_found(&path));
    };
    let cell = GridCell {
        office: office.to_owned(),
        x,
        y,
    };
    let (latitude, longitude) = geography()
        .cell_centre(&cell)
        .ok_or_else(|| Problem::not_found(&path))?;
    Ok((cell, latitude, longitude))
}

fn land_cell(office: &str, cell: &str) -> Result<(GridCell, f64, f64), Problem> {
    let (cell, latitude, longitude) = read_cell(office, cell)?;
    match geography().coverage(latitude, longitude) {
        Coverage::Land { .. } => Ok((cell, latitude, longitude)),
        Coverage::Sea => Err(Problem::marine()),
        Coverage::Outside => Err(Problem::not_found(&format!(
            "/gridpoints/{}/{},{}",
            cell.office, cell.x, cell.y
        ))),
    }
}
