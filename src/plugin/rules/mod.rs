//! What the plugin decides and says: functions of the objects it was shown, without I/O and without a clock.

pub mod broadcast;
pub mod cancel;
pub mod cron_job;
pub mod doctor;
pub mod exit;
pub mod foreign;
pub mod history;
pub mod images;
pub mod outcome;
pub mod progress;
pub mod request;
pub mod rollout;
pub mod sidecar_set;
pub mod spread;
pub mod table;
pub mod target;
pub mod timeline;

use serde_json::Value;

/// Reading by JSON pointer; what is not there, or is of another type, reads as nothing.
pub(super) trait JsonPointer {
    fn text(&self, pointer: &str) -> &str;
    fn int(&self, pointer: &str) -> i64;
    fn list(&self, pointer: &str) -> &[Value];
    /// The condition of this type in its status.
    fn condition(&self, type_: &str) -> Option<&Value>;
    /// The condition of this type, if it is True.
    fn true_condition(&self, type_: &str) -> Option<&Value> {
        self.condition(type_).filter(|condition| condition.text("/status") == "True")
    }
}

impl JsonPointer for Value {
    fn text(&self, pointer: &str) -> &str {
        self.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
    fn int(&self, pointer: &str) -> i64 {
        self.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
    }
    fn list(&self, pointer: &str) -> &[Value] {
        self.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    fn condition(&self, type_: &str) -> Option<&Value> {
        self.list("/status/conditions").iter().find(|condition| condition.text("/type") == type_)
    }
}

/// Whether a Pod counts: neither ended nor on its way out.
pub(super) fn is_active(pod: &Value) -> bool {
    !matches!(pod.text("/status/phase"), "Succeeded" | "Failed") && pod.text("/metadata/deletionTimestamp").is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_have_ended_do_not_count() {
        assert!(is_active(&json!({"status": {"phase": "Running"}})));
        for gone in [json!({"status": {"phase": "Failed"}}), json!({"metadata": {"deletionTimestamp": "x"}})] {
            assert!(!is_active(&gone), "{gone}");
        }
    }
}
