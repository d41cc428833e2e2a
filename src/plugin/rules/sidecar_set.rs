//! What `sidecarset` says: how each Pod of a SidecarSet stands, and why.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{JsonPointer, table::columns};
use crate::{
    api::labels::{
        CONDITION_SIDECAR_SET_UPGRADABLE, SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SETS_LEFT_OUT,
    },
    domain::kinds::sidecar_set::{
        defaults,
        hash::Hashes,
        notes::{self, Notes},
    },
};

/// How a Pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is to have the sidecars and has none.
    Uninjected,
    /// Only another Pod in its place can bring it up to date.
    NotUpgradable,
    /// It has an older image, and will get the new one.
    Outdated,
    /// It has what the SidecarSet says.
    Updated,
}

impl Standing {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Uninjected, Self::NotUpgradable, Self::Outdated, Self::Updated];

    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Uninjected => "uninjected",
            Self::NotUpgradable => "not upgradable",
            Self::Outdated => "outdated",
            Self::Updated => "updated",
        }
    }
}

/// One Pod of a SidecarSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub standing: Standing,
    /// The revision that it has.
    pub revision: String,
    /// Why it stands so, where that is not plain.
    pub why: String,
}

/// Whether a Pod counts: neither ended nor on its way out.
pub fn is_active(pod: &Value) -> bool {
    !matches!(pod.text("/status/phase"), "Succeeded" | "Failed") && pod.text("/metadata/deletionTimestamp").is_empty()
}

/// Whether a Pod has containers of a SidecarSet and stays.
pub fn has_sidecars(set: &str, pod: &Value) -> bool {
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    is_active(pod) && annotations.is_some_and(|annotations| notes::injected(annotations).contains(set))
}

/// How a Pod of a SidecarSet stands.
pub fn row(set: &Value, hashes: &Hashes, pod: &Value) -> Row {
    let none = Map::new();
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object).unwrap_or(&none);
    let name = set.text("/metadata/name");
    let note = |key: &str| -> Notes { notes::notes(annotations, key).unwrap_or_default() };
    let (noted, without_image) = (note(SIDECAR_SET_HASH), note(SIDECAR_SET_HASH_WITHOUT_IMAGE));
    let has = |notes: &Notes, wanted: &str| notes.get(name).is_some_and(|note| note.hash == wanted);
    let (standing, why) = if !notes::injected(annotations).contains(name) {
        (Standing::Uninjected, why_uninjected(set, annotations, pod))
    } else if has(&noted, &hashes.hash) {
        (Standing::Updated, String::new())
    } else if !has(&without_image, &hashes.without_image) {
        (Standing::NotUpgradable, "more than images has changed: only a new Pod gets that".into())
    } else if let Some(why) = refused(name, pod) {
        (Standing::NotUpgradable, why)
    } else {
        (Standing::Outdated, why_outdated(set))
    };
    Row {
        namespace: pod.text("/metadata/namespace").to_owned(),
        name: pod.text("/metadata/name").to_owned(),
        standing,
        revision: noted.get(name).map(|note| note.controller_revision.clone()).unwrap_or_default(),
        why,
    }
}

fn why_uninjected(set: &Value, annotations: &Map<String, Value>, pod: &Value) -> String {
    let name = set.text("/metadata/name");
    let left_out = annotations.get(SIDECAR_SETS_LEFT_OUT).and_then(Value::as_str).unwrap_or_default();
    let reasons: BTreeMap<String, String> = serde_json::from_str(left_out).unwrap_or_default();
    if let Some(reason) = reasons.get(name) {
        return reason.clone();
    }
    // Both as the API server writes them, so that they sort like text.
    if pod.text("/metadata/creationTimestamp") < set.text("/metadata/creationTimestamp") {
        return "it is older than the SidecarSet".into();
    }
    if set.pointer("/spec/injectionStrategy/paused") == Some(&Value::Bool(true)) {
        return "injection is paused".into();
    }
    "it was created when the webhook did not answer, or before its labels or the SidecarSet's selectors fitted".into()
}

/// What the manager has noted on the Pod.
fn refused(name: &str, pod: &Value) -> Option<String> {
    let conditions = pod.list("/status/conditions").iter();
    let mut conditions = conditions.filter(|condition| condition.text("/type") == CONDITION_SIDECAR_SET_UPGRADABLE);
    let condition = conditions.next()?;
    let by_set: BTreeMap<String, bool> = serde_json::from_str(condition.text("/message")).unwrap_or_default();
    (by_set.get(name) == Some(&false)).then(|| condition.text("/reason").to_owned())
}

fn why_outdated(set: &Value) -> String {
    let strategy = |field: &str| set.pointer(&format!("/spec/updateStrategy/{field}"));
    if strategy("type").is_some_and(|kind| kind == "NotUpdate") {
        return "the SidecarSet updates no Pods".into();
    }
    if strategy("paused") == Some(&Value::Bool(true)) {
        return "the update is paused".into();
    }
    String::new()
}

/// The hashes of a SidecarSet.
pub fn hashes(set: &Value) -> Hashes {
    defaults::effective(set).1
}

