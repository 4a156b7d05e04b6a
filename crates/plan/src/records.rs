//! DNS names that follow addresses.
//!
//! In: which addresses are on nodes that should have them, and what is known about each set of records. Out: sets to
//! read or write, and what to report about each. The controller never changes a set with the mark of another controller
//! and, without `adopt`, no unmarked set with values of others. It never removes the last addresses of a set while its
//! object is not being deleted, and changes nothing that is unknown.
//!
//! For each set of records of an object, the first line that applies:
//!
//! ```text
//! an older object has the same name                         leave it            Conflict
//! the controller can't act on the object, or does not       leave it            Unread
//!   know its owner ID yet
//! a read or write is in flight                              wait                Publishing
//! the backoff after a failure has not ended                 wait                Failed
//! it was never read                                         read it             Unread
//! it has the mark of another controller                     leave it            OwnedByOther
//! it has no mark, contains a value that is not an address
//!   of this object, and `adopt` is not set                  leave it            NotOurs
//! the object is being deleted: policy.onDelete is Detach    delete it           Publishing, Gone
//!                              otherwise                    leave it            Left
//! no address should be in it                                leave it            LastKept, Nothing
//! it contains what it should, with this controller's mark   leave it            Yes
//! mode Observe                                              leave it            Would
//! the controller can't read a kind that decides about it    leave it            Unreadable
//! the watch of such a kind has been silent                  list it again       Publishing
//! otherwise                                                 write it            Publishing
//! ```
//!
//! Nodes, pods and the objects that may own the name decide about a set. If addresses of the object are published,
//! objects that may own these addresses decide about a removal, too.
//!
//! An address should be in the set if it is on a matching node. In three cases an address stays in the set, but is not
//! added: while its state is unknown; while it moves to another node, but not longer than resolvers cache an answer
//! anyway; and for a moment after it has lost its match, because often the planner finds another node, or the pod comes
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::member::Member;
use crate::{
    Address, DnsProvider, Holding, InFlightRecord, Kind, Kinds, Mode, Plan, Pool, PoolKey, Publication,
    Published, Readiness, RecordAction, RecordKind, RecordName, RecordSet, RecordStep, Source, Tenancy,
    Timestamp, Verdict, Waits, World, later,
};

/// How often the controller reads a set of records again, because someone else may have changed it.
const READ_EVERY: Duration = Duration::from_secs(300);

/// After this time, reading a set again is as urgent as a change.
const REFRESH_MAX: Duration = Duration::from_secs(3_600);

/// The TTL to assume for moving addresses if the object has none.
const WHILE_MOVING_DEFAULT: Duration = Duration::from_secs(30);

/// How long an address that has lost its match stays published. Half of the TTL, if that is shorter.
const UNMATCHED_STAYS: Duration = Duration::from_secs(2);

/// Which addresses a name should contain.
#[derive(Default)]
struct Wanted {
    /// Addresses that should be in it.
    present: BTreeSet<Address>,
    /// Addresses that stay in it if they are in it already.
    kept: BTreeSet<Address>,
    /// All addresses of the object.
    own: BTreeSet<Address>,
    /// When the first of the kept addresses has to leave.
    until: Option<Timestamp>,
    /// When each address without a match lost it.
    unmatched: BTreeMap<Address, Timestamp>,
}

impl Wanted {
    /// Keeps an address from `since` for the duration `stays`.
    fn keep(&mut self, address: Address, since: Timestamp, stays: Duration, now: Timestamp) {
        let until = later(since, stays);
        if now < until {
            self.kept.insert(address);
            self.until = self.until.into_iter().chain([until]).min();
        }
    }
}

