//! How events change the index.

use std::time::Duration;

use super::*;
use crate::vips::tests::served;
use serde::de::DeserializeOwned;
use serde_json::json;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn cluster(version: &str, spec: Value) -> Cluster {
    let metadata = json!({"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": version});
    object(json!({"metadata": metadata, "spec": spec}))
}

#[test]
fn v1_label_or_annotation_name_the_classes_of_a_pool() {
    let classes = |labels: Value, annotations: Value| {
        let metadata = json!({"name": "p", "labels": labels, "annotations": annotations});
        pool(&object(json!({"metadata": metadata, "spec": {}}))).classes.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(classes(json!({CLASS: "k"}), json!({CLASS: "other"})), ["k".into()]);
    assert_eq!(classes(json!({CLASS: "true"}), json!({CLASS: "k, l"})), ["k".into(), "l".into()]);
    assert_eq!(classes(json!({CLASS: "true"}), json!({})), Vec::<Arc<str>>::new());
    assert_eq!(classes(json!({}), json!({CLASS: "k"})), Vec::<Arc<str>>::new());
}

#[test]
fn used_addresses_outside_the_range_do_not_reduce_free_ones() {
    let free = |counts: Value| {
        let status = json!({"ipAddresses": counts});
        let pool = pool(&object(json!({"metadata": {"name": "p"}, "spec": {}, "status": status})));
        pool.count.unwrap().free
    };
    assert_eq!(free(json!({"total": 3, "used": 5, "free": -2, "outOfRange": 4})), 2);
    assert_eq!(free(json!({"total": 3, "used": 2, "free": 1})), 1);
}

#[test]
fn classes_of_both_api_versions_default_to_the_own_namespace() {
    let class = |topology: Value| facts(&cluster("1", json!({"topology": topology}))).topology.unwrap();
    assert_eq!(class(json!({"class": "k"})).to_string(), "ns/k");
    assert_eq!(class(json!({"class": "k", "classNamespace": "shared"})).to_string(), "shared/k");
    assert_eq!(class(json!({"classRef": {"name": "k"}})).to_string(), "ns/k");
    assert_eq!(class(json!({"classRef": {"name": "k", "namespace": "shared"}})).to_string(), "shared/k");
}

#[test]
fn v3_empty_strings_count_as_unset() {
    let variables = json!([{"name": VARIABLE, "value": ""}]);
    let topology = json!({"class": "k", "variables": variables});
    let endpoint = json!({"host": "", "port": 0});
    let empty = facts(&cluster("1", json!({"controlPlaneEndpoint": endpoint, "topology": topology})));
    assert_eq!((empty.endpoint, empty.variable), (None, None));
}

#[test]
fn spec_or_status_of_a_class_defines_a_variable() {
    let named = json!({"variables": [{"name": VARIABLE}]});
    let class = |spec: &Value, status: &Value| {
        defines(&object(json!({"metadata": {"name": "k"}, "spec": spec, "status": status})))
    };
    assert!(class(&named, &json!({})) && class(&json!({}), &named) && !class(&json!({}), &json!({})));
}

#[test]
fn an_older_version_of_a_cluster_does_not_replace_a_newer_one() {
    let mut index = Index::default();
    index.observe_cluster(cluster("7", json!({"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}})));
    index.observe_cluster(cluster("6", json!({})));
    assert!(index.world.clusters.values().next().unwrap().endpoint.is_some());
}

#[test]
fn the_index_keeps_only_claims_with_names_of_vip_claims() {
    let mut index = Index::default();
    let claim = |name: &str| -> Claim {
        let metadata = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
        let spec = json!({"poolRef": {"kind": "GlobalInClusterIPPool", "name": "p"}});
        object(json!({"metadata": metadata, "spec": spec, "status": {"addressRef": {"name": ""}}}))
    };
    index.observe(Observed::Claims(Change::All(vec![claim("vip-cp-c").into(), claim("machine-7").into()])));
    let claims = index.world.claims.unwrap();
    let named: Vec<_> = claims.keys().map(ToString::to_string).collect();
    assert_eq!(named, ["ns/vip-cp-c"]);
    assert!(claims.values().all(|claim| claim.address.is_none()), "an empty name counts as unset");
}

#[test]
fn a_kind_never_served_is_empty_and_one_no_longer_served_unknown() {
    let mut index = Index::default();
    index.observe(Observed::Absent(Kind::NamespacedPools));
    assert_eq!(index.world.namespaced_pools, Some(BTreeMap::new()));
    index.observe(served(Kind::NamespacedPools));
    assert_eq!(index.world.namespaced_pools, None, "not listed yet");
    index.observe(Observed::Pools(Kind::NamespacedPools, Change::All(Vec::new())));
    assert_eq!(index.world.namespaced_pools, Some(BTreeMap::new()));
    for _ in 0..2 {
        index.observe(Observed::Absent(Kind::NamespacedPools));
        assert_eq!(index.world.namespaced_pools, None, "also after a second discovery");
    }
    index.observe(Observed::Absent(Kind::Claims));
    assert_eq!(index.world.claims, None, "an absent claim kind does not mean that there are no claims");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_no_longer_served_is_not_listed_again() {
    let (mut index, kind) = (Index::default(), Kind::GlobalPools);
    index.observe(served(kind));
    index.observe(Observed::Pools(kind, Change::All(Vec::new())));
    index.observe(Observed::Listed(kind, Instant::now()));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(index.silent(), [kind].into());
    index.observe(Observed::Absent(kind));
    assert_eq!(index.silent(), [].into());
}

#[test]
fn clusters_are_known_from_the_first_list_to_a_watch_failure() {
    let mut index = Index::default();
    index.observe(served(Kind::Clusters));
    assert!(!index.world.are_clusters_known);
    index.observe(Observed::Clusters(Change::All(vec![cluster("1", json!({})).into()])));
    assert!(index.world.are_clusters_known);
    index.observe(Observed::Unsure(Kind::Clusters, "gone".into()));
    assert!(!index.world.are_clusters_known);
    assert_eq!(index.world.clusters.len(), 1, "the last known Clusters stay");
}

#[test]
fn a_late_response_does_not_restore_a_deleted_cluster() {
    let mut index = Index::default();
    index.observe(Observed::Clusters(Change::All(vec![cluster("1", json!({})).into()])));
    index.observe(Observed::Clusters(Change::Deleted(Box::new(cluster("1", json!({})).metadata))));
    index.observe_answer(cluster("2", json!({})));
    assert!(index.clusters.is_empty() && index.world.clusters.is_empty());
}

#[test]
fn an_invalid_port_counts_as_unset() {
    let port = |port: i64| super::port(&Endpoint { host: String::new(), port });
    assert_eq!([port(6443), port(0), port(-1), port(100_000)], [Some(6443), None, None, None]);
    let endpoint = json!({"host": "10.0.0.1", "port": 100_000});
    let read = facts(&cluster("1", json!({"controlPlaneEndpoint": endpoint})));
    assert_eq!(read.endpoint.as_deref(), Some("10.0.0.1"), "the rest of the Cluster is still decoded");
}

#[test]
fn an_address_belongs_to_its_controller_owner() {
    let owner = |uid: &str, controller: bool| json!({"apiVersion": "v1", "kind": "k", "name": "n", "uid": uid, "controller": controller});
    let of = |owners: Value| {
        let metadata = json!({"name": "a", "namespace": "ns", "ownerReferences": owners});
        address(&object(json!({"metadata": metadata, "spec": {"address": "10.0.0.1"}}))).unwrap().claim
    };
    assert_eq!(of(json!([owner("pool", false), owner("claim", true)])), Some("claim".into()));
    assert_eq!(of(json!([])), None);
}

#[test]
fn the_index_is_complete_when_each_kind_is_listed_or_absent() {
    let mut index = Index::default();
    assert!(!index.is_complete());
    Kind::ALL.into_iter().for_each(|kind| index.observe(Observed::Absent(kind)));
    assert!(index.is_complete(), "a cluster without Cluster API");
    index.observe(served(Kind::Clusters));
    assert!(!index.is_complete());
    index.observe(Observed::Clusters(Change::All(Vec::new())));
    assert!(index.is_complete());
    index.observe(Observed::Unsure(Kind::Clusters, "gone".into()));
    assert!(!index.is_complete());
}

/// A Cluster with an endpoint, in a version that can't be decoded.
fn broken(version: &str) -> Decoded<Cluster> {
    let metadata = json!({"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": version});
    let endpoint = json!({"host": "10.0.0.1", "port": 6443});
    object(json!({"metadata": metadata, "spec": {"paused": "maybe", "controlPlaneEndpoint": endpoint}}))
}

#[test]
fn an_undecodable_cluster_keeps_its_endpoint_and_is_not_written() {
    for before in [Some(cluster("1", json!({"topology": {"class": "k"}}))), None] {
        let has_class = before.is_some();
        let mut index = Index::default();
        before
            .into_iter()
            .for_each(|before| index.observe(Observed::Clusters(Change::All(vec![before.into()]))));
        index.observe(Observed::Clusters(Change::All(vec![broken("2")])));
        let found = index.world.clusters.values().next().unwrap();
        assert_eq!(found.undecodable, Some(["10.0.0.1".parse().unwrap()].into()));
        assert_eq!(found.class.is_some(), has_class, "the index keeps the last decoded version");
        assert_eq!(found.endpoint.is_some(), !has_class);
        index.observe_answer(cluster("1", json!({})));
        assert!(
            index.world.clusters.values().all(|cluster| cluster.undecodable.is_some()),
            "a late response must not clear `undecodable`"
        );
        index.observe(Observed::Clusters(Change::Applied(Box::new(cluster("3", json!({})).into()))));
        assert!(index.world.clusters.values().all(|cluster| cluster.undecodable.is_none()));
    }
}

#[test]
fn undecodable_pools_claims_classes_and_addresses_are_not_absent() {
    let metadata = |name: &str| {
        json!({
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
            "labels": {CLASS: "k", ROLE: "control-plane"},
        })
    };
    let mut index = Index::default();
    index.observe(Observed::Pools(
        Kind::NamespacedPools,
        Change::All(vec![object(json!({"metadata": metadata("p"), "spec": {}, "status": 7}))]),
    ));
    let pools = index.world.namespaced_pools.as_ref().unwrap();
    assert!(pools.values().all(|pool| pool.classes.contains("k") && pool.count.is_none()));
    assert_eq!(pools.len(), 1);
    index.observe(Observed::Claims(Change::All(vec![object(json!({"metadata": metadata("vip-cp-c")}))])));
    index
        .observe(Observed::Classes(Change::All(vec![object(json!({"metadata": metadata("k"), "spec": 7}))])));
    index.observe(Observed::Addresses(Change::All(vec![object(json!({"metadata": metadata("a")}))])));
    let vips::Undecodable { classes, claims, addresses } = &index.world.undecodable;
    let named =
        [classes, claims, addresses].map(|keys| keys.iter().map(ToString::to_string).collect::<String>());
    assert_eq!(named, ["ns/k", "ns/vip-cp-c", "ns/a"]);
}
