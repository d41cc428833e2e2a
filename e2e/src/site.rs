//! docs/ as static pages by mdBook, and a look at each page in a browser.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::cmd::{CommandExt, cmd};
use crate::paths::Paths;
use crate::tools;

/// Built by cargo, with the lock file that comes with it.
const MDBOOK: &str = "0.5.4";

/// Pages of the repository's root that pages of docs/ link to, and their names in the site.
const OF_ROOT: [(&str, &str, &str); 4] = [
    ("README.md", "overview.md", "What kruise-rs is"),
    ("SECURITY.md", "security.md", "Security"),
    ("ARCHITECTURE.md", "architecture.md", "How kruise-rs is built"),
    ("CHANGELOG.md", "changelog.md", "Changes"),
];

/// Widths of a phone and of a desktop, in CSS pixels.
const WIDTHS: [u32; 2] = [375, 1440];

/// Files of mdBook that are no page of their own: all pages in one, an error, a table of contents.
const NO_PAGES: [&str; 3] = ["print", "404", "toc"];

/// Words that readers search for, and the page that has to be found by each.
const SEARCHES: [(&str, &str); 3] = [
    ("CloneSet", "clone-set.html"),
    ("PersistentPodState", "persistent-pod-state.html"),
    ("Velero", "integrations/velero.html"),
];

/// A page with things that are too wide, so that a look that sees nothing is found out.
const FAULTS: &str = "faults-of-a-page.html";

/// What of [`FAULTS`] sticks out. The rest of it scrolls as it should.
const STICKS_OUT: [&str; 4] = ["table#bare", "b#plain", "p#word", "table#cut"];

fn staged(paths: &Paths) -> PathBuf {
    paths.repo.join("target/site/docs")
}

fn book(paths: &Paths) -> PathBuf {
    paths.repo.join("target/site/book")
}

/// Builds the site into target/site/book.
pub fn build(paths: &Paths) -> Result<()> {
    let mdbook = mdbook(paths)?;
    let staged = staged(paths);
    if staged.exists() {
        fs::remove_dir_all(&staged)?;
    }
    copy(&paths.repo.join("docs"), &staged, 0)?;
    fs::rename(staged.join("README.md"), staged.join("index.md"))?;
    let mut summary = fs::read_to_string(staged.join("SUMMARY.md"))? + "\n# The project\n\n";
    for (name, page, title) in OF_ROOT {
        let text = fs::read_to_string(paths.repo.join(name))?;
        fs::write(staged.join(page), from_root(&text))?;
        summary += &format!("- [{title}]({page})\n");
    }
    fs::write(staged.join("SUMMARY.md"), summary)?;
    fs::copy(paths.repo.join("LICENSE"), staged.join("LICENSE"))?;
    let mut command = cmd(&mdbook, ["build", "--dest-dir"]);
    command.arg(book(paths)).arg(&staged).show()?;
    println!("{}", book(paths).join("index.html").display());
    Ok(())
}

/// Copies a folder of docs/; in pages, links to the root of the repository lead to its pages in the site.
fn copy(from: &Path, to: &Path, depth: usize) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target, depth + 1)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            fs::write(target, to_root(&fs::read_to_string(&path)?, depth))?;
        } else {
            fs::copy(&path, target)?;
        }
    }
    Ok(())
}

/// A page so many folders below docs/ with its links turned: to pages of the root, and to docs/README.md, which is
/// index.md in the site.
fn to_root(text: &str, depth: usize) -> String {
    let up = "../".repeat(depth);
    let text = OF_ROOT.iter().fold(text.to_owned(), |text, (name, page, _)| {
        text.replace(&format!("](../{up}{name}"), &format!("]({up}{page}"))
    });
    text.replace(&format!("]({up}README.md"), &format!("]({up}index.md"))
}

/// A page of the root with its links turned, as it stands beside the pages of docs/.
fn from_root(text: &str) -> String {
    let text = text.replace("](docs/README.md", "](index.md").replace("](docs/", "](");
    OF_ROOT.iter().fold(text, |text, (name, page, _)| text.replace(&format!("]({name}"), &format!("]({page}")))
}

