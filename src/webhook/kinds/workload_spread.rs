//! Admission of WorkloadSpreads: fields, others for the same Pods, and what each subset makes of the target's Pod template,
//! which the API server judges in a dry run. Nothing is changed.
//!
//! CREATE fails closed, UPDATE fails open and lets every change of an object through that is being deleted. That the target
//! stays is CEL in the schema. An update is not refused for what it does not change.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    api::{
        apps::{self, workload_spread::WorkloadSpread},
        feature_gates::gate,
        labels,
    },
    domain::kinds::workload_spread::{
        inject::{inject, label_lost},
        jobs::ignores_disruptions,
        matching::overlap,
        problems::{MOST_SUBSETS, SpreadProblem, problems},
        replicas::lacks_room_for_surge,
        spec::{SpreadSpec, SubsetSpec, TargetKind},
    },
    k8s::{
        invalid::{Invalid, InvalidField},
        pod_template::Trial,
        rbac::Rule,
    },
    runtime::{
        apply::said,
        kruise_configuration as configuration,
        object::{self, Found},
        pod_template::{self, Answer, Refused},
        workload,
    },
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        template::{self, READ_BUDGET},
        validate::is_judged,
    },
};

/// What [`handle`] reads, and what [`spreads`](crate::webhook::spreads) reads and writes.
pub const RBAC: &[Rule] = &[
    template::RBAC,
    Rule::new(&[apps::GROUP], &["workloadspreads"], &["get", "list", "watch"]),
    Rule::new(&[apps::GROUP], &["workloadspreads/status"], &["patch"]),
    Rule::new(&[""], &["events"], &["create"]),
    object::READ_JOBS,
    workload::READ_BUILT_IN,
    workload::READ_KRUISE,
];

/// How many templates are tried at once.
const TRIALS: usize = 8;
/// Name and image of the container of a template that stands for one that is not known.
const PLACEHOLDER: &str = "placeholder";

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        if !context.gates.enabled(gate::WORKLOAD_SPREAD) {
            return Err(Denied::forbidden(format!("the feature gate {} is off", gate::WORKLOAD_SPREAD)));
        }
        let spread = decoded(&request.object)?;
        let old = (request.operation == "UPDATE").then(|| decoded(&request.old_object).ok()).flatten();
        let target = &spread.spec.target_ref;
        let whitelist = match TargetKind::of(target.group(), &target.kind) {
            TargetKind::Custom => whitelist(&context).await?,
            _ => String::new(),
        };
        let mut causes = judge(&spread, old.as_ref(), &whitelist);
        causes.extend(taken(&context, &request, &spread, old.as_ref()).await?);
        if !causes.is_empty() {
            return Err(Denied::invalid(causes));
        }
        let tried = tokio::time::timeout(READ_BUDGET, try_subsets(&context, &request, &spread, old.as_ref())).await;
        let late = || Err(Refused::Unavailable(format!("no answer within {} s", READ_BUDGET.as_secs())));
        let (causes, warnings) = match tried.unwrap_or_else(|_| late()) {
            Ok(judgement) => judgement,
            Err(why) if old.is_some() => (Vec::new(), vec![format!("spec.subsets is not checked: {why}")]),
            Err(why) => return Err(Denied::internal(format!("spec.subsets: {why}"))),
        };
        if causes.is_empty() {
            if !request.dry_run && old.is_none() {
                // Pods that are created right after it are to go to its subsets.
                context.for_new_pods.announce([request.namespace.to_string()].into()).await;
            }
            Ok(Admitted { warnings, ..Admitted::unchanged() })
        } else {
            Err(Denied::invalid(causes))
        }
    })
}

fn decoded(object: &Value) -> Result<WorkloadSpread, Denied> {
    serde_json::from_value(object.clone())
        .map_err(|error| Denied::bad_request(format!("not a WorkloadSpread: {error}")))
}

async fn whitelist(context: &Context) -> Result<String, Denied> {
    let text = configuration::text(&context.client, &context.namespace, configuration::SPREAD_TARGETS).await;
    text.map(Option::unwrap_or_default).map_err(|error| {
        let why = said(&error);
        Denied::internal(format!("the ConfigMap {} could not be read: {why}", configuration::NAME))
    })
}

