//! The weather of the stand-in: every value follows from the seed, without HTTP, so that a reward can ask for the facts.
//!
//! The clock stands still: it is Monday, noon in New York, in a summer week chosen by the seed. Temperatures are whole
//! degrees Fahrenheit, rain chances percent, wind speeds miles per hour.

use jiff::civil::{Date, DateTime, Weekday};
use jiff::{Span, ToSpan};

use super::dice::Dice;
use super::geography::{Coverage, Place, Station, geography, summer_offset_hours};

/// How near a point must be to a named place to share its weather: more than a coordinate's rounding and a grid cell.
const PLACE_RADIUS_KM: f64 = 15.0;
/// Half days in a forecast.
pub const N_PERIODS: usize = 14;
/// Hours in an hourly forecast.
pub const N_HOURS: usize = 156;
/// The hour of the frozen clock, UTC.
const NOW_UTC_HOUR: i8 = 16;
const COMPASS: [&str; 8] = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"];

/// The whole country's weather for one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weather {
    seed: u64,
}

/// A local time with its offset from UTC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalTime {
    /// The wall clock.
    pub civil: DateTime,
    /// Hours to add to UTC.
    pub offset_hours: i8,
}

/// Half a day of a forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// `Today`, `Tonight`, `Tuesday`, `Tuesday Night`, …
    pub name: String,
    /// When it begins.
    pub start: LocalTime,
    /// When it ends.
    pub end: LocalTime,
    /// Six in the morning to six in the evening.
    pub is_daytime: bool,
    /// Degrees Fahrenheit: the high of a day, the low of a night.
    pub temperature: i64,
    /// Percent, in tens.
    pub rain: i64,
    /// Miles per hour, the lower end.
    pub wind_low: i64,
    /// Miles per hour, the upper end; equal to the lower where the forecast names one speed.
    pub wind_high: i64,
    /// Where it comes from, eight points.
    pub wind_direction: &'static str,
    /// `Mostly Sunny`.
    pub sky: &'static str,
}

/// An hour of a forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Hour {
    /// When it begins.
    pub start: LocalTime,
    /// Six in the morning to six in the evening.
    pub is_daytime: bool,
    /// Degrees Fahrenheit.
    pub temperature: i64,
    /// Percent.
    pub rain: i64,
    /// Percent.
    pub humidity: i64,
    /// Degrees Fahrenheit.
    pub dewpoint: i64,
    /// Miles per hour.
    pub wind: i64,
    /// Where it comes from, eight points.
    pub wind_direction: &'static str,
    /// `Mostly Sunny`.
    pub sky: &'static str,
}

/// The latest report of a station; each value can be missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// When it was made.
    pub time: LocalTime,
    /// Degrees Fahrenheit.
    pub temperature: Option<i64>,
    /// Degrees Fahrenheit.
    pub dewpoint: Option<i64>,
    /// Percent.
    pub humidity: Option<i64>,
    /// Miles per hour.
    pub wind: Option<i64>,
    /// Where the wind comes from, degrees clockwise from north.
    pub wind_degrees: Option<i64>,
    /// `Partly Cloudy`; empty where the station has no observer for it.
    pub sky: &'static str,
}

/// An active alert.
#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    /// `Flood Warning`.
    pub event: &'static str,
    /// `Extreme`, `Severe`, `Moderate` or `Minor`; no two of a state are equal.
    pub severity: &'static str,
    /// `Observed`, `Likely` or `Possible`.
    pub certainty: &'static str,
    /// `Immediate`, `Expected` or `Future`.
    pub urgency: &'static str,
    /// Two letters.
    pub state: String,
    /// Indices into [`super::geography::Geography::places`], all of the state.
    pub places: Vec<usize>,
    /// When it was issued.
    pub start: LocalTime,
    /// When it ends.
    pub end: LocalTime,
}

/// Severities from worst to least.
pub const SEVERITIES: [&str; 4] = ["Extreme", "Severe", "Moderate", "Minor"];

