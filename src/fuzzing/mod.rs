//! What hostile bytes must not do, as one function per way in. Each takes any bytes and panics when a rule is broken.
//!
//! The fuzzers in `fuzz/` and the property tests here run the very same functions. Not part of the product: compiled for
//! tests and fuzzers only.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api::{crr::ContainerRecreateRequest as Crr, feature_gates::FeatureGates, labels},
    cri::proto::{
        ContainerEventResponse, ContainerStatus, ContainerStatusResponse, ListContainersResponse, VersionResponse,
    },
    daemon::recreate::observe as daemon,
    domain::{
        kinds::daemon_set::spec::Spec,
        node::container_meta,
        node::recreate::{
            fail_unfinished, is_terminal,
            manager::{self, Action, Daemon, PodKnowledge},
            node::{self, Instance, InstanceState},
            pod_spec,
            spelling::{self, Spellings},
            states_of,
        },
        pod::{
            readiness::{self, NotReadyKey},
            runtime_meta,
        },
    },
    k8s::{
        image::ImageRef,
        pod::{Labels, PodView},
        pod_template,
        time::{Now, Sighting},
    },
    runtime::{
        pod_template::Answer,
        queue::{Backoff, Queue},
        watches::ObjectKey,
    },
    webhook::{
        kinds::{clone_set, container_recreate_request as crr, daemon_set, pod, stateful_set},
        server::review::{Decision, Denied, MAX_MESSAGE, Request, Review},
        template,
    },
};

mod handlers;
#[cfg(test)]
mod tests;

/// The bodies that an API server, or somebody who plays one, sends to the webhook: through every handler, up to the
/// requests that they send, and through the rules of some.
pub fn admission_review(data: &[u8]) {
    handlers::through_handlers(data);
    let Ok(review) = Review::decode(data) else { return };
    let all_pods = FeatureGates::parse(&["KruisePodReadinessGate=true"], None).unwrap_or_default();
    for gates in [FeatureGates::default(), all_pods] {
        let decision = pod::admit(&gates, &review.request.object, [7; 5]);
        check_answer(&review, &decision);
        if let Some(patched) = patched(&review.request.object, &decision) {
            let again = pod::admit(&gates, &patched, [8; 5]).map(|admitted| admitted.patch.0.len());
            assert_eq!(again, Ok(0), "a Pod that was admitted needs nothing more");
        }
    }
    clone_set_review(&review);
    stateful_set_review(&review);
    daemon_set_review(&review);
    let [_, now, _] = moments();
    let situation = crr::Situation {
        node_is_virtual: false,
        kubelet_is_silent: true,
        kubelet_minor: Some(31),
        daemon_is_ready: Some(false),
        now: now.wall,
    };
    // The Pod that the request names comes from the API server; here from the same hostile hand.
    let pod: crr::PodFacts = serde_json::from_value(review.request.object["pod"].clone()).unwrap_or_default();
    let admission = match crr::check(&FeatureGates::default(), review.request.clone()) {
        Ok(admission) => admission,
        Err(denied) => return check_answer(&review, &Err(denied)),
    };
    let decision = crr::check_pod(&admission, &pod).and_then(|_| crr::admit(&admission, &pod, situation));
    check_answer(&review, &decision);
    if let Some(patched) = patched(&review.request.object, &decision) {
        assert_eq!(patched["spec"]["podName"], review.request.object["spec"]["podName"]);
        let labels = patched["metadata"]["labels"].as_object();
        let is_set = |key| labels.is_some_and(|labels| labels.get(key).is_some_and(Value::is_string));
        assert!(is_set(labels::CRR_POD_UID) && is_set(labels::CRR_NODE_NAME), "{labels:?}");
    }
}

/// What a user writes of any kind of ours, `{"new": ..., "old": ...}`, through admission: as a new object, and as a change of
/// the old one.
pub fn user_object(data: &[u8]) {
    handlers::through_admission(data);
}

