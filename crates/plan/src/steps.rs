//! What should happen, and why the rest should not. Both print as text, and tests compare that text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::names::{ADDRESSES_SHOWN_MAX, RECORDS_SHOWN_MAX, list};
use crate::{
    Address, Astray, Creation, Lacking, Move, NodeName, PoolKey, Published, RecordName, RecordSet, Scope,
    Target, Timestamp, Tripped, Verdict, VmId,
};

/// What should happen now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps that may be taken at the same time: no two name one address or one machine.
    pub steps: Vec<Step>,
    /// What to do for pools that lack addresses, one each at the most.
    pub creations: Vec<CreationStep>,
    /// What is to be said of pools that lack addresses.
    pub lacking: BTreeMap<PoolKey, Lacking>,
    /// Nodes from which a pod should be evicted, one for each pool at the most.
    pub evictions: Vec<Eviction>,
    /// What is to be said of pods on nodes without an address of their object.
    pub astray: BTreeMap<PoolKey, Astray>,
    /// What is to be said of every address of every pool.
    pub verdicts: BTreeMap<PoolKey, Vec<(Address, Verdict)>>,
    /// Whether somebody else should lead: the next step would cut off the node that we run on.
    pub hands_over: bool,
    /// When to ask again though nothing has changed.
    pub ask_again: Option<Timestamp>,
    /// Scopes to be listed again before anything can go on there.
    pub read_again: BTreeSet<Scope>,
    /// Scopes in which an address is changing and we don't know how: to be listed every now and then.
    pub unsettled: BTreeSet<Scope>,
    /// Machines whose state would tell a lost holder from a dead one.
    pub ask_machines: BTreeMap<Scope, BTreeSet<VmId>>,
    /// Breakers that are tripped.
    pub tripped: BTreeMap<Scope, Tripped>,
    /// When holders were lost, in whole seconds: for the next world, and for the statuses.
    pub losses: BTreeMap<Address, Timestamp>,
    /// What nodes should be marked with.
    pub marks: Marks,
    /// Sets of records to be read or written, each once at the most.
    pub records: Vec<RecordStep>,
    /// Since when published addresses have lost their match: to be told to the next world.
    pub unmatched: BTreeMap<Address, Timestamp>,
    /// What is to be said of the names that pools have in DNS.
    pub published: BTreeMap<PoolKey, Vec<(RecordName, Published)>>,
}

/// What nodes should be marked with. A mark is added where an address is known to be, and taken away only where it is
/// known not to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The nodes that hold an address of each kind of object, and which one.
    pub holders: BTreeMap<&'static str, BTreeMap<NodeName, Mark>>,
    /// The kinds of which something is not known, so that a mark on any other node may be right.
    pub uncertain: BTreeSet<&'static str>,
    /// The nodes that a call is bringing an address of each kind to, where it may be already.
    pub coming: BTreeMap<&'static str, BTreeSet<NodeName>>,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The address.
    pub address: Address,
    /// The name of the object that it is of.
    pub object: Arc<str>,
}

/// Something to do for a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For whom.
    pub pool: PoolKey,
    /// Where.
    pub scope: Scope,
    /// The address.
    pub address: Address,
    /// Whether it should go before those that are not: nobody is served at the address.
    pub is_urgent: bool,
    /// What to do.
    pub action: Action,
    /// The name that the address had in its PTR record when it left its last machine.
    pub ptr: Option<Arc<str>>,
}

/// What to do with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write a new move into the journal. Nothing is called for it before that is written and the cloud was read again.
    Begin(Move),
    /// Write another leader's entry again, with our epoch.
    Claim,
    /// Take the entry out of the journal: the address is where it was to go.
    Finish,
    /// Take the entry out of the journal: it makes no sense any more.
    Abandon,
    /// Write into the journal that the target has an address of its own, so that it gets one back.
    Owe,
    /// Write the name in the address's PTR record into the object's status, so that the address gets it back.
    KeepPtr(Arc<str>),
    /// Tell the cloud to put the address on a machine, unless that has one of its own.
    Attach(Target),
    /// Tell the cloud to put the address on a machine in place of its own.
    Replace(Target),
    /// Tell the cloud to give a machine an address of its own again.
    Restore(VmId),
    /// Tell the cloud to take the address off a machine.
    Detach(VmId),
    /// Tell the cloud to take the address back for good, if it carries this mark.
    Release(Arc<str>),
    /// Take the address out of the object: the cloud has it back.
    Drop,
}

impl Action {
    /// Whether it is a call to the cloud, and not only an entry in the journal.
    pub fn is_call(&self) -> bool {
        matches!(
            self,
            Self::Attach(_) | Self::Replace(_) | Self::Restore(_) | Self::Detach(_) | Self::Release(_)
        )
    }

