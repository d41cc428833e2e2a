//! Rules of ResourceDistributions: what copies are, who gets one, in which order, and what the status says.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    content::{Content, ResourceKind, fingerprint},
    copy::{self, CopyObject, CopyView, Distributor, Wanted, is_copy},
    memory::{DistributionMemory, Done, Expected, Operation, Pace, SLOWEST_COPY, SLOWEST_SOURCE},
    plan::{CopyStep, Facts, MOST_AGAIN, MOST_STEPS, SeenCopy, Steps, Survey},
    spec::{DistributionSpec, NamespaceFacts, Relation, TargetSpec, identity},
    status::{About, Situation, status},
    turns::{CONFLICT_RETRY, Load, PERIOD, Periods, SHORTEST, TICK},
};
use crate::{
    api::{
        apps::resource_distribution::{ResourceDistributionSpec, ResourceDistributionStatus},
        labels,
    },
    k8s::pointer::patched,
};

/// What OpenKruise 1.9.0 had made.
fn recorded() -> Value {
    serde_json::from_str(include_str!("../../../api/apps/testdata/resource_distribution.json")).unwrap()
}

fn read(spec: Value) -> ResourceDistributionSpec {
    serde_json::from_value(spec).unwrap()
}

fn spec_of(resource: Value, targets: Value) -> DistributionSpec {
    DistributionSpec::of(&read(json!({"resource": resource, "targets": targets}))).unwrap()
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}})
}

const OF: Distributor<'_> = Distributor { name: "d", uid: "u" };

fn metadata(object: &Value) -> ObjectMeta {
    serde_json::from_value(object["metadata"].clone()).unwrap()
}

/// A copy as the API server has it.
fn stored(content: &Content) -> Value {
    let mut object = copy::new(content, OF);
    json_patch::merge(&mut object, &json!({"metadata": {"namespace": "a", "uid": "x", "resourceVersion": "7"}}));
    object
}

fn view(object: &Value) -> CopyView {
    serde_json::from_value::<CopyObject>(object.clone()).unwrap().into()
}

fn changes(object: &Value, content: &Content) -> Option<Value> {
    copy::patch(object, &metadata(object), content, OF)
}

fn changed(mut object: Value, changes: Value) -> Value {
    json_patch::merge(&mut object, &changes);
    object
}

fn namespace(name: &str) -> NamespaceFacts {
    NamespaceFacts { name: name.into(), ..NamespaceFacts::default() }
}

fn facts(object: Value) -> NamespaceFacts {
    let namespace: Namespace = serde_json::from_value(object).unwrap();
    NamespaceFacts::of(&namespace, "kruise-system")
}

// ---- who gets a copy ----

#[test]
fn all_or_those_that_are_named_and_selected_but_none_that_is_excluded() {
    let spec = |targets: Value| spec_of(config_map(json!({})), targets).targets;
    let shop = facts(json!({"metadata": {"name": "shop", "labels": {"team": "a"}}}));
    let system = facts(json!({"metadata": {"name": "kube-system"}}));
    let list = |name: &str| json!({"list": [{"name": name}]});
    for (targets, of_shop, of_system) in [
        (json!({}), Relation::Outside, Relation::Outside),
        (json!({"allNamespaces": true}), Relation::Target, Relation::Target),
        (json!({"includedNamespaces": list("shop")}), Relation::Target, Relation::Outside),
        (json!({"namespaceLabelSelector": {"matchLabels": {"team": "a"}}}), Relation::Target, Relation::Outside),
        (json!({"namespaceLabelSelector": {}}), Relation::Outside, Relation::Outside),
        (
            json!({"includedNamespaces": list("kube-system"), "namespaceLabelSelector": {"matchLabels": {"team": "a"}}}),
            Relation::Target,
            Relation::Target,
        ),
        (
            json!({"allNamespaces": true, "excludedNamespaces": list("kube-system")}),
            Relation::Target,
            Relation::Outside,
        ),
    ] {
        let found = spec(targets.clone());
        assert_eq!((found.relation(&shop), found.relation(&system)), (of_shop, of_system), "{targets}");
    }
}

#[test]
fn a_namespace_refuses_by_label_or_annotation_and_the_own_one_always() {
    let all = spec_of(config_map(json!({})), json!({"allNamespaces": true})).targets;
    let with = |field: &str, value: &str| {
        all.relation(&facts(json!({"metadata": {"name": "a", field: {"kruise.rs/refuse-distribution": value}}})))
    };
    assert_eq!(with("labels", "true"), Relation::Refused);
    assert_eq!(with("annotations", "true"), Relation::Refused);
    assert_eq!(with("annotations", "false"), Relation::Target);
    assert_eq!(all.relation(&facts(json!({"metadata": {"name": "kruise-system"}}))), Relation::Refused);
    let ending = facts(json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}}));
    assert!(ending.is_ending);
}

#[test]
fn the_namespace_of_the_source_keeps_the_source() {
    let spec = read(json!({"resourceRef": {"kind": "Secret", "namespace": "a", "name": "s"},
        "targets": {"allNamespaces": true, "includedNamespaces": {"list": [{"name": "a"}]}}}));
    let read = DistributionSpec::of(&spec).unwrap();
    assert_eq!(read.targets.relation(&namespace("a")), Relation::Source);
    let excluded = read_spec_with_excluded_source();
    assert_eq!(excluded.relation(&namespace("a")), Relation::Source, "whatever else is said of it");
    assert_eq!(read.targets.named().count(), 0);
    assert_eq!(read.targets.relation(&namespace("b")), Relation::Target);
    assert_eq!(identity(&spec), Some((ResourceKind::Secret, "s")));
}

fn read_spec_with_excluded_source() -> TargetSpec {
    let spec = read(json!({"resourceRef": {"kind": "Secret", "namespace": "a", "name": "s"},
        "targets": {"excludedNamespaces": {"list": [{"name": "a"}]}}}));
    DistributionSpec::of(&spec).unwrap().targets
}

/// A copy that becomes the source of the others is deleted as a source would be: never.
#[test]
fn a_copy_that_is_referred_to_is_neither_written_nor_removed() {
    let targets = json!({"includedNamespaces": {"list": [{"name": "a"}, {"name": "b"}]}});
    for resource in [config_map(json!({})), secret()] {
        let mut world = World::new(resource.clone(), targets.clone(), &["a", "b"]);
        if world.seen.is_some() {
            world.see("a", BAD);
            world.see("b", GOOD);
        } else {
            world.note("a", Done::Copied("former".into()));
            world.copied("b");
        }
        let reference = json!({"kind": resource["kind"], "namespace": "a", "name": resource["metadata"]["name"]});
        world.spec = DistributionSpec::of(&read(json!({"resourceRef": reference, "targets": targets}))).unwrap();
        assert_eq!(world.steps(), []);
        world.wait(PERIOD * 2);
        assert!(world.steps().iter().all(|step| *step == CopyStep::Copy("b".into())));
        let counts = world.survey().counts;
        assert_eq!((counts.desired, counts.good), (1, 1), "it does not count");
    }
}

#[test]
fn names_that_cannot_be_names_never_become_part_of_a_request() {
    for resource in [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "../x"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
        json!({"kind": 7}),
        json!("text"),
    ] {
        let spec = read(json!({"resource": resource, "targets": {}}));
        assert_eq!(identity(&spec), None, "{resource}");
        assert!(DistributionSpec::of(&spec).is_err(), "{resource}");
    }
}

