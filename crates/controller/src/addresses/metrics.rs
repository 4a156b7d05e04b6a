//! Metrics about NetIPAllocations, their addresses and their nodes.
//!
//! In: the index of the reconciler, and its calls and their outcomes. Out: the metrics. The gauges about an object
//! repeat its status, so the two never contradict each other. Only the leader reports metrics about objects.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::allocation_label;
use api::net_ip_allocation::NetIPAllocation;
use api::status::AddressState;
use kube::ResourceExt;
use plan::{Address, NodeName, PoolKey, Provider};
use prometheus::{HistogramVec, IntCounterVec};

use super::flipop_metrics::Flipop;
use super::index::Index;
use super::kind::Kind;
use super::object::Object;
use super::resources::{floating_ip_pool, net_ip_allocation};
use crate::metrics::{ERROR, Metrics, SUCCESS, SeriesTable};
use crate::providers::metrics::ProviderMetrics;

/// Buckets for reconciliations. One takes milliseconds; the alert on slow ones fires at 30 seconds.
const RECONCILE_SECONDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// Buckets for moves. A move takes as long as the operations of the provider.
const MOVE_SECONDS: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0];

/// The metrics about addresses. Clones share the same metrics.
#[derive(Clone)]
pub struct AddressMetrics {
    /// The metrics of the process.
    pub process: Metrics,
    pub(super) providers: ProviderMetrics,
    of: Arc<Inner>,
}

struct Inner {
    /// Names of the objects that have series.
    known: Mutex<BTreeSet<String>>,
    status: SeriesTable,
    reserved: SeriesTable,
    attached: SeriesTable,
    unattached: SeriesTable,
    address: SeriesTable,
    cordoned: SeriesTable,
    node_ready: SeriesTable,
    reconciled: IntCounterVec,
    reconcile_seconds: HistogramVec,
    attaches: IntCounterVec,
    detaches: IntCounterVec,
    evictions: IntCounterVec,
    move_seconds: HistogramVec,
    flipop: Flipop,
}

impl AddressMetrics {
    /// Registers the metrics.
    pub fn new(process: Metrics, providers: ProviderMetrics) -> Result<Self, prometheus::Error> {
        let new = process.registration();
        let of_object = ["crd_name"];
        let by_status = ["crd_name", "status"];
        let of = Inner {
            known: Mutex::default(),
            status: new.gauge_table(
                "netipallocation_crd_status",
                "1 while the object is Ready, otherwise 0",
                &of_object,
            )?,
            reserved: new.gauge_table(
                "netipallocation_reserved_ips_total",
                "Addresses that the object lists",
                &of_object,
            )?,
            attached: new.gauge_table(
                "netipallocation_attached_ips_total",
                "Addresses that are on a node",
                &of_object,
            )?,
            unattached: new.gauge_table(
                "netipallocation_unattached_ips_total",
                "Addresses that are not on a node",
                &of_object,
            )?,
            address: new.gauge_table(
                "netipallocation_ip_attached",
                "1 for an address and the node that holds it, 0 with node=\"none\" for an address on no node",
                &["crd_name", "ip", "node"],
            )?,
            cordoned: new.gauge_table(
                "netipallocation_node_cordoned",
                "1 while the node is cordoned, otherwise 0; for nodes that match an object or hold an address",
                &["node"],
            )?,
            node_ready: new.gauge_table(
                "netipallocation_node_ip_ready",
                "1 while the node has the label ip.ready=true for the object, otherwise 0; for nodes that match the object or hold an address of it",
                &["node", "crd_name"],
            )?,
            reconciled: new.counters(
                "netipallocation_reconcile_total",
                "Reconciliations of the object, by status (success or error)",
                &by_status,
            )?,
            reconcile_seconds: new.histograms(
                "netipallocation_reconcile_duration_seconds",
                "Duration of reconciliations of the object in seconds",
                &of_object,
                &RECONCILE_SECONDS,
            )?,
            attaches: new.counters(
                "netipallocation_ip_attach_total",
                "Attachments of addresses to VMs, by status success or error",
                &by_status,
            )?,
            detaches: new.counters(
                "netipallocation_ip_detach_total",
                "Detachments of addresses from VMs, by status success or error",
                &by_status,
            )?,
            evictions: new.counters(
                "ip_address_controller_pod_evictions_total",
                "Evictions of pods from nodes without an address, by status (evicted, refused or error)",
                &by_status,
            )?,
            move_seconds: new.histograms(
                "ip_address_controller_move_duration_seconds",
                "Duration of a move in seconds, from its journal entry until the provider has confirmed its last step",
                &["kind", "provider"],
                &MOVE_SECONDS,
            )?,
            flipop: Flipop::new(&new)?,
        };
        Ok(Self { process, providers, of: Arc::new(of) })
    }

