//! Static external addresses of Google Compute Engine.
//!
//! A VM holds an address as the `natIP` of an access config of a network interface. Each interface can have one access
//! config. So the driver has to remove an ephemeral address before it can attach a static one, and a VM that loses its
//! static address has no external address until it gets another one. Every change is an asynchronous operation.
//!
//! `attach` and `restore` use only the first interface of a VM. `detach` removes the address from whichever interface
//! has it, because the list of addresses names the VM and not the interface
//! (`docs/decisions/0016-an-address-is-held-by-a-machine.md`). An access config contains the name of the public PTR
//! record. `detach` reports that name before it removes the config, and `attach` sets it again.
//!
//! ```text
//! call                          used for                              permission
//! addresses.aggregatedList      list, and whether a natIP is static   compute.addresses.list
//! instances.get                 attach, restore, detach, and list     compute.instances.get
//!                                 without the permission above
//! instances.aggregatedList      machines                              compute.instances.list
//! instances.deleteAccessConfig  attach (an ephemeral one), detach     compute.instances.deleteAccessConfig
//! instances.addAccessConfig     attach, restore (an ephemeral one)    compute.instances.addAccessConfig,
//!                                                                     compute.addresses.use,
//!                                                                     compute.subnetworks.useExternalIp
//! zoneOperations.list           poll, several of one zone             compute.zoneOperations.list
//! zoneOperations.get            poll one; poll each, without the      compute.zoneOperations.get
//!                                 permission above
//! instances.get                 poll, without either permission:      compute.instances.get
//!                                 whether the VM shows the change
//! addresses.insert              create                                compute.addresses.create,
//!                                                                     compute.addresses.setLabels
//! addresses.get                 create: read the new address          compute.addresses.get
//! addresses.delete              release                               compute.addresses.delete
//! regionOperations.get          create, release                       compute.regionOperations.get
//! ```
//!
//! The driver polls operations with `list` and `get`, which return at once. It does not use `wait`, which can take two
//! minutes: a call that exceeds its deadline has an unknown outcome. A new address has its tag as a label. Only
//! `create` waits for its operation, for a few seconds, because it returns the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{Method, Response, StatusCode};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, Holding, MachineState, MayBeOn, Scope, VmId};
use serde_json::json;
use tokio::time::Instant;

use super::bodies::{AccessConfig, AddressBody, Instance, NetworkInterface, OperationBody};
use super::calls::{
    RATE_LIMITED, config_of, explain, filter_for, first_of, instance_path, last_part, region_operation,
};
use super::change::{Change, What};
use super::machine_id::parts_of;
use crate::budget::{Counting, part_after};
use crate::error::check_tag;
use crate::http::{HttpService, JsonApi, Path, contains, unreadable, unseen};
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listing, Operation, Polled, Progress, Properties};

/// The default URL of Compute Engine. `GOOGLE_COMPUTE_CUSTOM_ENDPOINT` overrides it.
pub const DEFAULT_URL: &str = "https://compute.googleapis.com/compute/v1";

/// Every call this driver makes.
pub const CALLS: &[&str] = &[
    "addresses.aggregatedList",
    "instances.get",
    "instances.deleteAccessConfig",
    "instances.addAccessConfig",
    "instances.aggregatedList",
    "zoneOperations.list",
    "zoneOperations.get",
    "addresses.insert",
    "addresses.get",
    "addresses.delete",
    "regionOperations.get",
];

/// Google counts by project. It reports an exceeded rate limit with 403 or 429.
pub fn counting() -> Counting {
    let is_throttled = |response: &Response<Bytes>| match response.status() {
        StatusCode::FORBIDDEN => RATE_LIMITED.iter().any(|reason| contains(response, reason)),
        status => status == StatusCode::TOO_MANY_REQUESTS,
    };
    Counting { unit: |request| part_after(request, "projects"), is_throttled }
}

