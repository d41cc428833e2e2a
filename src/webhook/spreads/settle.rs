//! Answers the questions about one WorkloadSpread that wait, with one write of its status.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Settled, Spreads, Unplaced,
    ahead::{LONGEST_UNREAD, PlacesAhead, Source, UnusedPlace, source},
};
use crate::{
    api::apps::workload_spread::{WorkloadSpread, WorkloadSpreadStatus},
    domain::kinds::workload_spread::{
        added::{SpreadAdditions, additions},
        ahead,
        count::{SpreadAnswer, SpreadAsk, answer, passes_over, places, schedulable},
        spec::SpreadSpec,
    },
    k8s::invalid::Invalid,
    runtime::{
        apply::{code, is_refusal, patch_status, said},
        clock,
        watches::ObjectKey,
    },
};

/// How often a decision is repeated after a conflict. Each conflict means that another process has written.
const ATTEMPTS: u32 = 50;
/// How long a turn waits for places that other replicas give back. Whoever asks may have to wait for two turns.
const LONGEST_WAIT: Duration = Duration::from_millis(400);

/// What is settled in turns.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Question {
    /// About a Pod.
    Pod(SpreadAsk),
    /// For places for the next Pods of a version.
    More(String),
    /// To give back places that nobody has used.
    GiveBack,
}

impl Question {
    /// The version of the new Pods that it is about.
    fn version(&self) -> Option<&str> {
        match self {
            Self::Pod(SpreadAsk::Create { version, .. }) | Self::More(version) => Some(version),
            Self::Pod(SpreadAsk::Delete { .. }) | Self::GiveBack => None,
        }
    }
}

/// Where the WorkloadSpread comes from that is decided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// The watch has brought it, at some time.
    Watched,
    /// Read at the API server less than `READ_AGAIN` ago, while Pods come fast; or no question is about new Pods.
    Recent,
    /// Read there in this turn.
    Read,
}

/// What is decided by.
struct Basis<'a> {
    key: &'a ObjectKey,
    spread: &'a WorkloadSpread,
    freshness: Freshness,
    spec: &'a Arc<SpreadSpec>,
    limits: &'a [Option<i32>],
    total: i32,
}

/// A subset is full that comes before the one that is chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PassedOver {
    /// How long other replicas may keep places there.
    wait: Option<Duration>,
}

/// What is found by one look at a WorkloadSpread.
struct Turn {
    status: WorkloadSpreadStatus,
    /// None: it has to wait for a fresh look.
    answers: Vec<Option<Settled>>,
    passed_over: Option<PassedOver>,
    ahead: Option<PlacesAhead>,
    /// Places that are given back.
    unused: Vec<UnusedPlace>,
    /// There are others, whose write had no answer, and which the watch has perhaps still to bring.
    misses_unused: bool,
}

/// What is to be done then.
enum Decided {
    /// To look again, after so long.
    Reread(Option<Duration>),
    /// To answer: nothing is to be written. These places are not on record.
    Answered(Vec<Settled>, Vec<UnusedPlace>),
    /// To write, and then to answer.
    Write { answers: Vec<Settled>, status: WorkloadSpreadStatus, ahead: Option<PlacesAhead>, unused: Vec<UnusedPlace> },
}

impl Turn {
    /// A full subset is passed over. Of several waits the longest counts.
    fn pass_over(&mut self, wait: Option<Duration>) {
        self.passed_over = self.passed_over.max(Some(PassedOver { wait }));
    }