/// A CloneSet, and an answer of the API server about its template, from the same hostile hand.
fn clone_set_review(review: &Review) {
    let object = &review.request.object;
    let answer = Answer { object: object["answer"].clone(), ..Answer::default() };
    let plain = FeatureGates::parse(&["TemplateNoDefaults=true,CloneSetShortHash=true"], None).unwrap_or_default();
    for gates in [FeatureGates::default(), plain] {
        for operation in ["CREATE", "UPDATE"] {
            let request = Request { operation: operation.into(), ..review.request.clone() };
            let admission = match clone_set::check(&gates, request) {
                Ok(admission) => admission,
                Err(denied) => {
                    check_answer(review, &Err(denied));
                    continue;
                }
            };
            let pods = admission.pods.iter().map(|name| (name.to_string(), None)).collect();
            let templates = template::Answers { trial: Some(Ok(answer.clone())), old_template: None };
            let answers = clone_set::Answers { templates, pods };
            let decision = clone_set::admit(&admission, &answers);
            check_answer(review, &decision);
            if let Some(patched) = patched(object, &decision) {
                assert_eq!(patched["spec"]["selector"], object["spec"]["selector"]);
                assert_eq!(patched["metadata"], object["metadata"]);
                assert!(patched["spec"]["replicas"].is_i64() && patched["spec"]["updateStrategy"]["type"].is_string());
            }
        }
    }
    let _ = pod_template::looks_defaulted(&object["spec"]["template"]);
    let _ = pod_template::missing_volumes(&object["spec"]["template"]);
}

/// The same of a StatefulSet.
fn stateful_set_review(review: &Review) {
    let object = &review.request.object;
    let answer = Answer { object: object["answer"].clone(), ..Answer::default() };
    let resizing = FeatureGates::parse(&["StatefulSetAutoResizePVCGate=true"], None).unwrap_or_default();
    for gates in [FeatureGates::default(), resizing] {
        for operation in ["CREATE", "UPDATE"] {
            let request = Request { operation: operation.into(), ..review.request.clone() };
            let admission = match stateful_set::check(&gates, request) {
                Ok(admission) => admission,
                Err(denied) => {
                    check_answer(review, &Err(denied));
                    continue;
                }
            };
            let templates = template::Answers { trial: Some(Ok(answer.clone())), old_template: None };
            let answers = stateful_set::Answers { templates, ..stateful_set::Answers::default() };
            let decision = stateful_set::admit(&admission, &answers);
            check_answer(review, &decision);
            if let Some(patched) = patched(object, &decision) {
                assert_eq!(patched["spec"]["selector"], object["spec"]["selector"]);
                assert_eq!(patched["metadata"], object["metadata"]);
                assert!(patched["spec"]["replicas"].is_i64() && patched["spec"]["podManagementPolicy"].is_string());
            }
        }
    }
}

/// The same of a DaemonSet.
fn daemon_set_review(review: &Review) {
    let object = &review.request.object;
    let answer = Answer { object: object["answer"].clone(), ..Answer::default() };
    for operation in ["CREATE", "UPDATE"] {
        let request = Request { operation: operation.into(), ..review.request.clone() };
        let admission = match daemon_set::check(request) {
            Ok(admission) => admission,
            Err(denied) => {
                check_answer(review, &Err(denied));
                continue;
            }
        };
        let answers = template::Answers { trial: Some(Ok(answer.clone())), old_template: None };
        let decision = daemon_set::admit(&admission, &answers);
        check_answer(review, &decision);
        if let Some(patched) = patched(object, &decision) {
            assert_eq!(patched["spec"]["selector"], object["spec"]["selector"]);
            assert!(patched["spec"]["updateStrategy"]["type"].is_string());
        }
    }
    if let Ok(set) = serde_json::from_value(object.clone())
        && let Ok(spec) = Spec::of(&set)
    {
        let _ = spec.numbers(1000);
        let _ = spec.placement.fit("n", &Labels::default(), &[]);
    }
}

fn check_answer(review: &Review, decision: &Decision) {
    if let Err(Denied { code, message, causes: _ }) = decision {
        assert!((400..600).contains(code), "{code}");
        assert!(!message.is_empty() && message.len() <= MAX_MESSAGE, "{} bytes", message.len());
    }
    let answer = review.answer(decision);
    assert_eq!(answer["response"]["uid"], json!(review.request.uid));
    assert_eq!(answer["response"]["allowed"], json!(decision.is_ok()));
}

/// What the API server makes of a consent.
fn patched(object: &Value, decision: &Decision) -> Option<Value> {
    let mut object = object.clone();
    let result = json_patch::patch(&mut object, &decision.as_ref().ok()?.patch);
    assert!(result.is_ok(), "the API server cannot apply the patch: {result:?}");
    Some(object)
}

