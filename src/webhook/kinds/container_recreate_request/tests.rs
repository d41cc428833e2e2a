use super::*;
use crate::k8s::damage::damaged;

fn request(spec: Value) -> Request {
    Request {
        operation: "CREATE".into(),
        namespace: "team-a".into(),
        object: json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r1", "labels": {"mine": "1", "crr.apps.kruise.io/node-name": "forged"}}, "spec": spec}),
        ..Request::default()
    }
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "web-0", "uid": "uid-1"},
        "spec": {
            "nodeName": "node-a", "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "readinessGates": [{"conditionType": "KruisePodReady"}],
            "initContainers": [{"name": "init"}, {"name": "mesh", "restartPolicy": "Always"}],
            "containers": [
                {"name": "main", "image": "r.example/main:v1", "ports": [{"name": "http", "containerPort": 80}],
                 "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": "http"}}}, "fieldOfTheFuture": {}},
                {"name": "second", "ports": [{"containerPort": 81}], "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}},
                {"name": "plain"}],
            "ephemeralContainers": [{"name": "debugger"}],
        },
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "second", "containerID": "containerd://2", "restartCount": 0},
            {"name": "main", "containerID": "containerd://1", "restartCount": 4, "image": "r.example/main:v1",
             "imageID": format!("r.example/main@{D}"), "state": {"running": {"startedAt": "2025-12-31T00:00:00Z"}}},
            {"name": "plain", "restartCount": 0}],
            "initContainerStatuses": [{"name": "mesh", "containerID": "containerd://m", "restartCount": 1}]},
    })
}

const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn by(method: &str) -> Value {
    with("/strategy", "recreateMethod", json!(method))
}

fn by_pod_spec() -> Value {
    by("PodSpec")
}

/// A Pod that a workload controls.
fn controlled() -> Value {
    pod_with("/metadata", "ownerReferences", json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]))
}

trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Tap for Value {}

/// Everything but the reads.
fn decide(spec: Value, pod: Value, node_is_virtual: bool) -> Decision {
    let admission = check(&FeatureGates::default(), request(spec))?;
    let pod: PodFacts = serde_json::from_value(pod).unwrap();
    assert!(!check_pod(&admission, &pod)?.is_empty());
    admit(&admission, &pod, situation(node_is_virtual))
}

/// The decision, and what it makes of the request.
fn resolved(spec: Value, pod: Value, daemon: Option<bool>, gates: &[&str]) -> Result<(Value, Vec<String>), Denied> {
    let gates = FeatureGates::parse(gates, None).unwrap();
    let admission = check(&gates, request(spec.clone()))?;
    let pod: PodFacts = serde_json::from_value(pod).unwrap();
    let situation = Situation { daemon_is_ready: daemon, ..situation(false) };
    let Admitted { patch, warnings } = admit(&admission, &pod, situation)?;
    let mut object = request(spec).object;
    json_patch::patch(&mut object, &patch).unwrap();
    Ok((object, warnings))
}

fn is_served_by_manager(object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let (method, active) = (&labels["crr.kruise.rs/method"], &labels["crr.apps.kruise.io/active"]);
    assert_eq!(method.is_null(), !active.is_null(), "{labels}");
    *method == "PodSpec"
}

#[test]
fn the_manager_serves_pod_spec_under_a_label_of_its_own() {
    let (object, warnings) = resolved(by_pod_spec(), controlled(), None, &[]).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert!(is_served_by_manager(&object));
    assert_eq!(object["spec"]["strategy"]["recreateMethod"], "PodSpec");
    assert_eq!(
        object["spec"]["containers"][0],
        json!({"name": "main", "statusContext": {"containerID": "containerd://1", "restartCount": 4, "image": "r.example/main:v1"}}),
        "kubelet runs the hook"
    );
}

#[test]
fn a_forged_method_label_is_not_heeded() {
    let mut forged = request(main_only());
    forged.object["metadata"]["labels"]["crr.kruise.rs/method"] = json!("PodSpec");
    let mut object = forged.object.clone();
    let admission = check(&FeatureGates::default(), forged).unwrap();
    let admitted = admit(&admission, &serde_json::from_value(pod()).unwrap(), situation(false)).unwrap();
    json_patch::patch(&mut object, &admitted.patch).unwrap();
    assert!(!is_served_by_manager(&object));
}

