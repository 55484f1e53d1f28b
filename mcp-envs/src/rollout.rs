//! The rollout driver: runs an unmodified agent on scenarios, rewards each episode, and keeps failures where they belong.
//!
//! It talks to the proxy only over its control routes, as a runner in any language would: open an episode, run the
//! agent, read what was recorded, score it, close the episode. An episode that fails is closed with one named cause;
//! the others go on.

mod classify;
mod plan;
mod score;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use trajectory::{CloseEpisode, EpisodeId, EpisodeRecord, Failure, FailureCause, ScenarioId};

pub use plan::{EpisodeOutcome, EpisodePlan};
use score::score;

use crate::agent::{AgentConfig, AgentEnd, AgentError, AgentInput, AgentReport, AgentRunner};
use crate::control::{ControlClient, ControlError, OpenEpisode, OpenedEpisode};
use crate::environment::Environment;
use crate::reward::Reward;
use crate::scenario::Scenario;

/// How long a cancelled run tries to close its episodes.
const CANCELLED_CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// What a rollout driver needs.
#[derive(Clone, Debug)]
pub struct RolloutConfig {
    /// `http://host:port` of the proxy.
    pub proxy_url: String,
    /// Its control token, where it demands one.
    pub token: Option<String>,
    /// The agent.
    pub agent: AgentConfig,
    /// Episodes at once.
    pub concurrency: usize,
}

/// Why a driver could not be made, or its agent not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The agent's command.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The proxy's address.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Runs episodes of one agent against one proxy.
pub struct RolloutDriver {
    control: ControlClient,
    agent: AgentRunner,
    concurrency: usize,
}

impl RolloutDriver {
    /// Checks the configuration; starts nothing.
    pub fn new(config: RolloutConfig) -> Result<Self, RolloutError> {
        Ok(Self {
            control: ControlClient::new(&config.proxy_url, config.token)?,
            agent: AgentRunner::new(config.agent)?,
            concurrency: config.concurrency.max(1),
        })
    }

    /// Starts the fork launcher's server, so that its imports overlap with other work and its errors come early.
    pub async fn prepare(&self) -> Result<(), RolloutError> {
        Ok(self.agent.prepare().await?)
    }

    /// Runs all plans, at most `concurrency` at once, and returns their outcomes in the order of the plans. `on_done`
    /// hears of each as it ends. After `cancel`, running agents are ended with all they started, open episodes are closed
    /// without a reward, and the rest is not started.
    pub async fn run(
        &self,
        plans: Vec<EpisodePlan>,
        environment: Arc<dyn Environment>,
        on_done: impl Fn(&EpisodeOutcome) + Send + Sync,
        cancel: CancellationToken,
    ) -> Vec<EpisodeOutcome> {
        let episodes = plans.into_iter().enumerate().map(|(position, plan)| {
            let (environment, cancel) = (Arc::clone(&environment), cancel.clone());
            async move { self.episode(position, plan, environment, &cancel).await }
        });
        let mut running = stream::iter(episodes).buffer_unordered(self.concurrency);
        let mut outcomes = Vec::new();
        while let Some(outcome) = running.next().await {
            on_done(&outcome);
            outcomes.push(outcome);
        }
        outcomes.sort_by_key(|outcome| outcome.plan);
        outcomes
    }

    async fn episode(
        &self,
        position: usize,
        plan: EpisodePlan,
        environment: Arc<dyn Environment>,
        cancel: &CancellationToken,
    ) -> EpisodeOutcome {
        let started = Instant::now();
        let mut outcome = EpisodeOutcome {
            plan: position,
            scenario_id: plan.scenario.id.clone(),
            kind: plan.scenario.kind.clone(),
            episode_id: None,
            reward: None,
            metrics: Map::new(),
            failure: None,
            cancelled: cancel.is_cancelled(),
        };
        if outcome.cancelled {
            return outcome;
        }
        match self.control.open_episode(&self.open_request(&plan)).await {
            Err(error) => outcome.failure = Some(proxy_failure(&error)),
            Ok(opened) => {
                outcome.episode_id = Some(opened.id.clone());
                let ending = self.play(&opened, &plan.scenario, environment, cancel).await;
                self.finish(&opened.id, ending, started, &mut outcome).await;
            }
        }
        outcome
    }

    fn open_request(&self, plan: &EpisodePlan) -> OpenEpisode {
        OpenEpisode {
            scenario: Some(ScenarioId::from(plan.scenario.id.clone())),
            group: plan.group.clone(),
            split: Some(plan.split),
            metadata: Map::from_iter([("kind".to_owned(), json!(plan.scenario.kind))]),
            overrides: plan.overrides.clone(),
            upstream: plan.upstream.clone(),
            agent_command: Some(self.agent.config().command.join(" ")),
        }
    }

