//! The objects that `restart` creates.

use serde_json::{Map, Value, json};

use super::{JsonPointer, target::Target};
use crate::{
    api::crr::{
        ContainerRecreateRequest, ContainerRecreateRequestSpec, FailurePolicy, RecreateContainer, RecreateMethod,
        RecreateStrategy,
    },
    k8s::invalid::Invalid,
};

/// What to restart and how, as the user said it. Nothing said is nothing written: defaults are the API's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestartOptions {
    /// Containers; empty: all regular ones.
    pub containers: Vec<String>,
    /// How, in the fields of a request.
    pub strategy: RecreateStrategy,
    /// `activeDeadlineSeconds`.
    pub active_deadline_seconds: Option<i64>,
    /// `ttlSecondsAfterFinished`.
    pub ttl_seconds_after_finished: Option<i32>,
    /// `maxUnavailable` of a workload: a number or a percentage.
    pub max_unavailable: Option<String>,
}

/// The request for containers of one Pod. The API server makes its name.
pub fn for_pod(pod: &str, containers: &[String], options: &RestartOptions) -> ContainerRecreateRequest {
    let named = |name: &String| RecreateContainer { name: name.clone(), ..RecreateContainer::default() };
    let said_nothing = options.strategy == RecreateStrategy::default();
    let mut request = ContainerRecreateRequest::new(
        "",
        ContainerRecreateRequestSpec {
            pod_name: pod.to_owned(),
            containers: containers.iter().map(named).collect(),
            strategy: (!said_nothing).then(|| options.strategy.clone()),
            active_deadline_seconds: options.active_deadline_seconds,
            ttl_seconds_after_finished: options.ttl_seconds_after_finished,
        },
    );
    request.metadata.name = None;
    request.metadata.generate_name = Some(format!("{pod}-"));
    request
}

/// What a WorkloadRestart is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload<'a> {
    /// A workload by its name.
    Named(&'a Target),
    /// The Pods of a LabelSelector.
    Selected(&'a Value),
}

/// The WorkloadRestart for a workload or selector. The API server makes its name.
pub fn for_workload(workload: &Workload<'_>, options: &RestartOptions) -> Value {
    let mut spec = Map::new();
    let prefix = match workload {
        Workload::Named(target) => {
            spec.insert(
                "targetRef".into(),
                json!({ "apiVersion": target.kind.api_version(), "kind": target.kind.kind, "name": target.name }),
            );
            format!("{}-", target.name)
        }
        Workload::Selected(selector) => {
            spec.insert("selector".into(), (*selector).clone());
            "restart-".into()
        }
    };
    if !options.containers.is_empty() {
        spec.insert("containers".into(), json!(options.containers));
    }
    if let Some(most) = &options.max_unavailable {
        spec.insert("maxUnavailable".into(), most.parse::<u32>().map_or_else(|_| json!(most), |number| json!(number)));
    }
    if options.strategy != RecreateStrategy::default() {
        spec.insert("strategy".into(), json!(options.strategy));
    }
    if let Some(seconds) = options.active_deadline_seconds {
        spec.insert("activeDeadlineSeconds".into(), seconds.into());
    }
    if let Some(seconds) = options.ttl_seconds_after_finished {
        spec.insert("ttlSecondsAfterFinished".into(), seconds.into());
    }
    json!({
        "apiVersion": "kruise.rs/v1alpha1",
        "kind": "WorkloadRestart",
        "metadata": { "generateName": prefix },
        "spec": spec,
    })
}

/// Names of the regular containers of a Pod.
pub fn regular_containers(pod: &Value) -> Vec<String> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().filter_map(|c| c["name"].as_str()).map(str::to_owned).collect()
}

/// The WorkloadRestart that owns a request, by its UID.
pub fn owner(request: &Value) -> Option<&str> {
    owner_reference(request).map(|owner| owner.text("/uid"))
}

/// The same by its name.
pub fn owner_name(request: &Value) -> Option<&str> {
    owner_reference(request).map(|owner| owner.text("/name"))
}

fn owner_reference(request: &Value) -> Option<&Value> {
    request.list("/metadata/ownerReferences").iter().find(|owner| owner.text("/kind") == "WorkloadRestart")
}

/// Requests without those that a WorkloadRestart owns: they are its parts.
pub fn without_owned_requests(mut requests: Vec<Value>) -> Vec<Value> {
    requests.retain(|request| owner(request).is_none());
    requests
}

/// A method, whatever the case of its letters.
pub fn method(text: &str) -> Option<RecreateMethod> {
    [("runtime", RecreateMethod::Runtime), ("podspec", RecreateMethod::PodSpec), ("auto", RecreateMethod::Auto)]
        .into_iter()
        .find_map(|(name, method)| name.eq_ignore_ascii_case(text).then_some(method))
}

/// A failure policy, whatever the case of its letters.
pub fn failure_policy(text: &str) -> Option<FailurePolicy> {
    [("fail", FailurePolicy::Fail), ("ignore", FailurePolicy::Ignore)]
        .into_iter()
        .find_map(|(name, policy)| name.eq_ignore_ascii_case(text).then_some(policy))
}