#[test]
fn a_pod_without_a_controller_may_drift_and_that_is_warned_about() {
    let (_, warnings) = resolved(by_pod_spec(), pod(), None, &[]).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("has no controller"), "{warnings:?}");
}

#[test]
fn decision_1_without_daemons_runtime_is_refused_and_auto_is_pod_spec() {
    let off = ["KruiseDaemon=false"];
    for spec in [main_only(), by("Runtime")] {
        assert_eq!(resolved(spec, controlled(), None, &off).unwrap_err().code, 403);
    }
    for method in ["PodSpec", "Auto"] {
        assert!(is_served_by_manager(&resolved(by(method), controlled(), None, &off).unwrap().0), "{method}");
    }
    let no_digest = pod_with("/status/containerStatuses/1", "imageID", json!(""));
    assert_eq!(resolved(by("Auto"), no_digest, None, &off).unwrap_err().code, 400);
}

#[test]
fn auto_is_runtime_unless_there_is_a_reason_against_it() {
    let auto = |pod: Value, daemon| {
        let (object, warnings) = resolved(by("Auto"), pod, daemon, &[]).unwrap();
        assert_eq!(object["spec"]["strategy"]["recreateMethod"], "Auto", "what the user wrote stays");
        (is_served_by_manager(&object), warnings.into_iter().next().unwrap_or_default())
    };
    let never = || controlled().tap(|p| p["spec"]["restartPolicy"] = json!("Never"));
    let restarted = || {
        controlled().tap(|p| {
            let status = &mut p["status"]["containerStatuses"][1];
            status["lastState"] = json!({"terminated": {"exitCode": 0, "finishedAt": "2025-12-31T23:59:50Z"}});
            status["state"] = json!({"running": {"startedAt": "2025-12-31T23:59:50Z"}});
        })
    };
    let no_digest = |pod: Value| pod.tap(|p| p["status"]["containerStatuses"][1]["imageID"] = json!("sha256:1"));
    for (name, pod, daemon, by_manager, words) in [
        ("all is well", controlled(), Some(true), false, ""),
        ("nobody could know", controlled(), None, false, ""),
        (
            "no daemon",
            controlled(),
            Some(false),
            true,
            "method PodSpec is used: no kruise-daemon is ready on node node-a",
        ),
        ("never", never(), Some(true), true, "method PodSpec is used: container main has restartPolicy Never"),
        ("restarted 10 s ago", restarted(), Some(true), true, "container main: kubelet will start it in about 10 s"),
        ("no digest", no_digest(restarted()), Some(true), false, "Runtime is used although container main"),
        ("no daemon, no digest", no_digest(controlled()), Some(false), false, "has no registry digest"),
    ] {
        let (got, warning) = auto(pod, daemon);
        assert!(got == by_manager && warning.contains(words), "{name}: {got} {warning}");
    }
}

#[test]
fn pod_spec_says_what_it_cannot_promise() {
    let warned = |pod: Value| resolved(by_pod_spec(), pod, None, &[]).unwrap().1.join("\n");
    let never = controlled().tap(|p| p["spec"]["restartPolicy"] = json!("Never"));
    assert!(warned(never).contains("a start that fails is not tried again"));
    let pulled = controlled().tap(|p| p["spec"]["containers"][0]["imagePullPolicy"] = json!("Always"));
    assert!(warned(pulled).contains("while the registry does not answer, it stays down"));
    let settled = controlled().tap(|p| p["metadata"]["generation"] = json!(7));
    assert_eq!(warned(settled), "", "the status names the same tag");
}

#[test]
fn native_sidecars_can_be_restarted() {
    let (object, _) = stored(json!({"podName": "web-0", "containers": [{"name": "mesh"}]}), pod(), false);
    assert_eq!(
        object["spec"]["containers"][0]["statusContext"],
        json!({"containerID": "containerd://m", "restartCount": 1})
    );
}

