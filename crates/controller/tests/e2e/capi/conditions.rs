//! Conditions on Clusters: `kubectl wait` works with them, and Cluster API does not change them.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::cluster_api::fixtures::{self, Version};

use super::rig::{Capi, with_class};
use crate::rig::SOON;

const CONDITION: &str = "vip.capi.gorizond.io/ControlPlaneVIPReady";

/// Waits for the condition with `kubectl wait`.
fn wait(capi: &Capi, cluster: &str, status: &str) {
    capi.kubectl(&[
        "wait",
        &format!("cluster/{cluster}"),
        &format!("--for=condition={CONDITION}={status}"),
        "--timeout=180s",
    ]);
}

/// A condition of a Cluster, or null if it has none of this type.
async fn condition(capi: &Capi, cluster: &str, kind: &str) -> Value {
    let conditions = capi.cluster(cluster).await["status"]["conditions"].clone();
    let found = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
    found.cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn v8_kubectl_wait_works_and_cluster_api_keeps_the_condition() {
    let (capi, _controller) = with_class().await;
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10"]));
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", "a"));
    wait(&capi, "a", "True");
    let ours = condition(&capi, "a", CONDITION).await;
    assert_eq!((&ours["reason"], &ours["message"]), (&json!("Assigned"), &json!("10.0.1.10 from pool pool")));

    let endpoint = "--for=jsonpath={.spec.controlPlaneEndpoint.host}";
    capi.kubectl(&["wait", "cluster/a", endpoint, "--timeout=180s"]);

    // Cluster API accepts our condition as an availability gate.
    let mut gated = fixtures::cluster(Version::V1Beta2, "default", "b");
    gated["spec"]["availabilityGates"] = json!([{"conditionType": CONDITION}]);
    capi.apply(&gated);
    wait(&capi, "b", "False");
    eventually("Cluster API reports our reason in its own condition", SOON, async || {
        let available = condition(&capi, "b", "Available").await;
        Ok(available["message"]
            .as_str()
            .is_some_and(|message| message.contains("no address is free in pool")))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{:#}", capi.get("cluster/b")["status"]["conditions"]));

    // Cluster API changes its own conditions and keeps ours, while our controller writes nothing.
    let paused = |is_paused: bool| {
        let patch = json!({"spec": {"paused": is_paused}}).to_string();
        capi.kubectl(&["patch", "cluster/a", "--type=merge", "-p", &patch]);
    };
    for (is_paused, status) in [(true, "True"), (false, "False")] {
        paused(is_paused);
        capi.kubectl(&["wait", "cluster/a", &format!("--for=condition=Paused={status}"), "--timeout=180s"]);
        assert_eq!(condition(&capi, "a", CONDITION).await, ours);
    }
    // Neither controller writes a settled Cluster.
    let version = async || capi.cluster("a").await["metadata"]["resourceVersion"].clone();
    let mut before = version().await;
    eventually("nothing is written for five seconds", SOON, async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = version().await;
        Ok(std::mem::replace(&mut before, now.clone()) == now)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));

    // If someone removes the condition, our controller sets it again.
    let others: Vec<_> = capi.cluster("a").await["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|condition| condition["type"] != CONDITION)
        .cloned()
        .collect();
    let patch = json!({"status": {"conditions": others}}).to_string();
    capi.kubectl(&["patch", "cluster/a", "--subresource=status", "--type=merge", "-p", &patch]);
    wait(&capi, "a", "True");

    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10", "10.0.1.11"]));
    wait(&capi, "b", "True");
}
