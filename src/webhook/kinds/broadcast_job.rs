//! Admission of BroadcastJobs: defaults and rules in one call, for v1beta1 and v1alpha1 alike.
//!
//! [`check`] judges the object alone, [`admit`] together with what the API server says of the template, by a dry run.
//! [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: the controller knows the defaults and the rules itself. An update is never refused
//! for what it does not change. The status that a client sends with a new job is left out.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::{
    api::feature_gates::gate,
    k8s::{name::LONGEST_LABEL, rbac::Rule},
    webhook::{
        Context, broadcast_job_spec as rules,
        server::review::{Admitted, Decision, Denied, Request},
        template::{self, READ_BUDGET, Templates},
        validate::{Findings, Object, is_judged, show_text},
        workload::Judged,
    },
};

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC];

/// A BroadcastJob of which every field has the right type, with a restart policy.
#[derive(Clone, Debug)]
pub struct BroadcastJobAdmission {
    judged: Judged,
    /// The object with the restart policy, which the API server must not choose.
    asked: Value,
    is_new: bool,
    /// Whether the template gets the defaults of Kubernetes.
    template_defaults: bool,
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let template_defaults = !context.gates.enabled(gate::TEMPLATE_NO_DEFAULTS);
        let admission = check(template_defaults, request)?;
        let templates = admission.templates();
        let asked = template::ask(&context.client, &admission.judged.namespace, &templates);
        let answers = tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| template::Answers::late());
        admit(&admission, &answers)
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(template_defaults: bool, request: Request) -> Result<BroadcastJobAdmission, Denied> {
    let is_new = request.operation == "CREATE";
    let judged = Judged::of(request, judge, |old| judge(old, false))?;
    let mut asked = judged.object.clone();
    if let Some(spec) = asked.get_mut("spec").and_then(Value::as_object_mut) {
        rules::set_restart_policy(spec);
    }
    Ok(BroadcastJobAdmission { judged, asked, is_new, template_defaults })
}

/// Judges an object.
fn judge(object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(object) = object.as_object() else {
        found.wrong_type("the object", object, "a BroadcastJob");
        return found;
    };
    let metadata = found.object(object, "", "metadata").unwrap_or(&none);
    if is_new {
        found.object_name(metadata, Some((LONGEST_LABEL, ": it becomes a label of Pods")));
        let name = found.text(metadata, "metadata.", "name");
        if name.contains('.') {
            found.deny(
                "metadata.name",
                format!(
                    "{} is not allowed; want letters, digits and '-': it begins the names of Pods",
                    show_text(name)
                ),
            );
        }
    }
    match found.object(object, "", "spec") {
        Some(spec) => rules::judge(&mut found, spec, "spec."),
        None => found.deny("spec", "it is missing; want at least the template"),
    }
    found
}

