use std::sync::Mutex;

use axum::http;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::json;

use super::*;

fn request(changes: Value) -> Request {
    let pod = json!({"metadata": {"name": "p", "uid": "u", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}});
    let mut request = json!({"operation": "DELETE", "namespace": "a", "name": "p", "oldObject": pod});
    json_patch::merge(&mut request, &changes);
    serde_json::from_value(request).unwrap()
}

fn operation(changes: Value) -> Option<Operation> {
    match disruption(&request(changes)).unwrap() {
        Disruption::None => None,
        Disruption::Of(Named { name, uid }, operation) => {
            assert_eq!(&*name, "p");
            assert_eq!(uid.as_deref(), (operation != Operation::Evict).then_some("u"), "an eviction shows no Pod");
            Some(operation)
        }
    }
}

#[test]
fn requests_are_read() {
    assert_eq!(operation(json!({})), Some(Operation::Delete));
    assert_eq!(operation(json!({"subResource": "status"})), None);
    // A4: no old object.
    assert_eq!(operation(json!({"oldObject": null})), None);
    let namespace = json!({"username": "system:serviceaccount:kube-system:namespace-controller"});
    assert_eq!(operation(json!({"userInfo": namespace})), None);
    let evict = json!({"operation": "CREATE", "subResource": "eviction", "oldObject": null});
    assert_eq!(operation(evict.clone()), Some(Operation::Evict));
    let mut body = evict;
    json_patch::merge(&mut body, &json!({"name": "", "object": {"metadata": {"name": "p"}}}));
    assert_eq!(operation(body), Some(Operation::Evict), "the name may stand in the body alone");
    assert_eq!(operation(json!({"operation": "CREATE", "subResource": "binding"})), None);
    assert_eq!(operation(json!({"operation": "CREATE"})), None);
}

#[test]
fn updates_and_resizes_are_distinguished_and_judged_as_the_pod_was() {
    let with = |container: Value, metadata: Value| json!({"operation": "UPDATE", "object": {"metadata": metadata, "spec": {"containers": [container]}}});
    let bare = json!({"name": "p"});
    assert_eq!(operation(with(json!({"name": "main", "image": "a:1"}), bare.clone())), None);
    let unprotected = json!({"name": "p", "annotations": {"pub.kruise.io/no-protect": "true"}});
    let image = with(json!({"name": "main", "image": "a:2"}), unprotected);
    assert_eq!(operation(image.clone()), Some(Operation::Update));
    let mut resize = request(json!({}));
    resize.operation = "UPDATE".into();
    resize.sub_resource = "resize".into();
    for (pod, amount) in [(&mut resize.old_object, 1), (&mut resize.object, 2)] {
        *pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": amount}}}]}});
    }
    assert!(matches!(disruption(&resize).unwrap(), Disruption::Of(_, Operation::Resize)));
}

#[test]
fn b1_an_eviction_says_in_two_places_that_it_is_a_dry_run() {
    let body = |body: Value| is_dry_run(&request(json!({"object": body})));
    assert!(!body(json!({})) && !body(json!({"deleteOptions": {}})) && !body(json!({"deleteOptions": null})));
    assert!(body(json!({"deleteOptions": {"dryRun": ["All"]}})));
    assert!(is_dry_run(&request(json!({"dryRun": true}))));
}

#[test]
fn what_names_no_pod_is_refused_and_nothing_panics() {
    for bad in [json!({"metadata": 1}), json!({"metadata": {}, "spec": {"containers": 1}}), json!({})] {
        let mut request = request(json!({"name": ""}));
        request.old_object = bad.clone();
        assert_eq!(disruption(&request).unwrap_err().code, 400, "{bad}");
    }
    for bad in [json!(null), json!(1), json!([])] {
        let mut request = request(json!({"operation": "UPDATE"}));
        (request.object, request.old_object) = (bad.clone(), bad);
        assert_eq!(disruption(&request).unwrap(), Disruption::None);
    }
}

