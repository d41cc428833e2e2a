//! Admission of Advanced StatefulSets: defaults and rules in one call, for v1beta1 and v1alpha1 alike.
//!
//! [`check`] judges the object alone (`rules`, `claims`), [`admit`] together with what the API server says: of the templates
//! and of every override, by dry runs, and of the StorageClasses of claims that are to grow. [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: what has to hold in any case, that selector, serviceName and podManagementPolicy
//! stay, is CEL in the schema. An update is never refused for what it does not change.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::{
        pod::inplace,
        workload::{
            overrides::{Change, Overrides},
            update_order::UpdateOrder,
        },
    },
    k8s::{
        pod_template::{Tolerated, Trial},
        rbac::Rule,
    },
    runtime::{
        apply::said,
        pod_template::{self, Refused},
    },
    webhook::{
        Context,
        server::{
            handler::{MatchCondition, spec_or_annotations_changed},
            review::{Admitted, Decision, Denied, Request},
        },
        template::{self, InPlaceOnly, READ_BUDGET, Templates},
        validate::{Findings, Object, drop_empty, is_judged, set_default},
        workload::Judged,
    },
};

mod claims;
mod rules;

pub use claims::{Class, NotListed};

/// What [`handle`] reads. StorageClasses only while the gate StatefulSetAutoResizePVCGate is on.
pub const RBAC: &[Rule] = &[template::RBAC, Rule::new(&["storage.k8s.io"], &["storageclasses"], &["list"])];

/// How many overrides are tried at once.
const TRIALS: usize = 8;
/// Annotations that are judged with the spec.
const ANNOTATIONS: [&str; 2] = [labels::ORDINAL_OVERRIDES, labels::UPDATE_ORDER];

/// Members of the spec that v1alpha1 of OpenKruise does not have.
const UNKNOWN_TO_V1ALPHA1: [&str; 6] = [
    "lifecycle",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "reserveOrdinals",
    "scaleStrategy",
    "volumeClaimUpdateStrategy",
];
/// The manifest as `kubectl apply` has sent it last, in JSON.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A StatefulSet of which every field has the right type.
#[derive(Clone, Debug)]
pub struct StatefulSetAdmission {
    judged: Judged,
    /// With what a v1alpha1 client has left out.
    wanted: Value,
    gates: Gates,
    /// Claim templates that ask for more than before, where claims grow with them.
    growing: Vec<claims::Growing>,
    /// Overrides that are new, or that are for a new template.
    overrides: Overrides,
}

/// The gates that matter here.
#[derive(Clone, Copy, Debug)]
struct Gates {
    template_defaults: bool,
    deletes_claims: bool,
    resizes_claims: bool,
    in_place: inplace::Allowed,
}

/// What the API server says.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Of the template and the claim templates.
    pub templates: template::Answers,
    /// The StorageClasses of the cluster; None if nobody has asked.
    pub classes: Option<Result<Vec<Class>, NotListed>>,
    /// Of each override, by its place in the annotation. One that is missing was not tried.
    pub overrides: Vec<(usize, Result<(), Refused>)>,
}

/// When an update is judged: its spec or an annotation of ours changes, and the object is not being deleted.
pub fn on_update(gates: &FeatureGates) -> Vec<MatchCondition> {
    spec_or_annotations_changed(gates, &ANNOTATIONS)
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(&context.gates, request)?;
        let answers = tokio::time::timeout(READ_BUDGET, read(&context, &admission))
            .await
            .unwrap_or_else(|_| Answers { templates: template::Answers::late(), ..Answers::default() });
        admit(&admission, &answers)
    })
}

