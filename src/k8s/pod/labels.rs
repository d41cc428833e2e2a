//! The labels of a Pod.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::k8s::shared::{Pool, Text};

/// Labels, sorted by key, in shared strings: thousands of Pods have the same few texts, and the same keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels {
    keys: Arc<[Arc<str>]>,
    /// As many as keys.
    values: Arc<[Arc<str>]>,
}

static LABEL_KEYS: Pool<[Arc<str>]> = Pool::new();

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.keys.binary_search_by(|k| (**k).cmp(key)).ok()?;
        self.values.get(at).map(|value| &**value)
    }
    /// A value that is this text, whatever its key.
    pub fn value(&self, text: &str) -> Option<&Arc<str>> {
        self.values.iter().find(|value| ***value == *text)
    }
    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().zip(self.values.iter()).map(|(k, v)| (&**k, &**v))
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
                while let Some((key, value)) = map.next_entry::<Text, Text>()? {
                    pairs.push((key.into(), value.into()));
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
        let (keys, values): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        Self { keys: LABEL_KEYS.share(keys), values: values.into() }
    }
}
