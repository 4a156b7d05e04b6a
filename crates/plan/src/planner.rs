//! The plan for all pools at once.
//!
//! For each address of each pool, the first line that applies:
//!
//! ```text
//! another, older object lists it                          report it                       OwnedBy
//! it is beyond the desired number                         leave it                        Disabled
//! the cloud's answer is not known                         touch nothing                   Unknown
//! the cloud does not know the address                     report it                       Missing
//! on a machine of a node that is fit or keeps it          leave it                        Settled
//! on a machine that is and was no node of ours            leave it, or policy.takeover    Foreign
//! free, or on a machine of ours that has to give it up    place it on a fit, free node    Stepping
//!   and no such node exists:  UntilDrained                detach it where it is held      NoNode
//!                             UntilDisplaced              leave it                        Lingers / NoNode
//! ```
//!
//! A machine is ours if it backs a node, or if the object's own status says that it last held the address. A node is
//! free if its machine holds no address at all, and that must be known: while one address of the scope's pools is
//! unknown, it might be on any node, so none of them is taken for free.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::place;
use crate::standing::standing;
use crate::{
    Address, Fact, Holding, Mode, NodeName, Plan, Pool, PoolKey, Scope, Standing, Step, Takeover, Tenancy,
    Timestamp, Verdict, VmId, Why, World,
};

/// What should happen, given what is known.
pub fn plan(world: &World, now: Timestamp) -> Plan {
    let nodes_of_machines = nodes_of_machines(world);
    let owners = owners(world);
    let mut plan = Plan::default();
    let mut seekers = Vec::new();

    for pool in oldest_first(world) {
        for (position, address) in pool.addresses.iter().enumerate() {
            let verdict = match owners.get(address) {
                Some(owner) if *owner != &pool.key => Verdict::OwnedBy((*owner).clone()),
                _ if position >= pool.desired => Verdict::Disabled,
                _ => match judge(world, pool, *address, &nodes_of_machines, now, &mut plan.ask_again) {
                    Judgement::Says(verdict) => verdict,
                    Judgement::Seeks(seeker) => {
                        seekers.push(seeker);
                        continue;
                    }
                },
            };
            plan.verdicts.insert((pool.key.clone(), *address), verdict);
        }
    }

    let candidates: Vec<_> =
        seekers.iter().map(|seeker| fit_and_free(world, seeker.pool, now, &mut plan.ask_again)).collect();
    let placed = place(&candidates.iter().collect::<Vec<_>>());
    for (seeker, node) in seekers.into_iter().zip(placed) {
        let key = (seeker.pool.key.clone(), seeker.address);
        let (step, verdict) = settle(world, seeker, node);
        plan.steps.extend(step);
        plan.verdicts.insert(key, verdict);
    }
    plan
}

/// An address that needs another place.
struct Seeker<'a> {
    pool: &'a Pool,
    address: Address,
    holder: Option<Holder>,
    why: Why,
}

/// The machine that holds an address which needs another place.
struct Holder {
    vm: VmId,
    node: Option<NodeName>,
    is_ours: bool,
}

enum Judgement<'a> {
    Says(Verdict),
    Seeks(Seeker<'a>),
}

/// What is to be said of one address of its owner, as far as that can be said without the others.
fn judge<'a>(
    world: &World,
    pool: &'a Pool,
    address: Address,
    nodes_of_machines: &BTreeMap<&VmId, &NodeName>,
    now: Timestamp,
    ask_again: &mut Option<Timestamp>,
) -> Judgement<'a> {
    let seeks = |holder, why| Judgement::Seeks(Seeker { pool, address, holder, why });
    let vm = match world.addresses.get(&address) {
        None => return Judgement::Says(Verdict::Unknown("the cloud has not been asked yet".into())),
        Some(Fact::Unknown(reason)) => return Judgement::Says(Verdict::Unknown(reason.clone())),
        Some(Fact::Known(Holding::Missing)) => return Judgement::Says(Verdict::Missing),
        Some(Fact::Known(Holding::Free)) => return seeks(None, Why::NoMatch),
        Some(Fact::Known(Holding::By(vm))) => vm,
    };
    let Some(name) = nodes_of_machines.get(vm) else {
        let was_ours = pool.last_holders.get(&address) == Some(vm);
        return match (was_ours, pool.policy.takeover) {
            (false, Takeover::Never) => Judgement::Says(Verdict::Foreign(vm.clone())),
            (is_ours, _) => seeks(Some(Holder { vm: vm.clone(), node: None, is_ours }), Why::NoMatch),
        };
    };
    match standing(pool, name, world.nodes.get(*name), now) {
        Standing::Fit => Judgement::Says(Verdict::Settled((*name).clone())),
        Standing::Keeps(_, until) => {
            ask_at(ask_again, until);
            Judgement::Says(Verdict::Settled((*name).clone()))
        }
        Standing::Leaves(why) => {
            seeks(Some(Holder { vm: vm.clone(), node: Some((*name).clone()), is_ours: true }), why)
        }
    }
}

