//! The edge cases and shortfalls of the specification that the plan is about, each under its number.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use self::fixtures::*;
use super::{pass::plan, plan::*, pod::Pod};
use crate::{
    domain::{
        budgets::unavailable::Operation,
        pod::{inplace::UpdateSpec, lifecycle::State},
        workload::{steps::PodAction, update_order::UpdateOrder},
    },
    k8s::claim::SizedClaim,
};

pub(crate) mod fixtures;
mod simulation;

const NOTHING: [&str; 0] = [];

fn wait_of(fields: serde_json::Value, pods: &[Pod]) -> String {
    planned(&spec(fields), pods, &BTreeMap::new()).wait.map_or_else(String::new, |wait| wait.message)
}

#[test]
fn parallel_makes_and_deletes_all_at_once_and_ordered_ready_one_by_one() {
    assert_eq!(of(json!({"replicas": 3}), &[]), ["create 0 update", "create 1 update", "create 2 update"]);
    let ordered = |replicas: i32| json!({"replicas": replicas, "ordered": true});
    assert_eq!(of(ordered(3), &[]), ["create 0 update"]);
    assert_eq!(of(ordered(3), &[pod(0)]), ["create 1 update"]);
    assert_eq!(of(ordered(3), &[pod(0), unready(1)]), NOTHING);
    assert_eq!(of(ordered(3), &[pod(0), pod(1), pod(2)]), NOTHING);
    let five = [pod(0), pod(1), pod(2), pod(3), pod(4)];
    assert_eq!(of(json!({"replicas": 2}), &five), ["delete web-4", "delete web-3", "delete web-2"]);
    assert_eq!(of(ordered(2), &five), ["delete web-4"]);
    assert_eq!(of(ordered(2), &[pod(0), pod(1), pod(2), terminating(pod(3))]), NOTHING);
    assert_eq!(of(json!({"replicas": 2}), &[pod(0), pod(1), pod(2), terminating(pod(3))]), ["delete web-2"]);
    assert_eq!(of(ordered(2), &[unready(0), pod(1), pod(2)]), NOTHING, "the Pods that stay come first");
}

#[test]
fn edge_03_an_ordered_scale_down_stops_while_several_surplus_pods_are_not_available() {
    let fields = |replicas: i32| json!({"replicas": replicas, "ordered": true, "minReadySeconds": 30});
    let to_one = |pods: &[Pod]| of(fields(1), pods);
    assert_eq!(to_one(&[pod(0), unready(1), unready(2)]), NOTHING);
    assert_eq!(of(fields(0), &[unready(0), unready(1), unready(2)]), NOTHING);
    let waits = wait_of(fields(1), &[pod(0), unready(1), unready(2)]);
    assert_eq!(
        waits,
        "Pod web-2 is surplus and is deleted when it is available or has not been Ready for 5 minutes: Pod web-1 is not available either"
    );
    assert_eq!(to_one(&[pod(0), unready(1), pod(2)]), ["delete web-2"], "it is available");
    assert_eq!(to_one(&[pod(0), pod(1), unready(2)]), ["delete web-2"], "the last one that is not");
    let plan = planned(&spec(fields(1)), &[pod(0), unready(1), fresh(pod(2), 7)], &BTreeMap::new());
    assert_eq!((plan.look, texts(plan)), (Some(Duration::from_secs(7)), vec![]), "it looks again by itself");
    let plan = planned(&spec(fields(1)), &[pod(0), fresh(pod(1), 5), unready(2)], &BTreeMap::new());
    assert_eq!((plan.look, texts(plan)), (Some(Duration::from_secs(5)), vec![]), "by then it may be the only one");
    // The ways out: what a new template cannot cure, what has ended or ends, and what a user has marked.
    for other in [not_ready(old(2)), failed(pod(2)), specified(unready(2))] {
        assert_eq!(to_one(&[pod(0), unready(1), other]), ["delete web-2"]);
    }
    assert_eq!(to_one(&[pod(0), terminating(unready(1)), unready(2)]), ["delete web-2"]);
    assert_eq!(of(json!({"replicas": 1}), &[pod(0), unready(1), unready(2)]).len(), 2, "Parallel goes on");
    let announced = Pod { state: State::PreparingDelete, ..unready(2) };
    assert_eq!(to_one(&[pod(0), unready(1), announced]), ["delete web-2"], "its hook has let go");
}

#[test]
fn an_ordered_scale_down_goes_on_one_by_one_when_surplus_pods_have_been_down_for_five_minutes() {
    let down = |ordinal: i32, seconds: u64| Pod { down_for: Duration::from_secs(seconds), ..unready(ordinal) };
    let to_none = |pods: &[Pod]| planned(&spec(json!({"replicas": 0, "ordered": true})), pods, &BTreeMap::new());
    let plan = to_none(&[down(0, 290), down(1, 400), down(2, 290)]);
    assert_eq!((plan.look, texts(plan)), (Some(Duration::from_secs(10)), vec![]), "it looks again by itself");
    let pods = [down(0, 300), down(1, 300), down(2, 300)];
    assert_eq!(texts(to_none(&pods)), ["delete web-2"]);
    let ends = [down(0, 300), down(1, 300), terminating(down(2, 300))];
    assert_eq!(texts(to_none(&ends)), NOTHING, "one at a time");
    assert_eq!(texts(to_none(&pods[..2])), ["delete web-1"]);
    assert_eq!(texts(to_none(&pods[..1])), ["delete web-0"]);
    let kept = planned(&spec(json!({"replicas": 1, "ordered": true})), &pods, &BTreeMap::new());
    assert_eq!(texts(kept), NOTHING, "the Pods that stay come first");
}

#[test]
fn with_ordered_ready_a_surplus_pod_that_is_not_gone_holds_updates_of_healthy_pods_and_of_no_broken_one() {
    let ordered = json!({"replicas": 2, "ordered": true});
    assert_eq!(of(ordered.clone(), &[old(0), old(1), terminating(pod(2))]), NOTHING);
    assert_eq!(of(ordered.clone(), &[old(0), not_ready(old(1)), terminating(pod(2))]), ["delete web-1"]);
    assert_eq!(of(ordered, &[old(0), old(1)]), ["delete web-1"]);
    assert_eq!(
        of(json!({"replicas": 2}), &[old(0), old(1), terminating(pod(2))]),
        ["delete web-1"],
        "Parallel goes on"
    );
}

#[test]
fn edge_01_one_pass_never_makes_more_pods_unavailable_than_allowed() {
    let pods: Vec<Pod> = (0..10).map(old).collect();
    assert_eq!(
        of(json!({"replicas": 10, "maxUnavailable": 3}), &pods),
        ["delete web-9", "delete web-8", "delete web-7"]
    );
    assert_eq!(
        of(json!({"replicas": 10, "maxUnavailable": "25%"}), &pods),
        ["delete web-9", "delete web-8"],
        "rounded down"
    );
    assert_eq!(of(json!({"replicas": 10, "maxUnavailable": "5%"}), &pods), ["delete web-9"], "at least one");
    let both: Vec<Pod> =
        pods.iter().cloned().enumerate().map(|(i, pod)| if i == 0 { specified(pod) } else { pod }).collect();
    assert_eq!(
        of(json!({"replicas": 10, "maxUnavailable": 2}), &both),
        ["delete web-0", "delete web-9"],
        "of all causes together"
    );
}

#[test]
fn edge_02_unavailable_pods_anywhere_count_and_an_unavailable_outdated_one_is_updated_all_the_same() {
    let outside = json!({"partition": 2, "maxUnavailable": 1});
    assert_eq!(of(outside.clone(), &[not_ready(old(0)), old(1), old(2)]), NOTHING, "0 is not to be updated, and down");
    assert_eq!(of(outside, &[not_ready(old(0)), old(1), not_ready(old(2))]), ["delete web-2"]);
    assert_eq!(of(json!({}), &[old(0), not_ready(old(1)), not_ready(old(2))]), ["delete web-2", "delete web-1"]);
}

#[test]
fn edge_03_availability_and_not_readiness_gates_ordered_steps_and_updates() {
    let fields = |replicas: i32| json!({"replicas": replicas, "ordered": true, "minReadySeconds": 30});
    assert_eq!(of(fields(2), &[fresh(pod(0), 7)]), NOTHING);
    assert_eq!(of(fields(1), &[fresh(pod(0), 7), pod(1)]), NOTHING);
    assert_eq!(of(fields(2), &[old(0), fresh(pod(1), 7)]), NOTHING);
    let plan = planned(&spec(fields(2)), &[fresh(pod(0), 7)], &BTreeMap::new());
    assert_eq!(plan.look, Some(Duration::from_secs(7)));
    let serving = [fresh(old(0), 7), fresh(old(1), 7), fresh(old(2), 7)];
    assert_eq!(
        of(json!({"minReadySeconds": 30}), &serving),
        ["delete web-2"],
        "those that serve do not go all at once"
    );
}

#[test]
fn shortfall_10_1_16_a_scale_down_that_waits_for_time_looks_again_by_itself() {
    let fields = json!({"replicas": 1, "ordered": true, "minReadySeconds": 30});
    let plan = planned(&spec(fields), &[fresh(pod(0), 12), pod(1)], &BTreeMap::new());
    assert_eq!((plan.actions.len(), plan.look), (0, Some(Duration::from_secs(12))));
    assert_eq!(plan.wait.unwrap().message, "Pod web-0 is Ready and counts as available in 13 s");
}

