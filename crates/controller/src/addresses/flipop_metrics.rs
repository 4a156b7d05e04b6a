//! Metrics about FloatingIPPools and NodeDNSRecordSets, with the names, labels and meaning of FLIPOP's metrics.
//!
//! In: the objects with their statuses, and the outcomes of assignments. Out: the metrics. The label `dns` is the full
//! name of the DNS record of the object, or empty. The label `provider` is the provider of the addresses; for a
//! NodeDNSRecordSet, the DNS provider. When an object is deleted, its series are removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::{FloatingIPPool, NodeDNSRecordSet};
use plan::{Address, NodeName, PoolKey};

use super::index::Index;
use super::object::Object;
use crate::metrics::{Registration, SeriesTable};

pub(super) struct Flipop {
    node_status: SeriesTable,
    assignments: SeriesTable,
    assignment_errors: SeriesTable,
    ip_node: SeriesTable,
    ip_state: SeriesTable,
    unfulfilled: SeriesTable,
    records: SeriesTable,
    /// Numbers of successful and failed assignments, by pool and address.
    tallies: Mutex<BTreeMap<PoolKey, BTreeMap<Address, Tally>>>,
}

/// Numbers of successful and failed assignments of an address.
#[derive(Clone, Copy, Default)]
struct Tally {
    done: i64,
    failed: i64,
}

impl Flipop {
    pub(super) fn new(new: &Registration<'_>) -> Result<Self, prometheus::Error> {
        let of_address = ["namespace", "name", "ip", "provider", "dns"];
        Ok(Self {
            node_status: new.gauge_table(
                "flipop_floatingippoolcontroller_node_status",
                "Nodes that could get an address (available), and nodes that have or get one (assigned)",
                &["namespace", "name", "provider", "dns", "status"],
            )?,
            assignments: new.counter_table(
                "flipop_floatingippoolcontroller_ip_assignments",
                "Successful assignments of the address to a node",
                &of_address,
            )?,
            assignment_errors: new.counter_table(
                "flipop_floatingippoolcontroller_ip_assignment_errors",
                "Failed assignments of the address to a node",
                &of_address,
            )?,
            ip_node: new.gauge_table(
                "flipop_floatingippoolcontroller_ip_node",
                "1 for an address and the node that holds it or is about to get it",
                &["namespace", "name", "ip", "provider", "dns", "provider_id", "node"],
            )?,
            ip_state: new.gauge_table(
                "flipop_floatingippoolcontroller_ip_state",
                "1 for the current state of each address, as in the status of the pool",
                &["namespace", "name", "ip", "provider", "dns", "state"],
            )?,
            unfulfilled: new.gauge_table(
                "flipop_floatingippoolcontroller_unfulfilled_ips",
                "Number of addresses by which desiredIPs exceeds the length of ips",
                &["namespace", "name", "provider", "dns"],
            )?,
            records: new.gauge_table(
                "flipop_nodednsrecordset_records",
                "Number of records of the DNS name",
                &["namespace", "name", "provider", "dns"],
            )?,
            tallies: Mutex::default(),
        })
    }

    /// Counts an attempt to assign an address of a pool to a node.
    pub(super) fn assigned(&self, key: &PoolKey, address: Address, is_done: bool) {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.entry(key.clone()).or_default().entry(address).or_default();
        *(if is_done { &mut tally.done } else { &mut tally.failed }) += 1;
    }

    /// Rewrites all series. The counts are kept by pool and address, because the values of a pool's labels can change.
    pub(super) fn describe(&self, index: &Index) {
        for table in [
            &self.node_status,
            &self.assignments,
            &self.assignment_errors,
            &self.ip_node,
            &self.ip_state,
            &self.unfulfilled,
            &self.records,
        ] {
            table.reset();
        }
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.retain(|key, _| index.objects.contains_key(key));
        for (key, tracked) in &index.objects {
            let object = match &tracked.object {
                Object::Pool(object) => object,
                Object::Records(object) => {
                    self.describe_records(index, key, object);
                    continue;
                }
                Object::Allocation(_) => continue,
            };
            let listed = index.world.pool(key).map(|pool| pool.addresses.as_slice()).unwrap_or_default();
            let mut of_pool = tallies.get_mut(key);
            of_pool.iter_mut().for_each(|tallies| tallies.retain(|address, _| listed.contains(address)));
            self.describe_pool(index, key, object, of_pool.as_deref().unwrap_or(&BTreeMap::new()));
        }
    }

