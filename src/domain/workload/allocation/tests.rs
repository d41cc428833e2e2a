use proptest::prelude::*;

use super::*;

const INT: fn(i32) -> IntOrPercent = IntOrPercent::Int;
const PERCENT: fn(f64) -> IntOrPercent = IntOrPercent::Percent;

fn named(name: &str) -> AllocationSubset {
    AllocationSubset { name: name.into(), ..AllocationSubset::default() }
}
fn fixed(name: &str, fixed: IntOrPercent) -> AllocationSubset {
    AllocationSubset { fixed: Some(fixed), ..named(name) }
}
fn has(name: &str, current: i32) -> AllocationSubset {
    AllocationSubset { current, ready: current, ..named(name) }
}
fn bound(name: &str, min: i32, max: impl Into<Option<i32>>) -> AllocationSubset {
    AllocationSubset { min: Some(INT(min)), max: max.into().map(INT), ..named(name) }
}
fn sums(all: &[i32]) -> i64 {
    all.iter().copied().map(i64::from).sum()
}

#[test]
fn fixed_numbers_and_equal_shares_of_the_rest() {
    let given = |total: i32, subsets: &[AllocationSubset]| allocate(AllocationMode::Shares, Some(total), subsets);
    assert_eq!(given(3, &[fixed("sa", INT(1)), named("sb")]), Ok(vec![1, 2]), "as recorded from OpenKruise");
    assert_eq!(given(10, &[named("a"), named("b"), named("c")]), Ok(vec![3, 3, 4]), "among equals the later name");
    assert_eq!(given(10, &[has("a", 9), named("b"), named("c")]), Ok(vec![4, 3, 3]), "who has the most keeps the most");
    assert_eq!(given(10, &[fixed("a", PERCENT(25.0)), named("b")]), Ok(vec![3, 7]), "one half and more is one");
    assert_eq!(given(0, &[named("a"), named("b")]), Ok(vec![0, 0]));
    let above = AllocationError::SumAboveTotal { sum: 4, total: 3 };
    assert_eq!(given(3, &[fixed("a", INT(4)), named("b")]), Err(above));
    let below = AllocationError::SumBelowTotal { sum: 4, total: 5 };
    assert_eq!(given(5, &[fixed("a", INT(4)), fixed("b", INT(0))]), Err(below));
}

#[test]
fn percentages_that_fit_together_never_stop_a_change_of_the_total() {
    let halves = [fixed("a", PERCENT(50.0)), fixed("b", PERCENT(50.0))];
    let thirds = [fixed("a", PERCENT(33.0)), fixed("b", PERCENT(33.0)), fixed("c", PERCENT(34.0))];
    for total in 0..200 {
        for subsets in [&halves[..], &thirds[..]] {
            let all = allocate(AllocationMode::Shares, Some(total), subsets).unwrap();
            assert_eq!(sums(&all), i64::from(total), "{total} {all:?}");
            for (subset, replicas) in subsets.iter().zip(&all) {
                let Some(IntOrPercent::Percent(percent)) = subset.fixed else { panic!() };
                assert!((f64::from(*replicas) - percent * f64::from(total) / 100.0).abs() < 1.0, "{total} {all:?}");
            }
        }
    }
    let above = [fixed("a", PERCENT(60.0)), fixed("b", PERCENT(60.0))];
    assert!(allocate(AllocationMode::Shares, Some(10), &above).is_err());
}

#[test]
fn without_a_total_every_subset_needs_a_number() {
    let given = |subsets: &[AllocationSubset]| allocate(AllocationMode::Shares, None, subsets);
    assert_eq!(given(&[fixed("a", INT(4)), fixed("b", INT(0))]), Ok(vec![4, 0]));
    let wrong = || Err(AllocationError::NoTotal { subset: "b".into() });
    assert_eq!(given(&[fixed("a", INT(4)), named("b")]), wrong());
    assert_eq!(given(&[fixed("a", INT(4)), fixed("b", PERCENT(5.0))]), wrong());
    assert!(allocate(AllocationMode::Bounds, None, &[named("a")]).is_err());
}

#[test]
fn minimums_in_order_then_maximums_in_order() {
    let subsets = [bound("a", 1, 3), bound("b", 2, 4), bound("c", 0, None)];
    for (total, want) in
        [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 2, 0]), (6, [3, 3, 0]), (7, [3, 4, 0]), (9, [3, 4, 2])]
    {
        assert_eq!(allocate(AllocationMode::Bounds, Some(total), &subsets), Ok(want.to_vec()), "{total}");
    }
    let odd = [bound("a", i32::MAX, i32::MAX), bound("b", -4, -2), bound("c", 0, None)];
    assert_eq!(allocate(AllocationMode::Bounds, Some(9), &odd), Ok(vec![9, 0, 0]));
}

