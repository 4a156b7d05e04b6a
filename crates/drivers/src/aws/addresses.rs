//! Elastic IP addresses of Amazon EC2.
//!
//! The driver associates an address with the first network interface of an instance. EC2 finishes a change before it
//! responds, so there are no operations to poll. `AssociateAddress` never takes an address from its holder: the driver
//! always sends `AllowReassociation=false`. But the call silently replaces another Elastic IP address of the same
//! interface, so the driver reads the interface right before.
//!
//! ```text
//! call                             used for                                permission
//! DescribeAddresses                list; the holder, before detach and     ec2:DescribeAddresses
//!                                    release
//! DescribeInstances                machines; the first interface, before   ec2:DescribeInstances
//!                                    attach and restore
//! AssociateAddress                 attach; as a dry run before detach      ec2:AssociateAddress
//! DisassociateAddress              detach                                  ec2:DisassociateAddress
//! AllocateAddress                  create                                  ec2:AllocateAddress, ec2:CreateTags
//! ReleaseAddress                   release                                 ec2:ReleaseAddress
//! ModifyNetworkInterfaceAttribute  restore                                 ec2:ModifyNetworkInterfaceAttribute
//! ```
//!
//! **Ephemeral addresses.** An instance loses its ephemeral address when it gets an Elastic IP address. After the
//! Elastic IP address is disassociated, EC2 assigns a new ephemeral address, but not to an instance with several
//! interfaces, as nodes often have. So `restore` requests one.
//!
//! **Dry run before detach.** Before it disassociates an address, the driver checks with a dry run of
//! `AssociateAddress` that it may attach the address elsewhere. A success is valid for an hour in the same region.
//!
//! **Stale reads.** After EC2 has confirmed a change, a listing can still show the old state. For a while after a
//! change, the driver corrects what listings say about the changed address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::Request;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{
    Address as ElasticIp, DomainType, Filter, Instance, InstanceNetworkInterface,
    InstanceNetworkInterfaceAssociation, InstanceStateName, ResourceType, Tag, TagSpecification,
};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, Holding, MachineState, Scope, VmId};
use tokio::time::Instant;

use super::machine_id::{instance_of, is_region, vm_of};
use super::recent::Recent;
use super::{Aws, counting, explain};
use crate::budget::{Limit, budgeted};
use crate::error::{check_tag, not_held_by};
use crate::http::{quoted, unreadable};
use crate::{
    AddressDriver, DriverError, Listed, Listing, NotSent, Operation, Polled, Progress, Properties, Tags,
};

/// Every call this driver makes.
pub const CALLS: &[&str] = &[
    "DescribeAddresses",
    "DescribeInstances",
    "AssociateAddress",
    "DisassociateAddress",
    "AllocateAddress",
    "ReleaseAddress",
    "ModifyNetworkInterfaceAttribute",
];

/// The key of the tag on addresses that the controller creates. Its value is the tag that `create` got.
pub const TAG_KEY: &str = "ip-address-controller";

/// The owner ID of ephemeral addresses.
const AMAZON: &str = "amazon";

/// How long after a change EC2 can still return the old state. AWS documents no limit; a few seconds are usual.
pub const STALENESS_MAX: Duration = Duration::from_secs(30);

/// How long the result of the dry run of `AssociateAddress` is valid.
const ALLOWED_FOR: Duration = Duration::from_secs(3_600);

const PAGE_SIZE: i32 = 1_000;

/// The maximum number of pages. A longer listing is treated as an error.
const PAGES_MAX: usize = 200;

/// The rate limits of an account in one region. Each call has its own token bucket.
pub fn limits() -> Vec<Limit> {
    macro_rules! bucket {
        ($call:literal, $burst:literal, $per_second:literal) => {
            Limit::bucket(|request| action(request) == Some($call), $burst, $per_second)
        };
    }
    vec![
        // AWS halves the limit for calls without pagination.
        bucket!("DescribeAddresses", 50, 10),
        bucket!("DescribeInstances", 100, 20),
        bucket!("AssociateAddress", 50, 5),
        bucket!("DisassociateAddress", 50, 5),
        bucket!("AllocateAddress", 50, 5),
        bucket!("ReleaseAddress", 50, 5),
        bucket!("ModifyNetworkInterfaceAttribute", 50, 5),
    ]
}

