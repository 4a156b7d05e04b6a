//! Measures the controller in the largest cluster that it has to carry: `just bench scale`, `annotations` and `soak`.
//!
//! `SCALE_PERCENT` makes the cluster smaller, and `SOAK_MINUTES` the soak shorter.

mod cluster;

use std::time::{Duration, Instant};

use api::{FloatingIPPool, NetIPAllocation};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;
use testbed::cluster::eventually;
use testbed::control_plane::ControlPlane;
use testbed::demo::{Clouds, Servers};
use testbed::process::Process;

use self::cluster::{ADDRESSES_OF_A_POOL, NODES_OF_A_POOL, Size, cluster, create_all, ip, namespace, pod};
use crate::rig::resident_megabytes;

/// How long all objects may take to settle.
const LONG: Duration = Duration::from_secs(1_200);

/// What one replica may use when all objects have settled.
fn megabytes_max(size: Size) -> f64 {
    40.0 + (2_048 * size.nodes() + 512 * size.pods() + 2_048 * size.addresses()) as f64 / 1e6
}

/// The highest resident memory of a process in MB since its start or since the last call.
fn peak_megabytes(process: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    std::fs::write(format!("/proc/{}/clear_refs", process.id()), "5").unwrap();
    kilobytes * 1024.0 / 1e6
}

