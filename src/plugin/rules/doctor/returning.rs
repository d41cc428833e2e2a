//! What OpenKruise 1.9 does not know of the objects in a cluster: to be looked at before a move back.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Fact, Finding, Lack, Verdict, finding, ok, unknown};
use crate::{
    api::{apps::sidecar_set::NOT_UPDATE, kinds::Kind, kruise},
    domain::kinds::sidecar_set::hash::is_native_sidecar,
    k8s::int_or_percent::is_whole_percentage,
    plugin::rules::JsonPointer,
};

const CHECK: &str = "for OpenKruise";
/// Objects that are named for each finding.
const MOST_NAMED: usize = 5;
/// Where OpenKruise reads a partition only as a number.
const PARTITIONS: [(&str, &str); 2] = [
    ("StatefulSet", "/spec/updateStrategy/rollingUpdate/partition"),
    ("UnitedDeployment", "/spec/template/advancedStatefulSetTemplate/spec/updateStrategy/rollingUpdate/partition"),
];
const WHOLE_UNAVAILABLE: &str =
    "replace it by a whole percentage or a number: OpenKruise takes it for 0, and may update no Pod";
const WHOLE_SURGE: &str =
    "replace it by a whole percentage or a number: OpenKruise takes it for 0, and makes no Pod beyond spec.replicas";
const WHOLE_LIMIT: &str = "replace it by a whole percentage or a number: OpenKruise takes it for 0, and adds no Pod";
const WHOLE_PARALLELISM: &str =
    "replace it by a whole percentage or a number: OpenKruise cannot tell how many Pods may run at a time";
/// Where OpenKruise's webhook lets a percentage with a fraction pass and its controller cannot read it, with what to do. The
/// partition of a CloneSet is none of them: there the controller reads fractions too.
const WHOLE_PERCENTAGES: [(&str, &str, &str); 8] = [
    ("CloneSet", "/spec/updateStrategy/maxUnavailable", WHOLE_UNAVAILABLE),
    ("CloneSet", "/spec/updateStrategy/maxSurge", WHOLE_SURGE),
    ("CloneSet", "/spec/scaleStrategy/maxUnavailable", WHOLE_LIMIT),
    ("UnitedDeployment", "/spec/template/cloneSetTemplate/spec/updateStrategy/maxUnavailable", WHOLE_UNAVAILABLE),
    ("UnitedDeployment", "/spec/template/cloneSetTemplate/spec/updateStrategy/maxSurge", WHOLE_SURGE),
    ("UnitedDeployment", "/spec/template/cloneSetTemplate/spec/scaleStrategy/maxUnavailable", WHOLE_LIMIT),
    ("BroadcastJob", "/spec/parallelism", WHOLE_PARALLELISM),
    ("AdvancedCronJob", "/spec/template/broadcastJobTemplate/spec/parallelism", WHOLE_PARALLELISM),
];

/// What OpenKruise does not know or refuses, in the objects of each kind that we install, and in Namespaces.
pub fn returning(kinds: &[(Kind, Fact)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (kind, objects) in kinds {
        match objects {
            Ok(list) => findings.extend(of_kind(kind, list.list("/items"))),
            Err(Lack::NotFound) => {}
            Err(lack) => findings.push(unknown(CHECK, &format!("the {}", named(kind)), lack)),
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, "OpenKruise 1.9 knows everything that is in the objects"));
    }
    findings
}

fn named(kind: &Kind) -> String {
    if kind.group.is_empty() { kind.plural.to_owned() } else { format!("{}.{}", kind.plural, kind.group) }
}