/// The name of the EC2 call that a request makes.
pub fn action(request: &Request<Bytes>) -> Option<&str> {
    let mut pairs = request.body().split(|byte| *byte == b'&');
    let action = pairs.find_map(|pair| pair.strip_prefix(b"Action="))?;
    std::str::from_utf8(action).ok()
}

/// Whether a request changes nothing. Every call is a POST, so the method does not say it.
fn is_read(request: &Request<Bytes>) -> bool {
    let is_dry_run = || request.body().split(|byte| *byte == b'&').any(|pair| pair == b"DryRun=true");
    action(request).is_some_and(|action| action.starts_with("Describe")) || is_dry_run()
}

/// Moves Elastic IP addresses between instances.
pub struct Ec2 {
    aws: Arc<Aws>,
    limits: Vec<Limit>,
    clients: tokio::sync::Mutex<BTreeMap<Arc<str>, Client>>,
    /// The allocation ID of each address, from the last listing. An address that is released and allocated again gets
    /// another ID.
    allocations: Mutex<BTreeMap<Address, String>>,
    staleness_max: Duration,
    recent: Mutex<Recent>,
    /// When the dry run of `AssociateAddress` last succeeded in each region.
    allowed: Mutex<BTreeMap<Arc<str>, Instant>>,
}

impl Ec2 {
    /// Creates a driver for all regions of an account. The limits apply to each region. Reads can be stale for at most
    /// `staleness_max`.
    pub fn new(aws: Arc<Aws>, limits: Vec<Limit>, staleness_max: Duration) -> Self {
        Self {
            aws,
            limits,
            clients: Default::default(),
            allocations: Mutex::default(),
            staleness_max,
            recent: Mutex::new(Recent::new(staleness_max)),
            allowed: Mutex::default(),
        }
    }

    async fn client(&self, scope: &Scope) -> Result<Client, DriverError> {
        // The region becomes part of the name of the host that gets the signed request.
        if !is_region(&scope.account) {
            return Err(DriverError::Invalid(format!("{} is not an AWS region", quoted(&scope.account))));
        }
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(&scope.account) {
            return Ok(client.clone());
        }
        let around = |service| budgeted(service, &self.limits, counting());
        let client = Client::new(&self.aws.client(Some(&scope.account), is_read, around).await);
        clients.insert(Arc::clone(&scope.account), client.clone());
        Ok(client)
    }

    async fn list_region(&self, scope: &Scope) -> Result<Listing, DriverError> {
        let name = "ec2:DescribeAddresses";
        let found = self.client(scope).await?.describe_addresses().send().await;
        let found = found.map_err(|error| explain(name, error))?;
        let mut listing = Listing { tags: Tags::Complete, ..Listing::default() };
        // Addresses of Outposts and carriers have no public IP address. The driver ignores them.
        for elastic in
            found.addresses().iter().filter(|elastic| elastic.public_ip().is_some_and(|ip| !ip.is_empty()))
        {
            let (address, allocation) = named(name, elastic)?;
            self.allocations().insert(address, allocation.to_owned());
            listing.addresses.insert(address, listed(scope, elastic));
        }
        self.recent().correct(&scope.account, &mut listing);
        Ok(listing)
    }

