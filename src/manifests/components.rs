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
    // The manager may copy Secrets and ConfigMaps, which goes with the feature gate ResourceDistributionGate.
    Component { name: "resource-distribution", is_default: false, objects: roles::distribution_access, patches: none },
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

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, fs, path::Path, process::Command};

    use crate::api::{kinds::KINDS, labels};

    /// Lists Deployments as it was set up to, and notes every other call.
    const KUBECTL: &str = r#"#!/bin/sh
case "$*" in
  "get deployments"*) printf '%b' "$DEPLOYMENTS" ;;
  *) echo "$*" >>"$CALLS"; if [ "$1" = kustomize ]; then printf '%b' "$RENDERED"; fi ;;
esac
case "$*" in "delete -f - "*) cat >>"$CALLS" ;; esac
"#;

    /// A namespace and something in it.
    const RENDERED: &str = r"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: kruise-system\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  namespace: kruise-system\n";

    /// Every definition is installed. `$KEPT` is the kind that has an object, or whose definition cannot be read with
    /// `$FAILS`, and what it says of patches.
    const FULL: &str = r#"#!/bin/sh
case "$*" in
  "get crd $FAILS "*) echo "Error from server (Timeout): later" >&2; exit 1 ;;
  "get crd "*) echo "customresourcedefinition.apiextensions.k8s.io/$3" ;;
  "get $KEPT --all-namespaces --no-headers "*) echo "ns   web" ;;
  "get pods "*) echo "ns web-0 InPlaceUpdateReady"; echo "ns web-1 InPlaceUpdateReady" ;;
  "patch "*) echo "$*" >>"$CALLS"; case "$*" in *web-0*) echo "Error from server ($PATCHED): pods" >&2; exit 1 ;; esac ;;
  "delete "*) echo "$*" >>"$CALLS" ;;
esac
"#;

    /// Kinds without Pods of their own whose objects take others with them that are in use.
    const DEPENDANTS: [&str; 2] = ["AdvancedCronJob", "ResourceDistribution"];

    /// A command that reads the script: a file that this process has just written may still be open in a child that another test has
    /// forked, and then it cannot be executed ("Text file busy").
    fn through_sh(script: &Path) -> OsString {
        let mut command = OsString::from("sh ");
        command.push(script);
        command
    }

    #[test]
    fn uninstalling_with_the_definitions_spares_every_workload_and_goes_on_without_what_is_gone() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/uninstall.sh");
        let dir = tempfile::tempdir().unwrap();
        let (kubectl, calls) = (dir.path().join("kubectl"), dir.path().join("calls"));
        fs::write(&kubectl, FULL).unwrap();
        let run = |kept: &str, fails: &str, patched: &str| {
            fs::write(&calls, "").unwrap();
            let mut command = Command::new("sh");
            command.arg(&script).arg("--crds").env("KUBECTL", through_sh(&kubectl)).env("CALLS", &calls);
            command.env("KEPT", kept).env("FAILS", fails).env("PATCHED", patched);
            let output = command.env_remove("TIMEOUT").env_remove("NAMESPACE").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), said, fs::read_to_string(&calls).unwrap())
        };
        let workloads: Vec<String> = KINDS
            .iter()
            .filter(|kind| kind.definition.is_some())
            .filter(|kind| kind.workload.is_some() || kind.runs_pods || DEPENDANTS.contains(&kind.kind))
            .map(|kind| format!("{}.{}", kind.plural, kind.group))
            .collect();
        assert_eq!(workloads.len(), 7, "{workloads:?}");
        for workload in &workloads {
            let (code, said, calls) = run(workload, "", "NotFound");
            assert_eq!((code, calls.as_str()), (1, ""), "{workload}: nothing is done");
            assert!(
                said.starts_with(&format!("--crds would delete these {workload} ")) && said.contains("web"),
                "{said}"
            );
            let (code, said, calls) = run(workload, workload, "NotFound");
            assert_eq!((code, calls.as_str()), (1, ""), "{workload}: it is not known whether there are any");
            assert!(said.contains("(Timeout)"), "{said}");
        }
        let (code, said, calls) = run("", "", "NotFound");
        assert_eq!((code, said.as_str()), (0, ""), "{calls}");
        assert!(calls.contains("patch pod --namespace ns web-1 "), "the next one: {calls}");
        assert!(calls.lines().last().unwrap().starts_with("delete -k "), "{calls}");
        let (code, said, calls) = run("", "", "Forbidden");
        assert!(code != 0 && said.contains("(Forbidden)") && !calls.contains("web-1"), "{said}{calls}");
    }

    /// Every definition is installed, every kind has an object that holds the finalizer that is asked for, and definitions are not gone
    /// in time.
    const HELD: &str = r#"#!/bin/sh
