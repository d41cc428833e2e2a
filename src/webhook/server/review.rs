//! AdmissionReview on the wire.
//!
//! v1 and v1beta1 differ only in their name, so both are read into one [`Request`] and answered in kind. Objects stay
//! raw JSON: what a handler does not know passes through, and an answer holds only the difference it means.
//!
//! Whoever can dial the port may send a body. Handlers build requests from the names in it, so names are parsed here,
//! before any handler sees them: those of the request, and those in the metadata of its objects, which have to agree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    api::{apps, kruise, policy},
    k8s::{
        bounded_json::{self, MOST_PARTS},
        name::{BadName, Namespace, ObjectName, WANT_LABEL, WANT_SUBDOMAIN, is_dns_label, is_dns_subdomain},
    },
};

/// The call of the API server. Its names are valid.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Repeated in the answer.
    pub uid: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub operation: String,
    /// The resource as the caller addressed it.
    pub resource: Resource,
    /// The kind of the object.
    pub kind: Kind,
    /// For example `status`; empty for the object itself.
    pub sub_resource: String,
    /// Namespace of the request; objects may lack their own, and have no other. Empty for objects of the cluster.
    pub namespace: Namespace,
    /// Name of the object, empty if it is still to be generated or stands in the object alone.
    pub name: ObjectName,
    /// Who asks.
    pub user_info: UserInfo,
    /// Whether nothing is to be stored in the end.
    pub dry_run: bool,
    /// The object as it is to be stored.
    pub object: Value,
    /// The object as it is stored now; null on CREATE.
    pub old_object: Value,
}

/// Who sent a [`Request`] to the API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// For example `system:serviceaccount:shop:ci`.
    pub username: String,
}

/// A kind in a [`Request`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// Its name.
    pub kind: String,
}

/// A resource in a [`Request`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// API group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural name.
    pub resource: String,
}

/// A [`Request`] as it arrives.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    uid: String,
    operation: String,
    resource: Resource,
    kind: Kind,
    sub_resource: String,
    namespace: String,
    name: String,
    user_info: UserInfo,
    dry_run: bool,
    object: Option<Box<RawValue>>,
    old_object: Option<Box<RawValue>>,
}

/// An object of a request.
enum Part {
    /// There is none.
    None,
    Read(Value),
    /// It would grow out of proportion: what of it does not, and why.
    TooLarge(Value, serde_json::Error),
}

impl Part {
    fn read(text: Option<&RawValue>, most: usize) -> Self {
        let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else { return Self::None };
        match bounded_json::read_within(text, most) {
            Ok(object) => Self::Read(object),
            Err(why) => Self::TooLarge(bounded_json::sparse(text, most), why),
        }
    }

    /// What there is of it.
    fn object(self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Read(object) | Self::TooLarge(object, _) => object,
        }
    }
}

/// What is decided about a request before anybody looks at it, from the objects' sizes. A call that fails would let a write pass,
/// so that whoever pads an object could get around every rule.
///
/// - An object that is too large is refused, unless it was before and neither its spec nor its labels and annotations change: its
///   finalizers and its status do no harm.
/// - One that was too large before is deleted, and compared, by what of it is not.
fn by_size(wire: &Wire, object: &Part, old: &Part) -> Option<Decision> {
    let Part::TooLarge(_, why) = object else { return None };
    let as_before = || {
        let [now, before] = [&wire.object, &wire.old_object].map(|part| judged(part.as_ref()?.get()));
        now.is_some() && now == before
    };
    match old {
        Part::TooLarge(..) if as_before() => Some(Ok(Admitted::unchanged())),
        _ => Some(Err(Denied::bad_request(format!("the object would take too much memory: {why}")))),
    }
}

/// What rules about an object go by, as text: its labels, its annotations, and all members but its status and other metadata.
fn judged(object: &str) -> Option<BTreeMap<String, &str>> {
    let mut all = bounded_json::members(object)?;
    let metadata = bounded_json::members(all.remove("metadata")?.get())?;
    all.remove("status");
    for (key, value) in metadata.into_iter().filter(|(key, _)| ["labels", "annotations"].contains(&key.as_str())) {
        all.insert(format!("metadata.{key}"), value);
    }
    Some(all.into_iter().map(|(key, value)| (key, value.get())).collect())
}

