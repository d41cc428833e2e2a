//! Feature gates and components of the installation, switched on and off.

use anyhow::Result;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Look, Test};
use crate::paths::SYSTEM;

/// The ConfigMap with the feature gates.
pub const GATES: &str = "kruise-feature-gates";

impl Test {
    /// Sets the feature gates of manager and webhook, and waits until others than before run.
    pub async fn set_gates(&self, gates: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "data": { "feature-gates": gates } }));
        self.api_in(SYSTEM, "ConfigMap").patch(GATES, &PatchParams::default(), &patch).await?;
        for name in ["kruise-controller-manager", "kruise-webhook"] {
            self.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment", name]).await?;
        }
        for name in ["kruise-controller-manager", "kruise-webhook"] {
            self.kubectl(&["-n", SYSTEM, "rollout", "status", "--timeout=90s", "deployment", name]).await?;
        }
        // While they end, the webhooks of before still answer.
        self.node().gone("control-plane=webhook", |pod| pod.has("/metadata/deletionTimestamp")).await?;
        self.webhook_answers().await
    }

    /// Applies or deletes the objects of a component, which give the manager a right: a verb and a resource.
    pub async fn component(&self, name: &str, (verb, resource): (&str, &str), on: bool) -> Result<()> {
        let file = self.paths.repo.join(format!("manifests/components/{name}/{name}.yaml"));
        let file = file.to_string_lossy();
        if !on {
            return self.kubectl(&["delete", "--ignore-not-found", "-f", &file]).await.map(drop);
        }
        self.kubectl(&["apply", "-f", &file]).await?;
        self.may(&format!("system:serviceaccount:{SYSTEM}:kruise-manager"), verb, resource).await
    }
}
