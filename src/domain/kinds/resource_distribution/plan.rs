//! What there is to do in which namespace, and when.
//!
//! [`Survey::of`] looks at everything, [`Survey::take`] chooses the steps that are due. What is known to be wanted is done at
//! once; what may have been changed by others, and is not seen by a watch, is looked at in turns: each copy within
//! [`Periods::copies`] of its last look or write, a few of them every [`Periods::tick`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    content::{Content, ResourceKind},
    memory::{CopyState, DistributionMemory, KnownNamespace, Operation},
    spec::{DistributionSpec, NamespaceFacts, Relation},
    turns::{Load, PERIOD, Periods, TICK},
};

/// Steps of one pass: then it is looked again.
pub const MOST_STEPS: usize = 2000;
/// Those among them that have failed before.
pub const MOST_AGAIN: usize = 100;

/// What a watch shows in a namespace under the name of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenCopy {
    /// A copy; whether it is as it should be.
    Copy {
        /// Nothing has to be written.
        fits: bool,
    },
    /// A copy that is being deleted: another one can be made when it is gone.
    Ending,
    /// An object of others.
    Others,
}

/// Everything that a survey rests on.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// What is wanted.
    pub spec: &'a DistributionSpec,
    /// What every copy has. None: the object that is referred to cannot be had, and copies stay as they are.
    pub content: Option<&'a Content>,
    /// Every namespace.
    pub namespaces: &'a [&'a NamespaceFacts],
    /// What a watch shows, by namespace. None: there is no watch.
    pub seen: Option<&'a BTreeMap<Arc<str>, SeenCopy>>,
    /// How often what no watch shows is looked at.
    pub periods: Periods,
}

/// Something to do in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyStep {
    /// There is to be a copy.
    Copy(String),
    /// There is to be none.
    Remove(String),
}

/// Where the copies are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Namespaces that are to have one.
    pub desired: usize,
    /// Those that have it as it should be.
    pub good: usize,
    /// Those in which nothing is wrong, and that do not have it yet.
    pub waiting: usize,
    /// Those in which an object of others has the name.
    pub conflicts: Vec<String>,
    /// Those in which a copy that is being deleted has it.
    pub ending: Vec<String>,
    /// Those that do not exist or are being deleted.
    pub missing: Vec<String>,
    /// Those that are wanted and refuse; they do not count as desired.
    pub refused: Vec<String>,
    /// Those in which something failed, and why; also of namespaces that are to have none.
    pub failed: BTreeMap<Operation, Vec<(String, String)>>,
}

/// When something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    /// Once more after a failure, now; how long it has been due.
    Again(Duration),
    /// In turn: nothing is known of it.
    InTurnToKnow,
    /// In turn; how long it may wait.
    InTurn(Duration),
    /// The same, where a Secret is waited for to go.
    InTurnForRoom(Duration),
    Later(Duration),
    Never,
}

/// What there is to do.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Where the copies are.
    pub counts: Counts,
    now: Vec<CopyStep>,
    /// With how long they have been due.
    again: Vec<(Duration, CopyStep)>,
    to_know: Vec<CopyStep>,
    in_turn: Turns,
    for_room: Turns,
    later: Option<Duration>,
    namespaces: usize,
    periods: Periods,
}

/// What is looked at once in each period, with how long each may wait.
///
/// All copies may have been written at one go. If each waited until it is due, all would be due at one moment, and with few
/// looks at a time the last one would be looked at a period too late. So the looks begin early, and are spread over the time
/// that is left.
#[derive(Clone, Debug, Default)]
struct Turns(Vec<(Duration, CopyStep)>);

impl Turns {
    /// Those whose turn it is: as few as do, if no later tick is to have more of them. What has waited longest goes first.
    fn take(&mut self, period: Duration, tick: Duration) -> Vec<CopyStep> {
        self.0.sort_unstable();
        let waiting = self.0.iter().zip(1_usize..).take_while(|((left, _), _)| *left <= rested(period));
        let number = waiting.map(|((left, _), up_to)| up_to / ticks_in(*left, tick)).max();
        self.0.drain(..number.unwrap_or_default().min(MOST_STEPS)).map(|(_, step)| step).collect()
    }

    /// How long it is nobody's turn. None: there is nobody.
    fn next(&self, period: Duration, tick: Duration) -> Option<Duration> {
        let mut left: Vec<Duration> = self.0.iter().map(|(left, _)| *left).collect();
        left.sort_unstable();
        let before = |up_to: u32| tick.saturating_mul(up_to).min(rested(period));
        left.into_iter().zip(1..).map(|(left, up_to)| left.saturating_sub(before(up_to))).min()
    }
}

/// What is left of a period when something may be looked at again: what was written a moment ago is not.
fn rested(period: Duration) -> Duration {
    period * 3 / 4
}

