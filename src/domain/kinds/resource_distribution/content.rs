//! What every copy has: made from the manifest in the spec, or from the object that is referred to. Compared in the form in
//! which the API server stores it.
//!
//! Values are never quoted: those of Secrets would get into answers, events and logs.

use std::collections::BTreeMap;

use base64::{
    Engine, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use serde_json::{Map, Value, json};

use crate::k8s::{
    canonical_json,
    invalid::Invalid,
    name::{WANT_SUBDOMAIN, is_dns_subdomain, is_label_value, is_qualified_name},
};

/// A field and what is wrong with it.
pub type Problem = (String, String);

/// The most bytes of data that the API server takes.
pub const MOST_BYTES: usize = 1024 * 1024;
/// Members that make the content of a Secret or ConfigMap.
const MEMBERS: [&str; 4] = ["data", "binaryData", "immutable", "type"];
/// Types of Secrets from which the control plane makes tokens: with one of them its author would be somebody else.
pub const FORBIDDEN_TYPES: [&str; 2] = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];
const OPAQUE: &str = "Opaque";
/// Base64 as the API server reads it: bits of the last letter that are of no use need not be zero.
const AS_THE_API_SERVER: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The kinds that are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Followed by a watch.
    ConfigMap,
    /// Neither listed nor watched.
    Secret,
}

impl ResourceKind {
    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::ConfigMap, Self::Secret].into_iter().find(|kind| kind.name() == name)
    }
    /// As in an object.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
    /// As in a path.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

/// What every copy has.
#[derive(Clone, PartialEq)]
pub struct Content {
    /// Secret or ConfigMap.
    pub kind: ResourceKind,
    /// Its name, which can be one.
    pub name: String,
    /// Labels that copies have besides those of others.
    pub labels: BTreeMap<String, String>,
    /// The same for annotations.
    pub annotations: BTreeMap<String, String>,
    /// The same for finalizers.
    pub finalizers: Vec<String>,
    /// The members that make the content, see [`body_of`].
    pub body: Map<String, Value>,
    /// What OpenKruise notes on copies: a hash of the manifest as it is stored.
    pub hash: String,
}

/// Without the content, which may be secret.
impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.kind.name(), self.name, self.hash)
    }
}

/// The content of an object as it is stored, without what is empty.
pub fn body_of(kind: ResourceKind, object: &Value) -> Map<String, Value> {
    let mut body = Map::new();
    for member in MEMBERS {
        let Some(value) = object.get(member) else { continue };
        let is_empty = value.is_null() || *value == json!(false) || *value == json!({}) || *value == json!("");
        if !is_empty {
            body.insert(member.into(), value.clone());
        }
    }
    if kind == ResourceKind::Secret {
        body.entry("type").or_insert(OPAQUE.into());
    }
    body
}

/// A number by which the content of two objects is compared.
pub type Fingerprint = [u8; 32];

/// Of a content.
pub fn fingerprint(body: &Map<String, Value>) -> Fingerprint {
    digest(&canonical_json::encode(&Value::Object(body.clone())))
}

fn digest(text: &str) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = Fingerprint::default();
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

fn hash_of(manifest: &Value) -> String {
    digest(&canonical_json::encode(manifest)).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Content {
    /// About as many bytes as it takes in memory.
    pub fn size(&self) -> usize {
        fn of(value: &Value) -> usize {
            let below = match value {
                Value::String(text) => text.len(),
                Value::Array(all) => all.iter().map(of).sum(),
                Value::Object(all) => all.iter().map(|(key, value)| key.len() + of(value)).sum(),
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            };
            below + size_of::<Value>()
        }
        let pairs = self.labels.iter().chain(&self.annotations);
        self.body.values().map(of).sum::<usize>() + pairs.map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }

    /// From the manifest in a spec.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of_resource(manifest: &Value) -> Result<Self, Vec<Problem>> {
        let mut reading = Reading::default();
        let kind = ResourceKind::parse(manifest["kind"].as_str().unwrap_or_default());
        if manifest["apiVersion"] != "v1" || kind.is_none() {
            let (version, kind) = (text_of(&manifest["apiVersion"]), text_of(&manifest["kind"]));
            let message = format!("{kind} of {version} is not allowed; want Secret or ConfigMap of v1");
            reading.deny("kind", message);
        }
        let name = reading.metadata(&manifest["metadata"]);
        let Some(kind) = kind else { return Err(reading.found) };
        let body = reading.body(kind, manifest);
        if !reading.found.is_empty() {
            return Err(reading.found);
        }
        let Reading { labels, annotations, finalizers, .. } = reading;
        Ok(Self { kind, name, labels, annotations, finalizers, body, hash: hash_of(manifest) })
    }

    /// From the object that is referred to: its content alone. Its labels and annotations are about itself: tools that know
    /// their objects by them would take copies for theirs.
    ///
    /// # Errors
    /// It is of a type that is not distributed.
    pub fn of_reference(kind: ResourceKind, name: &str, object: &Value) -> Result<Self, Invalid> {
        let body = body_of(kind, object);
        if let Some(forbidden) = forbidden_type(&body) {
            return Err(Invalid(format!(
                "its type {forbidden:?} is not distributed: the control plane makes tokens of such Secrets"
            )));
        }
        let mut manifest = json!({"apiVersion": "v1", "kind": kind.name(), "metadata": {"name": name}});
        for (member, value) in &body {
            manifest[member] = value.clone();
        }
        Ok(Self {
            kind,
            name: name.to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            finalizers: Vec::new(),
            body,
            hash: hash_of(&manifest),
        })
    }
}

