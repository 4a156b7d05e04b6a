//! The query API of Amazon EC2, as far as Elastic IP addresses and the instances that hold them need it.
//!
//! In: the requests of a driver or of the vendor's clients. Out: the vendor's answers and error bodies, and a ledger in
//! which a VM is `region/instance`. Every call takes effect before its answer. The region of a request is the one that
//! it is signed for. A request never sees another region's resources.
//!
//! The fake decides about a request to associate an address with an interface like this:
//!
//! ```text
//! address or interface unknown                           InvalidAllocationID.NotFound, InvalidNetworkInterfaceID.NotFound
//! names an instance that has several interfaces          InvalidInstanceID
//! the interface holds the address                        succeeds with the present association
//! another interface holds it, AllowReassociation false   Resource.AlreadyAssociated
//! another interface holds it, in any other case          moves the address
//! the interface holds another Elastic IP                 silently disassociates the other one
//! ```
//!
//! An instance loses its ephemeral address when it gets an Elastic IP. When the Elastic IP is disassociated, the
//! instance gets another ephemeral address, unless it has several interfaces.
//!
//! It never helps a caller: allocating twice creates two addresses, and reads are as stale as [`Ec2::lag`] says.

mod calls;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

use super::ledger::{CloudChange, Ledger};
use super::limits::{Limit, Rate};
use super::signature::Signature;
use super::{Answer, Call, Machine, Refusal, Route, xml};

/// The names of all calls.
pub const ROUTES: &[&str] = &[
    "DescribeAddresses",
    "DescribeInstances",
    "AssociateAddress",
    "DisassociateAddress",
    "AllocateAddress",
    "ReleaseAddress",
    "ModifyNetworkInterfaceAttribute",
];

/// The AWS account behind the API.
#[derive(Debug, Default)]
pub struct Ec2 {
    /// The access key ID that the API accepts.
    pub key: String,
    /// Permissions that the caller lacks, such as `ec2:AssociateAddress`.
    pub denied: BTreeSet<String>,
    /// How stale reads are.
    pub lag: Duration,
    /// The maximum number of addresses in a region. AWS starts with five and grants more on request.
    pub quota: usize,
    state: State,
    /// Past states with their start times, the oldest first. Empty unless reads lag.
    history: VecDeque<(Duration, State)>,
    /// Associations that have ended, and their addresses. Ending one twice is not an error.
    ended: BTreeMap<String, String>,
    /// The interfaces of terminated instances, with the instance. [`Ec2::instance_of`] still finds them.
    gone: BTreeMap<String, String>,
    number: u32,
    /// Manual changes that are not in the ledger yet.
    unwritten: VecDeque<CloudChange>,
}

/// The state that reads return.
#[derive(Clone, Debug, Default)]
struct State {
    instances: BTreeMap<String, Instance>,
    interfaces: BTreeMap<String, Interface>,
    addresses: BTreeMap<String, Address>,
}

#[derive(Clone, Debug)]
struct Instance {
    region: String,
    state: &'static str,
    /// Whether the instance gets an ephemeral address when it starts.
    assigns_own: bool,
}

#[derive(Clone, Debug)]
struct Interface {
    region: String,
    instance: Option<String>,
    device: usize,
    private: String,
    /// The ephemeral address.
    own: Option<String>,
}

#[derive(Clone, Debug)]
struct Address {
    region: String,
    allocation: String,
    /// The association ID and the interface.
    association: Option<(String, String)>,
    tags: BTreeMap<String, String>,
}

