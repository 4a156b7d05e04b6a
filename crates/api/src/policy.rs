//! `policy`: optional settings that `NetIPAllocation` and `FloatingIPPool` share.
//!
//! Every field is optional. Some defaults depend on the kind, so the controller resolves them where it parses each
//! kind.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits and options for moving addresses. Every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Whether the controller acts. `Active`: it moves addresses and publishes records. `Observe`: a dry run. It lists
    /// what it would do in `status.proposed` and changes nothing. A move that is in flight waits until the mode is
    /// `Active` again. Default: `Active`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// How long a NotReady node keeps its address, in seconds. After that, the controller moves the address to another
    /// node. 0 means at once. The address of a deleted node moves at once in any case. Default: 60 for a
    /// NetIPAllocation, 0 for a FloatingIPPool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub failover_grace_seconds: Option<i64>,

    /// Maximum number of voluntary moves of this object at a time. A voluntary move leaves a node that may still be
    /// alive, for example a drained one. Moves off failed or deleted nodes don't count and don't wait. Default: no
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent_moves: Option<i64>,

    /// Minimum number of addresses of this object on healthy nodes. While fewer are, voluntary moves wait with the
    /// reason `MinHealthy`. The address that would move does not count, so a value as high as the number of addresses
    /// blocks all voluntary moves. Default: 0, no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_healthy: Option<i64>,

    /// What to do with an address on a VM that is not a node of this cluster. `Never`: leave it there and report
    /// `Foreign`. `Always`: move it to a matching node. Default: `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,

    /// How the controller chooses nodes for new placements. `None`: in the order of their names. `Zone`: it spreads the
    /// addresses over zones first, by the label `topology.kubernetes.io/zone`. It never moves an attached address to
    /// spread addresses better. Default: `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,

    /// What happens when the object is deleted. `Keep`: addresses and DNS records stay as they are. `Detach`: the
    /// controller detaches the addresses from their nodes and removes its DNS records. A finalizer keeps the
    /// object until that is done. Default: `Keep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,

    /// Whether the controller releases addresses that it created for this object to the provider. A release can't be
    /// undone. `Never`: it releases none. `WhenUnneeded`: it releases addresses beyond `desiredIPs` that are on no VM,
    /// if the provider shows the mark of this object on them. Otherwise it reports `NotReleased`. Default: `Never`. No
    /// effect on a NetIPAllocation, which creates no addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_created: Option<ReleaseCreated>,

    /// Whether the controller evicts pods of the workload from nodes that hold no address. It uses the Eviction API, so
    /// PodDisruptionBudgets apply. It never evicts pods of a DaemonSet. Default: true. No effect on a FloatingIPPool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict_pods: Option<bool>,

    /// What to do when a taint announces that a node will be removed: `node.kubernetes.io/out-of-service`,
    /// `karpenter.sh/disrupted`, `karpenter.sh/disruption` or `ToBeDeletedByClusterAutoscaler`. `Ignore`: nothing.
    /// `Leave`: the controller moves the address as soon as another node can take it, and gives the node no new
    /// address. Default: `Ignore`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disruption_taints: Option<DisruptionTaints>,
}

/// Whether the controller acts, or only reports what it would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    #[allow(missing_docs)]
    Active,
    #[allow(missing_docs)]
    Observe,
}

/// What to do with an address on a VM that is not a node of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Takeover {
    #[allow(missing_docs)]
    Never,
    #[allow(missing_docs)]
    Always,
}

/// How the controller spreads new placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Spread {
    #[allow(missing_docs)]
    None,
    #[allow(missing_docs)]
    Zone,
}

/// What happens to addresses and DNS records when their object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    #[allow(missing_docs)]
    Keep,
    #[allow(missing_docs)]
    Detach,
}

/// Whether the controller releases addresses that it created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReleaseCreated {
    #[allow(missing_docs)]
    Never,
    #[allow(missing_docs)]
    WhenUnneeded,
}

/// What to do when a taint announces that a node will be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisruptionTaints {
    #[allow(missing_docs)]
    Ignore,
    #[allow(missing_docs)]
    Leave,
}
