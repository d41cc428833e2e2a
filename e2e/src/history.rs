//! What a CloneSet must never do, held against the history of its Pods and claims.
//!
//! Versions of all objects come from one counter, so what several watches showed can be put into the order in which it
//! happened. The manager acts on what it knows, which may lag behind; it has said in `status.observedGeneration` what it
//! knows at least. So each of its acts has to be right for some spec from that one up to the newest. What a fault or a
//! user has taken down is not the manager's doing.
//!
//! Time counts where a spec counts it, in seconds of readiness and of grace. An act is seen after it was done, so at the
//! moment when it was seen every Pod is available that was when it was done.
//!
//! The model is on purpose a plain one, and knows nothing of the rules in the product.

mod model;
mod seen;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;

use self::model::Model;
use self::seen::INSTANCE;
pub use self::seen::{Claim, HOOKS, Hook, Pod, Spec, Tags};
use crate::kit::Look;

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The CloneSet as it was written, by its user or by the manager.
    CloneSet {
        generation: i64,
        observed: i64,
        spec: Box<Spec>,
        status: bool,
        available: i64,
    },
    /// A Pod as it was written, by its UID.
    Pod(String, Box<Pod>),
    Gone(String),
    /// A claim as it was written, by its UID.
    Claim(String, Claim),
    ClaimGone(String),
    /// The budget as it was written: its generation, the one that was observed, and its `maxUnavailable`.
    Budget {
        generation: i64,
        observed: i64,
        most: i64,
    },
    BudgetGone,
}

/// Everything that happened, by version, with the time when it was seen.
#[derive(Debug, Default)]
pub struct History {
    events: BTreeMap<u64, (Timestamp, Event)>,
    statuses: BTreeSet<String>,
    claims: BTreeSet<String>,
    pub theirs: Theirs,
}

/// Names of Pods with which users were about to do something.
#[derive(Debug, Clone, Default)]
pub struct Theirs {
    pub deleted: BTreeSet<String>,
    pub marked: BTreeSet<String>,
}

impl History {
    fn version(object: &DynamicObject) -> u64 {
        object.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
    }

    fn note(&mut self, object: &DynamicObject, event: Event) {
        self.events.insert(Self::version(object), (Timestamp::now(), event));
    }

