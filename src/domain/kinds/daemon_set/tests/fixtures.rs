//! Nodes, Pods and specs for tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::{
    pass::plan,
    plan::{Action, Observed, Outage, Plan, Turn},
    pod::{self, Node, Pod},
    spec::Spec,
};
use crate::{
    domain::{
        node::backoff::Failures,
        pod::{inplace::Allowed, lifecycle::State, placement::Fit},
        workload::{revisions::KnownRevision, turns::Turns},
    },
    k8s::{pod::Labels, revision, time::Now},
};

pub(crate) const OLD: &str = "old";
pub(crate) const NEW: &str = "new";

/// Second 0 of the tests.
pub(crate) fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(crate) fn at(second: i64) -> Now {
    Now { wall: time(second), mono: Duration::from_secs(1000 + u64::try_from(second).unwrap()) }
}

/// A Ready node that is to have a Pod.
pub(crate) fn node(name: &str) -> Node {
    Node {
        name: name.into(),
        fit: Fit { should_run: true, should_continue: true },
        would_run: false,
        is_selected: true,
        zone: String::new(),
        not_ready_since: None,
        saw_outage_begin: false,
        is_silent: false,
        is_joining: false,
        cordoned: None,
    }
}
/// A node that has been not Ready since a second.
pub(crate) fn down(name: &str, second: i64) -> Node {
    Node { not_ready_since: Some(time(second)), ..node(name) }
}
/// One whose kubelet does not report, in a set with limits of its own whose Pods tolerate everything.
pub(crate) fn silent(name: &str, second: i64) -> Node {
    Node { is_silent: true, ..down(name, second) }
}
/// One with the taints that it has then, in a set with limits of its own: it gets no Pod, and counts.
pub(crate) fn repelling(name: &str, second: i64) -> Node {
    Node { fit: Fit { should_run: false, should_continue: true }, would_run: true, ..down(name, second) }
}
/// A node that gets no Pod; one that is there stays.
pub(crate) fn tainted(name: &str) -> Node {
    Node { fit: Fit { should_run: false, should_continue: true }, ..node(name) }
}
/// A node that has none.
pub(crate) fn unfit(name: &str) -> Node {
    Node { fit: Fit::default(), ..node(name) }
}
/// Ready nodes, by name.
pub(crate) fn nodes(names: &[&str]) -> Vec<Node> {
    names.iter().map(|name| node(name)).collect()
}

/// An available Pod on the update revision, `p-NODE`.
pub(crate) fn pod(node: &str) -> Pod {
    Pod {
        name: format!("p-{node}"),
        node: node.into(),
        is_bound: true,
        created: Some(time(0)),
        labels: Labels::default(),
        finalizers: Vec::new(),
        hash: NEW.into(),
        is_new: true,
        state: State::None,
        is_finished: false,
        is_terminating: false,
        until_available: Some(Duration::ZERO),
        is_ready: true,
        is_evicted: false,
        is_specified: false,
        has_gate: true,
        pending: None,
        unreadable: None,
        updated_at: None,
        made_not_ready: None,
        unready_since: None,
        is_untouched: false,
    }
}
/// An available Pod on the old revision, `o-NODE`.
pub(crate) fn old(node: &str) -> Pod {
    Pod { name: format!("o-{node}"), hash: OLD.into(), is_new: false, ..pod(node) }
}
pub(crate) fn unready(pod: Pod) -> Pod {
    Pod { is_ready: false, until_available: None, ..pod }
}
pub(crate) fn fresh(pod: Pod, seconds: u64) -> Pod {
    Pod { until_available: Some(Duration::from_secs(seconds)), ..pod }
}
pub(crate) fn failed(pod: Pod) -> Pod {
    Pod { is_finished: true, ..unready(pod) }
}
pub(crate) fn terminating(pod: Pod) -> Pod {
    Pod { is_terminating: true, ..pod }
}
pub(crate) fn specified(pod: Pod) -> Pod {
    Pod { is_specified: true, ..pod }
}
pub(crate) fn in_state(pod: Pod, state: State) -> Pod {
    Pod { state, ..pod }
}
/// A Pod with the hook of [`hooked`] on it.
pub(crate) fn held(pod: Pod) -> Pod {
    Pod { labels: serde_json::from_value(json!({"hold": "yes"})).unwrap(), ..pod }
}
/// Hooks that hold Pods with the label `hold=yes`.
pub(crate) fn hooked(hooks: &[&str]) -> Value {
    let hook = json!({"labelsHandler": {"hold": "yes"}});
    let hooks: serde_json::Map<String, Value> = hooks.iter().map(|name| ((*name).to_owned(), hook.clone())).collect();
    json!({ "lifecycle": hooks })
}

