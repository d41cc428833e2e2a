//! A Pod of a DaemonSet and the node that it is meant for, as the rules see them.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    spec::{Rolling, Spec},
    tolerations,
};
use crate::{
    api::labels,
    domain::pod::{
        available::{self, pending, unreadable, until_available},
        inplace::UpdateSpec,
        lifecycle::{Hooked, State},
        placement::Fit,
        refresh::state_of,
    },
    k8s::{
        node::NodeView,
        pod::{DISRUPTION_TARGET, EVICTED, Labels, PodView},
        revision,
        time::Now,
    },
};

/// A node that is not Ready since so soon after it was created has not become Ready yet, or not for long.
const JOINING: SignedDuration = SignedDuration::from_mins(10);

/// A node, as a set sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it has a Pod of the set.
    pub fit: Fit,
    /// It would get one if it were Ready, and counts all the same, because the set has limits of its own: a template
    /// that breaks its nodes must not take them out of the count.
    pub would_run: bool,
    /// Whether its Pod is updated, as far as `rollingUpdate.selector` says.
    pub is_selected: bool,
    /// Its value of the label for which there is a limit; empty if it has none.
    pub zone: String,
    /// Since when its condition Ready is not True, if that matters to the set; None: it is.
    pub not_ready_since: Option<Timestamp>,
    /// Whether that was seen to begin, so that it did not begin earlier.
    pub saw_outage_begin: bool,
    /// It is not Ready, as its kubelet does not report: what is asked for there is done when it is back.
    pub is_silent: bool,
    /// It is not Ready, and became so within minutes after it was created: it joins.
    pub is_joining: bool,
    /// Whether it is cordoned, and since when it is there, if that matters to the set.
    pub cordoned: Option<Timestamp>,
}

impl Node {
    /// Of a node in the store.
    pub fn of(view: &NodeView, spec: &Spec) -> Self {
        let Rolling { selector, .. } = &spec.rolling;
        let zone = spec.per_topology.as_ref().and_then(|(key, _)| view.labels.get(key));
        let created = view.metadata.creation_timestamp.as_ref().map(|created| created.0);
        let has_limits = spec.has_own_limits();
        let since = || view.not_ready_since.or(created).unwrap_or(Timestamp::UNIX_EPOCH);
        let not_ready_since = (has_limits && !view.ready).then(since);
        let lasted = not_ready_since.zip(created).map(|(since, created)| since.duration_since(created));
        let fit = spec.placement.fit(view.name(), &view.labels, &view.taints);
        Self {
            name: view.name().to_owned(),
            fit,
            would_run: has_limits && !fit.should_run && tolerations::would_run(&spec.placement, view),
            is_selected: selector.as_ref().is_none_or(|selector| selector.matches(&view.labels)),
            zone: zone.unwrap_or_default().to_owned(),
            not_ready_since,
            saw_outage_begin: has_limits && view.saw_outage_begin,
            is_silent: has_limits && view.is_silent,
            is_joining: lasted.is_some_and(|lasted| lasted < JOINING),
            cordoned: (spec.stays_away && view.unschedulable).then(|| created.unwrap_or(Timestamp::UNIX_EPOCH)),
        }
    }

    /// Whether the counts and limits of the set include it.
    pub fn counts(&self) -> bool {
        self.fit.should_run || self.would_run
    }
}

/// The revisions that count as the newest one.
#[derive(Clone, Copy, Debug)]
pub struct Newest<'a> {
    /// The hash that Pods are to have.
    pub hash: &'a str,
    /// Hashes of other revisions with the same template.
    pub same: &'a [String],
}

/// A Pod that belongs to the set.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The node that it runs on or is meant for.
    pub node: String,
    /// Whether it has been bound to that node.
    pub is_bound: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its labels.
    pub labels: Labels,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Label `controller-revision-hash`.
    pub hash: String,
    /// Whether it has the newest template.
    pub is_new: bool,
    /// The state of its lifecycle.
    pub state: State,
    /// It has succeeded or failed for good.
    pub is_finished: bool,
    /// It has a deletion timestamp.
    pub is_terminating: bool,
    /// How long it still has to be Ready to be available; None: it is not Ready, or an update in place is not done.
    pub until_available: Option<Duration>,
    /// Its condition Ready is True and it runs.
    pub is_ready: bool,
    /// Somebody has evicted it, as `kubectl drain` does.
    pub is_evicted: bool,
    /// Somebody marked it to be deleted.
    pub is_specified: bool,
    /// It can be updated in place.
    pub has_gate: bool,
    /// What an update in place that is not done has still to write.
    pub pending: Option<UpdateSpec>,
    /// Why the notes of its update in place cannot be read.
    pub unreadable: Option<String>,
    /// When its last update in place began, whether it is done or not.
    pub updated_at: Option<Timestamp>,
    /// Since when its node was not Ready when it was made or updated in place, in seconds, if the node was lost before that.
    pub made_not_ready: Option<i64>,
    /// Since when its condition Ready is not True, if it has one.
    pub unready_since: Option<Timestamp>,
    /// kubelet has said nothing about it yet.
    pub is_untouched: bool,
}

