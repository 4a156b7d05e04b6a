//! One project of Compute Engine: its resources, and what a person can do to them with the console.
//!
//! Out: which VM holds which address, and every change for the ledger. This module never reads a request: calls are in
//! `calls`, and changes that take time are in `operations`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::ledger::CloudChange;
use super::super::ranges::nth_of;
use super::orders::Operation;
use super::resources::{Access, Address, Instance};

/// Regions that exist even if they are empty. Each has the zones `a`, `b` and `c`.
pub(super) const REGIONS: &[&str] =
    &["asia-east1", "europe-west1", "europe-west4", "us-central1", "us-east1", "us-west1"];

/// IDs start above the integers that a JSON number holds exactly. A client that parses them as numbers fails visibly.
const FIRST_ID: u64 = 4_000_000_000_000_000_001;

/// Reserved addresses come from two documentation ranges, then from half of the benchmarking range.
pub(super) const RESERVED_RANGES: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(203, 0, 113, 1), 254),
    (Ipv4Addr::new(198, 51, 100, 1), 254),
    (Ipv4Addr::new(198, 18, 0, 0), 65_536),
];

/// Ephemeral addresses come from the third documentation range, then from the other half of the benchmarking range.
pub(super) const EPHEMERAL_RANGES: &[(Ipv4Addr, u32)] =
    &[(Ipv4Addr::new(192, 0, 2, 1), 254), (Ipv4Addr::new(198, 19, 0, 0), 65_536)];

pub(super) const PREMIUM: &str = "PREMIUM";
pub(super) const DEFAULT_CONFIG: &str = "External NAT";

/// One project of Compute Engine.
#[derive(Debug)]
pub struct Compute {
    /// How long an operation takes.
    pub operation_time: Duration,
    /// Of this many operations after each other, the second takes twice as long, the third three times as long, and so on.
    pub operation_times: u32,
    /// Permissions that the caller lacks, such as `compute.addresses.list`.
    pub denied: BTreeSet<String>,
    /// Unreachable regions: calls to them fail. Operations that were accepted there continue.
    pub unreachable_regions: BTreeSet<String>,
    /// Domains that the caller does not own. PTR records can't name them.
    pub unverified_domains: BTreeSet<String>,
    pub(super) project: String,
    pub(super) token: String,
    pub(super) zones: BTreeSet<String>,
    pub(super) addresses: BTreeMap<(String, String), Address>,
    pub(super) instances: BTreeMap<(String, String), Instance>,
    pub(super) operations: Vec<Operation>,
    /// The due times of unfinished operations, with their index.
    pub(super) pending: BTreeSet<(Duration, usize)>,
    /// The operation that each `requestId` started.
    pub(super) requests: BTreeMap<String, usize>,
    /// Manual changes that are not in the ledger yet.
    pub(super) unwritten: Vec<CloudChange>,
    ids_used: u64,
    reserved_used: u32,
    ephemeral_used: u32,
}

impl Compute {
    /// Creates an empty project that accepts one token.
    pub fn new(project: &str, token: &str) -> Self {
        let zones = REGIONS.iter().flat_map(|region| ["a", "b", "c"].map(|zone| format!("{region}-{zone}")));
        Self {
            operation_time: Duration::from_secs(1),
            operation_times: 1,
            denied: BTreeSet::new(),
            unreachable_regions: BTreeSet::new(),
            unverified_domains: BTreeSet::new(),
            project: project.to_owned(),
            token: token.to_owned(),
            zones: zones.collect(),
            addresses: BTreeMap::new(),
            instances: BTreeMap::new(),
            operations: Vec::new(),
            pending: BTreeSet::new(),
            requests: BTreeMap::new(),
            unwritten: Vec::new(),
            ids_used: 0,
            reserved_used: 0,
            ephemeral_used: 0,
        }
    }

    /// Creates a running VM with an ephemeral address, which is the default of Compute Engine.
    pub fn add_instance(&mut self, zone: &str, name: &str) {
        let access = self.ephemeral_access();
        self.make_instance(zone, name, Some(access));
    }

    /// Creates a running VM without an external address.
    pub fn add_instance_without_address(&mut self, zone: &str, name: &str) {
        self.make_instance(zone, name, None);
    }

