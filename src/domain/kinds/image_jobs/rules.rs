//! What is refused in an ImagePullJob or ImageListPullJob: by admission when it is written, and by the controllers when it
//! was written while admission was away. And what both kinds mean by the same fields.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};

use super::share;
use crate::{
    api::apps::{
        image_list_pull_job::{ImageListPullJobSpec, MOST_IMAGES},
        image_pull_job::{
            CompletionPolicy, CompletionPolicyType, DEFAULT_TIMEOUT_SECONDS, ImagePullJobSpec, NodeSelector,
            PULL_ALWAYS, PULL_IF_NOT_PRESENT,
        },
    },
    k8s::{
        image::ImageRef,
        invalid::Invalid,
        name::{is_dns_subdomain, is_label_value, is_qualified_name},
        selector::Selector,
    },
};

/// The most bytes of `sandboxConfig` as JSON. A copy of it stands in every NodeImage of the job.
pub const LARGEST_SANDBOX: usize = 4 << 10;
/// The most bytes of the names of `pullSecrets` together, for the same reason.
pub const LARGEST_SECRETS: usize = 4 << 10;

/// A field, and what is wrong with its value and what is allowed.
pub type Problem = (String, String);

/// The registry's and the tag's letters may be large, those of a repository may not.
pub fn image(text: &str) -> Result<ImageRef<'_>, Invalid> {
    let wrong = |why: &str| {
        let shown: String = text.chars().take(256).collect();
        Invalid(format!("{shown:?} is no image reference{why}; want [registry/]name[:tag][@digest]"))
    };
    let image = ImageRef::parse(text).ok_or_else(|| wrong(""))?;
    let path = image.name.split_once('/').filter(|(first, _)| first.contains(['.', ':']) || *first == "localhost");
    let path = path.map_or(image.name, |(_, path)| path);
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(wrong(": the name of a repository has no capital letters"));
    }
    if let Some(hex) = image.digest.and_then(|digest| digest.strip_prefix("sha256:"))
        && hex.len() != 64
    {
        return Err(wrong(": a sha256 digest has 64 hexadecimal digits"));
    }
    Ok(image)
}

/// How long a job or list is kept after its end. None: for good.
pub fn time_to_live(completion: &CompletionPolicy) -> Option<Duration> {
    let seconds = completion.ttl_seconds_after_finished.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map(Duration::from_secs)
}

/// The number of nodes at a time.
pub fn parallelism(field: Option<&IntOrString>) -> Result<usize, Invalid> {
    let number = match field {
        None => Some(1),
        Some(IntOrString::Int(number)) => usize::try_from(*number).ok(),
        Some(IntOrString::String(text)) => {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i32>().ok().filter(|_| plain).and_then(|number| usize::try_from(number).ok())
        }
    };
    number.ok_or_else(|| {
        let shown = field.map(crate::k8s::int_or_percent::text).unwrap_or_default();
        Invalid(format!("{shown:?} is not allowed; want a whole number from 0 on, no percentage"))
    })
}