/// D12 of SidecarSet.
#[tokio::test]
async fn sw_d12_b4_a_look_up_that_fails_never_blocks_the_creation_of_a_pod() {
    let client = crate::runtime::fake_api::nobody();
    let (context, _) = Context::new(FeatureGates::default(), client, "kruise-system".into(), Default::default());
    let context = Arc::new(context);
    let object = json!({"metadata": {"generateName": "p-", "labels": {"app": "web"}}, "spec": {"containers": []}});
    let create = request(json!({"operation": "CREATE", "oldObject": null, "object": object}));
    assert_eq!(relate(context.clone(), create).await, Ok(Admitted::unchanged()));
    for bad in [json!(null), json!({"metadata": 1})] {
        let create = request(json!({"operation": "CREATE", "oldObject": null, "object": bad}));
        assert_eq!(relate(context.clone(), create).await, Ok(Admitted::unchanged()));
    }
}

#[test]
fn a_new_pod_gets_the_note_of_its_first_budget() {
    let names = ["b".to_owned(), "c".to_owned()];
    let patch = |pod: Value, noted: Option<&str>, names: &[String]| json!(related(&pod, noted, names).patch);
    let bare = json!({"metadata": {"name": "p"}});
    assert_eq!(
        patch(bare.clone(), None, &names),
        json!([{"op": "add", "path": "/metadata/annotations", "value": {"kruise.io/related-pub": "b"}}])
    );
    assert_eq!(patch(bare.clone(), Some("c"), &names), json!([]), "it names one of them");
    assert_ne!(patch(bare.clone(), Some("another"), &names), json!([]));
    assert_eq!(patch(bare, None, &[]), json!([]));
    assert_eq!(patch(json!({"metadata": 1}), None, &names), json!([]));
}

/// An API server with two Pods, of which budget `b` covers one and lets one go. It counts writes and reads of Pods.
#[derive(Default)]
struct Server {
    writes: Mutex<Vec<(String, Value)>>,
    reads: Mutex<Vec<String>>,
    broken: bool,
    /// The budget lets none go.
    refuses: bool,
    /// Pods on record as going in a WorkloadSpread.
    going: Mutex<Vec<String>>,
}

impl Server {
    fn context(self: &Arc<Self>) -> Arc<Context> {
        let server = self.clone();
        let service = tower::service_fn(move |http: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = http.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, object) = server.answer(&parts.method, parts.uri.path(), &body);
                let response = http::Response::builder().status(code);
                Ok::<_, std::convert::Infallible>(response.body(Body::from(object.to_string().into_bytes())).unwrap())
            }
        });
        let gates = FeatureGates::parse(&["PodUnavailableBudgetUpdateGate=true"], None).unwrap();
        let client = kube::Client::new(service, "default");
        Arc::new(Context::new(gates, client, "kruise-system".into(), Default::default()).0)
    }

    /// The same, which knows a WorkloadSpread that has both Pods in a subset with a limit.
    fn context_with_subset(self: &Arc<Self>) -> Arc<Context> {
        let context = self.context();
        context.spreads.know(&[spread()]);
        context
    }

    fn answer(&self, method: &http::Method, path: &str, body: &[u8]) -> (u16, Value) {
        let budgets = "/apis/policy.kruise.io/v1alpha1";
        let budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "b", "namespace": "a", "uid": "b", "generation": 1, "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": i32::from(!self.refuses)},
            "status": {"observedGeneration": 1, "unavailableAllowed": i32::from(!self.refuses), "desiredAvailable": 1 + i32::from(self.refuses),
                "currentAvailable": 2, "totalReplicas": 2}});
        let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "u", "controller": true}]);
        let note = json!({"apps.kruise.io/matched-workloadspread": "{\"name\":\"ws\",\"subset\":\"s\"}"});
        let pod = |name: &str, app: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a", "uid": name,
                "labels": {"app": app}, "annotations": note, "ownerReferences": owner}, "spec": {"containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
        };
        if *method == http::Method::PATCH && path == format!("{budgets}/namespaces/a/podunavailablebudgets/b/status") {
            let patch: Value = serde_json::from_slice(body).unwrap();
            self.writes.lock().unwrap().push((path.to_owned(), patch.clone()));
            let mut written = budget;
            json_patch::merge(&mut written, &json!({"status": patch["status"]}));
            return (200, written);
        }
        if *method == http::Method::PATCH && path.ends_with("/workloadspreads/ws/status") {
            let patch: Value = serde_json::from_slice(body).unwrap();
            let entry = &patch["status"]["versionedSubsetStatuses"]["versionIgnored"][0]["deletingPods"];
            let names = entry.as_object().into_iter().flatten().map(|(pod, _)| pod.clone());
            self.going.lock().unwrap().extend(names);
            let mut written = spread();
            json_patch::merge(&mut written, &json!({"status": patch["status"], "metadata": {"resourceVersion": "2"}}));
            return (200, written);
        }
        assert_eq!(*method, http::Method::GET, "{path}");
        if path.starts_with("/api/v1/") {
            self.reads.lock().unwrap().push(path.to_owned());
        }
        match path {
            "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets" => {
                (200, json!({"metadata": {"resourceVersion": "9"}, "items": [budget]}))
            }
            "/apis/policy.kruise.io/v1alpha1/namespaces/a/podunavailablebudgets/b" => (200, budget),
            "/api/v1/namespaces/a/pods" => {
                (200, json!({"metadata": {"resourceVersion": "9"}, "items": [pod("web-0", "web")]}))
            }
            "/apis/apps.kruise.io/v1alpha1/namespaces/a/clonesets/web" => {
                (200, json!({"metadata": {"name": "web", "uid": "u"}, "spec": {"replicas": 1}}))
            }
            "/api/v1/namespaces/a/pods/web-0" if !self.broken => (200, pod("web-0", "web")),
            "/api/v1/namespaces/a/pods/db-0" if !self.broken => (200, pod("db-0", "db")),
            _ if self.broken => (500, json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no"})),
            _ => (
                404,
                json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
            ),
        }
    }

    fn consents(&self) -> Vec<String> {
        let writes = self.writes.lock().unwrap();
        let lists = writes
            .iter()
            .flat_map(|(_, patch)| ["disruptedPods", "unavailablePods"].map(|list| &patch["status"][list]));
        lists.filter_map(Value::as_object).flatten().map(|(pod, _)| pod.clone()).collect()
    }
}