    fn describe_pool(
        &self,
        index: &Index,
        key: &PoolKey,
        object: &FloatingIPPool,
        tallies: &BTreeMap<Address, Tally>,
    ) {
        let (namespace, name) = (&key.namespace, &key.name);
        let (provider, dns) = (&object.spec.provider.as_str().into(), &name_of(index, key));
        let mut assigned = 0;
        for (ip, ip_status) in object.status.iter().flat_map(|status| &status.ips) {
            let tally =
                ip.parse().ok().and_then(|address| tallies.get(&address)).copied().unwrap_or_default();
            let ip = &ip.as_str().into();
            self.assignments.add([namespace, name, ip, provider, dns], tally.done);
            self.assignment_errors.add([namespace, name, ip, provider, dns], tally.failed);
            let state = ip_status.state.name().into();
            self.ip_state.add([namespace, name, ip, provider, dns, &state], 1);
            if let Some(node) = ip_status.node_name.as_deref() {
                assigned += 1;
                let known = index.nodes.get(&NodeName::from(node));
                let id = known.and_then(|node| node.provider_id.as_deref()).unwrap_or_default().into();
                self.ip_node.add([namespace, name, ip, provider, dns, &id, &node.into()], 1);
            }
        }
        let available = i64::try_from(index.world.count_assignable(key)).unwrap_or(i64::MAX);
        for (status, count) in [("available", available), ("assigned", assigned)] {
            self.node_status.add([namespace, name, provider, dns, &status.into()], count);
        }
        let listed = object.spec.ips.as_ref().map_or(0, Vec::len);
        let lacking = object.spec.desired().unwrap_or(listed).saturating_sub(listed);
        let lacking = i64::try_from(lacking).unwrap_or(i64::MAX);
        self.unfulfilled.add([namespace, name, provider, dns], lacking);
    }

    fn describe_records(&self, index: &Index, key: &PoolKey, object: &NodeDNSRecordSet) {
        let spec = &object.spec;
        let published = object.status.as_ref().and_then(|status| status.dns.as_ref());
        let count =
            i64::try_from(published.map_or(0, |published| published.values.len())).unwrap_or(i64::MAX);
        let (provider, dns) = (&spec.dns_provider().into(), &name_of(index, key));
        self.records.add([&key.namespace, &key.name, provider, dns], count);
    }
}