#[test]
fn edge_04_the_partition_counts_pods_whatever_their_ordinals() {
    let fields = |partition: i32| json!({"reserve": [1], "partition": partition, "maxUnavailable": 3, "start": 0});
    let three = [old(0), old(2), old(3)];
    assert_eq!(of(fields(2), &three), ["delete web-3"]);
    assert_eq!(of(fields(0), &three), ["delete web-3", "delete web-2", "delete web-0"]);
    assert_eq!(of(fields(2), &[old(0), pod(3)]), ["create 2 current"]);
    assert_eq!(of(fields(2), &[old(0), old(2)]), ["create 3 update"]);
    let started = json!({"start": 5, "partition": 2, "maxUnavailable": 3});
    assert_eq!(of(started.clone(), &[old(5), old(6), old(7)]), ["delete web-7"]);
    assert_eq!(of(started, &[]), ["create 5 current", "create 6 current", "create 7 update"]);
    let unordered = json!({"partition": 2, "maxUnavailable": 3, "order": []});
    assert_eq!(of(unordered.clone(), &[old(1), old(2)]), ["create 0 update"], "two old ones are there already");
    assert_eq!(of(unordered, &[pod(1), pod(2)]), ["create 0 current"]);
}

#[test]
fn edge_05_a_partition_of_all_pods_updates_none() {
    for partition in [3, 5, i32::MAX] {
        for order in [json!(null), json!([])] {
            let mut fields = json!({"partition": partition, "maxUnavailable": 3});
            if !order.is_null() {
                fields["order"] = order;
            }
            assert_eq!(of(fields.clone(), &[old(0), not_ready(old(1)), old(2)]), NOTHING, "{fields}");
            assert!(planned(&spec(fields), &[old(0), old(1), old(2)], &BTreeMap::new()).is_held);
        }
    }
}

#[test]
fn edge_06_a_reservation_that_is_taken_away_recreates_that_ordinal_and_removes_the_highest() {
    assert_eq!(of(json!({"reserve": [1]}), &[pod(0), pod(1), pod(2)]), ["delete web-1", "create 3 update"]);
    assert_eq!(of(json!({}), &[pod(0), pod(2), pod(3)]), ["delete web-3", "create 1 update"]);
    let ordered = json!({"reserve": [1], "ordered": true});
    assert_eq!(of(ordered.clone(), &[pod(0), pod(1), pod(2)]), ["create 3 update"]);
    assert_eq!(of(ordered.clone(), &[pod(0), pod(1), pod(2), unready(3)]), NOTHING);
    assert_eq!(of(ordered, &[pod(0), pod(1), pod(2), pod(3)]), ["delete web-1"]);
}

fn with_claims(mut fields: serde_json::Value) -> serde_json::Value {
    fields["claims"] = json!([{"metadata": {"name": "data"}, "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}}}}]);
    fields
}
fn owned(mut claim: SizedClaim, kind: &str, name: &str, uid: &str) -> SizedClaim {
    let api_version = if kind == "Pod" { "v1" } else { "apps.kruise.io/v1beta1" };
    let owner = OwnerReference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        ..OwnerReference::default()
    };
    claim.metadata.owner_references.get_or_insert_default().push(owner);
    claim
}
fn data(ordinal: i32) -> SizedClaim {
    claim(&format!("data-web-{ordinal}"), "10Gi", "10Gi")
}
fn with(fields: serde_json::Value, pods: &[Pod], claims_there: &[SizedClaim]) -> Vec<String> {
    texts(planned(&spec(with_claims(fields)), pods, &claims(claims_there)))
}

#[test]
fn edge_07_a_pod_above_replicas_that_is_wanted_keeps_its_claim() {
    let fields = json!({"replicas": 2, "reserve": [0, 1], "retention": {"whenScaled": "Delete"}});
    let there = [data(0), data(2), data(3)];
    assert_eq!(with(fields.clone(), &[pod(0), pod(2), pod(3)], &there), [r#"own data-web-0 ["Pod"]"#]);
    let mut owned_there = there.clone();
    owned_there[0] = owned(data(0), "Pod", "web-0", "uid-0");
    assert_eq!(with(fields, &[pod(0), pod(2), pod(3)], &owned_there), ["delete web-0"], "owned before it is deleted");
}

#[test]
fn claims_are_never_lost_when_a_pod_is_wanted_again() {
    let fields = json!({"replicas": 1, "retention": {"whenScaled": "Delete"}});
    let surplus = owned(data(0), "Pod", "web-0", "uid-0");
    assert_eq!(with(fields.clone(), &[terminating(pod(0))], std::slice::from_ref(&surplus)), ["own data-web-0 []"]);
    // The Pod is gone already: its claim goes too, and nobody is made before.
    let plan = planned(&spec(with_claims(fields)), &[], &claims(std::slice::from_ref(&surplus)));
    assert!(plan.wait.as_ref().unwrap().message.contains("data-web-0"), "{:?}", plan.wait);
    assert_eq!(texts(plan), NOTHING);
    let retained = json!({"replicas": 1, "retention": {}});
    assert_eq!(with(retained, &[], &[surplus]), ["own data-web-0 []"], "the policy has changed meanwhile");
    let mut ending = data(0);
    ending.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0).wall));
    assert_eq!(with(json!({"replicas": 1}), &[], &[ending]), NOTHING);
}

/// A scale-down made it the owner of its claim, and was taken back before it went. The patch that takes the claim from it may
/// be refused: nothing that lets it go is in the same plan.
#[test]
fn a_pod_that_is_wanted_again_goes_when_its_claim_does_not_go_with_it() {
    let delete = json!({"whenScaled": "Delete"});
    let fields = |more: serde_json::Value| {
        let mut fields = json!({"replicas": 1, "retention": delete});
        json_patch::merge(&mut fields, &more);
        fields
    };
    let owned_by_pod = |ordinal: i32| owned(data(ordinal), "Pod", &format!("web-{ordinal}"), &format!("uid-{ordinal}"));
    let claim = owned_by_pod(0);
    let there = std::slice::from_ref(&claim);
    let one = |more: serde_json::Value, pod: &Pod| with(fields(more), std::slice::from_ref(pod), there);
    for goes in [failed(pod(0)), old(0), specified(pod(0))] {
        assert_eq!(one(json!({}), &goes), ["own data-web-0 []"], "{goes:?}");
        let wait = planned(&spec(with_claims(fields(json!({})))), &[goes], &claims(there)).wait.unwrap();
        assert_eq!(wait.message, "Pod web-0 is replaced when it does not own its claim data-web-0 any more");
    }
    assert_eq!(one(json!({}), &not_ready(old(0))), ["own data-web-0 []"]);
    let in_place = one(json!({"policy": "InPlaceIfPossible"}), &old(0));
    assert_eq!(in_place, ["own data-web-0 []", "update web-0 main=i:2"], "an update in place takes no claim with it");
    let two = |more: serde_json::Value| with(fields(more), &[old(0), old(1)], &[data(0), owned_by_pod(1)]);
    assert_eq!(two(json!({"replicas": 2})), ["own data-web-1 []", "delete web-0"], "the others go on");
    assert_eq!(two(json!({"replicas": 2, "ordered": true})), ["own data-web-1 []"], "nobody goes before it");
    assert_eq!(one(json!({"retention": null}), &failed(pod(0))), ["own data-web-0 []"], "the gate was switched off");
    assert_eq!(one(json!({"retention": null, "replicas": 0}), &pod(0)), ["delete web-0"]);
    assert_eq!(with(fields(json!({"retention": null})), &[], there), ["own data-web-0 []"]);
    // An owner that is missing costs nothing when the Pod goes.
    let of_set = json!({"replicas": 1, "retention": {"whenDeleted": "Delete"}});
    assert_eq!(with(of_set, &[failed(pod(0))], &[data(0)]), ["own data-web-0 [\"StatefulSet\"]", "delete web-0"]);
}

#[test]
fn a_claim_whose_name_is_none_of_the_sets_keeps_the_owner_that_somebody_has_given_it() {
    let of_set = |name: &str| owned(claim(name, "1Gi", "1Gi"), "StatefulSet", "web", "set");
    let foreign = ["backup", "web-1", "data-web", "data-web-x", "data-other-1", "data-web-1-copy"];
    let mut there: Vec<SizedClaim> = foreign.iter().map(|name| of_set(name)).collect();
    let fields = json!({"replicas": 1, "retention": {}});
    assert_eq!(with(fields.clone(), &[pod(0)], &there), NOTHING);
    there.extend(["data-web-1", "logs-web-1"].map(of_set));
    let released = ["own data-web-1 []", "own logs-web-1 []"];
    assert_eq!(with(fields, &[pod(0)], &there), released, "a template may have been taken away meanwhile");
}

#[test]
fn missing_claims_are_made_with_the_pod_and_for_a_pod_that_is_pending() {
    let fields = json!({"replicas": 1});
    let plan = planned(&spec(with_claims(fields.clone())), &[], &BTreeMap::new());
    assert_eq!(plan.creations, [Creation { ordinal: 0, on_update: true, claims: vec![0] }]);
    assert_eq!(with(fields.clone(), &[pending(pod(0))], &[]), ["claims of 0: [0]"]);
    assert_eq!(with(fields.clone(), &[pod(0)], &[]), NOTHING, "it runs");
    assert_eq!(with(fields, &[pending(pod(0))], &[data(0)]), NOTHING);
}

#[test]
fn edge_09_in_parallel_one_broken_pod_blocks_nobody() {
    for broken in [terminating(pod(0)), pending(pod(0)), unready(0)] {
        assert_eq!(of(json!({}), std::slice::from_ref(&broken)), ["create 1 update", "create 2 update"], "{broken:?}");
        assert_eq!(of(json!({"replicas": 1}), &[broken, pod(1)]), ["delete web-1"]);
    }
    assert_eq!(of(json!({}), &[failed(pod(0))]), ["delete web-0", "create 1 update", "create 2 update"]);
    let all_broken = [not_ready(old(0)), not_ready(old(1))];
    let limited = json!({"scaleMaxUnavailable": 2, "maxUnavailable": 1});
    assert_eq!(
        of(limited, &all_broken),
        ["delete web-1", "delete web-0"],
        "no room for 2, but a new template reaches them"
    );
}

/// Kubernetes said so of Pods on lost nodes once, and whoever writes `pods/status` may say so.
#[test]
fn a_pod_of_phase_unknown_is_down_and_stops_no_other() {
    let unknown = |ordinal: i32, revision: &str| {
        let name = format!("web-{ordinal}");
        let labels = json!({"controller-revision-hash": revision, "statefulset.kubernetes.io/pod-name": name});
        let view = json!({"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Unknown", "conditions": [{"type": "Ready", "status": "False"}]}});
        Pod::of(&serde_json::from_value(view).unwrap(), &spec(json!({})), false, at(0)).unwrap()
    };
    assert_eq!(of(json!({}), &[unknown(0, NEW)]), ["create 1 update", "create 2 update"]);
    assert_eq!(of(json!({"replicas": 1}), &[unknown(0, NEW), pod(1)]), ["delete web-1"]);
    let ordered = || json!({"ordered": true});
    assert_eq!(of(ordered(), &[old(0), old(1), unknown(2, OLD)]), ["delete web-2"], "a corrected template reaches it");
    assert_eq!(of(ordered(), &[unknown(0, OLD), old(1), old(2)]), ["delete web-0"], "healthy ones wait");
    assert_eq!(of(ordered(), &[old(0), old(1), unknown(2, NEW)]), NOTHING);
    for fields in [json!({}), ordered()] {
        assert_eq!(wait_of(fields, &[old(0), old(1), unknown(2, NEW)]), "Pod web-2 is not Ready");
    }
}

