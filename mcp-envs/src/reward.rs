//! What an environment says about an episode.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The raw reward of an episode, never normalised, and what it was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// The scalar that training maximises.
    pub reward: f64,
    /// Named parts, numbers only. `success` (0 or 1) is always there.
    pub metrics: Map<String, Value>,
}

impl Reward {
    /// A reward with its `success` metric.
    pub fn new(reward: f64, success: bool) -> Self {
        let mut metrics = Map::new();
        metrics.insert("success".to_owned(), Value::from(u8::from(success)));
        Self { reward, metrics }
    }

    /// Adds a metric.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metrics.insert(name.to_owned(), value.into());
        self
    }

    /// Whether the environment counts the episode as solved.
    pub fn is_success(&self) -> bool {
        self.metrics
            .get("success")
            .and_then(Value::as_f64)
            .is_some_and(|success| success > 0.0)
    }
}
