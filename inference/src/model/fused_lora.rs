//! Adapters in the form that the forward pass multiplies with.

use tch::Tensor;

use crate::kernels::linear::{add_linear, linear};

/// The low-rank update of one fused linear layer: `x · down · up`, with the scale alpha / rank in `up`.
#[derive(Debug)]
pub(super) struct LowRank {
    /// `[in, rank]`: the A's of all modules that the layer fuses, as a transposed view of dense `[rank, in]`.
    pub(super) down: Tensor,
    /// `[rank, out]`: the B's on a block diagonal, times the scale, as a transposed view of dense `[out, rank]`.
    pub(super) up: Tensor,
}

impl LowRank {
    /// Adds the update of `input` `[rows, in]` to `output` `[rows, out]` in place. Differentiable.
    pub(super) fn add_to(&self, output: &mut Tensor, input: &Tensor) {
        let narrow = linear(input, &self.down, None, None).unwrap_or_else(|| input.mm(&self.down));
        if !add_linear(output, &narrow, &self.up) {
            let _ = output.addmm_(&narrow, &self.up);
        }
    }

    fn shallow_clone(&self) -> Self {
        Self {
            down: self.down.shallow_clone(),
            up: self.up.shallow_clone(),
        }
    }
}

/// The linear layers of a layer, as the model fuses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FusedPart {
    Qkv,
    O,
    GateUp,
    Down,
}

/// An adapter made ready by [`LoraAdapter::fuse`](super::LoraAdapter::fuse).
///
/// While gradients are recorded, it belongs to the graph: fuse again after each change of the adapter.
#[derive(Debug)]
pub struct FusedLora {
    /// By layer and [`FusedPart`]; `None` where the adapter leaves a linear layer alone.
    pub(super) layers: Vec<[Option<LowRank>; 4]>,
}

impl FusedLora {
    /// The update of one linear layer.
    pub(super) fn at(&self, (layer, part): (usize, FusedPart)) -> Option<&LowRank> {
        self.layers[layer][part as usize].as_ref()
    }

    /// Another handle on the same tensors.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        let clone = |part: &Option<LowRank>| part.as_ref().map(LowRank::shallow_clone);
        Self {
            layers: self.layers.iter().map(|layer| layer.each_ref().map(clone)).collect(),
        }
    }
}

/// Which adapter each row of a batch goes through.
#[derive(Debug, Clone, Copy)]
pub enum AdapterRows<'a> {
    /// No adapter: the base model.
    Base,
    /// One adapter for all rows.
    All(&'a FusedLora),
    /// Rows in order: so many rows, then the adapter that they use (`None` for the base model). Together they cover
    /// the batch.
    Segments(&'a [(i64, Option<&'a FusedLora>)]),
}
