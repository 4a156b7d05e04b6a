//! Turns what was seen into a `World`, event by event.
//!
//! In: what the watches and the clouds tell. Out: the planner's world, and beside it the objects themselves, for the
//! report. The two resource kinds differ only in their front ends; the planner sees pools. Nothing here decides anything,
//! and nothing is guessed: what is not known is told as unknown, and an object that can't become a pool is kept as one
//! that is refused, because it still owns its addresses.

pub mod floating_ip_pool;
pub mod net_ip_allocation;
pub mod node_dns_record_set;
pub mod outdated;
mod owners;
mod publication;
pub(crate) mod selector;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::policy;
use api::records::DnsRecordSet;
use api::selection::Match;
use api::status::{AddressState, AddressStatus, Holder, MOVES_VERSION, Moves, RecordStatus};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use drivers::{DriverError, Listing, Tags};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use plan::{
    Account, Address, Creation, Epoch, Fact, Holding, Journal, MachineState, Mode, Move, Node, NodeName,
    PENDING, Pods, Policy, Pool, PoolKey, Provider, Readiness, Scope, Spread, Takeover, Target, Tick,
    Timestamp, VmId, World,
};
use serde_json::Value;
use tokio::time::Instant;

use self::node_dns_record_set::NodeAddress;
use self::outdated::DroppedFields;
use self::owners::{Named as Workload, Owners};
use crate::act::Wish;
use crate::clouds::Named;
use crate::decode::{Decoded, Register, Settled, Undecodable};
use crate::watch::{Change, Kind, Seen, SlimNode, SlimPod, version};

/// Taints that say that a node is NotReady, which is judged by its condition and with its grace.
const READINESS_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Taints that announce a node's end. `DeletionCandidateOfClusterAutoscaler` is none: it is a soft taint that comes and goes while
/// the autoscaler considers a node.
const DISRUPTION_TAINTS: [&str; 4] = [
    "node.kubernetes.io/out-of-service",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
];

/// How long nothing is done for an object whose journal the CRD in the cluster drops, before it is tried again.
const OUTDATED_RETRY: Duration = Duration::from_secs(60);

/// The annotation with which a person confirms that lost holders are really lost, up to the time that is its value.
pub const CONFIRM_LOSS_ANNOTATION: &str = "netinfra.darkbrains.com/confirm-loss";

/// The annotation with which a person says which addresses, separated by commas, were not created for an object.
pub const NOT_CREATED_ANNOTATION: &str = "netinfra.darkbrains.com/not-created";

/// Everything known, kept up to date.
#[derive(Default)]
pub struct Index {
    /// What the planner sees.
    pub world: World,
    /// The objects.
    pub objects: BTreeMap<PoolKey, Tracked>,
    /// Nodes, as far as marks and selectors need them.
    pub nodes: BTreeMap<NodeName, SlimNode>,
    pods: BTreeMap<(String, String), SlimPod>,
    owners: Owners,
    /// Permissions without which a cloud tells less than it could.
    pub without: BTreeMap<Scope, String>,
    /// Nodes whose machines can't get an address, and why.
    unsupported: BTreeMap<NodeName, &'static str>,
    /// Objects that can't be decoded.
    pub undecodable: Register<Kind>,
    known: BTreeSet<Kind>,
    /// Until when a cloud may show what was before the last leader's changes.
    late_until: BTreeMap<Provider, Instant>,
    tick: u64,
}

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
    who: Who,
    /// Addresses that were created for it, until its spec lists them.
    adopted: BTreeSet<Address>,
    /// Addresses that were created for it by this process.
    made: BTreeSet<Address>,
    /// Addresses that the cloud has back, until its spec does not list them any more.
    dropped: BTreeSet<Address>,
    /// The pods on each node, as far as they matter.
    pods: BTreeMap<NodeName, PodCount>,
}

/// What an object names that can't be decoded.
#[derive(Debug)]
pub struct Reserved {
    version: u64,
    addresses: BTreeSet<Address>,
    machines: BTreeSet<VmId>,
}

impl Reserved {
    /// A machine may be named by its id or by the providerID of its node. What else is named matches no machine.
    fn new(undecodable: &Undecodable) -> Self {
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
struct PodCount {
    /// Those of the object.
    ours: usize,
    /// Those of them that are Ready.
    ready: usize,
    /// Others that a drain would move.
    others: usize,
    /// Those of the object's workload that can be evicted.
    evictable: usize,
    /// Those of the object that can't be decoded.
    undecodable: usize,
}

/// One of our objects.
#[derive(Clone)]
pub enum Object {
    /// A NetIPAllocation.
    Allocation(Arc<NetIPAllocation>),
    /// A FloatingIPPool.
    Pool(Arc<FloatingIPPool>),
    /// A NodeDNSRecordSet.
    Records(Arc<NodeDNSRecordSet>),
}

impl Object {
    /// Its metadata's version, as a number.
    pub fn version(&self) -> u64 {
        version(self.metadata())
    }

    /// Its metadata.
    pub fn metadata(&self) -> &kube::api::ObjectMeta {
        match self {
            Self::Allocation(object) => &object.metadata,
            Self::Pool(object) => &object.metadata,
            Self::Records(object) => &object.metadata,
        }
    }

    /// What tells one spec from another: an object of the same name may be another object.
    fn identity(&self) -> (Option<&str>, Option<i64>) {
        (self.metadata().uid.as_deref(), self.metadata().generation)
    }

    /// Whether two versions of an object have the same status.
    fn has_same_status(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Allocation(one), Self::Allocation(other)) => one.status == other.status,
            (Self::Pool(one), Self::Pool(other)) => one.status == other.status,
            (Self::Records(one), Self::Records(other)) => one.status == other.status,
            _ => false,
        }
    }

    /// Whether two versions of an object remember the same: the journal, and of each address its last holder and whether it was
    /// created.
    pub fn keeps_journal_and_holders(&self, other: &Self) -> bool {
        fn of(status: &AddressStatus) -> (&String, Option<&Holder>, Option<bool>) {
            (&status.address, status.last_holder.as_ref(), status.created)
        }
        let is_known = |status: &&AddressStatus| status.last_holder.is_some() || status.created.is_some();
        let (one, two) = (self.addresses().iter(), other.addresses().iter());
        self.moves() == other.moves() && one.filter(is_known).map(of).eq(two.filter(is_known).map(of))
    }

    /// Its status as the apiserver stores it.
    pub fn status(&self) -> Value {
        let status = match self {
            Self::Allocation(object) => serde_json::to_value(&object.status),
            Self::Pool(object) => serde_json::to_value(&object.status),
            Self::Records(object) => serde_json::to_value(&object.status),
        };
        status.unwrap_or_default()
    }

    /// Whether two versions of an object say the same but for their spec.
    fn has_same_news(&self, other: &Self) -> bool {
        let (one, two) = (self.metadata(), other.metadata());
        let is_same = one.annotations == two.annotations && one.deletion_timestamp == two.deletion_timestamp;
        is_same && self.has_same_status(other)
    }

    /// What its status says of it as a whole.
    pub fn conditions(&self) -> &[Condition] {
        let conditions = match self {
            Self::Allocation(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Pool(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Records(object) => object.status.as_ref().map(|status| &status.conditions),
        };
        conditions.map(Vec::as_slice).unwrap_or_default()
    }

    /// What its status says of its name in DNS.
    pub fn dns(&self) -> Option<&RecordStatus> {
        match self {
            Self::Allocation(_) => None,
            Self::Pool(object) => object.status.as_ref()?.dns.as_ref(),
            Self::Records(object) => object.status.as_ref()?.dns.as_ref(),
        }
    }

    /// What its status says of its addresses.
    fn addresses(&self) -> &[AddressStatus] {
        match self {
            Self::Allocation(object) => object.status.as_ref().map_or(&[], |status| &status.addresses),
            Self::Pool(object) => object.status.as_ref().map_or(&[], |status| &status.addresses),
            Self::Records(_) => &[],
        }
    }

    fn moves(&self) -> Option<&Moves> {
        match self {
            Self::Allocation(object) => object.status.as_ref()?.moves.as_ref(),
            Self::Pool(object) => object.status.as_ref()?.moves.as_ref(),
            Self::Records(_) => None,
        }
    }
}

/// Which nodes an object means.
pub(crate) struct Who {
    pub(crate) nodes: Selector,
    /// Taints that are tolerated; without a list, taints don't matter.
    pub(crate) tolerations: Option<Vec<k8s_openapi::api::core::v1::Toleration>>,
    pub(crate) pods: Option<PodsMeant>,
    /// How pods fare where none are looked for.
    pub(crate) pods_otherwise: Pods,
    /// Which of the nodes' own addresses are published, if any.
    pub(crate) publishes: Option<NodeAddress>,
}

impl Who {
    /// Those that a `match` means. What of it can't be read is told to `refuse`.
    fn matching(matches: Match, publishes: Option<NodeAddress>, mut refuse: impl FnMut(Refusal)) -> Self {
        let mut read = |text: Option<&str>| {
            selector::parse(text.unwrap_or_default()).unwrap_or_else(|invalid| {
                refuse(invalid);
                Selector::default()
            })
        };
        let nodes = read(matches.node_label.as_deref());
        let pods = matches.needs_pods().then(|| PodsMeant::Labelled {
            namespace: matches.pod_namespace.clone().filter(|namespace| !namespace.is_empty()),
            labels: read(matches.pod_label.as_deref()),
        });
        let tolerations = Some(matches.tolerations.unwrap_or_default());
        Self { nodes, tolerations, pods, pods_otherwise: Pods::Ready, publishes }
    }
}

/// Which pods an object means.
pub(crate) enum PodsMeant {
    /// Those with these labels, in this namespace or in all.
    Labelled { namespace: Option<String>, labels: Selector },
    /// Those of a workload.
    Of(Workload),
}

impl PodsMeant {
    fn means(&self, pod: &SlimPod, owners: &Owners) -> bool {
        match self {
            Self::Labelled { namespace, labels } => {
                let is_elsewhere = |namespace| pod.metadata.namespace.as_ref() != Some(namespace);
                !namespace.as_ref().is_some_and(is_elsewhere) && labels.matches(pod.labels())
            }
            Self::Of(workload) => owners.has(workload, pod),
        }
    }

    /// Whether a pod is one that may be evicted: surely the workload's own, and not on its way out already.
    fn may_evict(&self, pod: &SlimPod, owners: &Owners) -> bool {
        let Self::Of(workload) = self else { return false };
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        !self.outstay_a_drain() && !pod.is_stand_in && !is_leaving && owners.surely_has(workload, pod)
    }

    /// Whether the pods stay on a node that is drained, so that it is drained when all others have left.
    fn outstay_a_drain(&self) -> bool {
        matches!(self, Self::Of(workload) if workload.kind == Kind::DaemonSets)
    }
}

/// What a front end makes of an object, but for what depends on nodes.
pub(crate) struct Front {
    pub(crate) pool: Pool,
    pub(crate) provider: Option<Provider>,
    pub(crate) who: Who,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) record_refusal: Option<Refusal>,
    pub(crate) age_max: Duration,
}

/// Why an object is not acted on, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word for scripts.
    pub reason: &'static str,
    /// A sentence for a person.
    pub message: String,
}