fn of_kind(kind: &Kind, objects: &[Value]) -> Vec<Finding> {
    // What is unknown, what to do about it, and where it is.
    let mut found: BTreeMap<(String, &'static str), Vec<String>> = BTreeMap::new();
    for object in objects {
        for unknown in unknown_in(kind, object) {
            let (namespace, name) = (object.text("/metadata/namespace"), object.text("/metadata/name"));
            let at = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
            found.entry(unknown).or_default().push(at);
        }
    }
    let judge = |((what, advice), at): ((String, &'static str), Vec<String>)| {
        let more = at.len().saturating_sub(MOST_NAMED);
        let mut list = at.into_iter().take(MOST_NAMED).collect::<Vec<_>>().join(", ");
        if more > 0 {
            list = format!("{list} and {more} more");
        }
        finding(CHECK, Verdict::Warn, format!("{} {list}: {what}", named(kind)), advice)
    };
    found.into_iter().map(judge).collect()
}

fn unknown_in(kind: &Kind, object: &Value) -> Vec<(String, &'static str)> {
    if kind.group == kruise::GROUP {
        return vec![("OpenKruise has no such kind".to_owned(), "uninstall.sh deletes them; wait for those under way")];
    }
    let mut found = Vec::new();
    for field in ["labels", "annotations"] {
        let keys = object.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
        for key in keys.into_iter().flat_map(serde_json::Map::keys).filter(|key| is_our_key(key)) {
            // A request with this label is served by the manager, and has ended by then.
            if key != crate::api::labels::CRR_METHOD {
                let what = format!("OpenKruise does not know the {} {key}", field.trim_end_matches('s'));
                found.push((what, "what it says no longer holds; see the guide of the kind"));
            }
        }
    }
    if kind.kind == "ContainerRecreateRequest" {
        found.extend(of_request(object));
    }
    if kind.kind == "SidecarSet" {
        found.extend(of_sidecar_set(object));
    }
    if kind.kind == "ResourceDistribution" && object.pointer("/spec/resourceRef").is_some() {
        found.push((
            "OpenKruise does not know spec.resourceRef and wants spec.resource".to_owned(),
            "write the object itself into spec.resource; until then its copies stay as they are and nobody follows the object",
        ));
    }
    if kind.kind == "AdvancedCronJob" {
        found.extend(of_cron_job(object));
    }
    for (_, partition) in PARTITIONS.iter().filter(|(of, _)| *of == kind.kind) {
        if object.pointer(partition).is_some_and(Value::is_string) {
            let here = object.text(partition);
            let what = format!("OpenKruise reads a partition only as a number, here it is {here:?}");
            found.push((what, "replace it by a number: with one such object OpenKruise cannot read any list of them"));
        }
    }
    found.extend(with_fractions(kind, object));
    found
}

/// Percentages that OpenKruise cannot read, mostly because of a fraction.
fn with_fractions(kind: &Kind, object: &Value) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for (_, pointer, advice) in WHOLE_PERCENTAGES.iter().filter(|(of, ..)| *of == kind.kind) {
        let here = object.text(pointer);
        // Go's `strconv.Atoi` reads a sign.
        let unsigned = here.strip_prefix(['+', '-']).unwrap_or(here);
        if here.ends_with('%') && !is_whole_percentage(unsigned) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            found.push((format!("OpenKruise reads only whole percentages in {field}, here it is {here:?}"), *advice));
        }
    }
    found
}

/// In OpenKruise's definition the metadata of these templates is an object without fields, so the API server drops them. That
/// of the template of a Job is kept.
fn of_cron_job(object: &Value) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for template in ["broadcastJobTemplate", "imageListPullJobTemplate"] {
        let metadata = &object["spec"]["template"][template]["metadata"];
        let is_there = |field: &str| metadata[field].as_object().is_some_and(|entries| !entries.is_empty());
        if is_there("labels") || is_there("annotations") {
            found.push((
                format!("OpenKruise does not store labels and annotations in spec.template.{template}.metadata"),
                "its jobs come without them",
            ));
        }
    }
    found
}

fn of_request(object: &Value) -> Vec<(String, &'static str)> {
    let is_there = |object: &Value, pointer: &str| object.pointer(pointer).is_some_and(|value| !value.is_null());
    let mut fields = Vec::new();
    if is_there(object, "/spec/strategy/recreateMethod") {
        fields.push("strategy.recreateMethod");
    }
    if is_there(object, "/spec/strategy/varyImageTag") {
        fields.push("strategy.varyImageTag");
    }
    if object.list("/spec/containers").iter().any(|container| is_there(container, "/preStop/sleep")) {
        fields.push("containers[].preStop.sleep");
    }
    let unknown = |field: &str| {
        let what = format!("OpenKruise does not know spec.{field}");
        (what, "uninstall.sh deletes all requests; wait for those under way")
    };
    fields.into_iter().map(unknown).collect()
}

