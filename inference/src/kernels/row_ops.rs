//! What stands between the linear maps of a layer, on the CPU in float32.
//!
//! On few rows libtorch's operators cost more to call than to compute: norm, rotation and activation are two dozen calls a layer,
//! together a quarter of a step. Here each is one pass over the rows. All answer None where they do not apply or a gradient is wanted.

use tch::{Device, Kind, Tensor};

use super::linear::is_ours;
use super::tensor_view::{Rows, RowsMut};
use super::vector_math::{InstructionSet, Kernel, Lanes, dispatch};

/// Row lengths are multiples of this, the widest register.
const WIDEST: usize = 16;

/// `input / sqrt(mean(input²) + eps) · weight` row by row; `input` is `[rows, hidden]`, `weight` `[hidden]`.
pub(crate) fn rms_norm(input: &Tensor, weight: &Tensor, eps: f64) -> Option<Tensor> {
    let rows = our_rows(input)?;
    let weight = weight.unsqueeze(0);
    let weight = Rows::of(&weight)?.row(0);
    if !rows.len().is_multiple_of(WIDEST) || weight.len() != rows.len() {
        return None;
    }
    let mut output = Tensor::empty([rows.n() as i64, rows.len() as i64], (Kind::Float, Device::Cpu));
    let mut output_rows = RowsMut::of(&mut output)?;
    for row in 0..rows.n() {
        let (input, output) = (rows.row(row), output_rows.row_mut(row));
        let eps = eps as f32;
        dispatch(
            InstructionSet::best(),
            RmsNorm {
                input,
                weight,
                eps,
                output,
            },
        );
    }
    Some(output)
}

struct RmsNorm<'a> {
    input: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    output: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut squares = V::splat(0.0);
        for register in self.input.chunks_exact(V::N) {
            let x = V::load(register);
            squares = x.mul_add(x, squares);
        }
        let factor = V::splat(1.0 / (squares.sum() / self.input.len() as f32 + self.eps).sqrt());
        let operands = self.input.chunks_exact(V::N).zip(self.weight.chunks_exact(V::N));
        for ((input, weight), output) in operands.zip(self.output.chunks_exact_mut(V::N)) {
            V::load(input).mul(factor).mul(V::load(weight)).store(output);
        }
    }
}

/// The half rotation of heads: `x[i] · cos[i] + x[(i + head_dim / 2) mod head_dim] · sin[i]`. `heads` is `[rows, n_heads, head_dim]` and
/// may be part of wider rows; `cos` and `sin` are `[rows, 1, head_dim]`.
pub(crate) fn rotate(heads: &Tensor, cos: &Tensor, sin: &Tensor) -> Option<Tensor> {
    let (_, n_heads, head_dim) = heads.size3().ok()?;
    let rows = our_rows(heads)?;
    let (cos, sin) = (Rows::of(cos)?, Rows::of(sin)?);
    let shape = (rows.n(), head_dim as usize);
    if !shape.1.is_multiple_of(2 * WIDEST) || (cos.n(), cos.len()) != shape || (sin.n(), sin.len()) != shape {
        return None;
    }
    let mut output = Tensor::empty([rows.n() as i64, n_heads, head_dim], (Kind::Float, Device::Cpu));
    let mut output_rows = RowsMut::of(&mut output)?;
    for row in 0..rows.n() {
        let (heads, output) = (rows.row(row), output_rows.row_mut(row));
        let (cos, sin) = (cos.row(row), sin.row(row));
        dispatch(
            InstructionSet::best(),
            Rotate {
                heads,
                cos,
                sin,
                output,
            },
        );
    }
    Some(output)
}

struct Rotate<'a> {
    heads: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let head_dim = self.cos.len();
        let heads = self.heads.chunks_exact(head_dim);
        for (head, output) in heads.zip(self.output.chunks_exact_mut(head_dim)) {
            for at in (0..head_dim).step_by(V::N) {
                let across = (at + head_dim / 2) % head_dim;
                let turned = V::load(&head[across..]).mul(V::load(&self.sin[at..]));
                let rotated = V::load(&head[at..]).mul_add(V::load(&self.cos[at..]), turned);
                rotated.store(&mut output[at..]);
            }
        }
    }
}

