//! The roles that run: Deployments, the leader, the daemon on each node, versions.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::{Fact, Finding, Lack, Verdict, finding, ok, unknown};
use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels,
    },
    plugin::rules::JsonPointer,
};

/// Nodes that are named; more help nobody.
const MOST_NODES: usize = 10;

/// One Deployment of the installation.
pub fn deployment(name: &str, check: &'static str, object: &Fact) -> Finding {
    let object = match object {
        Ok(object) => object,
        Err(Lack::NotFound) => {
            let text = format!("Deployment {name} does not exist");
            return finding(
                check,
                Verdict::Fail,
                text,
                "apply the manifests of this release: kubectl apply -k manifests/",
            );
        }
        Err(lack) => return unknown(check, &format!("Deployment {name}"), lack),
    };
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let ready = object.int("/status/readyReplicas");
    let text = format!("{ready} of {wanted} replicas are ready");
    let advice = format!("kubectl -n kruise-system describe deployment {name}");
    if ready == 0 {
        finding(check, Verdict::Fail, text, advice)
    } else if ready < wanted {
        finding(check, Verdict::Warn, text, advice)
    } else {
        ok(check, text)
    }
}

/// The leader of the managers. The times in a Lease are another machine's clock; what counts is that it changes.
pub fn lease(first: &Fact, last: &Fact, watched: Duration) -> Finding {
    const CHECK: &str = "leader";
    let (first, last) = match (first, last) {
        (Ok(first), Ok(last)) => (first, last),
        (Err(Lack::NotFound), _) | (_, Err(Lack::NotFound)) => {
            return finding(
                CHECK,
                Verdict::Fail,
                "the Lease does not exist",
                "apply the manifests of this release: kubectl apply -k manifests/",
            );
        }
        (Err(lack), _) | (_, Err(lack)) => return unknown(CHECK, "the Lease kruise-manager", lack),
    };
    let advice = "kubectl -n kruise-system logs -l control-plane=controller-manager";
    let holder = last.text("/spec/holderIdentity");
    if holder.is_empty() {
        return finding(
            CHECK,
            Verdict::Fail,
            "no manager holds the Lease: deadlines, NotReady keys and TTLs wait",
            advice,
        );
    }
    if first.pointer("/spec/renewTime") == last.pointer("/spec/renewTime") {
        let text = format!("{holder} holds the Lease and has not renewed it in {} s", watched.as_secs());
        return finding(CHECK, Verdict::Fail, text, advice);
    }
    ok(CHECK, holder)
}

/// The check of the daemons.
const DAEMON: &str = "daemon";
const ABOUT_DAEMONS: &str = "kubectl -n kruise-system describe daemonset kruise-daemon";

