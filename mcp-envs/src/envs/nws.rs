//! The National Weather Service environment: questions about the weather, tools that answer them, and a service to ask.
//!
//! In the order in which data meets them:
//! - [`geography`], [`weather`]: true places with made-up weather, all of it from a seed
//! - [`stand_in`]: that weather behind the routes of `api.weather.gov`
//! - [`client`]: a client of the stand-in or of the real service
//! - [`server`]: the MCP server `nws`, whose tools an agent calls
//! - [`scenarios`]: questions with the facts of their answers
//! - [`reward`]: what an episode earns
//! - [`teacher`]: a rule-based model that shows how it is done

use std::path::Path;

use serde::Deserialize;

use crate::environment::{Environment, EpisodeView};
use crate::error::EnvironmentError;
use crate::reward::Reward;
use crate::scenario::{Scenario, load_scenarios};

pub mod client;
mod dice;
pub mod geography;
pub mod reward;
pub mod scenarios;
pub mod server;
pub mod stand_in;
pub mod teacher;
pub mod weather;

use scenarios::Facts;

/// The name in configurations and on the command line.
pub const NAME: &str = "nws";

/// The environment: its scenarios; each holds the facts of its own answer.
#[derive(Debug, Clone)]
pub struct NwsEnvironment {
    scenarios: Vec<Scenario>,
}

impl NwsEnvironment {
    /// The scenarios of a seed; the stand-in has to run with the same one.
    pub fn new(seed: u64) -> Self {
        Self {
            scenarios: scenarios::generate(seed),
        }
    }

    /// Scenarios from a JSON lines file; each must hold weather facts.
    pub fn load(path: &Path) -> Result<Self, EnvironmentError> {
        let holds_facts = |scenario: &Scenario| {
            facts(scenario).map(drop).map_err(|error| {
                format!(
                    "the `data` of scenario `{}` hold no weather facts: {error}",
                    scenario.id
                )
            })
        };
        load_scenarios(path, holds_facts).map(|scenarios| Self { scenarios })
    }
}

fn facts(scenario: &Scenario) -> Result<Facts, serde_json::Error> {
    Facts::deserialize(&scenario.data)
}

impl Environment for NwsEnvironment {
    fn name(&self) -> &str {
        NAME
    }

    fn scenarios(&self) -> Result<Vec<Scenario>, EnvironmentError> {
        Ok(self.scenarios.clone())
    }

    fn score(&self, scenario: &Scenario, episode: &EpisodeView<'_>) -> Reward {
        match facts(scenario) {
            Ok(facts) => reward::score(&scenario.prompt, &facts, episode),
            Err(error) => {
                tracing::error!(scenario = scenario.id, %error, "a scenario without weather facts earns nothing");
                Reward::new(0.0, false)
            }
        }
    }
}

#[cfg(test)]
mod test_world;
