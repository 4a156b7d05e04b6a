//! Pools: addresses, the nodes that may have them, the rules, and what was begun.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::{Address, Epoch, Fact, NodeName, PoolKey, Publication, Scope, Tick, Timestamp, VmId};

/// Addresses and the rules for them. Both resource kinds become this.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Which object it is.
    pub key: PoolKey,
    /// When the object was created: the oldest object that lists an address owns it.
    pub created: Timestamp,
    /// Where its addresses live.
    pub scope: Scope,
    /// Its addresses, in the user's order.
    pub addresses: Vec<Address>,
    /// How many of them are wanted on nodes; those beyond, in order, are disabled.
    pub desired: usize,
    /// Addresses that were created for it and are being written into the object. They are not used before that.
    pub adopted: BTreeSet<Address>,
    /// Where its kind can create addresses up to the desired number: the tag that they carry.
    pub creates: Option<Arc<str>>,
    /// Whether addresses may have been created with that tag, by the object's own status.
    pub is_tag_used: bool,
    /// Those of its addresses that it created itself, by the object's own status. Anybody who may write that can add some, so
    /// it is no proof: see [`Pool::mark_on`].
    pub created_here: BTreeSet<Address>,
    /// Addresses of which a person has said that they were not created for it.
    pub disowned: BTreeSet<Address>,
    /// When a node gives its address up.
    pub tenancy: Tenancy,
    /// New placements go only to this region, where one is given.
    pub region: Option<Arc<str>>,
    /// New placements go only to these zones; empty means all.
    pub zones: Vec<Arc<str>>,
    /// The machine of ours that last held each address, by the object's own status.
    pub last_holders: BTreeMap<Address, VmId>,
    /// Those of its addresses that were known to be on their last holder when the object's status was written.
    pub held: BTreeSet<Address>,
    /// Those of its addresses whose last holder had an address of its own before, and gets one back.
    pub lent: BTreeSet<Address>,
    /// The last machines that its addresses have left and that have one of their own again, by the object's own status.
    pub returned: BTreeMap<Address, Vec<VmId>>,
    /// The names that addresses had in their PTR records when they left their last machines, by the object's own status.
    pub ptrs: BTreeMap<Address, Arc<str>>,
    /// When an address was last assigned, by the object's own status.
    pub last_assignment: Option<Timestamp>,
    /// Since when addresses are on their way, by the object's own status.
    pub moving_since: BTreeMap<Address, Timestamp>,
    /// The name in DNS that follows it.
    pub publication: Option<Publication>,
    /// Losses up to then are confirmed by a person.
    pub losses_confirmed: Option<Timestamp>,
    /// The journal: what was begun and is not known to be finished.
    pub journal: Journal,
    /// The journal's entry for addresses that are being created.
    pub creation: Option<Creation>,
    /// What the user allows.
    pub policy: Policy,
}

impl Pool {
    /// A pool of these addresses, all of them wanted, of which nothing else is known or asked.
    pub fn new(key: PoolKey, scope: Scope, addresses: Vec<Address>) -> Self {
        Self {
            key,
            created: Timestamp::UNIX_EPOCH,
            scope,
            desired: addresses.len(),
            addresses,
            adopted: BTreeSet::new(),
            creates: None,
            is_tag_used: false,
            created_here: BTreeSet::new(),
            disowned: BTreeSet::new(),
            tenancy: Tenancy::UntilDrained,
            region: None,
            zones: Vec::new(),
            last_holders: BTreeMap::new(),
            held: BTreeSet::new(),
            lent: BTreeSet::new(),
            returned: BTreeMap::new(),
            ptrs: BTreeMap::new(),
            last_assignment: None,
            moving_since: BTreeMap::new(),
            publication: None,
            losses_confirmed: None,
            journal: Journal::default(),
            creation: None,
            policy: Policy::default(),
        }
    }

    /// The pool's own mark, where the provider shows it on an address: the proof that the pool created it.
    pub(crate) fn mark_on(&self, address: Address, fact: Option<&Fact>) -> Option<&Arc<str>> {
        let is_shown = |mark: &&Arc<str>| fact.is_some_and(|fact| fact.tag.as_ref() == Some(*mark));
        let is_believed = crate::sabotaged!(ReleasedWithoutMark) && self.created_here.contains(&address);
        self.creates.as_ref().filter(|mark| is_shown(mark) || is_believed)
    }

    /// Whether something of an address has to be remembered in the object's status.
    pub fn is_remembered(&self, address: Address) -> bool {
        self.entry(address).is_some()
            || self.last_holders.contains_key(&address)
            || self.created_here.contains(&address)
            || self.returned.contains_key(&address)
    }

    /// How many more addresses can be remembered, and how many more journal entries can be written.
    pub(crate) fn room(&self) -> (usize, usize) {
        let Journal::Known(moves) = &self.journal else { return (0, 0) };
        let removed = moves.keys().filter(|address| !self.addresses.contains(address));
        let remembered = self.addresses.iter().filter(|address| self.is_remembered(**address)).count();
        let entries = moves.len() + usize::from(self.creation.is_some());
        (ADDRESSES_MAX.saturating_sub(remembered + removed.count()), ADDRESSES_MAX.saturating_sub(entries))
    }
}

