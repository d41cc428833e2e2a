//! What there is instead of commands of OpenKruise's own plugin.

const RESTART: &str = "kubectl kruise restart pod/NAME -c CONTAINER";
const BROADCAST: &str =
    "kubectl kruise broadcast IMAGE -- COMMAND; instead of --from=acj/NAME: kubectl kruise cronjob trigger NAME";
const PATCH: &str = "kubectl patch, or kubectl edit: kubectl's own set knows the built-in kinds only";
const OF_ROLLOUTS: &str = "where Kruise Rollout is installed, OpenKruise's plugin under another name, for example \
                           kubectl-kruise_tools; kruise-rs does not serve Rollouts";
const SAME: &str = "the command of kubectl with the same name";

/// Each command, in lower case, and what to use instead. The guide on moving from OpenKruise has the same table.
const INSTEAD: &[(&str, &str)] = &[
    ("create containerrecreaterequest", RESTART),
    ("create crr", RESTART),
    ("create broadcastjob", BROADCAST),
    ("create bcj", BROADCAST),
    ("create job", "kubectl create job; instead of --from=acj/NAME: kubectl kruise cronjob trigger NAME"),
    ("create", "kubectl create"),
    (
        "scaledown",
        r#"kubectl patch cloneset NAME --type=merge -p '{"spec":{"replicas":COUNT,"scaleStrategy":{"podsToDelete":["POD"]}}}'"#,
    ),
    ("migrate", "make the new workload from the manifest of the old one, scale it up and the old one down"),
    ("set env", PATCH),
    ("set resources", PATCH),
    ("set serviceaccount", PATCH),
    ("set selector", "kubectl set selector, of Services"),
    ("set subject", "kubectl set subject, of role bindings"),
    ("rollout approve", OF_ROLLOUTS),
    ("describe rollout", OF_ROLLOUTS),
    ("scale", "kubectl scale"),
    ("autoscale", "a HorizontalPodAutoscaler"),
    (
        "expose",
        "kubectl create service clusterip NAME --tcp=80:8000, then kubectl set selector service NAME app=web: \
         kubectl expose knows the built-in kinds only",
    ),
    ("exec", "kubectl exec POD"),
    ("get", SAME),
    ("apply", SAME),
    ("patch", SAME),
    ("wait", SAME),
    ("diff", SAME),
];

/// What to use instead of a command that begins with these words. None: it is none of that plugin.
pub fn instead(words: &[String]) -> Option<String> {
    let mut words = words.iter().filter(|word| !word.starts_with('-')).map(|word| word.to_ascii_lowercase());
    let (first, second) = (words.next()?, words.next().unwrap_or_default());
    let both = format!("{first} {second}");
    let row = |name: &str| INSTEAD.iter().find(|(command, _)| *command == name);
    let (command, instead) = row(&both).or_else(|| row(&first))?;
    Some(format!("{command:?} is a command of OpenKruise's plugin and not of this one. Instead: {instead}"))
}

/// The same for the arguments of `describe`. A single name is that of a request.
pub fn instead_of_describe(arguments: &[String]) -> Option<String> {
    let parts = arguments.iter().flat_map(|argument| argument.split('/'));
    let words: Vec<String> = std::iter::once("describe").chain(parts).map(str::to_owned).collect();
    (words.len() > 2).then(|| instead(&words)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn each_command_has_its_replacement() {
        for (line, what, replacement) in [
            ("create ContainerRecreateRequest a --pod=web", "create containerrecreaterequest", RESTART),
            ("create CRR a", "create crr", RESTART),
            ("create broadcastJob a --image=busybox", "create broadcastjob", BROADCAST),
            ("create job a --from=acj/nightly", "create job", "kubectl kruise cronjob trigger NAME"),
            ("create -f file.yaml", "create", "kubectl create"),
            ("create", "create", "kubectl create"),
            ("scaledown CloneSet web --pods web-a", "scaledown", r#""podsToDelete":["POD"]}}}'"#),
            ("migrate CloneSet --from Deployment", "migrate", "the old one down"),
            ("set env cloneset/web A=b", "set env", PATCH),
            ("set resources cloneset/web --limits=cpu=1", "set resources", PATCH),
            ("rollout approve rollout/web", "rollout approve", OF_ROLLOUTS),
            ("describe rollout web", "describe rollout", OF_ROLLOUTS),
            ("scale --replicas=3 cloneset/web", "scale", "kubectl scale"),
            ("autoscale cloneset/web --max=5", "autoscale", "a HorizontalPodAutoscaler"),
            ("expose cloneset web --port=80", "expose", "the built-in kinds only"),
            ("exec web-a -- date", "exec", "kubectl exec POD"),
            ("get cloneset", "get", SAME),
        ] {
            let told = instead(&words(line)).unwrap();
            assert!(told.starts_with(&format!("{what:?} is ")) && told.ends_with(replacement), "{line}: {told}");
        }
        for line in ["", "--all", "set", "set image cloneset/web", "rollout forward x", "describe web", "rollback x"] {
            assert_eq!(instead(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn a_rollout_is_no_request_to_describe_but_a_request_may_be_called_so() {
        for (line, told) in [
            ("rollout web", true),
            ("rollout/web", true),
            ("Rollout web other", true),
            ("rollout", false),
            ("crr/rollout", false),
            ("web rollout", false),
            ("", false),
        ] {
            assert_eq!(instead_of_describe(&words(line)).is_some(), told, "{line}");
        }
    }

    #[test]
    fn the_guide_has_the_commands_too() {
        let guide = include_str!("../../../docs/moving-from-openkruise.md").to_ascii_lowercase();
        for (command, _) in INSTEAD.iter().filter(|(command, _)| !["create crr", "create bcj"].contains(command)) {
            let named = [format!("`{command}`"), format!("| `{command} ")];
            assert!(named.iter().any(|named| guide.contains(named)), "{command}");
        }
    }
}
