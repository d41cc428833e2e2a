//! Nodes that a set stays away from: those that are cordoned and from which its Pod was evicted, until they are uncordoned.
//!
//! An eviction may go by while no manager runs, and then nothing is left of it but a cordoned node without a Pod. That alone
//! is therefore enough, and what has to be known is the opposite: that the last Pod of a node went for another reason. It is
//! known of Pods that this process has seen going; when it is forgotten, the node gets its Pod when it is uncordoned.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::pod::{Node, Pod};

/// A node that is as young joins cordoned, and has not had a Pod yet.
const YOUNG: SignedDuration = SignedDuration::from_mins(2);

/// Takes nodes out of the selection. `returns` are those whose last Pod went for another reason.
pub fn stay_away(nodes: &mut [Node], pods: &[Arc<Pod>], returns: &BTreeSet<String>, now: Timestamp) {
    for node in nodes.iter_mut().filter(|node| node.counts()) {
        let Some(created) = node.cordoned else { continue };
        let own = || pods.iter().filter(|pod| pod.node == node.name);
        let is_away = match own().next() {
            // One that ends may be beside one that stays, with a surge.
            Some(_) => own().all(|pod| pod.is_terminating && pod.is_evicted),
            None => !returns.contains(&node.name) && now.duration_since(created) >= YOUNG,
        };
        if is_away {
            (node.fit.should_run, node.would_run) = (false, false);
        }
    }
}

/// Changes which nodes get their Pod back: those whose Pod goes without having been evicted, until they have another one.
pub fn note_leaving(returns: &mut BTreeSet<String>, nodes: &[Node], pods: &[Arc<Pod>]) {
    returns.retain(|name| nodes.binary_search_by(|node| node.name.cmp(name)).is_ok());
    for pod in pods {
        if pod.is_live() || pod.is_evicted {
            returns.remove(&pod.node);
        }
    }
    let leaves = pods.iter().filter(|pod| !pod.is_live() && !pod.is_evicted);
    let nodes: Vec<&str> = pods.iter().filter(|pod| pod.is_live()).map(|pod| pod.node.as_str()).collect();
    returns.extend(leaves.map(|pod| pod.node.clone()).filter(|node| !nodes.contains(&node.as_str())));
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
    fn runs(node: Node, pods: &[Pod], returns: &[&str]) -> bool {
        let mut nodes = [node];
        let returns = returns.iter().map(|name| (*name).to_owned()).collect();
        stay_away(&mut nodes, &sorted(pods), &returns, time(0));
        nodes[0].fit.should_run
    }

    #[test]
    fn a_cordoned_node_without_a_pod_gets_none_until_it_is_uncordoned() {
        assert!(!runs(cordoned("a"), &[], &[]), "whoever has seen the eviction, or nobody");
        assert!(runs(node("a"), &[], &[]), "uncordoned");
        assert!(runs(cordoned("a"), &[], &["a"]), "its Pod went for another reason");
        let young = Node { cordoned: Some(time(-60)), ..node("a") };
        assert!(runs(young, &[], &[]), "a node that joins cordoned");
        assert!(!runs(Node { cordoned: Some(time(0)), ..unfit("a") }, &[], &[]), "it does not fit anyway");
        let mut not_ready = [Node { cordoned: Some(time(-100_000)), ..repelling("a", -9) }];
        stay_away(&mut not_ready, &[], &BTreeSet::new(), time(0));
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
        let (mut returns, nodes) = (BTreeSet::new(), nodes(&["a", "b", "c", "d"]));
        let pods = [terminating(pod("a")), evicted(pod("b")), pod("c"), failed(pod("d")), terminating(pod("gone"))];
        note_leaving(&mut returns, &nodes, &sorted(&pods));
        let names = |returns: &BTreeSet<String>| returns.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names(&returns), "a d gone");
        note_leaving(&mut returns, &nodes, &sorted(&[pod("d")]));
        assert_eq!(names(&returns), "a", "d has one again, the other node is gone");
        note_leaving(&mut returns, &nodes, &sorted(&[evicted(pod("a"))]));
        assert_eq!(names(&returns), "", "it had come back, and was evicted");
    }
}
