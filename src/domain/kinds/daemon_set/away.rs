//! Nodes that a set stays away from: those that are cordoned and from which its Pod was evicted, until they are uncordoned.
//!
//! An eviction may go by while no manager runs, and then nothing is left of it but a cordoned node without a Pod. That alone
//! is therefore enough, and what has to be known is the opposite: that the last Pod of a node went for another reason. It is
//! known of Pods that this process has seen going; when it is forgotten, the node gets its Pod when it is uncordoned. A node
//! that has just joined is the exception: there it takes an eviction that this process has seen.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::pod::{Node, Pod};

/// A node that is as young may have joined cordoned, and have had no Pod yet.
const YOUNG: SignedDuration = SignedDuration::from_mins(2);

/// How a Pod went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It was evicted.
    Evicted,
    /// It ended, or was deleted.
    Otherwise,
}

/// How the last Pod of a node went, by the name of the node.
pub type Departures = BTreeMap<String, Departure>;

/// Takes nodes out of the selection.
pub fn stay_away(nodes: &mut [Node], pods: &[Arc<Pod>], departures: &Departures, now: Timestamp) {
    for node in nodes.iter_mut().filter(|node| node.counts()) {
        let Some(created) = node.cordoned else { continue };
        let own = || pods.iter().filter(|pod| pod.node == node.name);
        let is_away = match own().next() {
            // One that ends may be beside one that stays, with a surge.
            Some(_) => own().all(|pod| pod.is_terminating && pod.is_evicted),
            None => match departures.get(&node.name) {
                Some(departure) => *departure == Departure::Evicted,
                None => now.duration_since(created) >= YOUNG,
            },
        };
        if is_away {
            (node.fit.should_run, node.would_run) = (false, false);
        }
    }
}

/// Notes how Pods go, until their node has another one. Of several on a node it takes one that was not evicted for the node
/// to get its Pod back.
pub fn note_leaving(departures: &mut Departures, nodes: &[Node], pods: &[Arc<Pod>]) {
    departures.retain(|name, _| nodes.binary_search_by(|node| node.name.cmp(name)).is_ok());
    for pod in pods.iter().filter(|pod| pod.is_live() || pod.is_evicted) {
        departures.remove(&pod.node);
    }
    let live: Vec<&str> = pods.iter().filter(|pod| pod.is_live()).map(|pod| pod.node.as_str()).collect();
    for pod in pods.iter().filter(|pod| !pod.is_live() && !live.contains(&pod.node.as_str())) {
        let departure = departures.entry(pod.node.clone()).or_insert(Departure::Evicted);
        if !pod.is_evicted {
            *departure = Departure::Otherwise;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::fixtures::*, *};

    fn cordoned(name: &str) -> Node {
        Node { cordoned: Some(time(-100_000)), ..node(name) }
    }
    fn evicted(pod: Pod) -> Pod {
        Pod { is_evicted: true, ..terminating(pod) }
    }
    /// Whether node `a` is to have a Pod.
    fn runs(node: Node, pods: &[Pod], departures: &[(&str, Departure)]) -> bool {
        let mut nodes = [node];
        let departures = departures.iter().map(|(name, departure)| ((*name).to_owned(), *departure)).collect();
        stay_away(&mut nodes, &sorted(pods), &departures, time(0));
        nodes[0].fit.should_run
    }

    #[test]
    fn a_cordoned_node_without_a_pod_gets_none_until_it_is_uncordoned() {
        assert!(!runs(cordoned("a"), &[], &[]), "whoever has seen the eviction, or nobody");
        assert!(runs(node("a"), &[], &[]), "uncordoned");
        assert!(runs(cordoned("a"), &[], &[("a", Departure::Otherwise)]), "its Pod went for another reason");
        let young = Node { cordoned: Some(time(-60)), ..node("a") };
        assert!(runs(young.clone(), &[], &[]), "a node that joins cordoned");
        assert!(!runs(young.clone(), &[], &[("a", Departure::Evicted)]), "a node that was drained at once");
        assert!(runs(young, &[], &[("a", Departure::Otherwise)]));
        assert!(!runs(Node { cordoned: Some(time(0)), ..unfit("a") }, &[], &[]), "it does not fit anyway");
        let mut not_ready = [Node { cordoned: Some(time(-100_000)), ..repelling("a", -9) }];
        stay_away(&mut not_ready, &[], &Departures::new(), time(0));
        assert!(!not_ready[0].counts(), "nor does it count while it starts anew");
    }

    #[test]
    fn a_pod_that_is_there_stays_and_is_updated() {
        assert!(runs(cordoned("a"), &[pod("a")], &[]));
        assert!(runs(cordoned("a"), &[terminating(pod("a"))], &[]), "somebody deletes it");
        assert!(!runs(cordoned("a"), &[evicted(pod("a"))], &[]));
        assert!(runs(cordoned("a"), &[evicted(old("a")), pod("a")], &[]), "with a surge the other one is there");
        assert!(runs(cordoned("a"), &[failed(pod("a"))], &[]));
    }

    #[test]
    fn a_pod_that_goes_without_an_eviction_comes_back() {
        let (mut departures, nodes) = (Departures::new(), nodes(&["a", "b", "c", "d"]));
        let pods = [terminating(pod("a")), evicted(pod("b")), pod("c"), failed(pod("d")), terminating(pod("gone"))];
        note_leaving(&mut departures, &nodes, &sorted(&pods));
        let text = |departures: &Departures| {
            departures.iter().map(|(name, how)| format!("{name}: {how:?}")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(text(&departures), "a: Otherwise, b: Evicted, d: Otherwise, gone: Otherwise");
        note_leaving(&mut departures, &nodes, &sorted(&[pod("d")]));
        assert_eq!(text(&departures), "a: Otherwise, b: Evicted", "d has one again, the other node is gone");
        note_leaving(&mut departures, &nodes, &sorted(&[evicted(pod("a"))]));
        assert_eq!(text(&departures), "a: Evicted, b: Evicted", "it had come back, and was evicted");
        note_leaving(&mut departures, &nodes, &sorted(&[evicted(old("b")), failed(pod("b"))]));
        assert_eq!(text(&departures), "a: Evicted, b: Otherwise", "of two, one was not evicted");
    }
}