/// Builds mdBook when it is missing or of another version.
fn mdbook(paths: &Paths) -> Result<PathBuf> {
    let root = paths.cluster.join("mdbook");
    let program = root.join("bin/mdbook");
    let has_version = |text: String| text.trim().trim_start_matches("mdbook v") == MDBOOK;
    if !cmd(&program, ["--version"]).text().is_ok_and(has_version) {
        let mut cargo = cmd("cargo", ["install", "mdbook", "--version", MDBOOK, "--locked", "--no-default-features"]);
        cargo.args(["--features", "search", "--root"]).arg(&root).show()?;
    }
    Ok(program)
}

/// What the script of the page that looks at them all has found.
#[derive(Debug, Deserialize)]
struct Found {
    pages: Vec<Seen>,
    /// The pages that the search of the site names for a word.
    searches: BTreeMap<String, BTreeSet<String>>,
}

/// What a page is measured to be in a window of this width.
#[derive(Debug, Deserialize)]
struct Seen {
    page: String,
    width: u32,
    /// The width of what is in the window.
    scroll: u32,
    /// What sticks out of the visible column and is in no box that scrolls by itself.
    wide: Vec<String>,
    /// The anchors of the page.
    ids: BTreeSet<String>,
    /// Where it links to in the site.
    links: Vec<String>,
}

/// Opens each page in a browser at each width, and searches.
pub fn check(paths: &Paths) -> Result<()> {
    tools::chromium()?;
    build(paths)?;
    let book = book(paths);
    let files: BTreeSet<String> = all_files(&book)?.into_iter().collect();
    let is_page = |name: &&String| name.ends_with(".html") && !NO_PAGES.iter().any(|no| name.starts_with(no));
    let pages: Vec<String> = files.iter().filter(is_page).cloned().collect();
    ensure!(pages.len() > 40, "only {} pages", pages.len());
    ensure!(has_index(&files), "mdBook has written no index for the search");
    let Found { pages: seen, searches } = look(paths, &pages)?;
    let (faults, seen): (Vec<Seen>, Vec<Seen>) = seen.into_iter().partition(|seen| seen.page == FAULTS);
    ensure!(seen.len() == pages.len() * WIDTHS.len(), "{} of {} pages were seen", seen.len(), pages.len());
    ensure!(faults.len() == WIDTHS.len(), "the page with faults was seen {} times", faults.len());
    let mut problems: Vec<String> = faults.iter().filter_map(overlooked).collect();
    problems.extend(seen.iter().flat_map(too_wide));
    problems.extend(broken(&seen, &files));
    problems.extend(not_found(&searches));
    let links: usize = seen.iter().filter(|seen| seen.width == WIDTHS[0]).map(|seen| seen.links.len()).sum();
    ensure!(links > 1000, "only {links} links were seen");
    if !problems.is_empty() {
        bail!("{} problems:\n  {}", problems.len(), problems.join("\n  "));
    }
    println!("{} pages at {WIDTHS:?} px: no overflow, and {links} links that lead somewhere", pages.len());
    println!("the search finds {}", SEARCHES.map(|(word, _)| word).join(", "));
    screenshots(paths)
}

/// Lets the browser measure these pages and the one with faults.
fn look(paths: &Paths, pages: &[String]) -> Result<Found> {
    let book = book(paths);
    let pages: Vec<&str> = pages.iter().map(String::as_str).chain([FAULTS]).collect();
    let words = SEARCHES.map(|(word, _)| word);
    let look = include_str!("site/look.html")
        .replace("/*PAGES*/", &json!(pages).to_string())
        .replace("/*WORDS*/", &json!(words).to_string())
        .replace("/*WIDTHS*/", &json!(WIDTHS).to_string());
    let (file, faults) = (book.join("look-at-all.html"), book.join(FAULTS));
    fs::write(&file, look)?;
    fs::write(&faults, include_str!("site/faults.html"))?;
    let dom = chromium(paths, &["--timeout=300000", "--virtual-time-budget=600000", "--dump-dom"], &file);
    fs::remove_file(&file)?;
    fs::remove_file(&faults)?;
    let dom = dom?;
    let found = dom.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let found = found.context("the page that looks at all pages did not come to its end")?.0;
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&found).with_context(|| found.chars().take(500).collect::<String>())
}