/// A stored request and a Pod, `{"request": ..., "pod": ..., "attempt": ...}`, through every rule of both roles.
pub fn container_recreate_request(data: &[u8]) {
    #[derive(Deserialize)]
    struct Case {
        request: Crr,
        #[serde(default)]
        pod: PodView,
        #[serde(default)]
        attempt: i32,
    }
    let Ok(Case { request, mut pod, attempt }) = serde_json::from_slice(data) else { return };
    let written = serde_json::to_vec(&request).unwrap_or_default();
    // Metadata with a time before the year 0, which no API server lets pass, is not written so that it can be read.
    if let Ok(again) = serde_json::from_slice::<Crr>(&written) {
        // Not compared as they are: a time keeps its seconds only.
        let rewritten = serde_json::to_vec(&again).unwrap_or_default();
        assert_eq!(
            String::from_utf8_lossy(&rewritten),
            String::from_utf8_lossy(&written),
            "what was written reads as what was meant"
        );
    }
    let names = |states: &[crate::api::crr::ContainerRecreateState]| -> Vec<String> {
        states.iter().map(|state| state.name.clone()).collect()
    };
    let wanted: Vec<String> = request.spec.containers.iter().map(|c| c.name.clone()).collect();
    assert_eq!(names(&states_of(&request)), wanted);
    let failed = fail_unfinished(&request, "the end");
    assert_eq!(names(&failed), wanted);
    assert!(failed.iter().all(is_terminal));
    let pick = node::pick([&request, &request]);
    let _ = pick.current.map(node::waiting_status);
    if let Some(status) = &request.status {
        let _ = manager::outcome(status);
    }
    rules(&request, &pod, &[]);
    // The Pod that it means, with an instance for each container.
    pod.set_uid(request.pod_uid());
    pod.set_namespace(request.metadata.namespace.as_deref().unwrap_or_default());
    let instances: Vec<Instance> = request.spec.containers.iter().map(|c| meant(&pod, c, attempt)).collect();
    rules(&request, &pod, &instances);
}

fn meant(pod: &PodView, container: &crate::api::crr::RecreateContainer, attempt: i32) -> Instance {
    let context = container.status_context.clone().unwrap_or_default();
    Instance {
        id: match attempt == context.restart_count {
            true => context.container_id,
            false => format!("{}-{attempt}", context.container_id), // it was replaced
        },
        container: container.name.clone(),
        namespace: pod.namespace().to_owned(),
        pod_uid: pod.cri_uid().to_owned(),
        state: InstanceState::Running,
        created_at: 0,
        started_at: None,
        exit_code: None,
        restart_count: attempt,
    }
}

/// Clocks at the beginning, somewhere, and at the end of time.
fn moments() -> [Now; 3] {
    [
        Now { wall: Timestamp::MIN, mono: Duration::from_secs(1) },
        Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::from_secs(1 << 20) },
        Now { wall: Timestamp::MAX, mono: Duration::from_secs(1 << 40) },
    ]
}

/// Every rule over a request, at every moment; the plans of the node are carried out for some steps.
fn rules(request: &Crr, pod: &PodView, instances: &[Instance]) {
    let queue = Queue::new(Backoff::default());
    for now in moments() {
        for knowledge in [PodKnowledge::Unknown, PodKnowledge::Gone, PodKnowledge::Present(pod)] {
            for daemon in [
                Daemon::Unknown,
                Daemon::Ready,
                Daemon::Missing(Duration::ZERO),
                Daemon::Missing(Duration::MAX),
                Daemon::NodeGone,
            ] {
                let [first, ..] = moments();
                let memory = manager::ManagerMemory {
                    created: Sighting::found(first, Timestamp::UNIX_EPOCH),
                    seen: Sighting::live(first),
                    completed: request.is_completed().then(|| Sighting::found(first, Timestamp::MIN)),
                    reported_no_daemon: false,
                };
                let observed = manager::ObservedRequest {
                    request,
                    pod: knowledge,
                    daemon,
                    memory,
                    gone_after: manager::DAEMON_GONE_AFTER,
                };
                let plan = manager::plan(&observed, now);
                if request.is_completed() {
                    let moves = plan.actions.iter().any(|action| matches!(action, Action::Complete { .. }));
                    assert!(!moves, "a finished request never moves: {plan:?}");
                }
                if let Some(delay) = plan.requeue {
                    queue.add_after(ObjectKey::new("fuzz", "manager"), delay);
                }
                for action in &plan.actions {
                    if let Action::RecordCondition(since) = action {
                        let _ = manager::with_grace_condition(request, *since);
                    }
                }
            }
        }
        by_manager(request, pod, now);
        let (mut request, mut instances) = (request.clone(), instances.to_vec());
        let mut memory = node::RestartMemory::default();
        let was_completed = request.is_completed();
        let runtimes = ["containerd".to_owned()];
        for step in 0..6u64 {
            let now = Now { wall: now.wall, mono: now.mono + Duration::from_secs(step * 40) };
            let pod = (step > 0).then_some(pod);
            let observed =
                node::ObservedContainers { request: &request, pod, runtimes: &runtimes, instances: &instances };
            let plan = node::plan(&observed, &mut memory, now);
            assert!(!was_completed || plan == node::NodePlan::default(), "a finished request never moves: {plan:?}");
            if let Some(delay) = plan.requeue {
                queue.add_after(ObjectKey::new("fuzz", "node"), delay);
            }
            if let Some(kill) = &plan.kill {
                memory.stop_begins(kill);
                // A runtime that lies may name one id twice, of several Pods.
                let uid = pod.map_or("", PodView::cri_uid);
                let is_target =
                    |i: &&mut Instance| i.id == kill.id && i.container == kill.container && i.pod_uid == uid;
                let target = instances.iter_mut().find(is_target);
                assert!(target.is_some(), "{kill:?} hits what the Pod does not have");
                match target.filter(|_| step % 2 == 1) {
                    Some(target) => (target.state, target.exit_code) = (InstanceState::Exited, Some(i32::MIN)),
                    None if step == 4 => memory.stop_refused(&kill.container, "no".into()),
                    None => memory.stop_may_pass(&kill.container, "no".into(), now),
                }
            }
            if let Some(status) = plan.status {
                request.status = Some(status);
            }
        }
    }
}

