//! One subscription: its resources, and what a person can do to them with the portal.
//!
//! Out: which VM holds which address, and every change, which the fake records in its `Ledger`. This module never reads
//! a request: `calls` does, and `operations` makes the changes that take time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::CloudChange;
use super::super::ranges::nth_of;
use super::orders::Operation;
use super::resources::{Interface, PublicIp, VirtualMachine, is_link_to};

/// New addresses come from a documentation range, then from half of the benchmarking range.
const RANGES: &[(Ipv4Addr, u32)] =
    &[(Ipv4Addr::new(198, 51, 100, 1), 254), (Ipv4Addr::new(198, 19, 0, 0), 65_536)];

/// One subscription. Everything that a test adds is in one resource group.
#[derive(Debug)]
pub struct Azure {
    /// How long an operation takes.
    pub operation_time: Duration,
    /// The `Retry-After` of operations in seconds.
    pub poll_seconds: u64,
    /// The number of items on a page of a listing.
    pub page_size: usize,
    /// Actions that the caller's role does not allow, such as `Microsoft.Network/networkInterfaces/write`.
    pub denied: BTreeSet<String>,
    /// Whether the caller's role covers no VM. Azure then lists none.
    pub hides_machines: bool,
    /// Whether the caller's role covers no network interface. Azure then lists none.
    pub hides_interfaces: bool,
    /// Whether the resource group has a lock that forbids changes.
    pub is_locked: bool,
    pub(super) subscription: String,
    pub(super) group: String,
    pub(super) token: String,
    /// All maps use IDs in lower case as keys.
    pub(super) addresses: BTreeMap<String, PublicIp>,
    pub(super) interfaces: BTreeMap<String, Interface>,
    pub(super) machines: BTreeMap<String, VirtualMachine>,
    pub(super) operations: Vec<Operation>,
    /// The due times of unfinished operations, with their index.
    pub(super) pending: BTreeSet<(Duration, usize)>,
    /// Manual changes that are not in the ledger yet.
    pub(super) unwritten: Vec<CloudChange>,
    ips_used: u32,
    etags_used: u64,
}

impl Azure {
    /// Creates an empty subscription that accepts one token.
    pub fn new(subscription: &str, group: &str, token: &str) -> Self {
        Self {
            operation_time: Duration::from_secs(2),
            poll_seconds: 10,
            page_size: 100,
            denied: BTreeSet::new(),
            hides_machines: false,
            hides_interfaces: false,
            is_locked: false,
            subscription: subscription.to_owned(),
            group: group.to_owned(),
            token: token.to_owned(),
            addresses: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            machines: BTreeMap::new(),
            operations: Vec::new(),
            pending: BTreeSet::new(),
            unwritten: Vec::new(),
            ips_used: 0,
            etags_used: 0,
        }
    }

    /// Returns the ID of a resource in the resource group, such as `Microsoft.Compute/virtualMachines/one`.
    pub fn id(&self, resource: &str) -> String {
        format!("/subscriptions/{}/resourceGroups/{}/providers/{resource}", self.subscription, self.group)
    }

    /// Returns the name of a VM as a holder: subscription, group and name, in lower case.
    pub fn vm(&self, machine: &str) -> String {
        format!("{}/{}/{machine}", self.subscription, self.group).to_lowercase()
    }

    /// Creates a running VM with one interface. The interface has a security group, a backend pool of a load balancer,
    /// a second configuration, and no public address.
    pub fn add_machine(&mut self, name: &str, location: &str) {
        let id = self.id(&format!("Microsoft.Compute/virtualMachines/{name}"));
        self.machines.insert(
            id.to_lowercase(),
            VirtualMachine { id: id.clone(), location: location.to_owned(), is_running: true },
        );
        self.make_interface(&format!("{name}-nic"), location, Some(id), true);
    }

    /// Adds a secondary interface to a VM.
    pub fn add_interface(&mut self, name: &str, machine: &str) {
        let machine = self.id(&format!("Microsoft.Compute/virtualMachines/{machine}"));
        let Some(found) = self.machines.get(&machine.to_lowercase()) else { return };
        let location = found.location.clone();
        self.make_interface(name, &location, Some(machine), false);
    }

    /// Makes an interface the primary one of its VM.
    pub fn make_primary(&mut self, name: &str) {
        let id = self.id(&format!("Microsoft.Network/networkInterfaces/{name}")).to_lowercase();
        let Some(machine) = self.interfaces.get(&id).map(|found| found.machine.clone()) else { return };
        for (key, interface) in &mut self.interfaces {
            if interface.machine == machine {
                interface.is_primary = *key == id;
            }
        }
    }

