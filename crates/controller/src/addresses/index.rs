//! Keeps everything that the controller observes as a `World`.
//!
//! In: events of the watches, and listings of the providers. Out: the planner's `World`, and the objects for the
//! reporter. The index never decides and never guesses: a fact that it does not have is *unknown*. An object that can't
//! become a pool stays in the world as a refused pool, because it still owns its addresses.

mod listings;
mod nodes;
mod objects;
mod owners;
mod pods;
#[cfg(test)]
mod tests;
pub mod tracked;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plan::{Address, Journal, Move, NodeName, PoolKey, Provider, Scope, Tick, Timestamp, VmId, World};
use tokio::time::Instant;

use self::owners::Owners;
use self::tracked::Tracked;
use super::codec;
use super::object::Object;
use super::resources::kind_name;
use super::watch::{Kind, Observed, SlimNode, SlimPod};
use crate::kubernetes::decode::Register;
use crate::providers::listings::ListRequest;

/// Everything that the controller has observed.
#[derive(Default)]
pub struct Index {
    /// The input of the planner.
    pub world: World,
    /// Our objects.
    pub objects: BTreeMap<PoolKey, Tracked>,
    /// Nodes, with the fields that marks and selectors need.
    pub nodes: BTreeMap<NodeName, SlimNode>,
    pods: BTreeMap<(String, String), SlimPod>,
    owners: Owners,
    /// Scopes in which the permission to list addresses is missing, with the name of the permission.
    pub without: BTreeMap<Scope, String>,
    /// Nodes whose VMs can't get an address, and why.
    unsupported: BTreeMap<NodeName, &'static str>,
    /// Objects that can't be decoded.
    pub undecodable: Register<Kind>,
    known: BTreeSet<Kind>,
    /// Until when reads from a provider may not show the previous leader's changes.
    stale_until: BTreeMap<Provider, Instant>,
    tick: u64,
}

impl Index {
    /// The next number in the order of listings and writes.
    pub fn tick(&mut self) -> Tick {
        self.tick += 1;
        Tick(self.tick)
    }

    /// Whether the caches of all kinds that addresses depend on are filled. An object that is not in the cache may own
    /// an address, and a node that is not in the cache may hold one. NodeDNSRecordSets have no addresses, so this
    /// ignores them.
    pub fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.known.contains(kind) || *kind == Kind::NodeDNSRecordSets)
    }

    /// Whether all objects that may own a DNS name are in the cache.
    pub fn knows_names(&self) -> bool {
        self.known.contains(&Kind::NodeDNSRecordSets)
    }

    /// Processes an event of a watch.
    pub fn observe(&mut self, seen: Observed) {
        match seen {
            Observed::Nodes(change) => self.observe_nodes(change),
            Observed::Pods(change) => self.observe_pods(change),
            Observed::Owners(kind, change) => self.observe_owners(kind, change),
            Observed::Allocations(change) => {
                self.observe_objects(Kind::NetIPAllocations, change, |object| {
                    Object::Allocation(Arc::new(object))
                });
            }
            Observed::Pools(change) => {
                self.observe_objects(Kind::FloatingIPPools, change, |object| Object::Pool(Arc::new(object)));
            }
            Observed::RecordSets(change) => {
                self.observe_objects(Kind::NodeDNSRecordSets, change, |object| {
                    Object::Records(Arc::new(object))
                });
            }
            Observed::Unsure(kind) => _ = self.known.remove(&kind),
            // If the CRD was deleted, its objects may still exist or be restored. Without objects nothing is missing.
            Observed::Absent(kind) if self.has_some(kind) => _ = self.known.remove(&kind),
            Observed::Absent(kind) => _ = self.known.insert(kind),
        }
    }

    /// Whether the cache has an object of this kind.
    fn has_some(&self, kind: Kind) -> bool {
        self.objects.keys().any(|key| key.kind == kind_name(kind))
    }

    /// Marks the cache of a kind as complete after a relist. Other events don't prove that it is complete.
    fn believe(&mut self, kind: Kind, is_relist: bool) {
        if is_relist {
            self.known.insert(kind);
        }
    }

    /// The UID of an object.
    pub fn uid(&self, key: &PoolKey) -> Option<String> {
        self.objects.get(key).and_then(|tracked| tracked.object.metadata().uid.clone())
    }

    /// The scopes that pools need, each with the maximum age of its facts.
    pub fn scopes(&self) -> BTreeMap<Scope, Duration> {
        let mut scopes = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_needed = tracked.refusal.is_none() && !matches!(tracked.object, Object::Records(_));
            let Some(pool) = self.world.pool(key).filter(|_| is_needed) else { continue };
            let age = scopes.entry(pool.scope.clone()).or_insert(tracked.age_max);
            *age = tracked.age_max.min(*age);
        }
        scopes
    }

    /// The addresses of a scope that pools list or that have unfinished moves. `with_machines` adds the VMs that may
    /// hold them.
    pub fn named(&self, scope: &Scope, with_machines: bool) -> ListRequest {
        let addresses = self.asked_for(scope);
        let machines = with_machines.then(|| {
            let mut machines = BTreeSet::new();
            for pool in self.world.pools().filter(|pool| pool.scope == *scope) {
                machines.extend(pool.last_holders.values().cloned());
                if let Journal::Known(moves) = &pool.journal {
                    machines.extend(moves.values().flat_map(Move::machines).cloned());
                }
            }
            let is_here = |machine: &&(Scope, VmId)| machine.0 == *scope;
            let of_nodes = self.world.nodes().filter_map(|(_, node)| node.machine.as_ref()).filter(is_here);
            machines.extend(of_nodes.map(|(_, vm)| vm.clone()));
            machines
        });
        ListRequest { addresses, machines }
    }

    /// The addresses of a scope that pools list or that have unfinished moves.
    fn asked_for(&self, scope: &Scope) -> BTreeSet<Address> {
        let mut addresses = BTreeSet::new();
        for pool in self.world.pools().filter(|pool| pool.scope == *scope) {
            addresses.extend(&pool.addresses);
            if let Journal::Known(moves) = &pool.journal {
                addresses.extend(moves.keys());
            }
        }
        addresses
    }

    /// When holders were lost, according to the status of the objects. If two objects have the address, the later time
    /// counts.
    pub fn remembered_losses(&self) -> BTreeMap<Address, Timestamp> {
        let mut losses = BTreeMap::new();
        for (address, since) in
            self.objects.values().flat_map(|tracked| codec::losses_of(tracked.object.addresses()))
        {
            let known = losses.entry(address).or_insert(since);
            *known = since.max(*known);
        }
        losses
    }
}
