use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    api::feature_gates::FeatureGates,
    k8s::{account, certificate},
};

const NOW: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}
fn said(finding: &Finding) -> String {
    format!("{:?} {}", finding.verdict, finding.text)
}
fn all_said(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(said).collect()
}

#[test]
fn an_account_that_a_policy_does_not_name_is_a_failure() {
    let policy =
        |expression: String| Ok(json!({"spec": {"matchConditions": [{"name": "by", "expression": expression}]}}));
    let of = |namespace: &str, policy: Fact| {
        let username = format!("system:serviceaccount:{namespace}:kruise-manager");
        all_said(&limits(&[Limits { username, policies: vec![("p", policy)] }]))
    };
    let ours = account::is_one_of(&[account::MANAGER]);
    assert_eq!(of("elsewhere", policy(ours)), ["Ok system:serviceaccount:elsewhere:kruise-manager"]);
    let exact = "request.userInfo.username == 'system:serviceaccount:kruise-system:kruise-manager'";
    assert_eq!(
        of("elsewhere", policy(exact.into())),
        [
            "Fail ValidatingAdmissionPolicy p does not name system:serviceaccount:elsewhere:kruise-manager: a stolen token of it is not limited"
        ]
    );
    assert_eq!(of("a", Err(Lack::NotFound)), ["Ok system:serviceaccount:a:kruise-manager"]);
    assert_eq!(limits(&[]), []);
}

#[test]
fn bindings_of_our_accounts_that_the_manifests_do_not_have_are_named() {
    let binding = |name: &str, role: &str, subject: Value| {
        json!({ "metadata": { "name": name }, "subjects": [subject],
            "roleRef": { "kind": "ClusterRole", "name": role } })
    };
    let account =
        |namespace: &str, name: &str| json!({ "kind": "ServiceAccount", "namespace": namespace, "name": name });
    let user = |name: &str| json!({ "kind": "User", "name": name });
    let mut in_namespace = binding("a", "edit", account("kruise-system", "kruise-webhook"));
    in_namespace["metadata"]["namespace"] = json!("team");
    let role_in = |namespace: &str, name: &str| {
        let mut binding = binding(name, name, account("kruise-system", "kruise-manager"));
        binding["metadata"]["namespace"] = json!(namespace);
        binding["roleRef"]["kind"] = json!("Role");
        binding
    };
    let (grant, election) = (role_in("team", "kruise-triggers"), role_in("kruise-system", "election"));
    let wanted = crate::manifests::bindings();
    let ours: Vec<Value> = wanted.iter().filter(|o| o.text("/kind") == "ClusterRoleBinding").cloned().collect();
    assert!(ours.len() >= 5, "{ours:?}");
    let others = vec![
        binding("kruise-manager-rolebinding", "kruise-manager-role", account("kruise-system", "kruise-manager")),
        binding("u", "view", user("system:serviceaccount:kruise-system:kruise-daemon")),
        binding("v", "view", user("system:serviceaccount:kruise-systems:kruise-daemon")),
        binding("w", "view", account("elsewhere", "kruise-manager")),
        binding("x", "view", account("kruise-system", "default")),
    ];
    let found = |cluster: Vec<Value>, namespaced: Vec<Value>| {
        let lists = [
            ("ClusterRoleBinding", Ok(json!({ "items": cluster }))),
            ("RoleBinding", Ok(json!({ "items": namespaced }))),
        ];
        foreign_bindings("kruise-system", &wanted, &lists)
    };
    let findings = found([ours.clone(), others].concat(), vec![in_namespace, grant, election]);
    assert_eq!(
        all_said(&findings),
        [
            "Warn ClusterRoleBinding kruise-manager-rolebinding gives kruise-manager the rights of ClusterRole kruise-manager-role: it is not one of the manifests",
            "Warn ClusterRoleBinding u gives kruise-daemon the rights of ClusterRole view: it is not one of the manifests",
            "Warn RoleBinding team/a gives kruise-webhook the rights of ClusterRole edit: it is not one of the manifests",
            "Warn RoleBinding kruise-system/election gives kruise-manager the rights of Role election: it is not one of the manifests",
        ]
    );
    assert!(findings[0].advice.ends_with("kubectl delete clusterrolebinding kruise-manager-rolebinding"));
    assert!(findings[2].advice.ends_with("kubectl -n team delete rolebinding a"));
    assert_eq!(all_said(&found(ours, vec![])), ["Ok no binding but those of the manifests"]);
    let unreadable = foreign_bindings("kruise-system", &wanted, &[("RoleBinding", Err(Lack::NotPermitted))]);
    assert_eq!(unreadable[0].verdict, Verdict::Unknown);
}

