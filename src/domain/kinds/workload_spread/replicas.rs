//! How many Pods a target wants, and the version of its Pods.

use serde_json::Value;

use super::spec::{SpreadSpec, TargetKind, VERSION_IGNORED};
use crate::{
    api::labels,
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
        pod::Labels,
    },
};

/// How many Pods a target wants. `configured` is the path that the ConfigMap gives for its kind, if it does. What it does not
/// say is 0; a Deployment, ReplicaSet, CloneSet, StatefulSet and Job want one without saying so.
///
/// # Errors
/// A path that leads to no whole number, and where it ends.
pub fn total(spec: &SpreadSpec, target: &Value, configured: Option<&str>) -> Result<i32, Invalid> {
    if !spec.replicas_paths.is_empty() {
        let mut sum = 0_i32;
        for (index, path) in spec.replicas_paths.iter().enumerate() {
            let number = at(target, path).map_err(|Invalid(why)| {
                Invalid(format!("spec.targetFilter.replicasPathList[{index}]: {path:?}: {why}"))
            })?;
            sum = sum.saturating_add(number);
        }
        return Ok(sum);
    }
    match (spec.target_kind, configured) {
        (TargetKind::Custom, Some(path)) if !path.is_empty() => {
            at(target, path).map_err(|Invalid(why)| Invalid(format!("replicasPath {path:?} of the ConfigMap: {why}")))
        }
        (TargetKind::Custom, _) => Ok(number(target.pointer("/spec/replicas")).unwrap_or(0)),
        (TargetKind::Job, _) => Ok(number(target.pointer("/spec/parallelism")).unwrap_or(1)),
        _ => Ok(number(target.pointer("/spec/replicas")).unwrap_or(1)),
    }
}

/// Whether Pods that a CloneSet makes beyond its replicas in an update find every subset full: old and new Pods share the limits.
pub fn lacks_room_for_surge(spec: &SpreadSpec, target: &Value) -> bool {
    let surge = target.pointer("/spec/updateStrategy/maxSurge").and_then(|surge| IntOrPercent::parse(surge).ok());
    let (TargetKind::CloneSet, Some(surge)) = (spec.target_kind, surge) else { return false };
    let wanted = total(spec, target, None).unwrap_or_default();
    let surge = surge.resolve(wanted, Round::Up);
    // None: some subset has no limit.
    let room = spec.limits(wanted).into_iter().try_fold(0_i32, |sum, max| Some(sum.saturating_add(max?)));
    surge > 0 && room.is_some_and(|room| room < wanted.saturating_add(surge))
}

fn number(value: Option<&Value>) -> Option<i32> {
    let number = value?.as_i64()?.max(0);
    Some(i32::try_from(number).unwrap_or(i32::MAX))
}

/// The number at a path with dots. A field that is not there is 0, as an API server leaves zeros out.
fn at(object: &Value, path: &str) -> Result<i32, Invalid> {
    let wrong = |why: String| Invalid(why);
    let mut value = object;
    for part in path.split('.') {
        value = match value {
            Value::Object(members) => match members.get(part) {
                Some(member) => member,
                None => return Ok(0),
            },
            Value::Array(entries) => {
                let place = part.parse::<usize>().map_err(|_| wrong(format!("{part:?} is no place in a list")))?;
                let many = entries.len();
                entries
                    .get(place)
                    .ok_or_else(|| wrong(format!("{part:?} is not there; the list has {many} entries")))?
            }
            Value::Null => return Ok(0),
            _ => return Err(wrong(format!("there is nothing below {part:?}: it follows a value"))),
        };
    }
    match value {
        Value::Null => Ok(0),
        value => value
            .as_i64()
            .and_then(|n| i32::try_from(n.max(0)).ok())
            .ok_or_else(|| wrong("it is no whole number".into())),
    }
}

/// The version under which a Pod is counted.
pub fn version<'l>(kind: TargetKind, label: impl Fn(&str) -> Option<&'l str>) -> String {
    if !kind.is_versioned() {
        return VERSION_IGNORED.into();
    }
    let hash = label(labels::POD_TEMPLATE_HASH).filter(|hash| !hash.is_empty());
    let revision = || label(labels::CONTROLLER_REVISION_HASH)?.rsplit('-').next().filter(|hash| !hash.is_empty());
    hash.or_else(revision).unwrap_or(VERSION_IGNORED).to_owned()
}

/// The version under which a Pod with these labels is counted.
pub fn version_of(kind: TargetKind, labels: &Labels) -> String {
    version(kind, |key| labels.get(key))
}

/// The version that a Deployment makes Pods of: the hash of that of its ReplicaSets whose template it has. None: there is none
/// yet.
pub fn newest(deployment: &Value, replica_sets: &[Value]) -> Option<String> {
    let template = |object: &Value| {
        let mut template = object.pointer("/spec/template").cloned().unwrap_or_default();
        if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.remove(labels::POD_TEMPLATE_HASH);
        }
        template
    };
    let uid = deployment.pointer("/metadata/uid")?;
    let wanted = template(deployment);
    let is_its_own = |set: &&Value| {
        let owners = set.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().any(|owner| owner["controller"] == true && owner["uid"] == *uid)
    };
    let mut own = replica_sets.iter().filter(is_its_own);
    let newest = own.find(|set| template(set) == wanted)?;
    let hash = newest.pointer("/metadata/labels").and_then(|labels| labels.get(labels::POD_TEMPLATE_HASH)?.as_str());
    hash.map(str::to_owned)
}
