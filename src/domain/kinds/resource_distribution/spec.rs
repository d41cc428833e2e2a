//! What a ResourceDistribution asks for: one normalised spec, and what is wrong with one.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Namespace;

use super::content::{Content, Problem, ResourceKind};
use crate::{
    api::{
        apps::resource_distribution::{NamespaceNames, ResourceDistributionSpec, ResourceTargets},
        labels,
    },
    k8s::{
        invalid::Invalid,
        name::{WANT_LABEL, WANT_SUBDOMAIN, is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name},
        pod::Labels,
        selector::Selector,
        shared,
    },
};

/// What is distributed, and to whom.
#[derive(Clone, Debug, PartialEq)]
pub struct DistributionSpec {
    /// Its kind.
    pub kind: ResourceKind,
    /// The name of every copy, which can be one.
    pub name: String,
    /// Where the content comes from.
    pub source: Source,
    /// The namespaces.
    pub targets: TargetSpec,
}

/// Where the content of the copies comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// It stands in the spec.
    Inline(Arc<Content>),
    /// An object of the same kind and name in this namespace.
    Reference {
        /// Its namespace, which can be one.
        namespace: String,
    },
}

/// Which namespaces get a copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetSpec {
    all: bool,
    included: BTreeSet<String>,
    excluded: BTreeSet<String>,
    selector: Option<Selector>,
    /// The namespace of the source, which keeps the source.
    source: Option<String>,
}

/// What is known of a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceFacts {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// It wants no copies.
    pub refuses: bool,
    /// It is being deleted.
    pub is_ending: bool,
    /// Kruise runs there.
    pub is_own: bool,
}

/// A namespace as the store holds it, of which there may be thousands.
#[derive(Clone, Debug, Default)]
pub struct NamespaceView {
    /// Its UID.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: Box<str>,
    /// What the rules see.
    pub facts: NamespaceFacts,
}

impl NamespaceView {
    /// Of an object; `own` is the namespace that Kruise runs in.
    pub fn of(namespace: &Namespace, own: &str) -> Self {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        let meta = &namespace.metadata;
        let facts = NamespaceFacts::of(namespace, own);
        Self { uid: text(&meta.uid), version: text(&meta.resource_version), facts }
    }
}

/// What a namespace is to a ResourceDistribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is to have a copy.
    Target,
    /// It is wanted and refuses.
    Refused,
    /// It is not to have one.
    Outside,
    /// It has the object that is referred to, which may have been a copy before: it is neither written nor deleted.
    Source,
}

impl NamespaceFacts {
    /// Of an object; `own` is the namespace that Kruise runs in.
    pub fn of(namespace: &Namespace, own: &str) -> Self {
        let meta = &namespace.metadata;
        let name = shared::text(meta.name.as_deref().unwrap_or_default());
        let marks = [&meta.labels, &meta.annotations];
        let refuses = |key: &str| marks.iter().any(|map| map.iter().flatten().any(|(k, v)| k == key && v == "true"));
        let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
        let pairs = meta.labels.iter().flatten().map(|(key, value)| (key.as_str().into(), value.as_str().into()));
        Self {
            labels: Labels::from(pairs.collect::<Vec<_>>()),
            refuses: refuses(labels::REFUSE_DISTRIBUTION),
            is_ending: meta.deletion_timestamp.is_some() || phase == Some("Terminating"),
            is_own: &*name == own,
            name,
        }
    }
}

impl TargetSpec {
    /// As a stored object says it. What cannot be read selects nothing.
    pub fn of(spec: &ResourceDistributionSpec) -> Self {
        let names = |list: &Option<NamespaceNames>| -> BTreeSet<String> {
            list.iter().flat_map(|names| &names.list).map(|entry| entry.name.clone()).collect()
        };
        let targets = &spec.targets;
        let selector = targets.namespace_label_selector.as_ref().and_then(|selector| Selector::of(selector).ok());
        Self {
            all: targets.all_namespaces,
            included: names(&targets.included_namespaces),
            excluded: names(&targets.excluded_namespaces),
            // An empty one is unused, it does not select everything.
            selector: selector.filter(|selector| *selector != Selector::default()),
            source: spec.resource_ref.as_ref().map(|reference| reference.namespace.clone()),
        }
    }

    /// What a namespace is to it.
    pub fn relation(&self, namespace: &NamespaceFacts) -> Relation {
        let name = &*namespace.name;
        let selects = || self.selector.as_ref().is_some_and(|selector| selector.matches(&namespace.labels));
        let is_wanted = self.all || self.included.contains(name) || selects();
        if self.source.as_deref() == Some(name) {
            Relation::Source
        } else if !is_wanted || self.excluded.contains(name) {
            Relation::Outside
        } else if namespace.refuses || namespace.is_own {
            Relation::Refused
        } else {
            Relation::Target
        }
    }

    /// Namespaces that are named and to get a copy, whether they are there or not.
    pub fn named(&self) -> impl Iterator<Item = &String> {
        self.included.difference(&self.excluded).filter(|name| self.source.as_ref() != Some(name))
    }

