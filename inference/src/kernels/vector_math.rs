//! Vectors of f32 in the widest registers that this processor has, and the loops of softmax over slices.
//!
//! A loop is written once, generic over [`Lanes`] and `#[inline(always)]`; [`dispatch`] compiles it for each instruction set, by
//! inlining it into a function that has the set's features, and picks one when it runs.

#![expect(
    unsafe_code,
    reason = "processor intrinsics, each reached only after its instruction set was found"
)]

/// A register of f32.
pub(crate) trait Lanes: Copy {
    /// How many.
    const N: usize;
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    /// The first `N` of a slice of at least that many.
    fn load(from: &[f32]) -> Self;
    /// The low and the high halves of the first `N` bytes.
    fn from_halves(bytes: &[u8]) -> (Self, Self);
    /// The first `N` signed bytes.
    fn from_bytes(bytes: &[i8]) -> Self;
    /// The first `N` numbers in bfloat16.
    fn from_bfloat16(halves: &[u16]) -> Self;
    /// To the first `N` of a slice of at least that many.
    fn store(self, to: &mut [f32]);
    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self - other`
    fn sub(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self / other`
    fn div(self, other: Self) -> Self;
    /// `self * factor + summand`; rounded once or twice, as the processor does it.
    fn mul_add(self, factor: Self, summand: Self) -> Self;
    /// The larger of each lane; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// `self * 2^exponent`, where `exponent` holds whole numbers in -126..=127.
    fn scale_by_power(self, exponent: Self) -> Self;
    /// Sum of the lanes.
    fn sum(self) -> f32;
    /// Largest of the lanes.
    fn largest(self) -> f32;
    /// The sums of four registers; cheaper than four [`Lanes::sum`]s where the processor can shuffle.
    #[inline(always)]
    fn sums(registers: [Self; 4]) -> [f32; 4] {
        registers.map(Self::sum)
    }

    /// e^x for x < 88, to about 2 units in the last place; next to 0 below -87, NaN for NaN.
    #[inline(always)]
    fn exp(self) -> Self {
        // 1.5 * 2^23: adding it leaves the rounded whole number in the low bits.
        let round = Self::splat(12_582_912.0);
        let x = Self::splat(-88.0).max(self);
        let n = x.mul_add(Self::splat(std::f32::consts::LOG2_E), round).sub(round);
        // ln 2 in two parts, so that the difference is exact.
        let r = n.mul_add(Self::splat(-0.693_359_4), x);
        let r = n.mul_add(Self::splat(2.121_944_4e-4), r);
        let mut p = Self::splat(1.987_569_2e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = p.mul_add(r, Self::splat(coefficient));
        }
        let p = p.mul_add(r.mul(r), r).add(Self::splat(1.0));
        p.scale_by_power(n.max(Self::splat(-126.0)))
    }
}

/// The portable register: what the compiler makes of eight floats.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Portable {
    const N: usize = 8;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..8];
        Self(std::array::from_fn(|i| from[i]))
    }
    #[inline(always)]
    fn from_halves(bytes: &[u8]) -> (Self, Self) {
        let bytes = &bytes[..8];
        (
            Self(std::array::from_fn(|i| f32::from(bytes[i] & 15))),
            Self(std::array::from_fn(|i| f32::from(bytes[i] >> 4))),
        )
    }
    #[inline(always)]
    fn from_bytes(bytes: &[i8]) -> Self {
        let bytes = &bytes[..8];
        Self(std::array::from_fn(|i| f32::from(bytes[i])))
    }
    #[inline(always)]
    fn from_bfloat16(halves: &[u16]) -> Self {
        let halves = &halves[..8];
        Self(std::array::from_fn(|i| f32::from_bits(u32::from(halves[i]) << 16)))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..8].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, summand: Self) -> Self {
        self.mul(factor).add(summand)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn scale_by_power(self, exponent: Self) -> Self {
        self.zip(exponent, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.0.iter().sum()
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// [`prefetch`] into every cache: for what is used next.
pub(crate) const NEAR: i32 = 3;
/// [`prefetch`] into the second-level cache: for what is used later.
pub(crate) const FAR: i32 = 2;

/// Asks for the cache line of `floats[index]` ahead of its use, [`NEAR`] or [`FAR`]. An index past the end asks for nothing useful and
/// harms nothing.
#[inline(always)]
pub(crate) fn prefetch<const HINT: i32>(floats: &[f32], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and ignores addresses that are not mapped.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(floats.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (floats, index);
}

/// A loop that [`dispatch`] compiles for each instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What it answers.
    type Output;
    /// The loop.
    fn run<V: Lanes>(self) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// AVX-512 (foundation).
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the build was compiled for.
    Portable,
}

impl InstructionSet {
    /// Those that can run here, best first.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                sets.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                sets.push(Self::Avx2);
            }
        }
        sets.push(Self::Portable);
        sets
    }

    /// Floats of a register.
    pub(crate) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::N,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::N,
            Self::Portable => Portable::N,
        }
    }

    /// The best one.
    #[inline]
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }
}

