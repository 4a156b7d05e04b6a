//! Public IP addresses of Azure.
//!
//! A VM holds an address as the `publicIPAddress` of an IP configuration of one of its network interfaces. So a move is
//! two writes of interfaces. Each write replaces the whole interface and is an asynchronous operation. Azure rejects a
//! write if another interface has the address, or if the interface has changed since the driver read it.
//!
//! ```text
//! call                               used for                          action in a role
//! PublicIPAddresses_ListAll          list, create (names in use)       Microsoft.Network/publicIPAddresses/read
//! PublicIPAddresses_Get              attach, detach, release, create   Microsoft.Network/publicIPAddresses/read
//! NetworkInterfaces_ListAll          list, machines                    Microsoft.Network/networkInterfaces/read
//! NetworkInterfaces_Get              attach, detach                    Microsoft.Network/networkInterfaces/read
//! NetworkInterfaces_CreateOrUpdate   attach, detach                    Microsoft.Network/networkInterfaces/write,
//!                                                                      and the join actions of what the interface
//!                                                                      refers to
//! PublicIPAddresses_CreateOrUpdate   create                            Microsoft.Network/publicIPAddresses/write
//! PublicIPAddresses_Delete           release                           Microsoft.Network/publicIPAddresses/delete
//! VirtualMachines_ListAll            machines                          Microsoft.Compute/virtualMachines/read
//! Operations_Get                     poll                              Microsoft.Network/locations/operations/read
//! ```
//!
//! VMs at Azure have no ephemeral addresses: each address on an interface is a resource that somebody created, so the
//! driver never removes one to make room. The driver remembers the resource ID of each address from the last listing.
//! It reads the address before every change, so it never changes another address that has got the same resource ID in
//! the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use plan::{Address, Holding, MachineState, MayBeOn, Scope, VmId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::bodies::{HolderId, Machine, Page, PublicIp, TAG, unknown_on};
use super::calls::{LOCKED, NETWORK_API, ended, explain, network_list, path_of, resource_path};
use super::ids::{ResourceId, is_same};
use super::interface::{Interface, State};
use crate::address::CHANGING;
use crate::budget::{Counting, Limit, Quota, part_after};
use crate::error::{check_tag, not_held_by};
use crate::http::{HttpService, JsonApi, Path, contains, number, retry_after, unreadable, unseen};
use crate::times::later;
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listed, Listing, Operation, Polled, Progress, Properties, Tags};

/// The default URL of Azure Resource Manager. `AZURE_RESOURCE_MANAGER_ENDPOINT` overrides it.
pub const DEFAULT_URL: &str = "https://management.azure.com";

