//! The tests that `make versions` runs on every pair of versions: of each thing that kruise-rs does with Kubernetes or the
//! runtime, those that touch it most.

/// What belongs together, for the reader of the list.
pub struct Part {
    pub what: &'static str,
    /// By their module and name, of the tests that run beside each other.
    pub parallel: &'static [&'static str],
    /// And of the disruptive ones.
    pub serial: &'static [&'static str],
}

pub const CORE: &[Part] = &[
    Part {
        what: "restarts by the runtime",
        parallel: &[
            "restart::plain_restart_replaces_one_instance_and_nothing_else",
            "restart::ordered_containers_are_stopped_after_the_one_before_is_back",
            "restart::a_pre_stop_command_runs_once_and_before_the_stop",
            "restart::a_pre_stop_request_by_http_reaches_the_pod_by_a_named_port",
            "restart::a_pre_stop_sleep_is_slept",
            "restart::the_grace_period_is_honoured_to_its_end",
            "restart::a_static_pod_is_restarted_in_place",
            "readiness::a_pod_is_drained_before_the_stop_and_ready_afterwards",
            "failure::a_container_that_crashes_after_its_restart_fails_and_does_not_hang",
            "workload_restart::a_deployment_is_restarted_within_max_unavailable_and_stays_as_it_is",
        ],
        serial: &["phases::containerd_killed_in_each_phase", "phases::kubelet_killed_in_each_phase"],
    },
    Part {
        what: "restarts by the Pod's spec",
        parallel: &[
            "methods::pod_spec_restarts_one_container_of_the_same_image_and_nothing_else",
            "methods::three_quick_restarts_meet_no_back_off_and_the_fourth_is_announced",
            "methods::native_sidecars_are_restarted_by_both_methods",
            "methods::requests_of_both_methods_have_one_order",
            "methods::a_stop_that_kubelet_will_hold_back_is_announced",
        ],
        serial: &["methods::without_any_daemon_the_manager_restarts_containers"],
    },
    Part {
        what: "workloads, in place",
        parallel: &[
            "clone_set::pods_are_replaced_with_surge_and_none_is_ever_missing",
            "clone_set_inplace::a_new_image_restarts_one_container_of_a_drained_pod_and_nothing_else",
            "clone_set_inplace::labels_and_annotations_reach_pods_without_a_restart",
            "clone_set_inplace::an_environment_from_metadata_restarts_the_container_that_reads_it",
            "clone_set_inplace::containers_start_and_are_updated_by_their_priority",
            "stateful_set::an_update_in_place_keeps_uid_address_and_claim",
            "stateful_set_steps::claims_go_with_their_pod_or_their_set_as_the_policy_says",
            "daemon_set::an_update_of_a_daemon_set_in_place_keeps_its_pods",
            "daemon_set::a_surge_has_the_new_pod_beside_the_old_one_and_a_host_port_is_explained",
            "united_deployment::deployments_and_stateful_sets_are_subsets_too",
            "sidecar_set::a_pod_gets_containers_init_containers_and_native_sidecars",
            "sidecar_set::an_update_in_place_keeps_the_pod_and_its_own_containers",
            "sidecar_set_beside::a_native_sidecar_is_updated_in_place",
            "sidecar_set_hot::a_hot_upgrade_loses_no_request",
            "workload_spread::pods_fill_the_subsets_in_order_and_the_last_ones_go_first",
            "persistent_pod_state::a_pod_of_a_stateful_set_comes_back_with_its_place_and_annotations",
            "revisions::revisions_of_every_kind_are_stored_in_the_bytes_that_go_would_write",
        ],
        serial: &[],
    },
    Part {
        what: "jobs",
        parallel: &[
            "broadcast_job::a_broadcast_job_runs_on_every_node_to_its_end_and_is_deleted_after_its_time_to_live",
            "cron_job::a_job_is_made_at_each_time_and_waits_for_the_one_before",
            "ephemeral_job::containers_run_in_pods_that_run_already_and_two_jobs_share_them",
        ],
        serial: &[],
    },
    Part {
        what: "images",
        parallel: &[
            "image_pull::a_tag_that_has_moved_is_pulled_again_when_that_is_asked_for",
            "image_pull::pods_are_updated_in_place_to_an_image_that_was_pulled_ahead",
            "image_pull::a_private_image_needs_the_secret_of_its_job",
            "image_pull::registries_that_are_slow_fail_or_hand_out_something_else",
            "image_jobs::a_job_is_seen_from_its_begin_to_its_end",
        ],
        serial: &["image_nodes::a_daemon_gets_credentials_of_its_own_node_alone"],
    },
    Part {
        what: "probes",
        parallel: &[
            "probes::a_command_a_get_and_a_connection_give_a_condition_a_label_and_an_annotation_each",
            "probes::a_container_that_restarts_is_not_probed_while_it_is_down_and_begins_anew",
            "probes::commands_that_are_missing_slow_or_print_anything_harm_nobody",
        ],
        serial: &[],
    },
    Part {
        what: "budgets",
        parallel: &[
            "budgets::a_hundred_deletions_and_evictions_at_once_never_take_more_than_three",
            "budgets::a_roll_out_and_evictions_share_one_budget",
            "budgets::stateful_sets_and_daemon_sets_are_guarded_too",
        ],
        serial: &["budgets::kubectl_drain_and_a_roll_out_wait_for_one_budget"],
    },
    Part {
        what: "admission policies and rights",
        parallel: &["admission::labels_and_annotations_that_are_relied_upon_are_protected"],
        serial: &[
            "policies::a_daemons_token_writes_only_status_of_requests_of_its_own_node",
            "policies::a_daemons_token_has_no_right_on_secrets_or_on_pods_beyond_their_status",
            "policies::fields_that_we_rely_on_cannot_be_changed_by_users",
            "policies::a_managers_token_spells_images_of_pods_differently_and_changes_nothing_else_of_them",
        ],
    },
    Part {
        what: "takeover from OpenKruise and from the built-in kinds",
        parallel: &[
            "stateful_set::pods_of_a_built_in_set_are_taken_over_without_a_restart",
            "daemon_set::a_built_in_daemon_set_is_taken_over_when_it_is_gone",
        ],
        // Not helm_takeover: it takes a minute and a half, and the part of it that touches Kubernetes most is in `helm`.
        serial: &["takeover::workloads_of_openkruise_are_taken_over_without_touching_a_pod_or_a_revision"],
    },
    Part {
        what: "install, upgrade, uninstall",
        parallel: &["plugin::doctor_finds_a_healthy_installation_healthy"],
        serial: &[
            "installation::installing_over_an_installation_changes_nothing",
            "installation::uninstalling_leaves_pods_ready_and_no_finalizer_and_clone_sets_outlive_it",
            "installation::uninstalling_with_the_definitions_works_with_a_dead_manager_too",
            "helm::installed_by_helm_it_works_and_no_upgrade_takes_its_ca_away",
        ],
    },
];

