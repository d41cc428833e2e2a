//! What is there only a moment after something else was written: rights, definitions, the webhook's endpoints, slices.

use anyhow::{Context, Result, ensure};
use kube::api::{ListParams, Request};
use serde_json::Value;

use super::{Look, PATIENCE, Test, condition, crr, poll};

impl Test {
    /// Waits until the API server reaches the webhook, for a test that had taken it away: replicas that are ready are called
    /// a moment later.
    pub async fn webhook_answers(&self) -> Result<()> {
        poll("the webhook to answer the API server", PATIENCE, async || {
            // Of a Pod that is not there: the webhook itself refuses it, by the one rule or the other.
            let (code, message) = self.refused(crr("asked", "nobody", &["main"])).await?;
            ensure!((400..500).contains(&code) && code != 404, "{code} {message}");
            Ok(())
        })
        .await
    }

    /// Waits until a user has a right in the namespace that was granted just now. `what` is a resource or a subresource, as
    /// `pods/log`.
    pub async fn may(&self, user: &str, verb: &str, what: &str) -> Result<()> {
        poll(&format!("{user} to have the right to {verb} {what}"), PATIENCE, async || {
            // `pods/log` would be a Pod of that name.
            let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
            let subresource = format!("--subresource={subresource}");
            let answer = self.kubectl(&["auth", "can-i", verb, resource, &subresource, "--as", user]).await?;
            ensure!(answer.trim() == "yes", "{answer}");
            Ok(())
        })
        .await
    }

    /// The name of the EndpointSlice of a Service.
    pub async fn slice_of(&self, service: &str) -> Result<String> {
        poll(&format!("an EndpointSlice of Service {service}"), PATIENCE, async || {
            let slices = self.list("EndpointSlice", &format!("kubernetes.io/service-name={service}")).await?;
            Ok(slices.first().context("it has none yet")?.text("/metadata/name").to_owned())
        })
        .await
    }

    /// Creates the definition of a kind that only tests have, in place of one that an earlier run has left, and waits until
    /// its objects can be created.
    pub async fn define(&self, definition: Value) -> Result<()> {
        let (kind, name) = ("CustomResourceDefinition", definition.text("/metadata/name").to_owned());
        let (group, version) = (definition.text("/spec/group"), definition.text("/spec/versions/0/name"));
        let path = format!("/apis/{group}/{version}/{}", definition.text("/spec/names/plural"));
        self.remove(kind, &name).await?;
        self.gone(kind, &name).await?;
        self.create(definition).await?;
        let established = |o: &Value| condition(o, "Established") == "True";
        self.wait_for(kind, &name, "to be established", PATIENCE, established).await?;
        poll(&format!("{path} to be served"), PATIENCE, async || {
            let list = Request::new(path.clone()).list(&ListParams::default())?;
            self.client.request_text(list).await?;
            Ok(())
        })
        .await
    }
}
