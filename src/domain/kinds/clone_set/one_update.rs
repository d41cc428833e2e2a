//! What is done with one Pod that was chosen for an update: in place or anew, now or after its hook, and what its budgets
//! are asked before. The shell carries the step out and decides nothing.

use std::collections::BTreeMap;

use super::{plan::Pod, spec::Spec};
use crate::{
    api::{
        apps::{lifecycle::Lifecycle, strategies::UpdateType},
        feature_gates::{FeatureGates, gate},
    },
    domain::{
        budgets::unavailable::Operation,
        pod::{
            inplace::{self, Allowed, NotInPlace, UpdateSpec},
            lifecycle::{self, BeforeUpdate, HookRules as _, LifecycleRules as _, State},
        },
        workload::{revisions::KnownRevision, steps},
    },
    k8s::revision,
};

/// What to ask PodUnavailableBudgets before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is about to be done.
    pub operation: Operation,
    /// The Pod stays in service for now: a yes is not written down.
    pub dry_run: bool,
}

/// What to do with the Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Its hook holds it, or a refresh comes first.
    Wait,
    /// It is not to be updated any more: back to this state.
    CancelUpdate(State),
    /// Announce the update to the owner of the hook, and put the hook back first if an earlier update took it away.
    Announce {
        /// Whether the hook has to be put back.
        restore: bool,
        /// None: it stays in service meanwhile.
        ask: Option<Question>,
    },
    /// Change it now.
    InPlace {
        /// The change.
        spec: Box<UpdateSpec>,
        /// Before it.
        ask: Question,
    },
    /// Mark it, so that it is deleted and made anew.
    Recreate {
        /// Before that.
        ask: Question,
    },
    /// It cannot be updated: why.
    Impossible(String),
}

/// What decides about the updates of a pass.
pub struct Updates<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// Its revisions.
    pub revisions: &'a [KnownRevision],
    /// Name of the revision to get to.
    pub target: &'a str,
    /// Otherwise Pods are replaced in any case.
    pub in_place: bool,
    /// Which changes may be made in place.
    pub rules: Rules,
}

/// Which changes may be made in place.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// In this cluster.
    pub allowed: Allowed,
    /// Other claim templates need another Pod: gate RecreatePodWhenChangeVCTInCloneSetGate.
    pub recreate_on_claim_change: bool,
}

impl Rules {
    /// By the gates of this cluster.
    pub fn of(allowed: Allowed, gates: &FeatureGates) -> Self {
        Self { allowed, recreate_on_claim_change: gates.enabled(gate::RECREATE_ON_CLAIM_CHANGE) }
    }
}

/// Ways from old revisions to one target, worked out once per pass.
pub type Differences = BTreeMap<String, Result<UpdateSpec, NotInPlace>>;

impl Updates<'_> {
    /// The step of one Pod.
    pub fn step(&self, pod: &Pod, differences: &mut Differences) -> Step {
        let lifecycle = self.spec.hooks();
        if !self.in_place {
            return recreate(pod, lifecycle);
        }
        let change = differences
            .entry(pod.revision.clone())
            .or_insert_with(|| difference(self.spec, self.revisions, (&pod.revision, self.target), self.rules))
            .clone()
            .and_then(|change| inplace::with_pending(change, pod.pending.as_deref(), self.spec.grace_seconds));
        step(pod, lifecycle, change, self.spec.update_type == UpdateType::InPlaceOnly)
    }
}

/// The step of a Pod whose update is not wanted any more.
pub fn cancel(spec: &Spec, pod: &Pod) -> Step {
    Step::CancelUpdate(lifecycle::after_update(spec.hooks(), pod))
}

/// What has to change between two revisions, or why that needs another Pod. What an unfinished update of a Pod has still to
/// write comes on top of it.
///
/// # Errors
/// Why it cannot be made in place.
pub fn difference(
    spec: &Spec,
    revisions: &[KnownRevision],
    (old, target): (&str, &str),
    rules: Rules,
) -> Result<UpdateSpec, NotInPlace> {
    let find = |name: &str| revisions.iter().find(|known| revision::is_same(&known.name, name));
    let (Some(from), Some(to)) = (find(old), find(target)) else {
        return Err(NotInPlace::UnknownRevision(old.to_owned()));
    };
    if rules.recreate_on_claim_change
        && spec.update_type != UpdateType::InPlaceOnly
        && let (Some(a), Some(b)) = (&from.claims_hash, &to.claims_hash)
        && a != b
    {
        return Err(NotInPlace::Claims);
    }
    let templates = (revision::template(&from.data), revision::template(&to.data));
    let (Some(from), Some(to)) = templates else { return Err(NotInPlace::NoTemplate) };
    inplace::spec_between(&from, &to, target, rules.allowed)
}