// ---- copies ----

#[test]
fn a_recorded_copy_is_what_would_be_made_and_needs_no_write() {
    let recorded = recorded();
    let (distribution, copy) = (&recorded["distribution"], &recorded["copy"]);
    let content = Content::of_resource(&distribution["spec"]["resource"]).unwrap();
    assert_eq!(content.hash, "8b6fdc933c460e071d720eaa944753006c30799ce64f8747615a8f98af271a4c");
    let of = Distributor {
        name: distribution["metadata"]["name"].as_str().unwrap(),
        uid: distribution["metadata"]["uid"].as_str().unwrap(),
    };
    let made = copy::new(&content, of);
    for part in ["apiVersion", "kind", "data"] {
        assert_eq!(made[part], copy[part]);
    }
    for part in ["annotations", "ownerReferences", "labels"] {
        assert_eq!(made["metadata"][part], copy["metadata"][part], "{part}");
    }
    let view = view(copy);
    assert!(view.is_copy(of.name) && is_copy(&metadata(copy), of.name));
    assert!(view.fits(&Wanted::of(&content, fingerprint(&content.body), of)));
    assert_eq!(copy::patch(copy, &metadata(copy), &content, of), None);
}

#[test]
fn what_the_api_server_stores_otherwise_than_it_was_written_is_no_change() {
    let written = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "creationTimestamp": null},
        "data": {"a": "Yg==\n"}, "stringData": {"c": "d"}, "immutable": false});
    let content = Content::of_resource(&written).unwrap();
    let mut object = stored(&content);
    assert_eq!(object["data"], json!({"a": "Yg==", "c": "ZA=="}));
    assert_eq!(object["type"], "Opaque");
    object["immutable"] = json!(false);
    assert_eq!(changes(&object, &content), None);
}

/// As Go's decoders do.
#[test]
fn null_and_loose_base64_are_read_as_the_api_server_reads_them() {
    let read = |kind: &str, more: Value| {
        let mut manifest = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "s"}});
        for (key, value) in more.as_object().unwrap() {
            manifest[key] = value.clone();
        }
        Content::of_resource(&manifest)
    };
    let secret =
        read("Secret", json!({"data": {"n": null, "bits": "Yh==", "lines": "Y\r\nWI=\n"}, "stringData": {"t": null}}));
    assert_eq!(secret.unwrap().body["data"], json!({"n": "", "bits": "Yg==", "lines": "YWI=", "t": ""}));
    let map = read("ConfigMap", json!({"data": {"n": null}, "binaryData": {"b": null}})).unwrap();
    assert_eq!((&map.body["data"], &map.body["binaryData"]), (&json!({"n": ""}), &json!({"b": ""})));
    let labels = json!({"name": "s", "labels": {"l": null}, "annotations": {"a": null}});
    let labelled = read("Secret", json!({"metadata": labels, "data": null})).unwrap();
    assert_eq!((labelled.labels["l"].as_str(), labelled.annotations["a"].as_str()), ("", ""));
    for wrong in ["Yg", "Yg=", "Y g==", "Yg==x", "_-=="] {
        let found = read("Secret", json!({"data": {"k": wrong}})).unwrap_err();
        assert_eq!(
            found,
            [("spec.resource.data[k]".to_owned(), "it is not allowed; want base64".to_owned())],
            "{wrong}"
        );
    }
    let found = read("Secret", json!({"data": {"k": 7}})).unwrap_err();
    assert_eq!(found[0].0, "spec.resource.data[k]");
}

#[test]
fn f1_what_others_have_edited_is_put_back() {
    let content = Content::of_resource(&config_map(json!({"a": "1", "b": "2"}))).unwrap();
    let object = stored(&content);
    assert_eq!(changes(&object, &content), None);
    let edited = changed(object.clone(), json!({"data": {"a": "x", "b": null, "more": "3"}, "binaryData": {"z": ""}}));
    let patch = changes(&edited, &content).unwrap();
    assert_eq!(patch["metadata"], json!({"uid": "x", "resourceVersion": "7"}), "bound to what was looked at");
    let restored = changed(edited, patch);
    assert_eq!((&restored["data"], restored.get("binaryData")), (&object["data"], None));
    let noted = changed(
        object.clone(),
        json!({"metadata": {"annotations": {"kruise.io/resourcedistribution.resource.hashcode": "0"}}}),
    );
    assert!(changes(&noted, &content).is_some());
}

#[test]
fn changed_labels_and_annotations_of_the_resource_reach_the_copies() {
    let mut resource = config_map(json!({"a": "1"}));
    let before = Content::of_resource(&resource).unwrap();
    let object = stored(&before);
    resource["metadata"]["labels"] = json!({"team": "shop"});
    resource["metadata"]["annotations"] = json!({"note": "x", "kruise.io/resourcedistribution.resource.from": "other"});
    let content = Content::of_resource(&resource).unwrap();
    let after = changed(object.clone(), changes(&object, &content).unwrap());
    assert_eq!(after["metadata"]["labels"], json!({"team": "shop"}));
    assert_eq!(after["metadata"]["annotations"]["note"], "x");
    assert_eq!(after["metadata"]["annotations"]["kruise.io/resourcedistribution.resource.from"], "d");
    assert_eq!(
        after["metadata"]["annotations"]["kruise.io/resourcedistribution.resource.hashcode"],
        content.hash.as_str()
    );
    assert_eq!(changes(&after, &content), None);
}

#[test]
fn f4_labels_annotations_finalizers_and_owners_of_others_survive() {
    let mut resource = config_map(json!({"a": "1"}));
    resource["metadata"]["finalizers"] = json!(["example.com/ours"]);
    let content = Content::of_resource(&resource).unwrap();
    let other = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"});
    let mut object = stored(&Content::of_resource(&config_map(json!({"a": "0"}))).unwrap());
    object["metadata"]["labels"] = json!({"theirs": "1"});
    object["metadata"]["annotations"]["theirs"] = "1".into();
    object["metadata"]["finalizers"] = json!(["example.com/theirs"]);
    object["metadata"]["ownerReferences"].as_array_mut().unwrap().insert(0, other.clone());
    let after = changed(object.clone(), changes(&object, &content).unwrap());
    assert_eq!(after["data"], json!({"a": "1"}));
    assert_eq!(after["metadata"]["labels"], json!({"theirs": "1"}));
    assert_eq!(after["metadata"]["annotations"]["theirs"], "1");
    assert_eq!(after["metadata"]["finalizers"], json!(["example.com/theirs", "example.com/ours"]));
    assert_eq!(after["metadata"]["ownerReferences"], object["metadata"]["ownerReferences"]);
    // Made again under its name, the ResourceDistribution has another UID.
    object["metadata"]["ownerReferences"][1]["uid"] = "former".into();
    let after = changed(object.clone(), changes(&object, &content).unwrap());
    assert_eq!(after["metadata"]["ownerReferences"][0]["uid"], "u", "where it is looked for");
    assert_eq!(after["metadata"]["ownerReferences"][1], other);
    assert_eq!(after["metadata"]["ownerReferences"].as_array().unwrap().len(), 2);
}

