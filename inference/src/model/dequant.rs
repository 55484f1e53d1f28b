//! GGML's block formats to float32.
//!
//! A row is a whole number of blocks; a block holds its own scale. Layouts are those of ggml's `ggml-common.h`, all
//! numbers little-endian. `d` is a block's scale and `m` its offset, both float16.

use crate::kernels::compact::{CompactRows, Values};

/// How the values of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockFormat {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q6K,
}

impl BlockFormat {
    /// From ggml's number of the type.
    pub(super) fn from_ggml(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            14 => Self::Q6K,
            30 => Self::BF16,
            _ => return None,
        })
    }

    /// Values a block, and bytes a block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (32, 2 + 16),
            Self::Q4_1 => (32, 4 + 16),
            Self::Q8_0 => (32, 2 + 32),
            Self::Q4K => (256, 4 + 12 + 128),
            Self::Q6K => (256, 128 + 64 + 16 + 2),
        }
    }

    /// Writes the values of `bytes`, whole blocks, into `values`. The lengths must match.
    pub(super) fn dequantise(self, bytes: &[u8], values: &mut [f32]) {
        let (n_values, n_bytes) = self.block();
        debug_assert_eq!(bytes.len() / n_bytes, values.len() / n_values);
        let convert: fn(&[u8], &mut [f32]) = match self {
            Self::F32 => |block, out| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Self::F16 => |block, out| out[0] = f16_at(block, 0),
            Self::BF16 => |block, out| out[0] = f32::from_bits(u32::from(u16_at(block, 0)) << 16),
            Self::Q4_0 => q4_0,
            Self::Q4_1 => q4_1,
            Self::Q8_0 => q8_0,
            Self::Q4K => q4_k,
            Self::Q6K => q6_k,
        };
        for (block, out) in bytes.chunks_exact(n_bytes).zip(values.chunks_exact_mut(n_values)) {
            convert(block, out);
        }
    }
}

impl BlockFormat {
    /// The rows of `bytes`, whole blocks, in few bits; None of a format that isn't kept so. The values are exactly [`dequantise`](Self::dequantise)'s.
    pub(super) fn compact(self, bytes: &[u8], width: usize) -> Option<CompactRows> {
        let blocks = bytes.chunks_exact(self.block().1);
        let values = match self {
            // (q - 8) · d and q · d - 8 · d are the same float: each product has fewer bits than a float.
            Self::Q4_0 => Values::Halves {
                bytes: blocks.clone().flat_map(|block| &block[2..]).copied().collect(),
                scales: blocks
                    .map(|block| [f16_at(block, 0), -8.0 * f16_at(block, 0)])
                    .collect(),
            },
            Self::Q4_1 => Values::Halves {
                bytes: blocks.clone().flat_map(|block| &block[4..]).copied().collect(),
                scales: blocks.map(|block| [f16_at(block, 0), f16_at(block, 2)]).collect(),
            },
            Self::Q8_0 => Values::Bytes {
                bytes: blocks
                    .clone()
                    .flat_map(|block| &block[2..])
                    .map(|byte| byte.cast_signed())
                    .collect(),
                scales: blocks.map(|block| f16_at(block, 0)).collect(),
            },
            Self::BF16 => Values::BFloat16(blocks.map(|block| u16_at(block, 0)).collect()),
            Self::F32 | Self::F16 | Self::Q4K | Self::Q6K => return None,
        };
        CompactRows::new(width, values)
    }
}

/// `d`, 16 bytes: low halves are values 0–15, high halves 16–31, each minus 8.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = d * (f32::from(byte & 0xF) - 8.0);
        *high = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// `d`, `m`, 16 bytes: low halves are values 0–15, high halves 16–31.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in block[4..].iter().zip(low).zip(high) {
        *low = d * f32::from(byte & 0xF) + m;
        *high = d * f32::from(byte >> 4) + m;
    }
}

/// `d`, 32 signed bytes.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = d * f32::from(byte.cast_signed());
    }
}

/// `d`, `m`, 12 bytes of eight 6-bit scales and offsets, 128 bytes: each 32 of them hold 32 low and then 32 high halves.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let packed = &block[4..16];
    let scale_and_offset = |group: usize| {
        let (scale, offset) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let low = packed[group + 4];
            (
                (low & 0xF) | ((packed[group - 4] >> 6) << 4),
                (low >> 4) | ((packed[group] >> 6) << 4),
            )
        };
        (d * f32::from(scale), m * f32::from(offset))
    };
    for (pair, (bytes, out)) in block[16..].chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
        let (low_scale, low_offset) = scale_and_offset(2 * pair);
        let (high_scale, high_offset) = scale_and_offset(2 * pair + 1);
        let (low, high) = out.split_at_mut(32);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            *low = low_scale * f32::from(byte & 0xF) - low_offset;
            *high = high_scale * f32::from(byte >> 4) - high_offset;
        }
    }
}

/// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales, `d`; a value is 6 bits minus 32.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low_bits, rest) = block.split_at(128);
    let (high_bits, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = f16_at(d, 0);
    let halves = low_bits
        .chunks_exact(64)
        .zip(high_bits.chunks_exact(32))
        .zip(scales.chunks_exact(8));
    for (((low_bits, high_bits), scales), out) in halves.zip(out.chunks_exact_mut(128)) {
        for index in 0..32 {
            let high = high_bits[index];
            let sixes = [
                (low_bits[index] & 0xF) | ((high & 3) << 4),
                (low_bits[index + 32] & 0xF) | (((high >> 2) & 3) << 4),
                (low_bits[index] >> 4) | (((high >> 4) & 3) << 4),
                (low_bits[index + 32] >> 4) | ((high >> 6) << 4),
            ];
            for (quarter, six) in sixes.into_iter().enumerate() {
                let scale = scales[index / 16 + 2 * quarter].cast_signed();
                out[index + 32 * quarter] = d * f32::from(scale) * (f32::from(six) - 32.0);
            }
        }
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16_at(bytes, offset))
}

/// IEEE half precision to single; exact.
fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1F;
    let fraction = u32::from(half) & 0x3FF;
    match exponent {
        // Zero and subnormals: fraction · 2⁻²⁴.
        0 => {
            let magnitude = fraction as f32 * (1.0 / 16_777_216.0);
            f32::from_bits(magnitude.to_bits() | sign)
        }
        0x1F => f32::from_bits(sign | 0x7F80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_libtorch_does() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let expected = tch::Tensor::from_data_size(&halves, &[1 << 16], tch::Kind::Half).to_kind(tch::Kind::Float);
        let expected = Vec::<f32>::try_from(expected).expect("floats");
        for (half, expected) in (0..=u16::MAX).zip(expected) {
            let value = f16_to_f32(half);
            assert!(
                value == expected || (value.is_nan() && expected.is_nan()),
                "{half:#06x}: {value} {expected}"
            );
        }
    }
}
