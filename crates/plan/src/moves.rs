//! The next step of an unfinished move.
//!
//! In: a journal entry, and what the cloud reports now. Out: the next step, or what to wait for. The controller writes
//! a move into the journal before its first call, so every later leader can resume it from what the cloud reports. The
//! first line that applies:
//!
//! ```text
//! the epoch of an earlier leader                        claim it: write it again with this leader's epoch
//! a call or operation for it is in flight, the entry    wait
//!   is being written, the backoff after a failure has
//!   not ended, or the call waits for the rate limit
//! the fact is unknown, or older than the entry          wait, and list again
//! a release:  missing, and the object lists it          drop: remove it from the object
//!             missing                                   finish
//!             free, all conditions for the release      release
//!               still hold, and the provider shows
//!               the object's mark
//!             otherwise                                 abandon
//! on the target, but the change that attached it        attach again; if the target refused it recently: detach
//!                                                         it, or abandon if the target is the source
//!   failed
//! on the target                                         finish
//! free, no target                                       finish
//! on a node that may keep it after all                  abandon: a healthy node keeps its address, unless the object
//!                                                         is being deleted and policy.onDelete is Detach
//! on a VM, or free without a source, and the object     abandon: it stays where it is
//!   no longer lists it
//! on a VM that is not ours, and policy.takeover is      abandon
//!   Never
//! the target may not get it any more                    abandon: the planner looks for another node
//! free, a target                                        attach
//! on the source, no target                              detach
//! on the source, a target                               detach, once no urgent move waits for the rate limit and few
//!                                                         other addresses are detached; or attach, if the cloud moves
//!                                                         an address in one call
//! on any other VM, or missing                           abandon: someone else has moved it
//! ```
//!
//! A VM may have an ephemeral address that the controller has to remove before it can attach the address of a pool.
//! Before the removal, the controller writes the VM into a list in the entry. Before it finishes or abandons the entry,
//! it makes sure that each VM in the list has a public address: the address of the pool, another one, or a new
//! ephemeral address:
//!
//! ```text
//! attach, and the entry says that the target had an     attach in its place; a voluntary move first restores the one
//!           ephemeral address                             of its source
//!         the target is known to have one, or an        write that into the entry
//!           earlier leader restored one and the cloud
//!           may not show it yet
//! finish or abandon, and a VM in the entry's list is    restore one
//!   known to have no public address
//! ```
//!
//! Some clouds keep the PTR record of an address on the VM. The controller saves its name in the object's status before
//! it detaches the address, so that it can restore the name on the next VM even after a crash.
//!
//! While a cloud may not show the last changes of an earlier leader yet, the controller finishes or abandons no move of
//! two kinds: one that the earlier leader started and whose address the cloud shows on a VM, because the address may
//! be elsewhere; and one with a VM that had an ephemeral address.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bits::Bits;
use crate::standing::{Standing, standing};
use crate::world::Reads;
use crate::{
    Address, Fact, Holding, Journal, Mode, Move, PENDING, Pool, Readiness, Scope, Takeover, Target,
    Timestamp, Turn, VmId, World,
};

/// For moves that can wait, at most this many addresses of a scope are detached at a time. The cloud's rate limit may
/// be used up at any moment, and detached addresses stay detached until it recovers. If the controller can't attach
/// any, it should not detach more.
pub(crate) const DETACHED_MAX: usize = 96;

/// What to do about an unfinished move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    Claim,
    Wait,
    WaitUntil(Timestamp),
    /// The fact is older than the journal entry: list now.
    ReadAgain,
    /// The fact is new enough, but does not say where the address is: list again later.
    WaitForCloud,
    Finish,
    Abandon,
    NoteEphemeral,
    KeepPtr(Arc<str>),
    Attach(Target),
    Replace(Target),
    Restore(VmId),
    Detach(VmId),
    /// Release the address, which has this mark.
    Release(Arc<str>),
    Drop,
}