/// How many files and sockets a process has open.
fn open_files(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

/// A number from the environment.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// The controller under measurement, with its cluster and its cloud.
struct Measured {
    size: Size,
    control_plane: ControlPlane,
    client: Client,
    controller: Process,
    metrics_port: u16,
    clouds: (Clouds, Servers),
    created_in: Duration,
}

impl Measured {
    /// Starts the controller in a cluster of this size.
    async fn start(size: Size) -> Self {
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
        let served = clouds.serve(0).await.unwrap();
        let client = control_plane.client().await.unwrap();
        let (controller, metrics_port) = start(&control_plane, &served.environment());
        Self { size, control_plane, client, controller, metrics_port, clouds: (clouds, served), created_in }
    }

    /// Starts the controller again.
    async fn restart(&mut self) {
        self.controller.signal(Signal::KILL).unwrap();
        self.controller.wait(Duration::from_secs(10)).unwrap();
        self.control_plane.install_released_lease("kube-system", "ip-address-controller-leader").unwrap();
        (self.controller, self.metrics_port) = start(&self.control_plane, &self.clouds.1.environment());
        self.until_ready().await;
    }

    /// Waits until all pools are Ready, and returns how long that took.
    async fn until_ready(&self) -> Duration {
        let pools: Api<FloatingIPPool> = Api::all(self.client.clone());
        let settled = eventually("all pools are Ready", LONG, async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let all = pools.list(&ListParams::default()).await?;
            let is_ready = |pool: &&FloatingIPPool| {
                let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
                conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            };
            Ok(all.items.iter().filter(is_ready).count() == self.size.pools)
        });
        let log = || std::fs::read_to_string(self.controller.log()).unwrap_or_default();
        settled
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", log().lines().rev().take(40).collect::<String>()))
    }

    /// The histogram of this name for the loop of addresses: each upper bound with the number of values up to it.
    async fn histogram(&self, name: &str) -> Vec<(f64, f64)> {
        let url = format!("http://127.0.0.1:{}/metrics", self.metrics_port);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let of_bucket = |line: &str| {
            let rest = line.strip_prefix(name)?.strip_prefix(r#"_bucket{loop="addresses",le=""#)?;
            let (bound, count) = rest.split_once(r#""} "#)?;
            Some((bound.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
        };
        text.lines().filter_map(of_bucket).collect()
    }

    /// Makes changes one after the other, and returns how many of them were measured and the upper bound of the time
    /// from event to plan for 99 of 100 of them.
    async fn latency<F: Future<Output = kube::Result<()>>>(&self, change: impl Fn(usize) -> F) -> Latency {
        let name = "ip_address_controller_event_to_plan_seconds";
        let before = self.histogram(name).await;
        for number in 0..CHANGES {
            change(number).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Latency::between(&before, &self.histogram(name).await)
    }
}

/// How many values a histogram got, and an upper bound for 99 of 100 of them.
#[derive(Clone, Copy, Debug)]
struct Latency {
    count: f64,
    p99_seconds_max: f64,
}

impl Latency {
    fn between(before: &[(f64, f64)], after: &[(f64, f64)]) -> Self {
        let known =
            |bound: f64| before.iter().find(|(other, _)| *other == bound).map_or(0.0, |(_, count)| *count);
        let new: Vec<_> = after.iter().map(|(bound, count)| (*bound, count - known(*bound))).collect();
        let count = new.last().map_or(0.0, |(_, count)| *count);
        let p99 = new.iter().find(|(_, below)| *below >= 0.99 * count).map_or(f64::NAN, |(bound, _)| *bound);
        Self { count, p99_seconds_max: p99 }
    }
}

/// How many changes of each kind are measured.
const CHANGES: usize = 1_000;

fn start(control_plane: &ControlPlane, clouds: &[(&str, String)]) -> (Process, u16) {
    let program = std::env::var_os("CONTROLLER_BINARY").unwrap();
    let kubeconfig = control_plane.kubeconfig_for("kube-system", "ip-address-controller").unwrap();
    let ports = testbed::control_plane::free_ports(2).unwrap();
    let configure = |command: &mut std::process::Command| {
        command.arg("--kubeconfig").arg(kubeconfig).envs(clouds.iter().map(|(name, value)| (name, value)));
        command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
        command.env("POD_NAME", "ip-address-controller");
        // The leader must keep its Lease while the apiserver is paused.
        command.env("LEASE_DURATION", "120");
        command.env("DIGITALOCEAN_REQUESTS_PER_MINUTE", "100000");
        command.env("DIGITALOCEAN_REQUESTS_PER_HOUR", "1000000");
    };
    let process =
        Process::start("ip-address-controller", program.as_ref(), configure, control_plane.folder()).unwrap();
    (process, ports[1])
}

/// Changes a label of a node that no selector uses.
async fn change_node(client: &Client, size: Size, number: usize) -> kube::Result<()> {
    let name = format!("node-{:05}", number * 7 % size.nodes());
    let change = json!({"metadata": {"labels": {"bench": number.to_string()}}});
    Api::<Node>::all(client.clone())
        .patch(&name, &PatchParams::default(), &Patch::Merge(change))
        .await
        .map(drop)
}

/// Makes one of the pods of a node Ready or not Ready. The others stay Ready.
async fn change_pod(client: &Client, size: Size, number: usize) -> kube::Result<()> {
    let (object, mut status) = pod(number / 2 * 10 % size.pods());
    if number.is_multiple_of(2) {
        status["status"]["conditions"][3]["status"] = "False".into();
    }
    let metadata = &object["metadata"];
    let pods: Api<Pod> = Api::namespaced(client.clone(), metadata["namespace"].as_str().unwrap());
    let name = metadata["name"].as_str().unwrap();
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

/// Creates a ReplicaSet and an object that refers to its Deployment, so that the controller watches ReplicaSets.
async fn use_a_replica_set(client: &Client) {
    let template = json!({
        "metadata": {"labels": {"app": "owned"}},
        "spec": {"containers": [{"name": "main", "image": "registry.example.com/main:1.0.0"}]},
    });
    let set = json!({
        "metadata": {"name": "owned"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "owned"}}, "template": template},
    });
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace(0));
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    let spec = json!({
        "reservedIPs": ["198.51.100.1"], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "digitalocean"},
        "workloadRef": {"kind": "Deployment", "name": "owned", "namespace": namespace(0)}, "policy": {"mode": "Observe"},
    });
    let object = NetIPAllocation::new("owned", serde_json::from_value(spec).unwrap());
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

async fn change_replica_set(client: &Client, number: usize) -> kube::Result<()> {
    let change = json!({"metadata": {"labels": {"bench": number.to_string()}}});
    Api::<ReplicaSet>::namespaced(client.clone(), &namespace(0))
        .patch("owned", &PatchParams::default(), &Patch::Merge(change))
        .await
        .map(drop)
}

/// Creates a pool that selects pods by a label that was not needed before, so that all pods are listed again.
async fn use_a_new_label(client: &Client) {
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "ips": ["198.51.100.2"],
        "match": {"nodeLabel": "role=edge", "podLabel": "pod-template-hash=none"}, "policy": {"mode": "Observe"},
    });
    let pool = FloatingIPPool::new("new-label", serde_json::from_value(spec).unwrap());
    Api::namespaced(client.clone(), &namespace(0)).create(&PostParams::default(), &pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench scale"]
async fn memory_and_latency_in_the_largest_cluster() {
    let size = Size::of_percent(number("SCALE_PERCENT", 100));
    let measured = Measured::start(size).await;
    let settled_in = measured.until_ready().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let controller = &measured.controller;
    let (settled, peak_of_start) = (resident_megabytes(controller), peak_megabytes(controller));
    let client = &measured.client;
    let of_nodes = measured.latency(|number| change_node(client, size, number)).await;
    let of_pods = measured.latency(|number| change_pod(client, size, number)).await;
    use_a_replica_set(client).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let of_replica_sets = measured.latency(|number| change_replica_set(client, number)).await;
    use_a_new_label(client).await;
    let during_a_list = measured.latency(|number| change_node(client, size, number)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let peak_of_new_label = peak_megabytes(controller);
    // So long that the watches can't resume, and all kinds are listed again.
    measured.control_plane.pause_apiserver(true).unwrap();
    tokio::time::sleep(Duration::from_secs(45)).await;
    measured.control_plane.pause_apiserver(false).unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    let (listed_again, peak_of_relist) = (resident_megabytes(controller), peak_megabytes(controller));
    let latencies = [of_nodes, of_pods, of_replica_sets, during_a_list];
    println!(
        "{}",
        json!({
            "nodes": size.nodes(), "pods": size.pods(), "pools": size.pools, "addresses": size.addresses(),
            "cluster_seconds": measured.created_in.as_secs(), "settled_seconds": settled_in.as_secs(),
            "settled_megabytes": settled, "settled_megabytes_max": megabytes_max(size),
            "peak_megabytes_of_start": peak_of_start, "after_relist_megabytes": listed_again,
            "peak_megabytes_of_new_label": peak_of_new_label, "peak_megabytes_of_relist": peak_of_relist,
            "p99_seconds_max_of_nodes_pods_replica_sets_and_nodes_during_a_list":
                latencies.map(|latency| latency.p99_seconds_max),
            "measured_changes": latencies.map(|latency| latency.count),
        })
    );
    assert!(settled <= megabytes_max(size), "{settled} MB");
    let peak = peak_of_start.max(peak_of_new_label).max(peak_of_relist);
    assert!(peak * 1e6 < 256.0 * 1_048_576.0, "{peak} MB");
    let slowest = latencies[..3].iter().map(|latency| latency.p99_seconds_max).fold(0.0, f64::max);
    assert!(slowest <= 0.05 && during_a_list.p99_seconds_max <= 0.2, "{latencies:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench annotations"]
async fn large_annotations_of_pods_take_no_memory() {
    const PODS: usize = 1_000;
    const ANNOTATION_BYTES: usize = 250_000;
    let mut measured = Measured::start(Size::of_percent(1)).await;
    measured.until_ready().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let without = resident_megabytes(&measured.controller);
    let client = measured.client.clone();
    create_all(PODS, async |number| {
        let (object, _) = pod(number);
        let metadata = &object["metadata"];
        let pods: Api<Pod> = Api::namespaced(client.clone(), metadata["namespace"].as_str().unwrap());
        let large = json!({"metadata": {"annotations": {"large": "x".repeat(ANNOTATION_BYTES)}}});
        let name = metadata["name"].as_str().unwrap();
        pods.patch(name, &PatchParams::default(), &Patch::Merge(large)).await.map(drop)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let after_events = resident_megabytes(&measured.controller);
    measured.restart().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let after_restart = resident_megabytes(&measured.controller);
    let peak_of_start = peak_megabytes(&measured.controller);
    println!(
        "{}",
        json!({
            "pods": PODS, "annotation_bytes": ANNOTATION_BYTES, "megabytes_without": without,
            "megabytes_after_events": after_events, "megabytes_after_restart": after_restart,
            "peak_megabytes_of_start": peak_of_start,
        })
    );
    assert!(after_events.max(after_restart) <= 1.05 * without, "{without} {after_events} {after_restart}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of an hour: just bench soak"]
async fn memory_and_lag_stay_while_the_cluster_changes() {
    let size = Size::of_percent(number("SCALE_PERCENT", 10));
    let duration = Duration::from_secs(60 * number("SOAK_MINUTES", 60) as u64);
    let measured = Measured::start(size).await;
    measured.until_ready().await;
    let name = "ip_address_controller_loop_lag_seconds";
    let (before, began) = (measured.histogram(name).await, Instant::now());
    let changes = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        for number in 0..usize::MAX / 10 {
            second.tick().await;
            change_node(&measured.client, size, number).await.unwrap();
            for of_second in 0..10 {
                change_pod(&measured.client, size, 10 * number + of_second).await.unwrap();
            }
        }
    };
    let sample = async {
        let mut quarters: [Vec<(f64, usize)>; 4] = Default::default();
        while began.elapsed() < duration {
            let quarter = (4.0 * began.elapsed().as_secs_f64() / duration.as_secs_f64()) as usize;
            let controller = &measured.controller;
            quarters[quarter.min(3)].push((resident_megabytes(controller), open_files(controller)));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        quarters
    };
    let quarters = tokio::select! {
        () = changes => unreachable!("there is always another change"),
        quarters = sample => quarters,
    };
    let lag = Latency::between(&before, &measured.histogram(name).await);
    let megabytes = quarters.each_ref().map(|samples| {
        samples.iter().map(|(megabytes, _)| megabytes).sum::<f64>() / samples.len().max(1) as f64
    });
    let files = quarters.each_ref().map(|samples| samples.iter().map(|(_, files)| *files).max().unwrap_or(0));
    println!(
        "{}",
        json!({
            "nodes": size.nodes(), "pods": size.pods(), "minutes": duration.as_secs() / 60,
            "megabytes_of_quarters": megabytes, "open_files_of_quarters": files,
            "loop_turns": lag.count, "lag_p99_seconds_max": lag.p99_seconds_max,
        })
    );
    assert!(megabytes[3] <= 1.05 * megabytes[1], "memory grows: {megabytes:?}");
    assert!(files[3] <= files[1], "files or sockets leak: {files:?}");
    assert!(lag.p99_seconds_max <= 0.1, "{lag:?}");
}
