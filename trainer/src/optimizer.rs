//! AdamW over named tensors, with a state that can be saved and restored bit for bit.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Decay rate of the gradient's mean.
    pub beta1: f64,
    /// Decay rate of the squared gradient's mean.
    pub beta2: f64,
    /// Constant in the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// Mean and squared mean of one parameter's gradient, each shaped like the parameter.
#[derive(Debug)]
struct Moments {
    first: Tensor,
    second: Tensor,
}

/// AdamW (arXiv 1711.05101) in the form of PyTorch's.
#[derive(Debug)]
pub struct AdamW {
    config: AdamWConfig,
    updates: i64,
    moments: BTreeMap<String, Moments>,
    /// The second moments are another objective's; the next gradient gives them its scale.
    other_scale: bool,
}

/// Prefixes of the state's tensor names.
const FIRST: &str = "first.";
const SECOND: &str = "second.";

impl AdamW {
    /// An optimiser that has made no update.
    pub fn new(config: AdamWConfig) -> Self {
        Self {
            config,
            updates: 0,
            moments: BTreeMap::new(),
            other_scale: false,
        }
    }

    /// Goes over to another loss of the same parameters, such as from demonstrations to GRPO. The momentum is forgotten.
    /// The second moments stay: how the gradient's size differs from weight to weight is much the same, and an optimiser
    /// that knew nothing of it would move every weight by the full learning rate in its first update, however noisy that
    /// gradient. As a whole they take on the size of the next gradient, since losses differ in scale.
    pub fn change_objective(&mut self) {
        for moments in self.moments.values_mut() {
            let _ = moments.first.zero_();
        }
        self.other_scale = !self.moments.is_empty();
    }

    /// Whether [`AdamW::change_objective`] was called after the last update.
    pub fn has_changed_objective(&self) -> bool {
        self.other_scale
    }

    /// Makes the second moments those of gradients as large as the present one.
    fn take_on_scale(&mut self, parameters: &[(String, Tensor)]) {
        let sum = |tensors: Vec<Tensor>| match tensors.is_empty() {
            true => 0.0,
            false => Tensor::stack(&tensors, 0).sum(Kind::Double).double_value(&[]),
        };
        let gradients = parameters
            .iter()
            .map(|(_, parameter)| parameter.grad())
            .filter(Tensor::defined);
        let present = sum(gradients.map(|gradient| gradient.square().sum(Kind::Double)).collect());
        let moments = self.moments.values().map(|moments| moments.second.sum(Kind::Double));
        let past = sum(moments.collect()) / (1.0 - self.config.beta2.powf(self.updates as f64));
        if present > 0.0 && past > 0.0 {
            for moments in self.moments.values_mut() {
                let _ = moments.second.g_mul_scalar_(present / past);
            }
            self.other_scale = false;
        }
    }

    /// Updates made so far.
    pub fn updates(&self) -> i64 {
        self.updates
    }

    /// One update of `parameters` (leaf tensors) from their gradients. Parameters without a gradient stay as they are.
    pub fn update(&mut self, parameters: &mut [(String, Tensor)], learning_rate: f64) {
        if self.other_scale {
            tch::no_grad(|| self.take_on_scale(parameters));
        }
        self.updates += 1;
        let AdamWConfig {
            beta1,
            beta2,
            epsilon,
            weight_decay,
        } = self.config;
        let power = self.updates as f64;
        let step_size = learning_rate / (1.0 - beta1.powf(power));
        let second_correction = (1.0 - beta2.powf(power)).sqrt();
        tch::no_grad(|| {
            for (name, parameter) in parameters {
                let gradient = parameter.grad();
                if !gradient.defined() {
                    continue;
                }
                let moments = self.moments.entry(name.clone()).or_insert_with(|| Moments {
                    first: gradient.zeros_like(),
                    second: gradient.zeros_like(),
                });
                let _ = moments.first.lerp_(&gradient, 1.0 - beta1);
                let _ = moments.second.g_mul_scalar_(beta2);
                let _ = moments.second.g_add_(&(&gradient * &gradient * (1.0 - beta2)));
                let denominator = moments.second.sqrt() / second_correction + epsilon;
                if weight_decay != 0.0 {
                    let _ = parameter.g_mul_scalar_(1.0 - learning_rate * weight_decay);
                }
                let _ = parameter.g_sub_(&(&moments.first / denominator * step_size));
            }
        });
    }

    /// The state's tensors by name, for saving together with [`AdamW::updates`].
    pub fn state(&self) -> Vec<(String, Tensor)> {
        self.moments
            .iter()
            .flat_map(|(name, moments)| {
                [
                    (format!("{FIRST}{name}"), moments.first.shallow_clone()),
                    (format!("{SECOND}{name}"), moments.second.shallow_clone()),
                ]
            })
            .collect()
    }

