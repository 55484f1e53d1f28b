//! Checked inputs of the tools. Numbers may come as strings of numbers; everything else that is wrong is named.

use rmcp::model::JsonObject;
use serde_json::Value;

use crate::nws::client::Coordinates;
use crate::nws::geography::{OTHER_AREAS, geography};
use crate::nws::weather::SEVERITIES;

/// A whole number with bounds and a default.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Least.
    pub low: usize,
    /// Most.
    pub high: usize,
    /// Where it is left out.
    pub default: usize,
}

/// What is wrong with an input, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// It has to be there.
    #[error("{name} is missing. Give latitude and longitude in degrees, like 46.79 and -92.1.")]
    Missing {
        /// Which.
        name: &'static str,
    },
    /// Neither a state nor a point was given.
    #[error("Give a state, like MN, or latitude and longitude.")]
    NoPlace,
    /// It is not a number.
    #[error("{name} must be a number, not {value}.")]
    NotANumber {
        /// Which.
        name: &'static str,
        /// What came instead.
        value: String,
    },
    /// It is a number that cannot be.
    #[error("{name} must be from {low} to {high}, not {value}.")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// Least.
        low: i64,
        /// Most.
        high: i64,
        /// What came instead.
        value: String,
    },
    /// A half day or hour has to be named.
    #[error("{name} is missing. Give one of {known}.")]
    NotGiven {
        /// Which.
        name: &'static str,
        /// What there is.
        known: String,
    },
    /// The forecast has no such half day or hour.
    #[error("{name} must be one of {known}, not {value}.")]
    NotListed {
        /// Which.
        name: &'static str,
        /// What there is.
        known: String,
        /// What came instead.
        value: String,
    },
    /// It is not one of the known words.
    #[error("{name} must be {expected}, not {value}.")]
    NotKnown {
        /// Which.
        name: &'static str,
        /// What is expected.
        expected: &'static str,
        /// What came instead.
        value: String,
    },
    /// The tool has no such input.
    #[error("There is no argument {name}. Use {known}.")]
    Unexpected {
        /// Which.
        name: String,
        /// What the tool takes.
        known: String,
    },
}

impl ArgumentError {
    /// The same for a tool that takes a state as well.
    pub(super) fn or_state(self) -> Self {
        if matches!(self, Self::Missing { .. }) {
            Self::NoPlace
        } else {
            self
        }
    }
}

/// Selects every half day or hour. An argument that always has a value is easier to get right for a small model than one
/// that has to be left out at times.
const ALL: &str = "all";

/// The inputs of one call; all names are known.
#[derive(Debug)]
pub struct Arguments(JsonObject);

/// What a model writes where it has nothing to say.
fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

