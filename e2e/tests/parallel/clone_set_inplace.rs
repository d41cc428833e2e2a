//! CloneSet: updates in place. The Pod stays: its UID, address, node, volumes, and every container that is not changed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Container, Look, PATIENCE, Test, app, condition, in_namespace, pod, shell};
use serde_json::{Value, json};

use crate::clone_set::{CLONE_SET, LONG, STATE, image, in_place, pods, pulled, rolled_out, set_image, started, uids};

const UPDATE_STATE: &str = "/metadata/annotations/apps.kruise.io~1inplace-update-state";
const GRACE: &str = "/metadata/annotations/apps.kruise.io~1inplace-update-grace";

/// The only Pod of a CloneSet.
async fn only_pod(t: &Test, name: &str) -> Result<Value> {
    let mut pods = pods(t, name).await?;
    ensure!(pods.len() == 1, "{} Pods", pods.len());
    Ok(pods.remove(0))
}

fn image_id<'a>(pod: &'a Value, container: &str) -> &'a str {
    let statuses = pod.array("/status/containerStatuses");
    statuses.iter().find(|c| c.text("/name") == container).map_or("", |c| c.text("/imageID"))
}

/// What must be the same before and after: everything but what was asked for.
fn same_pod(before: &Value, after: &Value) {
    for what in ["/metadata/uid", "/metadata/name", "/status/podIP", "/spec/nodeName", "/metadata/creationTimestamp"] {
        assert_eq!(before.pointer(what), after.pointer(what), "{what}");
    }
}

