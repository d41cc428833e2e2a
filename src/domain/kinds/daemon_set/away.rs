//! Nodes that a set stays away from: those that are cordoned and from which its Pod was evicted, until they are uncordoned.
//!
//! An eviction may go by while no manager runs, and then nothing is left of it but a cordoned node without a Pod. That alone
//! is therefore enough, and what has to be known is the opposite: that the last Pod of a node went for another reason. It is
//! known of Pods that this process has seen going; when it is forgotten, the node gets its Pod when it is uncordoned. A node
//! that has just joined is the exception: there it takes an eviction that this process has seen.
//!
//! So a new set leaves out cordoned nodes too, and so does a set that a cordoned node begins to fit. To tell them from
//! drained ones, each cordoned node would have to be written down before its Pod goes, in a write for each set and node; and
//! without a note it could still be one that was cordoned and drained while no manager ran.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::pod::{Node, Pod, is_evicted};
use crate::k8s::pod::PodView;

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
/// to get its Pod back. `is_there` says whether a Pod is still there: one that went since `pods` were read has been noted by
/// [`note_gone`].
pub fn note_leaving(departures: &mut Departures, nodes: &[Node], pods: &[Arc<Pod>], is_there: impl Fn(&Pod) -> bool) {
    departures.retain(|name, _| nodes.binary_search_by(|node| node.name.cmp(name)).is_ok());
    for pod in pods.iter().filter(|pod| pod.is_live() || pod.is_evicted) {
        if departures.contains_key(&pod.node) && is_there(pod) {
            departures.remove(&pod.node);
        }
    }
    let live: Vec<&str> = pods.iter().filter(|pod| pod.is_live()).map(|pod| pod.node.as_str()).collect();
    for pod in pods.iter().filter(|pod| !pod.is_live() && !live.contains(&pod.node.as_str())) {
        note(departures, &pod.node, pod.is_evicted);
    }
}

/// Notes how a Pod went that is gone and after which its node has none: one that is deleted by force goes without any pass that
/// sees it going. `is_from_list`: a list lacks it, and no watch has brought its end. Nobody knows then how it went, unless it
/// was going already.
pub fn note_gone(departures: &mut Departures, pod: &PodView, is_from_list: bool) {
    let is_evicted = is_evicted(pod);
    if is_evicted || !is_from_list || !pod.is_active() {
        note(departures, pod.node_meant(), is_evicted);
    }
}

fn note(departures: &mut Departures, node: &str, is_evicted: bool) {
    let departure = departures.entry(node.to_owned()).or_insert(Departure::Evicted);
    if !is_evicted {
        *departure = Departure::Otherwise;
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
    fn is_there(_: &Pod) -> bool {
        true
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
    fn a_pod_that_is_gone_before_a_pass_has_seen_it_going_is_noted_as_far_as_it_is_known_how_it_went() {
        let view = |changes: serde_json::Value| -> PodView {
            let mut pod = serde_json::json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": "a"}});
            json_patch::merge(&mut pod, &changes);
            serde_json::from_value(pod).unwrap()
        };
        let target = |reason: &str| {
            let condition = serde_json::json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
            serde_json::json!({"status": {"conditions": [condition]}})
        };
        let going = serde_json::json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let failed = serde_json::json!({"status": {"phase": "Failed"}});
        let (evicted, otherwise) = (Some(Departure::Evicted), Some(Departure::Otherwise));
        for (what, pod, by_watch, from_list) in [
            ("deleted by force", serde_json::json!({}), otherwise, None),
            ("evicted", target("EvictionByEvictionAPI"), evicted, evicted),
            ("by another disruption", target("DeletionByTaintManager"), otherwise, None),
            ("deleted", going, otherwise, otherwise),
            ("failed", failed, otherwise, otherwise),
        ] {
            for (is_from_list, want) in [(false, by_watch), (true, from_list)] {
                let mut departures = Departures::new();
                note_gone(&mut departures, &view(pod.clone()), is_from_list);
                assert_eq!(departures.get("a").copied(), want, "{what}, from a list: {is_from_list}");
            }
        }
        let mut departures = Departures::from([("a".to_owned(), Departure::Otherwise)]);
        note_gone(&mut departures, &view(target("EvictionByEvictionAPI")), false);
        assert_eq!(departures["a"], Departure::Otherwise, "of two, one was not evicted");
    }

    #[test]
    fn what_was_noted_since_a_pass_has_read_the_pods_stays() {
        let mut departures = Departures::from([("a".to_owned(), Departure::Otherwise)]);
        note_leaving(&mut departures, &nodes(&["a"]), &sorted(&[pod("a")]), |_| false);
        assert_eq!(departures["a"], Departure::Otherwise);
        note_leaving(&mut departures, &nodes(&["a"]), &sorted(&[pod("a")]), is_there);
        assert!(departures.is_empty(), "it has another one");
    }

    #[test]
    fn a_pod_that_goes_without_an_eviction_comes_back() {
        let (mut departures, nodes) = (Departures::new(), nodes(&["a", "b", "c", "d"]));
        let pods = [terminating(pod("a")), evicted(pod("b")), pod("c"), failed(pod("d")), terminating(pod("gone"))];
        note_leaving(&mut departures, &nodes, &sorted(&pods), is_there);
        let text = |departures: &Departures| {
            departures.iter().map(|(name, how)| format!("{name}: {how:?}")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(text(&departures), "a: Otherwise, b: Evicted, d: Otherwise, gone: Otherwise");
        note_leaving(&mut departures, &nodes, &sorted(&[pod("d")]), is_there);
        assert_eq!(text(&departures), "a: Otherwise, b: Evicted", "d has one again, the other node is gone");
        note_leaving(&mut departures, &nodes, &sorted(&[evicted(pod("a"))]), is_there);
        assert_eq!(text(&departures), "a: Evicted, b: Evicted", "it had come back, and was evicted");
        note_leaving(&mut departures, &nodes, &sorted(&[evicted(old("b")), failed(pod("b"))]), is_there);
        assert_eq!(text(&departures), "a: Evicted, b: Otherwise", "of two, one was not evicted");
    }
}