/// The step for a seeker, given the node that it was placed on, and what is to be said of it.
fn settle(world: &World, seeker: Seeker<'_>, node: Option<NodeName>) -> (Option<Step>, Verdict) {
    let Seeker { pool, address, holder, why } = seeker;
    let to = node.and_then(|name| Some((world.nodes.get(&name)?.vm.clone()?, name)));
    if to.is_none() {
        match &holder {
            None => return (None, Verdict::NoNode),
            Some(Holder { vm, is_ours: false, .. }) => return (None, Verdict::Foreign(vm.clone())),
            Some(Holder { vm, node, .. }) if pool.tenancy != Tenancy::UntilDrained => {
                return (None, Verdict::Lingers(vm.clone(), node.clone(), why));
            }
            Some(_) => {}
        }
    }
    let from = holder.map(|Holder { vm, node, is_ours: _ }| (vm, node));
    let step = Step { pool: pool.key.clone(), scope: pool.scope.clone(), address, from, to };
    match pool.policy.mode {
        Mode::Active => (Some(step), Verdict::Stepping),
        Mode::Observe => (None, Verdict::WouldStep(step.to_string())),
    }
}

/// The nodes that may get an address of this pool and surely hold none.
fn fit_and_free(
    world: &World,
    pool: &Pool,
    now: Timestamp,
    ask_again: &mut Option<Timestamp>,
) -> BTreeSet<NodeName> {
    let Some(holders) = holders(world, &pool.scope) else { return BTreeSet::new() };
    let mut free = BTreeSet::new();
    for name in pool.members.keys() {
        let node = world.nodes.get(name);
        let Some(vm) = node.and_then(|node| node.vm.as_ref()) else { continue };
        match standing(pool, name, node, now) {
            Standing::Fit if !holders.contains(vm) => _ = free.insert(name.clone()),
            Standing::Keeps(_, until) => ask_at(ask_again, until),
            _ => {}
        }
    }
    free
}

/// The machines that hold an address, or nothing where that is not known for every address of the scope's pools.
fn holders<'a>(world: &'a World, scope: &Scope) -> Option<BTreeSet<&'a VmId>> {
    let pools = world.pools.iter().filter(|pool| pool.scope == *scope);
    let is_known = |address| matches!(world.addresses.get(address), Some(Fact::Known(_)));
    if !pools.flat_map(|pool| &pool.addresses).all(is_known) {
        return None;
    }
    let holder = |fact: &'a Fact<Holding>| match fact {
        Fact::Known(Holding::By(vm)) => Some(vm),
        _ => None,
    };
    Some(world.addresses.values().filter_map(holder).collect())
}

/// The object that owns each address: the oldest that lists it, then the first by name.
fn owners(world: &World) -> BTreeMap<Address, &PoolKey> {
    let mut owners = BTreeMap::new();
    for pool in oldest_first(world) {
        for address in &pool.addresses {
            owners.entry(*address).or_insert(&pool.key);
        }
    }
    owners
}

fn oldest_first(world: &World) -> Vec<&Pool> {
    let mut pools: Vec<_> = world.pools.iter().collect();
    pools.sort_by_key(|pool| (pool.created, &pool.key));
    pools
}

fn nodes_of_machines(world: &World) -> BTreeMap<&VmId, &NodeName> {
    world.nodes.iter().filter_map(|(name, node)| Some((node.vm.as_ref()?, name))).collect()
}

fn ask_at(ask_again: &mut Option<Timestamp>, at: Option<Timestamp>) {
    if let Some(at) = at {
        *ask_again = Some(ask_again.map_or(at, |earlier| earlier.min(at)));
    }
}

#[cfg(test)]
mod tests;