    fn make_interface(&mut self, name: &str, location: &str, machine: Option<String>, is_primary: bool) {
        let id = self.id(&format!("Microsoft.Network/networkInterfaces/{name}"));
        let network = |kind: &str| json!({ "id": self.id(&format!("Microsoft.Network/{kind}")) });
        let host = self.interfaces.len() + 4;
        let configuration = |name: &str, number: usize, is_primary: bool| {
            json!({
                "name": name,
                "properties": {
                    "privateIPAddress": format!("10.{number}.{}.{}", host / 250, host % 250),
                    "privateIPAllocationMethod": "Dynamic",
                    "privateIPAddressVersion": "IPv4",
                    "primary": is_primary,
                    "subnet": network("virtualNetworks/net/subnets/nodes"),
                    "loadBalancerBackendAddressPools": [network("loadBalancers/lb/backendAddressPools/nodes")],
                },
            })
        };
        let body = json!({
            "location": location,
            "tags": { "made-by": "the cluster" },
            "properties": {
                "enableIPForwarding": true,
                "enableAcceleratedNetworking": true,
                "dnsSettings": { "dnsServers": ["10.0.0.10"] },
                "networkSecurityGroup": network("networkSecurityGroups/nodes"),
                "ipConfigurations": [configuration("pods", 1, false), configuration("primary", 0, true)],
            },
        });
        let etag = self.next_etag();
        let (leaving, missing) = (BTreeMap::new(), BTreeSet::new());
        let interface = Interface {
            id: id.clone(),
            machine,
            is_primary,
            etag,
            state: "Succeeded",
            body,
            leaving,
            missing,
        };
        self.interfaces.insert(id.to_lowercase(), interface);
    }

