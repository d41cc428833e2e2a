//! Who may probe next: a node carries out a limited number of probes at a time, and each namespace has a share of them.

use std::collections::{BTreeMap, VecDeque};

/// The answer to a probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It begins.
    Begin,
    /// It begins, and the probe with this id, of a namespace that has more than its share, is aborted.
    Instead(u64),
    /// It waits until [`Slots::next_waiting`] names it.
    Wait,
}

/// The slots of one kind of probes. Probes differ by ids.
///
/// The share of a namespace leaves room for one more namespace than there are, so that a namespace that comes finds free
/// slots. While there are fewer namespaces than slots, one that has less than its share never waits for others.
#[derive(Debug)]
pub struct Slots {
    total: usize,
    /// Namespaces with probes of this kind on the node.
    namespaces: usize,
    /// What runs, by namespace; the oldest first.
    running: BTreeMap<Box<str>, VecDeque<u64>>,
    /// What waits, by namespace.
    waiting: BTreeMap<Box<str>, VecDeque<u64>>,
    /// Namespaces in which something waits, in the order of their turns.
    turns: VecDeque<Box<str>>,
}

impl Slots {
    /// Free ones.
    pub fn new(total: usize) -> Self {
        Self { total, namespaces: 0, running: BTreeMap::new(), waiting: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// Takes over the number of namespaces with probes of this kind.
    pub fn set_namespaces(&mut self, namespaces: usize) {
        self.namespaces = namespaces;
    }

    /// Slots of one namespace.
    pub fn share(&self) -> usize {
        (self.total / (self.namespaces + 1)).max(1)
    }

    fn used(&self) -> usize {
        self.running.values().map(VecDeque::len).sum()
    }

    fn used_by(&self, namespace: &str) -> usize {
        self.running.get(namespace).map_or(0, VecDeque::len)
    }

    /// A probe is due.
    pub fn ask(&mut self, namespace: &str, id: u64) -> Turn {
        let is_free = self.used() < self.total;
        let mut turn = Turn::Wait;
        if self.used_by(namespace) < self.share() {
            if is_free {
                turn = Turn::Begin;
            } else if let Some(other) = self.give_up() {
                turn = Turn::Instead(other);
            }
        }
        if turn == Turn::Wait {
            let waiting = self.waiting.entry(namespace.into()).or_default();
            if waiting.is_empty() {
                self.turns.push_back(namespace.into());
            }
            waiting.push_back(id);
        } else {
            self.running.entry(namespace.into()).or_default().push_back(id);
        }
        turn
    }

    /// Takes a slot from the namespace that is furthest over its share: that of the probe that was begun last.
    fn give_up(&mut self) -> Option<u64> {
        let share = self.share();
        let (_, running) =
            self.running.iter_mut().filter(|(_, ids)| ids.len() > share).max_by_key(|(_, ids)| ids.len())?;
        running.pop_back()
    }

    /// A probe has ended, or has been aborted.
    pub fn end(&mut self, namespace: &str, id: u64) {
        remove(&mut self.running, namespace, id);
    }

    /// A probe is there no more, or must not wait any longer.
    pub fn forget(&mut self, namespace: &str, id: u64) {
        if remove(&mut self.waiting, namespace, id) {
            self.turns.retain(|other| &**other != namespace);
        }
    }

    /// A probe that may begin, namespace by namespace; it has to ask again.
    pub fn next_waiting(&mut self) -> Option<u64> {
        if self.used() >= self.total {
            return None;
        }
        let share = self.share();
        let at = self.turns.iter().position(|namespace| self.used_by(namespace) < share)?;
        let namespace = self.turns.remove(at)?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let id = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        id
    }
}

/// Whether it was the last one of its namespace.
fn remove(of: &mut BTreeMap<Box<str>, VecDeque<u64>>, namespace: &str, id: u64) -> bool {
    let Some(ids) = of.get_mut(namespace) else { return false };
    ids.retain(|other| *other != id);
    let is_empty = ids.is_empty();
    if is_empty {
        of.remove(namespace);
    }
    is_empty
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(total: usize, namespaces: usize) -> Slots {
        let mut slots = Slots::new(total);
        slots.set_namespaces(namespaces);
        slots
    }

    #[test]
    fn a_namespace_alone_leaves_half_for_who_comes() {
        let mut slots = slots(8, 1);
        let begun = (0..8).filter(|id| slots.ask("a", *id) == Turn::Begin).count();
        assert_eq!(begun, 4);
        slots.set_namespaces(2);
        assert_eq!(
            (slots.ask("b", 10), slots.ask("b", 11), slots.ask("b", 12)),
            (Turn::Begin, Turn::Begin, Turn::Wait)
        );
        assert_eq!(slots.next_waiting(), None, "both have their share");
    }

    #[test]
    fn who_has_less_than_its_share_gets_a_slot_of_who_has_more() {
        let mut slots = slots(8, 1);
        for id in 0..4 {
            assert_eq!(slots.ask("a", id), Turn::Begin);
        }
        slots.set_namespaces(5);
        for (i, name) in ["b", "c", "d", "e"].into_iter().enumerate() {
            assert_eq!(slots.ask(name, 10 + i as u64), Turn::Begin);
        }
        slots.set_namespaces(6);
        assert_eq!(slots.ask("f", 20), Turn::Instead(3), "the youngest");
        assert_eq!(slots.ask("f", 21), Turn::Wait, "it has its share");
        slots.end("a", 3);
        assert_eq!(slots.next_waiting(), None, "it is the slot of another one by now");
    }

    #[test]
    fn what_waits_begins_in_turns() {
        let mut slots = slots(2, 2);
        assert_eq!((slots.ask("a", 1), slots.ask("b", 2)), (Turn::Begin, Turn::Begin));
        for (name, id) in [("a", 3), ("a", 4), ("b", 5), ("c", 6)] {
            assert_eq!(slots.ask(name, id), Turn::Wait);
        }
        slots.end("a", 1);
        assert_eq!(slots.next_waiting(), Some(3));
        assert_eq!(slots.ask("a", 3), Turn::Begin);
        assert_eq!(slots.next_waiting(), None);
        slots.end("a", 3);
        assert_eq!(slots.next_waiting(), Some(6), "a has had its turn, b has its share");
        slots.forget("a", 4);
        assert_eq!(slots.next_waiting(), None);
        slots.end("b", 2);
        assert_eq!(slots.next_waiting(), Some(5));
        assert_eq!((slots.next_waiting(), slots.waiting.len(), slots.turns.len()), (None, 0, 0));
    }

    #[test]
    fn with_more_namespaces_than_slots_each_gets_its_turn() {
        let mut slots = slots(4, 50);
        let name = |i: u64| format!("n{i}");
        for id in 0..50 {
            assert_eq!(slots.ask(&name(id), id), if id < 4 { Turn::Begin } else { Turn::Wait });
        }
        let mut running: VecDeque<u64> = (0..4).collect();
        let mut order: Vec<u64> = Vec::new();
        while let Some(ended) = running.pop_front() {
            slots.end(&name(ended), ended);
            if let Some(id) = slots.next_waiting() {
                assert_eq!(slots.ask(&name(id), id), Turn::Begin);
                order.push(id);
                running.push_back(id);
            }
        }
        assert_eq!(order, (4..50).collect::<Vec<_>>());
    }
}
