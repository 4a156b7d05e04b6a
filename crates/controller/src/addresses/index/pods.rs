//! Processes events of pods and their owners, and counts the pods of each object on each node.

use std::collections::BTreeSet;

use kube::core::SelectorExt;
use kube::{Resource, ResourceExt};
use plan::{NodeName, Pods, PoolKey, WorkloadPod, World};

use super::Index;
use super::owners::{self, Owners};
use super::tracked::{PodCount, Tracked};
use crate::addresses::resources::parsed::{PodSelection, Selection};
use crate::addresses::resources::selector;
use crate::addresses::watch::{Kind, SlimNode, SlimPod};
use crate::kubernetes::decode::{Change, Settled};

impl PodSelection {
    fn means(&self, pod: &SlimPod, owners: &Owners) -> bool {
        match self {
            Self::Labelled { namespace, labels } => {
                let is_elsewhere = |namespace| pod.metadata.namespace.as_ref() != Some(namespace);
                !namespace.as_ref().is_some_and(is_elsewhere) && labels.matches(pod.labels())
            }
            Self::Of(workload) => owners.has(workload, pod),
        }
    }

    /// Whether a pod may be evicted: it certainly belongs to the workload, and is not terminating.
    pub(super) fn may_evict(&self, pod: &SlimPod, owners: &Owners) -> bool {
        let Self::Of(workload) = self else { return false };
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        !self.outstay_a_drain() && !pod.is_stand_in && !is_leaving && owners.surely_has(workload, pod)
    }

    /// Whether a drain leaves these pods on the node. Then the node counts as drained when all other pods have left.
    fn outstay_a_drain(&self) -> bool {
        matches!(self, Self::Of(workload) if workload.kind == Kind::DaemonSets)
    }
}

impl Tracked {
    /// The state of the object's pods on a node, or `None` if the object does not select the node.
    pub(super) fn membership(&self, name: &NodeName, node: &SlimNode) -> Option<Pods> {
        let Selection { nodes, tolerations, pods, pods_if_none_selected, .. } = &self.selection;
        let is_tolerated = |tolerations: &Vec<_>| {
            let mut taints =
                node.spec.taints.iter().filter(|taint| !READINESS_TAINTS.contains(&taint.key.as_str()));
            taints.all(|taint| selector::is_tolerated(taint, tolerations))
        };
        if !nodes.matches(node.labels()) || !tolerations.as_ref().is_none_or(is_tolerated) {
            return None;
        }
        let Some(pod_selection) = pods else { return Some(*pods_if_none_selected) };
        let PodCount { ours, ready, others, undecodable, .. } =
            self.pods.get(name).copied().unwrap_or_default();
        Some(match (ready, ours) {
            (_, 0) => Pods::Absent,
            _ if pod_selection.outstay_a_drain() && others == 0 => Pods::Absent,
            (0, _) if undecodable > 0 => Pods::Unknown,
            (0, _) => Pods::Present,
            _ => Pods::Ready,
        })
    }

    /// Updates the world: the object's pods on a node, whether one of them can be evicted, and which node addresses to
    /// publish.
    pub(super) fn update_world(
        &self,
        world: &mut World,
        key: &PoolKey,
        name: &NodeName,
        node: &SlimNode,
        pods: Option<Pods>,
    ) {
        world.set_member(key, name, pods);
        if let Some(publishes) = self.selection.publishes {
            world.set_node_addresses(key, name, publishes.of(node));
        }
        world.set_evictable(key, name, self.pods.get(name).is_some_and(|pods| pods.evictable > 0));
    }

    /// Counts all pods again.
    pub(super) fn recount<'a>(&mut self, pods: impl Iterator<Item = &'a SlimPod>, owners: &Owners) {
        self.pods.clear();
        for pod in pods {
            self.count(pod, owners, 1);
        }
    }

    /// Adds or removes a pod, and returns its node. Returns `None` if the pod has ended or does not matter to the
    /// object.
    pub(super) fn count(&mut self, pod: &SlimPod, owners: &Owners, change: isize) -> Option<NodeName> {
        let pod_selection = self.selection.pods.as_ref()?;
        let is_ours = pod_selection.means(pod, owners);
        let is_other = !is_ours && pod_selection.outstay_a_drain() && owners::is_evictable(pod);
        if has_ended(pod) || !(is_ours || is_other) {
            return None;
        }
        let node = NodeName::from(pod.spec.node_name.as_deref()?);
        let counted = self.pods.entry(node.clone()).or_default();
        let add = |counter: &mut usize, is_meant: bool| {
            if is_meant {
                *counter = counter.saturating_add_signed(change);
            }
        };
        add(&mut counted.ours, is_ours);
        add(&mut counted.ready, is_ours && is_ready(pod));
        add(&mut counted.others, is_other);
        add(&mut counted.evictable, pod_selection.may_evict(pod, owners));
        add(&mut counted.undecodable, is_ours && pod.is_stand_in);
        Some(node)
    }
}

