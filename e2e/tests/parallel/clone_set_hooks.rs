//! CloneSet: lifecycle hooks, with which another controller (here the test) holds up what is done to a Pod.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace};
use serde_json::{Value, json};

use crate::clone_set::{
    CLONE_SET, STATE, clone_set, image, in_place, pods, pulled, rolled_out, set_image, started, uids,
};

const STAMP: &str = "/metadata/annotations/lifecycle.apps.kruise.io~1timestamp";
const FINALIZER: &str = "example.com/unready-blocker";

async fn in_state(t: &Test, pod: &str, state: &str) -> Result<Value> {
    t.wait_for("Pod", pod, &format!("to be {state}"), PATIENCE, |p| p.text(STATE) == state).await
}

/// That nothing happens for a while is all that can be seen of a hold.
async fn stays(t: &Test, pod: &Value) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let now = t.get("Pod", pod.text("/metadata/name")).await?;
    assert_eq!((now.text("/metadata/uid"), now.text(STATE)), (pod.text("/metadata/uid"), pod.text(STATE)));
    ensure!(!now.has("/metadata/deletionTimestamp"), "it is deleted although its hook holds it");
    assert_eq!(now["spec"]["containers"], pod["spec"]["containers"], "it is changed although its hook holds it");
    Ok(())
}

/// The keys by which a Pod is held NotReady.
fn keys(pod: &Value) -> &str {
    let conditions = pod.array("/status/conditions");
    conditions.iter().find(|c| c.text("/type") == "KruisePodReady").map_or("", |c| c.text("/message"))
}