impl BroadcastJobAdmission {
    fn templates(&self) -> Templates<'_> {
        let Judged { old, .. } = &self.judged;
        Templates { object: &self.asked, old: old.as_ref(), defaults: self.template_defaults, in_place_only: None }
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &BroadcastJobAdmission, answers: &template::Answers) -> Decision {
    let mut wanted = admission.asked.clone();
    if admission.is_new
        && let Some(object) = wanted.as_object_mut()
    {
        object.remove("status");
    }
    admission.judged.decide(wanted, |spec, found| {
        rules::set_defaults(spec);
        admission.templates().judge(answers, spec, found)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::pod_template::{Answer, Refused};

    fn job(change: Value) -> Value {
        let mut job = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob",
            "metadata": {"name": "job", "namespace": "a"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        json_patch::merge(&mut job, &change);
        job
    }
    fn create(object: Value) -> Request {
        Request { operation: "CREATE".into(), namespace: "a".into(), object, ..Request::default() }
    }
    fn update(old_object: Value, object: Value) -> Request {
        Request { operation: "UPDATE".into(), namespace: "a".into(), object, old_object, ..Request::default() }
    }
    /// An API server that accepts the template and adds a default.
    fn answered(admission: &BroadcastJobAdmission) -> template::Answers {
        let trial = admission.templates().trial().map(|trial| {
            let mut object = trial.body();
            object["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
            Ok(Answer { object, ..Answer::default() })
        });
        template::Answers { trial, old_template: None }
    }
    fn stored(request: Request) -> Result<Value, Denied> {
        let mut object = request.object.clone();
        let admission = check(true, request)?;
        let admitted = admit(&admission, &answered(&admission))?;
        json_patch::patch(&mut object, &admitted.patch).unwrap();
        Ok(object)
    }
    fn fields(denied: &Denied) -> Vec<&str> {
        denied.causes.iter().map(|cause| cause.field.as_str()).collect()
    }

    #[test]
    fn c1_f41_every_default_of_a_new_job() {
        let object = stored(create(job(json!({"status": {"phase": "completed", "succeeded": 3}})))).unwrap();
        assert_eq!(
            object["spec"],
            json!({
                "parallelism": 2_147_483_647, "completionPolicy": {"type": "Always"}, "failurePolicy": {"type": "FailFast"},
                "template": {"metadata": {"creationTimestamp": null}, "spec": {"restartPolicy": "OnFailure", "dnsPolicy": "ClusterFirst",
                    "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "resources": {}}]}},
            })
        );
        assert_eq!(object.get("status"), None, "a new job has not run");
        let again = stored(update(object.clone(), object.clone())).unwrap();
        assert_eq!(again, object);
    }

    #[test]
    fn c1_what_a_job_must_not_say_is_422_with_every_field() {
        let denied = stored(create(job(json!({"metadata": {"name": "a.b"},
            "spec": {"parallelism": -1, "template": {"spec": {"restartPolicy": "Always"}}}}))))
        .unwrap_err();
        assert_eq!(denied.code, 422);
        assert_eq!(fields(&denied), ["metadata.name", "spec.parallelism", "spec.template.spec.restartPolicy"]);
        let denied = stored(create(job(json!({"metadata": {"name": "x".repeat(64)}})))).unwrap_err();
        assert_eq!(fields(&denied), ["metadata.name"]);
        assert_eq!(stored(create(job(json!({"spec": null})))).unwrap_err().code, 400);
        assert_eq!(stored(create(job(json!({"spec": {"paused": 3}})))).unwrap_err().code, 400);
    }

    #[test]
    fn what_the_api_server_says_of_the_template_is_told() {
        let admission = check(true, create(job(json!({})))).unwrap();
        let refused = |refused: Refused| template::Answers { trial: Some(Err(refused)), old_template: None };
        let invalid = Refused::Invalid(vec![("template.spec.containers[0].image".into(), "Required value".into())]);
        let denied = admit(&admission, &refused(invalid)).unwrap_err();
        assert_eq!((denied.code, fields(&denied)), (422, vec!["spec.template.spec.containers[0].image"]));
        let away = || Refused::Unavailable("away".into());
        assert_eq!(admit(&admission, &refused(away())).unwrap_err().code, 500);
        let changed = update(job(json!({})), job(json!({"spec": {"template": {"spec": {"hostNetwork": true}}}})));
        let warned = admit(&check(true, changed).unwrap(), &refused(away())).unwrap();
        assert!(warned.warnings[0].contains("not checked"), "{:?}", warned.warnings);
    }

    #[test]
    fn an_update_is_not_refused_for_what_it_does_not_change() {
        let old = job(json!({"spec": {"parallelism": -1}}));
        let mut new = old.clone();
        new["spec"]["paused"] = true.into();
        assert!(stored(update(old.clone(), new)).is_ok());
        let mut worse = old.clone();
        worse["spec"]["failurePolicy"] = json!({"type": "No"});
        assert_eq!(fields(&stored(update(old, worse)).unwrap_err()), ["spec.failurePolicy.type"]);
    }

    #[test]
    fn without_template_defaults_the_template_stays_but_for_its_restart_policy() {
        let request = create(job(json!({})));
        let mut object = request.object.clone();
        let admission = check(false, request).unwrap();
        let admitted = admit(&admission, &answered(&admission)).unwrap();
        json_patch::patch(&mut object, &admitted.patch).unwrap();
        assert_eq!(object.pointer("/spec/template/spec/dnsPolicy"), None);
        assert_eq!(object["spec"]["template"]["spec"]["restartPolicy"], "OnFailure");
    }
}
