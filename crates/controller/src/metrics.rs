//! What Prometheus is told, under the names that existing dashboards and alerts use.
//!
//! In: what the rounds see and do. Out: text for `/metrics`. Gauges about objects repeat what the objects' statuses say, so
//! the two never contradict each other, and only the leader has any. Nothing here decides, and nothing reads a metric.

mod flipop;
mod vips;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::allocation_label;
use api::net_ip_allocation::NetIPAllocation;
use api::status::AddressState;
use drivers::DriverError;
use kube::ResourceExt;
use plan::vips::{Role, Said};
use plan::{Address, NodeName, PoolKey, Provider};
use prometheus::core::{Collector, Desc};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::flipop::Flipop;
use self::vips::Vips;
use crate::observe::{Index, Object, floating_ip_pool, net_ip_allocation};
use crate::watch::Kind;

/// A round takes milliseconds; the alert on slow ones begins at half a minute.
const ROUND_SECONDS: [f64; 10] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// A move takes as long as the cloud's operations do.
const MOVE_SECONDS: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0];

const SUCCESS: &str = "success";
const ERROR: &str = "error";

/// Who this process is, as far as metrics tell.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The version.
    pub version: String,
    /// The pod's name.
    pub pod: String,
    /// The cluster's name; without one, metrics have no such label.
    pub cluster: Option<String>,
}

/// All metrics. Copies share what they count.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    /// Every metric with its labels.
    names: Vec<String>,
    /// Held while gauges are set anew, so that nobody reads them half.
    describing: Mutex<BTreeSet<String>>,
    is_leader: IntGauge,
    ready: IntGauge,
    status: IntGaugeVec,
    reserved: IntGaugeVec,
    attached: IntGaugeVec,
    unattached: IntGaugeVec,
    address: IntGaugeVec,
    cordoned: IntGaugeVec,
    node_ready: IntGaugeVec,
    reconciled: IntCounterVec,
    reconcile_seconds: HistogramVec,
    attaches: IntCounterVec,
    detaches: IntCounterVec,
    gcp_errors: IntCounterVec,
    cloud_errors: IntCounterVec,
    evictions: IntCounterVec,
    undecodable: IntGaugeVec,
    move_seconds: HistogramVec,
    flipop: Flipop,
    vips: Vips,
}

