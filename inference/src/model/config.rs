//! The sizes of a model, from `config.json` or from GGUF metadata.

use std::path::Path;

use serde::Deserialize;

use super::gguf::GgufFile;
use crate::InferenceError;

/// How the rotary embedding's frequencies are stretched for contexts longer than those of pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Positions are divided by the factor.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1's: low frequencies are divided by the factor, high ones kept, those between blended.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pre-training.
        original_max_position: f64,
    },
    /// One divisor a frequency, `[head_dim / 2]`, as GGUF files store Llama 3.1's in `rope_freqs.weight`.
    Divisors(Vec<f64>),
}

/// The sizes of a Llama model. Tensor sizes are `i64`, libtorch's own type for them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding and of the head.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width inside the feed-forward part.
    pub intermediate_size: i64,
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: i64,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: i64,
    /// Width of a head; even.
    pub head_dim: i64,
    /// Added to the mean square before the root.
    pub rms_norm_eps: f64,
    /// Base of the rotary embedding's wavelengths.
    pub rope_theta: f64,
    /// `None` for the plain rotary embedding.
    pub rope_scaling: Option<RopeScaling>,
    /// Most positions of a sequence.
    pub max_position: i64,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
}

impl ModelConfig {
    /// Rows of the fused query, key and value matrix.
    pub fn qkv_size(&self) -> i64 {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Width of all query heads together.
    pub fn q_size(&self) -> i64 {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_size(&self) -> i64 {
        self.n_kv_heads * self.head_dim
    }

    /// Refuses sizes that can't belong together, and ones no real model has (so that a damaged file can't ask for a
    /// huge allocation).
    fn check(self, path: &Path) -> Result<Self, InferenceError> {
        let refuse = |reason: String| Err(unsupported(path, reason));
        let sizes = [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("hidden_size", self.hidden_size, 1 << 20),
            ("intermediate_size", self.intermediate_size, 1 << 22),
            (
                "num_hidden_layers",
                i64::try_from(self.n_layers).unwrap_or(i64::MAX),
                4096,
            ),
            ("num_attention_heads", self.n_heads, 4096),
            ("num_key_value_heads", self.n_kv_heads, 4096),
            ("head_dim", self.head_dim, 4096),
            ("max_position_embeddings", self.max_position, 1 << 28),
        ];
        for (name, value, most) in sizes {
            if value < 1 || value > most {
                return refuse(format!("{name} is {value}, expected 1 to {most}"));
            }
        }
        if self.n_heads % self.n_kv_heads != 0 {
            let (n_heads, n_kv_heads) = (self.n_heads, self.n_kv_heads);
            return refuse(format!(
                "{n_heads} attention heads can't be shared evenly by {n_kv_heads} key-value heads"
            ));
        }
        if self.head_dim % 2 != 0 {
            return refuse(format!(
                "head_dim is {}, the rotary embedding needs an even one",
                self.head_dim
            ));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return refuse(format!(
                "rms_norm_eps is {}, expected a number between 0 and 1",
                self.rms_norm_eps
            ));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return refuse(format!("rope_theta is {}, expected a number above 1", self.rope_theta));
        }
        Ok(self)
    }
}

fn unsupported(path: &Path, reason: String) -> InferenceError {
    InferenceError::UnsupportedModel {
        path: path.to_owned(),
        reason,
    }
}

/// `config.json` of the Llama family, with the defaults of transformers' `LlamaConfig`.
#[derive(Debug, Deserialize)]
struct RawConfig {
    model_type: String,
    vocab_size: i64,
    hidden_size: i64,
    intermediate_size: i64,
    num_hidden_layers: usize,
    num_attention_heads: i64,
    num_key_value_heads: Option<i64>,
    head_dim: Option<i64>,
    #[serde(default = "default_hidden_act")]
    hidden_act: String,
    #[serde(default = "default_max_position")]
    max_position_embeddings: i64,
    #[serde(default = "default_rms_norm_eps")]
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    /// Where transformers 5 writes `rope_theta` and the former `rope_scaling`.
    rope_parameters: Option<RawRope>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

fn default_hidden_act() -> String {
    "silu".to_owned()
}

fn default_max_position() -> i64 {
    2048
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

const DEFAULT_ROPE_THETA: f64 = 10_000.0;

impl RawRope {
    fn scaling(&self, path: &Path) -> Result<Option<RopeScaling>, InferenceError> {
        let need = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            _ => Err(unsupported(path, format!("rope scaling needs a positive {name}"))),
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(None),
            Some("linear") => Ok(Some(RopeScaling::Linear {
                factor: need("factor", self.factor)?,
            })),
            Some("llama3") => Ok(Some(RopeScaling::Llama3 {
                factor: need("factor", self.factor)?,
                low_freq_factor: need("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("high_freq_factor", self.high_freq_factor)?,
                original_max_position: need(
                    "original_max_position_embeddings",
                    self.original_max_position_embeddings,
                )?,
            })),
            Some(other) => Err(unsupported(
                path,
                format!("rope type `{other}` isn't supported, only default, linear and llama3"),
            )),
        }
    }
}

impl ModelConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// An unreadable or malformed file, and every setting that changes the computation in a way that isn't implemented.
    pub fn from_hugging_face(path: &Path) -> Result<Self, InferenceError> {
        let text = std::fs::read_to_string(path).map_err(|source| InferenceError::Read {
            path: path.to_owned(),
            source,
        })?;
        let raw: RawConfig =
            serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(&text)).map_err(|source| {
                InferenceError::Json {
                    path: path.to_owned(),
                    source,
                }
            })?;
        let refuse = |reason: String| Err(unsupported(path, reason));
        if raw.model_type != "llama" {
            return refuse(format!("model type `{}` isn't supported, only llama", raw.model_type));
        }
        if raw.hidden_act != "silu" {
            return refuse(format!("hidden_act `{}` isn't supported, only silu", raw.hidden_act));
        }
        if raw.attention_bias || raw.mlp_bias {
            return refuse("biases in linear layers aren't supported (attention_bias, mlp_bias)".to_owned());
        }
        if raw.quantization_config.is_some() {
            return refuse("quantised safetensors aren't supported, use the unquantised model or GGUF".to_owned());
        }
        let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
        let head_dim = raw
            .head_dim
            .or_else(|| raw.hidden_size.checked_div(raw.num_attention_heads))
            .unwrap_or(0);
        Self {
            vocab_size: raw.vocab_size,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            n_layers: raw.num_hidden_layers,
            n_heads: raw.num_attention_heads,
            n_kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim,
            rms_norm_eps: raw.rms_norm_eps,
            rope_theta: rope
                .and_then(|rope| rope.rope_theta)
                .or(raw.rope_theta)
                .unwrap_or(DEFAULT_ROPE_THETA),
            rope_scaling: rope.map(|rope| rope.scaling(path)).transpose()?.flatten(),
            max_position: raw.max_position_embeddings,
            tie_word_embeddings: raw.tie_word_embeddings,
        }
        .check(path)
    }

    /// Reads the metadata of a GGUF file of architecture `llama`.
    ///
    /// # Errors
    /// A missing or ill-typed key, and every setting that isn't implemented.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, InferenceError> {
        let path = file.path();
        let architecture = file
            .metadata("general.architecture")
            .and_then(|value| value.as_str())
            .unwrap_or("missing");
        if architecture != "llama" {
            let reason = format!("GGUF architecture `{architecture}` isn't supported, only llama");
            return Err(unsupported(path, reason));
        }
        let integer = |key: &str| file.metadata(key).and_then(|value| value.as_i64());
        let float = |key: &str| file.metadata(key).and_then(|value| value.as_f64());
        let need = |key: &str| {
            integer(key).ok_or_else(|| unsupported(path, format!("metadata {key} is missing or isn't an integer")))
        };
        let experts = integer("llama.expert_count").unwrap_or(0);
        if experts > 0 {
            return Err(unsupported(
                path,
                format!("mixture of {experts} experts isn't supported"),
            ));
        }
        let hidden_size = need("llama.embedding_length")?;
        let n_heads = need("llama.attention.head_count")?;
        let head_dim = integer("llama.attention.key_length")
            .or_else(|| hidden_size.checked_div(n_heads))
            .unwrap_or_default();
        let rotated = integer("llama.rope.dimension_count").unwrap_or(head_dim);
        if rotated != head_dim {
            let reason = format!("a rotary embedding of {rotated} of {head_dim} dimensions isn't supported");
            return Err(unsupported(path, reason));
        }
        let vocab_size = match integer("llama.vocab_size") {
            Some(vocab_size) => vocab_size,
            None => file
                .tensor_shape("token_embd.weight")
                .and_then(|shape| shape.first().copied())
                .unwrap_or_default(),
        };
        Self {
            vocab_size,
            hidden_size,
            intermediate_size: need("llama.feed_forward_length")?,
            n_layers: usize::try_from(need("llama.block_count")?).unwrap_or(0),
            n_heads,
            n_kv_heads: integer("llama.attention.head_count_kv").unwrap_or(n_heads),
            head_dim,
            rms_norm_eps: float("llama.attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
            rope_theta: float("llama.rope.freq_base").unwrap_or(DEFAULT_ROPE_THETA),
            rope_scaling: gguf_rope_scaling(file)?,
            max_position: need("llama.context_length")?,
            tie_word_embeddings: file.tensor_shape("output.weight").is_none(),
        }
        .check(path)
    }
}

fn gguf_rope_scaling(file: &GgufFile) -> Result<Option<RopeScaling>, InferenceError> {
    let scaling = file
        .metadata("llama.rope.scaling.type")
        .and_then(|value| value.as_str())
        .unwrap_or("none");
    let factor = file
        .metadata("llama.rope.scaling.factor")
        .or_else(|| file.metadata("llama.rope.scale_linear"))
        .and_then(|value| value.as_f64())
        .unwrap_or(1.0);
    match scaling {
        "none" | "linear" if factor == 1.0 => {}
        "linear" if factor.is_finite() && factor > 0.0 => return Ok(Some(RopeScaling::Linear { factor })),
        other => {
            let reason = format!("rope scaling `{other}` with factor {factor} isn't supported, only none and linear");
            return Err(unsupported(file.path(), reason));
        }
    }
    if file.tensor_shape("rope_freqs.weight").is_none() {
        return Ok(None);
    }
    let divisors = file.read_tensor("rope_freqs.weight")?;
    let divisors: Vec<f64> = divisors.values.iter().map(|&value| f64::from(value)).collect();
    Ok(Some(RopeScaling::Divisors(divisors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ModelConfig, InferenceError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("config.json");
        std::fs::write(&path, json).expect("write config.json");
        ModelConfig::from_hugging_face(&path)
    }

    const SIZES: &str = r#""model_type":"llama","vocab_size":10,"hidden_size":12,"intermediate_size":20,
        "num_hidden_layers":2,"num_attention_heads":3"#;

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(&format!("{{{SIZES}}}")).expect("valid");
        assert_eq!((config.head_dim, config.n_kv_heads, config.max_position), (4, 3, 2048));
        assert_eq!((config.rope_theta, config.rms_norm_eps), (10_000.0, 1e-6));
        assert!(!config.tie_word_embeddings && config.rope_scaling.is_none());
    }

    #[test]
    fn rope_parameters_of_both_generations_are_read() {
        let new = read(&format!(
            r#"{{{SIZES},"rope_parameters":{{"rope_type":"default","rope_theta":5e5}}}}"#
        ));
        assert_eq!(new.expect("valid").rope_theta, 5e5);
        let old = read(&format!(
            r#"{{{SIZES},"rope_theta":7e5,"rope_scaling":{{"type":"linear","factor":2.0}}}}"#
        ))
        .expect("valid");
        assert_eq!(
            (old.rope_theta, old.rope_scaling),
            (7e5, Some(RopeScaling::Linear { factor: 2.0 }))
        );
    }

    #[test]
    fn what_would_compute_something_else_is_refused_by_name() {
        for (extra, expected) in [
            (r#""attention_bias":true"#, "attention_bias"),
            (r#""hidden_act":"gelu""#, "gelu"),
            (r#""rope_scaling":{"rope_type":"yarn","factor":4.0}"#, "yarn"),
            (r#""num_key_value_heads":2"#, "key-value heads"),
            (r#""head_dim":3"#, "even"),
            (r#""max_position_embeddings":0"#, "max_position_embeddings"),
            (r#""quantization_config":{}"#, "quantised"),
        ] {
            let message = read(&format!("{{{SIZES},{extra}}}")).expect_err(extra).to_string();
            assert!(
                message.contains(expected) && message.contains("config.json"),
                "{message}"
            );
        }
        let mistyped = read(r#"{"model_type":"llama","vocab_size":"many"}"#).expect_err("a string");
        let InferenceError::Json { source, .. } = mistyped else {
            panic!("{mistyped}")
        };
        assert_eq!(source.path().to_string(), "vocab_size");
    }
}