#[test]
fn in_parallel_a_pod_that_cannot_end_takes_its_part_of_the_limit_for_updates_and_no_more() {
    let pods = [old(0), old(1), terminating(old(2))];
    let of_limit = |limit: i32, more: serde_json::Value| {
        let mut fields = json!({"maxUnavailable": limit});
        json_patch::merge(&mut fields, &more);
        of(fields, &pods)
    };
    assert_eq!(of_limit(1, json!({})), NOTHING);
    assert_eq!(of_limit(2, json!({})), ["delete web-1"]);
    for limit in [1, 2] {
        assert_eq!(of_limit(limit, json!({"replicas": 5})), ["create 3 update", "create 4 update"]);
    }
    assert_eq!(of(json!({"replicas": 1, "maxUnavailable": 1}), &[terminating(old(0)), pod(1)]), ["delete web-1"]);
    assert_eq!(of(json!({}), &[old(0), not_ready(old(1)), terminating(old(2))]), ["delete web-1"], "what is down goes");
}

#[test]
fn edge_10_a_scale_up_with_a_limit_never_has_more_pods_that_are_not_available() {
    let fields = |replicas: i32| json!({"replicas": replicas, "scaleMaxUnavailable": 2});
    assert_eq!(of(fields(5), &[]), ["create 0 update", "create 1 update"]);
    assert_eq!(of(fields(5), &[pod(0), unready(1)]), ["create 2 update"]);
    assert_eq!(of(fields(5), &[terminating(pod(0)), unready(1)]), NOTHING);
    assert_eq!(of(fields(5), &[pod(0), pod(1), unready(4)]), ["create 2 update"], "wherever they are");
    assert_eq!(of(json!({"replicas": 10, "scaleMaxUnavailable": "25%"}), &[]).len(), 2);
}

#[test]
fn shortfall_10_1_04_a_failed_pod_is_deleted_when_the_limit_is_reached_and_charged_once() {
    let fields = json!({"scaleMaxUnavailable": 1, "maxUnavailable": 1});
    assert_eq!(of(fields.clone(), &[failed(pod(0)), pod(1), pod(2)]), ["delete web-0"]);
    assert_eq!(of(fields, &[pod(1), pod(2)]), ["create 0 update"]);
    let two = json!({"scaleMaxUnavailable": 2});
    assert_eq!(of(two, &[terminating(unready(0)), pod(1)]), ["create 2 update"], "not ready and ending: one");
}

fn hooked(kind: &str, fields: serde_json::Value) -> serde_json::Value {
    let mut fields = fields;
    fields["lifecycle"][kind] = json!({"labelsHandler": {"hold": "true"}});
    fields["policy"] = json!("InPlaceIfPossible");
    fields
}
fn holding(pod: Pod) -> Pod {
    labelled(pod, json!({"hold": "true"}))
}

#[test]
fn edge_12_and_13_hooks_of_updates() {
    let fields = hooked("inPlaceUpdate", json!({"replicas": 1}));
    assert_eq!(of(fields.clone(), &[holding(old(0))]), ["announce update web-0"]);
    let waits = Pod { state: State::PreparingUpdate, ..old(0) };
    assert_eq!(of(fields.clone(), &[holding(waits.clone())]), NOTHING);
    assert_eq!(of(fields.clone(), std::slice::from_ref(&waits)), ["update web-0 main=i:2"]);
    // A roll-back while it waits: its own revision is wanted again, and refreshing moves it on.
    let rolled_back = Pod { state: State::PreparingUpdate, ..pod(0) };
    assert_eq!(of(fields.clone(), &[holding(rolled_back)]), NOTHING);
    let mut held = fields.clone();
    held["partition"] = json!(1);
    assert_eq!(of(held, &[holding(waits.clone())]), ["no update web-0"], "the partition keeps it");
    let mut paused = fields.clone();
    paused["paused"] = json!(true);
    assert_eq!(of(paused, &[holding(waits)]), NOTHING, "paused: as it is");
    let updated = Pod { state: State::Updated, ..old(0) };
    assert_eq!(of(fields.clone(), std::slice::from_ref(&updated)), ["announce update web-0 again"]);
    assert_eq!(of(json!({"replicas": 1, "policy": "InPlaceOnly"}), &[updated]), NOTHING, "it becomes Normal first");
    let updating = Pod { state: State::Updating, ..not_ready(old(0)) };
    assert_eq!(of(fields, &[updating]), ["update web-0 main=i:2"]);
}

#[test]
fn a_pod_that_waits_for_its_hook_takes_part_of_the_room() {
    let fields = hooked("inPlaceUpdate", json!({"maxUnavailable": 1}));
    let pods: Vec<Pod> = (0..3).map(|n| holding(old(n))).collect();
    assert_eq!(of(fields.clone(), &pods), ["announce update web-2"]);
    let waits = Pod { state: State::PreparingUpdate, ..pods[2].clone() };
    assert_eq!(of(fields, &[pods[0].clone(), pods[1].clone(), waits]), NOTHING);
}

/// A hook may wait for another Pod of the set: that one is made although the limit counts what the hook holds.
#[test]
fn a_pod_that_serves_until_its_hook_lets_go_keeps_no_missing_one_from_being_made() {
    let held = |pod: Pod, state: State| Pod { state, ..holding(pod) };
    for (hook, state) in [("inPlaceUpdate", State::PreparingUpdate), ("preDelete", State::PreparingDelete)] {
        for way in [json!({"scaleMaxUnavailable": 1, "maxUnavailable": 1}), json!({"ordered": true})] {
            let mut fields = hooked(hook, way);
            if hook == "preDelete" {
                fields["policy"] = json!("ReCreate");
            }
            let waits = held(old(0), state.clone());
            assert_eq!(of(fields.clone(), &[waits.clone(), pod(2)]), ["create 1 update"], "{fields}");
            for down in [not_ready(waits.clone()), fresh(waits.clone(), 5), terminating(waits)] {
                assert_eq!(of(fields.clone(), &[down.clone(), pod(2)]), NOTHING, "{down:?}");
            }
        }
    }
    let limited = json!({"scaleMaxUnavailable": 1, "maxUnavailable": 1});
    let plan = planned(&spec(limited), &[unready(0), pod(2)], &BTreeMap::new());
    assert_eq!(plan.limited.as_deref(), Some("Pod web-1 is made when Pod web-0 is available"));
    let refused = [not_ready(old(0)), old(1), old(2)];
    let mut plan = planned(&spec(json!({"maxUnavailable": 2})), &refused, &BTreeMap::new());
    assert_eq!(plan.next_wave(1)[0].action, Action::Delete { pod: "web-0".into() }, "what is down goes first");
    let next = plan.next_wave(1).remove(0);
    assert_eq!(next.action, Action::Delete { pod: "web-2".into() });
    plan.room.leave(next.charge);
    assert_eq!(plan.next_wave(1).len(), 1, "what a budget keeps leaves its room to another Pod");
}

