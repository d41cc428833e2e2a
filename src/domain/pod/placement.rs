//! On which nodes Pods of a template run that are meant for one node each: the scheduler's rules.

use k8s_openapi::api::core::v1::Toleration;
use serde_json::Value;

use crate::k8s::{node::Taint, pod::Labels};

/// The most terms and requirements of one node affinity, and the most tolerations of one template: each change of a node is
/// held against all of them.
pub const MOST: usize = 1_000;

const AFFINITY: &str = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

/// The field of a node that can be selected by.
const NODE_NAME: &str = "metadata.name";

const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Whether a node has a Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// It is to get one.
    pub should_run: bool,
    /// One that is there stays.
    pub should_continue: bool,
}

/// What a template says about nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// `spec.nodeName`.
    node_name: Option<String>,
    /// `spec.nodeSelector`.
    labels: Vec<(String, String)>,
    /// Terms of the required node affinity, one of which has to match; None: there is none.
    terms: Option<Vec<Term>>,
    tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Term {
    labels: Vec<Requirement>,
    /// Of `metadata.name`; any other field matches no node.
    fields: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: String,
    /// Sorted: there can be as many as there are nodes.
    values: Vec<String>,
}

impl Placement {
    /// Of a template, as it is stored. Its Pods tolerate `tolerations`, a list.
    pub fn of(template: &Value, tolerations: &Value) -> Self {
        let spec = template.get("spec").unwrap_or(&Value::Null);
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let selector = spec.get("nodeSelector").and_then(Value::as_object).into_iter().flatten();
        let required = spec.pointer(AFFINITY);
        let terms = required.filter(|required| required.is_object()).map(|required| {
            let terms = required.get("nodeSelectorTerms").and_then(Value::as_array);
            terms.into_iter().flatten().map(Term::of).collect()
        });
        let tolerations = tolerations.as_array().into_iter().flatten();
        Self {
            node_name: spec.get("nodeName").and_then(text),
            labels: selector.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
            terms,
            // One that cannot be read tolerates nothing: see `unreadable`.
            tolerations: tolerations.filter_map(|value| serde::Deserialize::deserialize(value).ok()).collect(),
        }
    }

    /// Whether a node of this name, with these labels and taints, has a Pod.
    pub fn fit(&self, name: &str, labels: &Labels, taints: &[Taint]) -> Fit {
        let is_named = self.node_name.as_ref().is_none_or(|wanted| wanted == name);
        let is_selected = self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        let is_liked = self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)));
        if !(is_named && is_selected && is_liked) {
            return Fit::default();
        }
        let repels = |effects: &[&str]| {
            let untolerated = |taint: &&Taint| !self.tolerations.iter().any(|toleration| tolerates(toleration, taint));
            taints.iter().filter(untolerated).any(|taint| effects.contains(&&*taint.effect))
        };
        Fit { should_run: !repels(&[NO_SCHEDULE, NO_EXECUTE]), should_continue: !repels(&[NO_EXECUTE]) }
    }
}

impl Term {
    fn of(term: &Value) -> Self {
        let list = |key: &str| {
            let list = term.get(key).and_then(Value::as_array).into_iter().flatten();
            list.map(Requirement::of).collect()
        };
        Self { labels: list("matchExpressions"), fields: list("matchFields") }
    }

    /// A term without requirements matches no node.
    fn matches(&self, name: &str, labels: &Labels) -> bool {
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.iter().all(|requirement| requirement.matches(labels.get(&requirement.key)))
            && self.fields.iter().all(|field| field.key == NODE_NAME && field.matches(Some(name)))
    }
}

