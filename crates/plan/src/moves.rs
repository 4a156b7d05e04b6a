//! The next step of an unfinished move.
//!
//! A move is written into the journal before its first call, so whoever reads the journal goes on from what the cloud
//! says now. The first line that applies:
//!
//! ```text
//! another leader's epoch                                claim it: write it again with ours
//! a call or operation for it is under way, or failed    wait
//!   a short while ago
//! the cloud's answer is unknown or older than the entry wait, and read again
//! to be released: gone, and the object lists it         drop it from the object
//!                 gone                                  finish
//!                 free, everything that made it so is   release
//!                   still so, and the provider shows
//!                   the object's mark
//!                 otherwise                             abandon
//! on the target, by a change that failed                attach: ask for it again; or detach, where it has failed before
//! on the target                                         finish
//! free, nothing to go to                                finish
//! on the source, whose node may keep it after all       abandon: a healthy placement is not moved, unless its object is
//!                                                         being deleted and policy.onDelete says so
//! the target may not get it any more                    abandon; it seeks another place
//! free, a target                                        attach
//! on the source, no target                              detach
//! on the source, a target                               detach, once no urgent move waits for its turn and few other addresses
//!                                                         are off their machines, or where the cloud moves in one call, attach
//! on any other machine, or missing                      abandon: somebody else has moved it
//! ```
//!
//! A machine may have an address of its own that has to go before ours can come. Before it goes, the entry says so, and
//! before an entry is finished or abandoned, each machine that it says so of has ours, another one, or its own again:
//!
//! ```text
//! attach, the target is said to have had its own        attach in its place; in a move that could wait, once its source has
//!                                                         one again
//!         the target is known to have its own, or was   write that into the entry
//!           given it by an earlier leader and the cloud
//!           may not show it yet
//! finish or abandon, and a machine that had its own     give it one
//!   is known to have none
//! ```
//!
//! Where a cloud keeps the name in an address's PTR record on the machine, the name is written into the object's status before the
//! address is detached, so that the next machine gets it even after a crash.
//!
//! Where a cloud may not show yet what an earlier leader has done, no move that the earlier one began is finished or abandoned because of
//! where its address is said to be, and none at all that says of a machine that it had its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bits::Bits;
use crate::standing::{Standing, standing};
use crate::world::Reads;
use crate::{
    Address, Fact, Holding, Journal, Mode, Move, PENDING, Pool, Readiness, Scope, Target, Timestamp, Turn,
    VmId, World,
};

/// While so many addresses of a scope are on no machine, no other is taken off one where it serves. A cloud's limit may
/// be used up at any moment, and they are on none until it is not; and where none can be put on, no more should be taken off.
pub(crate) const IN_THE_AIR_MAX: usize = 96;

/// What to do about an unfinished move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    Claim,
    Wait,
    WaitUntil(Timestamp),
    /// What is known is older than the journal: read now.
    ReadAgain,
    /// What was read does not tell: read again in a while.
    WaitForCloud,
    Finish,
    Abandon,
    Owe,
    KeepPtr(Arc<str>),
    Attach(Target),
    Replace(Target),
    Restore(VmId),
    Detach(VmId),
    /// Release the address, which carries this mark.
    Release(Arc<str>),
    Drop,
}

/// The next step of a move. `mark` is what the address carries at the provider, where that allows to release it.
pub(crate) fn next(
    world: &World,
    pool: &Pool,
    address: Address,
    entry: &Move,
    holding: &Bits,
    mark: Option<&Arc<str>>,
    now: Timestamp,
) -> NextAction {
    if entry.epoch != world.epoch && !crate::sabotaged!(EpochIgnored) {
        return NextAction::Claim;
    }
    if is_in_flight(world, address, entry) || entry.written == PENDING {
        return NextAction::Wait;
    }
    if let Some(pause) = world.avoid_addresses.get(&address).filter(|pause| now < pause.until) {
        return NextAction::WaitUntil(pause.until);
    }
    if let Some(turn) = turn(world, pool, address, entry, now) {
        return NextAction::WaitUntil(turn.at);
    }
    let Some(fact) = world
        .fact(&pool.scope, address)
        .filter(|fact| fact.as_of > entry.written || crate::sabotaged!(StaleListingBelieved))
    else {
        return NextAction::ReadAgain;
    };
    let next = towards_target(world, pool, address, entry, fact, holding, mark, now);
    around_ephemeral_addresses(world, pool, address, entry, fact, next)
}