    pub fn clone_set(&mut self, object: &DynamicObject) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let event = Event::CloneSet {
            generation: value.int("/metadata/generation"),
            observed: value.int("/status/observedGeneration"),
            spec: Box::new(Spec::of(&value)),
            // a write of the manager, unless only the spec was changed
            status: self.statuses.insert(value["status"].to_string()),
            available: value.int("/status/availableReplicas"),
        };
        self.note(object, event);
    }

    pub fn pod(&mut self, object: &DynamicObject) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        self.note(object, Event::Pod(uid, Box::new(Pod::of(&value))));
    }

    pub fn gone(&mut self, object: &DynamicObject) {
        self.note(object, Event::Gone(object.metadata.uid.clone().unwrap_or_default()));
    }

    /// One that is not `owned` any more has been given to its Pod, with which it goes.
    pub fn claim(&mut self, object: &DynamicObject, owned: bool) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        if owned {
            self.claims.insert(uid.clone());
            let claim = Claim {
                name: value.text("/metadata/name").to_owned(),
                instance: value.text(INSTANCE).to_owned(),
                deleting: value.has("/metadata/deletionTimestamp"),
            };
            self.note(object, Event::Claim(uid, claim));
        } else if self.claims.contains(&uid) {
            self.note(object, Event::ClaimGone(uid));
        }
    }

    pub fn claim_gone(&mut self, object: &DynamicObject) {
        self.note(object, Event::ClaimGone(object.metadata.uid.clone().unwrap_or_default()));
    }

    /// The PodUnavailableBudget of the Pods, with `maxUnavailable` as a number.
    pub fn budget(&mut self, object: &DynamicObject) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let event = Event::Budget {
            generation: value.int("/metadata/generation"),
            observed: value.int("/status/observedGeneration"),
            most: value.int("/spec/maxUnavailable"),
        };
        self.note(object, event);
    }

    pub fn budget_gone(&mut self, object: &DynamicObject) {
        self.note(object, Event::BudgetGone);
    }

    fn model(&self) -> Model {
        Model::of(self.theirs.clone())
    }

    /// What was done that must not be, each with the version at which it was.
    pub fn wrongs(&self) -> Vec<String> {
        let mut model = self.model();
        let mut wrongs = Vec::new();
        for (version, (at, event)) in &self.events {
            wrongs.extend(model.event(*at, event).into_iter().map(|wrong| format!("at version {version}: {wrong}")));
        }
        wrongs
    }

    /// Of a history that has come to rest: claims of Pods that the manager has deleted. One that dies between the deletion
    /// of a Pod and that of its claims leaves some, which the next new Pod gets.
    pub fn claims_left(&self) -> Vec<String> {
        let mut model = self.model();
        self.events.values().for_each(|(at, event)| drop(model.event(*at, event)));
        let left = model.claims_left();
        left.map(|claim| format!("{} was left by a Pod that the manager deleted", claim.name)).collect()
    }

    /// What was done, so that one sees what a history has tried.
    pub fn acts(&self) -> Acts {
        let mut model = self.model();
        self.events.values().for_each(|(at, event)| drop(model.event(*at, event)));
        model.acts
    }

    /// For a failure: the last events, one a line.
    pub fn tail(&self, count: usize) -> String {
        let skipped = self.events.len().saturating_sub(count);
        let lines = self.events.iter().skip(skipped).map(|(version, (at, event))| {
            let event = match event {
                Event::CloneSet { generation, observed, spec, available, .. } => {
                    format!("CloneSet generation {generation}, observed {observed}, available {available}: {spec:?}")
                }
                Event::Pod(_, pod) => format!("{pod:?}"),
                Event::Gone(uid) => format!("gone: {uid}"),
                Event::Claim(_, claim) => format!("{claim:?}"),
                Event::ClaimGone(uid) => format!("claim gone: {uid}"),
                Event::Budget { generation, observed, most } => {
                    format!("budget generation {generation}, observed {observed}: {most} may be unavailable")
                }
                Event::BudgetGone => "budget gone".into(),
            };
            format!("{version} {at} {event}")
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// How often something was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acts {
    pub created: usize,
    /// With as many Pods as may be.
    pub created_at_limit: usize,
    pub taken_down: usize,
    /// With as few Pods left as may be.
    pub taken_down_at_limit: usize,
    pub updated_in_place: usize,
    pub after_grace: usize,
    pub marked: usize,
    /// Came to wait for a hook.
    pub held: usize,
    pub claims_reused: usize,
    /// Deleted under a budget.
    pub deleted_under_budget: usize,
    /// With as few Pods left as the budget wants.
    pub deleted_at_budget: usize,
}

impl Acts {
    /// Counts those of another history too.
    pub fn add(&mut self, other: &Self) {
        let Self {
            created,
            created_at_limit,
            taken_down,
            taken_down_at_limit,
            updated_in_place,
            after_grace,
            marked,
            held,
            claims_reused,
            deleted_under_budget,
            deleted_at_budget,
        } = other;
        for (sum, more) in [
            (&mut self.created, created),
            (&mut self.created_at_limit, created_at_limit),
            (&mut self.taken_down, taken_down),
            (&mut self.taken_down_at_limit, taken_down_at_limit),
            (&mut self.updated_in_place, updated_in_place),
            (&mut self.after_grace, after_grace),
            (&mut self.marked, marked),
            (&mut self.held, held),
            (&mut self.claims_reused, claims_reused),
            (&mut self.deleted_under_budget, deleted_under_budget),
            (&mut self.deleted_at_budget, deleted_at_budget),
        ] {
            *sum += more;
        }
    }
}