/// A spec: members are those of `rollingUpdate`, but `lifecycle`, `minReadySeconds`, `burstReplicas`, `partitionedScaling`,
/// `onDelete`, `strict`, `perZone`, `grace`, `toleratesNotReady` and `created`, the second of the set.
pub(crate) fn spec(fields: Value) -> Spec {
    let mut rolling = fields.as_object().unwrap().clone();
    let mut object = json!({"metadata": {"name": "agent", "uid": "set", "annotations": {}}, "spec": {"selector": {},
        "template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}});
    for key in ["lifecycle", "minReadySeconds", "burstReplicas"] {
        if let Some(value) = rolling.remove(key) {
            object["spec"][key] = value;
        }
    }
    if let Some(value) = rolling.remove("partitionedScaling") {
        object["spec"]["scaleStrategy"] = json!({ "partitionedScaling": value });
    }
    if rolling.remove("strict").is_some() {
        object["metadata"]["annotations"]["kruise.rs/strict-max-unavailable"] = "true".into();
    }
    if let Some(limit) = rolling.remove("perZone") {
        object["metadata"]["annotations"]["kruise.rs/max-unavailable-per-topology"] = format!("zone={limit}").into();
    }
    if let Some(seconds) = rolling.remove("grace") {
        object["metadata"]["annotations"]["kruise.rs/in-place-grace-period-seconds"] = seconds.to_string().into();
    }
    if let Some(second) = rolling.remove("created") {
        object["metadata"]["creationTimestamp"] = time(second.as_i64().unwrap()).to_string().into();
    }
    if rolling.remove("toleratesNotReady").is_some() {
        let tolerates = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists"});
        object["spec"]["template"]["spec"]["tolerations"] = json!([tolerates("not-ready"), tolerates("unreachable")]);
    }
    let kind = if rolling.remove("onDelete").is_some() { "OnDelete" } else { "RollingUpdate" };
    object["spec"]["updateStrategy"] = json!({"type": kind, "rollingUpdate": rolling});
    Spec::of(&serde_json::from_value(object).unwrap()).unwrap()
}

pub(crate) fn revisions() -> Vec<KnownRevision> {
    let known = |hash: &str, image: &str, created: i64| KnownRevision {
        name: format!("agent-{hash}"),
        created: Some(time(created)),
        data: revision::data(&json!({"spec": {"containers": [{"name": "main", "image": image}]}})),
        ..KnownRevision::default()
    };
    vec![known(OLD, "i:1", -1000), known(NEW, "i:2", -10)]
}

/// What a test changes of what is observed.
#[derive(Default)]
pub(crate) struct Besides {
    pub(crate) failures: Failures,
    pub(crate) outages: BTreeMap<String, Outage>,
    pub(crate) turns: Turns<Turn>,
    pub(crate) now: i64,
}

pub(crate) fn sorted(pods: &[Pod]) -> Vec<Arc<Pod>> {
    let mut pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
    pod::sort(&mut pods);
    pods
}

/// Observes the set and does something with that.
pub(crate) fn observing<R>(
    spec: &Spec,
    nodes: &[Node],
    pods: &[Pod],
    besides: &Besides,
    f: impl FnOnce(&Observed<'_>) -> R,
) -> R {
    let (pods, revisions) = (sorted(pods), revisions());
    f(&Observed {
        spec,
        nodes,
        pods: &pods,
        update: NEW,
        update_since: Some(time(-10)),
        revisions: &revisions,
        allowed: Some(Allowed::default()),
        failures: &besides.failures,
        outages: &besides.outages,
        turns: &besides.turns,
        now: at(besides.now),
    })
}

pub(crate) fn planned(spec: &Spec, nodes: &[Node], pods: &[Pod]) -> Plan {
    observing(spec, nodes, pods, &Besides::default(), plan)
}

/// What is done, in words: first what is done in any case, then what finds room.
pub(crate) fn texts(mut plan: Plan) -> Vec<String> {
    let mut texts: Vec<String> = plan.actions.iter().map(text).collect();
    texts.extend(plan.next_wave(usize::MAX).iter().map(|candidate| text(&candidate.action)));
    texts
}

/// What is done about these nodes and Pods, in words.
pub(crate) fn of(fields: Value, nodes: &[Node], pods: &[Pod]) -> Vec<String> {
    texts(planned(&spec(fields), nodes, pods))
}

pub(crate) fn text(action: &Action) -> String {
    match action {
        Action::Create { node, .. } => format!("create {node}"),
        Action::Relabel { pod } => format!("relabel {pod}"),
        Action::Delete { pod, .. } => format!("delete {pod}"),
        Action::Change { pod, change } => change.text(pod),
    }
}