/// What a person can do with the console.
impl Ec2 {
    /// Creates an empty account.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), quota: 5_000, ..Self::default() }
    }

    /// Starts an instance with an ephemeral address.
    pub fn add_instance(&mut self, region: &str, id: &str) {
        self.start(region, id, true);
    }

    /// Starts an instance without an address.
    pub fn add_instance_without_address(&mut self, region: &str, id: &str) {
        self.start(region, id, false);
    }

    fn start(&mut self, region: &str, id: &str, assigns_own: bool) {
        let instance = Instance { region: region.into(), state: "running", assigns_own };
        self.state.instances.insert(id.into(), instance);
        self.add_interface(region, Some(id));
        self.assign_own(id);
    }

    /// Adds an interface and returns its ID. Without an instance it is like that of a NAT gateway.
    pub fn add_interface(&mut self, region: &str, instance: Option<&str>) -> String {
        let number = self.next();
        let device =
            self.state.interfaces.values().filter(|other| other.instance.as_deref() == instance).count();
        let [.., high, low] = number.to_be_bytes();
        let (instance, private) = (instance.map(Into::into), format!("10.0.{high}.{low}"));
        let interface = Interface { region: region.into(), instance, device, private, own: None };
        let id = format!("eni-{number:017x}");
        self.state.interfaces.insert(id.clone(), interface);
        id
    }

    /// Terminates an instance. This deletes its interfaces and frees its address.
    pub fn terminate_instance(&mut self, id: &str) {
        if let Some(instance) = self.state.instances.get_mut(id) {
            instance.state = "terminated";
        }
        let is_its = |interface: &Interface| interface.instance.as_deref() == Some(id);
        let gone: Vec<String> = self.interfaces_where(is_its);
        for interface in gone {
            if let Some(ip) = self.on(&interface) {
                let change = self.take_off(&ip);
                self.unwritten.extend(change);
            }
            self.state.interfaces.remove(&interface);
            self.gone.insert(interface, id.to_owned());
        }
    }

    /// Stops an instance. It keeps its Elastic IP and loses its ephemeral address.
    pub fn stop_instance(&mut self, id: &str) {
        if let Some(instance) = self.state.instances.get_mut(id) {
            instance.state = "stopped";
        }
        for interface in self.state.interfaces.values_mut() {
            interface.own = interface.own.take().filter(|_| interface.instance.as_deref() != Some(id));
        }
    }

    /// Adds an address to the account.
    pub fn add_address(&mut self, region: &str, ip: &str) {
        self.add_tagged_address(region, ip, BTreeMap::new());
    }

    fn add_tagged_address(&mut self, region: &str, ip: &str, tags: BTreeMap<String, String>) -> String {
        let allocation = format!("eipalloc-{:017x}", self.next());
        let address =
            Address { region: region.into(), allocation: allocation.clone(), association: None, tags };
        self.state.addresses.insert(ip.into(), address);
        allocation
    }

    /// Releases an address.
    pub fn remove_address(&mut self, ip: &str) {
        self.state.addresses.remove(ip);
    }

    /// Moves an address to the first interface of an instance.
    pub fn attach_now(&mut self, ip: &str, instance: &str) {
        let first =
            |interface: &Interface| interface.instance.as_deref() == Some(instance) && interface.device == 0;
        if let Some(interface) = self.interfaces_where(first).pop() {
            self.attach_to(ip, &interface);
        }
    }

    /// Moves an address to an interface.
    pub fn attach_to(&mut self, ip: &str, interface: &str) {
        let mut changes = Vec::from_iter(self.take_off(ip));
        changes.extend(self.put_on(ip, interface));
        self.unwritten.extend(changes);
    }

    /// Disassociates an address.
    pub fn detach_now(&mut self, ip: &str) {
        let change = self.take_off(ip);
        self.unwritten.extend(change);
    }

    /// Returns the holder of an address as `region/instance`, or as `region/interface` if the interface has no
    /// instance.
    pub fn holder(&self, ip: &str) -> Option<String> {
        let (_, interface) = self.state.addresses.get(ip)?.association.as_ref()?;
        Some(self.state.holder(interface))
    }

    /// Returns the holder of the address with this association, or `None` if the association has ended.
    pub fn holder_by(&self, association: &str) -> Option<String> {
        let mut associations =
            self.state.addresses.values().filter_map(|address| address.association.as_ref());
        associations.find(|(id, _)| id == association).map(|(_, interface)| self.state.holder(interface))
    }

    /// Whether an instance has an ephemeral address.
    pub fn has_ephemeral(&self, instance: &str) -> bool {
        let mut of_instance = self
            .state
            .interfaces
            .values()
            .filter(|interface| interface.instance.as_deref() == Some(instance));
        of_instance.any(|interface| interface.own.is_some())
    }

    /// Returns the address of an allocation or an association, even if the association has ended.
    pub fn address_of(&self, id: &str) -> Option<String> {
        let is_it = |address: &Address| {
            address.allocation == id
                || address.association.as_ref().is_some_and(|(association, _)| association == id)
        };
        let found = self.state.addresses.iter().find(|(_, address)| is_it(address)).map(|(ip, _)| ip.clone());
        found.or_else(|| self.ended.get(id).cloned())
    }

    /// Returns the instance of an interface, even if the interface no longer exists.
    pub fn instance_of(&self, interface: &str) -> Option<String> {
        let present = self.state.interfaces.get(interface).and_then(|interface| interface.instance.clone());
        present.or_else(|| self.gone.get(interface).cloned())
    }

    /// Whether an instance exists and is not terminated.
    pub fn exists(&self, instance: &str) -> bool {
        self.state.instances.get(instance).is_some_and(|instance| instance.state != "terminated")
    }

    /// Returns the Elastic IPs that an instance holds.
    pub fn held_by(&self, instance: &str) -> Vec<String> {
        let is_its = |interface: &Interface| interface.instance.as_deref() == Some(instance);
        self.interfaces_where(is_its).iter().filter_map(|interface| self.on(interface)).collect()
    }

    /// Returns the addresses of a region.
    pub fn addresses(&self, region: &str) -> Vec<String> {
        let here = self.state.addresses.iter().filter(|(_, address)| address.region == region);
        here.map(|(ip, _)| ip.clone()).collect()
    }
}