#[test]
fn what_may_not_be_read_is_unknown_in_every_check() {
    let no: Fact = Err(Lack::NotPermitted);
    let gates = FeatureGates::default();
    let crd = Crd { name: "a.b", wanted: &[], served: Err(Lack::NotPermitted), object: no.clone() };
    let mut all = vec![
        endpoints(&no),
        lease(&no, &no, Duration::ZERO),
        versions(&no, "1"),
        deployment("d", "manager", &no),
        admission(&Err(Lack::NotPermitted)),
        feature_gates(&no).0,
    ];
    all.extend(custom_resources(&[crd]));
    all.extend(webhook_configuration("MutatingWebhookConfiguration", &no, &[], |_| true));
    all.push(gated_binding("b", "G", true, &Err(Lack::NotPermitted)));
    all.extend(gated_rights(("c", "b", "G"), true, &Err(Lack::NotPermitted)));
    all.extend(daemons(&no, &no, &no, &gates));
    all.extend(policies(&[("p".into(), Err(Lack::NotPermitted))]));
    for finding in &all {
        assert_eq!(finding.verdict, Verdict::Unknown, "{finding:?}");
        assert!(finding.text.starts_with("not permitted to read "), "{finding:?}");
    }
    assert_eq!(exit(&all), Exit::Success);
}

#[test]
fn an_old_server_fails() {
    let version = |major: &str, minor: &str, git: &str| {
        Ok(json!({ "major": major, "minor": minor, "gitVersion": git, "buildDate": "", "compiler": "",
            "gitCommit": "", "gitTreeState": "", "goVersion": "", "platform": "" }))
    };
    assert_eq!(said(&server(&version("1", "34", "v1.34.1"))), "Ok Kubernetes v1.34.1");
    assert_eq!(server(&version("1", "29", "v1.29.0")).verdict, Verdict::Fail);
    assert_eq!(server(&Err(Lack::Failed("refused".into()))).verdict, Verdict::Fail);
}

#[test]
fn a_resource_has_to_be_served_in_all_its_versions() {
    let crd = |served: &[&str], strategy: &str| Crd {
        name: "x.y",
        wanted: &["v1alpha1", "v1beta1"],
        served: Ok(served.iter().map(|v| (*v).to_owned()).collect()),
        object: Ok(json!({ "spec": { "conversion": { "strategy": strategy } },
            "status": { "storedVersions": if strategy == "Old" { json!(["v1", "v1alpha1"]) } else { json!(["v1beta1"]) } } })),
    };
    let findings = custom_resources(&[
        crd(&["v1alpha1", "v1beta1"], "None"),
        crd(&[], "None"),
        crd(&["v1alpha1"], "None"),
        crd(&["v1alpha1", "v1beta1"], "Webhook"),
    ]);
    let old = custom_resources(&[crd(&["v1alpha1", "v1beta1"], "Old")]).remove(0);
    assert!(said(&old).starts_with("Fail CustomResourceDefinition x.y: status.storedVersions holds v1,"), "{old:?}");
    assert_eq!(
        all_said(&findings),
        [
            "Ok x.y: v1alpha1, v1beta1",
            "Fail x.y is not installed",
            "Fail x.y is served as v1alpha1, not as v1beta1",
            "Warn x.y is converted by a webhook, which another installation may have left",
        ]
    );
}

