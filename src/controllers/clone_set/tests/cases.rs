//! Edge cases and stuck paths of the specification that no other test is named after.

use super::*;
use crate::{
    domain::pod::{lifecycle::State, refresh},
    k8s::time::Now,
};

const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions/";

fn claims() -> Value {
    json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}])
}

fn image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}})
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

impl World {
    async fn up(changes: Value) -> Self {
        let world = Self::new();
        world.put_clone_set(changes);
        world.go_on().await;
        world
    }

    fn objects(&self, path: &str) -> Vec<Value> {
        lock(&self.server).objects.iter().filter(|(p, _)| p.starts_with(path)).map(|(_, o)| o.clone()).collect()
    }

    /// A Pod that nobody here deleted is gone.
    fn lose(&self, pod: &Value) {
        lock(&self.server).objects.remove(&format!("{NAMESPACE}/{}", name(pod)));
        self.controller.context.pods.remove(&ObjectKey::new("ns", name(pod)), pod["metadata"]["uid"].as_str());
    }

    /// Somebody else writes the objects below a path.
    fn edit(&self, path: &str, change: impl Fn(&mut Value)) {
        let mut server = lock(&self.server);
        server.version += 1;
        let version = server.version.to_string();
        for (_, object) in server.objects.iter_mut().filter(|(p, _)| p.starts_with(path)) {
            change(object);
            object["metadata"]["resourceVersion"] = version.clone().into();
        }
    }

    /// How many Pods were made or written.
    fn pod_writes(&self) -> usize {
        self.writes().iter().filter(|(_, path, _)| path.starts_with(NAMESPACE)).count()
    }
}

#[tokio::test]
async fn case_03_a_pod_that_waits_for_its_update_is_let_go_when_the_partition_keeps_it() {
    for (kept, label, state) in [
        (json!({"updateStrategy": {"partition": 1}}), "yes", "Normal"),
        (json!({"updateStrategy": {"type": "OnDelete"}}), "yes", "Normal"),
        // Its hook has let go already, and has to come back.
        (json!({"updateStrategy": {"partition": 1}}), "no", "Updated"),
        (json!({"updateStrategy": {"partition": 1}, "lifecycle": null}), "no", "Normal"),
    ] {
        let lifecycle = json!({"inPlaceUpdate": {"labelsHandler": {"hold": "yes"}, "markPodNotReady": true}});
        let world = World::up(json!({"replicas": 1, "lifecycle": lifecycle,
            "template": {"metadata": {"labels": {"hold": "yes"}}}}))
        .await;
        let is = |world: &World| world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"].clone();
        world.put_clone_set(image("i:2"));
        world.go_on().await;
        assert_eq!(is(&world), "PreparingUpdate");
        world.edit(NAMESPACE, |pod| pod["metadata"]["labels"]["hold"] = label.into());
        world.play();
        world.put_clone_set(kept.clone());
        world.go_on().await;
        assert_eq!((is(&world), images(&world.pods())), (json!(state), vec!["i:1"]), "{kept} {label}");
        let conditions = world.pods()[0]["status"]["conditions"].as_array().unwrap().clone();
        assert!(conditions.iter().all(|c| c["status"] == "True"), "{kept} {label}: {conditions:?}");
        if state == "Updated" {
            world.edit(NAMESPACE, |pod| pod["metadata"]["labels"]["hold"] = "yes".into());
            world.play();
            world.go_on().await;
            assert_eq!(is(&world), "Normal");
        }
    }
}

#[tokio::test]
async fn case_20_a_change_of_expected_updated_replicas_alone_is_written() {
    let world = World::up(json!({"replicas": 4})).await;
    assert_eq!(world.status()["expectedUpdatedReplicas"], 4);
    world.put_clone_set(json!({"updateStrategy": {"partition": "50%"}}));
    world.go_on().await;
    assert_eq!(world.status()["expectedUpdatedReplicas"], 2);
}

