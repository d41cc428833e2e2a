//! Numbers of a roll-out: what `maxUnavailable`, `maxSurge` and `partition` mean for so many Pods, in controllers and in admission.
//! A kind whose numbers OpenKruise rounds in another way, as DaemonSet, SidecarSet and WorkloadRestart, does so in its `spec.rs`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::k8s::int_or_percent::{IntOrPercent, Round};
pub use crate::k8s::invalid::Invalid;

/// `maxUnavailable` of an update where the spec says nothing and the kind has no default of its own.
pub const DEFAULT_MAX_UNAVAILABLE: IntOrPercent = IntOrPercent::Percent(20.0);

/// A number of the spec, or its default. `field` is its path below `spec`.
///
/// # Errors
/// Naming the field and its value, if it is neither a number nor a percentage.
pub fn number(field: &str, value: Option<&IntOrString>, default: IntOrPercent) -> Result<IntOrPercent, Invalid> {
    match value {
        Some(value) => IntOrPercent::of(value).map_err(|error| Invalid(format!("spec.{field}: {error}"))),
        None => Ok(default),
    }
}

/// How many Pods stay on old revisions.
///
/// A percentage below 100 leaves at least one Pod to be updated, unless there is only one.
pub fn kept_old(partition: IntOrPercent, replicas: i32) -> i32 {
    let kept = partition.resolve(replicas, Round::Up);
    let kept = match partition {
        IntOrPercent::Percent(percent) if kept == replicas && replicas > 1 && percent < 100.0 => replicas - 1,
        IntOrPercent::Percent(_) | IntOrPercent::Int(_) => kept,
    };
    kept.clamp(0, replicas.max(0))
}

/// Whether Pods stay on old revisions, if there are any.
pub fn keeps_old(partition: IntOrPercent) -> bool {
    kept_old(partition, i32::MAX) > 0
}

/// `maxUnavailable` and `maxSurge` as numbers. Without surge a part of a Pod may be unavailable, with surge it may not; a
/// paused roll-out has no surge.
pub fn limits(max_unavailable: IntOrPercent, max_surge: IntOrPercent, replicas: i32, paused: bool) -> (i32, i32) {
    let surge = if paused { 0 } else { self::surge(max_surge, replicas) };
    let round = if surge == 0 { Round::Up } else { Round::Down };
    (max_unavailable.resolve(replicas, round), surge)
}

/// `maxSurge` as a number: a part of a Pod is one.
pub fn surge(max_surge: IntOrPercent, replicas: i32) -> i32 {
    max_surge.resolve(replicas, Round::Up)
}

/// How many Pods may be unavailable while Pods are added: a part of a Pod is one.
pub fn scale_limit(max_unavailable: IntOrPercent, replicas: i32) -> i32 {
    max_unavailable.resolve(replicas, Round::Up)
}

/// `maxUnavailable` of a kind without surge whose roll-out never comes to a stop because of it: at least 1, a part of a
/// Pod is none.
pub fn at_least_one(max_unavailable: IntOrPercent, replicas: i32) -> i32 {
    max_unavailable.resolve(replicas, Round::Down).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_below_100_leaves_one_pod_to_be_updated() {
        let percent = IntOrPercent::Percent;
        for (partition, replicas, kept) in [
            (IntOrPercent::Int(3), 5, 3),
            (IntOrPercent::Int(9), 5, 5),
            (IntOrPercent::Int(-1), 5, 0),
            (percent(99.0), 5, 4),
            (percent(100.0), 5, 5),
            (percent(99.0), 1, 1),
            (percent(30.0), 0, 0),
        ] {
            assert_eq!(kept_old(partition, replicas), kept, "{partition:?} of {replicas}");
        }
    }

    #[test]
    fn a_partition_is_one_although_there_is_no_pod_that_it_could_keep() {
        let percent = IntOrPercent::Percent;
        for (partition, keeps) in [
            (IntOrPercent::Int(0), false),
            (IntOrPercent::Int(-1), false),
            (IntOrPercent::Int(1), true),
            (percent(0.0), false),
            (percent(0.1), true),
            (percent(100.0), true),
        ] {
            assert_eq!((keeps_old(partition), kept_old(partition, 0)), (keeps, 0), "{partition:?}");
        }
    }

    #[test]
    fn without_surge_a_part_of_a_pod_may_be_unavailable() {
        let percent = IntOrPercent::Percent;
        assert_eq!(limits(DEFAULT_MAX_UNAVAILABLE, IntOrPercent::Int(0), 3, false), (1, 0));
        assert_eq!(limits(DEFAULT_MAX_UNAVAILABLE, percent(20.0), 3, false), (0, 1));
        assert_eq!(limits(DEFAULT_MAX_UNAVAILABLE, percent(20.0), 3, true), (1, 0), "paused");
        assert_eq!(
            (surge(percent(1.0), 3), scale_limit(percent(1.0), 3), scale_limit(IntOrPercent::Int(0), 3)),
            (1, 1, 0)
        );
        assert_eq!([1, 9, 10].map(|replicas| at_least_one(DEFAULT_MAX_UNAVAILABLE, replicas)), [1, 1, 2]);
    }

    #[test]
    fn a_number_that_cannot_be_read_is_named() {
        let value = IntOrString::String("many".into());
        let error = number("updateStrategy.partition", Some(&value), IntOrPercent::Int(0)).unwrap_err();
        assert!(error.to_string().starts_with("spec.updateStrategy.partition: \"many\""), "{error}");
        assert_eq!(number("x", None, IntOrPercent::Int(4)), Ok(IntOrPercent::Int(4)));
    }
}
