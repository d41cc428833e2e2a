//! Ordinals: which of them a StatefulSet wants, and which Pod has which.
//!
//! Reserved ordinals are kept as intervals and never expanded: a range of two billion costs as much as a single number.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::k8s::{int_or_percent, invalid::Invalid};

/// The largest ordinal.
const LAST: i64 = i32::MAX as i64;

/// Ordinals that no Pod gets: sorted intervals that neither touch nor overlap, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved(Vec<(i64, i64)>);

impl Reserved {
    /// From the entries of `spec.reserveOrdinals`: numbers, or text `A-B` for all from A to B.
    ///
    /// # Errors
    /// Naming the entry that cannot be read: to ignore it would make a Pod that must not be.
    pub fn parse(entries: &[IntOrString]) -> Result<Self, Invalid> {
        let mut all = entries.iter().map(interval).collect::<Result<Vec<_>, _>>()?;
        all.retain(|(from, to)| from <= to);
        all.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match merged.last_mut() {
                Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        Ok(Self(merged))
    }

    /// Whether an ordinal is reserved.
    pub fn contains(&self, ordinal: i32) -> bool {
        let ordinal = i64::from(ordinal);
        let after = self.0.partition_point(|(from, _)| *from <= ordinal);
        after.checked_sub(1).is_some_and(|i| ordinal <= self.0[i].1)
    }
}

fn interval(entry: &IntOrString) -> Result<(i64, i64), Invalid> {
    let range = match entry {
        IntOrString::Int(number) => of_number(*number),
        IntOrString::String(text) => of_text(text),
    };
    range.ok_or_else(|| {
        let entry = int_or_percent::text(entry);
        Invalid(format!("spec.reserveOrdinals: {entry:?} is neither an ordinal nor a range such as \"3-5\""))
    })
}

/// The first and the last of some ordinals: a number, or text `A-B` for all from A to B. A range may go on beyond the largest
/// ordinal, and is cut there. A range that begins beyond it is empty, which is returned as a first ordinal above the last.
///
/// # Errors
/// In words that name the value and what is allowed.
pub fn ordinal_range(ordinals: &Value) -> Result<(i64, i64), Invalid> {
    let range = match ordinals {
        Value::Number(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()).and_then(of_number),
        Value::String(text) => of_text(text),
        Value::Null => return Err(Invalid("it is missing; want an ordinal or a range such as \"3-5\"".into())),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    range.ok_or_else(|| {
        Invalid(format!("{ordinals} is not allowed; want an ordinal such as 3, or a range such as \"3-5\""))
    })
}

fn of_number(number: i32) -> Option<(i64, i64)> {
    (number >= 0).then_some((i64::from(number), i64::from(number)))
}

fn of_text(text: &str) -> Option<(i64, i64)> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<i64>().unwrap_or(i64::MAX))
    };
    let (from, to) = text.split_once('-')?;
    let (from, to) = (number(from)?, number(to)?);
    (from <= to).then_some((from.min(LAST + 1), to.min(LAST)))
}

/// The ordinals that a StatefulSet wants: `replicas` numbers from the start on that are not reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordinals {
    /// Sorted runs, both ends included.
    runs: Vec<(i64, i64)>,
    len: usize,
}

