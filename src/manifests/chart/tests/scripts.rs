//! The ways from OpenKruise's release and back, and `manifests/uninstall.sh`, with stand-ins for kubectl and Helm.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::{Value, json};

use super::dir;

/// Answers as it was set up to, and notes what would change something. A call with the text `$FAILS` fails.
const KUBECTL: &str = r#"#!/bin/sh
case "$*" in *"${FAILS:-nothing fails}"*) echo "the server is away" >&2; exit 1 ;; esac
case "$*" in
  "get namespace kube-system "*) echo "$CLUSTER" ;;
  "get deployments,daemonsets --all"*) printf '%b' "$WORKLOADS" ;;
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
  "get mutatingwebhookconfiguration "*) printf '%b' "$INJECTION" ;;
  "get validatingadmissionpolicies "*) printf '%b' "$POLICIES" ;;
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
  template*)
    printf 'kind: CustomResourceDefinition\nmetadata:\n  name: clonesets.apps.kruise.io\nspec:\n  versions:\n  - name: v1alpha1\n'
    printf -- '---\nkind: Deployment\nmetadata:\n  namespace: "%s"\n' "${RENDERED:-${NAMESPACE:-kruise-system}}" ;;
  list*"^kruise-rs"*) printf '%b' "$OURS" ;;
  list*) printf '%b' "$RECORDED" ;;
  "get manifest"*) printf '%b' "$MANIFEST" ;;
  "get values"*) echo "of: $3" ;;
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
            let (text_file, program) = (dir.path().join(format!("{name}.sh")), dir.path().join(name));
            fs::write(&text_file, text).unwrap();
            // By another process: a file that this one has just written may still be open in a child that another test has
            // forked, and then it cannot be executed ("Text file busy").
            assert!(Command::new("cp").args([&text_file, &program]).status().unwrap().success());
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
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
            ("CLUSTER", "1234"),
            ("OURS", "kruise-rs"),
            ("WORKLOADS", r"Deployment kruise-system kruise-controller-manager kruise-rs kruise-system\n"),
        ];
        fs::write(path("calls"), "").unwrap();
        let mut command = Command::new("sh");
        command.arg(dir().join(script)).args(args).envs(usual).env("CALLS", path("calls")).env("SAVE", path("save"));
        for name in ["RELEASE", "NAMESPACE", "RELEASE_NAMESPACE", "OLD_RELEASE", "OLD_NAMESPACE", "TIMEOUT"] {
            command.env_remove(name);
        }
        for name in ["HELM_DRIVER", "HELM_KUBECONTEXT", "HELM_KUBEAPISERVER", "INJECTION", "POLICIES", "RENDERED"] {
            command.env_remove(name);
        }
        for name in ["REQUESTS", "PODS", "RECORDED", "RECORDS", "BINDINGS", "FAILS"] {
            command.env_remove(name);
        }
        command.env("KUBECTL", path("kubectl")).env("HELM", path("helm")).env("UNINSTALL", path("uninstall"));
        let output = command.envs(answers.iter().copied()).output().unwrap();
        fs::write(path("printed"), &output.stdout).unwrap();
        let calls = fs::read_to_string(path("calls")).unwrap().lines().map(str::to_owned).collect();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap(), calls)
    }

    fn saved(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join("save").join(name)).unwrap()
    }

    /// What the last run has said on standard output.
    fn printed(&self) -> String {
        fs::read_to_string(self.0.path().join("printed")).unwrap()
    }
}

/// Both ways, as they are called without a flag.
const WAYS: [(&str, &[&str]); 2] = [("take-over.sh", &[]), ("give-back.sh", &["openkruise/kruise"])];

/// A Pod of OpenKruise's daemon, by its owner.
const DAEMON: &str = r"DaemonSet kruise-daemon kruise-daemon-x\n";

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
fn taking_over_keeps_whose_ca_is_written_into_the_webhook_configurations() {
    let stage = Stage::new();
    let external = ("ARGS", r"--feature-gates=EnableExternalCerts=true\n");
    let annotations = r#"cert-manager.io/inject-ca-from: "kruise-system/mine"\ntemplate: ""\n"#;
    for (answers, wanted) in [
        (vec![external], json!({ "enabled": true })),
        (
            vec![external, ("INJECTION", annotations)],
            json!({ "enabled": true, "annotations": { "cert-manager.io/inject-ca-from": "kruise-system/mine" } }),
        ),
        (vec![("INJECTION", annotations)], Value::Null),
    ] {
        let (code, said, _) = stage.run("take-over.sh", &[], &answers);
        assert_eq!((code, said.as_str()), (0, ""), "{answers:?}");
        let values: Value = serde_yaml::from_str(&stage.saved("values.yaml")).unwrap();
        assert_eq!(values["externalCerts"], wanted, "{answers:?}");
    }
    let (code, said, calls) = stage.run("take-over.sh", &[], &[("FAILS", "get mutatingwebhookconfiguration ")]);
    assert!(code == 1 && calls.is_empty() && said.starts_with("the server is away"), "{said}");
}

