//! The kinds that the address reconciler watches.

use std::borrow::Cow;

use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet, RESERVED_IP_ANNOTATION};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Resource;
use plan::Kinds;

use super::slim::MIRROR_ANNOTATION;
use crate::kubernetes::watch::Annotations;

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Nodes,
    Pods,
    Deployments,
    StatefulSets,
    DaemonSets,
    ReplicaSets,
    NetIPAllocations,
    FloatingIPPools,
    NodeDNSRecordSets,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Nodes,
        Self::Pods,
        Self::Deployments,
        Self::StatefulSets,
        Self::DaemonSets,
        Self::ReplicaSets,
        Self::NetIPAllocations,
        Self::FloatingIPPools,
        Self::NodeDNSRecordSets,
    ];
}

impl Kind {
    /// The name of the kind, and its group and version.
    pub fn named(self) -> (Cow<'static, str>, Cow<'static, str>) {
        fn of<K: Resource<DynamicType = ()>>() -> (Cow<'static, str>, Cow<'static, str>) {
            (K::kind(&()).into_owned().into(), K::api_version(&()).into_owned().into())
        }
        match self {
            Self::Nodes => of::<Node>(),
            Self::Pods => of::<Pod>(),
            Self::Deployments => of::<Deployment>(),
            Self::StatefulSets => of::<StatefulSet>(),
            Self::DaemonSets => of::<DaemonSet>(),
            Self::ReplicaSets => of::<ReplicaSet>(),
            Self::NetIPAllocations => of::<NetIPAllocation>(),
            Self::FloatingIPPools => of::<FloatingIPPool>(),
            Self::NodeDNSRecordSets => of::<NodeDNSRecordSet>(),
        }
    }

    /// The annotations that decisions need.
    pub(super) fn annotations(self) -> Annotations {
        match self {
            Self::Nodes => Annotations::Only(&[RESERVED_IP_ANNOTATION]),
            Self::Pods => Annotations::Only(&[MIRROR_ANNOTATION]),
            Self::Deployments | Self::StatefulSets | Self::DaemonSets | Self::ReplicaSets => {
                Annotations::Only(&[])
            }
            Self::NetIPAllocations | Self::FloatingIPPools | Self::NodeDNSRecordSets => Annotations::All,
        }
    }

    /// The planner's kinds that this kind is part of.
    pub(crate) fn for_planner(self) -> Kinds {
        use plan::Kind;
        let kinds: &[Kind] = match self {
            Self::Nodes => &[Kind::Nodes],
            Self::Pods => &[Kind::Pods],
            Self::Deployments => &[Kind::Deployments],
            Self::StatefulSets => &[Kind::StatefulSets],
            Self::DaemonSets => &[Kind::DaemonSets],
            Self::ReplicaSets => &[Kind::ReplicaSets],
            Self::NetIPAllocations => &[Kind::Pools],
            Self::FloatingIPPools => &[Kind::Pools, Kind::Names],
            Self::NodeDNSRecordSets => &[Kind::Names],
        };
        kinds.iter().copied().collect()
    }

    /// Whether it is one of our own kinds.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::NetIPAllocations | Self::FloatingIPPools | Self::NodeDNSRecordSets)
    }

    /// Whether the cluster may lack this kind. Kinds of Kubernetes itself always exist, even if a proxy answers 404.
    pub(super) fn may_be_absent(self) -> bool {
        self.is_ours()
    }
}
