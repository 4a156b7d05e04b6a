//! Addresses that a pool asks its cloud for, up to the desired number.
//!
//! A request whose answer never comes may have made an address that nobody knows of. So a creation is journalled before
//! its first request, like a move, together with what it takes to find such an address again: a tag that it carries from
//! its first moment on, or, where the cloud has none, the addresses that existed before. The first line that applies:
//!
//! ```text
//! no entry      as many addresses as desired                     nothing to do
//!               the account was not read as a whole              wait, and read again
//!               it has addresses with the tag that nobody lists  report them, and touch nothing
//!               as many were created as may be                   report it: what is there stays
//!               the tag was used, and tags can't be read         wait: what was created can't be seen
//!               otherwise                                        begin: write an entry
//! an entry      another leader's epoch                           claim it: write it again with ours
//!               a request for it is under way, or failed         wait
//!                 a short while ago
//!               found addresses are being written into the spec  wait
//!               the account was not read as a whole after it     wait, and read again
//!   with a tag  the account's tags can't be read                 wait: what was created can't be seen
//!               it has addresses with the tag that it had not    adopt them
//!   without     the account has addresses that it did not have:
//!                 a request may have made one of them            report them, and touch nothing
//!                 no request was sent since the entry            begin again, with those as well
//!   either way  as many addresses as desired, or created as      finish
//!                 may be
//!   with a tag  it had addresses with it that nobody lists       report them, and touch nothing
//!   without     a request may have been sent, and made nothing   begin again
//!   either way  otherwise                                        ask: with a tag for several at once, else for one
//! ```
//!
//! Without a tag an address is adopted only from the answer to the request itself. An address that some object lists is
//! never taken for a new one, nor is one that a person has disowned; so whoever finds one reported lists or disowns it.
//! What was made for a pool and was taken off its list is not replaced before somebody has said so, because a tool that
//! takes the list back each time would buy addresses each time.
//!
//! There is a limit on what is created in a cluster, see [`Room`]. It only stops new creations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ownership::Ownership;
use crate::world::Reads;
use crate::{
    Account, Address, Creation, CreationAction, Fact, Holding, Lacking, Mode, PENDING, Pool, PoolKey, Scope,
    Tick, Timestamp, World,
};

/// The most addresses that are asked for at once.
const AT_ONCE_MAX: usize = 10;

/// What the tag of every address begins with that a controller created, in this cluster or another one.
pub const TAG_PREFIX: &str = "ip-address-controller-";

/// The most addresses outside of all objects that an entry without a tag can remember.
const BEFORE_MAX: usize = 1_000;

/// What to do next for a pool, what to say of it, and whether its account must be read first, and when.
#[derive(Debug, Default)]
pub(crate) struct CreationDecision {
    pub(crate) action: Option<CreationAction>,
    pub(crate) lacking: Option<Lacking>,
    pub(crate) reads: Option<Reads>,
}

impl CreationDecision {
    fn act(action: CreationAction, lacking: usize) -> Self {
        let lacking = (lacking > 0).then_some(Lacking::Creating(lacking));
        Self { action: Some(action), lacking, reads: None }
    }

    fn say(lacking: Lacking) -> Self {
        Self { action: None, lacking: Some(lacking), reads: None }
    }
}

/// How many addresses may still be created, over all accounts and pools.
///
/// An address counts if the provider shows a mark of a controller on it, also one of a pool that is gone or of another cluster that
/// shares the account: it costs as much. Where an account's marks can't be read, an address counts if its pool says that it created it.
/// Addresses that are being requested count too, and so do those that a request without an answer may have created.
#[derive(Debug)]
pub(crate) struct Room {
    max: usize,
    created: usize,
    /// What other pools' requests may add, by pool.
    reserved: BTreeMap<PoolKey, usize>,
}

impl Room {
    /// What is left; nothing where there is no limit, or where no pool lacks an address.
    pub(crate) fn of(world: &World) -> Option<Self> {
        let is_lacking = |pool: &Pool| pool.creates.is_some() && lacking(pool) > 0;
        let max = world.created_max.filter(|_| world.pools().any(is_lacking))?;
        let is_marked = |fact: &Fact| fact.tag.as_ref().is_some_and(|tag| tag.starts_with(TAG_PREFIX));
        let mut created: BTreeSet<(&Scope, Address)> = world
            .facts()
            .filter(|(_, _, fact)| is_marked(fact) && fact.holding != Holding::Missing)
            .map(|(scope, address, _)| (scope, *address))
            .collect();
        let mut reserved = BTreeMap::new();
        for pool in world.pools().filter(|pool| pool.creates.is_some()) {
            let shows_marks = world.accounts.get(&pool.scope).is_some_and(|account| account.can_tag);
            let is_missing = |address: &&Address| {
                world.fact(&pool.scope, **address).is_some_and(|fact| fact.holding == Holding::Missing)
            };
            let claimed = pool.created_here.iter().filter(|_| !shows_marks).chain(&pool.adopted);
            created.extend(
                claimed.filter(|address| !is_missing(address)).map(|address| (&pool.scope, *address)),
            );
            let asked = world.in_flight.creations.get(&pool.key).copied().unwrap_or(0);
            let may_have_asked = pool.creation.as_ref().is_some_and(|entry| entry.may_have_asked);
            let lost = if may_have_asked { lacking(pool).clamp(1, AT_ONCE_MAX) } else { 0 };
            reserved.insert(pool.key.clone(), asked.max(lost));
        }
        Some(Self { max, created: created.len(), reserved })
    }

