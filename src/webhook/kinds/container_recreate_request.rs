//! Admission of ContainerRecreateRequests.
//!
//! [`check`] judges the request alone, [`check_pod`] the Pod it names, [`admit`] both together; each is pure. Between
//! them [`handle`] reads the Pod and its Node from the API server: a cached Pod could name an instance that is long
//! gone, and the request would silently do nothing.
//!
//! The method is resolved here, once ([`method`]): what the manager serves gets a label of its own and never the label
//! `active`; the spec keeps what the user wrote.
//!
//! On UPDATE nothing is judged: the schema's CEL keeps the spec as it is and an admission policy guards our labels, so that
//! removing a finalizer always passes. What an apply leaves out is written again ([`restore_noted`]).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::{
    Api,
    api::{GetParams, ListParams},
};
use serde_json::{Map, Value, json};

use crate::{
    api::{
        crr::{MAX_CONTAINERS, RecreateMethod, zero_is_absence},
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::{budgets::unavailable::Operation, node::recreate::spelling::Spellings},
    k8s::{
        name::{Namespace, ObjectName},
        node::NodeView,
        path,
        pod::PodObject,
        rbac::Rule,
    },
    runtime::{apply::said, clock},
    webhook::{
        Context,
        server::{
            consent::consent,
            review::{Admitted, Decision, Denied, Request},
        },
    },
};

mod method;
mod pod;

pub use pod::PodFacts;
use pod::{Listed, judge_restart_policy};

/// The reads of one call take no longer than this, so that the answer comes before the API server gives up.
const READ_BUDGET: Duration = Duration::from_secs(7);

/// A request whose own fields are in order.
#[derive(Clone, Debug, PartialEq)]
pub struct CrrAdmission {
    object: Map<String, Value>,
    /// Namespace of the request and of its Pod.
    pub namespace: Namespace,
    /// The Pod it names.
    pub pod_name: ObjectName,
    containers: Vec<String>,
    force: bool,
    method: RecreateMethod,
    vary_image_tag: bool,
    /// Whether there are daemons at all.
    has_daemons: bool,
    grace_seconds: Option<i64>,
    unready_grace_seconds: Option<i64>,
    min_started_seconds: i64,
    deadline_seconds: Option<i64>,
}

/// What admission knows besides the request and its Pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Whether the Pod's Node is a virtual one.
    pub node_is_virtual: bool,
    /// Whether its kubelet has not reported for some time.
    pub kubelet_is_silent: bool,
    /// The minor version of its kubelet, if it is known.
    pub kubelet_minor: Option<u32>,
    /// Whether a daemon is ready on the Node; None if nobody asked.
    pub daemon_is_ready: Option<bool>,
    /// Now.
    pub now: Timestamp,
}

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[Rule::new(&[""], &["pods", "nodes"], &["get"])];
/// Whether a daemon is ready on a node, for requests of method Auto.
pub const OWN_NAMESPACE_RBAC: &[Rule] = &[Rule::new(&[""], &["pods"], &["list"])];

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        let dry_run = request.dry_run;
        let admission = check(&context.gates, request)?;
        tokio::time::timeout(READ_BUDGET, read_and_admit(&context, admission, dry_run)).await.unwrap_or_else(|_| {
            Err(Denied::internal(format!(
                "the Pod and its Node could not be read from the API server within {} s; try again",
                READ_BUDGET.as_secs()
            )))
        })
    })
}

/// Answers the API server for an update.
pub fn handle_update(_: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "UPDATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        Ok(restore_noted(&request.object, &request.old_object))
    })
}

async fn read_and_admit(context: &Context, admission: CrrAdmission, dry_run: bool) -> Decision {
    let CrrAdmission { namespace, pod_name, .. } = &admission;
    let read = |error: &dyn std::fmt::Display| {
        Denied::internal(format!("spec.podName: Pod {namespace}/{pod_name} could not be read: {error}"))
    };
    let request = kube::core::Request::new(path::pods(namespace))
        .get(pod_name, &GetParams::default())
        .map_err(|error| read(&error))?;
    let pod: PodFacts = match context.client.request(request).await {
        Ok(pod) => pod,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return Err(Denied::bad_request(format!(
                "spec.podName: {pod_name:?} is no Pod in namespace {namespace:?}; name a Pod in the namespace of the request"
            )));
        }
        Err(error) => return Err(read(&said(&error))),
    };
    let node_name = check_pod(&admission, &pod)?;
    let node = match Api::<NodeView>::all(context.client.clone()).get_opt(node_name).await {
        Ok(Some(node)) => node,
        Ok(None) => {
            return Err(Denied::bad_request(format!(
                "spec.podName: Pod {pod_name:?} is bound to Node {node_name:?}, which does not exist; nobody there can restart a container"
            )));
        }
        Err(error) => {
            return Err(Denied::internal(format!("Node {node_name:?} could not be read: {}", said(&error))));
        }
    };
    let is_virtual = node.is_virtual();
    let daemon_is_ready = match admission.method {
        RecreateMethod::Auto if admission.has_daemons && !is_virtual => daemon_is_ready(context, node_name).await,
        _ => None,
    };
    let situation = Situation {
        node_is_virtual: is_virtual,
        kubelet_is_silent: node.is_silent,
        kubelet_minor: node.kubelet_minor,
        daemon_is_ready,
        now: clock::now().wall,
    };
    let admitted = admit(&admission, &pod, situation)?;
    // Last, when nothing else stands in the way: a consent is written down.
    consent(context, &pod.view, Operation::Restart, dry_run).await?;
    Ok(admitted)
}

