//! How each kind of question is put. `{place}` comes with its coordinates, because there is no geocoder among the tools.

use super::Kind;

/// The ways to ask for a measure; at least five each.
pub(super) fn templates(kind: Kind, measure: &str) -> &'static [&'static str] {
    match (kind, measure) {
        (Kind::Temperature, _) => &[
            "What will the temperature be {when} in {place}?",
            "How warm will it be {when} in {place}?",
            "Tell me the forecast temperature {when} for {place}.",
            "I am going to be in {place} {when}. What temperature should I expect?",
            "{place}: what is the temperature {when}?",
            "Please look up the temperature for {place} {when}.",
        ],
        (Kind::RainChance, _) => &[
            "What is the chance of rain {when} in {place}?",
            "How likely is rain {when} in {place}?",
            "Tell me the rain chance {when} for {place}.",
            "Do I need an umbrella {when} in {place}? Give me the chance of rain.",
            "{place}: chance of rain {when}?",
            "Please look up how likely it is to rain in {place} {when}.",
        ],
        (Kind::Wind, "wind_direction") => &[
            "From which direction will the wind blow {when} in {place}?",
            "What is the wind direction {when} in {place}?",
            "Where will the wind come from {when} at {place}?",
            "Tell me the direction of the wind {when} for {place}.",
            "{place}: wind direction {when}?",
        ],
        (Kind::Wind, _) => &[
            "How strong will the wind be {when} in {place}?",
            "What is the wind speed {when} in {place}?",
            "How fast will the wind blow {when} at {place}?",
            "Tell me the wind speed {when} for {place}.",
            "{place}: wind speed {when}?",
        ],
        (Kind::HourlyTemperature, _) => &[
            "What will the temperature be at {hour} today in {place}?",
            "How warm will it be at {hour} in {place}?",
            "Tell me the temperature at {hour} today for {place}.",
            "{place}: temperature at {hour} today?",
            "I am meeting a friend at {hour} today in {place}. How warm will it be then?",
        ],
        (Kind::CurrentWeather, "humidity") => &[
            "What is the humidity right now in {place}?",
            "How humid is it now in {place}?",
            "Tell me the current humidity in {place}.",
            "{place}: humidity right now?",
            "Please look up the humidity that is measured now in {place}.",
        ],
        (Kind::CurrentWeather, "wind_speed") => &[
            "How strong is the wind right now in {place}?",
            "What is the wind speed now in {place}?",
            "Tell me the current wind speed in {place}.",
            "{place}: wind speed right now?",
            "Please look up the wind speed that is measured now in {place}.",
        ],
        (Kind::CurrentWeather, _) => &[
            "What is the temperature right now in {place}?",
            "How warm is it now in {place}?",
            "Tell me the current temperature in {place}.",
            "{place}: temperature right now?",
            "Please look up the temperature that is measured now in {place}.",
        ],
        (Kind::Alerts, _) => &[
            "Are there active weather alerts in {state}? Name the worst one and its severity.",
            "Which weather alert is active in {state}, and how severe is it? Only the worst one.",
            "Is any weather warning in effect for {state}? Tell me the worst one with its severity.",
            "What is the worst active alert in {state}, and what is its severity?",
            "I live in {state}. Which active alert is the worst, and how severe is it?",
            "Check the alerts of {state}: name and severity of the worst one, please.",
        ],
        (Kind::NearestStation, _) => &[
            "Which weather station is nearest to {place}?",
            "What is the closest weather station to {place}?",
            "Tell me the nearest observation station to {place}.",
            "{place}: which station is nearest?",
            "Please find the weather station closest to {place}.",
        ],
        (Kind::GridPoint, "grid") => &[
            "What are the forecast grid coordinates of {place}?",
            "In which grid cell is {place}?",
            "Tell me the forecast grid cell for {place}.",
            "{place}: which grid x and y?",
            "Please look up the grid x and y of {place}.",
        ],
        (Kind::GridPoint, _) => &[
            "Which forecast office covers {place}?",
            "What is the weather office for {place}?",
            "Tell me the forecast office of {place}.",
            "{place}: which forecast office?",
            "Please look up the office that makes the forecast for {place}.",
        ],
        (Kind::StationObservation, "humidity") => &[
            "What humidity does the station at {station} near {place} report?",
            "How humid is it at the {station} station near {place}?",
            "Tell me the humidity measured at {station}, near {place}.",
            "Near {place} is {station}. What humidity does its station report?",
            "Please look up the latest humidity at the station {station} near {place}.",
        ],
        (Kind::StationObservation, "wind_speed") => &[
            "What wind speed does the station at {station} near {place} report?",
            "How strong is the wind at the {station} station near {place}?",
            "Tell me the wind speed measured at {station}, near {place}.",
            "Near {place} is {station}. What wind speed does its station report?",
            "Please look up the latest wind speed at the station {station} near {place}.",
        ],
        (Kind::StationObservation, _) => &[
            "What temperature does the station at {station} near {place} report?",
            "How warm is it at the {station} station near {place}?",
            "Tell me the temperature measured at {station}, near {place}.",
            "Near {place} is {station}. What temperature does its station report?",
            "Please look up the latest temperature at the station {station} near {place}.",
        ],
        (Kind::WarmestDay, _) => &[
            "Which day will be warmest in {place}, from today to Thursday?",
            "What is the warmest day through Thursday in {place}?",
            "On which day until Thursday will it be warmest in {place}?",
            "I want the warmest day between today and Thursday in {place}. Which one is it?",
            "{place}: which day through Thursday is the warmest?",
        ],
        (Kind::DayComparison, _) => &[
            "Is rain more likely {first} or {second} in {place}?",
            "Which day is more likely to have rain in {place}, {first} or {second}?",
            "When is the chance of rain higher in {place}: {first} or {second}?",
            "{place}: higher chance of rain {first} or {second}?",
            "Compare the rain chance {first} and {second} in {place}. Which one is higher?",
        ],
        (Kind::PlaceComparison, "rain") => &[
            "Where is rain more likely {when}, in {place} or in {other}?",
            "Which place has the higher chance of rain {when}: {place} or {other}?",
            "Is rain {when} more likely in {place} or in {other}?",
            "Compare {place} and {other}: where is the chance of rain higher {when}?",
            "{place} or {other}: which one is more likely to have rain {when}?",
        ],
        (Kind::PlaceComparison, _) => &[
            "Where will it be warmer {when}, in {place} or in {other}?",
            "Which place will be warmer {when}: {place} or {other}?",
            "Will it be warmer {when} in {place} or in {other}?",
            "Compare {place} and {other}: where is it warmer {when}?",
            "{place} or {other}: which one will be warmer {when}?",
        ],
        // Asked just like the places that have weather, so that only the tool can tell.
        (Kind::OutsideCoverage, "rain") => templates(Kind::RainChance, "rain"),
        (Kind::OutsideCoverage, "wind_speed") => templates(Kind::Wind, "wind_speed"),
        (Kind::OutsideCoverage, _) => templates(Kind::Temperature, "temperature"),
    }
}
