//! The rules of ARCHITECTURE.md, checked by parsing the sources: who may import whom, and what must stay pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;

use crate::api::apps::strategies::{
    BroadcastFailure, ClaimUpdateType, PodManagementPolicy, PodUpdatePolicy, RollingUpdateType, SetUpdateType,
    SidecarUpdateType, UpdateType,
};

mod circles;
mod makefile;
mod specs;

/// What each top-level module may import of ours, besides itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("cri", &[]),
    ("k8s", &["api"]),
    ("domain", &["liveness", "k8s", "api"]),
    ("runtime", &["domain", "k8s", "api"]),
    ("budgets", &["runtime", "domain", "k8s", "api"]),
    ("controllers", &["liveness", "budgets", "runtime", "domain", "k8s", "api"]),
    ("webhook", &["liveness", "budgets", "runtime", "domain", "k8s", "api"]),
    ("daemon", &["liveness", "runtime", "domain", "k8s", "api", "cri"]),
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
    ("liveness", &[]),
    ("simulation", &["liveness", "domain", "k8s", "api"]),
    ("fuzzing", &["budgets", "webhook", "daemon", "runtime", "domain", "k8s", "api", "cri"]),
    ("reference", &["api"]),
    ("supply_chain", &[]),
    ("docs", &["budgets", "controllers", "webhook", "daemon", "runtime", "api"]),
    ("cli", &["roles", "plugin", "runtime", "k8s", "api"]),
    ("main", &["cli"]),
    ("generate", &["cli", "manifests", "reference"]),
    ("lib", &[]),
];

/// Folders whose parts must not import each other, and those parts that the others may import. A part of the list may
/// import what stands before it.
const SIBLINGS: &[(&str, &[&str])] = &[
    ("budgets", &["totals", "members"]),
    ("controllers", &["runner", "pod_set"]),
    ("daemon", &["stops", "runtimes", "hooks", "recreate"]),
    ("plugin", &["rules", "connection", "requests", "view", "workloads", "follow", "restart"]),
    ("pull_secrets", &["certificates"]),
    ("roles", &["daemon", "manager", "webhook"]),
    (
        "webhook",
        &[
            "announced",
            "sidecars",
            "pod_states",
            "spreads",
            "server",
            "validate",
            "broadcast_job_spec",
            "image_job_spec",
            "template",
            "workload",
            "kinds",
        ],
    ),
    ("webhook/kinds", &[]),
    ("domain", &["deletion_protection", "pod", "budgets", "workload", "node", "kinds"]),
    ("domain/kinds", &[]),
];

/// What pure code must not name, and what to do instead.
const IMPURE: &[(&[&str], &str)] = &[
    (&["kube", "Client"], "move the I/O to the caller and pass its result in"),
    (&["kube", "Api"], "move the I/O to the caller and pass its result in"),
    (&["tokio"], "move the I/O to the caller and pass its result in"),
    (&["tonic"], "describe what was seen in an own type, as domain::recreate::node::Instance does"),
    (&["std", "time", "SystemTime"], "take `now: Now` as an argument"),
    (&["std", "time", "Instant"], "take `now: Now` as an argument"),
    (&["jiff", "Timestamp", "now"], "take `now: Now` as an argument"),
    (&["jiff", "Zoned", "now"], "take `now: Now` as an argument"),
    (&["k8s_openapi", "jiff", "Timestamp", "now"], "take `now: Now` as an argument"),
    (&["crate", "runtime", "clock"], "take `now: Now` as an argument"),
    (&["std", "fs"], "move the I/O to the caller and pass its result in"),
    (&["std", "net"], "move the I/O to the caller and pass its result in"),
    (&["std", "process"], "move the I/O to the caller and pass its result in"),
    (&["std", "env"], "read the environment in `cli` or `roles` and pass the value in"),
];

/// Vocabulary of the impure crates that holds no effect.
const PURE: &[&[&str]] = &[
    &["std", "net", "IpAddr"],
    &["std", "net", "Ipv4Addr"],
    &["std", "net", "Ipv6Addr"],
    &["std", "process", "ExitCode"],
];

/// The most lines of a file of the product without its tests.
const FILE_LIMIT: usize = 600;
/// The most lines of a function of the product.
const FUNCTION_LIMIT: usize = 80;

/// In how many modules of the product a type may have the same name: a reader of `Outcome` must not ask whose it is.
const NAME_LIMIT: usize = 5;
/// Names that say which part of a module a type is, the same in all of them.
const NAMES_OF_PARTS: &[&str] = &["Controller", "Metrics"];

/// Where text may be an error, and how often at most: no caller distinguishes such errors, they are shown. Elsewhere an error is a
/// type, so that callers can match it and its words have one home. The numbers only fall.
const TEXT_ERRORS: &[(&str, usize)] = &[
    // What hooks and probes ran into, which ends in an event or a status, and a question about credentials, which ends in one.
    ("daemon/hooks.rs", 3),
    ("daemon/images/credentials.rs", 1),
    ("daemon/prober/handlers.rs", 2),
];