/// A name in a request that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is not valid.
    #[error("request.{field}: {error}")]
    Bad {
        /// The field.
        field: String,
        /// The value, and what is allowed.
        error: BadName,
    },
    /// The object's metadata says something else than the request.
    #[error("request.{field}: {shown:?} is not allowed; want request.{of}, {wanted:?}, or nothing")]
    Other {
        /// The field.
        field: String,
        /// Its value, cut.
        shown: String,
        /// The field of the request.
        of: &'static str,
        /// The value of that.
        wanted: String,
    },
}

const WANT_UID: &str = "1 to 253 letters, digits and '-'";
const WANT_TEXT: &str = "text";
const WANT_KIND: &str = "up to 253 letters and digits";

fn is_uid(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The name in an object's metadata, and the namespace: valid, and those of the request if that has some.
fn check_metadata(at: &str, object: &Value, name: &str, namespace: &str) -> Result<(), NameError> {
    for (member, of_request, want) in [("name", name, WANT_SUBDOMAIN), ("namespace", namespace, WANT_LABEL)] {
        let field = || format!("{at}.metadata.{member}");
        let bad = |error| NameError::Bad { field: field(), error };
        let own = match object.get("metadata").and_then(|metadata| metadata.get(member)) {
            None | Some(Value::Null) => continue,
            Some(Value::String(own)) if own.is_empty() => continue,
            Some(Value::String(own)) => own,
            Some(other) => return Err(bad(BadName::new(&other.to_string(), WANT_TEXT))),
        };
        let is_valid = if member == "name" { is_dns_subdomain(own) } else { is_dns_label(own) };
        if !is_valid {
            return Err(bad(BadName::new(own, want)));
        }
        // A new object may be named by its body alone, and then the API server repeats that name or none.
        if own != of_request && !(member == "name" && of_request.is_empty()) {
            let of = if member == "name" { "name" } else { "namespace" };
            let shown = BadName::new(own, want).shown;
            return Err(NameError::Other { field: field(), shown, of, wanted: of_request.to_owned() });
        }
    }
    Ok(())
}

impl Request {
    /// The request, and what is decided already.
    fn of(wire: Wire) -> Result<(Self, Option<Decision>), NameError> {
        let bad = |field: &str| {
            let field = field.to_owned();
            |error| NameError::Bad { field, error }
        };
        let namespace = Namespace::parse(&wire.namespace).map_err(bad("namespace"))?;
        let name = ObjectName::parse(&wire.name).map_err(bad("name"))?;
        let Resource { group, version, resource: plural } = &wire.resource;
        for (field, text, is_valid, want) in [
            ("resource.group", group, is_dns_subdomain(group), WANT_SUBDOMAIN),
            ("resource.version", version, is_dns_label(version), WANT_LABEL),
            ("resource.resource", plural, is_dns_label(plural), WANT_LABEL),
            ("subResource", &wire.sub_resource, is_dns_label(&wire.sub_resource), WANT_LABEL),
            ("kind.kind", &wire.kind.kind, is_kind(&wire.kind.kind), WANT_KIND),
        ] {
            if !text.is_empty() && !is_valid {
                return Err(bad(field)(BadName::new(text, want)));
            }
        }
        let most = if [apps::GROUP, policy::GROUP, kruise::GROUP].contains(&group.as_str()) {
            MOST_PARTS
        } else {
            MOST_PARTS_OF_OTHERS
        };
        let (object, old) = (Part::read(wire.object.as_deref(), most), Part::read(wire.old_object.as_deref(), most));
        let decided = by_size(&wire, &object, &old);
        let (object, old_object) = (object.object(), old.object());
        check_metadata("object", &object, &name, &namespace)?;
        check_metadata("oldObject", &old_object, &name, &namespace)?;
        let Wire { uid, operation, resource, kind, sub_resource, user_info, dry_run, .. } = wire;
        let request = Self {
            uid,
            operation,
            resource,
            kind,
            sub_resource,
            namespace,
            name,
            user_info,
            dry_run,
            object,
            old_object,
        };
        Ok((request, decided))
    }
}

#[cfg(test)]
impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Wire::deserialize(deserializer)?).map(|(request, _)| request).map_err(serde::de::Error::custom)
    }
}

