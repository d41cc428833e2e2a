//! Label selectors against the labels of a [`PodView`](super::pod::PodView).

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{
    invalid::{Invalid, InvalidField},
    name::{LONGEST_LABEL, is_label_value, is_qualified_name},
    pod::Labels,
};

/// A selector; without requirements it matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    /// From the form that objects have.
    ///
    /// # Errors
    /// Naming the operator that is not known.
    pub fn of(selector: &LabelSelector) -> Result<Self, Invalid> {
        let labels = selector.match_labels.iter().flatten();
        let mut all: Vec<Requirement> =
            labels.map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()])).collect();
        for expression in selector.match_expressions.iter().flatten() {
            let (key, values) = (expression.key.clone(), expression.values.clone().unwrap_or_default());
            all.push(match expression.operator.as_str() {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                other => {
                    return Err(Invalid(format!(
                        "matchExpressions: operator {other:?} of key {key:?} is not known; want In, NotIn, Exists or DoesNotExist"
                    )));
                }
            });
        }
        Ok(Self::sorted(all))
    }

    /// Values can be as many as an object has room for, and labels of many objects are compared with them.
    fn sorted(mut all: Vec<Requirement>) -> Self {
        for requirement in &mut all {
            if let Requirement::In(_, values) | Requirement::NotIn(_, values) = requirement {
                values.sort_unstable();
            }
        }
        Self(all)
    }

    /// From the text that a scale subresource has: `app=web,tier in (a, b),!old`.
    ///
    /// # Errors
    /// Quoting the part that cannot be read.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut all = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A comma inside brackets belongs to the part.
            let mut depth = 0;
            let end = rest.find(|c: char| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                c == ',' && depth == 0
            });
            let (part, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
            all.push(
                requirement(part.trim())
                    .ok_or_else(|| Invalid(format!("selector {text:?}: {part:?} cannot be read")))?,
            );
            rest = after.trim();
        }
        Ok(Self::sorted(all))
    }

    /// A label that whatever fits has, and the values that it may have: enough to find candidates by.
    pub fn required_label(&self) -> Option<(&str, &[String])> {
        self.0.iter().find_map(|requirement| match requirement {
            Requirement::In(key, values) => Some((key.as_str(), values.as_slice())),
            Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => None,
        })
    }

    /// The values that a label of whatever fits may have; None: any, or none at all.
    pub fn values_of(&self, key: &str) -> Option<Vec<&str>> {
        let lists = self.0.iter().filter_map(|requirement| match requirement {
            Requirement::In(of, values) if of == key => Some(values),
            _ => None,
        });
        let mut lists = lists.map(|values| values.iter().map(String::as_str).collect::<Vec<_>>());
        let first = lists.next()?;
        Some(lists.fold(first, |both, values| both.into_iter().filter(|value| values.contains(value)).collect()))
    }

    /// Whether it looks at no other label.
    pub fn names_only(&self, key: &str) -> bool {
        self.0.iter().all(|requirement| requirement.key() == key)
    }

    /// Whether no labels fit both: a label that both name has values for one of them only.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.key() == b.key() && !a.fits_beside(b)))
    }

    /// The labels that it looks at.
    pub fn keys(&self) -> BTreeSet<&str> {
        self.0.iter().map(Requirement::key).collect()
    }

    /// Whether it names nothing, and so matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether labels fit.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| has(values, value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !has(values, value)),
            Requirement::Exists(key) => labels.get(key).is_some(),
            Requirement::DoesNotExist(key) => labels.get(key).is_none(),
        })
    }
}

/// Whether a sorted list has a value.
fn has(values: &[String], value: &str) -> bool {
    values.binary_search_by(|other| other.as_str().cmp(value)).is_ok()
}

impl Requirement {
    fn key(&self) -> &str {
        match self {
            Self::In(key, _) | Self::NotIn(key, _) | Self::Exists(key) | Self::DoesNotExist(key) => key,
        }
    }

