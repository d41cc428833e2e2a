//! Writes what is made from the program's own tables and types: the installation manifests, the Helm chart, the tables of
//! SECURITY.md, and the reference of fields, feature gates and flags. A program of its own: the roles need no schemas.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use kruise_rs::{cli, manifests, reference};

/// Write manifests/, the Helm chart and docs/reference.md anew.
#[derive(Parser)]
struct Args {
    /// Directory for the manifests; the chart and SECURITY.md are those beside it.
    #[arg(long, default_value = "manifests", value_name = "DIR")]
    manifests: PathBuf,
    /// File for the reference.
    #[arg(long, default_value = "docs/reference.md", value_name = "FILE")]
    reference: PathBuf,
}

fn main() -> Result<()> {
    let Args { manifests, reference } = Args::parse();
    manifests::write_to(&manifests).with_context(|| format!("--manifests {}", manifests.display()))?;
    fs::write(&reference, reference::render(&cli::programs()))
        .with_context(|| format!("--reference {}", reference.display()))
}
