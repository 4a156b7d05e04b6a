//! The plan: the steps to take, and a verdict for everything else.
//!
//! Steps print as text, such as `attach 203.0.113.10 to edge-2`. Users read that text in logs, Events and
//! `status.proposed`, and tests compare it. Nothing here decides: the planner chooses the steps, and the controller
//! takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::names::{ADDRESSES_SHOWN_MAX, RECORDS_SHOWN_MAX, list};
use crate::{
    Address, Creation, Kinds, Lacking, MisplacedPods, Move, NodeName, PoolKey, Published, RecordName,
    RecordSet, Scope, Target, Timestamp, Tripped, Verdict, VmId,
};

/// What should happen now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps that the controller may take at the same time: no two are about the same address or VM.
    pub steps: Vec<Step>,
    /// What to do for pools that need more addresses, at most one step for each.
    pub creations: Vec<CreationStep>,
    /// Verdicts about pools that need more addresses.
    pub lacking: BTreeMap<PoolKey, Lacking>,
    /// Nodes from which to evict a pod, at most one for each pool.
    pub evictions: Vec<Eviction>,
    /// Verdicts about pods on nodes without an address of their object.
    pub misplaced_pods: BTreeMap<PoolKey, MisplacedPods>,
    /// A verdict for every address of every pool.
    pub verdicts: BTreeMap<PoolKey, Vec<(Address, Verdict)>>,
    /// Whether another replica should lead: the next step would cut off the node that this controller runs on.
    pub hands_over: bool,
    /// When to plan again even if nothing has changed.
    pub ask_again: Option<Timestamp>,
    /// Scopes to list again now: an address there waits for a newer listing.
    pub read_again: BTreeSet<Scope>,
    /// The maximum age of a listing in each scope in which the planner waits for a change, or in which the state of an
    /// address is unknown.
    pub listing_age_max: BTreeMap<Scope, Duration>,
    /// Since when the state of each address has been unknown for the same reason. The controller copies these times into
    /// the next `World`.
    pub unknown_since: BTreeMap<Address, (Timestamp, Arc<str>)>,
    /// Kinds of objects to list again: their watch has been silent, and something waits for the list.
    pub relist: Kinds,
    /// Pools with a step that waits for a list, or with pods that are not counted yet. Their status waits, too.
    pub awaits_list: BTreeSet<PoolKey>,
    /// VMs to ask the cloud about: their state shows whether the holder is lost, or only stopped.
    pub ask_machines: BTreeMap<Scope, BTreeSet<VmId>>,
    /// Breakers that are tripped.
    pub tripped: BTreeMap<Scope, Tripped>,
    /// When holders were lost, in whole seconds. The controller keeps these times in the next world and in the
    /// statuses.
    pub losses: BTreeMap<Address, Timestamp>,
    /// Which nodes should have which marks.
    pub marks: Marks,
    /// Sets of records to read or write, each at most once.
    pub records: Vec<RecordStep>,
    /// When each published address without a matching node lost its match. The controller copies these times into the
    /// next `World`.
    pub unmatched: BTreeMap<Address, Timestamp>,
    /// Verdicts about the DNS names of pools.
    pub published: BTreeMap<PoolKey, Vec<(RecordName, Published)>>,
}

/// Which nodes should have which marks. The controller adds a mark where it knows that the node holds an address, and
/// removes one only where it knows that the node holds none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// For each kind of object: the nodes that hold an address, and which one.
    pub holders: BTreeMap<&'static str, BTreeMap<NodeName, Mark>>,
    /// Kinds of objects for which the plan does not know every holder, because the controller can't read all objects or
    /// their journals. It removes no mark of these kinds.
    pub uncertain: BTreeSet<&'static str>,
    /// For each kind of object: the objects that the controller leaves alone. It removes none of their marks.
    pub left_alone: BTreeMap<&'static str, LeftAlone>,
    /// For each kind of object: nodes that may hold an address, for example because its state is unknown or a call to
    /// attach it is in flight. They keep their marks of this kind.
    pub unsure: BTreeMap<&'static str, BTreeSet<NodeName>>,
}

/// Objects that the controller does not act on, because they are refused or in mode Observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftAlone {
    /// Their names.
    pub objects: BTreeSet<Arc<str>>,
    /// Their addresses.
    pub addresses: BTreeSet<Address>,
    /// The nodes that they select, and those that hold or held one of their addresses. Another controller may have marked
    /// them with a label that does not name the object.
    pub nodes: BTreeSet<NodeName>,
}

/// The mark of a node that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The address.
    pub address: Address,
    /// The name of the object that the address belongs to.
    pub object: Arc<str>,
}

/// One thing to do for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The pool of the address.
    pub pool: PoolKey,
    /// The scope of the address.
    pub scope: Scope,
    /// The address.
    pub address: Address,
    /// Whether the step is urgent and goes before others, because no VM serves the address now.
    pub is_urgent: bool,
    /// What to do.
    pub action: Action,
    /// The name in the PTR record of the address when it was detached from its last VM.
    pub ptr: Option<Arc<str>>,
}

