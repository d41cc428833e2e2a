//! Updating a Pod without replacing it: which changes can be made in place, in which batches, and when they are done.
//!
//! Shared by all workloads. What is written is computed from raw JSON, because a Pod or a template may hold fields newer
//! than ours. What is only judged is read from an [`ObservedPod`], which a stored Pod gives as well as a whole one.
//!
//! ```text
//!  spec_between(old, new) ──▶ UpdateSpec ──▶ begin: gate InPlaceUpdateReady False, state written
//!                                              │ grace            │ no grace
//!                                              ▼                  ▼
//!                                        annotation `grace` ──▶ batch ──▶ is_complete? ──▶ next batch … ──▶ gate True
//! ```

use serde_json::Value;

mod annotations;
mod batch;
mod completion;
mod difference;
mod observed;
mod pending;
pub mod resize;
mod step;
#[cfg(test)]
mod tests;

pub use annotations::{
    Annotations, BatchRecord, LastStatus, PreCheck, RefMetadata, State, UnreadableAnnotation, UpdateSpec,
};
pub use batch::{Batch, batch, begin};
pub use completion::{ContainersDone, is_complete, is_same_image, needs_definitions};
pub use difference::{Allowed, NotInPlace, spec_between};
pub use observed::ObservedPod;
pub use pending::with_pending;
pub use step::{Step, next_step};

/// The definition of a container, from a whole Pod.
pub fn container_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    containers.iter().find(|c| c.get("name").and_then(Value::as_str) == Some(name))
}

/// The status of a container, from a whole Pod.
pub fn status_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
    statuses.iter().find(|s| s.get("name").and_then(Value::as_str) == Some(name))
}
