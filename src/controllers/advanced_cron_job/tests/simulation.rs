//! Random histories of an AdvancedCronJob: the real controller, an API server in memory, users who change it, pause it,
//! delete it and make it again, jobs that end, that go and that have the name of a slot, watches that are late, writes that
//! are refused, answers that are lost, managers that end between two writes, and a clock that is set. On the way no slot has
//! two jobs, and none is made that the spec does not allow. Once nothing stands in the way any more, the latest slot that is
//! due has its job, and the status says what there is.

use jiff::SignedDuration;

use super::*;
use crate::{
    controllers::fake::{self, Fault, Next, bring},
    k8s::time::rfc3339,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const CRON: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/advancedcronjobs/cron";
const BROADCAST_JOBS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/broadcastjobs";
const IMAGE_JOBS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/imagelistpulljobs";
/// Schedules, with the seconds between their slots.
const SCHEDULES: [(i64, &str); 3] = [(300, "*/5 * * * *"), (600, "*/10 * * * *"), (1200, "*/20 * * * *")];
/// How far the clock of the managers may be ahead of that of the API server, in seconds.
const CLOCKS: [i64; 8] = [0, 0, 0, 90, -90, 600, -600, 3000];
/// A job whose slot is so many seconds ahead of the API server's clock may be forged: of the slot tells only the status.
const CLOCKS_APART: i64 = 60;

type Objects = BTreeMap<String, Arc<Value>>;

/// What a user has asked for.
#[derive(Clone, Debug)]
struct Wanted {
    kind: JobKind,
    /// Index into [`SCHEDULES`].
    schedule: usize,
    policy: &'static str,
    paused: bool,
    deadline: Option<i64>,
    /// How many jobs are kept that have succeeded, and that have failed.
    limits: (usize, usize),
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let kind = JobKind::ALL[random.below(3)];
        Self {
            kind,
            schedule: random.below(SCHEDULES.len()),
            policy: any_policy(kind, random),
            paused: false,
            deadline: [None, None, Some(100)][random.below(3)],
            limits: (random.below(3), random.below(2)),
        }
    }

    fn spec(&self) -> Value {
        let (succeeded, failed) = self.limits;
        let mut template = json!({});
        template[self.kind.field()] = json!({"spec": {"x": 1}});
        json!({"schedule": SCHEDULES[self.schedule].1, "concurrencyPolicy": self.policy, "paused": self.paused,
            "startingDeadlineSeconds": self.deadline, "successfulJobsHistoryLimit": succeeded,
            "failedJobsHistoryLimit": failed, "template": template})
    }
}

/// A policy that admission lets through.
fn any_policy(kind: JobKind, random: &mut Random) -> &'static str {
    let allowed = if kind == JobKind::ImageListPullJob { 2 } else { 3 };
    ["Forbid", "Replace", "Allow"][random.below(allowed)]
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn seconds(value: &Value) -> Option<i64> {
    text(value).parse::<Timestamp>().ok().map(|time| time.as_second())
}

/// A job with the name of a slot, in the plainest terms.
#[derive(Clone, Debug, PartialEq)]
struct SlotJob {
    uid: String,
    /// The UID of its AdvancedCronJob. Empty: it is somebody's.
    owner: String,
    slot: i64,
    created: i64,
    /// Whether it has succeeded, if it has ended.
    end: Option<bool>,
}

impl SlotJob {
    fn of(path: &str, object: &Value) -> Option<Self> {
        let (_, slot) = path.rsplit_once("/cron-")?;
        let is_true = |type_: &str| {
            let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == type_ && condition["status"] == "True")
        };
        let (metadata, status) = (&object["metadata"], &object["status"]);
        // An ImageListPullJob has no such conditions.
        let by_numbers = status["completionTime"].is_string().then(|| status["desired"] == status["succeeded"]);
        Some(Self {
            uid: text(&metadata["uid"]).to_owned(),
            owner: text(&metadata["ownerReferences"][0]["uid"]).to_owned(),
            slot: slot.parse().ok()?,
            created: seconds(&metadata["creationTimestamp"]).unwrap_or_default(),
            end: (is_true("Complete") || is_true("Failed")).then(|| is_true("Complete")).or(by_numbers),
        })
    }

    fn all(objects: &Objects) -> Vec<Self> {
        objects.iter().filter_map(|(path, object)| Self::of(path, object)).collect()
    }

    /// Whether it alone tells nobody of its slot.
    fn looks_forged(&self) -> bool {
        self.slot - self.created > CLOCKS_APART
    }
}

