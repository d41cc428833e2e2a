//! Admission of CloneSets: defaults and rules in one call.
//!
//! [`check`] judges the object alone ([`rules`]), [`admit`] together with what the API server says: of the template, by
//! a dry run ([`crate::k8s::pod_template`]), and of the Pods in `podsToDelete`. Each is pure; [`handle`] asks in between.
//!
//! CREATE fails closed, UPDATE fails open: a controller that finds a template without defaults fetches them itself, and
//! what has to hold in any case, that the selector stays, is CEL in the schema. An update is never refused for what it
//! does not change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ObjectMeta};
use serde_json::{Value, json};

use crate::{
    api::{
        apps::{self, strategies::UpdateType},
        feature_gates::{FeatureGates, gate},
    },
    domain::{pod::inplace, workload::rollout::DEFAULT_MAX_UNAVAILABLE},
    k8s::{
        account::{self, MANAGER},
        name::ObjectName,
        owner::is_kind,
        rbac::Rule,
    },
    webhook::{
        Context,
        server::review::{Admitted, Cause, Decision, Denied, Request},
        template::{self, InPlaceOnly, READ_BUDGET, Templates},
        validate::{Object, drop_empty, is_judged, set_default},
        workload::Judged,
    },
};

mod rules;

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC, Rule::new(&[""], &["pods"], &["get"])];

/// How many Pods are read at once.
const READS: usize = 16;

/// A CloneSet of which every field has the right type.
#[derive(Clone, Debug)]
pub struct CloneSetAdmission {
    judged: Judged,
    defaults: bool,
    in_place: inplace::Allowed,
    /// Pods to read: those in `podsToDelete` that were not there before.
    pub pods: Vec<ObjectName>,
}

/// What the API server says.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Of the template and the claim templates.
    pub templates: template::Answers,
    /// Of the Pods; None if there is none of that name.
    pub pods: BTreeMap<String, Option<ObjectMeta>>,
}

/// How many Pods are read for one request: a list may have tens of thousands of names.
const MOST_READ: usize = 500;

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        // It changes lists of names, not templates. Defaults that are missing from before would become part of its
        // patch, which the policy over its account refuses.
        // The CloneSets of UnitedDeployments are written as a whole by it, and get their defaults like those of users.
        let is_by_manager = || account::is(&request.user_info.username, &context.namespace, MANAGER);
        if request.operation == "UPDATE" && !is_of_united(&request.old_object) && is_by_manager() {
            return Ok(Admitted::unchanged());
        }
        let admission = check(&context.gates, request)?;
        let answers = tokio::time::timeout(READ_BUDGET, read(&context, &admission))
            .await
            .unwrap_or_else(|_| Answers { templates: template::Answers::late(), ..Answers::default() });
        admit(&admission, &answers)
    })
}

fn is_of_united(object: &Value) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let is_it = |owner: &Value| {
        let text = |key: &str| owner[key].as_str().unwrap_or_default();
        owner["controller"] == true && is_kind((text("apiVersion"), text("kind")), (apps::GROUP, "UnitedDeployment"))
    };
    owners.into_iter().flatten().any(is_it)
}

async fn read(context: &Context, admission: &CloneSetAdmission) -> Answers {
    let namespace = &admission.judged.namespace;
    let templates = template::ask(&context.client, namespace, &admission.templates()).await;
    let mut answers = Answers { templates, ..Answers::default() };
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
    let mut judged = Judged::of(
        request,
        |object, is_new| rules::judge(gates, object, is_new),
        |old| rules::judge(gates, old, false),
    )?;
    judged.keep_selector("CloneSet");
    let names = |object: &Value| -> Vec<String> {
        let list = object.pointer("/spec/scaleStrategy/podsToDelete").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    // A new CloneSet has no Pods yet.
    let known: Option<BTreeSet<String>> = judged.old.as_ref().map(|old| names(old).into_iter().collect());
    let mut pods = names(&judged.object);
    pods.retain(|name| !name.is_empty() && known.as_ref().is_some_and(|known| !known.contains(name)));
    pods.sort_unstable();
    pods.dedup();
    // A name that is refused already is not read; it could be any path.
    let mut pods: Vec<ObjectName> = pods.iter().filter_map(|name| ObjectName::parse(name).ok()).collect();
    if pods.len() > MOST_READ {
        let left = pods.len() - MOST_READ;
        judged.found.warnings.push(format!(
            "spec.scaleStrategy.podsToDelete: only the first {MOST_READ} new names were checked, and {left} were not; names that are not Pods of this CloneSet are removed from the list"
        ));
        pods.truncate(MOST_READ);
    }
    let defaults = !gates.enabled(gate::TEMPLATE_NO_DEFAULTS);
    let in_place = inplace::Allowed { resources: gates.enabled(gate::RESIZE_IN_PLACE), ..inplace::Allowed::default() };
    Ok(CloneSetAdmission { judged, defaults, in_place, pods })
}

impl CloneSetAdmission {
    fn templates(&self) -> Templates<'_> {
        let Judged { object, old, .. } = &self.judged;
        let update_type = object.pointer("/spec/updateStrategy/type");
        let is_in_place_only = update_type.is_some_and(|kind| kind == UpdateType::InPlaceOnly.as_str());
        Templates {
            object,
            old: old.as_ref(),
            defaults: self.defaults,
            in_place_only: (is_in_place_only && old.is_some())
                .then_some(InPlaceOnly { asked_by: "updateStrategy.type InPlaceOnly", allowed: self.in_place }),
        }
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &CloneSetAdmission, answers: &Answers) -> Decision {
    let object = &admission.judged.object;
    admission.judged.decide(object.clone(), |spec, found| {
        set_defaults(spec);
        admission.templates().judge(&answers.templates, spec, found)?;
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let read = |name: &ObjectName| pod_to_delete(name, answers.pods.get(&**name)?.as_ref(), uid);
        found.causes.extend(admission.pods.iter().filter_map(read));
        Ok(())
    })
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
fn set_defaults(spec: &mut Object) {
    set_default(spec, "replicas", json!(1));
    set_default(spec, "revisionHistoryLimit", json!(10));
    set_default(spec, "scaleStrategy", json!({}));
    set_default(spec, "updateStrategy", json!({}));
    let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) else { return };
    drop_empty(strategy, "type");
    set_default(strategy, "type", json!(UpdateType::default().as_str()));
    set_default(strategy, "partition", json!(0));
    set_default(strategy, "maxUnavailable", json!(DEFAULT_MAX_UNAVAILABLE.to_string()));
    set_default(strategy, "maxSurge", json!(0));
    let in_place = [UpdateType::InPlaceIfPossible, UpdateType::InPlaceOnly];
    if strategy.get("type").is_some_and(|kind| in_place.iter().any(|type_| kind == type_.as_str())) {
        set_default(strategy, "inPlaceUpdateStrategy", json!({}));
    }
}

#[cfg(test)]
mod tests;