/// The most addresses, and the most journal entries, that an object's status holds.
pub const ADDRESSES_MAX: usize = 1_000;

/// What was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// The entries, by address.
    Known(BTreeMap<Address, Move>),
    /// It is of a version that this code does not know. It is left alone, and so is everything of the pool.
    Unreadable,
}

impl Default for Journal {
    fn default() -> Self {
        Self::Known(BTreeMap::new())
    }
}

/// One unfinished move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The machine that held the address when the move began.
    pub from: Option<VmId>,
    /// The machine that is to hold it; none only detaches.
    pub to: Option<Target>,
    /// Those of the two that had an address of their own, and must not be left without any. Only then may it be taken off.
    pub owed: BTreeSet<VmId>,
    /// Whether the address is given back to the cloud.
    pub releases: bool,
    /// Whether the holder was alive when the move began, so that the move could have waited.
    pub is_voluntary: bool,
    /// The leader that wrote the entry last.
    pub epoch: Epoch,
    /// When this process wrote the entry, or learnt that it stands. Facts from before that don't count for it.
    pub written: Tick,
}

impl Move {
    /// The machines that the move is about.
    pub fn machines(&self) -> impl Iterator<Item = &VmId> {
        self.from.iter().chain(self.to.iter().map(|to| &to.vm))
    }

    /// Whether it goes nowhere, and only asks again for what has failed where the address is said to be.
    pub fn asks_again(&self) -> bool {
        self.from.is_some() && self.from.as_ref() == self.to.as_ref().map(|to| &to.vm)
    }
}

/// The moment of an entry that is being written: no fact is ever younger, so nothing is called for it.
pub const PENDING: Tick = Tick(u64::MAX);

/// Where an address is to go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The machine.
    pub vm: VmId,
    /// The node it backs.
    pub node: NodeName,
}

/// How a pool's pods fare on a node that its selectors match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// At least one runs and is Ready.
    Ready,
    /// There are some, running or terminating, and none is Ready.
    Present,
    /// There are some, none is known to be Ready, and at least one can't be decoded.
    Unknown,
    /// There are none.
    Absent,
}

/// When a node gives its address up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// A node needs no pods to get an address, and a cordoned one keeps it while the workload's pods are there. Once the
    /// node has to give it up, the address leaves even if no other node can take it.
    UntilDrained,
    /// A node must run a Ready pod (where `needs_pods`), and an address leaves only when another node can take it.
    UntilDisplaced {
        /// Whether pods matter at all.
        needs_pods: bool,
    },
}

/// What the user allows, with all defaults resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether to act at all.
    pub mode: Mode,
    /// How long a NotReady node keeps its address.
    pub failover_grace: Duration,
    /// The most voluntary moves under way at once.
    pub concurrent_moves_max: Option<usize>,
    /// Voluntary moves wait while fewer addresses than this are on nodes that should have them.
    pub healthy_min: usize,
    /// The pause between two assignments.
    pub cool_off: Duration,
    /// Whether an address may be taken from a machine that is not ours.
    pub takeover: Takeover,
    /// Whether placements are spread over zones.
    pub spread: Spread,
    /// Whether a node that is about to be removed gives its address up early.
    pub leaves_on_disruption: bool,
    /// Whether addresses that the object created are given back once they are beyond the desired number.
    pub releases_created: bool,
    /// Whether addresses are taken off their nodes when the object is deleted.
    pub detaches_on_delete: bool,
    /// Whether the workload's pods are evicted from nodes without an address.
    pub evicts: bool,
}

impl Policy {
    /// What applies where the user sets nothing. The failover grace and the cool-off depend on the kind of the object.
    pub fn defaults(failover_grace: Duration, cool_off: Duration) -> Self {
        Self { failover_grace, cool_off, evicts: true, ..Self::default() }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Active,
            failover_grace: Duration::ZERO,
            concurrent_moves_max: None,
            healthy_min: 0,
            cool_off: Duration::ZERO,
            takeover: Takeover::Never,
            spread: Spread::None,
            leaves_on_disruption: false,
            releases_created: false,
            detaches_on_delete: false,
            evicts: false,
        }
    }
}

/// Whether to act or only to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Plan and act.
    Active,
    /// Plan and report.
    Observe,
    /// The object can't be acted on as it stands. It still owns its addresses, so nobody else may have them.
    Refused,
    /// The object is being deleted: finish what was begun, and begin nothing but what the policy asks for at the end.
    Leaving,
}

impl Mode {
    /// Whether anything is changed for the object.
    pub fn acts(self) -> bool {
        matches!(self, Self::Active | Self::Leaving)
    }
}

/// Whether an address may be taken from a machine that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Takeover {
    Never,
    Always,
}

/// Whether placements are spread over zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Spread {
    None,
    Zone,
}

/// An unfinished creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// What the new addresses carry from their first moment on; none where the cloud can't do that.
    pub tag: Option<Arc<str>>,
    /// The addresses that existed before: those with the tag, or where there is none, those that no object listed.
    pub before: BTreeSet<Address>,
    /// Whether a request of unknown outcome may have been sent since the entry was written.
    pub may_have_asked: bool,
    /// The leader that wrote the entry last.
    pub epoch: Epoch,
    /// When this process wrote the entry, or learnt that it stands.
    pub written: Tick,
}
