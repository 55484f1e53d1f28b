//! The floats of a tensor, without a copy.

#![expect(unsafe_code, reason = "libtorch hands out memory as pointers")]

use std::marker::PhantomData;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

/// Rows of f32 in a CPU tensor; the elements of a row lie side by side, the rows need not.
pub(crate) struct Rows<'a> {
    floats: &'a [f32],
    stride: usize,
    len: usize,
    n: usize,
}

impl<'a> Rows<'a> {
    /// Views `tensor` `[n, …]` as `n` rows. None where it is not float32 on the CPU, or a row's elements lie apart.
    pub(crate) fn of(tensor: &'a Tensor) -> Option<Self> {
        let (floats, shape) = parts(tensor)?;
        // SAFETY: the tensor lives as long as the view, and nothing writes to a forward pass's inputs while they are read.
        let floats = unsafe { std::slice::from_raw_parts(floats, shape.extent()) };
        Some(Self {
            floats,
            stride: shape.stride,
            len: shape.len,
            n: shape.n,
        })
    }

    /// How many rows.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Elements from a row's first to the next row's first.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// A row.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> &'a [f32] {
        &self.floats[index * self.stride..][..self.len]
    }

    /// All floats from the first row's first to the last row's last.
    pub(crate) fn floats(&self) -> &'a [f32] {
        self.floats
    }
}

/// [`Rows`] that can be written to.
pub(crate) struct RowsMut<'a> {
    floats: &'a mut [f32],
    shape: Shape,
    tensor: PhantomData<&'a mut Tensor>,
}

impl<'a> RowsMut<'a> {
    /// As [`Rows::of`]. The tensor must share its memory with no other in use.
    pub(crate) fn of(tensor: &'a mut Tensor) -> Option<Self> {
        let (floats, shape) = parts(tensor)?;
        // SAFETY: the tensor is borrowed mutably, and the engine's thread alone holds the KV cache and its outputs.
        let floats = unsafe { std::slice::from_raw_parts_mut(floats, shape.extent()) };
        Some(Self {
            floats,
            shape,
            tensor: PhantomData,
        })
    }

    /// A row.
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.floats[index * self.shape.stride..][..self.shape.len]
    }

    /// All floats from the first row's first to the last row's last.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        self.floats
    }
}

/// A run of columns of [`RowsMut`], for one thread.
pub(crate) struct Columns<'a> {
    first: *mut f32,
    /// Elements between a column's rows.
    stride: usize,
    n_rows: usize,
    columns: Range<usize>,
    rows: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable borrow of floats that no other `Columns` has, in the form of a pointer.
unsafe impl Send for Columns<'_> {}

impl<'a> RowsMut<'a> {
    /// Cuts the rows into runs of columns, so many each; the last has what is left.
    pub(crate) fn split_columns(self, n_columns: usize) -> Vec<Columns<'a>> {
        let Shape { stride, len, n } = self.shape;
        let first = self.floats.as_mut_ptr();
        (0..len)
            .step_by(n_columns)
            .map(|start| {
                let columns = start..(start + n_columns).min(len);
                Columns {
                    first,
                    stride,
                    n_rows: n,
                    columns,
                    rows: PhantomData,
                }
            })
            .collect()
    }
}

impl Columns<'_> {
    /// The columns' place in their rows.
    pub(crate) fn range(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The run's part of a row, mutably.
    #[inline]
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.n_rows);
        // SAFETY: the row exists, `columns` lies within it, and the runs of a split do not overlap.
        unsafe {
            let start = self.first.add(index * self.stride + self.columns.start);
            std::slice::from_raw_parts_mut(start, self.columns.len())
        }
    }
}

struct Shape {
    stride: usize,
    len: usize,
    n: usize,
}

impl Shape {
    fn extent(&self) -> usize {
        if self.n == 0 {
            0
        } else {
            (self.n - 1) * self.stride + self.len
        }
    }
}

fn parts(tensor: &Tensor) -> Option<(*mut f32, Shape)> {
    if tensor.device() != Device::Cpu || tensor.kind() != Kind::Float {
        return None;
    }
    let (sizes, strides) = (tensor.size(), tensor.stride());
    let mut len = 1;
    for (&size, &stride) in sizes.iter().zip(&strides).skip(1).rev() {
        if size != 1 && stride != len {
            return None;
        }
        len *= size;
    }
    let n = *sizes.first()? as usize;
    let stride = if n > 1 { strides[0] } else { len };
    if n * len as usize == 0 || stride < len {
        return None;
    }
    Some((
        tensor.data_ptr().cast(),
        Shape {
            stride: stride as usize,
            len: len as usize,
            n,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_cut_apart() {
        let mut tensor = Tensor::zeros([3, 10], (Kind::Float, Device::Cpu));
        for (index, mut columns) in RowsMut::of(&mut tensor)
            .unwrap()
            .split_columns(4)
            .into_iter()
            .enumerate()
        {
            for row in 0..3 {
                columns.row_mut(row).fill((index + 1) as f32);
            }
        }
        assert_eq!(
            Rows::of(&tensor).unwrap().row(2),
            [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]
        );
    }

    #[test]
    fn rows_may_lie_apart_but_not_their_elements() {
        let tensor = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([4, 6]);
        let columns = tensor.narrow(1, 2, 4).view([4, 2, 2]);
        let rows = Rows::of(&columns).unwrap();
        assert_eq!((rows.n(), rows.row(3)), (4, &[20.0, 21.0, 22.0, 23.0][..]));
        assert!(Rows::of(&tensor.transpose(0, 1)).is_none());
        assert!(Rows::of(&tensor.to_kind(Kind::Double)).is_none());
    }
}
