//! Google Compute Engine, as far as moving public addresses between machines needs it: addresses, the access configs of
//! instances, and operations.
//!
//! In: requests under `/compute/v1/projects/…` with a bearer token. Out: answers in the shapes of the v1 discovery
//! document. A change is accepted as an operation and takes effect when `operation_time` has passed; what is due is done
//! at the start of each request and before anyone looks from outside. It never waits: `wait` answers with the operation
//! as it is, as the real one may. It never gives an address to two machines, never takes one away unasked, and never gives
//! a machine that lost its address another one. A machine has one interface, `nic0`, and more on request; each can have one
//! access config, which may carry the name of a public PTR record. The name goes with the config.
//!
//! An order to give an instance an address that another one holds is accepted, and its operation ends with
//! `IP_IN_USE_BY_ANOTHER_RESOURCE` unless the address has become free until then.

mod calls;
mod lists;
mod operations;
mod problem;
mod resources;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;

use self::operations::Operation;
use self::problem::Problem;
use self::resources::{Access, Address, Instance};
use super::ledger::{Deed, Ledger};
use super::limits::{Limit, Rate};
use super::{Answer, Call, Machine, Refusal, Route};

/// The names of all calls.
pub const ROUTES: &[&str] = &[
    "addresses.aggregatedList",
    "addresses.list",
    "addresses.get",
    "addresses.insert",
    "addresses.delete",
    "addresses.setLabels",
    "instances.get",
    "instances.list",
    "instances.aggregatedList",
    "instances.addAccessConfig",
    "instances.deleteAccessConfig",
    "zoneOperations.get",
    "zoneOperations.wait",
    "zoneOperations.list",
    "regionOperations.get",
    "regionOperations.wait",
    "globalOperations.aggregatedList",
];

/// Requests a minute, for one project.
const REQUESTS_PER_MINUTE: u32 = 1500;

/// Regions that exist without anything in them; each has the zones `a`, `b` and `c`.
const REGIONS: &[&str] =
    &["asia-east1", "europe-west1", "europe-west4", "us-central1", "us-east1", "us-west1"];

/// Ids start beyond what a JSON number can hold exactly, so that a client which reads them as numbers is found out.
const FIRST_ID: u64 = 4_000_000_000_000_000_001;

/// Where reserved addresses come from: the documentation's networks, then half of the benchmarks' network.
const RESERVED_RANGES: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(203, 0, 113, 1), 254),
    (Ipv4Addr::new(198, 51, 100, 1), 254),
    (Ipv4Addr::new(198, 18, 0, 0), 65_536),
];

/// Where ephemeral addresses come from: the documentation's third network, then the other half of the benchmarks'.
const EPHEMERAL_RANGES: &[(Ipv4Addr, u32)] =
    &[(Ipv4Addr::new(192, 0, 2, 1), 254), (Ipv4Addr::new(198, 19, 0, 0), 65_536)];

/// Needed besides `addAccessConfig`, for the address and for the subnetwork.
const USE_ADDRESS: &str = "compute.addresses.use";
const USE_EXTERNAL_IP: &str = "compute.subnetworks.useExternalIp";

const PREMIUM: &str = "PREMIUM";
const DEFAULT_CONFIG: &str = "External NAT";

/// Needed besides `insert` for an address that carries labels.
const SET_LABELS: &str = "compute.addresses.setLabels";

/// The permissions that a call needs in all that it may be used for.
pub fn permissions_of(call: &str) -> Vec<&'static str> {
    let besides: &[&str] = match call {
        "instances.addAccessConfig" => &[USE_ADDRESS, USE_EXTERNAL_IP],
        "addresses.insert" => &[SET_LABELS],
        _ => &[],
    };
    routes::spec(call).map(|spec| spec.permission).into_iter().chain(besides.iter().copied()).collect()
}

