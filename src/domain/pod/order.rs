//! In which order Pods are deleted and updated.
//!
//! All orders are stable: Pods that no rule distinguishes keep the order they came in.

use std::{cmp::Ordering, collections::BTreeMap};

use jiff::Timestamp;

use crate::k8s::pod::Labels;

/// What the orders look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its name, by which the caller finds it again.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// The node it is bound to, or empty.
    pub node: String,
    /// Its phase.
    pub phase: Phase,
    /// Available for `minReadySeconds`, in lifecycle state Normal.
    pub available: bool,
    /// The condition Ready is True.
    pub ready: bool,
    /// When Ready last changed.
    pub ready_since: Option<Timestamp>,
    /// The largest restart count of its containers.
    pub restarts: i32,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
}

/// Phases in the order in which Pods go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not started.
    #[default]
    Pending,
    /// Its node is silent.
    Unknown,
    /// Running, or anything else.
    Running,
}

impl Phase {
    /// From `status.phase`.
    pub fn of(text: &str) -> Self {
        match text {
            "Pending" => Self::Pending,
            "Unknown" => Self::Unknown,
            _ => Self::Running,
        }
    }
}

/// The order in which Pods are updated before any priority: what is least useful goes first.
pub fn base(a: &Candidate, b: &Candidate) -> Ordering {
    where_and_phase(a, b).then(a.ready.cmp(&b.ready)).then_with(|| age(a, b))
}

fn where_and_phase(a: &Candidate, b: &Candidate) -> Ordering {
    (!a.node.is_empty()).cmp(&!b.node.is_empty()).then(a.phase.cmp(&b.phase))
}

/// Later ready first, more restarts first, newer first; an unknown time counts as the latest.
fn age(a: &Candidate, b: &Candidate) -> Ordering {
    let later = |a: Option<Timestamp>, b: Option<Timestamp>| match (a, b) {
        (Some(a), Some(b)) => b.cmp(&a),
        (a, b) => a.is_some().cmp(&b.is_some()),
    };
    let ready = if a.ready && b.ready { later(a.ready_since, b.ready_since) } else { Ordering::Equal };
    ready.then(b.restarts.cmp(&a.restarts)).then_with(|| later(a.created, b.created))
}

/// The order in which Pods are deleted; `rank` says how crowded a Pod's place is.
fn deletion(a: (&Candidate, f64), b: (&Candidate, f64)) -> Ordering {
    let ((a, rank_a), (b, rank_b)) = (a, b);
    where_and_phase(a, b)
        .then(a.available.cmp(&b.available))
        .then(a.ready.cmp(&b.ready))
        .then(a.deletion_cost.cmp(&b.deletion_cost))
        .then(rank_b.total_cmp(&rank_a))
        .then_with(|| age(a, b))
}

/// Sorts Pods into the order in which they are deleted: those whose loss costs least, and of equals those in the most
/// crowded places, come first. `zones` gives, for each topology spread constraint, the value of its key on a node.
pub fn sort_for_deletion(pods: &mut Vec<Candidate>, constraints: &[Constraint<'_>]) {
    let ranks = if constraints.is_empty() { same_node_ranks(pods) } else { spread_ranks(pods, constraints) };
    let mut ranked: Vec<(Candidate, f64)> = std::mem::take(pods).into_iter().zip(ranks).collect();
    ranked.sort_by(|(a, rank_a), (b, rank_b)| deletion((a, *rank_a), (b, *rank_b)));
    pods.extend(ranked.into_iter().map(|(pod, _)| pod));
}

/// A topology spread constraint of the template.
#[derive(Clone, Copy)]
pub struct Constraint<'a> {
    /// Its `topologyKey`.
    pub key: &'a str,
    /// The value of that label on each node that has it.
    pub values: &'a BTreeMap<String, String>,
}

