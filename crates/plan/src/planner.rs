//! The plan for all pools at once.
//!
//! In: a world and the present time. Out: a [`Plan`]. Nothing here calls a cloud or writes an object.
//!
//! For each address of each pool, the first line that applies:
//!
//! ```text
//! another object owns it                                  report it                        OwnedBy
//! the controller can't act on the object, or can't read
//!   its journal                                           change nothing of the pool       Waits
//! the journal has a move of it                            take the next step, see `moves`  Moving, Queued
//! its cloud can't attach such an address                  report it                        Unsupported
//! it is beyond the desired number                         leave it                         Disabled
//!   it is free, policy.releaseCreated says so, and the
//!   provider shows the object's mark                      release it                       Releasing
//!   the same, created by the controller according to the
//!   status, but the provider does not show the mark       leave it, and report it          Unmarked
//! its state is unknown                                    change nothing                   Unknown
//! the cloud does not know the address                     report it                        Missing
//! its object is being deleted:
//!   policy.onDelete is Detach, and it is on our VM        detach it                        Moving
//!   otherwise                                             leave it                         Settled, Leaving
//! on the VM of a node that is fit or keeps it             leave it                         Settled
//!   but it was not known to be there, and the change
//!   that attached it failed                               attach it there again            Unknown
//! on a VM that is not ours                                leave it, or policy.takeover     Foreign
//! free, or on a VM of ours that has to give it up         move it to a fit, free node      Moving
//!   and each remaining fit node may hold an address in
//!   an unknown state                                      leave it                         Waits
//!   and there is no such node:  UntilDrained, drained     detach it                        Moving
//!                               otherwise                 leave it                         NoMatch, NoNode,
//!                                                                                          OtherRegion
//! ```
//!
//! Ownership: the owner is the object whose journal has a move of the address, otherwise the oldest object that lists
//! it, otherwise the first by name.
//!
//! Authority: a VM is ours if it backs a node, or if the object's status says that it held the address last.
//!
//! A node is **free** unless its VM holds an address, is part of a move, has a cloud operation in flight, refused an
//! address recently, occurs in an object that can't be decoded, or may hold an address in an unknown state, see
//! `possible_holders`. If the cloud refuses a second address on a VM, the plan may try a node of the last kind when no
//! other node is left, with an address that is on no VM, or on one whose node is not Ready.
//!
//! Order: a free address goes before one that a VM holds, because its move breaks no connection. An address of a dead
//! holder goes before one of a live holder, one of an older object before one of a younger object. Then the order in
//! the spec decides.
//!
//! Some moves have to wait: voluntary moves beyond `maxConcurrentMoves`, or while fewer than `minHealthy` addresses are
//! settled; assignments within the cool-off; all moves in a scope whose breaker is tripped, see `losses`, except that
//! detached addresses are attached; all moves of an object in mode Observe; and all new moves of an object that the
//! apiserver refuses to update, because they can't be journalled.
//!
//! While the controller can't read a kind of objects that a decision depends on, it starts no move, detaches no address
//! from its VM, evicts no pod, creates no address and removes none from a DNS name. A silent watch may be broken. So
//! before any of these steps, the controller lists the kinds again whose watch has been silent for a while. It attaches
//! detached addresses in any case.
//!
//! A leader never cuts off the node that it runs on. Instead the plan asks for another leader, which takes the step.
//! Before it releases its lease, it takes only steps that can't wait for the next leader, see [`LastSteps`].
//!
//! The file is long because one pass over all pools fills the whole plan: each part reads what the parts before it have
//! decided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::bits::Bits;
use crate::creation;
use crate::evictions;
use crate::losses::{self, Tally};
use crate::member::Member;
use crate::moves::{self, NextAction};
use crate::ownership::Ownership;
use crate::placement::{Group, place};
use crate::possible_holders::{PossibleHolders, is_unknown};
use crate::records;
use crate::standing::{Standing, standing};
use crate::world::{Known, Reads};
use crate::{
    ADDRESSES_MAX, Action, Address, CreationAction, CreationStep, Eviction, Fact, Holding, Journal, Kind,
    Kinds, Lacking, LastSteps, Mark, Mode, Move, NodeName, Pause, Plan, Pool, PoolKey, Readiness, Scope,
    Spread, Step, Takeover, Target, Tenancy, Tick, Timestamp, Verdict, VmId, Waits, Why, World, later,
};

/// Why it is unknown whether an address is on the VM that the cloud reports as its holder.
const DOUBTFUL: &str =
    "the provider reports it on its VM, but the call to attach it failed; the controller attaches it again";

/// The maximum age of a listing while the planner waits for a change that it shows.
const CHANGING_AGE_MAX: Duration = Duration::from_secs(1);

/// The maximum age of a listing while other addresses wait for an address in an unknown state.
const WAITED_FOR_AGE_MAX: Duration = Duration::from_secs(5);

/// The maximum age of a listing while the state of an address stays unknown for long.
const UNKNOWN_AGE_MAX: Duration = Duration::from_secs(60);

/// Why no move starts for an object that the controller can't update.
const UNWRITABLE: &str = "the apiserver refuses updates of this object";

/// What the controller should do, given what it knows.
pub fn plan(world: &World, now: Timestamp) -> Plan {
    let ownership = world.ownership();
    let members: Vec<&Member> = world.members().collect();
    let ranked: Vec<&Member> = ownership.order.iter().map(|at| members[*at]).collect();
    let mut planner = Planner {
        world,
        now,
        holding: holding(world),
        marked: BTreeMap::new(),
        tally: Tally::default(),
        urgent_turns: moves::urgent_turns(world, now),
        detached_for_moves: moves::detached_for_moves(world),
        blocked: PossibleHolders::default(),
        keep_marks: BTreeMap::new(),
        left_alone: BTreeMap::new(),
        room: creation::Room::of(world),
        journalled: Vec::new(),
        begun: Vec::new(),
        seekers: Vec::new(),
        progress: ranked.iter().map(|_| Progress::default()).collect(),
        plan: Plan::default(),
    };
    for (rank, member) in ranked.iter().enumerate() {
        planner.judge_pool(rank, member, ownership, &ranked);
    }
    planner.conclude(&ranked)
}

struct Planner<'a> {
    world: &'a World,
    now: Timestamp,
    /// Nodes whose VM holds an address.
    holding: Bits,
    /// For each kind of object, the nodes that should have a mark, in the order in which the planner found them.
    marked: BTreeMap<&'static str, Vec<(usize, Mark)>>,
    tally: Tally,
    /// For each scope, the latest time until which the rate limit delays an urgent move.
    urgent_turns: BTreeMap<Scope, Timestamp>,
    /// For each scope, how many addresses are detached because of moves that can wait.
    detached_for_moves: BTreeMap<Scope, usize>,
    /// Nodes that get no address, because they may hold one in an unknown state that has no move.
    blocked: PossibleHolders,
    /// For each kind of object, nodes that keep their marks, because they may hold an address in an unknown state.
    keep_marks: BTreeMap<&'static str, PossibleHolders>,
    /// For each kind whose mark does not name the object: the nodes that such a mark of an object may be on that the
    /// controller does not act on.
    left_alone: BTreeMap<&'static str, Bits>,
    /// How many addresses may still be created, if there is a limit.
    room: Option<creation::Room>,
    journalled: Vec<Step>,
    /// New moves that need no other node: releases, detaches and repeated attaches.
    begun: Vec<Step>,
    seekers: Vec<Seeker<'a>>,
    progress: Vec<Progress>,
    plan: Plan,
}

/// An address that needs a node.
struct Seeker<'a> {
    rank: usize,
    pool: &'a Pool,
    address: Address,
    position: usize,
    region: Option<Arc<str>>,
    holder: Option<HeldBy>,
}

