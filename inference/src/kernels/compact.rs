//! Weights in few bits, as their file has them.
//!
//! A few rows times a matrix take as long as reading the matrix, so a matrix of a quarter of the bytes is multiplied several times as fast, even
//! though each value has to be made a float32 first. The values are exactly those of the dense tensor beside it, which serves all else.

use std::ops::Range;

use super::vector_math::Lanes;

/// Values that share a scale in every block format that is kept.
const BLOCK: usize = 32;

/// A matrix of rows `[rows, width]`, stacked of parts that may be stored differently.
#[derive(Debug, Clone)]
pub(crate) struct CompactRows {
    width: usize,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    n_rows: usize,
    values: Values,
}

/// The values of whole rows, one row after the other.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    /// 16 bytes a block, whose low halves are its first 16 values; a value is `half · scale + offset`.
    Halves {
        /// `[rows, width / 2]`
        bytes: Vec<u8>,
        /// Scale and offset of each block, `[rows, width / 32]`.
        scales: Vec<[f32; 2]>,
    },
    /// Signed bytes; a value is `byte · scale`.
    Bytes {
        /// `[rows, width]`
        bytes: Vec<i8>,
        /// `[rows, width / 32]`
        scales: Vec<f32>,
    },
    /// The upper half of each float32, `[rows, width]`.
    BFloat16(Vec<u16>),
}

impl CompactRows {
    /// One part of rows of `width`. None where a row is not a whole number of blocks.
    pub(crate) fn new(width: usize, values: Values) -> Option<Self> {
        let n_values = match &values {
            Values::Halves { bytes, .. } => 2 * bytes.len(),
            Values::Bytes { bytes, .. } => bytes.len(),
            Values::BFloat16(halves) => halves.len(),
        };
        (width > 0 && width.is_multiple_of(BLOCK)).then(|| Self {
            width,
            parts: vec![Part {
                n_rows: n_values / width,
                values,
            }],
        })
    }

    /// Matrices of one width below each other.
    pub(crate) fn stack(matrices: Vec<Self>) -> Option<Self> {
        let width = matrices.first()?.width;
        matrices.iter().all(|matrix| matrix.width == width).then(|| Self {
            width,
            parts: matrices.into_iter().flat_map(|matrix| matrix.parts).collect(),
        })
    }

    /// The rows in another order: row `order[i]` becomes row `i`.
    pub(crate) fn reordered(&self, order: &[usize]) -> Option<Self> {
        let [Part { values, .. }] = self.parts.as_slice() else {
            return None;
        };
        let (width, blocks) = (self.width, self.width / BLOCK);
        let values = match values {
            Values::Halves { bytes, scales } => Values::Halves {
                bytes: gather(bytes, width / 2, order),
                scales: gather(scales, blocks, order),
            },
            Values::Bytes { bytes, scales } => Values::Bytes {
                bytes: gather(bytes, width, order),
                scales: gather(scales, blocks, order),
            },
            Values::BFloat16(halves) => Values::BFloat16(gather(halves, width, order)),
        };
        Self::new(width, values)
    }

    /// All values `[rows, width]`.
    #[cfg(test)]
    pub(crate) fn to_floats(&self) -> Vec<f32> {
        use super::vector_math::{InstructionSet, dispatch};
        dispatch(InstructionSet::best(), tests::Expand(self, 0..self.n_rows()))
    }

    /// Values of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// How many rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.parts.iter().map(|part| part.n_rows).sum()
    }

    /// Writes some rows' values into `floats` `[rows, width]`, within a [`Kernel`](super::vector_math::Kernel).
    #[inline(always)]
    pub(super) fn expand<V: Lanes>(&self, rows: Range<usize>, floats: &mut [f32]) {
        let mut rows_of_floats = floats.chunks_exact_mut(self.width);
        let mut first = 0;
        for part in &self.parts {
            let end = first + part.n_rows;
            for row in rows.start.max(first)..rows.end.min(end) {
                if let Some(floats) = rows_of_floats.next() {
                    part.values.expand::<V>(row - first, self.width, floats);
                }
            }
            first = end;
        }
    }
}

