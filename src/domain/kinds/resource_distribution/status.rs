//! What the status of a ResourceDistribution says.

use jiff::Timestamp;

use super::{memory::Operation, plan::Counts};
use crate::{
    api::apps::resource_distribution::{DistributionCondition, ResourceDistributionStatus},
    domain::workload::status::{self, Condition, Progress},
};

/// Namespaces that a condition lists.
const MOST_LISTED: usize = 200;
/// Namespaces that a message names.
const NAMED: usize = 3;
/// The longest text of others in a message, in characters. A status is stored and sent with every change of a count.
const LONGEST: usize = 300;
/// Reason of a condition that says that nothing is wrong, as OpenKruise has it.
const SUCCEEDED: &str = "Succeeded";
/// Likewise, of ConflictOccurred.
const CONFLICT: &str = "conflict with existing resources because of the same namespace, group, version, kind and name";
const MISSING: &str = "the namespace does not exist or is being deleted";
const ENDING: &str = "the copy is being deleted, and a finalizer may hold it; another one is made when it has gone";
const REFUSED: &str = "the namespace has kruise.rs/refuse-distribution=true, or Kruise runs there";
const CONFLICT_OCCURRED: &str = "ConflictOccurred";
const NAMESPACE_NOT_EXISTS: &str = "NamespaceNotExists";
const NAMESPACE_REFUSED: &str = "NamespaceRefused";
const REFERENCE_FAILED: &str = "ReferenceFailed";

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation {
    /// Copies are made and kept.
    Working,
    /// The spec cannot be followed, and why.
    Invalid(String),
    /// The ConfigMaps cannot be watched.
    Unwatched,
    /// The object that is referred to cannot be had: a word, and why.
    Reference(&'static str, String),
}

/// What else a status rests on.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether the content is that of another object.
    pub has_reference: bool,
    /// Whether the copies are seen by a watch, so that their number is known in any case.
    pub is_watched: bool,
    /// What is recorded.
    pub before: &'a ResourceDistributionStatus,
}

/// The status to record.
pub fn status(counts: &Counts, situation: &Situation, about: About<'_>, now: Timestamp) -> ResourceDistributionStatus {
    let before = about.before;
    let mut status = ResourceDistributionStatus { observed_generation: about.generation, ..before.clone() };
    let conditions = Conditions { before: &before.conditions, now };
    if !matches!(situation, Situation::Invalid(_) | Situation::Unwatched) {
        let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        status.desired = number(counts.desired);
        status.succeeded = match situation {
            // Which Secrets were copied before this process led is not known, and none was touched.
            Situation::Reference(..) if !about.is_watched => before.succeeded.min(status.desired),
            _ => number(counts.good),
        };
        status.failed = status.desired - status.succeeded;
        status.conditions = conditions.of_namespaces(counts);
    } else if status.conditions.is_empty() {
        status.conditions = conditions.of_namespaces(&Counts::default());
    }
    status.conditions.retain(|condition| !OWN.contains(&condition.type_.as_str()));
    if about.has_reference {
        let failed = match situation {
            Situation::Reference(reason, why) => Some((*reason, cut(why))),
            _ => None,
        };
        let failed = failed.as_ref().map(|(reason, why)| (*reason, why.as_str()));
        status.conditions.push(conditions.make(REFERENCE_FAILED, failed, &[]));
    }
    let progress = progress(counts, &status, situation);
    let recorded: Vec<Condition> = before.conditions.iter().map(plain).collect();
    status.conditions.extend(status::conditions(&progress, &recorded, now).map(written));
    status
}

const OWN: [&str; 4] = [REFERENCE_FAILED, status::READY, status::RECONCILING, status::STALLED];

