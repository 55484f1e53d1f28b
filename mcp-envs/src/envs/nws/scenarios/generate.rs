//! From a place and a kind to a question with one right answer.
//!
//! Candidates without a single clear answer (a tie, a missing value, a value that the question itself gives away) are
//! passed over, and the next place is tried.

mod comparisons;

use super::templates::templates;
use super::{ExpectedAnswer, ExpectedCall, Facts, Ground, Kind, Target};
use crate::nws::dice::Dice;
use crate::nws::geography::{Place, Station, geography};
use crate::nws::reward::answer::{numbers, words};
use crate::nws::weather::{EVENTS, Period, SEVERITIES, Weather};

/// Half days that a forecast shows by default.
const SHOWN_PERIODS: usize = 8;
/// Stations that a search shows by default.
const SHOWN_STATIONS: usize = 3;
/// Two stations this near to each other in distance could change places by a rounded coordinate.
const STATION_GAP_KM: f64 = 5.0;
/// Places that are tried for each question before the kind is given up.
const MAX_TRIES: usize = 40;

const COMPASS_NAMES: [(&str, &str); 8] = [
    ("N", "north"),
    ("NE", "northeast"),
    ("E", "east"),
    ("SE", "southeast"),
    ("S", "south"),
    ("SW", "southwest"),
    ("W", "west"),
    ("NW", "northwest"),
];

/// A question and its facts.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) prompt: String,
    pub(super) facts: Facts,
}

/// Makes the questions of one split.
#[derive(Debug)]
pub(super) struct Generator {
    weather: Weather,
    ground: Ground,
}

impl Generator {
    pub(super) fn new(weather: Weather, ground: Ground) -> Self {
        Self { weather, ground }
    }

    /// `count` questions of a kind, no two alike.
    pub(super) fn questions(&self, kind: Kind, count: usize) -> Vec<Question> {
        let mut questions: Vec<Question> = Vec::new();
        // Each kind begins with another place, so that together they use them all.
        let first = Dice::new(self.weather.seed(), &["first", kind.name()]).between(0, 999) as usize;
        for turn in first..first + count * MAX_TRIES {
            if questions.len() == count {
                break;
            }
            let key = [kind.name(), &format!("{:?}", self.ground.split), &turn.to_string()];
            let mut dice = Dice::new(self.weather.seed(), &key);
            let Some(question) = self.question(kind, questions.len(), turn, &mut dice) else {
                continue;
            };
            if is_clear(&question) && questions.iter().all(|other| other.prompt != question.prompt) {
                questions.push(question);
            }
        }
        questions
    }

    fn question(&self, kind: Kind, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        match kind {
            Kind::Temperature | Kind::RainChance | Kind::Wind => self.period_value(kind, index, turn, dice),
            Kind::HourlyTemperature => self.hourly_temperature(turn, dice),
            Kind::CurrentWeather => self.current_weather(index, turn, dice),
            Kind::Alerts => self.alerts(turn, dice),
            Kind::NearestStation => self.nearest_station(turn, dice),
            Kind::GridPoint => self.grid_point(index, turn, dice),
            Kind::StationObservation => self.station_observation(index, turn, dice),
            Kind::WarmestDay => self.warmest_day(turn, dice),
            Kind::DayComparison => self.day_comparison(turn, dice),
            Kind::PlaceComparison => self.place_comparison(index, turn, dice),
            Kind::OutsideCoverage => self.outside_coverage(index, turn, dice),
        }
    }