/// Every permission that some call needs, to be put into [`Compute::denied`].
pub fn permissions() -> impl Iterator<Item = &'static str> {
    routes::SPECS.iter().flat_map(|spec| permissions_of(spec.name))
}

/// One project of Compute Engine.
#[derive(Debug)]
pub struct Compute {
    /// How long an operation takes.
    pub operation_time: Duration,
    /// Permissions that the caller lacks, such as `compute.addresses.list`.
    pub denied: BTreeSet<String>,
    /// Regions in which nothing can be reached for now. What was accepted there goes on.
    pub unreachable_regions: BTreeSet<String>,
    /// Domains that the caller does not own, so that no PTR record may name them.
    pub unverified_domains: BTreeSet<String>,
    project: String,
    token: String,
    zones: BTreeSet<String>,
    addresses: BTreeMap<(String, String), Address>,
    instances: BTreeMap<(String, String), Instance>,
    operations: Vec<Operation>,
    /// When which operation is due.
    pending: BTreeSet<(Duration, usize)>,
    /// Which operation each `requestId` began.
    requests: BTreeMap<String, usize>,
    /// What people did since the ledger was last written.
    unwritten: Vec<Deed>,
    ids_used: u64,
    reserved_used: u32,
    ephemeral_used: u32,
}

impl Compute {
    /// An empty project that accepts one token.
    pub fn new(project: &str, token: &str) -> Self {
        let zones = REGIONS.iter().flat_map(|region| ["a", "b", "c"].map(|zone| format!("{region}-{zone}")));
        Self {
            operation_time: Duration::from_secs(1),
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

    /// Makes a running machine with an ephemeral address, as they are by default.
    pub fn add_instance(&mut self, zone: &str, name: &str) {
        let access = self.ephemeral_access();
        self.make_instance(zone, name, Some(access));
    }

    /// Makes a running machine without an external address.
    pub fn add_instance_without_address(&mut self, zone: &str, name: &str) {
        self.make_instance(zone, name, None);
    }

    /// Gives a machine one more interface, without an external address.
    pub fn add_interface(&mut self, zone: &str, name: &str) {
        if let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) {
            instance.interfaces.push(None);
        }
    }

    /// Deletes a machine. Reserved addresses that it held are free again.
    pub fn remove_instance(&mut self, zone: &str, name: &str) {
        let key = (zone.to_owned(), name.to_owned());
        let count = self.instances.get(&key).map_or(0, |instance| instance.interfaces.len());
        let lost: Vec<Deed> = (0..count).filter_map(|at| self.take_off(&key, at)).collect();
        self.unwritten.extend(lost);
        self.instances.remove(&key);
    }

    /// Deletes a machine and makes another of the same name, with another id and an ephemeral address.
    pub fn recreate_instance(&mut self, zone: &str, name: &str) {
        self.remove_instance(zone, name);
        self.add_instance(zone, name);
    }

    /// Stops a machine. It keeps a reserved address and loses an ephemeral one.
    pub fn stop_instance(&mut self, zone: &str, name: &str) {
        let key = (zone.to_owned(), name.to_owned());
        let reserved: BTreeSet<String> = self.addresses.values().map(|address| address.ip.clone()).collect();
        let Some(instance) = self.instances.get_mut(&key) else { return };
        instance.is_running = false;
        let vm = instance.vm(&self.project);
        for access in instance.interfaces.iter_mut().flatten() {
            if let Some(ip) = access.ip.take_if(|ip| !reserved.contains(ip)) {
                self.unwritten.push(Deed::Other(format!("ephemeral {ip} left {vm}")));
            }
        }
    }

    /// Starts a stopped machine. A config without an address gets an ephemeral one.
    pub fn start_instance(&mut self, zone: &str, name: &str) {
        let ip = self.next_ephemeral();
        let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) else { return };
        instance.is_running = true;
        let vm = instance.vm(&self.project);
        if let Some(access) = instance.interfaces.iter_mut().flatten().find(|access| access.ip.is_none()) {
            self.unwritten.push(Deed::Other(format!("ephemeral {ip} on {vm}")));
            access.ip = Some(ip);
        }
    }

