//! The Pod template of a workload and its claim templates in admission: judged and defaulted by a dry run of a PodTemplate
//! ([`crate::k8s::pod_template`]).
//!
//! [`Templates`] says what is new in a request, [`ask`] puts the question to the API server, and [`Templates::judge`] turns
//! its answer into what is stored, causes and warnings. Only [`ask`] does I/O.

use std::time::Duration;

use kube::Client;
use serde_json::Value;

use crate::{
    domain::pod::{inplace, launch_priority},
    k8s::{
        pod_template::{Stored, Trial, looks_defaulted},
        rbac::Rule,
    },
    runtime::pod_template::{self, Answer, Refused},
    webhook::{
        server::review::{Cause, Denied},
        validate::{Findings, Object},
    },
};

/// What [`ask`] needs. A dry run is a create that stores nothing.
pub const RBAC: Rule = Rule::new(&[""], &["podtemplates"], &["create"]);

/// The reads of one call take no longer than this, so that the answer comes before the API server gives up.
pub const READ_BUDGET: Duration = Duration::from_secs(7);

/// A rule of workloads that are only updated in place.
#[derive(Clone, Copy, Debug)]
pub struct InPlaceOnly {
    /// The field that asks for it and its value, as refusals name them: `updateStrategy.type InPlaceOnly`.
    pub asked_by: &'static str,
    /// What an update in place may change.
    pub allowed: inplace::Allowed,
}

/// The templates of a workload in a request: `spec.template` and `spec.volumeClaimTemplates`.
#[derive(Clone, Copy, Debug)]
pub struct Templates<'a> {
    /// The workload.
    pub object: &'a Value,
    /// What is stored now, on UPDATE.
    pub old: Option<&'a Value>,
    /// Whether defaults are written (feature gate TemplateNoDefaults is off).
    pub defaults: bool,
    /// On UPDATE: the template may only change as an update in place can.
    pub in_place_only: Option<InPlaceOnly>,
}

/// What the API server says.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The answer about the templates; None if they have not changed.
    pub trial: Option<Result<Answer, Refused>>,
    /// The template before, with the defaults that it lacks; None if it lacks none.
    pub old_template: Option<Value>,
}

impl Answers {
    /// No answer within [`READ_BUDGET`].
    pub fn late() -> Self {
        let late = format!("no answer within {} s", READ_BUDGET.as_secs());
        Self { trial: Some(Err(Refused::Unavailable(late))), old_template: None }
    }
}

/// Asks the API server about templates that are new. The caller holds to [`READ_BUDGET`].
pub async fn ask(client: &Client, namespace: &str, templates: &Templates<'_>) -> Answers {
    let mut answers = Answers::default();
    if let Some(trial) = templates.trial() {
        answers.trial = Some(pod_template::dry_run(client, namespace, &trial.body()).await);
    }
    if templates.in_place_only.is_some()
        && let Some(old) = templates.old_template().filter(|old| templates.defaults && !looks_defaulted(old))
    {
        // If that cannot be had, it is compared as it is.
        answers.old_template = pod_template::defaulted(client, namespace, old).await.ok();
    }
    answers
}

impl<'a> Templates<'a> {
    fn old_template(&self) -> Option<&'a Value> {
        self.old?.pointer("/spec/template")
    }

    /// The question about the template, if it or a claim template is new.
    pub fn trial(&self) -> Option<Trial<'a>> {
        let template = self.object.pointer("/spec/template").filter(|template| template.is_object())?;
        let new_claims = self.old.is_none_or(|old| claims(old) != claims(self.object));
        let is_new = new_claims || self.old_template() != Some(template);
        is_new.then(|| Trial::new(template, claims(self.object), new_claims))
    }

    /// Writes the templates with their defaults into `spec`, or says what is wrong with them. CREATE needs an answer of the
    /// API server; without one, an UPDATE is let through with a warning: the controller asks again.
    ///
    /// # Errors
    /// The template cannot be read (400), or a new workload could not be checked (500).
    pub fn judge(&self, answers: &Answers, spec: &mut Object, found: &mut Findings) -> Result<(), Denied> {
        let (Some(trial), Some(result)) = (self.trial(), &answers.trial) else { return Ok(()) };
        match result {
            Ok(answer) => self.store(&trial, answer, answers.old_template.as_ref(), spec, found),
            Err(Refused::Invalid(fields)) => found.causes.extend(
                fields.iter().map(|(field, message)| Cause { field: trial.field(field), message: message.clone() }),
            ),
            Err(Refused::Undecodable(message)) => {
                let (_, why) = message.split_once("cannot be handled as a PodTemplate: ").unwrap_or(("", message));
                return Err(Denied::bad_request(format!("spec.template: {why}")));
            }
            Err(error @ Refused::Unavailable(_)) if self.old.is_some() => {
                found.warnings.push(format!("spec.template is not checked: {error}"));
            }
            Err(error @ Refused::Unavailable(_)) => return Err(Denied::internal(format!("spec.template: {error}"))),
        }
        Ok(())
    }

    fn store(
        &self,
        trial: &Trial<'_>,
        answer: &Answer,
        old_template: Option<&Value>,
        spec: &mut Object,
        found: &mut Findings,
    ) {
        let Stored { template, claims } = trial.stored(&answer.object, &answer.unknown, self.defaults);
        if let Some(InPlaceOnly { asked_by, allowed }) = self.in_place_only
            && let Some(before) = old_template.or_else(|| self.old_template())
            && let Err(why) = inplace::spec_between(before, &template, "", allowed)
        {
            let (field, why) = match why.place() {
                Some((path, why)) => (format!("spec.{path}"), why.to_owned()),
                None => ("spec.template".to_owned(), why.to_string()),
            };
            found.deny(field, format!("{why}; with {asked_by} want nothing but other images, labels and annotations"));
        }
        if let Err(error) = launch_priority::wanted(&template) {
            found.warnings.push(format!("spec.template.{error}; its Pods will be refused"));
        }
        spec.insert("template".into(), template);
        if !claims.is_empty() {
            spec.insert("volumeClaimTemplates".into(), claims.into());
        }
        let unknown = answer.unknown.iter().map(|field| trial.field(field)).map(|field| {
            format!("unknown field \"{field}\": it is stored, and this API server will not give it to Pods")
        });
        found.warnings.extend(unknown);
        let tolerated = answer.tolerated.iter();
        found.warnings.extend(tolerated.map(|one| refused_later(&trial.field(&one.field), &one.message)));
        found.warnings.extend(answer.warnings.iter().cloned());
    }
}

/// The warning of something that is stored as OpenKruise does, and that no Pod may have.
pub fn refused_later(field: &str, message: &str) -> String {
    format!("{field}: {message}; it is stored, and its Pods will be refused")
}

fn claims(object: &Value) -> &[Value] {
    object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