    /// Puts back what [`AdamW::updates`], [`AdamW::has_changed_objective`] and [`AdamW::state`] gave. The parameters say
    /// which names and shapes belong here; the error names the tensor that doesn't.
    pub fn restore(
        &mut self,
        updates: i64,
        changed_objective: bool,
        state: Vec<(String, Tensor)>,
        parameters: &[(String, Tensor)],
    ) -> Result<(), String> {
        let mut state: BTreeMap<String, Tensor> = state.into_iter().collect();
        let mut moments = BTreeMap::new();
        for (name, parameter) in parameters {
            let mut take = |prefix: &str| state.remove(&format!("{prefix}{name}"));
            let (first, second) = match (take(FIRST), take(SECOND)) {
                (Some(first), Some(second)) => (first, second),
                // A parameter that never had a gradient has no state.
                (None, None) => continue,
                _ => return Err(format!("half of the state of {name} is missing")),
            };
            if first.size() != parameter.size() || second.size() != parameter.size() {
                return Err(format!(
                    "{name} has shape {:?}, its state {:?}",
                    parameter.size(),
                    first.size()
                ));
            }
            let device = parameter.device();
            moments.insert(
                name.clone(),
                Moments {
                    first: first.to_device(device),
                    second: second.to_device(device),
                },
            );
        }
        if let Some(name) = state.keys().next() {
            return Err(format!("{name} belongs to no parameter"));
        }
        self.updates = updates;
        self.moments = moments;
        self.other_scale = changed_objective;
        Ok(())
    }
}

/// Global norm of the gradients; scales them down to `max_norm` where it is larger. NaN or infinite gradients give a
/// norm that isn't finite and stay as they are.
pub fn clip_gradient_norm(parameters: &[(String, Tensor)], max_norm: f64) -> f64 {
    tch::no_grad(|| {
        let gradients: Vec<Tensor> = parameters
            .iter()
            .map(|(_, parameter)| parameter.grad())
            .filter(Tensor::defined)
            .collect();
        if gradients.is_empty() {
            return 0.0;
        }
        let squares: Vec<Tensor> = gradients
            .iter()
            .map(|gradient| gradient.square().sum(Kind::Double))
            .collect();
        let norm = Tensor::stack(&squares, 0).sum(Kind::Double).sqrt().double_value(&[]);
        if norm.is_finite() && norm > max_norm {
            for mut gradient in gradients {
                let _ = gradient.g_mul_scalar_(max_norm / norm);
            }
        }
        norm
    })
}

/// Clears the gradients.
pub fn zero_gradients(parameters: &mut [(String, Tensor)]) {
    for (_, parameter) in parameters {
        parameter.zero_grad();
    }
}

/// How the learning rate changes over GRPO steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Steps over which the rate rises linearly to its full value; 0: it is full from the start.
    pub warmup_steps: u64,
    /// Steps over which the rate then falls linearly to 0, counted from the first; 0: it stays.
    pub decay_steps: u64,
}

impl Schedule {
    /// Share of the full learning rate in `step` (from 1), of which `share_done` (0 to below 1) is behind. The warm-up
    /// goes by whole steps, the decay by updates.
    pub fn factor(self, step: u64, share_done: f64) -> f64 {
        let rising = if step < self.warmup_steps {
            step as f64 / self.warmup_steps as f64
        } else {
            1.0
        };
        let falling = if self.decay_steps == 0 {
            1.0
        } else {
            1.0 - ((step.saturating_sub(1)) as f64 + share_done) / self.decay_steps as f64
        };
        rising.min(falling.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: AdamWConfig = AdamWConfig {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
    };

    fn parameter(values: &[f64]) -> Vec<(String, Tensor)> {
        vec![("w".to_owned(), Tensor::from_slice(values).set_requires_grad(true))]
    }

    fn set_gradient(parameters: &mut [(String, Tensor)], scale: f64) {
        zero_gradients(parameters);
        (&parameters[0].1 * &parameters[0].1 * scale)
            .sum(Kind::Double)
            .backward();
    }

    /// The textbook's formulas, a number at a time.
    #[test]
    fn updates_follow_the_formulas() {
        let mut parameters = parameter(&[0.5, -2.0]);
        let mut optimizer = AdamW::new(CONFIG);
        let (mut values, mut first, mut second) = ([0.5f64, -2.0], [0.0f64; 2], [0.0f64; 2]);
        for update in 1..=5 {
            set_gradient(&mut parameters, 0.3);
            optimizer.update(&mut parameters, 0.01);
            for index in 0..2 {
                let gradient = 0.6 * values[index];
                first[index] = 0.9 * first[index] + 0.1 * gradient;
                second[index] = 0.99 * second[index] + 0.01 * gradient * gradient;
                let first_unbiased = first[index] / (1.0 - 0.9f64.powi(update));
                let second_unbiased = second[index] / (1.0 - 0.99f64.powi(update));
                values[index] *= 1.0 - 0.01 * 0.1;
                values[index] -= 0.01 * first_unbiased / (second_unbiased.sqrt() + 1e-8);
            }
            let got = Vec::<f64>::try_from(&parameters[0].1.detach()).unwrap();
            assert!(
                got.iter().zip(values).all(|(got, want)| (got - want).abs() < 1e-12),
                "{got:?} {values:?}"
            );
        }
    }

    #[test]
    fn a_restored_state_goes_on_bit_for_bit() {
        let mut parameters = parameter(&[0.5, -2.0]);
        let mut optimizer = AdamW::new(CONFIG);
        set_gradient(&mut parameters, 0.3);
        optimizer.update(&mut parameters, 0.01);
        let mut copies = parameter(&Vec::<f64>::try_from(&parameters[0].1.detach()).unwrap());
        let mut restored = AdamW::new(CONFIG);
        let state = optimizer
            .state()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.copy()))
            .collect();
        restored.restore(optimizer.updates(), false, state, &copies).unwrap();
        for (parameters, optimizer) in [(&mut parameters, &mut optimizer), (&mut copies, &mut restored)] {
            set_gradient(parameters, 0.7);
            optimizer.update(parameters, 0.01);
        }
        assert_eq!(parameters[0].1, copies[0].1);
        let wrong = vec![("first.x".to_owned(), Tensor::from(0.0))];
        assert_eq!(
            restored.restore(1, false, wrong, &copies).unwrap_err(),
            "first.x belongs to no parameter"
        );
    }