impl Pod {
    /// From what the stores keep. None: nobody knows for which node it is meant.
    pub fn of(view: &PodView, spec: &Spec, newest: Newest<'_>, now: Now) -> Option<Self> {
        let is_bound = !view.node_name.is_empty();
        let node = view.node_meant();
        let label = |key: &str| view.labels.get(key);
        let hash = label(labels::CONTROLLER_REVISION_HASH).unwrap_or_default();
        let is_same = |other: &str| !hash.is_empty() && revision::is_same(hash, other);
        let ready = view.condition("Ready");
        (!node.is_empty()).then(|| Self {
            name: view.name().to_owned(),
            node: node.to_owned(),
            is_bound,
            created: view.created,
            labels: view.labels.clone(),
            finalizers: view.rare().finalizers.iter().map(|name| name.as_str().to_owned()).collect(),
            hash: hash.to_owned(),
            is_new: is_same(newest.hash) || newest.same.iter().any(|same| is_same(same)),
            state: state_of(view),
            is_finished: view.is_finished(),
            is_terminating: view.is_deleting(),
            until_available: until_available(view, spec.min_ready_seconds, now),
            is_ready: view.phase == "Running" && view.condition_is_true("Ready"),
            is_evicted: is_evicted(view),
            is_specified: label(labels::SPECIFIED_DELETE).is_some(),
            has_gate: view.has_readiness_gate(labels::CONDITION_INPLACE_UPDATE_READY),
            pending: pending(view),
            unreadable: unreadable(view),
            updated_at: view.updated_in_place(),
            made_not_ready: label(labels::NODE_NOT_READY_SINCE).and_then(|seconds| seconds.parse().ok()),
            unready_since: ready.filter(|ready| ready.status != "True").and(view.ready_since),
            is_untouched: is_bound && ready.is_none() && !view.is_finished(),
        })
    }

    /// Whether it is there to stay, as far as can be seen.
    pub fn is_live(&self) -> bool {
        !self.is_terminating && !self.is_finished
    }

    /// Whether another Pod is to take its place.
    pub fn is_old(&self) -> bool {
        !self.is_new || self.is_specified
    }

    /// Whether it counts as available.
    pub fn is_available(&self) -> bool {
        available::is_available(&self.state, self.is_live(), self.until_available)
    }

    /// Whether it is Ready and in service, for however short a time.
    pub fn is_serving(&self) -> bool {
        available::is_serving(&self.state, self.is_live(), self.until_available)
    }

    /// When it was made, or its last update in place began, in seconds.
    pub fn begun(&self) -> Option<i64> {
        [self.created, self.updated_at].into_iter().flatten().max().map(Timestamp::as_second)
    }

    /// Whether it was there then, in seconds, and has not been updated in place since.
    pub fn was_there(&self, then: i64) -> bool {
        self.begun().is_none_or(|begun| begun <= then)
    }

    /// The same of one to which nothing has been announced either: nobody knows when that was.
    pub fn is_unchanged_since(&self, then: i64) -> bool {
        self.was_there(then) && !self.is_announced()
    }

    /// Whether it was made or updated in place in the outage of its node that is known to last since then, in seconds, and the
    /// node was lost before that. The outage may have begun before. A Pod that kubelet has not touched proves that the node was
    /// not back in between.
    pub fn was_made_in_outage(&self, since: i64) -> bool {
        self.made_not_ready.is_some_and(|then| then >= since || self.is_untouched)
    }

    /// Whether its replacement or update has been announced to a hook.
    pub fn is_announced(&self) -> bool {
        matches!(self.state, State::PreparingDelete | State::PreparingUpdate)
    }
}

impl Hooked for Pod {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }
    fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

/// Whether somebody has evicted a Pod, as `kubectl drain` does.
pub fn is_evicted(view: &PodView) -> bool {
    view.condition(DISRUPTION_TARGET).is_some_and(|c| c.status == "True" && c.reason == EVICTED)
}

/// In the order in which one of several is kept: those that stay, bound ones, the oldest.
pub fn sort(pods: &mut [Arc<Pod>]) {
    pods.sort_by(|a, b| {
        let key = |pod: &Pod| (!pod.is_live(), !pod.is_bound, pod.created);
        (key(a), &a.name).cmp(&(key(b), &b.name))
    });
}
