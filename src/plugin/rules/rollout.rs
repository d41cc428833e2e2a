//! Roll-outs of workloads: how far one is, and how it is paused, resumed and begun anew.

use std::time::Duration;

use jiff::Timestamp;
use json_patch::Patch;
use serde_json::{Value, json};

use self::figures::{Figures, clone_set, daemon_set, sidecar_set, stateful_set};
use super::{
    JsonPointer,
    exit::{Exit, Stop},
    outcome::{Line, Mark, Outcome, Waited},
    table::span,
    target::Kind,
};
use crate::{
    api::{
        apps::{self, strategies::UpdateType},
        group_of,
    },
    k8s::{int_or_percent::IntOrPercent, time::rfc3339},
};

mod figures;

/// The annotation by which everybody makes a template new without changing it.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// A kind whose roll-outs are looked after. A further kind is a line in [`ROLLS`].
#[derive(Debug)]
pub struct Rolls {
    /// As in an object.
    group: &'static str,
    /// As in an object.
    kind: &'static str,
    /// Pointer to the switch that pauses it.
    paused: &'static str,
    /// Pointer to the field that says whether Pods are updated in place.
    policy: &'static str,
    /// What its revisions hold.
    holds: Holds,
    /// How its Pods are called.
    words: &'static Words,
    /// Reads how far it is.
    figures: fn(&Value) -> Figures,
}

/// What a revision holds, and a roll-out brings to Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The template of Pods.
    Template,
    /// The containers of a SidecarSet, and what else it gives to Pods.
    Sidecars,
}

impl Holds {
    /// By the kind of an object.
    pub fn of(object: &Value) -> Self {
        Rolls::of(object).map_or(Self::Template, |rolls| rolls.holds)
    }

    /// Pointer to what has the lists of containers.
    pub const fn at(self) -> &'static str {
        match self {
            Self::Template => "/spec/template/spec",
            Self::Sidecars => "/spec",
        }
    }
}

/// How the Pods of a kind are called, as kubectl does where it has a word.
#[derive(Debug)]
struct Words {
    /// `1 out of 3 ... have been updated`.
    wanted: &'static str,
    /// `2 of 3 ...`.
    reached: &'static str,
    /// `2 ... have been updated`.
    some: &'static str,
}

const OF_TEMPLATES: Words =
    Words { wanted: "new replicas", reached: "updated replicas are available", some: "new pods" };
const OF_SIDECARS: Words = Words { wanted: "Pods", reached: "updated Pods are ready", some: "Pods" };

/// The kinds.
pub const ROLLS: &[Rolls] = &[
    Rolls {
        group: apps::GROUP,
        kind: "CloneSet",
        paused: "/spec/updateStrategy/paused",
        policy: "/spec/updateStrategy/type",
        holds: Holds::Template,
        words: &OF_TEMPLATES,
        figures: clone_set,
    },
    Rolls {
        group: apps::GROUP,
        kind: "StatefulSet",
        paused: "/spec/updateStrategy/rollingUpdate/paused",
        policy: "/spec/updateStrategy/rollingUpdate/podUpdatePolicy",
        holds: Holds::Template,
        words: &OF_TEMPLATES,
        figures: stateful_set,
    },
    Rolls {
        group: apps::GROUP,
        kind: "DaemonSet",
        paused: "/spec/updateStrategy/rollingUpdate/paused",
        policy: "/spec/updateStrategy/rollingUpdate/rollingUpdateType",
        holds: Holds::Template,
        words: &OF_TEMPLATES,
        figures: daemon_set,
    },
    Rolls {
        group: apps::GROUP,
        kind: "SidecarSet",
        paused: "/spec/updateStrategy/paused",
        policy: "/spec/updateStrategy/type",
        holds: Holds::Sidecars,
        words: &OF_SIDECARS,
        figures: sidecar_set,
    },
];

/// Conditions that say why Pods are not made or updated.
const FAILURES: [&str; 4] = ["FailedScale", "FailedUpdate", "FailedCreatePod", "FailedUpdatePod"];

/// Reason of `Progressing`, and of `Stalled` for the same cause.
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

/// The error for any other kind.
pub const OF_OTHERS: &str = "has no roll-outs here (those of the built-in kinds are kubectl's own)";

impl Rolls {
    /// What is known of an object's kind.
    pub fn of(object: &Value) -> Option<&'static Self> {
        Self::of_kind(&Kind::of(object)?)
    }

    /// What is known of a kind.
    pub fn of_kind(kind: &Kind) -> Option<&'static Self> {
        ROLLS.iter().find(|rolls| (rolls.group, rolls.kind) == (kind.group, kind.kind))
    }
}

/// The object in a command that can be copied: `cloneset/web -n shop`.
pub fn addressed(object: &Value) -> String {
    match object.text("/metadata/namespace") {
        "" => short(object),
        namespace => format!("{} -n {namespace}", short(object)),
    }
}

/// `cloneset/web`, as it can be written in a command: `statefulset.apps.kruise.io/db` is not the built-in kind.
fn short(object: &Value) -> String {
    let kind =
        Kind::of(object).map_or_else(|| object.text("/kind").to_ascii_lowercase(), |kind| kind.name().to_owned());
    format!("{kind}/{}", object.text("/metadata/name"))
}

/// `cloneset "web"`.
fn quoted(object: &Value) -> String {
    format!("{} {:?}", object.text("/kind").to_ascii_lowercase(), object.text("/metadata/name"))
}

/// Whether the status is about the spec as it is.
pub fn is_observed(object: &Value) -> bool {
    object.int("/status/observedGeneration") >= object.int("/metadata/generation")
}

/// The name of the revision that Pods are updated to, as the status says; empty if it does not.
pub fn wanted_revision(object: &Value) -> String {
    Rolls::of(object).map(|rolls| (rolls.figures)(object).revision).unwrap_or_default()
}

/// Whether somebody has paused it.
pub fn is_paused(object: &Value) -> bool {
    Rolls::of(object).is_some_and(|rolls| object.pointer(rolls.paused) == Some(&Value::Bool(true)))
}

