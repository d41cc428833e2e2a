//! Where the ordinals of a StatefulSet begin: behind the gate StatefulSetStartOrdinal.

use anyhow::Result;
use e2e::kit::{Build, Look, Test, app, condition, in_namespace, workload};
use serde_json::{Value, json};

use crate::LONG;

const STATEFUL_SET: &str = "AdvancedStatefulSet";

/// Waits until the set is as its spec wants it, and these are its Pods.
async fn are_its_pods(t: &Test, names: &[&str]) -> Result<()> {
    let ready = |set: &Value| {
        condition(set, "Ready") == "True" && set.int("/status/observedGeneration") == set.int("/metadata/generation")
    };
    t.wait_for(STATEFUL_SET, "web", "to be as its spec wants it", LONG, ready).await?;
    let mut pods = t.list("Pod", "app=web").await?;
    pods.sort_by_key(|pod| pod.text("/metadata/name").to_owned());
    let found: Vec<&str> = pods.iter().map(|pod| pod.text("/metadata/name")).collect();
    assert_eq!(found, names);
    for pod in &pods {
        let (name, index) = (pod.text("/metadata/name"), pod.text("/metadata/labels/apps.kubernetes.io~1pod-index"));
        assert_eq!(name, format!("web-{index}"));
    }
    Ok(())
}

pub(crate) async fn ordinals_begin_where_they_are_to_begin_and_move_with_it() -> Result<()> {
    in_namespace("sts-start", async |t| {
        let set = workload("StatefulSet", "web", 2, vec![app("main")])
            .with("/apiVersion", "apps.kruise.io/v1beta1")
            .with("/spec/podManagementPolicy", "OrderedReady")
            .with("/spec/ordinals", json!({ "start": 4 }))
            .with("/spec/reserveOrdinals", json!([1, 5]));
        t.create(set).await?;
        are_its_pods(t, &["web-4", "web-6"]).await?;
        t.patch(STATEFUL_SET, "web", json!({ "spec": { "ordinals": { "start": 3 } } })).await?;
        are_its_pods(t, &["web-3", "web-4"]).await?;
        t.patch(STATEFUL_SET, "web", json!({ "spec": { "ordinals": null } })).await?;
        are_its_pods(t, &["web-0", "web-2"]).await
    })
    .await
}