impl Refusal {
    /// Whether it is for want of a node that says which account is meant.
    fn lacks_scope(&self) -> bool {
        [NO_NODES, UNSUPPORTED_NODE].contains(&self.reason)
    }
}

impl Index {
    /// The next moment in the order of listings and writes.
    pub fn tick(&mut self) -> Tick {
        self.tick += 1;
        Tick(self.tick)
    }

    /// Whether everything is known on which addresses depend: an object that was not read may own one, and a node that was
    /// not read may hold one. Whoever only publishes names holds up nothing.
    pub fn is_complete(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.known.contains(kind) || *kind == Kind::NodeDNSRecordSets)
    }

    /// Whether every object is known that may own a name.
    pub fn knows_names(&self) -> bool {
        self.known.contains(&Kind::NodeDNSRecordSets)
    }

    /// Takes in what was seen.
    pub fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Nodes(change) => self.see_nodes(change),
            Seen::Pods(change) => self.see_pods(change),
            Seen::Owners(kind, change) => self.see_owners(kind, change),
            Seen::Allocations(change) => {
                self.see_objects(Kind::NetIPAllocations, change, |object| {
                    Object::Allocation(Arc::new(object))
                });
            }
            Seen::Pools(change) => {
                self.see_objects(Kind::FloatingIPPools, change, |object| Object::Pool(Arc::new(object)));
            }
            Seen::RecordSets(change) => {
                self.see_objects(Kind::NodeDNSRecordSets, change, |object| Object::Records(Arc::new(object)));
            }
            Seen::Unsure(kind) => _ = self.known.remove(&kind),
            // What a kind had may still be there, or be meant to come back. Where nothing is left of it, there is nothing to know.
            Seen::Absent(kind) if self.has_some(kind) => _ = self.known.remove(&kind),
            Seen::Absent(kind) => _ = self.known.insert(kind),
        }
    }

    /// Whether an object of a kind is known.
    fn has_some(&self, kind: Kind) -> bool {
        self.objects.keys().any(|key| key.kind == kind_name(kind))
    }

    /// After a relist everything of a kind is known. What a watch tells before it has relisted proves nothing.
    fn believe(&mut self, kind: Kind, is_relist: bool) {
        if is_relist {
            self.known.insert(kind);
        }
    }

    fn see_nodes(&mut self, change: Change<SlimNode>) {
        self.believe(Kind::Nodes, matches!(change, Change::All(_)));
        self.undecodable.see(Kind::Nodes, &change, SlimNode::meta);
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
            tracked.tell(&mut self.world, key, &name, &node, pods);
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

    /// The first node that an object means and whose machine can't get an address, and why.
    pub fn unsupported(&self, key: &PoolKey) -> Option<(&NodeName, &'static str)> {
        let tracked = self.objects.get(key)?;
        let is_member = |name: &NodeName| {
            self.nodes.get(name).is_some_and(|node| tracked.membership(name, node).is_some())
        };
        self.unsupported.iter().find(|(name, _)| is_member(name)).map(|(name, why)| (name, *why))
    }

    fn see_pods(&mut self, change: Change<SlimPod>) {
        self.believe(Kind::Pods, matches!(change, Change::All(_)));
        self.undecodable.see(Kind::Pods, &change, SlimPod::meta);
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

    fn see_owners(&mut self, kind: Kind, change: Change<kube::api::ObjectMeta>) {
        self.believe(kind, matches!(change, Change::All(_)));
        self.undecodable.see(kind, &change, |owner| owner);
        let change = change.with_stand_ins(|undecodable| self.owners.last_known(kind, &undecodable.metadata));
        if !change.is_some_and(|change| self.owners.see(kind, change)) {
            return;
        }
        let has_workload =
            |(_, tracked): &(&PoolKey, &Tracked)| matches!(tracked.who.pods, Some(PodsMeant::Of(_)));
        let keys: Vec<_> = self.objects.iter().filter(has_workload).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.recount(&key);
        }
    }

    /// Counts the pods of an object anew, and tells the world.
    fn recount(&mut self, key: &PoolKey) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        tracked.recount(self.pods.values(), &self.owners);
        for (name, node) in &self.nodes {
            tracked.tell(&mut self.world, key, name, node, tracked.membership(name, node));
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
                tracked.tell(&mut self.world, &key, &name, node, tracked.membership(&name, node));
            }
        }
    }

    fn see_objects<K: kube::Resource<DynamicType = ()> + Clone>(
        &mut self,
        kind: Kind,
        change: Change<K>,
        object: fn(K) -> Object,
    ) {
        self.believe(kind, matches!(change, Change::All(_)));
        self.undecodable.see(kind, &change, K::meta);
        match change {
            Change::All(all) => {
                let keys: BTreeSet<_> = all.iter().map(|one| pool_key(kind, one.meta())).collect();
                let is_gone = |key: &&PoolKey| key.kind == kind_name(kind) && !keys.contains(key);
                let gone: Vec<_> = self.objects.keys().filter(is_gone).cloned().collect();
                gone.iter().for_each(|key| self.remove_object(key));
                all.into_iter().for_each(|one| self.set_decoded(kind, one, object));
            }
            Change::Applied(applied) => self.set_decoded(kind, *applied, object),
            Change::Deleted(gone) => self.remove_object(&pool_key(kind, &gone)),
        }
        self.reserve_machines();
    }

    /// Takes in an object as it was read, or that it can't be decoded.
    fn set_decoded<K>(&mut self, kind: Kind, decoded: Decoded<K>, object: fn(K) -> Object) {
        let undecodable = match decoded {
            Decoded::Object(decoded) => return self.set_object(object(decoded)),
            Decoded::Undecodable(undecodable) => undecodable,
        };
        let (key, reserved) = (pool_key(kind, &undecodable.metadata), Reserved::new(&undecodable));
        let is_known = |known: &Tracked| {
            let is_same = |before: &Reserved| before.version == reserved.version;
            known.version() > reserved.version || known.undecodable.as_ref().is_some_and(is_same)
        };
        if self.objects.get(&key).is_some_and(is_known) {
            return;
        }
        let is_another =
            |known: &Tracked| known.object.metadata().uid.as_ref() != undecodable.metadata.uid.as_ref();
        if self.objects.get(&key).is_some_and(is_another) {
            self.remove_object(&key);
        }
        if !self.objects.contains_key(&key)
            && let Some(stand_in) = stand_in(kind, &undecodable)
        {
            self.objects.insert(key.clone(), Tracked::new(stand_in));
        }
        if let Some(tracked) = self.objects.get_mut(&key) {
            tracked.undecodable = Some(reserved);
        }
        self.rebuild(&key);
    }

    /// Reserves the machines that objects name which can't be decoded: an unfinished move may involve them.
    fn reserve_machines(&mut self) {
        let reserved = self.objects.iter().filter(|(key, _)| key.kind != node_dns_record_set::KIND);
        let reserved = reserved.filter_map(|(_, tracked)| tracked.undecodable.as_ref());
        self.world.reserved_machines =
            reserved.flat_map(|reserved| reserved.machines.iter().cloned()).collect();
    }

    fn remove_object(&mut self, key: &PoolKey) {
        self.objects.remove(key);
        self.world.remove_pool(key);
    }

    /// Takes in an object as it was read or as a write of ours was answered. An older one than is known is not believed.
    pub fn set_object(&mut self, object: Object) {
        let key = key_of(&object);
        if self.objects.get(&key).is_some_and(|known| known.version() >= object.version()) {
            return;
        }
        // The previous leader's last status may arrive after our first one.
        for (address, since) in losses_of(&object) {
            self.world.losses.entry(address).or_insert(since);
        }
        let is_another = |known: &Tracked| known.object.metadata().uid != object.metadata().uid;
        if self.objects.get(&key).is_some_and(is_another) {
            // What was in mind for the object that had this name is not this one's.
            self.remove_object(&key);
        }
        match self.objects.get_mut(&key) {
            Some(tracked) => {
                let is_same_spec = tracked.object.identity() == object.identity();
                let is_same_news = tracked.object.has_same_news(&object);
                tracked.undecodable = None;
                tracked.object = object;
                if is_same_spec && tracked.refusal.is_none() {
                    // Where only a finalizer came or went, what is being written stands.
                    if !is_same_news {
                        self.refresh(&key);
                    }
                    return;
                }
            }
            None => _ = self.objects.insert(key.clone(), Tracked::new(object)),
        }
        self.rebuild(&key);
    }

    /// Takes in the answer to a write of ours. Where the answer lacks what was sent, the CRD in the cluster is older than this
    /// controller. Without its journal, `lastHolder` and `created` the controller begins nothing; every other field only describes.
    /// Returns what the CRD drops, where that is not known yet.
    pub fn see_written(&mut self, key: &PoolKey, sent: &Object, answered: Object) -> Option<String> {
        let tracked = self.objects.get_mut(key)?;
        if tracked.object.metadata().uid != answered.metadata().uid {
            return None;
        }
        let dropped = match sent.has_same_status(&answered) {
            true => DroppedFields::default(),
            false => DroppedFields::between(&sent.status(), &answered.status()),
        };
        let consequence = if !sent.keeps_journal_and_holders(&answered) {
            tracing::error!(object = %key, %dropped, "the CRD drops what is written into the status: apply the CRDs of this version");
            tracked.refused_until = Some(Instant::now() + OUTDATED_RETRY);
            "the controller starts nothing for this object"
        } else {
            "the status lacks these fields"
        };
        let is_news = !dropped.is_empty() && tracked.dropped_fields != dropped;
        if is_news && tracked.refused_until.is_none() {
            tracing::warn!(object = %key, %dropped, "the CRD drops optional status fields: apply the CRDs of this version");
        }
        let note = format!("the CRD drops {dropped}, so {consequence}: apply the CRDs of this version");
        tracked.dropped_fields = dropped;
        self.set_object(answered);
        self.refresh(key);
        self.reserve_machines();
        is_news.then_some(note)
    }

    /// Tries again what an outdated CRD made impossible: it may have been replaced.
    pub fn retry_outdated(&mut self) {
        let now = Instant::now();
        let is_due = |tracked: &Tracked| tracked.refused_until.is_some_and(|until| until <= now);
        let due: Vec<_> =
            self.objects.iter().filter(|(_, tracked)| is_due(tracked)).map(|(key, _)| key.clone()).collect();
        due.iter().for_each(|key| self.rebuild(key));
        self.reserve_machines();
    }

    /// Takes in the answer to a write of an object's finalizers or spec. What is to be written into its status stands.
    pub fn see_object_written(&mut self, key: &PoolKey, answered: Object) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        let is_newer = tracked.version() < answered.version();
        if tracked.object.metadata().uid != answered.metadata().uid || !is_newer {
            return;
        }
        let is_same_spec = tracked.object.identity() == answered.identity();
        tracked.object = answered;
        if !is_same_spec {
            self.rebuild(key);
        }
    }

    /// Takes in an address that was created for a pool.
    pub fn see_created(&mut self, key: &PoolKey, scope: &Scope, address: Address, wish: &Wish) {
        if self.uid(key) != wish.uid {
            tracing::error!(object = %key, %address, "created for an object that is gone: nobody has this address");
            return;
        }
        let as_of = self.tick();
        let (region, tag) = (Some(Arc::clone(&wish.region)), wish.tag.clone());
        self.world.set_fact(
            scope,
            address,
            Fact { holding: Holding::Free, region, tag, is_doubtful: false, as_of },
        );
        self.adopt(key, address);
    }

    /// A pod of an object's workload on a node that may be evicted: the first by name. None while another is on its way in or
    /// out, or while no node carries the label that the next one may ask for.
    pub fn pod_to_evict(&self, key: &PoolKey, node: &NodeName) -> Option<&SlimPod> {
        let meant = self.objects.get(key)?.who.pods.as_ref()?;
        if !self.nodes.values().any(SlimNode::is_ip_ready) {
            return None;
        }
        let mut found = None;
        for pod in self.pods.values().filter(|pod| !has_ended(pod) && meant.means(pod, &self.owners)) {
            let is_on_its_way = pod.spec.node_name.is_none() || pod.metadata.deletion_timestamp.is_some();
            if is_on_its_way {
                return None;
            }
            let is_there = pod.spec.node_name.as_deref() == Some(node.as_str());
            if found.is_none() && is_there && meant.may_evict(pod, &self.owners) {
                found = Some(pod);
            }
        }
        found
    }

    /// What tells an object from another of the same name.
    pub fn uid(&self, key: &PoolKey) -> Option<String> {
        self.objects.get(key).and_then(|tracked| tracked.object.metadata().uid.clone())
    }

    /// Keeps an address that was created for a pool until its spec lists it.
    pub fn adopt(&mut self, key: &PoolKey, address: Address) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        tracked.adopted.insert(address);
        tracked.made.insert(address);
        self.amend(key, |pool| {
            pool.adopted.insert(address);
        });
    }

    /// Keeps in mind that the cloud has an address back, until the pool's spec does not list it any more.
    pub fn drop_address(&mut self, key: &PoolKey, address: Address) {
        if let Some(tracked) = self.objects.get_mut(key) {
            tracked.dropped.insert(address);
        }
    }

    /// Takes note that a request for a new address failed, and may have had an effect all the same.
    pub fn doubt_creation(&mut self, key: &PoolKey, may_have_asked: bool) {
        let now = self.tick();
        self.amend(key, |pool| {
            if let Some(entry) = &mut pool.creation {
                entry.may_have_asked |= may_have_asked;
                // Only what is read from now on can tell.
                entry.written = now;
            }
        });
    }

    fn amend(&mut self, key: &PoolKey, change: impl FnOnce(&mut Pool)) {
        if let Some(mut pool) = self.world.pool(key).cloned() {
            change(&mut pool);
            self.world.set_pool(pool);
        }
    }

    /// The addresses that an object's spec should list, where they are not those that it does.
    pub fn spec_addresses(&self, key: &PoolKey) -> Option<Vec<String>> {
        let tracked = self.objects.get(key)?;
        let Object::Pool(object) = &tracked.object else { return None };
        let is_listed = tracked.adopted.is_empty() && tracked.dropped.is_empty();
        if is_listed || plan::sabotaged!(SpecForgotten) {
            return None;
        }
        let listed = object.spec.ips.clone().unwrap_or_default();
        let is_dropped = |text: &String| text.parse().is_ok_and(|address| tracked.dropped.contains(&address));
        let mut wanted: Vec<String> = listed.iter().filter(|text| !is_dropped(text)).cloned().collect();
        wanted.extend(tracked.adopted.iter().map(ToString::to_string));
        (wanted != listed).then_some(wanted)
    }

    /// Takes what an object's status and annotations say into its pool again: the journal as it stands, and what is remembered.
    /// What was to be written and was not is forgotten.
    pub fn refresh(&mut self, key: &PoolKey) {
        let Some(tracked) = self.objects.get(key) else { return };
        let Some(before) = self.world.pool(key) else { return };
        let mut pool = tracked.front().pool;
        pool.scope = before.scope.clone();
        pool.policy.mode = if tracked.refused_until.is_some() { Mode::Refused } else { before.policy.mode };
        self.remember(&mut pool);
        self.world.set_pool(pool);
    }

    /// Puts what is remembered of a pool into it: its journal, and what was created for it.
    fn remember(&mut self, pool: &mut Pool) {
        let learnt = self.tick();
        let Some(tracked) = self.objects.get(&pool.key) else { return };
        (pool.journal, pool.creation) = self.journal(&pool.key, tracked.object.moves(), learnt);
        pool.adopted = tracked.adopted.clone();
        pool.created_here.extend(&tracked.made);
        // Where the CRD does not keep the names of PTR records, they are kept here for as long as a move lasts.
        if tracked.dropped_fields.contain("addresses.ptrName") {
            let moving = self.world.ptrs.iter().filter(|(address, _)| pool.entry(**address).is_some());
            let names: Vec<_> = moving.map(|(address, name)| (*address, Arc::clone(name))).collect();
            pool.ptrs.extend(names);
        }
    }

    /// Makes a pool of an object, from what is known of it and of all nodes and pods.
    fn rebuild(&mut self, key: &PoolKey) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        let Front { mut pool, provider, who, mut refusal, record_refusal, age_max } = tracked.front();
        (tracked.who, tracked.age_max, tracked.refused_until) = (who, age_max, None);
        tracked.record_refusal = record_refusal;
        tracked.adopted.retain(|address| !pool.addresses.contains(address));
        tracked.dropped.retain(|address| pool.addresses.contains(address));
        tracked.recount(self.pods.values(), &self.owners);
        let members: Vec<_> =
            self.nodes.iter().map(|(name, node)| (name.clone(), tracked.membership(name, node))).collect();
        if let (None, Some(provider)) = (&refusal, provider) {
            let matching = members
                .iter()
                .filter(|(_, pods)| pods.is_some())
                .filter_map(|(name, _)| self.nodes.get(name));
            let holders = pool.last_holders.values().cloned().chain(machines_of(tracked.object.moves()));
            match scope_of(provider, matching, holders) {
                Some(scope) => pool.scope = scope,
                None => {
                    let is_meant = |name: &NodeName| {
                        members.iter().any(|(member, pods)| member == name && pods.is_some())
                    };
                    let unsupported = self.unsupported.iter().find(|(name, _)| is_meant(name));
                    refusal = Some(match unsupported {
                        Some((node, why)) => Refusal {
                            reason: UNSUPPORTED_NODE,
                            message: format!("node {node} can't get an address: {why}"),
                        },
                        None => Refusal {
                            reason: NO_NODES,
                            message: format!(
                                "no matching node has a providerID of {provider}, so its account is not known"
                            ),
                        },
                    });
                }
            }
        }
        if tracked.undecodable.is_some() {
            refusal = refusal.or_else(|| {
                Some(Refusal { reason: UNDECODABLE, message: "the object can't be decoded".to_owned() })
            });
        }
        if refusal.is_some() {
            pool.policy.mode = Mode::Refused;
        }
        tracked.refusal = refusal;
        self.remember(&mut pool);
        self.world.set_pool(pool);
        let Some(tracked) = self.objects.get(key) else { return };
        for (name, pods) in members {
            if let Some(node) = self.nodes.get(&name) {
                tracked.tell(&mut self.world, key, &name, node, pods);
            }
        }
    }

    /// The journal that an object's status holds. An entry that we knew keeps the moment at which it was written.
    fn journal(&self, key: &PoolKey, moves: Option<&Moves>, learnt: Tick) -> (Journal, Option<Creation>) {
        let Some(moves) = moves else { return (Journal::default(), None) };
        if moves.version != MOVES_VERSION {
            return (Journal::Unreadable, None);
        }
        let pool = self.world.pool(key);
        let known_creation = pool.and_then(|pool| pool.creation.as_ref());
        let known = match pool.map(|pool| &pool.journal) {
            Some(Journal::Known(known)) => known.clone(),
            _ => BTreeMap::new(),
        };
        let mut journal = BTreeMap::new();
        let mut creation = None;
        for entry in &moves.entries {
            let releases = match entry.kind.as_deref() {
                None => false,
                Some(RELEASE) => true,
                Some(CREATE) => {
                    creation = Some(read_creation(entry, known_creation, learnt));
                    continue;
                }
                Some(_) => return (Journal::Unreadable, None),
            };
            let Some(address) = entry.address.as_deref().and_then(|text| text.parse().ok()) else {
                return (Journal::Unreadable, None);
            };
            let to = entry.to.as_ref().map(|to| Target {
                vm: to.vm.as_str().into(),
                node: to.node_name.as_deref().unwrap_or_default().into(),
            });
            let from = entry.from.as_ref().map(|from| VmId::from(from.vm.as_str()));
            let is_voluntary = entry.step == VOLUNTARY;
            let epoch = Epoch(entry.epoch);
            let had_own = |holder: &&Holder| holder.had_ephemeral == Some(true);
            let owed = [&entry.from, &entry.to].into_iter().flatten().filter(had_own);
            let owed = owed.map(|holder| VmId::from(holder.vm.as_str())).collect();
            let mut read = Move { from, to, owed, releases, is_voluntary, epoch, written: learnt };
            if let Some(before) = known.get(&address).filter(|before| before.written != PENDING) {
                let is_same = Move { written: before.written, ..read.clone() } == *before;
                read.written = if is_same { before.written } else { learnt };
            }
            journal.insert(address, read);
        }
        (Journal::Known(journal), creation)
    }

    /// The scopes that pools need, and how old their facts may get.
    pub fn scopes(&self) -> BTreeMap<Scope, Duration> {
        let mut scopes = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_asked = tracked.refusal.is_none() && !matches!(tracked.object, Object::Records(_));
            let Some(pool) = self.world.pool(key).filter(|_| is_asked) else { continue };
            let age = scopes.entry(pool.scope.clone()).or_insert(tracked.age_max);
            *age = tracked.age_max.min(*age);
        }
        scopes
    }

    /// The addresses of a scope that pools want or have moves of, and where they are asked for, the machines that they may be on.
    pub fn named(&self, scope: &Scope, with_machines: bool) -> Named {
        let addresses = self.asked_for(scope);
        let machines = with_machines.then(|| {
            let mut machines = BTreeSet::new();
            for pool in self.world.pools().filter(|pool| pool.scope == *scope) {
                machines.extend(pool.last_holders.values().cloned());
                if let Journal::Known(moves) = &pool.journal {
                    machines.extend(moves.values().flat_map(Move::machines).cloned());
                }
            }
            let is_here = |machine: &&(Scope, VmId)| machine.0 == *scope;
            let of_nodes = self.world.nodes().filter_map(|(_, node)| node.machine.as_ref()).filter(is_here);
            machines.extend(of_nodes.map(|(_, vm)| vm.clone()));
            machines
        });
        Named { addresses, machines }
    }

    /// The addresses of a scope that pools want or have moves of.
    fn asked_for(&self, scope: &Scope) -> BTreeSet<Address> {
        let mut addresses = BTreeSet::new();
        for pool in self.world.pools().filter(|pool| pool.scope == *scope) {
            addresses.extend(&pool.addresses);
            if let Journal::Known(moves) = &pool.journal {
                addresses.extend(moves.keys());
            }
        }
        addresses
    }

    /// When holders were lost, by the objects' statuses. Where two objects tell of one address, the later time counts.
    pub fn remembered_losses(&self) -> BTreeMap<Address, Timestamp> {
        let mut losses = BTreeMap::new();
        for (address, since) in self.objects.values().flat_map(|tracked| losses_of(&tracked.object)) {
            let known = losses.entry(address).or_insert(since);
            *known = since.max(*known);
        }
        losses
    }

    /// We lead from now on. What was answered to the leader before us, some clouds may not show for a while.
    pub fn distrust_late_reads(&mut self, late: &BTreeMap<Provider, Duration>) {
        let now = Instant::now();
        self.late_until = late
            .iter()
            .map(|(provider, late_max)| (*provider, drivers::times::later(now, *late_max)))
            .collect();
        self.world.late_until = late.keys().map(|provider| (*provider, PENDING)).collect();
    }

    /// What was answered to the leader before us is shown everywhere after a while.
    pub fn let_late_reads_pass(&mut self) {
        let now = Instant::now();
        let is_over = |(provider, until): (&Provider, &Instant)| (*until <= now).then_some(*provider);
        let over: Vec<_> = self.late_until.iter().filter_map(is_over).collect();
        for provider in over {
            self.late_until.remove(&provider);
            let tick = self.tick();
            self.world.late_until.insert(provider, tick);
            // What machines were seen to have may have been what they had before.
            let mut seen = std::mem::take(&mut self.world.has_own);
            seen.retain(|vm| {
                let machine = self.world.node_of(vm).and_then(|(_, node)| node.machine.as_ref());
                machine.is_some_and(|(scope, _)| scope.provider != provider)
            });
            self.world.has_own = seen;
        }
        self.doubt_late_facts();
    }

    /// What a cloud shows that may be late, and what was read before the newest word of an object came, may be older than that word.
    fn doubt_late_facts(&mut self) {
        let is_late = |scope: &Scope| self.late_until.contains_key(&scope.provider);
        let scopes: BTreeSet<_> =
            self.world.pools().map(|pool| &pool.scope).filter(|scope| is_late(scope)).cloned().collect();
        for scope in scopes {
            for (address, newer) in self.newer_than_shown(&scope) {
                let fact = self.world.fact(&scope, address).filter(|fact| newer.contradicts(&fact.holding));
                if let Some(as_of) = fact.map(|fact| fact.as_of) {
                    self.hold(&scope, address, Holding::Unknown(NOT_SHOWN_YET.into()), as_of);
                }
            }
        }
    }

    /// Where addresses of a scope with nothing left to do are by their objects' own words, if these may be newer than what its cloud
    /// shows, and whether the node there is well.
    fn newer_than_shown(&self, scope: &Scope) -> BTreeMap<Address, Said> {
        if self.late_until.get(&scope.provider).is_none_or(|until| *until <= Instant::now()) {
            return BTreeMap::new();
        }
        let is_well =
            |vm: &VmId| self.world.node_of(vm).is_some_and(|(_, node)| node.readiness == Readiness::Ready);
        let mut all = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_meant = |pool: &&Pool| pool.scope == *scope && pool.policy.mode.acts();
            let Some(pool) = self.world.pool(key).filter(is_meant) else { continue };
            // Who holds an address is written down as soon as it has arrived, and that it has, a moment later. While it is not known
            // whether the cloud is late, it is said to be unknown.
            let is_on_its_holder = |status: &&AddressStatus| {
                matches!(status.state, AddressState::Attached | AddressState::Moving | AddressState::Unknown)
            };
            let found = tracked.object.addresses().iter().filter(is_on_its_holder).filter_map(|status| {
                let address = status.address.parse().ok()?;
                let vm = pool.last_holders.get(&address)?;
                let said = Said { vm: vm.clone(), is_well: is_well(vm) };
                pool.entry(address).is_none().then_some((address, said))
            });
            all.extend(found);
        }
        all
    }

    /// Takes in what a cloud said, or that it did not say anything, when asked at the given moment.
    pub fn see_listing(&mut self, scope: &Scope, listing: Result<Listing, DriverError>, as_of: Tick) {
        let asked = self.asked_for(scope);
        match listing {
            Ok(listing) => {
                match &listing.without {
                    Some(permission) => _ = self.without.insert(scope.clone(), permission.clone()),
                    None => _ = self.without.remove(scope),
                }
                for address in asked.iter().chain(listing.addresses.keys()) {
                    let drivers::Listed { holding, region, tag } = listing.told(*address);
                    if listing.without.is_some() {
                        // Machines show neither the region of an address nor its tag. The region can't change.
                        let region = self.world.fact(scope, *address).and_then(|known| known.region.clone());
                        let fact = Fact { holding, region, tag: None, is_doubtful: false, as_of };
                        self.world.set_fact(scope, *address, fact);
                        continue;
                    }
                    let is_doubtful = listing.doubtful.contains(address);
                    self.world.set_fact(scope, *address, Fact { holding, region, tag, is_doubtful, as_of });
                }
                let is_whole =
                    listing.untold.is_empty() && listing.tags != Tags::Untold && listing.without.is_none();
                let is_newer = self.world.accounts.get(scope).is_none_or(|account| account.as_of < as_of);
                if is_whole && is_newer {
                    let can_tag = listing.tags == Tags::Told;
                    self.world.accounts.insert(scope.clone(), Account { as_of, can_tag });
                } else if is_newer {
                    // What is on no list may be forgotten now, so nothing can be said of what is there.
                    self.world.accounts.remove(scope);
                }
                self.world.retain_facts(scope, |address| {
                    asked.contains(&address) || listing.addresses.contains_key(&address)
                });
            }
            Err(error) => {
                let reason: Arc<str> = error.to_string().into();
                for address in asked {
                    let unknown = Holding::Unknown(Arc::clone(&reason));
                    let holding = if plan::sabotaged!(UnknownReadAsFree) { Holding::Free } else { unknown };
                    self.hold(scope, address, holding, as_of);
                }
            }
        }
    }

    /// Takes in what became of the machines that a cloud was asked about: one that it does not have is gone.
    pub fn see_machines(&mut self, asked: &BTreeSet<VmId>, told: &BTreeMap<VmId, MachineState>) {
        for vm in asked {
            let state = told.get(vm).copied().unwrap_or(MachineState::Gone);
            self.world.machines.insert(vm.clone(), state);
        }
    }

    /// Takes note of who holds an address after a change of ours.
    pub fn correct(&mut self, scope: &Scope, address: Address, holding: Holding) {
        let as_of = self.tick();
        self.hold(scope, address, holding, as_of);
    }

    /// Who holds an address; whatever else is known of it stays.
    fn hold(&mut self, scope: &Scope, address: Address, holding: Holding, as_of: Tick) {
        let known = self.world.fact(scope, address);
        let (region, tag) = known.map_or((None, None), |known| (known.region.clone(), known.tag.clone()));
        self.world.set_fact(scope, address, Fact { holding, region, tag, is_doubtful: false, as_of });
    }
}

