//! Which sequence computes which tokens in the next step. A pure state machine: no tensors, no clock, no channels.
//!
//! A step mixes sequences that sample (one row each) with chunks of prompts, within `max_batch_tokens`. Sequences run in
//! the order they were admitted. Two rules go beyond first come, first served:
//! - A waiting sequence whose next block is just being computed by a running one stays back, and then finds
//!   it in the cache. So a prefix that many requests share is computed once also when they arrive together.
//! - Where a running sequence cannot grow, the last admitted one gives its blocks up and goes back to the head of the queue, to
//!   be computed again (what is left of it in the cache is found there).

use std::collections::{HashMap, VecDeque};

use super::block_pool::{BLOCK_SIZE, BlockHash, BlockId, BlockPool};

/// Names a sequence for the engine's life.
pub(super) type SequenceId = u64;

/// Limits of a step.
pub(super) struct SchedulerLimits {
    pub(super) max_batch_tokens: usize,
    pub(super) max_sequences: usize,
}

/// A prompt, and what was sampled after it.
pub(super) struct Sequence {
    tokens: Vec<u32>,
    n_prompt: usize,
    /// 0 is the base model.
    adapter_load_id: u64,
    /// Tokens whose keys and values are in the cache.
    n_computed: usize,
    /// Blocks that it holds, in order of position.
    blocks: Vec<BlockId>,
    /// Hashes of the full blocks of `tokens`.
    hashes: Vec<BlockHash>,
    /// Whether its cached prompt tokens were counted already.
    counted: bool,
}

impl Sequence {
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    fn n_pending(&self) -> usize {
        self.tokens.len() - self.n_computed
    }

    fn extend_hashes(&mut self) {
        for block in self.hashes.len()..self.tokens.len() / BLOCK_SIZE {
            let parent = self
                .hashes
                .last()
                .copied()
                .unwrap_or_else(|| BlockHash::root(self.adapter_load_id));
            self.hashes
                .push(parent.extend(&self.tokens[block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE]));
        }
    }
}

/// A run of a sequence's tokens in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepItem {
    pub(super) sequence: SequenceId,
    pub(super) adapter_load_id: u64,
    /// Position of the first token; those before it are in the cache.
    pub(super) start: usize,
    pub(super) n_tokens: usize,
    /// Whether the last token is the sequence's last, so that the next one is sampled after it.
    pub(super) samples: bool,
}

/// What became of prompts so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PromptCounts {
    pub(super) computed: u64,
    pub(super) cached: u64,
    pub(super) preemptions: u64,
}

/// The state machine: `schedule`, compute, `complete`, `push_token` or `finish`, and again.
pub(super) struct Scheduler {
    limits: SchedulerLimits,
    pool: BlockPool,
    sequences: HashMap<SequenceId, Sequence>,
    waiting: VecDeque<SequenceId>,
    running: Vec<SequenceId>,
    /// Blocks that running sequences are about to compute.
    in_progress: HashMap<BlockHash, SequenceId>,
    counts: PromptCounts,
}

impl Scheduler {
    pub(super) fn new(limits: SchedulerLimits, n_blocks: usize) -> Self {
        Self {
            limits,
            pool: BlockPool::new(n_blocks),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            in_progress: HashMap::new(),
            counts: PromptCounts::default(),
        }
    }

    pub(super) fn n_running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(super) fn counts(&self) -> PromptCounts {
        self.counts
    }

