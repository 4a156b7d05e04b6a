//! `match`: which nodes a `FloatingIPPool` or `NodeDNSRecordSet` speaks of.

use k8s_openapi::api::core::v1::Toleration;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Which nodes are meant. An omitted field does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Label selector for nodes, as kubectl's `-l` takes it. Omitted or empty: all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_label: Option<String>,

    /// Label selector for pods. Where it or `podNamespace` is given, a node must run at least one matching pod that is
    /// Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_label: Option<String>,

    /// The namespace of the pods. Omitted: all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_namespace: Option<String>,

    /// Taints that a matching node may have. A node with any other taint does not match. The taints that Kubernetes puts on
    /// a NotReady node are not looked at here: `policy.failoverGraceSeconds` says how long such a node keeps its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

impl Match {
    /// Whether a node must run a matching pod; without any pod selector, pods don't matter.
    pub fn needs_pods(&self) -> bool {
        [&self.pod_label, &self.pod_namespace].into_iter().flatten().any(|selector| !selector.is_empty())
    }
}
