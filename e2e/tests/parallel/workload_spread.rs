//! WorkloadSpread on a real API server: where new Pods go, what is counted, what happens to Pods that were missed, find no place
//! or were refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, poll, restoring, workload};
use e2e::paths::SYSTEM;
use e2e::spread_limits::{Remade, creations, fifty_creations_within_limits};
use futures::StreamExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

const SPREAD: &str = "WorkloadSpread";
const LONG: Duration = Duration::from_secs(120);
const NOTE: &str = "/metadata/annotations/apps.kruise.io~1matched-workloadspread";
const COST: &str = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost";

/// A subset whose Pods have its name as a label.
fn subset(name: &str, max: Value) -> Value {
    let mut subset = json!({ "name": name, "patch": { "metadata": { "labels": { "e2e-subset": name } } } });
    if !max.is_null() {
        subset["maxReplicas"] = max;
    }
    subset
}

fn spread(api_version: &str, kind: &str, subsets: Value) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": SPREAD, "metadata": { "name": "ws" },
        "spec": { "targetRef": { "apiVersion": api_version, "kind": kind, "name": "web" }, "subsets": subsets } })
}

fn of_clone_set(subsets: Value) -> Value {
    spread("apps.kruise.io/v1alpha1", "CloneSet", subsets)
}

fn clone_set(replicas: i64) -> Value {
    workload("CloneSet", "web", replicas, vec![app("main")])
}

/// Pods of each subset, as many as there are in all.
async fn counts(t: &Test, names: &[&str]) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for name in names {
        let pods = t.list("Pod", &format!("e2e-subset={name}")).await?;
        found.push(pods.iter().filter(|pod| !pod.has("/metadata/deletionTimestamp")).count());
    }
    Ok(found)
}

/// Waits until there are so many Pods of each subset, and they are counted. [`Remade`] sees that a Pod that the webhook was too
/// late for is in no other subset.
async fn spread_as(t: &Test, wanted: &[(&str, usize)]) -> Result<Value> {
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    poll("the Pods to be spread", LONG, async || {
        let found = counts(t, &names).await?;
        ensure!(found.iter().zip(wanted).all(|(found, (_, wanted))| found == wanted), "{names:?}: {found:?}");
        Ok(())
    })
    .await?;
    let fits = |o: &Value| {
        condition(o, "Ready") == "True"
            && o.int("/status/observedGeneration") == o.int("/metadata/generation")
            && wanted.iter().all(|(name, wanted)| {
                let subset = o.array("/status/subsetStatuses").iter().find(|subset| subset.text("/name") == *name);
                subset.is_some_and(|subset| usize::try_from(subset.int("/replicas")).ok() == Some(*wanted))
            })
    };
    t.wait_for(SPREAD, "ws", "to have them counted", LONG, fits).await
}

#[tokio::test]
async fn pods_fill_the_subsets_in_order_and_the_last_ones_go_first() -> Result<()> {
    in_namespace("spread-order", async |t| {
        let term =
            json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }] });
        let first = subset("a", json!(2)).with("/requiredNodeSelectorTerm", term);
        t.create(of_clone_set(json!([first, subset("b", json!(1)), subset("c", Value::Null)]))).await?;
        let _missed = Remade::follow(t).await?;
        t.create(clone_set(5)).await?;
        let object = spread_as(t, &[("a", 2), ("b", 1), ("c", 2)]).await?;
        let missing: Vec<i64> =
            object.array("/status/subsetStatuses").iter().map(|s| s.int("/missingReplicas")).collect();
        assert_eq!(missing, [0, 0, -1]);
        let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        poll("notes, costs and nodes of every Pod", PATIENCE, async || {
            for (name, cost) in [("a", "300"), ("b", "200"), ("c", "100")] {
                for pod in t.list("Pod", &format!("e2e-subset={name}")).await? {
                    let note: Value = serde_json::from_str(pod.text(NOTE))?;
                    ensure!((note.text("/name"), note.text("/subset")) == ("ws", name), "{pod:#}");
                    ensure!(pod.text(COST) == cost && pod.has(required) == (name == "a"), "{pod:#}");
                }
            }
            Ok(())
        })
        .await?;
        // Of Pods that are not ready yet those go first, whatever their costs are.
        t.wait_for("CloneSet", "web", "to be ready", LONG, |o| o.int("/status/readyReplicas") == 5).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=3"]).await?;
        spread_as(t, &[("a", 2), ("b", 1), ("c", 0)]).await?;
        let columns = t.kubectl(&["get", "ws", "ws"]).await?;
        ensure!(columns.contains("WORKLOADNAME") && columns.contains("CloneSet"), "{columns}");
        let table = t.plugin(&["spread", "ws"]).await?.stdout;
        ensure!(table.contains("SUBSET") && table.contains("Ready (Spread)"), "{table}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn fifty_creations_at_once_pass_no_limit() -> Result<()> {
    in_namespace("spread-fifty", async |t| fifty_creations_within_limits(t, LONG).await).await
}