impl Arguments {
    /// Refuses names that the tool does not know.
    pub fn new(mut arguments: JsonObject, known: &[&str]) -> Result<Self, ArgumentError> {
        arguments.retain(|_, value| !is_absent(value));
        match arguments.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(ArgumentError::Unexpected {
                name: brief(name),
                known: known.join(", "),
            }),
            None => Ok(Self(arguments)),
        }
    }

    /// Latitude and longitude, both.
    pub fn coordinates(&self) -> Result<Coordinates, ArgumentError> {
        let latitude = self.degrees("latitude", 90)?;
        let longitude = self.degrees("longitude", 180)?;
        // Both are in their bounds, so this cannot miss.
        Coordinates::new(latitude, longitude).ok_or(ArgumentError::Missing { name: "latitude" })
    }

    /// A whole number in its bounds.
    pub fn integer(&self, name: &'static str, range: Range) -> Result<usize, ArgumentError> {
        let Some(value) = self.0.get(name) else {
            return Ok(range.default);
        };
        let number = number(name, value)?;
        let bounds = range.low as f64..=range.high as f64;
        if !bounds.contains(&number) || number.fract() != 0.0 {
            let (low, high) = (range.low as i64, range.high as i64);
            return Err(ArgumentError::OutOfRange {
                name,
                low,
                high,
                value: shown(value),
            });
        }
        Ok(number as usize)
    }

    /// Those of `items` whose name is the given one, in any case and spacing; all of them for `all`.
    pub fn named<T>(
        &self,
        argument: &'static str,
        items: Vec<T>,
        name: fn(&T) -> &str,
    ) -> Result<Vec<T>, ArgumentError> {
        let known = || -> String {
            let names: Vec<&str> = std::iter::once(ALL).chain(items.iter().map(name)).collect();
            names.join(", ")
        };
        let Some(value) = self.0.get(argument) else {
            return Err(ArgumentError::NotGiven {
                name: argument,
                known: known(),
            });
        };
        let plain = |text: &str| {
            let letters = text.chars().filter(|letter| !letter.is_whitespace());
            letters.flat_map(char::to_lowercase).collect::<String>()
        };
        let wanted = value.as_str().map(plain);
        if wanted.as_deref() == Some(ALL) {
            return Ok(items);
        }
        let is_wanted = |item: &T| wanted.as_ref().is_some_and(|wanted| plain(name(item)) == *wanted);
        if !items.iter().any(is_wanted) {
            return Err(ArgumentError::NotListed {
                name: argument,
                known: known(),
                value: shown(value),
            });
        }
        Ok(items.into_iter().filter(is_wanted).collect())
    }

    /// A station's id in capitals, where one is given.
    pub fn station(&self) -> Result<Option<String>, ArgumentError> {
        let Some(value) = self.0.get("station") else {
            return Ok(None);
        };
        let id = value.as_str().map(|text| text.trim().to_ascii_uppercase());
        match id.filter(|id| (3..=8).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            Some(id) => Ok(Some(id)),
            None => Err(ArgumentError::NotKnown {
                name: "station",
                expected: "a station id like KDLH",
                value: shown(value),
            }),
        }
    }

    /// A state's code in capitals, where one is given by code or name.
    pub fn state(&self) -> Result<Option<String>, ArgumentError> {
        let Some(value) = self.0.get("state") else {
            return Ok(None);
        };
        let text = value.as_str().unwrap_or_default().trim();
        let code = text.to_ascii_uppercase();
        if geography().state(&code).is_some() || OTHER_AREAS.contains(&code.as_str()) {
            return Ok(Some(code));
        }
        let named = geography()
            .states
            .iter()
            .find(|state| state.name.eq_ignore_ascii_case(text));
        let expected = "a two-letter code like MN";
        let error = || ArgumentError::NotKnown {
            name: "state",
            expected,
            value: shown(value),
        };
        named.map(|state| Some(state.code.clone())).ok_or_else(error)
    }

    /// A severity as the service writes it, where one is given; `all` is the same as none.
    pub fn severity(&self) -> Result<Option<&'static str>, ArgumentError> {
        let Some(value) = self.0.get("severity") else {
            return Ok(None);
        };
        let text = value.as_str().unwrap_or_default().trim();
        if text.eq_ignore_ascii_case("all") {
            return Ok(None);
        }
        let expected = "Extreme, Severe, Moderate, Minor or all";
        let error = || ArgumentError::NotKnown {
            name: "severity",
            expected,
            value: shown(value),
        };
        SEVERITIES
            .into_iter()
            .find(|severity| severity.eq_ignore_ascii_case(text))
            .map(Some)
            .ok_or_else(error)
    }

    fn degrees(&self, name: &'static str, bound: i64) -> Result<f64, ArgumentError> {
        let value = self.0.get(name).ok_or(ArgumentError::Missing { name })?;
        let degrees = number(name, value)?;
        let possible = (-bound as f64..=bound as f64).contains(&degrees);
        let error = || ArgumentError::OutOfRange {
            name,
            low: -bound,
            high: bound,
            value: shown(value),
        };
        possible.then_some(degrees).ok_or_else(error)
    }
}

fn number(name: &'static str, value: &Value) -> Result<f64, ArgumentError> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let error = || ArgumentError::NotANumber {
        name,
        value: shown(value),
    };
    number.filter(|number: &f64| number.is_finite()).ok_or_else(error)
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => brief(text),
        other => brief(&other.to_string()),
    }
}

/// A model's mistake can be long; its beginning is enough to recognise it.
fn brief(text: &str) -> String {
    const LIMIT: usize = 40;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
