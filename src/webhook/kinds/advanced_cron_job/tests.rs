use super::*;

/// The recorded object, as OpenKruise stored it.
const RECORDED: &str = include_str!("../../../api/apps/testdata/advanced_cron_jobs.json");

fn gates(text: &str) -> FeatureGates {
    FeatureGates::parse(&[text], None).unwrap()
}

fn request(spec: Value) -> Request {
    let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob",
        "metadata": {"name": "cron", "namespace": "a"}, "spec": spec});
    Request { operation: "CREATE".into(), object, ..Request::default() }
}

fn update(old: Value, new: Value) -> Request {
    Request { operation: "UPDATE".into(), old_object: request(old).object, ..request(new) }
}

fn pod() -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}})
}

fn job() -> Value {
    json!({"schedule": "0 2 * * *", "template": {"jobTemplate": {"spec": {"template": pod()}}}})
}

fn broadcast() -> Value {
    json!({"schedule": "0 2 * * *", "template": {"broadcastJobTemplate": {"spec": {"template": pod()}}}})
}

fn images() -> Value {
    json!({"schedule": "0 2 * * *", "template": {"imageListPullJobTemplate": {"spec": {"images": ["a:1"]}}}})
}

fn with(mut spec: Value, change: Value) -> Value {
    json_patch::merge(&mut spec, &change);
    spec
}

/// An API server that has nothing to add.
fn echo(admission: &CronJobAdmission) -> CronJobAnswers {
    let Some(question) = &admission.question else { return CronJobAnswers::default() };
    let answer = |object: Value| Some(Ok(Answer { object, ..Answer::default() }));
    let pods = answer(question.templates(admission).trial().unwrap().body());
    let is_job = question.kind == JobKind::Job;
    CronJobAnswers {
        pods: template::Answers { trial: pods, old_template: None },
        job: answer(question.job.clone()).filter(|_| is_job),
    }
}

fn decide(request: Request) -> Decision {
    let admission = check(&FeatureGates::default(), request)?;
    admit(&admission, &echo(&admission))
}

fn stored(request: Request) -> Value {
    let mut object = request.object.clone();
    json_patch::patch(&mut object, &decide(request).unwrap().patch).unwrap();
    object
}

fn causes(request: Request) -> Vec<(String, String)> {
    let denied = decide(request).unwrap_err();
    assert_eq!(denied.code, 422, "{denied:?}");
    denied.causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
}

#[test]
fn c5_the_stored_defaults_are_those_that_were_recorded() {
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    let wanted = &recorded[0]["spec"];
    let applied = recorded[0].pointer("/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration");
    let applied: Value = serde_json::from_str(applied.and_then(Value::as_str).unwrap()).unwrap();
    let create = Request { operation: "CREATE".into(), object: applied.clone(), ..Request::default() };
    let admission = check(&FeatureGates::default(), create).unwrap();
    let mut answers = echo(&admission);
    // What Kubernetes makes of the Pod template.
    let template = wanted["template"]["broadcastJobTemplate"]["spec"]["template"].clone();
    answers.pods.trial = Some(Ok(Answer { object: json!({"template": template}), ..Answer::default() }));
    let mut object = applied;
    json_patch::patch(&mut object, &admit(&admission, &answers).unwrap().patch).unwrap();
    assert_eq!(&object["spec"], wanted);
}

