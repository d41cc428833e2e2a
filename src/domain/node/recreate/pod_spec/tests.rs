//! Tables over the manager's execution of method PodSpec, with a kubelet that does what it was seen to do.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::crr::{FailurePolicy, RecreateStrategy},
    domain::node::recreate::is_terminal,
};

const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn now(second: u64) -> Now {
    let wall = Timestamp::from_second(1_700_000_000 + second.cast_signed()).unwrap();
    Now { wall, mono: Duration::from_secs(1000 + second) }
}

struct World {
    request: ContainerRecreateRequest,
    pod: Value,
    memory: RestartMemory,
    clock: u64,
    /// Changes of the Pod that were carried out.
    patches: Vec<Respelling>,
    trials: usize,
}

impl World {
    fn new(containers: &[&str], strategy: RecreateStrategy) -> Self {
        let definitions: Vec<Value> =
            containers.iter().map(|c| json!({"name": c, "image": format!("r.example/{c}:v1")})).collect();
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "u1", "resourceVersion": "1", "annotations": {}},
            "spec": {"nodeName": "n1", "restartPolicy": "Always", "containers": definitions},
            "status": {"phase": "Running", "containerStatuses": []},
        });
        let listed: Vec<Value> = containers
            .iter()
            .map(|c| {
                json!({"name": c, "statusContext": {"containerID": format!("containerd://{c}-0"), "restartCount": 0,
                    "image": format!("r.example/{c}:v1")}})
            })
            .collect();
        let request = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r1", "namespace": "a", "uid": "r1", "creationTimestamp": now(0).wall,
                "labels": {"crr.apps.kruise.io/pod-uid": "u1", "crr.kruise.rs/method": "PodSpec"}},
            "spec": {"podName": "web", "containers": listed, "strategy": strategy},
        }))
        .unwrap();
        let mut world =
            Self { request, pod, memory: RestartMemory::default(), clock: 0, patches: Vec::new(), trials: 0 };
        for name in containers {
            world.running(name, 0);
        }
        world
    }

    fn status(&mut self, name: &str) -> &mut Value {
        let list = self.pod["status"]["containerStatuses"].as_array_mut().unwrap();
        if let Some(index) = list.iter().position(|s| s["name"] == name) {
            return &mut list[index];
        }
        list.push(json!({"name": name, "imageID": format!("r.example/{name}@{D}")}));
        list.last_mut().unwrap()
    }

    /// kubelet reports an instance that runs and is ready.
    fn running(&mut self, name: &str, restarts: i32) {
        let started = now(self.clock).wall;
        let status = self.status(name);
        status["containerID"] = format!("containerd://{name}-{restarts}").into();
        status["restartCount"] = restarts.into();
        status["ready"] = true.into();
        status["state"] = json!({"running": {"startedAt": started}});
    }

    fn waiting(&mut self, name: &str, reason: &str, message: &str) {
        let finished = now(self.clock).wall;
        let status = self.status(name);
        status["ready"] = false.into();
        status["state"] = json!({"waiting": {"reason": reason, "message": message}});
        status["lastState"] = json!({"terminated": {"exitCode": 0, "finishedAt": finished}});
    }

    fn view(&self) -> PodView {
        serde_json::from_value(self.pod.clone()).unwrap()
    }

    fn look(&mut self) -> PodSpecPlan {
        plan(&self.request, &self.view(), &mut self.memory, now(self.clock))
    }

    fn patch(&mut self, respelling: Respelling) {
        for (name, image) in &respelling.images {
            for list in ["containers", "initContainers"] {
                for container in self.pod["spec"][list].as_array_mut().into_iter().flatten() {
                    if container["name"] == **name {
                        container["image"] = image.as_str().into();
                    }
                }
            }
        }
        self.pod["metadata"]["annotations"]["kruise.rs/image-spellings"] = respelling.annotation.as_str().into();
        self.patches.push(respelling);
    }

    /// Carries out what is planned until nothing is left to do now.
    fn settle(&mut self) {
        for _ in 0..10 {
            let plan = self.look();
            self.trials += usize::from(plan.trial.is_some());
            if plan.status.is_none() && plan.respelling.is_none() {
                return;
            }
            if let Some(status) = plan.status {
                self.request.status = Some(status);
            }
            if let Some(respelling) = plan.respelling {
                self.patch(respelling);
            }
        }
        panic!("it never rests: {:?}", self.request.status);
    }

    fn state(&self, index: usize) -> ContainerRecreateState {
        super::super::states_of(&self.request)[index].clone()
    }

    fn message(&self) -> &str {
        &self.request.status.as_ref().unwrap().message
    }
}

