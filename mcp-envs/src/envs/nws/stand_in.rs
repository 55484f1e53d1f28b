//! A stand-in for `api.weather.gov`: same routes, same GeoJSON and `problem+json` shapes, weather from a seed.
//!
//! - [`faults`]: failures that can be switched on, by configuration or by `PUT /stand-in/faults`
//! - `routes`: paths and query parameters to answers
//! - `bodies`: the JSON of each answer
//! - `problem`: errors as the service words them
//!
//! Points outside the covered area, points at sea and bad parameters fail the way the service fails.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::weather::Weather;
use crate::error::EnvironmentError;

mod bodies;
pub mod faults;
mod problem;
mod routes;

pub use faults::{Fault, FaultKind, Faults};

/// A running stand-in; dropping it stops it.
#[derive(Debug)]
pub struct StandIn {
    address: SocketAddr,
    weather: Weather,
    faults: Faults,
    _stop: DropGuard,
}

impl StandIn {
    /// Serves on the listener until dropped. The same seed gives the same weather.
    pub fn start(listener: TcpListener, seed: u64, faults: Faults) -> Result<Self, EnvironmentError> {
        let address = listener.local_addr().map_err(|source| EnvironmentError::Serve {
            server: "stand-in",
            source,
        })?;
        let weather = Weather::new(seed);
        let stop = CancellationToken::new();
        let served = serve(listener, weather, faults.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::error!(error = &error as &dyn std::error::Error, "the weather stand-in stopped");
            }
        });
        Ok(Self {
            address,
            weather,
            faults,
            _stop: stop.drop_guard(),
        })
    }

    /// The base URL, for a client in place of `https://api.weather.gov`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The facts that it serves.
    pub fn weather(&self) -> Weather {
        self.weather
    }

    /// The switch of its faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// Serves on the listener until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    weather: Weather,
    faults: Faults,
    shutdown: CancellationToken,
) -> Result<(), EnvironmentError> {
    axum::serve(listener, routes::router(weather, faults))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(|source| EnvironmentError::Serve {
            server: "stand-in",
            source,
        })
}

#[cfg(test)]
mod tests;