async fn read(context: &Context, admission: &StatefulSetAdmission) -> Answers {
    let (client, namespace) = (&context.client, &admission.judged.namespace);
    let templates = template::ask(client, namespace, &admission.templates()).await;
    let mut answers = Answers { templates, ..Answers::default() };
    if !admission.growing.is_empty() {
        let list = Api::<StorageClass>::all(client.clone()).list(&ListParams::default()).await;
        let classes = list.map(|list| list.items.iter().map(Class::of).collect());
        answers.classes = Some(classes.map_err(|error| NotListed(said(&error))));
    }
    let bare = &admission.trial_of(&Change::default());
    let trials = admission.trials().into_iter().map(|(i, body)| async move {
        let answer = pod_template::dry_run(client, namespace, &body).await;
        (i, answer.and_then(|answer| brings_nothing(answer.tolerated, bare, &body)))
    });
    answers.overrides = stream::iter(trials).buffer_unordered(TRIALS).collect().await;
    answers
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(gates: &FeatureGates, mut request: Request) -> Result<StatefulSetAdmission, Denied> {
    let sent = request.object.clone();
    let kept = keep_what_v1alpha1_lacks(&mut request);
    let mut judged = Judged::of(request, |object, is_new| rules::judge(gates, object, is_new), rules::judge_stored)?;
    let gates = Gates {
        template_defaults: !gates.enabled(gate::TEMPLATE_NO_DEFAULTS),
        deletes_claims: gates.enabled(gate::DELETE_CLAIMS),
        resizes_claims: gates.enabled(gate::RESIZE_CLAIMS),
        in_place: inplace::Allowed { resources: gates.enabled(gate::RESIZE_IN_PLACE), ..inplace::Allowed::default() },
    };
    let Judged { object, old, found, .. } = &mut judged;
    found.warnings.extend(kept_by_v1alpha1(&kept, object, gates));
    // By the strategy of the new object: to switch it and to resize in one request is judged too.
    let growing = match old {
        Some(old) if gates.resizes_claims && claims::grow_with_update(object) => claims::changed(old, object, found),
        _ => Vec::new(),
    };
    let overrides = overrides(object, old.as_ref(), found);
    update_order(object, old.as_ref(), found);
    judged.keep_selector("StatefulSet");
    let wanted = std::mem::replace(&mut judged.object, sent);
    Ok(StatefulSetAdmission { judged, wanted, gates, growing, overrides })
}

/// Puts back the fields that a v1alpha1 client in Go leaves out of its updates because its types lack them. A field that
/// `kubectl apply` removes because the manifest no longer has it stays removed. Returns the fields that were put back.
fn keep_what_v1alpha1_lacks(request: &mut Request) -> Vec<&'static str> {
    let version = request.object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if request.operation != "UPDATE" || !version.ends_with("/v1alpha1") {
        return Vec::new();
    }
    let is_in = |spec: &Object, key: &str| spec.get(key).is_some_and(|value| !value.is_null());
    let was = request.old_object.get("spec").and_then(Value::as_object);
    let is = request.object.get("spec").and_then(Value::as_object);
    let (Some(was), Some(is)) = (was, is) else { return Vec::new() };
    let mut kept = Vec::from(UNKNOWN_TO_V1ALPHA1);
    kept.retain(|key| is_in(was, key) && !is_in(is, key));
    if kept.is_empty() {
        return kept;
    }
    if let [Some(was), Some(is)] = [&request.old_object, &request.object].map(applied_spec) {
        kept.retain(|key| !is_in(&was, key) || is_in(&is, key));
    }
    if let Some(spec) = request.object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.extend(kept.iter().map(|key| ((*key).to_owned(), was[*key].clone())));
    }
    kept
}

/// The spec of the manifest that `kubectl apply` has noted in an object.
fn applied_spec(object: &Value) -> Option<Object> {
    let mut applied: Value = serde_json::from_str(annotation(object, LAST_APPLIED)).ok()?;
    match applied.get_mut("spec").map(Value::take) {
        Some(Value::Object(spec)) => Some(spec),
        _ => None,
    }
}

/// What is said of fields that were put back, but of those that have their default: these would be there again anyway.
fn kept_by_v1alpha1(kept: &[&str], object: &Value, gates: Gates) -> Vec<String> {
    let mut defaults = Object::new();
    set_defaults(&mut defaults, gates);
    let named = kept.iter().filter(|key| object.pointer(&format!("/spec/{key}")) != defaults.get(**key));
    named
        .map(|key| format!("spec.{key} is kept: a client of v1alpha1 may not know it; remove it through v1beta1"))
        .collect()
}

fn annotation<'o>(object: &'o Value, key: &str) -> &'o str {
    object.pointer("/metadata/annotations").and_then(|all| all.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn is_same(old: Option<&Value>, object: &Value, key: &str) -> bool {
    old.is_some_and(|old| annotation(old, key) == annotation(object, key))
}

/// The overrides to try.
fn overrides(object: &Value, old: Option<&Value>, found: &mut Findings) -> Overrides {
    let key = labels::ORDINAL_OVERRIDES;
    let field = |at: &str| format!("metadata.annotations[{key}]{}", at.trim_end_matches(": "));
    let template = object.pointer("/spec/template").unwrap_or(&Value::Null);
    let is_same = is_same(old, object, key);
    if is_same && old.and_then(|old| old.pointer("/spec/template")) == Some(template) {
        return Overrides::default();
    }
    let overrides = match Overrides::parse(annotation(object, key)) {
        Ok(overrides) => overrides,
        // It was let in before; the controller says so in a condition.
        Err(_) if is_same => return Overrides::default(),
        Err(problems) => {
            problems.iter().for_each(|problem| found.deny(field(&problem.at), problem.message.clone()));
            return Overrides::default();
        }
    };
    for problem in overrides.missing(template) {
        found.deny(field(&problem.at), problem.message);
    }
    overrides
}

fn update_order(object: &Value, old: Option<&Value>, found: &mut Findings) {
    let key = labels::UPDATE_ORDER;
    if !is_same(old, object, key)
        && let Err(message) = UpdateOrder::parse(annotation(object, key))
    {
        found.deny(format!("metadata.annotations[{key}]"), message);
    }
}

impl StatefulSetAdmission {
    fn templates(&self) -> Templates<'_> {
        let Judged { object, old, .. } = &self.judged;
        let policy = object.pointer("/spec/updateStrategy/rollingUpdate/podUpdatePolicy");
        let is_in_place_only = policy.is_some_and(|policy| policy == rules::IN_PLACE_ONLY);
        Templates {
            object,
            old: old.as_ref(),
            defaults: self.gates.template_defaults,
            in_place_only: (is_in_place_only && old.is_some())
                .then_some(InPlaceOnly { asked_by: "podUpdatePolicy InPlaceOnly", allowed: self.gates.in_place }),
        }
    }

    /// The question about the template with each override, by the place of the override.
    fn trials(&self) -> Vec<(usize, Value)> {
        if !self.judged.object.pointer("/spec/template").is_some_and(Value::is_object) {
            return Vec::new();
        }
        self.overrides.iter().enumerate().map(|(i, entry)| (i, self.trial_of(&entry.change))).collect()
    }

    fn trial_of(&self, change: &Change) -> Value {
        let object = &self.judged.object;
        let mut template = object.pointer("/spec/template").cloned().unwrap_or_default();
        change.apply(&mut template);
        let claims = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        Trial::new(&template, claims.map_or(&[][..], Vec::as_slice), false).body()
    }
}

