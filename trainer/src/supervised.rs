//! Supervised fine-tuning on demonstrations: what a warm start is made of.

use std::ops::ControlFlow;

use trajectory::Trajectory;

use crate::error::TrainError;
use crate::metrics::StepReport;
use crate::step::Trainer;

/// How demonstrations are gone through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SupervisedPlan {
    /// Demonstrations of one optimiser update, at least 1.
    pub batch_size: usize,
    /// How often each demonstration is seen.
    pub epochs: usize,
    /// AdamW's rate in the first step. It falls linearly towards 0 after the last, so that the noise of single batches
    /// averages out at the end.
    pub learning_rate: f64,
}

impl SupervisedPlan {
    /// Optimiser updates that `n` demonstrations give.
    pub fn n_steps(&self, n: usize) -> usize {
        n.div_ceil(self.batch_size.max(1)) * self.epochs
    }
}

impl Trainer {
    /// Goes through `demonstrations` in their order, `on_step` after each update; it can end the training early. Returns
    /// the last step's report.
    ///
    /// The optimiser is then ready for another objective ([`AdamW::change_objective`](crate::optimizer::AdamW::change_objective)):
    /// a supervised gradient is some twenty times as large as one of GRPO, so its second moments would all but stop
    /// GRPO's first hundred updates, and its momentum would go on pulling.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, or a failure of the tensor library.
    pub fn fine_tune(
        &mut self,
        demonstrations: &[Trajectory],
        plan: SupervisedPlan,
        mut on_step: impl FnMut(&StepReport) -> ControlFlow<()>,
    ) -> Result<Option<StepReport>, TrainError> {
        let n_steps = plan.n_steps(demonstrations.len());
        let batches = (0..plan.epochs).flat_map(|_| demonstrations.chunks(plan.batch_size.max(1)));
        let mut last = None;
        for (step, batch) in batches.enumerate() {
            let left = 1.0 - step as f64 / n_steps as f64;
            let report = self.sft_step(batch, plan.learning_rate * left)?;
            let flow = on_step(&report);
            last = Some(report);
            if flow.is_break() {
                break;
            }
        }
        self.optimizer.change_objective();
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{raw_config, tiny_trainer, trajectory};

    fn demonstration(token_ids: &[u32]) -> Trajectory {
        let sampled: Vec<usize> = (1..token_ids.len()).collect();
        trajectory(token_ids, &sampled, &vec![0.0; sampled.len()])
    }

    #[test]
    fn learns_in_steps_of_falling_rate_and_then_expects_another_objective() {
        let mut trainer = tiny_trainer(raw_config());
        let demonstrations: Vec<Trajectory> = (0..5).map(|at| demonstration(&[1, 2, 3 + at, 9, 4])).collect();
        let plan = SupervisedPlan {
            batch_size: 2,
            epochs: 4,
            learning_rate: 0.02,
        };
        let mut reports = Vec::new();
        let last = trainer
            .fine_tune(&demonstrations, plan, |report| {
                reports.push(report.clone());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(reports.len(), plan.n_steps(demonstrations.len()));
        assert_eq!(reports.len(), 12);
        assert!(last.unwrap().loss < reports[0].loss / 2.0, "{reports:?}");
        assert_eq!(reports[0].learning_rate, 0.02);
        assert!((reports[11].learning_rate - 0.02 / 12.0).abs() < 1e-12);
        assert!(
            reports
                .windows(2)
                .all(|pair| pair[1].learning_rate < pair[0].learning_rate)
        );
        assert!(trainer.optimizer.has_changed_objective());
    }

    #[test]
    fn ends_when_told() {
        let mut trainer = tiny_trainer(raw_config());
        let demonstrations = vec![demonstration(&[1, 2, 3]); 3];
        let plan = SupervisedPlan {
            batch_size: 1,
            epochs: 9,
            learning_rate: 1e-3,
        };
        trainer
            .fine_tune(&demonstrations, plan, |_| ControlFlow::Break(()))
            .unwrap();
        assert_eq!(trainer.step(), 1);
        assert!(
            trainer
                .fine_tune(&[], plan, |_| ControlFlow::Continue(()))
                .unwrap()
                .is_none()
        );
    }
}
