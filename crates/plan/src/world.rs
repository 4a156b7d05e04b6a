//! Everything the controller knows at one moment, as plain data.
//!
//! In: events about nodes, pools and addresses, one at a time. Out: the current state, for the planner. Nothing here
//! decides.
//!
//! It takes too long to compare 15,000 nodes with 1,000 pools on every event. So the world keeps a bitmap for each pool
//! with the nodes that may get an address, and an event about one node changes one bit in each pool. To make a plan,
//! the planner looks at each address once, and at the nodes of only those pools that have an address to place.
//!
//! The bitmaps do not depend on time. A node in its grace period may keep an address but not get one, so only events
//! change whether a node may *get* one.
//!
//! Each node has a slot, which is its position in the bitmaps. Slots are assigned in the order in which nodes appear,
//! and never affect a plan: the same facts give the same plan, in whatever order they arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::SignedDuration;

use crate::bits::Bits;
use crate::member::{Member, is_elsewhere};
use crate::ownership::Ownership;
use crate::{
    Account, Address, Epoch, Fact, Holding, InFlight, Kinds, LastSteps, MachineState, Node, NodeName,
    PENDING, Pause, Pods, Pool, PoolKey, Provider, Readiness, RecordFact, RecordName, Scope, Tick, Timestamp,
    Turn, VmId,
};

