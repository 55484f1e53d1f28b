//! A stand-in and a tool server in the test's process, and episodes played against them.

use rmcp::model::{CallToolResult, JsonObject};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use trajectory::{EpisodeId, ToolCall, ToolCallId};

use super::NwsEnvironment;
use super::client::{ClientConfig, NwsClient};
use super::server::NwsServer;
use super::stand_in::{Faults, StandIn};
use super::teacher::{Move, Teacher};
use crate::environment::{Environment, EpisodeView};
use crate::reward::Reward;
use crate::scenario::Scenario;

pub(crate) const SEED: u64 = 7;

pub(crate) struct World {
    pub(crate) stand_in: StandIn,
    pub(crate) server: NwsServer,
    pub(crate) environment: NwsEnvironment,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_seed(SEED).await
    }

    pub(crate) async fn with_seed(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stand_in = StandIn::start(listener, seed, Faults::none()).unwrap();
        let client = NwsClient::new(ClientConfig::new(stand_in.url())).unwrap();
        Self {
            stand_in,
            server: NwsServer::new(client),
            environment: NwsEnvironment::new(seed),
        }
    }

    /// Calls a tool and records it the way the proxy does.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> ToolCall {
        let object: JsonObject = arguments.as_object().cloned().unwrap_or_default();
        let result = self.server.call(tool, object).await.unwrap();
        recorded(tool, arguments, &result)
    }

    /// Plays the teacher to its answer.
    pub(crate) async fn taught(&self, teacher: &Teacher, scenario: &Scenario) -> (Vec<ToolCall>, String) {
        let tools = NwsServer::openai_tools();
        let mut messages = vec![json!({ "role": "user", "content": scenario.prompt })];
        let mut calls = Vec::new();
        for _ in 0..4 {
            match teacher.next(&messages, &tools).unwrap() {
                Move::Answer(answer) => return (calls, answer),
                Move::Call { tool, arguments } => {
                    let call = self.call(&tool, arguments).await;
                    messages.push(json!({ "role": "assistant", "tool_calls": [] }));
                    messages.push(json!({ "role": "tool", "content": text(&call) }));
                    calls.push(call);
                }
            }
        }
        panic!("the teacher does not come to an answer for {}", scenario.id);
    }

    pub(crate) fn score(&self, scenario: &Scenario, tool_calls: &[ToolCall], answer: &str) -> Reward {
        let episode = EpisodeView {
            answer: Some(answer),
            tool_calls,
            n_model_calls: tool_calls.len() + 1,
        };
        self.environment.score(scenario, &episode)
    }
}

pub(crate) fn recorded(tool: &str, arguments: Value, result: &CallToolResult) -> ToolCall {
    ToolCall {
        id: ToolCallId::new(),
        episode_id: EpisodeId::new(),
        sequence: 0,
        server: "nws".to_owned(),
        tool: tool.to_owned(),
        arguments,
        is_error: result.is_error.unwrap_or(false),
        result: Some(serde_json::to_value(result).unwrap()),
        error: None,
        started_at_ms: 0,
        duration_ms: 1,
    }
}

pub(crate) fn text(call: &ToolCall) -> String {
    super::reward::calls::result_text(call)
}
