use serde_json::Value;

use super::*;
use crate::nws::test_world::SEED;

async fn stand_in() -> StandIn {
    StandIn::start(TcpListener::bind("127.0.0.1:0").await.unwrap(), SEED, Faults::none()).unwrap()
}

fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let none = reqwest::redirect::Policy::none();
    reqwest::Client::builder()
        .user_agent("test")
        .no_proxy()
        .redirect(none)
        .build()
        .unwrap()
}

async fn get(stand_in: &StandIn, path: &str) -> (u16, String, Value) {
    let response = http().get(format!("{}{path}", stand_in.url())).send().await.unwrap();
    let kind = response
        .headers()
        .get("content-type")
        .map(|kind| kind.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    let body = response.text().await.unwrap();
    (
        status,
        kind.unwrap_or_default(),
        serde_json::from_str(&body).unwrap_or(Value::String(body)),
    )
}

/// Members that the real service's answers have, as recorded from it.
fn assert_has(body: &Value, pointers: &[&str]) {
    for pointer in pointers {
        assert!(body.pointer(pointer).is_some(), "no {pointer} in {body}");
    }
}

#[tokio::test]
async fn answers_have_the_shapes_of_the_service() {
    let stand_in = stand_in().await;
    let (status, kind, point) = get(&stand_in, "/points/46.79,-92.1").await;
    assert_eq!((status, kind.as_str()), (200, "application/geo+json"));
    assert_has(
        &point,
        &[
            "/@context",
            "/id",
            "/geometry/coordinates/1",
            "/properties/gridId",
            "/properties/gridX",
        ],
    );
    assert_has(
        &point,
        &[
            "/properties/forecastHourly",
            "/properties/relativeLocation/properties/city",
        ],
    );
    assert_eq!(point.pointer("/properties/timeZone").unwrap(), "America/Chicago");
    assert_eq!(point.pointer("/properties/gridId").unwrap(), "DLH");

    let path = |link: &str| {
        let link = point.pointer(&format!("/properties/{link}")).unwrap().as_str().unwrap();
        link.strip_prefix("https://api.weather.gov").unwrap().to_owned()
    };
    let (_, _, forecast) = get(&stand_in, &path("forecast")).await;
    assert_eq!(
        forecast
            .pointer("/properties/periods")
            .unwrap()
            .as_array()
            .unwrap()
            .len(),
        14
    );
    let period = "/properties/periods/1";
    for member in [
        "number",
        "name",
        "startTime",
        "endTime",
        "isDaytime",
        "temperature",
        "temperatureUnit",
        "icon",
    ] {
        assert_has(&forecast, &[&format!("{period}/{member}")]);
    }
    for member in [
        "probabilityOfPrecipitation/unitCode",
        "windSpeed",
        "windDirection",
        "shortForecast",
        "detailedForecast",
    ] {
        assert_has(&forecast, &[&format!("{period}/{member}")]);
    }
    let (_, _, hourly) = get(&stand_in, &path("forecastHourly")).await;
    assert_eq!(
        hourly.pointer("/properties/periods").unwrap().as_array().unwrap().len(),
        156
    );
    assert_eq!(hourly.pointer("/properties/periods/0/name").unwrap(), "");
    assert_has(
        &hourly,
        &[
            "/properties/periods/0/dewpoint/value",
            "/properties/periods/0/relativeHumidity/value",
        ],
    );
    let (_, _, grid) = get(&stand_in, &path("forecastGridData")).await;
    let first = grid
        .pointer("/properties/temperature/values/0/validTime")
        .unwrap()
        .as_str()
        .unwrap();
    assert!(first.contains("/PT"), "{first}");
    let (_, _, stations) = get(&stand_in, &path("observationStations")).await;
    assert_has(
        &stations,
        &[
            "/features/0/properties/stationIdentifier",
            "/features/0/geometry/coordinates/0",
        ],
    );
    let (_, _, again) = get(&stand_in, "/points/46.79,-92.1/stations").await;
    assert_eq!(again.pointer("/features/0/id"), stations.pointer("/features/0/id"));
    let (_, _, observation) = get(&stand_in, "/stations/KDLH/observations/latest").await;
    assert_has(
        &observation,
        &["/properties/temperature/qualityControl", "/properties/windGust/value"],
    );
    assert_eq!(
        observation.pointer("/properties/windChill/value").unwrap(),
        &Value::Null
    );
}

#[tokio::test]
async fn alerts_are_found_by_area_point_zone_and_severity() {
    let stand_in = stand_in().await;
    let (_, _, all) = get(&stand_in, "/alerts/active").await;
    let all = all["features"].as_array().unwrap().clone();
    let properties = &all[0]["properties"];
    for member in [
        "event",
        "severity",
        "certainty",
        "urgency",
        "areaDesc",
        "headline",
        "effective",
        "ends",
        "affectedZones",
    ] {
        assert!(properties.get(member).is_some(), "{member}");
    }
    let count = |body: &Value| body["features"].as_array().unwrap().len();
    let (_, _, severe) = get(&stand_in, "/alerts/active?severity=Severe").await;
    assert!(count(&severe) > 0 && count(&severe) < all.len());
    let zone = properties["geocode"]["UGC"][0].as_str().unwrap();
    let (_, _, of_zone) = get(&stand_in, &format!("/alerts/active?zone={zone}")).await;
    assert!(
        of_zone["features"]
            .as_array()
            .unwrap()
            .iter()
            .any(|feature| feature["id"] == all[0]["id"])
    );
    let (_, _, of_area) = get(&stand_in, &format!("/alerts/active/area/{}", &zone[..2])).await;
    let (_, _, queried) = get(&stand_in, &format!("/alerts/active?area={}", &zone[..2])).await;
    assert_eq!(count(&of_area), count(&queried));
    let (_, _, total) = get(&stand_in, "/alerts/active/count").await;
    assert_eq!(total["total"].as_u64().unwrap() as usize, all.len());
    let (_, _, quiet) = get(&stand_in, "/alerts/active?area=PR").await;
    assert_eq!(count(&quiet), 0);
}

#[tokio::test]
async fn errors_are_those_of_the_service() {
    let stand_in = stand_in().await;
    for (path, status, problem) in [
        ("/points/51.51,-0.13", 404, "InvalidPoint"),
        ("/points/43.65,-79.38", 404, "InvalidPoint"),
        ("/points/nowhere", 400, "InvalidParameter"),
        ("/points/95,0", 400, "InvalidParameter"),
        ("/gridpoints/XXX/1,1/forecast", 404, "NotFound"),
        ("/stations/NONE/observations/latest", 404, "NotFound"),
        ("/alerts/active?area=XX", 400, "InvalidParameter"),
        ("/alerts/active?severity=Bad", 400, "InvalidParameter"),
        ("/alerts/active?area=MN&point=46.79,-92.1", 400, "InvalidParameter"),
        ("/no/such/path", 404, "NotFound"),
    ] {
        let (found, kind, body) = get(&stand_in, path).await;
        assert_eq!((found, kind.as_str()), (status, "application/problem+json"), "{path}");
        assert_eq!(
            body["type"],
            format!("https://api.weather.gov/problems/{problem}"),
            "{path}"
        );
        assert_has(&body, &["/correlationId", "/title", "/detail", "/instance"]);
    }
    let (_, _, sea) = get(&stand_in, "/points/27.5,-92.5").await;
    let link = sea
        .pointer("/properties/forecast")
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned();
    let (status, _, body) = get(&stand_in, link.strip_prefix("https://api.weather.gov").unwrap()).await;
    assert_eq!(
        (status, body["title"].as_str().unwrap()),
        (404, "Marine Forecast Not Supported")
    );
}

#[tokio::test]
async fn more_than_four_decimals_redirect_and_no_name_is_refused() {
    let stand_in = stand_in().await;
    let url = format!("{}/points/46.78912,-92.10055", stand_in.url());
    let response = http().get(url).send().await.unwrap();
    assert!(response.status().is_redirection());
    assert_eq!(response.headers()["location"], "/points/46.7891,-92.1006");
    let nameless = reqwest::Client::builder().no_proxy().build().unwrap();
    let response = nameless
        .get(format!("{}/alerts/active", stand_in.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status().as_u16(), 403);
}

#[tokio::test]
async fn faults_are_switched_over_http_and_count_down() {
    let stand_in = stand_in().await;
    let faults = serde_json::to_value([Fault::next(FaultKind::Unavailable, 1).under("/alerts")]).unwrap();
    let url = format!("{}/stand-in/faults", stand_in.url());
    let switched = http().put(&url).json(&faults).send().await.unwrap();
    assert_eq!(switched.status().as_u16(), 204);
    assert_eq!(get(&stand_in, "/stations/KDLH").await.0, 200, "another path");
    let (status, _, body) = get(&stand_in, "/alerts/active?area=MN").await;
    assert_eq!(
        (status, body["title"].as_str().unwrap()),
        (503, "Forecast Grid Expired")
    );
    assert_eq!(get(&stand_in, "/alerts/active?area=MN").await.0, 200, "only once");
    stand_in.faults().set(vec![Fault::always(FaultKind::NullLinks)]);
    let (_, _, point) = get(&stand_in, "/points/46.79,-92.1").await;
    assert_eq!(point.pointer("/properties/forecast").unwrap(), &Value::Null);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answers() {
    let (first, second) = (stand_in().await, stand_in().await);
    for path in [
        "/points/39.74,-104.98",
        "/gridpoints/DLH/100,98/forecast",
        "/alerts/active",
        "/stations/KDLH/observations/latest",
    ] {
        assert_eq!(get(&first, path).await, get(&second, path).await, "{path}");
    }
}
