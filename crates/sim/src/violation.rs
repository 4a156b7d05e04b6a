//! A violated invariant.

use std::fmt;

/// A violation that a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant, such as `I3`. `judge` lists all invariants.
    pub invariant: &'static str,
    /// What happened, to which object.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}
