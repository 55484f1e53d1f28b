//! What is trained on, and under which reason the rest is counted.

use super::*;
use crate::testing::{group, trajectory};

fn counts(entries: &[(&str, usize)]) -> BTreeMap<String, usize> {
    entries
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

fn good() -> Trajectory {
    trajectory(&[1, 2, 3], &[2], &[-1.0])
}

#[track_caller]
fn check(
    groups: &[TrajectoryGroup],
    trained: usize,
    groups_left_out: &[(&str, usize)],
    trajectories: &[(&str, usize)],
) {
    let selection = Selection::of_groups(groups, AdvantageSettings::default(), 100);
    assert_eq!(selection.groups.iter().map(Vec::len).sum::<usize>(), trained);
    assert_eq!(selection.groups_left_out, counts(groups_left_out));
    assert_eq!(selection.trajectories_left_out, counts(trajectories));
}

/// N1.
#[test]
fn equal_sums_of_opposite_parts_are_zero_variance() {
    let parts = [(0.1, 0.9), (0.4, 0.6), (0.9, 0.1)];
    let episodes = parts.map(|(format, value)| (format + value, good()));
    check(&[group(episodes)], 0, &[("zero_variance", 1)], &[]);
}

/// N3.
#[test]
fn missing_logprobs_are_called_that() {
    let mut bare = good();
    bare.behaviour_logprobs[2] = None;
    let mut infinite = good();
    infinite.behaviour_logprobs[2] = Some(f32::NEG_INFINITY);
    let missing = "missing_behaviour_logprobs";
    check(&[group([(1.0, bare.clone()), (0.0, good())])], 1, &[], &[(missing, 1)]);
    check(
        &[group([(1.0, bare.clone()), (1.0, infinite)])],
        0,
        &[("no_trainable_trajectory", 1)],
        &[(missing, 2)],
    );
    // A demonstration needs none.
    assert_eq!(Selection::of_demonstrations(&[bare], 100).groups.len(), 1);
}

/// N4, N6: what the policy didn't sample has mask 0 and is not in the loss.
#[test]
fn nothing_sampled_is_left_out() {
    let read_only = trajectory(&[1, 2, 3], &[], &[]);
    let first_only = trajectory(&[1, 2, 3], &[0], &[-1.0]);
    let groups = [group([(1.0, read_only), (0.0, good()), (0.5, first_only)])];
    check(&groups, 1, &[], &[("no_sampled_token", 2)]);
    let selection = Selection::of_groups(&groups, AdvantageSettings::default(), 100);
    let batch = MiniBatch::new(selection.groups[0].iter().cloned(), Aggregation::TokenMean, None);
    assert_eq!(batch.terms.len(), 1);
    assert_eq!((batch.terms[0].position, batch.terms[0].token_id), (2, 3));
    // Nothing is predicted from the last token, so it isn't computed.
    assert_eq!(batch.sequences, [vec![1, 2]]);
}

/// N5.
#[test]
fn advantages_are_normalised_within_the_group() {
    let groups = [
        group([(0.0, good()), (1.0, good())]),
        group([(10.0, good()), (11.0, good())]),
    ];
    let selection = Selection::of_groups(&groups, AdvantageSettings::default(), 100);
    let advantages: Vec<Vec<f64>> = selection
        .groups
        .iter()
        .map(|group| group.iter().map(|weighted| weighted.advantage_at(2)).collect())
        .collect();
    assert_eq!(advantages[0], advantages[1]);
    assert!((advantages[0][1] - 1.0).abs() < 1e-5);
}

/// With credit to branches only the tokens at which episodes part are in the loss, and nothing after them is computed.
#[test]
fn branches_are_trained_where_they_part() {
    let episode = |ids: &[u32]| trajectory(ids, &[2, 3, 4], &[-1.0; 3]);
    let groups = [group([
        (1.0, episode(&[1, 2, 3, 4, 5])),
        (0.0, episode(&[1, 2, 3, 6, 7])),
    ])];
    let settings = AdvantageSettings {
        credit: Credit::Branch,
        scale_rewards: false,
        ..AdvantageSettings::default()
    };
    let selection = Selection::of_groups(&groups, settings, 100);
    let batch = MiniBatch::new(selection.groups[0].iter().cloned(), Aggregation::TokenMean, None);
    let terms: Vec<(usize, u32, f64, f64)> = batch
        .terms
        .iter()
        .map(|term| (term.position, term.token_id, term.advantage, term.weight))
        .collect();
    assert_eq!(terms, [(3, 4, 0.5, 0.5), (3, 6, -0.5, 0.5)]);
    assert_eq!(batch.sequences, [vec![1, 2, 3], vec![1, 2, 3]]);
    // An episode that never parts from a worse or a better one has nothing to learn from.
    let same = [group([
        (1.0, episode(&[1, 2, 3, 4, 5])),
        (0.0, episode(&[1, 2, 3, 4, 5])),
    ])];
    let selection = Selection::of_groups(&same, settings, 100);
    assert_eq!(selection.groups_left_out, counts(&[("no_trainable_trajectory", 1)]));
}

#[test]
fn other_reasons() {
    let long = trajectory(&[5; 101], &[100], &[-1.0]);
    check(&[group([(1.0, long), (0.0, good())])], 1, &[], &[("too_long", 1)]);
    check(&[group([(1.0, good())])], 0, &[("fewer_than_two_episodes", 1)], &[]);
    check(
        &[group([(f64::NAN, good()), (0.0, good())])],
        0,
        &[("non_finite_reward", 1)],
        &[],
    );
    check(
        &[group([(0.0, good()), (0.5, good()), (1.0, good())])],
        2,
        &[],
        &[("zero_advantage", 1)],
    );
}

#[test]
fn terms_carry_what_the_loss_needs() {
    let first = trajectory(&[1, 2, 3, 4], &[1, 3], &[-0.5, -0.25]);
    let mut second = trajectory(&[1, 2, 9], &[2], &[-2.0]);
    second.policy_versions[2] = Some(PolicyVersion(0));
    let weighted = [(&first, 1.5), (&second, -1.0)].map(|(trajectory, advantage): (_, f64)| Weighted {
        trajectory,
        advantage: advantage.into(),
    });
    let batch = MiniBatch::new(weighted, Aggregation::SequenceMean, Some(PolicyVersion(1)));
    let term = |sequence, position, token_id, advantage, weight, behaviour_logprob, current| LossTerm {
        sequence,
        position,
        token_id,
        advantage,
        weight,
        behaviour_logprob,
        current,
    };
    assert_eq!(
        batch.terms,
        [
            term(0, 1, 2, 1.5, 0.25, -0.5, true),
            term(0, 3, 4, 1.5, 0.25, -0.25, true),
            term(1, 2, 9, -1.0, 0.5, -2.0, false),
        ]
    );
    assert_eq!(batch.n_tokens(), 5);
}
