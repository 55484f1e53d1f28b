//! Calls of an episode become trajectories.
//!
//! A call whose prompt ids extend a branch (everything that it holds: prompt and sampled ids) continues it. Any other
//! call opens a branch: the template dropped reasoning, the agent compacted its history, a sub-agent began, the agent
//! asked again from an earlier point, or an answer has several choices. In a new branch everything of the prompt is
//! read, not sampled, also where an earlier call sampled it: those tokens are trained in their own branch. So each
//! sampled token has exactly one place with mask 1.

use crate::call::{CallStatus, ModelCall, SampledChoice};
use crate::id::PolicyVersion;
use crate::trajectory::Trajectory;

/// What stitching needs of a call.
#[derive(Clone, Copy)]
pub(crate) struct CallTokens<'a> {
    /// The prompt's ids as the server read them.
    pub(crate) prompt_token_ids: &'a [u32],
    /// What was sampled.
    pub(crate) choices: &'a [SampledChoice],
    /// What sampled it.
    pub(crate) policy_version: Option<PolicyVersion>,
}

/// The token view of calls, which may come in any order. Calls that failed or have no ids are passed over; an aborted
/// call counts with what had been sampled. Branches come in the order in which they began.
pub fn stitch(calls: &[ModelCall]) -> Vec<Trajectory> {
    let mut calls: Vec<&ModelCall> = calls.iter().collect();
    calls.sort_by_key(|call| call.sequence);
    stitch_tokens(
        calls
            .into_iter()
            .filter(|call| call.status != CallStatus::Failed)
            .filter_map(|call| {
                let prompt_token_ids = call.prompt_token_ids.as_deref()?;
                Some(CallTokens {
                    prompt_token_ids,
                    choices: &call.choices,
                    policy_version: call.policy_version,
                })
            }),
    )
}

/// [`stitch`] of calls that are in order and have ids.
pub(crate) fn stitch_tokens<'a>(calls: impl IntoIterator<Item = CallTokens<'a>>) -> Vec<Trajectory> {
    let mut branches: Vec<Trajectory> = Vec::new();
    for call in calls {
        let prompt = call.prompt_token_ids;
        // The longest branch that the prompt extends; the first of equals, since agents go on from the first choice.
        let mut continued = None;
        for (place, branch) in branches.iter().enumerate() {
            let longer = continued.is_none_or(|best: usize| branch.len() > branches[best].len());
            if longer && prompt.starts_with(&branch.token_ids) {
                continued = Some(place);
            }
        }
        for choice in call.choices.iter().filter(|choice| !choice.token_ids.is_empty()) {
            // Only one choice can continue the branch; the others read the same prompt in branches of their own.
            let place = continued.take().unwrap_or_else(|| {
                branches.push(Trajectory::default());
                branches.len() - 1
            });
            let branch = &mut branches[place];
            branch.push_read(&prompt[branch.len()..]);
            branch.push_sampled(&choice.token_ids, &choice.behaviour_logprobs, call.policy_version);
        }
    }
    branches
}

#[cfg(test)]
mod tests;