#[test]
fn taking_over_waits_for_pods_of_openkruise_alone() {
    let stage = Stage::new();
    let others =
        r"ReplicaSet other-7f9 other-7f9-x\nReplicaSet kruise-controller-manager-ui-7f9 ui\nDaemonSet other other-y\n";
    let (code, said, calls) = stage.run("take-over.sh", &[], &[("PODS", others)]);
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(!calls.iter().any(|call| call.starts_with("kubectl wait")), "{calls:#?}");
    let ours = format!(r"{others}ReplicaSet kruise-controller-manager-7f9 mine\n{DAEMON}");
    let (code, said, calls) = stage.run("take-over.sh", &[], &[("PODS", ours.as_str())]);
    assert!(code == 1 && said.ends_with(":\npod/mine\npod/kruise-daemon-x\n"), "{said}");
    assert_order(&calls, &["kubectl wait --namespace kruise-system pod/mine pod/kruise-daemon-x --for=delete"]);
}

#[test]
fn taking_over_says_how_to_go_back() {
    let stage = Stage::new();
    stage.run("take-over.sh", &[], &[]);
    let back = format!("OLD_RELEASE=kruise OLD_NAMESPACE=kruise-home {}", dir().join("give-back.sh CHART").display());
    assert!(stage.printed().contains(&format!("' {back}\n")), "{}", stage.printed());
    let answers = [
        ("NAMESPACE", "elsewhere"),
        ("RELEASE", "mine"),
        ("RECORDS", r"secret/sh.helm.release.v1.kruise.v1\n"),
        ("DEPLOYMENTS", r"elsewhere kruise-controller-manager \n"),
        ("DAEMONSETS", ""),
    ];
    let (code, said, _) = stage.run("take-over.sh", &[], &answers);
    assert_eq!((code, said.as_str()), (0, ""));
    let values = stage.0.path().join("save/openkruise.yaml");
    let back = format!("NAMESPACE=elsewhere RELEASE=mine {back} --values {}\n", values.display());
    assert!(stage.printed().contains(&back), "{}", stage.printed());
}

#[test]
fn no_flag_of_helm_says_another_place_or_ends_helm_before_it_installs() {
    const ELSEWHERE: [&str; 13] = [
        "-n",
        "-nother",
        "--namespace",
        "--namespace=other",
        "--kube-context",
        "--kube-context=other",
        "--kube-apiserver=other",
        "--kubeconfig",
        "--kubeconfig=other",
        "--dry-run",
        "--dry-run=client",
        "-h",
        "--help",
    ];
    const UNDOING: [&str; 3] = ["--rollback-on-failure", "--rollback-on-failure=true", "--atomic"];
    const OF_OTHER_COMMANDS: [&str; 6] = ["-s", "-g", "--show-only=a", "--replace", "--output-dir", "--is-upgrade"];
    let stage = Stage::new();
    let flags = ELSEWHERE.map(|flag| (flag, ", because ")).into_iter();
    let flags = flags.chain(UNDOING.map(|flag| (flag, ": if a step took too long, Helm would uninstall the release")));
    for (flag, why) in flags.chain(OF_OTHER_COMMANDS.map(|flag| (flag, ": it is no flag of helm upgrade --install\n")))
    {
        for (script, args) in WAYS {
            let args = [args, &["--values", "my.yaml", flag, "other"]].concat();
            let (code, said, calls) = stage.run(script, &args, &[]);
            assert!(code == 1 && calls.is_empty(), "{script} {flag}: {said}");
            assert!(said.starts_with(&format!("{flag} is refused{why}")), "{script} {flag}: {said}");
            assert!(said.ends_with("nothing was changed\n"), "{script} {flag}: {said}");
            let names = ["NAMESPACE", "KUBECONFIG", "KUBECTL", "HELM"];
            assert!(!ELSEWHERE.contains(&flag) || names.iter().all(|name| said.contains(name)), "{said}");
        }
    }
    for (script, args) in WAYS {
        let (code, said, calls) = stage.run(script, args, &[("HELM_KUBECONTEXT", "other")]);
        assert!(code == 1 && calls.is_empty() && said.starts_with("HELM_KUBECONTEXT is set"), "{script}: {said}");
    }
}

