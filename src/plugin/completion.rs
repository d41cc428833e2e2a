//! Shell completion: a script for `kubectl-kruise` itself, and answers for kubectl's own completion.
//!
//! Behind `kubectl kruise`, kubectl runs `kubectl_complete-kruise` with the words typed so far; it wants one candidate a
//! line and last a directive, see `kubectl plugin --help`.

use std::{io::Write as _, time::Duration};

use clap::CommandFactory as _;
use clap_complete::{Shell, engine};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

use super::{
    Cli,
    connection::ConnectionArgs,
    requests::{self, api_for, resource_of, value},
    rules::{
        JsonPointer,
        exit::{Exit, Stop},
        request::regular_containers,
        rollout::{Holds, Rolls},
        target::Kind,
    },
    view::print,
};

/// Directive: do not offer files.
const NO_FILES: u8 = 4;
/// Directive: do not put a blank behind what was completed.
const NO_SPACE: u8 = 2;
/// Time limit of a completion.
const LIMIT: Duration = Duration::from_secs(2);

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

/// Words that have to be read from the cluster.
#[derive(Debug, PartialEq)]
enum Asked {
    /// Names of objects of a kind, behind `TYPE/`.
    Names { kind: Kind, typed: String },
    /// Containers of a Pod, behind `-c`.
    Containers { pod: String },
    /// Containers of a workload's template, behind its name: `main=`.
    Images { kind: Kind, name: String },
    /// Names of requests.
    Requests,
}

/// Which kinds a command takes.
type Fits = fn(&Kind) -> bool;

/// The kinds whose names may follow, the words behind the command, and the last word; None: no names follow.
fn of_kinds(words: &[String]) -> Option<(Fits, &[String], &String)> {
    let rolls = |kind: &Kind| Rolls::of_kind(kind).is_some();
    match words {
        [command, between @ .., last] if command == "restart" => Some((|_| true, between, last)),
        [group, command, between @ .., last]
            if group == "rollout"
                && ["status", "history", "undo", "pause", "resume", "restart"].contains(&command.as_str()) =>
        {
            Some((rolls, between, last))
        }
        [group, command, between @ .., last] if group == "set" && command == "image" => Some((rolls, between, last)),
        _ => None,
    }
}

/// What the cluster has to be asked to complete the last word.
fn asked(words: &[String]) -> Option<Asked> {
    let [command, between @ .., last] = words else { return None };
    let before = between.last().map_or("", String::as_str);
    if command == "restart" && ["-c", "--containers"].contains(&before) {
        let pod = between.iter().find_map(|word| {
            let (type_, name) = word.split_once('/')?;
            (Kind::called(type_)?.kind == "Pod").then(|| name.to_owned())
        })?;
        return Some(Asked::Containers { pod });
    }
    if before.starts_with('-') || last.starts_with('-') {
        return None;
    }
    if let Some((fits, between, last)) = of_kinds(words) {
        if let Some((typed, _)) = last.split_once('/') {
            let kind = Kind::called(typed).filter(fits)?;
            return Some(Asked::Names { kind, typed: typed.to_owned() });
        }
        let target = between.iter().find_map(|word| {
            let (typed, name) = word.split_once('/')?;
            Some((Kind::called(typed).filter(fits)?, name.to_owned()))
        });
        let (kind, name) = target.filter(|_| command == "set" && !last.contains('='))?;
        return Some(Asked::Images { kind, name });
    }
    match command.as_str() {
        "status" | "describe" | "cancel" if !last.contains('/') => Some(Asked::Requests),
        _ => None,
    }
}

/// Asks the cluster. Nothing is what an error completes to.
async fn from_cluster(asked: Asked, connection: &ConnectionArgs) -> Result<Vec<String>, Stop> {
    let connection = connection.open().await?;
    let (client, namespace) = (connection.client.clone(), connection.namespace.as_str());
    let nothing = |error: kube::Error| Stop::new(Exit::NoAnswer, error.to_string());
    Ok(match asked {
        Asked::Containers { pod } => {
            let pod = Api::<Pod>::namespaced(client, namespace).get(&pod).await.map_err(nothing)?;
            regular_containers(&json!(pod))
        }
        Asked::Names { kind, typed } => {
            let api = api_for(&client, namespace, &kind);
            let list = api.list_metadata(&ListParams::default()).await.map_err(nothing)?;
            list.items.into_iter().filter_map(|o| Some(format!("{typed}/{}", o.metadata.name?))).collect()
        }
        Asked::Images { kind, name } => {
            let workload = api_for(&client, namespace, &kind).get(&name).await.map_err(nothing)?;
            let workload = value(workload, &resource_of(&kind))?;
            let lists = ["containers", "initContainers"].map(|list| format!("{}/{list}", Holds::of(&workload).at()));
            let containers = lists.iter().flat_map(|list| workload.list(list));
            containers.map(|container| format!("{}=", container.text("/name"))).collect()
        }
        Asked::Requests => {
            let all = requests::list(&connection, false, None).await?.objects;
            all.iter().map(|object| object.text("/metadata/name").to_owned()).collect()
        }
    })
}

