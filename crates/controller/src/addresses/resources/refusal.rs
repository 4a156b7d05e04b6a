//! Why an object is not acted on.

/// Why an object is not acted on, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word for scripts.
    pub reason: &'static str,
    /// A sentence for a person.
    pub message: String,
}

impl Refusal {
    /// Whether it is for want of a node that says which account is meant.
    pub(crate) fn lacks_scope(&self) -> bool {
        [NO_NODES, UNSUPPORTED_NODE].contains(&self.reason)
    }
}

pub(crate) const NO_NODES: &str = "NoNodes";

pub(crate) const UNSUPPORTED_NODE: &str = "UnsupportedNode";
