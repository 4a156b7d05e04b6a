//! Azure's public IP addresses.
//!
//! An address is on a machine as the `publicIPAddress` of a configuration of one of its network interfaces. So moving it is
//! two writes of interfaces, each of which replaces the whole interface and is an operation that Azure carries out on its own
//! time. Azure itself refuses an address that another interface has, and an interface that is not any more as it was read.
//!
//! ```text
//! call                               used for                          action in a role
//! PublicIPAddresses_ListAll          list, create (names in use)       Microsoft.Network/publicIPAddresses/read
//! PublicIPAddresses_Get              attach, detach, release, create   Microsoft.Network/publicIPAddresses/read
//! NetworkInterfaces_ListAll          list, machines                    Microsoft.Network/networkInterfaces/read
//! NetworkInterfaces_Get              attach, detach                    Microsoft.Network/networkInterfaces/read
//! NetworkInterfaces_CreateOrUpdate   attach, detach                    Microsoft.Network/networkInterfaces/write,
//!                                                                      and to join what the interface refers to
//! PublicIPAddresses_CreateOrUpdate   create                            Microsoft.Network/publicIPAddresses/write
//! PublicIPAddresses_Delete           release                           Microsoft.Network/publicIPAddresses/delete
//! VirtualMachines_ListAll            machines                          Microsoft.Compute/virtualMachines/read
//! Operations_Get                     poll                              Microsoft.Network/locations/operations/read
//! ```
//!
//! A machine at Azure has no address of its own that comes and goes with it: whatever is on its interface is a resource that
//! somebody made, and is never taken off. What an address is called is remembered from the last listing, and the address
//! is read before every change, so that one that has got another's name in the meantime is not touched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Method, Request, header};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use plan::{Address, Holding, MachineState, Scope, VmId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::bodies::{HolderId, Machine, Page, PublicIp, TAG};
use super::calls::{NETWORK_API, ended, explain, network_list, path_of, resource_path};
use super::ids::{ResourceId, is_same};
use super::interface::{Interface, State};
use crate::address::CHANGING;
use crate::budget::{Limit, Rate};
use crate::error::{check_tag, not_held_by};
use crate::http::{HttpService, JsonApi, Path, retry_after, unreadable, unseen};
use crate::times::later;
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listed, Listing, Operation, Polled, Progress, Tags, Traits};

/// Azure Resource Manager's address where `AZURE_RESOURCE_MANAGER_ENDPOINT` does not say otherwise.
pub const DEFAULT_URL: &str = "https://management.azure.com";

/// Every call this driver makes, by the vendor's name; the last has none, because operations are found by links.
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

/// A listing that has not ended after so many pages is broken, not long.
const PAGES_MAX: usize = 500;

/// An operation is asked for again after so long at the most, whatever Azure says.
const POLL_AFTER_MAX: Duration = Duration::from_secs(30);

/// How often a new address is looked at until it has got its number, and the pause in between.
const CREATE_LOOKS_MAX: usize = 20;
const CREATE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// What Azure lets one identity do in one subscription, and what its network part lets all of them do. Each region has limits
/// of its own, and deletions have; counting all of them together errs on the safe side.
pub fn limits() -> [Limit; 4] {
    let is_read = |request: &Request<Bytes>| request.method() == Method::GET;
    let is_write = |request: &Request<Bytes>| request.method() != Method::GET;
    let window = Duration::from_secs(300);
    [
        Limit::bucket(is_read, 250, 25),
        Limit::bucket(is_write, 200, 10),
        Limit { counts: is_read, rate: Rate::Window { requests_max: 10_000, window } },
        Limit { counts: is_write, rate: Rate::Window { requests_max: 1_000, window } },
    ]
}

/// Moves public IP addresses between virtual machines.
pub struct Azure {
    api: JsonApi,
    /// The resource group in which addresses are created.
    group: Option<String>,
    known: Mutex<BTreeMap<Scope, Known>>,
    /// When Azure wants to be asked for an operation again.
    resting: Mutex<BTreeMap<String, Instant>>,
    /// Held while a name for a new address is chosen, so that two don't get the same one.
    naming: tokio::sync::Mutex<()>,
}

