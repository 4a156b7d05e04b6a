//! Conditions that kstatus and people understand.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::limits::{MESSAGE_MAX, cut};

/// How an object stands as a whole. The order is that of urgency: the worst address speaks for the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Everything is where it should be.
    Ready,
    /// Something is on its way or waits for a node, and goes on by itself.
    Reconciling,
    /// A person has to do something.
    Stalled,
}

/// The conditions of an object, given those it has: what did not change keeps its time.
pub(crate) fn conditions(
    present: &[Condition],
    severity: Severity,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    let message = cut(message, MESSAGE_MAX);
    let states = [
        ("Ready", severity == Severity::Ready),
        ("Reconciling", severity == Severity::Reconciling),
        ("Stalled", severity == Severity::Stalled),
    ];
    let condition = |(kind, holds): (&str, bool)| {
        let status = if holds { "True" } else { "False" };
        let before = present.iter().find(|condition| condition.type_ == kind && condition.status == status);
        Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.clone(),
            observed_generation: generation,
            last_transition_time: before
                .map_or_else(|| now.clone(), |before| before.last_transition_time.clone()),
        }
    };
    states.into_iter().map(condition).collect()
}
