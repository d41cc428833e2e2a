//! What decides whether a CloneSet pulls new images before Pods are updated to them. The rules are those of
//! [`workload::pre_download`](crate::domain::workload::pre_download).

use serde_json::Value;

use crate::{
    api::apps::clone_set::CloneSet,
    domain::{
        pod::inplace::NotInPlace,
        workload::{
            owner::OwnerRef,
            pre_download::{ObservedUpdate, Rollout},
            rollout::{self, Invalid},
        },
    },
    k8s::int_or_percent::IntOrPercent,
};

/// How the spec says that Pods are updated.
fn rollout(clone_set: &CloneSet) -> Result<Rollout, Invalid> {
    let strategy = &clone_set.spec.update_strategy;
    if !strategy.update_type().is_in_place() {
        return Ok(Rollout::Anew(format!("updateStrategy.type is {:?}", strategy.type_)));
    }
    let replicas = clone_set.spec.replicas.unwrap_or(1);
    let number = |field: &str, value, default| rollout::number(&format!("updateStrategy.{field}"), value, default);
    let partition = number("partition", strategy.partition.as_ref(), IntOrPercent::Int(0))?;
    let limit = number("maxUnavailable", strategy.max_unavailable.as_ref(), rollout::DEFAULT_MAX_UNAVAILABLE)?;
    let surge = number("maxSurge", strategy.max_surge.as_ref(), IntOrPercent::Int(0))?;
    let (max_unavailable, _) = rollout::limits(limit, surge, replicas, false);
    Ok(Rollout::InPlace { kept_old: rollout::kept_old(partition, replicas), max_unavailable })
}

/// What the decision rests on. `update` is the ControllerRevision that Pods are updated to, `from` the template that they
/// come from, `updated_ready` how many Pods are ready on that revision, `in_place` whether it can be reached without another
/// Pod.
///
/// # Errors
/// A number in the spec that cannot be read.
pub fn observed<'a>(
    clone_set: &'a CloneSet,
    owner: &'a OwnerRef,
    (from, update): (&'a Value, &'a Value),
    updated_ready: i32,
    in_place: Result<(), NotInPlace>,
) -> Result<ObservedUpdate<'a>, Invalid> {
    Ok(ObservedUpdate {
        owner,
        annotations: clone_set.metadata.annotations.as_ref(),
        selector: &clone_set.spec.selector,
        replicas: clone_set.spec.replicas.unwrap_or(1),
        updated_ready,
        rollout: rollout(clone_set)?,
        update,
        from,
        in_place,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn clone_set(spec: Value) -> CloneSet {
        let mut object = json!({"metadata": {"name": "web", "namespace": "a", "uid": "u1"},
            "spec": {"replicas": 6, "selector": {}, "template": {}, "updateStrategy": {"type": "InPlaceIfPossible"}}});
        json_patch::merge(&mut object["spec"], &spec);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_rollout_is_that_of_the_spec_with_its_defaults_and_rounding() {
        let of = |strategy: Value| rollout(&clone_set(json!({ "updateStrategy": strategy }))).unwrap();
        let in_place = |kept_old, max_unavailable| Rollout::InPlace { kept_old, max_unavailable };
        assert_eq!(of(json!({})), in_place(0, 2));
        // Rounded up, as the update itself does.
        assert_eq!(of(json!({"maxUnavailable": "99%"})), in_place(0, 6));
        assert_eq!(of(json!({"maxUnavailable": "99%", "maxSurge": 1})), in_place(0, 5));
        assert_eq!(of(json!({"type": "InPlaceOnly", "partition": "50%", "maxUnavailable": 9})), in_place(3, 9));
        // Shortfall 2 of CloneSets: OpenKruise does not exclude it.
        for type_ in ["ReCreate", "OnDelete", ""] {
            assert_eq!(of(json!({"type": type_})), Rollout::Anew(format!("updateStrategy.type is {type_:?}")));
        }
        let wrong = rollout(&clone_set(json!({"updateStrategy": {"partition": "x"}}))).unwrap_err();
        assert!(wrong.0.contains("partition"), "{wrong}");
    }

    #[test]
    fn replicas_are_one_if_nothing_is_said() {
        let owner = OwnerRef::default();
        for (replicas, want) in [(json!(6), 6), (json!(null), 1)] {
            let set = clone_set(json!({ "replicas": replicas }));
            let observed = observed(&set, &owner, (&Value::Null, &Value::Null), 0, Ok(())).unwrap();
            assert_eq!(observed.replicas, want);
        }
    }
}