#[test]
fn kubelets_that_ignore_images_of_native_sidecars_restart_them_by_method_runtime_alone() {
    let pod = controlled().tap(|p| {
        p["spec"]["initContainers"][1]["image"] = json!("r.example/mesh:v1");
        p["status"]["initContainerStatuses"][0] = json!({"name": "mesh", "containerID": "containerd://m", "restartCount": 1,
            "image": "r.example/mesh:v1", "imageID": format!("r.example/mesh@{D}"),
            "state": {"running": {"startedAt": "2025-12-31T00:00:00Z"}}});
    });
    let pod: PodFacts = serde_json::from_value(pod).unwrap();
    let decide = |method: &str, container: &str, kubelet_minor| {
        let spec =
            json!({"podName": "web-0", "containers": [{"name": container}], "strategy": {"recreateMethod": method}});
        let admission = check(&FeatureGates::default(), request(spec)).unwrap();
        // What Auto avoids method Runtime for.
        let situation = Situation { kubelet_minor, daemon_is_ready: Some(false), ..situation(false) };
        admit(&admission, &pod, situation).map(|admitted| admitted.warnings.join("\n"))
    };
    let refused = decide("PodSpec", "mesh", Some(31)).unwrap_err();
    assert_eq!(refused.code, 400);
    assert!(refused.message.contains("older than 1.32, ignores a change of its image; want Runtime"), "{refused:?}");
    for (method, container, kubelet_minor) in [
        ("PodSpec", "mesh", Some(32)),
        ("PodSpec", "mesh", None),
        ("PodSpec", "main", Some(30)),
        ("Runtime", "mesh", Some(30)),
    ] {
        assert!(decide(method, container, kubelet_minor).is_ok(), "{method} {container} {kubelet_minor:?}");
    }
    assert!(decide("Auto", "mesh", Some(32)).unwrap().contains("Auto: method PodSpec is used"));
    let warned = decide("Auto", "mesh", Some(31)).unwrap();
    assert!(warned.contains("Auto: Runtime is used although") && warned.contains("older than 1.32"), "{warned}");
}

#[test]
fn rules_that_restart_the_whole_pod_are_warned_about() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [143]}}]);
    let pod = pod_with("/spec/containers/0", "restartPolicyRules", rules);
    assert!(warning(main_only(), pod).contains("kubelet restarts every container of the Pod"));
}

fn situation(node_is_virtual: bool) -> Situation {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    Situation { node_is_virtual, kubelet_is_silent: false, kubelet_minor: None, daemon_is_ready: None, now }
}

fn denied(spec: Value, pod: Value) -> String {
    let Denied { code, message, .. } = decide(spec, pod, false).unwrap_err();
    assert_eq!(code, 400, "{message}");
    message
}

fn stored(spec: Value, pod: Value, node_is_virtual: bool) -> (Value, Vec<String>) {
    let Admitted { patch, warnings } = decide(spec.clone(), pod, node_is_virtual).unwrap();
    let mut object = request(spec).object;
    json_patch::patch(&mut object, &patch).unwrap();
    (object, warnings)
}

fn main_only() -> Value {
    json!({"podName": "web-0", "containers": [{"name": "main"}]})
}

fn with(pointer: &str, key: &str, value: Value) -> Value {
    let mut spec = json!({"podName": "web-0", "containers": [{"name": "main"}], "strategy": {}});
    spec.pointer_mut(pointer).unwrap()[key] = value;
    spec
}

fn pod_with(pointer: &str, key: &str, value: Value) -> Value {
    let mut pod = pod();
    pod.pointer_mut(pointer).unwrap()[key] = value;
    pod
}

#[test]
fn a_good_request_is_completed() {
    let spec = json!({"podName": "web-0", "containers": [{"name": "main"}, {"name": "second"}]});
    let (object, warnings) = stored(spec, pod(), false);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(
        object["metadata"],
        json!({"name": "r1", "labels": {"mine": "1", "crr.apps.kruise.io/node-name": "node-a",
            "crr.apps.kruise.io/pod-uid": "uid-1", "crr.apps.kruise.io/active": "true"}})
    );
    assert_eq!(
        object["spec"],
        json!({"podName": "web-0",
            "containers": [
                {"name": "main", "preStop": {"httpGet": {"path": "/drain", "port": "http"}},
                 "ports": [{"name": "http", "containerPort": 80}],
                 "statusContext": {"containerID": "containerd://1", "restartCount": 4}},
                {"name": "second", "preStop": {"sleep": {"seconds": 5}},
                 "statusContext": {"containerID": "containerd://2", "restartCount": 0}}],
            "strategy": {"failurePolicy": "Fail", "terminationGracePeriodSeconds": 30}})
    );
    assert!(object.get("status").is_none() && object["metadata"].get("creationTimestamp").is_none());
}