/// Answers kubectl.
pub(super) fn complete() -> Exit {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (mut offered, mut directive) = known(&words);
    if let Some(asked) = asked(&words)
        && let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build()
    {
        let connection = ConnectionArgs::among(&words);
        if matches!(asked, Asked::Images { .. }) {
            directive = NO_FILES | NO_SPACE;
        }
        let found = runtime.block_on(async { tokio::time::timeout(LIMIT, from_cluster(asked, &connection)).await });
        runtime.shutdown_background();
        let last = words.last().map_or("", String::as_str);
        let names = found.ok().and_then(Result::ok).unwrap_or_default();
        offered.extend(names.into_iter().filter(|name| name.starts_with(last)).map(|name| (name, String::new())));
    }
    let mut text = String::new();
    for (value, help) in offered {
        text += &if help.is_empty() { format!("{value}\n") } else { format!("{value}\t{help}\n") };
    }
    let written = writeln!(std::io::stdout(), "{text}:{directive}");
    if written.is_ok() { Exit::Success } else { Exit::Failed }
}

/// What may stand in the place of the last word as far as the grammar knows, and the directive.
fn known(words: &[String]) -> (Vec<(String, String)>, u8) {
    let args = std::iter::once("kubectl-kruise".into()).chain(words.iter().map(Into::into)).collect();
    let mut found = Vec::new();
    for candidate in engine::complete(&mut Cli::command(), args, words.len(), None).unwrap_or_default() {
        if !candidate.is_hide_set() {
            let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
            let help = help.lines().next().unwrap_or_default().to_owned();
            found.push((candidate.get_value().to_string_lossy().into_owned(), help));
        }
    }
    if let Some((fits, between, last)) = of_kinds(words)
        && !between.last().is_some_and(|word| word.starts_with('-'))
    {
        let types = Kind::all().filter(fits).map(|kind| format!("{}/", kind.name()));
        let types = types.filter(|type_| type_.starts_with(last));
        let types: Vec<_> = types.map(|type_| (type_, String::new())).collect();
        if !types.is_empty() {
            return (types, NO_FILES | NO_SPACE);
        }
    }
    (found, NO_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last word is what stands before the cursor, empty after a blank.
    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }
    fn offered(line: &str) -> (Vec<String>, u8) {
        let (candidates, directive) = known(&words(line));
        (candidates.into_iter().map(|(value, _)| value).collect(), directive)
    }

    #[test]
    fn kubectl_gets_what_may_follow() {
        let (commands, directive) = offered("");
        for command in ["restart", "rollout", "set", "status", "describe", "cancel", "doctor", "completion"] {
            assert!(commands.iter().any(|c| c == command), "{command} in {commands:?}");
        }
        assert_eq!(directive, NO_FILES);
        assert_eq!(offered("rest").0, ["restart"]);
        assert_eq!(offered("restart dep"), (vec!["deployment/".to_owned()], NO_FILES | NO_SPACE));
        assert!(offered("restart pod/web --me").0.contains(&"--method".to_owned()));
        assert_eq!(offered("restart pod/web --method ").0, ["Runtime", "PodSpec", "Auto"]);
        assert!(offered("completion b").0.contains(&"bash".to_owned()));
        for command in ["status", "history", "undo", "pause", "resume", "restart"] {
            assert!(offered("rollout ").0.iter().any(|c| c == command), "{command}");
            assert_eq!(offered(&format!("rollout {command} c")), (vec!["cloneset/".to_owned()], NO_FILES | NO_SPACE));
        }
        assert!(offered("set ").0.contains(&"image".to_owned()));
        assert_eq!(offered("set image clo").0, ["cloneset/"]);
        assert_eq!(offered("rollout undo dep").0, Vec::<String>::new(), "not of this command");
        assert!(offered("rollout undo cloneset/web --to").0.contains(&"--to-revision".to_owned()));
    }

    #[test]
    fn names_are_asked_of_the_cluster() {
        let names = |typed: &str| Some(Asked::Names { kind: Kind::called(typed).unwrap(), typed: typed.into() });
        for (line, expected) in [
            ("restart pod/we", names("pod")),
            ("restart -n shop deploy/", names("deploy")),
            ("restart pod/web -c ", Some(Asked::Containers { pod: "web".into() })),
            ("restart deploy/web -c ", None),
            ("restart we", None),
            ("rollout undo cloneset/we", names("cloneset")),
            ("rollout status -n shop clone/", names("clone")),
            ("rollout undo deploy/we", None),
            ("rollout elsewhere cloneset/we", None),
            ("set image cloneset/we", names("cloneset")),
            (
                "set image clone/web ma",
                Some(Asked::Images { kind: Kind::called("cloneset").unwrap(), name: "web".into() }),
            ),
            ("rollout undo sidecarset/lo", names("sidecarset")),
            ("rollout history scs/lo", names("scs")),
            ("set image clone/web main=a", None),
            ("set image clone/web -n ", None),
            ("rollout undo clone/web x", None),
            ("restart pod/web -n sh", None),
            ("status ", Some(Asked::Requests)),
            ("cancel we", Some(Asked::Requests)),
            ("doctor ", None),
            ("", None),
        ] {
            assert_eq!(asked(&words(line)), expected, "{line}");
        }
        let connection = format!("{:?}", ConnectionArgs::among(&words("restart -n shop --context=c pod/")));
        assert!(connection.contains(r#"namespace: Some("shop"), context: Some("c")"#), "{connection}");
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
