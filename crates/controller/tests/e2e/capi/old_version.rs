//! Cluster API before 1.11, which serves only v1beta1. Its controllers do not run here, so the test does the work of
//! the IPAM provider.

use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::cluster_api::ClusterApi;

use super::rig::Capi;
use crate::rig::{SOON, read};

const CLAIM: &str = "ipaddressclaim/vip-cp-my-cluster";

/// Assigns an address to a claim, as the in-cluster provider does.
fn assign(capi: &Capi, claim: &Value, address: &str) {
    let (name, pool) = (&claim["metadata"]["name"], &claim["spec"]["poolRef"]);
    let owner = json!({
        "apiVersion": claim["apiVersion"], "kind": "IPAddressClaim", "name": name, "uid": claim["metadata"]["uid"],
        "controller": true,
    });
    capi.apply(&json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta1", "kind": "IPAddress",
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
        "spec": {"address": address, "prefix": 24, "gateway": "10.0.0.1", "claimRef": {"name": name}, "poolRef": pool},
    }));
    let patch = json!({"status": {"addressRef": {"name": name}}}).to_string();
    capi.kubectl(&["patch", CLAIM, "--subresource=status", "--type=merge", "-p", &patch]);
}

// V1 V2 V10
#[tokio::test(flavor = "multi_thread")]
async fn v3_v8_vips_work_when_only_v1beta1_is_served() {
    let capi = Capi::without_cluster_api().await;
    ClusterApi::install_v1beta1(capi.control_plane()).await.unwrap();
    let versions = capi.kubectl(&["api-versions"]);
    let is_served = |version: &str| versions.lines().any(|line| line == version);
    assert!(
        is_served("cluster.x-k8s.io/v1beta1") && is_served("ipam.cluster.x-k8s.io/v1beta1"),
        "{versions}"
    );
    assert!(
        !is_served("cluster.x-k8s.io/v1beta2") && !is_served("ipam.cluster.x-k8s.io/v1beta2"),
        "{versions}"
    );

    let _controller = capi.controller("vips", &[], &[]);
    for example in ["v1beta1/clusterclass.yaml", "pool.yaml", "v1beta1/cluster.yaml"] {
        capi.control_plane().apply(&read(&format!("examples/cluster-api/{example}"))).unwrap();
    }
    let claimed = || capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]).contains("vip-cp-my-cluster");
    eventually("an address is claimed", SOON, async || Ok(claimed()))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    let (claim, cluster) = (capi.get(CLAIM), capi.get("cluster/my-cluster"));
    let pool = json!({
        "apiGroup": "ipam.cluster.x-k8s.io", "kind": "GlobalInClusterIPPool", "name": "control-plane-vip-pool",
    });
    assert_eq!(
        (&claim["apiVersion"], &claim["spec"]["poolRef"]),
        (&json!("ipam.cluster.x-k8s.io/v1beta1"), &pool)
    );
    let owner = &claim["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["apiVersion"], &owner["uid"]),
        (&json!("cluster.x-k8s.io/v1beta1"), &cluster["metadata"]["uid"])
    );

    assign(&capi, &claim, "10.0.0.15");
    let condition = "--for=condition=vip.capi.gorizond.io/ControlPlaneVIPReady";
    capi.kubectl(&["wait", "cluster/my-cluster", condition, "--timeout=180s"]);
    let spec = capi.get("cluster/my-cluster")["spec"].clone();
    assert_eq!(spec["controlPlaneEndpoint"], json!({"host": "10.0.0.15", "port": 6443}));
    let variables = json!([{"name": "cni", "value": "calico"}, {"name": "clusterVip", "value": "10.0.0.15"}]);
    assert_eq!(spec["topology"]["variables"], variables);

    // A condition of v1beta1 has a severity.
    let mut other = cluster;
    other["metadata"] = json!({"name": "other", "namespace": "default"});
    other["spec"]["topology"]["class"] = json!("missing");
    capi.apply(&other);
    capi.kubectl(&["wait", "cluster/other", &format!("{condition}=False"), "--timeout=180s"]);
    let conditions = capi.get("cluster/other")["status"]["conditions"].clone();
    assert_eq!(
        (&conditions[0]["reason"], &conditions[0]["severity"]),
        (&json!("NoClass"), &json!("Warning"))
    );

    // The garbage collector deletes the claim with its Cluster.
    capi.kubectl(&["delete", "cluster/my-cluster", "--timeout=180s"]);
    eventually("the claim is gone", SOON, async || Ok(!claimed())).await.unwrap();
}
