//! The conditions of an object, in the form that kstatus expects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use plan::{ConditionType, Reason};

use super::limits::{MESSAGE_MAX, cut};

/// Builds the conditions of an object. A condition keeps its `lastTransitionTime` if its status is the same as in
/// `present`.
pub(crate) fn conditions(
    present: &[Condition],
    reason: Reason,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    let message = cut(message, MESSAGE_MAX);
    let condition = |type_: ConditionType| {
        let (kind, status) = (type_.name(), if type_ == reason.condition() { "True" } else { "False" });
        let before = present.iter().find(|condition| condition.type_ == kind && condition.status == status);
        Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.name().into(),
            message: message.clone(),
            observed_generation: generation,
            last_transition_time: before
                .map_or_else(|| now.clone(), |before| before.last_transition_time.clone()),
        }
    };
    ConditionType::ALL.into_iter().map(condition).collect()
}
