//! Why the controller can't act on an object.

use plan::Reason;

/// Why the controller can't act on an object, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason in the conditions.
    pub reason: Reason,
    /// The message in the conditions.
    pub message: String,
}

impl Refusal {
    /// Whether the account is unknown because no matching node has a supported providerID.
    pub(crate) fn lacks_scope(&self) -> bool {
        matches!(self.reason, Reason::NoNodes | Reason::UnsupportedNode)
    }
}
