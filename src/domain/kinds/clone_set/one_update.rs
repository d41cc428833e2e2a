//! How one Pod that was chosen for an update gets there.

use super::plan::Pod;
use crate::{api::apps::lifecycle::Lifecycle, domain::pod::lifecycle::State};

/// What to do with the Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// Its hook holds it.
    Wait,
    /// Tell whoever owns the hook, and put the hook back first if an earlier update took it away.
    Announce {
        /// Whether the hook has to be put back.
        restore: bool,
    },
    /// Change it now.
    Now,
    /// Mark it, so that it is deleted and made anew.
    Replace,
    /// It is not to be updated any more: back into service.
    LetGo,
    /// It cannot be updated: why.
    Impossible(String),
}

/// Decides. `obstacle` is why the change cannot be made in place, if it cannot; `only` that nothing else is allowed.
pub fn how(pod: &Pod, lifecycle: Option<&Lifecycle>, obstacle: Option<&str>, only: bool) -> How {
    match obstacle {
        Some(why) if only => {
            return How::Impossible(format!(
                "cannot be updated in place, and type InPlaceOnly allows nothing else: {why}"
            ));
        }
        Some(_) => return How::Replace,
        None => {}
    }
    let held = lifecycle.is_some_and(|lifecycle| lifecycle.holds_update(pod));
    match &pod.state {
        State::None | State::PreparingNormal | State::Normal if held => How::Announce { restore: false },
        State::PreparingUpdate if held => How::Wait,
        State::None | State::PreparingNormal | State::Normal | State::PreparingUpdate | State::Updating => How::Now,
        // Without a hook a refresh makes it Normal first.
        State::Updated if lifecycle.is_some_and(|lifecycle| lifecycle.in_place_update.is_some()) => {
            How::Announce { restore: true }
        }
        State::Updated => How::Wait,
        State::PreparingDelete => How::Impossible("is about to be deleted".into()),
        State::Unknown(state) => {
            How::Impossible(format!("is in lifecycle state {state:?}, which this release does not know"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lifecycle() -> Lifecycle {
        serde_json::from_value(json!({"inPlaceUpdate": {"finalizersHandler": ["f"]}})).unwrap()
    }

    #[test]
    fn hooks_decide_about_the_moment() {
        let announce = |restore| How::Announce { restore };
        for (state, hooked, with_hook, without) in [
            (State::None, true, announce(false), How::Now),
            (State::Normal, true, announce(false), How::Now),
            (State::Normal, false, How::Now, How::Now),
            (State::PreparingNormal, true, announce(false), How::Now),
            (State::PreparingUpdate, true, How::Wait, How::Now),
            (State::PreparingUpdate, false, How::Now, How::Now),
            (State::Updating, true, How::Now, How::Now),
            (State::Updated, false, announce(true), How::Wait),
        ] {
            let finalizers = if hooked { vec!["f".to_owned()] } else { Vec::new() };
            let pod = Pod { state: state.clone(), finalizers, ..Pod::default() };
            assert_eq!(how(&pod, Some(&lifecycle()), None, false), with_hook, "{state:?}, hooked: {hooked}");
            assert_eq!(how(&pod, None, None, false), without, "{state:?} without a hook");
        }
    }

    #[test]
    fn what_cannot_be_done_in_place_is_replaced_unless_that_is_forbidden() {
        let pod = Pod { state: State::Normal, ..Pod::default() };
        assert_eq!(how(&pod, None, Some("template.spec.volumes differs"), false), How::Replace);
        let How::Impossible(why) = how(&pod, None, Some("template.spec.volumes differs"), true) else { panic!() };
        assert!(why.ends_with("allows nothing else: template.spec.volumes differs"), "{why}");
        for state in [State::PreparingDelete, State::Unknown("Later".into())] {
            let pod = Pod { state, ..Pod::default() };
            assert!(matches!(how(&pod, None, None, false), How::Impossible(_)));
        }
    }
}