impl Metrics {
    /// Not ready yet, and nothing has happened.
    pub fn new(identity: &Identity) -> Result<Self, prometheus::Error> {
        let labels = identity.cluster.iter().map(|name| ("cluster".to_owned(), name.clone())).collect();
        let registry = Registry::new_custom(None, Some(labels))?;
        let new = Registration { registry, pod: &identity.pod, names: RefCell::default() };
        let info = new.gauges(
            "netipallocation_controller_info",
            "The running controller's version",
            &["version", "pod_name"],
        )?;
        info.with_label_values(&[&identity.version, &identity.pod]).set(1);
        new.of_pod("netipallocation_controller_healthy", "Whether the process answers")?.set(1);
        let of_object = ["crd_name"];
        let by_status = ["crd_name", "status"];
        Ok(Self(Arc::new(Inner {
            is_leader: new.of_pod("netipallocation_controller_is_leader", "Whether this pod leads")?,
            ready: new
                .of_pod("netipallocation_controller_ready", "Whether all that is watched has been read")?,
            status: new.gauges("netipallocation_crd_status", "Whether the object is Ready", &of_object)?,
            reserved: new.gauges(
                "netipallocation_reserved_ips_total",
                "Addresses that the object lists",
                &of_object,
            )?,
            attached: new.gauges(
                "netipallocation_attached_ips_total",
                "Addresses that are on a node",
                &of_object,
            )?,
            unattached: new.gauges(
                "netipallocation_unattached_ips_total",
                "Addresses that are on no node",
                &of_object,
            )?,
            address: new.gauges(
                "netipallocation_ip_attached",
                "Whether an address is on a node, and on which",
                &["crd_name", "ip", "node"],
            )?,
            cordoned: new.gauges(
                "netipallocation_node_cordoned",
                "Whether a node that an object means is cordoned",
                &["node"],
            )?,
            node_ready: new.gauges(
                "netipallocation_node_ip_ready",
                "1 if the node has the label ip.ready for the object, otherwise 0, for nodes that match it or hold its addresses",
                &["node", "crd_name"],
            )?,
            reconciled: new.counters(
                "netipallocation_reconcile_total",
                "Evaluations of an object",
                &by_status,
            )?,
            reconcile_seconds: new.histograms(
                "netipallocation_reconcile_duration_seconds",
                "How long an evaluation took",
                &of_object,
                &ROUND_SECONDS,
            )?,
            attaches: new.counters(
                "netipallocation_ip_attach_total",
                "Calls that put an address on a node",
                &by_status,
            )?,
            detaches: new.counters(
                "netipallocation_ip_detach_total",
                "Calls that took an address off a node",
                &by_status,
            )?,
            gcp_errors: new.counters(
                "netipallocation_gcp_api_errors_total",
                "Calls to Google Cloud that failed",
                &["operation", "error_type"],
            )?,
            cloud_errors: new.counters(
                "ip_address_controller_cloud_api_errors_total",
                "Calls to any cloud that failed",
                &["provider", "operation", "error_type"],
            )?,
            evictions: new.counters(
                "ip_address_controller_pod_evictions_total",
                "Evictions from nodes without an address",
                &by_status,
            )?,
            undecodable: new.gauges(
                "ip_address_controller_undecodable_objects",
                "Objects of a kind that the controller can't decode and leaves alone",
                &["kind"],
            )?,
            move_seconds: new.histograms(
                "ip_address_controller_move_duration_seconds",
                "From a move's entry in the journal to its end",
                &["kind", "provider"],
                &MOVE_SECONDS,
            )?,
            flipop: Flipop::new(&new)?,
            vips: Vips::new(&new)?,
            describing: Mutex::default(),
            registry: new.registry,
            names: new.names.into_inner(),
        })))
    }

    /// Every metric with its labels, such as `flipop_nodednsrecordset_records{namespace,name,provider,dns}`. A metric has no series
    /// before its first event, so the text of all metrics may lack it.
    pub fn names(&self) -> &[String] {
        &self.0.names
    }

