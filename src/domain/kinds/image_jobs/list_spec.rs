//! The normalised spec: what a pass reads of an ImageListPullJob, and the spec of the jobs that are made from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
    util::intstr::IntOrString,
};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::rules;
use crate::{
    api::{
        apps::{
            image_list_pull_job::{ImageListPullJob, ImageListPullJobSpec},
            image_pull_job::{
                CompletionPolicyType, DEFAULT_BACKOFF_LIMIT, DEFAULT_TIMEOUT_SECONDS, ImagePullJobSpec,
                PULL_IF_NOT_PRESENT,
            },
        },
        labels,
    },
    k8s::hash,
};

/// What a pass reads of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListSpec {
    /// Why it cannot be carried out, if it cannot: the first field that is wrong, and the reason.
    pub error: Option<String>,
    /// The images, each once, in the order of the list.
    pub images: Vec<String>,
    /// What its jobs have in common, as it was written: the names of jobs are derived from it.
    job: ImagePullJobSpec,
    /// It is over when all its jobs are.
    pub ends: bool,
    /// How long it is kept after its end. None: for good.
    pub time_to_live: Option<Duration>,
    /// The hash of everything but the images.
    pub hash: String,
}

impl ListSpec {
    /// From a stored list, whether admission has seen it or not.
    pub fn of(list: &ImageListPullJob) -> Self {
        let spec = &list.spec;
        let mut seen = BTreeSet::new();
        Self {
            error: rules::of_list(spec).first().map(|(field, why)| format!("{field}: {why}")),
            images: spec.images.iter().filter(|image| seen.insert(image.as_str())).cloned().collect(),
            job: spec.of_image(""),
            ends: spec.completion_policy.type_ == CompletionPolicyType::Always,
            time_to_live: rules::time_to_live(&spec.completion_policy),
            hash: template_hash(spec),
        }
    }

    /// The spec of the job for an image.
    pub fn job(&self, image: &str) -> ImagePullJobSpec {
        ImagePullJobSpec { image: image.to_owned(), ..self.job.clone() }
    }

    /// Whether a job for one of the images is as the list wants it.
    pub fn wants(&self, job: &ImagePullJobSpec) -> bool {
        normal(job.clone()) == normal(self.job(&job.image))
    }

    /// Whether a job selects its nodes as the list does.
    pub fn has_nodes_of(&self, job: &ImagePullJobSpec) -> bool {
        (&job.selector, &job.pod_selector) == (&self.job.selector, &self.job.pod_selector)
    }

    /// Whether the list, or a job of it, has the label with its hash.
    pub fn has_labelled(&self, one: &ObjectMeta) -> bool {
        one.labels.as_ref().and_then(|all| all.get(labels::CONTROLLER_REVISION_HASH)) == Some(&self.hash)
    }

    /// The merge patch that sets the label. With the UID the API server refuses it for another object of that name.
    pub fn label_patch(&self, one: &ObjectMeta) -> Value {
        json!({"metadata": {"uid": one.uid, "labels": {labels::CONTROLLER_REVISION_HASH: self.hash}}})
    }
}

/// A job with all defaults set, and without fields that a list does not pass on. So a job that another release created
/// compares as equal, whichever defaults it left out, and is not created again at an upgrade.
fn normal(mut spec: ImagePullJobSpec) -> ImagePullJobSpec {
    let policy = spec.pull_policy.get_or_insert_default();
    policy.timeout_seconds.get_or_insert(DEFAULT_TIMEOUT_SECONDS);
    policy.backoff_limit.get_or_insert(DEFAULT_BACKOFF_LIMIT);
    spec.parallelism.get_or_insert(IntOrString::Int(1));
    spec.pull_secrets = spec.pull_secrets.filter(|secrets| !secrets.is_empty());
    spec.completion_policy.ttl_seconds_after_finished = None;
    if spec.image_pull_policy.is_empty() {
        spec.image_pull_policy = PULL_IF_NOT_PRESENT.to_owned();
    }
    spec
}