    /// Whether a label may fit both, which are about the same one.
    fn fits_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::In(_, a), Self::In(_, b)) => a.iter().any(|value| has(b, value)),
            (Self::In(_, a), Self::NotIn(_, b)) | (Self::NotIn(_, b), Self::In(_, a)) => {
                a.iter().any(|value| !has(b, value))
            }
            (Self::DoesNotExist(_), Self::In(..) | Self::Exists(_))
            | (Self::In(..) | Self::Exists(_), Self::DoesNotExist(_)) => false,
            (
                Self::In(..) | Self::NotIn(..) | Self::Exists(_) | Self::DoesNotExist(_),
                Self::In(..) | Self::NotIn(..) | Self::Exists(_) | Self::DoesNotExist(_),
            ) => true,
        }
    }
}

/// What admission refuses in a selector that has to select something, by the fields below `at`.
pub fn problems(selector: &LabelSelector, at: &str) -> Vec<InvalidField> {
    let mut found = term_problems(selector, at);
    let has_labels = selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty());
    if !has_labels && selector.match_expressions.as_ref().is_none_or(Vec::is_empty) {
        let why = "it is empty; want matchLabels or matchExpressions: an empty selector matches every Pod";
        found.push(InvalidField { field: at.to_owned(), why: why.to_owned() });
    }
    found
}

/// The same for a selector that may be empty.
pub fn term_problems(selector: &LabelSelector, at: &str) -> Vec<InvalidField> {
    let mut found = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        found.extend(label_problems(&format!("{at}.matchLabels[{key}]"), key, &[value]));
    }
    for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        let values = expression.values.as_deref().unwrap_or_default();
        let operator = expression.operator.as_str();
        let wrong = match (operator, values) {
            ("In" | "NotIn", []) => Some(("values", format!("it is missing; want values for operator {operator}"))),
            ("Exists" | "DoesNotExist", [_, ..]) => {
                Some(("values", format!("not allowed with operator {operator}; leave it out")))
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => None,
            _ => {
                let why = format!("{} is not allowed; want In, NotIn, Exists or DoesNotExist", shown(operator));
                Some(("operator", why))
            }
        };
        found.extend(wrong.map(|(field, why)| InvalidField { field: format!("{at}.{field}"), why }));
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        found.extend(label_problems(&at, &expression.key, &values));
    }
    found
}

/// What is wrong with the key of a label and its values.
pub fn label_problems(at: &str, key: &str, values: &[&str]) -> Vec<InvalidField> {
    let allowed = || format!("want up to {LONGEST_LABEL} letters, digits, '-', '_' and '.'");
    let mut found = Vec::new();
    let mut deny = |why: String| found.push(InvalidField { field: at.to_owned(), why });
    if !is_qualified_name(key) {
        deny(format!(
            "{} is not allowed as the key of a label; {}, perhaps after a domain and '/'",
            shown(key),
            allowed()
        ));
    }
    for value in values.iter().filter(|value| !is_label_value(value)) {
        deny(format!("{} is not allowed as the value of a label; {}", shown(value), allowed()));
    }
    found
}

/// A text as messages show it.
fn shown(text: &str) -> String {
    let quoted = format!("{text:?}");
    let short: String = quoted.chars().take(80).collect();
    if short.len() < quoted.len() { format!("{short}...") } else { short }
}

/// A selector as text, as `status.labelSelector` and list calls have it: by key, like the API server writes it.
pub fn text_of(selector: &LabelSelector) -> String {
    let mut parts: Vec<(&str, String)> =
        selector.match_labels.iter().flatten().map(|(key, value)| (key.as_str(), format!("{key}={value}"))).collect();
    for expression in selector.match_expressions.iter().flatten() {
        let key = &expression.key;
        let mut values = expression.values.clone().unwrap_or_default();
        values.sort();
        let values = values.join(",");
        let text = match expression.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        };
        parts.push((key, text));
    }
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