/// A source file without its tests.
#[derive(Clone)]
struct Source {
    /// Below `src`, for example `controllers/pod_readiness/mod.rs`.
    path: String,
    /// Every path that it names, absolute where it begins with `crate`, `super`, `self` or something imported, under whatever
    /// name. `*` stands for everything in a module.
    names: Vec<Name>,
    /// The lines with `.await`.
    awaits: Vec<usize>,
    /// Lines without those of tests.
    lines: usize,
    /// Every function with a body: its name and its lines, from `fn` or what stands before it.
    functions: Vec<(String, usize)>,
    /// The names of its structs and enums.
    types: Vec<String>,
    /// How often a `Result` has text as its error.
    text_errors: usize,
}

#[derive(Clone)]
struct Name {
    line: usize,
    parts: Vec<String>,
    /// How an import calls it here.
    imported_as: Option<String>,
}

impl Source {
    fn parse(path: &str, text: &str) -> Self {
        // A crate of its own, which the others know as `crate::api`.
        let own = path.starts_with("api/").then(|| text.replace("crate::", "crate::api::"));
        let file =
            syn::parse_file(own.as_deref().unwrap_or(text)).unwrap_or_else(|error| panic!("src/{path}: {error}"));
        let lines = text.lines().count() - lines_of_tests(&file.items);
        let product = file.items.iter().filter(|item| !is_test_item(item));
        let source = Self {
            path: path.to_owned(),
            names: Vec::new(),
            awaits: Vec::new(),
            lines,
            functions: Vec::new(),
            types: Vec::new(),
            text_errors: product.map(|item| text_errors(&item.to_token_stream().to_string())).sum(),
        };
        let mut reader = Reader { source, modules: Vec::new() };
        reader.items(&file.items, &module_path(path));
        let mut source = reader.finish();
        functions(&file.items, &mut source.functions);
        types(&file.items, &mut source.types);
        source
    }

    fn top(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_test(&self) -> bool {
        is_for_tests(&self.path)
    }

    fn is_pure(&self) -> bool {
        matches!(self.top(), "api" | "k8s" | "domain")
            || self.path.ends_with("/plan.rs")
            || self.path.starts_with("plugin/rules/")
    }

    /// What it names below the root of this crate.
    fn imports(&self) -> impl Iterator<Item = (usize, &[String])> {
        self.names.iter().filter_map(|Name { line, parts, .. }| match parts.split_first() {
            Some((first, rest)) if (first == "crate" || first == "kruise_rs") && !rest.is_empty() => {
                Some((*line, rest))
            }
            _ => None,
        })
    }
}

/// Whether a file holds nothing of the product: tests, or what stands in for the API server, a runtime or a broken object in them.
pub(crate) fn is_for_tests(path: &str) -> bool {
    const FILES: [&str; 4] = ["tests.rs", "fake.rs", "fake_api.rs", "damage.rs"];
    path.contains("/tests/") || path.rsplit_once('/').is_some_and(|(_, file)| FILES.contains(&file))
}

/// The module that a file is: `a/b.rs` and `a/b/mod.rs` are both `crate::a::b`.
fn module_path(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts.insert(0, "crate".into());
    parts
}

fn is_test_item(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && {
                let condition = attribute.meta.to_token_stream().to_string().replace(' ', "");
                condition == "cfg(test)" || condition.starts_with("cfg(all(test,")
            })
    })
}

fn lines_of_tests(items: &[syn::Item]) -> usize {
    items
        .iter()
        .map(|item| match item {
            test if is_test_item(test) => lines(test),
            syn::Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => lines_of_tests(items),
            _ => 0,
        })
        .sum()
}

/// Lines of a piece of source. Doc comments before it count with it.
fn lines(piece: &impl ToTokens) -> usize {
    let spans = piece.to_token_stream().into_iter().map(|token| token.span());
    let (first, last) =
        spans.fold((usize::MAX, 0), |(first, last), span| (first.min(span.start().line), last.max(span.end().line)));
    (last + 1).saturating_sub(first)
}

/// How often `Result<_, String>` stands in code, whatever it holds.
fn text_errors(code: &str) -> usize {
    let code: String = code.replace("->", "").chars().filter(|c| !c.is_whitespace()).collect();
    let is_text = |(at, begin): (usize, &str)| {
        let mut depth = 1;
        let mut last = at + begin.len();
        for (i, c) in code.char_indices().skip_while(|(i, _)| *i < at + begin.len()) {
            match c {
                '<' | '(' | '[' | '{' => depth += 1,
                '>' | ')' | ']' | '}' => depth -= 1,
                ',' if depth == 1 => last = i + 1,
                _ => {}
            }
            if depth == 0 {
                return &code[last..i] == "String" && code[..last].ends_with(',');
            }
        }
        false
    };
    code.match_indices("Result<").filter(|found| is_text(*found)).count()
}

/// The functions of the product among these items.
fn functions(items: &[syn::Item], found: &mut Vec<(String, usize)>) {
    let measured = |sig: &syn::Signature, block: &syn::Block| {
        let lines = block.span().end().line + 1 - sig.span().start().line;
        (sig.ident.to_string(), lines)
    };
    for item in items.iter().filter(|item| !is_test_item(item)) {
        match item {
            syn::Item::Fn(item) => found.push(measured(&item.sig, &item.block)),
            syn::Item::Impl(item) => found.extend(item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(item) => Some(measured(&item.sig, &item.block)),
                _ => None,
            })),
            syn::Item::Trait(item) => found.extend(item.items.iter().filter_map(|item| match item {
                syn::TraitItem::Fn(item) => Some(measured(&item.sig, item.default.as_ref()?)),
                _ => None,
            })),
            syn::Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => functions(items, found),
            _ => {}
        }
    }
}

