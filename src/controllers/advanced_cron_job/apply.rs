//! Carries out what the plan says: the only writer.

use std::time::Duration;

use jiff::Timestamp;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};

use super::{
    Controller, CronMemory, KindLabels,
    child::{Child, api_in},
};
use crate::{
    api::apps::advanced_cron_job::AdvancedCronJob,
    controllers::lock,
    domain::kinds::cron_job::{
        make::{self, CronRun},
        plan::{CronChild, CronPlan, MissedSlots},
        spec::{CronProblem, CronSpec, JobKind},
        status,
    },
    k8s::{
        path,
        time::{Now, rfc3339},
    },
    runtime::{
        apply::{code, is_already_there, is_refusal, namespace_is_ending, post, said},
        clock,
        events::reference,
        packed::Packed,
        status_writer::{Outcome, json_of},
        watches::ObjectKey,
    },
};

/// Somebody else has the name of a job, or the namespace ends: this may pass.
const IN_THE_WAY: Duration = Duration::from_secs(10);
/// The most characters of a reason in the status.
const LONGEST_TROUBLE: usize = 1000;

impl Controller {
    pub(super) fn memory<T>(&self, cron: &AdvancedCronJob, with: impl FnOnce(&mut CronMemory) -> T) -> T {
        let uid = cron.metadata.uid.clone().unwrap_or_default();
        let mut memories = lock(&self.memories);
        let memory = memories.entry(ObjectKey::of(cron)).or_default();
        if memory.uid != uid {
            *memory = CronMemory { uid, reported: status::reported_until(cron), ..CronMemory::default() };
        }
        with(memory)
    }

    /// Makes the job of a slot, after it has deleted those whose place it takes. The result says when to try again, if the
    /// job is not there then.
    pub(super) async fn run_slot(
        &self,
        cron: &AdvancedCronJob,
        plan: &CronPlan,
        slot: Timestamp,
    ) -> kube::Result<Option<Duration>> {
        if let Err(error) = self.delete(cron, &plan.replace).await {
            self.trouble(cron, &format!("a job that is to be replaced cannot be deleted: {}", said(&error)));
            return Err(error);
        }
        let key = ObjectKey::of(cron);
        let Some((kind, job)) = make::job(cron, CronRun::Slot(slot)) else { return Ok(None) };
        let name = make::name(&key.name, slot);
        let path = path::in_namespace(kind.group(), kind.version(), &key.namespace, kind.plural());
        // Reported once the job is known to be there: the answer may be lost, and the job be found later.
        self.memory(cron, |memory| memory.skipped = plan.missed);
        let text = match post(&self.context.client, &path, &job).await {
            Ok(text) => text,
            Err(error) if is_already_there(&error) => return self.take_over(cron, kind, (&name, slot)).await,
            Err(error) if namespace_is_ending(&error) => return Ok(Some(IN_THE_WAY)),
            Err(error) => {
                if !is_refusal(&error) {
                    self.memory(cron, |memory| memory.sent = Some(slot));
                }
                self.trouble(cron, &format!("{} {name}: {}", kind.kind(), said(&error)));
                return Err(error);
            }
        };
        // What has been stored has been made, whether its answer can be read or not: then the watch brings it.
        if let Ok(child) = serde_json::from_str::<Child>(&text) {
            self.jobs.of(kind).upsert(child);
        }
        self.made(cron, slot);
        self.metrics.delay.observe(clock::now().since(slot).as_secs_f64());
        self.report_made(cron, kind, slot);
        Ok(None)
    }

    /// The job of a slot is there, or was.
    fn made(&self, cron: &AdvancedCronJob, slot: Timestamp) {
        self.memory(cron, |memory| {
            memory.made = memory.made.max(Some(slot));
            memory.trouble = None;
        });
        self.report_skipped(cron, Some(slot));
    }

