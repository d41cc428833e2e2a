//! Admission of AdvancedCronJobs: defaults and rules in one call, for v1beta1 and v1alpha1 alike.
//!
//! [`check`] judges the object alone (`rules`), [`admit`] together with what the API server says of the template: of its Pod
//! template by a dry run of a PodTemplate, of a Job by a dry run of that Job. [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: the controller makes no job of what it cannot read. An update is never refused for
//! what it does not change.

use std::sync::Arc;

use futures::future::{BoxFuture, join};
use serde_json::{Value, json};

use crate::{
    api::feature_gates::{FeatureGates, gate},
    domain::kinds::cron_job::spec::JobKind,
    k8s::{path, rbac::Rule},
    runtime::pod_template::{Answer, Refused, dry_run_at},
    webhook::{
        Context, broadcast_job_spec, image_job_spec,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        template::{self, READ_BUDGET, Templates},
        validate::{Findings, Object, drop_empty, is_judged, set_default},
        workload::Judged,
    },
};

mod rules;

/// What [`handle`] asks: dry runs are creates that store nothing.
pub const RBAC: &[Rule] = &[template::RBAC, Rule::new(&["batch"], &["jobs"], &["create"])];

/// An AdvancedCronJob of which every field has the right type.
#[derive(Clone, Debug)]
pub struct CronJobAdmission {
    judged: Judged,
    /// Its template, if it is one that has Pods and is new.
    question: Option<Question>,
    /// Whether defaults of Pods are written.
    defaults: bool,
}

/// A template that the API server is asked about.
#[derive(Clone, Debug)]
struct Question {
    kind: JobKind,
    /// What [`Templates`] takes for a workload: the Pod template at `spec.template`.
    pods: Value,
    /// The job as it would be made.
    job: Value,
}

/// What the API server says.
#[derive(Clone, Debug, Default)]
pub struct CronJobAnswers {
    /// Of the Pod template.
    pub pods: template::Answers,
    /// Of the Job; None if it was not asked.
    pub job: Option<Result<Answer, Refused>>,
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(&context.gates, request)?;
        let asked = admission.ask(&context.client);
        let late = || CronJobAnswers { pods: template::Answers::late(), job: None };
        let answers = tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| late());
        admit(&admission, &answers)
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(gates: &FeatureGates, request: Request) -> Result<CronJobAdmission, Denied> {
    let mut judged = Judged::of(request, rules::judge, |old| rules::judge(old, false))?;
    if let Some(old) = &judged.old {
        judged.found.causes.extend(rules::changed_kind(old, &judged.object));
    }
    let question = Question::of(&judged);
    Ok(CronJobAdmission { judged, question, defaults: !gates.enabled(gate::TEMPLATE_NO_DEFAULTS) })
}

impl Question {
    fn of(judged: &Judged) -> Option<Self> {
        let kind = rules::kind(&judged.object).filter(|kind| *kind != JobKind::ImageListPullJob)?;
        let at = format!("/spec/template/{}", kind.field());
        let template = judged.object.pointer(&at)?;
        if judged.old.as_ref().and_then(|old| old.pointer(&at)) == Some(template) {
            return None;
        }
        let mut template = template.clone();
        complete(kind, &mut template);
        let spec = template.get("spec")?;
        let part = |field: &str| template["metadata"][field].as_object().cloned().unwrap_or_default();
        let job = json!({"apiVersion": kind.api_version(), "kind": kind.kind(),
            "metadata": {"generateName": "dry-run-", "labels": part("labels"), "annotations": part("annotations")},
            "spec": spec});
        Some(Self { kind, pods: json!({"spec": {"template": spec.get("template")?}}), job })
    }

    fn templates(&self, admission: &CronJobAdmission) -> Templates<'_> {
        // What is not new was not asked about. The old one only says that this is an update, which fails open.
        const BEFORE: &Value = &Value::Null;
        let old = admission.judged.old.as_ref().map(|_| BEFORE);
        Templates { object: &self.pods, old, defaults: admission.defaults, in_place_only: None }
    }

    /// A field of the AdvancedCronJob, from that of the job.
    fn field(&self, of_job: &str) -> String {
        format!("spec.template.{}.{of_job}", self.kind.field())
    }

    /// The same in a text that begins with a field or names one.
    fn text(&self, text: &str) -> String {
        text.replacen("spec.template", &self.field("spec.template"), 1)
    }
}