/// The quota of one group of calls. The driver counts all calls together, which is stricter.
pub const REQUESTS_PER_MINUTE: usize = 1_500;

/// How long a removal may take whose response was lost. Google's operations on VMs take seconds.
const OPERATION_MAX: Duration = Duration::from_secs(60);

const ACCESS_CONFIG_NAME: &str = "external-nat";

/// The key of the label on addresses that the controller creates. The value of the label is the tag. An address without
/// a tag has no label, and this key is the prefix of its name.
pub(super) const LABEL: &str = "ip-address-controller";

/// How often, and at which interval, `create` polls its operation.
const CREATE_POLLS: usize = 16;
const CREATE_POLL_PAUSE: Duration = Duration::from_millis(500);

/// Moves static external addresses between instances.
pub struct Compute {
    pub(super) api: JsonApi,
    /// The network tier of each address, from the last listing. The access config must have the same tier.
    pub(super) tiers: Mutex<BTreeMap<Address, String>>,
    /// Names that addresses have or that `create` has requested, so that the next address gets another name.
    pub(super) names: Mutex<BTreeSet<String>>,
    /// For each API method that reads operations: when Google last denied the permission for it.
    pub(super) denied: Mutex<BTreeMap<&'static str, Instant>>,
    /// The changes that running operations make, by operation ID.
    pub(super) changes: Mutex<BTreeMap<String, Change>>,
    /// The PTR names of addresses that are being moved.
    pub(super) ptrs: Mutex<BTreeMap<Address, Arc<str>>>,
    /// VMs from which a request without a response may still remove an access config, and when it was sent.
    removals: Mutex<BTreeMap<VmId, Instant>>,
}

