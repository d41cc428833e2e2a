//! The API server's audit log: the file that it writes, and those that it has rotated away from it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::paths::Paths;

/// Shows every entry whose line contains `text`, the oldest first.
///
/// # Errors
/// There is no log, or it cannot be read.
pub fn entries(paths: &Paths, text: &str, mut note: impl FnMut(&Value)) -> Result<()> {
    for file in opened(paths)? {
        for line in BufReader::new(file).split(b'\n') {
            let line = line?;
            // The last one may be half written.
            let Ok(line) = std::str::from_utf8(&line) else { continue };
            if !line.contains(text) {
                continue;
            }
            if let Ok(entry) = serde_json::from_str(line) {
                note(&entry);
            }
        }
    }
    Ok(())
}

/// All files of the log at one time: what is open stays what it is when it is rotated away.
fn opened(paths: &Paths) -> Result<Vec<File>> {
    loop {
        let names = names(paths)?;
        names.last().context("there is no audit log")?;
        let opened: Vec<File> = names.iter().filter_map(|name| File::open(name).ok()).collect();
        if opened.len() == names.len() && self::names(paths)? == names {
            return Ok(opened);
        }
    }
}

/// `audit-TIME.log` of each file that was rotated away, and `audit.log`, in this order.
fn names(paths: &Paths) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(paths.logs())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("audit") && name.ends_with(".log") {
            names.push(path);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_rotated_away_comes_first() {
        let state = std::env::temp_dir().join(format!("audit-{}", std::process::id()));
        let paths = Paths { state, ..Paths::default() };
        fs::create_dir_all(paths.logs()).unwrap();
        assert!(entries(&paths, "", |_| {}).is_err(), "there is none");
        for (name, text) in [
            ("audit.log", "{\"n\":4,\"user\":\"a\"}\n{\"n\":5,\"us"),
            ("audit-2026-01-02T00-00-00.000.log", "{\"n\":3,\"user\":\"a\"}\n"),
            ("audit-2026-01-01T00-00-00.000.log", "{\"n\":1,\"user\":\"a\"}\n{\"n\":2,\"user\":\"b\"}\n"),
            ("apiserver.log", "{\"n\":6,\"user\":\"a\"}\n"),
        ] {
            fs::write(paths.logs().join(name), text).unwrap();
        }
        let mut found = Vec::new();
        entries(&paths, "\"a\"", |entry| found.push(entry["n"].as_i64())).unwrap();
        fs::remove_dir_all(&paths.state).unwrap();
        assert_eq!(found, [Some(1), Some(3), Some(4)]);
    }
}