/// Whether a daemon Pod of ours on a Node is ready; None if that cannot be read.
async fn daemon_is_ready(context: &Context, node: &str) -> Option<bool> {
    let pods: Api<PodObject> = Api::namespaced(context.client.clone(), &context.namespace);
    match pods.list(&daemons_on(node)).await {
        Ok(list) => Some(list.items.iter().any(|pod| !pod.view.is_deleting() && pod.view.condition_is_true("Ready"))),
        Err(error) => {
            tracing::warn!(%error, node, "the daemon's Pods cannot be read, one is taken to be ready");
            None
        }
    }
}

/// The daemons of a Node, from the API server's memory, which knows Pods by their Nodes: from etcd it would read our whole
/// namespace, a Pod of each Node of the cluster, for every request.
fn daemons_on(node: &str) -> ListParams {
    ListParams::default().labels(labels::DAEMON_SELECTOR).fields(&format!("spec.nodeName={node}")).match_any()
}

/// Judges what needs no look-up.
///
/// # Errors
/// The first rule that the request breaks.
pub fn check(gates: &FeatureGates, request: Request) -> Result<CrrAdmission, Denied> {
    let has_daemons = gates.enabled(gate::KRUISE_DAEMON);
    let Request { object, namespace, .. } = request;
    let wanted = object.pointer("/spec/strategy/recreateMethod").and_then(Value::as_str).unwrap_or_default();
    if !has_daemons && !["PodSpec", "Auto"].contains(&wanted) {
        return Err(Denied::forbidden(format!(
            "ContainerRecreateRequests of method Runtime need the feature gate {}, which is off in this cluster; set spec.strategy.recreateMethod to PodSpec or Auto",
            gate::KRUISE_DAEMON
        )));
    }
    let object = match object {
        Value::Object(object) => object,
        other => return Err(wrong_type("the object", &other, "a ContainerRecreateRequest")),
    };
    let spec = match object.get("spec") {
        Some(Value::Object(spec)) => spec,
        other => return Err(wrong_type("spec", other.unwrap_or(&Value::Null), "an object")),
    };
    let pod_name = text(spec, "spec.", "podName")?;
    if pod_name.is_empty() {
        return Err(Denied::bad_request("spec.podName must not be empty: name a Pod in the namespace of the request"));
    }
    let pod_name =
        ObjectName::parse(&pod_name).map_err(|error| Denied::bad_request(format!("spec.podName: {error}")))?;
    let containers = listed_containers(spec)?;
    let deadline_seconds = integer(spec, "spec.", "activeDeadlineSeconds", i64::MAX)?;
    at_least("spec.activeDeadlineSeconds", deadline_seconds, 3)?;
    let empty = Map::new();
    let strategy = match spec.get("strategy") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(strategy)) => strategy,
        Some(other) => return Err(wrong_type("spec.strategy", other, "an object")),
    };
    const IN: &str = "spec.strategy.";
    let grace_seconds = integer(strategy, IN, "terminationGracePeriodSeconds", i64::MAX)?;
    at_least("spec.strategy.terminationGracePeriodSeconds", grace_seconds, 0)?;
    let unready_grace_seconds = integer(strategy, IN, "unreadyGracePeriodSeconds", i64::MAX)?;
    at_least("spec.strategy.unreadyGracePeriodSeconds", unready_grace_seconds, 0)?;
    let failure_policy = text(strategy, IN, "failurePolicy")?;
    if !["", "Fail", "Ignore"].contains(&failure_policy.as_str()) {
        return Err(Denied::bad_request(format!(
            "spec.strategy.failurePolicy: {failure_policy:?} is not known; want Fail or Ignore"
        )));
    }
    let min_started_seconds = integer(strategy, IN, "minStartedSeconds", i32::MAX.into())?;
    at_least("spec.strategy.minStartedSeconds", min_started_seconds, 0)?;
    let ttl = integer(spec, "spec.", "ttlSecondsAfterFinished", i32::MAX.into())?;
    at_least("spec.ttlSecondsAfterFinished", ttl, 0)?;
    boolean(strategy, IN, "orderedRecreate")?;
    let force = boolean(strategy, IN, "forceRecreate")?;
    let method = match text(strategy, IN, "recreateMethod")?.as_str() {
        "" | "Runtime" => RecreateMethod::Runtime,
        "PodSpec" => RecreateMethod::PodSpec,
        "Auto" => RecreateMethod::Auto,
        other => {
            return Err(Denied::bad_request(format!(
                "spec.strategy.recreateMethod: {other:?} is not known; want Runtime, PodSpec or Auto"
            )));
        }
    };
    let vary_image_tag = boolean(strategy, IN, "varyImageTag")?;
    Ok(CrrAdmission {
        namespace,
        pod_name,
        containers,
        force,
        method,
        vary_image_tag,
        has_daemons,
        grace_seconds,
        unready_grace_seconds,
        min_started_seconds: min_started_seconds.unwrap_or_default(),
        deadline_seconds,
        object,
    })
}