    /// Reads one address. Returns a conflict if the result is older than the last confirmed change of the address.
    async fn read(&self, scope: &Scope, address: Address) -> Result<ElasticIp, DriverError> {
        let name = "ec2:DescribeAddresses";
        // With a filter, EC2 returns an empty list and no error if the address does not exist.
        let filter = Filter::builder().name("public-ip").values(address.to_string()).build();
        let found = self.client(scope).await?.describe_addresses().filters(filter).send().await;
        let mut found = found.map_err(|error| explain(name, error))?.addresses.unwrap_or_default();
        let shown = found.first().map_or(Holding::Missing, |elastic| holding(scope, elastic));
        if self.recent().is_late(&scope.account, address, &shown) {
            let message = format!("EC2 still returns {address} as it was before its last change");
            return Err(DriverError::Conflict(message));
        }
        match (found.pop(), found.is_empty()) {
            (Some(elastic), true) => Ok(elastic),
            (None, _) => {
                Err(DriverError::NotFound(format!("{address} is not an Elastic IP in {}", scope.account)))
            }
            _ => Err(unreadable(name, &"the response contains several addresses")),
        }
    }

    async fn allocation(&self, scope: &Scope, address: Address) -> Result<String, DriverError> {
        let known = self.allocations().get(&address).cloned();
        match known {
            Some(allocation) => Ok(allocation),
            None => {
                let elastic = self.read(scope, address).await?;
                named("ec2:DescribeAddresses", &elastic).map(|(_, allocation)| allocation.to_owned())
            }
        }
    }

    /// The primary network interface of an instance (device index 0).
    async fn first_interface(
        &self,
        scope: &Scope,
        vm: &VmId,
    ) -> Result<InstanceNetworkInterface, DriverError> {
        let name = "ec2:DescribeInstances";
        let instance = instance_of(vm)?;
        let found = self.client(scope).await?.describe_instances().instance_ids(instance).send().await;
        let found = found.map_err(|error| explain(name, error))?.reservations.unwrap_or_default();
        let instances = found.into_iter().flat_map(|reservation| reservation.instances.unwrap_or_default());
        let Some(found) = instances.into_iter().find(|found| found.instance_id() == Some(instance)) else {
            return Err(DriverError::NotFound(format!("{vm} does not exist")));
        };
        if matches!(state_of(&found), Some(InstanceStateName::Terminated | InstanceStateName::ShuttingDown)) {
            return Err(DriverError::NotFound(format!("{vm} is being terminated")));
        }
        let is_first = |interface: &InstanceNetworkInterface| {
            interface.attachment().is_some_and(|attachment| attachment.device_index() == Some(0))
        };
        let interface = found.network_interfaces.unwrap_or_default().into_iter().find(is_first);
        interface.ok_or_else(|| DriverError::Invalid(format!("{vm} has no network interface")))
    }

    async fn associate(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
        may_replace: bool,
    ) -> Result<Progress, DriverError> {
        let name = "ec2:AssociateAddress";
        let interface = self.first_interface(scope, vm).await?;
        let is_late = self.recent().is_late(&scope.account, address, &Holding::By(vm.clone()));
        let has_ephemeral = self.recent().has_ephemeral(vm);
        let shown = association(&interface).filter(|present| present.ip_owner_id() == Some(AMAZON));
        // If the instance got an ephemeral address a moment ago, EC2 may still show an older one.
        let own = shown.filter(|_| !has_ephemeral).and_then(|present| present.public_ip()?.parse().ok());
        let has_ephemeral = match association(&interface) {
            Some(present) if parsed(present.public_ip()) == Some(address) && !is_late => {
                return Ok(Progress::Done);
            }
            // The driver detached the address a moment ago, so EC2 shows either the state before the detach, or an
            // association by somebody else. In both cases, associating again does no harm.
            Some(present) if parsed(present.public_ip()) == Some(address) => has_ephemeral,
            Some(present) if present.ip_owner_id() != Some(AMAZON) => {
                let other = present.public_ip().unwrap_or("unknown");
                return Err(DriverError::Conflict(format!("{vm} already holds the Elastic IP {other}")));
            }
            Some(_) => true,
            None => has_ephemeral,
        };
        if has_ephemeral && !may_replace {
            return Ok(Progress::Occupied);
        }
        let allocation = self.allocation(scope, address).await?;
        let replaces = has_ephemeral || may_replace;
        let replaced_before = replaces.then(|| self.recent().note_replacing(vm, own)).flatten();
        let associated = self
            .client(scope)
            .await?
            .associate_address()
            .allocation_id(allocation)
            .set_network_interface_id(interface.network_interface_id().map(Into::into))
            .set_private_ip_address(interface.private_ip_address().map(Into::into))
            .allow_reassociation(false);
        let associated = associated.send().await.map_err(|error| explain(name, error));
        match associated.inspect_err(|error| self.doubt_unanswered(scope, address, error)) {
            Ok(_) => {
                let (holding, region) = (Holding::By(vm.clone()), Some(Arc::clone(&scope.account)));
                let held = Listed { holding, region, tag: None };
                self.recent().note(&scope.account, address, Holding::Free, Some(held));
                self.recent().note_replaced(vm);
                Ok(Progress::Done)
            }
            Err(error) => {
                if replaces && !matches!(error, DriverError::Unavailable(_)) {
                    self.recent().note_refused(vm, replaced_before);
                }
                // The address may have been released and allocated again with another allocation ID.
                if matches!(error, DriverError::NotFound(_)) {
                    self.allocations().remove(&address);
                }
                if matches!(error, DriverError::Denied { .. }) {
                    self.allowed().remove(&scope.account);
                }
                Err(error)
            }
        }
    }