/// What is wrong with an object by itself. What is wrong with the stored one too may stay.
fn judge(spread: &WorkloadSpread, old: Option<&WorkloadSpread>, whitelist: &str) -> Vec<Cause> {
    let is_permitted = |group: &str, kind: &str| {
        TargetKind::of(group, kind) != TargetKind::Custom || configuration::names_kind(whitelist, group, kind)
    };
    let before: Vec<SpreadProblem> = old.map(|old| problems(old, is_permitted)).unwrap_or_default();
    let found = problems(spread, is_permitted).into_iter().filter(|problem| !before.contains(problem));
    found.map(|(field, message)| Cause { field, message }).collect()
}

/// Another one may be for the same Pods.
async fn taken(
    context: &Context,
    request: &Request,
    spread: &WorkloadSpread,
    old: Option<&WorkloadSpread>,
) -> Result<Option<Cause>, Denied> {
    if old.is_some_and(|old| old.spec.target_filter == spread.spec.target_filter) {
        return Ok(None);
    }
    let api: Api<WorkloadSpread> = Api::namespaced(context.client.clone(), &request.namespace);
    let others = api.list(&ListParams::default()).await.map_err(|error| {
        let why = said(&error);
        Denied::internal(format!("the other WorkloadSpreads of the namespace could not be read: {why}"))
    })?;
    Ok(taken_by(spread, &others.items))
}

fn taken_by(spread: &WorkloadSpread, others: &[WorkloadSpread]) -> Option<Cause> {
    let is_other = |other: &&WorkloadSpread| {
        other.metadata.deletion_timestamp.is_none()
            && other.metadata.name != spread.metadata.name
            && overlap(other, spread)
    };
    let other = others.iter().find(is_other)?.metadata.name.as_deref().unwrap_or_default();
    let target = &spread.spec.target_ref;
    Some(Cause {
        field: "spec.targetRef".into(),
        message: format!(
            "{} {:?} has WorkloadSpread {other:?} already; want one for each, or targetFilter.selector of both by which no Pod fits both",
            target.kind, target.name
        ),
    })
}

/// A template as a subset makes it.
#[derive(Clone, Debug, PartialEq)]
struct SubsetTrial {
    /// The place of the subset.
    index: usize,
    template: Value,
}

/// Causes and warnings.
type Judgement = (Vec<Cause>, Vec<String>);

/// Has the API server judge what each new subset makes of the target's Pods.
async fn try_subsets(
    context: &Context,
    request: &Request,
    spread: &WorkloadSpread,
    old: Option<&WorkloadSpread>,
) -> Result<Judgement, Refused> {
    let target = &spread.spec.target_ref;
    let names = (target.api_version.as_str(), target.kind.as_str(), target.name.as_str());
    let read = object::read(&context.client, &request.namespace, names).await;
    let read = read.map_err(|error| Refused::Unavailable(format!("the target: {}", said(&error))))?;
    if let Some(why) = read.refusal("Kruise's webhook", labels::AGGREGATE_TO_WEBHOOK) {
        let warning =
            format!("spec.subsets: the patches are not checked against {} {:?}: {why}", target.kind, target.name);
        let (causes, mut warnings) = ask(context, request, &trials(spread, old, None)?.0, &[]).await?;
        warnings.push(warning);
        return Ok((causes, warnings));
    }
    let found = match &read {
        Found::Object(object) => Some(object),
        Found::Missing | Found::Impossible | Found::Forbidden(..) => None,
    };
    let claims = found.and_then(|object| object.pointer("/spec/volumeClaimTemplates")?.as_array().cloned());
    let (trials, mut causes) = trials(spread, old, found)?;
    let (more, mut warnings) = ask(context, request, &trials, &claims.unwrap_or_default()).await?;
    causes.extend(more);
    warnings.extend(found.into_iter().flat_map(|target| remarks(spread, target)));
    Ok((causes, warnings))
}

/// What is allowed and surely not meant, with this target.
fn remarks(spread: &WorkloadSpread, target: &Value) -> Vec<String> {
    let Ok(spec) = SpreadSpec::of(spread) else { return Vec::new() };
    let SpreadSpec { kind, target: name, .. } = &spec;
    let mut remarks = Vec::new();
    if lacks_room_for_surge(&spec, target) {
        remarks.push(format!(
            "spec.subsets: every subset may be full when {kind} {name:?} makes Pods beyond its replicas (maxSurge): they are then created in no subset; leave out maxReplicas of the last subset"
        ));
    }
    let evicts_job_pods = spec.target_kind == TargetKind::Job && spec.reschedule_after.is_some();
    if evicts_job_pods && !ignores_disruptions(target) {
        remarks.push(format!(
            "spec.scheduleStrategy: no Pod of {kind} {name:?} is evicted: it would count as failed; want a rule of the Job's podFailurePolicy with action Ignore for the Pod condition DisruptionTarget"
        ));
    }
    remarks
}

