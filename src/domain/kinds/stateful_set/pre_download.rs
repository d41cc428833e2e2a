//! What decides whether a StatefulSet pulls new images before Pods are updated to them. The rules are those of
//! [`workload::pre_download`](crate::domain::workload::pre_download).

use std::collections::BTreeMap;

use serde_json::Value;

use super::spec::{Spec, Update};
use crate::{
    api::apps::strategies::PodUpdatePolicy,
    domain::{
        pod::inplace::{self, Allowed},
        workload::{
            owner::OwnerRef,
            pre_download::{ObservedUpdate, Rollout},
        },
    },
};

/// How the spec says that Pods are updated.
fn rollout(spec: &Spec) -> Rollout {
    match &spec.update {
        Update::OnDelete => Rollout::Anew("updateStrategy.type is \"OnDelete\"".into()),
        Update::Rolling(rolling) if rolling.policy == PodUpdatePolicy::ReCreate => {
            Rollout::Anew("updateStrategy.rollingUpdate.podUpdatePolicy is \"ReCreate\"".into())
        }
        Update::Rolling(rolling) => {
            Rollout::InPlace { kept_old: rolling.partition, max_unavailable: rolling.max_unavailable }
        }
    }
}

/// What the decision rests on. `update` is the ControllerRevision that Pods are updated to, `from` the template that they
/// come from, `updated_ready` how many Pods are ready on that revision.
pub fn observed<'a>(
    spec: &'a Spec,
    owner: &'a OwnerRef,
    annotations: Option<&'a BTreeMap<String, String>>,
    (from, update): (&'a Value, &'a Value),
    updated_ready: i32,
    allowed: Allowed,
) -> ObservedUpdate<'a> {
    ObservedUpdate {
        owner,
        annotations,
        selector: &spec.selector,
        replicas: spec.replicas,
        updated_ready,
        rollout: rollout(spec),
        update,
        from,
        in_place: inplace::spec_between(from, &spec.template, "", allowed).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::tests::fixtures::spec, *};

    #[test]
    fn edge_17_every_spec_has_a_rollout() {
        let in_place = |kept_old, max_unavailable| Rollout::InPlace { kept_old, max_unavailable };
        let of = |fields| rollout(&spec(fields));
        assert!(matches!(of(json!({})), Rollout::Anew(why) if why.contains("ReCreate")));
        assert!(matches!(of(json!({"onDelete": true})), Rollout::Anew(why) if why.contains("OnDelete")));
        assert_eq!(of(json!({"policy": "InPlaceOnly"})), in_place(0, 1));
        let fields = json!({"replicas": 6, "policy": "InPlaceIfPossible", "partition": 2, "maxUnavailable": "99%"});
        assert_eq!(of(fields), in_place(2, 5), "rounded down, as the update itself does");
    }

    #[test]
    fn a_change_that_needs_other_pods_is_not_in_place() {
        let template = |image: &str, node: &str| json!({"spec": {"containers": [{"name": "main", "image": image}], "nodeName": node}});
        let spec = Spec { template: template("i:2", "n"), ..spec(json!({"policy": "InPlaceIfPossible"})) };
        let owner = OwnerRef::default();
        let in_place = |from: Value| observed(&spec, &owner, None, (&from, &json!({})), 0, Allowed::default()).in_place;
        assert_eq!(in_place(template("i:1", "n")), Ok(()));
        assert!(in_place(template("i:1", "other")).unwrap_err().to_string().contains("nodeName"));
        assert!(in_place(Value::Null).is_err(), "an older revision that is gone");
    }
}
