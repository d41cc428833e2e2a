//! Pulling new images before Pods are updated to them: which ImagePullJobs a workload makes and deletes.
//!
//! The jobs are raw JSON: whoever carries them out has their kind.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use super::owner::OwnerRef;
use crate::{
    api::labels,
    domain::pod::inplace::NotInPlace,
    k8s::{
        hash,
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
        name::{LONGEST_LABEL, LONGEST_NAME, cut},
        revision,
    },
};

/// With so few Pods an update is over before a job would be.
const FEW: i32 = 3;

/// What a decision rests on.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The workload.
    pub owner: &'a OwnerRef,
    /// Its annotations.
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// Its selector.
    pub selector: &'a LabelSelector,
    /// How many Pods it wants.
    pub replicas: i32,
    /// Pods that are ready on the revision that Pods are updated to; 0 while its status is about another one.
    pub updated_ready: i32,
    /// How its spec says that Pods are updated.
    pub rollout: Rollout,
    /// The ControllerRevision that Pods are updated to, in full.
    pub update: &'a Value,
    /// The template that Pods come from.
    pub from: &'a Value,
    /// Whether Pods can be updated in place, and if not, why.
    pub in_place: Result<(), NotInPlace>,
}

/// How a workload updates its Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// Not in place: the field that says so, and its value.
    Anew(String),
    /// In place or not: images are pulled for either, and for however few Pods.
    Either {
        /// How many Pods stay on old revisions.
        kept_old: i32,
        /// How many Pods may be unavailable, or be made beside the old ones.
        max_unavailable: i32,
    },
    /// In place if that is possible.
    InPlace {
        /// How many Pods stay on old revisions.
        kept_old: i32,
        /// How many Pods may be unavailable.
        max_unavailable: i32,
    },
}

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It was decided before, and nothing has changed.
    Decided,
    /// Too few Pods are ready on the new revision.
    Wait,
    /// An annotation cannot be read; this is said until it is mended.
    Refuse(String),
    /// No job is worth while: mark the revision, and why.
    Ignore(String),
    /// Make these jobs, then mark the revision.
    Create(Vec<Value>),
}

/// The wishes in a workload's annotations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wishes {
    /// Nodes that pull at a time.
    pub parallelism: i32,
    /// Seconds that one attempt may take.
    pub timeout_seconds: i32,
    /// So many Pods have to be ready on the new revision first.
    pub min_updated_ready: i32,
}

impl Wishes {
    /// Reads them; shares are of `replicas`.
    ///
    /// # Errors
    /// Naming the annotation, its value and what is allowed.
    pub fn of(annotations: Option<&BTreeMap<String, String>>, replicas: i32) -> Result<Self, Invalid> {
        let annotation = |key: &str| annotations.and_then(|all| all.get(key)).map(|text| text.trim());
        let number = |key: &str, least: i32, default: i32| {
            let Some(text) = annotation(key) else { return Ok(default) };
            let value = text.parse::<i32>().ok().filter(|value| *value >= least);
            value.ok_or_else(|| {
                Invalid(format!("metadata.annotations: {key} is {text:?}; want a whole number from {least} on"))
            })
        };
        let share = |key: &str, default: i32| {
            let Some(text) = annotation(key) else { return Ok(default) };
            let value = text.parse::<i32>().map_or_else(|_| json!(text), |number| json!(number));
            let value = IntOrPercent::parse(&value).ok().filter(|value| !value.is_negative());
            let value = value.map(|value| value.resolve(replicas, Round::Up));
            value.ok_or_else(|| {
                Invalid(format!(
                    "metadata.annotations: {key} is {text:?}; want a whole number from 0 on, or a share such as 20%"
                ))
            })
        };
        Ok(Self {
            parallelism: share(labels::PRE_DOWNLOAD_PARALLELISM, 1)?,
            timeout_seconds: number(labels::PRE_DOWNLOAD_TIMEOUT, 1, 300)?,
            min_updated_ready: share(labels::PRE_DOWNLOAD_MIN_UPDATED_READY, 0)?,
        })
    }
}