/// Everything known at one moment.
#[derive(Clone, Debug, Default)]
pub struct World {
    slots: Vec<Option<(NodeName, Node)>>,
    slot_of_node: BTreeMap<NodeName, usize>,
    slots_of_vm: HashMap<VmId, Slots>,
    /// Nodes that share their VM with another node.
    twins: Bits,
    /// The nodes of each scope. All pools share one copy of each scope, so comparing two scopes mostly compares pointers.
    scopes: BTreeMap<Scope, Bits>,
    free_slots: Vec<usize>,
    /// The nodes of each region; `None` for nodes without a region label.
    regions: BTreeMap<Option<Arc<str>>, Bits>,
    pools: BTreeMap<PoolKey, Member>,
    /// A cache that is cleared when a pool changes.
    ownership: OnceLock<Ownership>,
    facts: BTreeMap<Scope, BTreeMap<Address, Known>>,
    /// Which addresses each VM holds, to update their facts when its node changes.
    held_by: HashMap<VmId, BTreeSet<(Scope, Address)>>,
    /// The calls in flight.
    pub in_flight: InFlight,
    /// The epoch of this leader.
    pub epoch: Epoch,
    /// The states of VMs that hold or held an address; unknown if absent.
    pub machines: BTreeMap<VmId, MachineState>,
    /// When the holder of each address was lost: see `losses`. A new leader reads these times from the objects'
    /// statuses.
    pub losses: BTreeMap<Address, Timestamp>,
    /// Clouds that move an address from VM to VM with one call.
    pub moves_in_one_call: BTreeSet<Provider>,
    /// Clouds that refuse to attach an address to a VM that holds one, before anything changes.
    pub refuses_occupied: BTreeSet<Provider>,
    /// Clouds whose listings up to this time may be older than the last change of an earlier leader. With [`PENDING`],
    /// every listing may be older.
    pub stale_until: BTreeMap<Provider, Tick>,
    /// Addresses whose unfinished move an earlier leader started.
    pub inherited: BTreeSet<Address>,
    /// The steps that this process still takes before it releases its lease. None while it continues to lead.
    pub last_steps: Option<LastSteps>,
    /// The node that this controller runs on, if another replica can take the steps that would cut it off.
    pub own_node: Option<NodeName>,
    /// The VM of that node, if the node was deleted. The controller still runs there.
    own_vm: Option<VmId>,
    /// VMs that are known to have an ephemeral address.
    pub has_ephemeral: BTreeSet<VmId>,
    /// The names in the PTR records of addresses that the controller is about to detach.
    pub ptrs: BTreeMap<Address, Arc<str>>,
    /// VMs that refused an address recently. They get none before this time.
    pub avoid_machines: BTreeMap<VmId, Timestamp>,
    /// Addresses whose last change failed, and their backoff.
    pub avoid_addresses: BTreeMap<Address, Pause>,
    /// Addresses in a move, if the controller's own rate limit delays the next call, and the end of the delay. A delay
    /// is not a failure.
    pub turns: BTreeMap<Address, Turn>,
    /// Pools whose last creation failed, and their backoff.
    pub avoid_creations: BTreeMap<PoolKey, Pause>,
    /// Pools for which the controller evicted a pod recently. It evicts no other before this time.
    pub avoid_evictions: BTreeMap<PoolKey, Timestamp>,
    /// The contents of sets of records; unknown if absent.
    pub records: BTreeMap<RecordName, RecordFact>,
    /// Sets of records whose next read the rate limit delays, and until when. Unlike those in `avoid_records`, these did
    /// not fail.
    pub record_reads_due: BTreeMap<RecordName, Timestamp>,
    /// Sets of records that could not be read or written, and their backoff.
    pub avoid_records: BTreeMap<RecordName, Pause>,
    /// Since when the states of addresses have been unknown for the same reason. The longer, the less often the controller
    /// lists the account.
    pub unknown_since: BTreeMap<Address, (Timestamp, Arc<str>)>,
    /// When each published address without a matching node lost its match: see `records`.
    pub unmatched: BTreeMap<Address, Timestamp>,
    /// The owner ID in this controller's mark on records; none while it is not known yet.
    pub dns_owner: Option<Arc<str>>,
    /// The limit on created addresses in the cluster, if there is one: see `creation`.
    pub created_max: Option<usize>,
    /// What is known about whole accounts; unknown if absent.
    pub accounts: BTreeMap<Scope, Account>,
    /// Scopes whose last listing did not show the whole account, although the cloud answered: a permission is missing, or
    /// a region did not respond. Another listing at once would show no more.
    pub incomplete: BTreeSet<Scope>,
    /// Pools whose object the apiserver refuses to update, and when the controller retries. It can't write their
    /// journal, so it starts no move for them.
    pub unwritable: BTreeMap<PoolKey, Timestamp>,
    /// Kinds whose watch has been silent for so long that the objects may have changed unseen.
    pub silent: Kinds,
    /// Kinds that the controller can't read at present. Their objects are as the controller last read them.
    pub unread: Kinds,
    /// Pools whose pods can't be counted yet: pods or their owners were never listed, or the known pods lack a label
    /// that the selector uses.
    pub uncounted: BTreeSet<PoolKey>,
    /// VMs that occur in objects that can't be decoded. An unfinished move may involve them, so they get no address.
    pub reserved_machines: BTreeSet<VmId>,
}

/// A fact, and the node of its VM.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) fact: Fact,
    /// The node of the VM that holds the address. The world looks it up when the fact or the node changes, not for
    /// every plan.
    pub(crate) slot: Option<usize>,
}

/// The nodes of a VM: mostly one. A VM can register under several names.
#[derive(Clone, Debug)]
enum Slots {
    One(usize),
    Several(BTreeSet<usize>),
}

/// The tolerance for the start of a grace period. It is computed from two clocks that are read one after the other, so the
/// results differ a little.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

/// When to list a cloud again, because the last listing can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Now: a new listing is up to date.
    AtOnce,
    /// Later: a new listing may still be stale.
    Later,
}

impl World {
    /// Whether a listing of this time may be older than the last change of an earlier leader; also if there is no
    /// listing yet.
    pub(crate) fn may_be_late(&self, provider: Provider, as_of: Option<Tick>) -> bool {
        self.stale_until.get(&provider).is_some_and(|until| as_of.is_none_or(|as_of| as_of <= *until))
    }

