//! What decides whether a CloneSet pulls new images before Pods are updated to them. The rules are those of
//! [`workload::pre_download`](crate::domain::workload::pre_download).

use std::collections::BTreeMap;

use serde_json::Value;

use super::spec::{Invalid, Spec};
use crate::domain::{
    pod::inplace::NotInPlace,
    workload::{
        owner::OwnerRef,
        pre_download::{ObservedUpdate, Rollout},
    },
};

/// How the spec says that Pods are updated.
fn rollout(spec: &Spec) -> Result<Rollout, Invalid> {
    if !spec.update_type.is_in_place() {
        return Ok(Rollout::Anew(format!("updateStrategy.type is {:?}", spec.update_type.as_str())));
    }
    let kept_old = spec.kept_old.clone()?;
    // What will hold when a paused update goes on: images are pulled for that meanwhile.
    let (max_unavailable, _) = spec.limits(false)?;
    Ok(Rollout::InPlace { kept_old, max_unavailable })
}

/// What the decision rests on. `annotations` are those of the CloneSet, `update` is the ControllerRevision that Pods are
/// updated to, `from` the template that they come from, `updated_ready` how many Pods are ready on that revision, `in_place`
/// whether it can be reached without another Pod.
///
/// # Errors
/// A number in the spec that cannot be read.
pub fn observed<'a>(
    spec: &'a Spec,
    owner: &'a OwnerRef,
    annotations: Option<&'a BTreeMap<String, String>>,
    (from, update): (&'a Value, &'a Value),
    updated_ready: i32,
    in_place: Result<(), NotInPlace>,
) -> Result<ObservedUpdate<'a>, Invalid> {
    Ok(ObservedUpdate {
        owner,
        annotations,
        selector: &spec.selector,
        replicas: spec.replicas,
        updated_ready,
        rollout: rollout(spec)?,
        update,
        from,
        in_place,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec_of(spec: Value) -> Spec {
        let mut object = json!({"metadata": {"name": "web", "namespace": "a", "uid": "u1"},
            "spec": {"replicas": 6, "selector": {}, "template": {}, "updateStrategy": {"type": "InPlaceIfPossible"}}});
        json_patch::merge(&mut object["spec"], &spec);
        Spec::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_rollout_is_that_of_the_spec_with_its_defaults_and_rounding() {
        let of = |strategy: Value| rollout(&spec_of(json!({ "updateStrategy": strategy }))).unwrap();
        let in_place = |kept_old, max_unavailable| Rollout::InPlace { kept_old, max_unavailable };
        assert_eq!(of(json!({})), in_place(0, 2));
        // Rounded up, as the update itself does.
        assert_eq!(of(json!({"maxUnavailable": "99%"})), in_place(0, 6));
        assert_eq!(of(json!({"maxUnavailable": "99%", "maxSurge": 1})), in_place(0, 5));
        assert_eq!(of(json!({"maxUnavailable": "99%", "maxSurge": 1, "paused": true})), in_place(0, 5));
        assert_eq!(of(json!({"type": "InPlaceOnly", "partition": "50%", "maxUnavailable": 9})), in_place(3, 9));
        // Shortfall 2 of CloneSets: OpenKruise does not exclude it.
        for (type_, named) in [("ReCreate", "ReCreate"), ("OnDelete", "OnDelete"), ("", "ReCreate")] {
            assert_eq!(of(json!({"type": type_})), Rollout::Anew(format!("updateStrategy.type is {named:?}")));
        }
        let wrong = rollout(&spec_of(json!({"updateStrategy": {"partition": "x"}}))).unwrap_err();
        assert!(wrong.0.contains("partition"), "{wrong}");
    }

    #[test]
    fn replicas_are_one_if_nothing_is_said() {
        let owner = OwnerRef::default();
        for (replicas, want) in [(json!(6), 6), (json!(null), 1)] {
            let spec = spec_of(json!({ "replicas": replicas }));
            let observed = observed(&spec, &owner, None, (&Value::Null, &Value::Null), 0, Ok(())).unwrap();
            assert_eq!(observed.replicas, want);
        }
    }
}