    /// All metrics, as Prometheus reads them.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let gathered = {
            let _whole = self.0.describing.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.registry.gather()
        };
        TextEncoder::new().encode_to_string(&gathered)
    }

    /// Whether all that is watched has been read.
    pub fn is_ready(&self) -> bool {
        self.0.ready.get() == 1
    }

    /// Says whether all that is watched has been read.
    pub fn set_ready(&self, is_ready: bool) {
        self.0.ready.set(i64::from(is_ready));
    }

    /// Says whether this process leads.
    pub fn set_leader(&self, is_leader: bool) {
        self.0.is_leader.set(i64::from(is_leader));
    }

    /// An object was looked at, together with all others.
    pub fn evaluated(&self, key: &PoolKey, is_error: bool, took: Duration) {
        count(&self.0.reconciled, key, !is_error);
        if key.kind == net_ip_allocation::KIND {
            self.0.reconcile_seconds.with_label_values(&[&*key.name]).observe(took.as_secs_f64());
        }
    }

    /// What was found out about an object could not be written.
    pub fn not_written(&self, key: &PoolKey) {
        count(&self.0.reconciled, key, false);
    }

    /// An address was put on a node, or was not.
    pub fn attached(&self, key: &PoolKey, address: Address, is_done: bool) {
        count(&self.0.attaches, key, is_done);
        if key.kind == floating_ip_pool::KIND {
            self.0.flipop.assigned(key, address, is_done);
        }
    }

    /// An address was taken off a node, or was not.
    pub fn detached(&self, key: &PoolKey, is_done: bool) {
        count(&self.0.detaches, key, is_done);
    }

    /// A move came to its end.
    pub fn moved(&self, key: &PoolKey, provider: Provider, took: Duration) {
        let labels = [key.kind, &provider.to_string()];
        self.0.move_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// A pod was evicted, or was not.
    pub fn evicted(&self, key: &PoolKey, status: &str) {
        self.0.evictions.with_label_values(&[&*key.name, status]).inc();
    }

    /// A cloud did not do or tell what it was asked.
    pub fn failed(&self, provider: Provider, operation: &str, error: &DriverError) {
        self.0.cloud_errors.with_label_values(&[&*provider.to_string(), operation, error.kind()]).inc();
        if provider == Provider::Gcp {
            self.0.gcp_errors.with_label_values(&[operation, error.kind()]).inc();
        }
    }

    /// A provider was called, for this object where it was for one. The call's name is in the words of FLIPOP.
    pub fn called(
        &self,
        provider: &str,
        call: &'static str,
        object: Option<&PoolKey>,
        is_done: bool,
        took: Duration,
    ) {
        self.0.flipop.called(provider, call, object, is_done, took);
    }

    /// A VIP was written on a Cluster.
    pub fn vip_assigned(&self, role: Role, class: &str, took: Option<Duration>) {
        self.0.vips.assigned(role, class, took);
    }

    /// A step towards a VIP failed.
    pub fn vip_failed(&self, role: Role, class: &str, reason: &str) {
        self.0.vips.failed(role, class, reason);
    }

    /// A Cluster was looked at, and this is to be said of its VIPs.
    pub fn vips_considered<'a>(
        &self,
        class: &str,
        said: impl Iterator<Item = &'a Said> + Clone,
        took: Duration,
    ) {
        self.0.vips.considered(class, said, took);
    }

    /// Sets the gauges about pools and claims of VIPs anew.
    pub fn describe_vips(&self, index: &crate::vips::Index) {
        let _whole = self.0.describing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.vips.describe(&index.world);
        for kind in crate::vips::watch::Kind::ALL {
            self.count_undecodable(kind.name(), index.undecodable.of(kind));
        }
    }

    fn count_undecodable<'a>(&self, kind: &str, objects: impl Iterator<Item = (&'a str, &'a str)>) {
        let count = i64::try_from(objects.count()).unwrap_or(i64::MAX);
        self.0.undecodable.with_label_values(&[kind]).set(count);
    }

    /// Sets the gauges about objects and nodes anew.
    pub fn describe(&self, index: &Index) {
        let mut known = self.0.describing.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { status, reserved, attached, unattached, address, cordoned, node_ready, .. } = &*self.0;
        for gauges in [status, reserved, attached, unattached, address, cordoned, node_ready] {
            gauges.reset();
        }
        let mut present = BTreeSet::new();
        for (key, tracked) in &index.objects {
            if let Object::Allocation(object) = &tracked.object {
                present.insert(object.name_any());
                self.describe_object(object);
                self.describe_nodes(index, key, object);
            }
        }
        for gone in known.difference(&present) {
            self.forget(gone);
        }
        *known = present;
        for kind in Kind::ALL {
            self.count_undecodable(&kind.named().0, index.undecodable.of(kind));
        }
        self.0.flipop.describe(index);
        for (name, node) in index.world.meant_by(net_ip_allocation::KIND) {
            cordoned.with_label_values(&[name.as_str()]).set(node.is_cordoned.into());
        }
    }

    /// Sets the gauge about the label `ip.ready` for each node that matches an object or holds an address of it.
    fn describe_nodes(&self, index: &Index, key: &PoolKey, object: &NetIPAllocation) {
        let label = allocation_label(&key.name);
        let addresses = object.status.iter().flat_map(|status| &status.addresses);
        let attached = addresses.filter(|address| address.state == AddressState::Attached);
        let holders: BTreeSet<NodeName> =
            attached.filter_map(|address| address.node_name.as_deref().map(Into::into)).collect();
        for name in index.world.matching(key).chain(&holders) {
            let Some(node) = index.nodes.get(name) else { continue };
            // The label `ip.ready` is of the node, which may hold an address of another object.
            let is_of_object = holders.contains(name) || node.labels().contains_key(&label);
            let is_ready = node.is_ip_ready() && is_of_object;
            self.0.node_ready.with_label_values(&[name.as_str(), &*key.name]).set(is_ready.into());
        }
    }

    fn describe_object(&self, object: &NetIPAllocation) {
        let name = object.name_any();
        let said = object.status.as_ref();
        let is_ready = |kind: &str, value: &str| kind == "Ready" && value == "True";
        let conditions = said.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is_ready = conditions.iter().any(|condition| is_ready(&condition.type_, &condition.status));
        let addresses = said.map(|status| status.addresses.as_slice()).unwrap_or_default();
        let mut attached = 0;
        for status in addresses {
            let node = status.node_name.as_deref().filter(|_| status.state == AddressState::Attached);
            attached += i64::from(node.is_some());
            let labels = [name.as_str(), &status.address, node.unwrap_or("none")];
            self.0.address.with_label_values(&labels).set(node.is_some().into());
        }
        let reserved = i64::try_from(object.spec.reserved_ips.len()).unwrap_or(i64::MAX);
        for (gauges, value) in [
            (&self.0.status, is_ready.into()),
            (&self.0.reserved, reserved),
            (&self.0.attached, attached),
            (&self.0.unattached, (reserved - attached).max(0)),
        ] {
            gauges.with_label_values(&[&name]).set(value);
        }
        // A counter that begins at its first event has no rate for it.
        for counters in [&self.0.reconciled, &self.0.attaches, &self.0.detaches] {
            for status in [SUCCESS, ERROR] {
                let _ = counters.with_label_values(&[name.as_str(), status]);
            }
        }
    }

    /// Takes the counters of an object that is gone away. Those that it never had are not missed.
    fn forget(&self, name: &str) {
        for counters in [&self.0.reconciled, &self.0.attaches, &self.0.detaches] {
            for status in [SUCCESS, ERROR] {
                let _ = counters.remove_label_values(&[name, status]);
            }
        }
        for status in ["evicted", "refused", ERROR] {
            let _ = self.0.evictions.remove_label_values(&[name, status]);
        }
        let _ = self.0.reconcile_seconds.remove_label_values(&[name]);
    }
}

