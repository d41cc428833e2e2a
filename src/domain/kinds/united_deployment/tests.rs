use std::time::Duration;

use serde_json::{Value, json};

use super::{
    adopt,
    child::ChildSeen,
    make,
    plan::{self, SubsetStep, UnitedPlan, UnitedSeen},
    pods::SubsetPods,
    schedule,
    spec::{ChildKind, UnitedSpec},
    status::{self, PassFailures},
    stuck,
    typed::typed,
};
use crate::{
    api::{
        apps::united_deployment::{UnitedCondition, UnitedDeployment, UnitedDeploymentStatus},
        labels,
    },
    domain::workload::{owner::OwnerRef, subset::SCHEDULABLE},
    k8s::{invalid::InvalidField, pod::PodView, revision, time::Now},
};

const RECORDED: &str = include_str!("testdata/recorded.json");
const REVISION: &str = "united-b5dd48547";

fn recorded() -> Value {
    serde_json::from_str(RECORDED).unwrap()
}

fn at(second: u64) -> Now {
    let wall = "2026-11-21T10:00:00Z".parse::<jiff::Timestamp>().unwrap();
    Now {
        wall: wall + jiff::SignedDuration::from_secs(i64::try_from(second).unwrap()),
        mono: Duration::from_secs(second),
    }
}

/// A UnitedDeployment with a template of a kind.
fn object(kind: ChildKind, changes: Value) -> UnitedDeployment {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "i:1"}]}}}});
    let mut object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 1}, "spec": {
        "replicas": 6, "selector": {"matchLabels": {"app": "web"}}, "template": {kind.member(): template},
        "topology": {"subsets": [{"name": "a"}, {"name": "b"}]}}});
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

fn spec(kind: ChildKind, changes: Value) -> UnitedSpec {
    UnitedSpec::of(&object(kind, changes)).unwrap()
}

fn owner() -> OwnerRef {
    OwnerRef::of(&object(ChildKind::CloneSet, json!({})))
}

fn all_there(replicas: i32) -> SubsetPods {
    SubsetPods {
        there: replicas,
        ready: replicas,
        available: replicas,
        own_available: replicas,
        updated: replicas,
        updated_ready: replicas,
        updated_available: replicas,
        ready_ordinals: (0..replicas).collect(),
        available_ordinals: (0..replicas).collect(),
        ..SubsetPods::default()
    }
}

/// A workload as it would be made, with all its Pods.
fn child(spec: &UnitedSpec, subset: &str, replicas: i32, revision: &str) -> ChildSeen {
    let of = spec.subsets.iter().find(|of| of.name == subset).cloned().unwrap_or_else(|| {
        let mut of = spec.subsets[0].clone();
        of.name = subset.to_owned();
        of
    });
    let controls = make::Controls { replicas, partition: 0, limit: None };
    let object = make::child(&owner(), spec, &of, revision, controls).unwrap();
    ChildSeen {
        kind: Some(spec.template.kind),
        name: format!("web-{subset}-x"),
        uid: format!("uid-{subset}"),
        subset: subset.to_owned(),
        object,
        status: json!({"replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas}),
        pods: all_there(replicas),
        ..ChildSeen::default()
    }
}

fn planned(spec: &UnitedSpec, children: &[ChildSeen], recorded: &UnitedDeploymentStatus, second: u64) -> UnitedPlan {
    let owner = owner();
    plan::plan(spec, UnitedSeen { owner: &owner, children, recorded, update: "r2" }, at(second))
}

fn plan_of(spec: &UnitedSpec, children: &[ChildSeen]) -> UnitedPlan {
    planned(spec, children, &UnitedDeploymentStatus::default(), 0)
}

fn said(spec: &UnitedSpec, children: &[ChildSeen], plan: &UnitedPlan) -> UnitedDeploymentStatus {
    let (owner, recorded) = (owner(), UnitedDeploymentStatus::default());
    let seen = UnitedSeen { owner: &owner, children, recorded: &recorded, update: "r2" };
    status::status(spec, 1, seen, plan, &PassFailures::default(), at(0))
}

fn condition<'s>(status: &'s UnitedDeploymentStatus, type_: &str) -> Option<&'s UnitedCondition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Every member of `part` is in `whole`.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|whole| is_part(value, whole)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
        }
        _ => part == whole,
    }
}

