//! One question with its hidden data, and the JSON lines file that holds many.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trajectory::Split;

use crate::error::EnvironmentError;

/// A task instance: what the agent is asked, and what only the verifier knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Unique in its file; appears in records and tables.
    pub id: String,
    /// The kind of question, by which tables are broken down.
    pub kind: String,
    /// The whole input of the agent.
    pub prompt: String,
    /// Hidden: what the verifier needs. Its form belongs to the environment.
    #[serde(default)]
    pub data: Value,
    /// Trained on, or only evaluated.
    pub split: Split,
}

/// Reads a JSON lines file of scenarios. Blank lines are skipped; a bad line is named by file, line and problem.
pub fn load_scenarios(
    path: &Path,
    check: impl Fn(&Scenario) -> Result<(), String>,
) -> Result<Vec<Scenario>, EnvironmentError> {
    let text = fs::read_to_string(path).map_err(|source| EnvironmentError::ReadScenarios {
        path: path.to_owned(),
        source,
    })?;
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut line_of_id: HashMap<String, usize> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let bad = |problem: String| EnvironmentError::BadScenario {
            path: path.to_owned(),
            line: index + 1,
            problem,
        };
        let scenario = parse(line).map_err(bad)?;
        check(&scenario).map_err(bad)?;
        if let Some(first) = line_of_id.insert(scenario.id.clone(), index + 1) {
            return Err(bad(format!("id `{}` was used on line {first} already", scenario.id)));
        }
        scenarios.push(scenario);
    }
    if scenarios.is_empty() {
        return Err(EnvironmentError::NoScenarios { path: path.to_owned() });
    }
    Ok(scenarios)
}

/// Writes scenarios as JSON lines, the form that [`load_scenarios`] reads.
pub fn save_scenarios(path: &Path, scenarios: &[Scenario]) -> Result<(), EnvironmentError> {
    let mut text = String::new();
    for scenario in scenarios {
        // A scenario holds strings and JSON only, so writing it to a string cannot fail.
        text.push_str(&serde_json::to_string(scenario).unwrap_or_default());
        text.push('\n');
    }
    fs::write(path, text).map_err(|source| EnvironmentError::WriteScenarios {
        path: path.to_owned(),
        source,
    })
}

fn parse(line: &str) -> Result<Scenario, String> {
    let scenario: Scenario = serde_json::from_str(line).map_err(|error| error.to_string())?;
    for (name, value) in [
        ("id", &scenario.id),
        ("kind", &scenario.kind),
        ("prompt", &scenario.prompt),
    ] {
        if value.trim().is_empty() {
            return Err(format!("`{name}` is empty"));
        }
    }
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Vec<Scenario>, EnvironmentError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenarios.jsonl");
        fs::write(&path, text).unwrap();
        load_scenarios(&path, |_| Ok(()))
    }

    const GOOD: &str = r#"{"id":"a","kind":"k","prompt":"p","data":{"x":1},"split":"train"}"#;

    #[test]
    fn saved_scenarios_load_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scenarios.jsonl");
        let scenarios = load(&format!("{GOOD}\n\n")).unwrap();
        save_scenarios(&path, &scenarios).unwrap();
        assert_eq!(load_scenarios(&path, |_| Ok(())).unwrap(), scenarios);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (second, expected) in [
            ("{", "EOF"),
            (
                r#"{"id":"b","kind":"k","prompt":"p","split":"test"}"#,
                "unknown variant `test`",
            ),
            (
                r#"{"id":"b","kind":"k","prompt":" ","split":"train"}"#,
                "`prompt` is empty",
            ),
            (
                r#"{"id":"b","kind":"k","prompt":"p","split":"train","extra":1}"#,
                "unknown field `extra`",
            ),
            (GOOD, "id `a` was used on line 1 already"),
        ] {
            let message = load(&format!("{GOOD}\n{second}\n")).unwrap_err().to_string();
            assert!(
                message.contains("scenarios.jsonl:2: ") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn an_empty_or_missing_file_is_refused() {
        assert!(load("\n").unwrap_err().to_string().contains("holds no scenario"));
        let message = load_scenarios(Path::new("no/such/file.jsonl"), |_| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(message.contains("no/such/file.jsonl"), "{message}");
    }
}
