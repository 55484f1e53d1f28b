//! Who holds which block of the KV cache, and which blocks hold a known prefix. Knows no tensors.
//!
//! A block is room for [`BLOCK_SIZE`] tokens in every layer. A full block is remembered under a hash of everything its keys and
//! values depend on: the adapter, all tokens before it and its own. A remembered block that nobody holds stays
//! until its room is needed; the longest unused one goes first.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};

/// Tokens of a block.
pub(super) const BLOCK_SIZE: usize = 16;

/// Index of a block in the pool.
pub(super) type BlockId = u32;

/// Identity of a full block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlockHash([u8; 16]);

impl BlockHash {
    /// The hash that a sequence's first block extends. `adapter_load_id` is unique to one load of one adapter (0 is the base
    /// model), so that a name loaded again never finds the blocks of its predecessor.
    pub(super) fn root(adapter_load_id: u64) -> Self {
        Self::of(&Sha256::new_with_prefix(adapter_load_id.to_le_bytes()))
    }

    /// The hash of a block of `tokens` that follows a block of hash `self`.
    pub(super) fn extend(self, tokens: &[u32]) -> Self {
        let mut hasher = Sha256::new_with_prefix(self.0);
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        Self::of(&hasher)
    }

    fn of(hasher: &Sha256) -> Self {
        let digest = hasher.clone().finalize();
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        Self(hash)
    }
}

#[derive(Clone, Default)]
struct Block {
    /// Sequences that hold the block.
    holders: u32,
    /// What it is remembered under.
    hash: Option<BlockHash>,
    /// When its last holder let go of it.
    released_at: u64,
}

/// The blocks of one KV cache.
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// Neither held nor remembered.
    free: Vec<BlockId>,
    /// Remembered and not held, by the time of release.
    unused: BTreeMap<u64, BlockId>,
    remembered: HashMap<BlockHash, BlockId>,
    clock: u64,
}

impl BlockPool {
    pub(super) fn new(n_blocks: usize) -> Self {
        Self {
            blocks: vec![Block::default(); n_blocks],
            free: (0..n_blocks as BlockId).rev().collect(),
            unused: BTreeMap::new(),
            remembered: HashMap::new(),
            clock: 0,
        }
    }

    /// Blocks that could be taken now.
    pub(super) fn n_available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// Takes a block for new content, forgetting the longest unused one where no other is left.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.unused.pop_first()?;
                if let Some(hash) = self.blocks[id as usize].hash.take() {
                    self.remembered.remove(&hash);
                }
                id
            }
        };
        self.blocks[id as usize].holders = 1;
        Some(id)
    }

    /// The remembered block of this content, if any; does not hold it.
    pub(super) fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.remembered.get(&hash).copied()
    }

    /// Whether taking hold of this block lowers [`BlockPool::n_available`].
    pub(super) fn is_unused(&self, id: BlockId) -> bool {
        self.blocks[id as usize].holders == 0
    }

    /// Adds a holder to a remembered block.
    pub(super) fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        if block.holders == 0 {
            self.unused.remove(&block.released_at);
        }
        block.holders += 1;
    }

    /// Remembers a held block, now full. The first block of a content wins; a second one stays anonymous.
    pub(super) fn remember(&mut self, id: BlockId, hash: BlockHash) {
        if let Entry::Vacant(vacant) = self.remembered.entry(hash) {
            vacant.insert(id);
            self.blocks[id as usize].hash = Some(hash);
        }
    }

    /// Lets go of a sequence's blocks, given first to last. Later ones are forgotten first, since they are of use only with
    /// those before them.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.holders -= 1;
            if block.holders > 0 {
                continue;
            }
            if block.hash.is_some() {
                self.clock += 1;
                block.released_at = self.clock;
                self.unused.insert(self.clock, id);
            } else {
                self.free.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(tokens: &[u32]) -> BlockHash {
        BlockHash::root(0).extend(tokens)
    }

    #[test]
    fn hashes_depend_on_adapter_and_all_tokens_before() {
        let tokens = [7; BLOCK_SIZE];
        assert_ne!(BlockHash::root(1).extend(&tokens), BlockHash::root(2).extend(&tokens));
        assert_ne!(hash(&tokens).extend(&tokens), hash(&tokens));
        assert_eq!(hash(&tokens), hash(&tokens));
    }

    #[test]
    fn a_remembered_block_outlives_its_holder_until_room_is_needed() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(pool.take(), None);
        pool.remember(first, hash(&[1]));
        pool.remember(second, hash(&[2]));
        pool.release(&[first, second]);
        assert_eq!(pool.n_available(), 2);
        assert_eq!(pool.find(hash(&[1])), Some(first));
        // The later block of the sequence goes first.
        assert_eq!(pool.take(), Some(second));
        assert_eq!(pool.find(hash(&[2])), None);
        pool.hold(first);
        assert_eq!(pool.n_available(), 0);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn a_shared_block_is_free_only_after_its_last_holder() {
        let mut pool = BlockPool::new(1);
        let id = pool.take().unwrap();
        pool.remember(id, hash(&[1]));
        pool.hold(id);
        pool.release(&[id]);
        assert_eq!(pool.n_available(), 0);
        pool.release(&[id]);
        assert_eq!(pool.n_available(), 1);
    }

    #[test]
    fn the_first_block_of_a_content_wins() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        pool.remember(first, hash(&[1]));
        pool.remember(second, hash(&[1]));
        assert_eq!(pool.find(hash(&[1])), Some(first));
        pool.release(&[second]);
        assert_eq!(pool.take(), Some(second));
        assert_eq!(pool.find(hash(&[1])), Some(first));
    }
}
