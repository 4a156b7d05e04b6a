//! The nodes that may hold an address whose holder is unknown.
//!
//! In: such addresses, one at a time, with what is known about each. Out: the nodes that any of them may be on, and for
//! a node one of these addresses. A node is left out only because of a fact: the address is in another region, the
//! cloud named the VMs that may hold it, or it showed that a VM does not hold it. Time alone never rules a node out.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bits::Bits;
use crate::{Address, Fact, Holding, MayBeOn, Node, Scope, VmId, World};

/// The nodes that may hold an address whose holder is unknown.
#[derive(Debug, Default)]
pub(crate) struct Doubted {
    /// The slots of these nodes.
    pub(crate) slots: Bits,
    /// Where each address may be. If a cloud does not answer, all of its addresses in a region may be on the same nodes;
    /// only the first of them is here.
    places: Vec<Places>,
    /// Scopes with an address that the controller has not asked the cloud about yet.
    unread: BTreeSet<Scope>,
}

/// The nodes that may hold an address: `may_be_on` contains their VM, and they are in its scope and region.
#[derive(Debug)]
struct Places {
    address: Address,
    scope: Scope,
    region: Option<Arc<str>>,
    may_be_on: MayBeOn,
}

impl Places {
    fn may_be(&self, node: &Node, vm: &VmId) -> bool {
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

impl Doubted {
    /// Adds the nodes that may hold an address. Without a fact, nothing was listed yet.
    pub(crate) fn add(&mut self, world: &World, scope: &Scope, address: Address, fact: Option<&Fact>) {
        let (may_be_on, is_unread) = match fact.map(|fact| &fact.holding) {
            Some(Holding::Unknown(doubt)) => (doubt.may_be_on.clone(), doubt.is_unread),
            _ => (MayBeOn::Any, true),
        };
        self.add_places(world, scope, address, fact, may_be_on);
        if is_unread {
            self.unread.insert(scope.clone());
        }
    }

    /// Like [`Self::add`], with each node on which anything of the address may be. A VM of [`MayBeOn::AllBut`] may hold it
    /// on another interface.
    pub(crate) fn add_all(&mut self, world: &World, scope: &Scope, address: Address, fact: Option<&Fact>) {
        let may_be_on = match fact.map(|fact| &fact.holding) {
            Some(Holding::Unknown(doubt)) if !matches!(doubt.may_be_on, MayBeOn::AllBut(_)) => {
                doubt.may_be_on.clone()
            }
            _ => MayBeOn::Any,
        };
        self.add_places(world, scope, address, fact, may_be_on);
    }

    fn add_places(
        &mut self,
        world: &World,
        scope: &Scope,
        address: Address,
        fact: Option<&Fact>,
        may_be_on: MayBeOn,
    ) {
        let region = fact.and_then(|fact| fact.region.clone());
        let places = Places { address, scope: scope.clone(), region, may_be_on };
        if let MayBeOn::Only(machines) = &places.may_be_on {
            let slots = machines.iter().filter_map(|vm| world.slot_of_machine(vm));
            slots.for_each(|slot| self.slots.set(slot, true));
            self.places.push(places);
            return;
        }
        let is_same = |known: &Places| {
            (&known.scope, &known.region, &known.may_be_on) == (scope, &places.region, &places.may_be_on)
        };
        if self.places.iter().any(is_same) {
            return;
        }
        for slot in world.slots_by_name() {
            let machine = world.at(slot).and_then(|(_, node)| Some((node, node.machine.as_ref()?)));
            if machine.is_some_and(|(node, (of, vm))| of == scope && places.may_be(node, vm)) {
                self.slots.set(slot, true);
            }
        }
        self.places.push(places);
    }

    /// An address that may be on the node in a slot.
    pub(crate) fn on(&self, world: &World, slot: usize) -> Option<Address> {
        let (_, node) = world.at(slot)?;
        let (scope, vm) = node.machine.as_ref()?;
        let found = self.places.iter().find(|places| places.scope == *scope && places.may_be(node, vm));
        found.map(|places| places.address)
    }

    /// Whether the controller has not asked about an address of a scope yet.
    pub(crate) fn has_unread(&self, scope: &Scope) -> bool {
        self.unread.contains(scope)
    }
}

impl World {
    /// Whether a VM may hold an address whose holder is unknown and that has no unfinished move.
    pub fn may_hold_unknown(&self, vm: &VmId) -> bool {
        let Some(slot) = self.slot_of_machine(vm) else { return false };
        let mut doubted = Doubted::default();
        for pool in self.pools() {
            for address in pool.addresses.iter().filter(|address| pool.entry(**address).is_none()) {
                let fact = self.fact(&pool.scope, *address);
                if fact.is_none_or(|fact| matches!(fact.holding, Holding::Unknown(_))) {
                    doubted.add(self, &pool.scope, *address, fact);
                }
            }
        }
        doubted.slots.contains(slot)
    }
}
