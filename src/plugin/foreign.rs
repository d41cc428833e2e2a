//! Commands of OpenKruise's own plugin, whose executable has the same name: each says what to use instead.

use clap::error::{ContextKind, ContextValue};

use super::rules::{exit::Stop, foreign};

/// Groups of commands that both plugins have.
const GROUPS: [&str; 2] = ["set", "rollout"];

/// What to say of words that the grammar refuses. None: they are no command of OpenKruise's plugin either.
pub(super) fn instead(error: &clap::Error, words: &[String]) -> Option<Stop> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (before, rest) = words.split_at(words.iter().position(|word| word == unknown)?);
    let group = before.iter().rfind(|word| GROUPS.contains(&word.as_str()));
    let command: Vec<String> = group.into_iter().chain(rest).cloned().collect();
    foreign::instead(&command).map(Stop::usage)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::Cli, *};
    use crate::plugin::rules::exit::Exit;

    fn refused(line: &str) -> (clap::Error, Vec<String>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let all = std::iter::once("kubectl-kruise".to_owned()).chain(words.clone());
        (Cli::try_parse_from(all).unwrap_err(), words)
    }

    #[test]
    fn commands_of_the_other_plugin_are_known_wherever_they_stand() {
        for (line, command) in [
            ("create ContainerRecreateRequest a --namespace=shop --pod=web --containers=main", "create containerre"),
            ("create job a --image=busybox -- date", "create job"),
            ("create -f file.yaml", "create\""),
            ("create --help", "create\""),
            ("scaledown CloneSet web --pods web-a, web-b -n shop", "scaledown"),
            ("migrate CloneSet --from Deployment -n shop --dst-name web --create --copy", "migrate"),
            ("scale cloneset/web --replicas=3", "scale"),
            ("-n shop scale cloneset/web --replicas=3", "scale"),
            ("autoscale cloneset/web --max=5", "autoscale"),
            ("expose cloneset web --port=80", "expose"),
            ("exec web-a -- date", "exec"),
            ("get cloneset", "get"),
            ("set env cloneset/web A=b", "set env"),
            ("set -n shop resources cloneset/web --limits=cpu=1", "set resources"),
            ("rollout approve rollout/web -n shop", "rollout approve"),
        ] {
            let (error, words) = refused(line);
            let stop = instead(&error, &words).unwrap_or_else(|| panic!("{line}: {error}"));
            assert_eq!(stop.exit, Exit::Usage, "{line}");
            assert!(stop.message.starts_with(&format!("\"{command}")), "{line}: {stop}");
        }
        for line in ["rollback x", "rollout forward x", "set picture clone/a", "restart", "cancel a --all"] {
            let (error, words) = refused(line);
            assert_eq!(instead(&error, &words), None, "{line}");
        }
    }
}