#[test]
fn a_missing_entry_matters_by_its_failure_policy() {
    let wanted =
        [json!({ "name": "pods", "failurePolicy": "Ignore" }), json!({ "name": "requests", "failurePolicy": "Fail" })];
    let entry = |name: &str, ca: &str| json!({ "name": name, "clientConfig": { "caBundle": ca } });
    for (config, expected) in [
        (
            Ok(json!({ "webhooks": [entry("pods", "x"), entry("requests", "x")] })),
            vec!["Ok MutatingWebhookConfiguration: 2 entries, each with a CA"],
        ),
        (
            Ok(json!({ "webhooks": [entry("other", "x")] })),
            vec!["Warn pods is missing, or its feature gate is off", "Fail requests is missing"],
        ),
        (
            Ok(json!({ "webhooks": [entry("pods", "x"), entry("requests", "")] })),
            vec!["Fail requests has no CA bundle"],
        ),
        (
            Err(Lack::NotFound),
            vec!["Fail the MutatingWebhookConfiguration does not exist: requests are neither checked nor completed"],
        ),
    ] {
        let findings = webhook_configuration("MutatingWebhookConfiguration", &config, &wanted, |_| true);
        assert_eq!(all_said(&findings), expected);
    }
}

#[test]
fn a_missing_entry_is_for_whoever_adds_it() {
    let wanted: Vec<Value> = crate::manifests::registrations(&FeatureGates::default())
        .iter()
        .flat_map(|registration| registration.list("/webhooks").to_vec())
        .collect();
    let none = Ok(json!({ "webhooks": [] }));
    let findings = webhook_configuration("MutatingWebhookConfiguration", &none, &wanted, crate::manifests::is_shipped);
    let applied = findings.iter().filter(|finding| finding.advice.starts_with("kubectl apply -k manifests/"));
    let applied: Vec<&str> = applied.map(|finding| finding.text.as_str()).collect();
    assert_eq!(applied, ["mcontainerrecreaterequest.kb.io is missing", "mpod-required.kb.io is missing"]);
    let others = findings.iter().filter(|finding| finding.advice.starts_with("the running webhook adds it"));
    assert_eq!(others.count(), wanted.len() - applied.len());
}

#[test]
fn what_another_program_has_left_is_named_with_what_keeps_it() {
    let left =
        [("vpod.kb.io".to_owned(), vec![]), ("vlaterkind.kb.io".to_owned(), vec!["laterkinds.apps.kruise.io".into()])];
    let findings = leftovers(&left, false);
    assert_eq!(
        all_said(&findings),
        [
            "Warn vpod.kb.io calls the webhook, which does not know it: another program has left it",
            "Warn vlaterkind.kb.io calls the webhook, which does not know it: another program has left it",
        ]
    );
    assert!(findings[1].advice.starts_with("this release does not serve laterkinds.apps.kruise.io;"));
    let external = leftovers(&left, true);
    assert!(external.iter().all(|finding| finding.advice.contains("remove the entry yourself")));
    let of_openkruise = json!({"webhooks": [{"name": "vlaterkind.kb.io", "clientConfig": {"service":
        {"namespace": "elsewhere", "name": "kruise-webhook-service"}}, "rules": [{"apiGroups": ["apps.kruise.io"],
        "apiVersions": ["v1alpha1"], "operations": ["CREATE"], "resources": ["laterkinds", "clonesets"]}]}]});
    let kind = "ValidatingWebhookConfiguration";
    assert_eq!(crate::manifests::leftovers(kind, &of_openkruise, "elsewhere"), left[1..]);
    assert_eq!(crate::manifests::leftovers(kind, &of_openkruise, "kruise-system"), []);
}

