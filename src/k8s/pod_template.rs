//! Pod templates in the bytes that OpenKruise stores, from what a dry run of a core/v1 PodTemplate answers.
//!
//! The API server knows its own defaults and rules best, and newer ones than any library: [`Trial::body`] is what it is
//! asked, and [`Trial::stored`] lays its answer over what the user wrote. Nothing that the user wrote is lost: a field that
//! the API server does not know, or drops because a feature is off, stays as it was.
//!
//! The result is a fixed point: a stored template comes out as it is.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

mod tolerated;

pub use tolerated::{Tolerated, as_in_manifests};

/// How a field of a PodTemplate begins.
const TEMPLATE: &str = "template";
/// Members with the value `{}` that mean nothing. Others are kept: an empty object may switch something on.
const MAPS: [&str; 9] = [
    "annotations",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "options",
    "overhead",
    "requests",
    "volumeAttributes",
];
/// Members whose value `false` means nothing.
const FLAGS: [&str; 7] = ["hostIPC", "hostNetwork", "hostPID", "readOnly", "stdin", "stdinOnce", "tty"];
/// Members whose value 0 means nothing.
const NUMBERS: [&str; 3] = ["hostPort", "initialDelaySeconds", "partition"];
/// The API server writes each of them when the other is there; OpenKruise keeps what the user wrote.
const ACCOUNTS: [&str; 2] = ["serviceAccount", "serviceAccountName"];

/// A template, and the claim templates whose claims its Pods get as volumes, on their way through a dry run.
pub struct Trial<'a> {
    template: &'a Value,
    claims: &'a [Value],
    /// Whether the claim templates are judged too.
    judges_claims: bool,
}

/// What a dry run makes of a template and its claim templates.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The template.
    pub template: Value,
    /// The claim templates, as many as there were.
    pub claims: Vec<Value>,
}

impl<'a> Trial<'a> {
    /// Of a template with its claim templates. Claim templates that are not judged come out as they went in.
    pub fn new(template: &'a Value, claims: &'a [Value], judges_claims: bool) -> Self {
        Self { template, claims, judges_claims }
    }

    /// The PodTemplate to ask the API server about.
    pub fn body(&self) -> Value {
        let mut template = self.template.clone();
        if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
            for container in list_mut(spec, "containers").filter_map(Value::as_object_mut) {
                // OpenKruise's own rule, whatever the tag says.
                if container.get("imagePullPolicy").is_none_or(|policy| policy.is_null() || policy == "") {
                    container.insert("imagePullPolicy".into(), "Always".into());
                }
            }
            let added = self.claim_volumes(spec);
            if !added.is_empty() {
                match spec.entry("volumes").or_insert(Value::Null) {
                    Value::Array(volumes) => volumes.extend(added),
                    other if other.is_null() => *other = added.into(),
                    // The API server says that it is no list.
                    _ => {}
                }
            }
        }
        json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "generateName": "dry-run-" }, TEMPLATE: template })
    }

    /// A volume for each claim, as its Pods have it. An ephemeral volume says all that a claim template says, so the API
    /// server judges that too.
    fn claim_volumes(&self, spec: &Map<String, Value>) -> Vec<Value> {
        let mut names: BTreeSet<&str> =
            list(spec, "volumes").iter().filter_map(|volume| volume.get("name")?.as_str()).collect();
        let mut volumes = Vec::new();
        for (i, claim) in self.claims.iter().enumerate() {
            // A claim replaces a volume of its name when a Pod is made. Here both are judged.
            let name = claim.pointer("/metadata/name").and_then(Value::as_str).filter(|name| names.insert(name));
            let name = name.map_or_else(|| format!("claim-template-{i}"), str::to_owned);
            volumes.push(match claim.get("spec") {
                Some(spec) if self.judges_claims => {
                    let mut metadata = Map::new();
                    for key in ["labels", "annotations"] {
                        metadata.extend(claim.pointer(&format!("/metadata/{key}")).map(|v| (key.to_owned(), v.clone())));
                    }
                    json!({ "name": name, "ephemeral": { "volumeClaimTemplate": { "metadata": metadata, "spec": spec } } })
                }
                _ => json!({ "name": name, "persistentVolumeClaim": { "claimName": "claim" } }),
            });
        }
        volumes
    }

    fn own_volumes(&self) -> usize {
        self.template.get("spec").and_then(Value::as_object).map_or(0, |spec| list(spec, "volumes").len())
    }

    /// The field of the workload that the API server means when it names a field of the PodTemplate.
    pub fn field(&self, named: &str) -> String {
        let claim = named.strip_prefix("template.spec.volumes[").and_then(|rest| {
            let (index, rest) = rest.split_once(']')?;
            let index = index.parse::<usize>().ok()?.checked_sub(self.own_volumes())?;
            Some((index, rest)).filter(|(index, _)| *index < self.claims.len())
        });
        match claim {
            Some((index, rest)) => {
                let rest = rest.strip_prefix(".ephemeral.volumeClaimTemplate").unwrap_or(rest);
                let rest = if rest == ".name" { ".metadata.name" } else { rest };
                format!("spec.volumeClaimTemplates[{index}]{rest}")
            }
            None => format!("spec.{named}"),
        }
    }

    /// What is to be stored. `unknown` are the fields, as the API server names them, that it does not know; without
    /// `defaults` nothing is added but what a typed client writes of any template.
    pub fn stored(&self, answer: &Value, unknown: &[String], defaults: bool) -> Stored {
        let unknown: BTreeSet<&str> = unknown.iter().map(String::as_str).collect();
        let mut theirs = answer.get(TEMPLATE).cloned().unwrap_or_else(|| self.template.clone());
        let own_volumes = self.own_volumes();
        let mut claim_volumes = Vec::new();
        if let Some(spec) = theirs.get_mut("spec").and_then(Value::as_object_mut)
            && let Some(Value::Array(volumes)) = spec.get_mut("volumes")
        {
            claim_volumes = volumes.split_off(own_volumes.min(volumes.len()));
            if volumes.is_empty() {
                spec.remove("volumes");
            }
        }
        let mut template = Over { unknown: &unknown, adds: defaults }.lay(TEMPLATE, self.template, &theirs);
        write_as_typed(&mut template);
        if defaults && let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
            for container in list_mut(spec, "containers").filter_map(Value::as_object_mut) {
                container.entry("imagePullPolicy").or_insert_with(|| "Always".into());
            }
        }
        let claims = self.claims.iter().enumerate().map(|(i, claim)| match claim_volumes.get(i) {
            Some(volume) if self.judges_claims => {
                let at = format!("template.spec.volumes[{}].ephemeral.volumeClaimTemplate.spec", own_volumes + i);
                let spec = volume.pointer("/ephemeral/volumeClaimTemplate/spec");
                // Only texts of quantities come from the answer: OpenKruise writes no volumeMode.
                stored_claim(claim, spec.map(|spec| (&*at, spec)), &Over { unknown: &unknown, adds: false }, defaults)
            }
            _ => claim.clone(),
        });
        Stored { template, claims: claims.collect() }
    }
}