    fn place(&self, turn: usize) -> Option<&'static Place> {
        self.ground.places.get(turn % self.ground.places.len().max(1)).copied()
    }

    fn facts(&self, subjects: &[String], measure: &str, calls: Vec<ExpectedCall>, answer: ExpectedAnswer) -> Facts {
        let subjects = subjects.to_vec();
        Facts {
            seed: self.weather.seed(),
            subjects,
            periods: Vec::new(),
            measure: measure.to_owned(),
            calls,
            answer,
        }
    }

    fn period_value(&self, kind: Kind, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let periods = self.weather.periods(place.latitude, place.longitude)?;
        let period = dice.pick(periods.get(..SHOWN_PERIODS)?)?;
        let (measure, answer, value) = match kind {
            Kind::Temperature => (
                "temperature",
                number(period.temperature),
                period.temperature.to_string(),
            ),
            Kind::RainChance => ("rain", number(period.rain), period.rain.to_string()),
            _ if index.is_multiple_of(2) => {
                if period.wind_low != period.wind_high {
                    return None;
                }
                ("wind_speed", number(period.wind_low), period.wind_low.to_string())
            }
            _ => {
                // "Omaha, NE" would look like a wind from the northeast.
                if COMPASS_NAMES.iter().any(|(code, _)| *code == place.state) {
                    return None;
                }
                ("wind_direction", direction(period), period.wind_direction.to_owned())
            }
        };
        let call = forecast_call(place, &[&line_of(&period.name), &value]);
        let mut facts = self.facts(&[place.label()], measure, vec![call], answer);
        facts.periods = vec![period.name.clone()];
        let prompt = fill(
            kind,
            measure,
            dice,
            &[("{place}", &at(place)), ("{when}", &when(&period.name))],
        )?;
        Some(Question { prompt, facts })
    }

    fn hourly_temperature(&self, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let hours = self.weather.hours(place.latitude, place.longitude)?;
        let hour = dice.pick(hours.get(1..10)?)?;
        let name = crate::nws::server::text::clock(hour.start.civil);
        let value = hour.temperature.to_string();
        let call = call(&["get_hourly_forecast"], point(place), &[&line_of(&name), &value]);
        let mut facts = self.facts(&[place.label()], "temperature", vec![call], number(hour.temperature));
        facts.periods = vec![name.clone()];
        let kind = Kind::HourlyTemperature;
        let prompt = fill(kind, "temperature", dice, &[("{place}", &at(place)), ("{hour}", &name)])?;
        Some(Question { prompt, facts })
    }

    fn current_weather(&self, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let stations = clear_stations(place, 2)?;
        let (measure, value) = self.measured(stations.first()?, index)?;
        let call = call(&["get_current_weather"], point(place), &[&value.to_string()]);
        let facts = self.facts(&[place.label()], measure, vec![call], number(value));
        let prompt = fill(Kind::CurrentWeather, measure, dice, &[("{place}", &at(place))])?;
        Some(Question { prompt, facts })
    }

    /// What a station reports: mostly the temperature, sometimes humidity or wind; `None` where it is missing.
    fn measured(&self, station: &Station, index: usize) -> Option<(&'static str, i64)> {
        let observation = self.weather.observation(station);
        // A report without a temperature is passed over by the tool, so all of its values are.
        let temperature = observation.temperature?;
        match index % 4 {
            0 | 2 => Some(("temperature", temperature)),
            1 => Some(("humidity", observation.humidity?)),
            _ => Some(("wind_speed", observation.wind.filter(|wind| *wind > 0)?)),
        }
    }

    fn alerts(&self, turn: usize, dice: &mut Dice) -> Option<Question> {
        let state = *self.ground.states.get(turn % self.ground.states.len().max(1))?;
        let alerts = self.weather.alerts(&state.code);
        let all = EVENTS.iter().map(|(event, _)| *event).chain(SEVERITIES);
        let none_in = format!("No active alerts in {}", state.code);
        let (answer, evidence) = match alerts.first() {
            None => {
                let others = all.map(str::to_owned).collect();
                (
                    ExpectedAnswer::Nothing {
                        others,
                        of: "alerts".to_owned(),
                    },
                    vec![none_in.as_str()],
                )
            }
            Some(worst) => {
                let others = all
                    .filter(|name| ![worst.event, worst.severity].contains(name))
                    .map(str::to_owned);
                let groups = vec![vec![worst.event.to_owned()], vec![worst.severity.to_owned()]];
                // A good answer may say until when.
                let allowed = numbers(&crate::nws::server::text::day_and_clock(worst.end.civil));
                let allowed = allowed.into_iter().map(|number| number as i64).collect();
                let others = others.collect();
                (
                    ExpectedAnswer::Names {
                        groups,
                        others,
                        allowed,
                    },
                    vec![worst.event, worst.severity],
                )
            }
        };
        let call = call(&["get_alerts"], Target::State(state.code.clone()), &evidence);
        let facts = self.facts(std::slice::from_ref(&state.name), "alerts", vec![call], answer);
        let name = format!("{} ({})", state.name, state.code);
        let prompt = fill(Kind::Alerts, "alerts", dice, &[("{state}", &name)])?;
        Some(Question { prompt, facts })
    }

    fn nearest_station(&self, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let stations = clear_stations(place, SHOWN_STATIONS)?;
        let (nearest, others) = stations.split_first()?;
        let distance = geography()
            .nearest_stations(place.latitude, place.longitude, 1)
            .first()?
            .1;
        let distance = crate::nws::geography::miles(distance).round() as i64;
        let answer = ExpectedAnswer::Names {
            groups: vec![vec![nearest.id.clone(), nearest.name.clone()]],
            others: others
                .iter()
                .flat_map(|other| [other.id.clone(), other.name.clone()])
                .collect(),
            allowed: vec![distance],
        };
        let call = call(&["find_stations"], point(place), &[&nearest.id]);
        let facts = self.facts(&[place.label()], "station", vec![call], answer);
        let prompt = fill(Kind::NearestStation, "station", dice, &[("{place}", &at(place))])?;
        Some(Question { prompt, facts })
    }

    fn grid_point(&self, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let (cell, office) = geography().grid_cell(place.latitude, place.longitude)?;
        let (measure, answer) = if index.is_multiple_of(2) {
            let groups = vec![vec![office.id.clone()]];
            let ids = geography().offices.iter().map(|other| other.id.clone());
            let others = ids.filter(|id| *id != office.id).collect();
            (
                "office",
                ExpectedAnswer::Names {
                    groups,
                    others,
                    allowed: Vec::new(),
                },
            )
        } else {
            (
                "grid",
                ExpectedAnswer::Numbers {
                    values: vec![cell.x, cell.y],
                    allowed: Vec::new(),
                },
            )
        };
        let (x, y) = (cell.x.to_string(), cell.y.to_string());
        let call = call(&["get_point"], point(place), &[&office.id, &x, &y]);
        let facts = self.facts(&[place.label()], measure, vec![call], answer);
        let prompt = fill(Kind::GridPoint, measure, dice, &[("{place}", &at(place))])?;
        Some(Question { prompt, facts })
    }

    fn station_observation(&self, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let stations = clear_stations(place, SHOWN_STATIONS)?;
        // Not the nearest one: its report is to be had with one call.
        let station = dice.pick(stations.get(1..)?)?;
        let (measure, value) = self.measured(station, index)?;
        let calls = vec![
            call(&["find_stations"], point(place), &[&station.id]),
            call(
                &["get_current_weather"],
                Target::Station(station.id.clone()),
                &[&value.to_string()],
            ),
        ];
        let subjects = [place.label(), station.name.clone()];
        let facts = self.facts(&subjects, measure, calls, number(value));
        let parts = [("{place}", at(place)), ("{station}", station.name.clone())];
        let parts = parts.each_ref().map(|(name, value)| (*name, value.as_str()));
        let prompt = fill(Kind::StationObservation, measure, dice, &parts)?;
        Some(Question { prompt, facts })
    }

    fn outside_coverage(&self, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = *self.ground.abroad.get(turn % self.ground.abroad.len().max(1))?;
        let measure = ["temperature", "rain", "wind_speed"][index % 3];
        let names = ["Today", "Tonight", "Tuesday", "Tuesday Night", "Wednesday", "Thursday"];
        let name = *dice.pick(&names)?;
        let call = ExpectedCall {
            fails: true,
            ..call(
                &[
                    "get_forecast",
                    "get_hourly_forecast",
                    "get_current_weather",
                    "find_stations",
                    "get_point",
                ],
                Target::Point(place.latitude, place.longitude),
                &[],
            )
        };
        let answer = ExpectedAnswer::Nothing {
            others: Vec::new(),
            of: "data".to_owned(),
        };
        let mut facts = self.facts(&[place.label()], measure, vec![call], answer);
        facts.periods = vec![name.to_owned()];
        let label = format!("{} ({}, {})", place.label(), place.latitude, place.longitude);
        let kind = Kind::OutsideCoverage;
        let prompt = fill(kind, measure, dice, &[("{place}", &label), ("{when}", &when(name))])?;
        Some(Question { prompt, facts })
    }
}

