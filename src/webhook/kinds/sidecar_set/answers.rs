//! What the admission of a SidecarSet looks up: what the API server makes of its containers, the revision that it names, the
//! whitelist of annotations, and the other SidecarSets.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Client,
    api::{GetParams, ListParams},
    core::Request,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    api::{
        apps::{
            self,
            sidecar_set::{InjectRevision, OWN_FIELDS, SidecarSetInjectionStrategy},
        },
        feature_gates::gate,
        labels,
    },
    domain::kinds::sidecar_set::revision,
    k8s::{invalid::Invalid, null, path, pod::Labels, selector::Selector},
    runtime::{
        apply::{code, said},
        kruise_configuration,
    },
    webhook::{
        Context,
        sidecars::{Sidecars, Stored},
        template::{self, Templates},
        validate::{Findings, Object},
    },
};

use super::conflicts;

/// The ConfigMap with the whitelist, in our namespace, and the key of it.
pub(super) const WHITELIST: (&str, &str) = (kruise_configuration::NAME, "SidecarSet_PatchPodMetadata_WhiteList");
/// SidecarSets that are read at a time. When there are more, those of the watch are judged: a list of very many takes longer
/// than a call may.
const PAGE: u32 = 500;
/// What is judged if it is known, and otherwise warned of, takes no longer: the rest of the call needs its own time.
const LIMIT: Duration = Duration::from_secs(4);

/// The API server could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unread(pub(super) String);

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    /// Of the containers and volumes.
    pub(super) template: template::Answers,
    /// Of the revision: what is wrong with it.
    pub(super) revision: Option<Result<Findings, Unread>>,
    /// The whitelist of annotations.
    pub(super) whitelist: Option<Result<FoundWhitelist, Unread>>,
    /// What is wrong beside other SidecarSets.
    pub(super) others: Option<Result<Findings, Unread>>,
}

/// What was found in the place of the whitelist.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundWhitelist {
    /// The namespace in which its ConfigMap is looked for: ours.
    pub(super) namespace: String,
    /// Its text; None: there is no such ConfigMap, or it lacks the key.
    pub(super) text: Option<String>,
}

/// A Pod with the containers of a SidecarSet, for the API server to judge. `metadata` is not part of it.
pub(super) fn pod_template(spec: &Value) -> Value {
    let list = |key: &str| spec.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let containers = |key: &str| -> Vec<Value> {
        let plain = |mut container: Value| {
            if let Some(object) = container.as_object_mut() {
                object.retain(|key, _| !OWN_FIELDS.contains(&key.as_str()));
            }
            container
        };
        list(key).into_iter().map(plain).collect()
    };
    let mut sidecars = containers("containers");
    if sidecars.is_empty() {
        sidecars.push(json!({"name": "kruise-placeholder", "image": "placeholder:1"}));
    }
    json!({"metadata": {}, "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
        "initContainers": containers("initContainers"), "containers": sidecars, "volumes": list("volumes")}})
}

/// The workload that [`Templates`] judge in its place.
pub(super) fn as_workload(spec: &Value) -> Value {
    json!({"spec": {"template": pod_template(spec)}})
}

/// Looks everything up that is new.
pub(super) async fn ask(context: &Context, new: &Value, old: Option<&Value>) -> Answers {
    let (client, namespace) = (&context.client, &*context.namespace);
    let spec = |object: &Value| object.get("spec").cloned().unwrap_or_default();
    let (now, before) = (spec(new), old.map(spec));
    let differs = |key: &str| before.as_ref().is_none_or(|before| before.get(key) != now.get(key));
    let (workload, old_workload) = (as_workload(&now), before.as_ref().map(as_workload));
    let templates = Templates { object: &workload, old: old_workload.as_ref(), defaults: false, in_place_only: None };
    let name = new.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let revision = async {
        if !differs("injectionStrategy") {
            return None;
        }
        let strategy: SidecarSetInjectionStrategy =
            serde_json::from_value(null::pruned(now.get("injectionStrategy")?)).ok()?;
        Some(within(pinned(client, namespace, name, strategy.pinned()?)).await)
    };
    let whitelist = async {
        let is_new = differs("patchPodMetadata") && !list_is_empty(&now, "patchPodMetadata");
        if is_new { Some(whitelist(client, namespace).await) } else { None }
    };
    let others = async {
        let parts = [
            "selector",
            "namespace",
            "namespaceSelector",
            "containers",
            "initContainers",
            "volumes",
            "patchPodMetadata",
        ];
        if parts.iter().any(|key| differs(key)) {
            Some(others(client, &context.sidecars, new, old).await)
        } else {
            None
        }
    };
    let (template, revision, whitelist, others) =
        tokio::join!(template::ask(client, namespace, &templates), revision, whitelist, others);
    Answers { template, revision, whitelist, others }
}

