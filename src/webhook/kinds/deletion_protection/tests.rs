use crate::domain::deletion_protection as protection;
use std::sync::Mutex;

use axum::http;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server that answers each path, in order and then for ever with the last, and remembers what it was asked.
fn api_server(answers: Vec<(&'static str, Vec<(u16, Value)>)>) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::new(Mutex::new(answers));
    let log = asked.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        log.lock().unwrap().push(request.uri().to_string());
        let mut answers = answers.lock().unwrap();
        let found = answers.iter_mut().find(|(known, _)| *known == path);
        let (code, body) = match found {
            Some((_, list)) if list.len() > 1 => list.remove(0),
            Some((_, list)) => list[0].clone(),
            None => {
                (404, json!({"kind": "Status", "code": 404, "message": format!("no {path}"), "reason": "NotFound"}))
            }
        };
        let response = http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
        async move { Ok::<_, std::io::Error>(response) }
    });
    (kube::Client::new(service, "default"), asked)
}

fn list(items: Vec<Value>, next: &str) -> (u16, Value) {
    (200, json!({"metadata": {"continue": next}, "items": items}))
}
fn object(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}})
}
fn going(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
}
fn claim(name: &str, phase: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "status": {"phase": phase}})
}
fn status(code: u16, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "Forbidden"}))
}

fn deletion(object: Value) -> Request {
    Request { operation: "DELETE".into(), name: "shop".into(), old_object: object, ..Request::default() }
}
fn labelled(value: &str) -> Value {
    json!({"metadata": {"name": "shop", "labels": {LABEL: value}}})
}

fn context(client: kube::Client) -> Arc<Context> {
    Arc::new(Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default()).0)
}

const PODS: &str = "/api/v1/namespaces/shop/pods";
const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";
const WIDGETS: &str = "/apis/example.com/v1/widgets";

async fn namespace(answers: Vec<(&'static str, Vec<(u16, Value)>)>) -> Decision {
    handle_namespace(context(api_server(answers).0), deletion(labelled("Cascading"))).await
}

#[tokio::test]
async fn active_pods_keep_a_namespace_and_are_named() {
    let pods = |count: usize| (0..count).map(|i| object("shop", &format!("web-{i}"))).collect::<Vec<_>>();
    let denied = namespace(vec![(PODS, vec![list([pods(4), vec![going("old")]].concat(), "")])]).await.unwrap_err();
    assert_eq!(
        (denied.code, denied.message.as_str()),
        (
            403,
            "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Cascading and active pods \
             4>0: shop/web-0, shop/web-1, shop/web-2 and 1 more"
        )
    );
}

#[tokio::test]
async fn a2_bound_claims_keep_a_namespace_even_without_pods() {
    let mut bound_and_going = going("released");
    bound_and_going["status"] = json!({"phase": "Bound"});
    let claims = vec![claim("data", "Bound"), claim("new", "Pending"), bound_and_going];
    let answers =
        |claims: Vec<Value>| vec![(PODS, vec![list(vec![going("ended")], "")]), (CLAIMS, vec![list(claims, "")])];
    let denied = namespace(answers(claims.clone())).await.unwrap_err();
    assert_eq!(
        denied.message,
        "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Cascading and \"Bound\" status \
         pvc 1>0: shop/data"
    );
    assert_eq!(namespace(answers(claims[1..].to_vec())).await, Ok(Admitted::unchanged()));
}

#[tokio::test]
async fn finished_pods_are_not_even_listed_and_pages_go_on_until_something_counts() {
    let (client, asked) = api_server(vec![
        (PODS, vec![list(vec![going("a")], "next"), list(vec![object("shop", "b")], "")]),
        (CLAIMS, vec![list(vec![], "")]),
    ]);
    let denied = handle_namespace(context(client), deletion(labelled("Cascading"))).await.unwrap_err();
    assert!(denied.message.ends_with("active pods 1>0: shop/b"), "{}", denied.message);
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 2, "claims make no difference any more");
    assert!(asked[0].contains("fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"), "{asked:?}");
    assert!(asked[1].contains("continue=next"), "{asked:?}");
}

#[tokio::test]
async fn very_many_are_counted_up_to_a_limit() {
    let (client, asked) = api_server(vec![(PODS, vec![list(vec![object("shop", "a")], "next")])]);
    let denied = handle_namespace(context(client), deletion(labelled("Cascading"))).await.unwrap_err();
    assert!(denied.message.contains("active pods 10>0: "), "{}", denied.message);
    assert_eq!(asked.lock().unwrap().len(), MOST_PAGES);
}

