//! The only place that draws random numbers, so that a history of a test can be repeated from its seed.

use ring::rand::{SecureRandom, SystemRandom};

/// The system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system has no random numbers")]
pub struct NoRandomNumbers;

/// Random bytes that nobody can foresee.
///
/// # Errors
/// The system has none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomNumbers> {
    #[cfg(test)]
    if let Some(bytes) = tests::seeded() {
        return Ok(bytes);
    }
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomNumbers)?;
    Ok(bytes)
}

#[cfg(test)]
pub use tests::seed;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::liveness::Random;

    thread_local! {
        static SEEDED: RefCell<Option<Random>> = const { RefCell::new(None) };
    }

    /// From here on this thread draws the numbers of a seed.
    pub fn seed(seed: u64) {
        SEEDED.set(Some(Random(seed)));
    }

    pub(super) fn seeded<const N: usize>() -> Option<[u8; N]> {
        SEEDED.with_borrow_mut(|seeded| seeded.as_mut().map(|random| std::array::from_fn(|_| random.next() as u8)))
    }

    #[test]
    fn a_thread_with_a_seed_draws_the_same_again_and_one_without_does_not() {
        let drawn = || bytes::<16>().unwrap();
        assert_ne!(drawn(), drawn());
        let of = |number| {
            seed(number);
            (drawn(), drawn())
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
