//! How many bytes of a node's NodePodProbe each Pod and each namespace may take.
//!
//! etcd refuses objects of more than 1.5 MiB, and one NodePodProbe holds the probes of every Pod of its node. So that a
//! namespace can neither fill it nor keep others from changing it, what does not fit is left out before anything is
//! written. [`NODE`] and [`MESSAGES`] together are 1.25 MiB; the rest is for metadata.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    api::apps::node_pod_probe::{ContainerProbe, PodProbe, PodProbeStatus},
    domain::node::texts::{self, highest},
    k8s::canonical_json,
};

/// Bytes that the probes of one Pod may take.
pub const POD: usize = 64 << 10;
/// Bytes that the probes of one namespace may take on a node; fewer when the namespaces of a node share [`NODE`].
pub const NAMESPACE: usize = 512 << 10;
/// Bytes that all probes of a node may take, with their results but without messages.
pub const NODE: usize = 1 << 20;
/// Bytes that the messages of all results of a node may take.
pub const MESSAGES: usize = 256 << 10;

/// Bytes of an entry of the spec and of one of the status, besides what they hold.
const AROUND_POD: usize = 140;
/// Bytes of a probe and of its result, besides names and handler.
const AROUND_PROBE: usize = 190;

/// Bytes that a Pod takes before its first probe.
pub fn size_of_head(pod: &PodProbe) -> usize {
    let text = canonical_json::length_of_text;
    2 * (text(&pod.name) + text(&pod.namespace) + text(&pod.uid)) + text(&pod.ip) + AROUND_POD
}

/// Bytes that a probe takes, its result without message included.
pub fn size_of_probe(probe: &ContainerProbe) -> usize {
    let text = canonical_json::length_of_text;
    2 * text(&probe.name) + text(&probe.container_name) + canonical_json::encode(&probe.probe).len() + AROUND_PROBE
}

/// Bytes that a value takes at least, without encoding it.
pub fn at_least(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|item| at_least(item) + 1).sum(),
        Value::Object(map) => map.iter().map(|(key, item)| key.len() + at_least(item) + 4).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Bytes that these Pods take.
pub fn size_of(pods: &[PodProbe]) -> usize {
    pods.iter().map(|pod| size_of_head(pod) + pod.probes.iter().map(size_of_probe).sum::<usize>()).sum()
}

/// What a Pod asks for.
#[derive(Clone, Debug, Default)]
pub struct Ask<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Bytes that stay whatever is decided here.
    pub fixed: usize,
    /// Bytes before its first probe.
    pub head: usize,
    /// Its probes: their bytes, and whether they are in the object already.
    pub probes: Vec<(usize, bool)>,
}

/// Which limit a probe exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// [`POD`].
    Pod,
    /// [`NAMESPACE`], or what is left of [`NODE`] for each namespace.
    Namespace,
}

