//! Names in DNS that follow addresses.
//!
//! In: which addresses are on nodes that should have them, and what is known of each set of records. Out: sets to be read or
//! written, and what is to be said of each. A set that somebody else made is never touched, one of ours is never emptied,
//! and what is not known changes nothing.
//!
//! For each set of records that an object names, the first line that applies:
//!
//! ```text
//! an older object names it too                              leave it            Conflict
//! the object can't be acted on, or who we are is not known  leave it            Unread
//! it is being read or written                               wait                Publishing
//! the last try failed a short while ago                     wait                Failed
//! it was never read                                         read it             Unread
//! another controller's mark is on it                        leave it            OwnedByOther
//! nobody's mark is on it, and it holds a value that is not
//!   one of this object's addresses, and `adopt` is not set  leave it            NotOurs
//! the object is being deleted: policy.onDelete is Detach    remove it           Publishing, Gone
//!                              otherwise                    leave it            Left
//! no address should be in it                                leave it            LastKept, Nothing
//! it holds what it should, with our mark                    leave it            Yes
//! otherwise                                                 write it            Publishing, or Would
//! ```
//!
//! An address should be in it if it is on a node that matches. It stays, but is not added, while it is unknown where it is,
//! for as long as resolvers keep an answer anyway while it is on its way to another node, and for a moment after it has lost
//! its match: mostly another node is found for it, or its pod is back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::member::Member;
use crate::{
    Address, DnsProvider, Holding, InFlightRecord, Mode, Plan, Pool, PoolKey, Publication, Published,
    Readiness, RecordAction, RecordKind, RecordName, RecordSet, RecordStep, Source, Tenancy, Timestamp,
    Verdict, Waits, World, later,
};

/// So often a set of records is read again though nothing has changed: somebody else may have changed it.
const READ_EVERY: Duration = Duration::from_secs(300);

/// How long an address on its way stays published where the object does not say how long resolvers keep answers.
const ON_ITS_WAY_DEFAULT: Duration = Duration::from_secs(30);

/// How long an address that has lost its match stays published, or half as long as resolvers keep answers if that is less.
const UNMATCHED_STAYS: Duration = Duration::from_secs(2);

/// Which addresses a name should hold.
#[derive(Default)]
struct Wanted {
    /// These.
    present: BTreeSet<Address>,
    /// And these where they are in it already.
    kept: BTreeSet<Address>,
    /// All that are the object's own.
    own: BTreeSet<Address>,
    /// When an address that is kept for a while has been kept for too long.
    until: Option<Timestamp>,
    /// Since when addresses that lost their match have been without.
    unmatched: BTreeMap<Address, Timestamp>,
}

impl Wanted {
    /// Keeps an address for so long since then.
    fn keep(&mut self, address: Address, since: Timestamp, stays: Duration, now: Timestamp) {
        let until = later(since, stays);
        if now < until {
            self.kept.insert(address);
            self.until = self.until.into_iter().chain([until]).min();
        }
    }
}

/// Adds to a plan what is to be done with the names that pools have, given what was decided for their addresses.
pub(crate) fn publish(world: &World, ranked: &[&Member], plan: &mut Plan, now: Timestamp) {
    // A zone can be told in several ways, and a name can be in several zones' terms.
    let mut taken: BTreeMap<(DnsProvider, Arc<str>, RecordKind), &PoolKey> = BTreeMap::new();
    let stays = |member: &&&Member| member.pool.policy.mode != Mode::Leaving;
    let published = ranked.iter().filter(stays).filter_map(|member| member.pool.publication.as_ref());
    let wanted_on: BTreeSet<_> = published.map(|wanted| (wanted.provider, &wanted.name)).collect();
    for member in ranked {
        let pool = &*member.pool;
        let Some(publication) = &pool.publication else { continue };
        // Whoever goes leaves the name to whoever wants it on, who would find it empty otherwise.
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
                _ if is_left => RecordDecision::say(Published::Left),
                Some(older) => RecordDecision::say(Published::Conflict(older.clone())),
                None => next(world, pool, publication, &name, &wanted, now),
            };
            if !is_left {
                taken.entry(key).or_insert(&pool.key);
            }
            due = due.into_iter().chain(next.ask_again).min();
            if let Some(action) = next.action {
                plan.records.push(RecordStep { pool: pool.key.clone(), name: name.clone(), action });
            }
            plan.published.entry(pool.key.clone()).or_default().push((name, next.said));
        }
        plan.ask_again = plan.ask_again.into_iter().chain(due).min();
    }
}

/// What to do with a set, what to say of it, and when to ask again.
struct RecordDecision {
    action: Option<RecordAction>,
    said: Published,
    ask_again: Option<Timestamp>,
}

