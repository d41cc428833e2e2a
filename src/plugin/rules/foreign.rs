//! What there is instead of commands of OpenKruise's own plugin.

const SCALE_DOWN: &str = r#"kubectl patch cloneset NAME --type=merge -p '{"spec":{"replicas":COUNT,"scaleStrategy":{"podsToDelete":["POD"]}}}'"#;
const MIGRATE: &str = "make the new workload from the manifest of the old one, scale it up and the old one down";
const RESTART: &str = "kubectl kruise restart pod/NAME -c CONTAINER";
const BROADCAST: &str =
    "kubectl kruise broadcast IMAGE -- COMMAND; instead of --from=acj/NAME: kubectl kruise cronjob trigger NAME";
const JOB: &str = "kubectl create job; instead of --from=acj/NAME: kubectl kruise cronjob trigger NAME";

/// What to use instead of a command with these words.
pub fn instead(command: &str, words: &[String]) -> String {
    let kind = words.iter().find(|word| !word.starts_with('-')).map(|word| word.to_ascii_lowercase());
    let (what, instead) = match (command, kind.as_deref()) {
        ("create", Some(kind @ ("containerrecreaterequest" | "crr"))) => (format!("create {kind}"), RESTART),
        ("create", Some(kind @ ("broadcastjob" | "bcj"))) => (format!("create {kind}"), BROADCAST),
        ("create", Some(kind @ "job")) => (format!("create {kind}"), JOB),
        ("create", _) => ("create".to_owned(), "kubectl create"),
        ("scaledown", _) => ("scaledown".to_owned(), SCALE_DOWN),
        (other, _) => (other.to_owned(), MIGRATE),
    };
    format!("{what:?} is a command of OpenKruise's plugin and not of this one. Instead: {instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_replacement() {
        for (line, what, replacement) in [
            ("create ContainerRecreateRequest a --pod=web", "create containerrecreaterequest", RESTART),
            ("create CRR a", "create crr", RESTART),
            ("create broadcastJob a --image=busybox", "create broadcastjob", BROADCAST),
            ("create job a --from=acj/nightly", "create job", JOB),
            ("create -f file.yaml", "create", "kubectl create"),
            ("create", "create", "kubectl create"),
            ("scaledown CloneSet web --pods web-a", "scaledown", SCALE_DOWN),
            ("migrate CloneSet --from Deployment", "migrate", MIGRATE),
        ] {
            let mut words = line.split(' ').map(str::to_owned);
            let command = words.next().unwrap();
            let told = instead(&command, &words.collect::<Vec<_>>());
            assert!(told.starts_with(&format!("{what:?} is ")) && told.ends_with(replacement), "{line}: {told}");
        }
    }
}