/// `silu(gate) · up` of `[rows, 2 · width]`, gate first, → `[rows, width]`.
pub(crate) fn gated_silu(gate_up: &Tensor) -> Option<Tensor> {
    let rows = our_rows(gate_up)?;
    if !rows.len().is_multiple_of(2 * WIDEST) {
        return None;
    }
    let width = rows.len() / 2;
    let mut output = Tensor::empty([rows.n() as i64, width as i64], (Kind::Float, Device::Cpu));
    let mut output_rows = RowsMut::of(&mut output)?;
    for row in 0..rows.n() {
        let (gate, up) = rows.row(row).split_at(width);
        let output = output_rows.row_mut(row);
        dispatch(InstructionSet::best(), GatedSilu { gate, up, output });
    }
    Some(output)
}

struct GatedSilu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for GatedSilu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let one = V::splat(1.0);
        let operands = self.gate.chunks_exact(V::N).zip(self.up.chunks_exact(V::N));
        for ((gate, up), output) in operands.zip(self.output.chunks_exact_mut(V::N)) {
            let gate = V::load(gate);
            // Below -87 the quotient is next to 0 as it is, and further on the exponential would overflow.
            let e = V::splat(0.0).sub(gate.max(V::splat(-87.0))).exp();
            gate.div(one.add(e)).mul(V::load(up)).store(output);
        }
    }
}

/// The rows of a tensor that these functions take.
fn our_rows(input: &Tensor) -> Option<Rows<'_>> {
    if !is_ours(input.size()[0]) || input.requires_grad() {
        return None;
    }
    Rows::of(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[track_caller]
    fn assert_close(output: &Tensor, expected: &Tensor) {
        assert_eq!(output.size(), expected.size());
        let difference = (output - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-5, "{difference}");
    }

    #[test]
    fn norm_rotation_and_activation_are_libtorchs() {
        for n_rows in [1, 3, 32] {
            let input = Tensor::randn([n_rows, 96], OPTIONS) * 3.0;
            let weight = Tensor::randn([96], OPTIONS);
            assert_close(
                &rms_norm(&input, &weight, 1e-5).unwrap(),
                &input.rms_norm([96], Some(&weight), 1e-5),
            );

            let heads = Tensor::randn([n_rows, 5, 64], OPTIONS).narrow(1, 0, 4);
            let [cos, sin] = [(); 2].map(|()| Tensor::randn([n_rows, 1, 64], OPTIONS));
            let expected = &heads * &cos + heads.roll([32], [2]) * &sin;
            assert_close(&rotate(&heads, &cos, &sin).unwrap(), &expected);

            let gate_up = Tensor::randn([n_rows, 64], OPTIONS) * 20.0;
            let extremes = Tensor::from_slice(&[-1e4_f32, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4, 1.0]);
            gate_up.get(0).narrow(0, 0, 8).copy_(&extremes);
            let expected = gate_up.narrow(1, 0, 32).silu() * gate_up.narrow(1, 32, 32);
            let scale = expected.abs().clamp_min(1.0);
            assert_close(&(gated_silu(&gate_up).unwrap() / &scale), &(expected / &scale));
        }
    }

    #[test]
    fn leaves_to_libtorch_what_it_does_not_do() {
        let many = Tensor::randn([1000, 64], OPTIONS);
        let wanted = Tensor::randn([2, 64], OPTIONS).set_requires_grad(true);
        let odd = Tensor::randn([2, 40], OPTIONS);
        for input in [&many, &wanted, &odd] {
            let width = input.size()[1];
            assert!(rms_norm(input, &Tensor::ones([width], OPTIONS), 1e-5).is_none());
            assert!(gated_silu(input).is_none());
            let turn = Tensor::ones([input.size()[0], 1, width], OPTIONS);
            assert!(rotate(&input.unsqueeze(1), &turn, &turn).is_none());
        }
    }
}
