//! Refuses to work on objects that are stored in a shape which this program does not have.
//!
//! The API server converts nothing for us (conversion is None): what another release has stored as another version would be
//! read as if it were ours. `status.storedVersions` of a definition says which versions were ever stored.

use std::time::Duration;

use http::Request;
use kube::Client;
use serde::Deserialize;

use super::{apply::code, client::can_pass};
use crate::{api::Crd, k8s::path};

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(2);

/// Looks at the definitions of these custom resources. An API server that does not answer is asked again, for ever: a
/// manager that is started during an outage is not started again and again.
///
/// # Errors
/// A version was stored that we do not hold in that shape, with the steps to take; or the API server refuses to say.
pub async fn check(client: &Client, definitions: impl Iterator<Item = &Crd>) -> anyhow::Result<()> {
    for ours in definitions {
        let mut answer = installed(client, ours.name).await;
        while let Some(error) = answer.as_ref().err().filter(|error| can_pass(error)) {
            tracing::warn!(definition = ours.name, %error, "its stored versions could not be read, trying again");
            tokio::time::sleep(AGAIN).await;
            answer = installed(client, ours.name).await;
        }
        match answer {
            Ok(installed) => {
                let ever = installed.status.and_then(|status| status.stored_versions).unwrap_or_default();
                if let Some(reason) = of(ours, &ever) {
                    anyhow::bail!(reason);
                }
            }
            // Manifests of a release before this check: no reason to stop.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::warn!(
                    definition = ours.name,
                    "its stored versions may not be read: apply the manifests again"
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What is read of a definition: its schemas are most of it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Definition {
    status: Option<DefinitionStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DefinitionStatus {
    stored_versions: Option<Vec<String>>,
}

/// One that is not installed has stored nothing.
async fn installed(client: &Client, name: &str) -> kube::Result<Definition> {
    let path = path::of_cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions") + "/" + name;
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request(request).await {
        Err(error) if code(&error) == Some(404) => Ok(Definition::default()),
        read => read,
    }
}

fn of(ours: &Crd, ever: &[String]) -> Option<String> {
    let stored = ours.versions.first().copied().unwrap_or_default();
    refusal(ours.name, ours.versions, stored, &ever.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Why objects that were ever stored as these versions are not for us, and what to do about it. `known` are the versions
/// that we serve, `keep` is the one that we store.
pub fn refusal(name: &str, known: &[&str], keep: &str, ever: &[&str]) -> Option<String> {
    let foreign: Vec<&str> = ever.iter().copied().filter(|version| !known.contains(version)).collect();
    if foreign.is_empty() {
        return None;
    }
    let foreign = foreign.join(", ");
    Some(format!(
        "CustomResourceDefinition {name}: status.storedVersions holds {foreign}, and objects stored so cannot be read here. \
         1. Start the release that stored them again, its conversion webhook included. \
         2. Give {keep} `storage: true` in spec.versions of the definition, the other versions `storage: false`. \
         3. Store every object again: kubectl get {name} -A -o json | kubectl replace -f - \
         4. Then: kubectl patch crd {name} --subresource=status --type=merge -p '{{\"status\":{{\"storedVersions\":[\"{keep}\"]}}}}' \
         5. Stop that release and apply the manifests of kruise-rs again."
    ))
}

#[cfg(test)]
mod tests {
    use crate::api::CRDS;

    fn of(name: &str, stored: &[&str]) -> Option<String> {
        let crd = CRDS.iter().find(|crd| crd.name == name).unwrap();
        super::of(crd, &stored.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn versions_that_we_serve_in_one_shape_are_fine() {
        assert_eq!(of("containerrecreaterequests.apps.kruise.io", &["v1alpha1", "v1beta1"]), None);
        assert_eq!(of("daemonsets.apps.kruise.io", &["v1alpha1", "v1beta1"]), None);
        assert_eq!(of("statefulsets.apps.kruise.io", &["v1alpha1", "v1beta1"]), None);
        assert_eq!(of("clonesets.apps.kruise.io", &["v1alpha1"]), None);
        assert_eq!(of("clonesets.apps.kruise.io", &[]), None);
    }

    #[test]
    fn another_version_is_refused_with_the_steps_to_take() {
        let text = of("clonesets.apps.kruise.io", &["v1alpha1", "v1beta1"]).unwrap();
        assert!(
            text.starts_with("CustomResourceDefinition clonesets.apps.kruise.io: status.storedVersions holds v1beta1,")
        );
        assert!(text.contains("-p '{\"status\":{\"storedVersions\":[\"v1alpha1\"]}}'"), "{text}");
    }
}
