//! What `cronjob trigger` makes.

use serde_json::Value;

use super::exit::{Exit, Stop};
use crate::{
    api::apps::advanced_cron_job::AdvancedCronJob,
    domain::kinds::cron_job::{
        make::{self, CronRun},
        spec::JobKind,
    },
};

/// The job of an AdvancedCronJob outside its schedule, and its kind. Also of a paused one: somebody asks for it.
///
/// # Errors
/// It is being deleted, or has no template.
pub fn triggered(cron: &AdvancedCronJob) -> Result<(JobKind, Value), Stop> {
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    let failed = |why: &str| Stop::new(Exit::Failed, format!("AdvancedCronJob {name}: {why}"));
    if cron.is_deleting() {
        return Err(failed("it is being deleted, and its jobs with it"));
    }
    make::job(cron, CronRun::Manual).ok_or_else(|| failed("spec.template is empty: there is nothing to make"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cron(metadata: Value, template: Value) -> AdvancedCronJob {
        let mut whole = json!({"name": "cron", "namespace": "ns", "uid": "u"});
        json_patch::merge(&mut whole, &metadata);
        serde_json::from_value(
            json!({"metadata": whole, "spec": {"schedule": "@daily", "paused": true, "template": template}}),
        )
        .unwrap()
    }

    #[test]
    fn a_job_is_made_of_what_has_a_template_and_stays() {
        let template = json!({"jobTemplate": {"spec": {"x": 1}}});
        let (kind, job) = triggered(&cron(json!({}), template.clone())).unwrap();
        assert_eq!((kind, &job["spec"]), (JobKind::Job, &json!({"x": 1})));
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "u");
        let going = triggered(&cron(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), template)).unwrap_err();
        assert!(going.message.contains("it is being deleted"), "{}", going.message);
        assert!(triggered(&cron(json!({}), json!({}))).unwrap_err().message.contains("spec.template is empty"));
    }
}
