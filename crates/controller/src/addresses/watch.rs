//! The watches of the address reconciler.
//!
//! In: the apiserver's watches. Out: [`Observed`] events on a channel, also if a watch fails. This file never decides
//! anything.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::kind::Kind;
use super::needed::Needed;
use super::node::{Node, NodeReader};
use super::owner::Owner;
use super::pod::{Pod, PodReader};
use super::slim::{SlimNode, SlimPod};
use crate::kubernetes::decode::{Change, Decoded};
use crate::kubernetes::watch::{Clients, Ended, Reading, Relists, WatchEvent, follow, is_not_found};
use crate::tasks::Tasks;

/// The pause before a kind that the cluster does not have is requested again.
const SERVED_CHECK_EVERY: Duration = Duration::from_secs(10);

/// An event of a watch.
#[derive(Debug)]
pub enum Observed {
    /// Nodes.
    Nodes(Change<Node>),
    /// Pods.
    Pods(Change<Pod>),
    /// Owners of pods, of one of four kinds.
    Owners(Kind, Change<Owner>),
    /// NetIPAllocations.
    Allocations(Change<NetIPAllocation>),
    /// FloatingIPPools.
    Pools(Change<FloatingIPPool>),
    /// NodeDNSRecordSets.
    RecordSets(Change<NodeDNSRecordSet>),
    /// A list of a kind begins. Its pods have at least the labels of this version of [`Needed`].
    Listing(Kind, u64),
    /// Some nodes of the list.
    NodesInList(VecDeque<Decoded<Node>>),
    /// Some pods of the list.
    PodsInList(VecDeque<Decoded<Pod>>),
    /// The list of a kind that was requested at this time is complete. Nodes and pods that were not in it are gone.
    Listed(Kind, Instant),
    /// No object needs a kind any more, so it is not watched.
    Unwatched(Kind),
    /// A watch has failed. The cache of this kind is incomplete until the next list.
    Unsure(Kind),
    /// The cluster does not have this kind.
    Absent(Kind),
}

impl Observed {
    /// The kind whose pending relist this event ends: the list is complete, or can't be made now.
    pub(crate) fn answers_relist(&self) -> Option<Kind> {
        match self {
            Self::Listed(kind, _) | Self::Unsure(kind) | Self::Absent(kind) | Self::Unwatched(kind) => {
                Some(*kind)
            }
            _ => None,
        }
    }
}

/// An event of a watch, and when it came.
#[derive(Debug)]
pub struct Received {
    /// When it came.
    pub(crate) at: Instant,
    /// The event.
    pub(crate) seen: Observed,
}

impl Received {
    fn now(seen: Observed) -> Self {
        Self { at: Instant::now(), seen }
    }

    /// Whether it is a change of one object, not a part of a list.
    pub(crate) fn is_change(&self) -> bool {
        match &self.seen {
            Observed::Nodes(change) => change.is_of_one(),
            Observed::Pods(change) => change.is_of_one(),
            Observed::Owners(_, change) => change.is_of_one(),
            Observed::Allocations(change) => change.is_of_one(),
            Observed::Pools(change) => change.is_of_one(),
            Observed::RecordSets(change) => change.is_of_one(),
            _ => false,
        }
    }
}

/// The watches. They stop when this value is dropped.
pub struct Watches {
    tasks: Tasks<Ended>,
}

/// The reconciler's side of the watches.
pub struct Inbox {
    /// The events of the watches.
    pub(crate) events: mpsc::UnboundedReceiver<Received>,
    /// Requests relists.
    pub(crate) relists: Relists<Kind>,
    /// Sends the watches what the objects need.
    pub(crate) needed: watch::Sender<Needed>,
}

impl Watches {
    /// Starts the watches.
    pub fn start(clients: &Clients) -> (Self, Inbox) {
        let (to, events) = mpsc::unbounded_channel();
        let needed = watch::Sender::new(Needed::default());
        let (mut tasks, relists) = (Tasks::default(), Relists::new(Kind::ALL));
        let mut start = Starter { tasks: &mut tasks, relists: &relists, clients, needed: &needed, to };
        let nodes = Receives { change: Observed::Nodes, part: Some(Observed::NodesInList) };
        let mut node_reader = NodeReader::default();
        start.watch(Kind::Nodes, move |node: SlimNode| node_reader.read(node), nodes);
        let mut pod_reader = PodReader::new(needed.subscribe());
        let pods = Receives { change: Observed::Pods, part: Some(Observed::PodsInList) };
        start.watch(Kind::Pods, move |pod: SlimPod| pod_reader.read(&pod), pods);
        start.watch_owners::<Deployment>(Kind::Deployments);
        start.watch_owners::<StatefulSet>(Kind::StatefulSets);
        start.watch_owners::<DaemonSet>(Kind::DaemonSets);
        start.watch_owners::<ReplicaSet>(Kind::ReplicaSets);
        start.watch_whole(Kind::NetIPAllocations, |object| object, Observed::Allocations);
        start.watch_whole(Kind::FloatingIPPools, |object| object, Observed::Pools);
        start.watch_whole(Kind::NodeDNSRecordSets, |object| object, Observed::RecordSets);
        (Self { tasks }, Inbox { events, relists, needed })
    }