#[test]
fn adaptive_takes_from_a_full_subset_what_is_not_ready() {
    let first = AllocationSubset { current: 5, ready: 2, is_schedulable: false, ..bound("a", 0, 5) };
    let second = AllocationSubset { current: 1, ready: 1, ..bound("b", 0, None) };
    let given = |subsets: &[AllocationSubset]| allocate(AllocationMode::Adaptive, Some(6), subsets).unwrap();
    assert_eq!(given(&[first.clone(), second.clone()]), [2, 4]);
    let at_least = AllocationSubset { min: Some(INT(3)), ..first.clone() };
    assert_eq!(given(&[at_least, second]), [3, 3], "its minimum stays");
    let full = AllocationSubset { is_schedulable: false, ..bound("b", 0, None) };
    assert_eq!(given(&[first, full]), [2, 0], "with no place anywhere the rest waits");
}

#[test]
fn edge_d8_ready_pods_are_not_moved_when_a_full_subset_recovers() {
    let first = AllocationSubset { current: 2, ready: 2, ..bound("a", 0, 5) };
    let second = AllocationSubset { current: 4, ready: 4, ..bound("b", 0, None) };
    let given = |total: i32| allocate(AllocationMode::Adaptive, Some(total), &[first.clone(), second.clone()]).unwrap();
    assert_eq!(given(6), [2, 4]);
    assert_eq!(given(8), [4, 4], "new ones go to the first again");
    assert_eq!(given(5), [2, 3]);
}

#[test]
fn edge_d8_ready_pods_above_one_without_a_place_stay_while_the_total_lasts() {
    let full = |ready: i32, below_ready: i32| AllocationSubset {
        current: ready + below_ready,
        ready,
        below_ready,
        is_schedulable: false,
        ..bound("a", 0, 5)
    };
    let open = |ready: i32, below_ready: i32| AllocationSubset { is_schedulable: true, ..full(ready, below_ready) };
    let other = |ready: i32| AllocationSubset { current: ready, ready, ..bound("b", 0, None) };
    for (what, total, first, second, wanted) in [
        ("web-0 has no place; web-1 and web-2 are ready", 3, full(2, 1), other(0), [3, 0]),
        ("web-2 of three is the only one", 6, full(1, 2), other(2), [3, 3]),
        ("nothing is ready above the one", 3, full(2, 0), other(0), [2, 1]),
        ("its maximum counts first", 8, full(2, 4), other(0), [5, 3]),
        ("web-0 is down for a moment where there are places", 5, other(2), open(2, 1), [2, 3]),
        ("one ready Pod goes anyway: the one that costs five", 6, full(1, 4), other(5), [1, 5]),
        ("the same, and then it is gone", 6, full(0, 0), other(5), [0, 6]),
        ("three of the five go anyway", 2, full(2, 1), other(3), [2, 0]),
    ] {
        let all = allocate(AllocationMode::Adaptive, Some(total), &[first, second]);
        assert_eq!(all, Ok(wanted.to_vec()), "{what}");
    }
    // A minimum that the total does not reach costs no ready Pod.
    let second = AllocationSubset { min: Some(INT(3)), ..other(1) };
    let all = allocate(AllocationMode::Adaptive, Some(4), &[full(2, 1), second]);
    assert_eq!(all, Ok(vec![3, 1]));
}

#[test]
fn reserving_makes_up_elsewhere_for_what_finds_no_place() {
    let first = AllocationSubset { current: 5, ready: 2, reserved: 3, is_schedulable: false, ..bound("a", 0, 5) };
    let second = AllocationSubset { current: 1, ready: 1, ..bound("b", 0, None) };
    let given =
        |total: i32, subsets: &[AllocationSubset]| allocate(AllocationMode::Reserving, Some(total), subsets).unwrap();
    let both = [first.clone(), second.clone()];
    assert_eq!(given(6, &both), [5, 4], "three wait, and three run elsewhere for them");
    assert_eq!(given(3, &both), [3, 1], "no more wait than would run there");
    assert_eq!(given(0, &both), [0, 0]);
    let recovered = [AllocationSubset { ready: 5, reserved: 0, is_schedulable: true, ..first }, second];
    assert_eq!(given(6, &recovered), [5, 1], "those for the time being go again");
    let third = AllocationSubset { current: 4, ready: 0, reserved: 4, is_schedulable: false, ..bound("b", 0, None) };
    assert_eq!(given(6, &[both[0].clone(), third, bound("c", 0, None)]), [5, 4, 4], "they stay where they are of use");
}