const NOT_SHOWN_YET: &str = "the last leader put it elsewhere, which the cloud may not show yet";

/// Where an address is by its object's own word, and whether the node there is well.
struct Said {
    vm: VmId,
    is_well: bool,
}

impl Said {
    /// Whether what a cloud shows may be older than this. An address that is free of a dead holder waits for nothing: it is put on
    /// another machine, which takes it from nobody. One that is shown elsewhere may not be there any more.
    fn contradicts(&self, shown: &Holding) -> bool {
        match shown {
            Holding::By(vm) => *vm != self.vm,
            Holding::Free | Holding::Missing => self.is_well,
            Holding::Unknown(_) => false,
        }
    }
}

/// An entry for addresses that are being created. Whoever wrote it may have asked the cloud since, unless that was us.
fn read_creation(entry: &api::status::Move, known: Option<&Creation>, learnt: Tick) -> Creation {
    let epoch = Epoch(entry.epoch);
    let known = known.filter(|known| known.epoch == epoch);
    let written = known.map(|known| known.written).filter(|written| *written != PENDING);
    Creation {
        tag: entry.token.as_deref().map(Into::into),
        before: entry.before.iter().filter_map(|text| text.parse().ok()).collect(),
        may_have_asked: known.is_none_or(|known| known.may_have_asked),
        epoch,
        written: written.unwrap_or(learnt),
    }
}

