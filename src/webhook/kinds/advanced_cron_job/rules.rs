//! The rules for the fields of an AdvancedCronJob. Pure; its template is judged by the API server, in a dry run.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};

use crate::{
    api::apps::{advanced_cron_job, image_list_pull_job::ImageListPullJobSpec, image_pull_job::CompletionPolicyType},
    domain::kinds::{
        cron_job::{
            schedule::{Schedule, ScheduleError},
            spec::JobKind,
        },
        image_jobs,
    },
    webhook::{
        broadcast_job_spec, image_job_spec,
        server::review::Cause,
        validate::{Findings, Object, show, show_text},
    },
};

/// Defaults, as numbers.
pub(super) const SUCCESSFUL_HISTORY: i32 = advanced_cron_job::DEFAULT_SUCCESSFUL_HISTORY;
/// Likewise.
pub(super) const FAILED_HISTORY: i32 = advanced_cron_job::DEFAULT_FAILED_HISTORY;
/// The longest schedule, in bytes. Lists of all minutes, hours and days have some 400.
const LONGEST_SCHEDULE: usize = 1024;
/// The longest name: that of a job has a hyphen and ten digits more, and is the value of a label, which has up to 63.
const LONGEST_NAME: usize = 52;
/// The longest name where the name of the job is no label's value.
const LONGEST_IMAGES_NAME: usize = 63;
/// The latest end of an image job, in seconds.
const LONGEST_DEADLINE: i64 = 86_400;
/// Whether a schedule fits any time does not depend on when that is asked.
const SOME_DAY: i64 = 1_735_689_600;
const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];

/// The kind of the template of an object. None: there is none, or several.
pub(super) fn kind(object: &Value) -> Option<JobKind> {
    kind_of_spec(object.get("spec")?.as_object()?)
}

/// The same of a spec.
pub(super) fn kind_of_spec(spec: &Object) -> Option<JobKind> {
    let template = spec.get("template")?.as_object()?;
    let mut kinds = JobKind::ALL.into_iter().filter(|kind| template.get(kind.field()).is_some_and(Value::is_object));
    kinds.next().filter(|_| kinds.next().is_none())
}

/// The kind of the jobs stays: the old ones would never be found in the history of the new ones.
pub(super) fn changed_kind(old: &Value, new: &Value) -> Option<Cause> {
    let (before, after) = (kind(old)?, kind(new)?);
    (before != after).then(|| Cause {
        field: "spec.template".into(),
        message: format!(
            "{} is not allowed; want {} as before: the kind cannot be changed, create another AdvancedCronJob",
            after.field(),
            before.field()
        ),
    })
}

/// Everything that is wrong.
pub(super) fn judge(object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(spec) = object.get("spec").and_then(Value::as_object) else {
        found.wrong_types.push("spec: it is missing or no object; want schedule and template".into());
        return found;
    };
    let kind = template(&mut found, spec);
    if is_new {
        let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&none);
        name(&mut found, metadata, kind);
    }
    schedule(&mut found, spec);
    found.flag(spec, "spec.", "paused");
    found.integer(spec, "spec.", "successfulJobsHistoryLimit", 0);
    found.integer(spec, "spec.", "failedJobsHistoryLimit", 0);
    seconds(&mut found, spec, "startingDeadlineSeconds");
    let policy = found.one_of(spec, "spec.", "concurrencyPolicy", &POLICIES);
    if policy == "Allow" && kind == Some(JobKind::ImageListPullJob) {
        let why = "\"Allow\" is not allowed with imageListPullJobTemplate; want Forbid or Replace: two jobs would pull the same images at once";
        found.deny("spec.concurrencyPolicy", why);
    }
    found
}

/// A whole number of 64 bits that is not negative.
fn seconds(found: &mut Findings, spec: &Object, key: &str) {
    let Some(value) = spec.get(key).filter(|value| !value.is_null()) else { return };
    match value.as_i64() {
        None => found.wrong_type(&format!("spec.{key}"), value, "a whole number of seconds from 0"),
        Some(number) if number < 0 => {
            found.deny(format!("spec.{key}"), format!("{number} is not allowed; want 0 or more"));
        }
        Some(_) => {}
    }
}

fn name(found: &mut Findings, metadata: &Map<String, Value>, kind: Option<JobKind>) {
    let longest = match kind {
        Some(JobKind::ImageListPullJob) => (LONGEST_IMAGES_NAME, ""),
        _ => (LONGEST_NAME, ": the name of a job has eleven characters more, and up to 63"),
    };
    found.object_name(metadata, Some(longest));
    for field in ["name", "generateName"] {
        let name = found.text(metadata, "metadata.", field);
        if name.contains('.') {
            let why = format!("{} is not allowed; want letters, digits and '-', without a dot", show_text(name));
            found.deny(format!("metadata.{field}"), why);
        }
    }
}

