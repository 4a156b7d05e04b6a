//! The errors of all drivers.

use std::time::Duration;

use plan::{Address, VmId};

/// The driver did not send a request yet. The caller can try again after `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent yet: retry in {:.1} s", wait.as_secs_f64())]
pub struct NotSent {
    /// How long to wait.
    pub wait: Duration,
}

/// Why a call to a provider failed. The variant says whether a retry can help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The address or the VM does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The state at the provider is not the one that the caller expected, or another change is in flight. Read again
    /// and decide again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The provider rejected the call because of its rate limit. Nothing was changed. Try again after `retry_after`.
    #[error("rate limited for {} s: {message}", retry_after.as_secs())]
    RateLimited {
        /// How long to wait.
        retry_after: Duration,
        /// The provider's error message.
        message: String,
    },
    /// The driver did not send the request, for example because the controller's own rate limit is used up.
    #[error("{0}")]
    NotSent(NotSent),
    /// The credentials do not allow the call. A retry helps only after somebody has changed them.
    #[error("permission {permission} is missing: {message}")]
    Denied {
        /// The missing permission, as the provider names it.
        permission: String,
        /// The provider's error message.
        message: String,
    },
    /// The request is invalid. A retry does not help.
    #[error("refused: {0}")]
    Invalid(String),
    /// There was no response, or an unexpected one. The call may have taken effect.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// The error for detaching an address from a VM while another VM holds the address.
pub(crate) fn not_held_by(address: Address, vm: &VmId) -> DriverError {
    DriverError::Conflict(format!("{address} is attached to another VM, not to {vm}"))
}

/// Fails unless an address has the tag that says which object it was created for.
pub(crate) fn check_tag(address: Address, found: Option<&str>, tag: &str) -> Result<(), DriverError> {
    if found == Some(tag) || plan::sabotaged!(ReleasedWithoutMark) {
        return Ok(());
    }
    Err(DriverError::Conflict(format!("{address} does not have the tag {tag}, so it was not released")))
}

impl DriverError {
    /// The name of the variant.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NotFound",
            Self::Conflict(_) => "Conflict",
            Self::RateLimited { .. } => "RateLimited",
            Self::NotSent(_) => "NotSent",
            Self::Denied { .. } => "Denied",
            Self::Invalid(_) => "Invalid",
            Self::Unavailable(_) => "Unavailable",
        }
    }
}