    /// Disassociates an address by its association ID. IDs are not reused, so the call can't end an association that
    /// the driver has not read.
    async fn disassociate(
        &self,
        scope: &Scope,
        address: Address,
        vm: &VmId,
    ) -> Result<Progress, DriverError> {
        let name = "ec2:DisassociateAddress";
        let elastic = match self.read(scope, address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            elastic => elastic?,
        };
        let held = Holding::By(vm.clone());
        let association = match elastic.association_id() {
            Some(association) if holding(scope, &elastic) == held => association,
            Some(_) => return Err(not_held_by(address, vm)),
            None => return Ok(Progress::Done),
        };
        self.check_may_associate(scope, &elastic).await?;
        let gone = self.client(scope).await?.disassociate_address().association_id(association).send().await;
        let gone = gone.map_err(|error| explain(name, error));
        match gone.inspect_err(|error| self.doubt_unanswered(scope, address, error)) {
            // Either the read was stale, or the part of EC2 that handles this call does not know the
            // association yet. The caller has to read again.
            Err(DriverError::NotFound(message)) => Err(DriverError::Conflict(message)),
            Err(error) => Err(error),
            Ok(_) => {
                let free = Listed { holding: Holding::Free, ..listed(scope, &elastic) };
                self.recent().note(&scope.account, address, held, Some(free));
                Ok(Progress::Done)
            }
        }
    }

    /// Checks with a dry run that the credentials allow associating an address. Only a permission error, throttling, or
    /// a missing response counts as a failure. Every other result means that the call is allowed.
    async fn check_may_associate(&self, scope: &Scope, elastic: &ElasticIp) -> Result<(), DriverError> {
        let name = "ec2:AssociateAddress";
        if self.allowed().get(&scope.account).is_some_and(|checked| checked.elapsed() < ALLOWED_FOR) {
            return Ok(());
        }
        let (_, allocation) = named("ec2:DescribeAddresses", elastic)?;
        let asked = self.client(scope).await?.associate_address().dry_run(true).allow_reassociation(false);
        let asked = asked.allocation_id(allocation);
        let asked =
            asked.set_network_interface_id(elastic.network_interface_id().map(Into::into)).send().await;
        use DriverError::{Denied, NotSent, RateLimited, Unavailable};
        match asked.map_err(|error| explain(name, error)) {
            Err(error @ (Denied { .. } | NotSent(_) | RateLimited { .. } | Unavailable(_))) => Err(error),
            _ => {
                self.allowed().insert(Arc::clone(&scope.account), Instant::now());
                Ok(())
            }
        }
    }