#[tokio::test]
async fn case_21_a_claim_that_is_being_deleted_blocks_nothing_and_is_not_used_again() {
    let world = World::up(json!({"replicas": 1, "volumeClaimTemplates": claims()})).await;
    let pod = world.pods().remove(0);
    let mut claim = world.objects(CLAIMS).remove(0);
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    claim["metadata"]["resourceVersion"] = "900".into();
    world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    world.lose(&pod);
    world.go_on().await;
    let now = world.pods();
    assert_eq!(now.len(), 1);
    assert_ne!(name(&now[0]), name(&pod));
    assert_eq!(world.objects(CLAIMS).len(), 2, "one is going, the other is its successor's");
}

#[tokio::test]
async fn case_25_the_claims_of_a_pod_that_was_let_go_are_not_given_to_another_one_while_it_is_there() {
    let world = World::up(json!({"replicas": 1, "volumeClaimTemplates": claims()})).await;
    let mut pod = world.pods().remove(0);
    pod["metadata"]["labels"]["app"] = "other".into();
    {
        let mut server = lock(&world.server);
        server.version += 1;
        pod["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(format!("{NAMESPACE}/{}", name(&pod)), pod.clone());
    }
    world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
    world.go_on().await;
    assert_eq!((world.pods().len(), world.objects(CLAIMS).len()), (2, 2), "another Pod with claims of its own");
    assert_eq!((&world.status()["availableReplicas"], world.failures().len()), (&json!(1), 0));
    world.lose(&pod);
    world.put_clone_set(json!({"replicas": 2}));
    world.go_on().await;
    assert!(world.pods().iter().any(|next| name(next) == name(&pod)), "what it has left is used");
    assert_eq!((world.pods().len(), world.objects(CLAIMS).len()), (2, 2));
}

#[tokio::test]
async fn case_22_without_reuse_claims_follow_a_pod_that_cannot_end() {
    let world = World::up(json!({"replicas": 1, "volumeClaimTemplates": claims(),
        "scaleStrategy": {"disablePVCReuse": true}}))
    .await;
    let mut pod = world.pods().remove(0);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    pod["metadata"]["resourceVersion"] = "900".into();
    world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
    world.settle().await.unwrap();
    let claims = world.objects(CLAIMS);
    let owner = |claim: &Value| claim["metadata"]["ownerReferences"][0]["kind"].as_str().unwrap().to_owned();
    let (old, new): (Vec<_>, Vec<_>) = claims.iter().partition(|claim| name(claim).ends_with(name(&pod)));
    assert_eq!((owner(old[0]), owner(new[0])), ("Pod".to_owned(), "CloneSet".to_owned()));
    assert_eq!(world.pods().len(), 2, "it is replaced under another id");
}

#[tokio::test]
async fn case_23_claim_templates_alone_make_no_revision_and_a_missing_hash_means_in_place() {
    let world = World::with_gates(&["RecreatePodWhenChangeVCTInCloneSetGate=true"]);
    world.put_clone_set(json!({"replicas": 1, "volumeClaimTemplates": claims()}));
    world.go_on().await;
    let before = world.pods();
    world.put_clone_set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 2}}]}));
    world.go_on().await;
    assert_eq!(world.objects(REVISIONS).len(), 1);
    // As written by a release that did not know of it.
    world.edit(REVISIONS, |revision| revision["metadata"]["annotations"] = Value::Null);
    world.put_clone_set(image("i:2"));
    world.go_on().await;
    assert_eq!((ups(&world.pods()), images(&world.pods())), (ups(&before), vec!["i:2"]));
    world.put_clone_set(json!({"replicas": 2}));
    world.go_on().await;
    assert!(world.objects(CLAIMS).iter().any(|claim| claim["spec"]["x"] == 2), "new Pods have new claims");
}

#[tokio::test]
async fn case_24_a_roll_back_to_a_revision_without_annotations_works() {
    let world = World::up(json!({})).await;
    let first = world.status()["updateRevision"].clone();
    world.put_clone_set(image("i:2"));
    world.go_on().await;
    world.edit(REVISIONS, |revision| {
        revision["metadata"].as_object_mut().unwrap().remove("annotations");
    });
    world.put_clone_set(image("i:1"));
    world.go_on().await;
    assert_eq!((world.status()["updateRevision"].clone(), images(&world.pods())), (first, vec!["i:1", "i:1"]));
}

