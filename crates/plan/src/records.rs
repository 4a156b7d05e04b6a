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
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::world::Member;
use crate::{
    Address, Holding, Mode, Pause, Plan, Pool, PoolKey, Readiness, Tenancy, Timestamp, Verdict, Waits, World,
    later,
};

/// So often a set of records is read again though nothing has changed: somebody else may have changed it.
const READ_EVERY: Duration = Duration::from_secs(300);

/// How long an address on its way stays published where the object does not say how long resolvers keep answers.
const ON_ITS_WAY_DEFAULT: Duration = Duration::from_secs(30);

/// How long an address that has lost its match stays published, or half as long as resolvers keep answers if that is less.
const UNMATCHED_STAYS: Duration = Duration::from_secs(2);

/// A service in which names are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DnsProvider {
    DigitalOcean,
    Cloudflare,
    Route53,
    Rfc2136,
    ExternalDns,
}

impl DnsProvider {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::DigitalOcean, Self::Cloudflare, Self::Route53, Self::Rfc2136, Self::ExternalDns];

    /// The provider's name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DigitalOcean => "digitalocean",
            Self::Cloudflare => "cloudflare",
            Self::Route53 => "route53",
            Self::Rfc2136 => "rfc2136",
            Self::ExternalDns => "external-dns",
        }
    }
}

impl fmt::Display for DnsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum RecordKind {
    A,
    Aaaa,
}

impl RecordKind {
    /// The type that holds an address.
    fn of(address: Address) -> Self {
        if address.0.is_ipv4() { Self::A } else { Self::Aaaa }
    }

    /// Its name in DNS.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
        }
    }
}

/// All records of one name and type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordName {
    /// Where it is published.
    pub provider: DnsProvider,
    /// The zone that holds it, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// The type.
    pub kind: RecordKind,
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.kind.name(), self.name, self.provider)
    }
}

/// A name that follows a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Where.
    pub provider: DnsProvider,
    /// The zone, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// Seconds that resolvers may keep an answer; none leaves it to the provider.
    pub ttl: Option<u32>,
    /// Whether records that somebody else made are taken over.
    pub adopts: bool,
    /// What it holds.
    pub source: Source,
    /// What was published last, by the object's own status.
    pub published: BTreeSet<Address>,
}

/// What a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pool's addresses that are on nodes.
    Addresses,
    /// The addresses of the nodes themselves.
    Nodes,
}

/// What is known of a set of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSet {
    /// Its values.
    pub values: BTreeSet<Address>,
    /// Seconds that resolvers may keep an answer, where the provider tells.
    pub ttl: Option<u32>,
    /// Whose mark is on it.
    pub owner: Option<Arc<str>>,
}

/// A set of records as it was read, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFact {
    /// The set.
    pub set: RecordSet,
    /// When it was read or written.
    pub as_of: Timestamp,
}

/// What is under way with a set of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum InFlightRecord {
    Read,
    Write,
}

/// Something to do with a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordStep {
    /// For whom.
    pub pool: PoolKey,
    /// Which.
    pub name: RecordName,
    /// What to do.
    pub action: RecordAction,
}

/// What to do with a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordAction {
    /// Read it.
    Read,
    /// Let it hold these values and no others, if it still is as it was read.
    Write {
        /// What was read.
        old: RecordSet,
        /// What it shall be, with our mark.
        new: RecordSet,
    },
    /// Take it away with our mark, if it still is as it was read.
    Remove(RecordSet),
}

impl fmt::Display for RecordStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            RecordAction::Read => write!(f, "read {}", self.name),
            RecordAction::Write { new, .. } => write!(f, "publish {}: {}", self.name, list(&new.values)),
            RecordAction::Remove(_) => write!(f, "remove {}", self.name),
        }
    }
}

