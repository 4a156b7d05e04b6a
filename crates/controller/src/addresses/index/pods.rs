//! Processes events of pods and their owners, and counts the pods of each object on each node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plan::{NodeName, Pods, PoolKey, WorkloadPod, World};
use tokio::time::Instant;

use super::Index;
use super::owners::{self, Owners};
use super::tracked::{PodCount, Tracked};
use crate::addresses::kind::Kind;
use crate::addresses::node::Node;
use crate::addresses::owner::Owner;
use crate::addresses::pod::{Pod, PodKey};
use crate::addresses::resources::parsed::{PodSelection, Selection};
use crate::addresses::resources::selector;
use crate::addresses::watch::Observed;
use crate::kubernetes::decode::{Change, Decoded};

impl PodSelection {
    fn means(&self, pod: &Pod, owners: &Owners) -> bool {
        match self {
            Self::Labelled { namespace, labels } => {
                let is_here = |namespace: &String| *pod.key.namespace == **namespace;
                namespace.as_ref().is_none_or(is_here)
                    && labels.selects(|name| pod.labels.get(name).map(String::as_str))
            }
            Self::Of(workload) => owners.has(workload, pod),
        }
    }

    /// Whether a pod may be evicted: it certainly belongs to the workload, and is not terminating.
    pub(super) fn may_evict(&self, pod: &Pod, owners: &Owners) -> bool {
        let Self::Of(workload) = self else { return false };
        !self.outstay_a_drain() && !pod.is_stand_in && !pod.is_leaving && owners.surely_has(workload, pod)
    }

    /// Whether a drain leaves these pods on the node. Then the node counts as drained when all other pods have left.
    fn outstay_a_drain(&self) -> bool {
        matches!(self, Self::Of(workload) if workload.kind == Kind::DaemonSets)
    }
}

impl Tracked {
    /// The state of the object's pods on a node, or `None` if the object does not select the node.
    pub(super) fn membership(&self, name: &NodeName, node: &Node) -> Option<Pods> {
        let Selection { nodes, tolerations, pods, pods_if_none_selected, .. } = &self.selection;
        let is_tolerated = |tolerations: &Vec<_>| {
            let mut taints =
                node.taints.iter().filter(|taint| !READINESS_TAINTS.contains(&taint.key.as_str()));
            taints.all(|taint| selector::is_tolerated(taint, tolerations))
        };
        if !nodes.selects(|name| node.labels.get(name)) || !tolerations.as_ref().is_none_or(is_tolerated) {
            return None;
        }
        let Some(pod_selection) = pods else { return Some(*pods_if_none_selected) };
        if !self.is_counted && !plan::sabotaged!(UnreadPodsReadAsNone) {
            return Some(Pods::Unknown);
        }
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
        node: &Node,
        pods: Option<Pods>,
    ) {
        world.set_member(key, name, pods);
        if let Some(publishes) = self.selection.publishes {
            world.set_node_addresses(key, name, publishes.of(node));
        }
        world.set_evictable(key, name, self.pods.get(name).is_some_and(|pods| pods.evictable > 0));
    }

    /// Counts all pods again.
    pub(super) fn recount(&mut self, pods: &BTreeMap<PodKey, Pod>, owners: &Owners) {
        self.pods.clear();
        let Some(selection) = &self.selection.pods else { return };
        for pod in of_namespace(pods, selection.namespace()) {
            self.count(pod, owners, 1);
        }
    }

    /// Adds or removes a pod, and returns its node. Returns `None` if the pod has ended or does not matter to the
    /// object.
    pub(super) fn count(&mut self, pod: &Pod, owners: &Owners, change: isize) -> Option<NodeName> {
        let pod_selection = self.selection.pods.as_ref()?;
        let is_ours = pod_selection.means(pod, owners);
        let is_other = !is_ours && pod_selection.outstay_a_drain() && owners::is_evictable(pod);
        if pod.has_ended || !(is_ours || is_other) {
            return None;
        }
        let node = pod.node.clone()?;
        let counted = self.pods.entry(node.clone()).or_default();
        let add = |counter: &mut usize, is_meant: bool| {
            if is_meant {
                *counter = counter.saturating_add_signed(change);
            }
        };
        add(&mut counted.ours, is_ours);
        add(&mut counted.ready, is_ours && pod.is_ready);
        add(&mut counted.others, is_other);
        add(&mut counted.evictable, pod_selection.may_evict(pod, owners));
        add(&mut counted.undecodable, is_ours && pod.is_stand_in);
        Some(node)
    }
}

