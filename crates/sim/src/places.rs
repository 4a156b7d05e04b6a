//! Checks where addresses, labels and DNS records are at the end of a run.
//!
//! In: the objects, nodes and pods in Kubernetes, and the holders of addresses in the fake clouds. Out: the violations.
//! It never uses the planner. It states the planner's rules a second time, in the short form that they have in a
//! settled cluster.
//!
//! ```text
//! I3  an address is on a fit node, or no fit node is free, or a VM outside the cluster has it, not attached by us
//!     no address of a NetIPAllocation is on a node that is cordoned and Ready
//! I5  exactly the nodes that hold an address of a NetIPAllocation have the label
//!     exactly the fit nodes that hold an address of a FloatingIPPool have the annotation, with this address
//!     a DNS name has the addresses of exactly the fit nodes, unless it would be empty
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::names;
use crate::objects::texts;
use crate::universe::Universe;

/// A kind of object that lists addresses.
struct Kind {
    plural: &'static str,
    /// The field of `spec` that lists the addresses.
    lists: &'static str,
    /// Whether a fit node needs a pod. If so, a fit node may be cordoned.
    needs_pod: bool,
}

const ALLOCATIONS: Kind = Kind { plural: "netipallocations", lists: "reservedIPs", needs_pod: false };
const POOLS: Kind = Kind { plural: "floatingippools", lists: "ips", needs_pod: true };

struct Node {
    name: String,
    role: String,
    machine: String,
    is_fit: bool,
    /// Whether the node is cordoned and Ready, and must therefore not hold an address of a NetIPAllocation.
    is_drained: bool,
    object: Value,
}

/// All violations at the end of a run, each with its invariant.
pub fn judge(universe: &Universe) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for kind in [ALLOCATIONS, POOLS] {
        let nodes = nodes(universe, &kind);
        let (wanted, spare) = listed(universe, &kind);
        found.extend(misplaced(universe, &nodes, &wanted).into_iter().map(|what| ("I3", what)));
        let mut held: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for ip in wanted.keys().chain(&spare) {
            if let Some(vm) = universe.holder(ip) {
                held.entry(vm).or_default().push(ip);
            }
        }
        for node in &nodes {
            let ips = held.get(&node.machine).map(Vec::as_slice).unwrap_or_default();
            // The controller ignores addresses beyond `desiredIPs`, including the marks of their nodes.
            if ips.iter().any(|ip| spare.contains(*ip)) {
                continue;
            }
            let metadata = &node.object["metadata"];
            let mark = match kind.needs_pod {
                true => &metadata["annotations"][api::RESERVED_IP_ANNOTATION],
                false => &metadata["labels"][api::IP_READY_LABEL],
            };
            let is_correct = match mark.as_str() {
                None => ips.is_empty() || (kind.needs_pod && !node.is_fit),
                Some(mark) if kind.needs_pod => node.is_fit && ips.iter().any(|ip| *ip == mark),
                Some(mark) => mark == "true" && !ips.is_empty(),
            };
            if !is_correct {
                found.push(("I5", format!("node {} holds {ips:?}, but its mark is {mark}", node.name)));
            }
        }
        match kind.needs_pod {
            true => {
                let on_fit = |ip: &&String| {
                    let holder = universe.holder(ip);
                    nodes.iter().any(|node| node.is_fit && Some(&node.machine) == holder.as_ref())
                };
                let must: BTreeSet<String> = wanted.keys().filter(on_fit).cloned().collect();
                let may = must.iter().chain(spare.iter().filter(on_fit)).cloned().collect();
                found.extend(misnamed(names::of_the_pool(universe), &must, &may));
            }
            // A cordoned node can't get an address, but a DNS name may have the node's own address.
            false => {
                for (role, values) in names::of_nodes(universe) {
                    let of_role = |node: &&Node| node.role == role;
                    let (fit, drained): (Vec<_>, Vec<_>) = nodes
                        .iter()
                        .filter(of_role)
                        .filter(|node| node.is_fit || node.is_drained)
                        .partition(|node| node.is_fit);
                    let must: BTreeSet<_> = fit.into_iter().map(Node::address).collect();
                    let may = drained.into_iter().map(Node::address).chain(must.clone()).collect();
                    found.extend(misnamed(Some(values), &must, &may));
                }
            }
        }
    }
    found
}

