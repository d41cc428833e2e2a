//! What is to be done for one AdvancedCronJob now.

use std::iter;

use jiff::Timestamp;

use super::{
    make,
    schedule::{COUNTED, Schedule, Slots},
    spec::{Concurrency, CronSpec, JobKind, history_limits},
};
use crate::{
    api::apps::advanced_cron_job::{AdvancedCronJob, AdvancedCronJobStatus},
    k8s::time::whole_seconds,
};

/// Seconds by which the clock that a job was made by may be ahead of that of the API server, or of that of the next leader.
const CLOCKS_APART: i64 = 60;

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// Well.
    pub succeeded: bool,
    /// When.
    pub at: Option<Timestamp>,
}

/// A job as the rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronChild {
    /// Its kind.
    pub kind: JobKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// When the API server created it.
    pub created: Option<Timestamp>,
    /// What its annotation says: the time for which it was made.
    pub slot: Option<Timestamp>,
    /// When it began.
    pub begun: Option<Timestamp>,
    /// How it has ended, if it has.
    pub end: Option<JobEnd>,
    /// Somebody deleted it.
    pub is_deleting: bool,
}

/// Slots for which no job was made, and none will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedSlots {
    /// How many, as far as they are counted.
    pub count: u32,
    /// There are more.
    pub is_more: bool,
    /// The first one.
    pub first: Timestamp,
    /// The latest one.
    pub last: Timestamp,
    /// The latest one is past its starting deadline; otherwise another one has taken its place.
    pub is_late: bool,
}

/// What is remembered from one plan to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// [`CronPlan::made`] of the plan before or the slot of a job that was made since: a job may go before its slot is recorded.
    pub made: Option<Timestamp>,
    /// Missed slots up to this time have been reported.
    pub reported: Option<Timestamp>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CronPlan {
    /// The newest slot of the jobs that are or were there, whatever is recorded: to be remembered until it is.
    pub made: Option<Timestamp>,
    /// The newest slot for which a job was made.
    pub last: Option<Timestamp>,
    /// That slot, if it lies ahead: no job is made before.
    pub ahead: Option<Timestamp>,
    /// The slot for which a job is to be made.
    pub run: Option<Timestamp>,
    /// Jobs that are to be deleted before.
    pub replace: Vec<CronChild>,
    /// The status is written first: a slot that is not in it would be known only by a job that is about to be deleted.
    pub records_first: bool,
    /// The slot that waits for the end of jobs.
    pub waiting: Option<Timestamp>,
    /// Missed slots that have not been reported.
    pub missed: Option<MissedSlots>,
    /// The first slot that is not due.
    pub next: Option<Timestamp>,
    /// Jobs that have not ended, oldest first.
    pub active: Vec<CronChild>,
    /// Jobs that have ended and are no longer to be kept. Their slots are in the status.
    pub discard: Vec<CronChild>,
}

