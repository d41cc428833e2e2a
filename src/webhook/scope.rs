//! The namespaces that have a PodUnavailableBudget: only there the API server calls the webhooks for budgets.
//!
//! An eviction carries no Pod, so CEL cannot tell whether a budget is concerned; the namespace can. Who has no budget
//! pays nothing for those of others, and feels nothing when the webhook is down.
//!
//! Every replica of the webhook keeps the same list. A replica whose watch lags must not take away what another one has
//! just added, so a namespace is taken from the list only after it was without a budget for [`LINGER`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::{GroupVersionKind, PartialObjectMeta},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::k8s::rbac::Rule;

/// The label that the API server keeps on every namespace: its name.
const NAME: &str = "kubernetes.io/metadata.name";
/// How long a namespace is listed after its last budget has gone.
pub const LINGER: Duration = Duration::from_secs(10);
/// More namespaces than this are not listed one by one: with 63 bytes each, three entries of this length are a fifth of
/// what an object may have. Beyond it, the webhooks are called for all namespaces but the system's.
pub const MOST_LISTED: usize = 1500;

/// To see which namespaces have budgets.
pub const RBAC: Rule = Rule::new(&["policy.kruise.io"], &["podunavailablebudgets"], &["list", "watch"]);

/// The selector that fits no namespace. All of them have the label.
pub fn nobody() -> Value {
    json!({ "matchExpressions": [{ "key": NAME, "operator": "DoesNotExist" }] })
}

/// The selector that fits all namespaces but kube-system and our own.
pub fn not_system(own: &str) -> Value {
    json!({ "matchExpressions": [{ "key": NAME, "operator": "NotIn", "values": ["kube-system", own] }] })
}

/// The selector for these namespaces. System namespaces are never in it.
pub fn selector(namespaces: &BTreeSet<String>, own: &str) -> Value {
    let names: Vec<&String> = namespaces.iter().filter(|name| *name != "kube-system" && *name != own).collect();
    match names.len() {
        0 => nobody(),
        1..=MOST_LISTED => json!({ "matchExpressions": [{ "key": NAME, "operator": "In", "values": names }] }),
        _ => not_system(own),
    }
}