/// Decides for a revision that is being rolled out. That no job was worth while is decided anew when the spec changes.
pub fn decide(observed: &Observed<'_>) -> Decision {
    let Observed { annotations, replicas, updated_ready, update, from, .. } = observed;
    let marked = |key: &str| update.pointer("/metadata/labels").and_then(|l| l.get(key)).is_some();
    if marked(labels::PRE_DOWNLOAD_CREATED) {
        return Decision::Decided;
    }
    let ignore = |why: String| match marked(labels::PRE_DOWNLOAD_IGNORED) {
        true => Decision::Decided,
        false => Decision::Ignore(why),
    };
    let wishes = match Wishes::of(*annotations, *replicas) {
        Ok(wishes) => wishes,
        Err(Invalid(why)) => return Decision::Refuse(why),
    };
    if wishes.min_updated_ready > *updated_ready {
        return Decision::Wait;
    }
    if let Some(why) = not_worth_while(observed) {
        return ignore(why);
    }
    let Some(to) = update.get("data").and_then(revision::template) else {
        return ignore("the revision holds no template".into());
    };
    let jobs: Vec<Value> = changed_images(from, &to)
        .into_iter()
        .map(|(container, image)| job(observed, &to, wishes, container, image))
        .collect();
    if jobs.is_empty() { ignore("no image differs".into()) } else { Decision::Create(jobs) }
}

fn not_worth_while(observed: &Observed<'_>) -> Option<String> {
    let replicas = observed.replicas;
    let (kept_old, max_unavailable, is_any) = match &observed.rollout {
        Rollout::Anew(field) => return Some(format!("{field}: Pods are not updated in place")),
        Rollout::Either { kept_old, max_unavailable } => (*kept_old, *max_unavailable, true),
        Rollout::InPlace { kept_old, max_unavailable } => (*kept_old, *max_unavailable, false),
    };
    if replicas <= FEW && !is_any {
        return Some(format!("there are only {replicas} replicas"));
    }
    if kept_old == 0 && max_unavailable >= replicas {
        return Some("all Pods are updated at once".into());
    }
    let in_place = if is_any { &Ok(()) } else { &observed.in_place };
    in_place.as_ref().err().map(|why| format!("Pods cannot be updated in place: {why}"))
}

/// Containers of a template, by their place: name and image.
fn images(template: &Value) -> impl Iterator<Item = (&str, &str)> {
    let containers = template.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    containers.filter_map(|c| Some((c.get("name")?.as_str()?, c.get("image")?.as_str()?)))
}

fn changed_images<'a>(from: &Value, to: &'a Value) -> Vec<(&'a str, &'a str)> {
    let before: BTreeMap<&str, &str> = images(from).collect();
    images(to).filter(|(name, image)| before.get(name) != Some(image) && !image.is_empty()).collect()
}