fn list_is_empty(spec: &Value, key: &str) -> bool {
    spec.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty)
}

async fn get(client: &Client, path: String, name: &str) -> Result<Option<Value>, Unread> {
    let request = Request::new(path).get(name, &GetParams::default()).map_err(|error| Unread(error.to_string()))?;
    match client.request::<Value>(request).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if code(&error) == Some(404) => Ok(None),
        Err(error) => Err(Unread(said(&error))),
    }
}

/// An answer, or that there is none in time.
async fn within<T>(answer: impl Future<Output = Result<T, Unread>>) -> Result<T, Unread> {
    let late = || Err(Unread(format!("no answer within {} s", LIMIT.as_secs())));
    tokio::time::timeout(LIMIT, answer).await.unwrap_or_else(|_| late())
}

/// What is wrong with the revision that is named.
async fn pinned(client: &Client, namespace: &str, set: &str, pinned: InjectRevision) -> Result<Findings, Unread> {
    let at = "spec.injectionStrategy.revision";
    let path = path::in_namespace("apps", "v1", namespace, "controllerrevisions");
    let mut found = Findings::default();
    let result = match (pinned.revision_name, pinned.custom_version) {
        (Some(name), _) => get(client, path, &name).await.map(|revision| {
            let is_of = |key: &str| revision.as_ref().and_then(|r| r.get("metadata")?.get("labels")?.get(key)).cloned();
            let field = format!("{at}.revisionName");
            if revision.is_none() {
                found.deny(field, format!("{name:?} is no ControllerRevision in namespace {namespace}"));
            } else if is_of(labels::SIDECAR_SET_NAME).is_none_or(|of| of != set) {
                found.deny(field, format!("{name:?} is a revision of another object; want one of this SidecarSet"));
            } else if revision.and_then(|r| revision::restore(r.get("data")?)).is_none() {
                found.deny(field, format!("{name:?} has no containers; want a revision of this SidecarSet"));
            }
        }),
        (None, Some(version)) => {
            let selector =
                format!("{}={set},{}={version}", labels::SIDECAR_SET_NAME, labels::SIDECAR_SET_CUSTOM_VERSION);
            let params = ListParams::default().labels(&selector).limit(1);
            list(client, path, &params).await.map(|(items, _)| {
                if items.is_empty() {
                    let field = format!("{at}.customVersion");
                    found.deny(field, format!("{version:?} is the version of no revision of this SidecarSet"));
                }
            })
        }
        (None, None) => Ok(()),
    };
    result.map(|()| found)
}

async fn list(client: &Client, path: String, params: &ListParams) -> Result<(Vec<Value>, Option<String>), Unread> {
    let request = Request::new(path).list(params).map_err(|error| Unread(error.to_string()))?;
    let mut page: Value = client.request(request).await.map_err(|error| Unread(said(&error)))?;
    let next = page.pointer("/metadata/continue").and_then(Value::as_str).filter(|next| !next.is_empty());
    let next = next.map(str::to_owned);
    Ok((page["items"].as_array_mut().map(std::mem::take).unwrap_or_default(), next))
}

async fn whitelist(client: &Client, namespace: &str) -> Result<FoundWhitelist, Unread> {
    let (name, key) = WHITELIST;
    let map = get(client, path::in_namespace(path::CORE, "v1", namespace, "configmaps"), name).await?;
    let text = map.and_then(|map| map.get("data")?.get(key)?.as_str().map(str::to_owned));
    Ok(FoundWhitelist { namespace: namespace.to_owned(), text })
}

/// What is wrong beside the other SidecarSets: few are read as they are at this moment, of many the watch knows.
pub(super) async fn others(
    client: &Client,
    sidecars: &Sidecars,
    set: &Value,
    old: Option<&Value>,
) -> Result<Findings, Unread> {
    let stored = sidecars.stored();
    if stored.is_none_or(|stored| stored <= PAGE as usize) {
        let listed = within(listed(client, set, old)).await;
        if listed.is_ok() || stored.is_none() {
            return listed;
        }
    }
    let mut found = Findings::default();
    conflicts::judge(set, old, &sidecars.beside(&set["spec"]), &mut found);
    Ok(found)
}

