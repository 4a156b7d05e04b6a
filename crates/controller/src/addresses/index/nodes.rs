//! Processes events of nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use plan::{Node, NodeName, PoolKey, Readiness, Scope, Timestamp, VmId};

use super::Index;
use super::tracked::Tracked;
use crate::addresses::resources::parsed::created;
use crate::addresses::resources::refusal::Refusal;
use crate::addresses::watch::{Kind, SlimNode};
use crate::kubernetes::decode::{Change, Settled};

impl Index {
    pub(super) fn observe_nodes(&mut self, change: Change<SlimNode>) {
        self.believe(Kind::Nodes, matches!(change, Change::All(_)));
        self.undecodable.observe(Kind::Nodes, &change, SlimNode::meta);
        let change = change.with_stand_ins(|undecodable| {
            let name = NodeName::from(undecodable.metadata.name.as_deref().unwrap_or_default());
            Some(SlimNode::stand_in(&undecodable, self.nodes.get(&name)))
        });
        let Some(change) = change else { return };
        match change {
            Settled::All(nodes) => {
                let names: BTreeSet<_> = nodes.iter().map(name_of).collect();
                let gone: Vec<_> = self.nodes.keys().filter(|name| !names.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_node(name));
                nodes.into_iter().for_each(|node| self.set_node(node));
            }
            Settled::Applied(node) => self.set_node(node),
            Settled::Deleted(gone) => {
                self.remove_node(&NodeName::from(gone.name.as_deref().unwrap_or_default()))
            }
        }
    }

    fn set_node(&mut self, node: SlimNode) {
        let name = name_of(&node);
        self.world.set_node(&name, observed(&node));
        let machine = machine_of(&node);
        let unsupported = node.spec.provider_id.as_deref().and_then(drivers::unsupported);
        match unsupported {
            Some(why) => _ = self.unsupported.insert(name.clone(), why),
            None => _ = self.unsupported.remove(&name),
        }
        let mut without_scope = Vec::new();
        for (key, tracked) in &self.objects {
            let pods = tracked.membership(&name, &node);
            tracked.update_world(&mut self.world, key, &name, &node, pods);
            let lacks_scope = tracked.refusal.as_ref().is_some_and(Refusal::lacks_scope);
            if lacks_scope && pods.is_some() && (machine.is_some() || unsupported.is_some()) {
                without_scope.push(key.clone());
            }
        }
        self.nodes.insert(name, node);
        for key in without_scope {
            self.rebuild(&key);
        }
    }

    fn remove_node(&mut self, name: &NodeName) {
        self.world.remove_node(name);
        self.nodes.remove(name);
        if self.unsupported.remove(name).is_some() {
            let lacks_scope = |tracked: &Tracked| tracked.refusal.as_ref().is_some_and(Refusal::lacks_scope);
            let objects = self.objects.iter().filter(|(_, tracked)| lacks_scope(tracked));
            let keys: Vec<_> = objects.map(|(key, _)| key.clone()).collect();
            keys.iter().for_each(|key| self.rebuild(key));
        }
    }

    /// The first node that the object selects and whose VM can't get an address, and why.
    pub fn unsupported(&self, key: &PoolKey) -> Option<(&NodeName, &'static str)> {
        let tracked = self.objects.get(key)?;
        let is_member = |name: &NodeName| {
            self.nodes.get(name).is_some_and(|node| tracked.membership(name, node).is_some())
        };
        self.unsupported.iter().find(|(name, _)| is_member(name)).map(|(name, why)| (name, *why))
    }
}

/// Taints of nodes that will be removed soon. `DeletionCandidateOfClusterAutoscaler` is not one of them: the autoscaler
/// adds and removes this soft taint while it considers a node.
pub(super) const DISRUPTION_TAINTS: [&str; 4] = [
    "node.kubernetes.io/out-of-service",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
];

fn name_of(node: &SlimNode) -> NodeName {
    node.metadata.name.as_deref().unwrap_or_default().into()
}

pub(super) fn machine_of(node: &SlimNode) -> Option<(Scope, VmId)> {
    drivers::machine_of(node.spec.provider_id.as_deref()?)
}

fn observed(node: &SlimNode) -> Node {
    let readiness = match node.status.ready() {
        _ if node.is_stand_in => Readiness::Unknown,
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(ready) => {
            let since = ready.last_transition_time.as_ref().map(|time| time.0);
            Readiness::NotReadySince(since.unwrap_or(Timestamp::UNIX_EPOCH))
        }
        // A node that has never reported its status is NotReady.
        None => Readiness::NotReadySince(created(node)),
    };
    let label = |name: &str| node.labels().get(name).map(|value| Arc::from(value.as_str()));
    Node {
        machine: machine_of(node),
        readiness,
        is_cordoned: node.spec.unschedulable,
        is_leaving: node.spec.taints.iter().any(|taint| DISRUPTION_TAINTS.contains(&taint.key.as_str())),
        region: label("topology.kubernetes.io/region"),
        zone: label("topology.kubernetes.io/zone"),
    }
}
