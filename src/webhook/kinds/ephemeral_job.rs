//! Admission of EphemeralJobs: [`check`] judges the object alone, [`admit`] together with what the API server says of its
//! containers, by a dry run of a PodTemplate that has them as ordinary ones. [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: the controller knows the rules that it needs itself, and that the template stays is
//! an admission policy. An update is never refused for what it does not change.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::{
    api::{apps::ephemeral_job::MOST_CONTAINERS, labels},
    k8s::{
        name::{WANT_LABEL, is_dns_label},
        pod_template::{Trial, missing_volumes},
        rbac::Rule,
    },
    runtime::pod_template::{self, Answer, Refused},
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        template::{self, READ_BUDGET, refused_later},
        validate::{Findings, Object, drop_empty, is_judged, set_default, show, show_text},
        workload::Judged,
    },
};

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC];

const CONTAINERS: &str = "spec.template.ephemeralContainers";
/// Fields of containers that ephemeral containers do not have.
const FORBIDDEN: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "restartPolicy",
    "restartPolicyRules",
];
/// The same of their mounts.
const FORBIDDEN_OF_MOUNTS: [&str; 2] = ["subPath", "subPathExpr"];

/// An EphemeralJob of which every field has the right type.
#[derive(Clone, Debug)]
pub struct EphemeralJobAdmission(Judged);

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(request)?;
        let answer = match admission.question() {
            None => None,
            Some(body) => {
                let asked = pod_template::dry_run(&context.client, &admission.0.namespace, &body);
                let late = || Err(Refused::Unavailable(format!("no answer within {} s", READ_BUDGET.as_secs())));
                Some(tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| late()))
            }
        };
        admit(&admission, answer.as_ref())
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(request: Request) -> Result<EphemeralJobAdmission, Denied> {
    Judged::of(request, |object, _| judge(object), judge).map(EphemeralJobAdmission)
}

