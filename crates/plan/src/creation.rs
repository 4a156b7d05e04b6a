//! Creation of addresses, up to the desired number of a pool.
//!
//! In: the world and a pool. Out: the next step of its creation, what to report, and whether to list the account first.
//! A request without an answer may have created an address that the controller does not know. So it writes a creation
//! into the journal before its first request, like a move, with what it needs to find such an address later: a tag that
//! the address gets in the request itself, or, if the cloud has no tags, the addresses that existed before. The first
//! line that applies:
//!
//! ```text
//! no entry      as many addresses as desired, or the object is   nothing to do
//!                 refused or being deleted
//!               the account has addresses with the tag that no   report them, and create none
//!                 object lists
//!               mode Observe, or the object has no region        report it
//!               no complete listing of the account               wait, and list again
//!               the limit on created addresses is reached        report it; existing addresses stay
//!               the tag was used, and tags can't be read         wait: created addresses are invisible
//!               otherwise                                        begin: write an entry
//! an entry      mode Observe, or the object is refused           report what is lacking
//!               the epoch of an earlier leader                   claim it: write it again with this leader's epoch
//!               a request for it is in flight                    wait
//!               found addresses are being written into the spec  wait
//!               no complete listing since the entry              wait, and list again
//!   with a tag  tags can't be read                               wait: created addresses are invisible
//!               there are new addresses with the tag             adopt them
//!   without     there are new addresses in the account:
//!                 a request may have created one of them         report them, and create none
//!                 no request was sent since the entry            begin again, with these as well
//!   either way  as many addresses as desired, or the limit       finish
//!                 on created addresses is reached
//!   with a tag  there are older addresses with the tag that no   report them, and create none
//!                 object lists
//!   without     a request may have been sent, and created none   begin again
//!   either way  the backoff after a failure has not ended        wait
//!               otherwise                                        create: with a tag several at once, otherwise one
//! ```
//!
//! Without a tag, the controller adopts an address only from the response to its request. An address that an object
//! lists, or that a person has disowned, never counts as new. So a person who finds an address in the report lists it
//! or disowns it. If someone removes a created address from the list, the controller does not replace it until a person
//! lists, disowns or releases it. Otherwise a tool that resets the list again and again would buy a new address each
//! time.
//!
//! There is a limit on created addresses in a cluster, see [`Room`]. It only stops new creations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ownership::Ownership;
use crate::world::Reads;
use crate::{
    Account, Address, Creation, CreationAction, Fact, Holding, Lacking, Mode, PENDING, Pool, PoolKey, Scope,
    Tick, Timestamp, World,
};

/// The maximum number of addresses to create at once.
const AT_ONCE_MAX: usize = 10;

/// The prefix of the tags of all addresses that a controller created, in this cluster or another one.
pub const TAG_PREFIX: &str = "ip-address-controller-";

/// The maximum number of existing addresses that an entry can list in `before`.
const BEFORE_MAX: usize = 1_000;

/// What to do next for a pool, what to report, and whether and when to list its account first.
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

    fn without_action(lacking: Lacking) -> Self {
        Self { action: None, lacking: Some(lacking), reads: None }
    }
}

/// How many addresses the controller may still create, over all accounts and pools: `CREATED_ADDRESSES_MAX` minus
///
/// - the addresses on which the provider shows the mark of a controller. Their pool may be deleted, or may belong to
///   another cluster that shares the account: they cost the same.
/// - if the credentials can't read the marks of an account, the addresses that the controller created according to the
///   status of their pool
/// - the created addresses that the controller is writing into a spec
/// - the addresses that requests in flight may create, and those that a request without a response may have created
#[derive(Debug)]
pub(crate) struct Room {
    max: usize,
    created: usize,
    /// How many addresses the requests of each pool may add.
    reserved: BTreeMap<PoolKey, usize>,
}

impl Room {
    /// How many may still be created; none if there is no limit, or if no pool needs an address.
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

    /// How many addresses a pool may still create.
    fn left_for(&self, pool: &PoolKey) -> usize {
        let by_others = self.reserved.iter().filter(|(other, _)| *other != pool).map(|(_, count)| count);
        self.max.saturating_sub(self.created + by_others.sum::<usize>())
    }

    /// Reserves addresses for the requests of a pool.
    pub(crate) fn take(&mut self, pool: &PoolKey, count: usize) {
        let reserved = self.reserved.entry(pool.clone()).or_default();
        *reserved = count.max(*reserved);
    }
}

/// How many more addresses a pool needs.
fn lacking(pool: &Pool) -> usize {
    pool.desired.saturating_sub(pool.addresses.len() + pool.adopted.len())
}

/// The next step for a pool, given how many addresses may still be created.
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

