//! Ports of the node that Pods of a template take, by the scheduler's rules.

use serde_json::Value;

/// All addresses of the node.
const ANY: &str = "0.0.0.0";

/// A port of the node: address, protocol and number.
pub type HostPort<'a> = (&'a str, &'a str, i64);

/// Those that a Pod of a template takes.
pub fn host_ports(template: &Value) -> Vec<HostPort<'_>> {
    let spec = &template["spec"];
    let is_on_host = spec["hostNetwork"].as_bool() == Some(true);
    let ports = list(spec, "containers").iter().flat_map(|container| list(container, "ports"));
    ports.filter_map(|port| host_port(port, is_on_host)).collect()
}

fn host_port(port: &Value, is_on_host: bool) -> Option<HostPort<'_>> {
    let text = |key: &str| port.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let number = |key: &str| port.get(key).and_then(Value::as_i64).filter(|number| *number > 0);
    // With the network of the host the API server writes the one that is missing.
    let taken = number("hostPort").or_else(|| number("containerPort").filter(|_| is_on_host))?;
    Some((text("hostIP").unwrap_or(ANY), text("protocol").unwrap_or("TCP"), taken))
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether Pods that take these ports cannot run on the same node.
pub(super) fn overlap(some: &[HostPort<'_>], others: &[HostPort<'_>]) -> bool {
    let is_same = |(address, protocol, number): &HostPort<'_>, other: &HostPort<'_>| {
        let is_address = *address == other.0 || [*address, other.0].contains(&ANY);
        is_address && (*protocol, *number) == (other.1, other.2)
    };
    some.iter().any(|one| others.iter().any(|other| is_same(one, other)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_of_the_node_overlap_by_the_rules_of_the_scheduler() {
        let template = |on_host: bool, port: Value| json!({"spec": {"hostNetwork": on_host, "containers": [{"name": "first"}, {"name": "main", "ports": [port]}]}});
        let port = |changes: Value| {
            let mut port = json!({"containerPort": 80, "hostPort": 8080});
            json_patch::merge(&mut port, &changes);
            template(false, port)
        };
        let plain = port(json!({}));
        for (what, one, other, want) in [
            ("the same", &plain, port(json!({"name": "web", "containerPort": 81})), true),
            ("another number", &plain, port(json!({"hostPort": 8081})), false),
            ("none", &plain, port(json!({"hostPort": 0})), false),
            ("the default protocol", &plain, port(json!({"protocol": "TCP"})), true),
            ("another protocol", &plain, port(json!({"protocol": "UDP"})), false),
            ("one of all addresses", &plain, port(json!({"hostIP": "10.0.0.1"})), true),
            ("other addresses", &port(json!({"hostIP": "10.0.0.2"})), port(json!({"hostIP": "10.0.0.1"})), false),
            ("the network of the host", &plain, template(true, json!({"containerPort": 8080})), true),
            ("no network of the host", &plain, template(false, json!({"containerPort": 8080})), false),
            ("nothing that can be read", &plain, json!({"spec": {"containers": [{"ports": 3}, 4]}}), false),
        ] {
            let (one, other) = (host_ports(one), host_ports(&other));
            assert_eq!((overlap(&one, &other), overlap(&other, &one)), (want, want), "{what}");
        }
    }
}
