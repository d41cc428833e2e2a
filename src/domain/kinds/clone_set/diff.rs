//! How far a CloneSet is from what it should be: how many Pods to create, delete and update, and how many of those may
//! become unavailable at once. Pure arithmetic over counts.

/// What the spec asks for, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// `spec.replicas`.
    pub replicas: i32,
    /// Pods to keep on old revisions; see [`kept_old`](crate::domain::workload::rollout::kept_old).
    pub partition: i32,
    /// How many Pods may be unavailable during an update or a deletion.
    pub max_unavailable: i32,
    /// How many Pods there may be beyond replicas.
    pub max_surge: i32,
    /// How many Pods may be unavailable while scaling up.
    pub scale_max_unavailable: i32,
    /// Whether Pods are taken back to the old revision when the partition grows.
    pub rolls_back: bool,
    /// Whether Pods that wait for their preDelete hook do not count as replicas.
    pub excludes_preparing_delete: bool,
}

/// The active Pods of one side, old or new, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// All active Pods.
    pub total: i32,
    /// Of them, in state PreparingDelete.
    pub preparing_delete: i32,
    /// Of the others, marked or listed to be deleted.
    pub to_delete: i32,
    /// Of those that are not to be deleted either, not available.
    pub unavailable: i32,
    /// Pods in `preparing_delete` and `unavailable` that are Ready: they serve while a hook holds them, or while a budget keeps
    /// them after the hook.
    pub serving: i32,
}

impl Side {
    /// Those that are not waiting for their deletion.
    pub fn active(self) -> i32 {
        self.total - self.preparing_delete
    }
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Pods that are not on the update revision.
    pub old: Side,
    /// Pods on the update revision.
    pub new: Side,
    /// Whether current and update revision are the same one.
    pub one_revision: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Pods to create.
    pub scale_up: i32,
    /// How many of them on the current revision.
    pub scale_up_old: i32,
    /// How many may be created now.
    pub scale_up_limit: i32,
    /// Pods to delete besides those that are marked.
    pub scale_down: i32,
    /// How many of them old ones.
    pub scale_down_old: i32,
    /// Pods that may be out of service while Pods are deleted; negative when too many are missing.
    pub delete_max_unavailable: i32,
    /// Pods beyond replicas that are in use.
    pub use_surge: i32,
    /// How many of them old ones.
    pub use_surge_old: i32,
    /// Pods to update: positive to the update revision, negative back to the current one.
    pub update: i32,
    /// How many of them, without sign, have to be others than those that are to be deleted anyway, whose successors are
    /// made on the right revision.
    pub update_others: i32,
    /// Pods that may be unavailable while updating; negative when too many are missing.
    pub update_max_unavailable: i32,
}

/// Compares.
pub fn diff(wanted: &Wanted, counted: &Counted) -> Diff {
    let Wanted {
        replicas,
        partition,
        max_unavailable,
        max_surge,
        scale_max_unavailable,
        rolls_back,
        excludes_preparing_delete,
    } = *wanted;
    let Counted { old, new, one_revision } = *counted;
    let mut diff = Diff::default();

    let (mut old_diff, mut new_diff) = (old.active() - partition, new.active() - (replicas - partition));
    if old_diff > 0 && new_diff <= 0 {
        // Those that are to be deleted complete nothing. Otherwise an old Pod that is down beyond the number would wait
        // for them to go, and they for it to be up.
        new_diff -= new.to_delete;
    }
    let unavailable = old.preparing_delete + new.preparing_delete + old.unavailable + new.unavailable;
    let to_delete = old.to_delete + new.to_delete;
    if one_revision || !rolls_back {
        (old_diff, new_diff) = (old_diff.max(0), new_diff.min(0));
    }

    if max_surge > 0 {
        let (surge, surge_old) =
            surge(old_diff, new_diff, (unavailable + to_delete - max_unavailable).clamp(0, to_delete), new.to_delete);
        diff.use_surge = max_surge.min(surge);
        diff.use_surge_old = diff.use_surge.min(surge_old);
    }

    let all = old.total + new.total;
    let (total, total_old) =
        if excludes_preparing_delete { (old.active() + new.active(), old.active()) } else { (all, old.total) };
    let (expected, expected_old) = (replicas + diff.use_surge, partition + diff.use_surge_old);
    if expected > total {
        diff.scale_up = expected - total;
        diff.scale_up_old = (expected_old - total_old).max(0);
        // What serves until its hook or its budget lets it go keeps no Pod from being made: the budget may wait for that one.
        let down = unavailable - old.serving - new.serving;
        diff.scale_up_limit = diff.scale_up.min((scale_max_unavailable - down).max(0));
    }
    // Pods that wait for their deletion are on their way out already: nobody else has to go in their place.
    let staying = old.active() + new.active() - to_delete;
    if staying > expected {
        diff.scale_down = staying - expected;
        diff.scale_down_old = (old.active() - old.to_delete - expected_old).max(0);
    }
    if to_delete > 0 || diff.scale_down > 0 {
        diff.delete_max_unavailable = max_unavailable + all - replicas;
    }

    diff.update = if old_diff.abs() <= new_diff.abs() { old_diff } else { -new_diff };
    // What is to be deleted completes one side only: where there are more Pods of the other one than have to go, as during
    // a surge, Pods that are down must not wait for a marked one that may only go after them.
    diff.update_others = match diff.update.signum() {
        1 => (old_diff - old.to_delete).min(-new_diff).max(0),
        -1 => (new_diff - new.to_delete).min(-old_diff).max(0),
        _ => 0,
    };
    if diff.update != 0 {
        diff.update_max_unavailable = max_unavailable + all - replicas;
    }
    diff
}

