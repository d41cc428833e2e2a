//! Adoption, as after a restore from a backup: Pods, claims and revisions come back without owners and before their
//! CloneSet, which has another UID and no status.

use super::*;

const SET: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web";
const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions";

/// The objects below a path.
fn below(world: &World, path: &str) -> Vec<Value> {
    let below = format!("{path}/");
    lock(&world.server).objects.iter().filter(|(at, _)| at.starts_with(&below)).map(|(_, one)| one.clone()).collect()
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

/// The UIDs of the owners.
fn owners(objects: &[Value]) -> Vec<&str> {
    let references = objects.iter().filter_map(|object| object["metadata"]["ownerReferences"].as_array());
    references.flatten().map(|owner| owner["uid"].as_str().unwrap()).collect()
}

/// What was made.
fn made(world: &World) -> Vec<String> {
    world.writes().into_iter().filter(|(method, ..)| *method == Method::POST).map(|(_, path, _)| path).collect()
}

/// A CloneSet with two Pods and two claims, of which a backup was restored. The controller has seen nothing but the
/// CloneSet.
async fn restored(spec: Value, adopts: &str) -> World {
    let before = World::new();
    before.put_clone_set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}]}));
    before.put_clone_set(spec);
    before.go_on().await;
    {
        let mut server = lock(&before.server);
        for object in server.objects.values_mut() {
            object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            object.as_object_mut().unwrap().remove("status");
        }
        let set = server.objects.get_mut(SET).unwrap();
        set["metadata"]["uid"] = "restored".into();
        set["metadata"]["annotations"] = json!({"kruise.rs/adopt-orphans": adopts});
        server.writes.clear();
    }
    let world = World::of(before.server.clone());
    world.put_clone_set(json!({}));
    world
}

async fn pass(world: &World) -> kube::Result<Requeue> {
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await
}

#[tokio::test]
async fn a_restore_duplicates_nothing() {
    let world = restored(json!({}), "true").await;
    let (pods, claims) = (world.pods(), below(&world, CLAIMS));
    assert_eq!((pods.len(), claims.len(), owners(&pods).len()), (2, 2, 0));
    world.go_on().await;
    assert_eq!(made(&world), [""; 0], "no second Pod, claim or revision");
    assert_eq!((ups(&world.pods()), ups(&below(&world, CLAIMS))), (ups(&pods), ups(&claims)));
    for path in [NAMESPACE, CLAIMS] {
        assert_eq!(owners(&below(&world, path)), ["restored", "restored"], "{path}");
    }
    assert_eq!(owners(&below(&world, REVISIONS)), ["restored"]);
    let status = world.status();
    assert_eq!((&status["updatedAvailableReplicas"], &status["replicas"]), (&json!(2), &json!(2)), "{status}");
    // They are its own: a scale-down takes Pod and claim.
    world.put_clone_set(json!({"replicas": 1}));
    world.go_on().await;
    assert_eq!((world.pods().len(), below(&world, CLAIMS).len()), (1, 1));
}

#[tokio::test]
async fn without_the_annotation_nothing_is_adopted() {
    let world = restored(json!({}), "false").await;
    let (pods, claims) = (world.pods(), below(&world, CLAIMS));
    world.go_on().await;
    assert_eq!((world.pods().len(), below(&world, CLAIMS).len()), (4, 4));
    let left = |all: Vec<Value>| owners(&all).len();
    assert_eq!((left(world.pods()), left(below(&world, CLAIMS))), (2, 2));
    let is_left = |old: &Value, now: &[Value]| now.iter().any(|now| now["metadata"]["uid"] == old["metadata"]["uid"]);
    assert!(pods.iter().all(|pod| is_left(pod, &world.pods())));
    assert!(claims.iter().all(|claim| is_left(claim, &below(&world, CLAIMS))));
}

#[tokio::test]
async fn claims_that_were_restored_without_their_pods_get_new_ones() {
    let world = restored(json!({}), "true").await;
    let (pods, claims) = (world.pods(), below(&world, CLAIMS));
    lock(&world.server).objects.retain(|path, _| !path.starts_with(NAMESPACE));
    world.go_on().await;
    assert_eq!(names(&world.pods()), names(&pods));
    assert_eq!(ups(&below(&world, CLAIMS)), ups(&claims));
}

#[tokio::test]
async fn where_claims_are_not_used_again_those_without_a_pod_are_left_alone() {
    let world = restored(json!({"scaleStrategy": {"disablePVCReuse": true}}), "true").await;
    let (pods, claims) = (world.pods(), below(&world, CLAIMS));
    let gone = format!("{NAMESPACE}/{}", names(&pods)[0]);
    lock(&world.server).objects.remove(&gone);
    world.go_on().await;
    let now = below(&world, CLAIMS);
    assert_eq!((world.pods().len(), now.len()), (2, 3));
    assert!(claims.iter().all(|claim| names(&now).contains(&names(std::slice::from_ref(claim))[0])), "none is deleted");
    assert_eq!(owners(&now).len(), 2);
}