impl RecordDecision {
    fn say(said: Published) -> Self {
        Self { action: None, said, ask_again: None }
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
        return RecordDecision::say(Published::Unread);
    };
    let under_way = world.in_flight.records.get(name);
    if under_way == Some(&InFlightRecord::Write) {
        return RecordDecision::say(Published::Publishing);
    }
    if let Some(pause) = world.avoid_records.get(name).filter(|pause| now < pause.until) {
        return RecordDecision {
            ask_again: Some(pause.until),
            ..RecordDecision::say(Published::Failed(pause.clone()))
        };
    }
    // What is being read is said as it was known, and nothing is done before it is known anew.
    let is_reading = under_way.is_some();
    let read =
        |said| RecordDecision { action: (!is_reading).then_some(RecordAction::Read), said, ask_again: None };
    let Some(fact) = world.records.get(name) else { return read(Published::Unread) };
    let RecordSet { values, ttl, owner } = &fact.set;
    let is_in_kind = |address: &&Address| RecordKind::of(**address) == name.kind;
    let stale_at = later(fact.as_of, READ_EVERY);
    let said = |said| match stale_at <= now {
        true => read(said),
        false => RecordDecision { ask_again: Some(stale_at), ..RecordDecision::say(said) },
    };
    let is_ours = owner.as_ref() == Some(us);
    if !crate::sabotaged!(RecordOwnerIgnored) {
        match owner {
            Some(other) if !is_ours => return said(Published::OwnedByOther(Arc::clone(other))),
            None if !publication.adopts && !values.is_subset(&wanted.own) => {
                return said(Published::NotOurs(values.clone()));
            }
            _ => {}
        }
    }
    if pool.policy.mode == Mode::Leaving {
        return match (pool.policy.detaches_on_delete, is_ours) {
            (false, _) => RecordDecision::say(Published::Left),
            (true, false) => RecordDecision::say(Published::Gone),
            (true, true) => RecordDecision {
                action: (!is_reading).then(|| RecordAction::Remove(fact.set.clone())),
                ..RecordDecision::say(Published::Publishing)
            },
        };
    }
    let kept = wanted.kept.intersection(values);
    let target: BTreeSet<Address> = wanted.present.iter().chain(kept).filter(is_in_kind).copied().collect();
    if target.is_empty() && !crate::sabotaged!(RecordEmptied) {
        return said(match values.is_empty() {
            true => Published::Nothing,
            false => Published::LastKept(values.clone()),
        });
    }
    let is_ttl_right = publication.ttl.is_none() || ttl.is_none() || *ttl == publication.ttl;
    if target == *values && is_ttl_right && is_ours {
        return said(Published::Yes(target));
    }
    if pool.policy.mode == Mode::Observe {
        return said(Published::Would(target));
    }
    let new = RecordSet { values: target, ttl: publication.ttl, owner: Some(Arc::clone(us)) };
    let action = (!is_reading).then(|| RecordAction::Write { old: fact.set.clone(), new });
    RecordDecision { action, ..RecordDecision::say(Published::Publishing) }
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
    let ttl = publication.ttl.map_or(ON_ITS_WAY_DEFAULT, |seconds| Duration::from_secs(seconds.into()));
    // Taking it out takes a moment, too.
    let on_its_way = ttl.saturating_mul(9) / 10;
    for (address, said) in plan.verdicts.get(&pool.key).into_iter().flatten() {
        let is_going = |said: &Verdict| match said {
            Verdict::Moving(to) => to.is_some(),
            Verdict::Queued(_) => true,
            Verdict::Waits(Waits::ForRetry(_)) => {
                pool.entry(*address).is_some_and(|entry| entry.to.is_some())
            }
            _ => false,
        };
        match said {
            Verdict::Settled(_) => _ = wanted.present.insert(*address),
            said if is_going(said) && may_be_there(world, pool, *address) => _ = wanted.kept.insert(*address),
            said if is_going(said) => {
                let since = pool.moving_since.get(address).copied().unwrap_or(now);
                wanted.keep(*address, since, on_its_way, now);
            }
            // Nobody knows where it is, or whether it has really lost its node.
            Verdict::Unknown(_)
            | Verdict::WouldStep(_)
            | Verdict::Waits(Waits::ForConfirmation(_) | Waits::ForNewerController | Waits::ForCorrection)
                if !crate::sabotaged!(UnknownUnpublished) =>
            {
                _ = wanted.kept.insert(*address)
            }
            Verdict::Lingers(..) | Verdict::NoNode | Verdict::OtherRegion(..) | Verdict::Waits(_) => {
                let since = world.unmatched.get(address).copied().unwrap_or(now);
                wanted.unmatched.insert(*address, since);
                wanted.keep(*address, since, UNMATCHED_STAYS.min(ttl / 2), now);
            }
            _ => {}
        }
    }
    wanted
}

/// Whether an address on its way may be where it is to go: it is, and only the journal does not know yet, or it is not known.
fn may_be_there(world: &World, pool: &Pool, address: Address) -> bool {
    let target = pool.entry(address).and_then(|entry| entry.to.as_ref());
    let Some(fact) = world.fact(&pool.scope, address) else { return !crate::sabotaged!(UnknownUnpublished) };
    match &fact.holding {
        Holding::Unknown(_) => !crate::sabotaged!(UnknownUnpublished),
        Holding::By(vm) => !fact.is_doubtful && target.is_some_and(|to| to.vm == *vm),
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
        // What can't be decoded publishes nothing new, and takes nothing that is published away.
        let is_unknown = readiness == Some(Readiness::Unknown) || pods == Some(crate::Pods::Unknown);
        if is_unknown {
            wanted.kept.extend(addresses.iter().copied());
        }
    }
    wanted
}
