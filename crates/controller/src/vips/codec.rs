//! The annotation on a Cluster that reports how its VIPs stand, both directions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is said of one VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// What an annotation says; nothing where it can't be read.
pub fn words(text: Option<&str>) -> BTreeMap<String, Words> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