impl Requirement {
    fn of(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let values = value.get("values").and_then(Value::as_array).into_iter().flatten();
        let mut values: Vec<String> = values.filter_map(Value::as_str).map(str::to_owned).collect();
        values.sort_unstable();
        Self { key: text("key"), operator: text("operator"), values }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let is_listed =
            || value.is_some_and(|value| self.values.binary_search_by(|wanted| wanted.as_str().cmp(value)).is_ok());
        let compared = || {
            let [limit] = self.values.as_slice() else { return None };
            Some(value?.parse::<i64>().ok()?.cmp(&limit.parse().ok()?))
        };
        match self.operator.as_str() {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared() == Some(std::cmp::Ordering::Greater),
            "Lt" => compared() == Some(std::cmp::Ordering::Less),
            // Nothing is known to match others: see `unreadable`.
            _ => false,
        }
    }
}

/// As the scheduler does it: an effect that is not known is that of no taint, and an operator that is not known tolerates
/// nothing.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let is = |text: &Option<String>, wanted: &str| text.as_deref() == Some(wanted);
    (empty(&toleration.effect) || is(&toleration.effect, &taint.effect))
        && (empty(&toleration.key) || is(&toleration.key, &taint.key))
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => {
                !empty(&toleration.key) && toleration.value.as_deref().unwrap_or_default() == &*taint.value
            }
            Some("Exists") => true,
            Some(_) => false,
        }
}

/// A field of a Pod's spec, and what is wrong with it.
type Wrong = (String, String);

/// What a template says about nodes that cannot be read, if there is such a thing: the field, and what is wrong with it. The
/// API server refuses that, so it is in no template that admission has seen; it may not count as one that matches no node.
pub fn unreadable(template: &Value) -> Option<(String, String)> {
    let spec = template.get("spec")?;
    let wrong = wrong_selector(spec).or_else(|| wrong_terms(spec)).or_else(|| wrong_tolerations(spec));
    wrong.map(|(field, why)| (format!("spec.template.spec.{field}"), why))
}

/// The API server reads null as an empty value.
fn wrong_selector(spec: &Value) -> Option<Wrong> {
    let selector = spec.get("nodeSelector").filter(|selector| !selector.is_null())?;
    let Some(selector) = selector.as_object() else {
        return Some(("nodeSelector".into(), "it cannot be read; want labels with their values".into()));
    };
    let (key, _) = selector.iter().find(|(_, value)| !value.is_string() && !value.is_null())?;
    Some((format!("nodeSelector[{key}]"), "it cannot be read; want a string".into()))
}

fn wrong_terms(spec: &Value) -> Option<Wrong> {
    let required = spec.pointer(AFFINITY).filter(|required| !required.is_null())?;
    let at = format!("{}.nodeSelectorTerms", AFFINITY.trim_start_matches('/').replace('/', "."));
    let terms = required.get("nodeSelectorTerms").and_then(Value::as_array).filter(|terms| !terms.is_empty());
    let Some(terms) = terms else { return Some((at, "it cannot be read; want a list of one term or more".into())) };
    terms.iter().enumerate().find_map(|(index, term)| {
        let (field, why) = wrong_term(term)?;
        Some((format!("{at}[{index}]{field}"), why))
    })
}

fn wrong_term(term: &Value) -> Option<Wrong> {
    if !term.is_object() && !term.is_null() {
        return Some((String::new(), "it cannot be read; want matchExpressions or matchFields".into()));
    }
    ["matchExpressions", "matchFields"].into_iter().find_map(|name| {
        let list = term.get(name).filter(|list| !list.is_null())?;
        let Some(list) = list.as_array() else {
            return Some((format!(".{name}"), "it cannot be read; want a list".into()));
        };
        list.iter().enumerate().find_map(|(index, requirement)| {
            let (field, why) = wrong_requirement(requirement, name == "matchFields")?;
            Some((format!(".{name}[{index}].{field}"), why))
        })
    })
}

