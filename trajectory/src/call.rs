//! A model call: one request of the agent and its response. A tool call: one request to a tool server and its result.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{CallId, EpisodeId, PolicyVersion, ToolCallId};
use crate::names::named_enum;

named_enum! {
    /// The API that the agent used.
    pub enum Endpoint {
        /// `POST /v1/chat/completions`
        ChatCompletions = "chat_completions",
        /// `POST /v1/completions`
        Completions = "completions",
        /// `POST /v1/responses`
        Responses = "responses",
        /// `POST /v1/messages`
        Messages = "messages",
    }
}

named_enum! {
    /// How a call ended.
    pub enum CallStatus {
        /// The answer came to its end.
        Complete = "complete",
        /// The agent hung up; what had come until then is recorded.
        Aborted = "aborted",
        /// The upstream refused, broke off or wasn't there.
        Failed = "failed",
    }
}

/// One choice of an answer, as the server sampled it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledChoice {
    /// The choice's number in the answer; 0 but for `n > 1`.
    pub index: u32,
    /// Sampled ids in order, with the end-of-turn token where it was sampled.
    pub token_ids: Vec<u32>,
    /// Natural logarithm of each id's probability under the policy that sampled it, before temperature. As long as
    /// `token_ids`; empty where the server gave none.
    pub behaviour_logprobs: Vec<f32>,
    /// The server's word: `stop`, `length`, `tool_calls`, …
    pub finish_reason: Option<String>,
}

/// When a call came and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimings {
    /// Arrival of the request, in milliseconds since 1970 UTC.
    pub received_at_ms: i64,
    /// From arrival to the first byte of the answer, in milliseconds; `None` where none came.
    pub first_token_ms: Option<u64>,
    /// From arrival to the end, in milliseconds.
    pub total_ms: u64,
}

/// Token counts as the server reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
}

/// One request to a model and its response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// Name of the call; the agent sees it as `x-trainyard-call`.
    pub id: CallId,
    /// The episode that it belongs to.
    pub episode_id: EpisodeId,
    /// Place among the episode's calls in the order they ended, from 1. The store assigns it.
    #[serde(default)]
    pub sequence: u32,
    /// The API that the agent used.
    pub endpoint: Endpoint,
    /// The model's name as the agent gave it.
    #[serde(default)]
    pub model: String,
    /// The name that the call was sent upstream with.
    #[serde(default)]
    pub upstream_model: String,
    /// The request's body as the agent sent it.
    #[serde(default)]
    pub request: Value,
    /// The response's body, assembled where it was streamed; `None` where none came.
    #[serde(default)]
    pub response: Option<Value>,
    /// The prompt's ids as the server read them; `None` where it gave none.
    #[serde(default)]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// What was sampled; empty where the server gave no ids.
    #[serde(default)]
    pub choices: Vec<SampledChoice>,
    /// The policy version that sampled; `None` where it wasn't the policy.
    #[serde(default)]
    pub policy_version: Option<PolicyVersion>,
    /// Sampling parameters as sent upstream.
    #[serde(default)]
    pub sampling: Value,
    /// A grammar restricted what could be sampled, so the behaviour logprobs aren't those of free sampling.
    #[serde(default)]
    pub grammar_constrained: bool,
    /// How it ended.
    pub status: CallStatus,
    /// The upstream's HTTP status; `None` where it didn't answer.
    #[serde(default)]
    pub upstream_status: Option<u16>,
    /// What went wrong, for people.
    #[serde(default)]
    pub error: Option<String>,
    /// Token counts.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Times.
    #[serde(default)]
    pub timings: CallTimings,
}

/// One call of an MCP tool and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Name of the call.
    pub id: ToolCallId,
    /// The episode that it belongs to.
    pub episode_id: EpisodeId,
    /// Place among the episode's tool calls in the order they ended, from 1. The store assigns it.
    #[serde(default)]
    pub sequence: u32,
    /// The tool server, by its name in the configuration.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// Arguments as the agent sent them.
    pub arguments: Value,
    /// The MCP `CallToolResult`; `None` where none came.
    pub result: Option<Value>,
    /// The tool said that it failed, or there was no result.
    pub is_error: bool,
    /// Why there was no result, for people.
    pub error: Option<String>,
    /// Start, in milliseconds since 1970 UTC.
    pub started_at_ms: i64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
}
