//! The structured result of each tool. Temperatures are whole degrees Fahrenheit, winds miles per hour.

use schemars::JsonSchema;
use serde::Serialize;

use crate::nws::client::{Alert, Coordinates, ForecastPeriod, Observation, PointInfo, StationInfo};
use crate::nws::geography::{distance_km, miles};
use crate::nws::weather::{SEVERITIES, compass};

/// Alerts in a result; a state can have dozens.
const MAX_ALERTS: usize = 8;

/// Half a day, or an hour.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PeriodOutput {
    /// Its name, `Tuesday Night`; of an hour, `5 PM`.
    pub name: String,
    /// When it begins, ISO 8601.
    pub start: String,
    /// Whether it is day.
    pub is_daytime: bool,
    /// The high of a day, the low of a night.
    pub temperature: Option<i64>,
    /// `F` or `C`.
    pub unit: String,
    /// Chance of rain in percent.
    pub rain_percent: i64,
    /// Direction and speed, `NW 10 mph`.
    pub wind: Option<String>,
    /// `Mostly Sunny`.
    pub sky: Option<String>,
}

/// Result of `get_forecast`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ForecastOutput {
    /// Half days in their order.
    pub periods: Vec<PeriodOutput>,
    /// Name of the period with the highest temperature.
    pub warmest: Option<String>,
    /// Name of the period with the highest chance of rain.
    pub wettest: Option<String>,
}

/// Result of `get_hourly_forecast`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HourlyOutput {
    /// Hours in their order.
    pub hours: Vec<PeriodOutput>,
}

/// Result of `get_current_weather`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ObservationOutput {
    /// The station's id.
    pub station: String,
    /// The station's name.
    pub name: Option<String>,
    /// When it was observed, ISO 8601.
    pub time: Option<String>,
    /// Degrees Fahrenheit; null where the station does not say.
    pub temperature: Option<i64>,
    /// Percent.
    pub humidity_percent: Option<i64>,
    /// Miles per hour.
    pub wind_mph: Option<i64>,
    /// Where the wind comes from.
    pub wind_direction: Option<String>,
    /// `Partly Cloudy`.
    pub sky: Option<String>,
}

/// Result of `get_alerts`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AlertsOutput {
    /// What was asked for.
    pub area: String,
    /// Worst first.
    pub alerts: Vec<AlertOutput>,
    /// How many more there are.
    pub not_shown: usize,
    /// Only this severity, where one was asked for.
    pub severity: Option<String>,
}

/// One alert.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AlertOutput {
    /// `Flood Warning`.
    pub event: String,
    /// `Severe`.
    pub severity: String,
    /// When it ends, ISO 8601.
    pub until: Option<String>,
    /// Places.
    pub area: String,
}

/// Result of `find_stations`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StationsOutput {
    /// Nearest first.
    pub stations: Vec<StationOutput>,
}

/// One station.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StationOutput {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// How far away it is.
    pub distance_miles: Option<i64>,
}

/// Result of `get_point`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PointOutput {
    /// The forecast office.
    pub office: String,
    /// Cell east.
    pub grid_x: i64,
    /// Cell north.
    pub grid_y: i64,
    /// The nearest city.
    pub city: Option<String>,
    /// Name in the tz database.
    pub time_zone: Option<String>,
}

impl PeriodOutput {
    fn new(period: &ForecastPeriod, name: String) -> Self {
        let rain = period
            .probability_of_precipitation
            .as_ref()
            .and_then(|quantity| quantity.value);
        let wind = match (&period.wind_direction, &period.wind_speed) {
            (Some(direction), Some(speed)) => Some(format!("{direction} {speed}").trim().to_owned()),
            (None, Some(speed)) => Some(speed.clone()),
            _ => None,
        };
        Self {
            name,
            start: period.start_time.clone(),
            is_daytime: period.is_daytime,
            temperature: period.temperature.map(|degrees| degrees.round() as i64),
            unit: period.temperature_unit.clone().unwrap_or_else(|| "F".to_owned()),
            // Null means that no rain is expected.
            rain_percent: rain.unwrap_or(0.0).round() as i64,
            wind,
            sky: period.short_forecast.clone(),
        }
    }
}

