//! Runs what docs/ has for other tools with those tools: Prometheus's rules with promtool, and the health checks for Argo CD
//! with its Lua interpreter, beside the checks that come with Argo CD. The objects that both look at here are written by hand, as
//! controllers leave them; what controllers have left on a cluster is looked at by [`healths`] and [`both_healths`] in end-to-end
//! tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cmd::{CommandExt, cmd};
use crate::kit::Look;
use crate::paths::Paths;
use crate::tools;

/// What Argo CD makes of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verdict {
    /// Healthy, Progressing, Suspended or Degraded; empty after an error.
    status: String,
    /// For people.
    message: String,
    /// Why the script gave none.
    error: String,
}

impl Verdict {
    fn word(&self) -> &str {
        if self.error.is_empty() { &self.status } else { "error" }
    }
}

/// An object in one of its states, and what is to be shown of it.
#[derive(Debug, Deserialize)]
struct State {
    /// By docs/integrations/argocd/health.lua.
    health: String,
    /// By the check that comes with Argo CD; none for kinds without one, `error` where it fails.
    own: Option<String>,
    object: Value,
}

/// Kinds for which Argo CD 3.5 has a health check of its own.
const WITH_A_CHECK: [&str; 5] = ["AdvancedCronJob", "BroadcastJob", "CloneSet", "DaemonSet", "StatefulSet"];

/// Installs what [`check`] needs, and nothing of a cluster.
pub fn install(paths: &Paths) -> Result<()> {
    tools::argocd_health(paths)?;
    tools::promtool(paths)
}

pub fn check(paths: &Paths) -> Result<()> {
    prometheus(paths, "alerts")?;
    prometheus(paths, "object-alerts")?;
    health(paths)
}

/// The documents of a file in YAML.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    Ok(serde_yaml::Deserializer::from_str(text).map(Value::deserialize).collect::<Result<_, _>>()?)
}

/// Checks docs/monitoring/NAME.yaml, and runs testdata/prometheus/NAME.yaml over it.
fn prometheus(paths: &Paths, name: &str) -> Result<()> {
    let file = format!("{name}.yaml");
    let object = fs::read_to_string(paths.repo.join("docs/monitoring").join(&file))?;
    let rules = documents(&object)?.remove(0)["spec"].take();
    let tests = fs::read_to_string(paths.repo.join("e2e/testdata/prometheus").join(&file))?;
    untested(&rules, &tests)?;
    let folder = paths.cluster.join("promtool");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("rules.yaml"), serde_yaml::to_string(&rules)?)?;
    fs::write(folder.join(&file), tests)?;
    for args in [["check", "rules", "rules.yaml"], ["test", "rules", file.as_str()]] {
        let answer = cmd(paths.bin("promtool"), args).current_dir(&folder).answer()?;
        ensure!(answer.ok, "docs/monitoring/{file}: promtool {}:\n{}{}", args.join(" "), answer.stdout, answer.stderr);
    }
    let count = rules.array("/groups/0/rules").len();
    println!("docs/monitoring/{file}: {count} alerts, each of them fires in a test");
    Ok(())
}

/// Fails when some alert fires in no test.
fn untested(rules: &Value, tests: &str) -> Result<()> {
    let groups = rules.array("/groups").iter().flat_map(|group| group.array("/rules"));
    let missing: Vec<&str> = groups
        .map(|rule| rule.text("/alert"))
        .filter(|alert| !tests.contains(&format!("alertname=\"{alert}\",alertstate=\"firing\"")))
        .collect();
    ensure!(missing.is_empty(), "no test lets these alerts fire: {}", missing.join(", "));
    Ok(())
}

/// What scripts say of objects. Without a script, that of Argo CD for the kind is run.
fn verdicts(paths: &Paths, cases: &[(Option<&str>, &Value)]) -> Result<Vec<Verdict>> {
    let cases: Vec<Value> =
        cases.iter().map(|(script, object)| json!({ "script": script.unwrap_or(""), "object": object })).collect();
    let answer = cmd(paths.bin("argocd-health"), [""; 0]).feed(&serde_json::to_string(&cases)?)?;
    let verdicts: Vec<Verdict> =
        serde_json::from_str(&answer).with_context(|| format!("argocd-health said: {answer}"))?;
    ensure!(verdicts.len() == cases.len(), "{} verdicts on {} objects", verdicts.len(), cases.len());
    Ok(verdicts)
}