#[test]
fn f6_whose_an_object_is_its_controller_says() {
    let owner = |changes: Value| {
        let mut owner = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution", "name": "d",
            "uid": "any", "controller": true});
        json_patch::merge(&mut owner, &changes);
        is_copy(&metadata(&json!({"metadata": {"ownerReferences": [owner]}})), "d")
    };
    assert!(owner(json!({})));
    assert!(owner(json!({"apiVersion": "apps.kruise.io/v1beta1"})));
    for foreign in [
        json!({"name": "other"}),
        json!({"kind": "CloneSet"}),
        json!({"apiVersion": "example.com/v1"}),
        json!({"controller": false}),
        json!({"controller": null}),
    ] {
        assert!(!owner(foreign.clone()), "{foreign}");
    }
    let noted = json!({"metadata": {"annotations": {"kruise.io/resourcedistribution.resource.from": "d"}}});
    assert!(!is_copy(&metadata(&noted), "d"), "an annotation anybody can write");
}

/// The object after the one patch for all copies, as the API server has it. None: the patch is refused.
fn renewed(object: &Value, content: &Content) -> Option<Value> {
    let mut after = object.clone();
    patched(&mut after, &copy::renewal(content, OF)).then_some(after)
}

#[test]
fn f4_f6_one_patch_for_all_copies_changes_copies_only_and_only_what_is_wanted() {
    let of = |object: Value| Content::of_resource(&object).unwrap();
    let map = of(config_map(json!({"k": "v", "gone": "1"})));
    let other_map =
        of(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "annotations": {"n": "1"}},
        "data": {"k": "w"}, "binaryData": {"b": "eA=="}, "immutable": true}));
    let (one, mut other) = (of(secret()), secret());
    other["stringData"] = Value::Null;
    let other = of(other);
    let owner = |change: Value| {
        let mut owners = stored(&one)["metadata"]["ownerReferences"].clone();
        json_patch::merge(&mut owners[0], &change);
        json!({"metadata": {"ownerReferences": owners}})
    };
    let from = |value: Value| json!({"metadata": {"annotations": {labels::DISTRIBUTED_FROM: value}}});
    let theirs =
        json!({"metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}, "finalizers": ["example.com/f"]}});
    for (what, before, after, change, is_done) in [
        ("another content", &map, &other_map, json!({}), true),
        ("nothing", &map, &map, json!({}), true),
        ("without data", &one, &other, json!({}), true),
        ("what others have edited", &map, &other_map, json!({"data": {"k": "x", "more": "y"}}), true),
        ("what others have put there besides", &one, &other, theirs.clone(), true),
        ("no owner", &one, &other, json!({"metadata": {"ownerReferences": null}}), false),
        ("the owner of another name", &one, &other, owner(json!({"name": "e"})), false),
        ("the owner of another UID", &one, &other, owner(json!({"uid": "v"})), false),
        ("of another kind", &one, &other, owner(json!({"kind": "Pod"})), false),
        ("of another group", &one, &other, owner(json!({"apiVersion": "example.com/v1"})), false),
        ("no controller", &one, &other, owner(json!({"controller": false})), false),
        ("without our note", &one, &other, from(Value::Null), false),
        ("with another note", &one, &other, from("e".into()), false),
        ("of another type", &one, &other, json!({"type": "example.com/t"}), false),
    ] {
        let there = changed(stored(before), change.clone());
        let Some(done) = renewed(&there, after) else {
            assert!(!is_done, "{what}");
            continue;
        };
        assert!(is_done, "{what}");
        assert_eq!(changes(&done, after), None, "{what}");
        for kept in ["labels", "finalizers"] {
            assert_eq!(done["metadata"][kept], there["metadata"][kept], "{what}");
        }
        assert_eq!(done["metadata"]["annotations"].get("a"), change.pointer("/metadata/annotations/a"), "{what}");
    }
    // Of labels and finalizers that are missing the first cannot be added, and the second are left to the other patch.
    let with = |metadata: Value| changed(config_map(json!({"k": "v"})), json!({"metadata": metadata}));
    let labelled = of(with(json!({"labels": {"l": "1", "a/b": "2"}})));
    assert_eq!(renewed(&stored(&map), &labelled), None);
    let there = changed(stored(&map), json!({"metadata": {"labels": {"theirs": "1"}}}));
    let done = renewed(&there, &labelled).unwrap();
    assert_eq!(done["metadata"]["labels"], json!({"l": "1", "a/b": "2", "theirs": "1"}));
    let held = of(with(json!({"finalizers": ["example.com/f"]})));
    let done = renewed(&stored(&map), &held).unwrap();
    assert_eq!(changes(&done, &held).unwrap()["metadata"]["finalizers"], json!(["example.com/f"]));
}

#[test]
fn a_secret_of_another_type_has_to_be_made_anew() {
    let of = |type_: Value| {
        let mut object = secret();
        object["type"] = type_;
        Content::of_resource(&object).unwrap()
    };
    let (opaque, other) = (of(Value::Null), of("example.com/t".into()));
    for (there, content, is_other) in
        [(&opaque, &opaque, false), (&other, &other, false), (&opaque, &other, true), (&other, &opaque, true)]
    {
        assert_eq!(copy::has_to_be_replaced(&stored(there), content), is_other);
    }
    let map = Content::of_resource(&config_map(json!({"k": "v"}))).unwrap();
    assert!(!copy::has_to_be_replaced(&stored(&map), &map), "only Secrets have one");
}

#[test]
fn an_immutable_copy_has_to_be_made_anew_for_another_content_and_not_for_what_admission_made_of_it() {
    let of = |immutable: bool, value: &str, label: &str| {
        let change = json!({"immutable": immutable, "metadata": {"labels": {"l": label}}});
        Content::of_resource(&changed(config_map(json!({"k": value})), change)).unwrap()
    };
    let (fixed, free) = (of(true, "v", "1"), of(false, "v", "1"));
    let immutable = json!({"immutable": true});
    let data = json!({"data": {"k": "x"}});
    let both = |managers: &[&str]| {
        let entries: Vec<Value> = managers.iter().map(|manager| json!({"manager": manager})).collect();
        json!({"immutable": true, "data": {"k": "x"}, "metadata": {"managedFields": entries}})
    };
    for (what, there, change, wanted, is_replaced) in [
        ("nothing", &fixed, json!({}), &fixed, false),
        ("other labels", &fixed, json!({}), &of(true, "v", "2"), false),
        ("other data", &fixed, json!({}), &of(true, "w", "1"), true),
        ("no longer immutable", &fixed, json!({}), &free, true),
        ("other data of one that is not", &free, json!({}), &of(true, "w", "1"), false),
        ("somebody made it immutable", &free, immutable, &free, false),
        ("and has changed it before", &free, both(&["kruise-manager", "kubectl-edit"]), &free, true),
        ("admission made it immutable and wrote other data", &free, both(&["kruise-manager"]), &free, false),
        ("somebody has put another one in its place", &fixed, both(&["kubectl-replace"]), &fixed, true),
        ("admission wrote other data", &fixed, data, &fixed, false),
    ] {
        let there = changed(stored(there), change);
        assert_eq!(copy::has_to_be_replaced(&there, wanted), is_replaced, "{what}");
        // The one patch for all is refused then, and has not noted that it has been done.
        let after = renewed(&there, wanted).unwrap_or_default();
        let is_kept = ["immutable", "data"].iter().all(|member| after.get(member) == there.get(member));
        assert!(!is_replaced || !is_kept, "{what}: {after}");
    }
}

#[test]
fn of_an_object_that_is_referred_to_only_the_content_is_copied() {
    let source = json!({"metadata": {"labels": {"argocd.argoproj.io/instance": "x"}, "annotations": {"a": "b"}},
        "data": {"k": "djE="}, "type": "kubernetes.io/tls", "immutable": true});
    let content = Content::of_reference(ResourceKind::Secret, "s", &source).unwrap();
    let copy = copy::new(&content, OF);
    assert_eq!((&copy["data"], &copy["type"], &copy["immutable"]), (&source["data"], &source["type"], &json!(true)));
    assert_eq!(copy["metadata"].get("labels"), None);
    assert_eq!(copy["metadata"]["annotations"].as_object().unwrap().len(), 2, "our own");
    let newer = Content::of_reference(ResourceKind::Secret, "s", &json!({"data": {"k": "djI="}})).unwrap();
    assert_ne!(newer.hash, content.hash);
    let token = json!({"type": "kubernetes.io/service-account-token"});
    assert!(Content::of_reference(ResourceKind::Secret, "s", &token).unwrap_err().0.contains("service-account-token"));
    assert!(!format!("{content:?}").contains("djE="), "no log shows it");
}

fn some_data() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[ab]", "[xy]", 0..3).prop_map(|data| json!(data))
}