fn of_sidecar_set(object: &Value) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    let has_native = object.list("/spec/initContainers").iter().any(is_native_sidecar);
    if has_native && object.text("/spec/updateStrategy/type") != NOT_UPDATE {
        found.push((
            "OpenKruise refuses init containers with restartPolicy Always where updateStrategy.type is RollingUpdate"
                .to_owned(),
            "set updateStrategy.type to NotUpdate: until then OpenKruise's webhook refuses every change of the object",
        ));
    }
    for field in ["revisionName", "customVersion"] {
        if !object.text(&format!("/spec/injectionStrategy/{field}")).is_empty() {
            found.push((
                format!("OpenKruise does not know spec.injectionStrategy.{field}"),
                "write it below spec.injectionStrategy.revision, or new Pods get the present containers",
            ));
        }
    }
    let has_selector = object.pointer("/spec/namespaceSelector").is_some_and(|selector| !selector.is_null());
    if !object.text("/spec/namespace").is_empty() && !has_selector {
        found.push((
            "OpenKruise does not know spec.namespace in v1beta1, and spec.namespaceSelector is missing".to_owned(),
            "apply it again while the webhook runs, which adds the selector, or it is for Pods of all namespaces",
        ));
    }
    found
}

/// Whether a key of a label or annotation is one that kruise-rs has beside those of OpenKruise.
fn is_our_key(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == kruise::GROUP || domain.strip_suffix(kruise::GROUP).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::api::kinds::KINDS;

    /// What OpenKruise 1.9 has in the specs of its objects: a definition, a path and its type; no path but one of our schemas.
    /// `any` is what ours do not describe. Each line was compared with definitions and types that OpenKruise has published: of
    /// 1.9.0 and 1.9.1 for CloneSet, PodUnavailableBudget, ResourceDistribution, UnitedDeployment and WorkloadSpread; of the
    /// chart that follows them for DaemonSet, SidecarSet and StatefulSet; of releases before 1.9 for the others. Two lines are
    /// in none of these: the `mode` of a NodeImage's pull secrets, and `imageListPullJobTemplate`, which its conversion names.
    /// The end-to-end test of uninstalling makes definitions of it.
    const KNOWN: &str = include_str!("testdata/openkruise-1.9.txt");
    /// Additions of ours that nobody misses: the webhook notes it for our manager, in every request.
    const NOT_MISSED: [&str; 1] =
        ["containerrecreaterequests.apps.kruise.io spec.containers[].statusContext.image string"];

    fn kind(plural: &str) -> Kind {
        *KINDS.iter().find(|kind| kind.plural == plural && kind.definition.is_some()).unwrap()
    }

    fn said(plural: &str, objects: Value) -> Vec<String> {
        let findings = returning(&[(kind(plural), Ok(json!({ "items": objects })))]);
        findings.iter().map(|finding| format!("{:?} {}", finding.verdict, finding.text)).collect()
    }

    #[test]
    fn what_openkruise_does_not_know_is_named_with_the_objects_that_have_it() {
        let meta = |name: &str, annotations: Value| json!({"namespace": "a", "name": name, "annotations": annotations});
        let set = |name: &str, annotations: Value, partition: Value| {
            json!({"metadata": meta(name, annotations),
                "spec": {"updateStrategy": {"rollingUpdate": {"partition": partition}}}})
        };
        let ordered = json!({"kruise.rs/update-order": "role=x", "apps.kruise.io/x": "1", "notkruise.rs/x": "1"});
        assert_eq!(
            said(
                "statefulsets",
                json!([
                    set("x", ordered.clone(), json!(1)),
                    set("y", json!({}), json!("30%")),
                    set("z", ordered, json!(null))
                ])
            ),
            [
                "Warn statefulsets.apps.kruise.io a/x, a/z: OpenKruise does not know the annotation kruise.rs/update-order",
                "Warn statefulsets.apps.kruise.io a/y: OpenKruise reads a partition only as a number, here it is \"30%\"",
            ]
        );
        let request = json!({"metadata": {"namespace": "a", "name": "r", "labels": {"crr.kruise.rs/method": "PodSpec"}},
            "spec": {"strategy": {"recreateMethod": "PodSpec", "varyImageTag": null}}});
        let sleeping = json!({"metadata": {"namespace": "a", "name": "s"},
            "spec": {"containers": [{"preStop": {"exec": {}}}, {"preStop": {"sleep": {"seconds": 1}}}]}});
        assert_eq!(
            said("containerrecreaterequests", json!([request, sleeping])),
            [
                "Warn containerrecreaterequests.apps.kruise.io a/s: OpenKruise does not know spec.containers[].preStop.sleep",
                "Warn containerrecreaterequests.apps.kruise.io a/r: OpenKruise does not know spec.strategy.recreateMethod",
            ]
        );
        let united = |name: &str, partition: Value| {
            let sets = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": partition}}}});
            json!({"metadata": meta(name, json!({})), "spec": {"template": {"advancedStatefulSetTemplate": sets}}})
        };
        assert_eq!(
            said("uniteddeployments", json!([united("u", json!("30%")), united("v", json!(1))])),
            [
                "Warn uniteddeployments.apps.kruise.io a/u: OpenKruise reads a partition only as a number, here it is \"30%\""
            ]
        );
        let many: Vec<Value> = (0..7).map(|i| json!({"metadata": meta(&format!("w{i}"), json!({}))})).collect();
        assert_eq!(
            said("workloadrestarts", json!(many)),
            ["Warn workloadrestarts.kruise.rs a/w0, a/w1, a/w2, a/w3, a/w4 and 2 more: OpenKruise has no such kind"]
        );
    }

    /// Every path of a schema, with the type of what is there.
    fn paths(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let type_ = match member["x-kubernetes-int-or-string"] == true {
                true => "int-or-string",
                false => member["type"].as_str().unwrap_or("any"),
            };
            found.insert(format!("{at} {type_}"));
            paths(member, &at, found);
        }
        for (member, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[member].is_object() {
                paths(&schema[member], &format!("{at}{mark}"), found);
            }
        }
    }

    /// An object with something at a path, and nothing else.
    fn with_only(path_and_type: &str) -> Value {
        let (path, type_) = path_and_type.split_once(' ').unwrap();
        let there = match type_ {
            "object" => json!({}),
            "array" => json!([]),
            "boolean" => json!(true),
            "integer" => json!(1),
            "int-or-string" => json!("30%"),
            _ => json!("x"),
        };
        path.rsplit('.').fold(there, |value, part| match (part.strip_suffix("[]"), part.strip_suffix("{}")) {
            (Some(list), _) => json!({ list: [value] }),
            (_, Some(map)) => json!({ map: { "x": value } }),
            _ => json!({ part: value }),
        })
    }

    /// Of a line of the list.
    fn without_type(line: &str) -> &str {
        line.rsplit_once(' ').map_or(line, |(path, _)| path)
    }

    #[test]
    fn every_field_is_one_of_openkruise_or_is_named() {
        let known: BTreeSet<&str> = KNOWN.lines().chain(NOT_MISSED).collect();
        let (mut all, mut unnamed) = (BTreeSet::new(), Vec::new());
        for kind in KINDS.iter().filter(|kind| kind.group != kruise::GROUP) {
            let Some(definition) = kind.definition else { continue };
            let mut found = BTreeSet::new();
            for version in json!(definition.render())["spec"]["versions"].as_array().unwrap() {
                paths(&version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec", &mut found);
            }
            for field in found {
                let line = format!("{} {field}", definition.name);
                if !known.contains(line.as_str()) && unknown_in(kind, &with_only(&field)).is_empty() {
                    unnamed.push(line.clone());
                }
                all.insert(line);
            }
        }
        assert!(
            unnamed.is_empty(),
            "add these lines to testdata/openkruise-1.9.txt if OpenKruise 1.9 has the fields with these types; if not, name \
             them in returning.rs:\n{}",
            unnamed.join("\n")
        );
        // Where OpenKruise has another type than we, the list has that one.
        let paths: BTreeSet<&str> = all.iter().map(|line| without_type(line)).collect();
        let gone: Vec<&&str> = known.iter().filter(|line| !paths.contains(without_type(line))).collect();
        assert!(gone.is_empty(), "no schema has these any more: {gone:#?}");
        assert!(all.len() > 500, "{}", all.len());
    }

    #[test]
    fn of_sidecar_sets_what_openkruise_refuses_or_ignores_is_named() {
        let set = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let native = json!([{"name": "mesh", "restartPolicy": "Always"}]);
        let of_namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": "shop"}});
        let sets = [
            set("a", json!({"initContainers": native, "updateStrategy": {"type": "RollingUpdate"}})),
            set("b", json!({"initContainers": native})),
            set("c", json!({"initContainers": native, "updateStrategy": {"type": "NotUpdate"}})),
            set("d", json!({"initContainers": [{"name": "setup"}]})),
            set("e", json!({"injectionStrategy": {"customVersion": "v1"}})),
            set("f", json!({"injectionStrategy": {"revision": {"customVersion": "v1"}}, "customVersion": "v2"})),
            set("g", json!({"namespace": "shop", "namespaceSelector": of_namespace})),
            set("h", json!({"namespace": "shop"})),
            json!({"metadata": {"name": "i", "annotations": {"kruise.rs/pod-level-resources": "share"}}, "spec": {}}),
        ];
        assert_eq!(
            said("sidecarsets", json!(sets)),
            [
                "Warn sidecarsets.apps.kruise.io e: OpenKruise does not know spec.injectionStrategy.customVersion",
                "Warn sidecarsets.apps.kruise.io h: OpenKruise does not know spec.namespace in v1beta1, and spec.namespaceSelector is missing",
                "Warn sidecarsets.apps.kruise.io i: OpenKruise does not know the annotation kruise.rs/pod-level-resources",
                "Warn sidecarsets.apps.kruise.io a, b: OpenKruise refuses init containers with restartPolicy Always where updateStrategy.type is RollingUpdate",
            ]
        );
    }

    #[test]
    fn distributions_of_a_referenced_object_are_named_and_so_are_namespaces_that_refuse() {
        let with = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let reference = json!({"resourceRef": {"kind": "Secret", "namespace": "a", "name": "s"}, "targets": {}});
        let inline = json!({"resource": {"kind": "Secret"}, "targets": {}});
        assert_eq!(
            said("resourcedistributions", json!([with("x", reference), with("y", inline)])),
            [
                "Warn resourcedistributions.apps.kruise.io x: OpenKruise does not know spec.resourceRef and wants spec.resource"
            ]
        );
        let namespace = *KINDS.iter().find(|kind| kind.kind == "Namespace").unwrap();
        let refusing = json!({"items": [{"metadata": {"name": "shop", "annotations": {"kruise.rs/refuse-distribution": "true"}}}]});
        let findings = returning(&[(namespace, Ok(refusing))]);
        assert_eq!(
            findings[0].text,
            "namespaces shop: OpenKruise does not know the annotation kruise.rs/refuse-distribution"
        );
    }

    #[test]
    fn labels_and_annotations_that_openkruise_drops_from_templates_of_jobs_are_named() {
        let job = |name: &str, template: &str, metadata: Value| json!({"metadata": {"namespace": "a", "name": name}, "spec": {"template": {template: {"metadata": metadata}}}});
        let jobs = [
            job("a", "broadcastJobTemplate", json!({"labels": {"team": "x"}})),
            job("b", "broadcastJobTemplate", json!({"labels": null, "annotations": {"team": "x"}})),
            job("c", "broadcastJobTemplate", json!({"labels": {}})),
            job("d", "broadcastJobTemplate", json!(null)),
            job("e", "jobTemplate", json!({"labels": {"team": "x"}})),
            job("f", "imageListPullJobTemplate", json!({"annotations": {"team": "x"}})),
        ];
        assert_eq!(
            said("advancedcronjobs", json!(jobs)),
            [
                "Warn advancedcronjobs.apps.kruise.io a/a, a/b: OpenKruise does not store labels and annotations in \
                 spec.template.broadcastJobTemplate.metadata",
                "Warn advancedcronjobs.apps.kruise.io a/f: OpenKruise does not store labels and annotations in \
                 spec.template.imageListPullJobTemplate.metadata",
            ]
        );
    }

    #[test]
    fn percentages_with_a_fraction_are_named_where_openkruise_reads_none() {
        let object = |path: &str, value: &Value| {
            let mut object = path.rsplit('.').fold(value.clone(), |there, part| json!({ part: there }));
            object["metadata"] = json!({"namespace": "a", "name": "x"});
            object
        };
        for (plural, path, advice) in [
            ("clonesets", "spec.updateStrategy.maxUnavailable", Some("may update no Pod")),
            ("clonesets", "spec.updateStrategy.maxSurge", Some("makes no Pod beyond spec.replicas")),
            ("clonesets", "spec.scaleStrategy.maxUnavailable", Some("adds no Pod")),
            ("clonesets", "spec.updateStrategy.partition", None),
            (
                "uniteddeployments",
                "spec.template.cloneSetTemplate.spec.updateStrategy.maxUnavailable",
                Some("may update no Pod"),
            ),
            (
                "uniteddeployments",
                "spec.template.cloneSetTemplate.spec.updateStrategy.maxSurge",
                Some("makes no Pod beyond spec.replicas"),
            ),
            (
                "uniteddeployments",
                "spec.template.cloneSetTemplate.spec.scaleStrategy.maxUnavailable",
                Some("adds no Pod"),
            ),
            ("uniteddeployments", "spec.template.cloneSetTemplate.spec.updateStrategy.partition", None),
            ("broadcastjobs", "spec.parallelism", Some("how many Pods may run at a time")),
            (
                "advancedcronjobs",
                "spec.template.broadcastJobTemplate.spec.parallelism",
                Some("how many Pods may run at a time"),
            ),
        ] {
            for (value, is_whole) in [
                (json!("12.5%"), false),
                (json!("50.0%"), false),
                (json!("5.%"), false),
                (json!(".5%"), false),
                (json!("20%"), true),
                // Go reads a sign.
                (json!("+5%"), true),
                (json!("-0%"), true),
                (json!(3), true),
                (json!(null), true),
            ] {
                let objects = json!({"items": [object(path, &value)]});
                let findings = returning(&[(kind(plural), Ok(objects))]);
                let [Finding { verdict, text, advice: told, .. }] = findings.as_slice() else { panic!("{findings:?}") };
                let Some(advice) = advice.filter(|_| !is_whole) else {
                    assert_eq!(*verdict, Verdict::Ok, "{path} {value}: {text}");
                    continue;
                };
                let want = format!(
                    "{plural}.apps.kruise.io a/x: OpenKruise reads only whole percentages in {path}, here it is {value}"
                );
                assert_eq!((*verdict, text), (Verdict::Warn, &want));
                assert!(told.ends_with(advice), "{path}: {told}");
            }
        }
    }

    #[test]
    fn namespaces_that_require_sidecars_are_named() {
        let namespace = *KINDS.iter().find(|kind| kind.kind == "Namespace").unwrap();
        let labelled = json!({"items": [{"metadata": {"name": "shop", "labels": {"kruise.rs/sidecars": "required"}}}]});
        let findings = returning(&[(namespace, Ok(labelled))]);
        assert_eq!(findings[0].text, "namespaces shop: OpenKruise does not know the label kruise.rs/sidecars");
    }

    #[test]
    fn without_anything_of_ours_there_is_nothing_to_do_and_what_cannot_be_read_is_unknown() {
        let plain = json!([{"metadata": {"name": "n1"}, "spec": {"images": {}}}]);
        assert_eq!(said("nodeimages", plain), ["Ok OpenKruise 1.9 knows everything that is in the objects"]);
        let lacking =
            returning(&[(kind("clonesets"), Err(Lack::NotPermitted)), (kind("nodeimages"), Err(Lack::NotFound))]);
        assert_eq!(lacking.len(), 1);
        assert_eq!(lacking[0].text, "not permitted to read the clonesets.apps.kruise.io");
    }
}
