//! The labels of a Pod.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::{
    api::labels,
    k8s::shared::{self, Pool, Text, Weigh},
};

/// Labels whose values differ from object to object.
const OWN: [&str; 6] = [
    labels::POD_NAME,
    labels::POD_INDEX,
    labels::INSTANCE_ID,
    "batch.kubernetes.io/job-completion-index",
    "kubernetes.io/hostname",
    "kubernetes.io/metadata.name",
];

/// Those of them whose values no two Pods of a namespace share: a copy for all would be one more, until the pool is swept.
const UNIQUE: [&str; 2] = [labels::POD_NAME, labels::INSTANCE_ID];

/// The value of a label; one that many objects have is held once.
pub(super) fn value_of(key: &str, value: &str) -> Arc<str> {
    if UNIQUE.contains(&key) { value.into() } else { shared::text(value) }
}

/// Labels, sorted by key. What the Pods of one workload have in common, which is most of it, is held once for all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels {
    common: Arc<Common>,
    /// The values of [`OWN`], by key.
    own: Box<[Arc<str>]>,
}

/// What many objects have.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Common {
    keys: Arc<[Arc<str>]>,
    /// As many as keys; None: the next value of its own.
    values: Box<[Option<Arc<str>>]>,
}

impl AsRef<Common> for Common {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Weigh for Common {
    fn weight(&self) -> usize {
        let values = self.values.iter().map(|value| size_of::<Arc<str>>() + value.as_ref().map_or(0, |v| v.len()));
        self.keys.weight() + values.sum::<usize>()
    }
}

static LABEL_KEYS: Pool<[Arc<str>]> = Pool::new();
static COMMON: Pool<Common> = Pool::new();

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let Common { keys, values } = &*self.common;
        let at = keys.binary_search_by(|k| (**k).cmp(key)).ok()?;
        match values.get(at)? {
            Some(value) => Some(&**value),
            None => {
                let before = values.iter().take(at).filter(|value| value.is_none()).count();
                self.own.get(before).map(|value| &**value)
            }
        }
    }
    /// Holds this text once, where one of the object's own values is the same.
    pub(super) fn share(&mut self, text: &Arc<str>) {
        self.own.iter_mut().filter(|value| ***value == **text).for_each(|value| *value = text.clone());
    }
    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let Common { keys, values } = &*self.common;
        let mut own = self.own.iter();
        keys.iter().zip(values.iter()).map(move |(key, value)| {
            let value = value.as_ref().or_else(|| own.next());
            (&**key, value.map_or("", |value| &**value))
        })
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(Arc<str>, Arc<str>)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8).min(64));
                while let Some(key) = map.next_key::<Text>()? {
                    let value = match UNIQUE.contains(&key.as_str()) {
                        true => map.next_value::<Arc<str>>()?,
                        false => map.next_value::<Text>()?.into(),
                    };
                    pairs.push((key.into(), value));
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Pairs).map(Self::from)
    }
}

impl From<Vec<(Arc<str>, Arc<str>)>> for Labels {
    fn from(mut pairs: Vec<(Arc<str>, Arc<str>)>) -> Self {
        // Of equal keys the last one counts, as everywhere.
        pairs.reverse();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs.dedup_by(|(a, _), (b, _)| a == b);
        let mut own = Vec::new();
        let (mut keys, mut values) = (Vec::with_capacity(pairs.len()), Vec::with_capacity(pairs.len()));
        for (key, value) in pairs {
            let is_own = OWN.contains(&&*key);
            keys.push(key);
            values.push((!is_own).then(|| value.clone()));
            if is_own {
                own.push(value);
            }
        }
        let common = Common { keys: LABEL_KEYS.share(keys), values: values.into() };
        Self { common: COMMON.share(common), own: own.into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(labels: Value) -> Labels {
        serde_json::from_value(labels).unwrap()
    }

    #[test]
    fn what_pods_of_a_workload_have_in_common_is_held_once() {
        let pod = |ordinal: u32| {
            of(
                json!({"app": "web", "zone": "a", labels::POD_NAME: format!("web-{ordinal}"), labels::POD_INDEX: ordinal.to_string()}),
            )
        };
        let (one, two) = (pod(1), pod(2));
        assert!(Arc::ptr_eq(&one.common, &two.common) && one != two && one == pod(1));
        assert_eq!((one.get(labels::POD_NAME), two.get(labels::POD_INDEX)), (Some("web-1"), Some("2")));
        assert_eq!((two.get("app"), two.get("zone"), two.get("x")), (Some("web"), Some("a"), None));
        let all: Vec<(&str, &str)> = two.iter().collect();
        assert_eq!(all, [("app", "web"), (labels::POD_INDEX, "2"), (labels::POD_NAME, "web-2"), ("zone", "a")]);
    }

    #[test]
    fn a_value_that_is_the_name_of_the_pod_is_held_with_it() {
        let mut labels = of(json!({"app": "web-1", labels::POD_NAME: "web-1", labels::POD_INDEX: "1"}));
        let name: Arc<str> = "web-1".into();
        labels.share(&name);
        assert_eq!(Arc::strong_count(&name), 2, "by the label that differs from Pod to Pod");
        assert_eq!(labels, of(json!({"app": "web-1", labels::POD_NAME: "web-1", labels::POD_INDEX: "1"})));
    }

    #[test]
    fn what_no_two_pods_share_is_in_no_pool() {
        let own = of(json!({labels::INSTANCE_ID: "xk2p9", labels::POD_INDEX: "70707", labels::POD_NAME: "alone-7"}));
        let held: Vec<usize> = own.own.iter().map(Arc::strong_count).collect();
        assert_eq!(held, [1, 2, 1], "of an index there is one text");
        let values = [(labels::INSTANCE_ID, 1), (labels::POD_INDEX, 3), (labels::POD_NAME, 1)];
        for (key, held) in values {
            let value = value_of(key, own.get(key).unwrap());
            assert_eq!((&*value, Arc::strong_count(&value)), (own.get(key).unwrap(), held), "{key}");
        }
    }

    #[test]
    fn there_may_be_no_labels_and_no_values_in_common() {
        assert_eq!((of(json!({})), Labels::default().iter().count()), (Labels::default(), 0));
        let own = of(json!({labels::INSTANCE_ID: "abcde"}));
        assert_eq!((own.get(labels::INSTANCE_ID), own.iter().count()), (Some("abcde"), 1));
        assert_ne!(own, of(json!({labels::INSTANCE_ID: "fghij"})));
    }
}
