//! What every fake API has to be able to do.

use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

use super::call::{Answer, Call, Refusal, Route};
use super::ledger::Ledger;
use super::limits::Limit;

/// One API as a state machine. It sees one request at a time and never waits.
pub trait Machine: Send + 'static {
    /// Which of the API's calls a request is, or nothing where the API has no such call.
    fn route(request: &Request<Bytes>) -> Option<Route>;

    /// The API's limits, enforced before a request is handled.
    fn limits() -> Vec<Limit>;

    /// Carries out one request at the given moment and writes what it changed into the ledger.
    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer;

    /// Lets what is due by now happen, and writes it into the ledger. Called before anyone looks from outside, so that an
    /// operation takes effect at its time even where no request follows it, and after, so that what a person did with a
    /// console is in the ledger too.
    fn advance(&mut self, _now: Duration, _ledger: &mut Ledger) {}

    /// The API's own way of refusing.
    fn refuse(&self, refusal: &Refusal) -> Answer;

    /// Whether a request carries credentials that the API accepts.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool;
}