fn ordered() -> RecreateStrategy {
    RecreateStrategy { ordered_recreate: true, ..RecreateStrategy::default() }
}

#[test]
fn a_request_goes_from_trial_to_success() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.settle();
    let image = format!("r.example/main:v1@{D}");
    assert_eq!((world.trials, world.patches.len()), (1, 1));
    assert_eq!(world.patches[0].images, [("main".to_owned(), image.clone())]);
    let state = world.state(0);
    assert_eq!((&state.phase, state.is_killed, &state.image), (&Phase::Recreating, false, &image));
    assert_eq!((state.previous_container_id.as_str(), state.previous_restart_count), ("containerd://main-0", Some(0)));
    assert!(state.kill_started_at.is_some());

    world.clock = 1;
    world.running("main", 1);
    world.settle();
    let state = world.state(0);
    assert_eq!(
        (state.phase, state.container_id.as_str(), state.message.as_str()),
        (Phase::Succeeded, "containerd://main-1", "")
    );
    assert!(world.request.is_completed() && world.message().is_empty());
    assert_eq!((world.trials, world.patches.len()), (1, 1), "once each");
}

#[test]
fn a_denied_trial_ends_the_request_with_the_words_and_nothing_was_done() {
    let mut world = World::new(&["main", "other"], RecreateStrategy::default());
    let plan = world.look();
    assert_eq!(plan.trial.as_ref().map(|t| t.images.len()), Some(2), "all containers at once");
    // Recorded while it was tried.
    world.request.status = plan.status;
    let status = denied(&world.request, &world.view(), "images from r.example are not allowed", now(0)).unwrap();
    assert_eq!((&status.phase, status.completion_time.is_some()), (&Phase::Completed, true));
    assert_eq!(status.message, "the Pod cannot be changed: images from r.example are not allowed");
    for state in &status.container_recreate_states {
        assert_eq!((&state.phase, state.kill_started_at), (&Phase::Failed, None));
    }
    world.request.status = Some(status);
    assert_eq!(world.look(), PodSpecPlan::default());
}

#[test]
fn a_change_that_is_denied_after_its_trial_fails_its_containers() {
    for (policy, completed) in [(FailurePolicy::Fail, true), (FailurePolicy::Ignore, false)] {
        let mut world = World::new(&["main", "other"], RecreateStrategy { failure_policy: Some(policy), ..ordered() });
        let plan = world.look();
        world.request.status = plan.status;
        let respelling = plan.respelling.unwrap();
        assert_eq!(respelling.images.len(), 1);
        world.request.status = Some(denied_later(&world.request, &respelling, "no"));
        world.settle();
        assert_eq!(world.state(0).message, "the Pod cannot be changed: no");
        assert_eq!(world.request.is_completed(), completed, "{policy:?}");
        assert_eq!(world.patches.len(), usize::from(!completed), "the next container");
    }
}

#[test]
fn a_crash_between_any_two_steps_is_harmless() {
    // After the intent was recorded: the same target is patched.
    let mut world = World::new(&["main"], RecreateStrategy::default());
    let plan = world.look();
    world.request.status = plan.status;
    world.memory = RestartMemory::default();
    world.clock = 30;
    let again = world.look();
    assert_eq!((&again.trial, &again.status), (&None, &None));
    assert_eq!(again.respelling.as_ref().unwrap().images, plan.respelling.unwrap().images);
    // After the patch: an image spelled as recorded has been patched.
    world.patch(again.respelling.unwrap());
    world.memory = RestartMemory::default();
    world.settle();
    assert_eq!(world.patches.len(), 1);
    // After kubelet has acted.
    world.running("main", 1);
    world.memory = RestartMemory::default();
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Succeeded);
}

