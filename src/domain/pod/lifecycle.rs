//! Lifecycle hooks of Pods: what holds an update or a deletion up, and in which state a Pod is.
//!
//! ```text
//!            scheduled,                chosen for update       no longer hooked        done, hook
//!            preNormal hooked          while hooked            update written          not restored
//!  PreparingNormal ───────▶ Normal ───────────▶ PreparingUpdate ───────▶ Updating ─────────▶ Updated
//!        ▲                   │ ▲ ▲                     │                    │ done             │ all hooked
//!        │ no longer         │ │ └─────────────────────┴────────────────────┴──────────────────┘
//!        │ surplus           │ │   the roll-out came back to the Pod's revision
//!        └── PreparingDelete ◀─┘   chosen for deletion while hooked; deleted when no longer hooked
//! ```

use serde_json::Value;

use crate::api::apps::lifecycle::{Hook, Lifecycle};

/// What a hook of the API means for a Pod.
pub trait HookRules {
    /// Whether it names nothing.
    fn is_empty(&self) -> bool;
    /// Whether anything of the hook is on the Pod. A label that the Pod lacks does not match an empty value.
    fn is_hooked(&self, pod: &impl Hooked) -> bool;
    /// Whether all of the hook is on the Pod.
    fn is_all_hooked(&self, pod: &impl Hooked) -> bool;
}

impl HookRules for Hook {
    fn is_empty(&self) -> bool {
        self.labels_handler.is_empty() && self.finalizers_handler.is_empty()
    }
    fn is_hooked(&self, pod: &impl Hooked) -> bool {
        self.labels_handler.iter().any(|(key, value)| pod.label(key) == Some(value))
            || self.finalizers_handler.iter().any(|finalizer| pod.has_finalizer(finalizer))
    }
    fn is_all_hooked(&self, pod: &impl Hooked) -> bool {
        self.labels_handler.iter().all(|(key, value)| pod.label(key) == Some(value))
            && self.finalizers_handler.iter().all(|finalizer| pod.has_finalizer(finalizer))
    }
}

/// What hooks read of a Pod.
pub trait Hooked {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<&str>;
    /// Whether a finalizer is there.
    fn has_finalizer(&self, name: &str) -> bool;
}

/// What hooks read of a Pod to come.
struct FromTemplate<'a>(&'a Value);

impl Hooked for FromTemplate<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.pointer("/metadata/labels")?.get(key)?.as_str()
    }
    fn has_finalizer(&self, name: &str) -> bool {
        let finalizers = self.0.pointer("/metadata/finalizers").and_then(Value::as_array);
        finalizers.into_iter().flatten().any(|finalizer| finalizer == name)
    }
}

/// The state in which a Pod of this template is made: in preparation while its preNormal hook is not complete.
pub fn first_state(hooks: &Lifecycle, template: &Value) -> State {
    match &hooks.pre_normal {
        Some(hook) if !hook.is_all_hooked(&FromTemplate(template)) => State::PreparingNormal,
        Some(_) | None => State::Normal,
    }
}

/// What the hooks of a workload mean for a Pod.
pub trait LifecycleRules {
    /// Whether a deletion has to wait.
    fn holds_deletion(&self, pod: &impl Hooked) -> bool;
    /// Whether the deletion of a Pod that was seen so rests on what its hook did: the hook can take hold of it again.
    fn may_hold_deletion_yet(&self, pod: &impl Hooked) -> bool;
    /// Whether an update in place has to wait.
    fn holds_update(&self, pod: &impl Hooked) -> bool;
    /// What an update in place of a Pod in this state begins with.
    fn before_update<'a>(&self, pod: &impl Hooked, state: &'a State) -> BeforeUpdate<'a>;
    /// Whether a deletion that has been announced to the Pod cannot be taken back.
    fn deletion_is_final(&self) -> bool;
}