/// Taints of NotReady nodes. They are ignored, because the node's Ready condition and the grace period decide.
const READINESS_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

fn has_ended(pod: &SlimPod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &SlimPod) -> bool {
    let is_running = pod.status.phase.as_deref() == Some("Running");
    let is_ready = pod.status.ready().is_some_and(|ready| ready.status == "True");
    is_running && is_ready && pod.metadata.deletion_timestamp.is_none()
}

fn key_of_pod(pod: &kube::api::ObjectMeta) -> (String, String) {
    (pod.namespace.clone().unwrap_or_default(), pod.name.clone().unwrap_or_default())
}

impl Index {
    pub(super) fn observe_pods(&mut self, change: Change<SlimPod>) {
        self.believe(Kind::Pods, matches!(change, Change::All(_)));
        self.undecodable.observe(Kind::Pods, &change, SlimPod::meta);
        let change = change.with_stand_ins(|undecodable| {
            Some(SlimPod::stand_in(&undecodable, self.pods.get(&key_of_pod(&undecodable.metadata))))
        });
        let Some(change) = change else { return };
        match change {
            Settled::All(pods) => {
                let keys: BTreeSet<_> = pods.iter().map(|pod| key_of_pod(&pod.metadata)).collect();
                let gone: Vec<_> = self.pods.keys().filter(|key| !keys.contains(key)).cloned().collect();
                gone.into_iter().for_each(|key| self.change_pod(key, None));
                pods.into_iter().for_each(|pod| self.change_pod(key_of_pod(&pod.metadata), Some(pod)));
            }
            Settled::Applied(pod) => self.change_pod(key_of_pod(&pod.metadata), Some(pod)),
            Settled::Deleted(gone) => self.change_pod(key_of_pod(&gone), None),
        }
    }

    pub(super) fn observe_owners(&mut self, kind: Kind, change: Change<kube::api::ObjectMeta>) {
        self.believe(kind, matches!(change, Change::All(_)));
        self.undecodable.observe(kind, &change, |owner| owner);
        let change = change.with_stand_ins(|undecodable| self.owners.last_known(kind, &undecodable.metadata));
        let Some(change) = change else { return };
        let changed = self.owners.observe(kind, change);
        let is_concerned = |(_, tracked): &(&PoolKey, &Tracked)| match &tracked.selection.pods {
            Some(PodSelection::Of(workload)) => changed.contains(&workload.namespace),
            _ => false,
        };
        let keys: Vec<_> = self.objects.iter().filter(is_concerned).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.recount(&key);
        }
    }

    /// Counts the pods of an object again, and updates the world.
    pub(super) fn recount(&mut self, key: &PoolKey) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        tracked.recount(self.pods.values(), &self.owners);
        for (name, node) in &self.nodes {
            tracked.update_world(&mut self.world, key, name, node, tracked.membership(name, node));
        }
    }

    fn change_pod(&mut self, key: (String, String), pod: Option<SlimPod>) {
        let before = match &pod {
            Some(pod) => self.pods.insert(key, pod.clone()),
            None => self.pods.remove(&key),
        };
        let mut touched = BTreeSet::new();
        for (key, tracked) in &mut self.objects {
            for (pod, change) in [(&before, -1_isize), (&pod, 1)] {
                if let Some(node) = pod.as_ref().and_then(|pod| tracked.count(pod, &self.owners, change)) {
                    touched.insert((key.clone(), node));
                }
            }
        }
        for (key, name) in touched {
            if let (Some(tracked), Some(node)) = (self.objects.get(&key), self.nodes.get(&name)) {
                tracked.update_world(&mut self.world, &key, &name, node, tracked.membership(&name, node));
            }
        }
    }

    /// The pod of an object's workload to evict from a node. `None` while no node has the label `ip.ready`, which the
    /// replacement of the pod may require.
    pub fn pod_to_evict(&self, key: &PoolKey, node: &NodeName) -> Option<&SlimPod> {
        let pod_selection = self.objects.get(key)?.selection.pods.as_ref()?;
        if !self.nodes.values().any(SlimNode::is_ip_ready) {
            return None;
        }
        let pods = self.pods.values().filter(|pod| !has_ended(pod) && pod_selection.means(pod, &self.owners));
        let pods = pods.map(|pod| WorkloadPod {
            pod,
            node: pod.spec.node_name.as_deref(),
            is_leaving: pod.metadata.deletion_timestamp.is_some(),
            may_evict: pod_selection.may_evict(pod, &self.owners),
        });
        plan::pod_to_evict(pods, node)
    }
}
