//! Exit codes: what scripts go by.

use std::process::ExitCode;

/// How a command ended. The numbers are a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Done; with `--wait`: every container was restarted; `rollout status`: rolled out.
    Success = 0,
    /// A container was not restarted, a roll-out has failed or is left to who deletes Pods, one that is to be changed is
    /// paused, a check of `doctor` failed, or something else went wrong.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The API server said no: admission, the schema, missing rights.
    Refused = 3,
    /// `--timeout` was over before the end. What was asked for goes on.
    TimedOut = 4,
    /// A Pod, workload, revision, container, request or the kind itself does not exist; `restart --wait`: no Pod matches.
    NotFound = 5,
    /// No usable answer from the API server.
    NoAnswer = 6,
    /// Ctrl-C while waiting. What was asked for goes on.
    Interrupted = 130,
}

/// The table for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done; restart --wait: every container was restarted; rollout status: rolled out; broadcast: done on all nodes
  1    failed: a container was not restarted, a roll-out has failed, a broadcast failed on a node, or a check of doctor
       failed; rollout status: the rest does not roll out by itself (OnDelete, NotUpdate); rollout undo, rollout
       restart, rollout pause: the workload is paused; rollout resume: it is not paused
  2    the command line makes no sense
  3    refused by the API server: admission, schema, missing rights
  4    --timeout was over; the restart, roll-out or broadcast goes on
  5    a Pod, workload, revision, container or request does not exist; restart --wait: no Pod matches
  6    no usable answer from the API server
  130  interrupted while waiting; the restart, roll-out or broadcast goes on";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command that cannot go on: its exit code and message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Stop {
    /// The exit code.
    pub exit: Exit,
    /// For standard error.
    pub message: String,
}

impl Stop {
    /// A stop with a reason.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
    /// The user has to write something else.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

/// The exit code for an HTTP status of the API server; None: there was no answer at all.
pub fn of_code(code: Option<u16>) -> Exit {
    match code {
        Some(404 | 410) => Exit::NotFound,
        Some(408 | 429) | None => Exit::NoAnswer,
        Some(400..=499) => Exit::Refused,
        Some(_) => Exit::NoAnswer,
    }
}

/// What an error of the API server means for the command; `what` names what was tried.
pub fn of_error(what: &str, error: &kube::Error) -> Stop {
    match error {
        kube::Error::Api(status) => {
            let exit = of_code(Some(status.code));
            // A kind that is not served gets a 404 without the name of an object.
            let no_kind = exit == Exit::NotFound && status.details.as_ref().is_none_or(|d| d.name.is_empty());
            let advice = match exit {
                _ if no_kind => "; is kruise-rs installed? `kubectl kruise doctor` tells",
                Exit::NoAnswer => "; `kubectl kruise doctor` says what is wrong",
                _ => "",
            };
            Stop::new(exit, format!("{what}: {}{advice}", status.message.trim()))
        }
        error => Stop::new(Exit::NoAnswer, format!("{what}: {}", with_sources(error))),
    }
}

/// An error with everything below it: the cause of a failed connection is at the bottom.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn codes_are_those_of_the_documentation() {
        for (code, exit) in [
            (Some(400), Exit::Refused),
            (Some(401), Exit::Refused),
            (Some(403), Exit::Refused),
            (Some(404), Exit::NotFound),
            (Some(409), Exit::Refused),
            (Some(422), Exit::Refused),
            (Some(429), Exit::NoAnswer),
            (Some(500), Exit::NoAnswer),
            (Some(503), Exit::NoAnswer),
            (None, Exit::NoAnswer),
        ] {
            assert_eq!(of_code(code), exit, "{code:?}");
        }
        for exit in [
            Exit::Success,
            Exit::Failed,
            Exit::Usage,
            Exit::Refused,
            Exit::TimedOut,
            Exit::NotFound,
            Exit::NoAnswer,
            Exit::Interrupted,
        ] {
            assert!(EXIT_CODES.contains(&format!("\n  {:<5}", exit as u8)), "{exit:?} is in the table");
        }
    }

    #[test]
    fn an_answer_without_a_name_is_a_kind_that_is_not_served() {
        let error = |code, message: &str, name: &str| {
            let details = (!name.is_empty())
                .then(|| serde_json::from_value(serde_json::json!({ "name": name, "kind": "pods" })).expect("details"));
            kube::Error::Api(Box::new(Status { code, message: message.into(), details, ..Status::default() }))
        };
        let gone = of_error("Pod web", &error(404, "pods \"web\" not found", "web"));
        assert_eq!((gone.exit, gone.message.as_str()), (Exit::NotFound, "Pod web: pods \"web\" not found"));
        let no_kind = of_error("create", &error(404, "404 page not found", ""));
        assert!(no_kind.message.ends_with("is kruise-rs installed? `kubectl kruise doctor` tells"), "{no_kind}");
        let down = of_error("create", &error(500, "failed calling webhook", ""));
        assert_eq!(down.exit, Exit::NoAnswer);
    }
}