    #[test]
    fn clipping_keeps_the_direction() {
        let mut parameters = parameter(&[3.0, 4.0]);
        set_gradient(&mut parameters, 0.5);
        assert!((clip_gradient_norm(&parameters, 10.0) - 5.0).abs() < 1e-12);
        assert!((clip_gradient_norm(&parameters, 1.0) - 5.0).abs() < 1e-12);
        let gradient = Vec::<f64>::try_from(parameters[0].1.grad()).unwrap();
        assert!((gradient[0] - 0.6).abs() < 1e-12 && (gradient[1] - 0.8).abs() < 1e-12);
        set_gradient(&mut parameters, f64::NAN);
        assert!(clip_gradient_norm(&parameters, 1.0).is_nan());
    }

    #[test]
    fn a_new_objective_keeps_the_shape_of_the_second_moments_and_takes_on_its_own_scale() {
        let config = AdamWConfig {
            weight_decay: 0.0,
            ..CONFIG
        };
        let start = || {
            vec![(
                "a".to_owned(),
                Tensor::zeros([2], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true),
            )]
        };
        let set = |parameters: &mut [(String, Tensor)], gradient: &[f32]| {
            zero_gradients(parameters);
            let product = &parameters[0].1 * Tensor::from_slice(gradient);
            product.sum(None).backward();
        };
        let values = |parameters: &[(String, Tensor)]| Vec::<f32>::try_from(parameters[0].1.detach()).unwrap();
        // An objective whose gradients are 100 times as large, then one update of another: as if it had been of the other's
        // size from the start, less its momentum.
        let after = |size: f32| {
            let mut parameters = start();
            let mut optimizer = AdamW::new(config);
            for _ in 0..3 {
                set(&mut parameters, &[4.0 * size, 3.0 * size]);
                optimizer.update(&mut parameters, 0.0);
            }
            optimizer.change_objective();
            assert!(optimizer.has_changed_objective());
            set(&mut parameters, &[0.0, 5.0]);
            optimizer.update(&mut parameters, 1e-2);
            assert!(!optimizer.has_changed_objective());
            values(&parameters)
        };
        let (small, large) = (after(1.0), after(100.0));
        assert!(
            (small[1] - large[1]).abs() < 1e-7 && small[1] < -1e-4,
            "{small:?} {large:?}"
        );
        // The first update is a part of the rate: momentum must build up.
        assert!(small[1] > -1e-2, "{small:?}");
        assert_eq!(small[0], 0.0);
    }

    #[test]
    fn the_rate_rises_and_falls_linearly() {
        let factor = |warmup_steps, decay_steps, step, share_done| {
            Schedule {
                warmup_steps,
                decay_steps,
            }
            .factor(step, share_done)
        };
        assert_eq!(factor(0, 0, 1, 0.0), 1.0);
        assert_eq!(factor(4, 0, 1, 0.5), 0.25);
        assert_eq!(factor(4, 0, 4, 0.0), 1.0);
        assert_eq!(factor(4, 0, 9, 0.0), 1.0);
        assert_eq!(factor(0, 4, 1, 0.0), 1.0);
        assert_eq!(factor(0, 4, 1, 0.5), 0.875);
        assert_eq!(factor(2, 4, 1, 0.5), 0.5);
        assert_eq!(factor(2, 4, 4, 0.0), 0.25);
        // A run that goes on after the schedule's end changes nothing any more.
        assert_eq!(factor(2, 4, 6, 0.0), 0.0);
    }
}
