//! Admission of UnitedDeployments: defaults and rules in one call.
//!
//! [`check`] judges the object alone (`rules`), [`admit`] together with what the API server says of the Pod template of each
//! subset, by dry runs. [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: what has to hold in any case, that the selector stays, is CEL in the schema. An
//! update is never refused for what it does not change.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream};
use serde_json::{Map, Value, json};

use crate::{
    api::{
        apps::united_deployment::UnitedDeployment,
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::kinds::united_deployment::{
        make,
        spec::{ChildKind, UnitedSpec},
        typed::{says_the_same, typed},
    },
    k8s::{invalid::InvalidField, pod_template::Trial, rbac::Rule},
    runtime::pod_template::{self, Answer, Refused},
    webhook::{
        Context,
        server::{
            handler::{MatchCondition, spec_or_annotations_changed},
            review::{Admitted, Decision, Denied, Request},
        },
        template::{self, READ_BUDGET},
        validate::{Findings, Object, drop_empty, is_judged, set_default},
        workload::Judged,
    },
};

mod rules;

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC];

/// How many templates are tried at once.
const TRIALS: usize = 8;
/// How many subsets with patches are tried: a call of the API server has an end.
const MOST_TRIALS: usize = 64;
/// How many bytes of templates are tried: all of them are held at the same time, and in memory each is many times as large.
const MOST_BYTES: usize = 4 << 20;

/// A UnitedDeployment of which every field has the right type.
#[derive(Clone, Debug)]
pub struct UnitedAdmission {
    judged: Judged,
    /// Whether templates of StatefulSets get defaults.
    defaults: bool,
    /// Templates to try.
    trials: Vec<TemplateTrial>,
}

/// A Pod template to try.
#[derive(Clone, Debug)]
struct TemplateTrial {
    /// The subset whose patch is in it, by its place. None: the template of all.
    subset: Option<usize>,
    template: Value,
    claims: Vec<Value>,
}

/// What the API server says of each trial, in their order.
pub type Answers = Vec<Result<Answer, Refused>>;

/// When an update is judged: its spec or an annotation of ours changes, and the object is not being deleted.
pub fn on_update(gates: &FeatureGates) -> Vec<MatchCondition> {
    spec_or_annotations_changed(gates, &[labels::UNITED_MAX_UNAVAILABLE])
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(&context.gates, request)?;
        let late = || {
            let late = format!("no answer within {} s", READ_BUDGET.as_secs());
            admission.trials.iter().map(|_| Err(Refused::Unavailable(late.clone()))).collect()
        };
        let asked = tokio::time::timeout(READ_BUDGET, ask(&context, &admission)).await;
        admit(&admission, &asked.unwrap_or_else(|_| late()))
    })
}

async fn ask(context: &Context, admission: &UnitedAdmission) -> Answers {
    let namespace = &admission.judged.namespace;
    let bodies: Vec<Value> = admission.trials.iter().map(|trial| trial.trial().body()).collect();
    let asked =
        bodies.into_iter().map(|body| async move { pod_template::dry_run(&context.client, namespace, &body).await });
    stream::iter(asked).buffered(TRIALS).collect().await
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(gates: &FeatureGates, request: Request) -> Result<UnitedAdmission, Denied> {
    let mut judged = Judged::of(request, rules::judge, |old| rules::judge(old, false))?;
    judged.keep_selector("UnitedDeployment");
    if let Some(old) = &judged.old {
        rules::unchanged(old, &judged.object, &mut judged.found);
    }
    let trials = trials(&judged.object, judged.old.as_ref(), &mut judged.found);
    Ok(UnitedAdmission { judged, defaults: !gates.enabled(gate::TEMPLATE_NO_DEFAULTS), trials })
}

impl TemplateTrial {
    fn trial(&self) -> Trial<'_> {
        Trial::new(&self.template, &self.claims, self.subset.is_none())
    }
}

