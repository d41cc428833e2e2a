//! The stored object as the rules read it: admission may have been away when it was written.

use jiff::tz::TimeZone;
use serde_json::Value;

use super::schedule::{Schedule, ScheduleError};
use crate::api::apps::{
    self,
    advanced_cron_job::{AdvancedCronJobSpec, CronJobTemplate, DEFAULT_FAILED_HISTORY, DEFAULT_SUCCESSFUL_HISTORY},
};

/// The kind of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobKind {
    /// Of batch/v1.
    Job,
    /// Of ours.
    BroadcastJob,
    /// Of ours.
    ImageListPullJob,
}

impl JobKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Job, Self::BroadcastJob, Self::ImageListPullJob];

    /// As in an object.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::BroadcastJob => "BroadcastJob",
            Self::ImageListPullJob => "ImageListPullJob",
        }
    }

    /// As in a path.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Job => "jobs",
            Self::BroadcastJob => "broadcastjobs",
            Self::ImageListPullJob => "imagelistpulljobs",
        }
    }

    /// API group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Job => "batch",
            Self::BroadcastJob | Self::ImageListPullJob => apps::GROUP,
        }
    }

    /// The version in which they are written.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Job => "v1",
            Self::BroadcastJob | Self::ImageListPullJob => "v1beta1",
        }
    }

    /// Group and version.
    pub fn api_version(self) -> String {
        format!("{}/{}", self.group(), self.version())
    }

    /// Its field of `spec.template`.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Job => "jobTemplate",
            Self::BroadcastJob => "broadcastJobTemplate",
            Self::ImageListPullJob => "imageListPullJobTemplate",
        }
    }
}

/// What happens while an earlier job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Another one is made.
    Allow,
    /// It waits.
    Forbid,
    /// The earlier one is deleted.
    Replace,
}

/// Why no job can be made of a stored object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronProblem {
    /// The schedule, or the zone in it.
    #[error("spec.schedule: {0}")]
    Schedule(ScheduleError),
    /// `spec.timeZone`.
    #[error("spec.timeZone: {0}")]
    Zone(ScheduleError),
    /// No template.
    #[error(
        "spec.template: it is empty; want exactly one of jobTemplate, broadcastJobTemplate and imageListPullJobTemplate"
    )]
    NoTemplate,
}

impl CronProblem {
    /// One word, for events and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Zone(_) | Self::Schedule(ScheduleError::Zone(_)) => "UnknownTimeZone",
            Self::Schedule(_) => "InvalidSchedule",
            Self::NoTemplate => "InvalidTemplate",
        }
    }
}

/// An AdvancedCronJob of which jobs can be made.
#[derive(Clone, Debug, PartialEq)]
pub struct CronSpec {
    /// When.
    pub schedule: Schedule,
    /// How many seconds later at most.
    pub deadline: Option<i64>,
    /// While an earlier job runs.
    pub concurrency: Concurrency,
    /// No job is made.
    pub paused: bool,
    /// Of what kind.
    pub kind: JobKind,
}

impl CronSpec {
    /// Reads a spec. `local` is the time zone of this process.
    ///
    /// # Errors
    /// No job can be made of it.
    pub fn of(spec: &AdvancedCronJobSpec, local: &TimeZone) -> Result<Self, CronProblem> {
        let (kind, _) = template(&spec.template).ok_or(CronProblem::NoTemplate)?;
        let schedule = Schedule::parse(&spec.schedule, spec.time_zone.as_deref(), local).map_err(|error| {
            let is_of_field = spec.time_zone.is_some() && !spec.schedule.contains("TZ=");
            match error {
                ScheduleError::Zone(_) if is_of_field => CronProblem::Zone(error),
                error => CronProblem::Schedule(error),
            }
        })?;
        let concurrency = match (spec.concurrency_policy.as_str(), kind) {
            ("Forbid", _) => Concurrency::Forbid,
            // Two jobs would pull the same images at once.
            ("Replace", _) | (_, JobKind::ImageListPullJob) => Concurrency::Replace,
            _ => Concurrency::Allow,
        };
        Ok(Self {
            schedule,
            deadline: spec.starting_deadline_seconds.map(|seconds| seconds.max(0)),
            concurrency,
            paused: spec.paused.unwrap_or_default(),
            kind,
        })
    }
}