/// The namespaces that a selector lists, if it is one of [`selector`].
pub fn listed(selector: &Value) -> Vec<String> {
    let expression = &selector["matchExpressions"][0];
    if expression["key"] != NAME || expression["operator"] != "In" {
        return Vec::new();
    }
    expression["values"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// What this replica remembers of namespaces that are listed and have no budget any more.
#[derive(Debug, Default)]
pub struct Lingering(BTreeMap<String, Duration>);

impl Lingering {
    /// The namespaces to list, and when to look again. `now` is of a clock that never goes back.
    pub fn keep(
        &mut self,
        with_budgets: &BTreeSet<String>,
        listed: impl IntoIterator<Item = String>,
        now: Duration,
    ) -> (BTreeSet<String>, Option<Duration>) {
        let mut wanted = with_budgets.clone();
        let gone: BTreeSet<String> = listed.into_iter().filter(|name| !with_budgets.contains(name)).collect();
        self.0.retain(|name, _| gone.contains(name));
        let mut wait = None;
        for name in gone {
            let since = *self.0.entry(name.clone()).or_insert(now);
            let left = LINGER.saturating_sub(now.saturating_sub(since));
            if !left.is_zero() {
                wanted.insert(name);
                wait = Some(wait.map_or(left, |wait: Duration| wait.min(left)));
            }
        }
        (wanted, wait)
    }
}

/// The budgets that there are, by namespace.
#[derive(Debug, Default)]
struct Budgets {
    known: BTreeMap<String, BTreeSet<String>>,
    /// Of a list that has begun and not ended.
    listing: Option<BTreeMap<String, BTreeSet<String>>>,
}

impl Budgets {
    /// Takes in what a watch says; gives the namespaces when all of them are known.
    fn apply<K: ResourceExt>(&mut self, event: watcher::Event<K>) -> Option<BTreeSet<String>> {
        let of = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => {
                self.listing = Some(BTreeMap::new());
                return None;
            }
            watcher::Event::InitApply(object) => {
                let (namespace, name) = of(&object);
                self.listing.get_or_insert_default().entry(namespace).or_default().insert(name);
                return None;
            }
            watcher::Event::InitDone => self.known = self.listing.take().unwrap_or_default(),
            watcher::Event::Apply(object) => {
                let (namespace, name) = of(&object);
                self.known.entry(namespace).or_default().insert(name);
            }
            watcher::Event::Delete(object) => {
                let (namespace, name) = of(&object);
                if let Some(names) = self.known.get_mut(&namespace) {
                    names.remove(&name);
                    if names.is_empty() {
                        self.known.remove(&namespace);
                    }
                }
            }
        }
        Some(self.known.keys().cloned().collect())
    }
}

/// Follows the budgets of the cluster, of which nothing but their namespaces is kept. The channel holds None until they
/// have been listed for the first time.
pub async fn follow(client: Client, found: watch::Sender<Option<BTreeSet<String>>>) {
    let kind = GroupVersionKind::gvk("policy.kruise.io", "v1alpha1", "PodUnavailableBudget");
    let kind = ApiResource::from_gvk_with_plural(&kind, "podunavailablebudgets");
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &kind);
    let mut budgets = Budgets::default();
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => {
                if let Some(now) = budgets.apply(event) {
                    found.send_if_modified(|known| {
                        let changed = known.as_ref() != Some(&now);
                        *known = Some(now);
                        changed
                    });
                }
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "the budgets cannot be watched, trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt};
    use watcher::Event;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }
    fn budget(namespace: &str, name: &str) -> PartialObjectMeta<ConfigMap> {
        let metadata = ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..Default::default() };
        metadata.into_response_partial()
    }

    #[test]
    fn a_namespace_is_there_from_its_first_budget_to_its_last() {
        let mut budgets = Budgets::default();
        assert_eq!(budgets.apply(Event::<PartialObjectMeta<ConfigMap>>::Init), None);
        assert_eq!(budgets.apply(Event::InitApply(budget("shop", "a"))), None, "a list is not known by half");
        assert_eq!(budgets.apply(Event::<PartialObjectMeta<ConfigMap>>::InitDone), Some(set(&["shop"])));
        assert_eq!(budgets.apply(Event::Apply(budget("shop", "b"))), Some(set(&["shop"])));
        assert_eq!(budgets.apply(Event::Apply(budget("bank", "a"))), Some(set(&["bank", "shop"])));
        assert_eq!(budgets.apply(Event::Delete(budget("shop", "a"))), Some(set(&["bank", "shop"])));
        assert_eq!(budgets.apply(Event::Delete(budget("shop", "b"))), Some(set(&["bank"])));
        assert_eq!(budgets.apply(Event::Delete(budget("none", "b"))), Some(set(&["bank"])));
        // What went while the watch was broken is gone after the next list.
        budgets.apply(Event::<PartialObjectMeta<ConfigMap>>::Init);
        assert_eq!(budgets.apply(Event::<PartialObjectMeta<ConfigMap>>::InitDone), Some(set(&[])));
    }

    #[test]
    fn no_budget_selects_nobody_and_system_namespaces_are_never_listed() {
        let own = "kruise-system";
        assert_eq!(selector(&set(&[]), own), nobody());
        assert_eq!(selector(&set(&["kube-system", own]), own), nobody());
        assert_eq!(listed(&selector(&set(&["shop", "kube-system", "bank"]), own)), ["bank", "shop"]);
        assert_eq!(listed(&nobody()), [""; 0]);
        assert_eq!(listed(&not_system(own)), [""; 0]);
        assert_eq!(listed(&Value::Null), [""; 0]);
    }

    #[test]
    fn very_many_namespaces_are_not_listed_one_by_one() {
        let names = |count: usize| (0..count).map(|i| format!("{i:0>63}")).collect::<BTreeSet<_>>();
        let longest = selector(&names(MOST_LISTED), "own").to_string();
        assert!(longest.len() < 110_000, "{}", longest.len());
        assert_eq!(selector(&names(MOST_LISTED + 1), "own"), not_system("own"));
    }

    #[test]
    fn a_namespace_lingers_after_its_last_budget() {
        let at = Duration::from_secs;
        let mut lingering = Lingering::default();
        let live = || ["bank".to_owned(), "shop".to_owned()];
        assert_eq!(lingering.keep(&set(&["shop"]), live(), at(100)), (set(&["bank", "shop"]), Some(LINGER)));
        assert_eq!(lingering.keep(&set(&["shop"]), live(), at(104)), (set(&["bank", "shop"]), Some(at(6))));
        assert_eq!(lingering.keep(&set(&["shop"]), live(), at(110)), (set(&["shop"]), None));
        // A watch that lagged has caught up: the clock starts anew the next time.
        assert_eq!(lingering.keep(&set(&["bank", "shop"]), live(), at(111)), (set(&["bank", "shop"]), None));
        assert_eq!(lingering.keep(&set(&["shop"]), live(), at(200)), (set(&["bank", "shop"]), Some(LINGER)));
    }
}
