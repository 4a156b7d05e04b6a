//! A workload that an object refers to.

use api::net_ip_allocation::WorkloadKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::addresses::watch::Kind;

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

    pub(crate) fn of(kind: Kind, owner: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { kind, namespace: text(&owner.namespace), name: text(&owner.name) }
    }
}
