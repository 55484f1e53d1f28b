//! A run that takes seconds: the tiny random model, an agent of the standard library, the weather tools.

use std::path::{Path, PathBuf};

use crate::tiny_model;

/// The folder of a small run's files.
pub struct SmallRun {
    folder: tempfile::TempDir,
}

impl SmallRun {
    /// Writes the model and a configuration into a temporary folder. `changes` are lines `section.key = value`, or
    /// whole sections, that replace or add to the configuration.
    ///
    /// # Panics
    /// If the files can't be written.
    #[expect(clippy::unwrap_used, reason = "a test can't go on without its files")]
    pub fn new(changes: &[(&str, toml::Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        tiny_model::write(&folder.path().join("model"), 3).unwrap();
        let mut config: toml::Table = toml::from_str(CONFIG).unwrap();
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("harness/small_agent.py");
        let command = vec![
            toml::Value::from("python3"),
            toml::Value::from(agent.to_string_lossy().into_owned()),
        ];
        set(&mut config, "agent.command", command.into());
        set(
            &mut config,
            "run.output",
            folder.path().join("runs").to_string_lossy().into_owned().into(),
        );
        for (key, value) in changes {
            set(&mut config, key, value.clone());
        }
        std::fs::write(folder.path().join("run.toml"), toml::to_string(&config).unwrap()).unwrap();
        Self { folder }
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("run.toml")
    }

    /// The folder of everything.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of runs; it doesn't exist before one has started.
    pub fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    /// The one run in it.
    ///
    /// # Panics
    /// If there is none.
    #[expect(clippy::unwrap_used, reason = "a test can't go on without a run")]
    pub fn run_folder(&self) -> PathBuf {
        std::fs::read_dir(self.runs())
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .next()
            .unwrap()
    }
}

fn set(config: &mut toml::Table, key: &str, value: toml::Value) {
    let Some((section, name)) = key.split_once('.') else {
        config.insert(key.to_owned(), value);
        return;
    };
    let table = config.entry(section).or_insert_with(|| toml::Table::new().into());
    if let Some(table) = table.as_table_mut() {
        table.insert(name.to_owned(), value);
    }
}

const CONFIG: &str = r#"
[run]
name = "small"
[model]
path = "model"
[engine]
max_model_len = 6144
kv_cache_tokens = 65536
[environment]
name = "nws"
[[mcp_servers]]
name = "nws"
command = ["{trainyard}", "env", "nws", "--weather-url", "{weather_url}"]
[agent]
command = []
[rollout]
concurrency = 8
max_tokens = 12
[warm_start]
steps = 0
[trainer]
steps = 2
groups_per_step = 2
group_size = 4
max_failed = 2
learning_rate = 1e-3
rank = 4
alpha = 8.0
[selection]
by = "uniform"
[evaluation]
scenarios = 4
"#;
