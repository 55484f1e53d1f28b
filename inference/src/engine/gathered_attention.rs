//! Attention by libtorch's operators: keys and values of a sequence are gathered from the cache, then attended to.

use tch::{Device, IndexOp, Kind, NewAxis, Tensor};

use super::attention::{Heads, Segment};
use super::kv_cache::{KvCache, slot, slots};
use crate::model::Attention;

/// For any device and dtype. Rows that come alone (one token a sequence) are padded to one batch; longer runs go one by one.
pub(super) struct GatheredAttention<'a> {
    heads: Heads,
    cache: &'a mut KvCache,
    /// Slot of each row `[tokens]`.
    slots: Tensor,
    single: Option<SingleRows>,
    runs: Vec<Run>,
}

struct SingleRows {
    /// Their row indices `[n]`.
    rows: Tensor,
    /// Slots of what they attend to, padded `[n * max_len]`.
    gather: Tensor,
    max_len: i64,
    /// 0, or negative infinity on the padding `[n, 1, 1, max_len]`.
    mask: Tensor,
}

/// Rows of one sequence, attending to what lies before them and to each other.
pub(super) struct Run {
    first_row: i64,
    n_rows: i64,
    /// Slots of what the last row attends to `[kv_len]`; None where that is the run itself.
    gather: Option<Tensor>,
    /// 0, or negative infinity for later tokens `[n_queries * n_rows, kv_len]`.
    mask: Tensor,
}

impl Run {
    pub(super) fn new(heads: Heads, segment: &Segment<'_>, (kind, device): (Kind, Device)) -> Self {
        let (n_rows, kv_len) = (segment.rows.len() as i64, segment.kv_len() as i64);
        let gather = (segment.start > 0).then(|| {
            let slots: Vec<i64> = slots(segment.blocks, segment.kv_len()).collect();
            Tensor::from_slice(&slots).to_device(device)
        });
        let last_seen = Tensor::arange_start(segment.start as i64, kv_len, (Kind::Int64, device)).unsqueeze(1);
        let later = Tensor::arange(kv_len, (Kind::Int64, device))
            .unsqueeze(0)
            .greater_tensor(&last_seen);
        let mask = Tensor::zeros([n_rows, kv_len], (kind, device)).masked_fill(&later, f64::NEG_INFINITY);
        Self {
            first_row: segment.rows.start as i64,
            n_rows,
            gather,
            mask: mask.repeat([heads.n_queries(), 1]),
        }
    }

    /// Writes the run's rows of `out` `[tokens, n_heads * head_dim]`. `k`, `v` are the step's, `keys`, `values` the layer's cache.
    pub(super) fn attend(&self, heads: Heads, [q, k, v]: [&Tensor; 3], [keys, values]: [&Tensor; 2], out: &Tensor) {
        let Heads {
            n_heads,
            n_kv_heads,
            head_dim,
        } = heads;
        let rows = |tensor: &Tensor| tensor.narrow(0, self.first_row, self.n_rows);
        let (k, v) = match &self.gather {
            Some(gather) => (keys.index_select(0, gather), values.index_select(0, gather)),
            None => (rows(k), rows(v)),
        };
        // The query heads that share a kv head become rows of it: [n_kv_heads, n_queries * n_rows, head_dim].
        let q = rows(q)
            .reshape([self.n_rows, n_kv_heads, heads.n_queries(), head_dim])
            .permute([1, 2, 0, 3]);
        let q = q.reshape([1, n_kv_heads, heads.n_queries() * self.n_rows, head_dim]);
        let (k, v) = (k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0));
        let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, Some(&self.mask), 0.0, false, None, false);
        let attended = attended
            .reshape([n_kv_heads, heads.n_queries(), self.n_rows, head_dim])
            .permute([2, 0, 1, 3]);
        rows(out)
            .view([self.n_rows, n_kv_heads, n_heads / n_kv_heads, head_dim])
            .copy_(&attended);
    }
}

impl<'a> GatheredAttention<'a> {
    pub(super) fn new(heads: Heads, cache: &'a mut KvCache, segments: &[Segment<'_>], options: (Kind, Device)) -> Self {
        let of_rows: Vec<i64> = segments
            .iter()
            .flat_map(|segment| (segment.start..segment.kv_len()).map(|position| slot(segment.blocks, position) as i64))
            .collect();
        let (single, runs): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| segment.rows.len() == 1);
        Self {
            heads,
            cache,
            slots: Tensor::from_slice(&of_rows).to_device(options.1),
            single: SingleRows::new(&single, options),
            runs: runs
                .into_iter()
                .map(|segment| Run::new(heads, segment, options))
                .collect(),
        }
    }
}

impl SingleRows {
    fn new(segments: &[&Segment<'_>], (kind, device): (Kind, Device)) -> Option<Self> {
        let max_len = segments.iter().map(|segment| segment.kv_len()).max()?;
        let rows: Vec<i64> = segments.iter().map(|segment| segment.rows.start as i64).collect();
        let mut gather = Vec::with_capacity(segments.len() * max_len);
        for segment in segments {
            let end = gather.len() + max_len;
            gather.extend(slots(segment.blocks, segment.kv_len()));
            // Padding repeats the first slot, whose content is finite.
            gather.resize(end, slot(segment.blocks, 0) as i64);
        }
        let lengths: Vec<i64> = segments.iter().map(|segment| segment.kv_len() as i64).collect();
        let lengths = Tensor::from_slice(&lengths).to_device(device).unsqueeze(1);
        let padding = Tensor::arange(max_len as i64, (Kind::Int64, device))
            .unsqueeze(0)
            .greater_equal_tensor(&lengths);
        let mask = Tensor::zeros(padding.size(), (kind, device)).masked_fill(&padding, f64::NEG_INFINITY);
        Some(Self {
            rows: Tensor::from_slice(&rows).to_device(device),
            gather: Tensor::from_slice(&gather).to_device(device),
            max_len: max_len as i64,
            mask: mask.i((.., NewAxis, NewAxis)),
        })
    }

    fn attend(&self, heads: Heads, q: &Tensor, [keys, values]: [&Tensor; 2], out: &mut Tensor) {
        let Heads {
            n_heads,
            n_kv_heads,
            head_dim,
        } = heads;
        let gathered = |cache: &Tensor| {
            let rows = cache.index_select(0, &self.gather);
            rows.view([-1, self.max_len, n_kv_heads, head_dim]).transpose(1, 2)
        };
        let q = q
            .index_select(0, &self.rows)
            .view([-1, n_kv_heads, heads.n_queries(), head_dim]);
        let (k, v) = (gathered(keys), gathered(values));
        let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, Some(&self.mask), 0.0, false, None, false);
        let _ = out.index_copy_(0, &self.rows, &attended.reshape([-1, n_heads * head_dim]));
    }
}

impl Attention for GatheredAttention<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let _ = self.cache.keys[layer].index_copy_(0, &self.slots, k);
        let _ = self.cache.values[layer].index_copy_(0, &self.slots, v);
        let cached = [&self.cache.keys[layer], &self.cache.values[layer]];
        let size = [q.size()[0], self.heads.n_heads * self.heads.head_dim];
        let mut out = Tensor::empty(size, (q.kind(), q.device()));
        if let Some(single) = &self.single {
            single.attend(self.heads, q, cached, &mut out);
        }
        for run in &self.runs {
            run.attend(self.heads, [q, k, v], cached, &out);
        }
        out
    }
}
