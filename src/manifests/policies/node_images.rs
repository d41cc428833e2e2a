//! The status of NodeImages: a daemon reports what its own node pulls.

use serde_json::Value;

pub(super) fn spec() -> Value {
    super::reports_of_node("nodeimages", "NodeImage", "images")
}
