//! `match`: which nodes a `FloatingIPPool` or a `NodeDNSRecordSet` selects.

use k8s_openapi::api::core::v1::Toleration;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Selects nodes. A node must fulfil all fields; an omitted label or namespace selects everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Label selector for nodes, in the syntax of `kubectl -l`, such as `role=edge,zone!=a`. Default: empty, which
    /// selects all nodes. With an invalid selector the controller does nothing for the object and reports
    /// `InvalidSelector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_label: Option<String>,

    /// Label selector for pods, in the syntax of `kubectl -l`. If this field or `podNamespace` is set, a node matches
    /// only while it runs at least one Ready pod with these labels in that namespace. Default: empty, which selects all
    /// pods. If neither field is set, pods don't matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_label: Option<String>,

    /// Namespace of the pods. Default: empty, which means all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_namespace: Option<String>,

    /// Taints that a matching node may have. A node with any other taint does not match. For example, tolerate
    /// `node.kubernetes.io/unschedulable` to let cordoned nodes match. Default: none. The controller ignores the taints
    /// that Kubernetes sets on a NotReady node; `policy.failoverGraceSeconds` sets how long such a node keeps its
    /// address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

impl Match {
    /// Whether a node must run a matching pod. Without a pod selector, pods don't matter.
    pub fn needs_pods(&self) -> bool {
        [&self.pod_label, &self.pod_namespace].into_iter().flatten().any(|selector| !selector.is_empty())
    }
}