fn has(jobs: &[SlotJob], uid: &str) -> bool {
    jobs.iter().any(|job| job.uid == uid)
}

/// A pass: what it knew to be wanted and to be there, and what was there before and after.
struct PassSeen {
    known: Option<(String, Wanted)>,
    /// When its AdvancedCronJob was created.
    created: i64,
    children: Vec<CronChild>,
    now: i64,
    before: Vec<SlotJob>,
    after: Vec<SlotJob>,
}

struct History {
    server: Arc<Mutex<fake::Server>>,
    controller: Controller,
    wanted: Wanted,
    uid: String,
    generation: i64,
    /// By UID and generation.
    all: BTreeMap<(String, i64), Wanted>,
    /// How far the clock of the managers is ahead of that of the API server.
    ahead: SignedDuration,
    jobs_end: bool,
    /// The newest slot whose job went before it was recorded: the manager that knows of it must not end before it has
    /// recorded it.
    unrecorded: Option<i64>,
    /// Changes and faults so far.
    changes: usize,
    pass: Option<PassSeen>,
}

#[derive(Debug)]
enum Effect {
    /// A job's AdvancedCronJob is no more.
    Collect(String),
    /// A job ends, and whether well.
    End(String, bool),
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "cron")
}

fn jobs_of(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Job => JOBS,
        JobKind::BroadcastJob => BROADCAST_JOBS,
        JobKind::ImageListPullJob => IMAGE_JOBS,
    }
}

/// None: it is no job.
fn kind_of(path: &str) -> Option<JobKind> {
    JobKind::ALL.into_iter().find(|kind| path.starts_with(jobs_of(*kind)))
}

fn manager(server: &Arc<Mutex<fake::Server>>) -> Controller {
    let server = server.clone();
    Controller::new(&in_memory::context(move |parts, body| lock(&server).answer(parts, body)))
}

impl History {
    fn new(random: &mut Random) -> Self {
        let server = Arc::new(Mutex::new(fake::Server::new(|_, _| Ok(()))));
        let (all, uid) = Default::default();
        let mut history = Self {
            controller: manager(&server),
            server,
            wanted: Wanted::new(random),
            uid,
            generation: 0,
            all,
            ahead: SignedDuration::ZERO,
            jobs_end: random.chance(50),
            unrecorded: None,
            changes: 0,
            pass: None,
        };
        history.make();
        history
    }

    fn note(&self, act: &'static str) {
        lock(&self.server).acts.note(act);
    }

