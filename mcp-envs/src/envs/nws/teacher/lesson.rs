//! What to do next in a conversation.

use serde_json::{Value, json};

use super::Teacher;
use super::reading::{line, number_after, station_id, word_after};
use crate::nws::scenarios::{ExpectedCall, Facts, Kind, Target};
use crate::scenario::Scenario;

/// The next thing that the teacher says.
#[derive(Debug, Clone, PartialEq)]
pub enum Move {
    /// Call a tool.
    Call {
        /// Its name, as it was offered.
        tool: String,
        /// Its arguments.
        arguments: Value,
    },
    /// Answer the question.
    Answer(String),
}

/// Why the teacher has nothing to say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TeacherError {
    /// There is no user's message.
    #[error("the request has no user message; send the scenario's question as one")]
    NoQuestion,
    /// The question is not one of the scenarios.
    #[error("the teacher knows no scenario with the question `{question}`; give it the scenarios that you run")]
    UnknownQuestion {
        /// What the user said.
        question: String,
    },
    /// The needed tool is not offered.
    #[error("the request offers no tool named {tool}; connect the agent to the nws tools")]
    NoTool {
        /// What is missing.
        tool: String,
    },
}

impl Teacher {
    /// The next move in a conversation of OpenAI messages, with the tools as the request offers them.
    pub fn next(&self, messages: &[Value], tools: &[Value]) -> Result<Move, TeacherError> {
        let is_from = |message: &Value, role: &str| message.get("role").and_then(Value::as_str) == Some(role);
        let asked = messages
            .iter()
            .rposition(|message| is_from(message, "user"))
            .ok_or(TeacherError::NoQuestion)?;
        let (before, after) = messages.split_at(asked + 1);
        let question = before.last().map(text_of).unwrap_or_default();
        let (scenario, facts) = self.lesson(&question)?;
        let results: Vec<String> = after
            .iter()
            .filter(|message| is_from(message, "tool"))
            .map(text_of)
            .collect();
        match facts.calls.get(results.len()) {
            Some(call) => Ok(Move::Call {
                tool: offered(call, tools)?,
                arguments: arguments(call, facts, &results),
            }),
            None => Ok(Move::Answer(
                answer(scenario, facts, &results).unwrap_or_else(|| GIVE_UP.to_owned()),
            )),
        }
    }

    fn lesson(&self, question: &str) -> Result<&(Scenario, Facts), TeacherError> {
        let exact = self.lessons.get(question.trim());
        // An agent may wrap the question in words of its own.
        let wrapped = || {
            self.lessons
                .iter()
                .find(|(prompt, _)| question.contains(prompt.as_str()))
                .map(|(_, found)| found)
        };
        let shown = question.chars().take(80).collect();
        exact
            .or_else(wrapped)
            .ok_or(TeacherError::UnknownQuestion { question: shown })
    }
}

/// What it says when the tool results do not hold what it needs, as after a failure of the service.
const GIVE_UP: &str = "I could not get the weather.";

/// The text of a message, whose content is a string or a list of parts.
fn text_of(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<&str>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The tool's name as it is offered: some agents put the server's name before it.
fn offered(call: &ExpectedCall, tools: &[Value]) -> Result<String, TeacherError> {
    let wanted = call.tools.first().cloned().unwrap_or_default();
    let names = tools
        .iter()
        .filter_map(|tool| tool.pointer("/function/name").and_then(Value::as_str));
    let fits = |name: &&str| *name == wanted || name.ends_with(&format!("_{wanted}"));
    names
        .into_iter()
        .find(fits)
        .map(str::to_owned)
        .ok_or(TeacherError::NoTool { tool: wanted })
}

fn arguments(call: &ExpectedCall, facts: &Facts, results: &[String]) -> Value {
    match &call.target {
        Target::Point(latitude, longitude) => {
            let mut arguments = json!({ "latitude": plain(*latitude), "longitude": plain(*longitude) });
            // A question about one half day or hour needs one line of the forecast.
            if let Some(selector) = selector(call) {
                arguments[selector] = match facts.periods.as_slice() {
                    [period] => json!(period),
                    _ => json!("all"),
                };
            }
            arguments
        }
        Target::State(code) => json!({ "state": code }),
        Target::Station(id) => {
            let read = facts
                .subjects
                .get(1)
                .zip(results.last())
                .and_then(|(name, text)| station_id(text, name));
            json!({ "station": read.unwrap_or(id) })
        }
    }
}

/// The argument that selects one line of a tool's result.
fn selector(call: &ExpectedCall) -> Option<&'static str> {
    match call.tools.first().map(String::as_str) {
        Some("get_forecast") => Some("period"),
        Some("get_hourly_forecast") => Some("hour"),
        _ => None,
    }
}

/// A number as the question writes it: -90 and not -90.0.
fn plain(degrees: f64) -> Value {
    if degrees.fract() == 0.0 {
        json!(degrees as i64)
    } else {
        json!(degrees)
    }
}

