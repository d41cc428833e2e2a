//! How many Pods may still be taken out of service.
//!
//! A Pod is charged once, whatever is done to it. One that is down takes no room. One that is Ready but not yet available
//! (`minReadySeconds`) is unavailable already, so it takes no room from those that are available; but it serves, so it
//! goes only while enough others are Ready.

use super::plan::Pod;
use crate::domain::pod::lifecycle::State;

/// What it costs to take a Pod out of service. The cheapest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charge {
    /// It waits for its update, out of service, and was charged when that was announced.
    Announced,
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
        match (pod.facts.available, pod.is_ready_now) {
            _ if pod.state == State::PreparingUpdate => Self::Announced,
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
    not_ready: i32,
    unavailable: i32,
    /// Updates that are not known to have gone well: they have a limit of their own, so that a bad image does not spread
    /// over Pods that are down anyway. None: what is begun are no updates.
    begun: Option<i32>,
}

impl Room {
    /// So many Pods may be out of service. `begun` are updates that are not known to have gone well.
    pub fn new<'a>(pods: impl Iterator<Item = &'a Pod>, limit: i32, begun: Option<i32>) -> Self {
        let mut room = Self { limit, not_ready: 0, unavailable: 0, begun };
        for pod in pods {
            room.not_ready += i32::from(!pod.is_ready_now);
            room.unavailable += i32::from(!pod.facts.available);
        }
        room
    }

    /// Takes a Pod out of service, if there is room.
    pub fn enter(&mut self, charge: Charge) -> bool {
        let may_begin = self.begun.is_none_or(|begun| begun < self.limit);
        let fits = match charge {
            Charge::Announced => true,
            // What is down is replaced, one at a time, even where nothing may go: it makes nothing worse, and what is missing
            // may be missing because of it.
            Charge::Down => self.begun.is_none_or(|begun| begun < self.limit.max(1)),
            Charge::NotYetAvailable => may_begin && self.not_ready < self.limit,
            Charge::Available => may_begin && self.unavailable < self.limit,
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

    fn add(&mut self, charge: Charge, number: i32) {
        self.begun = self.begun.map(|begun| begun + number);
        self.not_ready += if charge > Charge::Down { number } else { 0 };
        self.unavailable += if charge == Charge::Available { number } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::{Charge::*, *};

    fn pod(available: bool, is_ready_now: bool) -> Pod {
        let mut pod = Pod { is_ready_now, ..Pod::default() };
        pod.facts.available = available;
        pod
    }

    /// Which of them find room, one after the other.
    fn entering(there: &[Pod], limit: i32, begun: Option<i32>, charges: &[Charge]) -> Vec<bool> {
        let mut room = Room::new(there.iter(), limit, begun);
        charges.iter().map(|charge| room.enter(*charge)).collect()
    }

    #[test]
    fn a_pod_is_charged_once() {
        let (down, fresh, up) = (pod(false, false), pod(false, true), pod(true, true));
        assert_eq!([&down, &fresh, &up].map(Charge::of), [Down, NotYetAvailable, Available]);
        let canary = [fresh.clone(), up.clone(), up.clone()];
        assert_eq!(entering(&canary, 1, None, &[NotYetAvailable]), [true], "it is unavailable anyway");
        assert_eq!(entering(&canary, 1, None, &[Available]), [false], "there would be two");
        assert_eq!(entering(&canary, 2, None, &[NotYetAvailable, Available, Available]), [true, true, false]);
        let all_fresh = [fresh.clone(), fresh.clone(), fresh];
        assert_eq!(entering(&all_fresh, 1, None, &[NotYetAvailable, NotYetAvailable]), [true, false], "they serve");
        let one_down = [down.clone(), up.clone(), up];
        assert_eq!(entering(&one_down, 1, None, &[Down, Available]), [true, false]);
        assert_eq!(entering(&[down.clone(), down], -1, None, &[Down, Down]), [true, true], "it makes nothing worse");
    }

    #[test]
    fn updates_that_are_not_known_to_be_good_have_a_limit_too() {
        let down = [pod(false, false), pod(false, false), pod(false, false)];
        assert_eq!(entering(&down, 2, Some(0), &[Down, Down, Down]), [true, true, false]);
        assert_eq!(entering(&down, 2, Some(2), &[Down]), [false]);
    }

    #[test]
    fn case_16_what_is_down_is_updated_though_what_is_missing_cannot_be_made() {
        let down = [pod(false, false), pod(false, false)];
        // maxUnavailable is 0 and the surge waits for scaleStrategy.maxUnavailable, or a quota keeps Pods from being made.
        for limit in [0, -1] {
            assert_eq!(entering(&down, limit, Some(0), &[Down, Down]), [true, false], "one at a time: {limit}");
            assert_eq!(entering(&down, limit, Some(1), &[Down]), [false], "the last one has not come up: {limit}");
            assert_eq!(entering(&[pod(true, true)], limit, Some(0), &[Available]), [false], "it serves: {limit}");
        }
    }

    #[test]
    fn an_update_that_was_announced_comes_to_its_end_without_room() {
        let waiting = Pod { state: State::PreparingUpdate, ..pod(false, false) };
        assert_eq!(Charge::of(&waiting), Announced);
        assert_eq!(
            entering(&[waiting.clone(), waiting], 0, Some(0), &[Announced, Announced, Down]),
            [true, true, false]
        );
    }

    #[test]
    fn what_is_refused_leaves_its_room_to_others() {
        let mut room = Room::new([pod(true, true)].iter(), 1, Some(0));
        assert!(room.enter(Available) && !room.enter(Available));
        room.leave(Available);
        assert!(room.enter(Available));
    }
}