    /// Whether that is enough to answer.
    fn decided(self, known: &Basis<'_>, questions: &[Question]) -> Decided {
        let Self { status, answers, passed_over, ahead, unused, misses_unused } = self;
        let may_be_outdated = match known.freshness {
            Freshness::Watched => true,
            // That every subset is full is not said by it.
            Freshness::Recent => answers.iter().flatten().any(|settled| settled.answer == SpreadAnswer::Full),
            Freshness::Read => false,
        };
        let is_in_doubt = passed_over.is_some_and(|over| may_be_outdated || over.wait.is_some())
            || (misses_unused && questions.contains(&Question::GiveBack));
        match answers.into_iter().collect::<Option<Vec<_>>>() {
            Some(answers) if !is_in_doubt => {
                if known.spread.status.as_ref().unwrap_or(&WorkloadSpreadStatus::default()) == &status {
                    Decided::Answered(answers, unused)
                } else {
                    Decided::Write { answers, status, ahead, unused }
                }
            }
            // Another replica may have places there that it does not use.
            _ if known.freshness == Freshness::Read => Decided::Reread(passed_over.and_then(|over| over.wait)),
            // A place may have become free, which the watch has still to bring.
            _ => Decided::Reread(None),
        }
    }
}

/// What came of a write.
enum SpreadWrite {
    /// It is on record.
    Done,
    /// Others have written: it is to be decided again.
    Outdated {
        /// Whether it only added records: the next write is bound to the version that was read.
        only_added: bool,
    },
    /// Others have taken the room at the same time: the records do not count.
    Beyond(Arc<WorkloadSpread>, Vec<UnusedPlace>),
    /// The WorkloadSpread was deleted.
    Gone,
}

impl Spreads {
    /// Answers all waiting questions about a WorkloadSpread, with one write. None: it was deleted.
    pub(super) async fn settle(
        self: &Arc<Self>,
        key: &ObjectKey,
        questions: &[Question],
    ) -> Vec<Result<Option<Settled>, Unplaced>> {
        match self.try_settle(key, questions).await {
            Ok(Some(answers)) => answers.into_iter().map(|settled| Ok(Some(settled))).collect(),
            Ok(None) => vec![Ok(None); questions.len()],
            Err(why) => vec![Err(why); questions.len()],
        }
    }

    async fn try_settle(
        self: &Arc<Self>,
        key: &ObjectKey,
        questions: &[Question],
    ) -> Result<Option<Vec<Settled>>, Unplaced> {
        let Some(mut spread) = self.spreads.get(key) else { return Ok(None) };
        let api: Api<WorkloadSpread> = Api::namespaced(self.client.clone(), &key.namespace);
        let now = Instant::now();
        let is_recent = |version: &str| self.ahead.is_fresh(key, &source(&spread), version, now);
        let are_recent = questions.iter().filter_map(Question::version).all(is_recent);
        let mut freshness = if are_recent { Freshness::Recent } else { Freshness::Watched };
        let (mut is_bound, mut waited, mut total) = (false, Duration::ZERO, None);
        // What is given away of the places on record.
        let mut given: Vec<Option<Settled>> = vec![None; questions.len()];
        for _ in 0..ATTEMPTS {
            let spec = Arc::new(SpreadSpec::of(&spread).map_err(|Invalid(why)| Unplaced::Unusable(why))?);
            if spec.needs_total() && total.is_none() {
                // Who makes a Pod has seen how many there are to be; so do we.
                total = Some(self.total(&spread, &spec).await?);
            }
            let total = total.unwrap_or_default();
            let limits = spec.limits(total);
            let known = Basis { key, spread: &spread, freshness, spec: &spec, limits: &limits, total };
            let next = match self.decide(&known, questions, &mut given, waited) {
                Decided::Reread(wait) => {
                    if let Some(wait) = wait {
                        tokio::time::sleep(wait).await;
                        waited += wait;
                    }
                    self.reread(key).await?
                }
                Decided::Answered(answers, unused) => {
                    self.ahead.given_back(key, &unused);
                    return Ok(Some(answers));
                }
                Decided::Write { answers, status, ahead, unused } => {
                    match self.write(&api, &known, (&status, ahead.as_ref()), is_bound).await? {
                        SpreadWrite::Done => {
                            self.ahead.given_back(key, &unused);
                            if let Some(ahead) = ahead {
                                self.keep_ahead(key, &source(&spread), ahead);
                            }
                            return Ok(Some(answers));
                        }
                        SpreadWrite::Gone => None,
                        SpreadWrite::Beyond(newer, records) => {
                            self.take_back(key, &source(&newer), records);
                            is_bound = true;
                            Some(newer)
                        }
                        SpreadWrite::Outdated { only_added } => {
                            tracing::debug!(spread = %key, "somebody else has written, deciding again");
                            is_bound |= only_added;
                            self.reread(key).await?
                        }
                    }
                }
            };
            let Some(fresh) = next else { return Ok(None) };
            (spread, freshness) = (fresh, Freshness::Read);
        }
        Err(Unplaced::KeepsChanging)
    }

