//! Measures the controller in the largest cluster that it has to carry: `just bench scale`.
//!
//! No kubelet runs: the test writes the status of the nodes and pods once, as Ready. The first run creates them with
//! the
//! API, which takes minutes, and keeps a copy of etcd in the cache. Later runs restore the copy. `SCALE_PERCENT` makes
//! the cluster smaller.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::FloatingIPPool;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::control_plane::{ControlPlane, Options};
use testbed::demo::Clouds;
use testbed::process::Process;

use crate::rig::{read, resident_megabytes};

/// How long all objects may take to settle.
const LONG: Duration = Duration::from_secs(1_200);

/// How many requests create the cluster at the same time.
const AT_ONCE: usize = 48;

const PODS_OF_A_NODE: usize = 10;
const NODES_OF_A_POOL: usize = 15;
const ADDRESSES_OF_A_POOL: usize = 10;
const POOLS_OF_A_NAMESPACE: usize = 10;

/// The number of pools. Everything else follows from it.
#[derive(Clone, Copy, Hash)]
struct Size {
    pools: usize,
}

impl Size {
    fn from_environment() -> Self {
        let percent = std::env::var("SCALE_PERCENT").map_or(100, |text| text.parse().unwrap());
        Self { pools: 10 * percent }
    }

    fn nodes(self) -> usize {
        self.pools * NODES_OF_A_POOL
    }

    fn pods(self) -> usize {
        self.nodes() * PODS_OF_A_NODE
    }

    fn namespaces(self) -> usize {
        self.pools.div_ceil(POOLS_OF_A_NAMESPACE)
    }

    fn addresses(self) -> usize {
        self.pools * ADDRESSES_OF_A_POOL
    }

    /// What one replica may use when all objects have settled.
    fn megabytes_max(self) -> f64 {
        40.0 + (2_048 * self.nodes() + 512 * self.pods() + 2_048 * self.addresses()) as f64 / 1e6
    }
}

fn namespace(pool: usize) -> String {
    format!("team-{}", pool / POOLS_OF_A_NAMESPACE)
}

fn ip(number: usize) -> String {
    format!("198.{}.{}.{}", 18 + number / 65_536, number / 256 % 256, number % 256)
}

/// A node as the kubelet and the cloud provider describe it.
fn node(number: usize) -> Value {
    let name = format!("node-{number:05}");
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "Kubelet", "message": "as reported by the kubelet",
            "lastHeartbeatTime": "2026-01-10T02:14:07Z", "lastTransitionTime": "2026-01-10T02:14:07Z",
        })
    };
    let conditions = [
        condition("MemoryPressure", "False"),
        condition("DiskPressure", "False"),
        condition("PIDPressure", "False"),
        condition("Ready", "True"),
    ];
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": "s-4vcpu-8gb", "doks.digitalocean.com/node-pool": "work",
                "doks.digitalocean.com/node-id": format!("5f1c1d5e-0000-4000-8000-{number:012}"),
                "topology.kubernetes.io/region": "nyc3", "region": "nyc3", "role": "edge",
            },
        },
        "spec": {"providerID": format!("digitalocean://{}", 10_000 + number)},
        "status": {
            "conditions": conditions,
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256)},
            ],
        },
    })
}

/// A pod of a pool as a ReplicaSet creates it, and its status.
fn pod(number: usize) -> (Value, Value) {
    let pool = number / (PODS_OF_A_NODE * NODES_OF_A_POOL);
    let app = format!("app-{pool}");
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-7d4b9c"), "controller": true,
        "uid": format!("8f1c1d5e-0000-4000-8000-{pool:012}"),
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{app}-7d4b9c-{number:06}"), "namespace": namespace(pool), "ownerReferences": [owner],
            "labels": {"app": app, "pod-template-hash": "7d4b9c", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-10T02:14:07Z"},
        },
        "spec": {
            "nodeName": format!("node-{:05}", number / PODS_OF_A_NODE),
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.example.com/main:1.0.0"}],
        },
    });
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-10T02:14:07Z"});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    (pod, json!({"status": {"phase": "Running", "conditions": conditions, "podIP": "10.200.0.1"}}))
}

fn pool(number: usize) -> FloatingIPPool {
    let first = number * ADDRESSES_OF_A_POOL;
    let ips: Vec<_> = (first..first + ADDRESSES_OF_A_POOL).map(ip).collect();
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "ips": ips,
        "match": {"nodeLabel": "role=edge", "podNamespace": namespace(number), "podLabel": format!("app=app-{number}")},
    });
    let mut pool = FloatingIPPool::new(&format!("pool-{number}"), serde_json::from_value(spec).unwrap());
    pool.metadata.namespace = Some(namespace(number));
    pool
}

/// Creates objects with many requests at the same time.
async fn create_all<F: Future<Output = kube::Result<()>>>(count: usize, create: impl Fn(usize) -> F) {
    let requests = futures::stream::iter((0..count).map(create)).buffer_unordered(AT_ONCE);
    requests.try_collect::<Vec<()>>().await.unwrap();
}