/// A deletion as the API server asks about it, or somebody who plays one.
fn deletion(name: &str, uid: &str, app: &str) -> Request {
    let old = json!({"metadata": {"name": name, "namespace": "a", "uid": uid, "labels": {"app": app}}, "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    serde_json::from_value(json!({"uid": "r", "operation": "DELETE", "namespace": "a", "name": name, "oldObject": old}))
        .unwrap()
}

#[tokio::test]
async fn only_a_pod_that_the_api_server_knows_by_name_and_uid_gets_a_consent() {
    for (request, wanted) in [
        (deletion("web-0", "web-0", "web"), &["web-0"][..]),
        // Invented: no such Pod, and the UID of another one.
        (deletion("invented", "u", "web"), &[]),
        (deletion("web-0", "invented", "web"), &[]),
        (deletion("web-0", "", "web"), &[]),
        // Its own labels decide, whatever the request says: it is covered, and it is not.
        (deletion("web-0", "web-0", "db"), &["web-0"]),
        (deletion("db-0", "db-0", "web"), &[]),
    ] {
        let server = Arc::new(Server::default());
        let shown = format!("{request:?}");
        assert_eq!(handle(server.context(), request).await, Ok(Admitted::unchanged()), "{shown}");
        assert_eq!(server.consents(), wanted, "{shown}");
    }
}

#[tokio::test]
async fn an_update_is_judged_as_the_pod_was_and_an_eviction_by_the_pod_of_its_name() {
    let server = Arc::new(Server::default());
    let mut update = deletion("web-0", "web-0", "web");
    update.operation = "UPDATE".into();
    update.object = update.old_object.clone();
    update.object["metadata"]["annotations"] = json!({"pub.kruise.io/no-protect": "true"});
    update.object["spec"]["containers"] = json!([{"name": "main", "image": "a:2"}]);
    assert_eq!(handle(server.context(), update).await, Ok(Admitted::unchanged()));
    assert_eq!(server.consents(), ["web-0"], "an update cannot take itself out of the protection");

    for (name, wanted) in [("web-0", &["web-0"][..]), ("invented", &[]), ("db-0", &[])] {
        let server = Arc::new(Server::default());
        let eviction = json!({"uid": "r", "operation": "CREATE", "subResource": "eviction", "namespace": "a", "name": name,
            "object": {"metadata": {"name": name, "labels": {"app": "web"}}}});
        let eviction: Request = serde_json::from_value(eviction).unwrap();
        assert_eq!(handle(server.context(), eviction).await, Ok(Admitted::unchanged()));
        assert_eq!(server.consents(), wanted, "{name}");
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_has_to_stay() {
    let server = Arc::new(Server { broken: true, ..Server::default() });
    let denied = handle(server.context(), deletion("web-0", "web-0", "web")).await.unwrap_err();
    assert!(denied.code == 500 && denied.message.contains("\"web-0\" could not be read"), "{denied:?}");
    let eviction =
        json!({"uid": "r", "operation": "CREATE", "subResource": "eviction", "namespace": "a", "name": "web-0"});
    let denied = handle(server.context(), serde_json::from_value(eviction).unwrap()).await.unwrap_err();
    assert_eq!(denied.code, 429, "kubectl drain tries again");
    assert_eq!(server.consents(), [""; 0]);
}

/// A WorkloadSpread whose first subset has two Pods, as many as it may.
fn spread() -> Value {
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "WorkloadSpread",
        "metadata": {"name": "ws", "namespace": "a", "uid": "w", "generation": 1, "resourceVersion": "1"},
        "spec": {"targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"},
            "subsets": [{"name": "s", "maxReplicas": 2}, {"name": "rest"}]},
        "status": {"observedGeneration": 1,
            "versionedSubsetStatuses": {"versionIgnored": [{"name": "s", "replicas": 2, "missingReplicas": 0}]}}})
}

#[tokio::test]
async fn shortfall_a_pod_of_a_subset_is_recorded_as_going_after_its_budgets_have_let_it_go() {
    let going = |server: &Server| server.going.lock().unwrap().clone();
    for (request, wanted) in [
        (deletion("web-0", "web-0", "web"), &["web-0"][..]),
        (deletion("db-0", "db-0", "db"), &["db-0"]),
        (deletion("invented", "u", "web"), &[]),
        (deletion("web-0", "invented", "web"), &[]),
    ] {
        let server = Arc::new(Server::default());
        assert_eq!(handle(server.context_with_subset(), request).await, Ok(Admitted::unchanged()));
        assert_eq!(going(&server), wanted);
    }
    let server = Arc::new(Server { refuses: true, ..Server::default() });
    let denied = handle(server.context_with_subset(), deletion("web-0", "web-0", "web")).await.unwrap_err();
    assert_eq!((denied.code, going(&server)), (403, Vec::new()), "a refusal frees no place: {}", denied.message);
    let server = Arc::new(Server::default());
    let mut dry = deletion("web-0", "web-0", "web");
    dry.dry_run = true;
    handle(server.context_with_subset(), dry).await.unwrap();
    assert_eq!(going(&server), Vec::<String>::new());
}

#[tokio::test]
async fn where_no_budget_guards_only_a_pod_with_the_note_of_a_subset_is_read() {
    let noted = |name: &str| {
        let mut request = deletion(name, name, "web");
        request.old_object["metadata"]["annotations"] =
            json!({"apps.kruise.io/matched-workloadspread": "{\"name\":\"ws\",\"subset\":\"s\"}"});
        request
    };
    let eviction =
        json!({"uid": "r", "operation": "CREATE", "subResource": "eviction", "namespace": "a", "name": "web-0"});
    let eviction: Request = serde_json::from_value(eviction).unwrap();
    for (request, reads) in [(noted("web-0"), 1), (deletion("web-0", "web-0", "web"), 0), (eviction, 1)] {
        let server = Arc::new(Server::default());
        let context = server.context_with_subset();
        context.budgets.know_of_none();
        let shown = format!("{request:?}");
        assert_eq!(handle(context, request).await, Ok(Admitted::unchanged()), "{shown}");
        assert_eq!((server.reads.lock().unwrap().len(), server.going.lock().unwrap().len()), (reads, reads), "{shown}");
    }
    let server = Arc::new(Server { broken: true, ..Server::default() });
    let context = server.context_with_subset();
    context.budgets.know_of_none();
    assert_eq!(handle(context, noted("web-0")).await, Ok(Admitted::unchanged()), "it is only to be recorded");
}
