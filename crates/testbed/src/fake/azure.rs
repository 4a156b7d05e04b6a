//! Azure Resource Manager, as far as moving public addresses between VMs needs it: public IP addresses, network
//! interfaces, virtual machines, and operations.
//!
//! In: requests under `/subscriptions/…` with a bearer token. Out: answers in the format that Azure documents. The fake
//! accepts a change as an operation, which takes effect when `operation_time` has passed. Until then:
//!
//! - the interface shows the requested configuration and the state `Updating`,
//! - an interface that gets or loses an address counts as its holder,
//! - the fake accepts no other change of the interface.
//!
//! A failed detach restores the interface. After a failed attach the interface still shows the requested address.
//!
//! A write replaces an interface: it removes properties that the body omits, except those that only Azure sets. So a
//! client that forgets a property loses it, as with the real API. The fake never gives an address to two VMs, and never
//! gives a VM an address without a request.

mod calls;
mod operations;
mod orders;
mod problem;
mod resources;
mod routes;
mod subscription;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;

use self::problem::Problem;
use super::ledger::Ledger;
use super::limits::{Limit, Quota, Rate};
use super::{Answer, Call, Machine, Refusal, Route};

pub use self::subscription::Azure;

/// The names of all calls.
pub const ROUTES: &[&str] = &[
    "PublicIPAddresses_ListAll",
    "PublicIPAddresses_Get",
    "PublicIPAddresses_CreateOrUpdate",
    "PublicIPAddresses_Delete",
    "NetworkInterfaces_ListAll",
    "NetworkInterfaces_Get",
    "NetworkInterfaces_CreateOrUpdate",
    "VirtualMachines_ListAll",
    "Operations_Get",
];

/// Returns the actions that the caller's role must allow for a call and for the resources that it may refer to.
pub fn actions_of(call: &str) -> impl Iterator<Item = &'static str> {
    let links = routes::LINKS.iter().filter(move |_| call == "NetworkInterfaces_CreateOrUpdate");
    [routes::action_of(call)].into_iter().chain(links.map(|(_, action)| *action))
}

impl Machine for Azure {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        routes::route(request)
    }

    fn limits() -> Vec<Limit> {
        let is_read = |route: &Route| routes::is_read(route.name);
        let is_write = |route: &Route| !routes::is_read(route.name);
        let bucket =
            |burst, per_second| Rate::Bucket { burst, interval: Duration::from_secs(1) / per_second };
        let five_minutes = |max| Rate::Window { max, window: Duration::from_secs(300), restarts: false };
        let reads = |quota: Quota| left("x-ms-ratelimit-remaining-subscription-reads", quota);
        let writes = |quota: Quota| left("x-ms-ratelimit-remaining-subscription-writes", quota);
        vec![
            Limit { counts: is_read, rate: bucket(250, 25), headers: Some(reads) },
            Limit { counts: is_write, rate: bucket(200, 10), headers: Some(writes) },
            // The limits of the Microsoft.Network resource provider.
            Limit { counts: is_read, rate: five_minutes(10_000), headers: None },
            Limit { counts: is_write, rate: five_minutes(1_000), headers: None },
        ]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.settle(now, ledger);
        self.answer(call, now, ledger).unwrap_or_else(|problem| problem.answer())
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        self.settle(now, ledger);
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        let problem = match refusal {
            Refusal::NoSuchCall => Problem::no_such_call("the path"),
            Refusal::Unauthorized => Problem::unauthorized(),
            Refusal::RateLimited(wait) => Problem::rate_limited(*wait),
            Refusal::Forbidden(action) => Problem::forbidden(action, &self.id("")),
            Refusal::Unavailable(status) => Problem::unavailable(*status),
        };
        problem.answer()
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|token| token == self.token)
    }
}

fn left(name: &'static str, quota: Quota) -> Vec<(&'static str, String)> {
    vec![(name, quota.left.to_string())]
}
