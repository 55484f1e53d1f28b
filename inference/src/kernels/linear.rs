//! Linear maps on the CPU in float32: what a batch of sampling sequences does all day.
//!
//! With few rows a linear map is bound by reading its weights once, and with some dozens libtorch's matrix kernels spend more time on
//! rearranging the weights than on multiplying. Here the weights are read where they lie. A thread takes some outputs, whose weights come from the memory once
//! and stay in its second-level cache, and a few input rows at a time, which stay in the first.
//!
//! The threads take their parts from a queue, so one whose core is busy with something else, such as an agent's process, delays nobody;
//! libtorch's (OpenMP's) cut a product evenly and wait for the last.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::team::Team;
use super::tensor_view::{Columns, Rows, RowsMut};
use super::vector_math::{FAR, InstructionSet, Kernel, Lanes, NEAR, dispatch, prefetch};

/// Without the engine's pool more rows are left to libtorch, which has threads for them.
const MAX_ROWS_ALONE: i64 = 32;
/// Weight rows that are multiplied at once.
const TILE: usize = 4;
/// Rows that AVX-512's registers hold the sums of, beside a tile of weights.
const MOST_ROWS_AT_ONCE: usize = 6;
/// 64 bytes.
const FLOATS_PER_LINE: usize = 16;
/// Outputs of a thread's piece of work: a multiple of [`TILE`], and of a cache line.
const COLUMNS_PER_PART: usize = 32;

/// `residual + input · weight`, or None where the rows are many, the kernel does not fit, or a gradient is wanted.
/// `input` is `[rows, in]`, `weight` `[in, out]` as a transposed view of dense `[out, in]`, the result `[rows, out]`.
pub(crate) fn linear(input: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Option<Tensor> {
    let (n_rows, n_outputs) = (input.size2().ok()?.0, weight.size2().ok()?.1);
    if !applies(input, weight) || residual.is_some_and(Tensor::requires_grad) {
        return None;
    }
    let mut output = Tensor::empty([n_rows, n_outputs], (Kind::Float, Device::Cpu));
    let residual = match residual {
        Some(residual) => Base::Rows(Rows::of(residual)?),
        None => Base::Zero,
    };
    multiply(input, weight, &residual, &mut output)?;
    Some(output)
}

/// Adds `input · weight` to `output` in place; false, with nothing done, where [`linear`] would be None.
pub(crate) fn add_linear(output: &mut Tensor, input: &Tensor, weight: &Tensor) -> bool {
    applies(input, weight) && !output.requires_grad() && multiply(input, weight, &Base::Output, output).is_some()
}

/// Whether our loops take this many rows here.
pub(super) fn is_ours(n_rows: i64) -> bool {
    n_rows <= MAX_ROWS_ALONE || Team::has_pool()
}

/// Checked before anything is allocated, since most calls of a training step end here.
fn applies(input: &Tensor, weight: &Tensor) -> bool {
    is_ours(input.size()[0])
        && (input.kind(), input.device()) == (Kind::Float, Device::Cpu)
        && !input.requires_grad()
        && !weight.requires_grad()
}

fn multiply(input: &Tensor, weight: &Tensor, base: &Base<'_>, output: &mut Tensor) -> Option<()> {
    let weight = weight.tr();
    let (input, weight) = (Rows::of(input)?, Rows::of(&weight)?);
    if weight.len() != input.len() {
        return None;
    }
    let mut parts = RowsMut::of(output)?.split_columns(COLUMNS_PER_PART);
    let set = InstructionSet::best();
    let team = Team::current();
    // Where a thread most likely goes on.
    let distance = team.n_threads() * COLUMNS_PER_PART;
    team.run(&mut parts, |columns| {
        let next = columns.range().start + distance..columns.range().end + distance;
        dispatch(
            set,
            Part {
                input: &input,
                weight: &weight,
                base,
                next: Ahead::new(&weight, next, input.n()),
                columns,
            },
        );
    });
    Some(())
}

/// What the products are added to.
enum Base<'a> {
    Zero,
    Rows(Rows<'a>),
    /// The output's own values.
    Output,
}

/// Weights that are asked for while others are multiplied, so that the memory works at the same time as the processor.
struct Ahead<'a> {
    floats: &'a [f32],
    at: usize,
    /// Cache lines that are asked for in a step of the innermost loop.
    lines_per_step: usize,
}