/// The violation if a DNS name lacks an address of `must`, or has one outside `may`. If `must` is empty, there is none,
/// because the name keeps its old content.
fn misnamed(
    values: Option<BTreeSet<String>>,
    must: &BTreeSet<String>,
    may: &BTreeSet<String>,
) -> Option<(&'static str, String)> {
    let values = values.filter(|values| !(must.is_subset(values) && values.is_subset(may)))?;
    (!must.is_empty()).then(|| ("I5", format!("a DNS name has {values:?} instead of {must:?}")))
}

impl Node {
    fn address(&self) -> String {
        self.object["status"]["addresses"][0]["address"].as_str().unwrap_or_default().to_owned()
    }
}

/// The nodes, with their fitness for objects of a kind.
fn nodes(universe: &Universe, kind: &Kind) -> Vec<Node> {
    let pods = universe.api.all("pods");
    let read = |object: &Value| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let role = object["metadata"]["labels"]["role"].as_str()?.to_owned();
        let (_, machine) = drivers::machine_of(object["spec"]["providerID"].as_str()?)?;
        let has_pod = pods.iter().any(|pod| pod["spec"]["nodeName"] == name.as_str());
        let is_open = if kind.needs_pod { has_pod } else { object["spec"]["unschedulable"] != true };
        let is_ready = object["status"]["conditions"][0]["status"] == "True";
        let (is_fit, is_drained) = (is_ready && is_open, is_ready && !is_open && !kind.needs_pod);
        Some(Node { name, role, machine: machine.to_string(), is_fit, is_drained, object: object.clone() })
    };
    universe.api.all("nodes").iter().filter_map(|object| read(object)).collect()
}

/// An address that must be on a node.
struct Wanted {
    /// The `role` label of matching nodes.
    role: String,
    /// The last holder, by the object's status.
    last_holder: Option<String>,
}

/// The addresses of all objects of a kind that must be on a node, and those beyond `desiredIPs`.
fn listed(universe: &Universe, kind: &Kind) -> (BTreeMap<String, Wanted>, BTreeSet<String>) {
    let (mut wanted, mut spare) = (BTreeMap::new(), BTreeSet::new());
    for object in universe.api.all(kind.plural) {
        let spec = &object["spec"];
        let role = match kind.needs_pod {
            true => spec["match"]["nodeLabel"].as_str().and_then(|label| label.strip_prefix("role=")),
            false => spec["nodeSelector"]["role"].as_str(),
        };
        let desired = spec["desiredIPs"].as_u64().and_then(|desired| usize::try_from(desired).ok());
        let statuses = object["status"]["addresses"].as_array();
        for (position, ip) in texts(&spec[kind.lists]).enumerate() {
            if desired.is_some_and(|desired| position >= desired) {
                spare.insert(ip);
                continue;
            }
            let status = statuses.and_then(|all| all.iter().find(|status| status["address"] == ip.as_str()));
            let last_holder = status.and_then(|status| Some(status["lastHolder"]["vm"].as_str()?.to_owned()));
            wanted.insert(ip, Wanted { role: role.unwrap_or_default().to_owned(), last_holder });
        }
    }
    (wanted, spare)
}

/// Addresses that are on no fit node although one is free.
fn misplaced(universe: &Universe, nodes: &[Node], wanted: &BTreeMap<String, Wanted>) -> Vec<String> {
    let held: BTreeSet<String> = universe.addresses().iter().filter_map(|ip| universe.holder(ip)).collect();
    let free = |role: &str| {
        nodes.iter().find(|node| node.role == role && node.is_fit && !held.contains(&node.machine))
    };
    let wrong = |(ip, Wanted { role, last_holder }): (&String, &Wanted)| {
        let holder = universe.holder(ip);
        let node = nodes.iter().find(|node| Some(&node.machine) == holder.as_ref());
        if let Some(drained) = node.filter(|node| node.is_drained) {
            return Some(format!("{ip} is still on the drained node {}", drained.name));
        }
        let is_well = match (&holder, node) {
            (None, _) => false,
            (Some(_), Some(node)) => node.is_fit,
            // A VM outside the cluster keeps the address, unless the VM was a node when the controller attached the
            // address.
            (Some(_), None) => holder != *last_holder,
        };
        let free = free(role).filter(|_| !is_well)?;
        Some(format!("{ip} is on {holder:?}, although node {} is free", free.name))
    };
    wanted.iter().filter_map(wrong).collect()
}