/// What is to be said of a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is as it should be.
    Yes(BTreeSet<Address>),
    /// It is being read or written.
    Publishing,
    /// It was not read yet, or we don't know yet who we are.
    Unread,
    /// The last try failed a short while ago.
    Failed(Pause),
    /// An older object names it too.
    Conflict(PoolKey),
    /// Somebody else made it: it holds these.
    NotOurs(BTreeSet<Address>),
    /// Another controller's mark is on it.
    OwnedByOther(Arc<str>),
    /// No address should be in it, so it holds the last ones.
    LastKept(BTreeSet<Address>),
    /// No address should be in it, and none is.
    Nothing,
    /// It would be written if the object were active.
    Would(BTreeSet<Address>),
    /// Its object is being deleted, and it stays as it is.
    Left,
    /// Its object is being deleted, and it is gone.
    Gone,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes(values) => write!(f, "holds {}", list(values)),
            Self::Publishing => write!(f, "is being published"),
            Self::Unread => write!(f, "was not read yet"),
            Self::Failed(pause) => write!(f, "could not be read or published: {pause}"),
            Self::Conflict(key) => write!(f, "belongs to {key}, which is older"),
            Self::NotOurs(values) => write!(
                f,
                "holds {}, which somebody else published: remove that, or set dnsRecordSet.adopt to take it over",
                list(values)
            ),
            Self::OwnedByOther(owner) => write!(
                f,
                "belongs to the controller with the owner id {owner}: if that one is gone, remove its owner mark"
            ),
            Self::LastKept(values) => {
                write!(
                    f,
                    "still holds {}: no address is on a matching node, and it is never emptied",
                    list(values)
                )
            }
            Self::Nothing => write!(f, "is not published: no address is on a matching node"),
            Self::Would(values) => write!(f, "is only observed, otherwise: publish {}", list(values)),
            Self::Left => write!(f, "is left alone: its object is being deleted"),
            Self::Gone => write!(f, "is gone"),
        }
    }
}

fn list(values: &BTreeSet<Address>) -> String {
    let texts: Vec<_> = values.iter().take(10).map(ToString::to_string).collect();
    match values.len().saturating_sub(10) {
        0 if texts.is_empty() => "nothing".to_owned(),
        0 => texts.join(", "),
        more => format!("{} and {more} more", texts.join(", ")),
    }
}

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
                _ if is_left => Next::say(Published::Left),
                Some(older) => Next::say(Published::Conflict(older.clone())),
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
struct Next {
    action: Option<RecordAction>,
    said: Published,
    ask_again: Option<Timestamp>,
}

impl Next {
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
) -> Next {
    let Some(us) = world.dns_owner.as_ref().filter(|_| pool.policy.mode != Mode::Refused) else {
        return Next::say(Published::Unread);
    };
    let under_way = world.in_flight.records.get(name);
    if under_way == Some(&InFlightRecord::Write) {
        return Next::say(Published::Publishing);
    }
    if let Some(pause) = world.avoid_records.get(name).filter(|pause| now < pause.until) {
        return Next { ask_again: Some(pause.until), ..Next::say(Published::Failed(pause.clone())) };
    }
    // What is being read is said as it was known, and nothing is done before it is known anew.
    let is_reading = under_way.is_some();
    let read = |said| Next { action: (!is_reading).then_some(RecordAction::Read), said, ask_again: None };
    let Some(fact) = world.records.get(name) else { return read(Published::Unread) };
    let RecordSet { values, ttl, owner } = &fact.set;
    let is_in_kind = |address: &&Address| RecordKind::of(**address) == name.kind;
    let stale_at = later(fact.as_of, READ_EVERY);
    let said = |said| match stale_at <= now {
        true => read(said),
        false => Next { ask_again: Some(stale_at), ..Next::say(said) },
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
            (false, _) => Next::say(Published::Left),
            (true, false) => Next::say(Published::Gone),
            (true, true) => Next {
                action: (!is_reading).then(|| RecordAction::Remove(fact.set.clone())),
                ..Next::say(Published::Publishing)
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
    Next { action, ..Next::say(Published::Publishing) }
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
