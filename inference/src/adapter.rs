//! The directory of an adapter, in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Any tool that reads PEFT's LoRA reads what [`save`] writes, vLLM included. [`load`] refuses by name whatever would
//! make the adapter compute something else than W x + (alpha / rank) · B A x.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::InferenceError;
use crate::model::lora::LoraPair;
use crate::model::safetensors_file::SafetensorsFile;
use crate::model::{ADAPTER_MODULES, LoraAdapter, LoraConfig, ModelConfig};

/// The file of settings.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The file of weights.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// The names of A and B of a module in [`WEIGHTS_FILE`].
pub(crate) fn parameter_names(layer: usize, module: &str) -> [String; 2] {
    let block = match module {
        "gate_proj" | "up_proj" | "down_proj" => "mlp",
        _ => "self_attn",
    };
    let module = format!("base_model.model.model.layers.{layer}.{block}.{module}");
    [format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight")]
}

/// `adapter_config.json`, as far as it changes what is computed.
#[derive(Debug, Deserialize)]
struct RawConfig {
    peft_type: String,
    r: i64,
    lora_alpha: f64,
    target_modules: Targets,
    bias: Option<String>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, i64>>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, f64>>,
    #[serde(default)]
    layers_to_transform: Option<serde_json::Value>,
    #[serde(default)]
    exclude_modules: Option<serde_json::Value>,
    #[serde(default)]
    target_parameters: Option<Vec<String>>,
    #[serde(default)]
    trainable_token_indices: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Targets {
    Names(Vec<String>),
    Word(String),
}

impl RawConfig {
    fn read(path: &Path) -> Result<Self, InferenceError> {
        let text = std::fs::read_to_string(path).map_err(|source| InferenceError::Read {
            path: path.to_owned(),
            source,
        })?;
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(&text)).map_err(|source| {
            InferenceError::Json {
                path: path.to_owned(),
                source,
            }
        })
    }

    /// The reason for which the adapter can't be used, or its form.
    fn supported(self) -> Result<LoraConfig, String> {
        if self.peft_type != "LORA" {
            return Err(format!("peft_type is {}, only LORA is supported", self.peft_type));
        }
        let unsupported = [
            ("bias", self.bias.is_some_and(|bias| bias != "none")),
            ("use_dora", self.use_dora),
            ("fan_in_fan_out", self.fan_in_fan_out),
            (
                "modules_to_save",
                self.modules_to_save.is_some_and(|modules| !modules.is_empty()),
            ),
            (
                "rank_pattern",
                self.rank_pattern.is_some_and(|pattern| !pattern.is_empty()),
            ),
            (
                "alpha_pattern",
                self.alpha_pattern.is_some_and(|pattern| !pattern.is_empty()),
            ),
            (
                "layers_to_transform",
                self.layers_to_transform.is_some_and(|value| !value.is_null()),
            ),
            (
                "exclude_modules",
                self.exclude_modules.is_some_and(|value| !is_empty(&value)),
            ),
            (
                "target_parameters",
                self.target_parameters.is_some_and(|parameters| !parameters.is_empty()),
            ),
            (
                "trainable_token_indices",
                self.trainable_token_indices.is_some_and(|value| !is_empty(&value)),
            ),
        ];
        if let Some((setting, _)) = unsupported.into_iter().find(|&(_, used)| used) {
            return Err(format!(
                "{CONFIG_FILE} uses {setting}, which isn't supported; train it without"
            ));
        }
        let targets = match self.target_modules {
            Targets::Names(names) => names,
            Targets::Word(word) if word == "all-linear" => ADAPTER_MODULES.map(str::to_owned).to_vec(),
            Targets::Word(word) => {
                return Err(format!(
                    "target_modules is the pattern `{word}`, only names and `all-linear` are supported"
                ));
            }
        };
        // PEFT writes `all-linear` as every module's full path. A path that leaves out layers shows as missing tensors.
        let mut target_modules: Vec<String> = targets
            .iter()
            .map(|name| name.rsplit('.').next().unwrap_or(name).to_owned())
            .collect();
        target_modules.sort_by_key(|name| ADAPTER_MODULES.iter().position(|module| module == name));
        target_modules.dedup();
        let rank = self.r;
        // rsLoRA's scale is alpha / √rank.
        let alpha = if self.use_rslora {
            self.lora_alpha * (rank as f64).sqrt()
        } else {
            self.lora_alpha
        };
        let config = LoraConfig {
            rank,
            alpha,
            target_modules,
        };
        config.check().map_err(|error| format!("{CONFIG_FILE}: {error}"))?;
        Ok(config)
    }
}

fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null => true,
        serde_json::Value::Array(values) => values.is_empty(),
        serde_json::Value::Object(values) => values.is_empty(),
        _ => false,
    }
}

