//! The rights in the manifests against the calls that were made: none is missing, none is there for nothing.
//!
//! It runs last (its name sorts behind the other modules'), when the API server's audit log has seen everything.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use e2e::audit;
use e2e::kit::{Look, in_namespace};
use e2e::paths::{Paths, SYSTEM};
use serde::Deserialize as _;
use serde_json::Value;

/// Verb and resource, as `patch apps.kruise.io/containerrecreaterequests/status`.
type Right = (String, String);

/// What the rendered roles of an account grant.
fn granted(paths: &Paths, account: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    let components = fs::read_dir(paths.repo.join("manifests/components"))?.map(|entry| Ok(entry?.path()));
    let directories = components.collect::<Result<Vec<_>>>()?;
    for directory in directories.iter().chain([&paths.repo.join("manifests/base")]) {
        let files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        for file in files {
            rights.extend(granted_by(&fs::read_to_string(file)?, account)?);
        }
    }
    ensure!(!rights.is_empty(), "no role of {account} in the manifests");
    Ok(rights)
}

/// What the roles of an account grant in one file.
fn granted_by(text: &str, account: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document)?;
        let is_role = matches!(object.text("/kind"), "Role" | "ClusterRole");
        if !is_role || !object.text("/metadata/name").starts_with(account) {
            continue;
        }
        for rule in object.array("/rules") {
            let all = |pointer: &str| {
                rule.array(pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
            };
            for group in all("/apiGroups") {
                for resource in all("/resources") {
                    rights.extend(all("/verbs").into_iter().map(|verb| (verb, format!("{group}/{resource}"))));
                }
            }
        }
    }
    Ok(rights)
}

/// What administrators grant besides the manifests: Secrets that are triggers of WorkloadRestarts or sources of
/// ResourceDistributions, each by its name, and targets of kinds that the manifests do not name.
fn is_opt_in(entry: &Value, resource: &str) -> bool {
    let by_name = entry.has("/objectRef/name");
    // ConfigMaps are granted by the component resource-distribution, and followed by their names as well.
    let trigger = resource == "/secrets" && ["list", "watch"].contains(&entry.text("/verb"));
    by_name && (trigger || is_scale(entry, resource))
}

fn is_scale(entry: &Value, resource: &str) -> bool {
    resource.ends_with("/scale") && entry.text("/verb") == "get"
}

/// A kind that the configuration names for WorkloadSpreads; an administrator grants the right to read it.
fn is_configured(entry: &Value, resource: &str) -> bool {
    resource == "/replicationcontrollers" && entry.text("/verb") == "get"
}

/// The manager of an installation that is being removed looks for its Lease, which the manifests ship, and tries to make it.
fn is_of_removed(entry: &Value, resource: &str) -> bool {
    resource == "coordination.k8s.io/leases" && entry.text("/verb") == "create"
}

/// Custom resources that the webhook counts, if it is given the right.
fn is_counted(entry: &Value) -> bool {
    entry.text("/verb") == "list" && entry.text("/objectRef/apiGroup") == "e2e.kruise.rs"
}

/// What the account's own process was allowed, and what it was refused for want of a right.
fn asked(paths: &Paths, account: &str) -> Result<(BTreeSet<Right>, BTreeSet<Right>)> {
    let user = format!("system:serviceaccount:{SYSTEM}:{account}");
    let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
    audit::entries(paths, &user, |entry| {
        // Tests use the daemon's account too, to be refused; only the product calls itself kruise-*.
        let own = entry.text("/user/username") == user && entry.text("/userAgent").starts_with("kruise-");
        if !own || !entry.has("/objectRef/resource") {
            return;
        }
        let subresource = entry.text("/objectRef/subresource");
        let slash = if subresource.is_empty() { "" } else { "/" };
        let resource =
            format!("{}/{}{slash}{subresource}", entry.text("/objectRef/apiGroup"), entry.text("/objectRef/resource"));
        let is_added = match account {
            "kruise-manager" => {
                is_opt_in(entry, &resource) || is_configured(entry, &resource) || is_of_removed(entry, &resource)
            }
            "kruise-webhook" => is_counted(entry) || is_configured(entry, &resource) || is_scale(entry, &resource),
            _ => false,
        };
        if is_added {
            return;
        }
        let right = (entry.text("/verb").to_owned(), resource);
        if entry.text("/annotations/authorization.k8s.io~1decision") == "forbid" {
            refused.insert(right);
        } else {
            used.insert(right);
        }
    })?;
    Ok((used, refused))
}

#[tokio::test]
async fn rights_in_the_manifests_are_exactly_those_that_are_used() -> Result<()> {
    in_namespace("rights", async |t| {
        for account in ["kruise-manager", "kruise-webhook", "kruise-daemon"] {
            let granted = granted(&t.paths, account)?;
            let (used, refused) = asked(&t.paths, account)?;
            // While it is installed or removed, a process may run without the rights that it is given: no finding.
            let missing: Vec<&Right> = refused.difference(&granted).collect();
            ensure!(missing.is_empty(), "{account} lacks rights: {missing:#?}");
            // A single object is read only after a conflict, which need not happen; it shows nothing that list does not.
            let lists = |resource: &str| used.contains(&("list".to_owned(), resource.to_owned()));
            let unused = granted.difference(&used).filter(|(verb, resource)| verb != "get" || !lists(resource));
            // Nobody calls it: API servers with OwnerReferencesPermissionEnforcement look whether a creator could.
            let unused = unused.filter(|(_, resource)| !resource.ends_with("/finalizers"));
            // Read only with the gate StatefulSetAutoResizePVCGate, which no test here turns on: growth needs a resizer.
            let unused = unused.filter(|(_, resource)| resource != "storage.k8s.io/storageclasses");
            let unused: Vec<&Right> = unused.collect();
            ensure!(unused.is_empty(), "{account} has rights that nothing has used: {unused:#?}");
            let beyond: Vec<&Right> = used.difference(&granted).collect();
            ensure!(beyond.is_empty(), "{account} uses rights from elsewhere: {beyond:#?}");
        }
        Ok(())
    })
    .await
}
