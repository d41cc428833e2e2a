//! Which SidecarSets are for a Pod: the rule, and an index by namespace and label over very many of them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::k8s::{invalid::Invalid, name::is_dns_label, pod::Labels, selector::Selector, shared};

/// The label that the API server keeps on every Namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Which Pods a SidecarSet is for. The default is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aim {
    pods: Selector,
    /// None: all.
    namespaces: Option<Selector>,
}

/// What is known of the labels of a Namespace.
#[derive(Clone, Copy, Debug)]
pub struct Namespace<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels; None: not known.
    pub labels: Option<&'a Labels>,
}

/// Whether a SidecarSet is for a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The labels of the Namespace decide, and are not known.
    NamespaceUnknown,
}

impl Aim {
    /// From the spec of a SidecarSet. `namespace`, of v1alpha1, wins over `namespaceSelector`.
    ///
    /// # Errors
    /// A selector cannot be read.
    pub fn of(spec: &Value) -> Result<Self, Invalid> {
        let selector = |field: &str| -> Result<Option<Selector>, Invalid> {
            let value = &spec[field];
            if value.is_null() {
                return Ok(None);
            }
            let bad = |why: String| Invalid(format!("spec.{field}: {why}"));
            let selector = LabelSelector::deserialize(value).map_err(|error| bad(error.to_string()))?;
            Selector::of(&selector).map(Some).map_err(|Invalid(why)| bad(why))
        };
        let namespaces = match spec["namespace"].as_str().filter(|name| !name.is_empty()) {
            Some(name) => {
                let labels = [(NAMESPACE_NAME.to_owned(), name.to_owned())].into();
                Some(Selector::of(&LabelSelector { match_labels: Some(labels), ..LabelSelector::default() })?)
            }
            None => selector("namespaceSelector")?,
        };
        Ok(Self { pods: selector("selector")?.unwrap_or_default(), namespaces })
    }

    /// From one that cannot be read: for no Pod, with the namespaces if those can be read.
    pub fn of_namespaces(spec: &Value) -> Self {
        let namespaces = json!({"namespace": spec["namespace"], "namespaceSelector": spec["namespaceSelector"]});
        Self::of(&namespaces).unwrap_or_default()
    }

    /// Whether it is for a Pod with these labels. An empty selector is for none.
    pub fn fits(&self, namespace: Namespace<'_>, labels: &Labels) -> Match {
        if self.is_for_nobody() || !self.pods.matches(labels) {
            return Match::No;
        }
        self.is_for(namespace)
    }

    /// Whether it is for no Pod at all, because its selector is empty.
    pub fn is_for_nobody(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether it is for Pods of a namespace.
    pub fn is_for(&self, namespace: Namespace<'_>) -> Match {
        let Some(namespaces) = &self.namespaces else { return Match::Yes };
        let is_for = |labels: &Labels| if namespaces.matches(labels) { Match::Yes } else { Match::No };
        if let Some(labels) = namespace.labels {
            return is_for(labels);
        }
        let name = Labels::from(vec![(NAMESPACE_NAME.into(), namespace.name.into())]);
        match namespaces.names_only(NAMESPACE_NAME) {
            true => is_for(&name),
            // Its name may rule it out nevertheless.
            false if namespaces.values_of(NAMESPACE_NAME).is_some_and(|names| !names.contains(&namespace.name)) => {
                Match::No
            }
            false => Match::NamespaceUnknown,
        }
    }

    /// Whether no Pod can be meant by both, as far as their selectors tell.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let namespaces = self.namespaces.as_ref().zip(other.namespaces.as_ref());
        // An empty selector is for no Pod.
        self.pods.is_empty()
            || other.pods.is_empty()
            || self.pods.is_disjoint(&other.pods)
            || namespaces.is_some_and(|(own, other)| own.is_disjoint(other))
    }

