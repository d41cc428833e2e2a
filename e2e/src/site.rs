//! docs/ as static pages by mdBook, and a look at each page in a browser.

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

/// What a page is measured to be, by the script of the page that looks at them all.
#[derive(Debug, Deserialize)]
struct Seen {
    page: String,
    /// Width of the window, and of what is in it.
    width: u32,
    scroll: u32,
    /// What is wider than the window and has no way to be scrolled by itself.
    wide: Vec<String>,
    /// Targets of links that no page has.
    broken: Vec<String>,
    /// Links that were looked at.
    links: u32,
}

/// Opens each page in a browser at each width.
pub fn check(paths: &Paths) -> Result<()> {
    tools::chromium()?;
    build(paths)?;
    let book = book(paths);
    let files = all_files(&book)?;
    let is_page = |name: &&String| name.ends_with(".html") && !NO_PAGES.iter().any(|no| name.starts_with(no));
    let mut pages: Vec<String> = files.iter().filter(is_page).cloned().collect();
    pages.sort();
    ensure!(pages.len() > 40, "only {} pages", pages.len());
    let look = include_str!("site/look.html")
        .replace("/*PAGES*/", &json!(pages).to_string())
        .replace("/*FILES*/", &json!(files).to_string())
        .replace("/*WIDTHS*/", &json!(WIDTHS).to_string());
    let file = book.join("look-at-all.html");
    fs::write(&file, look)?;
    let dom = chromium(paths, &["--timeout=300000", "--virtual-time-budget=600000", "--dump-dom"], &file)?;
    fs::remove_file(&file)?;
    let found = dom.split_once("<pre id=\"seen\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let found = found.context("the page that looks at all pages did not come to its end")?.0;
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: Vec<Seen> = serde_json::from_str(&found).with_context(|| found.chars().take(500).collect::<String>())?;
    ensure!(seen.len() == pages.len() * WIDTHS.len(), "{} of {} pages were seen", seen.len(), pages.len());
    let problems: Vec<String> = seen.iter().flat_map(problems).collect();
    let links: u32 = seen.iter().filter(|seen| seen.width == WIDTHS[0]).map(|seen| seen.links).sum();
    ensure!(links > 1000, "only {links} links were seen");
    if !problems.is_empty() {
        bail!("{} problems:\n  {}", problems.len(), problems.join("\n  "));
    }
    println!("{} pages at {WIDTHS:?} px: no overflow, and {links} links that lead somewhere", pages.len());
    screenshots(paths)
}

fn problems(seen: &Seen) -> Vec<String> {
    let Seen { page, width, scroll, wide, broken, .. } = seen;
    let mut problems = Vec::new();
    if scroll > width {
        problems.push(format!("{page} at {width} px is {scroll} px wide: {}", wide.join(", ")));
    }
    problems.extend(broken.iter().filter(|_| *width == WIDTHS[0]).map(|link| format!("{page}: {link}: no such place")));
    problems
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

    #[test]
    fn what_is_too_wide_or_leads_nowhere_is_a_problem() {
        let seen = |width, scroll, broken: &[&str]| Seen {
            page: "a.html".into(),
            width,
            scroll,
            wide: vec!["table".into()],
            broken: broken.iter().map(|link| (*link).to_owned()).collect(),
            links: 1,
        };
        assert!(problems(&seen(375, 375, &[])).is_empty());
        assert_eq!(problems(&seen(375, 400, &[])), ["a.html at 375 px is 400 px wide: table"]);
        assert_eq!(problems(&seen(375, 375, &["b.html#x"])), ["a.html: b.html#x: no such place"]);
        assert!(problems(&seen(1440, 1440, &["b.html#x"])).is_empty(), "told once");
    }
}
