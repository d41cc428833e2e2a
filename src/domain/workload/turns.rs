//! Whose turn it is when not everything is done at once: what was refused is tried again after all others, and among those
//! the one that was refused the longest time ago.

use std::collections::BTreeMap;

/// What was refused, and in which order. It can be lost: then the order is that of the plan again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turns<K> {
    refused: BTreeMap<K, u64>,
    refusals: u64,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { refused: BTreeMap::new(), refusals: 0 }
    }
}

impl<K: Ord> Turns<K> {
    /// It was tried in vain.
    pub fn refused(&mut self, key: K) {
        self.refusals += 1;
        self.refused.insert(key, self.refusals);
    }

    /// It was done.
    pub fn done(&mut self, key: &K) {
        self.refused.remove(key);
    }

    /// Whether it was tried in vain the last time.
    pub fn was_refused(&self, key: &K) -> bool {
        self.refused.contains_key(key)
    }

    /// Forgets what need not be done any more.
    pub fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.refused.retain(|key, _| is_wanted(key));
    }

    /// Puts what was refused last. Others, and what has no key, keep their order.
    pub fn sort<T>(&self, all: &mut [T], key: impl Fn(&T) -> Option<K>) {
        if !self.refused.is_empty() {
            all.sort_by_cached_key(|one| key(one).and_then(|key| self.refused.get(&key).copied()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(turns: &Turns<i32>, all: &[i32]) -> Vec<i32> {
        let mut all = all.to_vec();
        turns.sort(&mut all, |one| (*one < 100).then_some(*one));
        all
    }

    #[test]
    fn what_was_refused_comes_last_and_the_latest_refusal_after_the_others() {
        let mut turns = Turns::default();
        assert_eq!(sorted(&turns, &[3, 1, 2]), [3, 1, 2]);
        for (refused, want) in
            [(1, [2, 3, 4, 1]), (2, [3, 4, 1, 2]), (1, [3, 4, 2, 1]), (3, [4, 2, 1, 3]), (4, [2, 1, 3, 4])]
        {
            turns.refused(refused);
            assert_eq!(sorted(&turns, &[1, 2, 3, 4]), want, "{refused} was refused");
        }
        assert_eq!(sorted(&turns, &[1, 100, 2, 101]), [100, 101, 2, 1], "what has no turn keeps its place");
        assert!(turns.was_refused(&2) && !turns.was_refused(&5));
        turns.done(&2);
        assert!(!turns.was_refused(&2));
        assert_eq!(sorted(&turns, &[1, 2, 3, 4]), [2, 1, 3, 4]);
        turns.retain(|key| *key == 4);
        assert_eq!(sorted(&turns, &[4, 3, 1]), [3, 1, 4]);
    }

    /// With one try at a time, and some that are refused for ever.
    #[test]
    fn everything_gets_its_turn_whatever_is_refused_for_ever() {
        let (mut turns, mut missing) = (Turns::default(), vec![1, 2, 3, 4, 5, 6]);
        let mut tries = 0;
        while missing.len() > 2 {
            tries += 1;
            let first = sorted(&turns, &missing)[0];
            match first {
                1 | 4 => turns.refused(first),
                _ => missing.retain(|one| *one != first),
            }
        }
        assert_eq!((missing, tries), (vec![1, 4], 6));
        // One of them can be done after all.
        turns.refused(1);
        assert_eq!(sorted(&turns, &[1, 4])[0], 4);
    }
}