/// A revision by which a user has named a roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// As `rollout history` shows it.
    pub number: i64,
    /// Its ControllerRevision.
    pub name: String,
}

/// When a roll-out counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Until {
    /// All Pods of the roll-out are updated, as `updatedReplicas` counts them.
    Updated,
    /// They are available too.
    #[default]
    Available,
}

/// A workload with a roll-out.
#[derive(Clone, Debug)]
pub struct Rollout {
    object: Value,
    pin: Option<Pin>,
    until: Until,
}

impl Rollout {
    /// Of a workload; with a pin, the roll-out of that revision only.
    pub fn new(object: Value, pin: Option<Pin>) -> Self {
        Self { object, pin, until: Until::default() }
    }

    /// The same, and done when this is so.
    pub fn until(self, until: Until) -> Self {
        Self { until, ..self }
    }

    /// The same roll-out, as the workload is now.
    pub fn again(&self, object: Value) -> Self {
        Self { object, pin: self.pin.clone(), until: self.until }
    }

    fn figures(&self) -> Option<Figures> {
        Rolls::of(&self.object).map(|rolls| (rolls.figures)(&self.object))
    }

    fn words(&self) -> &'static Words {
        Rolls::of(&self.object).map_or(&OF_TEMPLATES, |rolls| rolls.words)
    }

    /// How it stands.
    pub fn outcome(&self) -> Outcome {
        let Some(figures) = self.figures() else { return Outcome::Failed(OF_OTHERS.to_owned()) };
        if self.object.pointer("/metadata/deletionTimestamp").is_some() {
            return Outcome::Failed("is being deleted".into());
        }
        if !is_observed(&self.object) {
            return Outcome::Open;
        }
        if let Some(pin) = self.pin.as_ref().filter(|pin| pin.name != figures.revision) {
            return Outcome::Failed(format!(
                "desired revision ({}) is different from the running revision ({})",
                pin.number, figures.revision
            ));
        }
        if let Some(why) = self.stalled() {
            return Outcome::Failed(why);
        }
        let (enough, surplus) = match self.until {
            Until::Updated => (figures.updated, 0),
            Until::Available => (figures.updated.min(figures.available), figures.surplus),
        };
        if enough >= figures.expected && surplus == 0 {
            return Outcome::Succeeded;
        }
        match self.object.condition("Progressing") {
            Some(progressing) if progressing.text("/reason") == DEADLINE_EXCEEDED => {
                Outcome::Failed("exceeded its progress deadline".into())
            }
            _ => self.left(&figures).map_or(Outcome::Open, Outcome::Failed),
        }
    }

    /// Why there is nothing to wait for: the rest is updated only when somebody deletes Pods, or changes the spec.
    fn left(&self, figures: &Figures) -> Option<String> {
        let why = figures.left.as_ref().filter(|_| figures.updated < figures.expected)?;
        let count = self.count_of_updated(figures);
        Some(format!("does not roll out by itself: {count}; {why}{}", self.failures()))
    }

    fn count_of_updated(&self, figures: &Figures) -> String {
        format!("{} out of {} {} have been updated", figures.updated, figures.expected, self.words().wanted)
    }

    /// What to add about Pods that cannot be made or updated.
    fn failures(&self) -> String {
        let failed = FAILURES.iter().filter_map(|type_| Some((type_, self.object.true_condition(type_)?)));
        failed.map(|(type_, failed)| format!("; {type_}: {}", failed.text("/message"))).collect()
    }

    /// Why somebody has to change something: it does not go on by itself, and its counts may be those of an older spec.
    fn stalled(&self) -> Option<String> {
        let object = &self.object;
        let of_older_spec =
            object.true_condition("Stalled").and_then(|stalled| stalled.pointer("/observedGeneration")?.as_i64());
        let is_older = of_older_spec.is_some_and(|seen| seen < object.int("/metadata/generation"));
        // The deadline has words of its own. Who waits for updated Pods only does not ask whether they become available.
        let counts = |stalled: &&Value| !is_older && stalled.text("/reason") != DEADLINE_EXCEEDED;
        if let Some(stalled) = object.true_condition("Stalled").filter(counts) {
            return Some(format!("{}: {}", stalled.text("/reason"), stalled.text("/message")));
        }
        // A CloneSet with such a partition expects no Pod to be updated.
        let partition = object.pointer("/spec/updateStrategy/partition").filter(|partition| !partition.is_null());
        let failed = object
            .true_condition("FailedUpdate")
            .filter(|_| partition.is_some_and(|p| IntOrPercent::parse(p).is_err()))?;
        Some(format!("FailedUpdate: {}", failed.text("/message")))
    }

    /// What it has come to, or waits for.
    fn text(&self) -> String {
        let Some(figures) = self.figures() else { return OF_OTHERS.to_owned() };
        match self.outcome() {
            Outcome::Succeeded if figures.expected < figures.replicas => {
                let some = self.words().some;
                format!("partitioned roll out complete: {} {some} have been updated", figures.updated)
            }
            Outcome::Succeeded => "successfully rolled out".into(),
            Outcome::Failed(why) | Outcome::Nothing(why) => why,
            Outcome::Open => self.waits_for(&figures),
        }
    }

    fn waits_for(&self, figures: &Figures) -> String {
        if !is_observed(&self.object) {
            let kind = self.object.text("/kind").to_ascii_lowercase();
            return format!("waiting for {kind} spec update to be observed");
        }
        let words = self.words();
        let mut text = if figures.updated < figures.expected {
            self.count_of_updated(figures)
        } else if figures.available >= figures.expected && figures.surplus > 0 {
            format!("{} old replicas are pending termination", figures.surplus)
        } else {
            format!("{} of {} {}", figures.available, figures.expected, words.reached)
        };
        if is_paused(&self.object) && figures.updated < figures.expected {
            text += &format!("; it is paused, see kubectl kruise rollout resume {}", short(&self.object));
        } else if let Some(held) = figures.held.as_ref().filter(|_| figures.updated < figures.expected) {
            text += &format!("; {held}");
        }
        text + &self.failures()
    }

    /// What to show while it is followed.
    pub fn line(&self) -> Line {
        let mark = match self.outcome() {
            Outcome::Succeeded => Mark::Done,
            Outcome::Failed(_) | Outcome::Nothing(_) => Mark::Failed,
            Outcome::Open if is_observed(&self.object) => Mark::Working,
            Outcome::Open => Mark::Waiting,
        };
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        let reached = |figures: &Figures| match self.until {
            Until::Updated => figures.updated,
            Until::Available => figures.available,
        };
        let bar = self.figures().map(|figures| (count(reached(&figures)), count(figures.expected)));
        Line { subject: short(&self.object), mark, text: self.text(), bar }
    }

    /// What to say when nobody waits.
    pub fn sentence(&self) -> String {
        let who = quoted(&self.object);
        match self.outcome() {
            Outcome::Open if !is_observed(&self.object) => {
                format!("Waiting for {} spec update to be observed...", self.object.text("/kind").to_ascii_lowercase())
            }
            Outcome::Open => format!("Waiting for {who} rollout to finish: {}...", self.text()),
            _ => format!("{who} {}", self.text()),
        }
    }

    /// The same for who does not wait: one that is under way, or left to who deletes Pods, is no error.
    ///
    /// # Errors
    /// It has failed.
    pub fn at_once(&self) -> Result<String, Stop> {
        let left = self.figures().and_then(|figures| self.left(&figures));
        match self.outcome() {
            Outcome::Open | Outcome::Succeeded => Ok(self.sentence()),
            Outcome::Failed(why) if left.as_ref() == Some(&why) => Ok(self.sentence()),
            Outcome::Failed(_) | Outcome::Nothing(_) => Err(Stop::new(Exit::Failed, self.sentence())),
        }
    }

    /// The last word, when waiting has ended.
    pub fn verdict(&self, waited: &Waited, elapsed: Duration) -> String {
        let (who, elapsed) = (quoted(&self.object), span(elapsed));
        let name = addressed(&self.object);
        let go_on = format!(
            "it goes on. Follow it: kubectl kruise rollout status {name}; take it back: kubectl kruise rollout undo {name}"
        );
        match waited {
            Waited::Ended(_) => self.sentence(),
            Waited::Gone => format!("{who} was deleted"),
            Waited::TimedOut => {
                format!("timed out waiting for {who} after {elapsed}: {}; {go_on}", self.text())
            }
            Waited::Interrupted => format!("{who}: stopped watching after {elapsed}; {go_on}"),
        }
    }
}

