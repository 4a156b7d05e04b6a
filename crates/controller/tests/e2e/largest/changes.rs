//! Changes to the largest cluster while the controller is measured.

use api::{FloatingIPPool, NetIPAllocation};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::cluster::{Size, namespace, pod};

/// Changes a label of a node that no selector uses.
pub async fn change_node(client: &Client, size: Size, number: usize) -> kube::Result<()> {
    let name = format!("node-{:05}", number * 7 % size.nodes());
    let change = json!({"metadata": {"labels": {"bench": number.to_string()}}});
    Api::<Node>::all(client.clone())
        .patch(&name, &PatchParams::default(), &Patch::Merge(change))
        .await
        .map(drop)
}

/// Makes one of the pods of a node Ready or not Ready. The others stay Ready.
pub async fn change_pod(client: &Client, size: Size, number: usize) -> kube::Result<()> {
    let (object, mut status) = pod(number / 2 * 10 % size.pods());
    if number.is_multiple_of(2) {
        status["status"]["conditions"][3]["status"] = "False".into();
    }
    let metadata = &object["metadata"];
    let pods: Api<Pod> = Api::namespaced(client.clone(), metadata["namespace"].as_str().unwrap());
    let name = metadata["name"].as_str().unwrap();
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

/// Creates a ReplicaSet and an object that refers to its Deployment, so that the controller watches ReplicaSets.
pub async fn use_a_replica_set(client: &Client) {
    let template = json!({
        "metadata": {"labels": {"app": "owned"}},
        "spec": {"containers": [{"name": "main", "image": "registry.example.com/main:1.0.0"}]},
    });
    let set = json!({
        "metadata": {"name": "owned"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "owned"}}, "template": template},
    });
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace(0));
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    let spec = json!({
        "reservedIPs": ["198.51.100.1"], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "digitalocean"},
        "workloadRef": {"kind": "Deployment", "name": "owned", "namespace": namespace(0)}, "policy": {"mode": "Observe"},
    });
    let object = NetIPAllocation::new("owned", serde_json::from_value(spec).unwrap());
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

pub async fn change_replica_set(client: &Client, number: usize) -> kube::Result<()> {
    let change = json!({"metadata": {"labels": {"bench": number.to_string()}}});
    Api::<ReplicaSet>::namespaced(client.clone(), &namespace(0))
        .patch("owned", &PatchParams::default(), &Patch::Merge(change))
        .await
        .map(drop)
}

/// Creates a pool that selects pods by a label that was not needed before, so that all pods are listed again.
pub async fn use_a_new_label(client: &Client) {
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "ips": ["198.51.100.2"],
        "match": {"nodeLabel": "role=edge", "podLabel": "pod-template-hash=none"}, "policy": {"mode": "Observe"},
    });
    let pool = FloatingIPPool::new("new-label", serde_json::from_value(spec).unwrap());
    Api::namespaced(client.clone(), &namespace(0)).create(&PostParams::default(), &pool).await.unwrap();
}
