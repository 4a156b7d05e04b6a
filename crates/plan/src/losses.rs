//! The breaker: many holders lost at once may be a mistake of the listing or of the network, and not of the machines.
//!
//! A holder is lost if it was ours and its node is gone or NotReady, or the cloud does not know the address any more. A
//! machine that the cloud itself reports stopped or gone is not lost but dead, and drained nodes and moved pods are
//! neither. The breaker of a scope is tripped while some loss is neither undone nor confirmed by a person, and
//!
//! ```text
//! within some 60 s   at least 5 holders were lost, and more than 30 % of the scope's holders
//! ```
//!
//! Losses are remembered for as long as they last and for 60 s after, so that holders lost one after another add up even
//! if each is replaced at once. While the cloud's answer is unknown, a loss lasts.
//!
//! The objects' statuses keep the times, so that the next leader decides the same. Kubernetes keeps whole seconds, so times of
//! losses are whole seconds from the start: writing and reading one never changes a decision. A loss without a stored time counts
//! from now: the breaker trips more readily, never less.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{
    Address, Fact, Holding, MachineState, Pool, Readiness, Scope, Timestamp, VmId, World, whole_seconds,
};

const WINDOW: Duration = Duration::from_secs(60);
const LOST_MIN: usize = 5;
const LOST_PERCENT_MAX: usize = 30;

/// What is lost in each scope.
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

/// A breaker that is tripped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tripped {
    /// How many holders were lost together.
    pub lost: usize,
    /// Of how many.
    pub holders: usize,
    /// When the last of them was lost: what a person confirms.
    pub until: Timestamp,
}

/// When the holder of an address was lost, if it is lost now.
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
        // Nobody knows whether it still lasts.
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
    /// Counts an address of a pool. What comes back is when its holder was lost, to be remembered.
    pub(crate) fn count(
        &mut self,
        world: &World,
        pool: &Pool,
        address: Address,
        fact: Option<&Fact>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        // A cluster has few accounts, and pools of one account mostly come one after another.
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

    /// The breakers that are tripped.
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

/// The machines whose state would tell lost from dead.
pub(crate) fn is_worth_asking(world: &World, pool: &Pool, address: Address) -> Option<VmId> {
    let holder = pool.last_holders.get(&address)?;
    (!world.machines.contains_key(holder)).then(|| holder.clone())
}