    /// Counts a reconciliation of an object. All objects are reconciled together, so `took` is the time for all.
    pub fn evaluated(&self, key: &PoolKey, is_error: bool, took: Duration) {
        count(&self.of.reconciled, key, !is_error);
        if key.kind == net_ip_allocation::KIND {
            self.of.reconcile_seconds.with_label_values(&[&*key.name]).observe(took.as_secs_f64());
        }
    }

    /// Counts a failed write of an object's status as a failed reconciliation.
    pub fn not_written(&self, key: &PoolKey) {
        count(&self.of.reconciled, key, false);
    }

    /// Counts an attempt to attach an address to a node.
    pub fn attached(&self, key: &PoolKey, address: Address, is_done: bool) {
        count(&self.of.attaches, key, is_done);
        if key.kind == floating_ip_pool::KIND {
            self.of.flipop.assigned(key, address, is_done);
        }
    }

    /// Counts an attempt to detach an address from a node.
    pub fn detached(&self, key: &PoolKey, is_done: bool) {
        count(&self.of.detaches, key, is_done);
    }

    /// Records the duration of a finished move.
    pub fn moved(&self, key: &PoolKey, provider: Provider, took: Duration) {
        let labels = [key.kind, &provider.to_string()];
        self.of.move_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Counts an attempt to evict a pod.
    pub fn evicted(&self, key: &PoolKey, status: &str) {
        self.of.evictions.with_label_values(&[&*key.name, status]).inc();
    }

    /// Rewrites the gauges about objects and nodes, and removes the series of deleted objects.
    pub fn describe(&self, index: &Index) {
        let _whole = self.process.describing();
        let mut known = self.of.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { status, reserved, attached, unattached, address, cordoned, node_ready, .. } = &*self.of;
        for table in [status, reserved, attached, unattached, address, cordoned, node_ready] {
            table.reset();
        }
        let mut present = BTreeSet::new();
        for (key, tracked) in &index.objects {
            if let Object::Allocation(object) = &tracked.object {
                present.insert(object.name_any());
                self.describe_object(key, object);
                self.describe_nodes(index, key, object);
                self.begin_counters(&key.name);
            }
        }
        for deleted in known.difference(&present) {
            self.forget(deleted);
        }
        *known = present;
        for kind in Kind::ALL {
            self.process.set_undecodable(&kind.named().0, index.undecodable.of(kind).count());
        }
        self.of.flipop.describe(index);
        self.providers.forget_objects(|key| !index.objects.contains_key(key));
        for (name, node) in index.world.meant_by(net_ip_allocation::KIND) {
            cordoned.add([&name.as_str().into()], node.is_cordoned.into());
        }
    }

    /// Starts the counters of an object at 0: `rate` does not see the first event of a series.
    fn begin_counters(&self, name: &str) {
        for counters in [&self.of.reconciled, &self.of.attaches, &self.of.detaches] {
            for status in [SUCCESS, ERROR] {
                let _ = counters.with_label_values(&[name, status]);
            }
        }
    }

    /// Removes the counters of a deleted object. Some of them may not exist.
    fn forget(&self, name: &str) {
        for counters in [&self.of.reconciled, &self.of.attaches, &self.of.detaches] {
            for status in [SUCCESS, ERROR] {
                let _ = counters.remove_label_values(&[name, status]);
            }
        }
        for status in ["evicted", "refused", ERROR] {
            let _ = self.of.evictions.remove_label_values(&[name, status]);
        }
        let _ = self.of.reconcile_seconds.remove_label_values(&[name]);
    }

    /// Adds a series about the label `ip.ready` of each node that matches the object or holds an address of it.
    fn describe_nodes(&self, index: &Index, key: &PoolKey, object: &NetIPAllocation) {
        let label = allocation_label(&key.name);
        let addresses = object.status.iter().flat_map(|status| &status.addresses);
        let attached = addresses.filter(|address| address.state == AddressState::Attached);
        let holders: BTreeSet<NodeName> =
            attached.filter_map(|address| address.node_name.as_deref().map(Into::into)).collect();
        for name in index.world.matching(key).chain(&holders) {
            let Some(node) = index.nodes.get(name) else { continue };
            // A node has one label `ip.ready` for all objects, so the address may be that of another object.
            let is_of_object = holders.contains(name) || node.labels.get(&label).is_some();
            let is_ready = node.is_ip_ready() && is_of_object;
            self.of.node_ready.add([&name.as_str().into(), &key.name], is_ready.into());
        }
    }

    fn describe_object(&self, key: &PoolKey, object: &NetIPAllocation) {
        let status = object.status.as_ref();
        let is_ready = |kind: &str, value: &str| kind == "Ready" && value == "True";
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is_ready = conditions.iter().any(|condition| is_ready(&condition.type_, &condition.status));
        let addresses = status.map(|status| status.addresses.as_slice()).unwrap_or_default();
        let mut attached = 0;
        for status in addresses {
            let node = status.node_name.as_deref().filter(|_| status.state == AddressState::Attached);
            attached += i64::from(node.is_some());
            let labels = [&key.name, &status.address.as_str().into(), &node.unwrap_or("none").into()];
            self.of.address.add(labels, node.is_some().into());
        }
        let reserved = i64::try_from(object.spec.reserved_ips.len()).unwrap_or(i64::MAX);
        for (table, value) in [
            (&self.of.status, is_ready.into()),
            (&self.of.reserved, reserved),
            (&self.of.attached, attached),
            (&self.of.unattached, (reserved - attached).max(0)),
        ] {
            table.add([&key.name], value);
        }
    }
}

fn count(counters: &IntCounterVec, key: &PoolKey, is_done: bool) {
    if key.kind == net_ip_allocation::KIND {
        counters.with_label_values(&[&*key.name, if is_done { SUCCESS } else { ERROR }]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::node::Node;
    use crate::addresses::tests::{lines, metrics};
    use crate::addresses::watch::Observed;
    use crate::kubernetes::decode::Change;
    use serde_json::{Value, json};

    fn observe(index: &mut Index, node: Value, allocation: Value) {
        index.observe(Observed::Nodes(Change::All(vec![Node::from_json(node).into()])));
        index.observe(Observed::Allocations(Change::All(vec![serde_json::from_value(allocation).unwrap()])));
    }

    #[test]
    fn n12_gauges_repeat_the_status_and_disappear_with_the_object() {
        let metrics = metrics();
        let mut index = Index::default();
        let labels = json!({"ip.ready": "true", "allocation.netinfra.darkbrains.com/edge": "true"});
        let node = json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"unschedulable": true}});
        let now = "2026-11-15T00:00:00Z";
        let ready = json!({"type": "Ready", "status": "False", "reason": "NoNode", "message": "", "lastTransitionTime": now});
        let edge = json!({
            "metadata": {"name": "edge", "uid": "1", "resourceVersion": "1"},
            "spec": {"reservedIPs": ["203.0.113.1", "203.0.113.2"], "cloud": {"provider": "gcp"}},
            "status": {"conditions": [ready], "addresses": [
                {"address": "203.0.113.1", "state": "Attached", "nodeName": "n1"},
                {"address": "203.0.113.2", "state": "Unattached"},
            ]},
        });
        observe(&mut index, node, edge);
        metrics.describe(&index);
        let expected = [
            r#"netipallocation_attached_ips_total{crd_name="edge"} 1"#,
            r#"netipallocation_crd_status{crd_name="edge"} 0"#,
            r#"netipallocation_ip_attached{crd_name="edge",ip="203.0.113.1",node="n1"} 1"#,
            r#"netipallocation_ip_attached{crd_name="edge",ip="203.0.113.2",node="none"} 0"#,
            r#"netipallocation_node_cordoned{node="n1"} 1"#,
            r#"netipallocation_node_ip_ready{crd_name="edge",node="n1"} 1"#,
            r#"netipallocation_reserved_ips_total{crd_name="edge"} 2"#,
            r#"netipallocation_unattached_ips_total{crd_name="edge"} 1"#,
        ];
        let found = lines(&metrics, "netipallocation_");
        let missing: Vec<_> =
            expected.iter().filter(|line| !found.iter().any(|found| found == *line)).collect();
        assert!(missing.is_empty(), "{missing:?} is not in {found:#?}");
        index.observe(Observed::Allocations(Change::All(Vec::new())));
        metrics.describe(&index);
        let found = lines(&metrics, "netipallocation_");
        let of_object = found.iter().filter(|line| line.contains("edge"));
        assert_eq!(of_object.collect::<Vec<_>>(), Vec::<&String>::new());
    }

