//! Which ControllerRevision a workload is to be on, from those that there are. Shared by the workloads.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::k8s::{canonical_json, revision};

/// A ControllerRevision of the workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownRevision {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was read.
    pub version: Option<String>,
    /// `revision`: larger is newer.
    pub number: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// What it holds.
    pub data: Value,
    /// The hash of the claim templates that were there with it, if it says so.
    pub claims_hash: Option<String>,
    /// The version that its author has given it, of a SidecarSet.
    pub custom_version: Option<String>,
    /// It is being deleted: what Pods on it were made from can still be read, but nothing rests on it any more.
    pub is_deleting: bool,
}

/// The most revisions of one workload that are kept, whatever `revisionHistoryLimit` says: all of them are read for an
/// update, and their owner decides how large they are.
pub const MOST_KEPT: i32 = 1000;

/// What to do to be on the right revision.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// This one is it, and the newest.
    Newest(usize),
    /// This older one becomes the newest, with a new number.
    Again(usize, i64),
    /// There is none yet: make it.
    Make {
        /// Its number.
        number: i64,
    },
}

/// The revision that a version means: the newest one with it.
pub fn of_version<'a>(known: &'a [KnownRevision], version: &str) -> Option<&'a KnownRevision> {
    let with_it = known.iter().filter(|known| known.custom_version.as_deref() == Some(version));
    with_it.max_by_key(|known| known.number)
}

/// Oldest first.
pub fn sort(known: &mut [KnownRevision]) {
    known.sort_by(|a, b| (a.number, a.created, &a.name).cmp(&(b.number, b.created, &b.name)));
}

/// Chooses the revision with `data`. `known` is sorted.
pub fn choose(known: &[KnownRevision], data: &Value) -> Choice {
    let next = known.last().map_or(1, |newest| newest.number.saturating_add(1));
    let is_it = |revision: &KnownRevision| !revision.is_deleting && is_same_data(&revision.data, data);
    match known.iter().rposition(is_it) {
        Some(index) if known[index + 1..].iter().all(|newer| newer.is_deleting) => Choice::Newest(index),
        Some(index) => Choice::Again(index, next),
        None => Choice::Make { number: next },
    }
}

/// Whether two revisions mean the same: the same bytes, or bytes that differ in nothing but nulls and values that say
/// nothing, as releases of the API server write them in different ways.
pub fn is_same_data(a: &Value, b: &Value) -> bool {
    a == b || canonical_json::encode(&trimmed(a)) == canonical_json::encode(&trimmed(b))
}

/// Members that say nothing when they are empty. Of others, such as selectors, that cannot be said.
const EMPTY_SAYS_NOTHING: [&str; 4] = ["metadata", "resources", "securityContext", "status"];

fn trimmed(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| (key, trimmed(value)));
            let says_something = |(key, value): &(&String, Value)| {
                let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
                !(value.is_null() || is_empty && EMPTY_SAYS_NOTHING.contains(&key.as_str()))
            };
            members.filter(says_something).map(|(key, value)| (key.clone(), value)).collect()
        }
        Value::Array(list) => list.iter().map(trimmed).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The revisions that are deleted, oldest first, so that at most `limit` remain of those that nobody is on.
pub fn superfluous<'a>(known: &'a [KnownRevision], live: &BTreeSet<&str>, limit: i32) -> Vec<&'a KnownRevision> {
    let is_live = |known: &KnownRevision| live.iter().any(|live| revision::is_same(live, &known.name));
    let old: Vec<&KnownRevision> = known.iter().filter(|known| !known.is_deleting && !is_live(known)).collect();
    let keep = usize::try_from(limit.min(MOST_KEPT)).unwrap_or(0);
    old[..old.len().saturating_sub(keep)].to_vec()
}

