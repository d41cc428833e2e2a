//! Container launch priority: a container starts when those of a higher priority are ready.
//!
//! Admission gives every container an environment variable that refers to a key of a ConfigMap, the barrier, which does
//! not exist yet; kubelet starts a container when its key is there. [`wanted`] and [`inject`] are admission's part,
//! [`next`] says which keys are due.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    api::labels,
    k8s::{
        invalid::Invalid,
        name::is_dns_subdomain,
        pod::{ContainerState, ContainerView, PodView},
    },
};

/// The name of a Pod's barrier.
pub fn barrier_of(pod: &str) -> String {
    format!("{pod}-barrier")
}

/// The key that containers of a priority wait for.
pub fn key_of(priority: i32) -> String {
    format!("p_{priority}")
}

/// The priority of each regular container of a Pod or a Pod template. None: they start as they like.
///
/// # Errors
/// A priority that is none, with its container.
pub fn wanted(pod: &Value) -> Result<Option<Vec<i32>>, Invalid> {
    let none = Vec::new();
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).unwrap_or(&none);
    if containers.len() < 2 {
        return Ok(None);
    }
    let annotations = pod.pointer("/metadata/annotations");
    if annotations.is_some_and(|annotations| annotations[labels::LAUNCH_PRIORITY] == labels::LAUNCH_PRIORITY_ORDERED) {
        return Ok(Some((0..).take(containers.len()).map(|i: i32| -i).collect()));
    }
    let priorities = containers.iter().map(priority).collect::<Result<Vec<i32>, _>>();
    let priorities = priorities.map_err(|Invalid(why)| Invalid(format!("spec.containers: {why}")))?;
    let first = priorities.first().copied().unwrap_or_default();
    Ok(priorities.iter().any(|other| *other != first).then_some(priorities))
}

/// The priority of a container.
///
/// # Errors
/// It is none, with its container.
pub fn priority(container: &Value) -> Result<i32, Invalid> {
    let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
    let Some(variable) = variables.rev().find(|variable| variable["name"] == labels::ENV_LAUNCH_PRIORITY) else {
        return Ok(0);
    };
    let text = variable.get("value").and_then(Value::as_str).unwrap_or_default();
    // i32 is one wider than what is documented: -2147483648 is out of range.
    text.parse().ok().filter(|number| *number != i32::MIN).ok_or_else(|| {
        let shown: String = text.chars().take(80).collect();
        let from = if variable.get("valueFrom").is_some_and(|from| !from.is_null()) { " from elsewhere" } else { "" };
        Invalid(format!(
            "{} of container {} is {shown:?}{from}; want a whole number from -{max} to {max}, written out",
            labels::ENV_LAUNCH_PRIORITY,
            container["name"],
            max = i32::MAX
        ))
    })
}

/// Puts the containers of a Pod behind its barrier.
///
/// # Errors
/// The Pod's name leaves no room for that of its barrier.
pub fn inject(pod: &mut Value, name: &str, priorities: &[i32]) -> Result<(), Invalid> {
    let barrier = barrier_of(name);
    if !is_dns_subdomain(&barrier) {
        return Err(Invalid(format!(
            "metadata.name: with launch priorities a ConfigMap {barrier:?} is made; want a name that leaves room for that"
        )));
    }
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut).into_iter().flatten();
    for (container, priority) in containers.zip(priorities) {
        let Some(container) = container.as_object_mut() else { continue };
        let variable = json!({ "name": labels::ENV_LAUNCH_BARRIER,
            "valueFrom": { "configMapKeyRef": { "name": barrier, "key": key_of(*priority) } } });
        match container.get_mut("env") {
            Some(Value::Array(variables)) => {
                // That of another Pod, if this one was copied from it.
                variables.retain(|variable| variable["name"] != labels::ENV_LAUNCH_BARRIER);
                variables.push(variable);
            }
            _ => {
                container.insert("env".into(), json!([variable]));
            }
        }
    }
    Ok(())
}

/// What is due for a Pod whose containers are not all ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The priorities that may start: all from the highest that is not ready on.
    pub open: BTreeSet<i32>,
    /// Whether those are all there are, so that nothing is left to do.
    pub is_last: bool,
    /// The containers that lower ones wait for.
    pub awaited: Vec<String>,
    /// Whether kubelet has tried one of them already, and will look again only after a while or when the Pod changes.
    pub is_held: bool,
}

