//! Objects that are created at a pace or as fast as it goes, and what their times say.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DynamicObject, PostParams};
use serde_json::Value;

use super::IN_FLIGHT;
use crate::kit::{Build, Test};

/// Creates Pods at a pace, whether the ones before have been answered or not: seconds that each took. Prints them in short, with
/// what the Pods are, so that a slow turn can be seen.
pub(super) async fn at_a_pace(t: &Test, pods: Vec<Value>, pace: u32, what: &str) -> Result<Vec<f64>> {
    let (api, params) = (&t.api("Pod"), &PostParams::default());
    let (start, count) = (tokio::time::Instant::now() + Duration::from_millis(50), pods.len());
    let one = |(index, pod): (usize, Value)| {
        let at = start + Duration::from_secs(1) * u32::try_from(index).unwrap_or_default() / pace;
        async move {
            let object: DynamicObject = serde_json::from_value(pod.with("/apiVersion", "v1"))?;
            tokio::time::sleep_until(at).await;
            let begun = Instant::now();
            api.create(params, &object).await?;
            anyhow::Ok(begun.elapsed().as_secs_f64())
        }
    };
    let times: Vec<f64> =
        stream::iter(pods.into_iter().enumerate()).map(one).buffer_unordered(count.max(1)).try_collect().await?;
    let [p50, p90, max] = [0.5, 0.9, 1.0].map(|share| rank(&times, share) * 1e3);
    println!("{count} Pods {what}, {pace} a second: p50 {p50:.1} ms, p90 {p90:.1} ms, max {max:.0} ms");
    Ok(times)
}

/// The value below which a share of them lies.
pub(super) fn rank(seconds: &[f64], share: f64) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get(((sorted.len() as f64 * share) as usize).min(last)).copied().unwrap_or(f64::NAN)
}

/// Creates objects.
pub(super) async fn store(t: &Test, objects: impl Iterator<Item = Value>) -> Result<()> {
    let make = |object: Value| async move { t.create(object).await.map(drop) };
    stream::iter(objects).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read() {
        let times: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!((rank(&times, 0.5), rank(&times, 0.99), rank(&times, 1.0)), (50.0, 99.0, 99.0));
    }
}
