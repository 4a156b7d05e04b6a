//! Google Compute Engine, as far as moving public addresses between VMs needs it: addresses, the access configs of
//! instances, and operations.
//!
//! In: requests under `/compute/v1/projects/…` with a bearer token. Out: answers in the format of the v1 discovery
//! document. The fake accepts a change as an operation, which takes effect when `operation_time` has passed. It carries
//! out due operations at the start of each request and before a test reads the state. It never blocks: `wait` returns
//! the operation as it is, as the real API may. It never gives an address to two VMs, never detaches one without a
//! request, and never gives a VM a replacement for a lost address.
//!
//! A VM has the interface `nic0`; a test can add more. Each interface can have one access config. The access config may
//! carry the name of a public PTR record, which disappears with it.
//!
//! The fake accepts a request to attach an address that another VM holds. If the address is still in use when the
//! operation ends, the operation fails with `IP_IN_USE_BY_ANOTHER_RESOURCE`.

mod calls;
mod lists;
mod operations;
mod orders;
mod problem;
mod project;
mod resources;
mod routes;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;

use self::problem::Problem;
use super::ledger::Ledger;
use super::limits::{Limit, Rate};
use super::{Answer, Call, Machine, Refusal, Route};

pub use self::project::Compute;
pub use self::routes::{permissions, permissions_of};

/// The names of all calls.
pub const ROUTES: &[&str] = &[
    "addresses.aggregatedList",
    "addresses.list",
    "addresses.get",
    "addresses.insert",
    "addresses.delete",
    "addresses.setLabels",
    "instances.get",
    "instances.list",
    "instances.aggregatedList",
    "instances.addAccessConfig",
    "instances.deleteAccessConfig",
    "zoneOperations.get",
    "zoneOperations.wait",
    "zoneOperations.list",
    "regionOperations.get",
    "regionOperations.wait",
    "globalOperations.aggregatedList",
];

/// The rate limit of one project.
const REQUESTS_PER_MINUTE: u32 = 1500;

impl Machine for Compute {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        routes::route(request.method(), request.uri().path())
    }

    fn limits() -> Vec<Limit> {
        let window = Duration::from_secs(60);
        let rate = Rate::Window { max: REQUESTS_PER_MINUTE, window, restarts: false };
        vec![Limit { counts: |_| true, rate, headers: None }]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.settle(now, ledger);
        match self.answer(call, now, ledger) {
            Ok(body) => Answer::json(200, body),
            Err(problem) => problem.answer(),
        }
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        self.settle(now, ledger);
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        let problem = match refusal {
            Refusal::NoSuchCall => Problem::no_such_call(),
            Refusal::Unauthorized => Problem::unauthorized(),
            Refusal::RateLimited(_) => Problem::rate_limited(&self.project),
            Refusal::Forbidden(permission) => {
                Problem::forbidden(permission, &format!("projects/{}", self.project))
            }
            Refusal::Unavailable(status) => Problem::unavailable(*status),
        };
        problem.answer()
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|token| token == self.token)
    }
}
