//! The objects of a run in Kubernetes: what they are called, and parts of them that several files read or write.
//!
//! In: an object as JSON, or a node's number. Out: names, lists and conditions. It never asks the apiserver.

use serde_json::{Value, json};

use crate::clouds::Cloud;

/// The kind of the objects whose addresses are at a cloud.
pub(crate) fn kind_of(cloud: Cloud) -> &'static str {
    if cloud == Cloud::Ocean { "floatingippools" } else { "netipallocations" }
}

/// What a node is called.
pub(crate) fn node_name(cloud: Cloud, node: u64) -> String {
    match cloud {
        Cloud::Compute => format!("edge-{node}"),
        Cloud::Ocean => format!("worker-{node}"),
        Cloud::Azure => format!("azure-{node}"),
        Cloud::Aws => format!("aws-{node}"),
    }
}

/// What the pod on a node at DigitalOcean is called.
pub(crate) fn pod_name(node: u64) -> String {
    format!("ingress-{node}")
}

/// The entries of an object's journal.
pub(crate) fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["moves"]["entries"].as_array().into_iter().flatten()
}

/// The texts of a list.
pub(crate) fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(ToOwned::to_owned))
}

/// The conditions of a node or a pod that is Ready or not.
pub(crate) fn conditions(status: &str, since: &str) -> Value {
    json!([{"type": "Ready", "status": status, "lastTransitionTime": since}])
}
