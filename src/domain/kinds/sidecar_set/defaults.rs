//! What admission writes where a SidecarSet says nothing, in the words of OpenKruise.

use serde_json::{Map, Value, json};

use super::hash::{self, Hashes};
use crate::{
    api::{
        apps::sidecar_set::{
            AFTER_APP_CONTAINER, BEFORE_APP_CONTAINER, COLD_UPGRADE, INJECT_ALWAYS, PATCH_RETAIN, ROLLING_UPDATE,
            SHARE_DISABLED,
        },
        labels,
    },
    k8s::{image::ImageRef, null::set_default, quantity},
};

type Object = Map<String, Value>;

/// `spec.revisionHistoryLimit`.
pub const HISTORY: i32 = 10;
/// File mode of the files of a volume: 0644.
const FILE_MODE: i32 = 420;

/// A spec with its defaults. `old` is the spec that is stored, as [`effective`] gives it.
///
/// OpenKruise gives startup probes no defaults, and a default would be another hash: a container that is stored without
/// them stays without them, also with another image. Else its Pods could not be updated in place.
pub fn defaulted(spec: &Value, old: Option<&Value>) -> Value {
    let stored = |key: &str| {
        let list = old.and_then(|old| old.get(key)?.as_array()).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_object).map(without_image).collect::<Vec<_>>()
    };
    let stored = [stored("containers"), stored("initContainers")].concat();
    with_defaults(spec, |sidecar| !stored.contains(&without_image(sidecar)))
}

fn without_image(container: &Object) -> Object {
    container.iter().filter(|(key, _)| *key != "image").map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// `probes`: whether the startup probe of a container, which has its other defaults, gets some.
fn with_defaults(spec: &Value, probes: impl Fn(&Object) -> bool) -> Value {
    let mut spec = spec.clone();
    let Some(object) = spec.as_object_mut() else { return spec };
    for (key, policy) in [("initContainers", AFTER_APP_CONTAINER), ("containers", BEFORE_APP_CONTAINER)] {
        each(object, key, |sidecar| {
            set_container(sidecar, policy);
            if probes(sidecar) {
                member(sidecar, "startupProbe", set_probe);
            }
        });
    }
    each(object, "volumes", set_volume);
    own(object, "updateStrategy", |strategy| {
        set_text(strategy, "type", ROLLING_UPDATE);
        set_default(strategy, "partition", json!(0));
        set_default(strategy, "maxUnavailable", json!(1));
    });
    own(object, "injectionStrategy", |injection| {
        member(injection, "revision", |revision| set_text(revision, "policy", INJECT_ALWAYS));
    });
    set_default(object, "revisionHistoryLimit", json!(HISTORY));
    each(object, "patchPodMetadata", |patch| set_text(patch, "patchPolicy", PATCH_RETAIN));
    spec
}

/// The spec that a stored SidecarSet means, and its hashes: as it is stored if admission has seen it, else with its
/// defaults. Its annotations tell: that without images also tells whether admission has seen its startup probes without
/// defaults, and only an image has changed since.
pub fn effective(object: &Value) -> (Value, Hashes) {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let hashes = hash::of(&spec);
    let annotation = |key: &str| object.get("metadata").and_then(|metadata| metadata.get("annotations")?.get(key));
    if annotation(labels::SIDECAR_SET_HASH).is_some_and(|hash| *hash == hashes.hash) {
        return (spec, hashes);
    }
    let has_seen = |hashes: &Hashes| {
        annotation(labels::SIDECAR_SET_HASH_WITHOUT_IMAGE).is_some_and(|hash| *hash == hashes.without_image)
    };
    let as_stored = with_defaults(&spec, |_| false);
    let hashes = hash::of(&as_stored);
    if has_seen(&hashes) {
        return (as_stored, hashes);
    }
    let spec = defaulted(&spec, None);
    let hashes = hash::of(&spec);
    (spec, hashes)
}

fn set_container(sidecar: &mut Object, policy: &str) {
    set_text(sidecar, "podInjectPolicy", policy);
    own(sidecar, "upgradeStrategy", |strategy| set_text(strategy, "upgradeType", COLD_UPGRADE));
    own(sidecar, "shareVolumePolicy", |policy| set_text(policy, "type", SHARE_DISABLED));
    each(sidecar, "transferEnv", |transfer| {
        member(transfer, "sourceContainerNameFrom", |from| member(from, "fieldRef", set_api_version));
    });
    member(sidecar, "resourcesPolicy", |policy| set_default(policy, "targetContainersNameRegex", json!(".*")));
    let image = sidecar.get("image").and_then(Value::as_str).unwrap_or_default().to_owned();
    set_text(sidecar, "imagePullPolicy", pull_policy(&image));
    set_text(sidecar, "terminationMessagePath", "/dev/termination-log");
    set_text(sidecar, "terminationMessagePolicy", "File");
    each(sidecar, "ports", |port| set_text(port, "protocol", "TCP"));
    each(sidecar, "env", |env| {
        member(env, "valueFrom", |from| {
            member(from, "fieldRef", set_api_version);
        });
    });
    own(sidecar, "resources", |resources| {
        for key in ["limits", "requests"] {
            member(resources, key, |amounts| amounts.values_mut().for_each(round_up_to_milli));
        }
    });
    for probe in ["livenessProbe", "readinessProbe"] {
        member(sidecar, probe, set_probe);
    }
    member(sidecar, "lifecycle", |lifecycle| {
        for hook in ["postStart", "preStop"] {
            member(lifecycle, hook, |hook| member(hook, "httpGet", set_http));
        }
    });
}

/// As Kubernetes does it: what may change under its name is always pulled.
fn pull_policy(image: &str) -> &'static str {
    let is_latest = match ImageRef::parse(image) {
        Some(ImageRef { tag, digest, .. }) => tag == Some("latest") || tag.is_none() && digest.is_none(),
        None => true,
    };
    if is_latest { "Always" } else { "IfNotPresent" }
}

