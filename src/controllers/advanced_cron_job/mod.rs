//! AdvancedCronJobs: a job of a template at each time of a schedule.
//!
//! - Owns: the jobs that it makes, their deletion when they are replaced or no longer kept, the status of AdvancedCronJobs.
//! - Watches: AdvancedCronJobs; Jobs, BroadcastJobs and ImageListPullJobs, of which it keeps those that an AdvancedCronJob
//!   controls.
//! - What is due is decided by [`crate::domain::kinds::cron_job`].
//!
//! At the full minute many are due at once: first all jobs are made, then the statuses are written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::{Timestamp, tz::TimeZone};
use kube::{Api, Resource, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};

use self::child::{BY_CRON, Child, api_of, resource};
use super::{Context, Registration, Runner, Started, lock, owned_by};
use crate::{
    api::apps::{self, advanced_cron_job::AdvancedCronJob},
    domain::kinds::cron_job::{
        plan::{self, CronChild, MissedSlots, Remembered},
        spec::{CronSpec, JobKind},
    },
    k8s::{rbac::Rule, time::Now},
    runtime::{
        clock,
        guarded::Guarded,
        metrics::seconds_histogram,
        packed::Packed,
        pass::{Pass, forget_deleted},
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        slow_start,
        status_writer::{Outcome, StatusWriter},
        watches::{self, Change, ObjectKey, Store},
    },
};

mod apply;
mod child;

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("advancedcronjobs.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&[apps::GROUP], &["advancedcronjobs"], &["list", "watch", "get"]),
        Rule::new(&[apps::GROUP], &["advancedcronjobs/status"], &["patch"]),
        // To own objects with blockOwnerDeletion.
        Rule::new(&[apps::GROUP], &["advancedcronjobs/finalizers"], &["update"]),
        Rule::new(&["batch"], &["jobs"], &["get", "list", "watch", "create", "delete"]),
        Rule::new(
            &[apps::GROUP],
            &["broadcastjobs", "imagelistpulljobs"],
            &["get", "list", "watch", "create", "delete"],
        ),
    ],
    workers_flag: Some("advancedcronjob-workers"),
    // Many are due in the same second, and what others do with each new job competes with the creation of the next one: who
    // sends few requests at a time gets a small share of the API server. As many as Pods are made at a time.
    workers: slow_start::MOST,
    start,
};

const NAME: &str = "advancedcronjob-controller";
/// How often the clock is looked at, whether it was set.
const CLOCK_CHECK: Duration = Duration::from_secs(2);
/// A clock that goes on otherwise than time by more than this was set.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// The longest wait. A wait ends with every change; this is for what nobody sees, such as a zone of this process that changes.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Labels of the counter of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone)]
struct OwnMetrics {
    made: Family<KindLabels, Counter>,
    missed: Counter,
    delay: Histogram,
}

impl Default for OwnMetrics {
    fn default() -> Self {
        Self { made: Family::default(), missed: Counter::default(), delay: seconds_histogram() }
    }
}

struct Controller {
    context: Context,
    crons: Arc<Store<Packed<AdvancedCronJob>>>,
    jobs: Jobs,
    queue: Arc<Queue<ObjectKey>>,
    memories: Mutex<HashMap<ObjectKey, CronMemory>>,
    status: StatusWriter,
    metrics: OwnMetrics,
}

/// The jobs of AdvancedCronJobs, by kind.
struct Jobs {
    jobs: Arc<Store<Child>>,
    broadcast: Arc<Store<Child>>,
    images: Arc<Store<Child>>,
}

impl Jobs {
    fn of(&self, kind: JobKind) -> &Arc<Store<Child>> {
        match kind {
            JobKind::Job => &self.jobs,
            JobKind::BroadcastJob => &self.broadcast,
            JobKind::ImageListPullJob => &self.images,
        }
    }
}

