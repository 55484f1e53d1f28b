//! Attention of single query rows over the paged cache, on the CPU in float32: keys and values are read where they lie.
//!
//! The unit of work is a [`Piece`]: the query heads that share one kv head, for one row, over a run of positions. Its answer is a
//! softmax not yet divided by its sum, so that pieces of one row can be [merged](merge).

use std::ops::Range;

use super::block_pool::{BLOCK_SIZE, BlockId};
use crate::kernels::vector_math::{InstructionSet, Kernel, Lanes, dispatch, exp_lanes, largest_lane};

/// One layer's keys or values.
#[derive(Clone, Copy)]
pub(super) struct PagedRows<'a> {
    /// `[slots, n_kv_heads, head_dim]`
    pub(super) floats: &'a [f32],
    /// `n_kv_heads * head_dim`
    pub(super) slot_len: usize,
}

/// Query heads of one kv head, over a run of positions.
pub(super) struct Piece<'a> {
    /// `[n_queries, head_dim]`: the heads that share the kv head.
    pub(super) queries: &'a [f32],
    pub(super) keys: PagedRows<'a>,
    pub(super) values: PagedRows<'a>,
    /// Where the kv head begins in a slot.
    pub(super) head_offset: usize,
    /// The sequence's blocks.
    pub(super) blocks: &'a [BlockId],
    pub(super) positions: Range<usize>,
}

/// Floats of a piece's answer: per query head `head_dim` weighted values, then the sum of the weights and the largest score.
pub(super) fn answer_len(n_queries: usize, head_dim: usize) -> usize {
    n_queries * (head_dim + 2)
}

/// Whether the kernel has been made for heads of this size.
pub(super) fn supports(head_dim: usize) -> bool {
    matches!(head_dim, 16 | 32 | 64 | 96 | 128)
}

/// Computes a piece into `answer` `[n_queries, head_dim + 2]`. `scores` is scratch.
pub(super) fn attend(
    set: InstructionSet,
    piece: &Piece<'_>,
    head_dim: usize,
    scores: &mut Vec<f32>,
    answer: &mut [f32],
) {
    let len = piece.positions.len();
    scores.clear();
    // Two query heads at a time keep their sums in registers also where these are few.
    let n_queries = piece.queries.len() / head_dim;
    scores.resize(3 * len.next_multiple_of(16), 0.0);
    let mut done = 0;
    while done < n_queries {
        let n = (n_queries - done).min(3);
        let work = Work {
            queries: &piece.queries[done * head_dim..(done + n) * head_dim],
            piece,
            head_dim,
            scores,
            answer: &mut answer[done * (head_dim + 2)..(done + n) * (head_dim + 2)],
        };
        match n {
            1 => dispatch(set, Few::<1>(work)),
            2 => dispatch(set, Few::<2>(work)),
            _ => dispatch(set, Few::<3>(work)),
        }
        done += n;
    }
}

struct Work<'a> {
    queries: &'a [f32],
    piece: &'a Piece<'a>,
    head_dim: usize,
    scores: &'a mut [f32],
    answer: &'a mut [f32],
}

/// The work for `G` query heads.
struct Few<'a, const G: usize>(Work<'a>);

impl<const G: usize> Kernel for Few<'_, G> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        match self.0.head_dim / V::N {
            1 => few::<V, G, 1>(self.0),
            2 => few::<V, G, 2>(self.0),
            4 => few::<V, G, 4>(self.0),
            6 => few::<V, G, 6>(self.0),
            8 => few::<V, G, 8>(self.0),
            12 => few::<V, G, 12>(self.0),
            _ => few::<V, G, 16>(self.0),
        }
    }
}