/// Ranks by node: of n Pods on a node the first to be deleted gets n-1, the last 0. Which one is first is decided without
/// availability.
fn same_node_ranks(pods: &[Candidate]) -> Vec<f64> {
    let without_availability = |pod: &Candidate| Candidate { available: false, ..pod.clone() };
    let plain: Vec<Candidate> = pods.iter().map(without_availability).collect();
    let mut ranks = vec![0.0; pods.len()];
    for group in groups(pods, |pod| Some(pod.node.as_str()).filter(|node| !node.is_empty())).into_values() {
        for (i, index) in ordered(&plain, group, &vec![0.0; pods.len()]).into_iter().rev().enumerate() {
            ranks[index] = i as f64;
        }
    }
    ranks
}

/// The sum over the constraints of how far ahead a Pod stands among those of its zone, weighted by the number of zones.
fn spread_ranks(pods: &[Candidate], constraints: &[Constraint<'_>]) -> Vec<f64> {
    let on_node = same_node_ranks(pods);
    let mut ranks = vec![0.0; pods.len()];
    for constraint in constraints {
        let zones = groups(pods, |pod| constraint.values.get(&pod.node).map(String::as_str));
        let weight = (zones.len() as f64 + 2.0).ln();
        let none = vec![0.0; pods.len()];
        let inner = if constraint.key == "kubernetes.io/hostname" { &none } else { &on_node };
        for group in zones.into_values() {
            for (i, index) in ordered(pods, group, inner).into_iter().rev().enumerate() {
                ranks[index] += (i as f64 + 1.0) * weight;
            }
        }
    }
    ranks
}

fn groups<'a>(pods: &'a [Candidate], key: impl Fn(&'a Candidate) -> Option<&'a str>) -> BTreeMap<&'a str, Vec<usize>> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, pod) in pods.iter().enumerate() {
        if let Some(key) = key(pod) {
            groups.entry(key).or_default().push(i);
        }
    }
    groups
}

fn ordered(pods: &[Candidate], mut group: Vec<usize>, ranks: &[f64]) -> Vec<usize> {
    group.sort_by(|&a, &b| deletion((&pods[a], ranks[a]), (&pods[b], ranks[b])));
    group
}

/// Spreads the Pods that carry one label value over the others, so that an update neither takes all of them at once nor
/// leaves them all to the end. `rest` counts the Pods with and without it in the whole workload.
pub fn scatter<T>(pods: Vec<T>, matches: impl Fn(&T) -> bool, all_matching: usize, all_others: usize) -> Vec<T> {
    let matching = pods.iter().filter(|pod| matches(pod)).count();
    if matching <= 1 || pods.len() - matching <= 1 {
        return pods;
    }
    let (mut chosen, mut others): (Vec<T>, Vec<T>) = pods.into_iter().partition(matches);
    // One is kept for the very end.
    let last = chosen.pop();
    let (m, u) = (chosen.len(), others.len());
    let (all_m, all_u) = (all_matching.saturating_sub(1), all_others);
    // all_u / all_m >= u / m, without division
    let (size_m, size_u, before) = if all_u * m >= u * all_m || all_m == 0 || all_u == 0 {
        let (size_m, size_u) = group_sizes(m, u);
        (size_m, size_u, 0)
    } else {
        let (size_m, size_u) = group_sizes(all_m, all_u);
        let n = (m / size_m).min(u / size_u);
        (size_m, size_u, u - n * size_u)
    };
    let mut result = Vec::with_capacity(m + u + 1);
    result.extend(others.drain(..before));
    while chosen.len() >= size_m && others.len() >= size_u {
        result.extend(chosen.drain(..size_m));
        result.extend(others.drain(..size_u));
    }
    result.extend(chosen);
    result.extend(others);
    result.extend(last);
    result
}

