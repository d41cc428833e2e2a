//! The annotation `apps.kruise.io/runtime-containers-meta`: with what each container of a Pod was made, as the daemon
//! reports it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::expected_environment;
use crate::{
    api::labels,
    k8s::{canonical_json, hash},
};

/// The annotation `apps.kruise.io/runtime-containers-meta`, its keys in the order that OpenKruise writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeMeta {
    /// An entry for each container that has been started, in the order of the Pod's status.
    pub containers: Vec<RuntimeContainer>,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// What one instance of a container was started with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeContainer {
    /// Container name.
    pub name: String,
    /// `<runtime>://<id>`.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Restart count.
    pub restart_count: i32,
    /// Hashes of its definition and its environment.
    pub hashes: Hashes,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// Hashes of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hashes {
    /// Hash of the definition, as kubelet computed it when it started the instance.
    pub plain_hash: u64,
    /// Hash of the environment variables that come from labels and annotations; 0: not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub extracted_env_from_metadata_hash: u64,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl RuntimeMeta {
    /// The annotation of a Pod, if it is there and can be read.
    pub fn of(pod: &Value) -> Option<Self> {
        let text = pod.get("metadata")?.get("annotations")?.get(labels::RUNTIME_CONTAINERS_META)?.as_str()?;
        serde_json::from_str(text).ok()
    }
}

/// The hashes that kubelet gives a container's definition: from 1.31 on of image and name, before of all of it.
pub fn plain_hashes(container: &Value) -> [u64; 2] {
    let field = |key: &str| container.get(key).cloned().unwrap_or_default();
    let mut whole = String::new();
    write_definition(container, &mut whole);
    [hash_of(&json!({"image": field("image"), "name": field("name")})), hash::deep_hash(whole.as_bytes())]
}

/// The members of a container's definition and of its parts, in the order of Go's structs (k8s.io/api 1.30; older
/// releases have fewer). One list serves, because no two parts have the same members in different orders.
const MEMBERS: &str = "name image command args workingDir ports hostPort containerPort protocol hostIP \
    prefix configMapRef secretRef envFrom env value valueFrom \
    fieldRef resourceFieldRef configMapKeyRef secretKeyRef apiVersion fieldPath containerName resource divisor \
    key optional resources limits requests claims resizePolicy resourceName restartPolicy \
    volumeMounts readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr volumeDevices devicePath \
    livenessProbe readinessProbe startupProbe lifecycle postStart preStop exec httpGet tcpSocket grpc sleep seconds \
    path port host scheme httpHeaders service initialDelaySeconds timeoutSeconds periodSeconds successThreshold \
    failureThreshold terminationGracePeriodSeconds terminationMessagePath terminationMessagePolicy imagePullPolicy \
    securityContext capabilities add drop privileged seLinuxOptions user role type level localhostProfile \
    windowsOptions gmsaCredentialSpecName gmsaCredentialSpec runAsUserName hostProcess runAsUser runAsGroup \
    runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount seccompProfile appArmorProfile \
    stdin stdinOnce tty";

/// Writes a definition as kubelet does for its hash. What Go leaves out the API server has left out already.
fn write_definition(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let place = |name: &str| MEMBERS.split(' ').position(|member| member == name).unwrap_or(usize::MAX);
            let mut members: Vec<_> = members.iter().collect();
            // Names of resources are no members: they follow each other as in any map.
            members.sort_by_cached_key(|(name, _)| (place(name), *name));
            out.push('{');
            for (i, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(&canonical_json::encode(&Value::from(name.as_str())));
                out.push(':');
                write_definition(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write_definition(item, out);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&canonical_json::encode(value));
        }
    }
}

/// The hash that kubelet gives a container's definition from 1.31 on.
pub fn short_hash(name: &str, image: &str) -> u64 {
    hash_of(&json!({"image": image, "name": name}))
}

fn hash_of(value: &Value) -> u64 {
    hash::deep_hash(canonical_json::encode(value).as_bytes())
}

