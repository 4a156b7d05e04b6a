//! Keeps everything that the controller observes as a `World`.
//!
//! In: events of the watches, and listings of the providers. Out: the planner's `World`, and the objects for the
//! reporter. The index never decides and never guesses: a fact that it does not have is *unknown*. An object that can't
//! become a pool stays in the world as a refused pool, because it still owns its addresses.

mod interest;
mod listings;
mod nodes;
mod objects;
mod owners;
mod pods;
#[cfg(test)]
mod tests;
pub mod tracked;
mod unready;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plan::{Address, Journal, Kinds, Move, NodeName, PoolKey, Provider, Scope, Tick, Timestamp, VmId, World};
use tokio::time::Instant;

use self::interest::Interest;
use self::owners::Owners;
use self::tracked::Tracked;
use self::unready::Unready;
use super::codec;
use super::kind::Kind;
use super::needed::Needed;
use super::node::Node;
use super::object::Object;
use super::pod::{Pod, PodKey};
use super::resources::kind_name;
use super::resources::parsed::{PodSelection, Selection};
use super::watch::Observed;
use crate::kubernetes::decode::Register;
use crate::kubernetes::freshness::Freshness;
use crate::providers::listings::{Interval, ListRequest};

/// How long one step of processing a list may take. Between two steps, the reconciler processes results of requests,
/// and plans. Other watch events wait.
#[derive(Clone, Copy)]
struct Slice(Duration);

impl Default for Slice {
    fn default() -> Self {
        Self(Duration::from_millis(5))
    }
}

/// Nodes and pods that the list in progress has not shown so far. The index removes them when the list is complete.
#[derive(Default)]
struct Unlisted {
    nodes: BTreeSet<NodeName>,
    pods: BTreeSet<PodKey>,
}

/// Everything that the controller has observed.
#[derive(Default)]
pub struct Index {
    /// The input of the planner.
    pub world: World,
    /// Our objects.
    pub objects: BTreeMap<PoolKey, Tracked>,
    /// The nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    pods: BTreeMap<PodKey, Pod>,
    interest: Interest,
    /// Known objects that the list in progress has not shown so far.
    unlisted: Unlisted,
    slice: Slice,
    /// The list of pods in progress has the labels of this version of [`Needed`].
    pods_listing_for: u64,
    /// All known pods have the labels of this version of [`Needed`].
    pods_listed_for: u64,
    owners: Owners,
    /// Scopes in which the permission to list addresses is missing, with the name of the permission.
    pub without: BTreeMap<Scope, String>,
    unready: Unready,
    /// Nodes whose VMs can't get an address, and why.
    unsupported: BTreeMap<NodeName, &'static str>,
    /// Objects that can't be decoded.
    pub undecodable: Register<Kind>,
    /// Kinds whose objects are all in the cache.
    known: BTreeSet<Kind>,
    /// Kinds whose objects were all in the cache at some time.
    listed: BTreeSet<Kind>,
    /// How recent the known objects of each kind are.
    freshness: Freshness<Kind>,
    /// Before this time, reads from a provider may lack the previous leader's changes.
    stale_until: BTreeMap<Provider, Instant>,
    tick: u64,
}

impl Index {
    /// The next number in the order of listings and writes.
    pub fn tick(&mut self) -> Tick {
        self.tick += 1;
        Tick(self.tick)
    }

    /// Whether all nodes and all objects that may own an address are in the cache. Without them no move may start. If
    /// another kind is missing, only the steps that depend on it wait.
    pub fn is_complete(&self) -> bool {
        [Kind::Nodes, Kind::NetIPAllocations, Kind::FloatingIPPools]
            .iter()
            .all(|kind| self.known.contains(kind))
    }