fn group_sizes(a: usize, b: usize) -> (usize, usize) {
    let n = a.min(b).max(1) as f64;
    let size = |of: usize| ((of as f64 / n).round() as usize).max(1);
    (size(a), size(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(name: &str) -> Candidate {
        Candidate {
            name: name.into(),
            node: name.into(),
            phase: Phase::Running,
            available: true,
            ready: true,
            ready_since: Some(at(100)),
            created: Some(at(50)),
            ..Candidate::default()
        }
    }
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }
    fn names(pods: &[Candidate]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn what_costs_least_is_deleted_first() {
        let in_order = [
            Candidate { node: String::new(), ..pod("unassigned") },
            Candidate { phase: Phase::Pending, ..pod("pending") },
            Candidate { phase: Phase::Unknown, ..pod("unknown") },
            Candidate { available: false, ready: false, ..pod("not-ready") },
            Candidate { available: false, ..pod("not-available") },
            Candidate { deletion_cost: -5, ..pod("cheap") },
            Candidate { ready_since: None, ..pod("ready-at-an-unknown-time") },
            Candidate { ready_since: Some(at(200)), ..pod("ready-later") },
            Candidate { restarts: 3, ..pod("restarted") },
            Candidate { created: None, ..pod("created-at-an-unknown-time") },
            Candidate { created: Some(at(60)), ..pod("newer") },
            pod("plain"),
            Candidate { deletion_cost: 7, ..pod("dear") },
        ];
        let mut pods: Vec<Candidate> = in_order.iter().rev().cloned().collect();
        sort_for_deletion(&mut pods, &[]);
        assert_eq!(names(&pods), names(&in_order));
    }

    #[test]
    fn the_more_crowded_node_loses_a_pod_first() {
        let on = |name: &str, node: &str| Candidate { node: node.into(), ..pod(name) };
        let mut pods = vec![on("a", "n1"), on("b", "n2"), on("c", "n2"), on("d", "n2")];
        sort_for_deletion(&mut pods, &[]);
        assert_eq!(names(&pods), ["b", "c", "a", "d"]);
    }

    #[test]
    fn the_more_crowded_zone_loses_a_pod_first() {
        let zones = BTreeMap::from([
            ("n1".to_owned(), "z1".to_owned()),
            ("n2".to_owned(), "z1".to_owned()),
            ("n3".to_owned(), "z2".to_owned()),
        ]);
        let on = |name: &str, node: &str| Candidate { node: node.into(), ..pod(name) };
        let mut pods = vec![on("lonely", "n3"), on("a", "n1"), on("b", "n2"), on("nowhere", "n4")];
        let constraint = Constraint { key: "topology.kubernetes.io/zone", values: &zones };
        sort_for_deletion(&mut pods, &[constraint]);
        assert_eq!(names(&pods), ["a", "lonely", "b", "nowhere"]);
    }

    #[test]
    fn case_28_the_base_order_is_stable() {
        let mut pods =
            vec![pod("b"), pod("a"), Candidate { restarts: 1, ..pod("c") }, Candidate { ready: false, ..pod("d") }];
        pods.sort_by(base);
        assert_eq!(names(&pods), ["d", "c", "b", "a"]);
    }

    fn scattered(pods: &str, all_matching: usize, all_others: usize) -> String {
        scatter(pods.chars().collect(), |c| *c == 'M', all_matching, all_others).into_iter().collect()
    }

    #[test]
    fn scatter_spreads_the_marked_pods() {
        assert_eq!(scattered("MMMuuuuuu", 3, 6), "MuuuMuuuM");
        assert_eq!(scattered("MMMMuuuu", 4, 4), "MuMuMuuM");
        assert_eq!(scattered("MMuuuuu", 6, 6), "uuuuMuM");
        assert_eq!(scattered("Muuu", 1, 3), "Muuu");
        assert_eq!(scattered("MMMu", 3, 1), "MMMu");
    }

    proptest! {
        #[test]
        fn scatter_loses_nobody(pods in "[Mu]{0,30}", more in 0usize..20, others in 0usize..20) {
            let count = |text: &str| text.chars().filter(|c| *c == 'M').count();
            let matching = count(&pods);
            let result = scattered(&pods, matching + more, pods.len() - matching + others);
            prop_assert_eq!(result.len(), pods.len());
            prop_assert_eq!(count(&result), matching);
        }
    }
}