    /// Adds an interface without an external address to a VM.
    pub fn add_interface(&mut self, zone: &str, name: &str) {
        if let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) {
            instance.interfaces.push(None);
        }
    }

    /// Deletes a VM. Reserved addresses that it held become free.
    pub fn remove_instance(&mut self, zone: &str, name: &str) {
        let key = (zone.to_owned(), name.to_owned());
        let count = self.instances.get(&key).map_or(0, |instance| instance.interfaces.len());
        let lost: Vec<CloudChange> = (0..count).filter_map(|at| self.take_off(&key, at)).collect();
        self.unwritten.extend(lost);
        self.instances.remove(&key);
    }

    /// Deletes a VM and creates another one with the same name, a different ID and an ephemeral address.
    pub fn recreate_instance(&mut self, zone: &str, name: &str) {
        self.remove_instance(zone, name);
        self.add_instance(zone, name);
    }

    /// Stops a VM. It keeps a reserved address and loses an ephemeral one.
    pub fn stop_instance(&mut self, zone: &str, name: &str) {
        let key = (zone.to_owned(), name.to_owned());
        let reserved: BTreeSet<String> = self.addresses.values().map(|address| address.ip.clone()).collect();
        let Some(instance) = self.instances.get_mut(&key) else { return };
        instance.is_running = false;
        let vm = instance.vm(&self.project);
        for access in instance.interfaces.iter_mut().flatten() {
            if let Some(ip) = access.ip.take_if(|ip| !reserved.contains(ip)) {
                self.unwritten.push(CloudChange::Other(format!("detached ephemeral {ip} from {vm}")));
            }
        }
    }

    /// Starts a stopped VM. An access config without an address gets an ephemeral one.
    pub fn start_instance(&mut self, zone: &str, name: &str) {
        let ip = self.next_ephemeral();
        let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) else { return };
        instance.is_running = true;
        let vm = instance.vm(&self.project);
        if let Some(access) = instance.interfaces.iter_mut().flatten().find(|access| access.ip.is_none()) {
            self.unwritten.push(CloudChange::Other(format!("attached ephemeral {ip} to {vm}")));
            access.ip = Some(ip);
        }
    }

    /// Reserves an address in the premium tier.
    pub fn add_address(&mut self, region: &str, name: &str, ip: &str) {
        self.reserve(region, name, ip, PREMIUM);
    }

    /// Reserves an address in the standard tier.
    pub fn add_standard_address(&mut self, region: &str, name: &str, ip: &str) {
        self.reserve(region, name, ip, "STANDARD");
    }

    fn reserve(&mut self, region: &str, name: &str, ip: &str, tier: &str) {
        let address = Address {
            id: self.next_id(),
            region: region.to_owned(),
            name: name.to_owned(),
            ip: ip.to_owned(),
            tier: tier.to_owned(),
            description: String::new(),
            labels: BTreeMap::new(),
            created: Duration::ZERO,
        };
        self.addresses.insert((region.to_owned(), name.to_owned()), address);
    }

    /// Releases an address at once. The VM that holds the address loses it.
    pub fn remove_address(&mut self, ip: &str) {
        let left = self.place_of(ip).and_then(|(key, at)| self.take_off(&key, at));
        self.unwritten.extend(left);
        self.addresses.retain(|_, address| address.ip != ip);
    }

    /// Attaches an address to a VM's first interface at once, as a person would. The fake first detaches it from its
    /// holder, and detaches the interface's present address.
    pub fn attach_now(&mut self, ip: &str, zone: &str, name: &str) {
        self.attach_to(ip, zone, name, 0);
    }

    /// Like [`attach_now`](Self::attach_now), for any interface. Does nothing if the VM has no such interface.
    pub fn attach_to(&mut self, ip: &str, zone: &str, name: &str, interface: usize) {
        let place = ((zone.to_owned(), name.to_owned()), interface);
        let has_it = |instance: &Instance| interface < instance.interfaces.len();
        if !self.instances.get(&place.0).is_some_and(has_it) {
            return;
        }
        let holder = self.place_of(ip);
        let left: Vec<CloudChange> =
            holder.iter().chain([&place]).filter_map(|(key, at)| self.take_off(key, *at)).collect();
        let tier =
            self.addresses.values().find(|address| address.ip == ip).map(|address| address.tier.clone());
        let tier = tier.unwrap_or_else(|| PREMIUM.to_owned());
        let access = Access { name: DEFAULT_CONFIG.to_owned(), tier, ip: Some(ip.to_owned()), ptr: None };
        let came = self.put_on(&place.0, place.1, access);
        self.unwritten.extend(left.into_iter().chain(came));
    }

    /// Sets the PTR name of an address on the VM that holds it, as a person would.
    pub fn set_ptr(&mut self, ip: &str, ptr: Option<&str>) {
        let Some((key, at)) = self.place_of(ip) else { return };
        let access = self.instances.get_mut(&key).and_then(|instance| instance.interfaces[at].as_mut());
        if let Some(access) = access {
            access.ptr = ptr.map(ToOwned::to_owned);
        }
    }

    /// Returns the PTR name of an address. An address that no VM holds has none.
    pub fn ptr(&self, ip: &str) -> Option<String> {
        let (key, at) = self.place_of(ip)?;
        self.instances.get(&key)?.interfaces[at].as_ref()?.ptr.clone()
    }

    /// Detaches the address of a VM's first interface at once, as a person would.
    pub fn detach_now(&mut self, zone: &str, name: &str) {
        let left = self.take_off(&(zone.to_owned(), name.to_owned()), 0);
        self.unwritten.extend(left);
    }

    /// Returns the VM that holds an address, reserved or ephemeral, as `project/zone/name`.
    pub fn holder(&self, ip: &str) -> Option<String> {
        self.holders().get(ip).map(|instance| instance.vm(&self.project))
    }

    /// Whether the VM exists.
    pub fn exists(&self, zone: &str, name: &str) -> bool {
        self.instances.contains_key(&(zone.to_owned(), name.to_owned()))
    }

    /// Returns the interface that holds an address, such as `nic0`.
    pub fn interface_of(&self, ip: &str) -> Option<String> {
        self.place_of(ip).map(|(_, at)| format!("nic{at}"))
    }

    /// Whether a VM has any external address.
    pub fn has_address(&self, zone: &str, name: &str) -> bool {
        self.addresses_on(zone, name).next().is_some()
    }

    /// Whether a VM has an ephemeral address.
    pub fn has_ephemeral(&self, zone: &str, name: &str) -> bool {
        self.addresses_on(zone, name).any(|ip| !self.is_reserved(ip))
    }

    fn addresses_on(&self, zone: &str, name: &str) -> impl Iterator<Item = &str> {
        let instance = self.instances.get(&(zone.to_owned(), name.to_owned()));
        let accesses = instance.into_iter().flat_map(|instance| instance.interfaces.iter().flatten());
        accesses.filter_map(|access| access.ip.as_deref())
    }

    fn make_instance(&mut self, zone: &str, name: &str, access: Option<Access>) {
        self.zones.insert(zone.to_owned());
        let instance = Instance {
            id: self.next_id(),
            zone: zone.to_owned(),
            name: name.to_owned(),
            is_running: true,
            interfaces: vec![access],
            created: Duration::ZERO,
        };
        self.instances.insert((zone.to_owned(), name.to_owned()), instance);
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.ids_used += 1;
        FIRST_ID + self.ids_used
    }

    /// The next ephemeral address. No cloud assigns an address that is reserved or in use.
    pub(super) fn next_ephemeral(&mut self) -> String {
        loop {
            self.ephemeral_used += 1;
            let ip = nth_of(EPHEMERAL_RANGES, self.ephemeral_used - 1);
            if !self.is_reserved(&ip) && !self.holders().contains_key(ip.as_str()) {
                return ip;
            }
        }
    }

    /// Returns the next address that is not reserved yet.
    pub(super) fn next_reserved(&mut self) -> String {
        loop {
            self.reserved_used += 1;
            let ip = nth_of(RESERVED_RANGES, self.reserved_used - 1);
            if !self.is_reserved(&ip) {
                return ip;
            }
        }
    }

    fn ephemeral_access(&mut self) -> Access {
        let ip = Some(self.next_ephemeral());
        Access { name: DEFAULT_CONFIG.to_owned(), tier: PREMIUM.to_owned(), ip, ptr: None }
    }

    /// Returns the holder of each address.
    pub(super) fn holders(&self) -> BTreeMap<&str, &Instance> {
        let mut holders = BTreeMap::new();
        for instance in self.instances.values() {
            for ip in instance.interfaces.iter().flatten().filter_map(|access| access.ip.as_deref()) {
                holders.insert(ip, instance);
            }
        }
        holders
    }

    /// Returns the VM that holds an address, and the position of the interface.
    fn place_of(&self, ip: &str) -> Option<((String, String), usize)> {
        let instance = self.holders().get(ip).copied()?;
        Some(((instance.zone.clone(), instance.name.clone()), instance.interface_with(ip)?))
    }

    pub(super) fn is_reserved(&self, ip: &str) -> bool {
        self.addresses.values().any(|address| address.ip == ip)
    }

    /// Sets the access config of an interface and returns the change.
    pub(super) fn put_on(
        &mut self,
        key: &(String, String),
        interface: usize,
        access: Access,
    ) -> Option<CloudChange> {
        let ip = access.ip.clone()?;
        let is_reserved = self.is_reserved(&ip);
        let instance = self.instances.get_mut(key)?;
        *instance.interfaces.get_mut(interface)? = Some(access);
        let vm = instance.vm(&self.project);
        Some(if is_reserved {
            CloudChange::Attached { address: ip, vm }
        } else {
            CloudChange::Other(format!("attached ephemeral {ip} to {vm}"))
        })
    }

    /// Removes the access config of an interface and returns the change.
    pub(super) fn take_off(&mut self, key: &(String, String), interface: usize) -> Option<CloudChange> {
        let instance = self.instances.get_mut(key)?;
        let ip = instance.interfaces.get_mut(interface)?.take()?.ip?;
        let vm = instance.vm(&self.project);
        Some(if self.is_reserved(&ip) {
            CloudChange::Detached { address: ip, vm }
        } else {
            CloudChange::Other(format!("detached ephemeral {ip} from {vm}"))
        })
    }
}
