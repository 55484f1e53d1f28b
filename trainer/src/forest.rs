//! The prefix forest: the token tries of a mini-batch.
//!
//! Sequences that begin alike share those tokens, so the forest holds each distinct token once. It is kept as
//! [`Segment`]s, runs of tokens without a branch. A token's position is its depth, and what a token may attend to are
//! the tokens on its path from the root: exactly what it would see if its sequence were computed alone.

use std::ops::Range;

/// A run of tokens without a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The segment that this one continues; `None` at a root.
    pub parent: Option<usize>,
    /// Segments that continue this one.
    pub children: Vec<usize>,
    /// Depth of the first token = its position in every sequence that holds it.
    pub start: usize,
    /// At least one token.
    pub token_ids: Vec<u32>,
}

impl Segment {
    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.token_ids.len()
    }
}

/// Token tries of several sequences. A parent's index is always smaller than its children's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    segments: Vec<Segment>,
    /// For each sequence, its segments from the root on.
    paths: Vec<Vec<usize>>,
}

impl Forest {
    /// Builds the tries of `sequences`. One sequence may be a prefix of another or equal to it; empty ones have an empty
    /// path.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S]) -> Self {
        let sequences: Vec<&[u32]> = sequences.iter().map(AsRef::as_ref).collect();
        // Sorted, the sequences of a subtree are neighbours, and what all of them share is what the outer two share.
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by(|&left, &right| sequences[left].cmp(sequences[right]));
        let mut forest = Self {
            segments: Vec::new(),
            paths: vec![Vec::new(); sequences.len()],
        };
        let mut open: Vec<(Range<usize>, usize, Option<usize>)> = vec![(0..order.len(), 0, None)];
        while let Some((range, depth, parent)) = open.pop() {
            for run in runs_of_equal_token(&sequences, &order, range, depth) {
                let first = sequences[order[run.start]];
                let last = sequences[order[run.end - 1]];
                let end = depth
                    + first[depth..]
                        .iter()
                        .zip(&last[depth..])
                        .take_while(|(left, right)| left == right)
                        .count();
                let index = forest.segments.len();
                forest.segments.push(Segment {
                    parent,
                    children: Vec::new(),
                    start: depth,
                    token_ids: first[depth..end].to_vec(),
                });
                if let Some(parent) = parent {
                    forest.segments[parent].children.push(index);
                }
                for &sequence in &order[run.clone()] {
                    forest.paths[sequence].push(index);
                }
                open.push((run, end, Some(index)));
            }
        }
        forest
    }

    /// All segments, parents first.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of distinct tokens.
    pub fn n_tokens(&self) -> usize {
        self.segments.iter().map(Segment::n_tokens).sum()
    }

    /// Where `position` of `sequence` lies: a segment and the offset in it. `None` past the sequence's end.
    pub fn locate(&self, sequence: usize, position: usize) -> Option<(usize, usize)> {
        let path = self.paths.get(sequence)?;
        let after = path.partition_point(|&segment| self.segments[segment].start <= position);
        let segment = *path.get(after.checked_sub(1)?)?;
        let offset = position - self.segments[segment].start;
        (offset < self.segments[segment].n_tokens()).then_some((segment, offset))
    }

    /// The segments above `segment`, from the root down to its parent.
    pub fn ancestors(&self, segment: usize) -> Vec<usize> {
        let mut ancestors = Vec::new();
        let mut above = self.segments[segment].parent;
        while let Some(index) = above {
            ancestors.push(index);
            above = self.segments[index].parent;
        }
        ancestors.reverse();
        ancestors
    }

    /// For each segment, the tokens of it and everything below it.
    pub fn subtree_tokens(&self) -> Vec<usize> {
        let mut tokens: Vec<usize> = self.segments.iter().map(Segment::n_tokens).collect();
        for (index, segment) in self.segments.iter().enumerate().rev() {
            if let Some(parent) = segment.parent {
                tokens[parent] += tokens[index];
            }
        }
        tokens
    }
}

/// Splits a sorted range into runs whose sequences have the same token at `depth`; sequences that end there drop out.
fn runs_of_equal_token(sequences: &[&[u32]], order: &[usize], range: Range<usize>, depth: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut previous = None;
    for place in range {
        let Some(&token) = sequences[order[place]].get(depth) else {
            continue;
        };
        match runs.last_mut() {
            Some(run) if previous == Some(token) => run.end = place + 1,
            _ => runs.push(place..place + 1),
        }
        previous = Some(token);
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shared_prefixes_are_held_once() {
        let forest = Forest::new(&[&[1, 2, 3, 4][..], &[1, 2, 5], &[1, 2], &[7], &[1, 2, 3, 4]]);
        assert_eq!(forest.n_tokens(), 6);
        assert_eq!(forest.segments().len(), 4);
        assert_eq!(forest.locate(0, 3), forest.locate(4, 3));
        assert_eq!(
            forest.locate(1, 2).map(|(segment, _)| forest.ancestors(segment).len()),
            Some(1)
        );
        assert_eq!(forest.locate(2, 2), None);
        assert_eq!(
            forest.locate(3, 0).map(|(segment, _)| forest.ancestors(segment)),
            Some(vec![])
        );
        assert_eq!(forest.subtree_tokens().iter().max(), Some(&5));
    }

    #[test]
    fn nothing_gives_an_empty_forest() {
        assert_eq!(Forest::new::<Vec<u32>>(&[]).n_tokens(), 0);
        assert_eq!(Forest::new(&[Vec::new()]).segments(), &[]);
    }

    proptest! {
        #[test]
        fn every_token_lies_at_its_depth_and_no_prefix_is_held_twice(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 0..9), 0..9),
        ) {
            let forest = Forest::new(&sequences);
            let prefixes: BTreeSet<&[u32]> =
                sequences.iter().flat_map(|sequence| (1..=sequence.len()).map(|end| &sequence[..end])).collect();
            prop_assert_eq!(forest.n_tokens(), prefixes.len());
            for (index, sequence) in sequences.iter().enumerate() {
                let mut rebuilt = Vec::new();
                for position in 0..sequence.len() {
                    let (segment, offset) = forest.locate(index, position).unwrap();
                    prop_assert_eq!(forest.segments()[segment].start + offset, position);
                    rebuilt.push(forest.segments()[segment].token_ids[offset]);
                }
                prop_assert_eq!(&rebuilt, sequence);
                prop_assert_eq!(forest.locate(index, sequence.len()), None);
            }
            for (index, segment) in forest.segments().iter().enumerate() {
                prop_assert!(segment.n_tokens() > 0 && segment.parent.is_none_or(|parent| parent < index));
            }
        }
    }
}