/// What things are called, as last listed.
#[derive(Clone, Default)]
struct Known {
    /// The ids of addresses.
    addresses: BTreeMap<Address, String>,
    /// The ids of machines' interfaces.
    interfaces: BTreeMap<VmId, String>,
}

impl Azure {
    /// A driver for all subscriptions that the token may use. Addresses are created in the given resource group.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>, group: Option<String>) -> Self {
        Self {
            api: JsonApi::new(service, url, tokens, explain),
            group,
            known: Mutex::default(),
            resting: Mutex::default(),
            naming: tokio::sync::Mutex::default(),
        }
    }

    /// All items of a paged listing.
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
        Err(unreadable(name, &"it does not end"))
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
            // Any interface is better than none, and the primary one better than any.
            if let Some(vm) = interface.holder() {
                let found = known.interfaces.entry(vm).or_insert_with(|| interface.id().to_owned());
                if interface.is_primary() {
                    interface.id().clone_into(found);
                }
            }
        }
        let by_id: BTreeMap<_, _> =
            interfaces.iter().map(|interface| (interface.id().to_lowercase(), interface)).collect();
        let changing: Vec<_> =
            interfaces.iter().filter(|interface| interface.state() == State::Changing).collect();
        let mut listing = Listing { tags: Tags::Told, ..Listing::default() };
        for found in addresses {
            let Some(address) = found.address() else {
                // One that is being created for somebody has a tag and no number yet.
                if found.tag().is_some() && found.state() == State::Changing {
                    listing.tags = Tags::Untold;
                }
                continue;
            };
            let interface = |id: &str| by_id.get(&id.to_lowercase()).copied();
            let is_coming = || changing.iter().any(|interface| interface.place_of(&found.id).is_some());
            let holding = match found.holding(interface) {
                // The interface may name it before it names the interface.
                Holding::Free if is_coming() => Holding::Unknown(CHANGING.into()),
                holding => holding,
            };
            if let Some(HolderId::Interface(id)) = found.holder()
                && interface(&id).is_some_and(|interface| interface.state() == State::Failed)
            {
                listing.doubtful.insert(address);
            }
            let region = found.location.as_deref().map(|location| location.to_lowercase().into());
            let tag = found.tag().map(Into::into);
            listing.addresses.insert(address, Listed { holding, region, tag });
            known.addresses.insert(address, found.id);
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(scope.clone(), known);
        Ok(listing)
    }

    /// What was called so when it was last listed; where it was not, it is listed again.
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

    /// An address as it is now. A name that was given to another address since is not taken for the one that is meant.
    async fn read_address(&self, scope: &Scope, address: Address) -> Result<PublicIp, DriverError> {
        let id = self.called(scope, &address, |known| known.addresses.get(&address).cloned()).await?;
        let read = self.api.call("PublicIPAddresses_Get", Method::GET, &resource_path(&id), None).await;
        if let Ok(found) = &read
            && PublicIp::address(found) == Some(address)
        {
            return read;
        }
        if matches!(read, Ok(_) | Err(DriverError::NotFound(_))) {
            // It may have another name by now, which the next look will tell.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(scope);
            return Err(DriverError::NotFound(format!("{address} is not called {id} any more")));
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
        // It may be on another interface of the machine already.
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
            return Err(DriverError::Conflict(format!("{id} does not belong to {vm} any more")));
        }
        if let (Some(here), Some(there)) = (interface.location(), &public.location)
            && !here.eq_ignore_ascii_case(there)
        {
            return Err(DriverError::Invalid(format!("{address} is in {there}, and {vm} is in {here}")));
        }
        let Some(place) = interface.place_of(&public.id).or_else(|| interface.place_for(address)) else {
            return Err(DriverError::Invalid(format!(
                "{id} has no configuration that {address} could be in"
            )));
        };
        if public.state() == State::Changing || interface.state() == State::Changing {
            return Err(DriverError::Conflict(format!("{address} or {vm}: {CHANGING}")));
        }
        match interface.public_at(place) {
            Some(present) if !is_same(present, &public.id) => {
                return Err(DriverError::Conflict(format!("{vm} already has the address {present}")));
            }
            // A change that has failed is asked for again: what is told then may be what was wanted, and not what is.
            Some(_) if interface.state() == State::Settled => return Ok(Progress::Done),
            Some(_) => {}
            None => {
                if let Some(holder) = public.holder() {
                    return Err(DriverError::Conflict(format!("{address} is held by {holder}")));
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
                // An interface that is gone holds nothing.
                Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
                interface => interface?,
            },
            HolderId::Other(other) if other == *vm => {
                let message = format!("{address} is part of {other}: take it off there");
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

    /// Writes an interface, if it is still as it was read, with one address in one place or with none in it.
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
        let answer = self.api.call_with_headers(name, Method::PUT, &path, headers, Some(body)).await?;
        let (headers, told): (_, Value) = answer;
        // Who tells nothing of the interface has accepted the change, and no more.
        let state = if told.is_null() { State::Changing } else { State::told_by(&told) };
        Ok(self.progress(scope, address, put.map(|(_, vm)| vm), path, &headers, state))
    }

    /// How far a change has come, by the answer to it.
    fn progress(
        &self,
        scope: &Scope,
        address: Address,
        target: Option<&VmId>,
        path: Path,
        headers: &HeaderMap,
        state: State,
    ) -> Progress {
        let link = headers.get("azure-asyncoperation").and_then(|link| path_of(link.to_str().ok()?));
        if link.is_none() && state == State::Settled {
            return Progress::Done;
        }
        // Without a link the resource itself says when its change has ended.
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

    /// Leaves an operation alone for as long as an answer about it asks.
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
            // Azure forgets operations long after they have ended.
            Err(DriverError::NotFound(message)) => Polled::Failed(DriverError::NotFound(message)),
            // Whoever may not look at operations never learns of their end that way; what they change can still be read.
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

    /// The answer to this is an address, so here, and nowhere else, it is waited until there is one. Where that takes too
    /// long, the address is found by its tag later.
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
                        "Azure could not create {id}: look at it there"
                    )));
                }
                _ => tokio::time::sleep(CREATE_LOOK_EVERY).await,
            }
        }
        Err(DriverError::Unavailable(format!("{id} was created and has no address yet")))
    }

    /// Asks for an address under a name that is not in use, and gives its id and path. Whoever asks twice gets one address.
    async fn ask_for_address(
        &self,
        scope: &Scope,
        region: &str,
        tag: Option<&str>,
    ) -> Result<(String, Path), DriverError> {
        let group = self.group.as_deref().ok_or_else(|| {
            DriverError::Invalid(
                "AZURE_RESOURCE_GROUP is not set, so addresses have no place to be created".into(),
            )
        })?;
        let _naming = self.naming.lock().await;
        let listed = self.list_addresses(scope).await?;
        let parent = format!("subscriptions/{}/resourceGroups/{group}", scope.account);
        let id = |name: &String| format!("{parent}/providers/Microsoft.Network/publicIPAddresses/{name}");
        // One that could not be created has no number, and is tried again under its name.
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

    /// Azure refuses to delete an address that something holds.
    async fn delete(&self, scope: &Scope, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let public = match self.read_address(scope, address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            public => public?,
        };
        check_tag(address, public.tag(), tag)?;
        let path = resource_path(&public.id);
        let name = "PublicIPAddresses_Delete";
        match self.api.call_with_headers(name, Method::DELETE, &path, HeaderMap::new(), None).await {
            Ok((headers, told)) => {
                Ok(self.progress(scope, address, None, path, &headers, State::told_by(&told)))
            }
            Err(DriverError::NotFound(_)) => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }

    /// Azure lists what the role covers, so a machine that is not listed may be there all the same. One that has an
    /// interface is.
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

    fn traits(&self) -> Traits {
        Traits { moves_in_one_call: false, late_max: Duration::ZERO }
    }
}