/// The revisions that are deleted, oldest first, so that at most `limit` remain in total. Only those that somebody is on may
/// be more; the newest one is never among them.
pub fn superfluous_of_total<'a>(
    known: &'a [KnownRevision],
    live: &BTreeSet<&str>,
    limit: i32,
) -> Vec<&'a KnownRevision> {
    let there: Vec<&KnownRevision> = known.iter().filter(|known| !known.is_deleting).collect();
    let excess = there.len().saturating_sub(usize::try_from(limit.clamp(1, MOST_KEPT)).unwrap_or(1));
    let older = there.iter().copied().take(there.len().saturating_sub(1));
    let is_live = |known: &&KnownRevision| live.iter().any(|live| revision::is_same(live, &known.name));
    older.filter(|known| !is_live(known)).take(excess).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(name: &str, number: i64, image: &str) -> KnownRevision {
        KnownRevision {
            name: name.into(),
            number,
            data: revision::data(&json!({"spec": {"image": image}})),
            ..KnownRevision::default()
        }
    }
    fn chosen(known: &[KnownRevision], image: &str) -> Choice {
        choose(known, &revision::data(&json!({"spec": {"image": image}})))
    }

    fn old<'a>(known: &'a [KnownRevision], live: &[&str], limit: i32) -> Vec<&'a str> {
        superfluous(known, &live.iter().copied().collect(), limit)
            .into_iter()
            .map(|known| known.name.as_str())
            .collect()
    }

    #[test]
    fn a_known_template_makes_no_revision() {
        let list = [known("web-a", 1, "1"), known("web-b", 2, "2")];
        assert_eq!(chosen(&list, "2"), Choice::Newest(1));
        assert_eq!(chosen(&list, "1"), Choice::Again(0, 3), "rolled back");
        assert_eq!(chosen(&list, "3"), Choice::Make { number: 3 });
        assert_eq!(chosen(&[], "3"), Choice::Make { number: 1 });
    }

    #[test]
    fn a_revision_that_is_being_deleted_is_not_chosen() {
        let deleted =
            |name: &str, number, image: &str| KnownRevision { is_deleting: true, ..known(name, number, image) };
        let list = [known("web-a", 1, "1"), deleted("web-b", 2, "2")];
        assert_eq!(chosen(&list, "2"), Choice::Make { number: 3 });
        assert_eq!(chosen(&list, "1"), Choice::Newest(0), "nothing that stays is newer");
        assert_eq!(old(&list, &[], 0), ["web-a"], "it is not deleted once more");
    }

    #[test]
    fn of_several_equal_ones_the_newest_counts() {
        let list = [known("web-a", 1, "1"), known("web-b", 2, "1"), known("web-c", 3, "2")];
        assert_eq!(chosen(&list, "1"), Choice::Again(1, 4));
    }

    #[test]
    fn shortfall_10_1_20_nulls_and_empty_values_make_no_difference() {
        let pairs = [
            (json!({"metadata": {"creationTimestamp": null}, "n": 1}), json!({"n": 1.0}), true),
            (json!({"resources": {}}), json!({}), true),
            (json!({"volumes": [{"emptyDir": {}}]}), json!({"volumes": [{}]}), false),
            (json!({"namespaceSelector": {}}), json!({}), false),
            (json!({"x": false}), json!({}), false),
        ];
        for (a, b, same) in pairs {
            assert_eq!(is_same_data(&a, &b), same, "{a} {b}");
        }
    }

    #[test]
    fn order_is_by_number_then_age_then_name() {
        let mut list = [known("b", 2, ""), known("c", 1, ""), known("a", 2, "")];
        sort(&mut list);
        assert_eq!(list.map(|known| known.name), ["c", "a", "b"]);
    }

    #[test]
    fn of_several_revisions_with_one_version_the_newest_is_meant() {
        let with = |name: &str, number, version: &str| KnownRevision {
            custom_version: Some(version.to_owned()).filter(|version| !version.is_empty()),
            ..known(name, number, "")
        };
        let list = [with("a", 3, "v1"), with("b", 1, "v1"), with("c", 4, "v2"), with("d", 5, "")];
        let name = |version: &str| of_version(&list, version).map(|known| known.name.as_str());
        assert_eq!((name("v1"), name("v2"), name("v3")), (Some("a"), Some("c"), None));
    }

    #[test]
    fn history_keeps_what_is_live_and_a_limited_number_of_others() {
        let list = [known("web-a", 1, ""), known("web-b", 2, ""), known("web-c", 3, ""), known("web-d", 4, "")];
        assert_eq!(old(&list, &["web-d"], 10), Vec::<&str>::new());
        assert_eq!(old(&list, &["web-d"], 1), ["web-a", "web-b"]);
        assert_eq!(old(&list, &["web-d", "a"], 1), ["web-b"], "a Pod with the short label is on web-a");
        assert_eq!(old(&list, &["web-d"], 0), ["web-a", "web-b", "web-c"]);
        assert_eq!(old(&list, &["web-d"], -3), ["web-a", "web-b", "web-c"]);
        let many: Vec<KnownRevision> = (0..1002).map(|number| known(&format!("web-{number}"), number, "")).collect();
        assert_eq!(old(&many, &[], i32::MAX), ["web-0", "web-1"], "there is a bound");
    }
    #[test]
    fn a15_of_a_total_those_in_use_are_a_part() {
        let list = [known("a", 1, ""), known("b", 2, ""), known("c", 3, ""), known("d", 4, "")];
        let old = |live: &[&str], limit| -> Vec<&str> {
            let live = live.iter().copied().collect();
            superfluous_of_total(&list, &live, limit).into_iter().map(|known| known.name.as_str()).collect()
        };
        for (live, limit, wanted) in [
            (vec![], 4, vec![]),
            (vec!["d"], 3, vec!["a"]),
            (vec!["a", "d"], 3, vec!["b"]),
            (vec!["a", "d"], 2, vec!["b", "c"]),
            (vec!["a", "b", "d"], 2, vec!["c"]),
            (vec!["a", "b", "c", "d"], 1, vec![]),
            (vec![], 1, vec!["a", "b", "c"]),
            (vec![], 0, vec!["a", "b", "c"]),
            (vec![], -3, vec!["a", "b", "c"]),
        ] {
            assert_eq!(old(&live, limit), wanted, "{live:?} {limit}");
        }
        let deleted = [KnownRevision { is_deleting: true, ..known("a", 1, "") }, known("b", 2, "")];
        assert!(superfluous_of_total(&deleted, &BTreeSet::new(), 1).is_empty());
        assert!(superfluous_of_total(&[], &BTreeSet::new(), 1).is_empty());
    }
}
