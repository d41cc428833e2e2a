//! The component `network-policy`: who may dial manager and webhook.
//!
//! Where API servers, nodes and Prometheus are differs from cluster to cluster, and a default would be either a hole or an
//! outage. So each address is a placeholder that is no CIDR: the API server refuses the policy, by the placeholder's name,
//! until it is set.

use serde_json::{Value, json};

use super::metadata;
use crate::{api::labels, pull_secrets};

const API_SERVERS: &str = "SET-CIDR-OF-API-SERVERS";
const NODES: &str = "SET-CIDR-OF-NODES";
const PROMETHEUS: &str = "SET-CIDR-OF-PROMETHEUS";

/// Ports of manager and webhook, each with whom it is for. Those of a role differ by their place.
pub(super) fn objects() -> Vec<Value> {
    let from =
        |cidr: &str, port: u16| json!({ "from": [{ "ipBlock": { "cidr": cidr } }], "ports": [{ "port": port }] });
    let policy = |name: &str, control_plane: &str, own: Value| {
        json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(name, true), "spec": {
            "podSelector": { "matchLabels": { labels::CONTROL_PLANE: control_plane } },
            "policyTypes": ["Ingress"],
            "ingress": [own, from(NODES, 8000), from(PROMETHEUS, 8080)],
        } })
    };
    vec![
        policy("kruise-webhook", "webhook", from(API_SERVERS, 9876)),
        // Daemons stand on the network of their node.
        policy("kruise-manager", "controller-manager", from(NODES, pull_secrets::PORT)),
    ]
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr};

    use super::*;
    use crate::manifests::base;

    fn ports<'v>(of: impl Iterator<Item = &'v Value>, key: &str) -> BTreeSet<u64> {
        of.filter_map(|port| port[key].as_u64()).collect()
    }

    #[test]
    fn every_port_of_a_deployment_is_for_somebody_and_no_address_has_a_default() {
        let installed: Vec<Value> = base().into_iter().flat_map(|(_, objects)| objects).collect();
        for policy in objects() {
            let selected = &policy["spec"]["podSelector"]["matchLabels"];
            let mut deployments = installed.iter().filter(|object| object["kind"] == "Deployment");
            let deployment = deployments.find(|d| d["spec"]["selector"]["matchLabels"] == *selected).unwrap();
            let listens = deployment["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap().iter();
            let rules = policy["spec"]["ingress"].as_array().unwrap();
            let admitted = rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
            assert_eq!(ports(admitted, "port"), ports(listens, "containerPort"), "{selected}");
            for rule in rules {
                let cidr = rule["from"][0]["ipBlock"]["cidr"].as_str().unwrap();
                let address = cidr.split('/').next().unwrap();
                assert!(cidr.starts_with("SET-CIDR-OF-") && address.parse::<IpAddr>().is_err(), "{cidr}");
            }
        }
    }
}