fn is_kind(text: &str) -> bool {
    text.len() <= MAX_NAME && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// A review that was read: the request, and the version to answer in.
#[derive(Clone, Debug)]
pub struct Review {
    api_version: String,
    /// The request.
    pub request: Request,
    /// What is decided already, from the sizes of its objects: no handler looks at it.
    pub decided: Option<Decision>,
}

/// Why a body is no review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Not JSON of the expected shape.
    #[error("the body is no AdmissionReview: {0}")]
    Undecodable(#[from] serde_json::Error),
    /// Some other object.
    #[error(
        "the body is {kind:?} of {api_version:?}; want AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1"
    )]
    OtherKind {
        /// Its `apiVersion`.
        api_version: String,
        /// Its `kind`.
        kind: String,
    },
    /// The review cannot be answered: its uid would be repeated in the answer and in logs.
    #[error("request.uid: {0}")]
    Uid(BadName),
    /// A name that is none. The answer says so in the API server's words, so that a user sees it.
    #[error("{error}")]
    Name {
        /// Which, and why.
        error: NameError,
        /// The answer.
        answer: Value,
    },
    /// A review without a request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

/// The longest text of a refusal, in bytes. It repeats what the caller sent, and goes into logs.
pub const MAX_MESSAGE: usize = 2048;
/// The longest uid, name and namespace, in bytes: what names of objects are limited to.
const MAX_NAME: usize = 253;
/// The largest objects of others, in the measure of [`MOST_PARTS`]: definitions of custom resources of a megabyte have two thirds.
const MOST_PARTS_OF_OTHERS: usize = 400_000;

/// The most fields that one refusal names. There may be thousands, and a user mends them a few at a time.
const MAX_CAUSES: usize = 20;

/// A field that is not allowed as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Its path.
    pub field: String,
    /// The value, and what is allowed.
    pub message: String,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// HTTP code that the user sees.
    pub code: u16,
    /// What is wrong: field, value, and what is allowed.
    pub message: String,
    /// The fields one by one, if they are known: kubectl prints each on a line of its own.
    pub causes: Vec<Cause>,
}

/// A text within its limit.
fn cut(mut text: String, limit: usize) -> String {
    const CUT: &str = " (cut)";
    if text.len() > limit {
        let fits = (0..=limit - CUT.len()).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(fits.unwrap_or_default());
        text.push_str(CUT);
    }
    text
}

impl Denied {
    fn new(code: u16, message: String) -> Self {
        Self { code, message: cut(message, MAX_MESSAGE), causes: Vec::new() }
    }
    /// Fields are wrong.
    pub fn invalid(causes: Vec<Cause>) -> Self {
        let (most, left) = (MAX_MESSAGE / 4, causes.len().saturating_sub(MAX_CAUSES));
        let mut causes: Vec<Cause> = causes
            .into_iter()
            .take(MAX_CAUSES)
            .map(|Cause { field, message }| Cause { field: cut(field, most), message: cut(message, most) })
            .collect();
        if left > 0
            && let Some(last) = causes.last_mut()
        {
            last.message.push_str(&format!(" (and {left} more)"));
        }
        let lines: Vec<String> = causes.iter().map(|Cause { field, message }| format!("{field}: {message}")).collect();
        Self { causes, ..Self::new(422, lines.join("; ")) }
    }
    /// The request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message.into())
    }
    /// The request is refused by policy.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, message.into())
    }
    /// Not now; try again later. The answer to an eviction that a budget refuses, as a PodDisruptionBudget gives it.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(429, message.into())
    }
    /// We could not decide.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, message.into())
    }
}

/// Consent, perhaps with changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admitted {
    /// Changes to the object; empty for none.
    pub patch: json_patch::Patch,
    /// Shown to the user by kubectl.
    pub warnings: Vec<String>,
}

impl Admitted {
    /// Consent without changes.
    pub fn unchanged() -> Self {
        Self::default()
    }
    /// Consent with the changes that lead from one document to the other.
    pub fn changed(from: &Value, to: &Value) -> Self {
        Self { patch: json_patch::diff(from, to), warnings: Vec::new() }
    }
}

/// What a handler decided.
pub type Decision = Result<Admitted, Denied>;

