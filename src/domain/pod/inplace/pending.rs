//! A change while an earlier one is under way.

use serde_json::{Value, json};

use super::{
    UpdateSpec,
    annotations::{decoded, encoded},
    difference::{FINALIZERS, FINALIZERS_GONE, NotInPlace, of_readable_length, only_in},
};

/// A change with its grace in seconds, and what an earlier one has not written yet: the Pod's label says that it is on the
/// earlier one's revision, from which the change is computed.
///
/// # Errors
/// Both together are more than the annotations of a Pod may hold.
pub fn with_pending(
    spec: UpdateSpec,
    pending: Option<&UpdateSpec>,
    grace_seconds: i64,
) -> Result<UpdateSpec, NotInPlace> {
    let spec = UpdateSpec { grace_seconds, ..spec };
    let Some(pending) = pending else { return Ok(spec) };
    let mut both = pending.clone();
    both.container_images.extend(spec.container_images);
    for (container, changes) in spec.container_ref_metadata {
        let into = both.container_ref_metadata.entry(container).or_default();
        into.labels.extend(changes.labels);
        into.annotations.extend(changes.annotations);
    }
    for (container, resources) in spec.container_resources {
        json_patch::merge(both.container_resources.entry(container).or_insert(Value::Null), &resources);
    }
    let patch = |text: &Option<String>| decoded(text.as_ref()?);
    both.meta_data_patch = match (patch(&both.meta_data_patch), patch(&spec.meta_data_patch)) {
        // A key that is removed stays in the patch as null: this is no application of one to the other.
        (Some(a), Some(b)) => Some(encoded(&joined(a, &b))),
        _ => spec.meta_data_patch.or(both.meta_data_patch),
    };
    of_readable_length(UpdateSpec {
        revision: spec.revision,
        update_env_from_metadata: spec.update_env_from_metadata || pending.update_env_from_metadata,
        grace_seconds: spec.grace_seconds,
        ..both
    })
}

/// Two merge patches as one.
fn joined(first: Value, second: &Value) -> Value {
    match (first, second) {
        (Value::Object(mut a), Value::Object(b)) => {
            // What the second one takes away is not added, and the other way round.
            for (one, other) in [(FINALIZERS, FINALIZERS_GONE), (FINALIZERS_GONE, FINALIZERS)] {
                if let (Some(names), Some(against)) = (a.get_mut(one), b.get(other)) {
                    *names = only_in(names, against).into();
                }
            }
            for (key, value) in b {
                let before = a.remove(key).unwrap_or(json!(null));
                a.insert(key.clone(), joined(before, value));
            }
            a.into()
        }
        // Finalizers.
        (Value::Array(mut a), Value::Array(b)) => {
            let more: Vec<Value> = b.iter().filter(|name| !a.contains(name)).cloned().collect();
            a.extend(more);
            a.into()
        }
        (_, second) => second.clone(),
    }
}
