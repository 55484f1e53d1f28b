//! Products of a few rows: registers run along the weights of some outputs and the same places of some rows, and their lanes are summed
//! at the end. Nothing has to be rearranged, and a single row costs no more than reading the weights.

use super::{Lanes, Part};
use crate::kernels::vector_math::{NEAR, prefetch};

/// Outputs whose weights are multiplied at once.
pub(super) const TILE: usize = 4;
/// Rows that AVX-512's registers hold the sums of, beside a tile of weights.
pub(super) const MOST_ROWS_AT_ONCE: usize = 6;

impl Part<'_, '_, '_> {
    /// The rows from [`Passes::first_few`](super::Passes) on.
    #[inline(always)]
    pub(super) fn few_rows<V: Lanes>(&mut self) {
        // As many rows at once as the registers hold: 4 · 6 sums of 32, or 4 · 2 of 16.
        let most = if V::N == 16 { MOST_ROWS_AT_ONCE } else { 2 };
        let mut row = self.passes.first_few;
        while row < self.input.n() {
            let n = (self.input.n() - row).min(most);
            match n {
                1 => self.rows_of_all_columns::<V, 1>(row),
                2 => self.rows_of_all_columns::<V, 2>(row),
                3 => self.rows_of_all_columns::<V, 3>(row),
                4 => self.rows_of_all_columns::<V, 4>(row),
                5 => self.rows_of_all_columns::<V, 5>(row),
                _ => self.rows_of_all_columns::<V, 6>(row),
            }
            row += n;
        }
    }

    /// `C` rows of all outputs.
    #[inline(always)]
    fn rows_of_all_columns<V: Lanes, const C: usize>(&mut self, row: usize) {
        let columns = self.columns.range();
        let mut column = columns.start;
        while column < columns.end {
            if column + TILE <= columns.end {
                self.rows_of_tile::<V, TILE, C>(row, column);
                column += TILE;
            } else {
                self.rows_of_tile::<V, 1, C>(row, column);
                column += 1;
            }
        }
    }

    /// `C` rows of `R` outputs.
    #[inline(always)]
    fn rows_of_tile<V: Lanes, const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
        let width = self.input.len();
        let weight: [&[f32]; R] = std::array::from_fn(|r| &self.weight.row(column + r)[..width]);
        let input: [&[f32]; C] = std::array::from_fn(|c| &self.input.row(row + c)[..width]);
        let mut sums = [[V::splat(0.0); R]; C];
        // The first rows to use a tile of weights fetch the next tile.
        let ahead = if row == 0 { self.weight.stride() * R } else { 0 };
        let mut at = 0;
        while at + V::N <= width {
            if ahead > 0 {
                for weight in weight {
                    prefetch::<NEAR>(weight, at + ahead);
                }
            }
            if row > 0 {
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
