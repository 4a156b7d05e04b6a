//! Another release takes over while the leader has work in flight: `just e2e upgrade`.
//!
//! In: 200 addresses in two clouds, DNS names, and Clusters that wait for their VIPs. The test starts moves, creations,
//! DNS changes and claims, and then ends the leader. The current release succeeds release 0.1.0, and 0.1.0 succeeds the
//! current one. Half of the leaders get SIGTERM and release their lease before the successor starts. The others get
//! SIGKILL while the successor stands by. Half of the switches run with the CRDs and the ClusterRole of release 0.1.0.
//!
//! Out: a verdict for each switch, from the ledgers of the fake clouds. A switch counts only if the journals had
//! entries in several phases when the leader ended. `UPGRADES` sets how many switches must count in each direction; the
//! default is 1.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::status::{Move, Moves};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Resource, ResourceExt};
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::cluster::{at_some_moment, eventually, node};
use testbed::cluster_api::ClusterApi;
use testbed::cluster_api::fixtures::{self, Version};
use testbed::cluster_api::provider::Provider;
use testbed::control_plane::Options;
use testbed::demo::{PROJECT, ZONE};
use testbed::fake::ledger::{CloudChange, Ledger};
use testbed::tools;

use crate::rig::{Controller, Rig, SOON, read};

/// FloatingIPPools at DigitalOcean, and the addresses of each.
const POOLS: u64 = 6;
const ADDRESSES_OF_POOL: u64 = 20;
/// The first pools move all of their addresses in each wave. The others lose a few nodes.
const POOLS_THAT_MOVE: u64 = 4;

/// NetIPAllocations at Google Cloud, and the addresses of each.
const ALLOCATIONS: u64 = 4;
const ADDRESSES_OF_ALLOCATION: u64 = 15;
/// The nodes of the first allocations are cordoned in each wave. The others lose a few nodes.
const ALLOCATIONS_THAT_MOVE: u64 = 2;

/// FloatingIPPools that create their addresses, how many addresses each has at first, and how many each wave adds.
const CREATORS: u64 = 4;
const CREATED_AT_FIRST: i64 = 5;
const CREATED_IN_A_WAVE: i64 = 2;

/// Nodes that an object loses in a wave. More lost nodes would trip the breaker.
const NODES_LOST: usize = 3;

/// Clusters that each wave creates.
const CLUSTERS: usize = 3;

/// A switch counts if the journals have at least this many entries in at least this many phases.
const OPEN_MIN: usize = 10;
const PHASES_MIN: usize = 3;

const ZONE_OF_MACHINES: &str = "us-west1-a";
const FOLDER: &str = "crates/controller/tests/baseline";
const ACCOUNT: &str = "upgrade";
const CONCURRENCY: usize = 16;
const LONG: Duration = Duration::from_secs(240);
/// How often the test reads all objects. Shorter intervals would take CPU time from the controllers.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

const ENVIRONMENT: [(&str, &str); 7] = [
    ("LEASE_DURATION", "15"),
    ("TAKEOVER_SECONDS", "1"),
    ("DNS_OWNER_ID", "upgrade"),
    ("DIGITALOCEAN_REQUESTS_PER_MINUTE", "100000"),
    ("DIGITALOCEAN_REQUESTS_PER_HOUR", "1000000"),
    ("CLOUDFLARE_REQUESTS_PER_FIVE_MINUTES", "100000"),
    ("GOOGLE_REQUESTS_PER_MINUTE", "100000"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Baseline,
    Current,
}

impl Release {
    fn other(self) -> Self {
        match self {
            Self::Baseline => Self::Current,
            Self::Current => Self::Baseline,
        }
    }

    pub fn binary(self) -> PathBuf {
        match self {
            Self::Baseline => tools::baseline().unwrap(),
            Self::Current => PathBuf::from(env!("CARGO_BIN_EXE_ip-address-controller")),
        }
    }

    /// Its three CRDs, its RBAC manifest, and its RBAC manifest for Cluster API.
    fn manifests(self) -> [String; 5] {
        let (crds, rbac, cluster_api) = match self {
            Self::Baseline => (
                format!("{FOLDER}/crds"),
                format!("{FOLDER}/rbac.yaml"),
                format!("{FOLDER}/cluster-api.yaml"),
            ),
            Self::Current => {
                ("crds".into(), "k8s/rbac.yaml".into(), "k8s/cluster-api/capi-vip-allocator.yaml".into())
            }
        };
        let crd = |name: &str| read(&format!("{crds}/{name}.yaml"));
        let [allocation, pool, records] = ["netipallocation", "floatingippool", "nodednsrecordset"].map(crd);
        [allocation, pool, records, read(&rbac), read(&cluster_api)]
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "0.1.0",
            Self::Current => "current",
        })
    }
}

