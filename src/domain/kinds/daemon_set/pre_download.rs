//! What decides whether a DaemonSet pulls new images before Pods are updated to them. The rules are those of
//! [`workload::pre_download`](crate::domain::workload::pre_download).

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{pod::Pod, spec::Spec};
use crate::{
    domain::workload::{
        owner::OwnerRef,
        pre_download::{ObservedUpdate, Rollout},
        revisions::KnownRevision,
    },
    k8s::revision,
};

/// The revision that Pods come from: the newest one of those that they are on, but for the update revision. None: every Pod
/// is where it is to be, or there are none yet, as on the first installation.
pub fn from<'a>(pods: &[Arc<Pod>], revisions: &'a [KnownRevision]) -> Option<&'a KnownRevision> {
    let is_left = |known: &&KnownRevision| {
        pods.iter().any(|pod| pod.is_live() && !pod.is_new && revision::is_same(&pod.hash, &known.name))
    };
    revisions.iter().rev().find(is_left)
}

/// How the spec says that Pods are updated, on so many nodes.
fn rollout(spec: &Spec, nodes: usize) -> Rollout {
    let numbers = spec.numbers(nodes);
    if !spec.is_rolling {
        return Rollout::Anew("updateStrategy.type is \"OnDelete\"".into());
    }
    Rollout::Either { kept_old: numbers.partition, max_unavailable: numbers.max_unavailable.max(numbers.max_surge) }
}

/// What the decision rests on, for so many nodes that are to have a Pod. `update` is the ControllerRevision that Pods are
/// updated to, `from` the template that they come from, `updated_ready` how many Pods are ready on that revision.
pub fn observed<'a>(
    spec: &'a Spec,
    owner: &'a OwnerRef,
    annotations: Option<&'a BTreeMap<String, String>>,
    (from, update): (&'a Value, &'a Value),
    (nodes, updated_ready): (usize, i32),
) -> ObservedUpdate<'a> {
    ObservedUpdate {
        owner,
        annotations,
        selector: &spec.selector,
        replicas: i32::try_from(nodes).unwrap_or(i32::MAX),
        updated_ready,
        rollout: rollout(spec, nodes),
        update,
        from,
        in_place: Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::tests::fixtures::*, *};

    #[test]
    fn shortfall_10_2_26_every_spec_has_a_rollout() {
        let of = |fields| rollout(&spec(fields), 10);
        assert!(matches!(of(json!({"onDelete": true})), Rollout::Anew(why) if why.contains("OnDelete")));
        assert_eq!(of(json!({})), Rollout::Either { kept_old: 0, max_unavailable: 1 });
        let fields = json!({"partition": "50%", "maxSurge": "30%"});
        assert_eq!(of(fields), Rollout::Either { kept_old: 5, max_unavailable: 3 });
    }

    #[test]
    fn shortfall_10_2_27_a_first_installation_comes_from_no_revision() {
        let named = |pods: &[Pod]| from(&sorted(pods), &revisions()).map(|known| known.name.clone());
        assert_eq!(named(&[]), None);
        assert_eq!(named(&[pod("a"), terminating(old("b"))]), None);
        assert_eq!(named(&[pod("a"), old("b")]).as_deref(), Some("agent-old"));
    }
}
