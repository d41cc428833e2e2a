//! Expressions that several policies use.

use serde_json::{Value, json};

use crate::{
    api::{apps, kinds::KINDS},
    k8s::account,
};

/// Keys of `labels::SYSTEM_DOMAINS` as a regular expression.
pub(super) const DOMAINS: &str = "^([^/]*[.])?(kubernetes[.]io|k8s[.]io|kruise[.]io|kruise[.]rs)/";

/// Whether the author of a spec needs rights for it. Stored objects, their finalizers and their other metadata go on, and so do
/// those that are being deleted.
pub(super) const IS_NEW_SPEC: &str =
    "request.operation == 'CREATE' || (object.spec != oldObject.spec && !has(oldObject.metadata.deletionTimestamp))";

/// Matches a spec whose author needs rights for it.
pub(super) fn new_spec() -> Value {
    json!({ "name": "changed", "expression": IS_NEW_SPEC })
}

/// Matches writes of our accounts only; everybody else pays for nothing more.
pub(super) fn by(accounts: &[&str]) -> Value {
    json!({ "name": "by-our-account", "expression": account::is_one_of(accounts) })
}

/// Whether the caller is the manager itself, for exceptions: the name alone is not enough, because everybody can make a
/// ServiceAccount of that name in a namespace of theirs.
pub(super) fn is_the_manager() -> String {
    let requests =
        format!("authorizer.group('{}').resource('containerrecreaterequests').subresource('status')", apps::GROUP);
    format!("{} && {requests}.check('patch').allowed()", account::is_one_of(&[account::MANAGER]))
}

pub(super) fn resource_rule(group: &str, versions: &[&str], operations: &[&str], resources: &[&str]) -> Value {
    json!({ "apiGroups": [group], "apiVersions": versions, "operations": operations, "resources": resources })
}

/// Whether an owner reference `o` is that of a controller of ours.
pub(super) fn is_our_reference() -> String {
    let kinds: Vec<String> =
        KINDS.iter().filter(|kind| kind.owns_pods() || kind.runs_pods).map(|kind| format!("'{}'", kind.kind)).collect();
    format!(
        "o.?controller.orValue(false) && o.kind in [{}] && o.apiVersion.startsWith('{}/')",
        kinds.join(", "),
        apps::GROUP
    )
}

/// Whether a workload of ours controls an object.
pub(super) fn is_ours(object: &str) -> String {
    format!("{object}.metadata.?ownerReferences.orValue([]).exists(o, {})", is_our_reference())
}

/// Whether an owner reference `o` is that of a UnitedDeployment that controls.
pub(super) const REFERENCE_OF_UNITED: &str =
    "o.?controller.orValue(false) && o.kind == 'UnitedDeployment' && o.apiVersion.startsWith('apps.kruise.io/')";

/// Whether a UnitedDeployment controls an object.
pub(super) fn is_of_united(object: &str) -> String {
    format!("{object}.metadata.?ownerReferences.orValue([]).exists(o, {REFERENCE_OF_UNITED})")
}

/// Whether an object that nobody controls becomes that of a UnitedDeployment.
pub(super) fn is_adopted_by_united() -> String {
    format!(
        "request.operation == 'UPDATE' && {} && !oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))",
        is_of_united("object")
    )
}

/// Owner references are as before, but for those that the expression `reference` means.
pub(super) fn adds_owner(reference: &str) -> String {
    format!(
        "object.metadata.ownerReferences.filter(o, !({reference})) == oldObject.metadata.?ownerReferences.orValue([])"
    )
}

/// Nothing of a workload changes but that a UnitedDeployment owns it.
pub(super) fn same_but_united() -> String {
    [
        "object.spec == oldObject.spec".to_owned(),
        same_but("labels", "false"),
        same_but("annotations", "false"),
        adds_owner(REFERENCE_OF_UNITED),
    ]
    .join(" && ")
}

/// Whether an owner reference `o` is that of a ResourceDistribution that controls.
const REFERENCE_OF_DISTRIBUTION: &str =
    "o.?controller.orValue(false) && o.kind == 'ResourceDistribution' && o.apiVersion.startsWith('apps.kruise.io/')";

