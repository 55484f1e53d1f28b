//! Cutting a forest into pieces, so that memory is bounded by the pieces on one path and not by the forest.
//!
//! A piece is a set of segments that run forward and backward together. Pieces form a tree: everything that a piece's
//! tokens attend to lies in it or in pieces above it. A piece is run forward, its keys and values become leaves, the
//! pieces below it run forward and backward against these leaves one after the other, and only then runs its own
//! backward pass. So a shared prefix is computed once however often the forest is cut below it, and at any time only
//! the graphs of the pieces from the top down to the running one are held.

use crate::forest::Forest;

/// A set of segments that run together. Indices point into [`Forest::segments`] and into the list of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its segments.
    pub segments: Vec<usize>,
    /// The pieces below it.
    pub children: Vec<usize>,
}

/// A forest cut into pieces of at most `budget` tokens, where segments allow it: a segment is never cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// All pieces.
    pub pieces: Vec<Piece>,
    /// Those that nothing lies above.
    pub roots: Vec<usize>,
}

impl Pieces {
    /// Cuts `forest`.
    pub fn new(forest: &Forest, budget: usize) -> Self {
        let roots = (0..forest.segments().len())
            .filter(|&index| forest.segments()[index].parent.is_none())
            .collect();
        let mut cutter = Cutter {
            forest,
            subtree_tokens: forest.subtree_tokens(),
            budget,
            pieces: Vec::new(),
        };
        let roots = cutter.cut(roots);
        Self {
            pieces: cutter.pieces,
            roots,
        }
    }
}

struct Cutter<'a> {
    forest: &'a Forest,
    subtree_tokens: Vec<usize>,
    budget: usize,
    pieces: Vec<Piece>,
}

impl Cutter<'_> {
    /// Cuts the subtrees of `roots`, whose ancestors all lie in pieces above. Returns the new pieces at the top.
    fn cut(&mut self, roots: Vec<usize>) -> Vec<usize> {
        let (light, heavy): (Vec<usize>, Vec<usize>) = roots
            .into_iter()
            .partition(|&root| self.subtree_tokens[root] <= self.budget);
        let mut tops = Vec::new();
        for bin in pack(&light, self.budget, |&root| self.subtree_tokens[root]) {
            let segments = bin.into_iter().flat_map(|root| self.subtree(root)).collect();
            tops.push(self.push(segments, Vec::new()));
        }
        // Too large for one piece: the upper segments get a piece of their own, and what hangs below them is cut anew.
        // Subtrees of different heavy segments may then share a piece.
        for bin in pack(&heavy, self.budget, |&root| self.forest.segments()[root].n_tokens()) {
            let (segments, below) = self.top_of(bin);
            let children = self.cut(below);
            tops.push(self.push(segments, children));
        }
        tops
    }

    /// The segments of a piece that holds `roots` and, as far as the budget goes, the heavy segments below them; and
    /// the segments that continue it.
    fn top_of(&self, roots: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let mut tokens: usize = roots.iter().map(|&root| self.forest.segments()[root].n_tokens()).sum();
        let mut segments = roots;
        let mut below = Vec::new();
        let mut next = 0;
        while next < segments.len() {
            for &child in &self.forest.segments()[segments[next]].children {
                let child_tokens = self.forest.segments()[child].n_tokens();
                if self.subtree_tokens[child] > self.budget && tokens + child_tokens <= self.budget {
                    tokens += child_tokens;
                    segments.push(child);
                } else {
                    below.push(child);
                }
            }
            next += 1;
        }
        (segments, below)
    }

    fn subtree(&self, root: usize) -> Vec<usize> {
        let mut segments = vec![root];
        let mut next = 0;
        while next < segments.len() {
            segments.extend_from_slice(&self.forest.segments()[segments[next]].children);
            next += 1;
        }
        segments
    }

    fn push(&mut self, segments: Vec<usize>, children: Vec<usize>) -> usize {
        self.pieces.push(Piece { segments, children });
        self.pieces.len() - 1
    }
}

/// Neighbours together while they fit into `budget`; an item larger than it has a bin of its own.
fn pack(items: &[usize], budget: usize, size: impl Fn(&usize) -> usize) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for &item in items {
        let item_size = size(&item);
        match bins.last_mut() {
            Some(bin) if filled + item_size <= budget => {
                bin.push(item);
                filled += item_size;
            }
            _ => {
                bins.push(vec![item]);
                filled = item_size;
            }
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_common_trunk_is_one_piece_with_the_groups_below() {
        let trunk: Vec<u32> = (0..20).collect();
        let sequences: Vec<Vec<u32>> = (0..4)
            .map(|branch| {
                trunk
                    .iter()
                    .copied()
                    .chain((0..10).map(|token| 100 + 10 * branch + token))
                    .collect()
            })
            .collect();
        let pieces = Pieces::new(&Forest::new(&sequences), 25);
        assert_eq!(pieces.roots.len(), 1);
        let top = &pieces.pieces[pieces.roots[0]];
        assert_eq!(top.segments.len(), 1);
        assert_eq!(top.children.len(), 2);
        assert_eq!(Pieces::new(&Forest::new(&sequences), 100).pieces.len(), 1);
    }

    proptest! {
        #[test]
        fn each_segment_is_in_one_piece_and_its_parent_above_it(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 0..12), 0..12), budget in 1usize..30,
        ) {
            let forest = Forest::new(&sequences);
            let pieces = Pieces::new(&forest, budget);
            let mut piece_of = vec![None; forest.segments().len()];
            let mut above = vec![None; pieces.pieces.len()];
            for (index, piece) in pieces.pieces.iter().enumerate() {
                let tokens: usize = piece.segments.iter().map(|&segment| forest.segments()[segment].n_tokens()).sum();
                prop_assert!(tokens <= budget || piece.segments.len() == 1);
                for &segment in &piece.segments {
                    prop_assert_eq!(piece_of[segment].replace(index), None);
                }
                for &child in &piece.children {
                    prop_assert_eq!(above[child].replace(index), None);
                }
            }
            for (index, segment) in forest.segments().iter().enumerate() {
                let Some(parent) = segment.parent else { continue };
                let mut piece = piece_of[index];
                while piece.is_some() && piece != piece_of[parent] {
                    piece = above[piece.unwrap()];
                }
                prop_assert!(piece.is_some(), "the parent of segment {} is not above it", index);
            }
            for (index, piece) in above.iter().enumerate() {
                prop_assert_eq!(piece.is_none(), pieces.roots.contains(&index));
            }
        }
    }
}
