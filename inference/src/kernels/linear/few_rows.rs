//! Products of a few rows: registers run along the weights of some outputs and the same places of some rows, and their lanes are summed
//! at the end. Nothing has to be rearranged, and a single row costs no more than reading the weights.

use std::cell::Cell;
use std::ops::Range;

use super::{Lanes, Part};
use crate::kernels::vector_math::{NEAR, prefetch};

/// Outputs whose weights are multiplied at once.
pub(super) const TILE: usize = 4;
/// Rows that AVX-512's registers hold the sums of, beside a tile of weights.
pub(super) const MOST_ROWS_AT_ONCE: usize = 6;
/// Floats of expanded weights that leave the first-level cache room for the input.
const EXPANDED: usize = 6144;

/// The weights of some outputs as floats.
#[derive(Clone, Copy)]
struct Weights<'a> {
    floats: &'a [f32],
    stride: usize,
    /// The output that they begin with.
    first: usize,
    /// They come from the memory, where reading ahead pays.
    read_ahead: bool,
}

impl Part<'_, '_, '_> {
    /// The rows from [`Passes::first_few`](super::Passes) on.
    #[inline(always)]
    pub(super) fn few_rows<V: Lanes>(&mut self) {
        let columns = self.columns.range();
        // After the other loop the dense weights are in the cache.
        match self.compact {
            Some(compact) if self.passes.first_few == 0 => {
                thread_local! {
                    static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
                }
                let width = self.input.len();
                let n_outputs = (EXPANDED / width).max(TILE) / TILE * TILE;
                let mut memory = MEMORY.take();
                if memory.len() < n_outputs * width {
                    memory.resize(n_outputs * width, 0.0);
                }
                for first in columns.clone().step_by(n_outputs) {
                    let columns = first..columns.end.min(first + n_outputs);
                    compact.expand::<V>(columns.clone(), &mut memory);
                    let weights = Weights {
                        floats: &memory,
                        stride: width,
                        first,
                        read_ahead: false,
                    };
                    self.rows_of_columns::<V>(weights, columns);
                }
                MEMORY.set(memory);
            }
            _ => {
                let weights = Weights {
                    floats: self.weight.floats(),
                    stride: self.weight.stride(),
                    first: 0,
                    read_ahead: true,
                };
                self.rows_of_columns::<V>(weights, columns);
            }
        }
    }

    #[inline(always)]
    fn rows_of_columns<V: Lanes>(&mut self, weights: Weights<'_>, columns: Range<usize>) {
        // As many rows at once as the registers hold: 4 · 6 sums of 32, or 4 · 2 of 16.
        let most = if V::N == 16 { MOST_ROWS_AT_ONCE } else { 2 };
        let mut row = self.passes.first_few;
        while row < self.input.n() {
            let n = (self.input.n() - row).min(most);
            let columns = columns.clone();
            match n {
                1 => self.so_many_rows::<V, 1>(row, weights, columns),
                2 => self.so_many_rows::<V, 2>(row, weights, columns),
                3 => self.so_many_rows::<V, 3>(row, weights, columns),
                4 => self.so_many_rows::<V, 4>(row, weights, columns),
                5 => self.so_many_rows::<V, 5>(row, weights, columns),
                _ => self.so_many_rows::<V, 6>(row, weights, columns),
            }
            row += n;
        }
    }

    /// `C` rows.
    #[inline(always)]
    fn so_many_rows<V: Lanes, const C: usize>(&mut self, row: usize, weights: Weights<'_>, columns: Range<usize>) {
        let mut column = columns.start;
        while column < columns.end {
            if column + TILE <= columns.end {
                self.rows_of_tile::<V, TILE, C>(row, weights, column);
                column += TILE;
            } else {
                self.rows_of_tile::<V, 1, C>(row, weights, column);
                column += 1;
            }
        }
    }

    /// `C` rows of `R` outputs.
    #[inline(always)]
    fn rows_of_tile<V: Lanes, const R: usize, const C: usize>(
        &mut self,
        row: usize,
        weights: Weights<'_>,
        column: usize,
    ) {
        let width = self.input.len();
        let weight: [&[f32]; R] =
            std::array::from_fn(|r| &weights.floats[(column - weights.first + r) * weights.stride..][..width]);
        let input: [&[f32]; C] = std::array::from_fn(|c| &self.input.row(row + c)[..width]);
        let mut sums = [[V::splat(0.0); R]; C];
        // The first rows to use a tile of weights fetch the next tile.
        let ahead = if row == 0 && weights.read_ahead {
            weights.stride * R
        } else {
            0
        };
        let mut at = 0;
        while at + V::N <= width {
            if ahead > 0 {
                for weight in weight {
                    prefetch::<NEAR>(weight, at + ahead);
                }
            }
            if row > 0 && weights.read_ahead {
                self.next.step();
            }
            let weight: [V; R] = std::array::from_fn(|r| V::load(&weight[r][at..]));
            for (sums, input) in sums.iter_mut().zip(input) {
                let input = V::load(&input[at..]);
                for (sum, weight) in sums.iter_mut().zip(weight) {
                    *sum = weight.mul_add(input, *sum);
                }
            }
            at += V::N;
        }
        // What is left of the width, without registers.
        let tail = |r: usize, c: usize| -> f32 { (at..width).map(|at| weight[r][at] * input[c][at]).sum() };
        for (c, sums) in sums.into_iter().enumerate() {
            let mut products = [0.0; R];
            if R == TILE {
                products.copy_from_slice(&V::sums(std::array::from_fn(|r| sums[r])));
            } else {
                products = sums.map(V::sum);
            }
            if at < width {
                for (r, product) in products.iter_mut().enumerate() {
                    *product += tail(r, c);
                }
            }
            self.finish(row + c, column, &products);
        }
    }
}