/// The hash of everything but the images, of the text that OpenKruise hashes: its own types, as Go's `spew` prints them. So the
/// lists and jobs of OpenKruise 1.9 have their labels already, and keep them when they go back. Releases whose controller still
/// works with v1alpha1 print that version: their jobs get new labels once, and they make the jobs anew after a move back.
fn template_hash(spec: &ImageListPullJobSpec) -> String {
    let int32 = |value: Option<i32>| value.map_or("(*int32)<nil>".to_owned(), |value| format!("(*int32){value}"));
    let selector = spec.selector.as_ref().map_or(NIL.to_owned(), |selector| {
        let names = go_list(selector.names.as_deref(), String::clone);
        format!("{{Names:([]string){names} LabelSelector:{}}}", go_selector(&selector.labels()))
    });
    let pods = spec.pod_selector.as_ref();
    let pods = pods.map_or(NIL.to_owned(), |selector| format!("{{LabelSelector:{}}}", go_selector(selector)));
    let parallelism = match &spec.parallelism {
        None => NIL.to_owned(),
        Some(IntOrString::Int(number)) => format!("{{Type:(intstr.Type)0 IntVal:(int32){number} StrVal:(string)}}"),
        Some(IntOrString::String(text)) => format!("{{Type:(intstr.Type)1 IntVal:(int32)0 StrVal:(string){text}}}"),
    };
    let policy = spec.pull_policy.as_ref().map_or(NIL.to_owned(), |policy| {
        let (timeout, limit) = (int32(policy.timeout_seconds), int32(policy.backoff_limit));
        format!("{{TimeoutSeconds:{timeout} BackoffLimit:{limit}}}")
    });
    let completion = &spec.completion_policy;
    let type_ = match completion.type_ {
        CompletionPolicyType::Always => "Always",
        CompletionPolicyType::Never => "Never",
    };
    let deadline = completion.active_deadline_seconds.map_or(NIL.to_owned(), |seconds| seconds.to_string());
    let sandbox = spec.sandbox_config.as_ref().map_or(NIL.to_owned(), |sandbox| {
        let (labels, annotations) = (go_map(sandbox.labels.as_ref()), go_map(sandbox.annotations.as_ref()));
        format!("{{Labels:(map[string]string){labels} Annotations:(map[string]string){annotations}}}")
    });
    let mut text = String::from("(v1beta1.ImagePullJobTemplate){");
    let secrets = go_list(spec.pull_secrets.as_deref(), String::clone);
    let _ = write!(text, "PullSecrets:([]string){secrets} Selector:(*v1beta1.ImagePullJobNodeSelector){selector} ");
    let _ = write!(text, "PodSelector:(*v1beta1.ImagePullJobPodSelector){pods} ");
    let _ = write!(text, "Parallelism:(*intstr.IntOrString){parallelism} PullPolicy:(*v1beta1.PullPolicy){policy} ");
    let _ = write!(text, "CompletionPolicy:(v1beta1.CompletionPolicy){{Type:(v1beta1.CompletionPolicyType){type_} ");
    let ttl = int32(completion.ttl_seconds_after_finished);
    let _ = write!(text, "ActiveDeadlineSeconds:(*int64){deadline} TTLSecondsAfterFinished:{ttl}}} ");
    let _ = write!(text, "SandboxConfig:(*v1beta1.SandboxConfig){sandbox} ");
    let _ = write!(text, "ImagePullPolicy:(v1beta1.ImagePullPolicy){}}}", spec.image_pull_policy);
    hash::safe_encode(hash::fnv1a_32(text.bytes()))
}

/// What is absent, as Go prints it. An empty list is not absent.
const NIL: &str = "<nil>";

fn go_list<T>(items: Option<&[T]>, print: impl Fn(&T) -> String) -> String {
    items.map_or(NIL.to_owned(), |items| format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" ")))
}

fn go_map(entries: Option<&BTreeMap<String, String>>) -> String {
    entries.map_or(NIL.to_owned(), |entries| {
        let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("map[{}]", entries.join(" "))
    })
}

