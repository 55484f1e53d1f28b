//! What clients may ask for, and what that means for the engine. Fields that aren't listed are ignored; fields that would change
//! the answer and can't be served are refused.

use serde::Deserialize;
use serde_json::Value;

use super::{ApiError, ApiState};
use crate::engine::SamplingParams;

const MAX_CHOICES: usize = 128;
const MAX_TOP_LOGPROBS: i64 = 20;

/// Fields that both kinds of completion have. Read apart from the others (not flattened into them), so that an error names its field.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CommonFields {
    pub model: Option<String>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub n: Option<usize>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    /// −1 (vLLM's way) and 0 are off.
    pub top_k: Option<i64>,
    pub seed: Option<i64>,
    pub max_tokens: Option<usize>,
    pub stop: Option<OneOrMany>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub include_stop_str_in_output: Option<bool>,
    pub ignore_eos: Option<bool>,
    pub return_token_ids: Option<bool>,
    // Known, and only at the value that changes nothing.
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub min_p: Option<f64>,
    pub min_tokens: Option<u64>,
    pub logit_bias: Option<Value>,
    pub response_format: Option<Value>,
    pub prompt_logprobs: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub include_usage: Option<bool>,
}

/// `"x"` or `["x", "y"]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// `POST /v1/chat/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    pub messages: Vec<Value>,
    pub max_completion_tokens: Option<usize>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<i64>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
}

/// `POST /v1/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionRequest {
    pub prompt: PromptField,
    pub logprobs: Option<i64>,
    pub echo: Option<bool>,
    pub suffix: Option<String>,
    pub add_special_tokens: Option<bool>,
}

/// One prompt or several, as text or as ids.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of token ids, or a list of either")]
pub(super) enum PromptField {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
}

/// A checked request: what each of its sequences is sampled with.
#[derive(Debug, Clone)]
pub(super) struct Sampling {
    pub params: SamplingParams,
    pub n: usize,
    pub stop_strings: Vec<String>,
    pub keep_stop_string: bool,
    /// How many likeliest tokens to report beside each one; `None` reports no logprobs.
    pub logprobs: Option<usize>,
    pub return_token_ids: bool,
    pub stream: bool,
    pub include_usage: bool,
}

impl ChatRequest {
    pub(super) fn sampling(
        &self,
        common: &CommonFields,
        state: &ApiState,
        n_prompt_tokens: usize,
    ) -> Result<Sampling, ApiError> {
        if self.continue_final_message == Some(true) {
            let message = "continuing the last message isn't served; leave `continue_final_message` out";
            return Err(ApiError::bad_parameter("continue_final_message", message));
        }
        let logprobs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, count) => Some(top_logprobs(count.unwrap_or(0), "top_logprobs")?),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "`top_logprobs` needs `logprobs` to be true";
                return Err(ApiError::bad_parameter("top_logprobs", message));
            }
        };
        let max_tokens = self.max_completion_tokens.or(common.max_tokens);
        common.sampling(state, n_prompt_tokens, max_tokens, None, logprobs)
    }

    /// Whether calls are looked for in the answer.
    pub(super) fn parses_tool_calls(&self) -> Result<bool, ApiError> {
        let has_tools = self.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let constrained =
            "needs grammar-constrained decoding, which this server doesn't have yet; use `auto` or `none`";
        match &self.tool_choice {
            None | Some(Value::Null) => Ok(has_tools),
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => Ok(has_tools),
                "none" => Ok(false),
                "required" => Err(ApiError::bad_parameter(
                    "tool_choice",
                    format!("`tool_choice: required` {constrained}"),
                )),
                other => Err(ApiError::bad_parameter(
                    "tool_choice",
                    format!("`tool_choice` is `{other}`; it can be `auto` or `none`"),
                )),
            },
            Some(_) => Err(ApiError::bad_parameter(
                "tool_choice",
                format!("a named `tool_choice` {constrained}"),
            )),
        }
    }
}

impl CompletionRequest {
    pub(super) fn sampling(
        &self,
        common: &CommonFields,
        state: &ApiState,
        n_prompt_tokens: usize,
    ) -> Result<Sampling, ApiError> {
        if self.echo == Some(true) {
            return Err(ApiError::bad_parameter(
                "echo",
                "echoing the prompt isn't served; leave `echo` out",
            ));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::bad_parameter(
                "suffix",
                "filling in before a suffix isn't served; leave `suffix` out",
            ));
        }
        const DEFAULT_MAX_TOKENS: usize = 16;
        let logprobs = self.logprobs.map(|count| top_logprobs(count, "logprobs")).transpose()?;
        common.sampling(
            state,
            n_prompt_tokens,
            common.max_tokens,
            Some(DEFAULT_MAX_TOKENS),
            logprobs,
        )
    }
}

