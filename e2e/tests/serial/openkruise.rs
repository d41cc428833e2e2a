//! What OpenKruise would read of the objects that kruise-rs leaves behind, by definitions in place of ours. Its own were
//! never recorded: these are ours, with only the fields and types that OpenKruise has by the list of `doctor --return`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use e2e::kit::{Build, Installed, Look, PATIENCE, Test, app, installed, poll, workload};
use kube::api::PostParams;
use serde_json::{Value, json};

/// The list: definition, path and type.
const LIST: &str = "src/plugin/rules/doctor/testdata/openkruise-1.9.txt";
const DEFINITION: &str = "CustomResourceDefinition";

/// Puts such definitions in place of ours, while nothing of ours runs. The objects whose specs have lost something by it,
/// or have something of another type, as `KIND NAMESPACE/NAME`. Installing again brings our definitions back.
pub(crate) async fn misread(t: &Test) -> Result<BTreeSet<String>> {
    let list = std::fs::read_to_string(t.paths.repo.join(LIST)).context(LIST)?;
    let mut kinds: Vec<&Installed> = installed().iter().filter(|kind| kind.group != "kruise.rs").collect();
    // The API server takes definitions up in the order in which they are written: the last one is waited for.
    kinds.sort_by_key(|kind| kind.kind == "StatefulSet");
    let before = specs(t, &kinds).await?;
    let mut schemas = BTreeMap::new();
    for kind in &kinds {
        let name = name(kind);
        let prefix = format!("{name} ");
        let lines = list.lines().filter_map(|line| line.strip_prefix(prefix.as_str()));
        let known: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once(' ')).collect();
        ensure!(!known.is_empty(), "{LIST} has nothing of {name}");
        let mut versions = t.get(DEFINITION, &name).await?["spec"]["versions"].clone();
        for version in versions.as_array_mut().context("versions")? {
            let schema = &mut version["schema"]["openAPIV3Schema"];
            without_rules(schema);
            let spec = &mut schema["properties"]["spec"];
            reduce(spec, "spec", &known);
            schemas.insert(&kind.kind, spec.clone());
        }
        t.patch(DEFINITION, &name, json!({ "spec": { "versions": versions } })).await?;
    }
    served(t).await?;
    let after = specs(t, &kinds).await?;
    let mut misread = BTreeSet::new();
    // Objects of other tests may go at any moment.
    let own = format!("{}/", t.namespace);
    let is_of_test = |at: &str| at.starts_with('/') || at.starts_with(&own);
    for (object, spec) in &before {
        let Some(now) = after.get(object).filter(|_| is_of_test(&object.1)) else { continue };
        let schema = schemas.get(&object.0).with_context(|| format!("no schema of {}", object.0))?;
        if now != spec || !fits(schema, spec) {
            misread.insert(format!("{} {}", object.0, object.1));
        }
    }
    Ok(misread)
}

fn name(kind: &Installed) -> String {
    format!("{}.{}", kind.plural, kind.group)
}

/// The specs of all objects, by kind and `NAMESPACE/NAME`.
async fn specs(t: &Test, kinds: &[&Installed]) -> Result<BTreeMap<(String, String), Value>> {
    let names: Vec<String> = kinds.iter().map(|kind| name(kind)).collect();
    let list: Value = serde_json::from_str(&t.kubectl(&["get", &names.join(","), "-A", "-o", "json"]).await?)?;
    let spec = |object: &Value| {
        let at = format!("{}/{}", object.text("/metadata/namespace"), object.text("/metadata/name"));
        ((object.text("/kind").to_owned(), at), object["spec"].clone())
    };
    Ok(list.array("/items").iter().map(spec).collect())
}

/// OpenKruise's definitions have no rules in CEL, and ours name fields that are left out.
fn without_rules(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("x-kubernetes-validations");
    }
}

fn type_of(schema: &Value) -> &str {
    match schema["x-kubernetes-int-or-string"] == true {
        true => "int-or-string",
        false => schema["type"].as_str().unwrap_or("any"),
    }
}

/// Leaves of a schema what is in the list. Where OpenKruise has another type, the list has that one.
fn reduce(schema: &mut Value, at: &str, known: &BTreeMap<&str, &str>) {
    without_rules(schema);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, member| {
            let at = format!("{at}.{name}");
            let Some(type_) = known.get(at.as_str()) else { return false };
            if type_of(member) != *type_ {
                *member = json!({ "type": type_ });
            }
            reduce(member, &at, known);
            true
        });
    }
    for (member, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(member) = schema.get_mut(member) {
            reduce(member, &format!("{at}{mark}"), known);
        }
    }
}

/// Whether everything in a value has the type of its schema.
fn fits(schema: &Value, value: &Value) -> bool {
    let is_of_type = match type_of(schema) {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "int-or-string" => value.is_i64() || value.is_string(),
        _ => true,
    };
    let member = |(name, value): (&String, &Value)| match schema["properties"].get(name) {
        Some(schema) => fits(schema, value),
        None => fits(&schema["additionalProperties"], value),
    };
    match value {
        Value::Null => true,
        Value::Object(members) => is_of_type && members.iter().all(member),
        Value::Array(items) => is_of_type && items.iter().all(|item| fits(&schema["items"], item)),
        _ => is_of_type,
    }
}

/// Waits until the definitions are served: a StatefulSet whose partition is not a number is refused.
async fn served(t: &Test) -> Result<()> {
    let set = workload("StatefulSet", "asked", 0, vec![app("main")])
        .with("/apiVersion", "apps.kruise.io/v1beta1")
        .with("/spec/updateStrategy/rollingUpdate/partition", "0%");
    poll("the definitions to be served", PATIENCE, async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let object = serde_json::from_value(set.clone())?;
        match t.api("AdvancedStatefulSet").create(&dry_run, &object).await {
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("a partition in percent is taken"),
        }
    })
    .await
}
