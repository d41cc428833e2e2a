//! The hashes of a SidecarSet: by them Pods and SidecarSet tell whether they fit. Byte for byte those of OpenKruise.
//!
//! They are made from the containers as Go writes them: members in the order of its structs, empty ones left out but where
//! the struct says otherwise. Members that we do not know come last; OpenKruise has none of them.

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};

use crate::k8s::{canonical_json, quantity};

/// What identifies the containers of a SidecarSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Of everything that Pods get by it.
    pub hash: String,
    /// The same without images: Pods with the same one can be updated in place.
    pub without_image: String,
}

/// The hashes of a `spec`. Init containers enter only if one of them goes on running.
pub fn of(spec: &Value) -> Hashes {
    let list = |key: &str| spec.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let (mut containers, mut init) = (list("containers"), list("initContainers"));
    let hash = encoded(&containers, &init);
    for container in containers.iter_mut().chain(&mut init) {
        if let Some(container) = container.as_object_mut() {
            container.remove("image");
        }
    }
    Hashes { hash, without_image: encoded(&containers, &init) }
}

fn encoded(containers: &[Value], init: &[Value]) -> String {
    let mut text = String::from("{\"containers\":");
    match containers {
        [] => text += "null",
        list => write_list(list, CONTAINER, &mut text),
    }
    if init.iter().any(is_native_sidecar) {
        text += ",\"initContainers\":";
        write_list(init, CONTAINER, &mut text);
    }
    text.push('}');
    let digest = digest(&SHA256, text.as_bytes());
    let hex = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
    hex.map(|half| char::from(LETTERS[usize::from(digit(half) % 27)])).collect()
}

/// Characters that cannot form a word.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether an init container goes on running beside the others.
pub fn is_native_sidecar(container: &Value) -> bool {
    container.get("restartPolicy").is_some_and(|policy| policy == "Always")
}

/// A container as Go writes it, for revisions: empty members are gone, amounts have one spelling.
pub fn normal_container(container: &Value) -> Value {
    let mut text = String::new();
    write(container, &Shape::Object(CONTAINER), &mut text);
    // Our own text is JSON.
    serde_json::from_str(&text).unwrap_or_else(|_| container.clone())
}