    /// The machine that a call leaves without an address, for a while at least.
    pub(crate) fn cuts_off(&self) -> Option<&VmId> {
        match self {
            Self::Detach(vm) => Some(vm),
            Self::Replace(to) => Some(&to.vm),
            _ => None,
        }
    }

    /// The machine that a call to the cloud is about.
    pub fn machine(&self) -> Option<&VmId> {
        match self {
            Self::Attach(to) | Self::Replace(to) => Some(&to.vm),
            Self::Detach(vm) | Self::Restore(vm) => Some(vm),
            Self::Begin(_)
            | Self::Claim
            | Self::Owe
            | Self::KeepPtr(_)
            | Self::Finish
            | Self::Abandon
            | Self::Release(_)
            | Self::Drop => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match &self.action {
            Action::Begin(Move { from: None, to: Some(to), .. }) => {
                write!(f, "begin {address} -> {}", to.node)
            }
            Action::Begin(Move { from: Some(from), to: Some(to), .. }) => {
                write!(f, "begin {address} {from} -> {}", to.node)
            }
            Action::Begin(Move { from: Some(from), to: None, .. }) => write!(f, "begin {address} off {from}"),
            Action::Begin(Move { from: None, to: None, .. }) => write!(f, "begin to release {address}"),
            Action::Release(_) => write!(f, "release {address}"),
            Action::Drop => write!(f, "drop {address}"),
            Action::Claim => write!(f, "claim {address}"),
            Action::Finish => write!(f, "finish {address}"),
            Action::Abandon => write!(f, "abandon {address}"),
            Action::Attach(to) => write!(f, "attach {address} -> {}", to.node),
            Action::Replace(to) => write!(f, "attach {address} -> {} in place of its own", to.node),
            Action::Restore(vm) => write!(f, "give {vm} an address of its own after {address}"),
            Action::Owe => write!(f, "note for {address} that its target has an address of its own"),
            Action::KeepPtr(name) => write!(f, "keep the PTR name {name} of {address}"),
            Action::Detach(from) => write!(f, "detach {address} from {from}"),
        }
    }
}

impl fmt::Display for Plan {
    /// The steps, a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|step| step as &dyn fmt::Display);
        let creations = self.creations.iter().map(|step| step as &dyn fmt::Display);
        let evictions = self.evictions.iter().map(|step| step as &dyn fmt::Display);
        let records = self.records.iter().map(|step| step as &dyn fmt::Display);
        for (at, step) in steps.chain(creations).chain(evictions).chain(records).enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
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
            RecordAction::Write { new, .. } => {
                write!(f, "publish {}: {}", self.name, list(&new.values, RECORDS_SHOWN_MAX))
            }
            RecordAction::Remove(_) => write!(f, "remove {}", self.name),
        }
    }
}

/// Something to do for a pool that lacks addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationStep {
    /// For whom.
    pub pool: PoolKey,
    /// Where.
    pub scope: Scope,
    /// What to do.
    pub action: CreationAction,
}

/// What to do for a pool that lacks addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreationAction {
    /// Write this entry into the journal.
    Begin(Creation),
    /// Write another leader's entry again, with our epoch.
    Claim,
    /// Write these addresses into the object: they were made for it.
    Adopt(BTreeSet<Address>),
    /// Ask the cloud for so many addresses, each in a request of its own.
    Ask {
        /// How many.
        count: usize,
        /// Where they can be used.
        region: Arc<str>,
        /// What they carry.
        tag: Option<Arc<str>>,
    },
    /// Take the entry out of the journal: there are as many as desired.
    Finish,
}

impl fmt::Display for CreationStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            CreationAction::Begin(Creation { tag: Some(tag), .. }) => {
                write!(f, "begin to create, tagged {tag}")
            }
            CreationAction::Begin(Creation { before, .. }) => {
                write!(f, "begin to create beside {}", list(before, ADDRESSES_SHOWN_MAX))
            }
            CreationAction::Claim => write!(f, "claim the creation"),
            CreationAction::Adopt(addresses) => write!(f, "adopt {}", list(addresses, ADDRESSES_SHOWN_MAX)),
            CreationAction::Ask { count, region, tag: Some(tag) } => {
                write!(f, "create {count} in {region}, tagged {tag}")
            }
            CreationAction::Ask { count, region, tag: None } => write!(f, "create {count} in {region}"),
            CreationAction::Finish => write!(f, "finish the creation"),
        }
    }
}

/// A node from which one pod of a workload should be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Whose workload it is.
    pub pool: PoolKey,
    /// Where the pod is.
    pub node: NodeName,
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evict a pod from {}", self.node)
    }
}
