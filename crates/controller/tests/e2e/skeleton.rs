//! The documented examples end to end, on the nodes and fake clouds of the demo.

use std::time::Duration;

use serde_json::Value;
use testbed::cluster::{eventually, pod};

use crate::rig::{Rig, SOON, read};

// Several threads: the fakes answer while this thread waits for kubectl.
#[tokio::test(flavor = "multi_thread")]
async fn netipallocation_attaches_labels_and_follows_node_deletion() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.kubectl(&["wait", "--for=condition=Ready", "--timeout=180s", "nia/edge"]);

    let holder = |address: &str| rig.holder(address);
    assert_eq!(holder("34.123.45.67").unwrap(), "demo/us-west1-a/edge-1");
    assert_eq!(holder("34.123.45.68").unwrap(), "demo/us-west1-b/edge-2");
    rig.labelled(|nodes| nodes == ["edge-1", "edge-2"]).await;
    let status = rig.get("nia/edge")["status"].clone();
    assert_eq!(status["summary"]["attached"], 2);
    assert_eq!(status["addresses"][0]["nodeName"], "edge-1");
    println!("{}", rig.kubectl(&["get", "nia"]));

    rig.kubectl(&["delete", "node", "edge-1"]);
    let moved = eventually("34.123.45.67 is on edge-3", SOON, async || {
        Ok(holder("34.123.45.67").as_deref() == Some("demo/us-west1-a/edge-3"))
    });
    println!("node deleted -> address on the next node: {:?}", moved.await.unwrap());
    eventually("edge-3 is labelled", SOON, async || Ok(rig.ready_nodes() == ["edge-2", "edge-3"]))
        .await
        .unwrap();
    rig.kubectl(&["wait", "--for=condition=Ready", "--timeout=180s", "nia/edge"]);

    let ledger = rig.clouds.compute.ledger();
    assert_eq!(ledger.double_holders(), Vec::<String>::new());
    println!("calls: {:?}", ledger.calls());
}

// Several threads: the fakes answer while this thread waits for kubectl.
// F3 F6
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_annotates_its_node_and_fails_over_when_the_node_is_deleted() {
    let (rig, _controller) = Rig::start().await;
    rig.kubectl(&["create", "namespace", "ingress"]);
    eventually("the namespace accepts pods", SOON, async || {
        Ok(!rig.kubectl(&["get", "sa", "-n", "ingress", "-o", "name"]).is_empty())
    })
    .await
    .unwrap();
    let nginx = async |name: &str, node: &str| {
        let nginx = pod("ingress", name).label("app", "nginx").label("component", "controller").on(node);
        nginx.create(&rig.client).await.unwrap();
    };
    nginx("nginx-2", "worker-2").await;
    nginx("nginx-3", "worker-3").await;
    rig.control_plane.apply(&read("examples/floatingippool.yaml")).unwrap();
    rig.kubectl(&["wait", "--for=condition=Ready", "--timeout=180s", "floatingippool/ingress-pool"]);

    let holder = |address: &str| rig.clouds.digitalocean.with(|digitalocean| digitalocean.holder(address));
    assert_eq!(holder("203.0.113.10"), Some(1002));
    assert_eq!(holder("203.0.113.11"), Some(1003));
    eventually("both holders are annotated", SOON, async || {
        let annotations = ["worker-2", "worker-3"].map(|node| rig.annotation(node));
        Ok(annotations == ["203.0.113.10", "203.0.113.11"].map(|address| Some(address.to_owned())))
    })
    .await
    .unwrap();
    assert_eq!(rig.annotation("worker-1"), None);
    let ips: Value = rig.get("floatingippool/ingress-pool")["status"]["ips"].clone();
    assert_eq!(ips["203.0.113.10"]["state"], "active");
    assert_eq!(ips["203.0.113.10"]["nodeName"], "worker-2");

    nginx("nginx-1", "worker-1").await;
    rig.kubectl(&["delete", "node", "worker-2"]);
    let moved =
        eventually("203.0.113.10 is on worker-1", SOON, async || Ok(holder("203.0.113.10") == Some(1001)));
    println!("node deleted -> address on the next node: {:?}", moved.await.unwrap());
    eventually("worker-1 is annotated", SOON, async || {
        Ok(rig.annotation("worker-1").as_deref() == Some("203.0.113.10"))
    })
    .await
    .unwrap();
    assert_eq!(holder("203.0.113.11"), Some(1003), "a healthy placement is not moved");

    let ledger = rig.clouds.digitalocean.ledger();
    assert_eq!(ledger.double_holders(), Vec::<String>::new());
    println!("calls: {:?}", ledger.calls());
}

// Several threads: the fakes answer while this thread waits for kubectl.
// N10
#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_and_a_settled_controller_writes_nothing() {
    let (rig, controller) = Rig::start().await;
    let get = async |port: u16, path: &str| {
        let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await?;
        anyhow::Ok((answer.status().as_u16(), answer.text().await?))
    };
    controller.until_ready().await;
    assert_eq!(get(controller.health_port, "/healthz").await.unwrap().0, 200);
    for port in [controller.metrics_port, controller.health_port] {
        let (status, text) = get(port, "/metrics").await.unwrap();
        assert_eq!(status, 200);
        assert!(
            text.contains("netipallocation_controller_ready{pod_name=\"ip-address-controller\"} 1"),
            "{text}"
        );
        assert!(
            text.contains(concat!(
                "netipallocation_controller_info{pod_name=\"ip-address-controller\",version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            )),
            "{text}"
        );
    }

    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.kubectl(&["wait", "--for=condition=Ready", "--timeout=180s", "nia/edge"]);
    // The controller removes its finalizer after it has written the status.
    let is_unguarded = async || Ok(rig.get("nia/edge")["metadata"]["finalizers"].is_null());
    eventually("no finalizer is left", SOON, is_unguarded).await.unwrap();
    let written = || (rig.get("nia/edge")["metadata"].clone(), rig.clouds.compute.ledger().done.len());
    let before = written();
    rig.kubectl(&["annotate", "node", "edge-3", "example.com/anything=else"]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(written(), before, "the controller wrote although nothing had to change");
}