/// Taints of NotReady nodes. Selection ignores them: the node's Ready condition and the grace period count instead.
const READINESS_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The pods of a namespace, or of all namespaces.
fn of_namespace<'a>(
    pods: &'a BTreeMap<PodKey, Pod>,
    namespace: Option<&str>,
) -> impl Iterator<Item = &'a Pod> + use<'a> {
    let namespace: Option<std::sync::Arc<str>> = namespace.map(Into::into);
    let from = PodKey { namespace: namespace.clone().unwrap_or_default(), name: "".into() };
    let is_meant = move |key: &PodKey| namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace);
    pods.range(from..).take_while(move |(key, _)| is_meant(key)).map(|(_, pod)| pod)
}

fn key_of_pod(metadata: &kube::api::ObjectMeta) -> PodKey {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    PodKey { namespace: text(&metadata.namespace), name: text(&metadata.name) }
}

impl Index {
    pub(super) fn observe_pods(&mut self, change: Change<Pod>) {
        match change {
            Change::All(pods) => {
                self.begin_list(Kind::Pods);
                pods.into_iter().for_each(|pod| self.observe_pod(pod));
                while let Some(key) = self.unlisted.pods.pop_first() {
                    self.change_pod(key, None);
                }
                self.know(Kind::Pods);
            }
            Change::Applied(pod) => {
                self.heard(Kind::Pods);
                self.observe_pod(*pod);
            }
            Change::Deleted(gone) => {
                self.heard(Kind::Pods);
                self.change_pod(key_of_pod(&gone), None);
            }
        }
    }

    /// Processes pods of a list until the time of a `Slice` is over, and returns the rest.
    pub(super) fn observe_listed_pods(&mut self, mut pods: VecDeque<Decoded<Pod>>) -> Option<Observed> {
        let until = Instant::now() + self.slice.0;
        while let Some(pod) = pods.pop_front() {
            self.observe_pod(pod);
            if !pods.is_empty() && Instant::now() >= until {
                return Some(Observed::PodsInList(pods));
            }
        }
        None
    }

    fn observe_pod(&mut self, pod: Decoded<Pod>) {
        self.undecodable.observe_one(Kind::Pods, &pod, |pod| (&pod.key.namespace, &pod.key.name));
        let pod = match pod {
            Decoded::Object(pod) => pod,
            Decoded::Undecodable(undecodable) => {
                Pod::stand_in(&undecodable, self.pods.get(&key_of_pod(&undecodable.metadata)))
            }
        };
        self.change_pod(pod.key.clone(), Some(pod));
    }

    pub(super) fn observe_owners(&mut self, kind: Kind, change: Change<Owner>) {
        match change.is_whole() {
            true => self.know(kind),
            false => self.heard(kind),
        }
        self.undecodable.observe(kind, &change, |owner| (&owner.namespace, &owner.name));
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
        tracked.recount(&self.pods, &self.owners);
        for (name, node) in &self.nodes {
            tracked.update_world(&mut self.world, key, name, node, tracked.membership(name, node));
        }
    }

    pub(super) fn change_pod(&mut self, key: PodKey, pod: Option<Pod>) {
        self.unlisted.pods.remove(&key);
        let namespace = std::sync::Arc::clone(&key.namespace);
        let before = match &pod {
            // Most pods of a list are known already.
            Some(pod) if self.pods.get(&key) == Some(pod) => return,
            Some(pod) => self.pods.insert(key, pod.clone()),
            None => {
                self.undecodable.remove(Kind::Pods, &key.namespace, &key.name);
                self.pods.remove(&key)
            }
        };
        let mut touched = BTreeSet::new();
        for key in self.interest.of(&namespace) {
            let Some(tracked) = self.objects.get_mut(key) else { continue };
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
    pub fn pod_to_evict(&self, key: &PoolKey, node: &NodeName) -> Option<&Pod> {
        let pod_selection = self.objects.get(key)?.selection.pods.as_ref()?;
        if !self.nodes.values().any(Node::is_ip_ready) {
            return None;
        }
        let pods = of_namespace(&self.pods, pod_selection.namespace())
            .filter(|pod| !pod.has_ended && pod_selection.means(pod, &self.owners));
        let pods = pods.map(|pod| WorkloadPod {
            pod,
            node: pod.node.as_ref().map(NodeName::as_str),
            is_leaving: pod.is_leaving,
            may_evict: pod_selection.may_evict(pod, &self.owners),
        });
        plan::pod_to_evict(pods, node)
    }
}
