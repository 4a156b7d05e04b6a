//! Pools: the addresses of an object, its policy, and the journal of its unfinished moves and creations.
//!
//! Plain data. The planner decides what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Address, Epoch, Fact, Kind, Kinds, NodeName, PoolKey, Publication, Scope, Tick, Timestamp, VmId,
};

/// One NetIPAllocation, FloatingIPPool or NodeDNSRecordSet, in the form that the planner reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The object that it is made from.
    pub key: PoolKey,
    /// When the object was created: the oldest object that lists an address owns it.
    pub created: Timestamp,
    /// The scope of its addresses.
    pub scope: Scope,
    /// Its addresses, in the user's order.
    pub addresses: Vec<Address>,
    /// How many of its addresses should be on nodes. Addresses beyond that number are disabled.
    pub desired: usize,
    /// Addresses that the controller created for this object, but that its spec does not list yet. The
    /// controller uses an address only once the spec lists it.
    pub adopted: BTreeSet<Address>,
    /// If the controller creates addresses for this kind of object: the tag of created addresses.
    pub creates: Option<Arc<str>>,
    /// Whether the controller may have created addresses with that tag, according to the object's status.
    pub is_tag_used: bool,
    /// Its addresses that the controller created, according to the object's status. This is no proof, because everyone
    /// who may write the status can add some: see [`Pool::mark_on`].
    pub created_here: BTreeSet<Address>,
    /// Addresses that were not created for it, according to a person (annotation `not-created`).
    pub disowned: BTreeSet<Address>,
    /// When a node has to give up its address.
    pub tenancy: Tenancy,
    /// The kinds that the controller must read to know which nodes run the object's pods. Empty if the object
    /// selects no pods.
    pub pods_from: Kinds,
    /// If set, new placements go only to this region.
    pub region: Option<Arc<str>>,
    /// New placements go only to these zones; empty means all.
    pub zones: Vec<Arc<str>>,
    /// The VM of a node that held each address last, according to the object's status.
    pub last_holders: BTreeMap<Address, VmId>,
    /// Its addresses that were still attached to their VM in `last_holders` when the controller last wrote the object's
    /// status.
    pub held: BTreeSet<Address>,
    /// Its addresses that replaced an ephemeral address on their last VM. When the controller detaches such an address,
    /// it restores an ephemeral address on that VM.
    pub replaced_ephemeral: BTreeSet<Address>,
    /// The last VMs that each address has left and on which the controller restored an ephemeral address, according to
    /// the object's status.
    pub returned: BTreeMap<Address, Vec<VmId>>,
    /// The name in the PTR record of each address when the address was last detached from a VM, according to the object's
    /// status.
    pub ptrs: BTreeMap<Address, Arc<str>>,
    /// When an address was last assigned, according to the object's status.
    pub last_assignment: Option<Timestamp>,
    /// When the unfinished move of each address started, according to the object's status.
    pub moving_since: BTreeMap<Address, Timestamp>,
    /// The DNS name that it publishes.
    pub publication: Option<Publication>,
    /// A person has confirmed all losses up to this time.
    pub losses_confirmed: Option<Timestamp>,
    /// The journal of its unfinished moves.
    pub journal: Journal,
    /// The journal entry of its unfinished creation.
    pub creation: Option<Creation>,
    /// Its policy.
    pub policy: Policy,
}

impl Pool {
    /// A pool that wants all of these addresses on nodes, with defaults for everything else.
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
            pods_from: Kinds::default(),
            region: None,
            zones: Vec::new(),
            last_holders: BTreeMap::new(),
            held: BTreeSet::new(),
            replaced_ephemeral: BTreeSet::new(),
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

    /// The kinds that decide which nodes keep or get an address. With [`Tenancy::UntilDrained`], pods matter only for a
    /// voluntary move.
    pub(crate) fn depends_on(&self, is_voluntary: bool) -> Kinds {
        let nodes = Kinds::default().with(Kind::Nodes);
        match self.tenancy {
            Tenancy::UntilDrained if !is_voluntary => nodes,
            Tenancy::UntilDrained | Tenancy::UntilDisplaced { .. } => {
                let mut kinds = nodes;
                kinds.add(self.pods_from);
                kinds
            }
        }
    }

    /// The pool's mark, if the provider shows it on an address. This is the proof that the address was created for the
    /// pool.
    pub(crate) fn mark_on(&self, address: Address, fact: Option<&Fact>) -> Option<&Arc<str>> {
        let is_shown = |mark: &&Arc<str>| fact.is_some_and(|fact| fact.tag.as_ref() == Some(*mark));
        let is_believed = crate::sabotaged!(ReleasedWithoutMark) && self.created_here.contains(&address);
        self.creates.as_ref().filter(|mark| is_shown(mark) || is_believed)
    }

    /// Whether the object's status has to remember something about an address.
    pub fn is_remembered(&self, address: Address) -> bool {
        self.entry(address).is_some()
            || self.last_holders.contains_key(&address)
            || self.created_here.contains(&address)
            || self.returned.contains_key(&address)
    }

