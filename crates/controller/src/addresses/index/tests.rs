//! How the index processes events.

use api::NetIPAllocation;
use drivers::Listing;
use kube::Resource;
use plan::{Holding, Mode, Pods, Readiness};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::nodes::DISRUPTION_TAINTS;
use super::objects::OUTDATED_RETRY;
use super::*;
use crate::addresses::owner::Owner;
use crate::addresses::resources::{floating_ip_pool, net_ip_allocation};
use crate::addresses::slim::{SlimNode, SlimPod};
use crate::kubernetes::decode::{Change, Decoded};

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// An index with one node, and a NetIPAllocation for a workload of this kind.
fn index(kind: &str, workload: Kind) -> Index {
    let mut index = Index::default();
    let node =
        json!({"metadata": {"name": "n1"}, "spec": {"providerID": "gce://p/z/n1", "unschedulable": true}});
    index.observe(Observed::Nodes(Change::All(vec![read_node(node)])));
    let spec = json!({
        "reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"},
        "workloadRef": {"kind": kind, "name": "web", "namespace": "web"},
    });
    let allocation = json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"}, "spec": spec});
    index.observe(Observed::Allocations(Change::All(vec![read(allocation)])));
    index.observe(Observed::Owners(workload, Change::All(vec![owner("web", "w1")])));
    index.observe(Observed::Pods(Change::All(Vec::new())));
    index
}

/// The object of an index, with the status that the controller sent and with the status that the apiserver stored.
fn written(index: &Index, sent: Value, stored: Value) -> (PoolKey, Object, Object) {
    let (key, tracked) = index.objects.iter().next().unwrap();
    let Object::Allocation(object) = &tracked.object else { panic!("not a NetIPAllocation") };
    let with = |status: Value, version: u64| {
        let mut object = NetIPAllocation::clone(object);
        object.metadata.resource_version = Some(version.to_string());
        object.status = Some(read(status));
        Object::Allocation(Arc::new(object))
    };
    let version = tracked.object.version();
    (key.clone(), with(sent, version), with(stored, version + 1))
}

#[test]
fn a_dropped_optional_field_is_reported_once_and_stops_nothing() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    let holder = json!({"vm": "p/z/n1"});
    let address = json!({"address": "203.0.113.1", "state": "Attached", "lastHolder": holder});
    let mut described = address.clone();
    described["message"] = json!("on n1");
    let (sent, stored) = (json!({"addresses": [described]}), json!({"addresses": [address]}));
    let (key, sent, stored) = written(&index, sent, stored);
    let note = index.observe_written(&key, &sent, stored).unwrap();
    assert!(note.starts_with("the installed CRD is outdated and drops status.addresses.message,"), "{note}");
    let tracked = &index.objects[&key];
    assert!(tracked.refused_until.is_none());
    assert!(
        tracked.dropped_fields.explain(&sent.status(), &tracked.object.status()),
        "otherwise the controller writes the status forever"
    );
    assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Active);

    let (key, sent, stored) = written(&index, sent.status(), index.objects[&key].object.status());
    assert_eq!(index.observe_written(&key, &sent, stored), None, "it was reported already");
    let (key, sent, stored) = written(&index, sent.status(), sent.status());
    index.observe_written(&key, &sent, stored);
    assert!(index.objects[&key].dropped_fields.is_empty(), "the CRD was updated");
}

#[test]
fn a_crd_that_drops_ptr_names_blocks_no_move() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    let moved: Address = "203.0.113.1".parse().unwrap();
    let entry =
        json!({"id": "m1", "address": "203.0.113.1", "from": {"vm": "p/z/n1"}, "step": "Urgent", "epoch": 1});
    let moves = json!({"version": 1, "epoch": 1, "entries": [entry]});
    let status = |more: Value| {
        let mut address = json!({"address": "203.0.113.1", "state": "Moving"});
        address.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"addresses": [address], "moves": moves})
    };
    index.world.ptrs.insert(moved, "a.example.com".into());
    let (key, sent, stored) = written(&index, status(json!({"ptrName": "a.example.com"})), status(json!({})));
    index.observe_written(&key, &sent, stored).unwrap();
    let name = |index: &Index| index.world.pool(&key).unwrap().ptrs.get(&moved).cloned();
    assert_eq!(name(&index).as_deref(), Some("a.example.com"), "otherwise the move would never continue");
    index.rebuild(&key);
    assert_eq!(name(&index).as_deref(), Some("a.example.com"));
}

