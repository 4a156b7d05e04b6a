//! Changes that passed the checks of their calls, and their operations.
//!
//! Out: an operation in the API's format. This module never changes the state: `operations` carries changes out.

use serde_json::{Value, json};

use super::problem::Problem;
use super::resources::Interface;

/// An accepted change.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) order: Order,
    pub(super) fails_late: bool,
    pub(super) outcome: Option<Result<(), Problem>>,
}

/// The change that an operation makes.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Finish a write to an interface. The interface already shows the new configuration.
    Write {
        interface: String,
        before: Box<Interface>,
        /// The VM of the interface.
        vm: String,
        /// The addresses that the write attaches.
        coming: Vec<String>,
    },
    /// Assign an IP to a new address.
    Create { address: String },
    /// Delete an address.
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