/// What OpenKruise admits may be in the template. An override that brings it is refused: OpenKruise has none.
fn brings_nothing(tolerated: Vec<Tolerated>, bare: &Value, with: &Value) -> Result<(), Refused> {
    let brought = tolerated.into_iter().filter(|one| one.value_in(bare) != one.value_in(with));
    let brought: Vec<_> = brought.map(|Tolerated { field, message, .. }| (field, message)).collect();
    if brought.is_empty() { Ok(()) } else { Err(Refused::Invalid(brought)) }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &StatefulSetAdmission, answers: &Answers) -> Decision {
    admission.judged.decide(admission.wanted.clone(), |spec, found| {
        set_defaults(spec, admission.gates);
        let before = found.causes.len();
        admission.templates().judge(&answers.templates, spec, found)?;
        claims::judge_classes(&admission.growing, answers.classes.as_ref(), found);
        // A template that is wrong is wrong with every override.
        if before == found.causes.len() {
            judge_overrides(answers, found);
        }
        Ok(())
    })
}

fn judge_overrides(answers: &Answers, found: &mut Findings) {
    let mut results: Vec<_> = answers.overrides.iter().collect();
    results.sort_by_key(|(i, _)| *i);
    for (i, result) in results {
        let field = format!("metadata.annotations[{}][{i}]", labels::ORDINAL_OVERRIDES);
        match result {
            Ok(()) => {}
            Err(Refused::Invalid(causes)) => {
                for (of, message) in causes {
                    found.deny(&field, format!("with it spec.{of}: {message}"));
                }
            }
            Err(Refused::Undecodable(message)) => found.deny(field, message),
            Err(error @ Refused::Unavailable(_)) => found.warnings.push(format!("{field} is not checked: {error}")),
        }
    }
}

/// Everything but the templates.
fn set_defaults(spec: &mut Object, gates: Gates) {
    set_default(spec, "replicas", json!(1));
    set_default(spec, "revisionHistoryLimit", json!(10));
    drop_empty(spec, "podManagementPolicy");
    set_default(spec, "podManagementPolicy", json!(rules::ORDERED_READY));
    set_default(spec, "updateStrategy", json!({}));
    if let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) {
        drop_empty(strategy, "type");
        set_default(strategy, "type", json!(rules::ROLLING_UPDATE));
        if strategy.get("type").is_some_and(|kind| kind == rules::ROLLING_UPDATE) {
            set_default(strategy, "rollingUpdate", json!({}));
        }
        let is_rolling = strategy.get("type").is_some_and(|kind| kind == rules::ROLLING_UPDATE);
        let rolling = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut).filter(|_| is_rolling);
        if let Some(rolling) = rolling {
            set_default(rolling, "partition", json!(0));
            set_default(rolling, "maxUnavailable", json!(1));
            drop_empty(rolling, "podUpdatePolicy");
            set_default(rolling, "podUpdatePolicy", json!(rules::RECREATE));
            set_default(rolling, "minReadySeconds", json!(0));
        }
    }
    if gates.deletes_claims {
        set_default(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
        let policy = spec.get_mut("persistentVolumeClaimRetentionPolicy").and_then(Value::as_object_mut);
        if let Some(policy) = policy {
            for key in ["whenDeleted", "whenScaled"] {
                drop_empty(policy, key);
                set_default(policy, key, json!(rules::RETAIN));
            }
        }
    }
    if gates.resizes_claims {
        set_default(spec, "volumeClaimUpdateStrategy", json!({}));
        if let Some(strategy) = spec.get_mut("volumeClaimUpdateStrategy").and_then(Value::as_object_mut) {
            drop_empty(strategy, "type");
            set_default(strategy, "type", json!(rules::CLAIMS_ON_DELETE));
        }
    }
}

#[cfg(test)]
mod tests;
