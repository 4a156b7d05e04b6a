//! What the plan reports about every address, record set, workload and pool: what happens to it, or why nothing does.
//!
//! Verdicts print as text. Users read that text in conditions, Events and logs, and tests compare it. The texts have no
//! subject: the controller writes the address or the DNS name before them. Nothing here decides: the planner chooses
//! the verdict.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::names::{ADDRESSES_SHOWN_MAX, RECORDS_SHOWN_MAX, list};
use crate::reasons::Reason;
use crate::{ADDRESSES_MAX, Address, Kinds, NodeName, Pause, PoolKey, Timestamp, Tripped, VmId, Why};

/// What the plan reports about an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is on this node and stays there.
    Settled(NodeName),
    /// It is on this VM, which should not have it. It stays until another node can take it.
    NoMatch(VmId, Option<NodeName>, Why),
    /// A move is in flight: the controller attaches it to this node, or only detaches it.
    Moving(Option<NodeName>),
    /// It still works on its VM. It moves to this node once fewer addresses of the account are detached.
    Queued(NodeName),
    /// It should move, but this leader is about to stop and leaves the move to the next one.
    LeftToNextLeader {
        /// The node that would get it; none if it would only be detached.
        to: Option<NodeName>,
        /// Whether it is attached to a VM.
        is_attached: bool,
    },
    /// It is attached to no VM, and no node can take it.
    NoNode,
    /// It is attached to no VM, and is in another region than all matching nodes: its region, and those of the nodes.
    OtherRegion(Arc<str>, Vec<Arc<str>>),
    /// The cloud can't attach it to any VM, for this reason.
    Unsupported(&'static str),
    /// It is on a VM that is not a node of this cluster.
    Foreign(VmId),
    /// An older object owns it.
    OwnedBy(PoolKey),
    /// The cloud does not know it.
    Missing,
    /// It is beyond the desired number.
    Disabled,
    /// It is beyond the desired number, and the controller releases it to the cloud.
    Releasing,
    /// The policy would release it, but the provider does not show this object's tag, label or project on it.
    Unmarked,
    /// Its object is being deleted, and the controller leaves it as it is.
    Leaving,
    /// Its state is unknown, for this reason.
    Unknown(std::sync::Arc<str>),
    /// It should move, but has to wait for this.
    Waits(Waits),
    /// The controller would take this step if the pool were active.
    WouldStep(String),
}

/// Why a possible move does not start yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The number of voluntary moves in flight has reached the policy's limit.
    ForBudget,
    /// Too few addresses are on nodes that should have them.
    ForHealthy,
    /// The cool-off after the last assignment has not ended.
    ForCoolOff(Option<Timestamp>),
    /// Too many VMs with addresses were lost at once, and no person has confirmed the loss.
    ForConfirmation(Tripped),
    /// A newer controller wrote the journal, and this version can't read it.
    ForNewerController,
    /// The controller can't act on the object until a person corrects it.
    ForCorrection,
    /// The last attempt failed, and its backoff has not ended.
    ForRetry(Pause),
    /// The object's status has no room for another entry.
    ForRoom,
    /// Each remaining node may hold an address in an unknown state. This is one of these addresses.
    ForStateOf(Address),
}

