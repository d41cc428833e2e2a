//! Admission of PodProbeMarkers: a pure function. Nothing is changed: they are stored as they were written.
//!
//! CREATE fails closed, UPDATE fails open: that the selector stays is CEL in the schema, and the daemon never obeys a host
//! of a stored object. An update is never refused for what it does not change.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Uri};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::{
    api::feature_gates::{FeatureGates, gate},
    domain::node::probes::{
        FAILED, LONGEST_TIMEOUT, SUCCEEDED, budget,
        reserved::{self, NATIVE_CONDITIONS},
    },
    k8s::{
        canonical_json,
        invalid::InvalidField,
        limits::MOST_ANNOTATIONS,
        name::{LONGEST_LABEL, is_qualified_name},
        selector,
    },
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        validate::is_judged,
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move { admit(&context.gates, &request) })
}

/// Judges an object.
///
/// # Errors
/// The feature is off, or fields are wrong, all of them named.
pub fn admit(gates: &FeatureGates, request: &Request) -> Decision {
    let is_update = request.operation == "UPDATE";
    if !is_judged(request) {
        return Ok(Admitted::unchanged());
    }
    for name in [gate::KRUISE_DAEMON, gate::POD_PROBE_MARKER] {
        if !gates.enabled(name) {
            return Err(Denied::forbidden(format!("PodProbeMarkers need the feature gate {name}, which is off")));
        }
    }
    let found = judge(&request.object);
    let before: BTreeSet<Cause> = match is_update {
        true => judge(&request.old_object).into_iter().collect(),
        false => BTreeSet::new(),
    };
    let mut causes: Vec<Cause> = found.into_iter().filter(|cause| !before.contains(cause)).collect();
    let selector = |object: &Value| object.pointer("/spec/selector").cloned();
    if is_update && selector(&request.object) != selector(&request.old_object) {
        let message =
            "it cannot be changed: what was written on its Pods would stay there; create another PodProbeMarker";
        causes.push(Cause { field: "spec.selector".into(), message: message.into() });
    }
    if causes.is_empty() {
        return Ok(Admitted { warnings: too_large(&request.object), ..Admitted::default() });
    }
    // As OpenKruise answers.
    Err(Denied { code: 400, ..Denied::invalid(causes) })
}

/// Warnings of probes that fit into no Pod's part of a NodePodProbe.
fn too_large(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, probe) in object.pointer("/spec/probes").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let bytes = canonical_json::encode(&probe["probe"]).len();
        if bytes > budget::POD {
            let most = budget::POD;
            warnings.push(format!(
                "spec.probes[{i}].probe: it takes {bytes} bytes, and all probes of a Pod may have {most}; it is left out"
            ));
        }
    }
    warnings
}

/// What is wrong with an object.
#[derive(Default)]
struct Findings(Vec<Cause>);

fn judge(object: &Value) -> Vec<Cause> {
    let mut found = Findings::default();
    found.selector(object.pointer("/spec/selector"));
    let probes = object.pointer("/spec/probes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if probes.is_empty() {
        found.deny("spec.probes", "it is empty; want at least one probe");
    }
    let (mut names, mut conditions) = (BTreeSet::new(), BTreeSet::new());
    for (i, probe) in probes.iter().enumerate() {
        let at = format!("spec.probes[{i}]");
        let name = text(probe, "name");
        if name.is_empty() || name.contains('#') {
            found.deny(format!("{at}.name"), format!("{} is not allowed; want a name without '#'", show(name)));
        } else if NATIVE_CONDITIONS.contains(&name) {
            found.deny(format!("{at}.name"), native(name));
        } else if !names.insert(name) {
            found.deny(
                format!("{at}.name"),
                format!("{} is there twice; want a name that no other probe has", show(name)),
            );
        }
        if text(probe, "containerName").is_empty() {
            found.deny(format!("{at}.containerName"), "it is missing; want the name of a container");
        }
        found.probe(&format!("{at}.probe"), &probe["probe"]);
        let policies = probe["markerPolicy"].as_array().map(Vec::as_slice).unwrap_or_default();
        let condition = text(probe, "podConditionType");
        let field = format!("{at}.podConditionType");
        if condition.is_empty() && policies.is_empty() {
            found.deny(
                field,
                "it is missing, and so is markerPolicy; want at least one of them: the result would be nowhere",
            );
        } else if NATIVE_CONDITIONS.contains(&condition) {
            found.deny(field, native(condition));
        } else if reserved::is_condition(condition) {
            found.deny(field, reserved::condition_message(&show(condition)));
        } else if !condition.is_empty() && !is_qualified_name(condition) {
            found.deny(field, format!("{} is not allowed; want a type such as example.com/idle", show(condition)));
        } else if !condition.is_empty() && !conditions.insert(condition) {
            found.deny(field, format!("{} is there twice; want a type that no other probe has", show(condition)));
        }
        found.policies(&at, policies);
    }
    found.0
}