/// In-memory state of an AdvancedCronJob; losing it repeats an event or leaves one out, and repeats a slot whose job was gone
/// before it was recorded.
#[derive(Default)]
struct CronMemory {
    uid: String,
    /// The last warning or note.
    said: String,
    /// Missed slots up to this time have been reported, by this process or an earlier one.
    reported: Option<Timestamp>,
    /// The slot of a job that was sent for without an answer: it may be there.
    sent: Option<Timestamp>,
    /// What was missed before the job that was last sent for, until that is known to be there.
    skipped: Option<MissedSlots>,
    /// Why the job that is due was not made.
    trouble: Option<String>,
    /// The newest slot for which a job was made or seen, until the status tells of it: the job may be gone before one that
    /// is refused does.
    made: Option<Timestamp>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let metrics = &controller.metrics;
    let help = "Jobs that were made of AdvancedCronJobs by their schedules, by kind";
    context.metrics.register("kruise_advanced_cron_job_jobs_created", help, &metrics.made);
    let help = "Times of schedules of AdvancedCronJobs for which no job was made";
    context.metrics.register("kruise_advanced_cron_job_missed", help, &metrics.missed);
    let help = "From the time of the schedule until the job is there";
    context.metrics.register_seconds("kruise_advanced_cron_job_delay", help, &metrics.delay);
    Started::new(controller.run(workers, shutdown))
}

