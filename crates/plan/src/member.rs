//! A pool in the world, with bitmaps of the nodes that match it. Each bit stands for a slot of the world.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bits::Bits;
use crate::{Address, Node, Pods, Pool, Readiness, Tenancy};

/// A pool and its nodes.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) pool: Arc<Pool>,
    pub(crate) matching: Bits,
    pub(crate) ready_pods: Bits,
    pub(crate) some_pods: Bits,
    pub(crate) unknown_pods: Bits,
    /// Nodes with pods that the controller may evict, whether the node matches or not.
    pub(crate) evictable: Bits,
    /// Nodes that may get an address if they hold none.
    pub(crate) fit: Bits,
    /// The addresses of the nodes themselves, if the pool publishes those.
    pub(crate) node_addresses: BTreeMap<usize, Arc<[Address]>>,
}

impl Member {
    pub(crate) fn new(pool: Pool) -> Self {
        let none = Bits::default;
        Self {
            pool: Arc::new(pool),
            matching: none(),
            ready_pods: none(),
            some_pods: none(),
            unknown_pods: none(),
            evictable: none(),
            fit: none(),
            node_addresses: BTreeMap::new(),
        }
    }

    /// The state of the pool's pods on a node; none if the selectors don't match the node.
    pub(crate) fn pods(&self, slot: usize) -> Option<Pods> {
        let pods = match (self.ready_pods.contains(slot), self.some_pods.contains(slot)) {
            (true, _) => Pods::Ready,
            (false, true) if self.unknown_pods.contains(slot) => Pods::Unknown,
            (false, true) => Pods::Present,
            (false, false) => Pods::Absent,
        };
        self.matching.contains(slot).then_some(pods)
    }

    /// Updates whether a node may get an address if it holds none. The conditions are those of `Standing::Fit`.
    pub(crate) fn judge(&mut self, slot: usize, node: &Node) {
        let pool = &self.pool;
        let has_place = match pool.tenancy {
            Tenancy::UntilDrained => !node.is_cordoned,
            Tenancy::UntilDisplaced { needs_pods } => !needs_pods || self.ready_pods.contains(slot),
        };
        let is_fit = has_place
            && self.matching.contains(slot)
            && node.machine.as_ref().is_some_and(|(scope, _)| *scope == pool.scope)
            && node.readiness == Readiness::Ready
            && !(pool.policy.leaves_on_disruption && node.is_leaving)
            && !is_elsewhere(pool, node);
        self.fit.set(slot, is_fit);
    }
}

/// Whether a node is outside of the pool's region or zones.
pub(crate) fn is_elsewhere(pool: &Pool, node: &Node) -> bool {
    let other_region = pool.region.is_some() && node.region.is_some() && pool.region != node.region;
    let zone_asked_for = |zone: &Arc<str>| pool.zones.contains(zone);
    let other_zone = !pool.zones.is_empty() && !node.zone.as_ref().is_some_and(zone_asked_for);
    other_region || other_zone
}