/// The next step of a move. `mark` is the object's mark on the address, if the controller may release the address.
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

/// The next step without regard to ephemeral addresses: the rows of the truth table from top to bottom.
#[expect(clippy::too_many_arguments, reason = "the arguments are the inputs of the truth table")]
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
            // The cloud reported the address on this VM before the move started, so it may well be there.
            true if entry.repeats_attach() => NextAction::Abandon,
            true => NextAction::Detach(to.vm.clone()),
        },
        (Holding::By(vm), _, Some(to)) if *vm == to.vm => NextAction::Finish,
        (Holding::Free, _, None) => NextAction::Finish,
        (Holding::By(vm), ..) if may_keep(vm) => NextAction::Abandon,
        // The object no longer lists the address, so the address stays where it is.
        (Holding::By(_), ..) | (Holding::Free, None, _) if !pool.addresses.contains(&address) => {
            NextAction::Abandon
        }
        (Holding::By(vm), ..) if !may_take(world, pool, address, vm) => NextAction::Abandon,
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

/// Whether the controller may take an address from a VM: the VM backs a node, or was the last holder, or the policy
/// allows it.
fn may_take(world: &World, pool: &Pool, address: Address, vm: &VmId) -> bool {
    world.node_of(vm).is_some()
        || pool.last_holders.get(&address) == Some(vm)
        || pool.policy.takeover == Takeover::Always
        || crate::sabotaged!(AuthorityIgnored)
}

/// The step `next`, or one that has to come before it: if a VM has or lost an ephemeral address, or a PTR name would be
/// lost.
fn around_ephemeral_addresses(
    world: &World,
    pool: &Pool,
    address: Address,
    entry: &Move,
    fact: &Fact,
    next: NextAction,
) -> NextAction {
    let lacks = |vm: &&VmId| !world.holds_any(vm) && !world.has_ephemeral.contains(*vm);
    let is_late = world.may_be_late(pool.scope.provider, Some(fact.as_of));
    // Only for moves of an earlier leader: a move of this leader started where status and cloud agreed, and the driver
    // remembers the calls since then.
    let is_told_where = world.inherited.contains(&address) && matches!(fact.holding, Holding::By(_));
    let ptr = world.ptrs.get(&address).filter(|name| pool.ptrs.get(&address) != Some(*name));
    let lacking_source = || entry.to_restore.iter().filter(|vm| entry.from.as_ref() == Some(vm)).find(lacks);
    match next {
        NextAction::Attach(to) if entry.to_restore.contains(&to.vm) => match lacking_source() {
            // `Replace` cuts the target off for a moment. If this controller runs there, a replica on the source must
            // be able to take over first.
            Some(vm) if !is_holder_lost(world, entry) => NextAction::Restore(vm.clone()),
            _ => NextAction::Replace(to),
        },
        NextAction::Attach(to)
            if world.has_ephemeral.contains(&to.vm) || (is_late && has_returned(world, &to.vm)) =>
        {
            NextAction::NoteEphemeral
        }
        NextAction::Detach(from) => {
            ptr.map_or(NextAction::Detach(from), |name| NextAction::KeepPtr(Arc::clone(name)))
        }
        // An earlier leader may have attached it to either VM, or detached it. The listing may not show that yet.
        NextAction::Finish | NextAction::Abandon
            if is_late && (is_told_where || !entry.to_restore.is_empty()) =>
        {
            match world.reads_late(pool.scope.provider) {
                Reads::Later => NextAction::WaitForCloud,
                Reads::AtOnce => NextAction::ReadAgain,
            }
        }
        NextAction::Finish | NextAction::Abandon if !crate::sabotaged!(OwnForgotten) => {
            entry.to_restore.iter().find(lacks).map_or(next, |vm| NextAction::Restore(vm.clone()))
        }
        other => other,
    }
}

/// Whether the controller restored an ephemeral address on a VM. The cloud may not show that yet.
fn has_returned(world: &World, vm: &VmId) -> bool {
    world.pools().any(|pool| pool.returned.values().flatten().any(|returned| returned == vm))
}