/// When a member is written.
#[derive(Clone, Copy)]
enum Emit {
    /// Unless it is 0, false or empty.
    IfSet,
    /// Whenever it is there.
    IfThere,
    /// In any case; this is written if it is not there. Of an object its own members say.
    Always(&'static str),
}

/// What a member is.
#[derive(Clone, Copy)]
enum Shape {
    /// Anything, with keys by their order.
    Any,
    /// An amount.
    Amount,
    /// Amounts by resource.
    Amounts,
    /// An object with these members.
    Object(&'static [Member]),
    /// A list of such objects.
    List(&'static [Member]),
}

type Member = (&'static str, Emit, Shape);

const fn set(name: &'static str) -> Member {
    (name, Emit::IfSet, Shape::Any)
}
const fn there(name: &'static str) -> Member {
    (name, Emit::IfThere, Shape::Any)
}
const fn always(name: &'static str, zero: &'static str) -> Member {
    (name, Emit::Always(zero), Shape::Any)
}
const fn text(name: &'static str) -> Member {
    always(name, "\"\"")
}
const fn object(name: &'static str, members: &'static [Member]) -> Member {
    (name, Emit::IfThere, Shape::Object(members))
}
const fn structure(name: &'static str, members: &'static [Member]) -> Member {
    (name, Emit::Always(""), Shape::Object(members))
}
const fn list(name: &'static str, members: &'static [Member]) -> Member {
    (name, Emit::IfSet, Shape::List(members))
}

const CONTAINER: &[Member] = &[
    text("name"),
    set("image"),
    set("command"),
    set("args"),
    set("workingDir"),
    list("ports", &[set("name"), set("hostPort"), always("containerPort", "0"), set("protocol"), set("hostIP")]),
    list("envFrom", &[set("prefix"), object("configMapRef", REFERENCE), object("secretRef", REFERENCE)]),
    list("env", &[text("name"), set("value"), object("valueFrom", VALUE_FROM)]),
    structure("resources", RESOURCES),
    list("resizePolicy", &[text("resourceName"), text("restartPolicy")]),
    there("restartPolicy"),
    list("volumeMounts", VOLUME_MOUNT),
    list("volumeDevices", &[text("name"), text("devicePath")]),
    object("livenessProbe", PROBE),
    object("readinessProbe", PROBE),
    object("startupProbe", PROBE),
    object("lifecycle", &[object("postStart", HANDLER), object("preStop", HANDLER)]),
    set("terminationMessagePath"),
    set("terminationMessagePolicy"),
    set("imagePullPolicy"),
    object("securityContext", SECURITY_CONTEXT),
    set("stdin"),
    set("stdinOnce"),
    set("tty"),
    set("podInjectPolicy"),
    structure("upgradeStrategy", &[set("upgradeType"), set("hotUpgradeEmptyImage")]),
    structure("shareVolumePolicy", &[set("type")]),
    object("shareVolumeDevicePolicy", &[set("type")]),
    list("transferEnv", TRANSFER_ENV),
    object("resourcesPolicy", RESOURCES_POLICY),
];
const TRANSFER_ENV: &[Member] = &[
    set("sourceContainerName"),
    object("sourceContainerNameFrom", &[object("fieldRef", FIELD_REF)]),
    set("envName"),
    set("envNames"),
];
const RESOURCES_POLICY: &[Member] = &[
    text("targetContainersMode"),
    set("targetContainersNameRegex"),
    structure("resourcesExpr", &[object("limits", EXPRESSION), object("requests", EXPRESSION)]),
];
const EXPRESSION: &[Member] = &[set("cpu"), set("memory")];
const REFERENCE: &[Member] = &[set("name"), there("optional")];
const KEY_REFERENCE: &[Member] = &[set("name"), text("key"), there("optional")];
const FIELD_REF: &[Member] = &[set("apiVersion"), text("fieldPath")];
const VALUE_FROM: &[Member] = &[
    object("fieldRef", FIELD_REF),
    object(
        "resourceFieldRef",
        &[set("containerName"), text("resource"), ("divisor", Emit::Always("\"0\""), Shape::Amount)],
    ),
    object("configMapKeyRef", KEY_REFERENCE),
    object("secretKeyRef", KEY_REFERENCE),
];
const RESOURCES: &[Member] = &[
    ("limits", Emit::IfSet, Shape::Amounts),
    ("requests", Emit::IfSet, Shape::Amounts),
    list("claims", &[text("name"), set("request")]),
];
const VOLUME_MOUNT: &[Member] = &[
    text("name"),
    set("readOnly"),
    there("recursiveReadOnly"),
    text("mountPath"),
    set("subPath"),
    there("mountPropagation"),
    set("subPathExpr"),
];
const PROBE: &[Member] = &[
    object("exec", &[set("command")]),
    object("httpGet", HTTP_GET),
    object("tcpSocket", TCP_SOCKET),
    object("grpc", &[always("port", "0"), always("service", "null")]),
    set("initialDelaySeconds"),
    set("timeoutSeconds"),
    set("periodSeconds"),
    set("successThreshold"),
    set("failureThreshold"),
    there("terminationGracePeriodSeconds"),
];
const HANDLER: &[Member] = &[
    object("exec", &[set("command")]),
    object("httpGet", HTTP_GET),
    object("tcpSocket", TCP_SOCKET),
    object("sleep", &[always("seconds", "0")]),
];
const HTTP_GET: &[Member] = &[
    set("path"),
    always("port", "0"),
    set("host"),
    set("scheme"),
    list("httpHeaders", &[text("name"), text("value")]),
];
const TCP_SOCKET: &[Member] = &[always("port", "0"), set("host")];
const PROFILE: &[Member] = &[text("type"), there("localhostProfile")];
const SECURITY_CONTEXT: &[Member] = &[
    object("capabilities", &[set("add"), set("drop")]),
    there("privileged"),
    object("seLinuxOptions", &[set("user"), set("role"), set("type"), set("level")]),
    object(
        "windowsOptions",
        &[there("gmsaCredentialSpecName"), there("gmsaCredentialSpec"), there("runAsUserName"), there("hostProcess")],
    ),
    there("runAsUser"),
    there("runAsGroup"),
    there("runAsNonRoot"),
    there("readOnlyRootFilesystem"),
    there("allowPrivilegeEscalation"),
    there("procMount"),
    object("seccompProfile", PROFILE),
    object("appArmorProfile", PROFILE),
];

fn write(value: &Value, shape: &Shape, out: &mut String) {
    match (shape, value) {
        (Shape::Object(members), Value::Object(object)) => write_object(object, members, out),
        (Shape::List(members), Value::Array(list)) => write_list(list, members, out),
        (Shape::Amount, amount) => *out += &canonical_json::encode(&normal_amount(amount)),
        (Shape::Amounts, Value::Object(amounts)) => {
            let amounts = amounts.iter().map(|(name, amount)| (name.clone(), normal_amount(amount)));
            *out += &canonical_json::encode(&Value::Object(amounts.collect()));
        }
        // What has another type than it can have is no struct of Go's either.
        _ => *out += &canonical_json::encode(value),
    }
}

/// An amount in its one spelling.
pub(super) fn normal_amount(amount: &Value) -> Value {
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    quantity::canonical(&text).unwrap_or(text).into()
}

fn write_list(list: &[Value], members: &'static [Member], out: &mut String) {
    out.push('[');
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(item, &Shape::Object(members), out);
    }
    out.push(']');
}

fn write_object(object: &Map<String, Value>, members: &'static [Member], out: &mut String) {
    let none = Map::new();
    out.push('{');
    let start = out.len();
    let key = |name: &str, out: &mut String| {
        if out.len() > start {
            out.push(',');
        }
        *out += &canonical_json::encode(&Value::from(name));
        out.push(':');
    };
    for (name, emit, shape) in members {
        let value = object.get(*name).filter(|value| !value.is_null());
        match (value, emit) {
            (None, Emit::IfSet | Emit::IfThere) => {}
            (Some(value), Emit::IfSet) if is_zero(value) => {}
            (Some(value), _) => {
                key(name, out);
                write(value, shape, out);
            }
            (None, Emit::Always(zero)) => {
                key(name, out);
                match shape {
                    Shape::Object(members) => write_object(&none, members, out),
                    Shape::Any | Shape::Amount | Shape::Amounts | Shape::List(_) => *out += zero,
                }
            }
        }
    }
    let mut unknown: Vec<_> = object
        .iter()
        .filter(|(name, value)| !value.is_null() && members.iter().all(|(known, ..)| known != name))
        .collect();
    unknown.sort_unstable_by_key(|(name, _)| *name);
    for (name, value) in unknown {
        key(name, out);
        *out += &canonical_json::encode(value);
    }
    out.push('}');
}

/// What Go leaves out of a member that it may leave out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOG: &str = r#"{"name":"log","image":"busybox:1.36","resources":{},"terminationMessagePath":"/dev/termination-log",
        "terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","podInjectPolicy":"BeforeAppContainer",
        "upgradeStrategy":{"upgradeType":"ColdUpgrade"},"shareVolumePolicy":{"type":"disabled"}}"#;