/// Whether news of a Pod wakes its CloneSet.
fn wakes(world: &World, change: impl Fn(&mut Value)) -> bool {
    let pod = world.pods().remove(0);
    let mut changed = pod.clone();
    change(&mut changed);
    changed["metadata"]["resourceVersion"] = "900".into();
    let view = |pod: Value| Arc::new(serde_json::from_value::<PodView>(pod).unwrap());
    let (old, new) = (view(pod), view(changed));
    let queue = |world: &World| world.controller.queue.depth();
    let before = queue(world);
    world.controller.pod_changed(&Change::Applied { old: Some(&old), new: &new, initial: false });
    queue(world) > before
}

#[tokio::test]
async fn case_26_a_pod_that_ends_wakes_the_controller() {
    for phase in ["Failed", "Succeeded"] {
        let world = World::up(json!({"replicas": 1})).await;
        assert!(wakes(&world, |pod| pod["status"]["phase"] = phase.into()), "{phase}");
    }
}

#[tokio::test]
async fn case_27_a_finalizer_of_any_hook_wakes_the_controller() {
    for hook in ["preDelete", "inPlaceUpdate", "preNormal"] {
        let lifecycle = json!({hook: {"finalizersHandler": [format!("example.com/{hook}")]}});
        let world = World::up(json!({"replicas": 1, "lifecycle": lifecycle})).await;
        let finalizers = json!([format!("example.com/{hook}")]);
        assert!(wakes(&world, |pod| pod["metadata"]["finalizers"] = finalizers.clone()), "{hook}");
    }
}

#[test]
fn case_30_labels_of_hooks_are_written_to_a_pod_without_any() {
    let pod: PodView =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}})).unwrap();
    let lifecycle = serde_json::from_value(
        json!({"inPlaceUpdate": {"labelsHandler": {"hold": "yes"}, "finalizersHandler": ["e/f"]}}),
    );
    let now: Now = clock::now();
    let patch = refresh::move_to(&pod, State::PreparingUpdate, &lifecycle.unwrap(), true, now).unwrap();
    let labels = json!({"hold": "yes", "lifecycle.apps.kruise.io/state": "PreparingUpdate"});
    assert_eq!((&patch["metadata"]["labels"], &patch["metadata"]["finalizers"]), (&labels, &json!(["e/f"])));
    assert!(patch["metadata"]["annotations"]["lifecycle.apps.kruise.io/timestamp"].is_string());
}

#[tokio::test]
async fn case_34_a_manager_that_starts_anew_makes_nothing_twice() {
    let world = World::up(json!({"volumeClaimTemplates": claims()})).await;
    let successor = World::of(world.server.clone());
    for claim in world.objects(CLAIMS) {
        successor.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    }
    successor.play();
    world.writes();
    successor.put_clone_set(json!({}));
    successor.go_on().await;
    assert_eq!(successor.pod_writes(), 0);
    assert_eq!((successor.pods().len(), successor.objects(CLAIMS).len()), (2, 2));
}

#[tokio::test]
async fn shortfall_03_a_part_of_a_percent_counts_as_admission_counts_it() {
    let world = World::up(json!({"replicas": 16, "updateStrategy": {"maxUnavailable": "12.5%"}})).await;
    world.put_clone_set(image("i:2"));
    world.settle().await.unwrap();
    assert_eq!(images(&world.pods()).iter().filter(|image| **image == "i:2").count(), 2);
}