impl ForecastOutput {
    pub(super) fn new(periods: &[ForecastPeriod]) -> Self {
        let periods: Vec<PeriodOutput> = periods
            .iter()
            .map(|period| PeriodOutput::new(period, period.name.clone()))
            .collect();
        // Of equals, the first; `max_by_key` alone would take the last.
        let best = |value: fn(&PeriodOutput) -> Option<i64>| {
            let mut best: Option<&PeriodOutput> = None;
            for period in periods.iter().filter(|period| value(period).is_some()) {
                if best.is_none_or(|best| value(period) > value(best)) {
                    best = Some(period);
                }
            }
            best.map(|period| period.name.clone())
        };
        let warmest = best(|period| period.temperature);
        let wettest = best(|period| Some(period.rain_percent).filter(|rain| *rain > 0));
        Self {
            periods,
            warmest,
            wettest,
        }
    }
}

impl HourlyOutput {
    pub(super) fn new(periods: &[ForecastPeriod]) -> Self {
        let first_day = periods
            .first()
            .and_then(|period| super::text::local_time(&period.start_time));
        let hours = periods.iter().map(|period| {
            let name = match super::text::local_time(&period.start_time) {
                // The day is said only where it is another one.
                Some(time) if first_day.is_some_and(|first| first.date() == time.date()) => super::text::clock(time),
                Some(time) => super::text::day_and_clock(time),
                None => period.start_time.clone(),
            };
            PeriodOutput::new(period, name)
        });
        Self { hours: hours.collect() }
    }
}

impl ObservationOutput {
    pub(super) fn new(station: String, name: Option<String>, observation: &Observation) -> Self {
        let sky = observation
            .text_description
            .clone()
            .filter(|sky| !sky.trim().is_empty());
        let direction = observation.wind_direction.as_ref().and_then(|quantity| quantity.value);
        Self {
            station,
            name: name
                .or_else(|| observation.station_name.clone())
                .filter(|name| !name.is_empty()),
            time: observation.timestamp.clone(),
            temperature: observation.fahrenheit(),
            humidity_percent: observation.humidity(),
            wind_mph: observation.miles_per_hour(),
            wind_direction: direction.map(|degrees| compass(degrees).to_owned()),
            sky,
        }
    }
}

impl AlertsOutput {
    pub(super) fn new(area: String, severity: Option<&str>, mut alerts: Vec<Alert>) -> Self {
        let rank = |severity: &str| {
            SEVERITIES
                .iter()
                .position(|other| *other == severity)
                .unwrap_or(SEVERITIES.len())
        };
        alerts.sort_by_key(|alert| rank(&alert.severity));
        let not_shown = alerts.len().saturating_sub(MAX_ALERTS);
        alerts.truncate(MAX_ALERTS);
        let alerts = alerts
            .into_iter()
            .map(|alert| AlertOutput {
                event: alert.event,
                severity: alert.severity,
                until: alert.ends.or(alert.expires),
                area: alert.area_desc,
            })
            .collect();
        Self {
            area,
            alerts,
            not_shown,
            severity: severity.map(str::to_owned),
        }
    }
}

impl StationsOutput {
    pub(super) fn new(coordinates: Coordinates, stations: &[StationInfo]) -> Self {
        let stations = stations.iter().map(|station| StationOutput {
            id: station.id.clone(),
            name: station.name.clone(),
            distance_miles: station.position.map(|(latitude, longitude)| {
                let km = distance_km(coordinates.latitude(), coordinates.longitude(), latitude, longitude);
                miles(km).round() as i64
            }),
        });
        Self {
            stations: stations.collect(),
        }
    }
}

impl PointOutput {
    pub(super) fn new(point: &PointInfo) -> Option<Self> {
        Some(Self {
            office: point.grid_id.clone()?,
            grid_x: point.grid_x?,
            grid_y: point.grid_y?,
            city: point.city().map(|(city, state)| format!("{city}, {state}")),
            time_zone: point.time_zone.clone(),
        })
    }
}
