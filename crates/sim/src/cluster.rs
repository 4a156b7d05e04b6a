//! The cluster of a run, and the people, nodes and VMs that change it and the clouds.
//!
//! In: the events of a script. Out: changes of Kubernetes objects and of the fake clouds. It never changes the
//! controller's processes or the network: `run` does.
//!
//! The file is long because it has one method for each event that people, nodes and clouds can cause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::fake::Refusal;
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::{CloudChange, Ledger};

use crate::apiserver::moment;
use crate::broken;
use crate::clouds::{
    AWS_REGION, AWS_ZONE, AZURE_REGION, Cloud, OCEAN_REGION, PROJECT, REGION, STRANGER, STRANGER_DROPLET,
    STRANGER_INSTANCE, ZONES, address_at, aws_address, compute_address, ocean_address,
};
use crate::event::{CloudFault, Event, Thing};
use crate::names;
use crate::objects::{conditions, kind_of, node_name, pod_name, texts};
use crate::options::{self, ADDRESSES, NODES};
use crate::rng::Rng;
use crate::universe::Universe;
use crate::vips;

/// A fault makes AWS's reads lag by this duration times the square of its `times`, up to the maximum.
const AWS_LAG: Duration = Duration::from_millis(1_500);

/// Maximum lag of AWS's reads. The driver allows for more.
const AWS_LAG_MAX: Duration = Duration::from_secs(25);

/// Initial `desiredIPs` of a pool that creates addresses.
const DESIRED_AT_FIRST: u64 = 3;

/// What people know about the cluster, and what they have changed.
pub struct Cluster {
    universe: Arc<Universe>,
    rng: Rng,
    /// How often each node was created. Each time it gets a new VM.
    lives: BTreeMap<(Cloud, u64), u64>,
    /// Addresses that a person attached to a VM outside the cluster, each with that VM.
    pub given_away: BTreeMap<String, String>,
    /// Addresses at DigitalOcean that the controller did not create: initial ones, and those created by others.
    pub foreign: BTreeSet<String>,
    /// Addresses that were created for deleted pools. They stay in the account, because the pools' policy keeps them.
    pub orphans: BTreeSet<String>,
    /// Addresses that a tool removed from the pool's list.
    pub unlisted: BTreeSet<String>,
    /// The highest number of addresses that the controller had to create for the pool since a person last created the
    /// pool.
    pub lacked_most: usize,
    /// VMs at Google Cloud and AWS, as zone and name, and whether each had an ephemeral address. This map has no VM
    /// whose addresses a person has changed.
    pub had_ephemeral_before: BTreeMap<(&'static str, String), bool>,
    /// Addresses that an object has stopped listing.
    pub forgotten: BTreeSet<String>,
    /// Number of attaches by people.
    pub moved_by_people: usize,
    grace: u64,
    creates: bool,
    /// Whether the DigitalOcean token of this run can read and write marks (projects).
    pub tags: bool,
}

impl Cluster {
    /// Creates a healthy cluster.
    pub fn new(seed: u64, universe: Arc<Universe>) -> Self {
        let mut rng = Rng::new(seed, "cluster");
        let (grace, creates, tags) = (options::grace(seed), rng.one_in(2), !rng.one_in(4));
        let foreign = (0..ADDRESSES).map(ocean_address).collect();
        let mut cluster = Self {
            universe,
            rng,
            lives: BTreeMap::new(),
            given_away: BTreeMap::new(),
            foreign,
            orphans: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            lacked_most: 0,
            had_ephemeral_before: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            moved_by_people: 0,
            grace,
            creates,
            tags,
        };
        cluster.hide_projects();
        names::prepare(&cluster.universe);
        vips::prepare(&cluster.universe);
        for object in names::node_names() {
            cluster.universe.api.create("nodednsrecordsets", &object, cluster.universe.now());
        }
        for node in 0..NODES {
            Cloud::ALL.into_iter().for_each(|cloud| cluster.returns(cloud, node));
            cluster.pod(node, true);
        }
        Cloud::ALL.into_iter().for_each(|cloud| cluster.recreate(cloud));
        cluster.note_lacking();
        cluster
    }

    /// Rejects all listings of projects if the token of this run must not read them.
    fn hide_projects(&self) {
        if !self.tags {
            let fault = Fault::Refuse(Refusal::Forbidden("no projects".into()));
            self.universe.ocean.inject(Rule { times: usize::MAX, ..Rule::next("projects.list", fault) });
        }
    }