/// The structs and enums of the product among these items.
fn types(items: &[syn::Item], found: &mut Vec<String>) {
    for item in items.iter().filter(|item| !is_test_item(item)) {
        match item {
            syn::Item::Struct(item) => found.push(item.ident.to_string()),
            syn::Item::Enum(item) => found.push(item.ident.to_string()),
            syn::Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => types(items, found),
            _ => {}
        }
    }
}

struct Reader {
    source: Source,
    /// What each module of the file names.
    modules: Vec<(Vec<String>, Vec<Name>)>,
}

impl Reader {
    fn items(&mut self, items: &[syn::Item], module: &[String]) {
        let mut names = Vec::new();
        for item in items.iter().filter(|item| !is_test_item(item)) {
            match item {
                syn::Item::Mod(syn::ItemMod { ident, content: Some((_, items)), .. }) => {
                    let inner: Vec<String> = module.iter().cloned().chain([ident.to_string()]).collect();
                    self.items(items, &inner);
                }
                item => self.tokens(item.to_token_stream(), None, &mut names),
            }
        }
        for name in &mut names {
            name.parts = absolute(&name.parts, module);
        }
        self.modules.push((module.to_vec(), names));
    }

    /// The source, with its names as its imports make them. What a function imports counts in its whole module: a guard may
    /// see too much.
    fn finish(self) -> Source {
        let Self { mut source, modules } = self;
        let mut imports = Imports::new();
        for (module, names) in &modules {
            for Name { parts, imported_as, .. } in names {
                if let Some(here) = imported_as {
                    let key = module.iter().chain([here]).cloned().collect();
                    imports.entry(key).or_default().insert(parts.clone());
                }
            }
        }
        for (module, names) in &modules {
            for name in names {
                let paths = meant(&name.parts, module, &imports);
                source.names.extend(paths.into_iter().map(|parts| Name { parts, ..name.clone() }));
            }
        }
        source
    }

    /// Collects the paths in tokens, those within macros too; `within` is what stands before a `{...}` list of an import.
    fn tokens(&mut self, tokens: TokenStream, within: Option<&[String]>, names: &mut Vec<Name>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_punct = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let is_word = |i: usize, word: &str| matches!(tokens.get(i), Some(TokenTree::Ident(found)) if *found == word);
        let (mut i, mut is_import) = (0, within.is_some());
        while i < tokens.len() {
            let line = tokens[i].span().start().line;
            match &tokens[i] {
                // `use<'a>` says what a type captures.
                TokenTree::Ident(word) if *word == "use" && !is_punct(i + 1, '<') => {
                    is_import = true;
                    i += 1;
                }
                TokenTree::Ident(first) => {
                    if *first == "await" && i > 0 && is_punct(i - 1, '.') {
                        self.source.awaits.push(line);
                    }
                    let mut parts = within.unwrap_or_default().to_vec();
                    // `{self}` is the module itself
                    if *first != "self" || parts.is_empty() {
                        parts.push(first.to_string());
                    }
                    i += 1;
                    let mut is_list = false;
                    while is_punct(i, ':') && is_punct(i + 1, ':') {
                        match tokens.get(i + 2) {
                            Some(TokenTree::Ident(next)) => parts.push(next.to_string()),
                            Some(TokenTree::Group(list)) if list.delimiter() == Delimiter::Brace => {
                                self.tokens(list.stream(), Some(&parts), names);
                                is_list = true;
                            }
                            Some(TokenTree::Punct(all)) if is_import && all.as_char() == '*' => parts.push("*".into()),
                            _ => {}
                        }
                        i += 3;
                    }
                    let mut imported_as = parts.last().filter(|_| is_import).cloned();
                    if is_import && is_word(i, "as") {
                        imported_as = tokens.get(i + 1).map(ToString::to_string);
                        i += 2;
                    }
                    if !is_list {
                        names.push(Name { line, parts, imported_as });
                    }
                }
                TokenTree::Group(group) => {
                    let within: Option<&[String]> = if is_import { Some(&[]) } else { None };
                    self.tokens(group.stream(), within, names);
                    i += 1;
                }
                TokenTree::Punct(punct) => {
                    match (punct.as_char(), within) {
                        (';', None) => is_import = false,
                        ('*', Some(module)) => {
                            let parts = module.iter().cloned().chain(["*".to_owned()]).collect();
                            names.push(Name { line, parts, imported_as: None });
                        }
                        _ => {}
                    }
                    i += 1;
                }
                TokenTree::Literal(_) => i += 1,
            }
        }
    }
}

/// What the imports of a file bring in: the path of a name in the module that imports it, and what it stands for. Functions of
/// one module may import different things under the same name.
type Imports = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// How many imports that rest on each other are followed.
const MOST_IMPORTS: usize = 4;

