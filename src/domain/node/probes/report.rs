//! What a PodProbeMarker says of itself: a condition when something of its spec is not carried out as it is written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{
    LONGEST_TIMEOUT,
    budget::{self, Limit},
};
use crate::{
    api::{apps::pod_probe_marker::PodProbeMarker, labels},
    k8s::{conditions, time::whole_seconds},
};

/// Probes, Pods and fields that a message names.
const NAMED: usize = 3;

/// A probe that does not fit into the NodePodProbe of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Its name in the PodProbeMarker.
    pub probe: Box<str>,
    /// What it would take.
    pub bytes: usize,
    /// What it exceeds.
    pub limit: Limit,
    /// In how many Pods.
    pub count: usize,
    /// Names of the first few of them, sorted.
    pub pods: Vec<Box<str>>,
}

impl Unfit {
    /// Adds a Pod.
    pub fn add(&mut self, pod: &str, bytes: usize) {
        self.count += 1;
        self.bytes = self.bytes.max(bytes);
        let at = self.pods.partition_point(|other| **other < *pod);
        if at < NAMED {
            self.pods.insert(at, pod.into());
            self.pods.truncate(NAMED);
        }
    }
}

/// The conditions of a PodProbeMarker, with those that it has already, and whether there is news that people should know of. There is no condition until
/// something is not as specified.
pub fn as_specified(
    marker: &PodProbeMarker,
    mut conditions: Vec<Condition>,
    unfit: &[Unfit],
    now: Timestamp,
) -> (Vec<Condition>, bool) {
    let before = conditions.iter().position(|condition| condition.type_ == labels::CONDITION_AS_SPECIFIED);
    let (long, large) = (long_timeouts(marker), too_large(unfit));
    let reason = match (large.is_empty(), long.is_empty()) {
        (false, _) => "TooLarge",
        (true, false) => "TimeoutTooLong",
        (true, true) if before.is_none() => return (conditions, false),
        (true, true) => "CarriedOut",
    };
    let is_good = large.is_empty() && long.is_empty();
    let message =
        if is_good { "every probe is carried out as specified".to_owned() } else { [large, long].concat().join("; ") };
    let status = if is_good { "True" } else { "False" };
    let old = before.map(|at| &conditions[at]);
    let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
    let is_news = !is_good && old.is_none_or(|old| old.reason != reason || old.message != message);
    let condition = Condition {
        type_: labels::CONDITION_AS_SPECIFIED.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation: marker.metadata.generation,
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
    };
    match before {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    (conditions, is_news)
}

/// Sets Ready, Reconciling and Stalled, from which tools read how far it is. `is_known`: every node has been looked at;
/// until then what was reported of the same generation stays, by OpenKruise without conditions too.
pub fn set_kstatus(marker: &PodProbeMarker, all: &mut Vec<Condition>, is_known: bool, now: Timestamp) {
    let refused =
        all.iter().find(|condition| condition.type_ == labels::CONDITION_ACCEPTED && condition.status == "False");
    let generation = marker.metadata.generation;
    let is_reported = marker.status.as_ref().is_some_and(|status| Some(status.observed_generation) == generation);
    if refused.is_none() && !is_known && is_reported {
        return;
    }
    let condition_of = match refused.map(|condition| (condition.reason.clone(), condition.message.clone())) {
        Some((reason, message)) => (conditions::STALLED, reason, message),
        None if is_known => (conditions::READY, "Probing".into(), "the nodes of its Pods have its probes".into()),
        None => (conditions::RECONCILING, "Progressing".into(), "its probes are passed on to nodes".into()),
    };
    let (true_one, reason, message) = (condition_of.0, condition_of.1.as_str(), condition_of.2.as_str());
    conditions::set_kstatus(all, (true_one, reason, message), generation, now);
}

/// Timeouts of a stored object that are longer than allowed.
fn long_timeouts(marker: &PodProbeMarker) -> Vec<String> {
    let most = LONGEST_TIMEOUT.as_secs();
    let all = marker.spec.probes.iter().enumerate().filter_map(|(i, probe)| {
        let seconds = probe.probe.get("timeoutSeconds")?.as_i64()?;
        let is_long = u64::try_from(seconds).is_ok_and(|seconds| seconds > most);
        is_long
            .then(|| format!("spec.probes[{i}].probe.timeoutSeconds is {seconds}, but probes are ended after {most} s"))
    });
    some(all.collect(), "timeouts")
}

fn too_large(unfit: &[Unfit]) -> Vec<String> {
    let mut by_probe: BTreeMap<(&str, Limit), (usize, usize, Vec<&str>)> = BTreeMap::new();
    for one in unfit {
        let (bytes, count, pods) = by_probe.entry((&one.probe, one.limit)).or_default();
        *bytes = one.bytes.max(*bytes);
        *count += one.count;
        pods.extend(one.pods.iter().map(|pod| &**pod));
    }
    let all = by_probe.into_iter().map(|((probe, limit), (bytes, count, mut pods))| {
        pods.sort_unstable();
        let dots = if count > NAMED { ", ..." } else { "" };
        let named = pods.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let probe: String = probe.chars().take(63).collect();
        let why = match limit {
            Limit::Pod => format!("all probes of a Pod may have {}", budget::POD),
            Limit::Namespace => format!(
                "the probes of a namespace may have {} on a node, or fewer when its namespaces have to share",
                budget::NAMESPACE
            ),
        };
        format!("probe {probe:?} is left out in {count} Pods ({named}{dots}): it takes {bytes} bytes, and {why}")
    });
    some(all.collect(), "probes")
}

/// The first few.
fn some(mut all: Vec<String>, what: &str) -> Vec<String> {
    if let Some(more) = all.len().checked_sub(NAMED).filter(|more| *more > 0) {
        all.truncate(NAMED);
        all.push(format!("and {more} or more other {what}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::apps::pod_probe_marker::PodProbeMarkerStatus;

    fn marker(timeouts: &[i64]) -> PodProbeMarker {
        let probe = |seconds: &i64| json!({"name": "a", "containerName": "c", "probe": {"exec": {"command": ["a"]}, "timeoutSeconds": seconds}});
        serde_json::from_value(json!({"metadata": {"name": "m", "generation": 2},
            "spec": {"selector": {}, "probes": timeouts.iter().map(probe).collect::<Vec<Value>>()}}))
        .unwrap()
    }

    fn said_of(timeouts: &[i64], had: Vec<Condition>, unfit: &[Unfit], now: Timestamp) -> (Vec<Condition>, bool) {
        as_specified(&marker(timeouts), had, unfit, now)
    }

    fn unfit(probe: &str, pod: &str, limit: Limit) -> Unfit {
        Unfit { probe: probe.into(), bytes: 204_912, limit, count: 1, pods: vec![pod.into()] }
    }

    #[test]
    fn nothing_is_said_until_something_is_wrong_and_then_until_it_is_right() {
        let (first, later) = (Timestamp::UNIX_EPOCH, "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(said_of(&[60], vec![], &[], first), (vec![], false));
        let (bad, is_news) = said_of(&[60, 600], vec![], &[], first);
        assert_eq!((bad[0].status.as_str(), bad[0].reason.as_str(), is_news), ("False", "TimeoutTooLong", true));
        assert_eq!(bad[0].message, "spec.probes[1].probe.timeoutSeconds is 600, but probes are ended after 60 s");
        assert_eq!(said_of(&[60, 600], bad.clone(), &[], later), (bad.clone(), false));
        let (good, is_news) = said_of(&[60], bad, &[], later);
        assert_eq!((good[0].status.as_str(), good[0].reason.as_str(), is_news), ("True", "CarriedOut", false));
        assert_eq!(good[0].last_transition_time.0, later);
    }

    #[test]
    fn what_was_reported_of_the_same_generation_stays_until_every_node_has_been_looked_at() {
        for (observed, is_known, expected) in [
            (None, false, Some("Reconciling")),
            (Some(1), false, Some("Reconciling")),
            (Some(2), false, None),
            (Some(2), true, Some("Ready")),
        ] {
            let mut of_openkruise = marker(&[1]);
            of_openkruise.status =
                observed.map(|observed_generation| PodProbeMarkerStatus { observed_generation, ..Default::default() });
            let mut all = Vec::new();
            set_kstatus(&of_openkruise, &mut all, is_known, Timestamp::UNIX_EPOCH);
            let true_one = all.iter().find(|condition| condition.status == "True");
            assert_eq!(true_one.map(|condition| condition.type_.as_str()), expected, "{observed:?} {is_known}");
        }
    }

    #[test]
    fn of_many_pods_the_first_few_are_kept() {
        let mut all = unfit("big", "m", Limit::Pod);
        for pod in ["z", "a", "q", "c", "b"] {
            all.add(pod, 1);
        }
        assert_eq!((all.count, all.bytes, all.pods), (6, 204_912, vec!["a".into(), "b".into(), "c".into()]));
    }

    #[test]
    fn what_does_not_fit_is_named_and_the_message_stays_short() {
        let mut all: Vec<Unfit> = (0..8).map(|i| unfit("big", &format!("web-{i}"), Limit::Pod)).collect();
        let (said, _) = said_of(&[1], vec![], &all, Timestamp::UNIX_EPOCH);
        assert_eq!(
            said[0].message,
            "probe \"big\" is left out in 8 Pods (web-0, web-1, web-2, ...): it takes 204912 bytes, and all probes of a \
             Pod may have 65536"
        );
        all.extend((0..1000).map(|i| unfit(&format!("{i}-{}", "x".repeat(5000)), &"p".repeat(253), Limit::Namespace)));
        let (said, _) = said_of(&[900], vec![], &all, Timestamp::UNIX_EPOCH);
        assert_eq!(said[0].reason, "TooLarge");
        assert!(
            said[0].message.len() < 2500 && said[0].message.contains("and 998 or more other probes; spec.probes[0]"),
            "{said:?}"
        );
    }
}
