//! PodProbeMarkers: their authors get no further than their own rights. The daemon runs commands in Pods and the manager
//! writes labels and annotations on them, for whoever writes the object.
//!
//! The verb `probe` stands for both rights, so that an operator can be given it without `pods/exec`.

use serde_json::{Value, json};

use super::cel;
use crate::api::{apps, labels};

/// Who may write any PodProbeMarker; the installation binds it to nobody.
const AUTHOR_ROLE: &str = "kruise-podprobemarker-author";
const RESOURCE: &str = "podprobemarkers";
const VERB: &str = "probe";

/// The ClusterRole with the verb.
pub(super) fn author_role() -> Value {
    json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": super::metadata(AUTHOR_ROLE, false),
        "rules": [{ "apiGroups": [apps::GROUP], "resources": [RESOURCE], "verbs": [VERB] }] })
}

pub(super) fn spec() -> Value {
    let note = labels::PROBE_MARKS;
    let note_of = |object: &str| format!("{object}.metadata.?annotations[?'{note}'].orValue('')");
    let may = |check: &str| format!("authorizer.{check}.allowed()");
    let pods = "group('').resource('pods')";
    let own_verb =
        format!("group('{}').resource('{RESOURCE}').namespace(request.namespace).check('{VERB}')", apps::GROUP);
    let or_verb = format!("or the verb {VERB} on {RESOURCE} (ClusterRole {AUTHOR_ROLE})");
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1", "v1beta1"],
            "operations": ["CREATE", "UPDATE"], "resources": [RESOURCE] }] },
        "matchConditions": [
            // Stored objects, their finalizers and their other metadata go on.
            { "name": "changed", "expression": format!(
                "request.operation == 'CREATE' || object.spec != oldObject.spec || {} != {}", note_of("object"), note_of("oldObject")) },
        ],
        "variables": [
            { "name": "isNewSpec", "expression": cel::IS_NEW_SPEC },
            { "name": "isNewNote", "expression": format!(
                "{} != '' && (request.operation == 'CREATE' || {} != {})", note_of("object"), note_of("object"), note_of("oldObject")) },
            { "name": "probes", "expression": "object.spec.?probes.orValue([])" },
            { "name": "runsCommands", "expression": "variables.probes.exists(p, has(p.probe) && has(p.probe.exec))" },
            { "name": "marksPods", "expression": "variables.probes.exists(p, size(p.?markerPolicy.orValue([])) > 0)" },
            { "name": "hasVerb", "expression": may(&own_verb) },
            { "name": "mayPatch", "expression": may(&format!("{pods}.namespace(request.namespace).check('patch')")) },
        ],
        "validations": [
            {
                "expression": format!(
                    "!variables.isNewSpec || !variables.runsCommands || variables.hasVerb || {}",
                    may(&format!("{pods}.subresource('exec').namespace(request.namespace).check('create')"))),
                "message": format!("spec.probes: exec requires permission to create pods/exec in this namespace, {or_verb}"),
                "reason": "Forbidden",
            },
            {
                "expression": "!variables.isNewSpec || !variables.marksPods || variables.hasVerb || variables.mayPatch",
                "message": format!("spec.probes: markerPolicy requires permission to patch pods in this namespace, {or_verb}"),
                "reason": "Forbidden",
            },
            {
                // Keys in it are removed from Pods.
                "expression": "!variables.isNewNote || variables.hasVerb || variables.mayPatch",
                "message": format!("metadata.annotations: {note} is written by Kruise; leave it out, or get permission to patch pods in this namespace, {or_verb}"),
                "reason": "Forbidden",
            },
        ],
    })
}