/// `C` registers make up a head.
#[inline(always)]
fn few<V: Lanes, const G: usize, const C: usize>(work: Work<'_>) {
    let Work {
        queries,
        piece,
        head_dim,
        scores,
        answer,
    } = work;
    let len = piece.positions.len();
    let scores_stride = len.next_multiple_of(16);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let query: [[V; C]; G] = std::array::from_fn(|g| {
        std::array::from_fn(|c| V::load(&queries[g * head_dim + c * V::N..]).mul(V::splat(scale)))
    });
    for_each_run(piece.keys, piece, |first, keys| {
        let keys = Run {
            floats: keys,
            piece,
            head_dim,
        };
        let mut at = 0;
        // Four keys at a time: their sums over the lanes cost hardly more than one's.
        while at + 4 <= keys.len() {
            let four = std::array::from_fn(|key| keys.row(at + key));
            for (g, sums) in dot_products::<V, G, C, 4>(&query, four).into_iter().enumerate() {
                scores[g * scores_stride + first + at..][..4].copy_from_slice(&V::sums(sums));
            }
            at += 4;
        }
        for at in at..keys.len() {
            for (g, [sum]) in dot_products::<V, G, C, 1>(&query, [keys.row(at)])
                .into_iter()
                .enumerate()
            {
                scores[g * scores_stride + first + at] = sum.sum();
            }
        }
    });
    for g in 0..G {
        let scores = &mut scores[g * scores_stride..][..len];
        let largest = largest_lane::<V>(scores);
        let sum = exp_lanes::<V>(scores, largest, 1.0);
        answer[g * (head_dim + 2) + head_dim] = sum;
        answer[g * (head_dim + 2) + head_dim + 1] = largest;
    }
    let mut weighted = [[V::splat(0.0); C]; G];
    for_each_run(piece.values, piece, |first, values| {
        let values = Run {
            floats: values,
            piece,
            head_dim,
        };
        for at in 0..values.len() {
            let weights: [V; G] = std::array::from_fn(|g| V::splat(scores[g * scores_stride + first + at]));
            let value = values.row(at);
            for c in 0..C {
                let value = V::load(&value[c * V::N..]);
                for g in 0..G {
                    weighted[g][c] = value.mul_add(weights[g], weighted[g][c]);
                }
            }
        }
    });
    for g in 0..G {
        for c in 0..C {
            weighted[g][c].store(&mut answer[g * (head_dim + 2) + c * V::N..]);
        }
    }
}

/// The products of `G` queries with `R` keys, not yet summed over the lanes.
#[inline(always)]
fn dot_products<V: Lanes, const G: usize, const C: usize, const R: usize>(
    query: &[[V; C]; G],
    keys: [&[f32]; R],
) -> [[V; R]; G] {
    let mut sums = [[V::splat(0.0); R]; G];
    for c in 0..C {
        for (r, key) in keys.iter().enumerate() {
            let key = V::load(&key[c * V::N..]);
            for (sums, query) in sums.iter_mut().zip(query) {
                sums[r] = key.mul_add(query[c], sums[r]);
            }
        }
    }
    sums
}

/// Neighbouring slots of one block.
#[derive(Clone, Copy)]
struct Run<'a, 'b> {
    floats: &'a [f32],
    piece: &'a Piece<'b>,
    head_dim: usize,
}

impl<'a> Run<'a, '_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.floats.len() / self.piece.keys.slot_len
    }

    /// The kv head's row in a slot.
    #[inline(always)]
    fn row(self, slot: usize) -> &'a [f32] {
        &self.floats[slot * self.piece.keys.slot_len + self.piece.head_offset..][..self.head_dim]
    }
}

/// Calls `visit` for each block with the first position's index in the piece and the block's slots.
#[inline(always)]
fn for_each_run(rows: PagedRows<'_>, piece: &Piece<'_>, mut visit: impl FnMut(usize, &[f32])) {
    let mut position = piece.positions.start;
    while position < piece.positions.end {
        let in_block = position % BLOCK_SIZE;
        let n = (BLOCK_SIZE - in_block).min(piece.positions.end - position);
        let first_slot = piece.blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + in_block;
        visit(
            position - piece.positions.start,
            &rows.floats[first_slot * rows.slot_len..(first_slot + n) * rows.slot_len],
        );
        position += n;
    }
}

