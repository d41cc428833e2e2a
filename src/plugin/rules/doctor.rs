//! What `doctor` makes of an installation: each check judges facts that were read and says what to do.
//!
//! A fact that could not be read is never taken for good or bad: the check says `unknown` and why.

use k8s_openapi::apimachinery::pkg::version::Info;
use serde::Serialize;
use serde_json::Value;

use super::{JsonPointer, exit::Exit, table::columns};
use crate::runtime::{client::check_version, stored_versions};

mod returning;
mod rights;
mod roles;
mod webhook;

pub use self::{
    returning::returning,
    rights::{
        Limits, Right, feature_gates, foreign_bindings, gated_binding, gated_rights, limits, policies, rights,
        unprotected,
    },
    roles::{daemons, deployment, lease, versions},
    webhook::{
        Answer, Called, Handshake, MOST_SERVICES, addresses, admission, ca_bundle, ca_certificates, called, endpoints,
        leftovers, not_looked_at, serving_certificates, strays, unanswered, unlisted, webhook_configuration,
    },
};

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but somebody should look.
    Warn,
    /// Does not work.
    Fail,
    /// Could not be found out.
    Unknown,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub text: String,
    /// What to do; empty when nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// Why a fact is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The caller has no right to read it.
    NotPermitted,
    /// It does not exist.
    NotFound,
    /// Reading went wrong.
    Failed(String),
}

/// What was read, or why not.
pub type Fact = Result<Value, Lack>;

fn finding(check: &'static str, verdict: Verdict, text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { check, verdict, text: text.into(), advice: advice.into() }
}

fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    finding(check, Verdict::Ok, text, "")
}

/// The finding for a fact that is not there, other than by not existing.
fn unknown(check: &'static str, what: &str, lack: &Lack) -> Finding {
    let why = match lack {
        Lack::NotPermitted => format!("not permitted to read {what}"),
        Lack::NotFound => format!("{what} does not exist"),
        Lack::Failed(error) => format!("{what}: {error}"),
    };
    finding(check, Verdict::Unknown, why, "")
}

/// The API server's version.
pub fn server(version: &Fact) -> Finding {
    const CHECK: &str = "API server";
    let info: Info = match version {
        Ok(version) => serde_json::from_value(version.clone()).unwrap_or_default(),
        Err(lack) => {
            let Finding { text, .. } = unknown(CHECK, "/version", lack);
            return finding(CHECK, Verdict::Fail, text, "check the kubeconfig, --context and the network");
        }
    };
    match check_version(&info) {
        Ok(_) => ok(CHECK, format!("Kubernetes {}", info.git_version)),
        Err(error) => finding(CHECK, Verdict::Fail, error.to_string(), "upgrade the cluster"),
    }
}

/// One custom resource definition: what should be served, what is, and the object itself.
#[derive(Clone, Debug)]
pub struct Crd {
    /// `<plural>.<group>`.
    pub name: &'static str,
    /// Versions that this release installs. Objects are stored as the first one.
    pub wanted: &'static [&'static str],
    /// Versions that discovery lists.
    pub served: Result<Vec<String>, Lack>,
    /// The definition.
    pub object: Fact,
}

/// The custom resources.
pub fn custom_resources(crds: &[Crd]) -> Vec<Finding> {
    const CHECK: &str = "custom resource";
    let apply = "apply the manifests of this release: kubectl apply -k manifests/crds";
    crds.iter()
        .map(|Crd { name, wanted, served, object }| {
            let served = match served {
                Ok(served) => served,
                Err(lack) => return unknown(CHECK, &format!("the versions of {name}"), lack),
            };
            if served.is_empty() {
                return finding(CHECK, Verdict::Fail, format!("{name} is not installed"), apply);
            }
            let is_missing = |version: &&str| !served.iter().any(|served| served == version);
            let missing: Vec<&str> = wanted.iter().copied().filter(is_missing).collect();
            if !missing.is_empty() {
                let text = format!("{name} is served as {}, not as {}", served.join(", "), missing.join(", "));
                return finding(CHECK, Verdict::Fail, text, apply);
            }
            let conversion = object.as_ref().map_or("", |crd| crd.text("/spec/conversion/strategy"));
            if conversion == "Webhook" {
                let text = format!("{name} is converted by a webhook, which another installation may have left");
                return finding(CHECK, Verdict::Warn, text, apply);
            }
            let ever = object.as_ref().map_or(&[][..], |crd| crd.list("/status/storedVersions"));
            let ever: Vec<&str> = ever.iter().filter_map(Value::as_str).collect();
            let stored = wanted.first().copied().unwrap_or_default();
            if let Some(reason) = stored_versions::refusal(name, wanted, stored, &ever) {
                return finding(CHECK, Verdict::Fail, reason, "the roles do not start before this is done");
            }
            ok(CHECK, format!("{name}: {}", served.join(", ")))
        })
        .collect()
}

/// The whole report.
pub fn report(findings: &[Finding], paint: impl Fn(Verdict, &str) -> String) -> String {
    let word = |verdict| match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
        Verdict::Unknown => "unknown",
    };
    let mut rows = Vec::new();
    for finding in findings {
        rows.push(vec![word(finding.verdict).to_owned(), finding.check.to_owned(), finding.text.clone()]);
        if !finding.advice.is_empty() {
            rows.push(vec![String::new(), String::new(), format!("-> {}", finding.advice)]);
        }
    }
    let verdicts = findings.iter().flat_map(|f| [Some(f.verdict), (!f.advice.is_empty()).then_some(Verdict::Ok)]);
    let table = columns(&[], &rows);
    // Colours last: they have no width, but characters.
    let lines = table.lines().zip(verdicts.flatten()).map(|(line, verdict)| {
        let width = word(verdict).len();
        match line.starts_with(word(verdict)) {
            true => format!("{}{}\n", paint(verdict, &line[..width]), &line[width..]),
            false => format!("{line}\n"),
        }
    });
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    format!(
        "{}\n{} ok, {} to look at, {} failed, {} unknown\n",
        lines.collect::<String>(),
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail),
        count(Verdict::Unknown)
    )
}

/// 1 if any check failed.
pub fn exit(findings: &[Finding]) -> Exit {
    if findings.iter().any(|finding| finding.verdict == Verdict::Fail) { Exit::Failed } else { Exit::Success }
}

#[cfg(test)]
mod tests;
