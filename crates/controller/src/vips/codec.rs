//! The annotation on a Cluster with the state of its VIPs: its type, and how to read it.

use std::collections::BTreeMap;

use plan::VipReason;
use serde::{Deserialize, Serialize};

/// The state of one VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipState {
    /// The name of a `VipReason`.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl VipState {
    /// Whether its reason is one of these.
    pub fn has(&self, reasons: &[VipReason]) -> bool {
        reasons.iter().any(|reason| self.reason == reason.name())
    }
}

/// Parses the annotation, which maps roles to states. An unreadable annotation counts as empty.
pub fn vip_states(text: Option<&str>) -> BTreeMap<String, VipState> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