#[test]
fn c3_defaults_of_each_kind() {
    let of_job = stored(request(job()));
    for (field, value) in [("concurrencyPolicy", json!("Allow")), ("paused", json!(false))] {
        assert_eq!(of_job["spec"][field], value);
    }
    assert_eq!(of_job["spec"]["successfulJobsHistoryLimit"], 3);
    assert_eq!(of_job["spec"]["failedJobsHistoryLimit"], 1);
    let container = "/spec/template/jobTemplate/spec/template/spec/containers/0/imagePullPolicy";
    assert_eq!(of_job.pointer(container), Some(&json!("Always")));
    let of_images = stored(request(images()));
    assert_eq!(of_images["spec"]["concurrencyPolicy"], "Replace");
    assert_eq!(
        of_images["spec"]["template"]["imageListPullJobTemplate"],
        json!({"metadata": {}, "spec": {"images": ["a:1"], "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3},
            "completionPolicy": {"type": "Always"}, "imagePullPolicy": "IfNotPresent"}})
    );
    // What is set or not known stays, and what is stored comes out as it is.
    let kept = with(
        job(),
        json!({"paused": true, "newer": {"a": 1}, "concurrencyPolicy": "Forbid",
        "template": {"jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"newer": 1}}}}),
    );
    let once = stored(request(kept));
    assert_eq!((&once["spec"]["paused"], &once["spec"]["newer"]["a"]), (&json!(true), &json!(1)));
    assert_eq!(once["spec"]["template"]["jobTemplate"]["metadata"]["labels"]["a"], "b");
    assert_eq!(once["spec"]["template"]["jobTemplate"]["spec"]["newer"], 1);
    let again = Request { object: once, ..request(json!({})) };
    assert_eq!(decide(again).unwrap(), Admitted::unchanged());
}

#[test]
fn f41_a_broadcast_template_without_a_restart_policy_gets_one_with_which_pods_end() {
    let spec = with(
        broadcast(),
        json!({"template": {"broadcastJobTemplate": {"spec": {"template": {"spec": {"restartPolicy": null}}}}}}),
    );
    let object = stored(request(spec));
    let pod = object.pointer("/spec/template/broadcastJobTemplate/spec/template/spec").unwrap();
    assert_eq!(pod["restartPolicy"], "OnFailure");
}

#[test]
fn c3_refusals_name_the_field_the_value_and_what_is_allowed() {
    let both = json!({"template": {"broadcastJobTemplate": {"spec": {"template": pod()}}}});
    let of_images = |spec: Value| with(images(), json!({"template": {"imageListPullJobTemplate": {"spec": spec}}}));
    for (spec, field, says) in [
        (with(job(), json!({"schedule": null})), "spec.schedule", "it is empty"),
        (with(job(), json!({"schedule": ""})), "spec.schedule", "it is empty"),
        (with(job(), json!({"schedule": "TZ="})), "spec.schedule", "no fields behind the time zone"),
        (with(job(), json!({"schedule": "61 * * * *"})), "spec.schedule", "\"61\" in the field minute"),
        (with(job(), json!({"schedule": "0,".repeat(600)})), "spec.schedule", "want at most 1024"),
        (
            with(job(), json!({"schedule": "TZ=UTC 0 0 * * *", "timeZone": "UTC"})),
            "spec.schedule",
            "beside spec.timeZone",
        ),
        (with(job(), json!({"timeZone": ""})), "spec.timeZone", "want a name such as Europe/Berlin"),
        (with(job(), json!({"timeZone": "LOCAL"})), "spec.timeZone", "\"LOCAL\" is not allowed"),
        (with(job(), json!({"timeZone": "Mars/Olympus"})), "spec.timeZone", "is no time zone"),
        (with(job(), json!({"timeZone": "asia/shanghai"})), "spec.timeZone", "Asia/Shanghai"),
        (with(job(), json!({"startingDeadlineSeconds": -1})), "spec.startingDeadlineSeconds", "want 0 or more"),
        (with(job(), json!({"successfulJobsHistoryLimit": -1})), "spec.successfulJobsHistoryLimit", "want 0 or more"),
        (with(job(), json!({"failedJobsHistoryLimit": -1})), "spec.failedJobsHistoryLimit", "want 0 or more"),
        (with(job(), json!({"concurrencyPolicy": "Never"})), "spec.concurrencyPolicy", "want Allow, Forbid or Replace"),
        (with(job(), json!({"template": null})), "spec.template", "it is missing"),
        (with(job(), json!({"template": {"jobTemplate": null}})), "spec.template", "none is there"),
        (with(job(), both), "spec.template", "jobTemplate and broadcastJobTemplate is there"),
        (
            with(job(), json!({"template": {"jobTemplate": {"spec": null}}})),
            "spec.template.jobTemplate.spec",
            "it is missing",
        ),
        (
            with(job(), json!({"template": {"jobTemplate": {"spec": {"template": null}}}})),
            "spec.template.jobTemplate.spec.template",
            "it is missing",
        ),
        (
            with(
                broadcast(),
                json!({"template": {"broadcastJobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Always"}}}}}}),
            ),
            "spec.template.broadcastJobTemplate.spec.template.spec.restartPolicy",
            "\"Always\" is not allowed",
        ),
        (with(images(), json!({"concurrencyPolicy": "Allow"})), "spec.concurrencyPolicy", "want Forbid or Replace"),
        (of_images(json!({"images": []})), "spec.template.imageListPullJobTemplate.spec.images", "want 1 to 255"),
        (of_images(json!({"parallelism": "10%"})), "spec.template.imageListPullJobTemplate.spec.parallelism", "10%"),
        (
            of_images(json!({"completionPolicy": {"type": "Never"}})),
            "spec.template.imageListPullJobTemplate.spec.completionPolicy.type",
            "want Always",
        ),
        (
            of_images(json!({"completionPolicy": {"ttlSecondsAfterFinished": 5}})),
            "spec.template.imageListPullJobTemplate.spec.completionPolicy.ttlSecondsAfterFinished",
            "leave it out",
        ),
        (
            of_images(json!({"completionPolicy": {"activeDeadlineSeconds": 86401}})),
            "spec.template.imageListPullJobTemplate.spec.completionPolicy.activeDeadlineSeconds",
            "want at most 86400",
        ),
        (
            of_images(json!({"completionPolicy": {"activeDeadlineSeconds": 599}})),
            "spec.template.imageListPullJobTemplate.spec.completionPolicy.activeDeadlineSeconds",
            "(600)",
        ),
    ] {
        let found = causes(request(spec.clone()));
        assert_eq!(found.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), [field], "{spec}: {found:?}");
        assert!(found[0].1.contains(says), "{spec}: {}", found[0].1);
    }
}