#[test]
fn what_the_user_chose_is_kept() {
    let mut spec = main_only();
    spec["strategy"] = json!({"failurePolicy": "Ignore", "terminationGracePeriodSeconds": 0, "fieldOfTheFuture": 1});
    let (object, _) = stored(spec.clone(), pod(), false);
    assert_eq!(object["spec"]["strategy"], spec["strategy"]);
}

#[test]
fn nulls_count_as_absent() {
    let mut spec = main_only();
    spec["strategy"] = Value::Null;
    spec["activeDeadlineSeconds"] = Value::Null;
    spec["containers"][0] = json!({"name": "main", "preStop": null, "ports": [], "statusContext": null});
    let (object, _) = stored(spec, pod(), false);
    assert_eq!(object["spec"]["strategy"]["failurePolicy"], "Fail");
    assert_eq!(object["spec"]["containers"][0]["statusContext"]["containerID"], "containerd://1");
}

#[test]
fn what_clients_in_go_leave_out_is_not_stored() {
    for (strategy, want) in [
        (
            json!({"orderedRecreate": false, "forceRecreate": false, "minStartedSeconds": 0, "varyImageTag": false,
                "failurePolicy": "", "recreateMethod": "", "unreadyGracePeriodSeconds": null}),
            json!({"failurePolicy": "Fail", "terminationGracePeriodSeconds": 30}),
        ),
        (
            json!({"orderedRecreate": true, "minStartedSeconds": 1, "unreadyGracePeriodSeconds": 0,
                "terminationGracePeriodSeconds": 0}),
            json!({"failurePolicy": "Fail", "orderedRecreate": true, "minStartedSeconds": 1,
                "unreadyGracePeriodSeconds": 0, "terminationGracePeriodSeconds": 0}),
        ),
    ] {
        let spec = json!({"podName": "web-0", "activeDeadlineSeconds": null, "ttlSecondsAfterFinished": 0,
            "containers": [{"name": "second", "ports": [], "preStop": null}], "strategy": strategy});
        let (object, _) = stored(spec, pod(), false);
        assert_eq!(object["spec"]["strategy"], want);
        assert_eq!(object["spec"]["ttlSecondsAfterFinished"], 0);
        assert!(object["spec"].get("activeDeadlineSeconds").is_none());
        assert!(object["spec"]["containers"][0].get("ports").is_none());
    }
}

#[test]
fn requests_for_virtual_nodes_are_labelled() {
    let (object, _) = stored(main_only(), pod(), true);
    assert_eq!(object["metadata"]["labels"]["type"], "virtual-kubelet");
    let (object, _) = stored(main_only(), pod(), false);
    assert!(object["metadata"]["labels"].get("type").is_none());
}

#[test]
fn a_forged_label_of_a_virtual_node_is_left_out() {
    for (value, virtual_node, want) in [
        ("virtual-kubelet", false, Value::Null),
        ("virtual-kubelet", true, json!("virtual-kubelet")),
        ("batch", false, json!("batch")),
    ] {
        let mut request = request(main_only());
        request.object["metadata"]["labels"]["type"] = json!(value);
        let mut object = request.object.clone();
        let admission = check(&FeatureGates::default(), request).unwrap();
        let admitted = admit(&admission, &serde_json::from_value(pod()).unwrap(), situation(virtual_node)).unwrap();
        json_patch::patch(&mut object, &admitted.patch).unwrap();
        assert_eq!(object["metadata"]["labels"]["type"], want, "{value} {virtual_node}");
    }
}