/// Runs a loop with an instruction set, which this processor must have.
#[inline]
pub(crate) fn dispatch<K: Kernel>(set: InstructionSet, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx2,fma")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512>()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx2>()
        }
        match set {
            // SAFETY: the set was detected; a processor with AVX-512 has the other two.
            InstructionSet::Avx512 => return unsafe { avx512(kernel) },
            // SAFETY: the set was detected.
            InstructionSet::Avx2 => return unsafe { avx2(kernel) },
            InstructionSet::Portable => {}
        }
    }
    let _ = set;
    kernel.run::<Portable>()
}

/// Largest of a slice; negative infinity of an empty one. NaNs are passed over.
pub(crate) fn largest(values: &[f32]) -> f32 {
    struct Largest<'a>(&'a [f32]);
    impl Kernel for Largest<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<V: Lanes>(self) -> f32 {
            largest_lane::<V>(self.0)
        }
    }
    dispatch(InstructionSet::best(), Largest(values))
}

/// [`largest`] within a [`Kernel`].
#[inline(always)]
pub(crate) fn largest_lane<V: Lanes>(values: &[f32]) -> f32 {
    let chunks = values.chunks_exact(V::N);
    let rest = chunks.remainder();
    let mut best = V::splat(f32::NEG_INFINITY);
    for chunk in chunks {
        best = V::load(chunk).max(best);
    }
    rest.iter().fold(best.largest(), |a, &b| if b > a { b } else { a })
}

/// [`exp_lanes`] outside of a [`Kernel`].
#[cfg(test)]
fn exp_in_place(values: &mut [f32], shift: f32, scale: f32) -> f32 {
    struct ExpInPlace<'a>(&'a mut [f32], f32, f32);
    impl Kernel for ExpInPlace<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<V: Lanes>(self) -> f32 {
            exp_lanes::<V>(self.0, self.1, self.2)
        }
    }
    dispatch(InstructionSet::best(), ExpInPlace(values, shift, scale))
}

/// Replaces each value by e^((value - shift) * scale) and returns the sum. `shift` is at least the largest value and `scale` positive.
#[inline(always)]
pub(crate) fn exp_lanes<V: Lanes>(values: &mut [f32], shift: f32, scale: f32) -> f32 {
    let (shift_lanes, scale_lanes) = (V::splat(shift), V::splat(scale));
    let mut sum = V::splat(0.0);
    let mut chunks = values.chunks_exact_mut(V::N);
    for chunk in &mut chunks {
        let e = V::load(chunk).sub(shift_lanes).mul(scale_lanes).exp();
        e.store(chunk);
        sum = sum.add(e);
    }
    let rest = chunks.into_remainder();
    if rest.is_empty() {
        return sum.sum();
    }
    // The rest in one padded register; the padding is e^-inf-like and cut off again.
    let mut padded = [shift - 1e4; 16];
    padded[..rest.len()].copy_from_slice(rest);
    let mut rest_sum = 0.0;
    V::load(&padded)
        .sub(shift_lanes)
        .mul(scale_lanes)
        .exp()
        .store(&mut padded);
    for (value, e) in rest.iter_mut().zip(padded) {
        *value = e;
        rest_sum += e;
    }
    sum.sum() + rest_sum
}

