//! The tensors behind the blocks.

use tch::{Device, Kind, Tensor};

use super::EngineError;
use super::block_pool::{BLOCK_SIZE, BlockId};
use crate::model::ModelConfig;

/// Keys and values of every layer. A slot is a token's place, the same in all layers: block × [`BLOCK_SIZE`] + offset.
pub(super) struct KvCache {
    /// Per layer, `[slots, n_kv_heads, head_dim]`, rotated.
    pub(super) keys: Vec<Tensor>,
    /// Per layer, `[slots, n_kv_heads, head_dim]`.
    pub(super) values: Vec<Tensor>,
}

impl KvCache {
    /// Room for `n_slots` tokens. The memory is set aside, on a CPU it is not used before the slots are.
    pub(super) fn new(config: &ModelConfig, n_slots: usize, device: Device, kind: Kind) -> Result<Self, EngineError> {
        let size = [n_slots as i64, config.n_kv_heads, config.head_dim];
        let pool = || {
            let tensors: Result<Vec<Tensor>, _> = (0..config.n_layers)
                .map(|_| Tensor::f_empty(size, (kind, device)))
                .collect();
            tensors.map_err(|source| EngineError::InvalidConfig {
                setting: "kv_cache_tokens",
                message: format!("of {n_slots} do not fit into memory: {source}"),
            })
        };
        Ok(Self {
            keys: pool()?,
            values: pool()?,
        })
    }
}

/// The slot of a position of a sequence that holds `blocks`.
#[inline]
pub(super) fn slot(blocks: &[BlockId], position: usize) -> usize {
    blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE
}

/// The slots of a sequence's first `n` positions.
pub(super) fn slots(blocks: &[BlockId], n: usize) -> impl Iterator<Item = i64> + '_ {
    (0..n).map(|position| slot(blocks, position) as i64)
}