    fn objects(&self) -> Objects {
        lock(&self.server).objects.clone()
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.server).objects.get(path).cloned()
    }

    fn now(&self) -> Now {
        let now = clock::now();
        Now { wall: now.wall + self.ahead, ..now }
    }

    /// A user makes one, or one of the same name again.
    fn make(&mut self) {
        self.uid = format!("c{}", self.generation);
        self.unrecorded = None;
        self.write();
    }

    /// A user writes it.
    fn write(&mut self) {
        self.generation += 1;
        let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
            "metadata": {"name": "cron", "namespace": "ns", "uid": self.uid, "generation": self.generation},
            "spec": self.wanted.spec()});
        if let Some(before) = self.get(CRON) {
            object["status"] = before["status"].clone();
            object["metadata"]["creationTimestamp"] = before["metadata"]["creationTimestamp"].clone();
        }
        self.all.insert((self.uid.clone(), self.generation), self.wanted.clone());
        lock(&self.server).put(CRON, object);
    }

    /// The newest slot in the status.
    fn recorded(&self) -> Option<i64> {
        seconds(&self.get(CRON)?["status"]["lastScheduleTime"])
    }

    /// Whether the manager knows of a slot, whatever becomes of its job.
    fn knows(&self, slot: i64) -> bool {
        let memories = lock(&self.controller.memories);
        let memory = memories.get(&key()).filter(|memory| memory.uid == self.uid);
        memory.and_then(|memory| memory.made).is_some_and(|made| made.as_second() >= slot)
    }

    fn may_end(&self) -> bool {
        self.unrecorded.is_none() || self.recorded() >= self.unrecorded
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&self, path: &str) {
        let (now, controller) = (self.get(path), &self.controller);
        let key = ObjectKey::new("ns", path.rsplit('/').next().unwrap_or_default());
        if path == CRON {
            bring(&controller.crons, &key, now.as_deref(), |change| match change {
                Change::Applied { .. } => controller.queue.add(key.clone()),
                Change::Deleted(_) => drop(lock(&controller.memories).remove(&key)),
                Change::Undecodable { .. } => {}
            });
            return;
        }
        let kind = kind_of(path).unwrap();
        bring(controller.jobs.of(kind), &key, now.as_deref(), |change| controller.job_changed(change));
    }

    /// One of the watches brings its next change.
    fn deliver_next(&self, random: &mut Random) -> String {
        let path = lock(&self.server).next_news(random, kind_of);
        self.deliver(&path);
        format!("delivered {path}")
    }

    fn restart_manager(&mut self) {
        self.controller = manager(&self.server);
        lock(&self.server).news.clear();
        self.note("managers that started anew");
        for path in self.objects().keys() {
            self.deliver(path);
        }
    }

    /// Whether it has ended now.
    fn end(&mut self) -> bool {
        let has_ended = lock(&self.server).has_ended();
        if has_ended {
            self.restart_manager();
        }
        has_ended
    }

    fn surroundings(&self, random: &mut Random) -> Vec<Effect> {
        let objects = self.objects();
        let uid = objects.get(CRON).map(|cron| text(&cron["metadata"]["uid"]));
        let mut effects = Vec::new();
        for (path, object) in &objects {
            let Some(job) = SlotJob::of(path, object).filter(|job| !job.owner.is_empty()) else { continue };
            if Some(job.owner.as_str()) != uid {
                effects.push(Effect::Collect(path.clone()));
            } else if self.jobs_end && job.end.is_none() {
                effects.push(Effect::End(path.clone(), random.chance(70)));
            }
        }
        effects
    }

    fn play(&self, effect: &Effect) {
        match effect {
            Effect::Collect(path) => lock(&self.server).remove(path),
            Effect::End(path, succeeds) => {
                let now = rfc3339(clock::now().wall);
                let status = if kind_of(path) == Some(JobKind::ImageListPullJob) {
                    let succeeded = if *succeeds { 2 } else { 1 };
                    json!({"startTime": now, "completionTime": now, "desired": 2, "succeeded": succeeded})
                } else {
                    let type_ = if *succeeds { "Complete" } else { "Failed" };
                    let condition = json!({"type": type_, "status": "True", "lastTransitionTime": now});
                    json!({"startTime": now, "conditions": [condition]})
                };
                lock(&self.server).change(path, &json!({"status": status}));
            }
        }
    }

    async fn reconcile(&mut self, key: ObjectKey) -> String {
        let (before, now) = (SlotJob::all(&self.objects()), self.now());
        let held = self.controller.crons.get(&key);
        let cron = held.as_ref().map(|held| held.open().unwrap()).filter(|cron| !cron.is_deleting());
        let known = cron.as_ref().and_then(|cron| {
            let at = (cron.metadata.uid.clone()?, cron.metadata.generation?);
            self.all.get(&at).map(|wanted| (at.0.clone(), wanted.clone()))
        });
        let created = cron.as_ref().and_then(|cron| cron.metadata.creation_timestamp.as_ref());
        let created = created.map_or(0, |time| time.0.as_second());
        let children = cron.as_ref().map(|cron| self.controller.children(cron)).unwrap_or_default();
        let next = match held.filter(|_| cron.is_some()) {
            Some(held) => self.controller.pass(&held, &TimeZone::UTC, now).await,
            None => Ok(Requeue::Await),
        };
        forget_deleted(&self.controller.memories, &self.controller.crons, &key);
        let after = SlotJob::all(&self.objects());
        let said = format!("pass at {}: {:?}", now.wall, next.as_ref().map_err(ToString::to_string));
        self.pass = Some(PassSeen { known, created, children, now: now.wall.as_second(), before, after });
        self.controller.queue.done(key, next);
        if self.end() { format!("{said}; the manager has ended, and another one starts") } else { said }
    }

    fn turn_cron(&mut self, random: &mut Random) -> String {
        if self.get(CRON).is_none() {
            self.make();
            self.note("made again");
            return format!("{} is made", self.uid);
        }
        let wanted = &mut self.wanted;
        match random.below(7) {
            0 => wanted.policy = any_policy(wanted.kind, random),
            1 => wanted.limits = (random.below(3), random.below(2)),
            2 | 3 => wanted.paused = !wanted.paused,
            4 => wanted.deadline = [None, Some(100)][random.below(2)],
            5 => wanted.schedule = random.below(SCHEDULES.len()),
            _ => {
                lock(&self.server).remove(CRON);
                self.note("deleted");
                return format!("{} is deleted", self.uid);
            }
        }
        self.write();
        format!("{:?}", self.wanted)
    }

    /// Somebody deletes a job, or its time to live is over.
    fn turn_job(&mut self, random: &mut Random) -> String {
        let objects = self.objects();
        let jobs: Vec<(&String, SlotJob)> =
            objects.iter().filter_map(|(path, object)| Some((path, SlotJob::of(path, object)?))).collect();
        let Some((path, job)) = random.one_of(&jobs) else { return "no job".into() };
        if job.owner == self.uid && self.recorded() < Some(job.slot) {
            if lock(&self.server).ends || !self.knows(job.slot) {
                return format!("{path} stays: nobody else knows of it");
            }
            self.unrecorded = self.unrecorded.max(Some(job.slot));
            self.note("jobs that went before they were recorded");
        }
        self.note("jobs that went");
        lock(&self.server).remove(path);
        format!("{path} is gone")
    }

    /// Somebody makes a job with the name of the next slot.
    fn take_name(&self) -> String {
        let (period, _) = SCHEDULES[self.wanted.schedule];
        let slot = (self.now().wall.as_second().div_euclid(period) + 1) * period;
        let path = format!("{}/cron-{slot}", jobs_of(self.wanted.kind));
        if self.get(&path).is_none() {
            let theirs = json!({"metadata": {"name": format!("cron-{slot}"), "namespace": "ns"}});
            lock(&self.server).put(&path, theirs);
            self.note("jobs of others in the way");
        }
        format!("{path} is somebody's")
    }
}