/// Whether the question leaves its answer open: no number of it may be in the question already.
fn is_clear(question: &Question) -> bool {
    let given = numbers(&question.prompt);
    match &question.facts.answer {
        ExpectedAnswer::Numbers { values, .. } => values.iter().all(|value| !given.contains(&(*value as f64))),
        _ => true,
    }
}

/// The nearest `count` stations, none of which could change places with the next by a rounded coordinate.
fn clear_stations(place: &Place, count: usize) -> Option<Vec<&'static Station>> {
    let stations = geography().nearest_stations(place.latitude, place.longitude, count + 1);
    let spaced = stations
        .windows(2)
        .all(|pair| matches!(pair, [near, far] if far.1 - near.1 >= STATION_GAP_KM));
    let names: std::collections::HashSet<&str> = stations.iter().map(|(station, _)| station.name.as_str()).collect();
    let clear = spaced && names.len() == count + 1;
    clear.then(|| stations.into_iter().take(count).map(|(station, _)| station).collect())
}

fn number(value: i64) -> ExpectedAnswer {
    ExpectedAnswer::Numbers {
        values: vec![value],
        allowed: Vec::new(),
    }
}

fn direction(period: &Period) -> ExpectedAnswer {
    let is_right = |code: &str| code == period.wind_direction;
    let ways = |right: bool| {
        let chosen = COMPASS_NAMES.iter().filter(move |(code, _)| is_right(code) == right);
        chosen
            .flat_map(|(code, name)| [(*code).to_owned(), (*name).to_owned()])
            .collect::<Vec<String>>()
    };
    let allowed = vec![period.wind_low, period.wind_high];
    ExpectedAnswer::Names {
        groups: vec![ways(true)],
        others: ways(false),
        allowed,
    }
}

