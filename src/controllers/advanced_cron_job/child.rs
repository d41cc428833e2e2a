//! The jobs of AdvancedCronJobs: of every Job, BroadcastJob and ImageListPullJob no more is kept than the rules need, and of
//! those of others next to nothing.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Api,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    api::apps,
    controllers::{Context, owned_text},
    domain::kinds::cron_job::{
        plan::{CronChild, JobEnd},
        spec::JobKind,
    },
    k8s::owner,
    runtime::watches::{ObjectKey, StoreIndex},
};

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Child {
    /// Name, namespace, UID, resourceVersion and the reference to its AdvancedCronJob.
    metadata: ObjectMeta,
    is_deleting: bool,
    created: Option<Timestamp>,
    slot: Option<Timestamp>,
    begun: Option<Timestamp>,
    succeeded: Option<bool>,
    ended: Option<Timestamp>,
    /// An ImageListPullJob ends without a condition that says how.
    counts: Option<(i64, i64)>,
}

/// Jobs by their AdvancedCronJob.
pub(super) const BY_CRON: StoreIndex<Child> = StoreIndex::new("AdvancedCronJob", |child| {
    child.cron_uid().map(|uid| owned_text(child.namespace().unwrap_or_default(), uid))
});

/// Whether an AdvancedCronJob controls it, in whatever version.
fn is_ours(owner: &OwnerReference) -> bool {
    owner::controls(owner, (apps::GROUP, "AdvancedCronJob"))
}

impl Child {
    fn owner(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().flatten().next()
    }

    /// Whether nobody here has to do with it.
    pub(super) fn is_of_others(&self) -> bool {
        self.owner().is_none()
    }

    /// Whether somebody deleted it.
    pub(super) fn is_deleting(&self) -> bool {
        self.is_deleting
    }

    /// What its annotation says: the time for which it was made.
    pub(super) fn slot(&self) -> Option<Timestamp> {
        self.slot
    }

    /// Its namespace.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.metadata.namespace.as_deref()
    }

    /// The UID of its AdvancedCronJob.
    pub(super) fn cron_uid(&self) -> Option<&str> {
        self.owner().map(|owner| owner.uid.as_str())
    }

    /// Its AdvancedCronJob.
    pub(super) fn cron_key(&self) -> Option<ObjectKey> {
        Some(ObjectKey::new(self.metadata.namespace.as_deref().unwrap_or_default(), &self.owner()?.name))
    }

    /// As the rules see it.
    pub(super) fn view(&self, kind: JobKind) -> CronChild {
        let succeeded = match kind {
            JobKind::ImageListPullJob => self.ended.and(self.counts).map(|(desired, succeeded)| desired == succeeded),
            JobKind::Job | JobKind::BroadcastJob => self.succeeded,
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        CronChild {
            kind,
            name: text(&self.metadata.name),
            uid: text(&self.metadata.uid),
            version: text(&self.metadata.resource_version),
            created: self.created,
            slot: self.slot,
            begun: self.begun,
            end: succeeded.map(|succeeded| JobEnd { succeeded, at: self.ended }),
            is_deleting: self.is_deleting,
        }
    }
}

/// What is decoded. Whatever cannot be read counts as missing: one odd object must not end the watch of all.
impl<'de> Deserialize<'de> for Child {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            #[serde(default)]
            creation_timestamp: Value,
            deletion_timestamp: Option<String>,
            #[serde(default)]
            annotations: Option<Annotations>,
            #[serde(default)]
            owner_references: Option<Vec<OwnerReference>>,
        }
        #[derive(Deserialize)]
        struct Annotations {
            #[serde(default, rename = "apps.kruise.io/scheduled-at")]
            scheduled_at: Option<String>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            start_time: Value,
            completion_time: Value,
            conditions: Value,
            desired: Value,
            succeeded: Value,
        }
        let Wire { metadata, status } = Wire::deserialize(deserializer)?;
        let status = status.unwrap_or_default();
        let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let conditions = status.conditions.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_true = |type_: &str| {
            conditions.iter().find(|condition| condition["type"] == type_ && condition["status"] == "True")
        };
        let (complete, failed) = (is_true("Complete"), is_true("Failed"));
        let end = complete.or(failed);
        let slot = metadata.annotations.and_then(|annotations| annotations.scheduled_at);
        Ok(Self {
            is_deleting: metadata.deletion_timestamp.is_some(),
            created: time(&metadata.creation_timestamp),
            slot: slot.and_then(|text| text.parse().ok()),
            begun: time(&status.start_time),
            succeeded: end.map(|_| complete.is_some()),
            ended: time(&status.completion_time).or_else(|| time(&end?["lastTransitionTime"])),
            counts: status.desired.as_i64().map(|desired| (desired, status.succeeded.as_i64().unwrap_or_default())),
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                owner_references: metadata
                    .owner_references
                    .and_then(|owners| owners.into_iter().find(is_ours))
                    .map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
        })
    }
}