/// The spec as the controller reads it, if it can.
fn spec_of(object: &Value) -> Option<UnitedSpec> {
    let mut object: UnitedDeployment = serde_json::from_value(object.clone()).ok()?;
    // What says nothing makes no difference.
    object.spec.template = typed(&object.spec.template);
    UnitedSpec::of(&object).ok()
}

/// What is to be tried: the template of all, and that of each subset whose patch changes it. Of an update only what is new.
fn trials(object: &Value, old: Option<&Value>, found: &mut Findings) -> Vec<TemplateTrial> {
    let Some(spec) = spec_of(object) else { return Vec::new() };
    let old = old.and_then(spec_of);
    let Some(template) = spec.template.spec.get("template").filter(|template| template.is_object()) else {
        return Vec::new();
    };
    let claims = spec.template.spec.get("volumeClaimTemplates").and_then(Value::as_array).cloned().unwrap_or_default();
    let has_same_template = old.as_ref().is_some_and(|old| old.template == spec.template);
    let mut trials = Vec::new();
    let mut bytes = 0;
    if !has_same_template {
        trials.push(TemplateTrial { subset: None, template: template.clone(), claims: claims.clone() });
    }
    for (index, subset) in spec.subsets.iter().enumerate() {
        let before = old.as_ref().and_then(|old| old.subsets.iter().find(|other| other.name == subset.name));
        let is_bare = subset.patch.is_none() && subset.expressions.is_empty() && subset.fields.is_empty();
        if (is_bare && subset.tolerations.is_empty()) || (has_same_template && before == Some(subset)) {
            continue;
        }
        if trials.len() == MOST_TRIALS || bytes > MOST_BYTES {
            let why =
                if bytes > MOST_BYTES { "the templates before them are more than 4 MiB" } else { "they are too many" };
            found.warnings.push(format!("spec.topology.subsets[{index}] and those after it are not checked: {why}"));
            break;
        }
        match make::pod_template(&spec, subset, "revision", template.clone()) {
            Ok(template) => {
                bytes += template.to_string().len();
                trials.push(TemplateTrial { subset: Some(index), template, claims: claims.clone() });
            }
            Err(InvalidField { field, why }) => found.deny(field, why),
        }
    }
    trials
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &UnitedAdmission, answers: &Answers) -> Decision {
    let UnitedAdmission { judged, defaults, trials } = admission;
    let mut wanted = judged.object.clone();
    // The API server keeps the stored status anyway.
    if judged.old.is_none()
        && let Some(object) = wanted.as_object_mut()
    {
        object.remove("status");
    }
    judged.decide(wanted, |spec, found| {
        set_defaults(spec);
        for (trial, answer) in trials.iter().zip(answers) {
            judge_trial(trial, answer, (judged.old.is_some(), *defaults), spec, found)?;
        }
        if let Some(template) = spec.get_mut("template") {
            *template = typed(template);
            let stored = judged.old.as_ref().and_then(|old| old.pointer("/spec/template"));
            if let Some(stored) = stored.filter(|stored| says_the_same(stored, template)) {
                // In another form it would be another revision, and every Pod would be updated.
                template.clone_from(stored);
            }
        }
        Ok(())
    })
}

