//! Which Pods a PodProbeMarker probes.

use crate::{
    api::apps::pod_probe_marker::PodProbeMarker,
    k8s::{
        invalid::{Invalid, InvalidField},
        pod::Labels,
        selector::{self, Selector},
    },
};

/// What is wrong with the selector of a stored object. While something is, no Pod is probed.
pub fn problems(marker: &PodProbeMarker) -> Vec<InvalidField> {
    selector::problems(&marker.spec.selector, "spec.selector")
}

/// The selector of a stored object.
///
/// # Errors
/// It is one that admission refuses: it is empty, or names what no label can be.
pub fn selector_of(marker: &PodProbeMarker) -> Result<Selector, Invalid> {
    let problems = problems(marker);
    if problems.is_empty() { Selector::of(&marker.spec.selector) } else { Err(problems.into()) }
}

/// Whether Pods with these labels are probed.
pub fn selects(marker: &PodProbeMarker, labels: &Labels) -> bool {
    selector_of(marker).is_ok_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_selector_that_admission_refuses_selects_no_pod() {
        let labels: Labels = serde_json::from_value(json!({"app": "web"})).unwrap();
        let marker = |selector: Value| -> PodProbeMarker {
            serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": {"selector": selector, "probes": []}}))
                .unwrap()
        };
        for (selector, selects_it, why) in [
            (json!({"matchLabels": {"app": "web"}}), true, ""),
            (json!({"matchLabels": {"app": "db"}}), false, ""),
            (json!({}), false, "spec.selector: it is empty; want matchLabels or matchExpressions"),
            // It would match every Pod.
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn"}]}),
                false,
                "spec.selector.matchExpressions[0].values: it is missing; want values for operator NotIn",
            ),
        ] {
            let marker = marker(selector);
            let found = selector_of(&marker).err().map(|Invalid(why)| why).unwrap_or_default();
            assert_eq!((selects(&marker, &labels), found.is_empty()), (selects_it, why.is_empty()), "{found}");
            assert!(found.starts_with(why), "{found}");
        }
    }
}
