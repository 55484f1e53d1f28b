//! The Llama architecture: pre-norm layers of grouped-query attention with rotary embedding and a SwiGLU feed-forward part.
//!
//! What reads the same input is one matrix: query, key and value (`qkv`), gate and up (`gate_up`). A layer is so four
//! matrix products and the residual additions are part of two of them.

use tch::{Kind, Tensor};

use super::config::ModelConfig;
use super::fused_lora::{AdapterRows, FusedPart};
use super::layers::{Linear, RmsNorm, RotaryEmbedding, gated_silu, split_in_two};
use super::weights::{Weight, Weights};
use super::{Attention, LoadOptions};
use crate::InferenceError;

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    qkv: Linear,
    o: Linear,
    feed_forward_norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

/// Weights and tables of the architecture.
#[derive(Debug)]
pub struct Llama {
    /// `[vocab, hidden]`.
    embedding: Tensor,
    rotary: RotaryEmbedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    n_heads: i64,
    n_kv_heads: i64,
    head_dim: i64,
}

impl Llama {
    pub(super) fn load(
        config: &ModelConfig,
        weights: &mut Weights,
        options: &LoadOptions,
    ) -> Result<Self, InferenceError> {
        Self::build(config, options, |name, shape| {
            weights.take(name, shape, options.device, options.kind)
        })
    }

    pub(super) fn random(config: &ModelConfig, seed: u64, options: &LoadOptions) -> Self {
        let mut generator = super::lora::UniformGenerator::new(seed);
        let built = Self::build(config, options, |name, shape| {
            let tensor = if name.ends_with("norm.weight") {
                Tensor::f_ones(shape, (options.kind, options.device))?
            } else {
                let bound = 1.5 / (config.hidden_size as f64).sqrt();
                generator
                    .tensor(shape, bound)
                    .to_device(options.device)
                    .to_kind(options.kind)
            };
            Ok(Weight { tensor, compact: None })
        });
        built.unwrap_or_else(|error| unreachable!("random weights always have the right shape: {error}"))
    }

    fn build(
        config: &ModelConfig,
        options: &LoadOptions,
        mut take: impl FnMut(&str, &[i64]) -> Result<Weight, InferenceError>,
    ) -> Result<Self, InferenceError> {
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let norm = |weight: Weight| RmsNorm::new(weight.tensor, config.rms_norm_eps);
        let embedding = take("model.embed_tokens.weight", &[config.vocab_size, hidden])?;
        let mut layers = Vec::with_capacity(config.n_layers);
        for index in 0..config.n_layers {
            let mut part = |name: &str, shape: &[i64]| take(&format!("model.layers.{index}.{name}.weight"), shape);
            let q = part("self_attn.q_proj", &[config.q_size(), hidden])?;
            let k = part("self_attn.k_proj", &[config.kv_size(), hidden])?;
            let v = part("self_attn.v_proj", &[config.kv_size(), hidden])?;
            let gate = part("mlp.gate_proj", &[intermediate, hidden])?;
            let up = part("mlp.up_proj", &[intermediate, hidden])?;
            layers.push(Layer {
                attention_norm: norm(part("input_layernorm", &[hidden])?),
                qkv: Linear::new(&Weight::stack(&[q, k, v])?),
                o: Linear::new(&part("self_attn.o_proj", &[hidden, config.q_size()])?),
                feed_forward_norm: norm(part("post_attention_layernorm", &[hidden])?),
                gate_up: Linear::new(&Weight::stack(&[gate, up])?),
                down: Linear::new(&part("mlp.down_proj", &[hidden, intermediate])?),
            });
        }
        let final_norm = norm(take("model.norm.weight", &[hidden])?);
        let head = if config.tie_word_embeddings {
            Linear::new(&embedding)
        } else {
            Linear::new(&take("lm_head.weight", &[config.vocab_size, hidden])?)
        };
        Ok(Self {
            embedding: embedding.tensor,
            rotary: RotaryEmbedding::new(config, options.device),
            layers,
            norm: final_norm,
            head,
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        })
    }

    pub(super) fn shallow_clone(&self) -> Self {
        let layers = self.layers.iter().map(|layer| Layer {
            attention_norm: layer.attention_norm.shallow_clone(),
            qkv: layer.qkv.shallow_clone(),
            o: layer.o.shallow_clone(),
            feed_forward_norm: layer.feed_forward_norm.shallow_clone(),
            gate_up: layer.gate_up.shallow_clone(),
            down: layer.down.shallow_clone(),
        });
        Self {
            embedding: self.embedding.shallow_clone(),
            rotary: self.rotary.shallow_clone(),
            layers: layers.collect(),
            norm: self.norm.shallow_clone(),
            head: self.head.shallow_clone(),
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
        }
    }

    pub(super) fn forward(
        &self,
        token_ids: &Tensor,
        positions: &Tensor,
        adapters: &AdapterRows<'_>,
        attention: &mut dyn Attention,
    ) -> Tensor {
        // [tokens, hidden]
        let mut hidden = Tensor::embedding(&self.embedding, token_ids, -1, false, false);
        let rotation = self.rotary.at(positions, hidden.kind());
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.attention_norm.apply(&hidden);
            let qkv = layer.qkv.apply_with(&normed, None, adapters, (index, FusedPart::Qkv));
            // [tokens, n_heads + 2 · n_kv_heads, head_dim]
            let heads = qkv.view([-1, self.n_heads + 2 * self.n_kv_heads, self.head_dim]);
            let (q_and_k, v) = split_in_two(&heads, self.n_heads + self.n_kv_heads);
            let (q, k) = split_in_two(&rotation.apply(&q_and_k), self.n_heads);
            let attended = attention.attend(index, &q, &k, &v);
            let hidden_after = layer
                .o
                .apply_with(&attended, Some(&hidden), adapters, (index, FusedPart::O));
            let normed = layer.feed_forward_norm.apply(&hidden_after);
            let gate_up = layer
                .gate_up
                .apply_with(&normed, None, adapters, (index, FusedPart::GateUp));
            let gated = gated_silu(&gate_up);
            hidden = layer
                .down
                .apply_with(&gated, Some(&hidden_after), adapters, (index, FusedPart::Down));
        }
        self.norm.apply(&hidden)
    }

    pub(super) fn logits(&self, hidden: &Tensor) -> Tensor {
        self.head.apply(hidden, None).to_kind(Kind::Float)
    }
}