fn judge_trial(
    of: &TemplateTrial,
    answer: &Result<Answer, Refused>,
    (is_update, defaults): (bool, bool),
    spec: &mut Object,
    found: &mut Findings,
) -> Result<(), Denied> {
    let kind = kind_of(spec);
    let member = kind.map_or("", ChildKind::member);
    let (trial, place) = (of.trial(), of.subset.map(|index| format!("spec.topology.subsets[{index}]")));
    // The API server speaks of a PodTemplate.
    let field = |named: &str| {
        let own = trial.field(named);
        own.strip_prefix("spec.").map_or(own.clone(), |rest| format!("spec.template.{member}.spec.{rest}"))
    };
    match answer {
        Ok(answer) => {
            let tolerated = answer.tolerated.iter().map(|one| {
                let warning = template::refused_later(&field(&one.field), &one.message);
                place.as_ref().map_or(warning.clone(), |place| format!("{place}: with it {warning}"))
            });
            found.warnings.extend(tolerated);
            if place.is_none() {
                let adds = defaults && kind == Some(ChildKind::StatefulSet);
                let stored = trial.stored(&answer.object, &answer.unknown, adds);
                let child = spec.get_mut("template").and_then(|template| template.get_mut(member)?.get_mut("spec"));
                if let Some(child) = child.and_then(Value::as_object_mut) {
                    child.insert("template".into(), stored.template);
                    if !stored.claims.is_empty() {
                        child.insert("volumeClaimTemplates".into(), stored.claims.into());
                    }
                }
                let unknown = answer.unknown.iter().map(|named| {
                    format!(
                        "unknown field \"{}\": it is stored, and this API server will not give it to Pods",
                        field(named)
                    )
                });
                found.warnings.extend(unknown);
                found.warnings.extend(answer.warnings.iter().cloned());
            }
        }
        Err(Refused::Invalid(causes)) => {
            for (named, message) in causes {
                match &place {
                    None => found.deny(field(named), message.clone()),
                    Some(place) => found.deny(place, format!("with it {}: {message}", field(named))),
                }
            }
        }
        Err(Refused::Undecodable(message)) => {
            let (_, why) = message.split_once("cannot be handled as a PodTemplate: ").unwrap_or(("", message));
            match &place {
                None => return Err(Denied::bad_request(format!("spec.template.{member}: {why}"))),
                Some(place) => found.deny(format!("{place}.patch"), why),
            }
        }
        Err(error @ Refused::Unavailable(_)) => {
            let field = place.unwrap_or_else(|| format!("spec.template.{member}"));
            if !is_update {
                return Err(Denied::internal(format!("{field}: {error}")));
            }
            found.warnings.push(format!("{field} is not checked: {error}"));
        }
    }
    Ok(())
}

fn kind_of(spec: &Object) -> Option<ChildKind> {
    let template = spec.get("template")?;
    ChildKind::ALL.into_iter().find(|kind| template.get(kind.member()).is_some_and(Value::is_object))
}

/// Everything but the template, as OpenKruise stores it.
fn set_defaults(spec: &mut Object) {
    set_default(spec, "revisionHistoryLimit", json!(10));
    set_default(spec, "topology", json!({}));
    let is_number = |subset: &Value| subset.get("replicas").is_some_and(Value::is_number);
    let mut every_has_number = false;
    if let Some(topology) = spec.get_mut("topology").and_then(Value::as_object_mut) {
        set_default(topology, "scheduleStrategy", json!({}));
        if let Some(Value::Array(subsets)) = topology.get_mut("subsets") {
            every_has_number = !subsets.is_empty() && subsets.iter().all(is_number);
            let is_set = |subset: &Value, key: &str| subset.get(key).is_some_and(|value| !value.is_null());
            let has_bounds = subsets.iter().any(|s| is_set(s, "minReplicas") || is_set(s, "maxReplicas"));
            let has_numbers = subsets.iter().any(|s| is_set(s, "replicas"));
            for subset in subsets.iter_mut().filter_map(Value::as_object_mut) {
                set_default(subset, "nodeSelectorTerm", Value::Object(Map::new()));
                if has_bounds && !has_numbers {
                    set_default(subset, "minReplicas", json!(0));
                }
            }
        }
    }
    // A default total would contradict the numbers of the subsets.
    if !every_has_number {
        set_default(spec, "replicas", json!(1));
    }
    set_default(spec, "updateStrategy", json!({}));
    if let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) {
        drop_empty(strategy, "type");
        set_default(strategy, "type", json!("Manual"));
        set_default(strategy, "manualUpdate", json!({}));
    }
}

#[cfg(test)]
mod tests;
