//! What the user names: `pod/web`, `deployment web api`, `crr/restart-1`, `app=web,tier in (a,b)`.

use std::ops::Deref;

use serde_json::{Value, json};

use super::{JsonPointer, exit::Stop};
use crate::{
    api::{
        group_of,
        kinds::{self, Command, Scope},
    },
    k8s::name::is_dns_subdomain,
};

/// A kind whose containers can be restarted: a Pod by a ContainerRecreateRequest, a workload or a SidecarSet by a
/// WorkloadRestart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(&'static kinds::Kind);

impl Deref for Kind {
    type Target = kinds::Kind;
    fn deref(&self) -> &kinds::Kind {
        self.0
    }
}

/// One thing to restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

impl Kind {
    /// Every such kind.
    pub fn all() -> impl Iterator<Item = Self> {
        kinds::KINDS.iter().filter(|kind| kind.command == Command::Restart).map(Self)
    }

    /// The kind that users call so.
    pub fn called(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.is_called(name))
    }

    /// The kind of an object.
    pub fn of(object: &Value) -> Option<Self> {
        let (group, kind) = (group_of(object.text("/apiVersion")), object.text("/kind"));
        Self::all().find(|known| (known.group, known.kind) == (group, kind))
    }
}

impl Target {
    /// Whether it is a Pod rather than a workload.
    pub fn is_pod(&self) -> bool {
        self.kind.kind == "Pod"
    }

    /// Whether it is of the cluster, with Pods in any namespace.
    pub fn is_of_cluster(&self) -> bool {
        self.kind.scope == Scope::Cluster
    }
}

/// Reads `TYPE/NAME...` or `TYPE NAME...` of something to restart.
///
/// # Errors
/// Naming the argument and what is allowed.
pub fn targets(arguments: &[String]) -> Result<Vec<Target>, Stop> {
    targets_among(arguments, &|_| true, "cannot be restarted")
}

/// The same for the kinds that fit; `otherwise` is the error for the others.
///
/// # Errors
/// Naming the argument and what is allowed.
pub fn targets_among(arguments: &[String], fits: &dyn Fn(&Kind) -> bool, otherwise: &str) -> Result<Vec<Target>, Stop> {
    let names: Vec<String> = Kind::all().filter(|kind| fits(kind)).map(|kind| kind.name()).collect();
    let known = names.join(", ");
    let mut found: Vec<Target> = Vec::new();
    for (type_, name) in pairs(arguments)? {
        let Some(type_) = type_ else {
            return Err(Stop::usage(format!(
                "{name:?}: want TYPE/NAME, for example {}/{name}; types are {known}",
                names.first().map_or("pod", String::as_str)
            )));
        };
        let Some(kind) = Kind::called(&type_).filter(|kind| fits(kind)) else {
            return Err(Stop::usage(format!("{type_:?} {otherwise}; want one of {known}")));
        };
        let target = Target { kind, name: valid_name(&name)? };
        if !found.contains(&target) {
            found.push(target);
        }
    }
    Ok(found)
}

/// What `status`, `describe` and `cancel` look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A request of the kind, or of either kind.
    Request {
        /// None: a ContainerRecreateRequest or a WorkloadRestart.
        kind: Option<&'static str>,
        /// Its name.
        name: String,
    },
    /// The requests for a Pod.
    Pod(String),
}

/// Reads `NAME...`, `crr/NAME...`, `wr/NAME...` or `pod/NAME...`.
///
/// # Errors
/// Naming the argument and what is allowed.
pub fn subjects(arguments: &[String]) -> Result<Vec<Subject>, Stop> {
    let one = |argument: &String| {
        let Some((type_, name)) = argument.split_once('/') else {
            return Ok(Subject::Request { kind: None, name: valid_name(argument)? });
        };
        let name = valid_name(name)?;
        if Kind::called(type_).is_some_and(|kind| kind.kind == "Pod") {
            return Ok(Subject::Pod(name));
        }
        let mut requests = kinds::KINDS.iter().filter(|kind| kind.command == Command::Request);
        match requests.find(|kind| kind.is_called(type_)) {
            Some(kind) => Ok(Subject::Request { kind: Some(kind.kind), name }),
            None => {
                Err(Stop::usage(format!("{argument:?}: want the NAME of a request, crr/NAME, wr/NAME or pod/NAME")))
            }
        }
    };
    arguments.iter().map(one).collect()
}

/// Type and name of each argument. A first argument without a slash names the type of all, if others follow.
fn pairs(arguments: &[String]) -> Result<Vec<(Option<String>, String)>, Stop> {
    if let [type_, names @ ..] = arguments
        && !names.is_empty()
        && !type_.contains('/')
    {
        if let Some(mixed) = names.iter().find(|name| name.contains('/')) {
            return Err(Stop::usage(format!("{mixed:?} after {type_:?}: want either TYPE NAME... or TYPE/NAME...")));
        }
        return Ok(names.iter().map(|name| (Some(type_.clone()), name.clone())).collect());
    }
    let split = |argument: &String| match argument.split_once('/') {
        Some((type_, name)) => (Some(type_.to_owned()), name.to_owned()),
        None => (None, argument.clone()),
    };
    Ok(arguments.iter().map(split).collect())
}

fn valid_name(name: &str) -> Result<String, Stop> {
    if is_dns_subdomain(name) {
        return Ok(name.to_owned());
    }
    Err(Stop::usage(format!(
        "{name:?} cannot be a name; a name has up to 253 lower-case letters, digits, '-' and '.', and starts and ends with a letter or digit"
    )))
}

