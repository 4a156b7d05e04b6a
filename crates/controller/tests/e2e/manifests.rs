//! Manifests of our custom resources, for tests that need other specs than the examples.

use serde_json::{Value, json};

pub fn allocation(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "netinfra.darkbrains.com/v1alpha1", "kind": "NetIPAllocation",
        "metadata": {"name": name}, "spec": spec,
    })
}

pub fn pool(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "FloatingIPPool",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// A pool of both addresses at DigitalOcean for the three worker nodes, with or without pods.
pub fn pool_of_workers(name: &str) -> Value {
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "ips": ["203.0.113.10", "203.0.113.11"],
        "match": {"nodeLabel": "doks.digitalocean.com/node-pool=work"},
    });
    pool(name, spec)
}

pub fn record_set(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "NodeDNSRecordSet",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}
