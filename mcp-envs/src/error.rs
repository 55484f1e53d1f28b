//! What can go wrong in setting up an environment. A bad answer of an agent is data, not an error.

use std::io;
use std::path::PathBuf;

/// Errors of scenarios, stand-ins and tool servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The scenario file could not be read.
    #[error("cannot read scenarios from {path}; check the path in the configuration", path = path.display())]
    ReadScenarios {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The scenario file could not be written.
    #[error("cannot write scenarios to {path}; check that the folder exists and is writable", path = path.display())]
    WriteScenarios {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line of the scenario file is not a scenario.
    #[error("{path}:{line}: {problem}; each line is one JSON object with id, kind, prompt, data and split", path = path.display())]
    BadScenario {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong with it, with the field's path.
        problem: String,
    },
    /// The scenario file has no scenarios.
    #[error("{path} holds no scenario; write at least one line, or leave the path out to generate them", path = path.display())]
    NoScenarios {
        /// The file.
        path: PathBuf,
    },
    /// The base URL of a service is not usable.
    #[error("`{url}` is not a usable base URL: {problem}; write it like https://api.weather.gov")]
    BadUrl {
        /// As given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The HTTP client could not be set up.
    #[error("cannot set up the http client; check the system's certificates")]
    HttpClient(#[source] reqwest::Error),
    /// A local server ended with an error.
    #[error("the {server} server failed; see the cause below")]
    Serve {
        /// Which one.
        server: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The MCP session ended with an error.
    #[error("the MCP session ended early: {problem}; start the server again")]
    McpSession {
        /// The SDK's message.
        problem: String,
    },
}