#[tokio::test]
async fn a_deployment_keeps_its_ratio_when_it_is_scaled_down_and_rolled_out() -> Result<()> {
    in_namespace("spread-ratio", async |t| {
        t.create(spread("apps/v1", "Deployment", json!([subset("a", json!("30%")), subset("b", json!("70%"))])))
            .await?;
        let _missed = Remade::follow(t).await?;
        let main = |image: String| json!({ "name": "main", "image": image });
        t.create(workload("Deployment", "web", 10, vec![main(remote("pause"))])).await?;
        spread_as(t, &[("a", 3), ("b", 7)]).await?;
        // The order of percentages is found with the other subsets in view: the manager writes what admission cannot know.
        poll("the costs to keep the ratio of five Pods", LONG, async || {
            let pods = t.list("Pod", "app=web").await?;
            let mut costs: Vec<(i64, &str)> = pods
                .iter()
                .map(|pod| Ok((pod.text(COST).parse()?, pod.text("/metadata/labels/e2e-subset"))))
                .collect::<Result<_>>()?;
            costs.sort_unstable_by(|one, other| other.cmp(one));
            let kept = costs.iter().take(5).filter(|(_, subset)| *subset == "a").count();
            ensure!(costs.len() == 10 && kept == 2, "{costs:?}");
            // Whatever its cost, a Pod that is not ready is deleted first.
            let ready = pods.iter().filter(|pod| condition(pod, "Ready") == "True").count();
            ensure!(ready == 10, "{ready} of 10 are ready");
            Ok(())
        })
        .await?;
        t.kubectl(&["scale", "deployment/web", "--replicas=5"]).await?;
        poll("the ratio to be kept", LONG, async || {
            let found = counts(t, &["a", "b"]).await?;
            ensure!(found == [2, 3], "{found:?}");
            Ok(())
        })
        .await?;
        let containers = json!([main(remote_tag("pause", "v2"))]);
        t.patch("Deployment", "web", json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
            .await?;
        t.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).await?;
        let object = spread_as(t, &[("a", 2), ("b", 3)]).await?;
        let versions = object["status"]["versionedSubsetStatuses"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(versions, 1, "the old version is gone: {object}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_creation_that_is_refused_gives_its_place_back() -> Result<()> {
    in_namespace("spread-quota", async |t| {
        t.create(of_clone_set(json!([subset("a", json!(1)), subset("b", Value::Null)]))).await?;
        let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
        ensure!(t.apply(&quota).await?.ok);
        // The API server learns of a quota, and of its end, a moment later.
        let probe = async || t.kubectl(&["run", "probe", "--image=pause", "--dry-run=server"]).await;
        poll("the quota to be in force", PATIENCE, async || {
            let refused = probe().await.err().map(|error| format!("{error:#}")).unwrap_or_default();
            ensure!(refused.contains("exceeded quota"), "{refused}");
            Ok(())
        })
        .await?;
        let _missed = Remade::follow(t).await?;
        t.create(clone_set(1)).await?;
        t.wait_for(SPREAD, "ws", "to have the creation on record", LONG, |o| creations(o) > 0).await?;
        // The next attempts are more than 30 s apart by then.
        t.kubectl(&["scale", "clone/web", "--replicas=0"]).await?;
        let begun = Instant::now();
        t.wait_for(SPREAD, "ws", "to have given the place back", LONG, |o| creations(o) == 0).await?;
        ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        t.wait_events(SPREAD, "ws", |events| events.iter().any(|event| event.contains("CreatePodFailed"))).await?;
        t.kubectl(&["delete", "resourcequota", "none"]).await?;
        poll("the quota to be out of force", PATIENCE, async || probe().await.map(drop)).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=2"]).await?;
        spread_as(t, &[("a", 1), ("b", 1)]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn pods_that_were_there_before_are_noted_and_stay() -> Result<()> {
    in_namespace("spread-before", async |t| {
        t.create(clone_set(3)).await?;
        let labels = "app=web";
        poll("the Pods to run", LONG, async || {
            let pods = t.list("Pod", labels).await?;
            ensure!(pods.len() == 3 && pods.iter().all(|pod| pod.has("/spec/nodeName")), "{}", pods.len());
            Ok(())
        })
        .await?;
        let uids = |pods: Vec<Value>| {
            let mut uids: Vec<String> = pods.iter().map(|pod| pod.text("/metadata/uid").to_owned()).collect();
            uids.sort();
            uids
        };
        let before = uids(t.list("Pod", labels).await?);
        let nowhere = json!({ "matchExpressions": [{ "key": "no-such-label", "operator": "Exists" }] });
        let other = subset("elsewhere", json!(9)).with("/requiredNodeSelectorTerm", nowhere);
        t.create(of_clone_set(json!([other, subset("a", json!(2)), subset("b", json!(0))]))).await?;
        poll("the Pods to be noted", LONG, async || {
            let pods = t.list("Pod", labels).await?;
            ensure!(pods.iter().all(|pod| pod.has(NOTE) && pod.has(COST)), "{pods:?}");
            Ok(())
        })
        .await?;
        // Two have room in a; the third is above a limit wherever it is.
        let fits = |o: &Value| {
            let reason = o.array("/status/conditions").iter().find(|c| c.text("/type") == "Ready");
            reason.is_some_and(|c| c.text("/reason") == "BeyondLimits")
        };
        t.wait_for(SPREAD, "ws", "to say that one is above", LONG, fits).await?;
        assert_eq!(uids(t.list("Pod", labels).await?), before, "none is replaced");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_that_find_no_place_are_made_in_the_next_subset() -> Result<()> {
    in_namespace("spread-adaptive", async |t| {
        let nowhere = json!({ "matchExpressions": [{ "key": "no-such-label", "operator": "Exists" }] });
        let first = subset("a", json!(5)).with("/requiredNodeSelectorTerm", nowhere);
        let strategy = json!({ "type": "Adaptive", "adaptive": { "rescheduleCriticalSeconds": 5 } });
        let object = of_clone_set(json!([first, subset("b", Value::Null)])).with("/spec/scheduleStrategy", strategy);
        t.create(object).await?;
        let _missed = Remade::follow(t).await?;
        t.create(clone_set(2)).await?;
        let object = spread_as(t, &[("a", 0), ("b", 2)]).await?;
        assert_eq!(object.text("/status/subsetStatuses/0/conditions/0/status"), "False");
        let table = t.plugin(&["spread", "ws/ws"]).await?.stdout;
        ensure!(table.contains("gets no Pods for now"), "{table}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn stateful_sets_and_jobs_are_spread_too() -> Result<()> {
    in_namespace("spread-kinds", async |t| {
        let _missed = Remade::follow(t).await?;
        for (api_version, kind) in [("apps/v1", "StatefulSet"), ("apps.kruise.io/v1beta1", "AdvancedStatefulSet")] {
            t.create(spread(api_version, "StatefulSet", json!([subset("a", json!(1)), subset("b", Value::Null)])))
                .await?;
            let set = workload("StatefulSet", "web", 3, vec![app("main")]).with("/apiVersion", api_version);
            t.create(set).await?;
            spread_as(t, &[("a", 1), ("b", 2)]).await?;
            assert_eq!(t.get("Pod", "web-0").await?.text("/metadata/labels/e2e-subset"), "a", "{kind}");
            t.remove(SPREAD, "ws").await?;
            t.kubectl(&["delete", if kind == "StatefulSet" { "sts" } else { "asts" }, "web", "--cascade=foreground"])
                .await?;
        }
        t.create(spread("batch/v1", "Job", json!([subset("a", json!("50%")), subset("b", json!("50%"))]))).await?;
        let template = json!({ "spec": { "restartPolicy": "Never", "containers": [app("main")] } });
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "web" },
            "spec": { "parallelism": 4, "completions": 4, "backoffLimit": 100, "template": template } });
        let answer = t.apply(&job).await?;
        ensure!(answer.ok, "{}", answer.stderr);
        spread_as(t, &[("a", 2), ("b", 2)]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_pod_beyond_all_limits_is_created_and_said() -> Result<()> {
    in_namespace("spread-beyond", async |t| {
        t.create(of_clone_set(json!([subset("a", json!(1))]))).await?;
        // On a busy machine the webhook may miss some of them.
        t.create(clone_set(6)).await?;
        t.wait_events(SPREAD, "ws", |events| events.iter().any(|event| event.contains("NoSubsetLeft"))).await?;
        poll("all Pods to run", LONG, async || {
            let pods = t.list("Pod", "app=web").await?;
            ensure!(pods.iter().filter(|pod| pod.has("/spec/nodeName")).count() == 6, "{pods:?}");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn two_with_disjoint_filters_share_a_target_and_others_are_refused() -> Result<()> {
    in_namespace("spread-filters", async |t| {
        let filter = |role: &str| json!({ "selector": { "matchLabels": { "role": role } } });
        let all = || of_clone_set(json!([subset("a", Value::Null)]));
        t.create(all().with("/spec/targetFilter", filter("ps"))).await?;
        t.create(all().with("/metadata/name", "workers").with("/spec/targetFilter", filter("worker"))).await?;
        let (code, why) = t.refused(all().with("/metadata/name", "third")).await?;
        ensure!(code == 422 && why.contains("already"), "{code} {why}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_cannot_work_is_refused_with_its_field() -> Result<()> {
    in_namespace("spread-bad", async |t| {
        t.create(clone_set(0)).await?;
        let good = || of_clone_set(json!([subset("a", json!(1)), subset("b", Value::Null)]));
        let unknown = json!({ "matchExpressions": [{ "key": "zone", "operator": "Is" }] });
        for (pointer, value, words) in [
            ("/spec/targetRef/kind", json!("DaemonSet"), "spec.targetRef.kind"),
            ("/spec/subsets/1/name", json!("a"), "spec.subsets[1].name"),
            ("/spec/subsets/0/maxReplicas", json!("x"), "spec.subsets[0].maxReplicas"),
            ("/spec/subsets/0/requiredNodeSelectorTerm", unknown, "spec.subsets[0]"),
            (
                "/spec/subsets/0/patch",
                json!({ "spec": { "containers": [{ "name": "main", "image": " " }] } }),
                "spec.subsets[0]",
            ),
            ("/spec/subsets/0/patch", json!({ "metadata": { "name": "x" } }), "spec.subsets[0].patch.metadata.name"),
            (
                "/spec/subsets/0/patch",
                json!({ "metadata": { "labels": { "app": "other" } } }),
                "spec.subsets[0].patch.metadata.labels",
            ),
            ("/spec/scheduleStrategy", json!({ "adaptive": {} }), "spec.scheduleStrategy.adaptive"),
        ] {
            let case = format!("{pointer}: {value}");
            let (code, why) = t.refused(good().with(pointer, value)).await.with_context(|| case.clone())?;
            ensure!(code == 422 && why.contains(words), "{case}: {code} {why}");
        }
        t.create(good()).await?;
        let moved = json!({ "spec": { "targetRef": { "name": "other" } } });
        let error = t.patch(SPREAD, "ws", moved).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(error.contains("spec.targetRef cannot be changed"), "{error}");
        Ok(())
    })
    .await
}

/// Kinds by configuration, with the rights that an administrator grants. The ConfigMap of the installation is this test's alone.
#[tokio::test]
async fn a_kind_that_the_configuration_names_is_spread_by_what_it_wants() -> Result<()> {
    in_namespace("spread-custom", async |t| {
        let object = || {
            let subsets = json!([subset("a", json!("50%")), subset("b", json!("50%"))]);
            spread("v1", "ReplicationController", subsets)
        };
        let (code, why) = t.refused(object()).await?;
        ensure!(code == 422 && why.contains("kruise-configuration"), "{code} {why}");
        let undo = async {
            t.remove("ClusterRole", &t.namespace).await?;
            t.api_in(SYSTEM, "ConfigMap").delete(CONFIGURATION, &DeleteParams::default()).await?;
            Ok(())
        };
        restoring(by_configuration(t, object()), undo).await
    })
    .await
}

const CONFIGURATION: &str = "kruise-configuration";

async fn by_configuration(t: &Test, object: Value) -> Result<()> {
    let key = "WorkloadSpread_Watch_Custom_Workload_WhiteList";
    let map = |text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": CONFIGURATION }, "data": { key: text } });
    let maps = t.api_in(SYSTEM, "ConfigMap");
    maps.create(&PostParams::default(), &serde_json::from_value(map("{"))?).await?;
    let (_, why) = t.refused(object.clone()).await?;
    ensure!(why.contains(&format!("{key} in the ConfigMap {CONFIGURATION} is no JSON object")), "{why}");
    let list = json!({ "workloads": [{ "Group": "", "Version": "v1", "Kind": "ReplicationController", "replicasPath": "spec.replicas" }] });
    maps.patch(CONFIGURATION, &PatchParams::default(), &Patch::Merge(map(&list.to_string()))).await?;
    let labels = json!({ "kruise.rs/aggregate-to-manager": "true", "kruise.rs/aggregate-to-webhook": "true" });
    t.create(json!({ "kind": "ClusterRole", "metadata": { "name": t.namespace, "labels": labels }, "rules": [
        { "apiGroups": [""], "resources": ["replicationcontrollers"], "verbs": ["get"] }] }))
        .await?;
    for account in ["kruise-manager", "kruise-webhook"] {
        let account = format!("--as=system:serviceaccount:{SYSTEM}:{account}");
        poll("the rights to be granted", PATIENCE, async || {
            t.kubectl(&["auth", "can-i", "get", "replicationcontrollers", &account]).await.map(drop)
        })
        .await?;
    }
    t.create(object).await?;
    let _missed = Remade::follow(t).await?;
    t.create(workload("ReplicationController", "web", 4, vec![app("main")])).await?;
    spread_as(t, &[("a", 2), ("b", 2)]).await?;
    t.patch("ReplicationController", "web", json!({ "spec": { "replicas": 6 } })).await?;
    spread_as(t, &[("a", 3), ("b", 3)]).await.map(drop)
}

/// The note and the deletion cost of each of ten Pods of a new CloneSet in its first version. No node takes them, so that nobody but
/// the webhook has to do with them for a while.
async fn first_versions(t: &Test) -> Result<Vec<(String, String)>> {
    let set = clone_set(10).with("/spec/template/spec/schedulerName", "nobody");
    let mut created = watcher::watcher(t.api("Pod"), watcher::Config::default().labels("app=web")).boxed();
    while let Some(event) = created.next().await {
        if matches!(event?, watcher::Event::InitDone) {
            break;
        }
    }
    t.create(set).await?;
    let mut found = BTreeMap::new();
    let all = async {
        while let Some(event) = created.next().await {
            let (watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event? else { continue };
            let pod = serde_json::to_value(pod)?;
            let first = || (pod.text(NOTE).to_owned(), pod.text(COST).to_owned());
            found.entry(pod.text("/metadata/uid").to_owned()).or_insert_with(first);
            if found.len() == 10 {
                break;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("ten Pods")??;
    Ok(found.into_values().collect())
}

/// Percentages: a Pod has its deletion cost from its first moment. On a machine that is too busy for an answer in time a Pod is
/// created without, which an event says: then others are made.
#[tokio::test]
async fn with_percentages_each_pod_comes_with_its_deletion_cost() -> Result<()> {
    in_namespace("spread-costs", async |t| {
        t.create(of_clone_set(json!([subset("a", json!("30%")), subset("b", json!("70%"))]))).await?;
        let mut told = 0;
        for attempt in 1..=5 {
            let pods = first_versions(t).await?;
            let missed = pods.iter().filter(|(note, _)| note.is_empty()).count();
            let costs: BTreeSet<&String> = pods.iter().map(|(_, cost)| cost).filter(|cost| !cost.is_empty()).collect();
            ensure!(costs.len() + missed == 10, "two have one cost, or one in a subset has none: {pods:?}");
            if missed == 0 {
                return Ok(());
            }
            // What was recorded for a Pod that got no answer keeps its place for half a minute: another one may find no room then.
            let late = |events: &[String]| {
                let count = |text: &str| events.iter().filter(|event| event.contains(text)).count();
                match count("no decision within") {
                    0 => 0,
                    unanswered => unanswered + count("every subset is full"),
                }
            };
            told = late(&t.wait_events(SPREAD, "ws", |events| late(events) >= told + missed).await?);
            println!("attempt {attempt}: {missed} of 10 Pods came while the machine was too busy");
            t.remove("CloneSet", "web").await?;
            poll("the Pods to be gone", LONG, async || {
                let left = t.list("Pod", "app=web").await?.len();
                ensure!(left == 0, "{left}");
                Ok(())
            })
            .await?;
        }
        anyhow::bail!("the machine is too busy")
    })
    .await
}

#[tokio::test]
async fn the_author_of_a_patch_needs_the_rights_to_create_and_to_patch_pods() -> Result<()> {
    in_namespace("spread-rights", async |t| {
        let role = |name: &str, group: &str, resource: &str, verbs: &[&str]| {
            json!({ "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": name },
                "rules": [{ "apiGroups": [group], "resources": [resource], "verbs": verbs }] })
        };
        t.create(json!({ "kind": "ServiceAccount", "metadata": { "name": "author" } })).await?;
        let account = format!("system:serviceaccount:{}:author", t.namespace);
        let user = format!("--as={account}");
        let bind = |name: &str| {
            json!({ "kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
                "subjects": [{ "kind": "ServiceAccount", "name": "author", "namespace": t.namespace }] })
        };
        t.create(role("spreads", "apps.kruise.io", "workloadspreads", &["create", "get", "patch"])).await?;
        t.create(bind("spreads")).await?;
        t.may(&account, "create", "workloadspreads").await?;
        let write = |name: &str, object: Value| -> Result<String> {
            let path = std::env::temp_dir().join(format!("{}-{name}", t.namespace));
            std::fs::write(&path, object.to_string())?;
            Ok(path.to_string_lossy().into_owned())
        };
        // As clients in Go write subsets without a patch.
        let plain = json!([{ "name": "a", "maxReplicas": 1, "patch": null }, { "name": "b" }]);
        let plain = write("plain.json", of_clone_set(plain))?;
        let patching = of_clone_set(json!([subset("a", json!(1)), subset("b", Value::Null)]));
        let patching = write("patching.json", patching)?;
        let dry = ["create", "--dry-run=server", "-f", plain.as_str(), user.as_str()];
        poll("a WorkloadSpread without patches", PATIENCE, async || t.kubectl(&dry).await.map(drop)).await?;
        let create = ["create", "-f", patching.as_str(), user.as_str()];
        let refused = async |args: &[&str]| {
            let answer = t.kubectl(args).await.map_err(|error| format!("{error:#}"));
            let why = "requires permission to create and patch pods";
            ensure!(answer.as_ref().is_err_and(|error| error.contains(why)), "{answer:?}");
            Ok::<_, anyhow::Error>(())
        };
        refused(&create).await?;
        t.create(role("create", "", "pods", &["create"])).await?;
        t.create(bind("create")).await?;
        t.may(&account, "create", "pods").await?;
        refused(&create).await?;

        // Stored by somebody else: its metadata is free, its spec is not.
        t.create(of_clone_set(json!([subset("a", json!(1)), subset("b", Value::Null)]))).await?;
        let patch = |patch: &'static str| ["patch", "ws", "ws", "--type=merge", "-p", patch, user.as_str()];
        t.kubectl(&patch(r#"{"metadata":{"labels":{"team":"a"}}}"#)).await?;
        refused(&patch(r#"{"spec":{"scheduleStrategy":{"type":"Adaptive"}}}"#)).await?;
        t.remove(SPREAD, "ws").await?;

        t.create(role("patch", "", "pods", &["patch"])).await?;
        t.create(bind("patch")).await?;
        t.may(&account, "patch", "pods").await?;
        // The policy asks another authorizer, which learns of it a moment later or earlier.
        poll("the author to be allowed", PATIENCE, async || t.kubectl(&create).await.map(drop)).await?;
        for file in [plain, patching] {
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    })
    .await
}
