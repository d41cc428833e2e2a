//! Asks the API server what it makes of a Pod template: a dry run of a core/v1 PodTemplate, which stores nothing.

use std::{borrow::Cow, sync::Arc, time::Duration};

use http::{Request, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use serde_json::Value;

use super::apply::said;
use crate::{
    api::feature_gates::{FeatureGates, gate},
    k8s::{
        path,
        pod_template::{Stored, Tolerated, Trial, as_in_manifests, looks_defaulted, missing_volumes},
    },
};

/// After the API server could not say what defaults a template has.
pub const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What it answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The PodTemplate with all defaults.
    pub object: Value,
    /// Fields that it does not know.
    pub unknown: Vec<String>,
    /// Its other warnings, for example of Pod Security.
    pub warnings: Vec<String>,
    /// What it would refuse, and OpenKruise admits. It is in the object as it was.
    pub tolerated: Vec<Tolerated>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// Fields that are not allowed, each with the reason.
    #[error("{}", .0.iter().map(|(field, message)| format!("{field}: {message}")).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<(String, String)>),
    /// It is no template.
    #[error("{0}")]
    Undecodable(String),
    /// The API server could not be asked.
    #[error("the API server cannot check it now: {0}")]
    Unavailable(String),
}

/// Asks about a PodTemplate. What OpenKruise admits and the API server does not is hidden from it in another question: it
/// names no defaults of a template that it refuses.
///
/// # Errors
/// It is refused for something else, or there is no answer.
pub async fn dry_run(client: &Client, namespace: &str, body: &Value) -> Result<Answer, Refused> {
    let path = path::in_namespace(path::CORE, "v1", namespace, "podtemplates");
    let (mut asked, mut tolerated) = (Cow::Borrowed(body), Vec::<Tolerated>::new());
    loop {
        let causes = match dry_run_at(client, &path, &asked).await {
            Ok(mut answer) => {
                tolerated.iter().for_each(|one| one.put_back(body, &mut answer.object));
                return Ok(Answer { tolerated, ..answer });
            }
            Err(Refused::Invalid(causes)) => causes,
            Err(error) => return Err(error),
        };
        let of = |(field, message): &(String, String)| Tolerated::of(field, message);
        let others: Vec<_> = causes.iter().filter(|cause| of(cause).is_none()).cloned().collect();
        if !others.is_empty() {
            return Err(Refused::Invalid(others));
        }
        let mut new: Vec<Tolerated> = causes.iter().filter_map(of).collect();
        new.retain(|one| one.hide_in(asked.to_mut()));
        if new.is_empty() {
            // Nothing more can be hidden.
            return Err(Refused::Invalid(causes));
        }
        tolerated.extend(new);
    }
}

/// Asks about an object that would be created at a path of the API.
///
/// # Errors
/// It is refused, or there is no answer.
pub async fn dry_run_at(client: &Client, path: &str, body: &Value) -> Result<Answer, Refused> {
    let unavailable = |error: &dyn std::fmt::Display| Refused::Unavailable(error.to_string());
    // With `Warn` it names the fields that it does not know, and drops them as with `Ignore`.
    let uri = format!("{path}?dryRun=All&fieldValidation=Warn");
    let request = Request::post(uri)
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string().into_bytes()))
        .map_err(|error| unavailable(&error))?;
    let response = client.send(request).await.map_err(|error| unavailable(&said(&error)))?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| unavailable(&error))?.to_bytes();
    if parts.status.is_success() {
        let object = serde_json::from_slice(&body).map_err(|error| unavailable(&error))?;
        let mut answer = Answer { object, ..Answer::default() };
        let texts = parts.headers.get_all("warning").iter().filter_map(|value| warning(value.as_bytes()));
        for text in texts {
            match text.strip_prefix("unknown field \"").and_then(|field| field.strip_suffix('"')) {
                Some(field) => answer.unknown.push(field.to_owned()),
                None => answer.warnings.push(text),
            }
        }
        return Ok(answer);
    }
    let status: Status = serde_json::from_slice(&body).unwrap_or_default();
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    Err(match parts.status.as_u16() {
        422 if !causes.is_empty() => {
            Refused::Invalid(causes.into_iter().map(|cause| (as_in_manifests(&cause.field), cause.message)).collect())
        }
        400 | 422 => Refused::Undecodable(status.message),
        code => Refused::Unavailable(format!("{code} {}", status.message)),
    })
}