case "$*" in
  "get crd "*) echo "customresourcedefinition.apiextensions.k8s.io/$3" ;;
  "get "*" --all-namespaces -o go-template="*.metadata.finalizers*) echo "ns held 0" ;;
  "patch "*) echo "$*" >>"$CALLS" ;;
  "delete -k "*) echo "error: timed out waiting for the condition" >&2; exit 1 ;;
esac
"#;

    #[test]
    fn uninstalling_releases_every_finalizer_of_ours_and_tells_what_is_left() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/uninstall.sh");
        let dir = tempfile::tempdir().unwrap();
        let (kubectl, calls) = (dir.path().join("kubectl"), dir.path().join("calls"));
        fs::write(&kubectl, HELD).unwrap();
        let mut command = Command::new("sh");
        command.arg(&script).arg("--crds").env("KUBECTL", through_sh(&kubectl)).env("CALLS", &calls);
        let output = command.env_remove("TIMEOUT").env_remove("NAMESPACE").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.ends_with("some objects were not gone within 60s; run this again to see them\n"), "{said}");
        let calls = fs::read_to_string(calls).unwrap();
        for (kind, finalizer) in [
            ("containerrecreaterequests.apps.kruise.io", labels::CRR_UNREADY_FINALIZER),
            ("podprobemarkers.apps.kruise.io", labels::PROBE_CLEANUP_FINALIZER),
            ("imagepulljobs.apps.kruise.io", labels::IMAGE_PULL_JOB_FINALIZER),
            ("imagelistpulljobs.apps.kruise.io", labels::IMAGE_PULL_JOB_FINALIZER),
            ("ephemeraljobs.apps.kruise.io", labels::EPHEMERAL_JOB_FINALIZER),
        ] {
            let patch = format!(
                r#"patch {kind} --namespace ns held --type=json --patch [{{"op":"test","path":"/metadata/finalizers/0","value":"{finalizer}"}},{{"op":"remove","path":"/metadata/finalizers/0"}}]"#
            );
            assert_eq!(calls.lines().filter(|call| *call == patch).count(), 1, "{patch}: {calls}");
        }
    }

    #[test]
    fn uninstalling_spares_installations_in_other_namespaces_and_of_others() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/uninstall.sh");
        let dir = tempfile::tempdir().unwrap();
        let kubectl = dir.path().join("kubectl");
        fs::write(&kubectl, KUBECTL).unwrap();
        let run = |namespace: &str, deployments: &str| {
            let calls = dir.path().join("calls");
            fs::write(&calls, "").unwrap();
            let mut command = Command::new("sh");
            command.arg(&script).env("KUBECTL", through_sh(&kubectl)).env("CALLS", &calls);
            command.env("DEPLOYMENTS", deployments).env("RENDERED", RENDERED);
            command.env_remove("TIMEOUT").env_remove("NAMESPACE");
            if !namespace.is_empty() {
                command.env("NAMESPACE", namespace);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), said, fs::read_to_string(calls).unwrap())
        };

        const OURS: &str =
            r"kruise-system kruise-controller-manager kruise-rs\nkruise-system kruise-webhook kruise-rs\n";
        const MOVED: &str = r"elsewhere kruise-controller-manager kruise-rs\n";
        for (namespace, deployments, want) in [
            (
                "",
                MOVED,
                "kruise-rs is installed in namespace elsewhere (Deployment kruise-controller-manager), not in kruise-system; run this with NAMESPACE=elsewhere",
            ),
            ("elsewhere", OURS, "kruise-rs is installed in namespace kruise-system"),
            (
                "",
                r"kruise-system kruise-controller-manager <no value>\n",
                "Deployment kruise-controller-manager in namespace kruise-system is not of kruise-rs",
            ),
            (
                "",
                r"openkruise kruise-controller-manager \n",
                "Deployment kruise-controller-manager in namespace openkruise is not of kruise-rs",
            ),
        ] {
            let (code, said, calls) = run(namespace, deployments);
            assert_eq!((code, calls.as_str()), (1, ""), "{deployments}: nothing is done");
            assert!(said.starts_with(want), "{deployments}: {said}");
        }
        assert_eq!(run("a/b", OURS).0, 2);
        // A second run finds nothing, which is no error.
        for (namespace, deployments, want) in
            [("", OURS, "kruise-system"), ("elsewhere", MOVED, "elsewhere"), ("", "", "kruise-system")]
        {
            let (code, said, calls) = run(namespace, deployments);
            assert_eq!(code, 0, "{deployments}: {said}");
            assert!(calls.contains(&format!("\n  namespace: {want}\n")), "{deployments}: {calls}");
            // OpenKruise keeps its configuration and the revisions of SidecarSets there.
            assert!(!calls.contains("kind: Namespace") && calls.contains("kind: ConfigMap"), "{deployments}: {calls}");
            assert!(calls.contains("\ndelete -f - --cascade=foreground "), "the Pods are waited for: {calls}");
        }
    }
}