/// Events with the severities that they come with. No name holds the word of a severity.
pub const EVENTS: [(&str, &[&str]); 14] = [
    ("Tornado Warning", &["Extreme", "Severe"]),
    ("Flash Flood Warning", &["Extreme", "Severe"]),
    ("Dust Storm Warning", &["Extreme", "Severe"]),
    ("High Wind Warning", &["Extreme", "Severe"]),
    ("Tornado Watch", &["Extreme", "Severe"]),
    ("Flood Warning", &["Severe", "Moderate"]),
    ("Flood Watch", &["Severe", "Moderate"]),
    ("Red Flag Warning", &["Severe", "Moderate"]),
    ("Heat Advisory", &["Moderate", "Minor"]),
    ("Wind Advisory", &["Moderate", "Minor"]),
    ("Dense Fog Advisory", &["Moderate", "Minor"]),
    ("Dense Smoke Advisory", &["Moderate", "Minor"]),
    ("Air Quality Alert", &["Moderate", "Minor"]),
    ("Special Weather Statement", &["Moderate", "Minor"]),
];

impl LocalTime {
    /// ISO 8601 with the offset, `2026-06-15T09:00:00-05:00`.
    pub fn iso(&self) -> String {
        let sign = if self.offset_hours < 0 { '-' } else { '+' };
        format!(
            "{}{sign}{:02}:00",
            self.civil.strftime("%Y-%m-%dT%H:%M:%S"),
            self.offset_hours.abs()
        )
    }

    fn plus(self, span: Span) -> Self {
        Self {
            civil: self.civil.saturating_add(span),
            ..self
        }
    }
}

/// What makes the weather of a point: its nearest named place, or its own cell in the open country.
struct Site {
    key: String,
    latitude: f64,
    offset_hours: i8,
}

impl Weather {
    /// The weather of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The frozen clock at a place.
    pub fn now(&self, time_zone: &str) -> LocalTime {
        let offset_hours = summer_offset_hours(time_zone);
        let civil = self
            .monday()
            .at(NOW_UTC_HOUR, 0, 0, 0)
            .saturating_add(i64::from(offset_hours).hours());
        LocalTime { civil, offset_hours }
    }

    /// A Monday from the middle of April to the end of August 2026.
    fn monday(&self) -> Date {
        let weeks = Dice::new(self.seed, &["week"]).between(0, 19);
        Date::constant(2026, 4, 13).saturating_add(weeks.weeks())
    }

    /// The fourteen half days of a point; `None` where the service has no land forecast.
    pub fn periods(&self, latitude: f64, longitude: f64) -> Option<Vec<Period>> {
        let site = self.site(latitude, longitude)?;
        Some((0..N_PERIODS).map(|index| self.period(&site, index)).collect())
    }

    /// The hours of a point, from the frozen clock's hour on; `None` where the service has no land forecast.
    pub fn hours(&self, latitude: f64, longitude: f64) -> Option<Vec<Hour>> {
        let site = self.site(latitude, longitude)?;
        let now = self.now_at(site.offset_hours);
        let periods: Vec<Period> = (0..=N_PERIODS).map(|index| self.period(&site, index)).collect();
        let hours = (0..N_HOURS as i64).filter_map(|index| {
            let start = now.plus(index.hours());
            let period = periods.iter().rfind(|period| period.start.civil <= start.civil)?;
            Some(self.hour(&site, index, start, period))
        });
        Some(hours.collect())
    }

    /// The latest report of a station.
    pub fn observation(&self, station: &Station) -> Observation {
        let mut dice = Dice::new(self.seed, &["observation", &station.id]);
        let climate = self.climate(station.latitude);
        let temperature = climate - dice.between(0, 18);
        let dewpoint = temperature - dice.between(4, 26);
        let humidity = humidity(temperature, dewpoint);
        let wind = dice.between(0, 24);
        let wind_degrees = dice.between(0, 7) * 45;
        let sky = [
            "Clear",
            "Mostly Clear",
            "Partly Cloudy",
            "Mostly Cloudy",
            "Cloudy",
            "Light Rain",
            "",
        ];
        // Instruments fail, each on its own.
        let temperature_present = !dice.chance(6);
        Observation {
            time: self.now(&station.time_zone).plus(-7.minutes()),
            temperature: temperature_present.then_some(temperature),
            dewpoint: (temperature_present && !dice.chance(5)).then_some(dewpoint),
            humidity: (temperature_present && !dice.chance(8)).then_some(humidity),
            wind: (!dice.chance(8)).then_some(wind),
            wind_degrees: (!dice.chance(8) && wind > 0).then_some(wind_degrees),
            sky: dice.pick(&sky).copied().unwrap_or_default(),
        }
    }

