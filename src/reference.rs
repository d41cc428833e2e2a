//! Renders `docs/reference.md`: the fields of every custom resource, the feature gates and the flags of the roles, from
//! the tables and types that the program itself works with.
//!
//! The output is committed; a test fails when it is stale.

use std::fmt::Write as _;

use serde_json::Value;

use crate::api::{
    CRDS,
    feature_gates::{GATES, Stage, gate},
};

const HEADER: &str = "<!-- Written by `make manifests` from the program's own types; changes here are overwritten. -->

# Reference

What every field means, as `kubectl explain` shows it, and what its value is limited to.
";

/// The gates that switch something in this program. The others are known, so that a configuration of OpenKruise is taken.
const IN_USE: &[&str] = &[
    gate::POD_WEBHOOK,
    gate::KRUISE_DAEMON,
    gate::DAEMON_WATCHING_POD,
    gate::KRUISE_POD_READINESS_GATE,
    gate::CLONE_SET_SHORT_HASH,
    gate::CLONE_SET_PARTITION_ROLLBACK,
    gate::PREPARING_UPDATE_AS_UPDATE,
    gate::RECREATE_ON_CLAIM_CHANGE,
    gate::IN_PLACE_UPDATE_ENV,
    gate::PRE_DOWNLOAD,
    gate::PRE_DOWNLOAD_DAEMON_SET,
    gate::IMAGE_PULL_JOB,
    gate::RESIZE_IN_PLACE,
    gate::BUDGETS_GUARD_DELETION,
    gate::BUDGETS_GUARD_UPDATES,
    gate::POD_VERTICAL_SCALING,
    gate::POD_PROBE_MARKER,
    gate::SERVERLESS_PROBES,
    gate::DELETE_CLAIMS,
    gate::START_ORDINAL,
    gate::RESIZE_CLAIMS,
    gate::POD_INDEX_LABEL,
    gate::TEMPLATE_NO_DEFAULTS,
    gate::SIDECAR_SET_METADATA,
    gate::SORT_SIDECARS,
    gate::DELETION_PROTECTION,
    gate::EXTERNAL_CERTS,
    gate::SIDECAR_TERMINATOR,
    gate::RESOURCE_DISTRIBUTION,
    gate::WORKLOAD_SPREAD,
];

/// The whole page. `programs` are the grammars of the command lines.
pub fn render(programs: &[clap::Command]) -> String {
    let mut page = HEADER.to_owned();
    let definitions: Vec<Value> = CRDS.iter().map(|crd| serde_json::json!(crd.render())).collect();
    for definition in &definitions {
        let kind = text(&definition["spec"]["names"]["kind"]);
        let _ = write!(page, "\n- [{kind}](#{})", kind.to_lowercase());
    }
    page += "\n- [Feature gates](#feature-gates)\n- [Flags](#flags)\n";
    for definition in &definitions {
        kind(&mut page, definition);
    }
    gates(&mut page);
    flags(&mut page, programs);
    page
}

/// The section of one custom resource definition.
fn kind(page: &mut String, definition: &Value) {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let kind = text(&names["kind"]);
    let versions = list(&spec["versions"]);
    let Some(stored) = versions.iter().find(|version| version["storage"] == true) else { return };
    let schema = &stored["schema"]["openAPIV3Schema"];
    let served: Vec<String> = versions
        .iter()
        .filter(|version| version["served"] == true)
        .map(|version| format!("`{}/{}`", text(&spec["group"]), text(&version["name"])))
        .collect();
    let short: Vec<String> = list(&names["shortNames"]).iter().map(|name| format!("`{}`", text(name))).collect();
    let _ = writeln!(page, "\n## {kind}\n\n{}\n", prose(text(&schema["description"])));
    for rule in messages(schema) {
        let _ = writeln!(page, "Rule: {rule}.\n");
    }
    let _ = writeln!(page, "| | |\n|---|---|\n| served as | {} |", served.join(", "));
    let _ = writeln!(page, "| stored as | `{}` |", text(&stored["name"]));
    let _ = writeln!(page, "| plural, short name | `{}`, {} |", text(&names["plural"]), short.join(", "));
    let _ = writeln!(page, "| scope | {} |", text(&spec["scope"]));
    page.push_str("\nColumns of `kubectl get`, those marked *wide* only with `-o wide`:\n\n| column | from | meaning |\n|---|---|---|\n");
    for column in list(&stored["additionalPrinterColumns"]) {
        let wide = if column["priority"].as_i64().unwrap_or_default() > 0 { " *wide*" } else { "" };
        let meaning = prose(text(&column["description"]));
        let _ =
            writeln!(page, "| {}{wide} | `{}` | {meaning} |", text(&column["name"]), cell(text(&column["jsonPath"])));
    }
    for part in ["spec", "status"] {
        fields(page, kind, part, &schema["properties"][part]);
    }
}