    /// The kinds that own addresses and are not completely in the cache.
    pub fn unread_address_kinds(&self) -> impl Iterator<Item = &'static str> {
        let kinds = [Kind::NetIPAllocations, Kind::FloatingIPPools].into_iter();
        kinds.filter(|kind| !self.known.contains(kind)).map(kind_name)
    }

    /// Processes an event of a watch. Returns the rest of the event if processing takes long.
    pub fn observe(&mut self, seen: Observed) -> Option<Observed> {
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
            Observed::Listing(kind, needed) => {
                self.begin_list(kind);
                if kind == Kind::Pods {
                    self.pods_listing_for = needed;
                }
            }
            Observed::NodesInList(nodes) => return self.observe_listed_nodes(nodes),
            Observed::PodsInList(pods) => return self.observe_listed_pods(pods),
            Observed::Listed(kind, began) => return self.end_list(kind, began),
            Observed::Unwatched(kind) => self.forget(kind),
            Observed::Unsure(kind) => _ = self.known.remove(&kind),
            // If the CRD was deleted, the objects in the cache may still exist or be restored, so the kind is unread.
            Observed::Absent(kind) if self.has_some(kind) => _ = self.known.remove(&kind),
            Observed::Absent(kind) => {
                // There is nothing to list, so the kind can't count as silent.
                self.freshness.forget(kind);
                self.know(kind);
            }
        }
        None
    }

    /// Starts to process a list. Until it is complete, the objects that were known before stay known.
    fn begin_list(&mut self, kind: Kind) {
        match kind {
            Kind::Nodes => self.unlisted.nodes = self.nodes.keys().cloned().collect(),
            Kind::Pods => {
                self.unlisted.pods = self.pods.keys().cloned().collect();
                self.pods_listing_for = self.interest.needed().version;
            }
            _ => {}
        }
    }

    /// Removes the objects that a complete list did not show. Returns the event again if the removal takes long.
    fn end_list(&mut self, kind: Kind, began: Instant) -> Option<Observed> {
        let until = Instant::now() + self.slice.0;
        while kind == Kind::Nodes
            && let Some(name) = self.unlisted.nodes.pop_first()
        {
            self.remove_node(&name);
            if Instant::now() >= until {
                return Some(Observed::Listed(kind, began));
            }
        }
        while kind == Kind::Pods
            && let Some(key) = self.unlisted.pods.pop_first()
        {
            self.change_pod(key, None);
            if Instant::now() >= until {
                return Some(Observed::Listed(kind, began));
            }
        }
        self.note_listed(kind);
        if self.count_newly_listed(Some(until)) {
            return Some(Observed::Listed(kind, began));
        }
        self.freshness.listed(kind, began, Instant::now());
        None
    }

    /// Forgets a kind that is no longer watched.
    fn forget(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => {
                self.pods.clear();
                self.unlisted.pods.clear();
            }
            _ => self.owners.forget(kind),
        }
        self.known.remove(&kind);
        self.listed.remove(&kind);
        self.freshness.forget(kind);
        self.undecodable.forget(kind);
        let depends = |(_, tracked): &(&PoolKey, &Tracked)| match &tracked.selection.pods {
            Some(pods) => pods.decided_by().overlaps(kind.for_planner()),
            None => false,
        };
        let keys: Vec<_> = self.objects.iter().filter(depends).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let is_counted = self.can_count(&key, &self.objects[&key].selection);
            if let Some(tracked) = self.objects.get_mut(&key) {
                tracked.is_counted = is_counted;
            }
            self.recount(&key);
        }
    }

    /// What the controller has to watch, if that has changed since the last call.
    pub fn take_needed(&mut self) -> Option<Needed> {
        self.interest.take_changed()
    }

    /// Whether the known pods lack labels that a selector uses, so that they have to be listed again.
    pub fn lacks_labels(&self) -> bool {
        self.listed.contains(&Kind::Pods) && self.pods_listed_for < self.interest.needed().version
    }

    /// Whether the cache has an object of this kind.
    fn has_some(&self, kind: Kind) -> bool {
        self.objects.keys().any(|key| key.kind == kind_name(kind))
    }

    /// Notes that an event came from the watch of a kind.
    fn heard(&mut self, kind: Kind) {
        self.freshness.heard(kind, Instant::now());
    }

    /// Notes that all objects of a kind are in the cache, and counts the pods of the objects that waited for it.
    fn know(&mut self, kind: Kind) {
        self.note_listed(kind);
        self.count_newly_listed(None);
    }

    fn note_listed(&mut self, kind: Kind) {
        self.known.insert(kind);
        let has_labels = kind == Kind::Pods && self.pods_listing_for > self.pods_listed_for;
        if has_labels {
            self.pods_listed_for = self.pods_listing_for;
        }
        if self.listed.insert(kind) && kind == Kind::Nodes {
            self.choose_accounts_again();
        }
    }

    /// Whether the pods of an object can be counted: each kind that decides which pods it has was listed at least
    /// once, and the pods in the cache have the labels that its selector uses.
    fn can_count(&self, key: &PoolKey, selection: &Selection) -> bool {
        let is_listed = |kind: &Kind| self.listed.contains(kind);
        match &selection.pods {
            None => true,
            Some(PodSelection::Labelled { .. }) => {
                is_listed(&Kind::Pods) && self.interest.since(key) <= self.pods_listed_for
            }
            Some(PodSelection::Of(workload)) => workload.decided_by().all(|kind| is_listed(&kind)),
        }
    }

    /// Counts the pods of objects for which all needed kinds have now been listed. Stops at the deadline, because each object
    /// has to be compared with all nodes. Returns whether some objects remain.
    fn count_newly_listed(&mut self, deadline: Option<Instant>) -> bool {
        let is_due = |(key, tracked): &(&PoolKey, &Tracked)| {
            !tracked.is_counted && self.can_count(key, &tracked.selection)
        };
        let due: Vec<_> = self.objects.iter().filter(is_due).map(|(key, _)| key.clone()).collect();
        for (at, key) in due.iter().enumerate() {
            if at > 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return true;
            }
            if let Some(tracked) = self.objects.get_mut(key) {
                tracked.is_counted = true;
            }
            self.recount(key);
        }
        false
    }

    /// Passes the start of each NotReady node's grace period to the planner. `wall` is the current time.
    pub fn note_grace_starts(&mut self, wall: Timestamp) {
        for (name, since) in self.unready.at(wall) {
            self.world.set_grace_start(name, since);
        }
    }

    /// Tells the planner which kinds can't be read, and which watches are silent.
    pub fn note_outdated(&mut self) {
        let now = Instant::now();
        // A kind that can't be read is not silent: a list would not help.
        let is_silent = |kind: &Kind| self.known.contains(kind) && self.freshness.is_silent(*kind, now);
        self.world.silent = match plan::sabotaged!(SilentWatchTrusted) {
            true => Kinds::default(),
            false => Kind::ALL.into_iter().filter(is_silent).map(Kind::for_planner).collect(),
        };
        let is_uncounted = |tracked: &Tracked| tracked.selection.pods.is_some() && !tracked.is_counted;
        let uncounted = self.objects.iter().filter(|(_, tracked)| is_uncounted(tracked));
        self.world.uncounted = uncounted.map(|(key, _)| key.clone()).collect();
        let is_unread = |kind: &Kind| self.interest.needed().has(*kind) && !self.known.contains(kind);
        self.world.unread = Kind::ALL.into_iter().filter(is_unread).map(Kind::for_planner).collect();
    }

    /// Processes a suspend of the machine. Until the next list each kind counts as silent, because the watches receive
    /// the missed events only now.
    pub fn note_suspend(&mut self) {
        self.freshness.note_suspend(Instant::now());
    }

    /// The UID of an object.
    pub fn uid(&self, key: &PoolKey) -> Option<String> {
        self.objects.get(key).and_then(|tracked| tracked.object.metadata().uid.clone())
    }

    /// The scopes that pools need, and how often to list each.
    pub fn scopes(&self) -> BTreeMap<Scope, Interval> {
        let mut scopes = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_needed = tracked.refusal.is_none() && !matches!(tracked.object, Object::Records(_));
            let Some(pool) = self.world.pool(key).filter(|_| is_needed) else { continue };
            let interval = scopes.entry(pool.scope.clone()).or_insert(tracked.interval);
            *interval = tracked.interval.min(*interval);
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

    /// For each address whose holder was lost, the time of the loss in the status of its object. If two objects have
    /// the address, the later time counts.
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