    /// How many more addresses and journal entries fit into the object's status.
    pub(crate) fn room(&self) -> (usize, usize) {
        let Journal::Known(moves) = &self.journal else { return (0, 0) };
        let removed = moves.keys().filter(|address| !self.addresses.contains(address));
        let remembered = self.addresses.iter().filter(|address| self.is_remembered(**address)).count();
        let entries = moves.len() + usize::from(self.creation.is_some());
        (ADDRESSES_MAX.saturating_sub(remembered + removed.count()), ADDRESSES_MAX.saturating_sub(entries))
    }
}

/// The maximum number of addresses, and of journal entries, in an object's status.
pub const ADDRESSES_MAX: usize = 1_000;

/// The unfinished moves of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// The entries, by address.
    Known(BTreeMap<Address, Move>),
    /// A newer controller wrote it, and this version can't read it. The controller then changes nothing of the pool.
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
    /// The VM that held the address when the move started.
    pub from: Option<VmId>,
    /// The VM that should get the address. `None` if the move only detaches it.
    pub to: Option<Target>,
    /// Which of the two VMs had an ephemeral address. The controller removes it only after this is written, and
    /// restores one before the move ends.
    pub to_restore: BTreeSet<VmId>,
    /// Whether the controller releases the address to the cloud.
    pub releases: bool,
    /// Whether the holder was alive when the move started, so that the move can wait.
    pub is_voluntary: bool,
    /// The leader that wrote the entry last.
    pub epoch: Epoch,
    /// When this process wrote the entry, or first read it. Older facts don't count for it.
    pub written: Tick,
}

impl Move {
    /// The VMs of the move.
    pub fn machines(&self) -> impl Iterator<Item = &VmId> {
        self.from.iter().chain(self.to.iter().map(|to| &to.vm))
    }

    /// Whether source and target are the same: the move only repeats a failed attach on the VM that the cloud reports
    /// as the holder.
    pub fn repeats_attach(&self) -> bool {
        self.from.is_some() && self.from.as_ref() == self.to.as_ref().map(|to| &to.vm)
    }
}

/// The tick of a journal entry that is not in the status yet. It is later than every fact, so the controller makes no
/// call for the entry until it is written.
pub const PENDING: Tick = Tick(u64::MAX);

/// The target of a move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The VM.
    pub vm: VmId,
    /// The node of the VM.
    pub node: NodeName,
}

/// The state of a pool's pods on a matching node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// At least one is Ready.
    Ready,
    /// There are some, running or terminating, and none is Ready.
    Present,
    /// It is unknown whether a Ready one runs there: the pods were not all listed yet, or at least one can't be
    /// decoded.
    Unknown,
    /// There are none.
    Absent,
}

/// When a node has to give up its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// A node needs no pods to get an address. A cordoned node keeps it while the workload's pods run there. After that
    /// the controller detaches it, even if no other node can take it.
    UntilDrained,
    /// With `needs_pods`, a node must run a Ready pod. An address leaves only when another node can take it.
    UntilDisplaced {
        /// Whether pods matter at all.
        needs_pods: bool,
    },
}

/// The policy of an object, with all defaults resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether the controller acts on the object.
    pub mode: Mode,
    /// How long a NotReady node keeps its address.
    pub failover_grace: Duration,
    /// The maximum number of voluntary moves in flight.
    pub concurrent_moves_max: Option<usize>,
    /// Voluntary moves wait while fewer addresses than this are on nodes that should have them.
    pub healthy_min: usize,
    /// The pause between two assignments.
    pub cool_off: Duration,
    /// Whether the controller may take an address from a VM that is not a node of this cluster.
    pub takeover: Takeover,
    /// Whether the planner spreads addresses over zones.
    pub spread: Spread,
    /// Whether the address of a node that is about to be removed moves early.
    pub leaves_on_disruption: bool,
    /// Whether the controller releases addresses that it created and that are beyond the desired number.
    pub releases_created: bool,
    /// Whether the controller detaches the addresses when the object is deleted.
    pub detaches_on_delete: bool,
    /// Whether the controller evicts the workload's pods from nodes without an address.
    pub evicts: bool,
}

impl Policy {
    /// The defaults. The grace period and the cool-off depend on the kind of the object.
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

/// Whether the controller acts on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Plan and act.
    Active,
    /// Plan and report.
    Observe,
    /// The controller can't act on the object. The object still owns its addresses, so no other object gets them.
    Refused,
    /// The object is being deleted: finish unfinished moves, and start only what `policy.onDelete` asks for.
    Leaving,
}

impl Mode {
    /// Whether the controller changes anything for the object.
    pub fn acts(self) -> bool {
        matches!(self, Self::Active | Self::Leaving)
    }
}

/// Whether the controller may take an address from a VM that is not a node of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Takeover {
    Never,
    Always,
}

/// Whether the planner spreads addresses over zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Spread {
    None,
    Zone,
}

/// An unfinished creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// The tag that new addresses get in the request that creates them; none if the cloud can't do that.
    pub tag: Option<Arc<str>>,
    /// The addresses that existed before: with a tag those that have it, otherwise those that no object listed.
    pub before: BTreeSet<Address>,
    /// Whether the controller may have sent a request with an unknown outcome since the entry was written.
    pub may_have_asked: bool,
    /// The leader that wrote the entry last.
    pub epoch: Epoch,
    /// When this process wrote the entry, or first read it.
    pub written: Tick,
}
