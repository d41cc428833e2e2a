//! In which order a workload updates its Pods, whatever its kind: also the order in which nodes pull new images before that.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, HashMap},
};

use super::{rollout::Invalid, update_order::UpdateOrder};
use crate::{
    api::apps::clone_set::PriorityStrategy,
    domain::pod::order::{self, Candidate},
    k8s::{pod::Labels, selector::Selector},
};

/// `priorityStrategy`: which Pods come first.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Priority {
    /// None are preferred.
    #[default]
    None,
    /// By the weights of the selectors that match, the heaviest first.
    Weight(Vec<(i64, Selector)>),
    /// By the first of these labels that a Pod has.
    Order(Vec<String>),
}

/// Where Pods with none of the labels of [`Priority::Order`] stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkeyed {
    /// Before all others, as OpenKruise has it: in CloneSets.
    First,
    /// After all others, as the API documents it: in StatefulSets.
    Last,
}

impl Priority {
    /// From the spec; `field` is the path of the strategy below the object.
    ///
    /// # Errors
    /// Naming the selector that cannot be read.
    pub fn of(field: &str, strategy: Option<&PriorityStrategy>) -> Result<Self, Invalid> {
        let Some(strategy) = strategy else { return Ok(Self::None) };
        if !strategy.order_priority.is_empty() {
            return Ok(Self::Order(strategy.order_priority.iter().map(|term| term.ordered_key.clone()).collect()));
        }
        let terms = strategy.weight_priority.iter().enumerate().map(|(i, term)| {
            let selector = Selector::of(&term.match_selector)
                .map_err(|error| Invalid(format!("{field}.weightPriority[{i}].matchSelector: {error}")))?;
            Ok((i64::from(term.weight), selector))
        });
        let terms = terms.collect::<Result<Vec<_>, Invalid>>()?;
        Ok(if terms.is_empty() { Self::None } else { Self::Weight(terms) })
    }

    /// Sorts Pods; those with equal priority keep their order.
    pub fn sort<T>(&self, pods: &mut [T], labels: impl Fn(&T) -> &Labels, unkeyed: Unkeyed) {
        match self {
            Self::None => {}
            Self::Weight(terms) => pods.sort_by_cached_key(|pod| {
                let matching = terms.iter().filter(|(_, selector)| selector.matches(labels(pod)));
                Reverse(matching.fold(0_i64, |sum, (weight, _)| sum.saturating_add(*weight)))
            }),
            Self::Order(keys) => pods.sort_by(|a, b| by_keys(keys, unkeyed, labels(a), labels(b))),
        }
    }
}

/// By the first of the keys that a Pod has, then by the number at the end of its value, the largest first.
fn by_keys(keys: &[String], unkeyed: Unkeyed, a: &Labels, b: &Labels) -> Ordering {
    let level = |labels: &Labels| {
        let found = keys.iter().position(|key| labels.get(key).is_some());
        match (found, unkeyed) {
            (Some(level), _) => level + 1,
            (None, Unkeyed::First) => 0,
            (None, Unkeyed::Last) => keys.len() + 1,
        }
    };
    let number = |labels: &Labels, level: usize| {
        let key = level.checked_sub(1).and_then(|place| keys.get(place));
        key.and_then(|key| labels.get(key)).map_or(0, last_number)
    };
    let (of_a, of_b) = (level(a), level(b));
    of_a.cmp(&of_b).then_with(|| number(b, of_b).cmp(&number(a, of_a)))
}

/// The digits at the end of a text as a number.
fn last_number(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    text[digits..].parse().unwrap_or(if digits < text.len() { u64::MAX } else { 0 })
}

/// What counts where priorities are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// What is least useful comes first.
    #[default]
    LeastUseful,
    /// The highest ordinal comes first.
    Ordinal,
}

/// The order in which Pods are updated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOrder {
    /// What counts where priorities are equal.
    pub base: Base,
    /// Which Pods come first.
    pub priority: Priority,
    /// Labels, as key and value, whose Pods are spread over the others.
    pub scatter: Vec<(String, String)>,
    /// Which Pods come last.
    pub last: Option<UpdateOrder>,
}