    /// Writes what is decided. Records alone are added beside what others record, unless the write is to be bound to the version
    /// that was looked at.
    async fn write(
        self: &Arc<Self>,
        api: &Api<WorkloadSpread>,
        known: &Basis<'_>,
        (wanted, ahead): (&WorkloadSpreadStatus, Option<&PlacesAhead>),
        is_bound: bool,
    ) -> Result<SpreadWrite, Unplaced> {
        let Basis { key, spread, spec, limits, .. } = *known;
        let before = spread.status.as_ref().filter(|_| !is_bound && !spec.needs_total());
        let (uid, generation) = source(spread);
        let added = before.and_then(|before| additions(before, wanted, (uid.as_str(), generation)));
        let begun = Instant::now();
        let mut unanswered = Unanswered::new(self, key, spread, ahead);
        let written = match &added {
            Some(added) => add(api, spread, added).await.map(Some),
            None => patch_status(api, spread, &recorded(spread), &json!(wanted)).await,
        };
        if written.as_ref().err().is_none_or(is_refusal) {
            unanswered.places.clear();
        }
        let newer = match written {
            Ok(Some(newer)) => newer,
            Ok(None) => return Ok(SpreadWrite::Done),
            Err(error) => match code(&error) {
                Some(404) => return Ok(SpreadWrite::Gone),
                Some(409) => return Ok(SpreadWrite::Outdated { only_added: added.is_some() }),
                // A test of the patch fails, or the map is gone.
                Some(422) if added.is_some() => return Ok(SpreadWrite::Outdated { only_added: true }),
                _ => return Err(Unplaced::ApiServer(format!("its status could not be written: {}", said(&error)))),
            },
        };
        self.have(&newer, begun);
        let now = newer.status.as_ref();
        let beyond = added.filter(|added| !now.is_some_and(|now| added.hold(now, spec, limits)));
        let Some(SpreadAdditions { records, .. }) = beyond else { return Ok(SpreadWrite::Done) };
        tracing::debug!(spread = %known.key, "others have taken the last places, deciding again");
        let unused = |(version, subset, key)| UnusedPlace { version, subset, key };
        Ok(SpreadWrite::Beyond(Arc::new(newer), records.into_iter().map(unused).collect()))
    }