    /// Whether no namespace can be meant.
    pub fn is_for_nobody(&self) -> bool {
        !self.all && self.selector.is_none() && self.named().next().is_none()
    }
}

impl DistributionSpec {
    /// From a stored object.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn of(spec: &ResourceDistributionSpec) -> Result<Self, Invalid> {
        let (read, problems) = read(spec);
        if let Some((field, message)) = problems.into_iter().next() {
            return Err(Invalid(format!("{field}: {message}")));
        }
        read.ok_or_else(|| Invalid("spec: it cannot be read".into()))
    }
}

/// Kind and name of what is distributed, if they can be some; cheaper than the whole.
pub fn identity(spec: &ResourceDistributionSpec) -> Option<(ResourceKind, &str)> {
    let (kind, name) = match (&spec.resource, &spec.resource_ref) {
        (Some(resource), None) => (resource["kind"].as_str()?, resource["metadata"]["name"].as_str()?),
        (None, Some(reference)) => (reference.kind.as_str(), reference.name.as_str()),
        _ => return None,
    };
    Some((ResourceKind::parse(kind)?, name)).filter(|(_, name)| is_dns_subdomain(name))
}

/// What is wrong with a spec.
pub fn problems(spec: &ResourceDistributionSpec) -> Vec<Problem> {
    read(spec).1
}

fn read(spec: &ResourceDistributionSpec) -> (Option<DistributionSpec>, Vec<Problem>) {
    let mut found = Vec::new();
    let source = match (&spec.resource, &spec.resource_ref) {
        (Some(resource), None) => match Content::of_resource(resource) {
            Ok(content) => Some((content.kind, content.name.clone(), Source::Inline(Arc::new(content)))),
            Err(problems) => {
                found.extend(problems);
                None
            }
        },
        (None, Some(reference)) => {
            let kind = ResourceKind::parse(&reference.kind);
            if kind.is_none() {
                let message = format!("{:?} is not allowed; want Secret or ConfigMap", reference.kind);
                found.push(("spec.resourceRef.kind".into(), message));
            }
            for (member, text, is_good, want) in [
                ("namespace", &reference.namespace, is_dns_label(&reference.namespace), WANT_LABEL),
                ("name", &reference.name, is_dns_subdomain(&reference.name), WANT_SUBDOMAIN),
            ] {
                if !is_good {
                    found.push((format!("spec.resourceRef.{member}"), not_allowed(text, want)));
                }
            }
            let source = Source::Reference { namespace: reference.namespace.clone() };
            kind.map(|kind| (kind, reference.name.clone(), source))
        }
        (one, _) => {
            let there = if one.is_some() { "both are" } else { "neither is" };
            found.push(("spec".into(), format!("want exactly one of resource and resourceRef; {there} there")));
            None
        }
    };
    found.extend(problems_of_targets(&spec.targets));
    let targets = TargetSpec::of(spec);
    (source.map(|(kind, name, source)| DistributionSpec { kind, name, source, targets }), found)
}

fn not_allowed(text: &str, want: &str) -> String {
    let shown: String = text.chars().take(80).collect();
    format!("{shown:?} is not allowed; want {want}")
}

fn problems_of_targets(targets: &ResourceTargets) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut included = BTreeSet::new();
    for (member, list) in
        [("includedNamespaces", &targets.included_namespaces), ("excludedNamespaces", &targets.excluded_namespaces)]
    {
        for (i, entry) in list.iter().flat_map(|names| &names.list).enumerate() {
            let field = format!("spec.targets.{member}.list[{i}].name");
            if !is_dns_label(&entry.name) {
                found.push((field, not_allowed(&entry.name, WANT_LABEL)));
            } else if member == "includedNamespaces" {
                included.insert(&entry.name);
            } else if included.contains(&entry.name) {
                found.push((field, format!("{:?} is in includedNamespaces too; want it in one of them", entry.name)));
            }
        }
    }
    let Some(selector) = &targets.namespace_label_selector else { return found };
    let at = "spec.targets.namespaceLabelSelector";
    let mut keys: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        keys.push((format!("{at}.matchLabels[{key}]"), key, vec![value]));
    }
    for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        let values: Vec<&str> = expression.values.iter().flatten().map(String::as_str).collect();
        match (expression.operator.as_str(), values.is_empty()) {
            ("In" | "NotIn", true) => {
                found.push((format!("{at}.values"), format!("it is missing; want values for {}", expression.operator)));
            }
            ("Exists" | "DoesNotExist", false) => {
                found.push((format!("{at}.values"), format!("not allowed with {}; leave it out", expression.operator)));
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => {
                found.push((format!("{at}.operator"), not_allowed(other, "In, NotIn, Exists or DoesNotExist")));
            }
        }
        keys.push((at, &expression.key, values));
    }
    for (at, key, values) in keys {
        if !is_qualified_name(key) {
            found.push((at.clone(), not_allowed(key, "the key of a label")));
        }
        let wrong = values.into_iter().filter(|value| !is_label_value(value));
        found.extend(wrong.map(|value| (at.clone(), not_allowed(value, "the value of a label"))));
    }
    found
}
