//! The ways from OpenKruise's release and back, and `manifests/uninstall.sh`, with stand-ins for kubectl and Helm.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::Value;

use super::dir;

/// Answers as it was set up to, and notes what would change something. A call with the text `$FAILS` fails.
const KUBECTL: &str = r#"#!/bin/sh
case "$*" in *"${FAILS:-nothing fails}"*) echo "the server is away" >&2; exit 1 ;; esac
case "$*" in
  "get deployments --all"*) printf '%b' "$DEPLOYMENTS" ;;
  "get daemonsets --all"*) printf '%b' "$DAEMONSETS" ;;
  *containerrecreaterequests*" -o go-template"*) printf '%b' "$REQUESTS" ;;
  "get deployment --namespace "*release-namespace*) echo kruise-home ;;
  "get deployment --namespace "*release-name*) echo "$OLD" ;;
  "get deployment --namespace "*jsonpath*) printf '%b' "$ARGS" ;;
  "get customresourcedefinition clonesets"*storedVersions*) echo "$STORED" ;;
  *'{{range .status.storedVersions}}'*) echo "clonesets.apps.kruise.io $STORED"; echo "workloadrestarts.kruise.rs v1alpha1" ;;
  "get customresourcedefinitions -o go-template"*) echo sidecarsets.apps.kruise.io; echo others.example.com ;;
  "get clusterrolebindings,"*) echo "ClusterRoleBinding - kruise-manager-rolebinding"; echo "RoleBinding kruise-system kruise-leader" ;;
  "get pods "*) printf '%b' "$PODS" ;;
  "get secrets,configmaps "*) printf '%b' "$RECORDS" ;;
  "get validatingadmissionpolicybinding "*) printf '%b' "$BINDINGS" ;;
  "get crd "*) echo "$3" ;;
  "get "*) ;;
  "delete -f -"*) cat >/dev/null; echo "kubectl $*" >>"$CALLS" ;;
  *) echo "kubectl $*" >>"$CALLS" ;;
esac
"#;

const HELM: &str = r#"#!/bin/sh
case "helm $*" in *"${FAILS:-nothing fails}"*) echo "the server is away" >&2; exit 1 ;; esac
case "$*" in
  version*) echo "$VERSION" ;;
  template*) printf 'kind: CustomResourceDefinition\nmetadata:\n  name: clonesets.apps.kruise.io\nspec:\n  versions:\n  - name: v1alpha1\n' ;;
  list*"^kruise-rs"*) echo kruise-rs ;;
  list*) printf '%b' "$RECORDED" ;;
  "get manifest"*) printf '%b' "$MANIFEST" ;;
  "get "*) ;;
  *) echo "helm $*" >>"$CALLS" ;;
esac
"#;

const UNINSTALL: &str = "#!/bin/sh\necho \"uninstall $NAMESPACE\" >>\"$CALLS\"\n";

/// A script of the chart with stand-ins for kubectl, Helm and `uninstall.sh`.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("kubectl", KUBECTL), ("helm", HELM), ("uninstall", UNINSTALL)] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self(dir)
    }

    /// Its exit code, what it said on standard error, and the calls that change something.
    fn run(&self, script: &str, args: &[&str], answers: &[(&str, &str)]) -> (i32, String, Vec<String>) {
        let path = |name: &str| self.0.path().join(name);
        let usual = [
            ("DEPLOYMENTS", r"kruise-system kruise-controller-manager \n"),
            ("DAEMONSETS", r"kruise-system kruise-daemon \n"),
            ("ARGS", r"--v=4\n--feature-gates=A=true,ResourceDistributionGate=true\n"),
            ("OLD", "kruise"),
            ("STORED", "v1alpha1"),
            ("VERSION", "v4.3.1"),
            ("MANIFEST", KEPT),
        ];
        fs::write(path("calls"), "").unwrap();
        let mut command = Command::new("sh");
        command.arg(dir().join(script)).args(args).envs(usual).env("CALLS", path("calls")).env("SAVE", path("save"));
        for name in ["RELEASE", "NAMESPACE", "OLD_RELEASE", "OLD_NAMESPACE", "TIMEOUT", "HELM_DRIVER"] {
            command.env_remove(name);
        }
        for name in ["REQUESTS", "PODS", "RECORDED", "RECORDS", "BINDINGS", "FAILS"] {
            command.env_remove(name);
        }
        command.env("KUBECTL", path("kubectl")).env("HELM", path("helm")).env("UNINSTALL", path("uninstall"));
        let output = command.envs(answers.iter().copied()).output().unwrap();
        let calls = fs::read_to_string(path("calls")).unwrap().lines().map(str::to_owned).collect();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap(), calls)
    }

    fn saved(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join("save").join(name)).unwrap()
    }
}

