//! Why CRI calls fail.

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
