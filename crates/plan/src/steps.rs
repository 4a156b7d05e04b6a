//! What should happen, and why the rest should not. Both print as text, and tests compare that text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::losses::Tripped;
use crate::{
    ADDRESSES_MAX, Address, Astray, CreationStep, Eviction, Lacking, Move, NodeName, Pause, PoolKey,
    Published, RecordName, RecordStep, Scope, Target, Timestamp, VmId, Why,
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

/// What is to be said of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is on this node and stays there.
    Settled(NodeName),
    /// It is on this machine, which should not have it, and stays until another node can take it.
    Lingers(VmId, Option<NodeName>, Why),
    /// It is on its way to this node, or off its node.
    Moving(Option<NodeName>),
    /// It serves where it is, and goes to this node once few others are on no machine.
    Queued(NodeName),
    /// It is on no machine of ours, and no node can take it.
    NoNode,
    /// It is on no machine of ours, and it is in another region than all matching nodes, whose regions these are.
    OtherRegion(Arc<str>, Vec<Arc<str>>),
    /// Its cloud can't attach it to any machine, for this reason.
    Unsupported(&'static str),
    /// It is on a machine that is not ours.
    Foreign(VmId),
    /// An older object owns it.
    OwnedBy(PoolKey),
    /// The cloud does not know it.
    Missing,
    /// It is beyond the desired number.
    Disabled,
    /// It is beyond the desired number, and is being given back to the cloud.
    Releasing,
    /// It is to be released, and the provider does not show this object's mark on it.
    Unmarked,
    /// Its object is being deleted, and nothing is done with it any more.
    Leaving,
    /// What the cloud says is not known.
    Unknown(std::sync::Arc<str>),
    /// It would be moved, but for this.
    Waits(Waits),
    /// This step would be taken if the pool were active.
    WouldStep(String),
}

/// Why a move that could be made is not made yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// As many voluntary moves as allowed are under way.
    ForBudget,
    /// Too few addresses are on nodes that should have them.
    ForHealthy,
    /// The last assignment was too short a time ago.
    ForCoolOff(Option<Timestamp>),
    /// Too many holders were lost at once, and nobody has confirmed that.
    ForConfirmation(Tripped),
    /// The journal is of a version that this controller does not know.
    ForNewerController,
    /// The object can't be acted on as it stands.
    ForCorrection,
    /// The last try failed a short while ago.
    ForRetry(Pause),
    /// The object's status has no room for what has to be remembered of it.
    ForRoom,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(node) => write!(f, "on {node}"),
            Self::Lingers(_, Some(node), why) => {
                write!(f, "stays on {node} until another node can take it: {why}")
            }
            Self::Lingers(vm, None, why) => write!(f, "stays on {vm} until another node can take it: {why}"),
            Self::Moving(Some(node)) => write!(f, "is on its way to {node}"),
            Self::Moving(None) => write!(f, "is being taken off its node"),
            Self::Queued(node) => write!(
                f,
                "serves where it is until it can go to {node}: others of the account are on their way, and few may be at a time"
            ),
            Self::NoNode => write!(f, "waits: no node can take it"),
            Self::OtherRegion(region, nodes) => {
                write!(
                    f,
                    "waits: it is in region {region}, and all matching nodes are in {}",
                    nodes.join(", ")
                )
            }
            Self::Unsupported(why) => write!(f, "can't be attached: {why}"),
            Self::Foreign(vm) => write!(f, "is held by {vm}, which is no node of this cluster"),
            Self::OwnedBy(pool) => write!(f, "belongs to {pool}, which is older"),
            Self::Missing => write!(f, "is not known to the cloud"),
            Self::Disabled => write!(f, "is beyond the desired number"),
            Self::Releasing => write!(f, "is beyond the desired number, and is being released"),
            Self::Unmarked => write!(
                f,
                "is not released: the provider does not show this object's mark on it; release it at the provider, or remove \
                 it from spec.ips"
            ),
            Self::Leaving => write!(f, "is left alone: its object is being deleted"),
            Self::Unknown(reason) => write!(f, "is left alone: {reason}"),
            Self::Waits(why) => write!(f, "waits: {why}"),
            Self::WouldStep(step) => write!(f, "is only observed, otherwise: {step}"),
        }
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForBudget => write!(f, "policy.maxConcurrentMoves are under way"),
            Self::ForHealthy => write!(f, "fewer than policy.minHealthy addresses are on healthy nodes"),
            Self::ForCoolOff(Some(until)) => write!(f, "the cool-off ends at {until}"),
            Self::ForCoolOff(None) => write!(f, "another address is being assigned, and a cool-off follows"),
            Self::ForConfirmation(Tripped { lost, holders, until }) => write!(
                f,
                "{lost} of {holders} holders were lost at once; if that is so, confirm it with the annotation \
                 netinfra.darkbrains.com/confirm-loss={until}"
            ),
            Self::ForNewerController => write!(f, "its unfinished moves were written by a newer controller"),
            Self::ForCorrection => write!(f, "its object can't be acted on as it stands"),
            Self::ForRetry(pause) => write!(f, "the last try failed: {pause}"),
            Self::ForRoom => write!(
                f,
                "the object's status is full: it holds at most {ADDRESSES_MAX} addresses and {ADDRESSES_MAX} unfinished moves"
            ),
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
