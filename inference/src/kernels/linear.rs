//! Linear maps on the CPU in float32: what a batch of sampling sequences does all day.
//!
//! With few rows a linear map is bound by reading its weights once, and with some dozens libtorch's matrix kernels spend more time on
//! rearranging the weights than on multiplying. Here the weights are read where they lie. A thread takes some outputs, whose weights come from the memory once
//! and stay in its second-level cache while all rows are multiplied with them.
//!
//! Two loops do the multiplying. [`few_rows`] goes along the weights with whole registers and sums the lanes at the end; where there are [compact](CompactRows)
//! weights it reads those, since few rows take as long as reading does. [`many_rows`] has a
//! row of the input in each lane, so that nothing is left to sum, and wants the input rearranged. Rows are dealt to both by [`Passes`].
//!
//! The threads take their parts from a queue, so one whose core is busy with something else, such as an agent's process, delays nobody;
//! libtorch's (OpenMP's) cut a product evenly and wait for the last.

pub(super) mod few_rows;
pub(super) mod many_rows;

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use self::many_rows::Packed;
use super::compact::CompactRows;
use super::team::Team;
use super::tensor_view::{Columns, Rows, RowsMut};
use super::vector_math::{FAR, InstructionSet, Kernel, Lanes, dispatch, prefetch};

/// Without the engine's pool more rows are left to libtorch, which has threads for them.
const MAX_ROWS_ALONE: i64 = 32;
/// 64 bytes.
const FLOATS_PER_LINE: usize = 16;
/// Outputs of a thread's piece of work: a multiple of both loops' tiles, and of a cache line.
const COLUMNS_PER_PART: usize = 48;
/// With fewer outputs, such as an adapter's rank, rearranging the input costs more than it brings.
const MIN_OUTPUTS_FOR_MANY_ROWS: usize = 256;

/// `residual + input · weight`, or None where the rows are many, the kernel does not fit, or a gradient is wanted.
/// `input` is `[rows, in]`, `weight` `[in, out]` as a transposed view of dense `[out, in]`, the result `[rows, out]`. `compact` holds the same
/// weights as `[out, in]`.
pub(crate) fn linear(
    input: &Tensor,
    weight: &Tensor,
    compact: Option<&CompactRows>,
    residual: Option<&Tensor>,
) -> Option<Tensor> {
    let (n_rows, n_outputs) = (input.size2().ok()?.0, weight.size2().ok()?.1);
    if !applies(input, weight) || residual.is_some_and(Tensor::requires_grad) {
        return None;
    }
    let mut output = Tensor::empty([n_rows, n_outputs], (Kind::Float, Device::Cpu));
    let residual = match residual {
        Some(residual) => Base::Rows(Rows::of(residual)?),
        None => Base::Zero,
    };
    multiply(input, weight, compact, &residual, &mut output)?;
    Some(output)
}