/// The answer, from the tool results; `None` where they do not hold it.
fn answer(scenario: &Scenario, facts: &Facts, results: &[String]) -> Option<String> {
    let kind = scenario.kind.as_str();
    let is = |other: Kind| kind == other.name();
    let first = results.first()?;
    let last = results.last()?;
    // Two ways to say most things, so that what is learnt is not one string.
    let varied = |one: String, other: String| {
        if scenario.id.ends_with(['0', '2', '4', '6', '8']) {
            one
        } else {
            other
        }
    };
    if is(Kind::OutsideCoverage) {
        let place = facts.subjects.first()?;
        return first
            .starts_with("No data")
            .then(|| format!("The service has no data for {place}."));
    }
    if is(Kind::Alerts) {
        let state = facts.subjects.first()?;
        if first.starts_with("No active") {
            return Some(format!("There are no active alerts in {state}."));
        }
        let (severity, rest) = first.lines().next()?.split_once(": ")?;
        let event = rest.split(" until ").next()?.split(',').next()?;
        return Some(varied(
            format!("The worst alert is a {event}, severity {severity}."),
            format!("{event}, severity {severity}."),
        ));
    }
    if is(Kind::NearestStation) {
        let (id, rest) = first.lines().next()?.split_once(' ')?;
        let name = rest.rsplit_once(", ").map_or(rest, |(name, _)| name);
        return Some(format!("The nearest station is {id}, {name}."));
    }
    if is(Kind::GridPoint) {
        let cell = || {
            Some((
                number_after(first, "grid ")?,
                number_after(first.split_once("grid ")?.1.split_once(',')?.1, "")?,
            ))
        };
        return match facts.measure.as_str() {
            "office" => Some(format!("The office is {}.", word_after(first, "Office ")?)),
            _ => cell().map(|(x, y)| format!("The grid cell is {x},{y}.")),
        };
    }
    if is(Kind::StationObservation) {
        let station = last.split(' ').next()?;
        return Some(format!("{station} reports {}.", reported(last, &facts.measure)?));
    }
    if is(Kind::CurrentWeather) {
        return Some(match facts.measure.as_str() {
            "humidity" => format!("The humidity is {} now.", reported(last, "humidity")?),
            "wind_speed" => format!("The wind is {} now.", reported(last, "wind_speed")?),
            _ => format!("It is {} now.", reported(last, "temperature")?),
        });
    }
    if is(Kind::WarmestDay) {
        let summary = first.lines().find_map(|line| line.strip_prefix("Warmest: "))?;
        let (warmest, _) = summary.split_once('.')?;
        let (rest, unit) = warmest.rsplit_once(' ')?;
        let (day, temperature) = rest.rsplit_once(' ')?;
        return Some(format!("{day} will be warmest, {temperature} {unit}."));
    }
    if is(Kind::DayComparison) {
        let (one, other) = (facts.periods.first()?, facts.periods.get(1)?);
        let (one_rain, other_rain) = (
            number_after(line(first, one)?, "rain ")?,
            number_after(line(first, other)?, "rain ")?,
        );
        let more = if one_rain > other_rain { one } else { other };
        return Some(format!("{one} {one_rain}%, {other} {other_rain}%, so {more}."));
    }
    let period = facts.periods.first()?;
    if is(Kind::PlaceComparison) {
        let (one, other) = (city(facts.subjects.first()?), city(facts.subjects.get(1)?));
        let (label, unit) = if facts.measure == "rain" {
            ("rain ", "%")
        } else {
            ("", " F")
        };
        let one_value = number_after(line(first, period)?, label)?;
        let other_value = number_after(line(last, period)?, label)?;
        let more = if one_value > other_value { one } else { other };
        return Some(format!(
            "{one} {one_value}{unit}, {other} {other_value}{unit}, so {more}."
        ));
    }
    let forecast = line(first, period)?;
    let when = match period.as_str() {
        "Today" => "today".to_owned(),
        "Tonight" => "tonight".to_owned(),
        hour if is(Kind::HourlyTemperature) => format!("at {hour}"),
        day => format!("on {day}"),
    };
    Some(match facts.measure.as_str() {
        "rain" => {
            let rain = number_after(forecast, "rain ")?;
            varied(
                format!("The chance of rain is {rain}% {when}."),
                format!("{rain}% chance of rain {when}."),
            )
        }
        "wind_speed" => format!("The wind will be {} mph {when}.", number_after(forecast, "wind ")?),
        "wind_direction" => format!("The wind will be from the {} {when}.", word_after(forecast, "wind ")?),
        _ => {
            let temperature = number_after(forecast, "")?;
            varied(
                format!("It will be {temperature} F {when}."),
                format!("The temperature will be {temperature} F {when}."),
            )
        }
    })
}

/// A value of an observation with its unit.
fn reported(text: &str, measure: &str) -> Option<String> {
    // The name of a station holds no digit before the colon, but it may hold a word such as "wind".
    let (_, values) = text.split_once(": ")?;
    Some(match measure {
        "humidity" => format!("{}%", number_after(values, "humidity ")?),
        "wind_speed" => format!("{} mph", number_after(values, "wind ")?),
        _ => format!(
            "{} F",
            number_after(values, "").filter(|_| !values.starts_with("temperature not"))?
        ),
    })
}

/// `Duluth` of `Duluth, MN`.
fn city(label: &str) -> &str {
    label.split(',').next().unwrap_or(label)
}
