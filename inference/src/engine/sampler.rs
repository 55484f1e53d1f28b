//! Logits to a token and its logprob.
//!
//! The reported logprob is the log-softmax of the raw logits, whatever the draw was narrowed to: it is what a trainer compares with. A draw
//! takes one number from the sequence's own generator, so it repeats with its seed whatever else is in the batch. A row of 49,152 logits costs
//! about 20 microseconds; only top_k and top_p select and sort.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

use super::{SampledToken, SamplingParams};
use crate::kernels::vector_math::{exp_sums, largest};

/// Values summed together in f32 before they go into an f64.
const CHUNK: usize = 256;
/// Below this temperature the likeliest token has all the probability that f32 can tell.
const GREEDY_BELOW: f64 = 1e-5;

/// The logits hold NaN or are all negative infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model's logits are not finite, check the adapter and the dtype")]
pub(super) struct NotFinite;

/// Draws the tokens of one sequence.
pub(super) struct Sampler {
    temperature: f64,
    top_p: f64,
    top_k: usize,
    top_logprobs: usize,
    generator: StdRng,
    /// Scratch: sums of [`CHUNK`] values.
    sums: Vec<f32>,
}

impl Sampler {
    pub(super) fn new(params: &SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            top_logprobs: params.top_logprobs,
            generator: params.seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64),
            sums: Vec::new(),
        }
    }

    /// Draws from `logits` `[vocab]`.
    pub(super) fn sample(&mut self, logits: &[f32]) -> Result<SampledToken, NotFinite> {
        let max = largest(logits);
        let log_sum = f64::from(max) + self.sum_exp(logits, max, 1.0).ln();
        if !log_sum.is_finite() {
            return Err(NotFinite);
        }
        let index = if self.temperature < GREEDY_BELOW {
            logits.iter().position(|&logit| logit == max).unwrap_or(0)
        } else if self.top_k > 0 || self.top_p < 1.0 {
            self.draw_narrowed(logits, max)
        } else {
            self.draw(logits, max)
        };
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        let top_logprobs = likeliest(logits, self.top_logprobs)
            .into_iter()
            .map(|(logit, id)| (id, logprob(logit)))
            .collect();
        Ok(SampledToken {
            token_id: index as u32,
            logprob: logprob(logits[index]),
            top_logprobs,
        })
    }

    /// The sum of e^((logit - max) * scale); its parts are left in `self.sums`.
    fn sum_exp(&mut self, logits: &[f32], max: f32, scale: f32) -> f64 {
        self.sums.clear();
        exp_sums(logits, max, scale, CHUNK, &mut self.sums);
        self.sums.iter().copied().map(f64::from).sum()
    }

    /// A number in 0..1.
    fn uniform(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws among all tokens, by the inverse of the cumulative distribution: first the chunk, then the token in it.
    fn draw(&mut self, logits: &[f32], max: f32) -> usize {
        let scale = (1.0 / self.temperature) as f32;
        let total = if scale == 1.0 {
            self.sums.iter().copied().map(f64::from).sum()
        } else {
            self.sum_exp(logits, max, scale)
        };
        let mut left = self.uniform() * total;
        let mut chunk = 0;
        for (index, &sum) in self.sums.iter().enumerate() {
            if sum > 0.0 {
                chunk = index;
                if left < f64::from(sum) {
                    break;
                }
                left -= f64::from(sum);
            }
        }
        let first = chunk * CHUNK;
        let in_chunk = &logits[first..(first + CHUNK).min(logits.len())];
        let weights = in_chunk.iter().map(|&logit| f64::from((logit - max) * scale).exp());
        first + pick(weights, left)
    }

    /// Draws among the `top_k` likeliest tokens, of these among those that first reach `top_p`.
    fn draw_narrowed(&mut self, logits: &[f32], max: f32) -> usize {
        let scale = (1.0 / self.temperature) as f32;
        let mut candidates = if self.top_k > 0 && self.top_k < logits.len() {
            likeliest(logits, self.top_k)
        } else {
            // Tokens below this weight sum to less than what top_p leaves out, so they are not in it.
            let least = (1.0 - self.top_p) * self.sum_exp(logits, max, scale) / logits.len() as f64;
            let least_logit = max + (least.ln() / f64::from(scale)) as f32 - 1e-3;
            let mut candidates: Vec<(f32, u32)> = logits
                .iter()
                .copied()
                .zip(0..)
                .filter(|&(logit, _)| logit >= least_logit)
                .collect();
            candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            candidates
        };
        let weight = |logit: f32| f64::from((logit - max) * scale).exp();
        if self.top_p < 1.0 {
            let total: f64 = if self.top_k > 0 {
                candidates.iter().map(|&(logit, _)| weight(logit)).sum()
            } else {
                self.sums.iter().copied().map(f64::from).sum()
            };
            let mut sum = 0.0;
            let n_kept = candidates.iter().position(|&(logit, _)| {
                sum += weight(logit);
                sum >= self.top_p * total
            });
            candidates.truncate(n_kept.map_or(candidates.len(), |last| last + 1));
        }
        let total: f64 = candidates.iter().map(|&(logit, _)| weight(logit)).sum();
        let left = self.uniform() * total;
        let index = pick(candidates.iter().map(|&(logit, _)| weight(logit)), left);
        candidates[index].1 as usize
    }
}

