//! Deletion protection: an object with the label `policy.kruise.io/delete-protection` is not deleted while it is in use.
//!
//! The API server itself judges the level Always, and Cascading of workloads, by a policy
//! ([`domain::deletion_protection`](crate::domain::deletion_protection)). This webhook judges Cascading where objects have to
//! be counted: the active Pods and bound claims of a Namespace, the objects of a CustomResourceDefinition. While no webhook
//! answers, objects with this level are not deleted; objects without the label are.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, ObjectMeta},
    core::GroupVersionKind,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{
        feature_gates::FeatureGates,
        labels::{
            AGGREGATE_TO_WEBHOOK, DELETE_PROTECTION as LABEL, DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING,
        },
    },
    domain::deletion_protection::{PREFIX, refusal_always},
    k8s::{
        name::{BadName, Namespace, WANT_LABEL, WANT_SUBDOMAIN, is_dns_label, is_dns_subdomain},
        rbac::Rule,
    },
    runtime::apply::said,
    webhook::{
        Context,
        server::handler::MatchCondition,
        server::review::{Admitted, Decision, Denied, Request},
    },
};

/// The label of objects for which something is counted.
pub const CASCADING: (&str, &str) = (LABEL, DELETE_PROTECTION_CASCADING);

/// What is counted in a Namespace.
pub const NAMESPACE_RBAC: &[Rule] =
    &[Rule::new(&[""], &["pods"], &["list"]), Rule::new(&[""], &["persistentvolumeclaims"], &["list"])];

/// Counting takes no longer than this, so that the answer comes before the API server gives up.
const READ_BUDGET: Duration = Duration::from_secs(8);
/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Once something is found, so many pages are counted; what is beyond makes no difference to anybody.
const MOST_PAGES: usize = 10;
/// Examples in a refusal.
const MOST_EXAMPLES: usize = 3;

/// Objects that are not being deleted yet. That they have the label says the selector.
pub fn match_conditions(_: &FeatureGates) -> Vec<MatchCondition> {
    vec![MatchCondition { name: "not-being-deleted", expression: "!has(oldObject.metadata.deletionTimestamp)".into() }]
}

/// What is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// How many there are, or, if they are very many, at least.
    pub count: usize,
    /// Some of them.
    pub examples: Vec<String>,
}

impl InUse {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(name());
        }
    }

    /// `what` with the count, in the words that clients know, and the examples.
    fn refusal(&self, what: &str) -> Denied {
        let Self { count, examples } = self;
        let more = count.saturating_sub(examples.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let examples = examples.join(", ");
        Denied::forbidden(format!(
            "{PREFIX} {LABEL}={DELETE_PROTECTION_CASCADING} and {what} {count}>0: {examples}{more}"
        ))
    }
}

/// What a label says of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Nothing: no such label, another value, or it is going already.
    Pass,
    /// Never.
    Always,
    /// It depends on what is in use.
    Cascading,
}

fn asked(request: &Request) -> Asked {
    let metadata = &request.old_object["metadata"];
    let going = metadata.get("deletionTimestamp").is_some_and(|time| !time.is_null());
    if request.operation != "DELETE" || !request.sub_resource.is_empty() || going {
        return Asked::Pass;
    }
    match metadata["labels"][LABEL].as_str() {
        Some(DELETE_PROTECTION_ALWAYS) => Asked::Always,
        Some(DELETE_PROTECTION_CASCADING) => Asked::Cascading,
        _ => Asked::Pass,
    }
}

/// Decides over a Namespace.
pub fn handle_namespace(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        match asked(&request) {
            Asked::Pass => return Ok(Admitted::unchanged()),
            Asked::Always => return Err(Denied::forbidden(refusal_always())),
            Asked::Cascading => {}
        }
        let namespace = Namespace::parse(&request.name);
        let namespace = namespace.map_err(|error| Denied::bad_request(format!("request.name: {error}")))?;
        if namespace.is_empty() {
            return Err(Denied::bad_request("request.name: it is empty; want the name of the namespace"));
        }
        let of_kind = |kind| Api::<DynamicObject>::namespaced_with(context.client.clone(), &namespace, &kind);
        let pods = of_kind(ApiResource::erase::<Pod>(&()));
        let active = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let claims = of_kind(ApiResource::erase::<PersistentVolumeClaim>(&()));
        let count = async {
            let of_pods = in_use(&pods, active, None).await;
            let of_pods = of_pods.map_err(|error| pods_not_listed(&said(&error)))?;
            if of_pods.count > 0 {
                return Err(of_pods.refusal("active pods"));
            }
            let of_claims = in_use(&claims, ListParams::default(), Some("Bound")).await;
            let of_claims = of_claims.map_err(|error| claims_not_listed(&said(&error)))?;
            if of_claims.count > 0 {
                return Err(of_claims.refusal("\"Bound\" status pvc"));
            }
            Ok(Admitted::unchanged())
        };
        let late = || Err(pods_not_listed(&late()));
        tokio::time::timeout(READ_BUDGET, count).await.unwrap_or_else(|_| late())
    })
}

fn pods_not_listed(why: &str) -> Denied {
    Denied::forbidden(format!("{PREFIX} list pods error: {why}"))
}