/// What is to be tried: a Pod of each subset that is new or changed. Without a template of the target only the nodes and
/// tolerations are.
fn trials(
    spread: &WorkloadSpread,
    old: Option<&WorkloadSpread>,
    target: Option<&Value>,
) -> Result<(Vec<SubsetTrial>, Vec<Cause>), Refused> {
    let spec = SpreadSpec::of(spread).map_err(|Invalid(why)| Refused::Undecodable(why))?;
    let old = old.and_then(|old| SpreadSpec::of(old).ok());
    let template = target.and_then(|target| target.pointer("/spec/template")).filter(|template| template.is_object());
    let (mut trials, mut causes) = (Vec::new(), Vec::new());
    for (index, subset) in spec.subsets.iter().enumerate().take(MOST_SUBSETS) {
        let before = old.as_ref().and_then(|old| old.subsets.iter().find(|other| other.name == subset.name));
        let is_bare = subset.required.is_none() && subset.preferred.is_empty() && subset.tolerations.is_empty();
        if (is_bare && subset.patch.is_none()) || before == Some(subset) {
            continue;
        }
        let placeholder = json!({ "spec": { "containers": [{ "name": PLACEHOLDER, "image": PLACEHOLDER }] } });
        let made = match template {
            Some(template) => inject(template, subset, None),
            None => inject(&placeholder, &SubsetSpec { patch: None, ..subset.clone() }, None),
        };
        let lost = match (&made, template, target) {
            (Ok(made), Some(template), Some(target)) => {
                let selector = &target["spec"]["selector"];
                label_lost(template, made, selector).map(|key| (key, &target["kind"], &target["metadata"]["name"]))
            }
            _ => None,
        };
        if let Some((key, kind, name)) = lost {
            let kind = kind.as_str().unwrap_or("workload");
            let message = format!("it changes label {key:?}, by which {kind} {name} selects its Pods; leave it out");
            causes.push(Cause { field: format!("spec.subsets[{index}].patch.metadata.labels"), message });
            continue;
        }
        match made {
            Ok(template) => trials.push(SubsetTrial { index, template }),
            Err(InvalidField { field, why }) => {
                causes.push(Cause { field: format!("spec.subsets[{index}].{field}"), message: why });
            }
        }
    }
    Ok((trials, causes))
}

async fn ask(
    context: &Context,
    request: &Request,
    trials: &[SubsetTrial],
    claims: &[Value],
) -> Result<Judgement, Refused> {
    let bodies: Vec<Value> = trials.iter().map(|trial| Trial::new(&trial.template, claims, false).body()).collect();
    let asked = bodies
        .into_iter()
        .map(|body| async move { pod_template::dry_run(&context.client, &request.namespace, &body).await });
    let answers: Vec<Result<Answer, Refused>> = stream::iter(asked).buffered(TRIALS).collect().await;
    let (mut causes, mut warnings) = (Vec::new(), Vec::new());
    for (trial, answer) in trials.iter().zip(answers) {
        let field = format!("spec.subsets[{}]", trial.index);
        match answer {
            Ok(answer) => {
                let unknown = answer.unknown.iter().map(|named| {
                    format!("{field}: unknown field \"{named}\": this API server will not give it to Pods")
                });
                warnings.extend(unknown);
                let tolerated = answer.tolerated.iter();
                warnings.extend(
                    tolerated
                        .map(|one| format!("{field}: with it {}", template::refused_later(&one.field, &one.message))),
                );
                warnings.extend(answer.warnings.iter().map(|warning| format!("{field}: {warning}")));
            }
            Err(Refused::Invalid(fields)) => causes.extend(fields.into_iter().map(|(named, message)| Cause {
                field: field.clone(),
                message: format!("with it {named}: {message}"),
            })),
            Err(Refused::Undecodable(message)) => {
                let (_, why) = message.split_once("cannot be handled as a PodTemplate: ").unwrap_or(("", &message));
                causes.push(Cause { field, message: why.to_owned() });
            }
            Err(error @ Refused::Unavailable(_)) => return Err(error),
        }
    }
    Ok((causes, warnings))
}

#[cfg(test)]
mod tests;
