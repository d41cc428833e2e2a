//! Fields of a container that an API server accepts in some Pods only. Of what a container has by itself it was asked when the
//! SidecarSet was admitted.

use serde_json::{Map, Value};

use super::container::{items, name};
use crate::api::labels::{APP_ARMOR_PREFIX, SECCOMP_PREFIX};

/// What of `securityContext` Windows does not have.
const OF_LINUX: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];
/// What kubelet can send to a container of Windows.
const SIGNALS_OF_WINDOWS: [&str; 2] = ["SIGTERM", "SIGKILL"];
/// `terminationGracePeriodSeconds` where a Pod does not say any.
const GRACE_SECONDS: i64 = 30;
const WINDOWS: &str = "the Pod is for Windows";
const LINUX: &str = "the Pod is for Linux";

/// Major and minor number of the API server's version; None: it is not known.
pub type ApiServer = Option<(u32, u32)>;
/// From this version on API servers refuse devices where `hostUsers` is false; those before take them.
const REFUSES_DEVICES: (u32, u32) = (1, 34);
/// Before these versions the gate of the field is off by default, and API servers drop it: in any Pod, also in one where they
/// refuse it when the gate is on.
const HAS_PROC_MOUNT: (u32, u32) = (1, 33);
const HAS_CLAIMS: (u32, u32) = (1, 34);

/// A field, and why the Pod cannot have it.
pub(super) type Misfit = (String, &'static str);

/// The Pod that the fields of a sidecar have to go with.
pub(super) struct Surroundings<'a> {
    spec: &'a Value,
    annotations: &'a Map<String, Value>,
    api_server: ApiServer,
    /// Its own containers are processes of a Windows host.
    is_host_process: bool,
}

impl<'a> Surroundings<'a> {
    /// Of a Pod as its author wrote it, with the annotations that it is to have.
    pub(super) fn of(spec: &'a Value, annotations: &'a Map<String, Value>, api_server: ApiServer) -> Self {
        let mut own = items(spec, "containers").chain(items(spec, "initContainers"));
        let is_host_process = own.any(|container| is_host_process(spec, container));
        Self { spec, annotations, api_server, is_host_process }
    }

    /// Whether an API server of the cluster may refuse devices where `hostUsers` is false. Another one than that which told
    /// its version may judge the Pod, and may be one minor version newer.
    fn may_refuse_devices(&self) -> bool {
        self.api_server.is_none_or(|(major, minor)| (major, minor.saturating_add(1)) >= REFUSES_DEVICES)
    }

