//! A rule-based teacher behind an OpenAI-compatible server: it shows on training scenarios how the tools are used.
//!
//! - `lesson`: what to do next in a conversation: the needed call, or the answer read from the tool results
//! - `reading`: finding values in the tools' text
//! - `api`: the HTTP side
//!
//! It knows which calls a question needs from the scenario's hidden data, found by the question's text. The values of
//! its answers come from the tool results alone, as a model's have to.

use std::collections::HashMap;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::scenarios::Facts;
use crate::error::EnvironmentError;
use crate::scenario::Scenario;

mod api;
mod lesson;
mod reading;

pub use lesson::{Move, TeacherError};

/// The model's name in `GET /v1/models`; requests may use any.
pub const MODEL: &str = "teacher";

/// Knows the scenarios by their questions.
#[derive(Debug, Clone)]
pub struct Teacher {
    lessons: HashMap<String, (Scenario, Facts)>,
}

impl Teacher {
    /// A teacher of these scenarios. Ones whose data are not weather facts are left out.
    pub fn new(scenarios: &[Scenario]) -> Self {
        let lessons = scenarios.iter().filter_map(|scenario| {
            let facts = Facts::deserialize(&scenario.data).ok()?;
            Some((scenario.prompt.trim().to_owned(), (scenario.clone(), facts)))
        });
        Self {
            lessons: lessons.collect(),
        }
    }
}

/// Serves `POST /v1/chat/completions` and `GET /v1/models` until `shutdown`.
pub async fn serve(
    listener: TcpListener,
    teacher: Teacher,
    shutdown: CancellationToken,
) -> Result<(), EnvironmentError> {
    axum::serve(listener, api::router(teacher))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .map_err(|source| EnvironmentError::Serve {
            server: "teacher",
            source,
        })
}

#[cfg(test)]
mod tests;
