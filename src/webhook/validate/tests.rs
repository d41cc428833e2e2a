use serde_json::json;

use super::*;

fn found(judge: impl FnOnce(&mut Findings, &Object), object: Value) -> Findings {
    let mut found = Findings::default();
    judge(&mut found, object.as_object().unwrap());
    found
}

/// The fields of causes, and wrong types in words.
fn fields(found: &Findings) -> (Vec<&str>, &[String]) {
    (found.causes.iter().map(|cause| cause.field.as_str()).collect(), &found.wrong_types)
}

fn request(operation: &str, object: Value) -> Request {
    Request { operation: operation.into(), object, ..Request::default() }
}

#[test]
fn only_creations_and_updates_of_the_object_itself_are_judged() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert!(is_judged(&request("CREATE", json!({}))) && is_judged(&request("UPDATE", json!({}))));
    assert!(is_judged(&request("UPDATE", json!({"metadata": {"deletionTimestamp": null}}))));
    assert!(!is_judged(&request("DELETE", json!({}))) && !is_judged(&request("UPDATE", going)));
    assert!(!is_judged(&Request { sub_resource: "status".into(), ..request("UPDATE", json!({})) }));
}

#[test]
fn defaults_take_the_place_of_what_is_missing_null_or_empty() {
    for (before, after) in [
        (json!({}), json!({"a": 1})),
        (json!({"a": null}), json!({"a": 1})),
        (json!({"a": ""}), json!({"a": 1})),
        (json!({"a": 0}), json!({"a": 0})),
        (json!({"a": {}}), json!({"a": {}})),
    ] {
        let mut object = before.as_object().unwrap().clone();
        drop_empty(&mut object, "a");
        set_default(&mut object, "a", json!(1));
        assert_eq!(Value::from(object), after, "{before}");
    }
}

#[test]
fn a_choice_is_refused_with_the_list_of_what_is_allowed() {
    let of = |allowed: &[&str], value: Value| {
        found(
            |found, spec| {
                found.one_of(spec, "spec.", "type", allowed);
            },
            json!({"type": value}),
        )
    };
    let all = ["A", "B", "C"];
    for value in [json!("A"), json!("C"), json!(""), json!(null)] {
        assert_eq!(of(&all, value.clone()), Findings::default(), "{value}");
    }
    for (allowed, words) in [(&all[..], "want A, B or C"), (&all[..2], "want A or B"), (&all[..1], "want A")] {
        let found = of(allowed, json!("x"));
        assert_eq!((found.causes[0].field.as_str(), fields(&found).1.len()), ("spec.type", 0));
        assert!(found.causes[0].message.ends_with(words), "{found:?}");
    }
    assert_eq!(of(&all, json!(1)).wrong_types, ["spec.type: 1 is not allowed; want text"]);
}

#[test]
fn what_the_stored_object_has_too_is_left_out() {
    let of = |replicas: i64, name: &str| {
        found(
            |found, spec| {
                found.integer(spec, "spec.", "replicas", 0);
                found.label("spec.name", name, &[]);
            },
            json!({"replicas": replicas}),
        )
    };
    let mut update = of(-1, "a b");
    update.leave_out(&of(-1, "ok"));
    assert_eq!(fields(&update).0, ["spec.name"]);
    assert_eq!(update.refuse().unwrap_err().code, 422);
    update.leave_out(&of(-1, "a b"));
    assert_eq!(update.refuse(), Ok(()));
}

#[test]
fn wrong_types_are_refused_together() {
    let found = found(
        |found, spec| {
            found.flag(spec, "spec.", "paused");
            found.list(spec, "spec.", "claims");
        },
        json!({"paused": 1, "claims": {}}),
    );
    let denied = found.refuse_wrong_types().unwrap_err();
    assert_eq!(denied.code, 400);
    assert_eq!(
        denied.message,
        "spec.paused: 1 is not allowed; want true or false; spec.claims: {} is not allowed; want a list"
    );
}

#[test]
fn more_than_all_is_refused_where_it_means_nothing() {
    let of = |value: Value| {
        let mut read = None;
        let share = |found: &mut Findings, spec: &Object| read = found.share_up_to_all(spec, "spec.", "partition");
        let found = found(share, json!({"partition": value}));
        (read, found)
    };
    for (value, wanted) in [
        (json!("100%"), Some(IntOrPercent::Percent(100.0))),
        (json!(101), Some(IntOrPercent::Int(101))),
        (json!(null), None),
    ] {
        assert_eq!(of(value), (wanted, Findings::default()));
    }
    let (read, found) = of(json!("101%"));
    let message = "\"101%\" is not allowed; want a whole percentage from 0% to 100%".to_owned();
    let cause = Cause { field: "spec.partition".to_owned(), message };
    assert_eq!((read, found), (None, Findings { causes: vec![cause], ..Findings::default() }));
}

#[test]
fn names_are_limited_only_where_a_kind_says_so() {
    let of = |metadata: Value, longest: Option<(usize, &str)>| {
        found(|found, metadata| found.object_name(metadata, longest), metadata)
    };
    let limit = Some((10, ", because"));
    assert_eq!(of(json!({"name": "a".repeat(11)}), None), Findings::default());
    let long = of(json!({"name": "a".repeat(11)}), limit);
    assert!(long.causes[0].message.ends_with(" has 11 characters; want up to 10, because"), "{long:?}");
    let base = of(json!({"generateName": "abcdefg-"}), limit);
    assert_eq!(fields(&base).0, ["metadata.generateName"]);
    assert_eq!(base.causes[0].message, "\"abcdefg-\" makes a name of 13 characters; want up to 10, because");
    assert_eq!(fields(&of(json!({"name": "A"}), None)).0, ["metadata.name"]);
}
