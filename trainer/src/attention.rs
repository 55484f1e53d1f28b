//! Attention over a piece of the forest: each token sees the tokens on its path from the root, and nothing else.
//!
//! No mask of the whole piece is ever made. Segments with the same parent are attended to in one call, an
//! [`AttentionCall`], as far as that wastes little; its keys are those of the path above and its own.

use std::collections::{BTreeMap, HashMap};

use inference::model::Attention;
use tch::{Device, Kind, Tensor};

use crate::forest::Forest;

/// Siblings share a call while the keys that they don't see make it at most this much larger than the smallest of them
/// alone would be.
const MAX_WASTE: f64 = 1.5;

/// Keys and values of one segment in one layer, each `[segment tokens, n_kv_heads, head_dim]`.
#[derive(Debug)]
pub(crate) struct KeyValue {
    pub(crate) key: Tensor,
    pub(crate) value: Tensor,
}

/// Keys and values of the pieces above, by segment and layer: leaves that collect gradients.
pub(crate) type Leaves = BTreeMap<usize, Vec<KeyValue>>;

/// One call of the attention kernel: sibling segments against their common path and themselves.
#[derive(Debug)]
struct AttentionCall {
    /// Segments above, from the root.
    path: Vec<usize>,
    /// Places of its segments in [`PieceLayout::segments`], which are neighbours.
    own: std::ops::Range<usize>,
    /// Number of its tokens.
    n_tokens: i64,
    /// `[tokens, path tokens + tokens]`, 0 where a token may look and −∞ elsewhere; `None`: causal.
    mask: Option<Tensor>,
}

/// The order of a piece's tokens in the model's flat rows.
#[derive(Debug)]
pub(crate) struct PieceLayout {
    /// Segments in the order of their rows.
    segments: Vec<usize>,
    /// Number of tokens of each.
    n_tokens: Vec<i64>,
    calls: Vec<AttentionCall>,
    /// First row of each segment.
    first_row: HashMap<usize, i64>,
}

impl PieceLayout {
    pub(crate) fn new(forest: &Forest, segments: &[usize], device: Device, kind: Kind) -> Self {
        let mut by_parent: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for &segment in segments {
            by_parent
                .entry(forest.segments()[segment].parent)
                .or_default()
                .push(segment);
        }
        let mut layout = Self {
            segments: Vec::new(),
            n_tokens: Vec::new(),
            calls: Vec::new(),
            first_row: HashMap::new(),
        };
        let mut row = 0;
        for (_, siblings) in by_parent {
            for group in share_calls(forest, &siblings) {
                let lengths: Vec<i64> = group
                    .iter()
                    .map(|&segment| forest.segments()[segment].n_tokens() as i64)
                    .collect();
                let n_tokens = lengths.iter().sum();
                let path_tokens = forest.segments()[group[0]].start as i64;
                layout.calls.push(AttentionCall {
                    path: forest.ancestors(group[0]),
                    own: layout.segments.len()..layout.segments.len() + group.len(),
                    n_tokens,
                    mask: (path_tokens > 0 || group.len() > 1).then(|| mask(path_tokens, &lengths, device, kind)),
                });
                for (&segment, &length) in group.iter().zip(&lengths) {
                    layout.first_row.insert(segment, row);
                    row += length;
                }
                layout.segments.extend(group);
                layout.n_tokens.extend(lengths);
            }
        }
        layout
    }

    /// Row of a token, if its segment lies in this piece.
    pub(crate) fn row(&self, segment: usize, offset: usize) -> Option<i64> {
        self.first_row.get(&segment).map(|first| first + offset as i64)
    }

    /// Token ids and positions of all rows, `[rows]` each.
    pub(crate) fn inputs(&self, forest: &Forest, device: Device) -> (Tensor, Tensor) {
        let (mut token_ids, mut positions) = (Vec::new(), Vec::new());
        for &segment in &self.segments {
            let segment = &forest.segments()[segment];
            token_ids.extend(segment.token_ids.iter().map(|&id| i64::from(id)));
            positions.extend((0..segment.n_tokens()).map(|offset| (segment.start + offset) as i64));
        }
        (
            Tensor::from_slice(&token_ids).to_device(device),
            Tensor::from_slice(&positions).to_device(device),
        )
    }
}

/// Groups siblings into calls. Short segments go together, a long one has a call of its own.
fn share_calls(forest: &Forest, siblings: &[usize]) -> Vec<Vec<usize>> {
    let mut siblings = siblings.to_vec();
    siblings.sort_by_key(|&segment| forest.segments()[segment].n_tokens());
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let (mut keys, mut smallest) = (0, 0);
    for segment in siblings {
        let n_tokens = forest.segments()[segment].n_tokens();
        let alone = forest.segments()[segment].start + n_tokens;
        match groups.last_mut() {
            Some(group) if (keys + n_tokens) as f64 <= MAX_WASTE * smallest as f64 => {
                group.push(segment);
                keys += n_tokens;
            }
            _ => {
                groups.push(vec![segment]);
                (keys, smallest) = (alone, alone);
            }
        }
    }
    groups
}

