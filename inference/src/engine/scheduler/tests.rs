//! The scheduler without tensors: what it plans for given arrivals.

use proptest::prelude::*;

use super::*;

fn scheduler(max_batch_tokens: usize, max_sequences: usize, n_blocks: usize) -> Scheduler {
    Scheduler::new(
        SchedulerLimits {
            max_batch_tokens,
            max_sequences,
        },
        n_blocks,
    )
}

fn prompt(first: u32, n_tokens: usize) -> Vec<u32> {
    (first..first + n_tokens as u32).collect()
}

/// One step in which every sequence that samples gets token 1; returns (sequence, start, n_tokens).
fn step(scheduler: &mut Scheduler) -> Vec<(SequenceId, usize, usize)> {
    let items = scheduler.schedule();
    scheduler.complete(&items);
    for item in items.iter().filter(|item| item.samples) {
        scheduler.push_token(item.sequence, 1);
    }
    items
        .iter()
        .map(|item| (item.sequence, item.start, item.n_tokens))
        .collect()
}

#[test]
fn a_step_mixes_sampling_rows_and_chunks_within_the_budget() {
    let mut scheduler = scheduler(32, 4, 64);
    scheduler.add(1, 0, prompt(100, 20));
    assert_eq!(step(&mut scheduler), [(1, 0, 20)]);
    scheduler.add(2, 0, prompt(200, 50));
    scheduler.add(3, 0, prompt(300, 10));
    assert_eq!(step(&mut scheduler), [(1, 20, 1), (2, 0, 31)]);
    assert_eq!(step(&mut scheduler), [(1, 21, 1), (2, 31, 19), (3, 0, 10)]);
    assert_eq!(step(&mut scheduler), [(1, 22, 1), (2, 50, 1), (3, 10, 1)]);
}

#[test]
fn rows_of_one_adapter_come_together() {
    let mut scheduler = scheduler(64, 8, 64);
    for (id, adapter) in [(1, 2), (2, 0), (3, 2), (4, 1)] {
        scheduler.add(id, adapter, prompt(100 * id as u32, 4));
    }
    let order: Vec<_> = scheduler
        .schedule()
        .iter()
        .map(|item| (item.adapter_load_id, item.sequence))
        .collect();
    assert_eq!(order, [(0, 2), (1, 4), (2, 1), (2, 3)]);
}

#[test]
fn a_prefix_shared_by_requests_that_arrive_together_is_computed_once() {
    let mut scheduler = scheduler(512, 8, 128);
    for id in 1..=4 {
        let mut tokens = prompt(1000, 40);
        tokens.extend(prompt(2000 + 100 * id as u32, 10));
        scheduler.add(id, 0, tokens);
    }
    assert_eq!(step(&mut scheduler), [(1, 0, 50)]);
    assert_eq!(
        step(&mut scheduler),
        [(1, 50, 1), (2, 32, 18), (3, 32, 18), (4, 32, 18)]
    );
    assert_eq!(
        scheduler.counts(),
        PromptCounts {
            computed: 50 + 3 * 18,
            cached: 3 * 32,
            preemptions: 0
        }
    );
}

#[test]
fn another_adapter_shares_nothing() {
    let mut scheduler = scheduler(512, 8, 128);
    scheduler.add(1, 0, prompt(0, 50));
    scheduler.add(2, 7, prompt(0, 50));
    assert_eq!(step(&mut scheduler), [(1, 0, 50), (2, 0, 50)]);
}

#[test]
fn the_last_token_is_computed_even_if_all_blocks_are_known() {
    let mut scheduler = scheduler(512, 8, 128);
    scheduler.add(1, 0, prompt(0, 32));
    step(&mut scheduler);
    scheduler.finish(1);
    scheduler.add(2, 0, prompt(0, 32));
    assert_eq!(step(&mut scheduler), [(2, 16, 16)]);
}

#[test]
fn an_aborted_prefix_is_taken_over_by_the_next() {
    let mut scheduler = scheduler(16, 8, 128);
    scheduler.add(1, 0, prompt(0, 64));
    scheduler.add(2, 0, prompt(0, 64));
    assert_eq!(step(&mut scheduler), [(1, 0, 16)]);
    scheduler.finish(1);
    assert_eq!(step(&mut scheduler), [(2, 16, 16)]);
}

#[test]
fn without_blocks_requests_wait_and_running_ones_give_way_from_the_end() {
    let mut scheduler = scheduler(64, 8, 5);
    scheduler.add(1, 0, prompt(100, 32));
    scheduler.add(2, 0, prompt(200, 32));
    // Two blocks are left after the first, and one each is kept back for growth.
    assert_eq!(step(&mut scheduler), [(1, 0, 32)]);
    scheduler.finish(1);
    scheduler.add(3, 0, prompt(300, 15));
    assert_eq!(step(&mut scheduler), [(2, 0, 32), (3, 0, 15)]);
    for n_sampled in 0..16 {
        assert_eq!(step(&mut scheduler).len(), 2, "after {n_sampled}");
    }
    // 48 and 31 tokens: all five blocks are full but for one place.
    assert_eq!(step(&mut scheduler), [(2, 48, 1)]);
    assert_eq!((scheduler.n_running(), scheduler.n_waiting()), (1, 1));
    scheduler.finish(2);
    // Its first block is still known, the second has been forgotten for sequence 2.
    assert_eq!(step(&mut scheduler), [(3, 16, 16)]);
    assert_eq!(scheduler.counts().preemptions, 1);
}

proptest! {
    /// Whatever arrives, every sequence computes each of its tokens in order, within the limits, and all come to an end.
    #[test]
    fn every_sequence_ends(
        prompts in prop::collection::vec((1usize..60, 0u64..2, 0u32..3, 1usize..30), 1..20),
        max_batch_tokens in 16usize..80,
        max_sequences in 1usize..8,
        n_blocks in 6usize..20,
    ) {
        let mut scheduler = scheduler(max_batch_tokens, max_sequences, n_blocks);
        let mut left: HashMap<SequenceId, usize> = HashMap::new();
        for (id, &(n_tokens, adapter, kind, n_sampled)) in prompts.iter().enumerate() {
            scheduler.add(id as u64, adapter, prompt(kind * 1000, n_tokens));
            left.insert(id as u64, n_sampled);
        }
        for _ in 0..20_000 {
            let items = scheduler.schedule();
            if items.is_empty() {
                break;
            }
            prop_assert!(items.len() <= max_sequences);
            prop_assert!(items.iter().map(|item| item.n_tokens).sum::<usize>() <= max_batch_tokens.max(max_sequences));
            for item in &items {
                let sequence = scheduler.sequence(item.sequence).unwrap();
                prop_assert_eq!(sequence.n_computed, item.start);
                prop_assert!(sequence.blocks.len() * BLOCK_SIZE >= item.start + item.n_tokens);
            }
            scheduler.complete(&items);
            for item in items.iter().filter(|item| item.samples) {
                scheduler.push_token(item.sequence, 5);
                let n_left = left.get_mut(&item.sequence).unwrap();
                *n_left -= 1;
                if *n_left == 0 {
                    scheduler.finish(item.sequence);
                }
            }
        }
        prop_assert!(scheduler.is_idle());
        prop_assert_eq!(scheduler.pool.n_available(), n_blocks);
        prop_assert!(scheduler.in_progress.is_empty());
    }
}
