//! Conditions of a Cluster about its VIPs, for `kubectl wait` and for Cluster API's availability gates.
//!
//! In: a Cluster with the annotation about its VIPs. Out: the Cluster's list of conditions, in which the controller's
//! conditions repeat the annotation, or none if they already do. It never changes or reorders conditions of others.

use kube::ResourceExt;
use plan::vips::Role;
use plan::{Timestamp, VipReason};
use serde_json::{Value, json};

use super::codec::{VipState, vip_states};
use super::names::STATUS;
use super::watch::Cluster;

/// The limit of Cluster API's CRD for conditions of a Cluster.
const CONDITIONS_MAX: usize = 32;

/// The most characters of a message. Cluster API's CRD allows 10,240 in one version and 32,768 in the other.
const MESSAGE_MAX: usize = 4_096;

/// The API version whose conditions have a severity.
const WITH_SEVERITY: &str = "v1beta1";

/// Whether the conditions of a Cluster repeat its annotation.
pub fn are_current(cluster: &Cluster) -> bool {
    updated(cluster, WITH_SEVERITY, Timestamp::UNIX_EPOCH).is_none()
}

/// The conditions that a Cluster should have, in the format of the API version. Returns none if it already has them.
pub fn updated(cluster: &Cluster, version: &str, now: Timestamp) -> Option<Vec<Value>> {
    let present = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let states = vip_states(cluster.annotations().get(STATUS).map(String::as_str));
    let mut conditions = present.to_vec();
    for role in Role::ALL {
        let (kind, wanted) = (role.condition_type(), states.get(role.name()));
        let place = conditions.iter().position(|condition| condition["type"] == kind);
        match (wanted, place) {
            (None, None) => {}
            (None, Some(place)) => _ = conditions.remove(place),
            (Some(state), None) if conditions.len() < CONDITIONS_MAX => {
                conditions.push(condition(kind, state, None, version, now));
            }
            // The list is full, so this condition is left out. The annotation has the same content.
            (Some(_), None) => {}
            (Some(state), Some(place)) => {
                if !has_state(&conditions[place], state) {
                    conditions[place] = condition(kind, state, Some(&conditions[place]), version, now);
                }
            }
        }
    }
    (conditions != present).then_some(conditions)
}

/// Builds a condition. It keeps `lastTransitionTime` while its status does not change.
fn condition(kind: &str, state: &VipState, before: Option<&Value>, version: &str, now: Timestamp) -> Value {
    let status = status(state);
    let since =
        before.filter(|before| before["status"] == status).map(|before| &before["lastTransitionTime"]);
    let now = plan::whole_seconds(now).to_string();
    let mut condition = json!({
        "type": kind,
        "status": status,
        "reason": state.reason,
        "message": message(state),
        "lastTransitionTime": since.cloned().unwrap_or_else(|| now.into()),
    });
    if version == WITH_SEVERITY && status == "False" {
        let is_in_progress = state.has(&[VipReason::Allocating, VipReason::Releasing]);
        condition["severity"] = if is_in_progress { "Info" } else { "Warning" }.into();
    }
    condition
}

fn has_state(condition: &Value, state: &VipState) -> bool {
    condition["status"] == status(state)
        && condition["reason"] == *state.reason
        && condition["message"] == message(state)
}

fn status(state: &VipState) -> &'static str {
    if state.has(&[VipReason::Assigned]) { "True" } else { "False" }
}

fn message(state: &VipState) -> String {
    state.message.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-18T02:00:00.5Z".parse().unwrap()
    }

    fn cluster(states: Value, conditions: Value) -> Cluster {
        let metadata = json!({"name": "c", "annotations": {STATUS: states.to_string()}});
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": conditions}})).unwrap()
    }

    fn assigned() -> Value {
        json!({"control-plane": {"reason": "Assigned", "message": "10.0.0.1 from pool p"}})
    }

    fn exhausted() -> Value {
        json!({"control-plane": {"reason": "PoolExhausted", "message": "no address is free"}})
    }

    #[test]
    fn v8_an_assigned_vip_has_a_true_condition() {
        let foreign = json!({"type": "Available", "status": "False", "anything": "else"});
        let updated = updated(&cluster(assigned(), json!([foreign])), "v1beta2", now()).unwrap();
        let ours = json!({
            "type": "vip.capi.gorizond.io/ControlPlaneVIPReady",
            "status": "True",
            "reason": "Assigned",
            "message": "10.0.0.1 from pool p",
            "lastTransitionTime": "2026-11-18T02:00:00Z",
        });
        assert_eq!(updated, [foreign, ours]);
        let settled = cluster(assigned(), updated.into());
        assert!(are_current(&settled), "no further write is needed");
    }

    #[test]
    fn v8_false_conditions_of_v1beta1_have_a_severity() {
        let severity = |states: Value, version: &str| {
            updated(&cluster(states, json!([])), version, now()).unwrap()[0]["severity"].clone()
        };
        assert_eq!(severity(exhausted(), "v1beta1"), "Warning");
        let waiting = json!({"ingress": {"reason": "Allocating", "message": "waiting"}});
        assert_eq!(severity(waiting, "v1beta1"), "Info");
        assert_eq!(severity(assigned(), "v1beta1"), Value::Null);
        assert_eq!(severity(exhausted(), "v1beta2"), Value::Null);
    }

    #[test]
    fn v8_a_condition_keeps_its_transition_time_with_its_status() {
        let first = updated(&cluster(exhausted(), json!([])), "v1beta2", Timestamp::UNIX_EPOCH).unwrap();
        let no_pool = json!({"control-plane": {"reason": "NoPool", "message": "no pool"}});
        let second = updated(&cluster(no_pool, first.into()), "v1beta2", now()).unwrap();
        assert_eq!((&second[0]["reason"], &second[0]["status"]), (&json!("NoPool"), &json!("False")));
        assert_eq!(second[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        let third = updated(&cluster(assigned(), second.into()), "v1beta2", now()).unwrap();
        assert_eq!(third[0]["lastTransitionTime"], "2026-11-18T02:00:00Z");
    }

    #[test]
    fn v8_a_condition_is_removed_with_its_annotation() {
        let conditions = updated(&cluster(assigned(), json!([])), "v1beta2", now()).unwrap();
        assert_eq!(updated(&cluster(json!({}), conditions.into()), "v1beta2", now()), Some(Vec::new()));
        let foreign = json!([{"type": "Available", "status": "True"}]);
        assert!(are_current(&cluster(json!({}), foreign)));
    }

    #[test]
    fn conditions_stay_within_the_limits_of_the_crd() {
        let full: Vec<_> = (0..CONDITIONS_MAX).map(|number| json!({"type": number.to_string()})).collect();
        assert!(are_current(&cluster(assigned(), full.into())), "a full list must not cause retries");
        let long = json!({"control-plane": {"reason": "Failed", "message": "ä".repeat(20_000)}});
        let conditions = updated(&cluster(long.clone(), json!([])), "v1beta1", now()).unwrap();
        assert_eq!(conditions[0]["message"].as_str().unwrap().chars().count(), MESSAGE_MAX);
        assert!(are_current(&cluster(long, conditions.into())));
    }
}