/// Decides. `only` says that nothing but an update in place is allowed.
fn step(pod: &Pod, lifecycle: Option<&Lifecycle>, spec: Result<UpdateSpec, NotInPlace>, only: bool) -> Step {
    let spec = match spec {
        Ok(spec) => spec,
        Err(why) if only => {
            return Step::Impossible(format!(
                "cannot be updated in place, and type InPlaceOnly allows nothing else: {why}"
            ));
        }
        Err(_) => return recreate(pod, lifecycle),
    };
    let none = Lifecycle::default();
    match lifecycle.unwrap_or(&none).before_update(pod, &pod.state) {
        BeforeUpdate::Nothing => Step::InPlace { ask: question(&spec), spec: Box::new(spec) },
        BeforeUpdate::Announce { restore } => announce(lifecycle, &spec, restore),
        BeforeUpdate::Held | BeforeUpdate::Refresh => Step::Wait,
        BeforeUpdate::Deletion => Step::Impossible("is about to be deleted".into()),
        BeforeUpdate::UnknownState(state) => {
            Step::Impossible(format!("is in lifecycle state {state:?}, which this release does not know"))
        }
    }
}

fn question(spec: &UpdateSpec) -> Question {
    Question { operation: steps::in_place_update(spec), dry_run: false }
}

fn announce(lifecycle: Option<&Lifecycle>, spec: &UpdateSpec, restore: bool) -> Step {
    let takes_out = lifecycle.and_then(steps::announced_update).is_some();
    Step::Announce { restore, ask: takes_out.then(|| question(spec)) }
}

