//! Shell completion: a script for `kubectl-kruise` itself, and answers for kubectl's own completion.
//!
//! Behind `kubectl kruise`, kubectl runs `kubectl_complete-kruise` with the words typed so far; it wants one candidate a
//! line and last a directive, see `kubectl plugin --help`.

use std::{ffi::OsString, io::Write as _};

use clap::CommandFactory as _;
use clap_complete::{Shell, engine};

use super::{
    Cli,
    rules::exit::{Exit, Stop},
    view::print,
};

/// Directive: do not offer files.
const NO_FILES: u8 = 4;
/// Directive: do not put a blank behind what was completed.
const NO_SPACE: u8 = 2;

/// Print a completion script for the command kubectl-kruise.
///
/// For completion behind `kubectl kruise`, kubectl asks a program of the name kubectl_complete-kruise: link this
/// executable under that name too, beside kubectl-kruise.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionArgs {
    /// For example: kubectl kruise completion bash > /etc/bash_completion.d/kubectl-kruise
    shell: Shell,
}

pub(super) fn script(args: &CompletionArgs, command: &mut clap::Command) -> Result<Exit, Stop> {
    let mut script = Vec::new();
    let mut command = command.clone().bin_name("kubectl-kruise");
    clap_complete::generate(args.shell, &mut command, "kubectl-kruise", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

/// Answers kubectl.
pub(super) fn complete() -> Exit {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (candidates, directive) = candidates(words);
    let mut text = String::new();
    for (value, help) in candidates {
        text += &if help.is_empty() { format!("{value}\n") } else { format!("{value}\t{help}\n") };
    }
    let written = writeln!(std::io::stdout(), "{text}:{directive}");
    if written.is_ok() { Exit::Success } else { Exit::Failed }
}

/// What may stand in the place of the last word, and the directive.
fn candidates(words: Vec<OsString>) -> (Vec<(String, String)>, u8) {
    let last = words.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let is_flag = |word: &OsString| word.to_string_lossy().starts_with('-');
    // Behind a flag stands its value.
    let names_target = words.first().is_some_and(|word| word == "restart")
        && !words.iter().rev().take(2).any(is_flag)
        && !last.contains('/');
    let args: Vec<OsString> = std::iter::once("kubectl-kruise".into()).chain(words).collect();
    let index = args.len() - 1;
    let mut found: Vec<(String, String)> = Vec::new();
    if let Ok(offered) = engine::complete(&mut Cli::command(), args, index, None) {
        for candidate in offered.into_iter().filter(|candidate| !candidate.is_hide_set()) {
            let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
            let help = help.lines().next().unwrap_or_default().to_owned();
            found.push((candidate.get_value().to_string_lossy().into_owned(), help));
        }
    }
    if names_target && index > 1 {
        let types = ["pod/", "deployment/", "statefulset/", "daemonset/", "replicaset/", "cloneset/"];
        let fitting: Vec<_> = types.into_iter().filter(|type_| type_.starts_with(&last)).collect();
        if !fitting.is_empty() {
            return (fitting.into_iter().map(|type_| (type_.to_owned(), String::new())).collect(), NO_FILES | NO_SPACE);
        }
    }
    (found, NO_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> (Vec<String>, u8) {
        // The last word is what stands before the cursor, empty after a blank.
        let words = line.split(' ').map(OsString::from).collect();
        let (candidates, directive) = candidates(words);
        (candidates.into_iter().map(|(value, _)| value).collect(), directive)
    }

    #[test]
    fn kubectl_gets_what_may_follow() {
        let (commands, directive) = offered("");
        for command in ["restart", "status", "describe", "cancel", "doctor", "completion"] {
            assert!(commands.iter().any(|c| c == command), "{command} in {commands:?}");
        }
        assert_eq!(directive, NO_FILES);
        assert_eq!(offered("rest").0, ["restart"]);
        assert_eq!(offered("restart dep"), (vec!["deployment/".to_owned()], NO_FILES | NO_SPACE));
        assert!(offered("restart pod/web --me").0.contains(&"--method".to_owned()));
        assert_eq!(offered("restart pod/web --method ").0, ["Runtime", "PodSpec", "Auto"]);
        assert!(offered("completion b").0.contains(&"bash".to_owned()));
    }

    #[test]
    fn every_shell_has_its_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-kruise", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("max-unavailable"), "{shell}");
        }
    }
}