#[tokio::test(start_paused = true)]
async fn an_object_is_retried_after_its_crd_dropped_the_journal() {
    let holder = json!({"vm": "p/z/n1"});
    let entry = json!({"id": "m1", "address": "203.0.113.1", "to": holder, "step": "Urgent", "epoch": 1});
    let addresses = |more: Value| {
        let mut address = json!({"address": "203.0.113.1", "state": "Unattached"});
        address.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"addresses": [address]})
    };
    for sent in [
        json!({"moves": {"version": 1, "epoch": 1, "entries": [entry]}}),
        addresses(json!({"lastHolder": holder})),
        addresses(json!({"created": true})),
    ] {
        let mut index = index("StatefulSet", Kind::StatefulSets);
        let stored = match sent["moves"].is_null() {
            true => addresses(json!({})),
            false => json!({}),
        };
        let (key, sent, stored) = written(&index, sent, stored);
        index.observe_written(&key, &sent, stored).unwrap();
        assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Refused);
        index.retry_outdated();
        assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Refused);
        tokio::time::advance(OUTDATED_RETRY).await;
        index.retry_outdated();
        assert_eq!(index.world.pool(&key).unwrap().policy.mode, Mode::Active);
        assert!(
            !sent.keeps_journal_and_holders(&index.objects[&key].object),
            "otherwise the status would not be written again"
        );
    }
}

#[test]
fn a_deleted_crd_blocks_others_only_while_its_objects_may_exist() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::NetIPAllocations);
    index.known.extend(others);
    assert!(index.is_complete());
    index.observe(Observed::Absent(Kind::NetIPAllocations));
    assert!(!index.is_complete(), "its object may still exist");
    let gone = json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "2"}, "spec": {
        "reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"},
    }});
    let gone: NetIPAllocation = read(gone);
    index.observe(Observed::Allocations(Change::Deleted(Box::new(gone.metadata))));
    index.observe(Observed::Absent(Kind::NetIPAllocations));
    assert!(index.is_complete());
    index.observe(Observed::Unsure(Kind::Nodes));
    assert!(!index.is_complete());
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_trust_stale_reads_that_contradict_status() {
    let (address, scope) =
        ("203.0.113.1".parse().unwrap(), Scope { provider: Provider::Aws, account: "us-east-1".into() });
    let node = |is_ready: bool| {
        let ready = if is_ready { "True" } else { "False" };
        json!({
            "metadata": {"name": "n1"}, "spec": {"providerID": "aws:///us-east-1a/i-1"},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        })
    };
    let fact = async |is_ready: bool, state: &str, wait: Duration, listed: Holding| {
        let mut index = Index::default();
        index.observe(Observed::Nodes(Change::All(vec![read_node(node(is_ready))])));
        let allocation = json!({
            "metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"},
            "spec": {"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "aws", "region": "us-east-1"}},
            "status": {"addresses": [{
                "address": "203.0.113.1", "state": state, "lastHolder": {"vm": "us-east-1/i-1", "nodeName": "n1"},
            }]},
        });
        index.observe(Observed::Allocations(Change::All(vec![read(allocation)])));
        index.distrust_late_reads(&BTreeMap::from([(Provider::Aws, Duration::from_secs(30))]));
        tokio::time::sleep(wait).await;
        let listed = drivers::Listed { holding: listed, region: None, tag: None };
        let listing = Listing { addresses: BTreeMap::from([(address, listed)]), ..Listing::default() };
        let as_of = index.tick();
        index.observe_listing(&scope, Ok(listing), as_of);
        index.let_late_reads_pass();
        index.world.fact(&scope, address).unwrap().holding.clone()
    };
    let holder = Holding::By("us-east-1/i-1".into());
    assert_eq!(fact(true, "Attached", Duration::ZERO, holder.clone()).await, holder);
    for listed in [Holding::Free, Holding::By("us-east-1/i-2".into())] {
        let doubted = fact(true, "Attached", Duration::ZERO, listed.clone()).await;
        assert!(matches!(doubted, Holding::Unknown(_)), "{doubted:?}");
        assert_eq!(fact(true, "Attached", Duration::from_secs(30), listed.clone()).await, listed);
        let again = fact(true, "Unknown", Duration::ZERO, listed.clone()).await;
        assert!(matches!(again, Holding::Unknown(_)), "the status is Unknown meanwhile");
        let arrived = fact(true, "Moving", Duration::ZERO, listed.clone()).await;
        assert!(matches!(arrived, Holding::Unknown(_)), "it is attached, but the status does not say so yet");
        for settled in ["Unattached", "Foreign"] {
            assert_eq!(fact(true, settled, Duration::ZERO, listed.clone()).await, listed);
        }
    }
    let if_not_ready = async |listed| fact(false, "Attached", Duration::ZERO, listed).await;
    assert_eq!(if_not_ready(Holding::Free).await, Holding::Free, "a failed node serves no traffic");
    let elsewhere = if_not_ready(Holding::By("us-east-1/i-2".into())).await;
    assert!(matches!(elsewhere, Holding::Unknown(_)), "it may have moved from i-2 to the failed node");
}

