//! Nodes and pods as they are decoded: only the fields that decisions need.
//!
//! In: the JSON of an object, or an [`Undecodable`] one. Out: its fields, or a substitute. A large cluster has many
//! nodes and pods. Fields that are not decoded take no memory.

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;

use api::IP_READY_LABEL;

use crate::kubernetes::decode::Undecodable;

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
    /// Whether this is a substitute for an undecodable node.
    #[serde(skip)]
    pub is_stand_in: bool,
}

impl SlimNode {
    /// The substitute for an undecodable node: the last decoded version, or else the fields that can be read.
    pub(crate) fn stand_in(undecodable: &Undecodable, last: Option<&Self>) -> Self {
        let is_same = |last: &&Self| last.metadata.uid == undecodable.metadata.uid;
        let is_machine = |text: &&str| drivers::machine_of(text).is_some();
        let provider_id = undecodable.at(&["spec", "providerID"]);
        let provider_id =
            provider_id.or_else(|| undecodable.strings().find(is_machine).map(ToOwned::to_owned));
        if let Some(last) = last.filter(is_same) {
            // The providerID of a node is set once and never changes.
            let provider_id = last.spec.provider_id.clone().or(provider_id);
            let spec = SlimNodeSpec { provider_id, ..last.spec.clone() };
            return Self { is_stand_in: true, spec, ..last.clone() };
        }
        // The type of an address is unknown here, so each has both types. The controller publishes none of them anew.
        let of_any_type = |address: std::net::IpAddr| {
            let kinds = ["ExternalIP", "InternalIP"].into_iter();
            kinds.map(move |kind| SlimAddress { kind: kind.to_owned(), address: address.to_string() })
        };
        let addresses = undecodable.at(&["status", "addresses"]);
        let addresses =
            addresses.unwrap_or_else(|| undecodable.addresses().into_iter().flat_map(of_any_type).collect());
        Self {
            metadata: undecodable.metadata.clone(),
            spec: SlimNodeSpec { provider_id, ..SlimNodeSpec::default() },
            status: SlimStatus { addresses, ..SlimStatus::default() },
            is_stand_in: true,
        }
    }

    /// The node without the conditions that no decision uses.
    pub(super) fn reduced(mut self) -> Self {
        self.status.conditions.retain(|condition| condition.kind == READY);
        self.status.conditions.shrink_to_fit();
        self
    }

    /// Whether the node has the label `ip.ready=true`.
    pub fn is_ip_ready(&self) -> bool {
        let labels = self.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(IP_READY_LABEL)).is_some_and(|value| value == "true")
    }
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