/// Adds the steps for the DNS names of pools to a plan that has verdicts for all addresses.
pub(crate) fn publish(world: &World, ranked: &[&Member], plan: &mut Plan, now: Timestamp) {
    // The zone is not part of the key: the same name can be written with different zones.
    let mut taken: BTreeMap<(DnsProvider, Arc<str>, RecordKind), &PoolKey> = BTreeMap::new();
    let stays = |member: &&&Member| member.pool.policy.mode != Mode::Leaving;
    let published = ranked.iter().filter(stays).filter_map(|member| member.pool.publication.as_ref());
    let wanted_on: BTreeSet<_> = published.map(|wanted| (wanted.provider, &wanted.name)).collect();
    for member in ranked {
        let pool = &*member.pool;
        let Some(publication) = &pool.publication else { continue };
        // An object that is being deleted leaves the name to another object that uses it. Otherwise the name would be
        // empty.
        let is_left = pool.policy.mode == Mode::Leaving
            && wanted_on.contains(&(publication.provider, &publication.name));
        let wanted = wanted(world, member, publication, plan, now);
        plan.unmatched.extend(&wanted.unmatched);
        let known = wanted.own.iter().chain(&publication.published);
        let mut kinds: BTreeSet<_> = known.copied().map(RecordKind::of).collect();
        if kinds.is_empty() {
            kinds.insert(RecordKind::A);
        }
        let mut due = wanted.until;
        for kind in kinds {
            let Publication { provider, zone, name, .. } = publication;
            let name =
                RecordName { provider: *provider, zone: Arc::clone(zone), name: Arc::clone(name), kind };
            let key = (name.provider, Arc::clone(&name.name), name.kind);
            let older = taken.get(&key).copied();
            let next = match older {
                _ if is_left => RecordDecision::without_action(Published::Left),
                Some(older) => RecordDecision::without_action(Published::Conflict(older.clone())),
                None => next(world, pool, publication, &name, &wanted, now),
            };
            if !is_left {
                taken.entry(key).or_insert(&pool.key);
            }
            due = due.into_iter().chain(next.ask_again).min();
            plan.relist.add(next.relist);
            if let Some(action) = next.action {
                plan.records.push(RecordStep { pool: pool.key.clone(), name: name.clone(), action });
            }
            plan.published.entry(pool.key.clone()).or_default().push((name, next.verdict));
        }
        plan.ask_again = plan.ask_again.into_iter().chain(due).min();
    }
}

/// What to do with a set, what to report, and when to plan again.
struct RecordDecision {
    action: Option<RecordAction>,
    verdict: Published,
    ask_again: Option<Timestamp>,
    /// Kinds of objects to list again, because the next step waits for the list.
    relist: Kinds,
}

impl RecordDecision {
    fn without_action(verdict: Published) -> Self {
        Self { action: None, verdict, ask_again: None, relist: Kinds::default() }
    }
}

fn next(
    world: &World,
    pool: &Pool,
    publication: &Publication,
    name: &RecordName,
    wanted: &Wanted,
    now: Timestamp,
) -> RecordDecision {
    let Some(us) = world.dns_owner.as_ref().filter(|_| pool.policy.mode != Mode::Refused) else {
        return RecordDecision::without_action(Published::Unread);
    };
    let under_way = world.in_flight.records.get(name);
    if under_way == Some(&InFlightRecord::Write) {
        return RecordDecision::without_action(Published::Publishing);
    }
    if let Some(pause) = world.avoid_records.get(name).filter(|pause| now < pause.until) {
        return RecordDecision {
            ask_again: Some(pause.until),
            ..RecordDecision::without_action(Published::Failed(pause.clone()))
        };
    }
    // While a read is in flight, the report uses the old contents, and the controller changes nothing.
    let is_reading = under_way.is_some();
    let read = |action, verdict| RecordDecision {
        action: (!is_reading).then_some(action),
        ..RecordDecision::without_action(verdict)
    };
    let Some(fact) = world.records.get(name) else { return read(RecordAction::Read, Published::Unread) };
    let RecordSet { values, ttl, owner } = &fact.set;
    let is_in_kind = |address: &&Address| RecordKind::of(**address) == name.kind;
    let stale_at = later(fact.as_of, READ_EVERY);
    let stale_at = world.record_reads_due.get(name).map_or(stale_at, |due| stale_at.max(*due));
    let verdict = |verdict| match stale_at <= now {
        // It must not wait for ever for what other requests leave.
        true if later(fact.as_of, REFRESH_MAX) <= now => read(RecordAction::Read, verdict),
        true => read(RecordAction::ReadAgain, verdict),
        false => RecordDecision { ask_again: Some(stale_at), ..RecordDecision::without_action(verdict) },
    };
    let is_ours = owner.as_ref() == Some(us);
    if !crate::sabotaged!(RecordOwnerIgnored) {
        match owner {
            Some(other) if !is_ours => return verdict(Published::OwnedByOther(Arc::clone(other))),
            None if !publication.adopts && !values.is_subset(&wanted.own) => {
                return verdict(Published::NotOurs(values.clone()));
            }
            _ => {}
        }
    }
    if pool.policy.mode == Mode::Leaving {
        return match (pool.policy.detaches_on_delete, is_ours) {
            (false, _) => RecordDecision::without_action(Published::Left),
            (true, false) => RecordDecision::without_action(Published::Gone),
            (true, true) => remove(world, &fact.set, is_reading),
        };
    }
    let kept = wanted.kept.intersection(values);
    let target: BTreeSet<Address> = wanted.present.iter().chain(kept).filter(is_in_kind).copied().collect();
    if target.is_empty() && !crate::sabotaged!(RecordEmptied) {
        return verdict(match values.is_empty() {
            true => Published::Nothing,
            false => Published::LastKept(values.clone()),
        });
    }
    let is_ttl_right = publication.ttl.is_none() || ttl.is_none() || *ttl == publication.ttl;
    if target == *values && is_ttl_right && is_ours {
        return verdict(Published::Yes(target));
    }
    if pool.policy.mode == Mode::Observe {
        return verdict(Published::Would(target));
    }
    let target = RecordSet { values: target, ttl: publication.ttl, owner: Some(Arc::clone(us)) };
    write(world, pool, publication, &fact.set, target, is_reading)
}