/// The sum of e^((value - shift) * scale) over each `chunk` values, appended to `sums`.
pub(crate) fn exp_sums(values: &[f32], shift: f32, scale: f32, chunk: usize, sums: &mut Vec<f32>) {
    struct ExpSums<'a>(&'a [f32], f32, f32, usize, &'a mut Vec<f32>);
    impl Kernel for ExpSums<'_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes>(self) {
            let Self(values, shift, scale, chunk, sums) = self;
            let (shift_lanes, scale_lanes) = (V::splat(shift), V::splat(scale));
            for values in values.chunks(chunk) {
                let registers = values.chunks_exact(V::N);
                let mut rest = [0.0; 16];
                let n_rest = registers.remainder().len();
                rest[..n_rest].copy_from_slice(registers.remainder());
                let mut sum = V::splat(0.0);
                for register in registers {
                    sum = sum.add(V::load(register).sub(shift_lanes).mul(scale_lanes).exp());
                }
                sums.push(
                    sum.sum()
                        + if n_rest > 0 {
                            exp_lanes::<V>(&mut rest[..n_rest], shift, scale)
                        } else {
                            0.0
                        },
                );
            }
        }
    }
    dispatch(InstructionSet::best(), ExpSums(values, shift, scale, chunk, sums));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ExpOf([f32; 16]);
    impl Kernel for ExpOf {
        type Output = [f32; 16];
        #[inline(always)]
        fn run<V: Lanes>(mut self) -> [f32; 16] {
            for register in self.0.chunks_exact_mut(V::N) {
                V::load(register).exp().store(register);
            }
            self.0
        }
    }

    #[test]
    fn exp_is_exact_to_some_units_in_the_last_place_in_every_instruction_set() {
        for set in InstructionSet::available() {
            for step in 0..2000 {
                let x: [f32; 16] = std::array::from_fn(|i| -(step as f32) * 0.043 - i as f32 * 0.003);
                let y = dispatch(set, ExpOf(x));
                for (x, y) in x.into_iter().zip(y) {
                    let expected = f64::from(x).exp();
                    assert!(
                        (f64::from(y) - expected).abs() <= 4e-7 * expected + 1e-37,
                        "{set:?}: e^{x} = {y}"
                    );
                }
            }
            assert_eq!(dispatch(set, ExpOf([0.0; 16]))[0], 1.0);
            assert!(dispatch(set, ExpOf([f32::NEG_INFINITY; 16]))[0] < 1e-37);
        }
    }

    struct SumsOf([[f32; 16]; 4]);
    impl Kernel for SumsOf {
        type Output = ([f32; 4], [f32; 4]);
        #[inline(always)]
        fn run<V: Lanes>(self) -> Self::Output {
            let registers = self.0.map(|values| V::load(&values));
            (V::sums(registers), registers.map(V::sum))
        }
    }

    #[test]
    fn four_sums_at_once_are_four_sums() {
        let values = std::array::from_fn(|i| std::array::from_fn(|j| (i * 100 + j * j) as f32));
        for set in InstructionSet::available() {
            let (at_once, one_by_one) = dispatch(set, SumsOf(values));
            assert_eq!(at_once, one_by_one, "{set:?}");
        }
    }

    #[test]
    fn loops_take_any_length() {
        for n in [0, 1, 7, 8, 15, 16, 17, 40, 100] {
            let values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 23) as f32 * 0.3 - 5.0).collect();
            let expected_max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest(&values), expected_max);
            let expected: f64 = values.iter().map(|&x| (f64::from(x - expected_max) * 0.5).exp()).sum();
            let mut exps = values.clone();
            let shift = if n == 0 { 0.0 } else { expected_max };
            assert!((f64::from(exp_in_place(&mut exps, shift, 0.5)) - expected).abs() < 1e-5);
            assert!((f64::from(exps.iter().sum::<f32>()) - expected).abs() < 1e-5);
            let mut sums = Vec::new();
            exp_sums(&values, shift, 0.5, 32, &mut sums);
            assert_eq!(sums.len(), values.len().div_ceil(32));
            assert!((f64::from(sums.iter().sum::<f32>()) - expected).abs() < 1e-5);
        }
    }
}
