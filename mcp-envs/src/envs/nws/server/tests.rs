use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use super::*;
use crate::nws::stand_in::{Fault, FaultKind};
use crate::nws::test_world::{World, text};

#[tokio::test]
async fn results_are_short_lines_with_structure_beside_them() {
    let world = World::new().await;
    let point = json!({ "latitude": 46.79, "longitude": -92.1 });
    let all = |name: &str| json!({ "latitude": 46.79, "longitude": -92.1, name: "all" });
    let forecast = world.call("get_forecast", all("period")).await;
    let lines: Vec<String> = text(&forecast).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(
        lines[2].starts_with("Tuesday: ") && lines[2].contains(" F, rain "),
        "{lines:?}"
    );
    assert!(lines[8].starts_with("Warmest: "), "{lines:?}");
    let structured = forecast.result.unwrap()["structuredContent"].clone();
    assert_eq!(structured["periods"][2]["name"], "Tuesday");
    let hours = text(&world.call("get_hourly_forecast", all("hour")).await);
    assert_eq!(hours.lines().count(), 12);
    assert!(hours.starts_with("11 AM: "), "{hours}");
    let stations = text(&world.call("find_stations", point.clone()).await);
    assert_eq!(stations.lines().count(), 3, "{stations}");
    assert!(stations.lines().all(|line| line.ends_with(" mi")), "{stations}");
    let office = text(&world.call("get_point", point).await);
    assert!(
        office.starts_with("Office DLH, grid ") && office.contains("near Duluth, MN"),
        "{office}"
    );
}

#[tokio::test]
async fn one_period_or_hour_is_one_line_of_the_forecast() {
    let world = World::new().await;
    let with = |name: &str, value: &str| json!({ "latitude": 46.79, "longitude": -92.1, name: value });
    let whole = text(&world.call("get_forecast", with("period", "all")).await);
    for name in ["Tuesday Night", "tuesday night", "TuesdayNight"] {
        let line = text(&world.call("get_forecast", with("period", name)).await);
        assert_eq!(Some(line.as_str()), whole.lines().nth(3), "{name}");
    }
    assert_eq!(text(&world.call("get_forecast", with("period", "All")).await), whole);
    let missing = world
        .call("get_forecast", json!({ "latitude": 46.79, "longitude": -92.1 }))
        .await;
    let said = text(&missing);
    assert!(
        missing.is_error && said.starts_with("period is missing. Give one of all, Today, Tonight, "),
        "{said}"
    );
    let hour = text(&world.call("get_hourly_forecast", with("hour", "2 PM")).await);
    assert!(hour.starts_with("2 PM: ") && hour.lines().count() == 1, "{hour}");
}

#[tokio::test]
async fn alerts_and_observations_in_a_line_each() {
    let world = World::new().await;
    let weather = world.stand_in.weather();
    for state in &crate::nws::geography::geography().states {
        let alerts = weather.alerts(&state.code);
        let said = text(&world.call("get_alerts", json!({ "state": state.code })).await);
        match alerts.first() {
            None => assert_eq!(said, format!("No active alerts in {}.", state.code)),
            Some(worst) => {
                assert_eq!(said.lines().count(), alerts.len());
                assert!(
                    said.starts_with(&format!("{}: {} until ", worst.severity, worst.event)),
                    "{said}"
                );
            }
        }
    }
    let by_name = world.call("get_alerts", json!({ "state": "minnesota" })).await;
    assert!(!by_name.is_error);
    let report = text(&world.call("get_current_weather", json!({ "station": "kdlh" })).await);
    assert!(report.starts_with("KDLH Duluth International Airport: "), "{report}");
    let nearest = text(
        &world
            .call(
                "get_current_weather",
                json!({ "latitude": "46.79", "longitude": "-92.1" }),
            )
            .await,
    );
    assert!(nearest.contains(" F"), "{nearest}");
}

