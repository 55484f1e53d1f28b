//! The seam between the rollout driver and a set of questions.

use trajectory::ToolCall;

use crate::error::EnvironmentError;
use crate::reward::Reward;
use crate::scenario::Scenario;

/// What a reward may look at: facts of the record, nothing that the agent could claim about itself.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeView<'a> {
    /// The assistant text of the last complete model call; where no call has any, what the agent printed; `None` when it
    /// never answered.
    pub answer: Option<&'a str>,
    /// Every recorded tool call, in order.
    pub tool_calls: &'a [ToolCall],
    /// How often the agent called the model.
    pub n_model_calls: usize,
}

/// Scenarios and their reward. The tool server belongs to it, but is reached through the proxy's MCP gateway.
pub trait Environment: Send + Sync {
    /// The name used in configurations and on the command line.
    fn name(&self) -> &str;

    /// All scenarios, of both splits, in a stable order.
    fn scenarios(&self) -> Result<Vec<Scenario>, EnvironmentError>;

    /// The reward of one finished episode. Deterministic, and free of I/O.
    fn score(&self, scenario: &Scenario, episode: &EpisodeView<'_>) -> Reward;
}