    /// The namespaces that it is for, where it names them; None: it may be for any. Names that no Namespace can have are left
    /// out: the registration of the webhook puts these names into an expression.
    pub fn namespaces(&self) -> Option<BTreeSet<&str>> {
        let names = self.namespaces.as_ref()?.values_of(NAMESPACE_NAME)?;
        Some(names.into_iter().filter(|name| is_dns_label(name)).collect())
    }
}

/// Under which label a SidecarSet is found: one that all its Pods have, with one of its values; None: any Pod.
type Key = Option<(Arc<str>, Arc<str>)>;
/// A namespace, None: any; and a label.
type Place = (Option<Arc<str>>, Key);

/// A SidecarSet that would be in more places is looked at for every Pod.
const MOST_PLACES: usize = 4096;

/// SidecarSets by namespace and label. What is in it is told apart by its name.
#[derive(Debug)]
pub struct Index<T> {
    anywhere: ByLabel<T>,
    by_namespace: HashMap<Arc<str>, ByLabel<T>>,
    places: HashMap<Arc<str>, (T, Vec<Place>)>,
}

/// SidecarSets by label.
#[derive(Debug)]
struct ByLabel<T> {
    any: Vec<T>,
    by_label: HashMap<Arc<str>, HashMap<Arc<str>, Vec<T>>>,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { anywhere: ByLabel::default(), by_namespace: HashMap::new(), places: HashMap::new() }
    }
}

impl<T> Default for ByLabel<T> {
    fn default() -> Self {
        Self { any: Vec::new(), by_label: HashMap::new() }
    }
}

impl<T: Clone + AsRef<str>> ByLabel<T> {
    fn insert(&mut self, key: &Key, set: &T) {
        let sets = match key {
            None => &mut self.any,
            Some((label, value)) => self.by_label.entry(label.clone()).or_default().entry(value.clone()).or_default(),
        };
        sets.push(set.clone());
    }

    fn remove(&mut self, key: &Key, name: &str) {
        let is_other = |set: &T| set.as_ref() != name;
        let Some((label, value)) = key else { return self.any.retain(is_other) };
        let Some(by_value) = self.by_label.get_mut(label) else { return };
        if let Some(sets) = by_value.get_mut(value) {
            sets.retain(is_other);
            if sets.is_empty() {
                by_value.remove(value);
            }
        }
        if by_value.is_empty() {
            self.by_label.remove(label);
        }
    }

    fn is_empty(&self) -> bool {
        self.any.is_empty() && self.by_label.is_empty()
    }

    fn of<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a T> {
        let labelled = labels.iter().filter_map(|(label, value)| self.by_label.get(label)?.get(value));
        self.any.iter().chain(labelled.flatten())
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.any.iter().chain(self.by_label.values().flat_map(HashMap::values).flatten())
    }
}

impl<T: Clone + AsRef<str>> Index<T> {
    /// Puts a SidecarSet in, in the place of one of the same name. True: what [`Self::namespaces`] says has changed.
    pub fn insert(&mut self, set: &T, aim: &Aim) -> bool {
        let name = set.as_ref();
        let was_nowhere = self.anywhere.is_empty();
        let mut gone = self.take(name);
        if aim.is_for_nobody() {
            return !gone.is_empty() || was_nowhere != self.anywhere.is_empty();
        }
        let namespaces: Vec<Option<Arc<str>>> = match aim.namespaces() {
            None => vec![None],
            Some(names) => names.into_iter().map(|name| Some(shared::text(name))).collect(),
        };
        let keys: Vec<Key> = match aim.pods.required_label() {
            None => vec![None],
            Some((key, values)) => {
                let values: BTreeSet<&str> = values.iter().map(String::as_str).collect();
                values.into_iter().map(|value| Some((shared::text(key), shared::text(value)))).collect()
            }
        };
        let places: Vec<Place> = match namespaces.len().saturating_mul(keys.len()) {
            ..=MOST_PLACES => {
                let with = |namespace: &Option<Arc<str>>| {
                    let namespace = namespace.clone();
                    keys.iter().map(move |key| (namespace.clone(), key.clone()))
                };
                namespaces.iter().flat_map(with).collect()
            }
            _ => vec![(None, None)],
        };
        let mut has_come = false;
        for (namespace, key) in &places {
            let there = match namespace {
                None => &mut self.anywhere,
                Some(namespace) => {
                    let there = self.by_namespace.entry(namespace.clone()).or_default();
                    has_come |= there.is_empty() && !gone.remove(namespace);
                    there
                }
            };
            there.insert(key, set);
        }
        self.places.insert(name.into(), (set.clone(), places));
        has_come || !gone.is_empty() || was_nowhere != self.anywhere.is_empty()
    }