impl Review {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// The body is no AdmissionReview of a known version with a request, or a name in it is not valid.
    pub fn decode(body: &[u8]) -> Result<Self, ReviewError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
            #[serde(default)]
            request: Option<Wire>,
        }
        let Envelope { api_version, kind, request } = serde_json::from_slice(body)?;
        let known = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"].contains(&api_version.as_str());
        if !known || kind != "AdmissionReview" {
            return Err(ReviewError::OtherKind { api_version, kind });
        }
        let request = request.ok_or(ReviewError::NoRequest)?;
        if !is_uid(&request.uid) {
            return Err(ReviewError::Uid(BadName::new(&request.uid, WANT_UID)));
        }
        let uid = request.uid.clone();
        match Request::of(request) {
            Ok((request, decided)) => Ok(Self { api_version, request, decided }),
            Err(error) => {
                let nameless = Self { api_version, request: Request { uid, ..Request::default() }, decided: None };
                let answer = nameless.answer(&Err(Denied::bad_request(error.to_string())));
                Err(ReviewError::Name { error, answer })
            }
        }
    }

    /// The answer, in the version of the question.
    pub fn answer(&self, decision: &Decision) -> Value {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Response<'a> {
            uid: &'a str,
            allowed: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            patch_type: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            patch: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<Value>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            warnings: &'a [String],
        }
        let uid = self.request.uid.as_str();
        let response = match decision {
            Ok(Admitted { patch, warnings }) => {
                // Serializing a patch cannot fail: it holds nothing but JSON.
                let patch = (!patch.0.is_empty()).then(|| {
                    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, json!(patch).to_string())
                });
                let patch_type = patch.is_some().then_some("JSONPatch");
                Response { uid, allowed: true, patch_type, patch, status: None, warnings }
            }
            Err(Denied { code, message, causes }) => {
                let mut status = json!({ "code": code, "message": message, "reason": reason(*code) });
                if *code == 429 {
                    // Without retryAfterSeconds: clients would wait for it by themselves, and users see nothing.
                    let name = &*self.request.name;
                    status["details"] =
                        json!({ "name": name, "causes": [{ "reason": "DisruptionBudget", "message": message }] });
                }
                if !causes.is_empty() {
                    let Request { kind, name, resource, .. } = &self.request;
                    let causes = causes.iter().map(
                        |Cause { field, message }| json!({ "reason": "FieldValueInvalid", "field": field, "message": message }),
                    );
                    status["details"] = json!({ "group": resource.group, "kind": kind.kind, "name": &**name,
                        "causes": causes.collect::<Vec<_>>() });
                }
                Response { uid, allowed: false, patch_type: None, patch: None, status: Some(status), warnings: &[] }
            }
        };
        json!({ "apiVersion": self.api_version, "kind": "AdmissionReview", "response": response })
    }
}