#[test]
fn an_account_is_unknown_until_a_listing_is_complete() {
    let mut index = Index::default();
    let scope = Scope { provider: plan::Provider::Gcp, account: "p".into() };
    let whole = Listing::default();
    let partial = Listing { unreachable: vec!["a region".into()], ..Listing::default() };
    for (listing, is_known) in [(&whole, true), (&partial, false), (&whole, true)] {
        let as_of = index.tick();
        index.observe_listing(&scope, Ok(listing.clone()), as_of);
        assert_eq!(index.world.accounts.contains_key(&scope), is_known);
    }
}

fn read_node(object: Value) -> Decoded<Node> {
    read::<Decoded<SlimNode>>(object).map(Node::alone)
}

fn read_pod(object: Value) -> Decoded<Pod> {
    read::<Decoded<SlimPod>>(object).map(|pod| Pod::with_all_labels(&pod))
}

fn pod(name: &str, owner: &str, uid: &str, phase: &str) -> Box<Decoded<Pod>> {
    let owner = json!({"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": uid, "controller": true});
    Box::new(read_pod(json!({
        "metadata": {"name": name, "namespace": "web", "ownerReferences": [owner]},
        "spec": {"nodeName": "n1"}, "status": {"phase": phase},
    })))
}

/// The metadata of a deleted pod.
fn gone(name: &str) -> Box<kube::api::ObjectMeta> {
    Box::new(read(json!({"name": name, "namespace": "web"})))
}

/// The metadata of a deleted node.
fn gone_node(name: &str) -> Box<kube::api::ObjectMeta> {
    Box::new(read(json!({"name": name})))
}

fn owner(name: &str, uid: &str) -> Decoded<Owner> {
    Owner { namespace: "web".into(), name: name.into(), uid: Some(uid.into()), controlled_by: None }.into()
}

/// The state of the allocation's pods on the node.
fn pods(index: &Index) -> Pods {
    let (_, tracked) = index.objects.first_key_value().unwrap();
    let (name, node) = index.nodes.first_key_value().unwrap();
    tracked.membership(name, node).unwrap()
}