impl Values {
    #[inline(always)]
    fn expand<V: Lanes>(&self, row: usize, width: usize, floats: &mut [f32]) {
        let of_row = |per_row: usize| row * per_row..(row + 1) * per_row;
        let blocks = floats.chunks_exact_mut(BLOCK);
        match self {
            Self::Halves { bytes, scales } => {
                let bytes = bytes[of_row(width / 2)].chunks_exact(BLOCK / 2);
                let scales = &scales[of_row(width / BLOCK)];
                for ((floats, bytes), &[scale, offset]) in blocks.zip(bytes).zip(scales) {
                    let (scale, offset) = (V::splat(scale), V::splat(offset));
                    let (low, high) = floats.split_at_mut(BLOCK / 2);
                    for at in (0..BLOCK / 2).step_by(V::N) {
                        let (low_halves, high_halves) = V::from_halves(&bytes[at..]);
                        low_halves.mul_add(scale, offset).store(&mut low[at..]);
                        high_halves.mul_add(scale, offset).store(&mut high[at..]);
                    }
                }
            }
            Self::Bytes { bytes, scales } => {
                let bytes = bytes[of_row(width)].chunks_exact(BLOCK);
                for ((floats, bytes), &scale) in blocks.zip(bytes).zip(&scales[of_row(width / BLOCK)]) {
                    let scale = V::splat(scale);
                    for at in (0..BLOCK).step_by(V::N) {
                        V::from_bytes(&bytes[at..]).mul(scale).store(&mut floats[at..]);
                    }
                }
            }
            Self::BFloat16(halves) => {
                for (floats, halves) in blocks.zip(halves[of_row(width)].chunks_exact(BLOCK)) {
                    for at in (0..BLOCK).step_by(V::N) {
                        V::from_bfloat16(&halves[at..]).store(&mut floats[at..]);
                    }
                }
            }
        }
    }
}

fn gather<T: Copy>(values: &[T], per_row: usize, order: &[usize]) -> Vec<T> {
    order
        .iter()
        .flat_map(|&row| &values[row * per_row..(row + 1) * per_row])
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::vector_math::{InstructionSet, Kernel, dispatch};

    pub(super) struct Expand<'a>(pub(super) &'a CompactRows, pub(super) Range<usize>);
    impl Kernel for Expand<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<V: Lanes>(self) -> Vec<f32> {
            let mut floats = vec![f32::NAN; self.1.len() * self.0.width];
            self.0.expand::<V>(self.1, &mut floats);
            floats
        }
    }

    #[track_caller]
    fn assert_expands(matrix: &CompactRows, rows: Range<usize>, expected: &[f32]) {
        for set in InstructionSet::available() {
            assert_eq!(dispatch(set, Expand(matrix, rows.clone())), expected, "{set:?}");
        }
    }

    fn halves(n_rows: u8) -> (CompactRows, Vec<f32>) {
        let bytes: Vec<u8> = (0..n_rows * 32).map(|i| i.wrapping_mul(37)).collect();
        let scales: Vec<[f32; 2]> = (0..2 * n_rows).map(|i| [0.5 + f32::from(i), -3.0]).collect();
        let mut expected = Vec::new();
        for (bytes, [scale, offset]) in bytes.chunks(16).zip(&scales) {
            expected.extend(bytes.iter().map(|byte| f32::from(byte & 15) * scale + offset));
            expected.extend(bytes.iter().map(|byte| f32::from(byte >> 4) * scale + offset));
        }
        (
            CompactRows::new(64, Values::Halves { bytes, scales }).unwrap(),
            expected,
        )
    }

    #[test]
    fn every_form_expands_to_its_values_in_every_instruction_set() {
        let (matrix, expected) = halves(3);
        assert_expands(&matrix, 0..3, &expected);
        assert_expands(&matrix, 1..2, &expected[64..128]);

        let bytes: Vec<i8> = (0..64_i8).map(|i| i.wrapping_mul(37)).collect();
        let expected: Vec<f32> = bytes
            .iter()
            .enumerate()
            .map(|(i, &byte)| f32::from(byte) * [0.25, 3.0][i / 32])
            .collect();
        let scales = vec![0.25, 3.0];
        assert_expands(
            &CompactRows::new(32, Values::Bytes { bytes, scales }).unwrap(),
            0..2,
            &expected,
        );

        let floats: Vec<f32> = (0..32).map(|i| i as f32 * 0.5 - 7.0).collect();
        let upper = floats.iter().map(|float| (float.to_bits() >> 16) as u16).collect();
        assert_expands(&CompactRows::new(32, Values::BFloat16(upper)).unwrap(), 0..1, &floats);
    }

    #[test]
    fn rows_are_stacked_and_reordered() {
        let (matrix, expected) = halves(3);
        let reordered = matrix.reordered(&[2, 0, 1]).unwrap();
        let stacked = CompactRows::stack(vec![matrix, reordered]).unwrap();
        assert_eq!((stacked.n_rows(), stacked.width()), (6, 64));
        let across: Vec<f32> = [&expected[128..], &expected[128..], &expected[..64]].concat();
        assert_expands(&stacked, 2..5, &across);
        assert!(stacked.reordered(&[0]).is_none());
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert!(CompactRows::new(48, Values::BFloat16(vec![0; 96])).is_none());
    }
}
