//! Runs what docs/ has for other tools with those tools: Prometheus's rules with promtool, and the health checks for Argo CD
//! with its Lua interpreter, over objects as controllers write them, beside the checks that come with Argo CD.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cmd::{CommandExt, cmd};
use crate::kit::Look;
use crate::paths::Paths;
use crate::tools;

/// What Argo CD makes of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Healthy, Progressing, Suspended or Degraded; empty after an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Why the script gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// A state of an object, as a controller left it, and what is to be shown of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Recorded {
    /// By docs/integrations/argocd/health.lua.
    pub health: String,
    /// By the check that comes with Argo CD; none for kinds without one, `error` where it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<String>,
    pub object: Value,
}

/// Kinds for which Argo CD 3.5 has a health check of its own.
pub const WITH_A_CHECK: [&str; 5] = ["AdvancedCronJob", "BroadcastJob", "CloneSet", "DaemonSet", "StatefulSet"];

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

fn documents(text: &str) -> Result<Vec<Value>> {
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

/// Our script.
pub fn health_script(paths: &Paths) -> Result<String> {
    let path = paths.repo.join("docs/integrations/argocd/health.lua");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What scripts say of objects. Without a script, that of Argo CD for the kind is run.
pub fn verdicts(paths: &Paths, cases: &[(Option<&str>, &Value)]) -> Result<Vec<Verdict>> {
    let cases: Vec<Value> =
        cases.iter().map(|(script, object)| json!({ "script": script.unwrap_or(""), "object": object })).collect();
    let answer = cmd(paths.bin("argocd-health"), [""; 0]).feed(&serde_json::to_string(&cases)?)?;
    serde_json::from_str(&answer).with_context(|| format!("argocd-health said: {answer}"))
}

/// What both checks say of an object; Argo CD's own is asked where there is one.
pub fn shown(paths: &Paths, object: &Value) -> Result<(Verdict, Option<Verdict>)> {
    let script = health_script(paths)?;
    let mut cases = vec![(Some(script.as_str()), object)];
    if WITH_A_CHECK.contains(&object.text("/kind")) {
        cases.push((None, object));
    }
    let mut said = verdicts(paths, &cases)?.into_iter();
    Ok((said.next().context("a verdict")?, said.next()))
}

/// One word for a verdict.
pub fn word(verdict: &Verdict) -> &str {
    if verdict.error.is_empty() { &verdict.status } else { "error" }
}

fn folder(paths: &Paths) -> PathBuf {
    paths.repo.join("e2e/testdata/health")
}

/// Writes an object that a test has met, when `KRUISE_RECORD_HEALTH` is set: the files from which [`check`] runs.
pub fn record(paths: &Paths, object: &Value) -> Result<()> {
    if std::env::var_os("KRUISE_RECORD_HEALTH").is_none() {
        return Ok(());
    }
    let (ours, own) = shown(paths, object)?;
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| ["name", "namespace", "generation", "annotations"].contains(&field.as_str()));
    }
    let recorded = Recorded {
        health: word(&ours).to_owned(),
        own: own.as_ref().map(|own| word(own).to_owned()),
        object: object.clone(),
    };
    let name = format!("{}.{}.yaml", object.text("/kind").to_lowercase(), reason(&object).to_lowercase());
    fs::create_dir_all(folder(paths))?;
    fs::write(folder(paths).join(name), serde_yaml::to_string(&recorded)?)?;
    Ok(())
}

/// The reason of that of the three conditions which is True.
pub fn reason(object: &Value) -> &str {
    let is_one =
        |c: &&Value| ["Ready", "Reconciling", "Stalled"].contains(&c.text("/type")) && c.text("/status") == "True";
    object.array("/status/conditions").iter().find(is_one).map_or("", |c| c.text("/reason"))
}

/// Runs both checks over everything that was recorded.
fn health(paths: &Paths) -> Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(paths))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let (mut seen, mut wrong) = (BTreeMap::<String, BTreeSet<String>>::new(), Vec::new());
    for path in &files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let recorded: Recorded =
            serde_yaml::from_str(&fs::read_to_string(path)?).with_context(|| format!("read {name}"))?;
        let (ours, own) = shown(paths, &recorded.object)?;
        if word(&ours) != recorded.health {
            wrong.push(format!("{name}: {} is wanted, ours says {ours:?}", recorded.health));
        }
        if own.as_ref().map(word) != recorded.own.as_deref() {
            wrong.push(format!("{name}: {:?} is wanted, Argo CD's own says {own:?}", recorded.own));
        }
        seen.entry(recorded.object.text("/kind").to_owned()).or_default().insert(recorded.health);
    }
    if !wrong.is_empty() {
        bail!("health checks for Argo CD:\n  {}", wrong.join("\n  "));
    }
    let all: BTreeSet<&String> = seen.values().flatten().collect();
    for health in ["Healthy", "Progressing", "Suspended", "Degraded"] {
        ensure!(all.contains(&health.to_owned()), "no state that is {health} was recorded");
    }
    println!("docs/integrations/argocd: {} states of {} kinds", files.len(), seen.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_recorded_state_has_a_kind_a_generation_and_one_true_condition() {
        let files = fs::read_dir(folder(&Paths::default())).unwrap();
        let mut kinds = BTreeSet::new();
        for path in files.map(|entry| entry.unwrap().path()) {
            let recorded: Recorded = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            let object = &recorded.object;
            assert!(object.int("/metadata/generation") > 0 && !reason(object).is_empty(), "{}", path.display());
            assert_eq!(recorded.own.is_some(), WITH_A_CHECK.contains(&object.text("/kind")), "{}", path.display());
            kinds.insert(object.text("/kind").to_owned());
        }
        let table = fs::read_to_string(Paths::default().repo.join("docs/integrations/argocd/argocd-cm.yaml")).unwrap();
        let missing: Vec<&str> = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix("resource.customizations.health.")?.split(':').next())
            .filter_map(|key| key.split_once('_').map(|(_, kind)| kind))
            .filter(|kind| !kinds.contains(*kind))
            .collect();
        assert!(missing.is_empty(), "no state of these kinds was recorded: {missing:?}");
    }
}