impl Ordinals {
    /// Collects them. There are fewer than `replicas` if the largest possible ordinal comes first.
    pub fn new(replicas: i32, start: i32, reserved: &Reserved) -> Self {
        let mut left = i64::from(replicas.max(0));
        let first = i64::from(start.max(0));
        let mut at = first;
        let mut ordinals = Self::default();
        let mut gaps = reserved.0.iter().skip_while(|(_, to)| *to < first);
        while left > 0 && at <= LAST {
            let gap = gaps.next();
            let free = gap.map_or(LAST, |(from, _)| from - 1).min(LAST);
            let take = (free - at + 1).clamp(0, left);
            if take > 0 {
                ordinals.runs.push((at, at + take - 1));
                ordinals.len += usize::try_from(take).unwrap_or(0);
                left -= take;
            }
            at = gap.map_or(LAST + 1, |(_, to)| to.saturating_add(1));
        }
        ordinals
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a Pod with this ordinal belongs to the StatefulSet. Every other one is surplus.
    pub fn contains(&self, ordinal: i32) -> bool {
        let ordinal = i64::from(ordinal);
        let after = self.runs.partition_point(|(from, _)| *from <= ordinal);
        after.checked_sub(1).is_some_and(|i| ordinal <= self.runs[i].1)
    }

    /// How many of them are smaller than an ordinal.
    pub fn place(&self, ordinal: i32) -> i32 {
        let ordinal = i64::from(ordinal);
        let smaller = self.runs.iter().map(|(from, to)| (ordinal.min(to + 1) - from).max(0));
        i32::try_from(smaller.sum::<i64>()).unwrap_or(i32::MAX)
    }

    /// All of them, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = i32> {
        // None is larger than LAST, which is an i32.
        self.runs.iter().flat_map(|(from, to)| *from..=*to).filter_map(|ordinal| i32::try_from(ordinal).ok())
    }

    /// One more than the largest one; the start if there are none.
    pub fn end(&self, start: i32) -> i64 {
        self.runs.last().map_or(i64::from(start), |(_, to)| to + 1)
    }
}

/// The name of the Pod with an ordinal.
pub fn pod_name(set: &str, ordinal: i32) -> String {
    format!("{set}-{ordinal}")
}

