//! A Pod in the API server's protobuf.
//!
//! What protobuf and JSON write differently: protobuf has numbers and texts that JSON leaves out because they are 0 or
//! empty.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    ContainerView, EnvironmentView, ExitCodes, Labels, PodView, RestartRule,
    labels::value_of,
    variables::{Variable, job_of},
    wire::{
        WireAffinity, WireAnnotations, WireClaim, WireCondition, WireContainerStatus, WireEphemeral, WireGate,
        WireMeta, WireNodeAffinity, WireNodeSelector, WireOwner, WirePod, WireRequirement, WireRunning, WireSpec,
        WireState, WireStatus, WireTerm, WireTerminated, WireVolume, WireWaiting,
    },
};
use crate::k8s::{
    protobuf::{InProtobuf, interned, read, shared_text, some_text, text, timestamp, v1},
    shared::Text,
};

impl InProtobuf for PodView {
    type Message = v1::Pod;
}

impl From<v1::Pod> for PodView {
    fn from(pod: v1::Pod) -> Self {
        WirePod {
            metadata: pod.metadata.map(meta).unwrap_or_default(),
            spec: pod.spec.map(spec).unwrap_or_default(),
            status: pod.status.map(status).unwrap_or_default(),
        }
        .into()
    }
}

/// None: 0, which JSON leaves out.
fn number(value: Option<i64>) -> Option<i64> {
    value.filter(|value| *value != 0)
}

fn list<W, T>(items: Vec<W>, convert: impl FnMut(W) -> T) -> Option<Vec<T>> {
    Some(items.into_iter().map(convert).collect())
}

fn label(v1::Entry { key, value }: v1::Entry) -> (Arc<str>, Arc<str>) {
    let key = interned(key);
    let value = value_of(&key, &read(&value.unwrap_or_default()));
    (key, value)
}

fn meta(meta: v1::ObjectMeta) -> WireMeta {
    let mut annotations = WireAnnotations::default();
    for v1::Entry { key, value } in &meta.annotations {
        if let Some(slot) = annotations.slot(&read(key.as_ref().unwrap_or(&Bytes::new()))) {
            *slot = Some(read(value.as_ref().unwrap_or(&Bytes::new())).into());
        }
    }
    let labels: Vec<_> = meta.labels.into_iter().map(label).collect();
    WireMeta {
        name: some_text(meta.name),
        namespace: shared_text(meta.namespace),
        uid: some_text(meta.uid),
        generation: number(meta.generation),
        resource_version: some_text(meta.resource_version),
        creation_timestamp: timestamp(meta.creation_timestamp).map(Time),
        deletion_timestamp: timestamp(meta.deletion_timestamp).map(Time),
        labels: Some(Labels::from(labels)),
        annotations: Some(annotations),
        owner_references: list(meta.owner_references, |owner| WireOwner {
            controller: owner.controller,
            api_version: text(owner.api_version),
            kind: text(owner.kind),
            name: text(owner.name),
            uid: text(owner.uid),
        }),
        finalizers: Some(meta.finalizers.iter().map(|name| Text::from(&*read(name))).collect()),
    }
}

fn spec(spec: v1::PodSpec) -> WireSpec {
    WireSpec {
        node_name: shared_text(spec.node_name),
        affinity: spec.affinity.map(affinity),
        restart_policy: shared_text(spec.restart_policy),
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        readiness_gates: list(spec.readiness_gates, |gate| WireGate { condition_type: text(gate.condition_type) }),
        containers: list(spec.containers, container),
        init_containers: list(spec.init_containers, container),
        ephemeral_containers: list(spec.ephemeral_containers, |ephemeral| {
            let v1::EphemeralContainerCommon { name, env } = ephemeral.common.unwrap_or_default();
            WireEphemeral {
                name: shared_text(name).unwrap_or_default(),
                job: job_of(variables(&env).iter().map(Owned::read)),
            }
        }),
        volumes: list(spec.volumes, |volume| WireVolume {
            name: text(volume.name),
            persistent_volume_claim: volume
                .volume_source
                .and_then(|source| source.persistent_volume_claim)
                .map(|claim| WireClaim { claim_name: text(claim.claim_name) }),
        }),
    }
}

