//! What is known, as plain data that is kept up to date event by event.
//!
//! 15,000 nodes can't be held against 1,000 pools on every event. So the world keeps for each pool the set of nodes that
//! may get an address, as bits, and an event about one node touches one bit in each pool. What a plan needs then is one
//! look at each address, and at the nodes of those pools only that have an address to place.
//!
//! Only what does not depend on time is kept this way: a node within its grace may keep an address and may not get one,
//! so whether a node may *get* one changes with events alone.
//!
//! Slots are numbers of convenience, given out in the order in which nodes appear. They never reach a plan: the same
//! facts give the same plan, in whatever order they came.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use jiff::SignedDuration;

use crate::bits::Bits;
use crate::member::Member;
use crate::ownership::Ownership;
use crate::{
    Account, Address, Epoch, Fact, Holding, InFlight, MachineState, Node, NodeName, PENDING, Pause, Pods,
    Pool, PoolKey, Provider, Readiness, RecordFact, RecordName, Scope, Tick, Timestamp, Turn, VmId,
};

/// Everything known at one moment.
#[derive(Clone, Debug, Default)]
pub struct World {
    slots: Vec<Option<(NodeName, Node)>>,
    slot_of_node: BTreeMap<NodeName, usize>,
    slots_of_vm: HashMap<VmId, Slots>,
    /// Nodes that share their machine with another one.
    twins: Bits,
    /// One copy of each scope that is named, so that comparing two mostly means comparing where they are.
    scopes: BTreeSet<Scope>,
    free_slots: Vec<usize>,
    /// The nodes of each region; those that don't tell theirs are under none.
    regions: BTreeMap<Option<Arc<str>>, Bits>,
    pools: BTreeMap<PoolKey, Member>,
    /// Kept until a pool changes.
    ownership: OnceLock<Ownership>,
    facts: BTreeMap<Scope, BTreeMap<Address, Known>>,
    /// Which addresses each machine holds, so that their facts follow when its node changes.
    held_by: HashMap<VmId, BTreeSet<(Scope, Address)>>,
    /// What the executor is doing right now.
    pub in_flight: InFlight,
    /// Who we are.
    pub epoch: Epoch,
    /// What the clouds say of machines that hold or held an address; absent is unknown.
    pub machines: BTreeMap<VmId, MachineState>,
    /// When a holder of ours was lost by absence or silence, by address: see `losses`. A new leader reads them from the objects'
    /// statuses.
    pub losses: BTreeMap<Address, Timestamp>,
    /// Clouds that move an address in one call from holder to holder.
    pub moves_in_one_call: BTreeSet<Provider>,
    /// Clouds of which what was read up to a moment may be older than what an earlier leader has done; [`PENDING`] while that goes on.
    pub late_until: BTreeMap<Provider, Tick>,
    /// Addresses whose unfinished move an earlier leader began.
    pub inherited: BTreeSet<Address>,
    /// The node that we run on, where another may do in our place what would cut it off.
    pub spared: Option<NodeName>,
    /// Machines that are known to have an address of their own, besides ours.
    pub has_own: BTreeSet<VmId>,
    /// The names in PTR records of addresses that are about to leave their machines.
    pub ptrs: BTreeMap<Address, Arc<str>>,
    /// Machines that refused an address lately get none before then.
    pub avoid_machines: BTreeMap<VmId, Timestamp>,
    /// Addresses whose last change failed are not tried again before then.
    pub avoid_addresses: BTreeMap<Address, Pause>,
    /// Addresses on their way whose next call is held back by our own budget, and when its turn comes. Nothing has failed.
    pub turns: BTreeMap<Address, Turn>,
    /// Pools whose last creation failed create nothing before then.
    pub avoid_creations: BTreeMap<PoolKey, Pause>,
    /// Pools for which a pod was evicted lately evict none before then.
    pub avoid_evictions: BTreeMap<PoolKey, Timestamp>,
    /// What is known of sets of records; absent is unknown.
    pub records: BTreeMap<RecordName, RecordFact>,
    /// Sets of records that could not be read or written are left alone until then.
    pub avoid_records: BTreeMap<RecordName, Pause>,
    /// Since when published addresses have lost their match: see `records`.
    pub unmatched: BTreeMap<Address, Timestamp>,
    /// What our mark on records says; absent is not known yet.
    pub dns_owner: Option<Arc<str>>,
    /// The most addresses that may be created in the cluster, where there is a limit: see `creation`.
    pub created_max: Option<usize>,
    /// What the clouds said of whole accounts; absent is unknown.
    pub accounts: BTreeMap<Scope, Account>,
    /// Pools whose object the apiserver does not let us write, and when that is tried again. Nothing can be journalled for them,
    /// so nothing is begun.
    pub unwritable: BTreeMap<PoolKey, Timestamp>,
    /// Machines that objects name which can't be decoded. An unfinished move may involve them, so they get no address.
    pub reserved_machines: BTreeSet<VmId>,
}