fn front(object: &Object) -> Front {
    let mut front = match object {
        Object::Allocation(object) => net_ip_allocation::front(object),
        Object::Pool(object) => floating_ip_pool::front(object),
        Object::Records(object) => node_dns_record_set::front(object),
    };
    let policy = &mut front.pool.policy;
    if object.metadata().deletion_timestamp.is_some() && policy.mode != Mode::Refused {
        // What was begun before a person set it to be observed only is still finished, but nothing else is done.
        policy.detaches_on_delete &= policy.mode == Mode::Active;
        policy.mode = Mode::Leaving;
    }
    front
}

/// The `kind` of a journal entry for addresses that are being created.
pub const CREATE: &str = "Create";

/// The `kind` of a journal entry for an address that is given back to the cloud.
pub const RELEASE: &str = "Release";

/// The `step` of a journal entry whose holder was alive when the move began.
pub const VOLUNTARY: &str = "Voluntary";

/// The `step` of a journal entry whose holder was dead or gone, or that nobody held.
pub const URGENT: &str = "Urgent";

/// Why an object is not acted on that can't be decoded, and the reason of the Event about it.
pub const UNDECODABLE: &str = "Undecodable";

const NO_NODES: &str = "NoNodes";
const UNSUPPORTED_NODE: &str = "UnsupportedNode";

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::FloatingIPPools => floating_ip_pool::KIND,
        Kind::NodeDNSRecordSets => node_dns_record_set::KIND,
        _ => net_ip_allocation::KIND,
    }
}

