//! Names and ids of the CRI world, parsed once.

use std::{fmt, str::FromStr};

/// A container id with the runtime that gave it, written `<runtime>://<id>` in Pod status.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerId {
    /// The runtime's name, for example `containerd`, `cri-o` or `docker`.
    pub runtime: String,
    /// The id inside that runtime.
    pub id: String,
}

/// Text that is not `<runtime>://<id>`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("container id {0:?}: want <runtime>://<id>")]
pub struct BadContainerId(pub String);

impl FromStr for ContainerId {
    type Err = BadContainerId;
    fn from_str(text: &str) -> Result<Self, BadContainerId> {
        match text.split_once("://") {
            Some((runtime, id)) if !runtime.is_empty() && !id.is_empty() => {
                Ok(Self { runtime: runtime.to_owned(), id: id.to_owned() })
            }
            _ => Err(BadContainerId(text.to_owned())),
        }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.runtime, self.id)
    }
}

/// Why a CRI call failed, as far as a caller acts on it.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The runtime does not know the container: for a stop that is as good as stopped.
    #[error("{call}: not found: {message}")]
    NotFound {
        /// The CRI method.
        call: &'static str,
        /// The runtime's words.
        message: String,
    },
    /// The call did not reach the runtime, or its answer did not reach us: transient, says nothing about containers.
    #[error("{call}: runtime not reachable: {message}")]
    Unreachable {
        /// The CRI method.
        call: &'static str,
        /// The transport's words.
        message: String,
    },
    /// No answer in time.
    #[error("{call} got no answer within {seconds} s")]
    Timeout {
        /// The CRI method.
        call: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The runtime answered with an error.
    #[error("{call}: {message}")]
    Runtime {
        /// The CRI method.
        call: &'static str,
        /// The runtime's words.
        message: String,
        /// Whether the same call may succeed later.
        may_pass: bool,
    },
}

impl CriError {
    /// Whether the call did not reach the runtime, or had no answer.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// Whether the same call may succeed later: everything but an unknown container and a refusal.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Runtime { may_pass, .. } => *may_pass,
            Self::NotFound { .. } => false,
        }
    }

    /// For a status: the same words as long as the same thing is wrong, where the transport's differ each time.
    pub fn stable_text(&self) -> String {
        match self {
            Self::Unreachable { call, .. } => format!("{call}: it cannot be reached"),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_have_a_runtime_and_an_id() {
        assert_eq!("containerd://abc".parse(), Ok(ContainerId { runtime: "containerd".into(), id: "abc".into() }));
        for bad in ["", "abc", "://abc", "containerd://"] {
            assert_eq!(bad.parse::<ContainerId>(), Err(BadContainerId(bad.into())));
        }
    }
}