    /// The sequence, if it has not been finished.
    pub(super) fn sequence(&self, id: SequenceId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Queues a sequence. The caller has seen to it that it fits into the cache alone.
    pub(super) fn add(&mut self, id: SequenceId, adapter_load_id: u64, prompt: Vec<u32>) {
        let n_prompt = prompt.len();
        let mut sequence = Sequence {
            tokens: prompt,
            n_prompt,
            adapter_load_id,
            n_computed: 0,
            blocks: Vec::new(),
            hashes: Vec::new(),
            counted: false,
        };
        sequence.extend_hashes();
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
    }

    /// Decides the next step. Rows of one adapter come together. Empty only when nothing is left to do.
    pub(super) fn schedule(&mut self) -> Vec<StepItem> {
        let n_sampling = self
            .running
            .iter()
            .filter(|id| self.sequences[id].n_pending() == 1)
            .count();
        let mut prompt_budget = self.limits.max_batch_tokens.saturating_sub(n_sampling);
        let mut items = Vec::with_capacity(self.running.len());
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() {
            let id = self.running[index];
            let n_pending = self.sequences[&id].n_pending();
            let n_tokens = if n_pending == 1 {
                1
            } else {
                n_pending.min(prompt_budget)
            };
            if n_tokens == 0 {
                index += 1;
                continue;
            }
            while !self.grow(id, n_tokens) {
                preempted = true;
                self.preempt_last();
                if self.running.len() == index {
                    break;
                }
            }
            if self.running.len() == index {
                break;
            }
            if n_pending > 1 {
                prompt_budget -= n_tokens;
            }
            items.push(self.item(id, n_tokens));
            index += 1;
        }
        if !preempted {
            self.admit(prompt_budget, &mut items);
        }
        // Stable, so that within an adapter the order of admission stays.
        items.sort_by_key(|item| item.adapter_load_id);
        items
    }

    fn item(&self, id: SequenceId, n_tokens: usize) -> StepItem {
        let sequence = &self.sequences[&id];
        StepItem {
            sequence: id,
            adapter_load_id: sequence.adapter_load_id,
            start: sequence.n_computed,
            n_tokens,
            samples: n_tokens == sequence.n_pending(),
        }
    }

    /// Starts waiting sequences while rows, places and blocks last.
    fn admit(&mut self, mut budget: usize, items: &mut Vec<StepItem>) {
        let mut index = 0;
        while index < self.waiting.len() && budget > 0 && self.running.len() < self.limits.max_sequences {
            let id = self.waiting[index];
            let sequence = &self.sequences[&id];
            // The last token is always computed: its logits are wanted.
            let n_usable = (sequence.tokens.len() - 1) / BLOCK_SIZE;
            let found: Vec<BlockId> = sequence.hashes[..n_usable]
                .iter()
                .map_while(|&hash| self.pool.find(hash))
                .collect();
            if sequence.hashes[..n_usable]
                .get(found.len())
                .is_some_and(|next| self.in_progress.contains_key(next))
            {
                index += 1;
                continue;
            }
            let n_blocks = sequence.tokens.len().div_ceil(BLOCK_SIZE);
            let n_taken = n_blocks - found.len() + found.iter().filter(|&&id| self.pool.is_unused(id)).count();
            // One block a running sequence is kept back, so that they can grow for a while.
            let n_reserved = if self.running.is_empty() {
                0
            } else {
                self.running.len() + 1
            };
            if n_taken + n_reserved > self.pool.n_available() {
                break;
            }
            self.waiting.remove(index);
            let n_tokens = self.start(id, found, n_blocks).min(budget);
            budget -= n_tokens;
            self.running.push(id);
            items.push(self.item(id, n_tokens));
        }
    }

    /// Gives a sequence the blocks of its tokens, `found` first, and returns how many tokens are left to compute.
    fn start(&mut self, id: SequenceId, found: Vec<BlockId>, n_blocks: usize) -> usize {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return 0;
        };
        sequence.n_computed = found.len() * BLOCK_SIZE;
        if !sequence.counted {
            sequence.counted = true;
            self.counts.cached += sequence.n_computed as u64;
        }
        for &block in &found {
            self.pool.hold(block);
        }
        let new_blocks = found.len()..n_blocks;
        for &hash in &sequence.hashes[found.len()..] {
            self.in_progress.entry(hash).or_insert(id);
        }
        sequence.blocks = found;
        sequence.blocks.extend(new_blocks.map_while(|_| self.pool.take()));
        sequence.n_pending()
    }

    /// Makes room for `n_tokens` more; false where blocks are lacking.
    fn grow(&mut self, id: SequenceId, n_tokens: usize) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return true;
        };
        while sequence.blocks.len() * BLOCK_SIZE < sequence.n_computed + n_tokens {
            match self.pool.take() {
                Some(block) => sequence.blocks.push(block),
                None => return false,
            }
        }
        true
    }

    fn preempt_last(&mut self) {
        if let Some(id) = self.running.pop() {
            self.counts.preemptions += 1;
            self.give_up_blocks(id);
            self.waiting.push_front(id);
        }
    }

    fn give_up_blocks(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        self.pool.release(&std::mem::take(&mut sequence.blocks));
        for hash in &sequence.hashes[sequence.n_computed / BLOCK_SIZE..] {
            if self.in_progress.get(hash) == Some(&id) {
                self.in_progress.remove(hash);
            }
        }
        sequence.n_computed = 0;
    }

    /// Notes that the items' keys and values are in the cache.
    pub(super) fn complete(&mut self, items: &[StepItem]) {
        for item in items {
            let Some(sequence) = self.sequences.get_mut(&item.sequence) else {
                continue;
            };
            let full_before = sequence.n_computed / BLOCK_SIZE;
            let prompt_before = sequence.n_computed.min(sequence.n_prompt);
            sequence.n_computed += item.n_tokens;
            self.counts.computed += (sequence.n_computed.min(sequence.n_prompt) - prompt_before) as u64;
            sequence.extend_hashes();
            for block in full_before..sequence.n_computed / BLOCK_SIZE {
                let hash = sequence.hashes[block];
                self.pool.remember(sequence.blocks[block], hash);
                if self.in_progress.get(&hash) == Some(&item.sequence) {
                    self.in_progress.remove(&hash);
                }
            }
        }
    }

    /// Appends a sampled token.
    pub(super) fn push_token(&mut self, id: SequenceId, token: u32) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.tokens.push(token);
        }
    }

    /// Forgets a sequence, running or waiting. What it computed stays in the cache while there is room.
    pub(super) fn finish(&mut self, id: SequenceId) {
        self.give_up_blocks(id);
        self.sequences.remove(&id);
        self.running.retain(|&other| other != id);
        self.waiting.retain(|&other| other != id);
    }
}

#[cfg(test)]
mod tests;
