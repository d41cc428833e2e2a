//! The rules and defaults of the spec of a BroadcastJob: of a job itself, and of the template of an AdvancedCronJob.
//!
//! Pure. What the API server says of the Pod template is [`crate::webhook::template`].

use serde_json::{Value, json};

use crate::{
    api::{
        apps::{
            broadcast_job::DEFAULT_PARALLELISM,
            strategies::{BroadcastCompletion, BroadcastFailure},
        },
        labels::{BROADCAST_JOB_NAME, BROADCAST_JOB_UID},
    },
    domain::{
        kinds::broadcast_job::spec::{RESTART_POLICIES, RESTART_POLICY},
        pod::placement,
    },
    webhook::validate::{Findings, Object, drop_empty, set_default, show, show_text},
};

/// Judges a spec. `at` is its path with a dot at the end: `spec.`
pub fn judge(found: &mut Findings, spec: &Object, at: &str) {
    found.share_or_fraction(spec, at, "parallelism");
    found.flag(spec, at, "paused");
    completion_policy(found, spec, at);
    let policy = format!("{at}failurePolicy.");
    if let Some(failure) = found.object(spec, at, "failurePolicy") {
        found.one_of(failure, &policy, "type", BroadcastFailure::SPELLED);
        found.integer(failure, &policy, "restartLimit", 0);
    }
    pod_template(found, spec, at);
}

fn completion_policy(found: &mut Findings, spec: &Object, at: &str) {
    let Some(policy) = found.object(spec, at, "completionPolicy") else { return };
    let at = format!("{at}completionPolicy.");
    let kind = found.one_of(policy, &at, "type", BroadcastCompletion::SPELLED);
    seconds(found, policy, &at, "activeDeadlineSeconds");
    found.integer(policy, &at, "ttlSecondsAfterFinished", 0);
    if kind == BroadcastCompletion::Never.as_str() {
        for key in ["activeDeadlineSeconds", "ttlSecondsAfterFinished"] {
            if let Some(value) = policy.get(key).filter(|value| !value.is_null()) {
                found.deny(
                    format!("{at}{key}"),
                    format!("{} is not allowed with type Never, which never ends; leave it out", show(value)),
                );
            }
        }
    }
}

/// A whole number of 64 bits that is not negative.
fn seconds(found: &mut Findings, policy: &Object, at: &str, key: &str) {
    let Some(value) = policy.get(key).filter(|value| !value.is_null()) else { return };
    match value.as_i64() {
        None => found.wrong_type(&format!("{at}{key}"), value, "a whole number of seconds from 0"),
        Some(number) if number < 0 => {
            found.deny(format!("{at}{key}"), format!("{number} is not allowed; want 0 or more"));
        }
        Some(_) => {}
    }
}

/// The template, as far as the API server does not judge it: it is there, its Pods end, and the labels of the job are free.
fn pod_template(found: &mut Findings, spec: &Object, at: &str) {
    let field = format!("{at}template");
    let Some(template) = found.object(spec, at, "template") else {
        if spec.get("template").is_none_or(Value::is_null) {
            found.deny(field, "it is missing; want a Pod template");
        }
        return;
    };
    let within = format!("{field}.");
    let metadata = found.object(template, &within, "metadata");
    let of_metadata = format!("{within}metadata.");
    let labels = metadata.and_then(|metadata| found.object(metadata, &of_metadata, "labels"));
    for key in [BROADCAST_JOB_NAME, BROADCAST_JOB_UID] {
        if labels.is_some_and(|labels| labels.contains_key(key)) {
            found.deny(format!("{of_metadata}labels[{key}]"), "it is not allowed: the job sets it; leave it out");
        }
    }
    let Some(pod) = found.object(template, &within, "spec") else {
        if template.get("spec").is_none_or(Value::is_null) {
            found.deny(format!("{within}spec"), "it is missing; want at least one container");
        }
        return;
    };
    let of_spec = format!("{within}spec.");
    let policy = found.text(pod, &of_spec, "restartPolicy");
    if !policy.is_empty() && !RESTART_POLICIES.contains(&policy) {
        found.deny(
            format!("{of_spec}restartPolicy"),
            format!("{} is not allowed; want Never or OnFailure: the Pods of a job end", show_text(policy)),
        );
    }
    if let Some((named, why)) = placement::excess(spec.get("template").unwrap_or(&Value::Null)) {
        // It names the field of a spec.
        found.deny(format!("{at}{}", named.strip_prefix("spec.").unwrap_or(&named)), why);
    }
}

/// Writes what is missing, but for the template.
pub fn set_defaults(spec: &mut Object) {
    set_default(spec, "parallelism", json!(DEFAULT_PARALLELISM));
    for (policy, kind) in [
        ("completionPolicy", BroadcastCompletion::default().as_str()),
        ("failurePolicy", BroadcastFailure::default().as_str()),
    ] {
        set_default(spec, policy, json!({}));
        if let Some(policy) = spec.get_mut(policy).and_then(Value::as_object_mut) {
            drop_empty(policy, "type");
            set_default(policy, "type", json!(kind));
        }
    }
}

