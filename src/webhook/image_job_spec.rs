//! The defaults of the spec of an ImagePullJob or ImageListPullJob: of a job itself, and of the template of an AdvancedCronJob.
//!
//! Pure. The rules are [`crate::domain::kinds::image_jobs::rules`].

use serde_json::{Value, json};

use crate::{
    api::apps::image_pull_job::{DEFAULT_BACKOFF_LIMIT, DEFAULT_TIMEOUT_SECONDS, PULL_IF_NOT_PRESENT},
    webhook::validate::{Object, drop_empty, set_default},
};

/// Writes what is missing from an ImagePullJob, or from the list in an AdvancedCronJob.
pub fn set_defaults(spec: &mut Object) {
    set_defaults_of_list(spec);
    set_default(spec, "imagePullPolicy", json!(PULL_IF_NOT_PRESENT));
}

/// Writes what is missing from an ImageListPullJob. As in OpenKruise `imagePullPolicy` stays empty: the hash of a list, its label,
/// is of the spec as stored. The jobs that are made from it get the default.
pub fn set_defaults_of_list(spec: &mut Object) {
    set_default(spec, "pullPolicy", json!({}));
    if let Some(policy) = spec.get_mut("pullPolicy").and_then(Value::as_object_mut) {
        set_default(policy, "timeoutSeconds", json!(DEFAULT_TIMEOUT_SECONDS));
        set_default(policy, "backoffLimit", json!(DEFAULT_BACKOFF_LIMIT));
    }
    set_default(spec, "completionPolicy", json!({}));
    if let Some(policy) = spec.get_mut("completionPolicy").and_then(Value::as_object_mut) {
        drop_empty(policy, "type");
        set_default(policy, "type", json!("Always"));
    }
    drop_empty(spec, "imagePullPolicy");
}