#[test]
fn an_unsupported_vm_is_reported_until_its_node_is_gone() {
    let node = |name: &str, machine: &str| {
        let id = format!("azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/{machine}");
        Box::new(read_node(json!({"metadata": {"name": name}, "spec": {"providerID": id}})))
    };
    let uniform = node("n1", "virtualMachineScaleSets/set/virtualMachines/0");
    let spec = json!({"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "azure"}});
    let allocation = json!({"metadata": {"name": "edge", "uid": "a1", "resourceVersion": "1"}, "spec": spec});
    let mut index = Index::default();
    index.observe(Observed::Allocations(Change::All(vec![read(allocation.clone())])));
    let refusal = |index: &Index| {
        let (_, tracked) = index.objects.first_key_value().unwrap();
        tracked.refusal.as_ref().map(|refusal| (refusal.reason.name(), refusal.message.clone()))
    };
    index.observe(Observed::Nodes(Change::Applied(uniform.clone())));
    let (reason, message) = refusal(&index).unwrap();
    assert_eq!(reason, "UnsupportedNode");
    assert!(message.starts_with("node n1 can't get an address") && message.contains("Flexible"), "{message}");
    index.observe(Observed::Nodes(Change::Applied(node("n2", "virtualMachines/two"))));
    assert_eq!(refusal(&index), None);
    let key = index.objects.keys().next().unwrap().clone();
    assert_eq!(index.unsupported(&key).map(|(node, _)| node.as_str()), Some("n1"));
    index.observe(Observed::Nodes(Change::Deleted(gone_node("n1"))));
    assert_eq!(index.unsupported(&key), None);

    let mut index = Index::default();
    index.observe(Observed::Nodes(Change::Applied(uniform.clone())));
    index.observe(Observed::Allocations(Change::All(vec![read(allocation)])));
    assert_eq!(refusal(&index).unwrap().0, "UnsupportedNode");
    index.observe(Observed::Nodes(Change::Deleted(gone_node("n1"))));
    assert_eq!(refusal(&index).unwrap().0, "NoNodes");
}

#[test]
fn i12_the_oldest_node_decides_the_account_in_any_order() {
    let node = |name: &str, project: &str, created: &str| {
        let metadata = json!({"name": name, "creationTimestamp": created});
        read_node(
            json!({"metadata": metadata, "spec": {"providerID": format!("gce://{project}/zone/{name}")}}),
        )
    };
    let (ours, theirs) =
        (node("n2", "ours", "2026-01-01T00:00:00Z"), node("n1", "theirs", "2026-02-01T00:00:00Z"));
    let allocation = |version: &str| {
        let spec = json!({"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"}});
        let generation: u64 = version.parse().unwrap();
        let metadata =
            json!({"name": "edge", "uid": "a1", "resourceVersion": version, "generation": generation});
        json!({"metadata": metadata, "spec": spec})
    };
    let account = |index: &Index| index.world.pools().next().unwrap().scope.account.to_string();
    let mut index = Index::default();
    index.observe(Observed::Allocations(Change::All(vec![read(allocation("1"))])));
    index.observe(Observed::Nodes(Change::Applied(Box::new(theirs.clone()))));
    assert_eq!(account(&index), "theirs", "no other node is known yet");
    index.observe(Observed::Nodes(Change::All(vec![theirs, ours])));
    assert_eq!(account(&index), "ours");
    index.observe(Observed::Nodes(Change::Applied(Box::new(node("n0", "theirs", "2026-03-01T00:00:00Z")))));
    index.observe(Observed::Allocations(Change::Applied(Box::new(read(allocation("2"))))));
    assert_eq!(account(&index), "ours", "a new node changes nothing");
    let key = index.objects.keys().next().unwrap().clone();
    let other = index.world.node_in_other_account(&key).map(|(_, scope)| scope.to_string());
    assert_eq!(other.as_deref(), Some("gcp/theirs"));
}

#[tokio::test(start_paused = true)]
async fn i15_a_clock_a_minute_behind_does_not_shorten_the_grace_period() {
    let now: Timestamp = "2026-03-01T00:01:00Z".parse().unwrap();
    let node = |version: &str, status: &str, since: &str| {
        let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": since});
        let metadata = json!({"name": "n1", "uid": "n1", "resourceVersion": version});
        let node = read_node(json!({"metadata": metadata, "status": {"conditions": [ready]}}));
        Observed::Nodes(Change::Applied(Box::new(node)))
    };
    let grace_starts = |index: &mut Index, at: Timestamp| {
        index.note_grace_starts(at);
        index.world.node(&"n1".into()).unwrap().grace_starts
    };
    let mut index = Index::default();
    index.observe(node("1", "True", "2026-01-01T00:00:00Z"));
    assert_eq!(grace_starts(&mut index, now), None);
    index.observe(node("2", "False", "2026-03-01T00:00:00Z"));
    assert_eq!(grace_starts(&mut index, now), Some(now));
    index.observe(node("3", "Unknown", "2026-03-01T00:00:40Z"));
    assert_eq!(grace_starts(&mut index, now), Some(now), "only the condition changed");
    index.observe(Observed::Nodes(Change::Deleted(gone_node("n1"))));
    index.observe(node("4", "Unknown", "2026-03-01T00:00:40Z"));
    let never_seen_ready = grace_starts(&mut index, now).unwrap();
    assert_eq!(never_seen_ready.to_string(), "2026-03-01T00:00:40Z");
}

#[test]
fn only_taints_of_a_planned_removal_move_the_address() {
    let is_leaving = |taint: &str, effect: &str| {
        let taints = json!([{"key": taint, "effect": effect}]);
        let node = json!({"metadata": {"name": "n1"}, "spec": {"taints": taints}});
        let mut index = Index::default();
        index.observe(Observed::Nodes(Change::Applied(Box::new(read_node(node)))));
        index.world.node(&"n1".into()).unwrap().is_leaving
    };
    assert!(!is_leaving("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"));
    assert!(!is_leaving("node.kubernetes.io/unschedulable", "NoSchedule"));
    for taint in DISRUPTION_TAINTS {
        assert!(is_leaving(taint, "NoSchedule"), "{taint}");
    }
}

#[test]
fn n5_pods_of_a_workload_are_present_until_gone_or_ended() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    assert_eq!(pods(&index), Pods::Absent);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
    assert_eq!(pods(&index), Pods::Present);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Succeeded"))));
    assert_eq!(pods(&index), Pods::Absent);
    index.observe(Observed::Pods(Change::Applied(pod("web-1", "StatefulSet", "w1", "Running"))));
    index.observe(Observed::Pods(Change::Deleted(gone("web-1"))));
    assert_eq!(pods(&index), Pods::Absent);
}

