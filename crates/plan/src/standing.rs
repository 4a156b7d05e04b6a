//! Whether a node may get or keep an address of a pool.
//!
//! A node that is no member of the pool, because no selector matches it or because it is gone, leaves.
//!
//! ```text
//! UntilDrained (NetIPAllocation)                       UntilDisplaced (FloatingIPPool)
//! node       cordoned  workload's pods  standing       node       matching pods   standing
//! ---------  --------  ---------------  --------       ---------  --------------  --------
//! Ready      no        any              fit            Ready      one is Ready    fit
//! Ready      yes       some             keeps          Ready      none is Ready   leaves
//! Ready      yes       none             leaves         Ready      don't matter    fit
//! NotReady, within the grace            keeps          NotReady, within the grace keeps
//! NotReady, beyond the grace            leaves         NotReady, beyond the grace leaves
//! can't be decoded                      keeps          can't be decoded           keeps
//!                                                      Ready      one can't be decoded, none is known Ready: keeps
//! ```
//!
//! A fit node outside of the pool's region or zones keeps what it has and gets nothing new. Where the policy says so, a
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
    /// It keeps an address it has and gets no new one. Where a time is given, ask again then.
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
    /// NotReady for less than the grace.
    WithinGrace,
    /// NotReady for longer than the grace.
    NotReady,
    /// No matching pod on it is Ready.
    NoReadyPod,
    /// It is outside of the pool's region or zones.
    Elsewhere,
    /// The pool's selectors don't match it.
    NoMatch,
    /// A taint announces its removal.
    Disrupted,
    /// The cloud provider has not said which machine it is, or it is in another account.
    NoMachine,
    /// There is no such node any more.
    Gone,
    /// The node or one of its pods can't be decoded.
    Undecodable,
}

impl Why {
    /// Whether the node may still be alive, so that leaving it could wait.
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
            Self::WithinGrace => "the node is NotReady, and may still come back within the grace period",
            Self::NotReady => "the node is NotReady",
            Self::NoReadyPod => "no matching pod on the node is Ready",
            Self::Elsewhere => "the node is outside of the region or zones asked for",
            Self::NoMatch => "the node does not match",
            Self::Disrupted => "the node is about to be removed",
            Self::NoMachine => "the node has no providerID of this account",
            Self::Gone => "the node is gone",
            Self::Undecodable => "the node or one of its pods can't be decoded",
        })
    }
}

/// The standing of a node in a pool at a moment.
pub(crate) fn standing(member: &Member, slot: usize, node: &Node, now: Timestamp) -> Standing {
    let pool = &*member.pool;
    if node.readiness == Readiness::Unknown {
        return Standing::Keeps(Why::Undecodable, None);
    }
    if let Readiness::NotReadySince(since) = node.readiness {
        let grace = if crate::sabotaged!(GraceIgnored) { Duration::ZERO } else { pool.policy.failover_grace };
        let ends = later(since, grace);
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
