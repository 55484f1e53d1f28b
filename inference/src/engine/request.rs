//! What a caller asks of the engine, and what it hears back.

use super::EngineError;

/// One sequence to continue. `n > 1` answers to one prompt are `n` requests; they share the prompt's computation.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// The prompt, at least one token and fewer than the engine's `max_model_len`.
    pub prompt_token_ids: Vec<u32>,
    /// Name of a loaded adapter; `None` is the base model.
    pub adapter: Option<String>,
    /// How the next token is chosen and when to stop.
    pub sampling: SamplingParams,
}

/// How tokens are drawn and when a sequence ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before drawing; 0 takes the likeliest token.
    pub temperature: f64,
    /// Draw among the likeliest tokens whose probabilities first sum to this; 1 is off.
    pub top_p: f64,
    /// Draw among this many likeliest tokens; 0 is off.
    pub top_k: usize,
    /// Makes the draws repeatable, whatever else is in the batch; `None` seeds from the system.
    pub seed: Option<u64>,
    /// At most this many tokens are sampled; fewer where the model's length ends first.
    pub max_tokens: usize,
    /// Sampling one of these ends the sequence; the token is reported like any other.
    pub stop_token_ids: Vec<u32>,
    /// Go on past the engine's own end tokens ([`super::EngineConfig::eos_token_ids`]); `stop_token_ids` still end the sequence.
    pub ignore_eos: bool,
    /// How many of the likeliest tokens to report beside each sampled one.
    pub top_logprobs: usize,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            seed: None,
            max_tokens: 16,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            top_logprobs: 0,
        }
    }
}

impl SamplingParams {
    /// Refuses values that no draw can be made with.
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let refuse = |parameter, message| Err(EngineError::InvalidSampling { parameter, message });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("temperature", "must be a finite number of at least 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", "must be above 0 and at most 1");
        }
        if self.max_tokens == 0 {
            return refuse("max_tokens", "must be at least 1");
        }
        Ok(())
    }
}

/// What a request's receiver gets: tokens, then exactly one `Finished` or `Error`. A receiver that closes without either
/// means that the engine was shut down.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerateEvent {
    /// The next token.
    Token(SampledToken),
    /// The sequence ended; nothing follows.
    Finished(FinishReason),
    /// The sequence failed; nothing follows. A sentence for a person.
    Error(String),
}

/// A token and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token_id: u32,
    /// Natural log of its probability under the model: log-softmax of the raw logits, before temperature, top_k and top_p.
    pub logprob: f32,
    /// The likeliest tokens with their logprobs, likeliest first; as many as were asked for.
    pub top_logprobs: Vec<(u32, f32)>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop or end token was sampled; it is the last token reported.
    Stop,
    /// `max_tokens` or the model's length was reached.
    Length,
    /// The engine was shut down.
    Abort,
}
