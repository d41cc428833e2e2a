//! What the daemon does on its node: carries out the steps that `domain` decides, through `cri`.
//!
//! - [`recreate`]: ContainerRecreateRequests of this node.
//! - [`container_meta`]: with what containers run, and restarts of those whose environment has changed.
//! - [`images`]: the images that the node is to have.
//! - [`prober`]: probes of users' own, and their results.
//! - [`stops`]: so that what two of them want stopped is stopped once.
//! - [`hooks`]: preStop hooks, run as kubelet runs them.
//! - [`runtimes`]: which runtimes are there, found again when they come and go.

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
    Rule::new(&["apps.kruise.io"], &["nodeimages/status"], &["patch"]),
];

/// What it may do in its own namespace: learn whom to trust with its token.
pub const OWN_NAMESPACE_RBAC: &[Rule] =
    &[Rule::new(&[""], &["configmaps"], &["get"]).named(&[pull_secrets::CONFIG_MAP])];