fn script(paths: &Paths) -> Result<String> {
    let path = paths.repo.join("docs/integrations/argocd/health.lua");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What docs/integrations/argocd/health.lua makes of objects: Healthy, Progressing, Suspended, Degraded, or `error`.
pub fn healths(paths: &Paths, objects: &[Value]) -> Result<Vec<String>> {
    let script = script(paths)?;
    let cases: Vec<(Option<&str>, &Value)> = objects.iter().map(|object| (Some(script.as_str()), object)).collect();
    Ok(verdicts(paths, &cases)?.iter().map(|verdict| verdict.word().to_owned()).collect())
}

/// The same of one object of a kind for which Argo CD has a check, and after it what that check makes of the object.
pub fn both_healths(paths: &Paths, object: &Value) -> Result<[String; 2]> {
    let script = script(paths)?;
    let said = verdicts(paths, &[(Some(script.as_str()), object), (None, object)])?;
    let [ours, own] = said.as_slice() else { bail!("{} verdicts by two checks", said.len()) };
    Ok([ours, own].map(|verdict| verdict.word().to_owned()))
}

fn folder(paths: &Paths) -> PathBuf {
    paths.repo.join("e2e/testdata/health")
}

/// The states by the names of their files.
fn states(paths: &Paths) -> Result<BTreeMap<String, State>> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let state = serde_yaml::from_str(&fs::read_to_string(&path)?).with_context(|| format!("read {name}"))?;
        Ok((name, state))
    };
    fs::read_dir(folder(paths))?.map(read).collect()
}

/// Runs both checks over every state.
fn health(paths: &Paths) -> Result<()> {
    let (script, states) = (script(paths)?, states(paths)?);
    let has_own = |object: &Value| WITH_A_CHECK.contains(&object.text("/kind"));
    let objects = || states.values().map(|state| &state.object);
    let ours = objects().map(|object| (Some(script.as_str()), object));
    let own = objects().filter(|object| has_own(object)).map(|object| (None, object));
    let mut said = verdicts(paths, &ours.chain(own).collect::<Vec<_>>())?;
    let mut own = said.split_off(states.len()).into_iter();
    let (mut kinds, mut seen, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for ((name, state), ours) in states.iter().zip(&said) {
        if ours.word() != state.health {
            wrong.push(format!("{name}: {} is wanted, ours says {ours:?}", state.health));
        }
        let own = has_own(&state.object).then(|| own.next()).flatten();
        if own.as_ref().map(Verdict::word) != state.own.as_deref() {
            wrong.push(format!("{name}: {:?} is wanted, Argo CD's own says {own:?}", state.own));
        }
        kinds.insert(state.object.text("/kind"));
        seen.insert(state.health.as_str());
    }
    if !wrong.is_empty() {
        bail!("health checks for Argo CD:\n  {}", wrong.join("\n  "));
    }
    for health in ["Healthy", "Progressing", "Suspended", "Degraded"] {
        ensure!(seen.contains(health), "there is no state that is {health}");
    }
    println!("docs/integrations/argocd: {} states of {} kinds", states.len(), kinds.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason of that of the three conditions which is True.
    fn reason(object: &Value) -> &str {
        let is_one =
            |c: &&Value| ["Ready", "Reconciling", "Stalled"].contains(&c.text("/type")) && c.text("/status") == "True";
        object.array("/status/conditions").iter().find(is_one).map_or("", |c| c.text("/reason"))
    }

    #[test]
    fn an_alert_that_fires_in_no_test_is_named() {
        let rules = json!({ "groups": [{ "rules": [{ "alert": "A" }, { "alert": "B" }] }] });
        let tests = r#"labels: 'ALERTS{alertname="A",alertstate="firing"}' ; alertname="B",alertstate="pending""#;
        assert_eq!(untested(&rules, tests).unwrap_err().to_string(), "no test lets these alerts fire: B");
    }

    #[test]
    fn the_reason_is_that_of_the_condition_that_is_true() {
        let condition =
            |type_: &str, status: &str, reason: &str| json!({ "type": type_, "status": status, "reason": reason });
        let object = json!({ "status": { "conditions": [condition("Progressing", "True", "No"),
            condition("Ready", "False", "Waits"), condition("Reconciling", "True", "Waits")] } });
        assert_eq!(reason(&object), "Waits");
        assert_eq!(reason(&json!({})), "");
    }

    #[test]
    fn every_state_has_a_kind_a_generation_and_one_true_condition() {
        let mut kinds = BTreeSet::new();
        for (name, State { own, object, .. }) in states(&Paths::default()).unwrap() {
            assert!(object.int("/metadata/generation") > 0 && !reason(&object).is_empty(), "{name}");
            assert_eq!(own.is_some(), WITH_A_CHECK.contains(&object.text("/kind")), "{name}");
            kinds.insert(object.text("/kind").to_owned());
        }
        let table = fs::read_to_string(Paths::default().repo.join("docs/integrations/argocd/argocd-cm.yaml")).unwrap();
        let missing: Vec<&str> = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix("resource.customizations.health.")?.split(':').next())
            .filter_map(|key| key.split_once('_').map(|(_, kind)| kind))
            .filter(|kind| !kinds.contains(*kind))
            .collect();
        assert!(missing.is_empty(), "there is no state of these kinds: {missing:?}");
    }
}