const KEPT: &str = r"---\nkind: CustomResourceDefinition\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n  name: clonesets.apps.kruise.io\n";

/// The places of these calls, by how they begin, among those that were made.
#[track_caller]
fn assert_order(calls: &[String], wanted: &[&str]) {
    let mut after = 0;
    for begin in wanted {
        let found = calls[after..].iter().position(|call| call.starts_with(begin));
        after += found.unwrap_or_else(|| panic!("no {begin:?} after {after} in {calls:#?}")) + 1;
    }
}

#[test]
fn taking_over_stops_openkruise_before_anything_else_and_never_asks_helm_to_remove_it() {
    let stage = Stage::new();
    let (code, said, calls) = stage.run("take-over.sh", &["--set", "manager.replicas=3"], &[]);
    assert_eq!((code, said.as_str()), (0, ""), "{calls:#?}");
    assert_order(
        &calls,
        &[
            "kubectl patch customresourcedefinition sidecarsets.apps.kruise.io ",
            "kubectl delete deployment --namespace kruise-system kruise-controller-manager",
            "kubectl delete validatingwebhookconfiguration kruise-validating-webhook-configuration",
            "kubectl delete mutatingwebhookconfiguration kruise-mutating-webhook-configuration",
            "kubectl delete daemonset --namespace kruise-system kruise-daemon",
            "kubectl patch customresourcedefinition sidecarsets.apps.kruise.io ",
            "kubectl delete secrets,configmaps --namespace kruise-home -l owner=helm,name=kruise",
            "kubectl delete ClusterRoleBinding kruise-manager-rolebinding",
            "kubectl delete RoleBinding --namespace kruise-system kruise-leader",
            "helm upgrade --install kruise-rs ",
            "kubectl rollout status",
        ],
    );
    let install = calls.iter().find(|call| call.starts_with("helm ")).unwrap();
    assert!(install.contains(" --take-ownership ") && install.ends_with(" --set manager.replicas=3"), "{install}");
    assert!(!calls.iter().any(|call| call.contains("others.example.com") || call.contains("uninstall")), "{calls:#?}");
    let values: Value = serde_yaml::from_str(&stage.saved("values.yaml")).unwrap();
    assert_eq!(values["featureGates"], "A=true,ResourceDistributionGate=true");
    assert_eq!(values["components"]["resourceDistribution"], true);
}

#[test]
fn taking_over_knows_a_gate_however_it_is_written() {
    let stage = Stage::new();
    for (gates, wanted) in [
        ("A=true, ResourceDistributionGate = True,EnableExternalCerts=1", (true, true)),
        ("ResourceDistributionGate=t", (true, false)),
        ("ResourceDistributionGate=false,EnableExternalCerts=0,XResourceDistributionGate=true", (false, false)),
        ("AllAlpha=true,AllAlpha=False,EnableExternalCerts=TRUE", (false, true)),
        ("", (false, false)),
    ] {
        let args = format!("--feature-gates={gates}\\n");
        let (code, said, _) = stage.run("take-over.sh", &[], &[("ARGS", args.as_str())]);
        assert_eq!((code, said.as_str()), (0, ""), "{gates}");
        let values: Value = serde_yaml::from_str(&stage.saved("values.yaml")).unwrap();
        assert_eq!(values["featureGates"], gates);
        let on = |pointer: &str| values.pointer(pointer) == Some(&Value::Bool(true));
        assert_eq!((on("/components/resourceDistribution"), on("/externalCerts/enabled")), wanted, "{gates}");
    }
}

