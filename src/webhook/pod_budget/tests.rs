use serde_json::json;

use super::*;

fn request(changes: Value) -> Request {
    let pod = json!({"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}});
    let mut request = json!({"operation": "DELETE", "namespace": "a", "name": "p", "oldObject": pod});
    json_patch::merge(&mut request, &changes);
    serde_json::from_value(request).unwrap()
}

fn operation(changes: Value) -> Option<Operation> {
    match wish(&request(changes)).unwrap() {
        Wish::Harmless => None,
        Wish::Pod(pod, operation) => {
            assert_eq!(pod.namespace(), "a", "objects may lack their own");
            Some(operation)
        }
        Wish::Evict(name) => {
            assert_eq!(name, "p");
            Some(Operation::Evict)
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
fn updates_and_resizes_are_told_apart_and_judged_as_the_pod_was() {
    let with = |container: Value, metadata: Value| json!({"operation": "UPDATE", "object": {"metadata": metadata, "spec": {"containers": [container]}}});
    let bare = json!({"name": "p"});
    assert_eq!(operation(with(json!({"name": "main", "image": "a:1"}), bare.clone())), None);
    let unprotected = json!({"name": "p", "annotations": {"pub.kruise.io/no-protect": "true"}});
    let image = with(json!({"name": "main", "image": "a:2"}), unprotected);
    assert_eq!(operation(image.clone()), Some(Operation::Update));
    let Wish::Pod(pod, _) = wish(&request(image)).unwrap() else { panic!() };
    assert!(!pod.no_protect, "an update cannot take itself out of the protection");
    let mut resize = request(json!({}));
    resize.operation = "UPDATE".into();
    resize.sub_resource = "resize".into();
    for (pod, amount) in [(&mut resize.old_object, 1), (&mut resize.object, 2)] {
        *pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": amount}}}]}});
    }
    assert!(matches!(wish(&resize).unwrap(), Wish::Pod(_, Operation::Resize)));
}

#[test]
fn b1_an_eviction_says_in_two_places_that_it_is_a_dry_run() {
    let body = |body: Value| is_dry_run(&request(json!({"object": body})));
    assert!(!body(json!({})) && !body(json!({"deleteOptions": {}})) && !body(json!({"deleteOptions": null})));
    assert!(body(json!({"deleteOptions": {"dryRun": ["All"]}})));
    assert!(is_dry_run(&request(json!({"dryRun": true}))));
}

#[test]
fn what_is_no_pod_is_refused_and_nothing_panics() {
    for bad in [json!({"metadata": 1}), json!({"metadata": {}, "spec": {"containers": 1}})] {
        let mut request = request(json!({}));
        request.old_object = bad.clone();
        assert_eq!(wish(&request).unwrap_err().code, 400, "{bad}");
    }
    for bad in [json!(null), json!(1), json!([])] {
        let mut request = request(json!({"operation": "UPDATE"}));
        (request.object, request.old_object) = (bad.clone(), bad);
        assert_eq!(wish(&request).unwrap(), Wish::Harmless);
    }
}

#[tokio::test]
async fn b4_a_look_up_that_fails_never_blocks_the_creation_of_a_pod() {
    let broken = tower::service_fn(async |_: axum::http::Request<kube::client::Body>| {
        Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other("no API server in this test"))
    });
    let client = kube::Client::new(broken, "default");
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