/// All of it, as text. Pods that are up to date are counted only, unless `all` says otherwise.
pub fn report(set: &Value, mut rows: Vec<Row>, all: bool) -> String {
    let count = |standing: Standing| rows.iter().filter(|row| row.standing == standing).count();
    let injected = rows.len() - count(Standing::Uninjected);
    let counts = Standing::ALL.map(|standing| format!("{} {}", count(standing), standing.text()));
    let mut text = format!(
        "SidecarSet {}: {} Pods matched, {injected} injected; {}\n",
        set.text("/metadata/name"),
        rows.len(),
        counts.join(", ")
    );
    let latest = set.text("/status/latestRevision");
    if !latest.is_empty() {
        text.push_str(&format!("Latest revision: {latest}\n"));
    }
    rows.retain(|row| all || row.standing != Standing::Updated);
    rows.sort_by(|a, b| (a.standing, &a.namespace, &a.name).cmp(&(b.standing, &b.namespace, &b.name)));
    if rows.is_empty() {
        return text;
    }
    let cells = rows.into_iter().map(|row| {
        let Row { namespace, name, standing, revision, why } = row;
        vec![namespace, name, standing.text().into(), revision, why]
    });
    text.push('\n');
    text + &columns(&["NAMESPACE", "POD", "STATE", "REVISION", "WHY"], &cells.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::labels::SIDECAR_SETS_INJECTED;

    fn set() -> Value {
        json!({"metadata": {"name": "mesh", "creationTimestamp": "2026-01-02T00:00:00Z"},
            "spec": {"containers": [{"name": "a", "image": "a:1"}]}, "status": {"latestRevision": "mesh-2"}})
    }

    fn pod(name: &str, hash: &str, without_image: &str) -> Value {
        let note = |hash: &str| {
            json!({"mesh": {"hash": hash, "sidecarSetName": "mesh", "sidecarList": ["a"], "controllerRevision": "mesh-1"}}).to_string()
        };
        json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2026-01-03T00:00:00Z", "annotations": {
            SIDECAR_SET_HASH: note(hash), SIDECAR_SET_HASH_WITHOUT_IMAGE: note(without_image), SIDECAR_SETS_INJECTED: "mesh"}}})
    }

    fn judged(set: &Value, pod: &Value) -> (Standing, String) {
        let row = row(set, &hashes(set), pod);
        (row.standing, row.why)
    }

    #[test]
    fn how_pods_stand_and_why() {
        let set = set();
        let Hashes { hash, without_image } = hashes(&set);
        assert_eq!(judged(&set, &pod("p", &hash, &without_image)), (Standing::Updated, String::new()));
        assert_eq!(judged(&set, &pod("p", "old", &without_image)), (Standing::Outdated, String::new()));
        let (standing, why) = judged(&set, &pod("p", "old", "old"));
        assert!(standing == Standing::NotUpgradable && why.contains("only a new Pod"), "{why}");
        let mut noted = pod("p", "old", &without_image);
        noted["status"]["conditions"] =
            json!([{"type": "SidecarSetUpgradable", "reason": "OldKubelet", "message": r#"{"mesh":false}"#}]);
        assert_eq!(judged(&set, &noted), (Standing::NotUpgradable, "OldKubelet".into()));
        let mut paused = set.clone();
        paused["spec"]["updateStrategy"] = json!({"paused": true});
        assert_eq!(judged(&paused, &pod("p", "old", &without_image)).1, "the update is paused");
    }

    #[test]
    fn why_a_pod_was_not_injected() {
        let set = set();
        let mut bare = json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-03T00:00:00Z"}});
        assert!(judged(&set, &bare).1.starts_with("it was created when the webhook did not answer"));
        bare["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(judged(&set, &bare), (Standing::Uninjected, "it is older than the SidecarSet".into()));
        bare["metadata"]["annotations"] = json!({SIDECAR_SETS_LEFT_OUT: r#"{"mesh":"container a has no image"}"#});
        assert_eq!(judged(&set, &bare).1, "container a has no image");
    }

    #[test]
    fn the_report_counts_all_and_lists_what_is_not_up_to_date() {
        let set = set();
        let Hashes { hash, without_image } = hashes(&set);
        let pods =
            [pod("b", &hash, &without_image), pod("a", "old", &without_image), json!({"metadata": {"name": "z"}})];
        let rows: Vec<Row> = pods.iter().map(|pod| row(&set, &hashes(&set), pod)).collect();
        let text = report(&set, rows.clone(), false);
        assert!(
            text.starts_with(
                "SidecarSet mesh: 3 Pods matched, 2 injected; 1 uninjected, 0 not upgradable, 1 outdated, 1 updated\n\
                 Latest revision: mesh-2\n\nNAMESPACE   POD   STATE        REVISION   WHY\n"
            ),
            "{text}"
        );
        assert_eq!((text.lines().count(), report(&set, rows, true).lines().count()), (6, 7));
        assert_eq!(report(&set, Vec::new(), false).lines().count(), 2);
    }

    #[test]
    fn pods_with_sidecars_are_known_by_their_metadata() {
        let mut with = pod("p", "h", "w");
        assert!(has_sidecars("mesh", &with) && !has_sidecars("mes", &with));
        with["metadata"]["deletionTimestamp"] = "x".into();
        assert!(!has_sidecars("mesh", &with) && !has_sidecars("mesh", &json!({"metadata": {}})));
    }

    #[test]
    fn pods_that_have_ended_do_not_count() {
        assert!(is_active(&json!({"status": {"phase": "Running"}})));
        for gone in [json!({"status": {"phase": "Failed"}}), json!({"metadata": {"deletionTimestamp": "x"}})] {
            assert!(!is_active(&gone), "{gone}");
        }
    }
}