fn schedule(found: &mut Findings, spec: &Object) {
    let text = found.text(spec, "spec.", "schedule");
    let zone = found.text(spec, "spec.", "timeZone");
    let has_zone = spec.get("timeZone").is_some_and(Value::is_string);
    if has_zone && (zone.is_empty() || zone.eq_ignore_ascii_case("local")) {
        let why = format!("{} is not allowed; want a name such as Europe/Berlin, or leave it out", show_text(zone));
        found.deny("spec.timeZone", why);
        return;
    }
    if has_zone && text.contains("TZ") {
        let why = format!("{} has a time zone beside spec.timeZone; want only one of the two", show_text(text));
        found.deny("spec.schedule", why);
        return;
    }
    if text.len() > LONGEST_SCHEDULE {
        let why = format!("it has {} bytes; want at most {LONGEST_SCHEDULE}", text.len());
        found.deny("spec.schedule", why);
        return;
    }
    match Schedule::parse(text, has_zone.then_some(zone), &TimeZone::UTC) {
        Ok(schedule) => {
            let some_day = Timestamp::from_second(SOME_DAY).unwrap_or_default();
            if schedule.next(some_day, some_day).is_none() {
                let shown = show_text(text);
                found
                    .warnings
                    .push(format!("spec.schedule: {shown} fits no time of the next five years: no job is made"));
            }
        }
        Err(error @ ScheduleError::Zone(_)) if has_zone => found.deny("spec.timeZone", error.to_string()),
        Err(error) => found.deny("spec.schedule", error.to_string()),
    }
}

/// The template, as far as the API server does not judge it.
fn template(found: &mut Findings, spec: &Object) -> Option<JobKind> {
    const AT: &str = "spec.template.";
    let Some(template) = found.object(spec, "spec.", "template") else {
        if spec.get("template").is_none_or(Value::is_null) {
            found.deny(
                "spec.template",
                "it is missing; want exactly one of jobTemplate, broadcastJobTemplate and imageListPullJobTemplate",
            );
        }
        return None;
    };
    let there: Vec<JobKind> =
        JobKind::ALL.into_iter().filter(|kind| found.object(template, AT, kind.field()).is_some()).collect();
    let [kind] = there[..] else {
        let fields: Vec<&str> = there.iter().map(|kind| kind.field()).collect();
        let shown = if fields.is_empty() { "none".to_owned() } else { fields.join(" and ") };
        let want = "want exactly one of jobTemplate, broadcastJobTemplate and imageListPullJobTemplate";
        found.deny("spec.template", format!("{shown} is there; {want}"));
        return None;
    };
    let of_kind = found.object(template, AT, kind.field())?;
    let at = format!("{AT}{}.", kind.field());
    if let Some(metadata) = found.object(of_kind, &at, "metadata") {
        found.object(metadata, &format!("{at}metadata."), "labels");
        found.object(metadata, &format!("{at}metadata."), "annotations");
    }
    let Some(job) = found.object(of_kind, &at, "spec") else {
        if of_kind.get("spec").is_none_or(Value::is_null) {
            found.deny(format!("{at}spec"), format!("it is missing; want the spec of the {}", kind.kind()));
        }
        return Some(kind);
    };
    let at_spec = format!("{at}spec.");
    match kind {
        JobKind::Job => {
            if found.object(job, &at_spec, "template").is_none() && job.get("template").is_none_or(Value::is_null) {
                found.deny(format!("{at_spec}template"), "it is missing; want a Pod template");
            }
        }
        JobKind::BroadcastJob => broadcast_job_spec::judge(found, job, &at_spec),
        JobKind::ImageListPullJob => image_list(found, job, &at),
    }
    Some(kind)
}

/// An ImageListPullJob: its own rules, and an end before the next one begins.
fn image_list(found: &mut Findings, spec: &Object, at: &str) {
    let mut spec = spec.clone();
    image_job_spec::set_defaults(&mut spec);
    let spec: ImageListPullJobSpec = match serde_json::from_value(Value::Object(spec)) {
        Ok(spec) => spec,
        Err(error) => {
            found.wrong_types.push(format!("{at}spec: {error}"));
            return;
        }
    };
    for (field, message) in image_jobs::rules::of_list(&spec) {
        found.deny(format!("{at}{field}"), message);
    }
    let policy = &spec.completion_policy;
    let at = format!("{at}spec.completionPolicy.");
    if policy.type_ != CompletionPolicyType::Always {
        found.deny(format!("{at}type"), "\"Never\" is not allowed; want Always: the jobs of a schedule end");
    }
    if let Some(ttl) = policy.ttl_seconds_after_finished {
        let why = format!("{ttl} is not allowed; leave it out: the limits of the history say which jobs are kept");
        found.deny(format!("{at}ttlSecondsAfterFinished"), why);
    }
    if let Some(deadline) = policy.active_deadline_seconds.filter(|deadline| *deadline > LONGEST_DEADLINE) {
        let shown = show(&json!(deadline));
        found.deny(
            format!("{at}activeDeadlineSeconds"),
            format!("{shown} is not allowed; want at most {LONGEST_DEADLINE}"),
        );
    }
}