    /// Answers by what is known, and puts into the status what is to be recorded. `given`: the questions that are answered for
    /// good, by places that are on record.
    fn decide(
        &self,
        known: &Basis<'_>,
        questions: &[Question],
        given: &mut [Option<Settled>],
        waited: Duration,
    ) -> Decided {
        let Basis { key, spread, freshness, spec, limits, total } = *known;
        let (now, wall) = (Instant::now(), clock::now().wall);
        let mut status = spread.status.clone().unwrap_or_default();
        let is_known = |UnusedPlace { version, subset, key }: &UnusedPlace| {
            freshness == Freshness::Read || ahead::is_recorded(&status, (version, subset, key))
        };
        let unused = self.ahead.unused(key, &source(spread), now);
        let (unused, missed): (Vec<_>, Vec<_>) = unused.into_iter().partition(is_known);
        for UnusedPlace { version, subset, key } in &unused {
            ahead::give_back(limits, spec, &mut status, (version, subset, key));
        }
        let (before, answers, misses_unused) = (status.clone(), given.to_vec(), !missed.is_empty());
        let mut turn = Turn { status, answers, passed_over: None, ahead: None, unused, misses_unused };
        let settled = |answer| Settled { answer, spec: spec.clone(), total, key: None };
        let mut newest = None;
        for (at, question) in questions.iter().enumerate() {
            if given[at].is_some() {
                continue;
            }
            turn.answers[at] = match question {
                Question::Pod(ask @ SpreadAsk::Create { version, .. }) => {
                    newest = Some(version);
                    match self.give(known, &before, (version, now), waited) {
                        Given::Place(place) => {
                            given[at] = Some(place.clone());
                            Some(place)
                        }
                        Given::After(wait) => {
                            turn.pass_over(wait);
                            None
                        }
                        Given::None => {
                            let answered = answer(spec, limits, &mut turn.status, ask, wall);
                            let index = answered.index(spec.subsets.len());
                            if passes_over(&places(spec, &before, limits, version), index) {
                                turn.pass_over(self.kept_by_others(spread, spec, (version, index), waited));
                            }
                            Some(settled(answered))
                        }
                    }
                }
                Question::Pod(ask @ SpreadAsk::Delete { .. }) => {
                    Some(settled(answer(spec, limits, &mut turn.status, ask, wall)))
                }
                Question::More(version) => {
                    newest = Some(version);
                    Some(settled(SpreadAnswer::Nothing))
                }
                Question::GiveBack => Some(settled(SpreadAnswer::Nothing)),
            };
        }
        if let Some(version) = newest.filter(|_| !spec.needs_total()) {
            self.decide_ahead(known, &mut turn, version, (now, wall));
        }
        turn.decided(known, questions)
    }

    /// One of the places that are on record, if none is free in a subset before theirs.
    fn give(
        &self,
        known: &Basis<'_>,
        before: &WorkloadSpreadStatus,
        (version, now): (&str, Instant),
        waited: Duration,
    ) -> Given {
        let Basis { key, spread, freshness, spec, limits, total } = *known;
        let of = source(spread);
        let Some(index) = self.ahead.subset(key, &of, version, now).filter(|_| !spec.needs_total()) else {
            return Given::None;
        };
        let places = places(spec, before, limits, version);
        let Some((own, earlier)) = places.get(..=index).and_then(|places| places.split_last()) else {
            return Given::None;
        };
        if !own.is_schedulable || earlier.iter().any(|place| place.is_schedulable && !place.is_full()) {
            return Given::None;
        }
        let wait = self.kept_by_others(spread, spec, (version, index), waited);
        if passes_over(&places, index) && (freshness == Freshness::Watched || wait.is_some()) {
            return Given::After(wait);
        }
        match self.ahead.take(key, &of, version, index, now) {
            Some((taken, _)) => {
                let answer = SpreadAnswer::Subset(index, 0);
                Given::Place(Settled { answer, spec: spec.clone(), total, key: Some(taken) })
            }
            None => Given::None,
        }
    }

    /// Puts places for the next Pods of a version into the status.
    fn decide_ahead(&self, known: &Basis<'_>, turn: &mut Turn, version: &str, (now, wall): (Instant, jiff::Timestamp)) {
        let Basis { key, spread, spec, limits, .. } = *known;
        let places = places(spec, &turn.status, limits, version);
        let Some(index) = places.iter().position(|place| place.is_schedulable && !place.is_full()) else { return };
        let Some(max) = places[index].max else { return };
        // The record of a version begins with that of a Pod.
        if !turn.status.versioned_subset_statuses.contains_key(version) {
            return;
        }
        let room = max.saturating_sub(places[index].there);
        let is_written = spread.status.as_ref() != Some(&turn.status);
        let name = spec.subsets[index].name.as_str();
        let is_alone = !ahead::has_others(&turn.status, version, name, self.ahead.replica());
        let of = (index, name, room);
        turn.ahead = self.ahead.more((key, &source(spread)), version, of, (is_written, is_alone), (now, wall));
        if let Some(new) = &turn.ahead {
            ahead::record(spec, limits, &mut turn.status, (version, index), &new.keys, wall);
            if passes_over(&places, index) {
                turn.pass_over(None);
            }
        }
    }

