//! How many Pods may still be taken out of service by an update.
//!
//! Without limits of ours this is the arithmetic of the built-in DaemonSet: what is down already takes no room. With
//! `kruise.rs/strict-max-unavailable` a Pod that is down goes only while fewer Pods are *in flight* (replaced and not yet
//! available) than maxUnavailable, and an available one only while fewer are in flight or down. A limit per topology is the
//! same rule for each zone.
//!
//! A node that was lost before anything was done holds no place, or those that stay lost would stop everybody else. But
//! when it is back it has lost a Pod that had worked on, if its Pod was replaced. So that is done when there is nothing
//! else to do and nothing in flight, and for as many such nodes at a time as there are places.

use std::collections::BTreeMap;

/// What it costs to take the Pod of a node out of service. The cheapest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charge {
    /// It is in flight already.
    Nothing,
    /// It is down.
    Down,
    /// It is available.
    Available,
    /// Its node was lost before anything was done.
    LostBefore,
}

/// What is out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    in_flight: i32,
    down: i32,
    /// In flight on nodes that were lost before: they take no place but that of the next ones.
    before: i32,
}

impl Lost {
    fn add(&mut self, charge: Charge, number: i32) {
        match charge {
            Charge::Nothing => {}
            Charge::Down => {
                self.in_flight += number;
                self.down -= number;
            }
            Charge::Available => self.in_flight += number,
            Charge::LostBefore => self.before += number,
        }
    }

    fn has_room(self, charge: Charge, limit: i32) -> bool {
        match charge {
            Charge::Nothing => true,
            Charge::Down => self.in_flight < limit,
            Charge::Available => self.in_flight + self.down < limit,
            Charge::LostBefore => self.in_flight == 0 && self.before < limit,
        }
    }
}

/// The room that is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    limit: i32,
    is_strict: bool,
    /// Whether Pods that are down count against those that are available: with a surge none of these is lost.
    counts_down: bool,
    all: Lost,
    zone_limit: Option<i32>,
    zones: BTreeMap<String, Lost>,
}

impl Room {
    /// So many may be out of service, and so many of each zone.
    pub fn new(limit: i32, is_strict: bool, has_surge: bool, zone_limit: Option<i32>) -> Self {
        Self { limit, is_strict, counts_down: !has_surge, zone_limit, ..Self::default() }
    }

    /// A node whose Pod has been replaced, or is missing, and is not available.
    pub fn count_in_flight(&mut self, zone: &str) {
        self.of_all(zone, |lost| lost.in_flight += 1);
    }

    /// A node whose old Pod is not available.
    pub fn count_down(&mut self, zone: &str) {
        if self.counts_down {
            self.of_all(zone, |lost| lost.down += 1);
        }
    }

    /// A node that was lost before its Pod was replaced, and whose next one is not available.
    pub fn count_lost_before(&mut self, zone: &str) {
        self.of_all(zone, |lost| lost.before += 1);
    }

    fn of_all(&mut self, zone: &str, mut change: impl FnMut(&mut Lost)) {
        change(&mut self.all);
        if self.zone_limit.is_some() {
            change(self.zones.entry(zone.to_owned()).or_default());
        }
    }

    /// Takes the Pod of a node out of service, if there is room.
    pub fn enter(&mut self, zone: &str, charge: Charge) -> bool {
        let total = match (self.is_strict, charge) {
            (true, _) => self.all.has_room(charge, self.limit),
            (false, Charge::Available) => self.all.in_flight < self.limit,
            (false, Charge::Nothing | Charge::Down | Charge::LostBefore) => true,
        };
        let of_zone = self
            .zone_limit
            .is_none_or(|limit| self.zones.get(zone).copied().unwrap_or_default().has_room(charge, limit));
        let fits = total && of_zone;
        if fits {
            self.add(zone, charge, 1);
        }
        fits
    }

    /// A Pod that was let in stays in service after all.
    pub fn leave(&mut self, zone: &str, charge: Charge) {
        self.add(zone, charge, -1);
    }

    fn add(&mut self, zone: &str, charge: Charge, number: i32) {
        let counts_down = self.counts_down;
        self.of_all(zone, |lost| match (charge, counts_down) {
            (Charge::Down, false) => lost.in_flight += number,
            _ => lost.add(charge, number),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Charge::*, *};

    fn room(limit: i32, is_strict: bool, in_flight: usize, down: usize) -> Room {
        let mut room = Room::new(limit, is_strict, false, None);
        (0..in_flight).for_each(|_| room.count_in_flight(""));
        (0..down).for_each(|_| room.count_down(""));
        room
    }
    fn entered(mut room: Room, charges: &[Charge]) -> Vec<bool> {
        charges.iter().map(|charge| room.enter("", *charge)).collect()
    }

    #[test]
    fn by_default_what_is_down_takes_no_room_as_in_the_built_in_daemon_set() {
        assert_eq!(entered(room(1, false, 0, 3), &[Down, Down, Down]), [true; 3], "all at once");
        assert_eq!(entered(room(1, false, 1, 0), &[Available, Down]), [false, true]);
        assert_eq!(entered(room(2, false, 0, 1), &[Available, Available, Available]), [true, true, false]);
    }

    #[test]
    fn strict_what_was_replaced_and_is_not_available_never_exceeds_the_limit() {
        assert_eq!(entered(room(2, true, 0, 5), &[Down, Down, Down]), [true, true, false]);
        assert_eq!(entered(room(2, true, 2, 0), &[Down, Available, Nothing]), [false, false, true]);
        assert_eq!(entered(room(2, true, 0, 2), &[Available]), [false], "old ones that are down count too");
        assert_eq!(entered(room(3, true, 1, 1), &[Available, Available]), [true, false]);
        let mut left = room(1, true, 0, 1);
        assert!(left.enter("", Down) && !left.enter("", Down));
        left.leave("", Down);
        assert!(left.enter("", Down));
    }

    #[test]
    fn what_was_lost_before_waits_for_all_others_and_goes_a_few_at_a_time() {
        assert_eq!(entered(room(2, true, 0, 5), &[LostBefore, LostBefore, LostBefore]), [true, true, false]);
        assert_eq!(entered(room(2, true, 1, 0), &[LostBefore]), [false]);
        let mut staying = room(1, true, 0, 0);
        staying.count_lost_before("");
        assert!(!staying.enter("", LostBefore) && staying.enter("", Available), "it holds up nobody else");
        staying.leave("", Available);
        staying.leave("", LostBefore);
        assert!(staying.enter("", LostBefore));
        let mut zones = Room::new(9, false, false, Some(1));
        zones.count_in_flight("a");
        assert!(!zones.enter("a", LostBefore) && zones.enter("b", LostBefore) && !zones.enter("b", LostBefore));
    }

    #[test]
    fn a_zone_never_loses_more_than_its_limit() {
        let mut room = Room::new(10, false, false, Some(1));
        assert!(room.enter("a", Available) && !room.enter("a", Available) && room.enter("b", Available));
        room.count_down("c");
        assert!(!room.enter("c", Available) && room.enter("c", Down) && !room.enter("c", Down));
        assert!(room.enter("", Available) && !room.enter("", Available), "nodes without the label are a zone");
        room.leave("a", Available);
        assert!(room.enter("a", Available));
    }

    #[test]
    fn with_a_surge_what_is_down_keeps_no_available_one_from_getting_a_second_pod() {
        let mut room = Room::new(2, true, true, None);
        (0..3).for_each(|_| room.count_down(""));
        assert!(room.enter("", Available) && room.enter("", Down) && !room.enter("", Down));
        room.leave("", Down);
        assert!(room.enter("", Available));
    }
}