impl Compute {
    /// Creates a driver for all projects that the token can access.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self {
            api: JsonApi::new(service, url, tokens, explain),
            tiers: Mutex::default(),
            names: Mutex::default(),
            denied: Mutex::default(),
            changes: Mutex::default(),
            ptrs: Mutex::default(),
            removals: Mutex::default(),
        }
    }

    /// Takes the next step of attaching an address.
    async fn advance_attach(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
        may_replace: bool,
    ) -> Result<Progress, DriverError> {
        refuse_ipv6(address)?;
        let interfaces = self.interfaces(vm).await?;
        let first = first_of(&interfaces, vm)?;
        match config_of(&interfaces, address) {
            Some((interface, _)) if interface.name == first.name => return Ok(Progress::Done),
            Some((interface, _)) => {
                return Err(DriverError::Conflict(format!(
                    "{address} is on interface {} of {vm}: detach it there, because the controller attaches addresses only to {}",
                    interface.name, first.name
                )));
            }
            None => {}
        }
        let Some(present) = first.access_configs.first() else {
            return self.add_access_config(scope, address, vm, &first.name, Some(address)).await;
        };
        if let Some(found) = present.address() {
            self.check_replaceable(scope, address, vm, found).await?;
        }
        match may_replace {
            false => Ok(Progress::Occupied),
            true => self.delete_access_config(scope, address, vm, &first.name, present, Some(vm)).await,
        }
    }

    async fn advance_restore(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
    ) -> Result<Progress, DriverError> {
        let interfaces = match self.interfaces(vm).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            interfaces => interfaces?,
        };
        // An abandoned attach may have taken effect after all. Then the VM holds the static address, which is not an
        // ephemeral one.
        if config_of(&interfaces, address).is_some() {
            let message = format!("{vm} still holds {address}, so its ephemeral address can't be restored");
            return Err(DriverError::Conflict(message));
        }
        let first = first_of(&interfaces, vm)?;
        match first.access_configs.is_empty() {
            false if self.may_be_removed(vm) => Err(DriverError::Conflict(format!(
                "an earlier request may still remove the ephemeral address of {vm}; the controller checks again later"
            ))),
            false => Ok(Progress::Done),
            true => self.add_access_config(scope, address, vm, &first.name, None).await,
        }
    }

    async fn advance_detach(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
    ) -> Result<Progress, DriverError> {
        refuse_ipv6(address)?;
        let interfaces = match self.interfaces(vm).await {
            // A deleted VM holds no address.
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            interfaces => interfaces?,
        };
        let Some((mut interface, mut present)) = config_of(&interfaces, address) else {
            return Ok(Progress::Done);
        };
        let first = first_of(&interfaces, vm)?;
        if interface.name != first.name {
            tracing::info!(%address, %vm, interface = interface.name, "address is not on the first interface");
            if let (true, Some(wrong)) =
                (plan::sabotaged!(WrongInterfaceDetached), first.access_configs.first())
            {
                (interface, present) = (first, wrong);
            }
        }
        if let Some(name) = self.unreported_ptr(address, present) {
            return Ok(Progress::Named(name));
        }
        self.delete_access_config(scope, address, vm, &interface.name, present, None).await
    }

    /// Returns the PTR name of an address that is about to be detached, unless it was already reported. If the config
    /// has no name, the driver forgets the stored one.
    fn unreported_ptr(&self, address: Address, config: &AccessConfig) -> Option<Arc<str>> {
        let mut ptrs = self.ptrs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(name) = config.ptr() else {
            ptrs.remove(&address);
            return None;
        };
        let before = ptrs.insert(address, name.into());
        (before.as_deref() != Some(name)).then(|| name.into())
    }

    /// Checks that the VM's current address is ephemeral and that the new address is free, so that no VM loses its
    /// address without getting the new one.
    async fn check_replaceable(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
        found: Address,
    ) -> Result<(), DriverError> {
        let listing = match self.list_project(&scope.account, &filter_for(&[address, found])).await {
            // A conflict makes the planner choose another VM, which may have no address.
            Err(DriverError::Denied { permission, .. }) => {
                return Err(DriverError::Conflict(format!(
                    "without {permission} the controller can't tell whether {found} on {vm} is static, so it does not replace it"
                )));
            }
            listing => listing?,
        };
        if may_be_near(&listing.unlisted_may_be_on, vm) {
            // A conflict, because nothing was sent that could still take effect.
            return Err(DriverError::Conflict(format!(
                "can't tell whether {found} is static: {} did not answer",
                listing.unreachable.join(", ")
            )));
        }
        if listing.addresses.contains_key(&found) {
            return Err(DriverError::Conflict(format!("{vm} already holds the static address {found}")));
        }
        match listing.get(address).holding {
            Holding::Free => Ok(()),
            Holding::By(holder) => Err(DriverError::Conflict(format!(
                "{address} is on {holder}, so the controller does not replace the ephemeral address {found} of {vm}"
            ))),
            Holding::Missing | Holding::Unknown(_) => Err(DriverError::NotFound(format!(
                "{address} does not exist in the project, so the controller does not replace the ephemeral address {found} of {vm}"
            ))),
        }
    }

    async fn ask_for_new(
        &self,
        scope: &Scope,
        region: &str,
        tag: Option<&str>,
    ) -> Result<Address, DriverError> {
        let name = self.new_name(tag.unwrap_or(LABEL));
        let addresses = Path::new("projects/{}/regions/{}/addresses", &[&scope.account, &region]);
        let mut body = json!({"name": name, "addressType": "EXTERNAL"});
        if let Some(tag) = tag {
            body["labels"] = json!({LABEL: tag});
        }
        let begun = self.api.call("addresses.insert", Method::POST, &addresses, Some(body)).await;
        let begun: OperationBody = begun.inspect_err(|error| self.forget_unused_name(&name, error))?;
        let operation = region_operation(scope, region, &begun);
        for _ in 0..CREATE_POLLS {
            match self.poll_path(&operation).await.map_err(|error| unseen(&name, &error))? {
                Polled::StillUnderway => tokio::time::sleep(CREATE_POLL_PAUSE).await,
                Polled::Failed(error) => {
                    self.forget_unused_name(&name, &error);
                    return Err(error);
                }
                Polled::Ended => {
                    let path = addresses.clone().and("/{}", &[&name]);
                    let made = self.api.call("addresses.get", Method::GET, &path, None).await;
                    let made: AddressBody = made.map_err(|error| unseen(&name, &error))?;
                    let address = made.address.as_deref().and_then(|text| text.parse().ok());
                    return address.ok_or_else(|| unreadable("addresses.get", &"it has no address"));
                }
            }
        }
        Err(DriverError::Unavailable(format!(
            "{name} is still being created; the next listing will include it"
        )))
    }

    /// A name that no known address has and that was not requested before.
    fn new_name(&self, prefix: &str) -> String {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (1_u32..).map(|number| format!("{prefix}-{number}")).find(|name| !names.contains(name));
        let name = free.unwrap_or_default();
        names.insert(name.clone());
        name
    }

    /// Forgets a requested name that no address can have got. Otherwise the numbers in the names grow with each refused
    /// request, until the names are longer than Google allows.
    fn forget_unused_name(&self, name: &str, error: &DriverError) {
        if !matches!(error, DriverError::Unavailable(_) | DriverError::Conflict(_)) {
            self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
    }

    async fn give_back(&self, scope: &Scope, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let mut unreachable = Vec::new();
        let found = self.found(&scope.account, &filter_for(&[address]), &mut unreachable).await?;
        let Some((_, found)) = found.into_iter().find(|(found, _)| *found == address) else {
            if unreachable.is_empty() {
                return Ok(Progress::Done);
            }
            let message =
                format!("can't tell whether {address} exists: {} did not answer", unreachable.join(", "));
            return Err(DriverError::Unavailable(message));
        };
        if let Some(user) = found.users.first() {
            return Err(DriverError::Conflict(format!(
                "{address} is used by {user}, so it was not released"
            )));
        }
        check_tag(address, found.labels.get(LABEL).map(String::as_str), tag)?;
        let region = found.region.as_deref().and_then(last_part).ok_or_else(|| {
            DriverError::Invalid(format!(
                "{address} is a global address; the controller releases only regional ones"
            ))
        })?;
        let path = Path::new("projects/{}/regions/{}/addresses/{}", &[&scope.account, &region, &found.name]);
        let begun: OperationBody = self.api.call("addresses.delete", Method::DELETE, &path, None).await?;
        let id = region_operation(scope, region, &begun).to_string();
        Ok(Progress::Underway(Operation { id, scope: scope.clone(), address, target: None, completes: true }))
    }

    pub(super) async fn interfaces(&self, vm: &VmId) -> Result<Vec<NetworkInterface>, DriverError> {
        let name = "instances.get";
        let instance: Instance = self.api.call(name, Method::GET, &instance_path(vm)?, None).await?;
        Ok(instance.network_interfaces)
    }

    async fn add_access_config(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
        interface: &str,
        nat_ip: Option<Address>,
    ) -> Result<Progress, DriverError> {
        let name = "instances.addAccessConfig";
        let path = instance_path(vm)?.and("/addAccessConfig?networkInterface={}", &[&interface]);
        let mut body = json!({"name": ACCESS_CONFIG_NAME, "type": "ONE_TO_ONE_NAT"});
        if let Some(address) = nat_ip {
            body["natIP"] = address.to_string().into();
            let tiers = self.tiers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(tier) = tiers.get(&address) {
                body["networkTier"] = tier.as_str().into();
            }
        }
        let ptrs = || self.ptrs.lock().unwrap_or_else(PoisonError::into_inner);
        let ptr = nat_ip.and_then(|address| ptrs().get(&address).cloned());
        let mut with_ptr = body.clone();
        if let Some(ptr) = &ptr {
            with_ptr["setPublicPtr"] = true.into();
            with_ptr["publicPtrDomainName"] = (&**ptr).into();
        }
        let operation = match self.api.call(name, Method::POST, &path, Some(with_ptr)).await {
            // Google sets a PTR record only for an account that owns the domain. Attach the address without the name.
            Err(error @ DriverError::Invalid(_)) if ptr.is_some() => {
                tracing::warn!(%address, %vm, ptr = ptr.as_deref(), %error, "attaching the address without its PTR name");
                self.api.call(name, Method::POST, &path, Some(body)).await?
            }
            operation => operation?,
        };
        let change = self.change(vm, interface, What::Adds(nat_ip));
        self.underway(operation, scope, address, change, nat_ip.map(|_| vm), true)
    }

    /// Whether an access config of a VM may disappear without another request: an operation whose response was lost can
    /// run for a while.
    fn may_be_removed(&self, vm: &VmId) -> bool {
        let mut removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        removals.retain(|_, sent| sent.elapsed() < OPERATION_MAX);
        removals.contains_key(vm)
    }

    async fn delete_access_config(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
        interface: &str,
        config: &AccessConfig,
        target: Option<&VmId>,
    ) -> Result<Progress, DriverError> {
        let name = "instances.deleteAccessConfig";
        let path = instance_path(vm)?
            .and("/deleteAccessConfig?accessConfig={}&networkInterface={}", &[&config.name, &interface]);
        let operation = self.api.call(name, Method::POST, &path, None).await;
        if matches!(operation, Err(DriverError::Unavailable(_))) {
            self.removals.lock().unwrap_or_else(PoisonError::into_inner).insert(vm.clone(), Instant::now());
        }
        let operation = operation?;
        let change = self.change(vm, interface, What::Removes(config.clone()));
        self.underway(operation, scope, address, change, target, target.is_none())
    }
}