impl Tracked {
    /// An object of which nothing is known but itself.
    fn new(object: Object) -> Self {
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
    fn version(&self) -> u64 {
        let undecodable = self.undecodable.as_ref().map_or(0, |reserved| reserved.version);
        self.object.version().max(undecodable)
    }

    /// What the front end makes of it. Every address in an undecodable object counts as listed by it; the usual rules
    /// decide which object owns it.
    fn front(&self) -> Front {
        let mut front = front(&self.object);
        let is_for_addresses = !matches!(self.object, Object::Records(_));
        for reserved in self.undecodable.iter().filter(|_| is_for_addresses) {
            let is_new = |address: &&Address| !front.pool.addresses.contains(address);
            let named: Vec<_> = reserved.addresses.iter().filter(is_new).copied().collect();
            front.pool.addresses.extend(named);
        }
        front
    }

    /// Whether the object means this node, and how its pods fare there.
    fn membership(&self, name: &NodeName, node: &SlimNode) -> Option<Pods> {
        let Who { nodes, tolerations, pods, pods_otherwise, .. } = &self.who;
        let is_tolerated = |tolerations: &Vec<_>| {
            let mut taints =
                node.spec.taints.iter().filter(|taint| !READINESS_TAINTS.contains(&taint.key.as_str()));
            taints.all(|taint| selector::is_tolerated(taint, tolerations))
        };
        if !nodes.matches(node.labels()) || !tolerations.as_ref().is_none_or(is_tolerated) {
            return None;
        }
        let Some(meant) = pods else { return Some(*pods_otherwise) };
        let PodCount { ours, ready, others, undecodable, .. } =
            self.pods.get(name).copied().unwrap_or_default();
        Some(match (ready, ours) {
            (_, 0) => Pods::Absent,
            _ if meant.outstay_a_drain() && others == 0 => Pods::Absent,
            (0, _) if undecodable > 0 => Pods::Unknown,
            (0, _) => Pods::Present,
            _ => Pods::Ready,
        })
    }

    /// Tells the world how the object's pods fare on a node, whether some can be evicted from there, and what is published.
    fn tell(&self, world: &mut World, key: &PoolKey, name: &NodeName, node: &SlimNode, pods: Option<Pods>) {
        world.set_member(key, name, pods);
        if let Some(publishes) = self.who.publishes {
            world.set_node_addresses(key, name, publishes.of(node));
        }
        world.set_evictable(key, name, self.pods.get(name).is_some_and(|pods| pods.evictable > 0));
    }

    /// Counts all pods anew.
    fn recount<'a>(&mut self, pods: impl Iterator<Item = &'a SlimPod>, owners: &Owners) {
        self.pods.clear();
        for pod in pods {
            self.count(pod, owners, 1);
        }
    }

    /// Counts a pod in or out, and gives the node it runs on where it matters. One that has ended does not.
    fn count(&mut self, pod: &SlimPod, owners: &Owners, change: isize) -> Option<NodeName> {
        let meant = self.who.pods.as_ref()?;
        let is_ours = meant.means(pod, owners);
        let is_other = !is_ours && meant.outstay_a_drain() && owners::is_evictable(pod);
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
        add(&mut counted.evictable, meant.may_evict(pod, owners));
        add(&mut counted.undecodable, is_ours && pod.is_stand_in);
        Some(node)
    }
}

fn has_ended(pod: &SlimPod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &SlimPod) -> bool {
    let is_running = pod.status.phase.as_deref() == Some("Running");
    let is_ready = pod.status.ready().is_some_and(|ready| ready.status == "True");
    is_running && is_ready && pod.metadata.deletion_timestamp.is_none()
}

fn name_of(node: &SlimNode) -> NodeName {
    node.metadata.name.as_deref().unwrap_or_default().into()
}

fn key_of_pod(pod: &kube::api::ObjectMeta) -> (String, String) {
    (pod.namespace.clone().unwrap_or_default(), pod.name.clone().unwrap_or_default())
}

/// The pool that an object of a kind is, whether it can be decoded or not.
fn pool_key(kind: Kind, metadata: &kube::api::ObjectMeta) -> PoolKey {
    let is_namespaced = kind != Kind::NetIPAllocations;
    let namespace = metadata.namespace.as_deref().filter(|_| is_namespaced).unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    PoolKey { kind: kind_name(kind), namespace: namespace.into(), name: name.into() }
}

/// What stands in for an object that was never decoded: its spec, where that can be decoded without its status, or else its
/// name in DNS.
fn stand_in(kind: Kind, undecodable: &Undecodable) -> Option<Object> {
    fn read<K: serde::de::DeserializeOwned>(
        undecodable: &Undecodable,
        spec: serde_json::Value,
    ) -> Option<Arc<K>> {
        undecodable.with_spec(None).or_else(|| undecodable.with_spec(Some(spec))).map(Arc::new)
    }
    // Of a record set its name is enough, which stays reserved.
    let records = undecodable.at(&["spec", "dnsRecordSet"]).or_else(|| {
        let part = |field| undecodable.at::<String>(&["spec", "dnsRecordSet", field]);
        let (provider, zone, record_name) = (part("provider"), part("zone")?, part("recordName")?);
        Some(DnsRecordSet { provider, zone, record_name, ttl: None, adopt: None })
    });
    match kind {
        Kind::NetIPAllocations => {
            let spec = serde_json::json!({"reservedIPs": [], "cloud": {"provider": "gcp"}});
            read(undecodable, spec).map(Object::Allocation)
        }
        Kind::FloatingIPPools => {
            let spec = serde_json::json!({"provider": "", "dnsRecordSet": records});
            read(undecodable, spec).map(Object::Pool)
        }
        _ => {
            let nameless = serde_json::json!({"zone": "", "recordName": ""});
            let records = records.and_then(|records| serde_json::to_value(records).ok()).unwrap_or(nameless);
            let provider: Option<String> = undecodable.at(&["spec", "provider"]);
            let spec = serde_json::json!({"provider": provider, "dnsRecordSet": records});
            read(undecodable, spec).map(Object::Records)
        }
    }
}

/// The pool that an object is.
pub fn key_of(object: &Object) -> PoolKey {
    match object {
        Object::Allocation(object) => net_ip_allocation::key(object),
        Object::Pool(object) => floating_ip_pool::key(object),
        Object::Records(object) => node_dns_record_set::key(object),
    }
}