/// A template with its defaults, for one generation of its workload.
#[derive(Clone, Debug)]
pub struct Defaulted {
    generation: i64,
    /// As admission would have stored it.
    pub template: Arc<Value>,
}

/// The template of a workload as admission would have stored it; None: it has its defaults. It has none if admission was
/// away, and Pods must not be replaced because defaults are missing. `remembered` is the last answer.
///
/// # Errors
/// The API server cannot say now: nothing can be done before [`ASK_AGAIN`].
pub async fn with_defaults(
    (client, gates): (&Client, &FeatureGates),
    (namespace, generation): (&str, Option<i64>),
    template: &Value,
    remembered: Option<Defaulted>,
) -> Result<Option<Defaulted>, Refused> {
    if looks_defaulted(template) || gates.enabled(gate::TEMPLATE_NO_DEFAULTS) {
        return Ok(None);
    }
    let generation = generation.unwrap_or_default();
    if let Some(remembered) = remembered.filter(|remembered| remembered.generation == generation) {
        return Ok(Some(remembered));
    }
    let template = match defaulted(client, namespace, template).await {
        Ok(template) => template,
        Err(error @ Refused::Unavailable(_)) => return Err(error),
        // Its Pods would be refused in the same words, which are reported when they are created.
        Err(Refused::Invalid(_) | Refused::Undecodable(_)) => template.clone(),
    };
    Ok(Some(Defaulted { generation, template: Arc::new(template) }))
}

/// A template with the defaults of the API server.
///
/// # Errors
/// The template is refused, or there is no answer.
pub async fn defaulted(client: &Client, namespace: &str, template: &Value) -> Result<Value, Refused> {
    // Which claims there are is not asked here: whatever is mounted is taken to be there.
    let claims = missing_volumes(template);
    let trial = Trial::new(template, &claims, false);
    let answer = dry_run(client, namespace, &trial.body()).await?;
    let Stored { template, claims: _ } = trial.stored(&answer.object, &answer.unknown, true);
    Ok(template)
}

