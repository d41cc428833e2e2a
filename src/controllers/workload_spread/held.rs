//! A WorkloadSpread as the store holds it: as text, and beside that what says which Pods it is for. That is asked at every
//! event of a Pod, of many of them at a time.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    api::apps::workload_spread::{SpreadFilter, WorkloadSpread, WorkloadSpreadSpec},
    runtime::packed::Packed,
};

/// A WorkloadSpread.
#[derive(Clone, Debug)]
pub(super) struct HeldSpread {
    packed: Packed<WorkloadSpread>,
    outline: Arc<WorkloadSpread>,
}

impl HeldSpread {
    fn of(spread: WorkloadSpread) -> serde_json::Result<Self> {
        let outline = Arc::new(outline_of(&spread));
        Ok(Self { packed: Packed::of(spread)?, outline })
    }

    /// The whole of it.
    ///
    /// # Errors
    /// See [`Packed::open`].
    pub(super) fn open(&self) -> kube::Result<WorkloadSpread> {
        self.packed.open()
    }

    /// The same with no more than its name, its age, its target and the selector of its filter.
    pub(super) fn outline(&self) -> &Arc<WorkloadSpread> {
        &self.outline
    }
}

fn outline_of(spread: &WorkloadSpread) -> WorkloadSpread {
    let WorkloadSpread { metadata, spec, .. } = spread;
    let selector_of = |filter: &SpreadFilter| SpreadFilter { selector: filter.selector.clone(), ..Default::default() };
    WorkloadSpread {
        metadata: ObjectMeta {
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            creation_timestamp: metadata.creation_timestamp.clone(),
            deletion_timestamp: metadata.deletion_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: WorkloadSpreadSpec {
            target_ref: spec.target_ref.clone(),
            target_filter: spec.target_filter.as_ref().map(selector_of),
            ..WorkloadSpreadSpec::default()
        },
        status: None,
    }
}

impl<'de> Deserialize<'de> for HeldSpread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(WorkloadSpread::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Resource for HeldSpread {
    type DynamicType = ();
    type Scope = <WorkloadSpread as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        WorkloadSpread::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        WorkloadSpread::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        WorkloadSpread::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        WorkloadSpread::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        self.packed.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.packed.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::kinds::workload_spread::{matching, spec::named_target};

    #[test]
    fn the_outline_says_which_pods_it_is_for_and_holds_nothing_else() {
        let object = json!({"metadata": {"name": "ws", "namespace": "ns", "uid": "u", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"a": "b"}},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "targetFilter": {"selector": {"matchLabels": {"app": "web"}}, "replicasPathList": ["spec.replicas"]},
                "subsets": [{"name": "a", "patch": {"metadata": {"labels": {"zone": "a"}}}}]},
            "status": {"observedGeneration": 2}});
        let held: HeldSpread = serde_json::from_value(object.clone()).unwrap();
        let whole: WorkloadSpread = serde_json::from_value(object).unwrap();
        assert_eq!(held.open().unwrap(), whole);
        assert_eq!(held.meta(), &whole.metadata);
        let outline = held.outline();
        assert_eq!(named_target(outline).unwrap(), named_target(&whole).unwrap());
        assert!(matching::overlap(outline, &whole));
        let mut younger = whole.clone();
        younger.metadata.name = Some("younger".into());
        assert!(matching::stands_before(outline, &younger) && !matching::stands_before(&younger, outline));
        assert_eq!((outline.spec.subsets.len(), &outline.status, &outline.metadata.annotations), (0, &None, &None));
    }
}