impl Controller {
    fn new(context: &Context) -> Self {
        // Of others a few bytes are kept.
        let store = || Store::of_work([BY_CRON], Child::is_of_others);
        Self {
            context: context.clone(),
            crons: Store::new(None),
            jobs: Jobs { jobs: store(), broadcast: store(), images: store() },
            queue: Queue::new(Backoff::default()),
            memories: Mutex::default(),
            status: StatusWriter::default(),
            metrics: OwnMetrics::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        if let Err(error) = clock::local_zone() {
            tracing::warn!(%error, "TZ names no time zone: schedules without one are those of UTC");
        }
        let on_cron = self.clone();
        let cron_changed = move |change: Change<'_, Packed<AdvancedCronJob>>| match change {
            Change::Applied { new, .. } => on_cron.queue.add(ObjectKey::of(new.as_ref())),
            Change::Deleted(old) => {
                lock(&on_cron.memories).remove(&ObjectKey::of(old.as_ref()));
            }
            Change::Undecodable { key, error } => {
                tracing::error!(cron = %key, error, "this AdvancedCronJob cannot be read and is left alone");
            }
        };
        let crons: Api<Guarded<Packed<AdvancedCronJob>>> = self.context.api();
        let mut runner = Runner::new(&self.context, NAME, shutdown.clone()).watch_guarded(
            crons,
            Config::default(),
            &self.crons,
            cron_changed,
        );
        for kind in JobKind::ALL {
            let store = self.jobs.of(kind);
            let on_job = self.clone();
            let job_changed = move |change: Change<'_, Child>| on_job.job_changed(&change);
            let (api, store_of_kind) = (api_of(&self.context, kind), store.clone());
            runner = runner.following(store).following_others(async move {
                watches::watch_dynamic(api, &resource(kind), Config::default(), store_of_kind, job_changed).await;
            });
        }
        let on_clock = self.clone();
        let runner = runner.following_others(async move { on_clock.follow_clock().await });
        let this = self.clone();
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn job_changed(&self, change: &Change<'_, Child>) {
        let key = match change {
            Change::Applied { new, .. } => new.cron_key(),
            Change::Deleted(old) => old.cron_key(),
            Change::Undecodable { .. } => None,
        };
        if let Some(key) = key {
            self.queue.add(key);
        }
    }

    /// A wait is measured in time, and its end is a time of the clock: when the clock is set, everybody looks again.
    async fn follow_clock(&self) {
        let mut before = clock::now();
        loop {
            tokio::time::sleep(CLOCK_CHECK).await;
            let now = clock::now();
            if was_set(before, now) {
                tracing::info!("the clock was set, looking at all AdvancedCronJobs again");
                self.crons.list().iter().for_each(|cron| self.queue.add(ObjectKey::of(cron.as_ref())));
            }
            before = now;
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.crons.get(key) else { return Ok(Requeue::Await) };
        // What is being deleted takes its jobs along.
        if held.meta().deletion_timestamp.is_some() {
            return Ok(Requeue::Await);
        }
        let local = clock::local_zone().unwrap_or(TimeZone::UTC);
        let result = self.pass(&held, &local, clock::now()).await;
        forget_deleted(&self.memories, &self.crons, key);
        result
    }

    /// One pass: makes the job that is due, or else records the status and deletes what is no longer kept.
    async fn pass(&self, held: &Packed<AdvancedCronJob>, local: &TimeZone, now: Now) -> kube::Result<Requeue> {
        let cron = &held.open()?;
        let spec = CronSpec::of(&cron.spec, local);
        let children = self.children(cron);
        let remembered = self.memory(cron, |memory| Remembered { made: memory.made, reported: memory.reported });
        let plan = plan::plan(cron, spec.as_ref().ok(), &children, remembered, now.wall);
        self.memory(cron, |memory| memory.made = plan.made);
        self.report_found(cron, &children);
        self.report_skipped(cron, plan.made);
        let mut failed = Ok(None);
        match plan.run.filter(|_| !plan.records_first) {
            Some(slot) => match self.run_slot(cron, &plan, slot).await {
                // The status comes behind the jobs of others that are due.
                Ok(None) => return Ok(Requeue::After(Duration::ZERO)),
                other => failed = other,
            },
            None => self.report_waiting(cron, spec.as_ref().err(), &plan),
        }
        let recorded = self.record((held, cron), spec.as_ref(), (&plan, &children), now).await;
        let is_written = matches!(recorded, Ok(Outcome::Written(_)));
        let is_recorded = is_written || matches!(recorded, Ok(Outcome::Unchanged));
        if is_recorded {
            // Who corrects what is recorded is obeyed.
            self.memory(cron, |memory| memory.made = None);
        }
        let mut discard = plan.discard;
        // A status that is refused keeps only the jobs whose success it would record.
        discard.retain(|child| is_recorded || !plan::is_news(cron.status.as_ref(), child));
        let deleted = self.delete(cron, &discard).await;

        // `ahead` counts too: the condition changes when that time has come.
        let next = [plan.ahead, plan.next].into_iter().flatten().min();
        let next = next.map(|next| Duration::try_from(next.duration_since(now.wall)).unwrap_or_default());
        // The wait begins now, and a write may have taken long: the time of the schedule does not move by that.
        let took = clock::now().mono.saturating_sub(now.mono);
        let next = next.map(|next| next.saturating_sub(took).min(LONGEST_WAIT));
        let mut pass = Pass { look: next, again: is_written && plan.records_first, ..Pass::default() };
        for result in [failed, recorded.map(|outcome| outcome.look_after()), deleted.map(|()| None)] {
            match result {
                Ok(after) => pass.look_after(after),
                Err(error) => drop(pass.note(Err(error))),
            }
        }
        // What is due next does not wait for the end of the back-off, whatever has failed.
        if let Some(next) = next.filter(|_| pass.error.is_some()) {
            self.queue.add_after(ObjectKey::of(cron), next);
        }
        pass.end(|after| self.queue.add_after(ObjectKey::of(cron), after))
    }

    /// The jobs of an AdvancedCronJob, of all kinds: its template may have had another one.
    fn children(&self, cron: &AdvancedCronJob) -> Vec<CronChild> {
        let owned = owned_by(&cron.metadata);
        let of_kind = |kind: JobKind| {
            let children = self.jobs.of(kind).by_index(&BY_CRON, &owned).into_iter();
            children.map(move |child| child.view(kind))
        };
        JobKind::ALL.into_iter().flat_map(of_kind).collect()
    }
}

/// Whether the clock was set between two looks.
fn was_set(before: Now, now: Now) -> bool {
    let by_clock = now.wall.duration_since(before.wall).as_millis();
    let by_time = i128::try_from(now.mono.saturating_sub(before.mono).as_millis()).unwrap_or(i128::MAX);
    by_clock.abs_diff(by_time) > CLOCK_STEP.as_millis()
}

#[cfg(test)]
mod tests;
