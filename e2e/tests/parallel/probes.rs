//! PodProbeMarkers: probes of users' own, and what their Pods carry of the results.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::remote_tag;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, pod, poll, shell};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::clone_set::{image, in_place, names, pods, pulled, rolled_out, set_image, started};

const MARKER: &str = "PodProbeMarker";

fn marker(name: &str, probes: Value) -> Value {
    json!({ "kind": MARKER, "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "probes": probes } })
}

/// A probe whose result is the condition e2e/NAME, the label NAME and the annotation NAME.
fn probe(name: &str, probe: Value) -> Value {
    let policy =
        |state: &str, value: &str| json!({ "state": state, "labels": { name: value }, "annotations": { name: value } });
    json!({ "name": name, "containerName": "main", "probe": probe, "podConditionType": format!("e2e/{name}"),
        "markerPolicy": [policy("Succeeded", "yes"), policy("Failed", "no")] })
}

fn command(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] } })
}

/// A probe that on a busy machine, too, fails by its result and not by its time limit of one second.
fn patient(probe: Value) -> Value {
    probe.with("/timeoutSeconds", 20)
}

/// Waits until a condition says so, and the label and the annotation of its probe with it.
async fn shows(t: &Test, pod: &str, name: &str, status: &str) -> Result<Value> {
    let mark = if status == "True" { "yes" } else { "no" };
    t.wait_for("Pod", pod, &format!("to show {name} {status}"), PATIENCE, |p| {
        condition(p, &format!("e2e/{name}")) == status
            && p.text(&format!("/metadata/labels/{name}")) == mark
            && p.text(&format!("/metadata/annotations/{name}")) == mark
    })
    .await
}

fn message<'p>(pod: &'p Value, name: &str) -> &'p str {
    let type_ = format!("e2e/{name}");
    pod.array("/status/conditions").iter().find(|c| c.text("/type") == type_).map_or("", |c| c.text("/message"))
}

/// What is probed in a Pod, by the names of its probes.
async fn entries(t: &Test, pod: &Value) -> Result<Vec<String>> {
    let node = t.get("NodePodProbe", e2e::paths::NODE).await?;
    let entry = node.array("/spec/podProbes").iter().find(|entry| entry["uid"] == pod["metadata"]["uid"]);
    Ok(entry.map_or(Vec::new(), |e| e.array("/probes").iter().map(|p| p.text("/name").to_owned()).collect()))
}

