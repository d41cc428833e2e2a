//! What Pods of a DaemonSet tolerate, besides what their template says. On which nodes they run follows by
//! [`crate::domain::pod::placement`].

use serde_json::{Value, json};

use crate::{
    domain::pod::placement::Placement,
    k8s::node::{NodeView, Taint},
};

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// What every Pod of a DaemonSet tolerates, in the order in which it is written: key and effect.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
];
/// And with the network of the host.
const TOLERATED_ON_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);
/// Keys of the taints that a node has while it is not Ready. Those with effect NoSchedule are not tolerated, as in the
/// built-in DaemonSet.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// On which nodes Pods of a template run.
pub fn placement(template: &Value) -> Placement {
    Placement::of(template, &tolerations(template.get("spec").unwrap_or(&Value::Null)))
}

/// Whether a node would get a Pod without the taints that it has because it is not Ready.
pub fn would_run(placement: &Placement, node: &NodeView) -> bool {
    let is_of_state = |taint: &&Taint| taint.effect == NO_SCHEDULE && NOT_READY.contains(&&*taint.key);
    let others: Vec<Taint> = node.taints.iter().filter(|taint| !is_of_state(taint)).cloned().collect();
    others.len() < node.taints.len() && placement.fit(node.name(), &node.labels, &others).should_run
}

/// The tolerations of a Pod: those of the template's spec, and those that every Pod of a DaemonSet has.
pub fn tolerations(spec: &Value) -> Value {
    let mut all = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let on_host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    let more = TOLERATED.into_iter().chain(on_host_network.then_some(TOLERATED_ON_HOST_NETWORK));
    for (key, effect) in more {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        if !all.contains(&toleration) {
            all.push(toleration);
        }
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::pod::placement::Fit, k8s::pod::Labels};

    fn fit(spec: Value, taints: &[&str]) -> (bool, bool) {
        let taint = |text: &&str| {
            let (key, rest) = text.split_once('=').unwrap();
            let (value, effect) = rest.split_once(':').unwrap();
            Taint { key: key.into(), value: value.into(), effect: effect.into() }
        };
        let taints: Vec<Taint> = taints.iter().map(taint).collect();
        let Fit { should_run, should_continue } =
            placement(&json!({ "spec": spec })).fit("n", &Labels::default(), &taints);
        (should_run, should_continue)
    }
    const YES: (bool, bool) = (true, true);
    const STAYS: (bool, bool) = (false, true);
    const NO: (bool, bool) = (false, false);

    #[test]
    fn edge_42_cordoned_and_not_ready_nodes_keep_their_pods_and_those_without_a_noschedule_taint_receive_some() {
        for taint in [
            "node.kubernetes.io/unschedulable=:NoSchedule",
            "node.kubernetes.io/not-ready=:NoExecute",
            "node.kubernetes.io/unreachable=:NoExecute",
            "node.kubernetes.io/disk-pressure=:NoSchedule",
        ] {
            assert_eq!(fit(json!({}), &[taint]), YES, "{taint}");
        }
        for key in NOT_READY {
            let taints = [format!("{key}=:NoSchedule"), format!("{key}=:NoExecute")];
            let of_node_controller = [taints[0].as_str(), taints[1].as_str()];
            assert_eq!(fit(json!({}), &of_node_controller), STAYS, "{key}: as in the built-in DaemonSet");
            let tolerating = json!({"tolerations": [{"key": key, "operator": "Exists"}]});
            assert_eq!(fit(tolerating, &of_node_controller), YES, "{key}");
        }
        assert_eq!(fit(json!({}), &["dedicated=db:NoSchedule"]), STAYS, "it blocks new Pods and no running one");
        assert_eq!(fit(json!({}), &["dedicated=db:NoExecute"]), NO);
        assert_eq!(fit(json!({}), &["dedicated=db:PreferNoSchedule"]), YES);
        let network = "node.kubernetes.io/network-unavailable=:NoSchedule";
        assert_eq!(fit(json!({}), &[network]), STAYS);
        assert_eq!(fit(json!({"hostNetwork": true}), &[network]), YES);
    }

    #[test]
    fn an_equal_toleration_is_not_written_twice() {
        let own = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"});
        let all = tolerations(&json!({"tolerations": [own, {"key": "mine", "operator": "Exists"}]}));
        let keys: Vec<&str> = all.as_array().unwrap().iter().map(|t| t["key"].as_str().unwrap()).collect();
        assert_eq!(keys[..2], ["node.kubernetes.io/not-ready", "mine"]);
        assert_eq!((keys.len(), keys.iter().filter(|key| key.ends_with("not-ready")).count()), (7, 1));
        assert_eq!(tolerations(&json!({"hostNetwork": true})).as_array().unwrap().len(), 7);
    }
}