/// None: there is nothing to do, now or at all.
pub fn next(pod: &PodView) -> Option<Next> {
    if pod.launch_completed || pod.is_deleting() || pod.is_finished() || pod.condition_is_true("ContainersReady") {
        return None;
    }
    let behind: Vec<(&ContainerView, i32)> =
        pod.spec.containers.iter().filter_map(|container| Some((container, container.env.launch_priority?))).collect();
    let waiting = || behind.iter().filter(|(container, _)| !has_started(pod, container));
    let highest = waiting().map(|(_, priority)| *priority).max()?;
    let lowest = waiting().map(|(_, priority)| *priority).min()?;
    let awaited = || waiting().filter(|(_, priority)| *priority == highest).map(|(container, _)| container);
    let is_held = |container: &&&ContainerView| {
        pod.container_status(&container.name).is_some_and(
            |status| matches!(&status.state, ContainerState::Waiting(why) if why.reason == "CreateContainerConfigError"),
        )
    };
    Some(Next {
        open: behind.iter().map(|(_, priority)| *priority).filter(|priority| *priority >= highest).collect(),
        is_last: highest == lowest,
        awaited: awaited().map(|container| container.name.clone()).collect(),
        is_held: awaited().any(|container| is_held(&container)),
    })
}

/// Whether lower priorities need not wait for a container any more: it is ready, or has ended well and for good.
fn has_started(pod: &PodView, container: &ContainerView) -> bool {
    pod.container_status(&container.name).is_some_and(|status| {
        let is_done = status.state == ContainerState::Terminated { exit_code: 0 };
        status.ready || is_done && pod.restart_policy_of(&container.name) != "Always"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Pod whose containers have these priorities as text.
    fn pod(priorities: &[Option<&str>]) -> Value {
        let container = |(i, priority): (usize, &Option<&str>)| {
            let mut container = json!({"name": format!("c{i}"), "image": "i", "fieldOfTheFuture": {}});
            if let Some(priority) = priority {
                container["env"] = json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": priority}]);
            }
            container
        };
        json!({"metadata": {"name": "p"}, "spec": {"containers": priorities.iter().enumerate().map(container).collect::<Vec<_>>()}})
    }

    #[test]
    fn priorities_come_from_the_environment() {
        for (priorities, want) in [
            (&[Some("5"), None][..], Some(vec![5, 0])),
            (&[Some("-1"), None, Some("2147483647")], Some(vec![-1, 0, i32::MAX])),
            (&[Some("-2147483647"), Some("+3")], Some(vec![-i32::MAX, 3])),
            (&[None, None], None),
            (&[Some("0"), None], None),
            (&[Some("7"), Some("7")], None),
            (&[Some("5")], None),
            (&[], None),
        ] {
            assert_eq!(wanted(&pod(priorities)).unwrap(), want, "{priorities:?}");
        }
    }

    #[test]
    fn the_last_variable_counts() {
        let mut pod = pod(&[Some("x"), None]);
        pod["spec"]["containers"][0]["env"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "KRUISE_CONTAINER_PRIORITY", "value": "2"}));
        assert_eq!(wanted(&pod).unwrap(), Some(vec![2, 0]));
    }

    #[test]
    fn decision_26_other_values_are_refused_by_container_and_value() {
        for bad in ["2147483648", "-2147483648", "99999999999999999999", "high", "", " 1", "1.5", "1e3"] {
            let Invalid(error) = wanted(&pod(&[None, Some(bad)])).unwrap_err();
            assert!(
                error.contains("\"c1\"") && error.contains(&format!("{bad:?}")) && error.contains("2147483647"),
                "{error}"
            );
        }
        let mut elsewhere = pod(&[Some("1"), None]);
        elsewhere["spec"]["containers"][0]["env"] =
            json!([{"name": "KRUISE_CONTAINER_PRIORITY", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
        assert!(wanted(&elsewhere).unwrap_err().0.contains("from elsewhere"));
        assert_eq!(wanted(&pod(&[Some("high")])), Ok(None), "one container waits for nobody");
    }

    #[test]
    fn ordered_is_the_order_of_the_list() {
        let mut ordered = pod(&[Some("nonsense"), Some("9"), None]);
        ordered["metadata"]["annotations"] = json!({"apps.kruise.io/container-launch-priority": "Ordered"});
        assert_eq!(wanted(&ordered).unwrap(), Some(vec![0, -1, -2]));
        ordered["metadata"]["annotations"] = json!({"apps.kruise.io/container-launch-priority": "Other"});
        assert!(wanted(&ordered).is_err());
    }

    #[test]
    fn the_barrier_is_as_recorded_and_replaces_that_of_a_copy() {
        let mut injected = pod(&[Some("5"), None]);
        injected["spec"]["initContainers"] = json!([{"name": "init"}]);
        inject(&mut injected, "priority-rc5f2", &[5, 0]).unwrap();
        let barrier = |key: &str| json!({"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"key": key, "name": "priority-rc5f2-barrier"}}});
        assert_eq!(
            injected["spec"]["containers"][0]["env"],
            json!([{"name": "KRUISE_CONTAINER_PRIORITY", "value": "5"}, barrier("p_5")])
        );
        assert_eq!(injected["spec"]["containers"][1]["env"], json!([barrier("p_0")]));
        assert_eq!(injected["spec"]["initContainers"], json!([{"name": "init"}]));
        let before = injected.clone();
        inject(&mut injected, "priority-rc5f2", &[5, 0]).unwrap();
        assert_eq!(injected, before, "once is enough");
        inject(&mut injected, "copy", &[5, 0]).unwrap();
        let env = injected["spec"]["containers"][1]["env"].as_array().unwrap();
        assert!(env.len() == 1 && env[0]["valueFrom"]["configMapKeyRef"]["name"] == "copy-barrier", "{env:?}");
        assert!(inject(&mut injected, &"x".repeat(250), &[5, 0]).unwrap_err().0.contains("leaves room"));
    }

    /// A Pod with containers `high` (5), `low` (0) and `lower` (-3) in these states.
    fn view(states: [Value; 3], changes: Value) -> PodView {
        let containers = [("high", 5), ("low", 0), ("lower", -3)].map(|(name, priority)| {
            json!({"name": name, "env": [{"name": "KRUISE_CONTAINER_BARRIER",
                "valueFrom": {"configMapKeyRef": {"name": "p-barrier", "key": key_of(priority)}}}]})
        });
        let statuses: Vec<Value> = ["high", "low", "lower"]
            .into_iter()
            .zip(states)
            .filter(|(_, state)| !state.is_null())
            .map(|(name, state)| {
                let mut status = json!({"name": name, "restartCount": 0});
                json_patch::merge(&mut status, &state);
                status
            })
            .collect();
        let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"restartPolicy": "Always", "containers": containers},
            "status": {"phase": "Pending", "containerStatuses": statuses}});
        json_patch::merge(&mut pod, &changes);
        serde_json::from_value(pod).unwrap()
    }

    fn ready() -> Value {
        json!({"ready": true, "state": {"running": {}}})
    }

    fn held() -> Value {
        json!({"state": {"waiting": {"reason": "CreateContainerConfigError"}}})
    }

    fn running() -> Value {
        json!({"state": {"running": {}}})
    }

    fn due(pod: &PodView) -> Option<(Vec<i32>, bool, Vec<String>)> {
        next(pod).map(|next| (next.open.into_iter().collect(), next.is_last, next.awaited))
    }

    fn some(open: &[i32], is_last: bool, awaited: &str) -> Option<(Vec<i32>, bool, Vec<String>)> {
        Some((open.to_vec(), is_last, vec![awaited.to_owned()]))
    }

    #[test]
    fn levels_open_one_after_the_other() {
        let none = || json!(null);
        for (name, states, want) in [
            ("nothing is known", [none(), none(), none()], some(&[5], false, "high")),
            ("running is not ready", [running(), held(), held()], some(&[5], false, "high")),
            ("the next", [ready(), held(), held()], some(&[0, 5], false, "low")),
            ("the last", [ready(), ready(), held()], some(&[-3, 0, 5], true, "lower")),
            ("a higher one fell back", [running(), ready(), held()], some(&[5], false, "high")),
            ("all", [ready(), ready(), ready()], None),
        ] {
            assert_eq!(due(&view(states, json!({}))), want, "{name}");
        }
    }

    #[test]
    fn case_31_after_completion_and_with_all_containers_ready_nothing_is_due() {
        for changes in [
            json!({"metadata": {"annotations": {"apps.kruise.io/container-launch-priority-completed": "true"}}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"status": {"phase": "Failed"}}),
            json!({"status": {"conditions": [{"type": "ContainersReady", "status": "True"}]}}),
        ] {
            assert_eq!(due(&view([ready(), held(), held()], changes.clone())), None, "{changes}");
        }
        let unready = json!({"status": {"conditions": [{"type": "ContainersReady", "status": "False"}]}});
        assert!(due(&view([ready(), held(), held()], unready)).is_some());
    }

    #[test]
    fn a_container_that_has_done_its_work_holds_nobody_up() {
        let ended = |code: i32| json!({"state": {"terminated": {"exitCode": code}}});
        let policy = |policy: &str| json!({"spec": {"restartPolicy": policy}});
        assert_eq!(due(&view([ended(0), held(), held()], policy("Never"))), some(&[0, 5], false, "low"));
        assert_eq!(due(&view([ended(0), held(), held()], policy("OnFailure"))), some(&[0, 5], false, "low"));
        assert_eq!(due(&view([ended(0), held(), held()], policy("Always"))), some(&[5], false, "high"));
        assert_eq!(due(&view([ended(1), held(), held()], policy("Never"))), some(&[5], false, "high"));
    }

    #[test]
    fn it_is_known_whether_kubelet_waits() {
        assert!(next(&view([ready(), held(), held()], json!({}))).unwrap().is_held);
        assert!(!next(&view([running(), held(), held()], json!({}))).unwrap().is_held);
    }

    #[test]
    fn case_18_barriers_that_are_none_are_passed_over() {
        for env in [
            json!(null),
            json!([]),
            json!([{"name": "KRUISE_CONTAINER_BARRIER", "value": "x"}]),
            json!([{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"key": "p"}}}]),
        ] {
            let pod = json!({"spec": {"containers": [{"name": "a", "env": env}, {"name": "b", "env": env}]}});
            assert_eq!(next(&serde_json::from_value(pod).unwrap()), None, "{env}");
        }
    }
}