impl PodOrder {
    /// Sorts Pods. `all` are the labels of all Pods of the workload.
    pub fn sort<'a, T>(
        &self,
        pods: &mut Vec<T>,
        facts: impl Fn(&T) -> &Candidate,
        all: impl Iterator<Item = &'a Labels> + Clone,
    ) {
        let unkeyed = match self.base {
            Base::LeastUseful => {
                pods.sort_by(|a, b| order::base(facts(a), facts(b)));
                Unkeyed::First
            }
            Base::Ordinal => {
                pods.sort_by_key(|pod| Reverse(last_number(&facts(pod).name)));
                Unkeyed::Last
            }
        };
        self.priority.sort(pods, |pod| &facts(pod).labels, unkeyed);
        self.scatter(pods, &facts, all);
        if let Some(last) = &self.last {
            pods.sort_by_key(|pod| last.place(&facts(pod).labels));
        }
    }

    fn scatter<'a, T>(
        &self,
        pods: &mut Vec<T>,
        facts: &impl Fn(&T) -> &Candidate,
        all: impl Iterator<Item = &'a Labels> + Clone,
    ) {
        if self.scatter.is_empty() {
            return;
        }
        let total = all.clone().count();
        let counts = self.counts(pods.iter().map(|pod| &facts(pod).labels), all);
        for Scattered { key, value, all, .. } in scattered(counts, pods.len(), total) {
            let fits = |pod: &T| facts(pod).labels.get(key) == Some(value);
            let sorted = std::mem::take(pods);
            *pods = order::scatter(sorted, fits, all, total - all);
        }
    }

    /// How many Pods carry each of the labels. One look at each Pod counts for all of them: `*` may stand for thousands of
    /// values.
    fn counts<'p, 'a>(
        &self,
        pods: impl Iterator<Item = &'p Labels>,
        all: impl Iterator<Item = &'a Labels>,
    ) -> Vec<Scattered<'_>> {
        let mut counts: BTreeMap<&str, HashMap<&str, (usize, usize)>> = BTreeMap::new();
        for (key, value) in &self.scatter {
            counts.entry(key.as_str()).or_default().insert(value.as_str(), (0, 0));
        }
        let mut count = |labels: &Labels, is_sorted: bool| {
            for (key, values) in &mut counts {
                if let Some(value) = labels.get(key)
                    && let Some((pods, all)) = values.get_mut(value)
                {
                    *(if is_sorted { pods } else { all }) += 1;
                }
            }
        };
        pods.for_each(|labels| count(labels, true));
        all.for_each(|labels| count(labels, false));
        let counted = |key: &str, value: &str| counts.get(key).and_then(|values| values.get(value)).copied();
        let scattered = self.scatter.iter().map(|(key, value)| {
            let (pods, all) = counted(key, value).unwrap_or_default();
            Scattered { key: key.as_str(), value: value.as_str(), pods, all }
        });
        scattered.collect()
    }
}

/// A label whose Pods are spread over the others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scattered<'s> {
    key: &'s str,
    value: &'s str,
    /// How many of the Pods that are sorted carry it.
    pods: usize,
    /// How many of all.
    all: usize,
}

/// Labels times Pods of one sort, no more: each label that is spread moves every Pod once.
const MOST_MOVES: usize = 20_000_000;

