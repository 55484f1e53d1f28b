//! The registers of x86-64.

use std::arch::x86_64::*;

use super::Lanes;

/// 16 lanes of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// 8 lanes of AVX2 with fused multiply-add.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

// SAFETY, for every block below: values of these types arise only inside `dispatch`, which has found the
// instruction set; loads and stores go through slices cut to the register's length.
impl Lanes for Avx512 {
    const N: usize = 16;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..16];
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn from_halves(bytes: &[u8]) -> (Self, Self) {
        let bytes = &bytes[..16];
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let low = _mm512_and_si512(wide, _mm512_set1_epi32(15));
            let high = _mm512_srli_epi32::<4>(wide);
            (Self(_mm512_cvtepi32_ps(low)), Self(_mm512_cvtepi32_ps(high)))
        }
    }
    #[inline(always)]
    fn from_bytes(bytes: &[i8]) -> Self {
        let bytes = &bytes[..16];
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) })
    }
    #[inline(always)]
    fn from_bfloat16(halves: &[u16]) -> Self {
        let halves = &halves[..16];
        Self(unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        let to = &mut to[..16];
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, summand: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, summand.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn scale_by_power(self, exponent: Self) -> Self {
        Self(unsafe { _mm512_scalef_ps(self.0, exponent.0) })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        unsafe {
            // Halves of each 128-bit quarter added, a beside b, until each quarter holds one lane of each sum.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a.0, b.0), _mm512_unpackhi_ps(a.0, b.0));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c.0, d.0), _mm512_unpackhi_ps(c.0, d.0));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let abcd = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
            let upper = _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(
                abcd,
            ))));
            let half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_castps512_ps256(upper));
            let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            _mm_storeu_ps(sums.as_mut_ptr(), quarter);
        }
        sums
    }
}

impl Lanes for Avx2 {
    const N: usize = 8;
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(value) })
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..8];
        Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn from_halves(bytes: &[u8]) -> (Self, Self) {
        let bytes = &bytes[..8];
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let low = _mm256_and_si256(wide, _mm256_set1_epi32(15));
            let high = _mm256_srli_epi32::<4>(wide);
            (Self(_mm256_cvtepi32_ps(low)), Self(_mm256_cvtepi32_ps(high)))
        }
    }
    #[inline(always)]
    fn from_bytes(bytes: &[i8]) -> Self {
        let bytes = &bytes[..8];
        Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()))) })
    }
    #[inline(always)]
    fn from_bfloat16(halves: &[u16]) -> Self {
        let halves = &halves[..8];
        Self(unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        let to = &mut to[..8];
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, summand: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, summand.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn scale_by_power(self, exponent: Self) -> Self {
        let power = unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent.0), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        self.mul(Self(power))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; 8];
        self.store(&mut lanes);
        let quarter: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
        (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; 8];
        self.store(&mut lanes);
        lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        unsafe {
            let abcd = _mm256_hadd_ps(_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0));
            let quarter = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            _mm_storeu_ps(sums.as_mut_ptr(), quarter);
        }
        sums
    }
}
