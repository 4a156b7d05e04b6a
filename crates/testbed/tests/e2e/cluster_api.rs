//! Tests that the real Cluster API and its in-cluster IPAM provider work on loopback as they do in a cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::cluster_api::clusterctl::{Kind, Release};
use testbed::cluster_api::fixtures::{self, Version};
use testbed::cluster_api::provider::{self, Provider};
use testbed::cluster_api::{ManagementCluster, claims};
use testbed::control_plane::{ControlPlane, Options};
use testbed::tools;

/// Cluster API may wait up to this long before it retries.
const LONGEST: Duration = Duration::from_secs(180);

/// Starts a control plane with Cluster API. Other tests do not reuse it: after a reset, a manager of Cluster API may still
/// write an object of the previous test.
async fn start() -> (ManagementCluster, Client, Provider) {
    let control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    let mut cluster = ManagementCluster { cluster_api: None, control_plane };
    let started = Instant::now();
    cluster.install_cluster_api().await.unwrap();
    println!("Cluster API was ready after {:.1} s", started.elapsed().as_secs_f64());
    let client = cluster.control_plane.client().await.unwrap();
    let provider = Provider::start(client.clone());
    (cluster, client, provider)
}

fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn apply(cluster: &ManagementCluster, manifest: &Value) {
    cluster.control_plane.apply(&manifest.to_string()).unwrap();
}