impl LifecycleRules for Lifecycle {
    fn holds_deletion(&self, pod: &impl Hooked) -> bool {
        self.pre_delete.as_ref().is_some_and(|hook| hook.is_hooked(pod))
    }
    fn may_hold_deletion_yet(&self, pod: &impl Hooked) -> bool {
        self.pre_delete.as_ref().is_some_and(|hook| !hook.is_empty() && !hook.is_hooked(pod))
    }
    fn holds_update(&self, pod: &impl Hooked) -> bool {
        self.in_place_update.as_ref().is_some_and(|hook| hook.is_hooked(pod))
    }
    fn before_update<'a>(&self, pod: &impl Hooked, state: &'a State) -> BeforeUpdate<'a> {
        let is_held = self.holds_update(pod);
        match state {
            State::None | State::PreparingNormal | State::Normal if is_held => {
                BeforeUpdate::Announce { restore: false }
            }
            State::PreparingUpdate if is_held => BeforeUpdate::Held,
            State::None | State::PreparingNormal | State::Normal | State::PreparingUpdate | State::Updating => {
                BeforeUpdate::Nothing
            }
            State::Updated if self.in_place_update.is_some() => BeforeUpdate::Announce { restore: true },
            State::Updated => BeforeUpdate::Refresh,
            State::PreparingDelete => BeforeUpdate::Deletion,
            State::Unknown(state) => BeforeUpdate::UnknownState(state),
        }
    }
    fn deletion_is_final(&self) -> bool {
        [&self.pre_delete, &self.in_place_update].into_iter().flatten().any(|hook| hook.mark_pod_not_ready)
    }
}

/// What comes before an update in place of a Pod is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeUpdate<'a> {
    /// Nothing: it can be written.
    Nothing,
    /// It is announced to the hook.
    Announce {
        /// The hook has to be put back first: an earlier update took it away.
        restore: bool,
    },
    /// The hook has to let go of the Pod.
    Held,
    /// The Pod has to become Normal, which is done without a hook.
    Refresh,
    /// A deletion was announced to the Pod.
    Deletion,
    /// A release that knows this state has to get the Pod out of it.
    UnknownState(&'a str),
}

/// The state of a Pod, from its label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No label: a Pod from before there were hooks, as Normal.
    #[default]
    None,
    /// New, or its deletion was taken back.
    PreparingNormal,
    /// In service.
    Normal,
    /// Waits for the hook before its update.
    PreparingUpdate,
    /// Its update has been written.
    Updating,
    /// Its update is done, the hook is not back.
    Updated,
    /// Waits for the hook before its deletion.
    PreparingDelete,
    /// Written by a release that knows more states.
    Unknown(String),
}

impl State {
    /// From the label's value.
    pub fn parse(label: Option<&str>) -> Self {
        match label.unwrap_or_default() {
            "" => Self::None,
            "PreparingNormal" => Self::PreparingNormal,
            "Normal" => Self::Normal,
            "PreparingUpdate" => Self::PreparingUpdate,
            "Updating" => Self::Updating,
            "Updated" => Self::Updated,
            "PreparingDelete" => Self::PreparingDelete,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// The label's value.
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::PreparingNormal => "PreparingNormal",
            Self::Normal => "Normal",
            Self::PreparingUpdate => "PreparingUpdate",
            Self::Updating => "Updating",
            Self::Updated => "Updated",
            Self::PreparingDelete => "PreparingDelete",
            Self::Unknown(text) => text,
        }
    }

    /// Whether a Pod in this state may count as available.
    pub fn is_in_service(&self) -> bool {
        matches!(self, Self::None | Self::Normal)
    }
}

/// What a refresh looks at.
#[derive(Clone, Copy, Debug)]
pub struct ObservedPod<'a> {
    /// The workload's hooks, if it has any.
    pub lifecycle: Option<&'a Lifecycle>,
    /// The Pod is bound to a node.
    pub is_scheduled: bool,
    /// The Pod carries the revision it is to have.
    pub is_on_update_revision: bool,
    /// Its update in place is complete.
    pub is_updated: bool,
}

