//! What an agent's command and environment hold for one episode.

use std::collections::BTreeMap;
use std::path::Path;

use super::AgentInput;

/// Base URL and key as the OpenAI SDKs read them.
const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";
const OPENAI_API_KEY: &str = "OPENAI_API_KEY";
/// The same for Anthropic's SDKs, which append `/v1` themselves.
const ANTHROPIC_BASE_URL: &str = "ANTHROPIC_BASE_URL";
const ANTHROPIC_API_KEY: &str = "ANTHROPIC_API_KEY";
/// Path of the MCP configuration.
const MCP_CONFIG: &str = "TRAINYARD_MCP_CONFIG";
/// The scenario as JSON: `id`, `kind`, `prompt`.
const SCENARIO: &str = "TRAINYARD_SCENARIO";

/// What every episode's environment begins with: the allowed variables that are set, then the configured ones that name
/// nothing of an episode.
pub(super) fn base(allowed: &[String], configured: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut environment: BTreeMap<String, String> = allowed
        .iter()
        .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)))
        .collect();
    let fixed = configured.iter().filter(|(_, value)| !has_placeholder(value));
    environment.extend(fixed.map(|(name, value)| (name.clone(), value.clone())));
    environment
}

/// Names of the variables that differ from episode to episode.
pub(super) fn episode_variables(configured: &BTreeMap<String, String>) -> Vec<String> {
    let own = [
        OPENAI_BASE_URL,
        OPENAI_API_KEY,
        ANTHROPIC_BASE_URL,
        ANTHROPIC_API_KEY,
        MCP_CONFIG,
        SCENARIO,
    ]
    .map(str::to_owned);
    let filled = configured
        .iter()
        .filter(|(_, value)| has_placeholder(value))
        .map(|(name, _)| name.clone());
    own.into_iter().chain(filled).collect()
}

fn has_placeholder(text: &str) -> bool {
    PLACEHOLDERS.iter().any(|placeholder| text.contains(placeholder))
}

/// Makes the command independent of the directory it runs in: words that name a file under `directory` become absolute.
pub(super) fn resolve_paths(command: &[String], directory: &Path) -> Vec<String> {
    let resolve = |(position, word): (usize, &String)| {
        // The first word without a slash is looked up in PATH, as shells do.
        if word.is_empty() || Path::new(word).is_absolute() || (position == 0 && !word.contains('/')) {
            return word.clone();
        }
        let path = directory.join(word);
        if path.is_file() {
            path.to_string_lossy().into_owned()
        } else {
            word.clone()
        }
    };
    command.iter().enumerate().map(resolve).collect()
}

const PLACEHOLDERS: [&str; 5] = ["{mcp_config}", "{prompt}", "{scenario}", "{base_url}", "{api_key}"];

/// The values of one episode.
pub(super) struct Values<'a> {
    pub(super) input: &'a AgentInput,
    pub(super) mcp_config: &'a Path,
}

impl Values<'_> {
    pub(super) fn fill_command(&self, command: &[String]) -> Vec<String> {
        command.iter().map(|word| self.fill(word)).collect()
    }

    /// The whole environment of the agent. What the configuration sets wins over what the driver sets.
    pub(super) fn environment(
        &self,
        base: &BTreeMap<String, String>,
        configured: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let AgentInput {
            base_url,
            api_key,
            scenario,
            ..
        } = self.input;
        let anthropic_url = base_url.trim_end_matches('/').trim_end_matches("/v1");
        let mut environment = base.clone();
        let own = [
            (OPENAI_BASE_URL, base_url.clone()),
            (OPENAI_API_KEY, api_key.clone()),
            (ANTHROPIC_BASE_URL, anthropic_url.to_owned()),
            (ANTHROPIC_API_KEY, api_key.clone()),
            (MCP_CONFIG, self.mcp_config.to_string_lossy().into_owned()),
            (SCENARIO, scenario.clone()),
        ];
        environment.extend(own.map(|(name, value)| (name.to_owned(), value)));
        environment.extend(configured.iter().map(|(name, value)| (name.clone(), self.fill(value))));
        environment
    }

    /// One pass from left to right, so that a prompt which itself holds `{api_key}` stays as it is.
    fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            filled.push_str(&rest[..start]);
            rest = &rest[start..];
            let placeholder = PLACEHOLDERS.iter().find(|placeholder| rest.starts_with(**placeholder));
            let Some(placeholder) = placeholder else {
                filled.push('{');
                rest = &rest[1..];
                continue;
            };
            match *placeholder {
                "{mcp_config}" => filled.push_str(&self.mcp_config.to_string_lossy()),
                "{prompt}" => filled.push_str(&self.input.prompt),
                "{scenario}" => filled.push_str(&self.input.scenario),
                "{base_url}" => filled.push_str(&self.input.base_url),
                _ => filled.push_str(&self.input.api_key),
            }
            rest = &rest[placeholder.len()..];
        }
        filled.push_str(rest);
        filled
    }
}