/// Whether the holder does not serve the address: it was dead when the move started, or was lost since.
fn is_holder_lost(world: &World, entry: &Move) -> bool {
    let is_lost = |vm: &VmId| {
        let node = world.node_of(vm);
        node.is_none_or(|(_, node)| matches!(node.readiness, Readiness::NotReadySince(_)))
    };
    !entry.is_voluntary || entry.from.as_ref().is_some_and(is_lost)
}

/// Whether a move takes precedence over moves that can wait: the VM that it leaves is lost, or the address is already
/// detached.
pub(crate) fn is_urgent(world: &World, entry: &Move, fact: Option<&Fact>) -> bool {
    let has_left = |fact: &Fact| fact.holding == Holding::Free || is_doubtfully_there(entry, fact);
    let is_under_way = entry.from.is_some() && fact.is_some_and(has_left);
    is_holder_lost(world, entry) || is_under_way
}

/// The end of a move's delay by the rate limit, and whether the move is urgent. A move that has become urgent ignores
/// an earlier delay.
fn turn(world: &World, pool: &Pool, address: Address, entry: &Move, now: Timestamp) -> Option<Turn> {
    let turn = world.turns.get(&address).filter(|turn| now < turn.at)?;
    let is_urgent = is_urgent(world, entry, world.fact(&pool.scope, address));
    (turn.is_urgent || !is_urgent).then_some(Turn { at: turn.at, is_urgent })
}

/// How many addresses of each scope may be detached because of moves that can wait. An address counts unless it is
/// known to be on a VM. Addresses of lost holders don't count: no one detached them from a node that served them.
pub(crate) fn detached_for_moves(world: &World) -> BTreeMap<Scope, usize> {
    let mut counts = BTreeMap::new();
    // The controller moves no address of an object that it does not act on.
    for pool in world.pools().filter(|pool| pool.policy.mode.acts()) {
        let Journal::Known(moves) = &pool.journal else { continue };
        let is_on_a_machine = |address: Address| {
            let fact = world.fact(&pool.scope, address);
            let is_held = |fact: &Fact| matches!(fact.holding, Holding::By(_)) && !fact.is_unconfirmed;
            fact.is_some_and(is_held) && !world.in_flight.addresses.contains(&address)
        };
        let is_in_the_air = |(address, entry): &(&Address, &Move)| {
            let was_served = match entry.from {
                Some(_) => !is_holder_lost(world, entry),
                // If a VM held the address before, an earlier move may have detached it for a target that then
                // refused it.
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

/// For each scope, the latest time until which the rate limit delays an urgent move.
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

/// Whether the cloud reports an address on its target, but it may not be there, because the change that attached it
/// failed.
pub(crate) fn is_doubtfully_there(entry: &Move, fact: &Fact) -> bool {
    let is_target = |vm: &VmId| entry.to.as_ref().is_some_and(|to| to.vm == *vm);
    fact.is_unconfirmed && matches!(&fact.holding, Holding::By(vm) if is_target(vm))
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

/// Whether a VM refused an address recently.
pub(crate) fn is_avoided(world: &World, vm: &VmId, now: Timestamp) -> bool {
    world.avoid_machines.get(vm).is_some_and(|until| now < *until)
}

/// Whether the target VM still backs the same node, is fit, holds no address, and has not refused one recently.
fn may_get(world: &World, pool: &Pool, to: &Target, holding: &Bits, now: Timestamp) -> bool {
    let is_same = world.node_of(&to.vm).is_some_and(|(name, _)| *name == to.node);
    let is_fit = |slot| world.member(&pool.key).is_some_and(|member| member.fit.contains(slot));
    is_same
        && !is_avoided(world, &to.vm, now)
        && world.slot_of_machine(&to.vm).is_some_and(|slot| is_fit(slot) && !holding.contains(slot))
}