/// The manager's own execution of a request, some steps far.
fn by_manager(request: &Crr, pod: &PodView, now: Now) {
    let (mut request, mut memory) = (request.clone(), node::RestartMemory::default());
    let was_completed = request.is_completed();
    let _ = pod_spec::agrees(&request, pod);
    for step in 0..4u64 {
        let now = Now { wall: now.wall, mono: now.mono + Duration::from_secs(step * 40) };
        let plan = pod_spec::plan(&request, pod, &mut memory, now);
        assert!(!was_completed || plan == pod_spec::PodSpecPlan::default(), "a finished request never moves: {plan:?}");
        for (name, image) in plan.respelling.iter().flat_map(|r| &r.images) {
            assert!(request.spec.containers.iter().any(|c| c.name == *name), "{name} was not asked for");
            assert!(pod.container(name).is_some_and(|c| *c.image != **image), "{image} is no other spelling");
        }
        if let Some(status) = plan.status {
            request.status = Some(status);
        }
    }
}

/// Any text in the annotations that are read: of requests, of Pods, and of containers in the runtime.
pub fn annotations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let with = |grace: Value| {
        json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "labels": {labels::CRR_POD_UID: "u"},
                "annotations": {labels::CRR_UNREADY_ACQUIRED: text, labels::CRR_SYNC_CONTAINER_STATUSES: text}},
            "spec": {"podName": "p", "strategy": {"unreadyGracePeriodSeconds": grace},
                "containers": [{"name": "c", "statusContext": {"containerID": "containerd://c", "restartCount": 0}}]},
            "status": {"phase": "Recreating"},
        })
    };
    let pod = json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "u",
            "annotations": {labels::STATIC_POD_CONFIG_HASH: text, labels::STATIC_POD_MIRROR: text}},
        "spec": {"readinessGates": [{"conditionType": labels::CONDITION_KRUISE_POD_READY}]},
    });
    let pod: PodView = serde_json::from_value(pod).unwrap_or_default();
    assert_eq!(pod.cri_uid(), text);
    let mut container = crate::cri::proto::Container { id: "c".into(), ..Default::default() };
    container.labels = [
        (labels::CRI_POD_UID, text.as_ref()),
        (labels::CRI_POD_NAMESPACE, "a"),
        (labels::CRI_CONTAINER_NAME, "c"),
        (labels::CRI_RESTART_COUNT, text.as_ref()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    container.annotations = container.labels.clone();
    let instance = daemon::instance("containerd", &container);
    for grace in [json!(0), json!(i64::MAX)] {
        let Ok(request) = serde_json::from_value::<Crr>(with(grace)) else { continue };
        rules(&request, &pod, std::slice::from_ref(&instance));
    }
}

/// What a broken or hostile runtime answers.
pub fn cri_answer(data: &[u8]) {
    let _ = VersionResponse::decode(data);
    let _ = ContainerEventResponse::decode(data);
    let status: Option<ContainerStatus> = ContainerStatusResponse::decode(data).ok().and_then(|answer| answer.status);
    let listed = ListContainersResponse::decode(data).map(|answer| answer.containers).unwrap_or_default();
    let mut instances: Vec<Instance> = listed.iter().map(|c| daemon::instance("containerd", c)).collect();
    if let Some(status) = &status {
        instances.push(daemon::instance("containerd", &crate::cri::proto::Container::default()));
        for instance in &mut instances {
            daemon::complete(instance, status);
        }
    }
    // As many requests as there are instances to mean; a few say all there is to say.
    for index in 0..instances.len().min(3) {
        let Instance { id, container, namespace, pod_uid, .. } = instances[index].clone();
        let id = if index == 1 { "containerd://replaced".to_owned() } else { id };
        let request = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r", "namespace": namespace, "uid": "r", "labels": {labels::CRR_POD_UID: pod_uid}},
            "spec": {"podName": "p", "strategy": {"forceRecreate": index == 0, "minStartedSeconds": i32::MAX},
                "containers": [{"name": container, "statusContext": {"containerID": id, "restartCount": 0}}]},
        });
        let pod = json!({"metadata": {"name": "p", "namespace": namespace, "uid": pod_uid}, "status": {
            "containerStatuses": [{"name": container, "containerID": id, "ready": true}]}});
        let request: Result<Crr, _> = serde_json::from_value(request);
        if let (Ok(request), Ok(pod)) = (request, serde_json::from_value(pod)) {
            rules(&request, &pod, &instances);
        }
    }
}

