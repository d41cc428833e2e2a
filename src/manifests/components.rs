//! Optional parts of an installation, as kustomize components: `components/NAME/`.
//!
//! One line in [`COMPONENTS`] each. `uninstall.sh` deletes the objects of all of them.

use serde_json::{Value, json};

use super::{external_certs, network_policy, roles};

pub(super) struct Component {
    /// Its directory below `components/`, and the name of its file.
    pub name: &'static str,
    /// Whether the overlays of the runtimes include it; users leave it out by an overlay of their own.
    pub is_default: bool,
    /// What it adds.
    pub objects: fn() -> Vec<Value>,
    /// What it changes: kustomize's `patches`.
    pub patches: fn() -> Value,
}

pub(super) const COMPONENTS: &[Component] = &[
    // Cluster-wide `get` on Secrets for image jobs.
    Component { name: "pull-secrets", is_default: true, objects: roles::secrets_access, patches: none },
    // Who may dial manager and webhook. Its addresses have to be set.
    Component { name: "network-policy", is_default: false, objects: network_policy::objects, patches: none },
    // The webhook's certificates are somebody else's to renew.
    Component { name: "external-certs", is_default: false, objects: Vec::new, patches: external_certs::patches },
];

fn none() -> Value {
    json!([])
}

/// The paths of what the overlays of the runtimes include, seen from an overlay.
pub(super) fn defaults() -> Vec<String> {
    COMPONENTS.iter().filter(|c| c.is_default).map(|c| format!("../../components/{}", c.name)).collect()
}
