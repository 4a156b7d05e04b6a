//! Fixtures shared by the unit tests of addresses.

use plan::PoolKey;
use serde_json::json;

use super::index::Index;
use super::metrics::AddressMetrics;
use super::node::Node;
use super::resources::floating_ip_pool;
use super::watch::Observed;
use crate::kubernetes::decode::Change;
use crate::metrics::{Identity, Metrics};
use crate::providers::metrics::ProviderMetrics;

/// The key of the FloatingIPPool `web/pool`.
pub(super) fn key() -> PoolKey {
    PoolKey { kind: floating_ip_pool::KIND, namespace: "web".into(), name: "pool".into() }
}

/// An index with this number of Ready nodes at DigitalOcean: `n1` on droplet 1, and so on.
pub(super) fn ready_nodes(count: usize) -> Index {
    let mut index = Index::default();
    let node = |number| {
        let ready = json!({"type": "Ready", "status": "True"});
        let node = json!({
            "metadata": {"name": format!("n{number}")},
            "spec": {"providerID": format!("digitalocean://{number}")}, "status": {"conditions": [ready]},
        });
        Node::from_json(node).into()
    };
    index.observe(Observed::Nodes(Change::All((1..=count).map(node).collect())));
    index
}

pub(super) fn metrics() -> AddressMetrics {
    let process = Metrics::new(&Identity::default()).unwrap();
    AddressMetrics::new(process.clone(), ProviderMetrics::new(&process).unwrap()).unwrap()
}

/// The lines of the metrics that begin with this text.
pub(super) fn lines(metrics: &AddressMetrics, beginning: &str) -> Vec<String> {
    let text = metrics.process.text().unwrap();
    text.lines().filter(|line| line.starts_with(beginning)).map(ToOwned::to_owned).collect()
}