#[test]
fn a_forged_acquisition_time_is_left_out() {
    let mut request = request(main_only());
    request.object["metadata"]["annotations"] =
        json!({"crr.apps.kruise.io/unready-acquired": "2020-01-01T00:00:00Z", "mine": "1"});
    let mut object = request.object.clone();
    let admission = check(&FeatureGates::default(), request).unwrap();
    let Admitted { patch, warnings } =
        admit(&admission, &serde_json::from_value(pod()).unwrap(), situation(false)).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    assert_eq!(object["metadata"]["annotations"], json!({"mine": "1"}));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn the_namespace_of_the_review_fills_in() {
    let admission = check(&FeatureGates::default(), request(main_only())).unwrap();
    assert_eq!(&*admission.namespace, "team-a");
}

#[test]
fn gate_off_refuses_before_decoding() {
    let off = FeatureGates::parse(&["KruiseDaemon=false"], None).unwrap();
    let Denied { code, message, .. } = check(&off, request(json!("nonsense"))).unwrap_err();
    assert_eq!(code, 403);
    assert!(message.contains("KruiseDaemon"), "{message}");
}

/// One test per rejection: name, spec, Pod, and how the message begins.
macro_rules! rejections {
    ($($name:ident: $spec:expr, $pod:expr => $start:literal;)*) => {$(
        #[test]
        fn $name() {
            let message = denied($spec, $pod);
            assert!(message.starts_with($start), "{message}");
        }
    )*};
}

rejections! {
    spec_missing: Value::Null, pod() => "spec: null is not allowed; want an object";
    pod_name_empty: json!({"containers": [{"name": "main"}]}), pod() => "spec.podName must not be empty";
    pod_name_no_text: with("", "podName", json!(5)), pod() => "spec.podName: 5 is not allowed; want text";
    pod_name_impossible: with("", "podName", json!("../nodes/x")), pod() => "spec.podName: \"../nodes/x\" is not allowed; want an RFC 1123 subdomain";
    pod_name_too_long: with("", "podName", json!("a".repeat(254))), pod() => "spec.podName: \"aaaa";
    containers_empty: with("", "containers", json!([])), pod() => "spec.containers must not be empty";
    containers_missing: json!({"podName": "web-0"}), pod() => "spec.containers must not be empty";
    containers_no_list: with("", "containers", json!({"name": "main"})), pod() => "spec.containers: {\"name\":\"main\"} is not allowed; want a list";
    too_many_containers: with("", "containers", (0..257).map(|i| json!({"name": format!("c{i}")})).collect()), pod()
        => "spec.containers lists 257 containers; at most 256 are allowed";
    container_no_object: with("", "containers", json!(["main"])), pod() => "spec.containers[0]: \"main\" is not allowed; want an object";
    container_without_name: with("", "containers", json!([{}])), pod() => "spec.containers[0].name must not be empty";
    duplicate_name: with("", "containers", json!([{"name": "main"}, {"name": "main"}])), pod()
        => "spec.containers[1].name: \"main\" is listed twice";
    pre_stop_set: with("/containers/0", "preStop", json!({})), pod() => "spec.containers[0].preStop is read-only";
    ports_set: with("/containers/0", "ports", json!([{"containerPort": 1}])), pod() => "spec.containers[0].ports is read-only";
    status_context_set: with("/containers/0", "statusContext", json!({"containerID": "x", "restartCount": 0})), pod()
        => "spec.containers[0].statusContext is read-only";
    deadline_below_3: with("", "activeDeadlineSeconds", json!(2)), pod() => "spec.activeDeadlineSeconds: 2 is not allowed; want 3 or more";
    deadline_no_number: with("", "activeDeadlineSeconds", json!("9")), pod() => "spec.activeDeadlineSeconds: \"9\" is not allowed; want a whole number";
    ttl_negative: with("", "ttlSecondsAfterFinished", json!(-1)), pod() => "spec.ttlSecondsAfterFinished: -1 is not allowed; want 0 or more";
    ttl_beyond_32_bits: with("", "ttlSecondsAfterFinished", json!(2147483648_u32)), pod() => "spec.ttlSecondsAfterFinished: 2147483648 is not allowed; want a whole number up to 2147483647";
    strategy_no_object: with("", "strategy", json!("Fail")), pod() => "spec.strategy: \"Fail\" is not allowed; want an object";
    grace_negative: with("/strategy", "terminationGracePeriodSeconds", json!(-1)), pod()
        => "spec.strategy.terminationGracePeriodSeconds: -1 is not allowed; want 0 or more";
    unready_grace_negative: with("/strategy", "unreadyGracePeriodSeconds", json!(-5)), pod()
        => "spec.strategy.unreadyGracePeriodSeconds: -5 is not allowed; want 0 or more";
    min_started_negative: with("/strategy", "minStartedSeconds", json!(-1)), pod()
        => "spec.strategy.minStartedSeconds: -1 is not allowed; want 0 or more";
    min_started_fraction: with("/strategy", "minStartedSeconds", json!(1.5)), pod()
        => "spec.strategy.minStartedSeconds: 1.5 is not allowed; want a whole number";
    failure_policy_unknown: with("/strategy", "failurePolicy", json!("Retry")), pod()
        => "spec.strategy.failurePolicy: \"Retry\" is not known; want Fail or Ignore";
    ordered_no_boolean: with("/strategy", "orderedRecreate", json!("yes")), pod()
        => "spec.strategy.orderedRecreate: \"yes\" is not allowed; want true or false";
    pod_finished: main_only(), pod_with("/status", "phase", json!("Succeeded"))
        => "spec.podName: Pod \"web-0\" has finished (phase Succeeded)";
    pod_failed: main_only(), pod_with("/status", "phase", json!("Failed")) => "spec.podName: Pod \"web-0\" has finished (phase Failed)";
    pod_deleting: main_only(), pod_with("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"))
        => "spec.podName: Pod \"web-0\" (phase Running) is being deleted";
    pod_without_node: main_only(), pod_with("/spec", "nodeName", json!("")) => "spec.podName: Pod \"web-0\" (phase Running) is not bound to a Node yet";
    unknown_container: with("", "containers", json!([{"name": "main"}, {"name": "nope"}])), pod()
        => "spec.containers[1].name: \"nope\" is no container of Pod \"web-0\"; it has main, second, plain";
    init_container: with("", "containers", json!([{"name": "init"}])), pod()
        => "spec.containers[0].name: \"init\" is an init container of Pod \"web-0\", and a request cannot restart one";
    native_sidecar_not_started: with("", "containers", json!([{"name": "mesh"}])), pod_with("/status", "initContainerStatuses", json!([]))
        => "spec.containers[0].name: \"mesh\" of Pod \"web-0\" (phase Running) is not started";
    method_unknown: with("/strategy", "recreateMethod", json!("Reboot")), pod()
        => "spec.strategy.recreateMethod: \"Reboot\" is not known; want Runtime, PodSpec or Auto";
    vary_no_boolean: with("/strategy", "varyImageTag", json!("yes")), pod()
        => "spec.strategy.varyImageTag: \"yes\" is not allowed; want true or false";
    pod_spec_without_a_digest: by_pod_spec(), pod_with("/status/containerStatuses/1", "imageID", json!("sha256:1"))
        => "spec.containers[0].name: \"main\" cannot be restarted by method PodSpec: its image \"r.example/main:v1\" has no registry digest";
    pod_spec_with_a_name_that_means_another_repository: by_pod_spec(), pod_with("/spec/containers/0", "image", json!("main:v1"))
        => "spec.containers[0].name: \"main\" cannot be restarted by method PodSpec: its image \"main:v1\" means the repository docker.io/library/main";
    pod_spec_for_a_static_pod: by_pod_spec(), pod_with("/metadata", "annotations", json!({"kubernetes.io/config.mirror": "h"}))
        => "spec.strategy.recreateMethod: PodSpec cannot restart containers of Pod \"web-0\": it is a static Pod";
    pod_spec_with_an_own_grace_period: with("/strategy", "terminationGracePeriodSeconds", json!(5)).tap(|s| s["strategy"]["recreateMethod"] = json!("PodSpec")), pod()
        => "spec.strategy.terminationGracePeriodSeconds: 5 is not allowed under method PodSpec";
    pod_spec_never_and_not_running: by_pod_spec(), pod_with("/spec", "restartPolicy", json!("Never")).tap(|p| p["status"]["containerStatuses"][1]["state"] = json!({"terminated": {"exitCode": 1}}))
        => "spec.containers[0].name: \"main\" cannot be restarted by method PodSpec: it is not running, and with restartPolicy Never";
    pod_spec_never_and_always_pulled: by_pod_spec(), pod_with("/spec", "restartPolicy", json!("Never")).tap(|p| p["spec"]["containers"][0]["imagePullPolicy"] = json!("Always"))
        => "spec.containers[0].name: \"main\" cannot be restarted by method PodSpec: it has imagePullPolicy Always and restartPolicy Never";
    pod_spec_while_the_image_is_being_changed: by_pod_spec(), pod_with("/spec/containers/0", "image", json!("r.example/main:v2")).tap(|p| p["metadata"]["generation"] = json!(2))
        => "spec.containers[0].name: \"main\" cannot be restarted by method PodSpec: its image is \"r.example/main:v2\", its status shows \"r.example/main:v1\"";
    ephemeral_container: with("", "containers", json!([{"name": "debugger"}])), pod()
        => "spec.containers[0].name: \"debugger\" is an ephemeral container";
    container_not_started: with("", "containers", json!([{"name": "plain"}])), pod()
        => "spec.containers[0].name: \"plain\" of Pod \"web-0\" (phase Running) is not started: its status has no containerID yet";
    container_without_status: main_only(), pod_with("/status", "containerStatuses", json!([]))
        => "spec.containers[0].name: \"main\" of Pod \"web-0\" (phase Running) is not started";
    restart_policy_never_of_the_pod: main_only(), pod_with("/spec", "restartPolicy", json!("Never"))
        => "spec.containers[0].name: \"main\" has restartPolicy Never (set on the Pod): stopped, it would not start again";
    restart_policy_never_of_the_container: main_only(), pod_with("/spec/containers/0", "restartPolicy", json!("Never"))
        => "spec.containers[0].name: \"main\" has restartPolicy Never (set on the container)";
}