/// The state after an update that is done, or not wanted any more.
pub fn after_update(lifecycle: Option<&Lifecycle>, pod: &impl Hooked) -> State {
    match lifecycle {
        // With hooks but none for updates it passes through Updated all the same, for whoever waits for that state.
        Some(hooks) if hooks.in_place_update.as_ref().is_none_or(|hook| !hook.is_all_hooked(pod)) => State::Updated,
        Some(_) | None => State::Normal,
    }
}

/// The state of a Pod whose announced deletion is cancelled, if no update of it is under way: like a new Pod it is not in
/// service before its preNormal hook lets it in.
pub fn after_cancelled_deletion(lifecycle: Option<&Lifecycle>, pod: &impl Hooked) -> State {
    match lifecycle.and_then(|hooks| hooks.pre_normal.as_ref()) {
        Some(hook) if !hook.is_all_hooked(pod) => State::PreparingNormal,
        Some(_) | None => State::Normal,
    }
}

/// The state that a Pod moves to by itself, if any.
pub fn refresh(state: &State, observed: &ObservedPod<'_>, pod: &impl Hooked) -> Option<State> {
    let hook =
        |pick: fn(&Lifecycle) -> &Option<Hook>| observed.lifecycle.and_then(|lifecycle| pick(lifecycle).as_ref());
    let update = hook(|lifecycle| &lifecycle.in_place_update);
    let restored = update.is_none_or(|hook| hook.is_all_hooked(pod));
    match state {
        State::PreparingNormal => {
            let is_in = match hook(|lifecycle| &lifecycle.pre_normal) {
                Some(hook) if !hook.is_empty() => hook.is_all_hooked(pod),
                Some(_) => true,
                None => observed.is_scheduled,
            };
            is_in.then_some(State::Normal)
        }
        State::PreparingUpdate if observed.is_on_update_revision => Some(after_update(observed.lifecycle, pod)),
        State::Updating if observed.is_updated => Some(after_update(observed.lifecycle, pod)),
        State::Updated if restored => Some(State::Normal),
        State::PreparingUpdate
        | State::Updating
        | State::Updated
        | State::None
        | State::Normal
        | State::PreparingDelete
        | State::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct Pod(Vec<(&'static str, &'static str)>, Vec<&'static str>);
    impl Hooked for Pod {
        fn label(&self, key: &str) -> Option<&str> {
            self.0.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
        }
        fn has_finalizer(&self, name: &str) -> bool {
            self.1.contains(&name)
        }
    }

    fn hook() -> Hook {
        Hook {
            labels_handler: BTreeMap::from([("drained".into(), "no".into())]),
            finalizers_handler: vec!["example.com/hold".into()],
            mark_pod_not_ready: false,
        }
    }
    fn both() -> Pod {
        Pod(vec![("drained", "no")], vec!["example.com/hold"])
    }
    fn one() -> Pod {
        Pod(vec![("drained", "yes")], vec!["example.com/hold"])
    }

    #[test]
    fn any_part_of_a_hook_holds_and_all_of_it_restores() {
        let (hook, empty) = (hook(), Hook::default());
        for (pod, any, all) in [(both(), true, true), (one(), true, false), (Pod::default(), false, false)] {
            assert_eq!((hook.is_hooked(&pod), hook.is_all_hooked(&pod)), (any, all));
        }
        assert_eq!((empty.is_hooked(&both()), empty.is_all_hooked(&both())), (false, true));
    }

    #[test]
    fn only_a_hook_that_can_take_hold_of_a_pod_makes_its_deletion_rest_on_what_was_seen() {
        let with = |pre_delete| Lifecycle { pre_delete, ..Lifecycle::default() };
        for (hooks, pod, expected) in [
            (Lifecycle::default(), Pod::default(), false),
            (with(Some(Hook::default())), Pod::default(), false),
            (with(Some(hook())), Pod::default(), true),
            // It is deleted in spite of its hook.
            (with(Some(hook())), one(), false),
        ] {
            assert_eq!(hooks.may_hold_deletion_yet(&pod), expected, "{hooks:?}");
        }
    }

    #[test]
    fn case_19_18_an_empty_value_does_not_match_a_missing_label() {
        let hook = Hook { labels_handler: BTreeMap::from([("x".into(), String::new())]), ..Hook::default() };
        assert!(!hook.is_hooked(&Pod::default()));
        assert!(hook.is_hooked(&Pod(vec![("x", "")], vec![])));
    }

    fn step(state: State, lifecycle: Option<&Lifecycle>, pod: &Pod, facts: (bool, bool, bool)) -> Option<State> {
        let (is_scheduled, is_on_update_revision, is_updated) = facts;
        refresh(&state, &ObservedPod { lifecycle, is_scheduled, is_on_update_revision, is_updated }, pod)
    }

    #[test]
    fn case_29_without_a_hook_a_new_pod_is_normal_once_it_is_scheduled() {
        let pod = Pod::default();
        assert_eq!(step(State::PreparingNormal, None, &pod, (false, true, true)), None);
        assert_eq!(step(State::PreparingNormal, None, &pod, (true, true, true)), Some(State::Normal));
        let lifecycle = Lifecycle { pre_normal: Some(hook()), ..Lifecycle::default() };
        assert_eq!(step(State::PreparingNormal, Some(&lifecycle), &one(), (true, true, true)), None);
        assert_eq!(step(State::PreparingNormal, Some(&lifecycle), &both(), (false, true, true)), Some(State::Normal));
    }

    #[test]
    fn a_deletion_that_is_taken_back_lets_no_pod_in() {
        let none = Lifecycle::default();
        let hooks = Lifecycle { pre_normal: Some(hook()), pre_delete: Some(hook()), ..Lifecycle::default() };
        for (lifecycle, pod, state) in [
            (None, one(), State::Normal),
            (Some(&none), one(), State::Normal),
            (Some(&hooks), one(), State::PreparingNormal),
            (Some(&hooks), both(), State::Normal),
        ] {
            assert_eq!(after_cancelled_deletion(lifecycle, &pod), state);
        }
    }

    #[test]
    fn case_03_a_roll_out_that_came_back_releases_the_pod() {
        let lifecycle = Lifecycle { in_place_update: Some(hook()), ..Lifecycle::default() };
        let back = |pod: &Pod| step(State::PreparingUpdate, Some(&lifecycle), pod, (true, true, false));
        assert_eq!(back(&both()), Some(State::Normal));
        assert_eq!(back(&one()), Some(State::Updated));
        assert_eq!(step(State::PreparingUpdate, Some(&lifecycle), &one(), (true, false, false)), None);
    }

    #[test]
    fn case_04_an_updated_pod_is_normal_only_when_all_handlers_are_back() {
        let lifecycle = Lifecycle { in_place_update: Some(hook()), ..Lifecycle::default() };
        let done = |state, pod: &Pod| step(state, Some(&lifecycle), pod, (true, true, true));
        assert_eq!(done(State::Updating, &one()), Some(State::Updated));
        assert_eq!(done(State::Updating, &both()), Some(State::Normal));
        assert_eq!(done(State::Updated, &one()), None);
        assert_eq!(done(State::Updated, &both()), Some(State::Normal));
        assert_eq!(step(State::Updating, Some(&lifecycle), &both(), (true, true, false)), None);
        assert_eq!(step(State::Updating, None, &one(), (true, true, true)), Some(State::Normal));
        let other = Lifecycle { pre_delete: Some(hook()), ..Lifecycle::default() };
        assert_eq!(step(State::Updating, Some(&other), &one(), (true, true, true)), Some(State::Updated));
        assert_eq!(step(State::Updated, Some(&other), &one(), (true, true, true)), Some(State::Normal));
    }

    #[test]
    fn states_that_only_others_leave_stay() {
        for state in [State::None, State::Normal, State::PreparingDelete, State::Unknown("Later".into())] {
            assert_eq!(step(state.clone(), None, &both(), (true, true, true)), None, "{state:?}");
        }
    }

    #[test]
    fn labels_are_read_back() {
        for text in
            ["", "PreparingNormal", "Normal", "PreparingUpdate", "Updating", "Updated", "PreparingDelete", "Later"]
        {
            assert_eq!(State::parse(Some(text)).as_str(), text);
        }
    }
}