#[test]
fn reserving_takes_nothing_away_for_pods_that_have_not_run_yet() {
    let given =
        |total: i32, subsets: &[AllocationSubset]| allocate(AllocationMode::Reserving, Some(total), subsets).unwrap();
    let recovered = AllocationSubset { current: 3, ready: 3, is_on_trial: true, ..bound("a", 0, Some(6)) };
    let other = AllocationSubset { current: 7, ready: 7, ..bound("b", 0, None) };
    assert_eq!(given(10, &[recovered.clone(), other.clone()]), [6, 7]);
    assert_eq!(given(10, &[AllocationSubset { is_on_trial: false, ..recovered }, other.clone()]), [6, 4]);
    let new = AllocationSubset { is_on_trial: true, ..bound("c", 0, None) };
    assert_eq!(given(7, &[other.clone(), new.clone()]), [7, 0], "it gets none that nobody needs");
    let full = AllocationSubset { reserved: 5, ready: 2, is_schedulable: false, ..other };
    assert_eq!(given(7, &[full.clone(), new.clone()]), [7, 5]);
    let tried = AllocationSubset { current: 5, reserved: 5, is_schedulable: false, ..new };
    assert_eq!(given(7, &[full, tried]), [7, 5], "they stay while they are tried");
}

#[test]
fn shortfall_reservation_never_shrinks_a_subset_below_its_minimum() {
    let first = AllocationSubset { current: 1, reserved: 1, is_schedulable: false, ..bound("a", 3, 5) };
    let all = allocate(AllocationMode::Reserving, Some(6), &[first, bound("b", 0, None)]).unwrap();
    assert_eq!(all, [3, 6]);
}

#[test]
fn the_next_pod_goes_to_the_first_subset_with_a_place() {
    let places = |is_schedulable: bool| [(2, Some(2), true), (0, Some(1), is_schedulable), (7, None, true)];
    assert_eq!((next_place(places(true)), next_place(places(false))), (Some(1), Some(2)));
    assert_eq!(next_place([(2, Some(2), true), (0, None, false), (0, Some(-1), true)]), None);
}

/// The fewest moves that equal shares can be had with: by trying all ways to give away what cannot be divided.
fn fewest_moves(total: i32, current: &[i32]) -> i64 {
    let count = current.len();
    let each = total / i32::try_from(count).unwrap();
    let more = u32::try_from(total % i32::try_from(count).unwrap()).unwrap();
    let moves = |set: u32| -> i64 {
        let one = |(i, now): (usize, &i32)| i64::from((each + i32::from((set >> i) & 1 == 1) - now).abs());
        current.iter().enumerate().map(one).sum()
    };
    (0..1_u32 << count).filter(|set| set.count_ones() == more).map(moves).min().unwrap()
}

fn any_subset() -> impl Strategy<Value = AllocationSubset> {
    let value = prop_oneof![(0..40_i32).prop_map(INT), (0..=100_i32).prop_map(|p| PERCENT(f64::from(p)))];
    let bounds = (proptest::option::of(value.clone()), proptest::option::of(value));
    let how = (any::<bool>(), any::<bool>());
    (bounds, 0..40_i32, (0..40_i32, 0..40_i32), 0..40_i32, how).prop_map(
        |((min, max), current, (ready, below_ready), reserved, (ok, is_on_trial))| {
            let (ready, reserved) =
                (ready.min(current), if ok { 0 } else { reserved.min(current - ready.min(current)) });
            let below_ready = if ready == 0 { 0 } else { below_ready.min(current - ready) };
            AllocationSubset {
                min,
                max,
                current,
                ready,
                below_ready,
                reserved,
                is_schedulable: ok,
                is_on_trial,
                ..AllocationSubset::default()
            }
        },
    )
}

/// Subsets with names, the last of them without limits and with places.
fn any_subsets() -> impl Strategy<Value = Vec<AllocationSubset>> {
    proptest::collection::vec(any_subset(), 1..6).prop_map(|mut all| {
        for (index, subset) in all.iter_mut().enumerate() {
            subset.name = format!("s{index}");
        }
        if let Some(last) = all.last_mut() {
            *last = AllocationSubset {
                min: None,
                max: None,
                is_schedulable: true,
                is_on_trial: false,
                reserved: 0,
                ..last.clone()
            };
        }
        all
    })
}