#[test]
fn edge_15_a_template_that_changes_during_the_grace_starts_over_and_loses_no_change() {
    let fields = json!({"replicas": 1, "policy": "InPlaceIfPossible", "grace": 30});
    let pending = UpdateSpec {
        revision: OLD.into(),
        container_images: BTreeMap::from([
            ("sidecar".to_owned(), "s:1".to_owned()),
            ("main".to_owned(), "i:1".to_owned()),
        ]),
        grace_seconds: 30,
        ..UpdateSpec::default()
    };
    let in_grace = Pod { state: State::Updating, pending: Some(pending), until_available: None, ..old(0) };
    assert_eq!(of(fields.clone(), std::slice::from_ref(&in_grace)), ["update web-0 main=i:2 sidecar=s:1"]);
    let plan = planned(&spec(fields.clone()), &[in_grace], &BTreeMap::new());
    let Action::Change { change: PodAction::UpdateInPlace { spec: change }, .. } = &plan.candidates[0].action else {
        panic!()
    };
    assert_eq!((change.revision.as_str(), change.grace_seconds), (NEW, 30));
    let own = Pod { pending: Some(UpdateSpec::default()), until_available: None, ..pod(0) };
    assert_eq!(of(fields, &[own]), NOTHING, "its own grace goes on");
}

#[test]
fn edge_17_pods_without_labels_and_on_delete_with_anything_are_no_trouble() {
    let bare = Pod { revision: String::new(), ..pod(0) };
    assert_eq!(
        of(json!({"replicas": 1, "policy": "InPlaceIfPossible"}), std::slice::from_ref(&bare)),
        ["delete web-0"]
    );
    assert_eq!(of(json!({"replicas": 1, "onDelete": true}), &[bare]), NOTHING);
    assert_eq!(of(json!({"onDelete": true}), &[old(0), old(2)]), ["create 1 update"]);
}

#[test]
fn edge_24_labels_of_the_identity_are_mended() {
    let wrong = Pod { wrong_labels: vec![("apps.kubernetes.io/pod-index", "7".to_owned())], ..pod(7) };
    assert_eq!(
        of(json!({"replicas": 1, "start": 7}), &[wrong]),
        [r#"label web-7 [("apps.kubernetes.io/pod-index", "7")]"#]
    );
}

#[test]
fn edge_25_a_roll_back_updates_towards_the_old_revision_again() {
    // What was the old one is the update revision now.
    assert_eq!(of(json!({}), &[pod(0), pod(1), old(2)]), ["delete web-2"]);
}

#[test]
fn edge_26_a_pod_that_has_ended_is_replaced_whether_it_succeeded_or_failed() {
    for ordered in [false, true] {
        let fields = json!({"ordered": ordered});
        assert_eq!(of(fields.clone(), &[pod(0), failed(pod(1)), pod(2)]), ["delete web-1"], "{ordered}");
        assert_eq!(of(fields.clone(), &[pod(0), terminating(failed(pod(1))), pod(2)]), NOTHING, "never by force");
        assert_eq!(of(fields, &[pod(0), pod(2)]), ["create 1 update"]);
    }
    let held = hooked("preDelete", json!({"replicas": 1}));
    assert_eq!(of(held.clone(), &[holding(failed(pod(0)))]), ["announce deletion web-0"]);
    assert_eq!(of(held, &[Pod { state: State::PreparingDelete, ..holding(failed(pod(0))) }]), NOTHING);
}

#[test]
fn edge_27_specified_deletion_keeps_the_limit_and_lets_unavailable_ones_through() {
    let fields = json!({"maxUnavailable": 1});
    assert_eq!(of(fields.clone(), &[specified(pod(0)), specified(pod(1)), specified(pod(2))]), ["delete web-2"]);
    assert_eq!(of(fields.clone(), &[specified(unready(0)), pod(1), specified(pod(2))]), ["delete web-0"]);
    assert_eq!(
        of(fields.clone(), &[pod(0), pod(1), specified(old(2))]),
        ["delete web-2"],
        "deleted, and not updated too"
    );
    assert_eq!(of(fields, &[specified(terminating(pod(0))), pod(1), pod(2)]), NOTHING);
    assert_eq!(
        of(json!({"partition": 3}), &[pod(0), pod(1), specified(old(2))]),
        ["delete web-2"],
        "the partition does not matter"
    );
}

#[test]
fn shortfall_10_1_15_specified_deletion_is_honoured_when_paused_and_with_on_delete() {
    let pods = [old(0), specified(old(1)), old(2)];
    for fields in [json!({"paused": true}), json!({"onDelete": true}), json!({"ordered": true, "paused": true})] {
        assert_eq!(of(fields.clone(), &pods), ["delete web-1"], "{fields}");
    }
}

#[test]
fn shortfall_10_1_05_with_ordered_ready_a_corrected_template_reaches_broken_pods() {
    let fields = json!({"ordered": true});
    assert_eq!(of(fields.clone(), &[old(0), old(1), not_ready(old(2))]), ["delete web-2"]);
    assert_eq!(of(fields.clone(), &[not_ready(old(0)), old(1), old(2)]), ["delete web-0"], "healthy ones wait");
    assert_eq!(of(fields.clone(), &[old(0), old(1), unready(2)]), NOTHING, "the new one is broken: nobody follows it");
    assert_eq!(of(fields.clone(), &[old(0), terminating(old(1)), not_ready(old(2))]), ["delete web-2"]);
    assert_eq!(of(fields, &[old(0), terminating(old(1)), old(2)]), NOTHING);
    assert!(
        wait_of(json!({"ordered": true}), &[old(0), terminating(old(1)), old(2)])
            .contains("Pod web-1 is being deleted")
    );
}

#[test]
fn in_strict_order_a_pod_that_is_not_available_yet_waits_for_its_turn() {
    let fields = || json!({"ordered": true, "minReadySeconds": 30});
    let to = |pods: &[Pod]| of(fields(), pods);
    assert_eq!(to(&[old(0), fresh(old(1), 7), old(2)]), NOTHING);
    assert_eq!(to(&[fresh(old(0), 7), old(1), pod(2)]), NOTHING);
    assert_eq!(to(&[old(0), old(1), fresh(old(2), 7)]), ["delete web-2"], "it is its turn");
    assert_eq!(to(&[not_ready(old(0)), fresh(old(1), 7), old(2)]), ["delete web-0"], "it is down");
    let waits = planned(&spec(fields()), &[old(0), fresh(old(1), 7), old(2)], &BTreeMap::new());
    assert_eq!(waits.look, Some(Duration::from_secs(7)));
    assert_eq!(waits.wait.unwrap().message, "Pod web-1 is Ready and counts as available in 8 s");
    let mut parallel = fields();
    parallel["ordered"] = json!(false);
    assert_eq!(of(parallel, &[old(0), fresh(old(1), 7), old(2)]), ["delete web-1"], "Parallel promises no order");
    // Pods that are to be deleted have no order, and keep no turn from others.
    assert_eq!(to(&[old(0), specified(fresh(old(1), 7)), specified(old(2))]), ["delete web-1"]);
    assert_eq!(to(&[specified(old(0)), old(1), fresh(old(2), 7)]), ["delete web-2"]);
    let leader = labelled(old(2), json!({"role": "leader"}));
    let mut spec = spec(fields());
    spec.update_order = UpdateOrder::parse("role=leader").unwrap();
    let texts = |pods: &[Pod]| texts(planned(&spec, pods, &BTreeMap::new()));
    assert_eq!(texts(&[fresh(old(0), 7), old(1), leader.clone()]), NOTHING);
    assert_eq!(texts(&[old(0), fresh(old(1), 7), leader]), ["delete web-1"], "by the annotation it is its turn");
}

#[test]
fn in_strict_order_a_marked_pod_that_a_budget_keeps_leaves_its_room_to_others() {
    let pods = [specified(old(0)), old(1), old(2)];
    let mut plan = planned(&spec(json!({"ordered": true})), &pods, &BTreeMap::new());
    let kept = plan.next_wave(9).remove(0);
    assert_eq!((text(&kept.action), kept.has_turn), ("delete web-0".to_owned(), false));
    plan.room.leave(kept.charge);
    let next: Vec<String> = plan.next_wave(9).iter().map(|next| text(&next.action)).collect();
    assert_eq!(next, ["delete web-2"]);
}

/// No deadlock: an update goes on, or it waits for time, or for a Pod that is down although it is updated.
#[test]
fn in_strict_order_an_update_goes_on_or_waits_for_time_or_for_a_broken_new_pod() {
    let spec = spec(json!({"ordered": true, "minReadySeconds": 30}));
    let kinds: [fn(i32) -> Pod; 6] =
        [pod, old, unready, |n| not_ready(old(n)), |n| fresh(pod(n), 7), |n| fresh(old(n), 7)];
    let all = || kinds.iter();
    for ((a, b), c) in all().flat_map(|a| all().map(move |b| (a, b))).flat_map(|ab| all().map(move |c| (ab, c))) {
        let pods = [a(0), b(1), c(2)];
        let (is_old, is_down) = (|pod: &&Pod| pod.revision == OLD, |pod: &&Pod| pod.until_available.is_none());
        let plan = planned(&spec, &pods, &BTreeMap::new());
        let look = plan.look;
        let texts = texts(plan);
        let goes = |pod: &&Pod| texts.contains(&format!("delete {}", pod.name));
        assert!(pods.iter().filter(is_old).filter(is_down).all(|pod| goes(&pod)), "{texts:?}: {pods:?}");
        let is_broken = pods.iter().filter(is_down).any(|pod| !is_old(&pod));
        let is_stuck = texts.is_empty() && look.is_none() && !is_broken;
        assert!(!is_stuck || !pods.iter().any(|pod| is_old(&pod)), "{pods:?}");
        let mut serving = pods.iter().rev().filter(|pod| is_old(pod) && !is_down(pod)).skip_while(goes);
        assert!(!serving.any(|pod| goes(&pod)), "{texts:?}: {pods:?}");
    }
}

#[test]
fn shortfall_10_1_06_a_new_claim_template_makes_pods_outdated() {
    let lacks = |pod: Pod| Pod { lacks_claim: Some("logs".into()), ..pod };
    let pods = [lacks(pod(0)), lacks(pod(1)), lacks(pod(2))];
    // Whatever `volumeClaimUpdateStrategy` and its gate say: that is about the size of claims that are there.
    for grows in [false, true] {
        let of_all = |more: serde_json::Value| {
            let mut fields = json!({"growsClaims": grows});
            json_patch::merge(&mut fields, &more);
            of(fields, &pods)
        };
        assert_eq!(of_all(json!({"policy": "InPlaceIfPossible"})), ["delete web-2"], "one at a time");
        assert_eq!(of_all(json!({"policy": "ReCreate", "maxUnavailable": 2})), ["delete web-2", "delete web-1"]);
        for held in [json!({"partition": 3}), json!({"paused": true}), json!({"onDelete": true})] {
            assert_eq!(of_all(held.clone()), NOTHING, "{held}");
        }
    }
    let only = planned(&spec(json!({"policy": "InPlaceOnly"})), &pods, &BTreeMap::new());
    assert!(only.impossible.as_ref().unwrap().message.contains("claim template logs"), "{:?}", only.impossible);
    assert_eq!(texts(only), NOTHING);
}

#[test]
fn shortfall_10_1_12_a_claim_that_waits_for_a_mount_has_its_pod_restarted_within_the_limit() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let waits = |ordinal: i32, since: i64| {
        let since = Some(jiff::Timestamp::from_second(1_700_000_000 - since).unwrap());
        SizedClaim {
            requested: crate::k8s::quantity::parse("10Gi"),
            capacity: crate::k8s::quantity::parse("5Gi"),
            resize_pending_since: since,
            ..data(ordinal)
        }
    };
    let pods = [pod(0), pod(1), pod(2)];
    assert_eq!(with(fields.clone(), &pods, &[waits(0, 500), waits(1, 500), data(2)]), ["delete web-1"]);
    assert_eq!(with(fields.clone(), &[pod(0), pod(1), unready(2)], &[waits(0, 500), data(1), data(2)]), NOTHING);
    let soon = planned(&spec(with_claims(fields)), &pods, &claims(&[waits(0, 20), data(1), data(2)]));
    assert_eq!((soon.look, soon.candidates.len()), (Some(Duration::from_secs(100)), 0));
    assert!(soon.wait.unwrap().message.contains("claim data-web-0 of Pod web-0"));
}

