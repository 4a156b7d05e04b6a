//! An object as the index knows it, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::core::Selector;
use plan::{Address, NodeName, Pods, VmId};
use tokio::time::Instant;

use crate::addresses::dropped_fields::DroppedFields;
use crate::addresses::object::Object;
use crate::addresses::resources;
use crate::addresses::resources::parsed::{Parsed, Who};
use crate::addresses::resources::refusal::Refusal;
use crate::kubernetes::decode::Undecodable;
use crate::kubernetes::watch::version;

/// An object and what became of it.
pub struct Tracked {
    /// The object as last read or written.
    pub object: Object,
    /// Why it can't be acted on, if so.
    pub refusal: Option<Refusal>,
    /// Why its name can't be published, if so.
    pub record_refusal: Option<Refusal>,
    /// How old its facts may get.
    pub age_max: Duration,
    /// The CRD in the cluster drops the journal or what is remembered of addresses, so nothing is done before this time.
    pub refused_until: Option<Instant>,
    /// Fields of its status that the CRD in the cluster does not keep.
    pub dropped_fields: DroppedFields,
    /// What the newest version names, where it can't be decoded. Then `object` is the last version that could be, or only
    /// stands in for it, and nothing is written.
    pub undecodable: Option<Reserved>,
    /// Which nodes it means.
    pub(super) who: Who,
    /// Addresses that were created for it, until its spec lists them.
    pub(super) adopted: BTreeSet<Address>,
    /// Addresses that were created for it by this process.
    pub(super) made: BTreeSet<Address>,
    /// Addresses that the cloud has back, until its spec does not list them any more.
    pub(super) dropped: BTreeSet<Address>,
    /// The pods on each node, as far as they matter.
    pub(super) pods: BTreeMap<NodeName, PodCount>,
}

/// What an object names that can't be decoded.
#[derive(Debug)]
pub struct Reserved {
    pub(super) version: u64,
    pub(super) addresses: BTreeSet<Address>,
    pub(super) machines: BTreeSet<VmId>,
}

impl Reserved {
    /// A machine may be named by its id or by the providerID of its node. What else is named matches no machine.
    pub(super) fn new(undecodable: &Undecodable) -> Self {
        let ids = undecodable.strings().filter(|text| !text.is_empty() && text.len() <= MACHINE_ID_MAX);
        let machines = ids.flat_map(|text| {
            let of_node = drivers::machine_of(text).map(|(_, vm)| vm);
            [Some(VmId::from(text)), of_node]
        });
        Self {
            version: version(&undecodable.metadata),
            addresses: undecodable.addresses().into_iter().map(Address).collect(),
            machines: machines.flatten().collect(),
        }
    }
}

/// The most characters of a machine's id.
const MACHINE_ID_MAX: usize = 512;

/// How many pods are on a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodCount {
    /// Those of the object.
    pub(super) ours: usize,
    /// Those of them that are Ready.
    pub(super) ready: usize,
    /// Others that a drain would move.
    pub(super) others: usize,
    /// Those of the object's workload that can be evicted.
    pub(super) evictable: usize,
    /// Those of the object that can't be decoded.
    pub(super) undecodable: usize,
}

impl Tracked {
    /// An object of which nothing is known but itself.
    pub(super) fn new(object: Object) -> Self {
        let (nodes, tolerations, pods) = (Selector::default(), None, None);
        Self {
            object,
            refusal: None,
            record_refusal: None,
            age_max: Duration::ZERO,
            refused_until: None,
            dropped_fields: DroppedFields::default(),
            undecodable: None,
            who: Who { nodes, tolerations, pods, pods_otherwise: Pods::Absent, publishes: None },
            adopted: BTreeSet::new(),
            made: BTreeSet::new(),
            dropped: BTreeSet::new(),
            pods: BTreeMap::new(),
        }
    }

    /// The newest version that was seen, decoded or not.
    pub(super) fn version(&self) -> u64 {
        let undecodable = self.undecodable.as_ref().map_or(0, |reserved| reserved.version);
        self.object.version().max(undecodable)
    }

    /// What the front end makes of it. Every address in an undecodable object counts as listed by it; the usual rules
    /// decide which object owns it.
    pub(super) fn parsed(&self) -> Parsed {
        let mut parsed = resources::parse(&self.object);
        let is_for_addresses = !matches!(self.object, Object::Records(_));
        for reserved in self.undecodable.iter().filter(|_| is_for_addresses) {
            let is_new = |address: &&Address| !parsed.pool.addresses.contains(address);
            let named: Vec<_> = reserved.addresses.iter().filter(is_new).copied().collect();
            parsed.pool.addresses.extend(named);
        }
        parsed
    }
}