/// The text of a header `Warning: 299 - "..."`.
fn warning(header: &[u8]) -> Option<String> {
    let header = String::from_utf8_lossy(header);
    let (_, quoted) = header.split_once('"')?;
    let (mut text, mut characters) = (String::new(), quoted.chars());
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use serde_json::json;

    use super::*;

    /// An API server with one answer.
    fn server(
        code: u16,
        warnings: &'static [&'static str],
        answer: impl Fn(Value) -> Value + Clone + Send + 'static,
    ) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = answer.clone();
            async move {
                let (parts, body) = request.into_parts();
                assert_eq!((parts.method.as_str(), parts.uri.path()), ("POST", "/api/v1/namespaces/a/podtemplates"));
                assert!(parts.uri.query().is_some_and(|query| query.starts_with("dryRun=All&")), "nothing is stored");
                let body = body.collect().await.unwrap().to_bytes();
                let mut response = Response::builder().status(code);
                for text in warnings {
                    response = response.header("warning", *text);
                }
                let answer = answer(serde_json::from_slice(&body).unwrap());
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn unknown_fields_are_distinguished_from_other_warnings() {
        const WARNINGS: &[&str] = &[
            "299 - \"unknown field \\\"template.spec.containers[0].future\\\"\"",
            "299 - \"would violate PodSecurity \\\"restricted:latest\\\": x\"",
            "299",
        ];
        let answer = dry_run(&server(201, WARNINGS, |object| object), "a", &json!({"template": 1})).await.unwrap();
        assert_eq!(answer.object, json!({"template": 1}));
        assert_eq!(answer.unknown, ["template.spec.containers[0].future"]);
        assert_eq!(answer.warnings, ["would violate PodSecurity \"restricted:latest\": x"]);
    }

    #[tokio::test]
    async fn refusals_say_whose_fault_it_is() {
        let refused = async |code: u16, status: Value| {
            dry_run(&server(code, &[], move |_| status.clone()), "a", &json!({})).await.unwrap_err()
        };
        let causes = json!([{"reason": "FieldValueRequired", "field": "template.spec.containers[0].image", "message": "Required value"}]);
        assert_eq!(
            refused(422, json!({"message": "long", "details": {"causes": causes}})).await,
            Refused::Invalid(vec![("template.spec.containers[0].image".into(), "Required value".into())])
        );
        assert_eq!(refused(400, json!({"message": "no list"})).await, Refused::Undecodable("no list".into()));
        assert_eq!(refused(403, json!({"message": "no"})).await, Refused::Unavailable("403 no".into()));
        assert_eq!(refused(500, json!("?")).await, Refused::Unavailable("500 ".into()));
    }

    /// An API server that refuses some values, and has a default.
    fn strict(others: &'static [(&'static str, &'static str)]) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut object: Value = serde_json::from_slice(&body).unwrap();
            let template = &mut object["template"];
            let cost = &template["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
            let pages = &template["spec"]["containers"][0]["resources"]["limits"]["hugepages-2Mi"];
            let of_cost = (*cost == "abc").then_some((
                "template.annotations[controller.kubernetes.io/pod-deletion-cost]",
                "Invalid value: \"abc\": must be a 32bit integer",
            ));
            let of_pages = (*pages == "3Mi").then_some((
                "template.spec.containers[0].resources.limits[hugepages-2Mi]",
                "Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            ));
            let causes: Vec<Value> = of_cost
                .into_iter()
                .chain(of_pages)
                .chain(others.iter().copied())
                .map(|(field, message)| json!({"field": field, "message": message}))
                .collect();
            template["spec"]["dnsPolicy"] = "ClusterFirst".into();
            let (code, answer) = match causes.is_empty() {
                true => (201, object),
                false => (422, json!({"message": "invalid", "details": {"causes": causes}})),
            };
            Ok::<_, Infallible>(
                Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap(),
            )
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn what_open_kruise_admits_has_defaults_too() {
        let template = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "abc"}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"hugepages-2Mi": "3Mi"}}}]}});
        let body = json!({ "template": template });
        let answer = dry_run(&strict(&[]), "a", &body).await.unwrap();
        let mut want = body.clone();
        want["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
        assert_eq!(answer.object, want);
        let fields: Vec<&str> = answer.tolerated.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
                "template.spec.containers[0].resources.limits[hugepages-2Mi]"
            ]
        );
        let stored = defaulted(&strict(&[]), "a", &template).await.unwrap();
        assert_eq!(stored["spec"]["containers"][0]["resources"], json!({"limits": {"hugepages-2Mi": "3Mi"}}));
        assert_eq!(stored["metadata"]["annotations"], template["metadata"]["annotations"]);
        // Other complaints count, and they alone.
        const IMAGE: (&str, &str) = ("template.spec.containers[0].image", "Required value");
        let refused = dry_run(&strict(&[IMAGE]), "a", &body).await;
        assert_eq!(refused, Err(Refused::Invalid(vec![(IMAGE.0.into(), IMAGE.1.into())])));
        // One that stays whatever is put there.
        const STAYS: (&str, &str) = (
            "template.spec.containers[0].resources.requests[hugepages-2Mi]",
            "1 is not positive integer multiple of hugepages-2Mi",
        );
        let refused = dry_run(&strict(&[STAYS]), "a", &body).await;
        assert_eq!(refused, Err(Refused::Invalid(vec![(STAYS.0.into(), STAYS.1.into())])));
    }

    #[tokio::test]
    async fn a_template_is_defaulted_without_its_claims() {
        let template =
            json!({"spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}});
        let client = server(201, &[], |mut object| {
            let volumes = &object["template"]["spec"]["volumes"];
            assert_eq!(*volumes, json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]));
            object["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
            object
        });
        assert_eq!(
            defaulted(&client, "a", &template).await.unwrap(),
            json!({"metadata": {"creationTimestamp": null}, "spec": {"dnsPolicy": "ClusterFirst", "containers": [
                {"name": "c", "imagePullPolicy": "Always", "resources": {}, "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}})
        );
    }
}