impl Verdict {
    /// Whether no change at the provider is expected for the address.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Settled(_) | Self::Disabled | Self::OwnedBy(_) | Self::Leaving | Self::Unsupported(_) => {
                true
            }
            Self::NoMatch(..)
            | Self::Moving(_)
            | Self::Queued(_)
            | Self::LeftToNextLeader { .. }
            | Self::NoNode
            | Self::OtherRegion(..)
            | Self::Foreign(_)
            | Self::Missing
            | Self::Releasing
            | Self::Unmarked
            | Self::Unknown(_)
            | Self::Waits(_)
            | Self::WouldStep(_) => false,
        }
    }

    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Settled(_) => Reason::Settled,
            Self::NoMatch(..) => Reason::NoMatch,
            Self::Moving(_) => Reason::Moving,
            Self::Queued(_) | Self::LeftToNextLeader { .. } => Reason::Queued,
            Self::NoNode => Reason::NoNode,
            Self::OtherRegion(..) => Reason::OtherRegion,
            Self::Unsupported(_) => Reason::UnsupportedAddress,
            Self::Foreign(_) => Reason::Foreign,
            Self::OwnedBy(_) => Reason::Conflict,
            Self::Missing => Reason::Missing,
            Self::Disabled => Reason::Disabled,
            Self::Releasing => Reason::Releasing,
            Self::Unmarked => Reason::NotReleased,
            Self::Leaving => Reason::Deleted,
            Self::Unknown(_) => Reason::Unknown,
            Self::WouldStep(_) => Reason::Observing,
            Self::Waits(waits) => match waits {
                Waits::ForBudget => Reason::MaxConcurrentMoves,
                Waits::ForHealthy => Reason::MinHealthy,
                Waits::ForCoolOff(_) => Reason::CoolOff,
                Waits::ForConfirmation(_) => Reason::HoldersLost,
                Waits::ForNewerController => Reason::NewerJournal,
                Waits::ForCorrection => Reason::Refused,
                Waits::ForRetry(_) => Reason::Failed,
                Waits::ForRoom => Reason::JournalFull,
                Waits::ForStateOf(_) => Reason::Unknown,
            },
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(node) => write!(f, "on {node}"),
            Self::NoMatch(_, Some(node), why) => {
                write!(f, "stays on {node} although it should move ({why}): no other node can take it yet")
            }
            Self::NoMatch(vm, None, why) => {
                write!(f, "stays on {vm} although it should move ({why}): no other node can take it yet")
            }
            Self::Moving(Some(node)) => write!(f, "is being attached to {node}"),
            Self::Moving(None) => write!(f, "is being detached from its node"),
            Self::Queued(node) => {
                write!(
                    f,
                    "still works on its current VM; its move to {node} waits for other moves in the account"
                )
            }
            Self::LeftToNextLeader { to: Some(node), .. } => {
                write!(f, "waits for the next leader to move it to {node}: this leader is about to stop")
            }
            Self::LeftToNextLeader { to: None, .. } => {
                write!(f, "waits for the next leader to detach it: this leader is about to stop")
            }
            Self::NoNode => write!(f, "is attached to no VM: no node can take it"),
            Self::OtherRegion(region, nodes) => {
                write!(
                    f,
                    "can't be attached: it is in region {region}, but all matching nodes are in {}",
                    nodes.join(", ")
                )
            }
            Self::Unsupported(why) => write!(f, "can't be attached: {why}; remove it from the list"),
            Self::Foreign(vm) => write!(
                f,
                "is attached to {vm}, which is not a node of this cluster: detach it there, or see policy.takeover"
            ),
            Self::OwnedBy(pool) => {
                write!(f, "belongs to {pool}, which is older: remove it from one of the two objects")
            }
            Self::Missing => {
                write!(f, "was not found in the account: correct the list of addresses, or reserve it again")
            }
            Self::Disabled => write!(f, "is not used: it is beyond spec.desiredIPs"),
            Self::Releasing => write!(f, "is beyond spec.desiredIPs: the controller is releasing it"),
            Self::Unmarked => write!(
                f,
                "is not released: at the provider it has no tag, label or project of this object; release it there, or \
                 remove it from spec.ips"
            ),
            Self::Leaving => write!(f, "stays as it is: the object is being deleted"),
            Self::Unknown(reason) => write!(f, "is in an unknown state and is not moved: {reason}"),
            Self::Waits(why) => write!(f, "waits: {why}"),
            Self::WouldStep(step) => write!(f, "would be changed, but policy.mode is Observe: {step}"),
        }
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForBudget => {
                write!(f, "the number of moves in flight has reached policy.maxConcurrentMoves")
            }
            Self::ForHealthy => write!(f, "fewer than policy.minHealthy addresses are on healthy nodes"),
            Self::ForCoolOff(Some(until)) => {
                write!(f, "the cool-off (assignmentCoolOffSeconds) ends at {until}")
            }
            Self::ForCoolOff(None) => {
                write!(
                    f,
                    "another address of the object is being assigned; then assignmentCoolOffSeconds must pass"
                )
            }
            Self::ForConfirmation(Tripped { lost, holders, until }) => write!(
                f,
                "{lost} of {holders} VMs with addresses were lost at once; if they are really gone, set the annotation \
                 netinfra.darkbrains.com/confirm-loss={until}"
            ),
            Self::ForNewerController => {
                write!(
                    f,
                    "a newer controller wrote its journal, and this version can't read it: upgrade again"
                )
            }
            Self::ForCorrection => {
                write!(f, "the controller can't act on the object: see the object's conditions and Events")
            }
            Self::ForRetry(pause) => write!(f, "the last attempt failed: {pause}"),
            Self::ForStateOf(unknown) => write!(
                f,
                "each node that could take it may hold another address whose state is unknown, such as {unknown}"
            ),
            Self::ForRoom => write!(
                f,
                "the status is full ({ADDRESSES_MAX} addresses, {ADDRESSES_MAX} unfinished moves): divide the addresses \
                 between two objects"
            ),
        }
    }
}

