//! `make demo`.
use crate::paths::Paths;
pub fn run(_: &Paths) -> anyhow::Result<()> {
    Ok(())
}
