//! What is known, as plain data without handles.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Address, NodeName, PoolKey, Scope, Timestamp, VmId};

/// Everything known at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// The nodes, by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// The pools, in no particular order.
    pub pools: Vec<Pool>,
    /// What the clouds say of the pools' addresses. An address that is absent here was never asked for: unknown.
    pub addresses: BTreeMap<Address, Fact<Holding>>,
}

/// Something a cloud was asked. An error, a missing page or a store not yet synced is unknown, and never a guess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// The cloud answered.
    Known(T),
    /// It did not, for this reason.
    Unknown(String),
}

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nobody.
    Free,
    /// A machine.
    By(VmId),
    /// The cloud has no such address.
    Missing,
}

/// A node and the machine it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The machine; none while the cloud provider has not said.
    pub vm: Option<VmId>,
    /// Whether the kubelet reports that the node can run pods.
    pub readiness: Readiness,
    /// Whether a person or a drain marked it unschedulable.
    pub is_cordoned: bool,
    /// The region and the zone, where the node's labels tell.
    pub region: Option<String>,
    /// See `region`.
    pub zone: Option<String>,
}

/// A node's Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is Ready.
    Ready,
    /// It has not been Ready since then.
    NotReadySince(Timestamp),
}

/// Addresses, the nodes that may have them, and the rules. Both resource kinds become this.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Which object it is.
    pub key: PoolKey,
    /// When the object was created: the oldest object that lists an address owns it.
    pub created: Timestamp,
    /// Where its addresses live.
    pub scope: Scope,
    /// Its addresses, in the user's order.
    pub addresses: Vec<Address>,
    /// How many of them are wanted on nodes; those beyond, in order, are disabled.
    pub desired: usize,
    /// The nodes that its selectors match, and how its pods fare there.
    pub members: BTreeMap<NodeName, Pods>,
    /// When a node gives its address up.
    pub tenancy: Tenancy,
    /// New placements go only to this region, where one is given.
    pub region: Option<String>,
    /// New placements go only to these zones; empty means all.
    pub zones: Vec<String>,
    /// The machine of ours that last held each address, by the object's own status.
    pub last_holders: BTreeMap<Address, VmId>,
    /// What the user allows.
    pub policy: Policy,
}

/// How a pool's pods fare on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// At least one runs and is Ready.
    Ready,
    /// There are some, running or terminating, and none is Ready.
    Present,
    /// There are none.
    Absent,
}

/// When a node gives its address up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// A node needs no pods to get an address, and a cordoned one keeps it while the workload's pods are there. Once the
    /// node has to give it up, the address leaves even if no other node can take it.
    UntilDrained,
    /// A node must run a Ready pod (where `needs_pods`), and an address leaves only when another node can take it.
    UntilDisplaced {
        /// Whether pods matter at all.
        needs_pods: bool,
    },
}

/// What the user allows, with all defaults resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether to act at all.
    pub mode: Mode,
    /// How long a NotReady node keeps its address.
    pub failover_grace: Duration,
    /// Whether an address may be taken from a machine that is not ours.
    pub takeover: Takeover,
}

/// Whether to act or only to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mode {
    Active,
    Observe,
}

/// Whether an address may be taken from a machine that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Takeover {
    Never,
    Always,
}
