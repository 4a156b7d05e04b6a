//! Amazon EC2's Elastic IP addresses.
//!
//! An address is on a machine as the association of its first network interface. A call is over when it is answered, so there
//! is nothing to poll. Associating never takes an address off its holder: `AllowReassociation` is always sent, and is always
//! false. It would, though, silently drop another Elastic IP of the same interface, so that is read right before.
//!
//! ```text
//! call                             used for                                permission
//! DescribeAddresses                list; whom to take it from, before      ec2:DescribeAddresses
//!                                    detach and release
//! DescribeInstances                machines; a machine's first interface,  ec2:DescribeInstances
//!                                    before attach and restore
//! AssociateAddress                 attach; as a dry run before detach      ec2:AssociateAddress
//! DisassociateAddress              detach                                  ec2:DisassociateAddress
//! AllocateAddress                  create                                  ec2:AllocateAddress, ec2:CreateTags
//! ReleaseAddress                   release                                 ec2:ReleaseAddress
//! ModifyNetworkInterfaceAttribute  restore                                 ec2:ModifyNetworkInterfaceAttribute
//! ```
//!
//! **A machine's own address.** One that was assigned when the machine started goes when an Elastic IP comes. When that
//! leaves, Amazon assigns another by itself, but not to a machine with several interfaces, which a node often is. So it is
//! asked for.
//!
//! **Nothing is taken off that can't be put on.** Whoever may disassociate and not associate would leave an address nowhere, so
//! before the first is done the second is asked for as a dry run, which Amazon answers without doing it, once in a while in
//! each region.
//!
//! **Reads are late.** A listing may show what was before a change that has been answered. For a while after such an answer
//! the driver does not take a listing's word for what its own change has ended.

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
use super::{Aws, explain};
use crate::budget::{Limit, budgeted};
use crate::error::{check_tag, not_held_by};
use crate::http::{quoted, unreadable};
use crate::{
    AddressDriver, DriverError, Listed, Listing, NotSent, Operation, Polled, Progress, Tags, Traits,
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

/// The key of the tag that addresses are created with. Its value is the tag.
pub const TAG_KEY: &str = "ip-address-controller";

/// Who owns the addresses that machines get when they start.
const AMAZON: &str = "amazon";

/// How long what Amazon shows may be what was before a change. It promises nothing; seconds are usual.
pub const LATE_MAX: Duration = Duration::from_secs(30);

/// How long the word holds that addresses may be put on machines.
const ALLOWED_FOR: Duration = Duration::from_secs(3_600);

const PAGE_SIZE: i32 = 1_000;

/// A listing that has not ended after so many pages is broken, not long.
const PAGES_MAX: usize = 200;

/// What an account may do in one region: each call has a bucket of its own.
pub fn limits() -> Vec<Limit> {
    macro_rules! bucket {
        ($call:literal, $burst:literal, $per_second:literal) => {
            Limit::bucket(|request| action(request) == Some($call), $burst, $per_second)
        };
    }
    vec![
        // What has no pages counts double.
        bucket!("DescribeAddresses", 50, 10),
        bucket!("DescribeInstances", 100, 20),
        bucket!("AssociateAddress", 50, 5),
        bucket!("DisassociateAddress", 50, 5),
        bucket!("AllocateAddress", 50, 5),
        bucket!("ReleaseAddress", 50, 5),
        bucket!("ModifyNetworkInterfaceAttribute", 50, 5),
    ]
}

/// Which call a request is.
pub fn action(request: &Request<Bytes>) -> Option<&str> {
    let mut pairs = request.body().split(|byte| *byte == b'&');
    let action = pairs.find_map(|pair| pair.strip_prefix(b"Action="))?;
    std::str::from_utf8(action).ok()
}

/// Every call is a POST, and only its form tells whether it changes something.
fn is_read(request: &Request<Bytes>) -> bool {
    let is_dry_run = || request.body().split(|byte| *byte == b'&').any(|pair| pair == b"DryRun=true");
    action(request).is_some_and(|action| action.starts_with("Describe")) || is_dry_run()
}

/// Moves Elastic IP addresses between instances.
pub struct Ec2 {
    aws: Arc<Aws>,
    limits: Vec<Limit>,
    clients: tokio::sync::Mutex<BTreeMap<Arc<str>, Client>>,
    /// What Amazon calls each address, as last listed. An address that is given back and comes again has another.
    allocations: Mutex<BTreeMap<Address, String>>,
    late_max: Duration,
    recent: Mutex<Recent>,
    /// When it was told of each region that addresses may be put on machines there.
    allowed: Mutex<BTreeMap<Arc<str>, Instant>>,
}

impl Ec2 {
    /// A driver for all regions of an account, each with these limits, where what is shown is so late at the most.
    pub fn new(aws: Arc<Aws>, limits: Vec<Limit>, late_max: Duration) -> Self {
        Self {
            aws,
            limits,
            clients: Default::default(),
            allocations: Mutex::default(),
            late_max,
            recent: Mutex::new(Recent::new(late_max)),
            allowed: Mutex::default(),
        }
    }

    async fn client(&self, scope: &Scope) -> Result<Client, DriverError> {
        // It becomes a part of the name of the server that gets our signature.
        if !is_region(&scope.account) {
            return Err(DriverError::Invalid(format!("{} is no region of Amazon's", quoted(&scope.account))));
        }
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(&scope.account) {
            return Ok(client.clone());
        }
        let around = |service| budgeted(service, &self.limits);
        let client = Client::new(&self.aws.client(Some(&scope.account), is_read, around).await);
        clients.insert(Arc::clone(&scope.account), client.clone());
        Ok(client)
    }

    async fn list_region(&self, scope: &Scope) -> Result<Listing, DriverError> {
        let name = "ec2:DescribeAddresses";
        let found = self.client(scope).await?.describe_addresses().send().await;
        let found = found.map_err(|error| explain(name, error))?;
        let mut listing = Listing { tags: Tags::Told, ..Listing::default() };
        // What belongs to an Outpost or to a carrier has no public address, and is none of ours.
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

    /// One address as it is now. What is older than the last answer to a change of it is not told.
    async fn read(&self, scope: &Scope, address: Address) -> Result<ElasticIp, DriverError> {
        let name = "ec2:DescribeAddresses";
        // An address that is not there is no error here.
        let filter = Filter::builder().name("public-ip").values(address.to_string()).build();
        let found = self.client(scope).await?.describe_addresses().filters(filter).send().await;
        let mut found = found.map_err(|error| explain(name, error))?.addresses.unwrap_or_default();
        let told = found.first().map_or(Holding::Missing, |elastic| holding(scope, elastic));
        if self.recent().is_late(&scope.account, address, &told) {
            let message = format!("Amazon tells of {address} as it was before its last change");
            return Err(DriverError::Conflict(message));
        }
        match (found.pop(), found.is_empty()) {
            (Some(elastic), true) => Ok(elastic),
            (None, _) => {
                Err(DriverError::NotFound(format!("{address} is no Elastic IP in {}", scope.account)))
            }
            _ => Err(unreadable(name, &"it tells of several")),
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

    /// A machine's first interface: the one that it was started with.
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
        let has_own = self.recent().has_own(vm);
        let shown = association(&interface).filter(|present| present.ip_owner_id() == Some(AMAZON));
        // One that was assigned a moment ago is another than what is shown.
        let own = shown.filter(|_| !has_own).and_then(|present| present.public_ip()?.parse().ok());
        let has_own = match association(&interface) {
            Some(present) if parsed(present.public_ip()) == Some(address) && !is_late => {
                return Ok(Progress::Done);
            }
            // It was taken off a moment ago, so this is what was before, or somebody has put it there, which to do again does no harm.
            Some(present) if parsed(present.public_ip()) == Some(address) => has_own,
            Some(present) if present.ip_owner_id() != Some(AMAZON) => {
                let other = present.public_ip().unwrap_or("another one");
                return Err(DriverError::Conflict(format!("{vm} already holds the Elastic IP {other}")));
            }
            Some(_) => true,
            None => has_own,
        };
        if has_own && !may_replace {
            return Ok(Progress::Occupied);
        }
        let allocation = self.allocation(scope, address).await?;
        let replaces = has_own || may_replace;
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
                // It may have been given back and have come again under another name.
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

    /// An association that has ended does not come again, so what is taken off is what was read and nothing else.
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
            // What was read was late, or is ahead of what changes it: only another look can tell.
            Err(DriverError::NotFound(message)) => Err(DriverError::Conflict(message)),
            Err(error) => Err(error),
            Ok(_) => {
                let free = Listed { holding: Holding::Free, ..listed(scope, &elastic) };
                self.recent().note(&scope.account, address, held, Some(free));
                Ok(Progress::Done)
            }
        }
    }

    /// Asks whether an address could be put where it is. Only a refusal for want of permission, or silence, says that it could not.
    async fn check_may_associate(&self, scope: &Scope, elastic: &ElasticIp) -> Result<(), DriverError> {
        let name = "ec2:AssociateAddress";
        if self.allowed().get(&scope.account).is_some_and(|told| told.elapsed() < ALLOWED_FOR) {
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

    /// A machine that still shows the address which has left it may soon show none.
    async fn assign_own(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        let name = "ec2:ModifyNetworkInterfaceAttribute";
        let interface = match self.first_interface(scope, vm).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            interface => interface?,
        };
        match association(&interface) {
            Some(present) if parsed(present.public_ip()) == Some(address) => {
                return Err(DriverError::Conflict(format!("{vm} still shows {address}, which has left it")));
            }
            Some(present) => {
                let own = present.public_ip().and_then(|ip| ip.parse().ok());
                if self.recent().may_be_replaced(vm, own) {
                    let message =
                        format!("{vm} may still show the address of its own that {address} replaced");
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
            let message = format!("the nodes are in {}, so no address is created in {region}", scope.account);
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
            return Err(unreadable(name, &"it names no address"));
        };
        self.allocations().insert(address, allocation.to_owned());
        let new = Listed { holding: Holding::Free, region: Some(region.into()), tag: tag.map(Into::into) };
        self.recent().note(&scope.account, address, Holding::Missing, Some(new));
        Ok(address)
    }

    /// In a default network Amazon takes off what it releases, and a read may be late: only what nobody had for as long as that
    /// can be is given back.
    async fn give_back(&self, scope: &Scope, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let name = "ec2:ReleaseAddress";
        let elastic = match self.read(scope, address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            elastic => elastic?,
        };
        if let Holding::By(holder) = holding(scope, &elastic) {
            self.recent().note_held(&scope.account, address);
            return Err(DriverError::Conflict(format!("{address} is on {holder}, and was not released")));
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
                    return Err(unreadable(name, &"it names no instance"));
                };
                let state = match state_of(found) {
                    Some(InstanceStateName::Terminated) => continue,
                    Some(InstanceStateName::Stopped) => MachineState::Stopped,
                    // One that is about to stop still has what it has.
                    _ => MachineState::Running,
                };
                machines.insert(vm_of(&scope.account, id), state);
            }
            token = page.next_token().filter(|token| !token.is_empty()).map(Into::into);
            if token.is_none() {
                return Ok(machines);
            }
        }
        Err(unreadable(name, &"it does not end"))
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

    fn traits(&self) -> Traits {
        Traits { moves_in_one_call: false, late_max: self.late_max }
    }
}

fn state_of(instance: &Instance) -> Option<&InstanceStateName> {
    instance.state()?.name()
}

fn parsed(text: Option<&str>) -> Option<Address> {
    text?.parse::<IpAddr>().ok().map(Address)
}

/// The address on an interface, whosever it is. One that names no address is none.
fn association(interface: &InstanceNetworkInterface) -> Option<&InstanceNetworkInterfaceAssociation> {
    interface.association().filter(|association| association.public_ip().is_some_and(|ip| !ip.is_empty()))
}

/// An address, and what Amazon calls it.
fn named<'a>(name: &str, elastic: &'a ElasticIp) -> Result<(Address, &'a str), DriverError> {
    let address = parsed(elastic.public_ip()).ok_or_else(|| unreadable(name, &"it names no address"))?;
    let allocation = elastic.allocation_id().ok_or_else(|| unreadable(name, &"it names no allocation"))?;
    Ok((address, allocation))
}

/// What is told of an address.
fn listed(scope: &Scope, elastic: &ElasticIp) -> Listed {
    let tag = elastic.tags().iter().find(|tag| tag.key() == Some(TAG_KEY));
    let tag = tag.and_then(Tag::value).map(Into::into);
    Listed { holding: holding(scope, elastic), region: Some(Arc::clone(&scope.account)), tag }
}

/// Who holds an address. What is on an interface without an instance, such as a NAT gateway's, is somebody's too.
fn holding(scope: &Scope, elastic: &ElasticIp) -> Holding {
    let told = [elastic.instance_id(), elastic.network_interface_id(), elastic.association_id()];
    let holder = told.into_iter().flatten().find(|id| !id.is_empty());
    holder.map_or(Holding::Free, |id| Holding::By(vm_of(&scope.account, id)))
}