/// Changes of the state. Each returns what the ledger records.
impl Ec2 {
    fn next(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn interfaces_where(&self, is_meant: impl Fn(&Interface) -> bool) -> Vec<String> {
        let meant = self.state.interfaces.iter().filter(|(_, interface)| is_meant(interface));
        meant.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the Elastic IP of an interface.
    fn on(&self, interface: &str) -> Option<String> {
        let holds =
            |address: &Address| address.association.as_ref().is_some_and(|(_, holding)| holding == interface);
        self.state.addresses.iter().find(|(_, address)| holds(address)).map(|(ip, _)| ip.clone())
    }

    fn take_off(&mut self, ip: &str) -> Option<CloudChange> {
        let (association, interface) = self.state.addresses.get_mut(ip)?.association.take()?;
        self.ended.insert(association, ip.to_owned());
        let vm = self.state.holder(&interface);
        if let Some(instance) = self.state.interfaces.get(&interface).and_then(|found| found.instance.clone())
        {
            let is_its = |other: &Interface| other.instance.as_deref() == Some(&instance);
            if self.interfaces_where(is_its).len() == 1 {
                self.assign_own(&instance);
            }
        }
        Some(CloudChange::Detached { address: ip.into(), vm })
    }

    fn put_on(&mut self, ip: &str, interface: &str) -> Vec<CloudChange> {
        let association = format!("eipassoc-{:017x}", self.next());
        let other = self.on(interface).filter(|other| other != ip);
        let dropped = other.and_then(|other| self.take_off(&other));
        if let Some(interface) = self.state.interfaces.get_mut(interface) {
            interface.own = None;
        }
        let Some(address) = self.state.addresses.get_mut(ip) else { return Vec::new() };
        address.association = Some((association, interface.to_owned()));
        let (address, vm) = (ip.to_owned(), self.state.holder(interface));
        let accepted = CloudChange::Accepted { address: address.clone(), vm: vm.clone() };
        dropped.into_iter().chain([accepted, CloudChange::Attached { address, vm }]).collect()
    }

    /// Gives a running instance an ephemeral address, if it is configured to have one.
    fn assign_own(&mut self, instance: &str) {
        let number = self.next();
        let is_meant = self
            .state
            .instances
            .get(instance)
            .is_some_and(|found| found.assigns_own && found.state == "running");
        let mut interfaces = self.state.interfaces.values_mut();
        let first = interfaces.find(|found| found.instance.as_deref() == Some(instance) && found.device == 0);
        if let Some(first) = first.filter(|_| is_meant) {
            let [.., high, low] = number.to_be_bytes();
            first.own = Some(format!("198.19.{high}.{low}"));
        }
    }
}

impl State {
    fn holder(&self, interface: &str) -> String {
        match self.interfaces.get(interface) {
            Some(Interface { region, instance: Some(instance), .. }) => format!("{region}/{instance}"),
            Some(Interface { region, .. }) => format!("{region}/{interface}"),
            None => interface.to_owned(),
        }
    }
}

impl Machine for Ec2 {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        let params = super::pairs_of(std::str::from_utf8(request.body()).ok()?);
        let action = params.get("Action")?;
        ROUTES.iter().find(|name| *name == action).map(|name| Route { name, params: Vec::new() })
    }

    fn limits() -> Vec<Limit> {
        macro_rules! bucket {
            ($call:literal, $burst:literal, $per_second:literal) => {
                Limit {
                    counts: |route| route.name == $call,
                    rate: Rate::Bucket {
                        burst: $burst,
                        interval: Duration::from_millis(1_000 / $per_second),
                    },
                    headers: None,
                }
            };
        }
        vec![
            bucket!("DescribeAddresses", 50, 10),
            bucket!("DescribeInstances", 100, 20),
            bucket!("AssociateAddress", 50, 5),
            bucket!("DisassociateAddress", 50, 5),
            bucket!("AllocateAddress", 50, 5),
            bucket!("ReleaseAddress", 50, 5),
            bucket!("ModifyNetworkInterfaceAttribute", 50, 5),
        ]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.advance(now, ledger);
        let answer = self.dispatch(call, now);
        self.advance(now, ledger);
        answer.unwrap_or_else(|refused| refused)
    }

    fn advance(&mut self, now: Duration, ledger: &mut Ledger) {
        for change in self.unwritten.drain(..) {
            ledger.did(now, change);
        }
        self.remember(now);
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        refused(refusal)
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        Signature::of(request.headers())
            .is_some_and(|signature| signature.key == self.key && signature.service == "ec2")
    }
}

/// Returns EC2's answer to a refused request.
pub fn refused(refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::NoSuchCall => error(400, "InvalidAction", "The action is not valid for this web service."),
        Refusal::Unauthorized => {
            error(401, "AuthFailure", "AWS was not able to validate the provided access credentials")
        }
        // EC2 does not say how long to wait.
        Refusal::RateLimited(_) => error(503, "RequestLimitExceeded", "Request limit exceeded."),
        Refusal::Forbidden(message) => {
            let text = format!("You are not authorized to perform this operation. {message}");
            error(403, "UnauthorizedOperation", &text)
        }
        Refusal::Unavailable(status @ 503) => {
            error(*status, "Unavailable", "The service is unavailable. Please try again shortly.")
        }
        Refusal::Unavailable(status) => error(*status, "InternalError", "An internal error has occurred"),
    }
}

/// Returns an error in the vendor's format.
pub(crate) fn error(status: u16, code: &str, message: &str) -> Answer {
    let error = xml::element("Error", &(xml::text("Code", code) + &xml::text("Message", message)));
    let errors = xml::element("Errors", &error);
    let body =
        xml::element("Response", &(errors + &xml::text("RequestID", "00000000-0000-4000-8000-000000000000")));
    Answer::text(status, "text/xml;charset=UTF-8", &body)
}
