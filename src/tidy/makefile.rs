//! The tests that the Makefile names: a filter that fits no test passes, with 0 tests.

use std::{collections::BTreeSet, fs, path::Path};

use super::{assert_none, files_below, module_path};

/// The full names of the tests among these items, as `cargo test` prints them.
fn tests(items: &[syn::Item], module: &[String], found: &mut BTreeSet<String>) {
    let is_test =
        |attribute: &syn::Attribute| attribute.path().segments.last().is_some_and(|last| last.ident == "test");
    for item in items {
        match item {
            syn::Item::Fn(item) if item.attrs.iter().any(is_test) => {
                found.insert(format!("{}::{}", module.join("::"), item.sig.ident));
            }
            syn::Item::Mod(syn::ItemMod { ident, content: Some((_, items)), .. }) => {
                let inner: Vec<String> = module.iter().cloned().chain([ident.to_string()]).collect();
                tests(items, &inner, found);
            }
            _ => {}
        }
    }
}

fn all_tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (path, text) in files_below("src") {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("src/{path}: {error}"));
        tests(&file.items, &module_path(&path)[1..], &mut found);
    }
    found
}

/// What a Makefile filters tests by and no test is called: full names, and parts of names after `--lib`.
fn unknown(makefile: &str, tests: &BTreeSet<String>) -> BTreeSet<String> {
    let commands = makefile.lines().filter(|line| line.starts_with('\t'));
    let mut unknown = BTreeSet::new();
    for line in commands {
        let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('"')).collect();
        let full = words.iter().filter(|word| word.contains("::") && !tests.contains(**word));
        let parts =
            words.windows(2).filter(|pair| pair[0] == "--lib" && !pair[1].starts_with('-')).map(|pair| &pair[1]);
        let parts = parts.filter(|part| !tests.iter().any(|test| test.contains(**part)));
        unknown.extend(full.chain(parts).map(|word| (*word).to_owned()));
    }
    unknown
}

#[test]
fn every_test_that_the_makefile_names_exists() {
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile")).unwrap();
    assert_none(unknown(&makefile, &all_tests()), "The Makefile names these tests, and there are none of these names.");
}

#[test]
fn names_of_tests_that_do_not_exist_are_found() {
    let code = "#[test] fn a() {} fn b() {} mod tests { #[tokio::test(start_paused = true)] async fn c() {} }";
    let mut there = BTreeSet::new();
    tests(&syn::parse_file(code).unwrap().items, &["x".to_owned()], &mut there);
    assert_eq!(there.iter().collect::<Vec<_>>(), ["x::a", "x::tests::c"]);
    for (line, want) in [
        ("\trun_one x::tests::c", vec![]),
        ("\trun_one x::c", vec!["x::c"]),
        ("\tcargo test --lib -- --exact x::b", vec!["x::b"]),
        ("\tcargo test --lib tests", vec![]),
        ("\tcargo test --lib simulation", vec!["simulation"]),
        ("## x::b", vec![]),
    ] {
        assert_eq!(unknown(line, &there).iter().collect::<Vec<_>>(), want, "{line}");
    }
    let makefile = "\trun_one webhook::server::tests::connections::flood";
    assert!(unknown(makefile, &all_tests()).is_empty(), "a module of tests in a file of its own");
}
