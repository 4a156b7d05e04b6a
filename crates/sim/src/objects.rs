//! Names and common parts of a run's Kubernetes objects.
//!
//! In: an object as JSON, or the number of a node. Out: names, lists and conditions. It never accesses the apiserver.

use serde_json::{Value, json};

use crate::clouds::Cloud;

/// The plural name of the kind whose objects list addresses at a cloud.
pub(crate) fn kind_of(cloud: Cloud) -> &'static str {
    if cloud == Cloud::Ocean { "floatingippools" } else { "netipallocations" }
}

pub(crate) fn node_name(cloud: Cloud, node: u64) -> String {
    match cloud {
        Cloud::Compute => format!("edge-{node}"),
        Cloud::Ocean => format!("worker-{node}"),
        Cloud::Azure => format!("azure-{node}"),
        Cloud::Aws => format!("aws-{node}"),
    }
}

/// The name of the pod on a node at DigitalOcean.
pub(crate) fn pod_name(node: u64) -> String {
    format!("ingress-{node}")
}

/// The journal entries in an object's status.
pub(crate) fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["moves"]["entries"].as_array().into_iter().flatten()
}

/// The strings in a list.
pub(crate) fn texts(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(ToOwned::to_owned))
}

/// The conditions of a node or pod, with this status of `Ready`.
pub(crate) fn conditions(status: &str, since: &str) -> Value {
    json!([{"type": "Ready", "status": status, "lastTransitionTime": since}])
}