#[tokio::test]
async fn what_cannot_be_counted_is_not_deleted() {
    let denied = namespace(vec![(PODS, vec![status(500, "etcd is away")])]).await.unwrap_err();
    assert_eq!(denied.message, "forbidden by ResourcesProtectionDeletion for list pods error: etcd is away");
    let no_claims = vec![(PODS, vec![list(vec![], "")]), (CLAIMS, vec![status(403, "no right")])];
    let denied = namespace(no_claims).await.unwrap_err();
    assert_eq!(
        (denied.code, denied.message.as_str()),
        (403, "forbidden by ResourcesProtectionDeletion for list pvc error: no right")
    );
}

/// D40 of SidecarSet: a deletion without the old object is admitted.
#[tokio::test]
async fn sw_d40_only_deletions_of_what_has_the_label_are_judged() {
    let pass = async |request: Request| {
        let (client, asked) = api_server(Vec::new());
        for handle in [handle_namespace, handle_definition] {
            assert_eq!(
                handle(context(client.clone()), request.clone()).await,
                Ok(Admitted::unchanged()),
                "{request:?}"
            );
        }
        assert_eq!(asked.lock().unwrap().len(), 0);
    };
    // Stored before the policy was in force, or with it off.
    for other in ["", "always", "cascading", "true"] {
        pass(deletion(labelled(other))).await;
    }
    pass(deletion(json!({"metadata": {"name": "shop"}}))).await;
    // a3: what is going can be deleted again.
    for level in ["Always", "Cascading"] {
        let mut terminating = labelled(level);
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pass(deletion(terminating)).await;
        pass(Request { operation: "UPDATE".into(), ..deletion(labelled(level)) }).await;
        pass(Request { sub_resource: "status".into(), ..deletion(labelled(level)) }).await;
    }
    // a4: without an old object.
    pass(deletion(Value::Null)).await;
    let (client, _) = api_server(Vec::new());
    for handle in [handle_namespace, handle_definition] {
        let denied = handle(context(client.clone()), deletion(labelled("Always"))).await.unwrap_err();
        assert_eq!(
            denied.message,
            "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always"
        );
    }
}

#[test]
fn a1_protection_works_without_the_pod_webhook_and_ends_with_its_gate() {
    let active = |gates: &str| {
        let gates = FeatureGates::parse(&[gates], None).unwrap();
        let names = ["vnamespace.kb.io", "vcustomresourcedefinition.kb.io", "vpod-delete.kb.io"];
        names
            .map(|name| crate::webhook::HANDLERS.iter().find(|handler| handler.name == name).unwrap().is_active(&gates))
    };
    assert_eq!(active("PodWebhook=false,ResourcesDeletionProtection=true"), [true, true, false]);
    assert_eq!(active("ResourcesDeletionProtection=false"), [false, false, true]);
    assert_eq!(active("PodUnavailableBudgetDeleteGate=false"), [false; 3]);
}

