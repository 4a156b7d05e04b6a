//! `NetIPAllocation`: reserved public addresses for the nodes of one workload.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::status::{AddressStatus, Moves, Summary};

/// How long a drift stays unrepaired where the object does not say.
pub const RECONCILE_INTERVAL_SECONDS_DEFAULT: i64 = 30;

/// The namespace of a workload where the object does not say.
pub const WORKLOAD_NAMESPACE_DEFAULT: &str = "default";

/// Which reserved addresses go to which nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "netinfra.darkbrains.com",
    version = "v1alpha1",
    kind = "NetIPAllocation",
    plural = "netipallocations",
    shortname = "nia",
    status = "NetIPAllocationStatus",
    derive = "PartialEq",
    doc = "Keeps reserved public IP addresses on the nodes of a workload. Each address is attached to one matching node, \
           the node is labelled ip.ready=true, and when the node is drained, dies or is deleted the address moves on.",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.cloud.provider"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Attached", type_ = "integer", json_path = ".status.summary.attached"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.summary.desired"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NetIPAllocationSpec {
    /// The reserved addresses to keep on nodes. Each must exist in the cloud account; at most 1,000.
    #[serde(rename = "reservedIPs")]
    #[schemars(schema_with = "crate::crds::addresses")]
    pub reserved_ips: Vec<String>,

    /// The workload whose pods hold an address on a cordoned node. Without it, cordoning a node releases its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,

    /// Deprecated: use `workloadRef` with kind Deployment. Ignored where `workloadRef` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_ref: Option<DeploymentRef>,

    /// Labels that a node must have. Omitted: every node qualifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// The cloud that holds the addresses and the nodes.
    pub cloud: Cloud,

    /// The longest, in seconds, that a drift stays unrepaired. Default 30. Changes that Kubernetes reports are acted on at
    /// once, whatever this says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 86400))]
    pub reconcile_interval: Option<i64>,

    /// How addresses may be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// The workload whose pods use the address of their node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// `Deployment`, `StatefulSet` or `DaemonSet`.
    pub kind: WorkloadKind,

    /// The workload's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The workload's namespace. Default: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A workload's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// The deprecated way to name a Deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentRef {
    /// The Deployment's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// The Deployment's namespace. Default: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Where the addresses and the nodes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "!has(self.region) || !has(self.zones) || !(self.provider in ['gcp', 'aws']) || self.zones.all(zone, zone.startsWith(self.region))"
).message("a zone outside of the region can never be used: zones of gcp and aws begin with the region's name"))]
pub struct Cloud {
    /// The cloud provider.
    pub provider: Provider,

    /// New placements go only to nodes in this region. An address already placed elsewhere is left where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub region: Option<String>,

    /// New placements go only to nodes in these zones. An address already placed elsewhere is left where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 63)))]
    pub zones: Option<Vec<String>>,
}

/// A cloud provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Provider {
    Gcp,
    Aws,
    Azure,
    DigitalOcean,
}

impl NetIPAllocationSpec {
    /// The longest that a drift stays unrepaired.
    pub fn reconcile_interval(&self) -> Duration {
        let seconds = self.reconcile_interval.unwrap_or(RECONCILE_INTERVAL_SECONDS_DEFAULT);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// The workload meant, from `workloadRef` or else from the deprecated `deploymentRef`.
    pub fn workload(&self) -> Option<Workload<'_>> {
        if let Some(WorkloadRef { kind, name, namespace }) = &self.workload_ref {
            let namespace = namespace_or_default(namespace);
            return Some(Workload { kind: *kind, name, namespace, deprecated: false });
        }
        let DeploymentRef { name, namespace } = self.deployment_ref.as_ref()?;
        let namespace = namespace_or_default(namespace);
        Some(Workload { kind: WorkloadKind::Deployment, name, namespace, deprecated: true })
    }
}

fn namespace_or_default(namespace: &Option<String>) -> &str {
    namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(WORKLOAD_NAMESPACE_DEFAULT)
}

/// The workload that an allocation means, with its defaults resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload<'a> {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Whether it was named by the deprecated `deploymentRef`.
    pub deprecated: bool,
}

/// What the controller knows and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetIPAllocationStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled`, with one reason. Exactly one of them is True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Counts of addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// Every address and where it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<AddressStatus>,

    /// The journal of unfinished moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub moves: Option<Moves>,

    /// With `policy.mode: Observe`, the steps that would be taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub proposed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> NetIPAllocationSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn n2_omitted_fields_have_their_documented_defaults() {
        let spec = spec(json!({
            "reservedIPs": [], "cloud": {"provider": "gcp"}, "workloadRef": {"kind": "DaemonSet", "name": "edge"},
        }));
        assert_eq!(spec.reconcile_interval(), Duration::from_secs(30));
        assert_eq!(spec.workload().unwrap().namespace, "default");
    }

    #[test]
    fn n3_workload_ref_wins_and_deployment_ref_alone_means_a_deployment() {
        let cloud = json!({"provider": "gcp"});
        let both = spec(json!({
            "reservedIPs": [], "cloud": cloud,
            "workloadRef": {"kind": "StatefulSet", "name": "new", "namespace": "apps"},
            "deploymentRef": {"name": "old"},
        }));
        assert_eq!(both.workload().unwrap().name, "new");
        assert!(!both.workload().unwrap().deprecated);

        let old = spec(json!({"reservedIPs": [], "cloud": cloud, "deploymentRef": {"name": "old"}}));
        let expected =
            Workload { kind: WorkloadKind::Deployment, name: "old", namespace: "default", deprecated: true };
        assert_eq!(old.workload().unwrap(), expected);

        let neither = spec(json!({"reservedIPs": [], "cloud": cloud}));
        assert_eq!(neither.workload(), None);
    }
}