fn round_up_to_milli(amount: &mut Value) {
    const NANO_IN_MILLI: i128 = 1_000_000;
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let Some(nano) = quantity::parse(&text).filter(|nano| nano % NANO_IN_MILLI != 0) else { return };
    let milli = nano.div_euclid(NANO_IN_MILLI) + 1;
    *amount = quantity::canonical(&format!("{milli}m")).unwrap_or(text).into();
}

fn set_probe(probe: &mut Object) {
    for (key, default) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe.get(key).is_some_and(|value| value == 0) {
            probe.remove(key);
        }
        set_default(probe, key, json!(default));
    }
    member(probe, "httpGet", set_http);
}

fn set_http(http: &mut Object) {
    set_text(http, "path", "/");
    set_text(http, "scheme", "HTTP");
}

fn set_api_version(reference: &mut Object) {
    set_text(reference, "apiVersion", "v1");
}

fn set_volume(volume: &mut Object) {
    let has_source = volume.iter().any(|(key, value)| key != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".into(), json!({}));
    }
    member(volume, "hostPath", |path| set_default(path, "type", json!("")));
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        member(volume, source, |source| set_default(source, "defaultMode", json!(FILE_MODE)));
    }
    member(volume, "downwardAPI", set_items);
    member(volume, "projected", |projected| {
        each(projected, "sources", |source| {
            member(source, "serviceAccountToken", |token| set_default(token, "expirationSeconds", json!(3600)));
            member(source, "downwardAPI", set_items);
        });
    });
}

fn set_items(source: &mut Object) {
    each(source, "items", |item| member(item, "fieldRef", set_api_version));
}

/// Does something to a member that is an object.
fn member(object: &mut Object, key: &str, change: impl FnOnce(&mut Object)) {
    if let Some(Value::Object(member)) = object.get_mut(key) {
        change(member);
    }
}

/// Does something to each object in a list.
fn each(object: &mut Object, key: &str, change: impl FnMut(&mut Object)) {
    if let Some(Value::Array(list)) = object.get_mut(key) {
        list.iter_mut().filter_map(Value::as_object_mut).for_each(change);
    }
}

/// Does something to a member that is an object, which is made where it is missing. What is none stays as it is: the schema
/// refuses it.
fn own(object: &mut Object, key: &str, change: impl FnOnce(&mut Object)) {
    set_default(object, key, json!({}));
    member(object, key, change);
}