fn listed_containers(spec: &Map<String, Value>) -> Result<Vec<String>, Denied> {
    let list = match spec.get("containers") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong_type("spec.containers", other, "a list")),
    };
    if list.is_empty() {
        return Err(Denied::bad_request("spec.containers must not be empty: list the containers to restart"));
    }
    if list.len() > MAX_CONTAINERS {
        return Err(Denied::bad_request(format!(
            "spec.containers lists {} containers; at most {MAX_CONTAINERS} are allowed",
            list.len()
        )));
    }
    let mut seen = BTreeSet::new();
    let mut names = Vec::with_capacity(list.len());
    for (i, entry) in list.iter().enumerate() {
        let at = format!("spec.containers[{i}]");
        let entry = entry.as_object().ok_or_else(|| wrong_type(&at, entry, "an object"))?;
        let name = text(entry, &format!("{at}."), "name")?;
        if name.is_empty() {
            return Err(Denied::bad_request(format!("{at}.name must not be empty: name a container of the Pod")));
        }
        if !seen.insert(name.clone()) {
            return Err(Denied::bad_request(format!("{at}.name: {name:?} is listed twice; list each container once")));
        }
        for field in NOTED {
            if is_noted(entry, field) {
                return Err(Denied::bad_request(format!(
                    "{at}.{field} is read-only: it is copied from the Pod when the request is admitted; leave it out"
                )));
            }
        }
        names.push(name);
    }
    Ok(names)
}

/// What admission notes of each container.
const NOTED: [&str; 3] = ["preStop", "ports", "statusContext"];

fn is_noted(entry: &Map<String, Value>, field: &str) -> bool {
    match entry.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::Array(ports)) => !ports.is_empty(),
        Some(_) => true,
    }
}

/// Makes a repeated apply change nothing. It replaces the list of containers, in which admission has noted what ran, by the names
/// that its author wrote: what was noted is put back, and zeros that were not stored are left out again. An entry that sets a noted
/// field itself stays as it is, and the schema refuses it.
pub fn restore_noted(object: &Value, old_object: &Value) -> Admitted {
    let (Some(new), Some(old)) = (object["spec"].as_object(), old_object["spec"].as_object()) else {
        return Admitted::unchanged();
    };
    let mut spec = new.clone();
    leave_out_new_zeros(&mut spec, old);
    if let (Some(strategy), Some(before)) =
        (spec.get_mut("strategy").and_then(Value::as_object_mut), old.get("strategy").and_then(Value::as_object))
    {
        leave_out_new_zeros(strategy, before);
    }
    let entries = spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
    let before = old.get("containers").and_then(Value::as_array).into_iter().flatten();
    for (entry, before) in entries.zip(before) {
        let (Some(entry), Some(before)) = (entry.as_object_mut(), before.as_object()) else { continue };
        if entry.get("name") != before.get("name") || NOTED.iter().any(|field| is_noted(entry, field)) {
            continue;
        }
        leave_out_new_zeros(entry, before);
        entry.extend(NOTED.iter().filter_map(|field| Some(((*field).to_owned(), before.get(*field)?.clone()))));
    }
    let mut wanted = object.clone();
    wanted["spec"] = spec.into();
    Admitted::changed(object, &wanted)
}

