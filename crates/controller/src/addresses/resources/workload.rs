//! A workload that an object refers to.

use crate::addresses::kind::Kind;
use crate::addresses::owner::Owner;
use api::net_ip_allocation::WorkloadKind;

/// A workload that an object refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Workload {
    pub(crate) fn new(kind: WorkloadKind, namespace: &str, name: &str) -> Self {
        let kind = match kind {
            WorkloadKind::Deployment => Kind::Deployments,
            WorkloadKind::StatefulSet => Kind::StatefulSets,
            WorkloadKind::DaemonSet => Kind::DaemonSets,
        };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Whether the pods of this workload have an owner of this kind.
    pub(crate) fn owns_through(&self, kind: &str) -> bool {
        match self.kind {
            Kind::Deployments => kind == "ReplicaSet",
            Kind::StatefulSets => kind == "StatefulSet",
            Kind::DaemonSets => kind == "DaemonSet",
            _ => false,
        }
    }

    /// The kinds that decide which pods belong to it.
    pub(crate) fn decided_by(&self) -> impl Iterator<Item = Kind> {
        let between = (self.kind == Kind::Deployments).then_some(Kind::ReplicaSets);
        [Kind::Pods, self.kind].into_iter().chain(between)
    }

    pub(crate) fn of(kind: Kind, owner: &Owner) -> Self {
        Self { kind, namespace: owner.namespace.clone(), name: owner.name.clone() }
    }
}