fn native(name: &str) -> String {
    let all = NATIVE_CONDITIONS.join(", ");
    format!("{} is not allowed; want anything but {all}, which Kubernetes and Kruise write", show(name))
}

fn text<'v>(object: &'v Value, key: &str) -> &'v str {
    object[key].as_str().unwrap_or_default()
}

/// A value as messages show it.
fn show(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{text:?}") }
}

impl Findings {
    fn deny(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Cause { field: field.into(), message: message.into() });
    }

    fn deny_all(&mut self, problems: Vec<InvalidField>) {
        for InvalidField { field, why } in problems {
            self.deny(field, why);
        }
    }

    fn selector(&mut self, selector: Option<&Value>) {
        const AT: &str = "spec.selector";
        match selector.filter(|selector| !selector.is_null()).map(LabelSelector::deserialize).transpose() {
            Ok(parsed) => self.deny_all(selector::problems(&parsed.unwrap_or_default(), AT)),
            Err(error) => self.deny(AT, format!("it is no label selector: {error}")),
        }
    }

    fn probe(&mut self, at: &str, probe: &Value) {
        let is_set = |key: &str| !probe[key].is_null();
        let given: Vec<&str> = ["exec", "httpGet", "tcpSocket", "grpc"].into_iter().filter(|key| is_set(key)).collect();
        match given[..] {
            ["grpc"] => self.deny(format!("{at}.grpc"), "it is not supported; want exec, httpGet or tcpSocket"),
            [_] => {}
            [] => self.deny(at, "it has no handler; want exec, httpGet or tcpSocket"),
            _ => self.deny(at, format!("it has {}; want one of exec, httpGet and tcpSocket", given.join(" and "))),
        }
        if is_set("exec") && probe.pointer("/exec/command").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            self.deny(format!("{at}.exec.command"), "it is empty; want a command");
        }
        for key in ["httpGet", "tcpSocket"].into_iter().filter(|key| is_set(key)) {
            let (at, handler) = (format!("{at}.{key}"), &probe[key]);
            let host = text(handler, "host");
            if !host.is_empty() {
                self.deny(
                    format!("{at}.host"),
                    format!("{} is not allowed; leave it out: only the Pod's own address is probed", show(host)),
                );
            }
            self.port(&format!("{at}.port"), &handler["port"]);
            if key == "httpGet" {
                self.http(&at, handler);
            }
        }
        for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
            if let Some(number) = probe[key].as_i64().filter(|number| *number < 0) {
                self.deny(format!("{at}.{key}"), format!("{number} is not allowed; want 0 or more"));
            }
        }
        let most = LONGEST_TIMEOUT.as_secs();
        if let Some(seconds) = probe["timeoutSeconds"].as_u64().filter(|seconds| *seconds > most) {
            self.deny(format!("{at}.timeoutSeconds"), format!("{seconds} is not allowed; want at most {most}"));
        }
    }

    fn http(&mut self, at: &str, get: &Value) {
        let path = text(get, "path");
        if path.is_empty() {
            self.deny(format!("{at}.path"), "it is missing; want a path such as /healthz");
        } else if format!("/{}", path.trim_start_matches('/')).parse::<Uri>().is_err() {
            self.deny(format!("{at}.path"), format!("{} is not allowed; want a path such as /healthz", show(path)));
        }
        let scheme = text(get, "scheme");
        if !["", "HTTP", "HTTPS"].contains(&scheme) {
            self.deny(
                format!("{at}.scheme"),
                format!("{} is not allowed; want HTTP (the default) or HTTPS", show(scheme)),
            );
        }
        for (i, header) in get["httpHeaders"].as_array().into_iter().flatten().enumerate() {
            let (name, at) = (text(header, "name"), format!("{at}.httpHeaders[{i}]"));
            if name.parse::<HeaderName>().is_err() {
                self.deny(format!("{at}.name"), format!("{} is not allowed; want the name of a header", show(name)));
            }
            let value = text(header, "value");
            if value.parse::<HeaderValue>().is_err() {
                self.deny(format!("{at}.value"), format!("{} is not allowed; want the value of a header", show(value)));
            }
        }
    }

    fn port(&mut self, at: &str, port: &Value) {
        let is_number = |number: i64| (1..=65535).contains(&number);
        let is_good = match port {
            Value::Number(number) => number.as_i64().is_some_and(is_number),
            Value::String(text) => text.parse().map_or_else(|_| is_port_name(text), is_number),
            _ => false,
        };
        if !is_good {
            let shown = if port.is_null() {
                "it is missing".into()
            } else {
                format!("{} is not allowed", show(&port.to_string()))
            };
            self.deny(at, format!("{shown}; want 1 to 65535, or the name of a port of the container"));
        }
    }

    fn policies(&mut self, at: &str, policies: &[Value]) {
        let mut states = BTreeSet::new();
        for (i, policy) in policies.iter().enumerate() {
            let at = format!("{at}.markerPolicy[{i}]");
            let state = text(policy, "state");
            if ![SUCCEEDED, FAILED].contains(&state) {
                self.deny(format!("{at}.state"), format!("{} is not allowed; want Succeeded or Failed", show(state)));
            } else if !states.insert(state) {
                self.deny(
                    format!("{at}.state"),
                    format!("{} is there twice; want one policy for each state", show(state)),
                );
            }
            let (labels, annotations) = (policy["labels"].as_object(), policy["annotations"].as_object());
            if labels.is_none_or(Map::is_empty) && annotations.is_none_or(Map::is_empty) {
                self.deny(&at, "it has neither labels nor annotations; want at least one");
            }
            for (key, value) in labels.into_iter().flatten() {
                let at = format!("{at}.labels[{key}]");
                self.deny_all(selector::label_problems(&at, key, &[value.as_str().unwrap_or_default()]));
                if reserved::is_label(key) {
                    self.deny(at, reserved::key_message(&show(key)));
                }
            }
            let mut size = 0;
            for (key, value) in annotations.into_iter().flatten() {
                size += key.len() + value.as_str().unwrap_or_default().len();
                if !is_qualified_name(key) {
                    self.deny(format!("{at}.annotations[{key}]"), annotation_message(key));
                } else if reserved::is_annotation(key) {
                    let message = reserved::key_message(&show(key));
                    self.deny(format!("{at}.annotations[{key}]"), message);
                }
            }
            if size > MOST_ANNOTATIONS {
                self.deny(
                    format!("{at}.annotations"),
                    format!("they have {size} bytes; want at most {MOST_ANNOTATIONS}"),
                );
            }
        }
    }
}

