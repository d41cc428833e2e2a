//! Numbers by which a process compares values that users write.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::LazyLock,
};

static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A number that stands for a value. It differs between processes, so that nobody can make two values that have the same.
pub fn process_hash(value: impl Hash) -> u64 {
    STATE.hash_one(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_the_same_number_and_others_do_not() {
        assert_eq!(process_hash(("a", "b")), process_hash(("a", "b")));
        assert_ne!(process_hash(("a", "b")), process_hash(("ab", "")));
    }
}
