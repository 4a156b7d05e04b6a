//! Why the rest should not happen: what is reported of every address, record set, workload and pool.
//!
//! Verdicts print as text, and tests compare that text.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::names::{ADDRESSES_SHOWN_MAX, RECORDS_SHOWN_MAX, list};
use crate::reasons::Reason;
use crate::{ADDRESSES_MAX, Address, NodeName, Pause, PoolKey, Timestamp, Tripped, VmId, Why};

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

impl Verdict {
    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Settled(_) => Reason::Settled,
            Self::Lingers(..) => Reason::NoMatch,
            Self::Moving(_) => Reason::Moving,
            Self::Queued(_) => Reason::Queued,
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
            },
        }
    }
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

/// What is to be said of a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is as it should be.
    Yes(BTreeSet<Address>),
    /// It is being read or written.
    Publishing,
    /// It was not read yet, or we don't know yet who we are.
    Unread,
    /// The last try failed a short while ago.
    Failed(Pause),
    /// An older object names it too.
    Conflict(PoolKey),
    /// Somebody else made it: it holds these.
    NotOurs(BTreeSet<Address>),
    /// Another controller's mark is on it.
    OwnedByOther(Arc<str>),
    /// No address should be in it, so it holds the last ones.
    LastKept(BTreeSet<Address>),
    /// No address should be in it, and none is.
    Nothing,
    /// It would be written if the object were active.
    Would(BTreeSet<Address>),
    /// Its object is being deleted, and it stays as it is.
    Left,
    /// Its object is being deleted, and it is gone.
    Gone,
}

impl Published {
    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Yes(_) | Self::Left | Self::Gone => Reason::Published,
            Self::Publishing => Reason::Publishing,
            Self::Unread => Reason::Unknown,
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
            Self::Yes(values) => write!(f, "holds {}", list(values, RECORDS_SHOWN_MAX)),
            Self::Publishing => write!(f, "is being published"),
            Self::Unread => write!(f, "was not read yet"),
            Self::Failed(pause) => write!(f, "could not be read or published: {pause}"),
            Self::Conflict(key) => write!(f, "belongs to {key}, which is older"),
            Self::NotOurs(values) => write!(
                f,
                "holds {}, which somebody else published: remove that, or set dnsRecordSet.adopt to take it over",
                list(values, RECORDS_SHOWN_MAX)
            ),
            Self::OwnedByOther(owner) => write!(
                f,
                "belongs to the controller with the owner id {owner}: if that one is gone, remove its owner mark"
            ),
            Self::LastKept(values) => {
                write!(
                    f,
                    "still holds {}: no address is on a matching node, and it is never emptied",
                    list(values, RECORDS_SHOWN_MAX)
                )
            }
            Self::Nothing => write!(f, "is not published: no address is on a matching node"),
            Self::Would(values) => {
                write!(f, "is only observed, otherwise: publish {}", list(values, RECORDS_SHOWN_MAX))
            }
            Self::Left => write!(f, "is left alone: its object is being deleted"),
            Self::Gone => write!(f, "is gone"),
        }
    }
}

/// What is to be said of a pool that lacks addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// So many are being created.
    Creating(usize),
    /// So many would be created if the pool were active.
    WouldCreate(usize),
    /// One of these may be the answer to a request whose outcome is not known.
    Ambiguous(BTreeSet<Address>),
    /// There is no tag, and the account has more addresses than can be remembered.
    TooMany(usize),
    /// These were made for it earlier, and it does not list them any more.
    Unlisted(BTreeSet<Address>),
    /// Addresses were created with a tag, and the account's tags can't be read any more.
    TagsHidden,
    /// The region is missing.
    NoRegion,
    /// As many addresses were created in the cluster as may be: the limit.
    Full(usize),
    /// The account could not be read as a whole.
    Unread,
    /// The last try failed.
    Failed(Pause),
}

impl Lacking {
    /// The reason that users see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Creating(_) => Reason::Creating,
            Self::WouldCreate(_) => Reason::Observing,
            Self::Unread => Reason::Unknown,
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
            Self::Creating(count) => write!(f, "{count} more being created"),
            Self::WouldCreate(count) => write!(f, "{count} more would be created"),
            Self::Ambiguous(candidates) => write!(
                f,
                "a request to create an address had no answer, and one of these may be its result: {}; add those that \
                 are this object's to spec.ips, and the others to the annotation netinfra.darkbrains.com/not-created",
                list(candidates, ADDRESSES_SHOWN_MAX)
            ),
            Self::TooMany(count) => write!(
                f,
                "the account has {count} addresses outside of all objects and no tags, so a new one could be lost \
                 among them: allow the token to use projects, or list addresses in spec.ips"
            ),
            Self::Unlisted(addresses) => write!(
                f,
                "created for this object and not listed by any: {}; none is created while they are there: add those that \
                 are to be used to spec.ips, and the others to the annotation netinfra.darkbrains.com/not-created",
                list(addresses, ADDRESSES_SHOWN_MAX)
            ),
            Self::TagsHidden => write!(
                f,
                "addresses were created in a project of their own, and the credentials don't allow to read projects any \
                 more: allow that, or nothing more is created"
            ),
            Self::NoRegion => write!(f, "creating addresses needs spec.region"),
            Self::Full(max) => write!(
                f,
                "the created addresses have reached CREATED_ADDRESSES_MAX ({max}): release some that nobody needs, or raise the limit"
            ),
            Self::Unread => write!(f, "no address is created before the account was read as a whole"),
            Self::Failed(pause) => write!(f, "creating an address failed: {pause}"),
        }
    }
}

/// What is to be said of pods on a node without an address of their object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Astray {
    /// They are evicted one by one.
    Leave(NodeName),
    /// Another object's address is there.
    AtAnothers(NodeName),
    /// No node with an address of theirs can take them.
    NoPlace(NodeName),
}

impl fmt::Display for Astray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave(node) => {
                write!(
                    f,
                    "pods of the workload are on {node}, which holds no address, and are evicted from there"
                )
            }
            Self::AtAnothers(node) => write!(
                f,
                "pods of the workload are on {node}, which holds another object's address: let them ask for the label \
                 allocation.netinfra.darkbrains.com/<name>"
            ),
            Self::NoPlace(node) => write!(
                f,
                "pods of the workload stay on {node}, which holds no address: no Ready, schedulable node holds one"
            ),
        }
    }
}