/// The table of an object's fields, then the tables of the objects in it.
fn fields(page: &mut String, kind: &str, path: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let _ = writeln!(page, "\n### {kind} {path}\n\n{}", prose(text(&schema["description"])));
    for rule in messages(schema) {
        let _ = writeln!(page, "\nRule: {rule}.");
    }
    page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    let required = list(&schema["required"]);
    let mut nested = Vec::new();
    for (name, field) in properties {
        let must = if required.iter().any(|r| r == name) { ", required" } else { "" };
        let mut meaning = prose(text(&field["description"]));
        for limit in limits(field) {
            let _ = write!(meaning, " *{limit}.*");
        }
        let _ = writeln!(page, "| `{name}` | {}{must} | {} |", type_of(field), meaning.trim());
        let (inner, suffix) = match field["type"].as_str() {
            Some("array") => (&field["items"], "[]"),
            _ if field["additionalProperties"].is_object() => (&field["additionalProperties"], ".*"),
            _ => (field, ""),
        };
        nested.push((format!("{path}.{name}{suffix}"), inner));
    }
    for (path, inner) in nested {
        fields(page, kind, &path, inner);
    }
}

fn type_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "number or text".into();
    }
    let plain = match field["type"].as_str().unwrap_or_default() {
        "array" => return format!("list of {}", type_of(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            return format!("map to {}", type_of(&field["additionalProperties"]));
        }
        "string" if field["format"] == "date-time" => "time",
        "string" => "text",
        "integer" => "whole number",
        "number" => "number",
        "boolean" => "true or false",
        "object" => "object",
        _ => "any",
    };
    plain.into()
}

/// What a schema demands of a value, in words.
fn limits(field: &Value) -> Vec<String> {
    let mut limits = Vec::new();
    let number = |key: &str| field[key].as_f64();
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().filter_map(Value::as_str).map(|v| format!("`{v}`")).collect();
        limits.push(format!("One of {}", values.join(", ")));
    }
    for (low, high, what) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " entries"),
    ] {
        match (number(low), number(high)) {
            (Some(low), Some(high)) => limits.push(format!("{low} to {high}{what}")),
            (Some(low), None) => limits.push(format!("At least {low}{what}")),
            (None, Some(high)) => limits.push(format!("At most {high}{what}")),
            (None, None) => {}
        }
    }
    if let Some(pattern) = field["pattern"].as_str() {
        limits.push(format!("Must match `{}`", cell(pattern)));
    }
    if !field["default"].is_null() {
        limits.push(format!("Default `{}`", cell(&field["default"].to_string())));
    }
    // The rules of an object stand above the table of its fields.
    if field["properties"].is_null() {
        limits.extend(messages(field).into_iter().map(|message| format!("Rule: {message}")));
    }
    limits
}

fn messages(schema: &Value) -> Vec<String> {
    let rules = list(&schema["x-kubernetes-validations"]).iter();
    rules.map(|rule| prose(rule["message"].as_str().unwrap_or_else(|| text(&rule["rule"])))).collect()
}