/// The progress of a journal entry, according to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The cloud creates an address.
    Creating,
    /// The address is still on its old VM.
    Begun,
    /// The address is on no VM.
    Detached,
    /// The cloud has accepted the request to attach the address.
    Ordered,
    /// The address is on its new VM, but the journal entry is still open.
    Arrived,
}

/// Where an address is, according to the ledger.
#[derive(Clone, Debug, Default)]
struct Place {
    holder: Option<String>,
    is_ordered: bool,
}

fn places(ledgers: &[Ledger]) -> BTreeMap<String, Place> {
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for done in ledgers.iter().flat_map(|ledger| &ledger.done) {
        match &done.change {
            CloudChange::Accepted { address, .. } => {
                places.entry(address.clone()).or_default().is_ordered = true
            }
            CloudChange::Failed { address, .. } => {
                places.entry(address.clone()).or_default().is_ordered = false
            }
            CloudChange::Attached { address, vm } => {
                let place = Place { holder: Some(vm.clone()), is_ordered: false };
                places.insert(address.clone(), place);
            }
            CloudChange::Detached { address, .. } => places.entry(address.clone()).or_default().holder = None,
            _ => {}
        }
    }
    places
}

fn phase(entry: &Move, places: &BTreeMap<String, Place>) -> Phase {
    let Some(address) = entry.address.as_ref().filter(|_| entry.kind.as_deref() != Some("Create")) else {
        return Phase::Creating;
    };
    let place = places.get(address).cloned().unwrap_or_default();
    let is_target = |holder: &String| {
        entry.to.as_ref().is_some_and(|to| holder.rsplit('/').next() == to.vm.rsplit('/').next())
    };
    match &place.holder {
        Some(holder) if is_target(holder) => Phase::Arrived,
        _ if place.is_ordered => Phase::Ordered,
        Some(_) => Phase::Begun,
        None => Phase::Detached,
    }
}

/// How many entries are in each phase.
fn phases(entries: &[Move], places: &BTreeMap<String, Place>) -> BTreeMap<Phase, usize> {
    let mut phases = BTreeMap::new();
    entries.iter().for_each(|entry| *phases.entry(phase(entry, places)).or_default() += 1);
    phases
}

/// Whether enough work is in flight for a switch at this moment to count.
fn is_counted(phases: &BTreeMap<Phase, usize>) -> bool {
    phases.len() >= PHASES_MIN && phases.values().sum::<usize>() >= OPEN_MIN
}

/// The work that the controllers get before one switch.
struct Wave {
    /// How many changes the ledgers had before the wave.
    began: [usize; 2],
    /// The addresses that have to move.
    moving: BTreeSet<String>,
    /// The nodes that the wave deletes. The test creates them again when the wave is over.
    lost: Vec<String>,
    cordoned: Vec<String>,
    clusters: Vec<String>,
}

/// The result of a switch. All lists are empty if nothing went wrong.
struct Verdict {
    moves: usize,
    lost: Vec<String>,
    leaked: Vec<String>,
    moved_twice: Vec<String>,
    moved_without_need: Vec<String>,
    on_two_machines: Vec<String>,
    emptied_names: Vec<String>,
    wrong_vips: Vec<String>,
}

impl Verdict {
    fn faults(&self) -> [(&'static str, &Vec<String>); 7] {
        [
            ("lost", &self.lost),
            ("leaked", &self.leaked),
            ("moved twice", &self.moved_twice),
            ("moved without need", &self.moved_without_need),
            ("on two machines", &self.on_two_machines),
            ("emptied names", &self.emptied_names),
            ("wrong VIPs", &self.wrong_vips),
        ]
    }
}

/// The leading controller. On a busy machine a leader may lose its lease and exit. Then the test restarts it, as a
/// Deployment would.
struct Leader {
    release: Release,
    name: String,
    controller: Controller,
    restarts: usize,
}

/// 200 addresses with their control plane, clouds, nodes and objects.
struct Fleet {
    rig: Rig,
    /// The provider and the managers of Cluster API stop when they are dropped.
    _provider: Provider,
    _cluster_api: ClusterApi,
    /// Addresses that existed from the beginning and that no object lists.
    foreign: BTreeSet<String>,
}

fn pool_name(pool: u64) -> String {
    format!("pool-{pool}")
}

fn creator_name(creator: u64) -> String {
    format!("creator-{creator}")
}

fn allocation_name(allocation: u64) -> String {
    format!("allocation-{allocation}")
}

fn droplet(pool: u64, number: u64) -> u64 {
    10_000 + pool * 100 + number
}

fn record_name(pool: u64) -> String {
    format!("{}.{ZONE}", pool_name(pool))
}

fn batch(is_second: bool) -> &'static str {
    if is_second { "b" } else { "a" }
}