/// Reads an adapter for a model. See [`LoraAdapter::load`].
pub(crate) fn load(directory: &Path, model: &ModelConfig, device: Device) -> Result<LoraAdapter, InferenceError> {
    let config = RawConfig::read(&directory.join(CONFIG_FILE))?
        .supported()
        .map_err(|reason| InferenceError::Adapter {
            path: directory.to_owned(),
            reason,
        })?;
    let file = SafetensorsFile::open(&directory.join(WEIGHTS_FILE))?;
    let mut expected = Vec::new();
    let adapter = LoraAdapter::build(&config, model, |layer, module, [a_shape, b_shape]| {
        let [a_name, b_name] = parameter_names(layer, module);
        let a = read(&file, &a_name, &a_shape, device)?;
        let b = read(&file, &b_name, &b_shape, device)?;
        expected.push(a_name);
        expected.push(b_name);
        Ok::<_, InferenceError>(LoraPair { a, b })
    })?;
    match file.names().into_iter().find(|name| !expected.contains(name)) {
        None => Ok(adapter),
        Some(tensor) => Err(InferenceError::Tensor {
            path: file.path().to_owned(),
            tensor,
            reason: "belongs to no target module of this model".to_owned(),
        }),
    }
}

fn read(file: &SafetensorsFile, name: &str, shape: &[i64], device: Device) -> Result<Tensor, InferenceError> {
    let reason = match file.read(name)? {
        None => format!("is missing, expected with shape {shape:?}"),
        Some(tensor) if tensor.size() != shape => format!("has shape {:?}, expected {shape:?}", tensor.size()),
        Some(tensor) => return Ok(tensor.f_to_device(device)?.f_to_kind(Kind::Float)?),
    };
    Err(InferenceError::Tensor {
        path: file.path().to_owned(),
        tensor: name.to_owned(),
        reason,
    })
}

/// Writes an adapter and flushes files and directory. See [`LoraAdapter::save`].
pub(crate) fn save(adapter: &LoraAdapter, directory: &Path, base_model: &str) -> Result<(), InferenceError> {
    std::fs::create_dir_all(directory).map_err(|source| write_error(directory, source))?;
    let LoraConfig {
        rank,
        alpha,
        target_modules,
    } = adapter.config();
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": number(*alpha),
        "lora_dropout": 0.0,
        "target_modules": target_modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "modules_to_save": null,
        "use_rslora": false,
        "use_dora": false,
        "inference_mode": true,
    });
    let mut text = format!("{config:#}");
    text.push('\n');
    let mut tensors = Vec::new();
    for (name, tensor) in adapter.parameters() {
        let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
        let shape: Vec<usize> = tensor.size().into_iter().map(|size| size as usize).collect();
        let mut bytes = vec![0; tensor.numel() * size_of::<f32>()];
        tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
        tensors.push((name, shape, bytes));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|error| InferenceError::Adapter {
            path: directory.to_owned(),
            reason: format!("tensor {name} can't be written ({error})"),
        })?;
        Ok((name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, InferenceError>>()?;
    // PEFT and transformers look for the format's name in the header.
    let header = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    let weights = safetensors::serialize(views, Some(header)).map_err(|error| InferenceError::Adapter {
        path: directory.to_owned(),
        reason: format!("can't be serialised ({error})"),
    })?;
    for (name, bytes) in [(CONFIG_FILE, text.as_bytes()), (WEIGHTS_FILE, weights.as_slice())] {
        let path = directory.join(name);
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| write_error(&path, source))?;
    }
    File::open(directory)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| write_error(directory, source))
}

/// A whole alpha as PEFT writes it, without a decimal point.
fn number(alpha: f64) -> serde_json::Value {
    if alpha.fract() == 0.0 && alpha.abs() < 1e9 {
        json!(alpha as i64)
    } else {
        json!(alpha)
    }
}

fn write_error(path: &Path, source: std::io::Error) -> InferenceError {
    InferenceError::Write {
        path: path.to_owned(),
        source,
    }
}
