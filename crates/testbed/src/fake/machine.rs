//! The trait that every fake API implements.

use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

use super::call::{Answer, Call, Refusal, Route};
use super::ledger::Ledger;
use super::limits::Limit;

/// One API as a state machine. It handles one request at a time and never blocks.
pub trait Machine: Send + 'static {
    /// Returns the call that a request matches, or `None` if the API has no such call.
    fn route(request: &Request<Bytes>) -> Option<Route>;

    /// The rate limits of the API. The service enforces them before it calls [`handle`](Self::handle).
    fn limits() -> Vec<Limit>;

    /// Handles one request at the given time and records every change in the ledger.
    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer;

    /// Carries out everything that is due by now and records it in the ledger. The service calls this function before
    /// a test reads or changes the state, so an operation takes effect on time even without a further request. The
    /// service calls it again after a test's changes, so these get into the ledger too.
    fn advance(&mut self, _now: Duration, _ledger: &mut Ledger) {}

    /// Returns the API's answer to a refused request.
    fn refuse(&self, refusal: &Refusal) -> Answer;

    /// Whether a request carries credentials that the API accepts.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool;
}
