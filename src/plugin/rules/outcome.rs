//! How far something is, and how it ended: what progress of requests and roll-outs is shown as.

/// How a line is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Its turn has not come.
    Waiting,
    /// Under way.
    Working,
    /// Over and well.
    Done,
    /// Over and not well.
    Failed,
}

impl Mark {
    /// Whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// One line of the live view: a container, or a whole workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is about, for example `web/main`.
    pub subject: String,
    /// How far it is.
    pub mark: Mark,
    /// What is going on.
    pub text: String,
    /// Done and all, for a bar.
    pub bar: Option<(u64, u64)>,
}

/// How a request ended, or that it did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet.
    Open,
    /// Every container was restarted.
    Succeeded,
    /// At least one was not; why.
    Failed(String),
    /// There was nothing to do; why.
    Nothing(String),
}

/// How waiting for one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It ended.
    Ended(Outcome),
    /// It was deleted before its end was seen.
    Gone,
    /// Time was up.
    TimedOut,
    /// The user had enough.
    Interrupted,
}