/// What the model judges.
struct Seen {
    cron: Option<Arc<Value>>,
    jobs: Vec<SlotJob>,
    wanted: Wanted,
    generation: i64,
    now: i64,
    /// Nobody has anything to do, or to hear of, at this moment.
    is_quiet: bool,
    changes: usize,
    pass: Option<PassSeen>,
}

impl Driver for History {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        self.changes += 1;
        Ok(match random.below(16) {
            0..=4 => self.turn_cron(random),
            5 | 6 => {
                self.jobs_end = !self.jobs_end;
                format!("jobs end: {}", self.jobs_end)
            }
            7..=9 => self.turn_job(random),
            10 => self.take_name(),
            11 | 12 if !lock(&self.server).ends => {
                let fault = [Fault::Lost, Fault::Error(500), Fault::Error(403), Fault::Error(429)][random.below(4)];
                let times = 1 + random.below(3);
                lock(&self.server).faults.extend(std::iter::repeat_n(fault, times));
                format!("{times} times {fault:?}")
            }
            13 => {
                self.ahead = SignedDuration::from_secs(CLOCKS[random.below(CLOCKS.len())]);
                // As the one who looks after the clock does.
                self.controller.queue.add_after(key(), CLOCK_CHECK);
                self.note("clocks set");
                format!("the clock is ahead by {}", self.ahead)
            }
            14 if self.may_end() => {
                lock(&self.server).end_soon();
                "the manager ends after its next write".into()
            }
            15 if self.may_end() => {
                self.restart_manager();
                "a new manager".into()
            }
            _ => "nothing".into(),
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.changes += 1;
        lock(&self.server).let_through();
        self.jobs_end = true;
        self.wanted.paused = false;
        for (path, _) in self.objects() {
            let job = self.get(&path).and_then(|object| SlotJob::of(&path, &object));
            if job.is_some_and(|job| job.owner.is_empty()) {
                lock(&self.server).remove(&path);
            }
        }
        match self.get(CRON) {
            Some(_) => self.write(),
            None => self.make(),
        }
        Ok(format!("{:?}", self.wanted))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        let effects = self.surroundings(random);
        let has_news = !lock(&self.server).news.is_empty();
        Ok(match Next::choose(random, effects.len(), has_news, &self.controller.queue) {
            Next::Pass(key) => Step::Worked(self.reconcile(key).await),
            Next::Effect(index) => {
                self.play(&effects[index]);
                Step::Worked(format!("{:?}", effects[index]))
            }
            Next::News => Step::Worked(self.deliver_next(random)),
            Next::Nothing => Step::Idle(self.controller.queue.next_in()),
        })
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let queue = &self.controller.queue;
        // A status that differs in little is written a second later.
        let waits = queue.depth() == 0 && queue.next_in().is_none_or(|next| next > Duration::from_secs(1));
        let has_news = !lock(&self.server).news.is_empty();
        let is_quiet = waits && !has_news && self.surroundings(&mut Random(0)).is_empty();
        Ok(Seen {
            cron: self.get(CRON),
            jobs: SlotJob::all(&self.objects()),
            wanted: self.wanted.clone(),
            generation: self.generation,
            now: self.now().wall.as_second(),
            is_quiet,
            changes: self.changes,
            pass: self.pass.take(),
        })
    }
}

/// What is promised, in plain terms.
#[derive(Default)]
struct Promises {
    /// By the UID of the AdvancedCronJob and slot.
    made: BTreeMap<(String, i64), SlotJob>,
    /// The newest slot in the status, by UID.
    recorded: BTreeMap<String, i64>,
    /// After how many changes it has come to rest. When a slot comes there is something to do for a moment.
    rested: Option<usize>,
    acts: Acts,
}

impl Promises {
    /// What one pass may not do, by what it knew.
    fn judge(&mut self, pass: &PassSeen) -> Vec<String> {
        let PassSeen { known, created, children, now, before, after } = pass;
        let Some((uid, wanted)) = known else {
            let is_same = before == after;
            return if is_same { Vec::new() } else { vec![format!("a pass over nothing: {before:?}, {after:?}")] };
        };
        let mut wrongs = Vec::new();
        let active: Vec<&CronChild> = children.iter().filter(|child| child.end.is_none()).collect();
        let new: Vec<&SlotJob> = after.iter().filter(|job| !has(before, &job.uid)).collect();
        if new.len() > 1 {
            wrongs.push(format!("more than one job at a time: {new:?}"));
        }
        for job in new {
            self.acts.note("jobs made");
            let is_due = job.slot > *created && job.slot <= *now && job.slot % SCHEDULES[wanted.schedule].0 == 0;
            if job.owner != *uid || !is_due {
                wrongs.push(format!("at {now} {job:?} is made by {wanted:?}"));
            }
            if wanted.paused || wanted.deadline.is_some_and(|deadline| now - job.slot > deadline) {
                wrongs.push(format!("at {now} {job:?} is made although it must not be: {wanted:?}"));
            }
            let runs_beside = match wanted.policy {
                "Forbid" => !active.is_empty(),
                "Replace" => active.iter().any(|child| has(after, &child.uid)),
                _ => false,
            };
            if runs_beside {
                wrongs.push(format!("{job:?} runs beside {active:?}: {wanted:?}"));
            }
        }
        let is_deleted = |child: &CronChild| has(before, &child.uid) && !has(after, &child.uid);
        for job in before.iter().filter(|job| !has(after, &job.uid)) {
            match children.iter().find(|child| child.uid == job.uid).map(|child| child.end) {
                None => wrongs.push(format!("{job:?} is deleted and was not known")),
                Some(None) if wanted.policy == "Replace" => self.acts.note("jobs replaced"),
                Some(None) => wrongs.push(format!("{job:?} is deleted and runs: {wanted:?}")),
                Some(Some(_)) => self.acts.note("jobs no longer kept"),
            }
        }
        for (succeeded, limit) in [(true, wanted.limits.0), (false, wanted.limits.1)] {
            let is_meant = |child: &&CronChild| child.end.is_some_and(|end| end.succeeded == succeeded);
            let ended = children.iter().filter(is_meant).count();
            let deleted = children.iter().filter(is_meant).filter(|child| is_deleted(child)).count();
            if deleted > ended.saturating_sub(limit) {
                wrongs.push(format!("{deleted} of {ended} are deleted, and {limit} are to be kept"));
            }
        }
        wrongs
    }