#[tokio::test]
async fn wrong_inputs_say_what_to_write() {
    let world = World::new().await;
    for (tool, arguments, said) in [
        ("get_forecast", json!({ "latitude": 46.79 }), "longitude is missing"),
        (
            "get_forecast",
            json!({ "latitude": "north", "longitude": 1 }),
            "latitude must be a number, not north.",
        ),
        (
            "get_forecast",
            json!({ "latitude": 146.79, "longitude": 1 }),
            "latitude must be from -90 to 90, not 146.79.",
        ),
        (
            "get_forecast",
            json!({ "latitude": 46.79, "longitude": -92.1, "days": 9 }),
            "days must be from 1 to 7, not 9.",
        ),
        (
            "get_forecast",
            json!({ "city": "Duluth" }),
            "There is no argument city. Use latitude, longitude, period, days.",
        ),
        (
            "get_forecast",
            json!({ "latitude": 46.79, "longitude": -92.1, "period": "Someday", "days": 2 }),
            "period must be one of all, Today, Tonight, Tuesday, Tuesday Night, not Someday.",
        ),
        (
            "get_hourly_forecast",
            json!({ "latitude": 46.79, "longitude": -92.1, "hour": 5, "hours": 2 }),
            "hour must be one of all, 11 AM, 12 PM, not 5.",
        ),
        (
            "get_hourly_forecast",
            json!({ "latitude": 46.79, "longitude": -92.1, "hours": 1.5 }),
            "hours must be from 1 to 48",
        ),
        (
            "get_alerts",
            json!({}),
            "Give a state, like MN, or latitude and longitude.",
        ),
        (
            "get_alerts",
            json!({ "state": "Ontario" }),
            "state must be a two-letter code like MN, not Ontario.",
        ),
        (
            "get_alerts",
            json!({ "state": "MN", "severity": "bad" }),
            "severity must be Extreme, Severe, Moderate, Minor or all",
        ),
        (
            "get_current_weather",
            json!({ "station": "the airport" }),
            "station must be a station id like KDLH",
        ),
        ("get_current_weather", json!({ "station": "KXXX" }), "Not found"),
        (
            "get_point",
            json!({ "latitude": 51.51, "longitude": -0.13 }),
            "outside the area",
        ),
        (
            "get_alerts",
            json!({ "latitude": 51.51, "longitude": -0.13 }),
            "outside the area",
        ),
        (
            "get_forecast",
            json!({ "latitude": 27.5, "longitude": -92.5 }),
            "at sea",
        ),
    ] {
        let call = world.call(tool, arguments.clone()).await;
        assert!(
            call.is_error && text(&call).contains(said),
            "{tool} {arguments}: {}",
            text(&call)
        );
    }
}

#[tokio::test]
async fn failures_of_the_service_are_results() {
    let world = World::new().await;
    let point = json!({ "latitude": 46.79, "longitude": -92.1 });
    for (kind, said) in [
        (
            FaultKind::NullLinks,
            "No data: the weather service has no forecast for this point.",
        ),
        (FaultKind::Garbage, "could not be read"),
    ] {
        world.stand_in.faults().set(vec![Fault::always(kind)]);
        let call = world.call("get_forecast", point.clone()).await;
        assert!(call.is_error && text(&call).contains(said), "{}", text(&call));
    }
}

#[test]
fn the_tools_fit_into_a_small_models_prompt() {
    let tools = serde_json::to_string(&NwsServer::openai_tools()).unwrap();
    assert!(tools.len() < 1700, "{} characters: {tools}", tools.len());
}

#[test]
fn long_text_is_cut_visibly() {
    let text = text::bounded("weather ".repeat(1000));
    assert!(
        text.len() < 3100 && text.ends_with("(cut: 8000 characters in all; ask for less)"),
        "{text}"
    );
}

#[tokio::test]
async fn a_session_lists_and_calls_the_tools() {
    let world = World::new().await;
    let (here, there) = tokio::io::duplex(1 << 16);
    let server = world.server.clone();
    let serving = tokio::spawn(async move { server.serve(there).await.unwrap().waiting().await });
    let client = ().serve(here).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 6);
    assert!(tools.iter().all(|tool| tool.output_schema.is_some()));
    let arguments = json!({ "state": "MN" }).as_object().cloned().unwrap();
    let result = client
        .call_tool(CallToolRequestParams::new("get_alerts").with_arguments(arguments))
        .await
        .unwrap();
    let result: Value = serde_json::to_value(result).unwrap();
    assert_eq!(result["structuredContent"]["area"], "MN");
    client.cancel().await.unwrap();
    serving.await.unwrap().unwrap();
}
