//! Pods, claims and specs for tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::super::{
    claim_template::ClaimTemplate,
    numbering::{Ordinals, Reserved},
    pass::plan,
    plan::{Action, Creation, Observed, Plan},
    pod::Pod,
    spec::{Retention, Rolling, Spec, Update},
};
use crate::{
    api::apps::strategies::PodUpdatePolicy,
    domain::{
        pod::{inplace::Allowed, lifecycle::State, order::Phase},
        workload::{overrides::Applied, pod_order::Priority, revisions::KnownRevision, rollout},
    },
    k8s::{
        claim::SizedClaim,
        int_or_percent::{IntOrPercent, Round},
        pod::Labels,
        quantity, revision,
        selector::Selector,
        time::Now,
    },
};

pub(crate) const OLD: &str = "web-old";
pub(crate) const NEW: &str = "web-new";

/// An available Pod on the update revision.
pub(crate) fn pod(ordinal: i32) -> Pod {
    Pod {
        name: format!("web-{ordinal}"),
        uid: format!("uid-{ordinal}"),
        ordinal,
        labels: Labels::default(),
        finalizers: Vec::new(),
        node: "n1".into(),
        created: Some(Timestamp::UNIX_EPOCH),
        revision: NEW.into(),
        state: State::Normal,
        phase: Some(Phase::Running),
        is_finished: false,
        is_terminating: false,
        until_available: Some(Duration::ZERO),
        is_ready: true,
        down_for: Duration::ZERO,
        is_specified: false,
        has_gate: true,
        pending: None,
        unreadable: None,
        wrong_labels: Vec::new(),
        lacks_claim: None,
        applied: Applied::default(),
        has_other_override: false,
    }
}
pub(crate) fn old(ordinal: i32) -> Pod {
    Pod { revision: OLD.into(), ..pod(ordinal) }
}
pub(crate) fn not_ready(pod: Pod) -> Pod {
    Pod { is_ready: false, until_available: None, ..pod }
}
pub(crate) fn unready(ordinal: i32) -> Pod {
    not_ready(pod(ordinal))
}
pub(crate) fn fresh(pod: Pod, seconds: u64) -> Pod {
    Pod { until_available: Some(Duration::from_secs(seconds)), ..pod }
}
pub(crate) fn pending(pod: Pod) -> Pod {
    Pod { phase: Some(Phase::Pending), ..not_ready(pod) }
}
pub(crate) fn failed(pod: Pod) -> Pod {
    Pod { is_finished: true, ..not_ready(pod) }
}
pub(crate) fn terminating(pod: Pod) -> Pod {
    Pod { is_terminating: true, ..pod }
}
pub(crate) fn specified(pod: Pod) -> Pod {
    Pod { is_specified: true, ..pod }
}
pub(crate) fn labelled(pod: Pod, labels: Value) -> Pod {
    Pod { labels: serde_json::from_value(labels).unwrap(), ..pod }
}
pub(crate) fn shared(pods: &[Pod]) -> Vec<Arc<Pod>> {
    let mut pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
    super::super::pod::sort(&mut pods);
    pods
}

pub(crate) fn claim(name: &str, requested: &str, capacity: &str) -> SizedClaim {
    let mut claim = SizedClaim {
        storage_class: Some("fast".into()),
        access_modes: vec!["ReadWriteOnce".into()],
        requested: quantity::parse(requested),
        capacity: quantity::parse(capacity),
        ..SizedClaim::default()
    };
    claim.metadata.name = Some(name.into());
    claim
}
pub(crate) fn claims(all: &[SizedClaim]) -> BTreeMap<String, Arc<SizedClaim>> {
    all.iter().map(|claim| (claim.name().to_owned(), Arc::new(claim.clone()))).collect()
}

