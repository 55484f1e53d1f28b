//! From chat messages to token ids, and from sampled ids back to messages.
//!
//! In the order data meets them:
//! - [`messages`]: the agent's JSON messages, checked and brought into one form;
//! - [`hermes`]: the tool form that the engine brings where the model's template has none;
//! - [`template`]: the model's own chat template, rendered as `transformers` renders it;
//! - [`prompt`]: rendered text in which control tokens and look-alike text stay apart;
//! - [`tokenizer`]: text ↔ ids, and the whole path in [`ChatTokenizer::render`];
//! - [`prompt_memory`]: the ids behind a text that was read or sampled before, so that prompts only grow;
//! - [`detokenizer`]: ids → text as they are sampled, never half a character;
//! - [`tool_calls`]: sampled text → content and tool calls.

pub mod detokenizer;
pub mod error;
pub mod hermes;
mod json_text;
pub mod messages;
pub mod prompt;
pub mod prompt_memory;
mod recorded;
mod source;
pub mod template;
pub mod tokenizer;
pub mod tool_calls;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod smollm_tests;
#[cfg(test)]
mod tests;

pub use detokenizer::Detokenizer;
pub use error::ChatError;
pub use prompt::Prompt;
pub use prompt_memory::PromptMemory;
pub use tokenizer::{ChatTokenizer, Rendered, SamplingDefaults};
pub use tool_calls::{ParsedAnswer, ParserEvent, ToolCall, ToolCallParser};
