//! Seeded draws that depend on nothing but the seed and a key, so that each fact can be had alone and in any order.

/// A small generator (SplitMix64). Its sequence is part of what a seed means, so it is written out here rather than
/// taken from a crate whose algorithm may change between versions.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// A generator for one fact: `key` names it, such as `["period", "Duluth, MN", "3"]`.
    pub(crate) fn new(seed: u64, key: &[&str]) -> Self {
        // FNV-1a over the parts, with a separator that no part holds.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for part in key {
            for byte in part.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        Self(hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `low..=high`; the bias of the remainder is far below what anyone could see here.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = high.abs_diff(low) + 1;
        low + (self.next() % width) as i64
    }

    /// One of the choices; `None` only for an empty slice.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.between(0, choices.len() as i64 - 1).max(0) as usize)
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: i64) -> bool {
        self.between(0, 99) < percent
    }

    /// A permutation, by Fisher and Yates.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.between(0, last as i64) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_gives_the_same_draws() {
        let draws = |seed, key: &[&str]| {
            let mut dice = Dice::new(seed, key);
            [dice.between(0, 999), dice.between(0, 999), dice.between(0, 999)]
        };
        assert_eq!(draws(7, &["a", "b"]), draws(7, &["a", "b"]));
        assert_ne!(draws(7, &["a", "b"]), draws(7, &["ab"]));
        assert_ne!(draws(7, &["a", "b"]), draws(8, &["a", "b"]));
    }

    #[test]
    fn draws_cover_their_range() {
        let mut dice = Dice::new(1, &["range"]);
        let draws: Vec<i64> = (0..1000).map(|_| dice.between(-2, 2)).collect();
        for value in -2..=2 {
            let share = draws.iter().filter(|draw| **draw == value).count();
            assert!((150..=250).contains(&share), "{value} came {share} times");
        }
    }
}