/// An image in a definition, the imageID of what runs, and an annotation about them, one per line.
pub fn image_reference(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let (image, image_id, annotation) = (next(), next(), next());
    if let Some(ImageRef { name, tag, digest }) = ImageRef::parse(image) {
        let part = |mark: &str, part: Option<&str>| part.map_or(String::new(), |part| format!("{mark}{part}"));
        assert_eq!(format!("{name}{}{}", part(":", tag), part("@", digest)), image);
        assert!(!spelling::was_changed(image, image));
    }
    let pod = json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "u", "annotations": {labels::IMAGE_SPELLINGS: annotation}},
        "spec": {"containers": [{"name": "c", "image": image}]},
        "status": {"containerStatuses": [{"name": "c", "containerID": "containerd://c", "imageID": image_id,
            "restartCount": 1, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:00:00Z"}}}]},
    });
    let pod: PodView = serde_json::from_value(pod).unwrap_or_default();
    let (Some(container), Some(status)) = (pod.container("c"), pod.container_status("c")) else { return };
    for now in moments() {
        let mut spellings = Spellings::of(&pod);
        let _ = spelling::wait_after_stop(container, status, &spellings, now.wall);
        for vary in [false, true] {
            let chosen_before = Some(image_id);
            let Ok(choice) = spelling::choose(container, status, &spellings, (vary, chosen_before), now.wall) else {
                continue;
            };
            let (old, new) = (ImageRef::parse(image), ImageRef::parse(&choice.image));
            assert_eq!(old.map(|r| r.name), new.map(|r| r.name), "the name stays as it was written");
            assert!(
                new.is_some_and(|new| new.digest.is_some()
                    && old.is_some_and(|old| old.digest.is_none_or(|d| new.digest == Some(d))))
            );
            assert!(choice.image != image, "kubelet would do nothing");
            spellings.note("c", &choice);
        }
    }
}

/// Any message of the condition KruisePodReady.
pub fn readiness_message(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let [_, now, _] = moments();
    let key = NotReadyKey::of_request("a", "r");
    let before = readiness::keys(&text);
    assert!(before.is_sorted() && before.windows(2).all(|pair| pair[0] != pair[1]), "{before:?}");
    for status in ["True", "False", "Unknown", "", text.as_ref()] {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "a", "resourceVersion": "1"},
            "spec": {"readinessGates": [{"conditionType": labels::CONDITION_KRUISE_POD_READY}, {"conditionType": text}]},
            "status": {"conditions": [
                {"type": labels::CONDITION_KRUISE_POD_READY, "status": status, "message": text},
                {"type": "Ready", "status": "True", "message": text}, {"type": "ContainersReady", "status": "True"}]},
        });
        let _ = serde_json::from_value::<PodView>(pod.clone()).map(|view| readiness::default_condition(&view, now));
        if let Some(patch) = readiness::add_key(&pod, &key, now) {
            apply_conditions(&mut pod, &patch);
        }
        assert_eq!(condition(&pod)["status"], "False");
        let held = readiness::keys(condition(&pod)["message"].as_str().unwrap_or_default());
        assert!(held.contains(&key) && before.iter().all(|key| held.contains(key)), "{held:?} of {before:?}");
        assert_eq!(readiness::add_key(&pod, &key, now), None, "once is enough");
        let Some(patch) = readiness::remove_key(&pod, &key, now) else { panic!("the key cannot be removed: {pod}") };
        apply_conditions(&mut pod, &patch);
        let left = readiness::keys(condition(&pod)["message"].as_str().unwrap_or_default());
        let others: Vec<_> = before.iter().filter(|other| **other != key).cloned().collect();
        assert_eq!(left, others, "keys of others stay");
        assert_eq!(condition(&pod)["status"] == "True", left.is_empty());
        assert_eq!(readiness::remove_key(&pod, &key, now), None);
    }
}

