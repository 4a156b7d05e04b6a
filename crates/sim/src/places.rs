//! Where addresses have to be in the end, by who holds what and what nodes are alone.
//!
//! In: the objects, the nodes and the pods as they are in Kubernetes, and the clouds' own word for who holds what. Out: what is wrong
//! about it. The planner is never asked: its rules are said here once more, as short as they are where nothing is going on.
//!
//! ```text
//! I3  an address is on a node that is fit, or no fit node is free, or it is on a machine outside of the cluster that we never gave it to
//!     no address of an allocation is on a node that is cordoned and well
//! I5  the nodes with the label are those that hold an address of an allocation
//!     the nodes with the annotation are those that are fit and hold an address of a pool, and it tells which
//!     a name has the addresses of those that are fit, and none of any other, unless it would have none
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::names;
use crate::objects::texts;
use crate::universe::Universe;

/// Who wants addresses on which nodes.
struct Kind {
    plural: &'static str,
    /// The field of `spec` that lists them.
    lists: &'static str,
    /// Whether a node needs a pod, and may be cordoned.
    needs_pod: bool,
}

const ALLOCATIONS: Kind = Kind { plural: "netipallocations", lists: "reservedIPs", needs_pod: false };
const POOLS: Kind = Kind { plural: "floatingippools", lists: "ips", needs_pod: true };

/// A node as it is.
struct Node {
    name: String,
    role: String,
    machine: String,
    is_fit: bool,
    /// Whether nothing of an allocation has anything to do there.
    is_drained: bool,
    object: Value,
}

/// Everything that is wrong in the end, and the invariant that it violates.
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
            // What is beyond the desired number is left alone, marks and all.
            if ips.iter().any(|ip| spare.contains(*ip)) {
                continue;
            }
            let metadata = &node.object["metadata"];
            let told = match kind.needs_pod {
                true => &metadata["annotations"][api::RESERVED_IP_ANNOTATION],
                false => &metadata["labels"][api::IP_READY_LABEL],
            };
            let is_so = match told.as_str() {
                None => ips.is_empty() || (kind.needs_pod && !node.is_fit),
                Some(told) if kind.needs_pod => node.is_fit && ips.iter().any(|ip| *ip == told),
                Some(told) => told == "true" && !ips.is_empty(),
            };
            if !is_so {
                found.push(("I5", format!("{} holds {ips:?}, and is marked with {told}", node.name)));
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
            // A cordoned node is none that an address may go to, and may have a name all the same.
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

/// What is wrong about a name that must have some addresses, and may have others. Rather than none, it has what it had.
fn misnamed(
    values: Option<BTreeSet<String>>,
    must: &BTreeSet<String>,
    may: &BTreeSet<String>,
) -> Option<(&'static str, String)> {
    let values = values.filter(|values| !(must.is_subset(values) && values.is_subset(may)))?;
    (!must.is_empty()).then(|| ("I5", format!("a name has {values:?} where {must:?} would be right")))
}

impl Node {
    fn address(&self) -> String {
        self.object["status"]["addresses"][0]["address"].as_str().unwrap_or_default().to_owned()
    }
}

/// The nodes that objects of a kind may mean.
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

/// An address that an object wants on a node.
struct Wanted {
    /// The role of such nodes.
    role: String,
    /// The machine that the object says to have been its last.
    last_holder: Option<String>,
}

/// The addresses that objects of a kind want on nodes, and those beyond the desired number.
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

/// What is on no fit node though one is free.
fn misplaced(universe: &Universe, nodes: &[Node], wanted: &BTreeMap<String, Wanted>) -> Vec<String> {
    let held: BTreeSet<String> = universe.addresses().iter().filter_map(|ip| universe.holder(ip)).collect();
    let free = |role: &str| {
        nodes.iter().find(|node| node.role == role && node.is_fit && !held.contains(&node.machine))
    };
    let wrong = |(ip, Wanted { role, last_holder }): (&String, &Wanted)| {
        let holder = universe.holder(ip);
        let node = nodes.iter().find(|node| Some(&node.machine) == holder.as_ref());
        if let Some(drained) = node.filter(|node| node.is_drained) {
            return Some(format!("{ip} is on {}, which is drained", drained.name));
        }
        let is_well = match (&holder, node) {
            (None, _) => false,
            (Some(_), Some(node)) => node.is_fit,
            // A machine outside of the cluster keeps it, unless it was a node when we gave it the address.
            (Some(_), None) => holder != *last_holder,
        };
        let free = free(role).filter(|_| !is_well)?;
        Some(format!("{ip} is on {holder:?}, and {} would be free", free.name))
    };
    wanted.iter().filter_map(wrong).collect()
}