fn annotation_message(key: &str) -> String {
    let want = format!("want up to {LONGEST_LABEL} letters, digits, '-', '_' and '.', perhaps after a domain and '/'");
    format!("{} is not allowed as the key of an annotation; {want}", show(key))
}

/// Up to 15 lower-case letters, digits and '-', with a letter among them.
fn is_port_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&name.len())
        && name.bytes().all(good)
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A good object, changed at one place.
    fn marker(pointer: &str, value: Value) -> Value {
        let mut marker = json!({"metadata": {"name": "m", "namespace": "a"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "probes": [{"name": "idle", "containerName": "main", "podConditionType": "example.com/idle",
                "probe": {"exec": {"command": ["true"]}},
                "markerPolicy": [{"state": "Succeeded", "labels": {"role": "idle"}, "annotations": {"a/b": "1"}}]}]}});
        if let Some((parent, key)) = pointer.rsplit_once('/') {
            marker.pointer_mut(parent).unwrap()[key] = value;
        }
        marker
    }

    fn request(object: Value, old: Option<Value>) -> Request {
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        Request { operation: operation.into(), object, old_object: old.unwrap_or_default(), ..Request::default() }
    }

    fn denied(object: Value) -> Denied {
        admit(&FeatureGates::default(), &request(object, None)).unwrap_err()
    }

    #[test]
    fn good_objects_are_stored_as_they_are() {
        let http = json!({"httpGet": {"port": "web", "path": "/x", "httpHeaders": [{"name": "X", "value": "1"}]}});
        for (at, value) in [
            ("", Value::Null),
            ("/spec/probes/0/probe", json!({"tcpSocket": {"port": "80"}, "periodSeconds": 0})),
            ("/spec/probes/0/probe", http),
            ("/spec/probes/0/markerPolicy", Value::Null),
            ("/spec/probes/0/podConditionType", Value::Null),
            ("/spec/probes/0/podConditionType", json!("game.kruise.io/idle")),
            ("/spec/probes/0/markerPolicy/0/annotations", json!({"controller.kubernetes.io/pod-deletion-cost": "10"})),
        ] {
            let admitted = admit(&FeatureGates::default(), &request(marker(at, value), None)).unwrap();
            assert_eq!(admitted, Admitted::unchanged());
        }
    }

    #[test]
    fn e30_f27_everything_that_is_wrong_is_named_with_its_value_and_what_is_allowed() {
        let probe = "/spec/probes/0/probe";
        for (at, value, field, message) in [
            ("/spec/selector", json!({}), "spec.selector", "it is empty"),
            (
                "/spec/selector",
                json!({"matchLabels": {"a b": "x"}}),
                "spec.selector.matchLabels[a b]",
                "as the key of a label",
            ),
            (
                "/spec/selector",
                json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]}),
                "spec.selector.matchExpressions[0].operator",
                "\"Gt\"",
            ),
            ("/spec/probes", json!([]), "spec.probes", "it is empty"),
            ("/spec/probes/0/name", json!("a#b"), "spec.probes[0].name", "\"a#b\" is not allowed"),
            ("/spec/probes/0/name", json!("Ready"), "spec.probes[0].name", "anything but PodScheduled"),
            ("/spec/probes/0/containerName", json!(""), "spec.probes[0].containerName", "it is missing"),
            (
                "/spec/probes/0/podConditionType",
                json!("KruisePodReady"),
                "spec.probes[0].podConditionType",
                "Kruise write",
            ),
            (
                "/spec/probes/0/podConditionType",
                json!("apps.kruise.io/idle"),
                "spec.probes[0].podConditionType",
                "\"apps.kruise.io/idle\" is not allowed; want a type of your own",
            ),
            (
                "/spec/probes/0/markerPolicy/0/labels",
                json!({"pod-template-hash": "x"}),
                "spec.probes[0].markerPolicy[0].labels[pod-template-hash]",
                "\"pod-template-hash\" is not allowed; want a key of your own",
            ),
            (
                "/spec/probes/0/markerPolicy/0/annotations",
                json!({"kruise.rs/x": "x"}),
                "spec.probes[0].markerPolicy[0].annotations[kruise.rs/x]",
                "\"kruise.rs/x\" is not allowed; want a key of your own",
            ),
            ("/spec/probes/0/podConditionType", json!("a/b/c"), "spec.probes[0].podConditionType", "example.com/idle"),
            (probe, json!({}), "spec.probes[0].probe", "it has no handler"),
            (
                probe,
                json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
                "spec.probes[0].probe",
                "it has exec and tcpSocket",
            ),
            (probe, json!({"grpc": {"port": 1}}), "spec.probes[0].probe.grpc", "not supported"),
            (probe, json!({"exec": {}}), "spec.probes[0].probe.exec.command", "it is empty"),
            (probe, json!({"tcpSocket": {"port": 0}}), "spec.probes[0].probe.tcpSocket.port", "1 to 65535"),
            (probe, json!({"tcpSocket": {"port": "No_Port"}}), "spec.probes[0].probe.tcpSocket.port", "1 to 65535"),
            (
                probe,
                json!({"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
                "spec.probes[0].probe.tcpSocket.host",
                "only the Pod's own address",
            ),
            (probe, json!({"httpGet": {"port": 1}}), "spec.probes[0].probe.httpGet.path", "it is missing"),
            (
                probe,
                json!({"httpGet": {"port": 1, "path": "/", "host": "x"}}),
                "spec.probes[0].probe.httpGet.host",
                "\"x\"",
            ),
            (
                probe,
                json!({"httpGet": {"port": 1, "path": "/", "scheme": "ftp"}}),
                "spec.probes[0].probe.httpGet.scheme",
                "HTTP",
            ),
            (
                probe,
                json!({"httpGet": {"port": 1, "path": "/", "httpHeaders": [{"name": "Host", "value": "a\nb"}]}}),
                "spec.probes[0].probe.httpGet.httpHeaders[0].value",
                "value of a header",
            ),
            (
                probe,
                json!({"httpGet": {"port": 1, "path": "/", "httpHeaders": [{"name": "a b", "value": "x"}]}}),
                "spec.probes[0].probe.httpGet.httpHeaders[0].name",
                "name of a header",
            ),
            (
                probe,
                json!({"exec": {"command": ["a"]}, "timeoutSeconds": -1}),
                "spec.probes[0].probe.timeoutSeconds",
                "-1 is not allowed",
            ),
            (
                probe,
                json!({"exec": {"command": ["a"]}, "timeoutSeconds": 61}),
                "spec.probes[0].probe.timeoutSeconds",
                "61 is not allowed; want at most 60",
            ),
            (
                "/spec/probes/0/markerPolicy",
                json!([{"state": "Unknown", "labels": {"a": "b"}}]),
                "spec.probes[0].markerPolicy[0].state",
                "Succeeded or Failed",
            ),
            (
                "/spec/probes/0/markerPolicy",
                json!([{"state": "Failed"}]),
                "spec.probes[0].markerPolicy[0]",
                "neither labels nor annotations",
            ),
            (
                "/spec/probes/0/markerPolicy",
                json!([{"state": "Failed", "labels": {"a": "b c"}}]),
                "spec.probes[0].markerPolicy[0].labels[a]",
                "as the value of a label",
            ),
            (
                "/spec/probes/0/markerPolicy",
                json!([{"state": "Failed", "annotations": {"a b": "c"}}]),
                "spec.probes[0].markerPolicy[0].annotations[a b]",
                "as the key of an annotation",
            ),
        ] {
            let denied = denied(marker(at, value));
            let found = denied.causes.iter().any(|cause| cause.field == field && cause.message.contains(message));
            assert!(found && denied.code == 400, "{field}: {denied:?}");
        }
        let neither = json!([{"name": "a", "containerName": "c", "probe": {"exec": {"command": ["a"]}}}]);
        assert!(denied(marker("/spec/probes", neither)).message.contains("so is markerPolicy"));
        let twice = marker("", Value::Null)["spec"]["probes"][0].clone();
        assert_eq!(denied(marker("/spec/probes", json!([twice, twice]))).causes.len(), 2);
        let states = json!([{"state": "Failed", "labels": {"a": "1"}}, {"state": "Failed", "labels": {"a": "2"}}]);
        assert!(denied(marker("/spec/probes/0/markerPolicy", states)).message.contains("is there twice"));
    }

    #[test]
    fn a_probe_that_fits_nowhere_is_stored_with_a_warning() {
        let command = json!({"exec": {"command": ["sh", "-c", "x".repeat(200 << 10)]}});
        let marker = marker("/spec/probes/0/probe", command);
        let admitted = admit(&FeatureGates::default(), &request(marker, None)).unwrap();
        assert!(admitted.warnings[0].contains("it takes 204835 bytes"), "{:?}", admitted.warnings[0]);
        assert_eq!(admitted.warnings.len(), 1);
    }

    #[test]
    fn e31_gates_that_are_off_refuse() {
        for name in ["KruiseDaemon", "PodProbeMarkerGate"] {
            let gates = FeatureGates::parse(&[&format!("{name}=false")], None).unwrap();
            let denied = admit(&gates, &request(marker("", Value::Null), None)).unwrap_err();
            assert!(denied.code == 403 && denied.message.contains(name), "{denied:?}");
        }
    }

    #[test]
    fn an_update_is_refused_only_for_what_it_changes() {
        let gates = FeatureGates::default();
        let old = marker("/spec/probes/0/podConditionType", json!("Ready"));
        let mut new = old.clone();
        new["spec"]["probes"][0]["probe"]["periodSeconds"] = 5.into();
        assert!(admit(&gates, &request(new.clone(), Some(old.clone()))).is_ok());
        new["spec"]["selector"]["matchLabels"]["app"] = "other".into();
        let denied = admit(&gates, &request(new.clone(), Some(old.clone()))).unwrap_err();
        assert!(denied.causes.len() == 1 && denied.message.contains("spec.selector"), "{denied:?}");
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(admit(&gates, &request(new, Some(old))).is_ok());
    }

    #[test]
    fn what_is_no_object_is_refused_without_a_panic() {
        for object in [json!(null), json!([]), json!({"spec": 1}), json!({"spec": {"probes": [1, null, "x"]}})] {
            assert_eq!(denied(object).code, 400);
        }
    }
}