/// A number or a percentage from 1% to 100%, as `maxUnavailable` takes it.
///
/// # Errors
/// What is allowed.
pub fn max_unavailable(text: &str) -> Result<String, Invalid> {
    let fits = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<u32>().is_ok_and(|n| (1..=100).contains(&n)),
        None => text.parse::<u32>().is_ok_and(|n| n >= 1),
    };
    if fits {
        Ok(text.to_owned())
    } else {
        Err(Invalid("want a number of Pods, at least 1, or a percentage such as 10%".into()))
    }
}

/// The text of a Warning header: `299 - "text"`, with `\\` before quotes and backslashes.
pub fn warning(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?.trim();
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut escaped = false;
    for c in inner.chars() {
        if c == '\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        text.push(c);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::kruise::workload_restart::WorkloadRestart, plugin::rules::target::targets};

    fn target(text: &str) -> Target {
        targets(&[text.to_owned()]).unwrap().remove(0)
    }

    #[test]
    fn nothing_said_is_nothing_written() {
        let request = json!(for_pod("web", &["main".into()], &RestartOptions::default()));
        assert_eq!(
            request,
            json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
                "metadata": { "generateName": "web-" },
                "spec": { "podName": "web", "containers": [{ "name": "main" }] } })
        );
        let deployment = target("deployment/api");
        assert_eq!(
            for_workload(&Workload::Named(&target("scs/logs")), &RestartOptions::default())["spec"]["targetRef"],
            json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": "logs" })
        );
        assert_eq!(
            for_workload(&Workload::Named(&deployment), &RestartOptions::default()),
            json!({ "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart", "metadata": { "generateName": "api-" },
                "spec": { "targetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "api" } } })
        );
    }

    #[test]
    fn parts_of_a_restart_are_hidden_behind_it() {
        let owned_by = |kind: &str| json!({ "metadata": { "ownerReferences": [{ "kind": kind, "uid": "u" }] } });
        let requests = vec![json!({}), owned_by("WorkloadRestart"), owned_by("Other")];
        assert_eq!(requests.iter().map(owner).collect::<Vec<_>>(), [None, Some("u"), None]);
        assert_eq!(without_owned_requests(requests), [json!({}), owned_by("Other")]);
    }

    #[test]
    fn every_wish_has_its_field() {
        let options = RestartOptions {
            containers: vec!["b".into(), "a".into()],
            strategy: RecreateStrategy {
                failure_policy: failure_policy("ignore"),
                ordered_recreate: true,
                force_recreate: true,
                termination_grace_period_seconds: Some(0),
                unready_grace_period_seconds: Some(3),
                min_started_seconds: 5,
                recreate_method: method("podspec"),
                vary_image_tag: true,
            },
            active_deadline_seconds: Some(60),
            ttl_seconds_after_finished: Some(0),
            max_unavailable: Some("10%".into()),
        };
        let strategy = json!({ "failurePolicy": "Ignore", "orderedRecreate": true, "forceRecreate": true,
            "terminationGracePeriodSeconds": 0, "unreadyGracePeriodSeconds": 3, "minStartedSeconds": 5,
            "recreateMethod": "PodSpec", "varyImageTag": true });
        assert_eq!(
            json!(for_pod("web", &options.containers, &options))["spec"],
            json!({ "podName": "web", "containers": [{ "name": "b" }, { "name": "a" }], "strategy": strategy,
                "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0 })
        );
        let selector = json!({ "matchLabels": { "app": "web" } });
        assert_eq!(
            for_workload(&Workload::Selected(&selector), &options)["spec"],
            json!({ "selector": selector, "containers": ["b", "a"], "strategy": strategy,
                "maxUnavailable": "10%", "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0 })
        );
    }

    #[test]
    fn a_workload_restart_is_of_the_kind_that_the_manager_reads() {
        let options = RestartOptions {
            max_unavailable: Some("2".into()),
            containers: vec!["a".into()],
            ..RestartOptions::default()
        };
        let selector = json!({ "matchLabels": { "app": "web" } });
        for object in [
            for_workload(&Workload::Named(&target("clone/web")), &options),
            for_workload(
                &Workload::Selected(&selector),
                &RestartOptions { strategy: RecreateStrategy::default(), ..options.clone() },
            ),
        ] {
            let read: WorkloadRestart = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(json!(read)["spec"], object["spec"], "no field is unknown to it");
        }
    }

    #[test]
    fn max_unavailable_is_a_number_or_a_percentage() {
        let spec = |most: &str| {
            let options =
                RestartOptions { max_unavailable: Some(max_unavailable(most).unwrap()), ..RestartOptions::default() };
            for_workload(&Workload::Named(&target("sts/db")), &options)["spec"]["maxUnavailable"].clone()
        };
        assert_eq!((spec("3"), spec("25%")), (json!(3), json!("25%")));
        for bad in ["0", "-1", "0%", "101%", "ten", "", "%", "1.5"] {
            assert!(max_unavailable(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn warnings_are_read_from_their_header() {
        assert_eq!(warning(r#"299 - "say \"stop\" \\ once""#).as_deref(), Some(r#"say "stop" \ once"#));
        for bad in ["", "299", "299 - ", "299 - text", "299 - \""] {
            assert_eq!(warning(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn init_containers_are_no_regular_containers() {
        let pod = json!({ "spec": { "containers": [{ "name": "a" }, { "name": "b" }],
            "initContainers": [{ "name": "mesh", "restartPolicy": "Always" }] } });
        assert_eq!(regular_containers(&pod), ["a", "b"]);
        assert!(regular_containers(&json!({})).is_empty());
    }
}