#[test]
fn entries_of_any_configuration_that_nobody_answers_are_named_if_they_are_about_pods_or_our_kinds() {
    let entry = |name: &str, service: &str, policy: Value, rule: Value| {
        json!({"name": name, "failurePolicy": policy,
        "clientConfig": {"service": {"namespace": "other", "name": service}}, "rules": [rule]})
    };
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource]});
    let config = |name: &str, entries: Value| json!({"metadata": {"name": name}, "webhooks": entries});
    let mutating = json!({"items": [
        config("a", json!([
            entry("pods", "gone", json!("Ignore"), rule("", "pods")),
            entry("eviction", "gone", json!(null), rule("", "pods/eviction")),
            entry("secrets", "gone", json!("Fail"), rule("", "secrets")),
            entry("deployments", "away", json!("Fail"), rule("apps", "deployments")),
            {"name": "url", "clientConfig": {"url": "https://x"}, "rules": [rule("", "pods")]},
        ])),
        config("ours", json!([{"name": "own", "clientConfig": {"service": {"namespace": "kruise-system", "name": "own"}},
            "rules": [rule("apps.kruise.io", "clonesets")]}])),
    ]});
    let validating = json!({"items": [
        config("b", json!([entry("all", "away", json!("Ignore"), rule("*", "*"))])),
        config("c", json!([entry("ours", "there", json!("Fail"), rule("apps.kruise.io", "clonesets"))])),
    ]});
    let found = called(&[Ok(mutating), Ok(validating), Err(Lack::NotPermitted)], ("kruise-system", "own"));
    let told: Vec<_> =
        found.iter().map(|called| (called.name.as_str(), called.entries.join(" "), called.fails)).collect();
    assert_eq!(
        told,
        [("gone", "a/pods a/eviction".into(), true), ("away", "b/all".into(), false), ("there", "c/ours".into(), true)]
    );
    let answers = slices(json!([{"addresses": ["10.0.0.1"]}]));
    let none = slices(json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]));
    let [gone, away, there] = <[Called; 3]>::try_from(found).unwrap();
    let findings = unanswered(&[(gone, none.clone()), (away.clone(), none), (there.clone(), answers.clone())]);
    assert_eq!(
        all_said(&findings),
        [
            "Fail nobody answers behind Service other/gone for a/pods, a/eviction: their requests are refused",
            "Warn nobody answers behind Service other/away for b/all: their requests go on after a time-out",
        ]
    );
    assert_eq!(
        all_said(&unanswered(&[(there, answers)])),
        ["Ok 1 Services are called about Pods or our kinds, and answer"]
    );
    assert_eq!(
        all_said(&unanswered(&[(away, Err(Lack::NotPermitted))])),
        ["Unknown not permitted to read the EndpointSlices of Service other/away"]
    );
    assert_eq!(unanswered(&[]), []);
}

#[test]
fn what_is_not_looked_at_of_other_webhooks_is_said() {
    let plurals = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let entry = |group: &str, resource: &str, client: Value| json!({"name": "e", "clientConfig": client, "rules": [{"apiGroups": [group], "resources": [resource]}]});
    let url = || json!({"url": "https://x"});
    let service = json!({"service": {"namespace": "other", "name": "s"}});
    let config = |name: &str, entries: Value| json!({"metadata": {"name": name}, "webhooks": entries});
    let lists = [
        Ok(json!({"items": [
            config("a", json!([entry("", "pods", url()), entry("", "secrets", url()), entry("", "pods", service)])),
            config("ours", json!([entry("", "pods", url())])),
        ]})),
        Ok(json!({"items": [config("b", json!([entry("apps.kruise.io", "clonesets", url())]))]})),
    ];
    let urls = "Unknown 2 entries call a URL about Pods or our kinds: who answers there cannot be seen";
    assert_eq!(unlisted(&plurals, &lists), []);
    assert_eq!(all_said(&not_looked_at(&lists, &["ours"], MOST_SERVICES)), [urls]);
    assert_eq!(
        all_said(&not_looked_at(&lists, &["ours"], MOST_SERVICES + 7)),
        ["Unknown 7 more Services are called about Pods or our kinds, and were not looked at", urls]
    );
    assert_eq!(
        all_said(&not_looked_at(&lists[1..], &["ours"], MOST_SERVICES + 1)),
        [
            "Unknown 1 more Service is called about Pods or our kinds, and was not looked at",
            "Unknown 1 entry calls a URL about Pods or our kinds: who answers there cannot be seen"
        ]
    );
    let denied = [Ok(json!({"items": []})), Err(Lack::NotPermitted)];
    assert_eq!(
        all_said(&unlisted(&plurals, &denied)),
        ["Unknown not permitted to read the validatingwebhookconfigurations"]
    );
    assert_eq!(not_looked_at(&denied, &["ours"], 0), []);
}

