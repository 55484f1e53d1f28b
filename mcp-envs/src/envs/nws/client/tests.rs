use std::time::Instant;

use tokio::net::TcpListener;

use super::*;
use crate::nws::stand_in::{Fault, FaultKind, Faults, StandIn};
use crate::nws::test_world::SEED;

async fn world(faults: Vec<Fault>) -> (StandIn, NwsClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stand_in = StandIn::start(listener, SEED, Faults::new(faults)).unwrap();
    let backoff = Duration::from_millis(1);
    let config = ClientConfig {
        backoff,
        timeout: Duration::from_secs(2),
        ..ClientConfig::new(stand_in.url())
    };
    (stand_in, NwsClient::new(config).unwrap())
}

fn duluth() -> Coordinates {
    Coordinates::new(46.789_123, -92.100_456).unwrap()
}

#[tokio::test]
async fn forecasts_are_the_stand_ins_facts() {
    let (stand_in, client) = world(Vec::new()).await;
    let facts = stand_in.weather().periods(46.79, -92.1).unwrap();
    let periods = client.forecast(duluth()).await.unwrap();
    assert_eq!(periods.len(), facts.len());
    for (period, fact) in periods.iter().zip(&facts) {
        assert_eq!(
            (period.name.as_str(), period.temperature),
            (fact.name.as_str(), Some(fact.temperature as f64))
        );
    }
    let hours = client.hourly_forecast(duluth()).await.unwrap();
    assert_eq!(
        hours[0].temperature,
        Some(stand_in.weather().hours(46.79, -92.1).unwrap()[0].temperature as f64)
    );
    let point = client.point(duluth()).await.unwrap();
    assert_eq!(
        (point.grid_id.as_deref(), point.city()),
        (Some("DLH"), Some(("Duluth", "MN")))
    );
}

#[tokio::test]
async fn observations_come_back_in_whole_units() {
    let (stand_in, client) = world(Vec::new()).await;
    for station in crate::nws::geography::geography().stations.iter().step_by(19) {
        let fact = stand_in.weather().observation(station);
        let observation = client.observation(&station.id).await.unwrap();
        let read = (
            observation.fahrenheit(),
            observation.humidity(),
            observation.miles_per_hour(),
        );
        assert_eq!(read, (fact.temperature, fact.humidity, fact.wind), "{}", station.id);
    }
}

#[tokio::test]
async fn temporary_failures_are_asked_again_but_not_for_ever() {
    let (stand_in, client) = world(vec![Fault::next(FaultKind::Unavailable, 2)]).await;
    assert!(client.point(duluth()).await.is_ok(), "two failures, three attempts");
    stand_in.faults().set(vec![Fault::next(FaultKind::InternalError, 5)]);
    let error = client.point(duluth()).await.unwrap_err();
    assert_eq!(stand_in.faults().get()[0].times, Some(2), "three attempts were made");
    let said = error.explain();
    assert!(
        said.contains("Unexpected Problem. An unexpected problem has occurred"),
        "{said}"
    );
}

#[tokio::test]
async fn what_will_not_change_is_not_asked_again() {
    let (stand_in, client) = world(Vec::new()).await;
    let _ = &stand_in;
    for (latitude, longitude, said) in [(51.51, -0.13, "outside the area"), (27.5, -92.5, "at sea")] {
        let coordinates = Coordinates::new(latitude, longitude).unwrap();
        let error = client.forecast(coordinates).await.unwrap_err();
        assert!(
            !error.is_temporary() && error.explain().contains(said),
            "{}",
            error.explain()
        );
    }
    let error = client.observation("NONE").await.unwrap_err();
    assert!(error.explain().starts_with("Not found"), "{}", error.explain());
}

#[tokio::test]
async fn null_links_and_garbage_are_errors() {
    let (stand_in, client) = world(vec![Fault::always(FaultKind::NullLinks)]).await;
    assert!(matches!(
        client.forecast(duluth()).await,
        Err(WeatherError::Incomplete { what: "forecast" })
    ));
    assert!(matches!(
        client.stations(duluth()).await,
        Err(WeatherError::Incomplete { .. })
    ));
    stand_in.faults().set(vec![Fault::always(FaultKind::Garbage)]);
    assert!(matches!(
        client.point(duluth()).await,
        Err(WeatherError::NotUnderstood { .. })
    ));
}

#[tokio::test]
async fn a_slow_or_absent_service_is_given_up() {
    let (stand_in, _) = world(vec![Fault::always(FaultKind::Slow { delay_ms: 20_000 })]).await;
    let timeout = Duration::from_millis(50);
    let config = ClientConfig {
        timeout,
        attempts: 1,
        ..ClientConfig::new(stand_in.url())
    };
    let started = Instant::now();
    let error = NwsClient::new(config).unwrap().point(duluth()).await.unwrap_err();
    assert!(matches!(error, WeatherError::Timeout), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    let url = stand_in.url();
    drop(stand_in);
    let absent = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_ne!(url, format!("http://{absent}"));
    let config = ClientConfig {
        attempts: 1,
        ..ClientConfig::new(format!("http://{absent}"))
    };
    let error = NwsClient::new(config).unwrap().point(duluth()).await.unwrap_err();
    assert!(matches!(error, WeatherError::Unreachable(_)), "{error}");
}

#[test]
fn coordinates_are_possible_and_rounded() {
    assert_eq!(duluth().to_string(), "46.7891,-92.1005");
    assert_eq!(Coordinates::new(-0.000_001, 180.0).unwrap().to_string(), "0,180");
    for (latitude, longitude) in [(90.1, 0.0), (0.0, -180.5), (f64::NAN, 0.0)] {
        assert_eq!(Coordinates::new(latitude, longitude), None);
    }
}

#[test]
fn a_bad_base_url_is_named() {
    for url in ["weather", "ftp://weather", ""] {
        let message = NwsClient::new(ClientConfig::new(url)).unwrap_err().to_string();
        assert!(message.contains("not a usable base URL"), "{message}");
    }
    assert_eq!(
        path_of("https://api.weather.gov/gridpoints/DLH/1,2/forecast"),
        "/gridpoints/DLH/1,2/forecast"
    );
}
