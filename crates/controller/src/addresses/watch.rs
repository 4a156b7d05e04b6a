//! The watches of the address reconciler.
//!
//! In: the apiserver's watches. Out: [`Observed`] events on a channel, also if a watch fails. The types have only the
//! fields that decisions need, because the memory of the controller grows with the watched objects. This file never
//! decides anything.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use api::{FloatingIPPool, IP_READY_LABEL, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::kubernetes::decode::{Change, Decoded, Undecodable};
use crate::kubernetes::watch::{WATCH_RETRY, WatchEvent, follow, is_not_found};
use crate::tasks::Tasks;

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
    /// Whether this is a substitute for an undecodable pod.
    #[serde(skip)]
    pub is_stand_in: bool,
}

impl SlimPod {
    /// The substitute for an undecodable pod: the last decoded version, or else the fields that can be read.
    pub(crate) fn stand_in(undecodable: &Undecodable, last: Option<&Self>) -> Self {
        let is_same = |last: &&Self| last.metadata.uid == undecodable.metadata.uid;
        let node_name = undecodable.at(&["spec", "nodeName"]);
        if let Some(last) = last.filter(is_same) {
            // A pod is bound to a node once, and never moves.
            let spec = SlimPodSpec { node_name: last.spec.node_name.clone().or(node_name) };
            return Self { is_stand_in: true, spec, ..last.clone() };
        }
        Self {
            metadata: undecodable.metadata.clone(),
            spec: SlimPodSpec { node_name },
            status: SlimStatus::default(),
            is_stand_in: true,
        }
    }
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
        self.conditions.iter().find(|condition| condition.kind == "Ready")
    }
}

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Nodes,
    Pods,
    Deployments,
    StatefulSets,
    DaemonSets,
    ReplicaSets,
    NetIPAllocations,
    FloatingIPPools,
    NodeDNSRecordSets,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Nodes,
        Self::Pods,
        Self::Deployments,
        Self::StatefulSets,
        Self::DaemonSets,
        Self::ReplicaSets,
        Self::NetIPAllocations,
        Self::FloatingIPPools,
        Self::NodeDNSRecordSets,
    ];
}

impl Kind {
    /// The name of the kind, and its group and version.
    pub fn named(self) -> (Cow<'static, str>, Cow<'static, str>) {
        fn of<K: Resource<DynamicType = ()>>() -> (Cow<'static, str>, Cow<'static, str>) {
            (K::kind(&()).into_owned().into(), K::api_version(&()).into_owned().into())
        }
        match self {
            Self::Nodes => of::<Node>(),
            Self::Pods => of::<Pod>(),
            Self::Deployments => of::<Deployment>(),
            Self::StatefulSets => of::<StatefulSet>(),
            Self::DaemonSets => of::<DaemonSet>(),
            Self::ReplicaSets => of::<ReplicaSet>(),
            Self::NetIPAllocations => of::<NetIPAllocation>(),
            Self::FloatingIPPools => of::<FloatingIPPool>(),
            Self::NodeDNSRecordSets => of::<NodeDNSRecordSet>(),
        }
    }

    /// Whether the cluster may lack this kind. Kinds of Kubernetes itself always exist, even if a proxy answers 404.
    fn may_be_absent(self) -> bool {
        matches!(self, Self::NetIPAllocations | Self::FloatingIPPools | Self::NodeDNSRecordSets)
    }
}

/// An event of a watch.
#[derive(Debug)]
pub enum Observed {
    /// Nodes.
    Nodes(Change<SlimNode>),
    /// Pods.
    Pods(Change<SlimPod>),
    /// Owners of pods, of one of four kinds.
    Owners(Kind, Change<ObjectMeta>),
    /// NetIPAllocations.
    Allocations(Change<NetIPAllocation>),
    /// FloatingIPPools.
    Pools(Change<FloatingIPPool>),
    /// NodeDNSRecordSets.
    RecordSets(Change<NodeDNSRecordSet>),
    /// A watch has failed. The cache of this kind is incomplete until the next relist.
    Unsure(Kind),
    /// The cluster does not have this kind.
    Absent(Kind),
}

/// Starts the watches. They stop when the returned `Tasks` are dropped.
pub fn start(client: &Client, to: &mpsc::UnboundedSender<Observed>) -> Tasks<()> {
    let mut tasks = Tasks::default();
    spawn(&mut tasks, client, to, Kind::Nodes, Observed::Nodes);
    spawn(&mut tasks, client, to, Kind::Pods, Observed::Pods);
    spawn(&mut tasks, client, to, Kind::Deployments, owners::<Deployment>(Kind::Deployments));
    spawn(&mut tasks, client, to, Kind::StatefulSets, owners::<StatefulSet>(Kind::StatefulSets));
    spawn(&mut tasks, client, to, Kind::DaemonSets, owners::<DaemonSet>(Kind::DaemonSets));
    spawn(&mut tasks, client, to, Kind::ReplicaSets, owners::<ReplicaSet>(Kind::ReplicaSets));
    spawn(&mut tasks, client, to, Kind::NetIPAllocations, Observed::Allocations);
    spawn(&mut tasks, client, to, Kind::FloatingIPPools, Observed::Pools);
    spawn(&mut tasks, client, to, Kind::NodeDNSRecordSets, Observed::RecordSets);
    tasks
}

/// Of owners of pods, only the metadata is read.
fn owners<K>(kind: Kind) -> impl Fn(Change<PartialObjectMeta<K>>) -> Observed + Copy {
    move |change| Observed::Owners(kind, change.map(|owner| owner.metadata))
}

fn spawn<K>(
    tasks: &mut Tasks<()>,
    client: &Client,
    to: &mpsc::UnboundedSender<Observed>,
    kind: Kind,
    seen: impl Fn(Change<K>) -> Observed + Copy + Send + Sync + 'static,
) where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default,
{
    let (api, to) = (Api::<Decoded<K>>::all(client.clone()), to.clone());
    let was_absent = AtomicBool::new(false);
    let convert = move |event| {
        let is_absent =
            kind.may_be_absent() && matches!(&event, WatchEvent::Lost(error) if is_not_found(error));
        let is_new = !was_absent.swap(is_absent, Ordering::Relaxed);
        match event {
            WatchEvent::Changed(change) => seen(change),
            WatchEvent::Lost(_) if plan::sabotaged!(FailedWatchReadAsEmpty) => seen(Change::All(Vec::new())),
            WatchEvent::Lost(_) if is_absent => {
                if is_new {
                    tracing::warn!(?kind, "the cluster does not have this kind");
                }
                Observed::Absent(kind)
            }
            WatchEvent::Lost(error) => {
                tracing::warn!(?kind, %error, "a watch failed");
                Observed::Unsure(kind)
            }
        }
    };
    // A watcher that resumes after an error sends nothing until something changes. So a failed watcher is replaced by a
    // new one, whose relist shows that the cache is complete again.
    tasks.spawn(async move {
        while follow(api.clone(), &to, &convert).await {
            tokio::time::sleep(WATCH_RETRY).await;
        }
    });
}