/// A write to a workload. It names the object that was looked at: one of the same name made since is not touched.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A JSON merge patch.
    Merge(Value),
    /// A JSON patch.
    Json(Patch),
}

impl Write {
    /// A merge patch for an object.
    fn merge(object: &Value, mut change: Value) -> Self {
        change["metadata"] = json!({ "uid": object.text("/metadata/uid") });
        Self::Merge(change)
    }

    /// A JSON patch for an object; `generation`: only if its spec is still the one that was looked at.
    pub fn json(object: &Value, generation: bool, operations: Vec<Value>) -> Self {
        let mut all = vec![json!({ "op": "test", "path": "/metadata/uid", "value": object["metadata"]["uid"] })];
        if generation {
            let seen = &object["metadata"]["generation"];
            all.push(json!({ "op": "test", "path": "/metadata/generation", "value": seen }));
        }
        all.extend(operations);
        Self::Json(serde_json::from_value(all.into()).unwrap_or_default())
    }

    /// What the object becomes, as far as that is known without the API server.
    ///
    /// # Errors
    /// It does not fit the object.
    pub fn applied(&self, object: &Value) -> Result<Value, Stop> {
        let mut changed = object.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut changed, patch),
            Self::Json(patch) => {
                json_patch::patch(&mut changed, patch).map_err(|e| Stop::new(Exit::Failed, e.to_string()))?;
            }
        }
        Ok(changed)
    }
}

/// `clonesets.apps.kruise.io "web"`, as kubectl names what it cannot change.
fn named(object: &Value) -> String {
    let group = group_of(object.text("/apiVersion"));
    let plural = Kind::of(object).map_or("", |kind| kind.plural);
    format!("{plural}.{group} {:?}", object.text("/metadata/name"))
}

/// A merge patch of one field, by its pointer.
fn field(pointer: &str, value: Value) -> Value {
    pointer.rsplit('/').filter(|part| !part.is_empty()).fold(value, |inner, part| json!({ part: inner }))
}

/// Stops a roll-out where it is.
///
/// # Errors
/// It is paused.
pub fn pause(object: &Value) -> Result<Write, Stop> {
    match Rolls::of(object) {
        _ if is_paused(object) => Err(Stop::new(Exit::Failed, format!("{} is already paused", named(object)))),
        Some(rolls) => Ok(Write::merge(object, field(rolls.paused, true.into()))),
        None => Err(Stop::usage(format!("{} {OF_OTHERS}", named(object)))),
    }
}

/// Lets a paused roll-out go on.
///
/// # Errors
/// It is not paused.
pub fn resume(object: &Value) -> Result<Write, Stop> {
    match Rolls::of(object) {
        Some(rolls) if is_paused(object) => Ok(Write::merge(object, field(rolls.paused, Value::Null))),
        _ => Err(Stop::new(Exit::Failed, format!("{} is not paused", named(object)))),
    }
}