fn claims_not_listed(why: &str) -> Denied {
    Denied::forbidden(format!("{PREFIX} list pvc error: {why}"))
}

/// What a definition says of its objects.
#[derive(Clone, Debug, Deserialize)]
struct Definition {
    group: String,
    names: Names,
    versions: Vec<Version>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    plural: String,
    kind: String,
    list_kind: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Version {
    name: String,
    served: bool,
    storage: bool,
}

impl Definition {
    /// Reads the spec of a CustomResourceDefinition. Group, versions and plural name become part of a URL.
    fn read(spec: Value) -> Result<Self, Denied> {
        let wrong = |what: String| Denied::bad_request(format!("request.oldObject.spec{what}"));
        let definition: Self = serde_json::from_value(spec).map_err(|error| wrong(format!(": {error}")))?;
        let Self { group, names, versions } = &definition;
        let labels = versions.iter().map(|version| ("versions[].name", &version.name));
        let labels = labels.chain([("names.plural", &names.plural)]);
        let bad = labels.map(|(field, text)| (field, text, is_dns_label(text), WANT_LABEL));
        let bad = bad.chain([("group", group, is_dns_subdomain(group), WANT_SUBDOMAIN)]).find(|(.., good, _)| !good);
        match bad {
            Some((field, text, _, want)) => Err(wrong(format!(".{field}: {}", BadName::new(text, want)))),
            None => Ok(definition),
        }
    }

    /// In which version its objects are listed: as they are stored, if that version is served.
    fn version(&self) -> Option<&str> {
        let served = || self.versions.iter().filter(|version| version.served);
        let stored = served().find(|version| version.storage).or_else(|| served().next());
        stored.map(|version| version.name.as_str())
    }

    fn list_kind(&self) -> String {
        self.names.list_kind.clone().unwrap_or_else(|| format!("{}List", self.names.kind))
    }

    /// Why its objects could not be counted, and what to do.
    fn failure(&self, version: &str, error: &kube::Error) -> Denied {
        let Self { group, names, .. } = self;
        let plural = &names.plural;
        let advice = match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "; to have them counted, give a ClusterRole the label {AGGREGATE_TO_WEBHOOK}=true and the right to list \
                 {plural} of {group}"
            ),
            _ => String::new(),
        };
        let kind = self.list_kind();
        let error = said(error);
        Denied::forbidden(format!("{PREFIX} failed to list CRs of {group}/{version}, Kind={kind}: {error}{advice}"))
    }
}

/// Decides over a CustomResourceDefinition.
pub fn handle_definition(context: Arc<Context>, mut request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        match asked(&request) {
            Asked::Pass => return Ok(Admitted::unchanged()),
            Asked::Always => return Err(Denied::forbidden(refusal_always())),
            Asked::Cascading => {}
        }
        let spec = request.old_object["spec"].take();
        let definition = Definition::read(spec)?;
        let Definition { group, names, .. } = &definition;
        let Some(version) = definition.version() else {
            return Err(Denied::forbidden(format!(
                "{PREFIX} failed to list CRs of {group}, Kind={}: no version of spec.versions is served; serve one, so that they can \
                 be counted",
                definition.list_kind()
            )));
        };
        let kind = GroupVersionKind::gvk(group, version, &names.kind);
        let api: Api<DynamicObject> =
            Api::all_with(context.client.clone(), &ApiResource::from_gvk_with_plural(&kind, &names.plural));
        let count = in_use(&api, ListParams::default(), None);
        match tokio::time::timeout(READ_BUDGET, count).await {
            Ok(Ok(found)) if found.count == 0 => Ok(Admitted::unchanged()),
            Ok(Ok(found)) => Err(found.refusal("active CRs")),
            Ok(Err(error)) => Err(definition.failure(version, &error)),
            Err(_) => Err(Denied::forbidden(format!(
                "{PREFIX} failed to list CRs of {group}/{version}, Kind={}: {}",
                definition.list_kind(),
                late()
            ))),
        }
    })
}

fn late() -> String {
    format!("no answer within {} s", READ_BUDGET.as_secs())
}

/// Counts what is listed and is not being deleted; with a phase, only what is in it.
async fn in_use(api: &Api<DynamicObject>, mut params: ListParams, phase: Option<&str>) -> kube::Result<InUse> {
    let mut found = InUse::default();
    params.limit = Some(PAGE);
    for page in 1.. {
        let (list, objects): (_, Vec<ObjectMeta>) = match phase {
            None => {
                let objects = api.list_metadata(&params).await?;
                (objects.metadata, objects.items.into_iter().map(|o| o.metadata).collect())
            }
            Some(phase) => {
                let objects = api.list(&params).await?;
                let counts = objects.items.into_iter().filter(|o| o.data["status"]["phase"] == phase);
                (objects.metadata, counts.map(|o| o.metadata).collect())
            }
        };
        for object in objects.into_iter().filter(|object| object.deletion_timestamp.is_none()) {
            found.add(|| {
                let name = object.name.unwrap_or_default();
                object.namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
            });
        }
        match list.continue_ {
            Some(token) if !token.is_empty() && (found.count == 0 || page < MOST_PAGES) => {
                params.continue_token = Some(token);
            }
            _ => break,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