fn go_selector(selector: &LabelSelector) -> String {
    let labels = go_map(selector.match_labels.as_ref());
    let expressions = go_list(selector.match_expressions.as_deref(), |expression| {
        let LabelSelectorRequirement { key, operator, values } = expression;
        let values = go_list(values.as_deref(), String::clone);
        format!("{{Key:(string){key} Operator:(v1.LabelSelectorOperator){operator} Values:([]string){values}}}")
    });
    format!(
        "(v1.LabelSelector){{MatchLabels:(map[string]string){labels} MatchExpressions:([]v1.LabelSelectorRequirement){expressions}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: Value) -> ListSpec {
        let mut whole = json!({"images": ["a:1", "b:1"]});
        json_patch::merge(&mut whole, &spec);
        let list = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob",
            "metadata": {"name": "list", "namespace": "ns", "uid": "l1"}, "spec": whole});
        ListSpec::of(&serde_json::from_value(list).unwrap())
    }

    #[test]
    fn f13_the_recorded_hash_is_the_one_we_compute() {
        let recorded: Vec<ImageListPullJob> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/image_list_pull_jobs.json")).unwrap();
        assert_eq!(ListSpec::of(&recorded[0]).hash, "fb69b545f");
    }

    /// Computed in Go, with `spew` and types of these names and members.
    #[test]
    fn a9_1_f13_the_hash_of_every_member_is_that_of_the_go_text() {
        let always = json!({"type": "Always"});
        for (spec, wanted) in [
            (json!({"parallelism": 1, "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3}}), "fb69b545f"),
            (
                json!({"pullSecrets": ["s", "t"], "selector": {"names": ["n1", "n2"]}, "imagePullPolicy": "IfNotPresent",
                    "completionPolicy": {"activeDeadlineSeconds": 900, "ttlSecondsAfterFinished": 60}}),
                "5d5bb6fc5c",
            ),
            (
                json!({"parallelism": "3", "completionPolicy": {"type": "Never"}, "selector": {"matchLabels": {"b": "2", "a": "1"},
                    "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "Exists"}]}}),
                "597f9b945",
            ),
            (json!({"selector": {}, "pullSecrets": []}), "554cf7c88b"),
            (json!({"selector": {"names": [], "matchLabels": {}, "matchExpressions": []}}), "6f4c88b5c4"),
            (
                json!({"podSelector": {"matchLabels": {"app": "web"}},
                    "sandboxConfig": {"labels": {"b": "2", "a": "1"}, "annotations": {"c/d": "e"}}}),
                "547b5789f",
            ),
            (json!({"podSelector": {}, "sandboxConfig": {}, "pullPolicy": {"timeoutSeconds": 30}}), "67d99cddb4"),
        ] {
            let mut whole = json!({"completionPolicy": always});
            json_patch::merge(&mut whole, &spec);
            assert_eq!(read(whole).hash, wanted, "{spec}");
        }
    }

    #[test]
    fn a9_5_the_label_is_written_to_the_very_object() {
        let list = read(json!({}));
        let hash = list.hash.clone();
        let of = |labels: Value| -> ObjectMeta {
            serde_json::from_value(json!({"name": "a", "uid": "u", "labels": labels})).unwrap()
        };
        for (labels, wanted) in [
            (json!({labels::CONTROLLER_REVISION_HASH: hash.clone()}), true),
            (json!({labels::CONTROLLER_REVISION_HASH: "other"}), false),
            (json!({"theirs": hash.clone()}), false),
            (json!(null), false),
        ] {
            assert_eq!(list.has_labelled(&of(labels.clone())), wanted, "{labels}");
        }
        let patch = json!({"metadata": {"uid": "u", "labels": {"controller-revision-hash": hash}}});
        assert_eq!(list.label_patch(&of(json!(null))), patch);
    }

    #[test]
    fn a_list_is_read_with_its_defaults() {
        let minute = Some(Duration::from_secs(60));
        for (spec, images, ends, time_to_live) in [
            (json!({}), vec!["a:1", "b:1"], true, None),
            (json!({"images": ["b:1", "a:1", "b:1"]}), vec!["b:1", "a:1"], true, None),
            (json!({"completionPolicy": {"type": "Never"}}), vec!["a:1", "b:1"], false, None),
            (json!({"completionPolicy": {"ttlSecondsAfterFinished": 60}}), vec!["a:1", "b:1"], true, minute),
            (json!({"completionPolicy": {"ttlSecondsAfterFinished": -1}}), vec!["a:1", "b:1"], true, None),
        ] {
            let read = read(spec);
            assert_eq!((read.ends, read.time_to_live), (ends, time_to_live), "{images:?}");
            assert_eq!(read.images, images);
            assert_eq!(read.job("a:1").completion_policy.ttl_seconds_after_finished, None);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        assert_eq!(read(json!({})).error, None);
        for (spec, want) in [
            (json!({"images": []}), "spec.images: it has 0 entries"),
            (json!({"images": ["a:1", "a:1"]}), "spec.images[1]: \"a:1\" is there twice"),
            (json!({"parallelism": "10%"}), "spec.parallelism: "),
        ] {
            let error = read(spec).error.unwrap();
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn a_job_is_wanted_whichever_defaults_it_spells_out() {
        let list = read(json!({}));
        let with = |change: &dyn Fn(&mut ImagePullJobSpec)| {
            let mut job = list.job("a:1");
            change(&mut job);
            (list.wants(&job), list.has_nodes_of(&job))
        };
        assert_eq!(with(&|_| ()), (true, true));
        assert_eq!(with(&|job| job.parallelism = Some(IntOrString::Int(1))), (true, true));
        assert_eq!(with(&|job| job.parallelism = Some(IntOrString::Int(2))), (false, true));
        assert_eq!(with(&|job| job.image_pull_policy = PULL_IF_NOT_PRESENT.to_owned()), (true, true));
        assert_eq!(with(&|job| job.pull_secrets = Some(Vec::new())), (true, true));
        assert_eq!(with(&|job| job.pod_selector = Some(Default::default())), (false, false));
    }
}