/// The hash of the environment that a container would get from its Pod's labels and annotations now.
pub fn expected_env_hash(container: &Value, pod: &Value) -> u64 {
    hash_of(&expected_environment(container, pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container with a value for every member of its Go structs.
    const FULL: &str = concat!(
        r#"{"name":"x","image":"x","command":["x"],"args":["x"],"workingDir":"x","ports":[{"name":"x","hostPort":1,"#,
        r#""containerPort":1,"protocol":"x","hostIP":"x"}],"envFrom":[{"prefix":"x","configMapRef":{"name":"x","#,
        r#""optional":true},"secretRef":{"name":"x","optional":true}}],"env":[{"name":"x","value":"a\u003cb","#,
        r#""valueFrom":{"fieldRef":{"apiVersion":"x","fieldPath":"x"},"resourceFieldRef":{"containerName":"x","#,
        r#""resource":"x","divisor":"0"},"configMapKeyRef":{"name":"x","key":"x","optional":true},"#,
        r#""secretKeyRef":{"name":"x","key":"x","optional":true}}}],"resources":{"limits":{"cpu":"500m","#,
        r#""example.com/gpu":"1","memory":"1Gi"},"requests":{"cpu":"1"},"claims":[{"name":"x"}]},"#,
        r#""resizePolicy":[{"resourceName":"x","restartPolicy":"x"}],"restartPolicy":"x","#,
        r#""volumeMounts":[{"name":"x","readOnly":true,"recursiveReadOnly":"x","mountPath":"x","subPath":"x","#,
        r#""mountPropagation":"x","subPathExpr":"x"}],"volumeDevices":[{"name":"x","devicePath":"x"}],"#,
        r#""livenessProbe":{"exec":{"command":["x"]},"httpGet":{"path":"x","port":80,"host":"x","scheme":"x","#,
        r#""httpHeaders":[{"name":"x","value":"a\u003cb"}]},"tcpSocket":{"port":80,"host":"x"},"grpc":{"port":80,"#,
        r#""service":"x"},"initialDelaySeconds":1,"timeoutSeconds":1,"periodSeconds":1,"successThreshold":1,"#,
        r#""failureThreshold":1,"terminationGracePeriodSeconds":1},"readinessProbe":{"grpc":{"port":1,"#,
        r#""service":""}},"startupProbe":{"grpc":{"port":1,"service":null}},"#,
        r#""lifecycle":{"postStart":{"exec":{"command":["x"]},"httpGet":{"path":"x","port":80,"host":"x","#,
        r#""scheme":"x","httpHeaders":[{"name":"x","value":"a\u003cb"}]},"tcpSocket":{"port":80,"host":"x"},"#,
        r#""sleep":{"seconds":1}},"preStop":{"sleep":{"seconds":1}}},"terminationMessagePath":"x","#,
        r#""terminationMessagePolicy":"x","imagePullPolicy":"x","securityContext":{"capabilities":{"add":["x"],"#,
        r#""drop":["x"]},"privileged":true,"seLinuxOptions":{"user":"x","role":"x","type":"x","level":"x"},"#,
        r#""windowsOptions":{"gmsaCredentialSpecName":"x","gmsaCredentialSpec":"x","runAsUserName":"x","#,
        r#""hostProcess":true},"runAsUser":1,"runAsGroup":1,"runAsNonRoot":true,"readOnlyRootFilesystem":true,"#,
        r#""allowPrivilegeEscalation":true,"procMount":"x","seccompProfile":{"type":"x","localhostProfile":"x"},"#,
        r#""appArmorProfile":{"type":"x","localhostProfile":"x"}},"stdin":true,"stdinOnce":true,"tty":true}"#,
    );

    #[test]
    fn the_hashes_are_those_of_kubelets_own_tests() {
        let container = json!({"resources": {}, "ports": [{"containerPort": 8001}], "image": "foo/image:v1",
            "args": ["/bin/sh", "-c", "echo abc"], "name": "test_container"});
        assert_eq!(plain_hashes(&container), [0x8e45_cbd0, 0x3c42_280f], "from 1.31 on, and before");
    }

    #[test]
    fn a_definition_is_written_in_the_order_of_go() {
        let mut written = String::new();
        write_definition(&serde_json::from_str(FULL).unwrap(), &mut written);
        assert_eq!(written, FULL);
    }
}