fn progress(counts: &Counts, status: &ResourceDistributionStatus, situation: &Situation) -> Progress {
    let waiting = |reason: &str, message: String| Progress::Waiting { reason: reason.into(), message };
    let numbers = format!("{} of {} namespaces have their copy", status.succeeded, status.desired);
    match situation {
        Situation::Invalid(why) => {
            return Progress::Stalled { reason: "InvalidSpec".into(), message: cut(why) };
        }
        Situation::Unwatched => {
            let message = "the ConfigMaps cannot be read: install the component resource-distribution, which grants the right to list and watch them";
            return waiting("ConfigMapsNotRead", message.into());
        }
        Situation::Reference(reason, why) => {
            return waiting(reason, format!("{}; the copies stay as they are", cut(why)));
        }
        Situation::Working => {}
    }
    if let Some((operation, all)) = counts.failed.first_key_value() {
        return waiting(type_of(*operation), format!("{numbers}; {}", named(all)));
    }
    let listed = |names: &[String], why: &str| {
        let all: Vec<(String, String)> = names.iter().map(|name| (name.clone(), why.to_owned())).collect();
        format!("{numbers}; {}", named(&all))
    };
    if !counts.conflicts.is_empty() {
        let why = "an object of this name is there that this ResourceDistribution does not control; delete it or exclude the namespace";
        return waiting(CONFLICT_OCCURRED, listed(&counts.conflicts, why));
    }
    if !counts.ending.is_empty() {
        return waiting("CopyTerminating", listed(&counts.ending, ENDING));
    }
    if !counts.missing.is_empty() {
        return waiting(NAMESPACE_NOT_EXISTS, listed(&counts.missing, MISSING));
    }
    match counts.waiting {
        0 => Progress::Held { reason: "Distributed".into(), message: numbers },
        _ => waiting("Distributing", numbers),
    }
}

fn type_of(operation: Operation) -> &'static str {
    match operation {
        Operation::Get => "GetResourceFailed",
        Operation::Create => "CreateResourceFailed",
        Operation::Update => "UpdateResourceFailed",
        Operation::Delete => "DeleteResourceFailed",
    }
}

/// Namespaces and what is wrong there, a few of them.
fn named(all: &[(String, String)]) -> String {
    let mut texts: Vec<String> = all.iter().take(NAMED).map(|(name, why)| format!("{name}: {}", cut(why))).collect();
    if all.len() > NAMED {
        texts.push(format!("and {} more", all.len() - NAMED));
    }
    texts.join("; ")
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Conditions that are being made.
struct Conditions<'a> {
    before: &'a [DistributionCondition],
    now: Timestamp,
}

impl Conditions<'_> {
    /// Those of OpenKruise, in its order, and the one about namespaces that refuse.
    fn of_namespaces(&self, counts: &Counts) -> Vec<DistributionCondition> {
        let mut all = Vec::new();
        for operation in [Operation::Get, Operation::Create, Operation::Update, Operation::Delete] {
            let failed = counts.failed.get(&operation).map_or(&[][..], Vec::as_slice);
            let names: Vec<String> = failed.iter().map(|(name, _)| name.clone()).collect();
            let why = failed.last().map(|(_, why)| cut(why));
            all.push(self.make(type_of(operation), why.as_deref().map(|why| (why, "")), &names));
        }
        for (type_, reason, names) in [
            (CONFLICT_OCCURRED, CONFLICT, &counts.conflicts),
            (NAMESPACE_NOT_EXISTS, MISSING, &counts.missing),
            (NAMESPACE_REFUSED, REFUSED, &counts.refused),
        ] {
            all.push(self.make(type_, (!names.is_empty()).then_some((reason, "")), names));
        }
        all
    }

    /// One that is True for a reason, or False.
    fn make(&self, type_: &str, failed: Option<(&str, &str)>, names: &[String]) -> DistributionCondition {
        let (reason, message) = failed.unwrap_or((SUCCEEDED, ""));
        let before: Vec<Condition> = self.before.iter().filter(|old| old.type_ == type_).map(plain).collect();
        let mut made = written(status::set(&before, type_, failed.is_some(), reason, message, self.now));
        made.failed_namespace = names.iter().take(MOST_LISTED).cloned().collect();
        if names.len() > MOST_LISTED {
            made.message = format!("{MOST_LISTED} of {} namespaces are listed", names.len());
        }
        made
    }
}

fn plain(condition: &DistributionCondition) -> Condition {
    let DistributionCondition { type_, status, last_transition_time, reason, message, .. } = condition.clone();
    Condition { type_, status, reason, message, last_transition_time }
}

fn written(condition: Condition) -> DistributionCondition {
    let Condition { type_, status, reason, message, last_transition_time } = condition;
    DistributionCondition { type_, status, last_transition_time, reason, message, failed_namespace: Vec::new() }
}
