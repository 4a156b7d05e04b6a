//! Many Clusters at once: two hundred with `just e2e capi`, fewer where all tests are run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::try_join_all;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use testbed::cluster::eventually;
use testbed::cluster_api::claims;
use testbed::cluster_api::fixtures::{self, Version};

use super::rig::Capi;

/// How many.
pub fn count() -> usize {
    std::env::var("CLUSTERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// The IPAM provider makes one address at a time, within the rate that its client keeps to.
const LONGEST: Duration = Duration::from_secs(300);

/// The median and the ninety-ninth of a hundred.
fn percentiles(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

/// Tells when each object of a kind first was as it should be, until all are.
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

/// Creates so many Clusters at once, with this endpoint or with none, and tells when each was created.
pub async fn create(capi: &Capi, count: usize, endpoint: Option<&str>) -> BTreeMap<String, Instant> {
    let clusters = capi.clusters();
    let create = async |number: usize| {
        let name = format!("c{number}");
        let mut cluster = fixtures::cluster(Version::V1Beta2, "default", &name);
        if let Some(host) = endpoint {
            cluster["spec"]["controlPlaneEndpoint"] = json!({"host": host, "port": 6443});
            cluster["spec"]["topology"]["variables"] = json!([{"name": "clusterVip", "value": host}]);
        }
        let cluster = serde_json::from_value(cluster)?;
        let created = Instant::now();
        clusters.create(&PostParams::default(), &cluster).await?;
        anyhow::Ok((name, created))
    };
    try_join_all((0..count).map(create)).await.unwrap().into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clusters_at_once_get_as_many_vips_and_give_them_back() {
    let (capi, many) = (Capi::start().await, count());
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    // What the provider takes by itself, on the same machine and a moment before.
    let other = fixtures::global_pool("other", &["10.0.8.0-10.0.9.0"]);
    capi.apply(&other);
    let mut alone = claims::time_to_address(&capi.client, "default", &other, many).await.unwrap();
    let (alone_p50, alone_p99) = percentiles(&mut alone);
    println!("the provider alone, {many} claims at once: p50 {alone_p50:?}, p99 {alone_p99:?}");
    capi.kubectl(&["delete", "ipaddressclaims", "--all"]);
    // The same while Cluster API builds as many Clusters, which need no VIP: all of them share this machine.
    let beside = claims::time_to_address(&capi.client, "default", &other, many);
    let (beside, _) = tokio::join!(beside, create(&capi, many, Some("10.9.9.9")));
    let (beside_p50, beside_p99) = percentiles(&mut beside.unwrap());
    println!("the same beside {many} Clusters that are built: p50 {beside_p50:?}, p99 {beside_p99:?}");
    capi.kubectl(&["delete", "ipaddressclaims", "--all"]);
    capi.kubectl(&["delete", "clusters", "--all", "--timeout=300s"]);

    let pool = capi.pool("pool", "control-plane", &["10.0.1.0-10.0.2.0"]);
    capi.apply(&pool);
    let controller = capi.controller("vips", &[], &[]);
    let log = || std::fs::read_to_string(controller.process.log()).unwrap();
    eventually("it leads", LONGEST, async || Ok(log().contains("leading epoch"))).await.unwrap();

    let claim_kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim");
    let claims: Api<DynamicObject> =
        Api::namespaced_with(capi.client.clone(), "default", &ApiResource::from_gvk(&claim_kind));
    let claimed = when(claims.clone(), many, |_| true);
    let given = when(claims, many, |claim| !claim.data["status"]["addressRef"]["name"].is_null());
    let has_endpoint =
        |cluster: &DynamicObject| !cluster.data["spec"]["controlPlaneEndpoint"]["host"].is_null();
    let ended = when(capi.clusters(), many, has_endpoint);
    let all = async { tokio::join!(create(&capi, many, None), claimed, given, ended) };
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
    let beside = p99.saturating_sub(beside_p99);
    println!(
        "p99 on top of the provider alone: {:?}; beside Clusters: {beside:?}",
        p99.saturating_sub(alone_p99)
    );

    let hosts = capi.kubectl(&[
        "get",
        "clusters",
        "-o",
        "jsonpath={range .items[*]}{.spec.controlPlaneEndpoint.host}{\"\\n\"}{end}",
    ]);
    let different: BTreeSet<_> = hosts.lines().collect();
    assert_eq!(different.len(), many, "{hosts}");

    let deleted = Instant::now();
    capi.kubectl(&["delete", "clusters", "--all", "--wait=false"]);
    eventually("all addresses are back in the pool", LONGEST, async || {
        let counted = capi.get("globalinclusterippool/pool")["status"]["ipAddresses"].clone();
        Ok(counted["used"] == 0)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    println!("all {many} addresses were back {:?} after the Clusters were deleted", deleted.elapsed());
    assert_eq!(capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]), "");
}