/// A container that writes down one variable when it starts, taken from an annotation of its Pod.
fn configured(name: &str) -> Value {
    shell(name, "echo \"$CFG\" > /tmp/cfg").with(
        "/env",
        json!([{ "name": "CFG", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['cfg']" } } }]),
    )
}

fn annotated(set: Value, value: &str) -> Value {
    set.with("/spec/template/metadata/annotations/cfg", value)
}

/// Changes one annotation of the template; null takes it away.
async fn annotate(t: &Test, name: &str, value: Value) -> Result<()> {
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": { "cfg": value } } } } });
    t.patch(CLONE_SET, name, patch).await.map(drop)
}

#[tokio::test]
async fn a_new_image_restarts_one_container_of_a_drained_pod_and_nothing_else() -> Result<()> {
    in_namespace("cs-image", async |t| {
        t.create(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } }))
            .await?;
        let kept = json!([{ "name": "kept", "mountPath": "/kept" }]);
        let side = shell("side", "echo written > /kept/file").with("/volumeMounts", kept);
        let set = in_place("web", 1, vec![pulled("main"), side])
            .with("/spec/template/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]))
            .with("/spec/updateStrategy/inPlaceUpdateStrategy/gracePeriodSeconds", 3);
        let before = started(t, set).await?.remove(0);
        let name = before.text("/metadata/name");
        let slice = t.slice_of("web").await?;
        let endpoint = |o: &Value, ready: bool| o.pointer("/endpoints/0/conditions/ready") == Some(&json!(ready));
        t.wait_for("EndpointSlice", &slice, "to be ready", PATIENCE, |o| endpoint(o, true)).await?;

        let (pod_seen, endpoints_seen) = (t.record("Pod", name).await?, t.record("EndpointSlice", &slice).await?);
        let second = remote_tag("pause", "v2");
        set_image(t, "web", "main", &second).await?;
        let set = rolled_out(t, "web").await?;
        let after = t.ready(name).await?;
        same_pod(&before, &after);
        let (old, new) = (Container::all(&before), Container::all(&after));
        assert_eq!(new["main"].restarts, old["main"].restarts + 1);
        assert_eq!(new["side"], old["side"], "the other container");
        assert_eq!(image(&after, "main"), second);
        ensure!(image_id(&after, "main") != image_id(&before, "main"), "another image: {}", image_id(&after, "main"));
        assert_eq!(t.exec(name, "side", "cat /kept/file").await?, "written");
        assert_eq!(after.text("/metadata/labels/controller-revision-hash"), set.text("/status/updateRevision"));
        let state: Value = serde_json::from_str(after.text(UPDATE_STATE))?;
        assert_eq!(state.text("/revision"), set.text("/status/updateRevision"));
        assert_eq!(state.text("/lastContainerStatuses/main/imageID"), image_id(&before, "main"));
        ensure!(!after.has(GRACE), "the grace is over");

        // NotReady and drained, and only then changed
        let (changed, _) = pod_seen.seen("the change", |p| image(p, "main") == second).await?;
        let held = |p: &Value| condition(p, "InPlaceUpdateReady") == "False";
        let (not_ready, _) = pod_seen.seen("the Pod NotReady", held).await?;
        let (drained, _) = endpoints_seen.seen("the endpoint drained", |o| endpoint(o, false)).await?;
        ensure!(not_ready < changed && drained < changed, "the Pod was changed before it was drained");
        t.wait_for("EndpointSlice", &slice, "to be ready again", PATIENCE, |o| endpoint(o, true)).await?;
        let events = t.events("Pod", name).await?;
        assert_eq!(events.iter().filter(|e| e.starts_with("Scheduled: ")).count(), 1, "{events:#?}");
        let words = format!("SuccessfulUpdatePodInPlace: successfully update pod {name} in-place(revision");
        t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with(&words))).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_update_to_an_image_of_the_same_digest_ends() -> Result<()> {
    in_namespace("cs-digest", async |t| {
        let before = started(t, in_place("web", 1, vec![pulled("main"), app("side")])).await?.remove(0);
        let same = remote_tag("pause", "same");
        set_image(t, "web", "main", &same).await?;
        rolled_out(t, "web").await?;
        let after = only_pod(t, "web").await?;
        same_pod(&before, &after);
        assert_eq!(image(&after, "main"), same);
        assert_eq!(image_id(&after, "main"), image_id(&before, "main"), "the same bytes");
        assert_eq!(Container::all(&after)["side"], Container::all(&before)["side"]);
        assert_eq!(after.text(STATE), "Normal");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_that_is_rolled_back_at_once_ends() -> Result<()> {
    in_namespace("cs-back", async |t| {
        let before = started(t, in_place("web", 1, vec![pulled("main")])).await?.remove(0);
        let (first, second) = (remote("pause"), remote_tag("pause", "v2"));
        set_image(t, "web", "main", &second).await?;
        let name = before.text("/metadata/name");
        t.wait_for("Pod", name, "to be changed", PATIENCE, |p| image(p, "main") == second).await?;
        set_image(t, "web", "main", &first).await?;
        rolled_out(t, "web").await?;
        let after = only_pod(t, "web").await?;
        same_pod(&before, &after);
        assert_eq!((image(&after, "main"), condition(&after, "Ready")), (first.as_str(), "True"));
        assert_eq!(image_id(&after, "main"), image_id(&before, "main"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_replaced_by_a_good_one() -> Result<()> {
    in_namespace("cs-bad-image", async |t| {
        let before = started(t, in_place("web", 3, vec![pulled("main")])).await?;
        set_image(t, "web", "main", &remote_tag("pause", "absent")).await?;
        let pull = |o: &Value| o.int("/status/readyReplicas") == 2 && o.int("/status/updatedReplicas") == 1;
        t.wait_for(CLONE_SET, "web", "to have one broken Pod", PATIENCE, pull).await?;
        let answer = t.plugin_exits(4, &["rollout", "status", "cloneset/web", "--timeout", "5s"]).await?;
        ensure!(answer.stdout.contains("1 out of 3 new replicas have been updated; it goes on"), "{}", answer.stdout);
        assert_eq!(pods(t, "web").await?.iter().filter(|p| image(p, "main") == remote("pause")).count(), 2);
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        rolled_out(t, "web").await?;
        assert_eq!(uids(&before), uids(&pods(t, "web").await?), "all in place");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn labels_and_annotations_reach_pods_without_a_restart() -> Result<()> {
    in_namespace("cs-metadata", async |t| {
        let before = started(t, in_place("web", 2, vec![app("main")])).await?;
        let metadata = json!({ "labels": { "tier": "front" }, "annotations": { "note": "a \"quoted\" <b>" } });
        t.patch(CLONE_SET, "web", json!({ "spec": { "template": { "metadata": metadata } } })).await?;
        rolled_out(t, "web").await?;
        for (old, new) in before.iter().zip(pods(t, "web").await?) {
            same_pod(old, &new);
            assert_eq!(new.text("/metadata/labels/tier"), "front");
            assert_eq!(new.text("/metadata/annotations/note"), "a \"quoted\" <b>");
            assert_eq!(Container::all(&new)["main"].id, Container::all(old)["main"].id);
        }
        // and go again
        let none = json!({ "labels": { "tier": null }, "annotations": null });
        t.patch(CLONE_SET, "web", json!({ "spec": { "template": { "metadata": none } } })).await?;
        rolled_out(t, "web").await?;
        for pod in pods(t, "web").await? {
            ensure!(!pod.has("/metadata/labels/tier") && !pod.has("/metadata/annotations/note"), "{}", pod["metadata"]);
            assert_eq!(Container::all(&pod)["main"].restarts, 0);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_cannot_be_done_in_place_recreates_or_is_refused() -> Result<()> {
    in_namespace("cs-no-way", async |t| {
        let before = started(t, in_place("web", 1, vec![app("main")])).await?;
        t.patch(
            CLONE_SET,
            "web",
            json!({ "spec": { "template": { "spec": { "terminationGracePeriodSeconds": 1 } } } }),
        )
        .await?;
        rolled_out(t, "web").await?;
        ensure!(uids(&before).is_disjoint(&uids(&pods(t, "web").await?)), "another Pod");

        let only = in_place("only", 1, vec![app("main")]).with("/spec/updateStrategy/type", "InPlaceOnly");
        started(t, only).await?;
        let patch = json!({ "spec": { "template": { "spec": { "terminationGracePeriodSeconds": 1 } } } });
        let refused = t.patch(CLONE_SET, "only", patch).await.map(drop);
        let text = format!("{:#}", refused.err().context("it is refused")?);
        ensure!(text.contains("terminationGracePeriodSeconds") && text.contains("InPlaceOnly"), "{text}");
        Ok(())
    })
    .await
}

/// Once; or twice, when kubelet has started the new instance before it had seen the annotation.
fn restarted_for_environment(old: &BTreeMap<String, Container>, new: &BTreeMap<String, Container>) -> Result<()> {
    let restarts = new["main"].restarts - old["main"].restarts;
    ensure!((1..=2).contains(&restarts), "{restarts} restarts for one change of the environment");
    Ok(())
}

#[tokio::test]
async fn an_environment_from_metadata_restarts_the_container_that_reads_it() -> Result<()> {
    in_namespace("cs-environment", async |t| {
        let set = annotated(in_place("web", 1, vec![configured("main"), app("side")]), "one");
        let before = started(t, set).await?.remove(0);
        let name = before.text("/metadata/name");
        assert_eq!(t.exec(name, "main", "cat /tmp/cfg").await?, "one");
        annotate(t, "web", json!("two = {\"k\": \"<v>\"}")).await?;
        rolled_out(t, "web").await?;
        let after = t.ready(name).await?;
        same_pod(&before, &after);
        let (old, new) = (Container::all(&before), Container::all(&after));
        assert_eq!(new["side"], old["side"]);
        restarted_for_environment(&old, &new)?;
        assert_eq!(t.exec(name, "main", "cat /tmp/cfg").await?, "two = {\"k\": \"<v>\"}");
        // image and environment in one restart
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": { "cfg": "three" } },
            "spec": { "containers": [configured("main").with("/image", remote("busybox")), app("side")] } } } });
        t.patch(CLONE_SET, "web", patch).await?;
        rolled_out(t, "web").await?;
        let last = t.ready(name).await?;
        same_pod(&before, &last);
        let last = Container::all(&last);
        assert_eq!(last["side"], old["side"]);
        restarted_for_environment(&new, &last)?;
        assert_eq!(t.exec(name, "main", "cat /tmp/cfg").await?, "three");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_removed_annotation_is_a_change_of_the_environment_too() -> Result<()> {
    in_namespace("cs-removed", async |t| {
        let before = started(t, annotated(in_place("web", 1, vec![configured("main")]), "one")).await?.remove(0);
        let name = before.text("/metadata/name");
        annotate(t, "web", Value::Null).await?;
        rolled_out(t, "web").await?;
        let after = t.ready(name).await?;
        same_pod(&before, &after);
        restarted_for_environment(&Container::all(&before), &Container::all(&after))?;
        assert_eq!(t.exec(name, "main", "cat /tmp/cfg").await?, "");
        Ok(())
    })
    .await
}

/// A container with a launch priority that is ready two seconds after its start.
fn slow(name: &str, priority: &str) -> Value {
    shell(name, "sleep 2; touch /tmp/ready")
        .with("/image", remote("busybox"))
        .with("/env", json!([{ "name": "KRUISE_CONTAINER_PRIORITY", "value": priority }]))
        .with("/readinessProbe", json!({ "periodSeconds": 1, "exec": { "command": ["test", "-e", "/tmp/ready"] } }))
}

/// Seconds from the start of one container to that of another. Starts are written down in whole seconds.
fn between(pod: &Value, first: &str, second: &str) -> Result<i64> {
    let containers = Container::all(pod);
    let at = |name: &str| -> Result<jiff::Timestamp> { Ok(containers[name].started.parse()?) };
    Ok(at(second)?.as_second() - at(first)?.as_second())
}

#[tokio::test]
async fn containers_start_and_are_updated_by_their_priority() -> Result<()> {
    in_namespace("cs-priority", async |t| {
        let before = started(t, in_place("web", 1, vec![slow("late", "0"), slow("early", "5")])).await?.remove(0);
        let name = before.text("/metadata/name");
        ensure!(between(&before, "early", "late")? >= 2, "late was started before early was ready");
        let second = remote_tag("busybox", "v2");
        let (early, late) = (format!("early={second}"), format!("late={second}"));
        let seen = t.record("Pod", name).await?;
        t.plugin_exits(0, &["set", "image", "cloneset/web", &early, &late]).await?;
        rolled_out(t, "web").await?;
        let after = t.ready(name).await?;
        same_pod(&before, &after);
        ensure!(between(&after, "early", "late")? >= 2, "late was updated before early was ready");
        let state: Value = serde_json::from_str(after.text(UPDATE_STATE))?;
        let batches: Vec<&Value> = state.array("/containerBatchesRecord").iter().map(|b| &b["containers"]).collect();
        assert_eq!(batches, [&json!(["early"]), &json!(["late"])]);
        let (early, _) = seen.seen("early change", |p| image(p, "early") == second).await?;
        let (late, _) = seen.seen("late change", |p| image(p, "late") == second).await?;
        ensure!(early < late, "one after the other");
        let restarts = Container::all(&after).into_values().map(|c| c.restarts).collect::<Vec<_>>();
        assert_eq!(restarts, [1, 1]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn containers_of_any_pod_start_in_their_order_when_that_is_asked_for() -> Result<()> {
    in_namespace("launch-order", async |t| {
        let ordered = pod("web", vec![slow("first", "0"), slow("second", "0")])
            .with("/spec/containers/0/env", json!([]))
            .with("/spec/containers/1/env", json!([]))
            .with("/metadata/annotations/apps.kruise.io~1container-launch-priority", "Ordered");
        let ready = t.start(ordered).await?;
        ensure!(between(&ready, "first", "second")? >= 2, "second was started before first was ready");
        let done = "/metadata/annotations/apps.kruise.io~1container-launch-priority-completed";
        t.wait_for("Pod", "web", "to be marked", PATIENCE, |p| p.text(done) == "true").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_newer_change_waits_for_the_grace_of_the_one_before() -> Result<()> {
    in_namespace("cs-grace", async |t| {
        let set = in_place("web", 1, vec![pulled("main")])
            .with("/spec/updateStrategy/inPlaceUpdateStrategy/gracePeriodSeconds", 4);
        let before = started(t, set).await?.remove(0);
        let name = before.text("/metadata/name");
        let seen = t.record("Pod", name).await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        t.wait_for("Pod", name, "to be in its grace", PATIENCE, |p| p.has(GRACE)).await?;
        set_image(t, "web", "main", &remote_tag("pause", "same")).await?;
        let done = t.wait_for(CLONE_SET, "web", "to be rolled out", LONG, |o| {
            o.int("/status/observedGeneration") == o.int("/metadata/generation")
                && o.int("/status/updatedAvailableReplicas") == 1
        });
        let set = done.await?;
        let after = t.ready(name).await?;
        same_pod(&before, &after);
        assert_eq!(image(&after, "main"), remote_tag("pause", "same"));
        assert_eq!(after.text("/metadata/labels/controller-revision-hash"), set.text("/status/updateRevision"));
        // Never while it was ready.
        for (_, pod) in seen
            .states()
            .windows(2)
            .filter(|two| image(&two[0].1, "main") != image(&two[1].1, "main"))
            .map(|two| &two[1])
        {
            assert_eq!(condition(pod, "InPlaceUpdateReady"), "False", "{}", pod["status"]["conditions"]);
        }
        Ok(())
    })
    .await
}

/// The API server of the tests knows `restartPolicyRules` of a container (feature gate ContainerRestartRules); the types of
/// the library that this is built with do not.
#[tokio::test]
async fn a_field_that_only_the_api_server_knows_survives_everything() -> Result<()> {
    in_namespace("cs-new-field", async |t| {
        let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
        let main = pulled("main").with("/restartPolicy", "Always").with("/restartPolicyRules", rules.clone());
        let before = started(t, in_place("web", 1, vec![main])).await?.remove(0);
        let there = |object: &Value, template: &str| {
            let container = format!("{template}/spec/containers/0");
            assert_eq!(object.pointer(&format!("{container}/restartPolicyRules")), Some(&rules), "{object}");
            assert_eq!(object.text(&format!("{container}/restartPolicy")), "Always");
        };
        there(&before, "");
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        rolled_out(t, "web").await?;
        let after = only_pod(t, "web").await?;
        same_pod(&before, &after);
        there(&after, "");
        t.plugin_exits(0, &["rollout", "undo", "clone/web"]).await?;
        let set = rolled_out(t, "web").await?;
        there(&set, "/spec/template");
        there(&only_pod(t, "web").await?, "");
        let revisions = t.list("ControllerRevision", "").await?;
        assert_eq!(revisions.len(), 2);
        for revision in &revisions {
            there(&revision["data"], "/spec/template");
        }
        t.kubectl(&["scale", "clone/web", "--replicas=2"]).await?;
        rolled_out(t, "web").await?;
        for pod in pods(t, "web").await? {
            there(&pod, "");
        }
        Ok(())
    })
    .await
}
