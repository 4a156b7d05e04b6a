//! `policy`: optional settings that `NetIPAllocation` and `FloatingIPPool` share.
//!
//! Every field is optional, and what an absent one means depends on the kind, so the defaults live with each kind's
//! front end in the controller and not here.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How addresses may be moved. Every field is optional; the defaults keep the documented behaviour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// `Active` (the default) moves addresses. `Observe` plans and reports what it would do, and changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// How many seconds a NotReady node keeps its address before it is moved. A deleted node loses it at once.
    /// Default: 60 for a NetIPAllocation, 0 for a FloatingIPPool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub failover_grace_seconds: Option<i64>,

    /// The most voluntary moves under way at once. Moves away from dead nodes don't count and don't wait.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_concurrent_moves: Option<i64>,

    /// Voluntary moves wait while fewer than this many addresses are on healthy nodes. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_healthy: Option<i64>,

    /// What to do about an address held by a machine that is no node of this cluster: `Never` (the default) reports it,
    /// `Always` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,

    /// `None` (the default) places addresses by node name; `Zone` spreads them over zones first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,

    /// What happens to addresses and DNS records when this object is deleted: `Keep` (the default) leaves them as they
    /// are, `Detach` takes the addresses off their nodes and removes our records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,

    /// Whether addresses that this object created are given back to the cloud. Giving one back can't be undone, so the
    /// default is `Never`; `WhenUnneeded` releases addresses beyond the desired number, if the provider shows this
    /// object's mark on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_created: Option<ReleaseCreated>,

    /// Whether the workload's pods are evicted from nodes that hold no address. Default: true. Only a NetIPAllocation
    /// evicts pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict_pods: Option<bool>,

    /// `Ignore` (the default), or `Leave`: a node with the out-of-service taint, or that Karpenter or the cluster
    /// autoscaler has marked for removal, gives up its address early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disruption_taints: Option<DisruptionTaints>,
}

/// Whether the controller acts or only reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    #[allow(missing_docs)]
    Active,
    #[allow(missing_docs)]
    Observe,
}

/// What to do about an address on a machine outside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Takeover {
    #[allow(missing_docs)]
    Never,
    #[allow(missing_docs)]
    Always,
}

/// How placements are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Spread {
    #[allow(missing_docs)]
    None,
    #[allow(missing_docs)]
    Zone,
}

/// What happens to addresses and records when their object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    #[allow(missing_docs)]
    Keep,
    #[allow(missing_docs)]
    Detach,
}

/// Whether created addresses are given back to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReleaseCreated {
    #[allow(missing_docs)]
    Never,
    #[allow(missing_docs)]
    WhenUnneeded,
}

/// Whether a taint that announces a node's end moves its address early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisruptionTaints {
    #[allow(missing_docs)]
    Ignore,
    #[allow(missing_docs)]
    Leave,
}