/// mdBook puts a hash of the content into the name.
fn has_index(files: &BTreeSet<String>) -> bool {
    files.iter().any(|file| file.starts_with("searchindex") && file.ends_with(".js"))
}

/// What the look at the page with faults should have named, where it has named anything else.
fn overlooked(faults: &Seen) -> Option<String> {
    let named: Vec<&str> = faults.wide.iter().filter_map(|what| what.split(' ').next()).collect();
    let width = faults.width;
    (named != STICKS_OUT).then(|| format!("look.html at {width} px finds {named:?} too wide, not {STICKS_OUT:?}"))
}

fn too_wide(seen: &Seen) -> Vec<String> {
    let Seen { page, width, scroll, wide, .. } = seen;
    let mut problems: Vec<String> = wide.iter().map(|what| format!("{page} at {width} px: {what}")).collect();
    if scroll > width {
        problems.push(format!("{page} at {width} px is {scroll} px wide"));
    }
    problems
}

/// Links to files that are not there, and to anchors that their page does not have. What is no page has no anchors.
fn broken(seen: &[Seen], files: &BTreeSet<String>) -> Vec<String> {
    let anchors: BTreeMap<&str, &BTreeSet<String>> = seen.iter().map(|seen| (seen.page.as_str(), &seen.ids)).collect();
    let leads_somewhere = |link: &str| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        files.contains(file) && (anchor.is_empty() || anchors.get(file).is_some_and(|ids| ids.contains(anchor)))
    };
    let once = seen.iter().filter(|seen| seen.width == WIDTHS[0]);
    let links = once.flat_map(|seen| seen.links.iter().map(move |link| (&seen.page, link)));
    let broken = links.filter(|(_, link)| !leads_somewhere(link));
    broken.map(|(page, link)| format!("{page}: {link}: no such place")).collect()
}

/// The words for which the search does not name their page.
fn not_found(searches: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let found = |word: &str, page: &str| searches.get(word).is_some_and(|pages| pages.contains(page));
    let missing = SEARCHES.into_iter().filter(|(word, page)| !found(word, page));
    missing.map(|(word, page)| format!("the search for {word} does not find {page}")).collect()
}

/// Pictures of some pages, for people: target/site/pictures.
fn screenshots(paths: &Paths) -> Result<()> {
    let folder = paths.repo.join("target/site/pictures");
    fs::create_dir_all(&folder)?;
    for page in ["index", "clone-set", "comparison", "reference", "figures"] {
        for width in WIDTHS {
            let frame = format!(
                "<body style=\"margin:0\"><iframe src=\"{page}.html\" style=\"border:0;width:{width}px;height:1000px\"></iframe>"
            );
            let file = book(paths).join("picture.html");
            fs::write(&file, frame)?;
            let picture = folder.join(format!("{page}-{width}.png"));
            let (to, size) = (format!("--screenshot={}", picture.display()), format!("--window-size={width},1000"));
            chromium(paths, &[&to, &size, "--hide-scrollbars", "--virtual-time-budget=10000"], &file)?;
            fs::remove_file(file)?;
        }
    }
    println!("pictures: {}", folder.display());
    Ok(())
}

/// Runs a browser without a window on a file, with a profile of its own. Pages may read each other: they are all ours.
fn chromium(paths: &Paths, args: &[&str], file: &Path) -> Result<String> {
    let profile = paths.repo.join("target/site/profile");
    let mut command =
        cmd("chromium", ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]);
    command.args(["--disable-background-networking", "--no-first-run"]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(args).arg(format!("file://{}", file.display()));
    command.text()
}