/// The next step if no machine had an address of its own: the rows of the truth table from top to bottom.
#[expect(clippy::too_many_arguments, reason = "these are the columns of the truth table")]
fn towards_target(
    world: &World,
    pool: &Pool,
    address: Address,
    entry: &Move,
    fact: &Fact,
    holding: &Bits,
    mark: Option<&Arc<str>>,
    now: Timestamp,
) -> NextAction {
    let may_keep = |vm| {
        let is_let_go = pool.policy.mode == Mode::Leaving && pool.policy.detaches_on_delete;
        !(is_let_go && entry.to.is_none()) && may_keep(world, pool, vm, now)
    };
    match (&fact.holding, &entry.from, &entry.to) {
        (Holding::Unknown(_), _, Some(to)) if crate::sabotaged!(UnknownGoneOnWith) => {
            NextAction::Attach(to.clone())
        }
        (Holding::Unknown(_), ..) => NextAction::WaitForCloud,
        (Holding::Missing, ..) if entry.releases && pool.addresses.contains(&address) => NextAction::Drop,
        (Holding::Missing, ..) if entry.releases => NextAction::Finish,
        (Holding::Free, ..) if entry.releases => {
            mark.map_or(NextAction::Abandon, |mark| NextAction::Release(Arc::clone(mark)))
        }
        _ if entry.releases => NextAction::Abandon,
        (_, _, Some(to)) if is_doubtfully_there(entry, fact) => match is_avoided(world, &to.vm, now) {
            false => NextAction::Attach(to.clone()),
            // It was said to be there before anything was done, and may well be.
            true if entry.asks_again() => NextAction::Abandon,
            true => NextAction::Detach(to.vm.clone()),
        },
        (Holding::By(vm), _, Some(to)) if *vm == to.vm => NextAction::Finish,
        (Holding::Free, _, None) => NextAction::Finish,
        (Holding::By(vm), ..) if may_keep(vm) => NextAction::Abandon,
        (Holding::Free | Holding::By(_), _, Some(to)) if !may_get(world, pool, to, holding, now) => {
            NextAction::Abandon
        }
        (Holding::Free, _, Some(to)) => NextAction::Attach(to.clone()),
        (Holding::By(vm), Some(from), None) if vm == from => NextAction::Detach(from.clone()),
        (Holding::By(vm), Some(from), Some(to)) if vm == from => {
            match world.moves_in_one_call.contains(&pool.scope.provider) {
                true => NextAction::Attach(to.clone()),
                false => NextAction::Detach(from.clone()),
            }
        }
        (Holding::By(_) | Holding::Missing, ..) => NextAction::Abandon,
    }
}

/// The step before the next one, where a machine has an address of its own or has lost it, or a PTR name would be lost.
fn around_ephemeral_addresses(
    world: &World,
    pool: &Pool,
    address: Address,
    entry: &Move,
    fact: &Fact,
    next: NextAction,
) -> NextAction {
    let lacks = |vm: &&VmId| !world.holds_any(vm) && !world.has_own.contains(*vm);
    let is_late = world.may_be_late(pool.scope.provider, Some(fact.as_of));
    // What we began ourselves began where status and cloud agreed, and what we did since the driver remembers.
    let is_told_where = world.inherited.contains(&address) && matches!(fact.holding, Holding::By(_));
    let ptr = world.ptrs.get(&address).filter(|name| pool.ptrs.get(&address) != Some(*name));
    let lacking_source = || entry.owed.iter().filter(|vm| entry.from.as_ref() == Some(vm)).find(lacks);
    match next {
        NextAction::Attach(to) if entry.owed.contains(&to.vm) => match lacking_source() {
            // Whoever does this may run on one of the two, and the other is to take over then.
            Some(vm) if !is_holder_lost(world, entry) => NextAction::Restore(vm.clone()),
            _ => NextAction::Replace(to),
        },
        NextAction::Attach(to)
            if world.has_own.contains(&to.vm) || (is_late && has_returned(world, &to.vm)) =>
        {
            NextAction::Owe
        }
        NextAction::Detach(from) => {
            ptr.map_or(NextAction::Detach(from), |name| NextAction::KeepPtr(Arc::clone(name)))
        }
        // An earlier leader may have brought it to either machine, or have brought it away: who has what can't be told yet.
        NextAction::Finish | NextAction::Abandon if is_late && (is_told_where || !entry.owed.is_empty()) => {
            match world.reads_late(pool.scope.provider) {
                Reads::Later => NextAction::WaitForCloud,
                Reads::AtOnce => NextAction::ReadAgain,
            }
        }
        NextAction::Finish | NextAction::Abandon if !crate::sabotaged!(OwnForgotten) => {
            entry.owed.iter().find(lacks).map_or(next, |vm| NextAction::Restore(vm.clone()))
        }
        other => other,
    }
}

/// Whether a machine has an address of its own again that an earlier leader gave it, which may not be shown yet.
fn has_returned(world: &World, vm: &VmId) -> bool {
    world.pools().any(|pool| pool.returned.values().flatten().any(|returned| returned == vm))
}

/// Whether nobody is served at the holder: it was dead when the move began, or has been lost since.
fn is_holder_lost(world: &World, entry: &Move) -> bool {
    let is_lost = |vm: &VmId| {
        let node = world.node_of(vm);
        node.is_none_or(|(_, node)| matches!(node.readiness, Readiness::NotReadySince(_)))
    };
    !entry.is_voluntary || entry.from.as_ref().is_some_and(is_lost)
}

