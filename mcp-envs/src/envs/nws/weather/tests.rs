use std::collections::HashSet;

use super::*;

fn duluth() -> &'static Place {
    geography().places.iter().find(|place| place.name == "Duluth").unwrap()
}

#[test]
fn fourteen_half_days_with_the_names_of_a_monday() {
    for seed in [0, 7, 2026] {
        let weather = Weather::new(seed);
        let place = duluth();
        let periods = weather.periods(place.latitude, place.longitude).unwrap();
        let names: Vec<&str> = periods.iter().map(|period| period.name.as_str()).collect();
        assert_eq!(names.len(), N_PERIODS);
        assert_eq!(&names[..4], ["Today", "Tonight", "Tuesday", "Tuesday Night"]);
        assert_eq!(names[13], "Sunday Night");
        for pair in periods.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
    }
}

#[test]
fn hours_begin_now_and_follow_the_periods() {
    let weather = Weather::new(7);
    let place = duluth();
    let hours = weather.hours(place.latitude, place.longitude).unwrap();
    assert_eq!(hours.len(), N_HOURS);
    assert_eq!(hours[0].start.civil.hour(), 11, "noon in New York is eleven in Duluth");
    assert_eq!(hours[0].start, weather.now(&place.time_zone));
    assert!(
        hours[0].start.iso().ends_with("T11:00:00-05:00"),
        "{}",
        hours[0].start.iso()
    );
}

#[test]
fn a_point_near_a_place_has_its_weather_and_seeds_differ() {
    let place = duluth();
    let weather = Weather::new(7);
    let here = weather.periods(place.latitude, place.longitude);
    assert_eq!(here, weather.periods(place.latitude + 0.02, place.longitude - 0.02));
    assert_ne!(here, Weather::new(8).periods(place.latitude, place.longitude));
    assert_eq!(weather.periods(51.51, -0.13), None);
    assert!(weather.periods(44.0, -104.9).is_some(), "open country has weather too");
}

#[test]
fn temperatures_are_those_of_a_summer() {
    let weather = Weather::new(7);
    for place in &geography().places {
        for period in weather.periods(place.latitude, place.longitude).unwrap() {
            assert!((15..=115).contains(&period.temperature), "{} {period:?}", place.label());
        }
    }
}

#[test]
fn alerts_of_a_state_differ_in_severity_and_event() {
    let weather = Weather::new(7);
    let mut with_alerts = 0;
    for state in &geography().states {
        let alerts = weather.alerts(&state.code);
        with_alerts += usize::from(!alerts.is_empty());
        let severities: HashSet<&str> = alerts.iter().map(|alert| alert.severity).collect();
        let events: HashSet<&str> = alerts.iter().map(|alert| alert.event).collect();
        assert_eq!(
            (severities.len(), events.len()),
            (alerts.len(), alerts.len()),
            "{}",
            state.name
        );
        assert!(alerts.iter().all(|alert| !alert.places.is_empty()));
    }
    assert!((30..=48).contains(&with_alerts), "{with_alerts} states with alerts");
    assert!(weather.alerts("XX").is_empty());
}

#[test]
fn stations_miss_values_now_and_then() {
    let weather = Weather::new(7);
    let observations: Vec<Observation> = geography()
        .stations
        .iter()
        .map(|station| weather.observation(station))
        .collect();
    let missing = observations
        .iter()
        .filter(|observation| observation.temperature.is_none())
        .count();
    assert!((10..=100).contains(&missing), "{missing} of {}", observations.len());
    assert!(observations.iter().any(|observation| observation.wind.is_none()));
}

#[test]
fn the_compass_has_eight_points() {
    assert_eq!(
        (compass(0.0), compass(44.0), compass(315.0), compass(359.0)),
        ("N", "NE", "NW", "N")
    );
}
