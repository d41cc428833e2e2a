//! AdmissionReview on the wire.
//!
//! v1 and v1beta1 differ only in their name, so both are read into one [`Request`] and answered in kind. Objects stay
//! raw JSON: what a handler does not know passes through, and an answer holds only the difference it means.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The call of the API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
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
    /// Namespace of the request; objects may lack their own.
    pub namespace: String,
    /// Name of the object, empty if it is still to be generated.
    pub name: String,
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

/// A review that was read: the request, and the version to answer in.
#[derive(Clone, Debug)]
pub struct Review {
    api_version: String,
    /// The request.
    pub request: Request,
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
    /// A body that would grow out of proportion in memory.
    #[error("the body has more than {MAX_VALUES} values")]
    TooManyValues,
    /// A name that is none. It would be repeated in answers and logs.
    #[error("request.{field} has {length} bytes; want at most {MAX_NAME}")]
    LongName {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
    },
    /// A review without a request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

/// The longest text of a refusal, in bytes. It repeats what the caller sent, and goes into logs.
pub const MAX_MESSAGE: usize = 2048;
/// The longest uid, name and namespace, in bytes: what names of objects are limited to.
const MAX_NAME: usize = 253;
/// The most values in a body, counted by what separates them. In memory a value is up to fifty times as large as on the
/// wire; the largest objects that an API server stores have some ten thousand.
const MAX_VALUES: usize = 100_000;

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
    /// The body is no AdmissionReview of a known version with a request.
    pub fn decode(body: &[u8]) -> Result<Self, ReviewError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
            #[serde(default)]
            request: Option<Request>,
        }
        if body.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() > MAX_VALUES {
            return Err(ReviewError::TooManyValues);
        }
        let Wire { api_version, kind, request } = serde_json::from_slice(body)?;
        let known = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"].contains(&api_version.as_str());
        if !known || kind != "AdmissionReview" {
            return Err(ReviewError::OtherKind { api_version, kind });
        }
        let request = request.ok_or(ReviewError::NoRequest)?;
        for (field, text) in [("uid", &request.uid), ("name", &request.name), ("namespace", &request.namespace)] {
            if text.len() > MAX_NAME {
                return Err(ReviewError::LongName { field, length: text.len() });
            }
        }
        Ok(Self { api_version, request })
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
                    let name = &self.request.name;
                    status["details"] =
                        json!({ "name": name, "causes": [{ "reason": "DisruptionBudget", "message": message }] });
                }
                if !causes.is_empty() {
                    let Request { kind, name, resource, .. } = &self.request;
                    let causes = causes.iter().map(
                        |Cause { field, message }| json!({ "reason": "FieldValueInvalid", "field": field, "message": message }),
                    );
                    status["details"] = json!({ "group": resource.group, "kind": kind.kind, "name": name,
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