/// The fixture of a node. Its name contains its pool or allocation, and its number there.
fn fixture(name: &str) -> testbed::cluster::NodeFixture {
    let parts: Vec<&str> = name.rsplitn(2, '-').collect();
    let (number, group) = (parts[0].parse::<u64>().unwrap(), parts[1]);
    let (kind, index) = group.split_once('-').unwrap();
    let index: u64 = index.parse().unwrap();
    let fixture = node(name).label("group", group);
    match kind {
        "pool" => fixture
            .provider_id(&format!("digitalocean://{}", droplet(index, number)))
            .label("batch", batch(number >= ADDRESSES_OF_POOL))
            .label("topology.kubernetes.io/region", "nyc3"),
        _ => fixture
            .provider_id(&format!("gce://{PROJECT}/{ZONE_OF_MACHINES}/{name}"))
            .address("ExternalIP", &format!("192.0.2.{}", index * 40 + number + 1))
            .label("topology.kubernetes.io/region", "us-west1")
            .label("topology.kubernetes.io/zone", ZONE_OF_MACHINES),
    }
}

impl Fleet {
    async fn start() -> Self {
        let options =
            Options { controller_manager: true, node_lifecycle: false, scheduler: false, kwok: false };
        let mut rig = Rig::with(options).await;
        rig.kubectl(&["create", "namespace", "capi-system"]);
        rig.kubectl(&["create", "serviceaccount", ACCOUNT, "-n", "kube-system"]);
        rig.kubeconfig = rig.control_plane.kubeconfig_for("kube-system", ACCOUNT).unwrap();
        for (kind, role) in [
            ("clusterrolebinding", "--clusterrole=ip-address-controller"),
            ("clusterrolebinding", "--clusterrole=capi-vip-allocator-controller-manager"),
            ("rolebinding", "--role=ip-address-controller"),
        ] {
            let name = format!("{ACCOUNT}-{}", role.rsplit('=').next().unwrap());
            let account = format!("--serviceaccount=kube-system:{ACCOUNT}");
            rig.kubectl(&["create", kind, &name, role, &account, "-n", "kube-system"]);
        }
        let cluster_api = ClusterApi::start(&rig.control_plane).await.unwrap();
        let provider = Provider::start(rig.client.clone());
        cluster_api.install_class(&rig.client, Version::V1Beta2, "default").await.unwrap();
        let vips =
            crate::capi::for_class(fixtures::global_pool("vips", &["10.0.1.10-10.0.3.250"]), "control-plane");
        rig.control_plane.apply(&vips.to_string()).unwrap();
        let foreign = rig.clouds.digitalocean.with(|account| account.reserved_ips()).into_iter().collect();
        let fleet = Self { rig, _provider: provider, _cluster_api: cluster_api, foreign };
        fleet.build_clouds();
        let names = fleet.node_names();
        fleet.create_nodes(&names).await;
        fleet.install(Release::Baseline);
        fleet.create_objects();
        fleet
    }

    fn node_names(&self) -> Vec<String> {
        let pools = (0..POOLS).flat_map(|pool| {
            (0..2 * ADDRESSES_OF_POOL).map(move |number| format!("{}-{number}", pool_name(pool)))
        });
        let allocations = (0..ALLOCATIONS).flat_map(|allocation| {
            (0..2 * ADDRESSES_OF_ALLOCATION)
                .map(move |number| format!("{}-{number}", allocation_name(allocation)))
        });
        pools.chain(allocations).collect()
    }

    fn pool_addresses(pool: u64) -> Vec<String> {
        (1..=ADDRESSES_OF_POOL).map(|number| format!("198.18.{pool}.{number}")).collect()
    }

    fn allocation_addresses(allocation: u64) -> Vec<String> {
        (1..=ADDRESSES_OF_ALLOCATION).map(|number| format!("198.19.{allocation}.{number}")).collect()
    }

    /// Creates VMs for all nodes, and addresses on the first half of each group. The clouds' rate limits are off,
    /// because they are not under test.
    fn build_clouds(&self) {
        let clouds = &self.rig.clouds;
        clouds.digitalocean.enforce_limits(false);
        clouds.compute.enforce_limits(false);
        clouds.cloudflare.enforce_limits(false);
        clouds.digitalocean.with(|account| {
            // Different times, so that moves which begin together are in different phases.
            (account.action_time, account.action_times) = (Duration::from_secs(2), 3);
            for pool in 0..POOLS {
                for number in 0..2 * ADDRESSES_OF_POOL {
                    let name = format!("{}-{number}", pool_name(pool));
                    account.add_droplet(droplet(pool, number), name, "nyc3");
                }
                for (number, address) in (0..).zip(Self::pool_addresses(pool)) {
                    account.add_reserved_ip(&address, "nyc3");
                    account.assign_now(&address, droplet(pool, number));
                }
            }
        });
        clouds.compute.with(|compute| {
            (compute.operation_time, compute.operation_times) = (Duration::from_millis(1_500), 3);
            for allocation in 0..ALLOCATIONS {
                let group = allocation_name(allocation);
                for number in 0..2 * ADDRESSES_OF_ALLOCATION {
                    let name = format!("{group}-{number}");
                    // These VMs have an ephemeral address, which the controller must restore after a detach.
                    match number >= ADDRESSES_OF_ALLOCATION && allocation == 0 {
                        true => compute.add_instance(ZONE_OF_MACHINES, &name),
                        false => compute.add_instance_without_address(ZONE_OF_MACHINES, &name),
                    }
                }
                for (number, address) in Self::allocation_addresses(allocation).iter().enumerate() {
                    compute.add_address("us-west1", &format!("{group}-address-{number}"), address);
                    compute.attach_now(address, ZONE_OF_MACHINES, &format!("{group}-{number}"));
                }
            }
        });
    }

