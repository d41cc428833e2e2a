//! What the plans of the kinds say in the same words.

use crate::{
    api::apps::lifecycle::{Hook, Lifecycle},
    domain::{budgets::unavailable::Operation, pod::inplace::UpdateSpec},
};

/// Something that a workload waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence that names the object.
    pub message: String,
}

impl Wait {
    /// Notes what is waited for, unless something is noted already: the first one is reported.
    pub fn note(first: &mut Option<Self>, reason: &'static str, message: impl FnOnce() -> String) {
        first.get_or_insert_with(|| Self { reason, message: message() });
    }
}

/// What is done to one Pod that is not deleted yet.
#[derive(Clone, Debug, PartialEq)]
pub enum PodAction {
    /// Cancel a deletion that was announced.
    CancelDeletion,
    /// Cancel an update that was announced.
    CancelUpdate,
    /// Move it to PreparingDelete: its hook holds it.
    AnnounceDeletion,
    /// Move it to PreparingUpdate: its hook holds it.
    AnnounceUpdate {
        /// Whether the hook has to be put back first.
        restore: bool,
    },
    /// Put the hook of updates back on a Pod that is Updated, which makes it Normal.
    RestoreHook,
    /// Begin an update in place.
    UpdateInPlace {
        /// What changes.
        spec: UpdateSpec,
    },
}

impl PodAction {
    /// What budgets are asked before. None: the Pod stays in service.
    pub fn takes_out(&self, hooks: &Lifecycle) -> Option<Operation> {
        match self {
            Self::AnnounceDeletion => announced_deletion(hooks),
            Self::AnnounceUpdate { .. } => announced_update(hooks),
            Self::UpdateInPlace { spec } => Some(in_place_update(spec)),
            Self::CancelDeletion | Self::CancelUpdate | Self::RestoreHook => None,
        }
    }
}

#[cfg(test)]
impl PodAction {
    /// What tests of plans compare.
    pub(crate) fn text(&self, pod: &str) -> String {
        match self {
            Self::CancelDeletion => format!("keep {pod}"),
            Self::CancelUpdate => format!("no update {pod}"),
            Self::AnnounceDeletion => format!("announce deletion {pod}"),
            Self::AnnounceUpdate { restore } => {
                format!("announce update {pod}{}", if *restore { " again" } else { "" })
            }
            Self::RestoreHook => format!("hook {pod} again"),
            Self::UpdateInPlace { spec } => {
                let images: Vec<String> =
                    spec.container_images.iter().map(|(name, image)| format!("{name}={image}")).collect();
                format!("update {pod} {}", images.join(" "))
            }
        }
    }
}

/// What a message says besides of a Pod whose notes of an update in place cannot be read.
pub fn unreadable(why: &str) -> String {
    format!(": {why}; delete that annotation, or the Pod")
}

/// That a Pod waits until it is known which changes may be made in place.
pub fn not_updated_on_a_guess(pod: &str) -> String {
    format!("Pod {pod} is not updated while revisions or the API server's version cannot be read")
}

/// What budgets are asked before the deletion of a Pod is announced to its hook. None: the hook leaves it in service.
pub fn announced_deletion(hooks: &Lifecycle) -> Option<Operation> {
    marks_not_ready(hooks.pre_delete.as_ref()).then_some(Operation::Delete)
}

/// The same before an update is announced.
pub fn announced_update(hooks: &Lifecycle) -> Option<Operation> {
    marks_not_ready(hooks.in_place_update.as_ref()).then_some(Operation::Update)
}

fn marks_not_ready(hook: Option<&Hook>) -> bool {
    hook.is_some_and(|hook| hook.mark_pod_not_ready)
}

/// What budgets are asked before an update in place.
pub fn in_place_update(spec: &UpdateSpec) -> Operation {
    let is_resize = spec.container_images.is_empty() && !spec.container_resources.is_empty();
    if is_resize { Operation::Resize } else { Operation::Update }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_announcement_asks_budgets_only_if_its_hook_marks_the_pod_not_ready() {
        let hooks = |marks: bool| -> Lifecycle {
            let hook = json!({"finalizersHandler": ["example.com/x"], "markPodNotReady": marks});
            serde_json::from_value(json!({"preDelete": hook, "inPlaceUpdate": hook})).unwrap()
        };
        assert_eq!(announced_deletion(&hooks(true)), Some(Operation::Delete));
        assert_eq!(announced_update(&hooks(true)), Some(Operation::Update));
        for quiet in [hooks(false), Lifecycle::default()] {
            assert_eq!((announced_deletion(&quiet), announced_update(&quiet)), (None, None));
        }
    }

    #[test]
    fn budgets_are_asked_for_changes_that_take_a_pod_out_of_service() {
        let none = Lifecycle::default();
        let marking: Lifecycle = serde_json::from_value(
            json!({"preDelete": {"markPodNotReady": true}, "inPlaceUpdate": {"markPodNotReady": true}}),
        )
        .unwrap();
        let (delete, update) = (Some(Operation::Delete), Some(Operation::Update));
        for (change, plain, marked) in [
            (PodAction::AnnounceDeletion, None, delete),
            (PodAction::AnnounceUpdate { restore: false }, None, update),
            (PodAction::UpdateInPlace { spec: UpdateSpec::default() }, update, update),
            (PodAction::CancelDeletion, None, None),
            (PodAction::CancelUpdate, None, None),
        ] {
            assert_eq!((change.takes_out(&none), change.takes_out(&marking)), (plain, marked), "{change:?}");
        }
    }

    #[test]
    fn a_change_of_resources_alone_is_a_resize() {
        let spec = |images: bool, resources: bool| -> UpdateSpec {
            let mut spec = UpdateSpec::default();
            if images {
                spec.container_images.insert("main".into(), "i:2".into());
            }
            if resources {
                spec.container_resources.insert("main".into(), Default::default());
            }
            spec
        };
        assert_eq!(in_place_update(&spec(false, true)), Operation::Resize);
        for update in [spec(true, true), spec(true, false), spec(false, false)] {
            assert_eq!(in_place_update(&update), Operation::Update);
        }
    }
}
