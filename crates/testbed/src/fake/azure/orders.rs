//! Orders that passed the checks at the door, and the operations that they became.
//!
//! Out: an operation in the API's own form. It never changes anything: `operations` carries orders out.

use serde_json::{Value, json};

use super::problem::Problem;
use super::resources::Interface;

/// A change that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) order: Order,
    pub(super) fails_late: bool,
    pub(super) outcome: Option<Result<(), Problem>>,
}

/// What an operation is to do.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Make an interface what it already says that it is.
    Write {
        interface: String,
        before: Box<Interface>,
        /// Whose interface it is.
        vm: String,
        /// The addresses that come onto it.
        coming: Vec<String>,
    },
    /// Give a new address its number.
    Create { address: String },
    /// Give an address back.
    Delete { address: String },
}

impl Operation {
    pub(super) fn to_json(&self) -> Value {
        match &self.outcome {
            None => json!({ "status": "InProgress" }),
            Some(Ok(())) => json!({ "status": "Succeeded" }),
            Some(Err(problem)) => json!({ "status": "Failed", "error": problem.to_json() }),
        }
    }
}
