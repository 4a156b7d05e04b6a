//! The largest cluster that the controller has to carry.
//!
//! No kubelet runs: the nodes and pods get their status once, as Ready. The first run creates them with the API, which
//! takes minutes, and keeps a copy of etcd in the cache. Later runs restore the copy, until this file changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::FloatingIPPool;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};

use crate::rig::read;

/// How many requests create the cluster at the same time.
const AT_ONCE: usize = 48;

/// Maximum number of tries for each request.
const TRIES: usize = 5;

const PODS_OF_A_NODE: usize = 10;
pub const NODES_OF_A_POOL: usize = 15;
pub const ADDRESSES_OF_A_POOL: usize = 10;
const POOLS_OF_A_NAMESPACE: usize = 10;

/// The number of pools. Everything else follows from it.
#[derive(Clone, Copy, Hash)]
pub struct Size {
    pub pools: usize,
}

impl Size {
    pub fn of_percent(percent: usize) -> Self {
        Self { pools: 10 * percent }
    }

    pub fn nodes(self) -> usize {
        self.pools * NODES_OF_A_POOL
    }

    pub fn pods(self) -> usize {
        self.nodes() * PODS_OF_A_NODE
    }

    pub fn namespaces(self) -> usize {
        self.pools.div_ceil(POOLS_OF_A_NAMESPACE)
    }

    pub fn addresses(self) -> usize {
        self.pools * ADDRESSES_OF_A_POOL
    }
}

pub fn namespace(pool: usize) -> String {
    format!("team-{}", pool / POOLS_OF_A_NAMESPACE)
}

pub fn ip(number: usize) -> String {
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
pub fn pod(number: usize) -> (Value, Value) {
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

/// Creates objects with many requests at the same time. Retries failed requests, because one timeout would otherwise discard
/// many minutes of work.
pub async fn create_all<F: Future<Output = kube::Result<()>>>(count: usize, create: impl Fn(usize) -> F) {
    let create = &create;
    let repeated = |number| async move {
        for _ in 1..TRIES {
            if create(number).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        create(number).await
    };
    let requests = futures::stream::iter((0..count).map(repeated)).buffer_unordered(AT_ONCE);
    requests.try_collect::<Vec<()>>().await.unwrap();
}

/// The result of a creation. If a request is repeated, the object may exist already.
fn created<K>(result: kube::Result<K>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

/// Creates the cluster with the API.
async fn create(client: &Client, size: Size) {
    let made = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    create_all(size.namespaces(), async |number| {
        let name = namespace(number * POOLS_OF_A_NAMESPACE);
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        created(namespaces.create(&made, &object).await)?;
        // Without the controller-manager nobody else creates it, and the apiserver rejects pods without it.
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        created(Api::namespaced(client.clone(), &name).create(&made, &account).await)
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    create_all(size.nodes(), async |number| {
        created(nodes.create(&made, &serde_json::from_value(node(number)).unwrap()).await)
    })
    .await;
    create_all(size.pods(), async |number| {
        let (object, status) = pod(number);
        let object: Pod = serde_json::from_value(object).unwrap();
        let metadata = &object.metadata;
        let (namespace, name) = (metadata.namespace.clone().unwrap(), metadata.name.clone().unwrap());
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        created(pods.create(&made, &object).await)?;
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
    })
    .await;
    create_all(size.pools, async |number| {
        let pool = pool(number);
        let namespace = pool.metadata.namespace.clone().unwrap();
        created(Api::namespaced(client.clone(), &namespace).create(&made, &pool).await)
    })
    .await;
}

/// The folder for cluster copies, and the name of the copy for this size. The name contains a hash of everything that the
/// copy is built from.
fn cached(size: Size) -> (PathBuf, String) {
    let mut hasher = DefaultHasher::new();
    (include_str!("cluster.rs"), size).hash(&mut hasher);
    for (name, crd) in api::crds::all() {
        (name, serde_json::to_string(&crd).unwrap()).hash(&mut hasher);
    }
    read("k8s/rbac.yaml").hash(&mut hasher);
    let home = std::env::var("HOME").unwrap();
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| format!("{home}/.cache"));
    let folder = PathBuf::from(format!("{cache}/ip-address-controller/clusters"));
    (folder, format!("{}-pools-{:016x}", size.pools, hasher.finish()))
}

/// A control plane with the cluster, and how long it took to get it.
pub async fn cluster(size: Size) -> (ControlPlane, Duration) {
    let started = Instant::now();
    let mut control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    let (folder, name) = cached(size);
    let copy = folder.join(name);
    if copy.is_dir() {
        control_plane.restore_etcd(&copy).await.unwrap();
    } else {
        control_plane.install_crds().await.unwrap();
        control_plane.apply(&read("k8s/rbac.yaml")).unwrap();
        control_plane.install_released_lease("kube-system", "ip-address-controller-leader").unwrap();
        create(&control_plane.client().await.unwrap(), size).await;
        // A copy takes up to a gigabyte, so outdated ones are removed.
        let of_size = format!("{}-pools-", size.pools);
        for outdated in folder.read_dir().into_iter().flatten().flatten() {
            if outdated.file_name().to_string_lossy().starts_with(&of_size) {
                std::fs::remove_dir_all(outdated.path()).unwrap();
            }
        }
        control_plane.back_up_etcd_to(&copy).await.unwrap();
    }
    (control_plane, started.elapsed())
}
