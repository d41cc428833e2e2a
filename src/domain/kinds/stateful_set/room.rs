//! How many Pods of a StatefulSet may still be taken out of service.
//!
//! A Pod is charged once, whatever is done to it. One that is down takes no room: it is replaced or updated although the
//! room is used up, so that a corrected template reaches what a bad one has broken. One that is Ready but not yet
//! available (`minReadySeconds`) is unavailable already, but it serves: it goes only while enough others are Ready.

use super::pod::Pod;

/// What it costs to take a Pod out of service. The cheapest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charge {
    /// It is down already.
    Down,
    /// It is Ready, and does not count as available yet.
    NotYetAvailable,
    /// It is available.
    Available,
}

impl Charge {
    /// Of a Pod.
    pub fn of(pod: &Pod) -> Self {
        match (pod.is_available(), pod.is_serving()) {
            (true, _) => Self::Available,
            (false, true) => Self::NotYetAvailable,
            (false, false) => Self::Down,
        }
    }
}

/// The room that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    limit: i32,
    unavailable: i32,
    down: i32,
    /// In strict order a Pod in service that stays keeps those behind it from going before it.
    is_ordered: bool,
    is_closed: bool,
    /// The same until the next wave, for one that has found no room: another may leave it some.
    is_awaited: bool,
}

impl Room {
    /// So many Pods may be unavailable; `slots` are the Pods of all wanted ordinals, None where there is none.
    pub fn new<'a>(slots: impl Iterator<Item = Option<&'a Pod>>, limit: i32, is_ordered: bool) -> Self {
        let mut room = Self { limit, is_ordered, ..Self::default() };
        for pod in slots {
            let charge = pod.map_or(Charge::Down, Charge::of);
            room.unavailable += i32::from(charge < Charge::Available);
            room.down += i32::from(charge == Charge::Down);
        }
        room
    }

    /// Only what is down may be touched.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Takes a Pod out of service, if there is room.
    pub fn enter(&mut self, charge: Charge) -> bool {
        let fits = match charge {
            Charge::Down => true,
            Charge::NotYetAvailable => self.is_open() && self.down < self.limit,
            Charge::Available => self.is_open() && self.unavailable < self.limit,
        };
        if fits {
            self.add(charge, 1);
        }
        fits
    }

    /// A Pod that was let in stays in service after all.
    pub fn leave(&mut self, charge: Charge) {
        self.add(charge, -1);
    }

    /// A Pod stays in service although it is its turn. This is no deadlock: Pods that are down go all the same, and
    /// what takes the room is down, or becomes available with time.
    pub fn keep_turn(&mut self, charge: Charge) {
        self.is_closed |= self.keeps_order(charge);
    }

    /// The same in this wave, for a Pod that has found no room.
    pub fn await_turn(&mut self, charge: Charge) {
        self.is_awaited |= self.keeps_order(charge);
    }

    /// Pods that have found no room before are asked again.
    pub fn begin_wave(&mut self) {
        self.is_awaited = false;
    }

    fn keeps_order(self, charge: Charge) -> bool {
        self.is_ordered && charge > Charge::Down
    }

    fn is_open(self) -> bool {
        !self.is_closed && !self.is_awaited
    }

    fn add(&mut self, charge: Charge, number: i32) {
        self.down += if charge > Charge::Down { number } else { 0 };
        self.unavailable += if charge == Charge::Available { number } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::fixtures::{pod, unready},
        Charge::*,
        *,
    };

    fn room(pods: &[Option<Pod>], limit: i32, is_ordered: bool) -> Room {
        Room::new(pods.iter().map(Option::as_ref), limit, is_ordered)
    }

    #[test]
    fn a_pod_is_charged_once_and_one_that_is_down_takes_no_room() {
        let (up, down) = (pod(0), unready(1));
        let fresh = Pod { until_available: Some(std::time::Duration::from_secs(9)), ..pod(2) };
        assert_eq!([&up, &down, &fresh].map(Charge::of), [Available, Down, NotYetAvailable]);
        let mut full = room(&[Some(up.clone()), Some(down)], 1, false);
        assert!(!full.enter(Available) && full.enter(Down) && full.enter(Down));
        let mut missing = room(&[Some(up.clone()), None], 1, false);
        assert!(!missing.enter(Available), "a Pod that is not there is unavailable");
        let mut fresh_ones = room(&[Some(fresh.clone()), Some(fresh), Some(up)], 1, false);
        let entered = [NotYetAvailable, NotYetAvailable, Available].map(|charge| fresh_ones.enter(charge));
        assert_eq!(entered, [true, false, false], "they serve, so they do not go all at once");
    }

    #[test]
    fn what_is_refused_leaves_its_room_unless_the_order_is_strict() {
        for (is_ordered, next) in [(false, true), (true, false)] {
            let mut room = room(&[Some(pod(0)), Some(pod(1))], 1, is_ordered);
            assert!(room.enter(Available) && !room.enter(Available));
            room.leave(Available);
            room.keep_turn(Available);
            assert_eq!((room.enter(Available), room.enter(Down)), (next, true));
        }
    }

    #[test]
    fn what_finds_no_room_keeps_its_turn_if_the_order_is_strict() {
        let fresh = Pod { until_available: Some(std::time::Duration::from_secs(9)), ..pod(1) };
        for (is_ordered, next) in [(false, true), (true, false)] {
            let mut room = room(&[Some(pod(0)), Some(fresh.clone())], 1, is_ordered);
            assert!(!room.enter(Available));
            room.await_turn(Available);
            assert_eq!((room.enter(NotYetAvailable), room.enter(Down)), (next, true));
        }
    }
}
