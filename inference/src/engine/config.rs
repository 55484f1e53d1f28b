//! What the engine may use.

use super::EngineError;
use super::block_pool::BLOCK_SIZE;

/// Limits of the engine. The defaults suit a model of some hundred million parameters on a few cores.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Most tokens of one forward pass, prompts and answers together. Larger reads long prompts faster, smaller
    /// lets running answers wait less for them.
    pub max_batch_tokens: usize,
    /// Most sequences that run at once; the rest wait. At most `max_batch_tokens`.
    pub max_sequences: usize,
    /// Tokens that the KV cache has room for, running sequences and remembered prefixes together.
    pub kv_cache_tokens: usize,
    /// Most tokens of one sequence, prompt and answer together. The model's own limit and the KV cache lower it.
    pub max_model_len: usize,
    /// Requests that may wait before further ones are refused.
    pub max_waiting: usize,
    /// Tokens that end any sequence which does not set `ignore_eos`. Empty where the caller passes its own `stop_token_ids`.
    pub eos_token_ids: Vec<u32>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: 512,
            max_sequences: 32,
            kv_cache_tokens: 32 * 1024,
            max_model_len: 8192,
            max_waiting: 1024,
            eos_token_ids: Vec::new(),
        }
    }
}

impl EngineConfig {
    /// Checks the limits against each other and lowers `max_model_len` to what model and cache can hold.
    pub(super) fn resolve(mut self, max_position: usize) -> Result<Self, EngineError> {
        let refuse = |setting, message: String| Err(EngineError::InvalidConfig { setting, message });
        if self.max_sequences == 0 {
            return refuse("max_sequences", "must be at least 1".into());
        }
        if self.max_batch_tokens < self.max_sequences.max(BLOCK_SIZE) {
            let least = self.max_sequences.max(BLOCK_SIZE);
            return refuse(
                "max_batch_tokens",
                format!("must be at least {least} (one token a sequence, one block)"),
            );
        }
        if self.kv_cache_tokens < 2 * BLOCK_SIZE {
            return refuse("kv_cache_tokens", format!("must be at least {}", 2 * BLOCK_SIZE));
        }
        self.kv_cache_tokens -= self.kv_cache_tokens % BLOCK_SIZE;
        self.max_model_len = self.max_model_len.min(max_position).min(self.kv_cache_tokens);
        if self.max_model_len < 2 {
            return refuse(
                "max_model_len",
                "must be at least 2 (a token of prompt, a token of answer)".into(),
            );
        }
        Ok(self)
    }
}