/// A pool that may need more addresses, and what the decision depends on.
struct Case<'a> {
    world: &'a World,
    pool: &'a Pool,
    ownership: &'a Ownership,
    room: Option<&'a Room>,
    /// The tag of its new addresses, if the cloud has tags.
    tag: &'a Arc<str>,
    /// How many more addresses it needs.
    lacking: usize,
    /// How many it may still create.
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
            _ if !unlisted.is_empty() => CreationDecision::without_action(Lacking::Unlisted(unlisted)),
            (Mode::Observe, _) => CreationDecision::without_action(Lacking::WouldCreate(*lacking)),
            _ if pool.region.is_none() => CreationDecision::without_action(Lacking::NoRegion),
            (Mode::Active, None) => unread(self.reads()),
            (Mode::Active, Some(_)) if self.left == 0 => CreationDecision::without_action(self.full()),
            (Mode::Active, Some(account)) => self.begin(account),
        }
    }

    /// The rows of the truth table for a pool with an entry in the journal.
    fn with_entry(&self, entry: &Creation, now: Timestamp) -> CreationDecision {
        let Self { world, pool, lacking, left, .. } = *self;
        match pool.policy.mode {
            Mode::Observe if lacking > 0 => {
                return CreationDecision::without_action(Lacking::WouldCreate(lacking));
            }
            Mode::Observe | Mode::Refused => return CreationDecision::default(),
            Mode::Active | Mode::Leaving => {}
        }
        if entry.epoch != world.epoch {
            return CreationDecision::act(CreationAction::Claim, lacking);
        }
        let is_under_way = world.in_flight.creations.contains_key(&pool.key);
        if is_under_way || entry.written == PENDING || !pool.adopted.is_empty() {
            return CreationDecision::without_action(Lacking::Creating(lacking.max(1)));
        }
        let Some(account) = self.account().filter(|account| account.as_of > entry.written) else {
            return unread(self.reads());
        };
        if entry.tag.is_some() && !account.can_tag {
            return CreationDecision::without_action(Lacking::TagsHidden);
        }
        let found = self.new_since(entry);
        match (&entry.tag, found.is_empty()) {
            (Some(_), false) if crate::sabotaged!(TagIgnored) => {}
            (None, false) if crate::sabotaged!(CandidateAdopted) => {
                return CreationDecision::act(CreationAction::Adopt(found), lacking);
            }
            (Some(_), false) => return CreationDecision::act(CreationAction::Adopt(found), lacking),
            (None, false) if entry.may_have_asked => {
                return CreationDecision::without_action(Lacking::Ambiguous(found));
            }
            (None, false) => return self.begin(account),
            (_, true) => {}
        }
        let provider = pool.scope.provider;
        if entry.may_have_asked && world.may_be_late(provider, Some(account.as_of)) {
            // A request of an earlier leader may have created an address that the listing does not show yet.
            return unread(Some(world.reads_late(provider)));
        }
        if lacking == 0 || pool.policy.mode == Mode::Leaving {
            return CreationDecision::act(CreationAction::Finish, 0);
        }
        let unlisted = self.made_and_unlisted();
        if !unlisted.is_empty() {
            return CreationDecision::without_action(Lacking::Unlisted(unlisted));
        }
        if left == 0 {
            let finish = CreationDecision::act(CreationAction::Finish, 0);
            return CreationDecision { lacking: Some(self.full()), ..finish };
        }
        if entry.tag.is_none() && entry.may_have_asked {
            // The request created no address, so an address that appears from now on is not its result.
            return self.begin(account);
        }
        if let Some(pause) = world.avoid_creations.get(&pool.key).filter(|pause| now < pause.until) {
            return CreationDecision::without_action(Lacking::Failed(pause.clone()));
        }
        let Some(region) = pool.region.clone() else {
            return CreationDecision::without_action(Lacking::NoRegion);
        };
        let count = if entry.tag.is_some() { lacking.min(AT_ONCE_MAX).min(left) } else { 1 };
        CreationDecision::act(CreationAction::Ask { count, region, tag: entry.tag.clone() }, lacking)
    }

    /// When to list the account again: at once, unless the last listing was incomplete for a reason that lasts.
    fn reads(&self) -> Option<Reads> {
        (!self.world.incomplete.contains(&self.pool.scope)).then_some(Reads::AtOnce)
    }

    /// Starts a creation with an entry that lists the existing addresses.
    fn begin(&self, account: &Account) -> CreationDecision {
        if self.pool.is_tag_used && !account.can_tag {
            return CreationDecision::without_action(Lacking::TagsHidden);
        }
        let tag = account.can_tag.then(|| Arc::clone(self.tag));
        let before = tag.as_ref().map_or_else(|| self.unlisted(), |tag| self.tagged(tag));
        match before.len() {
            too_many if too_many > BEFORE_MAX => CreationDecision::without_action(Lacking::TooMany(too_many)),
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

    /// The account's addresses that no object lists or moves.
    fn unlisted(&self) -> BTreeSet<Address> {
        let facts = self.world.facts_of(&self.pool.scope).map(|(address, _)| *address);
        facts.filter(|address| !self.ownership.is_owned(*address)).collect()
    }

    /// The account's addresses with a tag.
    fn tagged(&self, tag: &Arc<str>) -> BTreeSet<Address> {
        let is_there = |fact: &Fact| fact.tag.as_ref() == Some(tag) && fact.holding != Holding::Missing;
        let facts = self.world.facts_of(&self.pool.scope).filter(|(_, fact)| is_there(fact));
        facts.map(|(address, _)| *address).collect()
    }

    /// Addresses that were created for the pool and that no object lists.
    fn made_and_unlisted(&self) -> BTreeSet<Address> {
        // An address with an unfinished move counts as unlisted too.
        let is_left =
            |address: &Address| !self.ownership.is_listed(*address) && !self.pool.disowned.contains(address);
        let made = self.tagged(self.tag).into_iter().filter(is_left);
        made.filter(|_| !crate::sabotaged!(UnlistedReplaced)).collect()
    }
}

/// The controller needs a complete listing of the account first.
fn unread(reads: Option<Reads>) -> CreationDecision {
    CreationDecision { reads, ..CreationDecision::without_action(Lacking::Unread) }
}