    async fn create_nodes(&self, names: &[String]) {
        let nodes: Api<Node> = Api::all(self.rig.client.clone());
        let create = async |name: &String| {
            fixture(name).create(&self.rig.client).await.unwrap();
            let ready =
                json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let status = json!({"status": {"conditions": [ready]}});
            nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
            let spec = json!({"spec": {"taints": null}});
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
        };
        futures::stream::iter(names).map(create).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    }

    /// Installs the CRDs and the RBAC manifests of a release.
    fn install(&self, release: Release) {
        release.manifests().iter().for_each(|manifest| self.rig.control_plane.apply(manifest).unwrap());
        self.rig.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    }

    fn create_objects(&self) {
        let mut objects = Vec::new();
        let mut add = |api_version: &str, kind: &str, name: String, spec: Value| {
            let namespace = (kind != "NetIPAllocation").then_some("default");
            let metadata = json!({"name": name, "namespace": namespace});
            objects
                .push(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}));
        };
        let flipop = "flipop.digitalocean.com/v1alpha1";
        for pool in 0..POOLS {
            let spec = json!({
                "provider": "digitalocean", "region": "nyc3", "ips": Self::pool_addresses(pool),
                "match": {"nodeLabel": node_label(pool, false)},
                "dnsRecordSet": {"provider": "cloudflare", "zone": ZONE, "recordName": pool_name(pool)},
            });
            add(flipop, "FloatingIPPool", pool_name(pool), spec);
        }
        for creator in 0..CREATORS {
            let spec = json!({
                "provider": "digitalocean", "region": "nyc3", "desiredIPs": CREATED_AT_FIRST,
                "match": {"nodeLabel": "nobody=has-this"},
            });
            add(flipop, "FloatingIPPool", creator_name(creator), spec);
        }
        for allocation in 0..ALLOCATIONS {
            let spec = json!({
                "reservedIPs": Self::allocation_addresses(allocation), "cloud": {"provider": "gcp"},
                "nodeSelector": {"group": allocation_name(allocation)},
            });
            add("netinfra.darkbrains.com/v1alpha1", "NetIPAllocation", allocation_name(allocation), spec);
        }
        let spec = json!({
            "dnsRecordSet": {"provider": "cloudflare", "zone": ZONE, "recordName": "nodes"},
            "match": {"nodeLabel": "group=allocation-0"},
        });
        add(flipop, "NodeDNSRecordSet", "nodes".into(), spec);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.rig.control_plane.apply(&list.to_string()).unwrap();
    }

    fn controller(&self, release: Release, number: usize) -> Leader {
        let name = format!("ip-address-controller-{release}-{number}");
        let controller = self.rig.controller_of(&release.binary(), &name, &ENVIRONMENT);
        Leader { release, name, controller, restarts: 0 }
    }

    /// Whether a controller holds the Lease.
    async fn leads(&self, leader: &Leader) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.rig.client.clone(), "kube-system");
        let lease = leases.get("ip-address-controller-leader").await.unwrap();
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        holder.starts_with(&format!("{}_", leader.name))
    }

    fn ledgers(&self) -> [Ledger; 2] {
        [self.rig.clouds.digitalocean.ledger(), self.rig.clouds.compute.ledger()]
    }

    fn pools(&self) -> Api<FloatingIPPool> {
        Api::namespaced(self.rig.client.clone(), "default")
    }

    fn allocations(&self) -> Api<NetIPAllocation> {
        Api::all(self.rig.client.clone())
    }

    fn records(&self) -> Api<NodeDNSRecordSet> {
        Api::namespaced(self.rig.client.clone(), "default")
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let resource =
            ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
        Api::namespaced_with(self.rig.client.clone(), "default", &resource)
    }

    /// The open journal entries of all objects.
    async fn open_entries(&self) -> Vec<Move> {
        let list = ListParams::default();
        let (pools, allocations) = (self.pools(), self.allocations());
        let (pools, allocations) = tokio::join!(pools.list(&list), allocations.list(&list));
        let of_pools = pools.unwrap().items.into_iter().filter_map(|pool| pool.status?.moves);
        let of_allocations = allocations.unwrap().items.into_iter().filter_map(|found| found.status?.moves);
        of_pools.chain(of_allocations).flat_map(|moves: Moves| moves.entries).collect()
    }

    /// Writes all objects with open entries into the folder in `UPGRADE_OBJECTS`, if it is set.
    async fn keep_objects(&self) {
        let Some(folder) = std::env::var_os("UPGRADE_OBJECTS").map(PathBuf::from) else { return };
        let list = self.rig.kubectl(&["get", "netipallocations,floatingippools", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let is_open = |object: &&Value| !object["status"]["moves"].is_null();
        for object in list["items"].as_array().unwrap().iter().filter(is_open) {
            let mut object = object.clone();
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
            let name = object["metadata"]["name"].as_str().unwrap();
            let path = folder.join(format!("run-{name}.json"));
            std::fs::write(path, format!("{object:#}\n")).unwrap();
        }
    }

    /// The nodes that hold the addresses of a group.
    fn holders(&self, addresses: &[String], group: &str) -> Vec<String> {
        let places = places(&self.ledgers());
        let node = |address: &String| {
            let holder = places.get(address)?.holder.clone()?;
            let name = holder.rsplit('/').next()?.to_owned();
            Some(match name.parse::<u64>() {
                Ok(droplet) => format!("{group}-{}", droplet % 100),
                Err(_) => name,
            })
        };
        addresses.iter().filter_map(node).collect()
    }

    async fn cordon(&self, names: &[String], is_cordoned: bool) {
        let nodes: Api<Node> = Api::all(self.rig.client.clone());
        let spec = json!({"spec": {"unschedulable": is_cordoned.then_some(true), "taints": null}});
        let patch = async |name: &String| {
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap();
        };
        futures::stream::iter(names).map(patch).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    }

    async fn delete_nodes(&self, names: &[String]) {
        let nodes: Api<Node> = Api::all(self.rig.client.clone());
        let delete = async |name: &String| _ = nodes.delete(name, &DeleteParams::default()).await.unwrap();
        futures::stream::iter(names).map(delete).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    }

    /// Starts moves, creations, DNS changes and claims, and returns while they are in flight.
    async fn wave(&self, number: usize) -> Wave {
        let is_second = number % 2 == 1;
        let merge = PatchParams::default();
        let began = self.ledgers().map(|ledger| ledger.done.len());
        let (mut moving, mut lost, mut cordoned) = (BTreeSet::new(), Vec::new(), Vec::new());
        let few = |addresses: Vec<String>| -> Vec<String> {
            let first = number * NODES_LOST % addresses.len();
            addresses.into_iter().cycle().skip(first).take(NODES_LOST).collect()
        };
        for allocation in 0..ALLOCATIONS {
            let (addresses, group) = (Self::allocation_addresses(allocation), allocation_name(allocation));
            if allocation < ALLOCATIONS_THAT_MOVE {
                cordoned.extend(self.holders(&addresses, &group));
                moving.extend(addresses);
            } else {
                let addresses = few(addresses);
                lost.extend(self.holders(&addresses, &group));
                moving.extend(addresses);
            }
        }
        self.cordon(&cordoned, true).await;
        self.delete_nodes(&lost).await;
        let in_motion = |places: &BTreeMap<String, Place>, prefix: &str| {
            let is_in_motion = |place: &Place| place.is_ordered || place.holder.is_none();
            places.iter().filter(|(ip, place)| ip.starts_with(prefix) && is_in_motion(place)).count()
        };
        _ = at_some_moment("moves at Google Cloud are in flight", SOON, async || {
            Ok(in_motion(&places(&self.ledgers()), "198.19.") >= 2)
        })
        .await;

        for creator in 0..CREATORS {
            let desired = CREATED_AT_FIRST + (number as i64 + 1) * CREATED_IN_A_WAVE;
            let spec = json!({"spec": {"desiredIPs": desired}});
            self.pools().patch(&creator_name(creator), &merge, &Patch::Merge(spec)).await.unwrap();
        }
        let clusters: Vec<_> = (0..CLUSTERS).map(|cluster| format!("w{number}-{cluster}")).collect();
        for name in &clusters {
            let cluster = fixtures::cluster(Version::V1Beta2, "default", name);
            let cluster = serde_json::from_value(cluster).unwrap();
            self.clusters().create(&PostParams::default(), &cluster).await.unwrap();
        }
        let group = format!("group=allocation-{}", usize::from(!is_second));
        let spec = json!({"spec": {"match": {"nodeLabel": group}}});
        self.records().patch("nodes", &merge, &Patch::Merge(spec)).await.unwrap();
        let mut lost_here = Vec::new();
        for pool in 0..POOLS {
            let addresses = Self::pool_addresses(pool);
            if pool < POOLS_THAT_MOVE {
                let spec = json!({"spec": {"match": {"nodeLabel": node_label(pool, !is_second)}}});
                self.pools().patch(&pool_name(pool), &merge, &Patch::Merge(spec)).await.unwrap();
                moving.extend(addresses);
            } else {
                let addresses = few(addresses);
                lost_here.extend(self.holders(&addresses, &pool_name(pool)));
                moving.extend(addresses);
            }
        }
        self.delete_nodes(&lost_here).await;
        lost.extend(lost_here);
        // Wait for a different time in each wave, and then until the switch would count.
        tokio::time::sleep(Duration::from_millis(number as u64 * 157 % 500)).await;
        _ = at_some_moment("entries of several phases are open", SOON / 4, async || {
            let entries = self.open_entries().await;
            Ok(is_counted(&phases(&entries, &places(&self.ledgers()))))
        })
        .await;
        Wave { began, moving, lost, cordoned, clusters }
    }

    /// Waits until all objects are Ready, and all addresses are on the expected nodes.
    async fn settled(&self, wave: Option<(usize, &Wave)>, leader: &mut Leader) -> Duration {
        let mut unsettled = Vec::new();
        let settled = eventually("everything is settled", LONG, async || {
            if leader.controller.process.try_wait()?.is_some() {
                let restarts = leader.restarts + 1;
                let name = format!("ip-address-controller-{}-again-{restarts}", leader.release);
                let controller = self.rig.controller_of(&leader.release.binary(), &name, &ENVIRONMENT);
                *leader = Leader { release: leader.release, name, controller, restarts };
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            unsettled = self.unsettled(wave).await;
            Ok(unsettled.is_empty())
        });
        match settled.await {
            Ok(took) => took,
            Err(error) => panic!("{error}: {unsettled:#?}\n{}", self.rig.logs()),
        }
    }

    /// Objects that are not Ready or have open entries, and addresses, names and Clusters that are not as expected.
    async fn unsettled(&self, wave: Option<(usize, &Wave)>) -> Vec<String> {
        let mut unsettled = Vec::new();
        let list = ListParams::default();
        for pool in self.pools().list(&list).await.unwrap() {
            let status = pool.status.clone().unwrap_or_default();
            let is_creator = pool.name_any().starts_with("creator");
            let listed = pool.spec.ips.clone().unwrap_or_default().len();
            let is_complete = pool.spec.desired().is_none_or(|desired| desired == listed);
            let is_ready = is_creator || is_ready(&pool, status.observed_generation, &status.conditions);
            let attached = status.summary.clone().unwrap_or_default().attached;
            if status.moves.is_some() || !is_complete || !is_ready {
                let open = status.moves.map_or(0, |moves| moves.entries.len());
                unsettled.push(format!(
                    "{}: {open} open, {listed} listed, {attached} attached, {:?}",
                    pool.name_any(),
                    reasons(&status.conditions)
                ));
            }
        }
        for found in self.allocations().list(&list).await.unwrap() {
            let status = found.status.clone().unwrap_or_default();
            if status.moves.is_some() || !is_ready(&found, status.observed_generation, &status.conditions) {
                unsettled.push(format!("{}: {:?}", found.name_any(), reasons(&status.conditions)));
            }
        }
        for found in self.records().list(&list).await.unwrap() {
            let status = found.status.clone().unwrap_or_default();
            if !is_ready(&found, status.observed_generation, &status.conditions) {
                unsettled.push(format!("{}: {:?}", found.name_any(), reasons(&status.conditions)));
            }
        }
        let Some((number, wave)) = wave else { return unsettled };
        unsettled.extend(self.misplaced(number));
        for name in &wave.clusters {
            let cluster = self.clusters().get(name).await.unwrap();
            if cluster.data["spec"]["controlPlaneEndpoint"]["host"].is_null() {
                unsettled.push(format!("Cluster {name} has no endpoint"));
            }
        }
        unsettled
    }

    /// Addresses that are not on a node that still matches after the wave, and DNS names that do not have their
    /// addresses.
    fn misplaced(&self, number: usize) -> Vec<String> {
        let is_second = number % 2 == 1;
        let places = places(&self.ledgers());
        let holder = |address: &String| places.get(address).and_then(|place| place.holder.clone());
        let mut misplaced = Vec::new();
        for pool in 0..POOLS {
            for address in Self::pool_addresses(pool) {
                let droplet = holder(&address).and_then(|holder| holder.parse::<u64>().ok());
                let number = droplet.filter(|droplet| droplet / 100 == 100 + pool).map(|found| found % 100);
                let is_right = number.is_some_and(|number| {
                    pool >= POOLS_THAT_MOVE || (number >= ADDRESSES_OF_POOL) != is_second
                });
                if !is_right {
                    misplaced.push(format!("{address} is on {droplet:?}"));
                }
            }
            let values = self.rig.clouds.cloudflare.ledger().values_of(&record_name(pool));
            let values = values.last().map(|(_, values)| values.clone()).unwrap_or_default();
            if values != Self::pool_addresses(pool).into_iter().collect() {
                misplaced.push(format!("{} holds {} values", record_name(pool), values.len()));
            }
        }
        for allocation in 0..ALLOCATIONS {
            for address in Self::allocation_addresses(allocation) {
                let on = holder(&address).unwrap_or_default();
                if !on.contains(&format!("/{}-", allocation_name(allocation))) {
                    misplaced.push(format!("{address} is on {on:?}"));
                }
            }
        }
        let group = allocation_name(0);
        let held: BTreeSet<_> = places.values().filter_map(|place| place.holder.clone()).collect();
        for number in ADDRESSES_OF_ALLOCATION..2 * ADDRESSES_OF_ALLOCATION {
            let name = format!("{group}-{number}");
            let has_ours = held.iter().any(|vm| vm.ends_with(&format!("/{name}")));
            let has_ephemeral =
                self.rig.clouds.compute.with(|compute| compute.has_ephemeral(ZONE_OF_MACHINES, &name));
            if !has_ours && !has_ephemeral {
                misplaced.push(format!("{name} has lost its ephemeral address"));
            }
        }
        misplaced
    }

    /// Derives the verdict for a wave from the ledgers.
    async fn judge(&self, wave: &Wave) -> Verdict {
        let ledgers = self.ledgers();
        let mut arrivals: BTreeMap<String, usize> = BTreeMap::new();
        for (ledger, began) in ledgers.iter().zip(wave.began) {
            for done in &ledger.done[began..] {
                if let CloudChange::Attached { address, .. } = &done.change {
                    *arrivals.entry(address.clone()).or_default() += 1;
                }
            }
        }
        let with = |is_meant: &dyn Fn(&String, usize) -> bool| -> Vec<String> {
            let meant = arrivals.iter().filter(|(address, count)| is_meant(address, **count));
            meant.map(|(address, count)| format!("{address} ({count})")).collect()
        };
        let listed: BTreeSet<String> = {
            let pools = self.pools().list(&ListParams::default()).await.unwrap();
            pools.into_iter().flat_map(|pool| pool.spec.ips.unwrap_or_default()).collect()
        };
        let account: BTreeSet<String> =
            self.rig.clouds.digitalocean.with(|account| account.reserved_ips()).into_iter().collect();
        let names = (0..POOLS).map(record_name).chain([format!("nodes.{ZONE}")]);
        let cloudflare = self.rig.clouds.cloudflare.ledger();
        let is_emptied = |name: &String| {
            let states = cloudflare.values_of(name);
            states.iter().skip_while(|(_, values)| values.is_empty()).any(|(_, values)| values.is_empty())
        };
        Verdict {
            moves: arrivals.values().sum(),
            lost: listed.difference(&account).cloned().collect(),
            leaked: account.difference(&listed).filter(|ip| !self.foreign.contains(*ip)).cloned().collect(),
            moved_twice: with(&|_, count| count > 1),
            moved_without_need: with(&|address, _| !wave.moving.contains(address)),
            on_two_machines: ledgers.iter().flat_map(Ledger::double_holders).collect(),
            emptied_names: names.filter(is_emptied).collect(),
            wrong_vips: self.wrong_vips(wave).await,
        }
    }

    /// Clusters whose endpoint is not the address of their claim, and claims without a Cluster.
    async fn wrong_vips(&self, wave: &Wave) -> Vec<String> {
        let of = |kind: &str| -> Api<DynamicObject> {
            let kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", kind);
            Api::namespaced_with(self.rig.client.clone(), "default", &ApiResource::from_gvk(&kind))
        };
        let (claims, addresses) = (of("IPAddressClaim"), of("IPAddress"));
        let mut wrong = Vec::new();
        for name in &wave.clusters {
            let claim = format!("vip-cp-{name}");
            let cluster = self.clusters().get(name).await.unwrap();
            let address = addresses.get_opt(&claim).await.unwrap().map(|found| found.data);
            let claimed = address.as_ref().and_then(|data| data["spec"]["address"].as_str());
            if claimed.is_none() || cluster.data["spec"]["controlPlaneEndpoint"]["host"].as_str() != claimed {
                wrong.push(format!("{name}: {claimed:?}"));
            }
        }
        let expected: BTreeSet<_> = wave.clusters.iter().map(|name| format!("vip-cp-{name}")).collect();
        let found = claims.list(&ListParams::default()).await.unwrap();
        let is_live = |claim: &&DynamicObject| claim.metadata.deletion_timestamp.is_none();
        let found: BTreeSet<_> = found.iter().filter(is_live).map(ResourceExt::name_any).collect();
        wrong.extend(found.difference(&expected).cloned());
        wrong
    }

    /// Uncordons and recreates the nodes of the wave, and deletes its Clusters.
    async fn restore(&self, wave: Wave) {
        self.cordon(&wave.cordoned, false).await;
        self.create_nodes(&wave.lost).await;
        self.rig.kubectl(&["delete", "clusters", "--all", "--wait=false"]);
        eventually("no claims are left", LONG, async || {
            Ok(self.rig.kubectl(&["get", "ipaddressclaims", "-o", "name"]).is_empty())
        })
        .await
        .unwrap();
    }
}

/// The node selector of a pool. The first pools select only one batch of their nodes.
fn node_label(pool: u64, is_second: bool) -> String {
    let group = format!("group={}", pool_name(pool));
    match pool < POOLS_THAT_MOVE {
        true => format!("{group},batch={}", batch(is_second)),
        false => group,
    }
}

fn is_ready<K>(object: &K, observed: Option<i64>, conditions: &[Condition]) -> bool
where
    K: Resource + DeserializeOwned,
{
    let is_ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
    observed == object.meta().generation && conditions.iter().any(is_ready)
}

fn reasons(conditions: &[Condition]) -> Vec<String> {
    conditions.iter().map(|found| format!("{}={} {}", found.type_, found.status, found.reason)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_of_another_release_resumes_work_in_flight() {
    let wanted: usize = std::env::var("UPGRADES").map_or(1, |count| count.parse().unwrap());
    let fleet = Fleet::start().await;
    let mut release = Release::Baseline;
    let mut leader = fleet.controller(release, 0);
    println!("200 addresses settled after {:?}", fleet.settled(None, &mut leader).await);
    println!(
        "| switch | CRDs and rights | leader ended by | open entries | settled after | restarts | moves | lost | leaked | \
         moved twice | moved without need | on two machines | emptied names | wrong VIPs | forgotten | counted |\n\
         |---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    );
    let mut counted = [0, 0];
    let mut faults = Vec::new();
    let attempts_max = 6 * wanted + 10;
    for number in 0..attempts_max {
        if counted.iter().all(|count| *count >= wanted) {
            break;
        }
        let round = number / 2;
        // Four rounds cover both signals, with the CRDs of both releases, in both directions.
        let definitions = if round / 2 % 2 == 0 { release } else { release.other() };
        fleet.install(definitions);
        let is_clean = (number + round) % 2 == 0;
        let next = release.other();
        let standby = (!is_clean).then(|| fleet.controller(next, number + 1));
        if let Some(standby) = &standby {
            let url = format!("http://127.0.0.1:{}/readyz", standby.controller.health_port);
            let is_ready = async || Ok(reqwest::get(&url).await?.status().is_success());
            eventually("the successor is ready", SOON, is_ready).await.unwrap();
        }
        fleet.settled(None, &mut leader).await;
        let wave = fleet.wave(number).await;
        // On a busy machine the successor may already have taken over.
        let is_switch = fleet.leads(&leader).await;
        _ = leader.controller.process.signal(if is_clean { Signal::TERM } else { Signal::KILL });
        leader.controller.process.wait(SOON).unwrap();
        let entries = fleet.open_entries().await;
        let places = places(&fleet.ledgers());
        if release == Release::Baseline {
            fleet.keep_objects().await;
        }
        let switched = Instant::now();
        leader = standby.unwrap_or_else(|| fleet.controller(next, number + 1));
        fleet.settled(Some((number, &wave)), &mut leader).await;
        let took = switched.elapsed();

        let phases = phases(&entries, &places);
        let is_counted = is_switch && is_counted(&phases);
        counted[usize::from(release == Release::Current)] += usize::from(is_counted);
        let verdict = fleet.judge(&wave).await;
        let left: BTreeSet<_> = fleet.open_entries().await.into_iter().map(|entry| entry.id).collect();
        let forgotten = entries.iter().filter(|entry| left.contains(&entry.id)).count();
        let counts: Vec<_> = verdict.faults().iter().map(|(_, found)| found.len().to_string()).collect();
        println!(
            "| {release} → {next} | {definitions} | {} | {phases:?} | {:.1} s | {} | {} | {} | {forgotten} | {} |",
            if is_clean { "SIGTERM" } else { "SIGKILL" },
            took.as_secs_f64(),
            leader.restarts,
            verdict.moves,
            counts.join(" | "),
            if is_counted { "yes" } else { "no" }
        );
        for (what, found) in verdict.faults().into_iter().filter(|(_, found)| !found.is_empty()) {
            println!("{what}: {found:?}");
            faults.push(format!("{release} → {next}: {what}: {found:?}"));
        }
        assert_eq!(forgotten, 0, "the successor left a journal entry open");
        fleet.restore(wave).await;
        release = next;
    }
    println!("{counted:?} switches with work in flight, from 0.1.0 and from the current release");
    assert_eq!(faults, Vec::<String>::new(), "{}", fleet.rig.logs());
    assert!(counted.iter().all(|count| *count >= wanted), "too few switches had enough work in flight");
}