/// What a path within a module stands for by the imports of its file.
fn meant(path: &[String], module: &[String], imports: &Imports) -> BTreeSet<Vec<String>> {
    let follow = |path: Vec<String>| -> Vec<Vec<String>> {
        let is_absolute = path.first().is_some_and(|first| first == "crate");
        let before = if is_absolute { 0 } else { module.len() };
        let whole: Vec<String> = module[..before].iter().chain(&path).cloned().collect();
        let import = (2..whole.len()).find_map(|end| Some((imports.get(&whole[..end])?, &whole[end..])));
        match import {
            Some((targets, rest)) => targets.iter().map(|target| [target.as_slice(), rest].concat()).collect(),
            None => vec![path],
        }
    };
    let mut paths = BTreeSet::from([path.to_vec()]);
    // Nearly all names are a single word.
    let most = if path.len() > 1 { MOST_IMPORTS } else { 0 };
    for _ in 0..most {
        let next: BTreeSet<Vec<String>> = paths.iter().cloned().flat_map(follow).collect();
        if next == paths {
            break;
        }
        paths = next;
    }
    paths
}

/// A path that begins with `self` or `super`, from the root of the crate.
fn absolute(parts: &[String], module: &[String]) -> Vec<String> {
    let mut base = module.to_vec();
    let mut rest = parts;
    match rest.first().map(String::as_str) {
        Some("self") if rest.len() > 1 => {}
        Some("super") => {}
        _ => return parts.to_vec(),
    }
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = after;
    }
    base.extend(rest.iter().cloned());
    base
}

/// Every file, parsed once for all tests.
fn sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(read_sources);
    &SOURCES
}

fn read_sources() -> Vec<Source> {
    let is_product = |source: &Source| source.top() != "tidy";
    parse_folder("src").into_iter().filter(is_product).collect()
}

/// Every source file below a folder of the repository, parsed.
fn parse_folder(folder: &str) -> Vec<Source> {
    files_below(folder).iter().map(|(path, text)| Source::parse(path, text)).collect()
}

/// Every source file below a folder of the repository: its path there, and its text.
fn files_below(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[track_caller]
fn assert_none(problems: BTreeSet<String>, how_to_mend: &str) {
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "\n  {}\n{how_to_mend}\n", problems.join("\n  "));
}

/// The parts of a module that another one may import, where it may not import all of them: effects that workloads share
/// rest on the rules of Pods and of workloads, and on those of no kind.
const MAY_IMPORT_OF: &[(&str, &str, &[&str])] = &[("runtime", "domain", &["pod", "workload"])];

fn wrong_directions(sources: &[Source]) -> BTreeSet<String> {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut problems = BTreeSet::new();
    for source in sources {
        let Some(may) = allowed.get(source.top()) else {
            problems.insert(format!("src/{}: the module is in no line of MAY_IMPORT", source.path));
            continue;
        };
        for (line, path) in source.imports() {
            let module = path[0].as_str();
            if module != source.top() && allowed.contains_key(module) && !may.contains(&module) {
                problems.insert(format!("src/{}:{line}: imports crate::{module}", source.path));
            }
            let limits = MAY_IMPORT_OF.iter().filter(|(importer, of, _)| *importer == source.top() && *of == module);
            for part in limits.filter_map(|(_, _, parts)| path.get(1).filter(|part| !parts.contains(&part.as_str()))) {
                problems.insert(format!("src/{}:{line}: imports crate::{module}::{part}", source.path));
            }
        }
    }
    problems
}

/// The part of a folder that a file belongs to; none for the folder's own `mod.rs`.
fn part_of<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let first = path.strip_prefix(folder)?.strip_prefix('/')?.split('/').next()?;
    Some(first.trim_end_matches(".rs")).filter(|part| *part != "mod")
}

fn imports_of_siblings(sources: &[Source]) -> BTreeSet<String> {
    let mut problems = BTreeSet::new();
    for (folder, shared) in SIBLINGS {
        let parts: BTreeSet<&str> = sources.iter().filter_map(|source| part_of(&source.path, folder)).collect();
        for source in sources.iter().filter(|source| !source.is_test()) {
            let Some(own) = part_of(&source.path, folder) else { continue };
            let within: Vec<&str> = folder.split('/').collect();
            let of_folder =
                |path: &[String]| path.len() > within.len() && path.iter().zip(&within).all(|(a, b)| a == b);
            for (line, path) in source.imports().filter(|(_, path)| of_folder(path)) {
                let part = path[within.len()].as_str();
                let place = |part: &str| shared.iter().position(|shared| *shared == part);
                let is_before = place(part).is_some_and(|there| place(own).is_none_or(|here| there < here));
                let may = part == own || !parts.contains(part) || is_before;
                if !may {
                    let folder = folder.replace('/', "::");
                    problems.insert(format!("src/{}:{line}: imports crate::{folder}::{part}", source.path));
                }
            }
        }
    }
    problems
}

fn effects_in_pure_code(sources: &[Source]) -> BTreeSet<String> {
    let mut problems = BTreeSet::new();
    for source in sources.iter().filter(|source| source.is_pure() && !source.is_test()) {
        for line in &source.awaits {
            let instead = "move the I/O to the caller and pass its result in";
            problems.insert(format!("src/{}:{line}: .await: {instead}", source.path));
        }
        for Name { line, parts, .. } in &source.names {
            let begins = |with: &[&str]| parts.len() >= with.len() && parts.iter().zip(with).all(|(a, b)| a == b);
            if PURE.iter().any(|path| begins(path)) {
                continue;
            }
            for (path, instead) in IMPURE.iter().filter(|(path, _)| begins(path)) {
                problems.insert(format!("src/{}:{line}: {}: {instead}", source.path, path.join("::")));
            }
        }
    }
    problems
}

