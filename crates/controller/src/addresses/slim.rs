//! Nodes and pods as they are decoded: only the fields that decisions need.
//!
//! In: the JSON of an object. Out: its fields. A large cluster has many nodes and pods. Fields that are not decoded take
//! no memory.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;

/// The type of the condition that says whether a node or pod is Ready.
const READY: &str = "Ready";

/// The annotation of static pods of the kubelet.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// A node, with the fields that decisions need.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "Node")]
pub struct SlimNode {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    /// providerID, taints, cordon.
    #[serde(default)]
    pub spec: SlimNodeSpec,
    /// Conditions.
    #[serde(default)]
    pub status: SlimStatus,
}

/// The spec of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimNodeSpec {
    /// The providerID of the node's VM.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    /// The taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// A pod, with the fields that decisions need.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "Pod")]
pub struct SlimPod {
    /// Name, labels, owner.
    pub metadata: ObjectMeta,
    /// The node of the pod.
    #[serde(default)]
    pub spec: SlimPodSpec,
    /// Phase and conditions.
    #[serde(default)]
    pub status: SlimStatus,
}

/// The spec of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodSpec {
    /// The node of the pod.
    pub node_name: Option<String>,
}

/// The status of a node or a pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SlimStatus {
    /// The phase of a pod.
    pub phase: Option<String>,
    /// The conditions.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
    /// The addresses of a node.
    #[serde(default)]
    pub addresses: Vec<SlimAddress>,
}

/// An address of a node.
#[derive(Clone, Debug, Deserialize)]
pub struct SlimAddress {
    /// `ExternalIP`, `InternalIP` or another type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address, or a name.
    pub address: String,
}

/// A condition.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimCondition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When the status last changed.
    pub last_transition_time: Option<Time>,
}

impl SlimStatus {
    /// The Ready condition.
    pub fn ready(&self) -> Option<&SlimCondition> {
        self.conditions.iter().find(|condition| condition.kind == READY)
    }
}
