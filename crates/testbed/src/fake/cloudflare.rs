//! Cloudflare's API, version 4, as far as the DNS records of zones on a free plan need it.
//!
//! In: the requests of a driver or of the vendor's client. Out: the vendor's envelope, answers and error codes, and a
//! ledger with the full name of every record that was set or removed. Every change takes effect at once.
//!
//! The fake checks a record that a request creates or changes like this. The first line that applies gives the answer:
//!
//! ```text
//! a type that the fake does not support                400   1004
//! no name                                              400   9000
//! content is not an address of the record's type       400   9005 (A), 9006 (AAAA)
//! no content                                           400   1004
//! TTL is neither 1 nor 60 to 86400 seconds             400   9021
//! proxied, but not A, AAAA or CNAME                    400   9004
//! proxied, but the address is not public               400   9003
//! comment of more than 100 characters                  400   9313
//! any tag                                              400   9300
//! same name, type and content as another record        400   81058
//! A or AAAA, and the name has a CNAME                  400   81054
//! CNAME, and the name has an A, AAAA or CNAME          400   81053
//! ```
//!
//! A batch is one transaction: if the fake refuses one change, it makes none. The answers to the changes in a batch are
//! the same as for single calls.
//!
//! It never helps a caller: a `PUT` resets the fields that it omits. A name that does not end in the zone's name gets
//! the zone's name appended. Unknown filters are ignored. Listings are not sorted.

mod account;
mod envelope;
mod pages;
mod records;
#[cfg(test)]
mod tests;
mod zones;

use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;
use serde_json::json;

use self::envelope::{Handled, error, no_route};
use super::ledger::Ledger;
use super::limits::{Headers, Limit, Quota, Rate};
use super::{Answer, Call, Machine, Refusal, Route, names, route_in};

pub use self::account::Cloudflare;

/// The calls: method, path and the name in [`ROUTES`]. The first match counts.
const CALLS: [(&str, &str, &str); 8] = [
    ("GET", "client/v4/zones", "zones.list"),
    ("GET", "client/v4/zones/{}/dns_records", "dns.records.list"),
    ("POST", "client/v4/zones/{}/dns_records", "dns.records.create"),
    ("POST", "client/v4/zones/{}/dns_records/batch", "dns.records.batch"),
    ("GET", "client/v4/zones/{}/dns_records/{}", "dns.records.get"),
    ("PATCH", "client/v4/zones/{}/dns_records/{}", "dns.records.edit"),
    ("PUT", "client/v4/zones/{}/dns_records/{}", "dns.records.update"),
    ("DELETE", "client/v4/zones/{}/dns_records/{}", "dns.records.delete"),
];

/// The names of all calls, as in the vendor's Python client.
pub const ROUTES: &[&str] = &names(&CALLS);

/// The maximum number of requests in a window.
const REQUESTS_MAX: u32 = 1_200;
/// The length of the window, and how long the fake refuses everything after the limit was exceeded.
const WINDOW: Duration = Duration::from_secs(300);

impl Cloudflare {
    fn dispatch(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let body = &call.body;
        let params: Vec<&str> = call.route.params.iter().map(String::as_str).collect();
        match (call.route.name, params.as_slice()) {
            ("zones.list", []) => Ok(self.list_zones(call)),
            ("dns.records.list", [zone]) => self.list_records(zone, call),
            ("dns.records.get", [zone, id]) => self.get_record(zone, id),
            ("dns.records.create", [zone]) => self.change(zone, now, ledger, |zone| zone.post(body)),
            ("dns.records.edit", [zone, id]) => self.change(zone, now, ledger, |zone| zone.patch(id, body)),
            ("dns.records.update", [zone, id]) => self.change(zone, now, ledger, |zone| zone.put(id, body)),
            ("dns.records.delete", [zone, id]) => self.change(zone, now, ledger, |zone| {
                zone.delete(id)?;
                Ok(json!({ "id": id }))
            }),
            ("dns.records.batch", [zone]) => self.change(zone, now, ledger, |zone| zone.batch(body)),
            _ => Err(no_route()),
        }
    }
}

impl Machine for Cloudflare {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        route_in(&CALLS, request)
    }

    fn limits() -> Vec<Limit> {
        vec![Limit {
            counts: |_| true,
            rate: Rate::Window { max: REQUESTS_MAX, window: WINDOW, restarts: true },
            headers: Some(rate_headers),
        }]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.advance(now, ledger);
        self.dispatch(call, now, ledger).unwrap_or_else(|refused| refused)
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        for change in self.unwritten.drain(..) {
            ledger.did(now, change);
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::NoSuchCall => no_route(),
            Refusal::Unauthorized => error(401, 10_000, "Authentication error"),
            Refusal::RateLimited(wait) => too_many_requests(*wait),
            Refusal::Forbidden(message) => error(403, 9109, message),
            Refusal::Unavailable(status) => error(*status, 10_013, "An unknown error has occurred"),
        }
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")) == Some(self.token.as_str())
    }
}

fn too_many_requests(wait: Duration) -> Answer {
    let mut answer = error(429, 971, "Please wait and consider throttling your request speed");
    answer.headers = rate_headers(Quota { max: REQUESTS_MAX, left: 0, window: WINDOW, resets: wait });
    answer.headers.push(("retry-after", whole_seconds(wait).to_string()));
    answer
}

fn rate_headers(quota: Quota) -> Headers {
    let resets = whole_seconds(quota.resets);
    vec![
        ("ratelimit", format!(r#""default";r={};t={resets}"#, quota.left)),
        ("ratelimit-policy", format!(r#""default";q={};w={}"#, quota.max, quota.window.as_secs())),
    ]
}

/// Rounds a wait up to whole seconds, because a caller that retries a fraction too early would be refused again.
fn whole_seconds(wait: Duration) -> u128 {
    wait.as_millis().div_ceil(1000)
}
