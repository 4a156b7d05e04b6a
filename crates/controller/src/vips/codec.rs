//! The annotation on a Cluster with the state of its VIPs: its type, and how to read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The state of one VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// The name of a `VipReason`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// Parses the annotation, which maps roles to states. An unreadable annotation counts as empty.
pub fn words(text: Option<&str>) -> BTreeMap<String, Words> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
