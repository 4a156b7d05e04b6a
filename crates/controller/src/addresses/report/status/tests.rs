//! The status that the controller writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::addresses::tests::{key, ready_nodes};
use crate::addresses::watch::Observed;
use crate::kubernetes::decode::Change;
use api::floating_ip_pool::FloatingIPPoolStatus;
use drivers::{DriverError, Listed, Listing};
use plan::{NodeName, Provider, RecordFact, RecordSet, Scope};
use std::time::Duration;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn scope() -> Scope {
    Scope { provider: Provider::DigitalOcean, account: "".into() }
}

/// An index with this number of Ready nodes, and a FloatingIPPool with this spec.
fn index(nodes: usize, mut spec: Value) -> Index {
    let mut index = ready_nodes(nodes);
    spec["provider"] = "digitalocean".into();
    let metadata = json!({"name": "pool", "namespace": "web", "uid": "1", "resourceVersion": "1"});
    let pool = json!({"metadata": metadata, "spec": spec});
    index.observe(Observed::Pools(Change::All(vec![serde_json::from_value(pool).unwrap()])));
    index.observe(Observed::Pods(Change::All(Vec::new())));
    index
}

/// Processes a listing with these holders.
fn listed(index: &mut Index, holders: &[(&str, Holding)]) {
    let listed = |holding: &Holding| Listed { holding: holding.clone(), region: None, tag: None };
    let addresses =
        holders.iter().map(|(address, holding)| (address.parse().unwrap(), listed(holding))).collect();
    let as_of = index.tick();
    index.observe_listing(&scope(), Ok(Listing { addresses, ..Listing::default() }), as_of);
}

/// The pool with its new status, or `None` if the status does not change.
fn written(index: &Index) -> Option<FloatingIPPool> {
    let plan = plan::plan(&index.world, NOW);
    match changed(index, &plan, &key(), NOW)? {
        Object::Pool(object) => Some((*object).clone()),
        Object::Allocation(_) | Object::Records(_) => None,
    }
}

fn status(index: &Index) -> FloatingIPPoolStatus {
    written(index).unwrap().status.unwrap()
}

/// Processes a watch event with the written object.
fn accept(index: &mut Index, mut object: FloatingIPPool) {
    let version: u64 = object.metadata.resource_version.unwrap_or_default().parse().unwrap_or(0);
    object.metadata.resource_version = Some((version + 1).to_string());
    index.observe(Observed::Pools(Change::Applied(Box::new(object.into()))));
}