fn job(observed: &Observed<'_>, to: &Value, wishes: Wishes, container: &str, image: &str) -> Value {
    let Observed { owner, selector, update, .. } = observed;
    let name = update.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let hash = update.pointer("/metadata/labels").and_then(|l| l.get(labels::REVISION_HASH)).and_then(Value::as_str);
    let hash = hash.unwrap_or_else(|| revision::short(name));
    let part =
        |key: &str| to.pointer(&format!("/metadata/{key}")).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut own_labels: Map<String, Value> = part("labels");
    own_labels.insert(labels::REVISION_HASH.into(), hash.into());

    let mut selector = json!(selector);
    // A longer name is on no Pod: there the hash stands alone.
    let labels_of_updated: Vec<&str> = [name, hash].into_iter().filter(|l| l.len() <= LONGEST_LABEL).collect();
    let not_updated =
        json!({"key": labels::CONTROLLER_REVISION_HASH, "operator": "NotIn", "values": labels_of_updated});
    match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        Some(expressions) => expressions.push(not_updated),
        None => selector["matchExpressions"] = json!([not_updated]),
    }

    let mut sandbox = json!({"labels": own_labels});
    let annotations = part("annotations");
    if !annotations.is_empty() {
        sandbox["annotations"] = annotations.into();
    }
    let mut spec = json!({
        "image": image,
        "podSelector": selector,
        "parallelism": wishes.parallelism,
        "pullPolicy": {"timeoutSeconds": wishes.timeout_seconds, "backoffLimit": 1},
        "completionPolicy": {"type": "Always", "ttlSecondsAfterFinished": 600},
        "sandboxConfig": sandbox,
    });
    let secrets = to.pointer("/spec/imagePullSecrets").and_then(Value::as_array).into_iter().flatten();
    let secrets: Vec<&str> = secrets.filter_map(|secret| secret.get("name")?.as_str()).collect();
    if !secrets.is_empty() {
        spec["pullSecrets"] = json!(secrets);
    }
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ImagePullJob",
        "metadata": {
            "name": job_name(name, container),
            "namespace": owner.namespace,
            "labels": own_labels,
            "ownerReferences": [owner.controller()],
        },
        "spec": spec,
    })
}

