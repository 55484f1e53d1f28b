//! Linear maps of few rows, on the CPU in float32: what a batch of sampling sequences does all day.
//!
//! With few rows a linear map is bound by reading its weights once. libtorch's matrix kernels are made for many rows: at 4 to 16 they
//! take up to three times as long as the memory needs. Here a thread reads a few weight rows at a time, from
//! the memory once, and multiplies them with all input rows, which stay in its nearest cache, while the next weight rows are on their way.

use tch::{Device, Kind, Tensor};

use super::openmp::Team;
use super::tensor_view::{Columns, Rows, RowsMut};
use super::vector_math::{InstructionSet, Kernel, Lanes, dispatch, prefetch};

/// With more rows libtorch is faster.
const MAX_ROWS: i64 = 32;
/// Weight rows that are multiplied at once.
const TILE: usize = 4;
/// Outputs of a thread's piece of work: a multiple of [`TILE`], and of a cache line.
const COLUMNS_PER_PART: usize = 64;

/// `residual + input · weight`, or None where the rows are many, the kernel does not fit, or a gradient is wanted.
/// `input` is `[rows, in]`, `weight` `[in, out]` as a transposed view of dense `[out, in]`, the result `[rows, out]`.
pub(crate) fn linear(input: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Option<Tensor> {
    let (n_rows, width) = input.size2().ok()?;
    if n_rows > MAX_ROWS || width % 16 != 0 || input.requires_grad() || residual.is_some_and(Tensor::requires_grad) {
        return None;
    }
    let weight = weight.tr();
    let (weight, input_rows) = (Rows::of(&weight)?, Rows::of(input)?);
    if weight.len() != input_rows.len() {
        return None;
    }
    let residual_rows = match residual {
        Some(residual) => Some(Rows::of(residual)?),
        None => None,
    };
    let mut output = Tensor::empty([n_rows, weight.n() as i64], (Kind::Float, Device::Cpu));
    let mut parts = RowsMut::of(&mut output)?.split_columns(COLUMNS_PER_PART);
    let set = InstructionSet::best();
    Team::new().run(&mut parts, |columns| {
        dispatch(set, Part { input: &input_rows, weight: &weight, residual: residual_rows.as_ref(), columns });
    });
    drop(parts);
    Some(output)
}

/// All rows of some outputs.
struct Part<'a, 'b> {
    input: &'a Rows<'b>,
    weight: &'a Rows<'b>,
    residual: Option<&'a Rows<'b>>,
    columns: &'a mut Columns<'b>,
}

impl Kernel for Part<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let columns = self.columns.range();
        let mut column = columns.start;
        while column < columns.end {
            if column + TILE <= columns.end {
                self.row_tiles::<V, TILE>(column);
                column += TILE;
            } else {
                self.row_tiles::<V, 1>(column);
                column += 1;
            }
        }
    }
}

impl Part<'_, '_> {
    /// All rows of `R` outputs. As many rows at once as the registers hold: 4 · 6 sums of 32, or 4 · 2 of 16.
    #[inline(always)]
    fn row_tiles<V: Lanes, const R: usize>(&mut self, column: usize) {
        let most = if V::N == 16 { 6 } else { 2 };
        let mut row = 0;
        while row < self.input.n() {
            let n = (self.input.n() - row).min(most);
            match n {
                1 => self.tile::<V, R, 1>(row, column),
                2 => self.tile::<V, R, 2>(row, column),
                3 => self.tile::<V, R, 3>(row, column),
                4 => self.tile::<V, R, 4>(row, column),
                5 => self.tile::<V, R, 5>(row, column),
                _ => self.tile::<V, R, 6>(row, column),
            }
            row += n;
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
                    prefetch(weight, at + ahead);
                }
            }
            let weight: [V; R] = std::array::from_fn(|r| V::load(&weight[r][at..]));
            for c in 0..C {
                let input = V::load(&input[c][at..]);
                for r in 0..R {
                    sums[c][r] = weight[r].mul_add(input, sums[c][r]);
                }
            }
            at += V::N;
        }
        let first = column - self.columns.range().start;
        for c in 0..C {
            let mut outputs = [0.0; R];
            if R == TILE {
                outputs.copy_from_slice(&V::sums(std::array::from_fn(|r| sums[c][r])));
            } else {
                outputs = sums[c].map(V::sum);
            }
            if let Some(residual) = self.residual {
                let residual = &residual.row(row + c)[column..column + R];
                for (output, residual) in outputs.iter_mut().zip(residual) {
                    *output += residual;
                }
            }
            self.columns.row_mut(row + c)[first..first + R].copy_from_slice(&outputs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_libtorch_for_every_number_of_rows() {
        let options = (Kind::Float, Device::Cpu);
        for (width, outputs) in [(16, 1), (48, 130), (576, 67), (1536, 256)] {
            let weight = Tensor::randn([outputs, width], options);
            for n_rows in 1..=MAX_ROWS {
                let input = Tensor::randn([n_rows, 2 * width], options).narrow(1, width / 2, width);
                let residual = Tensor::randn([n_rows, outputs], options);
                let difference = linear(&input, &weight.tr(), None).unwrap() - input.mm(&weight.tr());
                assert!(difference.abs().max().double_value(&[]) < 1e-3, "{n_rows} {width} {outputs}");
                let with_residual = linear(&input, &weight.tr(), Some(&residual)).unwrap();
                let difference = with_residual - residual.addmm(&input, &weight.tr());
                assert!(difference.abs().max().double_value(&[]) < 1e-3, "{n_rows} {width} {outputs}");
            }
        }
    }

    #[test]
    fn leaves_to_libtorch_what_it_does_not_do() {
        let options = (Kind::Float, Device::Cpu);
        let weight = Tensor::randn([8, 16], options);
        assert!(linear(&Tensor::randn([MAX_ROWS + 1, 16], options), &weight.tr(), None).is_none());
        assert!(linear(&Tensor::randn([2, 16], options).set_requires_grad(true), &weight.tr(), None).is_none());
        assert!(linear(&Tensor::randn([2, 16], (Kind::BFloat16, Device::Cpu)), &weight.tr(), None).is_none());
        assert!(linear(&Tensor::randn([2, 20], options), &Tensor::randn([8, 20], options).tr(), None).is_none());
    }
}
