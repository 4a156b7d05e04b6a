//! Classifies failed writes, and sets the backoff after them.

use std::time::Duration;

use crate::backoff::Retry;

/// The backoff after a write without a response, or with one that reports the apiserver as unavailable.
pub(crate) const UNANSWERED_RETRY: Retry = Retry { shortest: WRITE_RETRY, longest: Duration::from_secs(2) };

/// The backoff after a refused write.
pub(crate) const REFUSED_RETRY: Retry = Retry { shortest: WRITE_RETRY, longest: Duration::from_secs(60) };

/// The first pause after a failed write.
const WRITE_RETRY: Duration = Duration::from_millis(500);

/// After this number of refusals in a row, the controller publishes an Event.
pub(crate) const REFUSALS_REPORTED: u32 = 3;

/// Whether the apiserver refused a write. A retry succeeds only after a person or another controller has changed
/// something.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    // For an object that is too large for etcd, the apiserver responds with a server error.
    let is_too_large = status.message.contains("request is too large");
    is_too_large || ((400..500).contains(&status.code) && status.code != 429)
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}