    fn doubt_unanswered(&self, scope: &Scope, address: Address, error: &DriverError) {
        if matches!(error, DriverError::Unavailable(_)) {
            self.recent().doubt(&scope.account, address);
        }
    }

    /// Requests an ephemeral address for an instance that has none. EC2 may still show an address that is already gone;
    /// then the caller has to try again.
    async fn assign_own(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        let name = "ec2:ModifyNetworkInterfaceAttribute";
        let interface = match self.first_interface(scope, vm).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            interface => interface?,
        };
        match association(&interface) {
            Some(present) if parsed(present.public_ip()) == Some(address) => {
                return Err(DriverError::Conflict(format!("EC2 still shows {address} on {vm}")));
            }
            Some(present) => {
                let own = present.public_ip().and_then(|ip| ip.parse().ok());
                if self.recent().may_be_replaced(vm, own) {
                    let message =
                        format!("EC2 may still show the ephemeral address of {vm} that {address} replaced");
                    return Err(DriverError::Conflict(message));
                }
                return Ok(Progress::Done);
            }
            None => {}
        }
        let assigned = self.client(scope).await?.modify_network_interface_attribute();
        let assigned = assigned.set_network_interface_id(interface.network_interface_id().map(Into::into));
        let assigned = assigned.associate_public_ip_address(true).send().await;
        assigned.map_err(|error| explain(name, error))?;
        self.recent().note_own(vm);
        Ok(Progress::Done)
    }

    async fn allocate(&self, scope: &Scope, region: &str, tag: Option<&str>) -> Result<Address, DriverError> {
        let name = "ec2:AllocateAddress";
        if *region != *scope.account {
            let message = format!("can't create an address in {region}: the nodes are in {}", scope.account);
            return Err(DriverError::Invalid(message));
        }
        let tags = tag.map(|tag| {
            let tag = Tag::builder().key(TAG_KEY).value(tag).build();
            TagSpecification::builder().resource_type(ResourceType::ElasticIp).tags(tag).build()
        });
        let made = self.client(scope).await?.allocate_address().domain(DomainType::Vpc);
        let made = made.set_tag_specifications(tags.map(|tags| vec![tags])).send().await;
        let made = made.map_err(|error| explain(name, error)).inspect_err(|error| {
            if matches!(error, DriverError::Unavailable(_)) {
                self.recent().note_unanswered(&scope.account);
            }
        })?;
        let (Some(address), Some(allocation)) = (parsed(made.public_ip()), made.allocation_id()) else {
            self.recent().note_unanswered(&scope.account);
            return Err(unreadable(name, &"it contains no address"));
        };
        self.allocations().insert(address, allocation.to_owned());
        let new = Listed { holding: Holding::Free, region: Some(region.into()), tag: tag.map(Into::into) };
        self.recent().note(&scope.account, address, Holding::Missing, Some(new));
        Ok(address)
    }

    /// Releases an address, but only if it has been free for at least `staleness_max`. A single read can be stale, and in
    /// a default VPC `ReleaseAddress` also disassociates an address that is in use.
    async fn give_back(&self, scope: &Scope, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let name = "ec2:ReleaseAddress";
        let elastic = match self.read(scope, address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            elastic => elastic?,
        };
        if let Holding::By(holder) = holding(scope, &elastic) {
            self.recent().note_held(&scope.account, address);
            let why = format!("{address} is attached to {holder}, so it was not released");
            return Err(DriverError::Conflict(why));
        }
        check_tag(address, listed(scope, &elastic).tag.as_deref(), tag)?;
        let wait = self.recent().until_surely_free(&scope.account, address);
        if !wait.is_zero() {
            return Err(DriverError::NotSent(NotSent { wait }));
        }
        let (_, allocation) = named(name, &elastic)?;
        let released = self.client(scope).await?.release_address().allocation_id(allocation).send().await;
        match released.map_err(|error| explain(name, error)) {
            Ok(_) | Err(DriverError::NotFound(_)) => {
                self.allocations().remove(&address);
                self.recent().note(&scope.account, address, Holding::Free, None);
                Ok(Progress::Done)
            }
            Err(error) => Err(error),
        }
    }

    async fn list_machines(&self, scope: &Scope) -> Result<BTreeMap<VmId, MachineState>, DriverError> {
        let name = "ec2:DescribeInstances";
        let mut machines = BTreeMap::new();
        let mut token = None;
        for _ in 0..PAGES_MAX {
            let page = self.client(scope).await?.describe_instances().max_results(PAGE_SIZE);
            let page = page.set_next_token(token).send().await.map_err(|error| explain(name, error))?;
            for found in page.reservations().iter().flat_map(|reservation| reservation.instances()) {
                let Some(id) = found.instance_id() else {
                    return Err(unreadable(name, &"an instance has no ID"));
                };
                let state = match state_of(found) {
                    Some(InstanceStateName::Terminated) => continue,
                    Some(InstanceStateName::Stopped) => MachineState::Stopped,
                    // An instance that is stopping still holds its addresses.
                    _ => MachineState::Running,
                };
                machines.insert(vm_of(&scope.account, id), state);
            }
            token = page.next_token().filter(|token| !token.is_empty()).map(Into::into);
            if token.is_none() {
                return Ok(machines);
            }
        }
        Err(unreadable(name, &"the listing has too many pages"))
    }

    fn allocations(&self) -> MutexGuard<'_, BTreeMap<Address, String>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allowed(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Instant>> {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressDriver for Ec2 {
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.list_region(scope).boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.associate(scope, address, vm, false).boxed()
    }

    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.associate(scope, address, vm, true).boxed()
    }

    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.assign_own(scope, address, vm).boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.disassociate(scope, address, vm).boxed()
    }

    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.allocate(scope, region, tag).boxed()
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
        let ended = operations.iter().map(|_| Ok(Polled::Ended)).collect();
        futures::future::ready(ended).boxed()
    }

    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.list_machines(scope).boxed()
    }

    fn properties(&self) -> Properties {
        Properties { moves_in_one_call: false, refuses_occupied: false, staleness_max: self.staleness_max }
    }
}