    fn machine(&self, cloud: Cloud, node: u64) -> (u64, String) {
        let life = self.lives.get(&(cloud, node)).copied().unwrap_or(0);
        let kind = if cloud == Cloud::Aws { "i" } else { "vm" };
        (1_000 + node * 100 + life, format!("{kind}-{node}-{life}"))
    }

    fn zone(node: u64) -> &'static str {
        ZONES[usize::try_from(node).unwrap_or(0) % ZONES.len()]
    }

    /// Applies an event. An event that is not possible at this moment has no effect.
    pub fn happen(&mut self, event: &Event) {
        self.universe.log(&event.to_string());
        self.record_change(event);
        let now = self.universe.now();
        let api = self.universe.api.clone();
        match event {
            Event::NotReady { cloud, node } => self.ready(*cloud, *node, false),
            Event::Ready { cloud, node } => self.ready(*cloud, *node, true),
            Event::Blackout { cloud } => (0..NODES).for_each(|node| self.ready(*cloud, node, false)),
            Event::Cordon { cloud, node } => self.cordon(*cloud, *node, true),
            Event::Uncordon { cloud, node } => self.cordon(*cloud, *node, false),
            Event::Removed { cloud, node } => api.delete("nodes", "", &node_name(*cloud, *node), now),
            Event::Lost { cloud, node } => {
                api.delete("nodes", "", &node_name(*cloud, *node), now);
                self.remove_machine(*cloud, *node);
            }
            Event::Returns { cloud, node } => self.returns(*cloud, *node),
            Event::Pod { node, is_ready } => self.pod(*node, *is_ready),
            Event::Mend => self.mend(),
            Event::ConfirmLosses => self.confirm_losses(Duration::ZERO),
            Event::PersonMoves { cloud, address, node } => self.person_moves(*cloud, *address, *node),
            Event::SecondInterface { address, node } => self.second_interface(*address, *node),
            Event::Edit { cloud, address } => self.edit(*cloud, *address),
            Event::Desire { count } => {
                if self.creates {
                    api.edit("floatingippools", "default", "pool", now, |object| {
                        object["spec"]["desiredIPs"] = (*count).into();
                    });
                }
            }
            Event::Unlist => self.unlist(),
            Event::ForgeCreated => self.forge_created(),
            Event::Delete { cloud: Cloud::Compute } => {
                api.delete("netipallocations", "", "edge", now);
                self.forgotten.extend((0..ADDRESSES).map(compute_address));
            }
            Event::Delete { cloud: Cloud::Ocean } => api.delete("floatingippools", "default", "pool", now),
            Event::Delete { cloud: Cloud::Aws } => {
                api.delete("netipallocations", "", "aws", now);
                self.forgotten.extend((0..ADDRESSES).map(aws_address));
            }
            Event::Delete { cloud: Cloud::Azure } => api.delete("netipallocations", "", "azure", now),
            Event::Recreate { cloud } => self.recreate(*cloud),
            Event::DeleteLease => self.delete_lease(),
            Event::Compact => api.compact(),
            Event::TakeName => names::take(&self.universe),
            Event::ForeignCreation => {
                let address = format!("192.0.2.{}", self.rng.roll(250) + 1);
                self.universe.ocean.with(|ocean| ocean.add_reserved_ip(address.clone(), OCEAN_REGION));
                self.foreign.insert(address);
            }
            Event::CloudFault { cloud, fault, times } => self.cloud_fault(*cloud, *fault, *times),
            Event::Vips(event) => vips::happen(&self.universe, event),
            Event::Undecodable { what, is_broken } => broken::garble(&self.universe, *what, *is_broken),
            Event::Refuse { what, is_refused } => broken::refuse(&self.universe, *what, *is_refused),
            Event::DeleteKind { cloud } => {
                if *cloud != Cloud::Ocean && api.has_kind(kind_of(*cloud)) {
                    let ips = (0..ADDRESSES).flat_map(|at| [compute_address(at), aws_address(at)]);
                    self.forgotten.extend(ips);
                }
                api.remove_kind(kind_of(*cloud), now);
            }
            Event::Crash { .. }
            | Event::CrashAtCall { .. }
            | Event::EditLease { .. }
            | Event::Overdue { .. }
            | Event::Terminate { .. }
            | Event::Stop { .. }
            | Event::ClockJump { .. }
            | Event::KubernetesStorm { .. }
            | Event::Silence { .. }
            | Event::Unreadable { .. }
            | Event::StaleList { .. }
            | Event::CloudStorm { .. } => {}
        }
        self.note_lacking();
    }

