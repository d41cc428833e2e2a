//! The rules of ARCHITECTURE.md, checked by reading the sources: who may import whom, and what must stay pure.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// What each top-level module may import of ours, besides itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("cri", &[]),
    ("k8s", &["api"]),
    ("domain", &["k8s", "api"]),
    ("runtime", &["k8s", "api"]),
    ("budgets", &["runtime", "domain", "k8s", "api"]),
    ("controllers", &["budgets", "runtime", "domain", "k8s", "api"]),
    ("webhook", &["budgets", "runtime", "domain", "k8s", "api"]),
    ("daemon", &["runtime", "domain", "k8s", "api", "cri"]),
    ("pull_secrets", &["runtime", "domain", "k8s", "api"]),
    ("manifests", &["controllers", "webhook", "daemon", "pull_secrets", "domain", "k8s", "api"]),
    (
        "roles",
        &[
            "budgets",
            "controllers",
            "webhook",
            "daemon",
            "pull_secrets",
            "manifests",
            "runtime",
            "domain",
            "k8s",
            "api",
            "cri",
        ],
    ),
    ("plugin", &["manifests", "runtime", "domain", "k8s", "api"]),
    ("simulation", &["domain", "k8s", "api"]),
    ("fuzzing", &["budgets", "webhook", "daemon", "runtime", "domain", "k8s", "api", "cri"]),
    ("reference", &["api"]),
    ("supply_chain", &[]),
    ("docs", &["budgets", "webhook", "daemon", "runtime", "api"]),
    ("cli", &["roles", "manifests", "plugin", "reference", "runtime", "api"]),
    ("main", &["cli"]),
    ("lib", &[]),
];

/// Modules whose parts must not import each other: what two share sinks to `domain` or `runtime`.
const SIBLINGS: &[&str] = &["controllers"];

/// What pure code must not contain, and what to do instead.
const IMPURE: &[(&str, &str)] = &[
    (".await", "move the I/O to the caller and pass its result in"),
    ("kube::Client", "move the I/O to the caller and pass its result in"),
    ("tonic", "describe what was seen in an own type, as domain::recreate::node::Instance does"),
    ("SystemTime", "take `now: Now` as an argument"),
    ("Instant::now", "take `now: Now` as an argument"),
    ("Timestamp::now", "take `now: Now` as an argument"),
    ("clock::now", "take `now: Now` as an argument"),
    ("std::fs", "move the I/O to the caller and pass its result in"),
    ("std::env", "read the environment in `cli` or `roles` and pass the value in"),
];

struct Source {
    /// Below `src`, for example `controllers/pod_readiness/mod.rs`.
    path: String,
    /// Without comments and without test modules.
    code: String,
}

impl Source {
    fn top(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/") || self.path.ends_with("/fake.rs")
    }
    fn is_pure(&self) -> bool {
        matches!(self.top(), "api" | "k8s" | "domain")
            || self.path.ends_with("/plan.rs")
            || self.path.starts_with("plugin/rules/")
    }
    /// Top-level modules of ours that it names, with the next part of the path.
    fn imports(&self) -> Vec<(String, String)> {
        let text: String = self.code.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut found = Vec::new();
        for start in text
            .match_indices("crate::")
            .map(|(i, m)| i + m.len())
            .chain(text.match_indices("kruise_rs::").map(|(i, m)| i + m.len()))
        {
            let rest = &text[start..];
            let list = match rest.strip_prefix('{') {
                Some(inner) => top_level_items(inner),
                None => vec![rest.to_owned()],
            };
            for item in list {
                let mut parts = item.trim().splitn(3, "::").map(|part| {
                    part.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
                });
                found.push((parts.next().unwrap_or_default(), parts.next().unwrap_or_default()));
            }
        }
        found
    }
}

/// The items of a `{...}` list, split at its own commas only; `text` begins after the brace.
fn top_level_items(text: &str) -> Vec<String> {
    let (mut items, mut item, mut depth) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                item.push(c);
            }
        }
    }
    items.push(item);
    items.retain(|item| !item.trim().is_empty());
    items
}