    /// How many addresses a pool may ask for.
    fn left_for(&self, pool: &PoolKey) -> usize {
        let by_others = self.reserved.iter().filter(|(other, _)| *other != pool).map(|(_, count)| count);
        self.max.saturating_sub(self.created + by_others.sum::<usize>())
    }

    /// A pool asks for so many.
    pub(crate) fn take(&mut self, pool: &PoolKey, count: usize) {
        let reserved = self.reserved.entry(pool.clone()).or_default();
        *reserved = count.max(*reserved);
    }
}

/// How many addresses a pool lacks.
fn lacking(pool: &Pool) -> usize {
    pool.desired.saturating_sub(pool.addresses.len() + pool.adopted.len())
}

/// What to do next for a pool, given how many addresses may still be created.
pub(crate) fn next(
    world: &World,
    pool: &Pool,
    ownership: &Ownership,
    room: Option<&Room>,
    now: Timestamp,
) -> CreationDecision {
    let Some(tag) = pool.creates.as_ref().filter(|_| !crate::sabotaged!(NeverCreated)) else {
        return CreationDecision::default();
    };
    let left = room.map_or(usize::MAX, |room| room.left_for(&pool.key));
    let case = Case { world, pool, ownership, room, tag, left, lacking: lacking(pool) };
    match &pool.creation {
        None => case.without_entry(),
        Some(entry) => case.with_entry(entry, now),
    }
}

/// A pool that may lack addresses, and what decides about it.
struct Case<'a> {
    world: &'a World,
    pool: &'a Pool,
    ownership: &'a Ownership,
    room: Option<&'a Room>,
    /// What its new addresses carry, where the cloud can do that.
    tag: &'a Arc<str>,
    /// How many addresses it lacks.
    lacking: usize,
    /// How many it may still ask for.
    left: usize,
}