proptest! {
    #[test]
    fn shares_add_up_and_move_the_fewest_pods(total in 0..60_i32, current in proptest::collection::vec(0..30_i32, 1..7)) {
        let subsets: Vec<_> = current.iter().enumerate().map(|(i, now)| has(&format!("s{i}"), *now)).collect();
        let all = allocate(AllocationMode::Shares, Some(total), &subsets).unwrap();
        prop_assert_eq!(sums(&all), i64::from(total));
        prop_assert!(all.iter().max().unwrap() - all.iter().min().unwrap() <= 1);
        let moves: i64 = all.iter().zip(&current).map(|(to, now)| i64::from((to - now).abs())).sum();
        prop_assert_eq!(moves, fewest_moves(total, &current));
        // What has been allocated stays.
        let again: Vec<_> = all.iter().enumerate().map(|(i, now)| has(&format!("s{i}"), *now)).collect();
        prop_assert_eq!(allocate(AllocationMode::Shares, Some(total), &again).unwrap(), all);
    }

    #[test]
    fn bounds_are_kept_and_everything_is_allocated(total in 0..120_i32, subsets in any_subsets()) {
        let all = allocate(AllocationMode::Bounds, Some(total), &subsets).unwrap();
        prop_assert_eq!(sums(&all), i64::from(total));
        let limits: Vec<(i32, i32)> = subsets.iter().map(|subset| bounds(subset, total)).collect();
        let minimums: i64 = limits.iter().map(|(min, _)| i64::from(*min)).sum();
        for (replicas, (min, max)) in all.iter().zip(&limits) {
            prop_assert!(*replicas >= 0 && replicas <= max);
            prop_assert!(replicas >= min || minimums > i64::from(total));
        }
        let is_part = |value: &Option<IntOrPercent>| matches!(value, Some(IntOrPercent::Percent(_)));
        if !subsets.iter().any(|subset| is_part(&subset.min) || is_part(&subset.max)) {
            let more = allocate(AllocationMode::Bounds, Some(total + 1), &subsets).unwrap();
            prop_assert!(more.iter().zip(&all).all(|(more, before)| more >= before), "one more moves none");
        }
    }

    #[test]
    fn adaptive_moves_nothing_that_is_ready(total in 0..160_i32, subsets in any_subsets()) {
        let all = allocate(AllocationMode::Adaptive, Some(total), &subsets).unwrap();
        prop_assert_eq!(sums(&all), i64::from(total), "the last subset has no limit");
        let limits: Vec<(i32, i32)> = subsets.iter().map(|subset| bounds(subset, total)).collect();
        let most = |subset: &AllocationSubset| subset.ready + subset.below_ready;
        let kept = subsets.iter().zip(&limits).map(|(s, (min, max))| i64::from(most(s).min(*max).max(*min)));
        let lasts = kept.sum::<i64>() <= i64::from(total);
        for ((replicas, subset), (min, max)) in all.iter().zip(&subsets).zip(&limits) {
            prop_assert!(*replicas >= 0 && replicas <= max);
            if lasts {
                prop_assert!(*replicas >= most(subset).min(*max));
            }
            if !subset.is_schedulable {
                prop_assert!(*replicas <= most(subset).max(*min));
            }
        }
    }

    #[test]
    fn reserving_has_the_total_running_and_no_more_waiting_than_before(total in 0..160_i32, subsets in any_subsets()) {
        let all = allocate(AllocationMode::Reserving, Some(total), &subsets).unwrap();
        let running: i64 = all.iter().zip(&subsets).map(|(n, s)| i64::from((*n).min(capacity(s)))).sum();
        prop_assert_eq!(running, i64::from(total));
        let limits: Vec<(i32, i32)> = subsets.iter().map(|subset| bounds(subset, total)).collect();
        for ((replicas, subset), (min, max)) in all.iter().zip(&subsets).zip(&limits) {
            prop_assert!(*replicas >= 0 && replicas <= max);
            prop_assert!(is_healthy(subset) || *replicas <= subset.current.max(*min));
        }
    }

    #[test]
    fn one_by_one_comes_to_the_same_as_all_at_once(total in 0..60_i32, limits in proptest::collection::vec(proptest::option::of(0..20_i32), 1..6)) {
        let mut there = vec![0; limits.len()];
        for _ in 0..total {
            let places = there.iter().zip(&limits).map(|(there, max)| (*there, *max, true));
            if let Some(next) = next_place(places) {
                there[next] += 1;
            }
        }
        let bounds: Vec<(i32, i32)> = limits.iter().map(|max| (0, max.unwrap_or(i32::MAX))).collect();
        prop_assert_eq!(there, in_order(total, &bounds));
    }

    #[test]
    fn no_number_overflows(total in any::<i32>(), number in any::<i32>(), percent in any::<f64>(), current in any::<i32>()) {
        let of = |value: IntOrPercent| AllocationSubset {
            fixed: Some(value), min: Some(value), max: Some(value), current, ready: current, below_ready: number, reserved: number, ..named("a")
        };
        for mode in [AllocationMode::Shares, AllocationMode::Bounds, AllocationMode::Adaptive, AllocationMode::Reserving] {
            for subsets in [[of(INT(number)), of(PERCENT(percent))], [has("a", current), of(INT(number))]] {
                for schedulable in [true, false] {
                    let subsets = subsets.clone().map(|s| AllocationSubset { is_schedulable: schedulable, ..s });
                    if let Ok(all) = allocate(mode, Some(total), &subsets) {
                        prop_assert!(all.iter().all(|replicas| *replicas >= 0));
                    }
                }
            }
        }
    }
}
