//! The weights of a model by name and expected shape, whatever the file they come from.
//!
//! Names are those of Hugging Face's Llama; [`gguf_name`] maps them. Everything that differs between the files ends here.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::ModelConfig;
use super::gguf::GgufFile;
use super::safetensors_file::SafetensorsFolder;
use crate::InferenceError;
use crate::kernels::compact::{CompactRows, Values};

/// A tensor of weights.
#[derive(Debug)]
pub(super) struct Weight {
    /// `[out, in]` for a linear map.
    pub(super) tensor: Tensor,
    /// The same values in the few bits that the file has, where the engine's loops can read them.
    pub(super) compact: Option<Arc<CompactRows>>,
}

impl Weight {
    /// Several linear maps of one input, their outputs one after the other.
    pub(super) fn stack(weights: &[Self]) -> Result<Self, InferenceError> {
        let tensors: Vec<&Tensor> = weights.iter().map(|weight| &weight.tensor).collect();
        let compact: Option<Vec<CompactRows>> = weights
            .iter()
            .map(|weight| weight.compact.as_deref().cloned())
            .collect();
        Ok(Self {
            tensor: Tensor::f_cat(&tensors, 0)?,
            compact: compact.and_then(CompactRows::stack).map(Arc::new),
        })
    }
}

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
    ) -> Result<Weight, InferenceError> {
        // Compact weights are for the CPU's loops, which compute in float32.
        let wants_compact = shape.len() == 2 && (device, kind) == (Device::Cpu, Kind::Float);
        let (tensor, compact) = match self {
            Self::Folder { files, .. } => {
                let tensor = files.take(name, shape)?;
                let compact = if wants_compact { bfloat16_rows(&tensor)? } else { None };
                (tensor, compact)
            }
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
                let compact = if wants_compact {
                    file.compact_rows(&gguf_name)
                } else {
                    None
                };
                taken.insert(gguf_name);
                let heads = if name.ends_with(".q_proj.weight") {
                    Some(config.n_heads)
                } else if name.ends_with(".k_proj.weight") {
                    Some(config.n_kv_heads)
                } else {
                    None
                };
                match heads {
                    Some(heads) => {
                        let order = half_rotation_order(shape[0] as usize, heads as usize);
                        let rows: Vec<i64> = order.iter().map(|&row| row as i64).collect();
                        (
                            tensor.f_index_select(0, &Tensor::from_slice(&rows))?,
                            compact.and_then(|compact| compact.reordered(&order)),
                        )
                    }
                    None => (tensor, compact),
                }
            }
        };
        Ok(Weight {
            tensor: tensor.f_to_device(device)?.f_to_kind(kind)?,
            compact: compact.map(Arc::new),
        })
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

/// Which of the file's rows belong where: llama.cpp stores the rows of each query and key head interleaved (its rotary embedding turns
/// neighbours); Hugging Face's turns a row with the one half a head further.
fn half_rotation_order(n_rows: usize, n_heads: usize) -> Vec<usize> {
    let head_dim = n_rows / n_heads;
    (0..n_rows)
        .map(|row| {
            let (head, dimension) = (row / head_dim, row % head_dim);
            let (half, pair) = (dimension / (head_dim / 2), dimension % (head_dim / 2));
            head * head_dim + 2 * pair + half
        })
        .collect()
}

/// The rows of a tensor in bfloat16; None of another.
fn bfloat16_rows(tensor: &Tensor) -> Result<Option<CompactRows>, InferenceError> {
    if tensor.kind() != Kind::BFloat16 {
        return Ok(None);
    }
    let (_, width) = tensor.size2()?;
    let halves = Vec::<i16>::try_from(tensor.f_contiguous()?.f_view_dtype(Kind::Int16)?.f_flatten(0, -1)?)?;
    let halves = halves.into_iter().map(i16::cast_unsigned).collect();
    Ok(CompactRows::new(width as usize, Values::BFloat16(halves)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_rows_are_reordered_like_their_dense_values_and_stacked() {
        let kind = Kind::Float;
        let tensor = Tensor::arange(8 * 32, (kind, Device::Cpu))
            .view([8, 32])
            .to_kind(Kind::BFloat16);
        let order = half_rotation_order(8, 2);
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let rows: Vec<i64> = order.iter().map(|&row| row as i64).collect();
        let reordered = |tensor: &Tensor| Weight {
            tensor: tensor.index_select(0, &Tensor::from_slice(&rows)).to_kind(kind),
            compact: bfloat16_rows(tensor)
                .unwrap()
                .and_then(|rows| rows.reordered(&order))
                .map(Arc::new),
        };
        let stacked = Weight::stack(&[reordered(&tensor), reordered(&(&tensor * 2.0))]).unwrap();
        let dense = Vec::<f32>::try_from(stacked.tensor.flatten(0, -1)).unwrap();
        assert_eq!(stacked.compact.unwrap().to_floats(), dense);
        // One that has no compact form leaves the stack without.
        let without = Weight {
            tensor: tensor.to_kind(kind),
            compact: None,
        };
        assert!(Weight::stack(&[reordered(&tensor), without]).unwrap().compact.is_none());
    }
}