/// The first index at which the weights' sum passes `left`; the last of any weight where rounding lets none.
fn pick(weights: impl Iterator<Item = f64>, mut left: f64) -> usize {
    let mut picked = 0;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            picked = index;
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    picked
}

/// The `n` largest logits with their tokens, largest first; the lower token first among equals.
fn likeliest(logits: &[f32], n: usize) -> Vec<(f32, u32)> {
    if n == 0 {
        return Vec::new();
    }
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let mut kept: Vec<(f32, u32)> = Vec::with_capacity(2 * n.min(logits.len()));
    let mut least = f32::NEG_INFINITY;
    for (&logit, token) in logits.iter().zip(0..) {
        if logit > least || kept.len() < n {
            kept.push((logit, token));
            // Halving only when the buffer is full makes a token's cost constant.
            if kept.len() >= 2 * n {
                kept.select_nth_unstable_by(n - 1, order);
                kept.truncate(n);
                least = kept[n - 1].0;
            }
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(n);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Vec<f32> {
        (0..1000).map(|token| ((token * 7919) % 1000) as f32 * 0.006).collect()
    }

    fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .map(|&logit| (f64::from(logit) / temperature).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }

    fn sampler(temperature: f64, top_p: f64, top_k: usize) -> Sampler {
        Sampler::new(&SamplingParams {
            temperature,
            top_p,
            top_k,
            seed: Some(3),
            ..SamplingParams::default()
        })
    }

    #[test]
    fn temperature_0_takes_the_first_of_the_largest() {
        let mut logits = logits();
        logits[17] = 50.0;
        logits[400] = 50.0;
        assert_eq!(sampler(0.0, 1.0, 0).sample(&logits).unwrap().token_id, 17);
    }

    #[test]
    fn logprobs_are_of_the_raw_logits() {
        let logits = logits();
        for (temperature, top_p, top_k) in [
            (0.0, 1.0, 0),
            (1.0, 1.0, 0),
            (0.3, 1.0, 0),
            (2.0, 0.5, 0),
            (1.0, 1.0, 4),
        ] {
            let token = sampler(temperature, top_p, top_k).sample(&logits).unwrap();
            let expected = probabilities(&logits, 1.0)[token.token_id as usize].ln();
            assert!((f64::from(token.logprob) - expected).abs() < 1e-5);
        }
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let logits: Vec<f32> = (0..600)
            .map(|token| if token % 100 == 0 { token as f32 * 0.004 } else { -30.0 })
            .collect();
        for (temperature, top_p, top_k, kept) in [
            (1.0, 1.0, 0, 6),
            (0.5, 1.0, 0, 6),
            (1.0, 1.0, 2, 2),
            (1.0, 0.6, 0, 2),
            (1.0, 0.9, 3, 3),
        ] {
            let mut expected = probabilities(&logits, temperature);
            expected.iter_mut().enumerate().for_each(|(token, p)| {
                if token < (6 - kept) * 100 {
                    *p = 0.0;
                }
            });
            let total: f64 = expected.iter().sum();
            let mut sampler = sampler(temperature, top_p, top_k);
            let mut counts = vec![0; logits.len()];
            for _ in 0..20_000 {
                counts[sampler.sample(&logits).unwrap().token_id as usize] += 1;
            }
            for (count, p) in counts.into_iter().zip(expected) {
                let frequency = f64::from(count) / 20_000.0;
                assert!(
                    (frequency - p / total).abs() < 0.015,
                    "{temperature} {top_p} {top_k}: {frequency} {p}"
                );
            }
        }
    }

    #[test]
    fn the_seed_decides() {
        let logits = logits();
        let draw = |seed| {
            let mut sampler = Sampler::new(&SamplingParams {
                seed,
                ..SamplingParams::default()
            });
            (0..20)
                .map(|_| sampler.sample(&logits).unwrap().token_id)
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(Some(1)), draw(Some(1)));
        assert_ne!(draw(Some(1)), draw(Some(2)));
        assert_ne!(draw(None), draw(None));
    }

    #[test]
    fn top_logprobs_are_sorted() {
        let logits = logits();
        let mut sampler = Sampler::new(&SamplingParams {
            top_logprobs: 3,
            temperature: 0.0,
            ..SamplingParams::default()
        });
        let token = sampler.sample(&logits).unwrap();
        assert_eq!(token.top_logprobs[0], (token.token_id, token.logprob));
        assert_eq!(token.top_logprobs.len(), 3);
        let mut sorted = logits.clone();
        sorted.sort_by(f32::total_cmp);
        for ((id, _), logit) in token.top_logprobs.iter().zip(sorted.iter().rev()) {
            assert_eq!(logits[*id as usize], *logit);
        }
    }

    #[test]
    fn broken_logits_are_refused() {
        let mut logits = logits();
        logits[5] = f32::NAN;
        assert_eq!(sampler(1.0, 1.0, 0).sample(&logits), Err(NotFinite));
        assert_eq!(sampler(1.0, 1.0, 0).sample(&[f32::NEG_INFINITY; 8]), Err(NotFinite));
    }
}