impl CommonFields {
    fn sampling(
        &self,
        state: &ApiState,
        n_prompt_tokens: usize,
        max_tokens: Option<usize>,
        default_max_tokens: Option<usize>,
        logprobs: Option<usize>,
    ) -> Result<Sampling, ApiError> {
        self.refuse_what_is_not_served()?;
        let defaults = state.tokenizer().sampling_defaults();
        let temperature = self.temperature.or(defaults.temperature).unwrap_or(1.0);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(ApiError::bad_parameter(
                "temperature",
                "`temperature` must be 0 (greedy) or above",
            ));
        }
        let top_p = self.top_p.or(defaults.top_p).unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(ApiError::bad_parameter(
                "top_p",
                "`top_p` must be above 0 and at most 1",
            ));
        }
        let top_k = match self.top_k {
            None => defaults.top_k.unwrap_or(0),
            Some(-1 | 0) => 0,
            Some(count) => usize::try_from(count)
                .map_err(|_| ApiError::bad_parameter("top_k", "`top_k` must be 1 or above, or -1 for off"))?,
        };
        let n = self.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            return Err(ApiError::bad_parameter(
                "n",
                format!("`n` must be between 1 and {MAX_CHOICES}"),
            ));
        }
        let max_tokens = max_tokens_that_fit(state, n_prompt_tokens, max_tokens, default_max_tokens)?;
        let stop_strings = match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text.clone()],
            Some(OneOrMany::Many(texts)) => texts.clone(),
        };
        if stop_strings.iter().any(String::is_empty) {
            return Err(ApiError::bad_parameter(
                "stop",
                "`stop` has an empty text; leave it out",
            ));
        }
        let mut stop_token_ids = self.stop_token_ids.clone().unwrap_or_default();
        let ignore_eos = self.ignore_eos.unwrap_or(false);
        if !ignore_eos {
            stop_token_ids.extend_from_slice(state.tokenizer().stop_token_ids());
        }
        Ok(Sampling {
            params: SamplingParams {
                temperature,
                top_p,
                top_k,
                seed: self.seed.map(i64::cast_unsigned),
                max_tokens,
                stop_token_ids,
                ignore_eos,
                top_logprobs: logprobs.unwrap_or(0),
            },
            n,
            stop_strings,
            keep_stop_string: self.include_stop_str_in_output.unwrap_or(false),
            logprobs,
            return_token_ids: self.return_token_ids.unwrap_or(false),
            stream: self.stream.unwrap_or(false),
            include_usage: self
                .stream_options
                .as_ref()
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
        })
    }

    /// Serving these without their effect would be a lie.
    fn refuse_what_is_not_served(&self) -> Result<(), ApiError> {
        let response_format = self.response_format.as_ref();
        let constrained = response_format.is_some_and(|format| !format.is_null() && format["type"] != "text");
        let biased = self
            .logit_bias
            .as_ref()
            .is_some_and(|bias| bias.as_object().is_some_and(|bias| !bias.is_empty()));
        let effects = [
            (
                "presence_penalty",
                self.presence_penalty.is_some_and(|value| value != 0.0),
            ),
            (
                "frequency_penalty",
                self.frequency_penalty.is_some_and(|value| value != 0.0),
            ),
            (
                "repetition_penalty",
                self.repetition_penalty.is_some_and(|value| value != 1.0),
            ),
            ("min_p", self.min_p.is_some_and(|value| value != 0.0)),
            ("min_tokens", self.min_tokens.is_some_and(|value| value != 0)),
            ("logit_bias", biased),
            ("response_format", constrained),
            (
                "prompt_logprobs",
                self.prompt_logprobs.as_ref().is_some_and(|value| !value.is_null()),
            ),
        ];
        match effects.into_iter().find(|(_, has_effect)| *has_effect) {
            Some((field, _)) => Err(ApiError::bad_parameter(
                field,
                format!("`{field}` isn't served by this engine; leave it out"),
            )),
            None => Ok(()),
        }
    }
}

fn top_logprobs(count: i64, field: &'static str) -> Result<usize, ApiError> {
    match usize::try_from(count) {
        Ok(n) if count <= MAX_TOP_LOGPROBS => Ok(n),
        _ => Err(ApiError::bad_parameter(
            field,
            format!("`{field}` must be between 0 and {MAX_TOP_LOGPROBS}"),
        )),
    }
}

fn max_tokens_that_fit(
    state: &ApiState,
    n_prompt_tokens: usize,
    asked: Option<usize>,
    default: Option<usize>,
) -> Result<usize, ApiError> {
    let limit = state.config().max_model_len;
    let room = limit.saturating_sub(n_prompt_tokens);
    if room == 0 {
        return Err(ApiError::bad_request(format!(
            "This model's maximum context length is {limit} tokens. However, your request has {n_prompt_tokens} input tokens. Please reduce the length of the input messages."
        )));
    }
    match asked {
        Some(0) => Err(ApiError::bad_parameter("max_tokens", "`max_tokens` must be at least 1")),
        Some(asked) if asked > room => Err(ApiError::bad_parameter(
            "max_tokens",
            format!(
                "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is {limit} tokens and your request has {n_prompt_tokens} input tokens ({asked} > {limit} - {n_prompt_tokens})."
            ),
        )),
        Some(asked) => Ok(asked),
        None => Ok(default.map_or(room, |default| default.min(room))),
    }
}