/// Adds `input · weight` to `output` in place; false, with nothing done, where [`linear`] would be None.
pub(crate) fn add_linear(output: &mut Tensor, input: &Tensor, weight: &Tensor) -> bool {
    applies(input, weight) && !output.requires_grad() && multiply(input, weight, None, &Base::Output, output).is_some()
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

fn multiply(
    input: &Tensor,
    weight: &Tensor,
    compact: Option<&CompactRows>,
    base: &Base<'_>,
    output: &mut Tensor,
) -> Option<()> {
    let weight = weight.tr();
    let (input, weight) = (Rows::of(input)?, Rows::of(&weight)?);
    if weight.len() != input.len() {
        return None;
    }
    let compact = compact.filter(|compact| (compact.n_rows(), compact.width()) == (weight.n(), weight.len()));
    let mut parts = RowsMut::of(output)?.split_columns(COLUMNS_PER_PART);
    multiply_with(InstructionSet::best(), &input, (&weight, compact), base, &mut parts);
    Some(())
}

fn multiply_with<'b>(
    set: InstructionSet,
    input: &Rows<'b>,
    (weight, compact): (&Rows<'b>, Option<&CompactRows>),
    base: &Base<'b>,
    parts: &mut [Columns<'_>],
) {
    let passes = if weight.n() < MIN_OUTPUTS_FOR_MANY_ROWS {
        Passes::of_few(input.n())
    } else {
        Passes::of(input.n(), many_rows::rows_of_group(set))
    };
    let team = Team::current();
    // Where a thread most likely goes on.
    let distance = team.n_threads() * COLUMNS_PER_PART;
    Packed::with(input, passes.n_groups, many_rows::rows_of_group(set), &team, |packed| {
        team.run(parts, |columns| {
            let next = columns.range().start + distance..columns.range().end + distance;
            let part = Part {
                input,
                packed,
                passes,
                weight,
                compact,
                base,
                next: Ahead::new(weight, next, passes.n()),
                columns,
            };
            dispatch(set, part);
        });
    });
}

/// Which rows go through which loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passes {
    /// Groups of rows for [`many_rows`]; the last may have fewer rows than the others.
    n_groups: usize,
    /// Rows from here on are for [`few_rows`].
    first_few: usize,
    n_rows: usize,
}

impl Passes {
    fn of(n_rows: usize, rows_of_group: usize) -> Self {
        let rest = n_rows % rows_of_group;
        // A group takes its time whether it is full or not; the other loop takes as long for seven eighths of its rows.
        let n_groups = n_rows / rows_of_group + usize::from(8 * rest > 7 * rows_of_group);
        Self {
            n_groups,
            first_few: n_rows.min(n_groups * rows_of_group),
            n_rows,
        }
    }

    /// All rows for [`few_rows`].
    fn of_few(n_rows: usize) -> Self {
        Self {
            n_groups: 0,
            first_few: 0,
            n_rows,
        }
    }

    /// How often all weights of a part are gone through, about.
    fn n(self) -> usize {
        self.n_groups + (self.n_rows - self.first_few).div_ceil(few_rows::MOST_ROWS_AT_ONCE)
    }
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
    /// Cache lines that are asked for in the time that a cache line of one output's weights is multiplied.
    lines_per_step: usize,
}

impl<'a> Ahead<'a> {
    /// Some outputs' weights, over the time that `n_passes` over as many other outputs take.
    fn new(weight: &Rows<'a>, outputs: Range<usize>, n_passes: usize) -> Self {
        let end = outputs.end.min(weight.n());
        let start = outputs.start.min(end);
        // The first pass waits for its own weights; the memory needs no more to do.
        let n_passes = n_passes.saturating_sub(1);
        Self {
            floats: &weight.floats()[start * weight.stride()..end * weight.stride()],
            at: 0,
            lines_per_step: if n_passes == 0 {
                0
            } else {
                few_rows::TILE.div_ceil(n_passes)
            },
        }
    }

    /// One of [`few_rows::TILE`] outputs' steps.
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
struct Part<'a, 'b, 'c> {
    input: &'a Rows<'b>,
    packed: Packed<'a>,
    passes: Passes,
    weight: &'a Rows<'b>,
    compact: Option<&'a CompactRows>,
    base: &'a Base<'b>,
    next: Ahead<'a>,
    columns: &'a mut Columns<'c>,
}

impl Kernel for Part<'_, '_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        self.many_rows::<V>();
        self.few_rows::<V>();
    }
}

