//! Valid documents with a few places damaged: most are still read as what they should be, and reach the rules.

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::{Value, json};

use super::pointer::escaped;

/// Values that break what trusts a type, a range, a length or a depth.
fn hostile_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop::sample::select(vec![
            json!(null), json!(true), json!(""), json!([]), json!({}), json!([null]), json!({"a": [{}]}), json!(0), json!(-1),
            json!(1), json!(2_147_483_647), json!(-2_147_483_648i64), json!(2_147_483_648i64), json!(i64::MAX), json!(i64::MIN),
            json!(u64::MAX), json!(1e308), json!(-0.5), json!("containerd://"), json!("://"), json!("containerd://c1"), json!("0"),
            json!("True"), json!("False"), json!("Recreating"), json!("Completed"), json!("Fail"), json!("../../x"), json!("a\u{0}b"),
            json!("\u{202e}\u{feff}é𝄞"), json!("-009999-01-02T01:59:59Z"), json!("9999-12-30T22:00:00.999999999Z"),
            json!("2026-01-01T00:00:00Z"), json!("[{\"userAgent\":\"\",\"key\":\"\"}]"), json!("apps.kruise.io/unready-acquired"),
        ]),
        1 => Just(json!("x".repeat(20_000))),
        1 => (1..120usize).prop_map(|depth| (0..depth).fold(json!(1), |inner, _| json!([inner]))),
        1 => any::<i64>().prop_map(|number| json!(number)),
        1 => "\\PC{0,40}".prop_map(|text| json!(text)),
    ]
}

#[derive(Clone, Debug)]
enum Damage {
    Replace(Value),
    Remove,
    Repeat,
    Swap(Index),
}

fn damage() -> impl Strategy<Value = (Index, Damage)> {
    let what = prop_oneof![
        6 => hostile_value().prop_map(Damage::Replace),
        1 => Just(Damage::Remove),
        1 => Just(Damage::Repeat),
        1 => any::<Index>().prop_map(Damage::Swap),
    ];
    (any::<Index>(), what)
}

/// All places of a value, as JSON pointers, those within others first.
pub(crate) fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let at = format!("{at}/{}", escaped(key));
            pointers(value, &at, found);
            found.push(at);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| {
            let at = format!("{at}/{i}");
            pointers(value, &at, found);
            found.push(at);
        }),
        _ => {}
    }
}

/// A value with up to four places damaged.
pub(crate) fn damaged(value: Value) -> impl Strategy<Value = Value> {
    vec(damage(), 0..5).prop_map(move |damages| with(value.clone(), &damages))
}

fn with(mut document: Value, damages: &[(Index, Damage)]) -> Value {
    for (index, damage) in damages {
        let mut all = Vec::new();
        pointers(&document, "", &mut all);
        if all.is_empty() {
            break;
        }
        let at = &all[index.index(all.len())];
        let (parent, key) = at.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        match damage {
            Damage::Replace(value) => *document.pointer_mut(at).unwrap() = value.clone(),
            Damage::Swap(other) => {
                let value = document.pointer(&all[other.index(all.len())]).unwrap().clone();
                *document.pointer_mut(at).unwrap() = value;
            }
            Damage::Remove => match document.pointer_mut(parent).unwrap() {
                Value::Object(map) => drop(map.remove(&key)),
                Value::Array(list) => drop(list.remove(key.parse().unwrap())),
                _ => {}
            },
            Damage::Repeat => {
                if let Value::Array(list) = document.pointer_mut(parent).unwrap() {
                    let twice = list[key.parse::<usize>().unwrap()].clone();
                    list.push(twice);
                }
            }
        }
    }
    document
}