#[test]
fn an_instance_that_was_replaced_before_the_patch_is_not_restarted_again() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.request.status = world.look().status;
    world.running("main", 1);
    world.settle();
    assert_eq!((world.state(0).phase, world.patches.len()), (Phase::Succeeded, 0));
}

#[test]
fn an_instance_replaced_before_its_turn_counts_as_recreated_unless_forced() {
    for (force, patches) in [(false, 0), (true, 1)] {
        let mut world =
            World::new(&["main"], RecreateStrategy { force_recreate: force, ..RecreateStrategy::default() });
        world.running("main", 1);
        world.settle();
        assert_eq!(world.patches.len(), patches);
        if force {
            world.running("main", 2);
            world.settle();
        }
        assert_eq!(world.state(0).phase, Phase::Succeeded);
        assert_eq!(world.state(0).message.starts_with("already recreated"), !force);
    }
}

#[test]
fn ordered_requests_have_one_container_in_flight_and_others_are_patched_at_once() {
    let mut world = World::new(&["main", "other"], ordered());
    world.settle();
    assert_eq!(world.patches.len(), 1);
    world.running("main", 1);
    world.settle();
    assert_eq!(world.patches.len(), 2);
    assert_eq!(world.patches[1].images[0].0, "other");

    let mut world = World::new(&["main", "other"], RecreateStrategy::default());
    world.settle();
    assert_eq!((world.patches.len(), world.patches[0].images.len()), (1, 2));
}

#[test]
fn the_drain_comes_after_the_trial_and_before_the_patch() {
    let strategy = RecreateStrategy { unready_grace_period_seconds: Some(5), ..RecreateStrategy::default() };
    let mut world = World::new(&["main"], strategy);
    world.settle();
    assert_eq!((world.trials, world.patches.len(), world.request.phase()), (1, 0, &Phase::Recreating));
    world.request.status.as_mut().unwrap().conditions =
        super::super::manager::with_grace_condition(&world.request, now(0).wall);
    world.settle();
    assert_eq!(world.patches.len(), 0);
    world.clock = 5;
    world.settle();
    assert_eq!((world.trials, world.patches.len()), (1, 1));
}

#[test]
fn a_new_instance_has_to_be_ready_and_old_enough() {
    let mut world = World::new(&["main"], RecreateStrategy { min_started_seconds: 3, ..RecreateStrategy::default() });
    world.settle();
    world.running("main", 1);
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Recreating);
    world.status("main")["ready"] = false.into();
    world.clock = 4;
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Recreating);
    world.status("main")["ready"] = true.into();
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Succeeded);
}

#[test]
fn decision_2_three_crashes_or_a_stuck_start_fail_the_container() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.settle();
    world.running("main", 3);
    world.waiting("main", "CrashLoopBackOff", "back-off 10s");
    world.settle();
    assert!(world.state(0).message.starts_with("it was started again 3 times"), "{:?}", world.state(0));

    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.settle();
    world.waiting("main", "ErrImagePull", "registry is away");
    world.settle();
    assert_eq!(world.state(0).message, "stopped; kubelet: ErrImagePull: registry is away");
    world.clock = 60;
    world.settle();
    assert_eq!(world.state(0).message, "kubelet cannot start it: ErrImagePull: registry is away");
    assert!(world.request.is_completed());
}