#[test]
fn a_rule_is_about_pods_or_our_kinds_however_widely_it_is_written() {
    for (groups, resources, expected) in [
        (json!(["*"]), json!(["*"]), true),
        (json!(["*"]), json!(["*/*"]), true),
        (json!(["*"]), json!(["clonesets"]), true),
        (json!(["*"]), json!(["clonesets/status"]), true),
        (json!(["*"]), json!(["pods/eviction"]), true),
        (json!(["*"]), json!(["deployments"]), false),
        (json!([""]), json!(["*/*"]), true),
        (json!([""]), json!(["*/status"]), true),
        (json!([""]), json!(["configmaps", "pods"]), true),
        (json!([""]), json!(["configmaps"]), false),
        (json!(["apps"]), json!(["*/*"]), false),
        (json!(["apps", "apps.kruise.io"]), json!(["*/*"]), true),
        (json!(["policy.kruise.io"]), json!(["podunavailablebudgets"]), true),
    ] {
        let case = format!("{groups} {resources}");
        let entry = json!({"name": "e", "clientConfig": {"service": {"namespace": "other", "name": "gone"}},
            "rules": [{"apiGroups": groups, "resources": resources}]});
        let configs = Ok(json!({"items": [{"metadata": {"name": "a"}, "webhooks": [entry]}]}));
        assert_eq!(called(&[configs], ("kruise-system", "own")).len(), usize::from(expected), "{case}");
    }
}

#[test]
fn entries_of_others_that_call_our_service_in_vain_are_named() {
    let entry = |name: &str, namespace: &str, path: &str, policy: Value| {
        let service = json!({"namespace": namespace, "name": "kruise-webhook-service", "path": path});
        json!({"name": name, "failurePolicy": policy, "clientConfig": {"service": service},
            "rules": [{"apiGroups": ["*"], "resources": ["*/*"]}]})
    };
    let config = |name: &str, entries: Value| json!({"metadata": {"name": name}, "webhooks": entries});
    let ours = ["kruise-mutating-webhook-configuration", "kruise-validating-webhook-configuration"];
    let mutating = json!({"items": [
        config(ours[0], json!([entry("left", "kruise-system", "/old", json!(null))])),
        config("third", json!([
            entry("closed", "kruise-system", "/old", json!(null)),
            entry("open", "kruise-system", "/old", json!("Ignore")),
            entry("answered", "kruise-system", "/mutate-pod", json!("Fail")),
            {"name": "url", "clientConfig": {"url": "https://x/old"}},
        ])),
    ]});
    // OpenKruise was installed in another namespace: nobody removes its entries.
    let validating =
        json!({"items": [config(ours[1], json!([entry("vpod.kb.io", "elsewhere", "/validate-pod", json!(null))]))]});
    let configs = [Ok(mutating), Ok(validating), Err(Lack::NotPermitted)];
    let (own, gates) = (("kruise-system", "kruise-webhook-service"), FeatureGates::default());
    let findings = strays(&configs, own, &ours, |path| crate::manifests::serves(path, &gates));
    assert_eq!(
        all_said(&findings),
        [
            "Fail third/closed calls the webhook at \"/old\", where nothing is served: its requests are refused",
            "Warn third/open calls the webhook at \"/old\", where nothing is served: its requests go on without an answer",
        ]
    );
    let services = called(&configs, own).into_iter().map(|called| (called, slices(json!([]))));
    assert_eq!(
        all_said(&unanswered(&services.collect::<Vec<_>>())),
        ["Fail nobody answers behind Service elsewhere/kruise-webhook-service for \
          kruise-validating-webhook-configuration/vpod.kb.io: their requests are refused"]
    );
}

#[test]
fn a_service_without_ports_or_outside_of_the_cluster_is_not_taken_for_one_that_nobody_answers() {
    let called = Called {
        namespace: "other".into(),
        name: "s".into(),
        entries: vec!["a/b".into()],
        fails: true,
        is_elsewhere: false,
    };
    let portless = Ok(json!({"items": [{"endpoints": [{"addresses": ["10.0.0.1"]}]}]}));
    assert_eq!(
        all_said(&unanswered(&[(called.clone(), portless)])),
        ["Ok 1 Services are called about Pods or our kinds, and answer"]
    );
    let outside = Called { is_elsewhere: true, ..called };
    assert_eq!(
        all_said(&unanswered(&[(outside, Ok(json!({"items": []})))])),
        ["Unknown Service other/s is an ExternalName: who answers there cannot be seen"]
    );
}