#[test]
fn taking_over_refuses_what_would_be_dangerous() {
    let stage = Stage::new();
    for (answer, want) in [
        (("VERSION", "v3.19.0"), "this needs Helm 4"),
        (("DEPLOYMENTS", r"elsewhere kruise-controller-manager \n"), "OpenKruise is installed in namespace elsewhere"),
        (("DEPLOYMENTS", r"kruise-system kruise-controller-manager kruise-rs\n"), "kruise-rs is installed already"),
        (("OLD", ""), "OpenKruise was not installed by Helm"),
        (("REQUESTS", "shop/once "), "these ContainerRecreateRequests have not ended: shop/once"),
        (("STORED", "v1alpha1 v1beta1"), "objects of clonesets.apps.kruise.io are stored in version v1beta1"),
        (("ARGS", "--feature-gates=EnhancedLivenessProbe=true\\n"), "OpenKruise runs with EnhancedLivenessProbe=true"),
        (
            ("ARGS", "--feature-gates=A=true, EnhancedLivenessProbe = T\\n"),
            "OpenKruise runs with EnhancedLivenessProbe=true",
        ),
        (("ARGS", "--feature-gates=A=true,AllAlpha=true\\n"), "OpenKruise runs with AllAlpha=true"),
        (("ARGS", "--feature-gates=AllAlpha=0,AllAlpha=1\\n"), "OpenKruise runs with AllAlpha=true"),
        // Its manager is gone already, and what its gates were is not known.
        (("DEPLOYMENTS", ""), "OpenKruise's manager does not run"),
        // HELM_DRIVER=sql: the record is where kubectl cannot delete it.
        (("RECORDED", "kruise"), "Helm has recorded release kruise neither in Secrets nor in ConfigMaps"),
    ] {
        let (code, said, calls) = stage.run("take-over.sh", &[], &[answer]);
        assert!(code == 1 && calls.is_empty(), "{answer:?}: {said}");
        assert!(said.starts_with(want) && said.ends_with("nothing was changed\n"), "{answer:?}: {said}");
    }
    assert_eq!(stage.run("take-over.sh", &[], &[("NAMESPACE", "a/b")]).0, 2);
    // Whoever goes on by hand needs the flags: without them the registry and the socket would be those of the chart.
    let ours = [("DEPLOYMENTS", r"kruise-system kruise-controller-manager kruise-rs\n")];
    let said = stage.run("take-over.sh", &["--values", "my.yaml"], &ours).1;
    assert!(said.contains("/values.yaml --values my.yaml\n"), "{said}");
    // A Pod that does not go: nothing is forgotten and nothing is installed.
    let (code, said, calls) = stage.run("take-over.sh", &[], &[("PODS", r"pod/kruise-daemon-x\n")]);
    assert!(code == 1 && said.contains("pod/kruise-daemon-x"), "{said}");
    assert!(!calls.iter().any(|call| call.starts_with("helm") || call.contains("secrets")), "{calls:#?}");
    // Its objects are gone meanwhile, and the Pod is not.
    let still = [("DEPLOYMENTS", ""), ("DAEMONSETS", ""), ("PODS", r"pod/kruise-daemon-x\n")];
    let (code, said, calls) = stage.run("take-over.sh", &[], &still);
    assert!(code == 1 && said.contains("pod/kruise-daemon-x"), "{said}");
    assert!(!calls.iter().any(|call| call.starts_with("helm")), "{calls:#?}");
    // Run again when it is gone, with the gates that were saved.
    let later = [("DEPLOYMENTS", ""), ("DAEMONSETS", "")];
    let (code, said, calls) = stage.run("take-over.sh", &[], &later);
    assert_eq!((code, said.as_str()), (0, ""));
    assert_order(&calls, &["kubectl delete secrets", "helm upgrade --install kruise-rs "]);
    assert!(stage.saved("values.yaml").contains("ResourceDistributionGate=true"));
}

#[test]
fn taking_over_installs_nothing_while_openkruises_release_can_be_uninstalled_or_conversion_is_not_known() {
    let stage = Stage::new();
    let record = ("RECORDS", r"configmap/sh.helm.release.v1.kruise.v1\n");
    // Helm does not find with its driver what kubectl sees.
    let (code, said, calls) = stage.run("take-over.sh", &[], &[record, ("FAILS", "helm get values")]);
    assert!(code == 1 && calls.is_empty() && said.ends_with("nothing was changed\n"), "{said}");
    // The record is still there when it has been deleted.
    let (code, said, calls) = stage.run("take-over.sh", &[], &[record, ("RECORDED", "kruise")]);
    assert!(code == 1 && said.starts_with("Helm still has release kruise in namespace kruise-home"), "{said}");
    assert_order(&calls, &["kubectl delete secrets,configmaps --namespace kruise-home -l owner=helm,name=kruise"]);
    assert!(!calls.iter().any(|call| call.starts_with("helm")), "{calls:#?}");
    // Conversion that is not switched off holds up the garbage collector of the whole cluster, so OpenKruise goes on.
    let gates = "get deployment --namespace kruise-system kruise-controller-manager -o jsonpath";
    for fails in ["spec.conversion.strategy", gates] {
        let (code, said, calls) = stage.run("take-over.sh", &[], &[("FAILS", fails)]);
        assert!(code == 1 && calls.is_empty() && said.starts_with("the server is away"), "{fails}: {said} {calls:#?}");
    }
}