#[test]
fn f48_a_broadcast_template_is_held_to_all_rules_of_broadcast_jobs() {
    let at = "spec.template.broadcastJobTemplate.spec";
    for (change, field) in [
        (json!({"template": {"spec": {"restartPolicy": "Always"}}}), "template.spec.restartPolicy"),
        (json!({"parallelism": "many"}), "parallelism"),
        (json!({"parallelism": -1}), "parallelism"),
        (json!({"completionPolicy": {"type": "Sometimes"}}), "completionPolicy.type"),
        (
            json!({"completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 5}}),
            "completionPolicy.ttlSecondsAfterFinished",
        ),
        (json!({"failurePolicy": {"type": "Ignore"}}), "failurePolicy.type"),
        (json!({"failurePolicy": {"restartLimit": -1}}), "failurePolicy.restartLimit"),
        (json!({"template": {"metadata": {"labels": {"broadcastjob-name": "x"}}}}), "template.metadata.labels"),
    ] {
        let spec = with(broadcast(), json!({"template": {"broadcastJobTemplate": {"spec": change}}}));
        let found = causes(request(spec.clone()));
        assert_eq!(found.len(), 1, "{spec}: {found:?}");
        assert!(found[0].0.starts_with(&format!("{at}.{field}")), "{spec}: {found:?}");
    }
}

#[test]
fn f44_names_that_make_too_long_names_of_jobs_are_refused_when_they_are_new() {
    let named = |name: &str, spec: Value| {
        let mut request = request(spec);
        request.object["metadata"]["name"] = name.into();
        request
    };
    for (spec, longest) in [(job(), 52), (broadcast(), 52), (images(), 63)] {
        assert!(decide(named(&"n".repeat(longest), spec.clone())).is_ok());
        let found = causes(named(&"n".repeat(longest + 1), spec.clone()));
        assert_eq!(found[0].0, "metadata.name");
        assert!(found[0].1.contains(&format!("want up to {longest}")), "{}", found[0].1);
        let mut update = named(&"n".repeat(longest + 1), spec.clone());
        update.operation = "UPDATE".into();
        update.old_object = update.object.clone();
        assert!(decide(update).is_ok());
    }
    assert!(causes(named("a.b", job()))[0].1.contains("without a dot"));
    let mut generated = request(job());
    generated.object["metadata"] = json!({"generateName": format!("{}-", "n".repeat(50))});
    assert_eq!(causes(generated)[0].0, "metadata.generateName");
}

#[test]
fn wrong_types_are_bad_requests() {
    for (spec, says) in [
        (json!(null), "spec: it is missing"),
        (with(job(), json!({"schedule": 5})), "spec.schedule: 5"),
        (with(job(), json!({"timeZone": {}})), "spec.timeZone"),
        (with(job(), json!({"paused": "yes"})), "spec.paused"),
        (with(job(), json!({"startingDeadlineSeconds": "5"})), "spec.startingDeadlineSeconds"),
        (with(job(), json!({"template": []})), "spec.template"),
        (with(job(), json!({"template": {"jobTemplate": "x"}})), "spec.template.jobTemplate"),
        (with(job(), json!({"template": {"jobTemplate": {"metadata": 3}}})), "spec.template.jobTemplate.metadata"),
        (with(job(), json!({"template": {"jobTemplate": {"metadata": {"labels": []}}}})), "metadata.labels"),
        (
            with(images(), json!({"template": {"imageListPullJobTemplate": {"spec": {"images": 5}}}})),
            "spec.template.imageListPullJobTemplate.spec",
        ),
    ] {
        let denied = decide(request(spec.clone())).unwrap_err();
        assert_eq!(denied.code, 400, "{spec}: {denied:?}");
        assert!(denied.message.contains(says), "{spec}: {}", denied.message);
    }
}

#[test]
fn c3_the_kind_stays_and_an_update_is_not_refused_for_what_it_does_not_change() {
    let found = causes(update(job(), broadcast()));
    // In a merge both templates would be there; a replacement changes the kind.
    assert_eq!(found[0].0, "spec.template");
    assert!(found[0].1.contains("want jobTemplate as before"), "{}", found[0].1);
    let odd = with(job(), json!({"timeZone": "Mars/Olympus"}));
    assert!(decide(update(odd.clone(), with(odd.clone(), json!({"paused": true})))).is_ok());
    assert!(decide(update(odd.clone(), with(odd, json!({"timeZone": "Mars/Tharsis"})))).is_err());
    let image = json!({"template": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}}}});
    assert!(decide(update(job(), with(job(), image))).is_ok());
    let mut deleted = update(job(), broadcast());
    deleted.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert!(!is_judged(&deleted));
}