    /// A person deletes the Lease. In half of the cases a tool creates it again, without a holder.
    fn delete_lease(&mut self) {
        let (api, now) = (self.universe.api.clone(), self.universe.now());
        api.delete("leases", "kube-system", "lease", now);
        if self.rng.one_in(2) {
            let lease = json!({"metadata": {"name": "lease", "namespace": "kube-system"}, "spec": {}});
            api.create("leases", &lease, now);
        }
    }

    fn mend(&mut self) {
        for node in 0..NODES {
            for cloud in Cloud::ALL {
                let before = self.universe.api.changes();
                self.returns(cloud, node);
                self.ready(cloud, node, true);
                self.cordon(cloud, node, false);
                let has_pod = |pod: &Arc<Value>| pod["metadata"]["name"] == pod_name(node).as_str();
                if cloud == Cloud::Ocean && !self.universe.api.all("pods").iter().any(has_pod) {
                    self.pod(node, true);
                }
                if self.universe.api.changes() > before {
                    self.universe.record_change(&node_name(cloud, node));
                }
            }
        }
        self.universe.compute.with(|compute| compute.unreachable_regions.clear());
        self.universe.ec2.with(|ec2| ec2.lag = Duration::ZERO);
        let before = self.universe.api.changes();
        Cloud::ALL.into_iter().for_each(|cloud| self.recreate(cloud));
        if self.universe.api.changes() > before {
            self.universe.record_change("objects");
        }
        self.confirm_losses(Duration::ZERO);
        for address in 0..ADDRESSES {
            for (cloud, ip) in Cloud::ALL.map(|cloud| (cloud, address_at(cloud, address))) {
                if self.given_away.contains_key(&ip) {
                    self.universe.record_change(&ip);
                    self.person_moves(cloud, address, Some(address));
                }
            }
        }
    }

    /// A person confirms all losses up to `ahead` from now.
    fn confirm_losses(&self, ahead: Duration) {
        let now = self.universe.now();
        let confirmed = moment(now + ahead);
        for (plural, namespace, name) in [
            ("netipallocations", "", "edge"),
            ("netipallocations", "", "other"),
            ("netipallocations", "", "azure"),
            ("netipallocations", "", "aws"),
            ("floatingippools", "default", "pool"),
        ] {
            self.universe.api.edit(plural, namespace, name, now, |object| {
                object["metadata"]["annotations"]["netinfra.darkbrains.com/confirm-loss"] =
                    confirmed.clone().into();
            });
        }
    }

    /// Records what an event changes, so that checks know the reason for the controller's next actions.
    fn record_change(&self, event: &Event) {
        match event {
            Event::NotReady { cloud, node } => self.universe.becomes_not_ready(&node_name(*cloud, *node)),
            Event::Ready { cloud, node }
            | Event::Cordon { cloud, node }
            | Event::Uncordon { cloud, node }
            | Event::Lost { cloud, node }
            | Event::Removed { cloud, node }
            | Event::Returns { cloud, node } => self.universe.record_change(&node_name(*cloud, *node)),
            Event::Blackout { cloud } => {
                (0..NODES).for_each(|node| self.universe.becomes_not_ready(&node_name(*cloud, node)));
            }
            Event::Pod { node, .. } => self.universe.record_change(&node_name(Cloud::Ocean, *node)),
            Event::PersonMoves { cloud, address, node } => {
                self.universe.record_change(&address_at(*cloud, *address));
                // The provider detaches the addresses that the VM had, so the person changes these too.
                let Some((droplet, machine)) = node.map(|node| self.machine(*cloud, node)) else { return };
                let is_there = |ip: &String| {
                    let holder = self.universe.holder(ip).unwrap_or_default();
                    holder == droplet.to_string() || holder.ends_with(&format!("/{machine}"))
                };
                let displaced = (0..ADDRESSES).map(|other| address_at(*cloud, other)).filter(is_there);
                displaced.for_each(|ip| self.universe.record_change(&ip));
            }
            Event::SecondInterface { address, .. } => {
                self.universe.record_change(&address_at(Cloud::Compute, *address));
            }
            Event::Edit { .. }
            | Event::Desire { .. }
            | Event::Unlist
            | Event::ForgeCreated
            | Event::Delete { .. }
            | Event::DeleteKind { .. }
            | Event::Recreate { .. }
            // Edits made while the object was undecodable take effect now.
            | Event::Undecodable { what: Thing::Owner { .. } | Thing::Names, is_broken: false } => {
                self.universe.record_change("objects");
            }
            _ => {}
        }
    }