#[test]
fn labels_that_protect_nothing_while_their_gate_is_off_are_named() {
    let list = |items: Value| Ok(json!({ "items": items }));
    let namespace = ("Namespace", list(json!([{"metadata": {"name": "shop"}}])));
    let set = ("CloneSet", list(json!([{"metadata": {"namespace": "shop", "name": "web"}}])));
    let none = [("Service", list(json!([]))), ("StatefulSet", Err(Lack::NotFound))];
    assert_eq!(unprotected(&none), None);
    let finding = unprotected(&[namespace, set]).unwrap();
    assert_eq!(finding.verdict, Verdict::Warn);
    assert!(
        finding.text.ends_with("protects nothing, for example Namespace shop, CloneSet shop/web"),
        "{}",
        finding.text
    );
}

#[test]
fn gates_that_are_on_and_do_nothing_are_named() {
    let with = |list: &str| feature_gates(&Ok(json!({"data": {"feature-gates": list}}))).0;
    assert_eq!(with("").verdict, Verdict::Ok);
    let finding = with("SidecarTerminator=true,EnhancedLivenessProbe=true");
    assert_eq!(finding.verdict, Verdict::Warn);
    assert!(finding.text.ends_with("on but without effect: EnhancedLivenessProbe"), "{}", finding.text);
}

#[test]
fn certificates_are_judged_by_what_is_left_of_them() {
    let days = |days: i64| now().checked_add(jiff::SignedDuration::from_hours(days * 24)).unwrap();
    let handshakes = [
        ("a:1".to_owned(), Handshake::Valid(days(200))),
        ("b:1".to_owned(), Handshake::Valid(days(10))),
        ("c:1".to_owned(), Handshake::Valid(days(-1))),
        ("d:1".to_owned(), Handshake::Refused("unknown issuer".into())),
        ("e:1".to_owned(), Handshake::Unreachable("timed out".into())),
    ];
    let findings = serving_certificates(&handshakes, now());
    let verdicts: Vec<Verdict> = findings.iter().map(|f| f.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ok, Verdict::Warn, Verdict::Fail, Verdict::Fail, Verdict::Unknown]);
    assert_eq!(findings[0].text, "a:1: valid for 200 days");
    assert_eq!(ca_certificates("", now()), None);
    assert_eq!(ca_certificates("rubbish", now()).unwrap().verdict, Verdict::Fail);
}

#[test]
fn the_ca_bundle_is_read_from_every_entry_once() {
    let ca = include_str!("../../../runtime/certs/testdata/rsa-ca.crt");
    let entry = json!({ "clientConfig": { "caBundle": STANDARD.encode(ca) } });
    let config = Ok(json!({ "webhooks": [entry, entry, { "clientConfig": { "caBundle": "%%%" } }] }));
    let bundle = ca_bundle(&[config.clone(), Err(Lack::NotFound), config]);
    assert_eq!(bundle.trim(), ca.trim());
    let end = certificate::ends(&bundle).unwrap()[0];
    assert_eq!(ca_certificates(&bundle, end).unwrap().verdict, Verdict::Warn);
}

fn slices(endpoints: Value) -> Fact {
    Ok(json!({ "items": [{ "ports": [{ "port": 9876 }], "endpoints": endpoints }] }))
}

#[test]
fn endpoints_count_when_they_are_ready() {
    let endpoint = |address: &str, ready: Value| json!({ "addresses": [address], "conditions": { "ready": ready } });
    for (endpoints_, verdict) in [
        (json!([]), Verdict::Fail),
        (json!([endpoint("10.0.0.1", json!(false))]), Verdict::Fail),
        (json!([endpoint("10.0.0.1", json!(true))]), Verdict::Warn),
        (json!([endpoint("10.0.0.1", json!(true)), endpoint("10.0.0.2", Value::Null)]), Verdict::Ok),
    ] {
        assert_eq!(endpoints(&slices(endpoints_.clone())).verdict, verdict, "{endpoints_}");
    }
    assert_eq!(endpoints(&Ok(json!({ "items": [] }))).verdict, Verdict::Fail);
}

#[test]
fn admission_is_proved_by_a_refusal_of_our_own() {
    let answer = |code, message: &str| said(&admission(&Ok(Answer { code, message: message.into() })));
    let ours = "admission webhook \"mcontainerrecreaterequest.kb.io\" denied the request: spec.podName: no Pod";
    assert_eq!(answer(400, ours), "Ok the webhook answers a dry run");
    assert_eq!(answer(403, ours), "Ok the webhook answers a dry run");
    assert!(answer(201, "").starts_with("Fail "));
    assert!(answer(403, "cannot create resource").starts_with("Unknown not permitted"));
    assert_eq!(answer(500, "failed calling webhook: x509"), "Fail failed calling webhook: x509");
    assert!(answer(404, "").starts_with("Fail "));
}