fn recorded_children() -> Vec<ChildSeen> {
    let of = |set: &Value| ChildSeen {
        kind: Some(ChildKind::CloneSet),
        name: set["metadata"]["name"].as_str().unwrap().into(),
        uid: set["metadata"]["uid"].as_str().unwrap().into(),
        subset: set["metadata"]["labels"][labels::SUBSET_NAME].as_str().unwrap().into(),
        object: json!({"metadata": set["metadata"], "spec": set["spec"]}),
        status: set["status"].clone(),
        pods: all_there(set["spec"]["replicas"].as_i64().unwrap().try_into().unwrap()),
        ..ChildSeen::default()
    };
    recorded()["cloneSets"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn takeover_recorded_workloads_are_made_as_openkruise_made_them_and_are_not_written_to() {
    let object: UnitedDeployment = serde_json::from_value(recorded()["unitedDeployment"].clone()).unwrap();
    let (spec, owner) = (UnitedSpec::of(&object).unwrap(), OwnerRef::of(&object));
    for (subset, recorded) in spec.subsets.iter().zip(recorded()["cloneSets"].as_array().unwrap()) {
        let replicas = recorded["spec"]["replicas"].as_i64().unwrap().try_into().unwrap();
        let controls = make::Controls { replicas, partition: 0, limit: None };
        let made = make::child(&owner, &spec, subset, REVISION, controls).unwrap();
        for member in ["generateName", "labels", "annotations", "ownerReferences", "namespace"] {
            assert_eq!(made["metadata"][member], recorded["metadata"][member], "{member}");
        }
        assert!(is_part(&made["spec"], &recorded["spec"]), "{made}");
        assert_eq!(
            made["spec"]["template"]["spec"].get("affinity"),
            recorded["spec"]["template"]["spec"].get("affinity")
        );
    }
    let children = recorded_children();
    let recorded_status = object.status.clone().unwrap();
    let seen = UnitedSeen { owner: &owner, children: &children, recorded: &recorded_status, update: REVISION };
    let plan = plan::plan(&spec, seen, at(0));
    assert_eq!((plan.steps.clone(), plan.look), (vec![], None));
    let status = status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(0));
    for condition in &recorded_status.conditions {
        assert!(status.conditions.contains(condition), "{condition:?} {:?}", status.conditions);
    }
    let counts = |s: &UnitedDeploymentStatus| {
        (
            s.replicas,
            s.ready_replicas,
            s.updated_replicas,
            s.updated_ready_replicas,
            s.subset_replicas.clone(),
            s.label_selector.clone(),
        )
    };
    assert_eq!(counts(&status), counts(&recorded_status));
    assert_eq!(condition(&status, "Ready").unwrap().status, "True");
}

#[test]
fn the_recorded_revision_has_the_name_and_the_bytes_that_we_compute_also_from_what_the_user_wrote() {
    let recorded = recorded();
    let stored = &recorded["unitedDeployment"]["spec"]["template"];
    let applied =
        recorded["unitedDeployment"]["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
            .as_str()
            .unwrap();
    let applied: Value = serde_json::from_str(applied).unwrap();
    for template in [stored, &applied["spec"]["template"]] {
        let data = revision::data(&typed(template));
        assert_eq!(data, recorded["revision"]["data"]);
        assert_eq!(revision::name("united", &revision::hash_of(&data, 0)), REVISION);
    }
}

#[test]
fn edge_d1_d9_all_fields_of_the_template_reach_the_workload() {
    let of_child = json!({"newer": {"x": 1}, "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}, "serviceName": "s",
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
    let changes = json!({"spec": {"template": {"advancedStatefulSetTemplate": {"metadata": {"annotations": {"x": "y"}}, "spec": of_child}}}});
    let spec = spec(ChildKind::AdvancedStatefulSet, changes);
    let made = child(&spec, "a", 3, "r1").object;
    assert!(is_part(&of_child, &made["spec"]), "{made}");
    assert_eq!(made["metadata"]["annotations"], json!({"x": "y", labels::SUBSET_PATCH: ""}));
}

#[test]
fn edge_d2_shortfall_a_node_term_is_added_to_each_term_with_its_fields_and_none_without() {
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
    let own = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}, {}]});
    let spec = spec(
        ChildKind::CloneSet,
        json!({"spec": {
        "template": {"cloneSetTemplate": {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": own}}}}}}},
        "topology": {"subsets": [{"name": "a", "nodeSelectorTerm": term, "tolerations": [{"key": "t"}]}, {"name": "b", "nodeSelectorTerm": {}}]}}}),
    );
    let at =
        "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let a = child(&spec, "a", 1, "r").object;
    let terms = a.pointer(at).unwrap().as_array().unwrap();
    assert_eq!(terms[0]["matchExpressions"].as_array().unwrap().len(), 2);
    assert_eq!(terms[1], term);
    assert!(terms.iter().all(|of| of["matchFields"] == term["matchFields"]));
    assert_eq!(a["spec"]["template"]["spec"]["tolerations"], json!([{"key": "t"}]));
    let b = child(&spec, "b", 1, "r").object;
    assert_eq!(b.pointer(at).unwrap(), &own["nodeSelectorTerms"]);
    assert!(b["spec"]["template"]["spec"].get("tolerations").is_none());
}

#[test]
fn terms_of_the_template_and_requirements_of_a_subset_do_not_multiply_without_limit() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let with = |terms: usize, requirements: usize| {
        let own = json!({required: {"nodeSelectorTerms": vec![json!({}); terms]}});
        let term = json!({"matchExpressions": vec![json!({"key": "a"}); requirements]});
        let spec = spec(
            ChildKind::CloneSet,
            json!({"spec": {"topology": {"subsets": [{"name": "b"}, {"name": "a", "nodeSelectorTerm": term}]}}}),
        );
        let template = json!({"spec": {"affinity": {"nodeAffinity": own}}});
        make::pod_template(&spec, &spec.subsets[1], "r", template)
    };
    assert!(with(20, 50).is_ok() && with(0, 1000).is_ok());
    for (terms, requirements) in [(20, 51), (30_000, 10_000)] {
        let Err(InvalidField { field, why }) = with(terms, requirements) else { panic!("{terms} {requirements}") };
        let of = format!(
            "{requirements} node requirements would be added to each of the {terms} nodeSelectorTerms of the Pod"
        );
        assert_eq!(field, "spec.topology.subsets[1].nodeSelectorTerm");
        assert_eq!(why, format!("{of}; want at most 1000 in all"));
    }
}

#[test]
fn edge_d4_a_workload_of_a_previous_kind_goes_when_it_is_replaced() {
    let (now, before) = (spec(ChildKind::Deployment, json!({})), spec(ChildKind::CloneSet, json!({})));
    let old = ChildSeen { uid: "old".into(), ..child(&before, "a", 3, "r1") };
    let plan = plan_of(&now, std::slice::from_ref(&old));
    assert!(
        plan.steps.iter().all(|step| matches!(step, SubsetStep::Create { .. })) && plan.steps.len() == 2,
        "{plan:?}"
    );
    assert_eq!(plan.wait.as_ref().unwrap().0, "SubsetIsReplaced");
    let both = [old, child(&now, "a", 3, "r2"), child(&now, "b", 3, "r2")];
    let plan = plan_of(&now, &both);
    let [SubsetStep::Delete { kind: ChildKind::CloneSet, uid, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(uid, "old");
}

#[test]
fn edge_d6_the_label_selector_is_always_there() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    assert_eq!(said(&spec, &[], &plan_of(&spec, &[])).label_selector, "app=web");
}

#[test]
fn edge_d7_an_empty_update_type_has_a_partition_and_on_delete_has_none() {
    for (type_, partition) in [
        (json!(null), json!(2)),
        (json!(""), json!(2)),
        (json!("RollingUpdate"), json!(2)),
        (json!("OnDelete"), json!(null)),
    ] {
        for kind in [ChildKind::StatefulSet, ChildKind::AdvancedStatefulSet] {
            let changes = json!({"spec": {"template": {kind.member(): {"spec": {"updateStrategy": {"type": type_}}}},
                "updateStrategy": {"manualUpdate": {"partitions": {"a": 2, "b": 9}}}}});
            let plan = plan_of(&spec(kind, changes), &[]);
            let bodies: Vec<&Value> = plan
                .steps
                .iter()
                .map(|step| if let SubsetStep::Create { body, .. } = step { body } else { panic!() })
                .collect();
            assert_eq!(bodies[0]["spec"]["updateStrategy"]["rollingUpdate"]["partition"], partition, "{type_}");
            assert_eq!(plan.partitions["b"], 3, "not more than its replicas");
        }
    }
}

#[test]
fn shortfall_a_selector_of_expressions_alone_is_no_reason_to_panic() {
    let expressions = json!([{"key": "app", "operator": "Exists"}]);
    let spec = spec(
        ChildKind::Deployment,
        json!({"spec": {"selector": {"matchLabels": null, "matchExpressions": expressions}}}),
    );
    let made = child(&spec, "a", 1, "r").object;
    assert_eq!(
        made["spec"]["selector"],
        json!({"matchExpressions": expressions, "matchLabels": {labels::SUBSET_NAME: "a"}})
    );
}

#[test]
fn shortfall_a_removed_subset_goes_only_when_it_is_replaced_and_its_status_goes_with_it() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let removed = child(&spec, "gone", 4, "r2");
    let short = ChildSeen { pods: all_there(2), ..child(&spec, "b", 3, "r2") };
    let children = [child(&spec, "a", 3, "r2"), short, removed];
    let plan = plan_of(&spec, &children);
    assert_eq!((plan.steps.clone(), plan.wait.as_ref().unwrap().0), (vec![], "SubsetIsReplaced"));
    assert_eq!(said(&spec, &children, &plan).subset_statuses.len(), 2);
    let [a, b, gone] = children;
    let children = [a, ChildSeen { pods: all_there(3), ..b }, gone];
    assert!(matches!(&plan_of(&spec, &children).steps[..], [SubsetStep::Delete { name, .. }] if name == "web-gone-x"));
    // Pods that another subset gives up in the same step do not count.
    let spec = UnitedSpec { replicas: Some(8), ..spec };
    let children = [child(&spec, "a", 8, "r2"), child(&spec, "gone", 2, "r2")];
    let plan = plan_of(&spec, &children);
    assert_eq!((plan.replicas["a"], plan.wait.as_ref().map(|wait| wait.0)), (4, Some("SubsetIsReplaced")));
    assert!(!plan.steps.iter().any(|step| matches!(step, SubsetStep::Delete { .. })), "{plan:?}");
    // Nor do those of a surge.
    let spec = self::spec(
        ChildKind::Deployment,
        json!({"spec": {"replicas": 10, "topology": {"subsets": [{"name": "a", "replicas": 8}, {"name": "b"}]}}}),
    );
    let surge = ChildSeen { pods: all_there(10), ..child(&spec, "a", 8, "r2") };
    let children =
        [surge, ChildSeen { pods: all_there(0), ..child(&spec, "b", 2, "r2") }, child(&spec, "gone", 2, "r2")];
    let plan = plan_of(&spec, &children);
    assert_eq!((plan.steps, plan.wait.map(|wait| wait.0)), (vec![], Some("SubsetIsReplaced")));
}

#[test]
fn a_subset_that_comes_back_before_its_workload_has_gone_gets_the_nodes_that_it_names_now() {
    let with = |zone: &str, taint: &str, patch: Value| {
        // A list that is empty is not stored.
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]},
            {"key": "ssd", "operator": "Exists", "values": []}]});
        let tolerations = json!([{"key": taint, "operator": "Exists", "effect": ""}]);
        let b = json!({"name": "b", "nodeSelectorTerm": term, "tolerations": tolerations, "patch": patch});
        spec(ChildKind::Deployment, json!({"spec": {"topology": {"subsets": [{"name": "a"}, b]}}}))
    };
    let before = with("x", "spot", json!(null));
    let mut children = [child(&before, "a", 3, "r2"), child(&before, "b", 3, "r2")];
    let pods = "/spec/template/spec";
    let stored = children[1].object.pointer_mut(pods).unwrap();
    stored["tolerations"][0].as_object_mut().unwrap().remove("effect");
    let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    let second = stored.pointer_mut(&format!("{required}/matchExpressions/1")).unwrap();
    second.as_object_mut().unwrap().remove("values");
    assert_eq!(plan_of(&before, &children).steps, []);
    for now in [with("y", "spot", json!(null)), with("x", "gpu", json!(null))] {
        let plan = plan_of(&now, &children);
        let [SubsetStep::Change { subset, patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(subset, "b");
        let mut written = children.clone();
        json_patch::merge(&mut written[1].object, patch);
        let b = now.subsets.iter().find(|subset| subset.name == "b").unwrap();
        let now_required = written[1].object.pointer(&format!("{pods}{required}")).unwrap();
        assert_eq!(now_required["matchExpressions"], json!(b.expressions));
        assert_eq!(plan_of(&now, &written).steps, [], "it is written once");
    }
    // A patch is the last word, of tolerations too: nothing is to be written again and again.
    let patched = with("x", "spot", json!({"spec": {"tolerations": [{"key": "other", "operator": "Exists"}]}}));
    assert_eq!(plan_of(&patched, &[child(&patched, "a", 3, "r2"), child(&patched, "b", 3, "r2")]).steps, []);
}

#[test]
fn of_two_workloads_of_a_subset_the_one_in_service_stays() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let idle =
        ChildSeen { uid: "idle".into(), name: "web-a-second".into(), pods: all_there(0), ..child(&spec, "a", 3, "r2") };
    let plan = plan_of(&spec, &[idle, child(&spec, "a", 3, "r2"), child(&spec, "b", 3, "r2")]);
    assert!(matches!(&plan.steps[..], [SubsetStep::Delete { uid, .. }] if uid == "idle"), "{plan:?}");
    // One that serves goes when the others have all Pods.
    for (available, serving, goes) in [(3, 1, true), (2, 1, false), (2, 0, true)] {
        let second = ChildSeen { uid: "second".into(), pods: all_there(serving), ..child(&spec, "a", 3, "r2") };
        let first = ChildSeen { pods: all_there(available), ..child(&spec, "a", 3, "r2") };
        let plan = plan_of(&spec, &[first, second, child(&spec, "b", 3, "r2")]);
        let is_gone = matches!(&plan.steps[..], [SubsetStep::Delete { uid, .. }] if uid == "second");
        assert_eq!((is_gone, plan.wait.is_some()), (goes, !goes), "{available} {serving}: {:?}", plan.steps);
    }
}

#[test]
fn shortfall_numbers_that_do_not_fit_change_nothing_and_are_said_in_conditions() {
    let spec = spec(
        ChildKind::CloneSet,
        json!({"spec": {"topology": {"subsets": [{"name": "a", "replicas": 9}, {"name": "b"}]}}}),
    );
    let children = [child(&spec, "a", 3, "r1")];
    let plan = plan_of(&spec, &children);
    assert_eq!(plan.steps, []);
    let status = said(&spec, &children, &plan);
    let failure = condition(&status, status::FAILURE).unwrap();
    assert!(
        failure.status == "True" && failure.message.contains("9 replicas, which is more than the total of 6"),
        "{failure:?}"
    );
    for type_ in [status::PROVISIONED, status::SUBSETS_UPDATED, "Ready"] {
        assert_eq!(condition(&status, type_).unwrap().status, "False", "{type_}");
    }
    assert_eq!(condition(&status, "Stalled").unwrap().status, "True");
}

#[test]
fn shortfall_what_a_workload_cannot_do_is_said_in_subset_failure() {
    let spec = spec(ChildKind::Deployment, json!({}));
    let mut failing = child(&spec, "a", 3, "r2");
    failing.status["conditions"] = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too long"}]);
    let children = [failing, child(&spec, "b", 3, "r2")];
    let status = said(&spec, &children, &plan_of(&spec, &children));
    let failure = condition(&status, status::FAILURE).unwrap();
    assert_eq!(
        (failure.reason.as_str(), failure.message.as_str()),
        ("ProgressDeadlineExceeded", "subset a: Deployment web-a-x: too long")
    );
    let well = [child(&spec, "a", 3, "r2"), child(&spec, "b", 3, "r2")];
    let status = said(&spec, &well, &plan_of(&spec, &well));
    assert_eq!((condition(&status, status::FAILURE), &*condition(&status, "Ready").unwrap().status), (None, "True"));
}

