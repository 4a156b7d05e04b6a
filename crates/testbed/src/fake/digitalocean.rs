//! DigitalOcean's API, version 2, as far as reserved addresses, droplets, projects and DNS need it.
//!
//! In: the requests of a driver, of FLIPOP or of the vendor's clients. Out: the vendor's answers and error bodies, and
//! a ledger with droplet IDs in decimal. Assigning and unassigning take [`DigitalOcean::action_time`]. An action takes
//! effect when that time has passed, and actions take effect in the order in which they end. Calls with the old names
//! (`floating_ips`) use the same state.
//!
//! The fake decides about a request to assign an address to a droplet like this:
//!
//! ```text
//! address unknown                      404
//! droplet unknown                      404
//! address has an action pending        422
//! address and droplet regions differ   422
//! droplet has an action pending        422
//! droplet holds any reserved address   422   even if it is the same address
//! another droplet holds the address    one action, which also detaches it from the old holder
//! otherwise                            one action
//! ```
//!
//! It never helps a caller: no call is idempotent, a released address can't be recreated, a caller can release an
//! address that a droplet holds, and a deleted droplet loses its address.

mod account;
mod addresses;
mod answers;
mod domains;
mod droplets;
mod pages;
mod projects;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;

use self::account::DEFAULT_PROJECT_ID;
use self::addresses::Names;
use self::answers::{Handled, error, not_found, unavailable};
use super::ledger::Ledger;
use super::limits::{Headers, Limit, Quota, Rate};
use super::{Answer, Call, Machine, Refusal, Route, names, route_in};

pub use self::account::DigitalOcean;

/// The calls: method, path and the name in [`ROUTES`]. The first match counts.
const CALLS: [(&str, &str, &str); 32] = [
    ("GET", "v2/reserved_ips", "reserved_ips.list"),
    ("POST", "v2/reserved_ips", "reserved_ips.create"),
    ("GET", "v2/reserved_ips/{}", "reserved_ips.get"),
    ("DELETE", "v2/reserved_ips/{}", "reserved_ips.delete"),
    ("GET", "v2/reserved_ips/{}/actions", "reserved_ips_actions.list"),
    ("POST", "v2/reserved_ips/{}/actions", "reserved_ips_actions.post"),
    ("GET", "v2/reserved_ips/{}/actions/{}", "reserved_ips_actions.get"),
    ("GET", "v2/floating_ips", "floating_ips.list"),
    ("POST", "v2/floating_ips", "floating_ips.create"),
    ("GET", "v2/floating_ips/{}", "floating_ips.get"),
    ("DELETE", "v2/floating_ips/{}", "floating_ips.delete"),
    ("GET", "v2/floating_ips/{}/actions", "floating_ips_actions.list"),
    ("POST", "v2/floating_ips/{}/actions", "floating_ips_actions.post"),
    ("GET", "v2/floating_ips/{}/actions/{}", "floating_ips_actions.get"),
    ("GET", "v2/actions/{}", "actions.get"),
    ("GET", "v2/droplets", "droplets.list"),
    ("GET", "v2/droplets/{}", "droplets.get"),
    ("GET", "v2/projects", "projects.list"),
    ("POST", "v2/projects", "projects.create"),
    ("GET", "v2/projects/default", "projects.get_default"),
    ("GET", "v2/projects/{}", "projects.get"),
    ("DELETE", "v2/projects/{}", "projects.delete"),
    ("GET", "v2/projects/{}/resources", "projects.list_resources"),
    ("GET", "v2/domains", "domains.list"),
    ("POST", "v2/domains", "domains.create"),
    ("GET", "v2/domains/{}", "domains.get"),
    ("GET", "v2/domains/{}/records", "domains.list_records"),
    ("POST", "v2/domains/{}/records", "domains.create_record"),
    ("GET", "v2/domains/{}/records/{}", "domains.get_record"),
    ("PUT", "v2/domains/{}/records/{}", "domains.update_record"),
    ("PATCH", "v2/domains/{}/records/{}", "domains.patch_record"),
    ("DELETE", "v2/domains/{}/records/{}", "domains.delete_record"),
];

/// The names of all calls, as in the vendor's Python client.
pub const ROUTES: &[&str] = &names(&CALLS);