/// The daemon on every Linux node, and the runtime that it has to reach to be ready.
pub fn daemons(nodes: &Fact, pods: &Fact, daemon_set: &Fact, gates: &FeatureGates) -> Vec<Finding> {
    if !gates.enabled(gate::KRUISE_DAEMON) {
        let text = "the feature gate KruiseDaemon is off: only requests of method PodSpec work";
        return vec![finding(DAEMON, Verdict::Warn, text, "")];
    }
    if let Err(Lack::NotFound) = daemon_set {
        let advice = "apply the manifests of this release: kubectl apply -k manifests/overlays/RUNTIME";
        return vec![finding(DAEMON, Verdict::Fail, "DaemonSet kruise-daemon does not exist", advice)];
    }
    let (Ok(nodes), Ok(pods)) = (nodes, pods) else { return vec![daemons_by_number(daemon_set)] };
    let label = |node: &Value, key: &str| node["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
    let mine = |node: &&Value| {
        label(node, "kubernetes.io/os") == "linux"
            && label(node, labels::NODE_TYPE) != labels::NODE_TYPE_VIRTUAL_KUBELET
    };
    let linux: Vec<&Value> = nodes.list("/items").iter().filter(mine).collect();
    let mut bad = Vec::new();
    let mut runtimes = BTreeSet::new();
    for node in &linux {
        match problem_on(node, pods) {
            Some(problem) => bad.push(problem),
            None => drop(runtimes.insert(node.text("/status/nodeInfo/containerRuntimeVersion").to_owned())),
        }
    }
    let good = linux.len() - bad.len();
    let more = bad.len().saturating_sub(MOST_NODES);
    bad.truncate(MOST_NODES);
    if more > 0 {
        bad.push(finding(DAEMON, Verdict::Fail, format!("{more} more nodes are like that"), ""));
    }
    if good > 0 || bad.is_empty() {
        bad.insert(0, ok(DAEMON, format!("ready on {good} of {} Linux nodes", linux.len())));
    }
    if !runtimes.is_empty() {
        let names = runtimes.into_iter().collect::<Vec<_>>().join(", ");
        bad.push(ok("runtime socket", format!("every daemon that is ready has reached its runtime: {names}")));
    }
    bad
}

/// The daemons as their DaemonSet counts them, for users who may not read Nodes or Pods.
fn daemons_by_number(daemon_set: &Fact) -> Finding {
    let set = match daemon_set {
        Ok(set) => set,
        Err(lack) => return unknown(DAEMON, "DaemonSet kruise-daemon", lack),
    };
    let (ready, wanted) = (set.int("/status/numberReady"), set.int("/status/desiredNumberScheduled"));
    let text = format!("ready on {ready} of {wanted} nodes (not permitted to look at each)");
    if ready < wanted { finding(DAEMON, Verdict::Fail, text, ABOUT_DAEMONS) } else { ok(DAEMON, text) }
}

/// Why a node has no daemon that is ready. None: it has one.
fn problem_on(node: &Value, pods: &Value) -> Option<Finding> {
    let name = node.text("/metadata/name");
    let is_here =
        |pod: &&Value| pod.text("/spec/nodeName") == name && pod.pointer("/metadata/deletionTimestamp").is_none();
    match pods.list("/items").iter().find(is_here) {
        None => {
            let text = format!("{name}: no daemon runs there; requests for its Pods are not carried out");
            Some(finding(DAEMON, Verdict::Fail, text, ABOUT_DAEMONS))
        }
        Some(pod) if !is_ready(pod) => {
            let advice = format!("kubectl -n kruise-system logs {}", pod.text("/metadata/name"));
            Some(finding(DAEMON, Verdict::Fail, format!("{name}: {}", why_not_ready(pod)), advice))
        }
        Some(_) => None,
    }
}

fn is_ready(pod: &Value) -> bool {
    pod.true_condition("Ready").is_some()
}

/// A Pod of the daemon is ready when it has reached the container runtime.
fn why_not_ready(pod: &Value) -> String {
    let waiting = pod.list("/status/containerStatuses").iter().find_map(|s| s.pointer("/state/waiting"));
    match waiting {
        Some(waiting) => {
            format!("{}: {}", waiting.text("/reason"), waiting.text("/message")).trim_end_matches(": ").into()
        }
        None => "the daemon is not ready: it does not reach the container runtime's socket, or still starts".into(),
    }
}

/// Every role should run the same image. `own` is the version of this program.
pub fn versions(pods: &Fact, own: &str) -> Finding {
    const CHECK: &str = "versions";
    let pods = match pods {
        Ok(pods) => pods.list("/items"),
        Err(lack) => return unknown(CHECK, "the Pods of the installation", lack),
    };
    let mut seen = BTreeSet::new();
    let mut image_ids = BTreeSet::new();
    for pod in pods {
        let role = pod["metadata"]["labels"][labels::CONTROL_PLANE].as_str().unwrap_or_default();
        if role.is_empty() || pod.pointer("/metadata/deletionTimestamp").is_some() {
            continue;
        }
        for container in pod.list("/spec/containers") {
            seen.insert((tag(container.text("/image")).to_owned(), role.to_owned()));
        }
        image_ids.extend(pod.list("/status/containerStatuses").iter().map(|s| s.text("/imageID").to_owned()));
    }
    image_ids.remove("");
    let tags: BTreeSet<&str> = seen.iter().map(|(tag, _)| tag.as_str()).collect();
    let advice = "apply the manifests of one release, then kubectl -n kruise-system rollout status";
    match tags.into_iter().collect::<Vec<_>>().as_slice() {
        [] => finding(
            CHECK,
            Verdict::Fail,
            "no Pod of kruise-rs runs",
            "apply the manifests of this release: kubectl apply -k manifests/",
        ),
        [tag] if image_ids.len() > 1 => {
            finding(CHECK, Verdict::Warn, format!("all roles run {tag}, but not the same image behind it"), advice)
        }
        [tag] if tag.trim_start_matches('v') == own => ok(CHECK, format!("all roles and this command are {own}")),
        [tag] => {
            let text = format!("all roles run {tag}, this command is {own}");
            finding(CHECK, Verdict::Warn, text, "use the plugin of the installed release")
        }
        _ => {
            let list: Vec<String> = seen.iter().map(|(tag, role)| format!("{role} {tag}")).collect();
            finding(CHECK, Verdict::Warn, format!("roles differ: {}", list.join(", ")), advice)
        }
    }
}

/// The tag of an image reference, or what stands in its place. The manifests of a release have tag and digest.
fn tag(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    let (name, digest) = last.split_once('@').map_or((last, None), |(name, digest)| (name, Some(digest)));
    name.split_once(':').map(|(_, tag)| tag).or(digest).unwrap_or(image)
}