fn affinity(affinity: v1::Affinity) -> WireAffinity {
    let requirement = |requirement: v1::NodeSelectorRequirement| WireRequirement {
        key: shared_text(requirement.key).unwrap_or_default(),
        operator: shared_text(requirement.operator).unwrap_or_default(),
        values: list(requirement.values, |value| Text::from(&*read(&value))),
    };
    let term = |term: v1::NodeSelectorTerm| WireTerm { match_fields: list(term.match_fields, requirement) };
    let selector =
        |selector: v1::NodeSelector| WireNodeSelector { node_selector_terms: list(selector.node_selector_terms, term) };
    let node = |node: v1::NodeAffinity| WireNodeAffinity { required: node.required.map(selector) };
    WireAffinity { node_affinity: affinity.node_affinity.map(node) }
}

fn container(container: v1::Container) -> ContainerView {
    let rules = container.restart_policy_rules.into_iter().map(|rule| RestartRule {
        action: text(rule.action),
        exit_codes: rule.exit_codes.map(|codes| ExitCodes { operator: text(codes.operator), values: codes.values }),
    });
    let rules: Box<[RestartRule]> = rules.collect();
    let env = EnvironmentView::of(variables(&container.env).iter().map(Owned::read));
    ContainerView {
        name: text(container.name),
        image: interned(container.image),
        restart_policy: container.restart_policy.map(|policy| text(Some(policy))),
        restart_policy_rules: Some(rules).filter(|rules| !rules.is_empty()),
        has_pre_stop: container.lifecycle.is_some_and(|hooks| hooks.pre_stop.is_some()),
        env,
    }
}

/// An environment variable with its texts read.
struct Owned<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
    key: Option<Cow<'a, str>>,
}

impl Owned<'_> {
    fn read(&self) -> Variable<'_> {
        Variable { name: &self.name, value: &self.value, key: self.key.as_deref() }
    }
}

fn variables(variables: &[v1::EnvVar]) -> Vec<Owned<'_>> {
    let mut all = Vec::with_capacity(variables.len());
    for v1::EnvVar { name, value, value_from } in variables {
        all.push(Owned {
            name: name.as_ref().map(read).unwrap_or_default(),
            value: value.as_ref().map(read).unwrap_or_default(),
            key: value_from.as_ref().and_then(|v| v.config_map_key_ref.as_ref()).and_then(|r| r.key.as_ref()).map(read),
        });
    }
    all
}