/// Everything that is wrong with an ImagePullJob.
pub fn of_job(spec: &ImagePullJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Err(Invalid(why)) = image(&spec.image) {
        problems.push(("spec.image".into(), why));
    }
    for (at, secret) in spec.pull_secrets.iter().flatten().enumerate() {
        if !is_dns_subdomain(secret) {
            problems.push((
                format!("spec.pullSecrets[{at}]"),
                format!("{secret:?} cannot be the name of a Secret; want the name of one in the job's namespace"),
            ));
        }
    }
    let mut problem = |field: &str, why: String| problems.push((field.to_owned(), why));
    let secrets: usize = spec.pull_secrets.iter().flatten().map(String::len).sum();
    if secrets > LARGEST_SECRETS {
        let why = format!("the names have {secrets} bytes together; want at most {LARGEST_SECRETS}");
        problem("spec.pullSecrets", why);
    }
    let sandbox = share::sandbox(spec.sandbox_config.as_ref());
    if sandbox > LARGEST_SANDBOX {
        let why = format!("it has {sandbox} bytes as JSON; want at most {LARGEST_SANDBOX}");
        problem("spec.sandboxConfig", why);
    }
    if let Err(Invalid(why)) = parallelism(spec.parallelism.as_ref()) {
        problem("spec.parallelism", why);
    }
    if spec.selector.is_some() && spec.pod_selector.is_some() {
        problem("spec.podSelector", "it stands beside selector; want at most one of the two".into());
    }
    if let Some(selector) = &spec.selector {
        nodes(selector, &mut problem);
    }
    if let Some(selector) = &spec.pod_selector {
        labels("spec.podSelector", selector, &mut problem);
    }
    let policy = spec.pull_policy.clone().unwrap_or_default();
    if let Some(seconds) = policy.timeout_seconds.filter(|seconds| *seconds < 1) {
        problem("spec.pullPolicy.timeoutSeconds", format!("{seconds} is not allowed; want at least 1"));
    }
    if let Some(limit) = policy.backoff_limit.filter(|limit| *limit < 0) {
        problem("spec.pullPolicy.backoffLimit", format!("{limit} is not allowed; want at least 0"));
    }
    let completion = &spec.completion_policy;
    let timeout = i64::from(policy.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS));
    let deadline = completion.active_deadline_seconds;
    let never = completion.type_ == CompletionPolicyType::Never;
    if never && let Some(deadline) = deadline {
        let why = format!("{deadline} is not allowed with type Never, which has no end; leave it out");
        problem("spec.completionPolicy.activeDeadlineSeconds", why);
    } else if let Some(deadline) = deadline.filter(|deadline| *deadline < timeout) {
        let why = format!("{deadline} is not allowed; want at least pullPolicy.timeoutSeconds ({timeout})");
        problem("spec.completionPolicy.activeDeadlineSeconds", why);
    }
    if let Some(ttl) = completion.ttl_seconds_after_finished.filter(|ttl| never || *ttl < 0) {
        let why = match never {
            true => format!("{ttl} is not allowed with type Never, which has no end; leave it out"),
            false => format!("{ttl} is not allowed; want at least 0"),
        };
        problem("spec.completionPolicy.ttlSecondsAfterFinished", why);
    }
    if !["", PULL_ALWAYS, PULL_IF_NOT_PRESENT].contains(&spec.image_pull_policy.as_str()) {
        let why = format!("{:?} is not allowed; want {PULL_ALWAYS} or {PULL_IF_NOT_PRESENT}", spec.image_pull_policy);
        problem("spec.imagePullPolicy", why);
    }
    problems
}

/// Everything that is wrong with an ImageListPullJob.
pub fn of_list(spec: &ImageListPullJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    if spec.images.is_empty() || spec.images.len() > MOST_IMAGES {
        let why = format!("it has {} entries; want 1 to {MOST_IMAGES}", spec.images.len());
        problems.push(("spec.images".to_owned(), why));
    }
    let mut seen = BTreeSet::new();
    for (at, text) in spec.images.iter().enumerate() {
        let field = || format!("spec.images[{at}]");
        if let Err(Invalid(why)) = image(text) {
            problems.push((field(), why));
        } else if !seen.insert(text) {
            problems.push((field(), format!("{text:?} is there twice; want each image once")));
        }
    }
    // Every other rule is that of the jobs that are made from it. An image that is fine says nothing of its own.
    let ttl = spec.completion_policy.ttl_seconds_after_finished;
    let mut job = spec.of_image("image");
    job.completion_policy.ttl_seconds_after_finished = ttl;
    problems.extend(of_job(&job));
    problems
}

fn nodes(selector: &NodeSelector, problem: &mut impl FnMut(&str, String)) {
    let names = selector.names.as_deref().unwrap_or_default();
    let by_labels = selector.match_labels.as_ref().is_some_and(|labels| !labels.is_empty())
        || selector.match_expressions.as_ref().is_some_and(|expressions| !expressions.is_empty());
    if !names.is_empty() && by_labels {
        let why = "it stands beside matchLabels or matchExpressions; want either names or labels";
        problem("spec.selector.names", why.into());
    }
    let mut seen = BTreeSet::new();
    for (at, name) in names.iter().enumerate() {
        let field = format!("spec.selector.names[{at}]");
        if !is_dns_subdomain(name) {
            problem(&field, format!("{name:?} cannot be the name of a node"));
        } else if !seen.insert(name) {
            problem(&field, format!("{name:?} is there twice; want each node once"));
        }
    }
    labels("spec.selector", &selector.labels(), problem);
}

