//! Processes events of nodes.

use std::collections::{BTreeMap, VecDeque};

use plan::{NodeName, Pool, PoolKey, Scope, Timestamp, VmId, World};
use tokio::time::Instant;

use super::Index;
use super::tracked::Tracked;
use super::unready::Source;
use crate::addresses::codec;
use crate::addresses::kind::Kind;
use crate::addresses::node::Node;
use crate::addresses::resources::refusal::Refusal;
use crate::addresses::watch::Observed;
use crate::kubernetes::decode::{Change, Decoded};

impl Index {
    pub(super) fn observe_nodes(&mut self, change: Change<Node>) {
        match change {
            Change::All(nodes) => {
                self.begin_list(Kind::Nodes);
                nodes.into_iter().for_each(|node| self.observe_node(node, Source::List));
                while let Some(name) = self.unlisted.nodes.pop_first() {
                    self.remove_node(&name);
                }
                self.know(Kind::Nodes);
            }
            Change::Applied(node) => {
                self.heard(Kind::Nodes);
                self.observe_node(*node, Source::Event);
            }
            Change::Deleted(gone) => {
                self.heard(Kind::Nodes);
                self.remove_node(&NodeName::from(gone.name.as_deref().unwrap_or_default()));
            }
        }
    }

    /// Processes nodes of a list until the time of a `Slice` is over, and returns the rest.
    pub(super) fn observe_listed_nodes(&mut self, mut nodes: VecDeque<Decoded<Node>>) -> Option<Observed> {
        let until = Instant::now() + self.slice.0;
        while let Some(node) = nodes.pop_front() {
            self.observe_node(node, Source::List);
            if !nodes.is_empty() && Instant::now() >= until {
                return Some(Observed::NodesInList(nodes));
            }
        }
        None
    }

    fn observe_node(&mut self, node: Decoded<Node>, source: Source) {
        self.undecodable.observe_one(Kind::Nodes, &node, |node| ("", node.name.as_str()));
        let node = match node {
            Decoded::Object(node) => node,
            Decoded::Undecodable(undecodable) => {
                let name = NodeName::from(undecodable.metadata.name.as_deref().unwrap_or_default());
                Node::stand_in(&undecodable, self.nodes.get(&name))
            }
        };
        self.set_node(node, source);
    }

    fn set_node(&mut self, node: Node, source: Source) {
        let name = node.name.clone();
        self.unlisted.nodes.remove(&name);
        let is_same = |known: &Node| !known.is_stand_in && !node.is_stand_in && known.is_same_version(&node);
        if self.nodes.get(&name).is_some_and(is_same) {
            return;
        }
        let before = self.nodes.get(&name).filter(|known| known.uid == node.uid).map(|known| known.readiness);
        self.unready.observe(&name, before, node.readiness, source);
        let observed = observed(&node);
        let has_machine = observed.machine.is_some();
        self.world.set_node(&name, observed);
        let unsupported = node.provider_id.as_deref().and_then(drivers::unsupported);
        match unsupported {
            Some(why) => _ = self.unsupported.insert(name.clone(), why),
            None => _ = self.unsupported.remove(&name),
        }
        let mut without_scope = Vec::new();
        for (key, tracked) in &self.objects {
            let pods = tracked.membership(&name, &node);
            tracked.update_world(&mut self.world, key, &name, &node, pods);
            let lacks_scope = tracked.refusal.as_ref().is_some_and(Refusal::lacks_scope);
            if lacks_scope && pods.is_some() && (has_machine || unsupported.is_some()) {
                without_scope.push(key.clone());
            }
        }
        self.nodes.insert(name, node);
        for key in without_scope {
            self.rebuild(&key);
        }
    }

    pub(super) fn remove_node(&mut self, name: &NodeName) {
        self.undecodable.remove(Kind::Nodes, "", name.as_str());
        self.unready.forget(name);
        self.world.remove_node(name);
        self.nodes.remove(name);
        if self.unsupported.remove(name).is_some() {
            let lacks_scope = |tracked: &Tracked| tracked.refusal.as_ref().is_some_and(Refusal::lacks_scope);
            let objects = self.objects.iter().filter(|(_, tracked)| lacks_scope(tracked));
            let keys: Vec<_> = objects.map(|(key, _)| key.clone()).collect();
            keys.iter().for_each(|key| self.rebuild(key));
        }
    }

    /// Chooses the accounts of objects again, after the first list of nodes. An earlier choice may have missed the oldest
    /// node.
    pub(super) fn choose_accounts_again(&mut self) {
        let is_chosen_otherwise = |pool: &&Pool| {
            let Some(tracked) = self.objects.get(&pool.key) else { return false };
            if self.world.node_in_other_account(&pool.key).is_none() {
                return false;
            }
            let of_journal = codec::machines_of(tracked.object.moves());
            let matching =
                self.world.matching(&pool.key).filter_map(|name| candidate(&self.nodes, &self.world, name));
            let scope = plan::scope_of(pool.scope.provider, pool, None, of_journal, matching);
            scope.is_some_and(|scope| scope != pool.scope)
        };
        let due: Vec<_> =
            self.world.pools().filter(is_chosen_otherwise).map(|pool| pool.key.clone()).collect();
        due.iter().for_each(|key| self.rebuild_in(key, None));
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

/// A node that may determine the account of an object, and when it was created.
pub(super) fn candidate<'a>(
    nodes: &BTreeMap<NodeName, Node>,
    world: &'a World,
    name: &NodeName,
) -> Option<(Timestamp, &'a plan::Node)> {
    Some((nodes.get(name)?.created.unwrap_or(Timestamp::MAX), world.node(name)?))
}

fn machine_of(node: &Node) -> Option<(Scope, VmId)> {
    drivers::machine_of(node.provider_id.as_deref()?)
}

fn observed(node: &Node) -> plan::Node {
    plan::Node {
        machine: machine_of(node),
        readiness: node.readiness,
        grace_starts: None,
        is_cordoned: node.is_cordoned,
        is_leaving: node.taints.iter().any(|taint| DISRUPTION_TAINTS.contains(&taint.key.as_str())),
        region: node.labels.shared("topology.kubernetes.io/region").cloned(),
        zone: node.labels.shared("topology.kubernetes.io/zone").cloned(),
    }
}