    fn system(&self) -> Option<&'a str> {
        self.spec["os"]["name"].as_str()
    }

    /// The first field of a sidecar that the Pod cannot have.
    pub(super) fn misfit(&self, container: &Value) -> Option<Misfit> {
        self.of_system(container)
            .or_else(|| self.of_lifecycle(container))
            .or_else(|| self.of_profiles(container))
            .or_else(|| self.of_rest(container).map(|(field, why)| (field.to_owned(), why)))
    }

    fn of_system(&self, container: &Value) -> Option<Misfit> {
        let security = &container["securityContext"];
        let is_set = |field: &&str| !security[*field].is_null();
        let field = |field: &str| format!("securityContext.{field}");
        match self.system() {
            Some("windows") => OF_LINUX.into_iter().find(is_set).map(|linux| (field(linux), WINDOWS)),
            Some("linux") => Some("windowsOptions").filter(is_set).map(|windows| (field(windows), LINUX)),
            _ => None,
        }
    }

    fn of_lifecycle(&self, container: &Value) -> Option<Misfit> {
        let lifecycle = &container["lifecycle"];
        let grace = self.spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE_SECONDS);
        // The API server makes a second of less than nothing.
        let grace = if grace < 0 { 1 } else { grace };
        for hook in ["postStart", "preStop"] {
            if lifecycle[hook]["sleep"]["seconds"].as_i64().is_some_and(|seconds| seconds > grace) {
                let why = "it is longer than terminationGracePeriodSeconds of the Pod";
                return Some((format!("lifecycle.{hook}.sleep"), why));
            }
        }
        let signal = lifecycle["stopSignal"].as_str()?;
        let is_of_windows = self.system() == Some("windows");
        (is_of_windows && !SIGNALS_OF_WINDOWS.contains(&signal)).then(|| ("lifecycle.stopSignal".to_owned(), WINDOWS))
    }

    /// Profiles that an annotation of the Pod names too: the hand-written container of this name may have had another one.
    fn of_profiles(&self, container: &Value) -> Option<Misfit> {
        // Where a container has none the API server makes it of the annotation.
        for (field, prefix) in [("appArmorProfile", APP_ARMOR_PREFIX), ("seccompProfile", SECCOMP_PREFIX)] {
            let profile = &container["securityContext"][field];
            let noted = self.annotations.get(&format!("{prefix}{}", name(container))).and_then(Value::as_str);
            let Some(noted) = noted.filter(|_| !profile.is_null()) else { continue };
            let is_same = match profile["type"].as_str() {
                Some("RuntimeDefault") => matches!(noted, "runtime/default" | "docker/default"),
                Some("Unconfined") => noted == "unconfined",
                _ => noted.strip_prefix("localhost/") == profile["localhostProfile"].as_str(),
            };
            if !is_same {
                return Some((format!("securityContext.{field}"), "an annotation of the Pod names another one"));
            }
        }
        None
    }

    fn of_rest(&self, container: &Value) -> Option<(&'static str, &'static str)> {
        let (spec, security) = (self.spec, &container["securityContext"]);
        let mut mounts = items(container, "volumeMounts");
        let mut claims = items(&container["resources"], "claims").map(name);
        let is_hidden = |mount: &Value| mount["mountPropagation"] == "Bidirectional" && security["privileged"] != true;
        let image = container["image"].as_str().unwrap_or_default();
        let hosts_users = spec["hostUsers"] != false;
        Some(if image.trim() != image {
            ("image", "it begins or ends with white space")
        } else if is_host_process(spec, container) != self.is_host_process {
            ("securityContext.windowsOptions.hostProcess", "all containers of a Pod are such processes, or none is")
        } else if security["procMount"] == "Unmasked" && hosts_users {
            ("securityContext.procMount", "hostUsers of the Pod is not false")
        } else if !hosts_users && items(container, "volumeDevices").next().is_some() && self.may_refuse_devices() {
            ("volumeDevices", "hostUsers of the Pod is false")
        } else if mounts.any(is_hidden) {
            ("volumeMounts", "only a privileged container can mount with the propagation Bidirectional")
        } else if claims.any(|claim| !has_claim(spec, claim)) {
            ("resources.claims", "the Pod has no such claim")
        } else if needs_amount(&container["resources"]) {
            ("resources", "huge pages need an amount of cpu or memory beside them")
        } else {
            return None;
        })
    }
}

/// Whether a Pod has a claim of this name.
fn has_claim(spec: &Value, wanted: &str) -> bool {
    items(spec, "resourceClaims").any(|claim| name(claim) == wanted)
}

/// Takes out of a sidecar what API servers drop while a gate of theirs is off, and refuse in this Pod when it is on: a signal where
/// the Pod does not say its operating system, and restarts for a resize where it restarts nothing; before the versions that
/// have the gate on, all of `/proc` where the Pod has the users of its node, and claims that it lacks.
pub(super) fn relieve(spec: &Value, sidecar: &mut Value, api_server: ApiServer) {
    let is_before = |version: (u32, u32)| api_server.is_some_and(|api_server| api_server < version);
    if spec["os"]["name"].is_null()
        && let Some(lifecycle) = sidecar.get_mut("lifecycle").and_then(Value::as_object_mut)
    {
        lifecycle.remove("stopSignal");
    }
    if spec["restartPolicy"] == "Never"
        && let Some(policies) = sidecar.get_mut("resizePolicy").and_then(Value::as_array_mut)
    {
        policies.retain(|policy| policy["restartPolicy"] == "NotRequired");
    }
    // For Windows it keeps the sidecar out, in every version.
    if is_before(HAS_PROC_MOUNT)
        && spec["hostUsers"] != false
        && spec["os"]["name"] != "windows"
        && let Some(security) = sidecar.get_mut("securityContext").and_then(Value::as_object_mut)
    {
        security.remove("procMount");
    }
    if is_before(HAS_CLAIMS)
        && let Some(claims) = sidecar.pointer_mut("/resources/claims").and_then(Value::as_array_mut)
    {
        claims.retain(|claim| has_claim(spec, name(claim)));
    }
}

/// Whether a container is a process of its Windows host, by itself or as the Pod says.
fn is_host_process(spec: &Value, container: &Value) -> bool {
    let says = |object: &Value| object["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    says(container).or_else(|| says(spec)).unwrap_or_default()
}

/// Whether resources have huge pages alone. What a sidecar shares with the Pod as a whole was taken out.
fn needs_amount(resources: &Value) -> bool {
    let amounts = ["limits", "requests"].into_iter().filter_map(|kind| resources[kind].as_object());
    let names: Vec<&String> = amounts.flat_map(Map::keys).collect();
    let has_pages = names.iter().any(|name| name.starts_with("hugepages-"));
    has_pages && !names.iter().any(|name| matches!(name.as_str(), "cpu" | "memory"))
}