    /// When to list a cloud again whose last listing may be stale.
    pub(crate) fn reads_late(&self, provider: Provider) -> Reads {
        if self.stale_until.get(&provider) == Some(&PENDING) { Reads::Later } else { Reads::AtOnce }
    }

    /// Adds or updates a node.
    pub fn set_node(&mut self, name: &NodeName, mut node: Node) {
        node.machine = node.machine.map(|(scope, vm)| (self.interned(scope), vm));
        let slot = match self.slot_of_node.get(name) {
            Some(slot) => *slot,
            None => {
                let slot = self.free_slots.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    self.slots.len() - 1
                });
                self.slot_of_node.insert(name.clone(), slot);
                slot
            }
        };
        if let Some((_, before)) = &self.slots[slot]
            && *before == node
        {
            return;
        }
        let left = self.forget_machine(slot);
        self.regions.entry(node.region.clone()).or_default().set(slot, true);
        if let Some((scope, vm)) = &node.machine {
            self.scopes.entry(scope.clone()).or_default().set(slot, true);
            self.add_to_machine(vm, slot);
        }
        for member in self.pools.values_mut() {
            member.judge(slot, &node);
        }
        let entered = node.machine.as_ref().map(|(_, vm)| vm.clone());
        self.slots[slot] = Some((name.clone(), node));
        left.iter().chain(&entered).for_each(|vm| self.find_nodes(vm));
    }

    /// Sets when the grace period of a NotReady node starts, unless the difference is within [`CLOCK_TOLERANCE`].
    pub fn set_grace_start(&mut self, name: &NodeName, from: Timestamp) {
        let Some(slot) = self.slot_of_node.get(name) else { return };
        if let Some((_, node)) = &mut self.slots[*slot]
            && node
                .grace_starts
                .is_none_or(|known| known.duration_since(from).unsigned_abs() > CLOCK_TOLERANCE)
        {
            node.grace_starts = Some(from);
        }
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Some(slot) = self.slot_of_node.remove(name) else { return };
        let left = self.forget_machine(slot);
        if self.own_node.as_ref() == Some(name) {
            self.own_vm.clone_from(&left);
        }
        self.slots[slot] = None;
        left.iter().for_each(|vm| self.find_nodes(vm));
        self.free_slots.push(slot);
        for member in self.pools.values_mut() {
            let Member {
                pool: _,
                matching,
                ready_pods,
                some_pods,
                unknown_pods,
                evictable,
                fit,
                node_addresses,
            } = member;
            node_addresses.remove(&slot);
            for bits in [matching, ready_pods, some_pods, unknown_pods, evictable, fit] {
                bits.set(slot, false);
            }
        }
    }

    /// Updates which node the addresses of a VM are on.
    fn find_nodes(&mut self, vm: &VmId) {
        let slot = self.slot_of_machine(vm);
        for (scope, address) in self.held_by.get(vm).into_iter().flatten() {
            if let Some(known) = self.facts.get_mut(scope).and_then(|facts| facts.get_mut(address)) {
                known.slot = slot;
            }
        }
    }

    /// Forgets the region, account and VM of a node. Returns the VM.
    fn forget_machine(&mut self, slot: usize) -> Option<VmId> {
        let (_, node) = self.slots[slot].as_ref()?;
        if let Some(nodes) = self.regions.get_mut(&node.region) {
            nodes.set(slot, false);
        }
        let (scope, vm) = node.machine.clone()?;
        if let Some(nodes) = self.scopes.get_mut(&scope) {
            nodes.set(slot, false);
        }
        self.twins.set(slot, false);
        match self.slots_of_vm.get_mut(&vm) {
            Some(Slots::One(_)) => _ = self.slots_of_vm.remove(&vm),
            Some(Slots::Several(slots)) => {
                slots.remove(&slot);
                if let (1, Some(last)) = (slots.len(), slots.first().copied()) {
                    self.twins.set(last, false);
                    self.slots_of_vm.insert(vm.clone(), Slots::One(last));
                }
            }
            None => {}
        }
        Some(vm)
    }

    fn add_to_machine(&mut self, vm: &VmId, slot: usize) {
        match self.slots_of_vm.get_mut(vm) {
            None => _ = self.slots_of_vm.insert(vm.clone(), Slots::One(slot)),
            Some(Slots::One(other)) => {
                let both = BTreeSet::from([*other, slot]);
                both.iter().for_each(|slot| self.twins.set(*slot, true));
                self.slots_of_vm.insert(vm.clone(), Slots::Several(both));
            }
            Some(Slots::Several(slots)) => {
                slots.insert(slot);
                self.twins.set(slot, true);
            }
        }
    }

    fn interned(&mut self, scope: Scope) -> Scope {
        match self.scopes.get_key_value(&scope) {
            Some((known, _)) => known.clone(),
            None => {
                self.scopes.insert(scope.clone(), Bits::default());
                scope
            }
        }
    }

    /// Adds or updates a pool. An existing pool keeps its matching nodes; a new pool has none.
    pub fn set_pool(&mut self, mut pool: Pool) {
        self.ownership.take();
        pool.scope = self.interned(pool.scope);
        let key = pool.key.clone();
        let mut member = self.pools.remove(&key).unwrap_or_else(|| Member::new(pool.clone()));
        member.pool = Arc::new(pool);
        for (slot, node) in self.slots.iter().enumerate() {
            if let Some((_, node)) = node {
                member.judge(slot, node);
            }
        }
        self.pools.insert(key, member);
    }

    /// Removes a pool.
    pub fn remove_pool(&mut self, key: &PoolKey) {
        self.ownership.take();
        self.pools.remove(key);
    }

    /// Sets the state of a pool's pods on a node; none if the pool's selectors don't match the node.
    pub fn set_member(&mut self, key: &PoolKey, name: &NodeName, pods: Option<Pods>) {
        let (Some(member), Some(slot)) = (self.pools.get_mut(key), self.slot_of_node.get(name)) else {
            return;
        };
        member.matching.set(*slot, pods.is_some());
        member.ready_pods.set(*slot, pods == Some(Pods::Ready));
        member.some_pods.set(*slot, pods.is_some_and(|pods| pods != Pods::Absent));
        member.unknown_pods.set(*slot, pods == Some(Pods::Unknown));
        if let Some((_, node)) = &self.slots[*slot] {
            member.judge(*slot, node);
        }
    }

    /// Sets whether a node has pods of a pool's workload that the controller may evict.
    pub fn set_evictable(&mut self, key: &PoolKey, name: &NodeName, has_some: bool) {
        if let (Some(member), Some(slot)) = (self.pools.get_mut(key), self.slot_of_node.get(name)) {
            member.evictable.set(*slot, has_some);
        }
    }

    /// Sets the addresses of a node itself, for a pool that publishes those.
    pub fn set_node_addresses(&mut self, key: &PoolKey, name: &NodeName, addresses: Arc<[Address]>) {
        if let (Some(member), Some(slot)) = (self.pools.get_mut(key), self.slot_of_node.get(name)) {
            member.node_addresses.insert(*slot, addresses);
        }
    }

    /// Adds or updates a fact about an address. Ignores a fact that is older than the known one.
    pub fn set_fact(&mut self, scope: &Scope, address: Address, fact: Fact) {
        let is_older = self.fact(scope, address).is_some_and(|known| known.as_of > fact.as_of);
        if is_older && !crate::sabotaged!(StaleListingBelieved) {
            return;
        }
        let scope = self.interned(scope.clone());
        let slot = match &fact.holding {
            Holding::By(vm) => self.slot_of_machine(vm),
            _ => None,
        };
        let holder = fact.holder().cloned();
        let facts = self.facts.entry(scope.clone()).or_default();
        let before =
            facts.insert(address, Known { fact, slot }).and_then(|known| known.fact.holder().cloned());
        if before != holder {
            before.iter().for_each(|vm| self.let_go(vm, &scope, address));
            if let Some(vm) = holder {
                self.held_by.entry(vm).or_default().insert((scope, address));
            }
        }
    }

    /// Whether this is the VM of the node that this controller runs on, and another replica should take steps that cut
    /// it off.
    pub(crate) fn is_spared(&self, vm: &VmId) -> bool {
        let Some(own_node) = &self.own_node else { return false };
        match self.node(own_node) {
            Some(node) => node.machine.as_ref().is_some_and(|(_, own_vm)| own_vm == vm),
            None => self.own_vm.as_ref() == Some(vm),
        }
    }

    /// Whether a VM holds an address, according to the facts.
    pub fn holds_any(&self, vm: &VmId) -> bool {
        self.held_by.contains_key(vm)
    }

    /// Notes that a VM no longer holds an address.
    fn let_go(&mut self, vm: &VmId, scope: &Scope, address: Address) {
        if let Some(held) = self.held_by.get_mut(vm) {
            held.remove(&(scope.clone(), address));
            if held.is_empty() {
                self.held_by.remove(vm);
            }
        }
    }

    /// Removes the facts about all addresses of a scope for which `keep` is false.
    pub fn retain_facts(&mut self, scope: &Scope, keep: impl Fn(Address) -> bool) {
        let Some(facts) = self.facts.get_mut(scope) else { return };
        let gone: Vec<_> = facts.extract_if(.., |address, _| !keep(*address)).collect();
        for (address, known) in gone {
            known.fact.holder().iter().for_each(|vm| self.let_go(vm, scope, address));
        }
    }

    /// The fact about an address.
    pub fn fact(&self, scope: &Scope, address: Address) -> Option<&Fact> {
        self.facts.get(scope)?.get(&address).map(|known| &known.fact)
    }

    /// The facts about the addresses of a scope, by address.
    pub(crate) fn facts_by_address(&self, scope: &Scope) -> Option<&BTreeMap<Address, Known>> {
        self.facts.get(scope)
    }

    /// The owners of addresses.
    pub(crate) fn ownership(&self) -> &Ownership {
        self.ownership.get_or_init(|| Ownership::new(self.pools.values().map(|member| &*member.pool)))
    }

    /// The facts about the addresses of a scope.
    pub fn facts_of(&self, scope: &Scope) -> impl Iterator<Item = (&Address, &Fact)> {
        self.facts.get(scope).into_iter().flatten().map(|(address, known)| (address, &known.fact))
    }

    /// All facts.
    pub fn facts(&self) -> impl Iterator<Item = (&Scope, &Address, &Fact)> {
        self.facts.iter().flat_map(|(scope, facts)| {
            facts.iter().map(move |(address, known)| (scope, address, &known.fact))
        })
    }

    /// The slots (positions in the bitmaps) of all nodes whose VM holds an address.
    pub(crate) fn holders(&self) -> impl Iterator<Item = usize> {
        self.facts.values().flat_map(BTreeMap::values).filter_map(|known| known.slot)
    }

    /// Shifts all pauses after the wall clock was set, so that they last as long as before.
    pub fn clock_moved(&mut self, by: SignedDuration) {
        let pauses = (self.avoid_machines.values_mut())
            .chain(self.avoid_evictions.values_mut())
            .chain(self.unknown_since.values_mut().map(|(since, _)| since))
            .chain(self.record_reads_due.values_mut())
            .chain(self.avoid_addresses.values_mut().map(|pause| &mut pause.until))
            .chain(self.avoid_creations.values_mut().map(|pause| &mut pause.until))
            .chain(self.avoid_records.values_mut().map(|pause| &mut pause.until))
            .chain(self.turns.values_mut().map(|turn| &mut turn.at));
        for until in pauses {
            *until = until.saturating_add(by).unwrap_or(*until);
        }
    }

    /// A node, by name.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.at(*self.slot_of_node.get(name)?).map(|(_, node)| node)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.slot_of_node.values().filter_map(|slot| self.at(*slot))
    }

    /// The nodes that match a pool of this kind, by name.
    pub fn meant_by(&self, kind: &str) -> impl Iterator<Item = (&NodeName, &Node)> {
        let members: Vec<_> = self.pools.values().filter(|member| member.pool.key.kind == kind).collect();
        let is_meant = move |slot: &&usize| members.iter().any(|member| member.matching.contains(**slot));
        self.slot_of_node.values().filter(is_meant).filter_map(|slot| self.at(*slot))
    }

    /// The nodes that match a pool, in no order.
    pub fn matching(&self, key: &PoolKey) -> impl Iterator<Item = &NodeName> {
        let slots = self.pools.get(key).into_iter().flat_map(|member| member.matching.iter());
        slots.filter_map(move |slot| self.at(slot)).map(|(name, _)| name)
    }

    /// The nodes that could get an address of a pool and hold none of its addresses: the first `most` by name. A node
    /// whose VM refused an address recently is not among them.
    pub fn assignable(&self, key: &PoolKey, most: usize) -> Vec<&NodeName> {
        self.first_by_name(&self.assignable_slots(key), most)
    }

    /// How many nodes could get an address of a pool and hold none of its addresses.
    pub fn count_assignable(&self, key: &PoolKey) -> usize {
        self.assignable_slots(key).count()
    }

    /// The nodes that could get an address of a pool if their VM had not refused one recently: the first `most` by
    /// name.
    pub fn refusing(&self, key: &PoolKey, most: usize) -> Vec<&NodeName> {
        let Some(member) = self.pools.get(key) else { return Vec::new() };
        let mut refusing = Bits::default();
        let slots = self.avoid_machines.keys().filter_map(|vm| self.slot_of_machine(vm));
        slots.filter(|slot| member.fit.contains(*slot)).for_each(|slot| refusing.set(slot, true));
        self.first_by_name(&refusing, most)
    }

    /// Addresses of other pools on the nodes don't count. Otherwise each of their moves would change the status of this
    /// pool.
    fn assignable_slots(&self, key: &PoolKey) -> Bits {
        let Some(member) = self.pools.get(key) else { return Bits::default() };
        let pool = &*member.pool;
        let mut slots = member.fit.clone();
        let mut leave_out = |vm: &VmId| {
            if let Some(slot) = self.slot_of_machine(vm) {
                slots.set(slot, false);
            }
        };
        for address in &pool.addresses {
            match self.fact(&pool.scope, *address).map(|fact| &fact.holding) {
                Some(Holding::By(vm)) => leave_out(vm),
                Some(Holding::Free | Holding::Missing) => {}
                // The last holder may still hold it.
                Some(Holding::Unknown(_)) | None => {
                    pool.last_holders.get(address).into_iter().for_each(&mut leave_out)
                }
            }
            let target = pool.entry(*address).and_then(|entry| entry.to.as_ref());
            target.into_iter().for_each(|to| leave_out(&to.vm));
        }
        self.avoid_machines.keys().chain(&self.reserved_machines).for_each(leave_out);
        self.twins
            .iter()
            .filter(|slot| !self.stands_for_machine(*slot))
            .for_each(|slot| slots.set(slot, false));
        slots
    }

    /// The first nodes of a set, by name. Sorts a small set. For a large set it is faster to walk over all nodes by
    /// name.
    fn first_by_name(&self, slots: &Bits, most: usize) -> Vec<&NodeName> {
        let name = |slot: usize| self.at(slot).map(|(name, _)| name);
        if slots.count() > most {
            return self
                .slots_by_name()
                .filter(|slot| slots.contains(*slot))
                .filter_map(name)
                .take(most)
                .collect();
        }
        let mut names: Vec<_> = slots.iter().filter_map(name).collect();
        names.sort_unstable();
        names
    }

    /// The node of a VM. For a VM that registered under several names: the first Ready node by name.
    pub fn node_of(&self, vm: &VmId) -> Option<(&NodeName, &Node)> {
        self.at(self.slot_of_machine(vm)?)
    }

    /// A pool, by key.
    pub fn pool(&self, key: &PoolKey) -> Option<&Pool> {
        self.pools.get(key).map(|member| &*member.pool)
    }

    /// All pools, by key.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values().map(|member| &*member.pool)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.pools.values()
    }

    pub(crate) fn member(&self, key: &PoolKey) -> Option<&Member> {
        self.pools.get(key)
    }

    pub(crate) fn at(&self, slot: usize) -> Option<(&NodeName, &Node)> {
        self.slots.get(slot)?.as_ref().map(|(name, node)| (name, node))
    }

    /// The nodes of a set that are in a region, or whose region is unknown.
    pub(crate) fn in_region(&self, nodes: &Bits, region: &Arc<str>) -> Bits {
        let none = Bits::default();
        let of = |region: Option<Arc<str>>| self.regions.get(&region).unwrap_or(&none);
        nodes.within([of(Some(Arc::clone(region))), of(None)])
    }

    /// The regions of the nodes that match a pool, if all of them are known to be in other regions than this one.
    pub(crate) fn other_regions(&self, member: &Member, region: &Arc<str>) -> Option<Vec<Arc<str>>> {
        let mut others = Vec::new();
        for (found, nodes) in &self.regions {
            match found {
                _ if member.matching.within([nodes, nodes]).count() == 0 => {}
                Some(found) if found != region => others.push(Arc::clone(found)),
                _ => return None,
            }
        }
        (!others.is_empty()).then_some(others)
    }

    /// The first matching node by name, in the pool's region and zones, whose VM is in another account than the pool, with
    /// the scope of that VM.
    pub fn node_in_other_account(&self, key: &PoolKey) -> Option<(&NodeName, &Scope)> {
        let member = self.member(key)?;
        let pool = &member.pool;
        let others = self
            .scopes
            .iter()
            .filter(|(other, _)| other.provider == pool.scope.provider && **other != pool.scope);
        let mut in_others = Bits::default();
        others.for_each(|(_, nodes)| in_others.add(&member.matching.within([nodes, nodes])));
        if in_others.is_empty() {
            return None;
        }
        let found =
            self.slots_by_name().filter(|slot| in_others.contains(*slot)).filter_map(|slot| self.at(slot));
        let mut found = found.filter(|(_, node)| !is_elsewhere(pool, node));
        found.find_map(|(name, node)| Some((name, &node.machine.as_ref()?.0)))
    }

    /// How many slots there are, used or not.
    pub(crate) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    /// All slots in the order of their nodes' names.
    pub(crate) fn slots_by_name(&self) -> impl Iterator<Item = usize> {
        self.slot_of_node.values().copied()
    }

    pub(crate) fn slot_of_machine(&self, vm: &VmId) -> Option<usize> {
        let slots = match self.slots_of_vm.get(vm)? {
            Slots::One(slot) => return Some(*slot),
            Slots::Several(slots) => slots,
        };
        // A node in an unknown state may be alive, so a NotReady node does not represent its VM.
        let rank = |slot: &usize| {
            self.at(*slot).map(|(name, node)| match node.readiness {
                Readiness::Ready => (0, name),
                Readiness::Unknown => (1, name),
                Readiness::NotReadySince(_) => (2, name),
            })
        };
        slots.iter().copied().min_by_key(rank)
    }

    /// Whether the node in a slot represents its VM. Only one of the nodes of a VM does.
    pub(crate) fn stands_for_machine(&self, slot: usize) -> bool {
        let machine = self.at(slot).and_then(|(_, node)| node.machine.as_ref());
        machine.is_some_and(|(_, vm)| !self.twins.contains(slot) || self.slot_of_machine(vm) == Some(slot))
    }
}
