//! VIPs on the real Cluster API and its real in-cluster IPAM provider, with the permissions of
//! `capi-vip-allocator.yaml`.

mod conditions;
mod crashes;
mod hooks;
mod many;
mod old_version;
mod packaging;
pub(crate) mod rig;

use std::time::Duration;

use serde_json::json;
use testbed::cluster::eventually;
use testbed::cluster_api::fixtures::{self, Version};

use self::rig::{Capi, for_class, plain, with_class};
use crate::rig::SOON;

/// Creates a Cluster from a class in one of the API versions, and checks its claim, endpoint, variable, infrastructure,
/// log lines and Event.
async fn a_cluster_gets_its_vip(version: Version) {
    let capi = Capi::start().await;
    let controller = capi.controller("vips", &[], &[]);
    capi.apply_all(&fixtures::class(version, "default"));
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10-10.0.1.19"]));
    capi.apply(&fixtures::cluster(version, "default", "a"));
    let vip = capi.endpoint("a").await;
    assert_eq!(vip, "10.0.1.10");

    let cluster = capi.cluster("a").await;
    assert_eq!(cluster["spec"]["controlPlaneEndpoint"], json!({"host": vip, "port": 6443}));
    let variables = json!([{"name": "clusterVip", "value": vip}]);
    assert_eq!(cluster["spec"]["topology"]["variables"], variables);
    let claim = capi.get("ipaddressclaim/vip-cp-a");
    let owner = &claim["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], cluster["metadata"]["uid"]);
    assert_eq!((&owner["controller"], &owner["blockOwnerDeletion"]), (&json!(true), &json!(true)));
    assert_eq!(claim["spec"]["clusterName"], "a");
    eventually("the infrastructure has the VIP", SOON, async || {
        Ok(capi.infrastructure("a").await["spec"]["controlPlaneEndpoint"]["host"] == *vip)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));

    let status = capi.until_vip_reason("a", "control-plane", "Assigned").await;
    assert_eq!(status, json!({"reason": "Assigned", "message": "10.0.1.10 from pool pool"}));
    let log = controller.log();
    for line in ["controlPlaneEndpoint not set, controller will allocate VIP", "control-plane VIP assigned"] {
        let found = log.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{log}"));
        assert!(found.contains("INFO controllers.Cluster"), "{found}");
    }
    assert!(log.contains("control-plane VIP assigned ip=10.0.1.10"), "{log}");
    eventually("an Event reports the VIP", SOON, async || {
        Ok(capi.kubectl(&["get", "events"]).contains("control-plane VIP: 10.0.1.10 from pool pool"))
    })
    .await
    .unwrap();

    // The controller does not write a settled Cluster.
    let version = || async { capi.cluster("a").await["metadata"]["generation"].clone() };
    let before = version().await;
    capi.kubectl(&["label", "globalinclusterippool/pool", "example.com/anything=else"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(version().await, before);
}

// V1 V2 V7
#[tokio::test(flavor = "multi_thread")]
async fn v3_endpoint_variable_and_infrastructure_get_the_vip_v1beta2() {
    a_cluster_gets_its_vip(Version::V1Beta2).await;
}

// V1 V2 V7
#[tokio::test(flavor = "multi_thread")]
async fn v3_endpoint_variable_and_infrastructure_get_the_vip_v1beta1() {
    a_cluster_gets_its_vip(Version::V1Beta1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v4_existing_endpoints_and_paused_clusters_are_not_changed() {
    let (capi, _controller) = with_class().await;
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10-10.0.1.19"]));
    let mut manual = fixtures::cluster(Version::V1Beta2, "default", "manual");
    manual["spec"]["controlPlaneEndpoint"] = json!({"host": "10.9.9.9", "port": 8443});
    capi.apply(&manual);
    let mut paused = fixtures::cluster(Version::V1Beta2, "default", "paused");
    paused["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
    capi.apply(&paused);
    capi.apply(&plain("plain"));

    assert_eq!(capi.endpoint("plain").await, "10.0.1.10");
    eventually("the variable of the Cluster `manual` is set", SOON, async || {
        let variables = &capi.cluster("manual").await["spec"]["topology"]["variables"];
        Ok(*variables == json!([{"name": "clusterVip", "value": "10.9.9.9"}]))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    let manual = capi.cluster("manual").await;
    assert_eq!(manual["spec"]["controlPlaneEndpoint"], json!({"host": "10.9.9.9", "port": 8443}));
    let claims = capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]);
    assert_eq!(claims.trim(), "ipaddressclaim.ipam.cluster.x-k8s.io/vip-cp-plain");
    assert!(capi.cluster("paused").await["spec"]["controlPlaneEndpoint"].is_null());

    capi.kubectl(&["annotate", "cluster/paused", "cluster.x-k8s.io/paused-"]);
    assert_eq!(capi.endpoint("paused").await, "10.0.1.11");
}

#[tokio::test(flavor = "multi_thread")]
async fn v8_ingress_and_control_plane_vips_do_not_wait_for_each_other() {
    let (capi, controller) = with_class().await;
    let ingress = fixtures::namespaced_pool("default", "ingress", &["10.0.2.10"]);
    capi.apply(&for_class(ingress, "ingress"));
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "a"));
    eventually("Cluster a has an ingress VIP", SOON, async || {
        let metadata = capi.cluster("a").await["metadata"].clone();
        let of = |place: &str| metadata[place]["vip.capi.gorizond.io/ingress-vip"].clone();
        Ok(of("annotations") == "10.0.2.10" && of("labels") == "10.0.2.10")
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    capi.until_vip_reason("a", "control-plane", "NoPool").await;

    let mut pool = capi.pool("pool", "control-plane", &["10.0.1.10"]);
    pool["metadata"]["labels"]["vip.capi.gorizond.io/cluster-class"] = json!("true");
    let classes = format!("another, {}", fixtures::CLASS);
    pool["metadata"]["annotations"] = json!({"vip.capi.gorizond.io/cluster-class": classes});
    capi.apply(&pool);
    assert_eq!(capi.endpoint("a").await, "10.0.1.10");
    capi.until_vip_reason("a", "control-plane", "Assigned").await;

    // Cluster API itself may remove the annotations of a new Cluster.
    capi.kubectl(&["annotate", "cluster/a", "vip.capi.gorizond.io/ingress-vip-"]);
    eventually("Cluster a has its ingress VIP again", SOON, async || {
        let annotations = &capi.cluster("a").await["metadata"]["annotations"];
        Ok(annotations["vip.capi.gorizond.io/ingress-vip"] == "10.0.2.10")
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));

    let mut unwanted = fixtures::cluster(Version::V1Beta2, "default", "b");
    unwanted["metadata"]["annotations"] = json!({"vip.capi.gorizond.io/ingress-enabled": "false"});
    capi.apply(&unwanted);
    capi.until_vip_reason("b", "control-plane", "PoolExhausted").await;
    assert!(!capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]).contains("vip-ingress-b"));

    let expected = [
        r#"capi_vip_allocator_allocations_total{cluster_class="edge",role="control-plane"} 1"#,
        r#"capi_vip_allocator_allocations_total{cluster_class="edge",role="ingress"} 1"#,
        r#"capi_vip_allocator_pools_available{cluster_class="edge",role="ingress"} 1"#,
        r#"capi_vip_allocator_pool_addresses_free{pool_name="default/ingress"} 0"#,
        r#"capi_vip_allocator_pool_addresses_used{pool_name="pool"} 1"#,
        r#"capi_vip_allocator_pool_addresses_total{pool_name="pool"} 1"#,
        r#"capi_vip_allocator_claims_total{namespace="default",role="control-plane"} 2"#,
        r#"capi_vip_allocator_claims_ready{namespace="default",role="control-plane"} 1"#,
        r#"capi_vip_allocator_claims_pending{namespace="default",role="control-plane"} 1"#,
        r#"capi_vip_allocator_allocation_duration_seconds_count{cluster_class="edge",role="ingress"} 1"#,
    ];
    eventually("the metrics have all lines", SOON, async || {
        let text = controller.metrics().await?;
        let missing: Vec<_> = expected.iter().filter(|line| !text.contains(**line)).collect();
        anyhow::ensure!(missing.is_empty(), "{missing:?} is not in\n{text}");
        Ok(true)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn v3_the_endpoint_is_set_and_a_missing_variable_is_reported() {
    let capi = Capi::start().await;
    let _controller = capi.controller("vips", &[], &[]);
    let mut class = fixtures::class(Version::V1Beta2, "default");
    let spec = class[2]["spec"].as_object_mut().unwrap();
    assert!(spec.remove("variables").is_some() && spec.remove("patches").is_some());
    capi.apply_all(&class);
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10"]));
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "a"));
    assert_eq!(capi.endpoint("a").await, "10.0.1.10");
    eventually("an Event names the missing variable", SOON, async || {
        let events = capi.kubectl(&["get", "events", "--field-selector", "type=Warning"]);
        Ok(events.contains("ClusterClass variable 'clusterVip' not found"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_pool_is_reported_and_the_next_one_is_used() {
    let (capi, _controller) = with_class().await;
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10"]));
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "a"));
    assert_eq!(capi.endpoint("a").await, "10.0.1.10");
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "b"));
    let status = capi.until_vip_reason("b", "control-plane", "PoolExhausted").await;
    assert_eq!(status["message"], "no address is free in pool: add addresses, or another pool");

    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10", "10.0.1.20"]));
    assert_eq!(capi.endpoint("b").await, "10.0.1.20");
    capi.until_vip_reason("b", "control-plane", "Assigned").await;

    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "c"));
    capi.until_vip_reason("c", "control-plane", "PoolExhausted").await;
    capi.apply(&capi.pool("spare", "control-plane", &["10.0.3.10"]));
    assert_eq!(capi.endpoint("c").await, "10.0.3.10");
    assert_eq!(capi.get("ipaddressclaim/vip-cp-c")["spec"]["poolRef"]["name"], "spare");
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_a_recreated_cluster_waits_until_the_old_claim_is_gone() {
    let (capi, _controller) = with_class().await;
    let mut pool = capi.pool("pool", "control-plane", &["10.0.1.10-10.0.1.19"]);
    // The pool keeps an address for this long after its claim was deleted.
    pool["spec"]["addressReuseGracePeriodSeconds"] = json!(8);
    capi.apply(&pool);
    capi.apply(&plain("a"));
    capi.endpoint("a").await;
    let first = capi.get("ipaddressclaim/vip-cp-a")["metadata"]["uid"].clone();
    capi.kubectl(&["delete", "cluster/a"]);
    capi.apply(&plain("a"));
    let status = capi.until_vip_reason("a", "control-plane", "ClaimNotOurs").await;
    println!("{status}");
    capi.endpoint("a").await;
    let second = capi.get("ipaddressclaim/vip-cp-a")["metadata"].clone();
    assert_ne!(second["uid"], first);
    assert_eq!(second["ownerReferences"][0]["uid"], capi.cluster("a").await["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_api_can_be_installed_later_without_a_restart() {
    let mut capi = Capi::without_cluster_api().await;
    // The first controller of a cluster creates the Lease.
    capi.kubectl(&["delete", "lease", "capi-vip-allocator.gorizond.io", "-n", "capi-system"]);
    let controller = capi.controller("vips", &[], &[]);
    controller.until_ready().await;
    controller.until_log("leading epoch").await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let complaints: Vec<_> = controller
        .log()
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        .map(str::to_owned)
        .collect();
    assert_eq!(complaints, Vec::<String>::new());

    capi.install_cluster_api().await;
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10"]));
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "a"));
    assert_eq!(capi.endpoint("a").await, "10.0.1.10");
    assert!(controller.stop().success());
}