    /// A slot has one job, and what is recorded never goes back.
    fn judge_slots(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = Vec::new();
        for job in seen.jobs.iter().filter(|job| !job.owner.is_empty()) {
            let slot = (job.owner.clone(), job.slot);
            let recorded = self.recorded.get(&job.owner).copied();
            // Made while the clock was ahead, and gone before anything was recorded: by then nobody knew of it.
            let is_forgotten = |first: &SlotJob| first.looks_forged() && recorded < Some(first.slot);
            if let Some(first) = self.made.get(&slot).filter(|first| first.uid != job.uid && !is_forgotten(first)) {
                wrongs.push(format!("a slot has two jobs: {first:?}, {job:?}"));
            }
            self.made.insert(slot, job.clone());
        }
        if let Some(cron) = &seen.cron {
            let uid = text(&cron["metadata"]["uid"]).to_owned();
            let (before, now) = (self.recorded.get(&uid).copied(), seconds(&cron["status"]["lastScheduleTime"]));
            if now < before {
                wrongs.push(format!("lastScheduleTime was {before:?} and is {now:?}"));
            }
            self.recorded.extend(now.map(|now| (uid, now)));
        }
        wrongs
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = seen.pass.as_ref().map(|pass| self.judge(pass)).unwrap_or_default();
        wrongs.extend(self.judge_slots(seen));
        if seen.is_quiet && self.missing(seen).is_empty() {
            self.rested = Some(seen.changes);
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        if !seen.is_quiet {
            let has_rested = self.rested == Some(seen.changes);
            return if has_rested { Vec::new() } else { vec!["there is something to do".into()] };
        }
        let Some(cron) = &seen.cron else { return vec!["there is no AdvancedCronJob".into()] };
        let (wanted, status, now) = (&seen.wanted, &cron["status"], seen.now);
        let mut missing = Vec::new();
        let mut ask = |is_so: bool, what: String| {
            if !is_so {
                missing.push(what);
            }
        };
        let (period, _) = SCHEDULES[wanted.schedule];
        let latest = now.div_euclid(period) * period;
        let created = seconds(&cron["metadata"]["creationTimestamp"]).unwrap_or_default();
        let last = seconds(&status["lastScheduleTime"]);
        let is_late = wanted.deadline.is_some_and(|deadline| now - latest > deadline);
        ask(is_late || latest <= last.unwrap_or(created), format!("the job of {latest} at {now}, last {last:?}"));
        let uid = text(&cron["metadata"]["uid"]);
        let of_cron = self.made.iter().filter(|((owner, _), job)| owner == uid && !job.looks_forged());
        let newest = of_cron.map(|((_, slot), _)| *slot).max();
        ask(newest <= last, format!("lastScheduleTime is {last:?}, and there was a job of {newest:?}"));
        ask(status["observedGeneration"] == seen.generation, "the status is about an older spec".into());
        ask(status["type"] == wanted.kind.kind(), format!("status.type is {}", status["type"]));
        let own: Vec<&SlotJob> = seen.jobs.iter().filter(|job| job.owner == uid).collect();
        let mut active: Vec<&str> = own.iter().filter(|job| job.end.is_none()).map(|job| job.uid.as_str()).collect();
        active.sort_unstable();
        let told = status["active"].as_array().into_iter().flatten();
        let mut told: Vec<&str> = told.map(|job| text(&job["uid"])).collect();
        told.sort_unstable();
        ask(active == told, format!("active are {active:?}, and the status says {told:?}"));
        for (succeeded, limit) in [(true, wanted.limits.0), (false, wanted.limits.1)] {
            // One whose slot has not come is kept: it tells of it.
            let kept = own.iter().filter(|job| job.end == Some(succeeded) && job.slot <= now).count();
            ask(kept <= limit, format!("{kept} jobs are kept that have ended, {limit} are wanted"));
        }
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let condition = conditions.find(|condition| condition["status"] == "True").cloned().unwrap_or_default();
        let waits_for_clock = condition["reason"] == "LastScheduleAhead" && last > Some(now);
        ask(condition["type"] == "Ready" || waits_for_clock, format!("it is not Ready: {condition}"));
        missing
    }
}

fn history(seed: u64) -> Result<Acts, String> {
    let limits = Limits {
        steps_between: 25,
        time_between: Duration::from_secs(900),
        patience: Duration::from_secs(7200),
        stays: 80,
        ..Limits::default()
    };
    let begin = |random: &mut Random| (History::new(random), Promises::default());
    let acts = |history: History, promises: Promises| {
        let mut acts = lock(&history.server).acts.clone();
        acts.merge(promises.acts);
        acts
    };
    fake::history(seed, &limits, begin, |history| format!("{:?}", history.wanted), acts)
}

#[test]
fn simulation_of_advanced_cron_jobs() {
    let acts = liveness::seeds(24, "simulation_of_advanced_cron_jobs", history);
    acts.require(&[
        ("deleted", 20),
        ("made again", 20),
        ("clocks set", 60),
        ("jobs that went", 20),
        ("jobs of others in the way", 30),
        ("refused writes", 20),
        ("lost answers", 10),
        ("managers that ended between writes", 20),
        ("managers that started anew", 60),
        // What came of it.
        ("jobs made", 150),
        ("jobs replaced", 3),
        ("jobs no longer kept", 10),
    ]);
}
