//! Turns what was seen into a `World`, event by event.
//!
//! In: what the watches and the clouds tell. Out: the planner's world, and beside it the objects themselves, for the
//! report. The two resource kinds differ only in their front ends; the planner sees pools. Nothing here decides anything,
//! and nothing is guessed: what is not known is told as unknown, and an object that can't become a pool is kept as one
//! that is refused, because it still owns its addresses.

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
use super::watch::{Kind, Seen, SlimNode, SlimPod};
use crate::kubernetes::decode::Register;
use crate::providers::listings::ListRequest;

/// Everything known, kept up to date.
#[derive(Default)]
pub struct Index {
    /// What the planner sees.
    pub world: World,
    /// The objects.
    pub objects: BTreeMap<PoolKey, Tracked>,
    /// Nodes, as far as marks and selectors need them.
    pub nodes: BTreeMap<NodeName, SlimNode>,
    pods: BTreeMap<(String, String), SlimPod>,
    owners: Owners,
    /// Permissions without which a cloud tells less than it could.
    pub without: BTreeMap<Scope, String>,
    /// Nodes whose machines can't get an address, and why.
    unsupported: BTreeMap<NodeName, &'static str>,
    /// Objects that can't be decoded.
    pub undecodable: Register<Kind>,
    known: BTreeSet<Kind>,
    /// Until when a cloud may show what was before the last leader's changes.
    late_until: BTreeMap<Provider, Instant>,
    tick: u64,
}

impl Index {
    /// The next moment in the order of listings and writes.
    pub fn tick(&mut self) -> Tick {
        self.tick += 1;
        Tick(self.tick)
    }

    /// Whether everything is known on which addresses depend: an object that was not read may own one, and a node that was
    /// not read may hold one. Whoever only publishes names holds up nothing.
    pub fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.known.contains(kind) || *kind == Kind::NodeDNSRecordSets)
    }

    /// Whether every object is known that may own a name.
    pub fn knows_names(&self) -> bool {
        self.known.contains(&Kind::NodeDNSRecordSets)
    }

    /// Takes in what was seen.
    pub fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Nodes(change) => self.see_nodes(change),
            Seen::Pods(change) => self.see_pods(change),
            Seen::Owners(kind, change) => self.see_owners(kind, change),
            Seen::Allocations(change) => {
                self.see_objects(Kind::NetIPAllocations, change, |object| {
                    Object::Allocation(Arc::new(object))
                });
            }
            Seen::Pools(change) => {
                self.see_objects(Kind::FloatingIPPools, change, |object| Object::Pool(Arc::new(object)));
            }
            Seen::RecordSets(change) => {
                self.see_objects(Kind::NodeDNSRecordSets, change, |object| Object::Records(Arc::new(object)));
            }
            Seen::Unsure(kind) => _ = self.known.remove(&kind),
            // What a kind had may still be there, or be meant to come back. Where nothing is left of it, there is nothing to know.
            Seen::Absent(kind) if self.has_some(kind) => _ = self.known.remove(&kind),
            Seen::Absent(kind) => _ = self.known.insert(kind),
        }
    }

    /// Whether an object of a kind is known.
    fn has_some(&self, kind: Kind) -> bool {
        self.objects.keys().any(|key| key.kind == kind_name(kind))
    }

    /// After a relist everything of a kind is known. What a watch tells before it has relisted proves nothing.
    fn believe(&mut self, kind: Kind, is_relist: bool) {
        if is_relist {
            self.known.insert(kind);
        }
    }

    /// What tells an object from another of the same name.
    pub fn uid(&self, key: &PoolKey) -> Option<String> {
        self.objects.get(key).and_then(|tracked| tracked.object.metadata().uid.clone())
    }

    /// The scopes that pools need, and how old their facts may get.
    pub fn scopes(&self) -> BTreeMap<Scope, Duration> {
        let mut scopes = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_asked = tracked.refusal.is_none() && !matches!(tracked.object, Object::Records(_));
            let Some(pool) = self.world.pool(key).filter(|_| is_asked) else { continue };
            let age = scopes.entry(pool.scope.clone()).or_insert(tracked.age_max);
            *age = tracked.age_max.min(*age);
        }
        scopes
    }

    /// The addresses of a scope that pools want or have moves of, and where they are asked for, the machines that they may be on.
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

    /// The addresses of a scope that pools want or have moves of.
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

    /// When holders were lost, by the objects' statuses. Where two objects tell of one address, the later time counts.
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