/// The member that is wrong, and why.
fn wrong_requirement(requirement: &Value, is_of_field: bool) -> Option<(&'static str, String)> {
    let text = |member: &str| requirement.get(member).and_then(Value::as_str).unwrap_or_default();
    let (key, operator) = (text("key"), text("operator"));
    if key.is_empty() {
        return Some(("key", "it cannot be read; want the key of a label, or a field".into()));
    }
    if is_of_field && key != NODE_NAME {
        return Some(("key", format!("{key:?} is not known; want {NODE_NAME}")));
    }
    let values = requirement.get("values").filter(|values| !values.is_null());
    let none = Vec::new();
    let values = values.map_or(Some(&none), Value::as_array).filter(|values| values.iter().all(Value::is_string));
    let Some(values) = values else { return Some(("values", "it cannot be read; want a list of strings".into())) };
    match (operator, values.len()) {
        ("In" | "NotIn", 1..) | ("Exists" | "DoesNotExist", _) | ("Gt" | "Lt", 1) => None,
        ("In" | "NotIn", _) => Some(("values", format!("it is empty; want one value or more for {operator}"))),
        ("Gt" | "Lt", number) => Some(("values", format!("it has {number} entries; want one value for {operator}"))),
        _ => Some(("operator", format!("{operator:?} is not known; want In, NotIn, Exists, DoesNotExist, Gt or Lt"))),
    }
}

fn wrong_tolerations(spec: &Value) -> Option<Wrong> {
    let tolerations = spec.get("tolerations").filter(|tolerations| !tolerations.is_null())?;
    let Some(tolerations) = tolerations.as_array() else {
        return Some(("tolerations".into(), "it cannot be read; want a list".into()));
    };
    let is_read = |toleration: &Value| <Toleration as serde::Deserialize>::deserialize(toleration).is_ok();
    let index = tolerations.iter().position(|toleration| !is_read(toleration))?;
    Some((format!("tolerations[{index}]"), "it cannot be read; want a toleration".into()))
}