impl Part<'_, '_, '_> {
    /// Writes a row's products, for outputs from `column` on.
    #[inline(always)]
    fn finish(&mut self, row: usize, column: usize, products: &[f32]) {
        let first = column - self.columns.range().start;
        let output = &mut self.columns.row_mut(row)[first..first + products.len()];
        match self.base {
            Base::Zero => output.copy_from_slice(products),
            Base::Rows(residual) => {
                let residual = &residual.row(row)[column..column + products.len()];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::compact::Values;

    const OPTIONS: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[track_caller]
    fn assert_close(output: &Tensor, expected: &Tensor, case: &str) {
        let difference = (output - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-3, "{case}: {difference}");
    }

    #[test]
    fn equals_libtorch_for_every_number_of_rows() {
        for (width, outputs) in [(4, 5), (16, 1), (48, 130), (100, 64), (576, 67), (1536, 256), (48, 259)] {
            let weight = Tensor::randn([outputs, width], OPTIONS);
            for n_rows in 1..=MAX_ROWS_ALONE {
                let input = Tensor::randn([n_rows, 2 * width], OPTIONS).narrow(1, width / 2, width);
                let residual = Tensor::randn([n_rows, outputs], OPTIONS);
                let case = format!("{n_rows} {width} {outputs}");
                let product = input.mm(&weight.tr());
                assert_close(&linear(&input, &weight.tr(), None, None).unwrap(), &product, &case);
                let expected = &residual + product;
                assert_close(
                    &linear(&input, &weight.tr(), None, Some(&residual)).unwrap(),
                    &expected,
                    &case,
                );
                // In place, into some rows of a larger tensor.
                let larger = Tensor::cat(&[&residual, &residual], 0);
                assert!(add_linear(&mut larger.narrow(0, n_rows, n_rows), &input, &weight.tr()));
                assert_close(&larger, &Tensor::cat(&[&residual, &expected], 0), &case);
            }
        }
    }

    #[test]
    fn equals_libtorch_in_every_instruction_set() {
        let (width, outputs) = (100, MIN_OUTPUTS_FOR_MANY_ROWS as i64 + 3);
        let weight = Tensor::randn([outputs, width], OPTIONS);
        for n_rows in [1, 5, 8, 13, 15, 16, 17, 29, 31, 32, 47, 62, 70] {
            let input = Tensor::randn([n_rows, width], OPTIONS);
            for set in InstructionSet::available() {
                let mut output = Tensor::empty([n_rows, outputs], OPTIONS);
                let mut parts = RowsMut::of(&mut output).unwrap().split_columns(COLUMNS_PER_PART);
                let (rows, weight_rows) = (Rows::of(&input).unwrap(), Rows::of(&weight).unwrap());
                multiply_with(set, &rows, (&weight_rows, None), &Base::Zero, &mut parts);
                assert_close(&output, &input.mm(&weight.tr()), &format!("{set:?}, {n_rows} rows"));
            }
        }
    }

    #[test]
    fn compact_weights_give_what_dense_ones_give() {
        for (width, outputs) in [(32, 5), (576, 67), (1536, 130)] {
            let weight = Tensor::randn([outputs, width], OPTIONS)
                .to_kind(Kind::BFloat16)
                .to_kind(Kind::Float);
            let halves = Vec::<f32>::try_from(weight.flatten(0, -1)).unwrap();
            let halves = halves.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
            let compact = CompactRows::new(width as usize, Values::BFloat16(halves)).unwrap();
            for n_rows in [1, 2, 7, 28, 32] {
                let input = Tensor::randn([n_rows, width], OPTIONS);
                for set in InstructionSet::available() {
                    let outputs = [None, Some(&compact)].map(|compact| {
                        let mut output = Tensor::empty([n_rows, outputs], OPTIONS);
                        let mut parts = RowsMut::of(&mut output).unwrap().split_columns(COLUMNS_PER_PART);
                        let (rows, weight_rows) = (Rows::of(&input).unwrap(), Rows::of(&weight).unwrap());
                        multiply_with(set, &rows, (&weight_rows, compact), &Base::Zero, &mut parts);
                        output
                    });
                    assert_eq!(outputs[0], outputs[1], "{set:?} {n_rows} {width}");
                }
            }
        }
    }

    #[test]
    fn each_row_goes_through_one_loop() {
        let dealt = |n_rows| {
            let Passes {
                n_groups, first_few, ..
            } = Passes::of(n_rows, 32);
            (n_groups, n_rows - first_few)
        };
        assert_eq!(
            [1, 28, 29, 32, 60, 61, 65].map(dealt),
            [(0, 1), (0, 28), (1, 0), (1, 0), (1, 28), (2, 0), (2, 1)]
        );
    }

    #[test]
    fn with_a_pool_any_number_of_rows_is_ours() {
        let (input, weight) = (Tensor::randn([301, 576], OPTIONS), Tensor::randn([330, 576], OPTIONS));
        let pool = std::sync::Arc::new(crate::kernels::pool::Pool::new(2).unwrap());
        let output = crate::kernels::team::with_pool(&pool, || linear(&input, &weight.tr(), None, None)).unwrap();
        assert_close(&output, &input.mm(&weight.tr()), "301 rows");
    }

    #[test]
    fn leaves_to_libtorch_what_it_does_not_do() {
        let (input, weight) = (Tensor::randn([2, 16], OPTIONS), Tensor::randn([8, 16], OPTIONS));
        assert!(
            linear(
                &Tensor::randn([MAX_ROWS_ALONE + 1, 16], OPTIONS),
                &weight.tr(),
                None,
                None
            )
            .is_none()
        );
        assert!(linear(&input.to_kind(Kind::BFloat16), &weight.tr(), None, None).is_none());
        assert!(linear(&input, &weight.tr().contiguous(), None, None).is_none());
        let wanted = |tensor: &Tensor| tensor.copy().set_requires_grad(true);
        assert!(linear(&wanted(&input), &weight.tr(), None, None).is_none());
        assert!(linear(&input, &wanted(&weight).tr(), None, None).is_none());
        assert!(!add_linear(
            &mut wanted(&Tensor::zeros([2, 8], OPTIONS)),
            &input,
            &weight.tr()
        ));
    }
}