#[test]
fn a_lease_that_changes_is_alive_whatever_the_clocks_say() {
    let held = |holder: &str, time: &str| Ok(json!({ "spec": { "holderIdentity": holder, "renewTime": time } }));
    let watched = Duration::from_secs(15);
    assert_eq!(said(&lease(&held("m-1", "a"), &held("m-1", "b"), watched)), "Ok m-1");
    assert_eq!(
        said(&lease(&held("m-1", "a"), &held("m-1", "a"), watched)),
        "Fail m-1 holds the Lease and has not renewed it in 15 s"
    );
    assert_eq!(lease(&held("m-1", "a"), &held("", "b"), watched).verdict, Verdict::Fail);
    assert_eq!(lease(&Err(Lack::NotFound), &held("", "b"), watched).verdict, Verdict::Fail);
}

#[test]
fn every_linux_node_needs_a_ready_daemon() {
    let node = |name: &str, os: &str| {
        json!({ "metadata": { "name": name, "labels": { "kubernetes.io/os": os } },
            "status": { "nodeInfo": { "containerRuntimeVersion": "containerd://1.6" } } })
    };
    let pod = |node: &str, ready: &str| {
        json!({ "metadata": { "name": format!("d-{node}") }, "spec": { "nodeName": node },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
    };
    let on = FeatureGates::default();
    let nodes =
        Ok(json!({ "items": [node("a", "linux"), node("b", "linux"), node("c", "linux"), node("w", "windows")] }));
    let mut waiting = pod("b", "False");
    waiting["status"]["containerStatuses"] =
        json!([{ "state": { "waiting": { "reason": "ErrImagePull", "message": "no" } } }]);
    let pods = Ok(json!({ "items": [pod("a", "True"), waiting] }));
    let set = Ok(json!({ "status": { "numberReady": 1, "desiredNumberScheduled": 3 } }));
    assert_eq!(
        all_said(&daemons(&nodes, &pods, &set, &on)),
        [
            "Ok ready on 1 of 3 Linux nodes",
            "Fail b: ErrImagePull: no",
            "Fail c: no daemon runs there; requests for its Pods are not carried out",
            "Ok every daemon that is ready has reached its runtime: containerd://1.6",
        ]
    );
    let blind = daemons(&Err(Lack::NotPermitted), &pods, &set, &on);
    assert_eq!(all_said(&blind), ["Fail ready on 1 of 3 nodes (not permitted to look at each)"]);
    let gone = daemons(&nodes, &Ok(json!({})), &Err(Lack::NotFound), &on);
    assert_eq!(all_said(&gone), ["Fail DaemonSet kruise-daemon does not exist"]);
    let off = FeatureGates::parse(&["KruiseDaemon=false"], None).unwrap();
    assert_eq!(daemons(&nodes, &pods, &set, &off)[0].verdict, Verdict::Warn);
}

#[test]
fn a_thousand_broken_nodes_do_not_fill_the_screen() {
    let node = |i: usize| json!({ "metadata": { "name": format!("n{i}"), "labels": { "kubernetes.io/os": "linux" } } });
    let nodes = Ok(json!({ "items": (0..1000).map(node).collect::<Vec<_>>() }));
    let findings = daemons(&nodes, &Ok(json!({ "items": [] })), &Ok(json!({})), &FeatureGates::default());
    assert_eq!((findings.len(), findings[10].text.as_str()), (11, "990 more nodes are like that"));
}

#[test]
fn roles_of_one_release_agree() {
    let pod = |role: &str, image: &str, id: &str| {
        json!({ "metadata": { "labels": { "control-plane": role } }, "spec": { "containers": [{ "image": image }] },
            "status": { "containerStatuses": [{ "imageID": id }] } })
    };
    let items = |items: Value| Ok(json!({ "items": items }));
    let a = "docker.io/kruise-rs/kruise-rs:v0.1.0";
    for (pods, expected) in [
        (json!([pod("webhook", a, "i"), pod("daemon", a, "i")]), "Ok all roles and this command are 0.1.0"),
        (
            json!([pod("webhook", a, "i"), pod("daemon", a, "j")]),
            "Warn all roles run v0.1.0, but not the same image behind it",
        ),
        (
            json!([pod("webhook", a, "i"), pod("daemon", "localhost:5000/k:v0.2.0", "j")]),
            "Warn roles differ: webhook v0.1.0, daemon v0.2.0",
        ),
        (
            json!([
                pod("webhook", &format!("{a}@sha256:1"), "i"),
                pod("daemon", "localhost:5000/k:v0.1.0@sha256:1", "i")
            ]),
            "Ok all roles and this command are 0.1.0",
        ),
        (json!([pod("daemon", "k@sha256:1", "i")]), "Warn all roles run sha256:1, this command is 0.1.0"),
        (json!([pod("daemon", "k:v9", "j")]), "Warn all roles run v9, this command is 0.1.0"),
        (json!([]), "Fail no Pod of kruise-rs runs"),
    ] {
        assert_eq!(said(&versions(&items(pods), "0.1.0")), expected);
    }
}

#[test]
fn a_binding_is_there_while_its_gate_is_on() {
    for (is_on, there, expected) in [
        (true, Ok(()), "Ok in force (Gate is on)"),
        (false, Err(Lack::NotFound), "Ok not asked for (Gate is off)"),
        (
            true,
            Err(Lack::NotFound),
            "Fail Gate is on, but ValidatingAdmissionPolicyBinding b does not exist: labels protect nothing",
        ),
        (false, Ok(()), "Warn Gate is off, but ValidatingAdmissionPolicyBinding b still protects by labels"),
    ] {
        assert_eq!(said(&gated_binding("b", "Gate", is_on, &there)), expected);
    }
}

#[test]
fn unknown_gates_and_missing_rights_are_named() {
    let config_map = |gates: &str| Ok(json!({ "data": { "feature-gates": gates } }));
    let (finding, gates) = feature_gates(&config_map("KruiseDaemon=false"));
    assert!(finding.verdict == Verdict::Ok && !gates.enabled("KruiseDaemon"));
    let (finding, _) = feature_gates(&config_map("Nope=true"));
    assert!(finding.verdict == Verdict::Fail && finding.text.starts_with("unknown feature gate \"Nope\""));
    let right = |what: &str, allowed| Right { what: what.into(), purpose: "restart", allowed };
    assert_eq!(
        said(&rights("shop", &[right("create a", Some(true)), right("delete b", Some(false))])),
        "Warn in namespace shop you may not delete b (for restart)"
    );
    assert_eq!(rights("shop", &[right("create a", None)]).verdict, Verdict::Unknown);
}

#[test]
fn a_report_reads_well() {
    let findings = [
        ok("API server", "Kubernetes v1.34.1"),
        finding("daemon", Verdict::Fail, "node-b: no daemon runs there", "kubectl describe daemonset"),
        unknown("leader", "the Lease", &Lack::NotPermitted),
    ];
    insta::assert_snapshot!(report(&findings, |_, word| word.to_owned()), @r"
    ok        API server   Kubernetes v1.34.1
    FAIL      daemon       node-b: no daemon runs there
                           -> kubectl describe daemonset
    unknown   leader       not permitted to read the Lease

    1 ok, 0 to look at, 1 failed, 1 unknown
    ");
    assert_eq!(exit(&findings), Exit::Failed);
}

#[test]
fn a_gate_that_lacks_its_component_is_named_with_what_to_do() {
    let of =
        |is_on: bool, there: Result<(), Lack>| gated_rights(("copies", "kruise-manager-copies", "Gate"), is_on, &there);
    assert_eq!(of(false, Err(Lack::NotFound)), None);
    assert_eq!(of(false, Ok(())), None);
    assert_eq!(said(&of(true, Ok(())).unwrap()), "Ok Gate is on, and its component copies is installed");
    let lacks = of(true, Err(Lack::NotFound)).unwrap();
    assert_eq!(said(&lacks), "Fail Gate is on, but its component copies is not installed: the manager may not do it");
    assert!(lacks.advice.starts_with("add manifests/components/copies to"), "{}", lacks.advice);
}