/// The template, and its kind. Of several, which admission refuses, the first one counts as in OpenKruise.
pub fn template(template: &CronJobTemplate) -> Option<(JobKind, &Value)> {
    let CronJobTemplate { job_template, broadcast_job_template, image_list_pull_job_template } = template;
    let of = |kind, field: &'_ Option<Value>| field.as_ref().filter(|value| value.is_object()).map(|_| kind);
    let kind = of(JobKind::Job, job_template)
        .or_else(|| of(JobKind::ImageListPullJob, image_list_pull_job_template))
        .or_else(|| of(JobKind::BroadcastJob, broadcast_job_template))?;
    let value = match kind {
        JobKind::Job => job_template,
        JobKind::BroadcastJob => broadcast_job_template,
        JobKind::ImageListPullJob => image_list_pull_job_template,
    };
    Some((kind, value.as_ref()?))
}

/// How many jobs are kept that have succeeded, and that have failed.
pub fn history_limits(spec: &AdvancedCronJobSpec) -> (usize, usize) {
    let limit = |field: Option<i32>, default| usize::try_from(field.unwrap_or(default).max(0)).unwrap_or(usize::MAX);
    (
        limit(spec.successful_jobs_history_limit, DEFAULT_SUCCESSFUL_HISTORY),
        limit(spec.failed_jobs_history_limit, DEFAULT_FAILED_HISTORY),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(fields: Value) -> AdvancedCronJobSpec {
        let mut whole = json!({"schedule": "* * * * *", "template": {"jobTemplate": {"spec": {}}}});
        json_patch::merge(&mut whole, &fields);
        serde_json::from_value(whole).unwrap()
    }

    fn read(fields: Value) -> Result<CronSpec, CronProblem> {
        CronSpec::of(&spec(fields), &TimeZone::UTC)
    }

    #[test]
    fn c3_what_is_missing_has_its_default() {
        let CronSpec { deadline, concurrency, paused, kind, .. } = read(json!({})).unwrap();
        assert_eq!((deadline, concurrency, paused, kind), (None, Concurrency::Allow, false, JobKind::Job));
        assert_eq!(history_limits(&spec(json!({}))), (3, 1));
        let limits = json!({"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": -4});
        assert_eq!(history_limits(&spec(limits)), (0, 0));
        let of = |policy: &str| read(json!({"concurrencyPolicy": policy})).unwrap().concurrency;
        assert_eq!(
            [of("Forbid"), of("Replace"), of("Allow")],
            [Concurrency::Forbid, Concurrency::Replace, Concurrency::Allow]
        );
    }

    #[test]
    fn e40_an_image_template_is_never_run_twice_at_once() {
        let images = json!({"jobTemplate": null, "imageListPullJobTemplate": {"spec": {}}});
        for (policy, want) in
            [("", Concurrency::Replace), ("Allow", Concurrency::Replace), ("Forbid", Concurrency::Forbid)]
        {
            let found = read(json!({"template": images, "concurrencyPolicy": policy})).unwrap();
            assert_eq!((found.concurrency, found.kind), (want, JobKind::ImageListPullJob));
        }
    }

    #[test]
    fn c3_of_several_templates_one_counts_and_none_is_an_error() {
        let one = json!({"spec": {}});
        let kind = |template: Value| read(json!({"template": template})).map(|spec| spec.kind);
        assert_eq!(kind(json!({"broadcastJobTemplate": one, "imageListPullJobTemplate": one})), Ok(JobKind::Job));
        let none = json!({"jobTemplate": null, "broadcastJobTemplate": one, "imageListPullJobTemplate": one});
        assert_eq!(kind(none), Ok(JobKind::ImageListPullJob));
        assert_eq!(kind(json!({"jobTemplate": null, "broadcastJobTemplate": one})), Ok(JobKind::BroadcastJob));
        assert_eq!(kind(json!({"jobTemplate": null})), Err(CronProblem::NoTemplate));
        assert_eq!(kind(json!({"jobTemplate": "x"})), Err(CronProblem::NoTemplate));
    }

    #[test]
    fn f45_a_zone_that_is_not_known_is_no_local_time() {
        let error = read(json!({"timeZone": "Mars/Olympus"})).unwrap_err();
        assert_eq!(error.reason(), "UnknownTimeZone");
        assert!(error.to_string().starts_with("spec.timeZone: \"Mars/Olympus\" is no time zone"), "{error}");
        let error = read(json!({"schedule": "TZ=Mars/Olympus * * * * *"})).unwrap_err();
        assert_eq!(error.reason(), "UnknownTimeZone");
        assert!(error.to_string().starts_with("spec.schedule: "), "{error}");
        let error = read(json!({"schedule": "TZ="})).unwrap_err();
        assert_eq!(error.reason(), "InvalidSchedule");
    }
}
