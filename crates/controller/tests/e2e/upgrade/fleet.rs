//! 200 addresses with their control plane, clouds, nodes and objects, and the work that each wave gives to the
//! controllers.

mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use api::status::{Move, Moves};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testbed::cluster::{NodeFixture, at_some_moment, eventually, node};
use testbed::cluster_api::ClusterApi;
use testbed::cluster_api::fixtures::{self, Version};
use testbed::cluster_api::provider::Provider;
use testbed::control_plane::Options;
use testbed::demo::{PROJECT, ZONE};
use testbed::fake::ledger::Ledger;

use super::phases::{Place, is_counted, phases, places};
use super::release::Release;
use crate::capi::rig::for_class;
use crate::manifests;
use crate::rig::{Controller, Rig, SOON, UNLIMITED};

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

const ZONE_OF_MACHINES: &str = "us-west1-a";
const ACCOUNT: &str = "upgrade";
const CONCURRENCY: usize = 16;
const LONG: Duration = Duration::from_secs(240);

/// Settings of the controllers, besides [`UNLIMITED`].
const ENVIRONMENT: [(&str, &str); 5] = [
    ("LEASE_DURATION", "15"),
    ("TAKEOVER_SECONDS", "1"),
    ("DNS_OWNER_ID", "upgrade"),
    ("CLOUDFLARE_REQUESTS_PER_FIVE_MINUTES", "100000"),
    ("GOOGLE_REQUESTS_PER_MINUTE", "100000"),
];

/// The work that the controllers get before one switch.
pub struct Wave {
    /// How many changes the ledgers had before the wave.
    began: [usize; 2],
    /// The addresses that have to move.
    moving: BTreeSet<String>,
    /// The nodes that the wave deletes. The test creates them again when the wave is over.
    lost: Vec<String>,
    cordoned: Vec<String>,
    clusters: Vec<String>,
}

/// The leading controller. On a busy machine a leader may lose its lease and exit. Then the test restarts it, as a
/// Deployment would.
pub struct Leader {
    release: Release,
    name: String,
    pub controller: Controller,
    pub restarts: usize,
}

/// 200 addresses with their control plane, clouds, nodes and objects.
pub struct Fleet {
    pub rig: Rig,
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
fn fixture(name: &str) -> NodeFixture {
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
    pub async fn start() -> Self {
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
        let vips = for_class(fixtures::global_pool("vips", &["10.0.1.10-10.0.3.250"]), "control-plane");
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
    pub fn install(&self, release: Release) {
        release.manifests().iter().for_each(|manifest| self.rig.control_plane.apply(manifest).unwrap());
        self.rig.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    }

    fn create_objects(&self) {
        let pools = (0..POOLS).map(|pool| {
            let spec = json!({
                "provider": "digitalocean", "region": "nyc3", "ips": Self::pool_addresses(pool),
                "match": {"nodeLabel": node_label(pool, false)},
                "dnsRecordSet": {"provider": "cloudflare", "zone": ZONE, "recordName": pool_name(pool)},
            });
            manifests::pool(&pool_name(pool), spec)
        });
        let creators = (0..CREATORS).map(|creator| {
            let spec = json!({
                "provider": "digitalocean", "region": "nyc3", "desiredIPs": CREATED_AT_FIRST,
                "match": {"nodeLabel": "nobody=has-this"},
            });
            manifests::pool(&creator_name(creator), spec)
        });
        let allocations = (0..ALLOCATIONS).map(|allocation| {
            let spec = json!({
                "reservedIPs": Self::allocation_addresses(allocation), "cloud": {"provider": "gcp"},
                "nodeSelector": {"group": allocation_name(allocation)},
            });
            manifests::allocation(&allocation_name(allocation), spec)
        });
        let spec = json!({
            "dnsRecordSet": {"provider": "cloudflare", "zone": ZONE, "recordName": "nodes"},
            "match": {"nodeLabel": "group=allocation-0"},
        });
        let nodes = manifests::record_set("nodes", spec);
        let objects: Vec<_> = pools.chain(creators).chain(allocations).chain([nodes]).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.rig.control_plane.apply(&list.to_string()).unwrap();
    }

    pub fn controller(&self, release: Release, number: usize) -> Leader {
        self.leader(release, format!("ip-address-controller-{release}-{number}"), 0)
    }

    fn leader(&self, release: Release, name: String, restarts: usize) -> Leader {
        let environment = [ENVIRONMENT.as_slice(), &UNLIMITED].concat();
        let controller = self.rig.controller_of(&release.binary(), &name, &environment);
        Leader { release, name, controller, restarts }
    }

    /// Whether a controller holds the Lease.
    pub async fn leads(&self, leader: &Leader) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.rig.client.clone(), "kube-system");
        let lease = leases.get("ip-address-controller-leader").await.unwrap();
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        holder.starts_with(&format!("{}_", leader.name))
    }

    pub fn ledgers(&self) -> [Ledger; 2] {
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
    pub async fn open_entries(&self) -> Vec<Move> {
        let list = ListParams::default();
        let (pools, allocations) = (self.pools(), self.allocations());
        let (pools, allocations) = tokio::join!(pools.list(&list), allocations.list(&list));
        let of_pools = pools.unwrap().items.into_iter().filter_map(|pool| pool.status?.moves);
        let of_allocations = allocations.unwrap().items.into_iter().filter_map(|found| found.status?.moves);
        of_pools.chain(of_allocations).flat_map(|moves: Moves| moves.entries).collect()
    }

    /// Writes all objects with open entries into the folder in `UPGRADE_OBJECTS`, if it is set.
    pub async fn keep_objects(&self) {
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
    pub async fn wave(&self, number: usize) -> Wave {
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

    /// Uncordons and recreates the nodes of the wave, and deletes its Clusters.
    pub async fn restore(&self, wave: Wave) {
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
