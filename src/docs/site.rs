//! docs/ as a site: mdBook shows what SUMMARY.md lists, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::{assert_none, blocks, files_below, read, root};

/// Every page of the site by its path below docs/.
fn of_site() -> BTreeSet<String> {
    let docs = root().join("docs");
    let below = files_below("docs", "md");
    let pages = below.iter().filter_map(|path| path.strip_prefix(&docs).ok()?.to_str());
    pages.filter(|page| *page != "SUMMARY.md").map(str::to_owned).collect()
}

/// The pages below docs/ to which a page links, by their paths below docs/.
fn links(page: &str) -> Vec<String> {
    let (_, prose) = blocks(&read(&root().join("docs").join(page)), "");
    let prose: String = prose.split('`').step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    targets
        .filter(|target| target.ends_with(".md") && !target.contains("://"))
        .filter_map(|target| {
            let mut at: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
            for part in target.split('/') {
                match part {
                    ".." => drop(at.pop()?),
                    "." => {}
                    part => at.push(part),
                }
            }
            Some(at.join("/"))
        })
        .collect()
}

#[test]
fn every_page_is_in_the_summary_once() {
    let mut listed = BTreeMap::new();
    links("SUMMARY.md").into_iter().for_each(|page| *listed.entry(page).or_insert(0) += 1);
    let pages = of_site();
    let mut problems: Vec<String> =
        pages.iter().filter(|page| !listed.contains_key(*page)).map(|page| format!("{page} is not listed")).collect();
    problems.extend(listed.keys().filter(|page| !pages.contains(*page)).map(|page| format!("{page} is not there")));
    problems.extend(listed.iter().filter(|(_, times)| **times > 1).map(|(page, _)| format!("{page} is listed twice")));
    assert_none(&problems, "docs/SUMMARY.md lists each page of docs/ once.");
}

#[test]
fn every_page_is_two_clicks_away_from_the_first() {
    let pages = of_site();
    let mut reached = BTreeSet::from(["README.md".to_owned()]);
    for _ in 0..2 {
        let next: Vec<String> =
            reached.iter().filter(|page| pages.contains(*page)).flat_map(|page| links(page)).collect();
        reached.extend(next);
    }
    let missing: Vec<String> = pages.difference(&reached).cloned().collect();
    assert_none(&missing, "Link these from docs/README.md, or from a page that it links.");
}

#[test]
fn links_are_followed_from_the_folder_of_their_page() {
    assert!(links("how-to/gitops.md").contains(&"how-to/scripts-and-ci.md".to_owned()));
    assert!(links("how-to/observe.md").contains(&"metrics.md".to_owned()));
}
