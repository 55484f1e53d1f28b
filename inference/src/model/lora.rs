//! Low-rank adapters: W x + (alpha / rank) · B A x on any of a layer's seven linear modules.
//!
//! A is Kaiming-uniform (a = √5, so within ±1/√in), B is zero: a new adapter changes nothing. Parameters are float32
//! whatever the model's kind. On disk an adapter is a PEFT directory, see [`crate::adapter`].

use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::ModelConfig;
use super::fused_lora::{FusedLora, LowRank};
use crate::InferenceError;
use crate::adapter;

/// The modules that an adapter can change, in the order in which they run.
pub const ADAPTER_MODULES: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// The form of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank of the update, at least 1.
    pub rank: i64,
    /// Numerator of the scale alpha / rank.
    pub alpha: f64,
    /// Names out of [`ADAPTER_MODULES`].
    pub target_modules: Vec<String>,
}

impl Default for LoraConfig {
    /// Rank 16, alpha 32, all linear modules.
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            target_modules: ADAPTER_MODULES.map(str::to_owned).to_vec(),
        }
    }
}

impl LoraConfig {
    /// Refuses a rank below 1, an alpha that isn't positive, no modules, and unknown or repeated ones.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<(), InferenceError> {
        let refuse = |setting, reason| Err(InferenceError::InvalidSetting { setting, reason });
        if !(1..=4096).contains(&self.rank) {
            return refuse("rank", format!("is {}, expected 1 to 4096", self.rank));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return refuse("alpha", format!("is {}, expected a number above 0", self.alpha));
        }
        if self.target_modules.is_empty() {
            return refuse(
                "target_modules",
                format!("is empty, choose from {}", ADAPTER_MODULES.join(", ")),
            );
        }
        for (index, module) in self.target_modules.iter().enumerate() {
            if !ADAPTER_MODULES.contains(&module.as_str()) {
                return refuse(
                    "target_modules",
                    format!("has `{module}`, choose from {}", ADAPTER_MODULES.join(", ")),
                );
            }
            if self.target_modules[..index].contains(module) {
                return refuse("target_modules", format!("has `{module}` twice"));
            }
        }
        Ok(())
    }
}

/// A and B of one module.
#[derive(Debug)]
pub(crate) struct LoraPair {
    /// `[rank, in]`.
    pub(crate) a: Tensor,
    /// `[out, rank]`.
    pub(crate) b: Tensor,
}

/// A trainable adapter: float32 leaf tensors on one device.
#[derive(Debug)]
pub struct LoraAdapter {
    config: LoraConfig,
    model: ModelConfig,
    /// For each layer the seven modules in the order of [`ADAPTER_MODULES`], `None` where not targeted.
    layers: Vec<[Option<LoraPair>; 7]>,
}

impl LoraAdapter {
    /// A new adapter that changes nothing yet. The same seed gives the same A's on every device.
    ///
    /// # Panics
    /// If the configuration does not pass [`LoraConfig::check`].
    pub fn new(config: &LoraConfig, model: &ModelConfig, seed: u64, device: Device) -> Self {
        if let Err(error) = config.check() {
            panic!("an adapter needs a checked configuration: {error}");
        }
        let mut generator = UniformGenerator::new(seed);
        let built = Self::build(config, model, |_, _, [a_shape, b_shape]| {
            let bound = 1.0 / (a_shape[1] as f64).sqrt();
            let a = generator.tensor(&a_shape, bound).to_device(device);
            Ok::<_, std::convert::Infallible>(LoraPair {
                a,
                b: Tensor::zeros(b_shape, (Kind::Float, device)),
            })
        });
        match built {
            Ok(adapter) => adapter,
            Err(never) => match never {},
        }
    }

    /// Builds the pairs of all targeted modules; `make` gets layer, module name and the shapes of A and B.
    pub(crate) fn build<E>(
        config: &LoraConfig,
        model: &ModelConfig,
        mut make: impl FnMut(usize, &str, [[i64; 2]; 2]) -> Result<LoraPair, E>,
    ) -> Result<Self, E> {
        let mut layers = Vec::with_capacity(model.n_layers);
        for layer in 0..model.n_layers {
            let mut modules: [Option<LoraPair>; 7] = Default::default();
            for (slot, module) in modules.iter_mut().zip(ADAPTER_MODULES) {
                if config.target_modules.iter().any(|target| target == module) {
                    let (input, output) = module_size(model, module);
                    *slot = Some(make(layer, module, [[config.rank, input], [output, config.rank]])?);
                }
            }
            layers.push(modules);
        }
        Ok(Self {
            config: config.clone(),
            model: model.clone(),
            layers,
        })
    }