#[test]
fn n5_pods_are_counted_again_when_their_owner_is_known() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w2", "Running"))));
    assert_eq!(pods(&index), Pods::Present, "its owner is not known yet");
    let other = Box::new(owner("other", "w2"));
    index.observe(Observed::Owners(Kind::StatefulSets, Change::Applied(other)));
    assert_eq!(pods(&index), Pods::Absent);
}

#[test]
fn n6_without_a_workload_no_pod_keeps_an_address_on_a_cordoned_node() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
    assert_eq!(pods(&index), Pods::Present);
    let spec = json!({"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"}});
    let metadata = json!({"name": "edge", "uid": "a1", "resourceVersion": "2", "generation": 2});
    let without = json!({"metadata": metadata, "spec": spec});
    index.observe(Observed::Allocations(Change::Applied(Box::new(read(without)))));
    assert_eq!(pods(&index), Pods::Absent);
}

#[test]
fn n7_a_daemon_set_pod_keeps_the_address_until_the_node_is_drained() {
    let mut index = index("DaemonSet", Kind::DaemonSets);
    index.observe(Observed::Pods(Change::Applied(pod("other", "ReplicaSet", "r1", "Running"))));
    assert_eq!(pods(&index), Pods::Absent, "the node has no pod of the workload");
    index.observe(Observed::Pods(Change::Applied(pod("web", "DaemonSet", "w1", "Running"))));
    assert_eq!(pods(&index), Pods::Present);
    let agent = Box::new(owner("agent", "w9"));
    index.observe(Observed::Owners(Kind::DaemonSets, Change::Applied(agent)));
    index.observe(Observed::Pods(Change::Applied(pod("agent", "DaemonSet", "w9", "Running"))));
    index.observe(Observed::Pods(Change::Deleted(gone("other"))));
    assert_eq!(pods(&index), Pods::Absent, "pods that a drain leaves on the node don't count");
}

/// A NetIPAllocation with two addresses, decodable or not.
fn allocation(version: &str, is_decodable: bool) -> Decoded<NetIPAllocation> {
    let epoch = if is_decodable { json!(3) } else { json!("newer") };
    let entry = json!({
        "id": "m", "address": "203.0.113.9", "step": "Urgent", "epoch": 3, "to": {"vm": "p/z/n2", "nodeName": "n2"},
    });
    read(json!({
        "metadata": {"name": "edge", "uid": "a1", "resourceVersion": version, "generation": 1},
        "spec": {"reservedIPs": ["203.0.113.1", "203.0.113.2"], "cloud": {"provider": "gcp"}},
        "status": {"moves": {"version": 1, "epoch": epoch, "entries": [entry]}},
    }))
}

