//! Complaints of the API server about Pod templates that OpenKruise admits. A workload with such a value can be stored, and
//! its Pods are refused when they are created.

use serde_json::Value;

use crate::k8s::quantity;

/// Something in a PodTemplate that is let in although the API server complains about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tolerated {
    /// The field of the PodTemplate.
    pub field: String,
    /// What the API server says of it.
    pub message: String,
    /// A value that it accepts there.
    stand_in: String,
}

impl Tolerated {
    /// A complaint that is not to be heard. None: it counts.
    pub fn of(field: &str, message: &str) -> Option<Self> {
        let stand_in = stand_in(field, message)?;
        Some(Self { field: field.to_owned(), message: message.to_owned(), stand_in })
    }

    fn pointer(&self) -> String {
        pointer(&self.field)
    }

    /// What is written there.
    pub fn value_in<'v>(&self, body: &'v Value) -> Option<&'v Value> {
        body.pointer(&self.pointer())
    }

    /// Puts a value there that is accepted, so that the API server says what defaults all the rest has. False: nothing is
    /// there, or that value already.
    pub fn hide_in(&self, body: &mut Value) -> bool {
        match body.pointer_mut(&self.pointer()) {
            Some(value) if *value != self.stand_in => {
                *value = self.stand_in.clone().into();
                true
            }
            _ => false,
        }
    }

    /// Puts back what was written in `body`, with an amount as the API server spells it.
    pub fn put_back(&self, body: &Value, answer: &mut Value) {
        let (Some(mine), Some(theirs)) = (self.value_in(body), answer.pointer_mut(&self.pointer())) else { return };
        *theirs = mine.clone();
        if self.field.contains(HUGE) {
            let text = mine.as_str().map_or_else(|| mine.to_string(), str::to_owned);
            *theirs = quantity::canonical(&text).unwrap_or(text).into();
        }
    }
}

/// How the name of a resource of huge pages begins, after which comes the size of a page.
const HUGE: &str = "[hugepages-";

/// What is accepted in the place of a value that OpenKruise admits. None: it does not admit it either.
fn stand_in(field: &str, message: &str) -> Option<String> {
    if field == "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]" {
        return message.ends_with("must be a 32bit integer").then(|| "0".into());
    }
    let inner = field.strip_suffix(']')?;
    if let Some((_, size)) = inner.rsplit_once(HUGE) {
        let is_size = quantity::parse(size).is_some_and(|size| size > 0);
        return (is_size && message.contains("is not positive integer multiple of")).then(|| size.into());
    }
    // Of affinity alone: those of topology spread constraints OpenKruise refuses too.
    let (expression, index) = inner.rsplit_once(".values[")?;
    let is_value = expression.starts_with("template.spec.affinity.")
        && expression.contains(".matchExpressions[")
        && index.bytes().all(|byte| byte.is_ascii_digit());
    let is_about_label =
        ["a valid label must be", "must be no more than 63"].into_iter().any(|text| message.contains(text));
    (is_value && is_about_label).then(|| "x".into())
}