/// The labels that are spread, that with the most Pods first. Pods of the others stay where they are: there is one of them, or
/// all but one carry it, or there are so many labels that these have the fewest Pods.
fn scattered(mut labels: Vec<Scattered<'_>>, pods: usize, total: usize) -> Vec<Scattered<'_>> {
    labels.retain(|label| label.pods > 1 && pods - label.pods > 1);
    labels.sort_by_key(|label| Reverse(label.pods));
    labels.truncate((MOST_MOVES / pods.max(total).max(1)).max(1));
    labels
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn labels(value: Value) -> Labels {
        serde_json::from_value(value).unwrap()
    }
    fn pod(name: &str, of: Value) -> Candidate {
        Candidate { name: name.into(), labels: labels(of), ..Candidate::default() }
    }
    fn sorted(order: &PodOrder, mut pods: Vec<Candidate>) -> Vec<String> {
        let all: Vec<Labels> = pods.iter().map(|pod| pod.labels.clone()).collect();
        order.sort(&mut pods, |pod| pod, all.iter());
        pods.into_iter().map(|pod| pod.name).collect()
    }

    #[test]
    fn the_value_s_last_number_counts_within_the_first_label_found() {
        let keys = ["a".to_owned(), "b".to_owned()];
        for unkeyed in [Unkeyed::First, Unkeyed::Last] {
            let by = |x, y| by_keys(&keys, unkeyed, &labels(x), &labels(y));
            assert_eq!(by(json!({"a": "sts-10"}), json!({"a": "sts-9"})), Ordering::Less);
            assert_eq!(by(json!({"a": "x"}), json!({"b": "sts-9"})), Ordering::Less);
            assert_eq!(by(json!({"b": "7", "a": "1"}), json!({"a": "1"})), Ordering::Equal);
            assert_eq!(by(json!({}), json!({"c": "1"})), Ordering::Equal);
            assert_eq!(by(json!({"a": "99999999999999999999999"}), json!({"a": "9"})), Ordering::Less);
        }
    }

    #[test]
    fn pods_without_any_of_the_labels_come_first_or_last() {
        let keys = ["a".to_owned()];
        assert_eq!(by_keys(&keys, Unkeyed::First, &labels(json!({})), &labels(json!({"a": "1"}))), Ordering::Less);
        assert_eq!(by_keys(&keys, Unkeyed::Last, &labels(json!({})), &labels(json!({"a": "1"}))), Ordering::Greater);
    }

    #[test]
    fn the_highest_ordinal_first_then_priorities_and_the_leader_last() {
        let pods = || {
            let pod = |n: u32, role: &str| pod(&format!("db-{n}"), json!({ "role": role }));
            vec![pod(9, "x"), pod(10, "leader"), pod(11, "y")]
        };
        let plain = PodOrder { base: Base::Ordinal, ..PodOrder::default() };
        assert_eq!(sorted(&plain, pods()), ["db-11", "db-10", "db-9"]);
        let first = Priority::Weight(vec![(5, Selector::parse("role=x").unwrap())]);
        let first = PodOrder { priority: first, ..plain };
        assert_eq!(sorted(&first, pods()), ["db-9", "db-11", "db-10"]);
        let last = PodOrder { last: UpdateOrder::parse("role=x,leader").unwrap(), ..first };
        assert_eq!(sorted(&last, pods()), ["db-11", "db-9", "db-10"]);
    }

    #[test]
    fn labels_are_counted_together_and_spread_in_the_order_of_their_pods() {
        let terms = [("app", "a"), ("app", "b"), ("zone", "x"), ("app", "none"), ("app", "one")];
        let scatter = terms.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let order = PodOrder { scatter, ..PodOrder::default() };
        let of = |app: &str, zone: &str| labels(json!({"app": app, "zone": zone}));
        let pods = [of("a", "x"), of("b", "x"), of("b", "y"), of("a", "x"), of("b", "y"), of("one", "y")];
        let old = of("a", "y");
        let counts = order.counts(pods.iter(), pods.iter().chain([&old]));
        let numbers: Vec<_> = counts.iter().map(|label| (label.value, label.pods, label.all)).collect();
        assert_eq!(numbers, [("a", 2, 3), ("b", 3, 3), ("x", 3, 3), ("none", 0, 0), ("one", 1, 1)]);
        let spread: Vec<_> = scattered(counts, 6, 7).iter().map(|label| label.value).collect();
        assert_eq!(spread, ["b", "x", "a"]);
    }

    #[test]
    fn values_without_number_cost_no_more_than_those_with_the_most_pods() {
        let label = |pods: usize| Scattered { key: "app", value: "v", pods, all: pods };
        let (most, pods) = (1000, 20_000);
        let counts: Vec<_> = (0..10_000).map(|i| label(2 + i % 2)).collect();
        let spread = scattered(counts, pods, pods);
        assert_eq!((spread.len(), spread.iter().all(|label| label.pods == 3)), (most, true));
        assert_eq!(scattered(vec![label(9), label(7)], 10, MOST_MOVES * 2), [label(7)], "all but one carry the other");
        assert!(scattered(vec![label(1), label(0)], 10, 10).is_empty());
    }

    #[test]
    fn a_selector_that_cannot_be_read_is_named() {
        let strategy = json!({"weightPriority": [{"weight": 1, "matchSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]});
        let strategy = serde_json::from_value(strategy).unwrap();
        let Invalid(message) = Priority::of("spec.updateStrategy.priorityStrategy", Some(&strategy)).unwrap_err();
        assert!(
            message.starts_with("spec.updateStrategy.priorityStrategy.weightPriority[0].matchSelector: "),
            "{message}"
        );
        assert_eq!(Priority::of("x", None), Ok(Priority::None));
        assert_eq!(Priority::of("x", Some(&PriorityStrategy::default())), Ok(Priority::None));
    }
}