proptest! {
    /// What the watch shows and what a patch would change never disagree, and a patch ends what it is for.
    #[test]
    fn a_copy_fits_exactly_when_there_is_nothing_to_write(
        wanted in some_data(), there in some_data(), binary in some_data(), label in any::<bool>(), uid in "[uv]",
        hashed in any::<bool>(),
    ) {
        let mut resource = config_map(wanted);
        if label {
            resource["metadata"]["labels"] = json!({"l": "1"});
        }
        let content = Content::of_resource(&resource).unwrap();
        let mut object = stored(&Content::of_resource(&config_map(there)).unwrap());
        object["binaryData"] = binary;
        object["metadata"]["ownerReferences"][0]["uid"] = uid.into();
        if hashed {
            object["metadata"]["annotations"]["kruise.io/resourcedistribution.resource.hashcode"] = content.hash.clone().into();
        }
        let wanted = Wanted::of(&content, fingerprint(&content.body), OF);
        let fits = |object: &Value| view(object).fits(&wanted);
        let patch = changes(&object, &content);
        prop_assert_eq!(fits(&object), patch.is_none());
        if let Some(patch) = patch {
            let after = changed(object, patch);
            prop_assert!(fits(&after), "{}", after);
            prop_assert_eq!(changes(&after, &content), None);
        }
    }
}

// ---- what to do ----

/// A ResourceDistribution and a cluster.
struct World {
    spec: DistributionSpec,
    content: Option<Content>,
    namespaces: Vec<NamespaceFacts>,
    seen: Option<BTreeMap<Arc<str>, SeenCopy>>,
    memory: DistributionMemory,
    periods: Periods,
    now: Duration,
}

impl World {
    /// In a cluster in which there are many others.
    fn new(resource: Value, targets: Value, names: &[&str]) -> Self {
        let spec = spec_of(resource.clone(), targets);
        let seen = (spec.kind == ResourceKind::ConfigMap).then(BTreeMap::new);
        Self {
            content: Some(Content::of_resource(&resource).unwrap()),
            spec,
            namespaces: names.iter().map(|name| namespace(name)).collect(),
            seen,
            memory: DistributionMemory::default(),
            periods: Periods::of(Load::of(usize::MAX, 0, 0)),
            now: Duration::from_secs(1000),
        }
    }

    fn survey(&mut self) -> Survey {
        let Self { spec, content, namespaces, seen, memory, periods, now } = self;
        let namespaces: &Vec<&NamespaceFacts> = &namespaces.iter().collect();
        let (content, seen, periods) = (content.as_ref(), seen.as_ref(), *periods);
        Survey::of(Facts { spec, content, namespaces, seen, periods }, memory, *now)
    }

    fn steps(&mut self) -> Vec<CopyStep> {
        let mut survey = self.survey();
        let Steps { first, again } = survey.take(&mut self.memory, self.now);
        let mut steps = [first, again].concat();
        steps.sort();
        steps
    }

    fn note(&mut self, namespace: &str, done: Done) {
        self.memory.note(namespace, done, self.seen.is_some(), self.now);
    }

    fn copied(&mut self, namespace: &str) {
        let hash = self.content.as_ref().unwrap().hash.as_str().into();
        self.note(namespace, Done::Copied(hash));
    }

