//! Admission of CloneSets: defaults and rules in one call.
//!
//! [`check`] judges the object alone ([`rules`]), [`admit`] together with what the API server says: of the template, by
//! a dry run ([`crate::k8s::pod_template`]), and of the Pods in `podsToDelete`. Each is pure; [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: a controller that finds a template without defaults fetches them itself, and
//! what has to hold in any case, that the selector stays, is CEL in the schema. An update is never refused for what it
//! does not change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ObjectMeta};
use serde_json::{Map, Value, json};

use crate::{
    api::feature_gates::{FeatureGates, gate},
    domain::pod::{inplace, launch_priority},
    k8s::{
        account::{self, MANAGER},
        name::{Namespace, ObjectName},
        pod_template::{Stored, Trial, looks_defaulted},
        rbac::Rule,
    },
    runtime::pod_template::{self, Answer, Refused},
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
    },
};

mod rules;

/// What [`handle`] reads. A dry run is a create that stores nothing.
pub const RBAC: &[Rule] = &[Rule::new(&[""], &["podtemplates"], &["create"]), Rule::new(&[""], &["pods"], &["get"])];

/// The reads of one call take no longer than this, so that the answer comes before the API server gives up.
const READ_BUDGET: Duration = Duration::from_secs(7);
/// How many Pods are read at once.
const READS: usize = 16;

/// A CloneSet of which every field has the right type.
#[derive(Clone, Debug)]
pub struct CloneSetAdmission {
    object: Value,
    /// What is stored now, on UPDATE.
    old: Option<Value>,
    namespace: Namespace,
    causes: Vec<Cause>,
    warnings: Vec<String>,
    defaults: bool,
    in_place: inplace::Allowed,
    /// Pods to read: those in `podsToDelete` that were not there before.
    pub pods: Vec<ObjectName>,
}

/// What the API server says.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Of the template and the claim templates; None if they are as they were.
    pub trial: Option<Result<Answer, Refused>>,
    /// The template before, with the defaults that it lacks; None if it lacks none.
    pub old_template: Option<Value>,
    /// Of the Pods; None if there is none of that name.
    pub pods: BTreeMap<String, Option<ObjectMeta>>,
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        let is_ours = ["CREATE", "UPDATE"].contains(&request.operation.as_str()) && request.sub_resource.is_empty();
        if !is_ours || is_set(&request.object, "/metadata/deletionTimestamp") {
            return Ok(Admitted::unchanged());
        }
        // It changes lists of names, not templates. Defaults that are missing from before would become part of its
        // patch, which the policy over its account refuses.
        if request.operation == "UPDATE" && account::is(&request.user_info.username, &context.namespace, MANAGER) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(&context.gates, request)?;
        let answers = tokio::time::timeout(READ_BUDGET, read(&context, &admission)).await.unwrap_or_else(|_| {
            let late = format!("no answer within {} s", READ_BUDGET.as_secs());
            Answers { trial: Some(Err(Refused::Unavailable(late))), ..Answers::default() }
        });
        admit(&admission, &answers)
    })
}