/// Creates the cluster with the API.
async fn create(client: &Client, size: Size) {
    let made = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create_all(size.namespaces(), async |number| {
        let name = namespace(number * POOLS_OF_A_NAMESPACE);
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&made, &object).await?;
        // Without the controller-manager nobody else creates it, and the apiserver rejects pods without it.
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        Api::namespaced(client.clone(), &name).create(&made, &account).await.map(drop)
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    create_all(size.nodes(), async |number| {
        nodes.create(&made, &serde_json::from_value(node(number)).unwrap()).await.map(drop)
    })
    .await;
    create_all(size.pods(), async |number| {
        let (object, status) = pod(number);
        let object: Pod = serde_json::from_value(object).unwrap();
        let metadata = &object.metadata;
        let (namespace, name) = (metadata.namespace.clone().unwrap(), metadata.name.clone().unwrap());
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        pods.create(&made, &object).await?;
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
    })
    .await;
    create_all(size.pools, async |number| {
        let pool = pool(number);
        let namespace = pool.metadata.namespace.clone().unwrap();
        Api::namespaced(client.clone(), &namespace).create(&made, &pool).await.map(drop)
    })
    .await;
}

/// The folder for the copy of a cluster. Its name depends on everything that the copy depends on.
fn cached(size: Size) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (include_str!("largest.rs"), size).hash(&mut hasher);
    for (name, crd) in api::crds::all() {
        (name, serde_json::to_string(&crd).unwrap()).hash(&mut hasher);
    }
    read("k8s/rbac.yaml").hash(&mut hasher);
    let home = std::env::var("HOME").unwrap();
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| format!("{home}/.cache"));
    PathBuf::from(format!("{cache}/ip-address-controller/clusters/{:016x}", hasher.finish()))
}

/// A control plane with the cluster, and how long it took to get it.
async fn cluster(size: Size) -> (ControlPlane, Duration) {
    let started = Instant::now();
    let mut control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    let copy = cached(size);
    if copy.is_dir() {
        control_plane.restore_etcd(&copy).await.unwrap();
    } else {
        control_plane.install_crds().await.unwrap();
        control_plane.apply(&read("k8s/rbac.yaml")).unwrap();
        control_plane.install_released_lease().unwrap();
        create(&control_plane.client().await.unwrap(), size).await;
        control_plane.back_up_etcd_to(&copy).await.unwrap();
    }
    (control_plane, started.elapsed())
}

/// The highest resident memory of a process in MB since its start or since the last call.
fn peak_megabytes(process: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    std::fs::write(format!("/proc/{}/clear_refs", process.id()), "5").unwrap();
    kilobytes * 1024.0 / 1e6
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench scale"]
async fn memory_in_the_largest_cluster() {
    let size = Size::from_environment();
    let (control_plane, created_in) = cluster(size).await;
    let clouds = Clouds::default();
    clouds.digitalocean.enforce_limits(false);
    clouds.digitalocean.with(|account| {
        for number in 0..size.nodes() {
            account.add_droplet(10_000 + number as u64, format!("node-{number:05}"), "nyc3");
        }
        for number in 0..size.addresses() {
            let (pool, position) = (number / ADDRESSES_OF_A_POOL, number % ADDRESSES_OF_A_POOL);
            let holder = 10_000 + pool * NODES_OF_A_POOL + position;
            account.add_reserved_ip(ip(number), "nyc3");
            account.assign_now(&ip(number), holder as u64);
        }
    });
    let servers = clouds.serve(0).await.unwrap();
    let kubeconfig = control_plane.kubeconfig_for("kube-system", "ip-address-controller").unwrap();
    let controller = start(&control_plane, &kubeconfig, &servers.environment());
    let started = Instant::now();
    let client = control_plane.client().await.unwrap();
    let pools: Api<FloatingIPPool> = Api::all(client);
    let settled = eventually("all pools are Ready", LONG, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let all = pools.list(&ListParams::default()).await?;
        let is_ready = |pool: &&FloatingIPPool| {
            let conditions = pool.status.iter().flat_map(|status| &status.conditions);
            conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True").count()
                == 1
        };
        Ok(all.items.iter().filter(is_ready).count() == size.pools)
    });
    let log = || std::fs::read_to_string(controller.log()).unwrap_or_default();
    settled
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", log().lines().rev().take(40).collect::<String>()));
    let settled_in = started.elapsed();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (settled, peak_of_start) = (resident_megabytes(&controller), peak_megabytes(&controller));
    // So long that the watches can't resume, and all kinds are listed again.
    control_plane.pause_apiserver(true).unwrap();
    tokio::time::sleep(Duration::from_secs(45)).await;
    control_plane.pause_apiserver(false).unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    let (listed_again, peak_of_relist) = (resident_megabytes(&controller), peak_megabytes(&controller));
    println!(
        "{}",
        json!({
            "nodes": size.nodes(), "pods": size.pods(), "pools": size.pools, "addresses": size.addresses(),
            "cluster_seconds": created_in.as_secs(), "settled_seconds": settled_in.as_secs(),
            "settled_megabytes": settled, "settled_megabytes_max": size.megabytes_max(),
            "peak_megabytes_of_start": peak_of_start, "after_relist_megabytes": listed_again,
            "peak_megabytes_of_relist": peak_of_relist,
        })
    );
    assert!(settled <= size.megabytes_max(), "{settled} MB");
    assert!(
        peak_of_start.max(peak_of_relist) * 1e6 < 256.0 * 1_048_576.0,
        "{peak_of_start} {peak_of_relist}"
    );
}

fn start(control_plane: &ControlPlane, kubeconfig: &std::path::Path, clouds: &[(&str, String)]) -> Process {
    let program = std::env::var_os("CONTROLLER_BINARY").unwrap();
    let ports = testbed::control_plane::free_ports(2).unwrap();
    let configure = |command: &mut std::process::Command| {
        command.arg("--kubeconfig").arg(kubeconfig).envs(clouds.iter().map(|(name, value)| (name, value)));
        command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
        command.env("POD_NAME", "ip-address-controller");
        command.env("DIGITALOCEAN_REQUESTS_PER_MINUTE", "100000");
        command.env("DIGITALOCEAN_REQUESTS_PER_HOUR", "1000000");
    };
    Process::start("ip-address-controller", program.as_ref(), configure, control_plane.folder()).unwrap()
}