#[tokio::test]
async fn a_command_a_get_and_a_connection_give_a_condition_a_label_and_an_annotation_each() -> Result<()> {
    in_namespace("probes", async |t| {
        let script = "mkdir /www; echo served > /www/ok; touch /tmp/good; httpd -p 8080 -h /www";
        let ports = json!([{ "name": "web", "containerPort": 8080 }]);
        let web = t.start(pod("web", vec![shell("main", script).with("/ports", ports)])).await?;
        t.create(marker(
            "all",
            json!([
                probe("command", patient(command("echo here; ls /tmp/good"))),
                probe("get", patient(json!({ "httpGet": { "path": "/ok", "port": "web" } }))),
                probe("connection", patient(json!({ "tcpSocket": { "port": 8080 } }))),
            ]),
        ))
        .await?;
        for name in ["command", "get", "connection"] {
            shows(t, "web", name, "True").await?;
        }
        let shown = t.get("Pod", "web").await?;
        assert_eq!((message(&shown, "command"), message(&shown, "get")), ("here\n/tmp/good\n", "served\n"));
        assert_eq!(shown.text("/metadata/labels/app"), "web");
        assert_eq!(entries(t, &web).await?, ["all#command", "all#get", "all#connection"]);
        let object = t.get("NodePodProbe", e2e::paths::NODE).await?;
        assert_eq!(object.text("/metadata/ownerReferences/0/kind"), "Node");
        let held = t.wait_for(MARKER, "all", "to be counted", PATIENCE, |o| o.int("/status/matchedPods") == 1).await?;
        assert_eq!(held.array("/metadata/finalizers"), [json!("kruise.io/node-pod-probe-cleanup")]);
        assert_eq!(held.int("/status/observedGeneration"), held.int("/metadata/generation"));

        t.exec("web", "main", "rm /tmp/good /www/ok").await?;
        let bad = shows(t, "web", "command", "False").await?;
        ensure!(message(&bad, "command").contains("/tmp/good"), "its standard error: {}", bad["status"]["conditions"]);
        shows(t, "web", "get", "False").await?;
        t.exec("web", "main", "kill $(pidof httpd)").await?;
        let down = shows(t, "web", "connection", "False").await?;
        ensure!(message(&down, "connection").contains("refused"), "{}", down["status"]["conditions"]);
        t.wait_events("Pod", "web", |e| {
            e.iter().any(|e| e == "KruiseProbeSucceeded: served\n")
                && e.iter().any(|e| e.starts_with("KruiseProbeFailed"))
        })
        .await?;
        // A Pod that goes is probed no more.
        t.remove("Pod", "web").await?;
        t.gone("Pod", "web").await?;
        poll("its entry to go", PATIENCE, async || {
            ensure!(entries(t, &web).await?.is_empty(), "it is still probed");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_state_changes_when_as_many_results_in_a_row_say_so() -> Result<()> {
    in_namespace("probe-thresholds", async |t| {
        t.start(pod("web", vec![shell("main", "")])).await?;
        let counted = "echo run >> /tmp/runs; test ! -e /tmp/bad";
        let three = patient(command(counted)).with("/failureThreshold", 3).with("/successThreshold", 2);
        t.create(marker("slow", json!([probe("slow", three)]))).await?;
        shows(t, "web", "slow", "True").await?;
        let runs = async || -> Result<usize> { Ok(t.exec("web", "main", "wc -l < /tmp/runs").await?.parse()?) };
        ensure!(runs().await? >= 2, "Succeeded before the second run");
        t.exec("web", "main", "touch /tmp/bad; wc -l < /tmp/runs > /tmp/before").await?;
        shows(t, "web", "slow", "False").await?;
        let before: usize = t.exec("web", "main", "cat /tmp/before").await?.parse()?;
        let after = runs().await?;
        ensure!(after >= before + 3, "Failed after {} runs", after - before);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_a_changed_or_deleted_marker_does_not_want_any_more_is_removed() -> Result<()> {
    in_namespace("probe-cleanup", async |t| {
        let labels = json!({ "app": "web", "theirs": "1" });
        let web = t.start(pod("web", vec![shell("main", "")]).with("/metadata/labels", labels.clone())).await?;
        let good = |name: &str| probe(name, patient(command("true")));
        t.create(marker("one", json!([good("a"), good("b")]))).await?;
        t.create(marker("two", json!([good("c")]))).await?;
        for name in ["a", "b", "c"] {
            shows(t, "web", name, "True").await?;
        }
        // Another label for one probe, the other probe gone.
        let moved = good("a").with("/markerPolicy", json!([{ "state": "Succeeded", "labels": { "a2": "yes" } }]));
        t.patch(MARKER, "one", json!({ "spec": { "probes": [moved] } })).await?;
        t.wait_for("Pod", "web", "to be without what is not wanted", PATIENCE, |p| {
            let labels = json!({ "app": "web", "theirs": "1", "a2": "yes", "c": "yes" });
            let annotated = p.has("/metadata/annotations/a");
            let has_a = condition(p, "e2e/a") == "True";
            p["metadata"]["labels"] == labels && condition(p, "e2e/b").is_empty() && !annotated && has_a
        })
        .await?;
        // An entry goes after its keys.
        poll("the entry of the probe to go", PATIENCE, async || {
            let left = entries(t, &web).await?;
            ensure!(left == ["one#a", "two#c"], "{left:?}");
            Ok(())
        })
        .await?;
        let note = "/metadata/annotations/kruise.rs~1probe-marks";
        let noted = r#"{"conditions":["e2e/a"],"labels":["a2"]}"#;
        t.wait_for(MARKER, "one", "to note its keys", PATIENCE, |o| o.text(note) == noted).await?;

        t.remove(MARKER, "one").await?;
        t.gone(MARKER, "one").await?;
        let left = t.get("Pod", "web").await?;
        assert_eq!(left["metadata"]["labels"], json!({ "app": "web", "theirs": "1", "c": "yes" }));
        assert_eq!((condition(&left, "e2e/a"), condition(&left, "e2e/c")), ("", "True"));
        assert_eq!(entries(t, &web).await?, ["two#c"]);

        // A Pod that is selected no more.
        t.patch("Pod", "web", json!({ "metadata": { "labels": { "app": "other" } } })).await?;
        t.wait_for("Pod", "web", "to be without marks", PATIENCE, |p| {
            p["metadata"]["labels"] == json!({ "app": "other", "theirs": "1" }) && condition(p, "e2e/c").is_empty()
        })
        .await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_that_restarts_is_not_probed_while_it_is_down_and_begins_anew() -> Result<()> {
    in_namespace("probe-restart", async |t| {
        t.start(pod("web", vec![shell("main", "")])).await?;
        t.create(marker("up", json!([probe("up", patient(command("echo up")))]))).await?;
        let since = |p: &Value| {
            let conditions = p.array("/status/conditions").iter();
            conditions.filter(|c| c.text("/type") == "e2e/up").map(|c| c.text("/lastTransitionTime").to_owned()).next()
        };
        let before = shows(t, "web", "up", "True").await?;
        // Times of conditions have whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let old = t.containers("web").await?["main"].clone();
        t.node().signal(&old.id, "KILL").await?;
        let after = t
            .wait_for("Pod", "web", "to be probed again", PATIENCE, |p| {
                p.int("/status/containerStatuses/0/restartCount") == 1
                    && condition(p, "e2e/up") == "True"
                    && since(p)
                        .is_some_and(|at| at.as_str() >= p.text("/status/containerStatuses/0/state/running/startedAt"))
                    && p.has("/status/containerStatuses/0/state/running")
            })
            .await?;
        ensure!(since(&after) > since(&before), "{:?} {:?}", since(&after), since(&before));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn commands_that_are_missing_slow_or_print_anything_harm_nobody() -> Result<()> {
    in_namespace("probe-odd", async |t| {
        t.start(pod("web", vec![shell("main", "")])).await?;
        t.create(marker(
            "odd",
            json!([
                probe("missing", patient(json!({ "exec": { "command": ["/no/such/program"] } }))),
                probe("slow", command("sleep 600")),
                probe("huge", patient(command("head -c 5000000 /dev/zero | tr '\\0' x"))),
                probe("binary", patient(command("printf '\\377\\376ok\\001'"))),
            ]),
        ))
        .await?;
        let missing = shows(t, "web", "missing", "False").await?;
        ensure!(
            message(&missing, "missing").starts_with("the command cannot be run: "),
            "{}",
            message(&missing, "missing")
        );
        let slow = shows(t, "web", "slow", "False").await?;
        assert_eq!(message(&slow, "slow"), "not finished within 1 s");
        let binary = shows(t, "web", "binary", "True").await?;
        assert_eq!(message(&binary, "binary"), "\u{fffd}\u{fffd}ok\u{fffd}");
        let huge = t.wait_for("Pod", "web", "to show huge", PATIENCE, |p| condition(p, "e2e/huge") == "True").await?;
        assert_eq!(message(&huge, "huge"), "x".repeat(1024));

        let both = command("true").with("/tcpSocket/port", 1);
        let host = json!({ "httpGet": { "path": "/", "port": 1, "host": "10.96.0.1" } });
        let header = json!({ "httpGet": { "path": "/", "port": 1, "httpHeaders": [{ "name": "a b", "value": "x" }] } });
        let long = command("true").with("/timeoutSeconds", 61);
        for (bad, want) in [
            (both, "spec.probes[0].probe: it has exec and tcpSocket; want one of exec, httpGet and tcpSocket"),
            (json!({}), "spec.probes[0].probe: it has no handler; want exec, httpGet or tcpSocket"),
            (host, "spec.probes[0].probe.httpGet.host: \"10.96.0.1\" is not allowed"),
            (header, "spec.probes[0].probe.httpGet.httpHeaders[0].name: \"a b\" is not allowed"),
            (long, "spec.probes[0].probe.timeoutSeconds: 61 is not allowed; want at most 60"),
        ] {
            let answer = t
                .apply(&marker("bad", json!([probe("bad", bad)])).with("/apiVersion", "apps.kruise.io/v1alpha1"))
                .await?;
            ensure!(!answer.ok && answer.stderr.contains(want), "{}", answer.stderr);
        }
        let selector = json!({ "spec": { "selector": { "matchLabels": { "app": "other" } } } });
        let refused = t.patch(MARKER, "odd", selector).await.err().context("the selector was changed")?;
        ensure!(format!("{refused:#}").contains("spec.selector"), "{refused:#}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_host_header_reaches_the_pod_itself() -> Result<()> {
    in_namespace("probe-vhost", async |t| {
        let page = "#!/bin/sh\\nprintf \"Content-Type: text/plain\\\\n\\\\n$HTTP_HOST\"\\n";
        let script = format!(
            "mkdir -p /www/cgi-bin; printf '{page}' > /www/cgi-bin/host; chmod +x /www/cgi-bin/host; httpd -p 8080 -h /www"
        );
        t.start(pod("web", vec![shell("main", &script)])).await?;
        let headers = json!([{ "name": "Host", "value": "shop.example" }]);
        let get = json!({ "httpGet": { "path": "/cgi-bin/host", "port": 8080, "httpHeaders": headers } });
        t.create(marker("vhost", json!([probe("vhost", patient(get))]))).await?;
        let shown = shows(t, "web", "vhost", "True").await?;
        assert_eq!(message(&shown, "vhost"), "shop.example");
        Ok(())
    })
    .await
}

/// The NodePodProbe holds the probes of all namespaces, and etcd limits its size.
#[tokio::test]
async fn a_probe_of_200_kb_on_eight_pods_does_not_keep_another_namespace_from_going() -> Result<()> {
    in_namespace("probe-large", async |t| {
        let names: Vec<String> = (0..8).map(|i| format!("web-{i}")).collect();
        for name in &names {
            t.create(pod(name, vec![shell("main", "")]).with("/metadata/labels", json!({ "app": "web" }))).await?;
        }
        let tenant = Test::new("probe-tenant").await?;
        tenant.start(pod("web", vec![shell("main", "")])).await?;
        tenant.create(marker("theirs", json!([probe("theirs", patient(command("true")))]))).await?;
        shows(&tenant, "web", "theirs", "True").await?;
        for name in &names {
            t.ready(name).await?;
        }
        let large = patient(command(&format!("true # {}", "x".repeat(200 << 10))));
        let small = probe("small", patient(command("true")));
        t.create(marker("large", json!([probe("large", large), small]))).await?;
        let told = t
            .wait_for(MARKER, "large", "to say what is left out", PATIENCE, |o| {
                condition(o, "AsSpecified") == "False" && o.text("/status/conditions/0/message").contains("in 8 Pods")
            })
            .await?;
        let message = told.text("/status/conditions/0/message");
        ensure!(message.starts_with("probe \"large\" is left out in 8 Pods (web-0, web-1, web-2, ...)"), "{message}");
        t.wait_events(MARKER, "large", |e| e.iter().any(|e| e.starts_with("NotAsSpecified: probe \"large\""))).await?;
        for name in &names {
            shows(t, name, "small", "True").await?;
            let pod = t.get("Pod", name).await?;
            assert_eq!(entries(t, &pod).await?, ["large#small"]);
        }
        // The other namespace goes as a whole, its PodProbeMarker with its finalizer too.
        tenant.remove("Namespace", &tenant.namespace).await?;
        tenant.gone("Namespace", &tenant.namespace).await?;
        t.patch(MARKER, "large", json!({ "spec": { "probes": [small] } })).await?;
        t.wait_for(MARKER, "large", "to be as specified", PATIENCE, |o| condition(o, "AsSpecified") == "True").await?;
        t.remove(MARKER, "large").await?;
        t.gone(MARKER, "large").await
    })
    .await
}

/// An object of the page about probes, with probes that are [`patient`].
fn of_the_page(t: &Test, kind: &str, name: &str) -> Result<Value> {
    let page = std::fs::read_to_string(t.paths.repo.join("docs/probes.md"))?;
    let blocks = page.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    for document in blocks.flat_map(serde_yaml::Deserializer::from_str) {
        let mut object = Value::deserialize(document)?;
        if object.text("/kind") == kind && object.text("/metadata/name") == name {
            object["metadata"].as_object_mut().context("metadata")?.remove("namespace");
            for probe in object["spec"]["probes"].as_array_mut().context("probes")? {
                probe["probe"] = patient(probe["probe"].take());
            }
            return Ok(object);
        }
    }
    anyhow::bail!("docs/probes.md has no {kind} {name}")
}

#[tokio::test]
async fn an_idle_pod_costs_less_and_is_the_first_to_go() -> Result<()> {
    in_namespace("probe-cost", async |t| {
        let all = started(t, in_place("worker", 3, vec![shell("main", "")])).await?;
        t.create(of_the_page(t, MARKER, "idle")?).await?;
        let cost = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost";
        let idle = all[1].text("/metadata/name");
        t.exec(idle, "main", "touch /tmp/idle").await?;
        t.wait_for("Pod", idle, "to cost less", PATIENCE, |p| p.text(cost) == "-100").await?;
        for busy in [&all[0], &all[2]] {
            let name = busy.text("/metadata/name");
            t.wait_for("Pod", name, "to cost more", PATIENCE, |p| p.text(cost) == "100").await?;
        }
        t.kubectl(&["scale", "cloneset/worker", "--replicas=2"]).await?;
        t.gone("Pod", idle).await?;
        rolled_out(t, "worker").await?;
        let left = pods(t, "worker").await?;
        assert_eq!(names(&left), names(&[all[0].clone(), all[2].clone()]));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_role_that_a_probe_finds_decides_which_pods_are_updated_first() -> Result<()> {
    in_namespace("probe-role", async |t| {
        let weight =
            |role: &str, weight: i64| json!({ "weight": weight, "matchSelector": { "matchLabels": { "role": role } } });
        let weights = json!([weight("secondary", 100), weight("primary", 1)]);
        let set = in_place("db", 4, vec![pulled("main"), shell("role", "")])
            .with("/spec/updateStrategy/priorityStrategy/weightPriority", weights)
            .with("/spec/updateStrategy/maxUnavailable", 2)
            .with("/spec/updateStrategy/partition", 2);
        let all = started(t, set).await?;
        let role = |i: usize| if [0, 3].contains(&i) { "primary" } else { "secondary" };
        for (i, pod) in all.iter().enumerate().filter(|(i, _)| role(*i) == "primary") {
            t.exec(pod.text("/metadata/name"), "role", "touch /tmp/primary").await.with_context(|| i.to_string())?;
        }
        t.create(of_the_page(t, MARKER, "role")?).await?;
        for (i, pod) in all.iter().enumerate() {
            let name = pod.text("/metadata/name");
            t.wait_for("Pod", name, "to have a role", PATIENCE, |p| p.text("/metadata/labels/role") == role(i)).await?;
        }
        let second = remote_tag("pause", "v2");
        set_image(t, "db", "main", &second).await?;
        rolled_out(t, "db").await?;
        let now = pods(t, "db").await?;
        let updated: Vec<&str> =
            now.iter().filter(|p| image(p, "main") == second).map(|p| p.text("/metadata/labels/role")).collect();
        assert_eq!(updated, ["secondary", "secondary"]);
        Ok(())
    })
    .await
}

/// A stored object with a host and another address: neither is obeyed.
#[tokio::test]
async fn the_daemon_dials_nothing_but_the_pods_own_address() -> Result<()> {
    in_namespace("probe-host", async |t| {
        let elsewhere = t.start(pod("elsewhere", vec![shell("main", "mkdir /www; httpd -p 8081 -h /www")])).await?;
        let web = t.start(pod("web", vec![app("main")])).await?;
        t.create(marker("host", json!([probe("host", json!({ "tcpSocket": { "port": 8081 } }))]))).await?;
        shows(t, "web", "host", "False").await?;
        // Past admission, in the object that the daemon reads; other tests have entries in it too.
        let kind = GroupVersionKind::gvk("apps.kruise.io", "v1alpha1", "NodePodProbe");
        let api: Api<DynamicObject> =
            Api::all_with(t.client.clone(), &ApiResource::from_gvk_with_plural(&kind, "nodepodprobes"));
        poll("the entry to be stored", PATIENCE, async || {
            let node = t.get("NodePodProbe", e2e::paths::NODE).await?;
            let mut list = node.array("/spec/podProbes").to_vec();
            let entry = list.iter_mut().find(|e| e["uid"] == web["metadata"]["uid"]).context("no entry")?;
            entry["probes"][0]["probe"]["tcpSocket"]["host"] = elsewhere["status"]["podIP"].clone();
            entry["IP"] = elsewhere["status"]["podIP"].clone();
            let version = &node["metadata"]["resourceVersion"];
            let patch =
                Patch::Merge(json!({ "metadata": { "resourceVersion": version }, "spec": { "podProbes": list } }));
            api.patch(e2e::paths::NODE, &PatchParams::default(), &patch).await?;
            Ok(())
        })
        .await?;
        // The manager writes what is wanted, for all Pods.
        poll("the entry to be as it was", PATIENCE, async || {
            let node = t.get("NodePodProbe", e2e::paths::NODE).await?;
            let now = node.array("/spec/podProbes").iter().find(|e| e["uid"] == web["metadata"]["uid"]).cloned();
            ensure!(now.is_some_and(|now| now["IP"] == web["status"]["podIP"]), "it is not");
            Ok(())
        })
        .await?;
        let pod = t.get("Pod", "web").await?;
        assert_eq!(condition(&pod, "e2e/host"), "False");
        Ok(())
    })
    .await
}