/// Writes a set, but not while the controller can't read a kind that decides about it, or before it has listed such a
/// kind whose watch has been silent.
fn write(
    world: &World,
    pool: &Pool,
    publication: &Publication,
    old: &RecordSet,
    new: RecordSet,
    is_reading: bool,
) -> RecordDecision {
    // An object that the controller does not know may own the name.
    let mut needed = pool.depends_on(false).with(Kind::Names);
    let is_removed = !old.values.is_subset(&new.values);
    if is_removed && publication.source == Source::Addresses {
        // Perhaps no other object owns the address any more. Then this object should keep it.
        needed = needed.with(Kind::Pools);
    }
    let unread = needed.and(world.unread);
    if !unread.is_empty() {
        return RecordDecision::without_action(Published::Unreadable(unread));
    }
    let silent = needed.and(world.silent);
    if !silent.is_empty() {
        let verdict = RecordDecision::without_action(Published::Publishing);
        return RecordDecision { relist: silent, ..verdict };
    }
    let action = (!is_reading).then(|| RecordAction::Write { old: old.clone(), new });
    RecordDecision { action, ..RecordDecision::without_action(Published::Publishing) }
}

/// Removes the records of an object that is being deleted, but not while an object that the controller has not seen may
/// want the name.
fn remove(world: &World, set: &RecordSet, is_reading: bool) -> RecordDecision {
    let names = Kinds::default().with(Kind::Names);
    if world.unread.overlaps(names) {
        return RecordDecision::without_action(Published::Unreadable(names));
    }
    let may_remove = !is_reading && !world.silent.overlaps(names);
    RecordDecision {
        action: may_remove.then(|| RecordAction::Remove(set.clone())),
        relist: names.and(world.silent),
        ..RecordDecision::without_action(Published::Publishing)
    }
}

fn wanted(world: &World, member: &Member, publication: &Publication, plan: &Plan, now: Timestamp) -> Wanted {
    match publication.source {
        Source::Addresses => of_addresses(world, &member.pool, publication, plan, now),
        Source::Nodes => of_nodes(world, member),
    }
}