/// A fact, and the node that it means.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) fact: Fact,
    /// The node of the machine that holds the address. It is looked up when either changes, and not for every plan.
    pub(crate) slot: Option<usize>,
}

/// The nodes of a machine: one, but for those that registered under several names.
#[derive(Clone, Debug)]
enum Slots {
    One(usize),
    Several(BTreeSet<usize>),
}

/// When a cloud must be read again, before anything follows from what it told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// It tells what is needed as soon as it is asked.
    AtOnce,
    /// It may not show what is needed yet.
    Later,
}

impl World {
    /// Whether what was told then, if ever, may be older than what an earlier leader has done.
    pub(crate) fn may_be_late(&self, provider: Provider, as_of: Option<Tick>) -> bool {
        self.late_until.get(&provider).is_some_and(|until| as_of.is_none_or(|as_of| as_of <= *until))
    }

    /// What to do about what may be late: whether it can be read now, or has to be waited for.
    pub(crate) fn reads_late(&self, provider: Provider) -> Reads {
        if self.late_until.get(&provider) == Some(&PENDING) { Reads::Later } else { Reads::AtOnce }
    }

    /// A node appeared or changed.
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
        if let Some((_, vm)) = &node.machine {
            self.add_to_machine(vm, slot);
        }
        for member in self.pools.values_mut() {
            member.judge(slot, &node);
        }
        let entered = node.machine.as_ref().map(|(_, vm)| vm.clone());
        self.slots[slot] = Some((name.clone(), node));
        left.iter().chain(&entered).for_each(|vm| self.find_nodes(vm));
    }

    /// A node is gone.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Some(slot) = self.slot_of_node.remove(name) else { return };
        let left = self.forget_machine(slot);
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

    /// Finds the node of a machine again for the addresses that it holds.
    fn find_nodes(&mut self, vm: &VmId) {
        let slot = self.slot_of_machine(vm);
        for (scope, address) in self.held_by.get(vm).into_iter().flatten() {
            if let Some(known) = self.facts.get_mut(scope).and_then(|facts| facts.get_mut(address)) {
                known.slot = slot;
            }
        }
    }

    /// Forgets where a node was, and tells which machine that is.
    fn forget_machine(&mut self, slot: usize) -> Option<VmId> {
        let (_, node) = self.slots[slot].as_ref()?;
        if let Some(nodes) = self.regions.get_mut(&node.region) {
            nodes.set(slot, false);
        }
        let vm = node.machine.as_ref().map(|(_, vm)| vm.clone())?;
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
        match self.scopes.get(&scope) {
            Some(known) => known.clone(),
            None => {
                self.scopes.insert(scope.clone());
                scope
            }
        }
    }

    /// A pool appeared or changed. Its nodes stay as they were told, or are none for a new pool.
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

    /// A pool is gone.
    pub fn remove_pool(&mut self, key: &PoolKey) {
        self.ownership.take();
        self.pools.remove(key);
    }

    /// Whether a pool's selectors match a node, and how its pods fare there; none does not match.
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

    /// Whether a node has pods of a pool's workload that can be evicted.
    pub fn set_evictable(&mut self, key: &PoolKey, name: &NodeName, has_some: bool) {
        if let (Some(member), Some(slot)) = (self.pools.get_mut(key), self.slot_of_node.get(name)) {
            member.evictable.set(*slot, has_some);
        }
    }

    /// The addresses of a node itself, for a pool that publishes those.
    pub fn set_node_addresses(&mut self, key: &PoolKey, name: &NodeName, addresses: Arc<[Address]>) {
        if let (Some(member), Some(slot)) = (self.pools.get_mut(key), self.slot_of_node.get(name)) {
            member.node_addresses.insert(*slot, addresses);
        }
    }

    /// A cloud said something of an address. What is older than what is known is not believed.
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

    /// Whether a machine must not be cut off by us.
    pub(crate) fn is_spared(&self, vm: &VmId) -> bool {
        let machine = self.spared.as_ref().and_then(|name| self.node(name)?.machine.as_ref());
        machine.is_some_and(|(_, spared)| spared == vm)
    }

    /// Whether a machine holds any address that a cloud told of.
    pub fn holds_any(&self, vm: &VmId) -> bool {
        self.held_by.contains_key(vm)
    }

    /// A machine does not hold an address any more.
    fn let_go(&mut self, vm: &VmId, scope: &Scope, address: Address) {
        if let Some(held) = self.held_by.get_mut(vm) {
            held.remove(&(scope.clone(), address));
            if held.is_empty() {
                self.held_by.remove(vm);
            }
        }
    }

    /// Forgets what a cloud said of the addresses for which this is not true.
    pub fn retain_facts(&mut self, scope: &Scope, keep: impl Fn(Address) -> bool) {
        let Some(facts) = self.facts.get_mut(scope) else { return };
        let gone: Vec<_> = facts.extract_if(.., |address, _| !keep(*address)).collect();
        for (address, known) in gone {
            known.fact.holder().iter().for_each(|vm| self.let_go(vm, scope, address));
        }
    }

    /// What is known of an address.
    pub fn fact(&self, scope: &Scope, address: Address) -> Option<&Fact> {
        self.facts.get(scope)?.get(&address).map(|known| &known.fact)
    }

    /// What is known of the addresses of a scope, by address.
    pub(crate) fn facts_by_address(&self, scope: &Scope) -> Option<&BTreeMap<Address, Known>> {
        self.facts.get(scope)
    }

    /// Who owns what.
    pub(crate) fn ownership(&self) -> &Ownership {
        self.ownership.get_or_init(|| Ownership::new(self.pools.values().map(|member| &*member.pool)))
    }

    /// What is known of the addresses of a scope.
    pub fn facts_of(&self, scope: &Scope) -> impl Iterator<Item = (&Address, &Fact)> {
        self.facts.get(scope).into_iter().flatten().map(|(address, known)| (address, &known.fact))
    }

    /// All facts.
    pub fn facts(&self) -> impl Iterator<Item = (&Scope, &Address, &Fact)> {
        self.facts.iter().flat_map(|(scope, facts)| {
            facts.iter().map(move |(address, known)| (scope, address, &known.fact))
        })
    }

    /// The slots of all nodes whose machine holds an address.
    pub(crate) fn holders(&self) -> impl Iterator<Item = usize> {
        self.facts.values().flat_map(BTreeMap::values).filter_map(|known| known.slot)
    }

    /// The time of day was set: what is left alone until some time is left alone for as long as it was.
    pub fn clock_moved(&mut self, by: SignedDuration) {
        let pauses = (self.avoid_machines.values_mut())
            .chain(self.avoid_evictions.values_mut())
            .chain(self.avoid_addresses.values_mut().map(|pause| &mut pause.until))
            .chain(self.avoid_creations.values_mut().map(|pause| &mut pause.until))
            .chain(self.avoid_records.values_mut().map(|pause| &mut pause.until))
            .chain(self.turns.values_mut().map(|turn| &mut turn.at));
        for until in pauses {
            *until = until.saturating_add(by).unwrap_or(*until);
        }
    }

    /// A node.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.at(*self.slot_of_node.get(name)?).map(|(_, node)| node)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &Node)> {
        self.slot_of_node.values().filter_map(|slot| self.at(*slot))
    }

    /// The nodes that some pool of a kind means, by name.
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

    /// The nodes that could get an address of a pool and have none of it, by name, and no more than so many. One that refused
    /// an address lately is not among them.
    pub fn assignable(&self, key: &PoolKey, most: usize) -> Vec<&NodeName> {
        self.first_by_name(&self.assignable_slots(key), most)
    }

    /// How many such nodes there are.
    pub fn count_assignable(&self, key: &PoolKey) -> usize {
        self.assignable_slots(key).count()
    }

    /// The nodes that could get an address of a pool, had they not refused one lately; by name, and no more than so many.
    pub fn refusing(&self, key: &PoolKey, most: usize) -> Vec<&NodeName> {
        let Some(member) = self.pools.get(key) else { return Vec::new() };
        let mut refusing = Bits::default();
        let slots = self.avoid_machines.keys().filter_map(|vm| self.slot_of_machine(vm));
        slots.filter(|slot| member.fit.contains(*slot)).for_each(|slot| refusing.set(slot, true));
        self.first_by_name(&refusing, most)
    }

    /// What other pools' addresses are on the nodes does not count: each of their moves would change what is told of this one.
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
                // Whoever held it last may still.
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

    /// The first nodes of a set, by name. Few are put in order; of many, the first are met soon.
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

    /// The node that a machine backs. A machine that registered under several names is the node that is Ready, and of
    /// those the first by name.
    pub fn node_of(&self, vm: &VmId) -> Option<(&NodeName, &Node)> {
        self.at(self.slot_of_machine(vm)?)
    }

    /// A pool.
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

    /// Those nodes of a set that are, or may be, in a region.
    pub(crate) fn in_region(&self, nodes: &Bits, region: &Arc<str>) -> Bits {
        let none = Bits::default();
        let of = |region: Option<Arc<str>>| self.regions.get(&region).unwrap_or(&none);
        nodes.within([of(Some(Arc::clone(region))), of(None)])
    }

    /// The regions of the nodes that a pool means, where each of them is known to be in another than this one.
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

    /// How many slots there are, taken or not.
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
        // A node of which nothing is known may be alive, so one that is dead does not speak for its machine.
        let rank = |slot: &usize| {
            self.at(*slot).map(|(name, node)| match node.readiness {
                Readiness::Ready => (0, name),
                Readiness::Unknown => (1, name),
                Readiness::NotReadySince(_) => (2, name),
            })
        };
        slots.iter().copied().min_by_key(rank)
    }

    /// Whether the node at a slot is the one that stands for its machine.
    pub(crate) fn stands_for_machine(&self, slot: usize) -> bool {
        let machine = self.at(slot).and_then(|(_, node)| node.machine.as_ref());
        machine.is_some_and(|(_, vm)| !self.twins.contains(slot) || self.slot_of_machine(vm) == Some(slot))
    }
}