/// Its volume is mounted when it starts: another Pod in its place would never come up.
#[test]
fn a_pod_that_was_made_since_is_not_replaced_for_a_mount() {
    let fields = json!({"growsClaims": true, "replicas": 1});
    let asked = at(0).wall - jiff::SignedDuration::from_secs(500);
    let waits = SizedClaim { resize_pending_since: Some(asked), ..sized(0, "10Gi", "5Gi") };
    for made in [asked, at(0).wall] {
        for new in [pod(0), unready(0), pending(pod(0))] {
            let new = Pod { created: Some(made), ..new };
            assert_eq!(with(fields.clone(), std::slice::from_ref(&new), std::slice::from_ref(&waits)), NOTHING);
            let plan = planned(&spec(with_claims(fields.clone())), &[new], &claims(std::slice::from_ref(&waits)));
            assert!(plan.wait.is_some());
        }
    }
    let before = Pod { created: Some(asked - jiff::SignedDuration::from_secs(1)), ..pod(0) };
    assert_eq!(with(fields, &[before], &[waits]), ["delete web-0"]);
}

#[test]
fn claims_grow_within_the_limit_before_their_pods_are_updated() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let small = |ordinal: i32| SizedClaim {
        requested: crate::k8s::quantity::parse("5Gi"),
        capacity: crate::k8s::quantity::parse("5Gi"),
        ..data(ordinal)
    };
    let grows = |ordinal: i32| SizedClaim { capacity: crate::k8s::quantity::parse("5Gi"), ..data(ordinal) };
    let pods = [old(0), old(1), old(2)];
    assert_eq!(with(fields.clone(), &pods, &[small(0), small(1), small(2)]), ["grow data-web-2"]);
    assert_eq!(with(fields.clone(), &pods, &[small(0), small(1), grows(2)]), NOTHING, "one after the other");
    let next = with(fields.clone(), &pods, &[small(0), small(1), data(2)]);
    assert_eq!(next, ["grow data-web-1", "delete web-2"], "the place for growing claims is free");
    assert_eq!(
        with(fields.clone(), &[pod(0), pod(1), pod(2)], &[small(0), small(1), data(2)]),
        ["grow data-web-1"],
        "the Pods are updated already"
    );
    let mut partition = fields.clone();
    partition["partition"] = json!(3);
    assert_eq!(with(partition, &pods, &[small(0), small(1), small(2)]), NOTHING);
    assert_eq!(
        with(json!({}), &[pod(0), pod(1), pod(2)], &[small(0), small(1), small(2)]),
        NOTHING,
        "OnDelete: only claims that are made later"
    );
}

fn sized(ordinal: i32, requested: &str, capacity: &str) -> SizedClaim {
    let mut claim = claim(&format!("data-web-{ordinal}"), requested, capacity);
    claim.grown_by = Some("web".into());
    claim
}

#[test]
fn a_claim_that_grows_without_end_keeps_no_template_from_its_pod_or_from_others() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let spec = spec(with_claims(fields));
    let all = claims(&[sized(0, "5Gi", "5Gi"), sized(1, "5Gi", "5Gi"), sized(2, "10Gi", "5Gi")]);
    let pods = [old(0), old(1), old(2)];
    let after = |pods: &[Pod], seconds: u64| planned_after(&spec, pods, &all, &[("data-web-2", seconds)]);
    let early = after(&pods, 20);
    assert_eq!((early.look, texts(early)), (Some(Duration::from_secs(100)), vec![]), "it mostly grows soon");
    assert_eq!(texts(after(&pods, 120)), ["delete web-2"]);
    assert_eq!(texts(after(&[old(0), old(1), pod(2)], 120)), ["delete web-1"], "nor the next one");
    assert!(after(&[old(0), old(1), pod(2)], 120).wait.unwrap().message.contains("data-web-2"), "it is still named");
    let updated = after(&[pod(0), pod(1), pod(2)], 120);
    assert_eq!(texts(updated), NOTHING, "no other claim is asked for what this one does not get");
}

#[test]
fn a_claim_that_may_not_be_asked_keeps_no_template_from_its_pod_either() {
    let spec = spec(with_claims(json!({"growsClaims": true, "maxUnavailable": 1})));
    let all = claims(&[sized(0, "5Gi", "5Gi"), sized(1, "5Gi", "5Gi"), sized(2, "5Gi", "5Gi")]);
    let after = |seconds: u64| texts(planned_after(&spec, &[old(0), old(1), old(2)], &all, &[("data-web-2", seconds)]));
    assert_eq!(after(20), ["grow data-web-2"]);
    assert_eq!(after(120), ["grow data-web-2", "delete web-2"]);
}

#[test]
fn while_storage_classes_cannot_be_read_updates_wait_as_they_do_for_claims_that_grow() {
    let spec = spec(with_claims(json!({"growsClaims": true, "maxUnavailable": 1})));
    let small = claims(&[sized(0, "5Gi", "5Gi"), sized(1, "5Gi", "5Gi"), sized(2, "5Gi", "5Gi")]);
    let large = claims(&[data(0), data(1), data(2)]);
    let planned = |pods: &[Pod], claims: &BTreeMap<_, _>, seconds: u64| {
        let (pods, revisions) = (shared(pods), revisions());
        plan(&Observed {
            spec: &spec,
            pods: &pods,
            claims,
            classes: Err(Duration::from_secs(seconds)),
            update_revision: NEW,
            revisions: &revisions,
            allowed: Some(Default::default()),
            waited: &BTreeMap::new(),
            announced_is_updated: false,
            now: at(0),
        })
    };
    let old = [old(0), old(1), old(2)];
    let early = planned(&old, &small, 20);
    assert_eq!((early.look, early.wait.clone().unwrap().reason), (Some(Duration::from_secs(100)), "ClaimGrows"));
    assert_eq!(texts(early), NOTHING);
    assert_eq!(texts(planned(&old, &small, 120)), ["delete web-2"], "not for ever");
    let down = [old[0].clone(), old[1].clone(), not_ready(old[2].clone())];
    assert_eq!(texts(planned(&down, &small, 0)), ["delete web-2"]);
    assert_eq!(texts(planned(&old, &large, 0)), ["delete web-2"], "none is to grow");
}

