//! Which of the needed calls an episode made.

use serde_json::Value;
use trajectory::ToolCall;

use super::answer::{contains_phrase, numbers, words};
use crate::nws::geography::geography;
use crate::nws::scenarios::{ExpectedCall, Target};

/// Coordinates this near, in degrees, mean the same place.
const COORDINATE_TOLERANCE: f64 = 0.02;

/// How far an episode came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Needed calls whose tool was called, with any arguments.
    pub n_tools: usize,
    /// Needed calls that were made as needed, and whose result holds the evidence.
    pub n_right: usize,
}

/// Matches recorded calls with the needed ones; each recorded call counts for one needed call only.
pub fn progress(needed: &[ExpectedCall], recorded: &[ToolCall]) -> Progress {
    let count = |matches: fn(&ExpectedCall, &ToolCall) -> bool| {
        let mut used = vec![false; recorded.len()];
        let mut found = 0;
        for expected in needed {
            let fits = recorded
                .iter()
                .zip(&used)
                .position(|(call, used)| !used && matches(expected, call));
            if let Some(slot) = fits.and_then(|index| used.get_mut(index)) {
                *slot = true;
                found += 1;
            }
        }
        found
    };
    Progress {
        n_tools: count(is_tool),
        n_right: count(is_right),
    }
}

/// All text of a result, as the agent got it.
pub fn result_text(call: &ToolCall) -> String {
    let content = call
        .result
        .as_ref()
        .and_then(|result| result.get("content"))
        .and_then(Value::as_array);
    let texts = content
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text").and_then(Value::as_str));
    texts.collect::<Vec<&str>>().join("\n")
}

fn is_tool(expected: &ExpectedCall, call: &ToolCall) -> bool {
    expected.tools.contains(&call.tool)
}

fn is_right(expected: &ExpectedCall, call: &ToolCall) -> bool {
    is_tool(expected, call) && is_about(&expected.target, &call.arguments) && has_evidence(expected, call)
}

fn is_about(target: &Target, arguments: &Value) -> bool {
    match target {
        Target::Point(latitude, longitude) => {
            let near = |name: &str, expected: f64| {
                degrees(arguments.get(name)).is_some_and(|given| (given - expected).abs() <= COORDINATE_TOLERANCE)
            };
            near("latitude", *latitude) && near("longitude", *longitude)
        }
        Target::State(code) => {
            let given = arguments.get("state").and_then(Value::as_str).map(str::trim);
            let name = geography().state(code).map(|state| state.name.as_str());
            given.is_some_and(|given| {
                given.eq_ignore_ascii_case(code) || name.is_some_and(|name| given.eq_ignore_ascii_case(name))
            })
        }
        Target::Station(id) => {
            let given = arguments.get("station").and_then(Value::as_str);
            given.is_some_and(|given| given.trim().eq_ignore_ascii_case(id))
        }
    }
}

fn degrees(value: Option<&Value>) -> Option<f64> {
    match value? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Whether the result is what the answer has to come from.
fn has_evidence(expected: &ExpectedCall, call: &ToolCall) -> bool {
    let Some(result) = &call.result else { return false };
    let failed = call.is_error || result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let text = result_text(call);
    if expected.fails {
        // The service's word that it has nothing here, not just any failure.
        return failed && contains_phrase(&words(&text), &words("outside the area"));
    }
    let (text_words, text_numbers) = (words(&text), numbers(&text));
    let holds = |evidence: &String| match evidence.parse::<f64>() {
        Ok(number) => text_numbers.contains(&number),
        Err(_) if evidence.ends_with(':') => text.lines().any(|line| line.starts_with(evidence.as_str())),
        Err(_) => contains_phrase(&text_words, &words(evidence)),
    };
    !failed && expected.evidence.iter().all(holds)
}