    /// Keeps what a call that began then has brought.
    fn have(&self, fresh: &WorkloadSpread, begun: Instant) {
        self.spreads.upsert(fresh.clone());
        self.ahead.was_read(&ObjectKey::of(fresh), &source(fresh), begun);
    }

    /// How long others may keep places in the subsets before one, if that is waited for.
    pub(super) fn kept_by_others(
        &self,
        spread: &WorkloadSpread,
        spec: &SpreadSpec,
        (version, index): (&str, usize),
        waited: Duration,
    ) -> Option<Duration> {
        let status = spread.status.as_ref()?;
        // What was kept when the status was read may have been given back since then.
        let age = self.ahead.age(&ObjectKey::of(spread), &source(spread), Instant::now());
        let age = SignedDuration::try_from(age.unwrap_or_default().min(LONGEST_UNREAD)).unwrap_or_default();
        let then = clock::now().wall.checked_sub(age).unwrap_or_default();
        let subsets = spec.subsets.iter().zip(schedulable(spec, status)).take(index);
        let before: Vec<&str> = subsets.filter(|(_, gets)| *gets).map(|(subset, _)| subset.name.as_str()).collect();
        let wait = ahead::kept_by_others(status, version, &before, self.ahead.replica(), then);
        wait.filter(|wait| waited + *wait <= LONGEST_WAIT)
    }

    /// The current WorkloadSpread. None: it was deleted.
    pub(super) async fn reread(&self, key: &ObjectKey) -> Result<Option<Arc<WorkloadSpread>>, Unplaced> {
        let (api, begun) = (Api::namespaced(self.client.clone(), &key.namespace), Instant::now());
        let read = api.get_opt(&key.name).await;
        let read = read.map_err(|error| Unplaced::ApiServer(format!("it could not be read: {}", said(&error))))?;
        if let Some(fresh) = &read {
            self.have(fresh, begun);
        }
        Ok(read.filter(|spread| spread.metadata.deletion_timestamp.is_none()).map(Arc::new))
    }
}

/// Places whose write has no answer yet. If none comes, because the call fails or the caller goes, they may be on record all the
/// same: then they are given back. After a refusal nothing is on record.
struct Unanswered {
    spreads: Arc<Spreads>,
    key: ObjectKey,
    of: Source,
    places: Vec<UnusedPlace>,
}

impl Unanswered {
    fn new(spreads: &Arc<Spreads>, key: &ObjectKey, spread: &WorkloadSpread, ahead: Option<&PlacesAhead>) -> Self {
        let places = ahead.map(PlacesAhead::unused).unwrap_or_default();
        Self { spreads: spreads.clone(), key: key.clone(), of: source(spread), places }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let places = std::mem::take(&mut self.places);
        if !places.is_empty() {
            self.spreads.take_back(&self.key, &self.of, places);
        }
    }
}

/// Whether a Pod gets one of the places on record.
enum Given {
    Place(Settled),
    /// After a fresh look, and after so long.
    After(Option<Duration>),
    /// It is recorded by itself.
    None,
}

/// Adds records to the status.
async fn add(
    api: &Api<WorkloadSpread>,
    spread: &WorkloadSpread,
    added: &SpreadAdditions,
) -> kube::Result<WorkloadSpread> {
    let patch = serde_json::from_value(json!(added.patch)).map_err(kube::Error::SerdeError)?;
    let name = spread.metadata.name.as_deref().unwrap_or_default();
    api.patch_status(name, &PatchParams::default(), &Patch::<Value>::Json(patch)).await
}

/// The status as it is stored: a first one is written as a whole.
fn recorded(spread: &WorkloadSpread) -> Value {
    spread.status.as_ref().map_or_else(|| json!({}), |status| json!(status))
}
