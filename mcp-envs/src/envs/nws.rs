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

use std::collections::HashMap;
use std::path::Path;

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

/// The environment: scenarios with their facts.
#[derive(Debug, Clone)]
pub struct NwsEnvironment {
    scenarios: Vec<Scenario>,
    facts: HashMap<String, Facts>,
}

impl NwsEnvironment {
    /// The scenarios of a seed; the stand-in has to run with the same one.
    pub fn new(seed: u64) -> Self {
        let scenarios = scenarios::generate(seed);
        let facts = scenarios.iter().filter_map(|scenario| Some((scenario.id.clone(), facts(scenario).ok()?)));
        Self { facts: facts.collect(), scenarios }
    }

    /// Scenarios from a JSON lines file; each must hold weather facts.
    pub fn load(path: &Path) -> Result<Self, EnvironmentError> {
        let scenarios = load_scenarios(path)?;
        let mut known = HashMap::new();
        for scenario in &scenarios {
            let facts = facts(scenario).map_err(|error| EnvironmentError::BadFacts {
                path: path.to_owned(),
                id: scenario.id.clone(),
                problem: error.to_string(),
            })?;
            known.insert(scenario.id.clone(), facts);
        }
        Ok(Self { scenarios, facts: known })
    }
}

fn facts(scenario: &Scenario) -> Result<Facts, serde_json::Error> {
    serde_json::from_value(scenario.data.clone())
}

impl Environment for NwsEnvironment {
    fn name(&self) -> &str {
        NAME
    }

    fn scenarios(&self) -> Result<Vec<Scenario>, EnvironmentError> {
        Ok(self.scenarios.clone())
    }

    fn score(&self, scenario: &Scenario, episode: &EpisodeView<'_>) -> Reward {
        // A scenario of another file brings its own facts.
        match self.facts.get(&scenario.id).cloned().or_else(|| facts(scenario).ok()) {
            Some(facts) => reward::score(&scenario.prompt, &facts, episode),
            None => Reward::new(0.0, false),
        }
    }
}
