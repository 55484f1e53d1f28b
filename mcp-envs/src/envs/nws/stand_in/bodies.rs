//! The JSON of each answer, in the shapes of the service.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::nws::geography::{Coverage, GridCell, Station, distance_km, geography, summer_offset_hours};
use crate::nws::weather::{Alert, Hour, Period, Weather};

/// Links in answers name the service itself; clients take the path from them.
const SERVICE: &str = "https://api.weather.gov";

/// Makes answers out of one weather.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bodies {
    weather: Weather,
}

impl Bodies {
    pub(super) fn new(weather: Weather) -> Self {
        Self { weather }
    }

    /// `/points/…`; `None` where no place is near.
    pub(super) fn point(self, latitude: f64, longitude: f64, with_links: bool) -> Option<Value> {
        let (cell, office) = geography().grid_cell(latitude, longitude)?;
        let base = format!("{SERVICE}/gridpoints/{}/{},{}", cell.office, cell.x, cell.y);
        let link = |path: &str| {
            if with_links {
                json!(format!("{base}{path}"))
            } else {
                Value::Null
            }
        };
        let place = match geography().coverage(latitude, longitude) {
            Coverage::Land { place, .. } => geography().places.get(place).map(|found| (place, found)),
            Coverage::Sea | Coverage::Outside => None,
        };
        let (relative, time_zone, zone) = match place {
            Some((index, place)) => {
                let metres = 1000.0 * distance_km(latitude, longitude, place.latitude, place.longitude);
                let relative = json!({
                    "type": "Feature",
                    "geometry": point_geometry(place.latitude, place.longitude),
                    "properties": {
                        "city": place.name,
                        "state": place.state,
                        "distance": { "unitCode": "wmoUnit:m", "value": metres },
                        "bearing": { "unitCode": "wmoUnit:degree_(angle)", "value": 0 },
                    },
                });
                (relative, json!(place.time_zone), json!(zone_link(&zone_of(index))))
            }
            None => (Value::Null, Value::Null, Value::Null),
        };
        Some(json!({
            "@context": context(),
            "id": format!("{SERVICE}/points/{latitude},{longitude}"),
            "type": "Feature",
            "geometry": point_geometry(latitude, longitude),
            "properties": {
                "@id": format!("{SERVICE}/points/{latitude},{longitude}"),
                "@type": "wx:Point",
                "cwa": cell.office,
                "forecastOffice": format!("{SERVICE}/offices/{}", cell.office),
                "gridId": cell.office,
                "gridX": cell.x,
                "gridY": cell.y,
                "forecast": link("/forecast"),
                "forecastHourly": link("/forecast/hourly"),
                "forecastGridData": link(""),
                "observationStations": link("/stations"),
                "relativeLocation": relative,
                "forecastZone": zone,
                "county": zone,
                "fireWeatherZone": zone,
                "timeZone": time_zone,
                "radarStation": format!("K{}", office.id),
            },
        }))
    }

    /// `/gridpoints/…/forecast`
    pub(super) fn forecast(self, latitude: f64, longitude: f64) -> Option<Value> {
        let periods = self.weather.periods(latitude, longitude)?;
        let rows: Vec<Value> = periods
            .iter()
            .enumerate()
            .map(|(index, period)| period_body(index, period))
            .collect();
        Some(self.forecast_body("BaselineForecastGenerator", latitude, longitude, rows))
    }

    /// `/gridpoints/…/forecast/hourly`
    pub(super) fn hourly_forecast(self, latitude: f64, longitude: f64) -> Option<Value> {
        let hours = self.weather.hours(latitude, longitude)?;
        let rows: Vec<Value> = hours
            .iter()
            .enumerate()
            .map(|(index, hour)| hour_body(index, hour))
            .collect();
        Some(self.forecast_body("HourlyForecastGenerator", latitude, longitude, rows))
    }