fn machine_of(node: &SlimNode) -> Option<(Scope, VmId)> {
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
        // A node that has never reported is not ready for anything.
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

/// The machines that unfinished moves name.
fn machines_of(moves: Option<&Moves>) -> impl Iterator<Item = VmId> {
    let entries = moves.into_iter().flat_map(|moves| &moves.entries);
    entries.flat_map(|entry| [&entry.from, &entry.to]).flatten().map(|holder| VmId::from(holder.vm.as_str()))
}

/// The account that a pool's nodes live in: that of the first matching node, or of a machine that held an address.
fn scope_of<'a>(
    provider: Provider,
    matching: impl Iterator<Item = &'a SlimNode>,
    mut holders: impl Iterator<Item = VmId>,
) -> Option<Scope> {
    let mut of_nodes = matching.filter_map(|node| Some(machine_of(node)?.0));
    let of_holder = |vm: VmId| Some(Scope { provider, account: vm.as_str().split_once('/')?.0.into() });
    match provider {
        // The token says which account it is.
        Provider::DigitalOcean => Some(Scope { provider, account: "".into() }),
        _ => of_nodes.find(|scope| scope.provider == provider).or_else(|| holders.find_map(of_holder)),
    }
}

/// When an object was created.
pub(crate) fn created(object: &impl ResourceExt) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The addresses that a user listed, each once. The apiserver has checked them, but a CRD of another version may not have.
pub(crate) fn parse_addresses(listed: &[String]) -> (Vec<Address>, Option<Refusal>) {
    let mut addresses: Vec<Address> = Vec::new();
    let mut refusal = None;
    let mut seen = BTreeSet::new();
    for text in listed {
        match text.parse() {
            Ok(address) if seen.insert(address) => addresses.push(address),
            Ok(_) => {}
            Err(_) => {
                refusal = Some(Refusal {
                    reason: "InvalidAddress",
                    message: format!("{text} is not an IP address"),
                });
            }
        }
    }
    (addresses, refusal)
}

/// The machines of ours that last held each address, by the object's own status.
pub(crate) fn last_holders(status: &[AddressStatus]) -> BTreeMap<Address, VmId> {
    let remembered = |status: &AddressStatus| {
        Some((status.address.parse().ok()?, VmId::from(status.last_holder.as_ref()?.vm.as_str())))
    };
    status.iter().filter_map(remembered).collect()
}

/// When the holders of an object's addresses were lost, by its own status.
fn losses_of(object: &Object) -> impl Iterator<Item = (Address, Timestamp)> {
    let told = object.addresses().iter().filter(|_| !plan::sabotaged!(LossesForgotten));
    told.filter_map(|status| Some((status.address.parse().ok()?, status.lost_since.as_ref()?.0)))
}

/// The addresses that were known to be on their last holder, by the object's own status.
pub(crate) fn held(status: &[AddressStatus]) -> BTreeSet<Address> {
    let is_held = |status: &&AddressStatus| status.state == AddressState::Attached;
    status.iter().filter(is_held).filter_map(|status| status.address.parse().ok()).collect()
}

/// The addresses whose last holder had one of its own before, by the object's own status.
pub(crate) fn lent(status: &[AddressStatus]) -> BTreeSet<Address> {
    let had_own = |status: &&AddressStatus| {
        status.last_holder.as_ref().is_some_and(|holder| holder.had_ephemeral == Some(true))
    };
    status.iter().filter(had_own).filter_map(|status| status.address.parse().ok()).collect()
}

/// The machines that addresses have left and that have one of their own again, by the object's own status.
pub(crate) fn returned(status: &[AddressStatus]) -> BTreeMap<Address, Vec<VmId>> {
    let left = |status: &AddressStatus| {
        let left: Vec<_> = status.previous_holders.iter().map(|vm| VmId::from(vm.as_str())).collect();
        (!left.is_empty()).then_some((status.address.parse().ok()?, left))
    };
    status.iter().filter_map(left).collect()
}

/// The names that addresses had in their PTR records when they were last detached, by the object's own status.
pub(crate) fn ptrs(status: &[AddressStatus]) -> BTreeMap<Address, Arc<str>> {
    let kept =
        |status: &AddressStatus| Some((status.address.parse().ok()?, Arc::from(status.ptr_name.as_deref()?)));
    status.iter().filter_map(kept).collect()
}

/// Since when addresses are on their way, by the object's own journal. One that failed is still on its way.
pub(crate) fn moving_since(journal: &[api::status::Move]) -> BTreeMap<Address, Timestamp> {
    let began = |entry: &api::status::Move| {
        Some((entry.address.as_ref()?.parse().ok()?, entry.started_at.as_ref()?.0))
    };
    journal.iter().filter_map(began).collect()
}

/// The addresses that an object created, by its own status.
pub(crate) fn created_here(status: &[AddressStatus]) -> BTreeSet<Address> {
    let created = status.iter().filter(|status| status.created == Some(true));
    created.filter_map(|status| status.address.parse().ok()).collect()
}

/// The addresses of which a person has said that they were not created for an object.
pub(crate) fn disowned(object: &impl ResourceExt) -> BTreeSet<Address> {
    let texts = object.annotations().get(NOT_CREATED_ANNOTATION).map(String::as_str).unwrap_or_default();
    texts.split(',').filter_map(|text| text.trim().parse().ok()).collect()
}

/// The time up to which a person has confirmed losses.
pub(crate) fn losses_confirmed(object: &impl ResourceExt) -> Option<Timestamp> {
    object.annotations().get(CONFIRM_LOSS_ANNOTATION)?.parse().ok()
}

