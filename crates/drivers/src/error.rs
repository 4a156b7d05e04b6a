//! Why a provider did not do what it was asked. Every driver returns these errors and no others.

use std::time::Duration;

use plan::{Address, VmId};

/// Why a request was not sent: its turn comes after so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: its turn comes in {:.1} s", wait.as_secs_f64())]
pub struct NotSent {
    /// How long.
    pub wait: Duration,
}

/// Why a cloud did not do or tell what it was asked. The variant says whether trying again can help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The address or the machine does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// Something else holds the address, or the machine, or is changing one of them. Read again, then decide again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Too many calls; nothing was done. Try again after this long.
    #[error("rate limited for {} s: {message}", retry_after.as_secs())]
    RateLimited {
        /// How long to wait.
        retry_after: Duration,
        /// What the cloud said.
        message: String,
    },
    /// It was not even asked: our own budget of calls is used up for so long.
    #[error("{0}")]
    NotSent(NotSent),
    /// The credentials don't allow it. Trying again helps only after a person has changed something.
    #[error("permission {permission} is missing: {message}")]
    Denied {
        /// The permission, in the cloud's own words.
        permission: String,
        /// What the cloud said.
        message: String,
    },
    /// The cloud will never do this as asked.
    #[error("refused: {0}")]
    Invalid(String),
    /// No answer, or none that can be understood. It is not known whether anything was done.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// The error for an address that was to be taken off a machine, and is on another.
pub(crate) fn not_held_by(address: Address, vm: &VmId) -> DriverError {
    DriverError::Conflict(format!("{address} is on another machine than {vm}"))
}

/// The error for an address that was to be released, unless it carries the tag that says who created it.
pub(crate) fn check_tag(address: Address, found: Option<&str>, tag: &str) -> Result<(), DriverError> {
    if found == Some(tag) || plan::sabotaged!(ReleasedWithoutMark) {
        return Ok(());
    }
    Err(DriverError::Conflict(format!("{address} does not carry the mark {tag}, and was not released")))
}

impl DriverError {
    /// One word for it.
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