fn condition(pod: &Value) -> &Value {
    &pod["status"]["conditions"][0]
}

/// What the API server makes of a patch: conditions are merged by their type.
fn apply_conditions(pod: &mut Value, patch: &Value) {
    let by_type = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().into_iter().flatten();
        list.map(|c| (c["type"].as_str().unwrap_or_default().to_owned(), c.clone())).collect()
    };
    let mut new = by_type(&patch["status"]["conditions"]);
    for old in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
        let fields = new.remove(old["type"].as_str().unwrap_or_default());
        for (field, value) in fields.iter().filter_map(Value::as_object).flatten() {
            old[field] = value.clone();
        }
    }
    assert!(new.is_empty(), "unasked conditions: {new:?}");
}

/// Any text in the annotation that the daemon reports in, and any that a runtime reports of a container.
pub fn container_meta(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let from_info = container_meta::environment_from_info(&text);
    let printed = container_meta::environment_from_output(data);
    let variable = json!({"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['c']"}}});
    let pod = json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "u", "annotations": {
            labels::RUNTIME_CONTAINERS_META: text, labels::IN_PLACE_STATE: text, "c": text}},
        "spec": {"terminationGracePeriodSeconds": i64::MIN, "containers": [{"name": "c", "image": text, "env": [variable]}]},
        "status": {"conditions": [{"type": labels::CONDITION_INPLACE_UPDATE_READY, "status": "False"}],
            "containerStatuses": [{"name": "c", "containerID": "containerd://c1", "image": text, "imageID": text}]},
    });
    let found = container_meta::Found {
        instance: Instance {
            id: "containerd://c1".into(),
            container: "c".into(),
            namespace: "a".into(),
            pod_uid: "u".into(),
            state: InstanceState::Running,
            created_at: 0,
            started_at: None,
            exit_code: None,
            restart_count: 0,
        },
        plain_hash: container_meta::parse_plain_hash(Some(&text.to_string())),
    };
    let reported = runtime_meta::RuntimeMeta::of(&pod);
    let found = [found];
    for environment in [from_info, Some(printed)].into_iter().flatten() {
        let mut report = container_meta::report(&pod, reported.as_ref(), &found, true);
        for index in report.unread.clone() {
            report.note_environment(&pod, index, &environment);
        }
        assert_eq!((report.meta.containers.len(), report.missing.len()), (1, 0));
        let written = serde_json::to_string(&report.meta).unwrap_or_default();
        let mut after = pod.clone();
        after["metadata"]["annotations"][labels::RUNTIME_CONTAINERS_META] = written.into();
        let again = runtime_meta::RuntimeMeta::of(&after).unwrap_or_default();
        // Not fields of the future: a number with many digits need not come back to the last one.
        let known = |meta: &runtime_meta::RuntimeMeta| -> Vec<_> {
            let entries = meta.containers.iter();
            let hashes =
                |c: &runtime_meta::RuntimeContainer| (c.hashes.plain_hash, c.hashes.extracted_env_from_metadata_hash);
            entries.map(|c| (c.name.clone(), c.container_id.clone(), c.restart_count, hashes(c))).collect()
        };
        assert_eq!(known(&again), known(&report.meta), "what was written reads as what was meant");
        let once_more = container_meta::report(&after, Some(&again), &found, true);
        assert_eq!((known(&once_more.meta), once_more.unread.len()), (known(&again), 0), "once is enough");
        for kill in container_meta::outdated(&after, &report.meta) {
            assert!(container_meta::is_running(&kill, &after, &found), "{kill:?} hits what the Pod does not have");
        }
    }
}