    /// The active alerts of a state, worst first; empty for a code that is not one.
    pub fn alerts(&self, state: &str) -> Vec<Alert> {
        let geography = geography();
        let Some(state) = geography.state(state) else {
            return Vec::new();
        };
        let in_state: Vec<usize> = (0..geography.places.len())
            .filter(|index| {
                geography
                    .places
                    .get(*index)
                    .is_some_and(|place| place.state == state.code)
            })
            .collect();
        let Some(time_zone) = in_state
            .first()
            .and_then(|index| geography.places.get(*index))
            .map(|p| &p.time_zone)
        else {
            return Vec::new();
        };
        let mut dice = Dice::new(self.seed, &["alerts", &state.code]);
        let n_alerts = match dice.between(0, 99) {
            0..=19 => 0,
            20..=59 => 1,
            60..=89 => 2,
            _ => 3,
        };
        let mut severities = SEVERITIES;
        dice.shuffle(&mut severities);
        let mut severities: Vec<&str> = severities.into_iter().take(n_alerts).collect();
        severities.sort_by_key(|severity| SEVERITIES.iter().position(|other| other == severity));
        let mut used: Vec<&str> = Vec::new();
        let mut alerts = Vec::new();
        for severity in severities {
            let events: Vec<&str> = EVENTS
                .iter()
                .filter(|(event, severities)| severities.contains(&severity) && !used.contains(event))
                .map(|(event, _)| *event)
                .collect();
            let Some(event) = dice.pick(&events).copied() else {
                continue;
            };
            used.push(event);
            let mut places = in_state.clone();
            dice.shuffle(&mut places);
            places.truncate(dice.between(1, 2) as usize);
            places.sort_unstable();
            let now = self.now(time_zone);
            let start = now.plus(-dice.between(1, 9).hours());
            alerts.push(Alert {
                event,
                severity,
                certainty: ["Observed", "Likely", "Possible"][dice.between(0, 2) as usize],
                urgency: ["Immediate", "Expected", "Future"][dice.between(0, 2) as usize],
                state: state.code.clone(),
                places,
                start,
                end: now.plus(dice.between(3, 40).hours()),
            });
        }
        alerts
    }

    /// The active alerts that touch a point; `None` outside the covered area.
    pub fn alerts_at(&self, latitude: f64, longitude: f64) -> Option<Vec<Alert>> {
        match geography().coverage(latitude, longitude) {
            Coverage::Land { place, .. } => {
                let state = &geography().places.get(place)?.state;
                Some(
                    self.alerts(state)
                        .into_iter()
                        .filter(|alert| alert.places.contains(&place))
                        .collect(),
                )
            }
            Coverage::Sea => Some(Vec::new()),
            Coverage::Outside => None,
        }
    }

    fn now_at(&self, offset_hours: i8) -> LocalTime {
        let civil = self
            .monday()
            .at(NOW_UTC_HOUR, 0, 0, 0)
            .saturating_add(i64::from(offset_hours).hours());
        LocalTime { civil, offset_hours }
    }

    fn site(&self, latitude: f64, longitude: f64) -> Option<Site> {
        let Coverage::Land {
            place,
            distance_km: distance,
        } = geography().coverage(latitude, longitude)
        else {
            return None;
        };
        let place: &Place = geography().places.get(place)?;
        let offset_hours = summer_offset_hours(&place.time_zone);
        if distance <= PLACE_RADIUS_KM {
            return Some(Site {
                key: place.label(),
                latitude: place.latitude,
                offset_hours,
            });
        }
        let (cell, _) = geography().grid_cell(latitude, longitude)?;
        Some(Site {
            key: format!("{} {},{}", cell.office, cell.x, cell.y),
            latitude,
            offset_hours,
        })
    }

    /// A usual summer high at this latitude, degrees Fahrenheit.
    fn climate(&self, latitude: f64) -> i64 {
        let weeks = Dice::new(self.seed, &["week"]).between(0, 19);
        // Warmest in July, about ten degrees above April.
        let season = 10 - (weeks - 13).abs();
        (100.0 - 0.75 * (latitude.abs() - 18.0)) as i64 + season - 8
    }

