//! Results as text: one fact a line, plain numbers, few words, so that a small model can find and copy what it needs.

use std::fmt::Write as _;

use jiff::civil::DateTime;

use super::output::{
    AlertsOutput, ForecastOutput, HourlyOutput, ObservationOutput, PeriodOutput, PointOutput, StationsOutput,
};
use crate::nws::weather::weekday_name;

/// Characters of a result; what is over is cut, visibly.
const MAX_TEXT: usize = 3000;
/// Characters of an alert's list of places.
const MAX_AREA: usize = 60;

/// One line a half day, then what stands out. The sky is left to the structure: rain and temperature tell most of it,
/// and it would be a sixth of the text.
pub fn forecast(output: &ForecastOutput) -> String {
    let mut text = String::new();
    for period in &output.periods {
        let _ = write!(text, "{}", period_line(period));
        if let Some(wind) = &period.wind {
            let _ = write!(text, ", wind {wind}");
        }
        text.push('\n');
    }
    // What stands out among one is that one.
    if output.periods.len() < 2 {
        return text.trim_end().to_owned();
    }
    let find = |name: &Option<String>| output.periods.iter().find(|period| Some(&period.name) == name.as_ref());
    if let Some(PeriodOutput {
        name,
        temperature: Some(temperature),
        unit,
        ..
    }) = find(&output.warmest)
    {
        let _ = write!(text, "Warmest: {name} {temperature} {unit}.");
    }
    if let Some(PeriodOutput { name, rain_percent, .. }) = find(&output.wettest) {
        let _ = write!(text, " Wettest: {name} {rain_percent}%.");
    }
    text.trim_end().to_owned()
}

/// One line an hour.
pub fn hourly_forecast(output: &HourlyOutput) -> String {
    let lines: Vec<String> = output.hours.iter().map(period_line).collect();
    lines.join("\n")
}

/// One line.
pub fn observation(output: &ObservationOutput) -> String {
    let mut text = output.station.clone();
    if let Some(name) = &output.name {
        let _ = write!(text, " {name}");
    }
    match output.temperature {
        Some(temperature) => {
            let _ = write!(text, ": {temperature} F");
        }
        None => text.push_str(": temperature not reported"),
    }
    if let Some(humidity) = output.humidity_percent {
        let _ = write!(text, ", humidity {humidity}%");
    }
    match (output.wind_mph, &output.wind_direction) {
        (Some(0), _) => text.push_str(", wind calm"),
        (Some(wind), Some(direction)) => {
            let _ = write!(text, ", wind {direction} {wind} mph");
        }
        (Some(wind), None) => {
            let _ = write!(text, ", wind {wind} mph");
        }
        (None, _) => {}
    }
    if let Some(sky) = &output.sky {
        let _ = write!(text, ", {sky}");
    }
    text
}

/// One line an alert, worst first.
pub fn alerts(output: &AlertsOutput) -> String {
    if output.alerts.is_empty() {
        let severity = output
            .severity
            .as_ref()
            .map(|severity| format!("{} ", severity.to_lowercase()))
            .unwrap_or_default();
        return format!("No active {severity}alerts in {}.", output.area);
    }
    let mut lines: Vec<String> = Vec::new();
    for alert in &output.alerts {
        let mut line = format!("{}: {}", alert.severity, alert.event);
        if let Some(until) = alert.until.as_deref().and_then(local_time) {
            let _ = write!(line, " until {}", day_and_clock(until));
        }
        let _ = write!(line, ", {}", cut(&alert.area, MAX_AREA));
        lines.push(line);
    }
    if output.not_shown > 0 {
        lines.push(format!(
            "({} more alerts not shown; ask for one severity)",
            output.not_shown
        ));
    }
    lines.join("\n")
}

/// One line a station, nearest first.
pub fn stations(output: &StationsOutput) -> String {
    if output.stations.is_empty() {
        return "No stations near this point.".to_owned();
    }
    let line = |station: &super::output::StationOutput| {
        let distance = station
            .distance_miles
            .map(|miles| format!(", {miles} mi"))
            .unwrap_or_default();
        format!("{} {}{distance}", station.id, station.name)
    };
    let lines: Vec<String> = output.stations.iter().map(line).collect();
    lines.join("\n")
}

/// One line.
pub fn point(output: &PointOutput) -> String {
    let mut text = format!("Office {}, grid {},{}", output.office, output.grid_x, output.grid_y);
    if let Some(city) = &output.city {
        let _ = write!(text, ", near {city}");
    }
    if let Some(time_zone) = &output.time_zone {
        let _ = write!(text, ", time zone {time_zone}");
    }
    text
}

/// Cuts a result that is too long, and says so.
pub fn bounded(text: String) -> String {
    if text.len() <= MAX_TEXT {
        return text;
    }
    format!(
        "{}\n(cut: {} characters in all; ask for less)",
        cut(&text, MAX_TEXT),
        text.len()
    )
}

/// `71 F, rain 20%` after the period's name.
fn period_line(period: &PeriodOutput) -> String {
    let temperature = match period.temperature {
        Some(temperature) => format!("{temperature} {}", period.unit),
        None => "no temperature".to_owned(),
    };
    format!("{}: {temperature}, rain {}%", period.name, period.rain_percent)
}

/// The wall clock of an ISO 8601 time with an offset.
pub(super) fn local_time(iso: &str) -> Option<DateTime> {
    // The offset is the place's own, so the part before it is the time on its clocks.
    iso.get(..19)?.parse().ok()
}

/// `5 PM`.
pub(crate) fn clock(time: DateTime) -> String {
    let hour = time.hour();
    let (twelve, half) = (
        if hour % 12 == 0 { 12 } else { hour % 12 },
        if hour < 12 { "AM" } else { "PM" },
    );
    if time.minute() == 0 {
        format!("{twelve} {half}")
    } else {
        format!("{twelve}:{:02} {half}", time.minute())
    }
}

/// `Tue 5 PM`.
pub(crate) fn day_and_clock(time: DateTime) -> String {
    let weekday = weekday_name(time.weekday());
    format!("{} {}", &weekday[..3], clock(time))
}

fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