/// Imports of everything in a module of ours, or in one with effects: nobody can see which names they bring in.
fn globs(sources: &[Source]) -> BTreeSet<String> {
    let mut problems = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        for Name { line, parts, .. } in &source.names {
            let Some((last, module)) = parts.split_last() else { continue };
            let Some(first) = module.first() else { continue };
            let is_ours = first == "crate" || first == "kruise_rs";
            let has_effects = IMPURE.iter().any(|(path, _)| module.iter().zip(*path).all(|(a, b)| a == b));
            if last == "*" && (is_ours || has_effects) {
                problems.insert(format!("src/{}:{line}: imports {}", source.path, parts.join("::")));
            }
        }
    }
    problems
}

/// Modules that hold nothing of the product.
fn is_only_for_tests(source: &Source) -> bool {
    const TESTS: [&str; 5] = ["simulation", "fuzzing", "liveness", "supply_chain", "docs"];
    TESTS.contains(&source.top()) || source.is_test()
}

/// What is longer than it may be, each with its lines.
fn too_long(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for source in sources.iter().filter(|source| !is_only_for_tests(source)) {
        if source.lines > FILE_LIMIT {
            found.insert(source.path.clone(), source.lines);
        }
        for (name, lines) in source.functions.iter().filter(|(_, lines)| *lines > FUNCTION_LIMIT) {
            found.insert(format!("{}::{name}", source.path), *lines);
        }
    }
    found
}

#[test]
fn files_and_functions_are_short() {
    let of_product = too_long(sources()).into_iter().map(|(name, lines)| format!("src/{name}: {lines}"));
    let of_kit = too_long(&parse_folder("e2e/src")).into_iter();
    let of_kit = of_kit.map(|(name, lines)| format!("e2e/src/{name}: {lines}"));
    assert_none(
        of_product.chain(of_kit).collect(),
        "A file has at most 600 lines without its tests, a function 80: split it by what its parts are about.",
    );
}

/// Names of types that stand in too many modules, each with those modules.
fn repeated_names(sources: &[Source]) -> BTreeSet<String> {
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !is_only_for_tests(source)) {
        for name in source.types.iter().filter(|name| !NAMES_OF_PARTS.contains(&name.as_str())) {
            modules.entry(name).or_default().insert(&source.path);
        }
    }
    let too_many = modules.into_iter().filter(|(_, modules)| modules.len() > NAME_LIMIT);
    too_many.map(|(name, modules)| format!("{name}: {}", Vec::from_iter(modules).join(", "))).collect()
}

#[test]
fn types_of_many_modules_have_names_of_their_own() {
    assert_none(repeated_names(sources()), "Say in the name what the type is of: at most 5 modules have the same.");
}

#[test]
fn names_in_many_modules_are_found() {
    let among = |modules: usize| {
        let code = "struct Plan; #[cfg(test)] mod tests { struct World; } mod inner { enum Plan {} }";
        let sources: Vec<Source> = (0..modules).map(|n| Source::parse(&format!("domain/m{n}.rs"), code)).collect();
        repeated_names(&sources)
    };
    assert!(among(NAME_LIMIT).is_empty());
    let found = among(NAME_LIMIT + 1);
    assert!(found.len() == 1 && found.iter().all(|problem| problem.starts_with("Plan: domain/m0.rs, ")), "{found:?}");
}

#[test]
fn errors_are_types() {
    let allowed: BTreeMap<&str, usize> = TEXT_ERRORS.iter().copied().collect();
    let product = sources().iter().filter(|source| !is_only_for_tests(source));
    let problems = product.filter_map(|Source { path, text_errors, .. }| {
        let most = allowed.get(path.as_str()).copied().unwrap_or_default();
        (*text_errors > most).then(|| format!("src/{path}: {text_errors} times Result<_, String>, {most} allowed"))
    });
    assert_none(
        problems.collect(),
        "Make the error a type (thiserror), or k8s::invalid::Invalid for a value of an object.",
    );
}

#[test]
fn errors_that_are_text_are_found() {
    for (code, want) in [
        ("fn f() -> Result<(), String> {}", 1),
        ("fn f(g: impl Fn(&str) -> Result<Vec<(u8, String)>, String>) -> Result < A < B > , String > {}", 2),
        ("fn f() -> Result<String, E> { let x: Result<HashMap<u8, String>, E>; }", 0),
        ("fn f() -> io::Result<String> {}", 0),
        ("#[cfg(test)] mod tests { fn f() -> Result<(), String> {} }", 0),
    ] {
        assert_eq!(Source::parse("a/b.rs", code).text_errors, want, "{code}");
    }
}

