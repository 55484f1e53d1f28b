//! The weights of a model by name and expected shape, whatever the file they come from.
//!
//! Names are those of Hugging Face's Llama; [`gguf_name`] maps them. Everything that differs between the files ends here.

use std::collections::HashSet;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::ModelConfig;
use super::gguf::GgufFile;
use super::safetensors_file::SafetensorsFolder;
use crate::InferenceError;

/// Where weights are taken from.
#[derive(Debug)]
pub(super) enum Weights {
    Folder {
        files: SafetensorsFolder,
        tie_word_embeddings: bool,
    },
    Gguf {
        file: GgufFile,
        config: Box<ModelConfig>,
        taken: HashSet<String>,
    },
}

/// Opens a Hugging Face folder or a GGUF file and reads the model's sizes.
pub(super) fn open(source: &Path) -> Result<(ModelConfig, Weights), InferenceError> {
    let no_model = |reason: &str| InferenceError::NoModel {
        path: source.to_owned(),
        reason: reason.to_owned(),
    };
    let metadata = match std::fs::metadata(source) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(no_model(
                "there is no such file or folder; give a Hugging Face folder or a .gguf file",
            ));
        }
        Err(error) => {
            return Err(InferenceError::Read {
                path: source.to_owned(),
                source: error,
            });
        }
    };
    if metadata.is_dir() {
        let config_path = source.join("config.json");
        if !config_path.try_exists().map_err(|error| InferenceError::Read {
            path: config_path.clone(),
            source: error,
        })? {
            return Err(no_model("the folder has no config.json"));
        }
        let config = ModelConfig::from_hugging_face(&config_path)?;
        let files = SafetensorsFolder::open(source)?;
        let weights = Weights::Folder {
            files,
            tie_word_embeddings: config.tie_word_embeddings,
        };
        return Ok((config, weights));
    }
    if source
        .extension()
        .is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf"))
    {
        return Err(no_model(
            "it is a file but doesn't end in .gguf; give a Hugging Face folder or a .gguf file",
        ));
    }
    let file = GgufFile::open(source)?;
    let config = ModelConfig::from_gguf(&file)?;
    let weights = Weights::Gguf {
        file,
        config: Box::new(config.clone()),
        taken: HashSet::new(),
    };
    Ok((config, weights))
}

impl Weights {
    /// Reads a tensor of the expected shape onto the device.
    pub(super) fn take(
        &mut self,
        name: &str,
        shape: &[i64],
        device: Device,
        kind: Kind,
    ) -> Result<Tensor, InferenceError> {
        let tensor = match self {
            Self::Folder { files, .. } => files.take(name, shape)?,
            Self::Gguf { file, config, taken } => {
                let gguf_name = gguf_name(name);
                let found = file.tensor_shape(&gguf_name);
                if found != Some(shape) {
                    let reason = match found {
                        Some(found) => format!("has shape {found:?}, expected {shape:?}"),
                        None => format!("is missing, expected with shape {shape:?}"),
                    };
                    return Err(InferenceError::Tensor {
                        path: file.path().to_owned(),
                        tensor: gguf_name,
                        reason,
                    });
                }
                let values = file.read_tensor(&gguf_name)?.values;
                let tensor = Tensor::f_from_slice(&values)?.f_view(shape)?;
                taken.insert(gguf_name);
                if name.ends_with(".q_proj.weight") {
                    to_half_rotation(&tensor, config.n_heads)?
                } else if name.ends_with(".k_proj.weight") {
                    to_half_rotation(&tensor, config.n_kv_heads)?
                } else {
                    tensor
                }
            }
        };
        Ok(tensor.f_to_device(device)?.f_to_kind(kind)?)
    }

    /// Refuses files with tensors that the model has no place for.
    pub(super) fn finish(self) -> Result<(), InferenceError> {
        match self {
            Self::Folder {
                files,
                tie_word_embeddings,
            } => files.finish(tie_word_embeddings),
            Self::Gguf { file, taken, .. } => {
                match file
                    .tensor_names()
                    .find(|&name| name != "rope_freqs.weight" && !taken.contains(name))
                {
                    None => Ok(()),
                    Some(name) => Err(InferenceError::Tensor {
                        path: file.path().to_owned(),
                        tensor: name.to_owned(),
                        reason: "belongs to no part of the model that the metadata describes".to_owned(),
                    }),
                }
            }
        }
    }
}

/// llama.cpp stores the rows of each query and key head interleaved (its rotary embedding turns neighbours); Hugging
/// Face's turns a row with the one half a head further.
fn to_half_rotation(weight: &Tensor, n_heads: i64) -> Result<Tensor, InferenceError> {
    let (out, input) = weight.size2()?;
    Ok(weight
        .f_view([n_heads, out / n_heads / 2, 2, input])?
        .f_transpose(1, 2)?
        .f_reshape([out, input])?)
}

fn gguf_name(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let Some((layer, part)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
        return name.to_owned();
    };
    let part = match part {
        "input_layernorm.weight" => "attn_norm.weight",
        "self_attn.q_proj.weight" => "attn_q.weight",
        "self_attn.k_proj.weight" => "attn_k.weight",
        "self_attn.v_proj.weight" => "attn_v.weight",
        "self_attn.o_proj.weight" => "attn_output.weight",
        "post_attention_layernorm.weight" => "ffn_norm.weight",
        "mlp.gate_proj.weight" => "ffn_gate.weight",
        "mlp.up_proj.weight" => "ffn_up.weight",
        "mlp.down_proj.weight" => "ffn_down.weight",
        other => other,
    };
    format!("blk.{layer}.{part}")
}
