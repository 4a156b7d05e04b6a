//! Test workloads whose pods run on nodes with addresses, their nodes and addresses at Compute Engine, and functions that
//! observe the pods.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::demo;
use testbed::fake::ledger::Asked;

use crate::manifests;
use crate::rig::{Rig, SOON};

/// Adds nodes with VMs at Compute Engine and addresses, until there are this many of each.
pub async fn grow(rig: &Rig, nodes: usize, addresses: usize) {
    rig.clouds.compute.with(|compute| {
        (4..=nodes).for_each(|at| compute.add_instance(zone(at), &format!("edge-{at}")));
        (3..=addresses)
            .for_each(|at| compute.add_address("us-west1", &format!("address-{at}"), &address(at)));
    });
    let create = |at: usize| {
        let (fixture, client) = (demo::edge_node(&format!("edge-{at}"), zone(at)), rig.client.clone());
        async move { fixture.create(&client).await }
    };
    let created = futures::stream::iter((4..=nodes).map(create)).buffer_unordered(16);
    created.try_collect::<Vec<_>>().await.unwrap();
}

/// The zone of a node that [`grow`] adds.
pub fn zone(at: usize) -> &'static str {
    ["us-west1-a", "us-west1-b"][at % 2]
}

pub fn address(at: usize) -> String {
    match at {
        1 => "34.123.45.67".into(),
        2 => "34.123.45.68".into(),
        _ => format!("198.18.{}.{}", at / 250, at % 250),
    }
}

/// An allocation with these addresses for the Deployment of the same name.
pub fn allocation(name: &str, addresses: std::ops::RangeInclusive<usize>, interval: u64) -> Value {
    let addresses: Vec<_> = addresses.map(address).collect();
    let spec = json!({
        "reservedIPs": addresses, "nodeSelector": {"role": "external-ip-node"}, "cloud": {"provider": "gcp"},
        "workloadRef": {"kind": "Deployment", "name": name}, "reconcileInterval": interval,
    });
    manifests::allocation(name, spec)
}

/// A Deployment whose pods select nodes with this label.
pub fn deployment(name: &str, replicas: u64, label: &str) -> Value {
    let labels = json!({"app": name});
    let term = json!({"matchExpressions": [{"key": label, "operator": "In", "values": ["true"]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"affinity": affinity, "containers": [{"name": "main", "image": "registry.invalid/none"}]},
            },
        },
    })
}

/// A StatefulSet or DaemonSet whose pods select the nodes of the allocation of the same name.
pub fn workload(kind: &str, name: &str) -> Value {
    let mut workload = deployment(name, 2, &format!("allocation.netinfra.darkbrains.com/{name}"));
    workload["kind"] = json!(kind);
    let spec = workload["spec"].as_object_mut().unwrap();
    match kind {
        "DaemonSet" => _ = spec.remove("replicas"),
        _ => _ = spec.insert("serviceName".into(), json!(name)),
    }
    workload
}

/// The nodes that run pods of the workload, once for each pod.
pub fn nodes_of_pods(rig: &Rig) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
    let names = rig.kubectl(&["get", "pods", "-l", "app=web", "-o", path]);
    let mut names: Vec<_> = names.split_whitespace().map(ToOwned::to_owned).collect();
    names.sort();
    names
}

pub async fn running(rig: &Rig) {
    eventually("every pod runs on a node with an address", SOON, async || {
        let (pods, ready) = (nodes_of_pods(rig), rig.ready_nodes());
        Ok(pods.len() == 4 && pods.iter().all(|node| ready.contains(node)))
    })
    .await
    .unwrap_or_else(|error| {
        panic!("{error}: {:?} {:?}\n{}", nodes_of_pods(rig), rig.ready_nodes(), rig.logs())
    });
}

/// Waits until the last pod of the workload on a node is deleted, and returns the time. Signals when the watch runs.
pub async fn last_pod_gone(rig: &Rig, node: &str, started: tokio::sync::oneshot::Sender<()>) -> Instant {
    let pods: Api<Pod> = Api::default_namespaced(rig.client.clone());
    let events = watcher(pods, watcher::Config::default().labels("app=web")).default_backoff();
    futures::pin_mut!(events);
    let (mut there, mut started) = (std::collections::BTreeSet::new(), Some(started));
    while let Some(event) = events.next().await {
        let is_here = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        match event.unwrap() {
            Event::InitApply(pod) | Event::Apply(pod) if is_here(&pod) => _ = there.insert(pod.metadata.name),
            Event::InitDone => _ = started.take().map(|started| started.send(())),
            Event::Delete(pod) if there.remove(&pod.metadata.name) && there.is_empty() => {
                return Instant::now();
            }
            _ => {}
        }
    }
    panic!("the watch ended");
}

/// When Compute Engine last accepted a call to this path.
pub fn accepted(rig: &Rig, path: &str) -> Instant {
    let (ledger, changes) = (rig.clouds.compute.ledger(), rig.clouds.compute.changes());
    let started = changes[0].0.into_std() - ledger.done[0].at;
    let is_it = |asked: &&Asked| asked.line.contains(path) && asked.status == 200;
    started + ledger.asked.iter().rev().find(is_it).unwrap().at
}

/// Counts the label changes of nodes and the deleted pods during a period.
pub async fn count_changes(rig: &Rig, lasts: Duration) -> (usize, usize) {
    let watch = watcher::Config::default;
    let mut nodes = Box::pin(watcher(Api::<Node>::all(rig.client.clone()), watch()).default_backoff());
    let mut pods = Box::pin(watcher(Api::<Pod>::all(rig.client.clone()), watch()).default_backoff());
    let (mut known, mut labelled, mut gone) = (std::collections::BTreeMap::new(), 0, 0);
    let ends = tokio::time::Instant::now() + lasts;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(ends) => return (labelled, gone),
            event = nodes.next() => if let Event::InitApply(node) | Event::Apply(node) = event.unwrap().unwrap() {
                let before = known.insert(node.name_any(), node.labels().clone());
                labelled += usize::from(before.is_some_and(|before| before != *node.labels()));
            },
            event = pods.next() => gone += usize::from(matches!(event.unwrap().unwrap(), Event::Delete(_))),
        }
    }
}