#[tokio::test]
async fn no_pod_is_created_for_one_that_cannot_be_adopted() {
    let world = restored(json!({}), "true").await;
    world.put_clone_set(json!({"replicas": 3}));
    let pods = world.pods();
    let refused = format!("{NAMESPACE}/{}", names(&pods)[0]);
    lock(&world.server).refused.insert(refused.clone());
    for _ in 0..5 {
        drop(pass(&world).await);
        world.play();
    }
    assert_eq!(world.pods().len(), 3, "the one that nothing stands for");
    assert_eq!(owners(&world.pods()).len(), 2);
    assert_eq!(world.failures(), ["FailedScale"]);
    lock(&world.server).refused.clear();
    world.go_on().await;
    assert_eq!((world.pods().len(), owners(&world.pods()).len()), (3, 3));
    assert!(world.failures().is_empty());
}

#[tokio::test]
async fn no_pod_is_created_before_orphans_were_looked_for() {
    for code in [403, 500] {
        let world = restored(json!({}), "true").await;
        lock(&world.server).faults.push((Method::GET, format!("{NAMESPACE}$"), code));
        assert!(pass(&world).await.is_err(), "{code}");
        assert_eq!(made(&world), [""; 0], "{code}");
        world.go_on().await;
        assert_eq!(world.pods().len(), 2, "{code}");
    }
}

#[tokio::test]
async fn claims_are_not_read_for_a_clone_set_without_claim_templates() {
    let world = restored(json!({"volumeClaimTemplates": null}), "true").await;
    lock(&world.server).faults.push((Method::GET, format!("{CLAIMS}$"), 500));
    assert!(pass(&world).await.is_ok());
    assert_eq!(owners(&world.pods()).len(), 2);
}

#[tokio::test]
async fn a_pod_that_cannot_be_adopted_now_does_not_keep_others_out_of_service() {
    let world = restored(json!({}), "true").await;
    let orphan = format!("{NAMESPACE}/{}", names(&world.pods())[0]);
    // Adopted, and to get its first state next.
    let other = names(&world.pods())[1].to_owned();
    for _ in 0..5 {
        lock(&world.server).faults.push((Method::PATCH, orphan.clone(), 500));
        drop(pass(&world).await);
        world.play();
    }
    assert_eq!(owners(&world.pods()).len(), 1);
    let pods = world.pods();
    let open = |pod: &&Value| {
        pod["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "InPlaceUpdateReady" && c["status"] == "True"))
    };
    let opened: Vec<&str> = pods.iter().filter(open).map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(opened, [other.as_str()]);
    assert_eq!(made(&world), [""; 0]);
}

#[tokio::test]
async fn a_conflict_is_looked_at_again() {
    let world = restored(json!({}), "true").await;
    let pod = format!("{NAMESPACE}/{}", names(&world.pods())[0]);
    lock(&world.server).faults.push((Method::PATCH, pod, 409));
    assert_eq!(pass(&world).await.unwrap(), Requeue::After(Duration::ZERO));
    assert_eq!(owners(&world.pods()).len(), 1);
    world.go_on().await;
    assert_eq!((world.pods().len(), owners(&world.pods()).len()), (2, 2));
}

#[tokio::test]
async fn a_clone_set_that_is_being_deleted_adopts_nothing() {
    let world = restored(json!({}), "true").await;
    {
        // The store does not know it yet.
        let mut server = lock(&world.server);
        server.objects.get_mut(SET).unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        for (_, revision) in server.objects.iter_mut().filter(|(path, _)| path.starts_with(REVISIONS)) {
            revision["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps.kruise.io/v1alpha1",
                "kind": "CloneSet", "name": "web", "uid": "restored", "controller": true}]);
        }
    }
    assert!(is_soon(pass(&world).await.unwrap()));
    assert_eq!((owners(&world.pods()).len(), world.pods().len()), (0, 2));
    assert_eq!(owners(&below(&world, CLAIMS)).len(), 0);
}

#[tokio::test]
async fn what_nobody_controls_wakes_the_clone_set_that_adopts() {
    for (adopts, wakes) in [("true", true), ("false", false)] {
        let world = restored(json!({}), adopts).await;
        let pod: Arc<PodView> = Arc::new(serde_json::from_value(world.pods().remove(0)).unwrap());
        world.controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
        assert_eq!(world.controller.queue.begin().is_some(), wakes, "Pod, {adopts}");
        let world = restored(json!({}), adopts).await;
        let claim: Arc<ClaimView> = Arc::new(serde_json::from_value(below(&world, CLAIMS).remove(0)).unwrap());
        world.controller.claim_changed(&Change::Applied { old: None, new: &claim, initial: false });
        assert_eq!(world.controller.queue.begin().is_some(), wakes, "claim, {adopts}");
    }
}
