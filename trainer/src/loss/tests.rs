//! Known vectors, gradients against finite differences, and the identities every policy loss must keep.

use tch::{Kind, Tensor};

use super::*;

const NONE: f64 = f64::NAN;

fn row(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

struct Case<'a> {
    policy: &'a [f64],
    behaviour: &'a [f64],
    advantages: &'a [f64],
    weights: &'a [f64],
}

impl Case<'_> {
    fn compute(&self, kind: LossKind, policy: &Tensor) -> LossOutputs {
        kind.compute(&LossInputs {
            policy_logprobs: policy,
            behaviour_logprobs: &row(self.behaviour),
            advantages: &row(self.advantages),
            weights: &row(self.weights),
        })
    }

    fn loss(&self, kind: LossKind) -> f64 {
        self.compute(kind, &row(self.policy)).loss.double_value(&[])
    }

    fn gradient(&self, kind: LossKind) -> Vec<f64> {
        let policy = row(self.policy).set_requires_grad(true);
        self.compute(kind, &policy).loss.backward();
        Vec::try_from(policy.grad()).unwrap()
    }
}

const GRPO: LossKind = LossKind::Grpo {
    clip_low: 0.2,
    clip_high: 0.2,
};
const CISPO: LossKind = LossKind::Cispo {
    clip_low: 1.0,
    clip_high: 4.0,
};

/// Weights of the vectors are divided by the number of tokens, which is what their mean does.
const WEIGHTS: [f64; 3] = [1.0 / 3.0, 0.5 / 3.0, 2.0 / 3.0];

fn check(policy: &[f64], kind: LossKind, expected: f64) {
    let case = Case {
        policy,
        behaviour: &[-2.0, -2.0, -2.0],
        advantages: &[1.0, -1.0, -0.5],
        weights: &WEIGHTS,
    };
    let loss = case.loss(kind);
    assert!((loss - expected).abs() < 1e-9, "{kind:?}: {loss} is not {expected}");
}

#[test]
fn known_vectors() {
    check(&[-1.0, -1.0, -1.0], CISPO, -0.453046971);
    check(&[-1.0, -1.0, -1.0], GRPO, 0.959140914);
    check(&[-1.0, -1.5, -2.5], CISPO, -0.011528591);
    check(&[-1.0, -1.5, -2.5], GRPO, 0.141453545);
}

#[test]
fn gradients_equal_finite_differences() {
    let case = Case {
        policy: &[-1.0, -1.95, -2.5, -0.4, -3.0],
        behaviour: &[-2.0, -2.0, -2.0, NONE, -1.0],
        advantages: &[1.0, -1.0, -0.5, 0.7, -0.9],
        weights: &[0.1, 0.2, 0.3, 0.25, 0.15],
    };
    // CISPO's ratio is a constant, so its derivative is that of the log-likelihood with the ratio held fixed; only
    // GRPO and SFT are derivatives of their own value. A missing behaviour logprob stands for the policy's own value.
    let fixed = Case {
        behaviour: &[-2.0, -2.0, -2.0, -0.4, -1.0],
        ..case
    };
    for kind in [
        GRPO,
        LossKind::Grpo {
            clip_low: 0.2,
            clip_high: 0.5,
        },
        LossKind::Sft,
    ] {
        let gradient = case.gradient(kind);
        for index in 0..case.policy.len() {
            let step = 1e-6;
            let shifted = |sign: f64| {
                let mut policy = case.policy.to_vec();
                policy[index] += sign * step;
                Case {
                    policy: &policy,
                    ..fixed
                }
                .loss(kind)
            };
            let difference = (shifted(1.0) - shifted(-1.0)) / (2.0 * step);
            assert!(
                (difference - gradient[index]).abs() < 1e-7,
                "{kind:?} {index}: {difference} {}",
                gradient[index]
            );
        }
    }
    let gradient = case.gradient(CISPO);
    for (index, value) in gradient.iter().enumerate() {
        let ratio = (case.policy[index] - fixed.behaviour[index]).exp().clamp(0.0, 5.0);
        let expected = -ratio * case.advantages[index] * case.weights[index];
        assert!((value - expected).abs() < 1e-12, "{index}: {value} {expected}");
    }
}

#[test]
fn ratio_one_gives_the_plain_policy_gradient() {
    let policy = [-0.3, -1.7, -2.2];
    let advantages = [0.5, -1.5, 0.2];
    for behaviour in [[-0.3, -1.7, -2.2], [NONE; 3]] {
        for kind in [GRPO, CISPO] {
            let case = Case {
                policy: &policy,
                behaviour: &behaviour,
                advantages: &advantages,
                weights: &WEIGHTS,
            };
            for (index, value) in case.gradient(kind).iter().enumerate() {
                assert!((value + advantages[index] * WEIGHTS[index]).abs() < 1e-12);
            }
            let outputs = case.compute(kind, &row(&policy));
            assert_eq!(Vec::<f64>::try_from(outputs.ratio).unwrap(), vec![1.0; 3]);
            assert_eq!(outputs.clipped.sum(Kind::Double).double_value(&[]), 0.0);
        }
    }
}

#[test]
fn clipping_is_counted_where_it_is_in_force() {
    let case = Case {
        policy: &[0.0, 0.0, -2.0, -2.0],
        behaviour: &[-1.0, -1.0, -1.0, -1.0],
        advantages: &[1.0, -1.0, 1.0, -1.0],
        weights: &[0.25; 4],
    };
    let clipped = |kind| Vec::<f64>::try_from(case.compute(kind, &row(case.policy)).clipped).unwrap();
    assert_eq!(clipped(GRPO), vec![1.0, 0.0, 0.0, 1.0]);
    assert_eq!(
        clipped(LossKind::Cispo {
            clip_low: 0.2,
            clip_high: 0.2
        }),
        vec![1.0; 4]
    );
    assert_eq!(clipped(LossKind::Sft), vec![0.0; 4]);
}

#[test]
fn losses_of_disjoint_terms_add_up() {
    let case = Case {
        policy: &[-1.0, -1.5, -2.5],
        behaviour: &[-2.0, NONE, -2.0],
        advantages: &[1.0, -1.0, -0.5],
        weights: &WEIGHTS,
    };
    for kind in [GRPO, CISPO, LossKind::Sft] {
        let parts: f64 = [0..1, 1..3]
            .into_iter()
            .map(|range| {
                Case {
                    policy: &case.policy[range.clone()],
                    behaviour: &case.behaviour[range.clone()],
                    advantages: &case.advantages[range.clone()],
                    weights: &case.weights[range],
                }
                .loss(kind)
            })
            .sum();
        assert!((parts - case.loss(kind)).abs() < 1e-12);
    }
}

#[test]
fn aggregations() {
    let check = |aggregation: Aggregation, expected: &[f64]| {
        let weights = aggregation.token_weights(&[1, 3]);
        assert!(
            weights
                .iter()
                .zip(expected)
                .all(|(got, want)| (got - want).abs() < 1e-12),
            "{weights:?}"
        );
    };
    check(Aggregation::TokenMean, &[0.25, 0.25]);
    check(Aggregation::SequenceMean, &[0.5, 1.0 / 6.0]);
    check(Aggregation::Constant(100.0), &[0.005, 0.005]);
}