/// The full name of the DNS record of an object, or an empty string.
fn name_of(index: &Index, key: &PoolKey) -> Arc<str> {
    let publication = index.world.pool(key).and_then(|pool| pool.publication.as_ref());
    publication.map_or_else(Arc::default, |publication| Arc::clone(&publication.name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::addresses::metrics::AddressMetrics;
    use crate::addresses::tests::{key, lines, metrics, ready_nodes};
    use crate::addresses::watch::Observed;
    use crate::kubernetes::decode::Change;
    use serde_json::json;

    /// The series of FLIPOP's metrics, without the lines `# HELP` and `# TYPE`.
    fn series(metrics: &AddressMetrics) -> Vec<String> {
        lines(metrics, "flipop_")
    }

    /// Three Ready nodes, and a pool with `desiredIPs: 3` and two addresses, one of them on the first node.
    fn index() -> Index {
        let mut index = ready_nodes(3);
        let pool = json!({
            "metadata": {"name": "pool", "namespace": "web", "uid": "1", "resourceVersion": "1"},
            "spec": {
                "provider": "digitalocean", "desiredIPs": 3, "ips": ["203.0.113.1", "203.0.113.2"],
                "dnsRecordSet": {"recordName": "hello", "zone": "example.com"},
            },
            "status": {
                "ips": {
                    "203.0.113.1": {"state": "active", "nodeName": "n1", "providerID": "digitalocean://1"},
                    "203.0.113.2": {"state": "unassigned"},
                },
                "addresses": [{"address": "203.0.113.1", "state": "Attached", "lastHolder": {"vm": "1"}}],
            },
        });
        index.observe(Observed::Pools(Change::All(vec![serde_json::from_value(pool).unwrap()])));
        index
    }

    #[test]
    fn f12_metrics_of_a_pool_have_flipops_names_and_labels() {
        let (metrics, mut index) = (metrics(), index());
        let (first, second) = ("203.0.113.1".parse().unwrap(), "203.0.113.2".parse().unwrap());
        for (address, is_done) in [(first, true), (first, true), (second, false)] {
            metrics.attached(&key(), address, is_done);
        }
        metrics.describe(&index);
        let expected = [
            r#"flipop_floatingippoolcontroller_ip_assignment_errors{dns="hello.example.com",ip="203.0.113.1",name="pool",namespace="web",provider="digitalocean"} 0"#,
            r#"flipop_floatingippoolcontroller_ip_assignment_errors{dns="hello.example.com",ip="203.0.113.2",name="pool",namespace="web",provider="digitalocean"} 1"#,
            r#"flipop_floatingippoolcontroller_ip_assignments{dns="hello.example.com",ip="203.0.113.1",name="pool",namespace="web",provider="digitalocean"} 2"#,
            r#"flipop_floatingippoolcontroller_ip_assignments{dns="hello.example.com",ip="203.0.113.2",name="pool",namespace="web",provider="digitalocean"} 0"#,
            r#"flipop_floatingippoolcontroller_ip_node{dns="hello.example.com",ip="203.0.113.1",name="pool",namespace="web",node="n1",provider="digitalocean",provider_id="digitalocean://1"} 1"#,
            r#"flipop_floatingippoolcontroller_ip_state{dns="hello.example.com",ip="203.0.113.1",name="pool",namespace="web",provider="digitalocean",state="active"} 1"#,
            r#"flipop_floatingippoolcontroller_ip_state{dns="hello.example.com",ip="203.0.113.2",name="pool",namespace="web",provider="digitalocean",state="unassigned"} 1"#,
            r#"flipop_floatingippoolcontroller_node_status{dns="hello.example.com",name="pool",namespace="web",provider="digitalocean",status="assigned"} 1"#,
            r#"flipop_floatingippoolcontroller_node_status{dns="hello.example.com",name="pool",namespace="web",provider="digitalocean",status="available"} 2"#,
            r#"flipop_floatingippoolcontroller_unfulfilled_ips{dns="hello.example.com",name="pool",namespace="web",provider="digitalocean"} 1"#,
        ];
        assert_eq!(series(&metrics), expected);
        let text = metrics.process.text().unwrap();
        assert!(text.contains("# TYPE flipop_floatingippoolcontroller_ip_assignments counter"), "{text}");
        metrics.describe(&index);
        assert_eq!(series(&metrics), expected, "describing the pool again counts nothing twice");
        index.observe(Observed::Pools(Change::All(Vec::new())));
        metrics.describe(&index);
        assert_eq!(series(&metrics), Vec::<String>::new());
    }

    #[test]
    fn f12_calls_have_the_labels_of_their_object() {
        let (metrics, mut index) = (metrics(), index());
        metrics.providers.record_call(
            "digitalocean",
            "AssignIP",
            Some(&key()),
            true,
            Duration::from_millis(20),
        );
        metrics.providers.record_call(
            "digitalocean",
            "AssignIP",
            Some(&key()),
            false,
            Duration::from_millis(20),
        );
        metrics.providers.record_call("digitalocean", "ListIPs", None, true, Duration::from_millis(20));
        metrics.describe(&index);
        let of_list = r#"flipop_providers_calls_total{call="ListIPs",kind="",name="",namespace="",outcome="success",provider="digitalocean"} 1"#;
        let calls = |series: Vec<String>| -> Vec<String> {
            series.into_iter().filter(|line| line.contains("calls_total")).collect()
        };
        let expected = [
            r#"flipop_providers_calls_total{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="web",outcome="error",provider="digitalocean"} 1"#,
            r#"flipop_providers_calls_total{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="web",outcome="success",provider="digitalocean"} 1"#,
            of_list,
        ];
        assert_eq!(calls(series(&metrics)), expected);
        let count = r#"flipop_providers_call_duration_seconds_count{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="web",provider="digitalocean"} 2"#;
        assert!(series(&metrics).contains(&count.to_owned()), "{:#?}", series(&metrics));
        index.observe(Observed::Pools(Change::All(Vec::new())));
        metrics.describe(&index);
        assert_eq!(calls(series(&metrics)), [of_list]);
        assert!(series(&metrics).iter().all(|line| !line.contains("AssignIP")), "{:#?}", series(&metrics));
    }

    #[test]
    fn f12_a_record_set_reports_its_number_of_records() {
        let (metrics, mut index) = (metrics(), Index::default());
        let records = json!({
            "metadata": {"name": "nodes", "namespace": "web", "uid": "1", "resourceVersion": "1"},
            "spec": {"provider": "cloudflare", "dnsRecordSet": {"recordName": "nodes", "zone": "example.com"}},
            "status": {"dns": {"name": "nodes.example.com", "values": ["203.0.113.1", "203.0.113.2"]}},
        });
        index.observe(Observed::RecordSets(Change::All(vec![serde_json::from_value(records).unwrap()])));
        metrics.describe(&index);
        let expected = r#"flipop_nodednsrecordset_records{dns="nodes.example.com",name="nodes",namespace="web",provider="cloudflare"} 2"#;
        assert_eq!(series(&metrics), [expected]);
        index.observe(Observed::RecordSets(Change::All(Vec::new())));
        metrics.describe(&index);
        assert_eq!(series(&metrics), Vec::<String>::new());
    }
}
