//! How full the file system is that holds images.
//!
//! In a container it is seen without a mount: the container's own root lies in the runtime's image store, and an
//! overlay reports the space of the file system below it.

use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use crate::{cri::client::Client, domain::node::puller::Space};

/// Looks at the file system.
pub struct Disk {
    named: Option<PathBuf>,
    limit_percent: u8,
    found: OnceCell<PathBuf>,
    space: Look,
}

/// Returns the space of the file system that a path is on.
pub type Look = fn(&Path) -> rustix::io::Result<Space>;

impl Disk {
    /// `named` is a path on the file system; without it the runtime is asked.
    pub fn new(named: Option<PathBuf>, limit_percent: u8, space: Look) -> Self {
        Self { named, limit_percent, found: OnceCell::new(), space }
    }

    /// Why nothing may be pulled any more; None while it may. What cannot be learnt limits nothing.
    pub async fn is_short(&self, runtime: &Client) -> Option<String> {
        if self.limit_percent >= 100 {
            return None;
        }
        let (path, space) = (self.path(runtime).await, self.space);
        // A file system that does not answer must not hold up anything else.
        let space = tokio::task::spawn_blocking(move || space(&path)).await.ok()?;
        match space {
            Ok(space) => space.is_short(self.limit_percent),
            Err(error) => {
                tracing::warn!(%error, "the space for images is not known");
                None
            }
        }
    }

    async fn path(&self, runtime: &Client) -> PathBuf {
        if let Some(named) = &self.named {
            return named.clone();
        }
        let ask = async || {
            let reported = runtime.image_directory().await.ok().flatten().filter(|path| path.is_dir());
            // Not there: this is a container, see above.
            let path = reported.unwrap_or_else(|| PathBuf::from("/"));
            tracing::info!(path = %path.display(), "the space for images is looked at here");
            path
        };
        self.found.get_or_init(ask).await.clone()
    }
}

/// What the kernel says.
///
/// # Errors
/// The path is not there.
pub fn space(path: &Path) -> rustix::io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Space { total: stat.f_blocks, free: stat.f_bfree, available: stat.f_bavail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::fake::FakeRuntime;

    #[tokio::test]
    async fn the_space_of_this_machine_is_seen() {
        let (_runtime, client) = FakeRuntime::in_memory();
        let space = space(Path::new("/")).unwrap();
        assert!(space.total > 0 && space.free <= space.total && space.used_percent() <= 100);
        assert_eq!(Disk::new(None, 100, super::space).is_short(&client).await, None);
        // What is not there limits nothing.
        assert_eq!(Disk::new(Some("/not/there".into()), 1, super::space).is_short(&client).await, None);
    }
}