#[test]
fn long_files_and_functions_are_found() {
    let long = format!("fn f() {{{}}}", "\n".repeat(80));
    let short = format!("fn f() {{{}}}", "\n".repeat(79));
    let test = format!("#[cfg(test)]\nmod tests {{{}}}", "\n".repeat(1000));
    for (code, want) in [
        (long.clone(), vec!["a/b.rs::f"]),
        (short, vec![]),
        (format!("impl S {{ {long} }}"), vec!["a/b.rs::f"]),
        (format!("trait T {{ {long} }}"), vec!["a/b.rs::f"]),
        (format!("mod inner {{ {long} }}"), vec!["a/b.rs::f"]),
        (format!("#[test]\n{long}\n{test}"), vec![]),
        (format!("{}{test}", "const A: u8 = 1;\n".repeat(600)), vec![]),
        (format!("{test}\n{}", "const A: u8 = 1;\n".repeat(601)), vec!["a/b.rs"]),
    ] {
        let found = too_long(&[Source::parse("a/b.rs", &code)]);
        assert_eq!(found.keys().collect::<Vec<_>>(), want, "{code}");
    }
    let test = Source::parse("a/tests.rs", &format!("fn f() {{{}}}", "\n".repeat(1000)));
    assert!(too_long(&[test]).is_empty());
}

#[test]
fn imports_follow_the_directions() {
    assert_none(
        wrong_directions(sources()),
        "An arrow of ARCHITECTURE.md points the other way. What both sides need sinks to a module that both may import: \
         vocabulary to `k8s`, a rule to `domain`, an effect to `runtime`.",
    );
}

#[test]
fn siblings_do_not_import_each_other() {
    assert_none(
        imports_of_siblings(sources()),
        "What two siblings share sinks to `domain` (a rule) or `runtime` (an effect).",
    );
}

#[test]
fn imports_name_what_they_bring_in() {
    assert_none(globs(sources()), "Import each name: the rules about imports cannot see what `*` stands for.");
}

#[test]
fn pure_code_has_no_effects_and_no_clock() {
    assert_none(
        effects_in_pure_code(sources()),
        "api, k8s, domain, plugin/rules and every plan.rs decide from their arguments alone.",
    );
}

/// In every folder a file that breaks the rules of that folder is found, wherever the line stands: before or after a test
/// module, in a function, in a macro, behind an import of a module above, of another name, or of everything.
#[test]
fn a_violation_in_any_folder_is_found() {
    let all = sources();
    let folders: BTreeSet<String> = all
        .iter()
        .filter_map(|source| source.path.rsplit_once('/').map(|(folder, _)| folder.to_owned()))
        .filter(|folder| !folder.split('/').any(|part| part == "tests"))
        .collect();
    assert!(folders.len() > 20, "{folders:?}");
    let count = |planted: &Source, rule: fn(&[Source]) -> BTreeSet<String>| rule(std::slice::from_ref(planted)).len();
    // The crate kruise-rs-api can import nothing of this one: the compiler sees to it.
    for folder in folders.iter().filter(|folder| folder.split('/').next() != Some("api")) {
        let top = folder.split('/').next().unwrap();
        let (_, may) = MAY_IMPORT.iter().find(|(module, _)| *module == top).unwrap();
        let path = format!("{folder}/planted.rs");
        // `roles` may import nearly everything; nobody may import `main`.
        let forbidden =
            ["simulation", "cli"].into_iter().find(|module| *module != top && !may.contains(module)).unwrap();
        for code in [
            format!("use crate::{forbidden}::x;"),
            format!("#[cfg(test)]\nmod tests {{}}\nuse crate::{{{forbidden}::{{x, y as z}}}};"),
            format!("#[cfg(test)]\nmod tests;\nfn f() {{ println!(\"{{}}\", crate::{forbidden}::x()) }}"),
            format!("mod inner {{ fn f() {{ {}{forbidden}::x() }} }}", "super::".repeat(module_path(&path).len())),
            format!("use crate as c;\nfn f() {{ c::{forbidden}::x() }}"),
            format!("use crate as c;\nfn f() {{ use c::{{self as d}}; d::{forbidden}::x() }}"),
        ] {
            assert!(count(&Source::parse(&path, &code), wrong_directions) > 0, "{path}: {code}");
        }
        let everything =
            ["use crate::*;", "use crate::{self as c};\nuse c::*;", "fn f() { use super::{x, *}; }", "use std::*;"];
        for code in everything {
            assert_eq!(count(&Source::parse(&path, code), globs), 1, "{path}: {code}");
        }
        let quiet = format!("// crate::{forbidden}\n#[cfg(test)]\nmod tests {{ use crate::{forbidden}::x; }}");
        assert_eq!(count(&Source::parse(&path, &quiet), wrong_directions), 0, "{path}");
        for (_, of, parts) in MAY_IMPORT_OF.iter().filter(|(importer, _, _)| *importer == top) {
            assert!(!parts.contains(&"kinds"));
            for code in [
                format!("use crate::{of} as d;\nfn f() {{ d::kinds::x() }}"),
                format!("fn f() {{ use crate::{of}; {of}::kinds::x() }}"),
                format!("use crate::{of}::*;"),
            ] {
                assert_eq!(count(&Source::parse(&path, &code), wrong_directions), 1, "{path}: {code}");
            }
        }
        let planted = |code: &str| Source::parse(&path, code);
        if planted("").is_pure() {
            for code in [
                "#[cfg(test)]\nmod tests {}\nasync fn f() { g().await }",
                "use std::time::{Duration, SystemTime};",
                "use jiff::Timestamp;\nfn f() { Timestamp::now(); }",
                "fn f() { vec![std::fs::read(\"x\")]; }",
                "use kube::{api::ListParams, Client};",
                "use std::time as t;\nfn f() { t::SystemTime::now(); }",
                "use std::{self as s};\nuse s::time as t;\nfn f() { t::Instant::now(); }",
                "fn f() { use std::time; time::SystemTime::now(); }",
                "fn f() { use std::time; time::Instant::now(); }\nfn g() { use x::time; }",
            ] {
                assert!(count(&planted(code), effects_in_pure_code) > 0, "{path}: {code}");
            }
            let quiet =
                ["fn f(now: jiff::Timestamp) { now.awaits(1) }", "use std::time as t;\nfn f(d: t::Duration) {}"];
            for code in quiet {
                assert_eq!(count(&planted(code), effects_in_pure_code), 0, "{path}: {code}");
            }
            for code in ["use std::time::*;", "fn f() { use std::{time::*}; }"] {
                assert_eq!(count(&planted(code), globs), 1, "{path}: {code}");
            }
        }
    }
    for (folder, shared) in SIBLINGS {
        let path = format!("{folder}/planted.rs");
        let module = folder.replace('/', "::");
        let last = module.rsplit("::").next().unwrap();
        let other = all.iter().filter_map(|source| part_of(&source.path, folder)).find(|part| !shared.contains(part));
        // Where all parts have their place in an order, the first one must not import the last.
        let (path, other) = match other {
            Some(other) => (path, other),
            None => (format!("{folder}/{}.rs", shared[0]), shared[shared.len() - 1]),
        };
        for code in [
            format!("#[cfg(test)]\nmod tests {{}}\nuse crate::{module}::{other}::x;"),
            format!("use super::{other}::x;"),
            format!("use crate::{module};\nfn f() {{ {last}::{other}::x() }}"),
            format!("use crate::{module} as all;\nfn f() {{ all::{other}::x() }}"),
            format!("fn f() {{ use crate::{module}; {last}::{other}::x() }}"),
            format!("use super as up;\nfn f(x: up::{other}::X<u8>) {{}}"),
            format!("use crate::{module} as all;\nmod inner {{ fn f() {{ super::all::{other}::x() }} }}"),
        ] {
            let planted = Source::parse(&path, &code);
            let found = imports_of_siblings(&[planted, Source::parse(&format!("{folder}/{other}.rs"), "")]);
            assert_eq!(found.len(), 1, "{path}: {code}");
        }
        let everything = Source::parse(&path, &format!("use crate::{module}::*;\nfn f() {{ {other}::x() }}"));
        assert_eq!(count(&everything, globs), 1, "{path}");
    }
}