#[tokio::test]
async fn shortfall_09_a_second_update_writes_what_the_first_one_had_still_to_write() {
    let template = |[main, side]: [&str; 2]| {
        let container = |name: &str, image: &str, priority: &str| {
            let barrier = json!({"configMapKeyRef": {"name": "barrier", "key": priority}});
            json!({"name": name, "image": image, "env": [{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": barrier}]})
        };
        let containers = [container("main", main, "p_2"), container("side", side, "p_1")];
        json!({"replicas": 1, "template": {"spec": {"containers": containers}}})
    };
    let all = |world: &World| -> Vec<String> {
        let pods = world.pods();
        let containers = pods[0]["spec"]["containers"].as_array().unwrap();
        containers.iter().map(|container| container["image"].as_str().unwrap().to_owned()).collect()
    };
    // The image alone is mended; another change of both; all the way back.
    for next in [["m:3", "s:2"], ["m:3", "s:3"], ["m:1", "s:1"]] {
        let world = World::up(template(["m:1", "s:1"])).await;
        let before = world.pods();
        world.put_clone_set(template(["bad", "s:2"]));
        world.settle().await.unwrap();
        assert_eq!(all(&world), ["bad", "s:1"], "the second batch waits for the first one");
        world.put_clone_set(template(next));
        world.settle().await.unwrap();
        assert_eq!(all(&world)[0], next[0], "nobody waits for the bad image");
        world.go_on().await;
        assert_eq!((all(&world), ups(&world.pods())), (next.map(str::to_owned).to_vec(), ups(&before)));
        assert_eq!(world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Normal");
        assert_eq!(world.status()["updatedReadyReplicas"], 1);
    }
}

#[tokio::test]
async fn shortfall_13_broken_pods_go_although_no_pod_may_be_made() {
    let world = World::up(json!({"replicas": 2, "scaleStrategy": {"maxUnavailable": 1}})).await;
    // The first comes up before the second is made.
    let broken = world.pods().remove(0);
    world.edit(&format!("{NAMESPACE}/{}", name(&broken)), |pod| {
        pod["metadata"]["labels"]["apps.kruise.io/specified-delete"] = "".into();
        pod["status"]["conditions"] =
            json!([{"type": "InPlaceUpdateReady", "status": "True"}, {"type": "Ready", "status": "False"}]);
    });
    let seen = world.objects(&format!("{NAMESPACE}/{}", name(&broken))).remove(0);
    world.controller.context.pods.upsert(serde_json::from_value(seen).unwrap());
    world.put_clone_set(json!({"replicas": 5, "scaleStrategy": {"maxUnavailable": 0}}));
    world.settle().await.unwrap();
    assert!(world.pods().iter().all(|pod| name(pod) != name(&broken)));
}

#[tokio::test]
async fn shortfall_14_what_was_written_last_and_never_seen_again_holds_nothing_up() {
    let world = World::up(json!({})).await;
    // Gone, and the watch says nothing of it.
    let gone = world.pods().remove(0);
    lock(&world.server).objects.remove(&format!("{NAMESPACE}/{}", name(&gone)));
    world.put_clone_set(image("i:2"));
    world.go_on().await;
    assert_eq!(images(&world.pods()), ["i:2", "i:2"]);
    assert_eq!(world.status()["availableReplicas"], 2);
}

#[tokio::test]
async fn shortfall_15_what_lasts_is_reported_once() {
    let events = |world: &World| world.controller.context.metrics.events_dropped.get();
    // Nobody sends the events of these tests: all of them count as dropped.
    let world = World::new();
    world.put_clone_set(json!({"replicas": 5, "scaleStrategy": {"maxUnavailable": 1}}));
    world.settle().await.unwrap();
    assert_eq!(events(&world), 2, "one Pod was made, the others wait");
    for _ in 0..5 {
        world.settle().await.unwrap();
    }
    assert_eq!(events(&world), 2);
    // A Pod that is marked for its replacement and held by its hook.
    let lifecycle = json!({"preDelete": {"labelsHandler": {"hold": "yes"}}});
    let world = World::up(json!({"replicas": 1, "lifecycle": lifecycle, "updateStrategy": {"type": "ReCreate"},
        "template": {"metadata": {"labels": {"hold": "yes"}}}}))
    .await;
    world.put_clone_set(image("i:2"));
    world.go_on().await;
    assert_eq!(world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "PreparingDelete");
    let before = events(&world);
    world.go_on().await;
    assert_eq!(events(&world), before);
}

#[tokio::test]
async fn shortfall_18_a_spec_without_a_number_and_a_barrier_without_a_key_are_no_trouble() {
    let world =
        World::up(json!({"replicas": null, "template": {"spec": {"containers": [{"name": "main", "image": "i:1",
        "env": [{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {}}, {"name": "KRUISE_CONTAINER_BARRIER"}]}]}}}))
        .await;
    assert_eq!(world.pods().len(), 1);
    world.put_clone_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2",
        "env": [{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {}}, {"name": "KRUISE_CONTAINER_BARRIER"}]}]}}}));
    world.go_on().await;
    assert_eq!(images(&world.pods()), ["i:2"]);
}

