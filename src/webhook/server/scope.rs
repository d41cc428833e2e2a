//! The namespaces that have a PodUnavailableBudget: only there the API server calls the webhooks for budgets. And those in
//! which a SidecarSet may select Pods: there it calls for every new Pod.
//!
//! An eviction carries no Pod, so CEL cannot know whether a budget is concerned; the namespace can. Who has no budget
//! pays nothing for those of others, and feels nothing when the webhook is down.
//!
//! Every replica of the webhook keeps the same list. A replica whose watch lags must not take away what another one has
//! just added, so a namespace is taken from the list only after it was without a budget for [`LINGER`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::select_all;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    api::labels::{SIDECARS, SIDECARS_REQUIRED},
    webhook::announced::ANY,
};

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

/// The same without namespaces that are labelled to have no Pod without its sidecars.
pub fn ordinary(own: &str) -> Value {
    with_label(own, "NotIn")
}

/// The same with nothing but those.
pub fn sidecars_required(own: &str) -> Value {
    with_label(own, "In")
}

fn with_label(own: &str, operator: &str) -> Value {
    let mut selector = not_system(own);
    if let Some(expressions) = selector["matchExpressions"].as_array_mut() {
        expressions.push(json!({ "key": SIDECARS, "operator": operator, "values": [SIDECARS_REQUIRED] }));
    }
    selector
}

/// More namespaces than this are not listed in a condition: it is evaluated for every new Pod.
const MOST_IN_CONDITION: usize = 200;
const CONDITION: (&str, &str) = ("request.namespace in ['", "']");

/// In CEL, whether a request is of one of these namespaces, [`ANY`] for all; None: there are none.
pub fn condition(namespaces: &BTreeSet<String>) -> Option<String> {
    let names: Vec<&str> = namespaces.iter().map(String::as_str).collect();
    match names.len() {
        0 => None,
        1..=MOST_IN_CONDITION if !namespaces.contains(ANY) => {
            Some(format!("{}{}{}", CONDITION.0, names.join("', '"), CONDITION.1))
        }
        _ => Some("true".into()),
    }
}

/// How long is waited for all parts of a union. After that, what those that do not know yet have listed before stays.
const ALL_PARTS: Duration = Duration::from_secs(30);

/// Namespaces that several parts know of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Union {
    /// Their names.
    pub names: BTreeSet<String>,
    /// Whether every part knows; otherwise there may be more.
    pub is_whole: bool,
}

impl Union {
    /// The namespaces of the union. While a part does not know its own yet, those that are listed now stay.
    pub fn beside(&self, listed: &[String]) -> BTreeSet<String> {
        let stay = listed.iter().filter(|_| !self.is_whole).cloned();
        self.names.iter().cloned().chain(stay).collect()
    }
}

/// Publishes the union of namespaces that several parts know of, for ever. None at first, while one of them does not know yet.
/// What is announced comes on top: it says nothing about what else there is.
pub async fn unite(
    mut parts: Vec<watch::Receiver<Option<BTreeSet<String>>>>,
    mut announced: watch::Receiver<BTreeSet<String>>,
    union: watch::Sender<Option<Union>>,
) {
    let late = tokio::time::sleep(ALL_PARTS);
    tokio::pin!(late);
    loop {
        let known: Vec<Option<BTreeSet<String>>> =
            parts.iter_mut().map(|part| part.borrow_and_update().clone()).collect();
        let is_whole = known.iter().all(Option::is_some);
        let is_ready = is_whole || (late.is_elapsed() && known.iter().any(Option::is_some));
        let coming = announced.borrow_and_update().clone();
        let names = known.into_iter().flatten().flatten().chain(coming);
        let all = is_ready.then(|| Union { names: names.collect(), is_whole });
        union.send_if_modified(|published| {
            let changed = *published != all;
            *published = all;
            changed
        });
        let changes = select_all(parts.iter_mut().map(|part| Box::pin(part.changed())));
        tokio::select! {
            (changed, ..) = changes => if changed.is_err() {
                // Its part has ended, and with it this process.
                std::future::pending::<()>().await;
            },
            Ok(()) = announced.changed() => {}
            () = &mut late, if !late.is_elapsed() => {}
        }
    }
}

/// The namespaces of the condition at the end of an expression.
pub fn listed_in(expression: &str) -> Vec<String> {
    let last = expression.rsplit(" || ").next().unwrap_or_default();
    let last = last.strip_prefix('(').and_then(|last| last.strip_suffix(')')).unwrap_or(last);
    if last == "true" {
        return vec![ANY.to_owned()];
    }
    let names = last.strip_prefix(CONDITION.0).and_then(|rest| rest.strip_suffix(CONDITION.1));
    names.map(|names| names.split("', '").map(str::to_owned).collect()).unwrap_or_default()
}

/// Whether a namespace is in no selector: kube-system and our own.
pub fn is_never_listed(name: &str, own: &str) -> bool {
    name == "kube-system" || name == own
}

