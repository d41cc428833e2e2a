//! PodProbeMarkers: which Pods are probed ([`selection`]), what is probed on a node ([`entries`]) and how much of it
//! ([`budget`]), which probes may run at a time ([`slots`]), how the daemon counts results ([`node`]), what Pods carry of them
//! ([`marks`]), what no probe writes ([`reserved`]), and what a PodProbeMarker says of itself ([`report`]).

pub mod budget;
pub mod entries;
pub mod marks;
pub mod node;
pub mod report;
pub mod reserved;
pub mod selection;
pub mod slots;

use std::time::Duration;

use crate::{api::apps::pod_probe_marker::PodProbeMarker, k8s::pod::PodView};

/// The longest message of a result, in bytes.
pub const MAX_MESSAGE: usize = 1024;

/// The longest timeout of a probe. One of a stored object that is longer counts as this.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// State of a probe that succeeds.
pub const SUCCEEDED: &str = "Succeeded";
/// State of a probe that fails.
pub const FAILED: &str = "Failed";
/// State of a probe of which nothing is known.
pub const UNKNOWN: &str = "Unknown";

/// The name that a probe has in a NodePodProbe.
pub fn full_name(marker: &str, probe: &str) -> String {
    format!("{marker}#{probe}")
}

/// The PodProbeMarker and the probe that such a name means. Names of probes have no '#', those of objects neither.
pub fn parts_of(full: &str) -> Option<(&str, &str)> {
    full.split_once('#')
}

/// Whether a Pod can be probed: it has a node, its init containers are done, and it is there to stay.
pub fn is_eligible(pod: &PodView) -> bool {
    pod.is_active() && !pod.node_name.is_empty() && pod.condition_is_true("Initialized")
}

/// Name of a PodProbeMarker.
pub fn name_of(marker: &PodProbeMarker) -> &str {
    marker.metadata.name.as_deref().unwrap_or_default()
}

/// Text that people can read and an object can hold: no control characters but tab and line ends, at most
/// [`MAX_MESSAGE`] bytes, cut at a character.
pub fn readable(output: &[u8]) -> String {
    // More than this cannot fit, whatever it is.
    let text = String::from_utf8_lossy(&output[..output.len().min(4 * MAX_MESSAGE)]);
    let mut message = String::new();
    for c in text.chars() {
        let c = if c.is_control() && !"\t\n\r".contains(c) { char::REPLACEMENT_CHARACTER } else { c };
        if message.len() + c.len_utf8() > MAX_MESSAGE {
            break;
        }
        message.push(c);
    }
    message
}

#[cfg(test)]
mod tests;