#[test]
fn the_wait_that_is_expected_is_reported_and_kubelets_own_words_follow() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    // Restarted a moment ago under every spelling.
    world.status("main")["lastState"] = json!({"terminated": {"exitCode": 0, "finishedAt": now(0).wall}});
    let used = |image: String| json!({"image": image, "at": now(0).wall, "backoff": 10, "restarts": 0});
    world.pod["metadata"]["annotations"]["kruise.rs/image-spellings"] = json!({"main": {"name": "r.example/main",
        "digest": D, "tag": "v1", "used": [used(format!("r.example/main:v1@{D}")), used(format!("r.example/main@{D}"))]}})
    .to_string()
    .into();
    world.clock = 3;
    world.settle();
    assert!(world.state(0).message.contains("kubelet will start it in about 10 s: "), "{}", world.state(0).message);
    let request = World::new(&["main"], RecreateStrategy::default()).request;
    let news = super::super::news(&request, &world.request.status.as_ref().unwrap().container_recreate_states);
    assert_eq!((news.len(), news[0].reason), (1, "BackOffExpected"));
    world.waiting("main", "CrashLoopBackOff", "back-off 10s restarting failed container");
    world.settle();
    assert_eq!(world.state(0).message, "stopped; kubelet: CrashLoopBackOff: back-off 10s restarting failed container");
}

#[test]
fn a_container_that_kubelet_holds_back_is_started_under_another_spelling() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.waiting("main", "CrashLoopBackOff", "back-off 5m0s");
    world.settle();
    assert_eq!(world.patches.len(), 1);
    world.running("main", 1);
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Succeeded);
}

#[test]
fn an_image_that_somebody_else_changes_is_left_as_it_is() {
    // Before its turn.
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.pod["spec"]["containers"][0]["image"] = "r.example/main:v2".into();
    world.settle();
    assert_eq!(world.patches.len(), 0);
    assert!(world.state(0).message.contains("changed to r.example/main:v2"), "{}", world.state(0).message);
    world.running("main", 1);
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Succeeded);

    // Between the intent and the patch: the recorded digest would take the change back.
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.request.status = world.look().status;
    world.pod["spec"]["containers"][0]["image"] = "r.example/main:v2".into();
    world.settle();
    assert_eq!(world.patches.len(), 0);
    world.running("main", 1);
    world.settle();
    assert_eq!(world.state(0).phase, Phase::Succeeded);
}

#[test]
fn a_target_that_somebody_wrote_into_the_status_is_not_trusted() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    let mut status = world.look().status.unwrap();
    status.container_recreate_states[0].image = format!("r.example/main@sha256:{}", "e".repeat(64));
    world.request.status = Some(status);
    world.settle();
    assert!(world.patches[0].images[0].1.ends_with(D), "{:?}", world.patches);
}

#[test]
fn without_a_digest_the_container_fails_and_nothing_is_tried() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.status("main")["imageID"] = "sha256:1".into();
    world.settle();
    assert_eq!((world.trials, world.patches.len()), (0, 0));
    assert!(world.state(0).message.contains("has no registry digest"));
    assert!(world.request.is_completed() && super::super::states_of(&world.request).iter().all(is_terminal));
}

#[test]
fn restart_policy_never_is_served_and_a_failed_start_ends_it() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    world.pod["spec"]["restartPolicy"] = "Never".into();
    world.settle();
    assert!(world.state(0).message.contains("a start that fails is not tried again: restartPolicy is Never"));
    world.status("main")["state"] = json!({"terminated": {"exitCode": 1}});
    world.settle();
    assert!(world.state(0).message.starts_with("stopped; kubelet does not start it again: restartPolicy is Never"));
}

#[test]
fn native_sidecars_are_respelled_too() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    let mut sidecar = world.pod["spec"]["containers"][0].take();
    sidecar["restartPolicy"] = "Always".into();
    world.pod["spec"]["containers"] = json!([]);
    world.pod["spec"]["initContainers"] = json!([sidecar]);
    world.pod["status"]["initContainerStatuses"] = world.pod["status"]["containerStatuses"].take();
    world.settle();
    assert_eq!(world.patches.len(), 1);
}

#[test]
fn what_is_older_than_the_request_is_recognised() {
    let mut world = World::new(&["main"], RecreateStrategy::default());
    assert!(agrees(&world.request, &world.view()));
    world.running("main", 1);
    assert!(!agrees(&world.request, &world.view()));
}