/// Decides. `spec` is what could be read of the object; without it no job is made. `children` are its jobs.
///
/// A slot that is not newer than every one before is never run: not after its job was deleted, not by another process, and
/// not when the clock goes back.
pub fn plan(
    cron: &AdvancedCronJob,
    spec: Option<&CronSpec>,
    children: &[CronChild],
    remembered: Remembered,
    now: Timestamp,
) -> CronPlan {
    let own = cron.metadata.name.as_deref().unwrap_or_default();
    let recorded = cron.status.as_ref().and_then(|status| status.last_schedule_time);
    // Whoever may create jobs can write any annotation and name: a slot that lies ahead would end the schedule until then.
    // By either clock, as that of the API server may be behind ours, and ours may have been set back.
    let has_come = |child: &CronChild, slot: Timestamp| {
        let ahead = |created: Timestamp| slot.as_second().saturating_sub(created.as_second());
        slot <= now || child.created.is_none_or(|created| ahead(created) <= CLOCKS_APART)
    };
    let named = |child: &CronChild| child.slot.filter(|slot| child.name == make::name(own, *slot));
    let slot_of = |child: &CronChild| named(child).filter(|slot| has_come(child, *slot));
    let made = children.iter().filter_map(slot_of).chain(remembered.made).max();
    // `recorded` is not kept in `made`, so that a user can correct status.lastScheduleTime.
    let last = made.max(recorded);
    let is_ahead = |last: &Timestamp| last.as_second().saturating_sub(now.as_second()) > CLOCKS_APART;
    let mut plan = CronPlan { made, last, ahead: last.filter(is_ahead), ..CronPlan::default() };
    plan.active = children.iter().filter(|child| child.end.is_none()).cloned().collect();
    plan.active.sort_by(|a, b| (a.slot, &a.name).cmp(&(b.slot, &b.name)));
    let is_recorded = |slot: Timestamp| recorded.is_some_and(|last| slot <= last);
    // One whose slot has not come tells of it when it comes: it may have been made while our clock was ahead.
    plan.discard = discard(cron, children, |child| named(child).is_none_or(is_recorded));

    let created = cron.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let Some(spec) = spec.filter(|spec| !spec.paused) else { return plan };
    let anchor = last.unwrap_or(created);
    let Slots { latest, first, next } = spec.schedule.slots(anchor, now);
    plan.next = next;
    let (Some(slot), Some(first)) = (latest, first) else { return plan };
    // A clock shows fractions of a second, a slot has none.
    let is_late = spec.deadline.is_some_and(|deadline| now.as_second().saturating_sub(slot.as_second()) > deadline);
    let unreported = |is_late| {
        let first = match remembered.reported.filter(|reported| *reported >= first) {
            Some(reported) => spec.schedule.next(reported, anchor)?,
            None => first,
        };
        missed(&spec.schedule, anchor, (first, slot), is_late)
    };
    let is_active = !plan.active.is_empty();
    if is_late {
        plan.missed = unreported(true);
    } else if spec.concurrency == Concurrency::Forbid && is_active {
        plan.waiting = Some(slot);
    } else {
        plan.run = Some(slot);
        plan.missed = unreported(false);
        if spec.concurrency == Concurrency::Replace {
            plan.replace = plan.active.iter().filter(|child| !child.is_deleting).cloned().collect();
            plan.records_first = !plan.replace.iter().all(|child| slot_of(child).is_none_or(is_recorded));
        }
    }
    plan
}

/// The slots from `first` up to `last`; `last` itself is missed only if it is late. None if no slot is missed.
fn missed(
    schedule: &Schedule,
    anchor: Timestamp,
    (first, last): (Timestamp, Timestamp),
    is_late: bool,
) -> Option<MissedSlots> {
    let is_missed = |slot: &Timestamp| *slot < last || (is_late && *slot == last);
    let slots = iter::successors(Some(first), |slot| schedule.next(*slot, anchor)).take_while(is_missed);
    let (_, count) = slots.zip(1..=COUNTED + 1).last()?;
    Some(MissedSlots { count: count.min(COUNTED), is_more: count > COUNTED, first, last, is_late })
}

/// Whether a job that has ended tells of a success that is not in this status.
pub fn is_news(status: Option<&AdvancedCronJobStatus>, child: &CronChild) -> bool {
    let recorded = status.and_then(|status| status.last_successful_time);
    let success = child.end.filter(|end| end.succeeded).and_then(|end| end.at);
    success.is_some_and(|at| recorded.is_none_or(|recorded| whole_seconds(at) > recorded))
}

/// Jobs beyond the limits of the history, the oldest ones.
fn discard(cron: &AdvancedCronJob, children: &[CronChild], is_recorded: impl Fn(&CronChild) -> bool) -> Vec<CronChild> {
    let (succeeded, failed) = history_limits(&cron.spec);
    let mut discarded = Vec::new();
    for (result, limit) in [(true, succeeded), (false, failed)] {
        let ended = children.iter().filter(|child| child.end.is_some_and(|end| end.succeeded == result));
        let mut ended: Vec<&CronChild> = ended.filter(|child| !child.is_deleting).collect();
        ended.sort_by(|a, b| (a.begun, &a.name).cmp(&(b.begun, &b.name)));
        let beyond = ended.len().saturating_sub(limit);
        discarded.extend(ended.into_iter().take(beyond).filter(|child| is_recorded(child)).cloned());
    }
    discarded
}

#[cfg(test)]
mod tests;
