//! Turns stores and listings into a `World`: plain data, no handles.
//!
//! In: what is watched and what the clouds said. Out: the planner's world, and for each object that can't become a pool,
//! why not. The two resource kinds differ only here, in their front ends; the planner sees pools. Nothing here decides
//! anything, and nothing is guessed: what is not known is told as unknown.

pub mod floating_ip_pool;
pub mod net_ip_allocation;
mod selector;

use std::collections::BTreeMap;
use std::time::Duration;

use api::policy;
use api::status::AddressStatus;
use kube::ResourceExt;
use plan::{
    Address, Mode, Node, NodeName, Policy, Pool, PoolKey, Provider, Readiness, Scope, Takeover, Timestamp,
    VmId, World,
};

use crate::clouds::Clouds;
use crate::watch::{SlimNode, SlimPod, Watched};

/// How old a listing may get for a kind that has no interval of its own.
pub const LISTING_AGE_DEFAULT: Duration = Duration::from_secs(60);

/// What the objects ask for.
#[derive(Default)]
pub struct Asked {
    /// Objects that became pools.
    pub pools: Vec<Pool>,
    /// Objects that could not, and why.
    pub refusals: BTreeMap<PoolKey, Refusal>,
    /// How old the facts of each scope may get.
    pub scopes: BTreeMap<Scope, Duration>,
}

/// Why an object is not acted on, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word for scripts.
    pub reason: &'static str,
    /// A sentence for a person.
    pub message: String,
}

/// Reads every object.
pub fn asked(watched: &Watched) -> Asked {
    let cluster = Cluster {
        nodes: watched.nodes.state().iter().map(|node| (node_name(node), (**node).clone())).collect(),
        pods: watched.pods.state().iter().map(|pod| (**pod).clone()).collect(),
    };
    let mut asked = Asked::default();
    for object in watched.allocations.state() {
        let age_max = object.spec.reconcile_interval();
        asked.add(net_ip_allocation::key(&object), net_ip_allocation::pool(&object, &cluster), age_max);
    }
    for object in watched.pools.state() {
        asked.add(
            floating_ip_pool::key(&object),
            floating_ip_pool::pool(&object, &cluster),
            LISTING_AGE_DEFAULT,
        );
    }
    asked
}

impl Asked {
    fn add(&mut self, key: PoolKey, pool: Result<Pool, Refusal>, age_max: Duration) {
        match pool {
            Ok(pool) => {
                let age = self.scopes.entry(pool.scope.clone()).or_insert(age_max);
                *age = age_max.min(*age);
                self.pools.push(pool);
            }
            Err(refusal) => _ = self.refusals.insert(key, refusal),
        }
    }
}

/// The world, as the planner wants it.
pub fn world(watched: &Watched, pools: &[Pool], clouds: &Clouds) -> World {
    let mut world = World { pools: pools.to_vec(), ..World::default() };
    for node in watched.nodes.state() {
        world.nodes.insert(node_name(&node), observed_node(&node));
    }
    for pool in pools {
        let addresses = pool.addresses.iter().copied().chain(clouds.listed(&pool.scope));
        for address in addresses {
            world.addresses.entry(address).or_insert_with(|| clouds.fact(&pool.scope, address));
        }
    }
    world
}

/// What Kubernetes says, as far as front ends look at it.
pub struct Cluster {
    /// The nodes.
    pub nodes: BTreeMap<NodeName, SlimNode>,
    /// The pods.
    pub pods: Vec<SlimPod>,
}

impl Cluster {
    /// The scope that a provider's nodes live in. It is told by the nodes themselves, as no object names it.
    fn scope(&self, provider: Provider, known_machines: &BTreeMap<Address, VmId>) -> Result<Scope, Refusal> {
        let of_nodes = self.nodes.values().filter_map(|node| Some(machine(node)?.0));
        let mut scopes: Vec<_> = of_nodes.filter(|scope| scope.provider == provider).collect();
        scopes.sort();
        scopes.dedup();
        match scopes.as_slice() {
            [scope] => Ok(scope.clone()),
            [] if provider == Provider::DigitalOcean => Ok(Scope { provider, account: String::new() }),
            // All nodes are gone; the machines that we remember still tell where they were.
            [] => known_machines.values().find_map(|vm| account_of(provider, vm)).ok_or_else(|| Refusal {
                reason: "NoNodes",
                message: format!("no node has a providerID of {provider}, so its project is not known"),
            }),
            [first, second, ..] => Err(Refusal {
                reason: "SeveralAccounts",
                message: format!("nodes live in {first} and in {second}; addresses can't move between them"),
            }),
        }
    }
}

fn account_of(provider: Provider, vm: &VmId) -> Option<Scope> {
    let account = vm.0.split_once('/')?.0.to_owned();
    Some(Scope { provider, account })
}

/// A node's name.
pub fn node_name(node: &SlimNode) -> NodeName {
    NodeName(node.name_any())
}

/// The machine that a node says it runs on.
pub fn machine(node: &SlimNode) -> Option<(Scope, VmId)> {
    drivers::machine_of(node.spec.provider_id.as_deref()?)
}

fn observed_node(node: &SlimNode) -> Node {
    let readiness = match node.status.ready() {
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(ready) => {
            let since = ready.last_transition_time.as_ref().map(|time| time.0);
            Readiness::NotReadySince(since.unwrap_or(Timestamp::UNIX_EPOCH))
        }
        // A node that has never reported holds nothing yet and is not ready for anything.
        None => Readiness::NotReadySince(created(node)),
    };
    let label = |name: &str| node.labels().get(name).cloned();
    Node {
        vm: machine(node).map(|(_, vm)| vm),
        readiness,
        is_cordoned: node.spec.unschedulable,
        region: label("topology.kubernetes.io/region"),
        zone: label("topology.kubernetes.io/zone"),
    }
}

/// When an object was created.
fn created(object: &impl ResourceExt) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The addresses that a user listed. The apiserver has checked them, but a CRD of another version may not have.
fn parse_addresses(listed: &[String]) -> Result<Vec<Address>, Refusal> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Refusal {
            reason: "InvalidAddress",
            message: format!("{text} is not an IP address"),
        })
    };
    let mut addresses = listed.iter().map(parse).collect::<Result<Vec<Address>, _>>()?;
    let mut seen = std::collections::BTreeSet::new();
    addresses.retain(|address| seen.insert(*address));
    Ok(addresses)
}

/// The machines of ours that last held each address, by the object's own status.
fn last_holders(status: &[AddressStatus]) -> BTreeMap<Address, VmId> {
    let remembered = |status: &AddressStatus| {
        Some((status.address.parse().ok()?, VmId(status.last_holder.as_ref()?.vm.clone())))
    };
    status.iter().filter_map(remembered).collect()
}

/// What a user allows, over the defaults of the kind.
fn allowed(asked: Option<&policy::Policy>, grace_default: Duration) -> Policy {
    let asked = asked.cloned().unwrap_or_default();
    let grace = asked.failover_grace_seconds.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    Policy {
        mode: match asked.mode {
            None | Some(policy::Mode::Active) => Mode::Active,
            Some(policy::Mode::Observe) => Mode::Observe,
        },
        failover_grace: grace.unwrap_or(grace_default),
        takeover: match asked.takeover {
            None | Some(policy::Takeover::Never) => Takeover::Never,
            Some(policy::Takeover::Always) => Takeover::Always,
        },
    }
}