    /// Period `index`; day and night share a day's mean, so that nights are cooler than the days around them.
    fn period(&self, site: &Site, index: usize) -> Period {
        let day = (index / 2) as i64;
        let is_daytime = index.is_multiple_of(2);
        let date = self.monday().saturating_add(day.days());
        let start = date.at(if is_daytime { 6 } else { 18 }, 0, 0, 0);
        let start = LocalTime {
            civil: start,
            offset_hours: site.offset_hours,
        };
        let high =
            self.climate(site.latitude) + Dice::new(self.seed, &["high", &site.key, &day.to_string()]).between(-12, 9);
        let mut dice = Dice::new(self.seed, &["period", &site.key, &index.to_string()]);
        let temperature = if is_daytime { high } else { high - dice.between(11, 24) };
        let rain = 10 * dice.between(0, 9);
        let wind_low = 5 * dice.between(1, 4);
        let wind_high = if dice.chance(15) { wind_low + 5 } else { wind_low };
        let wind_direction = dice.pick(&COMPASS).copied().unwrap_or("N");
        let sky = sky(rain, is_daytime, dice.between(0, 1) == 0);
        Period {
            name: period_name(day, is_daytime, date.weekday()),
            start,
            end: start.plus(12.hours()),
            is_daytime,
            temperature,
            rain,
            wind_low,
            wind_high,
            wind_direction,
            sky,
        }
    }

    fn hour(&self, site: &Site, index: i64, start: LocalTime, period: &Period) -> Hour {
        let mut dice = Dice::new(self.seed, &["hour", &site.key, &index.to_string()]);
        let hour = f64::from(start.civil.hour());
        // The warmest hour is three in the afternoon, the coolest three at night.
        let warmth = ((hour - 15.0) / 24.0 * std::f64::consts::TAU).cos();
        let high = if period.is_daytime {
            period.temperature
        } else {
            period.temperature + 17
        };
        let temperature = high - (8.5 * (1.0 - warmth)).round() as i64 - dice.between(0, 2);
        let dewpoint = temperature - dice.between(5, 20);
        Hour {
            start,
            is_daytime: (6..18).contains(&start.civil.hour()),
            temperature,
            rain: period.rain,
            humidity: humidity(temperature, dewpoint),
            dewpoint,
            wind: (period.wind_low + dice.between(-3, 3)).max(1),
            wind_direction: period.wind_direction,
            sky: period.sky,
        }
    }
}

impl Alert {
    /// `Duluth; Rochester`, the way the service lists areas.
    pub fn area(&self) -> String {
        let places = &geography().places;
        let names: Vec<&str> = self
            .places
            .iter()
            .filter_map(|index| places.get(*index))
            .map(|place| place.name.as_str())
            .collect();
        names.join("; ")
    }
}

/// Eight points of the compass for degrees clockwise from north.
pub fn compass(degrees: f64) -> &'static str {
    let index = (degrees / 45.0).round().rem_euclid(8.0) as usize;
    COMPASS.get(index).copied().unwrap_or("N")
}

fn period_name(day: i64, is_daytime: bool, weekday: Weekday) -> String {
    match (day, is_daytime) {
        (0, true) => "Today".to_owned(),
        (0, false) => "Tonight".to_owned(),
        (_, true) => weekday_name(weekday).to_owned(),
        (_, false) => format!("{} Night", weekday_name(weekday)),
    }
}

/// The English name of a weekday.
pub fn weekday_name(weekday: Weekday) -> &'static str {
    match weekday {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}

fn sky(rain: i64, is_daytime: bool, first: bool) -> &'static str {
    match (rain, is_daytime, first) {
        (70.., _, true) => "Rain",
        (70.., _, false) => "Showers",
        (40..70, _, _) => "Chance Showers",
        (20..40, true, _) => "Partly Sunny",
        (20..40, false, _) => "Mostly Cloudy",
        (_, true, true) => "Sunny",
        (_, true, false) => "Mostly Sunny",
        (_, false, true) => "Clear",
        (_, false, false) => "Mostly Clear",
    }
}

/// Relative humidity in percent from temperature and dew point in degrees Fahrenheit (Magnus).
fn humidity(temperature: i64, dewpoint: i64) -> i64 {
    let pressure = |fahrenheit: i64| {
        let celsius = (fahrenheit as f64 - 32.0) / 1.8;
        (17.625 * celsius / (243.04 + celsius)).exp()
    };
    (100.0 * pressure(dewpoint) / pressure(temperature))
        .round()
        .clamp(1.0, 100.0) as i64
}

#[cfg(test)]
mod tests;