fn containers(object: &Value) -> &[Value] {
    object.pointer("/spec/template/ephemeralContainers").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl EphemeralJobAdmission {
    /// The PodTemplate to ask the API server about, if the containers are new and nothing is wrong with them so far.
    pub fn question(&self) -> Option<Value> {
        let new = containers(&self.0.object);
        let is_new = self.0.old.as_ref().is_none_or(|old| containers(old) != new);
        if !is_new || new.is_empty() || !self.0.found.causes.is_empty() {
            return None;
        }
        let mut ordinary = new.to_vec();
        for container in ordinary.iter_mut().filter_map(Value::as_object_mut) {
            container.remove("targetContainerName");
        }
        let template = json!({"spec": {"containers": ordinary}});
        // Which volumes the Pods have is not known: whatever is mounted is taken to be there.
        let claims = missing_volumes(&template);
        Some(Trial::new(&template, &claims, false).body())
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// What is wrong, or that a new job could not be checked.
pub fn admit(admission: &EphemeralJobAdmission, answer: Option<&Result<Answer, Refused>>) -> Decision {
    let judged = &admission.0;
    judged.decide(judged.object.clone(), |spec, found| {
        set_defaults(spec);
        match answer {
            None => {}
            Some(Ok(answer)) => {
                let unknown = answer.unknown.iter().map(|field| {
                    format!("unknown field \"{}\": it is stored, and Pods do not get it", field_of(field))
                });
                found.warnings.extend(unknown);
                let tolerated = answer.tolerated.iter();
                found.warnings.extend(tolerated.map(|one| refused_later(&field_of(&one.field), &one.message)));
                found.warnings.extend(answer.warnings.iter().cloned());
            }
            Some(Err(Refused::Invalid(fields))) => {
                let cause =
                    |(field, message): &(String, String)| Cause { field: field_of(field), message: message.clone() };
                found.causes.extend(fields.iter().map(cause));
            }
            Some(Err(Refused::Undecodable(message))) => {
                return Err(Denied::bad_request(format!("{CONTAINERS}: {message}")));
            }
            Some(Err(error @ Refused::Unavailable(_))) if judged.old.is_some() => {
                found.warnings.push(format!("{CONTAINERS} is not checked: {error}"));
            }
            Some(Err(error @ Refused::Unavailable(_))) => {
                return Err(Denied::internal(format!("{CONTAINERS}: {error}")));
            }
        }
        Ok(())
    })
}

/// The field of the job that the API server means when it names one of the PodTemplate.
fn field_of(named: &str) -> String {
    match named.strip_prefix("template.spec.containers") {
        Some(rest) => format!("{CONTAINERS}{rest}"),
        None => format!("spec.{named}"),
    }
}

fn set_defaults(spec: &mut Object) {
    let Some(list) = spec.get_mut("template").and_then(|template| template.get_mut("ephemeralContainers")) else {
        return;
    };
    for container in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for (key, default) in [("imagePullPolicy", "IfNotPresent"), ("terminationMessagePolicy", "File")] {
            drop_empty(container, key);
            set_default(container, key, json!(default));
        }
    }
}

fn judge(object: &Value) -> Findings {
    let mut found = Findings::default();
    let Some(spec) = object.get("spec").and_then(Value::as_object) else {
        found.wrong_types.push("spec is missing or no object; want selector and template".into());
        return found;
    };
    found.selector(spec, "spec.", "selector");
    found.integer(spec, "spec.", "replicas", 0);
    found.integer(spec, "spec.", "parallelism", 0);
    found.integer(spec, "spec.", "activeDeadlineSeconds", 1);
    found.integer(spec, "spec.", "ttlSecondsAfterFinished", 0);
    found.flag(spec, "spec.", "paused");
    let Some(template) = found.object(spec, "spec.", "template") else {
        if spec.get("template").is_none_or(Value::is_null) {
            found.deny(CONTAINERS, "it is missing; want at least one container");
        }
        return found;
    };
    let list = found.list(template, "spec.template.", "ephemeralContainers");
    if list.is_empty() {
        found.deny(CONTAINERS, "it is empty; want at least one container");
    } else if list.len() > MOST_CONTAINERS {
        found.deny(CONTAINERS, format!("it has {} containers; want at most {MOST_CONTAINERS}", list.len()));
    }
    let mut names = BTreeSet::new();
    for (i, container) in list.iter().enumerate().take(MOST_CONTAINERS) {
        let at = format!("{CONTAINERS}[{i}]");
        match container.as_object() {
            None => found.wrong_type(&at, container, "an object"),
            Some(container) => judge_container(&mut found, container, &at, &mut names),
        }
    }
    found
}

fn judge_container<'v>(found: &mut Findings, container: &'v Object, at: &str, names: &mut BTreeSet<&'v str>) {
    let within = format!("{at}.");
    let name = found.text(container, &within, "name");
    if !is_dns_label(name) {
        found.deny(format!("{at}.name"), format!("{} is not allowed; want {WANT_LABEL}", show_text(name)));
    } else if !names.insert(name) {
        found.deny(format!("{at}.name"), format!("{} is there twice; want each name once", show_text(name)));
    }
    let image = found.text(container, &within, "image");
    if image.is_empty() || image.trim() != image {
        let message =
            format!("{} is not allowed; want the name of an image without blanks around it", show_text(image));
        found.deny(format!("{at}.image"), message);
    }
    for key in FORBIDDEN {
        let is_empty = |value: &Value| {
            value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Object::is_empty)
        };
        if let Some(value) = container.get(key).filter(|value| !is_empty(value)) {
            found
                .deny(format!("{at}.{key}"), format!("{} is not allowed: ephemeral containers have none", show(value)));
        }
    }
    for (j, mount) in found.list(container, &within, "volumeMounts").iter().enumerate() {
        for key in FORBIDDEN_OF_MOUNTS {
            if mount.get(key).is_some_and(|value| !value.is_null() && value != "") {
                let message = "it is not allowed: ephemeral containers mount whole volumes";
                found.deny(format!("{at}.volumeMounts[{j}].{key}"), message);
            }
        }
    }
    for (j, variable) in found.list(container, &within, "env").iter().enumerate() {
        if variable.get("name").is_some_and(|name| name == labels::ENV_EPHEMERAL_JOB) {
            let message = format!("{} is written by Kruise; leave it out", labels::ENV_EPHEMERAL_JOB);
            found.deny(format!("{at}.env[{j}].name"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: &Value) -> Value {
        let mut whole = json!({"selector": {"matchLabels": {"app": "web"}},
            "template": {"ephemeralContainers": [{"name": "look", "image": "busybox"}]}});
        json_patch::merge(&mut whole, spec);
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob", "metadata": {"name": "j"}, "spec": whole})
    }

    fn create(spec: &Value) -> Request {
        Request { operation: "CREATE".into(), namespace: "ns".into(), object: job(spec), ..Request::default() }
    }

    fn decide(request: Request) -> Decision {
        let answer = Answer::default();
        check(request).and_then(|admission| admit(&admission, Some(&Ok(answer))))
    }

    fn with_container(change: Value) -> Value {
        let mut container = json!({"name": "look", "image": "busybox"});
        json_patch::merge(&mut container, &change);
        json!({"template": {"ephemeralContainers": [container]}})
    }

    #[test]
    fn d1_f54_containers_get_their_defaults_and_nothing_else_changes() {
        let request = create(&with_container(json!({"newer": {"a": [1]}, "terminationMessagePolicy": ""})));
        let mut stored = request.object.clone();
        json_patch::patch(&mut stored, &decide(request).unwrap().patch).unwrap();
        let want = json!([{"name": "look", "image": "busybox", "newer": {"a": [1]}, "imagePullPolicy": "IfNotPresent",
            "terminationMessagePolicy": "File"}]);
        assert_eq!(stored["spec"]["template"]["ephemeralContainers"], want);
        let again = Request { object: stored, ..create(&json!({})) };
        assert_eq!(decide(again).unwrap(), Admitted::unchanged());
    }

    #[test]
    fn d1_f54_an_empty_selector_is_refused() {
        for selector in [json!({}), json!({"matchLabels": null}), json!({"matchExpressions": []})] {
            let mut request = create(&json!({}));
            request.object["spec"]["selector"] = selector.clone();
            let denied = decide(request).unwrap_err();
            assert_eq!((denied.code, denied.causes[0].field.as_str()), (422, "spec.selector"), "{selector}");
        }
    }

    #[test]
    fn d1_refusals_name_the_field() {
        for (spec, field) in [
            (json!({"replicas": -1}), "spec.replicas"),
            (json!({"parallelism": -1}), "spec.parallelism"),
            (json!({"activeDeadlineSeconds": 0}), "spec.activeDeadlineSeconds"),
            (json!({"ttlSecondsAfterFinished": -1}), "spec.ttlSecondsAfterFinished"),
            (json!({"template": {"ephemeralContainers": []}}), "spec.template.ephemeralContainers"),
            (json!({"template": null}), "spec.template.ephemeralContainers"),
            (with_container(json!({"name": "A"})), "spec.template.ephemeralContainers[0].name"),
            (with_container(json!({"name": null})), "spec.template.ephemeralContainers[0].name"),
            (with_container(json!({"image": " a"})), "spec.template.ephemeralContainers[0].image"),
            (with_container(json!({"image": null})), "spec.template.ephemeralContainers[0].image"),
            (with_container(json!({"ports": [{"containerPort": 1}]})), "spec.template.ephemeralContainers[0].ports"),
            (
                with_container(json!({"resources": {"limits": {"cpu": 1}}})),
                "spec.template.ephemeralContainers[0].resources",
            ),
            (
                with_container(json!({"livenessProbe": {"exec": {}}})),
                "spec.template.ephemeralContainers[0].livenessProbe",
            ),
            (with_container(json!({"lifecycle": {"preStop": {}}})), "spec.template.ephemeralContainers[0].lifecycle"),
            (
                with_container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}]})),
                "spec.template.ephemeralContainers[0].volumeMounts[0].subPath",
            ),
            (
                with_container(json!({"env": [{"name": "KRUISE_EJOB_ID", "value": "x"}]})),
                "spec.template.ephemeralContainers[0].env[0].name",
            ),
            (
                json!({"template": {"ephemeralContainers": [{"name": "a", "image": "b"}, {"name": "a", "image": "b"}]}}),
                "spec.template.ephemeralContainers[1].name",
            ),
        ] {
            let denied = decide(create(&spec)).unwrap_err();
            let fields: Vec<&str> = denied.causes.iter().map(|cause| cause.field.as_str()).collect();
            assert_eq!((denied.code, fields.as_slice()), (422, &[field][..]), "{spec}");
        }
        for spec in
            [json!({"paused": "yes"}), json!({"replicas": "2"}), json!({"template": {"ephemeralContainers": [5]}})]
        {
            assert_eq!(decide(create(&spec)).unwrap_err().code, 400, "{spec}");
        }
    }

    #[test]
    fn the_api_server_judges_the_containers_as_ordinary_ones() {
        let mounts = json!({"targetContainerName": "main", "volumeMounts": [{"name": "data", "mountPath": "/d"}]});
        let admission = check(create(&with_container(mounts))).unwrap();
        let asked = admission.question().unwrap();
        let container = &asked["template"]["spec"]["containers"][0];
        assert_eq!((&container["name"], &container["targetContainerName"]), (&json!("look"), &Value::Null));
        assert_eq!(asked["template"]["spec"]["volumes"][0]["name"], "data");
        let invalid = Refused::Invalid(vec![("template.spec.containers[0].env[0].name".into(), "bad".into())]);
        let denied = admit(&admission, Some(&Err(invalid))).unwrap_err();
        assert_eq!(denied.causes[0].field, "spec.template.ephemeralContainers[0].env[0].name");
        let away = || Err(Refused::Unavailable("away".into()));
        assert_eq!(admit(&admission, Some(&away())).unwrap_err().code, 500);
        // An update goes on without an answer, and one that leaves the containers alone needs none.
        let mut update = create(&json!({"paused": true}));
        update.operation = "UPDATE".into();
        update.old_object = job(&json!({}));
        assert_eq!(check(update.clone()).unwrap().question(), None);
        update.object["spec"]["template"]["ephemeralContainers"][0]["image"] = "other".into();
        let admission = check(update).unwrap();
        assert!(admission.question().is_some());
        assert_eq!(admit(&admission, Some(&away())).unwrap().warnings.len(), 1);
    }

    #[test]
    fn an_update_is_not_refused_for_what_it_does_not_change() {
        let mut update = create(&json!({"replicas": -1}));
        update.object["spec"]["selector"] = json!({});
        update.operation = "UPDATE".into();
        update.old_object = update.object.clone();
        update.object["spec"]["paused"] = true.into();
        assert!(check(update.clone()).and_then(|admission| admit(&admission, None)).is_ok());
        update.object["spec"]["parallelism"] = (-1).into();
        let denied = check(update).and_then(|admission| admit(&admission, None)).unwrap_err();
        assert_eq!(denied.causes.len(), 1);
    }
}