fn labels(field: &str, selector: &LabelSelector, problem: &mut impl FnMut(&str, String)) {
    for (key, value) in selector.match_labels.iter().flatten() {
        if !is_qualified_name(key) {
            problem(&format!("{field}.matchLabels"), format!("{key:?} cannot be the key of a label"));
        }
        if !is_label_value(value) {
            problem(&format!("{field}.matchLabels"), format!("{value:?} of {key} cannot be the value of a label"));
        }
    }
    for (at, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let field = format!("{field}.matchExpressions[{at}]");
        if !is_qualified_name(&expression.key) {
            problem(&field, format!("{:?} cannot be the key of a label", expression.key));
        }
        let values = expression.values.as_ref().map_or(0, Vec::len);
        match expression.operator.as_str() {
            "In" | "NotIn" if values == 0 => {
                problem(&field, format!("{} without values; want at least one", expression.operator));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                problem(&field, format!("{} with values; want none", expression.operator));
            }
            _ => {}
        }
    }
    if let Err(Invalid(why)) = Selector::of(selector) {
        problem(field, why);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(spec: Value) -> Vec<Problem> {
        of_job(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn good_jobs_have_no_problems() {
        let digest = format!("reg.example:5000/a/b:v1@sha256:{}", "0".repeat(64));
        for spec in [
            json!({"image": "busybox"}),
            json!({"image": digest, "parallelism": "10", "selector": {"names": ["n1", "n2"]}}),
            json!({"image": "Registry.Example/a:V1", "parallelism": 0, "selector": {}}),
            json!({"image": "a", "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}),
            json!({"image": "a", "pullPolicy": {"timeoutSeconds": 30}, "completionPolicy": {"activeDeadlineSeconds": 30, "ttlSecondsAfterFinished": 0}}),
            json!({"image": "a", "completionPolicy": {"type": "Never"}, "imagePullPolicy": "Always", "pullSecrets": ["s"]}),
        ] {
            assert_eq!(problems(spec.clone()), [], "{spec}");
        }
    }

    #[test]
    fn what_has_no_time_to_live_is_kept() {
        let ttl = |seconds| CompletionPolicy { ttl_seconds_after_finished: seconds, ..CompletionPolicy::default() };
        let kept = [None, Some(-1), Some(0), Some(60)].map(|seconds| time_to_live(&ttl(seconds)));
        assert_eq!(kept, [None, None, Some(Duration::ZERO), Some(Duration::from_secs(60))]);
    }

    #[test]
    fn e20_problems_name_the_field_the_value_and_what_is_allowed() {
        for (spec, field, says) in [
            (json!({"image": "Busybox"}), "spec.image", "capital letters"),
            (
                json!({"image": "a b"}),
                "spec.image",
                "\"a b\" is no image reference; want [registry/]name[:tag][@digest]",
            ),
            (json!({"image": ""}), "spec.image", "want [registry/]name"),
            (json!({"image": "a@sha256:0123456789abcdef0123456789abcdef"}), "spec.image", "64 hexadecimal"),
            (json!({"image": "a:t:u"}), "spec.image", "no image reference"),
            (json!({"image": "a", "pullSecrets": ["ok", "../x"]}), "spec.pullSecrets[1]", "\"../x\""),
            (json!({"image": "a", "parallelism": "10%"}), "spec.parallelism", "\"10%\" is not allowed"),
            (json!({"image": "a", "parallelism": -1}), "spec.parallelism", "from 0 on"),
            (json!({"image": "a", "parallelism": "+1"}), "spec.parallelism", "from 0 on"),
            (json!({"image": "a", "selector": {}, "podSelector": {}}), "spec.podSelector", "at most one"),
            (
                json!({"image": "a", "selector": {"names": ["n"], "matchLabels": {"a": "b"}}}),
                "spec.selector.names",
                "either",
            ),
            (json!({"image": "a", "selector": {"names": ["n", "n"]}}), "spec.selector.names[1]", "twice"),
            (json!({"image": "a", "selector": {"names": ["N"]}}), "spec.selector.names[0]", "\"N\""),
            (json!({"image": "a", "selector": {"matchLabels": {"a b": "c"}}}), "spec.selector.matchLabels", "\"a b\""),
            (
                json!({"image": "a", "podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
                "spec.podSelector",
                "\"Gt\"",
            ),
            (
                json!({"image": "a", "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
                "spec.podSelector.matchExpressions[0]",
                "at least one",
            ),
            (
                json!({"image": "a", "pullPolicy": {"timeoutSeconds": 0}}),
                "spec.pullPolicy.timeoutSeconds",
                "at least 1",
            ),
            (json!({"image": "a", "pullPolicy": {"backoffLimit": -1}}), "spec.pullPolicy.backoffLimit", "at least 0"),
            (
                json!({"image": "a", "completionPolicy": {"activeDeadlineSeconds": 599}}),
                "spec.completionPolicy.activeDeadlineSeconds",
                "(600)",
            ),
            (
                json!({"image": "a", "completionPolicy": {"type": "Never", "activeDeadlineSeconds": 900}}),
                "spec.completionPolicy.activeDeadlineSeconds",
                "type Never",
            ),
            (
                json!({"image": "a", "completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 9}}),
                "spec.completionPolicy.ttlSecondsAfterFinished",
                "type Never",
            ),
            (json!({"image": "a", "imagePullPolicy": "Never"}), "spec.imagePullPolicy", "want Always or IfNotPresent"),
        ] {
            let found = problems(spec.clone());
            assert_eq!(found.len(), 1, "{spec}: {found:?}");
            assert_eq!(found[0].0, field, "{spec}");
            assert!(found[0].1.contains(says), "{spec}: {}", found[0].1);
        }
    }

    #[test]
    fn what_would_fill_node_images_is_refused_with_its_size_and_the_limit() {
        let sandbox = |bytes: usize| json!({"annotations": {"a": "x".repeat(bytes)}});
        let around = sandbox(0).to_string().len();
        let secrets = |count: usize| (0..count).map(|i| format!("{i:0>253}")).collect::<Vec<_>>();
        assert_eq!(problems(json!({"image": "a", "sandboxConfig": sandbox(LARGEST_SANDBOX - around)})), []);
        assert_eq!(problems(json!({"image": "a", "pullSecrets": secrets(16)})), []);
        for (spec, field, says) in [
            (
                json!({"sandboxConfig": sandbox(LARGEST_SANDBOX - around + 1)}),
                "spec.sandboxConfig",
                "it has 4097 bytes as JSON; want at most 4096",
            ),
            (
                json!({"sandboxConfig": {"labels": {"a": "<".repeat(1000)}}}),
                "spec.sandboxConfig",
                "it has 6019 bytes as JSON; want at most 4096",
            ),
            (
                json!({"pullSecrets": secrets(17)}),
                "spec.pullSecrets",
                "the names have 4301 bytes together; want at most 4096",
            ),
        ] {
            let with = |field: &str, value: Value| {
                let mut spec = spec.clone();
                spec[field] = value;
                spec
            };
            let expected = [(field.to_owned(), says.to_owned())];
            assert_eq!(problems(with("image", "a".into())), expected);
            assert_eq!(of_list(&serde_json::from_value(with("images", json!(["a"]))).unwrap()), expected);
        }
    }

    #[test]
    fn f12_a_list_has_the_rules_of_its_jobs_and_its_own() {
        let of = |spec: Value| of_list(&serde_json::from_value(spec).unwrap());
        assert_eq!(of(json!({"images": ["a:1", "a:2"], "completionPolicy": {"ttlSecondsAfterFinished": 5}})), []);
        let many: Vec<String> = (0..256).map(|i| format!("a:{i}")).collect();
        for (spec, field) in [
            (json!({"images": []}), "spec.images"),
            (json!({"images": many}), "spec.images"),
            (json!({"images": ["a", "b c"]}), "spec.images[1]"),
            (json!({"images": ["a", "a"]}), "spec.images[1]"),
            (json!({"images": ["a"], "parallelism": "50%"}), "spec.parallelism"),
            (
                json!({"images": ["a"], "completionPolicy": {"activeDeadlineSeconds": 5}}),
                "spec.completionPolicy.activeDeadlineSeconds",
            ),
            (
                json!({"images": ["a"], "completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 5}}),
                "spec.completionPolicy.ttlSecondsAfterFinished",
            ),
        ] {
            let found = of(spec.clone());
            assert_eq!(found.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), [field], "{spec}");
        }
    }
}
