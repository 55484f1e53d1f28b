//! Questions about the weather, generated from a seed, with the facts that their answers are checked against.
//!
//! - [`facts`]: what a scenario's hidden data says: the calls that answer it, and the answer
//! - `templates`: how each kind of question is put
//! - `generate`: from a place and a kind to a question with one right answer
//!
//! The split is by place: no place of a held-out question, and no state of a held-out alert question, occurs in training.

use trajectory::Split;

use super::dice::Dice;
use super::geography::{AbroadPlace, Place, State, geography};
use super::weather::Weather;
use crate::scenario::Scenario;

pub mod facts;
mod generate;
mod templates;

pub use facts::{ExpectedAnswer, ExpectedCall, Facts, Target};
use generate::Generator;

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The temperature of a named half day.
    Temperature,
    /// The chance of rain of a named half day.
    RainChance,
    /// Speed or direction of the wind of a named half day.
    Wind,
    /// The temperature of an hour.
    HourlyTemperature,
    /// What the nearest station reports.
    CurrentWeather,
    /// The worst active alert of a state and its severity, or that there is none.
    Alerts,
    /// The nearest station.
    NearestStation,
    /// The forecast office or the grid cell.
    GridPoint,
    /// What a named station reports: its id has to be found first.
    StationObservation,
    /// The warmest day of four.
    WarmestDay,
    /// Which of two days is likelier to have rain.
    DayComparison,
    /// Which of two places is warmer, or likelier to have rain.
    PlaceComparison,
    /// A place that the service does not cover.
    OutsideCoverage,
}

/// Every kind, with the number of its training and held-out scenarios. About a quarter needs a comparison.
pub const KINDS: [(Kind, usize, usize); 13] = [
    (Kind::Temperature, 56, 14),
    (Kind::RainChance, 48, 12),
    (Kind::Wind, 48, 12),
    (Kind::HourlyTemperature, 36, 9),
    (Kind::CurrentWeather, 36, 9),
    (Kind::Alerts, 48, 12),
    (Kind::NearestStation, 36, 9),
    (Kind::GridPoint, 32, 8),
    (Kind::StationObservation, 40, 10),
    (Kind::WarmestDay, 48, 12),
    (Kind::DayComparison, 40, 10),
    (Kind::PlaceComparison, 36, 9),
    (Kind::OutsideCoverage, 24, 6),
];

/// Share of the places, states and cities abroad that only held-out questions ask about, in percent.
const HELD_OUT_PERCENT: usize = 24;

impl Kind {
    /// The name in scenarios and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::RainChance => "rain_chance",
            Self::Wind => "wind",
            Self::HourlyTemperature => "hourly_temperature",
            Self::CurrentWeather => "current_weather",
            Self::Alerts => "alerts",
            Self::NearestStation => "nearest_station",
            Self::GridPoint => "grid_point",
            Self::StationObservation => "station_observation",
            Self::WarmestDay => "warmest_day",
            Self::DayComparison => "day_comparison",
            Self::PlaceComparison => "place_comparison",
            Self::OutsideCoverage => "outside_coverage",
        }
    }
}

/// All scenarios of a seed: training first, then held-out, each in the order of [`KINDS`].
///
/// The same seed has to be given to the stand-in, whose weather the answers are about.
pub fn generate(seed: u64) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for split in [Split::Train, Split::HeldOut] {
        let generator = Generator::new(Weather::new(seed), Ground::new(seed, split));
        for (kind, n_train, n_held_out) in KINDS {
            let (count, letter) = if split == Split::Train {
                (n_train, 't')
            } else {
                (n_held_out, 'h')
            };
            for (index, question) in generator.questions(kind, count).into_iter().enumerate() {
                scenarios.push(Scenario {
                    id: format!("nws-{}-{letter}{index:02}", kind.name().replace('_', "-")),
                    kind: kind.name().to_owned(),
                    prompt: question.prompt,
                    // Facts hold strings and numbers only, so writing them to JSON cannot fail.
                    data: serde_json::to_value(&question.facts).unwrap_or_default(),
                    split,
                });
            }
        }
    }
    scenarios
}

/// The places, states and cities abroad of one split, shuffled.
#[derive(Debug)]
struct Ground {
    split: Split,
    places: Vec<&'static Place>,
    states: Vec<&'static State>,
    abroad: Vec<&'static AbroadPlace>,
}

impl Ground {
    fn new(seed: u64, split: Split) -> Self {
        let geography = geography();
        Self {
            split,
            places: share(seed, split, "places", &geography.places),
            states: share(seed, split, "states", &geography.states),
            abroad: share(seed, split, "abroad", &geography.abroad),
        }
    }
}

/// The part of a list that belongs to a split: both splits shuffle alike and take different ends.
fn share<T>(seed: u64, split: Split, name: &str, all: &'static [T]) -> Vec<&'static T> {
    let mut items: Vec<&T> = all.iter().collect();
    Dice::new(seed, &["split", name]).shuffle(&mut items);
    let held_out = items.split_off(items.len() - items.len() * HELD_OUT_PERCENT / 100);
    if split == Split::Train { items } else { held_out }
}

#[cfg(test)]
mod tests;
