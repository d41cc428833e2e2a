//! Whether a Pod is available, and what an update in place that is not done has still to write.

use std::time::Duration;

use super::{
    inplace::{Annotations, State, UpdateSpec},
    lifecycle::State as LifecycleState,
};
use crate::{
    api::labels,
    k8s::{pod::PodView, time::Now},
};

/// How long a Pod still has to be Ready to be available; None: it is not Ready, or its update in place is not done.
pub fn until_available(view: &PodView, min_ready_seconds: i32, now: Now) -> Option<Duration> {
    let is_in_grace = view.in_place().is_some_and(|notes| notes.grace.is_some());
    if is_in_grace { None } else { until_ready_for_long(view, min_ready_seconds, now) }
}

/// The same, with a Pod as Ready whose update in place has been announced and not begun.
pub fn until_ready_for_long(view: &PodView, min_ready_seconds: i32, now: Now) -> Option<Duration> {
    let gate = view.condition(labels::CONDITION_INPLACE_UPDATE_READY);
    let is_ready = view.phase == "Running"
        && view.condition_is_true("Ready")
        && gate.is_none_or(|condition| condition.status == "True");
    let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    // A time that is not known, or a clock that is ahead of ours, makes nobody wait for longer than the whole time.
    is_ready.then(|| view.ready_since.map_or(wanted, |since| wanted.saturating_sub(now.since(since))))
}

/// Whether a Pod is Ready and in service, for however short a time. It `is_live` while it has neither ended nor been deleted.
pub fn is_serving(state: &LifecycleState, is_live: bool, until_available: Option<Duration>) -> bool {
    state.is_in_service() && is_live && until_available.is_some()
}

/// Whether it counts as available.
pub fn is_available(state: &LifecycleState, is_live: bool, until_available: Option<Duration>) -> bool {
    is_serving(state, is_live, until_available) && until_available == Some(Duration::ZERO)
}

/// The rest of an update in place: what its grace period holds back, or its later batches.
pub fn pending(view: &PodView) -> Option<UpdateSpec> {
    let notes = view.in_place()?;
    if let Some(grace) = notes.grace.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
        return Some(grace);
    }
    state(view).filter(State::has_next).map(|state| state.next())
}

/// Why the notes of its update in place cannot be read, if they cannot: nothing gets the Pod further then.
pub fn unreadable(view: &PodView) -> Option<String> {
    view.in_place()?;
    Annotations::of_view(view).err().map(|error| error.to_string())
}

fn state(view: &PodView) -> Option<State> {
    serde_json::from_str(view.in_place()?.state.as_deref()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Now {
        Now { wall: "2026-01-01T01:00:00Z".parse().unwrap(), mono: Duration::from_secs(9) }
    }
    fn view(changes: Value) -> PodView {
        let mut pod = json!({"metadata": {"labels": {"lifecycle.apps.kruise.io/state": "Updating"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:59:50Z"}]}});
        json_patch::merge(&mut pod, &changes);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn edge_39_a_pod_that_is_updated_in_place_is_not_available_although_it_is_ready() {
        let seconds = |changes, minimum| until_available(&view(changes), minimum, now()).map(|left| left.as_secs());
        assert_eq!((seconds(json!({}), 0), seconds(json!({}), 15)), (Some(0), Some(5)));
        let closed = json!([{"type": "Ready", "status": "True"}, {"type": "InPlaceUpdateReady", "status": "False"}]);
        assert_eq!(seconds(json!({"status": {"conditions": closed}}), 0), None);
        let grace = json!({"metadata": {"annotations": {"apps.kruise.io/inplace-update-grace": "{}"}}});
        assert_eq!(seconds(grace, 0), None);
        assert_eq!(seconds(json!({"status": {"phase": "Pending"}}), 0), None);
    }

    #[test]
    fn a_pod_serves_before_it_is_available_and_only_in_service() {
        let (now, later) = (Some(Duration::ZERO), Some(Duration::from_secs(1)));
        for (state, is_live, left, serves, counts) in [
            (LifecycleState::Normal, true, now, true, true),
            (LifecycleState::None, true, later, true, false),
            (LifecycleState::Normal, true, None, false, false),
            (LifecycleState::Normal, false, now, false, false),
            (LifecycleState::PreparingDelete, true, now, false, false),
        ] {
            let seen = (is_serving(&state, is_live, left), is_available(&state, is_live, left));
            assert_eq!(seen, (serves, counts), "{state:?} {is_live} {left:?}");
        }
    }

    #[test]
    fn later_batches_are_pending_and_what_cannot_be_read_is_not() {
        let state = |text: &str| {
            let view = view(json!({"metadata": {"annotations": {"apps.kruise.io/inplace-update-state": text}}}));
            pending(&view).map(|spec| spec.container_images.len())
        };
        let batch = r#"{"revision":"2","updateTimestamp":"2026-01-01T00:00:00Z","nextContainerImages":{"main":"i:2"}}"#;
        assert_eq!(state(batch), Some(1));
        assert_eq!(state(r#"{"revision":"2","updateTimestamp":"2026-01-01T00:00:00Z"}"#), None);
        assert_eq!(state("odd"), None);
        let unreadable = |key: &str, text: &str| unreadable(&view(json!({"metadata": {"annotations": {key: text}}})));
        assert_eq!(unreadable("apps.kruise.io/inplace-update-state", batch), None);
        let (odd, long) = (unreadable("apps.kruise.io/inplace-update-grace", "odd"), "x".repeat(70_000));
        assert!(odd.unwrap().starts_with("annotation apps.kruise.io/inplace-update-grace cannot be read: "));
        assert_eq!(
            unreadable("inplace-update-state", &long).unwrap(),
            "annotation apps.kruise.io/inplace-update-state cannot be read: it is empty, or longer than 65536 bytes"
        );
        assert_eq!(unreadable("other", "odd"), None);
    }
}