#[tokio::test]
async fn shortfall_22_volumes_of_claims_have_the_order_of_their_templates() {
    let names = ["z", "a", "m", "b"];
    let templates: Vec<Value> =
        names.iter().map(|name| json!({"metadata": {"name": name}, "spec": {"x": 1}})).collect();
    let world = World::up(json!({"replicas": 5, "volumeClaimTemplates": templates})).await;
    for pod in world.pods() {
        let volumes: Vec<&str> =
            pod["spec"]["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        assert_eq!(volumes, names);
    }
}

#[tokio::test]
async fn shortfall_24_a_deletion_that_is_taken_back_returns_the_pod_to_its_update() {
    let lifecycle = json!({"preDelete": {"labelsHandler": {"hold": "yes"}}});
    let world = World::up(json!({"replicas": 1, "lifecycle": lifecycle,
        "template": {"metadata": {"labels": {"hold": "yes"}}}}))
    .await;
    let state = |world: &World| world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"].clone();
    world.put_clone_set(image("i:2"));
    world.settle().await.unwrap();
    assert_eq!(state(&world), "Updating");
    world.put_clone_set(json!({"replicas": 0}));
    world.settle().await.unwrap();
    assert_eq!(state(&world), "PreparingDelete");
    world.put_clone_set(json!({"replicas": 1}));
    world.settle().await.unwrap();
    assert_eq!(state(&world), "Updating", "it was in the middle of an update");
    world.go_on().await;
    assert_eq!((state(&world), images(&world.pods())), (json!("Normal"), vec!["i:2"]));
}

/// The watch has not shown yet what somebody has written last.
#[tokio::test]
async fn a_hook_that_takes_hold_again_just_before_the_deletion_keeps_the_pod_and_its_claims() {
    let lifecycle = json!({"preDelete": {"labelsHandler": {"hold": "yes"}}});
    let (again, other) = (json!({"metadata": {"labels": {"hold": "yes"}}}), json!({"status": {"message": "m"}}));
    for (changes, is_held) in [(again, true), (other, false)] {
        let world = World::up(json!({"replicas": 1, "lifecycle": lifecycle, "volumeClaimTemplates": claims(),
            "template": {"metadata": {"labels": {"hold": "yes"}}}}))
        .await;
        world.put_clone_set(json!({"replicas": 0}));
        world.settle().await.unwrap();
        assert_eq!(world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "PreparingDelete");
        world.edit(NAMESPACE, |pod| pod["metadata"]["labels"]["hold"] = "no".into());
        for pod in world.pods() {
            world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
        }
        world.edit(NAMESPACE, |pod| json_patch::merge(pod, &changes));
        world.writes();
        world.settle().await.unwrap();
        let sent = world.writes();
        let deleted = sent.iter().filter(|write| write.0 == Method::DELETE && write.1.starts_with(NAMESPACE));
        assert_eq!(deleted.count(), if is_held { 1 } else { 2 }, "{sent:?}");
        let left = usize::from(is_held);
        assert_eq!((world.pods().len(), world.objects(CLAIMS).len()), (left, left));
    }
}

#[tokio::test]
async fn shortfall_26_a_pod_without_an_id_takes_no_claims_with_it() {
    let world = World::up(json!({"replicas": 1, "volumeClaimTemplates": claims()})).await;
    let instance = "apps.kruise.io/cloneset-instance-id";
    for path in [CLAIMS, NAMESPACE] {
        world.edit(path, |object| {
            object["metadata"]["labels"].as_object_mut().unwrap().remove(instance);
        });
    }
    for claim in world.objects(CLAIMS) {
        world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    }
    world.play();
    world.put_clone_set(json!({"replicas": 0}));
    world.go_on().await;
    assert_eq!((world.pods().len(), world.objects(CLAIMS).len()), (0, 1));
}
