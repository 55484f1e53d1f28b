//! Everything that a run needs, started in one process: weather service, teacher, engine with its HTTP API, proxy,
//! rollout driver.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use inference::api::{ApiConfig, ApiState};
use inference::chat::ChatTokenizer;
use inference::engine::{EngineConfig, EngineHandle};
use inference::model::{LoadOptions, LoraAdapter, Model};
use inference::server::InferenceServer;
use mcp_envs::agent::{AgentConfig, LauncherKind};
use mcp_envs::environment::Environment;
use mcp_envs::envs::nws::NwsEnvironment;
use mcp_envs::envs::nws::stand_in::{self, Faults};
use mcp_envs::envs::nws::teacher::{self, Teacher};
use mcp_envs::envs::nws::weather::Weather;
use mcp_envs::rollout::{RolloutConfig, RolloutDriver};
use mcp_envs::scenario::Scenario;
use proxy::{McpServerConfig, ProxyConfig, Route, UpstreamConfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trajectory::{Split, Store};

use crate::commands::listen;
use crate::config::{Launcher, RunConfig};
use crate::failure::{UsageError, chain};

/// Name of the upstream that answers the warm start's episodes.
pub(crate) const TEACHER: &str = "teacher";

/// Name of the base model at the engine.
const BASE_MODEL: &str = "base";

/// The running parts.
pub(crate) struct World {
    pub(crate) config: RunConfig,
    pub(crate) store: Store,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) tokenizer: Arc<ChatTokenizer>,
    pub(crate) model: Model,
    pub(crate) inference: InferenceServer,
    pub(crate) driver: RolloutDriver,
    pub(crate) proxy_url: String,
    engine: EngineHandle,
    servers: TaskTracker,
    stop: CancellationToken,
}

/// Opens the store of a run or of an evaluation to record to.
///
/// # Errors
/// A usage error if it can't be opened, or another process records to it.
pub(crate) fn open_store(path: &Path) -> Result<Store, UsageError> {
    Store::open_to_record(path).map_err(|error| UsageError::new(chain(&error)))
}

/// The parts that can be wrong in the configuration: loaded before anything is written.
pub(crate) struct Loaded {
    environment: Arc<dyn Environment>,
    scenarios: Vec<Scenario>,
    tokenizer: Arc<ChatTokenizer>,
    model: Model,
}

impl Loaded {
    /// Reads the model and the scenarios.
    ///
    /// # Errors
    /// A usage error if the model can't be read, a scenario file has a bad line, or the trainer's settings make no sense.
    pub(crate) fn load(config: &RunConfig) -> Result<Self, UsageError> {
        let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
        config.trainer.settings(&config.model.path)?;
        let options = LoadOptions::parse(&config.model.device, &config.model.dtype).map_err(|error| usage(&error))?;
        let environment: Arc<dyn Environment> = match &config.environment.scenarios {
            Some(path) => Arc::new(NwsEnvironment::load(path).map_err(|error| usage(&error))?),
            None => Arc::new(NwsEnvironment::new(config.environment.seed)),
        };
        let scenarios = environment.scenarios().map_err(|error| usage(&error))?;
        let tokenizer = ChatTokenizer::load(&config.model.path).map_err(|error| usage(&error))?;
        let model = Model::load(&config.model.path, &options).map_err(|error| usage(&error))?;
        Ok(Self {
            environment,
            scenarios,
            tokenizer: Arc::new(tokenizer),
            model,
        })
    }

    /// Whether there are scenarios of `split`.
    ///
    /// # Errors
    /// A usage error where there is none.
    pub(crate) fn check_split(&self, split: Split) -> Result<(), UsageError> {
        if self.scenarios.iter().any(|scenario| scenario.split == split) {
            return Ok(());
        }
        let name = split.as_str();
        Err(UsageError::new(format!("there is no scenario of the split \"{name}\""))
            .hint("each line of a scenario file names its `split`: \"train\" or \"held_out\""))
    }

    /// Whether `adapter` can be loaded beside the model.
    ///
    /// # Errors
    /// A usage error that says what is wrong with the folder.
    pub(crate) fn check_adapter(&self, adapter: &Path) -> Result<(), UsageError> {
        LoraAdapter::load(adapter, self.model.config(), self.model.device())
            .map(drop)
            .map_err(|error| {
                UsageError::new(chain(&error))
                    .hint("give the folder of a PEFT adapter that was trained from this model")
            })
    }
}