/// Drops comments, and everything from the first test module on (they stand at the end of a file).
fn code_of(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().map(|line| match line.trim_start().starts_with("//") {
        true => "",
        false => line.split(" // ").next().unwrap_or_default(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a line contains the needle as a whole word: `.awaits` is no `.await`.
fn names(line: &str, needle: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    line.match_indices(needle).any(|(start, _)| ends(&line[start + needle.len()..]))
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut sources, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tidy.rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path: name, code: code_of(&fs::read_to_string(&path).unwrap()) });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

#[track_caller]
fn assert_none(mut problems: Vec<String>, how_to_mend: &str) {
    problems.sort();
    problems.dedup();
    assert!(problems.is_empty(), "\n  {}\n{how_to_mend}\n", problems.join("\n  "));
}

#[test]
fn imports_follow_the_directions() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut problems = Vec::new();
    for source in sources() {
        let Some(may) = allowed.get(source.top()) else {
            problems.push(format!("src/{}: the module is in no line of MAY_IMPORT", source.path));
            continue;
        };
        for (module, _) in source.imports() {
            if module != source.top() && allowed.contains_key(module.as_str()) && !may.contains(&module.as_str()) {
                problems.push(format!("src/{}: imports crate::{module}", source.path));
            }
        }
    }
    assert_none(
        problems,
        "An arrow of ARCHITECTURE.md points the other way. What both sides need sinks to a module that both may import: \
         vocabulary to `k8s`, a rule to `domain`, an effect to `runtime`.",
    );
}

#[test]
fn siblings_do_not_import_each_other() {
    let mut problems = Vec::new();
    for source in sources() {
        let Some((top, rest)) = source.path.split_once('/') else { continue };
        if !SIBLINGS.contains(&top) || rest == "mod.rs" {
            continue;
        }
        let own = rest.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let siblings: Vec<String> = sources()
            .iter()
            .filter_map(|other| other.path.strip_prefix(top)?.strip_prefix('/')?.split('/').next().map(str::to_owned))
            .map(|name| name.trim_end_matches(".rs").to_owned())
            .filter(|name| name != own && name != "mod")
            .collect();
        for (module, part) in source.imports() {
            if module == top && siblings.contains(&part) {
                problems.push(format!("src/{}: imports crate::{top}::{part}", source.path));
            }
        }
        for sibling in &siblings {
            if source.code.contains(&format!("super::super::{sibling}")) {
                problems.push(format!("src/{}: imports super::super::{sibling}", source.path));
            }
        }
    }
    assert_none(problems, "What two siblings share sinks to `domain` (a rule) or `runtime` (an effect).");
}

#[test]
fn pure_code_has_no_effects_and_no_clock() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|source| source.is_pure() && !source.is_test()) {
        for (needle, instead) in IMPURE {
            for (number, _) in source.code.lines().enumerate().filter(|(_, line)| names(line, needle)) {
                problems.push(format!("src/{}:{}: {needle}: {instead}", source.path, number + 1));
            }
        }
    }
    assert_none(problems, "api, k8s, domain, plugin/rules and every plan.rs decide from their arguments alone.");
}

#[test]
fn main_stays_thin() {
    let main = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs")).unwrap();
    assert!(main.lines().count() <= 40, "src/main.rs has more than 40 lines: move it to cli.rs or to a role");
}

#[test]
fn every_controller_is_in_the_table() {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controllers/mod.rs")).unwrap();
    let folders = sources()
        .iter()
        .filter_map(|s| Some(s.path.strip_prefix("controllers/")?.split_once('/')?.0.to_owned()))
        .collect::<Vec<_>>();
    let missing = folders.into_iter().filter(|folder| !table.contains(&format!("{folder}::REGISTRATION")));
    assert_none(missing.collect(), "These controllers are not in CONTROLLERS: add one line to src/controllers/mod.rs.");
}

#[test]
fn the_reader_of_imports_sees_nested_lists() {
    let code = code_of(
        "use crate::{api::{crr, labels}, domain::recreate::{self, node}, runtime::clock}; // crate::cri\n\
         //! crate::daemon\nfn f() { crate::webhook::pod() }\n#[cfg(test)]\nmod tests { use crate::manifests; }",
    );
    let source = Source { path: "k8s/x.rs".into(), code };
    let modules: Vec<String> = source.imports().into_iter().map(|(module, _)| module).collect();
    assert_eq!(modules, ["api", "domain", "runtime", "webhook"]);
    assert!(names("x.await?", ".await") && !names("x.awaits(1)", ".await"));
}
