//! A scenario's hidden data: which calls answer it, and what the answer has to say.

use serde::{Deserialize, Serialize};

/// The facts of one question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Seed of the weather that the facts are from.
    pub seed: u64,
    /// What the question is about, in order: places or states as the question names them.
    pub subjects: Vec<String>,
    /// The half days or hours that it names, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub periods: Vec<String>,
    /// What it asks for: `temperature`, `rain`, `wind_speed`, `wind_direction`, `humidity`, `office`, `grid`, …
    pub measure: String,
    /// The calls that are needed, in order.
    pub calls: Vec<ExpectedCall>,
    /// The answer.
    pub answer: ExpectedAnswer,
}

/// A call that is needed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCall {
    /// Tools that would do; the first is the obvious one.
    pub tools: Vec<String>,
    /// What it has to be about.
    pub target: Target,
    /// What its result has to hold, so that the answer can be read from it: numbers, words, and beginnings of lines,
    /// which end in a colon (`Tuesday:` is not in a line of `Tuesday Night:`).
    pub evidence: Vec<String>,
    /// The call has to fail, because the service has nothing there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fails: bool,
}

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// `latitude` and `longitude`, degrees.
    Point(f64, f64),
    /// `state`.
    State(String),
    /// `station`.
    Station(String),
}

/// What the answer has to say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedAnswer {
    /// All of these whole numbers.
    Numbers {
        /// The values, in order.
        values: Vec<i64>,
        /// Other numbers that a good answer may hold.
        allowed: Vec<i64>,
    },
    /// One name of each group, and none of the others.
    Names {
        /// Each group lists the ways to say one thing.
        groups: Vec<Vec<String>>,
        /// What it must not say.
        others: Vec<String>,
        /// Numbers that a good answer may hold.
        allowed: Vec<i64>,
    },
    /// One of two.
    Choice {
        /// Ways to name the right one.
        right: Vec<String>,
        /// Ways to name the wrong one.
        wrong: Vec<String>,
        /// Numbers that a good answer may hold.
        allowed: Vec<i64>,
    },
    /// That there is nothing.
    Nothing {
        /// What it must not say.
        others: Vec<String>,
        /// What there is nothing of: `data` or `alerts`.
        of: String,
    },
}