fn recreate(pod: &Pod, lifecycle: Option<&Lifecycle>) -> Step {
    // Marked, it is deleted at once, unless its hook holds it in service.
    let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_delete.as_ref());
    let dry_run = hook.is_some_and(|hook| hook.is_hooked(pod) && !hook.mark_pod_not_ready);
    Step::Recreate { ask: Question { operation: Operation::Delete, dry_run } }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lifecycle(not_ready: bool) -> Lifecycle {
        let hook = json!({"finalizersHandler": ["f"], "markPodNotReady": not_ready});
        serde_json::from_value(json!({"inPlaceUpdate": hook, "preDelete": hook})).unwrap()
    }
    fn spec(strategy: &Value) -> Spec {
        let set = json!({"metadata": {"name": "web"},
            "spec": {"selector": {}, "template": {}, "updateStrategy": strategy}});
        Spec::of(&serde_json::from_value(set).unwrap())
    }
    fn image() -> UpdateSpec {
        let mut spec = UpdateSpec::default();
        spec.container_images.insert("main".into(), "i:2".into());
        spec
    }
    fn pod(state: State, hooked: bool) -> Pod {
        let finalizers = if hooked { vec!["f".to_owned()] } else { Vec::new() };
        Pod { state, finalizers, revision: "web-1".into(), ..Pod::default() }
    }
    fn ask(operation: Operation, dry_run: bool) -> Question {
        Question { operation, dry_run }
    }
    fn now() -> Step {
        Step::InPlace { spec: Box::new(image()), ask: ask(Operation::Update, false) }
    }

    #[test]
    fn hooks_decide_about_the_moment() {
        let announce = |restore| Step::Announce { restore, ask: None };
        for (state, hooked, with_hook, without) in [
            (State::None, true, announce(false), now()),
            (State::Normal, true, announce(false), now()),
            (State::Normal, false, now(), now()),
            (State::PreparingNormal, true, announce(false), now()),
            (State::PreparingUpdate, true, Step::Wait, now()),
            (State::PreparingUpdate, false, now(), now()),
            (State::Updating, true, now(), now()),
            (State::Updated, false, announce(true), Step::Wait),
        ] {
            let pod = pod(state.clone(), hooked);
            let held = step(&pod, Some(&lifecycle(false)), Ok(image()), false);
            assert_eq!(held, with_hook, "{state:?}, hooked: {hooked}");
            assert_eq!(step(&pod, None, Ok(image()), false), without, "{state:?} without a hook");
        }
    }

    #[test]
    fn budgets_are_asked_before_a_pod_goes_out_of_service() {
        let (in_service, out) = (lifecycle(false), lifecycle(true));
        let hooked = pod(State::Normal, true);
        let of = |lifecycle: &Lifecycle, spec: UpdateSpec| step(&hooked, Some(lifecycle), Ok(spec), false);
        assert_eq!(of(&in_service, image()), Step::Announce { restore: false, ask: None });
        let asked = Some(ask(Operation::Update, false));
        assert_eq!(of(&out, image()), Step::Announce { restore: false, ask: asked });
        let mut resize = UpdateSpec::default();
        resize.container_resources.insert("main".into(), serde_json::from_value(json!({})).unwrap());
        assert_eq!(of(&out, resize), Step::Announce { restore: false, ask: Some(ask(Operation::Resize, false)) });
        for (hooks, is_hooked, dry_run) in [
            (Some(&in_service), true, true),
            (Some(&out), true, false),
            (Some(&in_service), false, false),
            (None, true, false),
        ] {
            let step = recreate(&pod(State::Normal, is_hooked), hooks);
            assert_eq!(step, Step::Recreate { ask: ask(Operation::Delete, dry_run) });
        }
    }

    #[test]
    fn what_cannot_be_done_in_place_is_replaced_unless_that_is_forbidden() {
        let there = pod(State::Normal, false);
        let differs = || Err(NotInPlace::Differs("template.spec.volumes".into()));
        assert_eq!(step(&there, None, differs(), false), Step::Recreate { ask: ask(Operation::Delete, false) });
        let Step::Impossible(why) = step(&there, None, differs(), true) else { panic!() };
        assert!(why.ends_with("allows nothing else: template.spec.volumes differs"), "{why}");
        for state in [State::PreparingDelete, State::Unknown("Later".into())] {
            assert!(matches!(step(&pod(state, false), None, Ok(image()), false), Step::Impossible(_)));
        }
    }

    #[test]
    fn the_whole_decision_rests_on_the_revisions() {
        let known = |name: &str, image: &str, claims: &str| KnownRevision {
            name: name.into(),
            data: revision::data(&json!({"spec": {"containers": [{"name": "main", "image": image}]}})),
            claims_hash: Some(claims.into()),
            ..KnownRevision::default()
        };
        let revisions = [known("web-1", "i:1", "a"), known("web-2", "i:2", "b")];
        let grace = json!({"type": "InPlaceIfPossible", "inPlaceUpdateStrategy": {"gracePeriodSeconds": 7}});
        let only = json!({"type": "InPlaceOnly"});
        let decide = |strategy: &Value, from: &str, in_place: bool, recreate_on_claim_change: bool| {
            let spec = spec(strategy);
            let rules = Rules { allowed: Allowed::default(), recreate_on_claim_change };
            let updates = Updates { spec: &spec, revisions: &revisions, target: "web-2", in_place, rules };
            let there = Pod { revision: from.into(), ..pod(State::Normal, false) };
            match updates.step(&there, &mut Differences::new()) {
                Step::InPlace { spec, .. } => {
                    format!("{} after {} s", spec.container_images["main"], spec.grace_seconds)
                }
                Step::Recreate { .. } => "recreate".into(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(decide(&grace, "web-1", true, false), "i:2 after 7 s");
        assert_eq!(decide(&grace, "1", true, false), "i:2 after 7 s", "the short label");
        assert_eq!(decide(&grace, "web-1", false, false), "recreate");
        assert_eq!(decide(&grace, "web-1", true, true), "recreate", "other claims");
        assert_eq!(decide(&only, "web-1", true, true), "i:2 after 0 s", "nothing else is allowed");
        assert_eq!(decide(&grace, "web-0", true, false), "recreate", "the revision is gone");
    }

    #[test]
    fn shortfall_09_what_an_update_has_still_to_write_comes_along_with_the_next_one() {
        let known = |name: &str, images: &[(&str, &str)]| {
            let containers: Vec<Value> =
                images.iter().map(|(name, image)| json!({"name": name, "image": image})).collect();
            let data = revision::data(&json!({"spec": {"containers": containers}}));
            KnownRevision { name: name.into(), data, ..KnownRevision::default() }
        };
        let revisions = [
            known("web-1", &[("main", "i:1"), ("side", "s:1")]),
            known("web-2", &[("main", "bad"), ("side", "s:2")]),
            known("web-3", &[("main", "i:3"), ("side", "s:2")]),
            known("web-4", &[("main", "i:4"), ("side", "s:4")]),
            known("web-5", &[("main", "i:5")]),
        ];
        let image = |container: &str, image: &str| BTreeMap::from([(container.to_owned(), image.to_owned())]);
        let decide = |kind: &str, target: &str| {
            let spec = spec(&json!({ "type": kind }));
            let rules = Rules { allowed: Allowed::default(), recreate_on_claim_change: false };
            let updates = Updates { spec: &spec, revisions: &revisions, target, in_place: true, rules };
            let pending = UpdateSpec {
                revision: "web-2".into(),
                container_images: image("side", "s:2"),
                ..UpdateSpec::default()
            };
            let fields = pod(State::Updating, false);
            let waits = Pod { revision: "web-2".into(), pending: Some(Box::new(pending)), ..fields.clone() };
            let mut differences = Differences::new();
            let step = updates.step(&waits, &mut differences);
            // What one Pod has still to write is not for the others on its revision.
            let other = updates.step(&Pod { revision: "web-2".into(), ..fields }, &mut differences);
            let words = |step: Step| match step {
                Step::InPlace { spec, .. } => {
                    let images: Vec<String> = spec.container_images.into_values().collect();
                    format!("{}: {}", spec.revision, images.join(" "))
                }
                Step::Recreate { .. } => "recreate".into(),
                Step::Impossible(_) => "impossible".into(),
                other => format!("{other:?}"),
            };
            (words(step), words(other))
        };
        let possible = "InPlaceIfPossible";
        for (kind, target, waits, other) in [
            (possible, "web-3", "web-3: i:3 s:2", "web-3: i:3"),
            (possible, "web-4", "web-4: i:4 s:4", "web-4: i:4 s:4"),
            (possible, "web-1", "web-1: i:1 s:1", "web-1: i:1 s:1"),
            (possible, "web-5", "recreate", "recreate"),
            ("InPlaceOnly", "web-5", "impossible", "impossible"),
        ] {
            assert_eq!(decide(kind, target), (waits.to_owned(), other.to_owned()), "{kind} {target}");
        }
    }
}
