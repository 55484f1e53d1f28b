//! How many GRPO steps a run's time allows.

/// A last step with a smaller share of its groups than this costs the time of a swap and teaches little.
const SMALLEST_SHARE: f64 = 0.4;

/// How far GRPO goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimePlan {
    /// The step that it ends with.
    pub(super) last_step: usize,
    /// Share of its groups that the last step has; 1 where the time allows a whole one.
    pub(super) share_of_last: f64,
}

impl TimePlan {
    /// All of the `configured` steps, whole.
    pub(super) fn whole(configured: usize) -> Self {
        Self {
            last_step: configured,
            share_of_last: 1.0,
        }
    }

    /// What fits into `seconds_left` after step `done`, where a whole step takes `seconds_per_step`; at most the `configured` steps. What
    /// whole steps leave over goes into a smaller one, if it isn't too small.
    pub(super) fn within(configured: usize, done: usize, seconds_left: f64, seconds_per_step: f64) -> Self {
        let steps_left = (seconds_left / seconds_per_step).max(0.0);
        let last_whole = done.saturating_add(steps_left as usize);
        let rest = steps_left.fract();
        if last_whole >= configured {
            Self::whole(configured)
        } else if rest >= SMALLEST_SHARE {
            Self {
                last_step: last_whole + 1,
                share_of_last: rest,
            }
        } else {
            Self::whole(last_whole)
        }
    }

    /// The share of its groups that `step` has.
    pub(super) fn share(self, step: usize) -> f64 {
        if step == self.last_step {
            self.share_of_last
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_whole_steps_leave_over_is_a_smaller_last_one() {
        let plan = TimePlan::within(8, 3, 150.0, 200.0);
        assert_eq!((plan.last_step, plan.share_of_last), (4, 0.75));
        assert_eq!((plan.share(4), plan.share(3)), (0.75, 1.0));
        let plan = TimePlan::within(8, 1, 500.0, 200.0);
        assert_eq!((plan.last_step, plan.share(2), plan.share(4)), (4, 1.0, 0.5));
    }

    #[test]
    fn a_rest_that_is_too_small_is_left() {
        assert_eq!(TimePlan::within(8, 3, 60.0, 200.0), TimePlan::whole(3));
        assert_eq!(TimePlan::within(8, 3, -60.0, 200.0), TimePlan::whole(3));
        assert_eq!(TimePlan::within(8, 3, 260.0, 200.0), TimePlan::whole(4));
    }

    #[test]
    fn no_more_than_the_configured_steps() {
        assert_eq!(TimePlan::within(8, 3, 1e9, 200.0), TimePlan::whole(8));
        assert_eq!(TimePlan::within(8, 7, 300.0, 200.0), TimePlan::whole(8));
        assert_eq!(TimePlan::within(8, 7, 150.0, 200.0).share(8), 0.75);
        assert_eq!(TimePlan::within(8, 7, f64::INFINITY, 1.0), TimePlan::whole(8));
    }
}
