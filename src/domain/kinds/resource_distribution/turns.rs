//! How often what no watch shows is looked at. Each look is a request, so that depends on what all ResourceDistributions need
//! together: a few copies are looked at soon, many at a bounded rate.

use std::{ops::AddAssign, time::Duration};

use super::copy::OWNERS_LOOKED_AT;

/// How long at most a Secret that was changed or deleted by others may stay so, and a copy that nobody wants any more and nobody
/// knew of.
pub const PERIOD: Duration = Duration::from_secs(600);
/// How often at least an object of others in the place of a Secret is looked for again.
pub const CONFLICT_RETRY: Duration = Duration::from_secs(60);
/// The shortest time of both, however little there is.
pub const SHORTEST: Duration = Duration::from_secs(5);
/// Between two turns, at most.
pub const TICK: Duration = Duration::from_secs(10);
/// The same, at the least.
const SHORTEST_TICK: Duration = Duration::from_secs(1);
/// Turns of a period, if they are not too close together.
const TURNS: u32 = 60;
/// The share of one request in a period: two a second.
const FOR_A_REQUEST: Duration = Duration::from_millis(500);
/// Bytes of answers in a millisecond.
const BYTES_IN_A_MILLISECOND: usize = 100;
/// Requests of a look at an object of others: one by the note on copies, one by each owner.
const REQUESTS_FOR_OTHERS: usize = 1 + OWNERS_LOOKED_AT;

/// What one look at everything costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: usize,
    /// Bytes of their answers.
    pub bytes: usize,
}

impl Load {
    /// Of so many copies of this size, and so many objects of others.
    pub const fn of(copies: usize, size: usize, others: usize) -> Self {
        let requests = copies.saturating_add(others.saturating_mul(REQUESTS_FOR_OTHERS));
        Self { requests, bytes: copies.saturating_mul(size) }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// How often something is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Each copy.
    pub copies: Duration,
    /// Each object that is waited for to go.
    pub conflicts: Duration,
    /// Between two turns.
    pub tick: Duration,
}

impl Periods {
    /// `all`: what all ResourceDistributions need together.
    pub fn of(all: Load) -> Self {
        let by_requests = FOR_A_REQUEST.saturating_mul(u32::try_from(all.requests).unwrap_or(u32::MAX));
        let milliseconds = u64::try_from(all.bytes / BYTES_IN_A_MILLISECOND).unwrap_or(u64::MAX);
        let period = by_requests.max(Duration::from_millis(milliseconds));
        let copies = period.clamp(SHORTEST, PERIOD);
        let tick = (copies / TURNS).clamp(SHORTEST_TICK, TICK);
        Self { copies, conflicts: period.clamp(SHORTEST, CONFLICT_RETRY), tick }
    }
}

/// With nothing to look at.
impl Default for Periods {
    fn default() -> Self {
        Self::of(Load::default())
    }
}
