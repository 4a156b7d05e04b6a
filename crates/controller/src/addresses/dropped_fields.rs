//! Status fields that the CRD in the cluster drops.
//!
//! The apiserver prunes fields that a CRD does not define. After an upgrade the CRD may be older than the controller.
//! In: the status that the controller sent, and the status that the apiserver stored. Out: the fields that differ. The
//! controller can't work without its journal, `lastHolder` and `created`. It works without any other field, and
//! reports that the field is dropped.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

/// The maximum number of fields in a message.
const NAMED_MAX: usize = 5;

/// Fields of a status, such as `addresses.since`, that the apiserver drops because the CRD lacks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedFields(BTreeSet<String>);

impl DroppedFields {
    /// The fields in which two statuses differ. The path of a list element has no index.
    pub fn between(sent: &Value, stored: &Value) -> Self {
        let mut dropped = Self::default();
        dropped.compare("", sent, stored);
        dropped
    }

    /// Whether the CRD keeps all fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the CRD drops this field.
    pub fn contain(&self, field: &str) -> bool {
        self.0.contains(field)
    }

    /// Whether two statuses differ in these fields only.
    pub fn explain(&self, wanted: &Value, stored: &Value) -> bool {
        Self::between(wanted, stored).0.is_subset(&self.0)
    }

    fn compare(&mut self, path: &str, sent: &Value, stored: &Value) {
        match (sent, stored) {
            (Value::Object(sent), Value::Object(stored)) => {
                let names: BTreeSet<_> = sent.keys().chain(stored.keys()).collect();
                for name in names {
                    // A key that is an address is not a field name.
                    let field = if name.parse::<IpAddr>().is_ok() { "*" } else { name.as_str() };
                    let path = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
                    match (sent.get(name), stored.get(name)) {
                        (Some(sent), Some(stored)) => self.compare(&path, sent, stored),
                        _ => _ = self.0.insert(path),
                    }
                }
            }
            (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
                sent.iter().zip(stored).for_each(|(sent, stored)| self.compare(path, sent, stored));
            }
            _ if sent == stored => {}
            _ => _ = self.0.insert(path.to_owned()),
        }
    }
}

impl std::fmt::Display for DroppedFields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<_> = self.0.iter().take(NAMED_MAX).map(|field| format!("status.{field}")).collect();
        write!(f, "{}", named.join(", "))?;
        match self.0.len().checked_sub(NAMED_MAX) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dropped_fields_are_named_without_map_keys_and_indices() {
        let sent = json!({
            "error": "no", "ips": {"203.0.113.1": {"state": "active", "error": "no"}},
            "addresses": [{"address": "a", "since": 1}, {"address": "b", "since": 2}],
        });
        let stored = json!({
            "error": "no", "ips": {"203.0.113.1": {"state": "active"}},
            "addresses": [{"address": "a"}, {"address": "b"}],
        });
        let dropped = DroppedFields::between(&sent, &stored);
        assert_eq!(dropped.to_string(), "status.addresses.since, status.ips.*.error");
        assert!(DroppedFields::between(&sent, &sent).is_empty());
    }

    #[test]
    fn a_difference_in_any_other_field_is_not_explained() {
        let stored = json!({"addresses": [{"address": "a"}]});
        let dropped = DroppedFields::between(&json!({"addresses": [{"address": "a", "since": 1}]}), &stored);
        assert!(dropped.explain(&json!({"addresses": [{"address": "a", "since": 2}]}), &stored));
        assert!(!dropped.explain(&json!({"addresses": [{"address": "b", "since": 2}]}), &stored));
        assert!(!dropped.explain(&json!({"addresses": []}), &stored));
        assert!(!dropped.explain(&json!({"addresses": [{"address": "a"}], "error": "no"}), &stored));
    }
}