    fn see(&mut self, namespace: &str, seen: Option<SeenCopy>) {
        let all = self.seen.as_mut().unwrap();
        match seen {
            Some(seen) => drop(all.insert(namespace.into(), seen)),
            None => drop(all.remove(namespace)),
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn next(&mut self) -> Option<Duration> {
        let survey = self.survey();
        survey.next(&self.memory, self.now)
    }
}

fn copies(names: &[&str]) -> Vec<CopyStep> {
    names.iter().map(|name| CopyStep::Copy((*name).into())).collect()
}

fn removals(names: &[&str]) -> Vec<CopyStep> {
    names.iter().map(|name| CopyStep::Remove((*name).into())).collect()
}

const GOOD: Option<SeenCopy> = Some(SeenCopy::Copy { fits: true });
const BAD: Option<SeenCopy> = Some(SeenCopy::Copy { fits: false });

fn named(names: &[&str]) -> Value {
    json!({"includedNamespaces": {"list": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}})
}

#[test]
fn section_6_step_2_matched_and_unmatched_namespaces_follow_from_the_list() {
    let mut world = World::new(config_map(json!({})), named(&["a", "b", "gone"]), &["a", "b", "c", "d"]);
    world.see("b", GOOD);
    world.see("c", GOOD);
    world.see("d", Some(SeenCopy::Others));
    assert_eq!(world.steps(), [copies(&["a"]), removals(&["c"])].concat());
    let counts = world.survey().counts;
    assert_eq!(
        (counts.desired, counts.good, counts.waiting, counts.missing.clone()),
        (3, 1, 1, vec!["gone".to_owned()])
    );
}

#[test]
fn section_6_step_3_each_target_is_created_updated_or_found_taken() {
    let mut world = World::new(config_map(json!({})), named(&["a", "b", "c"]), &["a", "b", "c"]);
    world.see("b", BAD);
    world.see("c", Some(SeenCopy::Others));
    assert_eq!(world.steps(), copies(&["a", "b"]));
    assert_eq!(world.survey().counts.conflicts, ["c"]);
    world.see("a", GOOD);
    world.see("b", GOOD);
    assert_eq!((world.steps(), world.next()), (vec![], None), "the watch shows what happens next");
    world.see("c", None);
    assert_eq!(world.steps(), copies(&["c"]), "the blocker has gone");
}

#[test]
fn section_6_step_4_a_copy_leaves_a_namespace_that_is_no_longer_meant_and_nothing_else_does() {
    let mut world = World::new(config_map(json!({})), named(&["a"]), &["a", "b", "c", "d", "kruise-system"]);
    for name in ["a", "b", "d", "kruise-system"] {
        world.see(name, GOOD);
    }
    world.see("c", Some(SeenCopy::Others));
    world.namespaces[3].is_ending = true;
    world.namespaces[4].is_own = true;
    assert_eq!(world.steps(), removals(&["b"]));
    world.see("b", Some(SeenCopy::Ending));
    assert_eq!((world.steps(), world.next()), (vec![], None), "a finalizer holds it");
    world.namespaces[0].refuses = true;
    assert_eq!(world.steps(), removals(&["a"]));
    let counts = world.survey().counts;
    assert_eq!((counts.desired, counts.refused), (0, vec!["a".to_owned()]));
}

#[test]
fn f3_terminating_and_missing_namespaces_are_reported_and_not_retried() {
    for resource in [config_map(json!({})), secret()] {
        let mut world = World::new(resource, named(&["a", "b"]), &["a"]);
        world.namespaces[0].is_ending = true;
        assert_eq!((world.steps(), world.next()), (vec![], None));
        let counts = world.survey().counts;
        assert_eq!((counts.desired, counts.missing), (2, vec!["a".to_owned(), "b".to_owned()]));
    }
}

#[test]
fn what_is_refused_is_tried_again_later_each_time_and_holds_up_nothing_else() {
    let mut world = World::new(config_map(json!({})), named(&["a", "b"]), &["a", "b"]);
    assert_eq!(world.steps(), copies(&["a", "b"]));
    world.note("a", Done::Failed(Operation::Create, "quota".into()));
    assert_eq!(world.steps(), copies(&["b"]));
    world.see("b", GOOD);
    let failed = world.survey().counts.failed;
    assert_eq!(failed[&Operation::Create], [("a".to_owned(), "quota".to_owned())]);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let pause = world.next().unwrap();
        pauses.push(pause.as_secs());
        world.wait(pause);
        assert_eq!(world.steps(), copies(&["a"]));
        world.note("a", Done::Failed(Operation::Create, "quota".into()));
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    world.memory.enter(2, "hash", false);
    assert_eq!(world.steps(), copies(&["a"]), "something else is wanted now");
    world.see("a", GOOD);
    assert_eq!(world.next(), None);
}

#[test]
fn f1_a_copy_that_others_change_again_and_again_is_put_back_later_each_time() {
    let mut world = World::new(config_map(json!({})), named(&["a", "b"]), &["a", "b"]);
    world.see("b", GOOD);
    world.memory.note_write("a", world.now);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        world.see("a", BAD);
        let pause = world.next().unwrap();
        pauses.push(pause.as_secs());
        if !pause.is_zero() {
            assert_eq!(world.steps(), []);
        }
        world.wait(pause);
        assert_eq!(world.steps(), copies(&["a"]));
        world.memory.note_write("a", world.now);
        world.see("a", GOOD);
        assert_eq!(world.next(), None);
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    world.see("a", BAD);
    world.see("b", BAD);
    assert_eq!(world.steps(), copies(&["b"]), "the others are not held up");
    world.memory.enter(2, "other", false);
    assert_eq!(world.steps(), copies(&["a", "b"]), "something else is wanted now");
    world.memory.note_write("a", world.now);
    world.memory.note_write("a", world.now);
    world.memory.note_write("a", world.now);
    world.wait(SLOWEST_COPY * 2);
    assert_eq!(world.steps(), copies(&["a", "b"]), "it was quiet for a while");
    world.memory.note_write("a", world.now);
    assert_eq!(world.steps(), copies(&["a", "b"]), "begun anew");
}

#[test]
fn a_pace_grows_to_its_bound_and_begins_anew_after_a_quiet_time() {
    let (mut pace, mut now) = (Pace::default(), Duration::from_secs(7));
    let mut pauses = Vec::new();
    for _ in 0..9 {
        pauses.push(pace.left(now, SLOWEST_SOURCE).as_secs());
        now += pace.left(now, SLOWEST_SOURCE);
        pace.note(now, SLOWEST_SOURCE);
    }
    assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 32, 60]);
    assert_eq!(pace.left(now + Duration::from_secs(20), SLOWEST_SOURCE), Duration::from_secs(40));
    pace.note(now + SLOWEST_SOURCE * 2, SLOWEST_SOURCE);
    assert_eq!(pace.left(now + SLOWEST_SOURCE * 2, SLOWEST_SOURCE), Duration::ZERO);
}