    /// Deletes a VM with its interfaces. Addresses on them become free.
    pub fn remove_machine(&mut self, name: &str) {
        let machine = self.id(&format!("Microsoft.Compute/virtualMachines/{name}")).to_lowercase();
        let vm = self.vm(name);
        let of_machine = |interface: &Interface| {
            interface.machine.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&machine))
        };
        let gone: Vec<String> = self
            .interfaces
            .iter()
            .filter(|(_, interface)| of_machine(interface))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            let Some(interface) = self.interfaces.remove(&id) else { continue };
            for public in interface.publics() {
                // An attach in flight fails, because its interface is gone.
                if let Some(address) = self.ip_of(&public) {
                    self.unwritten.push(CloudChange::Failed { address: address.clone(), vm: vm.clone() });
                    self.unwritten.push(CloudChange::Detached { address, vm: vm.clone() });
                }
            }
        }
        self.machines.remove(&machine);
    }

    /// Deletes a VM but keeps its interfaces with their addresses, which is Azure's default.
    pub fn remove_machine_but_not_its_interface(&mut self, name: &str) {
        let machine = self.id(&format!("Microsoft.Compute/virtualMachines/{name}")).to_lowercase();
        self.machines.remove(&machine);
        for interface in self.interfaces.values_mut() {
            interface.machine.take_if(|id| id.eq_ignore_ascii_case(&machine));
        }
    }

    /// Stops a VM. It keeps its addresses.
    pub fn stop_machine(&mut self, name: &str) {
        self.set_running(name, false);
    }

    /// Starts a VM.
    pub fn start_machine(&mut self, name: &str) {
        self.set_running(name, true);
    }

    fn set_running(&mut self, name: &str, is_running: bool) {
        let id = self.id(&format!("Microsoft.Compute/virtualMachines/{name}")).to_lowercase();
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.is_running = is_running;
        }
    }

    /// Creates a static address.
    pub fn add_address(&mut self, name: &str, location: &str, ip: &str) {
        let id = self.id(&format!("Microsoft.Network/publicIPAddresses/{name}"));
        let public = PublicIp {
            id: id.clone(),
            location: location.to_owned(),
            ip: Some(ip.to_owned()),
            sku: "Standard".to_owned(),
            tags: Value::Null,
            etag: self.next_etag(),
            state: "Succeeded",
            other_holder: None,
        };
        self.addresses.insert(id.to_lowercase(), public);
    }

    /// Deletes an address, which must have no holder.
    pub fn remove_address(&mut self, ip: &str) {
        self.addresses.retain(|_, public| public.ip.as_deref() != Some(ip));
    }

    /// Assigns an address to a load balancer.
    pub fn give_to_balancer(&mut self, ip: &str) {
        let frontend = self.id("Microsoft.Network/loadBalancers/lb/frontendIPConfigurations/front");
        let found = self.addresses.values_mut().find(|public| public.ip.as_deref() == Some(ip));
        if let Some(public) = found {
            public.other_holder = Some(frontend);
        }
    }

    /// Attaches an address to a VM's primary interface at once, as a person would. The fake first detaches it from its
    /// holder, and detaches the interface's present addresses. Does nothing while an operation on one of the interfaces
    /// is in flight.
    pub fn attach_now(&mut self, ip: &str, machine: &str) {
        let machine_id = self.id(&format!("Microsoft.Compute/virtualMachines/{machine}"));
        let Some(public) = self.id_of(ip) else { return };
        let is_meant = |interface: &Interface| {
            interface.is_primary
                && interface.machine.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&machine_id))
        };
        let is_changing = |interface: &Interface| interface.state == "Updating";
        let mut involved = self.interfaces.values().filter(|found| is_meant(found) || found.has(&public));
        let Some(interface) = self.interfaces.values().find(|found| is_meant(found)) else { return };
        if involved.any(is_changing) {
            return;
        }
        let had: Vec<_> = interface.publics().iter().filter_map(|public| self.ip_of(public)).collect();
        had.iter().chain([&ip.to_owned()]).for_each(|ip| self.detach_now(ip));
        let etag = self.next_etag();
        let vm = self.vm(machine);
        let Some(interface) = self.interfaces.values_mut().find(|found| is_meant(found)) else { return };
        interface.etag = etag;
        for configuration in interface.configurations_mut() {
            if configuration["properties"]["primary"] == true {
                configuration["properties"]["publicIPAddress"] = json!({ "id": public });
            }
        }
        self.unwritten.push(CloudChange::Attached { address: ip.to_owned(), vm });
    }

    /// Detaches an address from its interface at once, as a person would.
    pub fn detach_now(&mut self, ip: &str) {
        let Some(public) = self.id_of(ip) else { return };
        let vm = self.holder(ip);
        let etag = self.next_etag();
        for interface in self.interfaces.values_mut() {
            if interface.publics().iter().any(|id| id.eq_ignore_ascii_case(&public)) {
                interface.etag = etag;
                interface.leaving.remove(&public.to_lowercase());
                interface.missing.remove(&public.to_lowercase());
                for configuration in interface.configurations_mut() {
                    let properties = configuration["properties"].as_object_mut();
                    if let Some(properties) = properties
                        && properties.get("publicIPAddress").is_some_and(|link| is_link_to(link, &public))
                    {
                        properties.remove("publicIPAddress");
                    }
                }
            }
        }
        self.unwritten.extend(vm.map(|vm| CloudChange::Detached { address: ip.to_owned(), vm }));
    }

    /// Returns the VM that holds an address, as `subscription/group/name`. While an attach is in flight, there is no
    /// holder.
    pub fn holder(&self, ip: &str) -> Option<String> {
        let public = self.id_of(ip)?;
        let settled = |interface: &&Interface| {
            let is_coming =
                interface.state == "Updating" && !interface.leaving.contains_key(&public.to_lowercase());
            let has = interface.has(&public) && !interface.missing.contains(&public.to_lowercase());
            has && !is_coming
        };
        let interface = self.interfaces.values().find(settled)?;
        Some(self.holder_name(interface))
    }

    /// Whether the VM exists.
    pub fn exists(&self, name: &str) -> bool {
        let id = self.id(&format!("Microsoft.Compute/virtualMachines/{name}")).to_lowercase();
        self.machines.contains_key(&id)
    }

    /// Returns the number of addresses that have a tag with this value.
    pub fn tagged(&self, value: &str) -> usize {
        let has = |public: &&PublicIp| {
            public.tags.as_object().is_some_and(|tags| tags.values().any(|found| found == value))
        };
        self.addresses.values().filter(has).count()
    }

    /// Returns an interface in the API's format.
    pub fn interface(&self, name: &str) -> Value {
        let id = self.id(&format!("Microsoft.Network/networkInterfaces/{name}")).to_lowercase();
        self.interfaces.get(&id).map(Interface::to_json).unwrap_or_default()
    }

    pub(super) fn holder_name(&self, interface: &Interface) -> String {
        let id = interface.machine.as_ref().unwrap_or(&interface.id);
        let name = id.rsplit('/').next().unwrap_or_default();
        match &interface.machine {
            Some(_) => self.vm(name),
            None => self.vm(&format!("networkinterfaces/{name}")),
        }
    }

    fn id_of(&self, ip: &str) -> Option<String> {
        let found = self.addresses.values().find(|public| public.ip.as_deref() == Some(ip))?;
        Some(found.id.clone())
    }

    pub(super) fn ip_of(&self, public: &str) -> Option<String> {
        self.addresses.get(&public.to_lowercase())?.ip.clone()
    }

    pub(super) fn next_etag(&mut self) -> u64 {
        self.etags_used += 1;
        self.etags_used
    }

    /// Returns the next address that is not in use.
    pub(super) fn next_ip(&mut self) -> String {
        loop {
            self.ips_used += 1;
            let ip = nth_of(RANGES, self.ips_used - 1);
            if self.id_of(&ip).is_none() {
                return ip;
            }
        }
    }
}