/// The JSON pointer of a field: `a.b[0].c[x.y/z]` is `/a/b/0/c/x.y~1z`.
fn pointer(field: &str) -> String {
    let (mut pointer, mut is_key) = (String::from("/"), false);
    for c in field.chars() {
        match c {
            '[' if !is_key => {
                is_key = true;
                pointer.push('/');
            }
            ']' if is_key => is_key = false,
            '.' if !is_key => pointer.push('/'),
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
    pointer
}

/// A field as manifests have it: the API server leaves out that labels and annotations of a Pod template are its metadata.
pub fn as_in_manifests(field: &str) -> String {
    let (members, key) = field.split_at(field.find('[').unwrap_or(field.len()));
    for member in ["annotations", "labels"] {
        let parent = members.strip_suffix(member).and_then(|members| members.strip_suffix("template."));
        if let Some(parent) = parent.filter(|parent| parent.is_empty() || parent.ends_with('.')) {
            return format!("{parent}template.metadata.{member}{key}");
        }
    }
    field.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LABEL: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'";

    #[test]
    fn what_open_kruise_admits_is_let_in_and_nothing_else() {
        const COST: &str = "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]";
        const SELECTOR: &str = "template.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0]";
        const LIMITS: &str = "template.spec.containers[1].resources.limits";
        let term =
            "template.spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[2].podAffinityTerm";
        let said = |value: &str, what: &str| format!("Invalid value: {value:?}: {what}");
        for (field, message, stand_in) in [
            (COST.to_owned(), said("abc", "must be a 32bit integer"), Some("0")),
            (format!("{SELECTOR}.values[0]"), said("-bad value", LABEL), Some("x")),
            (format!("{SELECTOR}.values[12]"), said("long", "must be no more than 63 bytes"), Some("x")),
            (format!("{SELECTOR}.values[12]"), said("long", "must be no more than 63 characters"), Some("x")),
            (format!("{term}.namespaceSelector.matchExpressions[3].values[1]"), said("-", LABEL), Some("x")),
            (
                format!("{LIMITS}[hugepages-2Mi]"),
                said("3Mi", "3Mi is not positive integer multiple of hugepages-2Mi"),
                Some("2Mi"),
            ),
            (
                "template.spec.initContainers[0].resources.requests[hugepages-1Gi]".to_owned(),
                said("3Mi", "3Mi is not positive integer multiple of hugepages-1Gi"),
                Some("1Gi"),
            ),
            // The same fields with other faults, and other fields with the same.
            (COST.to_owned(), said("abc", "another fault"), None),
            ("template.metadata.annotations[other]".to_owned(), said("abc", "must be a 32bit integer"), None),
            (format!("{SELECTOR}.values"), "Required value: must be specified".to_owned(), None),
            (format!("{SELECTOR}.operator"), said("Is", "not a valid selector operator"), None),
            (format!("{SELECTOR}.key"), said("a b", LABEL), None),
            (SELECTOR.replace("matchExpressions[0]", "matchLabels"), said("-bad value", LABEL), None),
            (
                "template.spec.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values[0]".to_owned(),
                said("-bad value", LABEL),
                None,
            ),
            ("template.metadata.labels".to_owned(), said("-bad value", LABEL), None),
            (format!("{LIMITS}[hugepages-2Mi]"), said("-2Mi", "must be greater than or equal to 0"), None),
            (
                format!("{LIMITS}[hugepages-x]"),
                said("3Mi", "3Mi is not positive integer multiple of hugepages-x"),
                None,
            ),
            ("template.spec.containers[0].image".to_owned(), "Required value".to_owned(), None),
        ] {
            let tolerated = Tolerated::of(&field, &message);
            assert_eq!(tolerated.as_ref().map(|one| one.stand_in.as_str()), stand_in, "{field}: {message}");
        }
    }

    #[test]
    fn a_value_is_hidden_and_comes_back() {
        let body = json!({"template": {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "abc"}},
            "spec": {"containers": [{"resources": {"limits": {"hugepages-2Mi": "3072Ki"}}}]}}});
        for (field, message, back) in [
            (
                "template.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]",
                "must be a 32bit integer",
                "abc",
            ),
            (
                "template.spec.containers[0].resources.limits[hugepages-2Mi]",
                "3Mi is not positive integer multiple of hugepages-2Mi",
                "3Mi",
            ),
        ] {
            let tolerated = Tolerated::of(field, message).unwrap();
            let mut asked = body.clone();
            assert!(tolerated.hide_in(&mut asked) && asked != body, "{field}");
            assert!(!tolerated.hide_in(&mut asked), "{field}: it is hidden already");
            tolerated.put_back(&body, &mut asked);
            assert_eq!(*tolerated.value_in(&asked).unwrap(), back, "{field}");
            assert!(!tolerated.hide_in(&mut json!({})), "{field}: a default of the API server is not there");
        }
    }

    #[test]
    fn labels_and_annotations_are_members_of_metadata() {
        for (named, want) in [
            ("template.annotations[a.b/c]", "template.metadata.annotations[a.b/c]"),
            ("template.labels", "template.metadata.labels"),
            ("spec.template.labels[x]", "spec.template.metadata.labels[x]"),
            ("template.metadata.labels", "template.metadata.labels"),
            ("mytemplate.labels", "mytemplate.labels"),
            ("template.spec.containers[0].image", "template.spec.containers[0].image"),
            ("", ""),
        ] {
            assert_eq!(as_in_manifests(named), want);
        }
    }
}