fn gates(page: &mut String) {
    page.push_str(
        "\n## Feature gates\n\nNames and defaults are OpenKruise's. They are read from the ConfigMap \
         `kruise-feature-gates` and from `--feature-gates`, which wins; an unknown gate is an error at start. `AllAlpha` and \
         `AllBeta` switch whole stages, but for `EnableExternalCerts`, which is switched by its name only.\n",
    );
    let table = |page: &mut String, used: bool| {
        page.push_str("\n| gate | default | stage | what it switches |\n|---|---|---|---|\n");
        for gate in GATES.iter().filter(|gate| IN_USE.contains(&gate.name) == used) {
            let default = if gate.default { "on" } else { "off" };
            let stage = match gate.stage {
                Stage::Alpha => "alpha",
                Stage::Beta => "beta",
            };
            let _ = writeln!(page, "| `{}` | {default} | {stage} | {} |", gate.name, prose(gate.about));
        }
    };
    page.push_str("\nThese switch something:\n");
    table(page, true);
    page.push_str(
        "\nThese are known, so that a configuration of OpenKruise is taken, but what they switch is not there yet:\n",
    );
    table(page, false);
}

fn flags(page: &mut String, programs: &[clap::Command]) {
    page.push_str(
        "\n## Flags\n\nAs `kruise-rs ROLE --help` and `kubectl kruise COMMAND --help` list them. Flags of OpenKruise's manager \
         and daemon that have no meaning here are taken and named in the log.\n",
    );
    for program in programs {
        let name = program.get_bin_name().unwrap_or(program.get_name());
        with_commands(page, name, program);
    }
}

fn with_commands(page: &mut String, name: &str, command: &clap::Command) {
    flags_of(page, name, command);
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set()) {
        with_commands(page, &format!("{name} {}", inner.get_name()), inner);
    }
}

fn flags_of(page: &mut String, name: &str, command: &clap::Command) {
    let is_own = |arg: &&clap::Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let shown: Vec<&clap::Arg> = command.get_arguments().filter(is_own).collect();
    if shown.is_empty() {
        return;
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(page, "\n### {name}\n\n{}.\n", prose(about.trim_end_matches('.')));
    page.push_str("| flag | default | meaning |\n|---|---|---|\n");
    for arg in shown {
        let short = arg.get_short().map_or(String::new(), |short| format!("`-{short}`, "));
        let flag = match (arg.get_long(), arg.get_value_names()) {
            (Some(long), _) => format!("{short}`--{long}`"),
            (None, Some([name, ..])) => format!("`{name}`"),
            (None, _) => format!("`{}`", arg.get_id().as_str().to_uppercase()),
        };
        let mut defaults: Vec<String> = if arg.is_hide_default_value_set() || !arg.get_action().takes_values() {
            Vec::new()
        } else {
            arg.get_default_values().iter().map(|v| format!("`{}`", v.to_string_lossy())).collect()
        };
        defaults.retain(|default| default != "``");
        let environment = arg.get_env().map(|name| format!(" Environment: `{}`.", name.to_string_lossy()));
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = format!("{}.{}", help.trim_end_matches('.'), environment.unwrap_or_default());
        let _ = writeln!(page, "| {flag} | {} | {} |", defaults.join(", "), prose(&help));
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Text in a table: one line, and `|` is no border.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Prose in a table: `<` outside of code is no tag.
fn prose(text: &str) -> String {
    let parts = cell(text);
    let parts = parts.split('`').enumerate();
    parts
        .map(|(i, part)| if i % 2 == 0 { part.replace('<', "&lt;").replace('*', "\\*") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_reported_in_words() {
        let field = json!({"type": "integer", "minimum": 3.0, "default": 5});
        assert_eq!(
            (type_of(&field).as_str(), limits(&field)),
            ("whole number", vec!["At least 3".into(), "Default `5`".into()])
        );
        let field = json!({"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": 4});
        assert_eq!((type_of(&field).as_str(), limits(&field)), ("list of object", vec!["1 to 4 entries".to_owned()]));
        let field = json!({"type": "string", "enum": ["A", "B"]});
        assert_eq!(limits(&field), ["One of `A`, `B`"]);
        assert_eq!(prose("a | <b>, `<c>`"), "a \\| &lt;b>, `<c>`");
    }

    #[test]
    fn the_gates_in_use_are_those_that_code_asks_for() {
        let source = include_str!("api/feature_gates.rs");
        let named = source.split("pub mod gate {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
        let mut named: Vec<&str> = named.split('"').skip(1).step_by(2).collect();
        let mut used = IN_USE.to_vec();
        named.sort_unstable();
        used.sort_unstable();
        assert_eq!(named, used);
    }
}