#[test]
fn what_is_saved_stays_and_is_of_one_cluster() {
    let stage = Stage::new();
    let record = [("RECORDS", r"secret/sh.helm.release.v1.kruise.v1\n")];
    for (script, args) in WAYS {
        let (code, said, _) = stage.run(script, args, &record);
        assert_eq!((code, said.as_str()), (0, ""), "{script}");
        assert_eq!(stage.saved("openkruise.yaml"), "of: kruise\n", "{script}");
        assert!(stage.saved("values.yaml").contains("ResourceDistributionGate=true"), "{script}");
        assert_eq!(stage.saved("cluster"), "1234\n", "{script}");
        let (code, said, calls) = stage.run(script, args, &[("CLUSTER", "5678")]);
        assert!(code == 1 && calls.is_empty() && said.contains(" is of another cluster "), "{script}: {said}");
    }
    assert_eq!(stage.saved("kruise-rs-values.yaml"), "of: kruise-rs\n");
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
        (("RENDERED", "elsewhere"), "with these values kruise-rs would not be in namespace kruise-system"),
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
    let (code, said, calls) = stage.run("take-over.sh", &[], &[("PODS", DAEMON)]);
    assert!(code == 1 && said.contains("pod/kruise-daemon-x"), "{said}");
    assert!(!calls.iter().any(|call| call.starts_with("helm") || call.contains("secrets")), "{calls:#?}");
    // Its objects are gone meanwhile, and the Pod is not.
    let still = [("DEPLOYMENTS", ""), ("DAEMONSETS", ""), ("PODS", DAEMON)];
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
        "helm upgrade --install kruise openkruise/kruise --namespace kruise-system --take-ownership",
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
        (
            ("WORKLOADS", r"DaemonSet elsewhere kruise-daemon other default\n"),
            "kruise-rs is installed in namespace elsewhere (DaemonSet kruise-daemon), not in kruise-system; run this with NAMESPACE=elsewhere\n",
        ),
        (
            ("OURS", ""),
            "kruise-rs runs in namespace kruise-system (Deployment kruise-controller-manager), and Helm has recorded no release kruise-rs in namespace kruise-system; run this with RELEASE=kruise-rs RELEASE_NAMESPACE=kruise-system, or ",
        ),
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
    assert!(!calls.iter().any(|call| call.starts_with("helm upgrade")), "{calls:#?}");
}

#[test]
fn giving_back_finds_a_release_that_is_recorded_elsewhere() {
    let stage = Stage::new();
    let (code, said, calls) = stage.run("give-back.sh", &["openkruise/kruise"], &[("RELEASE_NAMESPACE", "default")]);
    assert_eq!((code, said.as_str()), (0, ""), "{calls:#?}");
    assert_order(&calls, &["uninstall kruise-system", "helm uninstall kruise-rs --namespace default", "helm upgrade "]);
}

#[test]
fn giving_back_advises_to_delete_policies_of_nothing_that_runs() {
    let stage = Stage::new();
    let policies = ("POLICIES", r"validatingadmissionpolicy/kruise-manager-pods\n");
    let (code, said, calls) = stage.run("give-back.sh", &["openkruise/kruise"], &[policies]);
    assert!(code == 1 && said.starts_with("kruise-rs is still installed") && !said.contains("policies"), "{said}");
    assert!(!calls.iter().any(|call| call.starts_with("helm upgrade")), "{calls:#?}");
    let gone = [policies, ("OURS", ""), ("WORKLOADS", "")];
    let (code, said, calls) = stage.run("give-back.sh", &["openkruise/kruise"], &gone);
    assert!(code == 1 && calls.is_empty() && said.starts_with("these policies of kruise-rs are left"), "{said}");
}

#[test]
fn giving_back_goes_on_when_its_last_step_has_failed() {
    const LAST: &str = "helm upgrade --install kruise openkruise/kruise --namespace kruise-system --take-ownership --force-conflicts --version 1.9.0";
    let stage = Stage::new();
    let args = ["openkruise/kruise", "--version", "1.9.0"];
    for fails in ["helm upgrade --install kruise ", "rollout status"] {
        let (code, said, _) = stage.run("give-back.sh", &args, &[("FAILS", fails)]);
        assert!(code == 1 && said.contains(" or go on with:\n"), "{fails}: {said}");
        assert!(said.contains(&format!("{}\n", &LAST["helm".len()..])), "{fails}: {said}");
    }
    let later = [("OURS", ""), ("WORKLOADS", ""), ("RECORDED", "kruise")];
    // Definitions that its record has and the chart has not would go.
    let lost = r"---\nkind: CustomResourceDefinition\nmetadata:\n  name: jobs.apps.kruise.io\n";
    let (code, said, calls) = stage.run("give-back.sh", &args, &[&later[..], &[("MANIFEST", lost)]].concat());
    assert!(
        code == 1 && calls.is_empty() && said.contains("would delete the definition jobs.apps.kruise.io"),
        "{said}"
    );
    let same = r"---\nkind: CustomResourceDefinition\nmetadata:\n  name: clonesets.apps.kruise.io\n";
    let later = [&later[..], &[("MANIFEST", same)]].concat();
    // The release is not the one of the run before.
    let (code, said, calls) = stage.run("give-back.sh", &args, &[&later[..], &[("OLD_NAMESPACE", "other")]].concat());
    assert!(
        code == 1 && calls.is_empty() && said.starts_with("release kruise is recorded in namespace other"),
        "{said}"
    );
    let (code, said, calls) = stage.run("give-back.sh", &args, &later);
    assert_eq!((code, said.as_str()), (0, ""), "{calls:#?}");
    assert_eq!(calls[0], LAST);
    // Now it is somebody's release, and no leftover of a run.
    let (code, said, calls) = stage.run("give-back.sh", &args, &later);
    assert!(code == 1 && calls.is_empty() && said.starts_with("release kruise is recorded"), "{said}");
}