/// The surge that is of use, and how much of it on the old side: for Pods that may only be deleted once their
/// replacements are there, or for the update, whichever needs more.
fn surge(old_diff: i32, new_diff: i32, for_deletion: i32, to_delete_new: i32) -> (i32, i32) {
    let (mut for_update, mut for_update_old) = (0, 0);
    if old_diff.signum() * new_diff.signum() < 0 {
        let old_is_smaller = old_diff.abs() <= new_diff.abs();
        for_update = if old_is_smaller { old_diff.abs() } else { new_diff.abs() };
        let on_the_old_side = if old_is_smaller { old_diff < 0 } else { new_diff > 0 };
        for_update_old = if on_the_old_side { for_update } else { 0 };
    }
    if for_deletion >= for_update {
        (for_deletion, (for_deletion - to_delete_new).max(0))
    } else {
        (for_update, for_update_old)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        domain::workload::rollout::{kept_old, limits},
        k8s::int_or_percent::IntOrPercent,
    };

    fn percent(value: f64) -> IntOrPercent {
        IntOrPercent::Percent(value)
    }

    #[test]
    fn case_19_partitions() {
        for (partition, replicas, kept) in [
            (percent(90.0), 8, 7),
            (percent(100.0), 8, 8),
            (percent(50.0), 1, 1),
            (percent(50.0), 5, 3),
            (percent(0.1), 5, 1),
            (percent(99.5), 1000, 995),
            (IntOrPercent::Int(5), 5, 5),
            (IntOrPercent::Int(7), 5, 5),
            (IntOrPercent::Int(0), 5, 0),
            (IntOrPercent::Int(-1), 5, 0),
            (percent(99.9), 2, 1),
            (percent(30.0), 0, 0),
        ] {
            assert_eq!(kept_old(partition, replicas), kept, "{partition:?} of {replicas}");
        }
    }

    /// replicas, partition, maxUnavailable, maxSurge
    fn wanted(replicas: i32, partition: i32, max_unavailable: IntOrPercent, max_surge: IntOrPercent) -> Wanted {
        let (max_unavailable, max_surge) = limits(max_unavailable, max_surge, replicas, false);
        Wanted {
            replicas,
            partition,
            max_unavailable,
            max_surge,
            scale_max_unavailable: i32::MAX,
            rolls_back: false,
            excludes_preparing_delete: false,
        }
    }

    fn ints(replicas: i32, partition: i32, max_unavailable: i32, max_surge: i32) -> Wanted {
        wanted(replicas, partition, IntOrPercent::Int(max_unavailable), IntOrPercent::Int(max_surge))
    }

    fn side(total: i32, unavailable: i32, to_delete: i32) -> Side {
        Side { total, unavailable, to_delete, ..Side::default() }
    }

    fn counted(old: Side, new: Side) -> Counted {
        Counted { old, new, one_revision: false }
    }

    #[test]
    fn worked_results() {
        let none = Side::default();
        let rollback = |wanted: Wanted| Wanted { rolls_back: true, ..wanted };
        let rows = [
            (
                "5, 0, 2, 0: 5 old",
                ints(5, 0, 2, 0),
                counted(side(5, 0, 0), none),
                Diff { update: 5, update_max_unavailable: 2, ..Diff::default() },
            ),
            (
                "3 old, 2 new bad",
                ints(5, 0, 2, 0),
                counted(side(3, 0, 0), side(2, 2, 0)),
                Diff { update: 3, update_max_unavailable: 2, ..Diff::default() },
            ),
            (
                "surge: 5 old",
                ints(5, 0, 0, 1),
                counted(side(5, 0, 0), none),
                Diff { use_surge: 1, scale_up: 1, scale_up_limit: 1, update: 5, ..Diff::default() },
            ),
            (
                "surge: 5 old, 1 new",
                ints(5, 0, 0, 1),
                counted(side(5, 0, 0), side(1, 0, 0)),
                Diff { use_surge: 1, update: 4, update_max_unavailable: 1, ..Diff::default() },
            ),
            (
                "surge: 4 old, 1 new, 1 old marked",
                ints(5, 0, 0, 1),
                counted(side(5, 0, 1), side(1, 0, 0)),
                Diff {
                    use_surge: 1,
                    delete_max_unavailable: 1,
                    update: 4,
                    update_max_unavailable: 1,
                    ..Diff::default()
                },
            ),
            (
                "20% and 20%",
                wanted(10, 3, percent(20.0), percent(20.0)),
                counted(side(10, 0, 0), none),
                Diff {
                    use_surge: 2,
                    scale_up: 2,
                    scale_up_limit: 2,
                    update: 7,
                    update_max_unavailable: 2,
                    ..Diff::default()
                },
            ),
            (
                "25% and 15%",
                wanted(10, 3, percent(25.0), percent(15.0)),
                counted(side(10, 0, 0), none),
                Diff {
                    use_surge: 2,
                    scale_up: 2,
                    scale_up_limit: 2,
                    update: 7,
                    update_max_unavailable: 2,
                    ..Diff::default()
                },
            ),
            (
                "25% without surge",
                wanted(10, 0, percent(25.0), IntOrPercent::Int(0)),
                counted(side(10, 0, 0), none),
                Diff { update: 10, update_max_unavailable: 3, ..Diff::default() },
            ),
            (
                "rollback on",
                rollback(ints(5, 4, 2, 0)),
                counted(side(1, 0, 0), side(4, 0, 0)),
                Diff { update: -3, update_max_unavailable: 2, ..Diff::default() },
            ),
            ("rollback off", ints(5, 4, 2, 0), counted(side(1, 0, 0), side(4, 0, 0)), Diff::default()),
            (
                "rollback with surge",
                rollback(ints(5, 4, 0, 1)),
                counted(side(1, 0, 0), side(4, 0, 0)),
                Diff {
                    use_surge: 1,
                    use_surge_old: 1,
                    scale_up: 1,
                    scale_up_old: 4,
                    scale_up_limit: 1,
                    update: -3,
                    ..Diff::default()
                },
            ),
            (
                "delete a marked one at once",
                ints(4, 0, 2, 1),
                counted(none, side(4, 1, 1)),
                Diff { delete_max_unavailable: 2, ..Diff::default() },
            ),
            (
                "create its replacement first",
                ints(4, 0, 1, 1),
                counted(none, side(4, 1, 1)),
                Diff { use_surge: 1, scale_up: 1, scale_up_limit: 1, delete_max_unavailable: 1, ..Diff::default() },
            ),
            (
                "a marked broken one",
                ints(4, 0, 1, 1),
                counted(none, side(4, 0, 1)),
                Diff { delete_max_unavailable: 1, ..Diff::default() },
            ),
            (
                "a marked new one, and an old broken one beyond the number",
                ints(3, 0, 0, 1),
                counted(side(1, 1, 0), side(3, 0, 1)),
                Diff {
                    use_surge: 1,
                    delete_max_unavailable: 1,
                    update: 1,
                    update_max_unavailable: 1,
                    ..Diff::default()
                },
            ),
            (
                "6, 3: too many of both",
                wanted(6, 3, percent(20.0), IntOrPercent::Int(0)),
                counted(side(5, 0, 0), side(5, 0, 0)),
                Diff { scale_down: 4, scale_down_old: 2, delete_max_unavailable: 6, ..Diff::default() },
            ),
            (
                "scale up within its limit",
                Wanted { scale_max_unavailable: 2, ..wanted(10, 0, percent(20.0), IntOrPercent::Int(0)) },
                counted(none, side(4, 1, 0)),
                Diff { scale_up: 6, scale_up_limit: 1, ..Diff::default() },
            ),
            (
                "new Pods for both sides",
                ints(5, 2, 1, 0),
                counted(none, side(2, 0, 0)),
                Diff { scale_up: 3, scale_up_old: 2, scale_up_limit: 3, ..Diff::default() },
            ),
        ];
        for (name, wanted, counted, want) in rows {
            // Which of them are updated, worked results do not say.
            let got = Diff { update_others: 0, ..diff(&wanted, &counted) };
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn marked_pods_count_as_updated_only_where_their_successors_complete_the_update() {
        let none = Side::default();
        let others = |wanted: Wanted, old: Side, new: Side| diff(&wanted, &counted(old, new)).update_others;
        assert_eq!(others(ints(5, 0, 2, 0), side(5, 0, 0), none), 5);
        assert_eq!(others(ints(5, 0, 2, 0), side(5, 0, 2), none), 3);
        assert_eq!(others(ints(5, 4, 2, 0), side(5, 0, 1), none), 0);
        // Two of the old ones are down and use the surge up, the third is marked, available, and may not go before.
        assert_eq!(others(ints(1, 0, 0, 2), side(3, 2, 1), none), 1);
        let back = |wanted: Wanted| Wanted { rolls_back: true, ..wanted };
        assert_eq!(others(back(ints(5, 3, 2, 0)), none, side(5, 0, 0)), 3);
        assert_eq!(others(back(ints(5, 3, 2, 0)), none, side(5, 0, 2)), 1);
    }

    #[test]
    fn case_12_paused_means_no_surge() {
        assert_eq!(limits(IntOrPercent::Int(0), IntOrPercent::Int(1), 5, true), (0, 0));
        let paused = Wanted { max_surge: 0, ..ints(5, 0, 0, 1) };
        let update = Diff { update: 5, update_others: 5, ..Diff::default() };
        assert_eq!(diff(&paused, &counted(side(5, 0, 0), Side::default())), update);
    }

    #[test]
    fn pods_that_prepare_their_deletion_count_unless_they_are_excluded() {
        let counted = Counted {
            new: Side { total: 5, preparing_delete: 1, ..Side::default() },
            one_revision: true,
            ..Counted::default()
        };
        assert_eq!(diff(&ints(5, 0, 1, 0), &counted), Diff { update: 0, ..Diff::default() });
        let excluding = Wanted { excludes_preparing_delete: true, ..ints(5, 0, 1, 0) };
        assert_eq!(diff(&excluding, &counted), Diff { scale_up: 1, scale_up_limit: 1, ..Diff::default() });
    }

    #[test]
    fn what_serves_while_it_waits_for_a_hook_or_a_budget_keeps_no_pod_from_being_made() {
        let limit = |side: Side| {
            let wanted = Wanted { scale_max_unavailable: 2, ..ints(4, 0, 1, 0) };
            diff(&wanted, &counted(side, Side::default())).scale_up_limit
        };
        assert_eq!(limit(side(3, 2, 0)), 0, "two are down");
        assert_eq!(limit(Side { serving: 2, ..side(3, 2, 0) }), 1, "two wait in PreparingUpdate and are Ready");
        assert_eq!(limit(Side { preparing_delete: 2, ..side(3, 0, 0) }), 0);
        assert_eq!(limit(Side { preparing_delete: 2, serving: 2, ..side(3, 0, 0) }), 1);
    }

    fn sides() -> impl Strategy<Value = Side> {
        (0..8, 0..8, 0..8, 0..8).prop_map(|(a, preparing_delete, to_delete, unavailable): (i32, i32, i32, i32)| Side {
            total: a + preparing_delete + to_delete + unavailable,
            preparing_delete,
            to_delete,
            unavailable,
            serving: (preparing_delete + unavailable) / 2,
        })
    }

    #[test]
    fn case_14_with_one_revision_there_is_nothing_to_go_back_to() {
        let wanted = Wanted { rolls_back: true, ..ints(5, 4, 2, 0) };
        let all_new = counted(Side::default(), side(5, 0, 0));
        assert_eq!(diff(&wanted, &all_new).update, -4);
        assert_eq!(diff(&wanted, &Counted { one_revision: true, ..all_new }).update, 0);
    }

    proptest! {
        /// Case 18: nothing panics or creates surplus Pods, whatever the numbers.
        #[test]
        fn case_18_bounds_hold(replicas in 0..20, partition in -5..30, max_unavailable in 0..10, max_surge in 0..10,
            scale_max in 0..10, rolls_back: bool, excludes: bool, one_revision: bool, old in sides(), new in sides()) {
            let wanted = Wanted { replicas, partition: kept_old(IntOrPercent::Int(partition), replicas), max_unavailable, max_surge,
                scale_max_unavailable: scale_max, rolls_back, excludes_preparing_delete: excludes };
            let d = diff(&wanted, &Counted { old, new, one_revision });
            prop_assert!(d.use_surge <= max_surge && d.use_surge_old <= d.use_surge);
            prop_assert!(d.scale_up == 0 || d.scale_down == 0);
            prop_assert!(0 <= d.scale_up_limit && d.scale_up_limit <= d.scale_up);
            prop_assert!(d.scale_down >= 0 && d.scale_down <= old.active() + new.active());
            let total = if excludes { old.active() + new.active() } else { old.total + new.total };
            prop_assert!(total + d.scale_up <= (replicas + max_surge).max(total));
            if one_revision || !rolls_back {
                prop_assert!(d.update >= 0);
            }
        }
    }
}