/// A set `web`: Parallel unless it is `ordered`.
pub(crate) fn spec(fields: Value) -> Spec {
    let number =
        |key: &str, default: i32| fields[key].as_i64().map_or(default, |number| i32::try_from(number).unwrap());
    let replicas = number("replicas", 3);
    let reserve = fields.get("reserve").cloned().unwrap_or_else(|| json!([]));
    let reserved = Reserved::parse(&serde_json::from_value::<Vec<IntOrString>>(reserve).unwrap()).unwrap();
    let limit = |value: &Value| IntOrPercent::parse(value).unwrap().resolve(replicas, Round::Down).max(1);
    let unordered = fields.get("order").map(|order| match order {
        Value::Array(keys) => Priority::Order(keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect()),
        Value::Object(weights) => Priority::Weight(
            weights.iter().map(|(text, weight)| (weight.as_i64().unwrap(), Selector::parse(text).unwrap())).collect(),
        ),
        _ => Priority::None,
    });
    let partition = IntOrPercent::Int(number("partition", 0));
    let rolling = Rolling {
        partition: rollout::kept_old(partition, replicas),
        has_partition: rollout::keeps_old(partition),
        max_unavailable: fields.get("maxUnavailable").map_or(1, limit),
        policy: PodUpdatePolicy::parse(fields["policy"].as_str().unwrap_or_default()).unwrap(),
        paused: fields["paused"] == true,
        unordered,
        grace_seconds: i64::from(number("grace", 0)),
    };
    Spec {
        name: "web".into(),
        uid: "set".into(),
        replicas,
        start: number("start", 0),
        ordinals: Ordinals::new(replicas, number("start", 0), &reserved),
        reserved,
        is_ordered: fields["ordered"] == true,
        scale_max_unavailable: fields.get("scaleMaxUnavailable").map(limit),
        update: if fields["onDelete"] == true { Update::OnDelete } else { Update::Rolling(rolling) },
        min_ready_seconds: number("minReadySeconds", 0),
        lifecycle: serde_json::from_value(fields.get("lifecycle").cloned().unwrap_or_else(|| json!({}))).unwrap(),
        has_lifecycle: fields.get("lifecycle").is_some(),
        claims: fields["claims"].as_array().into_iter().flatten().map(ClaimTemplate::of).collect(),
        grows_claims: fields["growsClaims"] == true,
        retention: fields.get("retention").map(|retention| Retention {
            delete_with_set: retention["whenDeleted"] == "Delete",
            delete_with_pod: retention["whenScaled"] == "Delete",
        }),
        ..Spec::default()
    }
}

pub(crate) fn revisions() -> Vec<KnownRevision> {
    let known = |name: &str, image: &str| KnownRevision {
        name: name.into(),
        data: revision::data(&json!({"spec": {"containers": [{"name": "main", "image": image}]}})),
        ..KnownRevision::default()
    };
    vec![known(OLD, "i:1"), known(NEW, "i:2")]
}

pub(crate) fn at(second: i64) -> Now {
    Now {
        wall: Timestamp::from_second(1_700_000_000 + second).unwrap(),
        mono: Duration::from_secs(1000 + u64::try_from(second).unwrap()),
    }
}

/// Observes the set and plans.
pub(crate) fn planned(spec: &Spec, pods: &[Pod], claims: &BTreeMap<String, Arc<SizedClaim>>) -> Plan {
    planned_after(spec, pods, claims, &[])
}

/// The same when claims were asked to grow so many seconds ago.
pub(crate) fn planned_after(
    spec: &Spec,
    pods: &[Pod],
    claims: &BTreeMap<String, Arc<SizedClaim>>,
    waited: &[(&str, u64)],
) -> Plan {
    let (pods, revisions) = (shared(pods), revisions());
    let classes = BTreeMap::from([("fast".to_owned(), true), ("fixed".to_owned(), false)]);
    plan(&Observed {
        spec,
        pods: &pods,
        claims,
        classes: Ok(&classes),
        update_revision: NEW,
        revisions: &revisions,
        allowed: Some(Allowed::default()),
        waited: &waited.iter().map(|(name, seconds)| ((*name).to_owned(), Duration::from_secs(*seconds))).collect(),
        announced_is_updated: false,
        now: at(0),
    })
}

/// What is done, in words: first what is done in any case, then what is made, then what finds room.
pub(crate) fn texts(mut plan: Plan) -> Vec<String> {
    let mut texts: Vec<String> = plan.actions.iter().map(text).collect();
    texts.extend(plan.creations.iter().map(creation));
    texts.extend(plan.next_wave(usize::MAX).iter().map(|candidate| text(&candidate.action)));
    texts
}

/// What is done about these Pods, in words.
pub(crate) fn of(fields: Value, pods: &[Pod]) -> Vec<String> {
    texts(planned(&spec(fields), pods, &BTreeMap::new()))
}

pub(crate) fn creation(Creation { ordinal, on_update, .. }: &Creation) -> String {
    format!("create {ordinal} {}", if *on_update { "update" } else { "current" })
}

pub(crate) fn text(action: &Action) -> String {
    match action {
        Action::CreateClaims { ordinal, claims } => format!("claims of {ordinal}: {claims:?}"),
        Action::SetClaimOwners { claim, owners } => {
            let owners: Vec<&str> = owners.iter().map(|owner| owner.kind.as_str()).collect();
            format!("own {claim} {owners:?}")
        }
        Action::GrowClaims { claims, .. } => {
            format!("grow {}", claims.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" "))
        }
        Action::MendLabels { pod, labels } => format!("label {pod} {labels:?}"),
        Action::Delete { pod } => format!("delete {pod}"),
        Action::Change { pod, change } => change.text(pod),
    }
}