/// Reads a label selector as kubectl takes it: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
///
/// # Errors
/// Naming the part that cannot be read.
pub fn selector(text: &str) -> Result<Value, Stop> {
    let mut labels = serde_json::Map::new();
    let mut expressions = Vec::new();
    for part in split_outside_brackets(text) {
        let part = part.trim();
        match condition(part) {
            None => {
                return Err(Stop::usage(format!(
                    "--selector: {part:?} cannot be read; want KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY"
                )));
            }
            Some(LabelCondition::Equals(key, value)) => match labels.insert(key.to_owned(), json!(value)) {
                Some(before) if before != *value => {
                    return Err(Stop::usage(format!("--selector: {key} cannot be {before} and {value:?} at once")));
                }
                _ => {}
            },
            Some(LabelCondition::Expression(key, operator, values)) => {
                let mut made = json!({ "key": key, "operator": operator });
                if !values.is_empty() {
                    made["values"] = json!(values);
                }
                expressions.push(made);
            }
        }
    }
    let mut made = json!({});
    if !labels.is_empty() {
        made["matchLabels"] = labels.into();
    }
    if !expressions.is_empty() {
        made["matchExpressions"] = expressions.into();
    }
    Ok(made)
}

/// One part of a label selector.
enum LabelCondition<'t> {
    /// A key and its value, for matchLabels.
    Equals(&'t str, &'t str),
    /// Key, operator and values, for matchExpressions.
    Expression(&'t str, &'static str, Vec<&'t str>),
}

/// None: it cannot be read.
fn condition(part: &str) -> Option<LabelCondition<'_>> {
    let made = if let Some((head, values)) = part.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
        let mut words = head.split_whitespace();
        let (key, operator) = match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => (key, "In"),
            (Some(key), Some("notin"), None) => (key, "NotIn"),
            _ => return None,
        };
        LabelCondition::Expression(key, operator, values.split(',').map(str::trim).collect())
    } else if let Some((key, value)) = part.split_once("!=") {
        LabelCondition::Expression(key.trim(), "NotIn", vec![value.trim()])
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        LabelCondition::Equals(key.trim(), value.trim())
    } else if let Some(key) = part.strip_prefix('!') {
        LabelCondition::Expression(key.trim(), "DoesNotExist", Vec::new())
    } else {
        LabelCondition::Expression(part, "Exists", Vec::new())
    };
    let is_readable = match &made {
        LabelCondition::Equals(key, value) => is_key(key) && is_value(value),
        LabelCondition::Expression(key, _, values) => is_key(key) && values.iter().all(|value| is_value(value)),
    };
    is_readable.then_some(made)
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Rough: the API server judges for good. This only keeps operators and blanks from passing as names.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}

fn is_value(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::rules::exit::Exit;

    fn strings(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn targets_are_read_as_kubectl_reads_them() {
        for (line, expected) in [
            ("pod/web", "v1 Pod web"),
            ("po/web-0.x", "v1 Pod web-0.x"),
            ("pod web api", "v1 Pod web, v1 Pod api"),
            ("pod/web pod/web deploy/api", "v1 Pod web, apps/v1 Deployment api"),
            ("Deployment.apps/api", "apps/v1 Deployment api"),
            ("sts/db", "apps/v1 StatefulSet db"),
            ("statefulset.apps.kruise.io/db", "apps.kruise.io/v1beta1 StatefulSet db"),
            ("clone/web", "apps.kruise.io/v1alpha1 CloneSet web"),
        ] {
            let found = targets(&strings(line)).unwrap();
            let text: Vec<String> =
                found.iter().map(|t| format!("{} {} {}", t.kind.api_version(), t.kind.kind, t.name)).collect();
            assert_eq!(text.join(", "), expected, "{line}");
        }
        for (line, words) in [
            ("web", "want TYPE/NAME, for example pod/web"),
            ("service/web", "\"service\" cannot be restarted; want one of pod, deployment, replicaset, statefulset"),
            ("pod pod/web", "want either TYPE NAME... or TYPE/NAME..."),
            ("pod/Web", "\"Web\" cannot be a name"),
            ("pod/", "\"\" cannot be a name"),
            ("pod/a/b", "\"a/b\" cannot be a name"),
        ] {
            let stop = targets(&strings(line)).unwrap_err();
            assert!(stop.exit == Exit::Usage && stop.message.contains(words), "{line}: {stop}");
        }
    }

    #[test]
    fn requests_are_named_with_or_without_their_kind() {
        let found = subjects(&strings("a crr/b wr/c pod/d")).unwrap();
        let request = |kind, name: &str| Subject::Request { kind, name: name.into() };
        assert_eq!(
            found,
            [
                request(None, "a"),
                request(Some("ContainerRecreateRequest"), "b"),
                request(Some("WorkloadRestart"), "c"),
                Subject::Pod("d".into())
            ]
        );
        assert_eq!(subjects(&strings("deploy/x")).unwrap_err().exit, Exit::Usage);
        assert_eq!(subjects(&strings("../x")).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn selectors_of_every_form_are_read() {
        let read = |text: &str| selector(text).unwrap();
        assert_eq!(read("a=b, c.d/e==f"), json!({ "matchLabels": { "a": "b", "c.d/e": "f" } }));
        assert_eq!(
            read("a in (b, c),d notin (e),f!=g,h,!i"),
            json!({ "matchExpressions": [
                { "key": "a", "operator": "In", "values": ["b", "c"] },
                { "key": "d", "operator": "NotIn", "values": ["e"] },
                { "key": "f", "operator": "NotIn", "values": ["g"] },
                { "key": "h", "operator": "Exists" },
                { "key": "i", "operator": "DoesNotExist" }] })
        );
        for bad in ["", "a=b,", "=b", "a in b", "a of (b)", "a=b c", "a=b,a=c", "a in (b", "!"] {
            assert_eq!(selector(bad).unwrap_err().exit, Exit::Usage, "{bad:?}");
        }
    }
}
