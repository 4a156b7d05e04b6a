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
    let is_owned = |address: Address| ownership.is_owned(address);
    let Some(tag) = pool.creates.as_ref().filter(|_| !crate::sabotaged!(NeverCreated)) else {
        return CreationDecision::default();
    };
    let lacking = lacking(pool);
    let left = room.map_or(usize::MAX, |room| room.left_for(&pool.key));
    let full = || Lacking::Full(room.map_or(0, |room| room.max));
    let account = world.accounts.get(&pool.scope);
    let unlisted = || {
        let facts = world.facts_of(&pool.scope).map(|(address, _)| *address);
        facts.filter(|address| !is_owned(*address)).collect::<BTreeSet<_>>()
    };
    let tagged = |tag: &Arc<str>| {
        let is_there = |fact: &Fact| fact.tag.as_ref() == Some(tag) && fact.holding != Holding::Missing;
        let facts = world.facts_of(&pool.scope).filter(|(_, fact)| is_there(fact));
        facts.map(|(address, _)| *address).collect::<BTreeSet<_>>()
    };
    let made_and_unlisted = || {
        // One that is on its way is on no list all the same.
        let is_left = |address: &Address| !ownership.is_listed(*address) && !pool.disowned.contains(address);
        let made = tagged(tag).into_iter().filter(is_left);
        made.filter(|_| !crate::sabotaged!(UnlistedReplaced)).collect::<BTreeSet<_>>()
    };
    let begin = |account: &Account| {
        if pool.is_tag_used && !account.can_tag {
            return CreationDecision::say(Lacking::TagsHidden);
        }
        let tag = account.can_tag.then(|| Arc::clone(tag));
        let before = tag.as_ref().map_or_else(unlisted, tagged);
        match before.len() {
            too_many if too_many > BEFORE_MAX => CreationDecision::say(Lacking::TooMany(too_many)),
            _ => {
                let (epoch, written) = (world.epoch, Tick::default());
                let entry = Creation { tag, before, may_have_asked: false, epoch, written };
                CreationDecision::act(CreationAction::Begin(entry), lacking)
            }
        }
    };
    let unread =
        |reads| CreationDecision { action: None, lacking: Some(Lacking::Unread), reads: Some(reads) };
    let Some(entry) = &pool.creation else {
        let unlisted = if lacking > 0 { made_and_unlisted() } else { BTreeSet::new() };
        return match (pool.policy.mode, account) {
            _ if lacking == 0 => CreationDecision::default(),
            (Mode::Refused | Mode::Leaving, _) => CreationDecision::default(),
            _ if !unlisted.is_empty() => CreationDecision::say(Lacking::Unlisted(unlisted)),
            (Mode::Observe, _) => CreationDecision::say(Lacking::WouldCreate(lacking)),
            _ if pool.region.is_none() => CreationDecision::say(Lacking::NoRegion),
            (Mode::Active, None) => unread(Reads::AtOnce),
            (Mode::Active, Some(_)) if left == 0 => CreationDecision::say(full()),
            (Mode::Active, Some(account)) => begin(account),
        };
    };
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
    let Some(account) = account.filter(|account| account.as_of > entry.written) else {
        return unread(Reads::AtOnce);
    };
    let found: BTreeSet<Address> = match &entry.tag {
        Some(_) if !account.can_tag => return CreationDecision::say(Lacking::TagsHidden),
        Some(tag) => tagged(tag).into_iter().filter(|address| !is_owned(*address)).collect(),
        None => unlisted(),
    };
    let is_new = |address: &Address| !entry.before.contains(address) && !pool.disowned.contains(address);
    let found: BTreeSet<Address> = found.into_iter().filter(is_new).collect();
    match (&entry.tag, found.is_empty()) {
        (Some(_), false) if crate::sabotaged!(TagIgnored) => {}
        (None, false) if crate::sabotaged!(CandidateAdopted) => {
            return CreationDecision::act(CreationAction::Adopt(found), lacking);
        }
        (Some(_), false) => return CreationDecision::act(CreationAction::Adopt(found), lacking),
        (None, false) if entry.may_have_asked => return CreationDecision::say(Lacking::Ambiguous(found)),
        (None, false) => return begin(account),
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
    let unlisted = made_and_unlisted();
    if !unlisted.is_empty() {
        return CreationDecision::say(Lacking::Unlisted(unlisted));
    }
    if left == 0 {
        return CreationDecision {
            lacking: Some(full()),
            ..CreationDecision::act(CreationAction::Finish, 0)
        };
    }
    if entry.tag.is_none() && entry.may_have_asked {
        // It made nothing, so what appears from now on is not its result.
        return begin(account);
    }
    if let Some(pause) = world.avoid_creations.get(&pool.key).filter(|pause| now < pause.until) {
        return CreationDecision::say(Lacking::Failed(pause.clone()));
    }
    let Some(region) = pool.region.clone() else { return CreationDecision::say(Lacking::NoRegion) };
    let count = if entry.tag.is_some() { lacking.min(AT_ONCE_MAX).min(left) } else { 1 };
    CreationDecision::act(CreationAction::Ask { count, region, tag: entry.tag.clone() }, lacking)
}