    fn of_json(text: &str) -> (String, String) {
        let hashes = of(&serde_json::from_str(text).unwrap());
        (hashes.hash, hashes.without_image)
    }

    /// A8: expectations of OpenKruise's own tests, and what was recorded.
    #[test]
    fn a8_vectors() {
        let one = r#"{"name":"container1","image":"test-image"}"#;
        let minimal = (
            "w26c4x8fz245642fdv499b464248f974xddx4x55z5dw55bc6x66464fxz77dc78",
            "8wzddb4dvv9c6x8zdc77z4z75987424f457dfv6724ddw6zbdx467wz5x24fc759",
        );
        let native = (
            "4xwx4d4844vd4v9x79wb4xbxf4xb29475cc4446v8cz2c2f2f5c5bw448vd42z8w",
            "5725fw8bwbx249bw57v5892c847dzf48bww9zb7c86xb95264fdz26654847b2c8",
        );
        let log = (
            "bzv6592862b6w846cw4xx5w9647xz74dxc6d24fw7b6bcx554fxd2z4z4vbd8ff4",
            "4424wfff8b57d47vb7684zc4bb5478vxwwdcz7dd2xdwbf4d4446424d4w29cwd5",
        );
        for (spec, wanted) in [
            (format!(r#"{{"containers":[{one}]}}"#), minimal),
            (format!(r#"{{"containers":[{one}],"initContainers":[{one}]}}"#), minimal),
            (
                format!(
                    r#"{{"containers":[{one}],"initContainers":[{{"name":"container1","image":"test-image","restartPolicy":"Always"}}]}}"#
                ),
                native,
            ),
            (format!(r#"{{"containers":[{LOG}]}}"#), log),
        ] {
            let (hash, without) = of_json(&spec);
            assert_eq!((hash.as_str(), without.as_str()), wanted, "{spec}");
        }
    }

    #[test]
    fn recorded_sidecar_sets_have_the_hashes_that_were_recorded() {
        let recorded: Vec<Value> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/sidecar_sets.json")).unwrap();
        for object in recorded {
            let (hashes, annotations) = (of(&object["spec"]), &object["metadata"]["annotations"]);
            assert_eq!(annotations["kruise.io/sidecarset-hash"], hashes.hash);
            assert_eq!(annotations["kruise.io/sidecarset-hash-without-image"], hashes.without_image);
        }
    }

    #[test]
    fn members_stand_in_the_order_of_go_and_empty_ones_are_left_out() {
        let container = json!({"tty": false, "stdin": true, "name": "a", "command": [], "args": ["<"], "env": [{"name": "E", "value": ""},
            {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}, "name": "R"}],
            "resources": {"limits": {"memory": "1024Mi", "cpu": 1}, "requests": {"cpu": "0.5"}},
            "livenessProbe": {"grpc": {"port": 1}}, "securityContext": {"runAsUser": 0, "privileged": false},
            "restartPolicy": "Always", "zzz": 1, "newer": {"b": 1, "a": null}});
        let mut text = String::new();
        write(&container, &Shape::Object(CONTAINER), &mut text);
        assert_eq!(
            text,
            concat!(
                r#"{"name":"a","args":["\u003c"],"env":[{"name":"E"},{"name":"R","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"0"}}}],"#,
                r#""resources":{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}},"restartPolicy":"Always","#,
                r#""livenessProbe":{"grpc":{"port":1,"service":null}},"securityContext":{"privileged":false,"runAsUser":0},"stdin":true,"#,
                r#""upgradeStrategy":{},"shareVolumePolicy":{},"newer":{"a":null,"b":1},"zzz":1}"#
            )
        );
    }

    #[test]
    fn nothing_else_enters_a_hash() {
        let spec = |rest: Value| {
            let mut spec = json!({"containers": [{"name": "a", "image": "b"}]});
            spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            of(&spec)
        };
        let plain = spec(json!({}));
        for rest in [
            json!({"volumes": [{"name": "v"}], "imagePullSecrets": [{"name": "s"}]}),
            json!({"patchPodMetadata": [{"annotations": {"a": "b"}}], "updateStrategy": {"paused": true}}),
            json!({"initContainers": [{"name": "plain", "image": "x"}]}),
        ] {
            assert_eq!(spec(rest.clone()), plain, "{rest}");
        }
        assert_eq!(of(&json!({})), of(&json!({"containers": []})));
        let other = of(&json!({"containers": [{"name": "a", "image": "c"}]}));
        assert!(other.hash != plain.hash && other.without_image == plain.without_image);
    }

    #[test]
    fn what_is_no_container_does_no_harm() {
        for odd in [json!({"containers": [1, null, "x"]}), json!({"containers": {"a": 1}}), json!([])] {
            assert_eq!(of(&odd).hash.len(), 64);
        }
    }
}