impl Case<'_> {
    /// The rows of the truth table for a pool without an entry in the journal.
    fn without_entry(&self) -> CreationDecision {
        let Self { pool, lacking, .. } = self;
        let unlisted = if *lacking > 0 { self.made_and_unlisted() } else { BTreeSet::new() };
        match (pool.policy.mode, self.account()) {
            _ if *lacking == 0 => CreationDecision::default(),
            (Mode::Refused | Mode::Leaving, _) => CreationDecision::default(),
            _ if !unlisted.is_empty() => CreationDecision::say(Lacking::Unlisted(unlisted)),
            (Mode::Observe, _) => CreationDecision::say(Lacking::WouldCreate(*lacking)),
            _ if pool.region.is_none() => CreationDecision::say(Lacking::NoRegion),
            (Mode::Active, None) => unread(Reads::AtOnce),
            (Mode::Active, Some(_)) if self.left == 0 => CreationDecision::say(self.full()),
            (Mode::Active, Some(account)) => self.begin(account),
        }
    }

    /// The rows of the truth table for a pool with an entry in the journal.
    fn with_entry(&self, entry: &Creation, now: Timestamp) -> CreationDecision {
        let Self { world, pool, lacking, left, .. } = *self;
        match pool.policy.mode {
            Mode::Observe if lacking > 0 => return CreationDecision::say(Lacking::WouldCreate(lacking)),
            Mode::Observe | Mode::Refused => return CreationDecision::default(),
            Mode::Active | Mode::Leaving => {}
        }
        if entry.epoch != world.epoch {
            return CreationDecision::act(CreationAction::Claim, lacking);
        }
        let is_under_way = world.in_flight.creations.contains_key(&pool.key);
        if is_under_way || entry.written == PENDING || !pool.adopted.is_empty() {
            return CreationDecision::say(Lacking::Creating(lacking.max(1)));
        }
        let Some(account) = self.account().filter(|account| account.as_of > entry.written) else {
            return unread(Reads::AtOnce);
        };
        if entry.tag.is_some() && !account.can_tag {
            return CreationDecision::say(Lacking::TagsHidden);
        }
        let found = self.new_since(entry);
        match (&entry.tag, found.is_empty()) {
            (Some(_), false) if crate::sabotaged!(TagIgnored) => {}
            (None, false) if crate::sabotaged!(CandidateAdopted) => {
                return CreationDecision::act(CreationAction::Adopt(found), lacking);
            }
            (Some(_), false) => return CreationDecision::act(CreationAction::Adopt(found), lacking),
            (None, false) if entry.may_have_asked => return CreationDecision::say(Lacking::Ambiguous(found)),
            (None, false) => return self.begin(account),
            (_, true) => {}
        }
        let provider = pool.scope.provider;
        if entry.may_have_asked && world.may_be_late(provider, Some(account.as_of)) {
            // An earlier leader's request may have made an address that is not shown yet.
            return unread(world.reads_late(provider));
        }
        if lacking == 0 || pool.policy.mode == Mode::Leaving {
            return CreationDecision::act(CreationAction::Finish, 0);
        }
        let unlisted = self.made_and_unlisted();
        if !unlisted.is_empty() {
            return CreationDecision::say(Lacking::Unlisted(unlisted));
        }
        if left == 0 {
            let finish = CreationDecision::act(CreationAction::Finish, 0);
            return CreationDecision { lacking: Some(self.full()), ..finish };
        }
        if entry.tag.is_none() && entry.may_have_asked {
            // It made nothing, so what appears from now on is not its result.
            return self.begin(account);
        }
        if let Some(pause) = world.avoid_creations.get(&pool.key).filter(|pause| now < pause.until) {
            return CreationDecision::say(Lacking::Failed(pause.clone()));
        }
        let Some(region) = pool.region.clone() else { return CreationDecision::say(Lacking::NoRegion) };
        let count = if entry.tag.is_some() { lacking.min(AT_ONCE_MAX).min(left) } else { 1 };
        CreationDecision::act(CreationAction::Ask { count, region, tag: entry.tag.clone() }, lacking)
    }

    /// Begins: an entry that remembers the addresses that exist already.
    fn begin(&self, account: &Account) -> CreationDecision {
        if self.pool.is_tag_used && !account.can_tag {
            return CreationDecision::say(Lacking::TagsHidden);
        }
        let tag = account.can_tag.then(|| Arc::clone(self.tag));
        let before = tag.as_ref().map_or_else(|| self.unlisted(), |tag| self.tagged(tag));
        match before.len() {
            too_many if too_many > BEFORE_MAX => CreationDecision::say(Lacking::TooMany(too_many)),
            _ => {
                let (epoch, written) = (self.world.epoch, Tick::default());
                let entry = Creation { tag, before, may_have_asked: false, epoch, written };
                CreationDecision::act(CreationAction::Begin(entry), self.lacking)
            }
        }
    }

    fn account(&self) -> Option<&Account> {
        self.world.accounts.get(&self.pool.scope)
    }

    fn full(&self) -> Lacking {
        Lacking::Full(self.room.map_or(0, |room| room.max))
    }

    /// The addresses that the account did not have when the entry was written.
    fn new_since(&self, entry: &Creation) -> BTreeSet<Address> {
        let found: BTreeSet<Address> = match &entry.tag {
            Some(tag) => {
                let is_free = |address: &Address| !self.ownership.is_owned(*address);
                self.tagged(tag).into_iter().filter(is_free).collect()
            }
            None => self.unlisted(),
        };
        let is_new =
            |address: &Address| !entry.before.contains(address) && !self.pool.disowned.contains(address);
        found.into_iter().filter(is_new).collect()
    }

    /// The account's addresses that no object names.
    fn unlisted(&self) -> BTreeSet<Address> {
        let facts = self.world.facts_of(&self.pool.scope).map(|(address, _)| *address);
        facts.filter(|address| !self.ownership.is_owned(*address)).collect()
    }

    /// The account's addresses that carry a tag.
    fn tagged(&self, tag: &Arc<str>) -> BTreeSet<Address> {
        let is_there = |fact: &Fact| fact.tag.as_ref() == Some(tag) && fact.holding != Holding::Missing;
        let facts = self.world.facts_of(&self.pool.scope).filter(|(_, fact)| is_there(fact));
        facts.map(|(address, _)| *address).collect()
    }

    /// Addresses that were made for the pool and that no object lists.
    fn made_and_unlisted(&self) -> BTreeSet<Address> {
        // One that is on its way is on no list all the same.
        let is_left =
            |address: &Address| !self.ownership.is_listed(*address) && !self.pool.disowned.contains(address);
        let made = self.tagged(self.tag).into_iter().filter(is_left);
        made.filter(|_| !crate::sabotaged!(UnlistedReplaced)).collect()
    }
}

/// Nothing can be said before the account was read.
fn unread(reads: Reads) -> CreationDecision {
    CreationDecision { action: None, lacking: Some(Lacking::Unread), reads: Some(reads) }
}