/// Whether a move goes before those that can wait: nobody is served at the holder, or the address has already left it.
pub(crate) fn is_urgent(world: &World, entry: &Move, fact: Option<&Fact>) -> bool {
    let has_left = |fact: &Fact| fact.holding == Holding::Free || is_doubtfully_there(entry, fact);
    let is_under_way = entry.from.is_some() && fact.is_some_and(has_left);
    is_holder_lost(world, entry) || is_under_way
}

/// When a move that waits for its turn has it, and whether it is urgent. A turn that was told when there was no haste yet does not
/// count once there is.
fn turn(world: &World, pool: &Pool, address: Address, entry: &Move, now: Timestamp) -> Option<Turn> {
    let turn = world.turns.get(&address).filter(|turn| now < turn.at)?;
    let is_urgent = is_urgent(world, entry, world.fact(&pool.scope, address));
    (turn.is_urgent || !is_urgent).then_some(Turn { at: turn.at, is_urgent })
}

/// How many addresses of each scope are on their way and may be on no machine: all that are not known to be on one, but for
/// those of holders that were lost, which nothing was taken from.
pub(crate) fn in_the_air(world: &World) -> BTreeMap<Scope, usize> {
    let mut counts = BTreeMap::new();
    // What nobody acts for is left where it is, and waits for nothing.
    for pool in world.pools().filter(|pool| pool.policy.mode.acts()) {
        let Journal::Known(moves) = &pool.journal else { continue };
        let is_on_a_machine = |address: Address| {
            let fact = world.fact(&pool.scope, address);
            let is_held = |fact: &Fact| matches!(fact.holding, Holding::By(_)) && !fact.is_doubtful;
            fact.is_some_and(is_held) && !world.in_flight.addresses.contains(&address)
        };
        let is_in_the_air = |(address, entry): &(&Address, &Move)| {
            let was_served = match entry.from {
                Some(_) => !is_holder_lost(world, entry),
                // It was taken off the machine that it was on once, maybe for one that then refused it.
                None => pool.last_holders.contains_key(address),
            };
            entry.to.is_some() && was_served && !is_on_a_machine(**address)
        };
        let count = moves.iter().filter(is_in_the_air).count();
        if count > 0 {
            *counts.entry(pool.scope.clone()).or_default() += count;
        }
    }
    counts
}

/// When the last urgent move that waits for its turn has it, in each scope.
pub(crate) fn urgent_turns(world: &World, now: Timestamp) -> BTreeMap<Scope, Timestamp> {
    let mut last = BTreeMap::new();
    if world.turns.is_empty() {
        return last;
    }
    for pool in world.pools() {
        let Journal::Known(moves) = &pool.journal else { continue };
        for (address, entry) in moves {
            if let Some(Turn { at, is_urgent: true }) = turn(world, pool, *address, entry, now) {
                let known = last.entry(pool.scope.clone()).or_insert(at);
                *known = (*known).max(at);
            }
        }
    }
    last
}

/// Whether an address is said to be where it is to go, and may not be, because the change that was to bring it there has failed.
pub(crate) fn is_doubtfully_there(entry: &Move, fact: &Fact) -> bool {
    let is_target = |vm: &VmId| entry.to.as_ref().is_some_and(|to| to.vm == *vm);
    fact.is_doubtful && matches!(&fact.holding, Holding::By(vm) if is_target(vm))
}

fn is_in_flight(world: &World, address: Address, entry: &Move) -> bool {
    world.in_flight.addresses.contains(&address)
        || entry.machines().any(|vm| world.in_flight.machines.contains(vm))
}

fn may_keep(world: &World, pool: &Pool, vm: &VmId, now: Timestamp) -> bool {
    let Some(slot) = world.slot_of_machine(vm) else { return false };
    let (Some(member), Some((_, node))) = (world.member(&pool.key), world.at(slot)) else { return false };
    !matches!(standing(member, slot, node, now), Standing::Leaves(_))
}

/// Whether a machine has refused lately.
fn is_avoided(world: &World, vm: &VmId, now: Timestamp) -> bool {
    world.avoid_machines.get(vm).is_some_and(|until| now < *until)
}

/// Whether the target is still the node that was meant, fit, holds nothing, and has not refused lately.
fn may_get(world: &World, pool: &Pool, to: &Target, holding: &Bits, now: Timestamp) -> bool {
    let is_same = world.node_of(&to.vm).is_some_and(|(name, _)| *name == to.node);
    let is_fit = |slot| world.member(&pool.key).is_some_and(|member| member.fit.contains(slot));
    is_same
        && !is_avoided(world, &to.vm, now)
        && world.slot_of_machine(&to.vm).is_some_and(|slot| is_fit(slot) && !holding.contains(slot))
}