/// Each address with its state and, if set, the node, its providerID, and the word `error`.
fn ips(index: &Index) -> Vec<String> {
    let words = |(ip, status): (&String, &IpStatus)| {
        let error = status.error.as_ref().map(|_| "error".to_owned());
        let words = [
            Some(status.state.name().to_owned()),
            status.node_name.clone(),
            status.provider_id.clone(),
            error,
        ];
        format!("{ip} {}", words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    };
    status(index).ips.iter().map(words).collect()
}

#[test]
fn f11_each_address_has_one_of_flipops_states() {
    let three = json!(["203.0.113.1", "203.0.113.2", "203.0.113.3"]);
    let mut desired_two = index(2, json!({"ips": three, "desiredIPs": 2}));
    let free = Holding::Free;
    let one = Holding::By("1".into());
    listed(
        &mut desired_two,
        &[("203.0.113.1", one.clone()), ("203.0.113.2", free.clone()), ("203.0.113.3", free.clone())],
    );
    assert_eq!(
        ips(&desired_two),
        ["203.0.113.1 active n1 digitalocean://1", "203.0.113.2 in-progress n2", "203.0.113.3 disabled"]
    );
    let two = json!(["203.0.113.1", "203.0.113.2"]);
    let mut without_pods = index(2, json!({"ips": two, "match": {"podLabel": "app=web"}}));
    listed(&mut without_pods, &[("203.0.113.1", one), ("203.0.113.2", free)]);
    assert_eq!(ips(&without_pods), ["203.0.113.1 no-match", "203.0.113.2 unassigned"]);
    let as_of = without_pods.tick();
    let silence = DriverError::Unavailable("no answer".into());
    without_pods.observe_listing(&scope(), Err(silence), as_of);
    assert_eq!(ips(&without_pods), ["203.0.113.1 error error", "203.0.113.2 error error"]);
}

#[test]
fn f11_assignable_nodes_and_nodes_with_errors_are_listed() {
    let mut index = index(4, json!({"ips": ["203.0.113.1"]}));
    listed(&mut index, &[("203.0.113.1", Holding::By("2".into()))]);
    index.world.avoid_machines.insert("3".into(), NOW + Duration::from_secs(60));
    let object = written(&index).unwrap();
    let new = object.status.clone().unwrap();
    assert_eq!(new.assignable_nodes, ["n1", "n4"]);
    assert_eq!(new.node_errors, ["n3"]);
    accept(&mut index, object);
    assert_eq!(written(&index), None, "a settled cluster costs no write");

    let as_of = index.tick();
    index.observe_listing(&scope(), Err(DriverError::Unavailable("no answer".into())), as_of);
    assert_eq!(status(&index).assignable_nodes, ["n1", "n4"], "n2 may still hold the address");

    index.world.avoid_machines.clear();
    index.world.remove_node(&NodeName::from("n4"));
    assert_eq!(status(&index).assignable_nodes, ["n1", "n3"]);
    assert_eq!(status(&index).node_errors, Vec::<String>::new());
}

#[test]
fn the_status_can_store_the_latest_possible_time() {
    let mut index = index(1, json!({"ips": ["203.0.113.1"], "assignmentCoolOffSeconds": 1e308}));
    listed(&mut index, &[("203.0.113.1", Holding::Free)]);
    let mut object = written(&index).unwrap();
    let last = serde_json::from_value(json!("9999-12-30T22:00:00.5Z")).unwrap();
    object.status.get_or_insert_default().last_assignment = Some(last);
    accept(&mut index, object);
    assert_eq!(status(&index).last_assignment.unwrap().0.as_second(), Timestamp::MAX.as_second());
}

#[test]
fn f11_of_many_nodes_the_first_by_name_are_listed() {
    let mut index = index(NODES_MAX + 50, json!({"ips": ["203.0.113.1"]}));
    listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
    let mut names: Vec<_> = (2..=NODES_MAX + 50).map(|number| format!("n{number}")).collect();
    names.sort();
    assert_eq!(status(&index).assignable_nodes, names[..NODES_MAX]);
}

#[test]
fn the_records_of_another_objects_dns_name_are_not_in_the_status() {
    let dns = json!({"provider": "digitalocean", "zone": "example.com", "recordName": "hello"});
    let mut index = index(1, json!({"ips": ["203.0.113.1"], "dnsRecordSet": dns}));
    index.world.dns_owner = Some("us".into());
    listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
    let name = plan::plan(&index.world, NOW).published[&key()][0].0.clone();
    let values = ["203.0.113.1".parse().unwrap()].into();
    let set = RecordSet { values, ttl: Some(30), owner: Some("us".into()) };
    index.world.records.insert(name, RecordFact { set, as_of: NOW });
    assert_eq!(status(&index).dns.unwrap().values, ["203.0.113.1"]);

    let metadata = json!({"name": "a", "namespace": "web", "uid": "0", "resourceVersion": "1"});
    let spec = json!({"provider": "digitalocean", "ips": ["203.0.113.2"], "dnsRecordSet": dns});
    let other = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    index.observe(Observed::Pools(Change::Applied(Box::new(other))));
    assert_eq!(status(&index).dns.unwrap().values, Vec::<String>::new());
}

#[test]
fn the_time_of_a_loss_is_written_once_and_read_by_the_next_leader() {
    let mut index = index(1, json!({"ips": ["203.0.113.1"]}));
    listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
    let object = written(&index).unwrap();
    accept(&mut index, object);
    index.observe(Observed::Nodes(Change::All(Vec::new())));
    let lost_at = NOW + Duration::from_millis(700);
    index.world.losses = plan::plan(&index.world, lost_at).losses;
    let object = written(&index).unwrap();
    assert_eq!(object.status.as_ref().unwrap().addresses[0].lost_since, Some(Time(NOW)));
    accept(&mut index, object);
    assert_eq!(written(&index), None, "without a change there is no write");
    let kept = index.world.losses.clone();
    assert_eq!(index.remembered_losses(), kept);

    // An older controller does not write this field, so the next leader starts from its own time.
    let Object::Pool(pool) = &index.objects[&key()].object else { panic!("not a FloatingIPPool") };
    let mut erased = (**pool).clone();
    erased.status.as_mut().unwrap().addresses[0].lost_since = None;
    accept(&mut index, erased);
    assert_eq!(index.remembered_losses(), BTreeMap::new());
}

#[test]
fn f11_a_refused_pool_reports_why_and_lists_no_nodes() {
    let mut index = index(1, json!({"ips": ["203.0.113.1"], "match": {"nodeLabel": "a in b"}}));
    listed(&mut index, &[("203.0.113.1", Holding::Free)]);
    let new = status(&index);
    assert!(new.error.unwrap().contains("a in b"));
    assert_eq!(new.assignable_nodes, Vec::<String>::new());
}

/// The size limit of etcd, less what metadata and managed fields need.
const STATUS_BYTES_MAX: usize = 1_400_000;

fn bytes(status: &FloatingIPPoolStatus) -> usize {
    serde_json::to_string(status).unwrap().len()
}

#[test]
fn a_thousand_long_failures_fit_into_a_status() {
    let ips: Vec<_> = (0..1_000).map(|at| format!("203.0.{}.{}", at / 250, at % 250)).collect();
    let mut index = index(1, json!({"ips": ips}));
    let why: Arc<str> = "the cloud said no ".repeat(40).into();
    let until = NOW + Duration::from_secs(60);
    for ip in &ips {
        listed(&mut index, &[(ip, Holding::Free)]);
    }
    let holders: Vec<_> = ips.iter().map(|ip| (ip.as_str(), Holding::Free)).collect();
    listed(&mut index, &holders);
    for ip in &ips {
        let pause = plan::Pause { until, why: Arc::clone(&why) };
        index.world.avoid_addresses.insert(ip.parse().unwrap(), pause);
    }
    let new = status(&index);
    assert_eq!((new.addresses.len(), new.ips.len()), (1_000, 1_000));
    assert!(bytes(&new) < STATUS_BYTES_MAX, "{}", bytes(&new));
    let message = new.addresses[0].message.as_ref().unwrap();
    assert!(
        message.starts_with("waits: the last attempt failed") && message.ends_with("more characters"),
        "{message}"
    );
}

#[test]
fn a_huge_selector_fits_into_a_status() {
    let index = index(1, json!({"ips": ["203.0.113.1"], "match": {"nodeLabel": "a in b ".repeat(30_000)}}));
    let new = status(&index);
    assert!(new.error.as_ref().unwrap().contains("more characters"));
    assert!(bytes(&new) < 50_000, "{}", bytes(&new));
}

#[test]
fn of_too_many_dns_values_the_first_are_in_the_status() {
    let dns = json!({"provider": "digitalocean", "zone": "example.com", "recordName": "hello"});
    let mut index = index(1, json!({"ips": ["203.0.113.1"], "dnsRecordSet": dns}));
    index.world.dns_owner = Some("us".into());
    listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
    let name = plan::plan(&index.world, NOW).published[&key()][0].0.clone();
    let values = (0..2_000).map(|at: u32| Address(std::net::Ipv4Addr::from(at).into())).collect();
    let set = RecordSet { values, ttl: Some(30), owner: Some("us".into()) };
    index.world.records.insert(name, RecordFact { set, as_of: NOW });
    let object = written(&index).unwrap();
    assert_eq!(object.status.as_ref().unwrap().dns.as_ref().unwrap().values.len(), VALUES_MAX);
    accept(&mut index, object);
    let again = written(&index).and_then(|object| object.status);
    assert!(again.is_none_or(|status| status.dns.unwrap().values.len() == VALUES_MAX));
}

#[test]
fn the_journal_is_complete_even_if_the_status_is_full() {
    let ip = |at: usize| format!("203.0.{}.{}", at / 250, at % 250);
    let holder = |at: usize| json!({"vm": at.to_string(), "nodeName": "n"});
    let entry = |at: usize| {
        json!({
            "id": ip(at), "address": ip(at), "step": "Urgent", "epoch": 1, "to": holder(at),
        })
    };
    let of_status = |at: usize| json!({"address": ip(at), "state": "Attached", "lastHolder": holder(at)});
    let moving: Vec<_> = (0..30).map(entry).collect();
    let held: Vec<_> = (0..1_000).map(of_status).collect();
    let listed: Vec<_> = (30..1_030).map(ip).collect();
    let mut index = Index::default();
    index.observe(Observed::Pools(Change::All(vec![
        serde_json::from_value(json!({
            "metadata": {"name": "pool", "namespace": "web", "uid": "1", "resourceVersion": "1"},
            "spec": {"provider": "digitalocean", "ips": listed},
            "status": {"addresses": held, "moves": {"version": 1, "epoch": 1, "entries": moving}},
        }))
        .unwrap(),
    ])));
    let new = status(&index);
    assert_eq!(new.addresses.len(), plan::ADDRESSES_MAX);
    assert_eq!(new.moves.unwrap().entries.len(), 30);
    let remembered = new.addresses.iter().filter(|status| status.last_holder.is_some()).count();
    assert_eq!(remembered, 1_000, "no last holder is missing");
}
