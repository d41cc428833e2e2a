//! What the daemon does on its node: carries out the steps that `domain` decides, through `cri`.
//!
//! - [`recreate`]: ContainerRecreateRequests of this node.
//! - [`container_meta`]: hashes of what containers run, and restarts of containers whose environment has changed.
//! - [`images`]: pulls the images that the NodeImage lists.
//! - [`prober`]: runs the probes of PodProbeMarkers and reports their results.
//! - [`stops`]: ensures that an instance that two of them want to stop is stopped once.
//! - [`hooks`]: preStop hooks, run as kubelet runs them.
//! - [`runtimes`]: finds the container runtimes, also when they start late or restart.

use crate::{domain::node::pull_secrets, k8s::rbac::Rule};

pub mod container_meta;
pub mod hooks;
pub mod images;
pub mod prober;
pub mod recreate;
pub mod runtimes;
pub mod stops;

/// Everything the daemon may do in the API, cluster-wide. Policies limit the writes to its own node, and
/// those on Pods to one annotation.
pub const RBAC: &[Rule] = &[
    Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["get", "list", "watch"]),
    Rule::new(&["apps.kruise.io"], &["containerrecreaterequests/status"], &["patch"]),
    Rule::new(&["apps.kruise.io"], &["nodepodprobes"], &["list", "watch"]),
    Rule::new(&["apps.kruise.io"], &["nodepodprobes/status"], &["patch"]),
    Rule::new(&[""], &["pods"], &["get", "list", "watch"]),
    Rule::new(&[""], &["pods/status"], &["patch"]),
    Rule::new(&[""], &["events"], &["create"]),
    // RBAC cannot say "of this node": watches are limited by name, and writes by a policy.
    Rule::new(&["apps.kruise.io"], &["nodeimages"], &["list", "watch"]),
    // Whether kubelet reports that the disk is full. RBAC cannot say "its own".
    Rule::new(&[""], &["nodes"], &["get"]),
    Rule::new(&["apps.kruise.io"], &["nodeimages/status"], &["patch"]),
];

/// What it may do in its own namespace: read the CA of the manager that it sends its token to.
pub const OWN_NAMESPACE_RBAC: &[Rule] =
    &[Rule::new(&[""], &["configmaps"], &["get"]).named(&[pull_secrets::CONFIG_MAP])];