fn definition(versions: Value) -> Value {
    let mut definition = labelled("Cascading");
    definition["spec"] = json!({"group": "example.com", "versions": versions,
        "names": {"plural": "widgets", "kind": "Widget", "listKind": "WidgetList"}});
    definition
}
fn version(name: &str, served: bool, storage: bool) -> Value {
    json!({"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}})
}

async fn definition_with(answers: Vec<(&'static str, Vec<(u16, Value)>)>, versions: Value) -> Decision {
    handle_definition(context(api_server(answers).0), deletion(definition(versions))).await
}

#[tokio::test]
async fn objects_of_a_definition_keep_it_in_all_namespaces() {
    let versions = json!([version("v1beta1", true, false), version("v1", true, true)]);
    let items = vec![object("a", "x"), json!({"metadata": {"name": "of-the-cluster"}}), going("y")];
    let denied = definition_with(vec![(WIDGETS, vec![list(items, "")])], versions.clone()).await.unwrap_err();
    assert_eq!(
        denied.message,
        "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Cascading and active CRs 2>0: \
         a/x, of-the-cluster"
    );
    assert_eq!(
        definition_with(vec![(WIDGETS, vec![list(vec![going("y")], "")])], versions).await,
        Ok(Admitted::unchanged())
    );
}

#[tokio::test]
async fn a_missing_right_is_a_refusal_that_says_what_to_do() {
    let denied =
        definition_with(vec![(WIDGETS, vec![status(403, "widgets is forbidden")])], json!([version("v1", true, true)]))
            .await
            .unwrap_err();
    assert_eq!(
        (denied.code, denied.message.as_str()),
        (
            403,
            "forbidden by ResourcesProtectionDeletion for failed to list CRs of example.com/v1, Kind=WidgetList: widgets is forbidden; to have them counted, give a \
             ClusterRole the label kruise.rs/aggregate-to-webhook=true and the right to list widgets of example.com"
        )
    );
    // Not served as such: nobody can say that there are none.
    let denied = definition_with(Vec::new(), json!([version("v1", true, true)])).await.unwrap_err();
    assert!(
        denied.message.starts_with(
            "forbidden by ResourcesProtectionDeletion for failed to list CRs of example.com/v1, Kind=WidgetList: no "
        ),
        "{denied:?}"
    );
}

#[tokio::test]
async fn a_version_that_is_not_served_is_not_asked_for() {
    let answers = || vec![(WIDGETS, vec![list(vec![], "")])];
    let versions = json!([version("v0", false, true), version("v1", true, false)]);
    assert_eq!(definition_with(answers(), versions).await, Ok(Admitted::unchanged()));
    let denied = definition_with(answers(), json!([version("v1", false, true)])).await.unwrap_err();
    assert!(denied.message.contains("no version of spec.versions is served"), "{}", denied.message);
    let denied =
        handle_definition(context(api_server(answers()).0), deletion(labelled("Cascading"))).await.unwrap_err();
    assert_eq!(denied.code, 400);
}

#[test]
fn the_policy_says_the_literal_texts_and_its_rules_name_every_kind() {
    let spec = protection::spec();
    let validations = spec["validations"].as_array().unwrap();
    assert_eq!(
        validations[0]["message"],
        "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always"
    );
    assert_eq!(
        validations[1]["messageExpression"],
        "'forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Cascading and replicas ' + \
         string(variables.replicas) + '>0'"
    );
    assert!(validations[..2].iter().all(|validation| validation["reason"] == "Forbidden"));
    assert_eq!(validations[2]["expression"], "variables.newLabel in ['', 'Always', 'Cascading']");
    let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap();
    let resources: usize = rules.iter().map(|rule| rule["resources"].as_array().unwrap().len()).sum();
    assert_eq!(resources, 17);
}

#[test]
fn what_has_no_replicas_to_count_is_protected_by_always() {
    let spec = protection::spec();
    let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap();
    let ours = rules.iter().find(|rule| rule["apiGroups"] == json!(["apps.kruise.io"])).unwrap();
    let variables = spec["variables"].as_array().unwrap();
    let counted =
        variables.iter().find(|variable| variable["name"] == "replicas").unwrap()["expression"].as_str().unwrap();
    for (plural, versions, is_counted) in [
        ("broadcastjobs", &["v1alpha1", "v1beta1"][..], false),
        ("advancedcronjobs", &["v1alpha1", "v1beta1"], false),
        ("ephemeraljobs", &["v1alpha1"], false),
        ("resourcedistributions", &["v1alpha1"], false),
        ("persistentpodstates", &["v1alpha1"], false),
        ("workloadspreads", &["v1alpha1"], false),
        ("clonesets", &["v1alpha1"], true),
    ] {
        let has = |list: &str, what: &str| ours[list].as_array().unwrap().contains(&what.into());
        assert!(has("resources", plural), "{plural}");
        assert!(versions.iter().all(|version| has("apiVersions", version)), "{plural}");
        assert!(["CREATE", "UPDATE", "DELETE"].iter().all(|operation| has("operations", operation)), "{plural}");
        assert_eq!(counted.contains(&format!("'{plural}'")), is_counted, "{plural}");
    }
}

#[test]
fn labels_are_guarded_on_the_same_kinds_and_on_their_status() {
    let (guard, protection) = (protection::label_guard_spec(), protection::spec());
    let names = |spec: &Value| -> Vec<String> {
        let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap().iter();
        rules.flat_map(|rule| rule["resources"].as_array().unwrap()).map(|r| r.as_str().unwrap().to_owned()).collect()
    };
    let (of_status, own): (Vec<_>, Vec<_>) = names(&guard).into_iter().partition(|name| name.ends_with("/status"));
    assert_eq!(own, names(&protection));
    assert_eq!(of_status, own.iter().map(|name| format!("{name}/status")).collect::<Vec<_>>());
    assert_eq!(guard["validations"][0]["expression"], "authorizer.requestResource.check('unprotect').allowed()");
}
