//! DigitalOcean's reserved IPs.
//!
//! A reserved IP moves with one `assign` action, whether or not a droplet holds it, and is `locked` until the action has
//! ended. One listing tells the holders of all addresses and which of them are locked, so it also polls all actions.
//!
//! ```text
//! call                       used for
//! reserved_ips.list          list, poll
//! reserved_ips_actions.post  attach (assign), detach (unassign)
//! ```

use std::sync::Arc;
use std::time::Duration;

use ::http::Method;
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, Holding, Provider, Scope, VmId};
use serde::Deserialize;
use serde_json::json;

use crate::http::{HttpService, JsonApi, Refused, unreadable};
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listing, Operation, Polled, Progress, Traits};

/// DigitalOcean's address where `DIGITALOCEAN_API_URL` does not say otherwise.
pub const DEFAULT_URL: &str = "https://api.digitalocean.com";

/// Every call this driver makes.
pub const CALLS: &[&str] = &["reserved_ips.list", "reserved_ips_actions.post"];

const PAGE_SIZE: usize = 200;

/// A listing that has not ended after so many pages is broken, not long.
const PAGES_MAX: usize = 500;

/// Where a 429 does not say how long to wait: the limit is counted by the minute.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(60);

/// Moves reserved IPs between droplets.
pub struct DigitalOcean {
    api: JsonApi,
}

impl DigitalOcean {
    /// A driver for the account that the token belongs to.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self { api: JsonApi::new(service, url, tokens, explain) }
    }

    async fn list_all(&self) -> Result<Listing, DriverError> {
        let mut listing = Listing::default();
        for page in 1..=PAGES_MAX {
            let path = format!("v2/reserved_ips?per_page={PAGE_SIZE}&page={page}");
            let answer: Page = self.api.call("reserved_ips.list", Method::GET, &path, None).await?;
            for found in answer.reserved_ips {
                let address = found.ip.parse::<Address>();
                let address = address.map_err(|_| unreadable("reserved_ips.list", &found.ip))?;
                if found.locked {
                    listing.changing.push(address);
                }
                let holder = found.droplet.map(|droplet| Holding::By(VmId(droplet.id.to_string())));
                listing.addresses.insert(address, holder.unwrap_or(Holding::Free));
            }
            if answer.links.is_none_or(|links| links.pages.is_none_or(|pages| pages.next.is_none())) {
                return Ok(listing);
            }
        }
        Err(unreadable("reserved_ips.list", &"it does not end"))
    }

    async fn act(
        &self,
        scope: &Scope,
        address: Address,
        target: Option<&VmId>,
    ) -> Result<Progress, DriverError> {
        let name = "reserved_ips_actions.post";
        let body = match target {
            Some(vm) => {
                let droplet = vm.0.parse::<u64>();
                let droplet =
                    droplet.map_err(|_| DriverError::Invalid(format!("{vm} is no droplet's id")))?;
                json!({"type": "assign", "droplet_id": droplet})
            }
            None => json!({"type": "unassign"}),
        };
        let path = format!("v2/reserved_ips/{address}/actions");
        let Started { action } = self.api.call(name, Method::POST, &path, Some(body)).await?;
        let id = action.id.to_string();
        let target = target.cloned();
        Ok(Progress::Underway(Operation { id, scope: scope.clone(), address, target, completes: true }))
    }

    async fn poll_all(&self, operations: &[Operation]) -> Vec<Result<Polled, DriverError>> {
        let listing = match self.list_all().await {
            Ok(listing) => listing,
            Err(error) => return vec![Err(error); operations.len()],
        };
        operations.iter().map(|operation| ended(operation, &listing)).collect()
    }
}

impl AddressDriver for DigitalOcean {
    fn list<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.list_all().boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.act(scope, address, Some(vm)).boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        _: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.act(scope, address, None).boxed()
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        self.poll_all(operations).boxed()
    }

    fn traits(&self) -> Traits {
        Traits { moves_in_one_call: true }
    }
}

/// Whether an action has ended, by what the listing says of its address. An action that failed leaves the address
/// unlocked where it was.
fn ended(operation: &Operation, listing: &Listing) -> Result<Polled, DriverError> {
    if listing.changing.contains(&operation.address) {
        return Ok(Polled::StillUnderway);
    }
    let wanted = operation.target.clone().map_or(Holding::Free, Holding::By);
    match listing.addresses.get(&operation.address) {
        Some(found) if *found == wanted => Ok(Polled::Ended),
        Some(_) => {
            let message = format!("action {} on {} ended without effect", operation.id, operation.address);
            Err(DriverError::Conflict(message))
        }
        None => Err(DriverError::NotFound(format!("reserved IP {}", operation.address))),
    }
}

/// The machine that a providerID of the form `digitalocean://id` names.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let droplet: u64 = provider_id.strip_prefix("digitalocean://")?.parse().ok()?;
    let scope = Scope { provider: Provider::DigitalOcean, account: String::new() };
    Some((scope, VmId(droplet.to_string())))
}

fn explain(name: &str, refused: &Refused) -> DriverError {
    let said = refused.body["message"].as_str().unwrap_or("no explanation");
    let message = format!("{name}: {said}");
    match refused.status {
        401 | 403 => DriverError::Denied { permission: permission_of(name).into(), message },
        404 => DriverError::NotFound(message),
        // Also the answer to assigning an address to the droplet that has it: only reading again can tell.
        409 | 422 => DriverError::Conflict(message),
        429 => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        400..500 => DriverError::Invalid(message),
        status => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

fn permission_of(name: &str) -> &'static str {
    match name {
        "reserved_ips.list" => "reserved_ip:read",
        _ => "reserved_ip:update",
    }
}

#[derive(Deserialize)]
struct Page {
    reserved_ips: Vec<ReservedIp>,
    links: Option<Links>,
}

#[derive(Deserialize)]
struct ReservedIp {
    ip: String,
    droplet: Option<Droplet>,
    #[serde(default)]
    locked: bool,
}

#[derive(Deserialize)]
struct Droplet {
    id: u64,
}

#[derive(Deserialize)]
struct Links {
    pages: Option<Pages>,
}

#[derive(Deserialize)]
struct Pages {
    next: Option<String>,
}

#[derive(Deserialize)]
struct Started {
    action: Action,
}

#[derive(Deserialize)]
struct Action {
    id: u64,
}