    /// Waits until a watch ends. A watch ends only if it can't continue.
    pub async fn ended(&mut self) -> Ended {
        match self.tasks.next().await {
            Some(Ok(ended)) => ended,
            Some(Err(_)) | None => std::future::pending().await,
        }
    }
}

/// Makes an event of a part of a list.
type FromPart<L> = fn(VecDeque<Decoded<L>>) -> Observed;

/// How the events of a kind are forwarded.
struct Receives<C, L> {
    change: C,
    /// For kinds whose lists are forwarded in parts.
    part: Option<FromPart<L>>,
}

struct Starter<'a> {
    tasks: &'a mut Tasks<Ended>,
    relists: &'a Relists<Kind>,
    clients: &'a Clients,
    needed: &'a watch::Sender<Needed>,
    to: mpsc::UnboundedSender<Received>,
}

impl Starter<'_> {
    /// Watches owners of pods. Only their metadata is read.
    fn watch_owners<K>(&mut self, kind: Kind)
    where
        PartialObjectMeta<K>: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
        <PartialObjectMeta<K> as Resource>::DynamicType: Default + Send + Sync,
        K: Send + Sync + 'static,
    {
        let keep = |owner: PartialObjectMeta<K>| Owner::from(owner.metadata);
        self.watch_whole(kind, keep, move |change| Observed::Owners(kind, change));
    }

    /// Watches a kind whose lists are forwarded as a whole.
    fn watch_whole<K, L>(
        &mut self,
        kind: Kind,
        keep: impl FnMut(K) -> L + Send + 'static,
        change: impl Fn(Change<L>) -> Observed + Copy + Send + Sync + 'static,
    ) where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Send + Sync,
        L: Send + 'static,
    {
        self.watch(kind, keep, Receives { change, part: None });
    }

    /// Watches a kind while it is needed.
    fn watch<K, L>(
        &mut self,
        kind: Kind,
        keep: impl FnMut(K) -> L + Send + 'static,
        receives: Receives<impl Fn(Change<L>) -> Observed + Copy + Send + Sync + 'static, L>,
    ) where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Send + Sync,
        L: Send + 'static,
    {
        let (clients, to) = (self.clients.clone(), self.to.clone());
        let (mut needed, mut dropped) = (self.needed.subscribe(), self.needed.subscribe());
        let relist = self.relists.of(kind);
        // The index ignores older versions of our own kinds, because the response to a write can come before its event.
        let (in_parts, ignores_older) = (receives.part.is_some(), kind.is_ours());
        let mut reading = Reading { annotations: kind.annotations(), keep, in_parts, ignores_older };
        self.tasks.spawn(async move {
            let was_absent = AtomicBool::new(false);
            let for_list = needed.clone();
            let observed = |event| {
                let is_absent =
                    kind.may_be_absent() && matches!(&event, WatchEvent::Lost(error) if is_not_found(error));
                if let WatchEvent::Listing = event {
                    return Some(Observed::Listing(kind, for_list.borrow().version));
                }
                let is_new = !was_absent.swap(is_absent, Ordering::Relaxed);
                Some(match event {
                    WatchEvent::Listing => return None,
                    WatchEvent::Part(part) => receives.part?(part.into()),
                    WatchEvent::Changed(change) => (receives.change)(change),
                    WatchEvent::Listed(began) => Observed::Listed(kind, began),
                    WatchEvent::Lost(_) if plan::sabotaged!(FailedWatchReadAsEmpty) => {
                        (receives.change)(Change::All(Vec::new()))
                    }
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
                })
            };
            let convert = |event| observed(event).map(Received::now);
            let (resource, mut newest) = (K::DynamicType::default(), 0);
            loop {
                if needed.wait_for(|needed| needed.has(kind)).await.is_err() {
                    return Ended::ReceiverGone;
                }
                let followed = async {
                    loop {
                        match follow(&clients, &resource, &mut reading, &relist, &mut newest, &to, &convert)
                            .await
                        {
                            Ended::NotServed => tokio::time::sleep(SERVED_CHECK_EVERY).await,
                            ended @ (Ended::Restored | Ended::ReceiverGone) => return ended,
                        }
                    }
                };
                tokio::select! {
                    biased;
                    needed = dropped.wait_for(|needed| !needed.has(kind)) => {
                        if needed.is_err() || to.send(Received::now(Observed::Unwatched(kind))).is_err() {
                            return Ended::ReceiverGone;
                        }
                    }
                    ended = followed => return ended,
                }
            }
        });
    }
}