/// The names that containers mount and no volume of the template has: those of claims.
pub fn missing_volumes(template: &Value) -> Vec<Value> {
    let Some(spec) = template.get("spec").and_then(Value::as_object) else { return Vec::new() };
    let name = |entry: &'_ Value| entry.get("name").and_then(Value::as_str).map(str::to_owned);
    let own: BTreeSet<String> = list(spec, "volumes").iter().filter_map(name).collect();
    let containers = list(spec, "containers").iter().chain(list(spec, "initContainers"));
    let mounts = containers.filter_map(Value::as_object).flat_map(|container| {
        list(container, "volumeMounts").iter().chain(list(container, "volumeDevices")).filter_map(name)
    });
    let missing: BTreeSet<String> = mounts.filter(|name| !own.contains(name)).collect();
    missing.into_iter().map(|name| json!({ "metadata": { "name": name } })).collect()
}

/// Lays an answer over what it is an answer to.
struct Over<'a> {
    unknown: &'a BTreeSet<&'a str>,
    /// Whether members that only the answer has are taken.
    adds: bool,
}

impl Over<'_> {
    fn lay(&self, at: &str, mine: &Value, theirs: &Value) -> Value {
        match (mine, theirs) {
            (Value::Object(mine), Value::Object(theirs)) => {
                let mut all = Map::new();
                for (key, value) in mine {
                    let at = format!("{at}.{key}");
                    match theirs.get(key) {
                        _ if ACCOUNTS.contains(&key.as_str()) && !is_nothing(key, value) => {
                            all.insert(key.clone(), value.clone());
                        }
                        Some(theirs) => {
                            all.insert(key.clone(), self.lay(&at, value, theirs));
                        }
                        None if self.unknown.contains(at.as_str()) || !is_nothing(key, value) => {
                            all.insert(key.clone(), value.clone());
                        }
                        None => {}
                    }
                }
                for (key, value) in theirs.iter().filter(|_| self.adds) {
                    if !mine.contains_key(key) && !ACCOUNTS.contains(&key.as_str()) {
                        all.insert(key.clone(), value.clone());
                    }
                }
                all.into()
            }
            (Value::Array(mine), Value::Array(theirs)) if mine.len() == theirs.len() => {
                let pairs = mine.iter().zip(theirs).enumerate();
                pairs.map(|(i, (mine, theirs))| self.lay(&format!("{at}[{i}]"), mine, theirs)).collect()
            }
            // The API server neither adds nor removes entries; somebody else's webhook may.
            (Value::Array(_), Value::Array(_)) => mine.clone(),
            _ => theirs.clone(),
        }
    }
}

