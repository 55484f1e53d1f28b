//! Reading and checking a configuration file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{RunConfig, TrainerSection};
use crate::failure::UsageError;
use crate::suggestion::suggestion;
use crate::toml_file;

impl RunConfig {
    /// Reads and checks a file. `{config_dir}` is resolved here; relative paths are relative to the file's folder,
    /// but for `run.output`, which is relative to the working directory.
    ///
    /// # Errors
    /// A usage error that names the file, the line and the key.
    pub(crate) fn load(path: &Path) -> Result<Self, UsageError> {
        Self::load_with(path, &[])
    }

    /// The same, with settings of the command line (`section.key=value`) in place of the file's.
    pub(crate) fn load_with(path: &Path, settings: &[String]) -> Result<Self, UsageError> {
        let text = toml_file::read(path)?;
        let mut config: Self = toml_file::parse(path, &text)?;
        if !settings.is_empty() {
            config = with_settings(toml_file::parse(path, &text)?, settings)?;
        }
        let folder = toml_file::folder(path)?;
        config.resolve(&folder);
        config
            .validate()
            .map_err(|error| error.context(format!("in {}", path.display())))?;
        Ok(config)
    }

    fn resolve(&mut self, folder: &Path) {
        let text = folder.to_string_lossy().into_owned();
        let expand = |value: &mut String| *value = value.replace("{config_dir}", &text);
        self.agent.command.iter_mut().for_each(expand);
        self.agent.env.values_mut().for_each(expand);
        for server in &mut self.mcp_servers {
            server.command.iter_mut().for_each(expand);
            server.env.values_mut().for_each(expand);
        }
        let absolute = |path: &mut PathBuf| {
            *path = folder.join(path.to_string_lossy().replace("{config_dir}", &text));
        };
        absolute(&mut self.model.path);
        if let Some(path) = &mut self.environment.scenarios {
            absolute(path);
        }
    }

    fn validate(&self) -> Result<(), UsageError> {
        let positive = |name: &str, value: f64| {
            (value > 0.0 && value.is_finite())
                .then_some(())
                .ok_or_else(|| UsageError::new(format!("{name} is {value}; it must be above 0")))
        };
        positive("engine.max_batch_tokens", self.engine.max_batch_tokens as f64)?;
        positive("engine.max_sequences", self.engine.max_sequences as f64)?;
        positive("engine.kv_cache_tokens", self.engine.kv_cache_tokens as f64)?;
        positive("engine.max_model_len", self.engine.max_model_len as f64)?;
        positive("rollout.concurrency", self.rollout.concurrency as f64)?;
        positive("rollout.max_tokens", f64::from(self.rollout.max_tokens))?;
        positive("rollout.temperature", self.rollout.temperature)?;
        if let Some(temperature) = self.rollout.exploration_temperature {
            positive("rollout.exploration_temperature", temperature)?;
        }
        positive("agent.time_limit_seconds", self.agent.time_limit_seconds)?;
        positive("warm_start.learning_rate", self.warm_start.learning_rate)?;
        positive(
            "warm_start.demonstrations_per_step",
            self.warm_start.demonstrations_per_step as f64,
        )?;
        positive("trainer.learning_rate", self.trainer.learning_rate)?;
        positive("trainer.groups_per_step", self.trainer.groups_per_step as f64)?;
        positive("trainer.rank", self.trainer.rank as f64)?;
        positive("trainer.alpha", self.trainer.alpha)?;
        positive("trainer.updates_per_batch", self.trainer.updates_per_batch as f64)?;
        positive("trainer.epochs_per_batch", self.trainer.epochs_per_batch as f64)?;
        positive("trainer.micro_batch_tokens", self.trainer.micro_batch_tokens as f64)?;
        if self.trainer.group_size < 2 {
            return Err(UsageError::new(format!(
                "trainer.group_size is {}; episodes are compared within a group, so it must be at least 2",
                self.trainer.group_size
            )));
        }
        if self.agent.command.is_empty() {
            return Err(UsageError::new(
                "agent.command is empty; give the command that starts your agent",
            ));
        }
        if let Some(server) = self.mcp_servers.iter().find(|server| server.command.is_empty()) {
            return Err(UsageError::new(format!(
                "the command of mcp server '{}' is empty",
                server.name
            )));
        }
        self.validate_ranges()?;
        if self.environment.name != "nws" {
            return Err(
                UsageError::new(format!("there is no environment '{}'", self.environment.name))
                    .hint("the built-in environment is 'nws'"),
            );
        }
        if !matches!(self.model.dtype.as_str(), "float32" | "bfloat16") {
            return Err(UsageError::new(format!(
                "model.dtype is '{}'; use float32 or bfloat16",
                self.model.dtype
            )));
        }
        if std::fs::metadata(&self.model.path).is_err() {
            return Err(
                UsageError::new(format!("there is no model at {}", self.model.path.display())).hint(
                    "set model.path to a Hugging Face folder or a GGUF file; `make demo` fetches the demo's model",
                ),
            );
        }
        Ok(())
    }