impl CronJobAdmission {
    async fn ask(&self, client: &kube::Client) -> CronJobAnswers {
        let Some(question) = &self.question else { return CronJobAnswers::default() };
        let namespace = &self.judged.namespace;
        let templates = question.templates(self);
        let job = async {
            let JobKind::Job = question.kind else { return None };
            let path = path::in_namespace("batch", "v1", namespace, "jobs");
            Some(dry_run_at(client, &path, &question.job).await)
        };
        let (pods, job) = join(template::ask(client, namespace, &templates), job).await;
        CronJobAnswers { pods, job }
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &CronJobAdmission, answers: &CronJobAnswers) -> Decision {
    admission.judged.decide(admission.judged.object.clone(), |spec, found| {
        set_defaults(spec);
        let Some(question) = &admission.question else { return Ok(()) };
        let mut of_pods = Findings::default();
        let mut pods = question.pods["spec"].as_object().cloned().unwrap_or_default();
        let templates = question.templates(admission);
        templates
            .judge(&answers.pods, &mut pods, &mut of_pods)
            .map_err(|denied| Denied { message: question.text(&denied.message), ..denied })?;
        for Cause { field, message } in of_pods.causes {
            found.deny(question.text(&field), message);
        }
        let mut warnings: Vec<String> = of_pods.warnings.iter().map(|text| question.text(text)).collect();
        if let Some(answer) = &answers.job {
            judge_job(question, answer, found, &mut warnings)?;
        }
        for warning in warnings {
            if !found.warnings.contains(&warning) {
                found.warnings.push(warning);
            }
        }
        let at = format!("/template/{}/spec", question.kind.field());
        let (Some(of_job), Some(template)) = (pointer_mut(spec, &at), pods.remove("template")) else { return Ok(()) };
        of_job.insert("template".into(), template);
        Ok(())
    })
}

/// What the API server says of the Job. It may refuse it for what changes, such as a quota: that is no fault of the template.
fn judge_job(
    question: &Question,
    answer: &Result<Answer, Refused>,
    found: &mut Findings,
    warnings: &mut Vec<String>,
) -> Result<(), Denied> {
    match answer {
        Ok(answer) => {
            // Those of its Pods are known already.
            let unknown = answer.unknown.iter().filter(|field| !field.starts_with("spec.template."));
            warnings.extend(unknown.map(|field| {
                let field = question.field(field);
                format!("unknown field \"{field}\": it is stored, and this API server will not give it to Jobs")
            }));
            warnings.extend(answer.warnings.iter().cloned());
        }
        Err(Refused::Invalid(fields)) => {
            for (field, message) in fields {
                let cause = Cause { field: question.field(field), message: message.clone() };
                if !found.causes.contains(&cause) {
                    found.causes.push(cause);
                }
            }
        }
        Err(Refused::Undecodable(message)) => {
            let (_, why) = message.split_once("cannot be handled as a Job: ").unwrap_or(("", message));
            return Err(Denied::bad_request(format!("spec.template.{}: {why}", question.kind.field())));
        }
        Err(error @ Refused::Unavailable(_)) => {
            warnings.push(format!("spec.template.{} is not checked as a Job: {error}", question.kind.field()));
        }
    }
    Ok(())
}

fn pointer_mut<'o>(spec: &'o mut Object, pointer: &str) -> Option<&'o mut Object> {
    let mut at = spec;
    for key in pointer.split('/').skip(1) {
        at = at.get_mut(key)?.as_object_mut()?;
    }
    Some(at)
}

/// Everything but the Pod template.
fn set_defaults(spec: &mut Object) {
    let kind = rules::kind_of_spec(spec);
    let policy = if kind == Some(JobKind::ImageListPullJob) { "Replace" } else { "Allow" };
    drop_empty(spec, "concurrencyPolicy");
    set_default(spec, "concurrencyPolicy", json!(policy));
    set_default(spec, "paused", json!(false));
    set_default(spec, "successfulJobsHistoryLimit", json!(rules::SUCCESSFUL_HISTORY));
    set_default(spec, "failedJobsHistoryLimit", json!(rules::FAILED_HISTORY));
    if let Some(kind) = kind
        && let Some(template) = spec.get_mut("template").and_then(|template| template.get_mut(kind.field()))
    {
        complete(kind, template);
    }
}

/// The defaults of a template, as OpenKruise writes them. Those of a BroadcastJob itself are written when one is made.
fn complete(kind: JobKind, template: &mut Value) {
    let Some(template) = template.as_object_mut() else { return };
    if kind != JobKind::Job {
        set_default(template, "metadata", json!({}));
    }
    let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) else { return };
    match kind {
        JobKind::Job => {}
        JobKind::BroadcastJob => {
            set_default(spec, "completionPolicy", json!({}));
            set_default(spec, "failurePolicy", json!({}));
            broadcast_job_spec::set_restart_policy(spec);
        }
        JobKind::ImageListPullJob => image_job_spec::set_defaults(spec),
    }
}

#[cfg(test)]
mod tests;