fn edge() -> PoolKey {
    PoolKey { kind: net_ip_allocation::KIND, namespace: "".into(), name: "edge".into() }
}

#[test]
fn an_undecodable_object_keeps_its_last_version_and_acts_on_nothing() {
    let mut index = Index::default();
    index.observe(Observed::Allocations(Change::All(vec![allocation("1", true)])));
    index.observe(Observed::Allocations(Change::Applied(Box::new(allocation("2", false)))));
    let pool = index.world.pool(&edge()).unwrap();
    assert_eq!(pool.policy.mode, Mode::Refused);
    assert!(pool.entry("203.0.113.9".parse().unwrap()).is_some(), "the last journal stays");
    assert_eq!(index.undecodable.of(Kind::NetIPAllocations).collect::<Vec<_>>(), [("", "edge")]);
    index.observe(Observed::Allocations(Change::All(vec![allocation("2", false)])));
    assert!(index.world.pool(&edge()).is_some(), "a relist does not remove it");
    index.observe(Observed::Allocations(Change::Applied(Box::new(allocation("3", true)))));
    assert!(index.objects[&edge()].undecodable.is_none());
    assert!(index.world.reserved_machines.is_empty());
    assert_eq!(index.undecodable.of(Kind::NetIPAllocations).count(), 0);
}

#[test]
fn an_object_that_never_decoded_reserves_its_addresses_and_vms() {
    let mut index = Index::default();
    index.observe(Observed::Allocations(Change::All(vec![allocation("2", false)])));
    let pool = index.world.pool(&edge()).unwrap();
    let named = ["203.0.113.1", "203.0.113.2", "203.0.113.9"].map(|text| text.parse().unwrap());
    assert_eq!(pool.addresses, named);
    assert_eq!(pool.policy.mode, Mode::Refused);
    assert!(index.world.reserved_machines.contains(&VmId::from("p/z/n2")));
    let meta = allocation("2", false).meta().clone();
    index.observe(Observed::Allocations(Change::Deleted(Box::new(meta))));
    assert!(index.world.pool(&edge()).is_none() && index.world.reserved_machines.is_empty());
}

#[test]
fn an_undecodable_spec_reserves_its_addresses_and_dns_name() {
    let metadata = json!({"name": "x", "namespace": "web", "uid": "u", "resourceVersion": "1"});
    for ttl in [json!(60), json!("soon")] {
        let dns = json!({"zone": "example.com", "recordName": "hello", "provider": "cloudflare", "ttl": ttl});
        let pool = json!({
            "metadata": metadata,
            "spec": {"provider": 7, "ips": ["203.0.113.1"], "dnsRecordSet": dns},
        });
        let records = json!({"metadata": metadata, "spec": {"addressType": 7, "dnsRecordSet": dns}});
        let mut index = Index::default();
        index.observe(Observed::Pools(Change::All(vec![read(pool)])));
        index.observe(Observed::RecordSets(Change::All(vec![read(records)])));
        assert_eq!(index.world.pools().count(), 2);
        for pool in index.world.pools() {
            assert_eq!(&*pool.publication.as_ref().unwrap().name, "hello.example.com");
            assert_eq!(pool.addresses.len(), usize::from(pool.key.kind == floating_ip_pool::KIND));
            assert_eq!(pool.policy.mode, Mode::Refused);
        }
    }
}

#[test]
fn an_undecodable_node_keeps_its_vm_and_its_readiness_is_unknown() {
    let node = |unschedulable: Value| {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        read_node(json!({
            "metadata": {"name": "n1", "uid": "u"}, "status": {"conditions": ready},
            "spec": {"providerID": "gce://p/z/n1", "unschedulable": unschedulable},
        }))
    };
    let broken = || node(json!("maybe"));
    for before in [Some(node(json!(false))), None] {
        let mut index = Index::default();
        before.into_iter().for_each(|node| _ = index.observe(Observed::Nodes(Change::All(vec![node]))));
        index.observe(Observed::Nodes(Change::All(vec![broken()])));
        let (_, found) = index.world.node_of(&VmId::from("p/z/n1")).unwrap();
        assert_eq!(found.readiness, Readiness::Unknown);
        index.observe(Observed::Nodes(Change::Applied(Box::new(node(json!(false))))));
        let (_, found) = index.world.node_of(&VmId::from("p/z/n1")).unwrap();
        assert_eq!(found.readiness, Readiness::Ready);
        index.observe(Observed::Nodes(Change::Applied(Box::new(broken()))));
        index.observe(Observed::Nodes(Change::Deleted(gone_node("n1"))));
        assert!(index.world.node_of(&VmId::from("p/z/n1")).is_none());
    }
}