#[test]
fn a_pod_that_is_down_gets_a_corrected_template_before_its_claim_has_grown() {
    let fields = with_claims(json!({"growsClaims": true, "maxUnavailable": 1}));
    let all = [sized(0, "10Gi", "10Gi"), sized(1, "10Gi", "5Gi"), sized(2, "5Gi", "5Gi")];
    let pods = [old(0), not_ready(old(1)), not_ready(old(2))];
    assert_eq!(with(fields, &pods, &all), ["delete web-2", "delete web-1"]);
}

#[test]
fn a_specified_deletion_waits_for_no_claim() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let all = [sized(0, "10Gi", "10Gi"), sized(1, "10Gi", "10Gi"), sized(2, "10Gi", "5Gi")];
    for ordinal in [0, 2] {
        let pods = [pod(0), pod(1), pod(2)].map(|p| if p.ordinal == ordinal { specified(p) } else { p });
        assert_eq!(with(fields.clone(), &pods, &all), [format!("delete web-{ordinal}")]);
    }
}

#[test]
fn a_size_that_cannot_be_had_is_stalled_and_a_smaller_one_is_asked_for() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let stuck = SizedClaim { infeasible: Some("out of space".into()), ..sized(2, "10Gi", "5Gi") };
    let others = [sized(0, "5Gi", "5Gi"), sized(1, "5Gi", "5Gi")];
    let all = claims(&[others[0].clone(), others[1].clone(), stuck]);
    let plan = planned(&spec(with_claims(fields.clone())), &[old(0), old(1), old(2)], &all);
    let why = plan.impossible.clone().unwrap();
    assert_eq!(why.reason, "FailedUpdatePVC");
    let begin = "claim data-web-2 of Pod web-2 cannot grow to what it asks for: out of space; ";
    assert!(why.message.starts_with(begin), "{}", why.message);
    assert_eq!(texts(plan), ["delete web-2"], "and no other claim is asked");
    let asked = |storage: &str| {
        let mut smaller = with_claims(fields.clone());
        smaller["claims"][0]["spec"]["resources"]["requests"]["storage"] = json!(storage);
        texts(planned(&spec(smaller), &[pod(0), pod(1), pod(2)], &all))
    };
    assert_eq!(asked("7Gi"), ["grow data-web-2"], "less than it asks for, more than it has");
    assert_eq!(asked("5Gi"), NOTHING, "Kubernetes lets nobody ask for what there is");
}

#[test]
fn with_in_place_only_no_pod_is_replaced_for_a_mount() {
    let fields = with_claims(json!({"growsClaims": true, "replicas": 1, "policy": "InPlaceOnly"}));
    let since = Some(jiff::Timestamp::from_second(1_600_000_000).unwrap());
    let all = claims(&[SizedClaim { resize_pending_since: since, ..sized(0, "10Gi", "5Gi") }]);
    let plan = planned(&spec(fields), &[pod(0)], &all);
    assert!(plan.wait.clone().unwrap().message.contains("InPlaceOnly does not replace the Pod"));
    assert_eq!(texts(plan), NOTHING);
}

#[test]
fn while_revisions_cannot_be_read_pods_are_scaled_and_none_is_replaced_for_that() {
    let spec = spec(json!({"replicas": 2, "policy": "InPlaceIfPossible"}));
    let (pods, none) = (shared(&[old(0), old(1), old(2)]), BTreeMap::new());
    let plan = plan(&Observed {
        spec: &spec,
        pods: &pods,
        claims: &none,
        classes: Ok(&BTreeMap::new()),
        update_revision: NEW,
        revisions: &[],
        allowed: None,
        waited: &BTreeMap::new(),
        announced_is_updated: false,
        now: at(0),
    });
    assert_eq!(plan.wait.clone().unwrap().reason, "RevisionsNotRead");
    assert_eq!(texts(plan), ["delete web-2"]);
}

#[test]
fn while_paused_a_pod_on_its_way_out_comes_back() {
    let hook = json!({"preDelete": {"labelsHandler": {"in": "yes"}}});
    let leaving = Pod { state: State::PreparingDelete, ..labelled(old(0), json!({"in": "yes"})) };
    let fields = json!({"replicas": 1, "paused": true, "lifecycle": hook});
    assert_eq!(of(fields, &[leaving]), ["keep web-0"]);
}

#[test]
fn a_surplus_pod_whose_claim_gets_its_owner_first_goes_before_smaller_ordinals() {
    let fields = json!({"replicas": 1, "ordered": true, "retention": {"whenScaled": "Delete"}});
    let ready = owned(data(1), "Pod", "web-1", "uid-1");
    assert_eq!(with(fields, &[pod(0), pod(1), pod(2)], &[data(0), ready, data(2)]), ["own data-web-2 [\"Pod\"]"]);
}

#[test]
fn a_claim_that_cannot_grow_is_named_and_holds_nothing_up() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let fixed =
        SizedClaim { storage_class: Some("fixed".into()), requested: crate::k8s::quantity::parse("5Gi"), ..data(2) };
    let mut templates = with_claims(fields);
    templates["claims"][0]["spec"]["storageClassName"] = json!(null);
    let plan = planned(&spec(templates), &[old(0), old(1), old(2)], &claims(&[data(0), data(1), fixed]));
    let why = plan.impossible.clone().unwrap();
    let message = "claim data-web-2 of Pod web-2 cannot grow: StorageClass fixed does not allow volume expansion";
    assert_eq!((why.reason, why.message.as_str()), ("FailedUpdatePVC", message));
    assert_eq!(plan.look, Some(super::claims::CLASS_LOOK), "nobody says when its StorageClass lets it grow");
    assert_eq!(texts(plan), ["delete web-2"], "its Pod is updated all the same");
}

#[test]
fn a_claim_without_a_volume_is_not_asked_and_holds_up_neither_its_pod_nor_other_claims() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 1});
    let unbound = SizedClaim { capacity: None, ..sized(2, "5Gi", "5Gi") };
    let all = claims(&[data(0), sized(1, "5Gi", "5Gi"), unbound]);
    let plan =
        planned_after(&spec(with_claims(fields)), &[pod(0), pod(1), pending(old(2))], &all, &[("data-web-2", 1000)]);
    assert_eq!(texts(plan), ["grow data-web-1", "delete web-2"]);
    let fields = json!({"growsClaims": true, "replicas": 1});
    let unbound = SizedClaim { capacity: None, ..sized(0, "5Gi", "5Gi") };
    let plan = planned(&spec(with_claims(fields)), &[pod(0)], &claims(&[unbound]));
    let why = plan.wait.clone().unwrap();
    assert_eq!(
        (why.reason, why.message.as_str()),
        ("ClaimGrows", "claim data-web-0 of Pod web-0 can grow only when it is bound to a volume")
    );
    assert_eq!(texts(plan), NOTHING);
}

/// It was announced and taken back in turns without end, and what its hook allowed was done twice.
#[test]
fn a_pod_that_is_replaced_for_a_mount_is_held_by_its_hook_until_that_lets_go() {
    let since = Some(at(0).wall - jiff::SignedDuration::from_secs(500));
    let waits = claims(&[SizedClaim { resize_pending_since: since, ..sized(0, "10Gi", "5Gi") }]);
    let grown = claims(&[data(0)]);
    let held = holding(pod(0));
    let leaving = |pod: &Pod| Pod { state: State::PreparingDelete, ..pod.clone() };
    let fields = || hooked("preDelete", json!({"growsClaims": true, "replicas": 1}));
    let next = |fields, pod: Pod, claims: &BTreeMap<_, _>| texts(planned(&spec(with_claims(fields)), &[pod], claims));
    assert_eq!(next(fields(), held.clone(), &waits), ["announce deletion web-0"]);
    assert_eq!(next(fields(), leaving(&held), &waits), NOTHING, "it stays announced");
    assert_eq!(next(fields(), leaving(&pod(0)), &waits), ["delete web-0"], "once");
    assert_eq!(next(fields(), leaving(&held), &grown), ["keep web-0"], "kubelet was faster than the hook");
    for (field, value) in [("policy", json!("InPlaceOnly")), ("partition", json!(1)), ("paused", json!(true))] {
        let mut other = fields();
        other[field] = value;
        assert_eq!(next(other, leaving(&held), &waits), ["keep web-0"], "{field}");
    }
    let mut last = fields();
    last["lifecycle"]["preDelete"]["markPodNotReady"] = json!(true);
    assert_eq!(next(last, leaving(&pod(0)), &waits), ["delete web-0"], "once");
}