async fn read(context: &Context, admission: &CloneSetAdmission) -> Answers {
    let namespace = &admission.namespace;
    let mut answers = Answers::default();
    if let Some(trial) = admission.trial() {
        answers.trial = Some(pod_template::dry_run(&context.client, namespace, &trial.body()).await);
    }
    if admission.is_in_place_only()
        && let Some(old) = admission.old_template().filter(|old| admission.defaults && !looks_defaulted(old))
    {
        // If that cannot be had, it is compared as it is.
        answers.old_template = pod_template::defaulted(&context.client, namespace, old).await.ok();
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let reads = admission.pods.clone().into_iter().map(move |name| {
        let api = api.clone();
        async move { (api.get_metadata_opt(&name).await, name) }
    });
    let mut reads = stream::iter(reads).buffer_unordered(READS);
    while let Some((result, name)) = reads.next().await {
        match result {
            Ok(pod) => {
                answers.pods.insert(name.to_string(), pod.map(|pod| pod.metadata));
            }
            // The controller deletes nothing that is not its own, and drops the name.
            Err(error) => {
                tracing::warn!(%namespace, %name, %error, "a Pod in podsToDelete cannot be read, it is not checked")
            }
        }
    }
    answers
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(gates: &FeatureGates, request: Request) -> Result<CloneSetAdmission, Denied> {
    let Request { operation, object, old_object, namespace, .. } = request;
    let is_new = operation == "CREATE";
    let found = rules::judge(gates, &object, is_new);
    if !found.wrong_types.is_empty() {
        return Err(Denied::bad_request(found.wrong_types.join("; ")));
    }
    let old = (!is_new).then_some(old_object);
    let mut causes = found.causes;
    if let Some(old) = &old {
        // What was let in before, when admission was away or knew less, does not stand in the way of other changes.
        let before = rules::judge(gates, old, false).causes;
        causes.retain(|cause| !before.contains(cause));
    }
    let names = |object: &Value| -> Vec<String> {
        let list = object.pointer("/spec/scaleStrategy/podsToDelete").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let known = old.as_ref().map(names).unwrap_or_default();
    let mut pods = names(&object);
    pods.retain(|name| !is_new && !name.is_empty() && !known.contains(name));
    pods.sort_unstable();
    pods.dedup();
    // A name that is refused already is not read; it could be any path.
    let pods = pods.iter().filter_map(|name| ObjectName::parse(name).ok()).collect();
    let defaults = !gates.enabled(gate::TEMPLATE_NO_DEFAULTS);
    let in_place = inplace::Allowed { resources: gates.enabled(gate::RESIZE_IN_PLACE), ..inplace::Allowed::default() };
    Ok(CloneSetAdmission { object, old, namespace, causes, warnings: found.warnings, defaults, in_place, pods })
}

impl CloneSetAdmission {
    fn template(&self) -> Option<&Value> {
        self.object.pointer("/spec/template").filter(|template| template.is_object())
    }

    fn old_template(&self) -> Option<&Value> {
        self.old.as_ref()?.pointer("/spec/template")
    }

    fn claims(&self) -> &[Value] {
        claims(&self.object)
    }

    /// The question about the template, if it or a claim template is new.
    fn trial(&self) -> Option<Trial<'_>> {
        let template = self.template()?;
        let new_claims = self.old.as_ref().is_none_or(|old| claims(old) != self.claims());
        let is_new = new_claims || self.old_template() != Some(template);
        is_new.then(|| Trial::new(template, self.claims(), new_claims))
    }

    fn is_in_place_only(&self) -> bool {
        self.old.is_some()
            && self.object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind == rules::IN_PLACE_ONLY)
    }
}

fn claims(object: &Value) -> &[Value] {
    object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_set(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(|value| !value.is_null())
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &CloneSetAdmission, answers: &Answers) -> Decision {
    let CloneSetAdmission { object, causes, warnings, defaults, .. } = admission;
    let (mut causes, mut warnings) = (causes.clone(), warnings.clone());
    let mut wanted = object.clone();
    let spec = wanted.get_mut("spec").and_then(Value::as_object_mut);
    let Some(spec) = spec else { return Err(Denied::bad_request("spec is missing")) };
    set_defaults(spec);
    if let (Some(trial), Some(result)) = (admission.trial(), &answers.trial) {
        match result {
            Ok(answer) => {
                let Stored { template, claims } = trial.stored(&answer.object, &answer.unknown, *defaults);
                let before = answers.old_template.as_ref().or_else(|| admission.old_template());
                if let Some(before) = before.filter(|_| admission.is_in_place_only())
                    && let Err(why) = inplace::spec_between(before, &template, "", admission.in_place)
                {
                    causes.push(Cause {
                        field: "spec.template".into(),
                        message: format!(
                            "{why}; with updateStrategy.type {} want nothing but other images, labels and annotations",
                            rules::IN_PLACE_ONLY
                        ),
                    });
                }
                if let Err(error) = launch_priority::wanted(&template) {
                    warnings.push(format!("spec.template.{error}; its Pods will be refused"));
                }
                spec.insert("template".into(), template);
                if !claims.is_empty() {
                    spec.insert("volumeClaimTemplates".into(), claims.into());
                }
                warnings.extend(answer.unknown.iter().map(|field| {
                    format!(
                        "unknown field \"{}\": it is stored, and this API server will not give it to Pods",
                        trial.field(field)
                    )
                }));
                warnings.extend(answer.warnings.iter().cloned());
            }
            Err(Refused::Invalid(fields)) => causes.extend(
                fields.iter().map(|(field, message)| Cause { field: trial.field(field), message: message.clone() }),
            ),
            Err(Refused::Undecodable(message)) => {
                let (_, why) = message.split_once("cannot be handled as a PodTemplate: ").unwrap_or(("", message));
                return Err(Denied::bad_request(format!("spec.template: {why}")));
            }
            // An update fails open: the controller asks again.
            Err(error @ Refused::Unavailable(_)) if admission.old.is_some() => {
                warnings.push(format!("spec.template is not checked: {error}"));
            }
            Err(error @ Refused::Unavailable(_)) => return Err(Denied::internal(format!("spec.template: {error}"))),
        }
    }
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    causes
        .extend(admission.pods.iter().filter_map(|name| pod_to_delete(name, answers.pods.get(&**name)?.as_ref(), uid)));
    if causes.is_empty() {
        Ok(Admitted { warnings, ..Admitted::changed(object, &wanted) })
    } else {
        Err(Denied::invalid(causes))
    }
}

/// What is wrong with a Pod that is to be deleted first.
fn pod_to_delete(name: &str, pod: Option<&ObjectMeta>, uid: &str) -> Option<Cause> {
    let controller =
        pod.and_then(|pod| pod.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true)));
    let why = match pod {
        None => "no Pod in this namespace has this name".to_owned(),
        Some(pod) if pod.deletion_timestamp.is_some() => "this Pod is being deleted already".to_owned(),
        Some(_) => match controller {
            Some(owner) if owner.uid == uid => return None,
            Some(owner) => format!("this Pod belongs to {} {:?}", owner.kind, owner.name),
            None => "this Pod has no controller".to_owned(),
        },
    };
    let message = format!("{name:?} is not allowed, {why}; want names of Pods of this CloneSet");
    Some(Cause { field: "spec.scaleStrategy.podsToDelete".into(), message })
}

/// Everything but the template.
fn set_defaults(spec: &mut Map<String, Value>) {
    set(spec, "replicas", json!(1));
    set(spec, "revisionHistoryLimit", json!(10));
    set(spec, "scaleStrategy", json!({}));
    set(spec, "updateStrategy", json!({}));
    let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) else { return };
    if strategy.get("type").is_some_and(|kind| kind == "") {
        strategy.remove("type");
    }
    set(strategy, "type", json!(rules::RECREATE));
    set(strategy, "partition", json!(0));
    set(strategy, "maxUnavailable", json!(rules::MAX_UNAVAILABLE));
    set(strategy, "maxSurge", json!(0));
    if strategy.get("type").is_some_and(|kind| kind == rules::IN_PLACE_ONLY || kind == rules::IN_PLACE_IF_POSSIBLE) {
        set(strategy, "inPlaceUpdateStrategy", json!({}));
    }
}

fn set(object: &mut Map<String, Value>, key: &str, default: Value) {
    let value = object.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = default;
    }
}

#[cfg(test)]
mod tests;