/// Creates a Cluster without a VIP, sets the VIP as a controller would, waits until the infrastructure has it, and
/// deletes the Cluster.
async fn the_vip_variable_becomes_the_endpoint(version: Version) {
    let (management, client, _provider) = start().await;
    let cluster_api = management.cluster_api.as_ref().unwrap();
    cluster_api.install_class(&client, version, "default").await.unwrap();
    apply(&management, &fixtures::cluster(version, "default", "a"));
    let clusters = api(&client, "cluster.x-k8s.io", "v1beta2", "Cluster");
    let variables = |value: &str| json!([{"name": "clusterVip", "value": value}]);
    assert_eq!(clusters.get("a").await.unwrap().data["spec"]["topology"]["variables"], variables(""));

    let endpoint = async || {
        let infrastructure = provider::infrastructure_of(&client, "default", "a").await?;
        anyhow::Ok(infrastructure.map(|it| it.data["spec"]["controlPlaneEndpoint"].clone()))
    };
    let made =
        eventually("the infrastructure exists", LONGEST, async || Ok(endpoint().await? == Some(Value::Null)));
    let took = made.await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster_api.log_tails()));
    println!("{version:?}: the infrastructure existed after {took:?}");

    let mut cluster = fixtures::cluster(version, "default", "a");
    cluster["spec"]["topology"]["variables"] = variables("10.0.0.7");
    apply(&management, &cluster);
    let provisioned = eventually("the VIP is the cluster's endpoint", LONGEST, async || {
        let cluster = clusters.get("a").await?;
        Ok(endpoint().await? == Some(json!({"host": "10.0.0.7", "port": 6443}))
            && cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true
            && cluster.data["spec"]["controlPlaneEndpoint"]["host"] == "10.0.0.7")
    });
    let took = provisioned.await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster_api.log_tails()));
    println!("{version:?}: the VIP was the endpoint after {took:?}");

    clusters.delete("a", &DeleteParams::default()).await.unwrap();
    let gone = eventually("the Cluster and its infrastructure are deleted", LONGEST, async || {
        Ok(clusters.get_opt("a").await?.is_none() && endpoint().await?.is_none())
    });
    let took = gone.await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster_api.log_tails()));
    println!("{version:?}: the Cluster was deleted after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_the_vip_variable_becomes_the_endpoint_in_v1beta2() {
    the_vip_variable_becomes_the_endpoint(Version::V1Beta2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_the_vip_variable_becomes_the_endpoint_in_v1beta1() {
    the_vip_variable_becomes_the_endpoint(Version::V1Beta1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_a_cluster_can_be_read_in_both_api_versions() {
    let (management, client, _provider) = start().await;
    for (version, name) in [(Version::V1Beta1, "old"), (Version::V1Beta2, "new")] {
        apply(&management, &fixtures::cluster(version, "default", name));
        let old = api(&client, "cluster.x-k8s.io", "v1beta1", "Cluster").get(name).await.unwrap();
        assert_eq!(old.data["spec"]["topology"]["class"], fixtures::CLASS, "{name}");
        let new = api(&client, "cluster.x-k8s.io", "v1beta2", "Cluster").get(name).await.unwrap();
        assert_eq!(new.data["spec"]["topology"]["classRef"]["name"], fixtures::CLASS, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_a_claim_gets_an_address_from_global_and_namespaced_pools() {
    let (management, client, _provider) = start().await;
    let cluster_api = management.cluster_api.as_ref().unwrap();
    let everywhere = fixtures::global_pool("everywhere", &["10.0.1.10-10.0.1.19"]);
    let here = fixtures::namespaced_pool("default", "here", &["10.0.2.10"]);
    let claims = api(&client, "ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim");
    let addresses = api(&client, "ipam.cluster.x-k8s.io", "v1beta2", "IPAddress");
    for (pool, name, expected) in [(everywhere, "global", "10.0.1.10"), (here, "namespaced", "10.0.2.10")] {
        apply(&management, &pool);
        apply(&management, &fixtures::claim("default", name, &pool));
        let claimed = eventually("the claim has its address", LONGEST, async || {
            let claim = claims.get(name).await?;
            let Some(address) = claim.data["status"]["addressRef"]["name"].as_str() else { return Ok(false) };
            assert_eq!(addresses.get(address).await?.data["spec"]["address"], expected);
            Ok(true)
        });
        let took = claimed.await.unwrap_or_else(|error| panic!("{error:#}\n{}", cluster_api.log_tails()));
        println!("{name}: the claim got its address after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_webhooks_reject_invalid_objects() {
    let (management, _client, _provider) = start().await;
    let pool = fixtures::global_pool("odd", &["somewhere"]);
    let refused = management.control_plane.apply(&pool.to_string()).unwrap_err().to_string();
    assert!(refused.contains("not a valid IP, range, nor CIDR"), "{refused}");
    let mut cluster = fixtures::cluster(Version::V1Beta2, "default", "odd");
    cluster["spec"]["topology"]["version"] = json!("not a version");
    let refused = management.control_plane.apply(&cluster.to_string()).unwrap_err().to_string();
    assert!(refused.contains("version must be a valid semantic version"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn capi_two_hundred_claims_at_once_get_two_hundred_addresses() {
    const CLAIMS: usize = 200;
    let (management, client, _provider) = start().await;
    let cluster_api = management.cluster_api.as_ref().unwrap();
    let pool = fixtures::global_pool("everywhere", &["10.0.1.0-10.0.2.0"]);
    apply(&management, &pool);
    let took = claims::time_to_address(&client, "default", &pool, CLAIMS)
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", cluster_api.log_tails()));
    let (median, ninety_nine) = (took[CLAIMS / 2], took[CLAIMS * 99 / 100]);
    println!("{CLAIMS} claims at once got their addresses after {median:?} (p50), {ninety_nine:?} (p99)");
    let addresses = api(&client, "ipam.cluster.x-k8s.io", "v1beta2", "IPAddress");
    let addresses = addresses.list(&ListParams::default()).await.unwrap();
    let different: BTreeSet<_> =
        addresses.iter().map(|address| address.data["spec"]["address"].to_string()).collect();
    assert_eq!(different.len(), CLAIMS);
}

#[test]
fn capi_clusterctl_reads_a_provider_from_a_folder() {
    let file = |name| std::fs::read_to_string(tools::shared_file("ipam-in-cluster", name).unwrap()).unwrap();
    let release = Release {
        kind: Kind::Ipam,
        name: "in-cluster",
        version: "v1.1.0",
        components: &file("components.yaml"),
        metadata: &file("metadata.yaml"),
    };
    let rendered = release.render().unwrap();
    assert!(rendered.contains("clusterctl.cluster.x-k8s.io: \"\""), "{rendered}");

    // The metadata of the release has no series for this version.
    let refused = Release { version: "v9.9.0", ..release }.render().unwrap_err().to_string();
    assert!(refused.contains("does not match any release series"), "{refused}");
}