/// Leaves out zeros where the object had nothing.
fn leave_out_new_zeros(object: &mut Map<String, Value>, old: &Map<String, Value>) {
    let mut without = object.clone();
    leave_out_zeros(&mut without);
    object.retain(|key, _| without.contains_key(key) || old.contains_key(key));
}

/// Judges whether anything in the Pod can be restarted at all; gives the name of its Node.
///
/// # Errors
/// The Pod is over, is being deleted or is not bound to a Node.
pub fn check_pod<'p>(admission: &CrrAdmission, pod: &'p PodFacts) -> Result<&'p str, Denied> {
    let name = &admission.pod_name;
    if !pod.sidecars_are_being_ended() {
        if pod.metadata.deletion_timestamp.is_some() {
            return Err(Denied::bad_request(format!(
                "spec.podName: Pod {name:?} (phase {}) is being deleted; only containers of a Pod that stays can be restarted",
                pod.phase()
            )));
        }
        if ["Succeeded", "Failed"].contains(&pod.phase()) {
            return Err(Denied::bad_request(format!(
                "spec.podName: Pod {name:?} has finished (phase {}); only containers of a Pod in phase Pending or Running can be restarted",
                pod.phase()
            )));
        }
    }
    if pod.spec.node_name.is_empty() {
        return Err(Denied::bad_request(format!(
            "spec.podName: Pod {name:?} (phase {}) is not bound to a Node yet; wait until it is scheduled",
            pod.phase()
        )));
    }
    Ok(&pod.spec.node_name)
}

/// Judges each listed container and fills in what the daemon needs to know.
///
/// # Errors
/// A listed container cannot be restarted by a request.
pub fn admit(admission: &CrrAdmission, pod: &PodFacts, situation: Situation) -> Decision {
    let CrrAdmission { object, pod_name, containers, .. } = admission;
    let found = containers
        .iter()
        .enumerate()
        .map(|(i, name)| Listed::find(format!("spec.containers[{i}].name: {name:?}"), name, pod_name, pod))
        .collect::<Result<Vec<_>, _>>()?;
    let (method, mut warnings) = method::resolve(admission, pod, &found, situation)?;
    if situation.kubelet_is_silent && !situation.node_is_virtual && method == method::Method::Runtime {
        warnings.push(format!(
            "spec.podName: the kubelet of Node {:?} has not reported for some time: a container that is stopped there stays down until kubelet runs again",
            pod.spec.node_name
        ));
    }
    let mut metadata = map_at(object, "metadata");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(labels::CRR_UNREADY_ACQUIRED).is_some()
    {
        warnings.push(format!(
            "metadata.annotations: {} is written by the controller and was left out",
            labels::CRR_UNREADY_ACQUIRED
        ));
    }
    let mut own_labels = map_at(&metadata, "labels");
    write_labels(&mut own_labels, pod, method, situation);
    metadata.insert("labels".into(), own_labels.into());

    let grace_seconds = admission.grace_seconds.or(pod.spec.termination_grace_period_seconds);
    let mut spec = map_at(object, "spec");
    let mut strategy = map_at(&spec, "strategy");
    leave_out_zeros(&mut spec);
    leave_out_zeros(&mut strategy);
    if !strategy.contains_key("failurePolicy") {
        strategy.insert("failurePolicy".into(), json!("Fail"));
    }
    if let Some(grace) = grace_seconds {
        strategy.insert("terminationGracePeriodSeconds".into(), json!(grace));
    }
    spec.insert("strategy".into(), strategy.into());
    let entries = spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
    for (entry, listed) in entries.zip(&found) {
        let Some(entry) = entry.as_object_mut() else { continue };
        leave_out_zeros(entry);
        write_container(entry, listed, pod, method);
    }

    let mut wanted = object.clone();
    wanted.insert("metadata".into(), metadata.into());
    wanted.insert("spec".into(), spec.into());
    warnings.extend(timing_warnings(admission, pod, grace_seconds));
    Ok(Admitted { warnings, ..Admitted::changed(&object.clone().into(), &wanted.into()) })
}