/// The most lines of the trial kind: its schema, its plan and its shell, comments included.
const TRIAL_LIMIT: usize = 250;
/// What stands between the trial kind and its test.
const TRIAL_BEGINS: &str = "\n// The trial.\n";

#[test]
fn a_new_kind_is_short() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controllers/tests/replicated_pod.rs");
    let text = fs::read_to_string(path).unwrap();
    let (kind, _) = text.split_once(TRIAL_BEGINS).expect("the comment that begins the test");
    let lines = kind.lines().count();
    assert!(lines < TRIAL_LIMIT, "ReplicatedPod has {lines} lines: what it needs that every kind needs is a service");
}

/// A source without its modules of tests, wherever in the file they stand; those in files of their own leave one line.
pub(crate) fn product(source: &str) -> String {
    let mut kept = String::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        let is_module = |next: &&str| next.trim_start_matches("pub(crate) ").starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(is_module) {
            // As rustfmt writes it, the end of a module is the next brace without an indent.
            lines.by_ref().find(|line| *line == "}");
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn files_that_hold_nothing_of_the_product_are_told_by_their_names() {
    for (path, want) in [
        ("controllers/clone_set/tests.rs", true),
        ("controllers/clone_set/tests/simulation.rs", true),
        ("src/controllers/fake.rs", true),
        ("cri/fake.rs", true),
        ("runtime/fake_api.rs", true),
        ("k8s/damage.rs", true),
        ("runtime/api.rs", false),
        ("domain/tests_of_others.rs", false),
        ("tidy.rs", false),
    ] {
        assert_eq!(is_for_tests(path), want, "{path}");
    }
    let sources: BTreeSet<&str> = sources().iter().map(|source| source.path.as_str()).collect();
    for there in ["controllers/fake.rs", "cri/fake.rs", "runtime/fake_api.rs", "k8s/damage.rs"] {
        assert!(sources.contains(there), "{there}");
    }
}

#[test]
fn what_follows_a_module_of_tests_is_read_too() {
    let source = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod more {\n    fn x() {\n    }\n}\nc\n";
    assert_eq!(product(source), "a\n#[cfg(test)]\nmod tests;\nb\nc\n");
}

/// A path that is put together elsewhere may hold a name that is none, and then it is another path.
#[test]
fn paths_of_the_api_are_built_in_one_place() {
    let builds = ["\"/api/", "\"/apis/", "\"api/v1", "\"apis/", "Request::new(format!"];
    let mut problems = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.path.contains("tests") && source.path != "k8s/path.rs") {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path);
        let text = fs::read_to_string(file).unwrap();
        let code = product(&text);
        let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        for (number, line) in lines {
            let judged = line.replace("starts_with(\"/api", "");
            if builds.iter().any(|needle| judged.contains(needle)) {
                problems.insert(format!("src/{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    assert_none(problems, "Build paths with `k8s::path`, which percent-encodes every segment.");
}

/// Literals of product code that are values of our update strategies, in modules other than that of their types.
fn spelled_values(path: &str, code: &str) -> Vec<String> {
    const SPELLED: [&[&str]; 8] = [
        UpdateType::SPELLED,
        SetUpdateType::SPELLED,
        SidecarUpdateType::SPELLED,
        BroadcastFailure::SPELLED,
        PodManagementPolicy::SPELLED,
        PodUpdatePolicy::SPELLED,
        RollingUpdateType::SPELLED,
        ClaimUpdateType::SPELLED,
    ];
    // Deployments and DaemonSets of Kubernetes have the first one, events say the others, which are words.
    const OTHERS: [&str; 5] = ["RollingUpdate", "Continue", "Pause", "Standard", "Parallel"];
    if path == "api/apps/strategies.rs" {
        return Vec::new();
    }
    let values: BTreeSet<&str> = SPELLED.into_iter().flatten().copied().filter(|v| !OTHERS.contains(v)).collect();
    let code = product(code);
    let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let spells = |line: &str| values.iter().any(|value| line.contains(&format!("\"{value}\"")));
    let found = lines.filter(|(_, line)| spells(line));
    found.map(|(number, line)| format!("src/{path}:{}: {}", number + 1, line.trim())).collect()
}

#[test]
fn values_of_strategies_are_spelled_in_one_place() {
    let mut problems = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.path.contains("tests")) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path);
        problems.extend(spelled_values(&source.path, &fs::read_to_string(file).unwrap()));
    }
    assert_none(problems, "Use the types of api::apps::strategies.");
    let planted = format!("fn f(t: &str) -> bool {{ t == \"{}\" }}", UpdateType::OnDelete.as_str());
    assert_eq!(spelled_values("a/b.rs", &planted).len(), 1);
    assert!(spelled_values("a/b.rs", &format!("#[cfg(test)]\nmod tests {{\n    {planted}\n}}")).is_empty());
}

/// E31 of SidecarSet: private keys are in the Secret and in memory alone.
#[test]
fn e31_the_webhook_writes_no_file() {
    let writes = ["fs::write", "File::create", "OpenOptions", "create_dir", "fs::copy", "fs::rename", "symlink"];
    let keeps_keys = |path: &str| path.starts_with("webhook/") || path.starts_with("runtime/cert");
    let mut problems = BTreeSet::new();
    for source in sources().iter().filter(|source| keeps_keys(&source.path) && !source.is_test()) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path);
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in product(&text).lines().enumerate() {
            if writes.iter().any(|needle| line.contains(needle)) {
                problems.insert(format!("src/{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    assert_none(
        problems,
        "Keep it in memory: the file system of the webhook is read-only, and its keys are for nobody else.",
    );
}

#[test]
fn main_stays_thin() {
    let main = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs")).unwrap();
    assert!(main.lines().count() <= 40, "src/main.rs has more than 40 lines: move it to cli.rs or to a role");
}

#[test]
fn every_controller_is_in_the_table() {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controllers/mod.rs")).unwrap();
    let shared = SIBLINGS.iter().find(|(folder, _)| *folder == "controllers").unwrap().1;
    let missing = sources()
        .iter()
        .filter_map(|s| Some(s.path.strip_prefix("controllers/")?.split_once('/')?.0.to_owned()))
        .filter(|folder| folder != "tests" && !shared.contains(&folder.as_str()))
        .filter(|folder| !table.contains(&format!("{folder}::REGISTRATION")))
        .collect();
    assert_none(missing, "These controllers are not in CONTROLLERS: add one line to src/controllers/mod.rs.");
}

/// Cases of the specification of StatefulSet and DaemonSet: how their tests are called, and the first and the last number.
const CASES: &[(&str, usize, usize)] = &[("edge_", 1, 45), ("shortfall_10_1_", 1, 23), ("shortfall_10_2_", 24, 38)];

#[test]
fn every_case_of_the_specification_has_a_test_with_its_number() {
    let workloads = [
        "api/apps/",
        "domain/",
        "controllers/stateful_set",
        "controllers/daemon_set",
        "controllers/pod_set",
        "webhook/",
    ];
    let mut names = Vec::new();
    for source in sources().iter().filter(|source| workloads.iter().any(|part| source.path.starts_with(part))) {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path)).unwrap();
        let heads = text.lines().filter_map(|line| line.trim_start().trim_start_matches("async ").strip_prefix("fn "));
        names.extend(heads.filter_map(|head| Some(format!("_{}", head.split_once('(')?.0))));
    }
    let has = |kind: &str, number: usize| names.iter().any(|name| name.contains(&format!("_{kind}{number:02}_")));
    let mut missing = BTreeSet::new();
    for (kind, first, last) in CASES {
        let numbers = (*first..=*last).filter(|number| !has(kind, *number));
        missing.extend(numbers.map(|number| format!("{kind}{number:02}")));
    }
    assert_none(missing, "A test of each case has its number in its name.");
}