/// The machine-readable reason that belongs to a code.
fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        403 => "Forbidden",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(version: &str) -> Review {
        let body = json!({"apiVersion": version, "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "object": {"a": 1}, "newField": true}});
        Review::decode(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn both_versions_are_answered_in_kind() {
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let answer = review(version).answer(&Ok(Admitted::unchanged()));
            assert_eq!(
                answer,
                json!({"apiVersion": version, "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
            );
        }
    }

    /// Whoever pads an object must not get around a rule: a call that fails lets the write pass.
    #[test]
    fn objects_that_are_too_large_are_answered_and_those_that_were_before_may_be_mended_and_deleted() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let object = |spec: &str| format!(r#"{{"metadata":{{"name":"a","labels":{{"b":"c"}}}},"spec":{spec}}}"#);
        let many = format!("[{}0]", "0,".repeat(MOST_PARTS));
        let decoded = |group: &str, operation: &str, object: &str, old: &str| {
            let body = format!(
                r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"{operation}",
                "name":"a","resource":{{"group":"{group}"}},"object":{object},"oldObject":{old}}}}}"#
            );
            let review = Review::decode(body.as_bytes()).unwrap();
            match &review.decided {
                None => Ok((review.request.object, review.request.old_object)),
                Some(decision) => Err(review.answer(decision)["response"].clone()),
            }
        };
        let (good, too_deep, too_many) = (object("7"), object(&deep), object(&many));
        assert!(decoded("kruise.rs", "CREATE", &too_many, "null").is_err(), "as large as what a store holds");
        for (bad, why) in [(&too_deep, "it is nested deeper than 100 levels"), (&too_many, "it has too many values")] {
            for (operation, old) in [("CREATE", "null"), ("UPDATE", &good)] {
                let refused = decoded("apps.kruise.io", operation, bad, old).unwrap_err();
                let message = refused["status"]["message"].as_str().unwrap();
                assert!(message.starts_with(&format!("the object would take too much memory: {why}")), "{message}");
                assert_eq!((&refused["allowed"], &refused["uid"]), (&json!(false), &json!("u")));
            }
            let kept = decoded("apps.kruise.io", "UPDATE", bad, bad).unwrap_err();
            assert_eq!(kept["allowed"], true, "its finalizers can be taken off");
            for (from, to) in [("\"c\"", "\"d\""), ("[", "[0,")] {
                let changed = decoded("apps.kruise.io", "UPDATE", &bad.replacen(from, to, 1), bad).unwrap_err();
                assert_eq!(changed["allowed"], false, "{to}");
            }
            let (mended, old) = decoded("apps.kruise.io", "UPDATE", &good, bad).unwrap();
            assert_eq!((&mended["spec"], &old["spec"]), (&json!(7), &Value::Null), "nothing is excused by what it was");
            let (none, old) = decoded("apps.kruise.io", "DELETE", "null", bad).unwrap();
            assert_eq!((none, &old["metadata"]["labels"]["b"], &old["spec"]), (Value::Null, &json!("c"), &Value::Null));
        }
        // Padding that is no part of what is judged hides nothing.
        let padded = |spec: &str| format!(r#"{{"metadata":{{"name":"a","ownerReferences":{many}}},"spec":{spec}}}"#);
        let refused = decoded("apps.kruise.io", "UPDATE", &padded("8"), &padded("7")).unwrap_err();
        assert_eq!(refused["allowed"], false);
        assert_eq!(decoded("apps.kruise.io", "UPDATE", &padded("7"), &padded("7")).unwrap_err()["allowed"], true);
        assert_eq!(decoded("apps.kruise.io", "UPDATE", &good, &padded("7")).unwrap().1["spec"], 7);
        assert!(decoded("apiextensions.k8s.io", "CREATE", &too_many, "null").is_ok(), "definitions are larger");
        let managed = format!(r#"{{"metadata":{{"name":"a","managedFields":{deep}}}}}"#);
        assert_eq!(decoded("", "CREATE", &managed, "null").unwrap().0, json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn a_change_is_a_minimal_json_patch() {
        let review = review("admission.k8s.io/v1");
        let answer = review.answer(&Ok(Admitted::changed(&review.request.object, &json!({"a": 1, "b": {"c": 2}}))));
        let patch = answer["response"]["patch"].as_str().unwrap();
        let patch = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, patch).unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        assert_eq!(patch, json!([{"op": "add", "path": "/b", "value": {"c": 2}}]));
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
    }

    #[test]
    fn a_refusal_carries_code_and_message() {
        let answer = review("admission.k8s.io/v1").answer(&Err(Denied::bad_request("no")));
        assert_eq!(
            answer["response"],
            json!({"uid": "u", "allowed": false, "status": {"code": 400, "message": "no", "reason": "BadRequest"}})
        );
    }

    #[test]
    fn an_eviction_that_has_to_wait_is_answered_as_a_pod_disruption_budget_does() {
        let answer = review("admission.k8s.io/v1").answer(&Err(Denied::too_many_requests("later")));
        let causes = json!([{"reason": "DisruptionBudget", "message": "later"}]);
        assert_eq!(
            answer["response"]["status"],
            json!({"code": 429, "message": "later", "reason": "TooManyRequests", "details": {"name": "", "causes": causes}})
        );
    }

    #[test]
    fn fields_that_are_wrong_come_one_by_one() {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "name": "web",
            "kind": {"group": "apps.kruise.io", "kind": "CloneSet"}, "resource": {"group": "apps.kruise.io"}}});
        let review = Review::decode(body.to_string().as_bytes()).unwrap();
        let cause = |field: &str| Cause { field: field.into(), message: "no".into() };
        let answer = review.answer(&Err(Denied::invalid(vec![cause("spec.a"), cause("spec.b")])));
        let causes = json!([{"reason": "FieldValueInvalid", "field": "spec.a", "message": "no"},
            {"reason": "FieldValueInvalid", "field": "spec.b", "message": "no"}]);
        assert_eq!(
            answer["response"]["status"],
            json!({"code": 422, "reason": "Invalid", "message": "spec.a: no; spec.b: no",
                "details": {"group": "apps.kruise.io", "kind": "CloneSet", "name": "web", "causes": causes}})
        );
        let many =
            Denied::invalid((0..1000).map(|_| Cause { field: "é".repeat(2000), message: "x".repeat(2000) }).collect());
        assert!(many.causes.len() == MAX_CAUSES && many.message.len() <= MAX_MESSAGE);
        assert!(many.causes[MAX_CAUSES - 1].message.ends_with("(and 980 more)"));
        assert!(many.causes.iter().all(|cause| cause.field.len() <= MAX_MESSAGE && cause.message.len() <= MAX_MESSAGE));
    }

    #[test]
    fn a_refusal_that_repeats_a_long_text_is_cut() {
        let Denied { message, .. } = Denied::bad_request("é".repeat(MAX_MESSAGE));
        assert!(message.len() <= MAX_MESSAGE && message.ends_with("é (cut)"), "{message}");
    }

    fn decoded(changes: Value) -> Result<Review, ReviewError> {
        let mut body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "name": "web", "namespace": "default",
            "resource": {"group": "apps.kruise.io", "version": "v1alpha1", "resource": "clonesets"},
            "object": {"metadata": {"name": "web", "namespace": "default"}}, "oldObject": null}});
        json_patch::merge(&mut body["request"], &changes);
        Review::decode(body.to_string().as_bytes())
    }

    #[test]
    fn names_are_parsed_before_a_handler_sees_them() {
        for good in [
            json!({}),
            json!({"name": "", "object": {"metadata": {"name": null, "generateName": "web-"}}}),
            // An eviction, and each of several that are deleted at once, may be named by its body alone.
            json!({"name": ""}),
            json!({"object": {"metadata": {"namespace": ""}}}),
            json!({"object": {"metadata": 1}}),
            json!({"object": null}),
            json!({"namespace": "", "object": {"metadata": {"namespace": null}}}),
            json!({"oldObject": {"metadata": {"name": "web"}}, "subResource": "status", "kind": {"kind": "CloneSet"}}),
        ] {
            assert!(decoded(good.clone()).is_ok(), "{good}");
        }
        for (bad, field) in [
            (json!({"namespace": "default/podtemplates?x="}), "namespace: \"default/podtemplates?x=\""),
            (json!({"namespace": ".."}), "namespace: "),
            (json!({"namespace": "a.b"}), "namespace: "),
            (json!({"name": "web/../x"}), "name: "),
            (json!({"name": "Web"}), "name: "),
            (json!({"name": "a".repeat(254)}), "name: "),
            (json!({"resource": {"group": "a/b"}}), "resource.group: "),
            (json!({"resource": {"version": "v1/x"}}), "resource.version: "),
            (json!({"resource": {"resource": "pods?x"}}), "resource.resource: "),
            (json!({"subResource": "a/b"}), "subResource: "),
            (json!({"kind": {"kind": "a\n"}}), "kind.kind: "),
            (json!({"object": {"metadata": {"namespace": "default/podtemplates?x="}}}), "object.metadata.namespace: "),
            (
                json!({"object": {"metadata": {"namespace": "kube-system"}}}),
                "object.metadata.namespace: \"kube-system\"",
            ),
            (json!({"object": {"metadata": {"name": "../x"}}}), "object.metadata.name: "),
            (json!({"object": {"metadata": {"name": "other"}}}), "object.metadata.name: \"other\""),
            (json!({"object": {"metadata": {"name": 7}}}), "object.metadata.name: \"7\" is not allowed; want text"),
            (json!({"name": "", "object": {"metadata": {"name": "a b"}}}), "object.metadata.name: "),
            (json!({"namespace": ""}), "object.metadata.namespace: \"default\""),
            (json!({"oldObject": {"metadata": {"namespace": "other"}}}), "oldObject.metadata.namespace: "),
            (json!({"oldObject": {"metadata": {"name": "?"}}}), "oldObject.metadata.name: "),
        ] {
            let Err(ReviewError::Name { error, answer }) = decoded(bad.clone()) else { panic!("{bad} was taken") };
            let status = &answer["response"]["status"];
            assert_eq!((&answer["response"]["allowed"], &status["code"]), (&json!(false), &json!(400)), "{bad}");
            assert!(status["message"].as_str().unwrap().starts_with(&format!("request.{field}")), "{status}");
            assert!(error.to_string().len() < 1000);
        }
        for bad in ["", "a b", "ü", &"u".repeat(254)] {
            let error = decoded(json!({"uid": bad})).unwrap_err();
            assert!(matches!(error, ReviewError::Uid(_)) && error.to_string().starts_with("request.uid: "), "{error}");
        }
    }

    #[test]
    fn what_is_no_review_is_refused() {
        for (body, message) in [
            ("{", "the body is no AdmissionReview: EOF"),
            (r#"{"apiVersion":"v1","kind":"Pod"}"#, "the body is \"Pod\" of \"v1\"; want AdmissionReview"),
            (
                r#"{"apiVersion":"admission.k8s.io/v2","kind":"AdmissionReview","request":{}}"#,
                "the body is \"AdmissionReview\" of \"admission.k8s.io/v2\"",
            ),
            (r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#, "the AdmissionReview has no request"),
        ] {
            let error = Review::decode(body.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
