//! The job of a run.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::spec::{JobKind, template};
use crate::{
    api::{apps::advanced_cron_job::AdvancedCronJob, labels},
    domain::workload::owner::OwnerRef,
    k8s::time::rfc3339,
};

/// Why a job is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CronRun {
    /// It is due.
    Slot(Timestamp),
    /// Somebody asked for it.
    Manual,
}

/// The name of the job of a slot, as in OpenKruise: however often it is made, it is one.
pub fn name(cron: &str, slot: Timestamp) -> String {
    format!("{cron}-{}", slot.as_second())
}

/// The job of a run, and its kind. A manual one gets its name from the API server: it has fewer characters behind the hyphen
/// than that of a slot. None: there is no template.
pub fn job(cron: &AdvancedCronJob, run: CronRun) -> Option<(JobKind, Value)> {
    let (kind, template) = template(&cron.spec.template)?;
    let own = cron.metadata.name.as_deref().unwrap_or_default();
    let part = |field: &str| template.pointer(&format!("/metadata/{field}")).and_then(Value::as_object).cloned();
    let mut metadata = Map::new();
    metadata.insert("namespace".into(), json!(cron.metadata.namespace));
    metadata.extend(part("labels").map(|labels| ("labels".to_owned(), labels.into())));
    let mut annotations = part("annotations").unwrap_or_default();
    annotations.remove(labels::SCHEDULED_AT);
    match run {
        CronRun::Slot(slot) => {
            annotations.insert(labels::SCHEDULED_AT.into(), rfc3339(slot).into());
            metadata.insert("name".into(), name(own, slot).into());
        }
        CronRun::Manual => {
            annotations.insert(labels::CRON_JOB_INSTANTIATE.into(), "manual".into());
            metadata.insert("generateName".into(), format!("{own}-").into());
        }
    }
    metadata.insert("annotations".into(), annotations.into());
    metadata.insert("ownerReferences".into(), json!([OwnerRef::of(cron).controller()]));
    let spec = template.get("spec").filter(|spec| spec.is_object()).cloned().unwrap_or_else(|| json!({}));
    let job = json!({"apiVersion": kind.api_version(), "kind": kind.kind(), "metadata": metadata, "spec": spec});
    Some((kind, job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(template: Value) -> AdvancedCronJob {
        serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "AdvancedCronJob",
            "metadata": {"name": "cron", "namespace": "golden", "uid": "u"},
            "spec": {"schedule": "* * * * *", "template": template}}))
        .unwrap()
    }

    /// Checked against the recorded BroadcastJob of the recorded AdvancedCronJob.
    #[test]
    fn e39_the_name_follows_from_the_slot_and_the_annotation_is_in_utc() {
        let slot = "2026-11-21T09:50:00Z".parse().unwrap();
        let template = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d", "apps.kruise.io/scheduled-at": "x"},
            "name": "other", "finalizers": ["f"]}, "spec": {"parallelism": 2, "newer": true}});
        let (kind, job) = job(&cron(json!({"broadcastJobTemplate": template})), CronRun::Slot(slot)).unwrap();
        assert_eq!(kind, JobKind::BroadcastJob);
        let owner = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob", "name": "cron", "uid": "u",
            "controller": true, "blockOwnerDeletion": true});
        assert_eq!(
            job,
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "metadata": {
                "name": "cron-1795254600", "namespace": "golden", "labels": {"a": "b"},
                "annotations": {"c": "d", "apps.kruise.io/scheduled-at": "2026-11-21T09:50:00Z"},
                "ownerReferences": [owner]}, "spec": {"parallelism": 2, "newer": true}})
        );
    }

    #[test]
    fn a_manual_run_has_no_slot() {
        let (kind, job) = job(&cron(json!({"jobTemplate": {"spec": {"a": 1}}})), CronRun::Manual).unwrap();
        assert_eq!((kind.api_version(), kind.plural()), ("batch/v1".into(), "jobs"));
        assert_eq!(job["metadata"]["generateName"], "cron-");
        assert_eq!(job["metadata"]["annotations"], json!({"cronjob.kubernetes.io/instantiate": "manual"}));
        assert_eq!(job["metadata"]["name"], Value::Null);
    }

    #[test]
    fn a_template_of_a_wrong_shape_makes_a_job_that_the_api_server_refuses() {
        let bad = json!({"jobTemplate": {"metadata": [1], "spec": "x"}});
        let (_, made) = job(&cron(bad), CronRun::Manual).unwrap();
        assert_eq!((&made["spec"], &made["metadata"]["labels"]), (&json!({}), &Value::Null));
        assert_eq!(job(&cron(json!({})), CronRun::Manual), None);
    }
}