impl AddressDriver for Compute {
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.list_project(&scope.account, "").boxed()
    }

    fn list_one_by_one<'a>(
        &'a self,
        _: &'a Scope,
        addresses: &'a BTreeSet<Address>,
        machines: &'a BTreeSet<VmId>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.ask_machines(addresses, machines).boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.advance_attach(scope, address, vm, false).boxed()
    }

    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.advance_attach(scope, address, vm, true).boxed()
    }

    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.advance_restore(scope, address, vm).boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.advance_detach(scope, address, vm).boxed()
    }

    fn keep_ptr(&self, address: Address, name: &str) {
        self.ptrs.lock().unwrap_or_else(PoisonError::into_inner).insert(address, name.into());
    }

    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.ask_for_new(scope, region, tag).boxed()
    }

    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.give_back(scope, address, tag).boxed()
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        self.poll_all(operations).boxed()
    }

    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.list_machines(&scope.account).boxed()
    }

    fn properties(&self) -> Properties {
        // The API rejects a second access config of an interface, but not one of another interface of the VM.
        Properties { moves_in_one_call: false, refuses_occupied: false, staleness_max: Duration::ZERO }
    }
}

/// Whether addresses that are missing in a listing may be in the region of a VM.
fn may_be_near(missing: &MayBeOn, vm: &VmId) -> bool {
    let zone = parts_of(vm).map_or("", |(_, zone, _)| zone);
    let region = zone.rsplit_once('-').map(|(region, _)| region);
    match missing {
        MayBeOn::Regions(regions) => region.is_none_or(|region| regions.contains(region)),
        MayBeOn::Any | MayBeOn::Only(_) | MayBeOn::AllBut(_) => true,
    }
}

/// Rejects IPv6 addresses: they can't be a `natIP`. A VM gets them from the range of its subnetwork, with another kind
/// of access config.
fn refuse_ipv6(address: Address) -> Result<(), DriverError> {
    match address.0 {
        IpAddr::V4(_) => Ok(()),
        IpAddr::V6(_) => Err(DriverError::Invalid(format!("{address}: {}", plan::NO_IPV6))),
    }
}