    /// Takes a SidecarSet out. True: what [`Self::namespaces`] says has changed.
    pub fn remove(&mut self, name: &str) -> bool {
        let was_nowhere = self.anywhere.is_empty();
        !self.take(name).is_empty() || was_nowhere != self.anywhere.is_empty()
    }

    /// Takes a SidecarSet out. The namespaces that have none any more.
    fn take(&mut self, name: &str) -> BTreeSet<Arc<str>> {
        let mut gone = BTreeSet::new();
        let Some((_, places)) = self.places.remove(name) else { return gone };
        for (namespace, key) in &places {
            let Some(namespace) = namespace else {
                self.anywhere.remove(key, name);
                continue;
            };
            let Some(of_namespace) = self.by_namespace.get_mut(namespace) else { continue };
            of_namespace.remove(key, name);
            if of_namespace.is_empty() {
                self.by_namespace.remove(namespace);
                gone.insert(namespace.clone());
            }
        }
        gone
    }

    /// One of them, by its name. One that is for no Pod is not in it.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.places.get(name).map(|(set, _)| set)
    }

    /// Those that may be for a Pod, by name, each once.
    pub fn candidates(&self, namespace: &str, labels: &Labels) -> Vec<T> {
        let places = [self.by_namespace.get(namespace), Some(&self.anywhere)];
        sorted(places.into_iter().flatten().flat_map(|there| there.of(labels)))
    }

    /// Those of the wanted ones that may be for some Pod of these namespaces, by name, each once.
    pub fn of_namespaces<'a>(
        &self,
        namespaces: impl IntoIterator<Item = &'a str>,
        is_wanted: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        let there = namespaces.into_iter().filter_map(|namespace| self.by_namespace.get(namespace));
        sorted(there.chain([&self.anywhere]).flat_map(ByLabel::all).filter(|set| is_wanted(set)))
    }

    /// The namespaces in which there may be Pods for any of them; None: all.
    pub fn namespaces(&self) -> Option<BTreeSet<String>> {
        let names = || self.by_namespace.keys().map(|name| String::from(&**name)).collect();
        self.anywhere.is_empty().then(names)
    }
}