fn warning(spec: Value, pod: Value) -> String {
    let (_, warnings) = stored(spec, pod, false);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    warnings.into_iter().next().unwrap()
}

#[test]
fn sw_d33_a_pod_that_the_terminator_ended_takes_requests_and_with_never_there_is_only_a_warning() {
    let never = || pod_with("/spec", "restartPolicy", json!("Never"));
    assert!(warning(with("/strategy", "forceRecreate", json!(true)), never()).contains("does not start again"));
    let mut ended = never();
    ended["status"]["phase"] = json!("Succeeded");
    ended["status"]["conditions"] = json!([{"type": "SidecarTerminated", "status": "True"}]);
    assert!(warning(main_only(), ended).contains("does not start again"));
    let mut rules = never();
    rules["spec"]["containers"][0]["restartPolicyRules"] =
        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [143]}}]);
    assert!(warning(main_only(), rules).contains("restartPolicyRules"));
}

#[test]
fn a_container_may_restart_although_its_pod_does_not() {
    let mut pod = pod_with("/spec", "restartPolicy", json!("Never"));
    pod["spec"]["containers"][0]["restartPolicy"] = json!("Always");
    assert_eq!(stored(main_only(), pod, false).1, Vec::<String>::new());
}

#[test]
fn on_failure_is_warned_about() {
    let pod = pod_with("/spec", "restartPolicy", json!("OnFailure"));
    assert!(warning(main_only(), pod).contains("exits with code 0"));
}