/// Whether a typed client leaves a member out: what it drops says nothing that its absence does not say.
fn is_nothing(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag && FLAGS.contains(&key),
        Value::Number(number) => number.as_i64() == Some(0) && NUMBERS.contains(&key),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty() && MAPS.contains(&key),
    }
}

/// Members that a typed client writes whether or not they are set. Newer API servers leave `creationTimestamp` out.
pub fn write_as_typed(template: &mut Value) {
    let Some(template) = template.as_object_mut() else { return };
    write_creation_timestamp(template);
    let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for key in ["containers", "initContainers"] {
        for container in list_mut(spec, key).filter_map(Value::as_object_mut) {
            container.entry("resources").or_insert_with(|| json!({}));
        }
    }
    for volume in list_mut(spec, "volumes") {
        if let Some(Value::Object(claim)) = volume.pointer_mut("/ephemeral/volumeClaimTemplate") {
            write_creation_timestamp(claim);
        }
    }
}

fn write_creation_timestamp(object: &mut Map<String, Value>) {
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.entry("creationTimestamp").or_insert(Value::Null);
    }
}

fn stored_claim(claim: &Value, spec: Option<(&str, &Value)>, over: &Over<'_>, defaults: bool) -> Value {
    let mut claim = claim.as_object().cloned().unwrap_or_default();
    if let (Some((at, theirs)), Some(mine)) = (spec, claim.get("spec")) {
        let laid = over.lay(at, mine, theirs);
        claim.insert("spec".into(), laid);
    }
    write_creation_timestamp(&mut claim);
    let status = claim.entry("status").or_insert_with(|| json!({}));
    if status.is_null() {
        *status = json!({});
    }
    if let Some(status) = status.as_object_mut().filter(|_| defaults) {
        status.entry("phase").or_insert_with(|| "Pending".into());
    }
    claim.into()
}

/// Whether a template has been through the defaults. While admission was away a workload may have been stored without, or
/// with a new part that lacks them.
pub fn looks_defaulted(template: &Value) -> bool {
    let Some(spec) = template.get("spec").and_then(Value::as_object) else { return false };
    let has = |object: &Map<String, Value>, keys: &[&str]| {
        keys.iter().all(|key| object.get(*key).is_some_and(|v| !v.is_null()))
    };
    let object = |value: &Value, keys: &[&str]| value.as_object().is_some_and(|object| has(object, keys));
    let all = |value: Option<&Value>, keys: &[&str]| match value {
        Some(Value::Array(items)) => items.iter().all(|item| object(item, keys)),
        _ => true,
    };
    // A member that is there has these members in turn.
    let within = |parent: &Value, pointer: &str, keys: &[&str]| {
        parent.pointer(pointer).is_none_or(|value| value.is_null() || object(value, keys))
    };
    let container = |container: &Value| {
        const CONTAINER: [&str; 4] =
            ["imagePullPolicy", "resources", "terminationMessagePath", "terminationMessagePolicy"];
        const PROBE: [&str; 4] = ["failureThreshold", "periodSeconds", "successThreshold", "timeoutSeconds"];
        let environment = |variable: &Value| within(variable, "/valueFrom/fieldRef", &["apiVersion"]);
        let hook = |hook: &str| within(container, &format!("/lifecycle/{hook}/httpGet"), &["scheme"]);
        let probe = |probe: &str| {
            within(container, &format!("/{probe}"), &PROBE)
                && within(container, &format!("/{probe}/httpGet"), &["scheme"])
        };
        object(container, &CONTAINER)
            && all(container.get("ports"), &["protocol"])
            && container.get("env").and_then(Value::as_array).into_iter().flatten().all(environment)
            && ["preStop", "postStart"].into_iter().all(hook)
            && ["livenessProbe", "readinessProbe", "startupProbe"].into_iter().all(probe)
    };
    let volume = |volume: &Value| {
        let modes = ["/configMap", "/secret", "/downwardAPI", "/projected"];
        modes.into_iter().all(|source| within(volume, source, &["defaultMode"]))
            && within(volume, "/hostPath", &["type"])
    };
    const SPEC: [&str; 5] =
        ["dnsPolicy", "restartPolicy", "schedulerName", "securityContext", "terminationGracePeriodSeconds"];
    template.pointer("/metadata/creationTimestamp").is_some()
        && has(spec, &SPEC)
        && list(spec, "containers").iter().all(container)
        && list(spec, "initContainers").iter().all(container)
        && list(spec, "volumes").iter().all(volume)
}

fn list<'v>(object: &'v Map<String, Value>, key: &str) -> &'v [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn list_mut<'v>(object: &'v mut Map<String, Value>, key: &str) -> impl Iterator<Item = &'v mut Value> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests;