/// The selector for these namespaces. System namespaces are never in it.
pub fn selector(namespaces: &BTreeSet<String>, own: &str) -> Value {
    let names: Vec<&String> = namespaces.iter().filter(|name| !is_never_listed(name, own)).collect();
    match names.len() {
        _ if namespaces.contains(ANY) => not_system(own),
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

/// The same, and [`ANY`] for a selector that fits all.
pub fn selected(selector: &Value) -> Vec<String> {
    match selector["matchExpressions"][0]["operator"] == "NotIn" {
        true => vec![ANY.to_owned()],
        false => listed(selector),
    }
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

    #[tokio::test]
    async fn the_union_is_published_when_every_part_knows_and_whenever_one_changes() {
        let (first, second) = (watch::Sender::new(None), watch::Sender::new(Some(set(&["bank"]))));
        let (union, mut published) = watch::channel(None);
        let announced = watch::Sender::default();
        let united = unite(vec![first.subscribe(), second.subscribe()], announced.subscribe(), union);
        let changes = async {
            first.send_replace(Some(set(&["shop"])));
            published.changed().await.unwrap();
            assert_eq!(*published.borrow_and_update(), Some(whole(&["bank", "shop"])));
            second.send_replace(Some(set(&[])));
            published.changed().await.unwrap();
            assert_eq!(*published.borrow_and_update(), Some(whole(&["shop"])));
            announced.send_replace(set(&["new"]));
            published.changed().await.unwrap();
            assert_eq!(*published.borrow_and_update(), Some(whole(&["new", "shop"])));
        };
        tokio::select! {
            () = united => panic!("it never ends"),
            () = changes => {}
        }
    }

    fn whole(names: &[&str]) -> Union {
        Union { names: set(names), is_whole: true }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_never_knows_keeps_what_the_others_know_waiting_for_a_while_only() {
        let (never, knows) = (watch::Sender::new(None), watch::Sender::new(Some(set(&["bank"]))));
        let (union, mut published) = watch::channel(None);
        let begun = tokio::time::Instant::now();
        let announced = watch::Sender::new(set(&["new"]));
        let alone = watch::Sender::new(None);
        let mut of_alone = alone.subscribe();
        tokio::spawn(unite(vec![never.subscribe()], announced.subscribe(), alone));
        let nothing = watch::Sender::default();
        tokio::spawn(unite(vec![never.subscribe(), knows.subscribe()], nothing.subscribe(), union));
        published.changed().await.unwrap();
        assert_eq!(begun.elapsed(), ALL_PARTS);
        assert_eq!(*of_alone.borrow_and_update(), None, "what is announced alone is not all there is");
        let partial = Union { names: set(&["bank"]), is_whole: false };
        assert_eq!(*published.borrow_and_update(), Some(partial.clone()));
        assert_eq!(
            partial.beside(&["shop".into()]),
            set(&["bank", "shop"]),
            "it may be of the part that does not know"
        );
        assert_eq!(whole(&["bank"]).beside(&["shop".into()]), set(&["bank"]));
        never.send_replace(Some(set(&[])));
        published.changed().await.unwrap();
        assert_eq!(*published.borrow_and_update(), Some(whole(&["bank"])));
    }

    #[test]
    fn no_budget_selects_nobody_and_system_namespaces_are_never_listed() {
        let own = "kruise-system";
        assert_eq!(selector(&set(&[]), own), nobody());
        assert_eq!(selector(&set(&["kube-system", own]), own), nobody());
        assert_eq!(listed(&selector(&set(&["shop", "kube-system", "bank"]), own)), ["bank", "shop"]);
        assert_eq!(listed(&nobody()), [""; 0]);
        assert_eq!(listed(&not_system(own)), [""; 0]);
        assert_eq!(selected(&not_system(own)), [ANY]);
        assert_eq!(selected(&selector(&set(&["shop"]), own)), ["shop"]);
        assert_eq!(selected(&nobody()), [""; 0]);
        assert_eq!(listed(&Value::Null), [""; 0]);
    }

    #[test]
    fn the_condition_for_sidecars_names_namespaces_or_is_for_all() {
        assert_eq!(condition(&set(&[])), None);
        let shop = condition(&set(&["shop", "bank"])).unwrap();
        assert_eq!(shop, "request.namespace in ['bank', 'shop']");
        assert_eq!(condition(&set(&["shop", ANY])).as_deref(), Some("true"));
        let many = (0..=MOST_IN_CONDITION).map(|i| i.to_string()).collect();
        assert_eq!(condition(&many).as_deref(), Some("true"));
        assert_eq!(listed_in(&format!("(a in ['x']) || ({shop})")), ["bank", "shop"]);
        assert_eq!(listed_in(&shop), ["bank", "shop"]);
        assert_eq!(listed_in("(a) || (true)"), [ANY]);
        for none in ["", "(a) || (b)", "(request.namespace in ['x']) || (b)"] {
            assert_eq!(listed_in(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn every_namespace_but_the_systems_has_one_of_the_two_entries_for_new_pods() {
        let selects = |selector: &Value, labels: Value| {
            let selector = serde_json::from_value(selector.clone()).unwrap();
            crate::k8s::selector::Selector::of(&selector).unwrap().matches(&serde_json::from_value(labels).unwrap())
        };
        for (labels, wanted) in [
            (json!({NAME: "shop"}), (true, false)),
            (json!({NAME: "shop", SIDECARS: "other"}), (true, false)),
            (json!({NAME: "shop", SIDECARS: "required"}), (false, true)),
            (json!({NAME: "own", SIDECARS: "required"}), (false, false)),
            (json!({NAME: "kube-system"}), (false, false)),
        ] {
            let selected =
                (selects(&ordinary("own"), labels.clone()), selects(&sidecars_required("own"), labels.clone()));
            assert_eq!(selected, wanted, "{labels}");
        }
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