fn forbidden_type(body: &Map<String, Value>) -> Option<&'static str> {
    let type_ = body.get("type")?;
    FORBIDDEN_TYPES.into_iter().find(|forbidden| type_ == forbidden)
}

/// A text as messages show it.
fn text_of(value: &Value) -> String {
    let shown: String = value.as_str().unwrap_or("no text").chars().take(80).collect();
    format!("{shown:?}")
}

/// Members of the manifest that copies do not get.
pub fn left_out(manifest: &Value) -> Vec<String> {
    let known = ["apiVersion", "kind", "metadata", "stringData"];
    let others = |at: &str, object: &Value, known: &[&str]| -> Vec<String> {
        let members = object.as_object().into_iter().flatten();
        let unknown = members.filter(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
        unknown.map(|(key, _)| format!("{at}{key}")).collect()
    };
    let mut all = others("spec.resource.", manifest, &[&known[..], &MEMBERS[..]].concat());
    let of_metadata = ["name", "labels", "annotations", "finalizers"];
    all.extend(others("spec.resource.metadata.", &manifest["metadata"], &of_metadata));
    all
}

/// A manifest that is being read.
#[derive(Default)]
struct Reading {
    found: Vec<Problem>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
}

impl Reading {
    fn deny(&mut self, member: &str, message: impl Into<String>) {
        self.found.push((format!("spec.resource.{member}"), message.into()));
    }

    fn metadata(&mut self, metadata: &Value) -> String {
        let name = metadata["name"].as_str().unwrap_or_default();
        if !is_dns_subdomain(name) {
            self.deny("metadata.name", format!("{} is not allowed; want {WANT_SUBDOMAIN}", text_of(&metadata["name"])));
        }
        self.labels = self.texts("metadata.labels", &metadata["labels"], true);
        self.annotations = self.texts("metadata.annotations", &metadata["annotations"], false);
        match &metadata["finalizers"] {
            Value::Null => {}
            Value::Array(list) => {
                for (i, finalizer) in list.iter().enumerate() {
                    match finalizer.as_str().filter(|name| is_qualified_name(name)) {
                        Some(name) => self.finalizers.push(name.to_owned()),
                        None => self.deny(
                            &format!("metadata.finalizers[{i}]"),
                            "it is not allowed; want a name such as example.com/hold",
                        ),
                    }
                }
            }
            _ => self.deny("metadata.finalizers", "it is not allowed; want a list"),
        }
        name.to_owned()
    }

    /// Labels or annotations.
    fn texts(&mut self, member: &str, value: &Value, are_labels: bool) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let members = match value {
            Value::Null => return all,
            Value::Object(members) => members,
            _ => {
                self.deny(member, "it is not allowed; want texts by key");
                return all;
            }
        };
        for (key, value) in members {
            let at = format!("{member}[{key}]");
            // The API server reads null as an empty text.
            match value.as_str().or(value.is_null().then_some("")) {
                None => self.deny(&at, "it is not allowed; want a text"),
                Some(_) if !is_qualified_name(key) => self.deny(&at, "the key is not allowed; want that of a label"),
                Some(text) if are_labels && !is_label_value(text) => {
                    self.deny(&at, "it is not allowed; want the value of a label");
                }
                Some(text) => drop(all.insert(key.clone(), text.to_owned())),
            }
        }
        all
    }

    /// The content as the API server will store it.
    fn body(&mut self, kind: ResourceKind, manifest: &Value) -> Map<String, Value> {
        let mut object = manifest.clone();
        let mut bytes = 0;
        for member in ["data", "binaryData", "stringData"] {
            let is_known = (member != "binaryData" || kind == ResourceKind::ConfigMap)
                && (member != "stringData" || kind == ResourceKind::Secret);
            if manifest[member].is_null() {
                continue;
            }
            if !is_known {
                self.deny(member, format!("not allowed in a {}; leave it out", kind.name()));
                continue;
            }
            let is_encoded = member == "binaryData" || (member == "data" && kind == ResourceKind::Secret);
            object[member] = Value::Object(self.data(member, &manifest[member], is_encoded, &mut bytes));
        }
        if bytes > MOST_BYTES {
            self.deny("data", format!("{bytes} bytes are not allowed; want {MOST_BYTES} or less"));
        }
        if kind == ResourceKind::ConfigMap && has_common_key(&object["data"], &object["binaryData"]) {
            self.deny("binaryData", "a key is in data too; want each key once");
        }
        for (key, text) in object["stringData"].as_object().cloned().into_iter().flatten() {
            let text = STANDARD.encode(text.as_str().unwrap_or_default());
            if !object["data"].is_object() {
                object["data"] = json!({});
            }
            object["data"][key] = text.into();
        }
        if !matches!(object["immutable"], Value::Null | Value::Bool(_)) {
            self.deny("immutable", "it is not allowed; want true or false");
        }
        match &object["type"] {
            Value::Null => {}
            Value::String(_) if kind == ResourceKind::Secret => {}
            Value::String(_) => self.deny("type", "not allowed in a ConfigMap; leave it out"),
            _ => self.deny("type", "it is not allowed; want a text"),
        }
        let body = body_of(kind, &object);
        if kind == ResourceKind::Secret {
            self.secret_type(&body);
        }
        body
    }

    fn data(&mut self, member: &str, value: &Value, is_encoded: bool, bytes: &mut usize) -> Map<String, Value> {
        let mut all = Map::new();
        let Some(members) = value.as_object() else {
            self.deny(member, "it is not allowed; want texts by key");
            return all;
        };
        for (key, value) in members {
            let at = format!("{member}[{key}]");
            if !is_data_key(key) {
                self.deny(&at, "the key is not allowed; want up to 253 letters, digits, '-', '_' and '.', not beginning with two dots");
            }
            let Some(text) = value.as_str().or(value.is_null().then_some("")) else {
                self.deny(&at, "it is not allowed; want a text");
                continue;
            };
            if !is_encoded {
                *bytes += text.len();
                all.insert(key.clone(), text.into());
                continue;
            }
            // Line ends are allowed in base64, and are not stored.
            match AS_THE_API_SERVER.decode(text.replace(['\r', '\n'], "")) {
                Ok(decoded) => {
                    *bytes += decoded.len();
                    all.insert(key.clone(), STANDARD.encode(decoded).into());
                }
                Err(_) => self.deny(&at, "it is not allowed; want base64"),
            }
        }
        all
    }

    /// What the API server asks of Secrets of some types.
    fn secret_type(&mut self, body: &Map<String, Value>) {
        if let Some(forbidden) = forbidden_type(body) {
            let message = format!(
                "{forbidden:?} is not allowed; the control plane makes tokens of such Secrets, for whoever writes them"
            );
            return self.deny("type", message);
        }
        let has = |key: &str| body.get("data").is_some_and(|data| data.get(key).is_some());
        let is_json = |key: &str| {
            let text = body.get("data").and_then(|data| data[key].as_str()).unwrap_or_default();
            STANDARD.decode(text).is_ok_and(|bytes| serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok())
        };
        let missing: Vec<&str> = match body["type"].as_str().unwrap_or_default() {
            "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().filter(|key| !has(key)).collect(),
            "kubernetes.io/ssh-auth" if !has("ssh-privatekey") => vec!["ssh-privatekey"],
            "kubernetes.io/basic-auth" if !has("username") && !has("password") => vec!["username"],
            "kubernetes.io/dockerconfigjson" if !is_json(".dockerconfigjson") => vec![".dockerconfigjson"],
            "kubernetes.io/dockercfg" if !is_json(".dockercfg") => vec![".dockercfg"],
            _ => vec![],
        };
        for key in missing {
            let want = if key.starts_with('.') { "JSON" } else { "it" };
            let message = format!("it is missing or not allowed; a Secret of this type wants {want} there");
            self.deny(&format!("data[{key}]"), message);
        }
    }
}

fn has_common_key(one: &Value, other: &Value) -> bool {
    one.as_object().into_iter().flatten().any(|(key, _)| other.get(key).is_some())
}

fn is_data_key(key: &str) -> bool {
    (1..=253).contains(&key.len())
        && key != "."
        && !key.starts_with("..")
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
