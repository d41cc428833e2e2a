//! Modules that import each other in a circle cannot be read, tested or moved one at a time.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, assert_none, module_path, parse_folder, sources};

/// Which parts of one folder name which others.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The parts of each folder that import each other. A module and the modules below it belong together and may.
fn imports_by_folder(sources: &[Source]) -> BTreeMap<Vec<String>, Imports> {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|source| module_path(&source.path)).collect();
    let mut folders: BTreeMap<Vec<String>, Imports> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let own = module_path(&source.path);
        for (_, path) in source.imports() {
            let named: Vec<String> = std::iter::once("crate".to_owned()).chain(path.iter().cloned()).collect();
            let Some(length) = (1..=named.len()).rev().find(|length| modules.contains(&named[..*length])) else {
                continue;
            };
            let common = own.iter().zip(&named[..length]).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (own.get(common), named[..length].get(common)) {
                let imports = folders.entry(own[..common].to_vec()).or_default();
                imports.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    folders
}

/// The shortest way from a part back to itself.
fn way_back<'a>(imports: &'a Imports, start: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![start]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let next = way.last().and_then(|last| imports.get(*last)).into_iter().flatten();
            for part in next.map(String::as_str) {
                let mut on = way.clone();
                on.push(part);
                if part == start {
                    return Some(on);
                }
                if seen.insert(part) {
                    longer.push(on);
                }
            }
        }
        ways = longer;
    }
    None
}

fn circles(sources: &[Source]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (folder, imports) in imports_by_folder(sources) {
        for part in imports.keys() {
            // Each circle is named once, from its first part on.
            if let Some(way) = way_back(&imports, part).filter(|way| way.iter().all(|on| *on >= part.as_str())) {
                found.insert(format!("{}: {}", folder.join("::"), way.join(" -> ")));
            }
        }
    }
    found
}

const HOW_TO_MEND: &str = "Move what both sides need into a module of its own, which both import.";

#[test]
fn no_modules_import_each_other_in_a_circle() {
    assert_none(circles(sources()), HOW_TO_MEND);
}

#[test]
fn no_modules_of_the_end_to_end_kit_import_each_other_in_a_circle() {
    assert_none(circles(&parse_folder("e2e/src")), HOW_TO_MEND);
}

#[test]
fn a_circle_is_found_wherever_it_is_closed() {
    let found = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files.iter().map(|(path, code)| Source::parse(path, code)).collect();
        circles(&sources).into_iter().collect::<Vec<_>>()
    };
    let two = [("a/x.rs", "use super::y::Y;"), ("a/y.rs", "fn f() { crate::a::x::g() }")];
    assert_eq!(found(&two), ["crate::a: x -> y -> x"]);
    let three = [("x.rs", "use crate::y::Y;"), ("y/mod.rs", "use super::z::Z;"), ("z.rs", "use super::{x, x::X};")];
    assert_eq!(found(&three), ["crate: x -> y -> z -> x"]);
    let deep = [("a/x/in.rs", "use crate::a::y::Y;"), ("a/y.rs", "use super::x::X;"), ("a/x/mod.rs", "")];
    assert_eq!(found(&deep), ["crate::a: x -> y -> x"]);
    for files in [
        // A module and its own parts.
        [("a/mod.rs", "mod x;\npub use self::x::X;"), ("a/x.rs", "use super::Y;")],
        [("a/x.rs", "use super::y::Y;"), ("a/y.rs", "#[cfg(test)]\nmod tests { use crate::a::x::X; }")],
        [("a/x.rs", "use super::y::Y;"), ("a/y/tests.rs", "use crate::a::x::X;")],
        [("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::z::Z;")],
    ] {
        assert_eq!(found(&files), [""; 0], "{files:?}");
    }
}
