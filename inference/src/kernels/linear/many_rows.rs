//! Products of many rows: each lane of a register is a row of the input, and a weight is multiplied with all of them at once. Nothing is
//! left to sum at the end, which is a fifth of the time of [`few_rows`](super::few_rows), and each weight is loaded once for 32 rows instead of 6.

use std::cell::Cell;

use super::{COLUMNS_PER_PART, FLOATS_PER_LINE, Part, few_rows};
use crate::kernels::team::Team;
use crate::kernels::tensor_view::Rows;
use crate::kernels::vector_math::{InstructionSet, Lanes, NEAR, prefetch};

/// Registers that hold the rows of a group.
const REGISTERS: usize = 2;
/// Rows of the largest group.
const MOST_ROWS: usize = REGISTERS * 16;
/// Outputs at once where there are 32 registers: 2 · 12 sums, a group of rows and a weight.
const WIDE_TILE: usize = 12;
/// Outputs at once where there are 16.
const NARROW_TILE: usize = 6;
/// Groups from which on rearranging is worth waking the other threads.
const GROUPS_FOR_TEAM: usize = 2;

/// The products of a group with a part's outputs.
type GroupProducts = [[f32; COLUMNS_PER_PART]; MOST_ROWS];

/// Rows that are multiplied with a weight at once.
pub(super) fn rows_of_group(set: InstructionSet) -> usize {
    REGISTERS * set.lanes()
}

/// The input with the rows of a group beside each other: `[groups, width, rows_of_group]`, with zeros for the rows that the last one lacks.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    floats: &'a [f32],
}

impl Packed<'_> {
    /// Rearranges the first `n_groups` groups of rows for as long as `work` runs.
    pub(super) fn with(
        input: &Rows<'_>,
        n_groups: usize,
        rows_of_group: usize,
        team: &Team,
        work: impl FnOnce(Packed<'_>),
    ) {
        thread_local! {
            /// Kept from one linear map to the next: new memory would have to be cleared each time.
            static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
        }
        let group_len = rows_of_group * input.len();
        let mut memory = MEMORY.take();
        if memory.len() < n_groups * group_len {
            memory.resize(n_groups * group_len, 0.0);
        }
        let floats = &mut memory[..n_groups * group_len];
        let mut groups: Vec<(usize, &mut [f32])> = floats.chunks_exact_mut(group_len).enumerate().collect();
        let pack = |(group, floats): &mut (usize, &mut [f32])| {
            pack(input, *group * rows_of_group, rows_of_group, floats);
        };
        if n_groups < GROUPS_FOR_TEAM {
            groups.iter_mut().for_each(pack);
        } else {
            team.run(&mut groups, pack);
        }
        work(Packed { floats });
        MEMORY.set(memory);
    }
}

/// Rearranges the rows from `first` on into one group `[width, rows_of_group]`.
fn pack(input: &Rows<'_>, first: usize, rows_of_group: usize, group: &mut [f32]) {
    let n = rows_of_group.min(input.n() - first);
    // A cache line of each row at a time, so that what is written stays in the first-level cache until it is complete.
    for (at, group) in group.chunks_mut(FLOATS_PER_LINE * rows_of_group).enumerate() {
        let len = group.len() / rows_of_group;
        for place in 0..n {
            let row = &input.row(first + place)[at * FLOATS_PER_LINE..][..len];
            for (value, group) in row.iter().zip(group.chunks_exact_mut(rows_of_group)) {
                group[place] = *value;
            }
        }
        for group in group.chunks_exact_mut(rows_of_group) {
            group[n..].fill(0.0);
        }
    }
}

impl Part<'_, '_, '_> {
    /// The rows in front of [`Passes::first_few`](super::Passes).
    #[inline(always)]
    pub(super) fn many_rows<V: Lanes>(&mut self) {
        for group in 0..self.passes.n_groups {
            self.group_of_all_columns::<V>(group);
        }
    }

    /// A group's rows of all outputs.
    #[inline(always)]
    fn group_of_all_columns<V: Lanes>(&mut self, group: usize) {
        // Rows of the output often lie a multiple of 4 KiB apart, where they push each other out of the cache; so what belongs to a row
        // is put together here and written once.
        let mut products: GroupProducts = [[0.0; COLUMNS_PER_PART]; MOST_ROWS];
        let columns = self.columns.range();
        let mut column = columns.start;
        while column < columns.end {
            let left = columns.end - column;
            if V::N == 16 && left >= WIDE_TILE {
                self.group_of_tile::<V, WIDE_TILE>(group, column, &mut products);
                column += WIDE_TILE;
            } else if left >= NARROW_TILE {
                self.group_of_tile::<V, NARROW_TILE>(group, column, &mut products);
                column += NARROW_TILE;
            } else {
                self.group_of_tile::<V, 1>(group, column, &mut products);
                column += 1;
            }
        }
        let rows_of_group = REGISTERS * V::N;
        let first = group * rows_of_group;
        let n = rows_of_group.min(self.passes.first_few - first);
        for (place, products) in products.iter().enumerate().take(n) {
            self.finish(first + place, columns.start, &products[..columns.len()]);
        }
    }

    /// A group's rows of `R` outputs.
    #[inline(always)]
    fn group_of_tile<V: Lanes, const R: usize>(&mut self, group: usize, column: usize, products: &mut GroupProducts) {
        let width = self.input.len();
        let rows_of_group = REGISTERS * V::N;
        let weight: [&[f32]; R] = std::array::from_fn(|r| &self.weight.row(column + r)[..width]);
        let input = &self.packed.floats[group * width * rows_of_group..][..width * rows_of_group];
        let mut sums = [[V::splat(0.0); REGISTERS]; R];
        // The first rows to use a tile of weights fetch the next tile.
        let ahead = if group == 0 { self.weight.stride() * R } else { 0 };
        let mut at = 0;
        while at < width {
            if ahead > 0 {
                for weight in weight {
                    prefetch::<NEAR>(weight, at + ahead);
                }
            } else {
                for _ in 0..R / few_rows::TILE {
                    self.next.step();
                }
            }
            let end = (at + FLOATS_PER_LINE).min(width);
            for at in at..end {
                let input = &input[at * rows_of_group..][..rows_of_group];
                let input: [V; REGISTERS] = std::array::from_fn(|register| V::load(&input[register * V::N..]));
                for (sums, weight) in sums.iter_mut().zip(weight) {
                    let weight = V::splat(weight[at]);
                    for (sum, input) in sums.iter_mut().zip(input) {
                        *sum = weight.mul_add(input, *sum);
                    }
                }
            }
            at = end;
        }
        // All sums leave their registers before any is looked up by a number that the compiler does not know, or none would be in one.
        let mut of_rows = [[0.0; MOST_ROWS]; R];
        for (of_rows, sums) in of_rows.iter_mut().zip(&sums) {
            for (register, sum) in sums.iter().enumerate() {
                sum.store(&mut of_rows[register * V::N..]);
            }
        }
        let first = column - self.columns.range().start;
        for (place, products) in products.iter_mut().enumerate().take(rows_of_group) {
            for (product, of_rows) in products[first..first + R].iter_mut().zip(&of_rows) {
                *product = of_rows[place];
            }
        }
    }
}