fn requirement(text: &str) -> Option<Requirement> {
    let word = |text: &str| {
        let text = text.trim();
        let good = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        text.chars().all(good).then(|| text.to_owned())
    };
    let key = |text: &str| word(text).filter(|key| !key.is_empty());
    if let Some((name, list)) = text.split_once('(') {
        let values = list.strip_suffix(')')?.split(',').map(word).collect::<Option<Vec<_>>>()?;
        return match name.split_whitespace().collect::<Vec<_>>().as_slice() {
            [name, "in"] => Some(Requirement::In(key(name)?, values)),
            [name, "notin"] => Some(Requirement::NotIn(key(name)?, values)),
            _ => None,
        };
    }
    if let Some((name, value)) = text.split_once("!=") {
        return Some(Requirement::NotIn(key(name)?, vec![word(value)?]));
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Requirement::In(key(name)?, vec![word(value)?]));
    }
    match text.strip_prefix('!') {
        Some(name) => Some(Requirement::DoesNotExist(key(name)?)),
        None => Some(Requirement::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn labels() -> Labels {
        serde_json::from_value(json!({"app": "web", "tier": "a"})).unwrap()
    }

    #[test]
    fn the_form_of_objects_is_understood() {
        for (selector, want) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "b"}}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["c", "a", "b"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["c", "a", "b"]}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "none", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}), true),
        ] {
            let parsed: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(Selector::of(&parsed).unwrap().matches(&labels()), want, "{selector}");
        }
        let odd = serde_json::from_value(json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]})).unwrap();
        assert!(Selector::of(&odd).unwrap_err().0.contains("\"Gt\""));
    }

    #[test]
    fn what_admission_refuses_is_named_with_field_value_and_what_is_allowed() {
        let expression = |expression: Value| json!({"matchExpressions": [expression]});
        for (selector, field, why) in [
            (json!({"matchLabels": {"app": "web"}}), "", ""),
            (expression(json!({"key": "a", "operator": "NotIn", "values": ["x", ""]})), "", ""),
            (json!({}), "s", "it is empty"),
            (json!({"matchLabels": {}, "matchExpressions": []}), "s", "it is empty"),
            (json!({"matchLabels": {"a b": "x"}}), "s.matchLabels[a b]", "\"a b\" is not allowed as the key"),
            (json!({"matchLabels": {"a": "x y"}}), "s.matchLabels[a]", "\"x y\" is not allowed as the value"),
            (expression(json!({"key": "a", "operator": "Gt"})), "s.matchExpressions[0].operator", "\"Gt\" is not"),
            (expression(json!({"key": "a", "operator": "In"})), "s.matchExpressions[0].values", "operator In"),
            (
                expression(json!({"key": "a", "operator": "Exists", "values": ["x"]})),
                "s.matchExpressions[0].values",
                "not allowed with operator Exists",
            ),
            (expression(json!({"key": "", "operator": "Exists"})), "s.matchExpressions[0]", "as the key of a label"),
        ] {
            let found = problems(&serde_json::from_value(selector.clone()).unwrap(), "s");
            assert_eq!(found.len(), usize::from(!field.is_empty()), "{selector} {found:?}");
            assert!(found.iter().all(|found| found.field == field && found.why.contains(why)), "{selector} {found:?}");
        }
        assert_eq!(term_problems(&LabelSelector::default(), "s"), [], "it may be empty");
        let long = label_problems("s", &"x".repeat(200), &[]).remove(0).why;
        assert!(long.contains("x... is not allowed"), "{long}");
    }

    #[test]
    fn the_text_of_a_selector_is_that_of_the_api_server() {
        let selector: LabelSelector =
            serde_json::from_value(json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
            {"key": "d", "operator": "DoesNotExist"}, {"key": "c", "operator": "In", "values": ["y", "x"]},
            {"key": "aa", "operator": "Exists"}, {"key": "z", "operator": "NotIn", "values": ["q"]}]}))
            .unwrap();
        let text = text_of(&selector);
        assert_eq!(text, "a=1,aa,b=2,c in (x,y),!d,z notin (q)");
        assert_eq!(text_of(&LabelSelector::default()), "");
        assert!(Selector::parse(&text).is_ok());
    }

    #[test]
    fn the_text_of_a_scale_subresource_is_understood() {
        for (text, want) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=b", true),
            ("tier in (a, b), app", true),
            ("tier notin (a,b)", false),
            ("!app", false),
            ("!none,app in (web)", true),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels()), want, "{text}");
        }
        for bad in ["a>1", "=x", "a in (b", "a on (b)", "a=b,,c"] {
            assert!(Selector::parse(bad).unwrap_err().0.contains("cannot be read"), "{bad}");
        }
    }
}
