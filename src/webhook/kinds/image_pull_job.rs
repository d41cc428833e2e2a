//! Admission of ImagePullJobs and ImageListPullJobs: defaults and rules in one call, without a look-up.
//!
//! CREATE fails closed, UPDATE fails open: the controllers know the defaults and the rules themselves, and what has to hold
//! in any case, that Secrets stay and that a completed job keeps its image, is CEL in the schema. An update is never refused
//! for what it does not change.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::{
    api::feature_gates::{FeatureGates, gate},
    domain::kinds::image_jobs::rules::{self, Problem},
    webhook::{
        Context,
        image_job_spec::{set_defaults, set_defaults_of_list},
        server::review::{Admitted, Cause, Decision, Denied, Request},
        validate::is_judged,
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move { decide(&context.gates, &request) })
}

/// Decides.
///
/// # Errors
/// A gate is off, a field has a type that it cannot have, or a value that is not allowed.
pub fn decide(gates: &FeatureGates, request: &Request) -> Decision {
    let Request { operation, object, old_object, .. } = request;
    if !is_judged(request) {
        return Ok(Admitted::unchanged());
    }
    let is_new = operation == "CREATE";
    if is_new && let Some(off) = [gate::KRUISE_DAEMON, gate::IMAGE_PULL_JOB].iter().find(|gate| !gates.enabled(gate)) {
        let message =
            format!("feature gate {off} is off: nobody would carry this job out; switch it on, or delete the job");
        return Err(Denied::forbidden(message));
    }
    let is_list = request.resource.resource == "imagelistpulljobs" || request.kind.kind == "ImageListPullJob";
    let mut with_defaults = object.clone();
    let Some(spec) = with_defaults.pointer_mut("/spec").and_then(Value::as_object_mut) else {
        return Err(Denied::bad_request("spec: it is missing or no object; want at least the image"));
    };
    match is_list {
        true => set_defaults_of_list(spec),
        false => set_defaults(spec),
    }
    let mut problems =
        judge(is_list, &Value::Object(spec.clone())).map_err(|error| Denied::bad_request(error.to_string()))?;
    if !is_new {
        let before = judge(is_list, &old_object["spec"]).unwrap_or_default();
        problems.retain(|problem| !before.contains(problem));
    }
    if !problems.is_empty() {
        let causes = problems.into_iter().map(|(field, message)| Cause { field, message });
        return Err(Denied::invalid(causes.collect()));
    }
    Ok(Admitted::changed(object, &with_defaults))
}