    /// Runs the agent on an open episode and judges what came of it.
    async fn play(
        &self,
        opened: &OpenedEpisode,
        scenario: &Scenario,
        environment: Arc<dyn Environment>,
        cancel: &CancellationToken,
    ) -> Ending {
        let report = match self.run_agent(opened, scenario, cancel).await {
            Ok(report) => report,
            Err(failure) => return Ending::failed(failure),
        };
        if report.end == AgentEnd::Cancelled {
            return Ending {
                stop_reason: "cancelled",
                ..Ending::default()
            };
        }
        let record = match self.control.episode(&opened.id).await {
            Ok(record) => record,
            Err(error) => return Ending::failed(proxy_failure(&error)),
        };
        let mut ending = Ending {
            stop_reason: stop_reason(&report.end),
            ..Ending::default()
        };
        ending.count(&record);
        match classify::failure(&report, &record, self.agent.config()) {
            Some(failure) => ending.failure = Some(failure),
            None => match score(environment, scenario.clone(), record, report.stdout).await {
                Ok(reward) => ending.reward = Some(reward),
                Err(failure) => ending.failure = Some(failure),
            },
        }
        ending
    }

    async fn run_agent(
        &self,
        opened: &OpenedEpisode,
        scenario: &Scenario,
        cancel: &CancellationToken,
    ) -> Result<AgentReport, Failure> {
        let mcp_config = self
            .control
            .mcp_config(opened)
            .await
            .map_err(|error| proxy_failure(&error))?;
        let input = AgentInput {
            base_url: opened.base_url.clone(),
            api_key: opened.api_key.clone(),
            mcp_config,
            prompt: scenario.prompt.clone(),
            // Field by field: the hidden data stays here.
            scenario: json!({"id": scenario.id, "kind": scenario.kind, "prompt": scenario.prompt}).to_string(),
        };
        let report = self.agent.run(&input, cancel).await;
        report.map_err(|error| Failure {
            cause: FailureCause::Agent,
            message: chain(&error),
        })
    }

    /// Closes the episode and writes its ending into the outcome.
    async fn finish(&self, id: &EpisodeId, ending: Ending, started: Instant, outcome: &mut EpisodeOutcome) {
        let Ending {
            stop_reason,
            reward,
            mut metrics,
            failure,
        } = ending;
        metrics.insert("seconds".to_owned(), json!(started.elapsed().as_secs_f64()));
        let reward = reward.map(
            |Reward {
                 reward,
                 metrics: rewarded,
             }| {
                metrics.extend(rewarded);
                reward
            },
        );
        let close = CloseEpisode {
            stop_reason: Some(stop_reason.to_owned()),
            failure,
            reward,
            metrics,
        };
        outcome.cancelled = stop_reason == "cancelled";
        let closing = self.control.close_episode(id, &close);
        let closed = if outcome.cancelled {
            // The proxy may be on its way out too.
            tokio::time::timeout(CANCELLED_CLOSE_LIMIT, closing).await.ok()
        } else {
            Some(closing.await)
        };
        match closed {
            _ if outcome.cancelled => {}
            Some(Ok(episode)) if episode.failure.is_some() => outcome.failure = episode.failure,
            Some(Ok(_)) | None => outcome.reward = close.reward,
            Some(Err(error)) => outcome.failure = Some(proxy_failure(&error)),
        }
        outcome.metrics = close.metrics;
        if let Some(failure) = &outcome.failure {
            tracing::warn!(episode = %id, cause = ?failure.cause, message = failure.message, "episode failed");
        }
    }
}

/// What `play` found.
#[derive(Default)]
struct Ending {
    stop_reason: &'static str,
    reward: Option<Reward>,
    metrics: Map<String, Value>,
    failure: Option<Failure>,
}

impl Ending {
    fn failed(failure: Failure) -> Self {
        Self {
            stop_reason: "failed",
            failure: Some(failure),
            ..Self::default()
        }
    }

    fn count(&mut self, record: &EpisodeRecord) {
        self.metrics
            .insert("n_model_calls".to_owned(), json!(record.calls.len()));
        self.metrics
            .insert("n_tool_calls".to_owned(), json!(record.tool_calls.len()));
    }
}

fn stop_reason(end: &AgentEnd) -> &'static str {
    match end {
        AgentEnd::Exited(_) => "agent_exit",
        AgentEnd::TimedOut => "time_limit",
        AgentEnd::TooMuchOutput => "output_limit",
        AgentEnd::Cancelled => "cancelled",
    }
}

fn proxy_failure(error: &ControlError) -> Failure {
    Failure {
        cause: FailureCause::Proxy,
        message: chain(error),
    }
}

/// An error with its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