#[test]
fn an_undecodable_pod_counts_on_its_node_and_is_never_evicted() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "w1", "controller": true});
    let broken = read_pod(json!({
        "metadata": {"name": "web-0", "namespace": "web", "ownerReferences": [owner]},
        "spec": {"nodeName": "n1"}, "status": {"phase": 7},
    }));
    index.observe(Observed::Pods(Change::All(vec![broken.clone()])));
    assert_eq!(pods(&index), Pods::Unknown);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
    assert_eq!(pods(&index), Pods::Present);
    let evictable = |index: &Index| {
        index.objects.values().any(|tracked| tracked.pods.values().any(|pods| pods.evictable > 0))
    };
    assert!(evictable(&index));
    index.observe(Observed::Pods(Change::All(vec![broken.clone()])));
    assert_eq!(pods(&index), Pods::Unknown, "the last decoded version stays");
    assert!(!evictable(&index));
    let mut unbound: Value = json!({"metadata": {"name": "web-0", "namespace": "web"}});
    unbound["metadata"]["ownerReferences"] = json!([owner]);
    index.observe(Observed::Pods(Change::All(vec![read_pod(unbound)])));
    assert_eq!(pods(&index), Pods::Absent);
    index.observe(Observed::Pods(Change::All(vec![broken])));
    assert_eq!(pods(&index), Pods::Unknown, "the pod was bound to its node since");
}

#[test]
fn an_undecodable_owner_keeps_its_last_version() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
    let broken = json!({"name": "web", "namespace": "web", "uid": "w1", "labels": 7});
    let broken: Decoded<kube::core::PartialObjectMeta<k8s_openapi::api::apps::v1::StatefulSet>> =
        read(json!({"metadata": broken}));
    let broken = broken.map(|owner| Owner::from(owner.metadata));
    assert!(matches!(broken, Decoded::Undecodable(_)));
    index.observe(Observed::Owners(Kind::StatefulSets, Change::All(vec![broken])));
    let pod_selection = index.objects.values().next().unwrap().selection.pods.as_ref().unwrap();
    assert!(
        pod_selection.may_evict(index.pods.values().next().unwrap(), &index.owners),
        "the last owner stays"
    );
}

/// A FloatingIPPool for pods with a label.
fn pool_for(label: &str) -> Decoded<api::FloatingIPPool> {
    read(json!({
        "metadata": {"name": label, "namespace": "web", "uid": label, "resourceVersion": "1"},
        "spec": {"provider": "digitalocean", "ips": ["203.0.113.1"], "match": {"podLabel": label}},
    }))
}

/// The state of the pods of each pool on the only node.
fn pods_of_pools(index: &Index) -> Vec<Pods> {
    let (name, node) = index.nodes.first_key_value().unwrap();
    index.objects.values().map(|tracked| tracked.membership(name, node).unwrap()).collect()
}

#[test]
fn only_the_object_with_a_new_label_waits_for_the_next_list_of_pods() {
    let mut index = Index::default();
    let node = json!({"metadata": {"name": "n1"}, "spec": {"providerID": "digitalocean://1001"}});
    index.observe(Observed::Nodes(Change::All(vec![read_node(node)])));
    index.observe(Observed::Pools(Change::All(vec![pool_for("app")])));
    let first = index.take_needed().unwrap();
    index.observe(Observed::Listing(Kind::Pods, first.version));
    index.observe(Observed::Listed(Kind::Pods, Instant::now()));
    assert_eq!((pods_of_pools(&index), index.lacks_labels()), (vec![Pods::Absent], false));

    index.observe(Observed::Pools(Change::Applied(Box::new(pool_for("tier")))));
    let second = index.take_needed().unwrap();
    assert_eq!((pods_of_pools(&index), index.lacks_labels()), (vec![Pods::Absent, Pods::Unknown], true));
    index.observe(Observed::Listing(Kind::Pods, first.version));
    index.observe(Observed::Listed(Kind::Pods, Instant::now()));
    assert!(index.lacks_labels(), "the list was requested before the label was needed");
    index.observe(Observed::Listing(Kind::Pods, second.version));
    index.observe(Observed::Listed(Kind::Pods, Instant::now()));
    assert_eq!((pods_of_pools(&index), index.lacks_labels()), (vec![Pods::Absent, Pods::Absent], false));
}