    /// There is a job of that name: made by a process before this one, or somebody else's.
    async fn take_over(
        &self,
        cron: &AdvancedCronJob,
        kind: JobKind,
        (name, slot): (&str, Timestamp),
    ) -> kube::Result<Option<Duration>> {
        let found = api_in(&self.context, kind, &ObjectKey::of(cron).namespace).get_opt(name).await?;
        // It was there a moment ago, and its slot with it.
        let Some(found) = found else { return Ok(Some(IN_THE_WAY)) };
        let is_ours = found.cron_uid().is_some() && found.cron_uid() == cron.metadata.uid.as_deref();
        if is_ours && found.slot() == Some(slot) {
            self.jobs.of(kind).upsert(found);
            self.made(cron, slot);
            if self.memory(cron, |memory| memory.sent == Some(slot)) {
                self.report_made(cron, kind, slot);
            }
            return Ok(None);
        }
        let what = if is_ours { "lacks the annotation with its time" } else { "belongs to somebody else" };
        self.trouble(cron, &format!("{} {name} is there already and {what}", kind.kind()));
        Ok(Some(IN_THE_WAY))
    }

    /// Deletes jobs with what they own. One that fails does not keep the others.
    pub(super) async fn delete(&self, cron: &AdvancedCronJob, children: &[CronChild]) -> kube::Result<()> {
        let mut failed = None;
        for child in children {
            if let Err(error) = self.delete_one(cron, child).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn delete_one(&self, cron: &AdvancedCronJob, child: &CronChild) -> kube::Result<()> {
        let CronChild { kind, name, uid, .. } = child;
        let namespace = ObjectKey::of(cron).namespace;
        let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let store = self.jobs.of(*kind);
        match api_in(&self.context, *kind, &namespace).delete(name, &parameters).await {
            Ok(answer) => match answer.left().filter(Child::is_deleting) {
                // A finalizer holds it.
                Some(going) => drop(store.upsert(going)),
                None => drop(store.remove(&ObjectKey::new(&namespace, name), Some(uid))),
            },
            Err(error) if matches!(code(&error), Some(404 | 409)) => {
                store.remove(&ObjectKey::new(&namespace, name), Some(uid));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        tracing::info!(cron = %ObjectKey::of(cron), kind = kind.kind(), job = name, "deleted a job");
        self.context.events.normal(&reference(cron), "SuccessfulDelete", &format!("deleted {} {name}", kind.kind()));
        Ok(())
    }

    /// Writes the status.
    pub(super) async fn record(
        &self,
        (held, cron): (&Packed<AdvancedCronJob>, &AdvancedCronJob),
        spec: Result<&CronSpec, &CronProblem>,
        looked: (&CronPlan, &[CronChild]),
        now: Now,
    ) -> kube::Result<Outcome<Packed<AdvancedCronJob>>> {
        let key = ObjectKey::of(cron);
        let trouble = self.memory(cron, |memory| {
            if looked.0.run.is_none() {
                memory.trouble = None;
            }
            memory.trouble.clone()
        });
        let status = status::status(cron, spec, looked, trouble.as_deref(), now.wall);
        let is_news = cron.status.as_ref().is_none_or(|before| {
            (before.last_schedule_time, before.last_successful_time, before.observed_generation)
                != (status.last_schedule_time, status.last_successful_time, status.observed_generation)
        });
        let recorded = (&json_of(cron.status.as_ref())?, &json_of(Some(&status))?);
        let api: Api<Packed<AdvancedCronJob>> = Api::namespaced(self.context.client.clone(), &key.namespace);
        self.status.write((&api, &self.crons), held, recorded, !is_news, now).await
    }

    /// Says why nothing is made.
    pub(super) fn report_waiting(&self, cron: &AdvancedCronJob, problem: Option<&CronProblem>, plan: &CronPlan) {
        if let Some(problem) = problem {
            self.emit_once(cron, problem.reason(), &problem.to_string(), true);
        } else if plan.waiting.is_some() {
            let message = "a job is due and is made when the active ones have ended (concurrencyPolicy Forbid)";
            self.emit_once(cron, "JobAlreadyActive", message, false);
        }
        if let Some(missed) = plan.missed.filter(|missed| missed.is_late) {
            self.report_missed(cron, missed);
        }
    }

    /// Says that a job was made whose creation got no answer, if it is one of these.
    pub(super) fn report_found(&self, cron: &AdvancedCronJob, children: &[CronChild]) {
        let Some(sent) = self.memory(cron, |memory| memory.sent) else { return };
        let name = make::name(&ObjectKey::of(cron).name, sent);
        if let Some(found) = children.iter().find(|child| child.slot == Some(sent) && child.name == name) {
            self.report_made(cron, found.kind, sent);
        }
    }

    /// Says that a job was made.
    fn report_made(&self, cron: &AdvancedCronJob, kind: JobKind, slot: Timestamp) {
        self.memory(cron, |memory| {
            memory.said.clear();
            memory.sent = None;
        });
        let (key, kind) = (ObjectKey::of(cron), kind.kind());
        let name = make::name(&key.name, slot);
        self.metrics.made.get_or_create(&KindLabels { kind }).inc();
        tracing::info!(cron = %key, kind, job = name, slot = %rfc3339(slot), "made a job");
        let message = format!("created {kind} {name} for {}", rfc3339(slot));
        self.context.events.normal(&reference(cron), "SuccessfulCreate", &message);
    }

    /// Says what was missed before a job that was sent for, once that is known to be there: `made` is the newest slot that has,
    /// or had, a job.
    pub(super) fn report_skipped(&self, cron: &AdvancedCronJob, made: Option<Timestamp>) {
        let skipped = self.memory(cron, |memory| memory.skipped.take_if(|missed| made >= Some(missed.last)));
        if let Some(missed) = skipped {
            self.report_missed(cron, missed);
        }
    }

    /// One event, however many were missed.
    fn report_missed(&self, cron: &AdvancedCronJob, missed: MissedSlots) {
        let MissedSlots { count, is_more, first, last, is_late } = missed;
        // A job that was sent for without an answer may have become late since, and be found now.
        let is_reported = self.memory(cron, |memory| {
            let before = memory.reported;
            memory.reported = before.max(Some(last));
            before >= Some(last)
        });
        if is_reported {
            return;
        }
        self.metrics.missed.inc_by(u64::from(count));
        let number = if is_more { format!("more than {count}") } else { count.to_string() };
        let (first, last) = (rfc3339(first), rfc3339(last));
        let message = match is_late {
            true => {
                format!("missed {number} since {first}: startingDeadlineSeconds have passed since the last one, {last}")
            }
            false => format!("missed {number} since {first}: only the latest job, of {last}, was made"),
        };
        tracing::warn!(cron = %ObjectKey::of(cron), message, "missed times of its schedule");
        self.context.events.warning(&reference(cron), "MissedSchedule", &message);
    }

    /// The job that is due could not be made.
    fn trouble(&self, cron: &AdvancedCronJob, why: &str) {
        let why: String = why.chars().take(LONGEST_TROUBLE).collect();
        self.emit_once(cron, "FailedCreate", &why, true);
        self.memory(cron, |memory| memory.trouble = Some(why));
    }

    /// Emits an event, unless it is the same as the last one of this object.
    fn emit_once(&self, cron: &AdvancedCronJob, reason: &str, message: &str, is_warning: bool) {
        let said = format!("{reason} {message}");
        if self.memory(cron, |memory| std::mem::replace(&mut memory.said, said.clone())) == said {
            return;
        }
        tracing::info!(cron = %ObjectKey::of(cron), reason, message, "emitted an event");
        let about = reference(cron);
        match is_warning {
            true => self.context.events.warning(&about, reason, message),
            false => self.context.events.normal(&about, reason, message),
        }
    }
}