fn count(counters: &IntCounterVec, key: &PoolKey, is_done: bool) {
    if key.kind == net_ip_allocation::KIND {
        counters.with_label_values(&[&*key.name, if is_done { SUCCESS } else { ERROR }]).inc();
    }
}

/// Makes metrics and registers them.
struct Registration<'a> {
    registry: Registry,
    pod: &'a str,
    names: RefCell<Vec<String>>,
}

impl Registration<'_> {
    fn registered<M: Collector + Clone + 'static>(&self, metric: M) -> Result<M, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        let with_labels = |desc: &Desc| format!("{}{{{}}}", desc.fq_name, desc.variable_labels.join(","));
        self.names.borrow_mut().extend(metric.desc().into_iter().map(with_labels));
        Ok(metric)
    }

    fn of_pod(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        Ok(self.gauges(name, help, &["pod_name"])?.with_label_values(&[self.pod]))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(options, labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{Change, Seen};
    use serde_json::{Value, json};

    fn metrics(cluster: Option<&str>) -> Metrics {
        let cluster = cluster.map(ToOwned::to_owned);
        Metrics::new(&Identity { version: "9".into(), pod: "pod-1".into(), cluster }).unwrap()
    }

    fn lines(metrics: &Metrics, beginning: &str) -> Vec<String> {
        let text = metrics.text().unwrap();
        text.lines().filter(|line| line.starts_with(beginning)).map(ToOwned::to_owned).collect()
    }

    fn see(index: &mut Index, node: Value, allocation: Value) {
        index.see(Seen::Nodes(Change::All(vec![serde_json::from_value(node).unwrap()])));
        index.see(Seen::Allocations(Change::All(vec![serde_json::from_value(allocation).unwrap()])));
    }

    #[test]
    fn n12_the_label_cluster_is_there_only_when_the_cluster_has_a_name() {
        let version = "netipallocation_controller_info{";
        assert_eq!(
            lines(&metrics(None), version),
            [r#"netipallocation_controller_info{pod_name="pod-1",version="9"} 1"#]
        );
        let named = lines(&metrics(Some("prod")), "netipallocation_");
        assert!(named.iter().all(|line| line.contains(r#"cluster="prod""#)), "{named:?}");
    }

    #[test]
    fn n12_gauges_say_what_the_status_says_and_go_with_their_object() {
        let metrics = metrics(None);
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
        see(&mut index, node, edge);
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
        let told = lines(&metrics, "netipallocation_");
        let missing: Vec<_> = expected.iter().filter(|line| !told.iter().any(|told| told == *line)).collect();
        assert!(missing.is_empty(), "{missing:?} is not in {told:#?}");
        index.see(Seen::Allocations(Change::All(Vec::new())));
        metrics.describe(&index);
        let told = lines(&metrics, "netipallocation_");
        let of_object = told.iter().filter(|line| line.contains("edge"));
        assert_eq!(of_object.collect::<Vec<_>>(), Vec::<&String>::new());
    }

    /// The series of `node_ip_ready`, as pairs of node and value, of the object with this name.
    fn node_ip_ready(name: &str, labels: Value, holder: &str) -> Vec<String> {
        let metrics = metrics(None);
        let mut index = Index::default();
        let node = json!({"metadata": {"name": "n1", "labels": labels}});
        let object = json!({
            "metadata": {"name": name, "uid": "1", "resourceVersion": "1"},
            "spec": {"reservedIPs": ["203.0.113.1"], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "gcp"}},
            "status": {"addresses": [{"address": "203.0.113.1", "state": "Attached", "nodeName": holder}]},
        });
        see(&mut index, node, object);
        metrics.describe(&index);
        let beginning = format!("netipallocation_node_ip_ready{{crd_name=\"{name}\",node=");
        let told = lines(&metrics, "netipallocation_node_ip_ready{");
        told.iter().map(|line| line.strip_prefix(&beginning).unwrap_or(line).to_owned()).collect()
    }

    #[test]
    fn n12_node_ip_ready_has_the_objects_real_name_as_other_series_do() {
        let long = "a".repeat(80);
        let labels = json!({"role": "edge", "ip.ready": "true", allocation_label(&long): "true"});
        assert_eq!(node_ip_ready(&long, labels, "n1"), [r#""n1"} 1"#]);
    }

    #[test]
    fn n12_node_ip_ready_is_zero_for_a_node_without_the_label() {
        assert_eq!(node_ip_ready("edge", json!({"role": "edge"}), "n9"), [r#""n1"} 0"#], "it matches");
        assert_eq!(node_ip_ready("edge", json!({}), "n1"), [r#""n1"} 0"#], "it holds an address");
        assert_eq!(node_ip_ready("edge", json!({}), "n9"), Vec::<String>::new(), "it is none of its nodes");
        let of_other = json!({"role": "edge", "ip.ready": "true", allocation_label("other"): "true"});
        assert_eq!(node_ip_ready("edge", of_other, "n9"), [r#""n1"} 0"#], "it is another object's node");
    }

    #[test]
    fn n12_errors_of_google_cloud_are_counted_under_the_old_name_and_with_those_of_all_clouds() {
        let metrics = metrics(None);
        metrics.failed(Provider::Gcp, "attach", &DriverError::Conflict("held".into()));
        metrics.failed(Provider::DigitalOcean, "list", &DriverError::Unavailable("gone".into()));
        assert_eq!(
            lines(&metrics, "netipallocation_gcp_api_errors_total{"),
            [r#"netipallocation_gcp_api_errors_total{error_type="Conflict",operation="attach"} 1"#]
        );
        assert_eq!(lines(&metrics, "ip_address_controller_cloud_api_errors_total{").len(), 2);
    }
}