fn of_addresses(
    world: &World,
    pool: &Pool,
    publication: &Publication,
    plan: &Plan,
    now: Timestamp,
) -> Wanted {
    let mut wanted = Wanted { own: pool.addresses.iter().copied().collect(), ..Wanted::default() };
    let ttl = publication.ttl.map_or(WHILE_MOVING_DEFAULT, |seconds| Duration::from_secs(seconds.into()));
    // Less than the TTL, because the removal of the address from the set takes a moment too.
    let while_moving = ttl.saturating_mul(9) / 10;
    for (address, verdict) in plan.verdicts.get(&pool.key).into_iter().flatten() {
        let is_going = |verdict: &Verdict| match verdict {
            Verdict::Moving(to) => to.is_some(),
            Verdict::Queued(_) => true,
            Verdict::LeftToNextLeader { to, .. } => to.is_some(),
            Verdict::Waits(Waits::ForRetry(_)) => {
                pool.entry(*address).is_some_and(|entry| entry.to.is_some())
            }
            _ => false,
        };
        match verdict {
            Verdict::Settled(_) => _ = wanted.present.insert(*address),
            verdict if is_going(verdict) && may_be_there(world, pool, *address) => {
                _ = wanted.kept.insert(*address)
            }
            verdict if is_going(verdict) => {
                let since = pool.moving_since.get(address).copied().unwrap_or(now);
                wanted.keep(*address, since, while_moving, now);
            }
            // The address may still be on its node, or the controller does not act on it, so its record stays.
            Verdict::Unknown(_)
            | Verdict::WouldStep(_)
            | Verdict::Waits(
                Waits::ForConfirmation(_)
                | Waits::ForNewerController
                | Waits::ForCorrection
                | Waits::ForStateOf(_),
            ) if !crate::sabotaged!(UnknownUnpublished) => _ = wanted.kept.insert(*address),
            Verdict::NoMatch(..) | Verdict::NoNode | Verdict::OtherRegion(..) | Verdict::Waits(_) => {
                let since = world.unmatched.get(address).copied().unwrap_or(now);
                wanted.unmatched.insert(*address, since);
                wanted.keep(*address, since, UNMATCHED_STAYS.min(ttl / 2), now);
            }
            // The DNS name does not contain these addresses. `Moving` and `LeftToNextLeader` get here only without a target,
            // `Unknown` and `WouldStep` only with a deliberate defect, and `Queued` never.
            Verdict::Moving(_)
            | Verdict::LeftToNextLeader { .. }
            | Verdict::Queued(_)
            | Verdict::Unknown(_)
            | Verdict::WouldStep(_)
            | Verdict::Unsupported(_)
            | Verdict::Foreign(_)
            | Verdict::OwnedBy(_)
            | Verdict::Missing
            | Verdict::Disabled
            | Verdict::Releasing
            | Verdict::Unmarked
            | Verdict::Leaving => {}
        }
    }
    wanted
}

/// Whether a moving address may be on its target already: the cloud reports it there, or its state is unknown.
fn may_be_there(world: &World, pool: &Pool, address: Address) -> bool {
    let target = pool.entry(address).and_then(|entry| entry.to.as_ref());
    let Some(fact) = world.fact(&pool.scope, address) else { return !crate::sabotaged!(UnknownUnpublished) };
    match &fact.holding {
        Holding::Unknown(_) => !crate::sabotaged!(UnknownUnpublished),
        Holding::By(vm) => !fact.is_unconfirmed && target.is_some_and(|to| to.vm == *vm),
        Holding::Free | Holding::Missing => false,
    }
}

fn of_nodes(world: &World, member: &Member) -> Wanted {
    let mut wanted = Wanted::default();
    let needs_pods = matches!(member.pool.tenancy, Tenancy::UntilDisplaced { needs_pods: true });
    for (slot, addresses) in &member.node_addresses {
        let pods = member.pods(*slot);
        if pods.is_some() {
            wanted.own.extend(addresses.iter().copied());
        }
        let readiness = world.at(*slot).map(|(_, node)| node.readiness);
        let is_meant = match needs_pods {
            true => pods == Some(crate::Pods::Ready),
            false => pods.is_some(),
        };
        if readiness == Some(Readiness::Ready) && is_meant {
            wanted.present.extend(addresses.iter().copied());
        }
        // A node or pod that can't be decoded adds no address and removes none.
        let is_unknown = readiness == Some(Readiness::Unknown) || pods == Some(crate::Pods::Unknown);
        if is_unknown {
            wanted.kept.extend(addresses.iter().copied());
        }
    }
    wanted
}