fn status(status: v1::PodStatus) -> WireStatus {
    WireStatus {
        phase: shared_text(status.phase),
        pod_ip: some_text(status.pod_ip),
        observed_generation: number(status.observed_generation),
        conditions: list(status.conditions, |condition| WireCondition {
            type_: text(condition.r#type),
            status: text(condition.status),
            reason: text(condition.reason),
            message: text(condition.message),
            last_transition_time: timestamp(condition.last_transition_time),
        }),
        container_statuses: list(status.container_statuses, container_status),
        init_container_statuses: list(status.init_container_statuses, container_status),
        ephemeral_container_statuses: list(status.ephemeral_container_statuses, container_status),
    }
}

fn container_status(status: v1::ContainerStatus) -> WireContainerStatus {
    WireContainerStatus {
        name: shared_text(status.name).unwrap_or_default(),
        image: shared_text(status.image),
        container_id: some_text(status.container_id),
        image_id: interned(status.image_id),
        ready: status.ready.unwrap_or_default(),
        started: status.started,
        restart_count: status.restart_count.unwrap_or_default(),
        state: status.state.map(state),
        last_state: status.last_state.map(state),
    }
}

fn state(state: v1::ContainerState) -> WireState {
    WireState {
        waiting: state
            .waiting
            .map(|waiting| WireWaiting { reason: some_text(waiting.reason), message: some_text(waiting.message) }),
        running: state.running.map(|running| WireRunning { started_at: timestamp(running.started_at) }),
        terminated: state.terminated.map(|terminated| WireTerminated {
            exit_code: terminated.exit_code.unwrap_or_default(),
            finished_at: timestamp(terminated.finished_at),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::k8s::{pod::ContainerState, protobuf};

    /// Both as a real API server gave them, of one version of a Pod with much in it.
    #[test]
    fn a_recorded_pod_is_the_same_in_protobuf_and_in_json() {
        let json: PodView = serde_json::from_str(include_str!("../testdata/pod.json")).unwrap();
        let bytes = Bytes::from_static(include_bytes!("../testdata/pod.pb"));
        let raw = protobuf::open(bytes).unwrap();
        let pod = PodView::from(<v1::Pod as prost::Message>::decode(raw).unwrap());
        assert_eq!(pod, json);
        // What the comparison is worth.
        assert!(json.in_place().is_some() && json.rare().image_spellings.is_some() && json.deletion_cost == 7);
        assert!(
            json.spec.containers.iter().any(|c| c.env.launch_priority == Some(5) && c.restart_policy_rules.is_some())
        );
        assert!(
            !json.spec.sidecars.is_empty()
                && !json.rare().finalizers.is_empty()
                && !json.spec.readiness_gates.is_empty()
        );
        assert!(json.container_statuses.iter().any(|s| s.last_exit.as_ref().is_some_and(|exit| exit.exit_code != 0)));
        assert!(json.controller.is_some() && json.ready_since.is_some() && json.is_deleting());
    }

    #[test]
    fn what_json_leaves_out_because_it_is_empty_counts_as_not_there() {
        let empty = || Some(Bytes::new());
        let no_time = || Some(v1::Time::default());
        let metadata = v1::ObjectMeta {
            name: empty(),
            namespace: empty(),
            uid: empty(),
            resource_version: empty(),
            generation: Some(0),
            creation_timestamp: no_time(),
            ..Default::default()
        };
        let spec = v1::PodSpec { node_name: empty(), restart_policy: empty(), ..Default::default() };
        let status =
            v1::PodStatus { phase: empty(), pod_ip: empty(), observed_generation: Some(0), ..Default::default() };
        let pod = v1::Pod { metadata: Some(metadata), spec: Some(spec), status: Some(status) };
        assert_eq!(PodView::from(pod), serde_json::from_str("{}").unwrap());
    }

    #[test]
    fn a_pod_without_a_node_says_for_which_one_it_is_meant() {
        let aims_at = |node: &str, key: &str, names: &[&str]| {
            let json = serde_json::json!({"spec": {"nodeName": node, "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": key, "operator": "In", "values": names}]}]}}}}});
            let bytes = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
            let requirement = v1::NodeSelectorRequirement {
                key: bytes(key),
                operator: bytes("In"),
                values: names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect(),
            };
            let terms = vec![v1::NodeSelectorTerm { match_fields: vec![requirement] }];
            let required = Some(v1::NodeSelector { node_selector_terms: terms });
            let affinity = Some(v1::Affinity { node_affinity: Some(v1::NodeAffinity { required }) });
            let spec = Some(v1::PodSpec { node_name: bytes(node), affinity, ..Default::default() });
            let pod: PodView = serde_json::from_value(json).unwrap();
            assert_eq!(PodView::from(v1::Pod { spec, ..Default::default() }), pod);
            pod.rare().aims_at.as_deref().unwrap_or_default().to_owned()
        };
        assert_eq!(aims_at("", "metadata.name", &["n1"]), "n1");
        assert_eq!(aims_at("n2", "metadata.name", &["n1"]), "", "nobody needs it any more");
        assert_eq!(aims_at("", "metadata.name", &["n1", "n2"]), "");
        assert_eq!(aims_at("", "spec.unschedulable", &["n1"]), "");
    }

    #[test]
    fn ephemeral_containers_and_sidecars_of_jobs_are_the_same_in_protobuf_and_in_json() {
        let json: PodView = serde_json::from_value(serde_json::json!({
            "spec": {"restartPolicy": "OnFailure",
                "containers": [{"name": "main", "lifecycle": {"postStart": {}}, "env": [{"name": "A", "value": "1"}]},
                    {"name": "proxy", "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}, "env": [{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "True"},
                        {"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE", "value": "exit:1"},
                        {"name": "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE", "value": "true"}]}],
                "ephemeralContainers": [{"name": "look", "env": [{"name": "KRUISE_EJOB_ID", "value": "u1"}]}, {"name": "debug"}]},
            "status": {"ephemeralContainerStatuses": [{"name": "look", "state": {"terminated": {"exitCode": 3}}}]},
        }))
        .unwrap();
        let bytes = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
        let env = |pairs: &[(&str, &str)]| -> Vec<v1::EnvVar> {
            pairs
                .iter()
                .map(|(name, value)| v1::EnvVar { name: bytes(name), value: bytes(value), value_from: None })
                .collect()
        };
        let container = |name: &str, pairs: &[(&str, &str)]| v1::Container {
            name: bytes(name),
            env: env(pairs),
            lifecycle: Some(v1::Lifecycle { pre_stop: (name == "proxy").then_some(v1::LifecycleHandler {}) }),
            ..Default::default()
        };
        let ephemeral = |name: &str, pairs: &[(&str, &str)]| v1::EphemeralContainer {
            common: Some(v1::EphemeralContainerCommon { name: bytes(name), env: env(pairs) }),
        };
        let spec = v1::PodSpec {
            restart_policy: bytes("OnFailure"),
            containers: vec![
                container("main", &[("A", "1")]),
                container(
                    "proxy",
                    &[
                        ("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "True"),
                        ("KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE", "exit:1"),
                        ("KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE", "true"),
                    ],
                ),
            ],
            ephemeral_containers: vec![ephemeral("look", &[("KRUISE_EJOB_ID", "u1")]), ephemeral("debug", &[])],
            ..Default::default()
        };
        let terminated = v1::ContainerStateTerminated { exit_code: Some(3), finished_at: None };
        let state = v1::ContainerState { terminated: Some(terminated), ..Default::default() };
        let looked = v1::ContainerStatus { name: bytes("look"), state: Some(state), ..Default::default() };
        let status = v1::PodStatus { ephemeral_container_statuses: vec![looked], ..Default::default() };
        let pod = PodView::from(v1::Pod { spec: Some(spec), status: Some(status), ..Default::default() });
        assert_eq!(pod, json);
        let [look, debug] = &*pod.rare().ephemeral else { panic!("{:?}", pod.rare().ephemeral) };
        assert_eq!((look.job.as_deref(), &look.state), (Some("u1"), &ContainerState::Terminated { exit_code: 3 }));
        assert_eq!((debug.job.as_deref(), &debug.state), (None, &ContainerState::Unknown));
        let ends = pod.spec.containers[1].env.ends_with_job.as_deref().unwrap();
        assert_eq!((ends.is_switched_on, ends.image.as_deref(), ends.ignores_exit_code), (true, Some("exit:1"), true));
        assert_eq!(pod.spec.containers[0].env.ends_with_job, None);
    }

    #[test]
    fn when_an_update_in_place_began_is_the_same_in_protobuf_and_in_json() {
        let (key, state) = ("apps.kruise.io/inplace-update-state", r#"{"updateTimestamp":"2026-01-01T00:00:00Z"}"#);
        let json = serde_json::json!({"metadata": {"annotations": {key: state}}});
        let json: PodView = serde_json::from_value(json).unwrap();
        let bytes = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
        let annotations = vec![v1::Entry { key: bytes(key), value: bytes(state) }];
        let metadata = Some(v1::ObjectMeta { annotations, ..Default::default() });
        assert_eq!(PodView::from(v1::Pod { metadata, ..Default::default() }), json);
        assert!(json.updated_in_place().is_some());
    }

    #[test]
    fn a_kubelet_that_does_not_report_what_it_has_seen_is_not_behind() {
        let metadata = v1::ObjectMeta { generation: Some(2), ..Default::default() };
        let behind = |observed: i64| {
            let status = v1::PodStatus { observed_generation: Some(observed), ..Default::default() };
            let pod = v1::Pod { metadata: Some(metadata.clone()), spec: None, status: Some(status) };
            PodView::from(pod).kubelet_is_behind
        };
        assert_eq!((behind(0), behind(1), behind(2)), (false, true, false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_pod_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = protobuf::open(bytes.clone().into());
            if let Ok(pod) = <v1::Pod as prost::Message>::decode(Bytes::from(bytes)) {
                let _ = PodView::from(pod);
            }
        }
    }
}