/// The maximum number of requests in an hour.
const REQUESTS_PER_HOUR_MAX: u32 = 5_000;
/// The maximum number of requests in a minute.
const REQUESTS_PER_MINUTE_MAX: u32 = 250;
/// The maximum number of addresses that a caller can create in a minute, besides the other limits.
const CREATES_PER_MINUTE_MAX: u32 = 12;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl DigitalOcean {
    fn dispatch(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let (group, verb) = call.route.name.split_once('.').unwrap_or_default();
        let params: Vec<&str> = call.route.params.iter().map(String::as_str).collect();
        match (group, verb, params.as_slice()) {
            ("reserved_ips" | "floating_ips", "list", []) => Ok(self.list_addresses(Names::of(group), call)),
            ("reserved_ips" | "floating_ips", "create", []) => {
                self.create_address(Names::of(group), call, now, ledger)
            }
            ("reserved_ips" | "floating_ips", "get", [ip]) => self.get_address(Names::of(group), ip),
            ("reserved_ips" | "floating_ips", "delete", [ip]) => self.delete_address(ip, now, ledger),
            ("reserved_ips_actions" | "floating_ips_actions", "list", [ip]) => {
                self.list_actions(Names::of(group), ip, call)
            }
            ("reserved_ips_actions" | "floating_ips_actions", "post", [ip]) => {
                self.start_action(Names::of(group), ip, call, now, ledger)
            }
            ("reserved_ips_actions" | "floating_ips_actions", "get", [ip, id]) => {
                self.get_action_of(Names::of(group), ip, id)
            }
            ("actions", "get", [id]) => self.get_action(id),
            ("droplets", "list", []) => Ok(self.list_droplets(call)),
            ("droplets", "get", [id]) => self.get_droplet(id),
            ("projects", "list", []) => Ok(self.list_projects(call)),
            ("projects", "create", []) => self.create_project(call, now, ledger),
            ("projects", "get_default", []) => self.get_project(DEFAULT_PROJECT_ID),
            ("projects", "get", [id]) => self.get_project(id),
            ("projects", "delete", [id]) => self.delete_project(id, now, ledger),
            ("projects", "list_resources", [id]) => self.list_resources(id, call),
            ("domains", "list", []) => Ok(self.list_domains(call)),
            ("domains", "create", []) => self.create_domain(call, now, ledger),
            ("domains", "get", [name]) => self.get_domain(name),
            ("domains", "list_records", [name]) => self.list_records(name, call),
            ("domains", "create_record", [name]) => self.create_record(name, call, now, ledger),
            ("domains", "get_record", [name, id]) => self.get_record(name, id),
            ("domains", "update_record" | "patch_record", [name, id]) => {
                self.edit_record(name, id, call, now, ledger)
            }
            ("domains", "delete_record", [name, id]) => self.delete_record(name, id, now, ledger),
            _ => Err(not_found()),
        }
    }
}

impl Machine for DigitalOcean {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        route_in(&CALLS, request)
    }

    fn limits() -> Vec<Limit> {
        let creates = |route: &Route| matches!(route.name, "reserved_ips.create" | "floating_ips.create");
        vec![
            Limit {
                counts: |_| true,
                rate: Rate::Window { max: REQUESTS_PER_HOUR_MAX, window: HOUR, restarts: false },
                headers: Some(rate_headers),
            },
            per_minute(|_| true, REQUESTS_PER_MINUTE_MAX),
            per_minute(creates, CREATES_PER_MINUTE_MAX),
        ]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.advance(now, ledger);
        self.dispatch(call, now, ledger).unwrap_or_else(|refused| refused)
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        self.finish_actions(now, ledger);
        for change in self.unwritten.drain(..) {
            ledger.did(now, change);
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::NoSuchCall => not_found(),
            Refusal::Unauthorized => error(401, "unauthorized", "Unable to authenticate you"),
            Refusal::RateLimited(wait) => too_many_requests(*wait),
            Refusal::Forbidden(message) => error(403, "forbidden", message),
            Refusal::Unavailable(status) => unavailable(*status),
        }
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")) == Some(self.token.as_str())
    }
}

fn per_minute(counts: fn(&Route) -> bool, max: u32) -> Limit {
    Limit { counts, rate: Rate::Window { max, window: MINUTE, restarts: false }, headers: None }
}

/// Reports the remaining quota of the hour. The vendor reports the reset as wall clock time, the fake in seconds from
/// now.
fn rate_headers(quota: Quota) -> Headers {
    vec![
        ("ratelimit-limit", quota.max.to_string()),
        ("ratelimit-remaining", quota.left.to_string()),
        ("ratelimit-reset", quota.resets.as_secs().to_string()),
    ]
}

fn too_many_requests(wait: Duration) -> Answer {
    // Rounded up, because a caller that retries a fraction of a second too early would be refused again.
    let wait_seconds = wait.as_millis().div_ceil(1000);
    let mut answer = error(429, "too_many_requests", "API Rate limit exceeded.");
    answer.headers = vec![
        ("ratelimit-limit", REQUESTS_PER_HOUR_MAX.to_string()),
        ("ratelimit-remaining", "0".to_owned()),
        ("ratelimit-reset", wait_seconds.to_string()),
        ("retry-after", wait_seconds.to_string()),
    ];
    answer
}