#[test]
fn a_pass_has_a_bounded_number_of_steps_and_what_has_failed_goes_apart() {
    let names: Vec<String> = (0..4300).map(|i| format!("n{i:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::new(secret(), named(&names), &names);
    for name in &names[..200] {
        world.note(name, Done::Failed(Operation::Create, "no".into()));
        world.wait(Duration::from_millis(1));
    }
    world.wait(Duration::from_secs(5));
    let mut tried = Vec::new();
    for pass in 0..3 {
        let mut survey = world.survey();
        let Steps { first, again } = survey.take(&mut world.memory, world.now);
        assert_eq!(first.len() + again.len(), [MOST_STEPS, MOST_STEPS, 300][pass]);
        assert_eq!(again.len(), [MOST_AGAIN, MOST_AGAIN, 0][pass]);
        assert_eq!(survey.has_more(), pass < 2);
        assert_eq!(survey.next(&world.memory, world.now).is_some_and(|next| next.is_zero()), pass < 2);
        for step in first {
            let CopyStep::Copy(name) = step else { panic!("{step:?}") };
            world.copied(&name);
            tried.push(name);
        }
        for step in again {
            let CopyStep::Copy(name) = step else { panic!("{step:?}") };
            world.note(&name, Done::Failed(Operation::Create, "no".into()));
            tried.push(name);
        }
    }
    tried.sort();
    assert_eq!(tried, names, "each once");
}

/// Turns go to what has waited longest, and what waits for room has turns of its own.
#[test]
fn f1_turns_are_in_the_order_of_how_long_something_has_been_due() {
    let names: Vec<String> = (0..120).map(|i| format!("n{i:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::new(secret(), named(&names[60..]), &names);
    for name in names[60..].iter().rev() {
        match *name {
            "n060" => world.note(name, Done::Others),
            "n061" => world.note(name, Done::Ending),
            _ => world.copied(name),
        }
        world.wait(Duration::from_millis(10));
    }
    assert_eq!(world.steps(), removals(&["n000", "n001"]), "unknown since the begin");
    world.wait(CONFLICT_RETRY);
    let steps = world.steps();
    assert_eq!(steps[..], [copies(&["n060", "n061"]), removals(&["n000", "n001"])].concat(), "nothing overtakes");
    for name in &names[..60] {
        world.note(name, Done::Clean);
    }
    world.note("n061", Done::Ending);
    world.note("n060", Done::Others);
    assert_eq!((world.steps(), world.next()), (vec![], Some(CONFLICT_RETRY - 2 * TICK)));
    world.wait(CONFLICT_RETRY - 2 * TICK);
    assert_eq!(world.steps().len(), 1, "one now, and one at the next tick");
    world.wait(PERIOD / 4);
    assert_eq!(world.steps(), copies(&["n060", "n061", "n119"]), "the longest due first");
}

#[test]
fn a_leftover_that_others_change_all_the_time_holds_up_no_other() {
    let mut world = World::new(secret(), named(&[]), &["a", "b", "c"]);
    let mut taken = Vec::new();
    for _ in 0..30 {
        for step in world.steps() {
            match step {
                CopyStep::Remove(name) if name == "a" => world.memory.note_write("a", world.now),
                CopyStep::Remove(name) => {
                    world.note(&name, Done::Clean);
                    taken.push(name);
                }
                CopyStep::Copy(name) => panic!("{name}"),
            }
        }
        let next = world.next().unwrap();
        world.wait(next);
    }
    assert_eq!(taken, ["b", "c"]);
}

#[test]
fn with_which_request_a_namespace_is_begun() {
    let failed = |operation| Some(Done::Failed(operation, "no".into()));
    for (what, first, of_others, done) in [
        ("before any copy", Expected::Nothing, Expected::Unknown, None),
        ("this content", Expected::Unknown, Expected::Unknown, Some(Done::Copied("hash".into()))),
        ("another content", Expected::Copy, Expected::Copy, Some(Done::Copied("old".into()))),
        ("taken away", Expected::Nothing, Expected::Nothing, Some(Done::Clean)),
        ("of others", Expected::Unknown, Expected::Unknown, Some(Done::Others)),
        ("being deleted", Expected::Unknown, Expected::Unknown, Some(Done::Ending)),
        ("could not be made", Expected::Unknown, Expected::Unknown, failed(Operation::Create)),
        ("could not be changed", Expected::Unknown, Expected::Unknown, failed(Operation::Update)),
        ("could not be read", Expected::Unknown, Expected::Unknown, failed(Operation::Get)),
        ("could not be deleted", Expected::Unknown, Expected::Unknown, failed(Operation::Delete)),
    ] {
        for (is_first, expected) in [(true, first), (false, of_others)] {
            let mut memory = DistributionMemory::default();
            memory.enter(1, "hash", is_first);
            // Later statuses say nothing of what was there when this process began.
            memory.enter(1, "hash", !is_first);
            if let Some(done) = &done {
                memory.note("a", done.clone(), false, Duration::ZERO);
            }
            assert_eq!(memory.expected("a", "hash"), expected, "{what}, {is_first}");
        }
    }
}

#[test]
fn a_secret_that_is_being_deleted_is_no_copy_and_is_waited_for() {
    let before = ResourceDistributionStatus::default();
    let mut world = World::new(secret(), named(&["a", "b"]), &["a", "b"]);
    world.copied("a");
    world.note("b", Done::Ending);
    let counts = world.survey().counts;
    assert_eq!((counts.desired, counts.good, counts.ending.clone()), (2, 1, vec!["b".to_owned()]));
    let found = status(&counts, &Situation::Working, about(&before), at(1));
    assert_eq!((found.succeeded, found.failed), (1, 1));
    let all = said(&found);
    assert_eq!((all[0].0.as_str(), all[0].1.as_str()), ("Reconciling", "CopyTerminating"));
    assert!(all[0].2.contains("b: the copy is being deleted"), "{all:?}");
    assert_eq!((world.steps(), world.next()), (vec![], Some(CONFLICT_RETRY - TICK)));
    world.wait(CONFLICT_RETRY);
    assert_eq!(world.steps(), copies(&["b"]));
}

/// All copies are written at one go, as after a change of the content or the start of a manager.
#[test]
fn f1_secrets_are_looked_at_in_turns_each_within_a_period() {
    // Of so many copies, and as many or very many in the cluster.
    for (number, are_all) in [1_usize, 2, 7, 30, 61, 300, 1000].into_iter().flat_map(|n| [(n, true), (n, false)]) {
        let names: Vec<String> = (0..number).map(|i| format!("n{i:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut world = World::new(secret(), json!({"allNamespaces": true}), &names);
        if are_all {
            world.periods = Periods::of(Load::of(number, 0, 0));
        }
        let Periods { copies: period, tick, .. } = world.periods;
        assert_eq!(world.steps(), copies(&names), "none is known, all are looked at");
        let mut looked = BTreeMap::new();
        for name in &names {
            world.copied(name);
            looked.insert((*name).to_owned(), world.now);
        }
        assert!(world.next().is_some_and(|next| next >= period / 4), "what was just written is not looked at");
        let (mut looks, mut most, end) = (0_usize, 0_usize, world.now + 3 * period);
        while world.now < end {
            let next = world.next().unwrap();
            world.wait(next);
            let steps = world.steps();
            assert!(!steps.is_empty(), "no tick without work: {number} at {:?}", world.now);
            (looks, most) = (looks + steps.len(), most.max(steps.len()));
            for step in steps {
                let CopyStep::Copy(name) = step else { panic!("{step:?}") };
                let before = looked.insert(name.clone(), world.now).unwrap();
                let age = world.now - before;
                assert!(age <= period, "{name} of {number} was not looked at for {age:?}");
                world.copied(&name);
            }
            // Nothing that happens meanwhile makes it faster.
            assert_eq!(world.steps(), []);
        }
        let now = world.now;
        assert!(looked.values().all(|at| now - *at <= period), "{number}");
        // In three quarters of a period.
        let ticks = usize::try_from((period * 3 / 4).as_nanos() / tick.as_nanos()).unwrap();
        let is_even = most <= number.div_ceil(ticks) && looks <= 4 * number;
        assert!(is_even, "{number} each {period:?}: {most} at a time, {looks} in all");
    }
}

#[test]
fn f1_the_fewer_copies_there_are_in_all_the_sooner_each_is_looked_at() {
    for (copies, size, others, wanted) in [
        (0, 0, 0, [5_000, 5_000, 1_000]),
        (1, 100, 0, [5_000, 5_000, 1_000]),
        (10, 100, 0, [5_000, 5_000, 1_000]),
        (11, 100, 0, [5_500, 5_500, 1_000]),
        (120, 100, 0, [60_000, 60_000, 1_000]),
        (150, 100, 0, [75_000, 60_000, 1_250]),
        (600, 100, 0, [300_000, 60_000, 5_000]),
        (1_200, 100, 0, [600_000, 60_000, 10_000]),
        (100_000, 100, 0, [600_000, 60_000, 10_000]),
        // An object of others takes four requests, whose answers do not have it.
        (0, 1_000_000, 3, [6_000, 6_000, 1_000]),
        (2, 100, 10, [21_000, 21_000, 1_000]),
        // At most 100 KB a second.
        (3, 1_400_000, 0, [42_000, 42_000, 1_000]),
        (1, 1_400_000, 0, [14_000, 14_000, 1_000]),
        (10, 40_000, 0, [5_000, 5_000, 1_000]),
        (40, 1_400_000, 0, [560_000, 60_000, 9_333]),
        (usize::MAX, usize::MAX, usize::MAX, [600_000, 60_000, 10_000]),
    ] {
        let periods = Periods::of(Load::of(copies, size, others));
        let found = [periods.copies, periods.conflicts, periods.tick].map(|time| time.as_millis());
        assert_eq!(found, wanted, "{copies} of {size} bytes, {others} of others");
    }
    let mut all = Load::of(2, 30, 1);
    all += Load::of(usize::MAX, 0, 0);
    all += Load::of(1, 5, 0);
    assert_eq!(all, Load { requests: usize::MAX, bytes: 65 });
    assert_eq!(Periods::default(), Periods { copies: SHORTEST, conflicts: SHORTEST, tick: Duration::from_secs(1) });
}

#[test]
fn what_a_watch_shows_and_what_is_not_looked_at_costs_nothing() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::new(secret(), named(&names), &names);
    let size = world.content.as_ref().unwrap().size();
    world.survey();
    assert_eq!(world.memory.load, Load::of(4, size, 0), "copies that are about to be made");
    world.copied("a");
    world.note("b", Done::Others);
    world.note("c", Done::Ending);
    world.note("d", Done::Failed(Operation::Create, "no".into()));
    world.survey();
    assert_eq!(world.memory.load, Load::of(2, size, 1), "what has failed has pauses of its own");
    // Its next look was planned when there were many.
    assert!(!world.memory.is_late(PERIOD) && !world.memory.is_late(PERIOD * 2 / 3));
    assert!(world.memory.is_late(PERIOD / 2) && !world.memory.is_late(PERIOD / 2), "said once");
    world.content = None;
    world.survey();
    assert_eq!(world.memory.load, Load::default(), "nothing is written without its source");
    assert!(!world.memory.is_late(SHORTEST));
    let mut world = World::new(config_map(json!({})), named(&names), &names);
    world.see("a", GOOD);
    world.see("b", Some(SeenCopy::Others));
    world.survey();
    assert_eq!(world.memory.load, Load::default());
}

/// Each look may find it changed.
#[test]
fn f1_a_secret_that_others_change_again_and_again_is_put_back_later_each_time() {
    let mut world = World::new(secret(), named(&["a"]), &["a"]);
    world.periods = Periods::default();
    let (mut writes, end) = (Vec::new(), world.now + Duration::from_secs(2000));
    while world.now < end {
        if world.steps() == copies(&["a"]) {
            world.memory.note_write("a", world.now);
            world.copied("a");
            writes.push(world.now);
        }
        let next = world.next().unwrap();
        world.wait(next);
    }
    let pauses: Vec<u64> = writes.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    assert!(pauses.is_sorted() && pauses[0] <= 5 && pauses.len() < 20, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= SLOWEST_COPY.as_secs()) && pauses.last() > Some(&250), "{pauses:?}");
}

/// Namespaces that go leave fewer turns, in which those that stay have to be looked at all the same.
#[test]
fn f1_a_secret_is_looked_at_in_time_when_namespaces_come_and_go() {
    let all: Vec<String> = (0..200).map(|i| format!("n{i:03}")).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut random = crate::liveness::Random(25);
    let mut world = World::new(secret(), json!({"allNamespaces": true}), &names);
    let mut looked: BTreeMap<String, Duration> = BTreeMap::new();
    let end = world.now + 10 * PERIOD;
    while world.now < end {
        for step in world.steps() {
            let CopyStep::Copy(name) = step else { panic!("{step:?}") };
            let before = looked.insert(name.clone(), world.now).unwrap_or(world.now);
            let age = world.now - before;
            assert!(age <= PERIOD, "{name} was not looked at for {age:?}");
            world.copied(&name);
        }
        let next = world.next().unwrap().min(random.duration(2 * TICK));
        world.wait(next);
        if random.chance(2) {
            let some: Vec<NamespaceFacts> = names.iter().filter(|_| random.chance(60)).map(|n| namespace(n)).collect();
            world.namespaces = some;
            looked.retain(|name, _| world.namespaces.iter().any(|there| *there.name == **name));
        }
    }
    assert!(looked.len() > 50);
}

#[test]
fn a_secret_that_is_to_change_is_written_at_once_in_every_namespace() {
    let mut world = World::new(secret(), named(&["a", "b"]), &["a", "b"]);
    world.copied("a");
    world.copied("b");
    assert_eq!(world.steps(), []);
    let mut newer = secret();
    newer["stringData"]["k"] = "other".into();
    world.content = Some(Content::of_resource(&newer).unwrap());
    assert_eq!(world.steps(), copies(&["a", "b"]));
    world.namespaces.push(namespace("c"));
    world.spec = spec_of(newer, named(&["a", "b", "c"]));
    world.copied("a");
    world.copied("b");
    assert_eq!(world.steps(), copies(&["c"]), "a new namespace is served at once");
}

#[test]
fn a_target_that_was_removed_while_no_manager_ran_loses_its_secret_within_one_period() {
    let names: Vec<String> = (0..130).map(|i| format!("n{i:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::new(secret(), named(&["n000"]), &names);
    let (mut looked, start) = (Vec::new(), world.now);
    while world.now < start + PERIOD {
        for step in world.steps() {
            match step {
                CopyStep::Copy(name) => world.copied(&name),
                CopyStep::Remove(name) => {
                    world.note(&name, Done::Clean);
                    looked.push(name);
                }
            }
        }
        world.wait(TICK);
    }
    looked.sort();
    assert_eq!(looked, names[1..], "each once, and the target not at all");
    world.spec = spec_of(secret(), named(&[]));
    assert_eq!(world.steps(), removals(&["n000"]), "one that is removed while it runs loses it at once");
}

#[test]
fn an_object_of_others_in_the_place_of_a_secret_is_looked_for_again() {
    let mut world = World::new(secret(), named(&["a", "b"]), &["a", "b"]);
    world.copied("a");
    world.note("b", Done::Others);
    assert_eq!(world.survey().counts.conflicts, ["b"]);
    assert_eq!((world.steps(), world.next()), (vec![], Some(CONFLICT_RETRY - TICK)));
    world.wait(CONFLICT_RETRY);
    assert_eq!(world.steps(), copies(&["b"]));
    world.note("b", Done::Others);
    world.memory.forget_others();
    assert_eq!(world.steps(), copies(&["b"]), "another ResourceDistribution has given it up");
    world.note("b", Done::Others);
    world.spec = spec_of(secret(), named(&["a"]));
    assert_eq!(world.steps(), [], "it is not ours to remove");
}

#[test]
fn without_its_source_no_copy_is_written_and_none_is_taken_away() {
    for resource in [config_map(json!({})), secret()] {
        let mut world = World::new(resource, named(&["a", "b"]), &["a", "b", "c"]);
        world.content = None;
        if world.seen.is_some() {
            world.see("a", BAD);
            world.see("c", BAD);
        } else {
            world.note("a", Done::Copied("hash".into()));
            world.note("c", Done::Copied("hash".into()));
        }
        assert_eq!(world.steps(), removals(&["c"]), "what nobody wants goes all the same");
        assert_eq!(world.survey().counts.good, 1);
        world.wait(PERIOD);
        assert!(world.steps().iter().all(|step| matches!(step, CopyStep::Remove(_))));
    }
}

// ---- status ----

fn about(before: &ResourceDistributionStatus) -> About<'_> {
    About { generation: 3, has_reference: false, is_watched: true, before }
}

fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap()
}

fn said(status: &ResourceDistributionStatus) -> Vec<(String, String, String, Vec<String>)> {
    let all = status.conditions.clone().into_iter();
    all.filter(|condition| condition.status == "True")
        .map(|condition| (condition.type_, condition.reason, condition.message, condition.failed_namespace))
        .collect()
}

#[test]
fn section_6_step_5_six_conditions_in_order_and_those_of_kstatus() {
    let before = ResourceDistributionStatus::default();
    let mut world = World::new(config_map(json!({})), named(&["a"]), &["a"]);
    world.see("a", GOOD);
    let counts = world.survey().counts;
    let first = status(&counts, &Situation::Working, about(&before), at(100));
    let types: Vec<&str> = first.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(
        types,
        [
            "GetResourceFailed",
            "CreateResourceFailed",
            "UpdateResourceFailed",
            "DeleteResourceFailed",
            "ConflictOccurred",
            "NamespaceNotExists",
            "NamespaceRefused",
            "Ready",
            "Reconciling",
            "Stalled"
        ]
    );
    assert!(first.conditions[..7].iter().all(|c| c.status == "False" && c.reason == "Succeeded"));
    assert_eq!((first.observed_generation, first.desired, first.succeeded, first.failed), (3, 1, 1, 0));
    assert_eq!(
        said(&first),
        [("Ready".into(), "Distributed".into(), "1 of 1 namespaces have their copy".into(), vec![])]
    );
    // What OpenKruise has recorded keeps its times.
    let recorded: ResourceDistributionStatus =
        serde_json::from_value(recorded()["distribution"]["status"].clone()).unwrap();
    let next = status(&counts, &Situation::Working, about(&recorded), at(2_000_000_000));
    assert_eq!(next.conditions[..6], recorded.conditions[..]);
    assert_eq!(status(&counts, &Situation::Working, about(&first), at(999)), first, "it is stable");
}

#[test]
fn conflicts_and_failures_are_shown_with_their_namespaces() {
    let before = ResourceDistributionStatus::default();
    let mut world = World::new(config_map(json!({})), json!({"allNamespaces": true}), &["a", "b", "c", "d", "e"]);
    world.see("a", GOOD);
    world.see("b", Some(SeenCopy::Others));
    world.see("c", Some(SeenCopy::Others));
    world.namespaces[3].refuses = true;
    world.namespaces[4].is_ending = true;
    let counts = world.survey().counts;
    let found = status(&counts, &Situation::Working, about(&before), at(100));
    assert_eq!((found.desired, found.succeeded, found.failed), (4, 1, 3));
    let conflict = "conflict with existing resources because of the same namespace, group, version, kind and name";
    let all = said(&found);
    assert_eq!((&*all[0].0, &*all[0].1, &all[0].3), ("ConflictOccurred", conflict, &vec!["b".into(), "c".into()]));
    assert_eq!((&*all[1].0, &all[1].3), ("NamespaceNotExists", &vec!["e".into()]));
    assert_eq!((&*all[2].0, &all[2].3), ("NamespaceRefused", &vec!["d".into()]));
    assert_eq!((&*all[3].0, &*all[3].1), ("Reconciling", "ConflictOccurred"));
    assert!(all[3].2.starts_with("1 of 4 namespaces have their copy; b: an object of this name"), "{}", all[3].2);

    world.note("a", Done::Clean);
    world.see("a", None);
    world.note("a", Done::Failed(Operation::Create, "exceeded quota".into()));
    let counts = world.survey().counts;
    let failed = status(&counts, &Situation::Working, about(&found), at(200));
    let all = said(&failed);
    assert_eq!(
        (all[0].0.as_str(), all[0].1.as_str(), &all[0].3),
        ("CreateResourceFailed", "exceeded quota", &vec!["a".to_owned()])
    );
    assert!(all.last().unwrap().2.contains("a: exceeded quota"), "{all:?}");
}

#[test]
fn section_6_step_1_what_cannot_be_followed_is_stalled_and_keeps_its_numbers() {
    let before = ResourceDistributionStatus { desired: 5, succeeded: 4, failed: 1, ..Default::default() };
    let why = "spec.resource.kind: no".to_owned();
    let found = status(&Default::default(), &Situation::Invalid(why.clone()), about(&before), at(1));
    assert_eq!((found.desired, found.succeeded, found.failed, found.conditions.len()), (5, 4, 1, 10));
    assert_eq!(said(&found), [("Stalled".into(), "InvalidSpec".into(), why, vec![])]);
    let unwatched = status(&Default::default(), &Situation::Unwatched, about(&before), at(1));
    assert_eq!((said(&unwatched)[0].0.as_str(), unwatched.desired), ("Reconciling", 5));
}

#[test]
fn a_missing_source_is_a_condition_and_the_copies_stay_counted() {
    let before = ResourceDistributionStatus { desired: 2, succeeded: 2, ..Default::default() };
    let mut world = World::new(secret(), named(&["a", "b"]), &["a", "b"]);
    world.content = None;
    let counts = world.survey().counts;
    let situation = Situation::Reference("ReferenceMissing", "Secret x/s does not exist".into());
    let about = About { has_reference: true, is_watched: false, ..about(&before) };
    let found = status(&counts, &situation, about, at(1));
    assert_eq!((found.desired, found.succeeded, found.failed), (2, 2, 0), "nobody has looked since the manager began");
    let all = said(&found);
    assert_eq!((all[0].0.as_str(), all[0].1.as_str()), ("ReferenceFailed", "ReferenceMissing"));
    assert_eq!(all[1].2, "Secret x/s does not exist; the copies stay as they are");
    let back = status(&counts, &Situation::Working, About { before: &found, ..about }, at(2));
    assert!(said(&back).iter().all(|(type_, ..)| type_ != "ReferenceFailed"));
    assert_eq!(back.conditions.iter().filter(|condition| condition.type_ == "ReferenceFailed").count(), 1);
}

#[test]
fn a_status_is_small_whatever_is_wrong() {
    let before = ResourceDistributionStatus::default();
    let names: Vec<String> = (0..10_000).map(|i| format!("{i:063}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::new(config_map(json!({})), named(&names[1000..]), &names[..1000]);
    world.spec = spec_of(config_map(json!({})), named(&names));
    for (i, name) in names[..1000].iter().enumerate() {
        let operation = [Operation::Get, Operation::Create, Operation::Update][i % 3];
        world.note(name, Done::Failed(operation, "word ".repeat(10_000)));
    }
    let counts = world.survey().counts;
    let found = status(&counts, &Situation::Working, about(&before), at(1));
    let all = said(&found);
    assert_eq!((all[0].3.len(), all[0].2.as_str()), (200, "200 of 334 namespaces are listed"));
    assert_eq!((all[3].3.len(), all[3].2.as_str()), (200, "200 of 9000 namespaces are listed"));
    assert!(all[4].2.len() < 2000 && all[4].2.ends_with("and 331 more"), "{}", all[4].2);
    assert!(serde_json::to_string(&found).unwrap().len() < 100_000);
    let long = "x".repeat(100_000);
    for situation in [Situation::Invalid(long.clone()), Situation::Reference("ReferenceForbidden", long)] {
        let about = About { has_reference: true, ..about(&before) };
        let found = status(&counts, &situation, about, at(1));
        let said = said(&found);
        assert!(said.iter().all(|(_, _, message, _)| message.len() < 500), "{said:?}");
        assert!(said.iter().any(|(_, _, message, _)| message.contains("xxx...")), "{said:?}");
    }
}