/// What kubelets of older versions cannot do: the test, and the minor version that it needs.
const SINCE: &[(&str, u32)] = &[
    // before, a changed image of a sidecar among the init containers restarted nothing
    ("sidecar_set_beside::a_native_sidecar_is_updated_in_place", 32),
];

/// The names of one program's tests, `parallel` or `serial`, that Kubernetes 1.`minor` can pass.
pub fn names(program: &str, minor: u32) -> Vec<&'static str> {
    let of = |part: &'static Part| if program == "serial" { part.serial } else { part.parallel };
    let too_old = |name: &&str| SINCE.iter().any(|(test, since)| test == name && minor < *since);
    CORE.iter().flat_map(of).copied().filter(|name| !too_old(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::{CORE, SINCE, names};
    use crate::paths::Paths;

    const NEWEST: u32 = u32::MAX;

    /// A name that does not exist would be passed over by the program of tests without a word.
    #[test]
    fn every_named_test_exists() {
        let tests = Paths::default().repo.join("e2e/tests");
        let mut missing = Vec::new();
        for program in ["parallel", "serial"] {
            for name in names(program, NEWEST) {
                let (module, function) = name.split_once("::").unwrap();
                let source =
                    fs::read_to_string(tests.join(program).join(module).with_extension("rs")).unwrap_or_default();
                let at = source.find(&format!("async fn {function}("));
                // its attribute is the line before
                let is_test = at.is_some_and(|at| source[..at].trim_end().ends_with(']'));
                if !is_test {
                    missing.push(format!("{program}: {name}"));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn no_test_is_named_twice_and_no_part_is_empty() {
        let all: Vec<&str> = ["parallel", "serial"].into_iter().flat_map(|program| names(program, NEWEST)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for part in CORE {
            assert!(!part.parallel.is_empty() || !part.serial.is_empty(), "{}", part.what);
        }
    }

    #[test]
    fn a_test_is_left_out_only_where_its_kubernetes_is_too_old() {
        let all = names("parallel", NEWEST);
        for (test, since) in SINCE {
            assert!(all.contains(test), "{test}");
            assert!(!names("parallel", since - 1).contains(test) && names("parallel", *since).contains(test), "{test}");
        }
        assert_eq!(names("parallel", 30).len(), all.len() - SINCE.len());
    }
}