/// All see the path; within the own part each segment sees itself, causally.
fn mask(path_tokens: i64, lengths: &[i64], device: Device, kind: Kind) -> Tensor {
    let n_tokens: i64 = lengths.iter().sum();
    let mask = Tensor::full([n_tokens, path_tokens + n_tokens], f64::NEG_INFINITY, (kind, device));
    let _ = mask.narrow(1, 0, path_tokens).zero_();
    let mut first = 0;
    for &length in lengths {
        let causal = Tensor::full([length, length], f64::NEG_INFINITY, (kind, device)).triu(1);
        mask.narrow(0, first, length)
            .narrow(1, path_tokens + first, length)
            .copy_(&causal);
        first += length;
    }
    mask
}

/// The [`Attention`] of one piece's forward pass.
pub(crate) struct ForestAttention<'a> {
    layout: &'a PieceLayout,
    above: &'a Leaves,
    /// Segments that pieces below attend to.
    keep: &'a [usize],
    /// Their keys and values with the graph that made them, by segment and layer.
    kept: Leaves,
}

impl<'a> ForestAttention<'a> {
    pub(crate) fn new(layout: &'a PieceLayout, above: &'a Leaves, keep: &'a [usize]) -> Self {
        let kept = keep.iter().map(|&segment| (segment, Vec::new())).collect();
        Self {
            layout,
            above,
            keep,
            kept,
        }
    }

    /// Keys and values of the segments to keep, with their graph.
    pub(crate) fn into_kept(self) -> Leaves {
        self.kept
    }
}

impl Attention for ForestAttention<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let (n_kv_heads, head_dim) = (k.size()[1], k.size()[2]);
        let heads_per_kv = q.size()[1] / n_kv_heads;
        let keys = k.split_with_sizes(&self.layout.n_tokens[..], 0);
        let values = v.split_with_sizes(&self.layout.n_tokens[..], 0);
        let place: HashMap<usize, usize> = self
            .layout
            .segments
            .iter()
            .enumerate()
            .map(|(place, &segment)| (segment, place))
            .collect();
        for segment in self.keep {
            if let (Some(&place), Some(kept)) = (place.get(segment), self.kept.get_mut(segment)) {
                kept.push(KeyValue {
                    key: keys[place].shallow_clone(),
                    value: values[place].shallow_clone(),
                });
            }
        }
        let calls: Vec<i64> = self.layout.calls.iter().map(|call| call.n_tokens).collect();
        let queries = q.split_with_sizes(&calls[..], 0);
        let mut outputs = Vec::with_capacity(calls.len());
        for (call, query) in self.layout.calls.iter().zip(queries) {
            let (mut call_keys, mut call_values) = (Vec::new(), Vec::new());
            for segment in &call.path {
                match place.get(segment) {
                    Some(&place) => {
                        call_keys.push(&keys[place]);
                        call_values.push(&values[place]);
                    }
                    None => {
                        let leaf = &self.above[segment][layer];
                        call_keys.push(&leaf.key);
                        call_values.push(&leaf.value);
                    }
                }
            }
            call_keys.extend(&keys[call.own.clone()]);
            call_values.extend(&values[call.own.clone()]);
            // The kernel wants as many key heads as query heads: the key heads are its batch, and the query heads that
            // share one are its heads, which see it through a stride of 0.
            let spread = |parts: &[&Tensor]| {
                let whole = if let [part] = parts {
                    part.shallow_clone()
                } else {
                    Tensor::cat(parts, 0)
                };
                let n_keys = whole.size()[0];
                whole
                    .permute([1, 0, 2])
                    .unsqueeze(1)
                    .expand([n_kv_heads, heads_per_kv, n_keys, head_dim], false)
            };
            let query = query
                .view([call.n_tokens, n_kv_heads, heads_per_kv, head_dim])
                .permute([1, 2, 0, 3]);
            let output = Tensor::scaled_dot_product_attention(
                &query,
                &spread(&call_keys),
                &spread(&call_values),
                call.mask.as_ref(),
                0.0,
                call.mask.is_none(),
                None,
                false,
            );
            outputs.push(
                output
                    .permute([2, 0, 1, 3])
                    .reshape([call.n_tokens, n_kv_heads * heads_per_kv * head_dim]),
            );
        }
        if outputs.len() == 1 {
            outputs.remove(0)
        } else {
            Tensor::cat(&outputs, 0)
        }
    }
}
