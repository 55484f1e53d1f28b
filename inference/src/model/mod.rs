//! The model and its forward pass, the same for engine and trainer.
//!
//! In the order data meets them: [`config`] (sizes), [`gguf`] and `safetensors_file` (files), `dequant` (blocks to
//! floats), `weights` (tensors by name, whatever the file), `layers` (linear, norm, rotary embedding), [`llama`] (the
//! architecture), [`attention`] (the part that knows sequences) and [`lora`] (adapters) with [`fused_lora`] (adapters in
//! the form that the forward pass multiplies with).
//!
//! Axes: `tokens` are flat rows of all sequences of a batch, `hidden`, `n_heads`, `n_kv_heads`, `head_dim`, `vocab` are
//! the model's; `rank` is the adapter's.

mod allocator;
pub mod attention;
pub mod config;
mod dequant;
pub mod fused_lora;
pub mod gguf;
mod layers;
pub mod llama;
pub mod lora;
pub(crate) mod safetensors_file;
mod weights;

use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::InferenceError;

pub use attention::{Attention, CausalAttention};
pub use config::{ModelConfig, RopeScaling};
pub use fused_lora::{AdapterRows, FusedLora};
pub use gguf::{GgufFile, MetadataValue};
pub use lora::{ADAPTER_MODULES, LoraAdapter, LoraConfig};

/// Where the weights live and in which type they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadOptions {
    /// `cpu` or `cuda:N`.
    pub device: Device,
    /// `Kind::Float` or `Kind::BFloat16`.
    pub kind: Kind,
}

impl Default for LoadOptions {
    /// float32 on the CPU.
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            kind: Kind::Float,
        }
    }
}

impl LoadOptions {
    /// From the words of a configuration: device `cpu`, `cuda` or `cuda:N`, dtype `float32` or `bfloat16`.
    ///
    /// # Errors
    /// Other words, and a CUDA device that libtorch doesn't see.
    pub fn parse(device: &str, dtype: &str) -> Result<Self, InferenceError> {
        let refuse = |setting, reason| Err(InferenceError::InvalidSetting { setting, reason });
        let index = match device {
            "cpu" => None,
            "cuda" => Some(0),
            other => match other
                .strip_prefix("cuda:")
                .and_then(|index| index.parse::<usize>().ok())
            {
                Some(index) => Some(index),
                None => return refuse("device", format!("is `{device}`, use `cpu` or `cuda:0`")),
            },
        };
        let n_cuda = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        let device = match index {
            None => Device::Cpu,
            Some(index) if index < n_cuda => Device::Cuda(index),
            Some(index) => {
                let reason = format!(
                    "is `cuda:{index}` and libtorch sees {n_cuda} CUDA devices, use `cpu` or a libtorch with CUDA"
                );
                return refuse("device", reason);
            }
        };
        let kind = match dtype {
            "float32" => Kind::Float,
            "bfloat16" => Kind::BFloat16,
            other => return refuse("dtype", format!("is `{other}`, use `float32` or `bfloat16`")),
        };
        Ok(Self { device, kind })
    }
}

/// A language model: weights on a device, and the sizes that go with them.
///
/// Weights never require a gradient. Tensors are `Send` but not `Sync`: each thread owns a
/// [`shallow_clone`](Self::shallow_clone), and all clones share the weights' memory.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    options: LoadOptions,
    llama: llama::Llama,
}

impl Model {
    /// Loads a Hugging Face folder (`config.json` and safetensors, one file or sharded) or a `.gguf` file, whose
    /// quantised blocks become `options.kind`.
    ///
    /// # Errors
    /// A missing or damaged file, a tensor that is missing, superfluous or of another shape than the configuration
    /// says, and an architecture or setting that isn't supported; all by name.
    pub fn load(source: &Path, options: &LoadOptions) -> Result<Self, InferenceError> {
        if !matches!(options.kind, Kind::Float | Kind::BFloat16) {
            let reason = format!("is {:?}, use float32 or bfloat16", options.kind);
            return Err(InferenceError::InvalidSetting {
                setting: "dtype",
                reason,
            });
        }
        if options.device == Device::Cpu {
            allocator::keep_freed_memory();
        }
        let (config, mut weights) = weights::open(source)?;
        let llama = tch::no_grad(|| llama::Llama::load(&config, &mut weights, options))?;
        weights.finish()?;
        Ok(Self {
            config,
            options: *options,
            llama,
        })
    }

    /// A model with small random weights, the same for the same seed; for tests and benchmarks.
    pub fn random(config: ModelConfig, seed: u64, options: &LoadOptions) -> Self {
        let llama = tch::no_grad(|| llama::Llama::random(&config, seed, options));
        Self {
            config,
            options: *options,
            llama,
        }
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights live.
    pub fn device(&self) -> Device {
        self.options.device
    }

    /// The weights' type.
    pub fn kind(&self) -> Kind {
        self.options.kind
    }

    /// Another handle on the same weights, for another thread.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            config: self.config.clone(),
            options: self.options,
            llama: self.llama.shallow_clone(),
        }
    }

    /// Runs all layers over the flat tokens of one or more sequences.
    ///
    /// `token_ids` and `positions` are int64 `[tokens]` on the model's device, ids within the vocabulary and positions
    /// below [`ModelConfig::max_position`]. Linear layers run over all rows at once; only `attention` knows which rows
    /// belong together. Returns `[tokens, hidden]` after the final norm, in the model's kind. Differentiable with
    /// respect to the adapters.
    pub fn forward(
        &self,
        token_ids: &Tensor,
        positions: &Tensor,
        adapters: &AdapterRows<'_>,
        attention: &mut dyn Attention,
    ) -> Tensor {
        self.llama.forward(token_ids, positions, adapters, attention)
    }

    /// Logits in float32 `[n, vocab]` of the rows `hidden` `[n, hidden]`, as [`forward`](Self::forward) returns them.
    ///
    /// The head is a large part of the work: pass only the rows whose logits are needed.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        self.llama.logits(hidden)
    }
}