    /// The series of `node_ip_ready` for the object with this name, as pairs of node and value.
    fn node_ip_ready(name: &str, labels: Value, holder: &str) -> Vec<String> {
        let metrics = metrics();
        let mut index = Index::default();
        let node = json!({"metadata": {"name": "n1", "labels": labels}});
        let object = json!({
            "metadata": {"name": name, "uid": "1", "resourceVersion": "1"},
            "spec": {"reservedIPs": ["203.0.113.1"], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "gcp"}},
            "status": {"addresses": [{"address": "203.0.113.1", "state": "Attached", "nodeName": holder}]},
        });
        observe(&mut index, node, object);
        metrics.describe(&index);
        let beginning = format!("netipallocation_node_ip_ready{{crd_name=\"{name}\",node=");
        let found = lines(&metrics, "netipallocation_node_ip_ready{");
        found.iter().map(|line| line.strip_prefix(&beginning).unwrap_or(line).to_owned()).collect()
    }

    #[test]
    fn n12_node_ip_ready_has_the_full_name_of_the_object() {
        let long = "a".repeat(80);
        let labels = json!({"role": "edge", "ip.ready": "true", allocation_label(&long): "true"});
        assert_eq!(node_ip_ready(&long, labels, "n1"), [r#""n1"} 1"#]);
    }

    #[test]
    fn n12_node_ip_ready_is_zero_for_a_node_without_the_label() {
        assert_eq!(node_ip_ready("edge", json!({"role": "edge"}), "n9"), [r#""n1"} 0"#], "matches");
        assert_eq!(node_ip_ready("edge", json!({}), "n1"), [r#""n1"} 0"#], "holds an address");
        assert_eq!(
            node_ip_ready("edge", json!({}), "n9"),
            Vec::<String>::new(),
            "neither matches nor holds one"
        );
        let of_other = json!({"role": "edge", "ip.ready": "true", allocation_label("other"): "true"});
        assert_eq!(node_ip_ready("edge", of_other, "n9"), [r#""n1"} 0"#], "holds an address of another");
    }
}