/// A spec that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("spec: {0}")]
struct Unreadable(#[from] serde_json::Error);

/// What is wrong with a spec.
fn judge(is_list: bool, spec: &Value) -> Result<Vec<Problem>, Unreadable> {
    // By reference: a value that cannot be read is not copied first.
    Ok(match is_list {
        true => rules::of_list(&serde::Deserialize::deserialize(spec)?),
        false => rules::of_job(&serde::Deserialize::deserialize(spec)?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{api::apps::image_list_pull_job::ImageListPullJob, domain::kinds::image_jobs::list_spec::ListSpec};

    fn gates() -> FeatureGates {
        FeatureGates::parse(&["ImagePullJobGate=true"], None).unwrap()
    }

    fn request(kind: &str, spec: Value) -> Request {
        let object =
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": kind, "metadata": {"name": "j"}, "spec": spec});
        let mut request = Request { operation: "CREATE".into(), namespace: "a".into(), object, ..Request::default() };
        request.kind.kind = kind.into();
        request
    }

    fn stored(request: &Request) -> Value {
        let mut object = request.object.clone();
        json_patch::patch(&mut object, &decide(&gates(), request).unwrap().patch).unwrap();
        object
    }

    #[test]
    fn f15_every_default_of_the_spec() {
        let all = json!({"pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3}, "completionPolicy": {"type": "Always"}, "imagePullPolicy": "IfNotPresent"});
        let mut want = all.clone();
        want["image"] = "a".into();
        assert_eq!(stored(&request("ImagePullJob", json!({"image": "a"})))["spec"], want);
        let mut want = all;
        want["images"] = json!(["a"]);
        want.as_object_mut().unwrap().remove("imagePullPolicy");
        assert_eq!(stored(&request("ImageListPullJob", json!({"images": ["a"]})))["spec"], want);
    }

    #[test]
    fn a9_a_list_is_stored_with_the_spec_and_the_hash_that_were_recorded_and_its_jobs_get_their_default() {
        let recorded: Vec<Value> =
            serde_json::from_str(include_str!("../../api/apps/testdata/image_list_pull_jobs.json")).unwrap();
        let recorded = &recorded[0];
        let applied = recorded.pointer("/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration");
        let mut applied: Value = serde_json::from_str(applied.and_then(Value::as_str).unwrap()).unwrap();
        for written in [None, Some("")] {
            if let Some(text) = written {
                applied["spec"]["imagePullPolicy"] = text.into();
            }
            let list = stored(&request("ImageListPullJob", applied["spec"].clone()));
            assert_eq!(list["spec"], recorded["spec"], "{written:?}");
            let list: ImageListPullJob = serde_json::from_value(list).unwrap();
            let spec = ListSpec::of(&list);
            assert_eq!(spec.hash, "fb69b545f");
            let job = stored(&request("ImagePullJob", json!(spec.job(&list.spec.images[0]))));
            assert_eq!(job["spec"]["imagePullPolicy"], "IfNotPresent");
        }
        applied["spec"]["imagePullPolicy"] = "Always".into();
        let list = stored(&request("ImageListPullJob", applied["spec"].clone()));
        assert_eq!(list["spec"]["imagePullPolicy"], "Always");
    }

    #[test]
    fn f15_what_is_set_or_not_known_stays() {
        let spec = json!({"image": "a", "pullPolicy": {"timeoutSeconds": 30, "newer": 1}, "completionPolicy": {"type": "Never", "newer": 2}, "imagePullPolicy": "Always", "parallelism": "3", "newer": {"a": [1]}});
        let mut want = spec.clone();
        want["pullPolicy"]["backoffLimit"] = 3.into();
        let once = stored(&request("ImagePullJob", spec));
        assert_eq!(once["spec"], want);
        let again = Request { object: once, ..request("ImagePullJob", json!({})) };
        assert_eq!(decide(&gates(), &again).unwrap(), Admitted::unchanged());
    }

    #[test]
    fn refusals_name_the_fields() {
        let denied =
            decide(&gates(), &request("ImagePullJob", json!({"image": "A B", "parallelism": "10%"}))).unwrap_err();
        assert_eq!(denied.code, 422);
        let fields: Vec<&str> = denied.causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["spec.image", "spec.parallelism"]);
        let denied = decide(&gates(), &request("ImageListPullJob", json!({"images": ["a", "a"]}))).unwrap_err();
        assert_eq!(denied.causes[0].field, "spec.images[1]");
    }

    #[test]
    fn what_cannot_be_read_is_a_bad_request() {
        for spec in [
            json!(null),
            json!({}),
            json!({"image": 5}),
            json!({"image": "a", "completionPolicy": {"type": "Sometimes"}}),
        ] {
            let denied = decide(&gates(), &request("ImagePullJob", spec.clone())).unwrap_err();
            assert_eq!(denied.code, 400, "{spec}");
            assert!(denied.message.starts_with("spec: "), "{}", denied.message);
        }
    }

    #[test]
    fn with_a_gate_off_jobs_are_refused_and_can_still_be_changed() {
        for off in ["ImagePullJobGate=false", "ImagePullJobGate=true,KruiseDaemon=false"] {
            let gates = FeatureGates::parse(&[off], None).unwrap();
            let mut request = request("ImagePullJob", json!({"image": "a"}));
            let denied = decide(&gates, &request).unwrap_err();
            assert_eq!((denied.code, denied.message.contains("is off")), (403, true), "{off}");
            request.operation = "UPDATE".into();
            assert!(decide(&gates, &request).is_ok());
        }
    }

    #[test]
    fn an_update_is_not_refused_for_what_it_does_not_change() {
        let mut update = request("ImagePullJob", json!({"image": "a", "parallelism": "10%"}));
        update.operation = "UPDATE".into();
        update.old_object = update.object.clone();
        update.object["spec"]["image"] = "b".into();
        assert!(decide(&gates(), &update).is_ok());
        update.object["spec"]["image"] = "b c".into();
        assert_eq!(decide(&gates(), &update).unwrap_err().causes.len(), 1);
        update.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(decide(&gates(), &update).unwrap(), Admitted::unchanged());
        update.operation = "DELETE".into();
        assert_eq!(decide(&gates(), &update).unwrap(), Admitted::unchanged());
    }
}