    fn forecast_body(self, generator: &str, latitude: f64, longitude: f64, periods: Vec<Value>) -> Value {
        let updated = self.utc_now();
        json!({
            "@context": context(),
            "type": "Feature",
            "geometry": point_geometry(latitude, longitude),
            "properties": {
                "units": "us",
                "forecastGenerator": generator,
                "generatedAt": updated,
                "updateTime": updated,
                "validTimes": format!("{updated}/P7DT13H"),
                "elevation": { "unitCode": "wmoUnit:m", "value": 200 },
                "periods": periods,
            },
        })
    }

    /// `/gridpoints/{office}/{x},{y}`: layers of values, equal neighbours merged.
    pub(super) fn grid(self, cell: &GridCell, latitude: f64, longitude: f64) -> Option<Value> {
        let hours = self.weather.hours(latitude, longitude)?;
        let layer = |unit: &str, value: fn(&Hour) -> Value| {
            let mut values: Vec<(String, usize, Value)> = Vec::new();
            for hour in &hours {
                let value = value(hour);
                match values.last_mut() {
                    Some((_, length, last)) if *last == value => *length += 1,
                    _ => values.push((hour.start.iso(), 1, value)),
                }
            }
            let values: Vec<Value> = values
                .into_iter()
                .map(|(start, length, value)| json!({ "validTime": format!("{start}/PT{length}H"), "value": value }))
                .collect();
            json!({ "uom": unit, "values": values })
        };
        Some(json!({
            "@context": context(),
            "id": format!("{SERVICE}/gridpoints/{}/{},{}", cell.office, cell.x, cell.y),
            "type": "Feature",
            "geometry": point_geometry(latitude, longitude),
            "properties": {
                "gridId": cell.office,
                "gridX": cell.x.to_string(),
                "gridY": cell.y.to_string(),
                "updateTime": self.utc_now(),
                "temperature": layer("wmoUnit:degC", |hour| json!(celsius(hour.temperature))),
                "dewpoint": layer("wmoUnit:degC", |hour| json!(celsius(hour.dewpoint))),
                "relativeHumidity": layer("wmoUnit:percent", |hour| json!(hour.humidity)),
                "probabilityOfPrecipitation": layer("wmoUnit:percent", |hour| json!(hour.rain)),
                "windSpeed": layer("wmoUnit:km_h-1", |hour| json!(kilometres(hour.wind))),
            },
        }))
    }

    /// A collection of the stations around a point, nearest first.
    pub(super) fn stations(self, latitude: f64, longitude: f64, limit: usize) -> Value {
        let stations = geography().nearest_stations(latitude, longitude, limit);
        let ids: Vec<String> = stations
            .iter()
            .map(|(station, _)| format!("{SERVICE}/stations/{}", station.id))
            .collect();
        let features: Vec<Value> = stations.into_iter().map(|(station, _)| self.station(station)).collect();
        json!({
            "@context": context(),
            "type": "FeatureCollection",
            "features": features,
            "observationStations": ids,
        })
    }

    /// `/stations/{id}`
    pub(super) fn station(self, station: &Station) -> Value {
        json!({
            "id": format!("{SERVICE}/stations/{}", station.id),
            "type": "Feature",
            "geometry": point_geometry(station.latitude, station.longitude),
            "properties": {
                "@id": format!("{SERVICE}/stations/{}", station.id),
                "@type": "wx:ObservationStation",
                "elevation": { "unitCode": "wmoUnit:m", "value": Value::Null },
                "stationIdentifier": station.id,
                "name": station.name,
                "timeZone": station.time_zone,
            },
        })
    }