#[tokio::test]
async fn a_deletion_waits_for_its_label_and_is_taken_back_when_it_is_not_wanted_any_more() -> Result<()> {
    in_namespace("cs-pre-delete", async |t| {
        let set = clone_set("web", 2, vec![app("main")])
            .with("/spec/lifecycle/preDelete/labelsHandler", json!({ "example.com/block": "yes" }))
            .with("/spec/template/metadata/labels/example.com~1block", "yes");
        let all = started(t, set).await?;
        let seen = t.record(CLONE_SET, "web").await?;
        t.kubectl(&["scale", "clone/web", "--replicas=1"]).await?;
        let held = t.wait_for(CLONE_SET, "web", "to hold one", PATIENCE, |o| o.int("/status/availableReplicas") == 1);
        let held = held.await?;
        assert_eq!((held.int("/status/replicas"), held.int("/status/readyReplicas")), (2, 2), "it is still there");
        let all_now = pods(t, "web").await?;
        let victim = all_now.iter().find(|p| p.text(STATE) == "PreparingDelete").context("one is to go")?;
        ensure!(victim.text(STAMP).parse::<jiff::Timestamp>().is_ok(), "{:?}", victim.text(STAMP));
        stays(t, victim).await?;
        // taken back
        t.kubectl(&["scale", "clone/web", "--replicas=2"]).await?;
        let name = victim.text("/metadata/name");
        in_state(t, name, "Normal").await?;
        rolled_out(t, "web").await?;
        assert_eq!(uids(&all), uids(&pods(t, "web").await?), "no Pod was made or deleted");
        // and let go
        t.patch(CLONE_SET, "web", json!({ "spec": { "replicas": 1, "scaleStrategy": { "podsToDelete": [name] } } }))
            .await?;
        in_state(t, name, "PreparingDelete").await?;
        t.kubectl(&["label", "pod", name, "example.com/block=no", "--overwrite"]).await?;
        t.gone("Pod", name).await?;
        rolled_out(t, "web").await?;
        ensure!(seen.states().iter().all(|(_, o)| o.int("/status/replicas") <= 2), "a Pod too many was made");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deletion_waits_for_its_finalizer_and_the_pod_is_not_ready_meanwhile() -> Result<()> {
    in_namespace("cs-finalizer", async |t| {
        let set = clone_set("web", 1, vec![app("main")])
            .with("/spec/lifecycle/preDelete", json!({ "finalizersHandler": [FINALIZER], "markPodNotReady": true }))
            .with("/spec/template/metadata/finalizers", json!([FINALIZER]));
        let pod = started(t, set).await?.remove(0);
        let name = pod.text("/metadata/name");
        t.kubectl(&["scale", "clone/web", "--replicas=0"]).await?;
        let held = in_state(t, name, "PreparingDelete").await?;
        assert_eq!(keys(&held), r#"[{"userAgent":"Lifecycle","key":"preDeleteHook"}]"#, "before the state");
        t.wait_for("Pod", name, "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
        stays(t, &held).await?;
        // With markPodNotReady it cannot be taken back, and it counts as a replica until it has gone.
        let scaled = t.patch(CLONE_SET, "web", json!({ "spec": { "replicas": 1 } })).await?;
        let generation = scaled.int("/metadata/generation");
        let seen = |o: &Value| o.int("/status/observedGeneration") == generation;
        t.wait_for(CLONE_SET, "web", "to be seen", PATIENCE, seen).await?;
        stays(t, &held).await?;
        assert_eq!(pods(t, "web").await?.len(), 1, "no other Pod yet");
        t.patch("Pod", name, json!({ "metadata": { "finalizers": null } })).await?;
        t.gone("Pod", name).await?;
        rolled_out(t, "web").await?;
        let left = pods(t, "web").await?;
        ensure!(left.len() == 1 && left[0].text("/metadata/name") != name, "another one has taken its place");
        // The one that came has the finalizer too, and would hold up the end of the namespace.
        t.kubectl(&["scale", "clone/web", "--replicas=0"]).await?;
        let last = left[0].text("/metadata/name");
        in_state(t, last, "PreparingDelete").await?;
        t.patch("Pod", last, json!({ "metadata": { "finalizers": null } })).await?;
        t.gone("Pod", last).await
    })
    .await
}

/// Puts the label of the hook on a Pod or takes it away.
async fn hook(t: &Test, pod: &str, on: bool) -> Result<()> {
    let value = if on { json!("yes") } else { Value::Null };
    t.patch("Pod", pod, json!({ "metadata": { "labels": { "example.com/serving": value } } })).await.map(drop)
}

/// A CloneSet of one Pod with a hook of updates in place.
fn hooked(mark: bool) -> Value {
    in_place("web", 1, vec![pulled("main"), app("side")])
        .with("/spec/lifecycle/inPlaceUpdate/labelsHandler", json!({ "example.com/serving": "yes" }))
        .with("/spec/lifecycle/inPlaceUpdate/markPodNotReady", mark)
        .with("/spec/template/metadata/labels/example.com~1serving", "yes")
}

#[tokio::test]
async fn an_update_in_place_waits_before_and_after() -> Result<()> {
    in_namespace("cs-in-place-hook", async |t| {
        let pod = started(t, hooked(true)).await?.remove(0);
        let name = pod.text("/metadata/name");
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let held = in_state(t, name, "PreparingUpdate").await?;
        assert_eq!(image(&held, "main"), remote("pause"));
        assert_eq!(keys(&held), r#"[{"userAgent":"Lifecycle","key":"preUpdateHook"}]"#);
        stays(t, &held).await?;
        hook(t, name, false).await?;
        let updated = in_state(t, name, "Updated").await?;
        assert_eq!(image(&updated, "main"), remote_tag("pause", "v2"));
        t.wait_for("Pod", name, "to be released", PATIENCE, |p| keys(p) == "[]").await?;
        t.ready(name).await?;
        stays(t, &t.get("Pod", name).await?).await?;
        let ready = |o: &Value| o.int("/status/readyReplicas") == 1;
        let set = t.wait_for(CLONE_SET, "web", "to count it as ready", PATIENCE, ready).await?;
        assert_eq!(set.int("/status/availableReplicas"), 0, "ready, not available");
        hook(t, name, true).await?;
        in_state(t, name, "Normal").await?;
        rolled_out(t, "web").await?;
        assert_eq!(uids(&[pod]), uids(&pods(t, "web").await?));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_roll_back_releases_a_pod_that_waits_for_its_hook() -> Result<()> {
    in_namespace("cs-hook-back", async |t| {
        let pod = started(t, hooked(true)).await?.remove(0);
        let name = pod.text("/metadata/name");
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        in_state(t, name, "PreparingUpdate").await?;
        t.plugin_exits(0, &["rollout", "undo", "clone/web"]).await?;
        in_state(t, name, "Normal").await?;
        rolled_out(t, "web").await?;
        let after = t.ready(name).await?;
        assert_eq!((keys(&after), image(&after, "main")), ("[]", remote("pause").as_str()));
        assert_eq!(uids(&[pod]), uids(&[after]));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_newer_change_goes_through_the_hook_again() -> Result<()> {
    in_namespace("cs-hook-again", async |t| {
        let pod = started(t, hooked(false)).await?.remove(0);
        let name = pod.text("/metadata/name");
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        in_state(t, name, "PreparingUpdate").await?;
        hook(t, name, false).await?;
        in_state(t, name, "Updated").await?;
        set_image(t, "web", "main", &remote_tag("pause", "same")).await?;
        // The hook is put back by the CloneSet, so that whoever holds it sees that there is more to do.
        let held = in_state(t, name, "PreparingUpdate").await?;
        assert_eq!(held.text("/metadata/labels/example.com~1serving"), "yes");
        assert_eq!(image(&held, "main"), remote_tag("pause", "v2"));
        hook(t, name, false).await?;
        let same = remote_tag("pause", "same");
        t.wait_for("Pod", name, "to be changed", PATIENCE, |p| image(p, "main") == same).await?;
        in_state(t, name, "Updated").await?;
        hook(t, name, true).await?;
        rolled_out(t, "web").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_new_pod_is_available_when_its_hook_says_so() -> Result<()> {
    in_namespace("cs-pre-normal", async |t| {
        let set = clone_set("web", 1, vec![app("main")])
            .with("/spec/lifecycle/preNormal/labelsHandler", json!({ "example.com/serving": "yes" }))
            .with("/spec/template/metadata/labels/example.com~1serving", "not-yet");
        t.create(set).await?;
        let ready = t.wait_for(CLONE_SET, "web", "to have a Pod", PATIENCE, |o| o.int("/status/readyReplicas") == 1);
        ready.await?;
        let pod = pods(t, "web").await?.remove(0);
        assert_eq!((pod.text(STATE), condition(&pod, "Ready")), ("PreparingNormal", "True"));
        stays(t, &pod).await?;
        assert_eq!(t.get(CLONE_SET, "web").await?.int("/status/availableReplicas"), 0);
        hook(t, pod.text("/metadata/name"), true).await?;
        in_state(t, pod.text("/metadata/name"), "Normal").await?;
        rolled_out(t, "web").await?;
        Ok(())
    })
    .await
}