#[test]
fn what_the_api_server_says_of_the_job_is_told_with_the_fields_of_the_template() {
    let admission = check(&FeatureGates::default(), request(job())).unwrap();
    let question = admission.question.as_ref().unwrap();
    assert_eq!(question.job["metadata"]["generateName"], "dry-run-");
    let with_job =
        |job: Result<Answer, Refused>| admit(&admission, &CronJobAnswers { job: Some(job), ..echo(&admission) });
    let fields = vec![
        ("spec.template.spec.restartPolicy".to_owned(), "Required value".to_owned()),
        ("spec.completions".into(), "must be 0 or more".into()),
    ];
    let denied = with_job(Err(Refused::Invalid(fields))).unwrap_err();
    let named: Vec<&str> = denied.causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(
        named,
        ["spec.template.jobTemplate.spec.template.spec.restartPolicy", "spec.template.jobTemplate.spec.completions"]
    );
    let message = "Job in version \"v1\" cannot be handled as a Job: json: cannot unmarshal string";
    let denied = with_job(Err(Refused::Undecodable(message.into()))).unwrap_err();
    assert_eq!(
        (denied.code, denied.message.as_str()),
        (400, "spec.template.jobTemplate: json: cannot unmarshal string")
    );
    // A quota is no fault of the template.
    let admitted = with_job(Err(Refused::Unavailable("403 exceeded quota".into()))).unwrap();
    assert!(
        admitted.warnings[0]
            .contains("is not checked as a Job: the API server cannot check it now: 403 exceeded quota"),
        "{:?}",
        admitted.warnings
    );
    let answer = Answer {
        unknown: vec!["spec.parallel".into(), "spec.template.spec.future".into()],
        warnings: vec!["w".into(), "w".into()],
        ..Answer::default()
    };
    let admitted = with_job(Ok(answer)).unwrap();
    assert_eq!(admitted.warnings.len(), 2, "{:?}", admitted.warnings);
    assert!(admitted.warnings[0].starts_with("unknown field \"spec.template.jobTemplate.spec.parallel\""));
}

