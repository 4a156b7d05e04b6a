//! What the controller has to watch of pods and their owners.
//!
//! In: the pod selections of all objects, from the index. Out: a value that the watches follow. Pods and their owners are
//! the most numerous objects of a cluster, so the controller watches them only if an object needs them, and keeps only
//! the labels that a selector uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::kind::Kind;

/// What the objects need of pods and their owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Whether an object selects pods.
    pub(crate) pods: bool,
    /// Whether an object selects the pods of a workload.
    pub(crate) owners: bool,
    /// The pod labels that selectors use.
    pub(crate) labels: Arc<BTreeSet<String>>,
    /// Increases when a label is added. Pods that were read before lack that label, so the controller lists them again.
    pub(crate) version: u64,
}

impl Needed {
    /// Whether a kind has to be watched.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Pods => self.pods,
            Kind::Deployments | Kind::StatefulSets | Kind::DaemonSets | Kind::ReplicaSets => self.owners,
            Kind::Nodes | Kind::NetIPAllocations | Kind::FloatingIPPools | Kind::NodeDNSRecordSets => true,
        }
    }
}