/// Decides which probes fit: for each Pod and each of its probes the limit that it exceeds, if any.
///
/// Within a Pod and a namespace those that are there already go first, then the others in their order. Namespaces share
/// [`NODE`] so that none gets less than another one that has more than it asked for: a namespace that comes late gets its
/// share from those that take more than theirs.
pub fn share(asks: &[Ask<'_>]) -> Vec<Vec<Option<Limit>>> {
    let mut refused: Vec<Vec<Option<Limit>>> = asks.iter().map(|ask| vec![None; ask.probes.len()]).collect();
    for (ask, refused) in asks.iter().zip(&mut refused) {
        let mut room = POD;
        for is_there in [true, false] {
            fill(ask, refused, is_there, &mut room, Limit::Pod);
        }
    }

    #[derive(Default)]
    struct Sum {
        fixed: usize,
        wanted: usize,
    }
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for (ask, refused) in asks.iter().zip(&refused) {
        let sum = sums.entry(ask.namespace).or_default();
        sum.fixed += ask.fixed;
        let taken = ask.probes.iter().zip(refused).filter(|(_, limit)| limit.is_none());
        let bytes: usize = taken.map(|((bytes, _), _)| bytes).sum();
        sum.wanted += if bytes > 0 { ask.head + bytes } else { 0 };
    }
    let room = NODE.saturating_sub(sums.values().map(|sum| sum.fixed).sum());
    let part = |sum: &Sum, level: usize| sum.wanted.min(level.min(NAMESPACE).saturating_sub(sum.fixed));
    let level = highest(NODE, |level| sums.values().map(|sum| part(sum, level)).sum::<usize>() <= room);
    let mut rooms: BTreeMap<&str, usize> = sums.iter().map(|(name, sum)| (*name, part(sum, level))).collect();
    for is_there in [true, false] {
        for (ask, refused) in asks.iter().zip(&mut refused) {
            if let Some(room) = rooms.get_mut(ask.namespace) {
                fill(ask, refused, is_there, room, Limit::Namespace);
            }
        }
    }
    refused
}

/// Takes the probes that fit, of those that are there already or of the others, from `room`. The first one of a Pod takes
/// its head too, if none was there before.
fn fill(ask: &Ask<'_>, refused: &mut [Option<Limit>], is_there: bool, room: &mut usize, limit: Limit) {
    let was_there = |i: usize, refused: &[Option<Limit>]| ask.probes[i].1 && refused[i].is_none();
    let mut has_head = !is_there && (0..ask.probes.len()).any(|i| was_there(i, refused));
    for (i, (bytes, there)) in ask.probes.iter().enumerate() {
        if *there != is_there || refused[i].is_some() {
            continue;
        }
        let cost = if has_head { *bytes } else { ask.head + bytes };
        if cost <= *room {
            *room -= cost;
            has_head = true;
        } else {
            refused[i] = Some(limit);
        }
    }
}

/// Cuts messages so that together they take no more than [`MESSAGES`]: those of the namespaces with the most, and of these
/// the longest. The same results always give the same messages.
pub fn cut_messages(statuses: &mut [PodProbeStatus]) {
    let messages = statuses.iter_mut().flat_map(|PodProbeStatus { namespace, probe_states, .. }| {
        let namespace = namespace.as_str();
        probe_states.iter_mut().map(move |state| (namespace, &mut state.message))
    });
    texts::cut(&mut messages.collect::<Vec<_>>(), MESSAGES);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::apps::node_pod_probe::{ContainerProbeState, NodePodProbe},
        domain::node::probes::MAX_MESSAGE,
    };

    fn ask<'a>(namespace: &'a str, probes: &[(usize, bool)]) -> Ask<'a> {
        Ask { namespace, fixed: 0, head: 100, probes: probes.to_vec() }
    }

    fn fits(asks: &[Ask<'_>]) -> Vec<Vec<bool>> {
        share(asks).iter().map(|of| of.iter().map(Option::is_none).collect()).collect()
    }

    #[test]
    fn a_probe_that_is_too_large_for_its_pod_is_left_out_and_the_others_stay() {
        let asks = [ask("a", &[(1000, false), (200 << 10, true), (2000, false)]), ask("b", &[(500, false)])];
        assert_eq!(share(&asks), [vec![None, Some(Limit::Pod), None], vec![None]]);
        // Exactly as much as there is.
        assert_eq!(share(&[ask("a", &[(POD - 100, false)])]), [[None]]);
        assert_eq!(share(&[ask("a", &[(POD - 99, false)])]), [[Some(Limit::Pod)]]);
        // What is there already goes first.
        let half = POD / 2;
        assert_eq!(fits(&[ask("a", &[(half, false), (half, true)])]), [[false, true]]);
    }

    #[test]
    fn a_namespace_takes_no_more_than_its_limit_and_keeps_what_it_has() {
        let large = POD - 100;
        let mut asks: Vec<Ask<'_>> = (0..10).map(|_| ask("a", &[(large, false)])).collect();
        asks[9].probes[0].1 = true;
        let decided = share(&asks);
        assert_eq!(decided.iter().filter(|of| of[0].is_none()).count(), NAMESPACE / POD);
        assert_eq!((decided[9][0], decided[8][0]), (None, Some(Limit::Namespace)));
    }

    #[test]
    fn every_namespace_keeps_a_share_of_a_full_node() {
        let names: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for name in &names {
            // More than all of the node, and all of it is there already.
            asks.extend((0..20).map(|_| ask(name, &[(8 << 10, true); 7])));
        }
        asks.push(ask("late", &[(5000, false), (5000, false)]));
        let decided = share(&asks);
        assert_eq!(decided.last(), Some(&vec![None, None]), "less than its share");
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for (ask, of) in asks.iter().zip(&decided) {
            let bytes: usize =
                ask.probes.iter().zip(of).filter(|(_, l)| l.is_none()).map(|((bytes, _), _)| bytes).sum();
            *taken.entry(ask.namespace).or_default() += if bytes > 0 { bytes + ask.head } else { 0 };
        }
        assert!(taken.values().sum::<usize>() <= NODE, "{taken:?}");
        let least = taken.iter().filter(|(name, _)| **name != "late").map(|(_, bytes)| *bytes).min().unwrap();
        assert!(least >= NODE / 21 - (9 << 10), "{taken:?}");
    }

    #[test]
    fn what_stays_whatever_is_decided_is_counted() {
        let mut theirs = ask("theirs", &[]);
        theirs.fixed = NODE - 3000;
        assert_eq!(fits(&[theirs.clone(), ask("a", &[(2000, false), (2000, false)])]), [vec![], vec![true, false]]);
        theirs.fixed = 2 * NODE;
        assert_eq!(fits(&[theirs, ask("a", &[(1, true)])]), [vec![], vec![false]]);
    }

    #[test]
    fn sizes_are_those_of_the_stored_object() {
        for (text, count) in [("x", 1), ("<", 30), ("ü\u{2028}\"", 3)] {
            let probe = |i: usize| json!({"name": format!("m#{i}{text}"), "containerName": "main", "probe": {"exec": {"command": ["sh", text.repeat(500)]}}});
            let state = |i: usize| {
                json!({"name": format!("m#{i}{text}"), "state": "Succeeded", "message": "",
                "lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            let pods = |with: &dyn Fn(usize) -> Value, key: &str| json!([{"name": "p", "namespace": "a", "uid": "0123456789", "IP": "10.0.0.1", key: (0..count).map(with).collect::<Vec<_>>()}]);
            let object = json!({"spec": {"podProbes": pods(&probe, "probes")}, "status": {"podProbeStatuses": pods(&state, "probeStates")}});
            let stored = canonical_json::encode(&object).len();
            let read: NodePodProbe = serde_json::from_value(json!({"metadata": {}, "spec": object["spec"]})).unwrap();
            let counted = size_of(&read.spec.pod_probes);
            let probe = &read.spec.pod_probes[0].probes[0];
            assert!(at_least(&probe.probe) <= canonical_json::encode(&probe.probe).len());
            assert!((stored..stored + stored / 4).contains(&counted), "{text}: {counted}, stored {stored}");
        }
    }

    #[test]
    fn messages_of_a_node_are_bounded_and_a_namespace_that_says_little_is_not_cut() {
        let status = |namespace: &str, messages: Vec<String>| PodProbeStatus {
            name: "p".into(),
            namespace: namespace.into(),
            uid: "u".into(),
            probe_states: messages
                .into_iter()
                .map(|message| ContainerProbeState { message, ..ContainerProbeState::default() })
                .collect(),
        };
        let few = status("few", vec!["fine\n".into(), "x".repeat(MAX_MESSAGE)]);
        let mut all = vec![few.clone(), status("many", vec!["<ü>".repeat(256); 2000]), few.clone()];
        cut_messages(&mut all);
        let text = canonical_json::length_of_text;
        let total: usize = all.iter().flat_map(|status| &status.probe_states).map(|state| text(&state.message)).sum();
        assert!((MESSAGES * 8 / 10..=MESSAGES).contains(&total), "{total}");
        assert_eq!((&all[0], &all[2]), (&few, &few));
        let again = all.clone();
        cut_messages(&mut all);
        assert_eq!(all, again);
        let mut small = vec![status("a", vec!["x".repeat(MAX_MESSAGE); 100])];
        cut_messages(&mut small);
        assert_eq!(small[0].probe_states[99].message.len(), MAX_MESSAGE);
    }
}
