//! What was observed: nodes, addresses, machines and accounts, and what the executor is doing.
//!
//! Plain data. Nothing here says what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::{Address, InFlightRecord, PoolKey, RecordName, Scope, Tick, Timestamp, VmId};

/// A node and the machine it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where its machine is, and which; none while the cloud provider has not said.
    pub machine: Option<(Scope, VmId)>,
    /// Whether the kubelet reports that the node can run pods.
    pub readiness: Readiness,
    /// Whether a person or a drain marked it unschedulable.
    pub is_cordoned: bool,
    /// Whether a taint announces that it is about to be removed.
    pub is_leaving: bool,
    /// The region, where the node's labels tell.
    pub region: Option<Arc<str>>,
    /// The zone, where the node's labels tell.
    pub zone: Option<Arc<str>>,
}

/// A node's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is Ready.
    Ready,
    /// It has not been Ready since then.
    NotReadySince(Timestamp),
    /// Its object can't be decoded. The node keeps what it holds and gets nothing new.
    Unknown,
}

/// What a cloud says of an address, and when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Who holds it.
    pub holding: Holding,
    /// Where the address can be used, as far as the cloud says.
    pub region: Option<Arc<str>>,
    /// The tag that it was created with, where it carries one.
    pub tag: Option<Arc<str>>,
    /// Whether the change that brought it to its holder has failed: what is told may be what was wanted, and not what is.
    pub is_doubtful: bool,
    /// When the listing that told it began.
    pub as_of: Tick,
}

impl Fact {
    /// The machine that holds the address.
    pub(crate) fn holder(&self) -> Option<&VmId> {
        match &self.holding {
            Holding::By(vm) => Some(vm),
            Holding::Free | Holding::Missing | Holding::Unknown(_) => None,
        }
    }
}

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nobody.
    Free,
    /// A machine.
    By(VmId),
    /// The cloud has no such address.
    Missing,
    /// The cloud did not say, for this reason. An error, a missing page, a change under way: never a guess.
    Unknown(Arc<str>),
}

/// What a cloud says of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MachineState {
    Running,
    Stopped,
    Gone,
}

/// When our own budget lets a call through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When that is.
    pub at: Timestamp,
    /// Whether the call that was told so was urgent.
    pub is_urgent: bool,
}

/// Something failed, and is not tried again before a while has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it may be tried again.
    pub until: Timestamp,
    /// What went wrong.
    pub why: Arc<str>,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; the next try is due at {}", self.why, self.until)
    }
}

/// What the executor is doing right now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Addresses with a call or operation under way.
    pub addresses: BTreeSet<Address>,
    /// Machines with a call or operation under way.
    pub machines: BTreeSet<VmId>,
    /// Pools that asked for addresses and have no answer yet, and how often.
    pub creations: BTreeMap<PoolKey, usize>,
    /// Pools for which a pod is being evicted.
    pub evictions: BTreeSet<PoolKey>,
    /// Sets of records that are being read or written.
    pub records: BTreeMap<RecordName, InFlightRecord>,
}

/// What a cloud said of an account as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// When the last listing began that told of every address.
    pub as_of: Tick,
    /// Whether what is created there can carry a tag.
    pub can_tag: bool,
}

/// Where the status of an object says that an address is, and whether the node there is Ready.
#[derive(Clone, Debug)]
pub struct LastReported {
    /// The VM.
    pub vm: VmId,
    /// Whether its node is Ready.
    pub is_ready: bool,
}

impl LastReported {
    /// Whether what a cloud shows may be older than this. An address that is free of a dead holder waits for nothing: attaching it
    /// to another VM takes it from nobody. One that is shown elsewhere may no longer be there.
    pub fn contradicts(&self, shown: &Holding) -> bool {
        match shown {
            Holding::By(vm) => *vm != self.vm,
            Holding::Free | Holding::Missing => self.is_ready,
            Holding::Unknown(_) => false,
        }
    }
}