    fn ready(&self, cloud: Cloud, node: u64, is_ready: bool) {
        let now = self.universe.now();
        self.universe.api.edit("nodes", "", &node_name(cloud, node), now, |object| {
            let status = if is_ready { "True" } else { "Unknown" };
            if object["status"]["conditions"][0]["status"] != status {
                object["status"]["conditions"] = conditions(status, &moment(now));
            }
        });
    }

    fn cordon(&self, cloud: Cloud, node: u64, is_cordoned: bool) {
        let now = self.universe.now();
        self.universe.api.edit("nodes", "", &node_name(cloud, node), now, |object| {
            object["spec"]["unschedulable"] = is_cordoned.into();
        });
    }

    /// Creates a node with a new VM, and removes the VM that the node had before. Does nothing if the node
    /// exists.
    fn returns(&mut self, cloud: Cloud, node: u64) {
        let now = self.universe.now();
        let name = node_name(cloud, node);
        if self.universe.api.all("nodes").iter().any(|object| object["metadata"]["name"] == name.as_str()) {
            return;
        }
        self.remove_machine(cloud, node);
        *self.lives.entry((cloud, node)).or_default() += 1;
        let (droplet, machine) = self.machine(cloud, node);
        let zone = Self::zone(node);
        let (provider_id, labels) = match cloud {
            Cloud::Compute => {
                let has_ephemeral = node.is_multiple_of(2);
                self.universe.compute.with(|compute| match has_ephemeral {
                    true => compute.add_instance(zone, &machine),
                    false => compute.add_instance_without_address(zone, &machine),
                });
                self.universe.compute.with(|compute| compute.add_interface(zone, &machine));
                self.had_ephemeral_before.insert((zone, machine.clone()), has_ephemeral);
                let labels = json!({
                    "role": "edge", "topology.kubernetes.io/region": REGION, "topology.kubernetes.io/zone": zone,
                });
                (format!("gce://{PROJECT}/{zone}/{machine}"), labels)
            }
            Cloud::Ocean => {
                self.universe.ocean.with(|ocean| ocean.add_droplet(droplet, &machine, OCEAN_REGION));
                let labels = json!({"role": "worker", "topology.kubernetes.io/region": OCEAN_REGION});
                (format!("digitalocean://{droplet}"), labels)
            }
            Cloud::Azure => {
                self.universe.azure.with(|azure| azure.add_machine(&machine, AZURE_REGION));
                let id = self
                    .universe
                    .azure
                    .with(|azure| azure.id(&format!("Microsoft.Compute/virtualMachines/{machine}")));
                let labels = json!({"role": "azure", "topology.kubernetes.io/region": AZURE_REGION});
                (format!("azure://{id}"), labels)
            }
            Cloud::Aws => {
                let has_ephemeral = node.is_multiple_of(2);
                self.universe.ec2.with(|ec2| match has_ephemeral {
                    true => {
                        ec2.add_instance(AWS_REGION, &machine);
                        // AWS gives a VM with two interfaces no new ephemeral address by itself.
                        ec2.add_interface(AWS_REGION, Some(&machine));
                    }
                    false => ec2.add_instance_without_address(AWS_REGION, &machine),
                });
                self.had_ephemeral_before.insert((AWS_ZONE, machine.clone()), has_ephemeral);
                let labels = json!({"role": "aws", "topology.kubernetes.io/region": AWS_REGION});
                (format!("aws:///{AWS_ZONE}/{machine}"), labels)
            }
        };
        let second = match cloud {
            Cloud::Compute => 64,
            Cloud::Ocean => 65,
            Cloud::Azure => 66,
            Cloud::Aws => 67,
        };
        let external = format!("100.{second}.{}.{}", droplet / 100, droplet % 100);
        let object = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": provider_id},
            "status": {
                "conditions": conditions("True", &moment(now)),
                "addresses": [{"type": "ExternalIP", "address": external}],
            },
        });
        self.universe.api.create("nodes", &object, now);
    }

    fn remove_machine(&self, cloud: Cloud, node: u64) {
        let (droplet, machine) = self.machine(cloud, node);
        match cloud {
            Cloud::Compute => {
                self.universe.compute.with(|compute| compute.remove_instance(Self::zone(node), &machine));
            }
            Cloud::Ocean => self.universe.ocean.with(|ocean| ocean.remove_droplet(droplet)),
            Cloud::Azure => self.universe.azure.with(|azure| azure.remove_machine(&machine)),
            Cloud::Aws => self.universe.ec2.with(|ec2| ec2.terminate_instance(&machine)),
        }
    }

    fn pod(&self, node: u64, is_ready: bool) {
        let now = self.universe.now();
        let name = pod_name(node);
        self.universe.api.delete("pods", "ingress", &name, now);
        if is_ready {
            let object = json!({
                "metadata": {"name": name, "namespace": "ingress", "labels": {"app": "ingress"}},
                "spec": {"nodeName": node_name(Cloud::Ocean, node)},
                "status": {"phase": "Running", "conditions": conditions("True", &moment(now))},
            });
            self.universe.api.create("pods", &object, now);
        }
    }

    /// A person moves an address, unless an operation on it is in flight. Two operations at the same time would violate
    /// I1 without a mistake of the controller.
    fn person_moves(&mut self, cloud: Cloud, address: u64, node: Option<u64>) {
        let ip = address_at(cloud, address);
        let ledger = match cloud {
            Cloud::Compute => self.universe.compute.ledger(),
            Cloud::Ocean => self.universe.ocean.ledger(),
            Cloud::Azure => self.universe.azure.ledger(),
            Cloud::Aws => self.universe.ec2.ledger(),
        };
        if is_in_flight(&ledger, &ip) {
            return;
        }
        self.moved_by_people += 1;
        let (droplet, machine) = match node {
            Some(node) => self.machine(cloud, node),
            None => (STRANGER_DROPLET, STRANGER.to_owned()),
        };
        match cloud {
            Cloud::Compute => {
                let zone = node.map_or(ZONES[0], Self::zone);
                let vm = format!("{PROJECT}/{zone}/{machine}");
                if vm_is_in_flight(&ledger, &vm) {
                    return;
                }
                self.had_ephemeral_before.remove(&(zone, machine.clone()));
                let holder = self.universe.compute.with(|compute| compute.holder(&ip)).unwrap_or_default();
                self.had_ephemeral_before.retain(|(_, name), _| !holder.ends_with(&format!("/{name}")));
                self.universe.compute.with(|compute| compute.attach_now(&ip, zone, &machine));
            }
            Cloud::Ocean => {
                if vm_is_in_flight(&ledger, &droplet.to_string()) {
                    return;
                }
                self.universe.ocean.with(|ocean| {
                    let is_taken =
                        (0..ADDRESSES).any(|other| ocean.holder(&ocean_address(other)) == Some(droplet));
                    if !is_taken {
                        ocean.assign_now(&ip, droplet);
                    }
                });
            }
            Cloud::Azure => self.universe.azure.with(|azure| azure.attach_now(&ip, &machine)),
            Cloud::Aws => {
                let machine = if node.is_some() { machine } else { STRANGER_INSTANCE.to_owned() };
                let holder = self.universe.ec2.with(|ec2| ec2.holder(&ip)).unwrap_or_default();
                self.had_ephemeral_before
                    .retain(|(_, name), _| *name != machine && !holder.ends_with(&format!("/{name}")));
                // AWS detaches the address that the VM already has. The person is the reason for this change
                // as well.
                let dropped = self.universe.ec2.with(|ec2| ec2.held_by(&machine));
                dropped.iter().for_each(|ip| self.universe.record_change(ip));
                self.universe.ec2.with(|ec2| ec2.attach_now(&ip, &machine));
            }
        }
        self.given_away.remove(&ip);
        self.universe.begins_anew(&ip);
        let stranger = match cloud {
            Cloud::Compute => format!("{PROJECT}/{}/{STRANGER}", ZONES[0]),
            Cloud::Ocean => STRANGER_DROPLET.to_string(),
            Cloud::Azure => self.universe.azure.with(|azure| azure.vm(STRANGER)),
            Cloud::Aws => format!("{AWS_REGION}/{STRANGER_INSTANCE}"),
        };
        if self.universe.holder(&ip).as_ref() == Some(&stranger) {
            // The VM no longer has its previous address.
            let has_it = |ip: &String| self.universe.holder(ip).as_ref() == Some(&stranger);
            self.given_away.retain(|ip, vm| *vm != stranger || has_it(ip));
            self.given_away.insert(ip, stranger);
        }
    }

    /// A person attaches an address to the second interface of a node's VM, unless the VM holds an address or an
    /// operation on the address or the VM is in flight. The first interface keeps its address.
    fn second_interface(&mut self, address: u64, node: u64) {
        let (ip, ledger) = (compute_address(address), self.universe.compute.ledger());
        let ((_, machine), zone) = (self.machine(Cloud::Compute, node), Self::zone(node));
        let vm = format!("{PROJECT}/{zone}/{machine}");
        let is_held =
            (0..ADDRESSES).any(|other| self.universe.holder(&compute_address(other)).as_ref() == Some(&vm));
        if is_held || is_in_flight(&ledger, &ip) || vm_is_in_flight(&ledger, &vm) {
            return;
        }
        self.moved_by_people += 1;
        let holder = self.universe.holder(&ip).unwrap_or_default();
        self.had_ephemeral_before.retain(|(_, name), _| !holder.ends_with(&format!("/{name}")));
        self.universe.compute.with(|compute| compute.attach_to(&ip, zone, &machine, 1));
        self.given_away.remove(&ip);
        self.universe.begins_anew(&ip);
    }

    fn edit(&mut self, cloud: Cloud, address: u64) {
        let now = self.universe.now();
        let (plural, namespace, name, field) = match cloud {
            Cloud::Compute => ("netipallocations", "", "edge", "reservedIPs"),
            Cloud::Ocean => ("floatingippools", "default", "pool", "ips"),
            Cloud::Azure => ("netipallocations", "", "azure", "reservedIPs"),
            Cloud::Aws => ("netipallocations", "", "aws", "reservedIPs"),
        };
        let ip = address_at(cloud, address);
        self.forgotten.insert(ip.clone());
        self.universe.api.edit(plural, namespace, name, now, |object| {
            let mut listed: Vec<Value> = object["spec"][field].as_array().cloned().unwrap_or_default();
            match listed.iter().position(|listed| *listed == ip.as_str()) {
                Some(at) if listed.len() > 1 => _ = listed.remove(at),
                Some(_) => {}
                None => listed.push(ip.into()),
            }
            object["spec"][field] = listed.into();
        });
    }

    fn recreate(&mut self, cloud: Cloud) {
        let now = self.universe.now();
        self.universe.api.install_kind(kind_of(cloud), now);
        match cloud {
            Cloud::Compute => {
                for (name, numbers) in [("edge", 0..3), ("other", 2..4)] {
                    let ips: Vec<_> = numbers.map(compute_address).collect();
                    let object = json!({
                        "metadata": {"name": name},
                        "spec": {
                            "reservedIPs": ips, "nodeSelector": {"role": "edge"}, "cloud": {"provider": "gcp"},
                            "policy": {"failoverGraceSeconds": self.grace},
                        },
                    });
                    self.universe.api.create("netipallocations", &object, now);
                }
            }
            Cloud::Ocean => {
                if self.universe.api.all("floatingippools").is_empty() {
                    self.orphans.extend(self.universe.ocean.with(|ocean| ocean.reserved_ips()));
                    self.lacked_most = 0;
                }
                let ips = listed_at_first();
                let mut object = json!({
                    "metadata": {"name": "pool", "namespace": "default"},
                    "spec": {
                        "provider": "digitalocean", "region": OCEAN_REGION, "ips": ips,
                        "match": {"nodeLabel": "role=worker", "podLabel": "app=ingress", "podNamespace": "ingress"},
                        "policy": {"failoverGraceSeconds": self.grace}, "dnsRecordSet": names::of_pool(),
                    },
                });
                if self.creates {
                    object["spec"]["desiredIPs"] = DESIRED_AT_FIRST.into();
                }
                self.universe.api.create("floatingippools", &object, now);
            }
            Cloud::Azure | Cloud::Aws => {
                let name = if cloud == Cloud::Azure { "azure" } else { "aws" };
                let ips: Vec<_> = (0..3).map(|number| address_at(cloud, number)).collect();
                let object = json!({
                    "metadata": {"name": name},
                    "spec": {
                        "reservedIPs": ips, "nodeSelector": {"role": name}, "cloud": {"provider": name},
                        "policy": {"failoverGraceSeconds": self.grace},
                    },
                });
                self.universe.api.create("netipallocations", &object, now);
            }
        }
    }

    /// A tool resets the pool's list to its initial content, without the created addresses. Does nothing if the pool
    /// creates no addresses, or if the token can't read projects: projects are the marks by which the controller
    /// recognizes the addresses that it created.
    fn unlist(&mut self) {
        if !self.creates || !self.tags {
            return;
        }
        let (now, first) = (self.universe.now(), listed_at_first());
        let unlisted = &mut self.unlisted;
        self.universe.api.edit("floatingippools", "default", "pool", now, |object| {
            unlisted.extend(texts(&object["spec"]["ips"]).filter(|ip| !first.contains(ip)));
            object["spec"]["ips"] = json!(first);
        });
    }

    /// A person forges the pool's status: it says that the pool created an address of somebody else.
    fn forge_created(&self) {
        if !self.creates {
            return;
        }
        let (now, ip) = (self.universe.now(), ocean_address(ADDRESSES - 1));
        self.universe.api.edit("floatingippools", "default", "pool", now, |object| {
            let mut listed: Vec<String> =
                texts(&object["spec"]["ips"]).filter(|listed| *listed != ip).collect();
            object["spec"]["desiredIPs"] = listed.len().into();
            listed.push(ip.clone());
            object["spec"]["ips"] = json!(listed);
            object["spec"]["policy"]["releaseCreated"] = "WhenUnneeded".into();
            let status = object["status"]["addresses"].as_array().into_iter().flatten();
            let mut status: Vec<Value> =
                status.filter(|one| one["address"] != ip.as_str()).cloned().collect();
            status.push(json!({"address": ip, "state": "Disabled", "created": true}));
            object["status"]["addresses"] = status.into();
        });
    }

    fn cloud_fault(&self, cloud: Cloud, fault: CloudFault, times: u64) {
        let fault = match fault {
            CloudFault::LoseReply => Fault::LoseReply,
            CloudFault::Truncate => Fault::Truncate,
            CloudFault::RateLimited => Fault::Refuse(Refusal::RateLimited(Duration::from_secs(7))),
            CloudFault::Forbidden => Fault::Refuse(Refusal::Forbidden("not now".into())),
            CloudFault::FailLate => Fault::FailLate,
            CloudFault::Overtake => Fault::Overtake,
            CloudFault::Slow => Fault::Delay(Duration::from_millis(1_500)),
            CloudFault::Partial => {
                match cloud {
                    Cloud::Compute => self
                        .universe
                        .compute
                        .with(|compute| _ = compute.unreachable_regions.insert(REGION.into())),
                    Cloud::Aws => {
                        let lag = AWS_LAG * u32::try_from(times * times).unwrap_or(1);
                        self.universe.ec2.with(|ec2| ec2.lag = lag.min(AWS_LAG_MAX));
                    }
                    // These clouds have no partial listings, but a page can be truncated.
                    Cloud::Ocean => {
                        self.universe.ocean.inject(Rule::next("reserved_ips.list", Fault::Truncate));
                    }
                    Cloud::Azure => {
                        self.universe.azure.inject(Rule::next("PublicIPAddresses_ListAll", Fault::Truncate));
                    }
                }
                return;
            }
        };
        // There are so many reads that they would use up most faults. So every other event affects changes only.
        let change = match cloud {
            Cloud::Compute => "instances.addAccessConfig",
            Cloud::Ocean => "reserved_ips_actions.post",
            Cloud::Azure => "NetworkInterfaces_CreateOrUpdate",
            Cloud::Aws => "AssociateAddress",
        };
        let (times, call) = (usize::try_from(times).unwrap_or(1), (times % 2 == 1).then_some(change));
        let rule = Rule { times, call, ..Rule::always(fault) };
        // DNS has other calls, so the rule for it names no call.
        let of_names = Rule { call: None, ..rule.clone() };
        match cloud {
            Cloud::Compute => self.universe.compute.inject(rule),
            Cloud::Ocean => {
                self.universe.zones.inject(of_names);
                self.universe.ocean.inject(rule);
            }
            Cloud::Azure => self.universe.azure.inject(rule),
            Cloud::Aws => {
                self.universe.route53.inject(of_names);
                self.universe.ec2.inject(rule);
            }
        }
    }

    /// Ends all faults, recreates missing objects, and confirms all losses.
    pub fn heal(&mut self) {
        self.universe.compute.heal();
        self.universe.ocean.heal();
        self.universe.zones.heal();
        self.universe.azure.heal();
        self.universe.ec2.heal();
        self.universe.route53.heal();
        self.universe.ec2.with(|ec2| ec2.lag = Duration::ZERO);
        self.universe.compute.with(|compute| compute.unreachable_regions.clear());
        self.hide_projects();
        self.universe.record_change("objects");
        Cloud::ALL.into_iter().for_each(|cloud| self.recreate(cloud));
        vips::heal(&self.universe);
        broken::heal(&self.universe);
        self.confirm_losses(Duration::from_secs(86_400));
        self.note_lacking();
    }

    /// Does what the controller leaves to people: recreates objects whose deletion has finished, and decides which
    /// candidate addresses the pool has created. Adds these and the reported unlisted addresses to the pool's list, and
    /// excludes the other candidates with an annotation.
    pub fn resolve(&mut self) {
        let now = self.universe.now();
        self.universe.record_change("objects");
        Cloud::ALL.into_iter().for_each(|cloud| self.recreate(cloud));
        self.note_lacking();
        let mut put_back = BTreeSet::new();
        self.universe.api.edit("floatingippools", "default", "pool", now, |object| {
            let entries = object["status"]["moves"]["entries"].as_array().cloned().unwrap_or_default();
            let candidates =
                entries.iter().filter_map(|entry| entry["candidates"].as_array()).flatten().cloned();
            let mut listed: Vec<Value> = object["spec"]["ips"].as_array().cloned().unwrap_or_default();
            let is_foreign = |ip: &Value| ip.as_str().is_some_and(|ip| self.foreign.contains(ip));
            let (foreign, ours): (Vec<_>, Vec<_>) =
                candidates.filter(|ip| !listed.contains(ip)).partition(is_foreign);
            let foreign: Vec<_> = foreign.iter().filter_map(Value::as_str).collect();
            object["metadata"]["annotations"]["netinfra.darkbrains.com/not-created"] =
                foreign.join(",").into();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let unlisted = conditions.iter().find(|condition| condition["reason"] == "UnlistedAddresses");
            let message = unlisted.and_then(|condition| condition["message"].as_str()).unwrap_or_default();
            let left = message.split([' ', ',', ';']).filter(|word| self.unlisted.contains(*word));
            put_back.extend(left.map(ToOwned::to_owned));
            if !ours.is_empty() || !put_back.is_empty() {
                listed.extend(ours);
                listed.extend(put_back.iter().map(|ip| ip.as_str().into()));
                object["spec"]["ips"] = listed.into();
            }
        });
        self.unlisted.retain(|ip| !put_back.contains(ip));
    }

    /// Records how many addresses the controller has to create for the pool now.
    fn note_lacking(&mut self) {
        for pool in self.universe.api.all("floatingippools") {
            let desired = pool["spec"]["desiredIPs"].as_u64().unwrap_or(0);
            let by_people = texts(&pool["spec"]["ips"]).filter(|ip| self.foreign.contains(ip)).count();
            let lacking = usize::try_from(desired).unwrap_or(0).saturating_sub(by_people);
            self.lacked_most = self.lacked_most.max(lacking);
        }
    }
}

/// The initial list of the pool.
fn listed_at_first() -> Vec<String> {
    (0..2).map(ocean_address).collect()
}

/// Whether an operation on an address is in flight.
fn is_in_flight(ledger: &Ledger, address: &str) -> bool {
    in_flight(ledger).contains_key(address)
}

fn vm_is_in_flight(ledger: &Ledger, vm: &str) -> bool {
    in_flight(ledger).values().any(|target| target == vm)
}

/// The addresses with an attach in flight, each with its target VM.
fn in_flight(ledger: &Ledger) -> BTreeMap<String, String> {
    let mut attaches = BTreeMap::new();
    for done in &ledger.done {
        match &done.change {
            CloudChange::Accepted { address, vm } => _ = attaches.insert(address.clone(), vm.clone()),
            CloudChange::Failed { address, .. } | CloudChange::Attached { address, .. } => {
                _ = attaches.remove(address)
            }
            _ => {}
        }
    }
    attaches
}
