//! The nodes that may hold an address in an unknown state.
//!
//! In: addresses in an unknown state, and the facts about them. Out: the nodes that may hold at least one of them, and
//! for each such node one address that it may hold. A node is left out only because of a fact: the address is in
//! another region, the cloud named the VMs that may hold it, or it showed that a VM does not hold it. Time alone never
//! rules a node out.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bits::Bits;
use crate::{Address, Fact, Holding, MayBeOn, Node, Pool, Scope, VmId, World};

/// The nodes that may hold an address in an unknown state.
#[derive(Debug, Default)]
pub(crate) struct PossibleHolders {
    /// The slots of these nodes.
    pub(crate) slots: Bits,
    /// Where each address may be. Addresses with the same scope, region and `may_be_on` share one entry, except with
    /// [`MayBeOn::Only`]. The entry names the first of them.
    of_addresses: Vec<OfAddress>,
    /// Scopes with an address that the controller has not asked the cloud about yet.
    unasked: BTreeSet<Scope>,
}

/// Which nodes may hold an address: `may_be_on` contains their VM, and they are in its scope and region.
#[derive(Debug)]
struct OfAddress {
    address: Address,
    scope: Scope,
    region: Option<Arc<str>>,
    may_be_on: MayBeOn,
}

impl OfAddress {
    fn may_be_held_by(&self, node: &Node, vm: &VmId) -> bool {
        let is_in = |region: &Arc<str>| node.region.as_ref().is_none_or(|of_node| of_node == region);
        let may_hold = match &self.may_be_on {
            MayBeOn::Any => true,
            MayBeOn::Only(machines) => return machines.contains(vm),
            MayBeOn::AllBut(machines) => !machines.contains(vm),
            MayBeOn::Regions(regions) => regions.iter().any(is_in),
        };
        may_hold && self.region.as_ref().is_none_or(is_in)
    }
}

impl PossibleHolders {
    /// Adds the nodes that may hold an address where another one would be attached. `fact` is none if the controller has
    /// not listed the address yet.
    pub(crate) fn add_for_attach(
        &mut self,
        world: &World,
        scope: &Scope,
        address: Address,
        fact: Option<&Fact>,
    ) {
        let (may_be_on, is_unasked) = match fact.map(|fact| &fact.holding) {
            Some(Holding::Unknown(doubt)) => (doubt.may_be_on.clone(), doubt.is_unasked),
            _ => (MayBeOn::Any, true),
        };
        self.add(world, scope, address, fact, may_be_on);
        if is_unasked {
            self.unasked.insert(scope.clone());
        }
    }

    /// Like [`Self::add_for_attach`], but includes the VMs of [`MayBeOn::AllBut`]. Such a VM may hold the address on an
    /// interface that the cloud does not show, so its node keeps its marks.
    pub(crate) fn add_for_marks(
        &mut self,
        world: &World,
        scope: &Scope,
        address: Address,
        fact: Option<&Fact>,
    ) {
        let may_be_on = match fact.map(|fact| &fact.holding) {
            Some(Holding::Unknown(doubt)) if !matches!(doubt.may_be_on, MayBeOn::AllBut(_)) => {
                doubt.may_be_on.clone()
            }
            _ => MayBeOn::Any,
        };
        self.add(world, scope, address, fact, may_be_on);
    }

    fn add(
        &mut self,
        world: &World,
        scope: &Scope,
        address: Address,
        fact: Option<&Fact>,
        may_be_on: MayBeOn,
    ) {
        let region = fact.and_then(|fact| fact.region.clone());
        let added = OfAddress { address, scope: scope.clone(), region, may_be_on };
        if let MayBeOn::Only(machines) = &added.may_be_on {
            let slots = machines.iter().filter_map(|vm| world.slot_of_machine(vm));
            slots.for_each(|slot| self.slots.set(slot, true));
            self.of_addresses.push(added);
            return;
        }
        let is_same = |known: &OfAddress| {
            (&known.scope, &known.region, &known.may_be_on) == (scope, &added.region, &added.may_be_on)
        };
        if self.of_addresses.iter().any(is_same) {
            return;
        }
        for slot in world.slots_by_name() {
            let machine = world.at(slot).and_then(|(_, node)| Some((node, node.machine.as_ref()?)));
            if machine.is_some_and(|(node, (of, vm))| of == scope && added.may_be_held_by(node, vm)) {
                self.slots.set(slot, true);
            }
        }
        self.of_addresses.push(added);
    }

    /// An address that the node in a slot may hold.
    pub(crate) fn address_on(&self, world: &World, slot: usize) -> Option<Address> {
        let (_, node) = world.at(slot)?;
        let (scope, vm) = node.machine.as_ref()?;
        let mut of_addresses = self.of_addresses.iter();
        let found = of_addresses.find(|found| found.scope == *scope && found.may_be_held_by(node, vm));
        found.map(|found| found.address)
    }

    /// Whether there is an address in a scope that the controller has not asked about yet.
    pub(crate) fn has_unasked(&self, scope: &Scope) -> bool {
        self.unasked.contains(scope)
    }
}

/// Whether the state of an address is unknown. An address that its cloud can't attach is on no VM.
pub(crate) fn is_unknown(pool: &Pool, address: Address, fact: Option<&Fact>) -> bool {
    pool.scope.provider.refuses(address).is_none()
        && fact.is_none_or(|fact| matches!(fact.holding, Holding::Unknown(_)))
}

impl World {
    /// Whether a VM may hold an address in an unknown state that has no unfinished move.
    pub fn may_hold_unknown(&self, vm: &VmId) -> bool {
        let Some(slot) = self.slot_of_machine(vm) else { return false };
        let mut holders = PossibleHolders::default();
        for pool in self.pools() {
            for address in pool.addresses.iter().filter(|address| pool.entry(**address).is_none()) {
                let fact = self.fact(&pool.scope, *address);
                if is_unknown(pool, *address, fact) {
                    holders.add_for_attach(self, &pool.scope, *address, fact);
                }
            }
        }
        holders.slots.contains(slot)
    }
}
