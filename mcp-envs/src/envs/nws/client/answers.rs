//! What the service's GeoJSON becomes here. Every value that the service may leave out or set to null is an option.

use serde::Deserialize;

/// `/points/…`
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PointInfo {
    /// The office that owns the grid, `DLH`.
    pub grid_id: Option<String>,
    /// Cell east.
    pub grid_x: Option<i64>,
    /// Cell north.
    pub grid_y: Option<i64>,
    /// Link.
    pub forecast: Option<String>,
    /// Link.
    pub forecast_hourly: Option<String>,
    /// Link.
    pub observation_stations: Option<String>,
    /// Name in the tz database.
    pub time_zone: Option<String>,
    /// The nearest city.
    relative_location: Option<RelativeLocation>,
}

impl PointInfo {
    /// The nearest city and its state.
    pub fn city(&self) -> Option<(&str, &str)> {
        let properties = &self.relative_location.as_ref()?.properties;
        Some((properties.city.as_deref()?, properties.state.as_deref()?))
    }
}

#[derive(Debug, Clone, Deserialize)]
struct RelativeLocation {
    properties: RelativeLocationProperties,
}

#[derive(Debug, Clone, Deserialize)]
struct RelativeLocationProperties {
    city: Option<String>,
    state: Option<String>,
}

/// Half a day, or an hour.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForecastPeriod {
    /// `Tuesday Night`; empty for an hour.
    #[serde(default)]
    pub name: String,
    /// ISO 8601 with the place's offset.
    pub start_time: String,
    /// Day or night.
    #[serde(default)]
    pub is_daytime: bool,
    /// In `temperature_unit`.
    pub temperature: Option<f64>,
    /// `F` or `C`.
    pub temperature_unit: Option<String>,
    /// Percent; null means none.
    pub probability_of_precipitation: Option<Quantity>,
    /// `5 to 10 mph`.
    pub wind_speed: Option<String>,
    /// `NW`.
    pub wind_direction: Option<String>,
    /// `Mostly Sunny`.
    pub short_forecast: Option<String>,
}

/// A value with its unit.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantity {
    /// `wmoUnit:degC`.
    #[serde(default)]
    pub unit_code: String,
    /// May be null.
    pub value: Option<f64>,
}

/// A station near a point.
#[derive(Debug, Clone, PartialEq)]
pub struct StationInfo {
    /// `KDLH`.
    pub id: String,
    /// `Duluth International Airport`.
    pub name: String,
    /// Degrees north and east, where the service says.
    pub position: Option<(f64, f64)>,
}

/// A station's latest report.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// `KDLH`; older answers have only the link.
    pub station_id: Option<String>,
    /// `Duluth International Airport`.
    pub station_name: Option<String>,
    /// ISO 8601.
    pub timestamp: Option<String>,
    /// `Partly Cloudy`.
    pub text_description: Option<String>,
    /// Degrees Celsius.
    pub temperature: Option<Quantity>,
    /// Percent.
    pub relative_humidity: Option<Quantity>,
    /// Degrees.
    pub wind_direction: Option<Quantity>,
    /// Kilometres per hour.
    pub wind_speed: Option<Quantity>,
}

impl Observation {
    /// Whole degrees Fahrenheit.
    pub fn fahrenheit(&self) -> Option<i64> {
        let quantity = self.temperature.as_ref()?;
        let value = quantity.value?;
        let fahrenheit = if quantity.unit_code.ends_with("degF") {
            value
        } else {
            value * 1.8 + 32.0
        };
        Some(fahrenheit.round() as i64)
    }

    /// Whole miles per hour.
    pub fn miles_per_hour(&self) -> Option<i64> {
        let quantity = self.wind_speed.as_ref()?;
        let value = quantity.value?;
        let miles = if quantity.unit_code.ends_with("m_s-1") {
            value * 2.236_936
        } else {
            value / 1.609_344
        };
        Some(miles.round() as i64)
    }

    /// Whole percent.
    pub fn humidity(&self) -> Option<i64> {
        Some(self.relative_humidity.as_ref()?.value?.round() as i64)
    }
}

/// An active alert.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// `Flood Warning`.
    #[serde(default)]
    pub event: String,
    /// `Extreme` to `Unknown`.
    #[serde(default = "unknown")]
    pub severity: String,
    /// Places, separated by semicolons.
    #[serde(default)]
    pub area_desc: String,
    /// When it ends, ISO 8601; not every alert says.
    pub ends: Option<String>,
    /// When this message expires, ISO 8601.
    pub expires: Option<String>,
    /// One line for people.
    pub headline: Option<String>,
}

fn unknown() -> String {
    "Unknown".to_owned()
}

#[derive(Debug, Deserialize)]
pub(super) struct PointAnswer {
    pub(super) properties: PointInfo,
}

#[derive(Debug, Deserialize)]
pub(super) struct ForecastAnswer {
    pub(super) properties: ForecastProperties,
}

#[derive(Debug, Deserialize)]
pub(super) struct ForecastProperties {
    pub(super) periods: Vec<ForecastPeriod>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ObservationAnswer {
    pub(super) properties: Observation,
}

#[derive(Debug, Deserialize)]
pub(super) struct AlertCollection {
    pub(super) features: Vec<AlertFeature>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AlertFeature {
    pub(super) properties: Alert,
}

#[derive(Debug, Deserialize)]
pub(super) struct StationCollection {
    pub(super) features: Vec<StationFeature>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StationFeature {
    geometry: Option<PointGeometry>,
    properties: StationProperties,
}

#[derive(Debug, Deserialize)]
struct PointGeometry {
    /// Degrees east, degrees north.
    coordinates: (f64, f64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StationProperties {
    station_identifier: String,
    #[serde(default)]
    name: String,
}

impl From<StationFeature> for StationInfo {
    fn from(feature: StationFeature) -> Self {
        Self {
            id: feature.properties.station_identifier,
            name: feature.properties.name,
            position: feature
                .geometry
                .map(|geometry| (geometry.coordinates.1, geometry.coordinates.0)),
        }
    }
}