/// Ticks before this time is over, this one among them.
fn ticks_in(left: Duration, tick: Duration) -> usize {
    usize::try_from(left.as_nanos().div_ceil(tick.as_nanos())).unwrap_or(usize::MAX).max(1)
}

/// The steps of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Those that have not failed.
    pub first: Vec<CopyStep>,
    /// Those that have, and may again.
    pub again: Vec<CopyStep>,
}

impl Survey {
    /// Looks at every namespace, at this time on the monotonic clock.
    pub fn of(facts: Facts<'_>, memory: &mut DistributionMemory, now: Duration) -> Self {
        let there: BTreeMap<&str, &NamespaceFacts> =
            facts.namespaces.iter().map(|namespace| (&*namespace.name, *namespace)).collect();
        memory.retain(|name| there.contains_key(name), now);
        let mut survey = Self { namespaces: there.len(), periods: facts.periods, ..Self::default() };
        let missing = facts.spec.targets.named().filter(|name| !there.contains_key(name.as_str()));
        survey.counts.missing.extend(missing.cloned());
        for namespace in there.values() {
            let name = &*namespace.name;
            let known = memory.namespaces.get(name);
            let paced = memory.left_of_pace(name, now);
            let seen = facts.seen.map(|seen| seen.get(name).copied());
            match facts.spec.targets.relation(namespace) {
                Relation::Target if namespace.is_ending => survey.counts.missing.push(name.to_owned()),
                Relation::Target => survey.target(name, (known, paced), seen, facts.content, now),
                Relation::Refused => {
                    survey.counts.refused.push(name.to_owned());
                    survey.outside(namespace, (known, paced), seen, now);
                }
                Relation::Outside => survey.outside(namespace, (known, paced), seen, now),
                Relation::Source => {}
            }
        }
        let counts = &mut survey.counts;
        counts.missing.sort();
        counts.desired = counts.good
            + counts.waiting
            + counts.conflicts.len()
            + counts.ending.len()
            + counts.missing.len()
            + counts.failed.iter().filter(|(of, _)| **of != Operation::Delete).map(|(_, all)| all.len()).sum::<usize>();
        memory.load = survey.load(facts);
        memory.period = facts.periods.copies;
        survey
    }

    /// What it costs to look once at everything that no watch shows.
    fn load(&self, facts: Facts<'_>) -> Load {
        let Some(content) = facts.content.filter(|_| facts.seen.is_none()) else { return Load::default() };
        let Counts { good, waiting, ending, conflicts, .. } = &self.counts;
        Load::of(good + waiting + ending.len(), content.size(), conflicts.len())
    }

    fn target(
        &mut self,
        name: &str,
        (known, paced): (Option<&KnownNamespace>, Duration),
        seen: Option<Option<SeenCopy>>,
        content: Option<&Content>,
        now: Duration,
    ) {
        let age = known.map_or(Duration::ZERO, |known| now.saturating_sub(known.at));
        // Each look may be followed by a write, which somebody may undo each time.
        let left = |period: Duration| period.saturating_sub(age).max(paced);
        let is_of_removal = known.is_some_and(|known| matches!(known.state, CopyState::Failed(Operation::Delete, _)));
        // What it is like, when to look, and whether it is as it should be.
        let when = match (seen, known.map(|known| &known.state)) {
            (Some(Some(SeenCopy::Copy { fits: true })), _) => {
                self.counts.good += 1;
                When::Never
            }
            (Some(Some(SeenCopy::Others)), _) => {
                self.counts.conflicts.push(name.to_owned());
                When::Never
            }
            (Some(Some(SeenCopy::Ending)), _) => {
                self.counts.ending.push(name.to_owned());
                When::Never
            }
            (_, Some(CopyState::Failed(operation, why))) if !is_of_removal => {
                self.failed(*operation, name, why);
                known.map_or(When::Now, |known| again(known, now))
            }
            // What a watch shows to be gone is gone.
            (None | Some(Some(_)), Some(CopyState::Others)) => {
                self.counts.conflicts.push(name.to_owned());
                When::InTurnForRoom(left(self.periods.conflicts))
            }
            (None, Some(CopyState::Ending)) => {
                self.counts.ending.push(name.to_owned());
                When::InTurnForRoom(left(self.periods.conflicts))
            }
            (None, Some(CopyState::Copied(hash))) if content.is_none_or(|content| *content.hash == **hash) => {
                self.counts.good += 1;
                When::InTurn(left(self.periods.copies))
            }
            // Without its source a copy is as it was.
            (Some(Some(SeenCopy::Copy { .. })), _) if content.is_none() => {
                self.counts.good += 1;
                When::Never
            }
            // Somebody may undo each write: then each comes later than the one before.
            _ => {
                self.counts.waiting += 1;
                if paced.is_zero() { When::Now } else { When::Later(paced) }
            }
        };
        if content.is_some() {
            self.add(when, CopyStep::Copy(name.to_owned()));
        }
    }

