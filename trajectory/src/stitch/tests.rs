use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::call::{CallTimings, Endpoint};
use crate::id::{CallId, EpisodeId};

fn call(sequence: u32, prompt: &[u32], choices: &[&[u32]]) -> ModelCall {
    let choices = choices.iter().zip(0..).map(|(ids, index)| SampledChoice {
        index,
        token_ids: ids.to_vec(),
        behaviour_logprobs: ids.iter().map(|id| -(*id as f32)).collect(),
        finish_reason: Some("stop".into()),
    });
    ModelCall {
        id: CallId::new(),
        episode_id: EpisodeId::from("e"),
        sequence,
        endpoint: Endpoint::ChatCompletions,
        model: "m".into(),
        upstream_model: "policy@1".into(),
        request: Value::Null,
        response: None,
        prompt_token_ids: Some(prompt.to_vec()),
        choices: choices.collect(),
        policy_version: Some(PolicyVersion(u64::from(sequence))),
        sampling: Value::Null,
        grammar_constrained: false,
        status: CallStatus::Complete,
        upstream_status: Some(200),
        error: None,
        usage: None,
        timings: CallTimings::default(),
    }
}

/// Sampled tokens in brackets: `1 2 [3 4] 5 [6]`.
fn show(trajectory: &Trajectory) -> String {
    let mut text = String::new();
    let mut inside = false;
    for (id, sampled) in trajectory.token_ids.iter().zip(&trajectory.sampled_mask) {
        if inside && !sampled {
            text.push(']');
        }
        if !text.is_empty() {
            text.push(' ');
        }
        if *sampled && !inside {
            text.push('[');
        }
        inside = *sampled;
        text.push_str(&id.to_string());
    }
    if inside {
        text.push(']');
    }
    text
}

fn check(calls: &[ModelCall], expected: &[&str]) {
    let shown: Vec<String> = stitch(calls).iter().map(show).collect();
    assert_eq!(shown, expected);
}

#[test]
fn an_append_only_conversation_is_one_branch() {
    let calls = [
        call(1, &[1, 2], &[&[10, 11]]),
        call(2, &[1, 2, 10, 11, 3], &[&[12]]),
        call(3, &[1, 2, 10, 11, 3, 12, 4, 5], &[&[13, 14]]),
    ];
    check(&calls, &["1 2 [10 11] 3 [12] 4 5 [13 14]"]);
    let trajectory = &stitch(&calls)[0];
    assert_eq!(trajectory.behaviour_logprobs[2], Some(-10.0));
    assert_eq!(trajectory.behaviour_logprobs[4], None);
    assert_eq!(trajectory.policy_versions[5], Some(PolicyVersion(2)));
    assert_eq!(trajectory.policy_versions[0], None);
}

#[test]
fn order_is_by_sequence() {
    check(
        &[call(2, &[1, 10, 2], &[&[11]]), call(1, &[1], &[&[10]])],
        &["1 [10] 2 [11]"],
    );
}

#[test]
fn a_rewritten_history_opens_a_branch_in_which_it_is_read() {
    let calls = [call(1, &[1], &[&[10, 11, 12]]), call(2, &[1, 12, 2], &[&[13]])];
    check(&calls, &["1 [10 11 12]", "1 12 2 [13]"]);
}

#[test]
fn two_ways_on_from_one_answer_train_it_once() {
    let calls = [
        call(1, &[1], &[&[10]]),
        call(2, &[1, 10, 2], &[&[11]]),
        call(3, &[1, 10, 3], &[&[12]]),
    ];
    check(&calls, &["1 [10] 2 [11]", "1 10 3 [12]"]);
}

#[test]
fn asking_again_opens_a_branch() {
    check(
        &[call(1, &[1], &[&[10]]), call(2, &[1], &[&[11]])],
        &["1 [10]", "1 [11]"],
    );
}

#[test]
fn several_choices_are_branches_and_the_chosen_one_goes_on() {
    let calls = [call(1, &[1], &[&[10], &[11], &[12]]), call(2, &[1, 11, 2], &[&[13]])];
    check(&calls, &["1 [10]", "1 [11] 2 [13]", "1 [12]"]);
}

#[test]
fn several_choices_after_a_branch_continue_it_once() {
    let calls = [call(1, &[1], &[&[10]]), call(2, &[1, 10, 2], &[&[11], &[12]])];
    check(&calls, &["1 [10] 2 [11]", "1 10 2 [12]"]);
}

#[test]
fn equal_choices_keep_a_place_each() {
    let calls = [call(1, &[1], &[&[10], &[10]]), call(2, &[1, 10, 2], &[&[11]])];
    check(&calls, &["1 [10] 2 [11]", "1 [10]"]);
}

#[test]
fn after_a_stop_by_length_the_template_closes_the_turn() {
    let mut cut = call(1, &[1], &[&[10, 11]]);
    cut.choices[0].finish_reason = Some("length".into());
    check(&[cut, call(2, &[1, 10, 11, 0, 2], &[&[12]])], &["1 [10 11] 0 2 [12]"]);
}

#[test]
fn an_answer_may_be_continued_in_place() {
    check(&[call(1, &[1], &[&[10]]), call(2, &[1, 10], &[&[11]])], &["1 [10 11]"]);
}

#[test]
fn failed_calls_and_calls_without_ids_are_passed_over() {
    let mut failed = call(1, &[1], &[&[10]]);
    failed.status = CallStatus::Failed;
    let mut teacher = call(2, &[1], &[]);
    teacher.prompt_token_ids = None;
    let silent = call(3, &[1], &[&[]]);
    check(&[failed, teacher, silent, call(4, &[1], &[&[11]])], &["1 [11]"]);
}