#[test]
fn unready_grace_without_the_readiness_gate_is_warned_about() {
    let spec = || with("/strategy", "unreadyGracePeriodSeconds", json!(0));
    assert!(warning(spec(), pod_with("/spec", "readinessGates", json!([]))).contains("KruisePodReady"));
    assert_eq!(stored(spec(), pod(), false).1, Vec::<String>::new());
}

#[test]
fn a_deadline_that_cannot_be_met_is_warned_about() {
    let mut spec = with("", "activeDeadlineSeconds", json!(45));
    spec["strategy"] = json!({"minStartedSeconds": 10, "unreadyGracePeriodSeconds": 5});
    assert!(warning(spec.clone(), pod()).contains("45 is not more than"));
    spec["activeDeadlineSeconds"] = json!(46);
    assert_eq!(stored(spec.clone(), pod(), false).1, Vec::<String>::new());
    spec["strategy"]["unreadyGracePeriodSeconds"] = json!(i64::MAX);
    assert_eq!(stored(spec, pod(), false).1.len(), 1);
}

/// As `kubectl apply` sends the same file once more, with and without `--server-side`: the list of containers is that of the file.
#[test]
fn what_is_applied_again_changes_nothing_and_nobody_changes_what_is_noted() {
    let spec = || {
        json!({"podName": "web-0", "containers": [{"name": "main"}, {"name": "second"}],
            "strategy": {"forceRecreate": false, "minStartedSeconds": 0, "orderedRecreate": true}})
    };
    let (stored, _) = resolved(spec(), pod(), None, &[]).unwrap();
    assert!(stored["spec"]["containers"][0]["statusContext"].is_object());
    let after = |change: &dyn Fn(&mut Value)| {
        let mut object = stored.clone();
        change(&mut object["spec"]);
        let mut admitted = object.clone();
        json_patch::patch(&mut admitted, &restore_noted(&object, &stored).patch).unwrap();
        (object, admitted)
    };
    let list = |containers: &Value| {
        let containers = containers.clone();
        move |spec: &mut Value| {
            spec["containers"] = containers.clone();
        }
    };
    let names = json!([{"name": "main"}, {"name": "second", "preStop": null, "ports": []}]);
    let (_, same) = after(&|spec: &mut Value| {
        spec["containers"] = names.clone();
        json_patch::merge(&mut spec["strategy"], &json!({"forceRecreate": false, "minStartedSeconds": 0}));
    });
    assert_eq!(same, stored);
    // The schema judges these as they are sent.
    let noted = &stored["spec"]["containers"];
    let mut forged = noted.clone();
    forged[0]["statusContext"]["containerID"] = "containerd://forged".into();
    let mut half = noted.clone();
    half[0].as_object_mut().unwrap().remove("statusContext");
    for containers in [forged, half, json!([]), json!([{"name": "plain"}, {"name": "other"}]), json!("x"), Value::Null]
    {
        let (sent, admitted) = after(&list(&containers));
        assert_eq!(admitted, sent, "{containers}");
    }
    // Another order or length is another list, whatever is noted of it.
    for containers in [json!([{"name": "second"}, {"name": "main"}]), json!([{"name": "main"}])] {
        let (_, admitted) = after(&list(&containers));
        assert_ne!(admitted["spec"]["containers"], *noted, "{containers}");
    }
    for odd in [json!(null), json!({"spec": 1})] {
        assert_eq!(restore_noted(&odd, &stored), Admitted::unchanged());
        assert_eq!(restore_noted(&stored, &odd), Admitted::unchanged());
    }
}