/// Every call this driver makes, by its name in Azure's API reference. The last one has no name there, because clients
/// follow links to operations.
pub const CALLS: &[&str] = &[
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

const COMPUTE_API: &str = "2024-07-01";

/// The maximum number of pages. A longer listing is treated as an error.
const PAGES_MAX: usize = 500;

/// The maximum interval between two polls of an operation, regardless of `Retry-After`.
const POLL_AFTER_MAX: Duration = Duration::from_secs(30);

/// How often, and at which interval, `create` reads a new address until Azure has assigned an IP address.
const CREATE_LOOKS_MAX: usize = 20;
const CREATE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Azure counts by subscription. A 429 for a locked resource does not mean that the subscription is throttled.
pub fn counting() -> Counting {
    let is_throttled = |response: &Response<Bytes>| {
        let is_locked = |code: &&str| contains(response, &format!("\"{code}\""));
        response.status() == StatusCode::TOO_MANY_REQUESTS && !LOCKED.iter().any(is_locked)
    };
    Counting { unit: |request| part_after(request, "subscriptions"), is_throttled }
}

/// The rate limits of one identity in a subscription, and of the network resource provider for all identities. Azure
/// limits each region and deletions separately. The driver counts all requests together, which is stricter.
pub fn limits() -> [Limit; 4] {
    let is_read = |request: &Request<Bytes>| request.method() == Method::GET;
    let is_write = |request: &Request<Bytes>| request.method() != Method::GET;
    let window = Duration::from_secs(300);
    [
        Limit::bucket(is_read, 250, 25)
            .with_quota(|headers| quota(headers, "x-ms-ratelimit-remaining-subscription-reads")),
        Limit::bucket(is_write, 200, 10)
            .with_quota(|headers| quota(headers, "x-ms-ratelimit-remaining-subscription-writes")),
        Limit::window_for(is_read, 10_000, window),
        Limit::window_for(is_write, 1_000, window),
    ]
}

/// The remaining quota in this header.
fn quota(headers: &HeaderMap, name: &str) -> Option<Quota> {
    Some(Quota { left: number(headers, name)?, resets: None })
}

/// The path of the operation that a request started, if the response has a link to it.
fn operation_of(headers: &HeaderMap) -> Option<Path> {
    headers.get("azure-asyncoperation").and_then(|link| path_of(link.to_str().ok()?))
}

/// Moves public IP addresses between VMs.
pub struct Azure {
    api: JsonApi,
    /// The resource group for new addresses.
    group: Option<String>,
    known: Mutex<BTreeMap<Scope, Known>>,
    /// The earliest time to poll each operation again, from `Retry-After`.
    resting: Mutex<BTreeMap<String, Instant>>,
    /// Held while `create` chooses a name, so that two creations do not choose the same one.
    naming: tokio::sync::Mutex<()>,
}

/// Resource IDs from the last listing.
#[derive(Clone, Default)]
struct Known {
    addresses: BTreeMap<Address, String>,
    /// The interface of each VM.
    interfaces: BTreeMap<VmId, String>,
}

impl Azure {
    /// Creates a driver for all subscriptions that the token can access. It creates addresses in the resource group
    /// `group`.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>, group: Option<String>) -> Self {
        Self {
            api: JsonApi::new(service, url, tokens, explain),
            group,
            known: Mutex::default(),
            resting: Mutex::default(),
            naming: tokio::sync::Mutex::default(),
        }
    }

    /// Reads all pages of a listing.
    async fn list_pages<T: DeserializeOwned>(&self, name: &str, path: Path) -> Result<Vec<T>, DriverError> {
        let (mut all, mut path) = (Vec::new(), path);
        for _ in 0..PAGES_MAX {
            let page: Page<T> = self.api.call(name, Method::GET, &path, None).await?;
            all.extend(page.value);
            match page.next_link.as_deref().filter(|link| !link.is_empty()) {
                Some(link) => path = path_of(link).ok_or_else(|| unreadable(name, &link))?,
                None => return Ok(all),
            }
        }
        Err(unreadable(name, &"the listing has too many pages"))
    }

    async fn list_addresses(&self, scope: &Scope) -> Result<Vec<PublicIp>, DriverError> {
        let path = network_list(scope, "publicIPAddresses");
        self.list_pages("PublicIPAddresses_ListAll", path).await
    }

    async fn list_interfaces(&self, scope: &Scope) -> Result<Vec<Interface>, DriverError> {
        let path = network_list(scope, "networkInterfaces");
        let listed: Vec<Value> = self.list_pages("NetworkInterfaces_ListAll", path).await?;
        Ok(listed.into_iter().map(Interface).collect())
    }

    async fn list_subscription(&self, scope: &Scope) -> Result<Listing, DriverError> {
        let addresses = self.list_addresses(scope).await?;
        let interfaces = self.list_interfaces(scope).await?;
        let mut known = Known::default();
        for interface in &interfaces {
            // Prefer the primary interface; without one, use any.
            if let Some(vm) = interface.holder() {
                let found = known.interfaces.entry(vm).or_insert_with(|| interface.id().to_owned());
                if interface.is_primary() {
                    interface.id().clone_into(found);
                }
            }
        }
        let by_id: BTreeMap<_, _> =
            interfaces.iter().map(|interface| (interface.id().to_lowercase(), interface)).collect();
        let mut interfaces_of: BTreeMap<String, Vec<&Interface>> = BTreeMap::new();
        for interface in &interfaces {
            for id in interface.public_addresses() {
                interfaces_of.entry(id.to_lowercase()).or_default().push(interface);
            }
        }
        let shown: Arc<BTreeSet<VmId>> = Arc::new(interfaces.iter().filter_map(Interface::holder).collect());
        let mut listing = Listing { tags: Tags::Complete, ..Listing::default() };
        for found in addresses {
            let Some(address) = found.address() else {
                // An address that is being created has a tag but no IP address yet.
                if found.tag().is_some() && found.state() == State::Changing {
                    listing.tags = Tags::Incomplete;
                }
                continue;
            };
            let interface = |id: &str| by_id.get(&id.to_lowercase()).copied();
            // An interface can refer to the address before the address refers to the interface, and the other way round.
            let mut referring = interfaces_of.remove(&found.id.to_lowercase()).unwrap_or_default();
            let is_changing = |interface: &&Interface| interface.state() == State::Changing;
            let named_by_address = match found.holder() {
                Some(HolderId::Interface(id)) => interface(&id),
                _ => None,
            };
            let holding = match (found.holding(interface, &shown), named_by_address) {
                (Holding::Free, _) if referring.iter().any(is_changing) => unknown_on(referring),
                (Holding::Unknown(doubt), Some(named_by_address)) if doubt.may_be_on != MayBeOn::Any => {
                    referring.push(named_by_address);
                    unknown_on(referring)
                }
                // `AllBut` would leave out the VM of an interface that refers to the address.
                (Holding::Unknown(doubt), None) if !referring.is_empty() => {
                    Holding::Unknown(doubt.why.into())
                }
                (holding, _) => holding,
            };
            if let Some(HolderId::Interface(id)) = found.holder()
                && interface(&id).is_some_and(|interface| interface.state() == State::Failed)
            {
                listing.unconfirmed.insert(address);
            }
            let region = found.location.as_deref().map(|location| location.to_lowercase().into());
            let tag = found.tag().map(Into::into);
            listing.addresses.insert(address, Listed { holding, region, tag });
            known.addresses.insert(address, found.id);
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.clone(), known);
        Ok(listing)
    }

    /// Looks up a resource ID. If it is not known from the last listing, the driver lists again.
    async fn called<T>(
        &self,
        scope: &Scope,
        what: &(dyn std::fmt::Display + Sync),
        find: impl Fn(&Known) -> Option<T>,
    ) -> Result<T, DriverError> {
        let look = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(scope).and_then(&find)
        };
        if let Some(found) = look() {
            return Ok(found);
        }
        self.list_subscription(scope).await?;
        look().ok_or_else(|| DriverError::NotFound(format!("{what} in subscription {}", scope.account)))
    }

    /// Reads an address, and checks that its resource ID still belongs to it.
    async fn read_address(&self, scope: &Scope, address: Address) -> Result<PublicIp, DriverError> {
        let id = self.called(scope, &address, |known| known.addresses.get(&address).cloned()).await?;
        let read = self.api.call("PublicIPAddresses_Get", Method::GET, &resource_path(&id), None).await;
        if let Ok(found) = &read
            && PublicIp::address(found) == Some(address)
        {
            return read;
        }
        if matches!(read, Ok(_) | Err(DriverError::NotFound(_))) {
            // The address may have been recreated with another resource ID, so forget the IDs of the scope. The next
            // listing returns the current ones.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(scope);
            return Err(DriverError::NotFound(format!("{id} no longer has the address {address}")));
        }
        read
    }

    async fn read_interface(&self, id: &str) -> Result<Interface, DriverError> {
        self.api.call("NetworkInterfaces_Get", Method::GET, &resource_path(id), None).await.map(Interface)
    }

    async fn attach_to(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        let public = self.read_address(scope, address).await?;
        let id = self.called(scope, vm, |known| known.interfaces.get(vm).cloned()).await?;
        let mut interface = self.read_interface(&id).await?;
        // Another interface of the VM may already have the address.
        if let Some(HolderId::Interface(other)) = public.holder()
            && !is_same(&other, interface.id())
        {
            match self.read_interface(&other).await {
                Ok(found) if found.holder().as_ref() == Some(vm) => interface = found,
                Ok(_) | Err(DriverError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if interface.holder().as_ref() != Some(vm) {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(scope);
            return Err(DriverError::Conflict(format!("{id} no longer belongs to {vm}")));
        }
        if let (Some(here), Some(there)) = (interface.location(), &public.location)
            && !here.eq_ignore_ascii_case(there)
        {
            return Err(DriverError::Invalid(format!(
                "{address} is in region {there}, but {vm} is in {here}"
            )));
        }
        let Some(place) = interface.place_of(&public.id).or_else(|| interface.place_for(address)) else {
            return Err(DriverError::Invalid(format!(
                "{id} has no IP configuration for the IP version of {address}"
            )));
        };
        if public.state() == State::Changing || interface.state() == State::Changing {
            return Err(DriverError::Conflict(format!("{address} or {vm}: {CHANGING}")));
        }
        match interface.public_at(place) {
            Some(present) if !is_same(present, &public.id) => {
                return Err(DriverError::Conflict(format!("{vm} already holds the address {present}")));
            }
            // After a failed change Azure may show the requested state instead of the actual one, so the driver writes
            // the interface again.
            Some(_) if interface.state() == State::Settled => return Ok(Progress::Done),
            Some(_) => {}
            None => {
                if let Some(holder) = public.holder() {
                    return Err(DriverError::Conflict(format!("{address} is attached to {holder}")));
                }
            }
        }
        self.write(scope, address, interface, place, Some((&public.id, vm))).await
    }

    async fn detach_from(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        let public = self.read_address(scope, address).await?;
        let Some(holder) = public.holder() else { return Ok(Progress::Done) };
        let interface = match holder {
            HolderId::Interface(id) => match self.read_interface(&id).await {
                // A deleted interface holds no address.
                Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
                interface => interface?,
            },
            HolderId::Other(other) if other == *vm => {
                let message = format!("{address} belongs to {other}: detach it there");
                return Err(DriverError::Invalid(message));
            }
            HolderId::Other(_) => return Err(not_held_by(address, vm)),
        };
        if interface.holder().as_ref() != Some(vm) {
            return Err(not_held_by(address, vm));
        }
        match interface.place_of(&public.id) {
            Some(place) if interface.state() != State::Changing => {
                self.write(scope, address, interface, place, None).await
            }
            _ => Err(DriverError::Conflict(format!("{address} or {vm}: {CHANGING}"))),
        }
    }

    /// Writes an interface if it is unchanged since it was read. `put` is the address for the IP configuration at
    /// `place`; `None` removes the address from it.
    async fn write(
        &self,
        scope: &Scope,
        address: Address,
        interface: Interface,
        place: usize,
        put: Option<(&str, &VmId)>,
    ) -> Result<Progress, DriverError> {
        let name = "NetworkInterfaces_CreateOrUpdate";
        let etag = interface.etag().ok_or_else(|| unreadable("NetworkInterfaces_Get", &"it has no etag"))?;
        let etag =
            HeaderValue::from_str(etag).map_err(|error| unreadable("NetworkInterfaces_Get", &error))?;
        let condition = (!plan::sabotaged!(ConditionForgotten)).then_some((header::IF_MATCH, etag));
        let headers = HeaderMap::from_iter(condition);
        let path = resource_path(interface.id());
        let body = interface.with_public(place, put.map(|(id, _)| id));
        let body =
            body.ok_or_else(|| unreadable("NetworkInterfaces_Get", &"an IP configuration is incomplete"))?;
        let answer = self.api.call_with_headers(name, Method::PUT, &path, headers, Some(body)).await?;
        let (headers, body): (_, Value) = answer;
        // A response without a body means that Azure has only accepted the change.
        let state = if body.is_null() { State::Changing } else { State::told_by(&body) };
        Ok(self.progress(scope, address, put.map(|(_, vm)| vm), path, &headers, state))
    }

    /// The progress of a change, from the response to it.
    fn progress(
        &self,
        scope: &Scope,
        address: Address,
        target: Option<&VmId>,
        path: Path,
        headers: &HeaderMap,
        state: State,
    ) -> Progress {
        let link = operation_of(headers);
        if link.is_none() && state == State::Settled {
            return Progress::Done;
        }
        // Without a link to an operation, the driver polls the resource itself.
        let id = link.unwrap_or(path).to_string();
        self.rest(&id, headers);
        Progress::Underway(Operation {
            id,
            scope: scope.clone(),
            address,
            target: target.cloned(),
            completes: true,
        })
    }

    /// Delays the next poll of an operation as `Retry-After` asks.
    fn rest(&self, id: &str, headers: &HeaderMap) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pause) = retry_after(headers) {
            resting.insert(id.to_owned(), later(Instant::now(), pause.min(POLL_AFTER_MAX)));
        }
    }

    fn is_resting(&self, id: &str) -> bool {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.get(id).is_some_and(|until| Instant::now() < *until)
    }

    async fn poll_one(&self, operation: &Operation) -> Result<Polled, DriverError> {
        let id = &operation.id;
        if self.is_resting(id) {
            return Ok(Polled::StillUnderway);
        }
        let name = "Operations_Get";
        let path = Path::encoded(id);
        let answer = self.api.call_with_headers(name, Method::GET, &path, HeaderMap::new(), None).await;
        let polled = match answer {
            // Azure keeps operations long after they have ended, so this one is not running.
            Err(DriverError::NotFound(message)) => Polled::Failed(DriverError::NotFound(message)),
            // Without the permission to read operations, polling again does not help. The caller can still list what
            // the operation changes.
            Err(error @ (DriverError::Denied { .. } | DriverError::Invalid(_))) => Polled::Failed(error),
            Err(error) => return Err(error),
            Ok((headers, body)) => {
                let polled = ended(&body).ok_or_else(|| unreadable(name, &"it has no status"))?;
                self.rest(id, &headers);
                polled
            }
        };
        if polled != Polled::StillUnderway {
            self.resting.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
        Ok(polled)
    }

    /// Creates an address and waits until Azure has assigned an IP address. This is the only call that waits. If it
    /// takes too long, a later listing finds the address by its tag.
    async fn create_one(
        &self,
        scope: &Scope,
        region: &str,
        tag: Option<&str>,
    ) -> Result<Address, DriverError> {
        let (id, path) = self.ask_for_address(scope, region, tag).await?;
        for _ in 0..CREATE_LOOKS_MAX {
            let found = self.api.call("PublicIPAddresses_Get", Method::GET, &path, None).await;
            let found: PublicIp = found.map_err(|error| unseen(&id, &error))?;
            match (found.state(), found.address()) {
                (State::Settled, Some(address)) => return Ok(address),
                (State::Failed, _) => {
                    return Err(DriverError::Invalid(format!(
                        "Azure could not create {id}: see its status in the Azure portal"
                    )));
                }
                _ => tokio::time::sleep(CREATE_LOOK_EVERY).await,
            }
        }
        Err(DriverError::Unavailable(format!("Azure has not assigned an IP address to {id} yet")))
    }

    /// Requests a new address with an unused name, and returns its resource ID and path. The request is idempotent.
    async fn ask_for_address(
        &self,
        scope: &Scope,
        region: &str,
        tag: Option<&str>,
    ) -> Result<(String, Path), DriverError> {
        let group = self.group.as_deref().ok_or_else(|| {
            DriverError::Invalid(
                "AZURE_RESOURCE_GROUP is not set: set it to the resource group for new addresses".into(),
            )
        })?;
        let _naming = self.naming.lock().await;
        let listed = self.list_addresses(scope).await?;
        let parent = format!("subscriptions/{}/resourceGroups/{group}", scope.account);
        let id = |name: &String| format!("{parent}/providers/Microsoft.Network/publicIPAddresses/{name}");
        // An address whose creation failed has no IP address. Its name is used again.
        let has_name = |found: &&PublicIp| found.state() != State::Failed || found.address().is_some();
        let is_taken =
            |name: &String| listed.iter().filter(has_name).any(|found| is_same(&found.id, &id(name)));
        let names = (1_usize..).map(|number| format!("{}-{number}", tag.unwrap_or(TAG)));
        let name = names.into_iter().find(|name| !is_taken(name)).unwrap_or_default();
        let path = Path::new(
            "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/publicIPAddresses/{}?api-version={}",
            &[&scope.account, &group, &name, &NETWORK_API],
        );
        let mut body = json!({
            "location": region,
            "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"},
        });
        if let Some(tag) = tag {
            body["tags"] = json!({ TAG: tag });
        }
        let call = "PublicIPAddresses_CreateOrUpdate";
        let _: Value = self.api.call(call, Method::PUT, &path, Some(body)).await?;
        Ok((id(&name), path))
    }

    /// Deletes an address. Azure rejects this while something holds the address.
    async fn delete(&self, scope: &Scope, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let public = match self.read_address(scope, address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            public => public?,
        };
        check_tag(address, public.tag(), tag)?;
        let path = resource_path(&public.id);
        let name = "PublicIPAddresses_Delete";
        match self.api.call_with_headers(name, Method::DELETE, &path, HeaderMap::new(), None).await {
            // If the response has no link to an operation, Azure may only have accepted the deletion. So the driver looks
            // whether the address is gone.
            Ok((headers, _)) if operation_of(&headers).is_none() => {
                match self.api.call::<PublicIp>("PublicIPAddresses_Get", Method::GET, &path, None).await {
                    Err(DriverError::NotFound(_)) => Ok(Progress::Done),
                    Ok(_) => Err(DriverError::Unavailable(format!("Azure has not deleted {address} yet"))),
                    Err(error) => Err(DriverError::Unavailable(format!(
                        "Azure accepted the deletion of {address}, which can't be read: {error}"
                    ))),
                }
            }
            Ok((headers, body)) => {
                Ok(self.progress(scope, address, None, path, &headers, State::told_by(&body)))
            }
            Err(DriverError::NotFound(_)) => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }

    /// Lists VMs. Azure lists only the VMs that the role covers. A VM that is not listed but has an interface exists,
    /// so it counts as running.
    async fn list_machines(&self, scope: &Scope) -> Result<BTreeMap<VmId, MachineState>, DriverError> {
        let name = "VirtualMachines_ListAll";
        let path = Path::new(
            "subscriptions/{}/providers/Microsoft.Compute/virtualMachines?api-version={}&statusOnly=true",
            &[&scope.account, &COMPUTE_API],
        );
        let interfaces = self.list_interfaces(scope).await?;
        let present = interfaces.iter().filter_map(Interface::machine);
        let mut machines: BTreeMap<_, _> = present.map(|vm| (vm, MachineState::Running)).collect();
        for found in self.list_pages::<Machine>(name, path).await? {
            let id = ResourceId::parse(&found.id).ok_or_else(|| unreadable(name, &found.id))?;
            machines.insert(id.as_holder(), found.state());
        }
        Ok(machines)
    }
}

impl AddressDriver for Azure {
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.list_subscription(scope).boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.attach_to(scope, address, vm).boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.detach_from(scope, address, vm).boxed()
    }

    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.create_one(scope, region, tag).boxed()
    }

    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.delete(scope, address, tag).boxed()
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        join_all(operations.iter().map(|operation| self.poll_one(operation))).boxed()
    }

    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.list_machines(scope).boxed()
    }

    fn properties(&self) -> Properties {
        // A write of an interface replaces the address that it has.
        Properties { moves_in_one_call: false, refuses_occupied: false, staleness_max: Duration::ZERO }
    }
}