    /// `/stations/{id}/observations/latest`
    pub(super) fn observation(self, station: &Station) -> Value {
        let observation = self.weather.observation(station);
        let quantity = |unit: &str, value: Option<f64>| {
            let quality = if value.is_some() { "V" } else { "Z" };
            json!({ "unitCode": unit, "value": value, "qualityControl": quality })
        };
        json!({
            "@context": context(),
            "id": format!("{SERVICE}/stations/{}/observations/{}", station.id, observation.time.iso()),
            "type": "Feature",
            "geometry": point_geometry(station.latitude, station.longitude),
            "properties": {
                "@type": "wx:ObservationStation",
                "station": format!("{SERVICE}/stations/{}", station.id),
                "stationId": station.id,
                "stationName": station.name,
                "timestamp": observation.time.iso(),
                "rawMessage": "",
                "textDescription": observation.sky,
                "icon": Value::Null,
                "presentWeather": [],
                "temperature": quantity("wmoUnit:degC", observation.temperature.map(celsius)),
                "dewpoint": quantity("wmoUnit:degC", observation.dewpoint.map(celsius)),
                "windDirection": quantity(
                    "wmoUnit:degree_(angle)", observation.wind_degrees.map(|degrees| degrees as f64)),
                "windSpeed": quantity("wmoUnit:km_h-1", observation.wind.map(kilometres)),
                "windGust": quantity("wmoUnit:km_h-1", None),
                "barometricPressure": quantity("wmoUnit:Pa", Some(101_325.0)),
                "seaLevelPressure": quantity("wmoUnit:Pa", None),
                "visibility": quantity("wmoUnit:m", Some(16_093.44)),
                "relativeHumidity": quantity("wmoUnit:percent", observation.humidity.map(|percent| percent as f64)),
                "windChill": quantity("wmoUnit:degC", None),
                "heatIndex": quantity("wmoUnit:degC", None),
                "cloudLayers": [],
            },
        })
    }

    /// A collection of alerts; empty where there are none.
    pub(super) fn alerts(self, alerts: &[Alert]) -> Value {
        let features: Vec<Value> = alerts.iter().map(alert_body).collect();
        json!({
            "@context": context(),
            "type": "FeatureCollection",
            "features": features,
            "title": "Current watches, warnings, and advisories",
            "updated": self.utc_now(),
        })
    }

    /// `/alerts/active/count`
    pub(super) fn alert_count(self) -> Value {
        let mut areas = BTreeMap::new();
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for state in &geography().states {
            let alerts = self.weather.alerts(&state.code);
            if !alerts.is_empty() {
                areas.insert(state.code.clone(), alerts.len());
            }
            for zone in alerts.iter().flat_map(Self::zones) {
                *zones.entry(zone).or_default() += 1;
            }
        }
        let total: usize = areas.values().sum();
        json!({ "total": total, "land": total, "marine": 0, "regions": Map::new(), "areas": areas, "zones": zones })
    }

    /// The zones that an alert touches, one a place.
    pub(super) fn zones(alert: &Alert) -> Vec<String> {
        alert.places.iter().map(|index| zone_of(*index)).collect()
    }

    fn utc_now(self) -> String {
        let now = self.weather.now("Pacific/Honolulu");
        let utc = now
            .civil
            .saturating_sub(jiff::Span::new().hours(i64::from(summer_offset_hours("Pacific/Honolulu"))));
        format!("{}+00:00", utc.strftime("%Y-%m-%dT%H:%M:%S"))
    }
}

/// The zone of a place: its state, and its number among all places.
fn zone_of(place: usize) -> String {
    let state = geography().places.get(place).map_or("XX", |place| place.state.as_str());
    format!("{state}Z{:03}", place + 1)
}

fn zone_link(zone: &str) -> String {
    format!("{SERVICE}/zones/forecast/{zone}")
}

fn context() -> Value {
    json!(["https://geojson.org/geojson-ld/geojson-context.jsonld", { "@version": "1.1" }])
}

fn point_geometry(latitude: f64, longitude: f64) -> Value {
    json!({ "type": "Point", "coordinates": [longitude, latitude] })
}

/// Degrees Celsius to a tenth: near enough that the whole degree Fahrenheit comes back.
fn celsius(fahrenheit: i64) -> f64 {
    ((fahrenheit as f64 - 32.0) / 1.8 * 10.0).round() / 10.0
}