#[test]
fn shortfall_a_deployment_with_a_partition_comes_to_rest() {
    let spec =
        spec(ChildKind::Deployment, json!({"spec": {"updateStrategy": {"manualUpdate": {"partitions": {"a": 1}}}}}));
    let children = [child(&spec, "a", 3, "r2"), child(&spec, "b", 3, "r2")];
    assert_eq!(plan_of(&spec, &children).steps, []);
}

#[test]
fn shortfall_a_workload_that_is_not_updated_yet_is_not_written_again() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let waits = ChildSeen {
        pods: SubsetPods { updated: 0, updated_ready: 0, updated_available: 0, ..all_there(3) },
        ..child(&spec, "a", 3, "r2")
    };
    assert_eq!(plan_of(&spec, &[waits, child(&spec, "b", 3, "r2")]).steps, []);
}

#[test]
fn a_new_revision_rewrites_the_template_and_keeps_what_others_wrote_in_metadata() {
    let old = spec(ChildKind::CloneSet, json!({}));
    let new = spec(
        ChildKind::CloneSet,
        json!({"spec": {"template": {"cloneSetTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}}}}}),
    );
    let mut a = child(&old, "a", 3, "r1");
    a.object["metadata"]["annotations"]["mine"] = "1".into();
    a.object["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
    let plan = plan_of(&new, &[a, child(&old, "b", 3, "r2")]);
    let [SubsetStep::Change { name, patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(name, "web-a-x");
    assert_eq!(patch["metadata"], json!({"labels": {labels::UNITED_REVISION: "r2"}}));
    assert_eq!(patch["spec"]["template"]["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(patch["spec"]["template"]["metadata"]["labels"], json!({labels::UNITED_REVISION: "r2"}));
    assert!(patch["spec"].get("selector").is_none() && patch["spec"].get("replicas").is_none());
}

#[test]
fn a_changed_patch_rewrites_its_subset_alone_and_wins_over_the_template() {
    let patched = json!({"spec": {"topology": {"subsets": [{"name": "a", "patch": {"spec": {"containers": [{"name": "main", "image": "p:1"}]}}}, {"name": "b"}]}}});
    let (old, new) = (spec(ChildKind::CloneSet, json!({})), spec(ChildKind::CloneSet, patched));
    let plan = plan_of(&new, &[child(&old, "a", 3, "r2"), child(&old, "b", 3, "r2")]);
    let [SubsetStep::Change { patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(patch["spec"]["template"]["spec"]["containers"], json!([{"name": "main", "image": "p:1"}]));
    assert_eq!(
        patch["metadata"]["annotations"][labels::SUBSET_PATCH],
        r#"{"spec":{"containers":[{"image":"p:1","name":"main"}]}}"#
    );
    // What OpenKruise wrote in another order of keys is the same.
    let mut theirs = child(&new, "a", 3, "r2");
    theirs.object["metadata"]["annotations"][labels::SUBSET_PATCH] =
        r#"{"spec": {"containers": [{"name":"main","image":"p:1"}]}}"#.into();
    assert_eq!(plan_of(&new, &[theirs, child(&new, "b", 3, "r2")]).steps, []);
}

#[test]
fn a_scale_changes_numbers_alone() {
    let spec = spec(ChildKind::CloneSet, json!({"spec": {"replicas": 7}}));
    let plan = plan_of(&spec, &[child(&spec, "a", 3, "r2"), child(&spec, "b", 3, "r2")]);
    let [SubsetStep::Change { subset, patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!((subset.as_str(), patch), ("b", &json!({"spec": {"replicas": 4}})));
}

fn adaptive(changes: Value) -> UnitedSpec {
    let mut all = json!({"spec": {"topology": {"scheduleStrategy": {"type": "Adaptive"}, "subsets": [{"name": "a", "maxReplicas": 4}, {"name": "b"}]}}});
    json_patch::merge(&mut all, &changes);
    spec(ChildKind::CloneSet, all)
}

#[test]
fn pods_that_find_no_place_move_and_their_subset_is_tried_again_later() {
    let spec = adaptive(json!({}));
    let stuck = ChildSeen { pods: SubsetPods { overdue: 3, ..all_there(1) }, ..child(&spec, "a", 4, "r2") };
    let children = [stuck, child(&spec, "b", 2, "r2")];
    let first = plan_of(&spec, &children);
    assert_eq!((first.replicas["a"], first.replicas["b"]), (1, 5));
    let verdict = &first.places["a"].conditions[0];
    assert_eq!((&*verdict.type_, &*verdict.status, &*verdict.reason), (SCHEDULABLE, "False", "reschedule"));
    assert_eq!(first.look, Some(Duration::from_secs(300)));
    let status = said(&spec, &children, &first);
    let is_new = |plan: &UnitedPlan, recorded: &UnitedDeploymentStatus| {
        plan.places.iter().any(|(subset, places)| schedule::is_new_verdict(places, recorded, subset))
    };
    assert!(is_new(&first, &UnitedDeploymentStatus::default()) && !is_new(&first, &status));
    let again = planned(&spec, &children, &status, 300);
    assert!(is_new(&again, &status), "a renewed verdict has a time of its own");
    let children = [child(&spec, "a", 1, "r2"), child(&spec, "b", 5, "r2")];
    let during = planned(&spec, &children, &status, 299);
    assert_eq!((during.steps, during.look), (vec![], Some(Duration::from_secs(1))));
    // Edge D8: ready Pods stay where they are when it recovers.
    let after = planned(&spec, &children, &status, 300);
    assert_eq!((after.steps, after.places["a"].is_schedulable), (vec![], true));
    assert_eq!(after.places["a"].conditions[0].reason, "recover");
    let more = adaptive(json!({"spec": {"replicas": 8}}));
    let grown = planned(&more, &children, &status, 300);
    assert_eq!((grown.replicas["a"], grown.replicas["b"]), (3, 5), "new ones go to the first again");
}

#[test]
fn edge_d8_a_stateful_set_without_a_place_keeps_all_up_to_its_highest_ready_pod() {
    use ChildKind::{AdvancedStatefulSet, CloneSet, StatefulSet};
    let reserved = json!({"reserveOrdinals": [1, "5-9"]});
    for (kind, more, ready, kept) in [
        (CloneSet, json!({}), vec![1, 2], 2),
        (StatefulSet, json!({}), vec![1, 2], 3),
        (StatefulSet, json!({}), vec![2, 3], 4),
        // More would wait than are ready.
        (StatefulSet, json!({}), vec![3], 1),
        (StatefulSet, json!({}), vec![2], 1),
        (StatefulSet, json!({}), vec![0, 1], 2),
        (StatefulSet, json!({}), vec![], 0),
        (StatefulSet, json!({"ordinals": {"start": 5}}), vec![6], 2),
        (AdvancedStatefulSet, json!({}), vec![1, 2], 3),
        // Its Pods are 0, 2, 3 and 4. One with a reserved ordinal goes anyway.
        (AdvancedStatefulSet, reserved.clone(), vec![2, 3], 3),
        (AdvancedStatefulSet, reserved, vec![1], 1),
        (AdvancedStatefulSet, json!({"reserveOrdinals": "many"}), vec![2, 3], 4),
    ] {
        let mut spec = spec(
            kind,
            json!({"spec": {"topology": {"scheduleStrategy": {"type": "Adaptive"}, "subsets": [{"name": "a", "maxReplicas": 4}, {"name": "b"}]}}}),
        );
        spec.template.spec.extend(more.as_object().cloned().unwrap());
        let count = i32::try_from(ready.len()).unwrap();
        let pods = SubsetPods { there: 4, overdue: 1, ready_ordinals: ready.clone(), ..all_there(count) };
        let of_a = |replicas: i32| ChildSeen { pods: pods.clone(), ..child(&spec, "a", replicas, "r2") };
        let children = [of_a(4), child(&spec, "b", 2, "r2")];
        let first = plan_of(&spec, &children);
        let what = format!("{kind:?} {more} {ready:?}");
        assert_eq!((first.replicas["a"], first.replicas["b"]), (kept, 6 - kept), "{what}");
        // The verdict holds for a while, and the Pods that it leaves are looked at again in each pass.
        let status = said(&spec, &children, &first);
        let during = planned(&spec, &[of_a(kept), child(&spec, "b", 6 - kept, "r2")], &status, 299);
        assert_eq!((during.replicas["a"], during.replicas["b"]), (kept, 6 - kept), "{what}, later");
    }
}

#[test]
fn shortfall_a_pod_that_waits_for_a_place_is_looked_at_in_time() {
    let spec = adaptive(json!({}));
    let waits = SubsetPods { until_overdue: Some(Duration::from_secs(12)), ..all_there(1) };
    let waits = ChildSeen { pods: waits, ..child(&spec, "a", 4, "r2") };
    assert_eq!(plan_of(&spec, &[waits, child(&spec, "b", 2, "r2")]).look, Some(Duration::from_secs(12)));
}

#[test]
fn pain_2412_max_unavailable_is_never_negative_and_never_nothing() {
    let reserving =
        json!({"spec": {"topology": {"scheduleStrategy": {"adaptive": {"reserveUnschedulablePods": true}}}}});
    let spec = adaptive(reserving);
    for (replicas, ready, reserved) in [(1, 4, 1), (0, 4, 2), (4, 0, 4), (4, 4, 1)] {
        let pods = SubsetPods { reserved, ..all_there(ready) };
        let shrinks = ChildSeen { pods, ..child(&spec, "a", replicas, "r2") };
        for step in plan_of(&spec, &[shrinks, child(&spec, "b", 2, "r2")]).steps {
            if let SubsetStep::Change { patch, .. } = step
                && let Some(limit) = patch.pointer("/spec/updateStrategy/maxUnavailable")
            {
                assert!(limit.as_i64().unwrap() >= 1, "{patch}");
            }
        }
    }
}

fn budgeted(kind: ChildKind, budget: &str) -> (UnitedSpec, UnitedSpec) {
    let with = |image: &str| {
        spec(
            kind,
            json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: budget}}, "spec": {"template": {kind.member():
            {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}}}}),
        )
    };
    (with("i:1"), with("i:2"))
}

fn old_pods(replicas: i32) -> SubsetPods {
    SubsetPods { updated: 0, updated_ready: 0, updated_available: 0, ..all_there(replicas) }
}

#[test]
fn the_budget_of_the_whole_is_kept_by_partitions() {
    for kind in [ChildKind::CloneSet, ChildKind::AdvancedStatefulSet, ChildKind::StatefulSet] {
        let (old, new) = budgeted(kind, "34%");
        let outdated = |subset: &str| ChildSeen { pods: old_pods(3), ..child(&old, subset, 3, "r1") };
        let first = plan_of(&new, &[outdated("a"), outdated("b")]);
        assert_eq!((first.partitions["a"], first.partitions["b"]), (1, 3), "2 of 6, {kind:?}");
        for (step, partition) in first.steps.iter().zip([1, 3]) {
            let SubsetStep::Change { patch, .. } = step else { panic!() };
            let at = kind.partition_pointer().unwrap();
            assert_eq!(patch["spec"].pointer(at), Some(&json!(partition)), "in the same write as the template");
        }
        assert_eq!(first.wait.as_ref().unwrap().0, "WaitsForBudget");
        // Two are through: the next ones.
        let through = |subset: &str, partition: i32, updated: i32| {
            let mut of = child(&new, subset, 3, "r2");
            let mut at = &mut of.object["spec"];
            for part in kind.partition_pointer().unwrap().split('/').skip(1) {
                at = &mut at[part];
            }
            *at = partition.into();
            ChildSeen {
                pods: SubsetPods { updated, updated_ready: updated, updated_available: updated, ..all_there(3) },
                ..of
            }
        };
        let next = plan_of(&new, &[through("a", 1, 2), through("b", 3, 0)]);
        assert_eq!((next.partitions["a"], next.partitions["b"]), (0, 2));
        let settled = plan_of(&new, &[through("a", 0, 3), through("b", 0, 3)]);
        assert_eq!((settled.steps, settled.wait), (vec![], None));
    }
}

#[test]
fn deployments_under_a_budget_roll_one_after_another_with_what_is_left() {
    let (old, new) = budgeted(ChildKind::Deployment, "1");
    let wide = |of: &UnitedSpec| {
        let mut of = of.clone();
        of.template.spec.insert("strategy".into(), json!({"rollingUpdate": {"maxUnavailable": 3}}));
        of
    };
    let (old, new) = (wide(&old), wide(&new));
    let outdated = |subset: &str| ChildSeen { pods: old_pods(3), ..child(&old, subset, 3, "r1") };
    let plan = plan_of(&new, &[outdated("a"), outdated("b")]);
    let [SubsetStep::Change { subset, patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!((subset.as_str(), &patch["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]), ("a", &json!(1)));
    assert_eq!(patch["metadata"]["annotations"][labels::SUBSET_MAX_UNAVAILABLE], "1");
    let mut rolling = child(&new, "a", 3, "r2");
    json_patch::merge(
        &mut rolling.object,
        &json!({"metadata": {"annotations": {labels::SUBSET_MAX_UNAVAILABLE: "1"}},
        "spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}}),
    );
    rolling.pods = SubsetPods {
        updated: 2,
        updated_ready: 1,
        updated_available: 1,
        available: 2,
        ready: 2,
        ..SubsetPods::default()
    };
    let plan = plan_of(&new, &[rolling.clone(), outdated("b")]);
    assert_eq!((plan.steps, plan.wait.unwrap().0), (vec![], "WaitsForBudget"));
    rolling.pods = all_there(3);
    let plan = plan_of(&new, &[rolling.clone(), outdated("b")]);
    assert!(matches!(&plan.steps[..], [SubsetStep::Change { subset, .. }] if subset == "b"), "{plan:?}");
    // Without the budget its own number comes back.
    let free = UnitedSpec { budget: None, ..new.clone() };
    let plan = plan_of(&free, &[rolling, child(&new, "b", 3, "r2")]);
    let [SubsetStep::Change { patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(
        patch,
        &json!({"metadata": {"annotations": {labels::SUBSET_MAX_UNAVAILABLE: null}}, "spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 3}}}})
    );
}

#[test]
fn what_was_permitted_of_an_older_revision_or_patch_counts_until_the_workload_is_written() {
    let (old, new) = budgeted(ChildKind::CloneSet, "2");
    let of = |pods: SubsetPods, updated: i32, changes: Value| {
        let mut a = child(&old, "a", 3, "r1");
        a.status["updatedReplicas"] = updated.into();
        json_patch::merge(&mut a.status, &changes);
        a.generation = a.status["observedGeneration"].as_i64().unwrap_or_default();
        let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
        let plan = plan_of(&new, &[b, ChildSeen { pods, subset: "a".into(), ..a }]);
        plan.partitions["a"] + plan.partitions["b"]
    };
    let through = SubsetPods { own_available: 3, ..old_pods(3) };
    let half = SubsetPods { own_available: 1, ..old_pods(3) };
    assert_eq!(of(through.clone(), 3, json!({})), 4, "two may go");
    assert_eq!(of(half, 3, json!({})), 6, "two may go still, for the revision before");
    assert_eq!(of(through, 1, json!({"observedGeneration": 4})), 6, "the same, for a patch before");
}

#[test]
fn the_pods_of_a_workload_that_is_missing_count_as_down() {
    for kind in [ChildKind::CloneSet, ChildKind::AdvancedStatefulSet, ChildKind::StatefulSet] {
        for (budget, partition) in [("1", 3), ("3", 3), ("4", 2)] {
            let (old, new) = budgeted(kind, budget);
            let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
            let plan = plan_of(&new, &[b]);
            assert_eq!((plan.partitions["a"], plan.partitions["b"]), (0, partition), "{kind:?} {budget}");
        }
    }
    let (old, new) = budgeted(ChildKind::Deployment, "1");
    let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
    let plan = plan_of(&new, &[b]);
    assert!(matches!(&plan.steps[..], [SubsetStep::Create { subset, .. }] if subset == "a"), "{plan:?}");
    assert_eq!(plan.wait.unwrap().0, "WaitsForBudget");
    // One that cannot be made holds up no other one where the budget has room.
    let (old, new) = budgeted(ChildKind::Deployment, "10");
    let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
    assert_eq!(rolled(&plan_of(&new, &[b])), ["b"]);
}

/// The subsets that get the new template.
fn rolled(plan: &UnitedPlan) -> Vec<&str> {
    let of = plan.steps.iter().filter_map(|step| match step {
        SubsetStep::Change { subset, patch, .. } => patch["spec"]["template"].is_object().then_some(subset.as_str()),
        SubsetStep::Create { .. } | SubsetStep::Delete { .. } => None,
    });
    of.collect()
}

#[test]
fn deployments_that_wait_for_each_other_or_for_a_second_one_are_mended() {
    let (old, new) = budgeted(ChildKind::Deployment, "1");
    let of = |uid: &str, subset: &str, available: i32| {
        let pods = SubsetPods { there: 3, ..old_pods(available) };
        ChildSeen { uid: uid.into(), pods, ..child(&old, subset, 3, "r1") }
    };
    let with_second = [of("first", "a", 2), of("second", "a", 1), of("b", "b", 3)];
    let both = [of("a", "a", 2), of("b", "b", 2)];
    for children in [&with_second[..], &both[..]] {
        let plan = plan_of(&new, children);
        assert_eq!(rolled(&plan), ["a"], "{plan:?}");
        let is_deleted = |step: &SubsetStep| matches!(step, SubsetStep::Delete { .. });
        assert!(!plan.steps.iter().any(is_deleted), "{plan:?}");
    }
}

#[test]
fn what_is_down_is_updated_for_nothing_only_where_it_is_known_to_be_next() {
    use ChildKind::{AdvancedStatefulSet, CloneSet, StatefulSet};
    let priority = json!({"updateStrategy": {"priorityStrategy": {"orderPriority": [{"orderedKey": "x"}]}}});
    let scatter = json!({"updateStrategy": {"scatterStrategy": [{"key": "x", "value": "y"}]}});
    let empty = json!({"updateStrategy": {"priorityStrategy": {}, "scatterStrategy": []}});
    let unordered = json!({"updateStrategy": {"rollingUpdate": {"unorderedUpdate": {}}}});
    let reserved = json!({"reserveOrdinals": [1]});
    for (kind, more, available, partition) in [
        (CloneSet, json!({}), [0, 1], 2),
        (CloneSet, empty, [0, 1], 2),
        (CloneSet, priority, [0, 1], 3),
        (CloneSet, scatter, [0, 1], 3),
        (StatefulSet, json!({}), [0, 1], 2),
        (StatefulSet, json!({}), [0, 2], 3),
        (StatefulSet, json!({"ordinals": {"start": 5}}), [5, 6], 2),
        (AdvancedStatefulSet, json!({}), [0, 1], 2),
        (AdvancedStatefulSet, unordered, [0, 1], 3),
        // Its Pods are 0, 2 and 3.
        (AdvancedStatefulSet, reserved.clone(), [0, 2], 2),
        (AdvancedStatefulSet, reserved, [0, 3], 3),
        (AdvancedStatefulSet, json!({"reserveOrdinals": ["1-1"]}), [0, 3], 3),
        (AdvancedStatefulSet, json!({"reserveOrdinals": "many"}), [0, 1], 3),
    ] {
        let (mut old, mut new) = budgeted(kind, "1");
        for spec in [&mut old, &mut new] {
            spec.template.spec.extend(more.as_object().cloned().unwrap());
        }
        let pods = SubsetPods { there: 3, available_ordinals: available.into(), ..old_pods(2) };
        let a = ChildSeen { pods, ..child(&old, "a", 3, "r1") };
        let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
        let plan = plan_of(&new, &[a, b]);
        assert_eq!((plan.partitions["a"], plan.partitions["b"]), (partition, 3), "{kind:?} {more} {available:?}");
    }
    // One is permitted and one is down. It may be another one.
    for (more, partition) in
        [(json!({}), 1), (json!({"priorityStrategy": {"orderPriority": [{"orderedKey": "x"}]}}), 2)]
    {
        let (_, mut new) = budgeted(CloneSet, "2");
        new.template.spec.insert("updateStrategy".into(), more);
        let mut a = ChildSeen { pods: old_pods(2), ..child(&new, "a", 3, "r2") };
        a.object["spec"]["updateStrategy"]["partition"] = 2.into();
        let plan = plan_of(&new, &[a, child(&new, "b", 3, "r2")]);
        assert_eq!(plan.partitions["a"], partition);
    }
}

#[test]
fn a_deployment_with_a_changed_patch_has_rolled_when_its_old_pods_are_gone() {
    let (old, new) = budgeted(ChildKind::Deployment, "1");
    // With a surge all new Pods are made at once. The old ones have the same label of a revision.
    for (there, available, is_through) in [(6, 3, false), (6, 5, false), (4, 3, false), (4, 4, true), (3, 3, true)] {
        let surging = |spec: &UnitedSpec, subset: &str, revision: &str| {
            let mut surging = child(spec, subset, 3, revision);
            surging.pods = SubsetPods { there, updated: there, ..all_there(available) };
            surging
        };
        let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
        let plan = plan_of(&new, &[surging(&new, "a", "r2"), b]);
        let is_next = plan.steps.iter().any(|step| matches!(step, SubsetStep::Change { subset, .. } if subset == "b"));
        assert_eq!(is_next, is_through, "{there} {available}: {plan:?}");
        // The same in an older roll-out, which is the first to go on.
        let a = ChildSeen { pods: old_pods(3), ..child(&old, "a", 3, "r1") };
        let plan = plan_of(&new, &[a, surging(&old, "b", "r1")]);
        let [SubsetStep::Change { subset, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(subset, if there > 3 { "b" } else { "a" }, "{there} {available}");
    }
}

#[test]
fn nothing_new_is_permitted_while_a_controller_has_not_seen_that_its_workload_was_written() {
    let (old, new) = budgeted(ChildKind::CloneSet, "2");
    for (revision, observed, is_deleting, partitions) in
        [("r2", 1, false, (3, 3)), ("r2", 2, false, (1, 3)), ("r1", 1, false, (1, 3)), ("r2", 1, true, (1, 3))]
    {
        let mut a = child(if revision == "r2" { &new } else { &old }, "a", 3, revision);
        a.object["spec"]["updateStrategy"]["partition"] = 3.into();
        a.status["observedGeneration"] = observed.into();
        let a = ChildSeen { generation: 2, is_deleting, pods: old_pods(3), ..a };
        let b = ChildSeen { pods: old_pods(3), ..child(&old, "b", 3, "r1") };
        let plan = plan_of(&new, &[a, b]);
        assert_eq!((plan.partitions["a"], plan.partitions["b"]), partitions, "{revision} {observed} {is_deleting}");
    }
}

#[test]
fn what_a_second_workload_has_out_of_service_counts() {
    for (kind, budget) in [(ChildKind::CloneSet, "2"), (ChildKind::Deployment, "1")] {
        let (old, new) = budgeted(kind, budget);
        // The first one rolls; the second one has more Pods, and takes its place.
        let mut rolling = child(&new, "a", 3, "r2");
        if kind == ChildKind::CloneSet {
            rolling.object["spec"]["updateStrategy"]["partition"] = 1.into();
        }
        rolling.pods = SubsetPods { there: 3, updated: 2, updated_ready: 0, updated_available: 0, ..all_there(1) };
        rolling.status["updatedReplicas"] = 2.into();
        let full =
            |uid: &str, subset: &str| ChildSeen { uid: uid.into(), pods: old_pods(3), ..child(&old, subset, 3, "r1") };
        let plan = plan_of(&new, &[rolling, full("second", "a"), full("b", "b")]);
        let is_rolled = |step: &&SubsetStep| {
            let SubsetStep::Change { patch, .. } = step else { return false };
            patch["spec"]["updateStrategy"]["partition"].as_i64().unwrap_or_default() != 3
        };
        assert_eq!(plan.steps.iter().find(is_rolled), None, "{kind:?}");
        let goes = |step: &SubsetStep| matches!(step, SubsetStep::Delete { uid, .. } if uid == "uid-a");
        assert!(plan.steps.iter().any(goes), "{kind:?}: the others have all Pods");
    }
}

#[test]
fn a_deployment_in_the_middle_of_an_older_roll_out_is_the_next_one_and_keeps_its_limit() {
    let (old, new) = budgeted(ChildKind::Deployment, "1");
    let wide = |of: &UnitedSpec| {
        let mut of = of.clone();
        of.template.spec.insert("strategy".into(), json!({"rollingUpdate": {"maxUnavailable": 3}}));
        of
    };
    let (old, new) = (wide(&old), wide(&new));
    let limited = |child: ChildSeen| {
        let mut child = child;
        let limit = json!({"metadata": {"annotations": {labels::SUBSET_MAX_UNAVAILABLE: "1"}},
            "spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}});
        json_patch::merge(&mut child.object, &limit);
        child
    };
    let half = SubsetPods { own_available: 1, ..old_pods(3) };
    let b = limited(ChildSeen { pods: half, ..child(&old, "b", 3, "r1") });
    let a = ChildSeen { pods: old_pods(3), ..child(&old, "a", 3, "r1") };
    let plan = plan_of(&new, &[a, b.clone()]);
    let [SubsetStep::Change { subset, patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert!(subset == "b" && patch["spec"]["template"].is_object(), "{plan:?}");
    assert_eq!(patch.pointer("/spec/strategy/rollingUpdate/maxUnavailable"), None, "it stays at 1");
    let pods = SubsetPods { updated_available: 2, ..old_pods(3) };
    let rolling = limited(ChildSeen { pods, ..child(&new, "a", 3, "r2") });
    let plan = plan_of(&new, &[rolling, b]);
    assert_eq!((plan.steps, plan.wait.unwrap().0), (vec![], "WaitsForBudget"));
}

#[test]
fn a_budget_that_is_nothing_is_refused_by_name() {
    for text in ["0", "-1", "0%", "many", "", "5x"] {
        let error = super::spec::budget(text).unwrap_err().to_string();
        assert!(
            error.starts_with("metadata.annotations[kruise.rs/max-unavailable]: ") && error.contains("20%"),
            "{error}"
        );
    }
    let spec = spec(ChildKind::CloneSet, json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: "10%"}}}));
    assert_eq!((spec.budget_of(4), spec.budget_of(30)), (Some(1), Some(3)));
}

#[test]
fn held_by_partition_is_ready_and_the_current_revision_stays() {
    let spec =
        spec(ChildKind::CloneSet, json!({"spec": {"updateStrategy": {"manualUpdate": {"partitions": {"a": 3}}}}}));
    let mut a = child(&spec, "a", 3, "r2");
    a.object["spec"]["updateStrategy"]["partition"] = 3.into();
    a.pods = old_pods(3);
    let children = [a, child(&spec, "b", 3, "r2")];
    let recorded = UnitedDeploymentStatus { current_revision: "r1".into(), ..UnitedDeploymentStatus::default() };
    let plan = planned(&spec, &children, &recorded, 0);
    let owner = owner();
    let seen = UnitedSeen { owner: &owner, children: &children, recorded: &recorded, update: "r2" };
    let status = status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(0));
    let ready = condition(&status, "Ready").unwrap();
    assert_eq!((&*ready.status, &*ready.reason, &*status.current_revision), ("True", "Partition", "r1"));
    let updating = condition(&status, status::UPDATED).unwrap();
    assert_eq!((&*updating.status, &*updating.reason), ("False", "UnitedDeploymentRevisionUpdating"));
}

#[test]
fn hostile_specs_are_read_or_refused() {
    for changes in [
        json!({"spec": {"template": {"deploymentTemplate": {}}}}),
        json!({"spec": {"template": null}}),
        json!({"spec": {"selector": {"matchLabels": null}}}),
        json!({"spec": {"topology": {"subsets": [{"name": "a"}, {"name": "a"}]}}}),
        json!({"spec": {"topology": {"subsets": [{"name": "a", "replicas": "x%"}]}}}),
    ] {
        assert!(UnitedSpec::of(&object(ChildKind::CloneSet, changes.clone())).is_err(), "{changes}");
    }
    let many: Vec<Value> = (0..501).map(|i| json!({"name": format!("s{i}")})).collect();
    let many = UnitedSpec::of(&object(ChildKind::CloneSet, json!({"spec": {"topology": {"subsets": many}}})));
    assert_eq!(many.unwrap_err().to_string(), "spec.topology.subsets: it has 501 entries; want up to 500");
    let large = |count: usize, bytes: usize, (terms, required): (usize, usize)| {
        let term = json!({"matchExpressions": [{"key": "x".repeat(required)}]});
        let subsets: Vec<Value> =
            (0..count).map(|i| json!({"name": format!("s{i}"), "nodeSelectorTerm": term})).collect();
        let terms = vec![json!({}); terms];
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let changes = json!({"metadata": {"annotations": {"x": "x".repeat(bytes)}},
            "spec": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}});
        let changes = json!({"spec": {"template": {"cloneSetTemplate": changes}, "topology": {"subsets": subsets}}});
        UnitedSpec::of(&object(ChildKind::CloneSet, changes)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(large(4, 5 << 20, (0, 0)), Ok(()), "no object is so large");
    assert_eq!((large(500, 30 << 10, (0, 0)), large(20, 0, (1000, 500))), (Ok(()), Ok(())));
    for error in [large(500, 40 << 10, (0, 0)), large(200, 0, (1000, 500))] {
        let why = error.unwrap_err();
        assert!(why.starts_with("spec.topology.subsets: ") && why.ends_with("want up to 16777216"), "{why}");
    }
    let odd = json!({"spec": {"template": {"cloneSetTemplate": {"metadata": 7, "spec": {"updateStrategy": "x", "template": {"metadata": [], "spec": null}}}},
        "topology": {"subsets": [{"name": "a", "nodeSelectorTerm": {"matchExpressions": [1]}, "tolerations": [2], "patch": {"spec": {"x": null}}}]}}});
    let plan = plan_of(&spec(ChildKind::CloneSet, odd), &[]);
    assert_eq!(plan.steps.len(), 1);
    let bad = json!({"spec": {"topology": {"subsets": [{"name": "a", "patch": []}, {"name": "b"}]}}});
    let plan = plan_of(&spec(ChildKind::CloneSet, bad), &[]);
    assert_eq!(
        (plan.steps.len(), plan.impossible.unwrap().1),
        (1, "spec.topology.subsets[0].patch: a patch has to be an object".to_owned())
    );
}

#[test]
fn the_cost_of_a_budget_is_that_of_the_pods_and_not_of_the_replicas() {
    let (old, new) = budgeted(ChildKind::StatefulSet, "1");
    let many = |spec: &UnitedSpec| UnitedSpec { replicas: Some(2_000_000_000), ..spec.clone() };
    let children = [child(&many(&old), "a", 5, "r1"), child(&many(&old), "b", 5, "r1")];
    // Two billion steps for each subset would be minutes here.
    let plan = plan_of(&many(&new), &children);
    assert_eq!(plan.replicas.values().sum::<i32>(), 2_000_000_000);
}

#[test]
fn names_of_workloads_leave_room_for_a_hash_in_a_label() {
    for (name, subset) in
        [("web", "a"), ("my-long-application-name-prod", "availability-zone-1a"), (&"n".repeat(52), "b")]
    {
        let spec = UnitedSpec { name: name.to_owned(), ..spec(ChildKind::CloneSet, json!({})) };
        let mut of = spec.subsets[0].clone();
        of.name = subset.to_owned();
        let controls = make::Controls { replicas: 1, partition: 0, limit: None };
        let made = make::child(&owner(), &spec, &of, "r1", controls).unwrap();
        let base = made["metadata"]["generateName"].as_str().unwrap();
        assert!(base.len() + crate::k8s::name::SUFFIX <= 52 && base.ends_with('-') && !base.ends_with("--"), "{base}");
        assert!(format!("{name}-{subset}-").starts_with(base.trim_end_matches('-')), "{base}");
    }
}

#[test]
fn a_deployment_that_recreates_gets_no_max_unavailable() {
    let recreates = json!({"spec": {"template": {"deploymentTemplate": {"spec": {"strategy": {"type": "Recreate"}}}},
        "topology": {"scheduleStrategy": {"type": "Adaptive", "adaptive": {"reserveUnschedulablePods": true}}}}});
    let spec = spec(ChildKind::Deployment, recreates);
    let pods = SubsetPods { reserved: 1, ..all_there(2) };
    let children = [ChildSeen { pods, ..child(&spec, "a", 2, "r1") }, child(&spec, "b", 3, "r2")];
    for step in plan_of(&spec, &children).steps {
        let SubsetStep::Change { patch, .. } = step else { panic!("{step:?}") };
        assert_eq!(patch.pointer("/spec/strategy/rollingUpdate"), None, "{patch}");
    }
}

#[test]
fn a_roll_out_leaves_what_it_may_not_change_or_what_others_write() {
    let with =
        |kind: ChildKind, spec_of: Value| spec(kind, json!({"spec": {"template": {kind.member(): {"spec": spec_of}}}}));
    let old = with(ChildKind::CloneSet, json!({"scaleStrategy": {}}));
    let mut a = child(&old, "a", 3, "r1");
    a.object["spec"]["scaleStrategy"]["podsToDelete"] = json!(["web-1"]);
    let plan = plan_of(&old, &[a, child(&old, "b", 3, "r2")]);
    let [SubsetStep::Change { patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(patch.pointer("/spec/scaleStrategy/podsToDelete"), None, "{patch}");
    for (kind, is_changed) in [(ChildKind::StatefulSet, false), (ChildKind::AdvancedStatefulSet, true)] {
        let (old, new) =
            (with(kind, json!({"revisionHistoryLimit": 10})), with(kind, json!({"revisionHistoryLimit": 3})));
        let plan = plan_of(&new, &[child(&old, "a", 3, "r1"), child(&old, "b", 3, "r2")]);
        let [SubsetStep::Change { patch, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(patch.pointer("/spec/revisionHistoryLimit").is_some(), is_changed, "{patch}");
    }
}

#[test]
fn a_pause_of_nothing_is_a_second() {
    let none = json!({"spec": {"topology": {"scheduleStrategy": {"adaptive": {"unschedulableDuration": 0}}}}});
    assert_eq!(adaptive(none).unschedulable_for, Duration::from_secs(1));
}

fn reserving(changes: Value) -> UnitedSpec {
    let mut all = json!({"spec": {"replicas": 12, "topology": {"subsets": [{"name": "a", "maxReplicas": 10}, {"name": "b"}],
        "scheduleStrategy": {"adaptive": {"reserveUnschedulablePods": true}}}}});
    json_patch::merge(&mut all, &changes);
    adaptive(all)
}

#[test]
fn pods_without_a_place_do_not_stop_a_roll_out_before_and_after_their_own_update() {
    let spec = reserving(json!({}));
    for (reserved, ready, limit) in [(1, 9, 3), (3, 7, 5), (3, 6, 5), (5, 5, 7), (9, 1, 10), (10, 0, 10), (3, 10, 2)] {
        for updated_reserved_down in [0, reserved] {
            let reserved_down = reserved.min(10 - ready);
            let pods = SubsetPods { reserved, reserved_down, updated_reserved_down, ..old_pods(ready) };
            let children = [ChildSeen { pods, ..child(&spec, "a", 10, "r1") }, child(&spec, "b", 2 + reserved, "r2")];
            let plan = plan_of(&spec, &children);
            let [SubsetStep::Change { subset, patch, .. }, ..] = &plan.steps[..] else { panic!("{plan:?}") };
            let written = patch.pointer("/spec/updateStrategy/maxUnavailable").and_then(Value::as_i64).unwrap_or(2);
            assert_eq!((subset.as_str(), written), ("a", limit), "{reserved} of 10 without a place, {ready} ready");
        }
    }
}

#[test]
fn pods_without_a_place_use_up_no_budget_of_the_whole() {
    let spec = reserving(json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: "2"}}}));
    let mut a = child(&spec, "a", 10, "r2");
    a.object["spec"]["updateStrategy"]["partition"] = 7.into();
    a.pods = SubsetPods { reserved: 3, reserved_down: 3, updated: 3, updated_reserved_down: 3, ..old_pods(7) };
    let b = |replicas: i32| ChildSeen { pods: old_pods(replicas), ..child(&spec, "b", replicas, "r1") };
    let plan = plan_of(&spec, &[a.clone(), b(5)]);
    assert_eq!((plan.partitions["a"], plan.partitions["b"]), (5, 5), "the three are updated and stay down");
    let plan = plan_of(&spec, &[a, b(2)]);
    assert_eq!((plan.partitions["a"], plan.partitions["b"]), (7, 2), "others have yet to be asked for");

    let a = child(&spec, "a", 10, "r1");
    let pods = SubsetPods { reserved: 3, reserved_down: 3, own_available: 7, ..old_pods(7) };
    let b = ChildSeen { pods: old_pods(5), ..child(&spec, "b", 5, "r1") };
    let plan = plan_of(&spec, &[ChildSeen { pods, ..a }, b]);
    assert_eq!(plan.partitions["a"], 8, "nor what they were permitted of an older revision");

    let of = |image: &str| {
        let mut spec = reserving(json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: "2"}}}));
        let template = json!({"template": {"spec": {"containers": [{"name": "main", "image": image}]}}});
        spec.template.kind = ChildKind::Deployment;
        spec.template.spec = template.as_object().cloned().unwrap();
        spec
    };
    let (old, new) = (of("i:1"), of("i:2"));
    let pods = SubsetPods { reserved: 3, reserved_down: 3, updated_reserved_down: 3, ..all_there(7) };
    let through = ChildSeen { pods, ..child(&new, "a", 10, "r2") };
    for (others, limit) in [(5, 5), (2, 1)] {
        let plan = plan_of(&new, &[through.clone(), child(&new, "b", others, "r2")]);
        let [SubsetStep::Change { subset, patch, .. }, ..] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!((&**subset, &patch["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]), ("a", &json!(limit)));
    }
    let plan = plan_of(&new, &[through, ChildSeen { pods: old_pods(5), ..child(&old, "b", 5, "r1") }]);
    let is_rolled = |step: &SubsetStep| matches!(step, SubsetStep::Change { subset, patch, .. } if subset == "b" && patch["spec"]["template"].is_object());
    assert!(plan.steps.iter().any(is_rolled), "the next Deployment has its turn: {plan:?}");
}

#[test]
fn a_deployment_in_a_full_zone_does_not_keep_the_others_from_being_updated() {
    let of = |image: &str| {
        let subsets = json!([{"name": "a", "maxReplicas": 3}, {"name": "b"}]);
        let mut spec = reserving(json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: "1"}},
            "spec": {"replicas": 6, "topology": {"subsets": subsets}}}));
        let template = json!({"template": {"spec": {"containers": [{"name": "main", "image": image}]}}});
        spec.template.kind = ChildKind::Deployment;
        spec.template.spec = template.as_object().cloned().unwrap();
        spec
    };
    let (old, new) = (of("i:1"), of("i:2"));
    // One of its Pods is down and was kept: it gets no more Pods, so that nobody makes up for those of the full zone.
    let broken = SubsetPods { there: 3, reserved: 1, reserved_down: 1, ..old_pods(2) };
    let b = ChildSeen { pods: broken, ..child(&old, "b", 3, "r1") };
    let full = |updated: i32, unplaced: i32| {
        let mut a = child(&new, "a", 3, "r2");
        let limit = json!({"metadata": {"annotations": {labels::SUBSET_MAX_UNAVAILABLE: "1"}},
            "spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}});
        json_patch::merge(&mut a.object, &limit);
        a.status["updatedReplicas"] = updated.into();
        a.pods = SubsetPods {
            there: 3,
            reserved: updated,
            reserved_down: updated,
            updated,
            updated_reserved_down: updated,
            updated_unplaced: unplaced,
            ..old_pods(3 - updated)
        };
        a
    };
    for (what, updated, unplaced, wanted) in [
        ("all are updated, and none finds a place", 3, 3, vec!["b"]),
        ("one finds no place, and the budget has no room for the next", 1, 1, vec!["b"]),
        ("one is starting", 1, 0, vec![]),
    ] {
        let plan = plan_of(&new, &[full(updated, unplaced), b.clone()]);
        assert_eq!((plan.replicas["a"], plan.replicas["b"]), (3, 3), "{what}");
        assert_eq!(rolled(&plan), wanted, "{what}: {plan:?}");
    }
}

#[test]
fn under_a_budget_a_reserved_pod_that_runs_is_reserved_no_more_before_its_turn() {
    let of = |budget: Value| reserving(json!({"metadata": {"annotations": {labels::UNITED_MAX_UNAVAILABLE: budget}}}));
    let (free, budgeted) = (of(Value::Null), of("1".into()));
    let pod: PodView = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": {labels::RESERVED_POD: "true"}},
        "status": {"phase": "Running", "conditions":
            [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T10:00:00Z"}]}}))
    .unwrap();
    for (spec, is_updated, second, is_reserved) in [
        (&free, false, 300, true),
        (&free, true, 300, false),
        (&budgeted, false, 299, true),
        (&budgeted, false, 300, false),
    ] {
        let of = schedule::Reservation { spec, is_marked: true, is_updated, updating_since: None };
        let said = schedule::is_reserved(&pod, of, at(second)).0;
        assert_eq!(said, is_reserved, "{:?} {is_updated} {second}", spec.budget);
    }
}

#[test]
fn spec_4_5_a_roll_out_is_over_when_all_are_updated_but_those_that_others_make_up_for() {
    let with = |b: Value| {
        let subsets = json!([{"name": "a", "maxReplicas": 4}, b]);
        reserving(json!({"spec": {"replicas": 6, "topology": {"subsets": subsets}}}))
    };
    let (open, full) = (with(json!({"name": "b"})), with(json!({"name": "b", "maxReplicas": 2})));
    let waits = SubsetPods { there: 4, updated: 4, reserved: 1, reserved_down: 1, ..all_there(3) };
    let updated = SubsetPods { updated_reserved_down: 1, ..waits.clone() };
    let outdated = SubsetPods { updated: 3, ..waits };
    let runs = SubsetPods { reserved: 1, ..all_there(4) };
    let one_old = SubsetPods { updated: 2, updated_ready: 2, updated_available: 2, ..all_there(3) };
    for (what, spec, a, b, current) in [
        ("it has the new revision and another one is there", &open, &updated, all_there(3), "r2"),
        ("the other one is not Ready yet", &open, &updated, all_there(2), "r1"),
        ("it is still on the old revision", &open, &outdated, all_there(3), "r1"),
        ("it runs, and another one is old", &open, &runs, one_old, "r1"),
        ("nobody makes up for it", &full, &updated, all_there(2), "r1"),
    ] {
        let b = ChildSeen { pods: b, ..child(spec, "b", if *spec == full { 2 } else { 3 }, "r2") };
        let children = [ChildSeen { pods: a.clone(), ..child(spec, "a", 4, "r2") }, b];
        let recorded: UnitedDeploymentStatus =
            serde_json::from_value(json!({"currentRevision": "r1", "subsetStatuses": [{"name": "a"}, {"name": "b"}]}))
                .unwrap();
        let (plan, owner) = (planned(spec, &children, &recorded, 0), owner());
        let seen = UnitedSeen { owner: &owner, children: &children, recorded: &recorded, update: "r2" };
        let status = status::status(spec, 1, seen, &plan, &PassFailures::default(), at(0));
        assert_eq!(status.current_revision, current, "{what}: {:?}", plan.replicas);
        assert_eq!(condition(&status, "Reconciling").unwrap().status, "True", "{what}");
    }
}

#[test]
fn the_time_of_a_roll_out_begins_with_its_revision() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let outdated = |subset: &str| ChildSeen { pods: old_pods(3), ..child(&spec, subset, 3, "r0") };
    let children = [outdated("a"), outdated("b")];
    let of = |recorded: &UnitedDeploymentStatus, update: &str, second: u64| {
        let owner = owner();
        let seen = UnitedSeen { owner: &owner, children: &children, recorded, update };
        let plan = plan::plan(&spec, seen, at(second));
        status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(second))
    };
    let settled = UnitedDeploymentStatus { current_revision: "r0".into(), ..UnitedDeploymentStatus::default() };
    let first = of(&settled, "r1", 0);
    let later = of(&first, "r1", 100);
    let next = of(&later, "r2", 200);
    for (recorded, update, since) in [
        (&settled, "r1", None),
        (&first, "r1", Some(0)),
        (&later, "r1", Some(0)),
        (&later, "r2", None),
        (&next, "r2", Some(200)),
    ] {
        assert_eq!(status::updating_since(recorded, update), since.map(|second| at(second).wall), "{update} {since:?}");
    }
}

fn with_patch(image: Option<&str>) -> UnitedSpec {
    let patch = image.map(|image| json!({"spec": {"containers": [{"name": "main", "image": image}]}}));
    let budget = json!({"annotations": {labels::UNITED_MAX_UNAVAILABLE: "1"}});
    let mut subsets = json!([{"name": "a", "patch": patch}, {"name": "b"}]);
    if patch.is_none() {
        subsets = json!([{"name": "a"}, {"name": "b"}]);
    }
    spec(ChildKind::CloneSet, json!({"metadata": budget, "spec": {"topology": {"subsets": subsets}}}))
}

#[test]
fn a_changed_patch_keeps_the_budget_and_is_not_ready_until_it_has_rolled() {
    let (old, new) = (with_patch(None), with_patch(Some("p:1")));
    let b = || child(&new, "b", 3, "r2");
    let before = [child(&old, "a", 3, "r2"), b()];
    let first = plan_of(&new, &before);
    let [SubsetStep::Change { patch, .. }] = &first.steps[..] else { panic!("{first:?}") };
    assert_eq!(patch["spec"]["updateStrategy"]["partition"], 2, "one Pod at a time");
    // All Pods have the label of the revision, those with the old patch too.
    let rolling = |permitted: i32, (generation, observed): (i64, i64), updated: i32| {
        let mut a = child(&new, "a", 3, "r2");
        a.object["spec"]["updateStrategy"]["partition"] = (3 - permitted).into();
        a.generation = generation;
        a.status["observedGeneration"] = observed.into();
        a.status["updatedReplicas"] = updated.into();
        [a, b()]
    };
    for (permitted, generations, updated, partition) in [
        (1, (2, 1), 3, 2),
        (1, (2, 2), 0, 2),
        (1, (2, 2), 1, 1),
        (3, (2, 1), 3, 0),
        (3, (2, 2), 2, 0),
        (3, (2, 2), 3, 0),
    ] {
        let children = rolling(permitted, generations, updated);
        let plan = plan_of(&new, &children);
        assert_eq!(plan.partitions["a"], partition, "{permitted} {generations:?} {updated}");
        let is_ready = (permitted, generations, updated) == (3, (2, 2), 3);
        let status = said(&new, &children, &plan);
        assert_eq!(
            condition(&status, "Ready").unwrap().status == "True",
            is_ready,
            "{permitted} {generations:?} {updated}"
        );
    }
}

#[test]
fn decision_32_what_the_template_holds_is_ready() {
    for (kind, of_template, reason) in [
        (ChildKind::StatefulSet, json!({"updateStrategy": {"type": "OnDelete"}}), "OnDelete"),
        (ChildKind::AdvancedStatefulSet, json!({"updateStrategy": {"type": "OnDelete"}}), "OnDelete"),
        (ChildKind::AdvancedStatefulSet, json!({"updateStrategy": {"rollingUpdate": {"paused": true}}}), "Paused"),
        (ChildKind::CloneSet, json!({"updateStrategy": {"type": "OnDelete"}}), "OnDelete"),
        (ChildKind::CloneSet, json!({"updateStrategy": {"paused": true}}), "Paused"),
        (ChildKind::Deployment, json!({"paused": true}), "Paused"),
    ] {
        for budget in [json!({}), json!({labels::UNITED_MAX_UNAVAILABLE: "1"})] {
            let changes = json!({"metadata": {"annotations": budget}, "spec": {"template": {kind.member(): {"spec": of_template}}}});
            let spec = spec(kind, changes);
            let held = |subset: &str| {
                let mut child = child(&spec, subset, 3, "r2");
                child.status["updatedReplicas"] = 0.into();
                ChildSeen { pods: old_pods(3), ..child }
            };
            let children = [held("a"), held("b")];
            let recorded =
                UnitedDeploymentStatus { current_revision: "r1".into(), ..UnitedDeploymentStatus::default() };
            let (plan, owner) = (planned(&spec, &children, &recorded, 0), owner());
            let seen = UnitedSeen { owner: &owner, children: &children, recorded: &recorded, update: "r2" };
            let status = status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(0));
            let ready = condition(&status, "Ready").unwrap();
            assert_eq!((&*ready.status, &*ready.reason), ("True", reason), "{kind:?} {ready:?}");
            let mut down = children.clone();
            down[1].pods = old_pods(2);
            let seen = UnitedSeen { children: &down, ..seen };
            let status = status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(0));
            assert_eq!(condition(&status, "Reconciling").unwrap().status, "True", "a Pod is down");
        }
    }
}

#[test]
fn a_total_above_all_maximums_is_not_ready_with_adaptive_or_without() {
    for type_ in ["Adaptive", "Fixed"] {
        for (replicas, status, reason) in [(5, "True", "Available"), (6, "False", "NoPlace")] {
            let topology = json!({"scheduleStrategy": {"type": type_},
                "subsets": [{"name": "a", "maxReplicas": 2}, {"name": "b", "maxReplicas": 3}]});
            let spec = spec(ChildKind::CloneSet, json!({"spec": {"replicas": replicas, "topology": topology}}));
            let children = [child(&spec, "a", 2, "r2"), child(&spec, "b", 3, "r2")];
            let plan = plan_of(&spec, &children);
            assert_eq!(plan.steps, [], "all that may be there are there");
            let said = said(&spec, &children, &plan);
            let ready = condition(&said, "Ready").unwrap();
            assert_eq!((&*ready.status, &*ready.reason), (status, reason), "{type_} {replicas}");
            assert_eq!(ready.message.contains("no subset has a place for 1 of the Pods"), replicas == 6, "{ready:?}");
        }
    }
}

#[test]
fn numbers_that_do_not_fit_leave_the_recorded_ones() {
    let bad = json!({"spec": {"topology": {"subsets": [{"name": "a", "replicas": 9}, {"name": "b"}]}}});
    let spec = spec(ChildKind::CloneSet, bad);
    let children = [child(&spec, "a", 3, "r2"), child(&spec, "b", 3, "r2")];
    let recorded: UnitedDeploymentStatus = serde_json::from_value(json!({"currentRevision": "r2",
        "subsetReplicas": {"a": 3, "b": 3}, "updateStatus": {"updatedRevision": "r2", "currentPartitions": {"a": 1, "b": 0}}}))
    .unwrap();
    let (plan, owner) = (planned(&spec, &children, &recorded, 0), owner());
    let seen = UnitedSeen { owner: &owner, children: &children, recorded: &recorded, update: "r2" };
    let status = status::status(&spec, 1, seen, &plan, &PassFailures::default(), at(0));
    assert_eq!(condition(&status, "Stalled").unwrap().reason, "ReplicasDoNotFit");
    assert_eq!(status.update_status, recorded.update_status);
    assert_eq!((status.subset_replicas, status.subset_statuses[0].partition), (recorded.subset_replicas, 1));
}

/// Spec 4.5: Pods of a built-in StatefulSet that hold up its roll-out.
#[test]
fn spec_4_5_stuck_are_pods_of_an_old_revision_that_are_to_be_updated_and_not_ready() {
    let rolling = |partition: i64| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}});
    let strategy = |update: Value| json!({"spec": {"template": {"statefulSetTemplate": {"spec": update}}}});
    let of = |kind: ChildKind, changes: Value| {
        let spec = spec(kind, changes);
        let mut child = child(&spec, "a", 3, "r2");
        child.generation = 4;
        child.status = json!({"observedGeneration": 4, "updateRevision": "new"});
        (spec, child)
    };
    let revision = |spec: &UnitedSpec, child: &ChildSeen| {
        let (owner, recorded) = (owner(), UnitedDeploymentStatus::default());
        let seen = UnitedSeen { owner: &owner, children: &[], recorded: &recorded, update: "r2" };
        stuck::update_revision(child, &spec.subsets[0], seen).map(str::to_owned)
    };
    let (built_in, known) = of(ChildKind::StatefulSet, json!({}));
    assert_eq!(revision(&built_in, &known).as_deref(), Some("new"));
    for kind in [ChildKind::AdvancedStatefulSet, ChildKind::CloneSet, ChildKind::Deployment] {
        let (spec, child) = of(kind, json!({}));
        assert_eq!(revision(&spec, &child), None, "{kind:?} looks after its own");
    }
    let (on_delete, child) = of(ChildKind::StatefulSet, strategy(json!({"updateStrategy": {"type": "OnDelete"}})));
    assert_eq!(revision(&on_delete, &child), None, "its Pods are the user's to delete");
    let mut behind = known.clone();
    behind.status["observedGeneration"] = 3.into();
    assert_eq!(revision(&built_in, &behind), None, "deleted now, a Pod would come back as it was");
    assert_eq!(revision(&built_in, &ChildSeen { is_deleting: true, ..known.clone() }), None);
    assert_eq!(revision(&built_in, &ChildSeen { status: json!({}), ..known.clone() }), None);
    let mut old = known.clone();
    old.object["metadata"]["labels"][labels::UNITED_REVISION] = "r1".into();
    assert_eq!(revision(&built_in, &old), None, "the workload does not have the template yet");

    let pod = |name: &str, hash: &str, ready: &str, more: Value| -> PodView {
        let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"controller-revision-hash": hash}},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        json_patch::merge(&mut pod, &more);
        serde_json::from_value(pod).unwrap()
    };
    let mut kept = known.clone();
    kept.object["spec"]["updateStrategy"] = rolling(2)["updateStrategy"].clone();
    let mut numbered = kept.clone();
    numbered.object["spec"]["ordinals"] = json!({"start": 5});
    let (a, deleting) = ("web-a-x", json!({"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}}));
    let of = |ordinal: i32| format!("{a}-{ordinal}");
    for (what, child, pod, is_stuck) in [
        ("old and down", &known, pod(&of(2), "old", "False", json!({})), true),
        ("old, and nothing known", &known, pod(&of(0), "old", "Unknown", json!({})), true),
        ("old and Ready", &known, pod(&of(2), "old", "True", json!({})), false),
        ("new and down", &known, pod(&of(2), "new", "False", json!({})), false),
        ("on its way out", &known, pod(&of(2), "old", "False", deleting), false),
        ("finished", &known, pod(&of(2), "old", "False", json!({"status": {"phase": "Failed"}})), false),
        ("above the replicas", &known, pod(&of(3), "old", "False", json!({})), false),
        ("of another name", &known, pod("web-b-x-2", "old", "False", json!({})), false),
        ("held by the partition", &kept, pod(&of(1), "old", "False", json!({})), false),
        ("above the partition", &kept, pod(&of(2), "old", "False", json!({})), true),
        ("the partition counts from the first ordinal", &numbered, pod(&of(6), "old", "False", json!({})), false),
        ("and so do the replicas", &numbered, pod(&of(7), "old", "False", json!({})), true),
    ] {
        assert_eq!(stuck::is_stuck(child, "new", &pod), is_stuck, "{what}");
    }
}

#[test]
fn pods_of_older_revisions_stay_when_the_partition_keeps_all_of_them() {
    let with = |kind: ChildKind, kept: i32, held: Value| {
        let template = json!({kind.member(): {"spec": {"updateStrategy": held}}});
        let partitions = json!({"manualUpdate": {"partitions": {"a": kept}}});
        spec(kind, json!({"spec": {"updateStrategy": partitions, "template": template}}))
    };
    for (kind, kept, held, old, stay) in [
        (ChildKind::CloneSet, 2, Value::Null, 2, true),
        (ChildKind::CloneSet, 2, Value::Null, 1, true),
        (ChildKind::CloneSet, 2, Value::Null, 3, false),
        (ChildKind::CloneSet, 0, Value::Null, 1, false),
        (ChildKind::CloneSet, -1, Value::Null, 1, false),
        (ChildKind::AdvancedStatefulSet, 2, Value::Null, 2, true),
        (ChildKind::Deployment, 2, Value::Null, 2, false),
        (ChildKind::CloneSet, 0, json!({"paused": true}), 5, true),
    ] {
        let spec = with(kind, kept, held.clone());
        assert_eq!(schedule::keeps_old(&spec, "a", old), stay, "{kind:?} {kept} {held} {old}");
        assert_eq!(schedule::keeps_old(&spec, "b", old), spec.template.holds().is_some());
    }
}

#[test]
fn an_orphan_is_adopted_by_a_subset_without_a_workload_by_kind_labels_and_selector() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let orphan = |changes: Value| {
        let mut orphan = child(&spec, "a", 3, "r2");
        json_patch::merge(&mut orphan.object, &changes);
        orphan
    };
    let plain = || orphan(json!({}));
    let label = |key: &str, value: Value| orphan(json!({"metadata": {"labels": {key: value}}}));
    let selects = |selector: Value| orphan(json!({"spec": {"selector": selector}}));
    let subset = labels::SUBSET_NAME;
    for (what, orphan, is_adopted) in [
        ("one that was ours", plain(), true),
        ("of another revision", label(labels::UNITED_REVISION, "r1".into()), true),
        ("of another kind", ChildSeen { kind: Some(ChildKind::Deployment), ..plain() }, false),
        ("on its way out", ChildSeen { is_deleting: true, ..plain() }, false),
        ("that our selector does not match", label("app", "other".into()), false),
        ("of no subset", label(subset, Value::Null), false),
        ("with the label of another subset", label(subset, "b".into()), false),
        ("of a subset that is no more", ChildSeen { subset: "z".into(), ..label(subset, "z".into()) }, false),
        ("with other Pods", selects(json!({"matchLabels": {subset: null}})), false),
        ("with fewer Pods", selects(json!({"matchLabels": {"tier": "x"}})), false),
        ("with an empty list", selects(json!({"matchExpressions": []})), true),
        ("with a selector that cannot be read", selects(json!({"matchLabels": 5})), false),
    ] {
        let adopted = adopt::adopted(&spec, &[child(&spec, "b", 3, "r2")], &[orphan]);
        assert_eq!(adopted.len(), usize::from(is_adopted), "{what}");
    }
    let is_deleting = ChildSeen { is_deleting: true, ..child(&spec, "a", 3, "r2") };
    for there in [child(&spec, "a", 3, "r2"), is_deleting] {
        assert!(adopt::adopted(&spec, &[there], &[plain()]).is_empty(), "it has one");
    }
    let mut everything = spec.clone();
    everything.selector = serde_json::from_value(json!({})).unwrap();
    assert!(adopt::adopted(&everything, &[], &[plain()]).is_empty());
}

#[test]
fn of_several_orphans_the_one_in_service_is_adopted_then_the_oldest() {
    let spec = spec(ChildKind::Deployment, json!({}));
    let of = |name: &str, ready: i32, second: u64| ChildSeen {
        name: name.into(),
        status: json!({"readyReplicas": ready}),
        created: Some(at(second).wall),
        ..child(&spec, "a", 3, "r1")
    };
    for (orphans, wanted) in [
        ([of("x", 1, 5), of("y", 3, 9)], "y"),
        ([of("x", 0, 9), of("y", 0, 5)], "y"),
        ([of("y", 0, 5), of("x", 0, 5)], "x"),
    ] {
        let adopted = adopt::adopted(&spec, &[], &orphans);
        assert_eq!(adopted.iter().map(|orphan| &*orphan.name).collect::<Vec<_>>(), [wanted]);
    }
}

#[test]
fn no_workload_is_made_in_the_place_of_one_that_is_still_to_be_adopted() {
    let spec = spec(ChildKind::CloneSet, json!({}));
    let mut plan = plan_of(&spec, &[]);
    adopt::hold_back(&mut plan, &[child(&spec, "a", 3, "r1")]);
    assert!(matches!(&plan.steps[..], [SubsetStep::Create { subset, .. }] if subset == "b"), "{plan:?}");
}