/// Labels that say who serves the request; whatever the user wrote there is not heeded.
fn write_labels(own: &mut Map<String, Value>, pod: &PodFacts, method: method::Method, situation: Situation) {
    own.insert(labels::CRR_POD_UID.into(), json!(pod.metadata.uid));
    own.insert(labels::CRR_NODE_NAME.into(), json!(pod.spec.node_name));
    own.remove(labels::CRR_ACTIVE);
    own.remove(labels::CRR_METHOD);
    match method {
        method::Method::Runtime => own.insert(labels::CRR_ACTIVE.into(), json!("true")),
        method::Method::PodSpec => own.insert(labels::CRR_METHOD.into(), json!(labels::CRR_METHOD_POD_SPEC)),
    };
    if situation.node_is_virtual {
        own.insert(labels::NODE_TYPE.into(), json!(labels::NODE_TYPE_VIRTUAL_KUBELET));
    } else if own.get(labels::NODE_TYPE).is_some_and(|value| value == labels::NODE_TYPE_VIRTUAL_KUBELET) {
        // It says that no daemon is to be expected; other values of so common a key mean nothing to us.
        own.remove(labels::NODE_TYPE);
    }
}

/// What the request says of a listed container: its hook, ports and current instance.
fn write_container(entry: &mut Map<String, Value>, listed: &Listed<'_>, pod: &PodFacts, method: method::Method) {
    let Listed { container, status, .. } = listed;
    let by_manager = method == method::Method::PodSpec;
    // Under method PodSpec kubelet runs the hook itself.
    if let Some(hook) = container.lifecycle.pre_stop.as_ref().filter(|_| !by_manager) {
        entry.insert("preStop".into(), hook.clone());
        if hook.get("httpGet").is_some() && container.ports.as_array().is_some_and(|ports| !ports.is_empty()) {
            entry.insert("ports".into(), container.ports.clone());
        }
    }
    let mut context = json!({ "containerID": status.container_id, "restartCount": status.restart_count });
    if by_manager {
        context["image"] = json!(pod.view.container(&container.name).map_or("", |c| &*c.image));
    }
    entry.insert("statusContext".into(), context);
}

/// Grace that has no effect, and a deadline that leaves no time.
fn timing_warnings(admission: &CrrAdmission, pod: &PodFacts, grace_seconds: Option<i64>) -> Vec<String> {
    let CrrAdmission { pod_name, unready_grace_seconds, min_started_seconds, deadline_seconds, .. } = admission;
    let mut warnings = Vec::new();
    if unready_grace_seconds.is_some() && !pod.has_kruise_gate() {
        warnings.push(format!(
            "spec.strategy.unreadyGracePeriodSeconds: Pod {pod_name:?} does not list the readiness gate {}, so it stays Ready and traffic is not drained before the restart",
            labels::CONDITION_KRUISE_POD_READY
        ));
    }
    let needed = unready_grace_seconds
        .unwrap_or_default()
        .saturating_add(*min_started_seconds)
        .saturating_add(grace_seconds.unwrap_or_default());
    if let Some(deadline) = deadline_seconds
        && *deadline <= needed
    {
        warnings.push(format!(
            "spec.activeDeadlineSeconds: {deadline} is not more than unreadyGracePeriodSeconds + terminationGracePeriodSeconds + minStartedSeconds ({needed}), so the request may end before its containers are back"
        ));
    }
    warnings
}

/// Removes empty values: Go clients leave them out of updates, which would look like a change of the spec. They leave out
/// fields that OpenKruise's types lack as well, which the schema allows only once the request has ended.
fn leave_out_zeros(object: &mut Map<String, Value>) {
    object.retain(|key, value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0) || !zero_is_absence(key),
        _ => true,
    });
}

/// A member that is an object, or an empty one.
fn map_at(object: &Map<String, Value>, key: &str) -> Map<String, Value> {
    object.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}

// Mutating admission comes before the schema is checked, so every type has to be.

fn text(object: &Map<String, Value>, at: &str, field: &str) -> Result<String, Denied> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(wrong_type(&format!("{at}{field}"), other, "text")),
    }
}

fn boolean(object: &Map<String, Value>, at: &str, field: &str) -> Result<bool, Denied> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(wrong_type(&format!("{at}{field}"), other, "true or false")),
    }
}

fn integer(object: &Map<String, Value>, at: &str, field: &str, max: i64) -> Result<Option<i64>, Denied> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_i64() {
            Some(number) if number <= max => Ok(Some(number)),
            _ => Err(wrong_type(&format!("{at}{field}"), value, &format!("a whole number up to {max}"))),
        },
    }
}

fn at_least(field: &str, value: Option<i64>, least: i64) -> Result<(), Denied> {
    match value {
        Some(value) if value < least => {
            Err(Denied::bad_request(format!("{field}: {value} is not allowed; want {least} or more")))
        }
        _ => Ok(()),
    }
}

fn wrong_type(field: &str, value: &Value, want: &str) -> Denied {
    let shown: String = value.to_string().chars().take(80).collect();
    Denied::bad_request(format!("{field}: {shown} is not allowed; want {want}"))
}

#[cfg(test)]
mod tests;