/// Kilometres per hour to a hundredth.
fn kilometres(miles: i64) -> f64 {
    (miles as f64 * 160.934_4).round() / 100.0
}

fn period_body(index: usize, period: &Period) -> Value {
    let wind = if period.wind_low == period.wind_high {
        format!("{} mph", period.wind_low)
    } else {
        format!("{} to {} mph", period.wind_low, period.wind_high)
    };
    // The service says nothing where it expects nothing.
    let rain = if period.rain == 0 {
        Value::Null
    } else {
        json!(period.rain)
    };
    let (bound, when) = if period.is_daytime {
        ("high", "day")
    } else {
        ("low", "night")
    };
    json!({
        "number": index + 1,
        "name": period.name,
        "startTime": period.start.iso(),
        "endTime": period.end.iso(),
        "isDaytime": period.is_daytime,
        "temperature": period.temperature,
        "temperatureUnit": "F",
        "temperatureTrend": Value::Null,
        "probabilityOfPrecipitation": { "unitCode": "wmoUnit:percent", "value": rain },
        "windSpeed": wind,
        "windDirection": period.wind_direction,
        "icon": format!("{SERVICE}/icons/land/{when}/few?size=medium"),
        "shortForecast": period.sky,
        "detailedForecast": format!(
            "{}, with a {bound} near {}. {} wind around {wind}. Chance of precipitation is {}%.",
            period.sky, period.temperature, period.wind_direction, period.rain,
        ),
    })
}

fn hour_body(index: usize, hour: &Hour) -> Value {
    let end = hour.start.civil.saturating_add(jiff::Span::new().hours(1));
    let end = crate::nws::weather::LocalTime {
        civil: end,
        offset_hours: hour.start.offset_hours,
    };
    json!({
        "number": index + 1,
        "name": "",
        "startTime": hour.start.iso(),
        "endTime": end.iso(),
        "isDaytime": hour.is_daytime,
        "temperature": hour.temperature,
        "temperatureUnit": "F",
        "temperatureTrend": Value::Null,
        "probabilityOfPrecipitation": { "unitCode": "wmoUnit:percent", "value": hour.rain },
        "dewpoint": { "unitCode": "wmoUnit:degC", "value": celsius(hour.dewpoint) },
        "relativeHumidity": { "unitCode": "wmoUnit:percent", "value": hour.humidity },
        "windSpeed": format!("{} mph", hour.wind),
        "windDirection": hour.wind_direction,
        "icon": Value::Null,
        "shortForecast": hour.sky,
        "detailedForecast": "",
    })
}

fn alert_body(alert: &Alert) -> Value {
    let zones = Bodies::zones(alert);
    let id = format!(
        "urn:oid:2.49.0.1.840.0.{}.{}",
        alert.state.to_lowercase(),
        alert.event.replace(' ', "-")
    );
    let links: Vec<String> = zones.iter().map(|zone| zone_link(zone)).collect();
    json!({
        "id": format!("{SERVICE}/alerts/{id}"),
        "type": "Feature",
        "geometry": Value::Null,
        "properties": {
            "@id": format!("{SERVICE}/alerts/{id}"),
            "@type": "wx:Alert",
            "id": id,
            "areaDesc": alert.area(),
            "geocode": { "UGC": zones },
            "affectedZones": links,
            "references": [],
            "sent": alert.start.iso(),
            "effective": alert.start.iso(),
            "onset": alert.start.iso(),
            "expires": alert.end.iso(),
            "ends": alert.end.iso(),
            "status": "Actual",
            "messageType": "Alert",
            "category": "Met",
            "severity": alert.severity,
            "certainty": alert.certainty,
            "urgency": alert.urgency,
            "event": alert.event,
            "sender": "w-nws.webmaster@noaa.gov",
            "senderName": format!("NWS {}", alert.state),
            "headline": format!("{} issued for {}", alert.event, alert.area()),
            "description": format!("A {} is in effect for {}.", alert.event, alert.area()),
            "instruction": Value::Null,
            "response": "Monitor",
        },
    })
}