/// `<revision>-<container>`; what is too long for a name is cut, and stays its own.
fn job_name(revision: &str, container: &str) -> String {
    let name = format!("{revision}-{container}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mark = hash::safe_encode(hash::fnv1a_32(name.bytes()));
    format!("{}-{mark}", cut(&name, LONGEST_NAME - 1 - mark.len()))
}

/// Whether a job is one that the workload with this UID made.
pub fn is_of(job: &Value, uid: &str) -> bool {
    let owners = job.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let mut controllers = owners.filter(|owner| owner.get("controller") == Some(&true.into()));
    !uid.is_empty() && controllers.any(|owner| owner.get("uid").and_then(Value::as_str) == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        owner: OwnerRef,
        selector: LabelSelector,
        annotations: BTreeMap<String, String>,
    }

    impl World {
        fn new() -> Self {
            let owner = OwnerRef {
                api_version: "apps.kruise.io/v1beta1".into(),
                kind: "StatefulSet".into(),
                namespace: "a".into(),
                name: "web".into(),
                uid: "u1".into(),
                ..OwnerRef::default()
            };
            let selector = serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
            Self { owner, selector, annotations: BTreeMap::new() }
        }

        /// Six replicas, updated in place, one at a time; two are ready on the new revision.
        fn observed<'a>(&'a self, update: &'a Value, from: &'a Value) -> Observed<'a> {
            Observed {
                owner: &self.owner,
                annotations: Some(&self.annotations),
                selector: &self.selector,
                replicas: 6,
                updated_ready: 2,
                rollout: Rollout::InPlace { kept_old: 0, max_unavailable: 1 },
                update,
                from,
                in_place: Ok(()),
            }
        }
    }

    /// The images of the second container and of a new third one differ.
    fn template(side: &str) -> Value {
        json!({"metadata": {"labels": {"app": "web"}, "annotations": {"note": "x"}},
            "spec": {"imagePullSecrets": [{"name": "s1"}, {}], "containers": [
                {"name": "main", "image": "main:1"}, {"name": "side", "image": side}]}})
    }

    fn update(labels_of: Value) -> Value {
        json!({"metadata": {"name": "web-56d8c567b5", "labels": labels_of}, "data": revision::data(&template("side:2"))})
    }

    fn decide_with(change: impl FnOnce(Observed<'_>) -> Observed<'_>) -> Decision {
        let (world, update, from) = (World::new(), update(json!({})), template("side:1"));
        decide(&change(world.observed(&update, &from)))
    }

    #[test]
    fn a_job_for_each_image_that_differs() {
        let world = World::new();
        let (update, from) = (update(json!({"controller.kubernetes.io/hash": "56d8c567b5"})), template("side:1"));
        let Decision::Create(jobs) = decide(&world.observed(&update, &from)) else { panic!("no jobs") };
        let labels = json!({"app": "web", "controller.kubernetes.io/hash": "56d8c567b5"});
        let want = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ImagePullJob",
            "metadata": {"name": "web-56d8c567b5-side", "namespace": "a", "labels": labels,
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "web", "uid": "u1",
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {
                "image": "side:2",
                "podSelector": {"matchLabels": {"app": "web"}, "matchExpressions": [
                    {"key": "controller-revision-hash", "operator": "NotIn", "values": ["web-56d8c567b5", "56d8c567b5"]}]},
                "parallelism": 1,
                "pullPolicy": {"timeoutSeconds": 300, "backoffLimit": 1},
                "completionPolicy": {"type": "Always", "ttlSecondsAfterFinished": 600},
                "pullSecrets": ["s1"],
                "sandboxConfig": {"labels": labels, "annotations": {"note": "x"}},
            },
        });
        assert_eq!(jobs, [want]);
        assert!(is_of(&jobs[0], "u1"));
        assert!(!is_of(&jobs[0], "u2"));
        assert!(!is_of(&json!({"metadata": {"ownerReferences": [{"uid": "u1"}]}}), "u1"));
    }

    #[test]
    fn a_container_that_is_new_is_pulled_too() {
        let mut from = template("side:1");
        from["spec"]["containers"].as_array_mut().unwrap().remove(1);
        assert_eq!(changed_images(&from, &template("side:2")), [("side", "side:2")]);
        assert_eq!(changed_images(&json!(null), &template("side:2")).len(), 2);
        assert!(changed_images(&template("side:2"), &template("side:2")).is_empty());
    }

    #[test]
    fn jobs_are_made_once_and_that_none_is_worth_while_may_change() {
        let (world, from) = (World::new(), template("side:1"));
        let anew = Rollout::Anew("updateStrategy.type is \"OnDelete\"".into());
        let decided = |label: Option<&str>, rollout: Rollout| {
            let update = update(label.map_or_else(|| json!({}), |label| json!({ label: "true" })));
            decide(&Observed { rollout, ..world.observed(&update, &from) })
        };
        let in_place = Rollout::InPlace { kept_old: 0, max_unavailable: 1 };
        for rollout in [&anew, &in_place] {
            assert_eq!(decided(Some(labels::PRE_DOWNLOAD_CREATED), rollout.clone()), Decision::Decided);
        }
        assert!(matches!(decided(None, anew.clone()), Decision::Ignore(_)));
        assert_eq!(decided(Some(labels::PRE_DOWNLOAD_IGNORED), anew), Decision::Decided, "it is marked already");
        assert!(matches!(decided(Some(labels::PRE_DOWNLOAD_IGNORED), in_place), Decision::Create(_)));
    }

    #[test]
    fn the_threshold_counts_pods_that_are_ready_on_this_revision() {
        for (min, ready, waits) in
            [("0", 0, false), ("2", 2, false), ("2", 0, true), ("3", 2, true), ("20%", 2, false), ("34%", 2, true)]
        {
            let mut world = World::new();
            world.annotations.insert(labels::PRE_DOWNLOAD_MIN_UPDATED_READY.into(), min.into());
            let (update, from) = (update(json!({})), template("side:1"));
            let decision = decide(&Observed { updated_ready: ready, ..world.observed(&update, &from) });
            assert_eq!(decision == Decision::Wait, waits, "{min} {ready}");
        }
    }

    #[test]
    fn what_is_not_worth_while_is_ignored_and_says_why() {
        type Change = fn(Observed<'_>) -> Observed<'_>;
        let cases: [(Change, &str); 5] = [
            (|o| Observed { rollout: Rollout::Anew("type is \"ReCreate\"".into()), ..o }, "type is \"ReCreate\": Pods"),
            (|o| Observed { replicas: 3, ..o }, "only 3 replicas"),
            (|o| Observed { rollout: Rollout::InPlace { kept_old: 0, max_unavailable: 6 }, ..o }, "at once"),
            (|o| Observed { rollout: Rollout::InPlace { kept_old: 0, max_unavailable: 7 }, ..o }, "at once"),
            (|o| Observed { in_place: Err(NotInPlace::Differs("template.spec.nodeName".into())), ..o }, "nodeName"),
        ];
        for (change, why) in cases {
            let decision = decide_with(change);
            assert!(matches!(&decision, Decision::Ignore(text) if text.contains(why)), "{why}: {decision:?}");
        }
        let goes_on: [Change; 3] = [
            |o| Observed { rollout: Rollout::InPlace { kept_old: 0, max_unavailable: 5 }, ..o },
            |o| Observed { rollout: Rollout::InPlace { kept_old: 1, max_unavailable: 6 }, ..o },
            |o| Observed { replicas: 4, ..o },
        ];
        for (i, change) in goes_on.into_iter().enumerate() {
            assert!(matches!(decide_with(change), Decision::Create(_)), "{i}");
        }
        let (world, update, from) = (World::new(), update(json!({})), template("side:2"));
        assert_eq!(decide(&world.observed(&update, &from)), Decision::Ignore("no image differs".into()));
    }

    #[test]
    fn shortfall_21_wishes_are_validated_and_shares_are_understood() {
        let prefix = "apps.kruise.io/image-predownload";
        let wishes = |key: &str, value: &str| {
            Wishes::of(Some(&BTreeMap::from([(format!("{prefix}-{key}"), value.to_owned())])), 10)
        };
        assert_eq!(Wishes::of(None, 10), Ok(Wishes { parallelism: 1, timeout_seconds: 300, min_updated_ready: 0 }));
        assert_eq!(wishes("parallelism", "4").unwrap().parallelism, 4);
        assert_eq!(wishes("parallelism", "25%").unwrap().parallelism, 3);
        assert_eq!(wishes("timeout-seconds", "60").unwrap().timeout_seconds, 60);
        assert_eq!(wishes("min-updated-ready-pods", "11%").unwrap().min_updated_ready, 2);
        for (key, value) in [
            ("parallelism", "-1"),
            ("parallelism", "many"),
            ("parallelism", "1.5"),
            ("timeout-seconds", "0"),
            ("timeout-seconds", "5%"),
            ("timeout-seconds", ""),
            ("min-updated-ready-pods", "-5%"),
            ("min-updated-ready-pods", "99999999999"),
        ] {
            let Invalid(error) = wishes(key, value).unwrap_err();
            assert!(error.contains(&format!("{prefix}-{key} is {value:?}; want a")), "{error}");
        }
        let mut world = World::new();
        world.annotations.insert(format!("{prefix}-parallelism"), "x".into());
        let (update, from) = (update(json!({})), template("side:1"));
        assert!(matches!(decide(&world.observed(&update, &from)), Decision::Refuse(_)));
    }

    #[test]
    fn long_names_stay_names_and_no_label_is_too_long() {
        let long = format!("{}-56d8c567b5", "x".repeat(223));
        let name = job_name(&long, &"c".repeat(63));
        assert!(name.len() <= 253 && name != job_name(&long, &"d".repeat(63)), "{name}");
        let mut update = update(json!({"controller.kubernetes.io/hash": "56d8c567b5"}));
        update["metadata"]["name"] = long.into();
        let (world, to) = (World::new(), template("s"));
        let job = job(&world.observed(&update, &to), &to, Wishes::of(None, 1).unwrap(), "c", "i");
        assert_eq!(job["spec"]["podSelector"]["matchExpressions"][0]["values"], json!(["56d8c567b5"]));
    }
}
