//! Many Clusters at once: 200 with `just e2e capi`, 20 if all tests run. `CLUSTERS` sets the number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::cluster_api::claims;
use testbed::cluster_api::fixtures::{self, Version};

use super::rig::{Capi, count, create, from_class, plain};
use crate::rig::Controller;

/// Long, because the IPAM provider creates one address at a time, and its client has a rate limit.
const LONGEST: Duration = Duration::from_secs(600);

/// The median and the 99th percentile.
fn percentiles(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

/// Waits until `count` objects fulfil `is_so`. Returns when each of them first did.
async fn when(
    api: Api<DynamicObject>,
    count: usize,
    is_so: impl Fn(&DynamicObject) -> bool,
) -> BTreeMap<String, Instant> {
    let touched = watcher(api, watcher::Config::default()).default_backoff().touched_objects();
    let mut touched = std::pin::pin!(touched);
    let mut seen = BTreeMap::new();
    while seen.len() < count {
        let Ok(object) = touched.next().await.unwrap() else { continue };
        if is_so(&object) {
            seen.entry(object.name_any()).or_insert_with(Instant::now);
        }
    }
    seen
}

/// Like [`from_class`], with an endpoint, so it needs no VIP.
fn with_endpoint(name: &str) -> Value {
    let (mut cluster, host) = (from_class(name), "10.9.9.9");
    cluster["spec"]["controlPlaneEndpoint"] = json!({"host": host, "port": 6443});
    cluster["spec"]["topology"]["variables"] = json!([{"name": "clusterVip", "value": host}]);
    cluster
}

/// A pool without the labels of a VIP pool.
fn other_pool() -> Value {
    fixtures::global_pool("other", &["10.0.8.0-10.0.9.0"])
}

/// Deletes all objects of a kind, and waits until they are gone.
async fn remove(capi: &Capi, kind: &str) {
    // Without this flag kubectl waits for one object after the other.
    capi.kubectl(&["delete", kind, "--all", "--wait=false"]);
    eventually(&format!("no {kind}"), LONGEST, async || {
        Ok(capi.kubectl(&["get", kind, "-o", "name"]).is_empty())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
}

/// The 99th percentile of the time that the IPAM provider alone takes for this many claims, as a baseline on the same
/// machine.
async fn alone(capi: &Capi, many: usize) -> Duration {
    capi.apply(&other_pool());
    let mut took = claims::time_to_address(&capi.client, "default", &other_pool(), many).await.unwrap();
    let (p50, p99) = percentiles(&mut took);
    println!("the provider alone, {many} claims at once: p50 {p50:?}, p99 {p99:?}");
    remove(capi, "ipaddressclaims").await;
    p99
}

/// Like [`alone`], while Cluster API creates as many Clusters that need no VIP: both share the machine.
async fn beside_clusters(capi: &Capi, many: usize) -> Duration {
    let other = other_pool();
    let took = claims::time_to_address(&capi.client, "default", &other, many);
    let (took, _) = tokio::join!(took, create(capi, many, with_endpoint));
    let (p50, p99) = percentiles(&mut took.unwrap());
    println!("the same beside {many} Clusters that are built: p50 {p50:?}, p99 {p99:?}");
    remove(capi, "ipaddressclaims").await;
    remove(capi, "clusters").await;
    p99
}

/// Starts the controller, creates this many Clusters at once, and waits until all have an endpoint. Prints how long
/// each part took. Returns the controller and the 99th percentile of the time from creation to endpoint.
async fn to_endpoint(capi: &Capi, many: usize, cluster: fn(&str) -> Value) -> (Controller, Duration) {
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.0-10.0.2.0"]));
    let controller = capi.controller("vips", &[], &[]);
    controller.until_log("leading epoch").await;

    let claim_kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim");
    let claims: Api<DynamicObject> =
        Api::namespaced_with(capi.client.clone(), "default", &ApiResource::from_gvk(&claim_kind));
    let claimed = when(claims.clone(), many, |_| true);
    let given = when(claims, many, |claim| !claim.data["status"]["addressRef"]["name"].is_null());
    let has_endpoint =
        |cluster: &DynamicObject| !cluster.data["spec"]["controlPlaneEndpoint"]["host"].is_null();
    let ended = when(capi.clusters(), many, has_endpoint);
    let all = async { tokio::join!(create(capi, many, cluster), claimed, given, ended) };
    let (created, claimed, given, ended) = tokio::time::timeout(LONGEST, all)
        .await
        .unwrap_or_else(|_| panic!("not all Clusters have an endpoint\n{}", capi.logs()));

    let took = |from: &dyn Fn(&str) -> Instant, to: &dyn Fn(&str) -> Instant| {
        let mut took: Vec<_> =
            created.keys().map(|name| to(name).saturating_duration_since(from(name))).collect();
        percentiles(&mut took)
    };
    let claim = |name: &str| format!("vip-cp-{name}");
    let (p50, p99) = took(&|name| created[name], &|name| ended[name]);
    println!("{many} Clusters at once, creation to endpoint: p50 {p50:?}, p99 {p99:?}");
    let first = took(&|name| created[name], &|name| claimed[&claim(name)]);
    println!("  of that, creation to claim: p50 {:?}, p99 {:?}", first.0, first.1);
    let provider = took(&|name| claimed[&claim(name)], &|name| given[&claim(name)]);
    println!("  the provider, claim to address: p50 {:?}, p99 {:?}", provider.0, provider.1);
    let last = took(&|name| given[&claim(name)], &|name| ended[name]);
    println!("  address to endpoint: p50 {:?}, p99 {:?}", last.0, last.1);

    let hosts = capi.kubectl(&[
        "get",
        "clusters",
        "-o",
        "jsonpath={range .items[*]}{.spec.controlPlaneEndpoint.host}{\"\\n\"}{end}",
    ]);
    let different: BTreeSet<_> = hosts.lines().collect();
    assert_eq!(different.len(), many, "{hosts}");
    (controller, p99)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clusters_get_vips_and_release_them() {
    let (capi, many) = (Capi::start().await, count());
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    let alone = alone(&capi, many).await;
    let beside = beside_clusters(&capi, many).await;
    let (_controller, p99) = to_endpoint(&capi, many, from_class).await;
    println!(
        "p99 on top of the provider alone: {:?}; beside Clusters: {:?}",
        p99.saturating_sub(alone),
        p99.saturating_sub(beside)
    );

    let deleted = Instant::now();
    capi.kubectl(&["delete", "clusters", "--all", "--wait=false"]);
    eventually("all addresses are free in the pool again", LONGEST, async || {
        let counted = capi.get("globalinclusterippool/pool")["status"]["ipAddresses"].clone();
        Ok(counted["used"] == 0)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    println!("all {many} addresses were free {:?} after the Clusters were deleted", deleted.elapsed());
    assert_eq!(capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]), "");
}

/// Cluster API creates nothing for these Clusters, so it takes less CPU time from the IPAM provider on the same
/// machine.
#[tokio::test(flavor = "multi_thread")]
async fn many_clusters_without_topology_get_vips() {
    let (capi, many) = (Capi::start().await, count());
    let alone = alone(&capi, many).await;
    let (_controller, p99) = to_endpoint(&capi, many, plain).await;
    println!("plain Clusters, p99 on top of the provider alone: {:?}", p99.saturating_sub(alone));
}