/// With every field.
fn full_spec() -> Value {
    json!({"podName": "web-0", "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 10, "containers": [{"name": "main"}, {"name": "second"}],
        "strategy": {"failurePolicy": "Ignore", "orderedRecreate": true, "forceRecreate": true, "unreadyGracePeriodSeconds": 3,
            "minStartedSeconds": 1, "terminationGracePeriodSeconds": 5}})
}

/// Else the property below would see refusals alone.
#[test]
fn the_spec_that_is_damaged_is_a_good_one() {
    assert!(check(&FeatureGates::default(), request(full_spec())).is_ok());
}

proptest::proptest! {
    /// Whatever is sent, there is an answer; a spec that is let through names what is to be restarted.
    #[test]
    fn no_json_makes_it_panic(spec in damaged(full_spec())) {
        let names = spec["containers"].as_array().map(Vec::len);
        if check(&FeatureGates::default(), request(spec.clone())).is_ok() {
            proptest::prop_assert!(spec["podName"].is_string() && names.is_some_and(|count| count > 0), "{spec}");
        }
    }
}

#[test]
fn where_kubelet_is_silent_nobody_starts_what_the_daemon_stops() {
    for (spec, node_is_virtual, kubelet_is_silent, is_warned) in [
        (main_only(), false, true, true),
        (main_only(), false, false, false),
        // Its provider is no kubelet, and with PodSpec kubelet stops the container itself.
        (main_only(), true, true, false),
        (by_pod_spec(), false, true, false),
    ] {
        let admission = check(&FeatureGates::default(), request(spec)).unwrap();
        let pod: PodFacts = serde_json::from_value(controlled()).unwrap();
        let situation = Situation { kubelet_is_silent, ..situation(node_is_virtual) };
        let Admitted { warnings, .. } = admit(&admission, &pod, situation).unwrap();
        let of_kubelet = warnings.iter().filter(|warning| warning.contains("stays down until kubelet runs again"));
        assert_eq!(of_kubelet.count(), usize::from(is_warned), "{warnings:?}");
    }
}

#[test]
fn the_daemons_of_a_node_are_read_from_the_memory_of_the_api_server() {
    let ListParams { label_selector, field_selector, resource_version, .. } = daemons_on("node-a");
    assert_eq!(label_selector.as_deref(), Some("control-plane=daemon"));
    assert_eq!(field_selector.as_deref(), Some("spec.nodeName=node-a"));
    assert_eq!(resource_version.as_deref(), Some("0"));
}