#[test]
fn pods_that_are_no_longer_watched_are_forgotten() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    index.observe(Observed::Pods(Change::Applied(pod("web-0", "StatefulSet", "w1", "Running"))));
    index.observe(Observed::Unwatched(Kind::Pods));
    assert!(index.pods.is_empty());
    assert_eq!(pods(&index), Pods::Unknown, "they are unknown, not absent");
}

#[test]
fn a_list_in_parts_removes_deleted_pods_at_its_end() {
    let mut index = index("StatefulSet", Kind::StatefulSets);
    let running = |name| *pod(name, "StatefulSet", "w1", "Running");
    index.observe(Observed::Pods(Change::All(vec![running("web-0"), running("web-1")])));
    let names = |index: &Index| index.pods.keys().map(|key| key.name.to_string()).collect::<Vec<_>>();
    // Each step processes one object.
    index.slice = Slice(Duration::ZERO);
    index.observe(Observed::Listing(Kind::Pods, 0));
    let rest = index.observe(Observed::PodsInList(vec![running("web-2"), running("web-3")].into()));
    assert_eq!(names(&index), ["web-0", "web-1", "web-2"]);
    assert!(index.observe(rest.unwrap()).is_none());
    assert_eq!(names(&index), ["web-0", "web-1", "web-2", "web-3"]);
    let mut rest = Some(Observed::Listed(Kind::Pods, Instant::now()));
    for left in [vec!["web-1", "web-2", "web-3"], vec!["web-2", "web-3"]] {
        rest = index.observe(rest.unwrap());
        assert_eq!(names(&index), left);
    }
    assert!(index.observe(rest.unwrap()).is_none());
}

#[test]
fn the_pods_of_many_objects_are_counted_in_parts() {
    let mut index = Index::default();
    let node = json!({"metadata": {"name": "n1"}, "spec": {"providerID": "digitalocean://1001"}});
    index.observe(Observed::Nodes(Change::All(vec![read_node(node)])));
    index.observe(Observed::Pools(Change::All(vec![pool_for("app"), pool_for("tier")])));
    let needed = index.take_needed().unwrap();
    // Each step counts one object.
    index.slice = Slice(Duration::ZERO);
    index.observe(Observed::Listing(Kind::Pods, needed.version));
    let rest = index.observe(Observed::Listed(Kind::Pods, Instant::now()));
    assert_eq!(pods_of_pools(&index), [Pods::Absent, Pods::Unknown]);
    assert!(index.observe(rest.unwrap()).is_none());
    assert_eq!(pods_of_pools(&index), [Pods::Absent, Pods::Absent]);
}

#[test]
fn an_undecodable_pod_counts_with_its_new_labels() {
    let mut index = Index::default();
    let node = json!({"metadata": {"name": "n1"}, "spec": {"providerID": "digitalocean://1001"}});
    index.observe(Observed::Nodes(Change::All(vec![read_node(node)])));
    index.observe(Observed::Pools(Change::All(vec![pool_for("tier")])));
    let pod = |labels: Value, phase: Value| {
        read_pod(json!({
            "metadata": {"name": "web-0", "namespace": "web", "labels": labels}, "spec": {"nodeName": "n1"},
            "status": {"phase": phase},
        }))
    };
    index.observe(Observed::Pods(Change::All(vec![pod(json!({}), json!("Running"))])));
    assert_eq!(pods_of_pools(&index), [Pods::Absent]);
    index.observe(Observed::Pods(Change::All(vec![pod(json!({"tier": "web"}), json!(7))])));
    assert_eq!(pods_of_pools(&index), [Pods::Unknown]);
}
