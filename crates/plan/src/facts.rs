//! What the controller observed: nodes, addresses, VMs and accounts, and the calls in flight.
//!
//! Plain data. Nothing here decides what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::{Address, InFlightRecord, PoolKey, RecordName, Scope, Tick, Timestamp, VmId};

/// A node and its VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The scope and ID of its VM; none while the node has no providerID.
    pub machine: Option<(Scope, VmId)>,
    /// Whether the kubelet reports that the node can run pods.
    pub readiness: Readiness,
    /// When its grace period starts. `None` if the time in the node's condition applies.
    pub grace_starts: Option<Timestamp>,
    /// Whether it is marked unschedulable, by a person or a drain.
    pub is_cordoned: bool,
    /// Whether the node has a taint that announces its removal.
    pub is_leaving: bool,
    /// The region, if the node has a label with it.
    pub region: Option<Arc<str>>,
    /// The zone, if the node has a label with it.
    pub zone: Option<Arc<str>>,
}

impl Node {
    /// A node that is neither cordoned nor about to be removed, and whose region and zone are unknown.
    pub fn new(machine: Option<(Scope, VmId)>, readiness: Readiness) -> Self {
        Self {
            machine,
            readiness,
            grace_starts: None,
            is_cordoned: false,
            is_leaving: false,
            region: None,
            zone: None,
        }
    }
}

/// A node's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is Ready.
    Ready,
    /// It has not been Ready since this time, according to its condition.
    NotReadySince(Timestamp),
    /// The controller can't decode the Node object. The node keeps its address and gets no new one.
    Unknown,
}

/// What a cloud reported about an address, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Which VM holds it.
    pub holding: Holding,
    /// The region in which the address can be used, if the cloud reports it.
    pub region: Option<Arc<str>>,
    /// The tag that it was created with, if it has one.
    pub tag: Option<Arc<str>>,
    /// Whether the last request to attach the address to this VM failed. The cloud may then report the requested holder
    /// instead of the actual one.
    pub is_unconfirmed: bool,
    /// When the listing started that contained it.
    pub as_of: Tick,
}

impl Fact {
    /// A fact from a listing that started at `as_of`, without a region or tag.
    pub fn new(holding: Holding, as_of: Tick) -> Self {
        Self { holding, region: None, tag: None, is_unconfirmed: false, as_of }
    }

    /// The VM that holds the address.
    pub(crate) fn holder(&self) -> Option<&VmId> {
        match &self.holding {
            Holding::By(vm) => Some(vm),
            Holding::Free | Holding::Missing | Holding::Unknown(_) => None,
        }
    }
}

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// On no VM.
    Free,
    /// On this VM.
    By(VmId),
    /// The cloud has no such address.
    Missing,
    /// Unknown, because of an error, an incomplete listing, or a change in flight. The controller never guesses.
    Unknown(Doubt),
}

/// Why it is unknown where an address is, and which VMs may hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Why it is unknown.
    pub why: Arc<str>,
    /// Which VMs of its scope may hold it. If the region of the address is known, only those in its region.
    pub may_be_on: MayBeOn,
    /// Whether the controller has not asked the cloud about it yet, and soon will.
    pub is_unasked: bool,
}

/// The VMs that may hold an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MayBeOn {
    /// Any.
    #[default]
    Any,
    /// Only these.
    Only(BTreeSet<VmId>),
    /// Any VM except these: the cloud shows the interfaces to which the controller attaches their addresses. The address
    /// may still be on another interface of such a VM.
    AllBut(Arc<BTreeSet<VmId>>),
    /// Any in these regions: the others have answered.
    Regions(BTreeSet<Arc<str>>),
}

impl<T: Into<Arc<str>>> From<T> for Doubt {
    /// An address that may be on any VM.
    fn from(why: T) -> Self {
        Self { why: why.into(), may_be_on: MayBeOn::Any, is_unasked: false }
    }
}

/// The state of a VM, as its cloud reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MachineState {
    Running,
    Stopped,
    Gone,
}

/// Which steps a leader still takes before it releases its lease. The next leader takes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSteps {
    /// Those that move an address which no VM serves now.
    Urgent,
    /// Those that attach an address which is on no VM.
    Attach,
    /// None.
    Nothing,
}

/// When the controller's own rate limit lets a call through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The time.
    pub at: Timestamp,
    /// Whether the call was urgent when it got this time.
    pub is_urgent: bool,
}

/// A backoff after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When the controller may retry.
    pub until: Timestamp,
    /// What went wrong.
    pub why: Arc<str>,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; next retry at {}", self.why, self.until)
    }
}

/// The calls in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Addresses with a call or operation in flight.
    pub addresses: BTreeSet<Address>,
    /// VMs with a call or operation in flight.
    pub machines: BTreeSet<VmId>,
    /// Pools with requests to create addresses in flight, and how many.
    pub creations: BTreeMap<PoolKey, usize>,
    /// Pools with an eviction in flight.
    pub evictions: BTreeSet<PoolKey>,
    /// Sets of records with a read or write in flight.
    pub records: BTreeMap<RecordName, InFlightRecord>,
}

/// What is known about an account as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// When the last complete listing of its addresses started.
    pub as_of: Tick,
    /// Whether the controller can tag the addresses that it creates there.
    pub can_tag: bool,
}

/// The VM that an address is on according to the object's status, and whether its node is Ready.
#[derive(Clone, Debug)]
pub struct LastReported {
    /// The VM.
    pub vm: VmId,
    /// Whether its node is Ready.
    pub is_ready: bool,
}

impl LastReported {
    /// Whether the answer of the cloud may be older than the status. An address that is free, and whose holder is dead,
    /// does not have to wait: attaching it to another VM takes it from no live node. An address that the cloud shows on
    /// another VM has to wait, because it may no longer be there.
    pub fn contradicts(&self, shown: &Holding) -> bool {
        match shown {
            Holding::By(vm) => *vm != self.vm,
            Holding::Free | Holding::Missing => self.is_ready,
            Holding::Unknown(_) => false,
        }
    }
}