fn state_of(instance: &Instance) -> Option<&InstanceStateName> {
    instance.state()?.name()
}

fn parsed(text: Option<&str>) -> Option<Address> {
    text?.parse::<IpAddr>().ok().map(Address)
}

/// The public address of an interface, Elastic IP or ephemeral. An association without an address counts as none.
fn association(interface: &InstanceNetworkInterface) -> Option<&InstanceNetworkInterfaceAssociation> {
    interface.association().filter(|association| association.public_ip().is_some_and(|ip| !ip.is_empty()))
}

/// An address and its allocation ID.
fn named<'a>(name: &str, elastic: &'a ElasticIp) -> Result<(Address, &'a str), DriverError> {
    let address = parsed(elastic.public_ip()).ok_or_else(|| unreadable(name, &"it contains no address"))?;
    let lacks_id = || unreadable(name, &"AWS returned the address without an allocation ID");
    Ok((address, elastic.allocation_id().ok_or_else(lacks_id)?))
}

fn listed(scope: &Scope, elastic: &ElasticIp) -> Listed {
    let tag = elastic.tags().iter().find(|tag| tag.key() == Some(TAG_KEY));
    let tag = tag.and_then(Tag::value).map(Into::into);
    Listed { holding: holding(scope, elastic), region: Some(Arc::clone(&scope.account)), tag }
}

/// The holder of an address. Interfaces without an instance, such as that of a NAT gateway, are holders too.
fn holding(scope: &Scope, elastic: &ElasticIp) -> Holding {
    let ids = [elastic.instance_id(), elastic.network_interface_id(), elastic.association_id()];
    let holder = ids.into_iter().flatten().find(|id| !id.is_empty());
    holder.map_or(Holding::Free, |id| Holding::By(vm_of(&scope.account, id)))
}