/// Whether a write is one of a copy of a ResourceDistribution, before and after of the same one; what others have put on the
/// copy stays. In our own namespace there are none.
pub(super) fn is_distributed() -> String {
    let reference = REFERENCE_OF_DISTRIBUTION;
    let owners = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([])");
    let is_copy = |object: &str| format!("{}.exists(o, {reference})", owners(object));
    let names = |object: &str| format!("{}.filter(o, {reference}).map(o, o.name)", owners(object));
    let others = |object: &str| format!("{}.filter(o, !({reference}))", owners(object));
    let same = |of: &dyn Fn(&str) -> String| format!("{} == {}", of("object"), of("oldObject"));
    let kept = |field: &str, empty: &str| {
        let of = |object: &str| format!("{object}.metadata.?{field}.orValue({empty})");
        format!("{}.all(k, k in {})", of("oldObject"), of("object"))
    };
    let update =
        [same(&names), same(&others), kept("finalizers", "[]"), kept("labels", "{}"), kept("annotations", "{}")];
    [
        format!("request.namespace != {}", account::NAMESPACE),
        format!("(request.operation == 'CREATE' || {})", is_copy("oldObject")),
        format!("(request.operation == 'DELETE' || {})", is_copy("object")),
        format!("(request.operation != 'UPDATE' || ({}))", update.join(" && ")),
    ]
    .join(" && ")
}

/// The variables `wasOurs`, `isOurs`, `isFree` and `isHandover` of an object that workloads of ours control.
pub(super) fn ownership() -> [Value; 4] {
    [
        json!({ "name": "wasOurs", "expression":
            format!("request.operation != 'CREATE' && {}", is_ours("oldObject")) }),
        json!({ "name": "isOurs", "expression": format!("request.operation != 'DELETE' && {}", is_ours("object")) }),
        json!({ "name": "isFree", "expression":
            "(request.operation == 'CREATE' || variables.wasOurs) && (request.operation == 'DELETE' || variables.isOurs)" }),
        // Adoption and release.
        json!({ "name": "isHandover", "expression": "request.operation == 'UPDATE' && variables.wasOurs != variables.isOurs" }),
    ]
}

/// Where `when` holds, `expression` has to hold as well.
pub(super) fn implies(when: &str, expression: &str, message: &str) -> Value {
    json!({ "expression": format!("!({when}) || ({expression})"), "message": message, "reason": "Forbidden" })
}

pub(super) fn must(expression: &str, message: &str) -> Value {
    json!({ "expression": expression, "message": message, "reason": "Forbidden" })
}

/// A member of object and old object is the same; `empty` is the CEL literal of its empty value.
pub(super) fn equal(member: &str, empty: &str) -> String {
    let optional = |object: &str| {
        let path: Vec<&str> = member.split('.').collect();
        match path.as_slice() {
            [first, rest @ ..] if !rest.is_empty() => format!("{object}.{first}.?{}", rest.join(".?")),
            _ => format!("{object}.?{member}"),
        }
    };
    format!("{}.orValue({empty}) == {}.orValue({empty})", optional("object"), optional("oldObject"))
}

/// Labels or annotations are the same, but for the keys `k` that the expression `is_free` names.
pub(super) fn same_but(field: &str, is_free: &str) -> String {
    let of = |object: &str| format!("{object}.metadata.?{field}.orValue({{}})");
    let (new, old) = (of("object"), of("oldObject"));
    format!("{new}.all(k, {is_free} || (k in {old} && {old}[k] == {new}[k])) && {old}.all(k, {is_free} || k in {new})")
}

/// Owner references are the same, but for those of our controllers.
pub(super) fn same_other_owners() -> String {
    let others =
        |object: &str| format!("{object}.metadata.?ownerReferences.orValue([]).filter(o, !({}))", is_our_reference());
    format!("{} == {}", others("object"), others("oldObject"))
}

/// A list of keys as CEL.
pub(super) fn list(keys: &[&str]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
    format!("[{}]", keys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::labels;

    #[test]
    fn the_domains_of_the_policy_are_those_of_the_rule() {
        let domains: Vec<String> = labels::SYSTEM_DOMAINS.iter().map(|domain| domain.replace('.', "[.]")).collect();
        assert_eq!(DOMAINS, format!("^([^/]*[.])?({})/", domains.join("|")));
    }
}