#[test]
fn what_the_api_server_says_of_the_pods_is_told_with_the_fields_of_the_template() {
    for (spec, at) in
        [(job(), "spec.template.jobTemplate.spec"), (broadcast(), "spec.template.broadcastJobTemplate.spec")]
    {
        let admission = check(&FeatureGates::default(), request(spec)).unwrap();
        let with_pods = |pods: Result<Answer, Refused>| {
            let pods = template::Answers { trial: Some(pods), old_template: None };
            admit(&admission, &CronJobAnswers { pods, ..echo(&admission) })
        };
        let fields = vec![("template.spec.containers[0].image".to_owned(), "Required value".to_owned())];
        let denied = with_pods(Err(Refused::Invalid(fields))).unwrap_err();
        assert_eq!(denied.causes[0].field, format!("{at}.template.spec.containers[0].image"));
        let denied = with_pods(Err(Refused::Undecodable("no list".into()))).unwrap_err();
        assert_eq!((denied.code, denied.message), (400, format!("{at}.template: no list")));
        let denied = with_pods(Err(Refused::Unavailable("down".into()))).unwrap_err();
        assert_eq!(denied.code, 500, "a new one fails closed");
    }
    let image = json!({"template": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}}}}});
    let admission = check(&FeatureGates::default(), update(job(), with(job(), image))).unwrap();
    let answers = CronJobAnswers { pods: template::Answers::late(), job: None };
    let admitted = admit(&admission, &answers).unwrap();
    assert!(
        admitted.warnings[0].starts_with("spec.template.jobTemplate.spec.template is not checked"),
        "{:?}",
        admitted.warnings
    );
}

#[test]
fn nothing_is_asked_about_what_is_not_new_or_has_no_pods() {
    let asked = |request: Request| check(&FeatureGates::default(), request).unwrap().question.is_some();
    assert!(asked(request(job())) && asked(request(broadcast())));
    assert!(!asked(request(images())));
    assert!(!asked(update(job(), with(job(), json!({"paused": true})))));
}

#[test]
fn without_defaults_of_pods_only_those_of_the_kind_itself_are_written() {
    let admission = check(&gates("TemplateNoDefaults=true"), request(job())).unwrap();
    let mut object = admission.judged.object.clone();
    json_patch::patch(&mut object, &admit(&admission, &echo(&admission)).unwrap().patch).unwrap();
    assert_eq!(object["spec"]["paused"], false);
    let container = &object["spec"]["template"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], Value::Null);
}

#[test]
fn a_schedule_that_fits_no_time_is_warned_of() {
    let admitted = decide(request(with(job(), json!({"schedule": "0 0 30 2 *"})))).unwrap();
    assert!(admitted.warnings[0].contains("fits no time of the next five years"), "{:?}", admitted.warnings);
}
