//! Admission of a workload: what CloneSet, StatefulSet and DaemonSet do alike, before and after their own rules.
//!
//! Pure.

use serde_json::Value;

use crate::{
    k8s::name::Namespace,
    webhook::{
        server::review::{Admitted, Cause, Decision, Denied, Request},
        validate::{Findings, Object},
    },
};

/// A workload of which every field has the right type, with what is wrong with it so far.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The workload.
    pub object: Value,
    /// What is stored now, on UPDATE.
    pub old: Option<Value>,
    /// Its namespace.
    pub namespace: Namespace,
    /// What is wrong; without what was let in before.
    pub found: Findings,
    /// A changed selector, where it has to stay.
    changed_selector: Option<Cause>,
}

impl Judged {
    /// Judges a request. `judge` gets the object, and true if it is new; `judge_stored` gets what is stored now.
    ///
    /// # Errors
    /// A field has a type that it cannot have: 400.
    pub fn of(
        request: Request,
        judge: impl FnOnce(&Value, bool) -> Findings,
        judge_stored: impl FnOnce(&Value) -> Findings,
    ) -> Result<Self, Denied> {
        let Request { operation, object, old_object, namespace, .. } = request;
        let is_new = operation == "CREATE";
        let mut found = judge(&object, is_new);
        found.refuse_wrong_types()?;
        let old = (!is_new).then_some(old_object);
        if let Some(old) = &old {
            found.leave_out(&judge_stored(old));
        }
        Ok(Self { object, old, namespace, found, changed_selector: None })
    }

    /// The selector of a `kind` stays. The schema refuses a change of it, and after admission: it is named here only beside
    /// what admission refuses, or a user mends that and is refused again.
    pub fn keep_selector(&mut self, kind: &str) {
        let Some(old) = &self.old else { return };
        // As the schema compares: absent is the same as empty.
        let part = |object: &Value, member: &str| {
            let part = object.pointer(&format!("/spec/selector/{member}")).cloned().unwrap_or_default();
            let is_empty = part.as_object().is_some_and(|part| part.is_empty());
            if is_empty || part.as_array().is_some_and(Vec::is_empty) { Value::Null } else { part }
        };
        if ["matchLabels", "matchExpressions"].iter().any(|member| part(old, member) != part(&self.object, member)) {
            let message =
                format!("it is immutable: a change would orphan the existing Pods; create a new {kind}, or keep it");
            self.changed_selector = Some(Cause { field: "spec.selector".into(), message });
        }
    }

    /// Decides: all fields that are wrong, or the changes from the object to `wanted`, whose spec `complete` fills in.
    ///
    /// # Errors
    /// What is wrong, or what `complete` returns; 400 without a spec.
    pub fn decide(
        &self,
        mut wanted: Value,
        complete: impl FnOnce(&mut Object, &mut Findings) -> Result<(), Denied>,
    ) -> Decision {
        let mut found = self.found.clone();
        let spec = wanted.get_mut("spec").and_then(Value::as_object_mut);
        let Some(spec) = spec else { return Err(Denied::bad_request("spec is missing")) };
        complete(spec, &mut found)?;
        if let Some(changed) = self.changed_selector.as_ref().filter(|_| !found.causes.is_empty()) {
            found.causes.insert(0, changed.clone());
        }
        found.refuse()?;
        Ok(Admitted { warnings: found.warnings, ..Admitted::changed(&self.object, &wanted) })
    }
}
