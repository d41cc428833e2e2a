//! The bare client as the manager's account. The admission policies on Pods are for that account alone: an administrator's
//! writes end at their first match condition, and the manager's are evaluated to the end.

use anyhow::{Result, ensure};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::Scale;
use super::at_once::tried;
use super::bare::{LIMITED, clone_set};
use super::in_place::HowMany;
use crate::cmd::kubectl;
use crate::kit::{Build, Look, Test};
use crate::measure::settle;
use crate::paths::SYSTEM;

/// This client, as what another side is measured beside.
pub(super) const BESIDE: &str = "a client under the same policies";
const ACCOUNT: &str = "kruise-manager";
/// Keeps the owner of the Pods while it is being deleted.
const HOLD: &str = "example.com/held";

struct Limited {
    t: Test,
    /// Owner reference of the Pods.
    owner: Value,
}

impl Limited {
    /// The client, and an owner of its Pods: the policies let the manager change labels and images of Pods that a workload of
    /// ours controls, and of no others. A workload that stays would see to its Pods itself. A CloneSet that is being deleted
    /// does nothing any more, and as long as a finalizer holds it the garbage collector leaves its Pods alone.
    async fn begin(t: &Test, name: &str, pod: Value) -> Result<Self> {
        let client = as_manager(t).await?;
        report_unbound_policy(&client, pod).await?;
        let owner = t.create(clone_set(name, 0).with("/metadata/finalizers", json!([HOLD]))).await?;
        t.remove("CloneSet", name).await?;
        // Until the manager has seen that too, it would delete Pods: none are wanted.
        settle().await;
        let owner = json!({ "apiVersion": owner.text("/apiVersion"), "kind": "CloneSet", "name": name,
            "uid": owner.text("/metadata/uid"), "controller": true, "blockOwnerDeletion": true });
        Ok(Self { t: client, owner })
    }

    /// Lets the owner go.
    async fn end(self, t: &Test) -> Result<()> {
        let free = json!({ "metadata": { "finalizers": null } });
        t.patch("CloneSet", self.owner.text("/name"), free).await.map(drop)
    }
}

/// With a token of the manager's account. Impersonation would cost more: the API server would check the right to impersonate the
/// account, and each of its groups, at every request.
async fn as_manager(t: &Test) -> Result<Test> {
    let answer = t.run(kubectl(&t.paths, ["-n", SYSTEM, "create", "token", ACCOUNT])).await?;
    ensure!(answer.ok, "a token of {ACCOUNT}: {}", answer.stderr.trim());
    let kubeconfig = Kubeconfig::read_from(t.paths.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info = AuthInfo { token: Some(answer.stdout.trim().to_owned().into()), ..AuthInfo::default() };
    Ok(Test { client: Client::try_from(config)?, ..t.clone() })
}

/// Says so if the policy on Pods is not bound: it can be unbound to measure without it. By its role the account may create any
/// Pod; only a policy refuses one that nobody controls.
async fn report_unbound_policy(client: &Test, pod: Value) -> Result<()> {
    match tried(client, pod.with("/metadata/ownerReferences", json!([]))).await {
        Ok(_) => println!("{LIMITED}: kruise-manager-pods is not bound"),
        Err(error) => match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) if status.code == 403 && status.message.contains("kruise-manager-pods") => {}
            _ => return Err(error),
        },
    }
    Ok(())
}

impl Scale<'_> {
    /// The seconds that this client takes to update Pods in place. It makes no other writes: an administrator creates and deletes
    /// the Pods. Like the manager, and unlike an administrator, it is limited by a role and by the API server's fairness too. The
    /// manager sees events of these Pods, and looks at their owner in vain.
    pub(super) async fn limited_in_place(
        &mut self,
        name: &str,
        how_many: HowMany,
        pod: impl Fn(usize) -> Value,
    ) -> Result<f64> {
        let t = self.t.clone();
        let limited = Limited::begin(&t, name, pod(0)).await?;
        let owned = |index: usize| pod(index).with("/metadata/ownerReferences", json!([limited.owner]));
        let seconds = self.client_in_place((&limited.t, LIMITED), name, how_many, owned).await;
        limited.end(&t).await?;
        seconds
    }
}