    fn outside(
        &mut self,
        namespace: &NamespaceFacts,
        (known, paced): (Option<&KnownNamespace>, Duration),
        seen: Option<Option<SeenCopy>>,
        now: Duration,
    ) {
        // With the namespace the copy goes by itself; in our own nothing is written.
        if namespace.is_ending || namespace.is_own {
            return;
        }
        let name = &*namespace.name;
        let when = match (seen, known) {
            (Some(None | Some(SeenCopy::Others | SeenCopy::Ending)), _) => When::Never,
            (_, Some(known @ KnownNamespace { state: CopyState::Failed(Operation::Delete, why), .. })) => {
                self.failed(Operation::Delete, name, why);
                again(known, now)
            }
            (Some(Some(SeenCopy::Copy { .. })), _) => When::Now,
            (None, Some(known)) => match known.state {
                CopyState::Clean | CopyState::Others => When::Never,
                CopyState::Copied(_) | CopyState::Ending | CopyState::Failed(..) => When::Now,
            },
            // A copy from before this process led may be there. One that others change all the time holds up no other.
            (None, None) if paced.is_zero() => When::InTurnToKnow,
            (None, None) => When::Later(paced),
        };
        self.add(when, CopyStep::Remove(name.to_owned()));
    }

    fn failed(&mut self, operation: Operation, name: &str, why: &str) {
        self.counts.failed.entry(operation).or_default().push((name.to_owned(), why.to_owned()));
    }

    fn add(&mut self, when: When, step: CopyStep) {
        match when {
            When::Now => self.now.push(step),
            When::Again(overdue) => self.again.push((overdue, step)),
            When::InTurnToKnow => self.to_know.push(step),
            When::InTurn(left) => self.in_turn.0.push((left, step)),
            When::InTurnForRoom(left) => self.for_room.0.push((left, step)),
            When::Later(after) => self.later = [self.later, Some(after)].into_iter().flatten().min(),
            When::Never => {}
        }
    }

    /// The steps that are due, [`MOST_STEPS`] at most. What has waited longest goes first, so that everything has its turn.
    pub fn take(&mut self, memory: &mut DistributionMemory, now: Duration) -> Steps {
        let again = longest_due(&mut self.again, MOST_AGAIN);
        let mut first: Vec<CopyStep> = self.now.drain(..self.now.len().min(MOST_STEPS - again.len())).collect();
        // Turns are few. They do not wait for what is to be done at once, of which there may always be something.
        if !self.to_know.is_empty() && left_of_tick(memory.sought, TICK, now).is_zero() {
            let share = self.namespaces.div_ceil(ticks_in(PERIOD, TICK)).min(MOST_STEPS);
            first.extend(self.to_know.drain(..self.to_know.len().min(share)));
            memory.sought = Some(now);
        }
        let Periods { copies, conflicts, tick } = self.periods;
        if left_of_tick(memory.ticked, tick, now).is_zero() {
            let before = first.len();
            first.extend(self.in_turn.take(copies, tick));
            first.extend(self.for_room.take(conflicts, tick));
            if first.len() > before {
                memory.ticked = Some(now);
            }
        }
        Steps { first, again }
    }

    /// Whether there is more to do at once than was taken.
    pub fn has_more(&self) -> bool {
        !self.now.is_empty()
    }

    /// When to look again, if nothing happens before.
    pub fn next(&self, memory: &DistributionMemory, now: Duration) -> Option<Duration> {
        let soon = (!self.now.is_empty() || !self.again.is_empty()).then_some(Duration::ZERO);
        let to_know = (!self.to_know.is_empty()).then(|| left_of_tick(memory.sought, TICK, now));
        let Periods { copies, conflicts, tick } = self.periods;
        let turn = [self.in_turn.next(copies, tick), self.for_room.next(conflicts, tick)].into_iter().flatten().min();
        let turn = turn.map(|turn| turn.max(left_of_tick(memory.ticked, tick, now)));
        [soon, to_know, turn, self.later].into_iter().flatten().min()
    }
}

/// Takes the first ones in the order of how long they have been due.
fn longest_due(all: &mut Vec<(Duration, CopyStep)>, most: usize) -> Vec<CopyStep> {
    all.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.cmp(other)));
    all.drain(..all.len().min(most)).map(|(_, step)| step).collect()
}

fn again(known: &KnownNamespace, now: Duration) -> When {
    let left = known.left(now);
    if left.is_zero() { When::Again(now.saturating_sub(known.at)) } else { When::Later(left) }
}

/// What is left of a tick that began with the last turn.
fn left_of_tick(last: Option<Duration>, tick: Duration, now: Duration) -> Duration {
    last.map_or(Duration::ZERO, |at| tick.saturating_sub(now.saturating_sub(at)))
}

/// Whether copies of a kind are seen by a watch.
pub const fn is_watched(kind: ResourceKind) -> bool {
    matches!(kind, ResourceKind::ConfigMap)
}