/// Every file below a folder, by its path from there.
fn all_files(root: &Path) -> Result<Vec<String>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_docs_and_the_root_are_turned() {
        assert_eq!(to_root("[a](../README.md#x) [b](clone-set.md)", 0), "[a](overview.md#x) [b](clone-set.md)");
        assert_eq!(to_root("[a](../../SECURITY.md) [b](../README.md)", 1), "[a](../security.md) [b](../index.md)");
        assert_eq!(to_root("[a](../README.md) [b](README.md#how-to)", 0), "[a](overview.md) [b](index.md#how-to)");
        assert_eq!(from_root("[a](docs/how-to/helm.md) [b](CHANGELOG.md)"), "[a](how-to/helm.md) [b](changelog.md)");
        assert_eq!(from_root("[a](docs/README.md#how-to) [b](README.md)"), "[a](index.md#how-to) [b](overview.md)");
    }

    fn seen(page: &str, width: u32) -> Seen {
        Seen { page: page.into(), width, scroll: width, wide: Vec::new(), ids: BTreeSet::new(), links: Vec::new() }
    }

    fn texts<T: FromIterator<String>>(texts: &[&str]) -> T {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn what_is_too_wide_is_a_problem() {
        let table = "table sticks out by 25 px: a b";
        for (scroll, wide, want) in [
            (375, vec![], vec![]),
            (400, vec![], vec!["a.html at 375 px is 400 px wide"]),
            // the box around a page scrolls, not the window
            (375, vec![table], vec!["a.html at 375 px: table sticks out by 25 px: a b"]),
        ] {
            let seen = Seen { scroll, wide: texts(&wide), ..seen("a.html", 375) };
            assert_eq!(too_wide(&seen), want, "{scroll} {wide:?}");
        }
    }

    #[test]
    fn a_link_leads_to_a_file_or_to_an_anchor_of_a_page() {
        let files: BTreeSet<String> = texts(&["a.html", "how-to/b.html", "images/c.svg"]);
        for (link, leads) in [
            ("a.html", true),
            ("a.html#", true),
            ("a.html#x", true),
            ("how-to/b.html#y", true),
            ("images/c.svg", true),
            ("a.html#y", false),
            ("none.html", false),
            ("none.html#x", false),
            ("how-to/", false),
            // nothing is known of anchors in what is no page
            ("images/c.svg#x", false),
        ] {
            let a = |width| Seen { ids: texts(&["x"]), links: texts(&[link]), ..seen("a.html", width) };
            let all = [a(WIDTHS[0]), Seen { ids: texts(&["y"]), ..seen("how-to/b.html", WIDTHS[0]) }, a(WIDTHS[1])];
            let want: Vec<String> = if leads { vec![] } else { vec![format!("a.html: {link}: no such place")] };
            assert_eq!(broken(&all, &files), want, "{link}: told once");
        }
    }

    #[test]
    fn the_search_finds_the_page_of_each_word() {
        let right: BTreeMap<String, BTreeSet<String>> =
            SEARCHES.into_iter().map(|(word, page)| (word.to_owned(), texts(&["metrics.html", page]))).collect();
        assert!(not_found(&right).is_empty());
        let mut other = right.clone();
        other.insert("CloneSet".into(), texts(&["metrics.html"]));
        assert_eq!(not_found(&other), ["the search for CloneSet does not find clone-set.html"]);
        assert_eq!(not_found(&BTreeMap::new()).len(), SEARCHES.len(), "nothing was searched for");
        for (_, page) in SEARCHES {
            let source = Paths::default().repo.join("docs").join(page).with_extension("md");
            assert!(source.exists(), "{}", source.display());
        }
        assert!(has_index(&texts(&["index.html", "searchindex-0f3b.js"])));
        assert!(!has_index(&texts(&["index.html", "searcher-0f3b.js"])));
    }

    #[test]
    fn a_look_that_overlooks_a_fault_is_found_out() {
        let faults = |named: &[&str]| {
            let wide = named.iter().map(|name| format!("{name} sticks out by 9 px: x")).collect();
            overlooked(&Seen { wide, ..seen(FAULTS, 375) })
        };
        assert_eq!(faults(&STICKS_OUT), None);
        assert!(faults(&[]).is_some());
        assert!(faults(&STICKS_OUT[1..]).is_some());
        assert!(faults(&["table#bare", "b#plain", "p#word", "table#cut", "p"]).is_some(), "more than there is");
        for name in STICKS_OUT {
            let id = name.split('#').nth(1).unwrap();
            assert!(include_str!("site/faults.html").contains(&format!("id=\"{id}\"")), "{id}");
        }
    }
}