    fn validate_ranges(&self) -> Result<(), UsageError> {
        let listen = &self.proxy.listen;
        let host = listen
            .rsplit_once(':')
            .map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
        let is_loopback = host.is_some_and(|host| {
            host == "localhost"
                || host
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|address| address.is_loopback())
        });
        if !is_loopback {
            return Err(UsageError::new(format!(
                "proxy.listen is '{listen}'; it must be HOST:PORT on this machine"
            ))
            .hint("use \"127.0.0.1:0\"; `trainyard proxy --token` is for agents on other machines"));
        }
        let floor = self.selection.floor;
        if !(0.0..=1.0).contains(&floor) {
            return Err(UsageError::new(format!(
                "selection.floor is {floor}; it must be from 0 to 1"
            )));
        }
        let limit = self.run.time_limit_minutes;
        if !(limit >= 0.0 && limit.is_finite()) {
            return Err(UsageError::new(format!(
                "run.time_limit_minutes is {limit}; it must be 0 (none) or above"
            )));
        }
        if self.trainer.max_failed >= self.trainer.group_size {
            return Err(UsageError::new(format!(
                "trainer.max_failed is {}; it must be below trainer.group_size, {}",
                self.trainer.max_failed, self.trainer.group_size
            )));
        }
        Ok(())
    }
}

/// A table with settings of the command line put in.
fn with_settings<T: DeserializeOwned>(mut table: toml::Table, settings: &[String]) -> Result<T, UsageError> {
    for setting in settings {
        set(&mut table, setting)?;
    }
    table.try_into().map_err(|source: toml::de::Error| {
        let error = UsageError::new(format!("--set {}: {}", settings.join(" --set "), source.message()));
        match suggestion(source.message()) {
            Some(hint) => error.hint(hint),
            None => error,
        }
    })
}

/// Puts `section.key=value` into a configuration; a value that is no TOML is taken as a string.
fn set(table: &mut toml::Table, setting: &str) -> Result<(), UsageError> {
    let wrong = || UsageError::new(format!("--set {setting} is not of the form SECTION.KEY=VALUE"));
    let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
    let (section, key) = key.split_once('.').ok_or_else(wrong)?;
    let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
    section.as_table_mut().ok_or_else(wrong)?.insert(key.to_owned(), value);
    Ok(())
}

impl TrainerSection {
    /// The defaults with settings of the command line (`trainer.key=value`), where there is no file.
    pub(crate) fn from_settings(settings: &[String]) -> Result<Self, UsageError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Sections {
            #[serde(default)]
            trainer: TrainerSection,
        }
        Ok(with_settings::<Sections>(toml::Table::new(), settings)?.trainer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> UsageError {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        RunConfig::load(&path).unwrap_err()
    }

    const REST: &str = "[model]\npath = \"nowhere\"\n[environment]\nname = \"nws\"\n[agent]\ncommand = [\"a\"]\n";

    #[test]
    fn unknown_key_is_named_with_its_line() {
        let message = check(&format!("{REST}[trainer]\nlerning_rate = 1\n")).to_string();
        assert!(
            message.contains("line 8") && message.contains("lerning_rate"),
            "{message}"
        );
        assert!(
            message.contains("learning_rate"),
            "the known keys are listed: {message}"
        );
    }

    #[test]
    fn a_missing_model_is_named() {
        let message = check(REST).to_string();
        assert!(
            message.contains("there is no model at") && message.contains("nowhere"),
            "{message}"
        );
    }

    #[test]
    fn a_group_of_one_is_refused() {
        let message = check(&format!("{REST}[trainer]\ngroup_size = 1\n")).to_string();
        assert!(message.contains("group_size"), "{message}");
    }

    #[test]
    fn the_nearest_key_is_suggested() {
        let error = check(&format!("{REST}[trainer]\nlerning_rate = 1\n"));
        assert_eq!(error.advice(), Some("did you mean `learning_rate`?"));
        let error = check(&format!("{REST}[trianer]\n"));
        assert_eq!(error.advice(), Some("did you mean `trainer`?"));
    }

    #[test]
    fn an_address_that_others_can_reach_is_refused() {
        for listen in ["0.0.0.0:80", "8080", "example.org:80"] {
            let message = check(&format!("{REST}[proxy]\nlisten = \"{listen}\"\n")).to_string();
            assert!(
                message.contains("proxy.listen") && message.contains(listen),
                "{message}"
            );
        }
    }

    #[test]
    fn the_examples_are_valid_but_for_their_model() {
        for text in [
            include_str!("../../../examples/nws/trainyard.toml"),
            include_str!("../../../examples/nws/trainyard-full.toml"),
        ] {
            let mut config: RunConfig = toml::from_str(text).unwrap();
            config.model.path = std::env::current_exe().unwrap();
            config.validate().unwrap();
        }
    }

    #[test]
    fn settings_take_the_place_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, REST.replace("nowhere", "run.toml")).unwrap();
        let set = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
            RunConfig::load_with(&path, &settings)
        };
        let config = set(&["trainer.rank=4", "run.name=mine"]).unwrap();
        assert_eq!((config.trainer.rank, config.run.name.as_str()), (4, "mine"));
        assert!(set(&["trainer.rnak=4"]).unwrap_err().to_string().contains("rnak"));
        assert!(set(&["rank"]).unwrap_err().to_string().contains("SECTION.KEY=VALUE"));
    }

    #[test]
    fn a_group_is_spread_up_to_the_exploration_temperature() {
        let mut rollout = crate::config::RolloutSection {
            temperature: 0.5,
            ..Default::default()
        };
        let of_group =
            |rollout: &crate::config::RolloutSection| [0, 1, 2].map(|member| rollout.temperature_of(member, 3));
        assert_eq!(of_group(&rollout), [0.5; 3]);
        rollout.exploration_temperature = Some(1.5);
        assert_eq!(of_group(&rollout), [0.5, 1.0, 1.5]);
        assert_eq!(rollout.temperature_of(0, 1), 0.5);
        let error = check(&format!("{REST}[rollout]\nexploration_temperature = 0\n"));
        assert!(error.to_string().contains("rollout.exploration_temperature"), "{error}");
    }
}