/// What the plan reports about a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It contains these values, as it should.
    Yes(BTreeSet<Address>),
    /// The controller writes it, or first waits for a read or a list.
    Publishing,
    /// The controller has not read it yet, or does not know its own owner ID yet.
    Unread,
    /// The controller can't read these kinds of objects, which decide what it should contain.
    Unreadable(Kinds),
    /// The last attempt failed, and its backoff has not ended.
    Failed(Pause),
    /// An older object uses the same name.
    Conflict(PoolKey),
    /// The controller did not create it. It contains these values.
    NotOurs(BTreeSet<Address>),
    /// The records have the owner mark of another controller, with this owner ID.
    OwnedByOther(Arc<str>),
    /// No address should be in it. The controller does not remove its last values, which are these.
    LastKept(BTreeSet<Address>),
    /// No address should be in it, and none is.
    Nothing,
    /// The controller would write these values if the object were active.
    Would(BTreeSet<Address>),
    /// Its object is being deleted, and it stays as it is.
    Left,
    /// The object is being deleted, and the name has no records of this controller any more.
    Gone,
}

impl Published {
    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Yes(_) | Self::Left | Self::Gone => Reason::Published,
            Self::Publishing => Reason::Publishing,
            Self::Unread | Self::Unreadable(_) => Reason::Unknown,
            Self::Failed(_) => Reason::RecordFailed,
            Self::Conflict(_) => Reason::RecordConflict,
            Self::NotOurs(_) => Reason::RecordNotOurs,
            Self::OwnedByOther(_) => Reason::RecordOwnedByOther,
            Self::LastKept(_) => Reason::LastAddressesKept,
            Self::Nothing => Reason::NothingToPublish,
            Self::Would(_) => Reason::Observing,
        }
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes(values) => write!(f, "contains {}", list(values, RECORDS_SHOWN_MAX)),
            Self::Publishing => write!(f, "is being published"),
            Self::Unread => write!(f, "is unknown: the controller has not read its records yet"),
            Self::Unreadable(kinds) => write!(f, "stays as it is: {}", kinds.unread_message()),
            Self::Failed(pause) => {
                write!(f, "may be out of date: the controller could not read or write it: {pause}")
            }
            Self::Conflict(key) => write!(f, "belongs to {key}, which is older: choose another recordName"),
            Self::NotOurs(values) => write!(
                f,
                "contains {}, which the controller did not publish: remove the records, or set dnsRecordSet.adopt",
                list(values, RECORDS_SHOWN_MAX)
            ),
            Self::OwnedByOther(owner) => write!(
                f,
                "belongs to the controller with the owner ID {owner}: if that controller no longer exists, delete its owner mark"
            ),
            Self::LastKept(values) => {
                write!(
                    f,
                    "still contains {}: no address is on a matching node, and the controller does not remove the last \
                     addresses of a name",
                    list(values, RECORDS_SHOWN_MAX)
                )
            }
            Self::Nothing => write!(f, "is not published: no address is on a matching node"),
            Self::Would(values) => {
                write!(
                    f,
                    "would be changed, but policy.mode is Observe: publish {}",
                    list(values, RECORDS_SHOWN_MAX)
                )
            }
            Self::Left => write!(f, "stays as it is: the object is being deleted"),
            Self::Gone => write!(f, "is deleted"),
        }
    }
}