#[test]
fn edge_21_terminating_pods_and_claims_do_not_postpone_growth() {
    let fields = json!({"growsClaims": true, "maxUnavailable": 2});
    let small = |ordinal: i32| SizedClaim {
        requested: crate::k8s::quantity::parse("5Gi"),
        capacity: crate::k8s::quantity::parse("5Gi"),
        ..data(ordinal)
    };
    let mut ending = small(1);
    ending.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0).wall));
    // 2 ends, 1 has a claim that ends and 0 one that grows; nobody fails for a claim that is missing.
    assert_eq!(with(fields.clone(), &[pod(0), pod(1), terminating(pod(2))], &[small(0), ending]), ["grow data-web-0"]);
    assert_eq!(with(fields, &[pod(0), pod(1), pod(2)], &[]), NOTHING);
}

#[test]
fn shortfall_10_1_13_a_deletion_that_is_not_wanted_any_more_is_cancelled() {
    let leaving = |pod: Pod| Pod { state: State::PreparingDelete, ..holding(pod) };
    let fields = hooked("preDelete", json!({}));
    assert_eq!(of(fields.clone(), &[pod(0), pod(1), leaving(pod(2))]), ["keep web-2"]);
    assert_eq!(of(fields.clone(), &[pod(0), pod(1), leaving(specified(pod(2)))]), NOTHING, "it is still wanted");
    let mut fewer = fields.clone();
    fewer["replicas"] = json!(2);
    assert_eq!(of(fewer.clone(), &[pod(0), pod(1), leaving(pod(2))]), NOTHING);
    assert_eq!(
        of(fewer.clone(), &[pod(0), pod(1), Pod { labels: Default::default(), ..leaving(pod(2)) }]),
        ["delete web-2"]
    );
    assert_eq!(of(fewer, &[pod(0), pod(1), holding(pod(2))]), ["announce deletion web-2"]);
    // It can be updated in place now: it need not go.
    assert_eq!(of(fields.clone(), &[pod(0), pod(1), leaving(old(2))]), ["keep web-2"]);
    let mut recreate = fields.clone();
    recreate["policy"] = json!("ReCreate");
    assert_eq!(of(recreate.clone(), &[pod(0), pod(1), leaving(old(2))]), NOTHING, "it is to be replaced");
    recreate["paused"] = json!(true);
    assert_eq!(of(recreate, &[pod(0), pod(1), leaving(old(2))]), ["keep web-2"], "paused: it is not to go now");
    let mut last = fields;
    last["lifecycle"]["preDelete"]["markPodNotReady"] = json!(true);
    assert_eq!(of(last.clone(), &[pod(0), pod(1), leaving(pod(2))]), NOTHING, "NotReady Pods do not come back");
    assert_eq!(of(last, &[pod(0), pod(1), Pod { labels: Default::default(), ..leaving(pod(2)) }]), ["delete web-2"]);
}

#[test]
fn an_update_that_was_announced_and_cannot_be_made_in_place_any_more_is_taken_back() {
    let mut fields = hooked("inPlaceUpdate", json!({"replicas": 1}));
    fields["policy"] = json!("InPlaceOnly");
    for unhooked in [false, true] {
        let kept = Pod { has_gate: false, ..if unhooked { old(0) } else { holding(old(0)) } };
        let waits = Pod { state: State::PreparingUpdate, ..kept.clone() };
        let plan = planned(&spec(fields.clone()), &[waits], &BTreeMap::new());
        assert!(plan.impossible.is_some());
        assert_eq!(texts(plan), ["no update web-0"], "nobody would serve in its place");
        assert_eq!(of(fields.clone(), &[kept]), NOTHING, "and it is not announced again");
    }
}

#[test]
fn how_pods_get_to_another_revision() {
    for (policy, want) in [
        ("ReCreate", "delete web-0"),
        ("InPlaceIfPossible", "update web-0 main=i:2"),
        ("InPlaceOnly", "update web-0 main=i:2"),
    ] {
        assert_eq!(of(json!({"replicas": 1, "policy": policy}), &[old(0)]), [want]);
    }
    for unknown in [Pod { revision: "web-gone".into(), ..pod(0) }, Pod { has_gate: false, ..old(0) }] {
        assert_eq!(
            of(json!({"replicas": 1, "policy": "InPlaceIfPossible"}), std::slice::from_ref(&unknown)),
            ["delete web-0"]
        );
        let only = planned(&spec(json!({"replicas": 1, "policy": "InPlaceOnly"})), &[unknown], &BTreeMap::new());
        assert!(only.impossible.as_ref().unwrap().message.contains("Pod web-0"));
        assert_eq!(texts(only), NOTHING);
    }
    let mixed = [old(0), Pod { has_gate: false, ..old(1) }, old(2)];
    assert_eq!(
        of(json!({"policy": "InPlaceOnly", "maxUnavailable": 2}), &mixed),
        ["update web-2 main=i:2", "update web-0 main=i:2"],
        "the others go on"
    );
}

#[test]
fn pods_that_in_place_only_keeps_are_named_as_long_as_they_are_few() {
    let message = |number: i32| {
        let pods: Vec<Pod> = (0..number).map(|ordinal| Pod { has_gate: false, ..old(ordinal) }).collect();
        let spec = spec(json!({"replicas": number, "policy": "InPlaceOnly"}));
        planned(&spec, &pods, &BTreeMap::new()).impossible.unwrap().message
    };
    let kept =
        "cannot be updated in place, and InPlaceOnly allows nothing else: it has no readiness gate InPlaceUpdateReady";
    assert_eq!(message(1), format!("Pod web-0 {kept}"));
    assert_eq!(message(2), format!("Pods web-1 and web-0 {kept} (Pod web-1)"));
    assert_eq!(message(3), format!("Pods web-2, web-1 and web-0 {kept} (Pod web-2)"));
    let names = |from: i32| (from - 9..=from).rev().map(|ordinal| format!("web-{ordinal}")).collect::<Vec<_>>();
    assert!(message(10).starts_with("Pods web-9, ") && message(10).contains("web-1 and web-0 cannot"));
    assert_eq!(message(12), format!("Pods {} and 2 more {kept} (Pod web-11)", names(11).join(", ")));
}

#[test]
fn the_order_of_updates() {
    let pods = [labelled(old(0), json!({"role": "a"})), labelled(old(1), json!({"role": "b"})), old(2)];
    let all = |order: serde_json::Value| of(json!({"order": order, "maxUnavailable": 3}), &pods);
    assert_eq!(all(json!([])), ["delete web-2", "delete web-1", "delete web-0"]);
    assert_eq!(all(json!({"role=a": 10, "role=b": 5})), ["delete web-0", "delete web-1", "delete web-2"]);
    assert_eq!(of(json!({"order": {"role=a": 10}, "partition": 2, "maxUnavailable": 3}), &pods), ["delete web-0"]);
}

#[test]
fn shortfall_10_1_23_pods_with_an_order_key_come_first() {
    let keyed = |ordinal: i32, value: &str| labelled(old(ordinal), json!({"shard": value}));
    let pods = [keyed(0, "s-2"), keyed(1, "s-10"), old(2)];
    let texts = of(json!({"order": ["shard"], "maxUnavailable": 3}), &pods);
    assert_eq!(texts, ["delete web-1", "delete web-0", "delete web-2"]);
}

#[test]
fn notes_of_an_update_that_cannot_be_read_are_what_the_pod_waits_for() {
    let odd = Pod { unreadable: Some("annotation a/b cannot be read: odd".into()), ..unready(1) };
    let plan = planned(&spec(json!({"replicas": 2})), &[pod(0), odd], &BTreeMap::new());
    assert_eq!(
        plan.wait.unwrap().message,
        "Pod web-1 is not Ready: annotation a/b cannot be read: odd; delete that annotation, or the Pod"
    );
}

#[test]
fn updated_pods_count_first_where_the_order_is_not_that_of_ordinals() {
    let fields = json!({"order": {"role=a": 10}, "partition": 1, "maxUnavailable": 3});
    let a = labelled(old(0), json!({"role": "a"}));
    assert_eq!(of(fields.clone(), &[a.clone(), pod(1), pod(2)]), NOTHING, "one stays, whoever it is");
    assert_eq!(of(fields.clone(), &[a.clone(), pod(1)]), ["create 2 update"]);
    assert_eq!(of(fields, &[a, old(1), pod(2)]), ["delete web-0"]);
}

#[test]
fn budgets_are_asked_for_what_takes_a_pod_out_of_service() {
    let none = serde_json::from_value(json!({})).unwrap();
    let marking = serde_json::from_value(
        json!({"preDelete": {"markPodNotReady": true}, "inPlaceUpdate": {"markPodNotReady": true}}),
    )
    .unwrap();
    let pod = || "web-0".to_owned();
    let changed = |change: PodAction| Action::Change { pod: pod(), change };
    for (action, plain, marked) in [
        (Action::Delete { pod: pod() }, Some(Operation::Delete), Some(Operation::Delete)),
        (changed(PodAction::AnnounceUpdate { restore: false }), None, Some(Operation::Update)),
        (Action::CreateClaims { ordinal: 0, claims: vec![0] }, None, None),
        (Action::MendLabels { pod: pod(), labels: Vec::new() }, None, None),
    ] {
        assert_eq!((action.takes_out(&none), action.takes_out(&marking)), (plain, marked), "{action:?}");
    }
}