async fn listed(client: &Client, set: &Value, old: Option<&Value>) -> Result<Findings, Unread> {
    let mut found = Findings::default();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let path = path::of_cluster(apps::GROUP, "v1beta1", "sidecarsets");
        let (items, next) = list(client, path, &params).await?;
        let others: Vec<Stored> = items.iter().filter_map(Stored::of).collect();
        conflicts::judge(set, old, &others, &mut found);
        params.continue_token = next;
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

#[derive(Deserialize)]
struct Whitelist {
    #[serde(default)]
    rules: Vec<WhitelistRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WhitelistRule {
    selector: Option<LabelSelector>,
    #[serde(default)]
    allowed_annotation_key_exprs: Vec<String>,
}

/// Judges the annotations that a SidecarSet patches. `is_open`: without a whitelist everything is allowed.
pub(super) fn judge_metadata(object: &Value, whitelist: &FoundWhitelist, is_open: bool) -> Findings {
    let FoundWhitelist { namespace, text } = whitelist;
    let mut found = Findings::default();
    let patches =
        object.pointer("/spec/patchPodMetadata").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let expressions = text.as_deref().map(|text| expressions(text, object)).transpose();
    let (name, key) = WHITELIST;
    let expressions = match expressions {
        Err(Invalid(why)) => {
            let why = format!("the key {key} of ConfigMap {name} in namespace {namespace} cannot be read: {why}");
            found.deny("spec.patchPodMetadata", why);
            return found;
        }
        Ok(expressions) => expressions.unwrap_or_default(),
    };
    if expressions.is_empty() && is_open {
        return found;
    }
    let gate = gate::SIDECAR_SET_METADATA;
    let why = match (text, expressions.is_empty()) {
        (None, _) => format!(
            "not allowed: ConfigMap {name} in namespace {namespace} is not there or lacks the key {key}, so no annotation is allowed; want the whitelist there, or feature gate {gate} on"
        ),
        (Some(_), true) => format!(
            "not allowed: the whitelist, the key {key} of ConfigMap {name} in namespace {namespace}, allows this SidecarSet nothing; want a rule for it there, or feature gate {gate} on"
        ),
        // The gate does not lift a whitelist that is there.
        (Some(_), false) => {
            format!("not allowed by the whitelist, the key {key} of ConfigMap {name} in namespace {namespace}")
        }
    };
    for (i, patch) in patches.iter().enumerate() {
        for annotation in patch.get("annotations").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !expressions.iter().any(|expression| expression.is_match(annotation)) {
                found.deny(format!("spec.patchPodMetadata[{i}].annotations[{annotation}]"), why.as_str());
            }
        }
    }
    found
}

fn expressions(whitelist: &str, object: &Value) -> Result<Vec<regex::Regex>, Invalid> {
    let whitelist: Whitelist = serde_json::from_str(whitelist).map_err(|error| Invalid(error.to_string()))?;
    let labels = object.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    let labels: Labels = serde_json::from_value(labels).unwrap_or_default();
    let mut expressions = Vec::new();
    for rule in &whitelist.rules {
        if let Some(selector) = &rule.selector
            && !Selector::of(selector)?.matches(&labels)
        {
            continue;
        }
        for text in &rule.allowed_annotation_key_exprs {
            expressions.push(regex::Regex::new(text).map_err(|error| Invalid(error.to_string()))?);
        }
    }
    Ok(expressions)
}

/// The paths of a SidecarSet in the place of those of the workload that was judged for it.
pub(super) fn judge_template(
    workload: (&Value, Option<&Value>),
    answers: &template::Answers,
) -> Result<Findings, crate::webhook::server::review::Denied> {
    let mut found = Findings::default();
    let templates = Templates { object: workload.0, old: workload.1, defaults: false, in_place_only: None };
    templates.judge(answers, &mut Object::new(), &mut found)?;
    let own = |text: &str| text.replace("spec.template.spec.", "spec.").replace("spec.template", "spec");
    for cause in &mut found.causes {
        cause.field = own(&cause.field);
    }
    found.warnings.iter_mut().for_each(|warning| *warning = own(warning));
    Ok(found)
}