impl kube::Resource for Child {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;
    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }
    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }
    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }
    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A kind as the API server knows it.
pub(super) fn resource(kind: JobKind) -> ApiResource {
    ApiResource {
        group: kind.group().into(),
        version: kind.version().into(),
        api_version: kind.api_version(),
        kind: kind.kind().into(),
        plural: kind.plural().into(),
    }
}

/// The API of a kind, as far as this process looks.
pub(super) fn api_of(context: &Context, kind: JobKind) -> Api<Child> {
    match &context.only_namespace {
        Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource(kind)),
        None => Api::all_with(context.client.clone(), &resource(kind)),
    }
}

/// The API of a kind in a namespace.
pub(super) fn api_in(context: &Context, kind: JobKind, namespace: &str) -> Api<Child> {
    Api::namespaced_with(context.client.clone(), namespace, &resource(kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::labels;

    fn view(kind: JobKind, object: Value) -> CronChild {
        let mut whole = json!({"metadata": {"name": "cron-1", "namespace": "ns", "uid": "c", "resourceVersion": "4"}});
        json_patch::merge(&mut whole, &object);
        serde_json::from_value::<Child>(whole).unwrap().view(kind)
    }

    fn with(conditions: Value) -> Value {
        json!({"status": {"conditions": conditions}})
    }

    #[test]
    fn c5_1_how_a_job_has_ended() {
        let end = |kind, object| view(kind, object).end;
        let at = Some("2026-01-01T00:00:05Z".parse().unwrap());
        let condition = |type_: &str, status: &str| json!([{"type": "Other", "status": "True"}, {"type": type_, "status": status, "lastTransitionTime": "2026-01-01T00:00:05Z"}]);
        for kind in [JobKind::Job, JobKind::BroadcastJob] {
            assert_eq!(end(kind, with(condition("Complete", "True"))), Some(JobEnd { succeeded: true, at }));
            assert_eq!(end(kind, with(condition("Failed", "True"))), Some(JobEnd { succeeded: false, at }));
            assert_eq!(end(kind, with(condition("Failed", "False"))), None);
            assert_eq!(end(kind, json!({"status": {"completionTime": "2026-01-01T00:00:05Z"}})), None);
            assert_eq!(end(kind, json!({})), None);
        }
        let list = |succeeded: i64, end: Value| json!({"status": {"desired": 2, "succeeded": succeeded, "completionTime": end}});
        let of_list = |succeeded, time| end(JobKind::ImageListPullJob, list(succeeded, time));
        assert_eq!(of_list(2, Value::Null), None);
        assert_eq!(of_list(2, "2026-01-01T00:00:05Z".into()), Some(JobEnd { succeeded: true, at }));
        assert_eq!(of_list(1, "2026-01-01T00:00:05Z".into()), Some(JobEnd { succeeded: false, at }));
    }

    #[test]
    fn f47_owners_are_matched_by_group_kind_and_uid_in_any_version() {
        let owned = |owner: Value| {
            let object = json!({"metadata": {"name": "j", "namespace": "ns", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}, owner]}});
            serde_json::from_value::<Child>(object).unwrap()
        };
        let owner = |version: &str, kind: &str, controls: bool| json!({"apiVersion": version, "kind": kind, "name": "cron", "uid": "u", "controller": controls});
        for version in ["apps.kruise.io/v1alpha1", "apps.kruise.io/v1beta1", "apps.kruise.io/v1"] {
            let child = owned(owner(version, "AdvancedCronJob", true));
            assert_eq!(child.cron_key(), Some(ObjectKey::new("ns", "cron")));
            assert_eq!(child.owner().map(|owner| owner.uid.as_str()), Some("u"));
        }
        for other in [
            owner("apps.kruise.io/v1beta1", "AdvancedCronJob", false),
            owner("batch/v1", "CronJob", true),
            owner("example.com/v1", "AdvancedCronJob", true),
        ] {
            assert!(owned(other).is_of_others());
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_missing() {
        let odd = json!({"metadata": {"annotations": {"apps.kruise.io/scheduled-at": "soon", "a": "b"}},
            "status": {"startTime": 5, "conditions": {"a": 1}, "desired": "2", "completionTime": "later"}});
        for kind in JobKind::ALL {
            let CronChild { slot, created, begun, end, .. } = view(kind, odd.clone());
            assert_eq!((slot, created, begun, end), (None, None, None, None));
        }
        let slot = json!({"metadata": {"creationTimestamp": "2026-11-21T09:50:01Z",
            "annotations": {"apps.kruise.io/scheduled-at": "2026-11-21T17:50:00+08:00"}}});
        let CronChild { slot, created, .. } = view(JobKind::Job, slot);
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        assert_eq!((slot, created), (at("2026-11-21T09:50:00Z"), at("2026-11-21T09:50:01Z")));
        assert_eq!(labels::SCHEDULED_AT, "apps.kruise.io/scheduled-at");
    }
}
