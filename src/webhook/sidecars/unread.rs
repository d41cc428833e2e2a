//! Finds out why the first list of SidecarSets does not come. If their kind is not installed, there are none; otherwise a Pod may
//! lack its sidecars, and its creator is told why.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, api::ListParams};

use super::{
    LIMIT,
    known::{RawSidecarSet, WireSidecarSet},
};
use crate::runtime::{
    apply::{code, said},
    lock,
    watches::Store,
};

/// Between two questions.
const PAUSE: Duration = Duration::from_secs(5);

/// Why it is not known which SidecarSets there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// The first list is not complete.
    #[error("the SidecarSets are still being read")]
    Reading,
    /// The API server does not give them.
    #[error("the SidecarSets cannot be read: {0}")]
    Refused(Arc<str>),
    /// There are none.
    #[error("the kind SidecarSet is not installed")]
    NotInstalled,
}

/// Asks until the first list is complete.
pub(super) async fn follow(all: &Api<RawSidecarSet>, store: &Store<WireSidecarSet>, why: &Mutex<NotRead>) {
    let one = ListParams::default().limit(1);
    // The first list mostly comes within the first pause.
    while tokio::time::timeout(PAUSE, store.wait_synced()).await.is_err() {
        let now = match tokio::time::timeout(LIMIT, all.list(&one)).await {
            Ok(Ok(_)) => NotRead::Reading,
            Ok(Err(error)) if code(&error) == Some(404) => NotRead::NotInstalled,
            Ok(Err(error)) => NotRead::Refused(said(&error).into()),
            Err(_) => NotRead::Refused(format!("no answer within {} s", LIMIT.as_secs()).into()),
        };
        let before = std::mem::replace(&mut *lock(why), now.clone());
        if before != now {
            tracing::warn!(reason = %now, "it is not known which SidecarSets there are");
        }
    }
}
