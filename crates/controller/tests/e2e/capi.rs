//! VIPs on the real Cluster API and its real in-cluster IPAM provider, with the rights of `capi-vip-allocator.yaml`.

mod rig;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::cluster::eventually;
use testbed::cluster_api::fixtures::{self, Version};

use self::rig::Capi;

const SOON: Duration = Duration::from_secs(60);

/// A Cluster of a class in one of the versions gets all that it is promised.
async fn a_cluster_gets_its_vip(version: Version) {
    let capi = Capi::start().await;
    let controller = capi.controller("vips", &[], &[]);
    capi.apply(&fixtures::class(version, "default"));
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

    let said = cluster["metadata"]["annotations"]["vip.capi.gorizond.io/status"].as_str().unwrap();
    assert_eq!(said, r#"{"control-plane":{"reason":"Assigned","message":"10.0.1.10 from pool pool"}}"#);
    let log = std::fs::read_to_string(controller.process.log()).unwrap();
    for line in ["controlPlaneEndpoint not set, controller will allocate VIP", "control-plane VIP assigned"] {
        let found = log.lines().find(|found| found.contains(line)).unwrap_or_else(|| panic!("{log}"));
        assert!(found.contains("INFO controllers.Cluster"), "{found}");
    }
    assert!(log.contains("control-plane VIP assigned ip=10.0.1.10"), "{log}");
    eventually("an Event tells of it", SOON, async || {
        Ok(capi.kubectl(&["get", "events"]).contains("control-plane VIP: 10.0.1.10 from pool pool"))
    })
    .await
    .unwrap();

    // A settled Cluster is not written.
    let version = || async { capi.cluster("a").await["metadata"]["generation"].clone() };
    let before = version().await;
    capi.kubectl(&["label", "globalinclusterippool/pool", "example.com/anything=else"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(version().await, before);
}

// V1 V2 V7
#[tokio::test(flavor = "multi_thread")]
async fn v3_a_cluster_gets_endpoint_variable_and_infrastructure_in_v1beta2() {
    a_cluster_gets_its_vip(Version::V1Beta2).await;
}

// V1 V2 V7
#[tokio::test(flavor = "multi_thread")]
async fn v3_a_cluster_gets_endpoint_variable_and_infrastructure_in_v1beta1() {
    a_cluster_gets_its_vip(Version::V1Beta1).await;
}
