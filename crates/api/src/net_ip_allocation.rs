//! `NetIPAllocation`: keeps reserved public addresses on matching nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::status::{AddressStatus, Moves, Summary};

/// Default of `reconcileInterval`, in seconds.
pub const RECONCILE_INTERVAL_SECONDS_DEFAULT: i64 = 30;

/// Default of the `namespace` of `workloadRef` and `deploymentRef`.
pub const WORKLOAD_NAMESPACE_DEFAULT: &str = "default";

/// Which reserved addresses the controller keeps on which nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "netinfra.darkbrains.com",
    version = "v1alpha1",
    kind = "NetIPAllocation",
    plural = "netipallocations",
    shortname = "nia",
    status = "NetIPAllocationStatus",
    derive = "PartialEq",
    doc = "Keeps reserved public IP addresses on matching nodes. The controller attaches each address to one node and labels \
           the node ip.ready=true. When the node is drained, fails or is deleted, the controller moves the address to \
           another node.",
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
    /// Reserved public addresses to keep on nodes, at most 1,000. Each address must exist in the cloud account,
    /// otherwise its state is `Missing`. If several objects list the same address, the oldest object owns it and the
    /// others report `Conflict`.
    #[serde(rename = "reservedIPs")]
    #[schemars(schema_with = "crate::crds::addresses")]
    pub reserved_ips: Vec<String>,

    /// Workload whose pods use the addresses. A cordoned node keeps its address until the last pod of the workload has
    /// left it. For a DaemonSet, it keeps the address until every other pod that a drain evicts has left. Default:
    /// none. The controller then detaches the address as soon as its node is cordoned. See also `policy.evictPods`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,

    /// Deprecated: use `workloadRef` with kind `Deployment`. Ignored if `workloadRef` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_ref: Option<DeploymentRef>,

    /// Labels that a node must have to get an address, all of them. Default: empty, which selects every node. A node
    /// that stops matching keeps its address until another node can take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// Cloud provider of the addresses and nodes, and the region and zones to use.
    pub cloud: Cloud,

    /// How often the controller lists the addresses at the provider to detect drift, in seconds. It may list them more
    /// often. Default: 30. Minimum: 5. The interval does not delay reactions to changes in the cluster, such as a
    /// cordoned or deleted node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 86400))]
    pub reconcile_interval: Option<i64>,

    /// Limits and options for moving addresses. Default: the default of each field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// A reference to the workload whose pods use the addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// Kind of the workload: `Deployment`, `StatefulSet` or `DaemonSet`.
    pub kind: WorkloadKind,

    /// Name of the workload.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the workload. Default: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Kinds that `workloadRef` can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// A reference to a Deployment. Deprecated in favour of [`WorkloadRef`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentRef {
    /// Name of the Deployment.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Namespace of the Deployment. Default: `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The cloud provider, and the region and zones for new placements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "!has(self.region) || !has(self.zones) || !(self.provider in ['gcp', 'aws']) || self.zones.all(zone, zone.startsWith(self.region))"
).message("every zone must be in the region: at gcp and aws, the name of a zone starts with the name of its region"))]
pub struct Cloud {
    /// Provider of the addresses and nodes: `gcp`, `aws`, `azure` or `digitalocean`.
    pub provider: Provider,

    /// Region for new placements: the controller attaches addresses only to nodes in this region. Default: any region.
    /// An address that is already on a matching node in another region stays there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub region: Option<String>,

    /// Zones for new placements, at most 100: the controller attaches addresses only to nodes in these zones. At `gcp`
    /// and `aws`, each name must start with `region`, if that is set. Default: empty, which allows any zone. An address
    /// that is already on a matching node in another zone stays there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100), inner(length(max = 63)))]
    pub zones: Option<Vec<String>>,
}

/// Providers that a `NetIPAllocation` supports.
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
    /// `reconcileInterval`, or its default.
    pub fn reconcile_interval(&self) -> Duration {
        let seconds = self.reconcile_interval.unwrap_or(RECONCILE_INTERVAL_SECONDS_DEFAULT);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// The workload from `workloadRef`, or else from the deprecated `deploymentRef`.
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

/// The workload of a `NetIPAllocation`, with defaults resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload<'a> {
    /// Kind of the workload.
    pub kind: WorkloadKind,
    /// Name of the workload.
    pub name: &'a str,
    /// Namespace of the workload.
    pub namespace: &'a str,
    /// Whether the deprecated `deploymentRef` named the workload.
    pub deprecated: bool,
}

/// Observed state of the addresses, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetIPAllocationStatus {
    /// Generation of the spec that this status describes. While it is lower than `metadata.generation`, the controller
    /// has not processed the latest change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the object. Exactly one of these types is True. `Ready`: every address is on a node that should
    /// have it. `Reconciling`: an address is moving or waiting, and the controller continues without help. `Stalled`: a
    /// person has to act. All three have the same message and the same reason, which is that of the worst address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Number of desired and attached addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// State of each address, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<AddressStatus>,

    /// Journal of unfinished moves. The controller writes an entry before the first call to the provider, so the next
    /// leader can resume the move after a crash. Absent if no move is unfinished. Do not edit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub moves: Option<Moves>,

    /// With `policy.mode: Observe`: what the controller would do, at most 100 steps. Otherwise empty.
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
    fn n3_workload_ref_overrides_the_deprecated_deployment_ref() {
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