/// Writes the restart policy of a Pod template where it is missing, before the API server writes its own default, with which
/// no Pod ends. `spec` is that of the job.
pub fn set_restart_policy(spec: &mut Object) {
    if let Some(pod) = spec.get_mut("template").and_then(|template| template.get_mut("spec")?.as_object_mut()) {
        drop_empty(pod, "restartPolicy");
        set_default(pod, "restartPolicy", json!(RESTART_POLICY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: Value, at: &str) -> Vec<(String, String)> {
        let mut found = Findings::default();
        judge(&mut found, spec.as_object().unwrap(), at);
        assert!(found.wrong_types.is_empty(), "{:?}", found.wrong_types);
        found.causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
    }
    fn with(change: Value) -> Value {
        let mut spec = json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
        json_patch::merge(&mut spec, &change);
        spec
    }

    #[test]
    fn c1_f41_what_a_job_may_say() {
        for change in [
            json!({}),
            json!({"parallelism": 0}),
            json!({"parallelism": "30%"}),
            json!({"parallelism": "12.5%"}),
            json!({"completionPolicy": {"type": "Never"}}),
            json!({"completionPolicy": {"type": "", "activeDeadlineSeconds": 5_000_000_000_i64, "ttlSecondsAfterFinished": 0}}),
            json!({"failurePolicy": {"type": "Pause", "restartLimit": 3}, "paused": true}),
            json!({"template": {"spec": {"restartPolicy": "Never"}, "metadata": {"labels": {"a": "b"}}}}),
        ] {
            assert_eq!(found(with(change.clone()), "spec."), [], "{change}");
        }
    }

    #[test]
    fn c1_f41_refusals_name_the_field_in_a_template_too() {
        let many = vec![json!({}); placement::MOST + 1];
        for (change, field) in [
            (json!({"parallelism": -1}), "parallelism"),
            (json!({"parallelism": "3"}), "parallelism"),
            (json!({"completionPolicy": {"type": "Sometimes"}}), "completionPolicy.type"),
            (json!({"completionPolicy": {"activeDeadlineSeconds": -5}}), "completionPolicy.activeDeadlineSeconds"),
            (json!({"completionPolicy": {"ttlSecondsAfterFinished": -5}}), "completionPolicy.ttlSecondsAfterFinished"),
            (
                json!({"completionPolicy": {"type": "Never", "activeDeadlineSeconds": 5}}),
                "completionPolicy.activeDeadlineSeconds",
            ),
            (
                json!({"completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 5}}),
                "completionPolicy.ttlSecondsAfterFinished",
            ),
            (json!({"failurePolicy": {"type": "Retry"}}), "failurePolicy.type"),
            (json!({"failurePolicy": {"restartLimit": -1}}), "failurePolicy.restartLimit"),
            (json!({"template": null}), "template"),
            (json!({"template": {"spec": null}}), "template.spec"),
            (json!({"template": {"spec": {"restartPolicy": "Always"}}}), "template.spec.restartPolicy"),
            (
                json!({"template": {"metadata": {"labels": {"broadcastjob-name": "x"}}}}),
                "template.metadata.labels[broadcastjob-name]",
            ),
            (
                json!({"template": {"metadata": {"labels": {"broadcastjob-controller-uid": "x"}}}}),
                "template.metadata.labels[broadcastjob-controller-uid]",
            ),
            (json!({"template": {"spec": {"tolerations": many}}}), "template.spec.tolerations"),
        ] {
            for at in ["spec.", "spec.template.broadcastJobTemplate.spec."] {
                let found = found(with(change.clone()), at);
                let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
                assert_eq!(fields, [format!("{at}{field}")], "{change}");
            }
        }
    }

    #[test]
    fn wrong_types_are_told() {
        let mut found = Findings::default();
        let spec =
            json!({"parallelism": true, "paused": "yes", "completionPolicy": [], "failurePolicy": 3, "template": "x"});
        judge(&mut found, spec.as_object().unwrap(), "spec.");
        assert_eq!(found.wrong_types.len(), 5, "{:?}", found.wrong_types);
        let mut found = Findings::default();
        let spec = json!({"completionPolicy": {"activeDeadlineSeconds": "5"}, "template": {"metadata": {"labels": []}, "spec": []}});
        judge(&mut found, spec.as_object().unwrap(), "spec.");
        assert_eq!(found.wrong_types.len(), 3, "{:?}", found.wrong_types);
    }

    #[test]
    fn defaults_are_those_that_were_recorded() {
        let recorded: Vec<Value> =
            serde_json::from_str(include_str!("../api/apps/testdata/broadcast_jobs.json")).unwrap();
        for job in recorded {
            let mut bare = job["spec"].as_object().cloned().unwrap();
            bare.remove("parallelism");
            bare.remove("failurePolicy");
            bare["completionPolicy"].as_object_mut().unwrap().remove("type");
            set_defaults(&mut bare);
            set_restart_policy(&mut bare);
            assert_eq!(Value::Object(bare), job["spec"]);
        }
    }

    #[test]
    fn f41_the_restart_policy_is_written_before_kubernetes_writes_always() {
        for given in [json!({}), json!({"restartPolicy": ""}), json!({"restartPolicy": null})] {
            let mut spec = with(json!({"template": {"spec": given}})).as_object().cloned().unwrap();
            set_restart_policy(&mut spec);
            assert_eq!(spec["template"]["spec"]["restartPolicy"], "OnFailure");
        }
        let mut odd = json!({"template": {"spec": 3}}).as_object().cloned().unwrap();
        set_restart_policy(&mut odd);
        assert_eq!(odd["template"]["spec"], 3);
    }
}