#[test]
fn uninstalling_ends_with_an_error_when_the_api_server_does_not_say_what_is_left() {
    const SCRIPT: &str = "../../manifests/uninstall.sh";
    let stage = Stage::new();
    let usual = [
        ("DEPLOYMENTS", r"kruise-system kruise-controller-manager kruise-rs\n"),
        ("REQUESTS", r"shop once 0\n"),
        ("PODS", r"shop web KruisePodReady\n"),
        ("BINDINGS", r"audit kruise-deletion-protection\nother-binding other\n"),
    ];
    let (code, said, calls) = stage.run(SCRIPT, &[], &usual);
    assert_eq!((code, said.as_str()), (0, ""), "{calls:#?}");
    let wanted = [
        "kubectl delete validatingadmissionpolicybinding audit",
        "kubectl patch containerrecreaterequests.apps.kruise.io --namespace shop once ",
        "kubectl patch pod --namespace shop web --subresource=status",
    ];
    assert_order(&calls, &wanted);
    assert!(!calls.iter().any(|call| call.contains("other-binding")), "{calls:#?}");
    for (fails, wanted) in [
        ("get validatingadmissionpolicybinding", wanted[0]),
        ("get containerrecreaterequests.apps.kruise.io", wanted[1]),
        ("get podprobemarkers.apps.kruise.io", wanted[2]),
        ("get imagepulljobs.apps.kruise.io", wanted[2]),
        ("get ephemeraljobs.apps.kruise.io", wanted[2]),
        ("get pods", wanted[2]),
    ] {
        let answers = [&usual[..], &[("FAILS", fails)]].concat();
        let (code, said, calls) = stage.run(SCRIPT, &[], &answers);
        assert!(code == 1 && said.contains("the server is away"), "{fails}: {code} {said}");
        assert!(!calls.iter().any(|call| call.starts_with(wanted)), "{fails}: {calls:#?}");
    }
    let (code, said, _) = stage.run(SCRIPT, &[], &[&usual[..], &[("FAILS", "patch pod")]].concat());
    assert!(code == 1 && said.contains("the server is away"), "{said}");
}

#[test]
fn giving_back_removes_ours_first_and_never_touches_a_release_that_is_recorded() {
    let stage = Stage::new();
    let args = ["openkruise/kruise", "--version", "1.9.0"];
    let (code, said, calls) = stage.run("give-back.sh", &args, &[]);
    assert_eq!((code, said.as_str()), (0, ""), "{calls:#?}");
    let wanted = [
        "uninstall kruise-system",
        "helm uninstall kruise-rs --namespace kruise-system",
        "helm install kruise openkruise/kruise --namespace kruise-system --take-ownership",
        "kubectl rollout status",
    ];
    assert_order(&calls, &wanted);
    let lost = KEPT.replace("keep", "other");
    for (answer, want) in [
        (("VERSION", "v3.19.0"), "this needs Helm 4"),
        (("RECORDED", "kruise"), "release kruise is recorded in namespace kruise-system"),
        (("MANIFEST", lost.as_str()), "the release would delete these definitions and all their objects: clonesets"),
        (("REQUESTS", "shop/once "), "these ContainerRecreateRequests have not ended: shop/once"),
        (("OLD_RELEASE", "kruise-rs"), "OpenKruise's release needs another name"),
        (("STORED", "v1alpha1 v1beta1"), "objects of clonesets.apps.kruise.io are stored in version v1beta1"),
        // What is not known is no reason to go on.
        (("FAILS", "helm get manifest"), "the server is away\nHelm does not give the manifest of release kruise-rs"),
    ] {
        let (code, said, calls) = stage.run("give-back.sh", &args, &[answer]);
        assert!(code == 1 && calls.is_empty(), "{answer:?}: {said}");
        assert!(said.starts_with(want), "{answer:?}: {said}");
    }
    assert_eq!(stage.run("give-back.sh", &[], &[]).0, 2);
    let (code, said, calls) = stage.run("give-back.sh", &args, &[("PODS", r"pod/kruise-daemon-x\n")]);
    assert!(code == 1 && said.contains("pod/kruise-daemon-x"), "{said}");
    assert!(!calls.iter().any(|call| call.starts_with("helm install")), "{calls:#?}");
}