    /// Reads a PEFT directory, `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// Unreadable or damaged files, settings that aren't supported, and tensors that are missing, superfluous or of a
    /// shape that doesn't fit the model; all by name.
    pub fn load(directory: &Path, model: &ModelConfig, device: Device) -> Result<Self, InferenceError> {
        adapter::load(directory, model, device)
    }

    /// Writes a PEFT directory and flushes it to the disk. The directory is created if need be; `base_model` is the name
    /// that PEFT will look for the base model under.
    ///
    /// # Errors
    /// The files can't be written.
    pub fn save(&self, directory: &Path, base_model: &str) -> Result<(), InferenceError> {
        adapter::save(self, directory, base_model)
    }

    /// Rank, alpha and targets.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Every parameter under its name in PEFT's files, in a stable order: by layer, then by module, A before B. The
    /// tensors share the adapter's memory.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = Vec::new();
        for (layer, modules) in self.layers.iter().enumerate() {
            for (pair, module) in modules.iter().zip(ADAPTER_MODULES) {
                if let Some(pair) = pair {
                    let [a, b] = adapter::parameter_names(layer, module);
                    parameters.push((a, pair.a.shallow_clone()));
                    parameters.push((b, pair.b.shallow_clone()));
                }
            }
        }
        parameters
    }

    /// Switches the recording of gradients for all parameters.
    pub fn set_requires_grad(&mut self, requires_grad: bool) {
        for pair in self.layers.iter_mut().flatten().flatten() {
            pair.a = pair.a.set_requires_grad(requires_grad);
            pair.b = pair.b.set_requires_grad(requires_grad);
        }
    }

    /// The adapter as the forward pass of a model of this kind uses it. Differentiable with respect to the parameters.
    pub fn fuse(&self, kind: Kind) -> FusedLora {
        let layers = self.layers.iter().map(|[q, k, v, o, gate, up, down]| {
            // In the order of FusedPart.
            [
                self.fuse_modules(&[("q_proj", q), ("k_proj", k), ("v_proj", v)], kind),
                self.fuse_modules(&[("o_proj", o)], kind),
                self.fuse_modules(&[("gate_proj", gate), ("up_proj", up)], kind),
                self.fuse_modules(&[("down_proj", down)], kind),
            ]
        });
        FusedLora {
            layers: layers.collect(),
        }
    }

    fn fuse_modules(&self, modules: &[(&str, &Option<LoraPair>)], kind: Kind) -> Option<LowRank> {
        let mut downs = Vec::new();
        let mut blocks = Vec::new();
        for (module, pair) in modules {
            match pair {
                Some(pair) => {
                    downs.push(pair.a.shallow_clone());
                    blocks.push(pair.b.shallow_clone());
                }
                // No rows of A, but outputs that the others must skip.
                None => {
                    let (_, output) = module_size(&self.model, module);
                    blocks.push(Tensor::zeros([output, 0], (Kind::Float, self.device())));
                }
            }
        }
        if downs.is_empty() {
            return None;
        }
        let scale = self.config.alpha / self.config.rank as f64;
        let up = Tensor::block_diag(&blocks) * scale;
        Some(LowRank {
            down: Tensor::cat(&downs, 0).to_kind(kind).tr(),
            up: up.to_kind(kind).tr(),
        })
    }

    fn device(&self) -> Device {
        self.layers
            .iter()
            .flatten()
            .flatten()
            .next()
            .map_or(Device::Cpu, |pair| pair.a.device())
    }
}

/// Input and output width of a module.
fn module_size(model: &ModelConfig, module: &str) -> (i64, i64) {
    match module {
        "q_proj" => (model.hidden_size, model.q_size()),
        "k_proj" | "v_proj" => (model.hidden_size, model.kv_size()),
        "o_proj" => (model.q_size(), model.hidden_size),
        "gate_proj" | "up_proj" => (model.hidden_size, model.intermediate_size),
        _ => (model.intermediate_size, model.hidden_size),
    }
}

/// Uniform numbers from a seed, independent of libtorch's global generator.
pub(super) struct UniformGenerator(StdRng);

impl UniformGenerator {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// float32 on the CPU, within ±`bound`.
    pub(super) fn tensor(&mut self, shape: &[i64], bound: f64) -> Tensor {
        let n: i64 = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|_| self.0.random_range(-bound..bound) as f32).collect();
        Tensor::from_slice(&values).reshape(shape)
    }
}
