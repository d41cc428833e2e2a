//! Which method serves a request, decided once, at admission.

use super::{CrrAdmission, Listed, PodFacts, Situation, Spellings, judge_restart_policy};
use crate::{
    api::{crr::RecreateMethod, feature_gates::gate},
    domain::node::recreate::{node::wait_expected, spelling},
    k8s::{
        image::ImageRef,
        node::ignores_images_of_native_sidecars,
        pod::{ContainerState, ContainerStatusView, ContainerView},
    },
    webhook::server::review::Denied,
};

/// Who serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// The node's daemon.
    Runtime,
    /// The manager.
    PodSpec,
}

const FIELD: &str = "spec.strategy.recreateMethod";

/// The method that serves the request, and what its user should know.
///
/// # Errors
/// The wanted method cannot serve it.
pub(super) fn resolve(
    admission: &CrrAdmission,
    pod: &PodFacts,
    listed: &[Listed<'_>],
    situation: Situation,
) -> Result<(Method, Vec<String>), Denied> {
    let runtime = |mut warnings: Vec<String>| {
        for Listed { at, container, .. } in listed {
            warnings.extend(judge_restart_policy(at, container, pod, admission.force)?);
        }
        if admission.vary_image_tag {
            warnings.push("spec.strategy.varyImageTag has no effect under method Runtime".into());
        }
        Ok((Method::Runtime, warnings))
    };
    match admission.method {
        RecreateMethod::Runtime => runtime(Vec::new()),
        RecreateMethod::PodSpec => Ok((Method::PodSpec, pod_spec(admission, pod, listed, situation)?.warnings)),
        RecreateMethod::Auto => {
            let Reasons { to_avoid_runtime, only_back_off } = reasons(admission, pod, listed, situation);
            if to_avoid_runtime.is_empty() {
                return runtime(Vec::new());
            }
            let reasons = to_avoid_runtime.join("; ");
            match pod_spec(admission, pod, listed, situation) {
                Ok(Fit { waits: true, .. }) if only_back_off => runtime(vec![format!(
                    "{FIELD}: Auto: Runtime is used although {reasons}: with PodSpec kubelet would wait as well"
                )]),
                Ok(Fit { mut warnings, .. }) => {
                    warnings.insert(0, format!("{FIELD}: Auto: method PodSpec is used: {reasons}"));
                    Ok((Method::PodSpec, warnings))
                }
                Err(denied) if !admission.has_daemons => Err(denied),
                Err(Denied { message, .. }) => runtime(vec![format!(
                    "{FIELD}: Auto: Runtime is used although {reasons}: PodSpec cannot be: {message}"
                )]),
            }
        }
    }
}

struct Reasons {
    to_avoid_runtime: Vec<String>,
    /// They are all about kubelet's back-off.
    only_back_off: bool,
}

/// Why Runtime would not do.
fn reasons(admission: &CrrAdmission, pod: &PodFacts, listed: &[Listed<'_>], situation: Situation) -> Reasons {
    let mut hard = Vec::new();
    if !admission.has_daemons {
        hard.push(format!("the feature gate {} is off", gate::KRUISE_DAEMON));
    } else if situation.daemon_is_ready == Some(false) {
        hard.push(format!("no kruise-daemon is ready on node {}", pod.spec.node_name));
    }
    let mut back_off = Vec::new();
    let spellings = Spellings::of(&pod.view);
    for Listed { container, .. } in listed {
        let name = &container.name;
        let rules = pod.view.restart_rules_of(name);
        let any_rule = rules.iter().any(|rule| rule.action.starts_with("Restart"));
        match pod.view.restart_policy_of(name) {
            "Always" => {}
            policy if any_rule => hard.push(format!("container {name} has restartPolicy {policy} with rules")),
            policy => hard.push(format!("container {name} has restartPolicy {policy}")),
        }
        if let Some((definition, status)) = views(pod, name) {
            let wait = spelling::wait_after_stop(definition, status, &spellings, situation.now);
            if !wait.is_zero() {
                back_off.push(format!("container {name}: {}", wait_expected(wait)));
            }
        }
    }
    let only_back_off = hard.is_empty();
    hard.append(&mut back_off);
    Reasons { to_avoid_runtime: hard, only_back_off }
}

fn views<'p>(pod: &'p PodFacts, name: &str) -> Option<(&'p ContainerView, &'p ContainerStatusView)> {
    Some((pod.view.container(name)?, pod.view.container_status(name)?))
}

/// A request that PodSpec can serve.
struct Fit {
    warnings: Vec<String>,
    /// kubelet would hold a container back here too.
    waits: bool,
}

fn pod_spec(
    admission: &CrrAdmission,
    pod: &PodFacts,
    listed: &[Listed<'_>],
    situation: Situation,
) -> Result<Fit, Denied> {
    let name = &admission.pod_name;
    let impossible =
        |why: &str| Denied::bad_request(format!("{FIELD}: PodSpec cannot restart containers of Pod {name:?}: {why}"));
    if pod.view.is_mirror {
        return Err(impossible("it is a static Pod, defined by a file on its node; want Runtime"));
    }
    if situation.node_is_virtual {
        return Err(impossible(
            "its node is a virtual one, which may not restart a container whose image is spelled differently; want Runtime",
        ));
    }
    let pods_own = pod.spec.termination_grace_period_seconds;
    if let Some(grace) = admission.grace_seconds
        && pods_own.is_some_and(|own| own != grace)
    {
        let own = pods_own.unwrap_or_default();
        return Err(Denied::bad_request(format!(
            "spec.strategy.terminationGracePeriodSeconds: {grace} is not allowed under method PodSpec: kubelet stops the container with the Pod's own grace period; leave it out or want {own}"
        )));
    }
    let mut warnings = Vec::new();
    if pod.view.controller.is_none() {
        warnings.push(format!(
            "{FIELD}: Pod {name:?} has no controller: a tool that compares it with its manifest will see the image spelled with its digest, and may put it back"
        ));
    }
    let mut waits = false;
    let spellings = Spellings::of(&pod.view);
    for Listed { at, container, status: own_status } in listed {
        let Some((definition, status)) = views(pod, &container.name) else {
            return Err(Denied::bad_request(format!("{at} has no definition in Pod {name:?}")));
        };
        let denied = |why: &str| Denied::bad_request(format!("{at} cannot be restarted by method PodSpec: {why}"));
        if pod.view.is_sidecar(&container.name) && ignores_images_of_native_sidecars(situation.kubelet_minor) {
            return Err(denied(
                "it is a native sidecar, and the kubelet of its node, older than 1.32, ignores a change of its image; want Runtime",
            ));
        }
        let choice = spelling::choose(definition, status, &spellings, (admission.vary_image_tag, None), situation.now)
            .map_err(|why| denied(&why.to_string()))?;
        if !image_is_settled(pod, definition, &own_status.image) {
            return Err(denied(&format!(
                "its image is {:?}, its status shows {:?}: kubelet may not have applied a change of the image yet, so it is uncertain which image the tag means on the node",
                definition.image, own_status.image
            )));
        }
        let policy = pod.view.restart_policy_of(&container.name);
        let pulls_always = container.image_pull_policy == "Always";
        if policy != "Always" {
            if !matches!(status.state, ContainerState::Running { .. }) {
                return Err(denied(&format!(
                    "it is not running, and with restartPolicy {policy} kubelet starts only a running one again"
                )));
            }
            if pulls_always {
                return Err(denied(&format!(
                    "it has imagePullPolicy Always and restartPolicy {policy}: kubelet stops it before it asks the registry, and does not try again if that fails"
                )));
            }
            warnings.push(format!("{at} has restartPolicy {policy}: a start that fails is not tried again"));
        } else if pulls_always {
            warnings.push(format!(
                "{at} has imagePullPolicy Always: kubelet stops it before it asks the registry, so while the registry does not answer, it stays down"
            ));
        }
        if !choice.wait.is_zero() {
            waits = true;
            let help = if admission.vary_image_tag { "" } else { "; spec.strategy.varyImageTag avoids that" };
            warnings.push(format!("{at}: {}{help}", wait_expected(choice.wait)));
        }
    }
    Ok(Fit { warnings, waits })
}

/// Whether the running instance surely is of the image in the definition. A digest says so, and so does a definition
/// that was never changed; else the status has to name the same tag.
fn image_is_settled(pod: &PodFacts, definition: &ContainerView, shown: &str) -> bool {
    let Some(wanted) = ImageRef::parse(&definition.image) else { return false };
    if wanted.digest.is_some() || pod.metadata.generation == Some(1) {
        return true;
    }
    ImageRef::parse(shown).is_some_and(|shown| {
        shown.repository() == wanted.repository() && shown.tag_or_default() == wanted.tag_or_default()
    })
}
