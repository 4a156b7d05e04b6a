//! The reallocation flow with a real scheduler and a real Deployment.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use testbed::cluster::eventually;
use testbed::fake::ledger::Asked;

use crate::rig::{Rig, read};

const SOON: Duration = Duration::from_secs(30);

/// From the last pod's end to the cloud's acceptance of the first call, at most.
const REACTION_MAX: Duration = Duration::from_secs(1);

/// The nodes that the workload's pods are on.
fn nodes_of_pods(rig: &Rig) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
    let names = rig.kubectl(&["get", "pods", "-l", "app=web", "-o", path]);
    let mut names: Vec<_> = names.split_whitespace().map(ToOwned::to_owned).collect();
    names.sort();
    names
}

async fn running(rig: &Rig) {
    eventually("every pod runs on a node with an address", SOON, async || {
        let (pods, ready) = (nodes_of_pods(rig), rig.ready_nodes());
        Ok(pods.len() == 4 && pods.iter().all(|node| ready.contains(node)))
    })
    .await
    .unwrap_or_else(|error| {
        panic!("{error}: {:?} {:?}\n{}", nodes_of_pods(rig), rig.ready_nodes(), rig.logs())
    });
}

/// When the last pod of the workload on a node is gone.
async fn last_pod_gone(rig: &Rig, node: &str, started: tokio::sync::oneshot::Sender<()>) -> Instant {
    let pods: Api<Pod> = Api::default_namespaced(rig.client.clone());
    let events = watcher(pods, watcher::Config::default().labels("app=web")).default_backoff();
    futures::pin_mut!(events);
    let (mut there, mut started) = (std::collections::BTreeSet::new(), Some(started));
    while let Some(event) = events.next().await {
        let is_here = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        match event.unwrap() {
            Event::InitApply(pod) | Event::Apply(pod) if is_here(&pod) => _ = there.insert(pod.metadata.name),
            Event::InitDone => _ = started.take().map(|started| started.send(())),
            Event::Delete(pod) => {
                if there.remove(&pod.metadata.name) && there.is_empty() {
                    return Instant::now();
                }
            }
            _ => {}
        }
    }
    panic!("the watch ended");
}

/// When Compute Engine last accepted a call to this path.
fn accepted(rig: &Rig, path: &str) -> Instant {
    let (ledger, deeds) = (rig.clouds.compute.ledger(), rig.clouds.compute.deeds());
    let started = deeds[0].0.into_std() - ledger.done[0].at;
    let is_it = |asked: &&Asked| asked.line.contains(path) && asked.status == 200;
    started + ledger.asked.iter().rev().find(is_it).unwrap().at
}

#[tokio::test(flavor = "multi_thread")]
async fn n5_n8_n9_a_drained_nodes_address_moves_when_its_last_pod_is_gone_and_the_pods_follow() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation-with-deployment.yaml")).unwrap();
    rig.settled("nia/web").await;
    running(&rig).await;
    // The scheduler may have put all of them on the node that had its address first.
    let node = nodes_of_pods(&rig).remove(0);
    let address = ["34.123.45.67", "34.123.45.68"]
        .into_iter()
        .find(|address| rig.holder(address).is_some_and(|holder| holder.ends_with(&node)))
        .unwrap();

    rig.kubectl(&["cordon", &node]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(rig.holder(address).unwrap().ends_with(&node), "its pods still use it");

    let (started, has_started) = tokio::sync::oneshot::channel();
    let gone = last_pod_gone(&rig, &node, started);
    let drain = async {
        has_started.await.unwrap();
        let mut drain = rig.control_plane.kubectl();
        drain.args(["drain", &node, "--ignore-daemonsets", "--timeout=60s"]);
        let drained = tokio::task::spawn_blocking(move || drain.output().unwrap()).await.unwrap();
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    };
    let (gone, ()) = tokio::join!(gone, drain);
    eventually("the address is on another node", SOON, async || {
        Ok(rig.holder(address).is_some_and(|holder| !holder.ends_with(&node)))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get("nia/web")["status"], rig.logs()));
    let took =
        accepted(&rig, &format!("/instances/{node}/deleteAccessConfig")).saturating_duration_since(gone);
    println!("from the last pod's end to the cloud's acceptance of the first call: {took:?}");
    assert!(took <= REACTION_MAX, "it took {took:?}");
    rig.settled("nia/web").await;
    assert!(!rig.ready_nodes().contains(&node), "the drained node is not labelled any more");
    running(&rig).await;
}