    /// Reserves an address of the premium tier.
    pub fn add_address(&mut self, region: &str, name: &str, ip: &str) {
        self.reserve(region, name, ip, PREMIUM);
    }

    /// Reserves an address of the standard tier.
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

    /// Gives an address back at once. Whoever holds it is left without one.
    pub fn remove_address(&mut self, ip: &str) {
        let left = self.place_of(ip).and_then(|(key, at)| self.take_off(&key, at));
        self.unwritten.extend(left);
        self.addresses.retain(|_, address| address.ip != ip);
    }

    /// Puts an address on a machine's first interface at once, as a person would: it leaves the machine that has it, and
    /// whatever the interface had leaves that one.
    pub fn attach_now(&mut self, ip: &str, zone: &str, name: &str) {
        self.attach_to(ip, zone, name, 0);
    }

    /// Does the same with the interface at a position. Nothing happens where the machine has no such interface.
    pub fn attach_to(&mut self, ip: &str, zone: &str, name: &str, interface: usize) {
        let place = ((zone.to_owned(), name.to_owned()), interface);
        let has_it = |instance: &Instance| interface < instance.interfaces.len();
        if !self.instances.get(&place.0).is_some_and(has_it) {
            return;
        }
        let holder = self.place_of(ip);
        let left: Vec<Deed> =
            holder.iter().chain([&place]).filter_map(|(key, at)| self.take_off(key, *at)).collect();
        let tier =
            self.addresses.values().find(|address| address.ip == ip).map(|address| address.tier.clone());
        let tier = tier.unwrap_or_else(|| PREMIUM.to_owned());
        let access = Access { name: DEFAULT_CONFIG.to_owned(), tier, ip: Some(ip.to_owned()), ptr: None };
        let came = self.put_on(&place.0, place.1, access);
        self.unwritten.extend(left.into_iter().chain(came));
    }

    /// Sets the name of an address's PTR record, as a person would, on the machine that has it.
    pub fn set_ptr(&mut self, ip: &str, ptr: Option<&str>) {
        let Some((key, at)) = self.place_of(ip) else { return };
        let access = self.instances.get_mut(&key).and_then(|instance| instance.interfaces[at].as_mut());
        if let Some(access) = access {
            access.ptr = ptr.map(ToOwned::to_owned);
        }
    }

    /// The name of an address's PTR record; an address on no machine has none.
    pub fn ptr(&self, ip: &str) -> Option<String> {
        let (key, at) = self.place_of(ip)?;
        self.instances.get(&key)?.interfaces[at].as_ref()?.ptr.clone()
    }

    /// Takes whatever address a machine's first interface has off it at once, as a person would.
    pub fn detach_now(&mut self, zone: &str, name: &str) {
        let left = self.take_off(&(zone.to_owned(), name.to_owned()), 0);
        self.unwritten.extend(left);
    }

    /// Which machine has an address, reserved or ephemeral, as `project/zone/name`.
    pub fn holder(&self, ip: &str) -> Option<String> {
        self.holders().get(ip).map(|instance| instance.vm(&self.project))
    }

    /// Whether there is such a machine.
    pub fn exists(&self, zone: &str, name: &str) -> bool {
        self.instances.contains_key(&(zone.to_owned(), name.to_owned()))
    }

    /// The interface that has an address, such as `nic0`.
    pub fn interface_of(&self, ip: &str) -> Option<String> {
        self.place_of(ip).map(|(_, at)| format!("nic{at}"))
    }

    /// Whether a machine has any external address.
    pub fn has_address(&self, zone: &str, name: &str) -> bool {
        self.addresses_on(zone, name).next().is_some()
    }