/// Merges the answers of a row's pieces, one after the other in `answers`, into `out` `[n_queries, head_dim]`.
pub(super) fn merge(answers: &[f32], n_queries: usize, head_dim: usize, out: &mut [f32]) {
    let answer_len = answer_len(n_queries, head_dim);
    for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let of_head = |answer: usize| &answers[answer * answer_len + g * (head_dim + 2)..][..head_dim + 2];
        let n_answers = answers.len() / answer_len;
        let largest = (0..n_answers)
            .map(|answer| of_head(answer)[head_dim + 1])
            .fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        out.fill(0.0);
        for answer in 0..n_answers {
            let answer = of_head(answer);
            let factor = (answer[head_dim + 1] - largest).exp();
            sum += answer[head_dim] * factor;
            for (out, weighted) in out.iter_mut().zip(answer) {
                *out += weighted * factor;
            }
        }
        let factor = 1.0 / sum;
        out.iter_mut().for_each(|out| *out *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// Softmax attention in f64, straight from its definition.
    fn expected(query: &[f32], piece: &Piece<'_>) -> Vec<f64> {
        let row = |rows: PagedRows<'_>, position: usize| {
            let slot = piece.blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE;
            rows.floats[slot * rows.slot_len + piece.head_offset..][..query.len()].to_vec()
        };
        let dot = |position: usize| -> f64 {
            let key = row(piece.keys, position);
            query
                .iter()
                .zip(key)
                .map(|(&q, k)| f64::from(q) * f64::from(k))
                .sum::<f64>()
                / (query.len() as f64).sqrt()
        };
        let weights: Vec<f64> = piece.positions.clone().map(|position| dot(position).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; query.len()];
        for (position, weight) in piece.positions.clone().zip(weights) {
            for (out, value) in out.iter_mut().zip(row(piece.values, position)) {
                *out += weight / sum * f64::from(value);
            }
        }
        out
    }

    #[test]
    fn equals_softmax_attention_in_every_instruction_set_and_shape() {
        let blocks = [5, 0, 3, 7];
        for head_dim in [16, 32, 64, 96, 128] {
            let slot_len = 2 * head_dim;
            let (keys, values) = (noise(8 * BLOCK_SIZE * slot_len, 1), noise(8 * BLOCK_SIZE * slot_len, 2));
            for (n_queries, len, n_pieces) in [(1, 1, 1), (2, 17, 1), (3, 50, 2), (4, 64, 3), (7, 33, 1)] {
                let queries = noise(n_queries * head_dim, 3);
                for set in InstructionSet::available() {
                    let piece = |positions| Piece {
                        queries: &queries,
                        keys: PagedRows {
                            floats: &keys,
                            slot_len,
                        },
                        values: PagedRows {
                            floats: &values,
                            slot_len,
                        },
                        head_offset: head_dim,
                        blocks: &blocks,
                        positions,
                    };
                    let answer_len = answer_len(n_queries, head_dim);
                    let mut answers = vec![0.0; n_pieces * answer_len];
                    for (index, answer) in answers.chunks_exact_mut(answer_len).enumerate() {
                        let positions = index * len / n_pieces..(index + 1) * len / n_pieces;
                        attend(set, &piece(positions), head_dim, &mut Vec::new(), answer);
                    }
                    let mut out = vec![0.0; n_queries * head_dim];
                    merge(&answers, n_queries, head_dim, &mut out);
                    for (query, out) in queries.chunks_exact(head_dim).zip(out.chunks_exact(head_dim)) {
                        for (expected, &out) in expected(query, &piece(0..len)).into_iter().zip(out) {
                            assert!(
                                (expected - f64::from(out)).abs() < 2e-5,
                                "{set:?} {head_dim} {n_queries} {len}"
                            );
                        }
                    }
                }
            }
        }
    }
}
