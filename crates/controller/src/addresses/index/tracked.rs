//! An object in the index, with everything that the index knows about it.

use std::collections::{BTreeMap, BTreeSet};

use plan::{Address, NodeName, Pods, VmId};
use tokio::time::Instant;

use crate::addresses::dropped_fields::DroppedFields;
use crate::addresses::object::Object;
use crate::addresses::resources;
use crate::addresses::resources::parsed::{Parsed, Selection};
use crate::addresses::resources::refusal::Refusal;
use crate::addresses::resources::selector::Selector;
use crate::kubernetes::decode::Undecodable;
use crate::kubernetes::watch::version;
use crate::providers::listings::Interval;

/// An object, and everything that the index knows about it.
pub struct Tracked {
    /// The newest version that could be decoded.
    pub object: Object,
    /// Why the controller can't act on the object.
    pub refusal: Option<Refusal>,
    /// Why the controller can't publish its DNS name.
    pub record_refusal: Option<Refusal>,
    /// How often its account is listed.
    pub interval: Interval,
    /// The CRD drops fields that the controller needs, so the controller does not act on the object before this time.
    pub refused_until: Option<Instant>,
    /// Fields of its status that the CRD drops.
    pub dropped_fields: DroppedFields,
    /// Addresses and VMs in the newest version, if that is undecodable. Then `object` is the last decoded version or a
    /// substitute, and the controller does not write the object.
    pub undecodable: Option<Reserved>,
    /// Which nodes and pods it selects.
    pub(super) selection: Selection,
    /// Addresses that were created for it and that its spec does not list yet.
    pub(super) adopted: BTreeSet<Address>,
    /// Addresses that this process created for it.
    pub(super) made: BTreeSet<Address>,
    /// Addresses that were released and that its spec still lists.
    pub(super) dropped: BTreeSet<Address>,
    /// Whether all its pods were counted. Until then the state of its pods is unknown on every node.
    pub(super) is_counted: bool,
    /// The number of pods on each node.
    pub(super) pods: BTreeMap<NodeName, PodCount>,
}

/// The addresses and VMs in an undecodable object.
#[derive(Debug)]
pub struct Reserved {
    pub(super) version: u64,
    pub(super) addresses: BTreeSet<Address>,
    pub(super) machines: BTreeSet<VmId>,
}

impl Reserved {
    /// A VM may be named by its ID or by the providerID of its node. Strings that are neither match no VM.
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

/// The maximum length of a VM's ID.
const MACHINE_ID_MAX: usize = 512;

/// Numbers of pods on a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodCount {
    /// Pods of the object.
    pub(super) ours: usize,
    /// Pods of the object that are Ready.
    pub(super) ready: usize,
    /// Other pods that a drain evicts.
    pub(super) others: usize,
    /// Pods of the object's workload that may be evicted.
    pub(super) evictable: usize,
    /// Pods of the object that are undecodable.
    pub(super) undecodable: usize,
}

impl Tracked {
    /// A new object.
    pub(super) fn new(object: Object) -> Self {
        let (nodes, tolerations, pods) = (Selector::default(), None, None);
        Self {
            object,
            refusal: None,
            record_refusal: None,
            interval: Interval::default(),
            refused_until: None,
            dropped_fields: DroppedFields::default(),
            undecodable: None,
            selection: Selection {
                nodes,
                tolerations,
                pods,
                pods_if_none_selected: Pods::Absent,
                publishes: None,
            },
            adopted: BTreeSet::new(),
            made: BTreeSet::new(),
            dropped: BTreeSet::new(),
            is_counted: false,
            pods: BTreeMap::new(),
        }
    }

    /// The newest version, decoded or not.
    pub(super) fn version(&self) -> u64 {
        let undecodable = self.undecodable.as_ref().map_or(0, |reserved| reserved.version);
        self.object.version().max(undecodable)
    }

    /// The parsed object. Every address in an undecodable object counts as listed by it; the usual rules decide which
    /// object owns the address.
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
