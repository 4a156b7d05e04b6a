//! The nodes of `just testbed up` and the clouds of `just fakes` that match them.

use crate::cluster::{NodeFixture, node};

/// The project of the demonstration's Compute Engine.
pub const PROJECT: &str = "demo";

/// Names and zones of the nodes at Compute Engine.
pub const EDGE_NODES: [(&str, &str); 3] =
    [("edge-1", "us-west1-a"), ("edge-2", "us-west1-b"), ("edge-3", "us-west1-a")];

/// Names and droplets of the nodes at DigitalOcean.
pub const WORKER_NODES: [(&str, u64); 3] = [("worker-1", 1001), ("worker-2", 1002), ("worker-3", 1003)];

/// The demonstration's nodes.
pub fn nodes() -> Vec<NodeFixture> {
    let edges = EDGE_NODES.into_iter().map(|(name, zone)| edge_node(name, zone));
    let workers = WORKER_NODES.into_iter().map(|(name, droplet)| worker_node(name, droplet));
    edges.chain(workers).collect()
}

/// A node at Compute Engine, labelled `role=external-ip-node`.
pub fn edge_node(name: &str, zone: &str) -> NodeFixture {
    node(name)
        .provider_id(&format!("gce://{PROJECT}/{zone}/{name}"))
        .label("role", "external-ip-node")
        .label("topology.kubernetes.io/region", "us-west1")
        .label("topology.kubernetes.io/zone", zone)
}

/// A node at DigitalOcean, labelled `doks.digitalocean.com/node-pool=work`.
pub fn worker_node(name: &str, droplet: u64) -> NodeFixture {
    node(name)
        .provider_id(&format!("digitalocean://{droplet}"))
        .label("doks.digitalocean.com/node-pool", "work")
        .label("topology.kubernetes.io/region", "nyc3")
}
