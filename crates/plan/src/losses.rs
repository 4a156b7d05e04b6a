//! The breaker: if many holders are lost at once, the listing or the network may be wrong and the VMs fine.
//!
//! In: the last holders, facts, nodes and VM states. Out: the scopes whose breaker is tripped, and the times of losses
//! to remember. The planner decides what a tripped breaker stops.
//!
//! A holder is lost if its node is gone or NotReady, or if the cloud no longer knows the address. A VM that the cloud
//! itself reports as stopped or deleted is dead and does not count as lost. Drained nodes and moved pods don't count
//! either. The breaker of a scope is tripped while at least one loss lasts that no person has confirmed, and
//!
//! ```text
//! within about 60 s   at least 5 holders were lost, and more than 30 % of the scope's holders
//! ```
//!
//! A loss counts while it lasts, and for 60 s after it began, so that holders lost one after another add up even if
//! each is replaced at once. While the state of the address is unknown, a loss lasts.
//!
//! The objects' statuses contain the times, so that the next leader decides the same. Kubernetes stores whole seconds,
//! so times of losses are whole seconds from the start: writing and reading a time never changes a decision. A loss
//! without a stored time counts from now, which can only make the breaker trip earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{
    Address, Fact, Holding, MachineState, Pool, Readiness, Scope, Timestamp, VmId, World, whole_seconds,
};

const WINDOW: Duration = Duration::from_secs(60);
const LOST_MIN: usize = 5;
const LOST_PERCENT_MAX: usize = 30;

/// The losses in each scope.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    scopes: Vec<(Scope, OfScope)>,
}

#[derive(Debug, Default)]
struct OfScope {
    holders: usize,
    times: Vec<Timestamp>,
    has_open_loss: bool,
}

/// A tripped breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tripped {
    /// How many holders were lost together.
    pub lost: usize,
    /// How many holders the scope has.
    pub holders: usize,
    /// When the last of them was lost. A person confirms losses up to this time.
    pub until: Timestamp,
}

/// When the holder of an address was lost; none if the holder is not lost.
pub(crate) fn lost_since(
    world: &World,
    pool: &Pool,
    address: Address,
    fact: Option<&Fact>,
    now: Timestamp,
) -> Option<Timestamp> {
    let holder = pool.last_holders.get(&address)?;
    if matches!(world.machines.get(holder), Some(MachineState::Stopped | MachineState::Gone)) {
        return None;
    }
    let remembered = world.losses.get(&address).copied();
    let lost_now = || Some(remembered.unwrap_or(whole_seconds(now)));
    match fact.map(|fact| &fact.holding) {
        // It is unknown whether a remembered loss has ended, so it lasts.
        None | Some(Holding::Unknown(_)) => remembered,
        Some(Holding::Missing) => lost_now(),
        Some(Holding::By(vm)) if vm == holder => match world.node_of(vm) {
            None => lost_now(),
            Some((_, node)) => match node.readiness {
                Readiness::Ready => None,
                Readiness::Unknown => remembered,
                Readiness::NotReadySince(since) => Some(whole_seconds(since)),
            },
        },
        Some(Holding::By(_) | Holding::Free) => None,
    }
}

impl Tally {
    /// Counts an address of a pool. Returns when its holder was lost, for the status.
    pub(crate) fn count(
        &mut self,
        world: &World,
        pool: &Pool,
        address: Address,
        fact: Option<&Fact>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        // A cluster has few scopes, and pools of one scope mostly come one after another.
        let at = self.scopes.iter().rposition(|(scope, _)| *scope == pool.scope).unwrap_or_else(|| {
            self.scopes.push((pool.scope.clone(), OfScope::default()));
            self.scopes.len() - 1
        });
        let of_scope = &mut self.scopes[at].1;
        of_scope.holders += usize::from(pool.last_holders.contains_key(&address));
        let lost = lost_since(world, pool, address, fact, now);
        let is_recent = |at: &Timestamp| now.duration_since(*at).unsigned_abs() < WINDOW;
        let at = lost.or_else(|| world.losses.get(&address).copied().filter(is_recent))?;
        if pool.losses_confirmed.is_none_or(|confirmed| at > confirmed) {
            of_scope.times.push(at);
            of_scope.has_open_loss |= lost.is_some();
        }
        Some(at)
    }

    /// The tripped breakers.
    pub(crate) fn tripped(self) -> BTreeMap<Scope, Tripped> {
        let tripped =
            self.scopes.into_iter().filter_map(|(scope, of_scope)| Some((scope, of_scope.tripped()?)));
        tripped.collect()
    }
}

impl OfScope {
    fn tripped(mut self) -> Option<Tripped> {
        self.times.sort();
        let mut first = 0;
        let mut most: Option<Tripped> = None;
        for last in 0..self.times.len() {
            while self.times[last].duration_since(self.times[first]).unsigned_abs() > WINDOW {
                first += 1;
            }
            let lost = last + 1 - first;
            if most.as_ref().is_none_or(|most| lost >= most.lost) {
                most = Some(Tripped { lost, holders: self.holders, until: self.times[last] });
            }
        }
        let is_many =
            |most: &Tripped| most.lost >= LOST_MIN && most.lost * 100 > most.holders * LOST_PERCENT_MAX;
        most.filter(is_many).filter(|_| self.has_open_loss)
    }
}

/// The last holder of an address, if the state of that VM is unknown: the state shows whether it is lost or dead.
pub(crate) fn is_worth_asking(world: &World, pool: &Pool, address: Address) -> Option<VmId> {
    let holder = pool.last_holders.get(&address)?;
    (!world.machines.contains_key(holder)).then(|| holder.clone())
}