/// What a user allows, over the defaults of the kind.
pub(crate) fn allowed(asked: Option<&policy::Policy>, grace_default: Duration, cool_off: Duration) -> Policy {
    let policy::Policy {
        mode,
        failover_grace_seconds,
        max_concurrent_moves,
        min_healthy,
        takeover,
        spread,
        disruption_taints,
        on_delete,
        release_created,
        evict_pods,
    } = asked.cloned().unwrap_or_default();
    let number = |value: i64| usize::try_from(value).unwrap_or(0);
    Policy {
        mode: match mode {
            None | Some(policy::Mode::Active) => Mode::Active,
            Some(policy::Mode::Observe) => Mode::Observe,
        },
        failover_grace: failover_grace_seconds
            .map_or(grace_default, |seconds| Duration::from_secs(seconds.unsigned_abs())),
        concurrent_moves_max: max_concurrent_moves.map(number),
        healthy_min: min_healthy.map_or(0, number),
        cool_off,
        takeover: match takeover {
            None | Some(policy::Takeover::Never) => Takeover::Never,
            Some(policy::Takeover::Always) => Takeover::Always,
        },
        spread: match spread {
            None | Some(policy::Spread::None) => Spread::None,
            Some(policy::Spread::Zone) => Spread::Zone,
        },
        leaves_on_disruption: disruption_taints == Some(policy::DisruptionTaints::Leave),
        releases_created: release_created == Some(policy::ReleaseCreated::WhenUnneeded),
        detaches_on_delete: on_delete == Some(policy::OnDelete::Detach),
        evicts: evict_pods.unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn read<K: DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    /// An index with one node and an allocation for a workload of this kind.
    fn index(kind: &str, workload: Kind) -> Index {
        let mut index = Index::default();
        let node = json!({"metadata": {"name": "n1"}, "spec": {"providerID": "gce://p/z/n1", "unschedulable": true}});
        index.see(Seen::Nodes(Change::All(vec![read(node)])));
        let spec = json!({
            "reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"},
            "workloadRef": {"kind": kind, "name": "web", "namespace": "web"},
        });
        let allocation =
            json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"}, "spec": spec});
        index.see(Seen::Allocations(Change::All(vec![read(allocation)])));
        let owner = json!({"name": "web", "namespace": "web", "uid": "w1"});
        index.see(Seen::Owners(workload, Change::All(vec![read(owner)])));
        index
    }

    /// The object of an index, with a status as the controller would write it and one as the apiserver stored it.
    fn written(index: &Index, sent: Value, stored: Value) -> (PoolKey, Object, Object) {
        let (key, tracked) = index.objects.iter().next().unwrap();
        let Object::Allocation(object) = &tracked.object else { panic!("it is no allocation") };
        let with = |status: Value, version: u64| {
            let mut object = NetIPAllocation::clone(object);
            object.metadata.resource_version = Some(version.to_string());
            object.status = Some(read(status));
            Object::Allocation(Arc::new(object))
        };
        let version = tracked.object.version();
        (key.clone(), with(sent, version), with(stored, version + 1))
    }

    #[test]
    fn an_optional_field_that_the_crd_drops_is_reported_once_and_stops_nothing() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        let holder = json!({"vm": "p/z/n1"});
        let address = json!({"address": "203.0.113.1", "state": "Attached", "lastHolder": holder});
        let mut described = address.clone();
        described["message"] = json!("on n1");
        let (sent, stored) = (json!({"addresses": [described]}), json!({"addresses": [address]}));
        let (key, sent, stored) = written(&index, sent, stored);
        let note = index.see_written(&key, &sent, stored).unwrap();
        assert!(note.starts_with("the CRD drops status.addresses.message,"), "{note}");
        let tracked = &index.objects[&key];
        assert!(tracked.refused_until.is_none());
        assert!(
            tracked.dropped_fields.explain(&sent.status(), &tracked.object.status()),
            "it is written for ever"
        );
        assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Active);

        let (key, sent, stored) = written(&index, sent.status(), index.objects[&key].object.status());
        assert_eq!(index.see_written(&key, &sent, stored), None, "this is known");
        let (key, sent, stored) = written(&index, sent.status(), sent.status());
        index.see_written(&key, &sent, stored);
        assert!(index.objects[&key].dropped_fields.is_empty(), "the CRD was replaced");
    }

    #[test]
    fn a_crd_that_drops_ptr_names_holds_up_no_move() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        let moved: Address = "203.0.113.1".parse().unwrap();
        let entry = json!({"id": "m1", "address": "203.0.113.1", "from": {"vm": "p/z/n1"}, "step": "Urgent", "epoch": 1});
        let moves = json!({"version": 1, "epoch": 1, "entries": [entry]});
        let status = |more: Value| {
            let mut address = json!({"address": "203.0.113.1", "state": "Moving"});
            address.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"addresses": [address], "moves": moves})
        };
        index.world.ptrs.insert(moved, "a.example.com".into());
        let (key, sent, stored) =
            written(&index, status(json!({"ptrName": "a.example.com"})), status(json!({})));
        index.see_written(&key, &sent, stored).unwrap();
        let name = |index: &Index| index.world.pool(&key).unwrap().ptrs.get(&moved).cloned();
        assert_eq!(name(&index).as_deref(), Some("a.example.com"), "otherwise it is to be kept for ever");
        index.rebuild(&key);
        assert_eq!(name(&index).as_deref(), Some("a.example.com"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_retried_after_its_crd_dropped_the_journal() {
        let holder = json!({"vm": "p/z/n1"});
        let entry = json!({"id": "m1", "address": "203.0.113.1", "to": holder, "step": "Urgent", "epoch": 1});
        let addresses = |more: Value| {
            let mut address = json!({"address": "203.0.113.1", "state": "Unattached"});
            address.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"addresses": [address]})
        };
        for sent in [
            json!({"moves": {"version": 1, "epoch": 1, "entries": [entry]}}),
            addresses(json!({"lastHolder": holder})),
            addresses(json!({"created": true})),
        ] {
            let mut index = index("StatefulSet", Kind::StatefulSets);
            let stored = match sent["moves"].is_null() {
                true => addresses(json!({})),
                false => json!({}),
            };
            let (key, sent, stored) = written(&index, sent, stored);
            index.see_written(&key, &sent, stored).unwrap();
            assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Refused);
            index.retry_outdated();
            assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Refused);
            tokio::time::advance(OUTDATED_RETRY).await;
            index.retry_outdated();
            assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Active);
            assert!(
                !sent.keeps_journal_and_holders(&index.objects[&key].object),
                "it would not be written again"
            );
        }
    }

    #[test]
    fn a_kind_that_is_gone_holds_up_the_others_only_while_something_of_it_may_be_left() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::NetIPAllocations);
        index.known.extend(others);
        assert!(index.is_complete());
        index.see(Seen::Absent(Kind::NetIPAllocations));
        assert!(!index.is_complete(), "its object may still be there");
        let gone = json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "2"}, "spec": {
            "reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"},
        }});
        let gone: NetIPAllocation = read(gone);
        index.see(Seen::Allocations(Change::Deleted(Box::new(gone.metadata))));
        index.see(Seen::Absent(Kind::NetIPAllocations));
        assert!(index.is_complete());
        index.see(Seen::Unsure(Kind::Nodes));
        assert!(!index.is_complete());
    }

    #[tokio::test(start_paused = true)]
    async fn for_a_while_a_new_leader_believes_the_status_where_a_cloud_that_shows_things_late_says_otherwise()
     {
        let (address, scope) =
            ("203.0.113.1".parse().unwrap(), Scope { provider: Provider::Aws, account: "us-east-1".into() });
        let node = |is_ready: bool| {
            let ready = if is_ready { "True" } else { "False" };
            json!({
                "metadata": {"name": "n1"}, "spec": {"providerID": "aws:///us-east-1a/i-1"},
                "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            })
        };
        let believed = async |is_ready: bool, state: &str, wait: Duration, told: Holding| {
            let mut index = Index::default();
            index.see(Seen::Nodes(Change::All(vec![read(node(is_ready))])));
            let allocation = json!({
                "metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"},
                "spec": {"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "aws", "region": "us-east-1"}},
                "status": {"addresses": [{
                    "address": "203.0.113.1", "state": state, "lastHolder": {"vm": "us-east-1/i-1", "nodeName": "n1"},
                }]},
            });
            index.see(Seen::Allocations(Change::All(vec![read(allocation)])));
            index.distrust_late_reads(&BTreeMap::from([(Provider::Aws, Duration::from_secs(30))]));
            tokio::time::sleep(wait).await;
            let listed = drivers::Listed { holding: told, region: None, tag: None };
            let listing = Listing { addresses: BTreeMap::from([(address, listed)]), ..Listing::default() };
            let as_of = index.tick();
            index.see_listing(&scope, Ok(listing), as_of);
            index.let_late_reads_pass();
            index.world.fact(&scope, address).unwrap().holding.clone()
        };
        let holder = Holding::By("us-east-1/i-1".into());
        assert_eq!(believed(true, "Attached", Duration::ZERO, holder.clone()).await, holder);
        for told in [Holding::Free, Holding::By("us-east-1/i-2".into())] {
            let doubted = believed(true, "Attached", Duration::ZERO, told.clone()).await;
            assert!(matches!(doubted, Holding::Unknown(_)), "{doubted:?}");
            assert_eq!(believed(true, "Attached", Duration::from_secs(30), told.clone()).await, told);
            let again = believed(true, "Unknown", Duration::ZERO, told.clone()).await;
            assert!(matches!(again, Holding::Unknown(_)), "this is what is written of it meanwhile");
            let arrived = believed(true, "Moving", Duration::ZERO, told.clone()).await;
            assert!(matches!(arrived, Holding::Unknown(_)), "it has arrived, and nobody has said so yet");
            for settled in ["Unattached", "Foreign"] {
                assert_eq!(believed(true, settled, Duration::ZERO, told.clone()).await, told);
            }
        }
        let of_a_dead_node = async |told| believed(false, "Attached", Duration::ZERO, told).await;
        assert_eq!(of_a_dead_node(Holding::Free).await, Holding::Free, "nobody is served there");
        let elsewhere = of_a_dead_node(Holding::By("us-east-1/i-2".into())).await;
        assert!(matches!(elsewhere, Holding::Unknown(_)), "it may have left there for the node that died");
    }

    #[test]
    fn an_account_of_which_something_was_not_told_is_not_known_as_a_whole_until_all_is() {
        let mut index = Index::default();
        let scope = Scope { provider: plan::Provider::Gcp, account: "p".into() };
        let whole = Listing::default();
        let partial = Listing { untold: vec!["a region".into()], ..Listing::default() };
        for (listing, is_known) in [(&whole, true), (&partial, false), (&whole, true)] {
            let as_of = index.tick();
            index.see_listing(&scope, Ok(listing.clone()), as_of);
            assert_eq!(index.world.accounts.contains_key(&scope), is_known);
        }
    }

    fn pod(name: &str, owner: &str, uid: &str, phase: &str) -> Box<Decoded<SlimPod>> {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": uid, "controller": true});
        Box::new(read(json!({
            "metadata": {"name": name, "namespace": "web", "ownerReferences": [owner]},
            "spec": {"nodeName": "n1"}, "status": {"phase": phase},
        })))
    }

    /// How the allocation's pods fare on the node.
    fn pods(index: &Index) -> Pods {
        let (_, tracked) = index.objects.first_key_value().unwrap();
        let (name, node) = index.nodes.first_key_value().unwrap();
        tracked.membership(name, node).unwrap()
    }

    #[test]
    fn a_machine_that_can_get_no_address_is_told_until_there_are_only_others() {
        let node = |name: &str, machine: &str| {
            let id =
                format!("azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/{machine}");
            Box::new(read::<Decoded<SlimNode>>(
                json!({"metadata": {"name": name}, "spec": {"providerID": id}}),
            ))
        };
        let uniform = node("n1", "virtualMachineScaleSets/set/virtualMachines/0");
        let spec = json!({"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "azure"}});
        let allocation =
            json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"}, "spec": spec});
        let mut index = Index::default();
        index.see(Seen::Allocations(Change::All(vec![read(allocation.clone())])));
        let refusal = |index: &Index| {
            let (_, tracked) = index.objects.first_key_value().unwrap();
            tracked.refusal.as_ref().map(|refusal| (refusal.reason, refusal.message.clone()))
        };
        index.see(Seen::Nodes(Change::Applied(uniform.clone())));
        let (reason, message) = refusal(&index).unwrap();
        assert_eq!(reason, "UnsupportedNode");
        assert!(
            message.starts_with("node n1 can't get an address") && message.contains("Flexible"),
            "{message}"
        );
        index.see(Seen::Nodes(Change::Applied(node("n2", "virtualMachines/two"))));
        assert_eq!(refusal(&index), None);
        let key = index.objects.keys().next().unwrap().clone();
        assert_eq!(index.unsupported(&key).map(|(node, _)| node.as_str()), Some("n1"));
        index.see(Seen::Nodes(Change::Deleted(Box::new(uniform.meta().clone()))));
        assert_eq!(index.unsupported(&key), None);

        let mut index = Index::default();
        index.see(Seen::Nodes(Change::Applied(uniform.clone())));
        index.see(Seen::Allocations(Change::All(vec![read(allocation)])));
        assert_eq!(refusal(&index).unwrap().0, "UnsupportedNode");
        index.see(Seen::Nodes(Change::Deleted(Box::new(uniform.meta().clone()))));
        assert_eq!(refusal(&index).unwrap().0, "NoNodes");
    }

    #[test]
    fn only_taints_that_announce_a_nodes_end_move_its_address() {
        let is_leaving = |taint: &str, effect: &str| {
            let taints = json!([{"key": taint, "effect": effect}]);
            let node = json!({"metadata": {"name": "n1"}, "spec": {"taints": taints}});
            let mut index = Index::default();
            index.see(Seen::Nodes(Change::Applied(Box::new(read::<SlimNode>(node).into()))));
            index.world.node(&"n1".into()).unwrap().is_leaving
        };
        assert!(!is_leaving("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"));
        assert!(!is_leaving("node.kubernetes.io/unschedulable", "NoSchedule"));
        for taint in DISRUPTION_TAINTS {
            assert!(is_leaving(taint, "NoSchedule"), "{taint}");
        }
    }

    #[test]
    fn n5_a_workloads_pods_are_on_a_node_from_when_they_are_seen_until_they_are_gone_or_have_ended() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        assert_eq!(pods(&index), Pods::Absent);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
        assert_eq!(pods(&index), Pods::Present);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Succeeded"))));
        assert_eq!(pods(&index), Pods::Absent);
        index.see(Seen::Pods(Change::Applied(pod("web-1", "StatefulSet", "w1", "Running"))));
        index.see(Seen::Pods(Change::Deleted(Box::new(
            pod("web-1", "StatefulSet", "w1", "Running").meta().clone(),
        ))));
        assert_eq!(pods(&index), Pods::Absent);
    }

    #[test]
    fn n5_pods_are_counted_again_when_it_is_known_whose_they_are() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w2", "Running"))));
        assert_eq!(pods(&index), Pods::Present, "nobody knows yet whose it is");
        let other = json!({"name": "other", "namespace": "web", "uid": "w2"});
        index.see(Seen::Owners(Kind::StatefulSets, Change::Applied(Box::new(read(other)))));
        assert_eq!(pods(&index), Pods::Absent);
    }

    #[test]
    fn n6_without_a_workload_no_pod_keeps_an_address_on_a_cordoned_node() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
        assert_eq!(pods(&index), Pods::Present);
        let spec = json!({"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"}});
        let metadata = json!({"name": "edge", "uid": "a1", "resourceVersion": "2", "generation": 2});
        let without = json!({"metadata": metadata, "spec": spec});
        index.see(Seen::Allocations(Change::Applied(Box::new(read(without)))));
        assert_eq!(pods(&index), Pods::Absent);
    }

    #[test]
    fn n7_a_daemon_sets_pod_holds_its_nodes_address_until_every_other_evictable_pod_has_left() {
        let mut index = index("DaemonSet", Kind::DaemonSets);
        index.see(Seen::Pods(Change::Applied(pod("other", "ReplicaSet", "r1", "Running"))));
        assert_eq!(pods(&index), Pods::Absent, "none of the workload's pods is there");
        index.see(Seen::Pods(Change::Applied(pod("web", "DaemonSet", "w1", "Running"))));
        assert_eq!(pods(&index), Pods::Present);
        let agent = json!({"name": "agent", "namespace": "web", "uid": "w9"});
        index.see(Seen::Owners(Kind::DaemonSets, Change::Applied(Box::new(read(agent)))));
        index.see(Seen::Pods(Change::Applied(pod("agent", "DaemonSet", "w9", "Running"))));
        index.see(Seen::Pods(Change::Deleted(Box::new(
            pod("other", "ReplicaSet", "r1", "Running").meta().clone(),
        ))));
        assert_eq!(pods(&index), Pods::Absent, "what a drain leaves on the node does not count");
    }

    /// An allocation of two addresses in a version, which can be decoded or not.
    fn allocation(version: &str, is_decodable: bool) -> Decoded<NetIPAllocation> {
        let epoch = if is_decodable { json!(3) } else { json!("newer") };
        let entry = json!({
            "id": "m", "address": "203.0.113.9", "step": "Urgent", "epoch": 3, "to": {"vm": "p/z/n2", "nodeName": "n2"},
        });
        read(json!({
            "metadata": {"name": "edge", "uid": "a1", "resourceVersion": version, "generation": 1},
            "spec": {"reservedIPs": ["203.0.113.1", "203.0.113.2"], "cloud": {"provider": "gcp"}},
            "status": {"moves": {"version": 1, "epoch": epoch, "entries": [entry]}},
        }))
    }

    fn edge() -> PoolKey {
        PoolKey { kind: net_ip_allocation::KIND, namespace: "".into(), name: "edge".into() }
    }

    #[test]
    fn an_undecodable_object_keeps_its_last_version_and_acts_on_nothing() {
        let mut index = Index::default();
        index.see(Seen::Allocations(Change::All(vec![allocation("1", true)])));
        index.see(Seen::Allocations(Change::Applied(Box::new(allocation("2", false)))));
        let pool = index.world.pool(&edge()).unwrap();
        assert_eq!(pool.policy.mode, Mode::Refused);
        assert!(pool.entry("203.0.113.9".parse().unwrap()).is_some(), "its journal stays");
        assert_eq!(index.undecodable.of(Kind::NetIPAllocations).collect::<Vec<_>>(), [("", "edge")]);
        index.see(Seen::Allocations(Change::All(vec![allocation("2", false)])));
        assert!(index.world.pool(&edge()).is_some(), "and a relist does not remove it");
        index.see(Seen::Allocations(Change::Applied(Box::new(allocation("3", true)))));
        assert!(index.objects[&edge()].undecodable.is_none());
        assert!(index.world.reserved_machines.is_empty());
        assert_eq!(index.undecodable.of(Kind::NetIPAllocations).count(), 0);
    }

    #[test]
    fn an_object_that_was_never_decoded_reserves_its_addresses_and_machines() {
        let mut index = Index::default();
        index.see(Seen::Allocations(Change::All(vec![allocation("2", false)])));
        let pool = index.world.pool(&edge()).unwrap();
        let named = ["203.0.113.1", "203.0.113.2", "203.0.113.9"].map(|text| text.parse().unwrap());
        assert_eq!(pool.addresses, named);
        assert_eq!(pool.policy.mode, Mode::Refused);
        assert!(index.world.reserved_machines.contains(&VmId::from("p/z/n2")));
        let meta = allocation("2", false).meta().clone();
        index.see(Seen::Allocations(Change::Deleted(Box::new(meta))));
        assert!(index.world.pool(&edge()).is_none() && index.world.reserved_machines.is_empty());
    }

    #[test]
    fn an_object_whose_spec_is_undecodable_reserves_its_addresses_and_its_name() {
        let metadata = json!({"name": "x", "namespace": "web", "uid": "u", "resourceVersion": "1"});
        for ttl in [json!(60), json!("soon")] {
            let dns =
                json!({"zone": "example.com", "recordName": "hello", "provider": "cloudflare", "ttl": ttl});
            let pool = json!({
                "metadata": metadata,
                "spec": {"provider": 7, "ips": ["203.0.113.1"], "dnsRecordSet": dns},
            });
            let records = json!({"metadata": metadata, "spec": {"addressType": 7, "dnsRecordSet": dns}});
            let mut index = Index::default();
            index.see(Seen::Pools(Change::All(vec![read(pool)])));
            index.see(Seen::RecordSets(Change::All(vec![read(records)])));
            assert_eq!(index.world.pools().count(), 2);
            for pool in index.world.pools() {
                assert_eq!(&*pool.publication.as_ref().unwrap().name, "hello.example.com");
                assert_eq!(pool.addresses.len(), usize::from(pool.key.kind == floating_ip_pool::KIND));
                assert_eq!(pool.policy.mode, Mode::Refused);
            }
        }
    }

    #[test]
    fn an_undecodable_node_keeps_its_machine_and_is_not_known_to_be_ready() {
        let node = |unschedulable: Value| {
            let ready = json!([{"type": "Ready", "status": "True"}]);
            read::<Decoded<SlimNode>>(json!({
                "metadata": {"name": "n1", "uid": "u"}, "status": {"conditions": ready},
                "spec": {"providerID": "gce://p/z/n1", "unschedulable": unschedulable},
            }))
        };
        let broken = || node(json!("maybe"));
        for before in [Some(node(json!(false))), None] {
            let mut index = Index::default();
            before.into_iter().for_each(|node| index.see(Seen::Nodes(Change::All(vec![node]))));
            index.see(Seen::Nodes(Change::All(vec![broken()])));
            let (_, found) = index.world.node_of(&VmId::from("p/z/n1")).unwrap();
            assert_eq!(found.readiness, Readiness::Unknown);
            index.see(Seen::Nodes(Change::Applied(Box::new(node(json!(false))))));
            let (_, found) = index.world.node_of(&VmId::from("p/z/n1")).unwrap();
            assert_eq!(found.readiness, Readiness::Ready);
            index.see(Seen::Nodes(Change::Applied(Box::new(broken()))));
            index.see(Seen::Nodes(Change::Deleted(Box::new(broken().meta().clone()))));
            assert!(index.world.node_of(&VmId::from("p/z/n1")).is_none());
        }
    }

    #[test]
    fn an_undecodable_pod_is_on_its_node_and_never_evicted() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "w1", "controller": true});
        let broken: Decoded<SlimPod> = read(json!({
            "metadata": {"name": "web-0", "namespace": "web", "ownerReferences": [owner]},
            "spec": {"nodeName": "n1"}, "status": {"phase": 7},
        }));
        index.see(Seen::Pods(Change::All(vec![broken.clone()])));
        assert_eq!(pods(&index), Pods::Unknown);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
        assert_eq!(pods(&index), Pods::Present);
        let evictable = |index: &Index| {
            index.objects.values().any(|tracked| tracked.pods.values().any(|pods| pods.evictable > 0))
        };
        assert!(evictable(&index));
        index.see(Seen::Pods(Change::All(vec![broken.clone()])));
        assert_eq!(pods(&index), Pods::Unknown, "the last version stays");
        assert!(!evictable(&index));
        let mut unbound: Value = json!({"metadata": {"name": "web-0", "namespace": "web"}});
        unbound["metadata"]["ownerReferences"] = json!([owner]);
        index.see(Seen::Pods(Change::All(vec![read(unbound)])));
        assert_eq!(pods(&index), Pods::Absent);
        index.see(Seen::Pods(Change::All(vec![broken])));
        assert_eq!(pods(&index), Pods::Unknown, "it was bound to its node since");
    }

    #[test]
    fn an_undecodable_owner_keeps_its_last_version() {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        index.see(Seen::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
        let broken = json!({"name": "web", "namespace": "web", "uid": "w1", "labels": 7});
        let broken: Decoded<kube::core::PartialObjectMeta<k8s_openapi::api::apps::v1::StatefulSet>> =
            read(json!({"metadata": broken}));
        let broken = broken.map(|owner| owner.metadata);
        assert!(matches!(broken, Decoded::Undecodable(_)));
        index.see(Seen::Owners(Kind::StatefulSets, Change::All(vec![broken])));
        let meant = index.objects.values().next().unwrap().who.pods.as_ref().unwrap();
        assert!(
            meant.may_evict(index.pods.values().next().unwrap(), &index.owners),
            "its owner is still known"
        );
    }
}
