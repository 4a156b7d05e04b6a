//! Why an object is not acted on.

use plan::Reason;

/// Why an object is not acted on, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason of its conditions.
    pub reason: Reason,
    /// A sentence for a person.
    pub message: String,
}

impl Refusal {
    /// Whether it is for want of a node that says which account is meant.
    pub(crate) fn lacks_scope(&self) -> bool {
        matches!(self.reason, Reason::NoNodes | Reason::UnsupportedNode)
    }
}
