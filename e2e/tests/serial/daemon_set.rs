//! Advanced DaemonSet while its node is tainted and cordoned, which concerns every Pod of the cluster.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, restoring, workload};
use serde_json::Value;

const DAEMON_SET: &str = "AdvancedDaemonSet";

async fn counted(t: &Test, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
    t.wait_for(DAEMON_SET, "agent", what, PATIENCE, fits).await
}

async fn pod(t: &Test) -> Result<Value> {
    let pods = t.list("Pod", "app=agent").await?;
    let mut live = pods.into_iter().filter(|pod| !pod.has("/metadata/deletionTimestamp"));
    live.next().context("its Pod")
}

#[tokio::test]
async fn a_daemon_set_leaves_its_pod_on_a_tainted_node_and_makes_an_evicted_one_anew() -> Result<()> {
    in_namespace("ads-taint", async |t| {
        let first = t.list("Node", "kubernetes.io/hostname").await?;
        let node = first.first().context("a node")?.text("/metadata/name").to_owned();
        let set = workload("DaemonSet", "agent", 0, vec![app("main")])
            .with("/apiVersion", "apps.kruise.io/v1beta1")
            .with("/spec/template/spec/nodeSelector", serde_json::json!({ "kubernetes.io/hostname": node }));
        t.create(set).await?;
        counted(t, "to run", |o| o.int("/status/numberAvailable") == 1).await?;
        let before = pod(t).await?;

        t.kubectl(&["taint", "node", &node, "e2e/ads=yes:NoSchedule"]).await?;
        let tainted = async {
            counted(t, "to see the taint", |o| o.int("/status/numberMisscheduled") == 1).await?;
            assert_eq!(pod(t).await?.text("/metadata/uid"), before.text("/metadata/uid"), "it stays");
            Ok(())
        };
        restoring(tainted, async { t.kubectl(&["taint", "node", &node, "e2e/ads-"]).await.map(drop) }).await?;
        counted(t, "to see that the taint is gone", |o| o.int("/status/desiredNumberScheduled") == 1).await?;

        t.kubectl(&["cordon", &node]).await?;
        let cordoned = async {
            t.kubectl(&["delete", "pod", before.text("/metadata/name")]).await?;
            let is_back = |o: &Value| o.int("/status/numberAvailable") == 1 && condition(o, "Ready") == "True";
            counted(t, "to run on the cordoned node again", is_back).await?;
            ensure!(pod(t).await?.text("/metadata/uid") != before.text("/metadata/uid"), "it is another one");
            Ok(())
        };
        restoring(cordoned, async { t.kubectl(&["uncordon", &node]).await.map(drop) }).await
    })
    .await
}
