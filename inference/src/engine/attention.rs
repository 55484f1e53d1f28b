//! Attention of a step over the paged cache: writes the new keys and values, and lets each row attend to its sequence.
//!
//! Two implementations agree with each other (tested): [`DirectAttention`] reads float32 on the CPU where it lies;
//! [`GatheredAttention`] is made of libtorch's operators and serves every device and dtype, and long chunks of prompts.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::block_pool::BlockId;
use super::decode_kernel;
use super::direct_attention::DirectAttention;
use super::gathered_attention::GatheredAttention;
use super::kv_cache::KvCache;
use crate::model::{Attention, ModelConfig};

/// Head counts and size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) n_heads: i64,
    pub(super) n_kv_heads: i64,
    pub(super) head_dim: i64,
}

impl Heads {
    pub(super) fn of(config: &ModelConfig) -> Self {
        Self {
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        }
    }

    /// Query heads that share a kv head.
    pub(super) fn n_queries(self) -> i64 {
        self.n_heads / self.n_kv_heads
    }
}

/// The rows of one sequence in a step: tokens at `start..start + rows.len()`.
pub(super) struct Segment<'a> {
    pub(super) rows: Range<usize>,
    /// Tokens before, already in the cache.
    pub(super) start: usize,
    pub(super) blocks: &'a [BlockId],
}

impl Segment<'_> {
    /// Tokens that the last row attends to.
    pub(super) fn kv_len(&self) -> usize {
        self.start + self.rows.len()
    }
}

/// The [`Attention`] of one step.
pub(super) enum StepAttention<'a> {
    Direct(DirectAttention<'a>),
    Gathered(GatheredAttention<'a>),
}

impl<'a> StepAttention<'a> {
    /// Prepares what all layers of the step share.
    pub(super) fn new(
        heads: Heads,
        cache: &'a mut KvCache,
        segments: &'a [Segment<'a>],
        (kind, device): (Kind, Device),
    ) -> Self {
        if kind == Kind::Float && device == Device::Cpu && decode_kernel::supports(heads.head_dim as usize) {
            Self::Direct(DirectAttention::new(heads, cache, segments))
        } else {
            Self::Gathered(GatheredAttention::new(heads, cache, segments, (kind, device)))
        }
    }
}

impl Attention for StepAttention<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        match self {
            Self::Direct(attention) => attention.attend(layer, q, k, v),
            Self::Gathered(attention) => attention.attend(layer, q, k, v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::block_pool::BLOCK_SIZE;

    /// Three layers' worth of steps over a cache of shuffled blocks: both implementations, row by row.
    #[test]
    fn direct_and_gathered_attention_agree() {
        let options = (Kind::Float, Device::Cpu);
        for heads in [
            Heads {
                n_heads: 9,
                n_kv_heads: 3,
                head_dim: 64,
            },
            Heads {
                n_heads: 4,
                n_kv_heads: 4,
                head_dim: 32,
            },
            Heads {
                n_heads: 8,
                n_kv_heads: 1,
                head_dim: 16,
            },
        ] {
            tch::manual_seed(5);
            let size = [64 * BLOCK_SIZE as i64, heads.n_kv_heads, heads.head_dim];
            let pool = || (0..2).map(|_| Tensor::randn(size, options)).collect::<Vec<_>>();
            let mut direct_cache = KvCache {
                keys: pool(),
                values: pool(),
            };
            let copies = |tensors: &[Tensor]| tensors.iter().map(Tensor::copy).collect::<Vec<_>>();
            let mut gathered_cache = KvCache {
                keys: copies(&direct_cache.keys),
                values: copies(&direct_cache.values),
            };
            let blocks: Vec<BlockId> = (0..64).map(|index| (index * 37) % 64).collect();
            let segments = [
                Segment {
                    rows: 0..1,
                    start: 0,
                    blocks: &blocks[..1],
                },
                Segment {
                    rows: 1..2,
                    start: 200,
                    blocks: &blocks[1..14],
                },
                Segment {
                    rows: 2..5,
                    start: 14,
                    blocks: &blocks[14..16],
                },
                Segment {
                    rows: 5..75,
                    start: 0,
                    blocks: &blocks[16..22],
                },
                Segment {
                    rows: 75..175,
                    start: 33,
                    blocks: &blocks[22..32],
                },
                Segment {
                    rows: 175..176,
                    start: 15,
                    blocks: &blocks[32..34],
                },
            ];
            for n_segments in [2, 6] {
                let segments = &segments[..n_segments];
                let n_rows = segments[n_segments - 1].rows.end as i64;
                let mut direct = DirectAttention::new(heads, &mut direct_cache, segments);
                let mut gathered = GatheredAttention::new(heads, &mut gathered_cache, segments, options);
                for layer in 0..2 {
                    // Queries as a view of wider rows, as they come out of one matrix product.
                    let qkv = Tensor::randn([n_rows, heads.n_heads + 2 * heads.n_kv_heads, heads.head_dim], options);
                    let (q, k) = (
                        qkv.narrow(1, 0, heads.n_heads),
                        qkv.narrow(1, heads.n_heads, heads.n_kv_heads),
                    );
                    let v = qkv.narrow(1, heads.n_heads + heads.n_kv_heads, heads.n_kv_heads);
                    let difference = direct.attend(layer, &q, &k, &v) - gathered.attend(layer, &q, &k, &v);
                    assert!(
                        difference.abs().max().double_value(&[]) < 1e-5,
                        "{heads:?} {n_segments} {layer}"
                    );
                }
            }
            for (direct, gathered) in direct_cache.keys.iter().zip(&gathered_cache.keys) {
                assert!(direct.equal(gathered));
            }
        }
    }
}
