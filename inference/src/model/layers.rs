//! The pieces of a layer: linear map, norm, rotary embedding, gated activation.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::config::{ModelConfig, RopeScaling};
use super::fused_lora::{AdapterRows, FusedPart};
use super::weights::Weight;
use crate::kernels::compact::CompactRows;
use crate::kernels::{linear, row_ops};

/// A linear map without bias, several of Hugging Face's stacked where they read the same input.
#[derive(Debug)]
pub(super) struct Linear {
    /// `[in, out]`, a view of `[out, in]` memory.
    transposed: Tensor,
    /// The same weights in the few bits of their file, where it has few.
    compact: Option<Arc<CompactRows>>,
}

impl Linear {
    /// From rows `[out, in]`.
    pub(super) fn new(weight: &Weight) -> Self {
        Self {
            transposed: weight.tensor.contiguous().tr(),
            compact: weight.compact.clone(),
        }
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            transposed: self.transposed.shallow_clone(),
            compact: self.compact.clone(),
        }
    }

    /// `[tokens, in]` → `[tokens, out]`, plus `residual` where there is one.
    pub(super) fn apply(&self, input: &Tensor, residual: Option<&Tensor>) -> Tensor {
        if let Some(output) = linear::linear(input, &self.transposed, self.compact.as_deref(), residual) {
            return output;
        }
        match residual {
            Some(residual) => residual.addmm(input, &self.transposed),
            None => input.mm(&self.transposed),
        }
    }

    /// [`apply`](Self::apply) with the adapters' update at this place (layer and part).
    pub(super) fn apply_with(
        &self,
        input: &Tensor,
        residual: Option<&Tensor>,
        adapters: &AdapterRows<'_>,
        place: (usize, FusedPart),
    ) -> Tensor {
        let mut output = self.apply(input, residual);
        match adapters {
            AdapterRows::Base => {}
            AdapterRows::All(lora) => {
                if let Some(low_rank) = lora.at(place) {
                    low_rank.add_to(&mut output, input);
                }
            }
            AdapterRows::Segments(segments) => {
                let mut start = 0;
                for &(rows, lora) in *segments {
                    if let Some(low_rank) = lora.and_then(|lora| lora.at(place)) {
                        low_rank.add_to(&mut output.narrow(0, start, rows), &input.narrow(0, start, rows));
                    }
                    start += rows;
                }
            }
        }
        output
    }
}

/// Root-mean-square norm, computed in float32.
#[derive(Debug)]
pub(super) struct RmsNorm {
    /// `[hidden]`.
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    pub(super) fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps }
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            eps: self.eps,
        }
    }

    /// `[tokens, hidden]` → the same shape and kind.
    pub(super) fn apply(&self, input: &Tensor) -> Tensor {
        let kind = input.kind();
        if let Some(output) = row_ops::rms_norm(input, &self.weight, self.eps) {
            return output;
        }
        if kind == Kind::Float {
            return input.rms_norm(self.weight.size(), Some(&self.weight), self.eps);
        }
        let wide = input.to_kind(Kind::Float);
        wide.rms_norm(self.weight.size(), None::<&Tensor>, self.eps)
            .to_kind(kind)
            * &self.weight
    }
}

/// Rotary position embedding in Hugging Face's half rotation: dimension `i` of a head turns with `i + head_dim / 2`.
#[derive(Debug)]
pub(super) struct RotaryEmbedding {
    /// `[max_position, head_dim]` each, float32; the sine's first half is negated.
    cos: Tensor,
    sin: Tensor,
    half: i64,
}

impl RotaryEmbedding {
    pub(super) fn new(config: &ModelConfig, device: Device) -> Self {
        let frequencies = Tensor::from_slice(&inverse_frequencies(config));
        let positions = Tensor::arange(config.max_position, (Kind::Float, Device::Cpu));
        // float32 products, as transformers computes them.
        let angles = positions.unsqueeze(1) * frequencies.to_kind(Kind::Float).unsqueeze(0);
        let (cos, sin) = (angles.cos(), angles.sin());
        Self {
            cos: Tensor::cat(&[&cos, &cos], 1).to_device(device),
            sin: Tensor::cat(&[&sin.neg(), &sin], 1).to_device(device),
            half: config.head_dim / 2,
        }
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            cos: self.cos.shallow_clone(),
            sin: self.sin.shallow_clone(),
            half: self.half,
        }
    }

    /// The rotation of the given positions `[tokens]`, to be used by all layers.
    pub(super) fn at(&self, positions: &Tensor, kind: Kind) -> Rotation {
        let rows = |table: &Tensor| table.index_select(0, positions).unsqueeze(1).to_kind(kind);
        Rotation {
            cos: rows(&self.cos),
            sin: rows(&self.sin),
            half: self.half,
        }
    }
}

/// Cosines and sines of a batch's positions, `[tokens, 1, head_dim]` each.
#[derive(Debug)]
pub(super) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    half: i64,
}

impl Rotation {
    /// Turns `[tokens, heads, head_dim]`.
    pub(super) fn apply(&self, heads: &Tensor) -> Tensor {
        row_ops::rotate(heads, &self.cos, &self.sin)
            .unwrap_or_else(|| (heads * &self.cos).addcmul(&heads.roll([self.half], [2]), &self.sin))
    }
}

/// Radians a position, one for each pair of dimensions, `[head_dim / 2]`.
fn inverse_frequencies(config: &ModelConfig) -> Vec<f64> {
    let plain = (0..config.head_dim / 2).map(|index| {
        // transformers computes these in float32; the difference shows at thousands of positions.
        let exponent = (2 * index) as f32 / config.head_dim as f32;
        f64::from(1.0 / (config.rope_theta as f32).powf(exponent))
    });
    match &config.rope_scaling {
        None => plain.collect(),
        Some(RopeScaling::Linear { factor }) => plain.map(|frequency| frequency / factor).collect(),
        Some(RopeScaling::Divisors(divisors)) => plain
            .zip(divisors)
            .map(|(frequency, divisor)| frequency / divisor)
            .collect(),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        }) => plain
            .map(|frequency| {
                let wavelength = std::f64::consts::TAU / frequency;
                let turns = original_max_position / wavelength;
                let share_kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                frequency * (share_kept + (1.0 - share_kept) / factor)
            })
            .collect(),
    }
}

/// `silu(gate) · up` of the fused `[tokens, 2 · intermediate]` → `[tokens, intermediate]`.
pub(super) fn gated_silu(gate_up: &Tensor) -> Tensor {
    if let Some(output) = row_ops::gated_silu(gate_up) {
        return output;
    }
    let intermediate = gate_up.size()[1] / 2;
    let (mut gate, up) = split_in_two(gate_up, intermediate);
    if gate_up.requires_grad() {
        return gate.silu() * up;
    }
    // Nobody needs the linear layer's output again, so it can be overwritten.
    gate.silu_() * up
}

/// `x[:, ..n]` and `x[:, n..]`. One split, since the backward pass of two slices would fill a gradient of the whole
/// width for each and add them.
pub(super) fn split_in_two(x: &Tensor, n: i64) -> (Tensor, Tensor) {
    let mut parts = x.split_with_sizes([n, x.size()[1] - n], 1);
    let after = parts.swap_remove(1);
    (parts.swap_remove(0), after)
}