#[test]
fn what_is_waited_for_is_named() {
    assert_eq!(wait_of(json!({"ordered": true}), &[pod(0), unready(1)]), "Pod web-1 is not Ready");
    assert!(wait_of(json!({}), &[pod(0), terminating(pod(1)), pod(2)]).contains("node n1"));
    assert_eq!(wait_of(json!({}), &[pod(0), pod(1), pod(2)]), "");
    // The one that keeps the place, also when it is above the one that is missing.
    for ordered in [false, true] {
        let limited = json!({"ordered": ordered, "scaleMaxUnavailable": 1});
        assert_eq!(wait_of(limited, &[unready(1), pod(2)]), "Pod web-0 is made when Pod web-1 is available");
        let first = wait_of(json!({"ordered": ordered, "replicas": 5, "scaleMaxUnavailable": 1}), &[]);
        assert_eq!(first, "Pod web-1 is made when Pod web-0 is available");
    }
    let held = hooked("preDelete", json!({"replicas": 0}));
    assert_eq!(
        wait_of(held, &[Pod { state: State::PreparingDelete, ..holding(pod(0)) }]),
        "Pod web-0 is held by its hook preDelete"
    );
}

#[test]
fn followers_are_updated_first_and_the_leader_last_also_in_strict_order() {
    let role = |ordinal: i32, role: &str| labelled(old(ordinal), json!({"role": role}));
    let pods = [role(0, "follower"), role(1, "follower"), role(2, "leader")];
    for ordered in [true, false] {
        let mut spec = spec(json!({"ordered": ordered}));
        spec.update_order = UpdateOrder::parse("role=leader").unwrap();
        let texts = |pods: &[Pod]| texts(planned(&spec, pods, &BTreeMap::new()));
        assert_eq!(texts(&pods), ["delete web-1"]);
        let [a, b, _] = pods.clone();
        assert_eq!(texts(&[a.clone(), pod(1), pods[2].clone()]), ["delete web-0"]);
        assert_eq!(texts(&[pod(0), pod(1), pods[2].clone()]), ["delete web-2"]);
        assert_eq!(texts(&[a, b, not_ready(pods[2].clone())]), ["delete web-2"], "what is down is not waited for");
    }
}

#[test]
fn the_leader_is_last_however_many_pods_may_be_unavailable() {
    let role = |pod: Pod, role: &str| labelled(pod, json!({"role": role}));
    let leader = role(old(2), "leader");
    let followers = [role(old(0), "follower"), role(old(1), "follower")];
    let plan_of = |more: serde_json::Value, pods: &[Pod]| {
        let mut fields = json!({"maxUnavailable": 3});
        json_patch::merge(&mut fields, &more);
        let mut spec = spec(fields);
        spec.update_order = UpdateOrder::parse("role=observer,leader").unwrap();
        planned(&spec, pods, &BTreeMap::new())
    };
    let with_leader = |pods: &[Pod]| plan_of(json!({}), &[pods, std::slice::from_ref(&leader)].concat());
    let mut plan = with_leader(&followers);
    assert_eq!(
        plan.wait.clone().unwrap().message,
        "Pod web-2 is updated after Pod web-0, which is not updated and available yet"
    );
    let wave = plan.next_wave(9);
    assert_eq!(wave.iter().map(|next| text(&next.action)).collect::<Vec<_>>(), ["delete web-1", "delete web-0"]);
    // A budget keeps one of them: its room is not for the leader.
    plan.room.leave(wave[0].charge);
    assert_eq!(plan.next_wave(9), []);
    let done = |ordinal: i32| role(pod(ordinal), "follower");
    for not_back in [vec![], vec![terminating(done(1))], vec![not_ready(done(1))], vec![fresh(done(1), 5)]] {
        let plan = with_leader(&[vec![done(0)], not_back.clone()].concat());
        let message = plan.wait.clone().unwrap().message;
        assert!(message.contains("Pod web-1") && plan.candidates.is_empty(), "{not_back:?}: {message}");
    }
    assert_eq!(texts(with_leader(&[done(0), done(1)])), ["delete web-2"]);
    // Places between the first and the last one wait likewise, and what the partition keeps is not waited for.
    let observer = role(old(1), "observer");
    assert_eq!(texts(with_leader(&[role(old(0), "follower"), observer.clone()])), ["delete web-0"]);
    assert_eq!(texts(with_leader(&[done(0), observer])), ["delete web-1"]);
    let pods = [&followers[..], std::slice::from_ref(&leader)].concat();
    assert_eq!(texts(plan_of(json!({"partition": 2}), &pods)), ["delete web-2"]);
}

/// Taken back, or updated before, it is Updated until its hook is back: Ready, and not one that is down.
#[test]
fn a_leader_whose_hook_had_let_go_is_hooked_again_and_waits_for_the_others() {
    let role = |pod: Pod, role: &str| labelled(pod, json!({"role": role}));
    let leader = Pod { state: State::Updated, ..role(old(2), "leader") };
    let with = |more: serde_json::Value, followers: [Pod; 2], leader: &Pod| {
        let mut fields = hooked("inPlaceUpdate", json!({}));
        json_patch::merge(&mut fields, &more);
        let mut spec = spec(fields);
        spec.update_order = UpdateOrder::parse("role=leader").unwrap();
        let [a, b] = followers.map(|pod| role(pod, "follower"));
        texts(planned(&spec, &[a, b, leader.clone()], &BTreeMap::new()))
    };
    for (policy, its_turn) in [("ReCreate", "delete web-2"), ("InPlaceIfPossible", "announce update web-2 again")] {
        let more = json!({"policy": policy});
        assert_eq!(with(more.clone(), [old(0), old(1)], &leader), ["hook web-2 again"], "{policy}");
        assert_eq!(with(more.clone(), [pod(0), pod(1)], &leader), [its_turn], "all before it are done");
        assert_eq!(with(more, [old(0), old(1)], &not_ready(leader.clone())), [its_turn], "it is down");
    }
    let marks = json!({"policy": "ReCreate", "lifecycle": {"inPlaceUpdate": {"markPodNotReady": true}}});
    assert_eq!(with(marks, [old(0), old(1)], &leader), ["delete web-2"], "its hook would take it out of service");
}

/// The leader was announced in its turn, and then the template or the label changed: it serves until it is updated.
#[test]
fn a_leader_that_has_been_announced_is_taken_back_while_others_come_before_it() {
    let role = |pod: Pod, role: &str| labelled(pod, json!({"role": role}));
    let follower = |pod: Pod| role(pod, "follower");
    let followers = [follower(old(0)), follower(old(1))];
    for (hook, state, back) in [
        ("inPlaceUpdate", State::PreparingUpdate, "no update web-2"),
        ("preDelete", State::PreparingDelete, "keep web-2"),
    ] {
        let first = if hook == "preDelete" { "delete web-1" } else { "update web-1 main=i:2" };
        let held = labelled(old(2), json!({"role": "leader", "hold": "true"}));
        let announced = |leader: &Pod| Pod { state: state.clone(), ..leader.clone() };
        for ordered in [false, true] {
            let plan_of = |more: serde_json::Value, pods: &[Pod]| {
                let mut fields = hooked(hook, json!({"ordered": ordered}));
                if hook == "preDelete" {
                    fields["policy"] = json!("ReCreate");
                }
                json_patch::merge(&mut fields, &more);
                let mut spec = spec(fields);
                spec.update_order = UpdateOrder::parse("role=leader").unwrap();
                planned(&spec, pods, &BTreeMap::new())
            };
            let [a, b] = followers.clone();
            let beside = |leader: Pod| texts(plan_of(json!({}), &[a.clone(), b.clone(), leader]));
            for leader in [held.clone(), role(old(2), "leader")] {
                assert_eq!(beside(announced(&leader)), [back], "{hook} {ordered}");
                assert_eq!(beside(fresh(announced(&leader), 5)), [back], "it serves too");
                assert_eq!(beside(leader), [first], "it is back, and so is its room");
            }
            assert_eq!(beside(not_ready(announced(&held))), NOTHING, "what is down waits for its hook alone");
            let done = [follower(pod(0)), follower(pod(1)), announced(&held)];
            assert_eq!(texts(plan_of(json!({}), &done)), NOTHING, "its turn: it stays announced");
            // The last one of its place has the label now, and another one has been announced too.
            let moved = [a.clone(), announced(&role(old(1), "leader")), follower(announced(&old(2)))];
            let next = if hook == "preDelete" { "delete web-2" } else { "update web-2 main=i:2" };
            let want = [back.replace("web-2", "web-1"), next.to_owned()];
            assert_eq!(texts(plan_of(json!({"maxUnavailable": 2}), &moved)), want, "{hook} {ordered}");
            // It would not come back into service: announced and taken back in turns it would keep its place for ever.
            let not_let_in = json!({"lifecycle": {"preNormal": {"labelsHandler": {"in": "yes"}}}});
            let pods = [a.clone(), b.clone(), announced(&held)];
            assert_eq!(texts(plan_of(not_let_in, &pods)), NOTHING);
            if hook == "preDelete" {
                let last = json!({"lifecycle": {"preDelete": {"markPodNotReady": true}}});
                assert_eq!(texts(plan_of(last, &pods)), NOTHING, "it cannot come back");
            }
        }
    }
}
