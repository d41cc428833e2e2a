//! What `sidecarset` says: how each Pod of a SidecarSet stands, and why.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{JsonPointer, is_active, table::columns};
use crate::{
    api::{apps::sidecar_set::NOT_UPDATE, labels::SIDECAR_SETS_LEFT_OUT},
    domain::kinds::sidecar_set::{
        notes::{self, PodNotes},
        pod::{self, NotUpgradable, SidecarPod},
        spec::Spec,
    },
    k8s::pod::PodView,
};

const OTHER_CHANGE: &str = "more than images has changed: only a new Pod gets that";
const OLD_KUBELET: &str = "its kubelet is older than 1.32 and ignores another image of a native sidecar";
const UNKNOWN_KUBELET: &str = "it needs a kubelet of 1.32 or newer; that of its node is not known";

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

/// Whether a Pod has containers of a SidecarSet and stays.
pub fn has_sidecars(set: &str, pod: &Value) -> bool {
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    is_active(pod) && annotations.is_some_and(|annotations| notes::injected(annotations).contains(set))
}

/// How a Pod of a SidecarSet stands, of which `spec` is what the manager reads. `kubelet` is the minor version of its node's
/// kubelet, if that is known.
pub fn row(set: &Value, spec: &Spec, pod: &Value, kubelet: Option<u32>) -> Row {
    let none = Map::new();
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object).unwrap_or(&none);
    // What cannot be read says nothing.
    let notes = PodNotes::of_set(annotations, &spec.name).unwrap_or_default();
    let revision = notes.hashes.get(&spec.name).map(|note| note.controller_revision.clone()).unwrap_or_default();
    let (standing, why) = if notes::injected(annotations).contains(&spec.name) {
        let view: PodView = serde_json::from_value(pod.clone()).unwrap_or_default();
        let seen = SidecarPod { kubelet_minor: kubelet, ..SidecarPod::of(&view, annotations, notes) };
        stands(set, spec, &seen)
    } else {
        (Standing::Uninjected, why_uninjected(set, annotations, pod))
    };
    Row {
        namespace: pod.text("/metadata/namespace").to_owned(),
        name: pod.text("/metadata/name").to_owned(),
        standing,
        revision,
        why,
    }
}

/// How a Pod with the containers stands: as the manager judges, whatever its condition says from before.
fn stands(set: &Value, spec: &Spec, seen: &SidecarPod<'_>) -> (Standing, String) {
    let is_unknown = seen.kubelet_minor.is_none() && seen.changes_native(spec);
    let (standing, why) = match seen.judge(spec).standing {
        pod::Standing::Updated => (Standing::Updated, ""),
        pod::Standing::NotUpgradable(NotUpgradable::OtherChange) => (Standing::NotUpgradable, OTHER_CHANGE),
        pod::Standing::NotUpgradable(NotUpgradable::KubeletTooOld) => (Standing::NotUpgradable, OLD_KUBELET),
        pod::Standing::Waiting | pod::Standing::InFlight => match why_outdated(set) {
            "" if is_unknown => (Standing::Outdated, UNKNOWN_KUBELET),
            why => (Standing::Outdated, why),
        },
    };
    (standing, why.to_owned())
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

fn why_outdated(set: &Value) -> &'static str {
    let strategy = |field: &str| set.pointer(&format!("/spec/updateStrategy/{field}"));
    if strategy("type").is_some_and(|kind| kind == NOT_UPDATE) {
        return "the SidecarSet updates no Pods";
    }
    if strategy("paused") == Some(&Value::Bool(true)) {
        return "the update is paused";
    }
    ""
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
    use crate::{
        api::labels::{SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SETS_INJECTED},
        domain::kinds::sidecar_set::{hash::Hashes, upgradable},
    };

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

    fn hashes(set: &Value) -> Hashes {
        Spec::of(set).unwrap().hashes
    }

    fn told(set: &Value, pod: &Value, kubelet: Option<u32>) -> Row {
        row(set, &Spec::of(set).unwrap(), pod, kubelet)
    }

    fn judged(set: &Value, pod: &Value) -> (Standing, String) {
        let row = told(set, pod, None);
        (row.standing, row.why)
    }

    /// With the condition that the manager writes when this SidecarSet can, or cannot, be updated in it.
    fn marked(mut pod: Value, can: bool) -> Value {
        let view: PodView = serde_json::from_value(pod.clone()).unwrap();
        pod["status"] = upgradable::patch(&view, "mesh", can, jiff::Timestamp::UNIX_EPOCH)["status"].clone();
        pod
    }

    #[test]
    fn how_pods_stand_and_why() {
        let set = set();
        let Hashes { hash, without_image } = hashes(&set);
        assert_eq!(judged(&set, &pod("p", &hash, &without_image)), (Standing::Updated, String::new()));
        let old = pod("p", "old", &without_image);
        assert_eq!(judged(&set, &old), (Standing::Outdated, String::new()));
        assert_eq!(judged(&set, &marked(old.clone(), false)), (Standing::Outdated, String::new()), "of a spec before");
        let (standing, why) = judged(&set, &pod("p", "old", "old"));
        assert!(standing == Standing::NotUpgradable && why.contains("only a new Pod"), "{why}");
        let mut paused = set.clone();
        paused["spec"]["updateStrategy"] = json!({"paused": true});
        assert_eq!(judged(&paused, &old).1, "the update is paused");
    }

    #[test]
    fn a_kubelet_that_is_too_old_is_named_before_the_condition_is_written_and_while_the_update_is_paused() {
        let mut set = set();
        let native = |image: &str| json!([{"name": "a", "image": image, "restartPolicy": "Always"}]);
        set["spec"] = json!({"initContainers": native("a:2")});
        let mut old = pod("p", "old", &hashes(&set).without_image);
        old["spec"] = json!({"nodeName": "n", "containers": [{"name": "main"}], "initContainers": native("a:1")});
        let mut paused = set.clone();
        paused["spec"]["updateStrategy"] = json!({"paused": true});
        for (set, pod, kubelet, standing, why) in [
            (&set, old.clone(), Some(31), Standing::NotUpgradable, OLD_KUBELET),
            (&set, marked(old.clone(), false), Some(31), Standing::NotUpgradable, OLD_KUBELET),
            (&paused, old.clone(), Some(31), Standing::NotUpgradable, OLD_KUBELET),
            (&set, marked(old.clone(), false), Some(32), Standing::Outdated, ""),
            (&paused, old.clone(), None, Standing::Outdated, "the update is paused"),
            (&set, old.clone(), None, Standing::Outdated, UNKNOWN_KUBELET),
        ] {
            let row = told(set, &pod, kubelet);
            assert_eq!((row.standing, row.why.as_str()), (standing, why), "{kubelet:?}");
        }
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
        let rows: Vec<Row> = pods.iter().map(|pod| told(&set, pod, None)).collect();
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
}
