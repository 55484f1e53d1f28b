//! Products of many rows: each lane of a register is a row of the input, and a weight is multiplied with all of them at once. Nothing is
//! left to sum at the end, which is a fifth of the time of [`few_rows`](super::few_rows), and each weight is loaded once for 32 rows instead of 6.

use std::cell::Cell;

use super::{FLOATS_PER_LINE, Lanes, Part, few_rows};
use crate::kernels::team::Team;
use crate::kernels::tensor_view::Rows;
use crate::kernels::vector_math::{NEAR, prefetch};

/// Groups of rows that a weight is multiplied with at once.
pub(super) const MOST_GROUPS_AT_ONCE: usize = 2;
/// Outputs at once where there are 32 registers: 2 · 12 sums, two groups of rows and a weight.
const WIDE_TILE: usize = 12;
/// Outputs at once where there are 16.
const NARROW_TILE: usize = 6;
/// Groups from which on rearranging is worth waking the other threads.
const GROUPS_FOR_TEAM: usize = 4;

/// The input with the rows of a group beside each other: `[groups, width, lanes]`, with zeros for the rows that the last one lacks.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    floats: &'a [f32],
    /// Floats of a group.
    group_len: usize,
}

impl Packed<'_> {
    /// Rearranges the first `n_groups` groups of rows for as long as `work` runs.
    pub(super) fn with(input: &Rows<'_>, n_groups: usize, lanes: usize, team: &Team, work: impl FnOnce(Packed<'_>)) {
        thread_local! {
            /// Kept from one linear map to the next: new memory would have to be cleared each time.
            static MEMORY: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
        }
        let group_len = lanes * input.len();
        let mut memory = MEMORY.take();
        if memory.len() < n_groups * group_len {
            memory.resize(n_groups * group_len, 0.0);
        }
        let mut groups: Vec<(usize, &mut [f32])> =
            memory.chunks_exact_mut(group_len).take(n_groups).enumerate().collect();
        let pack = |(group, floats): &mut (usize, &mut [f32])| pack(input, *group * lanes, lanes, floats);
        if n_groups < GROUPS_FOR_TEAM {
            groups.iter_mut().for_each(pack);
        } else {
            team.run(&mut groups, pack);
        }
        work(Packed {
            floats: &memory[..n_groups * group_len],
            group_len,
        });
        MEMORY.set(memory);
    }
}

/// Rearranges the rows from `first` on into one group `[width, lanes]`.
fn pack(input: &Rows<'_>, first: usize, lanes: usize, group: &mut [f32]) {
    let n = lanes.min(input.n() - first);
    // A cache line of each row at a time, so that what is written stays in the first-level cache until it is complete.
    for (at, group) in group.chunks_mut(FLOATS_PER_LINE * lanes).enumerate() {
        let len = group.len() / lanes;
        for lane in 0..n {
            let row = &input.row(first + lane)[at * FLOATS_PER_LINE..][..len];
            for (value, group) in row.iter().zip(group.chunks_exact_mut(lanes)) {
                group[lane] = *value;
            }
        }
        for group in group.chunks_exact_mut(lanes) {
            group[n..].fill(0.0);
        }
    }
}

impl Part<'_, '_, '_> {
    /// The rows in front of [`Passes::first_few`](super::Passes).
    #[inline(always)]
    pub(super) fn many_rows<V: Lanes>(&mut self) {
        let n_groups = self.passes.n_groups;
        let mut group = 0;
        while group + MOST_GROUPS_AT_ONCE <= n_groups {
            self.groups_of_all_columns::<V, MOST_GROUPS_AT_ONCE>(group);
            group += MOST_GROUPS_AT_ONCE;
        }
        if group < n_groups {
            self.groups_of_all_columns::<V, 1>(group);
        }
    }

    /// `G` groups of all outputs.
    #[inline(always)]
    fn groups_of_all_columns<V: Lanes, const G: usize>(&mut self, group: usize) {
        let columns = self.columns.range();
        let mut column = columns.start;
        while column < columns.end {
            let left = columns.end - column;
            if V::N == 16 && left >= WIDE_TILE {
                self.groups_of_tile::<V, WIDE_TILE, G>(group, column);
                column += WIDE_TILE;
            } else if left >= NARROW_TILE {
                self.groups_of_tile::<V, NARROW_TILE, G>(group, column);
                column += NARROW_TILE;
            } else {
                self.groups_of_tile::<V, 1, G>(group, column);
                column += 1;
            }
        }
    }

    /// `G` groups of `R` outputs.
    #[inline(always)]
    fn groups_of_tile<V: Lanes, const R: usize, const G: usize>(&mut self, group: usize, column: usize) {
        let width = self.input.len();
        let weight: [&[f32]; R] = std::array::from_fn(|r| &self.weight.row(column + r)[..width]);
        let group_len = self.packed.group_len;
        let input: [&[f32]; G] =
            std::array::from_fn(|g| &self.packed.floats[(group + g) * group_len..][..width * V::N]);
        let mut sums = [[V::splat(0.0); G]; R];
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
                let input: [V; G] = std::array::from_fn(|g| V::load(&input[g][at * V::N..]));
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
        let mut lanes = [[[0.0; 16]; G]; R];
        for (lanes, sums) in lanes.iter_mut().zip(&sums) {
            for (lanes, sum) in lanes.iter_mut().zip(sums) {
                sum.store(lanes);
            }
        }
        for g in 0..G {
            let first = (group + g) * V::N;
            for lane in 0..V::N.min(self.passes.first_few - first) {
                self.finish(first + lane, column, lanes.map(|lanes| lanes[g][lane]));
            }
        }
    }
}
