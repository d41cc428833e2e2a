//! An index that finds the budgets of a Pod.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    api::policy::pod_unavailable_budget::PodUnavailableBudgetSpec,
    k8s::{pod::Labels, selector::Selector},
};

/// Which Pods a budget covers. An object stored before the schema was installed may have both; targetRef wins.
#[derive(Clone, Debug, PartialEq)]
pub enum Cover {
    /// Those of a workload.
    Target {
        /// API group; the version does not count.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    },
    /// Those with fitting labels.
    Selector(Selector),
    /// None, and why.
    Nothing(String),
}

impl Cover {
    /// What a spec says.
    pub fn of(spec: &PodUnavailableBudgetSpec) -> Self {
        if let Some(target) = &spec.target_ref {
            let group = target.group().to_owned();
            return Self::Target { group, kind: target.kind.clone(), name: target.name.clone() };
        }
        match spec.selector.as_ref().map(Selector::of) {
            Some(Ok(selector)) if !selector.is_empty() => Self::Selector(selector),
            Some(Err(error)) => Self::Nothing(format!("spec.selector: {error}")),
            // Stored past the schema. An empty selector never means all.
            Some(Ok(_)) | None => Self::Nothing("spec: neither targetRef nor a selector with labels".to_owned()),
        }
    }
}

type Names = Vec<Arc<str>>;

#[derive(Default)]
struct InNamespace {
    covers: HashMap<Arc<str>, Cover>,
    by_target: HashMap<(String, String, String), Names>,
    by_label: HashMap<(String, String), Names>,
    /// Selectors that require no label with a certain value.
    others: Names,
}

/// The budgets of all namespaces by what they cover.
#[derive(Default)]
pub struct Index {
    namespaces: HashMap<Arc<str>, InNamespace>,
}

impl Index {
    /// Adds a budget, or notes a change of it.
    pub fn insert(&mut self, namespace: &str, name: &str, cover: Cover) {
        if self.namespaces.get(namespace).and_then(|known| known.covers.get(name)) == Some(&cover) {
            return;
        }
        self.remove(namespace, name);
        let known = self.namespaces.entry(namespace.into()).or_default();
        let budget: Arc<str> = name.into();
        match &cover {
            Cover::Target { group, kind, name } => {
                known.by_target.entry((group.clone(), kind.clone(), name.clone())).or_default().push(budget.clone());
            }
            Cover::Selector(selector) => match selector.required_label() {
                Some((key, values)) => {
                    for value in values.iter().collect::<BTreeSet<_>>() {
                        known.by_label.entry((key.to_owned(), value.clone())).or_default().push(budget.clone());
                    }
                }
                None => known.others.push(budget.clone()),
            },
            Cover::Nothing(_) => {}
        }
        known.covers.insert(budget, cover);
    }

    /// Forgets a budget.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        let Some(known) = self.namespaces.get_mut(namespace) else { return };
        if known.covers.remove(name).is_none() {
            return;
        }
        for names in known.by_target.values_mut().chain(known.by_label.values_mut()).chain([&mut known.others]) {
            names.retain(|other| &**other != name);
        }
        known.by_target.retain(|_, names| !names.is_empty());
        known.by_label.retain(|_, names| !names.is_empty());
        if known.covers.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// The namespaces that have a budget.
    pub fn namespaces(&self) -> BTreeSet<String> {
        self.namespaces.keys().map(|name| (**name).to_owned()).collect()
    }

    /// Whether a namespace has a budget.
    pub fn has(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Whether a namespace has a budget for a workload.
    pub fn has_targets(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|known| !known.by_target.is_empty())
    }

    /// What a budget covers.
    pub fn cover(&self, namespace: &str, name: &str) -> Option<&Cover> {
        self.namespaces.get(namespace)?.covers.get(name)
    }

    /// The budgets whose selector fits, by name.
    pub fn selecting(&self, namespace: &str, labels: &Labels) -> Names {
        let Some(known) = self.namespaces.get(namespace) else { return Names::new() };
        let fits = |name: &&Arc<str>| match known.covers.get(&***name) {
            Some(Cover::Selector(selector)) => selector.matches(labels),
            _ => false,
        };
        let by_label =
            labels.iter().filter_map(|(key, value)| known.by_label.get(&(key.to_owned(), value.to_owned()))).flatten();
        let found: BTreeSet<Arc<str>> = by_label.chain(&known.others).filter(fits).cloned().collect();
        found.into_iter().collect()
    }

    /// The budgets for a workload, by name.
    pub fn targeting(&self, namespace: &str, group: &str, kind: &str, name: &str) -> Names {
        let Some(known) = self.namespaces.get(namespace) else { return Names::new() };
        let key = (group.to_owned(), kind.to_owned(), name.to_owned());
        let mut names = known.by_target.get(&key).cloned().unwrap_or_default();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(spec: Value) -> PodUnavailableBudgetSpec {
        serde_json::from_value(spec).unwrap()
    }
    fn labels(labels: Value) -> Labels {
        serde_json::from_value(labels).unwrap()
    }
    fn names(names: &[Arc<str>]) -> Vec<&str> {
        names.iter().map(|name| &**name).collect()
    }

    #[test]
    fn a_pod_finds_its_budgets_by_labels_and_by_workload() {
        let mut index = Index::default();
        let mut add = |name: &str, json: Value| index.insert("a", name, Cover::of(&spec(json)));
        add("web", json!({"selector": {"matchLabels": {"app": "web"}}}));
        add(
            "both",
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db", "web"]}]}}),
        );
        add("all-but", json!({"selector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}}));
        add("narrow", json!({"selector": {"matchLabels": {"app": "web", "tier": "x"}}}));
        add("set", json!({"targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}}));
        let found = index.selecting("a", &labels(json!({"app": "web"})));
        assert_eq!(names(&found), ["all-but", "both", "web"]);
        assert_eq!(names(&index.selecting("a", &labels(json!({"app": "db", "skip": ""})))), ["both"]);
        assert_eq!(names(&index.selecting("b", &labels(json!({"app": "web"})))), [""; 0]);
        // The version does not count, the group does.
        assert_eq!(names(&index.targeting("a", "apps.kruise.io", "CloneSet", "web")), ["set"]);
        assert_eq!(names(&index.targeting("a", "apps", "CloneSet", "web")), [""; 0]);
        index.remove("a", "both");
        assert_eq!(names(&index.selecting("a", &labels(json!({"app": "db", "skip": ""})))), [""; 0]);
        for name in ["web", "all-but", "narrow", "set"] {
            assert!(index.has("a"));
            index.remove("a", name);
        }
        assert!(!index.has("a"));
    }

    #[test]
    fn b9_an_empty_selector_never_means_all() {
        let mut index = Index::default();
        index.insert("a", "empty", Cover::of(&spec(json!({"selector": {}}))));
        index.insert("a", "none", Cover::of(&spec(json!({}))));
        assert!(index.selecting("a", &labels(json!({"app": "web"}))).is_empty());
    }

    #[test]
    fn of_both_stored_before_the_schema_the_target_wins() {
        let both = spec(json!({"selector": {"matchLabels": {"app": "web"}},
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}));
        assert!(matches!(Cover::of(&both), Cover::Target { .. }));
    }
}