impl World {
    /// Starts every part on a loopback port. `open_store` is called when nothing else can be wrong, so that what it makes
    /// belongs to a run that runs; what it returns beside the store is passed on.
    ///
    /// # Errors
    /// A usage error: a port that is in use, a limit that makes no sense, a tool server or an agent that can't be started;
    /// what `open_store` says.
    pub(crate) async fn start<T>(
        config: RunConfig,
        loaded: Loaded,
        open_store: impl FnOnce(&RunConfig) -> anyhow::Result<(Store, T)>,
    ) -> anyhow::Result<(Self, T)> {
        let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
        let (servers, stop) = (TaskTracker::new(), CancellationToken::new());
        let Loaded {
            environment,
            scenarios,
            tokenizer,
            model,
        } = loaded;
        let proxy_listener = listen(&config.proxy.listen).await?;
        let listener = listen("127.0.0.1:0").await?;
        let weather_url = url(&listener)?;
        let weather = Weather::new(config.environment.seed);
        servers.spawn(until(
            stop.clone(),
            "weather stand-in",
            stand_in::serve(listener, weather, Faults::default(), stop.clone()),
        ));

        let listener = listen("127.0.0.1:0").await?;
        let teacher_url = url(&listener)?;
        servers.spawn(until(
            stop.clone(),
            "teacher",
            teacher::serve(listener, Teacher::new(&scenarios), stop.clone()),
        ));

        let engine = EngineHandle::start(
            model.shallow_clone(),
            EngineConfig {
                max_batch_tokens: config.engine.max_batch_tokens,
                max_sequences: config.engine.max_sequences,
                kv_cache_tokens: config.engine.kv_cache_tokens,
                max_model_len: config.engine.max_model_len,
                ..EngineConfig::default()
            },
        )
        .map_err(|error| usage(&error))?;
        let listener = listen("127.0.0.1:0").await?;
        let engine_url = url(&listener)?;
        let api_config = ApiConfig {
            model_name: BASE_MODEL.to_owned(),
            model_path: config.model.path.clone(),
            max_model_len: engine.config().max_model_len,
            api_key: None,
        };
        let api = ApiState::new(api_config, engine.clone(), Arc::clone(&tokenizer));
        servers.spawn(until(
            stop.clone(),
            "engine API",
            inference::api::serve(listener, api, stop.clone()),
        ));

        let proxy_url = url(&proxy_listener)?;
        let proxy_config = proxy_config(&config, &engine_url, &teacher_url, &weather_url)?;
        proxy_config.validate().map_err(|error| usage(&error))?;
        let driver = RolloutDriver::new(RolloutConfig {
            proxy_url: proxy_url.clone(),
            token: None,
            agent: agent_config(&config),
            concurrency: config.rollout.concurrency,
        })
        .map_err(|error| usage(&error))?;
        let inference = InferenceServer::new(&engine_url, None)?;
        inference.wait_ready(Duration::from_secs(60)).await?;
        driver.prepare().await.map_err(|error| usage(&error))?;

        let (store, opened) = open_store(&config)?;
        servers.spawn(until(
            stop.clone(),
            "proxy",
            proxy::serve(proxy_listener, proxy_config, store.clone(), stop.clone()),
        ));
        let world = Self {
            config,
            store,
            environment,
            scenarios,
            tokenizer,
            model,
            inference,
            driver,
            proxy_url,
            engine,
            servers,
            stop,
        };
        Ok((world, opened))
    }

    /// The scenarios that the policy may learn from.
    pub(crate) fn training_scenarios(&self) -> Vec<Scenario> {
        let training = self.scenarios.iter().filter(|scenario| scenario.split == Split::Train);
        training.cloned().collect()
    }

    /// Ends every part; agents and tool servers are gone when it returns.
    pub(crate) async fn stop(self) {
        let Self {
            driver,
            engine,
            servers,
            stop,
            ..
        } = self;
        stop.cancel();
        drop(driver);
        servers.close();
        if tokio::time::timeout(Duration::from_secs(4), servers.wait())
            .await
            .is_err()
        {
            tracing::warn!("a server did not end within 4 seconds");
        }
        engine.shutdown();
    }
}

fn url(listener: &TcpListener) -> anyhow::Result<String> {
    Ok(format!("http://{}", listener.local_addr()?))
}

/// Runs a server until `stop`; one that ends before that is reported.
async fn until<E: std::fmt::Display>(
    stop: CancellationToken,
    name: &'static str,
    server: impl Future<Output = Result<(), E>>,
) {
    let mut server = std::pin::pin!(server);
    let ended = tokio::select! {
        ended = &mut server => Some(ended),
        () = stop.cancelled() => tokio::time::timeout(Duration::from_secs(3), server).await.ok(),
    };
    match ended {
        Some(Err(error)) => tracing::error!(%error, server = name, "a server ended"),
        Some(Ok(())) if !stop.is_cancelled() => tracing::error!(server = name, "a server ended"),
        _ => {}
    }
}

fn proxy_config(
    config: &RunConfig,
    engine_url: &str,
    teacher_url: &str,
    weather_url: &str,
) -> anyhow::Result<ProxyConfig> {
    let mut policy = UpstreamConfig::new("policy", engine_url);
    policy.policy = true;
    policy.base_model = Some(BASE_MODEL.to_owned());
    let mut proxy = ProxyConfig::new(vec![policy, UpstreamConfig::new(TEACHER, teacher_url)]);
    proxy.routes = vec![Route {
        model: "*".to_owned(),
        upstream: "policy".to_owned(),
    }];
    let executable = std::env::current_exe().context("the path of the running executable")?;
    let expand = |text: &String| {
        text.replace("{trainyard}", &executable.to_string_lossy())
            .replace("{weather_url}", weather_url)
    };
    proxy.mcp_servers = config
        .mcp_servers
        .iter()
        .map(|server| {
            let mut expanded = McpServerConfig::new(server.name.clone(), server.command.iter().map(expand).collect());
            expanded.env = server
                .env
                .iter()
                .map(|(name, value)| (name.clone(), expand(value)))
                .collect::<BTreeMap<_, _>>();
            expanded
        })
        .collect();
    Ok(proxy)
}

fn agent_config(config: &RunConfig) -> AgentConfig {
    let mut agent = AgentConfig::new(config.agent.command.clone());
    agent.env = config.agent.env.clone();
    agent.time_limit = Duration::from_secs_f64(config.agent.time_limit_seconds);
    agent.launcher = match config.agent.launcher {
        Launcher::Plain => LauncherKind::Plain,
        Launcher::Fork => LauncherKind::Fork {
            preload: config.agent.preload.clone(),
        },
    };
    agent
}
