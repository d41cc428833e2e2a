//! NodeImages: who writes one by hand uses no Secret that they may not read. The manager hands the credentials of a Secret
//! that was written by hand to the daemon of that node.
//!
//! A Secret stands beside an image, and is for all of its tags: whoever changes anything of an image needs the right to get
//! each Secret by hand that is then there. An expression may ask the authorizer twice, so the Secrets are asked for one after
//! the other, and one write may name a few only. Stored objects, their metadata and their status go on.
//!
//! It also keeps each tag of an image single: a plain list, as OpenKruise has it, does not, and a rule of the schema would be
//! too dear for lists of lists.

use serde_json::{Value, json};

use super::cel;
use crate::api::apps;

/// Different Secrets that the images of one write may have.
const MOST: usize = 4;

/// The Secrets of an image `i` that were written by hand.
const BY_HAND: &str = "variables.images[i].?pullSecrets.orValue([]).filter(s, s.?mode.orValue('') == '')";

pub(super) fn spec() -> Value {
    let right = |at: usize| {
        let name = |part: usize| format!("variables.secrets{at}[0].split('/')[{part}]");
        let check =
            format!("authorizer.group('').resource('secrets').namespace({}).name({}).check('get')", name(0), name(1));
        json!({
            "expression": format!("size(variables.secrets{at}) == 0 || {check}.allowed()"),
            "message": "spec.images: pullSecrets require permission to get the Secrets of each image that is changed",
            "messageExpression": format!(
                "'spec.images: pullSecrets require permission to get Secret ' + variables.secrets{at}[0] + ' (namespace/name)'"),
            "reason": "Forbidden",
        })
    };
    let well_formed = json!({
        // Below they are joined and taken apart.
        "expression": format!(
            "variables.changed.all(i, {BY_HAND}.all(s, [s.?namespace.orValue(''), s.?name.orValue('')].all(n, n.matches('^[a-z0-9.-]+$'))))"),
        "message": "spec.images: pullSecrets: want namespace and name of a Secret",
        "reason": "Invalid",
    });
    let single = json!({
        "expression": "variables.changed.all(i, variables.images[i].?tags.orValue([]).all(t, variables.images[i].tags.exists_one(o, o.tag == t.tag)))",
        "message": "spec.images: duplicate tag; list each tag of an image once",
        "reason": "Invalid",
    });
    let few = json!({
        "expression": format!("size(variables.secrets{MOST}) == 0"),
        "message": format!("spec.images: pullSecrets: want at most {MOST} different Secrets by hand in the images that one write changes"),
        "reason": "Invalid",
    });
    let validations: Vec<Value> = [well_formed, single].into_iter().chain((0..MOST).map(right)).chain([few]).collect();
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            cel::resource_rule(apps::GROUP, &["v1alpha1", "v1beta1"], &["CREATE", "UPDATE"], &["nodeimages"])] },
        "matchConditions": [
            { "name": "changed", "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec" },
            { "name": "by-others", "expression": format!("!({})", cel::is_the_manager()) },
        ],
        "variables": variables(),
        "validations": validations,
    })
}

fn variables() -> Vec<Value> {
    let variable = |name: String, expression: String| json!({ "name": name, "expression": expression });
    let mut all = vec![
        variable("images".into(), "object.spec.?images.orValue({})".into()),
        variable("was".into(), "request.operation == 'CREATE' ? {} : oldObject.spec.?images.orValue({})".into()),
        variable(
            "changed".into(),
            "variables.images.filter(i, !(i in variables.was) || variables.was[i] != variables.images[i])".into(),
        ),
        variable(
            "secrets0".into(),
            format!(
                "variables.changed.map(i, {BY_HAND}.map(s, s.?namespace.orValue('') + '/' + s.?name.orValue('')).join(',')).join(',').split(',').filter(s, s != '')"
            ),
        ),
    ];
    // Without the one that was asked for, however often it is there.
    all.extend((0..MOST).map(|at| {
        variable(
            format!("secrets{}", at + 1),
            format!("variables.secrets{at}.filter(s, s != variables.secrets{at}[0])"),
        )
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_secret_is_asked_for_and_one_more_is_too_many() {
        let spec = spec();
        let texts = |field: &str, of: &str| -> Vec<String> {
            let all = spec[field].as_array().unwrap().iter();
            all.map(|item| item[of].as_str().unwrap().to_owned()).collect()
        };
        let (names, validations) = (texts("variables", "name"), texts("validations", "expression"));
        assert_eq!(names.len(), 4 + MOST);
        for at in 0..MOST {
            let secrets = format!("variables.secrets{at}");
            let asked = validations.iter().filter(|v| v.contains(&format!("namespace({secrets}[0]")));
            assert_eq!(asked.count(), 1, "{secrets}");
        }
        assert!(validations[1].contains("exists_one(o, o.tag == t.tag)"), "{}", validations[1]);
        assert_eq!(validations.last().unwrap(), &format!("size(variables.secrets{MOST}) == 0"));
        // The API server allows two questions in one expression.
        assert!(validations.iter().all(|v| v.matches("authorizer").count() <= 2));
        assert!(texts("matchConditions", "expression")[1].starts_with("!("), "the manager writes what jobs name");
    }
}
