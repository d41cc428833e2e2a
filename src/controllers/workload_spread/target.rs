//! The target of a WorkloadSpread: its UID, how many Pods it wants, and the version of which it makes them.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{Controller, SpreadMemory};
use crate::{
    api::labels,
    domain::kinds::workload_spread::{
        jobs,
        matching::Above,
        plan::Newest,
        replicas,
        spec::{SpreadSpec, TargetKind},
        status::SpreadHindrance,
    },
    k8s::{
        invalid::Invalid,
        selector::{self, Selector},
        time::Now,
    },
    runtime::{
        kruise_configuration as configuration,
        object::{self, Found},
        pass::Pass,
        replicas::Kind,
        watches::ObjectKey,
    },
};

/// Between two looks at a target whose numbers are not watched.
const AFTER_UNWATCHED: Duration = Duration::from_secs(30);
/// How long what was read of a target holds while nothing is heard of it.
const READ_LASTS: Duration = Duration::from_secs(60);
/// How long a newest version that was read holds.
const NEWEST_LASTS: Duration = Duration::from_secs(1);

/// A target, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SpreadTargetView {
    pub(super) uid: String,
    pub(super) total: i32,
    /// What controls it.
    pub(super) above: Option<Above>,
    /// The selector of a Deployment: it controls no ReplicaSet with other Pods.
    pub(super) selector: Option<Selector>,
    /// Whether it is a Job that does not count an evicted Pod as failed.
    pub(super) ignores_disruptions: bool,
}

impl SpreadMemory {
    /// The target has changed.
    pub(super) fn forget_target(&mut self) {
        self.target = None;
        self.target_forgotten += 1;
    }
}

impl Controller {
    /// The target.
    ///
    /// # Errors
    /// Those of the API server, but 403 and 404.
    pub(super) async fn target(
        &self,
        key: &ObjectKey,
        spec: &SpreadSpec,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<Result<SpreadTargetView, SpreadHindrance>> {
        let kind = Kind::of(&spec.group, &spec.kind).filter(|_| spec.replicas_paths.is_empty());
        let is_followed = kind.is_some_and(|kind| self.replicas.knows(kind));
        pass.look_after((!is_followed).then_some(AFTER_UNWATCHED));
        let known = self.memories.with(key, |memory| (memory.target.clone(), memory.target_forgotten));
        let (known, forgotten) = known.unwrap_or_default();
        if let Some((_, target)) = known.filter(|(read, _)| is_followed && now.mono.saturating_sub(*read) < READ_LASTS)
        {
            return Ok(Ok(target));
        }
        let read = self.read_target(key, spec).await?;
        let target = read.as_ref().ok().map(|target| (now.mono, target.clone()));
        self.memories.with(key, |memory| {
            if memory.target_forgotten == forgotten {
                memory.target = target;
            }
        });
        Ok(read)
    }

    async fn read_target(
        &self,
        key: &ObjectKey,
        spec: &SpreadSpec,
    ) -> kube::Result<Result<SpreadTargetView, SpreadHindrance>> {
        let client = &self.context.client;
        let mut configured = None;
        if spec.target_kind == TargetKind::Custom {
            let own = &self.context.namespace;
            let whitelist = match configuration::text(client, own, configuration::SPREAD_TARGETS).await {
                Ok(whitelist) => whitelist.unwrap_or_default(),
                Err(kube::Error::SerdeError(why)) => return Ok(Err(SpreadHindrance::Unreadable(why.to_string()))),
                Err(error) => return Err(error),
            };
            if !configuration::names_kind(&whitelist, &spec.group, &spec.kind) {
                let why = format!(
                    "spec.targetRef.kind: {:?} is not allowed; want a kind that {} in the ConfigMap kruise-configuration names",
                    spec.kind,
                    configuration::SPREAD_TARGETS
                );
                return Ok(Err(SpreadHindrance::Invalid(why)));
            }
            configured = configuration::replicas_path(&whitelist, &spec.group, &spec.kind);
        }
        let read = object::read(client, &key.namespace, spec.target_ref().names()).await?;
        if let Some(why) = read.refusal("Kruise's manager", labels::AGGREGATE_TO_MANAGER) {
            return Ok(Err(SpreadHindrance::Unreadable(format!("spec.targetRef: {why}"))));
        }
        let target = match read {
            Found::Object(target) => target,
            Found::Missing | Found::Forbidden(..) => return Ok(Err(SpreadHindrance::Missing)),
            Found::Impossible => {
                let why = format!("spec.targetRef: {} {:?} cannot exist", spec.kind, spec.target);
                return Ok(Err(SpreadHindrance::Invalid(why)));
            }
        };
        let text = |pointer: &str| target.pointer(pointer).and_then(Value::as_str);
        if text("/metadata/deletionTimestamp").is_some() {
            return Ok(Err(SpreadHindrance::Going));
        }
        let total = match replicas::total(spec, &target, configured.as_deref()) {
            Ok(total) => total,
            Err(Invalid(why)) => return Ok(Err(SpreadHindrance::Unreadable(why))),
        };
        Ok(Ok(SpreadTargetView {
            uid: text("/metadata/uid").unwrap_or_default().to_owned(),
            total,
            above: Above::of(&target),
            selector: selector_of(&target).and_then(|selector| Selector::of(&selector).ok()),
            ignores_disruptions: spec.target_kind == TargetKind::Job && jobs::ignores_disruptions(&target),
        }))
    }

    /// The version that new Pods have. A Deployment and its ReplicaSets are read only while it has several versions.
    pub(super) async fn newest(
        &self,
        key: &ObjectKey,
        spec: &SpreadSpec,
        versions: &BTreeSet<String>,
        (now, pass): (Now, &mut Pass),
    ) -> Newest {
        if spec.target_kind != TargetKind::Deployment || versions.len() < 2 {
            return Newest::Only;
        }
        let known = self.memories.with(key, |memory| memory.newest.clone()).flatten();
        let known = known.filter(|(read, _)| now.mono.saturating_sub(*read) < NEWEST_LASTS);
        let newest = match known {
            Some((_, newest)) => newest,
            None => {
                let read = self.read_newest(key, spec).await;
                let newest = read.unwrap_or_else(|error| {
                    tracing::debug!(spread = %key, %error, "the newest ReplicaSet is not known");
                    None
                });
                self.memories.with(key, |memory| memory.newest = Some((now.mono, newest.clone())));
                newest
            }
        };
        if newest.is_none() {
            pass.look_after(Some(NEWEST_LASTS));
        }
        newest.map_or(Newest::Unknown, Newest::Version)
    }

    async fn read_newest(&self, key: &ObjectKey, spec: &SpreadSpec) -> kube::Result<Option<String>> {
        let client = &self.context.client;
        let read = object::read(client, &key.namespace, spec.target_ref().names()).await?;
        let Found::Object(deployment) = read else { return Ok(None) };
        let Some(selector) = selector_of(&deployment) else { return Ok(None) };
        let sets = object::replica_sets(client, &key.namespace, &selector::text_of(&selector)).await?;
        Ok(replicas::newest(&deployment, &sets))
    }
}

/// `spec.selector` of a workload, where it has the usual form.
fn selector_of(workload: &Value) -> Option<LabelSelector> {
    serde_json::from_value(workload.pointer("/spec/selector")?.clone()).ok()
}