/// What the plan reports about a pool that needs more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The controller is creating this many.
    Creating(usize),
    /// The controller would create this many if the pool were active.
    WouldCreate(usize),
    /// A request to create an address got no answer, and may have created one of these.
    Ambiguous(BTreeSet<Address>),
    /// The account has this many addresses that the journal entry would have to list: too many.
    TooMany(usize),
    /// The controller created these for the pool earlier, and no object lists them any more.
    Unlisted(BTreeSet<Address>),
    /// Addresses were created with a tag, and the credentials can no longer read tags.
    TagsHidden,
    /// The object has no region.
    NoRegion,
    /// The cluster has reached this limit on created addresses.
    Full(usize),
    /// There is no complete listing of the account yet.
    Unread,
    /// The controller can't read these kinds of objects. An object that it can't see may list an address, so it creates
    /// none.
    Unreadable(Kinds),
    /// The last attempt failed, and its backoff has not ended.
    Failed(Pause),
}

impl Lacking {
    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Creating(_) => Reason::Creating,
            Self::WouldCreate(_) => Reason::Observing,
            Self::Unread | Self::Unreadable(_) => Reason::Unknown,
            Self::Failed(_) => Reason::Failed,
            Self::Ambiguous(_) => Reason::AmbiguousCreation,
            Self::Unlisted(_) => Reason::UnlistedAddresses,
            Self::TooMany(_) | Self::TagsHidden => Reason::NoTags,
            Self::NoRegion => Reason::NoRegion,
            Self::Full(_) => Reason::CreatedAddressesMax,
        }
    }
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creating(count) => write!(f, "creating addresses, still missing: {count}"),
            Self::Unreadable(kinds) => write!(f, "no address is created: {}", kinds.unread_message()),
            Self::WouldCreate(count) => write!(f, "would create addresses, still missing: {count}"),
            Self::Ambiguous(candidates) => write!(
                f,
                "a request to create an address got no answer, and may have created one of these: {}; add those of this \
                 object to spec.ips, and the others to the annotation netinfra.darkbrains.com/not-created",
                list(candidates, ADDRESSES_SHOWN_MAX)
            ),
            Self::TooMany(count) => write!(
                f,
                "the controller creates no address: the account has {count} addresses that no object lists, too many to \
                 recognize a new one without projects. Allow the token to use projects, or list existing addresses in \
                 spec.ips"
            ),
            Self::Unlisted(addresses) => write!(
                f,
                "the controller created {} for this object, but no object lists them. It creates no more until each is in \
                 spec.ips (to use it) or in the annotation netinfra.darkbrains.com/not-created (to ignore it)",
                list(addresses, ADDRESSES_SHOWN_MAX)
            ),
            Self::TagsHidden => write!(
                f,
                "the DigitalOcean token can no longer read projects, so the controller can't find the \
                 addresses that it created. Grant the scope project:read; until then the controller creates \
                 no address"
            ),
            Self::NoRegion => write!(f, "set spec.region: the controller needs it to create addresses"),
            Self::Full(max) => write!(
                f,
                "the cluster has reached CREATED_ADDRESSES_MAX ({max}): release created addresses that nobody needs, or raise \
                 the limit"
            ),
            Self::Unread => {
                write!(f, "waiting for a complete listing of the account before creating addresses")
            }
            Self::Failed(pause) => write!(f, "creating an address failed: {pause}"),
        }
    }
}

/// What the plan reports about pods on a node without an address of their object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MisplacedPods {
    /// The controller evicts them one by one.
    Leave(NodeName),
    /// The node holds an address of another object.
    AtAnothers(NodeName),
    /// No node with an address of their object can take them.
    NoPlace(NodeName),
}

impl fmt::Display for MisplacedPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave(node) => {
                write!(
                    f,
                    "pods of the workload are on {node}, which holds no address: the controller evicts them one by one"
                )
            }
            Self::AtAnothers(node) => write!(
                f,
                "pods of the workload are on {node}, which holds another object's address: in the pod template, set \
                 the nodeSelector allocation.netinfra.darkbrains.com/<name of this object>=true"
            ),
            Self::NoPlace(node) => write!(
                f,
                "pods of the workload stay on {node}, which holds no address: no Ready, schedulable node holds one"
            ),
        }
    }
}