fn call(tools: &[&str], target: Target, evidence: &[&str]) -> ExpectedCall {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    ExpectedCall {
        tools: owned(tools),
        target,
        evidence: owned(evidence),
        fails: false,
    }
}

fn forecast_call(place: &Place, evidence: &[&str]) -> ExpectedCall {
    call(&["get_forecast"], point(place), evidence)
}

/// How the line of a half day or an hour begins in a forecast.
fn line_of(period: &str) -> String {
    format!("{period}:")
}

fn point(place: &Place) -> Target {
    Target::Point(place.latitude, place.longitude)
}

/// `Duluth, MN (46.79, -92.1)`
fn at(place: &Place) -> String {
    format!("{} ({}, {})", place.label(), place.latitude, place.longitude)
}

/// A half day within a sentence: `today`, `on Tuesday Night`.
fn when(period: &str) -> String {
    match period {
        "Today" => "today".to_owned(),
        "Tonight" => "tonight".to_owned(),
        _ => format!("on {period}"),
    }
}

/// The first day has two names.
fn ways_to_say(period: &str) -> Vec<String> {
    match period {
        "Today" => vec!["Today".to_owned(), "Monday".to_owned()],
        "Tonight" => vec!["Tonight".to_owned(), "Monday Night".to_owned()],
        _ => vec![period.to_owned()],
    }
}

fn fill(kind: Kind, measure: &str, dice: &mut Dice, parts: &[(&str, &str)]) -> Option<String> {
    let mut prompt = (*dice.pick(templates(kind, measure))?).to_owned();
    for (name, value) in parts {
        prompt = prompt.replace(name, value);
    }
    Some(prompt)
}