/// The VM that holds an address which needs another node.
struct HeldBy {
    vm: VmId,
    node: Option<NodeName>,
    is_ours: bool,
    why: Why,
}

/// The node for an address that needs one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeChoice {
    /// The node in this slot.
    Use(usize),
    /// The node in this slot, which may hold an address in an unknown state. If it does, the cloud refuses the attach.
    Try(usize),
    /// No node now: each remaining node may hold an address in an unknown state. This is the slot of one of these nodes.
    Blocked(usize),
    /// No node.
    NoNode,
}

impl NodeChoice {
    fn slot(self) -> Option<usize> {
        match self {
            Self::Use(slot) | Self::Try(slot) => Some(slot),
            Self::Blocked(_) | Self::NoNode => None,
        }
    }
}

/// What the policy of a pool counts.
#[derive(Default)]
struct Progress {
    settled: usize,
    voluntary: usize,
    assigning: usize,
}

impl<'a> Planner<'a> {
    fn judge_pool(&mut self, rank: usize, member: &'a Member, ownership: &Ownership, ranked: &[&'a Member]) {
        let pool = &*member.pool;
        let mut verdicts = Vec::with_capacity(pool.addresses.len());
        let mut wanted = 0;
        let no_moves = BTreeMap::new();
        let (moves, is_readable) = match &pool.journal {
            Journal::Known(moves) => (moves, true),
            Journal::Unreadable => (&no_moves, false),
        };
        if !is_readable {
            self.plan.marks.uncertain.insert(pool.key.kind);
        } else if !pool.policy.mode.acts() {
            self.leave_alone(rank, member, moves, ownership, ranked);
        }
        let facts = self.world.facts_by_address(&pool.scope);
        let removed = moves.keys().filter(|address| !pool.addresses.contains(address));
        for (position, address) in pool.addresses.iter().chain(removed).enumerate() {
            let known = facts.and_then(|facts| facts.get(address));
            let fact = known.map(|known| &known.fact);
            let unsupported = pool.scope.provider.refuses(*address);
            if is_unknown(pool, *address, fact) {
                let keep_marks = self.keep_marks.entry(pool.key.kind).or_default();
                keep_marks.add_for_marks(self.world, &pool.scope, *address, fact);
                if !moves.contains_key(address) {
                    self.blocked.add_for_attach(self.world, &pool.scope, *address, fact);
                    match fact {
                        None => _ = self.plan.read_again.insert(pool.scope.clone()),
                        Some(fact) => self.read_unknown_again(&pool.scope, *address, fact),
                    }
                }
            }
            // A release can't be undone, so the planner checks all conditions again at every step.
            let is_unneeded = pool.policy.mode == Mode::Active
                && (pool.policy.releases_created || crate::sabotaged!(ReleasedUnasked))
                && position < pool.addresses.len()
                && wanted >= pool.desired
                && !pool.disowned.contains(address)
                && !ownership.is_contested(*address);
            let mark = pool.mark_on(*address, fact).filter(|_| is_unneeded);
            let verdict = match (ownership.other_owner(*address, rank), moves.get(address), unsupported) {
                (Some(owner), ..) => Verdict::OwnedBy(ranked[owner].pool.key.clone()),
                _ if pool.policy.mode == Mode::Refused => Verdict::Waits(Waits::ForCorrection),
                _ if !is_readable => Verdict::Waits(Waits::ForNewerController),
                (_, Some(entry), _) => self.resume(rank, pool, *address, fact, entry, mark),
                (.., Some(why)) => Verdict::Unsupported(why),
                _ if wanted >= pool.desired => self.spare(pool, *address, fact, is_unneeded),
                _ => match self.judge(rank, member, *address, known, position) {
                    Some(verdict) => verdict,
                    None => {
                        wanted += 1;
                        continue;
                    }
                },
            };
            // An address that can't be attached does not count for the desired number.
            let is_out = matches!(verdict, Verdict::Missing | Verdict::OwnedBy(_) | Verdict::Unsupported(_));
            wanted += usize::from(!is_out);
            self.progress[rank].settled += usize::from(matches!(verdict, Verdict::Settled(_)));
            verdicts.push((*address, verdict));
        }
        self.plan.verdicts.insert(pool.key.clone(), verdicts);
        // The entry of a creation also needs room in the journal.
        if is_readable && (pool.creation.is_some() || moves.len() < ADDRESSES_MAX) {
            self.create(pool, ownership);
        }
    }

    /// Notes which marks and pods may belong to an object that the controller does not act on. They stay as they are.
    /// Addresses that another object uses do not count.
    fn leave_alone(
        &mut self,
        rank: usize,
        member: &Member,
        moves: &BTreeMap<Address, Move>,
        ownership: &Ownership,
        ranked: &[&'a Member],
    ) {
        let pool = &*member.pool;
        let is_used_by_another = |address: &Address| {
            let owner = ownership.other_owner(*address, rank);
            owner.is_some_and(|owner| ranked[owner].pool.policy.mode.acts())
        };
        let addresses =
            pool.addresses.iter().chain(moves.keys()).filter(|address| !is_used_by_another(address));
        let left_alone = self.plan.marks.left_alone.entry(pool.key.kind).or_default();
        left_alone.objects.insert(Arc::clone(&pool.key.name));
        left_alone.addresses.extend(addresses.clone());
        // The label `ip.ready` does not name the object.
        if pool.tenancy == Tenancy::UntilDrained {
            let facts = self.world.facts_by_address(&pool.scope);
            let holders = addresses.filter_map(|address| facts?.get(address)?.slot);
            let machines = pool.last_holders.values().chain(moves.values().flat_map(Move::machines));
            let held = machines.filter_map(|vm| self.world.slot_of_machine(vm));
            let nodes = self.left_alone.entry(pool.key.kind).or_default();
            nodes.add(&member.matching);
            holders.chain(held).for_each(|slot| nodes.set(slot, true));
        }
    }

    /// Plans the next step of a pool that needs more addresses.
    fn create(&mut self, pool: &Pool, ownership: &Ownership) {
        let next = creation::next(self.world, pool, ownership, self.room.as_ref(), self.now);
        if let Some(action) = next.action {
            if let (CreationAction::Ask { count, .. }, Some(room)) = (&action, &mut self.room) {
                room.take(&pool.key, *count);
            }
            self.plan.creations.push(CreationStep {
                pool: pool.key.clone(),
                scope: pool.scope.clone(),
                action,
            });
        }
        if let Some(Lacking::Failed(pause)) = &next.lacking {
            self.ask_again(Some(pause.until));
        }
        match next.reads {
            Some(Reads::AtOnce) => _ = self.plan.read_again.insert(pool.scope.clone()),
            Some(Reads::Later) => self.read_again_within(&pool.scope, CHANGING_AGE_MAX),
            None => {}
        }
        if let Some(lacking) = next.lacking {
            self.plan.lacking.insert(pool.key.clone(), lacking);
        }
    }

    /// The verdict for an address beyond the desired number.
    fn spare(&mut self, pool: &Pool, address: Address, fact: Option<&Fact>, is_unneeded: bool) -> Verdict {
        let is_free = fact.is_some_and(|fact| fact.holding == Holding::Free);
        match pool.mark_on(address, fact) {
            _ if !is_unneeded || !is_free => Verdict::Disabled,
            Some(_) => {
                self.begin(pool, address, None, true);
                Verdict::Releasing
            }
            None if pool.created_here.contains(&address) => Verdict::Unmarked,
            None => Verdict::Disabled,
        }
    }

    /// The source for the move of a free address: its last holder, if the controller still has to restore the ephemeral
    /// address there.
    fn left<'p>(&self, pool: &'p Pool, address: Address, to: Option<&Target>) -> Option<&'p VmId> {
        let is_left = |vm: &&VmId| self.world.node_of(vm).is_some() && to.is_none_or(|to| to.vm != **vm);
        ephemeral_replaced_on(pool, address).filter(is_left)
    }

    /// Starts a move without a new node.
    fn begin(&mut self, pool: &Pool, address: Address, from: Option<VmId>, releases: bool) {
        let from = from.or_else(|| self.left(pool, address, None).cloned());
        let entry = self.entry(pool, address, from, None, true);
        self.begun.push(step(pool, address, false, Action::Begin(Move { releases, ..entry })));
    }

    /// The later end of the backoffs of the address and the VM, before which a failed attach is not repeated.
    fn rests(&self, address: Address, vm: &VmId) -> Option<Timestamp> {
        let of_address = self.world.avoid_addresses.get(&address).map(|pause| pause.until);
        let of_machine = self.world.avoid_machines.get(vm).copied();
        of_address.max(of_machine).filter(|until| self.now < *until)
    }

    /// Repeats a failed attach on the VM that the cloud reports as the holder. The address is not detached, because it
    /// may well be there.
    fn ask_for_again(&mut self, pool: &Pool, address: Address, holder: Target) -> (Option<Step>, Verdict) {
        self.leave_mark(pool, &holder.node);
        let entry = self.entry(pool, address, Some(holder.vm.clone()), Some(holder), false);
        let step = step(pool, address, true, Action::Begin(entry));
        match pool.policy.mode {
            Mode::Observe => (None, Verdict::WouldStep(step.to_string())),
            _ => (Some(step), Verdict::Unknown(DOUBTFUL.into())),
        }
    }

    /// A journal entry for a move that starts now.
    fn entry(
        &self,
        pool: &Pool,
        address: Address,
        from: Option<VmId>,
        to: Option<Target>,
        is_voluntary: bool,
    ) -> Move {
        let to_restore = to_restore(pool, address, from.as_ref(), to.as_ref());
        Move {
            from,
            to,
            to_restore,
            releases: false,
            is_voluntary,
            epoch: self.world.epoch,
            written: Tick::default(),
        }
    }

    /// The verdict for an address whose object is being deleted, given its holder and the holder's node.
    fn let_go(&mut self, pool: &Pool, address: Address, vm: &VmId, slot: Option<usize>) -> Verdict {
        let is_ours = slot.is_some() || pool.last_holders.get(&address) == Some(vm);
        if is_ours && pool.policy.detaches_on_delete {
            self.begin(pool, address, Some(vm.clone()), false);
            return Verdict::Moving(None);
        }
        let Some((slot, (name, _))) = slot.and_then(|slot| Some((slot, self.world.at(slot)?))) else {
            return Verdict::Leaving;
        };
        self.mark(pool, slot, address);
        Verdict::Settled(name.clone())
    }

    /// Marks a node as the holder of an address, unless the controller does not act on the object.
    fn mark(&mut self, pool: &Pool, slot: usize, address: Address) {
        if pool.policy.mode.acts() {
            let mark = Mark { address, object: Arc::clone(&pool.key.name) };
            self.marked.entry(pool.key.kind).or_default().push((slot, mark));
        }
    }

    /// Adds to the plan which nodes get marks and which keep them, sorted by node name. Walking all nodes in name order
    /// is cheaper than a sorted insert for each mark.
    fn name_marks(&mut self) {
        for (kind, marked) in std::mem::take(&mut self.marked) {
            let mut by_slot = vec![None; self.world.slots_len()];
            for (slot, mark) in marked {
                by_slot[slot] = Some(mark);
            }
            let of = |slot: usize| Some((self.world.at(slot)?.0.clone(), by_slot[slot].take()?));
            let holders = self.world.slots_by_name().filter_map(of).collect();
            self.plan.marks.holders.insert(kind, holders);
        }
        for (kind, holders) in &self.keep_marks {
            let names = holders.slots.iter().filter_map(|slot| self.world.at(slot)).map(|(name, _)| name);
            self.plan.marks.unsure.entry(*kind).or_default().extend(names.cloned());
        }
        for (kind, nodes) in &self.left_alone {
            let names = nodes.iter().filter_map(|slot| self.world.at(slot)).map(|(name, _)| name);
            self.plan.marks.left_alone.entry(*kind).or_default().nodes.extend(names.cloned());
        }
    }

    /// Marks the holder of an address that has to leave, if a mark says which node holds an address now: only with
    /// `Tenancy::UntilDrained`.
    fn mark_leaving(&mut self, pool: &Pool, address: Address, fact: &Fact) {
        let Some(vm) = fact.holder().filter(|_| pool.tenancy == Tenancy::UntilDrained) else { return };
        let Some((slot, (name, _))) =
            self.world.slot_of_machine(vm).and_then(|slot| Some((slot, self.world.at(slot)?)))
        else {
            return;
        };
        match is_unconfirmed_on(pool, address, fact) {
            true => self.leave_mark(pool, name),
            false => self.mark(pool, slot, address),
        }
    }

    /// Leaves the mark of a node as it is, because it is unknown whether the node holds an address.
    fn leave_mark(&mut self, pool: &Pool, node: &NodeName) {
        self.plan.marks.unsure.entry(pool.key.kind).or_default().insert(node.clone());
    }

    /// Plans the next step of an unfinished move, and returns the verdict.
    fn resume(
        &mut self,
        rank: usize,
        pool: &Pool,
        address: Address,
        fact: Option<&Fact>,
        entry: &Move,
        mark: Option<&Arc<str>>,
    ) -> Verdict {
        self.count_loss(pool, address, fact);
        if let Some(fact) = fact {
            self.mark_leaving(pool, address, fact);
        }
        let may_be_there = self.world.in_flight.addresses.contains(&address)
            || self.world.may_be_late(pool.scope.provider, fact.map(|fact| fact.as_of));
        if let Some(to) = entry.to.as_ref().filter(|_| may_be_there || entry.repeats_attach()) {
            self.leave_mark(pool, &to.node);
        }
        self.progress[rank].voluntary += usize::from(entry.is_voluntary);
        self.progress[rank].assigning += usize::from(entry.to.is_some() && !entry.repeats_attach());
        let mut is_queued = false;
        let action = match moves::next(self.world, pool, address, entry, &self.holding, mark, self.now) {
            NextAction::Claim => Some(Action::Claim),
            NextAction::Wait => None,
            NextAction::WaitUntil(until) => {
                self.ask_again(Some(until));
                None
            }
            NextAction::WaitForCloud => {
                match fact {
                    Some(fact) => self.read_unknown_again(&pool.scope, address, fact),
                    None => self.read_again_within(&pool.scope, CHANGING_AGE_MAX),
                }
                None
            }
            NextAction::ReadAgain => {
                self.plan.read_again.insert(pool.scope.clone());
                None
            }
            NextAction::Finish => Some(Action::Finish),
            NextAction::Abandon => Some(Action::Abandon),
            NextAction::NoteEphemeral => Some(Action::NoteEphemeral),
            NextAction::KeepPtr(name) => Some(Action::KeepPtr(name)),
            NextAction::Attach(to) => Some(Action::Attach(to)),
            NextAction::Replace(to) => Some(Action::Replace(to)),
            NextAction::Restore(vm) => Some(Action::Restore(vm)),
            NextAction::Detach(from) if entry.to.is_some() && !moves::is_urgent(self.world, entry, fact) => {
                // In mode Observe the controller does not take the step, so it does not count.
                let may = !pool.policy.mode.acts() || self.may_take_off(&pool.scope);
                is_queued = !may;
                may.then_some(Action::Detach(from))
            }
            NextAction::Detach(from) => Some(Action::Detach(from)),
            NextAction::Release(mark) => Some(Action::Release(mark)),
            NextAction::Drop => Some(Action::Drop),
        };
        if let Some(action) = action {
            let is_urgent = moves::is_urgent(self.world, entry, fact);
            self.journalled.push(step(pool, address, is_urgent, action));
        }
        let failed = self.world.avoid_addresses.get(&address).filter(|pause| self.now < pause.until);
        match (failed, &entry.to) {
            (Some(pause), _) => Verdict::Waits(Waits::ForRetry(pause.clone())),
            (None, _) if entry.releases => Verdict::Releasing,
            (None, _) if entry.repeats_attach() => Verdict::Unknown(DOUBTFUL.into()),
            (None, Some(to)) if is_queued => Verdict::Queued(to.node.clone()),
            (None, to) => Verdict::Moving(to.as_ref().map(|to| to.node.clone())),
        }
    }

    /// Whether the controller may detach a working address to move it. If so, the address counts as detached from now
    /// on.
    fn may_take_off(&mut self, scope: &Scope) -> bool {
        // Some clouds have separate rate limits for detach and attach. There the address would stay detached until the
        // urgent ones are attached.
        if let Some(turn) = self.urgent_turns.get(scope).copied() {
            self.ask_again(Some(turn));
            return false;
        }
        let detached_for_moves = self.detached_for_moves.entry(scope.clone()).or_default();
        // When one of the detached addresses is attached, that event leads to another plan.
        let may = *detached_for_moves < moves::DETACHED_MAX;
        *detached_for_moves += usize::from(may);
        may
    }

    /// The verdict for an address that this pool owns; none if the address needs a node.
    fn judge(
        &mut self,
        rank: usize,
        member: &'a Member,
        address: Address,
        known: Option<&Known>,
        position: usize,
    ) -> Option<Verdict> {
        let pool = &*member.pool;
        self.count_loss(pool, address, known.map(|known| &known.fact));
        let Some(Known { fact, slot }) = known else {
            self.plan.read_again.insert(pool.scope.clone());
            return Some(Verdict::Unknown(
                "the controller has not listed the addresses of the account yet".into(),
            ));
        };
        let is_leaving = pool.policy.mode == Mode::Leaving;
        let mut seek = |holder| {
            let region = fact.region.clone();
            self.seekers.push(Seeker { rank, pool, address, position, region, holder });
            None
        };
        let vm = match &fact.holding {
            Holding::Unknown(doubt) => return Some(Verdict::Unknown(Arc::clone(&doubt.why))),
            Holding::Missing => return Some(Verdict::Missing),
            Holding::Free if is_leaving => return Some(Verdict::Leaving),
            Holding::Free => return seek(None),
            Holding::By(vm) => vm,
        };
        if is_leaving {
            return Some(self.let_go(pool, address, vm, *slot));
        }
        let Some((slot, (name, node))) = slot.and_then(|slot| Some((slot, self.world.at(slot)?))) else {
            let is_ours = pool.last_holders.get(&address) == Some(vm);
            return match (is_ours, pool.policy.takeover) {
                (false, Takeover::Never) if !crate::sabotaged!(AuthorityIgnored) => {
                    Some(Verdict::Foreign(vm.clone()))
                }
                (is_ours, _) => seek(Some(HeldBy { vm: vm.clone(), node: None, is_ours, why: Why::Gone })),
            };
        };
        match standing(member, slot, node, self.now) {
            Standing::Leaves(why) => {
                let sought =
                    seek(Some(HeldBy { vm: vm.clone(), node: Some(name.clone()), is_ours: true, why }));
                self.mark_leaving(pool, address, fact);
                sought
            }
            Standing::Fit => Some(self.stay(pool, address, fact, slot, name)),
            Standing::Keeps(_, until) => {
                self.ask_again(until);
                Some(self.stay(pool, address, fact, slot, name))
            }
        }
    }

    /// The verdict for an address that stays on its VM. Repeats the attach if the address may not be there.
    fn stay(&mut self, pool: &Pool, address: Address, fact: &Fact, slot: usize, node: &NodeName) -> Verdict {
        if let Some(vm) = fact.holder().filter(|_| is_unconfirmed_on(pool, address, fact)) {
            if let Some(until) = self.rests(address, vm) {
                self.leave_mark(pool, node);
                self.ask_again(Some(until));
                return Verdict::Unknown(DOUBTFUL.into());
            }
            let holder = Target { vm: vm.clone(), node: node.clone() };
            let (begin, verdict) = self.ask_for_again(pool, address, holder);
            self.begun.extend(begin);
            return verdict;
        }
        self.mark(pool, slot, address);
        Verdict::Settled(node.clone())
    }

    fn count_loss(&mut self, pool: &Pool, address: Address, fact: Option<&Fact>) {
        if let Some(at) = self.tally.count(self.world, pool, address, fact, self.now) {
            self.plan.losses.insert(address, at);
            if let Some(vm) = losses::is_worth_asking(self.world, pool, address) {
                self.plan.ask_machines.entry(pool.scope.clone()).or_default().insert(vm);
            }
        }
    }

    /// Asks for a listing of a scope that is at most this old.
    fn read_again_within(&mut self, scope: &Scope, age_max: Duration) {
        let wanted = self.plan.listing_age_max.entry(scope.clone()).or_insert(age_max);
        *wanted = (*wanted).min(age_max);
    }

    /// Asks for a listing that may show the state of an address. If the state stays unknown, the controller lists less and
    /// less often, so that this does not use up the rate limit of the account.
    fn read_unknown_again(&mut self, scope: &Scope, address: Address, fact: &Fact) {
        let doubt = match &fact.holding {
            // The next listing asks about more addresses.
            Holding::Unknown(doubt) if !doubt.is_unasked => doubt,
            _ => return self.read_again_within(scope, CHANGING_AGE_MAX),
        };
        let known = self.world.unknown_since.get(&address).filter(|(_, why)| *why == doubt.why);
        let since = known.map_or(self.now, |(since, _)| *since);
        self.plan.unknown_since.insert(address, (since, Arc::clone(&doubt.why)));
        let lasts = Duration::try_from(self.now.duration_since(since)).unwrap_or_default();
        self.read_again_within(scope, (lasts / 4).clamp(CHANGING_AGE_MAX, UNKNOWN_AGE_MAX));
    }

    fn ask_again(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.plan.ask_again = Some(self.plan.ask_again.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// Chooses nodes for the addresses that need one, applies policies and circuit breakers, and completes
    /// the plan.
    fn conclude(mut self, ranked: &[&'a Member]) -> Plan {
        self.plan.tripped = std::mem::take(&mut self.tally).tripped();
        let tripped = &self.plan.tripped;
        self.plan.ask_machines.retain(|scope, _| tripped.contains_key(scope));

        self.name_marks();
        let mut seekers = std::mem::take(&mut self.seekers);
        seekers.sort_by_key(|seeker| {
            let is_observed = seeker.pool.policy.mode == Mode::Observe;
            let is_voluntary = seeker.holder.as_ref().map(|holder| holder.why.is_voluntary());
            (is_observed, is_voluntary, seeker.rank, seeker.position)
        });
        let choices = self.choose_nodes(&seekers, ranked);

        let mut actions = DisjointSteps::default();
        let mut journalled = std::mem::take(&mut self.journalled);
        journalled.sort_by_key(|step| !step.is_urgent);
        for step in journalled {
            let acts = self.world.pool(&step.pool).is_some_and(|pool| pool.policy.mode.acts());
            if !acts {
                continue;
            }
            if self.plan.tripped.contains_key(&step.scope) && !self.takes_nothing(&step) {
                self.wait_for_confirmation(step);
                continue;
            }
            // A step that is based on outdated objects causes no hand-over: the next leader would hold it back, too.
            let is_spared = step.action.cuts_off().is_some_and(|vm| self.world.is_spared(vm));
            match (self.rests_on_outdated(&step), is_spared) {
                // `hold_back_what_is_outdated` removes this step, so it does not reserve its VMs: other moves may use
                // them.
                (true, _) => actions.steps.push(step),
                (false, true) => self.plan.hands_over = true,
                (false, false) => actions.add(step, self.world),
            }
        }
        let mut begun = std::mem::take(&mut self.begun);
        begun.retain(|step| !self.world.unwritable.contains_key(&step.pool));
        for step in begun {
            match self.plan.tripped.contains_key(&step.scope) {
                true => self.wait_for_confirmation(step),
                false => actions.steps.push(step),
            }
        }
        // An attempt that the cloud may refuse must not use up the cool-off of a pool.
        let mut seekers: Vec<_> = seekers.into_iter().zip(choices).collect();
        seekers.sort_by_key(|(_, choice)| matches!(choice, NodeChoice::Try(_)));
        for (seeker, choice) in seekers {
            let (pool, address) = (seeker.pool, seeker.address);
            let (begin, verdict) = self.settle(seeker, choice);
            actions.steps.extend(begin);
            self.plan.verdicts.entry(pool.key.clone()).or_default().push((address, verdict));
        }
        self.count_addresses_that_wait_for_unknown_ones();
        for (key, verdicts) in &mut self.plan.verdicts {
            restore_order(verdicts, self.world.pool(key));
        }
        self.plan.steps = actions.steps;
        self.hold_back_what_does_not_fit();
        self.hold_back_what_is_outdated();
        self.evict(ranked);
        if !crate::sabotaged!(NeverPublished) {
            records::publish(self.world, ranked, &mut self.plan, self.now);
        }
        if let Some(last) = self.world.last_steps {
            self.leave_to_next_leader(last);
        }
        self.plan
    }

    /// Keeps only the last steps of this leader. The statuses are written nevertheless: after a hand-over, the next leader
    /// relies on them where a cloud shows changes late.
    fn leave_to_next_leader(&mut self, last: LastSteps) {
        for step in std::mem::take(&mut self.plan.steps) {
            if self.is_last_step(&step, last) {
                self.plan.steps.push(step);
                continue;
            }
            let Action::Begin(entry) = &step.action else { continue };
            if let Some(vm) = &entry.from
                && let (Some(pool), Some((node, _))) = (self.world.pool(&step.pool), self.world.node_of(vm))
            {
                // Its VM still serves the address.
                self.leave_mark(pool, node);
            }
            // If it is uncertain where the address is, or a VM of others holds it, the verdict stays: the status must not
            // report the address as attached.
            let is_attached = match self.world.fact(&step.scope, step.address) {
                Some(Fact { holding: Holding::Free, .. }) => false,
                Some(Fact { holding: Holding::By(vm), is_unconfirmed: false, .. })
                    if self.world.node_of(vm).is_some() =>
                {
                    true
                }
                _ => continue,
            };
            if !entry.releases && !entry.repeats_attach() {
                let to = entry.to.as_ref().map(|to| to.node.clone());
                let left = Verdict::LeftToNextLeader { to, is_attached };
                self.set_verdict(&step.pool, step.address, left);
            }
        }
        self.plan.creations.clear();
        self.plan.records.clear();
        self.plan.evictions.clear();
    }

    /// Whether the address of a step is on no VM.
    fn is_free(&self, step: &Step) -> bool {
        let fact = self.world.fact(&step.scope, step.address);
        fact.is_some_and(|fact| fact.holding == Holding::Free)
    }

    fn is_last_step(&self, step: &Step, last: LastSteps) -> bool {
        let Some(pool) = self.world.pool(&step.pool) else { return false };
        let entry = match &step.action {
            Action::Begin(entry) => Some(entry),
            _ => pool.entry(step.address),
        };
        let is_free = self.is_free(step);
        let has_target = entry.is_some_and(|entry| entry.to.is_some());
        match last {
            LastSteps::Urgent => {
                let was_served = is_free && pool.last_holders.contains_key(&step.address);
                has_target && (step.is_urgent || was_served)
            }
            LastSteps::Attach => {
                let attaches =
                    matches!(step.action, Action::Attach(_) | Action::Replace(_) | Action::NoteEphemeral);
                is_free && has_target && attaches
            }
            LastSteps::Nothing => false,
        }
    }

    /// Adds to the verdict of an address in an unknown state how many addresses wait for this state. It does not list
    /// them, because they may belong to other tenants.
    fn count_addresses_that_wait_for_unknown_ones(&mut self) {
        // Usually no state is unknown. Skip the pass over all addresses then.
        if self.blocked.slots.iter().next().is_none() {
            return;
        }
        let (mut waiting, mut scopes) = (BTreeMap::<Address, usize>::new(), BTreeSet::new());
        for (key, verdicts) in &self.plan.verdicts {
            for (_, verdict) in verdicts {
                if let Verdict::Waits(Waits::ForStateOf(unknown)) = verdict {
                    *waiting.entry(*unknown).or_default() += 1;
                    scopes.extend(self.world.pool(key).map(|pool| pool.scope.clone()));
                }
            }
        }
        for (address, verdict) in self.plan.verdicts.values_mut().flatten() {
            if let (Verdict::Unknown(why), Some(count)) = (&mut *verdict, waiting.get(address)) {
                let others = match count {
                    1 => "1 other address waits",
                    _ => &format!("{count} other addresses wait"),
                };
                *why = format!("{why}; {others} until this state is known").into();
            }
        }
        scopes.iter().for_each(|scope| self.read_again_within(scope, WAITED_FOR_AGE_MAX));
    }

    /// Whether a tripped breaker allows a step of an unfinished move: it claims or finishes the journal entry, or it is
    /// needed to attach a free address.
    fn takes_nothing(&self, step: &Step) -> bool {
        match &step.action {
            Action::Claim | Action::Finish => true,
            Action::Attach(_) | Action::NoteEphemeral | Action::Replace(_) | Action::Restore(_) => {
                self.is_free(step)
            }
            _ => false,
        }
    }

    /// Holds back a step of a scope whose breaker is tripped, and changes the verdict of its address.
    fn wait_for_confirmation(&mut self, step: Step) {
        let Some(tripped) = self.plan.tripped.get(&step.scope) else { return };
        let waits = Verdict::Waits(Waits::ForConfirmation(tripped.clone()));
        self.set_verdict(&step.pool, step.address, waits);
    }

    /// Holds back new moves that do not fit into the object's status.
    fn hold_back_what_does_not_fit(&mut self) {
        let begins = |step: &Step| matches!(step.action, Action::Begin(_));
        let mut begun: BTreeMap<&PoolKey, usize> = BTreeMap::new();
        for step in self.plan.steps.iter().filter(|step| begins(step)) {
            *begun.entry(&step.pool).or_default() += 1;
        }
        let tight = |(key, begun): (&PoolKey, usize)| {
            let pool = self.world.pool(key)?;
            // A pool with fewer addresses and journal entries than `ADDRESSES_MAX` always has room.
            let most = pool.addresses.len() + begun + 1;
            let moves = matches!(&pool.journal, Journal::Known(moves) if most + moves.len() > ADDRESSES_MAX);
            moves.then(|| (key.clone(), pool.room()))
        };
        let mut room: BTreeMap<PoolKey, (usize, usize)> = begun.into_iter().filter_map(tight).collect();
        // A creation that starts now also needs room in the journal.
        for creation in &self.plan.creations {
            if let (CreationAction::Begin { .. }, Some((_, entries))) =
                (&creation.action, room.get_mut(&creation.pool))
            {
                *entries = entries.saturating_sub(1);
            }
        }
        let mut held_back = Vec::new();
        self.plan.steps.retain(|step| {
            let Some((addresses, entries)) = room.get_mut(&step.pool).filter(|_| begins(step)) else {
                return true;
            };
            let is_new = self.world.pool(&step.pool).is_some_and(|pool| !pool.is_remembered(step.address));
            let fits = *entries > 0 && (!is_new || *addresses > 0);
            if fits {
                (*entries, *addresses) = (*entries - 1, *addresses - usize::from(is_new));
            } else {
                held_back.push((step.pool.clone(), step.address));
            }
            fits
        });
        for (pool, address) in held_back {
            self.set_verdict(&pool, address, Verdict::Waits(Waits::ForRoom));
        }
    }

    /// Holds back steps that depend on objects which the controller can't read, or whose watch has been silent. In the
    /// second case the steps wait for a list.
    fn hold_back_what_is_outdated(&mut self) {
        let World { silent, unread, .. } = *self.world;
        if unread.has(Kind::Pools) {
            for creation in std::mem::take(&mut self.plan.creations) {
                if let Some(lacking) = self.plan.lacking.get_mut(&creation.pool) {
                    *lacking = Lacking::Unreadable(Kinds::default().with(Kind::Pools));
                }
            }
        }
        if silent.has(Kind::Pools) {
            // A person may have deleted the object, or may need fewer addresses now. All other actions write the object
            // first, which fails if somebody has changed it.
            let is_ask = |creation: &CreationStep| matches!(creation.action, CreationAction::Ask { .. });
            let creations = std::mem::take(&mut self.plan.creations);
            let (asks, others): (Vec<_>, _) = creations.into_iter().partition(is_ask);
            self.plan.creations = others;
            asks.iter().for_each(|ask| self.await_list(&ask.pool, Kinds::default().with(Kind::Pools)));
        }
        // Until the pods of an object are counted, its status would be wrong, so it is not written. If the controller
        // can't read the pods or their owners, the verdicts say so instead.
        let is_readable =
            |key: &&PoolKey| self.world.pool(key).is_some_and(|pool| !pool.pods_from.overlaps(unread));
        self.plan.awaits_list.extend(self.world.uncounted.iter().filter(is_readable).cloned());
        if silent.is_empty() && unread.is_empty() {
            return;
        }
        let mut steps = std::mem::take(&mut self.plan.steps);
        steps.retain(|step| {
            let (silent, unread) = self.outdated_kinds(step);
            if !unread.is_empty() {
                self.set_verdict(&step.pool, step.address, Verdict::Unknown(unread.unread_message().into()));
            } else if !silent.is_empty() {
                self.await_list(&step.pool, silent);
            }
            let is_held_back = !silent.is_empty() || !unread.is_empty();
            if is_held_back {
                self.plan.marks.uncertain.insert(step.pool.kind);
            }
            !is_held_back
        });
        self.plan.steps = steps;
    }

    /// Asks for a list of kinds whose watch has been silent. Until then the status of the pool stays as it is.
    fn await_list(&mut self, pool: &PoolKey, silent: Kinds) {
        self.plan.relist.add(silent);
        self.plan.awaits_list.insert(pool.clone());
    }

    /// Whether a step depends on objects that may have changed unseen.
    fn rests_on_outdated(&self, step: &Step) -> bool {
        let (silent, unread) = self.outdated_kinds(step);
        !silent.is_empty() || !unread.is_empty()
    }

    /// The kinds that a step depends on and whose watch has been silent, and those that the controller can't read.
    fn outdated_kinds(&self, step: &Step) -> (Kinds, Kinds) {
        let needed = self.depends_on(step);
        let silent = match step.action {
            // A silent watch of pools does no harm: the write of the journal fails if the object has changed. But while the
            // cloud may show old holders, only the status of the other objects says which VMs hold an address.
            Action::Begin(_) if !self.is_late(step) => self.world.silent.without(Kind::Pools),
            // If the move was abandoned by mistake, a later plan starts it again.
            Action::Abandon => Kinds::default(),
            _ => self.world.silent,
        };
        (needed.and(silent), needed.and(self.world.unread))
    }

    /// Whether the cloud may not show yet what an earlier leader did with the address of a step.
    fn is_late(&self, step: &Step) -> bool {
        let as_of = self.world.fact(&step.scope, step.address).map(|fact| fact.as_of);
        self.world.may_be_late(step.scope.provider, as_of)
    }

    /// The kinds of objects that must be up to date for a step. None, unless the step starts or abandons a move, takes
    /// an address from the VM that holds it, or releases it.
    fn depends_on(&self, step: &Step) -> Kinds {
        let Some(pool) = self.world.pool(&step.pool) else { return Kinds::default() };
        let fact = self.world.fact(&step.scope, step.address);
        let is_held = fact.is_none_or(|fact| fact.holding != Holding::Free);
        // If the node of the holder has recovered, pods may decide whether it keeps the address.
        let has_recovered = |entry: &Move| {
            let node = entry.from.as_ref().and_then(|vm| self.world.node_of(vm));
            node.is_some_and(|(_, node)| !matches!(node.readiness, Readiness::NotReadySince(_)))
        };
        let of_move = |entry: &Move| pool.depends_on(entry.is_voluntary || has_recovered(entry));
        match (&step.action, pool.entry(step.address)) {
            (Action::Begin(entry), _) => pool.depends_on(entry.is_voluntary).with(Kind::Pools),
            (Action::Detach(_), Some(entry)) => of_move(entry),
            (Action::Attach(_) | Action::Replace(_), Some(entry)) if is_held => of_move(entry),
            (Action::Abandon, Some(entry)) => pool.depends_on(entry.is_voluntary && is_held),
            (Action::Release(_), _) => Kinds::default().with(Kind::Pools),
            _ => Kinds::default(),
        }
    }

    /// Replaces the verdict of an address.
    fn set_verdict(&mut self, pool: &PoolKey, address: Address, verdict: Verdict) {
        let present = self.plan.verdicts.get_mut(pool).into_iter().flatten();
        for (_, present) in present.filter(|(of, _)| *of == address) {
            present.clone_from(&verdict);
        }
    }

    /// Plans evictions from nodes without an address.
    fn evict(&mut self, ranked: &[&'a Member]) {
        if !ranked.iter().any(|member| member.pool.policy.evicts) {
            return;
        }
        let mut busy = self.busy(ranked);
        self.keep_marks.values().for_each(|holders| busy.add(&holders.slots));
        self.left_alone.values().for_each(|nodes| busy.add(nodes));
        for member in ranked {
            let next = evictions::next(self.world, member, &self.plan, &self.holding, &busy, self.now);
            let pool = &member.pool.key;
            self.ask_again(next.ask_again);
            let needed = member.pool.depends_on(true).with(Kind::Pools);
            let (silent, unread) = (needed.and(self.world.silent), needed.and(self.world.unread));
            if let Some(node) = next.from.filter(|_| unread.is_empty()) {
                match silent.is_empty() {
                    true => self.plan.evictions.push(Eviction { pool: pool.clone(), node }),
                    false => self.plan.relist.add(silent),
                }
            }
            // What is reported about pods must not rest on kinds that can't be read.
            let misplaced_pods = next.misplaced_pods.filter(|_| unread.is_empty());
            self.plan.misplaced_pods.extend(misplaced_pods.map(|pods| (pool.clone(), pods)));
        }
    }

    /// Chooses nodes: first nodes that hold no address. Then, if the cloud refuses a second address on a VM, nodes that may
    /// hold one.
    fn choose_nodes(&self, seekers: &[Seeker<'a>], ranked: &[&'a Member]) -> Vec<NodeChoice> {
        let taken = self.taken(ranked);
        let is_free = |slot| !taken.contains(slot) && !self.is_avoided(slot);
        let is_blocked = |slot| self.blocked.slots.contains(slot);
        let (mut groups, mut eligible) = self.group_seekers(seekers, ranked);
        let mut choices = vec![NodeChoice::NoNode; seekers.len()];
        let is_clear = |slot| is_free(slot) && !is_blocked(slot);
        self.assign(&mut choices, &mut groups, &eligible, NodeChoice::Use, is_clear);
        if self.blocked.slots.is_empty() {
            return choices;
        }
        let may_be_free = |slot: &usize| !taken.contains(*slot) && self.world.stands_for_machine(*slot);
        let name = |slot: &usize| self.world.at(*slot).map(|(name, _)| name);
        let mut blocked: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        eligible.retain(|(at, _)| choices[*at] == NodeChoice::NoNode);
        for (at, group) in &eligible {
            let first = blocked.entry(*group).or_insert_with(|| {
                let blocked = groups[*group].fit.iter().filter(|slot| is_blocked(*slot));
                blocked.filter(may_be_free).min_by_key(name)
            });
            choices[*at] = first.map_or(NodeChoice::NoNode, NodeChoice::Blocked);
        }
        eligible.retain(|(at, _)| choices[*at] != NodeChoice::NoNode && self.may_try_blocked(&seekers[*at]));
        let may_be_tried = |slot| is_free(slot) && is_blocked(slot);
        self.assign(&mut choices, &mut groups, &eligible, NodeChoice::Try, may_be_tried);
        choices
    }

    /// Chooses free nodes for the addresses in `eligible`. An address that gets none keeps its choice.
    fn assign(
        &self,
        choices: &mut [NodeChoice],
        groups: &mut [Group],
        eligible: &[(usize, usize)],
        choice: impl Fn(usize) -> NodeChoice,
        is_free: impl Fn(usize) -> bool,
    ) {
        let of_groups: Vec<usize> = eligible.iter().map(|(_, group)| *group).collect();
        for ((at, _), slot) in eligible.iter().zip(place(self.world, groups, &of_groups, is_free)) {
            if let Some(slot) = slot {
                choices[*at] = choice(slot);
            }
        }
    }

    /// The addresses that may get a node now, each with its group. Addresses of a group may go to the same nodes.
    fn group_seekers(
        &self,
        seekers: &[Seeker<'a>],
        ranked: &[&'a Member],
    ) -> (Vec<Group>, Vec<(usize, usize)>) {
        let mut groups = Vec::new();
        let mut index: BTreeMap<(usize, Option<Arc<str>>), usize> = BTreeMap::new();
        let leaving: BTreeSet<Address> = seekers.iter().map(|seeker| seeker.address).collect();
        let mut eligible = Vec::with_capacity(seekers.len());
        for (at, seeker) in seekers.iter().enumerate() {
            let is_avoided =
                self.world.avoid_addresses.get(&seeker.address).is_some_and(|pause| self.now < pause.until);
            let is_unwritable = self.world.unwritable.contains_key(&seeker.pool.key);
            if is_avoided || is_unwritable {
                continue;
            }
            let group = *index.entry((seeker.rank, seeker.region.clone())).or_insert_with(|| {
                let zones =
                    (seeker.pool.policy.spread == Spread::Zone).then(|| self.zones(seeker.pool, &leaving));
                let fit = &ranked[seeker.rank].fit;
                let fit = seeker
                    .region
                    .as_ref()
                    .map_or_else(|| fit.clone(), |region| self.world.in_region(fit, region));
                groups.push(Group { fit, zones });
                groups.len() - 1
            });
            eligible.push((at, group));
        }
        (groups, eligible)
    }

    /// Whether an address may be tried on a node that may hold another one. All of these must be true: the cloud refuses a
    /// second address on a VM; the controller has asked about every address of the scope, because otherwise a listing
    /// answers soon; and the address is on no VM, or on a VM without a Ready node that keeps it after a refusal.
    fn may_try_blocked(&self, seeker: &Seeker<'_>) -> bool {
        let Scope { provider, .. } = &seeker.pool.scope;
        let stays_after_refusal = |held: &HeldBy| {
            let node = self.world.node_of(&held.vm);
            held.is_ours
                && self.world.moves_in_one_call.contains(provider)
                && node.is_none_or(|(_, node)| matches!(node.readiness, Readiness::NotReadySince(_)))
        };
        self.world.refuses_occupied.contains(provider)
            && !self.blocked.has_unasked(&seeker.pool.scope)
            && seeker.holder.as_ref().is_none_or(stays_after_refusal)
    }

    /// Nodes that are `taken`, or whose VM refused an address recently. Does not include nodes that only an address in an
    /// unknown state blocks.
    fn busy(&self, ranked: &[&'a Member]) -> Bits {
        let mut busy = self.taken(ranked);
        let avoided = self.world.avoid_machines.keys().filter_map(|vm| self.world.slot_of_machine(vm));
        avoided.filter(|slot| self.is_avoided(*slot)).for_each(|slot| busy.set(slot, true));
        busy
    }

    /// Whether the VM of a node refused an address recently.
    fn is_avoided(&self, slot: usize) -> bool {
        let machine = self.world.at(slot).and_then(|(_, node)| node.machine.as_ref());
        machine.is_some_and(|(_, vm)| moves::is_avoided(self.world, vm, self.now))
    }

    /// Nodes whose VM holds an address, is part of a move, or may be part of one.
    fn taken(&self, ranked: &[&'a Member]) -> Bits {
        let mut taken = self.holding.clone();
        let mut mark = |vm: &VmId| {
            if let Some(slot) = self.world.slot_of_machine(vm) {
                taken.set(slot, true);
            }
        };
        self.world.in_flight.machines.iter().for_each(&mut mark);
        self.world.reserved_machines.iter().for_each(&mut mark);
        for member in ranked {
            if let Journal::Known(moves) = &member.pool.journal {
                for entry in moves.values() {
                    entry.machines().for_each(&mut mark);
                }
            }
        }
        taken
    }

    /// How many addresses of a pool each zone will have when all moves in flight have ended. The `leaving` addresses need
    /// another node, so they don't count.
    fn zones(&self, pool: &Pool, leaving: &BTreeSet<Address>) -> BTreeMap<Option<Arc<str>>, usize> {
        let mut zones = BTreeMap::new();
        for address in &pool.addresses {
            let entry = match &pool.journal {
                Journal::Known(moves) => moves.get(address),
                _ => None,
            };
            let vm = match (entry, self.world.fact(&pool.scope, *address).map(|fact| &fact.holding)) {
                (Some(entry), _) => entry.to.as_ref().map(|to| &to.vm),
                (None, Some(Holding::By(vm))) if !leaving.contains(address) => Some(vm),
                _ => None,
            };
            if let Some((_, node)) = vm.and_then(|vm| self.world.node_of(vm)) {
                *zones.entry(node.zone.clone()).or_default() += 1;
            }
        }
        zones
    }

    /// The verdict for an address that needs a node, and the step that starts its move if it got one.
    fn settle(&mut self, seeker: Seeker<'_>, choice: NodeChoice) -> (Option<Step>, Verdict) {
        let Seeker { rank, pool, address, region, holder, .. } = seeker;
        let is_voluntary = holder.as_ref().is_some_and(|holder| holder.why.is_voluntary());
        let needed = pool.depends_on(is_voluntary).with(Kind::Pools);
        let silent = needed.and(self.world.silent).without(Kind::Pools);
        // Some verdicts remove the mark of the holder's node. They must not be based on outdated objects.
        let node = holder.as_ref().and_then(|holder| holder.node.clone());
        if let Some(node) = node.filter(|_| !silent.is_empty()) {
            self.leave_mark(pool, &node);
        }
        let to = choice.slot().and_then(|slot| self.world.at(slot)).and_then(|(name, node)| {
            let (_, vm) = node.machine.as_ref()?;
            Some(Target { vm: vm.clone(), node: name.clone() })
        });
        let unread = needed.and(self.world.unread);
        if !unread.is_empty() {
            self.plan.marks.uncertain.insert(pool.key.kind);
            return (None, Verdict::Unknown(unread.unread_message().into()));
        }
        if let Some(pause) = self.world.avoid_addresses.get(&address).filter(|pause| self.now < pause.until) {
            self.ask_again(Some(pause.until));
            return (None, Verdict::Waits(Waits::ForRetry(pause.clone())));
        }
        if let Some(until) = self.world.unwritable.get(&pool.key) {
            self.ask_again(Some(*until));
            let pause = Pause { until: *until, why: UNWRITABLE.into() };
            return (None, Verdict::Waits(Waits::ForRetry(pause)));
        }
        if let NodeChoice::Blocked(slot) = choice
            && let Some(unknown) = self.blocked.address_on(self.world, slot)
        {
            let tripped = self.plan.tripped.get(&pool.scope).cloned().map(Waits::ForConfirmation);
            return (None, Verdict::Waits(tripped.unwrap_or(Waits::ForStateOf(unknown))));
        }
        if to.is_none() {
            match &holder {
                None => return (None, self.no_node(pool, region)),
                Some(HeldBy { vm, is_ours: false, .. }) if !crate::sabotaged!(AuthorityIgnored) => {
                    return (None, Verdict::Foreign(vm.clone()));
                }
                // Only a drained node certainly does not need the address. Any other may still serve it or come back.
                Some(HeldBy { why: Why::Drained, .. }) => {}
                Some(HeldBy { vm, node: Some(node), .. })
                    if self
                        .world
                        .fact(&pool.scope, address)
                        .is_some_and(|fact| is_unconfirmed_on(pool, address, fact))
                        && self.rests(address, vm).is_none()
                        && !self.plan.tripped.contains_key(&pool.scope) =>
                {
                    let holder = Target { vm: vm.clone(), node: node.clone() };
                    return self.ask_for_again(pool, address, holder);
                }
                Some(HeldBy { vm, node, why, .. }) => {
                    if node.is_some() && !silent.is_empty() {
                        self.await_list(&pool.key, silent);
                    }
                    return (None, Verdict::NoMatch(vm.clone(), node.clone(), *why));
                }
            }
        }
        let from = holder.map(|holder| holder.vm).or_else(|| self.left(pool, address, to.as_ref()).cloned());
        if let Some(waits) = self.held_back(rank, pool, is_voluntary, to.is_some()) {
            return (None, Verdict::Waits(waits));
        }
        let verdict = Verdict::Moving(to.as_ref().map(|to| to.node.clone()));
        let entry = self.entry(pool, address, from, to, is_voluntary);
        let is_urgent = entry.from.is_some() && !is_voluntary;
        let assigns = entry.to.is_some();
        let step = step(pool, address, is_urgent, Action::Begin(entry));
        if pool.policy.mode == Mode::Observe {
            return (None, Verdict::WouldStep(step.to_string()));
        }
        self.progress[rank].voluntary += usize::from(is_voluntary);
        self.progress[rank].assigning += usize::from(assigns);
        (Some(step), verdict)
    }

    /// The verdict for a free address that no node can take.
    fn no_node(&self, pool: &Pool, region: Option<Arc<str>>) -> Verdict {
        let others = |region: &Arc<str>| self.world.other_regions(self.world.member(&pool.key)?, region);
        match region.as_ref().and_then(others).zip(region) {
            Some((others, region)) => Verdict::OtherRegion(region, others),
            None => Verdict::NoNode,
        }
    }

    /// What a possible move has to wait for; none if it may start.
    fn held_back(&mut self, rank: usize, pool: &Pool, is_voluntary: bool, assigns: bool) -> Option<Waits> {
        let progress = &self.progress[rank];
        if let Some(tripped) = self.plan.tripped.get(&pool.scope) {
            return Some(Waits::ForConfirmation(tripped.clone()));
        }
        if is_voluntary && pool.policy.concurrent_moves_max.is_some_and(|max| progress.voluntary >= max) {
            return Some(Waits::ForBudget);
        }
        if is_voluntary && progress.settled < pool.policy.healthy_min {
            return Some(Waits::ForHealthy);
        }
        if assigns && !pool.policy.cool_off.is_zero() {
            let ends = pool.last_assignment.map(|last| later(last, pool.policy.cool_off));
            // The last assignment can't be in the future. If it is, the clock of an earlier leader was wrong. The status
            // has whole seconds.
            let latest = later(self.now, pool.policy.cool_off.saturating_add(Duration::from_secs(1)));
            if let Some(ends) = ends.filter(|ends| self.now < *ends && *ends <= latest) {
                self.ask_again(Some(ends));
                return Some(Waits::ForCoolOff(Some(ends)));
            }
            if progress.assigning > 0 {
                // The cool-off starts when the assignment in flight ends, so its end is not known yet.
                return Some(Waits::ForCoolOff(None));
            }
        }
        None
    }
}

/// The steps of a plan. No two calls to a cloud use the same VM.
#[derive(Default)]
struct DisjointSteps {
    steps: Vec<Step>,
    machines: BTreeSet<VmId>,
}

impl DisjointSteps {
    /// Adds a step of an unfinished move, unless an earlier call uses one of its VMs.
    fn add(&mut self, step: Step, world: &World) {
        if step.action.is_call() {
            let entry = world.pool(&step.pool).and_then(|pool| pool.entry(step.address));
            let machines: Vec<_> = entry.into_iter().flat_map(Move::machines).cloned().collect();
            if machines.iter().any(|vm| self.machines.contains(vm)) {
                return;
            }
            self.machines.extend(machines);
        }
        self.steps.push(step);
    }
}

fn step(pool: &Pool, address: Address, is_urgent: bool, action: Action) -> Step {
    let ptr = pool.ptrs.get(&address).cloned();
    Step { pool: pool.key.clone(), scope: pool.scope.clone(), address, is_urgent, action, ptr }
}

/// The last holder of an address, if it had an ephemeral address before.
fn ephemeral_replaced_on(pool: &Pool, address: Address) -> Option<&VmId> {
    pool.last_holders.get(&address).filter(|_| pool.replaced_ephemeral.contains(&address))
}

/// The VM of a move whose ephemeral address was replaced with this address: the source or, without a source, a target
/// to which the address returns.
fn to_restore(pool: &Pool, address: Address, from: Option<&VmId>, to: Option<&Target>) -> BTreeSet<VmId> {
    let end = from.or_else(|| to.map(|to| &to.vm));
    end.filter(|vm| ephemeral_replaced_on(pool, address) == Some(*vm)).into_iter().cloned().collect()
}

/// Whether an address may not be on the VM that the cloud reports, because the change that attached it failed. If the
/// status says that it was there before, the failed change was another one.
fn is_unconfirmed_on(pool: &Pool, address: Address, fact: &Fact) -> bool {
    let was_there = || pool.held.contains(&address) && pool.last_holders.get(&address) == fact.holder();
    fact.is_unconfirmed && !was_there()
}

/// Sorts the verdicts in the order of the spec: those of seekers were added last.
fn restore_order(verdicts: &mut [(Address, Verdict)], pool: Option<&Pool>) {
    let Some(pool) = pool else { return };
    let is_in_order = verdicts.iter().map(|(address, _)| address).eq(pool.addresses.iter());
    if !is_in_order {
        let position: BTreeMap<_, _> =
            pool.addresses.iter().enumerate().map(|(at, address)| (*address, at)).collect();
        verdicts.sort_by_key(|(address, _)| (position.get(address).copied().unwrap_or(usize::MAX), *address));
    }
}

fn holding(world: &World) -> Bits {
    let mut holding = Bits::default();
    if crate::sabotaged!(PoolsPlannedAlone) {
        return holding;
    }
    world.holders().for_each(|slot| holding.set(slot, true));
    holding
}

#[cfg(test)]
mod tests;