impl<'a> Ahead<'a> {
    /// Some outputs' weights, over the time that `n_rows` rows of as many other outputs take.
    fn new(weight: &Rows<'a>, outputs: Range<usize>, n_rows: usize) -> Self {
        let end = outputs.end.min(weight.n());
        let start = outputs.start.min(end);
        // The first rows wait for their own weights; their memory needs no more to do.
        let passes = n_rows.div_ceil(MOST_ROWS_AT_ONCE).saturating_sub(1);
        Self {
            floats: &weight.floats()[start * weight.stride()..end * weight.stride()],
            at: 0,
            lines_per_step: if passes == 0 { 0 } else { TILE.div_ceil(passes) },
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        if self.at < self.floats.len() {
            for _ in 0..self.lines_per_step {
                prefetch::<FAR>(self.floats, self.at);
                self.at += FLOATS_PER_LINE;
            }
        }
    }
}

/// All rows of some outputs.
struct Part<'a, 'b> {
    input: &'a Rows<'b>,
    weight: &'a Rows<'b>,
    base: &'a Base<'b>,
    next: Ahead<'a>,
    columns: &'a mut Columns<'b>,
}

impl Kernel for Part<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        // As many rows at once as the registers hold: 4 · 6 sums of 32, or 4 · 2 of 16.
        let most = if V::N == 16 { MOST_ROWS_AT_ONCE } else { 2 };
        let mut row = 0;
        while row < self.input.n() {
            let n = (self.input.n() - row).min(most);
            match n {
                1 => self.column_tiles::<V, 1>(row),
                2 => self.column_tiles::<V, 2>(row),
                3 => self.column_tiles::<V, 3>(row),
                4 => self.column_tiles::<V, 4>(row),
                5 => self.column_tiles::<V, 5>(row),
                _ => self.column_tiles::<V, 6>(row),
            }
            row += n;
        }
    }
}

impl Part<'_, '_> {
    /// `C` rows of all outputs.
    #[inline(always)]
    fn column_tiles<V: Lanes, const C: usize>(&mut self, row: usize) {
        let columns = self.columns.range();
        let mut column = columns.start;
        while column < columns.end {
            if column + TILE <= columns.end {
                self.tile::<V, TILE, C>(row, column);
                column += TILE;
            } else {
                self.tile::<V, 1, C>(row, column);
                column += 1;
            }
        }
    }

    /// `C` rows of `R` outputs.
    #[inline(always)]
    fn tile<V: Lanes, const R: usize, const C: usize>(&mut self, row: usize, column: usize) {
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
        let first = column - self.columns.range().start;
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
            let output = &mut self.columns.row_mut(row + c)[first..first + R];
            match self.base {
                Base::Zero => output.copy_from_slice(&products),
                Base::Rows(residual) => {
                    let residual = &residual.row(row + c)[column..column + R];
                    for ((output, product), residual) in output.iter_mut().zip(products).zip(residual) {
                        *output = product + residual;
                    }
                }
                Base::Output => output
                    .iter_mut()
                    .zip(products)
                    .for_each(|(output, product)| *output += product),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_libtorch_for_every_number_of_rows() {
        let options = (Kind::Float, Device::Cpu);
        for (width, outputs) in [(4, 5), (16, 1), (48, 130), (100, 64), (576, 67), (1536, 256)] {
            let weight = Tensor::randn([outputs, width], options);
            for n_rows in 1..=MAX_ROWS_ALONE {
                let input = Tensor::randn([n_rows, 2 * width], options).narrow(1, width / 2, width);
                let residual = Tensor::randn([n_rows, outputs], options);
                let agree = |output: &Tensor, expected: &Tensor| {
                    let difference = (output - expected).abs().max().double_value(&[]);
                    assert!(difference < 1e-3, "{n_rows} {width} {outputs}: {difference}");
                };
                agree(&linear(&input, &weight.tr(), None).unwrap(), &input.mm(&weight.tr()));
                let expected = residual.addmm(&input, &weight.tr());
                agree(&linear(&input, &weight.tr(), Some(&residual)).unwrap(), &expected);
                // In place, into some rows of a larger tensor.
                let larger = Tensor::cat(&[&residual, &residual], 0);
                assert!(add_linear(&mut larger.narrow(0, n_rows, n_rows), &input, &weight.tr()));
                agree(&larger, &Tensor::cat(&[&residual, &expected], 0));
            }
        }
    }

    #[test]
    fn with_a_pool_any_number_of_rows_is_ours() {
        let options = (Kind::Float, Device::Cpu);
        let (input, weight) = (Tensor::randn([301, 576], options), Tensor::randn([130, 576], options));
        let pool = std::sync::Arc::new(crate::kernels::pool::Pool::new(2).unwrap());
        let output = crate::kernels::team::with_pool(&pool, || linear(&input, &weight.tr(), None)).unwrap();
        let difference = (output - input.mm(&weight.tr())).abs().max().double_value(&[]);
        assert!(difference < 1e-3, "{difference}");
    }

    #[test]
    fn leaves_to_libtorch_what_it_does_not_do() {
        let options = (Kind::Float, Device::Cpu);
        let (input, weight) = (Tensor::randn([2, 16], options), Tensor::randn([8, 16], options));
        assert!(linear(&Tensor::randn([MAX_ROWS_ALONE + 1, 16], options), &weight.tr(), None).is_none());
        assert!(linear(&input.to_kind(Kind::BFloat16), &weight.tr(), None).is_none());
        assert!(linear(&input, &weight.tr().contiguous(), None).is_none());
        let wanted = |tensor: &Tensor| tensor.copy().set_requires_grad(true);
        assert!(linear(&wanted(&input), &weight.tr(), None).is_none());
        assert!(linear(&input, &wanted(&weight).tr(), None).is_none());
        assert!(!add_linear(
            &mut wanted(&Tensor::zeros([2, 8], options)),
            &input,
            &weight.tr()
        ));
    }
}