/// What a template says about nodes that is more than [`MOST`]: the field, and why it is refused.
pub fn excess(template: &Value) -> Option<(String, String)> {
    let spec = template.get("spec")?;
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    let terms = spec.pointer(AFFINITY).and_then(|required| required.get("nodeSelectorTerms")?.as_array());
    let requirements = terms
        .into_iter()
        .flatten()
        .map(|term| 1 + list(term, "matchExpressions") + list(term, "matchFields"))
        .fold(0, usize::saturating_add);
    if requirements > MOST {
        let field = format!("spec.template.spec{}.nodeSelectorTerms", AFFINITY.replace('/', "."));
        return Some((field, format!("it has {requirements} terms and requirements in all; want up to {MOST}")));
    }
    let tolerations = list(spec, "tolerations");
    (tolerations > MOST).then(|| {
        ("spec.template.spec.tolerations".to_owned(), format!("it has {tolerations} entries; want up to {MOST}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(labels: Value) -> Labels {
        serde_json::from_value(labels).unwrap()
    }
    fn taint(text: &str) -> Taint {
        let (key, rest) = text.split_once('=').unwrap();
        let (value, effect) = rest.split_once(':').unwrap();
        Taint { key: key.into(), value: value.into(), effect: effect.into() }
    }
    /// Whether a Pod of this spec is to run, and to stay, on node `n` in zone `a`.
    fn fit(spec: Value, taints: &[&str]) -> (bool, bool) {
        let taints: Vec<Taint> = taints.iter().map(|text| taint(text)).collect();
        let placement = Placement::of(&json!({ "spec": spec }), &spec["tolerations"]);
        let Fit { should_run, should_continue } =
            placement.fit("n", &labels(json!({"zone": "a", "cpus": "8"})), &taints);
        (should_run, should_continue)
    }
    const YES: (bool, bool) = (true, true);
    const STAYS: (bool, bool) = (false, true);
    const NO: (bool, bool) = (false, false);

    #[test]
    fn a_node_has_a_pod_where_name_selector_and_affinity_fit() {
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let expression = |key: &str, operator: &str, values: Value| {
            affinity(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
        };
        let field = |key: &str, name: &str| {
            affinity(json!([{"matchFields": [{"key": key, "operator": "In", "values": [name]}]}]))
        };
        for (spec, want) in [
            (json!({}), YES),
            (json!({"nodeName": "n"}), YES),
            (json!({"nodeName": "m"}), NO),
            (json!({"nodeSelector": {"zone": "a"}}), YES),
            (json!({"nodeSelector": {"zone": "b"}}), NO),
            (json!({"nodeSelector": {"rack": "1"}}), NO),
            (expression("zone", "In", json!(["b", "a"])), YES),
            (expression("zone", "NotIn", json!(["a"])), NO),
            (expression("rack", "NotIn", json!(["a"])), YES),
            (expression("zone", "Exists", json!([])), YES),
            (expression("zone", "DoesNotExist", json!(null)), NO),
            (expression("cpus", "Gt", json!(["4"])), YES),
            (expression("cpus", "Lt", json!(["8"])), NO),
            (expression("zone", "Gt", json!(["4"])), NO),
            (expression("zone", "Near", json!(["a"])), NO),
            (field("metadata.name", "n"), YES),
            (field("metadata.name", "m"), NO),
            (field("spec.unschedulable", "n"), NO),
            (affinity(json!([])), NO),
            (affinity(json!([{}])), NO),
            (affinity(json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])), YES),
        ] {
            assert_eq!(fit(spec.clone(), &[]), want, "{spec}");
        }
    }

    #[test]
    fn tolerations_match_as_the_scheduler_matches_them() {
        let with = |toleration: Value| json!({ "tolerations": [toleration] });
        for (toleration, want) in [
            (json!({"key": "dedicated", "operator": "Equal", "value": "db", "effect": "NoSchedule"}), YES),
            (json!({"key": "dedicated", "value": "db"}), YES),
            (json!({"key": "dedicated", "value": "web"}), STAYS),
            (json!({"key": "dedicated", "operator": "Exists"}), YES),
            (json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}), STAYS),
            (json!({"operator": "Exists"}), YES),
            (json!({"operator": "Equal", "value": "db"}), STAYS),
            (json!({"key": "other", "operator": "Exists"}), STAYS),
            (json!({"key": "dedicated", "operator": "Gt", "value": "1"}), STAYS),
            (json!({"key": "dedicated", "operator": "Sometimes", "value": "db"}), STAYS),
            (json!({"key": "dedicated", "operator": "Exists", "effect": "Sometimes"}), STAYS),
            (json!("nonsense"), STAYS),
        ] {
            assert_eq!(fit(with(toleration.clone()), &["dedicated=db:NoSchedule"]), want, "{toleration}");
        }
    }

    #[test]
    fn what_cannot_be_read_about_nodes_is_named_and_is_not_the_same_as_no_node() {
        const TERMS: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let expression = |requirement: Value| affinity(json!([{}, { "matchExpressions": [requirement] }]));
        let zone = |operator: Value, values: Value| {
            let requirement = json!({"key": "zone", "operator": operator, "values": values});
            expression(requirement)
        };
        let field = |key: &str| affinity(json!([{"matchFields": [{"key": key, "operator": "In", "values": ["n"]}]}]));
        let operators = "is not known; want In, NotIn, Exists, DoesNotExist, Gt or Lt";
        let of_terms = |rest: &str| format!("{TERMS}{rest}");
        let of_second = |rest: &str| format!("{TERMS}[1].matchExpressions[0].{rest}");
        let no_list = "it cannot be read; want a list of one term or more";
        for (spec, wrong) in [
            (json!({}), String::new()),
            (json!({"affinity": "text"}), String::new()),
            (json!({"nodeSelector": {"zone": "nowhere"}}), String::new()),
            (json!({"nodeSelector": {"zone": null}}), String::new()),
            (json!({"nodeSelector": {"zone": 1}}), "nodeSelector[zone]: it cannot be read; want a string".into()),
            (json!({"nodeSelector": ["a"]}), "nodeSelector: it cannot be read; want labels with their values".into()),
            (affinity(json!("x")), of_terms(&format!(": {no_list}"))),
            (affinity(json!([])), of_terms(&format!(": {no_list}"))),
            (affinity(json!([{}, 3])), of_terms("[1]: it cannot be read; want matchExpressions or matchFields")),
            (affinity(json!([{"matchFields": {}}])), of_terms("[0].matchFields: it cannot be read; want a list")),
            (zone(json!("NotIn"), json!(["a"])), String::new()),
            (zone(json!("Gt"), json!(["many"])), String::new()),
            (zone(json!("Near"), json!(["a"])), of_second(&format!("operator: \"Near\" {operators}"))),
            (zone(json!(null), json!(["a"])), of_second(&format!("operator: \"\" {operators}"))),
            (zone(json!("In"), json!(null)), of_second("values: it is empty; want one value or more for In")),
            (zone(json!("Lt"), json!(["1", "2"])), of_second("values: it has 2 entries; want one value for Lt")),
            (zone(json!("In"), json!(["a", 1])), of_second("values: it cannot be read; want a list of strings")),
            (
                expression(json!({"operator": "Exists"})),
                of_second("key: it cannot be read; want the key of a label, or a field"),
            ),
            (field("metadata.name"), String::new()),
            (
                field("spec.unschedulable"),
                of_terms("[0].matchFields[0].key: \"spec.unschedulable\" is not known; want metadata.name"),
            ),
            (json!({"tolerations": [{"operator": "Sometimes", "effect": "Never"}]}), String::new()),
            (
                json!({"tolerations": [{"operator": "Exists"}, "nonsense"]}),
                "tolerations[1]: it cannot be read; want a toleration".into(),
            ),
            (
                json!({"tolerations": [{"operator": "Exists", "tolerationSeconds": "x"}]}),
                "tolerations[0]: it cannot be read; want a toleration".into(),
            ),
            (json!({"tolerations": {}}), "tolerations: it cannot be read; want a list".into()),
        ] {
            let found = unreadable(&json!({ "spec": spec.clone() }));
            let found = found.map(|(field, why)| format!("{field}: {why}")).unwrap_or_default();
            assert_eq!(found.trim_start_matches("spec.template.spec."), wrong, "{spec}");
        }
    }

    #[test]
    fn more_terms_requirements_or_tolerations_than_a_node_is_held_against_are_excess() {
        let exists = |i: usize| json!({"key": format!("k{i}"), "operator": "Exists"});
        let excess_of = |terms: Vec<Value>| {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            excess(&json!({"spec": {"affinity": {"nodeAffinity": required}}}))
        };
        let one_term = |requirements: usize| {
            let all: Vec<Value> = (0..requirements).map(exists).collect();
            vec![json!({"matchExpressions": all[..requirements / 2], "matchFields": all[requirements / 2..]})]
        };
        assert_eq!(excess_of(one_term(MOST - 1)), None);
        let (field, why) = excess_of(one_term(MOST)).unwrap();
        assert_eq!(
            field,
            "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        );
        assert_eq!(why, "it has 1001 terms and requirements in all; want up to 1000");
        assert_eq!(excess_of(vec![json!({}); MOST]), None);
        assert!(excess_of(vec![json!({}); MOST + 1]).is_some());
        let tolerating = |number: usize| excess(&json!({"spec": {"tolerations": vec![json!({}); number]}}));
        assert_eq!(
            (tolerating(MOST), tolerating(MOST + 1).unwrap().0),
            (None, "spec.template.spec.tolerations".into())
        );
        for odd in [json!(null), json!({"spec": null}), json!({"spec": {"affinity": "x", "tolerations": 3}})] {
            assert_eq!(excess(&odd), None, "{odd}");
        }
    }

    #[test]
    fn a_requirement_may_list_as_many_values_as_there_are_nodes() {
        let names: Vec<String> = (0..5_000).rev().map(|i| format!("node-{i}")).collect();
        let requirement = json!({"key": "host", "operator": "In", "values": names});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]});
        let template = json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}});
        assert_eq!(excess(&template), None);
        let placement = Placement::of(&template, &Value::Null);
        for (host, runs) in [("node-0", true), ("node-4999", true), ("node-77", true), ("node-5000", false)] {
            assert_eq!(placement.fit("n", &labels(json!({"host": host})), &[]).should_run, runs, "{host}");
        }
    }
}