/// The ordinal of a Pod of the set, from its name. The number behind the last dash is the ordinal, so that the Pods of a
/// set `web-1` are never taken for Pods of `web`. None: it is no Pod of the set, or its number is written in another way
/// than ours or is too large for an ordinal.
pub fn ordinal_of(set: &str, pod: &str) -> Option<i32> {
    let (parent, digits) = pod.rsplit_once('-')?;
    let ordinal: i32 = digits.parse().ok()?;
    (parent == set && pod_name(set, ordinal) == pod).then_some(ordinal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn reserved(entries: Value) -> Reserved {
        Reserved::parse(&serde_json::from_value::<Vec<IntOrString>>(entries).unwrap()).unwrap()
    }
    fn ordinals(replicas: i32, start: i32, entries: Value) -> (Vec<i32>, i64) {
        let ordinals = Ordinals::new(replicas, start, &reserved(entries));
        (ordinals.iter().collect(), ordinals.end(start))
    }

    #[test]
    fn the_table_of_the_specification() {
        assert_eq!(ordinals(3, 0, json!([1])), (vec![0, 2, 3], 4));
        assert_eq!(ordinals(2, 0, json!([1])), (vec![0, 2], 3));
        assert_eq!(ordinals(4, 0, json!([1, 3])), (vec![0, 2, 4, 5], 6));
        assert_eq!(ordinals(4, 2, json!([1, 3])), (vec![2, 4, 5, 6], 7));
        assert_eq!(ordinals(4, 3, json!([1, 3])), (vec![4, 5, 6, 7], 8));
        assert_eq!(ordinals(3, 0, json!(["1-3"])), (vec![0, 4, 5], 6));
        assert_eq!(ordinals(0, 0, json!(["1-3"])), (vec![], 0));
        assert_eq!(ordinals(0, 5, json!([5])), (vec![], 5));
    }

    #[test]
    fn edge_06_reservations_beyond_replicas_that_overlap_or_lie_below_the_start_are_harmless() {
        assert_eq!(ordinals(2, 0, json!([7, "9-12"])), (vec![0, 1], 2));
        assert_eq!(ordinals(3, 0, json!(["1-3", "2-5", 3, 1])), (vec![0, 6, 7], 8));
        assert_eq!(ordinals(3, 10, json!([1, "0-9", "5-10"])), (vec![11, 12, 13], 14));
        assert_eq!(ordinals(3, 0, json!([])), (vec![0, 1, 2], 3), "a reservation that is taken away gives 1 back");
    }

    #[test]
    fn shortfall_10_1_09_a_huge_range_is_not_expanded_and_a_bad_entry_is_reported() {
        assert_eq!(ordinals(2, 0, json!(["1-2000000000"])), (vec![0, 2_000_000_001], 2_000_000_002));
        assert_eq!(ordinals(2, 0, json!(["1-99999999999999999999999"])).0, [0], "no ordinal is left");
        assert_eq!(ordinals(3, i32::MAX, json!([])).0, [i32::MAX]);
        for bad in [json!("5"), json!("3-1"), json!("a-b"), json!("-3"), json!("1-2-3"), json!(-1)] {
            let entry: IntOrString = serde_json::from_value(bad.clone()).unwrap();
            let Invalid(error) = Reserved::parse(&[IntOrString::Int(1), entry]).unwrap_err();
            assert!(error.contains(bad.to_string().trim_matches('"')), "{error}");
            assert!(ordinal_range(&bad).is_err(), "{bad}: the other field has the same rule");
        }
    }

    #[test]
    fn edge_06_a_range_may_go_on_beyond_the_largest_ordinal_or_begin_beyond_it() {
        const HUGE: &str = "99999999999999999999999";
        for (text, range) in [
            ("5-2147483647".to_owned(), (5, LAST)),
            ("5-2147483648".to_owned(), (5, LAST)),
            ("5-4294967295".to_owned(), (5, LAST)),
            (format!("5-{HUGE}"), (5, LAST)),
            ("2147483647-2147483648".to_owned(), (LAST, LAST)),
            ("2147483648-4294967295".to_owned(), (LAST + 1, LAST)),
            (format!("{HUGE}-{HUGE}"), (LAST + 1, LAST)),
        ] {
            assert_eq!(ordinal_range(&json!(text)), Ok(range), "{text}");
            let (none, all) = (range.0 > LAST, reserved(json!([1, text])));
            assert_eq!(all, if none { reserved(json!([1])) } else { Reserved(vec![(1, 1), range]) }, "{text}");
            assert!(all.contains(1) && all.contains(i32::MAX) != none && !all.contains(4), "{text}");
        }
        assert_eq!(ordinals(3, i32::MAX - 2, json!(["2147483648-4294967295"])).0.len(), 3, "all are left");
        for odd in [json!("4294967295-2147483648"), json!(2_147_483_648_i64), json!(4_294_967_295_i64)] {
            assert!(ordinal_range(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn edge_23_a_set_whose_name_begins_another_ones_never_takes_its_pods() {
        assert_eq!(ordinal_of("a", "a-1-0"), None);
        assert_eq!(ordinal_of("a-1", "a-1-0"), Some(0));
        assert_eq!(ordinal_of("a", "a-1"), Some(1));
        for odd in ["a-01", "a-", "a", "a-+1", "a-2147483648", "b-1", "a-x", "a-99999999999999999999"] {
            assert_eq!(ordinal_of("a", odd), None, "{odd}");
        }
        assert_eq!(ordinal_of("a", "a-2147483647"), Some(i32::MAX));
    }

    proptest! {
        #[test]
        fn ordinals_are_the_first_that_are_not_reserved(replicas in 0..30, start in 0..20, entries in proptest::collection::vec((0..60_i64, 0..8_i64), 0..8)) {
            let entries = entries.iter().map(|(from, more)| json!(format!("{from}-{}", from + more))).collect();
            let reserved = reserved(Value::Array(entries));
            let ordinals = Ordinals::new(replicas, start, &reserved);
            let plain: Vec<i32> = (start..).filter(|n| !reserved.contains(*n)).take(usize::try_from(replicas).unwrap()).collect();
            prop_assert_eq!(ordinals.iter().collect::<Vec<_>>(), plain.clone());
            prop_assert_eq!(ordinals.len(), plain.len());
            for n in 0..120 {
                prop_assert_eq!(ordinals.contains(n), plain.contains(&n));
            }
        }
    }
}
