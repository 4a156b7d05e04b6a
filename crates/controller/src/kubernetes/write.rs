//! What a failed write means, and how long to wait before the next.

use std::time::Duration;

use crate::backoff::Retry;

/// Pauses after a write had no answer, or one that says that the apiserver can't answer now.
pub(crate) const UNANSWERED_RETRY: Retry = Retry { shortest: WRITE_RETRY, longest: Duration::from_secs(2) };

/// Pauses after a write was refused.
pub(crate) const REFUSED_RETRY: Retry = Retry { shortest: WRITE_RETRY, longest: Duration::from_secs(60) };

/// The first pause after a write failed.
const WRITE_RETRY: Duration = Duration::from_millis(500);

/// A write that was refused so often is reported.
pub(crate) const REFUSALS_REPORTED: u32 = 3;

/// Whether the apiserver has answered that it does not take a write. Somebody has to change something before it does.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    // What is too large for etcd is answered like a fault of the server.
    let is_too_large = status.message.contains("request is too large");
    is_too_large || ((400..500).contains(&status.code) && status.code != 429)
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}