#[test]
fn an_aborted_call_counts_with_what_came() {
    let mut aborted = call(1, &[1], &[&[10]]);
    aborted.status = CallStatus::Aborted;
    check(&[aborted], &["1 [10]"]);
}

#[test]
fn missing_logprobs_are_none() {
    let mut call = call(1, &[1], &[&[10, 11]]);
    call.choices[0].behaviour_logprobs.clear();
    let trajectory = &stitch(&[call])[0];
    assert_eq!(trajectory.behaviour_logprobs, vec![None; 3]);
    assert!(!trajectory.has_behaviour_logprobs());
    assert_eq!(trajectory.n_sampled(), 2);
}

/// One step of a made-up agent: go on from what an earlier call made (or begin anew), read something, sample choices.
#[derive(Clone, Debug)]
struct Move {
    from: Option<(usize, usize)>,
    keep: f64,
    read: Vec<u32>,
    n_sampled: Vec<usize>,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let from = prop_oneof![1 => Just(None), 5 => (0usize..12, 0usize..3).prop_map(Some)];
    let keep = prop_oneof![4 => Just(1.0), 1 => 0.0..1.0f64];
    // Few ids, so that prompts coincide by chance too.
    let one = (
        from,
        keep,
        prop::collection::vec(0u32..3, 0..4),
        prop::collection::vec(0usize..4, 1..4),
    )
        .prop_map(|(from, keep, read, n_sampled)| Move {
            from,
            keep,
            read,
            n_sampled,
        });
    prop::collection::vec(one, 1..14)
}

/// Plays the moves; `fresh` gives the ids that are sampled.
fn play(moves: &[Move], mut fresh: impl FnMut() -> u32) -> Vec<ModelCall> {
    let mut calls: Vec<ModelCall> = Vec::new();
    for (step, sequence) in moves.iter().zip(1..) {
        let mut prompt = Vec::new();
        if let (Some((earlier, choice)), false) = (step.from, calls.is_empty()) {
            let earlier = &calls[earlier % calls.len()];
            prompt.extend_from_slice(earlier.prompt_token_ids.as_ref().unwrap());
            prompt.extend_from_slice(&earlier.choices[choice % earlier.choices.len()].token_ids);
            prompt.truncate((prompt.len() as f64 * step.keep).round() as usize);
        }
        prompt.extend_from_slice(&step.read);
        let choices: Vec<Vec<u32>> = step
            .n_sampled
            .iter()
            .map(|n| (0..*n).map(|_| fresh()).collect())
            .collect();
        let choices: Vec<&[u32]> = choices.iter().map(Vec::as_slice).collect();
        calls.push(call(sequence, &prompt, &choices));
    }
    calls
}

proptest! {
    #[test]
    fn each_sampled_token_has_exactly_one_place(moves in moves()) {
        let mut next = 1000;
        let calls = play(&moves, || { next += 1; next });
        let trajectories = stitch(&calls);
        let mut places: Vec<u32> = Vec::new();
        for trajectory in &trajectories {
            prop_assert_eq!(trajectory.defect(), None);
            for (place, id) in trajectory.token_ids.iter().enumerate() {
                if trajectory.sampled_mask[place] {
                    places.push(*id);
                    prop_assert_eq!(trajectory.behaviour_logprobs[place], Some(-(*id as f32)));
                    let owner = calls.iter().find(|call| call.choices.iter().any(|choice| choice.token_ids.contains(id)));
                    prop_assert_eq!(trajectory.policy_versions[place], owner.unwrap().policy_version);
                }
            }
        }
        places.sort_unstable();
        prop_assert_eq!(places, (1001..=next).collect::<Vec<u32>>());
    }

    #[test]
    fn each_call_is_the_beginning_of_a_trajectory(moves in moves()) {
        let mut next = 0;
        // Repeating ids, so that answers coincide too.
        let calls = play(&moves, || { next = (next + 1) % 2; next });
        let trajectories = stitch(&calls);
        let n_sampled: usize = calls.iter().flat_map(|call| &call.choices).map(|choice| choice.token_ids.len()).sum();
        prop_assert_eq!(trajectories.iter().map(Trajectory::n_sampled).sum::<usize>(), n_sampled);
        for call in &calls {
            for choice in call.choices.iter().filter(|choice| !choice.token_ids.is_empty()) {
                let tokens = [call.prompt_token_ids.as_deref().unwrap(), &choice.token_ids].concat();
                prop_assert!(trajectories.iter().any(|trajectory| trajectory.token_ids.starts_with(&tokens)));
            }
        }
    }

    #[test]
    fn a_conversation_that_only_grows_is_one_trajectory(turns in prop::collection::vec((1usize..4, 1usize..4), 1..8)) {
        let (mut calls, mut history, mut next) = (Vec::new(), Vec::new(), 0u32);
        for ((n_read, n_sampled), sequence) in turns.into_iter().zip(1..) {
            let mut take = |n: usize| (0..n).map(|_| { next += 1; next }).collect::<Vec<u32>>();
            history.extend(take(n_read));
            let sampled = take(n_sampled);
            calls.push(call(sequence, &history, &[&sampled]));
            history.extend(sampled);
        }
        let trajectories = stitch(&calls);
        prop_assert_eq!(trajectories.len(), 1);
        prop_assert_eq!(&trajectories[0].token_ids, &history);
    }
}
