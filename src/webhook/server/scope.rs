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

use serde_json::{Value, json};

/// The label that the API server keeps on every namespace: its name.
const NAME: &str = "kubernetes.io/metadata.name";
/// How long a namespace is listed after its last budget has gone.
pub const LINGER: Duration = Duration::from_secs(10);
/// More namespaces than this are not listed one by one: with 63 bytes each, three entries of this length are a fifth of
/// what an object may have. Beyond it, the webhooks are called for all namespaces but the system's.
pub const MOST_LISTED: usize = 1500;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
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