fn set_text(object: &mut Object, key: &str, default: &str) {
    let value = object.entry(key).or_insert(Value::Null);
    if value.is_null() || value == "" {
        *value = default.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Vec<Value> {
        serde_json::from_str(include_str!("../../../api/apps/testdata/sidecar_sets.json")).unwrap()
    }

    #[test]
    fn a7_the_applied_manifest_becomes_what_was_recorded() {
        for object in recorded() {
            let applied =
                object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str();
            let mut applied: Value = serde_json::from_str(applied.unwrap()).unwrap();
            let (image, spec) = (&object["spec"]["containers"][0]["image"], &mut applied["spec"]);
            spec["containers"][0]["image"] = image.clone();
            let mut made = defaulted(spec, None);
            made.as_object_mut().unwrap().remove("namespace");
            let mut wanted = object["spec"].clone();
            wanted.as_object_mut().unwrap().remove("namespaceSelector");
            assert_eq!(made, wanted);
        }
    }

    #[test]
    fn defaults_are_a_fixed_point() {
        let spec = json!({"containers": [{"name": "a", "image": "b", "startupProbe": {"httpGet": {"port": 1}},
            "ports": [{"containerPort": 1}], "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "resources": {"limits": {"cpu": "100u"}}, "lifecycle": {"preStop": {"httpGet": {"port": 1}}}}],
            "volumes": [{"name": "e"}, {"name": "h", "hostPath": {"path": "/"}}, {"name": "p", "projected": {"sources":
            [{"serviceAccountToken": {"path": "t"}}]}}, {"name": "s", "secret": {"secretName": "x"}}],
            "injectionStrategy": {"revision": {"revisionName": "r"}}, "patchPodMetadata": [{"annotations": {"a": "b"}}]});
        let once = defaulted(&spec, None);
        assert_eq!(defaulted(&once, None), once);
        let container = &once["containers"][0];
        assert_eq!(
            container["startupProbe"],
            json!({"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"},
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(
            (&container["ports"][0]["protocol"], &container["resources"]["limits"]["cpu"]),
            (&json!("TCP"), &json!("1m"))
        );
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(once["volumes"][0], json!({"name": "e", "emptyDir": {}}));
        assert_eq!(once["volumes"][1]["hostPath"]["type"], "");
        assert_eq!(once["volumes"][2]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
        assert_eq!(once["volumes"][2]["projected"]["defaultMode"], 420);
        assert_eq!(once["injectionStrategy"]["revision"]["policy"], "Always");
        assert_eq!(once["patchPodMetadata"][0]["patchPolicy"], "Retain");
    }

    #[test]
    fn e6_a_startup_probe_gets_defaults_but_not_where_it_is_stored_without() {
        let sidecar =
            |image: &str| json!({"containers": [{"name": "a", "image": image, "startupProbe": {"exec": {}}}]});
        let probe = |spec: &Value| spec["containers"][0]["startupProbe"].clone();
        let mut stored = defaulted(&sidecar("b:1"), None);
        assert_eq!(probe(&stored)["periodSeconds"], 10);
        stored["containers"][0]["startupProbe"] = json!({"exec": {}});
        let again = defaulted(&sidecar("b:1"), Some(&stored));
        assert_eq!(probe(&again), json!({"exec": {}}), "the manifest is applied again after a takeover");
        let updated = defaulted(&sidecar("b:2"), Some(&stored));
        assert_eq!(probe(&updated), json!({"exec": {}}), "Pods can be updated in place");
        assert_eq!(hash::of(&updated).without_image, hash::of(&stored).without_image);
        let mut other = sidecar("b:1");
        other["containers"][0]["tty"] = json!(true);
        assert_eq!(probe(&defaulted(&other, Some(&stored)))["periodSeconds"], 10, "it is another container");
    }

    /// What is read while admission is away has the hash that admission gives it later.
    #[test]
    fn e6_a_startup_probe_has_one_hash_whether_admission_has_seen_it_or_not() {
        let sidecar = |image: &str, probe: Value| json!({"containers": [{"name": "a", "image": image, "startupProbe": probe}], "selector": {"matchLabels": {"a": "b"}}});
        let http = json!({"httpGet": {"port": 80}});
        let with_marks = |spec: &Value, of: &Value| {
            let hashes = hash::of(of);
            json!({"spec": spec, "metadata": {"annotations": {labels::SIDECAR_SET_HASH: hashes.hash,
                labels::SIDECAR_SET_HASH_WITHOUT_IMAGE: hashes.without_image}}})
        };
        let without = |spec: &Value| {
            let mut spec = defaulted(spec, None);
            spec["containers"][0]["startupProbe"] = http.clone();
            spec
        };
        let full = defaulted(&sidecar("b:1", http.clone()), None);
        let bare = without(&sidecar("b:1", http.clone()));
        for (stored, wanted, why) in [
            (json!({"spec": sidecar("b:1", http.clone())}), &full, "admission has seen nothing"),
            (json!({"spec": bare}), &full, "all defaults but those of the probe, and admission has seen nothing"),
            (with_marks(&bare, &bare), &bare, "OpenKruise has seen it"),
            (with_marks(&full, &full), &full, "we have seen it"),
            (with_marks(&sidecar("b:1", http.clone()), &full), &full, "the manifest was applied again"),
            (
                with_marks(&without(&sidecar("b:2", http.clone())), &bare),
                &without(&sidecar("b:2", http.clone())),
                "OpenKruise had seen it, and the image was changed since",
            ),
        ] {
            let (spec, hashes) = effective(&stored);
            assert_eq!((&spec, &hashes), (wanted, &hash::of(wanted)), "{why}");
            let again = defaulted(&stored["spec"], Some(&spec));
            assert_eq!(hash::of(&again), hashes, "{why}, and admission sees it now");
        }
    }

    #[test]
    fn pull_policies_are_those_of_kubernetes() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        for (image, policy) in [
            ("a", "Always"),
            ("a:latest", "Always"),
            ("a:1", "IfNotPresent"),
            ("r:5000/a", "Always"),
            (&digest, "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn a_spec_that_admission_has_not_seen_means_what_it_would_have_become() {
        let mut object = recorded().remove(0);
        let (spec, hashes) = effective(&object);
        assert_eq!((&spec, &hashes), (&object["spec"], &hash::of(&object["spec"])));
        object["spec"]["containers"][0].as_object_mut().unwrap().remove("terminationMessagePath");
        assert_eq!(effective(&object), (spec, hashes), "the webhook was down when it was changed");
    }
}
