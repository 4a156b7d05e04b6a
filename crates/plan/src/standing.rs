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
//! ```
//!
//! A fit node outside the pool's region or zones keeps what it has and gets nothing new.

use std::fmt;

use crate::{Node, NodeName, Pods, Pool, Readiness, Tenancy, Timestamp};

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
    /// It is outside the pool's region or zones.
    Elsewhere,
    /// The pool's selectors don't match it, or it is gone.
    NoMatch,
    /// The cloud provider has not said which machine it is.
    NoMachine,
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
            Self::NoMatch => "the node does not match, or is gone",
            Self::NoMachine => "the node has no providerID that belongs to this provider",
        })
    }
}

/// The standing of a node in a pool at a moment.
pub(crate) fn standing(pool: &Pool, name: &NodeName, node: Option<&Node>, now: Timestamp) -> Standing {
    let (Some(node), Some(pods)) = (node, pool.members.get(name)) else {
        return Standing::Leaves(Why::NoMatch);
    };
    if node.vm.is_none() {
        return Standing::Leaves(Why::NoMachine);
    }
    if let Readiness::NotReadySince(since) = node.readiness {
        return match since.checked_add(pool.policy.failover_grace) {
            Ok(ends) if now < ends => Standing::Keeps(Why::WithinGrace, Some(ends)),
            _ => Standing::Leaves(Why::NotReady),
        };
    }
    match pool.tenancy {
        Tenancy::UntilDrained if node.is_cordoned => match pods {
            Pods::Ready | Pods::Present => Standing::Keeps(Why::Draining, None),
            Pods::Absent => Standing::Leaves(Why::Drained),
        },
        Tenancy::UntilDisplaced { needs_pods: true } if *pods != Pods::Ready => {
            Standing::Leaves(Why::NoReadyPod)
        }
        _ if is_elsewhere(pool, node) => Standing::Keeps(Why::Elsewhere, None),
        _ => Standing::Fit,
    }
}

fn is_elsewhere(pool: &Pool, node: &Node) -> bool {
    let other_region = pool.region.is_some() && node.region.is_some() && pool.region != node.region;
    let zone_asked_for = |zone: &String| pool.zones.contains(zone);
    let other_zone = !pool.zones.is_empty() && !node.zone.as_ref().is_some_and(zone_asked_for);
    other_region || other_zone
}
