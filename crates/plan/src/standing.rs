//! Whether a node may get or keep an address of a pool.
//!
//! In: a node, the pool's pods on it, and the present time. Out: its standing. `fit`: it may get an address. `keeps`:
//! it keeps an address it has, and gets no new one. `leaves`: it has to give up an address it has. Nothing here moves
//! an address.
//!
//! A Ready node that the pool's selectors do not match leaves, and so does a node that no longer exists.
//!
//! ```text
//! UntilDrained (NetIPAllocation)                       UntilDisplaced (FloatingIPPool)
//! node       cordoned  workload's pods  standing       node       matching pods   standing
//! ---------  --------  ---------------  --------       ---------  --------------  --------
//! Ready      no        any              fit            Ready      one is Ready    fit
//! Ready      yes       some             keeps          Ready      none is Ready   leaves
//! Ready      yes       none             leaves         Ready      don't matter    fit
//! NotReady, in grace period             keeps          NotReady, in grace period  keeps
//! NotReady, grace ended                 leaves         NotReady, grace ended      leaves
//! can't be decoded                      keeps          can't be decoded           keeps
//!                                                      Ready      one can't be decoded, none is known Ready: keeps
//! ```
//!
//! A fit node outside of the pool's region or zones keeps its address and gets no new one. If the policy says so, a
//! node that is about to be removed leaves.

use std::fmt;
use std::time::Duration;

use crate::member::{Member, is_elsewhere};
use crate::{Node, Pods, Readiness, Tenancy, Timestamp, later};

/// A node's standing in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may get an address and keeps one it has.
    Fit,
    /// It keeps an address it has and gets no new one. If there is a time, plan again then.
    Keeps(Why, Option<Timestamp>),
    /// It has to give up an address it has.
    Leaves(Why),
}

/// Why a node may not get or keep an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Cordoned, with the workload's pods still on it.
    Draining,
    /// Cordoned, without any of the workload's pods.
    Drained,
    /// NotReady for less than the grace period.
    WithinGrace,
    /// NotReady for longer than the grace period.
    NotReady,
    /// No matching pod on it is Ready.
    NoReadyPod,
    /// It is outside of the pool's region or zones.
    Elsewhere,
    /// The pool's selectors don't match it.
    NoMatch,
    /// A taint says that it is about to be removed.
    Disrupted,
    /// It has no providerID yet, or its VM is in another account.
    NoMachine,
    /// The node no longer exists.
    Gone,
    /// The controller can't decode the node or one of its pods.
    Undecodable,
}

impl Why {
    /// Whether the node may still be alive, so that a move off it can wait.
    pub(crate) fn is_voluntary(self) -> bool {
        match self {
            Self::Draining
            | Self::Drained
            | Self::NoReadyPod
            | Self::Elsewhere
            | Self::NoMatch
            | Self::Disrupted
            | Self::NoMachine
            | Self::Undecodable => true,
            Self::WithinGrace | Self::NotReady | Self::Gone => false,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Draining => "the node is cordoned and the workload's pods are still on it",
            Self::Drained => "the node is cordoned and none of the workload's pods is on it",
            Self::WithinGrace => "the node is NotReady, and its grace period has not ended",
            Self::NotReady => "the node is NotReady",
            Self::NoReadyPod => "no matching pod on the node is Ready",
            Self::Elsewhere => "the node is outside of the object's region or zones",
            Self::NoMatch => "the node does not match the selectors",
            Self::Disrupted => "the node is about to be removed",
            Self::NoMachine => "the node's providerID is missing, or is that of another account",
            Self::Gone => "the node no longer exists",
            Self::Undecodable => "the controller can't decode the node or one of its pods",
        })
    }
}

/// The standing of a node in a pool at a time.
pub(crate) fn standing(member: &Member, slot: usize, node: &Node, now: Timestamp) -> Standing {
    let pool = &*member.pool;
    if node.readiness == Readiness::Unknown {
        return Standing::Keeps(Why::Undecodable, None);
    }
    if let Readiness::NotReadySince(since) = node.readiness {
        let grace = if crate::sabotaged!(GraceIgnored) { Duration::ZERO } else { pool.policy.failover_grace };
        let ends = later(node.grace_starts.unwrap_or(since), grace);
        return match now < ends || crate::sabotaged!(DeadKept) {
            true => Standing::Keeps(Why::WithinGrace, Some(ends)),
            false => Standing::Leaves(Why::NotReady),
        };
    }
    let Some(pods) = member.pods(slot) else { return Standing::Leaves(Why::NoMatch) };
    if node.machine.as_ref().is_none_or(|(scope, _)| *scope != pool.scope) {
        return Standing::Leaves(Why::NoMachine);
    }
    if pool.policy.leaves_on_disruption && node.is_leaving {
        return Standing::Leaves(Why::Disrupted);
    }
    match pool.tenancy {
        Tenancy::UntilDrained if node.is_cordoned && !crate::sabotaged!(CordonIgnored) => match pods {
            Pods::Ready | Pods::Present | Pods::Unknown => Standing::Keeps(Why::Draining, None),
            Pods::Absent => Standing::Leaves(Why::Drained),
        },
        Tenancy::UntilDisplaced { needs_pods: true } if pods == Pods::Unknown => {
            Standing::Keeps(Why::Undecodable, None)
        }
        Tenancy::UntilDisplaced { needs_pods: true } if pods != Pods::Ready => {
            Standing::Leaves(Why::NoReadyPod)
        }
        _ if is_elsewhere(pool, node) => Standing::Keeps(Why::Elsewhere, None),
        _ => Standing::Fit,
    }
}