    /// Whether a machine has an ephemeral address.
    pub fn has_own(&self, zone: &str, name: &str) -> bool {
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

    fn next_id(&mut self) -> u64 {
        self.ids_used += 1;
        FIRST_ID + self.ids_used
    }

    fn next_ephemeral(&mut self) -> String {
        self.ephemeral_used += 1;
        nth_of(EPHEMERAL_RANGES, self.ephemeral_used - 1)
    }

    /// The next address that is not reserved under another name.
    fn next_reserved(&mut self) -> String {
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

    /// Who has each address.
    fn holders(&self) -> BTreeMap<&str, &Instance> {
        let mut holders = BTreeMap::new();
        for instance in self.instances.values() {
            for ip in instance.interfaces.iter().flatten().filter_map(|access| access.ip.as_deref()) {
                holders.insert(ip, instance);
            }
        }
        holders
    }

    /// The machine that has an address, and the position of the interface.
    fn place_of(&self, ip: &str) -> Option<((String, String), usize)> {
        let instance = self.holders().get(ip).copied()?;
        Some(((instance.zone.clone(), instance.name.clone()), instance.interface_with(ip)?))
    }

    fn is_reserved(&self, ip: &str) -> bool {
        self.addresses.values().any(|address| address.ip == ip)
    }

    /// Puts an access config on a machine's interface, and says what that was.
    fn put_on(&mut self, key: &(String, String), interface: usize, access: Access) -> Option<Deed> {
        let ip = access.ip.clone()?;
        let is_reserved = self.is_reserved(&ip);
        let instance = self.instances.get_mut(key)?;
        *instance.interfaces.get_mut(interface)? = Some(access);
        let vm = instance.vm(&self.project);
        Some(if is_reserved {
            Deed::Attached { address: ip, vm }
        } else {
            Deed::Other(format!("ephemeral {ip} on {vm}"))
        })
    }

    /// Takes an interface's access config away, and says what that was.
    fn take_off(&mut self, key: &(String, String), interface: usize) -> Option<Deed> {
        let instance = self.instances.get_mut(key)?;
        let ip = instance.interfaces.get_mut(interface)?.take()?.ip?;
        let vm = instance.vm(&self.project);
        Some(if self.is_reserved(&ip) {
            Deed::Detached { address: ip, vm }
        } else {
            Deed::Other(format!("ephemeral {ip} left {vm}"))
        })
    }
}

impl Machine for Compute {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        routes::route(request.method(), request.uri().path())
    }

    fn limits() -> Vec<Limit> {
        let window = Duration::from_secs(60);
        let rate = Rate::Window { max: REQUESTS_PER_MINUTE, window, restarts: false };
        vec![Limit { counts: |_| true, rate, headers: None }]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.settle(now, ledger);
        match self.answer(call, now, ledger) {
            Ok(body) => Answer::json(200, body),
            Err(problem) => problem.answer(),
        }
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        self.settle(now, ledger);
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        let problem = match refusal {
            Refusal::NoSuchCall => Problem::no_such_call(),
            Refusal::Unauthorized => Problem::unauthorized(),
            Refusal::RateLimited(_) => Problem::rate_limited(&self.project),
            Refusal::Forbidden(permission) => {
                Problem::forbidden(permission, &format!("projects/{}", self.project))
            }
            Refusal::Unavailable(status) => Problem::unavailable(*status),
        };
        problem.answer()
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|token| token == self.token)
    }
}

/// The n-th address of some ranges taken together, starting over when they are used up.
pub(super) fn nth_of(ranges: &[(Ipv4Addr, u32)], n: u32) -> String {
    let total: u32 = ranges.iter().map(|(_, size)| size).sum();
    let mut left = n % total;
    for (first, size) in ranges {
        if left < *size {
            return Ipv4Addr::from_bits(first.to_bits() + left).to_string();
        }
        left -= size;
    }
    String::new()
}