/// What to do with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write a new move into the journal. Its first call follows after the write and a new listing.
    Begin(Move),
    /// Write the entry of an earlier leader again, with the epoch of this leader.
    Claim,
    /// Remove the entry from the journal: the move is complete.
    Finish,
    /// Remove the entry from the journal: the facts have changed, so the move is not needed or not possible any more.
    Abandon,
    /// Write into the journal that the target VM has an ephemeral address, so that the controller restores one later.
    NoteEphemeral,
    /// Save the name in the PTR record of the address in the object's status, so that the controller can restore it.
    KeepPtr(Arc<str>),
    /// Attach the address to a VM, unless the VM has an ephemeral address.
    Attach(Target),
    /// Attach the address to a VM in place of its ephemeral address.
    Replace(Target),
    /// Give a VM an ephemeral address again.
    Restore(VmId),
    /// Detach the address from a VM.
    Detach(VmId),
    /// Release the address at the provider permanently, if the provider shows this tag on it.
    Release(Arc<str>),
    /// Remove the address from the object's spec: it was released.
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

    /// The VM that a call leaves without a public address, at least for a short time.
    pub(crate) fn cuts_off(&self) -> Option<&VmId> {
        match self {
            Self::Detach(vm) => Some(vm),
            Self::Replace(to) => Some(&to.vm),
            _ => None,
        }
    }

    /// The VM that a call to the cloud is about.
    pub fn machine(&self) -> Option<&VmId> {
        match self {
            Self::Attach(to) | Self::Replace(to) => Some(&to.vm),
            Self::Detach(vm) | Self::Restore(vm) => Some(vm),
            Self::Begin(_)
            | Self::Claim
            | Self::NoteEphemeral
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
                write!(f, "begin to attach {address} to {}", to.node)
            }
            Action::Begin(Move { from: Some(from), to: Some(to), .. }) => {
                write!(f, "begin to move {address} from {from} to {}", to.node)
            }
            Action::Begin(Move { from: Some(from), to: None, .. }) => {
                write!(f, "begin to detach {address} from {from}")
            }
            Action::Begin(Move { from: None, to: None, .. }) => write!(f, "begin to release {address}"),
            Action::Release(_) => write!(f, "release {address}"),
            Action::Drop => write!(f, "remove {address} from the object"),
            Action::Claim => write!(f, "claim {address}"),
            Action::Finish => write!(f, "finish the move of {address}"),
            Action::Abandon => write!(f, "abandon the move of {address}"),
            Action::Attach(to) => write!(f, "attach {address} to {}", to.node),
            Action::Replace(to) => {
                write!(f, "attach {address} to {} in place of the VM's ephemeral address", to.node)
            }
            Action::Restore(vm) => write!(f, "restore an ephemeral address on {vm} in place of {address}"),
            Action::NoteEphemeral => {
                write!(f, "record for {address} that the target VM has an ephemeral address")
            }
            Action::KeepPtr(name) => write!(f, "save the PTR name {name} of {address} in the status"),
            Action::Detach(from) => write!(f, "detach {address} from {from}"),
        }
    }
}

impl fmt::Display for Plan {
    /// The steps, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|step| step as &dyn fmt::Display);
        let creations = self.creations.iter().map(|step| step as &dyn fmt::Display);
        let evictions = self.evictions.iter().map(|step| step as &dyn fmt::Display);
        let records = self.records.iter().map(|step| step as &dyn fmt::Display);
        let list = (!self.relist.is_empty()).then(|| format!("list {}", self.relist));
        let lists = list.iter().map(|list| list as &dyn fmt::Display);
        let all = steps.chain(creations).chain(evictions).chain(records).chain(lists);
        for (at, step) in all.enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}

/// One thing to do with a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordStep {
    /// The pool that the DNS name belongs to.
    pub pool: PoolKey,
    /// Which set.
    pub name: RecordName,
    /// What to do.
    pub action: RecordAction,
}

/// What to do with a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordAction {
    /// Read it: its contents are unknown or very old.
    Read,
    /// Read it again, because somebody else may have changed it. This can wait.
    ReadAgain,
    /// Replace its values, if it has not changed since it was read.
    Write {
        /// The set as it was read.
        old: RecordSet,
        /// The new set, with the controller's mark.
        new: RecordSet,
    },
    /// Delete it and the controller's mark, if it has not changed since it was read.
    Remove(RecordSet),
}

impl fmt::Display for RecordStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            RecordAction::Read | RecordAction::ReadAgain => write!(f, "read {}", self.name),
            RecordAction::Write { new, .. } => {
                write!(f, "publish {}: {}", self.name, list(&new.values, RECORDS_SHOWN_MAX))
            }
            RecordAction::Remove(_) => write!(f, "remove {}", self.name),
        }
    }
}

/// One thing to do for a pool that needs more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationStep {
    /// The pool.
    pub pool: PoolKey,
    /// Its scope.
    pub scope: Scope,
    /// What to do.
    pub action: CreationAction,
}

/// What to do for a pool that needs more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreationAction {
    /// Write this entry into the journal.
    Begin(Creation),
    /// Write the entry of an earlier leader again, with the epoch of this leader.
    Claim,
    /// Write these addresses into the object's spec: they were created for it.
    Adopt(BTreeSet<Address>),
    /// Create addresses, each with its own request to the cloud.
    Ask {
        /// How many.
        count: usize,
        /// The region of the addresses.
        region: Arc<str>,
        /// The tag of the addresses.
        tag: Option<Arc<str>>,
    },
    /// Remove the entry from the journal: there are as many addresses as desired, or as many as are allowed.
    Finish,
}

impl fmt::Display for CreationStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            CreationAction::Begin(Creation { tag: Some(tag), .. }) => {
                write!(f, "begin to create addresses, tagged {tag}")
            }
            CreationAction::Begin(Creation { before, .. }) => {
                write!(
                    f,
                    "begin to create addresses; the account already has these, which no object lists: {}",
                    list(before, ADDRESSES_SHOWN_MAX)
                )
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

/// A node from which the controller should evict one pod of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The pool that the workload belongs to.
    pub pool: PoolKey,
    /// The node of the pod.
    pub node: NodeName,
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evict a pod from {}", self.node)
    }
}