/// Makes the template new without changing it, and what to warn of.
///
/// # Errors
/// It has no template, is paused, or was restarted in this second.
pub fn restart(object: &Value, now: Timestamp) -> Result<(Write, Option<String>), Stop> {
    let failed = |why: &str| Err(Stop::new(Exit::Failed, format!("{} {why}", named(object))));
    if Holds::of(object) == Holds::Sidecars {
        let instead = format!("to restart its containers: kubectl kruise restart {}", short(object));
        return Err(Stop::usage(format!("{} has no template of Pods; {instead}", named(object))));
    }
    if is_paused(object) {
        return failed("can't restart paused workload (run rollout resume first)");
    }
    let now = rfc3339(now);
    let annotations = object.pointer("/spec/template/metadata/annotations");
    if annotations.and_then(|all| all.get(RESTARTED_AT)).and_then(Value::as_str) == Some(now.as_str()) {
        return failed("was restarted within the past second; please wait before restarting it again");
    }
    let change = json!({ "spec": { "template": { "metadata": { "annotations": { RESTARTED_AT: now } } } } });
    let policy = Rolls::of(object).map_or("/spec/updateStrategy/type", |rolls| rolls.policy);
    // Every kind spells it as a CloneSet does.
    let in_place = UpdateType::parse(object.text(policy)).filter(|how| how.is_in_place()).map(UpdateType::as_str);
    let warning = match in_place {
        Some(in_place) => Some(format!(
            "{} is {in_place}: Pods take over a new annotation without restarting anything; \
             to restart their containers: kubectl kruise restart {}",
            policy.trim_start_matches("/spec/").replace('/', "."),
            short(object)
        )),
        None if object.text("/spec/updateStrategy/type") == UpdateType::OnDelete.as_str() => {
            Some("updateStrategy.type is OnDelete: a Pod is replaced when somebody deletes it, not by this".to_owned())
        }
        None => None,
    };
    Ok((Write::merge(object, change), warning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::KINDS;

    fn clone_set_with(changes: Value) -> Value {
        let mut object = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 2 },
            "spec": { "replicas": 3, "template": { "spec": { "containers": [{ "name": "main", "image": "a" }] } } },
            "status": { "observedGeneration": 2, "updateRevision": "web-2", "replicas": 3,
                "expectedUpdatedReplicas": 3, "updatedReplicas": 3, "updatedAvailableReplicas": 3 } });
        json_patch::merge(&mut object, &changes);
        object
    }
    fn seen(changes: Value) -> Rollout {
        Rollout::new(clone_set_with(changes), None)
    }

    #[test]
    fn a_roll_out_is_done_when_new_pods_are_available_or_when_they_are_updated() {
        for (updated, available, until, done) in [
            (3, 3, Until::Available, true),
            (3, 2, Until::Available, false),
            (3, 0, Until::Updated, true),
            (2, 2, Until::Updated, false),
            (2, 3, Until::Available, false),
        ] {
            let status = json!({ "updatedReplicas": updated, "updatedAvailableReplicas": available });
            let rollout = seen(json!({ "status": status })).until(until);
            let is_done = rollout.outcome() == Outcome::Succeeded;
            assert_eq!(is_done, done, "{updated} {available} {until:?}");
            let bar = if until == Until::Updated { updated } else { available };
            assert_eq!(rollout.line().bar, Some((bar, 3)));
            let again = rollout.again(clone_set_with(json!({ "status": status })));
            assert_eq!(again.outcome() == Outcome::Succeeded, done, "it is the same question");
        }
        assert_eq!(seen(json!({})).until, Until::Available, "the default");
    }

    #[test]
    fn a_roll_out_says_what_it_waits_for() {
        let progressing = |reason: &str| json!([{ "type": "Progressing", "status": "False", "reason": reason }]);
        for (changes, mark, sentence) in [
            (json!({}), Mark::Done, "cloneset \"web\" successfully rolled out"),
            (
                json!({ "metadata": { "generation": 3 } }),
                Mark::Waiting,
                "Waiting for cloneset spec update to be observed...",
            ),
            (json!({ "status": null }), Mark::Waiting, "Waiting for cloneset spec update to be observed..."),
            (
                json!({ "status": { "updatedReplicas": 1, "updatedAvailableReplicas": null } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 1 out of 3 new replicas have been updated...",
            ),
            (
                json!({ "status": { "updatedAvailableReplicas": 2 } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 2 of 3 updated replicas are available...",
            ),
            (
                json!({ "status": { "expectedUpdatedReplicas": 1, "updatedReplicas": 1, "updatedAvailableReplicas": 1 } }),
                Mark::Done,
                "cloneset \"web\" partitioned roll out complete: 1 new pods have been updated",
            ),
            // 0 is left out of the status: the whole CloneSet is held by its partition.
            (
                json!({ "status": { "expectedUpdatedReplicas": null, "updatedReplicas": 0, "updatedAvailableReplicas": null } }),
                Mark::Done,
                "cloneset \"web\" partitioned roll out complete: 0 new pods have been updated",
            ),
            (
                json!({ "spec": { "updateStrategy": { "paused": true } }, "status": { "updatedReplicas": 1 } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 1 out of 3 new replicas have been updated; \
                 it is paused, see kubectl kruise rollout resume cloneset/web...",
            ),
            (
                json!({ "spec": { "updateStrategy": { "type": "OnDelete" } }, "status": { "updatedReplicas": 1 } }),
                Mark::Failed,
                "cloneset \"web\" does not roll out by itself: 1 out of 3 new replicas have been updated; \
                 updateStrategy.type is OnDelete: a Pod is updated when somebody deletes it",
            ),
            (
                json!({ "status": { "updatedReplicas": 1, "conditions": [
                    { "type": "FailedUpdate", "status": "True", "message": "no" }, { "type": "FailedScale", "status": "False" }] } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 1 out of 3 new replicas have been updated; \
                 FailedUpdate: no...",
            ),
            (
                json!({ "status": { "updatedAvailableReplicas": 2, "conditions": progressing("ProgressDeadlineExceeded") } }),
                Mark::Failed,
                "cloneset \"web\" exceeded its progress deadline",
            ),
            (
                json!({ "metadata": { "generation": 3 },
                    "status": { "updatedAvailableReplicas": 2, "conditions": progressing("ProgressDeadlineExceeded") } }),
                Mark::Waiting,
                "Waiting for cloneset spec update to be observed...",
            ),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                Mark::Failed,
                "cloneset \"web\" is being deleted",
            ),
            (
                json!({ "status": { "replicas": 5 } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 2 old replicas are pending termination...",
            ),
            (
                json!({ "status": { "replicas": 4, "updatedAvailableReplicas": 2 } }),
                Mark::Working,
                "Waiting for cloneset \"web\" rollout to finish: 2 of 3 updated replicas are available...",
            ),
        ] {
            let rollout = seen(changes.clone());
            assert_eq!((rollout.line().mark, rollout.sentence().as_str()), (mark, sentence), "{changes}");
        }
        assert_eq!(seen(json!({ "status": { "updatedAvailableReplicas": 2 } })).line().bar, Some((2, 3)));
    }

    #[test]
    fn who_does_not_wait_gets_an_error_only_for_a_roll_out_that_has_failed() {
        assert_eq!(seen(json!({})).at_once().unwrap(), "cloneset \"web\" successfully rolled out");
        let open = seen(json!({ "status": { "updatedReplicas": 1 } })).at_once().unwrap();
        assert!(open.starts_with("Waiting for cloneset \"web\" rollout to finish: 1 out of 3"), "{open}");
        let progressing = json!([{ "type": "Progressing", "reason": "ProgressDeadlineExceeded" }]);
        let failed = seen(json!({ "status": { "updatedReplicas": 1, "conditions": progressing } })).at_once();
        let stop = Stop::new(Exit::Failed, "cloneset \"web\" exceeded its progress deadline");
        assert_eq!(failed, Err(stop));
    }

    /// Of three Pods, OnDelete: whether waiting ends with an error. Who does not wait gets the words and no error.
    #[test]
    fn a_roll_out_that_is_left_to_who_deletes_pods_is_not_waited_for() {
        let strategy = json!({ "type": "OnDelete", "rollingUpdate": { "partition": 2 } });
        let held = |reason: &str| json!([{ "type": "Ready", "status": "True", "reason": reason }]);
        let stateful = |current: i64, updated: i64, now: &str, conditions: Value| {
            let status = json!({ "observedGeneration": 2, "currentReplicas": current, "updatedReplicas": updated,
                "updatedAvailableReplicas": updated, "currentRevision": now, "updateRevision": "db-2",
                "replicas": 3, "conditions": conditions });
            stateful_set_of(json!({ "replicas": 3, "updateStrategy": strategy }), status)
        };
        let daemon = |updated: i64, there: i64, conditions: Value| {
            json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
                "metadata": { "name": "agent", "namespace": "ns", "uid": "u", "generation": 2 },
                "spec": { "updateStrategy": strategy },
                "status": { "observedGeneration": 2, "desiredNumberScheduled": 3, "currentNumberScheduled": there,
                    "numberAvailable": there, "updatedNumberScheduled": updated, "conditions": conditions } })
        };
        let clone = |there: i64, updated: i64, available: i64| {
            clone_set_with(json!({ "spec": { "updateStrategy": { "type": "OnDelete" } },
                "status": { "replicas": there, "updatedReplicas": updated, "updatedAvailableReplicas": available } }))
        };
        let (left, open, done) = (Some(true), Some(false), None);
        for (object, wanted) in [
            (clone(3, 0, 0), left),
            (clone(3, 1, 0), left),
            // The successors of those that were deleted are on their way.
            (clone(3, 3, 2), open),
            (clone(2, 2, 2), open),
            // It is new.
            (clone(0, 0, 0), open),
            (clone(3, 3, 3), done),
            (stateful(3, 0, "db-1", json!([])), left),
            (stateful(1, 2, "db-1", json!([])), left),
            // Of a third revision.
            (stateful(0, 2, "db-1", held("OnDelete")), left),
            (stateful(0, 2, "db-1", json!([])), open),
            (stateful(2, 2, "db-2", json!([])), open),
            (stateful(0, 3, "db-1", held("Available")), done),
            (daemon(1, 3, held("OnDelete")), left),
            (daemon(1, 3, json!([])), left),
            (daemon(1, 1, json!([])), open),
            (daemon(3, 3, held("Available")), done),
        ] {
            let rollout = Rollout::new(object.clone(), None);
            let outcome = rollout.outcome();
            let found = (outcome != Outcome::Succeeded).then_some(outcome != Outcome::Open);
            assert_eq!(found, wanted, "{object}: {}", rollout.text());
            let words = rollout.at_once().unwrap();
            assert_eq!(words.contains("does not roll out by itself: "), wanted == left, "{words}");
            assert_eq!(words.ends_with("a Pod is updated when somebody deletes it"), wanted == left, "{words}");
        }
        let quota = json!([{ "type": "FailedScale", "status": "True", "message": "quota" }]);
        let mut object = clone(2, 1, 1);
        object["status"]["conditions"] = quota;
        assert!(Rollout::new(object, None).text().ends_with("deletes it; FailedScale: quota"));
    }

    #[test]
    fn old_pods_that_still_serve_do_not_matter_to_who_waits_for_updated_ones() {
        let surplus = json!({ "status": { "replicas": 4, "updatedAvailableReplicas": 0 } });
        assert_eq!(seen(surplus).until(Until::Updated).outcome(), Outcome::Succeeded);
    }

    #[test]
    fn pods_that_a_scale_down_deletes_do_not_belong_to_the_roll_out() {
        let late = json!([{ "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded" }]);
        let exceeded = || Outcome::Failed("exceeded its progress deadline".into());
        for (there, updated, expected, conditions, outcome) in [
            // A hook holds updated Pods, however long.
            (5, 5, 3, json!([]), Outcome::Succeeded),
            (5, 5, 3, late.clone(), Outcome::Succeeded),
            // The old ones of a surge.
            (5, 4, 3, json!([]), Outcome::Open),
            (5, 3, 3, late.clone(), exceeded()),
            // Two old ones are kept by the partition, a third one is not.
            (4, 2, 1, json!([]), Outcome::Succeeded),
            (4, 1, 1, json!([]), Outcome::Open),
            // Too few are updated: the roll-out goes on beside the scale-down.
            (5, 2, 3, json!([]), Outcome::Open),
        ] {
            let status = json!({ "replicas": there, "updatedReplicas": updated, "updatedAvailableReplicas": updated,
                "expectedUpdatedReplicas": expected, "conditions": conditions });
            let rollout = seen(json!({ "status": status }));
            assert_eq!(rollout.outcome(), outcome, "{there} {updated} {expected} {}", rollout.text());
        }
    }

    #[test]
    fn a_roll_out_that_cannot_go_on_has_failed_whatever_its_counts_say() {
        let is_true = |type_: &str, reason: &str, generation: Option<i64>| {
            let mut condition = json!({ "type": type_, "status": "True", "reason": reason, "message": "why" });
            if let Some(generation) = generation {
                condition["observedGeneration"] = generation.into();
            }
            json!({ "status": { "conditions": [condition] } })
        };
        let failed = |why: &str| Outcome::Failed(why.into());
        let with = |mut changes: Value, partition: Value| {
            changes["spec"] = json!({ "updateStrategy": { "partition": partition } });
            changes
        };
        for (changes, outcome) in [
            (is_true("Stalled", "InvalidSpec", None), failed("InvalidSpec: why")),
            (is_true("Stalled", "InvalidSpec", Some(2)), failed("InvalidSpec: why")),
            (is_true("Stalled", "InvalidSpec", Some(1)), Outcome::Succeeded),
            (is_true("Reconciling", "InvalidSpec", None), Outcome::Succeeded),
            // Without `Progressing` beside it nobody waits for anything.
            (is_true("Stalled", "ProgressDeadlineExceeded", None), Outcome::Succeeded),
            (is_true("FailedUpdate", "", None), Outcome::Succeeded),
            (with(is_true("FailedUpdate", "", None), json!("20%")), Outcome::Succeeded),
            (with(is_true("FailedUpdate", "", None), json!("many")), failed("FailedUpdate: why")),
            (with(json!({}), json!("many")), Outcome::Succeeded),
        ] {
            assert_eq!(seen(changes.clone()).outcome(), outcome, "{changes}");
        }
        let unseen = json!({ "metadata": { "generation": 3 }, "status": is_true("Stalled", "A", None)["status"] });
        assert_eq!(seen(unseen).outcome(), Outcome::Open, "it is about an older spec");
    }

    #[test]
    fn odd_objects_are_taken() {
        for odd in [
            json!({}),
            json!([]),
            json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet" }),
            json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": 1, "spec": [], "status": "x" }),
            clone_set_with(json!({ "spec": { "replicas": "many", "updateStrategy": [true], "template": 3 },
                "status": { "updatedReplicas": -7, "expectedUpdatedReplicas": 9_000_000_000_u64, "conditions": [1, {}] } })),
        ] {
            let rollout = Rollout::new(odd.clone(), Some(Pin { number: 1, name: "x".into() }));
            assert!(!rollout.sentence().is_empty() && !rollout.line().text.is_empty());
            assert!(!rollout.verdict(&Waited::TimedOut, Duration::ZERO).is_empty());
            let _ = (pause(&odd).is_ok(), resume(&odd).is_ok(), restart(&odd, Timestamp::UNIX_EPOCH).is_ok());
        }
    }

    #[test]
    fn a_pinned_roll_out_is_that_of_one_revision() {
        let pin = |name: &str| Some(Pin { number: 7, name: name.into() });
        let outcome = |pin, changes| Rollout::new(clone_set_with(changes), pin).outcome();
        assert_eq!(outcome(pin("web-2"), json!({})), Outcome::Succeeded);
        assert_eq!(
            outcome(pin("web-1"), json!({})),
            Outcome::Failed("desired revision (7) is different from the running revision (web-2)".into())
        );
        assert_eq!(outcome(pin("web-1"), json!({ "metadata": { "generation": 3 } })), Outcome::Open, "not yet known");
        let again = Rollout::new(clone_set_with(json!({})), pin("web-2"))
            .again(clone_set_with(json!({ "status": { "updateRevision": "web-3" } })));
        assert!(matches!(again.outcome(), Outcome::Failed(why) if why.contains("running revision (web-3)")));
    }

    #[test]
    fn who_stops_waiting_learns_what_is_missing_and_how_to_go_on() {
        let rollout = seen(json!({ "status": { "updatedReplicas": 1 } }));
        assert_eq!(
            rollout.verdict(&Waited::TimedOut, Duration::from_secs(30)),
            "timed out waiting for cloneset \"web\" after 30.0s: 1 out of 3 new replicas have been updated; it goes on. \
             Follow it: kubectl kruise rollout status cloneset/web -n shop; \
             take it back: kubectl kruise rollout undo cloneset/web -n shop"
        );
        let done = seen(json!({}));
        assert_eq!(
            done.verdict(&Waited::Ended(done.outcome()), Duration::from_secs(3)),
            "cloneset \"web\" successfully rolled out"
        );
        assert_eq!(done.verdict(&Waited::Gone, Duration::ZERO), "cloneset \"web\" was deleted");
    }

    #[test]
    fn paused_and_resumed_is_one_field() {
        let running = clone_set_with(json!({}));
        let Ok(Write::Merge(patch)) = pause(&running) else { panic!("a merge patch") };
        assert_eq!(patch, json!({ "metadata": { "uid": "u" }, "spec": { "updateStrategy": { "paused": true } } }));
        let paused = Write::Merge(patch).applied(&running).unwrap();
        assert_eq!(pause(&paused).unwrap_err().message, "clonesets.apps.kruise.io \"web\" is already paused");
        let again = resume(&paused).unwrap().applied(&paused).unwrap();
        assert_eq!(again["spec"]["updateStrategy"], json!({}));
        assert_eq!(resume(&again).unwrap_err().message, "clonesets.apps.kruise.io \"web\" is not paused");
        let off = clone_set_with(json!({ "spec": { "updateStrategy": { "paused": false } } }));
        assert!(pause(&off).is_ok() && resume(&off).is_err());
    }

    #[test]
    fn a_restart_is_an_annotation_of_the_template() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let running =
            clone_set_with(json!({ "spec": { "template": { "metadata": { "annotations": { "a": "b" } } } } }));
        let (write, warning) = restart(&running, at(0)).unwrap();
        let changed = write.applied(&running).unwrap();
        assert_eq!(
            changed["spec"]["template"]["metadata"]["annotations"],
            json!({ "a": "b", "kubectl.kubernetes.io/restartedAt": "1970-01-01T00:00:00Z" })
        );
        assert_eq!(changed["spec"]["template"]["spec"], running["spec"]["template"]["spec"]);
        assert_eq!(warning, None);
        assert!(restart(&changed, at(0)).unwrap_err().message.contains("within the past second"));
        assert!(restart(&changed, at(1)).is_ok());
        for (type_, words) in [
            ("InPlaceIfPossible", "kubectl kruise restart cloneset/web"),
            ("InPlaceOnly", "InPlaceOnly"),
            ("OnDelete", "deletes"),
        ] {
            let object = clone_set_with(json!({ "spec": { "updateStrategy": { "type": type_ } } }));
            let warning = restart(&object, at(0)).unwrap().1.unwrap_or_default();
            assert!(warning.contains(words), "{warning}");
        }
        let paused = clone_set_with(json!({ "spec": { "updateStrategy": { "paused": true } } }));
        assert!(restart(&paused, at(0)).unwrap_err().message.contains("run rollout resume first"));
    }

    #[test]
    fn every_kind_of_the_table_can_be_named() {
        let of_table = KINDS.iter().filter(|kind| kind.rolls_out);
        assert_eq!(of_table.clone().count(), ROLLS.len());
        for kind in of_table {
            let object = json!({ "apiVersion": kind.api_version(), "kind": kind.kind });
            assert_eq!(Rolls::of(&object).map(|found| (found.group, found.kind)), Some((kind.group, kind.kind)));
        }
    }

    fn stateful_set_of(spec: Value, status: Value) -> Value {
        json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
            "metadata": { "name": "db", "namespace": "a", "uid": "u", "generation": 2 }, "spec": spec,
            "status": status })
    }

    #[test]
    fn a_stateful_set_is_held_by_its_partition() {
        let rolled = |partition: Value, updated: i64| {
            let spec = json!({ "replicas": 5, "updateStrategy": { "rollingUpdate": { "partition": partition } } });
            let status =
                json!({ "observedGeneration": 2, "updatedReplicas": updated, "updatedAvailableReplicas": updated });
            Rollout::new(stateful_set_of(spec, status), None)
        };
        assert_eq!(rolled(json!(0), 5).text(), "successfully rolled out");
        assert_eq!(rolled(json!(3), 2).text(), "partitioned roll out complete: 2 new pods have been updated");
        assert_eq!(rolled(json!("50%"), 2).outcome(), Outcome::Succeeded);
        assert_eq!(rolled(json!(9), 0).outcome(), Outcome::Succeeded);
        assert_eq!(rolled(json!("100%"), 0).outcome(), Outcome::Succeeded);
        assert_eq!(rolled(json!("99%"), 0).text(), "0 out of 1 new replicas have been updated", "as the controller");
        assert_eq!(rolled(json!("99%"), 1).outcome(), Outcome::Succeeded);
        assert_eq!(rolled(json!(3), 1).text(), "1 out of 2 new replicas have been updated");
        assert_eq!(rolled(json!(0), 1).line().subject, "statefulset.apps.kruise.io/db");
    }

    /// With a Pod on each of five nodes.
    fn daemon_set_of(rolling: Value, (updated, available): (i64, i64), ready: (&str, &str)) -> Rollout {
        let object = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
            "metadata": { "name": "agent", "namespace": "ns", "uid": "u", "generation": 2 },
            "spec": { "updateStrategy": { "rollingUpdate": rolling } },
            "status": { "observedGeneration": 2, "desiredNumberScheduled": 5, "currentNumberScheduled": 5,
                "numberAvailable": available, "updatedNumberScheduled": updated, "updateRevision": "2",
                "conditions": [{ "type": "Ready", "status": ready.0, "reason": ready.1 }] } });
        Rollout::new(object, None)
    }

    #[test]
    fn a_daemon_set_is_held_by_its_partition_or_its_selector() {
        let selector = json!({ "selector": { "matchLabels": { "canary": "yes" } } });
        let paused = json!({ "selector": selector["selector"], "paused": true });
        for (rolling, counts, ready, done) in [
            (json!({}), (3, 5), ("False", "Progressing"), false),
            (json!({}), (5, 5), ("True", "Available"), true),
            (json!({}), (5, 4), ("False", "PodNotReady"), false),
            // 5 without 2.
            (json!({ "partition": "50%" }), (3, 5), ("True", "Partition"), true),
            (json!({ "partition": "50%" }), (2, 5), ("False", "Progressing"), false),
            // The canary is down. That the old Pods are available is not enough.
            (json!({ "partition": 4 }), (1, 4), ("False", "PodNotReady"), false),
            // More are new than there have to be, and of these at least enough are available.
            (json!({ "partition": 4 }), (2, 4), ("False", "PodNotReady"), true),
            (selector.clone(), (0, 5), ("False", "Progressing"), false),
            (selector.clone(), (1, 5), ("True", "Selector"), true),
            (selector.clone(), (5, 5), ("True", "Available"), true),
            (selector.clone(), (1, 5), ("True", "Partition"), true),
            // Nothing is begun.
            (paused, (0, 5), ("True", "Paused"), false),
            (selector, (0, 5), ("True", "OnDelete"), false),
        ] {
            let rollout = daemon_set_of(rolling.clone(), counts, ready);
            assert_eq!(rollout.outcome() == Outcome::Succeeded, done, "{rolling} {counts:?} {ready:?}");
        }
        let fresh = daemon_set_of(json!({}), (5, 5), ("True", "Available"));
        assert_eq!(fresh.line().subject, "daemonset.apps.kruise.io/agent");
        assert_eq!(fresh.figures().unwrap().revision, "agent-2");
    }

    #[test]
    fn nodes_without_a_pod_do_not_make_new_pods_unavailable() {
        // With partitionedScaling.
        let mut rollout = daemon_set_of(json!({ "partition": 3 }), (2, 2), ("True", "Partition"));
        rollout.object["status"]["currentNumberScheduled"] = 2.into();
        assert_eq!(rollout.outcome(), Outcome::Succeeded);
    }

    /// With three Pods that have the containers.
    fn sidecar_set_of(strategy: Value, updated: i64, ready: i64, conditions: Value) -> Rollout {
        let object = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": { "name": "logs", "uid": "u", "generation": 2 },
            "spec": { "selector": { "matchLabels": { "a": "b" } }, "containers": [{ "name": "c", "image": "i:1" }],
                "updateStrategy": strategy },
            "status": { "observedGeneration": 2, "matchedPods": 3, "updatedPods": updated, "updatedReadyPods": ready,
                "latestRevision": "logs-2", "conditions": conditions } });
        Rollout::new(object, None)
    }

    #[test]
    fn a_sidecar_set_is_followed() {
        let is = |type_: &str, reason: &str| json!([{ "type": type_, "status": "True", "reason": reason, "message": "why" }]);
        let selector = json!({ "selector": { "matchLabels": { "x": "y" } } });
        for (strategy, (updated, ready), conditions, done, text) in [
            (json!({}), (3, 3), json!([]), true, "successfully rolled out"),
            (json!({}), (3, 2), json!([]), false, "2 of 3 updated Pods are ready"),
            (json!({}), (1, 1), is("Reconciling", "Updating"), false, "1 out of 3 Pods have been updated"),
            (
                json!({}),
                (1, 1),
                is("Reconciling", "BudgetRefused"),
                false,
                "1 out of 3 Pods have been updated; BudgetRefused: why",
            ),
            (
                json!({ "partition": 2 }),
                (1, 1),
                json!([]),
                true,
                "partitioned roll out complete: 1 Pods have been updated",
            ),
            (
                json!({ "partition": "99%" }),
                (1, 1),
                json!([]),
                true,
                "partitioned roll out complete: 1 Pods have been updated",
            ),
            (
                selector.clone(),
                (1, 1),
                is("Ready", "Selector"),
                true,
                "partitioned roll out complete: 1 Pods have been updated",
            ),
            (selector, (1, 0), is("Ready", "Selector"), false, "0 of 1 updated Pods are ready"),
            (
                json!({}),
                (1, 1),
                is("Ready", "NotUpgradable"),
                false,
                "does not roll out by itself: 1 out of 3 Pods have been updated; why",
            ),
            (
                json!({ "type": "NotUpdate" }),
                (0, 0),
                is("Ready", "NotUpdate"),
                false,
                "does not roll out by itself: 0 out of 3 Pods have been updated; why",
            ),
            (
                json!({ "paused": true }),
                (0, 0),
                is("Ready", "Paused"),
                false,
                "0 out of 3 Pods have been updated; it is paused, see kubectl kruise rollout resume sidecarset/logs",
            ),
        ] {
            let rollout = sidecar_set_of(strategy.clone(), updated, ready, conditions);
            assert_eq!((rollout.outcome() == Outcome::Succeeded, rollout.text().as_str()), (done, text), "{strategy}");
        }
        let late = sidecar_set_of(json!({}), 1, 1, json!([])).verdict(&Waited::TimedOut, Duration::from_secs(1));
        assert!(late.ends_with("take it back: kubectl kruise rollout undo sidecarset/logs"), "no namespace: {late}");
    }

    #[test]
    fn a_sidecar_set_is_paused_and_has_nothing_to_restart_by_its_template() {
        let running = sidecar_set_of(json!({}), 3, 3, json!([])).object;
        let Write::Merge(patch) = pause(&running).unwrap() else { panic!("no merge patch") };
        assert_eq!(patch, json!({ "metadata": { "uid": "u" }, "spec": { "updateStrategy": { "paused": true } } }));
        let stop = restart(&running, Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(stop.exit, Exit::Usage);
        assert!(stop.message.ends_with("kubectl kruise restart sidecarset/logs"), "{stop}");
    }

    #[test]
    fn why_pods_of_a_stateful_set_are_not_made_is_told() {
        let status = json!({ "observedGeneration": 2, "conditions": [
            { "type": "FailedCreatePod", "status": "True", "message": "no quota" }, { "type": "Stalled", "status": "False", "message": "x" }] });
        let text = Rollout::new(stateful_set_of(json!({ "replicas": 1 }), status), None).text();
        assert_eq!(text, "0 out of 1 new replicas have been updated; FailedCreatePod: no quota");
    }

    #[test]
    fn a_stateful_set_is_paused_and_restarted() {
        let object = stateful_set_of(json!({}), json!({}));
        let Write::Merge(patch) = pause(&object).unwrap() else { panic!("no merge patch") };
        assert_eq!(patch["spec"], json!({ "updateStrategy": { "rollingUpdate": { "paused": true } } }));
        let paused = stateful_set_of(patch["spec"].clone(), json!({}));
        assert!(is_paused(&paused) && resume(&paused).is_ok());
        let in_place = stateful_set_of(
            json!({ "updateStrategy": { "rollingUpdate": { "podUpdatePolicy": "InPlaceOnly" } } }),
            json!({}),
        );
        let (_, warning) = restart(&in_place, Timestamp::UNIX_EPOCH).unwrap();
        let warning = warning.unwrap();
        assert!(warning.starts_with("updateStrategy.rollingUpdate.podUpdatePolicy is InPlaceOnly"), "{warning}");
        assert!(warning.ends_with("kubectl kruise restart statefulset.apps.kruise.io/db"), "{warning}");
    }
}