fn sorted<'a, T: Clone + AsRef<str> + 'a>(sets: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut found: Vec<T> = sets.cloned().collect();
    found.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
    found.dedup_by(|a, b| a.as_ref() == b.as_ref());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(value: Value) -> Labels {
        serde_json::from_value(value).unwrap()
    }

    fn fits(spec: Value, namespace: Option<Value>, pod: Value) -> Match {
        let namespace = namespace.map(labels);
        let namespace = Namespace { name: "shop", labels: namespace.as_ref() };
        Aim::of(&spec).unwrap().fits(namespace, &labels(pod))
    }

    #[test]
    fn names_that_no_namespace_can_have_reach_no_expression() {
        let selects = |names: Value| {
            let names = json!([{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}]);
            json!({"selector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {"matchExpressions": names}})
        };
        let closing = "x'] || true || request.namespace in ['x";
        for (spec, wanted) in [
            (json!({"selector": {}, "namespace": closing}), &[][..]),
            (json!({"selector": {}, "namespace": "*"}), &[]),
            (selects(json!([closing, "shop", "*", "Shop"])), &["shop"]),
        ] {
            let aim = Aim::of(&spec).unwrap();
            assert_eq!(aim.namespaces().unwrap().into_iter().collect::<Vec<_>>(), wanted, "{spec}");
        }
        let mut index = Index::default();
        index.insert(&Arc::<str>::from("a"), &Aim::of(&selects(json!([closing]))).unwrap());
        assert_eq!(index.namespaces(), Some(BTreeSet::new()));
        assert!(index.candidates("shop", &labels(json!({"app": "web"}))).is_empty());
    }

    #[test]
    fn it_is_told_when_the_namespaces_are_others_than_before() {
        let aim = |names: &[&str], value: &str| {
            let names = json!([{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}]);
            let spec =
                json!({"selector": {"matchLabels": {"app": value}}, "namespaceSelector": {"matchExpressions": names}});
            Aim::of(&spec).unwrap()
        };
        let anywhere = || Aim::of(&json!({"selector": {"matchLabels": {"app": "web"}}})).unwrap();
        let nobody = || Aim::of(&json!({})).unwrap();
        let mut index = Index::<Arc<str>>::default();
        for (name, aim, wanted) in [
            ("a", Some(aim(&["shop"], "web")), true),
            ("b", Some(aim(&["shop"], "db")), false),
            ("a", Some(aim(&["shop", "bank"], "web")), true),
            ("a", Some(aim(&["shop", "bank"], "db")), false),
            ("a", Some(aim(&["shop", "mall"], "db")), true),
            ("a", None, true),
            ("b", Some(aim(&["shop"], "web")), false),
            ("c", Some(anywhere()), true),
            ("d", Some(anywhere()), false),
            ("d", Some(nobody()), false),
            ("c", Some(nobody()), true),
            ("c", None, false),
            ("b", Some(nobody()), true),
        ] {
            let before = index.namespaces();
            let told = match &aim {
                Some(aim) => index.insert(&Arc::from(name), aim),
                None => index.remove(name),
            };
            assert_eq!((told, before != index.namespaces()), (wanted, wanted), "{name} {aim:?}");
        }
    }

    #[test]
    fn a11_selectors_decide() {
        let web = json!({"matchLabels": {"app": "web"}});
        let own = || Some(json!({"kubernetes.io/metadata.name": "shop", "tier": "a"}));
        for (spec, wanted) in [
            (json!({"selector": web}), Match::Yes),
            (json!({"selector": {"matchLabels": {"app": "other"}}}), Match::No),
            (json!({"selector": {}}), Match::No),
            (json!({}), Match::No),
            (json!({"selector": web, "namespace": "shop"}), Match::Yes),
            (json!({"selector": web, "namespace": "bank"}), Match::No),
            (
                json!({"selector": web, "namespace": "shop", "namespaceSelector": {"matchLabels": {"tier": "b"}}}),
                Match::Yes,
            ),
            (json!({"selector": web, "namespaceSelector": {"matchLabels": {"tier": "a"}}}), Match::Yes),
            (json!({"selector": web, "namespaceSelector": {"matchLabels": {"tier": "b"}}}), Match::No),
            (
                json!({"selector": web, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}),
                Match::Yes,
            ),
        ] {
            assert_eq!(fits(spec.clone(), own(), json!({"app": "web"})), wanted, "{spec}");
        }
        assert!(Aim::of(&json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}})).is_err());
        assert!(Aim::of(&json!({"selector": 1})).unwrap_err().0.starts_with("spec.selector: "));
    }

    #[test]
    fn a11_a_namespace_decides_whatever_the_pod() {
        let spec =
            json!({"selector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {"matchLabels": {"tier": "a"}}});
        let aim = Aim::of(&spec).unwrap();
        let is_for = |labels: Option<&Labels>| aim.is_for(Namespace { name: "shop", labels });
        assert_eq!(is_for(None), Match::NamespaceUnknown);
        assert_eq!(is_for(Some(&labels(json!({"tier": "a"})))), Match::Yes);
        assert_eq!(is_for(Some(&labels(json!({})))), Match::No);
        assert!(!aim.is_for_nobody() && Aim::of(&json!({"selector": {}})).unwrap().is_for_nobody());
    }

    #[test]
    fn e12_a_namespace_that_cannot_be_read_is_not_taken_for_one_that_does_not_fit() {
        let web = json!({"matchLabels": {"app": "web"}});
        for (namespaces, wanted) in [
            (json!({"matchLabels": {"tier": "a"}}), Match::NamespaceUnknown),
            (json!({"matchLabels": {"kubernetes.io/metadata.name": "shop"}}), Match::Yes),
            (json!({"matchLabels": {"kubernetes.io/metadata.name": "bank", "tier": "a"}}), Match::No),
            (
                json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["shop"]}]}),
                Match::No,
            ),
        ] {
            let spec = json!({"selector": web, "namespaceSelector": namespaces});
            assert_eq!(fits(spec.clone(), None, json!({"app": "web"})), wanted, "{spec}");
            assert_eq!(fits(spec, None, json!({"app": "db"})), Match::No);
        }
    }

    fn index(sets: &[(&str, Value)]) -> Index<Arc<str>> {
        let mut index = Index::default();
        for (name, spec) in sets {
            index.insert(&Arc::from(*name), &Aim::of(spec).unwrap());
        }
        index
    }

    fn candidates(index: &Index<Arc<str>>, namespace: &str, pod: Value) -> Vec<String> {
        index.candidates(namespace, &labels(pod)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn e16_one_store_by_namespace_and_label() {
        let in_or = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db", "web"]}]});
        let mut index = index(&[
            ("z", json!({"selector": {"matchLabels": {"app": "web"}}})),
            ("shop", json!({"namespace": "shop", "selector": in_or})),
            ("exists", json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}})),
            ("bank", json!({"namespace": "bank", "selector": {"matchLabels": {"app": "web"}}})),
            ("nobody", json!({"selector": {}})),
        ]);
        assert_eq!(candidates(&index, "shop", json!({"app": "web", "a": "b"})), ["exists", "shop", "z"]);
        assert_eq!(candidates(&index, "shop", json!({"app": "db"})), ["exists", "shop"]);
        assert_eq!(candidates(&index, "other", json!({})), ["exists"]);
        assert_eq!(index.namespaces(), None);
        let of = |namespace: &str| {
            index.of_namespaces([namespace], |_| true).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!((of("shop").join(" "), of("other").join(" ")), ("exists shop z".into(), "exists z".into()));
        assert_eq!(index.of_namespaces(["shop", "bank"], |_| true).len(), 4, "each once");
        assert_eq!(index.of_namespaces(["shop", "bank"], |set| **set == *"z").len(), 1, "the wanted one");
        assert_eq!((index.get("shop").map(|set| &**set), index.get("nobody")), (Some("shop"), None));
        index.remove("z");
        index.remove("exists");
        assert_eq!(index.namespaces(), Some(BTreeSet::from(["bank".to_owned(), "shop".to_owned()])));
        index.insert(&Arc::from("shop"), &Aim::of(&json!({"selector": {"matchLabels": {"a": "b"}}})).unwrap());
        assert_eq!(candidates(&index, "shop", json!({"app": "web"})), [""; 0]);
        assert_eq!(candidates(&index, "any", json!({"a": "b"})), ["shop"]);
        for name in ["shop", "bank"] {
            index.remove(name);
        }
        assert!(index.by_namespace.is_empty() && index.anywhere.is_empty() && index.places.is_empty());
        assert_eq!(index.namespaces(), Some(BTreeSet::new()));
    }
}
